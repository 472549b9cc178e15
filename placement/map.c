/* A map is two flat arrays: the ranges of all experts one after the other, and where each expert's ranges begin.  Builders keep
 * ranges in the order they come and sort them once. */
#include "placement/map.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"

struct pot_map {
    atomic_uint references;
    uint64_t epoch;
    uint32_t n_workers, n_layers;
    pot_layer_shape *layers; /* [n_layers] */
    uint32_t *layer_expert;  /* [n_layers + 1] number of the first expert of a layer, over all layers */
    uint32_t *expert_range;  /* [experts + 1] first range of an expert */
    pot_map_range *ranges;
};

typedef struct entry {
    uint32_t expert; /* over all layers */
    pot_map_range range;
} entry;

struct pot_map_builder {
    pot_map *map;
    entry *entries;
    size_t n, capacity;
    size_t most; /* ranges that there can be: one a chunk */
};

/* ---- reading ------------------------------------------------------------------------------------------------------ */

pot_map *pot_map_ref(pot_map *map) {
    atomic_fetch_add(&map->references, 1);
    return map;
}

void pot_map_free(pot_map *map) {
    if (!map || atomic_fetch_sub(&map->references, 1) != 1) return;
    pot_free(map->layers);
    pot_free(map->layer_expert);
    pot_free(map->expert_range);
    pot_free(map->ranges);
    pot_free(map);
}

uint64_t pot_map_epoch(const pot_map *map) { return map->epoch; }
uint32_t pot_map_workers(const pot_map *map) { return map->n_workers; }
uint32_t pot_map_layers(const pot_map *map) { return map->n_layers; }

const pot_layer_shape *pot_map_layer_shape(const pot_map *map, uint32_t layer) {
    return layer < map->n_layers ? &map->layers[layer] : NULL;
}

const pot_map_range *pot_map_ranges(const pot_map *map, uint32_t layer, uint32_t expert, uint32_t *n_ranges) {
    *n_ranges = 0;
    if (layer >= map->n_layers || expert >= pot_layer_experts(&map->layers[layer])) return NULL;
    uint32_t at = map->layer_expert[layer] + expert;
    *n_ranges = map->expert_range[at + 1] - map->expert_range[at];
    return &map->ranges[map->expert_range[at]];
}

bool pot_map_owns(const pot_map *map, uint32_t worker, uint32_t layer, uint32_t expert, uint32_t chunk_begin,
                  uint32_t chunk_end) {
    uint32_t n;
    const pot_map_range *r = pot_map_ranges(map, layer, expert, &n);
    if (worker >= map->n_workers || chunk_begin >= chunk_end || n == 0 || chunk_end > r[n - 1].chunk_end) return false;
    for (uint32_t i = 0; i < n; i++)
        if (r[i].chunk_begin < chunk_end && r[i].chunk_end > chunk_begin && !(r[i].owners >> worker & 1)) return false;
    return true;
}

bool pot_map_equal(const pot_map *a, const pot_map *b) {
    if (a->n_workers != b->n_workers || a->n_layers != b->n_layers ||
        memcmp(a->layers, b->layers, a->n_layers * sizeof *a->layers) != 0)
        return false;
    uint32_t experts = a->layer_expert[a->n_layers];
    if (memcmp(a->expert_range, b->expert_range, (experts + 1) * sizeof *a->expert_range) != 0) return false;
    for (uint32_t i = 0; i < a->expert_range[experts]; i++) {
        const pot_map_range *x = &a->ranges[i], *y = &b->ranges[i];
        if (x->chunk_begin != y->chunk_begin || x->chunk_end != y->chunk_end || x->owners != y->owners ||
            x->first != y->first)
            return false;
    }
    return true;
}

/* ---- building ------------------------------------------------------------------------------------------------------ */

