/* Routed tokens: what they were fitted to, the same ones on every machine, and the tables of counts that they are made from. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/file.h"
#include "common/mem.h"
#include "placement/cache.h"
#include "placement/cache_belady.h"
#include "placement/routing.h"

static pot_err err;
#define MUST(call)                                     \
    do {                                               \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)

enum { K = 8, MOST = 256 };

static void assert_near(double found, double expected, double within) {
    if (!(found >= expected - within && found <= expected + within))
        fail_msg("%g, expected is %g to %g", found, expected, within);
}

static pot_heat *read_heat(const char *path) {
    pot_buffer text = {0};
    pot_heat *heat;
    MUST(pot_file_read(&text, path, 1 << 22, &err));
    MUST(pot_heat_parse(&heat, (const char *)text.data, text.bytes, path, &err));
    pot_buffer_free(&text);
    return heat;
}

static pot_routing *route(const pot_heat *heat, pot_routing_options o) {
    pot_routing *r;
    o.heat = heat;
    MUST(pot_routing_create(&r, &o, &err));
    return r;
}

static uint32_t *tokens_of(const pot_heat *heat, pot_routing_options o, uint32_t n) {
    pot_routing *r = route(heat, o);
    uint32_t *chosen = pot_alloc_array((size_t)n * heat->n_layers * K, sizeof *chosen);
    assert_non_null(chosen);
    for (uint32_t t = 0; t < n; t++) (void)pot_routing_next(r, &chosen[(size_t)t * heat->n_layers * K]);
    pot_routing_free(r);
    return chosen;
}

static uint32_t common(const uint32_t *a, const uint32_t *b) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < K; i++)
        for (uint32_t k = 0; k < K; k++) n += a[i] == b[k];
    return n;
}

/* Percent of a token's experts that the token `lag` before it had too. */
static double overlap(const uint32_t *chosen, uint32_t layers, uint32_t tokens, uint32_t lag) {
    uint64_t n = 0;
    for (uint32_t t = lag; t < tokens; t++)
        for (uint32_t l = 0; l < layers; l++)
            n += common(&chosen[((size_t)t * layers + l) * K], &chosen[((size_t)(t - lag) * layers + l) * K]);
    return 100.0 * (double)n / ((double)(tokens - lag) * layers * K);
}

/* ---- tables --------------------------------------------------------------------------------------------------------- */

static int downwards(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x < y) - (x > y);
}

/* Percent of all choices that the hottest `part` of a layer's experts have, over all layers. */
static double share_of_hottest(const pot_heat *h, double part) {
    double sorted[MOST], sum = 0;
    for (uint32_t l = 0; l < h->n_layers; l++) {
        double all = 0, top = 0;
        memcpy(sorted, &h->of[(size_t)l * h->n_experts], h->n_experts * sizeof *sorted);
        qsort(sorted, h->n_experts, sizeof *sorted, downwards);
        for (uint32_t e = 0; e < h->n_experts; e++) {
            all += sorted[e];
            if (e < part * h->n_experts) top += sorted[e];
        }
        sum += top / all;
    }
    return 100 * sum / h->n_layers;
}

static void tables_have_the_known_shape(void **state) {
    (void)state;
    static const struct {
        const char *path;
        uint32_t layers, experts, first;
        double tokens, top_eighth, top_quarter, top_half;
    } cases[] = {{"bench/data/glm-5.2-heat.csv", 75, 256, 3, 1270, 37.7, 57.6, 82.4},
                 {"bench/data/qwen3-30b-heat.csv", 48, 128, 0, 75773, 41.8, 65.0, 88.8}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_heat *h = read_heat(cases[i].path);
        assert_int_equal(h->n_layers, cases[i].layers);
        assert_int_equal(h->n_experts, cases[i].experts);
        assert_int_equal(h->layer[0], cases[i].first);
        for (uint32_t l = 0; l < h->n_layers; l++) {
            double sum = 0;
            for (uint32_t e = 0; e < h->n_experts; e++) sum += h->of[(size_t)l * h->n_experts + e];
            assert_true(sum == K * cases[i].tokens);
        }
        assert_near(share_of_hottest(h, 0.125), cases[i].top_eighth, 0.5);
        assert_near(share_of_hottest(h, 0.25), cases[i].top_quarter, 0.5);
        assert_near(share_of_hottest(h, 0.5), cases[i].top_half, 0.5);
        pot_heat_free(h);
    }
}

