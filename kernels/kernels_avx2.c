/* AVX2 + FMA + F16C: eight output rows a register, so a line is two registers.
 *
 * The arithmetic per output is that of kernels_generic.c, operation for operation; only what is exact in any
 * order (integer block dots) is arranged for the instructions:
 *   codes of 2 and 4 bits  are kept unsigned (v + offset) for maddubs, and offset * sum(x) is taken off; eight
 *                          products of at most 15 * 128 * 2 fit 16 bits, of MXFP4 (24 * 128 * 2) only four.
 *   codes of 8 bits        are widened to 16 bits, even and odd bytes apart; maddubs would saturate.
 * Up to four activation rows share one unpacking of the weights (R).  With a single row the float formats take
 * up to four tiles at once (T), because one fmaf chain per output is bound by the latency of the fma. */
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/layout.h"
#include "kernels/tables.h"

enum { MAX_R = 4, MAX_T = 4, HALF = POT_LINE_BYTES / 2, LANES = 8 };

/* Four neighbouring codes of one activation row in every lane. */
POT_INLINE __m256i broadcast_quad(const int8_t *x) {
    int32_t quad;
    memcpy(&quad, x, sizeof quad);
    return _mm256_set1_epi32(quad);
}

POT_INLINE __m256i load_bytes(const void *at) { return _mm256_loadu_si256((const __m256i *)at); }

/* value[0], value[1]: rows 0-7 and 8-15 of a tile; n of them are stored. */
POT_INLINE void store_tile(float *y, const __m256 value[2], uint32_t n) {
    if (n >= POT_TILE_ROWS) {
        _mm256_storeu_ps(y, value[0]);
        _mm256_storeu_ps(y + LANES, value[1]);
        return;
    }
    float rows[POT_TILE_ROWS];
    _mm256_storeu_ps(rows, value[0]);
    _mm256_storeu_ps(rows + LANES, value[1]);
    memcpy(y, rows, n * sizeof *y);
}

POT_INLINE __m256 exponent_scales(const uint8_t *at) {
    /* 2^(e-128); e = 0 and 1 are subnormal numbers */
    __m256i e = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)at));
    __m256i normal = _mm256_slli_epi32(_mm256_sub_epi32(e, _mm256_set1_epi32(1)), 23);
    __m256i small = _mm256_sllv_epi32(_mm256_set1_epi32(0x00200000), e);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(normal, small, _mm256_cmpgt_epi32(_mm256_set1_epi32(2), e)));
}

POT_INLINE void read_scales(__m256 scale[2], const uint8_t *at, const int kind) {
    if (kind == POT_SCALE_F32) {
        scale[0] = _mm256_loadu_ps((const float *)(const void *)at);
        scale[1] = _mm256_loadu_ps((const float *)(const void *)(at + HALF));
    } else if (kind == POT_SCALE_F16) {
        scale[0] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)at));
        scale[1] = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(at + 16)));
    } else {
        scale[0] = exponent_scales(at);
        scale[1] = exponent_scales(at + LANES);
    }
}

/* ---- integer formats ---- */

/* offset * (sum of a block's 32 codes) in every lane */
POT_INLINE __m256i offset_sum(const int8_t *x, const int offset) {
    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8((char)offset), load_bytes(x));
    __m256i sum = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    sum = _mm256_add_epi32(sum, _mm256_permute2x128_si256(sum, sum, 1));
    sum = _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0x4e));
    return _mm256_add_epi32(sum, _mm256_shuffle_epi32(sum, 0xb1));
}

