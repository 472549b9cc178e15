/* The cost of a token: cases that were computed by hand, every outcome enumerated, and random draws for what is too large for that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "common/mem.h"
#include "placement/cost.h"
#include "placement/map.h"

static pot_err err;
#define MUST(call)                                     \
    do {                                               \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)

static void near_by(double got, double expected, double part, const char *what) {
    if (!(fabs(got - expected) <= part * fabs(expected) + 1e-15))
        fail_msg("%s: %.9g, expected %.9g", what, got, expected);
}
#define EQUALS(got, expected) near_by(got, expected, 1e-9, #got)

/* RAM 10 bytes/s, VRAM 100, disk 2: times are easy to say. */
static const pot_cost_worker home = {.bytes_per_s = {100, 10, 2}};

static pot_cost_time cost(const pot_cost_worker *workers, uint32_t n, const pot_cost_layer *layer, double port) {
    pot_cost_time t = {0};
    pot_cost_cluster c = {n, workers, port};
    MUST(pot_cost_add_layer(&t, &c, layer, &err));
    EQUALS(t.link_s + t.items_s + t.vram_s + t.ram_s + t.disk_s, t.slowest_s);
    return t;
}

/* ---- by hand ------------------------------------------------------------------------------------------------------------------ */

static void alone_in_memory_time_is_bytes_by_rate(void **state) {
    (void)state;
    pot_cost_load load = {.units = 8, .unit_bytes = 5, .share = {0, 1, 0}, .common_bytes = {0, 20, 0}};
    pot_cost_layer layer = {.k = 8, .whole = true, .loads = &load};
    pot_cost_time t = cost(&home, 1, &layer, 0);
    EQUALS(t.slowest_s, (8 * 5 + 20) / 10.0);
    EQUALS(t.ram_s, 6);
    EQUALS(t.bytes[POT_COST_RAM], 60);
    EQUALS(t.asked, 1);
    double own;
    pot_cost_cluster c = {1, &home, 0};
    MUST(pot_cost_worker_s(&own, &c, &layer, 0, &err));
    EQUALS(own, 6);
}

static void a_dense_layer_is_its_common_bytes(void **state) {
    (void)state;
    pot_cost_load load = {.common_bytes = {0, 30, 0}};
    pot_cost_layer layer = {.whole = true, .loads = &load};
    EQUALS(cost(&home, 1, &layer, 0).slowest_s, 3);
    pot_cost_load both[2] = {{.common_bytes = {100, 0, 0}}, {.common_bytes = {0, 0, 4}}};
    pot_cost_worker two[2] = {home, home};
    layer.loads = both;
    EQUALS(cost(two, 2, &layer, 0).slowest_s, 4 / 2.0 + 4 / 10.0);
}

/* Two halves: the larger of n and 8 - n, n binomial, is 4 + 280/256. */
static void two_equal_workers_wait_for_the_busier(void **state) {
    (void)state;
    pot_cost_load loads[2] = {{.units = 4, .unit_bytes = 10, .share = {0, 1, 0}},
                              {.units = 4, .unit_bytes = 10, .share = {0, 1, 0}}};
    pot_cost_worker two[2] = {home, home};
    pot_cost_layer layer = {.k = 8, .whole = true, .loads = loads};
    pot_cost_time t = cost(two, 2, &layer, 0);
    EQUALS(t.slowest_s, 4 + 280.0 / 256);
    EQUALS(t.asked, 2 * (1 - 1.0 / 256));
    double own;
    pot_cost_cluster c = {2, two, 0};
    MUST(pot_cost_worker_s(&own, &c, &layer, 1, &err));
    EQUALS(own, 4);
}

static void slices_wait_for_nobody(void **state) {
    (void)state;
    pot_cost_load loads[2] = {{.units = 8, .unit_bytes = 5, .share = {0, 1, 0}},
                              {.units = 8, .unit_bytes = 5, .share = {0, 1, 0}}};
    pot_cost_worker two[2] = {home, home};
    pot_cost_layer layer = {.k = 8, .loads = loads};
    EQUALS(cost(two, 2, &layer, 0).slowest_s, 4);
}

static void the_disk_adds_what_memory_does_not_hide(void **state) {
    (void)state;
    pot_cost_load load = {.units = 1, .unit_bytes = 10, .share = {0, .75, .25}};
    pot_cost_layer layer = {.k = 1, .whole = true, .loads = &load};
    pot_cost_time t = cost(&home, 1, &layer, 0);
    EQUALS(t.ram_s, 1); /* it is computed, wherever it comes from */
    EQUALS(t.disk_s, .25 * 5);
    EQUALS(t.slowest_s, 2.25);
    EQUALS(t.bytes[POT_COST_DISK], 2.5);
    EQUALS(t.bytes[POT_COST_RAM], 7.5);
}

