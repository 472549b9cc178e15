/* Routed tokens: see routing.h. */
#include "placement/routing.h"

#include <string.h>

#include "common/mem.h"

/* ---- heat ---------------------------------------------------------------------------------------------------------- */

void pot_heat_free(pot_heat *h) {
    if (!h) return;
    pot_free(h->of);
    pot_free(h->layer);
    pot_free(h);
}

typedef struct lines {
    const char *at, *end;
    uint32_t number;
} lines;

/* The next line with numbers: [*at, *end). */
static bool next_line(const char **at, const char **end, lines *l) {
    while (l->at < l->end) {
        const char *stop = memchr(l->at, '\n', (size_t)(l->end - l->at));
        *at = l->at;
        *end = stop ? stop : l->end;
        l->at = stop ? stop + 1 : l->end;
        l->number++;
        if (*at < *end && **at >= '0' && **at <= '9') return true;
    }
    return false;
}

/* A number of at most nine digits, and the comma behind it if there is one. */
static bool take_number(uint32_t *out, const char **at, const char *end) {
    uint32_t n = 0;
    int digits = 0;
    for (; *at < end && **at >= '0' && **at <= '9' && digits < 10; ++*at, digits++) n = n * 10 + (uint32_t)(**at - '0');
    *out = n;
    if (digits == 0 || digits > 9) return false;
    if (*at < end && **at == '\r') ++*at;
    if (*at == end) return true;
    if (**at != ',' || *at + 1 == end) return false;
    ++*at;
    return true;
}

static pot_status take_layer(pot_heat *h, uint32_t layer, const char *at, const char *end, const char *name,
                             uint32_t line, pot_err *err) {
    double sum = 0;
    uint32_t n;
    for (uint32_t i = 0; i <= h->n_experts; i++) {
        if (at == end)
            return pot_fail(err, POT_FORMAT, "%s:%u: has %u numbers, expected are %u: the layer and its experts", name,
                            line, i, h->n_experts + 1);
        if (!take_number(&n, &at, end))
            return pot_fail(err, POT_FORMAT, "%s:%u: number %u is no count below 10^9", name, line, i + 1);
        if (i == 0) {
            h->layer[layer] = n;
            continue;
        }
        h->of[(size_t)layer * h->n_experts + i - 1] = n;
        sum += n;
    }
    if (at != end) return pot_fail(err, POT_FORMAT, "%s:%u: has more than %u numbers", name, line, h->n_experts + 1);
    if (sum == 0)
        return pot_fail(err, POT_FORMAT, "%s:%u: no expert of layer %u was chosen", name, line, h->layer[layer]);
    return POT_OK;
}

pot_status pot_heat_parse(pot_heat **out, const char *text, size_t bytes, const char *name, pot_err *err) {
    uint32_t n_layers = 0, commas = 0;
    const char *at, *end;
    for (lines l = {text, text + bytes, 0}; next_line(&at, &end, &l); n_layers++)
        for (const char *c = at; n_layers == 0 && c < end; c++) commas += *c == ',';
    if (!n_layers || !commas) return pot_fail(err, POT_FORMAT, "%s: has no line `LAYER,COUNT,...`", name);
    pot_status status = POT_NO_MEMORY;
    pot_heat *h = pot_alloc(sizeof *h);
    if (h) {
        h->n_layers = n_layers;
        h->n_experts = commas;
        h->layer = pot_alloc_array(n_layers, sizeof *h->layer);
        h->of = pot_alloc_array((size_t)n_layers * commas, sizeof *h->of);
    }
    if (!h || !h->layer || !h->of)
        pot_fail(err, status, "%s: no memory for %u layers of %u experts", name, n_layers, commas);
    else {
        lines l = {text, text + bytes, 0};
        status = POT_OK;
        for (uint32_t i = 0; i < n_layers && status == POT_OK; i++) {
            (void)next_line(&at, &end, &l);
            status = take_layer(h, i, at, end, name, l.number, err);
        }
    }
    if (status == POT_OK)
        *out = h;
    else
        pot_heat_free(h);
    return status;
}

/* ---- numbers ------------------------------------------------------------------------------------------------------- */

