/* What lies where: the shared experts and dense layers first, for every token wants them; then the routed experts, the hottest in the fastest
 * memory; the MTP layer's last, for nothing asks for them yet.
 *
 * Which experts are hot is known from a usage file, or it is not: then a worker's experts are a random part of each layer, and the curve says
 * how much of the choices falls on the hottest part of them. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/plan.h"
#include "common/mem.h"
#include "worker/store.h"

/* All that a worker owns of one expert: it is asked for at once, so it counts as one. */
typedef struct unit {
    double heat; /* times a token */
    uint64_t bytes;
    uint64_t asked_bytes; /* of these, what this worker and not another owner is asked for */
    uint32_t layer;
} unit;

/* One worker being filled. */
typedef struct filling {
    const plan_task *task;
    pot_cost_load *loads; /* of layer 0; [layer * workers] */
    uint32_t worker, workers, layers, trunk;
    unit *units;
    size_t n_units;
    uint64_t common_bytes, routed_bytes, mtp_bytes;
    uint64_t room[POT_COST_TIERS];
    plan_worker *out;
} filling;

/* ---- what a worker owns ------------------------------------------------------------------------------------------------------ */

static uint64_t range_bytes(const pot_ffn_shape *shape, const pot_map_range *r) {
    uint64_t bytes = 0;
    for (uint32_t c = r->chunk_begin; c < r->chunk_end; c++) bytes += pot_chunk_bytes(shape, c);
    return bytes;
}

static double heat_of(const plan_task *task, uint32_t layer, uint32_t expert) {
    const pot_config *c = pot_model_config(task->model);
    return task->heat ? task->heat[(size_t)layer * c->n_routed + expert] : (double)c->top_k / c->n_routed;
}

static void add_expert(filling *f, uint32_t expert, const unit *u) {
    f->out->owned_bytes += u->bytes;
    if (u->layer >= f->trunk) {
        f->mtp_bytes += u->bytes;
    } else if (expert >= pot_model_layer_shapes(f->task->model)[u->layer].n_routed) {
        f->common_bytes += u->bytes;
        f->loads[u->layer * f->workers].common_bytes[POT_COST_RAM] +=
            (double)u->asked_bytes; /* until it is known where */
    } else {
        f->routed_bytes += u->bytes;
        f->units[f->n_units++] = *u;
    }
}

static void collect(filling *f, const pot_map *map) {
    const pot_model *model = f->task->model;
    for (uint32_t layer = 0; layer < f->layers; layer++) {
        const pot_layer_shape *shape = pot_map_layer_shape(map, layer);
        for (uint32_t e = 0; e < pot_layer_experts(shape); e++) {
            uint32_t n;
            const pot_map_range *r = pot_map_ranges(map, layer, e, &n);
            unit u = {.layer = layer};
            for (uint32_t i = 0; i < n; i++) {
                if (!(r[i].owners >> f->worker & 1)) continue;
                uint64_t bytes = range_bytes(pot_model_expert_shape(model, layer, e), &r[i]);
                u.bytes += bytes;
                if (r[i].first == f->worker) u.asked_bytes += bytes;
            }
            if (e < shape->n_routed) u.heat = heat_of(f->task, layer, e);
            if (u.bytes) add_expert(f, e, &u);
        }
    }
}

/* ---- filling ------------------------------------------------------------------------------------------------------------------- */

/* Puts `bytes` into the fastest places that have room; part[t] = how much of it lies where. */
static void put(filling *f, double part[POT_COST_TIERS], uint64_t bytes) {
    uint64_t left = bytes;
    for (int t = 0; t < POT_COST_TIERS; t++) {
        uint64_t here = left < f->room[t] ? left : f->room[t];
        if (t == POT_COST_DISK) here = left;
        f->room[t] -= t == POT_COST_DISK ? 0 : here;
        f->out->lies_bytes[t] += here;
        part[t] = bytes ? (double)here / (double)bytes : 0;
        left -= here;
    }
}

static void place_common(filling *f) {
    double part[POT_COST_TIERS];
    put(f, part, f->common_bytes);
    for (uint32_t layer = 0; layer < f->trunk; layer++) {
        pot_cost_load *l = &f->loads[layer * f->workers];
        double bytes = l->common_bytes[POT_COST_RAM];
        for (int t = 0; t < POT_COST_TIERS; t++) l->common_bytes[t] = bytes * part[t];
    }
}

