/* The map: which worker holds which chunks of which expert of which layer (epoch'd, replicas possible).
 *
 * Pure arithmetic: no sockets, no clock.  Immutable once built; a change is a new map with a higher epoch.
 * The experts of a layer are numbered 0..n_routed-1; the shared expert is n_routed; a dense layer has the one expert 0.
 * For each (layer, expert) the map holds ranges of chunks, ascending and covering every chunk; each range has one or
 * more owners; `first` is where a dispatcher without load information sends.
 */
#ifndef POT_PLACEMENT_MAP_H
#define POT_PLACEMENT_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

enum { POT_MAX_WORKERS = 64, POT_MAX_CHUNKS = 4096 };

/* What there is to place: per layer, how many routed experts (0 in a dense layer) with how many chunks, and the chunks of
 * the expert that every token chooses (shared, or a dense layer's MLP; 0 when there is none). */
typedef struct pot_layer_shape {
    uint32_t n_routed, routed_chunks, common_chunks;
} pot_layer_shape;
static inline uint32_t pot_layer_experts(const pot_layer_shape *s) {
    return s->n_routed + (s->common_chunks ? 1u : 0u);
}
static inline uint32_t pot_layer_expert_chunks(const pot_layer_shape *s, uint32_t expert) {
    return expert < s->n_routed ? s->routed_chunks : s->common_chunks;
}

typedef struct pot_map_range {
    uint16_t chunk_begin, chunk_end;
    uint64_t owners; /* bit w: worker w holds it; never 0 */
    uint8_t first;   /* the preferred owner */
} pot_map_range;

typedef struct pot_map pot_map;

pot_map *pot_map_ref(pot_map *map);
void pot_map_free(pot_map *map); /* drops one reference; NULL is fine */

uint64_t pot_map_epoch(const pot_map *map);
uint32_t pot_map_workers(const pot_map *map);
uint32_t pot_map_layers(const pot_map *map);
const pot_layer_shape *pot_map_layer_shape(const pot_map *map, uint32_t layer);
/* Borrowed ranges of one expert; NULL and 0 when layer or expert is outside the map. */
const pot_map_range *pot_map_ranges(const pot_map *map, uint32_t layer, uint32_t expert, uint32_t *n_ranges);
/* true when `worker` owns every chunk of [begin, end). */
bool pot_map_owns(const pot_map *map, uint32_t worker, uint32_t layer, uint32_t expert, uint32_t chunk_begin,
                  uint32_t chunk_end);
/* Equal in everything but the epoch. */
bool pot_map_equal(const pot_map *a, const pot_map *b);

/* Building: ranges are added in any order, each checked against the shape (chunks, owners below n_workers); finish checks that they
 * are complete and do not overlap.  create copies `layers`; an expert has 1 to POT_MAX_CHUNKS chunks. */
typedef struct pot_map_builder pot_map_builder;
pot_status pot_map_builder_create(pot_map_builder **out, uint64_t epoch, uint32_t n_workers,
                                  const pot_layer_shape *layers, uint32_t n_layers, pot_err *err);
pot_status pot_map_builder_add(pot_map_builder *builder, uint32_t layer, uint32_t expert, uint32_t chunk_begin,
                               uint32_t chunk_end, uint64_t owners, uint32_t first, pot_err *err);
pot_status pot_map_builder_finish(pot_map **out, pot_map_builder *builder,
                                  pot_err *err); /* frees the builder, always */
void pot_map_builder_free(pot_map_builder *builder);

/* Policies without heat.  spec: "contiguous", "round-robin", "sliced" (every routed expert cut over all workers), "random:SEED"
 * (ranges of random length of every expert, the common ones too, on random workers, some with replicas).  In the first three the
 * common expert stays on worker 0, the coordinator's own. */
pot_status pot_map_make(pot_map **out, const char *spec, uint64_t epoch, uint32_t n_workers,
                        const pot_layer_shape *layers, uint32_t n_layers, pot_err *err);

#endif
