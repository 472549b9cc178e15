/* From a stored matrix to R16.
 *
 * For each tile of 16 rows, every row becomes one code a column and one scale a group (both as the bits that
 * the format stores), and then the tile's stream is written.  A group's codes and scale are copied when the
 * source has the same codes and one scale for all of the group; otherwise its values go through f32 and are
 * quantized.  The quantizer always looks at the whole group of *source* columns (for row formats: the whole
 * row; for fp8: the block of 128 rows), also where only a slice of it is packed, so that a chunk holds the same
 * codes as the whole matrix would.
 *
 * A tile whose codes are all copied takes a short way: a row's part of a line is a word of the source with its codes
 * in another order. */
#include <math.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/convert.h"
#include "kernels/layout.h"
#include "kernels/quantize.h"
#include "kernels/source.h"
#include "kernels/stored.h"

/* Columns that are packed at a time: few enough to stay in the first caches, and whole groups.  Where a row has one scale, which needs
 * all of it, a strip is the whole. */
enum { STRIP = 1024 };

typedef struct packer {
    const pot_stored *source;
    pot_format format;
    pot_rounding rounding;
    const pot_format_traits *traits;
    uint32_t code_bytes;  /* that a code takes until it is packed */
    uint32_t group_width; /* source columns that share a scale; all of them where a row has one scale or none */
    uint8_t zero;         /* the code */
    bool copied;          /* codes and scales may be copied ... */
    uint8_t moved;        /* ... when this is added to codes that the source has with fewer bits */

    /* all that is packed */
    uint32_t all_begin, all_end; /* columns */
    uint32_t all_first_group, all_groups;
    uint32_t fp8_block; /* the block of 128 rows that fp8_scales is for; UINT32_MAX = none */

    /* the strip */
    uint32_t strip; /* columns of one */
    uint32_t col_begin, col_end;
    uint32_t first_group, groups;

    /* one allocation */
    float *values;     /* [the groups of a strip, whole ones, padded to whole blocks] */
    float *fp8_scales; /* [all_groups] */
    uint32_t *scales;  /* [16][groups] */
    uint8_t *codes;    /* [16][stride] */
    size_t stride;     /* a line more than a row, or 16 rows would meet in few sets of the cache */
} packer;

static uint8_t zero_code(const pot_format_traits *traits, pot_format format) {
    const bool offset = traits->integer && format != POT_FORMAT_MXFP4 && traits->bits < 8;
    return (uint8_t)(offset ? 1u << (traits->bits - 1) : 0);
}

static uint32_t padded(uint32_t columns) { return pot_blocks(columns) * POT_BLOCK; }

/* ---- what can be copied ---------------------------------------------------------------------------------------------- */

/* Bits of an integer code in a file; 0 for other kinds. */
static uint32_t stored_integer_bits(pot_stored_kind kind) {
    return kind == POT_STORED_INT8 ? 8 : kind == POT_STORED_INT4 ? 4 : kind == POT_STORED_INT2 ? 2 : 0;
}

static bool same_codes(packer *p) {
    const pot_stored_kind kind = p->source->kind;
    switch (p->format) {
    case POT_FORMAT_F32: return kind == POT_STORED_F32;
    case POT_FORMAT_BF16: return kind == POT_STORED_BF16;
    case POT_FORMAT_FP8: return kind == POT_STORED_FP8;
    case POT_FORMAT_MXFP4: return kind == POT_STORED_MXFP4;
    default: break;
    }
    /* An integer of fewer bits is one of more bits too. */
    const uint32_t from = stored_integer_bits(kind), to = p->traits->bits;
    if (from == 0 || from > to) return false;
    p->moved = (uint8_t)((to == 8 ? 0 : 1 << (to - 1)) - (from == 8 ? 0 : 1 << (from - 1)));
    return true;
}

/* Whether each group lies within one group of the source. */
static bool groups_nest(const packer *p) {
    const uint32_t group = pot_source_group(p->source);
    return p->traits->scale == POT_SCALE_NONE || group >= p->source->cols || group % p->group_width == 0;
}

