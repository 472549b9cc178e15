/* contract.safetensors: the numerics contract as numbers.  Every case, format and chunk by every table, bit
 * for bit; the same bytes from the quantizer as from the stored codes; the activation quantizer and the
 * tables of exp and SwiGLU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/mem.h"
#include "kernels/convert.h"
#include "kernels/ffn.h"
#include "kernels/linear.h"
#include "kernels/math.h"
#include "kernels/stored.h"
#include "model/safetensors.h"

enum { GRID = 24, MAX_TABLES = 8 };

static pot_shards *shards;
static const pot_kernels *tables[MAX_TABLES];
static int n_tables;

static pot_team *team;

static int open_fixture(void **state) {
    (void)state;
    pot_err err = {0};
    if (pot_shards_open_file(&shards, "tests/fixtures/contract.safetensors", &err) != POT_OK) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    n_tables = pot_kernels_list(tables, MAX_TABLES);
    return pot_team_create(&team, 2, true, NULL) == POT_OK ? 0 : -1;
}

static int close_fixture(void **state) {
    (void)state;
    pot_shards_close(shards);
    pot_team_free(team);
    return 0;
}

__attribute__((format(printf, 1, 2))) static const pot_tensor *find(const char *format, ...) {
    char name[128];
    va_list args;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    return pot_shards_find(shards, name);
}

typedef struct format_case {
    const char *name; /* in the fixture */
    pot_format format;
    pot_stored_kind kind;
    uint32_t group;
    const char *codes;
} format_case;

static const format_case FORMATS[] = {
    {"f32", POT_FORMAT_F32, POT_STORED_F32, 0, "values"},
    {"bf16", POT_FORMAT_BF16, POT_STORED_BF16, 0, "values"},
    {"fp8", POT_FORMAT_FP8, POT_STORED_FP8, 0, "codes"},
    {"mxfp4", POT_FORMAT_MXFP4, POT_STORED_MXFP4, 0, "codes"},
    {"q8_g32", POT_FORMAT_Q8_G32, POT_STORED_INT8, 32, "codes"},
    {"q8_row", POT_FORMAT_Q8_ROW, POT_STORED_INT8, 0, "codes"},
    {"q4_g32", POT_FORMAT_Q4_G32, POT_STORED_INT4, 32, "codes"},
    {"q4_g64", POT_FORMAT_Q4_G64, POT_STORED_INT4, 64, "codes"},
    {"q4_g64_f32", POT_FORMAT_Q4_G64_F32, POT_STORED_INT4, 64, "codes"},
    {"q4_g128", POT_FORMAT_Q4_G128, POT_STORED_INT4, 128, "codes"},
    {"q4_row", POT_FORMAT_Q4_ROW, POT_STORED_INT4, 0, "codes"},
    {"q2_row", POT_FORMAT_Q2_ROW, POT_STORED_INT2, 0, "codes"},
};
enum { N_FORMATS = sizeof FORMATS / sizeof FORMATS[0] };

static const char *const CASES[] = {"narrow", "wide", "ragged"};
static const char *const PARTS[] = {"gate", "up", "down"};

/* The fixture has a code a byte and scales in f16 or f32: what a checkpoint would store is made of them. */
typedef struct stored_copy {
    pot_stored stored;
    uint8_t *codes;
    float *scales;
} stored_copy;

