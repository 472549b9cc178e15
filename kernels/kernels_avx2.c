/* AVX2: there is no product of bytes that adds up in 32 bits; what stands in for it:
 *   codes of 2 and 4 bits  stay unsigned (v + offset) for maddubs; eight products of at most 15 * 128 * 2 fit 16 bits, of
 *                          MXFP4 (24 * 128 * 2) only four.
 *   codes of 8 bits        would saturate: v + 128 is taken apart into two nibbles, each of them a code of 4 bits. */
#include "kernels/simd_avx2.h"

POT_INLINE __m256i dot4(__m256i acc, __m256i w, __m256i x) {
    return _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), _mm256_set1_epi16(1)));
}
POT_INLINE vi vi_dot4(vi acc, vi w, vi x) { return (vi){dot4(acc.low, w.low, x.low), dot4(acc.high, w.high, x.high)}; }

POT_INLINE __m256i low_nibbles(__m256i w) { return _mm256_and_si256(w, _mm256_set1_epi8(15)); }
POT_INLINE __m256i high_nibbles(__m256i w) { return low_nibbles(_mm256_srli_epi16(w, 4)); }

/* What block_dots reads of an unpacked block, a line a quad: small codes a byte each; of int8 the low nibbles of all quads, then the
 * high ones. */
POT_INLINE void unpack_block(uint8_t *panel, const uint8_t *lines, const int bits, const bool e2m1) {
    POT_UNROLL
    for (int q = 0; q < POT_BLOCK / 4; q++) {
        POT_UNROLL
        for (int h = 0; h < 2; h++) {
            uint8_t *out = panel + q * POT_LINE_BYTES + h * HALF;
            if (bits == 8) {
                const __m256i w = offset_bytes(lines + q * POT_LINE_BYTES + h * HALF);
                _mm256_store_si256((__m256i *)(void *)out, low_nibbles(w));
                _mm256_store_si256((__m256i *)(void *)(out + POT_BLOCK / 4 * POT_LINE_BYTES), high_nibbles(w));
            } else {
                _mm256_store_si256((__m256i *)(void *)out, small_codes(lines, q, h, bits, e2m1));
            }
        }
    }
}

/* Half a tile at a time: each row has two sums in 16 bits. */
POT_INLINE void dots_8bit(vi dot[], const uint8_t *lines, const int8_t *const x[], const int R, const bool panel) {
    POT_UNROLL
    for (int h = 0; h < 2; h++) {
        __m256i low[8], high[8];
        POT_UNROLL
        for (int r = 0; r < R; r++) low[r] = high[r] = _mm256_setzero_si256();
        POT_UNROLL
        for (int q = 0; q < POT_BLOCK / 4; q++) {
            const uint8_t *half = lines + q * POT_LINE_BYTES + h * HALF;
            __m256i w_low, w_high;
            if (panel) {
                w_low = load_bytes(half);
                w_high = load_bytes(half + POT_BLOCK / 4 * POT_LINE_BYTES);
            } else {
                const __m256i w = offset_bytes(half);
                w_low = low_nibbles(w);
                w_high = high_nibbles(w);
            }
            POT_UNROLL
            for (int r = 0; r < R; r++) {
                const __m256i codes = _mm256_set1_epi32(four_codes(x[r] + 4 * q));
                low[r] = _mm256_add_epi16(low[r], _mm256_maddubs_epi16(w_low, codes));
                high[r] = _mm256_add_epi16(high[r], _mm256_maddubs_epi16(w_high, codes));
            }
        }
        FORGET_LOADS();
        POT_UNROLL
        for (int r = 0; r < R; r++) {
            __m256i *sum = h == 0 ? &dot[r].low : &dot[r].high;
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(low[r], _mm256_set1_epi16(1)));
            *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(high[r], _mm256_set1_epi16(16)));
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
        if (q == 7 || (e2m1 && q == 3)) {
            POT_UNROLL
            for (int r = 0; r < R; r++) {
                dot[r].low = _mm256_add_epi32(dot[r].low, _mm256_madd_epi16(low[r], ones));
                dot[r].high = _mm256_add_epi32(dot[r].high, _mm256_madd_epi16(high[r], ones));
                low[r] = high[r] = _mm256_setzero_si256();
            }
        }
    }
}

POT_INLINE void block_dots(vi dot[], const uint8_t *const lines[], const int8_t *const x[], const int T, const int R,
                           const int bits, const bool e2m1, const bool panel) {
    POT_UNROLL
    for (int t = 0; t < T; t++) {
        if (!panel) pot_prefetch_lines(lines[t], bits);
        if (bits == 8)
            dots_8bit(dot + t * R, lines[t], x, R, panel);
        else
            dots_small(dot + t * R, lines[t], x, R, bits, e2m1, panel);
        if (T > 1) FORGET_LOADS();
    }
}

#include "kernels/simd_table.h"

POT_SIMD_TABLE(avx2);
