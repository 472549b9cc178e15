/* AVX2 with AVX-VNNI: a product of four bytes that adds up in 32 bits, unsigned codes times signed activations. */
#include "kernels/simd_avx2.h"

POT_INLINE vi vi_dot4(vi acc, vi w, vi x) {
    return (vi){_mm256_dpbusd_avx_epi32(acc.low, w.low, x.low), _mm256_dpbusd_avx_epi32(acc.high, w.high, x.high)};
}

/* Unsigned codes of quad q, rows 8h..8h+7. */
POT_INLINE __m256i unsigned_codes(const uint8_t *lines, const int q, const int h, const int bits, const bool e2m1) {
    if (bits != 8) return small_codes(lines, q, h, bits, e2m1);
    return offset_bytes(lines + q * POT_LINE_BYTES + h * HALF);
}

POT_INLINE void unpack_block(uint8_t *panel, const uint8_t *lines, const int bits, const bool e2m1) {
    POT_UNROLL
    for (int q = 0; q < POT_BLOCK / 4; q++) {
        POT_UNROLL
        for (int h = 0; h < 2; h++)
            _mm256_store_si256((__m256i *)(void *)(panel + q * POT_LINE_BYTES + h * HALF),
                               unsigned_codes(lines, q, h, bits, e2m1));
    }
}

POT_INLINE void block_dots(vi dot[], const uint8_t *const lines[], const int8_t *const x[], const int T, const int R,
                           const int bits, const bool e2m1, const bool panel) {
    POT_UNROLL
    for (int t = 0; t < T; t++) {
        if (!panel) pot_prefetch_lines(lines[t], bits);
        POT_UNROLL
        for (int q = 0; q < POT_BLOCK / 4; q++) {
            vi w;
            if (panel)
                w = vi_line(lines[t] + q * POT_LINE_BYTES);
            else
                w = (vi){unsigned_codes(lines[t], q, 0, bits, e2m1), unsigned_codes(lines[t], q, 1, bits, e2m1)};
            POT_UNROLL
            for (int r = 0; r < R; r++) dot[t * R + r] = vi_dot4(dot[t * R + r], w, vi_set(four_codes(x[r] + 4 * q)));
        }
        if (T > 1) FORGET_LOADS();
    }
}

#include "kernels/simd_table.h"

POT_SIMD_TABLE(avxvnni);
