/* From a stored matrix to R16.
 *
 * For each tile of 16 rows, every row becomes one code a column and one scale a group (both as the bits that
 * the format stores), and then the tile's stream is written.  A group's codes and scale are copied when the
 * source has the very same group; otherwise its values go through f32 and are quantized.  The quantizer
 * always looks at the whole group of *source* columns (for row formats: the whole row; for fp8: the block of
 * 128 rows), also where only a slice of it is packed, so that a chunk holds the same codes as the whole
 * matrix would. */
#include <math.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/convert.h"
#include "kernels/layout.h"
#include "kernels/source.h"
#include "kernels/stored.h"

typedef struct packer {
    const pot_stored *source;
    pot_format format;
    const pot_format_traits *traits;
    uint32_t col_begin, col_end;
    uint32_t width;       /* columns, padded to whole blocks */
    uint32_t code_bytes;  /* that a code takes until it is packed */
    size_t stride;        /* of `codes`: a line more than a row, or 16 rows would meet in few sets of the cache */
    uint32_t group_width; /* source columns that share a scale; all of them where a row has one scale or none */
    uint32_t first_group, groups;
    uint32_t fp8_block; /* the block of 128 rows that fp8_scales is for; UINT32_MAX = none */
    /* one allocation */
    float *values;     /* [a whole group] */
    float *fp8_scales; /* [groups] */
    uint32_t *scales;  /* [16][groups] */
    uint8_t *codes;    /* [16][stride] */
} packer;

static uint32_t zero_code(const pot_format_traits *traits, pot_format format) {
    return !traits->integer || format == POT_FORMAT_MXFP4 || traits->bits == 8 ? 0 : 1u << (traits->bits - 1);
}

/* ---- one group: source columns [begin, end), of which [from, to) are kept ---- */

typedef struct span {
    uint32_t begin, end, from, to;
} span;

static span group_span(const packer *p, uint32_t group) {
    span s = {.begin = group * p->group_width};
    s.end = p->source->cols - s.begin < p->group_width ? p->source->cols : s.begin + p->group_width;
    s.from = s.begin > p->col_begin ? s.begin : p->col_begin;
    s.to = s.end < p->col_end ? s.end : p->col_end;
    return s;
}

/* The stored kind has the same codes in the same groups. */
static bool same_groups(const packer *p) {
    const pot_stored *source = p->source;
    switch (p->format) {
    case POT_FORMAT_FP8: return source->kind == POT_STORED_FP8;
    case POT_FORMAT_MXFP4: return source->kind == POT_STORED_MXFP4;
    case POT_FORMAT_Q2_ROW: return source->kind == POT_STORED_INT2;
    default: break;
    }
    pot_stored_kind kind = p->traits->bits == 8 ? POT_STORED_INT8 : POT_STORED_INT4;
    return source->kind == kind && source->group == p->traits->blocks_per_group * (uint32_t)POT_BLOCK;
}

/* The bits of a scale as the format stores them; false when the format cannot hold it exactly. */
static bool encode_scale(uint32_t *bits, const packer *p, float scale) {
    if (p->traits->scale == POT_SCALE_F16) {
        *bits = pot_f16_from_f32(scale);
        return pot_f32_from_f16((uint16_t)*bits) == scale;
    }
    *bits = pot_f32_bits(scale);
    if (p->traits->scale == POT_SCALE_E8M0) *bits = *bits == 0x00400000u ? 0 : *bits >> 23;
    return true;
}

static pot_status copy_codes(packer *p, uint8_t *codes, uint32_t row, span s, pot_err *err) {
    const uint32_t n = s.to - s.from;
    codes += s.from - p->col_begin;
    pot_source_codes(codes, p->source, row, s.from, n);
    for (uint32_t k = 0; p->format == POT_FORMAT_FP8 && k < n; k++)
        if ((codes[k] & 0x7f) == 0x7f)
            return pot_fail(err, POT_NUMERIC, "%s: row %u, column %u is not a number, need a finite one",
                            p->source->name, row, s.from + k);
    return POT_OK;
}

static float largest(const float *values, uint32_t n) {
    float amax = 0.0f;
    for (uint32_t k = 0; k < n; k++) amax = fabsf(values[k]) > amax ? fabsf(values[k]) : amax;
    return amax;
}

/* Symmetric: scale = amax / top, codes to nearest (ties to even) within [-top-1, top]; a group of zeros has
 * scale 1.  A scale that is stored as f16 is rounded first, and the codes are for what is stored. */
