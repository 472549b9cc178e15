/* Activation rows and the product y = W x over threads.
 *
 * Each thread takes a contiguous run of tiles, so that it reads its weights as one stream. */
#include "kernels/linear.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "common/mem.h"

enum {
    CODES_BYTES = POT_BLOCK,
    SCALE_BYTES = sizeof(float),
    SUM_BYTES = sizeof(int32_t),
    VALUES_BYTES = POT_BLOCK * sizeof(float),
    BLOCK_BYTES = CODES_BYTES + SCALE_BYTES + SUM_BYTES + VALUES_BYTES,
    ALIGN = 64,
    ELEMENT_PRODUCTS = 8 /* quantizing an element takes about as long as so many multiplications */
};

typedef struct product {
    pot_matmul *matmul;
    float *y;
    size_t y_stride;
    const pot_matrix *w;
    const pot_act_row *x;
    uint32_t n;
} product;

static void product_part(void *context, int thread, int threads) {
    const product *p = context;
    uint32_t begin, end;
    pot_team_share(&begin, &end, pot_tiles(p->w->rows), thread, threads);
    if (begin < end) p->matmul(p->y, p->y_stride, p->w, begin, end, p->x, p->n);
}

void pot_linear(const pot_compute *compute, float *y, size_t y_stride, const pot_matrix *w, const pot_act_row *x,
                uint32_t n) {
    product p = {compute->kernels->matmul[w->format], y, y_stride, w, x, n};
    pot_team_run(compute->team, (uint64_t)w->rows * w->cols * n, product_part, &p);
}

/* ---- activation rows ---- */

static size_t row_bytes(uint32_t max_blocks) { return ((size_t)max_blocks * BLOCK_BYTES + ALIGN - 1) / ALIGN * ALIGN; }

pot_status pot_acts_create(pot_acts *out, uint32_t capacity_rows, uint32_t max_cols, pot_err *err) {
    pot_acts acts = {.capacity = capacity_rows, .max_blocks = pot_blocks(max_cols)};
    size_t bytes;
    if (__builtin_mul_overflow(row_bytes(acts.max_blocks), capacity_rows, &bytes))
        return pot_fail(err, POT_NO_MEMORY, "%u activation rows of %u columns are too many", capacity_rows, max_cols);
    acts.rows = pot_alloc_array(capacity_rows, sizeof *acts.rows);
    acts.memory = pot_alloc_aligned(bytes);
    if (acts.rows == NULL || acts.memory == NULL) {
        pot_acts_free(&acts);
        return pot_fail(err, POT_NO_MEMORY, "no memory for %u activation rows of %u columns (%zu bytes)", capacity_rows,
                        max_cols, bytes);
    }
    *out = acts;
    return POT_OK;
}

void pot_acts_free(pot_acts *acts) {
    pot_free(acts->rows);
    pot_free(acts->memory);
    *acts = (pot_acts){0};
}

static bool all_finite(const float *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (!isfinite(x[i])) return false;
    return true;
}

static bool fill_row(pot_act_row *row, uint8_t *memory, const pot_kernels *kernels, const float *x, uint32_t cols,
                     unsigned need) {
    const uint32_t blocks = pot_blocks(cols), whole = cols / POT_BLOCK, tail = cols % POT_BLOCK;
    bool finite = true;
    *row = (pot_act_row){0};
    if (need & POT_ACT_Q8) {
        int8_t *codes = (int8_t *)memory;
        float *scales = (float *)(void *)(memory + (size_t)blocks * CODES_BYTES);
        int32_t *sums = (int32_t *)(void *)(scales + blocks);
        float last[POT_BLOCK] = {0};
        finite = kernels->quantize(codes, scales, sums, x, whole);
        if (tail != 0) {
            memcpy(last, x + (size_t)whole * POT_BLOCK, tail * sizeof *x);
            finite &= kernels->quantize(codes + (size_t)whole * POT_BLOCK, scales + whole, sums + whole, last, 1);
        }
        row->codes = codes;
        row->scales = scales;
        row->sums = sums;
        memory += (size_t)blocks * (CODES_BYTES + SCALE_BYTES + SUM_BYTES);
    }
    if (need & POT_ACT_F32) {
        float *values = (float *)(void *)memory;
        memcpy(values, x, cols * sizeof *x);
        memset(values + cols, 0, ((size_t)blocks * POT_BLOCK - cols) * sizeof *x);
        if (!(need & POT_ACT_Q8)) finite = all_finite(x, cols);
        row->values = values;
    }
    return finite;
}

typedef struct filling {
    pot_acts *acts;
    const pot_kernels *kernels;
    const float *x;
    size_t x_stride;
    uint32_t cols, n;
    unsigned need;
    atomic_uint bad; /* the first row that is not finite, whatever the threads do */
} filling;

static void filling_part(void *context, int thread, int threads) {
    filling *f = context;
    const size_t stride = row_bytes(f->acts->max_blocks);
    uint32_t begin, end;
    pot_team_share(&begin, &end, f->n, thread, threads);
    for (uint32_t i = begin; i < end; i++) {
        if (fill_row(&f->acts->rows[i], f->acts->memory + i * stride, f->kernels, f->x + i * f->x_stride, f->cols,
                     f->need))
            continue;
        unsigned before = atomic_load(&f->bad);
        while (i < before && !atomic_compare_exchange_weak(&f->bad, &before, i)) {
        }
    }
}

pot_status pot_acts_fill(pot_acts *acts, const pot_compute *compute, const float *x, size_t x_stride, uint32_t cols,
                         uint32_t n, unsigned need, pot_err *err) {
    POT_ASSERT(n <= acts->capacity && pot_blocks(cols) <= acts->max_blocks);
    filling f = {.acts = acts,
                 .kernels = compute->kernels,
                 .x = x,
                 .x_stride = x_stride,
                 .cols = cols,
                 .n = n,
                 .need = need,
                 .bad = UINT32_MAX};
    pot_team_run(compute->team, n == 1 ? 0 : (uint64_t)n * cols * ELEMENT_PRODUCTS, filling_part, &f);
    const uint32_t bad = atomic_load(&f.bad);
    if (bad == UINT32_MAX) return POT_OK;
    return pot_fail(err, POT_NUMERIC, "an activation in row %u of %u is not finite", bad, n);
}
