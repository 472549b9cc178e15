/* What a feed-forward must give, computed in the plainest way: one chunk, one row, one call at a time, in one process. */
#ifndef POT_TESTS_FEED_FORWARD_H
#define POT_TESTS_FEED_FORWARD_H

#include "kernels/kernels.h"
#include "model/model.h"
#include "proto/wire.h"

/* Numbers for tests, drawn from a seed that the caller keeps. */
uint32_t pot_draw(uint64_t *seed, uint32_t below);
float pot_draw_float(uint64_t *seed); /* about normal */

/* sums [n_rows][hidden], zeroed here, of the items' chunks over rows x [n_rows][hidden]. */
pot_status pot_plain_sums(int64_t *sums, const pot_model *model, const pot_compute *compute, uint32_t layer,
                          const float *x, uint32_t n_rows, const pot_wire_item *items, uint32_t n_items, pot_err *err);

/* y [n][hidden] as pot_moe_forward gives it. */
pot_status pot_plain_forward(float *y, const pot_model *model, const pot_compute *compute, uint32_t layer,
                             const float *x, uint32_t n, const uint32_t *experts, const float *weights, uint32_t k,
                             pot_err *err);

#endif
