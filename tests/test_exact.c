/* One answer, below the contract's fixture: every table of kernels gives the bits of the generic one, for
 * every format and odd sizes, whatever the codes and scales are; buffers end at pages that must not be
 * touched; threads and the caller's floating-point mode change nothing.  The generic kernels themselves are
 * held against sums in double. */
#define _GNU_SOURCE
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cmocka.h>

#include "common/float_mode.h"
#include "common/mem.h"
#include "kernels/convert.h"
#include "kernels/ffn.h"
#include "kernels/linear.h"
#include "kernels/stored.h"
#include "tests/kernels_support.h"

enum { MAX_TABLES = 8, MAX_COLS = 512, MAX_N = 70, MAX_THREADS = 4 };

static void flush_denormals(void) {
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040u);
#elif defined(__aarch64__)
    uint64_t control;
    __asm__ volatile("mrs %0, fpcr" : "=r"(control));
    __asm__ volatile("msr fpcr, %0" : : "r"(control | (uint64_t)1 << 24));
#endif
}

/* ---- memory that ends where a page begins that nobody may touch ---- */

typedef struct guarded {
    uint8_t *base;
    size_t mapped;
    void *data; /* [bytes], the last of them just before the guard page */
} guarded;

static guarded guarded_create(size_t bytes) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), room = (bytes + page - 1) / page * page;
    guarded g = {.mapped = room + page};
    g.base = mmap(NULL, g.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.base != MAP_FAILED);
    assert_int_equal(mprotect(g.base + room, page, PROT_NONE), 0);
    g.data = g.base + room - bytes;
    return g;
}

static void guarded_free(guarded *g) { munmap(g->base, g->mapped); }

/* ---- random matrices in the stored kind that a format keeps exactly ---- */

typedef struct random_matrix {
    pot_stored stored;
    uint8_t *codes;
    uint8_t *scales;
} random_matrix;

static float random_scale(bool f16) {
    uint32_t choice = random_bits() % 16;
    if (f16) return pot_f32_from_f16((uint16_t)(choice == 0 ? random_bits() % 0x400 : random_bits() % 0x7800));
    if (choice == 0) return pot_f32_from_bits(random_bits() % 0x800000); /* a subnormal number */
    return ldexpf(1.0f + fabsf(random_float()), (int)(random_bits() % 20) - 16);
}

static void random_matrix_create(random_matrix *out, pot_format format, uint32_t rows, uint32_t cols) {
    const pot_format_traits *traits = pot_format_get(format);
    const size_t stride = ((size_t)cols * traits->bits + 7) / 8;
    const uint32_t group = traits->blocks_per_group * (uint32_t)POT_BLOCK,
                   groups = group == 0 ? 1 : (cols + group - 1) / group;
    *out = (random_matrix){.codes = pot_alloc(rows * stride), .scales = pot_alloc_array((size_t)rows * groups, 4)};
    const pot_stored_kind kind = stored_kind_of(format);
    out->stored = (pot_stored){.kind = kind,
                               .rows = rows,
                               .cols = cols,
                               .group = group,
                               .codes = out->codes,
                               .scales = out->scales,
                               .row_stride = stride,
                               .name = traits->name};
    for (size_t i = 0; i < rows * stride; i++) {
        uint8_t byte = (uint8_t)random_bits();
        if (kind == POT_STORED_INT8 && byte % 8 == 0) byte = 0x80;        /* -128 */
        if (kind == POT_STORED_FP8 && (byte & 0x7f) == 0x7f) byte = 0x7e; /* no NaN */
        out->codes[i] = byte;
    }
    if (kind == POT_STORED_F32 || kind == POT_STORED_BF16)
        for (size_t i = 0; i < (size_t)rows * cols; i++) {
            float value = random_bits() % 8 == 0 ? pot_f32_from_bits(random_bits() & 0x807fffffu) : random_float();
            uint16_t half = pot_bf16_from_f32(value);
            if (kind == POT_STORED_F32)
                memcpy(out->codes + 4 * i, &value, 4);
            else
                memcpy(out->codes + 2 * i, &half, 2);
        }
    for (uint32_t i = 0; i < rows * groups; i++) {
        float scale = random_scale(traits->scale == POT_SCALE_F16);
        if (kind == POT_STORED_MXFP4)
            out->scales[i] = (uint8_t)(random_bits() % 8 == 0 ? random_bits() % 3 : 110 + random_bits() % 30);
        else
            memcpy(out->scales + 4 * i, &scale, 4);
    }
    /* One row of zeros and, where there is room, one of codes as far from zero as they go. */
    const uint32_t zero = random_bits() % rows, extreme = (zero + 1) % rows;
    memset(out->codes + zero * stride, kind == POT_STORED_INT4 ? 0x88 : kind == POT_STORED_INT2 ? 0xaa : 0, stride);
    if (extreme == zero || !traits->integer) return;
    memset(out->codes + extreme * stride,
           kind == POT_STORED_INT8    ? 0x80
           : kind == POT_STORED_MXFP4 ? 0x77
                                      : 0xff,
           stride);
}

static void random_matrix_free(random_matrix *m) {
    pot_free(m->codes);
    pot_free(m->scales);
}

