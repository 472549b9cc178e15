/* Who is evicted: every victim against a slow rule that sees the whole history. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "placement/cache.h"

static uint64_t seed;
static uint32_t below(uint32_t n) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((seed >> 33) % n);
}

enum { GROUPS = 5, UNITS = 12, WANT = 3, TOKENS = 120 };

typedef struct history {
    bool wanted[TOKENS + 1][GROUPS][UNITS];
    bool resident[GROUPS][UNITS];
} history;

/* What a unit is worth at `token` while the token is in `group`, from the whole history. */
static double worth(const history *h, pot_cache_policy policy, uint32_t token, uint32_t group, uint32_t g, uint32_t u) {
    double count = 0, decayed = 0, last = 0;
    uint32_t clock = g > group ? token - 1 : token;
    bool lately = h->wanted[clock][g][u];
    for (uint32_t t = 1; t <= clock; t++) {
        decayed = decayed * 0.96 + h->wanted[t][g][u];
        if (h->wanted[t][g][u]) {
            count += 1;
            last = t;
        }
    }
    switch (policy) {
    case POT_CACHE_LFU_DECAY: return decayed + (lately ? 4 : 0);
    case POT_CACHE_LFU: return count + (lately ? 1e9 : 0);
    case POT_CACHE_LFRU: return count + (last - clock) * 1e-6 + (lately ? 1e9 : 0);
    default: return last - clock;
    }
}

static void victims_are_those_of_the_slow_rule(void **state) {
    (void)state;
    static const pot_cache_policy policies[] = {POT_CACHE_LFU_DECAY, POT_CACHE_LFU, POT_CACHE_LFRU, POT_CACHE_LRU};
    static const uint32_t group_units[GROUPS] = {UNITS, UNITS, UNITS, UNITS, UNITS};
    static history h;
    for (size_t p = 0; p < sizeof policies / sizeof policies[0]; p++) {
        const pot_cache_options o = {
            .policy = policies[p], .n_groups = GROUPS, .group_units = group_units, .slots = 20};
        pot_cache *c;
        assert_int_equal(pot_cache_create(&c, &o, NULL), POT_OK);
        memset(&h, 0, sizeof h);
        seed = 5;
        uint32_t compared = 0;
        for (uint32_t t = 1; t <= TOKENS; t++)
            for (uint32_t g = 0; g < GROUPS; g++) {
                uint32_t units[WANT], n_evicted;
                const uint64_t *evicted;
                bool hit[WANT];
                for (uint32_t i = 0; i < WANT; i++) { /* skewed, distinct */
                    uint32_t u = below(4 + below(UNITS - 3));
                    while (h.wanted[t][g][u]) u = (u + 1) % UNITS;
                    h.wanted[t][g][u] = true;
                    units[i] = u;
                }
                (void)pot_cache_begin(c, g, units, WANT, false, hit);
                for (uint32_t i = 0; i < WANT; i++) {
                    if (hit[i]) continue;
                    assert_true(pot_cache_admit(c, units[i], &evicted, &n_evicted));
                    if (n_evicted) {
                        uint32_t vg = (uint32_t)(evicted[0] >> 32), vu = (uint32_t)evicted[0];
                        double least = worth(&h, policies[p], t, g, vg, vu);
                        for (uint32_t x = 0; x < GROUPS; x++)
                            for (uint32_t y = 0; y < UNITS; y++) {
                                if (!h.resident[x][y] || (x == g && h.wanted[t][g][y]) || (x == vg && y == vu))
                                    continue;
                                double other = worth(&h, policies[p], t, g, x, y);
                                assert_true(other >= least - 1e-9);
                                /* Equal: the group that is visited last gives, then the lower number. */
                                uint32_t far = (x + GROUPS - g - 1) % GROUPS, vfar = (vg + GROUPS - g - 1) % GROUPS;
                                if (policies[p] != POT_CACHE_LFU_DECAY && other == least)
                                    assert_true(far < vfar || (far == vfar && y > vu));
                            }
                        h.resident[vg][vu] = false;
                        compared++;
                    }
                    h.resident[g][units[i]] = true;
                }
                pot_cache_end(c);
            }
        assert_true(compared > 200);
        pot_cache_free(c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(victims_are_those_of_the_slow_rule)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
