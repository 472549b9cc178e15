/* A layer's feed-forward for n rows, wherever its experts live: group by worker, send, compute the own part meanwhile, wait, add.
 * The result is the same for every map and number of workers (DESIGN 3, rule 3). */
#ifndef POT_COORDINATOR_MOE_H
#define POT_COORDINATOR_MOE_H

#include "coordinator/peers.h"
#include "kernels/kernels.h"
#include "model/model.h"

typedef struct pot_moe_stats {
    uint64_t wire_us;    /* building, sending, adding up */
    uint64_t experts_us; /* own worker's compute, inline */
    uint64_t wait_us;    /* waiting for others */
} pot_moe_stats;

typedef struct pot_moe pot_moe;
pot_status pot_moe_create(pot_moe **out, const pot_model *model, pot_peers *peers, const pot_compute *compute,
                          pot_err *err);
void pot_moe_free(pot_moe *moe);
const pot_moe_stats *pot_moe_get_stats(const pot_moe *moe);

/* y [n][hidden] = sum over chosen experts of weight * E(h) + the common expert (shared, or the dense MLP) with weight 1.
 * h [n][hidden]; experts [n][k] (each row ascending, distinct) and weights [n][k]; k = 0 in a dense layer (both may be NULL).
 * Sends one WORK message per worker (several when n > POT_WIRE_MAX_ROWS). */
pot_status pot_moe_forward(pot_moe *moe, float *y, const float *h, uint32_t n, uint32_t layer, const uint32_t *experts,
                           const float *weights, uint32_t k, pot_err *err);

/* Experts that are expected in the layer after the one that is computed next (any order, repeats allowed; borrowed until then): workers
 * that get work may read them ahead. */
void pot_moe_hint(pot_moe *moe, const uint32_t *experts, uint32_t n);

#endif