static pot_status check_shape(const pot_layer_shape *shape, uint32_t layer, pot_err *err) {
    if (shape->n_routed && shape->routed_chunks == 0)
        return pot_fail(err, POT_FORMAT, "map: layer %u has %u experts without chunks", layer, shape->n_routed);
    if (shape->routed_chunks > POT_MAX_CHUNKS || shape->common_chunks > POT_MAX_CHUNKS)
        return pot_fail(err, POT_LIMIT, "map: layer %u has experts of %u and %u chunks, possible are %d", layer,
                        shape->routed_chunks, shape->common_chunks, POT_MAX_CHUNKS);
    return POT_OK;
}

static pot_status take_layers(pot_map_builder *b, const pot_layer_shape *layers, uint32_t n_layers, pot_err *err) {
    pot_map *map = b->map;
    uint64_t experts = 0;
    for (uint32_t i = 0; i < n_layers; i++) {
        pot_status s = check_shape(&layers[i], i, err);
        if (s != POT_OK) return s;
        experts += pot_layer_experts(&layers[i]);
        if (experts >= UINT32_MAX) return pot_fail(err, POT_LIMIT, "map: layers 0 to %u have too many experts", i);
        map->layers[i] = layers[i];
        map->layer_expert[i + 1] = (uint32_t)experts;
        b->most += (size_t)layers[i].n_routed * layers[i].routed_chunks + layers[i].common_chunks;
    }
    return POT_OK;
}

pot_status pot_map_builder_create(pot_map_builder **out, uint64_t epoch, uint32_t n_workers,
                                  const pot_layer_shape *layers, uint32_t n_layers, pot_err *err) {
    if (n_workers == 0 || n_workers > POT_MAX_WORKERS)
        return pot_fail(err, POT_LIMIT, "a map for %u workers was asked for, possible are 1 to %d", n_workers,
                        POT_MAX_WORKERS);
    pot_map_builder *b = pot_alloc(sizeof *b);
    pot_map *map = pot_alloc(sizeof *map);
    if (map) {
        atomic_init(&map->references, 1);
        map->layers = pot_alloc_array(n_layers, sizeof *map->layers);
        map->layer_expert = pot_alloc_array((size_t)n_layers + 1, sizeof *map->layer_expert);
    }
    if (!b || !map || !map->layers || !map->layer_expert) {
        pot_map_free(map);
        pot_free(b);
        return pot_fail(err, POT_NO_MEMORY, "no memory for a map of %u layers", n_layers);
    }
    b->map = map;
    map->epoch = epoch;
    map->n_workers = n_workers;
    map->n_layers = n_layers;
    pot_status s = take_layers(b, layers, n_layers, err);
    if (s == POT_OK)
        *out = b;
    else
        pot_map_builder_free(b);
    return s;
}

void pot_map_builder_free(pot_map_builder *b) {
    if (!b) return;
    pot_map_free(b->map);
    pot_free(b->entries);
    pot_free(b);
}

pot_status pot_map_builder_add(pot_map_builder *b, uint32_t layer, uint32_t expert, uint32_t chunk_begin,
                               uint32_t chunk_end, uint64_t owners, uint32_t first, pot_err *err) {
    const pot_map *map = b->map;
    if (layer >= map->n_layers || expert >= pot_layer_experts(&map->layers[layer]))
        return pot_fail(err, POT_FORMAT, "map: layer %u has no expert %u", layer, expert);
    uint32_t chunks = pot_layer_expert_chunks(&map->layers[layer], expert);
    if (chunk_begin >= chunk_end || chunk_end > chunks)
        return pot_fail(err, POT_FORMAT, "map: layer %u expert %u: chunks %u to %u of %u", layer, expert, chunk_begin,
                        chunk_end, chunks);
    uint64_t known = map->n_workers == 64 ? UINT64_MAX : ((uint64_t)1 << map->n_workers) - 1;
    if (owners == 0 || (owners & ~known) || first >= map->n_workers || !(owners >> first & 1))
        return pot_fail(err, POT_FORMAT,
                        "map: layer %u expert %u: owners %llx with worker %u first, there are %u workers", layer,
                        expert, (unsigned long long)owners, first, map->n_workers);
    if (b->n == b->most)
        return pot_fail(err, POT_FORMAT, "map: more ranges than the %zu chunks that there are", b->most);
    if (b->n == b->capacity) {
        size_t capacity = b->capacity ? 2 * b->capacity : 1024;
        entry *grown = pot_realloc_array(b->entries, capacity, sizeof *grown);
        if (!grown) return pot_fail(err, POT_NO_MEMORY, "no memory for a map of %zu ranges", capacity);
        b->entries = grown;
        b->capacity = capacity;
    }
    b->entries[b->n++] = (entry){map->layer_expert[layer] + expert,
                                 {(uint16_t)chunk_begin, (uint16_t)chunk_end, owners, (uint8_t)first}};
    return POT_OK;
}

