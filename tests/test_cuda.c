/* kernels/cuda on a host that stands in for a GPU (tests/cuda_shim): the same bits as the generic kernels for every
 * format, odd sizes, any number of rows, whatever order a block's threads run in; faults, missing memory, and that the
 * shim sees the mistakes that it is there for. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/float_mode.h"
#include "common/mem.h"
#include "kernels/convert.h"
#include "kernels/cuda/cuda.h"
#include "kernels/ffn.h"
#include "kernels/layout.h"
#include "kernels/tables.h"
#include "tests/cuda_shim/selftest.h"
#include "tests/cuda_shim/shim.h"
#include "tests/kernels_support.h"

enum { GRID = 24, MAX_ROWS = 24 };

static const pot_compute GENERIC = {.kernels = &pot_kernels_generic};
static const char *const ORDERS[] = {"forward", "reverse", "1", "2", "3"};
enum { N_ORDERS = sizeof ORDERS / sizeof ORDERS[0] };

static void next_order(void) {
    static unsigned turn;
    pot_shim_order(ORDERS[turn++ % N_ORDERS]);
}

static int open_device(void **state) {
    pot_err err = {0};
    pot_fp_strict();
    pot_cuda *cuda = NULL;
    if (pot_cuda_open(&cuda, 0, &err) != POT_OK) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    *state = cuda;
    return 0;
}

static int close_device(void **state) {
    pot_cuda_close(*state);
    return pot_shim_live() == 0 ? 0 : -1;
}

/* ---- packed matrices of random codes: any byte is a code, so no packer is needed; only padding rows must be zero ---- */

static float random_scale(void) {
    if (random_bits() % 16 == 0) return pot_f32_from_bits(random_bits() % 0x800000); /* a subnormal number */
    return ldexpf(1.0f + fabsf(random_float()), (int)(random_bits() % 16) - 14);
}

static void random_scales(uint8_t *at, int kind, uint32_t rows) {
    for (uint32_t r = 0; r < rows; r++) {
        const float scale = random_scale();
        const uint16_t half = (uint16_t)(random_bits() % 16 == 0 ? random_bits() % 0x400 : random_bits() % 0x4c00);
        if (kind == POT_SCALE_F32)
            memcpy(at + 4 * r, &scale, 4);
        else if (kind == POT_SCALE_F16)
            memcpy(at + 2 * r, &half, 2);
        else
            at[r] = (uint8_t)(random_bits() % 8 == 0 ? random_bits() % 3 : 110 + random_bits() % 20);
    }
}

static void random_codes(uint8_t *at, pot_format format, uint32_t rows) {
    const unsigned bits = pot_format_get(format)->bits;
    const size_t bytes = (size_t)bits * POT_LINE_BYTES;
    const bool unsigned_codes = bits < 8 && format != POT_FORMAT_MXFP4;
    for (size_t i = 0; i < bytes; i++) {
        at[i] = (uint8_t)random_bits();
        if (format == POT_FORMAT_FP8 && (at[i] & 0x7f) == 0x7f) at[i] = 0x7e; /* no NaN */
        if (bits == 8 && format != POT_FORMAT_FP8 && at[i] % 8 == 0) at[i] = 0x80;
    }
    for (size_t i = 0; i < bytes && bits >= 16; i += 4) {
        float value = random_bits() % 8 == 0 ? pot_f32_from_bits(random_bits() & 0x807fffffu) : random_float();
        uint32_t pair = (uint32_t)pot_bf16_from_f32(value) << 16 | pot_bf16_from_f32(random_float());
        memcpy(at + i, &value, 4);
        if (format == POT_FORMAT_BF16) memcpy(at + i, &pair, 4);
    }
    for (size_t line = 0; line < bytes; line += POT_LINE_BYTES)
        memset(at + line + 4 * rows, unsigned_codes ? bits == 4 ? 0x88 : 0xaa : 0, POT_LINE_BYTES - 4 * rows);
}

