/* Joining, life and end of a cluster, from the coordinator's side: whatever a worker does wrong ends with a sentence that names it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <signal.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/system.h"
#include "tests/stage.h"

#define MUST(call)                                     \
    do {                                               \
        pot_err err;                                   \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)

#define POLICY \
    { .dense = POT_FORMAT_Q8_G32, .head = POT_FORMAT_Q8_G32 }
static const pot_stage_options three = {.model = "tests/fixtures/mxfp4",
                                        .map = "sliced",
                                        .n_workers = 3,
                                        .inline_worker = true,
                                        .liar = 2,
                                        .policy = POLICY};

static void expect_failure(const pot_stage_options *o, pot_status status, const char *const words[3]) {
    pot_stage s;
    pot_err err = {0};
    pot_status got = pot_stage_open(&s, o, &err);
    for (int i = 0; i < 3; i++)
        if (got != status || !strstr(err.text, words[i]))
            fail_msg("trick %d: %s `%s`, expected %s with `%s`", o->trick, pot_status_name(got), err.text,
                     pot_status_name(status), words[i]);
    assert_null(s.peers);
    pot_stage_close(&s);
}

/* ---- joining ------------------------------------------------------------------------------------------------------------- */

static void peers_join_and_report_what_they_hold(void **state) {
    (void)state;
    for (int own = 0; own < 2; own++) {
        pot_stage s;
        pot_stage_options o = three;
        o.inline_worker = own;
        MUST(pot_stage_open(&s, &o, &err));
        assert_int_equal(pot_peers_count(s.peers), 3);
        assert_ptr_equal(pot_peers_map(s.peers), s.map);
        for (uint32_t w = 0; w < 3; w++) {
            const pot_peer_stats *stats = pot_peers_stats(s.peers, w);
            assert_int_equal(stats->held_bytes, pot_model_worker_bytes(s.model, s.map, w));
            assert_string_equal(stats->host, pot_host_name());
            assert_string_equal(stats->kernels, s.compute.kernels->name);
        }
        pot_stage_close(&s);
    }
}

static void peers_end_in_order(void **state) {
    (void)state;
    pot_stage s;
    MUST(pot_stage_open(&s, &three, &err));
    pot_moe_free(s.moe);
    s.moe = NULL;
    pot_peers_free(s.peers);
    s.peers = NULL;
    for (uint32_t w = 1; w < 3; w++) {
        pot_actor *a = &s.actors[w];
        pthread_join(a->thread, NULL);
        a->started = false;
        s.ends[w + 1] = NULL; /* the thread has closed it */
        if (a->status) fail_msg("worker %u: %s", w, a->err.text);
    }
    pot_stage_close(&s);
}