/* xoshiro256** by Blackman and Vigna (public domain), seeded by splitmix64. */
typedef struct random_state {
    uint64_t s[4];
} random_state;

static uint64_t splitmix(uint64_t *x) {
    uint64_t z = *x += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static void random_seed(random_state *r, uint64_t seed) {
    for (int i = 0; i < 4; i++) r->s[i] = splitmix(&seed);
}

static uint64_t rotate(uint64_t x, int n) { return x << n | x >> (64 - n); }

static uint64_t random_next(random_state *r) {
    uint64_t *s = r->s, result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

static double random_unit(random_state *r) { return (double)(random_next(r) >> 11) * 0x1p-53; }

/* Mean 0, variance 1: twelve uniform numbers of 21 bits.  Nearly normal up to 3, and no logarithm that could differ between machines. */
static double random_normal(random_state *r) {
    uint64_t sum = 0, mask = (1u << 21) - 1;
    for (int i = 0; i < 4; i++) {
        uint64_t x = random_next(r);
        sum += (x & mask) + (x >> 21 & mask) + (x >> 42 & mask);
    }
    return (double)sum * 0x1p-21 - (6 - 12 * 0x1p-22);
}

/* e^x to 1e-12 for |x| <= 300: 2^n times a polynomial in the rest. */
static double exponential(double x) {
    double n = x * 1.4426950408889634, r, p = 1.0;
    int64_t whole = (int64_t)(n < 0 ? n - 0.5 : n + 0.5);
    r = x - (double)whole * 0.6931471805599453;
    for (int i = 12; i > 0; i--) p = p * r / i + 1.0;
    uint64_t bits = (uint64_t)(whole + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static double square_root(double x) {
    double y = x > 1 ? x : 1;
    for (int i = 0; i < 40; i++) y = 0.5 * (y + x / y);
    return y;
}

/* ---- tokens -------------------------------------------------------------------------------------------------------- */

struct pot_routing {
    pot_routing_options o;
    size_t n; /* layers * experts */
    double kick, likes, walks;
    double *z, *liking; /* [n] */
    double *weight;     /* [n] of this token */
    uint32_t *before;   /* [layers * k] the token before, then this one */
    bool *taken;        /* [experts] scratch */
    uint32_t token;
    random_state random;
};

void pot_routing_free(pot_routing *r) {
    if (!r) return;
    pot_free(r->z);
    pot_free(r->liking);
    pot_free(r->weight);
    pot_free(r->before);
    pot_free(r->taken);
    pot_free(r);
}

static bool within(double x, double low, double high) { return x >= low && x <= high; }

static pot_status check_options(const pot_routing_options *o, pot_err *err) {
    if (!within(o->sigma, 0, 20) || !within(o->rho, 0, 1) || !within(o->stick, 0, 1) || !within(o->topic_part, 0, 1))
        return pot_fail(err, POT_USAGE,
                        "routing: sigma %g, rho %g, stick %g, topics %g: sigma is 0 to 20, the others 0 to 1", o->sigma,
                        o->rho, o->stick, o->topic_part);
    for (uint32_t l = 0; l < o->heat->n_layers; l++) {
        uint32_t n = 0;
        for (uint32_t e = 0; e < o->heat->n_experts; e++) n += o->heat->of[(size_t)l * o->heat->n_experts + e] > 0;
        if (n < o->k || o->k == 0)
            return pot_fail(err, POT_USAGE, "routing: tokens take %u experts, but %u of layer %u have heat", o->k, n,
                            o->heat->layer[l]);
    }
    return POT_OK;
}

pot_status pot_routing_create(pot_routing **out, const pot_routing_options *o, pot_err *err) {
    pot_status status = check_options(o, err);
    if (status != POT_OK) return status;
    pot_routing *r = pot_alloc(sizeof *r);
    if (r) {
        r->o = *o;
        r->n = (size_t)o->heat->n_layers * o->heat->n_experts;
        r->z = pot_alloc_array(r->n, sizeof *r->z);
        r->liking = pot_alloc_array(r->n, sizeof *r->liking);
        r->weight = pot_alloc_array(r->n, sizeof *r->weight);
        r->before = pot_alloc_array((size_t)o->heat->n_layers * o->k, sizeof *r->before);
        r->taken = pot_alloc_array(o->heat->n_experts, sizeof *r->taken);
    }
    if (!r || !r->z || !r->liking || !r->weight || !r->before || !r->taken) {
        pot_routing_free(r);
        return pot_fail(err, POT_NO_MEMORY, "no memory to route tokens over %u layers of %u experts", o->heat->n_layers,
                        o->heat->n_experts);
    }
    r->kick = square_root(1 - o->rho * o->rho);
    r->likes = o->topics ? square_root(o->topic_part) : 0;
    r->walks = o->topics ? square_root(1 - o->topic_part) : 1;
    random_seed(&r->random, o->seed);
    *out = r;
    return POT_OK;
}

static void begin_prompt(pot_routing *r) {
    for (size_t i = 0; i < r->n; i++) r->z[i] = random_normal(&r->random);
    if (!r->o.topics) return;
    random_state topic;
    random_seed(&topic, r->o.seed ^ (0x746f706963u + (random_next(&r->random) >> 11) % r->o.topics) << 20);
    for (size_t i = 0; i < r->n; i++) r->liking[i] = random_normal(&topic);
}

static double weigh(pot_routing *r, size_t i) {
    return r->o.heat->of[i] * exponential(r->o.sigma * (r->walks * r->z[i] + r->likes * r->liking[i]));
}

/* Takes one expert by weight that is not taken yet, or any if those have no weight, and marks it. */
static uint32_t draw(pot_routing *r, const double *weight) {
    double sum = 0, at;
    uint32_t n = r->o.heat->n_experts, last = n;
    for (uint32_t e = 0; e < n; e++)
        if (!r->taken[e]) sum += weight[e];
    at = random_unit(&r->random) * sum;
    for (uint32_t e = 0; e < n; e++) {
        if (r->taken[e] || (weight[e] == 0 && sum > 0)) continue;
        last = e; /* rounding may leave a rest at the end */
        at -= weight[e];
        if (at < 0) break;
    }
    POT_ASSERT(last < n);
    r->taken[last] = true;
    return last;
}

bool pot_routing_next(pot_routing *r, uint32_t *chosen) {
    bool begins = r->token == 0 || (r->o.prompt_tokens && r->token % r->o.prompt_tokens == 0);
    uint32_t n = r->o.heat->n_experts, k = r->o.k;
    if (begins) begin_prompt(r);
    for (uint32_t l = 0; l < r->o.heat->n_layers; l++) {
        double *weight = &r->weight[(size_t)l * n];
        uint32_t *before = &r->before[(size_t)l * k], *to = &chosen[(size_t)l * k], count = 0;
        memset(r->taken, 0, n * sizeof *r->taken);
        for (uint32_t e = 0; e < n; e++) {
            size_t i = (size_t)l * n + e;
            if (!begins) r->z[i] = r->o.rho * r->z[i] + r->kick * random_normal(&r->random);
            weight[e] = weigh(r, i);
        }
        for (uint32_t i = 0; i < k && !begins && r->o.stick > 0; i++)
            if (random_unit(&r->random) < r->o.stick) {
                to[count++] = before[i];
                r->taken[before[i]] = true;
            }
        while (count < k) to[count++] = draw(r, weight);
        memcpy(before, to, k * sizeof *to);
    }
    r->token++;
    return begins;
}

const double *pot_routing_weights(const pot_routing *r) { return r->weight; }

void pot_routing_guess(pot_routing *r, double recall, uint32_t *guess) {
    uint32_t n = r->o.heat->n_experts, k = r->o.k;
    for (uint32_t l = 0; l < r->o.heat->n_layers; l++) {
        const uint32_t *chosen = &r->before[(size_t)l * k];
        uint32_t *to = &guess[(size_t)l * k], wrong = 0;
        memset(r->taken, 0, n * sizeof *r->taken);
        for (uint32_t i = 0; i < k; i++) r->taken[chosen[i]] = true;
        for (uint32_t i = 0; i < k; i++)
            if (random_unit(&r->random) < recall || wrong == n - k)
                to[i - wrong] = chosen[i];
            else
                wrong++;
        for (uint32_t i = k - wrong; i < k; i++) to[i] = draw(r, &r->weight[(size_t)l * n]);
    }
}
