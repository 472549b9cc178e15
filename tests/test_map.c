/* The map of experts: every policy over many shapes and numbers of workers, the builder's refusals, equality and references. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>

#include "common/mem.h"
#include "placement/map.h"

/* Calls write their sentence here. */
static pot_err err;
#define MUST(call)                                     \
    do {                                               \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)

enum { MOST_LAYERS = 4 };

typedef struct shape_case {
    const char *name;
    pot_layer_shape layers[MOST_LAYERS];
    uint32_t n;
} shape_case;

/* n_routed, routed_chunks, common_chunks */
static const shape_case shapes[] = {
    {"one chunk", {{8, 1, 1}}, 1},
    {"five chunks", {{7, 5, 5}}, 1},
    {"256 experts", {{0, 0, 48}, {256, 8, 8}}, 2},
    {"160 experts", {{160, 6, 3}}, 1},
    {"132 experts, no common one", {{132, 8, 0}}, 1},
    {"60 experts", {{60, 6, 22}}, 1},
    {"dense layers only", {{0, 0, 1}, {0, 0, 40}, {0, 0, 7}}, 3},
    {"a layer without experts", {{0, 0, 0}, {3, 2, 0}, {0, 0, 0}}, 3},
    {"one expert", {{1, 1, 0}}, 1},
    {"many chunks", {{2, 4096, 4095}}, 1},
};
enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };
static const char *const policies[] = {"contiguous", "round-robin", "sliced",
                                       "random:0",   "random:7",    "random:18446744073709551615"};
enum { N_POLICIES = sizeof policies / sizeof policies[0] };

typedef void check(const pot_map *map, const shape_case *shape, const char *policy);

static void for_all(check *run, const char *only) {
    for (size_t p = 0; p < N_POLICIES; p++) {
        if (only && strncmp(policies[p], only, strlen(only)) != 0) continue;
        for (size_t s = 0; s < N_SHAPES; s++)
            for (uint32_t workers = 1; workers <= POT_MAX_WORKERS; workers++) {
                pot_map *map;
                MUST(pot_map_make(&map, policies[p], 3, workers, shapes[s].layers, shapes[s].n, &err));
                run(map, &shapes[s], policies[p]);
                pot_map_free(map);
            }
    }
}

/* ---- policies -------------------------------------------------------------------------------------------------------- */

static void is_complete(const pot_map *map, const shape_case *shape, const char *policy) {
    uint32_t workers = pot_map_workers(map);
    uint64_t known = workers == 64 ? UINT64_MAX : ((uint64_t)1 << workers) - 1;
    assert_int_equal(pot_map_epoch(map), 3);
    assert_int_equal(pot_map_layers(map), shape->n);
    for (uint32_t layer = 0; layer < shape->n; layer++) {
        assert_memory_equal(pot_map_layer_shape(map, layer), &shape->layers[layer], sizeof(pot_layer_shape));
        for (uint32_t e = 0; e < pot_layer_experts(&shape->layers[layer]); e++) {
            uint32_t n, next = 0;
            const pot_map_range *r = pot_map_ranges(map, layer, e, &n);
            for (uint32_t i = 0; i < n; next = r[i++].chunk_end)
                if (r[i].chunk_begin != next || r[i].chunk_end <= next || !r[i].owners || (r[i].owners & ~known) ||
                    r[i].first >= workers || !(r[i].owners >> r[i].first & 1))
                    fail_msg("%s, %s, %u workers: layer %u expert %u range %u is %u-%u of %llx, first %u", policy,
                             shape->name, workers, layer, e, i, r[i].chunk_begin, r[i].chunk_end,
                             (unsigned long long)r[i].owners, r[i].first);
            if (next != pot_layer_expert_chunks(&shape->layers[layer], e))
                fail_msg("%s, %s, %u workers: layer %u expert %u ends at chunk %u", policy, shape->name, workers, layer,
                         e, next);
        }
    }
}