/* Packs columns [begin, begin + cols) into memory that ends at a guard page. */
static guarded pack_guarded(const pot_stored *source, pot_format format, uint32_t begin, uint32_t cols,
                            pot_matrix *out) {
    const uint32_t blocks = pot_format_get(format)->blocks_per_group;
    const uint32_t phase = blocks == 0 ? 0 : begin / POT_BLOCK % blocks;
    const size_t tile = pot_tile_bytes(format, cols, phase);
    guarded g = guarded_create(pot_tiles(source->rows) * tile);
    pot_err err = {0};
    if (pot_pack(g.data, tile, format, POT_ROUNDING_AUTO, source, 0, source->rows, begin, begin + cols, &err) != POT_OK)
        fail_msg("%s", err.text);
    *out = (pot_matrix){.data = g.data,
                        .tile_stride = tile,
                        .rows = source->rows,
                        .cols = cols,
                        .format = (uint8_t)format,
                        .phase = (uint8_t)phase};
    return g;
}

/* Activation rows as kernels may meet them, not only as the quantizer makes them: -128, scales of 0,
 * subnormal numbers. */
typedef struct random_acts {
    pot_act_row row[MAX_N];
    guarded codes[MAX_N], scales[MAX_N], sums[MAX_N], values[MAX_N];
    uint32_t n;
} random_acts;

static void random_acts_create(random_acts *out, uint32_t n, uint32_t cols) {
    const uint32_t blocks = pot_blocks(cols);
    out->n = n;
    for (uint32_t i = 0; i < n; i++) {
        out->codes[i] = guarded_create(blocks * POT_BLOCK);
        out->scales[i] = guarded_create(blocks * 4);
        out->sums[i] = guarded_create(blocks * 4);
        out->values[i] = guarded_create(blocks * POT_BLOCK * 4);
        int8_t *codes = out->codes[i].data;
        float *scales = out->scales[i].data, *values = out->values[i].data;
        for (uint32_t k = 0; k < blocks * POT_BLOCK; k++) {
            codes[k] = (int8_t)(random_bits() % 8 == 0 ? -128 : (int)(random_bits() % 256) - 128);
            values[k] = random_bits() % 16 == 0 ? pot_f32_from_bits(random_bits() % 0x800000) : random_float();
        }
        for (uint32_t b = 0; b < blocks; b++) {
            scales[b] = random_bits() % 8 == 0 ? 0.0f : random_scale(false);
            /* whole blocks of the largest codes: the sums that are nearest to an overflow */
            if (random_bits() % 4 == 0) memset(codes + b * POT_BLOCK, random_bits() % 2 ? 127 : -128, POT_BLOCK);
        }
        memset(codes + cols, 0, blocks * POT_BLOCK - cols);
        memset(values + cols, 0, (blocks * POT_BLOCK - cols) * sizeof *values);
        for (uint32_t b = 0; b < blocks; b++) {
            int32_t *sum = (int32_t *)out->sums[i].data + b;
            *sum = 0;
            for (uint32_t k = 0; k < POT_BLOCK; k++) *sum += codes[b * POT_BLOCK + k];
        }
        out->row[i] = (pot_act_row){codes, scales, out->sums[i].data, values};
    }
}

static void random_acts_free(random_acts *a) {
    for (uint32_t i = 0; i < a->n; i++) {
        guarded_free(&a->codes[i]);
        guarded_free(&a->scales[i]);
        guarded_free(&a->sums[i]);
        guarded_free(&a->values[i]);
    }
}

/* The product in double from the packed rows, with what rounding may add. */
static void check_against_double(const float *y, const pot_matrix *w, const random_acts *x) {
    const bool integer = pot_format_get((pot_format)w->format)->integer;
    for (uint32_t r = 0; r < w->rows; r++) {
        float row[MAX_COLS];
        pot_matrix_row(row, w, r);
        for (uint32_t i = 0; i < x->n; i++) {
            double sum = 0, size = 0;
            for (uint32_t k = 0; k < w->cols; k++) {
                double act = integer ? (double)x->row[i].codes[k] * (double)x->row[i].scales[k / POT_BLOCK]
                                     : (double)x->row[i].values[k];
                sum += (double)row[k] * act;
                size += fabs((double)row[k] * act);
            }
            double got = (double)y[(size_t)i * w->rows + r];
            /* The product of two scales may be subnormal and then has few bits left: some 1e-39 a block. */
            if (!(fabs(got - sum) <= 1e-5 * size + 1e-38))
                fail_msg("%s: row %u of [%u, %u] phase %u, activation %u: %g, want %g",
                         pot_format_get((pot_format)w->format)->name, r, w->rows, w->cols, w->phase, i, got, sum);
        }
    }
}