/* A tile of which `left` rows, or all 16, are real. */
static void random_tile(uint8_t *tile, pot_format format, uint32_t left, uint32_t cols, uint32_t phase) {
    const pot_format_traits *t = pot_format_get(format);
    const uint32_t rows = left < POT_TILE_ROWS ? left : POT_TILE_ROWS;
    memset(tile, 0, pot_tile_bytes(format, cols, phase));
    pot_walk walk = pot_walk_begin(phase);
    if (t->scale != POT_SCALE_NONE && t->blocks_per_group == 0)
        random_scales(tile + pot_walk_lines(&walk, 1), t->scale, rows);
    for (uint32_t b = 0; b < pot_blocks(cols); b++) {
        size_t at;
        if (t->blocks_per_group != 0 && pot_walk_group(&walk, &at, t->scale, t->blocks_per_group))
            random_scales(tile + at, t->scale, rows);
        random_codes(tile + pot_walk_lines(&walk, t->bits), format, rows);
    }
}

/* One matrix on both sides; each end of the device's copy is the end of an allocation. */
typedef struct twin {
    pot_matrix host, device;
    uint8_t *host_data, *device_data;
} twin;

static void upload(uint8_t **out, pot_cuda *cuda, const uint8_t *from, size_t bytes) {
    pot_err err = {0};
    if (pot_cuda_alloc(out, cuda, bytes, "a test's weights", &err) != POT_OK ||
        pot_cuda_upload(cuda, *out, from, bytes, &err) != POT_OK)
        fail_msg("%s", err.text);
}

static void twin_create(twin *out, pot_cuda *cuda, pot_format format, uint32_t rows, uint32_t cols, uint32_t phase) {
    const size_t tile = pot_tile_bytes(format, cols, phase), bytes = pot_tiles(rows) * tile;
    out->host_data = pot_alloc_aligned(bytes);
    for (uint32_t t = 0; t < pot_tiles(rows); t++)
        random_tile(out->host_data + t * tile, format, rows - t * POT_TILE_ROWS, cols, phase);
    out->host = (pot_matrix){.data = out->host_data,
                             .tile_stride = tile,
                             .rows = rows,
                             .cols = cols,
                             .format = (uint8_t)format,
                             .phase = (uint8_t)phase};
    upload(&out->device_data, cuda, out->host_data, bytes);
    out->device = out->host;
    out->device.data = out->device_data;
}

static void twin_free(twin *t, pot_cuda *cuda) {
    pot_free(t->host_data);
    pot_cuda_free(cuda, t->device_data);
}

/* ---- activation rows as kernels may meet them: -128, scales of 0, subnormal numbers ---- */

typedef struct random_acts {
    pot_act_row row[MAX_ROWS];
    int8_t *codes;
    float *scales, *values;
    int32_t *sums;
} random_acts;

static void random_acts_create(random_acts *out, uint32_t n, uint32_t cols) {
    const uint32_t blocks = pot_blocks(cols), width = blocks * POT_BLOCK;
    out->codes = pot_alloc(n * width);
    out->scales = pot_alloc_array(n * blocks, sizeof(float));
    out->sums = pot_alloc_array(n * blocks, sizeof(int32_t));
    out->values = pot_alloc_array(n * width, sizeof(float));
    for (uint32_t i = 0; i < n; i++) {
        int8_t *codes = out->codes + i * width;
        float *scales = out->scales + i * blocks, *values = out->values + i * width;
        for (uint32_t k = 0; k < cols; k++) {
            codes[k] = (int8_t)(random_bits() % 8 == 0 ? -128 : (int)(random_bits() % 256) - 128);
            values[k] = random_bits() % 16 == 0 ? pot_f32_from_bits(random_bits() % 0x800000) : random_float();
        }
        for (uint32_t b = 0; b < blocks; b++) {
            scales[b] = random_bits() % 8 == 0 ? 0.0f : random_scale();
            uint32_t end = cols - b * POT_BLOCK < POT_BLOCK ? cols - b * POT_BLOCK : POT_BLOCK;
            /* whole blocks of the largest codes: the largest sums */
            if (random_bits() % 4 == 0) memset(codes + b * POT_BLOCK, random_bits() % 2 ? 127 : -128, end);
            for (uint32_t k = 0; k < POT_BLOCK; k++) out->sums[i * blocks + b] += codes[b * POT_BLOCK + k];
        }
        out->row[i] = (pot_act_row){.codes = codes, .scales = scales, .values = values, .sums = out->sums + i * blocks};
    }
}

