/* Packed formats: names, sizes, golden bytes, quantizers roughly, refusals; conversions and the
 * functions of math.h against exact values and libm; which table is picked.  (Bits of products:
 * test_contract.c and test_exact.c; bits of the packer: test_pack.c and test_encoders.c.) */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cmocka.h>

#include "common/file.h"
#include "common/float_mode.h"
#include "common/mem.h"
#include "kernels/convert.h"
#include "kernels/kernels.h"
#include "kernels/math.h"
#include "kernels/stored.h"
#include "tests/kernels_support.h"

enum { MAX_TABLES = 8 };

static void assert_text(const pot_err *err, const char *part) {
    if (strstr(err->text, part) == NULL) fail_msg("'%s' does not say '%s'", err->text, part);
}

/* ---- formats and sizes ---- */

static void format_names_are_found(void **state) {
    (void)state;
    for (int f = POT_FORMAT_NONE + 1; f < POT_FORMAT_COUNT; f++)
        assert_int_equal(pot_format_find(pot_format_get((pot_format)f)->name), f);
    assert_int_equal(pot_format_find("q4g32"), POT_FORMAT_Q4_G32);
    assert_int_equal(pot_format_find("q5"), POT_FORMAT_NONE);
    assert_int_equal(pot_format_find("none"), POT_FORMAT_NONE);
    assert_string_equal(pot_format_get(POT_FORMAT_NONE)->name, "none");
    assert_string_equal(pot_format_get((pot_format)200)->name, "none");
}

static void chunk_sizes_are_as_designed(void **state) {
    (void)state;
    static const struct {
        uint32_t inner, width, chunks, last;
    } CASES[] = {{1, 32, 1, 1},     {32, 32, 1, 32},       {40, 32, 2, 8},     {128, 32, 4, 32},
                 {256, 32, 8, 32},  {257, 64, 5, 1},       {544, 96, 6, 64},   {2048, 256, 8, 256},
                 {2049, 256, 9, 1}, {12288, 256, 48, 256}, {1792, 224, 8, 224}};
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        pot_ffn_shape shape;
        pot_ffn_shape_init(&shape, 64, CASES[i].inner, POT_FORMAT_Q8_ROW, POT_FORMAT_Q8_ROW);
        assert_int_equal(pot_chunk_width(CASES[i].inner), CASES[i].width);
        assert_int_equal(shape.chunk_width, CASES[i].width);
        assert_int_equal(shape.n_chunks, CASES[i].chunks);
        assert_int_equal(pot_chunk_rows(&shape, shape.n_chunks - 1), CASES[i].last);
        for (uint32_t j = 0; j < shape.n_chunks; j++) assert_int_equal(pot_chunk_bytes(&shape, j) % POT_CHUNK_ALIGN, 0);
    }
    pot_ffn_shape glm;
    pot_ffn_shape_init(&glm, 6144, 2048, POT_FORMAT_MXFP4, POT_FORMAT_MXFP4);
    for (uint32_t j = 0; j < 8; j++) assert_int_equal(pot_chunk_bytes(&glm, j), 612 * 4096);
}

static void tile_sizes_count_scale_lines(void **state) {
    (void)state;
    static const struct {
        pot_format format;
        uint32_t cols, phase, lines;
    } CASES[] = {
        {POT_FORMAT_F32, 33, 0, 64},        {POT_FORMAT_BF16, 32, 0, 16},     {POT_FORMAT_FP8, 256, 0, 66},
        {POT_FORMAT_FP8, 256, 3, 67},       {POT_FORMAT_Q8_ROW, 64, 0, 17},   {POT_FORMAT_Q8_G32, 64, 0, 18},
        {POT_FORMAT_Q4_ROW, 64, 0, 9},      {POT_FORMAT_Q4_G32, 96, 0, 14},   {POT_FORMAT_Q4_G64, 256, 0, 34},
        {POT_FORMAT_Q4_G64, 256, 1, 35},    {POT_FORMAT_Q4_G128, 256, 0, 33}, {POT_FORMAT_Q4_G128, 256, 2, 34},
        {POT_FORMAT_Q4_G64_F32, 64, 1, 10}, {POT_FORMAT_Q2_ROW, 64, 0, 5},    {POT_FORMAT_MXFP4, 256, 0, 34},
        {POT_FORMAT_MXFP4, 288, 0, 39},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++)
        assert_int_equal(pot_tile_bytes(CASES[i].format, CASES[i].cols, CASES[i].phase),
                         CASES[i].lines * POT_LINE_BYTES);
    assert_int_equal(pot_matrix_bytes(POT_FORMAT_MXFP4, 17, 256), 2 * 34 * POT_LINE_BYTES);
}