static void policy_is_complete_with_owners_in_range(void **state) {
    (void)state;
    for_all(is_complete, NULL);
}

static void is_repeated(const pot_map *map, const shape_case *shape, const char *policy) {
    pot_map *again;
    MUST(pot_map_make(&again, policy, 99, pot_map_workers(map), shape->layers, shape->n, &err));
    if (!pot_map_equal(map, again)) fail_msg("%s, %s: another map the second time", policy, shape->name);
    pot_map_free(again);
}

static void policy_is_deterministic(void **state) {
    (void)state;
    for_all(is_repeated, NULL);
}

/* Chunks of the routed expert e (of all of them when e is UINT32_MAX) of a layer by worker. */
static void count_chunks(uint32_t counts[POT_MAX_WORKERS], const pot_map *map, uint32_t layer, uint32_t expert) {
    memset(counts, 0, POT_MAX_WORKERS * sizeof *counts);
    for (uint32_t e = 0; e < pot_map_layer_shape(map, layer)->n_routed; e++) {
        uint32_t n;
        const pot_map_range *r = pot_map_ranges(map, layer, e, &n);
        for (uint32_t i = 0; i < n && (expert == UINT32_MAX || expert == e); i++)
            counts[r[i].first] += (uint32_t)(r[i].chunk_end - r[i].chunk_begin);
    }
}

static uint32_t spread(const uint32_t *counts, uint32_t n) {
    uint32_t least = UINT32_MAX, most = 0;
    for (uint32_t w = 0; w < n; w++) {
        if (counts[w] < least) least = counts[w];
        if (counts[w] > most) most = counts[w];
    }
    return most - least;
}

static void is_even(const pot_map *map, const shape_case *shape, const char *policy) {
    uint32_t counts[POT_MAX_WORKERS], workers = pot_map_workers(map);
    for (uint32_t layer = 0; layer < shape->n; layer++) {
        for (uint32_t e = 0; e < shape->layers[layer].n_routed; e++) {
            count_chunks(counts, map, layer, e);
            if (spread(counts, workers) > 1)
                fail_msg("%s, %s: expert %u over %u workers differs by %u chunks", policy, shape->name, e, workers,
                         spread(counts, workers));
        }
        /* The turning start evens out what single experts leave over: never more than one expert's worth. */
        count_chunks(counts, map, layer, UINT32_MAX);
        if (spread(counts, workers) > shape->layers[layer].routed_chunks)
            fail_msg("%s, %s: layer %u over %u workers differs by %u chunks", policy, shape->name, layer, workers,
                     spread(counts, workers));
    }
}

static void sliced_spreads_each_expert_evenly(void **state) {
    (void)state;
    for_all(is_even, "sliced");
}

static void has_whole_experts(const pot_map *map, const shape_case *shape, const char *policy) {
    uint32_t counts[POT_MAX_WORKERS], workers = pot_map_workers(map);
    for (uint32_t layer = 0; layer < shape->n; layer++) {
        uint32_t n_routed = shape->layers[layer].n_routed, previous = 0, n;
        for (uint32_t e = 0; e < n_routed; e++) {
            const pot_map_range *r = pot_map_ranges(map, layer, e, &n);
            assert_int_equal(n, 1);
            if (policy[0] == 'r') assert_int_equal(r->first, e % workers);
            if (policy[0] == 'c' && r->first < previous)
                fail_msg("%s, %s: expert %u goes back", policy, shape->name, e);
            previous = r->first;
        }
        count_chunks(counts, map, layer, UINT32_MAX);
        if (n_routed && spread(counts, workers) > shape->layers[layer].routed_chunks)
            fail_msg("%s, %s, %u workers: uneven by more than an expert", policy, shape->name, workers);
    }
}

static void contiguous_and_round_robin_give_whole_experts_evenly(void **state) {
    (void)state;
    for_all(has_whole_experts, "contiguous");
    for_all(has_whole_experts, "round-robin");
}

