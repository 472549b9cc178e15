/* Loading runs twice over the same list of tensors: the first pass only adds up sizes, the second one packs into the slab.  So the
 * bytes that are promised and the bytes that are used cannot drift apart. */
#include "coordinator/weights.h"

#include <string.h>

#include "common/progress.h"

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
    l->at += pot_line_up(bytes);
    return place;
}

/* A tensor's place, filled in the second pass; *out is NULL in the first. */
static pot_status take_tensor(loader *l, const uint8_t **out, pot_role role, uint32_t layer) {
    uint8_t *place = take(l, pot_model_dense_bytes(l->model, role, layer));
    *out = place;
    if (!place) return POT_OK;
    pot_status status = pot_model_load_dense(place, l->model, role, layer, l->threads, l->err);
    if (status == POT_OK) pot_progress_update(&l->progress, l->at);
    return status;
}

static pot_status take_vector(loader *l, const float **out, pot_role role, uint32_t layer) {
    const uint8_t *data;
    pot_status status = take_tensor(l, &data, role, layer);
    if (status == POT_OK) *out = (const float *)(const void *)data;
    return status;
}

static pot_matrix view(const uint8_t *data, pot_format format, uint32_t rows, uint32_t cols) {
    return (pot_matrix){.data = data,
                        .tile_stride = pot_tile_bytes(format, cols, 0),
                        .rows = rows,
                        .cols = cols,
                        .format = (uint8_t)format};
}

static pot_status take_matrix(loader *l, pot_matrix *out, pot_role role, uint32_t layer) {
    const uint8_t *data;
    uint32_t rows, cols;
    pot_role_shape(l->config, role, &rows, &cols);
    pot_status status = take_tensor(l, &data, role, layer);
    if (status == POT_OK) *out = view(data, pot_model_format(l->model, role, layer), rows, cols);
    return status;
}

/* kv_b in its absorbed halves, head after head: heads[0..n) are keys, heads[n..2n) values. */
static pot_status take_absorbed(loader *l, pot_matrix *heads, uint32_t layer) {
    const pot_config *c = l->config;
    const pot_format format = pot_model_format(l->model, POT_ROLE_KV_B, layer);
    const uint8_t *data;
    pot_status status = take_tensor(l, &data, POT_ROLE_KV_B, layer);
    if (status != POT_OK || !data) return status;
    for (uint32_t h = 0; h < c->n_heads; h++) {
        heads[h] = view(data, format, c->kv_lora, c->nope_dim);
        data += pot_line_up(pot_matrix_bytes(format, c->kv_lora, c->nope_dim));
        heads[c->n_heads + h] = view(data, format, c->v_dim, c->kv_lora);
        data += pot_line_up(pot_matrix_bytes(format, c->v_dim, c->kv_lora));
    }
    return POT_OK;
}

static pot_status take_layer(loader *l, pot_layer_weights *w, pot_matrix *heads, uint32_t layer) {
    const pot_config *c = l->config;
    bool mtp = layer >= c->n_layers;
    pot_status s = POT_OK;
#define TAKE(call)                   \
    do {                             \
        if (s == POT_OK) s = (call); \
    } while (0)
    TAKE(take_vector(l, &w->input_norm, POT_ROLE_INPUT_NORM, layer));
    TAKE(take_vector(l, &w->post_norm, POT_ROLE_POST_NORM, layer));
    TAKE(take_vector(l, &w->q_a_norm, POT_ROLE_Q_A_NORM, layer));
    TAKE(take_vector(l, &w->kv_a_norm, POT_ROLE_KV_A_NORM, layer));
    TAKE(take_matrix(l, &w->q_a, POT_ROLE_Q_A, layer));
    TAKE(take_matrix(l, &w->q_b, POT_ROLE_Q_B, layer));
    TAKE(take_matrix(l, &w->kv_a, POT_ROLE_KV_A, layer));
    TAKE(take_absorbed(l, heads, layer));
    w->key_up = heads;
    w->value_up = heads ? heads + c->n_heads : NULL;
    TAKE(take_matrix(l, &w->o, POT_ROLE_O, layer));
    if (c->layer_is_full[layer]) {
        TAKE(take_matrix(l, &w->index_q, POT_ROLE_INDEX_Q, layer));
        TAKE(take_matrix(l, &w->index_k, POT_ROLE_INDEX_K, layer));
        TAKE(take_matrix(l, &w->index_weights, POT_ROLE_INDEX_WEIGHTS, layer));
        TAKE(take_vector(l, &w->index_k_norm, POT_ROLE_INDEX_K_NORM, layer));
        TAKE(take_vector(l, &w->index_k_bias, POT_ROLE_INDEX_K_BIAS, layer));
    }
    if (!c->layer_is_dense[layer]) {
        TAKE(take_matrix(l, &w->router, POT_ROLE_ROUTER, layer));
        TAKE(take_vector(l, &w->router_bias, POT_ROLE_ROUTER_BIAS, layer));
    }
    if (mtp) {
        TAKE(take_vector(l, &w->enorm, POT_ROLE_ENORM, layer));
        TAKE(take_vector(l, &w->hnorm, POT_ROLE_HNORM, layer));
        TAKE(take_vector(l, &w->mtp_norm, POT_ROLE_MTP_NORM, layer));
        TAKE(take_matrix(l, &w->eh_proj, POT_ROLE_EH_PROJ, layer));
    }
    return s == POT_OK ? s : pot_at(l->err, "layer %u", layer);
}

static pot_status take_all(loader *l, pot_weights *w) {
    const pot_config *c = l->config;
    pot_status s = take_matrix(l, &w->embed, POT_ROLE_EMBED, 0);
    TAKE(take_matrix(l, &w->head, POT_ROLE_HEAD, 0));
    TAKE(take_vector(l, &w->final_norm, POT_ROLE_FINAL_NORM, 0));
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
