/* Random models: they open by name, give the same numbers wherever they are opened, compute like any other model on one worker and on
 * several, and refuse names that mean nothing. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/mem.h"
#include "tests/rig.h"

#define TINY "random:tiny"

static pot_model *open_model(const char *name, pot_format experts) {
    pot_model *m = NULL;
    pot_err err = {0};
    pot_format_policy policy = pot_format_policy_default;
    policy.experts = experts;
    if (pot_model_open(&m, name, &policy, &err) != POT_OK) fail_msg("%s: %s", name, err.text);
    return m;
}

/* ---- names --------------------------------------------------------------------------------------------------------------- */

static void model_has_the_dimensions_of_glm(void **state) {
    (void)state;
    pot_model *m = open_model("random:glm-5.2,layers=3", POT_FORMAT_NONE);
    const pot_config *c = pot_model_config(m);
    const pot_ffn_shape *routed = pot_model_routed(m, 2), *common = pot_model_common(m, 2);
    assert_int_equal(c->hidden, 6144);
    assert_int_equal(c->n_routed, 256);
    assert_int_equal(c->top_k, 8);
    assert_int_equal(c->n_heads * c->v_dim, 16384);
    assert_int_equal(pot_model_layers(m), 3);
    assert_int_equal(routed->n_chunks, 8);
    assert_int_equal(routed->gate_up_format, POT_FORMAT_MXFP4);
    assert_int_equal(pot_chunk_bytes(routed, 7), 612 * 4096); /* docs/formats.md */
    assert_int_equal(common->n_chunks, 8);
    pot_model_close(m);
}

static void name_is_refused_with_the_reason(void **state) {
    (void)state;
    static const struct {
        const char *name, *words;
        pot_format experts;
    } cases[] = {
        {"random:", "known are glm-5.2, tiny", POT_FORMAT_NONE},
        {"random:glm-9", "known are glm-5.2, tiny", POT_FORMAT_NONE},
        {TINY "x", "known are glm-5.2, tiny", POT_FORMAT_NONE},
        {TINY ",layers=0", "`num_hidden_layers` is 0", POT_FORMAT_NONE},
        {TINY ",layers=256", "layers is `256`, a whole number up to 255", POT_FORMAT_NONE},
        {TINY ",layers=", "layers is ``", POT_FORMAT_NONE},
        {TINY ",layers=2x", "layers is `2x`", POT_FORMAT_NONE},
        {TINY ",seed=-1", "seed is `-1`", POT_FORMAT_NONE},
        {TINY ",seed=99999999999999999999", "seed is `99999999999999999999`", POT_FORMAT_NONE},
        {TINY ",seed=1,", "`` is unknown, layers=NUMBER or seed=NUMBER", POT_FORMAT_NONE},
        {TINY ",sead=1", "`sead=1` is unknown", POT_FORMAT_NONE},
        {TINY, "cannot be drawn in format f32", POT_FORMAT_F32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pot_model *m = NULL;
        pot_err err = {0};
        pot_format_policy policy = pot_format_policy_default;
        policy.experts = cases[i].experts;
        assert_int_not_equal(pot_model_open(&m, cases[i].name, &policy, &err), POT_OK);
        assert_null(m);
        if (!strstr(err.text, cases[i].words)) fail_msg("%s: %s", cases[i].name, err.text);
    }
}

/* ---- numbers ---------------------------------------------------------------------------------------------------------------- */

static uint8_t *pack_chunk(const pot_model *m, uint32_t layer, uint32_t expert, size_t *bytes) {
    pot_err err = {0};
    *bytes = pot_chunk_bytes(pot_model_expert_shape(m, layer, expert), 1);
    uint8_t *out = pot_alloc_aligned(*bytes);
    assert_non_null(out);
    if (pot_model_load_chunk(out, m, layer, expert, 1, &err) != POT_OK) fail_msg("%s", err.text);
    return out;
}

static void fingerprint_follows_name_and_format(void **state) {
    (void)state;
    static const struct {
        const char *name;
        pot_format experts;
    } others[] = {{TINY ",seed=2", POT_FORMAT_NONE}, {TINY ",layers=3", POT_FORMAT_NONE}, {TINY, POT_FORMAT_Q4_G64}};
    pot_model *a = open_model(TINY, POT_FORMAT_NONE), *b = open_model(TINY ",seed=1,layers=2", POT_FORMAT_NONE);
    assert_true(pot_hash_equal(pot_model_fingerprint(a), pot_model_fingerprint(b)));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        pot_model *other = open_model(others[i].name, others[i].experts);
        assert_false(pot_hash_equal(pot_model_fingerprint(a), pot_model_fingerprint(other)));
        pot_model_close(other);
    }
    pot_model_close(a);
    pot_model_close(b);
}

