/* The kernels for integer codes: q8, q4 and q2 in all their scale layouts, and mxfp4. */
#include "kernels/cuda/kernels.cuh"

POT_CUDA_DEFINE_KERNELS(pot_cuda_int8, CODES_INT8)
POT_CUDA_DEFINE_KERNELS(pot_cuda_int4, CODES_INT4)
POT_CUDA_DEFINE_KERNELS(pot_cuda_int2, CODES_INT2)
POT_CUDA_DEFINE_KERNELS(pot_cuda_e2m1, CODES_E2M1)
