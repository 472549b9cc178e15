/* What is not a product, for every SIMD table, over the primitives of simd_matmul.h and these:
 *
 *   vf_abs(v) vf_neg(v) vf_min(a, b) vf_round(v) (to integers, ties to even) vf_power(n) (2^n of whole numbers in -126..127)
 *   vf_finite(v)                  whether all 16 are finite
 *   vf_widen_bf16(at)             16 bf16
 *   vf_store_codes(at, v)         whole numbers in -128..127 as int8
 *   block_sum(codes)              the sum of 32 int8
 *   grid_add_some(acc, v, weight, unit)   16 values; false, having done nothing, when one is 2^51 units or more
 *
 * vf_max and vf_min give the second operand when one of the two is NaN, as x86 does.  Arrays that are no multiple of 16 end in a
 * padded copy. */
#ifndef POT_KERNELS_SIMD_ROWS_H
#define POT_KERNELS_SIMD_ROWS_H

#include <math.h>

#include "kernels/math.h"
#include "kernels/tables.h"

/* The last n < 16 elements, zeros behind them. */
POT_INLINE vf load_tail(const float *x, uint32_t n) {
    float padded[POT_LANES] = {0};
    memcpy(padded, x, n * sizeof *x);
    return vf_load(padded);
}

POT_INLINE void store_tail(float *y, vf v, uint32_t n) {
    float padded[POT_LANES];
    vf_store(padded, v);
    memcpy(y, padded, n * sizeof *y);
}

