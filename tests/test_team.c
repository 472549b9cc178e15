/* The team of threads: every part is done by all, once; barriers hold; sleepers wake; small parts stay with the caller. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include <cmocka.h>

#include "common/mem.h"
#include "common/team.h"
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

enum { MOST = 9, ROUNDS = 2000 };

typedef struct tally {
    pot_team *team;
    atomic_uint visits[MOST];
    atomic_uint threads;
    unsigned before[MOST]; /* written on one side of a barrier, read on the other: a race would be seen by TSan */
    atomic_bool wrong;
} tally;

static void count(void *context, int thread, int threads) {
    tally *t = context;
    atomic_fetch_add(&t->visits[thread], 1);
    atomic_store(&t->threads, (unsigned)threads);
}

static void doze(long us) {
    const struct timespec time = {.tv_nsec = us * 1000};
    nanosleep(&time, NULL);
}

static void every_thread_takes_part_once(void **state) {
    (void)state;
    for (int threads = 1; threads <= MOST; threads++) {
        tally t = {0};
        assert_int_equal(pot_team_create(&t.team, threads, true, NULL), POT_OK);
        assert_int_equal(pot_team_threads(t.team), threads);
        for (unsigned round = 1; round <= ROUNDS; round++) {
            pot_team_run(t.team, 0, count, &t);
            for (int i = 0; i < threads; i++) assert_int_equal(t.visits[i], round);
            if (round % 500 == 0) doze(2000); /* longer than helpers stay awake */
        }
        assert_int_equal(t.threads, threads);
        pot_team_free(t.team);
    }
}

static void cross_barriers(void *context, int thread, int threads) {
    tally *t = context;
    for (unsigned round = 1; round <= 50; round++) {
        t->before[thread] = round;
        pot_team_barrier(t->team, threads);
        for (int i = 0; i < threads; i++)
            if (t->before[i] != round) atomic_store(&t->wrong, true);
        if (thread == 0 && round % 20 == 0) doze(3000); /* the others fall asleep at the next barrier */
        pot_team_barrier(t->team, threads);
    }
}

static void nobody_passes_a_barrier_early(void **state) {
    (void)state;
    for (int threads = 1; threads <= MOST; threads += 2) {
        tally t = {0};
        assert_int_equal(pot_team_create(&t.team, threads, true, NULL), POT_OK);
        for (int round = 0; round < 20; round++) pot_team_run(t.team, 0, cross_barriers, &t);
        assert_false(t.wrong);
        pot_team_free(t.team);
    }
}

static void small_parts_stay_with_the_caller(void **state) {
    (void)state;
    tally t = {0};
    assert_int_equal(pot_team_create(&t.team, 3, false, NULL), POT_OK);
    pot_team_run(t.team, 1000, count, &t);
    assert_true(t.threads == 1 && t.visits[0] == 1 && t.visits[1] == 0);
    pot_team_run(t.team, (uint64_t)1 << 30, count, &t);
    assert_true(t.threads == 3 && t.visits[0] == 2 && t.visits[1] == 1 && t.visits[2] == 1);
    pot_team_free(t.team);
    pot_team_run(NULL, (uint64_t)1 << 30, count, &t); /* no team: the caller alone */
    assert_true(t.threads == 1 && t.visits[0] == 3);
    assert_int_equal(pot_team_threads(NULL), 1);
    pot_team_barrier(NULL, 1);
    pot_team_free(NULL);
}

static void keep_denormals(void *context, int thread, int threads) {
    volatile float tiny = 0x1p-126f, half = 0.5f;
    (void)thread;
    (void)threads;
    if (tiny * half == 0.0f) atomic_store(&((tally *)context)->wrong, true);
}

static void denormals_are_kept_in_every_thread(void **state) {
    (void)state;
    tally t = {0};
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040u); /* a new thread inherits the mode of its creator */
#endif
    assert_int_equal(pot_team_create(&t.team, 3, true, NULL), POT_OK);
    pot_team_run(t.team, 0, keep_denormals, &t);
    assert_false(t.wrong);
    pot_team_free(t.team);
}

static void shares_cover_everything_once(void **state) {
    (void)state;
    for (uint32_t n = 0; n < 40; n++)
        for (int threads = 1; threads < 7; threads++) {
            uint32_t expected = 0, begin, end;
            for (int i = 0; i < threads; i++) {
                pot_team_share(&begin, &end, n, i, threads);
                assert_int_equal(begin, expected);
                assert_true(end >= begin && end - begin <= n / (uint32_t)threads + 1);
                expected = end;
            }
            assert_int_equal(expected, n);
        }
}

static void short_memory_is_told(void **state) {
    (void)state;
    for (uint64_t nth = 1; nth <= 3; nth++) {
        pot_team *team = NULL;
        pot_err err = {0};
        pot_mem_fail_at(nth);
        assert_int_equal(pot_team_create(&team, 3, true, &err), POT_NO_MEMORY);
        pot_mem_fail_at(0);
        assert_null(team);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_thread_takes_part_once),     cmocka_unit_test(nobody_passes_a_barrier_early),
        cmocka_unit_test(small_parts_stay_with_the_caller), cmocka_unit_test(denormals_are_kept_in_every_thread),
        cmocka_unit_test(shares_cover_everything_once),     cmocka_unit_test(short_memory_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
