/* Opening a store: which units the map gives, how many slots the budget holds, what is loaded first. */
#include "worker/store.h"

#include <inttypes.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "common/float_mode.h"
#include "common/log.h"
#include "common/system.h"
#include "worker/store_internal.h"
#include "worker/usage.h"

enum { DEFAULT_TIMEOUT_US = 60000000, LOAD_SLICE_US = 100000 };

/* ---- slot sizes ------------------------------------------------------------------------------------------------------------ */

typedef struct pool_need {
    size_t slot_bytes;
    uint64_t slots;       /* that the worker owns chunks for */
    uint64_t trunk_slots; /* of those, not of an MTP layer */
    uint32_t largest_unit;
} pool_need;

static pool_need *find_need(pool_need *needs, uint32_t *n, size_t slot_bytes) {
    for (uint32_t i = 0; i < *n; i++)
        if (needs[i].slot_bytes == slot_bytes) return &needs[i];
    if (*n == POT_MAX_POOLS) return NULL;
    needs[*n] = (pool_need){.slot_bytes = slot_bytes};
    return &needs[(*n)++];
}

/* Calls `visit` with every range that `worker` owns, in order; it returns false to stop. */
static bool each_range(const pot_model *model, const pot_map *map, uint32_t worker,
                       bool (*visit)(void *context, uint32_t layer, uint32_t expert, const pot_map_range *range),
                       void *context) {
    const pot_layer_shape *shapes = pot_model_layer_shapes(model);
    for (uint32_t layer = 0; layer < pot_model_layers(model); layer++)
        for (uint32_t expert = 0; expert < pot_layer_experts(&shapes[layer]); expert++) {
            uint32_t n;
            const pot_map_range *ranges = pot_map_ranges(map, layer, expert, &n);
            for (uint32_t i = 0; i < n; i++)
                if ((ranges[i].owners >> worker & 1) && !visit(context, layer, expert, &ranges[i])) return false;
        }
    return true;
}

typedef struct need_sum {
    const pot_model *model;
    pool_need needs[POT_MAX_POOLS];
    uint32_t n;
    uint32_t units;
} need_sum;

static bool add_need(void *context, uint32_t layer, uint32_t expert, const pot_map_range *range) {
    need_sum *sum = context;
    uint32_t slots = range->chunk_end - range->chunk_begin;
    pool_need *need =
        find_need(sum->needs, &sum->n, pot_chunk_stride(pot_model_expert_shape(sum->model, layer, expert)));
    if (!need) return false;
    need->slots += slots;
    if (layer < pot_model_config(sum->model)->n_layers) need->trunk_slots += slots;
    if (slots > need->largest_unit) need->largest_unit = slots;
    sum->units++;
    return true;
}

/* Two units: one is computed while the other is read. */
static uint64_t least_slots(const pool_need *need) {
    uint64_t two = 2 * (uint64_t)need->largest_unit;
    return two < need->slots ? two : need->slots;
}

/* What slots take: large slabs are whole huge pages, and a slot brings its read with it. */
static uint64_t slots_take(uint64_t slots, size_t slot_bytes) {
    const uint64_t page = (uint64_t)2 << 20, bytes = slots * slot_bytes;
    return (bytes < page ? bytes : (bytes + page - 1) / page * page) +
           slots * (sizeof(pot_slot_read) + sizeof(uint32_t));
}

static void sum_needs(uint64_t *least, uint64_t *all, const need_sum *sum) {
    *least = *all = 0;
    for (uint32_t i = 0; i < sum->n; i++) {
        *least += slots_take(least_slots(&sum->needs[i]), sum->needs[i].slot_bytes);
        *all += slots_take(sum->needs[i].slots, sum->needs[i].slot_bytes);
    }
}

void pot_store_needs(uint64_t *least, uint64_t *all, const pot_model *model, const pot_map *map, uint32_t worker) {
    need_sum sum = {.model = model};
    (void)each_range(model, map, worker, add_need, &sum);
    sum_needs(least, all, &sum);
}