static int by_place(const void *left, const void *right) {
    const entry *a = left, *b = right;
    if (a->expert != b->expert) return a->expert < b->expert ? -1 : 1;
    return (int)a->range.chunk_begin - (int)b->range.chunk_begin;
}

/* Every expert's ranges must follow each other from chunk 0 to the last one. */
static pot_status fill(pot_map *map, const pot_map_builder *b, pot_err *err) {
    size_t at = 0;
    for (uint32_t layer = 0; layer < map->n_layers; layer++)
        for (uint32_t expert = 0; expert < pot_layer_experts(&map->layers[layer]); expert++) {
            uint32_t number = map->layer_expert[layer] + expert, next = 0;
            map->expert_range[number] = (uint32_t)at;
            for (; at < b->n && b->entries[at].expert == number; at++) {
                const pot_map_range *r = &b->entries[at].range;
                if (r->chunk_begin != next)
                    return pot_fail(err, POT_FORMAT, "map: layer %u expert %u: chunk %u is %s", layer, expert,
                                    r->chunk_begin < next ? r->chunk_begin : next,
                                    r->chunk_begin < next ? "there twice" : "missing");
                next = r->chunk_end;
                map->ranges[at] = *r;
            }
            if (next != pot_layer_expert_chunks(&map->layers[layer], expert))
                return pot_fail(err, POT_FORMAT, "map: layer %u expert %u: chunk %u is missing", layer, expert, next);
        }
    map->expert_range[map->layer_expert[map->n_layers]] = (uint32_t)at;
    return POT_OK;
}

pot_status pot_map_builder_finish(pot_map **out, pot_map_builder *b, pot_err *err) {
    pot_map *map = b->map;
    if (b->n) qsort(b->entries, b->n, sizeof *b->entries, by_place);
    map->expert_range = pot_alloc_array((size_t)map->layer_expert[map->n_layers] + 1, sizeof *map->expert_range);
    map->ranges = pot_alloc_array(b->n, sizeof *map->ranges);
    pot_status s = map->expert_range && map->ranges
                       ? fill(map, b, err)
                       : pot_fail(err, POT_NO_MEMORY, "no memory for a map of %zu ranges", b->n);
    if (s == POT_OK) {
        b->map = NULL;
        *out = map;
    }
    pot_map_builder_free(b);
    return s;
}

/* ---- policies without heat ------------------------------------------------------------------------------------------ */

typedef pot_status policy(pot_map_builder *b, uint32_t layer, uint32_t expert, uint32_t chunks,
                          const pot_layer_shape *shape, uint64_t *random, pot_err *err);

static pot_status whole(pot_map_builder *b, uint32_t layer, uint32_t expert, uint32_t chunks, uint32_t worker,
                        pot_err *err) {
    return pot_map_builder_add(b, layer, expert, 0, chunks, (uint64_t)1 << worker, worker, err);
}

static pot_status contiguous(pot_map_builder *b, uint32_t layer, uint32_t expert, uint32_t chunks,
                             const pot_layer_shape *shape, uint64_t *random, pot_err *err) {
    (void)random;
    uint32_t worker = expert < shape->n_routed ? (uint32_t)((uint64_t)expert * b->map->n_workers / shape->n_routed) : 0;
    return whole(b, layer, expert, chunks, worker, err);
}

