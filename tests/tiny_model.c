/* The presets, and the writer: every matrix is drawn in the layout that its class has, at the scale that a trained model has
 * (normal / sqrt(columns)), so that activations stay of order one through all layers.  Random numbers are Philox, counted
 * per tensor: a tensor does not depend on which others there are. */
#include "tests/tiny_model.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/buffer.h"
#include "common/file.h"
#include "common/mem.h"
#include "coordinator/sample.h"
#include "kernels/convert.h"
#include "model/safetensors.h"

static const pot_tiny presets[] = {
    /* The widths of GLM's expert count: 256 experts, one chunk each; selections drop keys after 6 tokens. */
    {.name = "experts256",
     .vocab = 200,
     .hidden = 64,
     .dense_inner = 96,
     .moe_inner = 32,
     .n_layers = 3,
     .n_dense = 1,
     .n_heads = 4,
     .q_lora = 32,
     .kv_lora = 32,
     .nope_dim = 16,
     .rope_dim = 8,
     .v_dim = 16,
     .n_routed = 256,
     .top_k = 8,
     .index_dim = 16,
     .index_heads = 16,
     .index_topk = 6,
     .schedule = "FFS",
     .routed = POT_TINY_INT4,
     .common = POT_TINY_BF16,
     .attention = POT_TINY_BF16,
     .seed = 1},
    /* Five chunks of 96 and one of 64 an expert; the dense layer's MLP has seven of 32. */
    {.name = "wide544",
     .vocab = 144,
     .hidden = 160,
     .dense_inner = 224,
     .moe_inner = 544,
     .n_layers = 3,
     .n_dense = 1,
     .n_mtp = 1,
     .n_heads = 3,
     .q_lora = 48,
     .kv_lora = 40,
     .nope_dim = 24,
     .rope_dim = 16,
     .v_dim = 20,
     .n_routed = 7,
     .top_k = 3,
     .index_dim = 32,
     .index_heads = 16,
     .index_topk = 8,
     .schedule = "FSF",
     .routed = POT_TINY_MXFP4,
     .common = POT_TINY_FP8,
     .attention = POT_TINY_FP8,
     .seed = 2},
    /* As small as it gets, for tests that start a model hundreds of times. */
    {.name = "small",
     .vocab = 40,
     .hidden = 32,
     .dense_inner = 64,
     .moe_inner = 64,
     .n_layers = 2,
     .n_dense = 1,
     .n_mtp = 1,
     .n_heads = 2,
     .q_lora = 16,
     .kv_lora = 16,
     .nope_dim = 8,
     .rope_dim = 8,
     .v_dim = 8,
     .n_routed = 4,
     .top_k = 2,
     .index_dim = 16,
     .index_heads = 16,
     .index_topk = 4,
     .schedule = "FS",
     .routed = POT_TINY_MXFP4,
     .common = POT_TINY_F32,
     .attention = POT_TINY_BF16,
     .seed = 3},
};

const pot_tiny *pot_tiny_preset(const char *name) {
    for (size_t i = 0; i < sizeof presets / sizeof presets[0]; i++)
        if (!strcmp(presets[i].name, name)) return &presets[i];
    return NULL;
}

/* ---- random numbers ----------------------------------------------------------------------------------------------- */

typedef struct stream {
    uint64_t seed, tensor, counter;
    uint32_t words[4];
    unsigned left;
} stream;

static uint32_t next_word(stream *s) {
    if (!s->left) {
        pot_philox(s->words, s->seed, s->counter++, s->tensor);
        s->left = 4;
    }
    return s->words[--s->left];
}

/* Uniform in [-1, 1). */
static float next_uniform(stream *s) { return (float)(int32_t)next_word(s) * 0x1p-31f; }

/* Mean 0, variance 1: the sum of four uniform numbers is close enough to a normal one. */
static float next_normal(stream *s) {
    float sum = next_uniform(s) + next_uniform(s) + next_uniform(s) + next_uniform(s);
    return sum * 0.8660254f;
}

void pot_tiny_prompt(int32_t *ids, uint32_t n, uint32_t vocab, uint64_t seed) {
    stream s = {.seed = seed, .tensor = UINT64_MAX};
    for (uint32_t i = 0; i < n; i++) ids[i] = (int32_t)(next_word(&s) % vocab);
}

/* ---- the file ----------------------------------------------------------------------------------------------------- */

enum { NAME_BYTES = 96 };

typedef struct writer {
    const pot_tiny *tiny;
    pot_tensor_out *tensors; /* names and data are owned */
    uint32_t n, capacity;
    bool short_of_memory;
} writer;