/* ---- one run of groups of a row -------------------------------------------------------------------------------------- */

typedef struct span {
    uint32_t begin, end; /* source columns */
} span;

static span group_span(const packer *p, uint32_t group) {
    span s = {.begin = group * p->group_width};
    s.end = p->source->cols - s.begin < p->group_width ? p->source->cols : s.begin + p->group_width;
    return s;
}

/* The columns of these groups as f32 in p->values, then zeros up to a whole block. */
static void take_values(packer *p, uint32_t row, span s) {
    const uint32_t n = s.end - s.begin;
    pot_source_values(p->values, p->source, row, s.begin, s.end);
    for (uint32_t k = n; k < padded(n); k++) p->values[k] = 0.0f;
}

static pot_status quantize_group(packer *p, uint8_t *codes, uint32_t *scale_bits, uint32_t row, span s,
                                 const float *values, uint32_t g, pot_err *err) {
    const uint32_t n = padded(s.end - s.begin), amax_bits = pot_largest_bits(values, n);
    if (amax_bits >= 0x7f800000u) return pot_source_fault(p->source, row, s.begin, s.end, err);
    /* What of the group is packed: whole blocks, where the group is not at the edge of the matrix. */
    const uint32_t from = s.begin > p->col_begin ? s.begin : p->col_begin, to = s.end < p->col_end ? s.end : p->col_end;
    const uint32_t kept = padded(to - from);
    const float *kept_values = values + (from - s.begin);
    codes += from - p->col_begin;
    if (p->format == POT_FORMAT_MXFP4) {
        *scale_bits = pot_e2m1_exponent(values, n, amax_bits, p->rounding);
        pot_e2m1_codes(codes, kept_values, kept, *scale_bits);
    } else if (p->format == POT_FORMAT_FP8) {
        const float scale = p->fp8_scales[p->first_group + g - p->all_first_group];
        *scale_bits = pot_f32_bits(scale);
        pot_e4m3_codes(codes, kept_values, kept, scale);
    } else {
        const float scale =
            pot_integer_scale(scale_bits, values, n, pot_f32_from_bits(amax_bits), p->traits, p->rounding);
        if (!isfinite(scale))
            return pot_fail(err, POT_NUMERIC,
                            "%s: row %u, columns %u to %u are too large for a scale in f16; use a format with f32 "
                            "scales",
                            p->source->name, row, s.begin, s.end - 1);
        pot_integer_codes(codes, kept_values, kept, scale, p->traits->bits);
    }
    return POT_OK;
}

/* scale = amax / 448 over blocks of 128 x 128 of the source, 1 where all is zero. */
static pot_status fp8_block_scales(packer *p, uint32_t row, pot_err *err) {
    if (p->fp8_block == row / 128) return POT_OK;
    uint32_t end = p->source->rows - row / 128 * 128 < 128 ? p->source->rows : row / 128 * 128 + 128;
    for (uint32_t g = 0; g < p->all_groups; g++) {
        span s = group_span(p, p->all_first_group + g);
        uint32_t largest = 0;
        for (uint32_t r = row / 128 * 128; r < end; r++) {
            pot_source_values(p->values, p->source, r, s.begin, s.end);
            uint32_t of_row = pot_largest_bits(p->values, s.end - s.begin);
            if (of_row >= 0x7f800000u) return pot_source_fault(p->source, r, s.begin, s.end, err);
            largest = of_row > largest ? of_row : largest;
        }
        const float scale = pot_f32_from_bits(largest) / 448.0f;
        p->fp8_scales[g] = scale == 0.0f ? 1.0f : scale;
    }
    p->fp8_block = row / 128;
    return POT_OK;
}

