/* The packer's bits: what is copied is copied exactly, whatever the groups and edges; what is quantized follows docs/formats.md, each
 * rule written here once more for one value at a time; the search finds the least error among its candidates. */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/float_mode.h"
#include "common/mem.h"
#include "kernels/convert.h"
#include "kernels/stored.h"
#include "tests/kernels_support.h"
#include "tests/packed.h"

/* ---- sources --------------------------------------------------------------------------------------------------------- */

typedef struct matrix {
    pot_stored stored;
    uint8_t *codes, *scales;
} matrix;

static uint32_t code_bits(pot_stored_kind kind) {
    static const uint32_t BITS[] = {32, 16, 16, 8, 4, 8, 4, 2};
    return BITS[kind];
}

/* Any codes (of floats: any that are numbers), at addresses that are not aligned, and scales with `scale_mantissa` bits. */
static matrix random_matrix(pot_stored_kind kind, uint32_t rows, uint32_t cols, uint32_t group,
                            uint32_t scale_mantissa) {
    const uint32_t bits = code_bits(kind), width = kind == POT_STORED_MXFP4 ? 32 : group ? group : cols;
    const size_t stride = ((size_t)cols * bits + 7) / 8 + 1;
    const size_t scales = kind == POT_STORED_FP8 ? (size_t)(rows + 127) / 128 * ((cols + 127) / 128)
                                                 : rows * (((size_t)cols + width - 1) / width);
    matrix m = {.codes = pot_alloc(rows * stride + 1), .scales = pot_alloc(4 * scales + 1)};
    for (size_t i = 0; i < rows * stride; i++) {
        m.codes[1 + i] = (uint8_t)(random_bits() >> 7);
        if (kind == POT_STORED_FP8 && (m.codes[1 + i] & 127) == 127) m.codes[1 + i] = 128; /* minus zero */
    }
    for (uint32_t r = 0; r < rows && kind <= POT_STORED_F16; r++)
        for (uint32_t k = 0; k < cols; k++) {
            const float value = ldexpf(random_float(), -(int)(random_bits() % 12));
            const uint16_t half = kind == POT_STORED_BF16 ? pot_bf16_from_f32(value) : pot_f16_from_f32(value);
            memcpy(m.codes + 1 + r * stride + (size_t)k * bits / 8, bits == 32 ? (const void *)&value : &half,
                   bits / 8);
        }
    for (size_t i = 0; i < scales && kind >= POT_STORED_FP8; i++) {
        const uint32_t mantissa = random_bits() >> 9 & ~(0x7fffffu >> scale_mantissa);
        const float scale = ldexpf(pot_f32_from_bits(0x3f800000u | mantissa), -(int)(random_bits() % 12));
        if (kind == POT_STORED_MXFP4)
            m.scales[1 + i] = (uint8_t)(random_bits() % 252); /* 6 * 2^(251 - 127) is still a number */
        else
            memcpy(m.scales + 1 + 4 * i, &scale, 4);
    }
    m.stored = (pot_stored){.kind = kind,
                            .rows = rows,
                            .cols = cols,
                            .group = group,
                            .codes = m.codes + 1,
                            .scales = kind >= POT_STORED_FP8 ? m.scales + 1 : NULL,
                            .row_stride = stride,
                            .name = "random"};
    return m;
}

static void matrix_free(matrix *m) {
    pot_free(m->codes);
    pot_free(m->scales);
}

static matrix matrix_of_floats(const float *values, uint32_t rows, uint32_t cols) {
    matrix m = {.codes = pot_alloc(4 * (size_t)rows * cols)};
    memcpy(m.codes, values, 4 * (size_t)rows * cols);
    m.stored = (pot_stored){.kind = POT_STORED_F32,
                            .rows = rows,
                            .cols = cols,
                            .codes = m.codes,
                            .row_stride = 4 * (size_t)cols,
                            .name = "floats"};
    return m;
}

/* ---- copies ---------------------------------------------------------------------------------------------------------- */