/* ---- golden bytes: the formulas of tests/golden/formats/make_golden.py ---- */

enum { G_ROWS = 18, G_COLS = 200, G_BEGIN = 32 };

static uint32_t golden_code(pot_format format, unsigned bits, uint32_t r, uint32_t k) {
    switch (format) {
    case POT_FORMAT_F32: return pot_f32_bits((float)(r * 200 + k) * 0.25f - 100.0f);
    case POT_FORMAT_BF16: return 0x3c00u + r * 64 + k;
    case POT_FORMAT_FP8: return (r * 5 + k * 3) % 127 + (k % 2 ? 128 : 0);
    default: return (r * 7 + k * 5 + k / 16) % (1u << bits);
    }
}

/* The source has unaligned codes and scales, as a mapped file may have. */
static pot_stored golden_source(pot_format format, uint8_t **codes_memory, uint8_t **scales_memory) {
    const pot_format_traits *traits = pot_format_get(format);
    const uint32_t bits = traits->bits;
    const uint32_t group = traits->scale == POT_SCALE_NONE || traits->blocks_per_group == 0
                               ? G_COLS
                               : traits->blocks_per_group * (uint32_t)POT_BLOCK;
    const uint32_t groups = (G_COLS + group - 1) / group;
    const size_t stride = (G_COLS * bits + 7) / 8 + 1;
    uint8_t *codes = *codes_memory = pot_alloc(G_ROWS * stride + 1);
    uint8_t *scales = *scales_memory = pot_alloc(G_ROWS * groups * 4 + 1);
    codes++;
    scales++;
    for (uint32_t r = 0; r < G_ROWS; r++) {
        for (uint32_t k = 0; k < G_COLS; k++) {
            uint32_t code = golden_code(format, bits, r, k);
            if (bits >= 8)
                memcpy(codes + r * stride + k * (bits / 8), &code, bits / 8);
            else
                codes[r * stride + k * bits / 8] |= (uint8_t)(code << k * bits % 8);
        }
        for (uint32_t g = 0; g < groups; g++) {
            float value = ldexpf(1.0f + (float)(format == POT_FORMAT_FP8 ? 0 : r) / 32.0f, -(int)(g % 5));
            if (traits->scale == POT_SCALE_E8M0)
                scales[r * groups + g] = (uint8_t)((r * 11 + g * 17) % 255);
            else if (format != POT_FORMAT_FP8 || r == 0)
                memcpy(scales + 4 * (r * groups + g), &value, 4);
        }
    }
    return (pot_stored){.kind = stored_kind_of(format),
                        .rows = G_ROWS,
                        .cols = G_COLS,
                        .group = traits->blocks_per_group * (uint32_t)POT_BLOCK,
                        .codes = codes,
                        .scales = scales,
                        .row_stride = stride,
                        .name = "golden"};
}

