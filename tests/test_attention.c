/* The parts of the coordinator's step that fixtures alone would not pin down: ties, groups, the cache's format. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/attention.h"
#include "coordinator/router.h"
#include "kernels/convert.h"

static uint32_t random_state = 1;
static uint32_t random_below(uint32_t n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

/* Against picking the best k times over; few different values, so that most cuts go through a tie. */
static void top_positions_break_ties_by_lower_index(void **state) {
    (void)state;
    static float scores[300];
    static uint64_t order[300];
    uint32_t got[300];
    for (int round = 0; round < 3000; round++) {
        uint32_t n = 1 + random_below(300), k = 1 + random_below(n), values = 1 + random_below(round % 3 ? 4 : 400);
        for (uint32_t i = 0; i < n; i++) {
            scores[i] = (float)random_below(values) - (float)values / 2;
            if (scores[i] == 0 && random_below(2)) scores[i] = -0.0f;
        }
        pot_top_positions(got, k, scores, n, order);
        char taken[300] = {0};
        for (uint32_t j = 0; j < k; j++) {
            uint32_t best = UINT32_MAX;
            for (uint32_t i = 0; i < n; i++)
                if (!taken[i] && (best == UINT32_MAX || scores[i] > scores[best])) best = i;
            taken[best] = 1;
        }
        uint32_t at = 0;
        for (uint32_t i = 0; i < n; i++)
            if (taken[i]) assert_int_equal(got[at++], i);
    }
}

static void top_positions_stand_sorted_input(void **state) {
    (void)state;
    enum { N = 100000 };
    float *scores = malloc(N * sizeof *scores);
    uint64_t *order = malloc(N * sizeof *order);
    uint32_t *got = malloc(N * sizeof *got);
    for (int shape = 0; shape < 3; shape++) { /* ascending, descending, all equal: no quadratic time, no overrun */
        for (uint32_t i = 0; i < N; i++) scores[i] = shape == 0 ? (float)i : shape == 1 ? -(float)i : 0;
        pot_top_positions(got, 2048, scores, N, order);
        assert_int_equal(got[0], shape == 0 ? N - 2048 : 0);
        assert_int_equal(got[2047], shape == 0 ? N - 1 : 2047);
    }
    free(scores);
    free(order);
    free(got);
}

static float logit(float p) { return logf(p / (1 - p)); }

static void router_selects_by_bias_and_weighs_without(void **state) {
    (void)state;
    pot_config c = {
        .n_routed = 4, .top_k = 2, .n_group = 1, .topk_group = 1, .norm_topk_prob = true, .routed_scale = 2.5f};
    float logits[4] = {logit(0.5f), logit(0.2f), logit(0.4f), logit(0.1f)}, scratch[4], weights[2];
    const float bias[4] = {0, 0, 0, 0.9f}; /* lifts expert 3 above all */
    uint32_t experts[2];
    assert_int_equal(pot_route(experts, weights, &c, logits, bias, scratch, NULL), POT_OK);
    assert_int_equal(experts[0], 0);
    assert_int_equal(experts[1], 3);
    assert_true(fabsf(weights[0] - 2.5f * 0.5f / 0.6f) < 1e-5f);
    assert_true(fabsf(weights[1] - 2.5f * 0.1f / 0.6f) < 1e-5f);
}

static void router_takes_the_lower_expert_of_equals(void **state) {
    (void)state;
    pot_config c = {.n_routed = 6, .top_k = 3, .n_group = 1, .topk_group = 1, .routed_scale = 1};
    float logits[6] = {0, 1, 1, 1, 1, 0}, scratch[6], weights[3];
    const float bias[6] = {0};
    uint32_t experts[3];
    assert_int_equal(pot_route(experts, weights, &c, logits, bias, scratch, NULL), POT_OK);
    assert_int_equal(experts[0], 1);
    assert_int_equal(experts[1], 2);
    assert_int_equal(experts[2], 3);
}