typedef struct exact_case {
    pot_stored_kind kind;
    uint32_t group;
    pot_format format; /* that keeps it */
} exact_case;

static const exact_case NATURAL[] = {
    {POT_STORED_F32, 0, POT_FORMAT_F32},
    {POT_STORED_BF16, 0, POT_FORMAT_BF16},
    {POT_STORED_F16, 0, POT_FORMAT_F32},
    {POT_STORED_FP8, 0, POT_FORMAT_FP8},
    {POT_STORED_MXFP4, 0, POT_FORMAT_MXFP4},
    {POT_STORED_INT2, 0, POT_FORMAT_Q2_ROW},
    {POT_STORED_INT8, 0, POT_FORMAT_Q8_ROW},
    {POT_STORED_INT8, 16, POT_FORMAT_F32},
    {POT_STORED_INT8, 32, POT_FORMAT_Q8_G32},
    {POT_STORED_INT8, 48, POT_FORMAT_F32},
    {POT_STORED_INT8, 64, POT_FORMAT_Q8_G32},
    {POT_STORED_INT8, 128, POT_FORMAT_Q8_G32},
    {POT_STORED_INT4, 0, POT_FORMAT_Q4_ROW},
    {POT_STORED_INT4, 16, POT_FORMAT_F32},
    {POT_STORED_INT4, 32, POT_FORMAT_Q4_G32_F32},
    {POT_STORED_INT4, 48, POT_FORMAT_F32},
    {POT_STORED_INT4, 64, POT_FORMAT_Q4_G64_F32},
    {POT_STORED_INT4, 96, POT_FORMAT_Q4_G32_F32},
    {POT_STORED_INT4, 128, POT_FORMAT_Q4_G128_F32},
    {POT_STORED_INT4, 192, POT_FORMAT_Q4_G64_F32},
    {POT_STORED_INT4, 256, POT_FORMAT_Q4_G128_F32},
    {POT_STORED_INT4, 4096, POT_FORMAT_Q4_ROW}, /* more than a row has */
};

/* Other formats that hold a source exactly: more bits, smaller groups. */
static const exact_case ROOMY[] = {
    {POT_STORED_INT2, 0, POT_FORMAT_Q4_ROW},       {POT_STORED_INT2, 0, POT_FORMAT_Q4_G128_F32},
    {POT_STORED_INT2, 0, POT_FORMAT_Q8_G32},       {POT_STORED_INT4, 0, POT_FORMAT_Q8_ROW},
    {POT_STORED_INT4, 0, POT_FORMAT_Q4_G64_F32},   {POT_STORED_INT4, 32, POT_FORMAT_Q8_G32},
    {POT_STORED_INT4, 96, POT_FORMAT_Q8_G32},      {POT_STORED_INT4, 128, POT_FORMAT_Q4_G32_F32},
    {POT_STORED_INT4, 256, POT_FORMAT_Q4_G64_F32}, {POT_STORED_INT8, 0, POT_FORMAT_Q8_G32},
    {POT_STORED_INT8, 32, POT_FORMAT_F32},         {POT_STORED_MXFP4, 0, POT_FORMAT_F32},
    {POT_STORED_MXFP4, 0, POT_FORMAT_BF16},        {POT_STORED_BF16, 0, POT_FORMAT_F32},
};

/* The code of a place as the file has it. */
static uint32_t stored_code(const pot_stored *s, uint32_t row, uint32_t col) {
    const uint32_t bits = code_bits(s->kind);
    uint32_t code = 0;
    const uint8_t *at = (const uint8_t *)s->codes + row * s->row_stride + (size_t)col * bits / 8;
    memcpy(&code, at, bits < 8 ? 1 : bits / 8);
    return bits < 8 ? code >> col % (8 / bits) * bits & ((1u << bits) - 1u) : code;
}

