/* One layer's attention for a tile of rows.
 *
 *   h = input_norm(x)
 *   q_res = q_a_norm(q_a h)            q = q_b q_res          per head [nope | rope]
 *   [latent | k_rope] = kv_a h         latent normed, both rope parts turned, key row -> cache
 *   full layer: index query, key and head weights -> selection (indexer.c); shared layer: the last full layer's selection
 *   per head: q~ = W_UK^T q_nope in latent space; keys in blocks of 64 of the selection's ascending list, each block with its
 *   own maximum, sum and values, blocks combined in ascending order; o = W_UV (values / sum)
 *   x += o_proj concat(o)
 *
 * Work is shared out over (row, group of 16 heads): heads are lanes, a key is broadcast, and every output is one fmaf chain, so
 * neither threads nor tiles can change a bit.
 */
#include "coordinator/attention.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/math.h"

enum { KEY_BLOCK = 64 };

struct pot_attention {
    const pot_config *config;
    pot_compute compute;
    uint32_t max_tile, head_groups, key_width;
    pot_acts acts;        /* [max_tile] rows of the widest input */
    pot_acts head_acts;   /* [max_tile * n_heads]: a head's nope part, later its values in latent space */
    float *h;             /* [max_tile][hidden] */
    float *q_res;         /* [max_tile][q_lora] */
    float *q;             /* [max_tile][heads * (nope + rope)] */
    float *kv;            /* [max_tile][kv_lora + rope] */
    float *nope;          /* [heads][max_tile][nope] gathered per head */
    float *lifted;        /* [heads][max_tile][kv_lora] q~ */
    float *query;         /* [max_tile][head_groups][key_width][POT_LANES] */
    float *values;        /* [heads][max_tile][kv_lora] */
    float *head_out;      /* [heads][max_tile][v] */
    float *context;       /* [max_tile][heads * v] the same, row by row: the input of o_proj */
    float *out;           /* [max_tile][hidden] */
    float *frequencies;   /* [rope / 2] */
    float *sine, *cosine; /* [max_tile][rope / 2] */
    float *index_q;       /* [max_tile][index_heads * index_dim] */
    float *index_k;       /* [max_tile][index_dim] */
    float *index_w;       /* [max_tile][index_heads] */
    uint8_t *scratch;     /* [threads][scratch_bytes] */
    size_t scratch_bytes;
    float *scores; /* [score_capacity] of one row, grown with the context */
    uint64_t *order;
    uint32_t score_capacity;
};

/* ---- selection ------------------------------------------------------------------------------------------------ */

pot_status pot_selection_reserve(pot_selection *s, uint32_t n, uint32_t stride, pot_err *err) {
    if (n <= s->capacity && stride == s->stride) return POT_OK;
    pot_selection_free(s);
    s->positions = pot_alloc_array((size_t)n * stride, sizeof *s->positions);
    s->count = pot_alloc_array(n, sizeof *s->count);
    s->everything = pot_alloc_array(n, sizeof *s->everything);
    if (!s->positions || !s->count || !s->everything) {
        pot_selection_free(s);
        return pot_fail(err, POT_NO_MEMORY, "no memory for the selections of %u rows", n);
    }
    s->capacity = n;
    s->stride = stride;
    return POT_OK;
}

void pot_selection_free(pot_selection *s) {
    pot_free(s->positions);
    pot_free(s->count);
    pot_free(s->everything);
    *s = (pot_selection){0};
}

/* ---- life ----------------------------------------------------------------------------------------------------- */

static uint32_t max2(uint32_t a, uint32_t b) { return a > b ? a : b; }

