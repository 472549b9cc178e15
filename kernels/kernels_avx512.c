/* AVX-512 with VNNI: unsigned codes times signed activations, four bytes a lane at once. */
#include "kernels/simd_avx512.h"

enum { FEW_TILES_4 = 2, TILES_MANY = 2, ROWS_MANY = 4, FLOAT_ROWS = 8 };

POT_INLINE void unpack_block(uint8_t *panel, const uint8_t *lines, const int bits, const bool e2m1) {
    POT_UNROLL
    for (int q = 0; q < POT_BLOCK / 4; q++)
        _mm512_store_si512((void *)(panel + q * POT_LINE_BYTES), unsigned_codes(lines, q, bits, e2m1));
}

POT_INLINE void block_dots(vi dot[], const uint8_t *const lines[], const int8_t *const x[], const int T, const int R,
                           const int bits, const bool e2m1, const bool panel) {
    unsigned_dots(dot, lines, x, T, R, bits, e2m1, panel);
}

#include "kernels/simd_table.h"

POT_SIMD_TABLE(avx512);
