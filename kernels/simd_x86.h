/* What every x86 table has in common, in 256-bit registers; AVX2 is the least that any of them has. */
#ifndef POT_KERNELS_SIMD_X86_H
#define POT_KERNELS_SIMD_X86_H

#include <immintrin.h>
#include <string.h>

#include "kernels/layout.h"

POT_INLINE __m256i load_bytes(const void *at) { return _mm256_loadu_si256((const __m256i *)at); }

POT_INLINE int32_t block_sum(const int8_t *codes) {
    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), load_bytes(codes));
    __m256i fours = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(fours), _mm256_extracti128_si256(fours, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}

/* Values that are all below 2^51 become integers by adding 1.5 * 2^52. */
POT_INLINE bool grid_add_some(int64_t *acc, const float *v, float weight, double unit) {
    const __m256d units = _mm256_set1_pd(unit), magic = _mm256_set1_pd(0x1.8p52), limit = _mm256_set1_pd(0x1p51);
    const __m256d sign = _mm256_set1_pd(-0.0);
    __m256d scaled[4], large = _mm256_setzero_pd();
    for (int i = 0; i < 4; i++) {
        __m128 weighted = _mm_mul_ps(_mm_loadu_ps(v + 4 * i), _mm_set1_ps(weight));
        scaled[i] = _mm256_mul_pd(_mm256_cvtps_pd(weighted), units);
        large = _mm256_or_pd(large, _mm256_cmp_pd(_mm256_andnot_pd(sign, scaled[i]), limit, _CMP_NLT_UQ));
    }
    if (_mm256_movemask_pd(large) != 0) return false;
    for (int i = 0; i < 4; i++) {
        __m256i q = _mm256_sub_epi64(_mm256_castpd_si256(_mm256_add_pd(scaled[i], magic)), _mm256_castpd_si256(magic));
        __m256i *at = (__m256i *)(void *)(acc + 4 * i);
        _mm256_storeu_si256(at, _mm256_add_epi64(_mm256_loadu_si256(at), q));
    }
    return true;
}

/* Codes are stored or made unsigned: v + 2^(bits-1), E2M1 in halves + 12. */
POT_INLINE int zero_point(const int bits, const bool e2m1) { return e2m1 ? 12 : 1 << (bits - 1); }

/* Twice the value of each E2M1 code, plus 12; and without the 12. */
POT_INLINE __m128i e2m1_unsigned_halves(void) {
    return _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
}
POT_INLINE __m128i e2m1_signed_halves(void) {
    return _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
}

POT_INLINE int32_t four_codes(const int8_t *x) {
    int32_t quad;
    memcpy(&quad, x, sizeof quad);
    return quad;
}

#endif
