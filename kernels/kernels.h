/* One table of function pointers per instruction set; every table gives the same bits (DESIGN 3).
 *
 * kernels_generic.c is complete and defines the results; kernels_<isa>.c fills the slots that it has and inherits the
 * rest, so no slot is ever empty.  The table is picked once from CPUID, or forced by name (--kernels).
 * The list POT_KERNEL_TABLES feeds dispatch, tests and benches: a table that is not tested cannot be chosen.
 * Kernels are single-threaded, keep no state, allocate nothing; callers split the work (linear.h, ffn.h).
 */
#ifndef POT_KERNELS_KERNELS_H
#define POT_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "kernels/format.h"

/* One activation row, padded with zeros to a multiple of 32 columns.  What a format does not read may be NULL.
 * codes: int8 [blocks*32]; scales: f32 [blocks]; values: f32 [blocks*32]. */
typedef struct pot_act_row {
    const int8_t *codes;
    const float *scales;
    const float *values;
} pot_act_row;

/* y[i*y_stride + r] = (row r of w) . x[i], for r in tiles [tile_begin, tile_end) and below w->rows, i in [0, n). */
typedef void pot_matmul(float *y, size_t y_stride, const pot_matrix *w, uint32_t tile_begin, uint32_t tile_end,
                        const pot_act_row *x, uint32_t n);

typedef struct pot_kernels {
    const char *name; /* "generic", "avx2" */
    pot_matmul *matmul[POT_FORMAT_COUNT];

    /* Blocks of 32: scale = amax / 127, code = rint(x / scale); amax < 2^-100 gives scale 0 and codes 0.
     * x [blocks*32].  false when an element is not finite (outputs are then unspecified). */
    bool (*quantize)(int8_t *codes, float *scales, const float *x, uint32_t blocks);
    void (*swiglu)(float *h, const float *g, const float *u, uint32_t n); /* h may be g */
    /* acc[i] += rint(weight * v[i] * 2^grid) as int64, v[i] * weight rounded to f32 first; false (acc unspecified) when
     * a value is not finite or |value * 2^grid| >= 2^62. */
    bool (*grid_add)(int64_t *acc, const float *v, float weight, uint32_t n, int grid);

    /* Attention and indexer: lanes are heads (or outputs), a key is broadcast.
     * out[h] = one fmaf chain over d ascending of q[d*stride + h] * k[d], starting from out[h] as it is. */
    void (*heads_dot)(float *out, const float *q, size_t stride, const float *k, uint32_t dims, uint32_t heads);
    void (*axpy)(float *y, float a, const float *x, uint32_t n);        /* y[i] = fmaf(a, x[i], y[i]) */
    void (*exp_minus)(float *y, const float *x, float max, uint32_t n); /* y[i] = pot_expf(x[i] - max) */
    void (*bf16_to_f32)(float *y, const uint16_t *x, uint32_t n);
} pot_kernels;

/* What a caller computes with: a table and how many threads it may use. */
typedef struct pot_compute {
    const pot_kernels *kernels;
    int threads;
    bool eager; /* wakes its threads for any work, however small: tests want that */
} pot_compute;

/* Whether so many multiplications are worth a parallel region.  Threads that wait asleep (docs/cluster.md, "Sleeping and waking")
 * are woken and awaited in 40 to 60 us on a virtual machine, in which one thread does about a million of them; bench_regions
 * measures both. */
static inline bool pot_worth_threads(const pot_compute *compute, uint64_t products) {
    return compute->threads > 1 && (compute->eager || products >= (uint64_t)1 << 20);
}

/* X(name): pot_kernels_##name and pot_kernels_##name##_usable() exist where the target has them; best last. */
#if defined(__x86_64__)
#define POT_KERNEL_TABLES(X) X(generic) X(avx2)
#else
#define POT_KERNEL_TABLES(X) X(generic)
#endif

/* "auto" or NULL: the best that this CPU can run. */
pot_status pot_kernels_pick(const pot_kernels **out, const char *name, pot_err *err);
/* All tables that this CPU can run, for tests and benches; returns how many were written (at most `max`). */
int pot_kernels_list(const pot_kernels **out, int max);

#endif
