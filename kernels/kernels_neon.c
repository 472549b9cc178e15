/* NEON with the dot product extension (sdot): four rows a register, so a line is four.  Both operands are signed, so MXFP4 and
 * int8 need no zero point; int2 and int4 are positive as they are stored and keep theirs. */
#include <arm_neon.h>
#include <string.h>

#include "kernels/layout.h"

typedef struct vf {
    float32x4_t part[4]; /* rows 0-3, 4-7, 8-11, 12-15 */
} vf;
typedef struct vi {
    int32x4_t part[4];
} vi;

enum { FEW_TILES_4 = 1, TILES_MANY = 1, ROWS_MANY = 4, FLOAT_ROWS = 4 };

#define EACH(type, call)                                            \
    do {                                                            \
        type v_;                                                    \
        POT_UNROLL for (int p = 0; p < 4; p++) v_.part[p] = (call); \
        return v_;                                                  \
    } while (0)

POT_INLINE vf vf_set(float x) { EACH(vf, vdupq_n_f32(x)); }
POT_INLINE vf vf_zero(void) { return vf_set(0.0f); }
POT_INLINE vf vf_load(const float *at) { EACH(vf, vld1q_f32(at + 4 * p)); }
POT_INLINE void vf_store(float *at, vf v) {
    POT_UNROLL
    for (int p = 0; p < 4; p++) vst1q_f32(at + 4 * p, v.part[p]);
}
POT_INLINE vf vf_add(vf a, vf b) { EACH(vf, vaddq_f32(a.part[p], b.part[p])); }
POT_INLINE vf vf_sub(vf a, vf b) { EACH(vf, vsubq_f32(a.part[p], b.part[p])); }
POT_INLINE vf vf_mul(vf a, vf b) { EACH(vf, vmulq_f32(a.part[p], b.part[p])); }
POT_INLINE vf vf_div(vf a, vf b) { EACH(vf, vdivq_f32(a.part[p], b.part[p])); }
/* NEON's own maximum gives a NaN when either operand is one. */
POT_INLINE vf vf_max(vf a, vf b) { EACH(vf, vbslq_f32(vcgtq_f32(a.part[p], b.part[p]), a.part[p], b.part[p])); }
POT_INLINE vf vf_min(vf a, vf b) { EACH(vf, vbslq_f32(vcltq_f32(a.part[p], b.part[p]), a.part[p], b.part[p])); }
POT_INLINE vf vf_fma(vf a, vf b, vf c) { EACH(vf, vfmaq_f32(c.part[p], a.part[p], b.part[p])); }
POT_INLINE vf vf_abs(vf v) { EACH(vf, vabsq_f32(v.part[p])); }
POT_INLINE vf vf_neg(vf v) { EACH(vf, vnegq_f32(v.part[p])); }
POT_INLINE vf vf_round(vf v) { EACH(vf, vrndnq_f32(v.part[p])); }
POT_INLINE vf vf_power(vf n) {
    EACH(vf, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.part[p]), vdupq_n_s32(127)), 23)));
}
POT_INLINE bool vf_finite(vf v) {
    uint32x4_t fine = vdupq_n_u32(UINT32_MAX);
    POT_UNROLL
    for (int p = 0; p < 4; p++) fine = vandq_u32(fine, vcaltq_f32(v.part[p], vdupq_n_f32(__builtin_inff())));
    return vminvq_u32(fine) != 0;
}
POT_INLINE vf vf_from_vi(vi v) { EACH(vf, vcvtq_f32_s32(v.part[p])); }
POT_INLINE vi vi_set(int32_t x) { EACH(vi, vdupq_n_s32(x)); }
POT_INLINE vi vi_add(vi a, vi b) { EACH(vi, vaddq_s32(a.part[p], b.part[p])); }
POT_INLINE vi vi_line(const uint8_t *at) { EACH(vi, vreinterpretq_s32_u8(vld1q_u8(at + 16 * p))); }
POT_INLINE vi vi_dot4(vi acc, vi w, vi x) {
    EACH(vi, vdotq_s32(acc.part[p], vreinterpretq_s8_s32(w.part[p]), vreinterpretq_s8_s32(x.part[p])));
}
#define KEEP(v) __asm__ volatile("" : "+w"((v).part[0]), "+w"((v).part[1]), "+w"((v).part[2]), "+w"((v).part[3]))

POT_INLINE vf vf_widen_bf16(const uint16_t *at) {
    EACH(vf, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(at + 4 * p), 16)));
}
POT_INLINE void vf_store_codes(int8_t *at, vf v) {
    int16x4_t words[4];
    POT_UNROLL
    for (int p = 0; p < 4; p++) words[p] = vmovn_s32(vcvtnq_s32_f32(v.part[p]));
    vst1_s8(at, vmovn_s16(vcombine_s16(words[0], words[1])));
    vst1_s8(at + 8, vmovn_s16(vcombine_s16(words[2], words[3])));
}
POT_INLINE int32_t block_sum(const int8_t *codes) {
    const int8x16_t ones = vdupq_n_s8(1);
    return vaddvq_s32(vdotq_s32(vdotq_s32(vdupq_n_s32(0), vld1q_s8(codes), ones), vld1q_s8(codes + 16), ones));
}

