/* Which experts stay in memory: hit rates of every policy on tokens that are routed like those of GLM-5.2 and Qwen3-30B, as CSV.
 *
 *   bench_cache [tokens] [seed] >bench/results/HOST/cache.csv        run in the top folder; bench/plot_cache.py draws it
 *
 * No trace of raw tokens is public, so they are made (placement/routing.h) from the counts in bench/data; what they were fitted to is in
 * tests/test_routing.c.  Cases:
 *
 *   layer     one layer alone with 8 to 125 slots, mean over the layers.  two-phase: all hits of a step are claimed before anything is
 *             evicted; one-by-one: each expert is looked up after the one before it has evicted.  `belady` knows the future; `weights`
 *             knows what each token's experts are drawn by, which is more than any policy can learn.  gap: what part of the way from LRU
 *             (two-phase, and one by one) to belady (two-phase) is closed.
 *   shares    all layers with 3 to 60% of the experts: equal shares that cannot be borrowed, and all slots shared.
 *   scan      hit rate of the 16 tokens before a prompt that touches 60% of the experts of every layer, and of the 16 after it; `naive`
 *             tells the cache nothing about the scan.
 *   prefetch  hints of recall .72 for the next layer: hits, and units read for a token, hit and read ahead together.
 *   restart   the first 16 tokens of a run that starts empty, or with what an earlier run of other prompts has counted.
 *   speed     microseconds for begin, admits and end of a step: median and p10 over tokens.
 *
 * Columns: value is the hit rate in percent unless said otherwise.  second and third: layer: gaps; scan: the rate before; prefetch: units read a
 * token, and percent of those read ahead that were wanted; restart: the rate of the next 112 tokens; speed: p10. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/file.h"
#include "common/mem.h"
#include "placement/cache.h"
#include "placement/cache_belady.h"
#include "placement/routing.h"

enum { K = 8, MOST = 256, WINDOW = 16, PROMPT = 128 };

static pot_err err;
#define MUST(call)                                                     \
    do {                                                               \
        if (call) {                                                    \
            fprintf(stderr, "bench_cache: %s: %s\n", #call, err.text); \
            exit(1);                                                   \
        }                                                              \
    } while (0)

static void *take(void *memory) {
    if (!memory) {
        fprintf(stderr, "bench_cache: no memory\n");
        exit(1);
    }
    return memory;
}

typedef struct trace {
    const char *name;
    uint32_t layers, experts, tokens;
    uint32_t *chosen; /* [tokens][layers][K] */
    uint32_t *guess;  /* the same shape */
    float *weights;   /* [tokens][layers][experts] */
} trace;

static const uint32_t *chosen_at(const trace *t, uint32_t token, uint32_t layer) {
    return &t->chosen[((size_t)token * t->layers + layer) * K];
}

static void make_trace(trace *t, const pot_heat *heat, pot_routing_options o, uint32_t tokens, uint64_t seed) {
    pot_routing *r;
    size_t row = (size_t)heat->n_layers * K, cells = (size_t)heat->n_layers * heat->n_experts;
    o.heat = heat;
    o.seed = seed;
    *t = (trace){.layers = heat->n_layers, .experts = heat->n_experts, .tokens = tokens};
    t->chosen = take(pot_alloc_array(tokens * row, sizeof *t->chosen));
    t->guess = take(pot_alloc_array(tokens * row, sizeof *t->guess));
    t->weights = take(pot_alloc_array(tokens * cells, sizeof *t->weights));
    MUST(pot_routing_create(&r, &o, &err));
    for (uint32_t i = 0; i < tokens; i++) {
        (void)pot_routing_next(r, &t->chosen[i * row]);
        const double *w = pot_routing_weights(r);
        for (size_t c = 0; c < cells; c++) t->weights[i * cells + c] = (float)w[c];
        pot_routing_guess(r, 0.72, &t->guess[i * row]);
    }
    pot_routing_free(r);
}

static void free_trace(trace *t) {
    pot_free(t->chosen);
    pot_free(t->guess);
    pot_free(t->weights);
}

static pot_heat *read_heat(const char *path) {
    pot_buffer text = {0};
    pot_heat *heat;
    MUST(pot_file_read(&text, path, 1 << 22, &err));
    MUST(pot_heat_parse(&heat, (const char *)text.data, text.bytes, path, &err));
    pot_buffer_free(&text);
    return heat;
}

/* ---- running ------------------------------------------------------------------------------------------------------- */