/* Groups [g, end) of a row. */
static pot_status quantize_groups(packer *p, uint8_t *codes, uint32_t *scales, uint32_t row, uint32_t g, uint32_t end,
                                  pot_err *err) {
    const span all = {group_span(p, p->first_group + g).begin, group_span(p, p->first_group + end - 1).end};
    pot_status status = p->format == POT_FORMAT_FP8 ? fp8_block_scales(p, row, err) : POT_OK;
    if (status == POT_OK) take_values(p, row, all);
    for (; g < end && status == POT_OK; g++) {
        const span s = group_span(p, p->first_group + g);
        status = quantize_group(p, codes, &scales[g], row, s, p->values + (s.begin - all.begin), g, err);
    }
    return status;
}

/* ---- one row --------------------------------------------------------------------------------------------------------- */

/* The scale of a group whose codes can be copied; *exact is false when the format cannot hold it. */
static pot_status copy_scale(uint32_t *bits, bool *exact, const packer *p, uint32_t row, uint32_t g, pot_err *err) {
    const span s = group_span(p, p->first_group + g);
    const float scale = pot_source_scale(p->source, row, s.begin / pot_source_group(p->source));
    if (!isfinite(scale))
        return pot_fail(err, POT_NUMERIC, "%s: the scale of row %u, column %u is not finite", p->source->name, row,
                        s.begin > p->col_begin ? s.begin : p->col_begin);
    *exact = pot_scale_encode(bits, p->traits, scale);
    return POT_OK;
}

/* All scales of a row; *exact is false when the format cannot hold one of them. */
static pot_status copy_scales(uint32_t *bits, bool *exact, const packer *p, uint32_t row, pot_err *err) {
    const uint32_t width = p->group_width, groups = (p->source->cols - 1) / width + 1;
    const uint8_t *stored = p->source->scales;
    bool simple = false; /* the very bits of the file */
    *exact = true;
    if (p->format == POT_FORMAT_MXFP4) {
        uint32_t fault = 0;
        stored += (size_t)row * groups + p->first_group;
        for (uint32_t g = 0; g < p->groups; g++) {
            bits[g] = stored[g];
            fault |= bits[g] == 255;
        }
        simple = fault == 0;
    } else if (p->traits->scale == POT_SCALE_F32 && p->traits->integer && pot_source_group(p->source) == width) {
        memcpy(bits, stored + 4 * ((size_t)row * groups + p->first_group), (size_t)4 * p->groups);
        uint32_t fault = 0;
        for (uint32_t g = 0; g < p->groups; g++) fault |= (bits[g] & 0x7f800000u) == 0x7f800000u;
        simple = fault == 0;
    }
    pot_status status = POT_OK;
    for (uint32_t g = 0; g < p->groups && *exact && status == POT_OK && !simple; g++)
        status = copy_scale(&bits[g], exact, p, row, g, err);
    return status;
}

static void copy_codes(const packer *p, uint8_t *codes, uint32_t row, uint32_t g) {
    const span s = group_span(p, p->first_group + g);
    const uint32_t from = s.begin > p->col_begin ? s.begin : p->col_begin, to = s.end < p->col_end ? s.end : p->col_end;
    codes += from - p->col_begin;
    pot_source_codes(codes, p->source, row, from, to - from);
    for (uint32_t k = 0; p->moved != 0 && k < to - from; k++) codes[k] = (uint8_t)(codes[k] + p->moved);
}

static pot_status pack_codes(packer *p, uint8_t *codes, uint32_t *scales, uint32_t row, pot_err *err) {
    pot_status status = POT_OK;
    for (uint32_t g = 0, end; g < p->groups && status == POT_OK; g = end) {
        bool exact = false;
        end = p->copied ? g + 1 : p->groups;
        if (p->copied) status = copy_scale(&scales[g], &exact, p, row, g, err);
        if (status != POT_OK) break;
        if (exact)
            copy_codes(p, codes, row, g);
        else
            status = quantize_groups(p, codes, scales, row, g, end, err);
    }
    return status;
}

