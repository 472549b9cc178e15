/* Models without files, for measuring and tests: the true numbers of an architecture, weights drawn from a seed.
 *
 * Every matrix is a view into one of a few pools of random numbers, at a place that hashes of role, layer and expert choose, so
 * opening the largest of them takes some tens of megabytes; packing turns the views into bytes as distinct as those of any other
 * model.  Where a matrix is larger than its half of a pool, its rows overlap.  Values have the spread that GLM's weights are
 * initialised with, which keeps activations of order one through any number of layers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/convert.h"
#include "model/model_internal.h"

static const char prefix[] = "random:";

#define SPREAD 0.02f /* standard deviation: initializer_range of the published configs */
enum { POOL_BYTES = 16 << 20, SCALE_BYTES = 4 << 20, LONGEST_VECTOR = 1 << 14 };

struct pot_synthetic {
    uint64_t seed;
    pot_format format; /* of the experts: stored so that packing copies codes and scales */
    uint8_t *values;   /* bf16, even around 0 */
    uint8_t *codes;    /* of the experts' format; bf16 experts use `values` */
    uint8_t *scales;   /* f32 that f16 holds too, or E8M0 */
    uint8_t *ones;     /* f32 */
};

/* ---- what can be drawn -------------------------------------------------------------------------------------------------- */

/* What a preset leaves out of GLM's config.json is what has no bearing on shapes. */
static const struct {
    const char *name, *config; /* config with a place for the number of layers */
    uint32_t layers;           /* when the name does not say */
} presets[] = {
    {"glm-5.2",
     "{\"model_type\": \"glm_moe_dsa\", \"vocab_size\": 4096, \"hidden_size\": 6144, \"intermediate_size\": 12288,"
     " \"moe_intermediate_size\": 2048, \"num_hidden_layers\": %u, \"num_attention_heads\": 64, \"q_lora_rank\": 2048,"
     " \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 192, \"qk_rope_head_dim\": 64, \"v_head_dim\": 256,"
     " \"n_routed_experts\": 256, \"n_shared_experts\": 1, \"num_experts_per_tok\": 8, \"routed_scaling_factor\": 2.5,"
     " \"index_head_dim\": 128, \"index_n_heads\": 32, \"index_topk\": 2048, \"index_topk_freq\": 4,"
     " \"index_skip_topk_offset\": 3, \"rms_norm_eps\": 1e-05, \"max_position_embeddings\": 1048576,"
     " \"rope_parameters\": {\"rope_theta\": 8000000, \"rope_type\": \"default\"}}",
     2},
    {"tiny",
     "{\"model_type\": \"glm_moe_dsa\", \"vocab_size\": 128, \"hidden_size\": 160, \"intermediate_size\": 224,"
     " \"moe_intermediate_size\": 288, \"num_hidden_layers\": %u, \"num_attention_heads\": 3, \"q_lora_rank\": 64,"
     " \"kv_lora_rank\": 32, \"qk_nope_head_dim\": 16, \"qk_rope_head_dim\": 8, \"v_head_dim\": 32,"
     " \"n_routed_experts\": 12, \"n_shared_experts\": 1, \"num_experts_per_tok\": 3, \"routed_scaling_factor\": 2.5,"
     " \"index_head_dim\": 16, \"index_n_heads\": 16, \"index_topk\": 8, \"index_topk_freq\": 4,"
     " \"index_skip_topk_offset\": 3, \"rms_norm_eps\": 1e-05, \"max_position_embeddings\": 4096,"
     " \"rope_parameters\": {\"rope_theta\": 10000, \"rope_type\": \"default\"}}",
     2},
};
enum { N_PRESETS = sizeof presets / sizeof *presets };