static pot_cache *make_cache(pot_cache_policy policy, uint32_t layers, uint32_t experts, uint32_t slots) {
    pot_cache *c;
    uint32_t *units = take(pot_alloc_array(layers, sizeof *units));
    for (uint32_t l = 0; l < layers; l++) units[l] = experts;
    const pot_cache_options o = {.policy = policy, .n_groups = layers, .group_units = units, .slots = slots};
    MUST(pot_cache_create(&c, &o, &err));
    pot_free(units);
    return c;
}

static void step(pot_cache *c, uint32_t layer, const uint32_t *units, uint32_t n, bool scan) {
    bool hit[MOST];
    const uint64_t *evicted;
    uint32_t n_evicted, computed = 0;
    (void)pot_cache_begin(c, layer, units, n, scan, hit);
    for (uint32_t i = 0; i < n; i++)
        while (!hit[i] && !pot_cache_admit(c, units[i], &evicted, &n_evicted)) {
            /* As the store does: what is there is computed and makes room. */
            for (uint32_t k = 0; k < n; k++)
                if (k < i ? k >= computed || hit[k] : hit[k]) pot_cache_release(c, units[k]);
            computed = i;
        }
    pot_cache_end(c);
}

/* Tokens [begin, end) through all layers. */
static void run_tokens(pot_cache *c, const trace *t, uint32_t begin, uint32_t end) {
    for (uint32_t i = begin; i < end; i++) {
        for (uint32_t l = 0; l < t->layers; l++) step(c, l, chosen_at(t, i, l), K, false);
        if (i % 64 == 63) pot_cache_repin(c);
    }
}

/* Percent of hits since *before, which becomes now. */
static double rate_since(pot_cache_stats *before, const pot_cache *c) {
    pot_cache_stats now;
    pot_cache_get_stats(&now, c);
    uint64_t wanted = now.wanted - before->wanted;
    double rate = wanted ? 100.0 * (double)(now.hits - before->hits) / (double)wanted : 0;
    *before = now;
    return rate;
}

static double shared_rate(pot_cache_policy policy, const trace *t, uint32_t slots) {
    pot_cache *c = make_cache(policy, t->layers, t->experts, slots);
    pot_cache_stats none = {0};
    run_tokens(c, t, 0, t->tokens);
    double rate = rate_since(&none, c);
    pot_cache_free(c);
    return rate;
}

/* A layer of its own. */
static double layer_rate(pot_cache_policy policy, const trace *t, uint32_t layer, uint32_t slots) {
    pot_cache *c = make_cache(policy, 1, t->experts, slots);
    pot_cache_stats none = {0};
    for (uint32_t i = 0; i < t->tokens; i++) {
        step(c, 0, chosen_at(t, i, layer), K, false);
        if (i % 64 == 63) pot_cache_repin(c);
    }
    double rate = rate_since(&none, c);
    pot_cache_free(c);
    return rate;
}

static double mean_layer_rate(pot_cache_policy policy, const trace *t, uint32_t slots) {
    double sum = 0;
    for (uint32_t l = 0; l < t->layers; l++) sum += layer_rate(policy, t, l, slots);
    return sum / t->layers;
}

static double belady_rate(const trace *t, uint32_t first, uint32_t layers, uint32_t slots, bool one_by_one) {
    size_t n = (size_t)t->tokens * layers;
    size_t *begin = take(pot_alloc_array(n + 1, sizeof *begin));
    uint32_t *units = take(pot_alloc_array(n * K, sizeof *units));
    for (uint32_t i = 0, s = 0; i < t->tokens; i++)
        for (uint32_t l = 0; l < layers; l++, s++) {
            begin[s + 1] = begin[s] + K;
            for (uint32_t k = 0; k < K; k++) units[(size_t)s * K + k] = l * t->experts + chosen_at(t, i, first + l)[k];
        }
    const pot_cache_trace wanted = {n, begin, units, layers * t->experts};
    uint64_t hits;
    MUST(pot_belady(&hits, NULL, &wanted, slots, one_by_one, &err));
    pot_free(begin);
    pot_free(units);
    return 100.0 * (double)hits / ((double)n * K);
}

static double mean_belady_rate(const trace *t, uint32_t slots, bool one_by_one) {
    double sum = 0;
    for (uint32_t l = 0; l < t->layers; l++) sum += belady_rate(t, l, 1, slots, one_by_one);
    return sum / t->layers;
}

/* ---- a layer, looked up one by one, or with known weights ------------------------------------------------------------ */

typedef enum value_kind { BY_TIME, BY_DECAYED_COUNT, BY_WEIGHT } value_kind;

typedef struct table {
    double value[MOST];
    bool resident[MOST], wanted[MOST];
    uint32_t used, experts, slots;
} table;