static pot_status pack_floats(packer *p, uint8_t *codes, uint32_t row, pot_err *err) {
    const uint32_t n = p->col_end - p->col_begin;
    pot_source_values(p->values, p->source, row, p->col_begin, p->col_end);
    if (pot_largest_bits(p->values, n) >= 0x7f800000u)
        return pot_source_fault(p->source, row, p->col_begin, p->col_end, err);
    if (p->format == POT_FORMAT_F32) {
        memcpy(codes, p->values, (size_t)4 * n);
    } else if (!pot_bf16_codes((uint16_t *)(void *)codes, p->values, n)) {
        for (uint32_t k = 0; k < n; k++)
            if ((pot_bf16_from_f32(p->values[k]) & 0x7fffu) == 0x7f80u)
                return pot_fail(err, POT_NUMERIC, "%s: row %u, column %u is %g, too large for bf16", p->source->name,
                                row, p->col_begin + k, (double)p->values[k]);
    }
    return POT_OK;
}

/* ---- lines of codes -------------------------------------------------------------------------------------------------- */

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

/* Two words of the source in the order that lines have: of 8 codes of 4 bits the upper four go between the lower four, of 16 codes of
 * 2 bits each byte's four go to four bytes.  Both are exchanges of bits of a code's number. */
POT_INLINE uint64_t line_words(uint64_t words, const uint32_t bits) {
    uint64_t differ;
    if (bits == 4) {
        differ = (words ^ words >> 8) & 0x0000ff000000ff00u;
        words ^= differ ^ differ << 8;
        differ = (words ^ words >> 4) & 0x00f000f000f000f0u;
        words ^= differ ^ differ << 4;
    } else if (bits == 2) {
        differ = (words ^ words >> 6) & 0x00cc00cc00cc00ccu;
        words ^= differ ^ differ << 6;
        differ = (words ^ words >> 12) & 0x0000f0f00000f0f0u;
        words ^= differ ^ differ << 12;
    }
    return words;
}

/* Blocks that are copied of one row before the next: a line of the cache or more of the source. */
enum { RUN = 4, AHEAD = 256 /* bytes, of a prefetch */ };

/* Words with numbers that are not finite; any bit of the result tells.  Integers have none. */
POT_INLINE uint64_t not_finite(uint64_t words, const uint32_t bits) {
    if (bits == 8) return ((words & 0x7f7f7f7f7f7f7f7fu) + 0x0101010101010101u) & 0x8080808080808080u; /* e4m3 */
    if (bits == 16) return ((words & 0x7f807f807f807f80u) + 0x0080008000800080u) & 0x8000800080008000u;
    return bits == 32 ? ((words & 0x7f8000007f800000u) + 0x0080000000800000u) & 0x8000000080000000u : 0;
}

POT_INLINE uint64_t copy_run(uint8_t *const lines[RUN], uint32_t blocks, const uint8_t *source, size_t stride,
                             uint32_t rows, const uint32_t bits) {
    const uint32_t n_lines = POT_BLOCK * bits / 32;
    uint64_t fault = 0;
    for (uint32_t r = 0; r < rows; r++, source += stride) {
        for (uint32_t i = 0; i < RUN * POT_BLOCK * bits / 8; i += POT_LINE_BYTES)
            __builtin_prefetch(source + i +
                               AHEAD); /* sixteen rows at a time are more streams than a core follows by itself */
        const uint8_t *from = source;
        for (uint32_t b = 0; b < blocks; b++) {
            uint8_t *to = lines[b] + (size_t)4 * r;
            for (uint32_t line = 0; line < n_lines; line += 2, from += 8) {
                uint64_t words;
                memcpy(&words, from, 8);
                fault |= not_finite(words, bits);
                words = line_words(words, bits);
                const uint32_t first = (uint32_t)words, second = (uint32_t)(words >> 32);
                memcpy(to + (size_t)line * POT_LINE_BYTES, &first, 4);
                memcpy(to + (size_t)(line + 1) * POT_LINE_BYTES, &second, 4);
            }
        }
    }
    return fault;
}

/* The lines of some blocks from rows of the source, which has the same codes; not 0 when one of them, as a float, is not finite. */
static uint64_t copy_lines(uint8_t *const lines[RUN], uint32_t blocks, const uint8_t *source, size_t stride,
                           uint32_t rows, unsigned bits) {
    switch (bits) {
    case 2: return copy_run(lines, blocks, source, stride, rows, 2);
    case 4: return copy_run(lines, blocks, source, stride, rows, 4);
    case 8: return copy_run(lines, blocks, source, stride, rows, 8);
    case 16: return copy_run(lines, blocks, source, stride, rows, 16);
    default: return copy_run(lines, blocks, source, stride, rows, 32);
    }
}

