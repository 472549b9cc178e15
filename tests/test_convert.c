/* potluck convert: what a container computes is what its source computes, for every layout of a checkpoint and every format; what the report says; what
 * verify finds. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/log.h"
#include "common/mem.h"
#include "tests/conversion.h"
#include "tests/rig.h"
#include "tests/tiny_model.h"

enum { PROMPT = 20, DECODE = 2 };

/* ---- what is computed ---------------------------------------------------------------------------------------------------- */

static float *play(const char *directory, const pot_format_policy *policy, size_t *floats) {
    pot_rig rig;
    const pot_rig_options options = {.model = directory, .policy = *policy, .map = "sliced", .n_workers = 2};
    MUST(pot_rig_open(&rig, &options, &err));
    MUST(pot_rig_engine(&rig, 64, &err));
    const pot_config *config = pot_model_config(rig.model);
    int32_t prompt[PROMPT];
    pot_tiny_prompt(prompt, PROMPT, config->vocab, 5);
    const pot_play p = {.prompt = prompt,
                        .n_prompt = PROMPT,
                        .n_decode = DECODE,
                        .batch = 1,
                        .kv = POT_KV_F32,
                        .draft = config->n_mtp > 0};
    *floats = (size_t)pot_play_rows(&p) * config->vocab;
    float *logits = pot_alloc_array(*floats, sizeof(float));
    assert_non_null(logits);
    MUST(pot_rig_play(logits, &rig, &p, &err));
    MUST(pot_rig_close(&rig, &err));
    return logits;
}

static void round_trip(const char *from, const pot_format_policy *policy, const char *what) {
    const pot_format_policy as_it_is = {0};
    pot_convert_options o = options_of(from, destination);
    o.policy = *policy;
    remove_all(destination);
    convert(&o, true);
    size_t n, m;
    float *expected = play(from, policy, &n), *got = play(destination, &as_it_is, &m);
    assert_int_equal(n, m);
    if (memcmp(expected, got, n * sizeof *got)) fail_msg("%s, %s: the logits differ", from, what);
    pot_free(expected);
    pot_free(got);
}

static const char *const fixtures[] = {"tests/fixtures/indexshare",
                                       "tests/fixtures/experts256",
                                       "tests/fixtures/fp8",
                                       "tests/fixtures/mxfp4",
                                       "tests/fixtures/eps",
                                       "tests/fixtures/article4",
                                       "demo"};
enum { N_FIXTURES = sizeof fixtures / sizeof *fixtures };

static void every_fixture_computes_the_same_after_converting(void **state) {
    (void)state;
    const pot_format_policy policies[] = {
        {0},
        {.dense = POT_FORMAT_F32, .head = POT_FORMAT_F32},
        {.experts = POT_FORMAT_Q4_G64, .dense = POT_FORMAT_Q8_G32, .head = POT_FORMAT_BF16},
        {.experts = POT_FORMAT_MXFP4, .mtp = POT_FORMAT_BF16, .rounding = POT_ROUNDING_SEARCH}};
    for (int i = 0; i < N_FIXTURES; i++)
        for (size_t k = 0; k < sizeof policies / sizeof *policies; k++)
            if (k < 2 || (k + i) % 2) round_trip(fixtures[i], &policies[k], "policy");
}

static void every_format_computes_the_same_after_converting(void **state) {
    (void)state;
    for (int f = 1; f < POT_FORMAT_COUNT; f++) {
        const pot_format format = (pot_format)f;
        const pot_format_policy policy = {
            .experts = format, .dense = format, .head = format, .rounding = (pot_rounding)(f % 3)};
        round_trip("tests/fixtures/eps", &policy, pot_format_get(format)->name);
    }
}