static void random_acts_free(random_acts *a) {
    pot_free(a->codes);
    pot_free(a->scales);
    pot_free(a->sums);
    pot_free(a->values);
}

/* ---- products ---- */

static void check_product(pot_cuda *cuda, const twin *w, const random_acts *x, uint32_t n, const char *what) {
    const uint32_t rows = w->host.rows;
    const size_t stride = rows + 3;
    float *want = pot_alloc_array(n * stride, sizeof *want), *got = pot_alloc_array(n * stride, sizeof *got);
    pot_err err = {0};
    pot_kernels_generic.matmul[w->host.format](want, stride, &w->host, 0, pot_tiles(rows), x->row, n);
    next_order();
    if (pot_cuda_linear(cuda, got, stride, &w->device, x->row, n, &err) != POT_OK) fail_msg("%s", err.text);
    for (uint32_t i = 0; i < n * stride; i++)
        if (pot_f32_bits(want[i]) != pot_f32_bits(got[i]))
            fail_msg("%s %s: [%u, %u] phase %u, %u rows: row %zu, output %zu is %a, want %a", what,
                     pot_format_get((pot_format)w->host.format)->name, rows, w->host.cols, w->host.phase, n, i / stride,
                     i % stride, (double)got[i], (double)want[i]);
    pot_free(want);
    pot_free(got);
}

static void products_are_those_of_the_cpu(void **state) {
    static const uint32_t COLS[] = {8,   31,  32,  33,  63,  64,  65,  96,  97,  127, 128, 129,
                                    160, 161, 191, 192, 200, 224, 255, 256, 257, 288, 299, 300},
                          ROWS[] = {1, 7, 16, 17, 20, 33}, COUNTS[] = {2, 3, 4, 5, 8, 11, 16, 17, 21};
    unsigned turn = 0;
    for (int f = POT_FORMAT_NONE + 1; f < POT_FORMAT_COUNT; f++)
        for (size_t c = 0; c < sizeof COLS / sizeof COLS[0]; c++) {
            const uint32_t group = pot_format_get((pot_format)f)->blocks_per_group;
            twin w;
            random_acts x;
            twin_create(&w, *state, (pot_format)f, ROWS[(c + (size_t)f) % 6], COLS[c], group ? (uint32_t)c % group : 0);
            random_acts_create(&x, MAX_ROWS, COLS[c]);
            check_product(*state, &w, &x, 1, "random");
            check_product(*state, &w, &x, COUNTS[turn++ % 9], "random");
            random_acts_free(&x);
            twin_free(&w, *state);
        }
}

/* Long enough for many stages of every kernel. */
static void long_products_are_those_of_the_cpu(void **state) {
    for (int f = POT_FORMAT_NONE + 1; f < POT_FORMAT_COUNT; f++) {
        twin w;
        random_acts x;
        twin_create(&w, *state, (pot_format)f, 16, 2 * 6144 / (uint32_t)pot_format_get((pot_format)f)->bits + 32, 0);
        random_acts_create(&x, MAX_ROWS, w.host.cols);
        check_product(*state, &w, &x, 1, "long");
        check_product(*state, &w, &x, 4, "long");
        check_product(*state, &w, &x, 16, "long");
        random_acts_free(&x);
        twin_free(&w, *state);
    }
}

static void products_of_no_rows_do_nothing(void **state) {
    const pot_matrix w = {.rows = 16, .cols = 32, .format = POT_FORMAT_Q8_ROW};
    assert_int_equal(pot_cuda_linear(*state, NULL, 16, &w, NULL, 0, NULL), POT_OK);
}

