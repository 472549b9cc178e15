/* A matrix as a checkpoint stores it (row-major, pointers into a mapping), decoded to f32 or packed to R16.
 *
 * Packing keeps codes and scales exactly where the format can hold them: the same codes, or integers of more bits, in groups that
 * lie within those of the source (MXFP4 -> mxfp4, int4 rows -> q4, FP8 -> fp8, BF16 -> bf16, int4 groups of 192 -> q4g64f32);
 * otherwise values go through f32 and our quantizer.
 * Nothing here owns memory.  Input bytes come from files: the loader has checked sizes; values (E8M0 255, NaN, inf)
 * are checked here.
 */
#ifndef POT_KERNELS_STORED_H
#define POT_KERNELS_STORED_H

#include "common/status.h"
#include "kernels/format.h"

typedef enum pot_stored_kind {
    POT_STORED_F32,
    POT_STORED_BF16,
    POT_STORED_F16,
    POT_STORED_FP8,   /* codes u8 [rows, cols]; scales f32 [ceil(rows/128), ceil(cols/128)] */
    POT_STORED_MXFP4, /* codes u8 [rows, cols/2], low nibble first; scales u8 [rows, cols/32] */
    POT_STORED_INT8,  /* codes i8 [rows, cols]; scales f32 [rows, cols/group] or [rows] when group = 0 */
    POT_STORED_INT4,  /* codes u8 [rows, ceil(cols/2)], v+8, low nibble first; scales as INT8 */
    POT_STORED_INT2   /* codes u8 [rows, ceil(cols/4)], v+2, lowest bits first; scales f32 [rows] */
} pot_stored_kind;

typedef struct pot_stored {
    pot_stored_kind kind;
    uint32_t rows, cols;
    uint32_t group;     /* INT8, INT4: columns that share a scale; 0 = the whole row */
    const void *codes;  /* may be unaligned */
    const void *scales; /* may be unaligned; NULL for float kinds */
    size_t row_stride;  /* bytes between rows of codes (a view of some columns is not needed: see pack) */
    const char *name;   /* for sentences */
} pot_stored;

/* How the scale of a group is chosen when values are quantized to integers or mxfp4 (docs/formats.md, "What packing does to numbers"). */
typedef enum pot_rounding {
    POT_ROUNDING_AUTO, /* by the largest value: amax / top code; mxfp4: Quark's rule */
    POT_ROUNDING_SEARCH, /* the scale of the least squared error among some that are not above it; mxfp4: exponents around it */
    POT_ROUNDING_OCP /* mxfp4: the exponent of the largest value less 2, saturating; integers as AUTO */
} pot_rounding;

/* The format that keeps this matrix exactly; POT_FORMAT_F32 for F16 (exact) and for groups that no format has. */
pot_format pot_stored_natural_format(const pot_stored *source);

/* out[0..col_end-col_begin) = row `row`, columns col_begin.., as f32. */
pot_status pot_stored_row(float *out, const pot_stored *source, uint32_t row, uint32_t col_begin, uint32_t col_end,
                          pot_err *err);

/* Packs rows [row_begin, row_end) x columns [col_begin, col_end) into tiles at `out` that lie `tile_stride` bytes
 * apart.  The written tiles are complete (padding zeroed).  col_begin is a multiple of 32.  fp8: row_begin a multiple of 16. */
pot_status pot_pack(uint8_t *out, size_t tile_stride, pot_format format, pot_rounding rounding,
                    const pot_stored *source, uint32_t row_begin, uint32_t row_end, uint32_t col_begin,
                    uint32_t col_end, pot_err *err);

/* Packs chunk `chunk` of an expert whose matrices are gate, up [inner, hidden] and down [hidden, inner] into
 * pot_chunk_bytes() bytes at `out`. */
pot_status pot_pack_chunk(uint8_t *out, const pot_ffn_shape *shape, pot_rounding rounding, uint32_t chunk,
                          const pot_stored *gate, const pot_stored *up, const pot_stored *down, pot_err *err);

/* One row of a packed matrix as f32 (embedding lookup, reports, tests): out[0..cols). */
void pot_matrix_row(float *out, const pot_matrix *matrix, uint32_t row);

/* What packing changed: sums of squares, so that parts of a tensor, tensors and threads add up. */
typedef struct pot_pack_error {
    double error; /* of packed - source */
    double size;  /* of source */
} pot_pack_error;
/* Adds all of `packed`, which was made of the rows from row_begin on and the columns from col_begin on of `source`. */
pot_status pot_pack_error_add(pot_pack_error *sums, const pot_matrix *packed, const pot_stored *source,
                              uint32_t row_begin, uint32_t col_begin, pot_err *err);
/* Root mean square of the changes over that of the weights: 0 is exact, 0.1 is about what 4 bits cost.  0 where all weights are zero
 * and stayed so, infinite where they did not. */
double pot_pack_error_relative(const pot_pack_error *sums);

#endif
