/* y = W x for tiles of 16 rows in layout R16, by one block of threads.
 *
 * The block has TILES tiles; WARPS / TILES warps share one.  K is walked in stages of a few blocks of 32 columns:
 *
 *   fetch    a warp reads 512 contiguous bytes at a time, a uint4 a lane.  Eight lines of 64 bytes lie side by side:
 *            lane l has bytes 16*(l%4).. of line l/4, which are 4 bytes of each of the rows 4*(l%4) .. 4*(l%4)+3.
 *            UNITS such loads a lane are in flight while the stage before is summed.
 *   reduce   integer codes: each lane has dp4a sums of 4 rows over its line's columns.  The lines of a block lie in lanes
 *            4, 8 (and 16) apart, so two halving exchanges leave each lane with the block's whole dot product for one
 *            row; it goes to shared memory.  Integer sums are exact: their order is free.
 *            Float codes go to shared memory as they are.
 *   chain    after a barrier ONE thread an output takes the stage's blocks (float codes: columns) in ascending order, one
 *            fmaf each.  This is the order that the contract fixes, so the bits are those of kernels_generic.c.
 *
 * Shared memory is doubled, so a stage costs one barrier; for 16 rows it is not, and costs two. */
#ifndef POT_KERNELS_CUDA_PRODUCT_CUH
#define POT_KERNELS_CUDA_PRODUCT_CUH

#include <type_traits>

#include "kernels/cuda/device.cuh"

static const int BLOCK = 32, TILE_ROWS = 16, LINE_BYTES = 64, LANE_BYTES = 16,
                 UNIT_LINES = WARP * LANE_BYTES / LINE_BYTES;

enum codes { CODES_F32, CODES_BF16, CODES_FP8, CODES_INT8, CODES_INT4, CODES_INT2, CODES_E2M1 };

/* Where a format keeps its scales; the same for all matrices of a launch. */
enum scale_kind { SCALE_NONE, SCALE_F32, SCALE_F16, SCALE_E8M0 };
struct scale_layout {
    uint8_t kind;
    uint8_t per_row;     /* one scale a row, at the head of the tile */
    uint8_t group_shift; /* log2 of the blocks that share a scale; 31 for one a row */
    uint8_t line_shift;  /* log2 of the groups that share a line */
};

/* Activation rows: row i of a product is rows[i], or first + i where there is no list.  blocks of 32 a row. */
struct act_view {
    const int8_t *codes;
    const float *scales;
    const float *values;
    const uint32_t *rows;
    uint32_t first, blocks;
};

POT_DEVICE size_t act_block(const act_view &x, int i, uint32_t block) {
    uint32_t row = x.rows == nullptr ? x.first + (uint32_t)i : x.rows[i];
    return (size_t)row * x.blocks + block;
}

/* ---- places in a tile (kernels/layout.h walks them; here any block is found directly) ---- */

POT_DEVICE uint32_t scale_line_of(const scale_layout &s, uint32_t phase, uint32_t block) {
    return (block + phase) >> s.group_shift >> s.line_shift;
}

POT_DEVICE size_t code_byte(const scale_layout &s, uint32_t phase, uint32_t block, int bits) {
    uint32_t scale_lines = s.kind == SCALE_NONE ? 0 : scale_line_of(s, phase, block) + 1;
    return ((size_t)block * (uint32_t)bits + scale_lines) * LINE_BYTES;
}

/* The stored scale of a block and row, as it lies there. */
POT_DEVICE uint32_t read_scale(const uint8_t *tile, const scale_layout &s, uint32_t phase, uint32_t block, int bits,
                               int row) {
    const uint32_t group = (block + phase) >> s.group_shift, line = group >> s.line_shift;
    const uint32_t first = line << s.line_shift
                                << s.group_shift; /* the first block that the line serves, and the phase */
    const uint32_t before = first > phase ? first - phase : 0;
    const uint8_t *at = tile + ((size_t)before * (uint32_t)bits + line) * LINE_BYTES;
    const uint32_t place = (group & ((1u << s.line_shift) - 1u)) * TILE_ROWS + (uint32_t)row;
    if (s.kind == SCALE_F32) return reinterpret_cast<const uint32_t *>(at)[place];
    if (s.kind == SCALE_F16) return reinterpret_cast<const uint16_t *>(at)[place];
    return at[place];
}

