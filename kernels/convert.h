/* Exact conversions between storage floats and f32, written with integers so that no ISA can differ. */
#ifndef POT_KERNELS_CONVERT_H
#define POT_KERNELS_CONVERT_H

#include <stdint.h>
#include <string.h>

static inline float pot_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t pot_f32_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float pot_f32_from_bf16(uint16_t half) { return pot_f32_from_bits((uint32_t)half << 16); }

/* Round to nearest even; a NaN stays a (quiet) NaN. */
static inline uint16_t pot_bf16_from_f32(float value) {
    uint32_t bits = pot_f32_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float pot_f32_from_f16(uint16_t half);
uint16_t pot_f16_from_f32(float value); /* round to nearest even, overflow to infinity */
float pot_f32_from_e4m3(uint8_t code);  /* e4m3fn: no infinity, 0x7f and 0xff are NaN, max 448 */
uint8_t pot_e4m3_from_f32(float value); /* round to nearest even, saturating at 448; a NaN stays one */
float pot_f32_from_e2m1(uint8_t code);  /* 0 .5 1 1.5 2 3 4 6, bit 3 is the sign; code < 16 */
float pot_f32_from_e8m0(uint8_t code);  /* 2^(code-127); 0 is 2^-127 (a denormal), 255 is NaN */

#endif
