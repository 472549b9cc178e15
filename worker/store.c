/* One slab with the chunks in (layer, expert, chunk) order, and a flat table of where each of the model's chunks lies in it. */
#include "worker/store.h"

#include <omp.h>

#include "common/float_mode.h"
#include "common/mem.h"
#include "common/system.h"

#define ABSENT UINT64_MAX

struct pot_store {
    pot_slab slab;
    uint64_t epoch;
    uint32_t n_layers;
    const pot_layer_shape *shapes; /* the model's */
    size_t *layer_begin;           /* [n_layers] first entry of a layer in `offsets` */
    uint64_t *offsets;             /* [all chunks] into the slab, or ABSENT */
};

typedef struct task {
    uint32_t layer, expert, chunk;
    uint64_t offset;
} task;

static size_t entry_of(const pot_store *s, uint32_t layer, uint32_t expert, uint32_t chunk) {
    return s->layer_begin[layer] + (size_t)expert * s->shapes[layer].routed_chunks + chunk;
}

static size_t layer_chunks(const pot_layer_shape *shape) {
    return (size_t)shape->n_routed * shape->routed_chunks + shape->common_chunks;
}

/* Gives every owned chunk its place; returns how many there are, and their bytes. */
static size_t lay_out(pot_store *s, task *tasks, const pot_model *model, const pot_map *map, uint32_t worker,
                      uint64_t *bytes) {
    size_t n = 0;
    *bytes = 0;
    for (uint32_t layer = 0; layer < s->n_layers; layer++)
        for (uint32_t expert = 0; expert < pot_layer_experts(&s->shapes[layer]); expert++) {
            const pot_ffn_shape *shape = pot_model_expert_shape(model, layer, expert);
            for (uint32_t chunk = 0; chunk < shape->n_chunks; chunk++) {
                bool owned = pot_map_owns(map, worker, layer, expert, chunk, chunk + 1);
                s->offsets[entry_of(s, layer, expert, chunk)] = owned ? *bytes : ABSENT;
                if (!owned) continue;
                tasks[n++] = (task){layer, expert, chunk, *bytes};
                *bytes += pot_chunk_bytes(shape, chunk);
            }
        }
    return n;
}

/* The thread that packs a chunk is the first to touch its pages.  After a fault, or a signal, the rest is passed over. */
static pot_status pack_all(pot_store *s, const pot_model *model, const task *tasks, size_t n, int threads,
                           _Atomic uint64_t *loaded_bytes, const pot_store_watcher *watcher, pot_err *err) {
    pot_status status = POT_OK;
    atomic_bool failed = false;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (size_t i = 0; i < n; i++) {
        if (atomic_load(&failed)) continue;
        pot_fp_strict();
        pot_err fault;
        const task *t = &tasks[i];
        pot_status one =
            pot_stop_requested()
                ? pot_fail(&fault, POT_CANCELLED, "stopped by a signal while experts were loaded")
                : pot_model_pack_chunk(s->slab.base + t->offset, model, t->layer, t->expert, t->chunk, &fault);
        if (one == POT_OK) {
            uint64_t bytes = pot_chunk_bytes(pot_model_expert_shape(model, t->layer, t->expert), t->chunk);
            atomic_fetch_add(loaded_bytes, bytes);
            if (watcher->tick && omp_get_thread_num() == 0) watcher->tick(watcher->context);
        } else if (!atomic_exchange(&failed, true)) { /* the first fault is the one that is told */
            status = one;
            if (err) *err = fault;
        }
    }
    return status;
}

pot_status pot_store_load(pot_store **out, const pot_model *model, const pot_map *map, uint32_t worker, int threads,
                          _Atomic uint64_t *loaded_bytes, const pot_store_watcher *watcher, pot_err *err) {
    pot_status status = POT_OK;
    uint64_t bytes = 0;
    size_t total = 0;
    pot_store *s = pot_alloc(sizeof *s);
    if (!s) return pot_fail(err, POT_NO_MEMORY, "no memory for an expert store");
    s->epoch = pot_map_epoch(map);
    s->n_layers = pot_model_layers(model);
    s->shapes = pot_model_layer_shapes(model);
    s->layer_begin = pot_alloc_array(s->n_layers, sizeof *s->layer_begin);
    for (uint32_t i = 0; i < s->n_layers; i++) {
        if (s->layer_begin) s->layer_begin[i] = total;
        total += layer_chunks(&s->shapes[i]);
    }
    s->offsets = pot_alloc_array(total, sizeof *s->offsets);
    task *tasks = pot_alloc_array(total, sizeof *tasks);
    if (!s->layer_begin || !s->offsets || !tasks) {
        status = pot_fail(err, POT_NO_MEMORY, "no memory for a table of %zu chunks", total);
        goto done;
    }
    size_t n = lay_out(s, tasks, model, map, worker, &bytes);
    status = pot_model_check_memory(bytes, "this worker's share of the experts", err);
    if (status == POT_OK && bytes) status = pot_slab_create(&s->slab, bytes, "the experts", err);
    if (status == POT_OK) status = pack_all(s, model, tasks, n, threads, loaded_bytes, watcher, err);
done:
    pot_free(tasks);
    if (status != POT_OK) {
        pot_store_free(s);
        return status;
    }
    *out = s;
    return POT_OK;
}

void pot_store_free(pot_store *s) {
    if (!s) return;
    pot_slab_free(&s->slab);
    pot_free(s->layer_begin);
    pot_free(s->offsets);
    pot_free(s);
}

uint64_t pot_store_bytes(const pot_store *s) { return s->slab.bytes; }
const uint8_t *pot_store_memory(const pot_store *s) { return s->slab.base; }
uint64_t pot_store_epoch(const pot_store *s) { return s->epoch; }

const uint8_t *pot_store_chunk(const pot_store *s, uint32_t layer, uint32_t expert, uint32_t chunk) {
    if (layer >= s->n_layers || expert >= pot_layer_experts(&s->shapes[layer]) ||
        chunk >= pot_layer_expert_chunks(&s->shapes[layer], expert))
        return NULL;
    uint64_t offset = s->offsets[entry_of(s, layer, expert, chunk)];
    return offset == ABSENT ? NULL : s->slab.base + offset;
}
