/* Packed weight formats: layout R16 (docs/formats.md is the byte-exact page, tests/golden holds its bytes).
 *
 * A matrix [rows, cols] is cut into tiles of 16 output rows.  Along cols (the input dimension K, padded to a
 * multiple of 32 with zero codes) a tile is a stream of 64-byte lines; one line is one zmm, two ymm, four NEON registers:
 *
 *   4-bit   16 rows x 8 k    byte r*4+j: low nibble k+j, high nibble k+4+j          4 lines a block of 32
 *   8-bit   16 rows x 4 k    byte r*4+j: k+j                                        8 lines
 *   2-bit   16 rows x 16 k   byte r*4+j: bits 0-1 k+j, 2-3 k+4+j, 4-5 k+8+j, 6-7 k+12+j   2 lines
 *   bf16    16 rows x 2 k    u16 r*2+j: k+j                                         16 lines
 *   f32     16 rows x 1 k    f32 r: k                                               32 lines
 *
 * Codes: int4 v+8 (0..15), int8 two's complement, int2 v+2 (0..3), E2M1 and e4m3 as they are.
 * Scales are whole lines in the same stream, before the lines that they serve:
 *   f32 per row     one line (16 f32) at the head of the tile
 *   f32 per group   one line a group; f16: one line for two groups (16 f16 of the first, 16 of the second);
 *   E8M0            one line for four blocks (16 bytes each).  Unused places of a line are zero.
 * A scale group is a run of *source* columns [g*group, (g+1)*group).  A chunk's slice of `down` may begin inside a
 * group: `phase` is the number of blocks of 32 that the group has before the matrix's first column, so that the first
 * group of the stream is short.  phase is 0 for every matrix that begins on a group boundary.
 * Rows are padded to 16 with zero codes and scales.
 *
 * Who computes what with them is DESIGN "One answer": kernels.h.
 */
#ifndef POT_KERNELS_FORMAT_H
#define POT_KERNELS_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

enum { POT_BLOCK = 32, POT_TILE_ROWS = 16, POT_LINE_BYTES = 64 };

/* Numbers are part of files and of the wire: never reused. */
typedef enum pot_format {
    POT_FORMAT_NONE = 0,
    POT_FORMAT_F32 = 1,
    POT_FORMAT_BF16 = 2,
    POT_FORMAT_FP8 = 3,    /* e4m3fn, f32 scale per 128 rows x 128 columns */
    POT_FORMAT_Q8_ROW = 4, /* int8, f32 per row */
    POT_FORMAT_Q8_G32 = 5, /* int8, f32 per 32 */
    POT_FORMAT_Q4_ROW = 6, /* int4, f32 per row */
    POT_FORMAT_Q4_G32 = 7, /* int4, f16 per 32, 64, 128 */
    POT_FORMAT_Q4_G64 = 8,
    POT_FORMAT_Q4_G128 = 9,
    POT_FORMAT_Q4_G32_F32 = 10, /* int4, f32 per 32, 64, 128 */
    POT_FORMAT_Q4_G64_F32 = 11,
    POT_FORMAT_Q4_G128_F32 = 12,
    POT_FORMAT_Q2_ROW = 13, /* int2, f32 per row */
    POT_FORMAT_MXFP4 = 14,  /* E2M1, E8M0 per 32 */
    POT_FORMAT_COUNT
} pot_format;

typedef enum pot_scale_kind { POT_SCALE_NONE, POT_SCALE_F32, POT_SCALE_F16, POT_SCALE_E8M0 } pot_scale_kind;

typedef struct pot_format_traits {
    const char *name;         /* "mxfp4", "q4g64", ...: options, files, reports */
    uint8_t bits;             /* of one weight */
    uint8_t scale;            /* pot_scale_kind */
    uint8_t blocks_per_group; /* blocks of 32 that share a scale; 0 = one scale a row, or none */
    bool integer;             /* int8 activations in blocks of 32; else f32 activations */
} pot_format_traits;

const pot_format_traits *pot_format_get(pot_format format); /* borrowed for ever; NONE has name "none" */
/* POT_FORMAT_NONE when the name is unknown. */
pot_format pot_format_find(const char *name);

/* A packed matrix.  Does not own `data`. */
typedef struct pot_matrix {
    const uint8_t *data; /* 64-byte aligned */
    size_t tile_stride;  /* bytes from one tile to the next: tile_bytes, or more where tiles alternate */
    uint32_t rows, cols; /* logical */
    uint8_t format;      /* pot_format */
    uint8_t phase;       /* blocks; see above */
} pot_matrix;

static inline uint32_t pot_blocks(uint32_t cols) { return (cols + POT_BLOCK - 1) / POT_BLOCK; }
static inline uint32_t pot_tiles(uint32_t rows) { return (rows + POT_TILE_ROWS - 1) / POT_TILE_ROWS; }

/* The next whole line: where the next of several matrices in one run of bytes begins. */
static inline uint64_t pot_line_up(uint64_t bytes) {
    return (bytes + POT_LINE_BYTES - 1) / POT_LINE_BYTES * POT_LINE_BYTES;
}

/* Bytes of one tile of 16 rows and of a whole matrix whose tiles follow each other. */
size_t pot_tile_bytes(pot_format format, uint32_t cols, uint32_t phase);
size_t pot_matrix_bytes(pot_format format, uint32_t rows, uint32_t cols);

/* ---- chunks (DESIGN 3, rule 1): the unit of storage, placement and summation ---- */

enum { POT_CHUNK_ALIGN = 4096 };

/* One feed-forward block: [inner, hidden] gate and up, [hidden, inner] down, cut along inner. */
typedef struct pot_ffn_shape {
    uint32_t hidden, inner;
    uint32_t chunk_width; /* c = min(256, 32 * ceil(inner / 256)); the last chunk takes what is left */
    uint32_t n_chunks;
    uint8_t gate_up_format, down_format; /* pot_format */
} pot_ffn_shape;

uint32_t pot_chunk_width(uint32_t inner);
void pot_ffn_shape_init(pot_ffn_shape *out, uint32_t hidden, uint32_t inner, pot_format gate_up, pot_format down);
/* First inner row of a chunk and how many it has. */
uint32_t pot_chunk_begin(const pot_ffn_shape *shape, uint32_t chunk);
uint32_t pot_chunk_rows(const pot_ffn_shape *shape, uint32_t chunk);
/* Packed size, padded to POT_CHUNK_ALIGN. */
size_t pot_chunk_bytes(const pot_ffn_shape *shape, uint32_t chunk);
size_t pot_chunk_stride(const pot_ffn_shape *shape); /* the largest chunk's: what each takes in a file, or in a slot */

/* A chunk as three matrices over one buffer: gate and up tiles alternate, down follows. */
typedef struct pot_chunk {
    pot_matrix gate, up, down;
} pot_chunk;
void pot_chunk_view(pot_chunk *out, const pot_ffn_shape *shape, uint32_t chunk, const uint8_t *data);

#endif