static pot_status round_robin(pot_map_builder *b, uint32_t layer, uint32_t expert, uint32_t chunks,
                              const pot_layer_shape *shape, uint64_t *random, pot_err *err) {
    (void)random;
    return whole(b, layer, expert, chunks, expert < shape->n_routed ? expert % b->map->n_workers : 0, err);
}

/* As even as chunks allow; the start turns with the expert, so that few chunks still reach every worker. */
static pot_status sliced(pot_map_builder *b, uint32_t layer, uint32_t expert, uint32_t chunks,
                         const pot_layer_shape *shape, uint64_t *random, pot_err *err) {
    (void)random;
    uint32_t workers = b->map->n_workers;
    if (expert >= shape->n_routed) return whole(b, layer, expert, chunks, 0, err);
    pot_status s = POT_OK;
    for (uint32_t i = 0; i < workers && s == POT_OK; i++) {
        uint32_t begin = (uint32_t)((uint64_t)chunks * i / workers),
                 end = (uint32_t)((uint64_t)chunks * (i + 1) / workers);
        uint32_t worker = (i + expert) % workers;
        if (begin < end) s = pot_map_builder_add(b, layer, expert, begin, end, (uint64_t)1 << worker, worker, err);
    }
    return s;
}

/* splitmix64 (Steele, Lea, Flood 2014) */
static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static uint32_t below(uint64_t *state, uint32_t n) { return (uint32_t)(next_random(state) >> 33) % n; }

/* Ranges of random length on random workers, a third of them with replicas; the common expert too. */
static pot_status randomly(pot_map_builder *b, uint32_t layer, uint32_t expert, uint32_t chunks,
                           const pot_layer_shape *shape, uint64_t *random, pot_err *err) {
    (void)shape;
    uint32_t workers = b->map->n_workers;
    pot_status s = POT_OK;
    for (uint32_t begin = 0, end; begin < chunks && s == POT_OK; begin = end) {
        end = begin + 1 + below(random, chunks - begin);
        uint32_t first = below(random, workers);
        uint64_t owners = (uint64_t)1 << first;
        if (below(random, 3) == 0) owners |= (uint64_t)1 << below(random, workers);
        s = pot_map_builder_add(b, layer, expert, begin, end, owners, first, err);
    }
    return s;
}

static pot_status find_policy(policy **out, uint64_t *seed, const char *spec, pot_err *err) {
    static const struct {
        const char *name;
        policy *run;
    } policies[] = {{"contiguous", contiguous}, {"round-robin", round_robin}, {"sliced", sliced}};
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++)
        if (strcmp(spec, policies[i].name) == 0) {
            *out = policies[i].run;
            return POT_OK;
        }
    char *end = NULL;
    errno = 0;
    if (strncmp(spec, "random:", 7) == 0 && spec[7] >= '0' && spec[7] <= '9') {
        *seed = strtoull(spec + 7, &end, 10);
        *out = randomly;
    }
    if (!end || *end || errno)
        return pot_fail(err, POT_USAGE, "map %s is unknown: contiguous, round-robin, sliced or random:SEED", spec);
    return POT_OK;
}

pot_status pot_map_make(pot_map **out, const char *spec, uint64_t epoch, uint32_t n_workers,
                        const pot_layer_shape *layers, uint32_t n_layers, pot_err *err) {
    policy *run = NULL;
    uint64_t random = 0;
    pot_map_builder *b;
    pot_status s = find_policy(&run, &random, spec, err);
    if (s == POT_OK) s = pot_map_builder_create(&b, epoch, n_workers, layers, n_layers, err);
    if (s != POT_OK) return s;
    for (uint32_t layer = 0; layer < n_layers && s == POT_OK; layer++)
        for (uint32_t expert = 0; expert < pot_layer_experts(&layers[layer]) && s == POT_OK; expert++)
            s = run(b, layer, expert, pot_layer_expert_chunks(&layers[layer], expert), &layers[layer], &random, err);
    if (s == POT_OK) return pot_map_builder_finish(out, b, err);
    pot_map_builder_free(b);
    return s;
}