pot_status pot_attention_create(pot_attention **out, const pot_model *model, const pot_compute *compute,
                                uint32_t max_tile, pot_err *err) {
    const pot_config *c = pot_model_config(model);
    pot_attention *a = pot_alloc(sizeof *a);
    if (!a) return pot_fail(err, POT_NO_MEMORY, "no memory for attention");
    a->config = c;
    a->compute = *compute;
    a->max_tile = max_tile;
    a->head_groups = (c->n_heads + POT_LANES - 1) / POT_LANES;
    a->key_width = c->kv_lora + c->rope_dim;
    size_t n = max_tile, heads = c->n_heads, pairs = c->rope_dim / 2;
    /* keys, scores and weights of one block; values of one block and of all so far */
    size_t scratch_floats = (size_t)KEY_BLOCK * (a->key_width + 2 * POT_LANES) + 2 * POT_LANES * (size_t)c->kv_lora;
    a->scratch_bytes = (scratch_floats * sizeof(float) + POT_LINE_BYTES - 1) / POT_LINE_BYTES * POT_LINE_BYTES;
    struct {
        float **place;
        size_t count;
    } arrays[] = {{&a->h, n * c->hidden},
                  {&a->q_res, n * c->q_lora},
                  {&a->q, n * heads * (c->nope_dim + c->rope_dim)},
                  {&a->kv, n * a->key_width},
                  {&a->nope, n * heads * c->nope_dim},
                  {&a->lifted, n * heads * c->kv_lora},
                  {&a->query, n * a->head_groups * a->key_width * POT_LANES},
                  {&a->values, n * heads * c->kv_lora},
                  {&a->head_out, n * heads * c->v_dim},
                  {&a->context, n * heads * c->v_dim},
                  {&a->out, n * c->hidden},
                  {&a->frequencies, pairs},
                  {&a->sine, n * pairs},
                  {&a->cosine, n * pairs},
                  {&a->index_q, n * c->index_heads * c->index_dim},
                  {&a->index_k, n * c->index_dim},
                  {&a->index_w, n * c->index_heads}};
    pot_status status = POT_OK;
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) {
        *arrays[i].place = pot_alloc_aligned(arrays[i].count * sizeof(float));
        if (!*arrays[i].place) status = POT_NO_MEMORY;
    }
    a->scratch = pot_alloc_aligned(a->scratch_bytes * (size_t)pot_team_threads(compute->team));
    if (status != POT_OK || !a->scratch) {
        status = pot_fail(err, POT_NO_MEMORY, "no memory for attention over tiles of %u rows", max_tile);
        goto fail;
    }
    status = pot_acts_create(&a->acts, max_tile, max2(max2(c->hidden, c->q_lora), c->n_heads * c->v_dim), err);
    if (status == POT_OK)
        status = pot_acts_create(&a->head_acts, max_tile * c->n_heads, max2(c->nope_dim, c->kv_lora), err);
    if (status != POT_OK) goto fail;
    pot_rope_frequencies(a->frequencies, c->rope_theta, c->rope_dim);
    *out = a;
    return POT_OK;
fail:
    pot_attention_free(a);
    return status;
}

void pot_attention_free(pot_attention *a) {
    if (!a) return;
    pot_acts_free(&a->acts);
    pot_acts_free(&a->head_acts);
    float *arrays[] = {a->h,     a->q_res,  a->q,        a->kv,      a->nope,    a->lifted,
                       a->query, a->values, a->head_out, a->context, a->out,     a->frequencies,
                       a->sine,  a->cosine, a->index_q,  a->index_k, a->index_w, a->scores};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++) pot_free(arrays[i]);
    pot_free(a->scratch);
    pot_free(a->order);
    pot_free(a);
}

/* ---- rope ----------------------------------------------------------------------------------------------------- */

/* Interleaved pairs (2j, 2j+1) of x [2 * pairs], turned in place. */
static void rope_turn(float *x, const float *sine, const float *cosine, uint32_t pairs) {
    for (uint32_t j = 0; j < pairs; j++) {
        float x0 = x[2 * j], x1 = x[2 * j + 1];
        x[2 * j] = fmaf(x0, cosine[j], -(x1 * sine[j]));
        x[2 * j + 1] = fmaf(x1, cosine[j], x0 * sine[j]);
    }
}

