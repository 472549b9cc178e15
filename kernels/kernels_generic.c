/* The kernels in plain C: they define what every other table must give, bit for bit.
 *
 * A product runs tile by tile and, in a tile, for up to ROWS activation rows at a time, so that a block of
 * weights is unpacked once for all of them.  Per output there is one accumulator; it takes the blocks (or
 * elements) in ascending order with one fmaf each.  The loops over outputs are innermost and of constant
 * length: the compiler may turn them into vectors, which does not change the order of anything.
 *
 * The bodies are written once and specialised by the constants of POT_FORMAT_MAP. */
#include "kernels/kernels.h"

#include <math.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/layout.h"
#include "kernels/math.h"
#include "kernels/tables.h"

enum { ROWS = 8, QUADS = POT_BLOCK / 4, QUAD_CODES = 4 * POT_TILE_ROWS };

static void store_rows(float *y, size_t y_stride, const pot_matrix *w, uint32_t tile, float value[ROWS][POT_TILE_ROWS],
                       uint32_t n) {
    uint32_t first = tile * POT_TILE_ROWS, count = w->rows - first;
    if (count > POT_TILE_ROWS) count = POT_TILE_ROWS;
    for (uint32_t i = 0; i < n; i++) memcpy(y + i * y_stride + first, value[i], count * sizeof(float));
}

POT_INLINE void read_scales(float scale[POT_TILE_ROWS], const uint8_t *at, const int kind) {
    for (int r = 0; r < POT_TILE_ROWS; r++) {
        if (kind == POT_SCALE_F32) {
            memcpy(&scale[r], at + 4 * r, 4);
        } else if (kind == POT_SCALE_F16) {
            uint16_t half;
            memcpy(&half, at + 2 * r, 2);
            scale[r] = pot_f32_from_f16(half);
        } else {
            /* 2^(e-128): E2M1 counts in halves.  Below e = 2 this is a subnormal number. */
            scale[r] = pot_f32_from_bits(at[r] < 2 ? 0x00200000u << at[r] : (uint32_t)(at[r] - 1) << 23);
        }
    }
}

/* ---- integer formats ---- */

static const int16_t E2M1_HALVES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

/* A block of weights as integers: code[q][r*4+j] is row r, column 4q+j.  With `bits` a code, one line holds
 * 8/bits quads. */
POT_INLINE void unpack_codes(int16_t code[QUADS][QUAD_CODES], const uint8_t *lines, const int bits, const bool e2m1) {
    const int per_byte = 8 / bits;
    for (int q = 0; q < QUADS; q++) {
        const uint8_t *line = lines + q / per_byte * POT_LINE_BYTES;
        const int shift = q % per_byte * bits;
        for (int e = 0; e < QUAD_CODES; e++) {
            unsigned field = (unsigned)(line[e] >> shift) & ((1u << bits) - 1u);
            if (bits == 8)
                code[q][e] = (int16_t)((int)(field ^ 0x80u) - 0x80);
            else if (e2m1)
                code[q][e] = E2M1_HALVES[field];
            else
                code[q][e] = (int16_t)((int)field - (1 << (bits - 1)));
        }
    }
}

/* Exact, so the order of these additions does not matter. */
static void dot_block(int32_t dot[POT_TILE_ROWS], int16_t code[QUADS][QUAD_CODES], const int8_t *x) {
    int32_t sum[QUAD_CODES] = {0};
    for (int q = 0; q < QUADS; q++) {
        int16_t repeated[QUAD_CODES];
        for (int e = 0; e < QUAD_CODES; e++) repeated[e] = (int16_t)x[4 * q + e % 4];
        for (int e = 0; e < QUAD_CODES; e++) sum[e] += code[q][e] * repeated[e];
    }
    for (int r = 0; r < POT_TILE_ROWS; r++) dot[r] = sum[4 * r] + sum[4 * r + 1] + sum[4 * r + 2] + sum[4 * r + 3];
}