static void malformed_tables_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *sentence;
    } cases[] = {
        {"", "x.csv: has no line `LAYER,COUNT,...`"},
        {"# nothing\nlayer,e0\n", "x.csv: has no line `LAYER,COUNT,...`"},
        {"5\n", "x.csv: has no line `LAYER,COUNT,...`"},
        {"0,1,2\n1,3\n", "x.csv:2: has 2 numbers, expected are 3: the layer and its experts"},
        {"0,1,2\n1,3,4,5\n", "x.csv:2: has more than 3 numbers"},
        {"0,1,x\n", "x.csv:1: number 3 is no count below 10^9"},
        {"0,1,\n", "x.csv:1: number 2 is no count below 10^9"},
        {"0,1,-2\n", "x.csv:1: number 3 is no count below 10^9"},
        {"0,1,1.5\n", "x.csv:1: number 3 is no count below 10^9"},
        {"0,1,1000000000\n", "x.csv:1: number 3 is no count below 10^9"},
        {"# a\nlayer,a,b\n7,0,0\n", "x.csv:3: no expert of layer 7 was chosen"},
    };
    pot_heat *h = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(pot_heat_parse(&h, cases[i].text, strlen(cases[i].text), "x.csv", &err), POT_FORMAT);
        assert_string_equal(err.text, cases[i].sentence);
        assert_null(h);
    }
    const char *good = "layer,a,b\r\n3,1,2\r\n4,0,999999999";
    for (uint64_t n = 1; n <= 3; n++) {
        pot_mem_fail_at(n);
        assert_int_equal(pot_heat_parse(&h, good, strlen(good), "x.csv", &err), POT_NO_MEMORY);
    }
    pot_mem_fail_at(0);
    MUST(pot_heat_parse(&h, good, strlen(good), "x.csv", &err));
    assert_true(h->n_layers == 2 && h->n_experts == 2 && h->layer[1] == 4 && h->of[3] == 999999999);
    pot_heat_free(h);
    pot_heat_free(NULL);
}

/* ---- tokens --------------------------------------------------------------------------------------------------------- */

static void tokens_are_the_same_everywhere(void **state) {
    (void)state;
    pot_heat *h = read_heat("bench/data/glm-5.2-heat.csv");
    const pot_routing_options o = {POT_ROUTING_GLM_52, .seed = 42, .prompt_tokens = 7, .topics = 3, .topic_part = 0.5};
    uint32_t *chosen = tokens_of(h, o, 20);
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < (size_t)20 * 75 * K; i++) {
        assert_true(chosen[i] < 256);
        hash = (hash ^ chosen[i]) * 0x100000001b3u;
    }
    assert_int_equal(hash, 0xb2c50f77f8862692u);
    for (size_t row = 0; row < 20 * 75; row++)
        assert_int_equal(common(&chosen[row * K], &chosen[row * K]), K); /* distinct */
    pot_free(chosen);
    pot_heat_free(h);
}

static void glm_tokens_overlap_like_glm(void **state) {
    (void)state;
    pot_heat *h = read_heat("bench/data/glm-5.2-heat.csv");
    uint32_t *chosen = tokens_of(h, (pot_routing_options){POT_ROUTING_GLM_52, .seed = 1}, 300);
    double before = overlap(chosen, 75, 300, 1), far = overlap(chosen, 75, 300, 150);
    if (before < 29.5 || before > 32)
        fail_msg("%.1f%% of a token's experts were the last one's, expected are 30 to 32", before);
    if (far > 15) fail_msg("%.1f%% of a token's experts are those of 150 tokens ago", far);
    /* Those that are often chosen by the real model are often chosen here. */
    double counts[MOST] = {0}, top = 0, all = 0;
    for (uint32_t t = 0; t < 300; t++)
        for (uint32_t l = 0; l < 75; l++)
            for (uint32_t k = 0; k < K; k++) {
                uint32_t e = chosen[((size_t)t * 75 + l) * K + k], hotter = 0;
                for (uint32_t x = 0; x < 256; x++) hotter += h->of[l * 256 + x] > h->of[l * 256 + e];
                counts[hotter]++;
            }
    for (uint32_t r = 0; r < 256; r++) {
        all += counts[r];
        top += r < 64 ? counts[r] : 0;
    }
    assert_near(100 * top / all, 54, 4); /* 57.6 of the real ones: the walk flattens it a little */
    pot_free(chosen);
    pot_heat_free(h);
}

typedef struct rates {
    double lru, lfu, best;
} rates;