POT_DEVICE float scale_value(const scale_layout &s, uint32_t stored) {
    if (s.kind == SCALE_F32) return __uint_as_float(stored);
    if (s.kind == SCALE_F16) return float_from_f16(stored);
    return float_from_e8m0_half(stored);
}

/* ---- shapes of one kind of codes C, for up to N rows, with TILES tiles a block ---- */

template <codes C> struct code_traits {
    static const int BITS = C == CODES_F32                      ? 32
                            : C == CODES_BF16                   ? 16
                            : C == CODES_FP8 || C == CODES_INT8 ? 8
                            : C == CODES_INT2                   ? 2
                                                                : 4;
    static const bool INTEGER = C >= CODES_INT8;
    static const bool BLOCK_SCALES = C != CODES_F32 && C != CODES_BF16 && C != CODES_INT2; /* it may have them */
    static const int COLUMNS = BLOCK / BITS;                                               /* of an integer's line */
    static const int QUADS = INTEGER ? 8 / BITS : 1;                                       /* of an integer's word */
    /* Sub-byte codes are unpacked to the high bits of a byte, which costs no subtraction. */
    static const int SHIFT = C == CODES_INT4 ? 4 : C == CODES_INT2 ? 6 : 0;
};

template <codes C, int N, int TILES> struct shapes {
    typedef code_traits<C> traits;
    static const int BITS = traits::BITS;
    static const int TILE_WARPS = WARPS / TILES;
    /* 2 KB a warp in flight where the rows leave room for it in registers and shared memory (48 KB a block). */
    static const int UNITS = !traits::INTEGER ? 4 : N == 1 ? (BITS == 2 ? 2 : 4) : BITS == 8 ? 4 : BITS == 4 ? 2 : 1;
    static const int STAGE_BLOCKS = TILE_WARPS * UNITS * UNIT_LINES / BITS;
    static const int BUFFERS = traits::INTEGER && N == 16 ? 1 : 2;
    static const int OUTPUTS = TILES * TILE_ROWS * N;
    static const int OWN = (OUTPUTS + THREADS - 1) / THREADS; /* outputs of a thread */
    static const int DOTS =
        STAGE_BLOCKS * TILE_ROWS + TILE_ROWS; /* of a row; the last 16 keep two rows in other banks */

    static_assert(STAGE_BLOCKS >= 1, "a stage holds whole blocks");
    static_assert(!traits::INTEGER || UNIT_LINES % BITS == 0, "a unit of integers is whole blocks");

    struct dot_stage {
        int dots[TILES][N][DOTS];
    };
    struct line_stage {
        uint4 lines[TILES][STAGE_BLOCKS * BITS * LINE_BYTES / LANE_BYTES];
    };
    struct stage {
        typename std::conditional<traits::INTEGER, dot_stage, line_stage>::type sums;
        float scales[traits::BLOCK_SCALES ? TILES * STAGE_BLOCKS * TILE_ROWS : 1];
    };
    struct shared {
        stage buffer[BUFFERS];
    };
};

/* What a lane fetched of a unit, and the scale of the block and row that it owns. */
struct fetched {
    uint4 codes;
    uint32_t scale;
};

/* Of a unit's lines a lane has lane_line(); of the rows of that line's block it owns, after the exchanges, lane_row(). */
POT_DEVICE int lane_line(int lane) { return lane / 4; }
POT_DEVICE int lane_row(int lane) { return lane % 4 * 4 + (lane >> 2 & 1) * 2 + (lane >> 3 & 1); }

/* A block of 8-bit codes has eight lines, so two lanes come to own the same row: the lower one stores. */
template <int BITS> POT_DEVICE bool lane_stores(int lane) { return BITS != 8 || lane < WARP / 2; }

/* ---- integers ---- */

