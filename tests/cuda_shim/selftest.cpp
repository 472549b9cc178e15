/* Each kernel has one mistake that a GPU would answer with a hang or with wrong numbers now and then. */
#include "selftest.h"
#include "cuda_runtime.h"

struct args {
    int which;
    uint32_t *out;
};

static __global__ void wrong_kernel(args a) {
    switch (a.which) {
    case 0: /* two barriers, half of the threads at each */
        if (threadIdx.x < 32)
            __syncthreads();
        else
            __syncthreads();
        break;
    case 1: /* some leave before the barrier */
        if (threadIdx.x < 40) __syncthreads();
        break;
    case 2: /* halves of a warp at different exchanges */
        if (threadIdx.x % 32 < 16)
            a.out[threadIdx.x] = (uint32_t)__shfl_xor_sync(0xffffffffu, 1, 1);
        else
            a.out[threadIdx.x] = (uint32_t)__shfl_xor_sync(0xffffffffu, 1, 1);
        break;
    case 3: /* some lanes at the barrier, some at an exchange */
        if (threadIdx.x % 32 < 16)
            __syncthreads();
        else
            a.out[threadIdx.x] = (uint32_t)__shfl_xor_sync(0xffffffffu, 1, 1);
        break;
    default: /* an exchange that names a part of the warp */
        a.out[threadIdx.x] = (uint32_t)__shfl_xor_sync(0xffffu, 1, 1);
    }
}

void pot_shim_wrong_kernel(int which) {
    uint32_t out[64];
    const args a = {which, out};
    POT_LAUNCH(wrong_kernel, 1, 64, (cudaStream_t)NULL, a);
}

static __global__ void racing_kernel(args a) {
    typedef uint32_t words[64];
    POT_SHARED(words, shared);
    shared[threadIdx.x] = threadIdx.x;
    const uint32_t neighbour = shared[(threadIdx.x + 1) % 64];
    *a.out = *a.out * 31 + neighbour;
}

uint32_t pot_shim_racing_kernel(void) {
    uint32_t out = 0;
    const args a = {0, &out};
    POT_LAUNCH(racing_kernel, 1, 64, (cudaStream_t)NULL, a);
    return out;
}