/* How a checkpoint would store what these formats hold, and the root of the mean square of random codes. */
static const struct {
    pot_format format;
    pot_stored_kind kind;
    uint32_t bits, group;
    float rms;
} kinds[] = {
    {POT_FORMAT_BF16, POT_STORED_BF16, 16, 0, 1},
    {POT_FORMAT_FP8, POT_STORED_FP8, 8, 0, 1.1f},
    {POT_FORMAT_Q8_ROW, POT_STORED_INT8, 8, 0, 73.9f},
    {POT_FORMAT_Q8_G32, POT_STORED_INT8, 8, 32, 73.9f},
    {POT_FORMAT_Q4_ROW, POT_STORED_INT4, 4, 0, 4.64f},
    {POT_FORMAT_Q4_G32, POT_STORED_INT4, 4, 32, 4.64f},
    {POT_FORMAT_Q4_G64, POT_STORED_INT4, 4, 64, 4.64f},
    {POT_FORMAT_Q4_G128, POT_STORED_INT4, 4, 128, 4.64f},
    {POT_FORMAT_Q4_G32_F32, POT_STORED_INT4, 4, 32, 4.64f},
    {POT_FORMAT_Q4_G64_F32, POT_STORED_INT4, 4, 64, 4.64f},
    {POT_FORMAT_Q4_G128_F32, POT_STORED_INT4, 4, 128, 4.64f},
    {POT_FORMAT_Q2_ROW, POT_STORED_INT2, 2, 0, 1.22f},
    {POT_FORMAT_MXFP4, POT_STORED_MXFP4, 4, 32, 2.93f},
};
enum { N_KINDS = sizeof kinds / sizeof *kinds };

/* N_KINDS when a format is none that can be drawn. */
static size_t kind_of(pot_format format) {
    size_t i = 0;
    while (i < N_KINDS && kinds[i].format != format) i++;
    return i;
}

/* ---- the pools ------------------------------------------------------------------------------------------------------------ */

/* splitmix64: one word of noise from a counter. */
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static void fill_noise(uint8_t *pool, uint64_t seed) {
    for (size_t i = 0; i < POOL_BYTES / 8; i++) {
        const uint64_t word = mix(seed + i);
        memcpy(pool + 8 * i, &word, 8);
    }
}

/* Noise of 16 bits becomes a number evenly spread over [-a, a], whose deviation is a / sqrt(3). */
static void noise_to_bf16(uint8_t *pool) {
    for (size_t i = 0; i < POOL_BYTES / 2; i++) {
        uint16_t half;
        memcpy(&half, pool + 2 * i, 2);
        half = pot_bf16_from_f32(((float)half - 32767.5f) * (SPREAD * 1.7320508f / 32768));
        memcpy(pool + 2 * i, &half, 2);
    }
}

/* E4M3 numbers of .5 to 1.875 and both signs: none of them is a NaN, and no few large ones outweigh the rest. */
static void noise_to_fp8(uint8_t *pool) {
    for (size_t i = 0; i < POOL_BYTES; i++) pool[i] = (uint8_t)(0x30 | (pool[i] & 0x8f));
}

static void fill_scales(uint8_t *scales, size_t kind, uint64_t seed) {
    const float middle = SPREAD / kinds[kind].rms;
    if (kinds[kind].kind == POT_STORED_MXFP4) {
        int exponent;
        (void)frexpf(middle, &exponent); /* middle is in [.5, 1) * 2^exponent */
        for (size_t i = 0; i < SCALE_BYTES; i++) scales[i] = (uint8_t)(126 + exponent + (int)(mix(seed + i) & 1));
        return;
    }
    for (size_t i = 0; i < SCALE_BYTES / 4; i++) {
        const float between = 0.5f + (float)(mix(seed + i) >> 40) * 0x1p-24f;
        const float scale = pot_f32_from_f16(pot_f16_from_f32(middle * between));
        memcpy(scales + 4 * i, &scale, 4);
    }
}

static pot_status create_pools(pot_synthetic *r, pot_err *err) {
    const size_t kind = kind_of(r->format);
    const float one = 1.0f;
    r->values = pot_alloc_aligned(POOL_BYTES);
    r->codes = pot_alloc_aligned(POOL_BYTES);
    r->scales = pot_alloc_aligned(SCALE_BYTES);
    r->ones = pot_alloc_aligned(LONGEST_VECTOR * sizeof one);
    if (!r->values || !r->codes || !r->scales || !r->ones)
        return pot_fail(err, POT_NO_MEMORY, "no memory for %d MiB of random weights", (2 * POOL_BYTES) >> 20);
    fill_noise(r->values, mix(r->seed));
    noise_to_bf16(r->values);
    fill_noise(r->codes, mix(r->seed + 1));
    if (kinds[kind].kind == POT_STORED_FP8) noise_to_fp8(r->codes);
    fill_scales(r->scales, kind, mix(r->seed + 2));
    for (size_t i = 0; i < LONGEST_VECTOR; i++) memcpy(r->ones + i * sizeof one, &one, sizeof one);
    return POT_OK;
}