template <codes C> POT_DEVICE void unpack(uint32_t quad[code_traits<C>::QUADS], uint32_t word) {
    if (C == CODES_INT8) {
        quad[0] = word;
    } else if (C == CODES_INT4 || C == CODES_INT2) {
        const int bits = code_traits<C>::BITS;
        const uint32_t mask = C == CODES_INT4 ? 0xf0f0f0f0u : 0xc0c0c0c0u;
#pragma unroll
        for (int q = 0; q < code_traits<C>::QUADS; q++)
            quad[q] = ((word << (8 - bits - q * bits)) & mask) ^ 0x80808080u;
    } else {
        /* Nibbles as selectors: a table of 0 1 2 3 4 6 8 12, one of their negatives, and a choice between the two by the
         * sign.  The low selectors are those of columns 0 4 1 5, the high ones those of 2 6 3 7. */
        const uint32_t negative = word ^ 0x88888888u, choose = 0x32103210u | (word & 0x88888888u) >> 1;
        uint32_t half[2];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            uint32_t plus = permute(0x03020100u, 0x0c080604u, word >> 16 * h & 0x7777u);
            uint32_t minus = permute(0xfdfeff00u, 0xf4f8fafcu, negative >> 16 * h & 0x7777u);
            half[h] = permute(plus, minus, choose >> 16 * h);
        }
        quad[0] = permute(half[0], half[1], 0x6420u);
        quad[code_traits<C>::QUADS - 1] = permute(half[0], half[1], 0x7531u);
    }
}

/* The activation codes of a lane's columns. */
template <int QUADS> POT_DEVICE void read_codes(uint32_t quad[QUADS], const int8_t *at) {
    if (QUADS == 1) {
        quad[0] = *reinterpret_cast<const uint32_t *>(at);
    } else if (QUADS == 2) {
        uint2 v = *reinterpret_cast<const uint2 *>(at);
        quad[0] = v.x, quad[QUADS - 1] = v.y;
    } else {
        uint4 v = *reinterpret_cast<const uint4 *>(at);
        quad[0] = v.x, quad[1 % QUADS] = v.y, quad[2 % QUADS] = v.z, quad[QUADS - 1] = v.w;
    }
}

POT_DEVICE int from_lane(int value, int distance) { return __shfl_xor_sync(0xffffffffu, value, distance); }

/* Sums over the lanes that have lines of one block; a lane keeps those of its rows: row lane_row(), and for codes of 2 bits
 * the one after it too. */
template <int BITS> POT_DEVICE void exchange(int sum[4], int lane) {
    const bool upper = lane >> 2 & 1;
    int keep0 = upper ? sum[2] : sum[0], keep1 = upper ? sum[3] : sum[1];
    int give0 = upper ? sum[0] : sum[2], give1 = upper ? sum[1] : sum[3];
    keep0 += from_lane(give0, 4), keep1 += from_lane(give1, 4);
    if (BITS == 2) {
        sum[0] = keep0, sum[1] = keep1;
        return;
    }
    const bool second = lane >> 3 & 1;
    int keep = second ? keep1 : keep0, give = second ? keep0 : keep1;
    keep += from_lane(give, 8);
    if (BITS == 8) keep += from_lane(keep, 16);
    sum[0] = keep;
}

/* The dot products of a unit, for all rows, into the stage. */
template <codes C, int N, int TILES>
POT_DEVICE void reduce(typename shapes<C, N, TILES>::stage &stage, const fetched &unit, int number,
                       uint32_t first_block, uint32_t blocks, const act_view &x, int n, int tile) {
    typedef code_traits<C> T;
    const int lane = threadIdx.x % WARP, line = number * UNIT_LINES + lane_line(lane), block = line / T::BITS;
    const bool inside = first_block + (uint32_t)block < blocks;
    const int row = T::BITS == 2 ? lane_row(lane) & ~1 : lane_row(lane);
    uint32_t w[4][T::QUADS];
    unpack<C>(w[0], unit.codes.x);
    unpack<C>(w[1], unit.codes.y);
    unpack<C>(w[2], unit.codes.z);
    unpack<C>(w[3], unit.codes.w);
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (i >= n) break;
        uint32_t quad[T::QUADS] = {};
        if (inside)
            read_codes<T::QUADS>(quad, x.codes + act_block(x, i, first_block + (uint32_t)block) * BLOCK +
                                           line % T::BITS * T::COLUMNS);
        int sum[4] = {0, 0, 0, 0};
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int q = 0; q < T::QUADS; q++) sum[r] = dp4a(w[r][q], quad[q], sum[r]);
        exchange<T::BITS>(sum, lane);
        int *out = &stage.sums.dots[tile][i][block * TILE_ROWS + row];
        if (lane_stores<T::BITS>(lane)) out[0] = sum[0] >> T::SHIFT;
        if (T::BITS == 2) out[1] = sum[1] >> T::SHIFT;
    }
}