/* Written anew by decoding: what is kept is kept in every weight, whatever the path through files. */
static void quantized_experts_are_kept_exactly(void **state) {
    (void)state;
    static const char *const kept[] = {"tests/fixtures/fp8", "tests/fixtures/mxfp4", "tests/fixtures/article4"};
    for (int i = 0; i < 3; i++) {
        remove_all(destination);
        pot_convert_options o = options_of(kept[i], destination);
        convert(&o, true);
        pot_model *from = NULL, *to = NULL;
        const pot_format_policy as_it_is = {0};
        MUST(pot_model_open(&from, kept[i], &pot_format_policy_default, &err));
        MUST(pot_model_open(&to, destination, &as_it_is, &err));
        pot_pack_error sums = {0};
        for (uint32_t layer = 0; layer < pot_model_layers(to); layer++) {
            const pot_ffn_shape *shape = pot_model_routed(to, layer);
            for (uint32_t e = 0; shape && e < pot_model_config(to)->n_routed; e++)
                for (uint32_t c = 0; c < shape->n_chunks; c++) {
                    uint8_t *data = pot_alloc_aligned(pot_chunk_bytes(shape, c));
                    MUST(pot_model_load_chunk(data, to, layer, e, c, &err));
                    pot_chunk view;
                    pot_chunk_view(&view, shape, c, data);
                    const pot_matrix *matrices[] = {&view.gate, &view.up, &view.down};
                    for (int k = 0; k < 3; k++) {
                        pot_stored stored;
                        const uint32_t at = pot_chunk_begin(shape, c);
                        MUST(pot_model_matrix(&stored, from, (pot_role)(POT_ROLE_EXPERT_GATE + k), layer, e, &err));
                        MUST(pot_pack_error_add(&sums, matrices[k], &stored, k < 2 ? at : 0, k < 2 ? 0 : at, &err));
                    }
                    pot_free(data);
                }
        }
        assert_true(sums.size > 0);
        assert_true(sums.error == 0);
        pot_model_close(from);
        pot_model_close(to);
    }
}

/* ---- formats --------------------------------------------------------------------------------------------------------------- */