/* Every code of the narrow formats and every finite scale of the f16 and E8M0 ones, against a block of the activations. */
static void every_code_and_scale_is_read_as_on_the_cpu(void **state) {
    static const pot_format FORMATS[] = {POT_FORMAT_FP8,    POT_FORMAT_Q8_G32, POT_FORMAT_Q4_G32,
                                         POT_FORMAT_Q2_ROW, POT_FORMAT_MXFP4,  POT_FORMAT_BF16};
    for (size_t f = 0; f < sizeof FORMATS / sizeof FORMATS[0]; f++) {
        const pot_format format = FORMATS[f];
        const pot_format_traits *t = pot_format_get(format);
        const uint32_t rows = format == POT_FORMAT_Q4_G32 ? 31 * 1024 / 8 : 256, cols = 8 * POT_BLOCK;
        const size_t tile = pot_tile_bytes(format, cols, 0), bytes = pot_tiles(rows) * tile;
        uint8_t *data = pot_alloc_aligned(bytes);
        uint32_t code = 0, scale = 0;
        for (uint32_t i = 0; i < pot_tiles(rows); i++) {
            pot_walk walk = pot_walk_begin(0);
            if (t->blocks_per_group == 0 && t->scale != POT_SCALE_NONE)
                random_scales(data + i * tile + pot_walk_lines(&walk, 1), t->scale, POT_TILE_ROWS);
            for (uint32_t b = 0; b < pot_blocks(cols); b++) {
                size_t at;
                if (t->blocks_per_group != 0 && pot_walk_group(&walk, &at, t->scale, t->blocks_per_group)) {
                    random_scales(data + i * tile + at, t->scale, POT_TILE_ROWS);
                    for (int r = 0; r < POT_TILE_ROWS && t->scale != POT_SCALE_F32; r++, scale++) {
                        const uint16_t half = (uint16_t)(scale % 0x7c00);
                        if (t->scale == POT_SCALE_F16)
                            memcpy(data + i * tile + at + 2 * r, &half, 2);
                        else
                            data[i * tile + at + (size_t)r] = (uint8_t)(scale % 255);
                    }
                }
                uint8_t *lines = data + i * tile + pot_walk_lines(&walk, t->bits);
                if (format == POT_FORMAT_BF16) {
                    random_codes(lines, format, POT_TILE_ROWS);
                    continue;
                }
                for (size_t k = 0; k < (size_t)t->bits * POT_LINE_BYTES; k++, code++) {
                    lines[k] = (uint8_t)code;
                    if (format == POT_FORMAT_FP8 && (lines[k] & 0x7f) == 0x7f) lines[k] = 0;
                }
            }
        }
        twin w = {.host = {.data = data, .tile_stride = tile, .rows = rows, .cols = cols, .format = (uint8_t)format},
                  .host_data = data};
        upload(&w.device_data, *state, data, bytes);
        w.device = w.host;
        w.device.data = w.device_data;
        random_acts x;
        random_acts_create(&x, 2, cols);
        check_product(*state, &w, &x, 2, "all codes of");
        random_acts_free(&x);
        twin_free(&w, *state);
    }
}

/* ---- layers ---- */

typedef struct layer_case {
    uint32_t hidden, inner;
    pot_format gate_up, down;
} layer_case;

enum { MAX_JOBS = 6 };

typedef struct jobs {
    pot_ffn_job host[MAX_JOBS], device[MAX_JOBS];
    uint8_t *host_data[MAX_JOBS], *device_data[MAX_JOBS];
    uint32_t rows[MAX_JOBS][MAX_ROWS];
    float weights[MAX_JOBS][MAX_ROWS];
    uint32_t n;
} jobs;

/* n_rows distinct rows of the n_x that there are, in no order. */
static void draw_rows(uint32_t *rows, uint32_t n_rows, uint32_t n_x) {
    for (uint32_t i = 0; i < n_x; i++) rows[i] = i;
    for (uint32_t i = 0; i < n_rows; i++) {
        uint32_t other = i + random_bits() % (n_x - i), row = rows[i];
        rows[i] = rows[other];
        rows[other] = row;
    }
}

