/* Selection is by score + bias, weights are of the score alone.  The chosen experts are put in ascending order before their scores
 * are added up, so that the sum has one order. */
#include "coordinator/router.h"

#include <math.h>

#include "kernels/math.h"

/* Index of the largest value, the lowest one when several are equal; -inf entries are taken. */
static uint32_t largest(const float *values, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (values[i] > values[best]) best = i;
    return best;
}

/* With several groups: a group's score is the sum of its two best choices; all but the topk_group best groups are ruled out. */
static void mask_groups(float *choice, const pot_config *c) {
    uint32_t size = c->n_routed / c->n_group;
    float score[POT_MAX_GROUPS];
    for (uint32_t g = 0; g < c->n_group; g++) {
        const float *member = choice + (size_t)g * size;
        float first = -INFINITY, second = -INFINITY;
        for (uint32_t i = 0; i < size; i++) {
            if (member[i] > first) {
                second = first;
                first = member[i];
            } else if (member[i] > second) {
                second = member[i];
            }
        }
        score[g] = size > 1 ? first + second : first;
    }
    bool keep[POT_MAX_GROUPS] = {false};
    for (uint32_t n = 0; n < c->topk_group; n++) {
        uint32_t g = largest(score, c->n_group);
        keep[g] = true;
        score[g] = -INFINITY;
    }
    for (uint32_t e = 0; e < c->n_routed; e++)
        if (!keep[e / size]) choice[e] = -INFINITY;
}

pot_status pot_route(uint32_t *experts, float *weights, const pot_config *c, float *logits, const float *bias,
                     float *choice, pot_err *err) {
    float *score = logits;
    for (uint32_t e = 0; e < c->n_routed; e++) {
        if (!isfinite(logits[e])) return pot_fail(err, POT_NUMERIC, "the router's logit of expert %u is not finite", e);
        score[e] = pot_sigmoid(logits[e]);
        choice[e] = score[e] + bias[e];
        if (!isfinite(choice[e]))
            return pot_fail(err, POT_NUMERIC, "the correction bias of expert %u is not finite", e);
    }
    if (c->n_group > 1) mask_groups(choice, c);
    for (uint32_t k = 0; k < c->top_k; k++) {
        uint32_t e = largest(choice, c->n_routed), at = k;
        choice[e] = -INFINITY;
        for (; at > 0 && experts[at - 1] > e; at--) experts[at] = experts[at - 1]; /* kept ascending */
        experts[at] = e;
    }
    float sum = 0;
    for (uint32_t k = 0; k < c->top_k; k++) {
        weights[k] = score[experts[k]];
        sum += weights[k];
    }
    for (uint32_t k = 0; k < c->top_k; k++)
        weights[k] = (c->norm_topk_prob ? weights[k] / (sum + 1e-20f) : weights[k]) * c->routed_scale;
    return POT_OK;
}