/* pot_expf */
POT_INLINE vf vf_exp(vf x) {
    x = vf_max(vf_set(-87.33654f), x); /* a NaN stays */
    x = vf_min(vf_set(88.37626f), x);
    vf n = vf_round(vf_mul(x, vf_set(1.44269504088896341f)));
    vf r = vf_fma(n, vf_set(-0.693359375f), x);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_set(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    vf y = vf_add(vf_fma(p, vf_mul(r, r), r), vf_set(1.0f));
    return vf_mul(y, vf_power(n));
}

POT_INLINE vf vf_swiglu(vf g, vf u) { return vf_mul(vf_div(g, vf_add(vf_set(1.0f), vf_exp(vf_neg(g)))), u); }

static void swiglu(float *h, const float *g, const float *u, uint32_t n) {
    uint32_t i = 0;
    for (; n - i >= POT_LANES; i += POT_LANES) vf_store(h + i, vf_swiglu(vf_load(g + i), vf_load(u + i)));
    if (i < n) store_tail(h + i, vf_swiglu(load_tail(g + i, n - i), load_tail(u + i, n - i)), n - i);
}

static void block_sums(int32_t *sums, const int8_t *codes, uint32_t blocks) {
    for (uint32_t b = 0; b < blocks; b++) sums[b] = block_sum(codes + (size_t)b * POT_BLOCK);
}

POT_INLINE float largest_lane(vf v) {
    float lane[POT_LANES], top = 0;
    vf_store(lane, v);
    for (int i = 0; i < POT_LANES; i++) top = lane[i] > top ? lane[i] : top;
    return top;
}

static bool quantize(int8_t *codes, float *scales, int32_t *sums, const float *x, uint32_t blocks) {
    bool finite = true;
    for (uint32_t b = 0; b < blocks; b++, x += POT_BLOCK, codes += POT_BLOCK) {
        const vf low = vf_load(x), high = vf_load(x + POT_LANES);
        if (!vf_finite(low) || !vf_finite(high)) {
            finite = false;
            continue;
        }
        float amax = largest_lane(vf_max(vf_abs(low), vf_abs(high)));
        if (amax < 0x1p-100f) {
            scales[b] = 0.0f;
            sums[b] = 0;
            memset(codes, 0, POT_BLOCK);
            continue;
        }
        scales[b] = amax / 127.0f;
        const vf divisor = vf_set(scales[b]);
        vf_store_codes(codes, vf_round(vf_div(low, divisor)));
        vf_store_codes(codes + POT_LANES, vf_round(vf_div(high, divisor)));
        sums[b] = block_sum(codes);
    }
    return finite;
}

static bool grid_add(int64_t *acc, const float *v, float weight, uint32_t n, int grid) {
    const double unit = ldexp(1.0, grid);
    uint32_t i = 0;
    for (; n - i >= POT_LANES; i += POT_LANES)
        if (!grid_add_some(acc + i, v + i, weight, unit) &&
            !pot_kernels_generic.grid_add(acc + i, v + i, weight, POT_LANES, grid))
            return false;
    return n == i || pot_kernels_generic.grid_add(acc + i, v + i, weight, n - i, grid);
}

static void bf16_to_f32(float *y, const uint16_t *x, uint32_t n) {
    uint32_t i = 0;
    for (; n - i >= POT_LANES; i += POT_LANES) vf_store(y + i, vf_widen_bf16(x + i));
    if (i < n) pot_kernels_generic.bf16_to_f32(y + i, x + i, n - i);
}

static void rms_norm(float *y, const float *x, const float *weight, uint32_t n, float eps) {
    vf squares = vf_zero();
    uint32_t i = 0;
    for (; n - i >= POT_LANES; i += POT_LANES) squares = vf_fma(vf_load(x + i), vf_load(x + i), squares);
    if (i < n)
        squares = vf_fma(load_tail(x + i, n - i), load_tail(x + i, n - i), squares); /* + 0 * 0 changes nothing */
    float lane[POT_LANES];
    vf_store(lane, squares);
    const float one = 1.0f / sqrtf(pot_combine(lane) / (float)n + eps);
    const vf scale = vf_set(one);
    for (i = 0; n - i >= POT_LANES; i += POT_LANES)
        vf_store(y + i, vf_mul(vf_mul(vf_load(x + i), scale), vf_load(weight + i)));
    for (; i < n; i++) y[i] = x[i] * one * weight[i];
}

/* ---- attention: lanes are 16 heads, a key is broadcast ---- */

enum { CHAINS_AT_ONCE = 4 };

/* K keys side by side: as many fmaf chains. */
POT_INLINE void scores_of(float *out, const float *q, const float *keys, size_t stride, uint32_t dims, const int K) {
    vf sum[CHAINS_AT_ONCE];
    for (int t = 0; t < K; t++) sum[t] = vf_zero();
    for (uint32_t d = 0; d < dims; d++) {
        const vf query = vf_load(q + (size_t)d * POT_LANES);
        for (int t = 0; t < K; t++) sum[t] = vf_fma(query, vf_set(keys[(size_t)t * stride + d]), sum[t]);
    }
    for (int t = 0; t < K; t++) vf_store(out + (size_t)t * POT_LANES, sum[t]);
}

static void attention_scores(float *out, const float *q, const float *keys, size_t stride, uint32_t n, uint32_t dims) {
    uint32_t t = 0;
    for (; n - t >= CHAINS_AT_ONCE; t += CHAINS_AT_ONCE)
        scores_of(out + (size_t)t * POT_LANES, q, keys + t * stride, stride, dims, CHAINS_AT_ONCE);
    for (; t < n; t++) scores_of(out + (size_t)t * POT_LANES, q, keys + t * stride, stride, dims, 1);
}

static void attention_softmax(float *p, float *top, float *sum, const float *scores, float scale, uint32_t n) {
    const vf factor = vf_set(scale);
    vf most = vf_mul(vf_load(scores), factor), total = vf_zero();
    for (uint32_t t = 1; t < n; t++) most = vf_max(vf_mul(vf_load(scores + (size_t)t * POT_LANES), factor), most);
    for (uint32_t t = 0; t < n; t++) {
        vf e = vf_exp(vf_sub(vf_mul(vf_load(scores + (size_t)t * POT_LANES), factor), most));
        vf_store(p + (size_t)t * POT_LANES, e);
        total = vf_add(total, e);
    }
    vf_store(top, most);
    vf_store(sum, total);
}

/* D neighbouring dimensions side by side. */
POT_INLINE void values_of(float *out, const float *p, const float *keys, size_t stride, uint32_t n, const int D) {
    vf sum[CHAINS_AT_ONCE];
    for (int d = 0; d < D; d++) sum[d] = vf_zero();
    for (uint32_t t = 0; t < n; t++) {
        const vf weight = vf_load(p + (size_t)t * POT_LANES);
        for (int d = 0; d < D; d++) sum[d] = vf_fma(weight, vf_set(keys[t * stride + (size_t)d]), sum[d]);
    }
    for (int d = 0; d < D; d++) vf_store(out + (size_t)d * POT_LANES, sum[d]);
}

static void attention_values(float *out, const float *p, const float *keys, size_t stride, uint32_t n, uint32_t dims) {
    uint32_t d = 0;
    for (; dims - d >= CHAINS_AT_ONCE; d += CHAINS_AT_ONCE)
        values_of(out + (size_t)d * POT_LANES, p, keys + d, stride, n, CHAINS_AT_ONCE);
    for (; d < dims; d++) values_of(out + (size_t)d * POT_LANES, p, keys + d, stride, n, 1);
}

static void attention_merge(float *values, const float *block, const float *old_part, const float *block_part,
                            uint32_t dims) {
    const vf old_factor = vf_load(old_part), factor = vf_load(block_part);
    for (uint32_t d = 0; d < dims; d++, values += POT_LANES, block += POT_LANES)
        vf_store(values, vf_fma(vf_load(block), factor, vf_mul(vf_load(values), old_factor)));
}

/* H heads side by side for 16 keys, added to their sums in ascending order. */
POT_INLINE vf index_heads(vf sum, bool *finite, const float *q, const float *weights, float scale, const float *turned,
                          uint32_t dims, const int H) {
    vf dot[CHAINS_AT_ONCE];
    for (int h = 0; h < H; h++) dot[h] = vf_zero();
    for (uint32_t d = 0; d < dims; d++) {
        const vf keys = vf_load(turned + (size_t)d * POT_LANES);
        for (int h = 0; h < H; h++) dot[h] = vf_fma(vf_set(q[(size_t)h * dims + d]), keys, dot[h]);
    }
    for (int h = 0; h < H; h++) {
        const vf s = vf_mul(dot[h], vf_set(scale));
        *finite &= vf_finite(s); /* the maximum would hide a NaN */
        sum = vf_fma(vf_set(weights[h]), vf_max(s, vf_zero()), sum);
    }
    return sum;
}

static bool index_scores(float *out, const float *q, const float *weights, float scale, const float *turned,
                         uint32_t heads, uint32_t dims) {
    bool finite = true;
    vf sum = vf_zero();
    uint32_t h = 0;
    for (; heads - h >= CHAINS_AT_ONCE; h += CHAINS_AT_ONCE)
        sum = index_heads(sum, &finite, q + (size_t)h * dims, weights + h, scale, turned, dims, CHAINS_AT_ONCE);
    for (; h < heads; h++) sum = index_heads(sum, &finite, q + (size_t)h * dims, weights + h, scale, turned, dims, 1);
    vf_store(out, sum);
    return finite & vf_finite(sum);
}

#endif