static void products_are_the_same_by_every_table(void **state) {
    (void)state;
    static const uint32_t ROWS[] = {1, 7, 16, 17, 31, 50, 70, 33, 83}, COUNTS[] = {1, 2, 3, 4, 5, 0};
    static const uint32_t MANY[] = {7, 8, 9, 12, 13, 16, 20, 31, 66}; /* the last of COUNTS, in turn */
    const pot_kernels *tables[MAX_TABLES];
    const int n_tables = pot_kernels_list(tables, MAX_TABLES);
    pot_fp_strict();
    for (int f = POT_FORMAT_NONE + 1; f < POT_FORMAT_COUNT; f++)
        for (uint32_t cols = 8; cols <= 300; cols++) {
            const uint32_t rows = ROWS[cols % (sizeof ROWS / sizeof ROWS[0])], begin = cols % 5 * POT_BLOCK;
            random_matrix source;
            random_matrix_create(&source, (pot_format)f, rows, begin + cols + cols % 3);
            pot_matrix w;
            guarded memory = pack_guarded(&source.stored, (pot_format)f, begin, cols, &w);
            for (size_t c = 0; c < sizeof COUNTS / sizeof COUNTS[0]; c++) {
                static random_acts x;
                const uint32_t count = COUNTS[c] != 0 ? COUNTS[c] : MANY[cols % (sizeof MANY / sizeof MANY[0])];
                random_acts_create(&x, count, cols);
                guarded want = guarded_create((size_t)x.n * rows * 4), got = guarded_create((size_t)x.n * rows * 4);
                tables[0]->matmul[f](want.data, rows, &w, 0, pot_tiles(rows), x.row, x.n);
                check_against_double(want.data, &w, &x);
                for (int t = 1; t < n_tables; t++) {
                    /* in two parts, so that a range of tiles also begins and ends in the middle */
                    uint32_t middle = pot_tiles(rows) / 3;
                    tables[t]->matmul[f](got.data, rows, &w, middle, pot_tiles(rows), x.row, x.n);
                    tables[t]->matmul[f](got.data, rows, &w, 0, middle, x.row, x.n);
                    if (memcmp(want.data, got.data, (size_t)x.n * rows * 4) != 0)
                        fail_msg("%s by %s: [%u, %u] phase %u, %u rows differ", pot_format_get((pot_format)f)->name,
                                 tables[t]->name, rows, cols, w.phase, x.n);
                }
                guarded_free(&want);
                guarded_free(&got);
                random_acts_free(&x);
            }
            guarded_free(&memory);
            random_matrix_free(&source);
        }
}

/* Each code in every lane and in each of the four places of a lane: column k of row r holds code k + 17 r. */
static void every_code_of_a_byte_is_multiplied(void **state) {
    (void)state;
    enum { CODES = 256, ROWS = 40 };
    static const pot_format FORMATS[] = {POT_FORMAT_FP8, POT_FORMAT_Q8_ROW, POT_FORMAT_Q8_G32};
    static const uint32_t COUNTS[] = {1, 2, 4, 9};
    const pot_kernels *tables[MAX_TABLES];
    const int n_tables = pot_kernels_list(tables, MAX_TABLES);
    pot_fp_strict();
    for (size_t f = 0; f < sizeof FORMATS / sizeof FORMATS[0]; f++)
        for (size_t c = 0; c < sizeof COUNTS / sizeof COUNTS[0]; c++) {
            random_matrix source;
            random_matrix_create(&source, FORMATS[f], ROWS, CODES);
            for (uint32_t r = 0; r < ROWS; r++)
                for (uint32_t k = 0; k < CODES; k++) {
                    uint8_t code = (uint8_t)(k + 17 * r);
                    bool nan = FORMATS[f] == POT_FORMAT_FP8 && (code & 0x7f) == 0x7f; /* the packer refuses those */
                    source.codes[r * CODES + k] = nan ? 0x7e : code;
                }
            pot_matrix w;
            guarded memory = pack_guarded(&source.stored, FORMATS[f], 0, CODES, &w);
            static random_acts x;
            static float want[9 * ROWS], got[9 * ROWS];
            random_acts_create(&x, COUNTS[c], CODES);
            tables[0]->matmul[w.format](want, ROWS, &w, 0, pot_tiles(ROWS), x.row, x.n);
            check_against_double(want, &w, &x);
            for (int t = 1; t < n_tables; t++) {
                memset(got, 0xff, sizeof got);
                tables[t]->matmul[w.format](got, ROWS, &w, 0, pot_tiles(ROWS), x.row, x.n);
                if (memcmp(want, got, (size_t)x.n * ROWS * 4) != 0)
                    fail_msg("%s by %s, %u rows", pot_format_get(FORMATS[f])->name, tables[t]->name, x.n);
            }
            random_acts_free(&x);
            guarded_free(&memory);
            random_matrix_free(&source);
        }
}

/* ---- rows ---- */

/* Overflow spreads through sums and hides everything else, so most rounds have none. */
static bool huge_values;

static float odd_float(void) {
    switch (random_bits() % (huge_values ? 12 : 11)) {
    case 0: return 0.0f;
    case 1: return -0.0f;
    case 2: return pot_f32_from_bits(random_bits() & 0x807fffffu); /* subnormal */
    case 3: return random_float() * 200.0f;
    case 11: return random_float() * 3e38f;
    default: return random_float() * 4.0f;
    }
}

static guarded odd_floats(uint32_t n) {
    guarded g = guarded_create((size_t)n * 4);
    for (uint32_t i = 0; i < n; i++) ((float *)g.data)[i] = odd_float();
    return g;
}