static void add_job(jobs *out, pot_cuda *cuda, const layer_case *c, uint32_t chunk, uint32_t n_rows, uint32_t n_x) {
    const uint32_t j = out->n++;
    pot_ffn_shape shape;
    pot_ffn_shape_init(&shape, c->hidden, c->inner, c->gate_up, c->down);
    const size_t bytes = pot_chunk_bytes(&shape, chunk);
    out->host_data[j] = pot_alloc_aligned(bytes);
    pot_ffn_job *job = &out->host[j];
    draw_rows(out->rows[j], n_rows, n_x);
    for (uint32_t i = 0; i < n_rows; i++)
        out->weights[j][i] = random_bits() % 8 == 0 ? 0.0f : random_float() * 0x1p-20f;
    *job = (pot_ffn_job){.expert = 100 + j, .n_rows = n_rows, .rows = out->rows[j], .weights = out->weights[j]};
    pot_chunk_view(&job->chunk, &shape, chunk, out->host_data[j]);
    const pot_matrix *part[] = {&job->chunk.gate, &job->chunk.up, &job->chunk.down};
    for (int p = 0; p < 3; p++)
        for (uint32_t t = 0; t < pot_tiles(part[p]->rows); t++)
            random_tile(out->host_data[j] + (part[p]->data - out->host_data[j]) + t * part[p]->tile_stride,
                        (pot_format)part[p]->format, part[p]->rows - t * POT_TILE_ROWS, part[p]->cols, part[p]->phase);
    upload(&out->device_data[j], cuda, out->host_data[j], bytes);
    out->device[j] = *job;
    pot_chunk_view(&out->device[j].chunk, &shape, chunk, out->device_data[j]);
}

static void jobs_free(jobs *j, pot_cuda *cuda) {
    for (uint32_t i = 0; i < j->n; i++) {
        pot_free(j->host_data[i]);
        pot_cuda_free(cuda, j->device_data[i]);
    }
    *j = (jobs){0};
}

/* Both sides must end alike: with the same sums, or with the same sentence.  *moved counts sums to which something was added. */
static pot_status check_layer(pot_cuda *cuda, const jobs *j, const random_acts *x, uint32_t n_x, uint32_t hidden,
                              size_t *moved) {
    int64_t *want = pot_alloc_array((size_t)n_x * hidden, sizeof *want);
    int64_t *got = pot_alloc_array((size_t)n_x * hidden, sizeof *got);
    for (size_t i = 0; i < (size_t)n_x * hidden; i++) want[i] = got[i] = -1;
    pot_ffn_scratch scratch = {0};
    pot_err want_err = {0}, got_err = {0};
    pot_status expected = pot_ffn_run(&GENERIC, want, hidden, x->row, j->host, j->n, GRID, &scratch, &want_err);
    next_order();
    pot_status status = pot_cuda_ffn_run(cuda, got, hidden, x->row, j->device, j->n, GRID, &got_err);
    if (status != expected || strcmp(want_err.text, got_err.text) != 0)
        fail_msg("\"%s\", want \"%s\"", got_err.text, want_err.text);
    for (size_t i = 0; status == POT_OK && i < (size_t)n_x * hidden; i++)
        if (want[i] != got[i])
            fail_msg("%s/%s, hidden %u, %u jobs: [%zu, %zu] is %lld, want %lld",
                     pot_format_get((pot_format)j->host[0].chunk.gate.format)->name,
                     pot_format_get((pot_format)j->host[0].chunk.down.format)->name, hidden, j->n, i / hidden,
                     i % hidden, (long long)got[i], (long long)want[i]);
    for (size_t i = 0; status == POT_OK && i < (size_t)n_x * hidden; i++) *moved += want[i] != -1;
    pot_ffn_scratch_free(&scratch);
    pot_free(want);
    pot_free(got);
    return status;
}

/* Sizes whose chunks are short, begin inside a scale group, are 256 wide. */
static const uint32_t SHAPES[][2] = {{64, 32}, {40, 300}, {96, 530}, {160, 1990}, {136, 100}};

static void layers_are_those_of_the_cpu(void **state) {
    static const uint32_t COUNTS[] = {1, 2, 3, 4, 6, 9, 16, 17, 20};
    unsigned turn = 0;
    size_t moved = 0;
    int good = 0;
    for (int f = POT_FORMAT_NONE + 1; f < POT_FORMAT_COUNT; f++)
        for (size_t s = 0; s < sizeof SHAPES / sizeof SHAPES[0]; s++) {
            /* as the formats go together in models, and crosswise, so that floats meet integers */
            const int down = s % 2 == 0 ? f : (f + 4) % (POT_FORMAT_COUNT - 1) + 1;
            const layer_case c = {SHAPES[s][0], SHAPES[s][1], (pot_format)f, (pot_format)down};
            pot_ffn_shape shape;
            pot_ffn_shape_init(&shape, c.hidden, c.inner, c.gate_up, c.down);
            jobs j = {0};
            const uint32_t n_x = s == 0 ? 1 : MAX_ROWS;
            const bool few = s % 2 == 1; /* one row each: the kernel for one row */
            add_job(&j, *state, &c, shape.n_chunks - 1, few || s == 0 ? 1 : COUNTS[turn++ % 9], n_x);
            add_job(&j, *state, &c, shape.n_chunks / 3, few || s == 0 ? 1 : COUNTS[turn++ % 9], n_x);
            random_acts x;
            random_acts_create(&x, n_x, c.hidden);
            good += check_layer(*state, &j, &x, n_x, c.hidden, &moved) == POT_OK;
            random_acts_free(&x);
            jobs_free(&j, *state);
        }
    assert_int_equal(good, 70);
    assert_true(moved > 30000);
}