/* Sums while units are added, means after finish(). */
static void ask(filling *f, const unit *u, const double part[POT_COST_TIERS]) {
    pot_cost_load *l = &f->loads[u->layer * f->workers];
    if (!u->asked_bytes) return;
    l->units += u->heat;
    l->unit_bytes += u->heat * (double)u->asked_bytes;
    for (int t = 0; t < POT_COST_TIERS; t++) l->share[t] += u->heat * part[t];
}

/* The hottest `part` of a worker's share of a layer gets curve(part) of what is wanted of it. */
static void place_by_curve(filling *f) {
    uint32_t n = pot_model_config(f->task->model)->n_routed;
    double part[POT_COST_TIERS], wanted[POT_COST_TIERS];
    put(f, part, f->routed_bytes);
    wanted[POT_COST_VRAM] = pot_cost_curve(n, part[POT_COST_VRAM]);
    wanted[POT_COST_RAM] = pot_cost_curve(n, part[POT_COST_VRAM] + part[POT_COST_RAM]) - wanted[POT_COST_VRAM];
    if (part[POT_COST_DISK] <= 0) wanted[POT_COST_RAM] = 1 - wanted[POT_COST_VRAM]; /* no rounding */
    wanted[POT_COST_DISK] = 1 - wanted[POT_COST_VRAM] - wanted[POT_COST_RAM];
    if (wanted[POT_COST_DISK] < 0 || part[POT_COST_DISK] <= 0) wanted[POT_COST_DISK] = 0;
    for (size_t i = 0; i < f->n_units; i++) ask(f, &f->units[i], wanted);
}

static int hottest_first(const void *a, const void *b) {
    const unit *x = a, *y = b;
    if (x->heat != y->heat) return x->heat < y->heat ? 1 : -1;
    return (x->layer > y->layer) - (x->layer < y->layer);
}

static void place_by_heat(filling *f) {
    if (f->n_units) qsort(f->units, f->n_units, sizeof *f->units, hottest_first);
    for (size_t i = 0; i < f->n_units; i++) {
        double part[POT_COST_TIERS] = {0};
        int t = POT_COST_VRAM; /* a unit is kept as a whole */
        while (t < POT_COST_DISK && f->room[t] < f->units[i].bytes) t++;
        if (t < POT_COST_DISK) f->room[t] -= f->units[i].bytes;
        f->out->lies_bytes[t] += f->units[i].bytes;
        part[t] = 1;
        ask(f, &f->units[i], part);
    }
}

static void finish(filling *f) {
    double unused[POT_COST_TIERS];
    put(f, unused, f->mtp_bytes);
    for (uint32_t layer = 0; layer < f->trunk; layer++) {
        pot_cost_load *l = &f->loads[layer * f->workers];
        if (l->units > 0) {
            l->unit_bytes /= l->units;
            for (int t = 0; t < POT_COST_TIERS; t++) l->share[t] /= l->units;
        }
        f->out->units += l->units;
        for (int t = 0; t < POT_COST_TIERS; t++)
            f->out->wanted_bytes[t] += l->units * l->unit_bytes * l->share[t] + l->common_bytes[t];
    }
}

/* ---- what there is room for ---------------------------------------------------------------------------------------------------- */

static double gib(uint64_t bytes) { return (double)bytes / 0x1p30; }

/* By the rule of a worker's `--ram auto` (docs/store.md): what the machine has, less the coordinator's weights, less the reserve. */
static pot_status room_of(uint64_t *out, const plan_result *r, const plan_machine *m, uint32_t worker, pot_err *err) {
    uint64_t beside =
        worker ? pot_memory_reserve(m->machine_bytes) : pot_memory_reserve(m->machine_bytes) + r->coordinator_bytes;
    const uint64_t total = m->machine_bytes;
    if (!worker && total && r->coordinator_bytes + r->kv_bytes > total)
        return pot_fail(
            err, POT_LIMIT,
            "%s has %.2f GiB of RAM, but the coordinator's weights take %.2f GiB and its KV cache %.2f GiB: "
            "choose a machine with more for worker 0, a smaller --ctx, or fewer bits with --dense and --head",
            m->name, gib(total), gib(r->coordinator_bytes), gib(r->kv_bytes));
    *out = total > beside ? total - beside : 0;
    if (!total || m->ram_bytes < *out) *out = m->ram_bytes;
    return POT_OK;
}

