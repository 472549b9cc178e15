/* The experts of a worker: in the GPU's memory and in RAM as far as the budgets go, the rest on disk.
 *
 * A unit is what one range of the map gives to this worker: neighbouring chunks of one expert.  It is kept or dropped as a whole, by a policy
 * (placement/cache.h); its chunks lie in slots of equal size and need not be neighbours in memory.  Chunks of other sizes (an MTP layer in
 * another format) have slots of their own, a share of the budget by their bytes.  The budget is a ceiling: slots and tables are allocated
 * once, and files are read straight into slots.
 *
 * A step: begin() claims all units that are in memory before anything is evicted, and queues reads for the others; take() gives what is there,
 * then what arrives, until everything was given; what was given counts as computed at the next take(), and then its slots may be used again
 * if the step wants more than fits.  So computing goes on while the disk works.  docs/store.md is the page about all of this.
 *
 * Owner: the worker, one thread.  A read that fails ends the step with a sentence; the chunk is fetched again when it is wanted again.
 */
#ifndef POT_WORKER_STORE_H
#define POT_WORKER_STORE_H

#include <stdatomic.h>

#include "common/reader.h"
#include "kernels/kernels.h"
#include "model/model.h"
#include "placement/cache.h"
#include "placement/map.h"
#include "worker/device.h"

/* Somebody who wants to be called by the loading thread now and then.  tick may be NULL. */
typedef struct pot_store_watcher {
    void (*tick)(void *context);
    void *context;
} pot_store_watcher;

/* What a person chooses (the options of the group "Expert store"); all zero = everything in RAM, whatever it takes. */
typedef struct pot_store_choice {
    uint64_t ram_bytes;  /* ceiling; 0 or UINT64_MAX = what the machine leaves */
    uint64_t vram_bytes; /* ceiling; 0 = no GPU, UINT64_MAX = what it has free */
    pot_cache_policy policy;
    pot_reader_options reader;
    bool prefetch;
    const char *disk_cache; /* directory for a packed copy of what this worker owns; NULL = none */
    const char *usage;      /* file, "auto", or NULL for none */
    uint64_t timeout_us;    /* without any read coming to an end; 0 = a minute */
} pot_store_choice;

typedef struct pot_store_options {
    const pot_model *model; /* borrowed, as is `map` */
    const pot_map *map;
    uint32_t worker;
    pot_team *team;         /* borrowed; computes checksums; NULL = the owner does */
    int threads;            /* that pack */
    uint64_t machine_bytes; /* what `auto` may take: this process's share of what is free; 0 = ask the machine */
    uint64_t usable_bytes;  /* what --ram may not exceed; 0 = not known */
    uint32_t nth, beside;   /* of the workers on this machine, how many there are; 0, 0 = alone */
    pot_store_choice choice;
    /* How far loading has got, and how far it will go; may be read by another thread.  What is read later is added to the first. */
    _Atomic uint64_t *loaded_bytes, *total_bytes;
    pot_store_watcher watcher;
} pot_store_options;

typedef struct pot_store pot_store;

/* Loads what fits: all of it, or the hottest units by the usage of earlier runs.  LIMIT, before anything is loaded, when the budget does not hold
 * two units, or when it does not hold everything and the model is not converted; CANCELLED when a signal asks for the end. */
pot_status pot_store_open(pot_store **out, const pot_store_options *options, pot_err *err);
void pot_store_free(pot_store *store);            /* remembers the usage; NULL is fine */
uint64_t pot_store_epoch(const pot_store *store); /* of the map that it was opened for */
uint64_t pot_store_bytes(const pot_store *store); /* of all chunks that it owns, wherever they are */
/* The largest piece of memory with chunks in it, for measuring; NULL when there is none. */
const uint8_t *pot_store_memory(const pot_store *store, size_t *bytes);
/* The bytes that a worker needs at the least, and those for everything in RAM, from headers alone. */
void pot_store_needs(uint64_t *least, uint64_t *all, const pot_model *model, const pot_map *map, uint32_t worker);

bool pot_store_owns(const pot_store *store, uint32_t layer, uint32_t expert, uint32_t chunk);
/* Whether it is in memory at this moment, and has not to be read. */
bool pot_store_holds(const pot_store *store, uint32_t layer, uint32_t expert, uint32_t chunk);

/* ---- a step ---- */

typedef struct pot_store_want {
    uint32_t expert, chunk; /* that the store owns; ascending, distinct */
} pot_store_want;
typedef struct pot_store_given {
    uint32_t want; /* index */
    const uint8_t *data;
} pot_store_given;

/* `wants` is borrowed until pot_store_end, which must follow, also after a failure.  scan: many rows, see placement/cache.h. */
pot_status pot_store_begin(pot_store *store, uint32_t layer, const pot_store_want *wants, uint32_t n, bool scan,
                           pot_err *err);
/* Up to `max` chunks that can be computed now, waiting for the first; *n = 0: all have been given.  Valid until the next take or end. */
pot_status pot_store_take(pot_store_given *out, uint32_t *n, uint32_t max, pot_store *store, pot_err *err);
void pot_store_end(pot_store *store);
/* Of the begun step: the wanted chunks that lie in the memory of pot_store_device(), which take does not give.  `out` has room for all wants. */
uint32_t pot_store_take_device(pot_store_given *out, const pot_store *store);
/* pot_device_finish with the store's deadline; after a TIMEOUT every later step fails. */
pot_status pot_store_finish_device(pot_store *store, int64_t *acc, pot_err *err);
pot_device *pot_store_device(const pot_store *store); /* NULL = none */
/* Experts that the next layer's router expects; to be called within a step, after begin.  Does nothing unless prefetch was chosen. */
void pot_store_hint(pot_store *store, uint32_t layer, const uint32_t *experts, uint32_t n);

/* ---- reports ---- */

typedef struct pot_store_stats {
    uint64_t budget_bytes; /* slots and tables never take more */
    uint64_t slot_bytes;   /* allocated */
    uint64_t owned_bytes;
    uint64_t resident_bytes; /* chunks that are in memory now */
    uint64_t read_bytes, reads;
    uint64_t wait_us; /* in take, with nothing to compute */
    uint64_t load_us; /* sum over steps: from the first read queued to the last one finished */
    uint64_t steps;
    uint64_t tokens; /* that have passed the layers, prompts left out; several at a time count as one */
    uint64_t vram_budget_bytes, vram_bytes;       /* that experts take of it */
    uint64_t vram_wanted;                         /* units, in steps that were no scans; not in `cache` */
    pot_cache_stats cache;                        /* of all slot sizes together */
    const char *policy, *read_engine, *read_path; /* "ram" when nothing is read */
} pot_store_stats;
void pot_store_get_stats(pot_store_stats *out, const pot_store *store);
/* Chunks of a layer that the store owns, wherever they are. */
uint32_t pot_store_layer_chunks(const pot_store *store, uint32_t layer);
/* Of the step that was ended last. */
typedef struct pot_store_step {
    uint64_t wait_us, load_us;
    uint64_t vram_bytes, ram_bytes, disk_bytes; /* of the wanted chunks: found in memory, read */
} pot_store_step;
const pot_store_step *pot_store_last_step(const pot_store *store);

#endif