/* ---- tables ---------------------------------------------------------------------------------------------------------------- */

static size_t layer_chunks(const pot_layer_shape *shape) {
    return (size_t)shape->n_routed * shape->routed_chunks + shape->common_chunks;
}

static pot_status create_tables(pot_store *s, uint32_t n_units, pot_err *err) {
    size_t most = 0;
    s->layer_begin = pot_alloc_array(s->n_layers, sizeof *s->layer_begin);
    s->layer_units = pot_alloc_array(s->n_layers + 1, sizeof *s->layer_units);
    s->layer_file = pot_alloc_array(s->n_layers, sizeof *s->layer_file);
    if (!s->layer_begin || !s->layer_units || !s->layer_file) goto no_memory;
    for (uint32_t i = 0; i < s->n_layers; i++) {
        size_t chunks = layer_chunks(&s->shapes[i]);
        s->layer_begin[i] = s->n_entries;
        s->layer_file[i] = UINT32_MAX;
        s->n_entries += chunks;
        if (chunks > most) most = chunks;
    }
    s->unit_of = pot_alloc_array(s->n_entries, sizeof *s->unit_of);
    s->slot_of = pot_alloc_array(s->n_entries, sizeof *s->slot_of);
    s->state = pot_alloc_array(s->n_entries, sizeof *s->state);
    s->units = pot_alloc_array(n_units, sizeof *s->units);
    s->open = pot_alloc_array(most, sizeof *s->open);
    s->given = pot_alloc_array(most, sizeof *s->given);
    s->on_device = pot_alloc_array(most, sizeof *s->on_device);
    s->arrived = pot_alloc_array(most, sizeof *s->arrived);
    s->sound = pot_alloc_array(most, sizeof *s->sound);
    s->misses = pot_alloc_array(most, sizeof *s->misses);
    s->numbers = pot_alloc_array(most, sizeof *s->numbers);
    s->hits = pot_alloc_array(most, sizeof *s->hits);
    s->step_units = pot_alloc_array(most, sizeof *s->step_units);
    if (!s->unit_of || !s->slot_of || !s->state || !s->units || !s->open || !s->given || !s->on_device || !s->arrived ||
        !s->sound || !s->misses || !s->numbers || !s->hits || !s->step_units)
        goto no_memory;
    memset(s->unit_of, 0xFF, s->n_entries * sizeof *s->unit_of);
    memset(s->slot_of, 0xFF, s->n_entries * sizeof *s->slot_of);
    /* A unit's entries in a cache are counted with 64 bytes. */
    s->table_bytes = n_units * 64ull + s->n_entries * (2 * sizeof(uint32_t) + 1) + n_units * sizeof *s->units +
                     most * (7 * sizeof(uint32_t) + 2 * sizeof(bool));
    return POT_OK;
no_memory:
    return pot_fail(err, POT_NO_MEMORY, "no memory for the tables of %u pieces of experts", n_units);
}

static bool add_unit(void *context, uint32_t layer, uint32_t expert, const pot_map_range *range) {
    pot_store *s = context;
    size_t slot_bytes = pot_chunk_stride(pot_model_expert_shape(s->model, layer, expert));
    uint32_t pool = 0;
    while (s->pools[pool].slot_bytes != slot_bytes) pool++;
    pot_slot_pool *p = &s->pools[pool];
    if (p->first_unit[layer] == POT_NO_UNIT) p->first_unit[layer] = s->n_units;
    pot_unit *u = &s->units[s->n_units];
    *u = (pot_unit){.layer = layer,
                    .expert = expert,
                    .chunk_begin = range->chunk_begin,
                    .chunk_end = range->chunk_end,
                    .pool = (uint8_t)pool,
                    .is_common = expert >= s->shapes[layer].n_routed,
                    .is_mtp = layer >= pot_model_config(s->model)->n_layers,
                    .number = s->n_units - p->first_unit[layer]};
    for (uint32_t c = u->chunk_begin; c < u->chunk_end; c++)
        s->unit_of[pot_store_entry(s, layer, expert, c)] = s->n_units;
    s->layer_units[layer + 1] = ++s->n_units;
    return true;
}

