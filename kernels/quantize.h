/* Inside kernels/ only: the arithmetic of the packer over runs of values (docs/formats.md, "What packing does to numbers").
 *
 * Converting a model calls these for every weight, so they are plain loops that a compiler makes vectors of on any instruction set.
 * What they compute is the same on all of them: only + - * / and integers, never a sum whose order a compiler may choose.
 * `n` is always a multiple of 32: what lies behind the last column is zero, and becomes the code of zero. */
#ifndef POT_KERNELS_QUANTIZE_H
#define POT_KERNELS_QUANTIZE_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/stored.h"

/* The bits of the largest magnitude; 0x7f800000 or more when a value is not finite.  Any n. */
uint32_t pot_largest_bits(const float *values, uint32_t n);

/* One code a byte, as the format has them: v + 2^(bits-1), or two's complement for 8 bits. scale > 0. */
void pot_integer_codes(uint8_t *restrict codes, const float *restrict values, uint32_t n, float scale, unsigned bits);
/* The scale of a group with the largest magnitude `amax`, as the format stores it; also as bits.  f16: infinite where f16 has none. */
float pot_integer_scale(uint32_t *scale_bits, const float *values, uint32_t n, float amax,
                        const pot_format_traits *traits, pot_rounding rounding);

/* Values in units of 2^(exponent - 127), to nearest, saturating at 6, no negative zero. */
void pot_e2m1_codes(uint8_t *restrict codes, const float *restrict values, uint32_t n, uint32_t exponent);
/* The E8M0 scale of a block. */
uint32_t pot_e2m1_exponent(const float *values, uint32_t n, uint32_t amax_bits, pot_rounding rounding);

void pot_e4m3_codes(uint8_t *restrict codes, const float *restrict values, uint32_t n, float scale);
/* False when a value is too large.  Any n. */
bool pot_bf16_codes(uint16_t *restrict codes, const float *restrict values, uint32_t n);

/* The bits of a scale as the format stores them; false when the format cannot hold it exactly. */
bool pot_scale_encode(uint32_t *bits, const pot_format_traits *traits, float scale);

#endif