/* Two units, each on the GPU (0.1 s) or in RAM (1 s): they overlap. */
static void gpu_and_cpu_work_at_the_same_time(void **state) {
    (void)state;
    pot_cost_load load = {.units = 2, .unit_bytes = 10, .share = {.5, .5, 0}};
    pot_cost_layer layer = {.k = 2, .whole = true, .loads = &load};
    EQUALS(cost(&home, 1, &layer, 0).slowest_s, .25 * .2 + .5 * 1 + .25 * 2);
}

static void links_items_and_the_port_are_counted(void **state) {
    (void)state;
    pot_cost_worker three[4] = {home, home, home, home};
    pot_cost_load loads[4];
    for (int w = 0; w < 4; w++) {
        three[w].item_s = .001;
        three[w].message_s = .0001 * w;
        if (w) three[w].remote = true, three[w].link_s = .01, three[w].link_bytes_per_s = 1000;
        loads[w] = (pot_cost_load){.units = 8, .unit_bytes = 5, .share = {0, 1, 0}};
    }
    pot_cost_layer layer = {.k = 8, .message_bytes = 20, .loads = loads};
    pot_cost_time t = cost(three, 4, &layer, 500);
    EQUALS(t.link_s, .01 + .02);
    EQUALS(t.items_s, .008);
    EQUALS(t.ram_s, 4);
    EQUALS(t.port_s, 2 * 20 / 500.0 + .0006);
    EQUALS(t.asked, 4);
}

static void who_is_asked_for_nothing_costs_nothing(void **state) {
    (void)state;
    pot_cost_worker two[2] = {home, home};
    two[1].link_s = 1;
    two[1].remote = true;
    pot_cost_load loads[2] = {{.units = .9, .unit_bytes = 10, .share = {0, 1, 0}},
                              {.units = .1, .unit_bytes = 10, .share = {0, 1, 0}}};
    pot_cost_layer layer = {.k = 1, .whole = true, .message_bytes = 10, .loads = loads};
    pot_cost_time t = cost(two, 2, &layer, 1);
    EQUALS(t.slowest_s, .9 * 1 + .1 * 2);
    EQUALS(t.port_s, 0);
}

static void layers_add_up(void **state) {
    (void)state;
    pot_cost_load load = {.units = 2, .unit_bytes = 10, .share = {.5, .5, 0}};
    pot_cost_layer layer = {.k = 2, .whole = true, .loads = &load};
    pot_cost_cluster c = {1, &home, 0};
    pot_cost_time once = cost(&home, 1, &layer, 0), twice = {0};
    MUST(pot_cost_add_layer(&twice, &c, &layer, &err));
    MUST(pot_cost_add_layer(&twice, &c, &layer, &err));
    EQUALS(twice.slowest_s, 2 * once.slowest_s);
    EQUALS(twice.bytes[POT_COST_VRAM], 2 * once.bytes[POT_COST_VRAM]);
}

static void the_dense_part_is_weights_and_the_slower_of_keys_and_arithmetic(void **state) {
    (void)state;
    pot_cost_dense d = {
        .dense_bytes = 100, .kv_bytes = 20, .operations = 30, .bytes_per_s = 10, .operations_per_s = 30};
    EQUALS(pot_cost_dense_s(&d), 12);
    d.operations = 90;
    EQUALS(pot_cost_dense_s(&d), 13);
}

/* ---- against counting and drawing -------------------------------------------------------------------------------------------- */

/* What cost.h says of one worker, without any of cost.c. */
static double answer_s(const pot_cost_worker *w, const pot_cost_load *l, double message, const int found[3]) {
    int n = found[0] + found[1] + found[2];
    bool common = l->common_bytes[0] + l->common_bytes[1] > 0;
    if (!n && !common) return 0;
    double g = (found[0] * l->unit_bytes + l->common_bytes[0]) / w->bytes_per_s[0];
    double c = ((found[1] + found[2]) * l->unit_bytes + l->common_bytes[1]) / w->bytes_per_s[1];
    double d = found[2] ? found[2] * l->unit_bytes / w->bytes_per_s[2] + l->unit_bytes / w->bytes_per_s[1] : 0;
    double busy = fmax(g, fmax(c, d));
    return w->link_s + (w->link_bytes_per_s > 0 ? message / w->link_bytes_per_s : 0) + n * w->item_s + busy;
}

enum { THREE = 3, K = 4 };
static const pot_cost_worker unlike[THREE] = {
    {.bytes_per_s = {90, 11, 3}, .item_s = .01},
    {.bytes_per_s = {70, 13, 2}, .item_s = .02, .link_s = .1, .link_bytes_per_s = 100, .remote = true},
    {.bytes_per_s = {50, 7, 1}, .link_s = .3, .link_bytes_per_s = 50, .remote = true}};
