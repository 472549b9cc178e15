/* What differs between a GPU and the host that stands in for one in tests (tests/cuda_shim), in one place; and the arithmetic
 * whose bits are fixed (DESIGN "One answer", kernels/math.c, kernels/convert.c), written with operations that round as
 * the CPU's do: every float operation is an _rn intrinsic, so that no compiler flag can fuse two of them.
 *
 * The shim's cuda_runtime.h defines POT_SHARED and POT_LAUNCH itself and declares the intrinsics as host functions. */
#ifndef POT_KERNELS_CUDA_DEVICE_CUH
#define POT_KERNELS_CUDA_DEVICE_CUH

#include <cuda_runtime.h>
#include <stdint.h>
#include <string.h>

#ifndef POT_SHARED
#define POT_SHARED(type, name) __shared__ type name
#define POT_LAUNCH(kernel, blocks, threads, stream, ...) (kernel)<<<(blocks), (threads), 0, (stream)>>>(__VA_ARGS__)
#endif

#define POT_DEVICE static __device__ __forceinline__

static const int WARP = 32, WARPS = 8, THREADS = WARP * WARPS; /* of every block of every kernel */

/* ---- loads ---- */

/* Weights are read once: they must not push activations out of L1.  volatile keeps the loads where the source has them,
 * before the barrier, so that they are in flight while sums are made. */
POT_DEVICE uint4 ld_stream(const uint8_t *at) {
#ifdef __CUDACC__
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at));
    return v;
#else
    return *reinterpret_cast<const uint4 *>(at);
#endif
}

/* ---- integers ---- */

POT_DEVICE int dp4a(uint32_t w, uint32_t x, int sum) {
#ifdef __CUDACC__
    return __dp4a((int)w, (int)x, sum);
#else
    for (int i = 0; i < 4; i++) sum += (int8_t)(w >> 8 * i) * (int8_t)(x >> 8 * i);
    return sum;
#endif
}

/* Four bytes of {high, low}: nibble i of `select`, below 8, says which one becomes byte i. */
POT_DEVICE uint32_t permute(uint32_t low, uint32_t high, uint32_t select) {
#ifdef __CUDACC__
    return __byte_perm(low, high, select);
#else
    uint64_t bytes = (uint64_t)high << 32 | low;
    uint32_t out = 0;
    for (int i = 0; i < 4; i++) out |= (uint32_t)(bytes >> 8 * (select >> 4 * i & 7u) & 0xffu) << 8 * i;
    return out;
#endif
}

/* ---- stored floats ---- */

POT_DEVICE float float_from_bf16(uint32_t half) { return __uint_as_float(half << 16); }

/* Moved to where a f32 has exponent and mantissa, the number is off by a power of two, also when it is a subnormal one:
 * one exact product puts that right. */
POT_DEVICE float float_from_f16(uint32_t half) {
    uint32_t moved = (half & 0x7fffu) << 13;
    uint32_t bits = moved < 0x0f800000u ? __float_as_uint(__fmul_rn(__uint_as_float(moved), 0x1p112f))
                                        : moved | 0x7f800000u; /* infinity, NaN */
    return __uint_as_float(bits | (half & 0x8000u) << 16);
}

/* Not for the two codes of NaN: packing refuses them. */

POT_DEVICE float float_from_e4m3(uint32_t code) {
    return __uint_as_float(__float_as_uint(__fmul_rn(__uint_as_float((code & 0x7fu) << 20), 0x1p120f)) | (code & 0x80u)
                                                                                                             << 24);
}

/* 2^(e-128): E2M1 counts in halves.  Below e = 2 this is a subnormal number. */
POT_DEVICE float float_from_e8m0_half(uint32_t e) { return __uint_as_float(e < 2 ? 0x00200000u << e : (e - 1) << 23); }

/* ---- SwiGLU, the quantizer's codes, the grid ---- */

/* pot_expf, step by step. */
POT_DEVICE float exp_fixed(float x) {
    x = x < -87.33654f ? -87.33654f : x;
    x = x > 88.37626f ? 88.37626f : x;
    if (x != x) return x;
    float n = rintf(__fmul_rn(x, 1.44269504088896341f));
    float r = __fmaf_rn(n, -0.693359375f, x);
    r = __fmaf_rn(n, 2.12194440e-4f, r);
    float p = 1.9875691500e-4f;
    p = __fmaf_rn(p, r, 1.3981999507e-3f);
    p = __fmaf_rn(p, r, 8.3334519073e-3f);
    p = __fmaf_rn(p, r, 4.1665795894e-2f);
    p = __fmaf_rn(p, r, 1.6666665459e-1f);
    p = __fmaf_rn(p, r, 5.0000001201e-1f);
    float y = __fadd_rn(__fmaf_rn(p, __fmul_rn(r, r), r), 1.0f);
    return __fmul_rn(y, __uint_as_float((uint32_t)((int)n + 127) << 23));
}

POT_DEVICE float swiglu(float g, float u) { return __fmul_rn(__fdiv_rn(g, __fadd_rn(1.0f, exp_fixed(-g))), u); }

/* rint(v * 2^grid), ties to even, in integers: home GPUs do 1/64 of their f32 rate in double.  false when v is not
 * finite or |v * 2^grid| >= 2^62.  |grid| <= 62. */
POT_DEVICE bool to_grid(int64_t *out, float v, int grid) {
    uint32_t bits = __float_as_uint(v), exponent = bits >> 23 & 0xffu;
    uint64_t mantissa = bits & 0x7fffffu;
    if (exponent != 0)
        mantissa |= 0x800000u;
    else
        exponent = 1;
    int shift = (int)exponent - 150 + grid; /* |v| * 2^grid = mantissa * 2^shift, mantissa < 2^24 */
    if (exponent == 255 || shift >= 62 - 23) return false;
    uint64_t magnitude;
    if (shift >= 0) {
        magnitude = mantissa << shift;
    } else if (shift < -24) {
        magnitude = 0;
    } else {
        uint64_t half = (uint64_t)1 << (-shift - 1), rest = mantissa & (2 * half - 1);
        magnitude = mantissa >> -shift;
        magnitude += rest > half || (rest == half && (magnitude & 1u));
    }
    *out = bits >> 31 ? -(int64_t)magnitude : (int64_t)magnitude;
    return true;
}

#endif
