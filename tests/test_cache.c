/* Cache policies: against a slow model of slots and claims, over random steps, scans and hints; rule by rule after that.  Who goes first:
 * test_cache_victims.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/mem.h"
#include "placement/cache.h"

static pot_err err;
#define MUST(call)                                     \
    do {                                               \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)

enum { MOST_GROUPS = 12, MOST_UNITS = 40 };

static uint64_t seed;
static uint32_t below(uint32_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

/* Equal groups of units of one slot. */
static pot_cache *make(pot_cache_policy policy, uint32_t groups, uint32_t units, uint32_t slots) {
    pot_cache *c;
    uint32_t group_units[MOST_GROUPS];
    for (uint32_t g = 0; g < groups; g++) group_units[g] = units;
    const pot_cache_options o = {.policy = policy, .n_groups = groups, .group_units = group_units, .slots = slots};
    MUST(pot_cache_create(&c, &o, &err));
    return c;
}

/* A whole step; returns its hits. */
static uint32_t step(pot_cache *c, uint32_t group, const uint32_t *units, uint32_t n, bool scan) {
    bool hit[MOST_UNITS];
    const uint64_t *evicted;
    uint32_t n_evicted, hits = pot_cache_begin(c, group, units, n, scan, hit);
    for (uint32_t i = 0; i < n; i++)
        while (!hit[i] && !pot_cache_admit(c, units[i], &evicted, &n_evicted))
            for (uint32_t k = 0; k < n; k++)
                if (k < i || hit[k]) pot_cache_release(c, units[k]);
    pot_cache_end(c);
    return hits;
}
#define WANT(c, group, ...) \
    step(c, group, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t), false)
#define SCAN(c, group, ...) \
    step(c, group, (const uint32_t[]){__VA_ARGS__}, sizeof((const uint32_t[]){__VA_ARGS__}) / sizeof(uint32_t), true)

static pot_cache_stats stats_of(const pot_cache *c) {
    pot_cache_stats s;
    pot_cache_get_stats(&s, c);
    return s;
}

/* ---- a model of slots and claims ----------------------------------------------------------------------------------- */

typedef struct model {
    pot_cache *cache;
    uint32_t groups, units[MOST_GROUPS], slots, used, largest;
    uint16_t size[MOST_GROUPS][MOST_UNITS];
    bool resident[MOST_GROUPS][MOST_UNITS], claimed[MOST_GROUPS][MOST_UNITS], ahead[MOST_GROUPS][MOST_UNITS];
    uint64_t trail; /* hash of all that was evicted */
} model;

static void model_open(model *m, pot_cache_policy policy, bool large) {
    uint16_t sizes[MOST_GROUPS * MOST_UNITS];
    float costs[MOST_GROUPS * MOST_UNITS];
    uint32_t n = 0, all = 0;
    memset(m, 0, sizeof *m);
    m->groups = 1 + below(MOST_GROUPS);
    for (uint32_t g = 0; g < m->groups; g++) {
        m->units[g] = g == 1 ? 0 : 1 + below(MOST_UNITS);
        for (uint32_t u = 0; u < m->units[g]; u++, n++) {
            m->size[g][u] = sizes[n] = (uint16_t)(large ? 1 + below(8) : 1);
            costs[n] = (float)(1 + below(5));
            all += sizes[n];
            if (sizes[n] > m->largest) m->largest = sizes[n];
        }
    }
    m->slots = m->largest + below(all);
    const pot_cache_options o = {.policy = policy,
                                 .n_groups = m->groups,
                                 .group_units = m->units,
                                 .unit_slots = sizes,
                                 .unit_cost = costs,
                                 .slots = m->slots};
    MUST(pot_cache_create(&m->cache, &o, &err));
}