static void copy_stored(stored_copy *out, const format_case *f, const char *c, const char *part) {
    const pot_tensor *codes = find("%s.%s.%s.%s", c, f->name, part, f->codes);
    const pot_tensor *scales = find("%s.%s.%s.scales", c, f->name, part);
    assert_non_null(codes);
    const uint32_t rows = (uint32_t)codes->shape[0], cols = (uint32_t)codes->shape[1];
    *out = (stored_copy){.stored = {.kind = f->kind, .rows = rows, .cols = cols, .group = f->group, .name = part}};
    const unsigned bits = f->kind == POT_STORED_INT2                                  ? 2
                          : f->kind == POT_STORED_INT4 || f->kind == POT_STORED_MXFP4 ? 4
                                                                                      : 8;
    const unsigned per_byte = 8 / bits;
    if (bits == 8) {
        out->stored.row_stride = codes->bytes / rows;
        out->stored.codes = codes->data;
    } else {
        const int bias = f->kind == POT_STORED_MXFP4 ? 0 : 1 << (bits - 1);
        out->stored.row_stride = (cols + per_byte - 1) / per_byte;
        out->codes = pot_alloc(rows * out->stored.row_stride);
        for (uint32_t r = 0; r < rows; r++)
            for (uint32_t k = 0; k < cols; k++) {
                unsigned code = (unsigned)((int8_t)codes->data[r * cols + k] + bias);
                out->codes[r * out->stored.row_stride + k / per_byte] |= (uint8_t)(code << k % per_byte * bits);
            }
        out->stored.codes = out->codes;
    }
    if (scales == NULL) return;
    out->stored.scales = scales->data;
    if (scales->dtype != POT_DTYPE_F16) return;
    uint64_t n = scales->bytes / 2;
    out->scales = pot_alloc_array(n, sizeof *out->scales);
    for (uint64_t i = 0; i < n; i++) {
        uint16_t half;
        memcpy(&half, scales->data + 2 * i, 2);
        out->scales[i] = pot_f32_from_f16(half);
    }
    out->stored.scales = out->scales;
}

static float *copy_floats(const pot_tensor *tensor) {
    assert_non_null(tensor);
    float *copy = pot_alloc(tensor->bytes);
    memcpy(copy, tensor->data, tensor->bytes);
    return copy;
}

static void run_chunk(const pot_compute *compute, const pot_ffn_shape *shape, uint32_t j, const uint8_t *packed,
                      const char *c, const char *format) {
    const pot_tensor *xt = find("%s.x", c), *want = find("%s.%s.grid.%u", c, format, j);
    assert_non_null(want);
    const uint32_t n = (uint32_t)xt->shape[0], k = shape->hidden;
    float *x = copy_floats(xt), *routing = copy_floats(find("%s.routing", c));
    pot_err err = {0};
    pot_acts acts;
    assert_int_equal(pot_acts_create(&acts, n, k, &err), POT_OK);
    unsigned need = pot_act_need(shape->gate_up_format);
    assert_int_equal(pot_acts_fill(&acts, compute, x, k, k, n, need, &err), POT_OK);
    if (need == POT_ACT_Q8) {
        const pot_tensor *codes = find("%s.q.codes", c), *scales = find("%s.q.scales", c);
        for (uint32_t i = 0; i < n; i++) {
            assert_memory_equal(acts.rows[i].codes, codes->data + i * codes->bytes / n, codes->bytes / n);
            assert_memory_equal(acts.rows[i].scales, scales->data + i * scales->bytes / n, scales->bytes / n);
        }
    }
    uint32_t rows[8];
    for (uint32_t i = 0; i < n; i++) rows[i] = i;
    pot_ffn_job job = {.n_rows = n, .rows = rows, .weights = routing};
    pot_chunk_view(&job.chunk, shape, j, packed);
    int64_t *acc = pot_alloc_array((size_t)n * k, sizeof *acc);
    pot_ffn_scratch scratch = {0};
    assert_int_equal(pot_ffn_run(compute, acc, k, acts.rows, &job, 1, GRID, &scratch, &err), POT_OK);
    for (size_t i = 0; i < (size_t)n * k; i++) {
        int64_t expected;
        memcpy(&expected, want->data + 8 * i, 8);
        if (acc[i] != expected)
            fail_msg("%s %s chunk %u by %s: [%zu, %zu] is %lld, want %lld", c, format, j, compute->kernels->name, i / k,
                     i % k, (long long)acc[i], (long long)expected);
    }
    pot_ffn_scratch_free(&scratch);
    pot_free(acc);
    pot_acts_free(&acts);
    pot_free(routing);
    pot_free(x);
}