template <codes C, int N, int TILES>
POT_DEVICE float chain_integers(float acc, const typename shapes<C, N, TILES>::stage &stage, int tile, int i, int row,
                                uint32_t count, const float *act_scales, const scale_layout &s) {
    typedef shapes<C, N, TILES> S;
    const int *dots = &stage.sums.dots[tile][i][row];
    const float *scales = &stage.scales[code_traits<C>::BLOCK_SCALES ? tile * S::STAGE_BLOCKS * TILE_ROWS + row : 0];
#pragma unroll 4
    for (uint32_t b = 0; b < count; b++) {
        float scale = act_scales[b];
        if (code_traits<C>::BLOCK_SCALES && !s.per_row) scale = __fmul_rn(scales[b * TILE_ROWS], scale);
        acc = __fmaf_rn((float)dots[b * TILE_ROWS], scale, acc);
    }
    return acc;
}

/* ---- floats ---- */

/* Four columns of one row, from their place in the lines. */
template <codes C> POT_DEVICE void read_values(float w[4], const uint32_t *words, int quad) {
    if (C == CODES_F32) {
#pragma unroll
        for (int k = 0; k < 4; k++) w[k] = __uint_as_float(words[(quad * 4 + k) * TILE_ROWS]);
    } else if (C == CODES_BF16) {
#pragma unroll
        for (int k = 0; k < 4; k += 2) {
            uint32_t word = words[(quad * 2 + k / 2) * TILE_ROWS];
            w[k] = float_from_bf16(word & 0xffffu), w[k + 1] = float_from_bf16(word >> 16);
        }
    } else {
        uint32_t word = words[quad * TILE_ROWS];
#pragma unroll
        for (int k = 0; k < 4; k++) w[k] = float_from_e4m3(word >> 8 * k & 0xffu);
    }
}

/* fp8: `part` is the chain over the columns that share a scale; f32 and bf16 have only acc. */
template <codes C, int N, int TILES>
POT_DEVICE void chain_floats(float &acc, float &part, const typename shapes<C, N, TILES>::stage &stage, int tile,
                             int row, uint32_t first_block, uint32_t count, uint32_t blocks, uint32_t phase,
                             const float *values, const scale_layout &s) {
    typedef shapes<C, N, TILES> S;
    const uint32_t *words = reinterpret_cast<const uint32_t *>(stage.sums.lines[tile]) + row;
    float &sum = C == CODES_FP8 ? part : acc;
    for (uint32_t b = 0; b < count; b++) {
        const float4 *x = reinterpret_cast<const float4 *>(values + (size_t)b * BLOCK);
#pragma unroll 4
        for (int quad = 0; quad < BLOCK / 4; quad++) {
            float w[4];
            float4 v = x[quad];
            read_values<C>(w, words + b * S::BITS * TILE_ROWS, quad);
            sum = __fmaf_rn(w[0], v.x, sum);
            sum = __fmaf_rn(w[1], v.y, sum);
            sum = __fmaf_rn(w[2], v.z, sum);
            sum = __fmaf_rn(w[3], v.w, sum);
        }
        if (C == CODES_FP8) {
            const uint32_t next = first_block + b + 1, mask = (1u << s.group_shift) - 1u;
            if (((next + phase) & mask) == 0 || next == blocks) {
                acc = __fmaf_rn(part, stage.scales[(tile * S::STAGE_BLOCKS + (int)b) * TILE_ROWS + row], acc);
                part = 0.0f;
            }
        }
    }
}

/* ---- the whole ---- */

/* Which output a thread's j-th one is; false when it has none or row i is not asked for. */
template <int N, int TILES> POT_DEVICE bool own_output(int j, int n, int *tile, int *i, int *row) {
    int output = (int)threadIdx.x + j * THREADS;
    *row = output % TILE_ROWS;
    *i = output / TILE_ROWS % N;
    *tile = output / TILE_ROWS / N;
    return output < TILES * TILE_ROWS * N && *i < n;
}