static void admit_into(table *b, uint32_t unit, bool one_by_one) {
    uint32_t least = MOST;
    if (b->used == b->slots) {
        for (uint32_t e = 0; e < b->experts; e++)
            if (b->resident[e] && (one_by_one || !b->wanted[e]) && (least == MOST || b->value[e] < b->value[least]))
                least = e;
        if (least == MOST) return;
        b->resident[least] = false;
        b->used--;
    }
    b->resident[unit] = true;
    b->used++;
}

static double table_rate(const trace *t, uint32_t layer, uint32_t slots, value_kind kind, bool one_by_one) {
    table b = {.experts = t->experts, .slots = slots};
    uint64_t hits = 0, clock = 0;
    for (uint32_t i = 0; i < t->tokens; i++) {
        const uint32_t *units = chosen_at(t, i, layer);
        const float *weight = &t->weights[((size_t)i * t->layers + layer) * t->experts];
        memset(b.wanted, 0, sizeof b.wanted);
        for (uint32_t k = 0; k < K; k++) {
            hits += !one_by_one && b.resident[units[k]];
            b.wanted[units[k]] = true;
        }
        for (uint32_t e = 0; e < t->experts; e++) {
            if (kind == BY_WEIGHT) b.value[e] = (double)weight[e];
            if (kind == BY_DECAYED_COUNT) b.value[e] *= 0.96;
        }
        for (uint32_t k = 0; k < K; k++) {
            if (one_by_one) hits += b.resident[units[k]];
            if (!b.resident[units[k]]) admit_into(&b, units[k], one_by_one);
            if (kind == BY_TIME) b.value[units[k]] = (double)++clock;
            if (kind == BY_DECAYED_COUNT) b.value[units[k]] += 1;
        }
    }
    return 100.0 * (double)hits / ((double)t->tokens * K);
}

static double mean_table_rate(const trace *t, uint32_t slots, value_kind kind, bool one_by_one) {
    double sum = 0;
    for (uint32_t l = 0; l < t->layers; l++) sum += table_rate(t, l, slots, kind, one_by_one);
    return sum / t->layers;
}

/* ---- cases --------------------------------------------------------------------------------------------------------- */

static double closed(double rate, double from, double to) { return to > from ? 100 * (rate - from) / (to - from) : 0; }

static void layer_case(const trace *t, uint32_t slots) {
    double best = mean_belady_rate(t, slots, false);
    double lru = mean_layer_rate(POT_CACHE_LRU, t, slots), lru_one = mean_table_rate(t, slots, BY_TIME, true);
    for (int p = 0; p < POT_CACHE_POLICIES; p++) {
        double rate = mean_layer_rate((pot_cache_policy)p, t, slots);
        printf("layer,%s,%s,two-phase,%u,%.2f,%.1f,%.1f\n", t->name, pot_cache_policy_name((pot_cache_policy)p), slots,
               rate, closed(rate, lru, best), closed(rate, lru_one, best));
    }
    printf("layer,%s,lru,one-by-one,%u,%.2f,,\n", t->name, slots, lru_one);
    printf("layer,%s,lfu-decay,one-by-one,%u,%.2f,,\n", t->name, slots,
           mean_table_rate(t, slots, BY_DECAYED_COUNT, true));
    double known = mean_table_rate(t, slots, BY_WEIGHT, false);
    printf("layer,%s,weights,two-phase,%u,%.2f,%.1f,%.1f\n", t->name, slots, known, closed(known, lru, best),
           closed(known, lru_one, best));
    printf("layer,%s,belady,two-phase,%u,%.2f,,\n", t->name, slots, best);
    printf("layer,%s,belady,one-by-one,%u,%.2f,,\n", t->name, slots, mean_belady_rate(t, slots, true));
}

static void shares_case(const trace *t, double part) {
    uint32_t all = t->layers * t->experts, slots = (uint32_t)(part * all);
    for (int p = 0; p < POT_CACHE_POLICIES; p++) {
        const char *name = pot_cache_policy_name((pot_cache_policy)p);
        printf("shares,%s,%s,equal,%u,%.2f,,\n", t->name, name, slots,
               mean_layer_rate((pot_cache_policy)p, t, slots / t->layers));
        printf("shares,%s,%s,shared,%u,%.2f,,\n", t->name, name, slots, shared_rate((pot_cache_policy)p, t, slots));
    }
    printf("shares,%s,belady,equal,%u,%.2f,,\n", t->name, slots, mean_belady_rate(t, slots / t->layers, false));
    printf("shares,%s,belady,shared,%u,%.2f,,\n", t->name, slots, belady_rate(t, 0, t->layers, slots, false));
}

