/* Products for every SIMD table, written once over the primitives of one instruction set.
 *
 * kernels_<isa>.c defines what is listed below and then includes this file.  The arithmetic per output is that of
 * kernels_generic.c, operation for operation; lanes are the 16 rows of a tile.  What differs is how memory is walked:
 *
 *   few rows      (up to four) several tiles at once, each from its own part of the range: what a core reads per second hangs
 *                 on how many streams it has in flight, far more than on its instructions.  Lines are prefetched.
 *   many rows     TILES_MANY tiles are unpacked once, PANEL_BLOCKS blocks at a time, into a panel in the first cache, and up
 *                 to BATCH rows pass over it; the accumulators wait in memory between two panels.
 *
 * A kernel is compiled for a few numbers of tiles and rows only.  Where there are fewer, the last tile or row is computed again
 * in the unused places, which gives the same bits in the same place.
 *
 *   vf, vi                        16 floats, 16 int32
 *   vf_zero() vf_set(x) vf_load(at) vf_store(at, v) vf_add vf_sub vf_mul vf_div(a, b) vf_fma(a, b, c) vf_max(a, b)
 *   vf_from_vi(v) vi_set(x)
 *   vf_scales(at, kind)           the 16 scales of a group
 *   vf_column(line, bits, j)      column j of a line of a float format
 *   zero_point(bits, e2m1)        what the codes that block_dots sees are too large by: dots start at -zero_point * sum(x)
 *   block_dots(dot, lines, x, T, R, bits, e2m1, panel)
 *                                 dot[t * R + r] += codes of tile t . x[r], exactly; lines[t]: a block of the stream or, if
 *                                 `panel`, what unpack_block made of one; else it prefetches
 *   unpack_block(panel, lines, bits, e2m1)
 *   enum { FEW_TILES_4, TILES_MANY, ROWS_MANY, FLOAT_ROWS }
 *                                 FEW_TILES_4: tiles at once for four rows of integers;
 *                                 TILES_MANY x ROWS_MANY: the outputs that stay in registers over a panel of integers;
 *                                 FLOAT_ROWS: the same over a panel of floats, one tile
 *   MANY_ROWS_BEGIN() MANY_ROWS_END()   if defined: around a product of many rows
 *   OWN_PANEL_ROWS                if defined: panel_rows is the table's own
 */
#ifndef POT_KERNELS_SIMD_MATMUL_H
#define POT_KERNELS_SIMD_MATMUL_H

#include <string.h>

#include "kernels/kernels.h"
#include "kernels/layout.h"

#ifndef MANY_ROWS_BEGIN
#define MANY_ROWS_BEGIN() (void)0
#define MANY_ROWS_END() (void)0
#endif

enum {
    PANEL_BLOCKS = 8,                  /* 256 columns, a chunk's width */
    PANEL_BYTES = 16 * POT_LINE_BYTES, /* of an unpacked block of integers */
    FLOAT_PANEL_BLOCKS = 4,            /* 8 KiB of f32, and no more than one scale group of fp8 */
    BATCH = 64,                        /* rows whose accumulators wait in memory */
    MOST_TILES = 4,
    MOST_ROWS = 16,
    MOST = 16 /* tiles x rows */
};

/* Which tiles are computed side by side, and where they lie. */
typedef struct tiles_at {
    const uint8_t *data[MOST_TILES];
    uint32_t first[MOST_TILES],
        count[MOST_TILES]; /* rows of w: the first one, and how many the matrix has from there on */
} tiles_at;

/* T tiles of [.., end), `step` apart. */
static tiles_at find_tiles(const pot_matrix *w, uint32_t tile, uint32_t step, uint32_t end, const int T) {
    tiles_at at;
    for (int t = 0; t < T; t++) {
        uint32_t number = tile + (uint32_t)t * step < end ? tile + (uint32_t)t * step : end - 1;
        at.data[t] = w->data + number * w->tile_stride;
        at.first[t] = number * POT_TILE_ROWS;
        at.count[t] = w->rows - at.first[t];
    }
    return at;
}

/* A product's rows: x, and where the outputs of each go. */
typedef struct rows_at {
    pot_act_row x[BATCH];
    float *y[BATCH];
} rows_at;