static void rope_angles(pot_attention *a, const pot_row *rows, uint32_t n) {
    uint32_t pairs = a->config->rope_dim / 2;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < pairs; j++)
            pot_sincos(&a->sine[i * pairs + j], &a->cosine[i * pairs + j], (float)rows[i].position * a->frequencies[j]);
}

/* ---- the parts ------------------------------------------------------------------------------------------------ */

/* Queries and key rows of the tile; keys go to the cache. */
static pot_status project(pot_attention *a, const pot_layer_weights *w, uint32_t layer, const pot_row *rows, uint32_t n,
                          pot_err *err) {
    const pot_config *c = a->config;
    const pot_kernels *kernels = a->compute.kernels;
    uint32_t pairs = c->rope_dim / 2, head_width = c->nope_dim + c->rope_dim, q_width = c->n_heads * head_width;
    unsigned need = pot_act_need(w->q_a.format) | pot_act_need(w->kv_a.format);
    if (c->layer_is_full[layer]) need |= pot_act_need(w->index_k.format) | pot_act_need(w->index_weights.format);
    pot_status s = pot_acts_fill(&a->acts, &a->compute, a->h, c->hidden, c->hidden, n, need, err);
    if (s != POT_OK) return s;
    pot_linear(&a->compute, a->q_res, c->q_lora, &w->q_a, a->acts.rows, n);
    pot_linear(&a->compute, a->kv, a->key_width, &w->kv_a, a->acts.rows, n);
    if (c->layer_is_full[layer]) {
        pot_linear(&a->compute, a->index_k, c->index_dim, &w->index_k, a->acts.rows, n);
        pot_linear(&a->compute, a->index_w, c->index_heads, &w->index_weights, a->acts.rows, n);
    }
    for (uint32_t i = 0; i < n; i++) {
        float *q_res = a->q_res + (size_t)i * c->q_lora, *kv = a->kv + (size_t)i * a->key_width;
        kernels->rms_norm(q_res, q_res, w->q_a_norm, c->q_lora, c->mla_eps);
        kernels->rms_norm(kv, kv, w->kv_a_norm, c->kv_lora, c->mla_eps);
        rope_turn(kv + c->kv_lora, a->sine + i * pairs, a->cosine + i * pairs, pairs);
        pot_kv_write(rows[i].sequence, layer, rows[i].position, kv);
    }
    need = pot_act_need(w->q_b.format);
    if (c->layer_is_full[layer]) need |= pot_act_need(w->index_q.format);
    s = pot_acts_fill(&a->acts, &a->compute, a->q_res, c->q_lora, c->q_lora, n, need, err);
    if (s != POT_OK) return s;
    pot_linear(&a->compute, a->q, q_width, &w->q_b, a->acts.rows, n);
    if (c->layer_is_full[layer])
        pot_linear(&a->compute, a->index_q, c->index_heads * c->index_dim, &w->index_q, a->acts.rows, n);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < c->n_heads; h++)
            rope_turn(a->q + (size_t)i * q_width + h * head_width + c->nope_dim, a->sine + i * pairs,
                      a->cosine + i * pairs, pairs);
    return POT_OK;
}

static pot_status reserve_scores(pot_attention *a, uint32_t n, pot_err *err) {
    if (n <= a->score_capacity) return POT_OK;
    uint32_t capacity = n + n / 2 + 1024;
    pot_free(a->scores);
    pot_free(a->order);
    a->score_capacity = 0;
    a->scores = pot_alloc_array(capacity, sizeof *a->scores);
    a->order = pot_alloc_array(capacity, sizeof *a->order);
    if (!a->scores || !a->order) return pot_fail(err, POT_NO_MEMORY, "no memory for %u index scores", n);
    a->score_capacity = capacity;
    return POT_OK;
}