static void packed_layout_has_golden_bytes(void **state) {
    (void)state;
    for (int f = POT_FORMAT_NONE + 1; f < POT_FORMAT_COUNT; f++) {
        const pot_format_traits *traits = pot_format_get((pot_format)f);
        uint8_t *codes, *scales;
        pot_stored source = golden_source((pot_format)f, &codes, &scales);
        uint32_t phase = traits->blocks_per_group == 0 ? 0 : G_BEGIN / POT_BLOCK % traits->blocks_per_group;
        size_t tile = pot_tile_bytes((pot_format)f, G_COLS - G_BEGIN, phase), bytes = 2 * tile;
        uint8_t *packed = pot_alloc_aligned(bytes);
        pot_err err = {0};
        assert_int_equal(
            pot_pack(packed, tile, (pot_format)f, POT_ROUNDING_AUTO, &source, 0, G_ROWS, G_BEGIN, G_COLS, &err),
            POT_OK);

        char path[64];
        snprintf(path, sizeof path, "tests/golden/formats/%s.bin", traits->name);
        pot_buffer golden = {0};
        assert_int_equal(pot_file_read(&golden, path, 1 << 20, &err), POT_OK);
        assert_int_equal(golden.bytes, bytes);
        for (size_t i = 0; i < bytes; i++)
            if (packed[i] != (uint8_t)golden.data[i])
                fail_msg("%s: byte %zu of tile %zu is %02x, want %02x", traits->name, i % tile, i / tile, packed[i],
                         (uint8_t)golden.data[i]);

        pot_matrix matrix = {.data = packed,
                             .tile_stride = tile,
                             .rows = G_ROWS,
                             .cols = G_COLS - G_BEGIN,
                             .format = (uint8_t)f,
                             .phase = (uint8_t)phase};
        for (uint32_t r = 0; r < G_ROWS; r++) {
            float want[G_COLS], got[G_COLS];
            assert_int_equal(pot_stored_row(want, &source, r, G_BEGIN, G_COLS, &err), POT_OK);
            pot_matrix_row(got, &matrix, r);
            assert_memory_equal(got, want, (G_COLS - G_BEGIN) * sizeof(float));
        }
        pot_buffer_free(&golden);
        pot_free(packed);
        pot_free(codes);
        pot_free(scales);
    }
}

/* ---- quantizers ---- */

static uint8_t *pack_all(const pot_stored *source, pot_format format, uint32_t begin, uint32_t end, pot_matrix *out) {
    uint32_t blocks = pot_format_get(format)->blocks_per_group;
    uint32_t phase = blocks == 0 ? 0 : begin / POT_BLOCK % blocks;
    size_t tile = pot_tile_bytes(format, end - begin, phase);
    uint8_t *packed = pot_alloc_aligned(pot_tiles(source->rows) * tile);
    pot_err err = {0};
    if (pot_pack(packed, tile, format, POT_ROUNDING_AUTO, source, 0, source->rows, begin, end, &err) != POT_OK)
        fail_msg("%s", err.text);
    *out = (pot_matrix){.data = packed,
                        .tile_stride = tile,
                        .rows = source->rows,
                        .cols = end - begin,
                        .format = (uint8_t)format,
                        .phase = (uint8_t)phase};
    return packed;
}

/* A slice must hold what the whole matrix holds, also where a scale group spans two slices or is cut off by
 * the edge. */
static void packed_slices_equal_the_whole(void **state) {
    (void)state;
    enum { ROWS = 150, COLS = 232 };
    static float w[ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++) w[i] = random_float() * (i % 7 == 0 ? 3.0f : 0.5f);
    pot_stored source = {
        .kind = POT_STORED_F32, .rows = ROWS, .cols = COLS, .codes = w, .row_stride = COLS * 4, .name = "w"};
    for (int f = POT_FORMAT_NONE + 1; f < POT_FORMAT_COUNT; f++) {
        pot_matrix whole;
        uint8_t *memory = pack_all(&source, (pot_format)f, 0, COLS, &whole);
        for (uint32_t begin = 0; begin < COLS; begin += 96) {
            uint32_t end = begin + 96 < COLS ? begin + 96 : COLS;
            pot_matrix part;
            uint8_t *part_memory = pack_all(&source, (pot_format)f, begin, end, &part);
            for (uint32_t r = 0; r < ROWS; r++) {
                float a[COLS], b[COLS];
                pot_matrix_row(a, &whole, r);
                pot_matrix_row(b, &part, r);
                assert_memory_equal(a + begin, b, (end - begin) * sizeof *b);
            }
            pot_free(part_memory);
        }
        pot_free(memory);
    }
}

