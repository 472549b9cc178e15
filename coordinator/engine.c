/* The step.  Read this file first: a token's path is pot_engine_forward, from top to bottom.
 *
 *   embed                                  token -> x [hidden]
 *   for each layer                         all rows pass a layer before the next one starts (layer-major)
 *     attention    (attention.c)           x += attention(input_norm(x)), in tiles of rows; keys go to the cache (kv.c),
 *                                          full layers choose the keys that may be seen (indexer.c)
 *     router       (router.c)              post_norm(x) -> which experts, with which weights
 *     experts      (moe.c)                 one WORK per worker, own chunks meanwhile, integer sums back; x += y
 *   final norm, head                       logits of the rows that want them
 *
 * The MTP layer (pot_engine_draft) is one more layer of the same kind behind an input of its own.
 */
#include "coordinator/engine.h"

#include <string.h>

#include "common/clock.h"
#include "common/float_mode.h"
#include "common/mem.h"
#include "coordinator/attention.h"
#include "coordinator/router.h"
#include "coordinator/weights.h"
#include "kernels/linear.h"

struct pot_engine {
    const pot_model *model;
    const pot_config *config;
    pot_moe *moe;
    pot_compute compute;
    pot_weights weights;
    pot_attention *attention;
    uint32_t tile;
    pot_engine_stats stats;
    /* Working memory of one step, grown to `capacity` rows and kept. */
    uint32_t capacity;
    float *x;              /* [capacity][hidden] residual stream */
    float *h;              /* [capacity][hidden] normed */
    float *y;              /* [capacity][hidden] what a feed-forward gives back */
    uint32_t *experts;     /* [capacity][top_k] ascending */
    float *expert_weights; /* [capacity][top_k] */
    pot_selection selection;
    /* For `tile` rows at a time. */
    pot_acts acts;  /* of hidden, or of 2 * hidden for eh_proj */
    float *logits;  /* [tile][n_routed] of the router */
    float *scratch; /* [n_routed] */
    float *pair;    /* [tile][2 * hidden] input of eh_proj */
    /* --prefetch: what the next layer's router makes of this layer's state, for a few rows. */
    bool hints;
    uint32_t *hinted; /* [HINT_ROWS][top_k] */
    uint32_t n_hinted;
};

enum { HINT_ROWS = 8 }; /* a prompt's rows want nearly every expert anyway */

/* ---- life ----------------------------------------------------------------------------------------------------- */

pot_status pot_engine_create(pot_engine **out, const pot_engine_options *o, pot_err *err) {
    const pot_config *c = pot_model_config(o->model);
    pot_engine *e = pot_alloc(sizeof *e);
    if (!e) return pot_fail(err, POT_NO_MEMORY, "no memory for the engine");
    *e = (pot_engine){.model = o->model,
                      .config = c,
                      .moe = o->moe,
                      .compute = o->compute,
                      .tile = o->prefill_tile,
                      .hints = o->prefetch};
    pot_fp_strict();
    pot_status s = pot_weights_load(&e->weights, o->model, pot_team_threads(o->compute.team), o->quiet, err);
    if (s == POT_OK) s = pot_attention_create(&e->attention, o->model, &o->compute, e->tile, err);
    if (s == POT_OK) s = pot_acts_create(&e->acts, e->tile, 2 * c->hidden, err);
    if (s == POT_OK) {
        e->logits = pot_alloc_array((size_t)e->tile * c->n_routed, sizeof(float));
        e->scratch = pot_alloc_array(c->n_routed, sizeof(float));
        e->pair = pot_alloc_array((size_t)e->tile * 2 * c->hidden, sizeof(float));
        e->hinted = pot_alloc_array((size_t)HINT_ROWS * c->top_k, sizeof *e->hinted);
        if (!e->logits || !e->scratch || !e->pair || !e->hinted)
            s = pot_fail(err, POT_NO_MEMORY, "no memory for tiles of %u rows", e->tile);
    }
    if (s != POT_OK) {
        pot_engine_free(e);
        return s;
    }
    *out = e;
    return POT_OK;
}