/* Adds a tensor and gives its data to fill; NULL when memory is short (noted in the writer). */
static void *add(writer *w, const char *name, pot_dtype dtype, uint32_t rank, uint64_t rows, uint64_t columns) {
    if (w->n == w->capacity) {
        uint32_t capacity = w->capacity ? 2 * w->capacity : 256;
        pot_tensor_out *grown = pot_realloc_array(w->tensors, capacity, sizeof *grown);
        if (!grown) return w->short_of_memory = true, NULL;
        w->tensors = grown;
        w->capacity = capacity;
    }
    char *own_name = pot_strdup(name);
    void *data = pot_alloc_array(rows * (rank == 2 ? columns : 1), pot_dtype_bytes(dtype));
    if (!own_name || !data) {
        pot_free(own_name);
        pot_free(data);
        return w->short_of_memory = true, NULL;
    }
    w->tensors[w->n++] =
        (pot_tensor_out){.name = own_name, .dtype = dtype, .rank = rank, .shape = {rows, columns}, .data = data};
    return data;
}

static stream begin(const writer *w) { return (stream){.seed = w->tiny->seed, .tensor = w->n}; }

static void add_bf16(writer *w, const char *name, uint32_t rank, uint32_t rows, uint32_t columns, float mean,
                     float scale) {
    stream s = begin(w);
    uint16_t *out = add(w, name, POT_DTYPE_BF16, rank, rows, columns);
    for (size_t i = 0; out && i < (size_t)rows * columns; i++)
        out[i] = pot_bf16_from_f32(mean + scale * next_normal(&s));
}

static void add_f32(writer *w, const char *name, uint32_t rank, uint32_t rows, uint32_t columns, float scale) {
    stream s = begin(w);
    float *out = add(w, name, POT_DTYPE_F32, rank, rows, columns);
    for (size_t i = 0; out && i < (size_t)rows * columns; i++) out[i] = scale * next_normal(&s);
}

static void add_mxfp4(writer *w, const char *name, uint32_t rows, uint32_t columns, float scale) {
    stream s = begin(w);
    char scales_name[NAME_BYTES];
    snprintf(scales_name, sizeof scales_name, "%s_scale", name);
    uint8_t *codes = add(w, name, POT_DTYPE_U8, 2, rows, columns / 2);
    uint8_t *scales = add(w, scales_name, POT_DTYPE_U8, 2, rows, columns / 32);
    if (!codes || !scales) return;
    for (size_t i = 0; i < (size_t)rows * columns / 2; i++) codes[i] = (uint8_t)next_word(&s);
    int exponent = ilogbf(scale / 2.93f); /* 2.93: root mean square of the E2M1 values */
    for (size_t i = 0; i < (size_t)rows * columns / 32; i++)
        scales[i] = (uint8_t)(127 + exponent + (int)(next_word(&s) % 3) - 1);
}

static void add_fp8(writer *w, const char *name, uint32_t rows, uint32_t columns, float scale) {
    stream s = begin(w);
    char scales_name[NAME_BYTES];
    snprintf(scales_name, sizeof scales_name, "%s_scale_inv", name);
    uint8_t *codes = add(w, name, POT_DTYPE_F8_E4M3, 2, rows, columns);
    uint32_t down = (rows + 127) / 128, across = (columns + 127) / 128;
    float *scales = add(w, scales_name, POT_DTYPE_F32, 2, down, across);
    if (!codes || !scales) return;
    for (size_t i = 0; i < (size_t)rows * columns; i++) codes[i] = pot_e4m3_from_f32(100 * next_normal(&s));
    for (size_t i = 0; i < (size_t)down * across; i++) scales[i] = scale / 100 * (1 + 0.5f * next_uniform(&s));
}

static void add_int4(writer *w, const char *name, uint32_t rows, uint32_t columns, float scale) {
    stream s = begin(w);
    char scales_name[NAME_BYTES];
    snprintf(scales_name, sizeof scales_name, "%s.qs", name);
    uint64_t bytes = (uint64_t)rows * ((columns + 1) / 2);
    uint8_t *codes = add(w, name, POT_DTYPE_U8, 1, bytes, 0);
    float *scales = add(w, scales_name, POT_DTYPE_F32, 1, rows, 0);
    if (!codes || !scales) return;
    for (uint64_t i = 0; i < bytes; i++) codes[i] = (uint8_t)next_word(&s);
    for (uint32_t r = 0; r < rows; r++)
        scales[r] = scale / 4.6f * (1 + 0.5f * next_uniform(&s)); /* 4.6: RMS of -8..7 */
}

