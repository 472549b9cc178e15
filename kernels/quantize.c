/* Rounding to a grid is made by adding a number so large that its last bit is a step of the grid: the sum is rounded to nearest, ties
 * to even, and its lowest bits count the steps.  This needs no instruction that some machine lacks. */
#include "kernels/quantize.h"

#include <math.h>
#include <string.h>

#include "kernels/convert.h"
#include "kernels/layout.h"

enum { LANES = 32, EXPONENT = 0x7f800000, ONE = 0x3f800000 };

uint32_t pot_largest_bits(const float *values, uint32_t n) {
    int32_t largest = 0; /* magnitudes are not negative: signed ones compare in one instruction everywhere */
    for (uint32_t k = 0; k < n; k++) {
        const int32_t magnitude = (int32_t)(pot_f32_bits(values[k]) & 0x7fffffffu);
        largest = magnitude > largest ? magnitude : largest;
    }
    return (uint32_t)largest;
}

bool pot_scale_encode(uint32_t *bits, const pot_format_traits *traits, float scale) {
    if (traits->scale == POT_SCALE_F16) {
        *bits = pot_f16_from_f32(scale);
        return pot_f32_from_f16((uint16_t)*bits) == scale;
    }
    *bits = pot_f32_bits(scale);
    if (traits->scale == POT_SCALE_E8M0) *bits = *bits == 0x00400000u ? 0 : *bits >> 23;
    return true;
}

/* ---- integers ------------------------------------------------------------------------------------------------------ */

static const float STEPS = 12582912.0f; /* 1.5 * 2^23: in its neighbourhood floats are whole numbers, of both signs */

/* Clamped as 16 bits, for which every machine has an instruction: a quotient is at most twice the top code, and twice that where the
 * scale is a subnormal. */
POT_INLINE void integer_codes(uint8_t *restrict codes, const float *restrict values, uint32_t n, float scale,
                              const uint32_t bits) {
    const int16_t top = (int16_t)((1 << (bits - 1)) - 1), bottom = (int16_t)(-top - 1);
    const int16_t bias = (int16_t)(bits == 8 ? 0 : -bottom);
    for (uint32_t k = 0; k < n; k++) {
        int16_t code = (int16_t)(uint16_t)pot_f32_bits(values[k] / scale + STEPS);
        code = code > top ? top : code;
        code = code < bottom ? bottom : code;
        codes[k] = (uint8_t)(code + bias);
    }
}

void pot_integer_codes(uint8_t *restrict codes, const float *restrict values, uint32_t n, float scale, unsigned bits) {
    switch (bits) {
    case 2: integer_codes(codes, values, n, scale, 2); break;
    case 4: integer_codes(codes, values, n, scale, 4); break;
    default: integer_codes(codes, values, n, scale, 8);
    }
}

/* In a fixed order: so no instruction set adds differently. */
static double add_lanes(float lanes[LANES]) {
    for (int i = 0; i < LANES / 2; i++) lanes[i] += lanes[i + LANES / 2];
    for (int i = 0; i < LANES / 4; i++) lanes[i] += lanes[i + LANES / 4];
    for (int i = 0; i < LANES / 8; i++) lanes[i] += lanes[i + LANES / 8];
    return ((double)lanes[0] + (double)lanes[2]) + ((double)lanes[1] + (double)lanes[3]);
}

/* Sum of squares of what quantizing with this scale changes. */
static double integer_error(const float *values, uint32_t n, float scale, float top) {
    const float per_unit = 1.0f / scale, bottom = -top - 1.0f;
    double sum = 0.0;
    for (uint32_t k = 0; k < n;) {
        float lanes[LANES] = {0};
        const uint32_t end = n - k < 128 ? n : k + 128; /* few enough for f32 */
        for (; k < end; k += LANES)
            for (uint32_t i = 0; i < LANES; i++) {
                const float q = values[k + i] * per_unit, below = q > top ? top : q;
                const float rest = q - (((below < bottom ? bottom : below) + STEPS) - STEPS);
                lanes[i] += rest * rest;
            }
        sum += add_lanes(lanes);
    }
    return sum * ((double)scale * (double)scale);
}

/* A scale as the format stores it; what is below the least f16 becomes that: a scale of 0 would give no codes. */
static float stored_scale(uint32_t *bits, float scale, const pot_format_traits *traits) {
    if (pot_scale_encode(bits, traits, scale)) return scale;
    if (*bits == 0) *bits = 1;
    return pot_f32_from_f16((uint16_t)*bits);
}

/* Scales tried by the search: this many equal steps down from the one by the largest value, to 0.6 of it; 8 bits have little to gain
 * from cutting off, and that close by. */
enum { SEARCH_STEPS = 12, STEPS_OF_WHOLE = 30, STEPS_OF_WHOLE_8 = 300 };

