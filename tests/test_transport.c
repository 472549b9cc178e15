/* The `mem` transport: order, loss, waking, deadlines, and many threads at once. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/mem.h"
#include "proto/transport.h"

enum { MINUTE_US = 60000000, SENDERS = 4, MESSAGES = 2000 };

static pot_err err; /* of the main thread's calls */
#define MUST(call)                                     \
    do {                                               \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)

static pot_message *number_message(pot_transport *t, uint32_t number, size_t bytes) {
    pot_message *m = pot_transport_message(t, bytes);
    if (!m) return NULL;
    m->kind = POT_MESSAGE_DATA;
    memcpy(m->bytes, &number, sizeof number);
    return m;
}

static uint32_t number_of(const pot_message *m) {
    uint32_t number;
    memcpy(&number, m->bytes, sizeof number);
    return number;
}

static pot_message *take(pot_transport *t) {
    pot_message *m;
    MUST(pot_transport_receive(t, MINUTE_US, &m, &err));
    assert_non_null(m);
    return m;
}

static void expect_nothing(pot_transport *t) {
    pot_message *m;
    MUST(pot_transport_receive(t, 0, &m, &err));
    assert_null(m);
}

static void expect_lost(pot_transport *t, uint32_t peer) {
    pot_message *m = take(t);
    assert_int_equal(m->kind, POT_MESSAGE_LOST);
    assert_int_equal(m->peer, peer);
    assert_non_null(memchr(m->bytes, 0, m->n_bytes)); /* the reason is text with its end */
    pot_message_release(t, m);
}

static void messages_arrive_in_order_and_whole(void **state) {
    (void)state;
    static const size_t sizes[] = {4, 5, 64, 255, 256, 257, 4096, 1 << 20};
    pot_transport *ends[3];
    MUST(pot_transport_mem_create(ends, 3, &err));
    for (uint32_t i = 0; i < 8; i++) {
        pot_message *m = number_message(ends[0], i, sizes[i]);
        assert_non_null(m);
        assert_int_equal((uintptr_t)m->bytes % 64, 0);
        assert_true(m->n_bytes == sizes[i] && m->capacity >= sizes[i]);
        m->bytes[sizes[i] - 1] = 0x5a;
        if (sizes[i] == 4) memcpy(m->bytes, &i, sizeof i);
        m->kind = i % 2 ? POT_MESSAGE_CONTROL : POT_MESSAGE_DATA;
        MUST(pot_transport_send(ends[0], 2, m, &err));
    }
    expect_nothing(ends[1]);
    for (uint32_t i = 0; i < 8; i++) {
        pot_message *m = take(ends[2]);
        assert_int_equal(m->peer, 0);
        assert_int_equal(m->kind, i % 2 ? POT_MESSAGE_CONTROL : POT_MESSAGE_DATA);
        assert_int_equal(m->n_bytes, sizes[i]);
        if (sizes[i] > 5) assert_true(number_of(m) == i && m->bytes[sizes[i] - 1] == 0x5a);
        pot_message_release(ends[2], m);
    }
    for (int i = 0; i < 3; i++) pot_transport_close(ends[i], 0);
}

static void buffers_come_back_to_the_pool(void **state) {
    (void)state;
    pot_transport *ends[2];
    MUST(pot_transport_mem_create(ends, 2, &err));
    pot_message *first = pot_transport_message(ends[0], 1000);
    first->kind = POT_MESSAGE_DATA;
    MUST(pot_transport_send(ends[0], 1, first, &err));
    pot_message_release(ends[1], take(ends[1]));
    pot_mem_fail_at(1); /* no allocation once the pool is warm */
    pot_message *again = pot_transport_message(ends[0], 1024);
    assert_ptr_equal(again, first);
    assert_int_equal(again->n_bytes, 1024);
    assert_null(pot_transport_message(ends[0], 1025)); /* the next class has none yet */
    pot_mem_fail_at(0);
    pot_message_release(ends[0], again);
    pot_message_release(ends[0], NULL);
    assert_null(pot_transport_message(ends[0], SIZE_MAX));
    pot_transport_close(ends[0], 0);
    pot_transport_close(ends[1], 0);
}

static void lost_comes_behind_what_was_sent(void **state) {
    (void)state;
    pot_transport *ends[3];
    MUST(pot_transport_mem_create(ends, 3, &err));
    for (uint32_t i = 0; i < 3; i++) MUST(pot_transport_send(ends[1], 0, number_message(ends[1], i, 100), &err));
    MUST(pot_transport_send(ends[0], 1, number_message(ends[0], 0, 100), &err)); /* never read by end 1 */
    pot_transport_close(ends[1], 0);
    for (uint32_t i = 0; i < 3; i++) {
        pot_message *m = take(ends[0]);
        assert_int_equal(number_of(m), i);
        pot_message_release(ends[0], m);
    }
    expect_lost(ends[0], 1);
    expect_lost(ends[2], 1);
    expect_nothing(ends[0]);
    assert_int_equal(pot_transport_send(ends[0], 1, number_message(ends[0], 0, 100), &err), POT_PEER_LOST);
    assert_string_equal(err.text, "end 1 has closed");
    pot_transport_close(ends[2], 0);
    expect_lost(ends[0], 2);
    pot_transport_close(ends[0], 0);
    pot_transport_close(NULL, 0);
}

static void wait_ends_at_its_deadline(void **state) {
    (void)state;
    static const uint64_t waits[] = {0, 1, 20000};
    pot_transport *ends[2];
    pot_message *m;
    MUST(pot_transport_mem_create(ends, 2, &err));
    for (int i = 0; i < 3; i++) {
        uint64_t start = pot_now_us();
        MUST(pot_transport_receive(ends[0], waits[i], &m, &err));
        assert_null(m);
        assert_true(pot_now_us() - start >= waits[i]);
    }
    pot_transport_close(ends[0], 0);
    pot_transport_close(ends[1], 0);
}