static double cache_rate(pot_cache_policy policy, const uint32_t *wanted, uint32_t tokens, uint32_t experts,
                         uint32_t slots) {
    pot_cache *c;
    const pot_cache_options o = {.policy = policy, .n_groups = 1, .group_units = &experts, .slots = slots};
    MUST(pot_cache_create(&c, &o, &err));
    for (uint32_t t = 0; t < tokens; t++) {
        bool hit[K];
        const uint64_t *evicted;
        uint32_t n;
        (void)pot_cache_begin(c, 0, &wanted[(size_t)t * K], K, false, hit);
        for (uint32_t k = 0; k < K; k++)
            if (!hit[k]) assert_true(pot_cache_admit(c, wanted[(size_t)t * K + k], &evicted, &n));
        pot_cache_end(c);
    }
    pot_cache_stats s;
    pot_cache_get_stats(&s, c);
    pot_cache_free(c);
    return 100.0 * (double)s.hits / (double)s.wanted;
}

static rates rates_of(const uint32_t *chosen, uint32_t layers, uint32_t tokens, uint32_t experts, uint32_t slots) {
    rates sum = {0};
    uint32_t *one = pot_alloc_array((size_t)tokens * K, sizeof *one);
    size_t *begin = pot_alloc_array((size_t)tokens + 1, sizeof *begin);
    assert_true(one && begin);
    for (uint32_t t = 0; t <= tokens; t++) begin[t] = (size_t)t * K;
    for (uint32_t l = 0; l < layers; l++) {
        for (uint32_t t = 0; t < tokens; t++)
            memcpy(&one[(size_t)t * K], &chosen[((size_t)t * layers + l) * K], K * sizeof *one);
        const pot_cache_trace trace = {tokens, begin, one, experts};
        uint64_t hits;
        MUST(pot_belady(&hits, NULL, &trace, slots, true, &err));
        sum.best += 100.0 * (double)hits / ((double)tokens * K);
        sum.lru += cache_rate(POT_CACHE_LRU, one, tokens, experts, slots);
        sum.lfu += cache_rate(POT_CACHE_LFU, one, tokens, experts, slots);
    }
    pot_free(one);
    pot_free(begin);
    return (rates){sum.lru / layers, sum.lfu / layers, sum.best / layers};
}

/* Hit rates that were published for a trace of Qwen3-30B: an independent check, since only the counts went into the table. */
static void qwen_tokens_have_the_published_hit_rates(void **state) {
    (void)state;
    static const struct {
        uint32_t slots;
        rates published;
    } cases[] = {{8, {42.4, 42.5, 60.8}}, {16, {64.7, 61.5, 78.4}}, {32, {81.0, 79.5, 88.8}}, {64, {91.8, 91.7, 92.9}}};
    pot_heat *h = read_heat("bench/data/qwen3-30b-heat.csv");
    uint32_t *chosen = tokens_of(h, (pot_routing_options){POT_ROUTING_QWEN3_30B, .seed = 1}, 150);
    double squares = 0;
    for (size_t i = 0; i < 4; i++) {
        rates r = rates_of(chosen, 48, 150, 128, cases[i].slots), p = cases[i].published;
        squares += (r.lru - p.lru) * (r.lru - p.lru) + (r.lfu - p.lfu) * (r.lfu - p.lfu) +
                   (r.best - p.best) * (r.best - p.best);
    }
    if (squares / 12 > 1.5 * 1.5)
        fail_msg("the squares of 12 differences are %.2f on average, at most 2.25 were expected", squares / 12);
    pot_free(chosen);
    pot_heat_free(h);
}