static void add_matrix(writer *w, pot_tiny_layout layout, const char *name, uint32_t rows, uint32_t columns) {
    float scale = 1 / sqrtf((float)columns);
    switch (layout) {
    case POT_TINY_BF16: add_bf16(w, name, 2, rows, columns, 0, scale); return;
    case POT_TINY_F32: add_f32(w, name, 2, rows, columns, scale); return;
    case POT_TINY_MXFP4: add_mxfp4(w, name, rows, columns, scale); return;
    case POT_TINY_FP8: add_fp8(w, name, rows, columns, scale); return;
    case POT_TINY_INT4: add_int4(w, name, rows, columns, scale); return;
    }
}

static void add_norm(writer *w, const char *name, uint32_t n) { add_bf16(w, name, 1, n, 1, 1, 0.1f); }

static void add_ffn(writer *w, pot_tiny_layout layout, const char *prefix, uint32_t inner) {
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    char name[NAME_BYTES];
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "%s.%s.weight", prefix, parts[i]);
        add_matrix(w, layout, name, i < 2 ? inner : w->tiny->hidden, i < 2 ? w->tiny->hidden : inner);
    }
}

#define IN_LAYER(suffix) (snprintf(name, sizeof name, "model.layers.%u.%s", layer, suffix), name)

static void add_attention(writer *w, uint32_t layer, bool full) {
    const pot_tiny *t = w->tiny;
    char name[NAME_BYTES];
    add_norm(w, IN_LAYER("input_layernorm.weight"), t->hidden);
    add_norm(w, IN_LAYER("post_attention_layernorm.weight"), t->hidden);
    add_matrix(w, t->attention, IN_LAYER("self_attn.q_a_proj.weight"), t->q_lora, t->hidden);
    add_norm(w, IN_LAYER("self_attn.q_a_layernorm.weight"), t->q_lora);
    add_matrix(w, t->attention, IN_LAYER("self_attn.q_b_proj.weight"), t->n_heads * (t->nope_dim + t->rope_dim),
               t->q_lora);
    add_matrix(w, t->attention, IN_LAYER("self_attn.kv_a_proj_with_mqa.weight"), t->kv_lora + t->rope_dim, t->hidden);
    add_norm(w, IN_LAYER("self_attn.kv_a_layernorm.weight"), t->kv_lora);
    add_matrix(w, t->attention, IN_LAYER("self_attn.kv_b_proj.weight"), t->n_heads * (t->nope_dim + t->v_dim),
               t->kv_lora);
    add_matrix(w, t->attention, IN_LAYER("self_attn.o_proj.weight"), t->hidden, t->n_heads * t->v_dim);
    if (!full) return;
    add_matrix(w, t->attention, IN_LAYER("self_attn.indexer.wq_b.weight"), t->index_heads * t->index_dim, t->q_lora);
    add_matrix(w, t->attention, IN_LAYER("self_attn.indexer.wk.weight"), t->index_dim, t->hidden);
    add_norm(w, IN_LAYER("self_attn.indexer.k_norm.weight"), t->index_dim);
    add_bf16(w, IN_LAYER("self_attn.indexer.k_norm.bias"), 1, t->index_dim, 1, 0, 0.2f);
    add_matrix(w, POT_TINY_BF16, IN_LAYER("self_attn.indexer.weights_proj.weight"), t->index_heads, t->hidden);
}

static void add_layer(writer *w, uint32_t layer) {
    const pot_tiny *t = w->tiny;
    char name[NAME_BYTES], suffix[48];
    add_attention(w, layer, layer >= t->n_layers || t->schedule[layer] == 'F');
    if (layer < t->n_dense) {
        add_ffn(w, t->common, IN_LAYER("mlp"), t->dense_inner);
        return;
    }
    add_bf16(w, IN_LAYER("mlp.gate.weight"), 2, t->n_routed, t->hidden, 0, 1 / sqrtf((float)t->hidden));
    add_f32(w, IN_LAYER("mlp.gate.e_score_correction_bias"), 1, t->n_routed, 1, 0.1f);
    add_ffn(w, t->common, IN_LAYER("mlp.shared_experts"), t->moe_inner);
    for (uint32_t e = 0; e < t->n_routed; e++) {
        snprintf(suffix, sizeof suffix, "mlp.experts.%u", e);
        add_ffn(w, t->routed, IN_LAYER(suffix), t->moe_inner);
    }
    if (layer < t->n_layers) return;
    add_norm(w, IN_LAYER("enorm.weight"), t->hidden);
    add_norm(w, IN_LAYER("hnorm.weight"), t->hidden);
    add_matrix(w, POT_TINY_BF16, IN_LAYER("eh_proj.weight"), t->hidden, 2 * t->hidden);
    add_norm(w, IN_LAYER("shared_head.norm.weight"), t->hidden);
}

