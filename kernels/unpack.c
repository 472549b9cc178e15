/* One row of a packed matrix as f32: value = code * scale, as pot_stored_row gives it for the same codes; and how far that is from what
 * was packed. */
#include <math.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/convert.h"
#include "kernels/layout.h"
#include "kernels/source.h"
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

/* The stored kind that has the format's codes; of the floats themselves, F32. */
static pot_stored_kind kind_of(pot_format format, unsigned bits) {
    if (format == POT_FORMAT_FP8) return POT_STORED_FP8;
    if (format == POT_FORMAT_MXFP4) return POT_STORED_MXFP4;
    return bits == 8 ? POT_STORED_INT8 : bits == 4 ? POT_STORED_INT4 : bits == 2 ? POT_STORED_INT2 : POT_STORED_F32;
}

/* The 32 codes that row r has in the lines of a block. */
POT_INLINE void block_codes(uint8_t codes[POT_BLOCK], const uint8_t *lines, uint32_t r, const uint32_t bits) {
    const uint32_t quads = 8 / bits, mask = ((1u << bits) - 1u) * 0x01010101u;
    for (uint32_t line = 0; line < bits; line++) {
        uint32_t word;
        memcpy(&word, lines + (size_t)line * POT_LINE_BYTES + (size_t)4 * r, 4);
        for (uint32_t q = 0; q < quads; q++) {
            const uint32_t quad = word >> q * bits & mask;
            memcpy(codes + (size_t)4 * (line * quads + q), &quad, 4);
        }
    }
}

static void block_floats(float out[POT_BLOCK], const uint8_t *lines, uint32_t r, unsigned bits) {
    for (uint32_t k = 0; k < POT_BLOCK; k++) {
        uint16_t half;
        if (bits == 32) {
            memcpy(&out[k], lines + (size_t)k * POT_LINE_BYTES + (size_t)r * 4, 4);
        } else {
            memcpy(&half, lines + (size_t)(k / 2) * POT_LINE_BYTES + (size_t)r * 4 + k % 2 * 2, 2);
            out[k] = pot_f32_from_bf16(half);
        }
    }
}

static void block_values(float out[POT_BLOCK], const uint8_t *lines, uint32_t r, pot_stored_kind kind, unsigned bits,
                         float scale) {
    uint8_t codes[POT_BLOCK];
    switch (bits) {
    case 2: block_codes(codes, lines, r, 2); break;
    case 4: block_codes(codes, lines, r, 4); break;
    case 8: block_codes(codes, lines, r, 8); break;
    default: block_floats(out, lines, r, bits); return;
    }
    pot_scaled_values(out, kind, codes, POT_BLOCK, scale);
}

void pot_matrix_row(float *out, const pot_matrix *matrix, uint32_t row) {
    const pot_format format = (pot_format)matrix->format;
    const pot_format_traits *traits = pot_format_get(format);
    const pot_stored_kind kind = kind_of(format, traits->bits);
    const uint8_t *tile = matrix->data + row / POT_TILE_ROWS * matrix->tile_stride;
    const uint32_t r = row % POT_TILE_ROWS;
    pot_walk walk = pot_walk_begin(matrix->phase);
    float scale = 1.0f;
    if (traits->scale != POT_SCALE_NONE && traits->blocks_per_group == 0)
        scale = read_scale(tile + pot_walk_lines(&walk, 1), traits->scale, r);
    for (uint32_t k = 0; k < matrix->cols; k += POT_BLOCK) {
        size_t at;
        if (traits->blocks_per_group != 0 && pot_walk_group(&walk, &at, traits->scale, traits->blocks_per_group))
            scale = read_scale(tile + at, traits->scale, r);
        const uint8_t *lines = tile + pot_walk_lines(&walk, traits->bits);
        float edge[POT_BLOCK];
        const uint32_t left = matrix->cols - k;
        block_values(left < POT_BLOCK ? edge : out + k, lines, r, kind, traits->bits, scale);
        if (left < POT_BLOCK) memcpy(out + k, edge, left * sizeof *edge);
    }
}

/* ---- what packing changed ------------------------------------------------------------------------------------------ */

static void add_row(pot_pack_error *sums, const float *packed, const float *source, uint32_t n) {
    enum { LANES = 4 }; /* a fixed order that is quick everywhere */
    double error[LANES] = {0}, size[LANES] = {0};
    for (uint32_t k = 0; k < n / LANES * LANES; k += LANES)
        for (uint32_t i = 0; i < LANES; i++) {
            const double weight = (double)source[k + i], change = (double)packed[k + i] - weight;
            error[i] += change * change;
            size[i] += weight * weight;
        }
    for (uint32_t k = n / LANES * LANES; k < n; k++) {
        const double weight = (double)source[k], change = (double)packed[k] - weight;
        error[0] += change * change;
        size[0] += weight * weight;
    }
    sums->error += (error[0] + error[1]) + (error[2] + error[3]);
    sums->size += (size[0] + size[1]) + (size[2] + size[3]);
}

pot_status pot_pack_error_add(pot_pack_error *sums, const pot_matrix *packed, const pot_stored *source,
                              uint32_t row_begin, uint32_t col_begin, pot_err *err) {
    const uint32_t n = packed->cols, col_end = col_begin + n;
    POT_ASSERT(row_begin + packed->rows <= source->rows && col_end <= source->cols);
    float *row = pot_alloc_array(n, 2 * sizeof *row);
    if (row == NULL) return pot_fail(err, POT_NO_MEMORY, "no memory to compare %s", source->name);
    float *values = row + n;
    pot_status status = POT_OK;
    for (uint32_t r = 0; r < packed->rows && status == POT_OK; r++) {
        pot_matrix_row(row, packed, r);
        status = pot_stored_row(values, source, row_begin + r, col_begin, col_end, err);
        if (status == POT_OK) add_row(sums, row, values, n);
    }
    pot_free(row);
    return status;
}

double pot_pack_error_relative(const pot_pack_error *sums) {
    if (sums->error == 0.0) return 0.0;
    return sums->size == 0.0 ? HUGE_VAL : sqrt(sums->error / sums->size);
}
