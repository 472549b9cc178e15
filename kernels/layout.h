/* Inside kernels/ only: how a tile's stream is walked, in one place for packer, unpacker and every kernel.
 *
 * Kernels pass the traits as constants, so after inlining a walk is a pointer that advances and a short
 * counter. */
#ifndef POT_KERNELS_LAYOUT_H
#define POT_KERNELS_LAYOUT_H

#include "kernels/format.h"

#define POT_INLINE static inline __attribute__((always_inline))

/* Before a loop whose count is a constant of the kernel: what its body makes of the counter (shifts, places in arrays of
 * registers) must be constants too. */
#if defined(__clang__)
#define POT_UNROLL _Pragma("unroll")
#else
#define POT_UNROLL _Pragma("GCC unroll 32")
#endif

/* How far before its use a line is fetched when few rows pass over a stream; measured best at 1 KiB, little worse at 512. */
enum { POT_PREFETCH_AHEAD = 1024 };

/* The lines of a block, one tile after the other: a core that is asked for too many at once stops. */
POT_INLINE void pot_prefetch_lines(const uint8_t *at, const int lines) {
    /* An address behind the matrix is harmless: a prefetch does not fault. */
    for (int l = 0; l < lines; l++) __builtin_prefetch(at + POT_PREFETCH_AHEAD + l * POT_LINE_BYTES);
}

/* Every format once: X(enum, name, codes, bits, scale, blocks of 32 that share a scale).  Feeds the traits
 * and every table. */
#define POT_FORMAT_MAP(X)                           \
    X(F32, "f32", FLOAT, 32, NONE, 0)               \
    X(BF16, "bf16", FLOAT, 16, NONE, 0)             \
    X(FP8, "fp8", FLOAT, 8, F32, 4)                 \
    X(Q8_ROW, "q8", INTEGER, 8, F32, 0)             \
    X(Q8_G32, "q8g32", INTEGER, 8, F32, 1)          \
    X(Q4_ROW, "q4", INTEGER, 4, F32, 0)             \
    X(Q4_G32, "q4g32", INTEGER, 4, F16, 1)          \
    X(Q4_G64, "q4g64", INTEGER, 4, F16, 2)          \
    X(Q4_G128, "q4g128", INTEGER, 4, F16, 4)        \
    X(Q4_G32_F32, "q4g32f32", INTEGER, 4, F32, 1)   \
    X(Q4_G64_F32, "q4g64f32", INTEGER, 4, F32, 2)   \
    X(Q4_G128_F32, "q4g128f32", INTEGER, 4, F32, 4) \
    X(Q2_ROW, "q2", INTEGER, 2, F32, 0)             \
    X(MXFP4, "mxfp4", E2M1, 4, E8M0, 1)

/* FLOAT: the value itself, f32 activations.  INTEGER: v + 2^(bits-1) below 8 bits, else v; E2M1: halves by a
 * table. */
typedef enum pot_codes { POT_CODES_FLOAT, POT_CODES_INTEGER, POT_CODES_E2M1 } pot_codes;

/* Scale groups that share one line. */
POT_INLINE uint32_t pot_layout_groups_per_line(const int kind) {
    return kind == POT_SCALE_E8M0 ? 4 : kind == POT_SCALE_F16 ? 2 : 1;
}

static inline size_t pot_layout_scale_lines(const pot_format_traits *traits, uint32_t blocks, uint32_t phase) {
    if (traits->scale == POT_SCALE_NONE) return 0;
    if (traits->blocks_per_group == 0) return 1;
    size_t groups = ((size_t)blocks + phase + traits->blocks_per_group - 1) / traits->blocks_per_group;
    uint32_t per_line = pot_layout_groups_per_line(traits->scale);
    return (groups + per_line - 1) / per_line;
}

/* A place in a tile, in lines from its start: `at` is the next unread one. */
typedef struct pot_walk {
    size_t at, scale_line;
    uint32_t group; /* groups begun */
    uint32_t left;  /* blocks that the current group still has */
    uint32_t phase; /* blocks that the first group lacks */
} pot_walk;

POT_INLINE pot_walk pot_walk_begin(uint32_t phase) { return (pot_walk){.phase = phase}; }

/* To be called before each block of a format with scale groups.  When a group begins here: steps over its
 * scale line, if it has a new one, and gives the byte offset in the tile of the group's 16 scales; else
 * false. */
POT_INLINE bool pot_walk_group(pot_walk *walk, size_t *scales, const int kind, const uint32_t blocks_per_group) {
    if (walk->left > 0) {
        walk->left--;
        return false;
    }
    const uint32_t per_line = pot_layout_groups_per_line(kind);
    uint32_t place = walk->group++ % per_line;
    if (place == 0) walk->scale_line = walk->at++;
    *scales = walk->scale_line * POT_LINE_BYTES + place * (POT_LINE_BYTES / per_line);
    walk->left = blocks_per_group - 1 - walk->phase;
    walk->phase = 0;
    return true;
}

/* Steps over the lines of a block (or the head line of a tile) and gives their byte offset in the tile. */
POT_INLINE size_t pot_walk_lines(pot_walk *walk, const uint32_t lines) {
    size_t offset = walk->at * POT_LINE_BYTES;
    walk->at += lines;
    return offset;
}

#endif
