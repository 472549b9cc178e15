/* Rows of a checkpoint's matrix as f32: value = code * scale, in f32, for every stored kind.
 *
 * Codes and scales come straight from a mapped file: they may lie at any address (memcpy) and may be
 * anything, so what has no finite value is refused with its place. */
#include "kernels/stored.h"

#include <math.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/source.h"

pot_format pot_stored_natural_format(const pot_stored *source) {
    switch (source->kind) {
    case POT_STORED_BF16: return POT_FORMAT_BF16;
    case POT_STORED_FP8: return POT_FORMAT_FP8;
    case POT_STORED_MXFP4: return POT_FORMAT_MXFP4;
    case POT_STORED_INT2: return POT_FORMAT_Q2_ROW;
    case POT_STORED_INT8:
        return source->group == 0 ? POT_FORMAT_Q8_ROW : source->group == 32 ? POT_FORMAT_Q8_G32 : POT_FORMAT_F32;
    case POT_STORED_INT4:
        switch (source->group) {
        case 0: return POT_FORMAT_Q4_ROW;
        case 32: return POT_FORMAT_Q4_G32_F32;
        case 64: return POT_FORMAT_Q4_G64_F32;
        case 128: return POT_FORMAT_Q4_G128_F32;
        default: return POT_FORMAT_F32;
        }
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

/* Inlined for constant bits: loading a model is made of this. */
static inline void split_codes(uint8_t *out, const uint8_t *codes, uint32_t col_begin, uint32_t n,
                               const uint32_t bits) {
    const uint32_t per_byte = 8 / bits, mask = (1u << bits) - 1u;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t k = col_begin + i;
        out[i] = (uint8_t)(codes[k / per_byte] >> k % per_byte * bits & mask);
    }
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

static void float_row(float *out, const pot_stored *source, uint32_t row, uint32_t col_begin, uint32_t n) {
    const uint8_t *codes = row_codes(source, row);
    if (source->kind == POT_STORED_F32) {
        memcpy(out, codes + 4 * (size_t)col_begin, 4 * (size_t)n);
        return;
    }
    codes += 2 * (size_t)col_begin;
    for (uint32_t k = 0; k < n; k++) {
        uint16_t half;
        memcpy(&half, codes + 2 * (size_t)k, 2);
        out[k] = source->kind == POT_STORED_BF16 ? pot_f32_from_bf16(half) : pot_f32_from_f16(half);
    }
}

static float code_value(pot_stored_kind kind, uint8_t code) {
    switch (kind) {
    case POT_STORED_FP8: return pot_f32_from_e4m3(code);
    case POT_STORED_MXFP4: return pot_f32_from_e2m1(code);
    case POT_STORED_INT8: return (float)(int8_t)code;
    case POT_STORED_INT4: return (float)((int)code - 8);
    default: return (float)((int)code - 2);
    }
}

static pot_status check_finite(const float *value, const pot_stored *source, uint32_t row, uint32_t col_begin,
                               uint32_t n, pot_err *err) {
    for (uint32_t k = 0; k < n; k++)
        if (!isfinite(value[k]))
            return pot_fail(err, POT_NUMERIC, "%s: row %u, column %u is %s, need a finite number", source->name, row,
                            col_begin + k, isnan(value[k]) ? "not a number" : "infinite");
    return POT_OK;
}

pot_status pot_stored_row(float *out, const pot_stored *source, uint32_t row, uint32_t col_begin, uint32_t col_end,
                          pot_err *err) {
    uint32_t n = col_end - col_begin;
    if (source->kind <= POT_STORED_F16) {
        float_row(out, source, row, col_begin, n);
        return check_finite(out, source, row, col_begin, n, err);
    }
    const uint32_t group = pot_source_group(source);
    for (uint32_t k = col_begin; k < col_end;) {
        uint32_t end = (k / group + 1) * group < col_end ? (k / group + 1) * group : col_end;
        float scale = pot_source_scale(source, row, k / group);
        if (!isfinite(scale))
            return pot_fail(err, POT_NUMERIC, "%s: the scale of row %u, column %u is not finite", source->name, row, k);
        uint8_t codes[128];
        while (k < end) {
            uint32_t count = end - k < sizeof codes ? end - k : sizeof codes;
            pot_source_codes(codes, source, row, k, count);
            for (uint32_t i = 0; i < count; i++) out[k - col_begin + i] = code_value(source->kind, codes[i]) * scale;
            k += count;
        }
    }
    return check_finite(out, source, row, col_begin, n, err);
}