static void model_evict(model *m, const uint64_t *evicted, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t g = (uint32_t)(evicted[i] >> 32), u = (uint32_t)evicted[i];
        assert_true(g < m->groups && u < m->units[g] && m->resident[g][u]);
        assert_false(m->claimed[g][u]);
        assert_false(m->ahead[g][u]);
        m->resident[g][u] = false;
        m->used -= m->size[g][u];
        m->trail = (m->trail ^ evicted[i]) * 0x100000001b3u;
    }
}

static void model_check(const model *m) {
    assert_true(m->used <= m->slots);
    assert_int_equal(stats_of(m->cache).slots_used, m->used);
    for (uint32_t g = 0; g < m->groups; g++)
        for (uint32_t u = 0; u < m->units[g]; u++)
            assert_int_equal(pot_cache_resident(m->cache, g, u), m->resident[g][u]);
}

static uint32_t model_held(const model *m) {
    uint32_t held = 0;
    for (uint32_t g = 0; g < m->groups; g++)
        for (uint32_t u = 0; u < m->units[g]; u++)
            if (m->claimed[g][u] || m->ahead[g][u]) held += m->size[g][u];
    return held;
}

/* Returns whether it was admitted. */
static bool model_admit(model *m, uint32_t group, uint32_t unit, bool scan) {
    const uint64_t *evicted;
    uint32_t n = 77, before = m->used, held = model_held(m);
    bool done = pot_cache_admit(m->cache, unit, &evicted, &n);
    if (!done) {
        assert_int_equal(n, 0);
        if (stats_of(m->cache).pinned_units == 0 && !scan) assert_true(m->slots - held < m->size[group][unit]);
        return false;
    }
    assert_true(m->slots - held >= m->size[group][unit]);
    if (before + m->size[group][unit] <= m->slots) assert_int_equal(n, 0); /* there was room */
    model_evict(m, evicted, n);
    m->resident[group][unit] = m->claimed[group][unit] = true;
    m->used += m->size[group][unit];
    return true;
}

static void model_hint(model *m, uint32_t current) {
    const uint64_t *evicted;
    uint32_t g = below(m->groups), n = 77;
    if (m->units[g] == 0) return;
    uint32_t u = below(m->units[g]);
    bool done = pot_cache_prefetch(m->cache, g, u, &evicted, &n);
    if (g == current || m->resident[g][u]) assert_false(done);
    if (!done) {
        assert_int_equal(n, 0);
        return;
    }
    for (uint32_t i = 0; i < n; i++) assert_int_not_equal(evicted[i] >> 32, current);
    model_evict(m, evicted, n);
    m->resident[g][u] = m->ahead[g][u] = true;
    m->used += m->size[g][u];
    if (below(5) == 0) { /* its bytes never came */
        pot_cache_drop(m->cache, g, u);
        m->resident[g][u] = m->ahead[g][u] = false;
        m->used -= m->size[g][u];
    }
}

static void model_release(model *m, uint32_t group, uint32_t unit) {
    pot_cache_release(m->cache, unit);
    m->claimed[group][unit] = false;
}

static void model_step(model *m, uint32_t *last, uint32_t group, bool scan, bool hints) {
    uint32_t wanted[MOST_UNITS], n = 0, hits = 0, most = scan ? 8 : 3;
    bool hit[MOST_UNITS];
    for (uint32_t u = 0; u < m->units[group]; u++)
        if (below(10) < most) wanted[n++] = u;
    for (uint32_t g = *last, first = 1; first || g != group; first = 0) { /* claims of groups that were passed end */
        g = (g + 1) % m->groups;
        memset(m->ahead[g], 0, sizeof m->ahead[g]);
    }
    *last = group;
    for (uint32_t i = 0; i < n; i++) hits += m->resident[group][wanted[i]];
    assert_int_equal(pot_cache_begin(m->cache, group, wanted, n, scan, hit), hits);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(hit[i], m->resident[group][wanted[i]]);
        m->claimed[group][wanted[i]] = hit[i];
    }
    for (uint32_t i = 0; i < n; i++) {
        if (hints && below(3) == 0) model_hint(m, group);
        if (hit[i] || model_admit(m, group, wanted[i], scan)) continue;
        for (uint32_t k = 0; k < n; k++)
            if (m->claimed[group][wanted[k]]) model_release(m, group, wanted[k]);
        assert_true(model_admit(m, group, wanted[i], scan)); /* nothing else is held by the step: it must go on */
    }
    model_check(m);
    pot_cache_end(m->cache);
    memset(m->claimed[group], 0, sizeof m->claimed[group]);
}