/* A full layer: index keys to the cache, then every row's selection. */
static pot_status choose(pot_attention *a, const pot_layer_weights *w, uint32_t layer, const pot_row *rows,
                         uint32_t first, uint32_t n, pot_selection *selection, pot_err *err) {
    const pot_config *c = a->config;
    uint32_t pairs = c->rope_dim / 2;
    for (uint32_t i = 0; i < n; i++) {
        float *k = a->index_k + (size_t)i * c->index_dim;
        pot_layer_norm(k, k, w->index_k_norm, w->index_k_bias, c->index_dim, 1e-6f);
        rope_turn(k, a->sine + i * pairs, a->cosine + i * pairs, pairs);
        pot_kv_index_write(rows[i].sequence, layer, rows[i].position, k);
    }
    float head_scale = 1.0f / sqrtf((float)c->index_heads);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = first + i, seen = rows[i].position + 1;
        selection->everything[at] = seen <= c->index_topk;
        selection->count[at] = seen;
        if (selection->everything[at]) continue; /* same as dense attention: no need to score */
        float *q = a->index_q + (size_t)i * c->index_heads * c->index_dim;
        float *weights = a->index_w + (size_t)i * c->index_heads;
        for (uint32_t h = 0; h < c->index_heads; h++) {
            rope_turn(q + h * c->index_dim, a->sine + i * pairs, a->cosine + i * pairs, pairs);
            weights[h] *= head_scale;
        }
        pot_status s = reserve_scores(a, seen, err);
        if (s != POT_OK) return s;
        pot_index_query query = {.config = c,
                                 .compute = &a->compute,
                                 .sequence = rows[i].sequence,
                                 .layer = layer,
                                 .position = rows[i].position,
                                 .q = q,
                                 .weights = weights};
        s = pot_index_select(selection->positions + (size_t)at * selection->stride, &selection->count[at], &query,
                             a->scores, a->order, err);
        if (s != POT_OK) return s;
    }
    return POT_OK;
}

typedef struct head_products {
    const pot_attention *a;
    float *y;
    uint32_t y_width, n;
    const pot_matrix *m;
} head_products;

static void head_products_part(void *context, int thread, int threads) {
    const head_products *p = context;
    uint32_t begin, end;
    pot_team_share(&begin, &end, p->a->config->n_heads, thread, threads);
    for (uint32_t h = begin; h < end; h++) {
        const pot_matrix *m = &p->m[h];
        p->a->compute.kernels->matmul[m->format](p->y + (size_t)h * p->n * p->y_width, p->y_width, m, 0,
                                                 pot_tiles(m->rows), p->a->head_acts.rows + (size_t)h * p->n, p->n);
    }
}

/* One product per head: y[h][i] = m[h] x[h][i], all of them independent. */
static pot_status per_head(pot_attention *a, float *y, uint32_t y_width, const pot_matrix *m, const float *x,
                           uint32_t x_width, uint32_t n, pot_err *err) {
    uint32_t heads = a->config->n_heads;
    pot_status s =
        pot_acts_fill(&a->head_acts, &a->compute, x, x_width, x_width, heads * n, pot_act_need(m->format), err);
    if (s != POT_OK) return s;
    head_products products = {a, y, y_width, n, m};
    pot_team_run(a->compute.team, (uint64_t)heads * n * m->rows * m->cols, head_products_part, &products);
    return POT_OK;
}

/* The queries of a tile in latent space, heads as lanes: query[i][group][d][lane], d over [latent | rope]. */
static pot_status lift_queries(pot_attention *a, const pot_layer_weights *w, uint32_t n, pot_err *err) {
    const pot_config *c = a->config;
    uint32_t head_width = c->nope_dim + c->rope_dim, q_width = c->n_heads * head_width;
    for (uint32_t h = 0; h < c->n_heads; h++)
        for (uint32_t i = 0; i < n; i++)
            memcpy(a->nope + ((size_t)h * n + i) * c->nope_dim, a->q + (size_t)i * q_width + h * head_width,
                   c->nope_dim * sizeof(float));
    pot_status s = per_head(a, a->lifted, c->kv_lora, w->key_up, a->nope, c->nope_dim, n, err);
    if (s != POT_OK) return s;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t h = 0; h < c->n_heads; h++) {
            float *query =
                a->query + ((size_t)i * a->head_groups + h / POT_LANES) * a->key_width * POT_LANES + h % POT_LANES;
            const float *lifted = a->lifted + ((size_t)h * n + i) * c->kv_lora;
            const float *rope = a->q + (size_t)i * q_width + h * head_width + c->nope_dim;
            for (uint32_t d = 0; d < c->kv_lora; d++) query[(size_t)d * POT_LANES] = lifted[d];
            for (uint32_t d = 0; d < c->rope_dim; d++) query[(size_t)(c->kv_lora + d) * POT_LANES] = rope[d];
        }
    return POT_OK;
}