static void quantizers_are_close_and_repeatable(void **state) {
    (void)state;
    enum { ROWS = 20, COLS = 200 };
    /* of the largest value of the row: half a step of the coarsest code, and what rounding the scale adds */
    static const float ERROR[POT_FORMAT_COUNT] = {
        [POT_FORMAT_BF16] = 0x1p-8f,         [POT_FORMAT_FP8] = 0x1p-4f,           [POT_FORMAT_Q8_ROW] = 0.51f / 127,
        [POT_FORMAT_Q8_G32] = 0.51f / 127,   [POT_FORMAT_Q4_ROW] = 0.51f / 7,      [POT_FORMAT_Q4_G32] = 0.51f / 7,
        [POT_FORMAT_Q4_G64] = 0.51f / 7,     [POT_FORMAT_Q4_G128] = 0.51f / 7,     [POT_FORMAT_Q4_G32_F32] = 0.51f / 7,
        [POT_FORMAT_Q4_G64_F32] = 0.51f / 7, [POT_FORMAT_Q4_G128_F32] = 0.51f / 7, [POT_FORMAT_Q2_ROW] = 0.51f,
        [POT_FORMAT_MXFP4] = 0.25f};
    float w[ROWS * COLS], again[ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++) w[i] = i / COLS == 3 ? 0.0f : random_float();
    pot_stored source = {
        .kind = POT_STORED_F32, .rows = ROWS, .cols = COLS, .codes = w, .row_stride = COLS * 4, .name = "w"};
    for (int f = POT_FORMAT_NONE + 1; f < POT_FORMAT_COUNT; f++) {
        pot_matrix matrix, second;
        uint8_t *memory = pack_all(&source, (pot_format)f, 0, COLS, &matrix);
        for (uint32_t r = 0; r < ROWS; r++) {
            float *row = again + r * COLS, amax = 0.0f;
            pot_matrix_row(row, &matrix, r);
            for (uint32_t k = 0; k < COLS; k++) amax = fmaxf(amax, fabsf(w[r * COLS + k]));
            for (uint32_t k = 0; k < COLS; k++)
                if (!(fabsf(row[k] - w[r * COLS + k]) <= ERROR[f] * amax))
                    fail_msg("%s: [%u, %u] is %g, was %g", pot_format_get((pot_format)f)->name, r, k, (double)row[k],
                             (double)w[r * COLS + k]);
        }
        /* What was quantized once is kept by a second time, as far as the scale can be found again (f16
         * rounds it). */
        if (pot_format_get((pot_format)f)->scale != POT_SCALE_F16 && f != POT_FORMAT_FP8) {
            pot_stored values = source;
            values.codes = again;
            uint8_t *second_memory = pack_all(&values, (pot_format)f, 0, COLS, &second);
            for (uint32_t r = 0; r < ROWS; r++) {
                float row[COLS];
                pot_matrix_row(row, &second, r);
                for (uint32_t k = 0; k < COLS; k++)
                    assert_true(fabsf(row[k] - again[r * COLS + k]) <= 0x1p-20f * fabsf(row[k]));
            }
            pot_free(second_memory);
        }
        pot_free(memory);
    }
}

static void f16_scales_have_limits(void **state) {
    (void)state;
    float w[32] = {0};
    pot_stored source = {.kind = POT_STORED_F32, .rows = 1, .cols = 32, .codes = w, .row_stride = 128, .name = "big"};
    _Alignas(64) uint8_t out[64 * 8];
    pot_err err = {0};
    w[5] = 1e6f;
    assert_int_equal(pot_pack(out, sizeof out, POT_FORMAT_Q4_G32, POT_ROUNDING_AUTO, &source, 0, 1, 0, 32, &err),
                     POT_NUMERIC);
    assert_text(&err, "big: row 0");
    assert_int_equal(pot_pack(out, sizeof out, POT_FORMAT_Q4_G32_F32, POT_ROUNDING_AUTO, &source, 0, 1, 0, 32, &err),
                     POT_OK);
    /* A scale below the least f16 becomes the least f16, never 0. */
    w[5] = 0x1p-24f * 3;
    float back[32];
    pot_matrix matrix;
    uint8_t *memory = pack_all(&source, POT_FORMAT_Q4_G32, 0, 32, &matrix);
    pot_matrix_row(back, &matrix, 0);
    assert_true(back[5] == w[5]);
    pot_free(memory);
}

/* ---- refusals ---- */

