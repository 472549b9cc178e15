/* config.json (+ generation_config.json) of GLM-5, 5.1, 5.2, 5.3: every number the engine needs, checked.
 * The rules are those of docs/model.md: indexer_types list > index_topk_pattern > index_topk_freq/offset; rope_theta nested or
 * flat; eos an int or a list, united with generation_config.  What the engine does not compute is refused by name and
 * reason (another model_type, rope_type other than default, attention_bias, a shared layer before a full one, ...).
 */
#ifndef POT_MODEL_CONFIG_H
#define POT_MODEL_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

enum { POT_MAX_LAYERS = 256, POT_MAX_EOS = 32, POT_MAX_GROUPS = 256 };

enum { POT_MAX_TOP_K = 64 };

typedef struct pot_config {
    uint32_t vocab, hidden, dense_inner, moe_inner;
    uint32_t n_layers; /* decoder layers, without MTP */
    uint32_t n_mtp;    /* 0 or 1: layer n_layers, when there */
    uint32_t n_heads, q_lora, kv_lora, nope_dim, rope_dim, v_dim;
    uint32_t n_routed, n_shared, top_k, n_group, topk_group;
    bool norm_topk_prob;
    float routed_scale, rms_eps, mla_eps; /* mla_eps: config key mla_norm_eps, default rms_eps */
    double rope_theta;
    uint32_t index_dim, index_heads, index_topk;
    uint32_t max_positions;
    bool layer_is_dense[POT_MAX_LAYERS]; /* [n_layers + n_mtp]; MTP is sparse */
    bool layer_is_full[POT_MAX_LAYERS];  /* owns an indexer; a shared layer reuses the last full one's choice */
    int32_t eos[POT_MAX_EOS];
    uint32_t n_eos;
    float temperature, top_p; /* generation_config; 1 and 1 when absent */
    int32_t top_k_sampling;   /* 0 when absent */
} pot_config;

/* Reads DIR/config.json and, when there, DIR/generation_config.json. */
pot_status pot_config_read(pot_config *out, const char *directory, pot_err *err);
/* The same from text; generation may be NULL.  `name` stands in sentences. */
pot_status pot_config_parse(pot_config *out, const char *text, size_t bytes, const char *generation,
                            size_t generation_bytes, const char *name, pot_err *err);

#endif