/* Infinities may meet: which NaN comes out is not fixed. */
static void assert_same_floats(const void *a, const void *b, uint32_t n) {
    const float *u = a, *v = b;
    for (uint32_t i = 0; i < n; i++)
        if (pot_f32_bits(u[i]) != pot_f32_bits(v[i]) && !(isnan(u[i]) && isnan(v[i])))
            fail_msg("value %u of %u is %a, want %a", i, n, (double)v[i], (double)u[i]);
}

static void row_functions_are_the_same_by_every_table(void **state) {
    (void)state;
    const pot_kernels *tables[MAX_TABLES], *generic;
    const int n_tables = pot_kernels_list(tables, MAX_TABLES);
    generic = tables[0];
    pot_fp_strict();
    for (int t = 1; t < n_tables; t++)
        for (uint32_t n = 0; n <= 300; n += n < 70 ? 1 : 23)
            for (int round = 0; round < 20; round++) {
                huge_values = round % 8 == 7;
                guarded a = odd_floats(n), b = odd_floats(n), x = odd_floats(n), y = odd_floats(n);
                memcpy(b.data, a.data, n * 4);
                generic->swiglu(a.data, x.data, y.data, n);
                tables[t]->swiglu(b.data, x.data, y.data, n);
                assert_memory_equal(a.data, b.data, n * 4);
                if (n > 0) {
                    generic->rms_norm(a.data, x.data, y.data, n, 1e-5f);
                    tables[t]->rms_norm(b.data, x.data, y.data, n, 1e-5f);
                    assert_same_floats(a.data, b.data, n);
                }
                guarded half = guarded_create(n * 2);
                memcpy(half.data, x.data, n * 2);
                generic->bf16_to_f32(a.data, half.data, n);
                tables[t]->bf16_to_f32(b.data, half.data, n);
                assert_memory_equal(a.data, b.data, n * 4);
                guarded_free(&half);
                guarded_free(&a), guarded_free(&b), guarded_free(&x), guarded_free(&y);
            }
}

static void attention_is_the_same_by_every_table(void **state) {
    (void)state;
    enum { LANES = 16, ROUNDS = 400 };
    const pot_kernels *tables[MAX_TABLES], *generic;
    const int n_tables = pot_kernels_list(tables, MAX_TABLES);
    generic = tables[0];
    pot_fp_strict();
    for (int round = 0; round < ROUNDS; round++) {
        huge_values = round % 8 == 7;
        const uint32_t n = 1 + random_bits() % 70, dims = 1 + random_bits() % 70, stride = dims + random_bits() % 3;
        guarded heads = odd_floats(n * dims);
        guarded q = odd_floats(dims * LANES), keys = odd_floats((n - 1) * stride + dims), p = odd_floats(n * LANES);
        guarded top = odd_floats(LANES), sum = odd_floats(LANES), old = odd_floats(dims * LANES);
        guarded want[2], got[2];
        for (int i = 0; i < 2; i++) {
            want[i] = odd_floats((n > dims ? n : dims) * LANES);
            got[i] = odd_floats((n > dims ? n : dims) * LANES);
        }
        float *w = want[0].data, *g = got[0].data, *w_top = want[1].data, *g_top = got[1].data;
        for (int t = 1; t < n_tables; t++) {
            generic->attention_scores(w, q.data, keys.data, stride, n, dims);
            tables[t]->attention_scores(g, q.data, keys.data, stride, n, dims);
            assert_same_floats(w, g, n * LANES);
            generic->attention_softmax(w, w_top, sum.data, p.data, 0.3f, n);
            tables[t]->attention_softmax(g, g_top, top.data, p.data, 0.3f, n);
            assert_same_floats(w, g, n * LANES);
            assert_same_floats(w_top, g_top, LANES);
            assert_same_floats(sum.data, top.data, LANES);
            generic->attention_values(w, p.data, keys.data, stride, n, dims);
            tables[t]->attention_values(g, p.data, keys.data, stride, n, dims);
            assert_same_floats(w, g, dims * LANES);
            memcpy(w, old.data, dims * LANES * 4);
            memcpy(g, old.data, dims * LANES * 4);
            generic->attention_merge(w, q.data, top.data, p.data, dims);
            tables[t]->attention_merge(g, q.data, top.data, p.data, dims);
            assert_same_floats(w, g, dims * LANES);
            /* n heads, and 16 keys that lie as q does */
            bool fine = generic->index_scores(w, heads.data, p.data, 0.1f, q.data, n, dims);
            assert_int_equal(tables[t]->index_scores(g, heads.data, p.data, 0.1f, q.data, n, dims), fine);
            assert_same_floats(w, g, LANES);
        }
        for (int i = 0; i < 2; i++) guarded_free(&want[i]), guarded_free(&got[i]);
        guarded_free(&heads);
        guarded_free(&q), guarded_free(&keys), guarded_free(&p), guarded_free(&top), guarded_free(&sum),
            guarded_free(&old);
    }
}

