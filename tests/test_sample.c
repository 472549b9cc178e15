/* Sampling and its generator. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/sample.h"

/* Known answers of the Random123 distribution (kat_vectors, philox4x32 with 10 rounds). */
static void philox_gives_the_published_vectors(void **state) {
    (void)state;
    static const struct {
        uint64_t key, low, high;
        uint32_t want[4];
    } cases[] = {{0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                 {UINT64_MAX, UINT64_MAX, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                 {0x299f31d0a4093822u,
                  0x85a308d3243f6a88u,
                  0x0370734413198a2eu,
                  {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t got[4];
        pot_philox(got, cases[i].key, cases[i].low, cases[i].high);
        assert_memory_equal(got, cases[i].want, sizeof got);
    }
}

static void greedy_takes_the_lower_id_of_equals(void **state) {
    (void)state;
    const float logits[] = {1, 3, 3, -2};
    pot_sampling s = {.temperature = 0, .top_p = 1};
    float scratch[8];
    int32_t token;
    assert_int_equal(pot_sample(&token, logits, 4, &s, 0, scratch, NULL), POT_OK);
    assert_int_equal(token, 1);
    s = (pot_sampling){.temperature = 1, .top_k = 1, .top_p = 1};
    assert_int_equal(pot_sample(&token, logits, 4, &s, 9, scratch, NULL), POT_OK);
    assert_int_equal(token, 1);
}

/* 40,000 draws of six tokens with known probabilities; 5 sigma. */
static void count_draws(int counts[6], const float *logits, pot_sampling s) {
    float scratch[12];
    memset(counts, 0, 6 * sizeof *counts);
    for (uint64_t position = 0; position < 40000; position++) {
        int32_t token;
        assert_int_equal(pot_sample(&token, logits, 6, &s, position, scratch, NULL), POT_OK);
        assert_in_range(token, 0, 5);
        counts[token]++;
    }
}

static void draws_follow_the_probabilities(void **state) {
    (void)state;
    const float p[6] = {0.05f, 0.4f, 0.25f, 0.15f, 0.1f, 0.05f};
    float logits[6];
    for (int i = 0; i < 6; i++) logits[i] = logf(p[i]);
    static const struct {
        pot_sampling s;
        double want[6];
    } cases[] = {
        {{.temperature = 1, .top_p = 1, .seed = 7}, {0.05, 0.4, 0.25, 0.15, 0.1, 0.05}},
        {{.temperature = 1, .top_p = 1, .top_k = 2, .seed = 8}, {0, 0.4 / 0.65, 0.25 / 0.65, 0, 0, 0}},
        {{.temperature = 1, .top_p = 0.79f, .seed = 9}, {0, 0.5, 0.3125, 0.1875, 0, 0}},
        {{.temperature = 1, .top_p = 1, .min_p = 0.3f, .seed = 10}, {0, 0.5, 0.3125, 0.1875, 0, 0}},
        {{.temperature = 0.5f, .top_p = 1, .top_k = 2, .seed = 11}, {0, 0.16 / 0.2225, 0.0625 / 0.2225, 0, 0, 0}}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        int counts[6];
        count_draws(counts, logits, cases[c].s);
        for (int i = 0; i < 6; i++) {
            double want = cases[c].want[i] * 40000, sigma = sqrt(want * (1 - cases[c].want[i]));
            if (fabs(counts[i] - want) > 5 * sigma)
                fail_msg("case %zu token %d: %d draws, expected %.0f", c, i, counts[i], want);
        }
    }
}

static void draw_depends_on_seed_and_position_only(void **state) {
    (void)state;
    float logits[50], scratch[100];
    for (int i = 0; i < 50; i++) logits[i] = sinf((float)i);
    pot_sampling s = {.temperature = 1, .top_p = 1, .seed = 3};
    int32_t a[20], b[20], other = 0;
    for (int i = 0; i < 20; i++) pot_sample(&a[i], logits, 50, &s, (uint64_t)i, scratch, NULL);
    for (int i = 19; i >= 0; i--) pot_sample(&b[i], logits, 50, &s, (uint64_t)i, scratch, NULL);
    assert_memory_equal(a, b, sizeof a);
    s.seed = 4;
    for (int i = 0; i < 20; i++) {
        pot_sample(&b[i], logits, 50, &s, (uint64_t)i, scratch, NULL);
        other += a[i] != b[i];
    }
    assert_true(other > 10);
}

static void sample_refuses_what_is_not_finite(void **state) {
    (void)state;
    float logits[3] = {1, NAN, 2}, scratch[6];
    pot_sampling s = {.temperature = 0, .top_p = 1};
    int32_t token = 77;
    pot_err err;
    assert_int_equal(pot_sample(&token, logits, 3, &s, 0, scratch, &err), POT_NUMERIC);
    assert_string_equal(err.text, "the logit of token 1 is not finite");
    assert_int_equal(token, 77);
}

static void log_softmax_agrees_with_libm(void **state) {
    (void)state;
    float logits[100];
    double sum = 0;
    for (int i = 0; i < 100; i++) logits[i] = 30 * sinf((float)i * 1.7f);
    for (int i = 0; i < 100; i++) sum += exp((double)logits[i]);
    for (int i = 0; i < 100; i += 9)
        assert_true(fabs(pot_log_softmax(logits, 100, i) - ((double)logits[i] - log(sum))) < 1e-12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(philox_gives_the_published_vectors), cmocka_unit_test(greedy_takes_the_lower_id_of_equals),
        cmocka_unit_test(draws_follow_the_probabilities),     cmocka_unit_test(draw_depends_on_seed_and_position_only),
        cmocka_unit_test(sample_refuses_what_is_not_finite),  cmocka_unit_test(log_softmax_agrees_with_libm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