/* Values below 2^51 in magnitude round to integers as rint does. */
POT_INLINE bool grid_add_some(int64_t *acc, const float *v, float weight, double unit) {
    float64x2_t scaled[8];
    uint64x2_t fits = vdupq_n_u64(UINT64_MAX);
    POT_UNROLL
    for (int i = 0; i < 4; i++) {
        float32x4_t weighted = vmulq_n_f32(vld1q_f32(v + 4 * i), weight);
        scaled[2 * i] = vmulq_n_f64(vcvt_f64_f32(vget_low_f32(weighted)), unit);
        scaled[2 * i + 1] = vmulq_n_f64(vcvt_high_f64_f32(weighted), unit);
    }
    POT_UNROLL
    for (int i = 0; i < 8; i++) fits = vandq_u64(fits, vcaltq_f64(scaled[i], vdupq_n_f64(0x1p51)));
    if (vgetq_lane_u64(fits, 0) == 0 || vgetq_lane_u64(fits, 1) == 0) return false;
    POT_UNROLL
    for (int i = 0; i < 8; i++) vst1q_s64(acc + 2 * i, vaddq_s64(vld1q_s64(acc + 2 * i), vcvtnq_s64_f64(scaled[i])));
    return true;
}

/* ---- weights ---- */

POT_INLINE float32x4_t exponent_scales(const uint8_t *at) {
    /* 2^(e-128); e = 0 and 1 are subnormal numbers */
    const int32x4_t e = {at[0], at[1], at[2], at[3]};
    const int32x4_t normal = vshlq_n_s32(vsubq_s32(e, vdupq_n_s32(1)), 23);
    const int32x4_t small = vshlq_s32(vdupq_n_s32(0x00200000), vminq_s32(e, vdupq_n_s32(2)));
    return vreinterpretq_f32_s32(vbslq_s32(vcltq_s32(e, vdupq_n_s32(2)), small, normal));
}

POT_INLINE float32x4_t f16_scales(const uint8_t *at) {
    uint16_t half[4];
    memcpy(half, at, sizeof half);
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(half)));
}

POT_INLINE vf vf_scales(const uint8_t *at, const int kind) {
    if (kind == POT_SCALE_F32) return vf_load((const float *)(const void *)at);
    if (kind == POT_SCALE_F16) EACH(vf, f16_scales(at + 8 * p));
    EACH(vf, exponent_scales(at + 4 * p));
}

/* Four rows of column j of a line of floats. */
POT_INLINE float32x4_t quarter_column(const uint8_t *quarter, const int bits, const int j) {
    if (bits == 32) return vld1q_f32((const float *)(const void *)quarter);
    uint32x4_t w = vreinterpretq_u32_u8(vld1q_u8(quarter));
    if (bits == 16) return vreinterpretq_f32_u32(j == 1 ? vandq_u32(w, vdupq_n_u32(0xffff0000u)) : vshlq_n_u32(w, 16));
    /* e4m3: the code to the top, then exponent and mantissa to where f32 has them; 2^120 mends the bias (exact). */
    w = vshlq_u32(w, vdupq_n_s32(24 - j * 8));
    w = vandq_u32(vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(w), 4)), vdupq_n_u32(0x87f00000u));
    return vmulq_n_f32(vreinterpretq_f32_u32(w), 0x1p120f);
}

POT_INLINE vf vf_column(const uint8_t *line, const int bits, const int j) {
    EACH(vf, quarter_column(line + 16 * p, bits, j));
}

POT_INLINE int zero_point(const int bits, const bool e2m1) { return e2m1 || bits == 8 ? 0 : 1 << (bits - 1); }

/* Codes of quad q, rows 4p..4p+3. */
POT_INLINE int8x16_t quarter_codes(const uint8_t *lines, const int q, const int p, const int bits, const bool e2m1) {
    static const int8_t HALVES[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    const int per_byte = 8 / bits;
    uint8x16_t w = vld1q_u8(lines + q / per_byte * POT_LINE_BYTES + 16 * p);
    if (bits == 8) return vreinterpretq_s8_u8(w);
    w = vandq_u8(vshlq_u8(w, vdupq_n_s8((int8_t) - (q % per_byte * bits))), vdupq_n_u8((uint8_t)((1 << bits) - 1)));
    return e2m1 ? vqtbl1q_s8(vld1q_s8(HALVES), w) : vreinterpretq_s8_u8(w);
}

POT_INLINE void unpack_block(uint8_t *panel, const uint8_t *lines, const int bits, const bool e2m1) {
    POT_UNROLL
    for (int q = 0; q < POT_BLOCK / 4; q++) {
        POT_UNROLL
        for (int p = 0; p < 4; p++)
            vst1q_s8((int8_t *)panel + q * POT_LINE_BYTES + 16 * p, quarter_codes(lines, q, p, bits, e2m1));
    }
}

POT_INLINE void block_dots(vi dot[], const uint8_t *const lines[], const int8_t *const x[], const int T, const int R,
                           const int bits, const bool e2m1, const bool panel) {
    POT_UNROLL
    for (int t = 0; t < T; t++) {
        if (!panel) pot_prefetch_lines(lines[t], bits);
        POT_UNROLL
        for (int q = 0; q < POT_BLOCK / 4; q++) {
            POT_UNROLL
            for (int p = 0; p < 4; p++) {
                const int8x16_t w = panel ? vld1q_s8((const int8_t *)lines[t] + q * POT_LINE_BYTES + 16 * p)
                                          : quarter_codes(lines[t], q, p, bits, e2m1);
                POT_UNROLL
                for (int r = 0; r < R; r++) {
                    int32_t quad;
                    memcpy(&quad, x[r] + 4 * q, sizeof quad);
                    int32x4_t *sum = &dot[t * R + r].part[p];
                    *sum = vdotq_s32(*sum, w, vreinterpretq_s8_s32(vdupq_n_s32(quad)));
                }
            }
        }
    }
}

#include "kernels/simd_table.h"

POT_SIMD_TABLE(neon);
