/* A random model of GLM's architecture, written as a checkpoint: small enough to make for every test, with every number drawn
 * from a seed.  No tokenizer: token ids are all that it knows. */
#ifndef POT_TESTS_TINY_MODEL_H
#define POT_TESTS_TINY_MODEL_H

#include <stdint.h>

#include "common/status.h"

/* How the matrices of one class are stored. */
typedef enum pot_tiny_layout {
    POT_TINY_BF16,
    POT_TINY_F32,
    POT_TINY_MXFP4, /* Quark: X.weight U8 [out, in/2], X.weight_scale U8 [out, in/32]; `in` is a multiple of 32 */
    POT_TINY_FP8,   /* X.weight e4m3, X.weight_scale_inv F32 per 128 x 128 */
    POT_TINY_INT4   /* the article's X U8 flat, X.qs F32 per row */
} pot_tiny_layout;

typedef struct pot_tiny {
    const char *name;
    uint32_t vocab, hidden, dense_inner, moe_inner;
    uint32_t n_layers, n_dense, n_mtp;
    uint32_t n_heads, q_lora, kv_lora, nope_dim, rope_dim, v_dim;
    uint32_t n_routed, top_k;
    uint32_t index_dim, index_heads, index_topk;
    const char *schedule;                      /* "FFSS", a letter a layer: full or shared */
    pot_tiny_layout routed, common, attention; /* common: shared experts and dense MLPs */
    uint64_t seed;
} pot_tiny;

/* "experts256", "wide544", "small"; NULL when there is none of that name. */
const pot_tiny *pot_tiny_preset(const char *name);

/* Writes DIRECTORY/config.json and model.safetensors; the directory must be there. */
pot_status pot_tiny_write(const char *directory, const pot_tiny *tiny, pot_err *err);

/* n token ids for tests, drawn from the seed. */
void pot_tiny_prompt(int32_t *ids, uint32_t n, uint32_t vocab, uint64_t seed);

#endif
