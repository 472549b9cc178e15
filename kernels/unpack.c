/* One row of a packed matrix as f32: value = code * scale, as pot_stored_row gives it for the same codes. */
#include <string.h>

#include "kernels/convert.h"
#include "kernels/layout.h"
#include "kernels/stored.h"

static float read_scale(const uint8_t *scales, int kind, uint32_t r) {
    float scale;
    uint16_t half;
    if (kind == POT_SCALE_E8M0) return pot_f32_from_e8m0(scales[r]);
    if (kind == POT_SCALE_F16) {
        memcpy(&half, scales + 2 * r, sizeof half);
        return pot_f32_from_f16(half);
    }
    memcpy(&scale, scales + 4 * r, sizeof scale);
    return scale;
}

/* Column k of a block, row r of the tile, without its scale. */
static float read_code(const uint8_t *lines, pot_format format, unsigned bits, uint32_t r, uint32_t k) {
    if (bits == 32) {
        float value;
        memcpy(&value, lines + k * POT_LINE_BYTES + r * 4, sizeof value);
        return value;
    }
    if (bits == 16) {
        uint16_t half;
        memcpy(&half, lines + k / 2 * POT_LINE_BYTES + r * 4 + k % 2 * 2, sizeof half);
        return pot_f32_from_bf16(half);
    }
    uint32_t per_byte = 8 / bits, quad = k / 4;
    unsigned byte = lines[quad / per_byte * POT_LINE_BYTES + r * 4 + k % 4];
    unsigned code = byte >> quad % per_byte * bits & ((1u << bits) - 1u);
    if (format == POT_FORMAT_FP8) return pot_f32_from_e4m3((uint8_t)code);
    if (format == POT_FORMAT_MXFP4) return pot_f32_from_e2m1((uint8_t)code);
    return bits == 8 ? (float)(int8_t)code : (float)((int)code - (1 << (bits - 1)));
}

void pot_matrix_row(float *out, const pot_matrix *matrix, uint32_t row) {
    pot_format format = (pot_format)matrix->format;
    const pot_format_traits *traits = pot_format_get(format);
    const uint8_t *tile = matrix->data + row / POT_TILE_ROWS * matrix->tile_stride;
    uint32_t r = row % POT_TILE_ROWS;
    pot_walk walk = pot_walk_begin(matrix->phase);
    float scale = 1.0f;
    if (traits->scale != POT_SCALE_NONE && traits->blocks_per_group == 0)
        scale = read_scale(tile + pot_walk_lines(&walk, 1), traits->scale, r);
    for (uint32_t k = 0; k < matrix->cols;) {
        size_t at;
        if (traits->blocks_per_group != 0 && pot_walk_group(&walk, &at, traits->scale, traits->blocks_per_group))
            scale = read_scale(tile + at, traits->scale, r);
        const uint8_t *lines = tile + pot_walk_lines(&walk, traits->bits);
        for (uint32_t i = 0; i < POT_BLOCK && k < matrix->cols; i++, k++)
            out[k] = read_code(lines, format, traits->bits, r, i) * scale;
    }
}