POT_INLINE void dots_8bit(__m256i dot[MAX_R][2], const uint8_t *lines, const int8_t *const x[MAX_R], const int R) {
    int32_t even[MAX_R][POT_BLOCK / 4], odd[MAX_R][POT_BLOCK / 4]; /* two 16-bit codes each */
    for (int i = 0; i < R; i++) {
        __m256i codes = load_bytes(x[i]);
        _mm256_storeu_si256((__m256i *)even[i], _mm256_srai_epi16(_mm256_slli_epi16(codes, 8), 8));
        _mm256_storeu_si256((__m256i *)odd[i], _mm256_srai_epi16(codes, 8));
        dot[i][0] = dot[i][1] = _mm256_setzero_si256();
    }
    for (int l = 0; l < 8; l++)
        for (int h = 0; h < 2; h++) {
            __m256i w = load_bytes(lines + l * POT_LINE_BYTES + h * HALF);
            __m256i w_even = _mm256_srai_epi16(_mm256_slli_epi16(w, 8), 8), w_odd = _mm256_srai_epi16(w, 8);
            for (int i = 0; i < R; i++) {
                __m256i a = _mm256_madd_epi16(w_even, _mm256_set1_epi32(even[i][l]));
                __m256i b = _mm256_madd_epi16(w_odd, _mm256_set1_epi32(odd[i][l]));
                dot[i][h] = _mm256_add_epi32(dot[i][h], _mm256_add_epi32(a, b));
            }
        }
}

/* Twice the value of each E2M1 code, plus 12. */
POT_INLINE __m256i e2m1_table(void) {
    return _mm256_broadcastsi128_si256(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
}

POT_INLINE void dots_small(__m256i dot[MAX_R][2], const uint8_t *lines, const int8_t *const x[MAX_R], const int R,
                           const int bits, const bool e2m1) {
    const int per_byte = 8 / bits;
    const __m256i mask = _mm256_set1_epi8((char)((1 << bits) - 1)), ones = _mm256_set1_epi16(1);
    __m256i sum[MAX_R][2];
    for (int i = 0; i < R; i++) {
        dot[i][0] = dot[i][1] = _mm256_sub_epi32(_mm256_setzero_si256(), offset_sum(x[i], e2m1 ? 12 : 1 << (bits - 1)));
        sum[i][0] = sum[i][1] = _mm256_setzero_si256();
    }
    for (int q = 0; q < POT_BLOCK / 4; q++) {
        const uint8_t *line = lines + q / per_byte * POT_LINE_BYTES;
        __m256i w[2];
        for (int h = 0; h < 2; h++) {
            w[h] = _mm256_and_si256(_mm256_srli_epi16(load_bytes(line + h * HALF), q % per_byte * bits), mask);
            if (e2m1) w[h] = _mm256_shuffle_epi8(e2m1_table(), w[h]);
        }
        for (int i = 0; i < R; i++) {
            __m256i quad = broadcast_quad(x[i] + 4 * q);
            for (int h = 0; h < 2; h++) sum[i][h] = _mm256_add_epi16(sum[i][h], _mm256_maddubs_epi16(w[h], quad));
        }
        if (q == 7 || (e2m1 && q == 3))
            for (int i = 0; i < R; i++)
                for (int h = 0; h < 2; h++) {
                    dot[i][h] = _mm256_add_epi32(dot[i][h], _mm256_madd_epi16(sum[i][h], ones));
                    sum[i][h] = _mm256_setzero_si256();
                }
    }
}

POT_INLINE void integer_tile(float *y, size_t y_stride, uint32_t count, const uint8_t *tile, const pot_matrix *w,
                             const pot_act_row *x, const int R, const int bits, const int kind,
                             const uint32_t blocks_per_group, const bool e2m1) {
    const uint32_t blocks = pot_blocks(w->cols);
    pot_walk walk = pot_walk_begin(w->phase);
    __m256 acc[MAX_R][2], scale[2];
    for (int i = 0; i < R; i++) acc[i][0] = acc[i][1] = _mm256_setzero_ps();
    scale[0] = scale[1] = _mm256_setzero_ps();
    if (blocks_per_group == 0) read_scales(scale, tile + pot_walk_lines(&walk, 1), kind);
    for (uint32_t b = 0; b < blocks; b++) {
        size_t at;
        if (blocks_per_group != 0 && pot_walk_group(&walk, &at, kind, blocks_per_group))
            read_scales(scale, tile + at, kind);
        const uint8_t *lines = tile + pot_walk_lines(&walk, (uint32_t)bits);
        const int8_t *codes[MAX_R];
        for (int i = 0; i < R; i++) codes[i] = x[i].codes + (size_t)b * POT_BLOCK;
        __m256i dot[MAX_R][2];
        if (bits == 8)
            dots_8bit(dot, lines, codes, R);
        else
            dots_small(dot, lines, codes, R, bits, e2m1);
        for (int i = 0; i < R; i++) {
            __m256 act_scale = _mm256_broadcast_ss(x[i].scales + b);
            for (int h = 0; h < 2; h++) {
                __m256 s = blocks_per_group == 0 ? act_scale : _mm256_mul_ps(scale[h], act_scale);
                acc[i][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[i][h]), s, acc[i][h]);
            }
        }
    }
    for (int i = 0; i < R; i++) {
        if (blocks_per_group == 0)
            for (int h = 0; h < 2; h++) acc[i][h] = _mm256_mul_ps(acc[i][h], scale[h]);
        store_tile(y + (size_t)i * y_stride, acc[i], count);
    }
}