static uint64_t model_run(pot_cache_policy policy, uint64_t from, bool large) {
    model m;
    uint32_t last;
    seed = from;
    model_open(&m, policy, large);
    last = m.groups - 1;
    bool hints = below(2), scans = below(2);
    for (uint32_t token = 0; token < 40; token++) {
        bool scan = scans && below(8) == 0;
        for (uint32_t g = 0; g < m.groups; g++)
            if (m.units[g] && below(10)) model_step(&m, &last, g, scan, hints);
        if (token % 8 == 7) pot_cache_repin(m.cache);
        model_check(&m);
    }
    pot_cache_free(m.cache);
    return m.trail;
}

static void slots_and_claims_are_exact_for_every_policy(void **state) {
    (void)state;
    for (int p = 0; p < POT_CACHE_POLICIES; p++)
        for (uint64_t s = 0; s < 60; s++) (void)model_run((pot_cache_policy)p, 1000 * s + 1, s % 2);
}

static void runs_are_deterministic(void **state) {
    (void)state;
    for (int p = 0; p < POT_CACHE_POLICIES; p++)
        for (uint64_t s = 0; s < 10; s++) {
            uint64_t once = model_run((pot_cache_policy)p, s, s % 2);
            assert_int_equal(once, model_run((pot_cache_policy)p, s, s % 2));
        }
}

/* ---- rules --------------------------------------------------------------------------------------------------------- */

static void names_are_found(void **state) {
    (void)state;
    pot_cache_policy found;
    for (int p = 0; p < POT_CACHE_POLICIES; p++) {
        MUST(pot_cache_policy_find(&found, pot_cache_policy_name((pot_cache_policy)p), &err));
        assert_int_equal(found, p);
    }
    assert_int_equal(pot_cache_policy_find(&found, "fifo", &err), POT_USAGE);
    for (int p = 0; p < POT_CACHE_POLICIES; p++)
        assert_non_null(strstr(err.text, pot_cache_policy_name((pot_cache_policy)p)));
}

static void creation_refuses_with_the_reason(void **state) {
    (void)state;
    pot_cache *c = NULL;
    const uint32_t units[] = {2, 2};
    const uint16_t sizes[] = {1, 2, 3, 9};
    pot_cache_options o = {.n_groups = 2, .group_units = units, .unit_slots = sizes, .slots = 8};
    assert_int_equal(pot_cache_create(&c, &o, &err), POT_LIMIT);
    assert_string_equal(err.text,
                        "the cache: unit 1 of layer 1 takes 9 slots, but there are 8: a larger budget is needed");
    o.slots = 9;
    o.decay = 1.5;
    assert_int_equal(pot_cache_create(&c, &o, &err), POT_USAGE);
    const uint32_t many[] = {UINT32_MAX, UINT32_MAX};
    assert_int_equal(pot_cache_create(&c, &(pot_cache_options){.n_groups = 2, .group_units = many, .slots = 9}, &err),
                     POT_LIMIT);
    assert_null(c);
    o.decay = 0;
    for (uint64_t n = 1;; n++) {
        pot_mem_fail_at(n);
        pot_status status = pot_cache_create(&c, &o, &err);
        pot_mem_fail_at(0);
        if (status == POT_OK) break;
        assert_int_equal(status, POT_NO_MEMORY);
        assert_null(c);
        assert_true(n < 50);
    }
    pot_cache_free(c);
    pot_cache_free(NULL);
}

