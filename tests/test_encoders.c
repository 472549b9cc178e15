/* fixtures/encoders.safetensors: MXFP4 by both rules and the article's rows, code by code and scale by scale, read by what
 * docs/formats.md says of the layout; the article's rule over groups; every number of e4m3. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/mem.h"
#include "kernels/convert.h"
#include "kernels/stored.h"
#include "model/safetensors.h"
#include "tests/packed.h"

static pot_shards *shards;

static int open_fixture(void **state) {
    (void)state;
    pot_err err = {0};
    return pot_shards_open_file(&shards, "tests/fixtures/encoders.safetensors", &err) == POT_OK ? 0 : -1;
}

static int close_fixture(void **state) {
    (void)state;
    pot_shards_close(shards);
    return 0;
}

static const pot_tensor *find(const char *name) {
    const pot_tensor *tensor = pot_shards_find(shards, name);
    assert_non_null(tensor);
    return tensor;
}

static pot_stored floats_of(const char *name) {
    const pot_tensor *w = find(name);
    return (pot_stored){.kind = POT_STORED_F32,
                        .rows = (uint32_t)w->shape[0],
                        .cols = (uint32_t)w->shape[1],
                        .codes = w->data,
                        .row_stride = 4 * w->shape[1],
                        .name = name};
}

static float float_at(const uint8_t *data, size_t index) {
    float value;
    memcpy(&value, data + 4 * index, 4);
    return value;
}

/* ---- the fixture ---------------------------------------------------------------------------------------------------- */

typedef struct encoder {
    const char *source, *codes, *scales, *values;
    pot_stored_kind kind;
    pot_format format;
    pot_rounding rounding;
} encoder;

static const encoder ENCODERS[] = {
    {"weight", "mxfp4_quark.codes", "mxfp4_quark.scale", "mxfp4_quark.value", POT_STORED_MXFP4, POT_FORMAT_MXFP4,
     POT_ROUNDING_AUTO},
    {"weight", "mxfp4_ocp.codes", "mxfp4_ocp.scale", "mxfp4_ocp.value", POT_STORED_MXFP4, POT_FORMAT_MXFP4,
     POT_ROUNDING_OCP},
    {"rows", "int4_row.codes", "int4_row.scale", "int4_row.value", POT_STORED_INT4, POT_FORMAT_Q4_ROW,
     POT_ROUNDING_AUTO},
    {"rows", "int4_row.codes", "int4_row.scale", "int4_row.value", POT_STORED_INT4, POT_FORMAT_Q4_ROW,
     POT_ROUNDING_OCP},
    {"rows", "int8_row.codes", "int8_row.scale", "int8_row.value", POT_STORED_INT8, POT_FORMAT_Q8_ROW,
     POT_ROUNDING_AUTO},
};

static pot_stored encoded(const encoder *e) {
    const pot_stored floats = floats_of(e->source);
    return (pot_stored){.kind = e->kind,
                        .rows = floats.rows,
                        .cols = floats.cols,
                        .codes = find(e->codes)->data,
                        .scales = find(e->scales)->data,
                        .row_stride = find(e->codes)->bytes / floats.rows,
                        .name = e->codes};
}

static void check_encoder(const encoder *e, const pot_matrix *m) {
    const uint8_t *codes = find(e->codes)->data, *scales = find(e->scales)->data;
    for (uint32_t r = 0; r < m->rows; r++)
        for (uint32_t k = 0; k < m->cols; k++) {
            const size_t at = (size_t)r * m->cols + k;
            const uint32_t byte = codes[e->kind == POT_STORED_INT8 ? at : at / 2];
            const uint32_t want = e->kind == POT_STORED_INT8 ? byte : at % 2 ? byte >> 4 : byte & 15;
            if (packed_code(m, r, k) != want)
                fail_msg("%s: code [%u, %u] is %u, want %u", e->codes, r, k, packed_code(m, r, k), want);
            const uint32_t scale = e->kind == POT_STORED_MXFP4 ? scales[(size_t)r * (m->cols / 32) + k / 32]
                                                               : pot_f32_bits(float_at(scales, r));
            if (packed_scale(m, r, k) != scale)
                fail_msg("%s: scale [%u, %u] is %u, want %u", e->codes, r, k, packed_scale(m, r, k), scale);
        }
}

/* What is quantized, and what was quantized by others and is only copied, are the codes and scales of the fixture. */
static void encoders_give_the_codes_of_the_fixture(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof ENCODERS / sizeof *ENCODERS; i++) {
        const encoder *e = &ENCODERS[i];
        const pot_stored floats = floats_of(e->source), stored = encoded(e);
        pot_matrix quantized, copied;
        uint8_t *a = packed_columns(&quantized, &floats, e->format, e->rounding, 0, floats.cols);
        check_encoder(e, &quantized);
        for (int rounding = POT_ROUNDING_AUTO; rounding <= POT_ROUNDING_OCP; rounding++) {
            uint8_t *b = packed_columns(&copied, &stored, e->format, (pot_rounding)rounding, 0, floats.cols);
            assert_memory_equal(a, b, pot_matrix_bytes(e->format, floats.rows, floats.cols));
            pot_free(b);
        }
        pot_free(a);
    }
}

