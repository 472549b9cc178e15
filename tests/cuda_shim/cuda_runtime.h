/* The part of CUDA that kernels/cuda uses, for a host compiler (shim.h says what this is for). */
#ifndef POT_TESTS_CUDA_SHIM_CUDA_RUNTIME_H
#define POT_TESTS_CUDA_SHIM_CUDA_RUNTIME_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ---- the language ---- */

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)

struct shim_index {
    unsigned x;
};
extern shim_index threadIdx, blockIdx;

/* A barrier knows its line: threads that wait at different ones have gone different ways. */
void shim_barrier_block(int line);
void shim_barrier_warp(int line);
#define __syncthreads() shim_barrier_block(__LINE__)

uint32_t shim_exchange(uint32_t value, int distance, int line);
#define __shfl_xor_sync(mask, value, distance)                                           \
    ((mask) == 0xffffffffu ? (int)shim_exchange((uint32_t)(value), (distance), __LINE__) \
                           : (shim_fail("an exchange is for a part of a warp only", __LINE__), 0))
[[noreturn]] void shim_fail(const char *what, int line);

/* The block's own memory of that declaration, fresh garbage for every block. */
void *shim_shared(size_t bytes, int line);
#define POT_SHARED(type, name) type &name = *static_cast<type *>(shim_shared(sizeof(type), __LINE__))

void shim_run(unsigned blocks, unsigned threads, void (*body)(void *), void *argument);
template <class Args> void shim_launch(void (*kernel)(Args), unsigned blocks, unsigned threads, const Args &args) {
    struct call {
        void (*kernel)(Args);
        const Args *args;
    } c = {kernel, &args};
    shim_run(
        blocks, threads, [](void *p) { static_cast<call *>(p)->kernel(*static_cast<call *>(p)->args); }, &c);
}
#define POT_LAUNCH(kernel, blocks, threads, stream, args) \
    ((void)(stream), shim_launch((kernel), (unsigned)(blocks), (unsigned)(threads), (args)))

/* ---- types and arithmetic ---- */

struct uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

static inline float __uint_as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static inline uint32_t __float_as_uint(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }

static inline unsigned atomicMin(unsigned *at, unsigned value) {
    unsigned old = *at;
    if (value < old) *at = value;
    return old;
}
static inline unsigned long long atomicAdd(unsigned long long *at, unsigned long long value) {
    unsigned long long old = *at;
    *at = old + value;
    return old;
}

/* ---- the runtime ---- */

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorMemoryAllocation = 2, cudaErrorNoDevice = 100 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice = 1, cudaMemcpyDeviceToHost = 2, cudaMemcpyDeviceToDevice = 3 };
enum { cudaStreamNonBlocking = 1 };
typedef struct shim_handle *cudaStream_t;
typedef struct shim_handle *cudaEvent_t;
struct cudaDeviceProp {
    char name[256];
    int major, minor, multiProcessorCount, integrated;
};

const char *cudaGetErrorString(cudaError_t error);
cudaError_t cudaGetLastError(void);
cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device);
cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
cudaError_t cudaMalloc(void **out, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocHost(void **out, size_t bytes);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned flags);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaEventCreate(cudaEvent_t *out);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t begin, cudaEvent_t end);

#endif