static void values_that_are_not_finite_are_refused(void **state) {
    (void)state;
    static const uint32_t NOT_A_NUMBER = 0x7fc00000u, INFINITE = 0xff800000u;
    static const struct {
        pot_stored_kind kind;
        uint32_t group;
        uint32_t code_bytes, fault; /* a code of that many bytes at row 2, column 37 ... */
        bool scale;                 /* ... or a scale of row 2 (fp8: of all rows) */
    } CASES[] = {
        {POT_STORED_F32, 0, 4, NOT_A_NUMBER, false},  {POT_STORED_F32, 0, 4, INFINITE, false},
        {POT_STORED_BF16, 0, 2, 0x7f80u, false},      {POT_STORED_BF16, 0, 2, 0xffc1u, false},
        {POT_STORED_F16, 0, 2, 0x7c00u, false},       {POT_STORED_F16, 0, 2, 0xfe00u, false},
        {POT_STORED_FP8, 0, 1, 0x7fu, false},         {POT_STORED_FP8, 0, 1, 0xffu, false},
        {POT_STORED_FP8, 0, 1, NOT_A_NUMBER, true},   {POT_STORED_FP8, 0, 1, INFINITE, true},
        {POT_STORED_MXFP4, 0, 0, 255, true},          {POT_STORED_INT8, 0, 1, NOT_A_NUMBER, true},
        {POT_STORED_INT8, 32, 1, INFINITE, true},     {POT_STORED_INT4, 0, 0, INFINITE, true},
        {POT_STORED_INT4, 64, 0, NOT_A_NUMBER, true}, {POT_STORED_INT2, 0, 0, NOT_A_NUMBER, true},
    };
    enum { ROWS = 3, COLS = 64 };
    _Alignas(64) static uint8_t out[64 * 2048];
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        uint8_t codes[ROWS * COLS * 4] = {0}, scales[ROWS * 8] = {0};
        pot_stored source = {.kind = CASES[i].kind,
                             .rows = ROWS,
                             .cols = COLS,
                             .group = CASES[i].group,
                             .codes = codes,
                             .scales = scales,
                             .row_stride = COLS * 4,
                             .name = "layer.weight"};
        if (!CASES[i].scale)
            memcpy(codes + 2 * source.row_stride + 37 * CASES[i].code_bytes, &CASES[i].fault, CASES[i].code_bytes);
        else if (CASES[i].kind == POT_STORED_MXFP4)
            scales[2 * 2 + 1] = (uint8_t)CASES[i].fault;
        else if (CASES[i].kind == POT_STORED_FP8)
            memcpy(scales, &CASES[i].fault, 4);
        else
            memcpy(scales + 4 * 2 * (CASES[i].group == 32 ? 2 : 1), &CASES[i].fault, 4);
        float row[COLS];
        for (int f = POT_FORMAT_NONE + 1; f < POT_FORMAT_COUNT; f++) {
            pot_err err = {0};
            assert_int_equal(
                pot_pack(out, sizeof out, (pot_format)f, POT_ROUNDING_AUTO, &source, 0, ROWS, 0, COLS, &err),
                POT_NUMERIC);
            assert_text(&err, "layer.weight");
            assert_text(&err, CASES[i].kind == POT_STORED_FP8 && CASES[i].scale ? "row 0" : "row 2");
        }
        pot_err err = {0};
        assert_int_equal(pot_stored_row(row, &source, 2, 0, COLS, &err), POT_NUMERIC);
        assert_text(&err, "layer.weight");
    }
    float huge = 3.4e38f; /* finite, but not in bf16 */
    pot_stored source = {.kind = POT_STORED_F32, .rows = 1, .cols = 1, .codes = &huge, .row_stride = 4, .name = "huge"};
    pot_err err = {0};
    assert_int_equal(pot_pack(out, sizeof out, POT_FORMAT_BF16, POT_ROUNDING_AUTO, &source, 0, 1, 0, 1, &err),
                     POT_NUMERIC);
    assert_text(&err, "too large for bf16");
}