static void layers_of_several_formats_are_those_of_the_cpu(void **state) {
    size_t moved = 0;
    for (int round = 0; round < 4; round++) {
        jobs j = {0};
        random_acts x;
        for (int i = 0; i < MAX_JOBS; i++) {
            const int gate = 1 + (int)(random_bits() % (POT_FORMAT_COUNT - 1)),
                      down = 1 + (int)(random_bits() % (POT_FORMAT_COUNT - 1));
            const layer_case c = {96, i % 2 ? 100 : 64, (pot_format)gate, (pot_format)down};
            add_job(&j, *state, &c, 0, 1 + random_bits() % 4, 8);
        }
        random_acts_create(&x, 8, 96);
        assert_int_equal(check_layer(*state, &j, &x, 8, 96, &moved), POT_OK);
        random_acts_free(&x);
        jobs_free(&j, *state);
    }
    assert_true(moved > 1000);
}

static void layer_of_no_rows_adds_nothing(void **state) {
    const layer_case c = {64, 64, POT_FORMAT_Q4_G64, POT_FORMAT_Q4_G64};
    jobs j = {0};
    assert_int_equal(pot_cuda_ffn_run(*state, NULL, c.hidden, NULL, NULL, 0, GRID, NULL), POT_OK);
    add_job(&j, *state, &c, 0, 0, 1);
    assert_int_equal(pot_cuda_ffn_run(*state, NULL, c.hidden, NULL, j.device, 1, GRID, NULL), POT_OK);
    jobs_free(&j, *state);
}

/* Every result of SwiGLU that matters: g from far below to far above where exp ends, and what is not finite. */
static void swiglu_and_grid_are_those_of_the_cpu(void **state) {
    const layer_case c = {32, 32, POT_FORMAT_F32, POT_FORMAT_F32};
    size_t moved = 0;
    for (int round = 0; round < 60; round++) {
        jobs j = {0};
        random_acts x;
        add_job(&j, *state, &c, 0, 1, 1);
        random_acts_create(&x, 1, c.hidden);
        /* gate, up and down are diagonal: hidden k is swiglu(value * u), and comes out as it is */
        const pot_matrix *part[] = {&j.host[0].chunk.gate, &j.host[0].chunk.up, &j.host[0].chunk.down};
        for (int p = 0; p < 3; p++)
            for (uint32_t t = 0; t < 2; t++) {
                float *tile =
                    (float *)(void *)(j.host_data[0] + (part[p]->data - j.host_data[0]) + t * part[p]->tile_stride);
                memset(tile, 0, 32 * POT_LINE_BYTES);
                for (uint32_t r = 0; r < POT_TILE_ROWS; r++)
                    tile[(t * POT_TILE_ROWS + r) * POT_TILE_ROWS + r] = p == 1 ? random_float() : 1.0f;
            }
        for (uint32_t k = 0; k < c.hidden; k++)
            x.values[k] = random_float() * ldexpf(1, (int)(random_bits() % (round < 40 ? 10 : 130)) - 3);
        j.weights[0][0] = ldexpf(random_float(), round % 50 - 30);
        if (round == 59) x.values[5] = INFINITY;
        pot_err err = {0};
        const size_t bytes = 6 * 32 * POT_LINE_BYTES;
        assert_int_equal(pot_cuda_upload(*state, j.device_data[0], j.host_data[0], bytes, &err), POT_OK);
        pot_status s = check_layer(*state, &j, &x, 1, c.hidden, &moved);
        if (round == 59) assert_int_equal(s, POT_NUMERIC);
        random_acts_free(&x);
        jobs_free(&j, *state);
    }
    assert_true(moved > 500);
}