/* ---- float formats ---- */

/* Rows 8h..8h+7 of column k of a block. */
POT_INLINE __m256 column(const uint8_t *lines, const int bits, const int k, const int h) {
    const int per_line = 32 / bits;
    const uint8_t *line = lines + k / per_line * POT_LINE_BYTES + h * HALF;
    if (bits == 32) return _mm256_loadu_ps((const float *)(const void *)line);
    __m256i w = load_bytes(line);
    if (bits == 16)
        return _mm256_castsi256_ps(k % 2 ? _mm256_and_si256(w, _mm256_set1_epi32((int)0xffff0000u))
                                         : _mm256_slli_epi32(w, 16));
    /* e4m3: the code to the top, then exponent and mantissa to where f32 has them; 2^120 mends the bias
     * (exact). */
    w = _mm256_srai_epi32(_mm256_slli_epi32(w, 24 - k % 4 * 8), 4);
    w = _mm256_and_si256(w, _mm256_set1_epi32((int)0x87f00000u));
    return _mm256_mul_ps(_mm256_castsi256_ps(w), _mm256_set1_ps(0x1p120f));
}

/* T tiles for R activation rows; T * R <= 4.  `count` rows of y are left from the first of them on. */
POT_INLINE void float_tiles(float *y, size_t y_stride, uint32_t count, const uint8_t *tile, const pot_matrix *w,
                            const pot_act_row *x, const int T, const int R, const int bits,
                            const uint32_t blocks_per_group) {
    const uint32_t blocks = pot_blocks(w->cols);
    pot_walk walk = pot_walk_begin(w->phase);
    __m256 acc[MAX_T][2], part[MAX_T][2];
    for (int i = 0; i < T * R; i++)
        for (int h = 0; h < 2; h++) acc[i][h] = part[i][h] = _mm256_setzero_ps();
    size_t scales = 0;
    for (uint32_t b = 0; b < blocks; b++) {
        if (blocks_per_group != 0) pot_walk_group(&walk, &scales, POT_SCALE_F32, blocks_per_group);
        const size_t lines = pot_walk_lines(&walk, (uint32_t)bits);
        for (int k = 0; k < POT_BLOCK; k++)
            for (int t = 0; t < T; t++)
                for (int h = 0; h < 2; h++) {
                    __m256 value = column(tile + (size_t)t * w->tile_stride + lines, bits, k, h);
                    for (int i = 0; i < R; i++) {
                        __m256 xk = _mm256_broadcast_ss(x[i].values + (size_t)b * POT_BLOCK + k);
                        __m256 *sum = blocks_per_group == 0 ? &acc[t * R + i][h] : &part[t * R + i][h];
                        *sum = _mm256_fmadd_ps(value, xk, *sum);
                    }
                }
        if (blocks_per_group != 0 && (walk.left == 0 || b + 1 == blocks))
            for (int t = 0; t < T; t++) {
                __m256 scale[2];
                read_scales(scale, tile + (size_t)t * w->tile_stride + scales, POT_SCALE_F32);
                for (int i = t * R; i < (t + 1) * R; i++)
                    for (int h = 0; h < 2; h++) {
                        acc[i][h] = _mm256_fmadd_ps(part[i][h], scale[h], acc[i][h]);
                        part[i][h] = _mm256_setzero_ps();
                    }
            }
    }
    for (int t = 0; t < T; t++)
        for (int i = 0; i < R; i++)
            store_tile(y + (size_t)i * y_stride + (size_t)t * POT_TILE_ROWS, acc[t * R + i],
                       count < (uint32_t)t * POT_TILE_ROWS ? 0 : count - (uint32_t)t * POT_TILE_ROWS);
}