static void chunks_of_wrong_shape_are_refused(void **state) {
    (void)state;
    static float w[64 * 64];
    static _Alignas(64) uint8_t out[1 << 16];
    pot_stored good = {.kind = POT_STORED_F32, .rows = 32, .cols = 64, .codes = w, .row_stride = 256, .name = "gate"};
    pot_stored down = {.kind = POT_STORED_F32, .rows = 64, .cols = 32, .codes = w, .row_stride = 128, .name = "down"};
    pot_ffn_shape shape;
    pot_ffn_shape_init(&shape, 64, 32, POT_FORMAT_F32, POT_FORMAT_F32);
    pot_err err = {0};
    assert_int_equal(pot_pack_chunk(out, &shape, POT_ROUNDING_AUTO, 0, &good, &good, &down, &err), POT_OK);
    assert_int_equal(pot_pack_chunk(out, &shape, POT_ROUNDING_AUTO, 0, &good, &good, &good, &err), POT_FORMAT);
    assert_text(&err, "gate is [32, 64], need [64, 32]");
}

/* ---- conversions ---- */

/* Between two neighbours of a narrow format the exact middle goes to the even one, and what is next to it to
 * its side. */
static void check_rounding(float low, float high, uint32_t low_code, uint32_t high_code, uint32_t (*encode)(float)) {
    float middle = (float)(((double)low + (double)high) / 2);
    assert_int_equal(encode(low), low_code);
    assert_int_equal(encode(middle), low_code % 2 == 0 ? low_code : high_code);
    assert_int_equal(encode(nextafterf(middle, -INFINITY)), low < high ? low_code : high_code);
    assert_int_equal(encode(nextafterf(middle, INFINITY)), low < high ? high_code : low_code);
}
static uint32_t encode_f16(float v) { return pot_f16_from_f32(v); }
static uint32_t encode_bf16(float v) { return pot_bf16_from_f32(v); }
static uint32_t encode_e4m3(float v) { return pot_e4m3_from_f32(v); }

static double f16_value(uint32_t code) {
    double magnitude =
        (code & 0x7c00) == 0 ? ldexp(code & 0x3ff, -24) : ldexp(0x400 | (code & 0x3ff), (int)(code >> 10 & 31) - 25);
    return code & 0x8000 ? -magnitude : magnitude;
}