static void layer_fault_names_the_first_expert(void **state) {
    const layer_case c = {64, 64, POT_FORMAT_Q4_ROW, POT_FORMAT_Q4_ROW};
    for (int where = 0; where < 2; where++) {
        jobs j = {0};
        random_acts x;
        for (int i = 0; i < 4; i++) add_job(&j, *state, &c, 0, 2, 4);
        random_acts_create(&x, 4, c.hidden);
        for (uint32_t b = 0; b < 4 * 2; b++) x.scales[b] = 1e-3f;
        /* jobs 2 and 3: a gate that is infinite, or a weight that is too large */
        for (int i = 2; i < 4; i++) {
            const float large = 3e38f;
            for (int r = 0; r < POT_TILE_ROWS && where == 0; r++) memcpy(j.host_data[i] + 4 * r, &large, 4);
            if (where == 1) j.weights[i][1] = INFINITY;
            pot_err err = {0};
            assert_int_equal(pot_cuda_upload(*state, j.device_data[i], j.host_data[i], 64, &err), POT_OK);
        }
        int64_t acc[4 * 64], before[4 * 64];
        memset(acc, 7, sizeof acc);
        memset(before, 7, sizeof before);
        pot_err err = {0};
        size_t moved = 0;
        assert_int_equal(check_layer(*state, &j, &x, 4, c.hidden, &moved), POT_NUMERIC);
        assert_int_equal(pot_cuda_ffn_run(*state, acc, 64, x.row, j.device, j.n, GRID, &err), POT_NUMERIC);
        assert_non_null(strstr(err.text, "expert 102 "));
        assert_memory_equal(acc, before, sizeof acc);
        random_acts_free(&x);
        jobs_free(&j, *state);
    }
}

/* ---- devices and memory ---- */

static void devices_are_refused_with_the_reason(void **state) {
    (void)state;
    pot_cuda *cuda = NULL;
    pot_err err = {0};
    pot_cuda_info info;
    assert_int_equal(pot_cuda_describe(&info, 0, &err), POT_OK);
    assert_string_equal(info.name, "shim 0");
    assert_int_equal(info.capability, 89);
    assert_int_equal(pot_cuda_open(&cuda, 1, &err), POT_NOT_FOUND);
    assert_non_null(strstr(err.text, "this machine has 1"));
    pot_shim_devices(1, 7, 0);
    assert_int_equal(pot_cuda_open(&cuda, 0, &err), POT_CONFIG);
    assert_non_null(strstr(err.text, "7.0, need 7.5"));
    pot_shim_devices(0, 8, 9);
    assert_int_equal(pot_cuda_count(), 0);
    assert_int_equal(pot_cuda_open(&cuda, 0, &err), POT_NOT_FOUND);
    pot_shim_devices(1, 8, 9);
    assert_null(cuda);
}

/* What a worker does from opening the device to the first sums. */
static pot_status first_layer(pot_err *err) {
    const layer_case c = {64, 32, POT_FORMAT_MXFP4, POT_FORMAT_MXFP4};
    const uint32_t row = 0;
    const float weight = 0x1p-20f;
    int64_t acc[64] = {0};
    float y[64];
    pot_ffn_shape shape;
    pot_ffn_shape_init(&shape, c.hidden, c.inner, c.gate_up, c.down);
    const size_t bytes = pot_chunk_bytes(&shape, 0);
    static uint8_t data[1 << 13]; /* codes and scales of zero */
    assert_true(bytes <= sizeof data);
    random_acts x;
    random_acts_create(&x, 1, c.hidden);
    pot_cuda *cuda = NULL;
    uint8_t *device = NULL;
    pot_status s = pot_cuda_open(&cuda, 0, err);
    if (s == POT_OK) s = pot_cuda_alloc(&device, cuda, bytes, "a chunk", err);
    if (s == POT_OK) s = pot_cuda_upload(cuda, device, data, bytes, err);
    if (s == POT_OK) {
        pot_ffn_job job = {.n_rows = 1, .rows = &row, .weights = &weight};
        pot_chunk_view(&job.chunk, &shape, 0, device);
        s = pot_cuda_ffn_run(cuda, acc, c.hidden, x.row, &job, 1, GRID, err);
        if (s == POT_OK) s = pot_cuda_linear(cuda, y, 64, &job.chunk.down, x.row, 1, err);
    }
    if (cuda != NULL) pot_cuda_free(cuda, device);
    pot_cuda_close(cuda);
    random_acts_free(&x);
    return s;
}