static void check_kept(const matrix *m, pot_format format, uint32_t begin, uint32_t end, pot_rounding rounding) {
    const pot_stored *s = &m->stored;
    const pot_format_traits *traits = pot_format_get(format);
    const bool same_bits = traits->bits == code_bits(s->kind) && s->kind != POT_STORED_F16;
    pot_matrix packed;
    uint8_t *memory = packed_columns(&packed, s, format, rounding, begin, end);
    float *want = pot_alloc_array(end - begin, 2 * sizeof *want), *got = want + (end - begin);
    for (uint32_t r = 0; r < s->rows; r++) {
        pot_err err = {0};
        if (pot_stored_row(want, s, r, begin, end, &err) != POT_OK) fail_msg("%s", err.text);
        pot_matrix_row(got, &packed, r);
        for (uint32_t k = begin; k < end; k++) {
            if (pot_f32_bits(want[k - begin]) != pot_f32_bits(got[k - begin]))
                fail_msg("%s group %u as %s: [%u, %u] is %a, want %a", s->name, s->group, traits->name, r, k,
                         (double)got[k - begin], (double)want[k - begin]);
            if (same_bits) assert_int_equal(packed_code(&packed, r, k - begin), stored_code(s, r, k));
        }
    }
    pot_free(want);
    pot_free(memory);
}

static void check_case(const exact_case *c, uint32_t rows, uint32_t cols) {
    if (c->kind == POT_STORED_MXFP4) cols = (cols + 31) / 32 * 32;
    matrix m = random_matrix(c->kind, rows, cols, c->group, 23);
    const pot_rounding rounding = (pot_rounding)(random_bits() % 3); /* a copy does not depend on it */
    check_kept(&m, c->format, 0, cols, rounding);
    for (uint32_t begin = 32; begin < cols && begin <= 224;
         begin += 32) /* slices inside groups, and what is left of a row */
        check_kept(&m, c->format, begin, begin + 256 < cols && begin % 64 ? begin + 256 : cols, rounding);
    matrix_free(&m);
}

static void copies_are_exact(void **state) {
    (void)state;
    static const uint32_t COLS[] = {1, 31, 33, 200, 257, 321, 1100, 2305};
    for (size_t i = 0; i < sizeof NATURAL / sizeof *NATURAL; i++)
        for (size_t c = 0; c < sizeof COLS / sizeof *COLS; c++)
            check_case(&NATURAL[i], 1 + random_bits() % 40, COLS[c]);
    for (size_t i = 0; i < sizeof ROOMY / sizeof *ROOMY; i++)
        for (size_t c = 3; c < sizeof COLS / sizeof *COLS; c++) check_case(&ROOMY[i], 1 + random_bits() % 40, COLS[c]);
}

static void natural_format_keeps_everything(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof NATURAL / sizeof *NATURAL; i++) {
        const pot_stored source = {.kind = NATURAL[i].kind, .group = NATURAL[i].group, .cols = 1000};
        assert_int_equal(pot_stored_natural_format(&source), NATURAL[i].format);
    }
}

/* Every code, of each sign, and the least one, -128, -8 and -2, which no quantizer here gives. */
static void every_code_is_kept(void **state) {
    (void)state;
    static const exact_case CASES[] = {
        {POT_STORED_INT8, 0, POT_FORMAT_Q8_ROW}, {POT_STORED_INT8, 64, POT_FORMAT_Q8_G32},
        {POT_STORED_INT4, 0, POT_FORMAT_Q4_ROW}, {POT_STORED_INT4, 192, POT_FORMAT_Q4_G64_F32},
        {POT_STORED_INT2, 0, POT_FORMAT_Q2_ROW}, {POT_STORED_INT4, 0, POT_FORMAT_Q8_ROW},
        {POT_STORED_MXFP4, 0, POT_FORMAT_MXFP4}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        matrix m = random_matrix(CASES[i].kind, 20, 512, CASES[i].group, 23);
        bool seen[256] = {false};
        for (size_t j = 0; j < 20 * m.stored.row_stride; j++) m.codes[1 + j] = (uint8_t)j;
        for (uint32_t k = 0; k < 512; k++) seen[stored_code(&m.stored, 3, k)] = true;
        for (uint32_t c = 0; c < 1u << code_bits(CASES[i].kind); c++)
            assert_true(seen[c] || CASES[i].kind == POT_STORED_INT2);
        check_kept(&m, CASES[i].format, 0, 512, POT_ROUNDING_AUTO);
        matrix_free(&m);
    }
}

