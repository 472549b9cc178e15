/* A whole cluster in one process: coordinator, workers and engine over the `mem` transport, as coordinator/cluster.c puts them
 * together, but with any number of workers.  Worker 0 is polled inline by the coordinator; the others have a thread each. */
#ifndef POT_TESTS_RIG_H
#define POT_TESTS_RIG_H

#include <pthread.h>

#include "coordinator/engine.h"
#include "coordinator/peers.h"

typedef struct pot_rig_options {
    const char *model; /* directory */
    pot_format_policy policy;
    const char *map; /* as --map */
    uint32_t n_workers;
    const char *kernels;        /* of the coordinator and worker 0; NULL = the best */
    bool mixed_kernels;         /* worker w computes with table w of those that this CPU can run, in turn */
    int threads;                /* of the coordinator and worker 0; the others have one */
    uint64_t timeout_us;        /* 0 = a minute */
    pot_work_observer observer; /* sees what each worker does, on that worker's thread */
    pot_store_choice store;     /* of every worker */
    const uint64_t *ram_bytes;  /* [n_workers] a budget for each, in place of the store's; NULL = the same for all */
    bool prefetch;              /* the engine sends hints, and workers follow them */
} pot_rig_options;

typedef struct pot_rig_worker {
    pthread_t thread;
    bool started;
    pot_worker_options options;
    pot_status status; /* how it ended */
    pot_err err;
} pot_rig_worker;

typedef struct pot_rig {
    pot_model *model;
    pot_map *map;
    pot_compute compute;
    pot_transport *ends[POT_MAX_WORKERS + 1];
    pot_rig_worker workers[POT_MAX_WORKERS];
    pot_worker *inline_worker;
    pot_peers *peers;
    pot_moe *moe;
    pot_engine *engine; /* NULL until pot_rig_engine */
    bool prefetch;
} pot_rig;

/* Everything but the engine.  On failure nothing is left. */
pot_status pot_rig_open(pot_rig *rig, const pot_rig_options *options, pot_err *err);
/* An engine of that --prefill-tile, in place of the one before. */
pot_status pot_rig_engine(pot_rig *rig, uint32_t tile, pot_err *err);
/* Ends all workers in order; the first error that one of them ended with.  Also for an all-zero rig. */
pot_status pot_rig_close(pot_rig *rig, pot_err *err);

/* `batch` sequences computed together: sequence b is the prompt turned left by `turn` + b places, then `n_decode` tokens that
 * are each the likeliest one.  With `draft`, the MTP layer runs over the prompt too. */
typedef struct pot_play {
    const int32_t *prompt;
    uint32_t n_prompt, n_decode, batch, turn;
    pot_kv_format kv;
    bool draft;
} pot_play;

/* Rows of logits a sequence: prompt, then MTP, then decode. */
uint32_t pot_play_rows(const pot_play *play);
/* logits [batch][pot_play_rows][vocab]. */
pot_status pot_rig_play(float *logits, pot_rig *rig, const pot_play *play, pot_err *err);

#endif