static void quantizers_are_the_same_by_every_table(void **state) {
    (void)state;
    enum { BLOCKS = 5 };
    const pot_kernels *tables[MAX_TABLES];
    const int n_tables = pot_kernels_list(tables, MAX_TABLES);
    pot_fp_strict();
    for (int round = 0; round < 20000; round++) {
        guarded x = guarded_create(BLOCKS * POT_BLOCK * 4);
        float *v = x.data, size = ldexpf(1.0f, (int)(random_bits() % 250) - 135);
        for (int i = 0; i < BLOCKS * POT_BLOCK; i++) {
            uint32_t choice = random_bits() % 8;
            v[i] = round % 16 == 0 ? odd_float()
                   : choice == 0   ? size * (float)(int)(random_bits() % 255) / 127.0f
                   : choice == 1   ? 0.0f
                                   : size * random_float();
        }
        if (round % 8 == 0) memset(v + POT_BLOCK, 0, POT_BLOCK * 4);
        if (round % 8 == 1) v[2 * POT_BLOCK + 3] = 0x1p-100f;
        static const float BAD[] = {INFINITY, -INFINITY, NAN};
        bool bad = round % 32 == 5;
        if (bad) v[random_bits() % (BLOCKS * POT_BLOCK)] = BAD[round / 32 % 3];
        guarded codes[2], scales[2], sums[2];
        for (int s = 0; s < 2; s++) {
            codes[s] = guarded_create(BLOCKS * POT_BLOCK);
            scales[s] = guarded_create(BLOCKS * 4);
            sums[s] = guarded_create(BLOCKS * 4);
        }
        assert_int_equal(tables[0]->quantize(codes[0].data, scales[0].data, sums[0].data, v, BLOCKS), !bad);
        for (int t = 1; t < n_tables; t++) {
            assert_int_equal(tables[t]->quantize(codes[1].data, scales[1].data, sums[1].data, v, BLOCKS), !bad);
            if (bad) continue;
            assert_memory_equal(codes[0].data, codes[1].data, BLOCKS * POT_BLOCK);
            assert_memory_equal(scales[0].data, scales[1].data, BLOCKS * 4);
            assert_memory_equal(sums[0].data, sums[1].data, BLOCKS * 4);
            memset(codes[1].data, -128, POT_BLOCK);
            tables[t]->block_sums(sums[1].data, codes[1].data, BLOCKS);
            assert_int_equal(((int32_t *)sums[1].data)[0], -128 * POT_BLOCK);
            assert_memory_equal((int32_t *)sums[0].data + 1, (int32_t *)sums[1].data + 1, (BLOCKS - 1) * 4);
        }
        for (int b = 0; b < BLOCKS && !bad; b++) {
            int32_t sum = 0;
            for (int k = 0; k < POT_BLOCK; k++) sum += ((int8_t *)codes[0].data)[b * POT_BLOCK + k];
            assert_int_equal(((int32_t *)sums[0].data)[b], sum);
        }
        for (int k = 0; k < BLOCKS * POT_BLOCK && !bad; k++) {
            const float scale = ((float *)scales[0].data)[k / POT_BLOCK];
            const int8_t code = ((int8_t *)codes[0].data)[k];
            if (scale == 0.0f)
                assert_true(code == 0 && fabsf(v[k]) < 0x1p-100f);
            else
                assert_int_equal(code, (int)rintf(v[k] / scale));
        }
        for (int s = 0; s < 2; s++) guarded_free(&codes[s]), guarded_free(&scales[s]), guarded_free(&sums[s]);
        guarded_free(&x);
    }
}

static void grid_sums_are_the_same_by_every_table(void **state) {
    (void)state;
    enum { N = 23 };
    static const int GRIDS[] = {24, 20, 30, 0, 40};
    const pot_kernels *tables[MAX_TABLES];
    const int n_tables = pot_kernels_list(tables, MAX_TABLES);
    pot_fp_strict();
    for (int round = 0; round < 20000; round++) {
        guarded x = guarded_create(N * 4), want = guarded_create(N * 8), got = guarded_create(N * 8);
        int64_t start[N];
        float *v = x.data, weight = 0.5f + fabsf(random_float());
        const int grid = GRIDS[round % 5];
        for (int i = 0; i < N; i++) {
            start[i] = (int64_t)random_bits() - 0x7fffffff;
            v[i] = random_float() * ldexpf(1.0f, (int)(random_bits() % (uint32_t)(85 - grid)) - 24);
            if (random_bits() % 8 == 0)
                v[i] = ((float)(random_bits() % 64) + 0.5f) * ldexpf(1.0f, -grid) / weight; /* ties */
        }
        static const float BAD[] = {INFINITY, -INFINITY, NAN, 3e38f};
        const bool bad = round % 16 == 3;
        if (bad) v[random_bits() % N] = BAD[round / 16 % 4];
        memcpy(want.data, start, sizeof start);
        assert_int_equal(tables[0]->grid_add(want.data, v, weight, N, grid), !bad);
        for (int t = 1; t < n_tables; t++) {
            memcpy(got.data, start, sizeof start);
            assert_int_equal(tables[t]->grid_add(got.data, v, weight, N, grid), !bad);
            if (!bad) assert_memory_equal(want.data, got.data, sizeof start);
        }
        guarded_free(&x), guarded_free(&want), guarded_free(&got);
    }
    /* The limit itself, and that half goes to even. */
    for (int t = 0; t < n_tables; t++) {
        int64_t sum[4] = {0};
        float value[4] = {0.5f, 1.5f, -2.5f, 0x1.fffffep+61f};
        assert_true(tables[t]->grid_add(sum, value, 1.0f, 4, 0));
        assert_true(sum[0] == 0 && sum[1] == 2 && sum[2] == -2 && sum[3] == 0x3fffffc000000000);
        value[3] = 0x1p62f;
        assert_false(tables[t]->grid_add(sum, value, 1.0f, 4, 0));
    }
}