static void narrow_floats_convert_exactly(void **state) {
    (void)state;
    for (uint32_t c = 0; c < 0x10000; c++) {
        float v = pot_f32_from_f16((uint16_t)c);
        bool special = (c & 0x7c00) == 0x7c00;
        if (special && (c & 0x3ff)) {
            assert_true(isnan(v) && isnan(pot_f32_from_f16(pot_f16_from_f32(v))));
        } else {
            assert_true(special ? isinf(v) : (double)v == f16_value(c));
            assert_int_equal(pot_f16_from_f32(v), c);
        }
        if ((c & 0x7fff) < 0x7bff) check_rounding(v, pot_f32_from_f16((uint16_t)(c + 1)), c, c + 1, encode_f16);
        if ((c & 0x7fff) < 0x7f7f)
            check_rounding(pot_f32_from_bf16((uint16_t)c), pot_f32_from_bf16((uint16_t)(c + 1)), c, c + 1, encode_bf16);
    }
    for (uint32_t c = 0; c < 256; c++)
        if ((c & 0x7f) < 0x7e)
            check_rounding(pot_f32_from_e4m3((uint8_t)c), pot_f32_from_e4m3((uint8_t)(c + 1)), c, c + 1, encode_e4m3);
    assert_int_equal(pot_f16_from_f32(65519.996f), 0x7bff);
    assert_int_equal(pot_f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(pot_f16_from_f32(1e-30f), 0);
    assert_int_equal(pot_e4m3_from_f32(1e9f), 0x7e);
    assert_int_equal(pot_e4m3_from_f32(-INFINITY), 0xfe);
    assert_int_equal(pot_e4m3_from_f32(1e-30f), 0);
    assert_true(isnan(pot_f32_from_bf16(pot_bf16_from_f32(NAN))));
    for (int c = 0; c < 255; c++) assert_true(pot_f32_from_e8m0((uint8_t)c) == ldexpf(1.0f, c - 127));
    assert_true(isnan(pot_f32_from_e8m0(255)));
}

/* ---- math ---- */

/* Distance in units of the last place of the f32 nearest to `want`. */
static double ulps(float got, double want) {
    int exponent;
    frexp(want, &exponent);
    if (exponent < -125) exponent = -125;
    return fabs((double)got - want) / ldexp(1.0, exponent - 24);
}
static double double_ulps(double got, long double want) {
    int exponent;
    frexpl(want, &exponent);
    return (double)(fabsl((long double)got - want) / ldexpl(1.0L, exponent - 53));
}

static void exp_and_log_are_accurate(void **state) {
    (void)state;
    for (int i = 0; i < 400000; i++) {
        float x = -87.3f + (float)i * (175.6f / 400000);
        assert_true(ulps(pot_expf(x), exp((double)x)) < 1.0);
    }
    assert_int_equal(pot_f32_bits(pot_expf(-1000.0f)), pot_f32_bits(pot_expf(-87.33654f)));
    assert_int_equal(pot_f32_bits(pot_expf(INFINITY)), pot_f32_bits(pot_expf(88.37626f)));
    assert_true(isnan(pot_expf(NAN)));
    assert_true(pot_sigmoid(0.0f) == 0.5f);
    for (int i = 0; i < 200000; i++) {
        double x = -708.0 + i * (1417.0 / 200000);
        assert_true(double_ulps(pot_exp(x), expl((long double)x)) < 2.0);
        double y = ldexp(1.0 + (double)random_bits() * 0x1p-32, (int)(random_bits() % 2040) - 1020);
        assert_true(double_ulps(pot_log(y), logl((long double)y)) < 2.0);
        y = 1.0 + (double)random_float() * 1e-3;
        assert_true(double_ulps(pot_log(y), logl((long double)y)) < 2.0);
    }
    assert_true(pot_exp(0.0) == 1.0 && pot_exp(-800.0) == 0.0 && isinf(pot_exp(800.0)) && isnan(pot_exp((double)NAN)));
    assert_true(pot_exp(-745.0) == exp(-745.0) && pot_log(1.0) == 0.0);
    assert_true(double_ulps(pot_log(0x1p-1070), logl(0x1p-1070L)) < 2.0);
}

static void sine_and_cosine_are_accurate(void **state) {
    (void)state;
    for (int i = 0; i < 600000; i++) {
        float a;
        if (i % 3 == 0)
            a = (float)(i - i % 3) * 7.0f; /* whole numbers up to 2^22 */
        else if (i % 3 == 1)
            a = (float)((double)i * 0.7853981633974483); /* next to multiples of pi/4 */
        else
            a = ldexpf(random_float(), (int)(random_bits() % 40) - 10); /* up to 2^29 */
        float s, c;
        pot_sincos(&s, &c, a);
        if (!(ulps(s, sin((double)a)) <= 1.0 && ulps(c, cos((double)a)) <= 1.0))
            fail_msg("angle %a: %a %a", (double)a, (double)s, (double)c);
    }
    float s, c;
    pot_sincos(&s, &c, 0.0f);
    assert_true(s == 0.0f && c == 1.0f);
}

static void rope_frequencies_are_accurate(void **state) {
    (void)state;
    static const struct {
        double theta;
        uint32_t d;
    } CASES[] = {{8e6, 64}, {1e6, 64}, {1e4, 128}, {8e6, 128}, {1e4, 2}, {500000.0, 10}};
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        float f[64];
        pot_rope_frequencies(f, CASES[i].theta, CASES[i].d);
        for (uint32_t j = 0; j < CASES[i].d / 2; j++)
            assert_true(ulps(f[j], pow(CASES[i].theta, -2.0 * j / CASES[i].d)) <= 0.51);
    }
}

/* Sixteen accumulators, combined 8-4-2-1, written out once more. */
static float lanes(const float *x, uint32_t n, float shift, bool squared) {
    float a[16] = {0};
    for (uint32_t i = 0; i < n; i++)
        a[i % 16] = squared ? fmaf(x[i] - shift, x[i] - shift, a[i % 16]) : a[i % 16] + x[i];
    float b[8], c[4];
    for (int i = 0; i < 8; i++) b[i] = a[i] + a[i + 8];
    for (int i = 0; i < 4; i++) c[i] = b[i] + b[i + 4];
    return (c[0] + c[2]) + (c[1] + c[3]);
}

