/* One tensor outside the experts, as the coordinator keeps it. */
#include <string.h>

#include "common/float_mode.h"
#include "common/mem.h"
#include "model/container_layout.h"

enum { PACK_ROWS = 256 }; /* rows a thread packs at a time: a multiple of 128, so that FP8 blocks are not split */

uint64_t pot_model_dense_bytes(const pot_model *m, pot_role role, uint32_t layer) {
    return pot_dense_bytes(&m->config, role, pot_model_packed_format(m, role, layer));
}

/* A whole stored matrix, rows shared out among threads. */
static pot_status pack_matrix(uint8_t *out, const pot_model *m, const pot_stored *source, pot_format format,
                              int threads, pot_err *err) {
    const size_t tile_bytes = pot_tile_bytes(format, source->cols, 0);
    const uint32_t parts = (source->rows + PACK_ROWS - 1) / PACK_ROWS;
    pot_status status = POT_OK;
#pragma omp parallel for schedule(dynamic) num_threads(threads) if (parts > 1 && threads > 1)
    for (uint32_t part = 0; part < parts; part++) {
        pot_fp_strict();
        pot_err fault;
        uint32_t begin = part * PACK_ROWS;
        uint32_t end = begin + PACK_ROWS < source->rows ? begin + PACK_ROWS : source->rows;
        pot_status s = pot_pack(out + (size_t)(begin / POT_TILE_ROWS) * tile_bytes, tile_bytes, format,
                                m->policy.rounding, source, begin, end, 0, source->cols, &fault);
        if (s != POT_OK) {
#pragma omp critical(pot_dense_fault)
            if (status == POT_OK) {
                status = s;
                if (err) *err = fault;
            }
        }
    }
    return status;
}

/* kv_b [heads * (nope + v), kv_lora], absorbed: head h's first nope rows are transposed, so that a query's nope part is turned into
 * latent space once and never a key into head space. */
static pot_status pack_absorbed(uint8_t *out, const pot_model *m, uint32_t layer, const pot_stored *source, int threads,
                                pot_err *err) {
    const pot_config *c = &m->config;
    const pot_format format = pot_model_format(m, POT_ROLE_KV_B, layer);
    const uint32_t per_head = c->nope_dim + c->v_dim;
    float *rows = pot_alloc_array((size_t)per_head * c->kv_lora, sizeof(float));
    float *turned = pot_alloc_array((size_t)c->nope_dim * c->kv_lora, sizeof(float));
    pot_status status = POT_OK;
    if (!rows || !turned) status = pot_fail(err, POT_NO_MEMORY, "no memory to turn kv_b of layer %u", layer);
    for (uint32_t h = 0; h < c->n_heads && status == POT_OK; h++) {
        for (uint32_t r = 0; r < per_head && status == POT_OK; r++)
            status = pot_stored_row(rows + (size_t)r * c->kv_lora, source, h * per_head + r, 0, c->kv_lora, err);
        for (uint32_t r = 0; r < c->nope_dim; r++)
            for (uint32_t k = 0; k < c->kv_lora; k++)
                turned[(size_t)k * c->nope_dim + r] = rows[(size_t)r * c->kv_lora + k];
        const pot_stored key = {.kind = POT_STORED_F32,
                                .rows = c->kv_lora,
                                .cols = c->nope_dim,
                                .codes = turned,
                                .row_stride = c->nope_dim * sizeof(float),
                                .name = source->name};
        const pot_stored value = {.kind = POT_STORED_F32,
                                  .rows = c->v_dim,
                                  .cols = c->kv_lora,
                                  .codes = rows + (size_t)c->nope_dim * c->kv_lora,
                                  .row_stride = c->kv_lora * sizeof(float),
                                  .name = source->name};
        if (status == POT_OK) status = pack_matrix(out, m, &key, format, threads, err);
        out += pot_line_up(pot_matrix_bytes(format, key.rows, key.cols));
        if (status == POT_OK) status = pack_matrix(out, m, &value, format, threads, err);
        out += pot_line_up(pot_matrix_bytes(format, value.rows, value.cols));
    }
    pot_free(rows);
    pot_free(turned);
    return status;
}

pot_status pot_model_load_dense(uint8_t *out, const pot_model *m, pot_role role, uint32_t layer, int threads,
                                pot_err *err) {
    uint32_t rows, cols;
    pot_stored source;
    if (m->container)
        return pot_container_read_dense(out, pot_model_dense_bytes(m, role, layer), m->container, role, layer, err);
    pot_role_shape(&m->config, role, &rows, &cols);
    if (!pot_role_is_matrix(role)) return pot_model_vector((float *)(void *)out, m, role, layer, rows, err);
    pot_status status = pot_model_matrix(&source, m, role, layer, 0, err);
    if (status != POT_OK) return status;
    if (role == POT_ROLE_KV_B) return pack_absorbed(out, m, layer, &source, threads, err);
    return pack_matrix(out, m, &source, pot_model_format(m, role, layer), threads, err);
}