/* A prompt wants each expert that a few hundred rows would choose. */
static void scan_once(pot_cache *c, const trace *t, bool told) {
    uint32_t units[MOST];
    for (uint32_t l = 0; l < t->layers; l++) {
        uint32_t n = 0;
        for (uint32_t e = 0; e < t->experts; e++)
            if ((e * 7 + l) % 10 < 6) units[n++] = e;
        step(c, l, units, n, told);
    }
}

static void scan_case(const trace *t, double part, uint32_t at) {
    uint32_t slots = (uint32_t)(part * t->layers * t->experts);
    static const char *const ways[] = {"none", "told", "naive"};
    for (int p = 0; p < POT_CACHE_POLICIES; p++)
        for (int way = 0; way < 3; way++) {
            pot_cache *c = make_cache((pot_cache_policy)p, t->layers, t->experts, slots);
            pot_cache_stats since = {0};
            run_tokens(c, t, 0, at - WINDOW);
            (void)rate_since(&since, c);
            run_tokens(c, t, at - WINDOW, at);
            double before = rate_since(&since, c);
            if (way) scan_once(c, t, way == 1);
            (void)rate_since(&since, c);
            run_tokens(c, t, at, at + WINDOW);
            printf("scan,%s,%s,%s,%u,%.2f,%.2f,\n", t->name, pot_cache_policy_name((pot_cache_policy)p), ways[way],
                   slots, rate_since(&since, c), before);
            pot_cache_free(c);
        }
}

static void prefetch_case(const trace *t, pot_cache_policy policy, double part, bool on) {
    uint32_t slots = (uint32_t)(part * t->layers * t->experts);
    pot_cache *c = make_cache(policy, t->layers, t->experts, slots);
    const uint64_t *evicted;
    uint32_t n_evicted;
    bool hit[K];
    for (uint32_t i = 0; i < t->tokens; i++)
        for (uint32_t l = 0; l < t->layers; l++) {
            const uint32_t *units = chosen_at(t, i, l);
            (void)pot_cache_begin(c, l, units, K, false, hit);
            for (uint32_t k = 0; k < K; k++)
                if (!hit[k]) (void)pot_cache_admit(c, units[k], &evicted, &n_evicted);
            for (uint32_t k = 0; k < K && on && l + 1 < t->layers; k++)
                (void)pot_cache_prefetch(c, l + 1, t->guess[((size_t)i * t->layers + l + 1) * K + k], &evicted,
                                         &n_evicted);
            pot_cache_end(c);
        }
    pot_cache_stats s;
    pot_cache_get_stats(&s, c);
    printf("prefetch,%s,%s,%s,%u,%.2f,%.2f,%.2f\n", t->name, pot_cache_policy_name(policy), on ? "on" : "off", slots,
           100.0 * (double)s.hits / (double)s.wanted, (double)(s.admitted + s.prefetched) / t->tokens,
           s.prefetched ? 100.0 * (double)s.prefetch_used / (double)s.prefetched : 0);
    pot_cache_free(c);
}

typedef struct hot {
    uint64_t count;
    uint32_t layer, unit;
} hot;

static int by_count(const void *a, const void *b) {
    const hot *x = a, *y = b;
    return x->count != y->count ? (x->count < y->count) - (x->count > y->count) : (x > y) - (x < y);
}

/* Counts of `earlier`, which is of other prompts. */
static void warm(pot_cache *c, const trace *earlier) {
    hot *list = take(pot_alloc_array((size_t)earlier->layers * earlier->experts, sizeof *list));
    for (uint32_t l = 0, n = 0; l < earlier->layers; l++)
        for (uint32_t e = 0; e < earlier->experts; e++) list[n++] = (hot){0, l, e};
    for (uint32_t i = 0; i < earlier->tokens; i++)
        for (uint32_t l = 0; l < earlier->layers; l++)
            for (uint32_t k = 0; k < K; k++) list[(size_t)l * earlier->experts + chosen_at(earlier, i, l)[k]].count++;
    size_t n = (size_t)earlier->layers * earlier->experts;
    for (size_t i = 0; i < n; i++) pot_cache_set_usage(c, list[i].layer, list[i].unit, list[i].count);
    qsort(list, n, sizeof *list, by_count);
    for (size_t i = 0; i < n; i++) (void)pot_cache_fill(c, list[i].layer, list[i].unit);
    pot_free(list);
}

