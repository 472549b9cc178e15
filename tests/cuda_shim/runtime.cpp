/* The CUDA runtime's functions over ordinary memory.  Memory of the "device" starts as garbage, and freeing it twice or
 * not at all is seen by sanitizers and by pot_shim_live(). */
#include <stdio.h>
#include <stdlib.h>

#include "cuda_runtime.h"
#include "shim.h"

struct shim_handle {
    int kind;
};

namespace {

enum { GARBAGE = 0xa5 };
int devices = 1, major_capability = 8, minor_capability = 9;
uint64_t fail_at, live;
cudaError_t last;

/* Every call comes by here first. */
cudaError_t outcome() {
    if (fail_at > 0 && --fail_at == 0) return last = cudaErrorMemoryAllocation;
    return cudaSuccess;
}

cudaError_t allocate(void **out, size_t bytes) {
    cudaError_t e = outcome();
    if (e != cudaSuccess) return e;
    if (posix_memalign(out, 256, bytes > 0 ? bytes : 1) != 0) return last = cudaErrorMemoryAllocation;
    memset(*out, GARBAGE, bytes);
    live++;
    return cudaSuccess;
}

cudaError_t release(void *memory) {
    if (memory == NULL) return cudaSuccess;
    live--;
    free(memory);
    return cudaSuccess;
}

cudaError_t make_handle(shim_handle **out) {
    cudaError_t e = outcome();
    if (e != cudaSuccess) return e;
    *out = new shim_handle();
    live++;
    return cudaSuccess;
}

cudaError_t end_handle(shim_handle *handle) {
    delete handle;
    live--;
    return cudaSuccess;
}

} // namespace

void pot_shim_devices(int count, int major, int minor) {
    devices = count, major_capability = major, minor_capability = minor;
}
void pot_shim_fail_at(uint64_t nth) { fail_at = nth; }
uint64_t pot_shim_live(void) { return live; }

const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaSuccess                 ? "no error"
           : error == cudaErrorMemoryAllocation ? "out of memory"
           : error == cudaErrorNoDevice         ? "no device"
                                                : "invalid argument";
}

cudaError_t cudaGetLastError(void) {
    cudaError_t e = last;
    last = cudaSuccess;
    return e == cudaSuccess ? outcome() : e;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = devices;
    return devices > 0 ? outcome() : last = cudaErrorNoDevice;
}

cudaError_t cudaSetDevice(int device) { return device < devices ? outcome() : last = cudaErrorInvalidValue; }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *out, int device) {
    snprintf(out->name, sizeof out->name, "shim %d", device);
    out->major = major_capability, out->minor = minor_capability, out->multiProcessorCount = 1, out->integrated = 0;
    return outcome();
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = (size_t)1 << 34;
    *free_bytes = (size_t)1 << 33;
    return outcome();
}

cudaError_t cudaMalloc(void **out, size_t bytes) { return allocate(out, bytes); }
cudaError_t cudaFree(void *memory) { return release(memory); }
cudaError_t cudaMallocHost(void **out, size_t bytes) { return allocate(out, bytes); }
cudaError_t cudaFreeHost(void *memory) { return release(memory); }

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind, cudaStream_t) {
    cudaError_t e = outcome();
    if (e == cudaSuccess) memmove(to, from, bytes);
    return e;
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t bytes, cudaStream_t) {
    cudaError_t e = outcome();
    if (e == cudaSuccess) memset(at, value, bytes);
    return e;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned) { return make_handle(out); }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return end_handle(stream); }
cudaError_t cudaStreamSynchronize(cudaStream_t) { return outcome(); }
cudaError_t cudaEventCreate(cudaEvent_t *out) { return make_handle(out); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return end_handle(event); }
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return outcome(); }

cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t, cudaEvent_t) {
    *milliseconds = 1;
    return outcome();
}
