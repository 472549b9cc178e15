/* The narrow floats, bit by bit.  A narrow normal number is a f32 with another exponent bias and fewer
 * mantissa bits; a narrow subnormal is a small integer times a fixed power of two, so it is normalised with
 * a shift. */
#include "kernels/convert.h"

/* mantissa * 2^exponent as f32 bits without sign; mantissa below 2^24 and the result a normal f32 (or 0). */
static uint32_t small_integer_bits(uint32_t mantissa, int exponent) {
    if (mantissa == 0) return 0;
    int top = 31 - __builtin_clz(mantissa);
    return (uint32_t)(top + exponent + 127) << 23 | ((mantissa << (23 - top)) & 0x7fffffu);
}

/* The f32 magnitude `bits`, below 2^24 units, in whole units of 2^unit; to nearest, ties to even. */
static uint32_t round_to_units(uint32_t bits, int unit) {
    int shift = unit + 150 - (int)(bits >> 23);
    if (shift > 24) return 0;
    uint32_t mantissa = (bits & 0x7fffffu) | 0x800000u;
    uint32_t whole = mantissa >> shift, rest = mantissa & ((1u << shift) - 1u), half = 1u << (shift - 1);
    return whole + (rest > half || (rest == half && (whole & 1u)));
}

float pot_f32_from_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, exponent = half >> 10 & 31u, mantissa = half & 0x3ffu;
    if (exponent == 31) return pot_f32_from_bits(sign | 0x7f800000u | mantissa << 13);
    if (exponent == 0) return pot_f32_from_bits(sign | small_integer_bits(mantissa, -24));
    return pot_f32_from_bits(sign | (exponent + 112u) << 23 | mantissa << 13);
}

uint16_t pot_f16_from_f32(float value) {
    uint32_t bits = pot_f32_bits(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and more round to infinity */
    if (magnitude < 0x38800000u) return (uint16_t)(sign | round_to_units(magnitude, -24)); /* below 2^-14 */
    uint32_t rounded = magnitude + 0xfffu + (magnitude >> 13 & 1u);
    return (uint16_t)(sign | (rounded - (112u << 23)) >> 13);
}

float pot_f32_from_e4m3(uint8_t code) {
    uint32_t sign = (uint32_t)(code & 0x80u) << 24, exponent = code >> 3 & 15u, mantissa = code & 7u;
    if ((code & 0x7fu) == 0x7fu) return pot_f32_from_bits(sign | 0x7fc00000u);
    if (exponent == 0) return pot_f32_from_bits(sign | small_integer_bits(mantissa, -9));
    return pot_f32_from_bits(sign | (exponent + 120u) << 23 | mantissa << 20);
}

uint8_t pot_e4m3_from_f32(float value) {
    uint32_t bits = pot_f32_bits(value), sign = bits >> 24 & 0x80u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint8_t)(sign | 0x7fu);
    if (magnitude >= 0x43e00000u) return (uint8_t)(sign | 0x7eu);                        /* 448 */
    if (magnitude < 0x3c800000u) return (uint8_t)(sign | round_to_units(magnitude, -9)); /* below 2^-6 */
    uint32_t rounded = magnitude + 0x7ffffu + (magnitude >> 20 & 1u);
    return (uint8_t)(sign | (rounded - (120u << 23)) >> 20);
}

float pot_f32_from_e2m1(uint8_t code) {
    static const float VALUE[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
    return VALUE[code];
}

float pot_f32_from_e8m0(uint8_t code) {
    if (code == 255) return pot_f32_from_bits(0x7fc00000u);
    return pot_f32_from_bits(code == 0 ? 0x00400000u : (uint32_t)code << 23);
}