static void has_common_at_home(const pot_map *map, const shape_case *shape, const char *policy) {
    for (uint32_t layer = 0; layer < shape->n; layer++) {
        uint32_t n;
        const pot_layer_shape *l = &shape->layers[layer];
        if (!l->common_chunks) continue;
        const pot_map_range *r = pot_map_ranges(map, layer, l->n_routed, &n);
        if (n != 1 || r->owners != 1)
            fail_msg("%s, %s: the common expert of layer %u is not worker 0's alone", policy, shape->name, layer);
    }
}

static void common_expert_stays_with_the_coordinator(void **state) {
    (void)state;
    for (int i = 0; i < 3; i++) for_all(has_common_at_home, policies[i]);
}

static void random_has_replicas_cuts_and_seeds(void **state) {
    (void)state;
    static const pot_layer_shape layers[] = {{0, 0, 48}, {256, 8, 8}};
    for (uint32_t workers = 2; workers <= POT_MAX_WORKERS; workers++) {
        pot_map *a, *b;
        uint32_t replicas = 0, cuts = 0;
        uint64_t used = 0;
        MUST(pot_map_make(&a, "random:1", 1, workers, layers, 2, &err));
        MUST(pot_map_make(&b, "random:2", 1, workers, layers, 2, &err));
        assert_false(pot_map_equal(a, b));
        for (uint32_t e = 0; e < 257; e++) {
            uint32_t n;
            const pot_map_range *r = pot_map_ranges(a, 1, e, &n);
            cuts += n - 1;
            for (uint32_t i = 0; i < n; i++) {
                used |= r[i].owners;
                replicas += (r[i].owners & (r[i].owners - 1)) != 0;
            }
        }
        assert_true(replicas > 30 && cuts > 100);
        assert_int_equal(__builtin_popcountll(used), workers);
        pot_map_free(a);
        pot_map_free(b);
    }
}

static void policy_is_refused_with_the_known_ones(void **state) {
    (void)state;
    static const char *const wrong[] = {"",
                                        "Sliced",
                                        "contiguous ",
                                        "random",
                                        "random:",
                                        "random:-1",
                                        "random: 1",
                                        "random:+1",
                                        "random:1x",
                                        "random:0x1",
                                        "random:18446744073709551616"};
    static const pot_layer_shape layer = {4, 2, 2};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        pot_map *map = NULL;
        char want[128];
        snprintf(want, sizeof want, "map %s is unknown: contiguous, round-robin, sliced or random:SEED", wrong[i]);
        assert_int_equal(pot_map_make(&map, wrong[i], 1, 2, &layer, 1, &err), POT_USAGE);
        assert_string_equal(err.text, want);
        assert_null(map);
    }
}

/* ---- building -------------------------------------------------------------------------------------------------------- */

static const pot_layer_shape small[] = {{0, 0, 3}, {2, 4, 1}};