POT_INLINE void integer_tile(float acc[ROWS][POT_TILE_ROWS], const uint8_t *tile, const pot_matrix *w,
                             const pot_act_row *x, uint32_t n, const int bits, const int kind,
                             const uint32_t blocks_per_group, const bool e2m1) {
    uint32_t blocks = pot_blocks(w->cols);
    pot_walk walk = pot_walk_begin(w->phase);
    float scale[POT_TILE_ROWS];
    if (blocks_per_group == 0) read_scales(scale, tile + pot_walk_lines(&walk, 1), kind);
    for (uint32_t b = 0; b < blocks; b++) {
        size_t at;
        if (blocks_per_group != 0 && pot_walk_group(&walk, &at, kind, blocks_per_group))
            read_scales(scale, tile + at, kind);
        int16_t code[QUADS][QUAD_CODES];
        unpack_codes(code, tile + pot_walk_lines(&walk, (uint32_t)bits), bits, e2m1);
        for (uint32_t i = 0; i < n; i++) {
            int32_t dot[POT_TILE_ROWS];
            dot_block(dot, code, x[i].codes + (size_t)b * POT_BLOCK);
            float act_scale = x[i].scales[b];
            for (int r = 0; r < POT_TILE_ROWS; r++) {
                float s = blocks_per_group == 0 ? act_scale : scale[r] * act_scale;
                acc[i][r] = fmaf((float)dot[r], s, acc[i][r]);
            }
        }
    }
    if (blocks_per_group == 0)
        for (uint32_t i = 0; i < n; i++)
            for (int r = 0; r < POT_TILE_ROWS; r++) acc[i][r] *= scale[r];
}

/* ---- float formats ---- */

POT_INLINE void unpack_values(float value[POT_BLOCK][POT_TILE_ROWS], const uint8_t *lines, const int bits) {
    const int per_line = 32 / bits; /* columns */
    for (int k = 0; k < POT_BLOCK; k++) {
        const uint8_t *at = lines + k / per_line * POT_LINE_BYTES + k % per_line * (bits / 8);
        for (int r = 0; r < POT_TILE_ROWS; r++) {
            if (bits == 32) {
                memcpy(&value[k][r], at + 4 * r, 4);
            } else if (bits == 16) {
                uint16_t half;
                memcpy(&half, at + 4 * r, 2);
                value[k][r] = pot_f32_from_bf16(half);
            } else {
                value[k][r] = pot_f32_from_e4m3(at[4 * r]);
            }
        }
    }
}

/* acc takes the elements themselves, or (fp8) the sums `part` over the columns that share a scale. */
POT_INLINE void float_tile(float acc[ROWS][POT_TILE_ROWS], const uint8_t *tile, const pot_matrix *w,
                           const pot_act_row *x, uint32_t n, const int bits, const uint32_t blocks_per_group) {
    uint32_t blocks = pot_blocks(w->cols);
    pot_walk walk = pot_walk_begin(w->phase);
    float scale[POT_TILE_ROWS], part[ROWS][POT_TILE_ROWS] = {{0}};
    float(*sum)[POT_TILE_ROWS] = blocks_per_group == 0 ? acc : part;
    for (uint32_t b = 0; b < blocks; b++) {
        size_t at;
        if (blocks_per_group != 0 && pot_walk_group(&walk, &at, POT_SCALE_F32, blocks_per_group))
            read_scales(scale, tile + at, POT_SCALE_F32);
        float value[POT_BLOCK][POT_TILE_ROWS];
        unpack_values(value, tile + pot_walk_lines(&walk, (uint32_t)bits), bits);
        for (uint32_t i = 0; i < n; i++) {
            const float *xb = x[i].values + (size_t)b * POT_BLOCK;
            for (int k = 0; k < POT_BLOCK; k++)
                for (int r = 0; r < POT_TILE_ROWS; r++) sum[i][r] = fmaf(value[k][r], xb[k], sum[i][r]);
        }
        if (blocks_per_group != 0 && (walk.left == 0 || b + 1 == blocks)) {
            for (uint32_t i = 0; i < n; i++)
                for (int r = 0; r < POT_TILE_ROWS; r++) {
                    acc[i][r] = fmaf(part[i][r], scale[r], acc[i][r]);
                    part[i][r] = 0.0f;
                }
        }
    }
}

POT_INLINE void run(float *y, size_t y_stride, const pot_matrix *w, uint32_t tile_begin, uint32_t tile_end,
                    const pot_act_row *x, uint32_t n, const pot_codes codes, const int bits, const int kind,
                    const uint32_t blocks_per_group) {
    for (uint32_t t = tile_begin; t < tile_end; t++)
        for (uint32_t i = 0; i < n; i += ROWS) {
            const uint8_t *tile = w->data + t * w->tile_stride;
            uint32_t count = n - i < ROWS ? n - i : ROWS;
            float acc[ROWS][POT_TILE_ROWS] = {{0}};
            if (codes == POT_CODES_FLOAT)
                float_tile(acc, tile, w, x + i, count, bits, blocks_per_group);
            else
                integer_tile(acc, tile, w, x + i, count, bits, kind, blocks_per_group, codes == POT_CODES_E2M1);
            store_rows(y + i * y_stride, y_stride, w, t, acc, count);
        }
}

