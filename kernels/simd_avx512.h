/* The primitives of simd_matmul.h and simd_rows.h in AVX-512 (F, BW, VL, VNNI): a line is one register. */
#ifndef POT_KERNELS_SIMD_AVX512_H
#define POT_KERNELS_SIMD_AVX512_H

#include "kernels/simd_x86.h"

typedef __m512 vf;
typedef __m512i vi;

POT_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
POT_INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
POT_INLINE vf vf_load(const float *at) { return _mm512_loadu_ps(at); }
POT_INLINE void vf_store(float *at, vf v) { _mm512_storeu_ps(at, v); }
POT_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
POT_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
POT_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
POT_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
POT_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); }
POT_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); }
POT_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
POT_INLINE vf vf_abs(vf v) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff)));
}
POT_INLINE vf vf_neg(vf v) {
    return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(v), _mm512_set1_epi32((int)0x80000000u)));
}
POT_INLINE vf vf_round(vf v) { return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
POT_INLINE vf vf_power(vf n) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23));
}
POT_INLINE bool vf_finite(vf v) {
    return _mm512_cmp_ps_mask(vf_abs(v), _mm512_set1_ps(__builtin_inff()), _CMP_NLT_UQ) == 0;
}
POT_INLINE vf vf_from_vi(vi v) { return _mm512_cvtepi32_ps(v); }
POT_INLINE vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
POT_INLINE vi vi_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
POT_INLINE vi vi_line(const uint8_t *at) { return _mm512_loadu_si512((const void *)at); }
POT_INLINE vi vi_dot4(vi acc, vi w, vi x) { return _mm512_dpbusd_epi32(acc, w, x); }
#ifdef __AVX512F__
#define KEEP(v) __asm__ volatile("" : "+v"(v))
#else /* emulated for a test: there is no such register */
#define KEEP(v) __asm__ volatile("" : "+m"(v))
#endif

POT_INLINE vf vf_widen_bf16(const uint16_t *at) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_bytes(at)), 16));
}
POT_INLINE void vf_store_codes(int8_t *at, vf v) {
    _mm_storeu_si128((__m128i *)(void *)at, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(v)));
}

/* ---- weights ---- */

POT_INLINE vf vf_scales(const uint8_t *at, const int kind) {
    if (kind == POT_SCALE_F32) return vf_load((const float *)(const void *)at);
    if (kind == POT_SCALE_F16) return _mm512_cvtph_ps(load_bytes(at));
    /* 2^(e-128); e = 0 and 1 are subnormal numbers */
    const vi e = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)at));
    const vi normal = _mm512_slli_epi32(_mm512_sub_epi32(e, _mm512_set1_epi32(1)), 23);
    const vi small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), e);
    return _mm512_castsi512_ps(
        _mm512_mask_blend_epi32(_mm512_cmpgt_epi32_mask(_mm512_set1_epi32(2), e), normal, small));
}

POT_INLINE vf vf_column(const uint8_t *line, const int bits, const int j) {
    if (bits == 32) return vf_load((const float *)(const void *)line);
    vi w = vi_line(line);
    if (bits == 16)
        return _mm512_castsi512_ps(j == 1 ? _mm512_and_si512(w, _mm512_set1_epi32((int)0xffff0000u))
                                          : _mm512_slli_epi32(w, 16));
    /* e4m3: the code to the top, then exponent and mantissa to where f32 has them; 2^120 mends the bias (exact). */
    if (j != 3) w = _mm512_slli_epi32(w, 24 - (unsigned)j * 8);
    w = _mm512_and_si512(_mm512_srai_epi32(w, 4), _mm512_set1_epi32((int)0x87f00000u));
    return _mm512_mul_ps(_mm512_castsi512_ps(w), _mm512_set1_ps(0x1p120f));
}

/* The fields of quad q as they are stored, one a byte. */
POT_INLINE vi quad_fields(const uint8_t *lines, const int q, const int bits) {
    const int per_byte = 8 / bits;
    const vi w = vi_line(lines + q / per_byte * POT_LINE_BYTES);
    if (bits == 8) return w;
    return _mm512_and_si512(_mm512_srli_epi16(w, (unsigned)(q % per_byte * bits)),
                            _mm512_set1_epi8((char)((1 << bits) - 1)));
}

POT_INLINE vi unsigned_codes(const uint8_t *lines, const int q, const int bits, const bool e2m1) {
    const vi w = quad_fields(lines, q, bits);
    if (e2m1) return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(e2m1_unsigned_halves()), w);
    return bits == 8 ? _mm512_xor_si512(w, _mm512_set1_epi8((char)0x80)) : w;
}

/* dot[t * R + r] += codes . x[r]; a quad of x is fetched once for all tiles. */
POT_INLINE void unsigned_dots(vi dot[], const uint8_t *const lines[], const int8_t *const x[], const int T, const int R,
                              const int bits, const bool e2m1, const bool panel) {
    POT_UNROLL
    for (int t = 0; t < T; t++)
        if (!panel) pot_prefetch_lines(lines[t], bits);
    POT_UNROLL
    for (int q = 0; q < POT_BLOCK / 4; q++) {
        vi w[4];
        POT_UNROLL
        for (int t = 0; t < T; t++)
            w[t] = panel ? vi_line(lines[t] + q * POT_LINE_BYTES) : unsigned_codes(lines[t], q, bits, e2m1);
        POT_UNROLL
        for (int r = 0; r < R; r++) {
            const vi quad = vi_set(four_codes(x[r] + 4 * q));
            POT_UNROLL
            for (int t = 0; t < T; t++) dot[t * R + r] = vi_dot4(dot[t * R + r], w[t], quad);
        }
    }
}

#endif