/* Scales that f16 has are kept in f16; with one that it has not, that group and no other is quantized anew. */
static void f16_formats_copy_what_f16_holds(void **state) {
    (void)state;
    matrix m = random_matrix(POT_STORED_INT4, 33, 320, 64, 10);
    check_kept(&m, POT_FORMAT_Q4_G64, 0, 320, POT_ROUNDING_SEARCH);
    check_kept(&m, POT_FORMAT_Q4_G32, 0, 320, POT_ROUNDING_AUTO);
    const float third = 1.0f / 3.0f;
    memcpy(m.scales + 1 + (size_t)4 * (20 * 5 + 2), &third, 4); /* row 20, columns 128 to 191 */
    pot_matrix packed;
    uint8_t *memory = packed_columns(&packed, &m.stored, POT_FORMAT_Q4_G64, POT_ROUNDING_AUTO, 0, 320);
    float want[320], got[320];
    uint32_t changed = 0;
    for (uint32_t r = 0; r < 33; r++) {
        assert_int_equal(pot_stored_row(want, &m.stored, r, 0, 320, NULL), POT_OK);
        pot_matrix_row(got, &packed, r);
        for (uint32_t k = 0; k < 320; k++) {
            changed += got[k] != want[k];
            assert_true(got[k] == want[k] || (r == 20 && k >= 128 && k < 192));
            assert_true(fabsf(got[k] - want[k]) <= 0.7f * third);
        }
    }
    assert_true(changed > 0);
    check_kept(&m, POT_FORMAT_Q4_G64_F32, 0, 320, POT_ROUNDING_AUTO);
    pot_free(memory);
    matrix_free(&m);
}

/* ---- quantizers, a value at a time ----------------------------------------------------------------------------------- */

static float largest(const float *values, uint32_t n) {
    float amax = 0.0f;
    for (uint32_t k = 0; k < n; k++) amax = fmaxf(amax, fabsf(values[k]));
    return amax;
}

static uint32_t nearest_e2m1(double value) {
    const double a = fabs(value);
    const int code = (a > 0.25) + (a >= 0.75) + (a > 1.25) + (a >= 1.75) + (a > 2.5) + (a >= 3.5) + (a > 5.0);
    return (uint32_t)(value < 0.0 && code != 0 ? code + 8 : code);
}

static void check_mxfp4(const pot_matrix *m, uint32_t row, uint32_t begin, uint32_t end, const float *values,
                        pot_rounding rounding) {
    const float amax = largest(values + begin, end - begin);
    int power = -127;
    if (amax > 0.0f) frexp((double)amax, &power);
    power -= 1; /* frexp's fraction is below 1 */
    int exponent = power - 2;
    if (rounding == POT_ROUNDING_AUTO && (double)amax >= ldexp(7.0, exponent)) exponent++;
    if (exponent < -127) exponent = -127;
    for (uint32_t k = begin; k < end; k++) {
        assert_int_equal(packed_scale(m, row, k), exponent + 127);
        assert_int_equal(packed_code(m, row, k), nearest_e2m1(ldexp((double)values[k], -exponent)));
    }
}

static void check_integers(const pot_matrix *m, uint32_t row, uint32_t begin, uint32_t end, const float *values) {
    const pot_format_traits *traits = pot_format_get((pot_format)m->format);
    const int top = (1 << (traits->bits - 1)) - 1;
    float scale = largest(values + begin, end - begin) / (float)top;
    if (scale == 0.0f) scale = 1.0f;
    uint32_t bits = pot_f32_bits(scale);
    if (traits->scale == POT_SCALE_F16) {
        bits = pot_f16_from_f32(scale) ? pot_f16_from_f32(scale) : 1;
        scale = pot_f32_from_f16((uint16_t)bits);
    }
    for (uint32_t k = begin; k < end; k++) {
        int q = (int)rintf(values[k] / scale);
        q = q > top ? top : q < -top - 1 ? -top - 1 : q;
        assert_int_equal(packed_scale(m, row, k), bits);
        assert_int_equal(packed_code(m, row, k), (traits->bits == 8 ? q : q + top + 1) & ((1 << traits->bits) - 1));
    }
}

