/* Stands before the compiler's <immintrin.h> when a table of kernels is compiled for a test on a CPU that lacks its instructions.
 * SIMDe gives AVX-512 in portable C; what its packaged version lacks, AVX-VNNI and AMX follow below, each as its manual says. */
#ifndef POT_TESTS_EMULATED_IMMINTRIN_H
#define POT_TESTS_EMULATED_IMMINTRIN_H

#include_next <immintrin.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <stdint.h>
#include <string.h>

#define EMULATED static inline __attribute__((always_inline))

/* A register's low and high half through an operation that AVX2 has. */
#define HALVES_512(out_type, out, call_low, call_high)                 \
    do {                                                               \
        out_type both_[2] = {call_low, call_high};                     \
        memcpy(&(out), both_, sizeof(out));                            \
    } while (0)

EMULATED __m512 emulated_cvtepi32_ps(__m512i v) {
    __m256i half[2];
    __m512 out;
    memcpy(half, &v, sizeof half);
    HALVES_512(__m256, out, _mm256_cvtepi32_ps(half[0]), _mm256_cvtepi32_ps(half[1]));
    return out;
}
EMULATED __m512i emulated_cvtps_epi32(__m512 v) {
    __m256 half[2];
    __m512i out;
    memcpy(half, &v, sizeof half);
    HALVES_512(__m256i, out, _mm256_cvtps_epi32(half[0]), _mm256_cvtps_epi32(half[1]));
    return out;
}
EMULATED __m512 emulated_cvtph_ps(__m256i v) {
    __m512 out;
    HALVES_512(__m256, out, _mm256_cvtph_ps(_mm256_castsi256_si128(v)), _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)));
    return out;
}
EMULATED __m512i emulated_srai_epi32(__m512i v, unsigned count) {
    int32_t lane[16];
    memcpy(lane, &v, sizeof lane);
    for (int i = 0; i < 16; i++) lane[i] >>= count > 31 ? 31 : count;
    memcpy(&v, lane, sizeof lane);
    return v;
}
EMULATED __m512i emulated_srli_epi16(__m512i v, unsigned count) {
    uint16_t lane[32];
    memcpy(lane, &v, sizeof lane);
    for (int i = 0; i < 32; i++) lane[i] = count > 15 ? 0 : (uint16_t)(lane[i] >> count);
    memcpy(&v, lane, sizeof lane);
    return v;
}
EMULATED __m512i emulated_slli_epi32(__m512i v, unsigned count) {
    uint32_t lane[16];
    memcpy(lane, &v, sizeof lane);
    for (int i = 0; i < 16; i++) lane[i] = count > 31 ? 0 : lane[i] << count;
    memcpy(&v, lane, sizeof lane);
    return v;
}
EMULATED __m512i emulated_cvtepu8_epi32(__m128i v) {
    uint8_t in[16];
    uint32_t lane[16];
    __m512i out;
    memcpy(in, &v, sizeof in);
    for (int i = 0; i < 16; i++) lane[i] = in[i];
    memcpy(&out, lane, sizeof out);
    return out;
}
EMULATED __m512i emulated_cvtepu16_epi32(__m256i v) {
    uint16_t in[16];
    uint32_t lane[16];
    __m512i out;
    memcpy(in, &v, sizeof in);
    for (int i = 0; i < 16; i++) lane[i] = in[i];
    memcpy(&out, lane, sizeof out);
    return out;
}
EMULATED __m128i emulated_cvtepi32_epi8(__m512i v) {
    uint32_t lane[16];
    uint8_t low[16];
    __m128i out;
    memcpy(lane, &v, sizeof lane);
    for (int i = 0; i < 16; i++) low[i] = (uint8_t)lane[i];
    memcpy(&out, low, sizeof out);
    return out;
}

/* Four products of an unsigned and a signed byte are added to a lane; nothing saturates on the way. */
#define EMULATE_DPBUSD(type, acc, u, s)                                                                            \
    do {                                                                                                           \
        enum { LANES_ = sizeof(type) / 4 };                                                                        \
        int32_t sum_[LANES_];                                                                                      \
        uint8_t a_[sizeof(type)];                                                                                  \
        int8_t b_[sizeof(type)];                                                                                   \
        memcpy(sum_, &(acc), sizeof sum_);                                                                         \
        memcpy(a_, &(u), sizeof a_);                                                                               \
        memcpy(b_, &(s), sizeof b_);                                                                               \
        for (int i_ = 0; i_ < LANES_; i_++)                                                                        \
            for (int j_ = 0; j_ < 4; j_++)                                                                         \
                sum_[i_] = (int32_t)((uint32_t)sum_[i_] + (uint32_t)(a_[4 * i_ + j_] * b_[4 * i_ + j_]));          \
        memcpy(&(acc), sum_, sizeof sum_);                                                                         \
    } while (0)
