/* A layer's feed-forward over a cluster in this process: the same bits as the plain computation, whatever the cluster, and never
 * a wrong number when a worker misbehaves. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/log.h"
#include "common/mem.h"
#include "kernels/linear.h"
#include "tests/feed_forward.h"
#include "tests/stage.h"

#define MUST(call)                                     \
    do {                                               \
        pot_err err;                                   \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)

static const char *const mxfp4 = "tests/fixtures/mxfp4";

/* ---- inputs ------------------------------------------------------------------------------------------------------------- */

typedef struct input {
    uint32_t layer, n, k, hidden;
    float *x, *weights, *truth, *got;
    uint32_t *experts;
} input;

static void draw_input(input *in, const pot_stage *s, uint32_t layer, uint32_t n, uint64_t *seed) {
    const pot_config *c = pot_model_config(s->model);
    *in = (input){.layer = layer, .n = n, .k = c->layer_is_dense[layer] ? 0 : c->top_k, .hidden = c->hidden};
    size_t values = (size_t)n * c->hidden;
    in->x = pot_alloc_array(values, sizeof *in->x);
    in->truth = pot_alloc_array(values, sizeof *in->truth);
    in->got = pot_alloc_array(values, sizeof *in->got);
    in->experts = pot_alloc_array((size_t)n * c->top_k, sizeof *in->experts);
    in->weights = pot_alloc_array((size_t)n * c->top_k, sizeof *in->weights);
    assert_true(in->x && in->truth && in->got && in->experts && in->weights);
    for (size_t i = 0; i < values; i++) in->x[i] = pot_draw_float(seed);
    for (uint32_t i = 0; i < n; i++) {
        /* k of n_routed, ascending: each is taken with the probability that leaves enough for the rest. */
        uint32_t wanted = in->k;
        for (uint32_t e = 0; wanted > 0 && e < c->n_routed; e++)
            if (pot_draw(seed, c->n_routed - e) < wanted) in->experts[(i + 1) * in->k - wanted--] = e;
        for (uint32_t j = 0; j < in->k; j++) in->weights[i * in->k + j] = pot_draw_float(seed);
    }
}

static void compute_truth(input *in, const pot_stage *s) {
    MUST(pot_plain_forward(in->truth, s->model, &s->compute, in->layer, in->x, in->n, in->experts, in->weights, in->k,
                           &err));
}

static void free_input(input *in) {
    pot_free(in->x);
    pot_free(in->truth);
    pot_free(in->got);
    pot_free(in->experts);
    pot_free(in->weights);
}

static pot_status forward(input *in, pot_stage *s, pot_err *err) {
    memset(in->got, 0xff, (size_t)in->n * in->hidden * sizeof *in->got);
    return pot_moe_forward(s->moe, in->got, in->x, in->n, in->layer, in->k ? in->experts : NULL,
                           in->k ? in->weights : NULL, in->k, err);
}

static void check(input *in, pot_stage *s, const char *what) {
    pot_err err;
    if (forward(in, s, &err)) fail_msg("%s: %s", what, err.text);
    if (memcmp(in->got, in->truth, (size_t)in->n * in->hidden * sizeof *in->got))
        fail_msg("%s: other bits than the plain sum", what);
}

/* ---- the same bits -------------------------------------------------------------------------------------------------------- */

static void forward_gives_the_plain_bits(void **state) {
    (void)state;
    static const struct {
        const char *model;
        bool reference;
    } subjects[] = {{"tests/fixtures/mxfp4", false},
                    {"tests/fixtures/fp8", false},
                    {"tests/fixtures/experts256", true},
                    {"demo", false}};
    static const uint32_t workers[] = {1, 2, 3, 5, 8};
    static const char *const maps[] = {"contiguous", "round-robin", "sliced", "random:1", "random:2"};
    for (size_t i = 0; i < sizeof subjects / sizeof subjects[0]; i++) {
        input inputs[2 * 8];
        uint32_t n_inputs = 0;
        for (size_t w = 0; w < 5; w++)
            for (size_t m = 0; m < 5; m++) {
                pot_stage s;
                pot_stage_options o = {.model = subjects[i].model,
                                       .map = maps[m],
                                       .policy = pot_format_policy_default,
                                       .n_workers = workers[w],
                                       .inline_worker = (w + m) % 2 == 0};
                o.policy.reference = subjects[i].reference;
                MUST(pot_stage_open(&s, &o, &err));
                uint32_t layers = pot_model_layers(s.model);
                uint64_t seed = 7;
                while (n_inputs < 16 && n_inputs < 2 * layers) {
                    draw_input(&inputs[n_inputs], &s, n_inputs < layers ? n_inputs : n_inputs - layers,
                               n_inputs < layers ? 1 : 7, &seed);
                    compute_truth(&inputs[n_inputs++], &s);
                }
                for (uint32_t k = 0; k < n_inputs; k++) {
                    char what[120];
                    snprintf(what, sizeof what, "%s, %u workers, map %s, layer %u, %u rows", subjects[i].model,
                             workers[w], maps[m], inputs[k].layer, inputs[k].n);
                    check(&inputs[k], &s, what);
                }
                pot_stage_close(&s);
            }
        for (uint32_t k = 0; k < n_inputs; k++) free_input(&inputs[k]);
    }
}

