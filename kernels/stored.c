/* Rows of a checkpoint's matrix as f32: value = code * scale, in f32, for every stored kind.
 *
 * Codes and scales come straight from a mapped file: they may lie at any address (memcpy) and may be
 * anything, so what has no finite value is refused with its place. */
#include "kernels/stored.h"

#include <math.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/layout.h"
#include "kernels/quantize.h"
#include "kernels/source.h"

static bool whole_rows(const pot_stored *source) { return source->group == 0 || source->group >= source->cols; }

/* A larger group is kept as groups that divide it and have its scale. */
pot_format pot_stored_natural_format(const pot_stored *source) {
    switch (source->kind) {
    case POT_STORED_BF16: return POT_FORMAT_BF16;
    case POT_STORED_FP8: return POT_FORMAT_FP8;
    case POT_STORED_MXFP4: return POT_FORMAT_MXFP4;
    case POT_STORED_INT2: return POT_FORMAT_Q2_ROW;
    case POT_STORED_INT8:
        if (whole_rows(source)) return POT_FORMAT_Q8_ROW;
        return source->group % 32 == 0 ? POT_FORMAT_Q8_G32 : POT_FORMAT_F32;
    case POT_STORED_INT4:
        if (whole_rows(source)) return POT_FORMAT_Q4_ROW;
        if (source->group % 128 == 0) return POT_FORMAT_Q4_G128_F32;
        if (source->group % 64 == 0) return POT_FORMAT_Q4_G64_F32;
        return source->group % 32 == 0 ? POT_FORMAT_Q4_G32_F32 : POT_FORMAT_F32;
    case POT_STORED_F32:
    case POT_STORED_F16: break;
    }
    return POT_FORMAT_F32;
}

uint32_t pot_source_group(const pot_stored *source) {
    switch (source->kind) {
    case POT_STORED_FP8: return 128;
    case POT_STORED_MXFP4: return 32;
    case POT_STORED_INT8:
    case POT_STORED_INT4: return source->group == 0 ? source->cols : source->group;
    default: return source->cols;
    }
}

float pot_source_scale(const pot_stored *source, uint32_t row, uint32_t group) {
    uint32_t width = pot_source_group(source);
    size_t groups = width == 0 ? 1 : source->cols / width + (source->cols % width != 0);
    size_t index = (source->kind == POT_STORED_FP8 ? row / 128 : row) * groups + group;
    if (source->kind == POT_STORED_MXFP4) return pot_f32_from_e8m0(((const uint8_t *)source->scales)[index]);
    float scale;
    memcpy(&scale, (const uint8_t *)source->scales + 4 * index, sizeof scale);
    return scale;
}

static const uint8_t *row_codes(const pot_stored *source, uint32_t row) {
    return (const uint8_t *)source->codes + row * source->row_stride;
}

POT_INLINE uint8_t one_code(const uint8_t *codes, uint32_t k, const uint32_t bits) {
    const uint32_t per_byte = 8 / bits, mask = (1u << bits) - 1u;
    return (uint8_t)(codes[k / per_byte] >> k % per_byte * bits & mask);
}

/* Inlined for constant bits; whole bytes in a loop of their own, for a compiler to make vectors of. */
POT_INLINE void split_codes(uint8_t *restrict out, const uint8_t *restrict codes, uint32_t col_begin, uint32_t n,
                            const uint32_t bits) {
    const uint32_t per_byte = 8 / bits, mask = (1u << bits) - 1u;
    uint32_t k = col_begin;
    const uint32_t end = col_begin + n;
    for (; k < end && k % per_byte != 0; k++) *out++ = one_code(codes, k, bits);
    const uint32_t bytes = (end - k) / per_byte;
    const uint8_t *restrict whole = codes + k / per_byte;
    for (uint32_t i = 0; i < bytes; i++)
        for (uint32_t j = 0; j < per_byte; j++) out[(size_t)i * per_byte + j] = (uint8_t)(whole[i] >> j * bits & mask);
    out += (size_t)bytes * per_byte;
    for (k += bytes * per_byte; k < end; k++) *out++ = one_code(codes, k, bits);
}

void pot_source_codes(uint8_t *out, const pot_stored *source, uint32_t row, uint32_t col_begin, uint32_t n) {
    const uint8_t *codes = row_codes(source, row);
    switch (source->kind) {
    case POT_STORED_INT2: split_codes(out, codes, col_begin, n, 2); break;
    case POT_STORED_INT4:
    case POT_STORED_MXFP4: split_codes(out, codes, col_begin, n, 4); break;
    default: memcpy(out, codes + col_begin, n);
    }
}

/* ---- codes to floats: without branches and tables, for a compiler to make vectors of ------------------------------ */

