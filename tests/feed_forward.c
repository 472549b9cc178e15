/* Chunks are packed anew for every use: nothing is kept that could be wrong. */
#include "tests/feed_forward.h"

#include <math.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/ffn.h"
#include "kernels/linear.h"

uint32_t pot_draw(uint64_t *seed, uint32_t below) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*seed >> 33) % below);
}

float pot_draw_float(uint64_t *seed) {
    float sum = 0;
    for (int i = 0; i < 4; i++) sum += (float)pot_draw(seed, 1 << 20) / (float)(1 << 20) - 0.5f;
    return sum;
}

static pot_status add_chunk(int64_t *sums, const pot_model *model, const pot_compute *compute, uint32_t layer,
                            const pot_acts *acts, const pot_wire_item *item, uint32_t chunk, pot_err *err) {
    const pot_ffn_shape *shape = pot_model_expert_shape(model, layer, item->expert);
    uint8_t *bytes = pot_alloc_aligned(pot_chunk_bytes(shape, chunk));
    if (!bytes) return pot_fail(err, POT_NO_MEMORY, "no memory for a chunk");
    pot_ffn_scratch scratch = {0};
    pot_ffn_job job = {.expert = item->expert, .n_rows = 1, .rows = &item->row, .weights = &item->weight};
    pot_status s = pot_model_load_chunk(bytes, model, layer, item->expert, chunk, err);
    pot_chunk_view(&job.chunk, shape, chunk, bytes);
    if (s == POT_OK)
        s = pot_ffn_run(compute, sums, shape->hidden, acts->rows, &job, 1, pot_model_grid(model, layer), &scratch, err);
    pot_ffn_scratch_free(&scratch);
    pot_free(bytes);
    return s;
}

pot_status pot_plain_sums(int64_t *sums, const pot_model *model, const pot_compute *compute, uint32_t layer,
                          const float *x, uint32_t n_rows, const pot_wire_item *items, uint32_t n_items, pot_err *err) {
    uint32_t hidden = pot_model_config(model)->hidden;
    pot_acts acts;
    memset(sums, 0, (size_t)n_rows * hidden * sizeof *sums);
    pot_status s = pot_acts_create(&acts, n_rows, hidden, err);
    if (s != POT_OK) return s;
    s = pot_acts_fill(&acts, compute, x, hidden, hidden, n_rows, POT_ACT_Q8 | POT_ACT_F32, err);
    for (uint32_t i = 0; i < n_items; i++)
        for (uint32_t c = items[i].chunk_begin; c < items[i].chunk_end && s == POT_OK; c++)
            s = add_chunk(sums, model, compute, layer, &acts, &items[i], c, err);
    pot_acts_free(&acts);
    return s;
}

pot_status pot_plain_forward(float *y, const pot_model *model, const pot_compute *compute, uint32_t layer,
                             const float *x, uint32_t n, const uint32_t *experts, const float *weights, uint32_t k,
                             pot_err *err) {
    const pot_layer_shape *shape = &pot_model_layer_shapes(model)[layer];
    uint32_t hidden = pot_model_config(model)->hidden, n_items = 0;
    pot_wire_item *items = pot_alloc_array((size_t)n * (k + 1), sizeof *items);
    int64_t *sums = pot_alloc_array((size_t)n * hidden, sizeof *sums);
    if (!items || !sums) {
        pot_free(items);
        pot_free(sums);
        return pot_fail(err, POT_NO_MEMORY, "no memory for a plain feed-forward");
    }
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t j = 0; j < k; j++)
            items[n_items++] = (pot_wire_item){.row = i,
                                               .expert = experts[i * k + j],
                                               .chunk_end = (uint16_t)shape->routed_chunks,
                                               .weight = weights[i * k + j]};
        if (shape->common_chunks)
            items[n_items++] = (pot_wire_item){
                .row = i, .expert = shape->n_routed, .chunk_end = (uint16_t)shape->common_chunks, .weight = 1};
    }
    pot_status s = pot_plain_sums(sums, model, compute, layer, x, n, items, n_items, err);
    for (size_t i = 0; i < (size_t)n * hidden && s == POT_OK; i++)
        y[i] = (float)sums[i] * ldexpf(1, -pot_model_grid(model, layer));
    pot_free(items);
    pot_free(sums);
    return s;
}