static void hits_are_claimed_before_anything_is_evicted(void **state) {
    (void)state;
    for (int p = 0; p < POT_CACHE_POLICIES; p++) {
        pot_cache *c = make((pot_cache_policy)p, 1, 8, 4);
        assert_int_equal(WANT(c, 0, 0, 1, 2, 3), 0);
        assert_int_equal(WANT(c, 0, 4, 5, 0, 1), 2); /* one by one, 4 and 5 would have thrown out 0 and 1 */
        pot_cache_free(c);
    }
}

static void one_slot_serves_a_step_of_many(void **state) {
    (void)state;
    for (int p = 0; p < POT_CACHE_POLICIES; p++) {
        pot_cache *c = make((pot_cache_policy)p, 2, 8, 1);
        for (int t = 0; t < 5; t++) {
            assert_true(WANT(c, 0, 0, 1, 2, 3, 4, 5, 6, 7) <= 1);
            assert_true(SCAN(c, 1, 0, 1, 2, 3, 4, 5, 6, 7) <= 1);
            assert_int_equal(stats_of(c).slots_used, 1);
            pot_cache_repin(c);
        }
        pot_cache_free(c);
    }
}

static void full_claims_refuse_and_change_nothing(void **state) {
    (void)state;
    pot_cache *c = make(POT_CACHE_LRU, 1, 4, 2);
    const uint32_t units[] = {0, 1, 2};
    const uint64_t *evicted;
    uint32_t n = 9;
    bool hit[3];
    (void)pot_cache_begin(c, 0, units, 3, false, hit);
    assert_true(pot_cache_admit(c, 0, &evicted, &n) && n == 0);
    assert_true(pot_cache_admit(c, 1, &evicted, &n) && n == 0);
    assert_false(pot_cache_admit(c, 2, &evicted, &n));
    assert_true(pot_cache_resident(c, 0, 0) && pot_cache_resident(c, 0, 1) && !pot_cache_resident(c, 0, 2));
    pot_cache_release(c, 1);
    assert_true(pot_cache_admit(c, 2, &evicted, &n));
    assert_int_equal(n, 1);
    assert_int_equal(evicted[0], 1);
    pot_cache_end(c);
    assert_int_equal(stats_of(c).evicted, 1);
    assert_int_equal(stats_of(c).admitted, 3);
    pot_cache_free(c);
}

/* Ten layers want one unit each, always the same, and there are six slots: a plain LRU never hits. */
static void cycle_longer_than_the_cache_still_hits(void **state) {
    (void)state;
    for (int p = 0; p < POT_CACHE_POLICIES; p++) {
        pot_cache *c = make((pot_cache_policy)p, 10, 2, 6);
        uint32_t hits = 0;
        for (int t = 0; t < 40; t++)
            for (uint32_t g = 0; g < 10; g++) {
                uint32_t h = WANT(c, g, 0);
                hits += t >= 20 ? h : 0;
            }
        /* The inflation of gdsf makes what comes next look old. */
        if (hits < (p == POT_CACHE_GDSF ? 40 : 100))
            fail_msg("%s: %u hits of 200", pot_cache_policy_name((pot_cache_policy)p), hits);
        pot_cache_free(c);
    }
}