/* n rows and as many copies of the last one as make a multiple of `unit`; returns how many there are then. */
static uint32_t find_rows(rows_at *at, float *y, size_t y_stride, const pot_act_row *x, uint32_t n, uint32_t unit) {
    uint32_t padded = (n + unit - 1) / unit * unit;
    for (uint32_t i = 0; i < padded; i++) {
        uint32_t row = i < n ? i : n - 1;
        at->x[i] = x[row];
        at->y[i] = y + row * y_stride;
    }
    return padded;
}

POT_INLINE void store_rows(float *y, vf value, uint32_t count) {
    if (count >= POT_TILE_ROWS) {
        vf_store(y, value);
        return;
    }
    float rows[POT_TILE_ROWS];
    vf_store(rows, value);
    memcpy(y, rows, count * sizeof *y);
}

/* While a panel is computed with, the next one comes as far as the second cache. */
POT_INLINE void prefetch_next_panel(const uint8_t *at, const int lines, const int blocks) {
    for (int l = 0; l < lines; l++) __builtin_prefetch(at + (blocks * lines + l) * POT_LINE_BYTES, 0, 2);
}

/* ---- integer formats ---- */

/* A block's dots for T tiles and R rows, in floats' order: acc = fmaf(dot, scale * act_scale, acc). */
POT_INLINE void add_block(vf acc[], const vf scale[], const uint8_t *const lines[], const pot_act_row *x, uint32_t b,
                          const int T, const int R, const int bits, const bool grouped, const bool e2m1,
                          const bool panel) {
    vi dot[MOST];
    const int8_t *codes[MOST_ROWS];
    const int offset = zero_point(bits, e2m1);
    POT_UNROLL
    for (int r = 0; r < R; r++) {
        codes[r] = x[r].codes + (size_t)b * POT_BLOCK;
        vi start = vi_set(offset == 0 ? 0 : -offset * x[r].sums[b]);
        POT_UNROLL
        for (int t = 0; t < T; t++) dot[t * R + r] = start;
    }
    block_dots(dot, lines, codes, T, R, bits, e2m1, panel);
    POT_UNROLL
    for (int r = 0; r < R; r++) {
        const vf act_scale = vf_set(x[r].scales[b]);
        POT_UNROLL
        for (int t = 0; t < T; t++) {
            vf s = grouped ? vf_mul(scale[t], act_scale) : act_scale;
            acc[t * R + r] = vf_fma(vf_from_vi(dot[t * R + r]), s, acc[t * R + r]);
        }
    }
}

POT_INLINE void integer_few(const rows_at *rows, const pot_matrix *w, const tiles_at *at, const int T, const int R,
                            const int bits, const int kind, const uint32_t blocks_per_group, const bool e2m1) {
    const uint32_t blocks = pot_blocks(w->cols);
    const bool grouped = blocks_per_group != 0;
    pot_walk walk = pot_walk_begin(w->phase);
    vf acc[MOST], scale[MOST_TILES];
    POT_UNROLL
    for (int i = 0; i < T * R; i++) acc[i] = vf_zero();
    POT_UNROLL
    for (int t = 0; t < T; t++) scale[t] = vf_zero();
    if (!grouped) {
        size_t head = pot_walk_lines(&walk, 1);
        POT_UNROLL
        for (int t = 0; t < T; t++) scale[t] = vf_scales(at->data[t] + head, kind);
    }
    for (uint32_t b = 0; b < blocks; b++) {
        size_t scales;
        if (grouped && pot_walk_group(&walk, &scales, kind, blocks_per_group)) {
            POT_UNROLL
            for (int t = 0; t < T; t++) scale[t] = vf_scales(at->data[t] + scales, kind);
        }
        const size_t offset = pot_walk_lines(&walk, (uint32_t)bits);
        const uint8_t *lines[MOST_TILES];
        POT_UNROLL
        for (int t = 0; t < T; t++) lines[t] = at->data[t] + offset;
        add_block(acc, scale, lines, rows->x, b, T, R, bits, grouped, e2m1, false);
    }
    POT_UNROLL
    for (int t = 0; t < T; t++) POT_UNROLL
    for (int r = 0; r < R; r++) {
        vf value = grouped ? acc[t * R + r] : vf_mul(acc[t * R + r], scale[t]);
        store_rows(rows->y[r] + at->first[t], value, at->count[t]);
    }
}