static void router_rules_out_groups(void **state) {
    (void)state;
    /* Groups of three; the single best expert stands in a group whose two best together lose. */
    pot_config c = {
        .n_routed = 9, .top_k = 2, .n_group = 3, .topk_group = 1, .norm_topk_prob = true, .routed_scale = 1};
    float logits[9], scratch[9], weights[2];
    const float p[9] = {0.9f, 0.1f, 0.1f, 0.6f, 0.6f, 0.2f, 0.5f, 0.5f, 0.5f}, bias[9] = {0};
    for (int i = 0; i < 9; i++) logits[i] = logit(p[i]);
    uint32_t experts[2];
    assert_int_equal(pot_route(experts, weights, &c, logits, bias, scratch, NULL), POT_OK);
    assert_int_equal(experts[0], 3);
    assert_int_equal(experts[1], 4);
}

static void router_refuses_what_is_not_finite(void **state) {
    (void)state;
    pot_config c = {.n_routed = 2, .top_k = 1, .n_group = 1, .topk_group = 1, .routed_scale = 1};
    float logits[2] = {0, INFINITY}, scratch[2], weights[1];
    const float bias[2] = {0};
    uint32_t experts[1];
    pot_err err;
    assert_int_equal(pot_route(experts, weights, &c, logits, bias, scratch, &err), POT_NUMERIC);
    assert_string_equal(err.text, "the router's logit of expert 1 is not finite");
}

static void kv_gives_back_what_its_format_holds(void **state) {
    (void)state;
    const pot_kernels *kernels;
    assert_int_equal(pot_kernels_pick(&kernels, "generic", NULL), POT_OK);
    pot_config c = {.n_layers = 2, .kv_lora = 5, .rope_dim = 2, .index_dim = 3, .max_positions = 16};
    c.layer_is_full[0] = true;
    for (int format = POT_KV_BF16; format <= POT_KV_F32; format++) {
        pot_sequence *s;
        assert_int_equal(pot_sequence_create(&s, &c, (pot_kv_format)format, 16, NULL), POT_OK);
        float row[7], got[3 * 7], index[3] = {-1.5f, 1e-20f, 3.14159f}, index_got[3];
        for (uint32_t layer = 0; layer < 2; layer++)
            for (uint32_t position = 0; position < 16; position++) {
                for (uint32_t i = 0; i < 7; i++) row[i] = 1.0f / (float)(1 + i + 7 * position + 200 * layer);
                pot_kv_write(s, layer, position, row);
            }
        pot_kv_index_write(s, 0, 15, index);
        for (uint32_t layer = 0; layer < 2; layer++) {
            pot_kv_read(got, s, kernels, layer, 13, 3);
            for (uint32_t i = 0; i < 21; i++) {
                float wrote = 1.0f / (float)(1 + i + 7 * 13 + 200 * layer);
                float want = format == POT_KV_F32 ? wrote : pot_f32_from_bf16(pot_bf16_from_f32(wrote));
                assert_memory_equal(&got[i], &want, sizeof want);
            }
        }
        pot_kv_index_read(index_got, s, kernels, 0, 15, 1);
        for (int i = 0; i < 3; i++)
            assert_true(index_got[i] ==
                        (format == POT_KV_F32 ? index[i] : pot_f32_from_bf16(pot_bf16_from_f32(index[i]))));
        pot_sequence_free(s);
    }
}

static void kv_refuses_a_context_the_model_lacks(void **state) {
    (void)state;
    pot_config c = {.n_layers = 1, .kv_lora = 4, .rope_dim = 2, .max_positions = 16};
    pot_sequence *s = NULL;
    pot_err err;
    assert_int_equal(pot_sequence_create(&s, &c, POT_KV_F32, 17, &err), POT_LIMIT);
    assert_string_equal(err.text, "a context of 17 tokens was asked for, the model takes 1 to 16");
    assert_null(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(top_positions_break_ties_by_lower_index),
                                       cmocka_unit_test(top_positions_stand_sorted_input),
                                       cmocka_unit_test(router_selects_by_bias_and_weighs_without),
                                       cmocka_unit_test(router_takes_the_lower_expert_of_equals),
                                       cmocka_unit_test(router_rules_out_groups),
                                       cmocka_unit_test(router_refuses_what_is_not_finite),
                                       cmocka_unit_test(kv_gives_back_what_its_format_holds),
                                       cmocka_unit_test(kv_refuses_a_context_the_model_lacks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
