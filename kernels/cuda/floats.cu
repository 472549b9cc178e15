/* The kernels for float codes: f32, bf16, fp8. */
#include "kernels/cuda/kernels.cuh"

POT_CUDA_DEFINE_KERNELS(pot_cuda_f32, CODES_F32)
POT_CUDA_DEFINE_KERNELS(pot_cuda_bf16, CODES_BF16)
POT_CUDA_DEFINE_KERNELS(pot_cuda_fp8, CODES_FP8)