/* ---- a tile ---------------------------------------------------------------------------------------------------------- */

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

/* Steps over the lines of the next `blocks` blocks, from column k of the stream on, writes their scales and finds where the codes go. */
static void walk_run(uint8_t *lines[RUN], uint8_t *tile, pot_walk *walk, const packer *p, uint32_t blocks) {
    const pot_format_traits *traits = p->traits;
    for (uint32_t b = 0; b < blocks; b++) {
        size_t at;
        if (traits->blocks_per_group != 0 && pot_walk_group(walk, &at, traits->scale, traits->blocks_per_group)) {
            if (at % POT_LINE_BYTES == 0) memset(tile + at, 0, POT_LINE_BYTES); /* places without a group */
            write_scales(tile + at, p, walk->group - 1 - (p->first_group - p->all_first_group));
        }
        lines[b] = tile + pot_walk_lines(walk, traits->bits);
    }
}

/* The strip's part of the stream.  `direct`: whole blocks come from rows of the source; everything else from p->codes. */
static pot_status write_strip(uint8_t *tile, pot_walk *walk, const packer *p, bool direct, uint32_t row_begin,
                              uint32_t row_end, pot_err *err) {
    const uint32_t bits = p->traits->bits, rows = row_end - row_begin;
    const uint32_t blocks = pot_blocks(p->col_end - p->col_begin);
    const uint32_t whole = direct ? (p->col_end - p->col_begin) / POT_BLOCK : 0;
    const uint8_t *source =
        (const uint8_t *)p->source->codes + row_begin * p->source->row_stride + (size_t)p->col_begin * bits / 8;
    const int zeros = p->zero * (bits == 2 ? 0x55 : bits == 4 ? 0x11 : 1);
    if (p->traits->scale != POT_SCALE_NONE && p->traits->blocks_per_group == 0 && walk->at == 0)
        write_scales(tile + pot_walk_lines(walk, 1), p, 0);
    uint64_t fault = 0;
    for (uint32_t b = 0, n; b < blocks; b += n) {
        const uint32_t left = b < whole ? whole - b : blocks - b;
        uint8_t *lines[RUN];
        n = left < RUN ? left : RUN;
        walk_run(lines, tile, walk, p, n);
        if (b < whole) {
            for (uint32_t i = 0; i < n && rows < POT_TILE_ROWS; i++)
                memset(lines[i], zeros, (size_t)bits * POT_LINE_BYTES);
            fault |= copy_lines(lines, n, source + (size_t)b * bits * 4, p->source->row_stride, rows, bits);
        } else {
            for (uint32_t i = 0; i < n; i++)
                write_codes(lines[i], p->codes + (size_t)(b + i) * POT_BLOCK * p->code_bytes, p->stride, bits);
        }
    }
    pot_status status = POT_OK;
    if (fault != 0 && (p->format == POT_FORMAT_FP8 || p->traits->scale == POT_SCALE_NONE))
        for (uint32_t row = row_begin; row < row_end && status == POT_OK; row++)
            status = pot_source_fault(p->source, row, p->col_begin, p->col_end, err);
    return status;
}

/* The codes behind the last whole block of a row. */
static pot_status copy_tail(const packer *p, uint8_t *codes, uint32_t row, uint32_t from, pot_err *err) {
    const size_t n = p->col_end - from, bytes = p->code_bytes;
    const uint8_t *stored = (const uint8_t *)p->source->codes + row * p->source->row_stride;
    if (p->traits->bits < 8)
        pot_source_codes(codes, p->source, row, from, p->col_end - from);
    else
        memcpy(codes, stored + from * bytes, n * bytes);
    return p->traits->integer ? POT_OK : pot_source_fault(p->source, row, from, p->col_end, err);
}

