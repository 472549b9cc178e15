/* The expert layer: a list of (chunk, rows) jobs, summed on the grid (DESIGN 3, rules 1-4).
 *
 * For each job and each of its rows: h = swiglu(gate x, up x) over the chunk's inner rows; h quantized in blocks of 32 when
 * `down` is an integer format; v = weight * (down h); acc[row] += rint(v * 2^grid).  Phase A (gate, up, SwiGLU,
 * requantize) is parallel over stretches of the jobs' chunks, phase B (down and sum) over stretches of hidden, so no two threads
 * write one sum; two barriers in all.  Integer sums do not depend on order, grouping or threads.
 */
#ifndef POT_KERNELS_FFN_H
#define POT_KERNELS_FFN_H

#include "kernels/kernels.h"

typedef struct pot_ffn_job {
    pot_chunk chunk;
    uint32_t expert; /* only for the fault report */
    uint32_t n_rows;
    const uint32_t *rows; /* [n_rows] indices into x and acc, distinct */
    const float *weights; /* [n_rows] routing weights */
} pot_ffn_job;

/* Working memory, grown as needed and kept; all zero = empty.  One user at a time. */
typedef struct pot_ffn_scratch {
    uint8_t *memory;
    size_t bytes;
} pot_ffn_scratch;
void pot_ffn_scratch_free(pot_ffn_scratch *scratch);

/* acc [n rows of x][hidden] int64 is added to.  POT_NUMERIC names the expert whose value was not finite or too large
 * (that of the first such job); acc is then unspecified. */
pot_status pot_ffn_run(const pot_compute *compute, int64_t *acc, uint32_t hidden, const pot_act_row *x,
                       const pot_ffn_job *jobs, uint32_t n_jobs, int grid, pot_ffn_scratch *scratch, pot_err *err);

#endif