static pot_status quantize_integers(packer *p, uint8_t *codes, uint32_t *scale_bits, uint32_t row, span s,
                                    pot_err *err) {
    const int bits = p->traits->bits, top = (1 << (bits - 1)) - 1;
    float scale = largest(p->values, s.end - s.begin) / (float)top;
    if (scale == 0.0f) scale = 1.0f;
    if (!encode_scale(scale_bits, p, scale)) {
        if (*scale_bits == 0) *scale_bits = 1; /* the least f16: a scale of 0 would give no codes */
        scale = pot_f32_from_f16((uint16_t)*scale_bits);
        if (!isfinite(scale))
            return pot_fail(
                err, POT_NUMERIC,
                "%s: row %u, columns %u to %u are too large for a scale in f16; use a format with f32 scales",
                p->source->name, row, s.begin, s.end - 1);
    }
    const int bias = bits == 8 ? 0 : top + 1;
    for (uint32_t k = s.from; k < s.to; k++) {
        float q = rintf(p->values[k - s.begin] / scale);
        q = q > (float)top ? (float)top : q < (float)(-top - 1) ? (float)(-top - 1) : q;
        codes[k - p->col_begin] = (uint8_t)((uint32_t)((int)q + bias) & ((1u << bits) - 1u));
    }
    return POT_OK;
}

/* Quark's rule: the shared exponent is that of amax less 2, one more where amax would round beyond 6 (amax
 * >= 7 units); then to nearest on the grid 0 .5 1 1.5 2 3 4 6, ties to the even code, and no negative zero. */
static void quantize_mxfp4(packer *p, uint8_t *codes, uint32_t *scale_bits, span s) {
    uint32_t exponent = (pot_f32_bits(largest(p->values, s.end - s.begin)) + 0x00200000u) >> 23;
    *scale_bits = exponent < 2 ? 0 : exponent - 2;
    const double unit = ldexp(1.0, (int)*scale_bits - 127);
    for (uint32_t k = s.from; k < s.to; k++) {
        double value = (double)p->values[k - s.begin] / unit, a = fabs(value);
        uint32_t code =
            (uint32_t)((a > 0.25) + (a >= 0.75) + (a > 1.25) + (a >= 1.75) + (a > 2.5) + (a >= 3.5) + (a > 5.0));
        codes[k - p->col_begin] = (uint8_t)(code | (value < 0.0 && code != 0 ? 8u : 0u));
    }
}

/* scale = amax / 448 over blocks of 128 x 128 of the source, 1 where all is zero. */
static pot_status fp8_block_scales(packer *p, uint32_t row, pot_err *err) {
    if (p->fp8_block == row / 128) return POT_OK;
    uint32_t end = p->source->rows - row / 128 * 128 < 128 ? p->source->rows : row / 128 * 128 + 128;
    for (uint32_t g = 0; g < p->groups; g++) {
        span s = group_span(p, p->first_group + g);
        float amax = 0.0f;
        for (uint32_t r = row / 128 * 128; r < end; r++) {
            pot_status status = pot_stored_row(p->values, p->source, r, s.begin, s.end, err);
            if (status != POT_OK) return status;
            float of_row = largest(p->values, s.end - s.begin);
            amax = of_row > amax ? of_row : amax;
        }
        p->fp8_scales[g] = amax / 448.0f == 0.0f ? 1.0f : amax / 448.0f;
    }
    p->fp8_block = row / 128;
    return POT_OK;
}

static pot_status pack_group(packer *p, uint8_t *codes, uint32_t *scale_bits, uint32_t row, uint32_t g, pot_err *err) {
    span s = group_span(p, p->first_group + g);
    if (same_groups(p)) {
        float scale = pot_source_scale(p->source, row, p->first_group + g);
        if (!isfinite(scale))
            return pot_fail(err, POT_NUMERIC, "%s: the scale of row %u, column %u is not finite", p->source->name, row,
                            s.from);
        if (encode_scale(scale_bits, p, scale)) return copy_codes(p, codes, row, s, err);
    }
    pot_status status = POT_OK;
    if (p->format == POT_FORMAT_FP8) status = fp8_block_scales(p, row, err);
    if (status == POT_OK) status = pot_stored_row(p->values, p->source, row, s.begin, s.end, err);
    if (status != POT_OK) return status;
    if (p->format == POT_FORMAT_MXFP4) {
        quantize_mxfp4(p, codes, scale_bits, s);
    } else if (p->format == POT_FORMAT_FP8) {
        *scale_bits = pot_f32_bits(p->fp8_scales[g]);
        for (uint32_t k = s.from; k < s.to; k++)
            codes[k - p->col_begin] = pot_e4m3_from_f32(p->values[k - s.begin] / p->fp8_scales[g]);
    } else {
        status = quantize_integers(p, codes, scale_bits, row, s, err);
    }
    return status;
}

