/* Inside kernels/cuda only: what a pot_cuda holds, and how CUDA's errors become sentences. */
#ifndef POT_KERNELS_CUDA_RUNTIME_CUH
#define POT_KERNELS_CUDA_RUNTIME_CUH

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/device.cuh"

struct pot_cuda {
    int device;
    cudaStream_t stream;
    cudaEvent_t begin, end; /* around the kernels of a call */
    double seconds;
    uint8_t *device_memory; /* scratch, grown as needed; host_memory is pinned and as large */
    uint8_t *host_memory;
    size_t bytes;
};

/* POT_OK, or what CUDA says happened while `what`. */
pot_status pot_cuda_check(cudaError_t error, const pot_cuda *cuda, const char *what, pot_err *err);

/* Scratch of at least so many bytes on both sides; what was in it is lost. */
pot_status pot_cuda_reserve(pot_cuda *cuda, size_t bytes, pot_err *err);

/* Ends a call: waits for the stream and reads the time between the two events. */
pot_status pot_cuda_finish(pot_cuda *cuda, const char *what, pot_err *err);

#endif