static void *wake_it(void *end) {
    usleep(20000);
    pot_transport_wake(end);
    return NULL;
}

static void *send_to_0(void *end) {
    pot_err fault;
    usleep(20000);
    return pot_transport_send(end, 0, number_message(end, 7, 100), &fault) == POT_OK ? NULL : end;
}

static void wait_ends_with_a_wake_or_a_message(void **state) {
    (void)state;
    pot_transport *ends[2];
    pot_message *m;
    pthread_t thread;
    void *failed;
    MUST(pot_transport_mem_create(ends, 2, &err));
    for (int message = 0; message < 2; message++) {
        uint64_t start = pot_now_us();
        assert_int_equal(pthread_create(&thread, NULL, message ? send_to_0 : wake_it, ends[message]), 0);
        MUST(pot_transport_receive(ends[0], MINUTE_US, &m, &err));
        assert_true(pot_now_us() - start < MINUTE_US);
        assert_int_equal(m != NULL, message);
        pot_message_release(ends[0], m);
        pthread_join(thread, &failed);
        assert_null(failed);
    }
    /* A wake-up that came before the wait counts for one wait. */
    pot_transport_wake(ends[0]);
    MUST(pot_transport_receive(ends[0], MINUTE_US, &m, &err));
    assert_null(m);
    uint64_t start = pot_now_us();
    MUST(pot_transport_receive(ends[0], 10000, &m, &err));
    assert_true(pot_now_us() - start >= 10000);
    pot_transport_close(ends[0], 0);
    pot_transport_close(ends[1], 0);
}

/* ---- many threads ---------------------------------------------------------------------------------------------------------- */

typedef struct sender {
    pthread_t thread;
    pot_transport *end;
    uint32_t tag; /* high bits of its numbers */
    bool failed;
} sender;

static void *send_many(void *argument) {
    sender *s = argument;
    for (uint32_t i = 0; i < MESSAGES && !s->failed; i++) {
        pot_message *m = number_message(s->end, s->tag << 24 | i, 4 + i % 700);
        s->failed = !m || pot_transport_send(s->end, 0, m, NULL) != POT_OK;
    }
    return NULL;
}

/* Two threads on each of two ends send; each one's messages stay in order. */
static void threads_send_at_once_in_order(void **state) {
    (void)state;
    pot_transport *ends[3];
    sender senders[SENDERS];
    uint32_t next[SENDERS] = {0};
    MUST(pot_transport_mem_create(ends, 3, &err));
    for (uint32_t i = 0; i < SENDERS; i++) {
        senders[i] = (sender){.end = ends[1 + i % 2], .tag = i};
        assert_int_equal(pthread_create(&senders[i].thread, NULL, send_many, &senders[i]), 0);
    }
    for (int i = 0; i < SENDERS * MESSAGES; i++) {
        pot_message *m = take(ends[0]);
        uint32_t tag = number_of(m) >> 24, number = number_of(m) & 0xffffff;
        assert_true(tag < SENDERS);
        assert_int_equal(m->peer, 1 + tag % 2);
        assert_int_equal(number, next[tag]++);
        assert_int_equal(m->n_bytes, 4 + number % 700);
        pot_message_release(ends[0], m);
    }
    for (int i = 0; i < SENDERS; i++) {
        pthread_join(senders[i].thread, NULL);
        assert_false(senders[i].failed);
    }
    expect_nothing(ends[0]);
    for (int i = 0; i < 3; i++) pot_transport_close(ends[i], 0);
}

static void *send_until_lost(void *argument) {
    sender *s = argument;
    pot_status status = POT_OK;
    while (status == POT_OK) {
        pot_message *m = number_message(s->end, 0, 300);
        status = m ? pot_transport_send(s->end, 0, m, NULL) : POT_NO_MEMORY;
    }
    s->failed = status != POT_PEER_LOST;
    pot_transport_close(s->end, 0);
    return NULL;
}

static void end_closes_while_others_send(void **state) {
    (void)state;
    for (int round = 0; round < 20; round++) {
        pot_transport *ends[SENDERS + 1];
        sender senders[SENDERS];
        MUST(pot_transport_mem_create(ends, SENDERS + 1, &err));
        for (uint32_t i = 0; i < SENDERS; i++) {
            senders[i] = (sender){.end = ends[i + 1]};
            assert_int_equal(pthread_create(&senders[i].thread, NULL, send_until_lost, &senders[i]), 0);
        }
        for (int i = 0; i < round * 5; i++) pot_message_release(ends[0], take(ends[0]));
        pot_transport_close(ends[0], 0); /* the last of the senders to close frees what all share */
        for (int i = 0; i < SENDERS; i++) {
            pthread_join(senders[i].thread, NULL);
            assert_false(senders[i].failed);
        }
    }
}

static void creation_survives_each_failing_allocation(void **state) {
    (void)state;
    pot_transport *ends[2];
    for (uint64_t nth = 1; nth < 3; nth++) {
        pot_mem_fail_at(nth);
        assert_int_equal(pot_transport_mem_create(ends, 2, &err), POT_NO_MEMORY);
    }
    pot_mem_fail_at(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_arrive_in_order_and_whole),
        cmocka_unit_test(buffers_come_back_to_the_pool),
        cmocka_unit_test(lost_comes_behind_what_was_sent),
        cmocka_unit_test(wait_ends_at_its_deadline),
        cmocka_unit_test(wait_ends_with_a_wake_or_a_message),
        cmocka_unit_test(threads_send_at_once_in_order),
        cmocka_unit_test(end_closes_while_others_send),
        cmocka_unit_test(creation_survives_each_failing_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