static void check_floats(const pot_matrix *m, uint32_t row, const float *values, float fp8_scale) {
    for (uint32_t k = 0; k < m->cols; k++) {
        if (m->format == POT_FORMAT_FP8) {
            assert_int_equal(packed_scale(m, row, k), pot_f32_bits(fp8_scale));
            assert_int_equal(packed_code(m, row, k), pot_e4m3_from_f32(values[k] / fp8_scale));
        } else {
            assert_int_equal(packed_code(m, row, k),
                             m->format == POT_FORMAT_F32 ? pot_f32_bits(values[k]) : pot_bf16_from_f32(values[k]));
        }
    }
}

enum { Q_ROWS = 18, Q_COLS = 117 }; /* one block of fp8, and edges everywhere */

static void check_quantized(const float *values, pot_format format, pot_rounding rounding) {
    const pot_format_traits *traits = pot_format_get(format);
    matrix source = matrix_of_floats(values, Q_ROWS, Q_COLS);
    pot_matrix m;
    uint8_t *memory = packed_columns(&m, &source.stored, format, rounding, 0, Q_COLS);
    const uint32_t group = traits->blocks_per_group ? traits->blocks_per_group * 32 : Q_COLS;
    const float amax = largest(values, Q_ROWS * Q_COLS), fp8 = amax / 448.0f == 0.0f ? 1.0f : amax / 448.0f;
    for (uint32_t r = 0; r < Q_ROWS; r++) {
        const float *row = values + r * Q_COLS;
        if (!traits->integer) check_floats(&m, r, row, fp8);
        for (uint32_t begin = 0; begin < Q_COLS && traits->integer; begin += group) {
            const uint32_t end = begin + group < Q_COLS ? begin + group : Q_COLS;
            if (format == POT_FORMAT_MXFP4)
                check_mxfp4(&m, r, begin, end, row, rounding);
            else
                check_integers(&m, r, begin, end, row);
        }
    }
    pot_free(memory);
    matrix_free(&source);
}

/* Kinds of numbers: like weights, ties, subnormals, of very different size, only zeros and signs. */
static float number_of_kind(int kind) {
    switch (kind) {
    case 0: return random_float() + random_float() + random_float();
    case 1: return ldexpf((float)(int)(random_bits() % 129) - 64.0f, -3);
    case 2: return ldexpf(random_float(), -149 + (int)(random_bits() % 30));
    case 3: return ldexpf(random_float(), (int)(random_bits() % 40) - 25);
    default: return random_bits() % 3 ? 0.0f : random_bits() % 2 ? -0.0f : ldexpf(-1.0f, -20);
    }
}

static void quantizers_follow_their_rules(void **state) {
    (void)state;
    static float values[Q_ROWS * Q_COLS];
    for (int kind = 0; kind < 5; kind++)
        for (int round = 0; round < 6; round++) {
            for (int i = 0; i < Q_ROWS * Q_COLS; i++) values[i] = number_of_kind(kind);
            for (int f = POT_FORMAT_NONE + 1; f < POT_FORMAT_COUNT; f++) {
                check_quantized(values, (pot_format)f, POT_ROUNDING_AUTO);
                check_quantized(values, (pot_format)f, POT_ROUNDING_OCP);
            }
        }
}

/* ---- the search ------------------------------------------------------------------------------------------------------ */

static double group_error(const pot_matrix *m, uint32_t row, uint32_t begin, uint32_t end, const float *values) {
    float got[Q_COLS];
    double error = 0.0;
    pot_matrix_row(got, m, row);
    for (uint32_t k = begin; k < end; k++) error += pow((double)got[k] - (double)values[k], 2.0);
    return error;
}