static void forward_gives_the_plain_bits_of_many_rows(void **state) {
    (void)state;
    static const char *const maps[] = {"sliced", "random:3"};
    for (size_t i = 0; i < 2; i++) {
        pot_stage s;
        pot_stage_options o = {
            .model = mxfp4, .map = maps[i], .policy = pot_format_policy_default, .n_workers = 3, .inline_worker = true};
        MUST(pot_stage_open(&s, &o, &err));
        uint64_t seed = 21;
        for (uint32_t layer = 0; layer < pot_model_layers(s.model); layer++) {
            input in;
            draw_input(&in, &s, layer, 64, &seed);
            compute_truth(&in, &s);
            check(&in, &s, maps[i]);
            free_input(&in);
        }
        pot_stage_close(&s);
    }
}

/* Whoever has the most to read is sent its work first. */
static void forward_sends_the_heaviest_first(void **state) {
    (void)state;
    pot_stage s;
    pot_stage_options o = {.model = "demo",
                           .map = "round-robin",
                           .policy = pot_format_policy_default,
                           .n_workers = 5,
                           .inline_worker = true};
    MUST(pot_stage_open(&s, &o, &err));
    uint64_t seed = 5;
    const uint32_t layer = pot_model_layers(s.model) - 1;
    const pot_layer_shape *shape = &pot_model_layer_shapes(s.model)[layer];
    bool in_another_order = false;
    for (int round = 0; round < 20; round++) {
        input in;
        uint64_t bytes[5] = {0};
        draw_input(&in, &s, layer, 6, &seed);
        for (uint32_t i = 0; i < in.n; i++) {
            for (uint32_t j = 0; j < in.k; j++)
                bytes[in.experts[i * in.k + j] % 5] +=
                    shape->routed_chunks * pot_chunk_bytes(pot_model_routed(s.model, layer), 0);
            bytes[0] += shape->common_chunks * pot_chunk_bytes(pot_model_common(s.model, layer), 0);
        }
        compute_truth(&in, &s);
        s.coordinator.n_order = 0;
        check(&in, &s, "order");
        uint32_t busy = 0;
        for (int w = 0; w < 5; w++) busy += bytes[w] > 0;
        assert_int_equal(s.coordinator.n_order, busy);
        for (uint32_t i = 1; i < busy; i++) {
            uint32_t before = s.coordinator.order[i - 1] - 1, now = s.coordinator.order[i] - 1;
            assert_true(bytes[before] >= bytes[now]);
            in_another_order |= before > now;
        }
        free_input(&in);
    }
    assert_true(in_another_order); /* than that of their numbers */
    pot_stage_close(&s);
}

/* Ranges of one expert that end up with one worker travel as one item. */
static void forward_merges_ranges_into_one_item(void **state) {
    (void)state;
    pot_stage s;
    pot_stage_options o = {
        .model = mxfp4, .map = "random:1", .policy = pot_format_policy_default, .n_workers = 1, .inline_worker = true};
    MUST(pot_stage_open(&s, &o, &err));
    uint64_t seed = 5;
    input in;
    draw_input(&in, &s, 2, 4, &seed);
    compute_truth(&in, &s);
    uint32_t most = 0;
    for (uint32_t i = 0; i < in.n * in.k; i++) {
        uint32_t ranges;
        (void)pot_map_ranges(s.map, 2, in.experts[i], &ranges);
        most = ranges > most ? ranges : most;
    }
    assert_true(most > 1);
    check(&in, &s, "merged");
    pot_wire_header h = {.n_rows = in.n, .n_items = in.n * (in.k + 1), .formats = POT_ACT_Q8, .columns = in.hidden};
    pot_wire_layout layout;
    pot_wire_work_layout(&layout, &h);
    assert_int_equal(pot_peers_stats(s.peers, 0)->sent_bytes, layout.bytes);
    free_input(&in);
    pot_stage_close(&s);
}

