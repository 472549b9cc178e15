/* A model on disk (or a random one, in its place): config, tensors by role, the formats that they are computed in, and its fingerprint.
 *
 * The loader counts in both directions: each expected tensor found once, each found tensor known; otherwise it refuses
 * and lists what is missing and unknown, up to a limit, with what would mend it.  Source layouts: per-expert and fused
 * names; BF16, F32, F16, FP8 + weight_scale_inv, Quark MXFP4 (weight + weight_scale), the article's X + X.qs; decided per
 * tensor by dtype and shape, never by quantization_config.
 *
 * Read-only after open, any thread.  Coordinator and workers open the same directory with the same pot_format_policy;
 * equal fingerprints mean equal shapes, formats, chunks and grid.
 */
#ifndef POT_MODEL_MODEL_H
#define POT_MODEL_MODEL_H

#include "common/hash.h"
#include "common/status.h"
#include "kernels/format.h"
#include "kernels/stored.h"
#include "model/config.h"
#include "placement/map.h"

/* X(name, suffix after "model.layers.L." or whole name, group for reports) */
#define POT_ROLE_MAP(X)                                                     \
    X(EMBED, "model.embed_tokens.weight", "embeddings")                     \
    X(FINAL_NORM, "model.norm.weight", "norms")                             \
    X(HEAD, "lm_head.weight", "head")                                       \
    X(INPUT_NORM, "input_layernorm.weight", "norms")                        \
    X(POST_NORM, "post_attention_layernorm.weight", "norms")                \
    X(Q_A, "self_attn.q_a_proj.weight", "attention")                        \
    X(Q_A_NORM, "self_attn.q_a_layernorm.weight", "norms")                  \
    X(Q_B, "self_attn.q_b_proj.weight", "attention")                        \
    X(KV_A, "self_attn.kv_a_proj_with_mqa.weight", "attention")             \
    X(KV_A_NORM, "self_attn.kv_a_layernorm.weight", "norms")                \
    X(KV_B, "self_attn.kv_b_proj.weight", "attention")                      \
    X(O, "self_attn.o_proj.weight", "attention")                            \
    X(INDEX_Q, "self_attn.indexer.wq_b.weight", "indexer")                  \
    X(INDEX_K, "self_attn.indexer.wk.weight", "indexer")                    \
    X(INDEX_K_NORM, "self_attn.indexer.k_norm.weight", "norms")             \
    X(INDEX_K_BIAS, "self_attn.indexer.k_norm.bias", "norms")               \
    X(INDEX_WEIGHTS, "self_attn.indexer.weights_proj.weight", "indexer")    \
    X(ROUTER, "mlp.gate.weight", "router")                                  \
    X(ROUTER_BIAS, "mlp.gate.e_score_correction_bias", "router")            \
    X(EXPERT_GATE, "mlp.experts.%u.gate_proj.weight", "experts")            \
    X(EXPERT_UP, "mlp.experts.%u.up_proj.weight", "experts")                \
    X(EXPERT_DOWN, "mlp.experts.%u.down_proj.weight", "experts")            \
    X(SHARED_GATE, "mlp.shared_experts.gate_proj.weight", "shared experts") \
    X(SHARED_UP, "mlp.shared_experts.up_proj.weight", "shared experts")     \
    X(SHARED_DOWN, "mlp.shared_experts.down_proj.weight", "shared experts") \
    X(DENSE_GATE, "mlp.gate_proj.weight", "dense layers")                   \
    X(DENSE_UP, "mlp.up_proj.weight", "dense layers")                       \
    X(DENSE_DOWN, "mlp.down_proj.weight", "dense layers")                   \
    X(ENORM, "enorm.weight", "norms")                                       \
    X(HNORM, "hnorm.weight", "norms")                                       \
    X(EH_PROJ, "eh_proj.weight", "mtp")                                     \
    X(MTP_NORM, "shared_head.norm.weight", "norms")
typedef enum pot_role {
#define X(name, suffix, group) POT_ROLE_##name,
    POT_ROLE_MAP(X)
#undef X
        POT_ROLE_COUNT
} pot_role;

/* [rows, cols] of a role's tensors; cols is 0 for a vector. */
void pot_role_shape(const pot_config *config, pot_role role, uint32_t *rows, uint32_t *cols);

/* What float weights are packed to; quantized sources are kept as they are (kv_b excepted: its absorbed halves are
 * packed anew, in `dense`).  reference: everything f32. */
typedef struct pot_format_policy {
    bool reference;
    pot_format experts;    /* routed, shared, dense MLP; NONE = as stored */
    pot_format dense;      /* attention projections; NONE = q4g64 */
    pot_format head;       /* head, embeddings, eh_proj, indexer projections; NONE = q8g32 */
    pot_format mtp;        /* the MTP layer's experts and eh_proj; NONE = as the others, but never below 8 bits */
    pot_rounding rounding; /* of what is quantized */
} pot_format_policy;
extern const pot_format_policy pot_format_policy_default;
/* Its formats by the names of their options. */
typedef enum pot_wish { POT_WISH_EXPERTS, POT_WISH_DENSE, POT_WISH_HEAD, POT_WISH_MTP, POT_WISHES } pot_wish;
const char *pot_wish_name(pot_wish wish);
pot_format pot_policy_wish(const pot_format_policy *policy, pot_wish wish);