static void free_step(pot_engine *e) {
    pot_free(e->x);
    pot_free(e->h);
    pot_free(e->y);
    pot_free(e->experts);
    pot_free(e->expert_weights);
    e->x = e->h = e->y = e->expert_weights = NULL;
    e->experts = NULL;
    e->capacity = 0;
}

void pot_engine_free(pot_engine *e) {
    if (!e) return;
    free_step(e);
    pot_selection_free(&e->selection);
    pot_attention_free(e->attention);
    pot_weights_free(&e->weights);
    pot_acts_free(&e->acts);
    pot_free(e->logits);
    pot_free(e->scratch);
    pot_free(e->pair);
    pot_free(e->hinted);
    pot_free(e);
}

const pot_engine_stats *pot_engine_get_stats(const pot_engine *e) { return &e->stats; }

static pot_status reserve_step(pot_engine *e, uint32_t n, pot_err *err) {
    const pot_config *c = e->config;
    if (n > e->capacity) {
        free_step(e);
        e->x = pot_alloc_array((size_t)n * c->hidden, sizeof(float));
        e->h = pot_alloc_array((size_t)n * c->hidden, sizeof(float));
        e->y = pot_alloc_array((size_t)n * c->hidden, sizeof(float));
        e->experts = pot_alloc_array((size_t)n * c->top_k, sizeof *e->experts);
        e->expert_weights = pot_alloc_array((size_t)n * c->top_k, sizeof(float));
        if (!e->x || !e->h || !e->y || !e->experts || !e->expert_weights) {
            free_step(e);
            return pot_fail(err, POT_NO_MEMORY, "no memory for a step of %u rows", n);
        }
        e->capacity = n;
    }
    return pot_selection_reserve(&e->selection, n, c->index_topk, err);
}

/* ---- one layer ------------------------------------------------------------------------------------------------ */

/* Rows [first, first + n) of a tile: which experts, with which weights. */
static pot_status route_tile(pot_engine *e, const pot_layer_weights *w, uint32_t first, uint32_t n, pot_err *err) {
    const pot_config *c = e->config;
    pot_status s = pot_acts_fill(&e->acts, &e->compute, e->h + (size_t)first * c->hidden, c->hidden, c->hidden, n,
                                 pot_act_need(w->router.format), err);
    if (s != POT_OK) return s;
    pot_linear(&e->compute, e->logits, c->n_routed, &w->router, e->acts.rows, n);
    for (uint32_t i = 0; i < n && s == POT_OK; i++)
        s = pot_route(e->experts + (size_t)(first + i) * c->top_k, e->expert_weights + (size_t)(first + i) * c->top_k,
                      c, e->logits + (size_t)i * c->n_routed, w->router_bias, e->scratch, err);
    return s;
}

/* How many of the experts that were expected in this layer are chosen now. */
static void count_hints(pot_engine *e, uint32_t n) {
    const uint32_t k = e->config->top_k;
    for (uint32_t i = 0; i < e->n_hinted && i < n * k; i++)
        for (uint32_t j = 0; j < n * k; j++)
            if (e->experts[j] == e->hinted[i] && j / k == i / k) {
                e->stats.hints_right++;
                break;
            }
    e->stats.hints += e->n_hinted;
    e->n_hinted = 0;
}

/* Asks the next layer's router about this layer's state, before its experts have changed it: most of the answer is right, and early
 * enough for a worker to fetch from disk. */