static pot_status add_pools(pot_store *s, const need_sum *sum, pot_err *err) {
    for (uint32_t i = 0; i < sum->n; i++) {
        pot_slot_pool *p = &s->pools[s->n_pools++];
        p->slot_bytes = sum->needs[i].slot_bytes;
        p->owned_slots = (uint32_t)sum->needs[i].slots;
        p->largest_unit = sum->needs[i].largest_unit;
        p->first_unit = pot_alloc_array(s->n_layers, sizeof *p->first_unit);
        if (!p->first_unit) return pot_fail(err, POT_NO_MEMORY, "no memory for the slots of experts");
        memset(p->first_unit, 0xFF, s->n_layers * sizeof *p->first_unit);
    }
    return POT_OK;
}

/* ---- the budget ------------------------------------------------------------------------------------------------------------ */

static bool is_auto(uint64_t bytes) { return bytes == 0 || bytes == UINT64_MAX; }

static pot_status too_small(const pot_store *s, uint64_t least, pot_err *err) {
    return pot_fail(
        err, POT_LIMIT,
        "%.1f MiB for experts (--ram) are too little: worker %u needs at least %.1f MiB, room for two of its "
        "pieces of experts and its tables",
        (double)s->budget_bytes / 0x1p20, s->worker, (double)least / 0x1p20 + 0.1);
}

static pot_status not_everything(const pot_store *s, uint64_t all, pot_err *err) {
    return pot_fail(
        err, POT_LIMIT,
        "%s: this worker's share of the experts: %.3f GiB needed, %s %.3f GiB; more workers or smaller formats would "
        "help, or `potluck convert` (or --disk-cache): packed experts are read from disk as they are needed",
        pot_model_directory(s->model), (double)all / 0x1p30,
        is_auto(s->choice.ram_bytes) ? "this machine leaves" : "--ram allows", (double)s->budget_bytes / 0x1p30);
}

/* How many slots each pool gets: all, or its least and a share by bytes of what is left then.  `sum`: what has to be in RAM or on disk. */
static pot_status divide_budget(pot_store *s, const need_sum *sum, uint64_t machine_bytes, uint64_t usable_bytes,
                                pot_err *err) {
    uint64_t least, all;
    sum_needs(&least, &all, sum);
    if (machine_bytes == 0) {
        pot_memory_info memory;
        pot_memory_read(&memory);
        machine_bytes = memory.usable_bytes;
    }
    if (is_auto(s->choice.ram_bytes) && s->device && pot_device_shares_memory(s->device))
        machine_bytes -= machine_bytes < s->stats.vram_bytes ? machine_bytes : s->stats.vram_bytes;
    s->budget_bytes = is_auto(s->choice.ram_bytes) ? machine_bytes : s->choice.ram_bytes;
    s->everything = s->table_bytes + all <= s->budget_bytes;
    const uint64_t wanted = s->everything ? s->table_bytes + all : s->budget_bytes;
    if (!is_auto(s->choice.ram_bytes) && usable_bytes && wanted > usable_bytes)
        return pot_fail(
            err, POT_LIMIT,
            "--ram %.3f GiB: worker %u would hold %.3f GiB of experts, this machine has %.3f GiB left for them "
            "(beside the coordinator, if it is here, and a reserve)",
            (double)s->choice.ram_bytes / 0x1p30, s->worker, (double)wanted / 0x1p30, (double)usable_bytes / 0x1p30);
    if (!s->everything && !s->on_disk) return not_everything(s, all, err);
    if (!s->everything && s->table_bytes + least > s->budget_bytes) return too_small(s, s->table_bytes + least, err);
    uint64_t trunk = 1;
    for (uint32_t i = 0; i < s->n_pools; i++)
        if (sum->needs[i].trunk_slots) trunk += sum->needs[i].slots * sum->needs[i].slot_bytes;
    for (uint32_t i = 0; i < s->n_pools; i++) {
        const pool_need *need = &sum->needs[i];
        uint64_t slots = need->slots, few = least_slots(need);
        if (!s->everything && need->trunk_slots == 0) {
            slots = few; /* an MTP layer in a format of its own */
        } else if (!s->everything) {
            double share = (double)(s->budget_bytes - s->table_bytes - least) *
                           ((double)(need->slots * need->slot_bytes) / (double)trunk);
            uint64_t most = slots_take(few, need->slot_bytes) + (uint64_t)share;
            slots = few + (uint64_t)(share / (double)need->slot_bytes);
            while (slots > few && slots_take(slots, need->slot_bytes) > most) slots--;
            if (slots > need->slots) slots = need->slots;
        }
        s->pools[i].n_slots = (uint32_t)slots;
    }
    return POT_OK;
}

