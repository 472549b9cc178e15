/* AMX for many rows, AVX-512 for few.
 *
 * A block of 32 columns is one step of the tile unit: 16 activation rows x 32 codes (signed) times a panel of 8 lines, which is
 * laid out as the unit wants its second operand, gives 16 x 16 dots; the float chain goes on in AVX-512.  Rows beyond the last
 * whole sixteen are copies (simd_matmul.h).  Both operands are signed, so nothing needs a zero point. */
#include "kernels/simd_avx512.h"

enum { FEW_TILES_4 = 2, TILES_MANY = 4, ROWS_MANY = 16, FLOAT_ROWS = 8 };

/* Signed codes, a line a quad. */
POT_INLINE void unpack_block(uint8_t *panel, const uint8_t *lines, const int bits, const bool e2m1) {
    POT_UNROLL
    for (int q = 0; q < POT_BLOCK / 4; q++) {
        vi w = quad_fields(lines, q, bits);
        if (e2m1)
            w = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(e2m1_signed_halves()), w);
        else if (bits != 8)
            w = _mm512_sub_epi8(w, _mm512_set1_epi8((char)(1 << (bits - 1))));
        _mm512_store_si512((void *)(panel + q * POT_LINE_BYTES), w);
    }
}

/* Tile registers: 0 and 1 dots, 2 and 3 activations, 4 and 5 weights; two of each, so that one block's dots are computed while
 * the other's are read. */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

static const tile_config CONFIG = {
    .palette = 1,
    .row_bytes = {64, 64, POT_BLOCK, POT_BLOCK, 64, 64},
    .rows = {16, 16, 16, 16, POT_BLOCK / 4, POT_BLOCK / 4},
};

#define MANY_ROWS_BEGIN() _tile_loadconfig(&CONFIG)
#define MANY_ROWS_END() _tile_release()
#define OWN_PANEL_ROWS

POT_INLINE void block_dots(vi dot[], const uint8_t *const lines[], const int8_t *const x[], const int T, const int R,
                           const int bits, const bool e2m1, const bool panel) {
    (void)panel;
    unsigned_dots(dot, lines, x, T, R, bits, e2m1, false);
}

#include "kernels/simd_matmul.h"

/* out = dots of 16 rows and one tile for one block; the registers are named in the instruction. */
#define TILE_DOTS(d, a, b, out, codes, lines)  \
    do {                                       \
        _tile_loadd(a, codes, POT_BLOCK);      \
        _tile_loadd(b, lines, POT_LINE_BYTES); \
        _tile_zero(d);                         \
        _tile_dpbssd(d, a, b);                 \
        _tile_stored(d, out, POT_LINE_BYTES);  \
    } while (0)

static void panel_rows(float *acc, const integer_panel *panel, const pot_act_row *x, uint32_t begin, uint32_t n,
                       const int T, const int R, const int bits, const bool grouped, const bool e2m1) {
    _Alignas(64) int8_t codes[PANEL_BLOCKS][ROWS_MANY][POT_BLOCK]; /* rows lie anywhere: gathered once for all tiles */
    (void)bits;
    (void)e2m1;
    for (uint32_t b = 0; b < n; b++)
        for (int r = 0; r < R; r++)
            _mm256_store_si256((__m256i *)(void *)codes[b][r],
                               load_bytes(x[r].codes + (size_t)(begin + b) * POT_BLOCK));
    for (int t = 0; t < T; t++, acc += ROWS_MANY * POT_TILE_ROWS) {
        vf sum[ROWS_MANY];
        POT_UNROLL
        for (int r = 0; r < ROWS_MANY; r++) sum[r] = begin == 0 ? vf_zero() : vf_load(acc + r * POT_TILE_ROWS);
        for (uint32_t b = 0; b < n; b++) {
            _Alignas(64) int32_t dots[ROWS_MANY][POT_TILE_ROWS];
            if (b % 2 == 0)
                TILE_DOTS(0, 2, 4, dots, codes[b], panel->codes[t][b]);
            else
                TILE_DOTS(1, 3, 5, dots, codes[b], panel->codes[t][b]);
            const vf scale = grouped ? vf_load(panel->scales[t][b]) : vf_set(1.0f);
            POT_UNROLL
            for (int r = 0; r < ROWS_MANY; r++) {
                const vf act_scale = vf_set(x[r].scales[begin + b]);
                const vf s = grouped ? vf_mul(scale, act_scale) : act_scale;
                sum[r] = vf_fma(vf_from_vi(_mm512_load_si512((const void *)dots[r])), s, sum[r]);
            }
        }
        POT_UNROLL
        for (int r = 0; r < ROWS_MANY; r++) vf_store(acc + r * POT_TILE_ROWS, sum[r]);
    }
}

#include "kernels/simd_table.h"

POT_SIMD_TABLE(amx);