/* The least error of an integer format over the scales that the page names, largest first. */
static double least_error(const pot_format_traits *traits, const float *values, uint32_t n) {
    const int top = (1 << (traits->bits - 1)) - 1;
    const float whole = largest(values, n) / (float)top;
    double least = DBL_MAX;
    for (int i = 0; i <= 12 && whole > 0.0f; i++) {
        float scale = whole - (float)i * (whole / (traits->bits == 8 ? 300.0f : 30.0f));
        if (traits->scale == POT_SCALE_F16) scale = pot_f32_from_f16(pot_f16_from_f32(scale));
        double error = 0.0;
        for (uint32_t k = 0; k < n; k++) {
            double q = rint((double)values[k] / (double)scale);
            q = q > top ? top : q < -top - 1 ? -top - 1 : q;
            error += pow((double)values[k] - q * (double)scale, 2.0);
        }
        least = error < least ? error : least;
    }
    return whole > 0.0f ? least : 0.0;
}

static double least_mxfp4(const float *values, uint32_t n) {
    const float amax = largest(values, n);
    int power;
    frexp((double)amax, &power);
    double least = DBL_MAX;
    const int quark = power - 3 + ((double)amax >= ldexp(7.0, power - 3));
    for (int exponent = quark + 1; exponent >= quark - 1; exponent--) {
        double error = 0.0;
        for (uint32_t k = 0; k < n; k++) {
            const uint32_t code = nearest_e2m1(ldexp((double)values[k], -exponent));
            error += pow((double)values[k] - ldexp((double)pot_f32_from_e2m1((uint8_t)code), exponent), 2.0);
        }
        least = error < least ? error : least;
    }
    return amax > 0.0f ? least : 0.0;
}

static void search_finds_the_least_error(void **state) {
    (void)state;
    static float values[Q_ROWS * Q_COLS];
    for (int f = POT_FORMAT_Q8_ROW; f < POT_FORMAT_COUNT; f++) {
        const pot_format_traits *traits = pot_format_get((pot_format)f);
        const uint32_t group = traits->blocks_per_group ? traits->blocks_per_group * 32 : Q_COLS;
        double before = 0.0, after = 0.0;
        for (int i = 0; i < Q_ROWS * Q_COLS; i++) values[i] = i / Q_COLS == 3 ? 0.0f : number_of_kind(i / Q_COLS % 2);
        matrix source = matrix_of_floats(values, Q_ROWS, Q_COLS);
        pot_matrix plain, found;
        uint8_t *a = packed_columns(&plain, &source.stored, (pot_format)f, POT_ROUNDING_AUTO, 0, Q_COLS);
        uint8_t *b = packed_columns(&found, &source.stored, (pot_format)f, POT_ROUNDING_SEARCH, 0, Q_COLS);
        for (uint32_t r = 0; r < Q_ROWS; r++)
            for (uint32_t begin = 0; begin < Q_COLS; begin += group) {
                const uint32_t end = begin + group < Q_COLS ? begin + group : Q_COLS;
                const float *row = values + r * Q_COLS;
                const double error = group_error(&found, r, begin, end, row);
                const double least = f == POT_FORMAT_MXFP4 ? least_mxfp4(row + begin, end - begin)
                                                           : least_error(traits, row + begin, end - begin);
                if (!(error <= least * (1.0 + 1e-4) + 1e-12)) /* the search adds in f32 */
                    fail_msg("%s: row %u, columns %u: %g, want %g", traits->name, r, begin, error, least);
                before += group_error(&plain, r, begin, end, row);
                after += error;
            }
        assert_true(after < before);
        pot_free(a);
        pot_free(b);
        matrix_free(&source);
    }
}