/* ---- products ---- */

/* T tiles from `tile` on, R activation rows. */
POT_INLINE void run_tiles(float *y, size_t y_stride, const pot_matrix *w, uint32_t tile, const pot_act_row *x,
                          const int T, const int R, const pot_codes codes, const int bits, const int kind,
                          const uint32_t blocks_per_group) {
    const uint8_t *data = w->data + tile * w->tile_stride;
    const uint32_t first = tile * POT_TILE_ROWS, count = w->rows - first;
    if (codes == POT_CODES_FLOAT)
        float_tiles(y + first, y_stride, count, data, w, x, T, R, bits, blocks_per_group);
    else
        integer_tile(y + first, y_stride, count, data, w, x, R, bits, kind, blocks_per_group, codes == POT_CODES_E2M1);
}

/* A few tiles outside, all rows inside: weights come from memory once. */
POT_INLINE void run(float *y, size_t y_stride, const pot_matrix *w, uint32_t tile_begin, uint32_t tile_end,
                    const pot_act_row *x, uint32_t n, const pot_codes codes, const int bits, const int kind,
                    const uint32_t blocks_per_group) {
    const uint32_t wide = codes == POT_CODES_FLOAT ? MAX_T : 1;
    for (uint32_t t = tile_begin, step; t < tile_end; t += step) {
        step = tile_end - t >= wide ? wide : 1;
        uint32_t i = 0;
        for (; n - i >= 4; i += 4)
            for (uint32_t s = 0; s < step; s++)
                run_tiles(y + i * y_stride, y_stride, w, t + s, x + i, 1, 4, codes, bits, kind, blocks_per_group);
        if (n - i >= 2) {
            for (uint32_t s = 0; s < step; s++)
                run_tiles(y + i * y_stride, y_stride, w, t + s, x + i, 1, 2, codes, bits, kind, blocks_per_group);
            i += 2;
        }
        if (n - i == 0) continue;
        if (step == MAX_T)
            run_tiles(y + i * y_stride, y_stride, w, t, x + i, MAX_T, 1, codes, bits, kind, blocks_per_group);
        else
            run_tiles(y + i * y_stride, y_stride, w, t, x + i, 1, 1, codes, bits, kind, blocks_per_group);
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

/* Lanes of the last, incomplete register of an array of n. */
POT_INLINE __m256i tail_mask(uint32_t n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

/* pot_expf, eight at a time */
POT_INLINE __m256 exp8(__m256 x) {
    /* min and max give the second operand when one is NaN: a NaN stays. */
    x = _mm256_max_ps(_mm256_set1_ps(-87.33654f), x);
    x = _mm256_min_ps(_mm256_set1_ps(88.37626f), x);
    __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(1.44269504088896341f)),
                               _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-0.693359375f), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(2.12194440e-4f), r);
    __m256 p = _mm256_set1_ps(1.9875691500e-4f);
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.3981999507e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(8.3334519073e-3f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(4.1665795894e-2f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.6666665459e-1f));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(5.0000001201e-1f));
    __m256 y = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
    __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_mul_ps(y, _mm256_castsi256_ps(power));
}