static void norms_keep_their_order(void **state) {
    (void)state;
    float x[100], w[100], b[100], y[100];
    for (int i = 0; i < 100; i++) x[i] = random_float() * 3, w[i] = random_float(), b[i] = random_float();
    for (uint32_t n = 1; n <= 100; n += 9) {
        pot_rms_norm(y, x, w, n, 1e-5f);
        float scale = 1.0f / sqrtf(lanes(x, n, 0.0f, true) / (float)n + 1e-5f);
        for (uint32_t i = 0; i < n; i++) assert_int_equal(pot_f32_bits(y[i]), pot_f32_bits(x[i] * scale * w[i]));
        pot_layer_norm(y, x, w, b, n, 1e-6f);
        float mean = lanes(x, n, 0.0f, false) / (float)n;
        scale = 1.0f / sqrtf(lanes(x, n, mean, true) / (float)n + 1e-6f);
        for (uint32_t i = 0; i < n; i++)
            assert_int_equal(pot_f32_bits(y[i]), pot_f32_bits(fmaf((x[i] - mean) * scale, w[i], b[i])));
    }
}

static void strict_mode_keeps_denormals(void **state) {
    (void)state;
    volatile float tiny = 0x1p-126f, half = 0.5f;
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040u | 0x2000u); /* flush to zero, denormals are zero, round down */
    assert_true(tiny * half == 0.0f);
#endif
    pot_fp_strict();
    assert_true(tiny * half != 0.0f);
    volatile float one = 1.0f, step = 0x1.8p-24f;
    assert_true(one + step > 1.0f); /* to nearest again */
}

/* ---- tables ---- */

static void tables_are_whole_and_picked_by_name(void **state) {
    (void)state;
    const pot_kernels *list[MAX_TABLES], *picked = NULL;
    pot_err err = {0};
    int n = pot_kernels_list(list, MAX_TABLES);
    assert_true(n >= 1);
    assert_string_equal(list[0]->name, "generic");
    for (int i = 0; i < n; i++) {
        for (int f = POT_FORMAT_NONE + 1; f < POT_FORMAT_COUNT; f++) assert_non_null(list[i]->matmul[f]);
        /* a table is nothing but pointers, after its name */
        void *const *slot = (void *const *)(const void *)list[i];
        for (size_t s = 0; s < sizeof *list[i] / sizeof *slot; s++)
            assert_true(slot[s] != NULL || s == offsetof(pot_kernels, matmul) / sizeof *slot); /* the format "none" */
        assert_int_equal(pot_kernels_pick(&picked, list[i]->name, &err), POT_OK);
        assert_ptr_equal(picked, list[i]);
    }
    assert_int_equal(pot_kernels_pick(&picked, "auto", &err), POT_OK);
    assert_ptr_equal(picked, list[n - 1]);
    assert_int_equal(pot_kernels_pick(&picked, NULL, &err), POT_OK);
    assert_ptr_equal(picked, list[n - 1]);
    assert_int_equal(pot_kernels_pick(&picked, "mmx", &err), POT_USAGE);
    assert_text(&err, "'mmx'");
    for (int i = 0; i < n; i++) assert_text(&err, list[i]->name);
    assert_int_equal(pot_kernels_list(list, 1), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(format_names_are_found),
        cmocka_unit_test(chunk_sizes_are_as_designed),
        cmocka_unit_test(tile_sizes_count_scale_lines),
        cmocka_unit_test(packed_layout_has_golden_bytes),
        cmocka_unit_test(packed_slices_equal_the_whole),
        cmocka_unit_test(quantizers_are_close_and_repeatable),
        cmocka_unit_test(f16_scales_have_limits),
        cmocka_unit_test(values_that_are_not_finite_are_refused),
        cmocka_unit_test(chunks_of_wrong_shape_are_refused),
        cmocka_unit_test(narrow_floats_convert_exactly),
        cmocka_unit_test(exp_and_log_are_accurate),
        cmocka_unit_test(sine_and_cosine_are_accurate),
        cmocka_unit_test(rope_frequencies_are_accurate),
        cmocka_unit_test(norms_keep_their_order),
        cmocka_unit_test(strict_mode_keeps_denormals),
        cmocka_unit_test(tables_are_whole_and_picked_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