/* ---- opening ----------------------------------------------------------------------------------------------------------------- */

bool pot_synthetic_is(const char *name) { return !strncmp(name, prefix, sizeof prefix - 1); }

static pot_status read_number(uint64_t *out, const char *name, const char *key, const char *text, size_t length,
                              uint64_t most, pot_err *err) {
    char digits[24] = "";
    if (length > 0 && length < sizeof digits && strspn(text, "0123456789") >= length) {
        memcpy(digits, text, length);
        *out = strtoull(digits, NULL, 10);
        if (*out <= most) return POT_OK;
    }
    return pot_fail(err, POT_USAGE, "%s: %s is `%.*s`, a whole number up to %llu was expected", name, key,
                    (int)(length < 60 ? length : 60), text, (unsigned long long)most);
}

static pot_status unknown_preset(const char *name, pot_err *err) {
    char known[128] = "";
    int at = 0;
    for (int i = 0; i < N_PRESETS; i++)
        at += snprintf(known + at, sizeof known - (size_t)at, "%s%s", i ? ", " : "", presets[i].name);
    return pot_fail(err, POT_USAGE, "%.100s: there is no random model of that name; known are %s", name, known);
}

/* random:PRESET[,layers=N][,seed=N] */
static pot_status read_name(int *preset, uint64_t *layers, uint64_t *seed, const char *name, pot_err *err) {
    const char *at = name + sizeof prefix - 1;
    size_t length = strcspn(at, ",");
    for (*preset = 0; *preset < N_PRESETS; ++*preset)
        if (strlen(presets[*preset].name) == length && !strncmp(presets[*preset].name, at, length)) break;
    if (*preset == N_PRESETS) return unknown_preset(name, err);
    *layers = presets[*preset].layers;
    *seed = 1;
    pot_status s = POT_OK;
    for (at += length; *at == ',' && s == POT_OK; at += length) {
        at++;
        length = strcspn(at, ",");
        if (!strncmp(at, "layers=", 7))
            s = read_number(layers, name, "layers", at + 7, length - 7, POT_MAX_LAYERS - 1, err);
        else if (!strncmp(at, "seed=", 5))
            s = read_number(seed, name, "seed", at + 5, length - 5, INT64_MAX, err);
        else
            s = pot_fail(err, POT_USAGE, "%.100s: `%.*s` is unknown, layers=NUMBER or seed=NUMBER was expected", name,
                         (int)(length < 60 ? length : 60), at);
    }
    return s;
}

/* The format is ours: one place for the number of layers. */
static void put_config(pot_buffer *out, int preset, uint64_t layers) {
    const char *config = presets[preset].config, *place = strstr(config, "%u");
    pot_buffer_format(out, "%.*s%u%s", (int)(place - config), config, (unsigned)layers, place + 2);
}

pot_status pot_synthetic_config(pot_buffer *out, const char *name, pot_err *err) {
    int preset;
    uint64_t layers, seed;
    pot_status s = read_name(&preset, &layers, &seed, name, err);
    if (s != POT_OK) return s;
    put_config(out, preset, layers);
    return out->failed ? pot_fail(err, POT_NO_MEMORY, "%s: no memory to open it", name) : POT_OK;
}

pot_status pot_synthetic_open(pot_model *m, pot_err *err) {
    const char *name = m->directory;
    int preset;
    uint64_t layers, seed;
    pot_status s = read_name(&preset, &layers, &seed, name, err);
    if (s != POT_OK) return s;
    const pot_format format = m->policy.experts == POT_FORMAT_NONE ? POT_FORMAT_MXFP4 : m->policy.experts;
    if (kind_of(format) == N_KINDS)
        return pot_fail(err, POT_USAGE, "%s: random experts cannot be drawn in format %s", name,
                        pot_format_get(format)->name);
    pot_buffer text = {0};
    put_config(&text, preset, layers);
    s = text.failed ? pot_fail(err, POT_NO_MEMORY, "%s: no memory to open it", name)
                    : pot_config_parse(&m->config, text.data, text.bytes, NULL, 0, name, err);
    pot_buffer_free(&text);
    if (s != POT_OK) return s;
    m->synthetic = pot_alloc(sizeof *m->synthetic);
    if (!m->synthetic) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to open it", name);
    m->synthetic->seed = seed;
    m->synthetic->format = format;
    return create_pools(m->synthetic, err);
}