/* A group that a scale fits exactly keeps it: nothing below is better, and of equals the larger is taken. */
static void search_keeps_what_fits(void **state) {
    (void)state;
    float values[Q_ROWS * Q_COLS];
    for (int i = 0; i < Q_ROWS * Q_COLS; i++) values[i] = i % 3 == 0 ? 7.0f : i % 3 == 1 ? -4.0f : 0.0f;
    matrix source = matrix_of_floats(values, Q_ROWS, Q_COLS);
    for (int f = POT_FORMAT_Q4_ROW; f <= POT_FORMAT_Q4_G128_F32; f++) {
        pot_matrix plain, found;
        uint8_t *a = packed_columns(&plain, &source.stored, (pot_format)f, POT_ROUNDING_AUTO, 0, Q_COLS);
        uint8_t *b = packed_columns(&found, &source.stored, (pot_format)f, POT_ROUNDING_SEARCH, 0, Q_COLS);
        assert_memory_equal(a, b, pot_matrix_bytes((pot_format)f, Q_ROWS, Q_COLS));
        pot_free(a);
        pot_free(b);
    }
    /* 2 and 1 are codes of two exponents: the larger one. */
    for (int i = 0; i < Q_ROWS * Q_COLS; i++) ((float *)(void *)source.codes)[i] = i % 2 ? 2.0f : 1.0f;
    pot_matrix found;
    uint8_t *b = packed_columns(&found, &source.stored, POT_FORMAT_MXFP4, POT_ROUNDING_SEARCH, 0, Q_COLS);
    assert_int_equal(packed_scale(&found, 0, 0), 127);
    assert_int_equal(packed_code(&found, 0, 0), 2);
    pot_free(b);
    matrix_free(&source);
}

/* Sums decide what the search takes, so their order must not depend on compiler or instruction set: this number is from all of them. */
static void search_has_the_same_bits_everywhere(void **state) {
    (void)state;
    static float values[Q_ROWS * Q_COLS];
    uint32_t noise = 12345, hash = 2166136261u;
    for (int i = 0; i < Q_ROWS * Q_COLS; i++) {
        float sum = 0.0f;
        for (int j = 0; j < 3; j++) {
            noise = noise * 1664525u + 1013904223u;
            sum += (float)(int32_t)noise * 0x1p-31f;
        }
        values[i] = sum * 0.125f;
    }
    matrix source = matrix_of_floats(values, Q_ROWS, Q_COLS);
    for (int f = POT_FORMAT_NONE + 1; f < POT_FORMAT_COUNT; f++) {
        pot_matrix m;
        uint8_t *memory = packed_columns(&m, &source.stored, (pot_format)f, POT_ROUNDING_SEARCH, 0, Q_COLS);
        for (size_t i = 0; i < pot_matrix_bytes((pot_format)f, Q_ROWS, Q_COLS); i++)
            hash = (hash ^ memory[i]) * 16777619u;
        pot_free(memory);
    }
    matrix_free(&source);
    assert_int_equal(hash, 0xee1004f2u);
}

/* ---- what packing changed -------------------------------------------------------------------------------------------- */

static void error_is_that_of_all_parts(void **state) {
    (void)state;
    enum { ROWS = 37, COLS = 300 };
    static float values[ROWS * COLS], got[COLS];
    for (int i = 0; i < ROWS * COLS; i++) values[i] = number_of_kind(0);
    matrix source = matrix_of_floats(values, ROWS, COLS);
    for (int f = POT_FORMAT_NONE + 1; f < POT_FORMAT_COUNT; f++) {
        pot_pack_error whole = {0}, parts = {0};
        double error = 0.0, size = 0.0;
        pot_matrix m;
        pot_err err = {0};
        uint8_t *memory = packed_columns(&m, &source.stored, (pot_format)f, POT_ROUNDING_AUTO, 0, COLS);
        assert_int_equal(pot_pack_error_add(&whole, &m, &source.stored, 0, 0, &err), POT_OK);
        for (uint32_t r = 0; r < ROWS; r++) {
            pot_matrix_row(got, &m, r);
            for (uint32_t k = 0; k < COLS; k++) {
                error += pow((double)got[k] - (double)values[r * COLS + k], 2.0);
                size += pow((double)values[r * COLS + k], 2.0);
            }
        }
        pot_free(memory);
        const double want = sqrt(error / size), relative = pot_pack_error_relative(&whole);
        assert_true(fabs(relative - want) <= 1e-12 * want);
        assert_true((f == POT_FORMAT_F32) == (relative == 0.0));
        for (uint32_t begin = 0; begin < COLS; begin += 96) {
            memory = packed_columns(&m, &source.stored, (pot_format)f, POT_ROUNDING_AUTO, begin,
                                    begin + 96 < COLS ? begin + 96 : COLS);
            assert_int_equal(pot_pack_error_add(&parts, &m, &source.stored, 0, begin, &err), POT_OK);
            pot_free(memory);
        }
        assert_true(fabs(pot_pack_error_relative(&parts) - want) <= 1e-12 * want);
    }
    matrix_free(&source);
    assert_true(pot_pack_error_relative(&(pot_pack_error){0.0, 0.0}) == 0.0);
    assert_true(isinf(pot_pack_error_relative(&(pot_pack_error){1.0, 0.0})));
    assert_true(pot_pack_error_relative(&(pot_pack_error){1.0, 4.0}) == 0.5);
}