/* No two experts share their bytes, and opening again gives the same ones. */
static void experts_are_distinct_and_repeatable(void **state) {
    (void)state;
    pot_model *m = open_model(TINY, POT_FORMAT_NONE), *again = open_model(TINY, POT_FORMAT_NONE);
    size_t bytes, other_bytes;
    uint8_t *first = pack_chunk(m, 0, 3, &bytes), *same = pack_chunk(again, 0, 3, &other_bytes);
    assert_memory_equal(first, same, bytes);
    static const uint32_t others[][2] = {{0, 4}, {1, 3}, {0, 12}};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        uint8_t *other = pack_chunk(m, others[i][0], others[i][1], &other_bytes);
        assert_int_equal(bytes, other_bytes);
        assert_memory_not_equal(first, other, bytes);
        pot_free(other);
    }
    pot_free(first);
    pot_free(same);
    pot_model_close(m);
    pot_model_close(again);
}

/* Every format that can be drawn keeps its name, and its values have about the spread that they should. */
static void every_format_has_the_spread_of_the_others(void **state) {
    (void)state;
    static const pot_format formats[] = {
        POT_FORMAT_BF16,        POT_FORMAT_FP8,    POT_FORMAT_Q8_ROW,  POT_FORMAT_Q8_G32,     POT_FORMAT_Q4_ROW,
        POT_FORMAT_Q4_G32,      POT_FORMAT_Q4_G64, POT_FORMAT_Q4_G128, POT_FORMAT_Q4_G32_F32, POT_FORMAT_Q4_G64_F32,
        POT_FORMAT_Q4_G128_F32, POT_FORMAT_Q2_ROW, POT_FORMAT_MXFP4};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        pot_model *m = open_model(TINY, formats[i]);
        const pot_ffn_shape *shape = pot_model_routed(m, 1);
        assert_int_equal(shape->gate_up_format, formats[i]);
        assert_int_equal(shape->down_format, formats[i]);
        size_t bytes;
        uint8_t *packed = pack_chunk(m, 1, 5, &bytes);
        pot_chunk chunk;
        pot_chunk_view(&chunk, shape, 1, packed);
        float row[512];
        double squares = 0;
        assert_true(chunk.up.cols <= 512);
        for (uint32_t r = 0; r < chunk.up.rows; r++) {
            pot_matrix_row(row, &chunk.up, r);
            for (uint32_t k = 0; k < chunk.up.cols; k++) squares += (double)row[k] * row[k];
        }
        const double spread = sqrt(squares / ((double)chunk.up.rows * chunk.up.cols));
        if (!(spread > 0.014 && spread < 0.028))
            fail_msg("%s: standard deviation %g", pot_format_get(formats[i])->name, spread);
        pot_free(packed);
        pot_model_close(m);
    }
}

/* ---- computing ---------------------------------------------------------------------------------------------------------------- */

enum { PROMPT = 12, DECODE = 3, VOCAB = 128, ROWS = PROMPT + DECODE };

static void play(float *logits, uint32_t workers, const char *map) {
    static const int32_t prompt[PROMPT] = {5, 99, 17, 3, 3, 120, 64, 8, 31, 77, 100, 1};
    const pot_rig_options options = {
        .model = TINY, .policy = pot_format_policy_default, .map = map, .n_workers = workers};
    const pot_play how = {.prompt = prompt, .n_prompt = PROMPT, .n_decode = DECODE, .batch = 1, .kv = POT_KV_BF16};
    pot_rig rig;
    pot_err err = {0};
    pot_status s = pot_rig_open(&rig, &options, &err);
    if (s == POT_OK) s = pot_rig_engine(&rig, 4, &err);
    if (s == POT_OK) s = pot_rig_play(logits, &rig, &how, &err);
    if (s != POT_OK) fail_msg("%u workers: %s", workers, err.text);
    if (pot_rig_close(&rig, &err) != POT_OK) fail_msg("%u workers: %s", workers, err.text);
}

static void answer_is_finite_and_the_same_on_several_workers(void **state) {
    (void)state;
    static float one[ROWS * VOCAB], several[ROWS * VOCAB];
    float least = INFINITY, most = -INFINITY;
    play(one, 1, "contiguous");
    for (size_t i = 0; i < ROWS * VOCAB; i++) {
        assert_true(isfinite(one[i]));
        least = fminf(least, one[i]);
        most = fmaxf(most, one[i]);
    }
    assert_true(most - least > 0.1f && most - least < 100.0f); /* neither died out nor blown up */
    play(several, 2, "sliced");
    assert_memory_equal(one, several, sizeof one);
    play(several, 3, "round-robin");
    assert_memory_equal(one, several, sizeof one);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_has_the_dimensions_of_glm),
        cmocka_unit_test(name_is_refused_with_the_reason),
        cmocka_unit_test(fingerprint_follows_name_and_format),
        cmocka_unit_test(experts_are_distinct_and_repeatable),
        cmocka_unit_test(every_format_has_the_spread_of_the_others),
        cmocka_unit_test(answer_is_finite_and_the_same_on_several_workers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