static void forward_splits_batches_that_no_message_holds(void **state) {
    (void)state;
    pot_stage s;
    pot_stage_options o = {.model = "tests/fixtures/experts256",
                           .map = "round-robin",
                           .policy = pot_format_policy_default,
                           .n_workers = 2,
                           .inline_worker = true};
    MUST(pot_stage_open(&s, &o, &err));
    uint64_t seed = 3;
    input in;
    draw_input(&in, &s, pot_model_layers(s.model) - 1, POT_WIRE_MAX_ROWS + 3, &seed);
    MUST(forward(&in, &s, &err));
    /* The rows behind the cut against themselves alone, and a few before it. */
    for (uint32_t i = 0; i < in.n; i += i < POT_WIRE_MAX_ROWS - 2 ? 1023 : 1) {
        float *alone = pot_alloc_array(in.hidden, sizeof *alone);
        MUST(pot_moe_forward(s.moe, alone, in.x + (size_t)i * in.hidden, 1, in.layer, in.experts + i * in.k,
                             in.weights + i * in.k, in.k, &err));
        assert_memory_equal(alone, in.got + (size_t)i * in.hidden, in.hidden * sizeof *alone);
        pot_free(alone);
    }
    assert_true(pot_peers_stats(s.peers, 1)->rounds >= 2);
    free_input(&in);
    pot_stage_close(&s);
}

static void forward_carries_sums_wider_than_32_bits(void **state) {
    (void)state;
    pot_stage s;
    pot_stage_options o = {
        .model = mxfp4, .map = "sliced", .policy = pot_format_policy_default, .n_workers = 3, .inline_worker = true};
    o.policy.reference = true;
    MUST(pot_stage_open(&s, &o, &err));
    uint64_t seed = 4;
    input in;
    draw_input(&in, &s, 1, 3, &seed);
    for (uint32_t i = 0; i < in.hidden; i++) in.x[in.hidden + i] *= 20000; /* the middle row */
    compute_truth(&in, &s);
    float most = 0;
    for (uint32_t i = 0; i < in.hidden; i++) most = in.truth[in.hidden + i] > most ? in.truth[in.hidden + i] : most;
    assert_true(most > 128); /* 2^31 on the grid */
    check(&in, &s, "wide rows");
    free_input(&in);
    pot_stage_close(&s);
}

static void forward_that_is_warm_allocates_nothing(void **state) {
    (void)state;
    pot_stage s;
    pot_stage_options o = {.model = mxfp4,
                           .map = "contiguous",
                           .policy = pot_format_policy_default,
                           .n_workers = 1,
                           .inline_worker = true};
    MUST(pot_stage_open(&s, &o, &err));
    uint64_t seed = 4;
    input in;
    draw_input(&in, &s, 2, 4, &seed);
    compute_truth(&in, &s);
    check(&in, &s, "cold");
    check(&in, &s, "warm");
    pot_mem_fail_at(1);
    pot_err err = {0};
    pot_status got = forward(&in, &s, &err);
    pot_mem_fail_at(0);
    if (got) fail_msg("%s", err.text);
    free_input(&in);
    pot_stage_close(&s);
}

/* Work is counted where it goes. */
static void forward_keeps_statistics(void **state) {
    (void)state;
    pot_stage s;
    pot_stage_options o = {
        .model = mxfp4, .map = "sliced", .policy = pot_format_policy_default, .n_workers = 3, .inline_worker = true};
    MUST(pot_stage_open(&s, &o, &err));
    uint64_t seed = 4;
    input in;
    draw_input(&in, &s, 2, 4, &seed);
    compute_truth(&in, &s);
    for (int i = 0; i < 3; i++) check(&in, &s, "statistics");
    uint64_t held = 0;
    for (uint32_t w = 0; w < 3; w++) {
        const pot_peer_stats *stats = pot_peers_stats(s.peers, w);
        assert_int_equal(stats->rounds, 3);
        assert_true(stats->sent_bytes > 3 * 64 && stats->received_bytes > 3 * 64);
        held += stats->held_bytes;
    }
    uint64_t all = 0;
    for (uint32_t w = 0; w < 3; w++) all += pot_model_worker_bytes(s.model, s.map, w);
    assert_int_equal(held, all);
    free_input(&in);
    pot_stage_close(&s);
}

/* ---- bad input -------------------------------------------------------------------------------------------------------------- */