enum { POT_GRID_BITS = 24 };

/* "random:PRESET[,layers=N][,seed=N]" in place of a directory is a model of random weights, with experts in the format that the
 * policy wants (mxfp4 when it wants none): "random:glm-5.2" has that model's dimensions but for vocabulary and number of
 * layers, all of them sparse; "random:tiny" is for tests. */
typedef struct pot_model pot_model;
pot_status pot_model_open(pot_model **out, const char *directory, const pot_format_policy *policy, pot_err *err);
void pot_model_close(pot_model *model);

const pot_config *pot_model_config(const pot_model *model);
const char *pot_model_directory(const pot_model *model);
uint32_t pot_model_layers(const pot_model *model);          /* n_layers + n_mtp */
pot_hash pot_model_fingerprint(const pot_model *model);     /* config numbers, tensor census, formats, c, G */
int pot_model_grid(const pot_model *model, uint32_t layer); /* G */
const pot_format_policy *pot_model_policy(const pot_model *model);

/* A matrix as stored; `expert` only for EXPERT_*.  BUG when the role does not exist in that layer. */
pot_status pot_model_matrix(pot_stored *out, const pot_model *model, pot_role role, uint32_t layer, uint32_t expert,
                            pot_err *err);
/* A norm weight, bias or router bias as f32: out[n], n as the config says. */
pot_status pot_model_vector(float *out, const pot_model *model, pot_role role, uint32_t layer, uint32_t n,
                            pot_err *err);
/* The format a dense matrix (attention, indexer, router = f32, head, embeddings, eh_proj) is packed in. */
pot_format pot_model_format(const pot_model *model, pot_role role, uint32_t layer);

/* Feed-forward shapes: routed experts (NULL in a dense layer), and the expert that every token chooses (shared or dense MLP;
 * NULL when a sparse layer has no shared experts). */
const pot_ffn_shape *pot_model_routed(const pot_model *model, uint32_t layer);
const pot_ffn_shape *pot_model_common(const pot_model *model, uint32_t layer);
/* The shape of expert number `expert` in the map's numbering (routed 0.., then the common one). */
const pot_ffn_shape *pot_model_expert_shape(const pot_model *model, uint32_t layer, uint32_t expert);
/* One chunk of one expert (map numbering), pot_chunk_bytes() of it: packed from a checkpoint, or read from a converted model and
 * checked. */
pot_status pot_model_load_chunk(uint8_t *out, const pot_model *model, uint32_t layer, uint32_t expert, uint32_t chunk,
                                pot_err *err);
/* A tensor outside the experts as the coordinator keeps it, pot_model_dense_bytes() of it: a vector as f32; a matrix as its tiles; kv_b
 * absorbed, which is for each head its keys [kv_lora, nope] (turned) and its values [v, kv_lora], each from a line on. */
uint64_t pot_model_dense_bytes(const pot_model *model, pot_role role, uint32_t layer);
pot_status pot_model_load_dense(uint8_t *out, const pot_model *model, pot_role role, uint32_t layer, int threads,
                                pot_err *err);

/* ---- converted models (docs/formats.md, "The container") ---- */

/* Whether chunks lie packed on disk, as `potluck convert` writes them: then they can be read straight into place. */
bool pot_model_is_packed(const pot_model *model);
/* The file with a layer's chunks; NULL when it is not on this machine (a worker's disk needs only what it owns) or the model is not packed. */
const char *pot_model_chunk_file(const pot_model *model, uint32_t layer);
typedef struct pot_chunk_place {
    uint64_t offset;   /* in that file; a multiple of 4096 */
    uint64_t checksum; /* pot_hash64 of its pot_chunk_bytes() */
} pot_chunk_place;
/* NOT_FOUND, with a sentence, when the file is not there. */
pot_status pot_model_chunk_place(pot_chunk_place *out, const pot_model *model, uint32_t layer, uint32_t expert,
                                 uint32_t chunk, pot_err *err);
/* [pot_model_layers()] shapes for pot_map_make; borrowed. */
const pot_layer_shape *pot_model_layer_shapes(const pot_model *model);

/* Census for `inspect`: tensors by role group, stored dtype and packed format. */
typedef struct pot_census_row {
    const char *group, *stored, *format;
    uint64_t tensors, parameters, stored_bytes, packed_bytes;
} pot_census_row;
enum { POT_CENSUS_ROWS = 128 };
uint32_t pot_model_census(pot_census_row *out, uint32_t max, const pot_model *model);

/* Bytes to hold: the coordinator's own weights (all but experts), and the chunks that `worker` owns under `map`. */
uint64_t pot_model_coordinator_bytes(const pot_model *model);
uint64_t pot_model_layer_bytes(const pot_model *model, uint32_t layer); /* the coordinator's of one layer */
uint64_t pot_model_worker_bytes(const pot_model *model, const pot_map *map, uint32_t worker);
/* LIMIT with both numbers when `needed` exceeds what the machine (RAM, cgroup) leaves. */
pot_status pot_model_check_memory(uint64_t needed_bytes, const char *what, pot_err *err);

#endif