POT_INLINE __m256 swiglu8(__m256 g, __m256 u) {
    const __m256 one = _mm256_set1_ps(1.0f);
    __m256 e = exp8(_mm256_xor_ps(g, _mm256_set1_ps(-0.0f)));
    return _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(one, e)), u);
}

static void swiglu(float *h, const float *g, const float *u, uint32_t n) {
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) _mm256_storeu_ps(h + i, swiglu8(_mm256_loadu_ps(g + i), _mm256_loadu_ps(u + i)));
    const __m256i mask = tail_mask(n - i);
    if (i < n)
        _mm256_maskstore_ps(h + i, mask, swiglu8(_mm256_maskload_ps(g + i, mask), _mm256_maskload_ps(u + i, mask)));
}

static void exp_minus(float *y, const float *x, float max, uint32_t n) {
    const __m256 m = _mm256_set1_ps(max);
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) _mm256_storeu_ps(y + i, exp8(_mm256_sub_ps(_mm256_loadu_ps(x + i), m)));
    const __m256i mask = tail_mask(n - i);
    if (i < n) _mm256_maskstore_ps(y + i, mask, exp8(_mm256_sub_ps(_mm256_maskload_ps(x + i, mask), m)));
}

static void axpy(float *y, float a, const float *x, uint32_t n) {
    const __m256 factor = _mm256_set1_ps(a);
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES)
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(factor, _mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i)));
    const __m256i mask = tail_mask(n - i);
    if (i < n)
        _mm256_maskstore_ps(y + i, mask,
                            _mm256_fmadd_ps(factor, _mm256_maskload_ps(x + i, mask), _mm256_maskload_ps(y + i, mask)));
}

/* `wide` registers of heads at once, so that as many fma chains run side by side. */
POT_INLINE void heads_dot_wide(float *out, const float *q, size_t stride, const float *k, uint32_t dims,
                               const int wide) {
    __m256 sum[4];
    for (int j = 0; j < wide; j++) sum[j] = _mm256_loadu_ps(out + LANES * j);
    for (uint32_t d = 0; d < dims; d++) {
        __m256 key = _mm256_broadcast_ss(k + d);
        for (int j = 0; j < wide; j++)
            sum[j] = _mm256_fmadd_ps(_mm256_loadu_ps(q + d * stride + LANES * (size_t)j), key, sum[j]);
    }
    for (int j = 0; j < wide; j++) _mm256_storeu_ps(out + LANES * j, sum[j]);
}

static void heads_dot(float *out, const float *q, size_t stride, const float *k, uint32_t dims, uint32_t heads) {
    uint32_t h = 0;
    for (; heads - h >= 4 * LANES; h += 4 * LANES) heads_dot_wide(out + h, q + h, stride, k, dims, 4);
    for (; heads - h >= LANES; h += LANES) heads_dot_wide(out + h, q + h, stride, k, dims, 1);
    if (h == heads) return;
    const __m256i mask = tail_mask(heads - h);
    __m256 sum = _mm256_maskload_ps(out + h, mask);
    for (uint32_t d = 0; d < dims; d++)
        sum = _mm256_fmadd_ps(_mm256_maskload_ps(q + d * stride + h, mask), _mm256_broadcast_ss(k + d), sum);
    _mm256_maskstore_ps(out + h, mask, sum);
}

static void bf16_to_f32(float *y, const uint16_t *x, uint32_t n) {
    uint32_t i = 0;
    for (; n - i >= LANES; i += LANES) {
        __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(x + i)));
        _mm256_storeu_ps(y + i, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
    }
    for (; i < n; i++) {
        uint32_t bits = (uint32_t)x[i] << 16;
        memcpy(y + i, &bits, sizeof bits);
    }
}