static void builder_refuses_what_cannot_be_placed(void **state) {
    (void)state;
    static const struct {
        uint32_t n_workers;
        pot_layer_shape shape;
        pot_status status;
        const char *text;
    } cases[] = {
        {0, {2, 4, 1}, POT_LIMIT, "a map for 0 workers was asked for, possible are 1 to 64"},
        {65, {2, 4, 1}, POT_LIMIT, "a map for 65 workers was asked for, possible are 1 to 64"},
        {2, {2, 0, 1}, POT_FORMAT, "map: layer 0 has 2 experts without chunks"},
        {2, {2, 4097, 1}, POT_LIMIT, "map: layer 0 has experts of 4097 and 1 chunks, possible are 4096"},
        {2, {2, 4, 65537}, POT_LIMIT, "map: layer 0 has experts of 4 and 65537 chunks, possible are 4096"},
        {2, {UINT32_MAX, 4, 0}, POT_LIMIT, "map: layers 0 to 0 have too many experts"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_map_builder *b = NULL;
        assert_int_equal(pot_map_builder_create(&b, 1, cases[i].n_workers, &cases[i].shape, 1, &err), cases[i].status);
        assert_string_equal(err.text, cases[i].text);
        assert_null(b);
    }
}

static void builder_refuses_ranges_outside_the_shape(void **state) {
    (void)state;
    static const struct {
        uint32_t layer, expert, begin, end;
        uint64_t owners;
        uint32_t first;
        const char *text;
    } cases[] = {
        {2, 0, 0, 1, 1, 0, "map: layer 2 has no expert 0"},
        {0, 1, 0, 1, 1, 0, "map: layer 0 has no expert 1"},
        {1, 3, 0, 1, 1, 0, "map: layer 1 has no expert 3"},
        {UINT32_MAX, UINT32_MAX, 0, 1, 1, 0, "map: layer 4294967295 has no expert 4294967295"},
        {1, 0, 2, 2, 1, 0, "map: layer 1 expert 0: chunks 2 to 2 of 4"},
        {1, 0, 3, 2, 1, 0, "map: layer 1 expert 0: chunks 3 to 2 of 4"},
        {1, 0, 0, 5, 1, 0, "map: layer 1 expert 0: chunks 0 to 5 of 4"},
        {1, 2, 0, 2, 1, 0, "map: layer 1 expert 2: chunks 0 to 2 of 1"},
        {1, 0, 0, 65537, 1, 0, "map: layer 1 expert 0: chunks 0 to 65537 of 4"},
        {1, 0, 0, 4, 0, 0, "map: layer 1 expert 0: owners 0 with worker 0 first, there are 3 workers"},
        {1, 0, 0, 4, 8, 3, "map: layer 1 expert 0: owners 8 with worker 3 first, there are 3 workers"},
        {1, 0, 0, 4, 9, 0, "map: layer 1 expert 0: owners 9 with worker 0 first, there are 3 workers"},
        {1, 0, 0, 4, 6, 0, "map: layer 1 expert 0: owners 6 with worker 0 first, there are 3 workers"},
        {1, 0, 0, 4, 1, 64, "map: layer 1 expert 0: owners 1 with worker 64 first, there are 3 workers"},
    };
    pot_map_builder *b;
    MUST(pot_map_builder_create(&b, 1, 3, small, 2, &err));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(pot_map_builder_add(b, cases[i].layer, cases[i].expert, cases[i].begin, cases[i].end,
                                             cases[i].owners, cases[i].first, &err),
                         POT_FORMAT);
        assert_string_equal(err.text, cases[i].text);
    }
    pot_map_builder_free(b);
}

typedef struct range_row {
    uint32_t layer, expert, begin, end;
} range_row;