static pot_status check_worker(const plan_task *task, const pot_map *map, const plan_result *r, const plan_machine *m,
                               uint32_t w, pot_err *err) {
    uint64_t least, all;
    const plan_worker *p = &r->workers[w];
    uint64_t in_memory = p->owned_bytes - p->lies_bytes[POT_COST_DISK];
    pot_store_needs(&least, &all, task->model, map, w);
    if (p->lies_bytes[POT_COST_DISK] && r->ram_bytes[w] < least)
        return pot_fail(
            err, POT_LIMIT,
            "worker %u on %s has %.3f GiB of RAM for experts, but needs %.3f GiB at the least, for two pieces "
            "of experts",
            w, m->name, gib(r->ram_bytes[w]), gib(least));
    if (p->lies_bytes[POT_COST_DISK] && (!m->disk_bytes || m->disk_bytes < p->owned_bytes))
        return pot_fail(
            err, POT_LIMIT,
            "worker %u on %s owns %.2f GiB of experts; its memory holds %.2f GiB of them and its disk has %.2f "
            "GiB, where all of them must lie: it needs more of either, or another worker beside it",
            w, m->name, gib(p->owned_bytes), gib(in_memory), gib(m->disk_bytes));
    return POT_OK;
}

/* ---- all workers --------------------------------------------------------------------------------------------------------------- */

static size_t count_experts(const pot_map *map) {
    size_t all = 0;
    for (uint32_t layer = 0; layer < pot_map_layers(map); layer++)
        all += pot_layer_experts(pot_map_layer_shape(map, layer));
    return all;
}

static void mark_whole(plan_loads *loads, const pot_map *map) {
    for (uint32_t layer = 0; layer < loads->layers; layer++) {
        loads->whole[layer] = true;
        for (uint32_t e = 0; e < pot_map_layer_shape(map, layer)->n_routed; e++) {
            uint32_t n;
            (void)pot_map_ranges(map, layer, e, &n);
            loads->whole[layer] &= n == 1;
        }
    }
}

static pot_status fill_worker(plan_loads *loads, plan_result *r, const plan_task *task, const plan_cluster *cluster,
                              const pot_map *map, uint32_t w, unit *units, pot_err *err) {
    const plan_machine *m = &cluster->machines[w];
    filling f = {.task = task,
                 .loads = loads->loads + w,
                 .worker = w,
                 .workers = loads->workers,
                 .layers = pot_model_layers(task->model),
                 .trunk = loads->layers,
                 .units = units,
                 .out = &r->workers[w]};
    pot_status status = room_of(&r->ram_bytes[w], r, m, w, err);
    if (status) return status;
    f.room[POT_COST_VRAM] = m->vram_bytes;
    f.room[POT_COST_RAM] = r->ram_bytes[w];
    collect(&f, map);
    place_common(&f);
    if (task->heat)
        place_by_heat(&f);
    else
        place_by_curve(&f);
    finish(&f);
    return check_worker(task, map, r, m, w, err);
}

pot_status plan_place(plan_loads *out, plan_result *r, const plan_task *task, const plan_cluster *cluster,
                      pot_err *err) {
    const pot_config *c = pot_model_config(task->model);
    uint32_t all_layers = pot_model_layers(task->model);
    plan_loads loads = {.layers = c->n_layers, .workers = cluster->n};
    pot_map *map = NULL;
    pot_status status =
        pot_map_make(&map, task->map, 1, cluster->n, pot_model_layer_shapes(task->model), all_layers, err);
    if (status) return status;
    unit *units = pot_alloc_array(count_experts(map), sizeof *units);
    loads.loads = pot_alloc_array((size_t)loads.layers * loads.workers, sizeof *loads.loads);
    loads.whole = pot_alloc_array(loads.layers, sizeof *loads.whole);
    if (!units || !loads.loads || !loads.whole) status = pot_fail(err, POT_NO_MEMORY, "no memory for a plan");
    r->coordinator_bytes = pot_model_coordinator_bytes(task->model);
    r->kv_bytes = pot_sequence_bytes(c, task->kv, task->ctx_tokens);
    r->reserve_bytes = pot_memory_reserve(cluster->machines[0].machine_bytes);
    for (uint32_t w = 0; !status && w < cluster->n; w++)
        status = fill_worker(&loads, r, task, cluster, map, w, units, err);
    if (!status) mark_whole(&loads, map);
    pot_map_free(map);
    pot_free(units);
    if (status)
        plan_loads_free(&loads);
    else
        *out = loads;
    return status;
}

void plan_loads_free(plan_loads *loads) {
    pot_free(loads->loads);
    pot_free(loads->whole);
    *loads = (plan_loads){0};
}