/* One block; false when an element is not finite. */
POT_INLINE bool quantize_block(int8_t *codes, float *scale, const float *x) {
    const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 v[4], top = _mm256_setzero_ps(), bad = _mm256_setzero_ps();
    for (int j = 0; j < 4; j++) {
        v[j] = _mm256_loadu_ps(x + LANES * j);
        __m256 a = _mm256_and_ps(v[j], no_sign);
        top = _mm256_max_ps(top, a);
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(a, _mm256_set1_ps(INFINITY), _CMP_NLT_UQ));
    }
    if (_mm256_movemask_ps(bad)) return false;
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(top), _mm256_extractf128_ps(top, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    float amax = _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
    if (amax < 0x1p-100f) {
        *scale = 0.0f;
        _mm256_storeu_si256((__m256i *)codes, _mm256_setzero_si256());
        return true;
    }
    *scale = amax / 127.0f;
    const __m256 divisor = _mm256_set1_ps(*scale);
    __m256i q[4];
    for (int j = 0; j < 4; j++) q[j] = _mm256_cvtps_epi32(_mm256_div_ps(v[j], divisor)); /* rounds as rint does */
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    /* the packs work in halves of a register */
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_storeu_si256((__m256i *)codes, bytes);
    return true;
}

static bool quantize(int8_t *codes, float *scales, const float *x, uint32_t blocks) {
    bool finite = true;
    for (uint32_t b = 0; b < blocks; b++)
        finite &= quantize_block(codes + (size_t)b * POT_BLOCK, scales + b, x + (size_t)b * POT_BLOCK);
    return finite;
}

/* Four values that are all below 2^51 become integers by adding 1.5 * 2^52; larger ones are left to the
 * generic kernel. */
static bool grid_add(int64_t *acc, const float *v, float weight, uint32_t n, int grid) {
    const __m256d unit = _mm256_set1_pd(ldexp(1.0, grid)), magic = _mm256_set1_pd(0x1.8p52);
    const __m256d limit = _mm256_set1_pd(0x1p51), no_sign = _mm256_castsi256_pd(_mm256_set1_epi64x(INT64_MAX));
    uint32_t i = 0;
    for (; n - i >= 4; i += 4) {
        __m128 weighted = _mm_mul_ps(_mm_loadu_ps(v + i), _mm_set1_ps(weight));
        __m256d scaled = _mm256_mul_pd(_mm256_cvtps_pd(weighted), unit);
        __m256d large = _mm256_cmp_pd(_mm256_and_pd(scaled, no_sign), limit, _CMP_NLT_UQ);
        if (_mm256_movemask_pd(large)) {
            if (!pot_kernels_generic.grid_add(acc + i, v + i, weight, 4, grid)) return false;
            continue;
        }
        __m256i q = _mm256_sub_epi64(_mm256_castpd_si256(_mm256_add_pd(scaled, magic)), _mm256_castpd_si256(magic));
        __m256i *at = (__m256i *)(void *)(acc + i);
        _mm256_storeu_si256(at, _mm256_add_epi64(_mm256_loadu_si256(at), q));
    }
    return n == i || pot_kernels_generic.grid_add(acc + i, v + i, weight, n - i, grid);
}

const pot_kernels pot_kernels_avx2 = {
    .name = "avx2",
#define X(format, name, codes, bits, scale, group) .matmul[POT_FORMAT_##format] = matmul_##format,
    POT_FORMAT_MAP(X)
#undef X
        .quantize = quantize,
    .swiglu = swiglu,
    .grid_add = grid_add,
    .heads_dot = heads_dot,
    .axpy = axpy,
    .exp_minus = exp_minus,
    .bf16_to_f32 = bf16_to_f32,
};