static void contract_holds_bit_for_bit(void **state) {
    (void)state;
    int chunks = 0;
    for (size_t c = 0; c < sizeof CASES / sizeof CASES[0]; c++)
        for (int f = 0; f < N_FORMATS; f++) {
            if (find("%s.%s.grid.0", CASES[c], FORMATS[f].name) == NULL)
                continue; /* its groups do not divide the rows */
            stored_copy part[3], values[3];
            for (int p = 0; p < 3; p++) {
                copy_stored(&part[p], &FORMATS[f], CASES[c], PARTS[p]);
                copy_stored(&values[p], &FORMATS[0], CASES[c], PARTS[p]);
            }
            pot_ffn_shape shape;
            pot_ffn_shape_init(&shape, part[0].stored.cols, part[0].stored.rows, FORMATS[f].format, FORMATS[f].format);
            for (uint32_t j = 0; j < shape.n_chunks; j++, chunks++) {
                size_t bytes = pot_chunk_bytes(&shape, j);
                uint8_t *packed = pot_alloc_aligned(bytes), *quantized = pot_alloc_aligned(bytes);
                pot_err err = {0};
                memset(packed, 0xee, bytes);
                assert_int_equal(pot_pack_chunk(packed, &shape, POT_ROUNDING_AUTO, j, &part[0].stored, &part[1].stored,
                                                &part[2].stored, &err),
                                 POT_OK);
                assert_int_equal(pot_pack_chunk(quantized, &shape, POT_ROUNDING_AUTO, j, &values[0].stored,
                                                &values[1].stored, &values[2].stored, &err),
                                 POT_OK);
                assert_memory_equal(packed, quantized, bytes);
                for (int t = 0; t < n_tables; t++) {
                    const pot_compute compute = {tables[t], team};
                    run_chunk(&compute, &shape, j, packed, CASES[c], FORMATS[f].name);
                }
                pot_free(packed);
                pot_free(quantized);
            }
            assert_null(find("%s.%s.grid.%u", CASES[c], FORMATS[f].name, shape.n_chunks));
            for (int p = 0; p < 3; p++) {
                pot_free(part[p].codes);
                pot_free(part[p].scales);
            }
        }
    assert_int_equal(chunks, 12 * 4 + 9 * 6 + 6 * 2); /* formats x chunks of narrow, wide, ragged */
}

/* exp(-g) where g >= 0: the score of a key whose neighbour has the score 0. */
static void exp_by_softmax(float *out, const pot_kernels *kernels, const float *g, uint32_t n) {
    enum { LANES = 16 };
    for (uint32_t i = 0; i < n; i++) {
        float scores[2 * LANES] = {0}, p[2 * LANES], top[LANES], sum[LANES];
        for (int lane = 0; lane < LANES; lane++) scores[LANES + lane] = g[i] >= 0 ? -g[i] : 0;
        kernels->attention_softmax(p, top, sum, scores, 1.0f, 2);
        out[i] = p[LANES + i % LANES];
    }
}

static void exp_and_swiglu_match_the_table(void **state) {
    (void)state;
    const pot_tensor *gt = find("silu.g");
    float *g = copy_floats(gt), *e = copy_floats(find("silu.exp_minus_g")), *h = copy_floats(find("silu.value"));
    const uint32_t n = (uint32_t)gt->shape[0];
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(pot_f32_bits(pot_expf(-g[i])), pot_f32_bits(e[i]));
        assert_int_equal(pot_f32_bits(pot_swiglu(g[i], 1.0f)), pot_f32_bits(h[i]));
    }
    float *one = pot_alloc_array(n, sizeof *one), *out = pot_alloc_array(n, sizeof *out);
    for (uint32_t i = 0; i < n; i++) one[i] = 1.0f;
    for (int t = 0; t < n_tables; t++) {
        tables[t]->swiglu(out, g, one, n);
        assert_memory_equal(out, h, n * sizeof *out);
        exp_by_softmax(out, tables[t], g, n);
        for (uint32_t i = 0; i < n; i++)
            if (g[i] >= 0) assert_int_equal(pot_f32_bits(out[i]), pot_f32_bits(e[i]));
    }
    pot_free(out);
    pot_free(one);
    pot_free(h);
    pot_free(e);
    pot_free(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(contract_holds_bit_for_bit),
        cmocka_unit_test(exp_and_swiglu_match_the_table),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