static pot_status hint_next(pot_engine *e, uint32_t layer, uint32_t n, pot_err *err) {
    const pot_config *c = e->config;
    const pot_layer_weights *next = &e->weights.layers[layer + 1];
    if (layer + 1 >= c->n_layers || c->layer_is_dense[layer + 1] || n > HINT_ROWS) return POT_OK;
    for (uint32_t i = 0; i < n; i++) { /* y is not in use yet */
        float *h = e->y + (size_t)i * c->hidden;
        e->compute.kernels->rms_norm(h, e->x + (size_t)i * c->hidden, next->post_norm, c->hidden, c->rms_eps);
        pot_status s =
            pot_acts_fill(&e->acts, &e->compute, h, c->hidden, c->hidden, 1, pot_act_need(next->router.format), err);
        if (s != POT_OK) return s;
        pot_linear(&e->compute, e->logits, c->n_routed, &next->router, e->acts.rows, 1);
        float weights[POT_MAX_TOP_K];
        s = pot_route(e->hinted + (size_t)i * c->top_k, weights, c, e->logits, next->router_bias, e->scratch, err);
        if (s != POT_OK) return s;
    }
    e->n_hinted = n * c->top_k;
    pot_moe_hint(e->moe, e->hinted, e->n_hinted);
    return POT_OK;
}

static void show(const pot_engine *e, const pot_probe *probe, uint32_t layer, uint32_t n, uint32_t shown) {
    const pot_config *c = e->config;
    for (uint32_t i = 0; i < n; i++) {
        if (probe->selected && c->layer_is_full[layer])
            probe->selected(probe->context, layer, shown + i,
                            e->selection.everything[i] ? NULL
                                                       : e->selection.positions + (size_t)i * e->selection.stride,
                            e->selection.count[i]);
        if (probe->experts && !c->layer_is_dense[layer])
            probe->experts(probe->context, layer, shown + i, e->experts + (size_t)i * c->top_k,
                           e->expert_weights + (size_t)i * c->top_k, c->top_k);
        if (probe->hidden) probe->hidden(probe->context, layer, shown + i, e->x + (size_t)i * c->hidden);
    }
}

/* x of all n rows through one decoder layer.  `shown`: what the probe calls the first row. */
static pot_status layer_forward(pot_engine *e, uint32_t layer, const pot_row *rows, uint32_t n, const pot_probe *probe,
                                uint32_t shown, pot_err *err) {
    const pot_config *c = e->config;
    const pot_layer_weights *w = &e->weights.layers[layer];
    bool sparse = !c->layer_is_dense[layer];

    uint64_t start = pot_now_us();
    for (uint32_t first = 0; first < n; first += e->tile) {
        uint32_t tile = n - first < e->tile ? n - first : e->tile;
        pot_status s = pot_attention_forward(e->attention, e->x + (size_t)first * c->hidden, w, layer, rows, first,
                                             tile, &e->selection, err);
        if (s != POT_OK) return s;
    }
    uint64_t attended = pot_now_us();
    e->stats.attention_us += attended - start;

    for (uint32_t i = 0; i < n; i++)
        e->compute.kernels->rms_norm(e->h + (size_t)i * c->hidden, e->x + (size_t)i * c->hidden, w->post_norm,
                                     c->hidden, c->rms_eps);
    for (uint32_t first = 0; sparse && first < n; first += e->tile) {
        pot_status s = route_tile(e, w, first, n - first < e->tile ? n - first : e->tile, err);
        if (s != POT_OK) return pot_at(err, "layer %u", layer);
    }
    if (e->n_hinted && sparse) count_hints(e, n);
    if (e->hints) {
        pot_status s = hint_next(e, layer, n, err);
        if (s != POT_OK) return pot_at(err, "layer %u: looking ahead", layer);
    }
    e->stats.router_us += pot_now_us() - attended;

    pot_status s = pot_moe_forward(e->moe, e->y, e->h, n, layer, sparse ? e->experts : NULL,
                                   sparse ? e->expert_weights : NULL, sparse ? c->top_k : 0, err);
    if (s != POT_OK) return s;
    for (size_t i = 0; i < (size_t)n * c->hidden; i++) e->x[i] += e->y[i];

    if (probe) show(e, probe, layer, n, shown);
    return POT_OK;
}