static pot_status create_slots(pot_store *s, pot_slot_pool *p, pot_err *err) {
    p->free = pot_alloc_array(p->n_slots, sizeof *p->free);
    if (s->on_disk) p->reads = pot_alloc_array(p->n_slots, sizeof *p->reads);
    if (!p->free || (s->on_disk && !p->reads))
        return pot_fail(err, POT_NO_MEMORY, "no memory for %u slots of experts", p->n_slots);
    for (uint32_t i = 0; i < p->n_slots; i++) p->free[i] = p->n_slots - 1 - i; /* the first is taken first */
    p->n_free = p->n_slots;
    return pot_slab_create(&p->slab, (size_t)p->n_slots * p->slot_bytes, "the experts", err);
}

static pot_status create_cache(pot_store *s, uint32_t pool, pot_err *err) {
    pot_slot_pool *p = &s->pools[pool];
    uint32_t *group_units = pot_alloc_array(s->n_layers, sizeof *group_units);
    uint16_t *unit_slots = pot_alloc_array(s->n_units, sizeof *unit_slots);
    pot_status status = POT_OK;
    if (!group_units || !unit_slots) {
        status = pot_fail(err, POT_NO_MEMORY, "no memory for the slots of experts");
    } else {
        uint32_t n = 0;
        for (uint32_t u = 0; u < s->n_units; u++) {
            if (s->units[u].pool != pool) continue;
            group_units[s->units[u].layer]++;
            unit_slots[n++] = (uint16_t)(s->units[u].chunk_end - s->units[u].chunk_begin);
        }
        const pot_cache_options options = {.policy = s->choice.policy,
                                           .n_groups = s->n_layers,
                                           .group_units = group_units,
                                           .unit_slots = unit_slots,
                                           .slots = p->n_slots};
        status = pot_cache_create(&p->cache, &options, err);
    }
    pot_free(group_units);
    pot_free(unit_slots);
    return status;
}

/* Hottest first; what every token wants before the rest; then expert by expert through all layers, so that every layer gets its share. */
static int by_uses(const void *a, const void *b) {
    const pot_unit *x = *(pot_unit *const *)a, *y = *(pot_unit *const *)b;
    if (x->uses != y->uses) return x->uses < y->uses ? 1 : -1;
    if (x->is_mtp != y->is_mtp) return x->is_mtp ? 1 : -1;
    if (x->is_common != y->is_common) return x->is_common ? -1 : 1;
    if (x->expert != y->expert) return x->expert < y->expert ? -1 : 1;
    return x < y ? -1 : x > y;
}

void pot_store_order(pot_unit **order, pot_store *s) {
    for (uint32_t i = 0; i < s->n_units; i++) order[i] = &s->units[i];
    qsort(order, s->n_units, sizeof *order, by_uses);
}