static void mtp_layer_does_not_go_below_eight_bits_unasked(void **state) {
    (void)state;
    static const struct {
        pot_format_policy policy;
        pot_format experts, mtp_experts, eh_proj;
    } cases[] = {
        {{.experts = POT_FORMAT_Q4_G64}, POT_FORMAT_Q4_G64, POT_FORMAT_Q8_G32, POT_FORMAT_Q8_G32},
        {{.experts = POT_FORMAT_MXFP4, .head = POT_FORMAT_Q4_ROW},
         POT_FORMAT_MXFP4,
         POT_FORMAT_Q8_G32,
         POT_FORMAT_Q8_G32},
        {{.experts = POT_FORMAT_FP8, .head = POT_FORMAT_BF16}, POT_FORMAT_FP8, POT_FORMAT_FP8, POT_FORMAT_BF16},
        {{.experts = POT_FORMAT_Q4_G64, .mtp = POT_FORMAT_Q4_G32},
         POT_FORMAT_Q4_G64,
         POT_FORMAT_Q4_G32,
         POT_FORMAT_Q4_G32},
        {{.mtp = POT_FORMAT_Q8_ROW}, POT_FORMAT_BF16, POT_FORMAT_Q8_ROW, POT_FORMAT_Q8_ROW},
        {{0}, POT_FORMAT_BF16, POT_FORMAT_BF16, POT_FORMAT_Q8_G32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        remove_all(destination);
        pot_convert_options o = options_of("tests/fixtures/indexshare", destination);
        o.policy = cases[i].policy;
        convert(&o, true);
        for (int converted = 0; converted < 2; converted++) {
            const pot_format_policy none = {0};
            pot_model *m = NULL;
            MUST(pot_model_open(&m, converted ? destination : o.source, converted ? &none : &o.policy, &err));
            const uint32_t mtp = pot_model_config(m)->n_layers, sparse = mtp - 1;
            assert_int_equal(pot_model_routed(m, sparse)->gate_up_format, cases[i].experts);
            assert_int_equal(pot_model_routed(m, mtp)->gate_up_format, cases[i].mtp_experts);
            assert_int_equal(pot_model_routed(m, mtp)->down_format, cases[i].mtp_experts);
            assert_int_equal(pot_model_common(m, mtp)->down_format, cases[i].mtp_experts);
            assert_int_equal(pot_model_format(m, POT_ROLE_EH_PROJ, mtp), cases[i].eh_proj);
            pot_model_close(m);
        }
    }
}

static const pot_convert_row *find_row(const pot_convert_report *r, const char *group, const char *stored) {
    for (uint32_t i = 0; i < r->n_rows; i++)
        if (!strcmp(r->rows[i].census.group, group) && !strcmp(r->rows[i].census.stored, stored)) return &r->rows[i];
    fail_msg("no row %s %s", group, stored);
    return NULL;
}

static void report_says_what_changed(void **state) {
    (void)state;
    remove_all(destination);
    pot_convert_options o = options_of("demo", destination);
    pot_convert_report r;
    MUST(pot_convert(&r, &o, &err));
    assert_true(find_row(&r, "experts", "MXFP4")->sums.error == 0);
    assert_true(find_row(&r, "experts", "MXFP4")->sampled > 100000);
    const double attention = pot_pack_error_relative(&find_row(&r, "attention", "BF16")->sums);
    const double head = pot_pack_error_relative(&find_row(&r, "head", "BF16")->sums);
    assert_true(attention > 0.05 && attention < 0.2);
    assert_true(head > 0.001 && head < 0.02);
    assert_int_equal(r.n_worst, POT_CONVERT_WORST);
    for (uint32_t i = 1; i < r.n_worst; i++)
        assert_true(pot_pack_error_relative(&r.worst[i - 1].sums) >= pot_pack_error_relative(&r.worst[i].sums));
    uint64_t parameters = 0;
    for (uint32_t i = 0; i < r.n_rows; i++) parameters += r.rows[i].census.parameters;
    pot_model *m = NULL;
    pot_census_row rows[POT_CENSUS_ROWS];
    MUST(pot_model_open(&m, "demo", &o.policy, &err));
    const uint32_t n = pot_model_census(rows, POT_CENSUS_ROWS, m);
    for (uint32_t i = 0; i < n; i++) parameters -= rows[i].parameters;
    assert_int_equal(parameters, 0);
    pot_model_close(m);
    pot_convert_report_free(&r);
}

/* ---- verify ---------------------------------------------------------------------------------------------------------------- */

typedef struct seen {
    uint32_t n;
    char file[64], tensor[160];
    int64_t chunk;
} seen;

static void see(void *context, const char *file, const char *tensor, int64_t chunk, const char *text) {
    seen *s = context;
    s->n++;
    s->chunk = chunk;
    snprintf(s->file, sizeof s->file, "%s", file);
    snprintf(s->tensor, sizeof s->tensor, "%s", tensor ? tensor : text);
}

static void flip(const char *name, off_t at) {
    uint8_t byte;
    int fd = open(in(destination, name), O_RDWR);
    assert_true(fd >= 0);
    if (at < 0) at += lseek(fd, 0, SEEK_END);
    assert_true(pread(fd, &byte, 1, at) == 1);
    byte ^= 16;
    assert_true(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

static void check_seen(const char *file, off_t at, const char *tensor, int64_t chunk) {
    seen s = {0};
    pot_verify_result result;
    flip(file, at);
    MUST(pot_verify(&result, destination, 2, true, see, &s, &err));
    if (s.n != 1 || strcmp(s.file, file) || !strstr(s.tensor, tensor) || s.chunk != chunk)
        fail_msg("%s %ld: %u faults, %s %s %lld", file, (long)at, s.n, s.file, s.tensor, (long long)s.chunk);
    flip(file, at);
    assert_int_equal(verify(destination), 0);
}

static void flipped_bits_are_named(void **state) {
    (void)state;
    remove_all(destination);
    pot_convert_options o = options_of("tests/fixtures/fp8", destination);
    convert(&o, true);
    pot_model *m = NULL;
    const pot_format_policy none = {0};
    pot_chunk_place place;
    MUST(pot_model_open(&m, destination, &none, &err));
    MUST(pot_model_chunk_place(&place, m, 2, 3, 4, &err));
    pot_model_close(m);
    check_seen("experts-002.safetensors", (off_t)place.offset + 77, "model.layers.2.mlp.experts.3.chunks", 4);
    check_seen("dense-001.safetensors", -3, "model.layers.1.", -1);
    check_seen("dense-model.safetensors", -1, "model.norm.weight", -1);
    check_seen("experts-001.safetensors", 40, "header", -1);
    check_seen("experts-001.safetensors", -2, "checksums", -1);
    flip("experts-001.safetensors", 40); /* goes on after a fault */
    flip("experts-002.safetensors", (off_t)place.offset);
    flip("experts-002.safetensors", (off_t)place.offset + 9000);
    assert_int_equal(unlink(in(destination, "dense-000.safetensors")), 0);
    assert_in_range(verify(destination), 3, 4);
}

int main(void) {
    pot_log_configure("warn", NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_fixture_computes_the_same_after_converting),
        cmocka_unit_test(every_format_computes_the_same_after_converting),
        cmocka_unit_test(quantized_experts_are_kept_exactly),
        cmocka_unit_test(mtp_layer_does_not_go_below_eight_bits_unasked),
        cmocka_unit_test(report_says_what_changed),
        cmocka_unit_test(flipped_bits_are_named),
    };
    return cmocka_run_group_tests(tests, begin_conversions, end_conversions);
}
