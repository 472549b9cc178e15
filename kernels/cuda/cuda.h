/* The expert layer and the dense products on an NVIDIA GPU, bit-equal to the CPU's (docs/cuda.md).
 *
 * There is one of these interfaces in a program that was compiled with nvcc, and none otherwise: POT_HAVE_CUDA says which,
 * the Makefile defines it.  Whether a device is there is known at run time only: pot_cuda_count().
 *
 * A pot_cuda is one device, one stream and working memory that grows as needed; one user at a time.  Weights are
 * packed matrices as everywhere (R16, never repacked), but `data` points to memory of that device; everything else that
 * is passed in or out is ordinary memory.  Every function waits until the device is done.
 */
#ifndef POT_KERNELS_CUDA_CUDA_H
#define POT_KERNELS_CUDA_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/ffn.h"
#include "kernels/kernels.h"

#ifdef POT_HAVE_CUDA

enum { POT_CUDA_NAME = 64, POT_CUDA_MIN_CAPABILITY = 75 };

typedef struct pot_cuda pot_cuda;

typedef struct pot_cuda_info {
    char name[POT_CUDA_NAME];
    int capability; /* 10 * major + minor, at least POT_CUDA_MIN_CAPABILITY to be of use */
    int multiprocessors;
    bool integrated; /* its memory is the machine's */
    uint64_t total_bytes, free_bytes;
} pot_cuda_info;

int pot_cuda_count(void); /* devices; 0 also when there is no driver */
pot_status pot_cuda_describe(pot_cuda_info *out, int device, pot_err *err);

pot_status pot_cuda_open(pot_cuda **out, int device, pot_err *err);
void pot_cuda_close(pot_cuda *cuda); /* NULL is fine; what was allocated is freed first */

/* Memory of the device for `what`, 256-byte aligned, not zeroed. */
pot_status pot_cuda_alloc(uint8_t **out, pot_cuda *cuda, size_t bytes, const char *what, pot_err *err);
void pot_cuda_free(pot_cuda *cuda, uint8_t *memory); /* NULL is fine */
pot_status pot_cuda_upload(pot_cuda *cuda, uint8_t *to, const void *from, size_t bytes, pot_err *err);
pot_status pot_cuda_copy(pot_cuda *cuda, uint8_t *to, const uint8_t *from, size_t bytes,
                         pot_err *err); /* on the device */

/* As pot_linear: y[i*y_stride + r] for r < w->rows, i < n. */
pot_status pot_cuda_linear(pot_cuda *cuda, float *y, size_t y_stride, const pot_matrix *w, const pot_act_row *x,
                           uint32_t n, pot_err *err);

/* As pot_ffn_run, except that acc is untouched on any failure.  |grid| <= 62. */
pot_status pot_cuda_ffn_run(pot_cuda *cuda, int64_t *acc, uint32_t hidden, const pot_act_row *x,
                            const pot_ffn_job *jobs, uint32_t n_jobs, int grid, pot_err *err);

/* Device time of the last product, layer or copy, without what moved between host and device for it. */
double pot_cuda_seconds(const pot_cuda *cuda);

#endif

#ifdef __cplusplus
}
#endif

#endif