static void peers_refuse_workers_that_do_not_match(void **state) {
    (void)state;
    static const struct {
        pot_trick trick;
        pot_status status;
        const char *words[3];
    } cases[] = {
        {POT_TRICK_OLD_HELLO, POT_REFUSED, {"worker 2", "protocols 98 to 99", "1 to 1"}},
        {POT_TRICK_HELLO_TWICE, POT_FORMAT, {"worker 2", "Hello twice", ""}},
        {POT_TRICK_OTHER_READY, POT_REFUSED, {"worker 2", "map 4242", "are 3"}},
        {POT_TRICK_MODEL_READY, POT_REFUSED, {"worker 2", "of model", "are 3"}},
        {POT_TRICK_EARLY_DATA, POT_FORMAT, {"worker 2", "data before there is work", ""}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_stage_options o = three;
        o.trick = cases[i].trick;
        expect_failure(&o, cases[i].status, cases[i].words);
    }
}

static void peers_refuse_another_model_with_both_fingerprints(void **state) {
    (void)state;
    pot_model *model;
    char ours[33];
    MUST(pot_model_open(&model, three.model, &three.policy, &err));
    pot_hash_text(ours, pot_model_fingerprint(model));
    pot_model_close(model);
    pot_stage_options o = three;
    o.other_model = "tests/fixtures/indexshare"; /* other dimensions */
    expect_failure(&o, POT_REFUSED, (const char *const[3]){"worker 2", "tests/fixtures/indexshare", "layers"});
    o.other_model = "tests/fixtures/nowhere";
    expect_failure(&o, POT_NOT_FOUND, (const char *const[3]){"worker 2", "tests/fixtures/nowhere", ""});
}

static void peers_name_the_ranks_that_do_not_come(void **state) {
    (void)state;
    pot_stage_options o = three;
    o.trick = POT_TRICK_NO_HELLO;
    o.timeout_us = 300000;
    expect_failure(&o, POT_TIMEOUT, (const char *const[3]){"ranks 2 ", "no Hello", "--timeout"});
}

static void peers_give_up_on_loading_without_progress(void **state) {
    (void)state;
    pot_stage_options o = three;
    o.trick = POT_TRICK_NO_READY;
    o.timeout_us = 300000;
    expect_failure(&o, POT_TIMEOUT, (const char *const[3]){"worker 2", "has not got on with loading", "--timeout"});
}

/* It gets on, so it may take longer than --timeout. */
static void peers_wait_for_a_worker_that_loads_slowly(void **state) {
    (void)state;
    pot_stage s;
    pot_stage_options o = three;
    o.trick = POT_TRICK_SLOW_READY;
    o.timeout_us = 2000000;
    uint64_t start = pot_now_us();
    MUST(pot_stage_open(&s, &o, &err));
    assert_true(pot_now_us() - start > o.timeout_us);
    pot_stage_close(&s);
}

/* ---- living ---------------------------------------------------------------------------------------------------------------- */

/* Tends until it fails; a machine under load may take its time. */
static pot_status tend_until_failure(pot_stage *s, pot_err *err) {
    uint64_t until = pot_now_us() + 60000000;
    pot_status status = POT_OK;
    while (status == POT_OK && pot_now_us() < until) {
        status = pot_peers_tend(s->peers, err);
        struct timespec nap = {0, 2000000};
        if (status == POT_OK) nanosleep(&nap, NULL);
    }
    return status;
}

/* Heartbeats of the others keep coming: they must not hide the one that is missing. */
static void peers_notice_a_silent_worker_among_others(void **state) {
    (void)state;
    pot_stage s;
    pot_stage_options o = three;
    o.n_workers = 5;
    o.dead_us = 500000;
    o.heartbeat_us = 1000;
    MUST(pot_stage_open(&s, &o, &err));
    pot_err err;
    pot_stage_trick(&s, 2, POT_TRICK_MUTE);
    assert_int_equal(tend_until_failure(&s, &err), POT_PEER_LOST);
    assert_non_null(strstr(err.text, "worker 2"));
    assert_non_null(strstr(err.text, "nothing was heard"));
    pot_stage_close(&s);
}

/* The coordinator was busy for longer than dead_us: what has come in meanwhile is read before anybody is judged. */
static void peers_are_not_dead_because_the_coordinator_was_busy(void **state) {
    (void)state;
    pot_stage s;
    pot_stage_options o = three;
    o.dead_us = 1000000;
    MUST(pot_stage_open(&s, &o, &err));
    struct timespec busy = {1, 200000000};
    nanosleep(&busy, NULL);
    pot_err err;
    if (pot_peers_tend(s.peers, &err)) fail_msg("%s", err.text);
    pot_stage_close(&s);
}

static void peers_refuse_a_second_ready(void **state) {
    (void)state;
    pot_stage s;
    pot_stage_options o = three;
    o.trick = POT_TRICK_READY_TWICE;
    pot_err err;
    pot_status got = pot_stage_open(&s, &o, &err);
    if (got == POT_OK) got = tend_until_failure(&s, &err); /* it may come when all are ready */
    assert_int_equal(got, POT_FORMAT);
    assert_non_null(strstr(err.text, "worker 2"));
    assert_non_null(strstr(err.text, "ready twice"));
    pot_stage_close(&s);
}

static void peers_notice_a_worker_that_ends(void **state) {
    (void)state;
    pot_stage s;
    MUST(pot_stage_open(&s, &three, &err));
    pot_message *m = pot_transport_message(s.ends[0], 8);
    memset(m->bytes, 0, 8);
    m->kind = POT_MESSAGE_CONTROL; /* a frame of zeros: the worker ends with an error and tells it */
    MUST(pot_transport_send(s.ends[0], 2, m, &err));
    pot_err err;
    pot_status got = tend_until_failure(&s, &err);
    assert_int_equal(got, POT_FORMAT);
    assert_non_null(strstr(err.text, "worker 1"));
    got = tend_until_failure(&s, &err); /* and then its end closes */
    assert_int_equal(got, POT_PEER_LOST);
    assert_non_null(strstr(err.text, "worker 1"));
    assert_non_null(strstr(err.text, "closed"));
    pot_stage_close(&s);
}

static void peers_stop_waiting_after_a_signal(void **state) {
    (void)state;
    pot_stage s;
    MUST(pot_stage_open(&s, &three, &err));
    pot_err err;
    raise(SIGINT);
    assert_int_equal(pot_peers_tend(s.peers, &err), POT_CANCELLED);
    pot_stop_clear();
    pot_stage_close(&s);
    raise(SIGTERM);
    assert_int_equal(pot_stage_open(&s, &three, &err), POT_CANCELLED);
    pot_stop_clear();
    pot_stage_close(&s);
}

int main(void) {
    pot_err err;
    pot_stop_install();
    if (pot_log_configure("error", &err)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(peers_join_and_report_what_they_hold),
        cmocka_unit_test(peers_end_in_order),
        cmocka_unit_test(peers_refuse_workers_that_do_not_match),
        cmocka_unit_test(peers_refuse_another_model_with_both_fingerprints),
        cmocka_unit_test(peers_name_the_ranks_that_do_not_come),
        cmocka_unit_test(peers_give_up_on_loading_without_progress),
        cmocka_unit_test(peers_wait_for_a_worker_that_loads_slowly),
        cmocka_unit_test(peers_notice_a_silent_worker_among_others),
        cmocka_unit_test(peers_are_not_dead_because_the_coordinator_was_busy),
        cmocka_unit_test(peers_refuse_a_second_ready),
        cmocka_unit_test(peers_notice_a_worker_that_ends),
        cmocka_unit_test(peers_stop_waiting_after_a_signal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
