/* What the tests of kernels share: numbers that look random and are the same on every run. */
#ifndef POT_TESTS_KERNELS_SUPPORT_H
#define POT_TESTS_KERNELS_SUPPORT_H

#include "kernels/stored.h"

static inline uint32_t random_bits(void) {
    static uint32_t state = 1;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

/* -1 .. 1 */
static inline float random_float(void) { return (float)(int32_t)random_bits() * 0x1p-31f; }

/* The stored kind whose codes a format keeps. */
static inline pot_stored_kind stored_kind_of(pot_format format) {
    switch (format) {
    case POT_FORMAT_F32: return POT_STORED_F32;
    case POT_FORMAT_BF16: return POT_STORED_BF16;
    case POT_FORMAT_FP8: return POT_STORED_FP8;
    case POT_FORMAT_MXFP4: return POT_STORED_MXFP4;
    case POT_FORMAT_Q2_ROW: return POT_STORED_INT2;
    case POT_FORMAT_Q8_ROW:
    case POT_FORMAT_Q8_G32: return POT_STORED_INT8;
    default: return POT_STORED_INT4;
    }
}

#endif