#define X(format, name, codes, bits, scale, group)                                                          \
    static void matmul_##format(float *y, size_t y_stride, const pot_matrix *w, uint32_t tile_begin,        \
                                uint32_t tile_end, const pot_act_row *x, uint32_t n) {                      \
        run(y, y_stride, w, tile_begin, tile_end, x, n, POT_CODES_##codes, bits, POT_SCALE_##scale, group); \
    }
POT_FORMAT_MAP(X)
#undef X

/* ---- rows ---- */

static int32_t block_sum(const int8_t *codes) {
    int32_t sum = 0;
    for (int k = 0; k < POT_BLOCK; k++) sum += codes[k];
    return sum;
}

static void block_sums(int32_t *sums, const int8_t *codes, uint32_t blocks) {
    for (uint32_t b = 0; b < blocks; b++) sums[b] = block_sum(codes + (size_t)b * POT_BLOCK);
}

static bool quantize(int8_t *codes, float *scales, int32_t *sums, const float *x, uint32_t blocks) {
    bool finite = true;
    for (uint32_t b = 0; b < blocks; b++, x += POT_BLOCK, codes += POT_BLOCK) {
        uint32_t largest = 0; /* magnitudes of floats are ordered as their bits are */
        for (int k = 0; k < POT_BLOCK; k++) {
            uint32_t magnitude = pot_f32_bits(x[k]) & 0x7fffffffu;
            largest = magnitude > largest ? magnitude : largest;
        }
        if (largest >= 0x7f800000u) {
            finite = false;
            continue;
        }
        float amax = pot_f32_from_bits(largest);
        scales[b] = amax < 0x1p-100f ? 0.0f : amax / 127.0f;
        /* Quotients stay below 128, so adding 1.5 * 2^23 rounds them to whole numbers, ties to even, as rint
         * does. */
        for (int k = 0; k < POT_BLOCK; k++)
            codes[k] = (int8_t)(scales[b] == 0.0f ? 0.0f : (x[k] / scales[b] + 0x1.8p23f) - 0x1.8p23f);
        sums[b] = block_sum(codes);
    }
    return finite;
}

static void swiglu(float *h, const float *g, const float *u, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) h[i] = pot_swiglu(g[i], u[i]);
}

static bool grid_add(int64_t *acc, const float *v, float weight, uint32_t n, int grid) {
    const double unit = ldexp(1.0, grid);
    for (uint32_t i = 0; i < n; i++) {
        float weighted = v[i] * weight;
        double scaled = (double)weighted * unit;
        if (!(fabs(scaled) < 0x1p62)) return false;
        /* Unsigned: sums that wrap are still free of order, and not undefined. */
        acc[i] = (int64_t)((uint64_t)acc[i] + (uint64_t)(int64_t)rint(scaled));
    }
    return true;
}

static void bf16_to_f32(float *y, const uint16_t *x, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) y[i] = pot_f32_from_bf16(x[i]);
}

/* ---- attention ---- */

static void attention_scores(float *out, const float *q, const float *keys, size_t stride, uint32_t n, uint32_t dims) {
    for (uint32_t t = 0; t < n; t++, out += POT_LANES, keys += stride) {
        float sum[POT_LANES] = {0};
        for (uint32_t d = 0; d < dims; d++)
            for (int h = 0; h < POT_LANES; h++) sum[h] = fmaf(q[(size_t)d * POT_LANES + (size_t)h], keys[d], sum[h]);
        memcpy(out, sum, sizeof sum);
    }
}

static void attention_softmax(float *p, float *top, float *sum, const float *scores, float scale, uint32_t n) {
    for (int h = 0; h < POT_LANES; h++) {
        top[h] = scores[h] * scale;
        for (uint32_t t = 1; t < n; t++) {
            float s = scores[(size_t)t * POT_LANES + (size_t)h] * scale;
            top[h] = s > top[h] ? s : top[h];
        }
        sum[h] = 0;
        for (uint32_t t = 0; t < n; t++) {
            size_t at = (size_t)t * POT_LANES + (size_t)h;
            p[at] = pot_expf(scores[at] * scale - top[h]);
            sum[h] += p[at];
        }
    }
}

