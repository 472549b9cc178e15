/* Sampling works on the candidates sorted by (logit descending, id ascending): top-k cuts the list, softmax with temperature gives
 * probabilities, min-p and top-p cut again, and one uniform number picks.  Exponentials and sums are fixed double operations, so
 * the choice is the same on every host. */
#include "coordinator/sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/math.h"

int32_t pot_argmax(const float *logits, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC'11). */
void pot_philox(uint32_t out[4], uint64_t key, uint64_t counter_low, uint64_t counter_high) {
    uint32_t c[4] = {(uint32_t)counter_low, (uint32_t)(counter_low >> 32), (uint32_t)counter_high,
                     (uint32_t)(counter_high >> 32)};
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c[0], b = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
        memcpy(c, next, sizeof next);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    memcpy(out, c, sizeof c);
}

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

static int by_logit(const void *left, const void *right) {
    const candidate *a = left, *b = right;
    if (a->logit != b->logit) return a->logit > b->logit ? -1 : 1;
    return a->id < b->id ? -1 : 1;
}

pot_status pot_sample(int32_t *out, const float *logits, uint32_t vocab, const pot_sampling *s, uint64_t position,
                      float *scratch, pot_err *err) {
    for (uint32_t i = 0; i < vocab; i++)
        if (!isfinite(logits[i])) return pot_fail(err, POT_NUMERIC, "the logit of token %u is not finite", i);
    if (s->temperature <= 0 || s->top_k == 1) {
        *out = pot_argmax(logits, vocab);
        return POT_OK;
    }
    candidate *list = (candidate *)(void *)scratch;
    for (uint32_t i = 0; i < vocab; i++) list[i] = (candidate){logits[i], (int32_t)i};
    qsort(list, vocab, sizeof *list, by_logit);
    uint32_t n = s->top_k > 0 && (uint32_t)s->top_k < vocab ? (uint32_t)s->top_k : vocab;
    double top = list[0].logit, total = 0;
    for (uint32_t i = 0; i < n; i++) {
        double p = pot_exp(((double)list[i].logit - top) / (double)s->temperature);
        if (p < (double)s->min_p) { /* relative to the best, whose p is 1 */
            n = i;
            break;
        }
        list[i].logit = (float)p; /* from here on a weight */
        total += (double)list[i].logit;
    }
    if (s->top_p < 1) {
        double kept = 0;
        for (uint32_t i = 0; i < n; i++) {
            kept += (double)list[i].logit;
            if (kept >= (double)s->top_p * total) {
                n = i + 1;
                total = kept;
                break;
            }
        }
    }
    uint32_t random[4];
    pot_philox(random, s->seed, position, 0);
    double at = ((double)random[0] * 0x1p-32 + (double)random[1] * 0x1p-64) * total;
    uint32_t pick = 0;
    for (double seen = (double)list[0].logit; pick + 1 < n && seen <= at; seen += (double)list[pick].logit) pick++;
    *out = list[pick].id;
    return POT_OK;
}

double pot_log_softmax(const float *logits, uint32_t vocab, int32_t token) {
    double top = logits[pot_argmax(logits, vocab)], sum = 0;
    for (uint32_t i = 0; i < vocab; i++) sum += pot_exp((double)logits[i] - top);
    return (double)logits[token] - top - pot_log(sum);
}
