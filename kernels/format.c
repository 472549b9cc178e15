/* The traits of every packed format and all arithmetic about sizes and places in R16.
 *
 * A tile's stream is counted in lines of 64 bytes.  A block of 32 columns of 16 rows takes as many lines as
 * a weight has bits (16 * 32 * bits / 8 / 64 = bits), and scales are whole lines in between; the rest is
 * division. */
#include "kernels/format.h"

#include <string.h>

#include "kernels/layout.h"

static const pot_format_traits TRAITS[POT_FORMAT_COUNT] = {[POT_FORMAT_NONE] = {"none", 0, POT_SCALE_NONE, 0, false},
#define X(format, name, codes, bits, scale, group) \
    [POT_FORMAT_##format] = {name, bits, POT_SCALE_##scale, group, POT_CODES_##codes != POT_CODES_FLOAT},
                                                           POT_FORMAT_MAP(X)
#undef X
};

const pot_format_traits *pot_format_get(pot_format format) {
    unsigned index = (unsigned)format;
    return &TRAITS[index < POT_FORMAT_COUNT ? index : POT_FORMAT_NONE];
}

pot_format pot_format_find(const char *name) {
    for (int f = POT_FORMAT_NONE + 1; f < POT_FORMAT_COUNT; f++)
        if (strcmp(name, TRAITS[f].name) == 0) return (pot_format)f;
    return POT_FORMAT_NONE;
}

size_t pot_tile_bytes(pot_format format, uint32_t cols, uint32_t phase) {
    const pot_format_traits *traits = pot_format_get(format);
    uint32_t blocks = pot_blocks(cols);
    return (pot_layout_scale_lines(traits, blocks, phase) + (size_t)blocks * traits->bits) * POT_LINE_BYTES;
}

size_t pot_matrix_bytes(pot_format format, uint32_t rows, uint32_t cols) {
    return pot_tiles(rows) * pot_tile_bytes(format, cols, 0);
}

uint32_t pot_chunk_width(uint32_t inner) {
    uint32_t width = POT_BLOCK * (inner / 256 + (inner % 256 != 0));
    return width < 256 ? width : 256;
}

void pot_ffn_shape_init(pot_ffn_shape *out, uint32_t hidden, uint32_t inner, pot_format gate_up, pot_format down) {
    uint32_t width = pot_chunk_width(inner);
    *out = (pot_ffn_shape){
        .hidden = hidden,
        .inner = inner,
        .chunk_width = width,
        .n_chunks = width == 0 ? 0 : inner / width + (inner % width != 0),
        .gate_up_format = (uint8_t)gate_up,
        .down_format = (uint8_t)down,
    };
}

uint32_t pot_chunk_begin(const pot_ffn_shape *shape, uint32_t chunk) { return chunk * shape->chunk_width; }

uint32_t pot_chunk_rows(const pot_ffn_shape *shape, uint32_t chunk) {
    uint32_t left = shape->inner - pot_chunk_begin(shape, chunk);
    return left < shape->chunk_width ? left : shape->chunk_width;
}

/* The chunk's columns of `down` may begin inside a scale group of the whole matrix. */
static uint32_t down_phase(const pot_ffn_shape *shape, uint32_t chunk) {
    uint32_t blocks = pot_format_get((pot_format)shape->down_format)->blocks_per_group;
    return blocks == 0 ? 0 : pot_chunk_begin(shape, chunk) / POT_BLOCK % blocks;
}

size_t pot_chunk_bytes(const pot_ffn_shape *shape, uint32_t chunk) {
    uint32_t rows = pot_chunk_rows(shape, chunk);
    size_t gate_up = 2 * pot_tiles(rows) * pot_tile_bytes((pot_format)shape->gate_up_format, shape->hidden, 0);
    size_t down =
        pot_tiles(shape->hidden) * pot_tile_bytes((pot_format)shape->down_format, rows, down_phase(shape, chunk));
    return (gate_up + down + POT_CHUNK_ALIGN - 1) / POT_CHUNK_ALIGN * POT_CHUNK_ALIGN;
}

size_t pot_chunk_stride(const pot_ffn_shape *shape) {
    size_t most = 0;
    for (uint32_t c = 0; c < shape->n_chunks; c++) {
        size_t bytes = pot_chunk_bytes(shape, c);
        if (bytes > most) most = bytes;
    }
    return most;
}

void pot_chunk_view(pot_chunk *out, const pot_ffn_shape *shape, uint32_t chunk, const uint8_t *data) {
    uint32_t rows = pot_chunk_rows(shape, chunk), phase = down_phase(shape, chunk);
    size_t tile = pot_tile_bytes((pot_format)shape->gate_up_format, shape->hidden, 0);
    pot_matrix gate = {
        .data = data, .tile_stride = 2 * tile, .rows = rows, .cols = shape->hidden, .format = shape->gate_up_format};
    pot_matrix up = gate;
    up.data = data + tile;
    pot_matrix down = {.data = data + 2 * pot_tiles(rows) * tile,
                       .tile_stride = pot_tile_bytes((pot_format)shape->down_format, rows, phase),
                       .rows = shape->hidden,
                       .cols = rows,
                       .format = shape->down_format,
                       .phase = (uint8_t)phase};
    *out = (pot_chunk){.gate = gate, .up = up, .down = down};
}
