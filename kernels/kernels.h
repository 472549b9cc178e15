/* One table of function pointers per instruction set; every table gives the same bits (DESIGN 3).
 *
 * kernels_generic.c is complete and defines the results; kernels_<isa>.c gives the same with other
 * instructions; no slot is ever empty.  The table is picked once from CPUID, or forced by name (--kernels).
 * The list POT_KERNEL_TABLES feeds dispatch, tests and benches: a table that is not tested cannot be chosen.
 * Kernels are single-threaded, keep no state, allocate nothing; callers split the work (linear.h, ffn.h).
 */
#ifndef POT_KERNELS_KERNELS_H
#define POT_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "common/team.h"
#include "kernels/format.h"

/* One activation row, padded with zeros to a multiple of 32 columns.  Integer formats read codes, scales and sums, float formats
 * read values; the others may be NULL.
 * codes: int8 [blocks*32]; scales: f32 [blocks]; sums: of each block's codes [blocks]; values: f32 [blocks*32]. */
typedef struct pot_act_row {
    const int8_t *codes;
    const float *scales;
    const int32_t *sums; /* what a zero point is multiplied by: computed once a row, and not sent */
    const float *values;
} pot_act_row;

/* y[i*y_stride + r] = (row r of w) . x[i], for r in tiles [tile_begin, tile_end) and below w->rows, i in [0, n). */
typedef void pot_matmul(float *y, size_t y_stride, const pot_matrix *w, uint32_t tile_begin, uint32_t tile_end,
                        const pot_act_row *x, uint32_t n);

enum { POT_LANES = 16 }; /* of row functions: heads or keys side by side; accumulators of a norm */

typedef struct pot_kernels {
    const char *name; /* "generic", "avx2", ... */
    pot_matmul *matmul[POT_FORMAT_COUNT];

    /* Blocks of 32: scale = amax / 127, code = rint(x / scale); amax < 2^-100 gives scale 0 and codes 0.
     * x [blocks*32].  false when an element is not finite (outputs are then unspecified). */
    bool (*quantize)(int8_t *codes, float *scales, int32_t *sums, const float *x, uint32_t blocks);
    void (*block_sums)(int32_t *sums, const int8_t *codes, uint32_t blocks);
    void (*swiglu)(float *h, const float *g, const float *u, uint32_t n); /* h may be g */
    /* acc[i] += rint(weight * v[i] * 2^grid) as int64, v[i] * weight rounded to f32 first; false (acc unspecified) when
     * a value is not finite or |value * 2^grid| >= 2^62. */
    bool (*grid_add)(int64_t *acc, const float *v, float weight, uint32_t n, int grid);
    void (*bf16_to_f32)(float *y, const uint16_t *x, uint32_t n);
    void (*rms_norm)(float *y, const float *x, const float *weight, uint32_t n, float eps); /* math.h; y may be x */

    /* Attention over one block of n keys, for 16 heads (lanes; unused ones are harmless): key t is keys + t * stride.
     * scores: out[t][16], one chain over d of q[d][16] * key[d].
     * softmax: scaled = scores * scale; top[16] = the largest (t ascending, strictly larger wins); p[t][16] = pot_expf(scaled -
     *          top); sum[16] = p[0] + p[1] + ...
     * values: out[d][16], one chain over t of p[t][16] * key[d].
     * merge: values[d][16] = fmaf(block, block_part, values * old_part). */
    void (*attention_scores)(float *out, const float *q, const float *keys, size_t stride, uint32_t n, uint32_t dims);
    void (*attention_softmax)(float *p, float *top, float *sum, const float *scores, float scale, uint32_t n);
    void (*attention_values)(float *out, const float *p, const float *keys, size_t stride, uint32_t n, uint32_t dims);
    void (*attention_merge)(float *values, const float *block, const float *old_part, const float *block_part,
                            uint32_t dims);
    /* Scores of 16 keys, turned[dims][16]: out[16], one chain over heads of weights[h] * max(0, (q[h] . key) * scale), q
     * [heads][dims].  false when a product or a sum is not finite. */
    bool (*index_scores)(float *out, const float *q, const float *weights, float scale, const float *turned,
                         uint32_t heads, uint32_t dims);

    /* What these instructions can do at best, for `potluck bench`: operations done in so many rounds of independent chains
     * (a multiplication and an addition are two), in registers; and a plain read of four streams at once, `bytes` (a multiple of
     * 64) of each, which returns something that depends on every byte. */
    uint64_t (*peak_int8)(uint64_t rounds);
    uint64_t (*peak_float)(uint64_t rounds);
    uint32_t (*read_streams)(const uint8_t *const streams[4], size_t bytes);
} pot_kernels;

/* What a caller computes with.  Both are borrowed; a team of NULL is the caller alone. */
typedef struct pot_compute {
    const pot_kernels *kernels;
    pot_team *team;
} pot_compute;

/* X(name): pot_kernels_##name (kernels_<name>.c) and pot_kernels_##name##_usable() (cpu.c); best last. */
#if defined(__x86_64__)
#define POT_KERNEL_TABLES(X) X(generic) X(avx2) X(avxvnni) X(avx512) X(amx)
#elif defined(__aarch64__)
#define POT_KERNEL_TABLES(X) X(generic) X(neon)
#else
#define POT_KERNEL_TABLES(X) X(generic)
#endif

/* "auto" or NULL: the best that this CPU can run. */
pot_status pot_kernels_pick(const pot_kernels **out, const char *name, pot_err *err);
/* All tables that this CPU can run, for tests and benches; returns how many were written (at most `max`). */
int pot_kernels_list(const pot_kernels **out, int max);

#endif