/* The panel of T tiles: blocks [begin, begin + n) unpacked, and their scales. */
typedef struct integer_panel {
    _Alignas(64) uint8_t codes[TILES_MANY][PANEL_BLOCKS][PANEL_BYTES];
    _Alignas(64) float scales[TILES_MANY][PANEL_BLOCKS][POT_TILE_ROWS];
} integer_panel;

POT_INLINE void fill_panel(integer_panel *panel, pot_walk *walk, const tiles_at *at, uint32_t n, const int T,
                           const int bits, const int kind, const uint32_t blocks_per_group, const bool e2m1) {
    for (uint32_t b = 0; b < n; b++) {
        size_t scales = 0;
        bool fresh = blocks_per_group != 0 && pot_walk_group(walk, &scales, kind, blocks_per_group);
        const size_t offset = pot_walk_lines(walk, (uint32_t)bits);
        POT_UNROLL
        for (int t = 0; t < T; t++) {
            const uint8_t *lines = at->data[t] + offset;
            prefetch_next_panel(lines, bits, PANEL_BLOCKS);
            unpack_block(panel->codes[t][b], lines, bits, e2m1);
            if (fresh)
                vf_store(panel->scales[t][b], vf_scales(at->data[t] + scales, kind));
            else if (blocks_per_group > 1) /* the group goes on; the last panel's last block is its predecessor too */
                vf_store(panel->scales[t][b], vf_load(panel->scales[t][b > 0 ? b - 1 : PANEL_BLOCKS - 1]));
        }
    }
}

/* acc [T][R][16] goes on over the panel's n blocks, for the columns from block `begin` on. */
#ifdef OWN_PANEL_ROWS
static void panel_rows(float *acc, const integer_panel *panel, const pot_act_row *x, uint32_t begin, uint32_t n,
                       const int T, const int R, const int bits, const bool grouped, const bool e2m1);
#else
POT_INLINE void panel_rows(float *acc, const integer_panel *panel, const pot_act_row *x, uint32_t begin, uint32_t n,
                           const int T, const int R, const int bits, const bool grouped, const bool e2m1) {
    vf sum[MOST];
    POT_UNROLL
    for (int i = 0; i < T * R; i++) sum[i] = begin == 0 ? vf_zero() : vf_load(acc + i * POT_TILE_ROWS);
    for (uint32_t b = 0; b < n; b++) {
        const uint8_t *lines[MOST_TILES];
        vf scale[MOST_TILES];
        POT_UNROLL
        for (int t = 0; t < T; t++) {
            lines[t] = panel->codes[t][b];
            scale[t] = grouped ? vf_load(panel->scales[t][b]) : vf_zero();
        }
        add_block(sum, scale, lines, x, begin + b, T, R, bits, grouped, e2m1, true);
    }
    POT_UNROLL
    for (int i = 0; i < T * R; i++) vf_store(acc + i * POT_TILE_ROWS, sum[i]);
}
#endif

/* n rows, a multiple of ROWS_MANY up to BATCH. */
POT_INLINE void integer_many(const rows_at *rows, uint32_t n, const pot_matrix *w, const tiles_at *at, const int T,
                             const int bits, const int kind, const uint32_t blocks_per_group, const bool e2m1) {
    const uint32_t blocks = pot_blocks(w->cols);
    const bool grouped = blocks_per_group != 0;
    integer_panel panel;
    _Alignas(64) float acc[BATCH * TILES_MANY * POT_TILE_ROWS]; /* [group of ROWS_MANY][T][ROWS_MANY][16] */
    pot_walk walk = pot_walk_begin(w->phase);
    size_t head = grouped ? 0 : pot_walk_lines(&walk, 1);
    for (uint32_t b = 0; b < blocks; b += PANEL_BLOCKS) {
        uint32_t count = blocks - b < PANEL_BLOCKS ? blocks - b : PANEL_BLOCKS;
        fill_panel(&panel, &walk, at, count, T, bits, kind, blocks_per_group, e2m1);
        for (uint32_t i = 0; i < n; i += ROWS_MANY)
            panel_rows(acc + i * (uint32_t)T * POT_TILE_ROWS, &panel, rows->x + i, b, count, T, ROWS_MANY, bits,
                       grouped, e2m1);
    }
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t t = 0; t < (uint32_t)T; t++) {
            uint32_t group = i / ROWS_MANY * ROWS_MANY;
            vf value = vf_load(acc + (group * (uint32_t)T + t * ROWS_MANY + (i - group)) * POT_TILE_ROWS);
            if (!grouped) value = vf_mul(value, vf_scales(at->data[t] + head, kind));
            store_rows(rows->y[i] + at->first[t], value, at->count[t]);
        }
}