/* The scales of a tile and the codes behind its last whole block; *direct is false when a scale does not fit. */
static pot_status prepare_copy(packer *p, bool *direct, uint32_t row_begin, uint32_t row_end, pot_err *err) {
    const uint32_t tail = (p->col_end - p->col_begin) / POT_BLOCK * POT_BLOCK;
    *direct = p->copied && p->moved == 0;
    for (uint32_t row = row_begin; row < row_end && *direct; row++) {
        const uint32_t r = row - row_begin;
        pot_status status = copy_scales(p->scales + (size_t)r * p->groups, direct, p, row, err);
        if (status == POT_OK && *direct && tail < p->col_end - p->col_begin)
            status =
                copy_tail(p, p->codes + r * p->stride + (size_t)tail * p->code_bytes, row, p->col_begin + tail, err);
        if (status != POT_OK) return status;
    }
    return POT_OK;
}

static pot_status pack_strip(uint8_t *tile, pot_walk *walk, packer *p, uint32_t row_begin, uint32_t row_end,
                             pot_err *err) {
    const size_t rows = row_end - row_begin, missing = POT_TILE_ROWS - rows;
    memset(p->codes + rows * p->stride, p->zero, missing * p->stride);
    memset(p->scales + rows * p->groups, 0, missing * p->groups * sizeof *p->scales);
    bool direct;
    pot_status status = prepare_copy(p, &direct, row_begin, row_end, err);
    for (uint32_t row = row_begin; row < row_end && status == POT_OK && !direct; row++) {
        uint8_t *codes = p->codes + (row - row_begin) * p->stride;
        uint32_t *scales = p->scales + (size_t)(row - row_begin) * p->groups;
        status = p->traits->scale == POT_SCALE_NONE ? pack_floats(p, codes, row, err)
                                                    : pack_codes(p, codes, scales, row, err);
    }
    return status == POT_OK ? write_strip(tile, walk, p, direct, row_begin, row_end, err) : status;
}

static uint32_t groups_between(const packer *p, uint32_t begin, uint32_t end) {
    return p->traits->scale == POT_SCALE_NONE ? 0 : (end - 1) / p->group_width + 1 - begin / p->group_width;
}

static pot_status pack_tile(uint8_t *tile, packer *p, uint32_t row_begin, uint32_t row_end, pot_err *err) {
    const uint32_t per_group = p->traits->blocks_per_group;
    pot_walk walk = pot_walk_begin(per_group == 0 ? 0 : p->all_begin / POT_BLOCK % per_group);
    pot_status status = POT_OK;
    /* Strips begin at multiples of their width, so that groups are not cut. */
    for (uint32_t begin = p->all_begin; begin < p->all_end && status == POT_OK; begin = p->col_end) {
        const uint32_t room = p->strip - begin % p->strip;
        p->col_begin = begin;
        p->col_end = p->all_end - begin < room ? p->all_end : begin + room;
        p->first_group = begin / p->group_width;
        p->groups = groups_between(p, begin, p->col_end);
        if (p->col_end == p->all_end) /* behind the last column, where another strip had codes */
            for (uint32_t r = 0; r < POT_TILE_ROWS; r++) memset(p->codes + r * p->stride, p->zero, p->stride);
        status = pack_strip(tile, &walk, p, row_begin, row_end, err);
    }
    return status;
}

/* Cuts `memory` in four-byte pieces. */
static void *take(uint32_t **memory, size_t words) {
    uint32_t *piece = *memory;
    *memory += words;
    return piece;
}

