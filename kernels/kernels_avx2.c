/* AVX2: there is no product of bytes that adds up in 32 bits; what stands in for it:
 *   codes of 2 and 4 bits  stay unsigned (v + offset) for maddubs; eight products of at most 15 * 128 * 2 fit 16 bits, of
 *                          MXFP4 (24 * 128 * 2) only four.
 *   codes of 8 bits        are widened to 16 bits, even and odd bytes apart; maddubs would saturate. */
#include "kernels/simd_avx2.h"

POT_INLINE __m256i dot4(__m256i acc, __m256i w, __m256i x) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
POT_INLINE vi vi_dot4(vi acc, vi w, vi x) { return (vi){dot4(acc.low, w.low, x.low), dot4(acc.high, w.high, x.high)}; }

POT_INLINE int zero_point(const int bits, const bool e2m1, const bool panel) {
    (void)panel;
    return e2m1 ? 12 : bits == 8 ? 0 : 1 << (bits - 1);
}

POT_INLINE __m256i even_bytes(__m256i w) { return _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8); }
POT_INLINE __m256i odd_bytes(__m256i w) { return _mm256_srai_epi16(w, 8); }

/* What block_dots reads of an unpacked block: small codes a byte each, a line a quad; int8 as 16 bits, a line's even bytes and
 * then its odd ones, half by half. */
POT_INLINE void unpack_block(uint8_t *panel, const uint8_t *lines, const int bits, const bool e2m1) {
    POT_UNROLL
    for (int q = 0; q < POT_BLOCK / 4; q++)
        POT_UNROLL
        for (int h = 0; h < 2; h++) {
            if (bits == 8) {
                __m256i w = load_bytes(lines + q * POT_LINE_BYTES + h * HALF);
                __m256i *out = (__m256i *)(void *)(panel + (2 * q + h) * POT_LINE_BYTES);
                _mm256_store_si256(out, even_bytes(w));
                _mm256_store_si256(out + 1, odd_bytes(w));
            } else {
                _mm256_store_si256((__m256i *)(void *)(panel + q * POT_LINE_BYTES + h * HALF),
                                   small_codes(lines, q, h, bits, e2m1));
            }
        }
}

POT_INLINE void dots_8bit(vi dot[], const uint8_t *lines, const int8_t *const x[], const int R, const bool panel) {
    int32_t even[8][POT_BLOCK / 4], odd[8][POT_BLOCK / 4]; /* two 16-bit codes each */
    POT_UNROLL
    for (int r = 0; r < R; r++) {
        __m256i codes = load_bytes(x[r]);
        _mm256_storeu_si256((__m256i *)even[r], even_bytes(codes));
        _mm256_storeu_si256((__m256i *)odd[r], odd_bytes(codes));
    }
    POT_UNROLL
    for (int q = 0; q < POT_BLOCK / 4; q++)
        POT_UNROLL
        for (int h = 0; h < 2; h++) {
            __m256i w_even, w_odd;
            if (panel) {
                w_even = load_bytes(lines + (2 * q + h) * POT_LINE_BYTES);
                w_odd = load_bytes(lines + (2 * q + h) * POT_LINE_BYTES + HALF);
            } else {
                __m256i w = load_bytes(lines + q * POT_LINE_BYTES + h * HALF);
                w_even = even_bytes(w);
                w_odd = odd_bytes(w);
            }
            POT_UNROLL
            for (int r = 0; r < R; r++) {
                __m256i a = _mm256_madd_epi16(w_even, _mm256_set1_epi32(even[r][q]));
                __m256i b = _mm256_madd_epi16(w_odd, _mm256_set1_epi32(odd[r][q]));
                __m256i *sum = h == 0 ? &dot[r].low : &dot[r].high;
                *sum = _mm256_add_epi32(*sum, _mm256_add_epi32(a, b));
            }
        }
}

POT_INLINE void dots_small(vi dot[], const uint8_t *lines, const int8_t *const x[], const int R, const int bits,
                           const bool e2m1, const bool panel) {
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i low[8], high[8]; /* sums in 16 bits */
    POT_UNROLL
    for (int r = 0; r < R; r++) low[r] = high[r] = _mm256_setzero_si256();
    POT_UNROLL
    for (int q = 0; q < POT_BLOCK / 4; q++) {
        __m256i w_low, w_high;
        if (panel) {
            w_low = load_bytes(lines + q * POT_LINE_BYTES);
            w_high = load_bytes(lines + q * POT_LINE_BYTES + HALF);
        } else {
            w_low = small_codes(lines, q, 0, bits, e2m1);
            w_high = small_codes(lines, q, 1, bits, e2m1);
        }
        POT_UNROLL
        for (int r = 0; r < R; r++) {
            const __m256i codes = _mm256_set1_epi32(four_codes(x[r] + 4 * q));
            low[r] = _mm256_add_epi16(low[r], _mm256_maddubs_epi16(w_low, codes));
            high[r] = _mm256_add_epi16(high[r], _mm256_maddubs_epi16(w_high, codes));
        }
        if (q == 7 || (e2m1 && q == 3))
            POT_UNROLL
            for (int r = 0; r < R; r++) {
                dot[r].low = _mm256_add_epi32(dot[r].low, _mm256_madd_epi16(low[r], ones));
                dot[r].high = _mm256_add_epi32(dot[r].high, _mm256_madd_epi16(high[r], ones));
                low[r] = high[r] = _mm256_setzero_si256();
            }
    }
}

POT_INLINE void block_dots(vi dot[], const uint8_t *const lines[], const int8_t *const x[], const int T, const int R,
                           const int bits, const bool e2m1, const bool panel) {
    POT_UNROLL
    for (int t = 0; t < T; t++) {
        if (bits == 8)
            dots_8bit(dot + t * R, lines[t], x, R, panel);
        else
            dots_small(dot + t * R, lines[t], x, R, bits, e2m1, panel);
    }
}

/* clang-format off: each needs what the one before it defines */
#include "kernels/simd_matmul.h"
#include "kernels/simd_rows.h"
#include "kernels/simd_probe.h"
/* clang-format on */

POT_SIMD_TABLE(avx2);