/* ---- what the benchmark takes for the machine's best ---- */

static void probes_do_what_they_say(void **state) {
    (void)state;
    enum { BYTES = 256 };
    const pot_kernels *tables[MAX_TABLES];
    const int n_tables = pot_kernels_list(tables, MAX_TABLES);
    static uint8_t data[4][BYTES];
    const uint8_t *const streams[4] = {data[0], data[1], data[2], data[3]};
    for (int t = 0; t < n_tables; t++) {
        const uint64_t bytes = tables[t]->peak_int8(1), floats = tables[t]->peak_float(1);
        assert_true(bytes > 0 && floats > 0);
        assert_true(tables[t]->peak_int8(1000) == 1000 * bytes && tables[t]->peak_float(1000) == 1000 * floats);
        const uint32_t before = tables[t]->read_streams(streams, BYTES);
        for (int s = 0; s < 4; s++)
            for (int i = 0; i < BYTES; i++) {
                data[s][i] ^= 0x11;
                assert_true(tables[t]->read_streams(streams, BYTES) != before);
                data[s][i] ^= 0x11;
            }
    }
}

/* ---- threads, and what the caller's thread is set to ---- */

static pot_team *teams[MAX_THREADS + 1];

static int start_teams(void **state) {
    (void)state;
    for (int threads = 1; threads <= MAX_THREADS; threads++)
        if (pot_team_create(&teams[threads], threads, true, NULL) != POT_OK) return -1;
    return 0;
}

static int end_teams(void **state) {
    (void)state;
    for (int threads = 1; threads <= MAX_THREADS; threads++) pot_team_free(teams[threads]);
    return 0;
}

static void linear_does_not_depend_on_threads_or_mode(void **state) {
    (void)state;
    enum { ROWS = 333, COLS = 500 };
    const pot_kernels *tables[MAX_TABLES];
    const int n_tables = pot_kernels_list(tables, MAX_TABLES);
    for (int f = POT_FORMAT_NONE + 1; f < POT_FORMAT_COUNT; f++) {
        random_matrix source;
        random_matrix_create(&source, (pot_format)f, ROWS, COLS);
        pot_matrix w;
        guarded memory = pack_guarded(&source.stored, (pot_format)f, 0, COLS, &w);
        static random_acts x;
        random_acts_create(&x, 3, COLS);
        static float want[3 * ROWS], got[3 * ROWS];
        pot_fp_strict();
        tables[0]->matmul[f](want, ROWS, &w, 0, pot_tiles(ROWS), x.row, x.n);
        for (int t = 0; t < n_tables; t++)
            for (int threads = 1; threads <= 4; threads++) {
                flush_denormals();
                memset(got, 0xff, sizeof got);
                const pot_compute compute = {tables[t], teams[threads]};
                pot_linear(&compute, got, ROWS, &w, x.row, x.n);
                assert_memory_equal(got, want, sizeof got);
            }
        random_acts_free(&x);
        guarded_free(&memory);
        random_matrix_free(&source);
    }
}

static void activations_do_not_depend_on_threads_or_mode(void **state) {
    (void)state;
    enum { N = 40, COLS = 1000, STRIDE = 1003 };
    static float x[N * STRIDE];
    for (int i = 0; i < N * STRIDE; i++)
        x[i] = i % 50 == 0 ? pot_f32_from_bits(random_bits() % 0x800000) : random_float();
    const pot_kernels *tables[MAX_TABLES];
    const int n_tables = pot_kernels_list(tables, MAX_TABLES);
    pot_err err = {0};
    pot_acts want, got;
    assert_int_equal(pot_acts_create(&want, N, COLS, &err), POT_OK);
    assert_int_equal(pot_acts_create(&got, N, COLS + 100, &err), POT_OK);
    const uint32_t blocks = pot_blocks(COLS);
    const pot_compute alone = {.kernels = tables[0]};
    assert_int_equal(pot_acts_fill(&want, &alone, x, STRIDE, COLS, N, POT_ACT_Q8 | POT_ACT_F32, &err), POT_OK);
    for (int t = 0; t < n_tables; t++)
        for (int threads = 1; threads <= 4; threads++) {
            const pot_compute compute = {tables[t], teams[threads]};
            flush_denormals();
            assert_int_equal(pot_acts_fill(&got, &compute, x, STRIDE, COLS, N, POT_ACT_Q8 | POT_ACT_F32, &err), POT_OK);
            for (int i = 0; i < N; i++) {
                assert_memory_equal(got.rows[i].codes, want.rows[i].codes, blocks * POT_BLOCK);
                assert_memory_equal(got.rows[i].scales, want.rows[i].scales, blocks * 4);
                assert_memory_equal(got.rows[i].values, want.rows[i].values, blocks * POT_BLOCK * 4);
                assert_memory_equal(got.rows[i].values, x + i * STRIDE, COLS * 4);
                assert_true(got.rows[i].codes[COLS] == 0 && got.rows[i].values[COLS] == 0.0f);
                assert_memory_equal(got.rows[i].sums, want.rows[i].sums, blocks * 4);
            }
            assert_int_equal(pot_acts_fill(&got, &compute, x, STRIDE, COLS, N, POT_ACT_F32, &err), POT_OK);
            assert_null(got.rows[0].codes);
            for (unsigned need = POT_ACT_Q8; need <= POT_ACT_F32; need++) {
                const float kept = x[17 * STRIDE + 999];
                x[17 * STRIDE + 999] = x[30 * STRIDE] = NAN;
                assert_int_equal(pot_acts_fill(&got, &compute, x, STRIDE, COLS, N, need, &err), POT_NUMERIC);
                assert_non_null(strstr(err.text, "row 17 of 40"));
                x[17 * STRIDE + 999] = kept;
                x[30 * STRIDE] = 0.5f;
                assert_int_equal(pot_acts_fill(&want, &compute, x, STRIDE, COLS, N, POT_ACT_Q8 | POT_ACT_F32, &err),
                                 POT_OK);
            }
        }
    pot_acts_free(&want);
    pot_acts_free(&got);
    pot_mem_fail_at(2);
    assert_int_equal(pot_acts_create(&want, N, COLS, &err), POT_NO_MEMORY);
    pot_mem_fail_at(0);
}