static const pot_cost_load unlike_loads[THREE] = {
    {.units = 1.5, .unit_bytes = 10, .share = {.3, .5, .2}, .common_bytes = {0, 12, 0}},
    {.units = 2.1, .unit_bytes = 10, .share = {.1, .6, .3}},
    {.units = .4, .unit_bytes = 8, .share = {0, .9, .1}}};

static void whole_experts_equal_the_enumeration_of_all_outcomes(void **state) {
    (void)state;
    double expected = 0, own = 0;
    for (int code = 0; code < 6561; code++) { /* (3 workers x 3 places)^4 */
        int found[THREE][3] = {{0}};
        double chance = 1, slowest = 0;
        for (int i = 0, c = code; i < K; i++, c /= 9) {
            int w = c % 9 / 3, t = c % 3;
            found[w][t]++;
            chance *= unlike_loads[w].units / 4 * unlike_loads[w].share[t];
        }
        for (int w = 0; w < THREE; w++) slowest = fmax(slowest, answer_s(&unlike[w], &unlike_loads[w], 20, found[w]));
        expected += chance * slowest;
        own += chance * answer_s(&unlike[1], &unlike_loads[1], 20, found[1]);
    }
    pot_cost_layer layer = {.k = K, .whole = true, .message_bytes = 20, .loads = unlike_loads};
    EQUALS(cost(unlike, THREE, &layer, 0).slowest_s, expected);
    double got;
    pot_cost_cluster c = {THREE, unlike, 0};
    MUST(pot_cost_worker_s(&got, &c, &layer, 1, &err));
    EQUALS(got, own);
}

static double uniform(uint64_t *seed) {
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(*seed >> 11) / 9007199254740992.0;
}

static int draw_place(const double share[3], uint64_t *seed) {
    double u = uniform(seed);
    return u < share[0] ? 0 : u < share[0] + share[1] ? 1 : 2;
}

static double drawn(const pot_cost_worker *workers, const pot_cost_layer *layer, uint32_t n, int draws) {
    uint64_t seed = 7;
    double sum = 0;
    for (int d = 0; d < draws; d++) {
        int found[POT_MAX_WORKERS][3];
        double slowest = 0;
        memset(found, 0, sizeof found);
        for (uint32_t i = 0; i < layer->k; i++) {
            double u = uniform(&seed) * layer->k, begin = 0;
            for (uint32_t w = 0; w < n; w++) {
                const pot_cost_load *l = &layer->loads[w];
                bool hit = layer->whole ? u >= begin && u < begin + l->units : uniform(&seed) * layer->k < l->units;
                begin += l->units;
                if (hit) found[w][draw_place(l->share, &seed)]++;
            }
        }
        for (uint32_t w = 0; w < n; w++)
            slowest = fmax(slowest, answer_s(&workers[w], &layer->loads[w], layer->message_bytes, found[w]));
        sum += slowest;
    }
    return sum / draws;
}

static void cut_experts_equal_random_draws(void **state) {
    (void)state;
    pot_cost_layer layer = {.k = K, .message_bytes = 20, .loads = unlike_loads};
    near_by(cost(unlike, THREE, &layer, 0).slowest_s, drawn(unlike, &layer, THREE, 200000), .005, "cut");
}

/* More times than the grid has: rounding up by a little, never down. */
static void many_unequal_workers_equal_random_draws(void **state) {
    (void)state;
    static pot_cost_worker workers[POT_MAX_WORKERS];
    static pot_cost_load loads[POT_MAX_WORKERS];
    for (uint32_t w = 0; w < POT_MAX_WORKERS; w++) {
        workers[w] = (pot_cost_worker){.bytes_per_s = {500 + w, 20 + w * .7, 2 + w * .03}, .link_s = .01 + w * .001};
        loads[w] = (pot_cost_load){.units = 8.0 / POT_MAX_WORKERS, .unit_bytes = 5, .share = {.1, .8, .1}};
    }
    pot_cost_layer layer = {.k = 8, .whole = true, .loads = loads};
    near_by(cost(workers, POT_MAX_WORKERS, &layer, 0).slowest_s, drawn(workers, &layer, POT_MAX_WORKERS, 40000), .02,
            "64 workers");
}

