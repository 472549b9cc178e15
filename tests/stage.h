/* A coordinator with its own worker 0 and more workers in threads, over `mem`.  The others are real workers, but their
 * transport can be told to tamper with what they send, so that every fault of a peer can be played. */
#ifndef POT_TESTS_STAGE_H
#define POT_TESTS_STAGE_H

#include <pthread.h>
#include <stdatomic.h>

#include "coordinator/moe.h"
#include "coordinator/peers.h"

/* What a worker's transport does with messages to the coordinator. */
typedef enum pot_trick {
    POT_TRICK_NONE,
    /* with every SUM */
    POT_TRICK_TWICE,      /* it is sent twice */
    POT_TRICK_OTHER_STEP, /* a copy for the step before goes first; so for the next ones */
    POT_TRICK_OTHER_REQUEST,
    POT_TRICK_OTHER_LAYER,
    POT_TRICK_OTHER_EPOCH,
    POT_TRICK_OLD_ERROR,   /* an Error about the step before goes first */
    POT_TRICK_MOVED,       /* the first item is listed as moved */
    POT_TRICK_ANOTHER_ROW, /* it says that it has one row more, and has it */
    POT_TRICK_CUT,         /* its last bytes are missing */
    POT_TRICK_NOISE,       /* it is overwritten */
    POT_TRICK_WORK,        /* it says that it is a WORK */
    POT_TRICK_ERROR,       /* an Error about this step instead */
    POT_TRICK_LEAVE,       /* Leave instead */
    POT_TRICK_WITHHOLD,    /* nothing instead */
    POT_TRICK_BESIDE,      /* it says that it is for another request, and nothing else comes */
    POT_TRICK_BAD_CONTROL, /* a control frame of noise instead */
    POT_TRICK_WELCOME,     /* a frame instead that only coordinators send */
    /* with everything from then on */
    POT_TRICK_MUTE, /* nothing is sent any more, heartbeats included */
    /* while joining */
    POT_TRICK_NO_HELLO,
    POT_TRICK_OLD_HELLO, /* it offers protocols 98 to 99 */
    POT_TRICK_HELLO_TWICE,
    POT_TRICK_NO_READY,   /* loads for ever, with a pulse but without getting on */
    POT_TRICK_SLOW_READY, /* loads for 500 heartbeats, a byte each */
    POT_TRICK_READY_TWICE,
    POT_TRICK_OTHER_READY, /* ready for another map */
    POT_TRICK_MODEL_READY, /* ready with another model */
    POT_TRICK_EARLY_DATA   /* data instead of Ready */
} pot_trick;

typedef struct pot_stage_options {
    const char *model, *map;
    pot_format_policy policy;
    uint32_t n_workers;
    pot_trick trick;              /* of worker `liar` */
    uint32_t liar;                /* 0: nobody */
    const char *other_model;      /* what the liar loads instead; NULL = the same */
    uint64_t dead_us, timeout_us; /* 0: a minute */
    uint64_t heartbeat_us;        /* 0: 5 ms */
    bool inline_worker;           /* worker 0 is polled by the coordinator, else it has a thread too */
} pot_stage_options;

typedef struct pot_liar {
    pot_transport transport; /* first */
    pot_transport *inner;
    _Atomic pot_trick trick;
    pthread_mutex_t mutex; /* over the next two, for its pulse sends too */
    pot_message *held;     /* SLOW_READY */
    uint64_t beats;
    uint32_t order[POT_MAX_WORKERS]; /* whom the latest data messages went to, in this order, since n_order was 0 */
    uint32_t n_order;
} pot_liar;

typedef struct pot_actor {
    pot_liar liar;
    pot_worker_options options;
    pthread_t thread;
    bool started;
    pot_status status;
    pot_err err;
} pot_actor;

typedef struct pot_stage {
    pot_model *model;
    pot_map *map;
    pot_compute compute;
    pot_transport *ends[POT_MAX_WORKERS + 1];
    pot_liar coordinator; /* tells no lies: the coordinator's transport, for the order of what it sends */
    pot_actor actors[POT_MAX_WORKERS];
    pot_worker *inline_worker;
    pot_peers *peers;
    pot_moe *moe;
} pot_stage;

/* The stage must be closed also when opening it failed. */
pot_status pot_stage_open(pot_stage *stage, const pot_stage_options *options, pot_err *err);
void pot_stage_trick(pot_stage *stage, uint32_t worker, pot_trick trick);
void pot_stage_close(pot_stage *stage);

#endif