/* value[j] is output j of this thread (own_output).  tiles(t) is the address of the block's tile t, or null; all tiles have
 * `blocks` blocks of columns.  All threads of the block must come here together. */
template <codes C, int N, int TILES, class Tiles>
POT_DEVICE void product(float value[shapes<C, N, TILES>::OWN], typename shapes<C, N, TILES>::shared &shared,
                        const Tiles &tiles, uint32_t blocks, uint32_t phase, const act_view &x, int n,
                        const scale_layout &s) {
    typedef shapes<C, N, TILES> S;
    typedef code_traits<C> T;
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, warp_tile = warp / S::TILE_WARPS;
    const uint8_t *tile_data = tiles(warp_tile);
    float part[S::OWN], row_scale[S::OWN];
#pragma unroll
    for (int j = 0; j < S::OWN; j++) {
        int tile, i, row;
        value[j] = part[j] = 0.0f;
        if (T::INTEGER && s.per_row && own_output<N, TILES>(j, n, &tile, &i, &row) && tiles(tile) != nullptr)
            row_scale[j] = __uint_as_float(read_scale(tiles(tile), s, 0, 0, T::BITS, row));
        else
            row_scale[j] = 0.0f;
    }

    fetched unit[S::UNITS];
    auto fetch = [&](uint32_t first_block) {
#pragma unroll
        for (int u = 0; u < S::UNITS; u++) {
            const int number = u * S::TILE_WARPS + warp % S::TILE_WARPS, line = number * UNIT_LINES + lane_line(lane);
            const uint32_t block = first_block + (uint32_t)(line / S::BITS);
            unit[u].codes = make_uint4(0, 0, 0, 0);
            unit[u].scale = 0;
            if (tile_data == nullptr || block >= blocks) continue;
            unit[u].codes = ld_stream(tile_data + code_byte(s, phase, block, S::BITS) + line % S::BITS * LINE_BYTES +
                                      lane % 4 * LANE_BYTES);
            if (T::BLOCK_SCALES && !s.per_row)
                unit[u].scale = read_scale(tile_data, s, phase, block, S::BITS, lane_row(lane));
        }
    };

    fetch(0);
    for (uint32_t first = 0, step = 0; first < blocks; first += S::STAGE_BLOCKS, step++) {
        typename S::stage &stage = shared.buffer[step % S::BUFFERS];
#pragma unroll
        for (int u = 0; u < S::UNITS; u++) {
            const int number = u * S::TILE_WARPS + warp % S::TILE_WARPS;
            if (first + (uint32_t)(number * UNIT_LINES / S::BITS) >= blocks) continue; /* the same for all lanes */
            if constexpr (T::INTEGER)
                reduce<C, N, TILES>(stage, unit[u], number, first, blocks, x, n, warp_tile);
            else
                stage.sums.lines[warp_tile][number * WARP + lane] = unit[u].codes;
            if (T::BLOCK_SCALES && !s.per_row && lane_stores<S::BITS>(lane)) {
                const int block = (number * UNIT_LINES + lane_line(lane)) / S::BITS;
                stage.scales[(warp_tile * S::STAGE_BLOCKS + block) * TILE_ROWS + lane_row(lane)] =
                    scale_value(s, unit[u].scale);
            }
        }
        fetch(first + S::STAGE_BLOCKS);
        __syncthreads();
        const uint32_t count = blocks - first < (uint32_t)S::STAGE_BLOCKS ? blocks - first : (uint32_t)S::STAGE_BLOCKS;
#pragma unroll
        for (int j = 0; j < S::OWN; j++) {
            int tile, i, row;
            if (!own_output<N, TILES>(j, n, &tile, &i, &row)) continue;
            const size_t at = act_block(x, i, first);
            if constexpr (T::INTEGER)
                value[j] = chain_integers<C, N, TILES>(value[j], stage, tile, i, row, count, x.scales + at, s);
            else
                chain_floats<C, N, TILES>(value[j], part[j], stage, tile, row, first, count, blocks, phase,
                                          x.values + at * BLOCK, s);
        }
        if (S::BUFFERS == 1) __syncthreads();
    }
    if (T::INTEGER && s.per_row) {
#pragma unroll
        for (int j = 0; j < S::OWN; j++) value[j] = __fmul_rn(value[j], row_scale[j]);
    }
}

#endif