/* Gives the packer's memory, or NULL. */
static uint32_t *packer_init(packer *p, pot_format format, pot_rounding rounding, const pot_stored *source,
                             uint32_t begin, uint32_t end) {
    *p = (packer){.source = source,
                  .format = format,
                  .rounding = rounding,
                  .traits = pot_format_get(format),
                  .zero = zero_code(pot_format_get(format), format),
                  .all_begin = begin,
                  .all_end = end,
                  .strip = STRIP,
                  .group_width = source->cols,
                  .fp8_block = UINT32_MAX};
    const bool row_scale = p->traits->scale != POT_SCALE_NONE && p->traits->blocks_per_group == 0;
    if (p->traits->blocks_per_group != 0) p->group_width = p->traits->blocks_per_group * (uint32_t)POT_BLOCK;
    p->code_bytes = p->traits->bits < 8 ? 1 : p->traits->bits / 8;
    p->all_first_group = begin / p->group_width;
    p->all_groups = groups_between(p, begin, end);
    p->copied = same_codes(p) && groups_nest(p);
    if (row_scale && !p->copied && source->cols > STRIP) p->strip = padded(source->cols);
    const uint32_t most = p->strip < padded(end - begin) ? p->strip : padded(end - begin); /* columns of a strip */
    p->stride = (size_t)most * p->code_bytes + POT_LINE_BYTES;

    const size_t values = row_scale ? padded(source->cols) : STRIP, codes = POT_TILE_ROWS * p->stride / 4;
    const size_t scales = (size_t)POT_TILE_ROWS * (row_scale ? 1 : STRIP / POT_BLOCK);
    uint32_t *memory = pot_alloc_array(values + p->all_groups + codes + scales, sizeof *memory), *rest = memory;
    if (memory == NULL) return NULL;
    p->values = take(&rest, values);
    p->fp8_scales = take(&rest, p->all_groups);
    p->scales = take(&rest, scales);
    p->codes = take(&rest, codes);
    return memory;
}

pot_status pot_pack(uint8_t *out, size_t tile_stride, pot_format format, pot_rounding rounding,
                    const pot_stored *source, uint32_t row_begin, uint32_t row_end, uint32_t col_begin,
                    uint32_t col_end, pot_err *err) {
    POT_ASSERT(col_begin % POT_BLOCK == 0 && col_begin < col_end && col_end <= source->cols);
    POT_ASSERT(row_begin < row_end && row_end <= source->rows);
    POT_ASSERT(format > POT_FORMAT_NONE && format < POT_FORMAT_COUNT);
    POT_ASSERT(format != POT_FORMAT_FP8 || row_begin % POT_TILE_ROWS == 0);
    packer p;
    uint32_t *memory = packer_init(&p, format, rounding, source, col_begin, col_end);
    if (memory == NULL) return pot_fail(err, POT_NO_MEMORY, "no memory to pack %s", source->name);
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

pot_status pot_pack_chunk(uint8_t *out, const pot_ffn_shape *shape, pot_rounding rounding, uint32_t chunk,
                          const pot_stored *gate, const pot_stored *up, const pot_stored *down, pot_err *err) {
    pot_status status = check_shape(gate, shape->inner, shape->hidden, err);
    if (status == POT_OK) status = check_shape(up, shape->inner, shape->hidden, err);
    if (status == POT_OK) status = check_shape(down, shape->hidden, shape->inner, err);
    if (status != POT_OK) return status;

    pot_chunk view;
    pot_chunk_view(&view, shape, chunk, out);
    pot_format format = (pot_format)shape->gate_up_format;
    uint32_t begin = pot_chunk_begin(shape, chunk), end = begin + pot_chunk_rows(shape, chunk);
    uint8_t *up_out = out + (view.up.data - view.gate.data), *down_out = out + (view.down.data - view.gate.data);
    status = pot_pack(out, view.gate.tile_stride, format, rounding, gate, begin, end, 0, shape->hidden, err);
    if (status == POT_OK)
        status = pot_pack(up_out, view.up.tile_stride, format, rounding, up, begin, end, 0, shape->hidden, err);
    if (status == POT_OK)
        status = pot_pack(down_out, view.down.tile_stride, (pot_format)shape->down_format, rounding, down, 0,
                          shape->hidden, begin, end, err);
    if (status != POT_OK) return status;
    uint8_t *written = down_out + pot_tiles(shape->hidden) * view.down.tile_stride;
    memset(written, 0, pot_chunk_bytes(shape, chunk) - (size_t)(written - out));
    return POT_OK;
}