static void forward_refuses_what_is_not_finite(void **state) {
    (void)state;
    pot_stage s;
    pot_stage_options o = {
        .model = mxfp4, .map = "sliced", .policy = pot_format_policy_default, .n_workers = 2, .inline_worker = true};
    MUST(pot_stage_open(&s, &o, &err));
    uint64_t seed = 4;
    input in;
    draw_input(&in, &s, 2, 2, &seed);
    compute_truth(&in, &s);
    float kept = in.x[5];
    in.x[5] = 1.0f / 0.0f;
    pot_err err;
    assert_int_equal(forward(&in, &s, &err), POT_NUMERIC);
    assert_non_null(strstr(err.text, "layer 2"));
    in.x[5] = kept;
    check(&in, &s, "after a refusal");
    uint32_t expert = in.experts[0];
    in.experts[0] = 900;
    assert_int_equal(forward(&in, &s, &err), POT_BUG);
    assert_non_null(strstr(err.text, "900"));
    in.experts[0] = expert;
    check(&in, &s, "after another refusal");
    free_input(&in);
    pot_stage_close(&s);
}

/* A fault on several workers ends one request; what the others say about it later does not touch the next. */
static void forward_goes_on_after_a_fault_on_every_worker(void **state) {
    (void)state;
    pot_stage s;
    pot_stage_options o = {
        .model = mxfp4, .map = "sliced", .policy = pot_format_policy_default, .n_workers = 5, .inline_worker = false};
    o.policy.reference = true;
    MUST(pot_stage_open(&s, &o, &err));
    uint64_t seed = 4;
    input bad, good;
    draw_input(&bad, &s, 2, 2, &seed);
    draw_input(&good, &s, 2, 2, &seed);
    compute_truth(&good, &s);
    for (uint32_t i = 0; i < bad.n * bad.hidden; i++) bad.x[i] = 3e38f;
    for (int i = 0; i < 20; i++) {
        pot_err err;
        assert_int_equal(forward(&bad, &s, &err), POT_NUMERIC);
        assert_non_null(strstr(err.text, "layer 2"));
        assert_non_null(strstr(err.text, "expert"));
        assert_non_null(strstr(err.text, "worker"));
        if (pot_peers_tend(s.peers, &err)) fail_msg("%s", err.text); /* more of the same is no news */
        check(&good, &s, "after a fault");
    }
    free_input(&bad);
    free_input(&good);
    pot_stage_close(&s);
}

/* ---- workers that misbehave ---------------------------------------------------------------------------------------------------- */

static const pot_stage_options with_a_liar = {.model = "tests/fixtures/mxfp4",
                                              .map = "sliced",
                                              .n_workers = 3,
                                              .inline_worker = true,
                                              .liar = 2,
                                              .policy = {.dense = POT_FORMAT_Q8_G32, .head = POT_FORMAT_Q8_G32}};

/* Replies that are late, or come twice, are dropped and counted; the answer stays right. */
static void forward_drops_replies_to_other_work(void **state) {
    (void)state;
    static const pot_trick tricks[] = {POT_TRICK_TWICE,       POT_TRICK_OTHER_STEP,  POT_TRICK_OTHER_REQUEST,
                                       POT_TRICK_OTHER_LAYER, POT_TRICK_OTHER_EPOCH, POT_TRICK_OLD_ERROR};
    for (size_t i = 0; i < sizeof tricks / sizeof tricks[0]; i++) {
        pot_stage s;
        MUST(pot_stage_open(&s, &with_a_liar, &err));
        uint64_t seed = 9;
        input a, b;
        draw_input(&a, &s, 1, 3, &seed);
        draw_input(&b, &s, 2, 3, &seed);
        compute_truth(&a, &s);
        compute_truth(&b, &s);
        check(&a, &s, "before the trick");
        pot_stage_trick(&s, 2, tricks[i]);
        for (int k = 0; k < 10; k++) {
            char what[40];
            snprintf(what, sizeof what, "trick %d, round %d", tricks[i], k);
            check(&a, &s, what);
            check(&b, &s, what);
        }
        /* The second copy of the last reply may still be on its way. */
        assert_true(pot_peers_stats(s.peers, 2)->dropped >= 19);
        assert_int_equal(pot_peers_stats(s.peers, 1)->dropped, 0);
        free_input(&a);
        free_input(&b);
        pot_stage_close(&s);
    }
}