/* ---- the expert layer ---- */

enum { HIDDEN = 200, INNER = 544, N_ROWS = 70, N_JOBS = 5, FFN_GRID = 24 };

typedef struct layer {
    random_matrix part[3];
    pot_ffn_shape shape;
    uint8_t *chunk[N_JOBS];
    pot_ffn_job job[N_JOBS];
    uint32_t rows[N_JOBS][N_ROWS];
    float weights[N_JOBS][N_ROWS];
} layer;

static float *values_of(random_matrix *m, uint32_t rows, uint32_t cols, float size) {
    float *v = pot_alloc_array((size_t)rows * cols, sizeof *v);
    for (size_t i = 0; i < (size_t)rows * cols; i++) v[i] = random_float() * size;
    *m = (random_matrix){.codes = (uint8_t *)v};
    m->stored = (pot_stored){
        .kind = POT_STORED_F32, .rows = rows, .cols = cols, .codes = v, .row_stride = 4 * (size_t)cols, .name = "w"};
    return v;
}

static void layer_create(layer *l, pot_format gate_up, pot_format down) {
    pot_err err = {0};
    values_of(&l->part[0], INNER, HIDDEN, 0.2f);
    values_of(&l->part[1], INNER, HIDDEN, 0.2f);
    values_of(&l->part[2], HIDDEN, INNER, 0.1f);
    pot_ffn_shape_init(&l->shape, HIDDEN, INNER, gate_up, down);
    for (uint32_t j = 0; j < N_JOBS; j++) {
        const uint32_t c = l->shape.n_chunks - 1 - j % l->shape.n_chunks;
        l->chunk[j] = pot_alloc_aligned(pot_chunk_bytes(&l->shape, c));
        if (pot_pack_chunk(l->chunk[j], &l->shape, POT_ROUNDING_AUTO, c, &l->part[0].stored, &l->part[1].stored,
                           &l->part[2].stored, &err))
            fail_msg("%s", err.text);
        pot_ffn_job *job = &l->job[j];
        *job = (pot_ffn_job){.expert = 100 + j, .rows = l->rows[j], .weights = l->weights[j]};
        pot_chunk_view(&job->chunk, &l->shape, c, l->chunk[j]);
        for (uint32_t i = 0; i < N_ROWS; i++)
            if (j == 0 || (i * 7 + j) % (j + 1) == 0) {
                l->rows[j][job->n_rows] = N_ROWS - 1 - i;
                l->weights[j][job->n_rows++] = fabsf(random_float());
            }
    }
}

static void layer_free(layer *l) {
    for (int j = 0; j < N_JOBS; j++) pot_free(l->chunk[j]);
    for (int p = 0; p < 3; p++) random_matrix_free(&l->part[p]);
}