static pot_status pack_floats(packer *p, uint8_t *codes, uint32_t row, pot_err *err) {
    pot_status status = pot_stored_row(p->values, p->source, row, p->col_begin, p->col_end, err);
    if (status != POT_OK) return status;
    for (uint32_t k = 0; k < p->col_end - p->col_begin; k++) {
        const uint16_t half = pot_bf16_from_f32(p->values[k]);
        if (p->format == POT_FORMAT_F32)
            memcpy(codes + (size_t)4 * k, &p->values[k], 4);
        else
            memcpy(codes + (size_t)2 * k, &half, 2);
        if (p->format == POT_FORMAT_BF16 && (half & 0x7fffu) == 0x7f80u)
            return pot_fail(err, POT_NUMERIC, "%s: row %u, column %u is %g, too large for bf16", p->source->name, row,
                            p->col_begin + k, (double)p->values[k]);
    }
    return POT_OK;
}

/* ---- the stream ---- */

/* 32 columns of 16 rows as lines.  A row's part of a line is four bytes: that many columns of 8 bits, fewer of more bits; of fewer bits
 * 8 / bits such quads of columns, each in bits of its own. */
POT_INLINE void write_lines(uint8_t *lines, const uint8_t *codes, size_t stride, const uint32_t bits) {
    const uint32_t quads = bits < 8 ? 8 / bits : 1, n_lines = POT_BLOCK * bits / 32;
    for (uint32_t r = 0; r < POT_TILE_ROWS; r++, codes += stride, lines += 4)
        for (uint32_t line = 0; line < n_lines; line++) {
            uint32_t word = 0;
            for (uint32_t q = 0; q < quads; q++) {
                uint32_t quad;
                memcpy(&quad, codes + (size_t)4 * (line * quads + q), 4);
                word |= quad << q * bits;
            }
            memcpy(lines + (size_t)line * POT_LINE_BYTES, &word, 4);
        }
}

/* Constant bits, because loading a model is made of this. */
static void write_codes(uint8_t *lines, const uint8_t *codes, size_t stride, unsigned bits) {
    switch (bits) {
    case 2: write_lines(lines, codes, stride, 2); break;
    case 4: write_lines(lines, codes, stride, 4); break;
    case 8: write_lines(lines, codes, stride, 8); break;
    case 16: write_lines(lines, codes, stride, 16); break;
    default: write_lines(lines, codes, stride, 32); break;
    }
}

static void write_scales(uint8_t *at, const packer *p, uint32_t group) {
    for (uint32_t r = 0; r < POT_TILE_ROWS; r++) {
        uint32_t bits = p->scales[(size_t)r * p->groups + group];
        uint16_t half = (uint16_t)bits;
        if (p->traits->scale == POT_SCALE_F32)
            memcpy(at + 4 * r, &bits, 4);
        else if (p->traits->scale == POT_SCALE_F16)
            memcpy(at + 2 * r, &half, 2);
        else
            at[r] = (uint8_t)bits;
    }
}

static void write_tile(uint8_t *tile, const packer *p) {
    const pot_format_traits *traits = p->traits;
    uint32_t per_group = traits->blocks_per_group;
    uint32_t phase = per_group == 0 ? 0 : p->col_begin / POT_BLOCK % per_group;
    memset(tile, 0, pot_tile_bytes(p->format, p->col_end - p->col_begin, phase));
    pot_walk walk = pot_walk_begin(phase);
    if (traits->scale != POT_SCALE_NONE && per_group == 0) write_scales(tile + pot_walk_lines(&walk, 1), p, 0);
    for (uint32_t k = 0; k < p->width; k += POT_BLOCK) {
        size_t at;
        if (per_group != 0 && pot_walk_group(&walk, &at, traits->scale, per_group))
            write_scales(tile + at, p, walk.group - 1);
        write_codes(tile + pot_walk_lines(&walk, traits->bits), p->codes + (size_t)k * p->code_bytes, p->stride,
                    traits->bits);
    }
}

static pot_status pack_tile(uint8_t *tile, packer *p, uint32_t row_begin, uint32_t row_end, pot_err *err) {
    memset(p->codes, (int)zero_code(p->traits, p->format), POT_TILE_ROWS * p->stride);
    memset(p->scales, 0, (size_t)POT_TILE_ROWS * p->groups * sizeof *p->scales);
    for (uint32_t row = row_begin; row < row_end; row++) {
        uint8_t *codes = p->codes + (row - row_begin) * p->stride;
        uint32_t *scales = p->scales + (size_t)(row - row_begin) * p->groups;
        pot_status status = POT_OK;
        if (p->traits->scale == POT_SCALE_NONE) status = pack_floats(p, codes, row, err);
        for (uint32_t g = 0; status == POT_OK && g < p->groups; g++)
            status = pack_group(p, codes, &scales[g], row, g, err);
        if (status != POT_OK) return status;
    }
    write_tile(tile, p);
    return POT_OK;
}