static void decayed_counts_forget_and_counts_do_not(void **state) {
    (void)state;
    static const struct {
        pot_cache_policy policy;
        bool keeps_old;
    } cases[] = {{POT_CACHE_LFU, true}, {POT_CACHE_LFRU, true}, {POT_CACHE_LFU_DECAY, false}, {POT_CACHE_LRU, false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_cache *c = make(cases[i].policy, 1, 4, 2);
        for (int t = 0; t < 300; t++) (void)WANT(c, 0, 0);
        for (int t = 0; t < 120; t++) (void)WANT(c, 0, 1);
        (void)WANT(c, 0, 2);
        assert_int_equal(pot_cache_resident(c, 0, 0), cases[i].keeps_old);
        pot_cache_free(c);
    }
}

/* 0.96^20000 is no number any more. */
static void weights_do_not_overflow(void **state) {
    (void)state;
    pot_cache *c = make(POT_CACHE_LFU_DECAY, 1, 4, 3);
    for (int t = 0; t < 20000; t++) (void)WANT(c, 0, t % 3 == 2);
    for (int t = 0; t < 3; t++) (void)WANT(c, 0, 2);
    (void)WANT(c, 0, 3);
    assert_true(pot_cache_resident(c, 0, 0) && !pot_cache_resident(c, 0, 2)); /* 16 and 8 wants against 3 */
    pot_cache_free(c);
}

static void gdsf_weighs_cost_and_size(void **state) {
    (void)state;
    const uint32_t units[] = {4};
    const uint16_t sizes[] = {1, 4, 1, 4};
    const float costs[] = {1, 1, 8, 1};
    const pot_cache_options o = {.policy = POT_CACHE_GDSF,
                                 .n_groups = 1,
                                 .group_units = units,
                                 .unit_slots = sizes,
                                 .unit_cost = costs,
                                 .slots = 6};
    pot_cache *c;
    MUST(pot_cache_create(&c, &o, &err));
    (void)WANT(c, 0, 0, 1, 2);
    (void)WANT(c, 0, 3);
    assert_true(pot_cache_resident(c, 0, 0) && !pot_cache_resident(c, 0, 1) && pot_cache_resident(c, 0, 2));
    pot_cache_free(c);
}

static void slru_protects_what_came_twice(void **state) {
    (void)state;
    pot_cache *c = make(POT_CACHE_SLRU, 1, 16, 8);
    (void)WANT(c, 0, 0, 1);
    (void)WANT(c, 0, 0, 1);
    for (uint32_t u = 2; u < 14; u++) (void)WANT(c, 0, u); /* once each */
    assert_true(pot_cache_resident(c, 0, 0) && pot_cache_resident(c, 0, 1) && !pot_cache_resident(c, 0, 2));
    pot_cache_free(c);
}

/* ---- scans --------------------------------------------------------------------------------------------------------- */

static void scan_takes_little_of_what_was_earned(void **state) {
    (void)state;
    for (int p = 0; p < POT_CACHE_POLICIES; p++) {
        pot_cache *c = make((pot_cache_policy)p, 8, 32, 64);
        uint32_t all[32], lost = 0;
        for (uint32_t u = 0; u < 32; u++) all[u] = u;
        for (int t = 0; t < 10; t++)
            for (uint32_t g = 0; g < 8; g++) (void)WANT(c, g, 0, 1, 2, 3, 4, 5, 6, 7);
        uint64_t usage = pot_cache_usage(c, 0, 0), wanted = stats_of(c).wanted;
        for (uint32_t g = 0; g < 8; g++) (void)step(c, g, all, 32, true);
        for (uint32_t g = 0; g < 8; g++)
            for (uint32_t u = 0; u < 8; u++) lost += !pot_cache_resident(c, g, u);
        assert_int_equal(lost, 8); /* an eighth of the slots */
        assert_int_equal(pot_cache_usage(c, 0, 0), usage);
        assert_int_equal(pot_cache_usage(c, 0, 20), 0);
        assert_int_equal(stats_of(c).wanted, wanted);
        assert_int_equal(stats_of(c).scan_wanted, 8 * 32);
        /* What the scan left goes before all else. */
        for (uint32_t g = 0, missing; g < 8; g++) {
            missing = 0;
            for (uint32_t u = 0; u < 8; u++) missing += !pot_cache_resident(c, g, u);
            assert_int_equal(WANT(c, g, 0, 1, 2, 3, 4, 5, 6, 7), 8 - missing);
        }
        for (uint32_t g = 0; g < 8; g++) assert_int_equal(WANT(c, g, 0, 1, 2, 3, 4, 5, 6, 7), 8);
        pot_cache_free(c);
    }
}

static void scan_fills_free_slots(void **state) {
    (void)state;
    pot_cache *c = make(POT_CACHE_LFU_DECAY, 2, 16, 24);
    uint32_t all[16];
    for (uint32_t u = 0; u < 16; u++) all[u] = u;
    (void)step(c, 0, all, 16, true);
    (void)step(c, 1, all, 16, true);
    assert_int_equal(stats_of(c).slots_used, 24);
    assert_int_equal(WANT(c, 0, 14, 15), 2); /* and is a hit for whoever wants it */
    pot_cache_free(c);
}

/* ---- ahead of time ------------------------------------------------------------------------------------------------- */

static void prefetch_is_guarded(void **state) {
    (void)state;
    pot_cache *c = make(POT_CACHE_LFU_DECAY, 3, 8, 8);
    const uint64_t *evicted;
    uint32_t n;
    bool hit[4];
    for (int t = 0; t < 20; t++)
        for (uint32_t g = 0; g < 2; g++) (void)WANT(c, g, 0, 1, 2, 3);
    /* All slots are worth more than a hint. */
    assert_false(pot_cache_prefetch(c, 1, 7, &evicted, &n));
    for (int t = 0; t < 150; t++) (void)WANT(c, 1, 0, 1, 2, 3);
    (void)pot_cache_begin(c, 0, (const uint32_t[]){0}, 1, false, hit);
    assert_false(pot_cache_prefetch(c, 0, 7, &evicted, &n)); /* the group is in a step */
    assert_false(pot_cache_prefetch(c, 1, 0, &evicted, &n)); /* is there */
    assert_false(pot_cache_prefetch(c, 1, 7, &evicted, &n)); /* what has faded is of the group in a step */
    pot_cache_end(c);
    assert_true(pot_cache_prefetch(c, 1, 7, &evicted, &n));
    assert_int_equal(n, 1);
    assert_int_equal(evicted[0] >> 32, 0);
    assert_true(pot_cache_prefetch(c, 1, 6, &evicted, &n));
    assert_false(pot_cache_prefetch(c, 1, 5, &evicted, &n)); /* a quarter of the slots is read ahead */
    assert_true(pot_cache_resident(c, 1, 7));
    assert_int_equal(WANT(c, 1, 7, 0, 1, 2), 4);
    assert_int_equal(stats_of(c).prefetched, 2);
    assert_int_equal(stats_of(c).prefetch_used, 1);
    pot_cache_free(c);
}

static void prefetch_is_claimed_until_its_group_was_passed(void **state) {
    (void)state;
    for (int passed = 0; passed < 2; passed++) {
        pot_cache *c = make(POT_CACHE_LRU, 4, 4, 4);
        const uint64_t *evicted;
        uint32_t n;
        assert_true(pot_cache_prefetch(c, 2, 3, &evicted, &n));
        (void)WANT(c, 0, 0, 1, 2);
        (void)WANT(c, 1, 0, 1, 2, 3);
        assert_true(pot_cache_resident(c, 2, 3));
        if (passed) { /* group 2 wants nothing of this machine; the token goes on */
            (void)WANT(c, 3, 0, 1, 2, 3);
            assert_false(pot_cache_resident(c, 2, 3));
        } else {
            assert_int_equal(WANT(c, 2, 3), 1);
        }
        pot_cache_free(c);
    }
}

/* Whatever is pinned or read ahead, the largest unit finds room as soon as the step has nothing else. */
static void largest_unit_always_finds_room(void **state) {
    (void)state;
    const uint64_t *evicted;
    uint32_t n;
    pot_cache *c;
    const uint32_t eight[] = {1, 7}, units[] = {40};
    const uint16_t seven_of_eight[] = {7, 1, 1, 1, 1, 1, 1, 1};
    uint16_t sizes[40];
    const pot_cache_options small = {.n_groups = 2, .group_units = eight, .unit_slots = seven_of_eight, .slots = 8};
    MUST(pot_cache_create(&c, &small, &err));
    assert_true(pot_cache_prefetch(c, 1, 0, &evicted, &n));
    assert_false(pot_cache_prefetch(c, 1, 1, &evicted, &n));
    assert_int_equal(WANT(c, 0, 0), 0);
    assert_true(pot_cache_resident(c, 0, 0) && pot_cache_resident(c, 1, 0));
    pot_cache_free(c);
    for (uint16_t largest = 4; largest <= 32; largest += 28) {
        for (uint32_t u = 0; u < 40; u++) sizes[u] = u == 39 ? largest : 1;
        const pot_cache_options o = {.n_groups = 1, .group_units = units, .unit_slots = sizes, .slots = 32};
        MUST(pot_cache_create(&c, &o, &err));
        pot_cache_set_usage(c, 0, 0, 100);
        (void)SCAN(c, 0, 0);
        pot_cache_repin(c);
        assert_int_equal(stats_of(c).pinned_units, largest == 4); /* a pin of what a scan brought */
        for (uint32_t u = 1; u < 39; u++) (void)WANT(c, 0, u);
        bool hit;
        (void)pot_cache_begin(c, 0, (const uint32_t[]){39}, 1, true, &hit);
        assert_true(pot_cache_admit(c, 39, &evicted, &n));
        pot_cache_end(c);
        pot_cache_free(c);
    }
}

/* ---- what is remembered -------------------------------------------------------------------------------------------- */

static void usage_warms_the_policy(void **state) {
    (void)state;
    static const pot_cache_policy policies[] = {POT_CACHE_LFU_DECAY, POT_CACHE_LFU, POT_CACHE_LFRU};
    for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
        pot_cache *c = make(policies[p], 2, 4, 3);
        pot_cache_set_usage(c, 0, 1, 500);
        pot_cache_set_usage(c, 1, 2, 400);
        pot_cache_set_usage(c, 1, 3, 10);
        assert_true(pot_cache_fill(c, 0, 1) && pot_cache_fill(c, 1, 2) && pot_cache_fill(c, 1, 3));
        assert_false(pot_cache_fill(c, 0, 0)); /* no room */
        assert_false(pot_cache_fill(c, 0, 1)); /* is there */
        (void)WANT(c, 0, 0);
        assert_false(pot_cache_resident(c, 1, 3)); /* the coldest */
        assert_int_equal(WANT(c, 0, 1), 1);
        assert_int_equal(pot_cache_usage(c, 0, 1), 501);
        pot_cache_free(c);
    }
}

