/* The best cache that knows the future, against one that tries everything. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/mem.h"
#include "placement/cache_belady.h"

static pot_err err;
#define MUST(call)                                     \
    do {                                               \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)

static uint64_t seed;
static uint32_t below(uint32_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

enum { B_STEPS = 7, B_UNITS = 5, B_WANT = 2 };

/* The most hits from step `at` on with `held` (bits) in the cache: every choice is tried. */
static uint32_t best(const uint32_t *units, size_t at, uint32_t held, uint32_t slots, bool one_by_one) {
    uint32_t width = one_by_one ? 1 : B_WANT, want = 0, most = 0;
    if (at == B_STEPS * B_WANT) return 0;
    for (uint32_t i = 0; i < width; i++) want |= 1u << units[at + i];
    uint32_t hits = (uint32_t)__builtin_popcount(want & held), all = want | held;
    for (uint32_t keep = 0; keep < 1u << B_UNITS; keep++) {
        if ((keep & ~all) || (keep & want) != want || (uint32_t)__builtin_popcount(keep) > slots) continue;
        uint32_t more = best(units, at + width, keep, slots, one_by_one);
        if (more > most) most = more;
    }
    return hits + most;
}

static void belady_is_the_best_of_all(void **state) {
    (void)state;
    seed = 3;
    for (int round = 0; round < 40; round++) {
        uint32_t units[B_STEPS * B_WANT], per_step[B_STEPS], slots = 2 + below(2);
        size_t begin[B_STEPS + 1] = {0};
        for (uint32_t s = 0; s < B_STEPS; s++) {
            begin[s + 1] = begin[s] + B_WANT;
            units[2 * s] = below(B_UNITS);
            units[2 * s + 1] = (units[2 * s] + 1 + below(B_UNITS - 1)) % B_UNITS;
        }
        const pot_cache_trace trace = {B_STEPS, begin, units, B_UNITS};
        for (int one = 0; one < 2; one++) {
            uint64_t total;
            uint32_t sum = 0;
            MUST(pot_belady(&total, per_step, &trace, slots, one, &err));
            assert_int_equal(total, best(units, 0, 0, slots, one));
            for (uint32_t s = 0; s < B_STEPS; s++) sum += per_step[s];
            assert_int_equal(sum, total);
        }
    }
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    uint64_t total;
    const pot_cache_trace trace = {1, (const size_t[]){0, 1}, (const uint32_t[]){0}, 1};
    assert_int_equal(pot_belady(&total, NULL, &trace, 0, false, &err), POT_LIMIT);
    for (uint64_t n = 1; n <= 4; n++) {
        pot_mem_fail_at(n);
        assert_int_equal(pot_belady(&total, NULL, &trace, 1, false, &err), POT_NO_MEMORY);
    }
    pot_mem_fail_at(0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(belady_is_the_best_of_all),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