static void encoded_values_are_those_of_the_fixture(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof ENCODERS / sizeof *ENCODERS; i++) {
        const encoder *e = &ENCODERS[i];
        const pot_stored stored = encoded(e);
        pot_matrix packed;
        uint8_t *memory = packed_columns(&packed, &stored, e->format, e->rounding, 0, stored.cols);
        float *from_source = pot_alloc_array(stored.cols, 2 * sizeof *from_source),
              *from_packed = from_source + stored.cols;
        for (uint32_t r = 0; r < stored.rows; r++) {
            pot_err err = {0};
            bool finite = true;
            for (uint32_t k = 0; k < stored.cols; k++)
                finite &= isfinite(float_at(find(e->values)->data, (size_t)r * stored.cols + k)) != 0;
            /* Quark's rule can round the largest floats beyond f32; such a row has no value. */
            assert_int_equal(pot_stored_row(from_source, &stored, r, 0, stored.cols, &err),
                             finite ? POT_OK : POT_NUMERIC);
            pot_matrix_row(from_packed, &packed, r);
            for (uint32_t k = 0; k < stored.cols; k++) {
                const float want = float_at(find(e->values)->data, (size_t)r * stored.cols + k);
                assert_true(from_packed[k] == want && (from_source[k] == want || !finite));
            }
        }
        pot_free(from_source);
        pot_free(memory);
    }
}

/* ---- the article's rule over groups ------------------------------------------------------------------------------------ */

/* absmax / top code, 1 for a group of zeros; to nearest, ties to even; the codes are for the scale that is stored. */
static void check_group(const pot_matrix *m, const float *values, uint32_t row, uint32_t begin, uint32_t end) {
    const pot_format_traits *traits = pot_format_get((pot_format)m->format);
    const float top = traits->bits == 8 ? 127.0f : 7.0f;
    float amax = 0.0f;
    for (uint32_t k = begin; k < end; k++) amax = fmaxf(amax, fabsf(values[k]));
    float scale = amax == 0.0f ? 1.0f : amax / top;
    uint32_t bits = pot_f32_bits(scale);
    if (traits->scale == POT_SCALE_F16) {
        bits = pot_f16_from_f32(scale);
        scale = pot_f32_from_f16((uint16_t)bits);
    }
    for (uint32_t k = begin; k < end; k++) {
        float q = rintf(values[k] / scale);
        q = q > top ? top : q < -top - 1.0f ? -top - 1.0f : q;
        const uint32_t want = traits->bits == 8 ? (uint32_t)(int)q & 255u : (uint32_t)((int)q + 8);
        if (packed_code(m, row, k) != want || packed_scale(m, row, k) != bits)
            fail_msg("%s [%u, %u]: code %u scale %x, want %u and %x", traits->name, row, k, packed_code(m, row, k),
                     packed_scale(m, row, k), want, bits);
    }
}

static void groups_follow_the_rule_of_rows(void **state) {
    (void)state;
    static const pot_format FORMATS[] = {POT_FORMAT_Q8_ROW,     POT_FORMAT_Q8_G32,     POT_FORMAT_Q4_ROW,
                                         POT_FORMAT_Q4_G32,     POT_FORMAT_Q4_G64,     POT_FORMAT_Q4_G128,
                                         POT_FORMAT_Q4_G32_F32, POT_FORMAT_Q4_G64_F32, POT_FORMAT_Q4_G128_F32};
    const pot_stored rows = floats_of("rows");
    float *values = pot_alloc_array(rows.cols, sizeof *values);
    for (size_t i = 0; i < sizeof FORMATS / sizeof *FORMATS; i++) {
        const uint32_t blocks = pot_format_get(FORMATS[i])->blocks_per_group, group = blocks ? blocks * 32 : rows.cols;
        /* Also with an odd number of columns, whose last group is short. */
        for (uint32_t cut = 0; cut < 2; cut++) {
            pot_stored source = rows;
            source.cols -= cut * 27;
            pot_matrix packed;
            uint8_t *memory = packed_columns(&packed, &source, FORMATS[i], POT_ROUNDING_AUTO, 0, source.cols);
            for (uint32_t r = 0; r < source.rows; r++) {
                memcpy(values, (const uint8_t *)source.codes + r * source.row_stride, 4 * (size_t)source.cols);
                const uint32_t width = blocks ? group : source.cols;
                for (uint32_t begin = 0; begin < source.cols; begin += width)
                    check_group(&packed, values, r, begin, begin + width < source.cols ? begin + width : source.cols);
            }
            pot_free(memory);
        }
    }
    pot_free(values);
}

/* ---- e4m3 ------------------------------------------------------------------------------------------------------------ */

static void every_code_of_e4m3_has_its_value(void **state) {
    (void)state;
    uint8_t codes[256];
    for (int c = 0; c < 256; c++) codes[c] = (uint8_t)c;
    const pot_stored stored = {.kind = POT_STORED_FP8,
                               .rows = 1,
                               .cols = 256,
                               .codes = codes,
                               .scales = (const float[]){1.0f, 1.0f},
                               .name = "codes"};
    for (uint32_t c = 0; c < 256; c++) {
        pot_err err = {0};
        const float want = float_at(find("fp8_e4m3.value")->data, c), converted = pot_f32_from_e4m3((uint8_t)c);
        float row;
        const pot_status status = pot_stored_row(&row, &stored, 0, c, c + 1, &err);
        assert_int_equal(status, isnan(want) ? POT_NUMERIC : POT_OK);
        assert_true(isnan(want)
                        ? isnan(converted)
                        : pot_f32_bits(converted) == pot_f32_bits(want) && pot_f32_bits(row) == pot_f32_bits(want));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(encoders_give_the_codes_of_the_fixture),
        cmocka_unit_test(encoded_values_are_those_of_the_fixture),
        cmocka_unit_test(groups_follow_the_rule_of_rows),
        cmocka_unit_test(every_code_of_e4m3_has_its_value),
    };
    return cmocka_run_group_tests(tests, open_fixture, close_fixture);
}