/* Cuts `memory` in four-byte pieces. */
static void *take(uint32_t **memory, size_t words) {
    uint32_t *piece = *memory;
    *memory += words;
    return piece;
}

pot_status pot_pack(uint8_t *out, size_t tile_stride, pot_format format, const pot_stored *source, uint32_t row_begin,
                    uint32_t row_end, uint32_t col_begin, uint32_t col_end, pot_err *err) {
    POT_ASSERT(col_begin % POT_BLOCK == 0 && col_begin < col_end && col_end <= source->cols);
    POT_ASSERT(row_begin < row_end && row_end <= source->rows);
    POT_ASSERT(format > POT_FORMAT_NONE && format < POT_FORMAT_COUNT);
    POT_ASSERT(format != POT_FORMAT_FP8 || row_begin % POT_TILE_ROWS == 0);
    packer p = {.source = source,
                .format = format,
                .traits = pot_format_get(format),
                .col_begin = col_begin,
                .col_end = col_end,
                .width = pot_blocks(col_end - col_begin) * POT_BLOCK,
                .group_width = source->cols,
                .fp8_block = UINT32_MAX};
    if (p.traits->blocks_per_group != 0) p.group_width = p.traits->blocks_per_group * (uint32_t)POT_BLOCK;
    p.first_group = col_begin / p.group_width;
    if (p.traits->scale != POT_SCALE_NONE) p.groups = (col_end - 1) / p.group_width + 1 - p.first_group;

    p.code_bytes = p.traits->bits < 8 ? 1 : p.traits->bits / 8;
    p.stride = (size_t)p.width * p.code_bytes + POT_LINE_BYTES;
    size_t values = p.group_width < source->cols ? p.group_width : source->cols;
    size_t codes = POT_TILE_ROWS * p.stride / 4, scales = (size_t)POT_TILE_ROWS * p.groups;
    uint32_t *memory = pot_alloc_array(values + p.groups + codes + scales, sizeof *memory), *rest = memory;
    if (memory == NULL) return pot_fail(err, POT_NO_MEMORY, "no memory to pack %s", source->name);
    p.values = take(&rest, values);
    p.fp8_scales = take(&rest, p.groups);
    p.scales = take(&rest, scales);
    p.codes = take(&rest, codes);

    pot_status status = POT_OK;
    for (uint32_t row = row_begin; status == POT_OK && row < row_end; row += POT_TILE_ROWS, out += tile_stride)
        status = pack_tile(out, &p, row, row_end - row < POT_TILE_ROWS ? row_end : row + POT_TILE_ROWS, err);
    pot_free(memory);
    return status;
}

static pot_status check_shape(const pot_stored *matrix, uint32_t rows, uint32_t cols, pot_err *err) {
    if (matrix->rows == rows && matrix->cols == cols) return POT_OK;
    return pot_fail(err, POT_FORMAT, "%s is [%u, %u], need [%u, %u]", matrix->name, matrix->rows, matrix->cols, rows,
                    cols);
}

pot_status pot_pack_chunk(uint8_t *out, const pot_ffn_shape *shape, uint32_t chunk, const pot_stored *gate,
                          const pot_stored *up, const pot_stored *down, pot_err *err) {
    pot_status status = check_shape(gate, shape->inner, shape->hidden, err);
    if (status == POT_OK) status = check_shape(up, shape->inner, shape->hidden, err);
    if (status == POT_OK) status = check_shape(down, shape->hidden, shape->inner, err);
    if (status != POT_OK) return status;

    pot_chunk view;
    pot_chunk_view(&view, shape, chunk, out);
    pot_format format = (pot_format)shape->gate_up_format;
    uint32_t begin = pot_chunk_begin(shape, chunk), end = begin + pot_chunk_rows(shape, chunk);
    uint8_t *up_out = out + (view.up.data - view.gate.data), *down_out = out + (view.down.data - view.gate.data);
    status = pot_pack(out, view.gate.tile_stride, format, gate, begin, end, 0, shape->hidden, err);
    if (status == POT_OK) status = pot_pack(up_out, view.up.tile_stride, format, up, begin, end, 0, shape->hidden, err);
    if (status == POT_OK)
        status = pot_pack(down_out, view.down.tile_stride, (pot_format)shape->down_format, down, 0, shape->hidden,
                          begin, end, err);
    if (status != POT_OK) return status;
    uint8_t *written = down_out + pot_tiles(shape->hidden) * view.down.tile_stride;
    memset(written, 0, pot_chunk_bytes(shape, chunk) - (size_t)(written - out));
    return POT_OK;
}