/* logits[k] = head of row which[k] of `normed`; which NULL = row k. */
static pot_status head(pot_engine *e, float *logits, const float *normed, const uint32_t *which, uint32_t n,
                       pot_err *err) {
    const pot_config *c = e->config;
    uint64_t start = pot_now_us();
    for (uint32_t first = 0; first < n; first += e->tile) {
        uint32_t tile = n - first < e->tile ? n - first : e->tile;
        for (uint32_t i = 0; i < tile; i++)
            memcpy(e->pair + (size_t)i * c->hidden, normed + (size_t)(which ? which[first + i] : first + i) * c->hidden,
                   c->hidden * sizeof(float));
        pot_status s = pot_acts_fill(&e->acts, &e->compute, e->pair, c->hidden, c->hidden, tile,
                                     pot_act_need(e->weights.head.format), err);
        if (s != POT_OK) return pot_at(err, "head");
        pot_linear(&e->compute, logits + (size_t)first * c->vocab, c->vocab, &e->weights.head, e->acts.rows, tile);
    }
    e->stats.head_us += pot_now_us() - start;
    return POT_OK;
}

/* ---- the step ------------------------------------------------------------------------------------------------- */

static pot_status check_token(const pot_engine *e, int32_t token, pot_err *err) {
    if (token < 0 || (uint32_t)token >= e->config->vocab)
        return pot_fail(err, POT_LIMIT, "token %d is outside the vocabulary of %u", token, e->config->vocab);
    return POT_OK;
}

/* Rows that pass together: [0, n) of the whole step's rows, seen from `shown`. */
static pot_status forward_rows(pot_engine *e, const pot_row *rows, uint32_t n, const pot_probe *probe, uint32_t shown,
                               pot_err *err) {
    const pot_config *c = e->config;
    pot_status s = reserve_step(e, n, err);
    if (s != POT_OK) return s;
    e->n_hinted = 0;
    for (uint32_t i = 0; i < n; i++) {
        pot_sequence *q = rows[i].sequence;
        s = check_token(e, rows[i].token, err);
        if (s != POT_OK) return s;
        if (rows[i].position != pot_sequence_length(q))
            return pot_fail(err, POT_BUG, "row %u is for position %u of a sequence of %u tokens", shown + i,
                            rows[i].position, pot_sequence_length(q));
        if (rows[i].position >= pot_sequence_capacity(q))
            return pot_fail(err, POT_LIMIT, "the context of %u tokens is full (--ctx)", pot_sequence_capacity(q));
        pot_sequence_advance(q, rows[i].position + 1);
        pot_matrix_row(e->x + (size_t)i * c->hidden, &e->weights.embed, (uint32_t)rows[i].token);
    }
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        s = layer_forward(e, layer, rows, n, probe, shown, err);
        if (s != POT_OK) return s;
    }
    for (uint32_t i = 0; i < n; i++)
        e->compute.kernels->rms_norm(e->h + (size_t)i * c->hidden, e->x + (size_t)i * c->hidden, e->weights.final_norm,
                                     c->hidden, c->rms_eps);
    e->stats.rows += n;
    return POT_OK;
}

/* Forgets the step's rows: the first row of each sequence says how long it was. */
static void undo(const pot_row *rows, uint32_t n) {
    for (uint32_t i = n; i-- > 0;)
        if (rows[i].position < pot_sequence_length(rows[i].sequence))
            pot_sequence_truncate(rows[i].sequence, rows[i].position);
}

pot_status pot_engine_forward(pot_engine *e, const pot_row *rows, uint32_t n, float *hidden, float *logits,
                              const uint32_t *logit_rows, uint32_t n_logits, const pot_probe *probe, pot_err *err) {
    const pot_config *c = e->config;
    pot_fp_strict();
    uint64_t start = pot_now_us();
    pot_status s = POT_OK;
    uint32_t done = 0, wanted = 0; /* rows, logit rows */
    while (done < n && s == POT_OK) {
        uint32_t part = n - done < POT_ENGINE_MAX_ROWS ? n - done : POT_ENGINE_MAX_ROWS;
        s = forward_rows(e, rows + done, part, probe, done, err);
        if (s != POT_OK) break;
        if (hidden) memcpy(hidden + (size_t)done * c->hidden, e->h, (size_t)part * c->hidden * sizeof(float));
        uint32_t which[POT_ENGINE_MAX_ROWS], count = 0;
        while (wanted + count < n_logits && logit_rows[wanted + count] < done + part) {
            which[count] = logit_rows[wanted + count] - done;
            count++;
        }
        s = head(e, logits + (size_t)wanted * c->vocab, e->h, which, count, err);
        wanted += count;
        done += part;
    }
    e->stats.total_us += pot_now_us() - start;
    if (s == POT_OK) return POT_OK;
    undo(rows, n);
    return s;
}