void pot_synthetic_close(pot_synthetic *r) {
    if (!r) return;
    pot_free(r->values);
    pot_free(r->codes);
    pot_free(r->scales);
    pot_free(r->ones);
    pot_free(r);
}

pot_format pot_synthetic_format(const pot_synthetic *r) { return r->format; }

pot_hash pot_synthetic_hash(const pot_synthetic *r) {
    pot_hasher *h = pot_hasher_create();
    if (!h) return (pot_hash){0};
    pot_hasher_add(h, &r->seed, sizeof r->seed);
    pot_hasher_add(h, r->values, POOL_BYTES);
    pot_hasher_add(h, r->codes, POOL_BYTES);
    pot_hasher_add(h, r->scales, SCALE_BYTES);
    return pot_hasher_end(h);
}

/* ---- views ------------------------------------------------------------------------------------------------------------------- */

/* Begins somewhere in a pool's first half, on a multiple of four bytes. */
static const uint8_t *begin_in(const uint8_t *pool, size_t bytes, uint64_t place) {
    return pool + mix(place) % (bytes / 8) * 4;
}

/* The matrix of rows of `row_bytes` ends in the pool that it begins in the first half of. */
static void view_codes(pot_stored *out, const uint8_t *pool, size_t row_bytes, uint64_t place) {
    const size_t room = POOL_BYTES / 2 - row_bytes;
    POT_ASSERT(row_bytes < POOL_BYTES / 2);
    out->codes = begin_in(pool, POOL_BYTES, place);
    out->row_stride = row_bytes;
    if (out->rows > 1 && room / (out->rows - 1) < row_bytes) out->row_stride = room / (out->rows - 1) / 2 * 2;
}

static void find_expert(pot_stored *out, const pot_synthetic *r, uint64_t place) {
    const size_t kind = kind_of(r->format);
    const uint32_t group = kinds[kind].group;
    const size_t row_bytes = ((size_t)out->cols * kinds[kind].bits + 7) / 8;
    const uint32_t of_row = group ? (out->cols + group - 1) / group : 1;
    out->kind = kinds[kind].kind;
    if (out->kind == POT_STORED_BF16) {
        view_codes(out, r->values, row_bytes, place);
        return;
    }
    out->group = out->kind == POT_STORED_MXFP4 ? 0 : group;
    size_t scales = (size_t)out->rows * of_row * (out->kind == POT_STORED_MXFP4 ? 1 : sizeof(float));
    if (out->kind == POT_STORED_FP8)
        scales = (size_t)(out->rows + 127) / 128 * ((out->cols + 127) / 128) * sizeof(float);
    POT_ASSERT(scales <= SCALE_BYTES / 2);
    view_codes(out, r->codes, row_bytes, place);
    out->scales = begin_in(r->scales, SCALE_BYTES, place + 1);
}

void pot_synthetic_find(pot_stored *out, const pot_model *m, pot_role role, uint32_t layer, uint32_t expert) {
    const pot_synthetic *r = m->synthetic;
    const uint64_t place = mix(r->seed ^ mix((uint64_t)role << 48 | (uint64_t)layer << 24 | expert)) & ~1ull;
    *out = (pot_stored){.name = pot_role_group(role)};
    pot_role_shape(&m->config, role, &out->rows, &out->cols);
    if (pot_role_is_ffn(role)) {
        find_expert(out, r, place);
    } else if (pot_role_is_matrix(role) || role == POT_ROLE_ROUTER_BIAS || role == POT_ROLE_INDEX_K_BIAS) {
        out->kind = POT_STORED_BF16;
        view_codes(out, r->values, (size_t)(out->cols ? out->cols : out->rows) * 2, place);
    } else {
        POT_ASSERT(out->rows <= LONGEST_VECTOR);
        *out = (pot_stored){.kind = POT_STORED_F32,
                            .rows = out->rows,
                            .codes = r->ones,
                            .row_stride = out->rows * sizeof(float),
                            .name = out->name};
    }
}
