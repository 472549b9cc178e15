/* One slab per sequence, layer after layer: all latents+rotary keys of a layer in token order, then its index keys when it is a
 * full layer.  Untouched pages of the slab cost nothing, so a large ctx is cheap until it is used. */
#include "coordinator/kv.h"

#include <string.h>

#include "common/mem.h"
#include "kernels/convert.h"

typedef struct layer_offsets {
    size_t keys, index; /* into the slab; index unused on shared layers */
} layer_offsets;

struct pot_sequence {
    pot_slab slab;
    pot_kv_format format;
    uint32_t capacity, length, mtp_length;
    uint32_t key_width, index_width, element_bytes, n_layers;
    bool has_index[POT_MAX_LAYERS];
    layer_offsets layers[POT_MAX_LAYERS];
};

static uint32_t element_bytes_of(pot_kv_format format) { return format == POT_KV_F32 ? 4 : 2; }

uint64_t pot_sequence_bytes(const pot_config *config, pot_kv_format format, uint32_t ctx_tokens) {
    uint64_t values = 0;
    for (uint32_t i = 0; i < config->n_layers + config->n_mtp; i++)
        values += config->kv_lora + config->rope_dim + (config->layer_is_full[i] ? config->index_dim : 0);
    return values * element_bytes_of(format) * ctx_tokens;
}

pot_status pot_sequence_create(pot_sequence **out, const pot_config *config, pot_kv_format format, uint32_t ctx_tokens,
                               pot_err *err) {
    if (ctx_tokens == 0 || ctx_tokens > config->max_positions)
        return pot_fail(err, POT_LIMIT, "a context of %u tokens was asked for, the model takes 1 to %u", ctx_tokens,
                        config->max_positions);
    pot_sequence *s = pot_alloc(sizeof *s);
    if (!s) return pot_fail(err, POT_NO_MEMORY, "no memory for a sequence");
    s->format = format;
    s->capacity = ctx_tokens;
    s->key_width = config->kv_lora + config->rope_dim;
    s->index_width = config->index_dim;
    s->element_bytes = element_bytes_of(format);
    s->n_layers = config->n_layers + config->n_mtp;
    size_t at = 0;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        s->has_index[i] = config->layer_is_full[i];
        s->layers[i].keys = at;
        at += (size_t)ctx_tokens * s->key_width * s->element_bytes;
        s->layers[i].index = at;
        if (s->has_index[i]) at += (size_t)ctx_tokens * s->index_width * s->element_bytes;
    }
    pot_status status = pot_slab_create(&s->slab, at, "the KV cache", err);
    if (status != POT_OK) {
        pot_free(s);
        return pot_at(err, "a context of %u tokens", ctx_tokens);
    }
    *out = s;
    return POT_OK;
}

void pot_sequence_free(pot_sequence *s) {
    if (!s) return;
    pot_slab_free(&s->slab);
    pot_free(s);
}

uint32_t pot_sequence_capacity(const pot_sequence *s) { return s->capacity; }
uint32_t pot_sequence_length(const pot_sequence *s) { return s->length; }
uint32_t pot_sequence_mtp_length(const pot_sequence *s) { return s->mtp_length; }

void pot_sequence_truncate(pot_sequence *s, uint32_t length) {
    POT_ASSERT(length <= s->length);
    s->length = length;
    if (s->mtp_length > length) s->mtp_length = length;
}

void pot_sequence_advance(pot_sequence *s, uint32_t length) {
    POT_ASSERT(length >= s->length && length <= s->capacity);
    s->length = length;
}

void pot_sequence_mtp_advance(pot_sequence *s, uint32_t length) {
    POT_ASSERT(length <= s->capacity);
    s->mtp_length = length;
}

/* ---- rows in and out of the cache's format ---- */

static void write_row(const pot_sequence *s, size_t offset, const float *row, uint32_t width) {
    uint8_t *to = s->slab.base + offset;
    if (s->format == POT_KV_F32) {
        memcpy(to, row, (size_t)width * 4);
        return;
    }
    uint16_t *half = (uint16_t *)(void *)to;
    for (uint32_t i = 0; i < width; i++) half[i] = pot_bf16_from_f32(row[i]);
}

static void read_rows(float *out, const pot_sequence *s, const pot_kernels *kernels, size_t offset, uint32_t values) {
    const uint8_t *from = s->slab.base + offset;
    if (s->format == POT_KV_F32)
        memcpy(out, from, (size_t)values * 4);
    else
        kernels->bf16_to_f32(out, (const uint16_t *)(const void *)from, values);
}

void pot_kv_write(pot_sequence *s, uint32_t layer, uint32_t position, const float *row) {
    POT_ASSERT(layer < s->n_layers && position < s->capacity);
    write_row(s, s->layers[layer].keys + (size_t)position * s->key_width * s->element_bytes, row, s->key_width);
}

void pot_kv_read(float *out, const pot_sequence *s, const pot_kernels *kernels, uint32_t layer, uint32_t position,
                 uint32_t n) {
    POT_ASSERT(layer < s->n_layers && position + n <= s->capacity);
    read_rows(out, s, kernels, s->layers[layer].keys + (size_t)position * s->key_width * s->element_bytes,
              n * s->key_width);
}

void pot_kv_index_write(pot_sequence *s, uint32_t layer, uint32_t position, const float *row) {
    POT_ASSERT(layer < s->n_layers && s->has_index[layer] && position < s->capacity);
    write_row(s, s->layers[layer].index + (size_t)position * s->index_width * s->element_bytes, row, s->index_width);
}

void pot_kv_index_read(float *out, const pot_sequence *s, const pot_kernels *kernels, uint32_t layer, uint32_t position,
                       uint32_t n) {
    POT_ASSERT(layer < s->n_layers && s->has_index[layer] && position + n <= s->capacity);
    read_rows(out, s, kernels, s->layers[layer].index + (size_t)position * s->index_width * s->element_bytes,
              n * s->index_width);
}
