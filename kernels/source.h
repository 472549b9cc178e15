/* Inside kernels/ only: a stored matrix seen as codes and scales, for the packer. */
#ifndef POT_KERNELS_SOURCE_H
#define POT_KERNELS_SOURCE_H

#include "kernels/stored.h"

/* Columns that share a scale; `cols` when a row has one, or none. */
uint32_t pot_source_group(const pot_stored *source);
/* The scale of source group `group` of a row; NaN for E8M0 255, and whatever a file holds otherwise. */
float pot_source_scale(const pot_stored *source, uint32_t row, uint32_t group);
/* Integer, FP8 and MXFP4 kinds: `n` codes, one a byte, as stored (v+8, v+2, two's complement, E2M1, e4m3). */
void pot_source_codes(uint8_t *out, const pot_stored *source, uint32_t row, uint32_t col_begin, uint32_t n);

/* code * scale for codes of a kind that has them, as pot_source_codes gives them. */
void pot_scaled_values(float *restrict out, pot_stored_kind kind, const uint8_t *restrict codes, uint32_t n,
                       float scale);
/* Columns [col_begin, col_end) of a row as f32, whatever they are; where one is not finite, pot_source_fault says which. */
void pot_source_values(float *out, const pot_stored *source, uint32_t row, uint32_t col_begin, uint32_t col_end);
pot_status pot_source_fault(const pot_stored *source, uint32_t row, uint32_t col_begin, uint32_t col_end, pot_err *err);

#endif