static pot_status write_config(const char *directory, const pot_tiny *t, pot_err *err) {
    pot_buffer text = {0};
    pot_buffer_format(
        &text,
        "{\"architectures\": [\"GlmMoeDsaForCausalLM\"], \"model_type\": \"glm_moe_dsa\", \"dtype\": \"bfloat16\",\n"
        " \"vocab_size\": %u, \"hidden_size\": %u, \"intermediate_size\": %u, \"moe_intermediate_size\": %u,\n"
        " \"num_hidden_layers\": %u, \"first_k_dense_replace\": %u, \"num_nextn_predict_layers\": %u,\n",
        t->vocab, t->hidden, t->dense_inner, t->moe_inner, t->n_layers, t->n_dense, t->n_mtp);
    pot_buffer_format(
        &text,
        " \"num_attention_heads\": %u, \"num_key_value_heads\": %u, \"q_lora_rank\": %u, \"kv_lora_rank\": %u,\n"
        " \"qk_nope_head_dim\": %u, \"qk_rope_head_dim\": %u, \"qk_head_dim\": %u, \"v_head_dim\": %u,\n",
        t->n_heads, t->n_heads, t->q_lora, t->kv_lora, t->nope_dim, t->rope_dim, t->nope_dim + t->rope_dim, t->v_dim);
    pot_buffer_format(
        &text,
        " \"n_routed_experts\": %u, \"n_shared_experts\": 1, \"num_experts_per_tok\": %u, \"n_group\": 1, "
        "\"topk_group\": 1,\n"
        " \"norm_topk_prob\": true, \"routed_scaling_factor\": 2.5, \"scoring_func\": \"sigmoid\", \"topk_method\": "
        "\"noaux_tc\",\n"
        " \"index_head_dim\": %u, \"index_n_heads\": %u, \"index_topk\": %u, \"index_topk_pattern\": \"%s\",\n",
        t->n_routed, t->top_k, t->index_dim, t->index_heads, t->index_topk, t->schedule);
    pot_buffer_text(
        &text,
        " \"rms_norm_eps\": 1e-05, \"hidden_act\": \"silu\", \"attention_bias\": false, \"rope_interleave\": true,\n"
        " \"indexer_rope_interleave\": true, \"max_position_embeddings\": 4096,\n"
        " \"rope_parameters\": {\"rope_theta\": 10000.0, \"rope_type\": \"default\"},\n"
        " \"tie_word_embeddings\": false, \"eos_token_id\": [0], \"pad_token_id\": 0}\n");
    char *path = pot_path_join(directory, "config.json");
    pot_status s = text.failed || !path ? pot_fail(err, POT_NO_MEMORY, "no memory for the tiny model's config")
                                        : pot_file_write(path, text.data, text.bytes, err);
    pot_free(path);
    pot_buffer_free(&text);
    return s;
}

pot_status pot_tiny_write(const char *directory, const pot_tiny *tiny, pot_err *err) {
    writer w = {.tiny = tiny};
    add_bf16(&w, "model.embed_tokens.weight", 2, tiny->vocab, tiny->hidden, 0, 1);
    add_norm(&w, "model.norm.weight", tiny->hidden);
    add_bf16(&w, "lm_head.weight", 2, tiny->vocab, tiny->hidden, 0, 1 / sqrtf((float)tiny->hidden));
    for (uint32_t layer = 0; layer < tiny->n_layers + tiny->n_mtp; layer++) add_layer(&w, layer);
    char *path = pot_path_join(directory, "model.safetensors");
    pot_status s = w.short_of_memory || !path
                       ? pot_fail(err, POT_NO_MEMORY, "no memory for the tiny model `%s`", tiny->name)
                       : pot_safetensors_write(path, w.tensors, w.n, err);
    if (s == POT_OK) s = write_config(directory, tiny, err);
    for (uint32_t i = 0; i < w.n; i++) {
        pot_free((void *)(uintptr_t)w.tensors[i].name);
        pot_free((void *)(uintptr_t)w.tensors[i].data);
    }
    pot_free(w.tensors);
    pot_free(path);
    return s;
}
