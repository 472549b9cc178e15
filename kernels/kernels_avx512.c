/* AVX-512 with VNNI: unsigned codes times signed activations, four bytes a lane at once. */
#include "kernels/simd_avx512.h"

enum { FEW_TILES_4 = 2, TILES_MANY = 2, ROWS_MANY = 4, FLOAT_ROWS = 8 };

POT_INLINE int zero_point(const int bits, const bool e2m1, const bool panel) {
    (void)panel;
    return e2m1 ? 12 : 1 << (bits - 1);
}

POT_INLINE void unpack_block(uint8_t *panel, const uint8_t *lines, const int bits, const bool e2m1) {
    POT_UNROLL
    for (int q = 0; q < POT_BLOCK / 4; q++)
        _mm512_store_si512((void *)(panel + q * POT_LINE_BYTES), unsigned_codes(lines, q, bits, e2m1));
}

POT_INLINE void block_dots(vi dot[], const uint8_t *const lines[], const int8_t *const x[], const int T, const int R,
                           const int bits, const bool e2m1, const bool panel) {
    unsigned_dots(dot, lines, x, T, R, bits, e2m1, panel);
}

/* clang-format off: each needs what the one before it defines */
#include "kernels/simd_matmul.h"
#include "kernels/simd_probe.h"
#include "kernels/simd_rows.h"
/* clang-format on */

POT_SIMD_TABLE(avx512);