/* ---- float formats ---- */

/* T tiles for R rows.  The sum of a scale group (fp8) is added to `total` when the group ends; without groups there is one sum. */
POT_INLINE void float_few(const rows_at *rows, const pot_matrix *w, const tiles_at *at, const int T, const int R,
                          const int bits, const uint32_t blocks_per_group) {
    const float *x[MOST_ROWS];
    POT_UNROLL
    for (int r = 0; r < R; r++) x[r] = rows->x[r].values;
    const uint32_t blocks = pot_blocks(w->cols);
    const bool grouped = blocks_per_group != 0;
    const int per_line = 32 / bits;
    pot_walk walk = pot_walk_begin(w->phase);
    float total[MOST][POT_TILE_ROWS];
    vf sum[MOST];
    POT_UNROLL
    for (int i = 0; i < T * R; i++) {
        sum[i] = vf_zero();
        if (grouped) vf_store(total[i], vf_zero());
    }
    size_t scales = 0;
    for (uint32_t b = 0; b < blocks; b++) {
        if (grouped) pot_walk_group(&walk, &scales, POT_SCALE_F32, blocks_per_group);
        const size_t offset = pot_walk_lines(&walk, (uint32_t)bits);
        for (int line = 0; line < bits; line++) {
            const size_t k = (size_t)b * POT_BLOCK + (size_t)(line * per_line);
            POT_UNROLL
            for (int t = 0; t < T; t++) pot_prefetch_lines(at->data[t] + offset + line * POT_LINE_BYTES, 1);
            POT_UNROLL
            for (int j = 0; j < per_line; j++) {
                POT_UNROLL
                for (int t = 0; t < T; t++) {
                    const vf value = vf_column(at->data[t] + offset + line * POT_LINE_BYTES, bits, j);
                    POT_UNROLL
                    for (int r = 0; r < R; r++)
                        sum[t * R + r] = vf_fma(value, vf_set(x[r][k + (size_t)j]), sum[t * R + r]);
                }
            }
        }
        if (grouped && (walk.left == 0 || b + 1 == blocks)) {
            POT_UNROLL
            for (int t = 0; t < T; t++) {
                const vf scale = vf_scales(at->data[t] + scales, POT_SCALE_F32);
                POT_UNROLL
                for (int i = t * R; i < (t + 1) * R; i++) {
                    vf_store(total[i], vf_fma(sum[i], scale, vf_load(total[i])));
                    sum[i] = vf_zero();
                }
            }
        }
    }
    POT_UNROLL
    for (int t = 0; t < T; t++) {
        POT_UNROLL
        for (int r = 0; r < R; r++)
            store_rows(rows->y[r] + at->first[t], grouped ? vf_load(total[t * R + r]) : sum[t * R + r], at->count[t]);
    }
}

/* sum[r] goes on over n columns of f32 at `panel`, for the rows of x from column `begin` on. */
POT_INLINE void float_panel_rows(float *sum, const float *panel, const pot_act_row *x, size_t begin, uint32_t n,
                                 const int R) {
    vf s[MOST];
    POT_UNROLL
    for (int r = 0; r < R; r++) s[r] = vf_load(sum + r * POT_TILE_ROWS);
    for (uint32_t k = 0; k < n; k++) {
        const vf value = vf_load(panel + (size_t)k * POT_TILE_ROWS);
        POT_UNROLL
        for (int r = 0; r < R; r++) s[r] = vf_fma(value, vf_set(x[r].values[begin + k]), s[r]);
    }
    POT_UNROLL
    for (int r = 0; r < R; r++) vf_store(sum + r * POT_TILE_ROWS, s[r]);
}