typedef struct key_list {
    const pot_sequence *sequence;
    const uint32_t *positions; /* NULL: 0..count-1 */
    uint32_t layer, count;
} key_list;

/* Keys [begin, begin + n) of the list; runs of neighbours are read at once. */
static void gather_keys(float *out, const pot_attention *a, const key_list *list, uint32_t begin, uint32_t n) {
    for (uint32_t i = 0; i < n;) {
        uint32_t position = list->positions ? list->positions[begin + i] : begin + i, run = 1;
        while (i + run < n && (!list->positions || list->positions[begin + i + run] == position + run)) run++;
        pot_kv_read(out + (size_t)i * a->key_width, list->sequence, a->compute.kernels, list->layer, position, run);
        i += run;
    }
}

/* Softmax-weighted latents of one row and one group of heads: values[head][kv_lora], already divided by the sum. */
static void attend(const pot_attention *a, float *const *values, const float *query, const key_list *list,
                   uint32_t heads, uint8_t *scratch) {
    const pot_config *c = a->config;
    const pot_kernels *k = a->compute.kernels;
    uint32_t latent = c->kv_lora;
    float scale = 1.0f / sqrtf((float)(c->nope_dim + c->rope_dim));
    float *keys = (float *)(void *)scratch;                  /* [KEY_BLOCK][key_width] */
    float *scores = keys + (size_t)KEY_BLOCK * a->key_width; /* [KEY_BLOCK][POT_LANES] */
    float *weights = scores + KEY_BLOCK * POT_LANES;         /* [KEY_BLOCK][POT_LANES] */
    float *total = weights + KEY_BLOCK * POT_LANES;          /* [latent][POT_LANES] */
    float *block = total + (size_t)latent * POT_LANES;       /* [latent][POT_LANES] */
    float top[POT_LANES], sum[POT_LANES];
    for (uint32_t begin = 0; begin < list->count; begin += KEY_BLOCK) {
        uint32_t n = list->count - begin < KEY_BLOCK ? list->count - begin : KEY_BLOCK;
        float block_top[POT_LANES], block_sum[POT_LANES], old_part[POT_LANES], block_part[POT_LANES];
        gather_keys(keys, a, list, begin, n);
        k->attention_scores(scores, query, keys, a->key_width, n, a->key_width);
        if (begin == 0) {
            k->attention_softmax(weights, top, sum, scores, scale, n);
            k->attention_values(total, weights, keys, a->key_width, n, latent);
            continue;
        }
        k->attention_softmax(weights, block_top, block_sum, scores, scale, n);
        k->attention_values(block, weights, keys, a->key_width, n, latent);
        for (uint32_t h = 0; h < POT_LANES; h++) {
            float new_top = block_top[h] > top[h] ? block_top[h] : top[h];
            old_part[h] = pot_expf(top[h] - new_top);
            block_part[h] = pot_expf(block_top[h] - new_top);
            sum[h] = fmaf(block_sum[h], block_part[h], sum[h] * old_part[h]);
            top[h] = new_top;
        }
        k->attention_merge(total, block, old_part, block_part, latent);
    }
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t d = 0; d < latent; d++) values[h][d] = total[(size_t)d * POT_LANES + h] / sum[h];
}

