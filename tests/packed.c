#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/mem.h"
#include "tests/packed.h"

uint8_t *packed_columns(pot_matrix *out, const pot_stored *source, pot_format format, pot_rounding rounding,
                        uint32_t begin, uint32_t end) {
    const uint32_t blocks = pot_format_get(format)->blocks_per_group;
    const uint32_t phase = blocks == 0 ? 0 : begin / POT_BLOCK % blocks;
    const size_t tile = pot_tile_bytes(format, end - begin, phase), bytes = pot_tiles(source->rows) * tile;
    uint8_t *packed = pot_alloc_aligned(bytes + POT_LINE_BYTES);
    pot_err err = {0};
    memset(packed, 0xa5, bytes + POT_LINE_BYTES); /* all of it must be written, and nothing behind it */
    if (pot_pack(packed, tile, format, rounding, source, 0, source->rows, begin, end, &err) != POT_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < POT_LINE_BYTES; i++) assert_int_equal(packed[bytes + (size_t)i], 0xa5);
    *out = (pot_matrix){.data = packed,
                        .tile_stride = tile,
                        .rows = source->rows,
                        .cols = end - begin,
                        .format = (uint8_t)format,
                        .phase = (uint8_t)phase};
    return packed;
}

/* "Scales": which lines of scales stand before a block of codes, and where the last of them is. */
static const uint8_t *scale_line(const pot_matrix *m, uint32_t row, uint32_t block, uint32_t *lines, uint32_t *place) {
    const pot_format_traits *traits = pot_format_get((pot_format)m->format);
    const uint8_t *tile = m->data + row / 16 * m->tile_stride;
    *place = 0;
    *lines = traits->scale == POT_SCALE_NONE ? 0 : 1;
    if (traits->blocks_per_group == 0) return tile;
    const uint32_t per_group = traits->blocks_per_group;
    const uint32_t per_line = traits->scale == POT_SCALE_F32 ? 1 : traits->scale == POT_SCALE_F16 ? 2 : 4;
    const uint32_t group = (block + m->phase) / per_group;
    *lines = group / per_line + 1;
    *place = group % per_line;
    /* Before the line: the lines of earlier groups' scales and the codes of the blocks in them. */
    const uint32_t first = group - *place, begun = first * per_group;
    const uint32_t blocks = begun > m->phase ? begun - m->phase : 0;
    return tile + (size_t)64 * (blocks * traits->bits + *lines - 1);
}

uint32_t packed_scale(const pot_matrix *m, uint32_t row, uint32_t col) {
    const pot_format_traits *traits = pot_format_get((pot_format)m->format);
    uint32_t lines, place, bits = 0;
    const uint8_t *at = scale_line(m, row, col / 32, &lines, &place);
    const size_t width = traits->scale == POT_SCALE_F32 ? 4 : traits->scale == POT_SCALE_F16 ? 2 : 1;
    if (traits->scale != POT_SCALE_NONE) memcpy(&bits, at + (place * 16 + row % 16) * width, width);
    return bits;
}

uint32_t packed_code(const pot_matrix *m, uint32_t row, uint32_t col) {
    const uint32_t bits = pot_format_get((pot_format)m->format)->bits, k = col % 32, r = row % 16;
    uint32_t lines, place, code = 0;
    scale_line(m, row, col / 32, &lines, &place);
    const uint8_t *block = m->data + row / 16 * m->tile_stride + (size_t)64 * (col / 32 * bits + lines);
    switch (bits) {
    case 32: memcpy(&code, block + (size_t)64 * k + (size_t)4 * r, 4); return code;
    case 16: memcpy(&code, block + (size_t)64 * (k / 2) + (size_t)4 * r + 2 * (k % 2), 2); return code;
    case 8: return block[(size_t)64 * (k / 4) + (size_t)4 * r + k % 4];
    case 4: return block[(size_t)64 * (k / 8) + (size_t)4 * r + k % 4] >> (k / 4 % 2 ? 4 : 0) & 15;
    default: return block[(size_t)64 * (k / 16) + (size_t)4 * r + k % 4] >> 2 * (k / 4 % 4) & 3;
    }
}