/* n rows, a multiple of FLOAT_ROWS up to BATCH, for one tile. */
POT_INLINE void float_many(const rows_at *rows, uint32_t n, const pot_matrix *w, const tiles_at *at, const int bits,
                           const uint32_t blocks_per_group) {
    const uint32_t blocks = pot_blocks(w->cols);
    const int per_line = 32 / bits;
    const bool grouped = blocks_per_group != 0;
    _Alignas(64) float panel[FLOAT_PANEL_BLOCKS * POT_BLOCK * POT_TILE_ROWS];
    _Alignas(64) float acc[BATCH * POT_TILE_ROWS] = {0}, part[BATCH * POT_TILE_ROWS] = {0};
    pot_walk walk = pot_walk_begin(w->phase);
    size_t scales = 0;
    for (uint32_t b = 0, count; b < blocks; b += count) {
        /* A panel ends where its scale does. */
        count = 0;
        do {
            if (grouped) pot_walk_group(&walk, &scales, POT_SCALE_F32, blocks_per_group);
            const uint8_t *lines = at->data[0] + pot_walk_lines(&walk, (uint32_t)bits);
            prefetch_next_panel(lines, bits, FLOAT_PANEL_BLOCKS);
            float *out = panel + count * POT_BLOCK * POT_TILE_ROWS;
            for (int line = 0; line < bits; line++) {
                POT_UNROLL
                for (int j = 0; j < per_line; j++)
                    vf_store(out + (line * per_line + j) * POT_TILE_ROWS,
                             vf_column(lines + line * POT_LINE_BYTES, bits, j));
            }
            count++;
        } while (b + count < blocks && count < FLOAT_PANEL_BLOCKS && !(grouped && walk.left == 0));
        const bool ends = grouped && (walk.left == 0 || b + count == blocks);
        const vf scale = ends ? vf_scales(at->data[0] + scales, POT_SCALE_F32) : vf_zero();
        float *sum = grouped ? part : acc;
        for (uint32_t i = 0; i < n; i += FLOAT_ROWS)
            float_panel_rows(sum + i * POT_TILE_ROWS, panel, rows->x + i, (size_t)b * POT_BLOCK, count * POT_BLOCK,
                             FLOAT_ROWS);
        for (uint32_t i = 0; ends && i < n; i++) {
            vf value = vf_load(part + i * POT_TILE_ROWS), total = vf_load(acc + i * POT_TILE_ROWS);
            vf_store(acc + i * POT_TILE_ROWS, vf_fma(value, scale, total));
            vf_store(part + i * POT_TILE_ROWS, vf_zero());
        }
    }
    for (uint32_t i = 0; i < n; i++)
        store_rows(rows->y[i] + at->first[0], vf_load(acc + i * POT_TILE_ROWS), at->count[0]);
}

/* ---- products ---- */

/* One compiled kernel: n rows, as many as find_rows made of them, for the tiles that it was compiled for. */
typedef void product_kernel(const rows_at *rows, uint32_t n, const pot_matrix *w, const tiles_at *at);

/* Up to four rows over a range of tiles, in `streams` streams. */
static void few_rows(product_kernel *kernel, const int streams, const rows_at *rows, uint32_t n, const pot_matrix *w,
                     uint32_t begin, uint32_t end) {
    const uint32_t step = (end - begin + (uint32_t)streams - 1) / (uint32_t)streams;
    for (uint32_t i = 0; i < step; i++) {
        const tiles_at at = find_tiles(w, begin + i, step, end, streams);
        kernel(rows, n, w, &at);
    }
}

/* Any number of rows; a group of tiles stays in a cache until all have passed. */
static void many_rows(product_kernel *kernel, const int tiles, const uint32_t unit, float *y, size_t y_stride,
                      const pot_matrix *w, uint32_t begin, uint32_t end, const pot_act_row *x, uint32_t n) {
    MANY_ROWS_BEGIN();
    for (uint32_t t = begin; t < end; t += (uint32_t)tiles) {
        const tiles_at at = find_tiles(w, t, 1, end, tiles);
        for (uint32_t i = 0; i < n; i += BATCH) {
            rows_at rows;
            uint32_t count = find_rows(&rows, y + i * y_stride, y_stride, x + i, n - i < BATCH ? n - i : BATCH, unit);
            kernel(&rows, count, w, &at);
        }
    }
    MANY_ROWS_END();
}