typedef struct attending {
    pot_attention *a;
    const pot_row *rows;
    const pot_selection *selection;
    uint32_t layer, first, n;
    atomic_uint next; /* rows see different numbers of keys, so items are taken as threads come */
} attending;

static void attending_part(void *context, int thread, int threads) {
    attending *t = context;
    pot_attention *a = t->a;
    const pot_config *c = a->config;
    const pot_selection *selection = t->selection;
    (void)threads;
    for (uint32_t item; (item = atomic_fetch_add(&t->next, 1)) < t->n * a->head_groups;) {
        uint32_t i = item / a->head_groups, group = item % a->head_groups, at = t->first + i;
        uint32_t heads = c->n_heads - group * POT_LANES < POT_LANES ? c->n_heads - group * POT_LANES : POT_LANES;
        key_list list = {.sequence = t->rows[i].sequence,
                         .layer = t->layer,
                         .count = selection->count[at],
                         .positions =
                             selection->everything[at] ? NULL : selection->positions + (size_t)at * selection->stride};
        float *values[POT_LANES];
        for (uint32_t h = 0; h < heads; h++)
            values[h] = a->values + ((size_t)(group * POT_LANES + h) * t->n + i) * c->kv_lora;
        attend(a, values, a->query + (size_t)item * a->key_width * POT_LANES, &list, heads,
               a->scratch + (size_t)thread * a->scratch_bytes);
    }
}

static void attend_tile(pot_attention *a, uint32_t layer, const pot_row *rows, uint32_t first, uint32_t n,
                        const pot_selection *selection) {
    uint64_t keys = 0;
    for (uint32_t i = 0; i < n; i++) keys += selection->count[first + i];
    attending t = {.a = a, .rows = rows, .selection = selection, .layer = layer, .first = first, .n = n};
    pot_team_run(a->compute.team, keys * a->config->n_heads * (a->key_width + a->config->kv_lora), attending_part, &t);
}

/* ---- the whole ------------------------------------------------------------------------------------------------ */

pot_status pot_attention_forward(pot_attention *a, float *x, const pot_layer_weights *w, uint32_t layer,
                                 const pot_row *rows, uint32_t first, uint32_t n, pot_selection *selection,
                                 pot_err *err) {
    const pot_config *c = a->config;
    POT_ASSERT(n <= a->max_tile && first + n <= selection->capacity);
    rows += first;
    for (uint32_t i = 0; i < n; i++)
        a->compute.kernels->rms_norm(a->h + (size_t)i * c->hidden, x + (size_t)i * c->hidden, w->input_norm, c->hidden,
                                     c->rms_eps);
    rope_angles(a, rows, n);
    pot_status s = project(a, w, layer, rows, n, err);
    if (s == POT_OK && c->layer_is_full[layer]) s = choose(a, w, layer, rows, first, n, selection, err);
    if (s == POT_OK) s = lift_queries(a, w, n, err);
    if (s != POT_OK) return pot_at(err, "layer %u", layer);
    attend_tile(a, layer, rows, first, n, selection);

    s = per_head(a, a->head_out, c->v_dim, w->value_up, a->values, c->kv_lora, n, err);
    if (s == POT_OK) {
        for (uint32_t h = 0; h < c->n_heads; h++)
            for (uint32_t i = 0; i < n; i++)
                memcpy(a->context + ((size_t)i * c->n_heads + h) * c->v_dim,
                       a->head_out + ((size_t)h * n + i) * c->v_dim, c->v_dim * sizeof(float));
        uint32_t width = c->n_heads * c->v_dim;
        s = pot_acts_fill(&a->acts, &a->compute, a->context, width, width, n, pot_act_need(w->o.format), err);
    }
    if (s != POT_OK) return pot_at(err, "layer %u", layer);
    pot_linear(&a->compute, a->out, c->hidden, &w->o, a->acts.rows, n);
    for (size_t i = 0; i < (size_t)n * c->hidden; i++) x[i] += a->out[i];
    return POT_OK;
}
