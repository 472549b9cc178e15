/* Loading runs twice over the same list of tensors: the first pass only adds up sizes, the second one packs into the slab.  So the
 * bytes that are promised and the bytes that are used cannot drift apart. */
#include "coordinator/weights.h"

#include <string.h>

#include "common/float_mode.h"
#include "common/progress.h"

enum { PACK_ROWS = 256 }; /* rows a thread packs at a time: a multiple of 128, so that FP8 blocks are not split */

typedef struct loader {
    const pot_model *model;
    const pot_config *config;
    uint8_t *base; /* NULL in the sizing pass */
    size_t at;     /* bytes given out so far */
    int threads;
    pot_progress progress;
    pot_err *err;
} loader;

static uint8_t *take(loader *l, size_t bytes) {
    uint8_t *place = l->base ? l->base + l->at : NULL;
    l->at += (bytes + POT_LINE_BYTES - 1) / POT_LINE_BYTES * POT_LINE_BYTES;
    return place;
}

static pot_status take_vector(loader *l, const float **out, pot_role role, uint32_t layer, uint32_t n) {
    float *v = (float *)(void *)take(l, (size_t)n * sizeof(float));
    if (!v) return POT_OK;
    *out = v;
    return pot_model_vector(v, l->model, role, layer, n, l->err);
}

/* Packs a whole stored matrix, rows shared out among threads. */
static pot_status take_packed(loader *l, pot_matrix *out, const pot_stored *source, pot_format format) {
    uint8_t *data = take(l, pot_matrix_bytes(format, source->rows, source->cols));
    if (!data) return POT_OK;
    size_t tile_bytes = pot_tile_bytes(format, source->cols, 0);
    *out = (pot_matrix){
        .data = data, .tile_stride = tile_bytes, .rows = source->rows, .cols = source->cols, .format = (uint8_t)format};
    uint32_t parts = (source->rows + PACK_ROWS - 1) / PACK_ROWS;
    pot_status status = POT_OK;
#pragma omp parallel for schedule(dynamic) num_threads(l->threads) if (parts > 1)
    for (uint32_t part = 0; part < parts; part++) {
        pot_fp_strict();
        pot_err fault;
        uint32_t begin = part * PACK_ROWS;
        uint32_t end = begin + PACK_ROWS < source->rows ? begin + PACK_ROWS : source->rows;
        pot_status s = pot_pack(data + (size_t)(begin / POT_TILE_ROWS) * tile_bytes, tile_bytes, format, source, begin,
                                end, 0, source->cols, &fault);
        if (s != POT_OK) {
#pragma omp critical(pot_weights_fault)
            if (status == POT_OK) {
                status = s;
                if (l->err) *l->err = fault;
            }
        }
    }
    if (status == POT_OK) pot_progress_update(&l->progress, l->at);
    return status;
}

static pot_status take_matrix(loader *l, pot_matrix *out, pot_role role, uint32_t layer) {
    pot_stored source;
    pot_status status = pot_model_matrix(&source, l->model, role, layer, 0, l->err);
    if (status != POT_OK) return status;
    return take_packed(l, out, &source, pot_model_format(l->model, role, layer));
}

/* kv_b [heads * (nope + v), kv_lora], absorbed: head h's first nope rows are transposed, so that a query's nope part is turned into
 * latent space once and never a key into head space. */
static pot_status take_absorbed(loader *l, pot_matrix *key_up, pot_matrix *value_up, uint32_t layer) {
    const pot_config *c = l->config;
    pot_stored source;
    pot_status status = pot_model_matrix(&source, l->model, POT_ROLE_KV_B, layer, 0, l->err);
    if (status != POT_OK) return status;
    pot_format format = pot_model_format(l->model, POT_ROLE_KV_B, layer);
    uint32_t per_head = c->nope_dim + c->v_dim;
    float *rows = NULL, *turned = NULL;
    if (l->base) {
        rows = pot_alloc_array((size_t)per_head * c->kv_lora, sizeof(float));
        turned = pot_alloc_array((size_t)c->nope_dim * c->kv_lora, sizeof(float));
        if (!rows || !turned) status = pot_fail(l->err, POT_NO_MEMORY, "no memory to turn kv_b of layer %u", layer);
    }
    for (uint32_t h = 0; h < c->n_heads && status == POT_OK; h++) {
        for (uint32_t r = 0; l->base && r < per_head && status == POT_OK; r++)
            status = pot_stored_row(rows + (size_t)r * c->kv_lora, &source, h * per_head + r, 0, c->kv_lora, l->err);
        if (status != POT_OK) break;
        for (uint32_t r = 0; l->base && r < c->nope_dim; r++)
            for (uint32_t k = 0; k < c->kv_lora; k++)
                turned[(size_t)k * c->nope_dim + r] = rows[(size_t)r * c->kv_lora + k];
        pot_stored key = {.kind = POT_STORED_F32,
                          .rows = c->kv_lora,
                          .cols = c->nope_dim,
                          .codes = turned,
                          .row_stride = c->nope_dim * sizeof(float),
                          .name = source.name};
        pot_stored value = {.kind = POT_STORED_F32,
                            .rows = c->v_dim,
                            .cols = c->kv_lora,
                            .codes = rows ? rows + (size_t)c->nope_dim * c->kv_lora : NULL,
                            .row_stride = c->kv_lora * sizeof(float),
                            .name = source.name};
        status = take_packed(l, key_up ? &key_up[h] : NULL, &key, format);
        if (status == POT_OK) status = take_packed(l, value_up ? &value_up[h] : NULL, &value, format);
    }
    pot_free(rows);
    pot_free(turned);
    return status;
}