enum { FEW_TILES_1 = 4, FEW_TILES_2 = 2, FLOAT_TILES_4 = FLOAT_ROWS / 4 };

typedef struct product_kernels {
    product_kernel *one, *two, *four, *many;
    int tiles_four, tiles_many, rows_many;
} product_kernels;

static void run(const product_kernels *k, float *y, size_t y_stride, const pot_matrix *w, uint32_t begin, uint32_t end,
                const pot_act_row *x, uint32_t n) {
    rows_at rows;
    if (n == 0 || begin == end) return;
    if (n <= 4) find_rows(&rows, y, y_stride, x, n, n == 3 ? 4 : n);
    switch (n) {
    case 1: few_rows(k->one, FEW_TILES_1, &rows, 1, w, begin, end); break;
    case 2: few_rows(k->two, FEW_TILES_2, &rows, 2, w, begin, end); break;
    case 3:
    case 4: few_rows(k->four, k->tiles_four, &rows, 4, w, begin, end); break;
    default: many_rows(k->many, k->tiles_many, (uint32_t)k->rows_many, y, y_stride, w, begin, end, x, n); break;
    }
}

#define FEW_INTEGER(format, T, R, bits, kind, group, e2m1)                                               \
    static void format##_##R(const rows_at *rows, uint32_t n, const pot_matrix *w, const tiles_at *at) { \
        (void)n;                                                                                         \
        integer_few(rows, w, at, T, R, bits, kind, group, e2m1);                                         \
    }
#define FEW_FLOAT(format, T, R, bits, group)                                                             \
    static void format##_##R(const rows_at *rows, uint32_t n, const pot_matrix *w, const tiles_at *at) { \
        (void)n;                                                                                         \
        float_few(rows, w, at, T, R, bits, group);                                                       \
    }
#define KERNELS_INTEGER(format, bits, kind, group, e2m1)                                                  \
    FEW_INTEGER(format, FEW_TILES_1, 1, bits, kind, group, e2m1)                                          \
    FEW_INTEGER(format, FEW_TILES_2, 2, bits, kind, group, e2m1)                                          \
    FEW_INTEGER(format, FEW_TILES_4, 4, bits, kind, group, e2m1)                                          \
    static void format##_many(const rows_at *rows, uint32_t n, const pot_matrix *w, const tiles_at *at) { \
        integer_many(rows, n, w, at, TILES_MANY, bits, kind, group, e2m1);                                \
    }                                                                                                     \
    static const product_kernels format##_kernels = {format##_1,  format##_2, format##_4, format##_many,  \
                                                     FEW_TILES_4, TILES_MANY, ROWS_MANY};
#define KERNELS_FLOAT(format, bits, group)                                                                 \
    FEW_FLOAT(format, FEW_TILES_1, 1, bits, group)                                                         \
    FEW_FLOAT(format, FEW_TILES_2, 2, bits, group)                                                         \
    FEW_FLOAT(format, FLOAT_TILES_4, 4, bits, group)                                                       \
    static void format##_many(const rows_at *rows, uint32_t n, const pot_matrix *w, const tiles_at *at) {  \
        float_many(rows, n, w, at, bits, group);                                                           \
    }                                                                                                      \
    static const product_kernels format##_kernels = {format##_1,    format##_2, format##_4, format##_many, \
                                                     FLOAT_TILES_4, 1,          FLOAT_ROWS};
#define KERNELS_OF_FLOAT(format, bits, kind, group) KERNELS_FLOAT(format, bits, group)
#define KERNELS_OF_INTEGER(format, bits, kind, group) KERNELS_INTEGER(format, bits, kind, group, false)
#define KERNELS_OF_E2M1(format, bits, kind, group) KERNELS_INTEGER(format, bits, kind, group, true)

#define X(format, name, codes, bits, scale, group)                                                          \
    KERNELS_OF_##codes(format, bits, POT_SCALE_##scale, group) static void matmul_##format(                 \
        float *y, size_t y_stride, const pot_matrix *w, uint32_t begin, uint32_t end, const pot_act_row *x, \
        uint32_t n) {                                                                                       \
        run(&format##_kernels, y, y_stride, w, begin, end, x, n);                                           \
    }
POT_FORMAT_MAP(X)
#undef X

#endif