static void restart_case(const trace *t, const trace *earlier, pot_cache_policy policy, double part, bool warmed) {
    uint32_t slots = (uint32_t)(part * t->layers * t->experts);
    pot_cache *c = make_cache(policy, t->layers, t->experts, slots);
    pot_cache_stats since = {0};
    if (warmed) warm(c, earlier);
    run_tokens(c, t, 0, WINDOW);
    double first = rate_since(&since, c);
    run_tokens(c, t, WINDOW, 8 * WINDOW);
    printf("restart,%s,%s,%s,%u,%.2f,%.2f,\n", t->name, pot_cache_policy_name(policy), warmed ? "warm" : "empty", slots,
           first, rate_since(&since, c));
    pot_cache_free(c);
}

static int upwards(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Median over tokens: other programs disturb some. */
static void speed_case(const trace *t, pot_cache_policy policy, double part) {
    uint32_t slots = (uint32_t)(part * t->layers * t->experts), half = t->tokens / 2;
    uint64_t *us = take(pot_alloc_array(half, sizeof *us));
    pot_cache *c = make_cache(policy, t->layers, t->experts, slots);
    run_tokens(c, t, 0, half);
    for (uint32_t i = 0; i < half; i++) {
        uint64_t start = pot_now_us();
        run_tokens(c, t, half + i, half + i + 1);
        us[i] = pot_now_us() - start;
    }
    qsort(us, half, sizeof *us, upwards);
    uint32_t middle = half / 2, low = half / 10;
    printf("speed,%s,%s,step,%u,%.2f,%.2f,\n", t->name, pot_cache_policy_name(policy), slots,
           (double)us[middle] / t->layers, (double)us[low] / t->layers);
    pot_cache_free(c);
    pot_free(us);
}

static void all_layer_cases(const trace *t, const trace *earlier) {
    static const double parts[] = {0.03, 0.05, 0.10, 0.30, 0.60};
    enum { N = sizeof parts / sizeof parts[0] };
    for (int i = 0; i < N; i++) shares_case(t, parts[i]);
    for (int i = 0; i < N; i++) scan_case(t, parts[i], t->tokens / 2);
    for (int i = 0; i < N; i++)
        for (int on = 0; on < 2; on++) {
            prefetch_case(t, POT_CACHE_LFU_DECAY, parts[i], on);
            prefetch_case(t, POT_CACHE_LRU, parts[i], on);
        }
    for (int i = 0; i < N; i++)
        for (int warmed = 0; warmed < 2; warmed++) {
            restart_case(t, earlier, POT_CACHE_LFU_DECAY, parts[i], warmed);
            restart_case(t, earlier, POT_CACHE_LRU, parts[i], warmed);
        }
    for (int p = 0; p < POT_CACHE_POLICIES; p++) speed_case(t, (pot_cache_policy)p, 0.10);
}

int main(int argc, char **argv) {
    uint32_t tokens = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 400;
    uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    static const uint32_t glm[] = {8, 12, 16, 24, 32, 48, 64, 96, 125}, qwen[] = {8, 16, 32, 64};
    if (tokens < 8 * WINDOW || tokens > 100000) {
        fprintf(stderr, "bench_cache: tokens: from %d to 100000\n", 8 * WINDOW);
        return 2;
    }
    printf("# command: bench_cache %u %llu; tokens: %u from counts in bench/data; glm: sigma 1.7, rho .99, stick .10; "
           "glm-prompts: the same, "
           "a new prompt every %d tokens; qwen: sigma 2.2, rho .99\n",
           tokens, (unsigned long long)seed, tokens, PROMPT);
    printf("case,trace,policy,way,slots,value,second,third\n");
    pot_heat *heat = read_heat("bench/data/glm-5.2-heat.csv");
    trace t, earlier;
    make_trace(&t, heat, (pot_routing_options){POT_ROUTING_GLM_52}, tokens, seed);
    make_trace(&earlier, heat, (pot_routing_options){POT_ROUTING_GLM_52, .prompt_tokens = PROMPT}, tokens, seed + 1);
    t.name = "glm";
    earlier.name = "glm-prompts";
    for (size_t i = 0; i < sizeof glm / sizeof glm[0]; i++) layer_case(&t, glm[i]);
    for (size_t i = 0; i < sizeof glm / sizeof glm[0]; i++) layer_case(&earlier, glm[i]);
    all_layer_cases(&t, &earlier);
    free_trace(&t);
    free_trace(&earlier);
    pot_heat_free(heat);
    heat = read_heat("bench/data/qwen3-30b-heat.csv");
    make_trace(&t, heat, (pot_routing_options){POT_ROUTING_QWEN3_30B}, tokens, seed);
    t.name = "qwen";
    for (size_t i = 0; i < sizeof qwen / sizeof qwen[0]; i++) layer_case(&t, qwen[i]);
    free_trace(&t);
    pot_heat_free(heat);
    return 0;
}