static void forward_never_uses_a_spoilt_reply(void **state) {
    (void)state;
    static const struct {
        pot_trick trick;
        pot_status status;
        const char *words[3];
    } cases[] = {
        {POT_TRICK_MOVED, POT_BUG, {"worker 2", "does not hold chunks", "layer 2"}},
        {POT_TRICK_ANOTHER_ROW, POT_FORMAT, {"worker 2", "rows", "layer 2"}},
        {POT_TRICK_CUT, POT_FORMAT, {"worker 2", "bytes", ""}},
        {POT_TRICK_NOISE, POT_FORMAT, {"worker 2", "a5a5a5a5", ""}},
        {POT_TRICK_WORK, POT_FORMAT, {"worker 2", "type 1", ""}},
        {POT_TRICK_ERROR, POT_IO, {"worker 2", "the disk is on fire", ""}},
        {POT_TRICK_LEAVE, POT_PEER_LOST, {"worker 2", "had enough", ""}},
        {POT_TRICK_BAD_CONTROL, POT_FORMAT, {"worker 2", "", ""}},
        {POT_TRICK_WELCOME, POT_FORMAT, {"worker 2", "only a coordinator sends", ""}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_stage s;
        MUST(pot_stage_open(&s, &with_a_liar, &err));
        pot_err err;
        uint64_t seed = 9;
        input in;
        draw_input(&in, &s, 2, 3, &seed);
        compute_truth(&in, &s);
        check(&in, &s, "before the trick");
        pot_stage_trick(&s, 2, cases[i].trick);
        pot_status got = forward(&in, &s, &err);
        for (int k = 0; k < 3; k++)
            if (got != cases[i].status || !strstr(err.text, cases[i].words[k]))
                fail_msg("trick %d: %s `%s`, expected %s with `%s`", cases[i].trick, pot_status_name(got), err.text,
                         pot_status_name(cases[i].status), cases[i].words[k]);
        pot_stage_trick(&s, 2, POT_TRICK_NONE);
        if (cases[i].trick == POT_TRICK_LEAVE)
            assert_int_equal(forward(&in, &s, &err), POT_PEER_LOST); /* whoever is gone stays gone */
        else
            check(&in, &s, "after the trick");
        free_input(&in);
        pot_stage_close(&s);
    }
}

static void forward_ends_when_a_worker_falls_silent(void **state) {
    (void)state;
    pot_stage s;
    pot_stage_options o = with_a_liar;
    o.dead_us = 300000;
    MUST(pot_stage_open(&s, &o, &err));
    uint64_t seed = 9;
    input in;
    pot_err err;
    draw_input(&in, &s, 2, 3, &seed);
    compute_truth(&in, &s);
    check(&in, &s, "before the silence");
    pot_stage_trick(&s, 2, POT_TRICK_MUTE);
    assert_int_equal(forward(&in, &s, &err), POT_PEER_LOST);
    assert_non_null(strstr(err.text, "worker 2"));
    assert_non_null(strstr(err.text, "nothing was heard"));
    free_input(&in);
    pot_stage_close(&s);
}

static void forward_ends_when_a_worker_lives_but_does_not_answer(void **state) {
    (void)state;
    static const pot_trick tricks[] = {POT_TRICK_WITHHOLD, POT_TRICK_BESIDE};
    for (int i = 0; i < 2; i++) {
        pot_stage s;
        pot_stage_options o = with_a_liar;
        o.timeout_us = 300000;
        MUST(pot_stage_open(&s, &o, &err));
        uint64_t seed = 9;
        input in;
        pot_err err;
        draw_input(&in, &s, 2, 3, &seed);
        pot_stage_trick(&s, 2, tricks[i]);
        assert_int_equal(forward(&in, &s, &err), POT_TIMEOUT);
        assert_non_null(strstr(err.text, "worker 2"));
        assert_non_null(strstr(err.text, "has not answered"));
        free_input(&in);
        pot_stage_close(&s);
    }
}

int main(void) {
    pot_err err;
    if (pot_log_configure("error", &err)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_gives_the_plain_bits),
        cmocka_unit_test(forward_gives_the_plain_bits_of_many_rows),
        cmocka_unit_test(forward_sends_the_heaviest_first),
        cmocka_unit_test(forward_merges_ranges_into_one_item),
        cmocka_unit_test(forward_splits_batches_that_no_message_holds),
        cmocka_unit_test(forward_carries_sums_wider_than_32_bits),
        cmocka_unit_test(forward_that_is_warm_allocates_nothing),
        cmocka_unit_test(forward_keeps_statistics),
        cmocka_unit_test(forward_refuses_what_is_not_finite),
        cmocka_unit_test(forward_goes_on_after_a_fault_on_every_worker),
        cmocka_unit_test(forward_drops_replies_to_other_work),
        cmocka_unit_test(forward_never_uses_a_spoilt_reply),
        cmocka_unit_test(forward_ends_when_a_worker_falls_silent),
        cmocka_unit_test(forward_ends_when_a_worker_lives_but_does_not_answer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