/* A narrow float with `mantissa` bits behind the point, as bits of a float; `offset` is the difference of the exponents' biases. */
POT_INLINE uint32_t wide_bits(uint32_t magnitude, const uint32_t mantissa, const uint32_t offset) {
    const uint32_t normal = (magnitude << (23 - mantissa)) + (offset << 23);
    /* Below the least normal it is a number of steps, each of 2^(1 - mantissa) times that. */
    const float step = pot_f32_from_bits((offset + 1 - mantissa) << 23);
    const uint32_t small = pot_f32_bits((float)(int32_t)magnitude * step);
    const uint32_t is_normal = 0u - (uint32_t)(magnitude >> mantissa != 0); /* a choice would be a branch */
    return (normal & is_normal) | (small & ~is_normal);
}

POT_INLINE float value_of_f16(uint16_t half) {
    const uint32_t magnitude = half & 0x7fffu, infinite = magnitude >= 0x7c00u ? 0x7f800000u : 0;
    return pot_f32_from_bits((uint32_t)(half & 0x8000u) << 16 | wide_bits(magnitude, 10, 112) | infinite);
}

POT_INLINE float value_of_e4m3(uint8_t code) {
    const uint32_t magnitude = code & 0x7fu, nan = magnitude == 0x7fu ? 0x7fc00000u : 0;
    return pot_f32_from_bits((uint32_t)(code & 0x80u) << 24 | wide_bits(magnitude, 3, 120) | nan);
}

POT_INLINE float value_of_e2m1(uint8_t code) {
    return pot_f32_from_bits((uint32_t)(code & 8u) << 28 | wide_bits(code & 7u, 1, 126));
}

static void float_row(float *restrict out, const pot_stored *source, uint32_t row, uint32_t col_begin, uint32_t n) {
    const uint8_t *restrict codes = row_codes(source, row);
    if (source->kind == POT_STORED_F32) {
        memcpy(out, codes + 4 * (size_t)col_begin, 4 * (size_t)n);
        return;
    }
    codes += 2 * (size_t)col_begin;
    uint16_t half;
    if (source->kind == POT_STORED_BF16)
        for (uint32_t k = 0; k < n; k++) memcpy(&half, codes + 2 * (size_t)k, 2), out[k] = pot_f32_from_bf16(half);
    else
        for (uint32_t k = 0; k < n; k++) memcpy(&half, codes + 2 * (size_t)k, 2), out[k] = value_of_f16(half);
}

void pot_scaled_values(float *restrict out, pot_stored_kind kind, const uint8_t *restrict codes, uint32_t n,
                       float scale) {
    switch (kind) {
    case POT_STORED_FP8:
        for (uint32_t i = 0; i < n; i++) out[i] = value_of_e4m3(codes[i]) * scale;
        break;
    case POT_STORED_MXFP4:
        for (uint32_t i = 0; i < n; i++) out[i] = value_of_e2m1(codes[i]) * scale;
        break;
    case POT_STORED_INT8:
        for (uint32_t i = 0; i < n; i++) out[i] = (float)(int8_t)codes[i] * scale;
        break;
    case POT_STORED_INT4:
        for (uint32_t i = 0; i < n; i++) out[i] = (float)((int)codes[i] - 8) * scale;
        break;
    default:
        for (uint32_t i = 0; i < n; i++) out[i] = (float)((int)codes[i] - 2) * scale;
    }
}

void pot_source_values(float *out, const pot_stored *source, uint32_t row, uint32_t col_begin, uint32_t col_end) {
    if (source->kind <= POT_STORED_F16) {
        float_row(out, source, row, col_begin, col_end - col_begin);
        return;
    }
    const uint32_t group = pot_source_group(source);
    uint8_t codes[256];
    for (uint32_t k = col_begin; k < col_end;) {
        const uint32_t count = col_end - k < sizeof codes ? col_end - k : (uint32_t)sizeof codes;
        pot_source_codes(codes, source, row, k, count);
        for (uint32_t i = 0; i < count;) {
            const uint32_t left = group - (k + i) % group, n = count - i < left ? count - i : left;
            pot_scaled_values(out + (k + i - col_begin), source->kind, codes + i, n,
                              pot_source_scale(source, row, (k + i) / group));
            i += n;
        }
        k += count;
    }
}

pot_status pot_source_fault(const pot_stored *source, uint32_t row, uint32_t col_begin, uint32_t col_end,
                            pot_err *err) {
    const uint32_t group = pot_source_group(source);
    for (uint32_t k = col_begin; k < col_end; k++) {
        if (source->scales != NULL && !isfinite(pot_source_scale(source, row, k / group)))
            return pot_fail(err, POT_NUMERIC, "%s: the scale of row %u, column %u is not finite", source->name, row, k);
        float value;
        pot_source_values(&value, source, row, k, k + 1);
        if (!isfinite(value))
            return pot_fail(err, POT_NUMERIC, "%s: row %u, column %u is %s, need a finite number", source->name, row, k,
                            isnan(value) ? "not a number" : "infinite");
    }
    return POT_OK;
}

pot_status pot_stored_row(float *out, const pot_stored *source, uint32_t row, uint32_t col_begin, uint32_t col_end,
                          pot_err *err) {
    pot_source_values(out, source, row, col_begin, col_end);
    if (pot_largest_bits(out, col_end - col_begin) < 0x7f800000u) return POT_OK;
    return pot_source_fault(source, row, col_begin, col_end, err);
}