/* ---- MTP ------------------------------------------------------------------------------------------------------ */

static pot_status draft_rows(pot_engine *e, const pot_row *rows, const float *hidden, uint32_t n,
                             const pot_probe *probe, uint32_t shown, pot_err *err) {
    const pot_config *c = e->config;
    const pot_layer_weights *w = &e->weights.layers[c->n_layers];
    pot_status s = reserve_step(e, n, err);
    for (uint32_t i = 0; i < n && s == POT_OK; i++) {
        pot_sequence *q = rows[i].sequence;
        s = check_token(e, rows[i].token, err);
        if (s == POT_OK &&
            (rows[i].position > pot_sequence_mtp_length(q) || rows[i].position >= pot_sequence_capacity(q)))
            s = pot_fail(err, POT_BUG, "MTP row for position %u, its cache holds %u", rows[i].position,
                         pot_sequence_mtp_length(q));
        if (s == POT_OK) pot_sequence_mtp_advance(q, rows[i].position + 1);
    }
    for (uint32_t first = 0; first < n && s == POT_OK; first += e->tile) {
        uint32_t tile = n - first < e->tile ? n - first : e->tile;
        for (uint32_t i = 0; i < tile; i++) {
            float *pair = e->pair + (size_t)i * 2 * c->hidden; /* the embedding's half comes first */
            pot_matrix_row(pair, &e->weights.embed, (uint32_t)rows[first + i].token);
            e->compute.kernels->rms_norm(pair, pair, w->enorm, c->hidden, c->rms_eps);
            e->compute.kernels->rms_norm(pair + c->hidden, hidden + (size_t)(first + i) * c->hidden, w->hnorm,
                                         c->hidden, c->rms_eps);
        }
        s = pot_acts_fill(&e->acts, &e->compute, e->pair, 2 * c->hidden, 2 * c->hidden, tile,
                          pot_act_need(w->eh_proj.format), err);
        if (s == POT_OK)
            pot_linear(&e->compute, e->x + (size_t)first * c->hidden, c->hidden, &w->eh_proj, e->acts.rows, tile);
    }
    if (s == POT_OK) s = layer_forward(e, c->n_layers, rows, n, probe, shown, err);
    if (s != POT_OK) return s;
    for (uint32_t i = 0; i < n; i++)
        e->compute.kernels->rms_norm(e->h + (size_t)i * c->hidden, e->x + (size_t)i * c->hidden, w->mtp_norm, c->hidden,
                                     c->rms_eps);
    return POT_OK;
}

pot_status pot_engine_draft(pot_engine *e, const pot_row *rows, const float *hidden, uint32_t n, float *z,
                            float *logits, const pot_probe *probe, pot_err *err) {
    const pot_config *c = e->config;
    if (c->n_mtp == 0) return pot_fail(err, POT_USAGE, "this model has no MTP layer to draft with");
    pot_fp_strict();
    for (uint32_t done = 0; done < n;) {
        uint32_t part = n - done < POT_ENGINE_MAX_ROWS ? n - done : POT_ENGINE_MAX_ROWS;
        pot_status s = draft_rows(e, rows + done, hidden + (size_t)done * c->hidden, part, probe, done, err);
        if (s == POT_OK && logits) s = head(e, logits + (size_t)done * c->vocab, e->h, NULL, part, err);
        if (s != POT_OK) return pot_at(err, "MTP layer");
        memcpy(z + (size_t)done * c->hidden, e->h, (size_t)part * c->hidden * sizeof(float));
        done += part;
    }
    return POT_OK;
}
