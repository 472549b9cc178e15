/* Devices, memory and copies: the thin layer between potluck and the CUDA runtime.
 *
 * Every call selects its device first (the selection belongs to the thread), queues on the pot_cuda's one stream and
 * waits. */
#include "kernels/cuda/runtime.cuh"

extern "C" {
#include "common/mem.h"
}

pot_status pot_cuda_check(cudaError_t error, const pot_cuda *cuda, const char *what, pot_err *err) {
    if (error == cudaSuccess) return POT_OK;
    return pot_fail(err, error == cudaErrorMemoryAllocation ? POT_NO_MEMORY : POT_ERROR, "CUDA device %d: %s: %s",
                    cuda->device, what, cudaGetErrorString(error));
}

int pot_cuda_count(void) {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) {
        cudaGetLastError(); /* no driver or no device; not an error of the next call */
        return 0;
    }
    return count;
}

pot_status pot_cuda_describe(pot_cuda_info *out, int device, pot_err *err) {
    const int count = pot_cuda_count();
    if (device < 0 || device >= count)
        return pot_fail(err, POT_NOT_FOUND, "CUDA device %d does not exist: this machine has %d", device, count);
    pot_cuda cuda = {};
    cuda.device = device;
    cudaDeviceProp properties;
    size_t free_bytes = 0, total_bytes = 0;
    pot_status s = pot_cuda_check(cudaSetDevice(device), &cuda, "selecting it", err);
    if (s == POT_OK) s = pot_cuda_check(cudaGetDeviceProperties(&properties, device), &cuda, "its properties", err);
    if (s == POT_OK) s = pot_cuda_check(cudaMemGetInfo(&free_bytes, &total_bytes), &cuda, "its memory", err);
    if (s != POT_OK) return s;
    *out = pot_cuda_info();
    for (int i = 0; i < POT_CUDA_NAME - 1 && properties.name[i] != 0; i++) out->name[i] = properties.name[i];
    out->capability = 10 * properties.major + properties.minor;
    out->multiprocessors = properties.multiProcessorCount;
    out->integrated = properties.integrated != 0;
    out->total_bytes = total_bytes;
    out->free_bytes = free_bytes;
    return POT_OK;
}

pot_status pot_cuda_open(pot_cuda **out, int device, pot_err *err) {
    pot_cuda_info info;
    pot_status s = pot_cuda_describe(&info, device, err);
    if (s != POT_OK) return s;
    if (info.capability < POT_CUDA_MIN_CAPABILITY)
        return pot_fail(err, POT_CONFIG, "CUDA device %d (%s) has compute capability %d.%d, need %d.%d or later",
                        device, info.name, info.capability / 10, info.capability % 10, POT_CUDA_MIN_CAPABILITY / 10,
                        POT_CUDA_MIN_CAPABILITY % 10);
    pot_cuda *cuda = static_cast<pot_cuda *>(pot_alloc(sizeof *cuda));
    if (cuda == nullptr) return pot_fail(err, POT_NO_MEMORY, "no memory for CUDA device %d", device);
    cuda->device = device;
    s = pot_cuda_check(cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking), cuda, "making a stream", err);
    if (s == POT_OK) s = pot_cuda_check(cudaEventCreate(&cuda->begin), cuda, "making an event", err);
    if (s == POT_OK) s = pot_cuda_check(cudaEventCreate(&cuda->end), cuda, "making an event", err);
    if (s != POT_OK) {
        pot_cuda_close(cuda);
        return s;
    }
    *out = cuda;
    return POT_OK;
}

/* Errors while freeing tell nothing that an earlier call did not. */
void pot_cuda_close(pot_cuda *cuda) {
    if (cuda == nullptr) return;
    cudaSetDevice(cuda->device);
    cudaFree(cuda->device_memory);
    cudaFreeHost(cuda->host_memory);
    if (cuda->end != nullptr) cudaEventDestroy(cuda->end);
    if (cuda->begin != nullptr) cudaEventDestroy(cuda->begin);
    if (cuda->stream != nullptr) cudaStreamDestroy(cuda->stream);
    pot_free(cuda);
}

pot_status pot_cuda_alloc(uint8_t **out, pot_cuda *cuda, size_t bytes, const char *what, pot_err *err) {
    void *memory = nullptr;
    pot_status s = pot_cuda_check(cudaSetDevice(cuda->device), cuda, "selecting it", err);
    if (s == POT_OK) s = pot_cuda_check(cudaMalloc(&memory, bytes), cuda, "allocating", err);
    if (s != POT_OK) {
        cudaGetLastError();
        return pot_at(err, "%s (%zu bytes)", what, bytes);
    }
    *out = static_cast<uint8_t *>(memory);
    return POT_OK;
}

void pot_cuda_free(pot_cuda *cuda, uint8_t *memory) {
    cudaSetDevice(cuda->device);
    cudaFree(memory);
}

static pot_status copy(pot_cuda *cuda, void *to, const void *from, size_t bytes, cudaMemcpyKind kind, pot_err *err) {
    pot_status s = pot_cuda_check(cudaSetDevice(cuda->device), cuda, "selecting it", err);
    if (s == POT_OK) s = pot_cuda_check(cudaEventRecord(cuda->begin, cuda->stream), cuda, "copying", err);
    if (s == POT_OK) s = pot_cuda_check(cudaMemcpyAsync(to, from, bytes, kind, cuda->stream), cuda, "copying", err);
    if (s == POT_OK) s = pot_cuda_check(cudaEventRecord(cuda->end, cuda->stream), cuda, "copying", err);
    return s == POT_OK ? pot_cuda_finish(cuda, "copying", err) : s;
}

pot_status pot_cuda_upload(pot_cuda *cuda, uint8_t *to, const void *from, size_t bytes, pot_err *err) {
    return copy(cuda, to, from, bytes, cudaMemcpyHostToDevice, err);
}

pot_status pot_cuda_copy(pot_cuda *cuda, uint8_t *to, const uint8_t *from, size_t bytes, pot_err *err) {
    return copy(cuda, to, from, bytes, cudaMemcpyDeviceToDevice, err);
}

pot_status pot_cuda_reserve(pot_cuda *cuda, size_t bytes, pot_err *err) {
    pot_status s = pot_cuda_check(cudaSetDevice(cuda->device), cuda, "selecting it", err);
    if (s != POT_OK || bytes <= cuda->bytes) return s;
    cudaFree(cuda->device_memory);
    cudaFreeHost(cuda->host_memory);
    cuda->device_memory = cuda->host_memory = nullptr;
    cuda->bytes = 0;
    s = pot_cuda_alloc(&cuda->device_memory, cuda, bytes, "working memory", err);
    if (s != POT_OK) return s;
    void *pinned = nullptr;
    s = pot_cuda_check(cudaMallocHost(&pinned, bytes), cuda, "pinned memory of the host", err);
    if (s != POT_OK) {
        cudaGetLastError();
        return s;
    }
    cuda->host_memory = static_cast<uint8_t *>(pinned);
    cuda->bytes = bytes;
    return POT_OK;
}

pot_status pot_cuda_finish(pot_cuda *cuda, const char *what, pot_err *err) {
    float milliseconds = 0;
    pot_status s = pot_cuda_check(cudaStreamSynchronize(cuda->stream), cuda, what, err);
    if (s == POT_OK) s = pot_cuda_check(cudaEventElapsedTime(&milliseconds, cuda->begin, cuda->end), cuda, what, err);
    if (s == POT_OK) cuda->seconds = (double)milliseconds * 1e-3;
    return s;
}

double pot_cuda_seconds(const pot_cuda *cuda) { return cuda->seconds; }