static void prompts_and_topics_do_what_they_say(void **state) {
    (void)state;
    pot_heat *h = read_heat("bench/data/qwen3-30b-heat.csv");
    pot_routing *r = route(h, (pot_routing_options){POT_ROUTING_QWEN3_30B, .prompt_tokens = 10, .seed = 2});
    uint32_t chosen[48 * K];
    for (uint32_t t = 0; t < 40; t++) assert_int_equal(pot_routing_next(r, chosen), t % 10 == 0);
    pot_routing_free(r);
    /* Across prompts tokens share what is hot; with one topic for all, its likings too. */
    uint32_t *plain = tokens_of(h, (pot_routing_options){POT_ROUTING_QWEN3_30B, .prompt_tokens = 10, .seed = 2}, 200);
    uint32_t *topic = tokens_of(
        h, (pot_routing_options){POT_ROUTING_QWEN3_30B, .prompt_tokens = 10, .seed = 2, .topics = 1, .topic_part = 0.8},
        200);
    uint32_t *long_one = tokens_of(h, (pot_routing_options){POT_ROUTING_QWEN3_30B, .seed = 2}, 200);
    assert_true(overlap(topic, 48, 200, 10) > overlap(plain, 48, 200, 10) + 10);
    assert_true(overlap(long_one, 48, 200, 10) > overlap(plain, 48, 200, 10) + 10);
    pot_free(plain);
    pot_free(topic);
    pot_free(long_one);
    /* Sticking always is the first token for ever; no walk at all is the table alone. */
    uint32_t *stuck = tokens_of(h, (pot_routing_options){.k = K, .sigma = 1, .rho = 0.9, .stick = 1, .seed = 2}, 5);
    assert_true(overlap(stuck, 48, 5, 4) == 100);
    pot_free(stuck);
    uint32_t *flat = tokens_of(h, (pot_routing_options){.k = K, .seed = 2}, 100);
    assert_near(overlap(flat, 48, 100, 1), overlap(flat, 48, 100, 50), 2);
    pot_free(flat);
    pot_heat_free(h);
}

static void guesses_have_their_recall(void **state) {
    (void)state;
    pot_heat *h = read_heat("bench/data/qwen3-30b-heat.csv");
    pot_routing *r = route(h, (pot_routing_options){POT_ROUTING_QWEN3_30B, .seed = 2});
    static const double recalls[] = {0, 0.72, 1};
    for (size_t i = 0; i < 3; i++) {
        uint32_t chosen[48 * K], guess[48 * K];
        uint64_t found = 0;
        for (uint32_t t = 0; t < 50; t++) {
            (void)pot_routing_next(r, chosen);
            pot_routing_guess(r, recalls[i], guess);
            for (uint32_t l = 0; l < 48; l++) {
                found += common(&chosen[l * K], &guess[l * K]);
                assert_int_equal(common(&guess[l * K], &guess[l * K]), K);
            }
        }
        assert_near((double)found / (50 * 48 * K), recalls[i], 0.01);
    }
    pot_routing_free(r);
    pot_heat_free(h);
}

static void impossible_routing_is_refused(void **state) {
    (void)state;
    const char *text = "3,1,2,0\n4,1,1,1\n";
    pot_heat *h;
    pot_routing *r = NULL;
    MUST(pot_heat_parse(&h, text, strlen(text), "x.csv", &err));
    static const pot_routing_options bad[] = {{.k = 3},
                                              {.k = 0},
                                              {.k = 1, .sigma = -1},
                                              {.k = 1, .rho = 1.1},
                                              {.k = 1, .stick = 2},
                                              {.k = 1, .topics = 1, .topic_part = -0.1}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        pot_routing_options o = bad[i];
        o.heat = h;
        assert_int_equal(pot_routing_create(&r, &o, &err), POT_USAGE);
        assert_null(r);
    }
    pot_routing_options o = {.heat = h, .k = 2, .sigma = 1};
    for (uint64_t n = 1; n <= 6; n++) {
        pot_mem_fail_at(n);
        assert_int_equal(pot_routing_create(&r, &o, &err), POT_NO_MEMORY);
    }
    pot_mem_fail_at(0);
    MUST(pot_routing_create(&r, &o, &err));
    uint32_t chosen[4], guess[4];
    for (int t = 0; t < 100; t++) {
        (void)pot_routing_next(r, chosen);
        pot_routing_guess(r, 0, guess); /* one expert of three is left to be wrong with */
        for (int l = 0; l < 4; l += 2)
            assert_true(chosen[l] != chosen[l + 1] && guess[l] != guess[l + 1] && guess[l] < 3 && guess[l + 1] < 3);
        assert_true(chosen[0] < 2 && chosen[1] < 2);
    }
    pot_routing_free(r);
    pot_routing_free(NULL);
    pot_heat_free(h);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_have_the_known_shape),
        cmocka_unit_test(malformed_tables_are_refused),
        cmocka_unit_test(tokens_are_the_same_everywhere),
        cmocka_unit_test(glm_tokens_overlap_like_glm),
        cmocka_unit_test(qwen_tokens_have_the_published_hit_rates),
        cmocka_unit_test(prompts_and_topics_do_what_they_say),
        cmocka_unit_test(guesses_have_their_recall),
        cmocka_unit_test(impossible_routing_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