static void pin_moves_only_by_the_margin(void **state) {
    (void)state;
    pot_cache *c = make(POT_CACHE_LFU_DECAY, 1, 64, 32); /* room for one pin */
    pot_cache_set_usage(c, 0, 0, 100);
    for (uint32_t u = 0; u < 32; u++) assert_true(pot_cache_fill(c, 0, u));
    pot_cache_repin(c);
    assert_int_equal(stats_of(c).pinned_units, 1);
    for (int t = 0; t < 129; t++) (void)WANT(c, 0, 1);
    pot_cache_repin(c); /* 129 is no more than 100 * 1.25 + 4 */
    for (uint32_t t = 0; t < 400; t++) (void)WANT(c, 0, 2 + t % 62);
    assert_true(pot_cache_resident(c, 0, 0)); /* nobody has wanted it */
    while (pot_cache_usage(c, 0, 1) < 130) (void)WANT(c, 0, 1);
    pot_cache_repin(c);
    assert_int_equal(stats_of(c).pinned_units, 1);
    for (uint32_t t = 0; t < 400; t++) (void)WANT(c, 0, 2 + t % 62);
    assert_true(!pot_cache_resident(c, 0, 0) && pot_cache_resident(c, 0, 1));
    pot_cache_free(c);
}

static void cold_units_and_other_policies_have_no_pins(void **state) {
    (void)state;
    for (int p = 0; p < POT_CACHE_POLICIES; p++) {
        pot_cache *c = make((pot_cache_policy)p, 1, 40, 40);
        for (int t = 0; t < 4; t++) (void)WANT(c, 0, 0, 1);
        pot_cache_repin(c); /* 4 wants beat nothing by the margin */
        assert_int_equal(stats_of(c).pinned_units, 0);
        (void)WANT(c, 0, 0);
        pot_cache_repin(c);
        assert_int_equal(stats_of(c).pinned_units, p == POT_CACHE_LFU_DECAY);
        pot_cache_drop(c, 0, 0);
        assert_int_equal(stats_of(c).pinned_units, 0);
        pot_cache_free(c);
    }
}

