/* The DSA indexer: I(s, t) = sum over heads of w_h * max(0, (q_h . k_t) * dim^-0.5) for every key t <= s, and the index_topk best
 * of them.  Keys are lanes, turned so that a dimension of 16 keys lies together; the sum over heads is one fmaf chain per key,
 * heads ascending. */
#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "coordinator/attention.h"
#include "kernels/convert.h"

enum { PART_KEYS = 128, MAX_INDEX_DIM = 512 };

/* Larger score first, then smaller index: one integer order in which no two keys are equal. */
static uint64_t order_key(float score, uint32_t index) {
    uint32_t bits = pot_f32_bits(score + 0.0f); /* -0 and +0 are the same score */
    bits = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return (uint64_t)bits << 32 | (0xffffffffu - index);
}

/* The k-th largest of keys[0..n) (k >= 1), which are all different; they are moved about. */
static uint64_t kth_largest(uint64_t *keys, uint32_t n, uint32_t k) {
    uint32_t low = 0, high = n - 1, want = k - 1;
    while (low < high) {
        uint64_t a = keys[low], b = keys[low + (high - low) / 2], c = keys[high];
        uint64_t pivot = a > b ? (b > c ? b : a > c ? c : a) : (a > c ? a : b > c ? c : b); /* median of three */
        uint32_t i = low, j = high;
        for (;;) {
            while (keys[i] > pivot) i++;
            while (keys[j] < pivot) j--;
            if (i >= j) break;
            uint64_t t = keys[i];
            keys[i++] = keys[j];
            keys[j--] = t;
        }
        /* keys[low..j] >= pivot >= keys[j+1..high]; j < high, since the median of three is not the least */
        if (want <= j)
            high = j;
        else
            low = j + 1;
    }
    return keys[low];
}

void pot_top_positions(uint32_t *positions, uint32_t k, const float *scores, uint32_t n, uint64_t *order) {
    if (k == 0) return;
    for (uint32_t t = 0; t < n; t++) order[t] = order_key(scores[t], t);
    uint64_t least = kth_largest(order, n, k);
    uint32_t found = 0;
    for (uint32_t t = 0; t < n; t++)
        if (order_key(scores[t], t) >= least) positions[found++] = t;
    POT_ASSERT(found == k);
}

typedef struct scoring {
    const pot_index_query *query;
    float *scores;
    uint32_t n; /* keys */
    atomic_uint next;
    atomic_bool finite;
} scoring;

/* Scores of keys [begin, end). */
static bool score_keys(float *scores, const pot_index_query *q, uint32_t begin, uint32_t end) {
    const pot_config *c = q->config;
    const uint32_t dims = c->index_dim;
    float keys[POT_LANES * MAX_INDEX_DIM], turned[POT_LANES * MAX_INDEX_DIM], out[POT_LANES];
    const float scale = 1.0f / sqrtf((float)dims);
    bool finite = true;
    for (uint32_t t = begin; t < end; t += POT_LANES) {
        uint32_t n = end - t < POT_LANES ? end - t : POT_LANES;
        pot_kv_index_read(keys, q->sequence, q->compute->kernels, q->layer, t, n);
        if (n < POT_LANES) memset(keys + (size_t)n * dims, 0, (POT_LANES - n) * dims * sizeof *keys);
        for (uint32_t d = 0; d < dims; d++)
            for (uint32_t i = 0; i < POT_LANES; i++) turned[d * POT_LANES + i] = keys[i * dims + d];
        finite &= q->compute->kernels->index_scores(out, q->q, q->weights, scale, turned, c->index_heads, dims);
        memcpy(scores + t, out, n * sizeof *out);
    }
    return finite;
}

static void scoring_part(void *context, int thread, int threads) {
    scoring *s = context;
    (void)thread;
    (void)threads;
    for (uint32_t begin; (begin = atomic_fetch_add(&s->next, 1) * PART_KEYS) < s->n;) {
        uint32_t end = s->n - begin < PART_KEYS ? s->n : begin + PART_KEYS;
        if (!score_keys(s->scores, s->query, begin, end)) atomic_store(&s->finite, false);
    }
}

pot_status pot_index_select(uint32_t *positions, uint32_t *count, const pot_index_query *q, float *scores,
                            uint64_t *order, pot_err *err) {
    const pot_config *c = q->config;
    POT_ASSERT(c->index_dim <= MAX_INDEX_DIM);
    uint32_t n = q->position + 1;
    scoring s = {.query = q, .scores = scores, .n = n, .finite = true};
    pot_team_run(q->compute->team, (uint64_t)n * c->index_heads * c->index_dim, scoring_part, &s);
    if (!atomic_load(&s.finite))
        return pot_fail(err, POT_NUMERIC, "layer %u: an index score of position %u is not finite", q->layer,
                        q->position);
    *count = c->index_topk < n ? c->index_topk : n;
    pot_top_positions(positions, *count, scores, n, order);
    return POT_OK;
}