EMULATED __m256i emulated_dpbusd_256(__m256i acc, __m256i u, __m256i s) {
    EMULATE_DPBUSD(__m256i, acc, u, s);
    return acc;
}
EMULATED __m512i emulated_dpbusd_512(__m512i acc, __m512i u, __m512i s) {
    EMULATE_DPBUSD(__m512i, acc, u, s);
    return acc;
}

/* SIMDe wants the counts of these to be constants before anything is inlined. */
#undef _mm512_srli_epi16
#undef _mm512_slli_epi32
#define _mm512_srli_epi16 emulated_srli_epi16
#define _mm512_slli_epi32 emulated_slli_epi32
#undef _mm512_dpbusd_epi32
#define _mm512_cvtepi32_ps emulated_cvtepi32_ps
#define _mm512_cvtps_epi32 emulated_cvtps_epi32
#define _mm512_cvtph_ps emulated_cvtph_ps
#define _mm512_srai_epi32 emulated_srai_epi32
#define _mm512_cvtepu8_epi32 emulated_cvtepu8_epi32
#define _mm512_cvtepu16_epi32 emulated_cvtepu16_epi32
#define _mm512_cvtepi32_epi8 emulated_cvtepi32_epi8
#define _mm512_dpbusd_epi32 emulated_dpbusd_512
#define _mm256_dpbusd_avx_epi32 emulated_dpbusd_256

/* ---- AMX: eight tiles of 16 rows x 64 bytes, with the sizes of the configuration ---- */

typedef struct emulated_amx {
    uint8_t tile[8][16][64];
    uint8_t palette;
    uint16_t row_bytes[8];
    uint8_t rows[8];
} emulated_amx;
static _Thread_local emulated_amx amx;

/* What the hardware answers with a fault. */
#define AMX_FAULT_IF(condition)          \
    do {                                 \
        if (condition) __builtin_trap(); \
    } while (0)

EMULATED void emulated_tile_loadconfig(const void *config) {
    const uint8_t *at = config;
    memset(&amx, 0, sizeof amx);
    amx.palette = at[0];
    AMX_FAULT_IF(amx.palette != 1 || at[1] != 0);
    for (int i = 2; i < 16; i++) AMX_FAULT_IF(at[i] != 0);
    memcpy(amx.row_bytes, at + 16, sizeof amx.row_bytes);
    memcpy(amx.rows, at + 48, sizeof amx.rows);
    for (int i = 0; i < 8; i++) AMX_FAULT_IF(amx.row_bytes[i] > 64 || amx.rows[i] > 16);
    for (int i = 32; i < 48; i++) AMX_FAULT_IF(at[i] != 0);
    for (int i = 56; i < 64; i++) AMX_FAULT_IF(at[i] != 0);
}
EMULATED void emulated_tile_release(void) { memset(&amx, 0, sizeof amx); }
EMULATED void emulated_tile_zero(int t) {
    AMX_FAULT_IF(amx.palette == 0);
    memset(amx.tile[t], 0, sizeof amx.tile[t]);
}
EMULATED void emulated_tile_loadd(int t, const void *base, size_t stride) {
    emulated_tile_zero(t);
    for (int r = 0; r < amx.rows[t]; r++) memcpy(amx.tile[t][r], (const uint8_t *)base + (size_t)r * stride, amx.row_bytes[t]);
}
EMULATED void emulated_tile_stored(int t, void *base, size_t stride) {
    AMX_FAULT_IF(amx.palette == 0);
    for (int r = 0; r < amx.rows[t]; r++) memcpy((uint8_t *)base + (size_t)r * stride, amx.tile[t][r], amx.row_bytes[t]);
}
/* d[m][n] += the four products of bytes 4k.. of a's row m and 4n.. of b's row k, for all k. */
EMULATED void emulated_tile_dpbssd(int d, int a, int b) {
    AMX_FAULT_IF(amx.palette == 0 || d == a || d == b || a == b);
    AMX_FAULT_IF(amx.rows[d] != amx.rows[a] || amx.row_bytes[d] != amx.row_bytes[b] || amx.row_bytes[a] != 4 * amx.rows[b]);
    for (int m = 0; m < amx.rows[d]; m++)
        for (int k = 0; k < amx.rows[b]; k++)
            for (int n = 0; n < amx.row_bytes[d] / 4; n++) {
                int32_t sum;
                memcpy(&sum, amx.tile[d][m] + 4 * n, sizeof sum);
                for (int j = 0; j < 4; j++)
                    sum += (int8_t)amx.tile[a][m][4 * k + j] * (int8_t)amx.tile[b][k][4 * n + j];
                memcpy(amx.tile[d][m] + 4 * n, &sum, sizeof sum);
            }
}

#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbssd
#define _tile_loadconfig emulated_tile_loadconfig
#define _tile_release emulated_tile_release
#define _tile_zero emulated_tile_zero
#define _tile_loadd emulated_tile_loadd
#define _tile_stored emulated_tile_stored
#define _tile_dpbssd emulated_tile_dpbssd

#endif
