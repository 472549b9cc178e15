/* What a token costs on what plan_place has placed: the coordinator's part, and layer after layer of experts. */
#include <string.h>

#include "cli/plan.h"
#include "common/mem.h"
#include "kernels/linear.h"
#include "proto/wire.h"

/* WORK and SUM of one row for so many items. */
static double message_bytes(const plan_task *task, uint32_t layer, uint32_t items) {
    const pot_model *model = task->model;
    const pot_ffn_shape *shape = pot_model_routed(model, layer);
    if (!shape) shape = pot_model_common(model, layer);
    pot_wire_header h = {.n_rows = 1,
                         .n_items = items,
                         .formats = (uint8_t)(shape ? pot_act_need(shape->gate_up_format) : POT_ACT_Q8),
                         .columns = pot_model_config(model)->hidden};
    pot_wire_layout work, sum;
    pot_wire_work_layout(&work, &h);
    h.formats = POT_WIRE_ROWS_INT;
    pot_wire_sum_layout(&sum, &h, 0);
    return (double)(work.bytes + sum.bytes);
}

/* Weights that the coordinator reads for every token: all of its own but the embeddings, of which it takes a row, and the MTP layer's. */
static double dense_bytes(const plan_task *task) {
    const pot_config *c = pot_model_config(task->model);
    uint64_t bytes = pot_model_coordinator_bytes(task->model),
             unread = pot_model_dense_bytes(task->model, POT_ROLE_EMBED, 0);
    for (uint32_t layer = c->n_layers; layer < pot_model_layers(task->model); layer++)
        unread += pot_model_layer_bytes(task->model, layer);
    return bytes > unread ? (double)(bytes - unread) : 0;
}

/* The last token of the context: for each layer the keys that the indexer keeps, twice (scores, values) for every head; on full
 * layers all index keys. */
static pot_cost_dense dense_cost(const plan_task *task, const plan_cluster *cluster) {
    const pot_config *c = pot_model_config(task->model);
    double keys = task->ctx_tokens < c->index_topk ? task->ctx_tokens : c->index_topk;
    double value_bytes = task->kv == POT_KV_F32 ? 4 : 2;
    pot_cost_dense d = {.dense_bytes = dense_bytes(task),
                        .bytes_per_s = cluster->machines[0].dense_bytes_per_s,
                        .operations_per_s = cluster->operations_per_s};
    for (uint32_t layer = 0; layer < c->n_layers; layer++) {
        d.kv_bytes += keys * (c->kv_lora + c->rope_dim) * value_bytes;
        d.operations += 2.0 * keys * c->n_heads * (2.0 * c->kv_lora + c->rope_dim);
        if (!c->layer_is_full[layer]) continue;
        d.kv_bytes += (double)task->ctx_tokens * c->index_dim * value_bytes;
        d.operations += 2.0 * task->ctx_tokens * c->index_heads * c->index_dim;
    }
    return d;
}

static void add_time(pot_cost_time *total, const pot_cost_time *t) {
    total->slowest_s += t->slowest_s;
#define X(name) total->name##_s += t->name##_s;
    POT_COST_PART_MAP(X)
#undef X
    total->port_s += t->port_s;
    total->asked += t->asked;
    for (int i = 0; i < POT_COST_TIERS; i++) total->bytes[i] += t->bytes[i];
}

/* One layer's costs, kept for the next one: without a usage file most layers are alike. */
typedef struct costs {
    pot_cost_layer layer;
    pot_cost_time time;
    double alone_s[POT_MAX_WORKERS];
} costs;

static bool alike(const pot_cost_layer *a, const pot_cost_layer *b, uint32_t workers) {
    return a->loads && a->k == b->k && a->whole == b->whole && a->message_bytes == b->message_bytes &&
           memcmp(a->loads, b->loads, workers * sizeof *a->loads) == 0;
}

static pot_status cost_layer(costs *out, const pot_cost_cluster *cluster, const pot_cost_layer *layer, pot_err *err) {
    pot_status status = POT_OK;
    if (alike(&out->layer, layer, cluster->n_workers)) return POT_OK;
    *out = (costs){.layer = *layer};
    status = pot_cost_add_layer(&out->time, cluster, layer, err);
    for (uint32_t w = 0; !status && w < cluster->n_workers; w++)
        status = pot_cost_worker_s(&out->alone_s[w], cluster, layer, w, err);
    return status;
}

static pot_status cost_experts(plan_result *r, const plan_task *task, const plan_cluster *cluster,
                               const plan_loads *loads, pot_err *err) {
    const pot_config *c = pot_model_config(task->model);
    pot_cost_worker workers[POT_MAX_WORKERS];
    pot_cost_cluster machines = {cluster->n, workers, cluster->port_bytes_per_s};
    pot_status status = POT_OK;
    costs last = {0};
    for (uint32_t w = 0; w < cluster->n; w++) workers[w] = cluster->machines[w].speed;
    for (uint32_t i = 0; !status && i < loads->layers; i++) {
        uint32_t k = c->layer_is_dense[i] ? 0 : c->top_k;
        pot_cost_layer layer = {.k = k,
                                .whole = loads->whole[i],
                                .message_bytes = message_bytes(task, i, k + 1),
                                .loads = loads->loads + (size_t)i * loads->workers};
        status = cost_layer(&last, &machines, &layer, err);
        if (status) break;
        add_time(&r->time, &last.time);
        for (uint32_t w = 0; w < cluster->n; w++) r->workers[w].alone_s += last.alone_s[w];
        r->experts += k;
    }
    return status;
}

pot_status plan_compute(plan_result *out, const plan_task *task, const plan_cluster *cluster, pot_err *err) {
    plan_loads loads = {0};
    plan_result *r = pot_alloc(sizeof *r);
    if (!r) return pot_fail(err, POT_NO_MEMORY, "no memory for a plan");
    pot_status status = plan_place(&loads, r, task, cluster, err);
    if (!status) status = cost_experts(r, task, cluster, &loads, err);
    if (!status) {
        pot_cost_dense d = dense_cost(task, cluster);
        r->dense_bytes = d.dense_bytes;
        double all = pot_cost_dense_s(&d);
        d.kv_bytes = d.operations = 0;
        r->dense_s = pot_cost_dense_s(&d);
        r->attention_s = all - r->dense_s;
        r->token_s = all + r->time.slowest_s + r->time.port_s;
        *out = *r;
    }
    plan_loads_free(&loads);
    pot_free(r);
    return status;
}