static void builder_refuses_gaps_and_overlaps(void **state) {
    (void)state;
    static const struct {
        range_row rows[8];
        uint32_t n;
        const char *text;
    } cases[] = {
        {{{0}}, 0, "map: layer 0 expert 0: chunk 0 is missing"},
        {{{0, 0, 0, 2}, {1, 0, 0, 4}, {1, 1, 0, 4}, {1, 2, 0, 1}}, 4, "map: layer 0 expert 0: chunk 2 is missing"},
        {{{0, 0, 1, 3}, {1, 0, 0, 4}, {1, 1, 0, 4}, {1, 2, 0, 1}}, 4, "map: layer 0 expert 0: chunk 0 is missing"},
        {{{0, 0, 0, 3}, {1, 0, 3, 4}, {1, 0, 0, 2}, {1, 1, 0, 4}, {1, 2, 0, 1}},
         5,
         "map: layer 1 expert 0: chunk 2 is missing"},
        {{{0, 0, 0, 3}, {1, 0, 0, 4}, {1, 2, 0, 1}}, 3, "map: layer 1 expert 1: chunk 0 is missing"},
        {{{0, 0, 0, 3}, {1, 0, 0, 4}, {1, 1, 0, 4}}, 3, "map: layer 1 expert 2: chunk 0 is missing"},
        {{{0, 0, 0, 3}, {1, 0, 2, 4}, {1, 0, 0, 3}, {1, 1, 0, 4}, {1, 2, 0, 1}},
         5,
         "map: layer 1 expert 0: chunk 2 is there twice"},
        {{{0, 0, 0, 3}, {0, 0, 0, 3}, {1, 0, 0, 4}, {1, 1, 0, 4}, {1, 2, 0, 1}},
         5,
         "map: layer 0 expert 0: chunk 0 is there twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_map_builder *b;
        pot_map *map = NULL;
        MUST(pot_map_builder_create(&b, 1, 2, small, 2, &err));
        for (uint32_t k = 0; k < cases[i].n; k++) {
            const range_row *r = &cases[i].rows[k];
            MUST(pot_map_builder_add(b, r->layer, r->expert, r->begin, r->end, 3, 1, &err));
        }
        assert_int_equal(pot_map_builder_finish(&map, b, &err), POT_FORMAT);
        assert_string_equal(err.text, cases[i].text);
        assert_null(map);
    }
}

static void builder_takes_no_more_ranges_than_chunks(void **state) {
    (void)state;
    pot_map_builder *b;
    MUST(pot_map_builder_create(&b, 1, 2, small, 2, &err));
    for (int i = 0; i < 3 + 2 * 4 + 1; i++) MUST(pot_map_builder_add(b, 1, 0, 0, 1, 1, 0, &err));
    assert_int_equal(pot_map_builder_add(b, 1, 0, 1, 2, 1, 0, &err), POT_FORMAT);
    assert_string_equal(err.text, "map: more ranges than the 12 chunks that there are");
    pot_map_builder_free(b);
    pot_map_builder_free(NULL);
}

static void builder_survives_each_failing_allocation(void **state) {
    (void)state;
    for (uint64_t nth = 1;; nth++) {
        pot_map *map = NULL;
        pot_mem_fail_at(nth);
        pot_status s = pot_map_make(&map, "sliced", 1, 5, small, 2, NULL);
        pot_mem_fail_at(0);
        if (s == POT_OK) {
            assert_true(nth > 6);
            pot_map_free(map);
            return;
        }
        assert_int_equal(s, POT_NO_MEMORY);
        assert_null(map);
    }
}

/* ---- reading --------------------------------------------------------------------------------------------------------- */

static pot_map *build(uint64_t epoch, uint64_t owners, uint32_t first, uint32_t cut) {
    pot_map_builder *b;
    pot_map *map;
    MUST(pot_map_builder_create(&b, epoch, 3, small, 2, &err));
    MUST(pot_map_builder_add(b, 1, 2, 0, 1, 4, 2, &err)); /* any order */
    MUST(pot_map_builder_add(b, 1, 0, cut, 4, owners, first, &err));
    MUST(pot_map_builder_add(b, 1, 0, 0, cut, 1, 0, &err));
    MUST(pot_map_builder_add(b, 1, 1, 0, 4, 2, 1, &err));
    MUST(pot_map_builder_add(b, 0, 0, 0, 3, 1, 0, &err));
    MUST(pot_map_builder_finish(&map, b, &err));
    return map;
}

static void map_answers_who_owns_what(void **state) {
    (void)state;
    pot_map *map = build(1, 7, 1, 2);
    static const struct {
        uint32_t worker, layer, expert, begin, end;
        bool owns;
    } cases[] = {
        {0, 1, 0, 0, 4, true},  {0, 1, 0, 1, 3, true},  {1, 1, 0, 0, 4, false},  {1, 1, 0, 2, 4, true},
        {1, 1, 0, 1, 3, false}, {2, 1, 0, 3, 4, true},  {1, 1, 1, 0, 4, true},   {0, 1, 1, 0, 1, false},
        {2, 1, 2, 0, 1, true},  {0, 0, 0, 0, 3, true},  {0, 0, 0, 0, 4, false},  {0, 0, 0, 2, 2, false},
        {0, 0, 0, 3, 2, false}, {3, 1, 0, 2, 4, false}, {64, 1, 0, 2, 4, false}, {0, 2, 0, 0, 1, false},
        {0, 1, 3, 0, 1, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (pot_map_owns(map, cases[i].worker, cases[i].layer, cases[i].expert, cases[i].begin, cases[i].end) !=
            cases[i].owns)
            fail_msg("case %zu", i);
    uint32_t n = 7;
    assert_null(pot_map_ranges(map, 2, 0, &n));
    assert_int_equal(n, 0);
    n = 7;
    assert_null(pot_map_ranges(map, 1, 3, &n));
    assert_int_equal(n, 0);
    assert_null(pot_map_layer_shape(map, 2));
    pot_map_free(map);
}

static void equality_ignores_the_epoch_and_nothing_else(void **state) {
    (void)state;
    pot_map *map = build(1, 3, 1, 2), *others[] = {build(1, 7, 1, 2), build(1, 3, 0, 2), build(1, 3, 1, 3)},
            *same = build(2, 3, 1, 2);
    assert_true(pot_map_equal(map, same));
    assert_int_equal(pot_map_epoch(same), 2);
    for (int i = 0; i < 3; i++) {
        assert_false(pot_map_equal(map, others[i]));
        pot_map_free(others[i]);
    }
    pot_map *two, *three, *shorter, *wider;
    static const pot_layer_shape dense = {0, 0, 3}, wide = {0, 0, 4};
    MUST(pot_map_make(&two, "contiguous", 1, 2, &dense, 1, &err));
    MUST(pot_map_make(&three, "contiguous", 1, 3, &dense, 1, &err));
    MUST(pot_map_make(&wider, "contiguous", 1, 2, &wide, 1, &err));
    MUST(pot_map_make(&shorter, "contiguous", 1, 2, &dense, 0, &err));
    assert_false(pot_map_equal(two, three));
    assert_false(pot_map_equal(two, wider));
    assert_false(pot_map_equal(two, shorter));
    pot_map_free(two);
    pot_map_free(three);
    pot_map_free(wider);
    pot_map_free(shorter);
    pot_map_free(map);
    pot_map_free(same);
}

static void *take_and_drop(void *argument) {
    for (int i = 0; i < 10000; i++) {
        pot_map *map = pot_map_ref(argument);
        if (pot_map_epoch(map) != 5) return map;
        pot_map_free(map);
    }
    return NULL;
}

/* The sanitizers notice when a reference too few or too many is dropped. */
static void references_keep_a_map_over_threads(void **state) {
    (void)state;
    pthread_t threads[4];
    pot_map *map = build(5, 3, 1, 2);
    assert_ptr_equal(pot_map_ref(map), map);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&threads[i], NULL, take_and_drop, map), 0);
    for (int i = 0; i < 4; i++) {
        void *wrong;
        pthread_join(threads[i], &wrong);
        assert_null(wrong);
    }
    pot_map_free(map);
    assert_int_equal(pot_map_epoch(map), 5);
    pot_map_free(map);
    pot_map_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(policy_is_complete_with_owners_in_range),
        cmocka_unit_test(policy_is_deterministic),
        cmocka_unit_test(sliced_spreads_each_expert_evenly),
        cmocka_unit_test(contiguous_and_round_robin_give_whole_experts_evenly),
        cmocka_unit_test(common_expert_stays_with_the_coordinator),
        cmocka_unit_test(random_has_replicas_cuts_and_seeds),
        cmocka_unit_test(policy_is_refused_with_the_known_ones),
        cmocka_unit_test(builder_refuses_what_cannot_be_placed),
        cmocka_unit_test(builder_refuses_ranges_outside_the_shape),
        cmocka_unit_test(builder_refuses_gaps_and_overlaps),
        cmocka_unit_test(builder_takes_no_more_ranges_than_chunks),
        cmocka_unit_test(builder_survives_each_failing_allocation),
        cmocka_unit_test(map_answers_who_owns_what),
        cmocka_unit_test(equality_ignores_the_epoch_and_nothing_else),
        cmocka_unit_test(references_keep_a_map_over_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