static void dropped_units_are_gone(void **state) {
    (void)state;
    pot_cache *c = make(POT_CACHE_LFU_DECAY, 1, 4, 2);
    const uint64_t *evicted;
    uint32_t n;
    bool hit[2];
    (void)pot_cache_begin(c, 0, (const uint32_t[]){0, 1}, 2, false, hit);
    assert_true(pot_cache_admit(c, 0, &evicted, &n) && pot_cache_admit(c, 1, &evicted, &n));
    for (int i = 0; i < 6; i++) {
        pot_cache_drop(c, 0, 1); /* within the step, claimed */
        assert_true(pot_cache_admit(c, 1, &evicted, &n));
    }
    pot_cache_drop(c, 0, 1);
    pot_cache_drop(c, 0, 3); /* not there: nothing */
    assert_int_equal(stats_of(c).slots_used, 1);
    assert_true(pot_cache_admit(c, 1, &evicted, &n)); /* once more */
    assert_int_equal(n, 0);
    pot_cache_end(c);
    assert_int_equal(WANT(c, 0, 0, 1), 2);
    pot_cache_free(c);
    c = make(POT_CACHE_LRU, 2, 4, 4);
    for (int i = 0; i < 100; i++) { /* more often than there are units */
        assert_true(pot_cache_prefetch(c, 1, 0, &evicted, &n));
        pot_cache_drop(c, 1, 0);
    }
    pot_cache_free(c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(slots_and_claims_are_exact_for_every_policy),
        cmocka_unit_test(runs_are_deterministic),
        cmocka_unit_test(names_are_found),
        cmocka_unit_test(creation_refuses_with_the_reason),
        cmocka_unit_test(hits_are_claimed_before_anything_is_evicted),
        cmocka_unit_test(one_slot_serves_a_step_of_many),
        cmocka_unit_test(full_claims_refuse_and_change_nothing),
        cmocka_unit_test(cycle_longer_than_the_cache_still_hits),
        cmocka_unit_test(decayed_counts_forget_and_counts_do_not),
        cmocka_unit_test(weights_do_not_overflow),
        cmocka_unit_test(gdsf_weighs_cost_and_size),
        cmocka_unit_test(slru_protects_what_came_twice),
        cmocka_unit_test(scan_takes_little_of_what_was_earned),
        cmocka_unit_test(scan_fills_free_slots),
        cmocka_unit_test(prefetch_is_guarded),
        cmocka_unit_test(prefetch_is_claimed_until_its_group_was_passed),
        cmocka_unit_test(largest_unit_always_finds_room),
        cmocka_unit_test(usage_warms_the_policy),
        cmocka_unit_test(pin_moves_only_by_the_margin),
        cmocka_unit_test(cold_units_and_other_policies_have_no_pins),
        cmocka_unit_test(dropped_units_are_gone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