/* ---- loading --------------------------------------------------------------------------------------------------------------- */

/* Every unit that fits, the hottest first; *chosen in the order of files. */
static uint32_t choose_first(pot_store *s, uint32_t *chosen, pot_unit **order) {
    uint32_t n = 0;
    pot_store_order(order, s);
    for (uint32_t i = 0; i < s->n_units; i++) {
        pot_unit *u = order[i];
        pot_cache *cache = s->pools[u->pool].cache;
        if (!cache) continue;
        pot_cache_set_usage(cache, u->layer, u->number, u->uses);
        if (!u->device && pot_cache_fill(cache, u->layer, u->number)) pot_store_place(s, u);
    }
    for (uint32_t i = 0; i < s->n_units; i++) {
        const pot_unit *u = &s->units[i];
        if (s->slot_of[pot_store_entry(s, u->layer, u->expert, u->chunk_begin)] != POT_NO_SLOT) chosen[n++] = i;
    }
    return n;
}

static uint64_t unit_bytes(const pot_store *s, const pot_unit *u) {
    const pot_ffn_shape *shape = pot_model_expert_shape(s->model, u->layer, u->expert);
    uint64_t bytes = 0;
    for (uint32_t c = u->chunk_begin; c < u->chunk_end; c++) bytes += pot_chunk_bytes(shape, c);
    return bytes;
}

/* The thread that packs a chunk is the first to touch its pages.  After a fault, or a signal, the rest is passed over. */
static pot_status pack_all(pot_store *s, const uint32_t *chosen, uint32_t n, const pot_store_options *o, pot_err *err) {
    pot_status status = POT_OK;
    atomic_bool failed = false;
#pragma omp parallel for schedule(dynamic) num_threads(o->threads)
    for (uint32_t i = 0; i < n; i++) {
        if (atomic_load(&failed)) continue;
        pot_fp_strict();
        pot_err fault;
        const pot_unit *u = &s->units[chosen[i]];
        pot_status one = POT_OK;
        for (uint32_t c = u->chunk_begin; c < u->chunk_end && one == POT_OK; c++) {
            size_t entry = pot_store_entry(s, u->layer, u->expert, c);
            one = pot_stop_requested()
                      ? pot_fail(&fault, POT_CANCELLED, "stopped by a signal while experts were loaded")
                      : pot_model_load_chunk(pot_slot_data(&s->pools[u->pool], s->slot_of[entry]), s->model, u->layer,
                                             u->expert, c, &fault);
            s->state[entry] = POT_CHUNK_READY;
        }
        if (one == POT_OK) {
            atomic_fetch_add(o->loaded_bytes, unit_bytes(s, u));
            if (o->watcher.tick && omp_get_thread_num() == 0) o->watcher.tick(o->watcher.context);
        } else if (!atomic_exchange(&failed, true)) { /* the first fault is the one that is told */
            status = one;
            if (err) *err = fault;
        }
    }
    return status;
}

static pot_status read_all(pot_store *s, const uint32_t *chosen, uint32_t n, const pot_store_options *o, pot_err *err) {
    uint64_t idle_us = 0;
    uint32_t queued = 0;
    while (queued < n || pot_reader_pending(s->reader)) {
        if (pot_stop_requested()) return pot_fail(err, POT_CANCELLED, "stopped by a signal while experts were loaded");
        while (queued < n && pot_reader_pending(s->reader) < 4 * pot_reader_depth(s->reader)) {
            pot_status status = pot_store_queue(s, &s->units[chosen[queued++]], false, err);
            if (status != POT_OK) return status;
        }
        if (pot_store_drain(s, LOAD_SLICE_US)) {
            idle_us = 0;
        } else if ((idle_us += LOAD_SLICE_US) > s->choice.timeout_us) {
            return pot_fail(err, POT_TIMEOUT, "%s: no expert was read for %.1f s: is the disk still there?",
                            pot_model_directory(s->model), (double)idle_us / 1e6);
        }
        if (s->fault.status != POT_OK) {
            if (err) *err = s->fault;
            return s->fault.status;
        }
        if (o->watcher.tick) o->watcher.tick(o->watcher.context);
    }
    return POT_OK;
}