static void expert_sums_do_not_depend_on_threads_order_or_grouping(void **state) {
    (void)state;
    static const pot_format PAIRS[][2] = {
        {POT_FORMAT_MXFP4, POT_FORMAT_MXFP4}, {POT_FORMAT_F32, POT_FORMAT_F32},
        {POT_FORMAT_BF16, POT_FORMAT_Q8_G32}, {POT_FORMAT_Q4_G64, POT_FORMAT_Q4_G64},
        {POT_FORMAT_Q8_ROW, POT_FORMAT_BF16}, {POT_FORMAT_FP8, POT_FORMAT_FP8},
    };
    const pot_kernels *tables[MAX_TABLES];
    const int n_tables = pot_kernels_list(tables, MAX_TABLES);
    const pot_compute alone = {.kernels = tables[0]};
    static float x[N_ROWS * HIDDEN];
    for (int i = 0; i < N_ROWS * HIDDEN; i++) x[i] = random_float() * 3.0f;
    static int64_t want[N_ROWS * HIDDEN], got[N_ROWS * HIDDEN];
    for (size_t p = 0; p < sizeof PAIRS / sizeof PAIRS[0]; p++) {
        layer l = {0};
        layer_create(&l, PAIRS[p][0], PAIRS[p][1]);
        pot_err err = {0};
        pot_acts acts;
        pot_ffn_scratch scratch = {0};
        assert_int_equal(pot_acts_create(&acts, N_ROWS, HIDDEN, &err), POT_OK);
        assert_int_equal(pot_acts_fill(&acts, &alone, x, HIDDEN, HIDDEN, N_ROWS, POT_ACT_Q8 | POT_ACT_F32, &err),
                         POT_OK);
        /* one row of one job at a time */
        memset(want, 0, sizeof want);
        for (int j = N_JOBS - 1; j >= 0; j--)
            for (uint32_t i = 0; i < l.job[j].n_rows; i++) {
                pot_ffn_job one = l.job[j];
                one.rows += i;
                one.weights += i;
                one.n_rows = 1;
                assert_int_equal(pot_ffn_run(&alone, want, HIDDEN, acts.rows, &one, 1, FFN_GRID, &scratch, &err),
                                 POT_OK);
            }
        for (int t = 0; t < n_tables; t++)
            for (int threads = 1; threads <= 4; threads++) {
                flush_denormals();
                memset(got, 0, sizeof got);
                const pot_compute compute = {tables[t], teams[threads]};
                assert_int_equal(pot_ffn_run(&compute, got, HIDDEN, acts.rows, l.job, N_JOBS, FFN_GRID, &scratch, &err),
                                 POT_OK);
                assert_memory_equal(got, want, sizeof got);
            }
        pot_ffn_scratch_free(&scratch);
        pot_acts_free(&acts);
        layer_free(&l);
    }
}

static void expert_fault_names_the_expert(void **state) {
    (void)state;
    static const pot_format FORMATS[] = {POT_FORMAT_Q8_ROW, POT_FORMAT_F32};
    const pot_kernels *tables[MAX_TABLES];
    const int n_tables = pot_kernels_list(tables, MAX_TABLES);
    static float x[N_ROWS * HIDDEN];
    for (int i = 0; i < N_ROWS * HIDDEN; i++) x[i] = random_float();
    static int64_t acc[N_ROWS * HIDDEN];
    for (int f = 0; f < 2; f++)
        for (int t = 0; t < n_tables; t++)
            for (int threads = 1; threads <= 3; threads++) {
                layer l = {0};
                layer_create(&l, FORMATS[f], FORMATS[f]);
                pot_err err = {0};
                pot_acts acts;
                pot_ffn_scratch scratch = {0};
                const pot_compute compute = {tables[t], teams[threads]};
                assert_int_equal(pot_acts_create(&acts, N_ROWS, HIDDEN, &err), POT_OK);
                assert_int_equal(
                    pot_acts_fill(&acts, &compute, x, HIDDEN, HIDDEN, N_ROWS, POT_ACT_Q8 | POT_ACT_F32, &err), POT_OK);
                l.weights[2][1] = INFINITY; /* the sum does not hold it */
                l.weights[4][0] = INFINITY;
                assert_int_equal(pot_ffn_run(&compute, acc, HIDDEN, acts.rows, l.job, N_JOBS, FFN_GRID, &scratch, &err),
                                 POT_NUMERIC);
                assert_non_null(strstr(err.text, "expert 102 "));
                l.weights[2][1] = l.weights[4][0] = 1.0f;
                /* a hidden value that overflows: huge activations of one row of the first job */
                float *scales = (float *)(uintptr_t)acts.rows[l.rows[1][0]].scales,
                      *values = (float *)(uintptr_t)acts.rows[l.rows[1][0]].values;
                for (uint32_t b = 0; b < pot_blocks(HIDDEN); b++) scales[b] = 3e38f;
                for (uint32_t k = 0; k < HIDDEN; k++) values[k] = 3e38f;
                assert_int_equal(pot_ffn_run(&compute, acc, HIDDEN, acts.rows, l.job + 1, 1, FFN_GRID, &scratch, &err),
                                 POT_NUMERIC);
                assert_non_null(strstr(err.text, "expert 101 "));
                pot_ffn_scratch_free(&scratch);
                pot_mem_fail_at(1);
                assert_int_equal(pot_ffn_run(&compute, acc, HIDDEN, acts.rows, l.job, N_JOBS, FFN_GRID, &scratch, &err),
                                 POT_NO_MEMORY);
                pot_mem_fail_at(0);
                pot_acts_free(&acts);
                layer_free(&l);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_are_the_same_by_every_table),
        cmocka_unit_test(every_code_of_a_byte_is_multiplied),
        cmocka_unit_test(row_functions_are_the_same_by_every_table),
        cmocka_unit_test(attention_is_the_same_by_every_table),
        cmocka_unit_test(quantizers_are_the_same_by_every_table),
        cmocka_unit_test(grid_sums_are_the_same_by_every_table),
        cmocka_unit_test(probes_do_what_they_say),
        cmocka_unit_test(linear_does_not_depend_on_threads_or_mode),
        cmocka_unit_test(activations_do_not_depend_on_threads_or_mode),
        cmocka_unit_test(expert_sums_do_not_depend_on_threads_order_or_grouping),
        cmocka_unit_test(expert_fault_names_the_expert),
    };
    return cmocka_run_group_tests(tests, start_teams, end_teams);
}
