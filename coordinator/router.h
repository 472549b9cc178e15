/* The router: sigmoid scores, a correction bias that only selects, groups, top-k (ties to the lower index), normalised and scaled
 * weights.  Formulas: docs/model.md. */
#ifndef POT_COORDINATOR_ROUTER_H
#define POT_COORDINATOR_ROUTER_H

#include "model/config.h"

/* From one row's router logits [n_routed] to top_k experts, ascending, and their weights; the logits are overwritten.
 * scratch: [n_routed].  NUMERIC when a logit is not finite. */
pot_status pot_route(uint32_t *experts, float *weights, const pot_config *config, float *logits, const float *bias,
                     float *scratch, pot_err *err);

#endif