static pot_status load_first(pot_store *s, const pot_store_options *o, pot_err *err) {
    uint32_t *chosen = pot_alloc_array(s->n_units, sizeof *chosen);
    pot_unit **order = pot_alloc_array(s->n_units, sizeof *order);
    pot_status status = POT_OK;
    if (!chosen || !order) {
        status = pot_fail(err, POT_NO_MEMORY, "no memory to load experts");
    } else {
        uint32_t n = choose_first(s, chosen, order);
        *o->total_bytes = s->stats.resident_bytes + s->stats.vram_bytes;
        s->loading = true;
        status = pot_store_load_device(s, o, err);
        if (status == POT_OK) status = s->reader ? read_all(s, chosen, n, o, err) : pack_all(s, chosen, n, o, err);
    }
    s->loading = false;
    pot_free(chosen);
    pot_free(order);
    return status;
}

/* ---- opening --------------------------------------------------------------------------------------------------------------- */

const char *pot_store_file(const pot_store *s, uint32_t layer) {
    return s->copy ? pot_chunk_copy_file(s->copy, layer) : pot_model_chunk_file(s->model, layer);
}

pot_status pot_store_chunk_place(pot_chunk_place *out, const pot_store *s, uint32_t layer, uint32_t expert,
                                 uint32_t chunk, pot_err *err) {
    if (!s->copy) return pot_model_chunk_place(out, s->model, layer, expert, chunk, err);
    pot_chunk_copy_place(out, s->copy, layer, expert, chunk);
    return POT_OK;
}

/* What is written to --disk-cache counts as loading. */
static bool copied(void *context, uint64_t bytes) {
    const pot_store_options *o = context;
    atomic_fetch_add(o->loaded_bytes, bytes);
    if (o->watcher.tick) o->watcher.tick(o->watcher.context);
    return !pot_stop_requested();
}

static pot_status make_copy(pot_store *s, const pot_store_options *o, pot_err *err) {
    if (!s->choice.disk_cache || !s->n_units) return POT_OK;
    const pot_container_watcher watcher = {.wrote = copied, .context = (void *)(uintptr_t)o};
    *o->total_bytes = s->stats.owned_bytes;
    pot_status status =
        pot_chunk_copy_open(&s->copy, s->choice.disk_cache, s->model, o->map, s->worker, o->threads, &watcher, err);
    s->on_disk = status == POT_OK;
    atomic_store(o->loaded_bytes, 0); /* loading into memory is counted from here on */
    return status;
}

static pot_status open_files(pot_store *s, pot_err *err) {
    pot_status status = pot_reader_create(&s->reader, &s->choice.reader, err);
    for (uint32_t layer = 0; layer < s->n_layers && status == POT_OK; layer++) {
        if (s->layer_units[layer] == s->layer_units[layer + 1]) continue;
        const char *path = pot_store_file(s, layer);
        if (path) {
            status = pot_reader_open(&s->layer_file[layer], s->reader, path, err);
        } else {
            pot_chunk_place place; /* says what is missing */
            const pot_unit *u = &s->units[s->layer_units[layer]];
            status = pot_store_chunk_place(&place, s, layer, u->expert, u->chunk_begin, err);
            if (status == POT_OK) status = pot_fail(err, POT_BUG, "layer %u has chunks but no file", layer);
        }
    }
    return status;
}