static void error_begins_at_the_right_row(void **state) {
    (void)state;
    enum { ROWS = 48, COLS = 64 };
    static float values[ROWS * COLS];
    for (int i = 0; i < ROWS * COLS; i++) values[i] = random_float();
    matrix source = matrix_of_floats(values, ROWS, COLS);
    pot_matrix m;
    pot_err err = {0};
    uint8_t *memory = packed_columns(&m, &source.stored, POT_FORMAT_F32, POT_ROUNDING_AUTO, 0, COLS);
    m.data += m.tile_stride;
    m.rows = 16;
    pot_pack_error right = {0}, wrong = {0};
    assert_int_equal(pot_pack_error_add(&right, &m, &source.stored, 16, 0, &err), POT_OK);
    assert_int_equal(pot_pack_error_add(&wrong, &m, &source.stored, 0, 0, &err), POT_OK);
    assert_true(right.error == 0.0 && right.size > 0.0 && wrong.error > 0.0);
    pot_free(memory);
    matrix_free(&source);
}

/* Small memory for 16 rows of a strip: the packer must say so when it is short. */
static void short_memory_is_reported(void **state) {
    (void)state;
    matrix m = random_matrix(POT_STORED_BF16, 5, 100, 0, 0);
    _Alignas(64) static uint8_t out[8192];
    pot_err err = {0};
    pot_mem_fail_at(1);
    assert_int_equal(pot_pack(out, 4096, POT_FORMAT_Q4_G64, POT_ROUNDING_AUTO, &m.stored, 0, 5, 0, 100, &err),
                     POT_NO_MEMORY);
    pot_mem_fail_at(0);
    pot_matrix packed;
    uint8_t *memory = packed_columns(&packed, &m.stored, POT_FORMAT_Q4_G64, POT_ROUNDING_AUTO, 0, 100);
    pot_pack_error sums = {0};
    pot_mem_fail_at(1);
    assert_int_equal(pot_pack_error_add(&sums, &packed, &m.stored, 0, 0, &err), POT_NO_MEMORY);
    pot_mem_fail_at(0);
    pot_free(memory);
    matrix_free(&m);
}

static int strict(void **state) {
    (void)state;
    pot_fp_strict();
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(natural_format_keeps_everything),
        cmocka_unit_test(copies_are_exact),
        cmocka_unit_test(every_code_is_kept),
        cmocka_unit_test(f16_formats_copy_what_f16_holds),
        cmocka_unit_test(quantizers_follow_their_rules),
        cmocka_unit_test(search_finds_the_least_error),
        cmocka_unit_test(search_keeps_what_fits),
        cmocka_unit_test(search_has_the_same_bits_everywhere),
        cmocka_unit_test(error_is_that_of_all_parts),
        cmocka_unit_test(error_begins_at_the_right_row),
        cmocka_unit_test(short_memory_is_reported),
    };
    return cmocka_run_group_tests(tests, strict, NULL);
}