static pot_status take_layer(loader *l, pot_layer_weights *w, pot_matrix *heads, uint32_t layer) {
    const pot_config *c = l->config;
    bool mtp = layer >= c->n_layers;
    pot_status s = POT_OK;
#define TAKE(call)                   \
    do {                             \
        if (s == POT_OK) s = (call); \
    } while (0)
    TAKE(take_vector(l, &w->input_norm, POT_ROLE_INPUT_NORM, layer, c->hidden));
    TAKE(take_vector(l, &w->post_norm, POT_ROLE_POST_NORM, layer, c->hidden));
    TAKE(take_vector(l, &w->q_a_norm, POT_ROLE_Q_A_NORM, layer, c->q_lora));
    TAKE(take_vector(l, &w->kv_a_norm, POT_ROLE_KV_A_NORM, layer, c->kv_lora));
    TAKE(take_matrix(l, &w->q_a, POT_ROLE_Q_A, layer));
    TAKE(take_matrix(l, &w->q_b, POT_ROLE_Q_B, layer));
    TAKE(take_matrix(l, &w->kv_a, POT_ROLE_KV_A, layer));
    TAKE(take_absorbed(l, heads, heads ? heads + c->n_heads : NULL, layer));
    w->key_up = heads;
    w->value_up = heads ? heads + c->n_heads : NULL;
    TAKE(take_matrix(l, &w->o, POT_ROLE_O, layer));
    if (c->layer_is_full[layer]) {
        TAKE(take_matrix(l, &w->index_q, POT_ROLE_INDEX_Q, layer));
        TAKE(take_matrix(l, &w->index_k, POT_ROLE_INDEX_K, layer));
        TAKE(take_matrix(l, &w->index_weights, POT_ROLE_INDEX_WEIGHTS, layer));
        TAKE(take_vector(l, &w->index_k_norm, POT_ROLE_INDEX_K_NORM, layer, c->index_dim));
        TAKE(take_vector(l, &w->index_k_bias, POT_ROLE_INDEX_K_BIAS, layer, c->index_dim));
    }
    if (!c->layer_is_dense[layer]) {
        TAKE(take_matrix(l, &w->router, POT_ROLE_ROUTER, layer));
        TAKE(take_vector(l, &w->router_bias, POT_ROLE_ROUTER_BIAS, layer, c->n_routed));
    }
    if (mtp) {
        TAKE(take_vector(l, &w->enorm, POT_ROLE_ENORM, layer, c->hidden));
        TAKE(take_vector(l, &w->hnorm, POT_ROLE_HNORM, layer, c->hidden));
        TAKE(take_vector(l, &w->mtp_norm, POT_ROLE_MTP_NORM, layer, c->hidden));
        TAKE(take_matrix(l, &w->eh_proj, POT_ROLE_EH_PROJ, layer));
    }
    return s == POT_OK ? s : pot_at(l->err, "layer %u", layer);
}

static pot_status take_all(loader *l, pot_weights *w) {
    const pot_config *c = l->config;
    pot_status s = take_matrix(l, &w->embed, POT_ROLE_EMBED, 0);
    TAKE(take_matrix(l, &w->head, POT_ROLE_HEAD, 0));
    TAKE(take_vector(l, &w->final_norm, POT_ROLE_FINAL_NORM, 0, c->hidden));
    for (uint32_t i = 0; i < c->n_layers + c->n_mtp; i++) {
        pot_matrix *heads = w->heads ? w->heads + (size_t)i * 2 * c->n_heads : NULL;
        TAKE(take_layer(l, &w->layers[i], heads, i));
    }
    return s;
}
#undef TAKE

pot_status pot_weights_load(pot_weights *out, const pot_model *model, int threads, bool quiet, pot_err *err) {
    const pot_config *c = pot_model_config(model);
    uint32_t layers = c->n_layers + c->n_mtp;
    pot_weights w = {0};
    loader l = {.model = model, .config = c, .threads = threads, .err = err};
    w.layers = pot_alloc_array(layers, sizeof *w.layers);
    if (!w.layers) return pot_fail(err, POT_NO_MEMORY, "no memory for the weights of %u layers", layers);
    pot_status status = take_all(&l, &w);
    if (status != POT_OK) goto fail;
    size_t bytes = l.at;
    w.heads = pot_alloc_array((size_t)layers * 2 * c->n_heads, sizeof *w.heads);
    if (!w.heads) {
        status = pot_fail(err, POT_NO_MEMORY, "no memory for the heads of %u layers", layers);
        goto fail;
    }
    status = pot_slab_create(&w.slab, bytes, "the coordinator's weights", err);
    if (status != POT_OK) goto fail;
    l.base = w.slab.base;
    l.at = 0;
    pot_progress_begin(&l.progress, "loading the coordinator's weights", bytes, quiet);
    status = take_all(&l, &w);
    pot_progress_end(&l.progress);
    if (status != POT_OK) goto fail;
    POT_ASSERT(l.at == bytes);
    *out = w;
    return POT_OK;
fail:
    pot_weights_free(&w);
    return status;
}

void pot_weights_free(pot_weights *w) {
    pot_slab_free(&w->slab);
    pot_free(w->layers);
    pot_free(w->heads);
    *w = (pot_weights){0};
}