static void every_failing_call_is_reported_and_leaks_nothing(void **state) {
    (void)state;
    const uint64_t live = pot_shim_live();
    uint64_t nth = 1;
    for (;; nth++) {
        pot_err err = {0};
        pot_shim_fail_at(nth);
        pot_status s = first_layer(&err);
        assert_int_equal(pot_shim_live(), live);
        if (s == POT_OK) break;
        assert_true(s == POT_NO_MEMORY || s == POT_NOT_FOUND); /* a count that fails is a machine without devices */
        assert_true(strlen(err.text) > 0);
        assert_true(nth < 200);
    }
    pot_shim_fail_at(0);
    assert_true(nth > 30);
    for (nth = 1;; nth++) { /* and of the host's own memory */
        pot_err err = {0};
        random_acts x;
        random_acts_create(&x, 1, 64);
        pot_cuda *cuda = NULL;
        pot_mem_fail_at(nth);
        pot_status s = pot_cuda_open(&cuda, 0, &err);
        pot_mem_fail_at(0);
        random_acts_free(&x);
        if (s == POT_OK) {
            pot_cuda_close(cuda);
            break;
        }
        assert_int_equal(s, POT_NO_MEMORY);
    }
    assert_int_equal(nth, 2);
}

/* ---- the shim itself ---- */

/* The sentence with which a kernel ends the program, in a process of its own; empty when it ends well. */
static void run_wrong(char *out, size_t size, int which) {
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        pot_shim_order("forward");
        pot_shim_wrong_kernel(which);
        _exit(0);
    }
    close(ends[1]);
    size_t length = 0;
    for (ssize_t n; length + 1 < size && (n = read(ends[0], out + length, size - 1 - length)) > 0;) length += (size_t)n;
    out[length] = 0;
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

static void shim_ends_on_divergent_barriers(void **state) {
    (void)state;
    static const char *const SENTENCES[POT_SHIM_WRONG_KERNELS] = {
        "threads wait at different __syncthreads", "not reached by all threads",
        "lanes of a warp wait at different exchanges", "not reached by all threads", "for a part of a warp only"};
    for (int i = 0; i < POT_SHIM_WRONG_KERNELS; i++) {
        char text[512];
        run_wrong(text, sizeof text, i);
        if (strstr(text, SENTENCES[i]) == NULL) fail_msg("kernel %d: \"%s\", want \"%s\"", i, text, SENTENCES[i]);
    }
}

static void shim_orders_show_a_missing_barrier(void **state) {
    (void)state;
    uint32_t sums[N_ORDERS];
    for (int i = 0; i < N_ORDERS; i++) {
        pot_shim_order(ORDERS[i]);
        sums[i] = pot_shim_racing_kernel();
    }
    assert_int_not_equal(sums[0], sums[1]);
    assert_int_not_equal(sums[1], sums[2]);
    assert_int_not_equal(sums[2], sums[3]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_those_of_the_cpu),
        cmocka_unit_test(long_products_are_those_of_the_cpu),
        cmocka_unit_test(products_of_no_rows_do_nothing),
        cmocka_unit_test(every_code_and_scale_is_read_as_on_the_cpu),
        cmocka_unit_test(layers_are_those_of_the_cpu),
        cmocka_unit_test(layers_of_several_formats_are_those_of_the_cpu),
        cmocka_unit_test(layer_of_no_rows_adds_nothing),
        cmocka_unit_test(swiglu_and_grid_are_those_of_the_cpu),
        cmocka_unit_test(layer_fault_names_the_first_expert),
        cmocka_unit_test(devices_are_refused_with_the_reason),
        cmocka_unit_test(every_failing_call_is_reported_and_leaks_nothing),
        cmocka_unit_test(shim_ends_on_divergent_barriers),
        cmocka_unit_test(shim_orders_show_a_missing_barrier),
    };
    return cmocka_run_group_tests(tests, open_device, close_device);
}