static pot_status open_store(pot_store *s, const pot_store_options *o, pot_err *err) {
    need_sum sum = {.model = s->model};
    if (!each_range(s->model, o->map, s->worker, add_need, &sum))
        return pot_fail(err, POT_LIMIT, "%s: experts in more than %d sizes, which no model is known to have",
                        pot_model_directory(s->model), POT_MAX_POOLS);
    pot_status status = create_tables(s, sum.units, err);
    if (status == POT_OK) status = add_pools(s, &sum, err);
    if (status != POT_OK) return status;
    for (uint32_t layer = 0; layer < s->n_layers; layer++) s->layer_units[layer + 1] = POT_NO_UNIT;
    (void)each_range(s->model, o->map, s->worker, add_unit, s);
    for (uint32_t layer = 0; layer < s->n_layers; layer++) /* a layer without units begins where the last one ended */
        if (s->layer_units[layer + 1] == POT_NO_UNIT) s->layer_units[layer + 1] = s->layer_units[layer];
    for (uint32_t u = 0; u < s->n_units; u++) s->stats.owned_bytes += unit_bytes(s, &s->units[u]);

    status = pot_usage_path(&s->usage_path, s->choice.usage, s->model, s->worker, err);
    if (status == POT_OK) pot_usage_load(s);
    if (status == POT_OK) status = make_copy(s, o, err);
    if (status == POT_OK) status = pot_store_open_device(s, o, err);
    for (uint32_t i = 0; i < s->n_pools; i++) sum.needs[i].slots -= s->pools[i].device_slots_used;
    if (status == POT_OK) status = divide_budget(s, &sum, o->machine_bytes, o->usable_bytes, err);
    for (uint32_t i = 0; i < s->n_pools && status == POT_OK; i++) {
        status = create_slots(s, &s->pools[i], err);
        /* Without a slot all of them are on the GPU. */
        if (status == POT_OK && s->pools[i].n_slots) status = create_cache(s, i, err);
    }
    if (status == POT_OK && s->n_units && s->on_disk) status = open_files(s, err);
    if (status == POT_OK) status = load_first(s, o, err);
    return status;
}

pot_status pot_store_open(pot_store **out, const pot_store_options *o, pot_err *err) {
    pot_store *s = pot_alloc(sizeof *s);
    if (!s) return pot_fail(err, POT_NO_MEMORY, "no memory for an expert store");
    s->choice = o->choice;
    if (!s->choice.timeout_us) s->choice.timeout_us = DEFAULT_TIMEOUT_US;
    s->model = o->model;
    s->team = o->team;
    s->worker = o->worker;
    s->epoch = pot_map_epoch(o->map);
    s->n_layers = pot_model_layers(o->model);
    s->progress = o->loaded_bytes;
    s->on_disk = pot_model_is_packed(o->model);
    s->shapes = pot_model_layer_shapes(o->model);
    pot_status status = open_store(s, o, err);
    if (status != POT_OK) {
        pot_free(s->usage_path); /* what was not served is not remembered */
        s->usage_path = NULL;
        pot_store_free(s);
        return status;
    }
    s->stats.read_bytes = s->stats.reads = 0; /* those of loading are no part of serving */
    if (!s->everything)
        POT_LOG(POT_LOG_INFO, "worker.store",
                "worker %u holds %.3f of %.3f GiB of experts in RAM and reads the rest: %s, %s, depth %u", s->worker,
                (double)s->stats.resident_bytes / 0x1p30, (double)s->stats.owned_bytes / 0x1p30,
                pot_reader_engine(s->reader), pot_reader_path(s->reader), pot_reader_depth(s->reader));
    *out = s;
    return POT_OK;
}