float pot_integer_scale(uint32_t *scale_bits, const float *values, uint32_t n, float amax,
                        const pot_format_traits *traits, pot_rounding rounding) {
    const float top = (float)((1 << (traits->bits - 1)) - 1), whole = amax / top;
    float best = stored_scale(scale_bits, whole == 0.0f ? 1.0f : whole, traits);
    if (rounding != POT_ROUNDING_SEARCH || whole == 0.0f || !isfinite(best)) return best;
    double least = integer_error(values, n, best, top);
    const float step = whole / (float)(traits->bits == 8 ? STEPS_OF_WHOLE_8 : STEPS_OF_WHOLE);
    for (int i = 1; i <= SEARCH_STEPS; i++) {
        uint32_t bits;
        const float scale = stored_scale(&bits, whole - (float)i * step, traits);
        if (scale == 0.0f || bits == *scale_bits) continue;
        const double error = integer_error(values, n, scale, top);
        if (error < least) {
            least = error;
            best = scale;
            *scale_bits = bits;
        }
    }
    return best;
}

/* ---- small floats -------------------------------------------------------------------------------------------------- */

/* A magnitude in steps of a float with `mantissa` bits behind the point whose numbers below the power of two `least` (as bits) are
 * evenly spaced: which is the code of that float. */
POT_INLINE uint32_t small_float_code(float magnitude, uint32_t mantissa, uint32_t least) {
    const float even = pot_f32_from_bits(least);
    const uint32_t up = pot_f32_bits(magnitude > even ? magnitude : even) & EXPONENT;
    const uint32_t large = up + ((23 - mantissa) << 23);
    const uint32_t steps = pot_f32_bits(magnitude + pot_f32_from_bits(large)) - large;
    return steps + ((up - least) >> (23 - mantissa));
}

POT_INLINE float magnitude_of(float value) { return pot_f32_from_bits(pot_f32_bits(value) & 0x7fffffffu); }

/* 2^(127 - exponent), the reciprocal of an E8M0 scale; exponent <= 254. */
static float reciprocal(uint32_t exponent) {
    return pot_f32_from_bits(exponent == 254 ? 0x00400000u : (254 - exponent) << 23);
}

void pot_e2m1_codes(uint8_t *restrict codes, const float *restrict values, uint32_t n, uint32_t exponent) {
    const float per_unit = reciprocal(exponent);
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t sign = pot_f32_bits(values[k]) >> 16 & 0x8000u;
        /* The sign on top, to make bytes of both at once. */
        const uint16_t both = (uint16_t)(small_float_code(magnitude_of(values[k] * per_unit), 1, ONE) | sign);
        int16_t code = (int16_t)(both & 0x7fffu);
        code = code > 7 ? 7 : code;
        code = (int16_t)(code | (both >> 12 & 8));
        codes[k] = (uint8_t)(code == 8 ? 0 : code);
    }
}

static double e2m1_error(const float *values, uint32_t n, uint32_t exponent) {
    const float per_unit = reciprocal(exponent);
    float lanes[LANES] = {0};
    for (uint32_t k = 0; k < n; k += LANES)
        for (uint32_t i = 0; i < LANES; i++) {
            const float whole = magnitude_of(values[k + i] * per_unit), magnitude = whole > 6.0f ? 6.0f : whole;
            const uint32_t up = pot_f32_bits(magnitude > 1.0f ? magnitude : 1.0f) & EXPONENT;
            const float large = pot_f32_from_bits(up + (22u << 23)), rest = whole - ((magnitude + large) - large);
            lanes[i] += rest * rest;
        }
    const double unit = (double)pot_f32_from_e8m0((uint8_t)exponent);
    return add_lanes(lanes) * (unit * unit);
}

uint32_t pot_e2m1_exponent(const float *values, uint32_t n, uint32_t amax_bits, pot_rounding rounding) {
    /* Quark's: that of amax less 2, one more where amax would be 7 units or above. */
    const uint32_t power = (amax_bits + (rounding == POT_ROUNDING_OCP ? 0 : 0x00200000u)) >> 23;
    const uint32_t exponent = power < 2 ? 0 : power - 2;
    if (rounding != POT_ROUNDING_SEARCH || amax_bits == 0) return exponent;
    uint32_t best = exponent + 1;
    double least = e2m1_error(values, n, best);
    for (uint32_t down = 0; down < 2 && exponent >= down; down++) {
        const double error = e2m1_error(values, n, exponent - down);
        if (error < least) {
            least = error;
            best = exponent - down;
        }
    }
    return best;
}

void pot_e4m3_codes(uint8_t *restrict codes, const float *restrict values, uint32_t n, float scale) {
    for (uint32_t k = 0; k < n; k++) {
        const float value = values[k] / scale;
        uint8_t code = (uint8_t)small_float_code(magnitude_of(value), 3, 0x3c800000u);
        code = code > 126 ? 126 : code;
        codes[k] = (uint8_t)(code | (pot_f32_bits(value) >> 24 & 0x80u));
    }
}

bool pot_bf16_codes(uint16_t *restrict codes, const float *restrict values, uint32_t n) {
    uint32_t large = 0;
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t bits = pot_f32_bits(values[k]), half = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
        codes[k] = (uint16_t)half;
        large |= (half & 0x7f80u) == 0x7f80u;
    }
    return large == 0;
}
