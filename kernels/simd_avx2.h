/* The primitives of simd_matmul.h and simd_rows.h in AVX2 + FMA + F16C: eight rows a register, so a line is two registers.  What
 * multiplies bytes is left to the tables that include this. */
#ifndef POT_KERNELS_SIMD_AVX2_H
#define POT_KERNELS_SIMD_AVX2_H

#include "kernels/simd_x86.h"

typedef struct vf {
    __m256 low, high; /* rows 0-7, 8-15 */
} vf;
typedef struct vi {
    __m256i low, high;
} vi;

enum { FEW_TILES_4 = 1, TILES_MANY = 1, ROWS_MANY = 4, FLOAT_ROWS = 4 };
enum { HALF = POT_LINE_BYTES / 2 };

/* Between two uses of the same activations: the compiler would keep all their broadcasts, for which there are no registers, and
 * spill them; loading them again is free. */
#define FORGET_LOADS() __asm__ volatile("" : : : "memory")

#define EACH(call_low, call_high) \
    (vf) { call_low, call_high }
POT_INLINE vf vf_zero(void) { return EACH(_mm256_setzero_ps(), _mm256_setzero_ps()); }
POT_INLINE vf vf_set(float x) { return EACH(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
POT_INLINE vf vf_load(const float *at) { return EACH(_mm256_loadu_ps(at), _mm256_loadu_ps(at + 8)); }
POT_INLINE void vf_store(float *at, vf v) {
    _mm256_storeu_ps(at, v.low);
    _mm256_storeu_ps(at + 8, v.high);
}
POT_INLINE vf vf_add(vf a, vf b) { return EACH(_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)); }
POT_INLINE vf vf_sub(vf a, vf b) { return EACH(_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)); }
POT_INLINE vf vf_mul(vf a, vf b) { return EACH(_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)); }
POT_INLINE vf vf_div(vf a, vf b) { return EACH(_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)); }
POT_INLINE vf vf_max(vf a, vf b) { return EACH(_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)); }
POT_INLINE vf vf_min(vf a, vf b) { return EACH(_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)); }
POT_INLINE vf vf_fma(vf a, vf b, vf c) {
    return EACH(_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high));
}
POT_INLINE vf vf_abs(vf v) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return EACH(_mm256_andnot_ps(sign, v.low), _mm256_andnot_ps(sign, v.high));
}
POT_INLINE vf vf_neg(vf v) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return EACH(_mm256_xor_ps(sign, v.low), _mm256_xor_ps(sign, v.high));
}
POT_INLINE vf vf_round(vf v) {
    enum { NEAREST = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    return EACH(_mm256_round_ps(v.low, NEAREST), _mm256_round_ps(v.high, NEAREST));
}
POT_INLINE __m256 power_of_two(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
POT_INLINE vf vf_power(vf n) { return EACH(power_of_two(n.low), power_of_two(n.high)); }
POT_INLINE bool vf_finite(vf v) {
    const __m256 none = _mm256_set1_ps(__builtin_inff());
    v = vf_abs(v);
    return _mm256_movemask_ps(
               _mm256_or_ps(_mm256_cmp_ps(v.low, none, _CMP_NLT_UQ), _mm256_cmp_ps(v.high, none, _CMP_NLT_UQ))) == 0;
}
POT_INLINE vf vf_from_vi(vi v) { return EACH(_mm256_cvtepi32_ps(v.low), _mm256_cvtepi32_ps(v.high)); }
POT_INLINE vi vi_set(int32_t x) { return (vi){_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }

POT_INLINE vi vi_add(vi a, vi b) { return (vi){_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)}; }
#define KEEP(v) __asm__ volatile("" : "+x"((v).low), "+x"((v).high))

POT_INLINE vi vi_line(const uint8_t *at) { return (vi){load_bytes(at), load_bytes(at + HALF)}; }

POT_INLINE __m256 widen_bf16(const uint16_t *at) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
POT_INLINE vf vf_widen_bf16(const uint16_t *at) { return EACH(widen_bf16(at), widen_bf16(at + 8)); }

POT_INLINE void vf_store_codes(int8_t *at, vf v) {
    __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(v.low), _mm256_cvtps_epi32(v.high));
    words = _mm256_permute4x64_epi64(words, 0xd8); /* packs work in halves of a register */
    _mm_storeu_si128((__m128i *)(void *)at,
                     _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

/* ---- weights ---- */

POT_INLINE __m256 exponent_scales(const uint8_t *at) {
    /* 2^(e-128); e = 0 and 1 are subnormal numbers */
    __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)at));
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

POT_INLINE vf vf_scales(const uint8_t *at, const int kind) {
    if (kind == POT_SCALE_F32) return vf_load((const float *)(const void *)at);
    if (kind == POT_SCALE_F16)
        return EACH(_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)at)),
                    _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(at + 16))));
    return EACH(exponent_scales(at), exponent_scales(at + 8));
}

/* Eight rows of column j of a line of floats. */
POT_INLINE __m256 half_column(const uint8_t *half, const int bits, const int j) {
    if (bits == 32) return _mm256_loadu_ps((const float *)(const void *)half);
    __m256i w = load_bytes(half);
    if (bits == 16)
        return _mm256_castsi256_ps(j == 1 ? _mm256_and_si256(w, _mm256_set1_epi32((int)0xffff0000u))
                                          : _mm256_slli_epi32(w, 16));
    /* e4m3: the code to the top, then exponent and mantissa to where f32 has them; 2^120 mends the bias (exact). */
    if (j != 3) w = _mm256_slli_epi32(w, 24 - j * 8);
    w = _mm256_and_si256(_mm256_srai_epi32(w, 4), _mm256_set1_epi32((int)0x87f00000u));
    return _mm256_mul_ps(_mm256_castsi256_ps(w), _mm256_set1_ps(0x1p120f));
}

POT_INLINE vf vf_column(const uint8_t *line, const int bits, const int j) {
    return EACH(half_column(line, bits, j), half_column(line + HALF, bits, j));
}

/* int8 as v + 128 */
POT_INLINE __m256i offset_bytes(const uint8_t *at) {
    return _mm256_xor_si256(load_bytes(at), _mm256_set1_epi8((char)0x80));
}

/* Unsigned codes of quad q, rows 8h..8h+7. */
POT_INLINE __m256i small_codes(const uint8_t *lines, const int q, const int h, const int bits, const bool e2m1) {
    const int per_byte = 8 / bits;
    __m256i w = load_bytes(lines + q / per_byte * POT_LINE_BYTES + h * HALF);
    w = _mm256_and_si256(_mm256_srli_epi16(w, q % per_byte * bits), _mm256_set1_epi8((char)((1 << bits) - 1)));
    return e2m1 ? _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(e2m1_unsigned_halves()), w) : w;
}

#endif
