/* The coordinator's own weights, packed: everything but the experts.  Owner: the engine; read-only after loading. */
#ifndef POT_COORDINATOR_WEIGHTS_H
#define POT_COORDINATOR_WEIGHTS_H

#include "common/mem.h"
#include "kernels/kernels.h"
#include "model/model.h"

typedef struct pot_layer_weights {
    const float *input_norm, *post_norm; /* [hidden] */
    const float *q_a_norm;               /* [q_lora] */
    const float *kv_a_norm;              /* [kv_lora] */
    pot_matrix q_a;                      /* [q_lora, hidden] */
    pot_matrix q_b;                      /* [heads * (nope + rope), q_lora] */
    pot_matrix kv_a;                     /* [kv_lora + rope, hidden] */
    pot_matrix o;                        /* [hidden, heads * v] */
    /* kv_b in its absorbed halves, a matrix per head: keys [kv_lora, nope] (W_UK transposed), values [v, kv_lora]. */
    const pot_matrix *key_up, *value_up; /* [heads] */
    /* Full layers only. */
    pot_matrix index_q;                       /* [index_heads * index_dim, q_lora] */
    pot_matrix index_k;                       /* [index_dim, hidden] */
    pot_matrix index_weights;                 /* [index_heads, hidden] */
    const float *index_k_norm, *index_k_bias; /* [index_dim] */
    /* Sparse layers only. */
    pot_matrix router;        /* [n_routed, hidden], f32 */
    const float *router_bias; /* [n_routed] */
    /* The MTP layer only. */
    const float *enorm, *hnorm, *mtp_norm; /* [hidden] */
    pot_matrix eh_proj;                    /* [hidden, 2 * hidden] */
} pot_layer_weights;

typedef struct pot_weights {
    pot_matrix embed, head;    /* [vocab, hidden] */
    const float *final_norm;   /* [hidden] */
    pot_layer_weights *layers; /* [n_layers + n_mtp] */
    pot_slab slab;
    pot_matrix *heads; /* what key_up and value_up point into */
} pot_weights;

/* Reads and packs with `threads` threads; progress on stderr unless quiet. */
pot_status pot_weights_load(pot_weights *out, const pot_model *model, int threads, bool quiet, pot_err *err);
void pot_weights_free(pot_weights *weights); /* also for an all-zero one */

#endif