/* Four and eight equal machines with GLM-5.2's experts: a sampler of real choices gave 1.742 and 1.232 ms a layer. */
static void equal_machines_agree_with_sampled_choices(void **state) {
    (void)state;
    static const struct {
        uint32_t n;
        double link_s, sampled_s;
    } cases[] = {{4, 60e-6, 1.742e-3}, {8, 8e-6, 1.232e-3}};
    for (size_t i = 0; i < 2; i++) {
        pot_cost_worker workers[8];
        pot_cost_load loads[8];
        for (uint32_t w = 0; w < 8; w++) {
            workers[w] = (pot_cost_worker){.bytes_per_s = {0, 40e9, 0}, .link_s = cases[i].link_s};
            loads[w] = (pot_cost_load){.units = 8.0 / cases[i].n, .unit_bytes = 18.9e6, .share = {0, 1, 0}};
        }
        pot_cost_layer layer = {.k = 8, .whole = true, .loads = loads};
        near_by(cost(workers, cases[i].n, &layer, 0).slowest_s, cases[i].sampled_s, .03, "equal machines");
    }
}

/* ---- the rest ---------------------------------------------------------------------------------------------------------------------- */

static void the_curve_is_that_of_a_real_model(void **state) {
    (void)state;
    EQUALS(pot_cost_curve(256, 0) + 1, 1);
    EQUALS(pot_cost_curve(256, 1), 1);
    near_by(pot_cost_curve(256, .125), .377, .15, "top eighth"); /* as counted; the curve is flatter at its head */
    near_by(pot_cost_curve(256, .25), .576, .06, "top quarter");
    near_by(pot_cost_curve(256, .5), .824, .04, "top half");
    near_by(pot_cost_curve(64, .25), pot_cost_curve(256, .25), .05, "64 experts");
    double before = 0;
    for (int i = 1; i <= 100; i++) {
        double now = pot_cost_curve(160, i / 100.0);
        assert_true(now > before);
        before = now;
    }
}

static void numbers_that_cannot_be_are_refused(void **state) {
    (void)state;
    pot_cost_time t = {.slowest_s = 5};
    pot_cost_load load = {.units = 8, .unit_bytes = 5, .share = {0, 1, 0}};
    pot_cost_layer layer = {.k = 8, .whole = true, .loads = &load};
    pot_cost_worker slow = {.bytes_per_s = {0, 10, 0}};
    pot_cost_cluster c = {1, &slow, 0};
    load.units = 9;
    assert_int_equal(pot_cost_add_layer(&t, &c, &layer, &err), POT_BUG);
    load.units = 8;
    load.share[1] = .5;
    assert_int_equal(pot_cost_add_layer(&t, &c, &layer, &err), POT_BUG);
    load.share[2] = .5; /* a disk without a speed */
    assert_int_equal(pot_cost_add_layer(&t, &c, &layer, &err), POT_BUG);
    load.share[2] = NAN;
    assert_int_equal(pot_cost_add_layer(&t, &c, &layer, &err), POT_BUG);
    layer.k = POT_COST_MAX_K + 1;
    assert_int_equal(pot_cost_add_layer(&t, &c, &layer, &err), POT_BUG);
    EQUALS(t.slowest_s, 5);
}

static void short_memory_is_said(void **state) {
    (void)state;
    pot_cost_load load = {.units = 8, .unit_bytes = 5, .share = {0, 1, 0}};
    pot_cost_layer layer = {.k = 8, .whole = true, .loads = &load};
    pot_cost_cluster c = {1, &home, 0};
    pot_status s = POT_NO_MEMORY;
    uint64_t nth = 1;
    for (; s == POT_NO_MEMORY; nth++) {
        pot_cost_time t = {0};
        pot_mem_fail_at(nth);
        s = pot_cost_add_layer(&t, &c, &layer, &err);
        if (s) assert_true(t.slowest_s == 0);
    }
    pot_mem_fail_at(0);
    assert_int_equal(s, POT_OK);
    assert_true(nth > 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(alone_in_memory_time_is_bytes_by_rate),
        cmocka_unit_test(a_dense_layer_is_its_common_bytes),
        cmocka_unit_test(two_equal_workers_wait_for_the_busier),
        cmocka_unit_test(slices_wait_for_nobody),
        cmocka_unit_test(the_disk_adds_what_memory_does_not_hide),
        cmocka_unit_test(gpu_and_cpu_work_at_the_same_time),
        cmocka_unit_test(links_items_and_the_port_are_counted),
        cmocka_unit_test(who_is_asked_for_nothing_costs_nothing),
        cmocka_unit_test(layers_add_up),
        cmocka_unit_test(the_dense_part_is_weights_and_the_slower_of_keys_and_arithmetic),
        cmocka_unit_test(whole_experts_equal_the_enumeration_of_all_outcomes),
        cmocka_unit_test(cut_experts_equal_random_draws),
        cmocka_unit_test(many_unequal_workers_equal_random_draws),
        cmocka_unit_test(equal_machines_agree_with_sampled_choices),
        cmocka_unit_test(the_curve_is_that_of_a_real_model),
        cmocka_unit_test(numbers_that_cannot_be_are_refused),
        cmocka_unit_test(short_memory_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
