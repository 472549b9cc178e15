/* The chunks that a worker holds: packed, in memory, found in constant time.  Owner: the worker; read-only once loaded.
 * This is the place where tiers (VRAM, RAM, disk) will live: callers only ever ask for a chunk's bytes. */
#ifndef POT_WORKER_STORE_H
#define POT_WORKER_STORE_H

#include <stdatomic.h>

#include "kernels/kernels.h"
#include "model/model.h"
#include "placement/map.h"

typedef struct pot_store pot_store;

/* Somebody who wants to be called by the loading thread now and then.  tick may be NULL. */
typedef struct pot_store_watcher {
    void (*tick)(void *context);
    void *context;
} pot_store_watcher;

/* Packs every chunk that `map` gives to `worker`; *loaded_bytes grows meanwhile (may be read by another thread).  LIMIT, before
 * anything is loaded, when the machine has not enough memory; CANCELLED when a signal asks for the end. */
pot_status pot_store_load(pot_store **out, const pot_model *model, const pot_map *map, uint32_t worker, int threads,
                          _Atomic uint64_t *loaded_bytes, const pot_store_watcher *watcher, pot_err *err);
void pot_store_free(pot_store *store);
uint64_t pot_store_bytes(const pot_store *store);
const uint8_t *pot_store_memory(const pot_store *store); /* of all chunks, so many bytes; NULL when there are none */
uint64_t pot_store_epoch(const pot_store *store);        /* of the map that it was loaded for */

/* NULL when this worker does not hold the chunk (or there is no such chunk).  Borrowed. */
const uint8_t *pot_store_chunk(const pot_store *store, uint32_t layer, uint32_t expert, uint32_t chunk);

#endif
