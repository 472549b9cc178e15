/* The DSA indexer: I(s, t) = sum over heads of w_h * max(0, (q_h . k_t) * dim^-0.5) for every key t <= s, and the index_topk best
 * of them.  Heads are lanes of the dot products; the sum over heads is one fmaf chain per key, heads ascending. */
#include <math.h>
#include <omp.h>
#include <stdatomic.h>

#include "coordinator/attention.h"
#include "kernels/convert.h"
#include "kernels/math.h"

enum { KEYS = 32, MAX_INDEX_DIM = 512, MAX_LANES = 256 };

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

/* Scores of keys [begin, end). */
static bool score_keys(float *scores, const pot_index_query *q, uint32_t begin, uint32_t end) {
    const pot_config *c = q->config;
    float keys[KEYS * MAX_INDEX_DIM], dots[MAX_LANES];
    float scale = 1.0f / sqrtf((float)c->index_dim);
    bool finite = true;
    for (uint32_t t = begin; t < end; t += KEYS) {
        uint32_t n = end - t < KEYS ? end - t : KEYS;
        pot_kv_index_read(keys, q->sequence, q->compute->kernels, q->layer, t, n);
        for (uint32_t i = 0; i < n; i++) {
            for (uint32_t h = 0; h < q->lanes; h++) dots[h] = 0;
            q->compute->kernels->heads_dot(dots, q->q, q->lanes, keys + (size_t)i * c->index_dim, c->index_dim,
                                           q->lanes);
            float sum = 0;
            for (uint32_t h = 0; h < c->index_heads; h++) {
                float s = dots[h] * scale;
                sum = fmaf(q->weights[h], s > 0 ? s : 0, sum);
                if (!isfinite(s)) finite = false; /* the comparison above would hide a NaN */
            }
            if (!isfinite(sum)) finite = false;
            scores[t + i] = sum;
        }
    }
    return finite;
}

pot_status pot_index_select(uint32_t *positions, uint32_t *count, const pot_index_query *q, float *scores,
                            uint64_t *order, pot_err *err) {
    const pot_config *c = q->config;
    POT_ASSERT(c->index_dim <= MAX_INDEX_DIM && q->lanes <= MAX_LANES);
    uint32_t n = q->position + 1;
    uint32_t parts = (n + 4 * KEYS - 1) / (4 * KEYS);
    atomic_bool finite = true;
    const bool worth = pot_worth_threads(q->compute, (uint64_t)n * q->lanes * c->index_dim);
#pragma omp parallel for schedule(static) num_threads(q->compute->threads) if (worth)
    for (uint32_t part = 0; part < parts; part++) {
        pot_fp_strict();
        uint32_t begin = part * 4 * KEYS;
        uint32_t end = begin + 4 * KEYS < n ? begin + 4 * KEYS : n;
        if (!score_keys(scores, q, begin, end)) atomic_store(&finite, false);
    }
    if (!finite)
        return pot_fail(err, POT_NUMERIC, "layer %u: an index score of position %u is not finite", q->layer,
                        q->position);
    *count = c->index_topk < n ? c->index_topk : n;
    pot_top_positions(positions, *count, scores, n, order);
    return POT_OK;
}