static void attention_values(float *out, const float *p, const float *keys, size_t stride, uint32_t n, uint32_t dims) {
    for (uint32_t d = 0; d < dims; d++, out += POT_LANES) {
        float sum[POT_LANES] = {0};
        for (uint32_t t = 0; t < n; t++)
            for (int h = 0; h < POT_LANES; h++)
                sum[h] = fmaf(p[(size_t)t * POT_LANES + (size_t)h], keys[t * stride + d], sum[h]);
        memcpy(out, sum, sizeof sum);
    }
}

static void attention_merge(float *values, const float *block, const float *old_part, const float *block_part,
                            uint32_t dims) {
    for (uint32_t d = 0; d < dims; d++, values += POT_LANES, block += POT_LANES)
        for (int h = 0; h < POT_LANES; h++) values[h] = fmaf(block[h], block_part[h], values[h] * old_part[h]);
}

static bool index_scores(float *out, const float *q, const float *weights, float scale, const float *turned,
                         uint32_t heads, uint32_t dims) {
    bool finite = true;
    float sum[POT_LANES] = {0};
    for (uint32_t h = 0; h < heads; h++, q += dims) {
        float dot[POT_LANES] = {0};
        for (uint32_t d = 0; d < dims; d++)
            for (int t = 0; t < POT_LANES; t++) dot[t] = fmaf(q[d], turned[(size_t)d * POT_LANES + (size_t)t], dot[t]);
        for (int t = 0; t < POT_LANES; t++) {
            float s = dot[t] * scale;
            if (!isfinite(s)) finite = false; /* the comparison below would hide a NaN */
            sum[t] = fmaf(weights[h], s > 0 ? s : 0, sum[t]);
        }
    }
    for (int t = 0; t < POT_LANES; t++) finite &= isfinite(sum[t]) != 0;
    memcpy(out, sum, sizeof sum);
    return finite;
}

/* ---- for the benchmark ---- */

static uint64_t peak_int8(uint64_t rounds) {
    int32_t sum[QUAD_CODES] = {0};
    int16_t w = 3;
    for (uint64_t n = 0; n < rounds; n++) {
        __asm__ volatile("" : "+r"(w));
        for (int e = 0; e < QUAD_CODES; e++) sum[e] += w * (int16_t)e;
    }
    for (int e = 0; e < QUAD_CODES; e++) __asm__ volatile("" : "+r"(sum[e]));
    return rounds * QUAD_CODES * 2;
}

static uint64_t peak_float(uint64_t rounds) {
    float sum[POT_TILE_ROWS] = {0}, a = 0.5f;
    for (uint64_t n = 0; n < rounds; n++) {
        __asm__ volatile("" : "+m"(a));
        for (int r = 0; r < POT_TILE_ROWS; r++) sum[r] = fmaf(sum[r], a, 0.25f);
    }
    for (int r = 0; r < POT_TILE_ROWS; r++) __asm__ volatile("" : "+m"(sum[r]));
    return rounds * POT_TILE_ROWS * 2;
}

static uint32_t read_streams(const uint8_t *const stream[4], size_t bytes) {
    uint64_t sum = 0, word;
    for (size_t at = 0; at < bytes; at += sizeof word)
        for (int s = 0; s < 4; s++) {
            memcpy(&word, stream[s] + at, sizeof word);
            sum += word;
        }
    return (uint32_t)(sum ^ sum >> 32);
}

const pot_kernels pot_kernels_generic = {
    .name = "generic",
#define X(format, name, codes, bits, scale, group) .matmul[POT_FORMAT_##format] = matmul_##format,
    POT_FORMAT_MAP(X)
#undef X
        .quantize = quantize,
    .block_sums = block_sums,
    .swiglu = swiglu,
    .grid_add = grid_add,
    .bf16_to_f32 = bf16_to_f32,
    .rms_norm = pot_rms_norm,
    .attention_scores = attention_scores,
    .attention_softmax = attention_softmax,
    .attention_values = attention_values,
    .attention_merge = attention_merge,
    .index_scores = index_scores,
    .peak_int8 = peak_int8,
    .peak_float = peak_float,
    .read_streams = read_streams,
};