void pot_store_free(pot_store *s) {
    if (!s) return;
    if (s->usage_path) pot_usage_save(s);
    /* Nothing is read into the slots from here on; else they are left to the kernel, which may still write there. */
    const bool ours = pot_reader_free(s->reader);
    pot_device_close(s->device);
    pot_chunk_copy_close(s->copy);
    for (uint32_t i = 0; i < s->n_pools; i++) {
        pot_slot_pool *p = &s->pools[i];
        pot_cache_free(p->cache);
        if (ours) pot_slab_free(&p->slab);
        if (ours) pot_free(p->reads);
        pot_free(p->free);
        pot_free(p->first_unit);
    }
    pot_free(s->layer_begin);
    pot_free(s->layer_units);
    pot_free(s->layer_file);
    pot_free(s->unit_of);
    pot_free(s->slot_of);
    pot_free(s->state);
    pot_free(s->units);
    pot_free(s->open);
    pot_free(s->given);
    pot_free(s->on_device);
    pot_free(s->arrived);
    pot_free(s->sound);
    pot_free(s->misses);
    pot_free(s->numbers);
    pot_free(s->hits);
    pot_free(s->step_units);
    pot_free(s->usage_path);
    pot_free(s);
}

/* ---- reports --------------------------------------------------------------------------------------------------------------- */

uint64_t pot_store_epoch(const pot_store *s) { return s->epoch; }
uint64_t pot_store_bytes(const pot_store *s) { return s->stats.owned_bytes; }
const pot_store_step *pot_store_last_step(const pot_store *s) { return &s->last_step; }

const uint8_t *pot_store_memory(const pot_store *s, size_t *bytes) {
    const pot_slot_pool *most = NULL;
    for (uint32_t i = 0; i < s->n_pools; i++)
        if (!most || s->pools[i].slab.bytes > most->slab.bytes) most = &s->pools[i];
    *bytes = most ? most->slab.bytes : 0;
    return most ? most->slab.base : NULL;
}

uint32_t pot_store_layer_chunks(const pot_store *s, uint32_t layer) {
    uint32_t n = 0;
    for (uint32_t u = s->layer_units[layer]; u < s->layer_units[layer + 1]; u++)
        n += (uint32_t)(s->units[u].chunk_end - s->units[u].chunk_begin);
    return n;
}

bool pot_store_owns(const pot_store *s, uint32_t layer, uint32_t expert, uint32_t chunk) {
    return layer < s->n_layers && expert < pot_layer_experts(&s->shapes[layer]) &&
           chunk < pot_layer_expert_chunks(&s->shapes[layer], expert) &&
           s->unit_of[pot_store_entry(s, layer, expert, chunk)] != POT_NO_UNIT;
}

bool pot_store_holds(const pot_store *s, uint32_t layer, uint32_t expert, uint32_t chunk) {
    if (!pot_store_owns(s, layer, expert, chunk)) return false;
    size_t entry = pot_store_entry(s, layer, expert, chunk);
    return s->units[s->unit_of[entry]].device || s->state[entry] >= POT_CHUNK_UNCHECKED;
}

void pot_store_get_stats(pot_store_stats *out, const pot_store *s) {
    *out = s->stats;
    out->budget_bytes = s->budget_bytes;
    out->vram_budget_bytes = s->device ? pot_device_bytes(s->device) : 0;
    out->policy = pot_cache_policy_name(s->choice.policy);
    out->read_engine = s->reader ? pot_reader_engine(s->reader) : "ram";
    out->read_path = s->reader ? pot_reader_path(s->reader) : "ram";
    for (uint32_t i = 0; i < s->n_pools; i++) {
        pot_cache_stats one = {0};
        if (s->pools[i].cache) pot_cache_get_stats(&one, s->pools[i].cache);
        out->slot_bytes += (uint64_t)s->pools[i].n_slots * s->pools[i].slot_bytes;
        out->cache.wanted += one.wanted;
        out->cache.hits += one.hits;
        out->cache.admitted += one.admitted;
        out->cache.evicted += one.evicted;
        out->cache.scan_wanted += one.scan_wanted;
        out->cache.scan_hits += one.scan_hits;
        out->cache.prefetched += one.prefetched;
        out->cache.prefetch_used += one.prefetch_used;
        out->cache.slots += one.slots;
        out->cache.slots_used += one.slots_used;
        out->cache.pinned_units += one.pinned_units;
    }
}
