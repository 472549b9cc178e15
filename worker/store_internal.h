/* What a pot_store is inside; shared by store.c (laying out, opening, loading), store_step.c (steps) and nobody else. */
#ifndef POT_WORKER_STORE_INTERNAL_H
#define POT_WORKER_STORE_INTERNAL_H

#include "common/mem.h"
#include "model/chunk_copy.h"
#include "worker/store.h"

/* A read into a slot, and the sentence of its fault. */
typedef struct pot_slot_read {
    pot_read read;
    pot_err err;
} pot_slot_read;

#define POT_NO_SLOT UINT32_MAX
#define POT_NO_UNIT UINT32_MAX

/* UNCHECKED: in its slot, but its checksum has not been looked at. */
typedef enum pot_chunk_state {
    POT_CHUNK_ABSENT,
    POT_CHUNK_LOADING,
    POT_CHUNK_UNCHECKED,
    POT_CHUNK_READY
} pot_chunk_state;

typedef struct pot_unit {
    uint32_t layer, expert;
    uint16_t chunk_begin, chunk_end;
    uint16_t pending; /* reads that have not come back */
    uint8_t pool;
    bool is_common;     /* every token wants it */
    bool is_mtp;        /* of a layer behind the last: drafting may never ask for it */
    bool failed;        /* a read of it did; the unit goes when none is pending */
    uint32_t number;    /* within its layer and pool: the cache's name for it */
    uint64_t queued_in; /* the step that began its reads */
    uint64_t uses;      /* ever, scans left out */
    uint8_t *device;    /* in the GPU's memory, chunk after chunk in slots; NULL = not there */
    uint32_t left;      /* in a step: wanted chunks that have not been computed */
} pot_unit;

/* Slots of one size, and the policy over them. */
typedef struct pot_slot_pool {
    size_t slot_bytes;
    uint32_t owned_slots; /* slots for all chunks of this size that the worker owns */
    uint32_t n_slots, n_free;
    uint32_t largest_unit; /* slots */
    uint32_t *free;        /* [n_slots] a stack */
    pot_slot_read *reads;  /* [n_slots]; NULL when nothing is read into slots */
    pot_slab slab;
    pot_cache *cache;
    uint8_t *device; /* slots in the GPU's memory, taken by whole units: */
    uint32_t device_slots, device_slots_used;
    uint32_t *first_unit; /* [n_layers] the unit with number 0 */
    bool in_step;
} pot_slot_pool;
enum { POT_MAX_POOLS = 8 };

struct pot_store {
    pot_store_choice choice;
    const pot_model *model;
    pot_team *team; /* computes checksums; NULL = the owner alone */
    uint64_t epoch, budget_bytes, table_bytes;
    uint32_t worker, n_layers;
    const pot_layer_shape *shapes; /* the model's */
    size_t *layer_begin;           /* [n_layers] first entry of a layer in the arrays by chunk */
    size_t n_entries;
    uint32_t *unit_of; /* [n_entries] or POT_NO_UNIT */
    uint32_t *slot_of; /* [n_entries] or POT_NO_SLOT */
    uint8_t *state;    /* [n_entries] pot_chunk_state */
    pot_unit *units;   /* [n_units] by layer, expert, chunk */
    uint32_t n_units;
    uint32_t *layer_units; /* [n_layers + 1] first unit of each layer */
    pot_slot_pool pools[POT_MAX_POOLS];
    uint32_t n_pools;
    bool everything;            /* fits */
    bool broken;                /* a read never came back */
    bool on_disk;               /* packed, in the model or in: */
    pot_chunk_copy *copy;       /* --disk-cache; NULL = none */
    pot_device *device;         /* NULL = none */
    pot_reader *reader;         /* NULL when everything was packed or read at the start */
    uint32_t *layer_file;       /* [n_layers] the reader's number, or UINT32_MAX */
    _Atomic uint64_t *progress; /* grows by what is loaded and read */
    char *usage_path;           /* NULL = none */

    /* The step. */
    uint64_t number; /* of steps begun */
    bool scan;
    uint32_t last_layer; /* of steps that were no scans */
    bool loading;        /* before the first step: every fault counts */
    uint32_t layer;
    const pot_store_want *wants;
    uint32_t *open; /* [most chunks of a layer] wants that have not been given, ascending */
    uint32_t n_open;
    uint32_t *on_device; /* [most] wants that lie in the GPU's memory */
    uint32_t n_on_device;
    uint32_t *arrived; /* [most] entries of open wants whose checksums are to be looked at */
    bool *sound;       /* [most] what came of it */
    uint32_t n_arrived;
    uint32_t *given; /* [most] wants of the latest take */
    uint32_t n_given;
    uint32_t *misses; /* [most units] to be admitted, in file order */
    uint32_t n_misses, next_miss;
    uint32_t *numbers;    /* [most units] the cache's names of wanted units */
    bool *hits;           /* [most units] */
    uint32_t *step_units; /* [most units] all wanted units */
    uint32_t n_step_units;
    uint64_t first_read_us, last_read_us;
    pot_err fault; /* of one of the step's own reads; status OK = none */
    pot_store_step step, last_step;
    pot_store_stats stats;
};

static inline size_t pot_store_entry(const pot_store *s, uint32_t layer, uint32_t expert, uint32_t chunk) {
    return s->layer_begin[layer] + (size_t)expert * s->shapes[layer].routed_chunks + chunk;
}
static inline uint8_t *pot_slot_data(const pot_slot_pool *pool, uint32_t slot) {
    return pool->slab.base + (size_t)slot * pool->slot_bytes;
}

/* store_step.c: gives a unit slots, whose number the cache has made room for, and marks its chunks as loading. */
void pot_store_place(pot_store *store, pot_unit *unit);
/* Takes a unit's slots away; waits for reads into them, but not for ever. */
pot_status pot_store_displace(pot_store *store, pot_unit *unit, pot_err *err);
/* Queues the reads of a placed unit. */
pot_status pot_store_queue(pot_store *store, pot_unit *unit, bool urgent, pot_err *err);
/* Handles one finished read, waiting for it at most timeout_us; false when there was none. */
bool pot_store_drain(pot_store *store, uint64_t timeout_us);

/* Where a chunk lies on disk: in the copy or in the model. */
const char *pot_store_file(const pot_store *store, uint32_t layer);
pot_status pot_store_chunk_place(pot_chunk_place *out, const pot_store *store, uint32_t layer, uint32_t expert,
                                 uint32_t chunk, pot_err *err);

/* All units, the hottest first: the order of loading. */
void pot_store_order(pot_unit **order, pot_store *store);

/* store_device.c */
/* Takes the GPU's memory, and decides which units go there: the hottest by usage.  Their bytes are then not needed in RAM. */
pot_status pot_store_open_device(pot_store *store, const pot_store_options *options, pot_err *err);
pot_status pot_store_load_device(pot_store *store, const pot_store_options *options, pot_err *err);
/* Now and then: units that have become hot take the place of those that have not, with a margin of 25% + 4 uses. */
void pot_store_repin_device(pot_store *store);

#endif
