/* Packed matrices for tests: packing all of a source, and a reader that knows only what docs/formats.md says, none of kernels/. */
#ifndef POT_TESTS_PACKED_H
#define POT_TESTS_PACKED_H

#include "kernels/stored.h"

/* Columns [begin, end) of all rows; fails the test when packing does.  The caller frees the result, which *out is a view of. */
uint8_t *packed_columns(pot_matrix *out, const pot_stored *source, pot_format format, pot_rounding rounding,
                        uint32_t begin, uint32_t end);

/* The code of a place, and the bits of its scale as the format stores them (0 where it has none). */
uint32_t packed_code(const pot_matrix *matrix, uint32_t row, uint32_t col);
uint32_t packed_scale(const pot_matrix *matrix, uint32_t row, uint32_t col);

#endif
