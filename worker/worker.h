/* A worker: joins a coordinator, loads the chunks that the map gives it, answers WORK with SUM.
 *
 * One owner thread.  The same code runs as worker 0 inside the coordinator (over `mem`, polled inline), as a thread in tests, and as
 * a process under mpirun.  It never guesses and never skips: an item it does not own is listed as moved; a value
 * that is not finite becomes an Error frame that names layer and expert.
 */
#ifndef POT_WORKER_WORKER_H
#define POT_WORKER_WORKER_H

#include "common/beacon.h"
#include "common/status.h"
#include "kernels/kernels.h"
#include "proto/transport.h"
#include "proto/wire.h"
#include "worker/store.h"

/* Somebody who wants to see each piece of work after its answer has been sent: `potluck bench layers`.  Called by the owner, who does
 * nothing else meanwhile.  The store lives as long as the worker. */
typedef struct pot_work_done {
    const pot_compute *compute;
    const pot_model *model;
    const pot_store *store;
    const pot_wire_record *record;
    uint32_t layer;
} pot_work_done;
typedef struct pot_work_observer {
    void (*done)(void *context, const pot_work_done *work); /* may be NULL */
    void *context;
} pot_work_observer;

typedef struct pot_worker_options {
    pot_transport *transport; /* borrowed */
    uint32_t coordinator;     /* its peer number */
    pot_compute compute;
    const char *model;   /* NULL = the path in Welcome */
    uint64_t timeout_us; /* for the handshake */
    pot_store_choice store;
    pot_beacon *beacon;   /* what it does is told here; borrowed; NULL = nobody asks */
    pot_beacon_role role; /* of the process, for the beacon */
    uint64_t
        host_workers; /* bit w: worker w runs on this machine too (own bit set); with worker 0 comes the coordinator */
    pot_work_observer observer;
} pot_worker_options;

typedef struct pot_worker pot_worker;
/* Sends Hello.  Loading happens in poll, when Map has been committed. */
pot_status pot_worker_create(pot_worker **out, const pot_worker_options *options, pot_err *err);
void pot_worker_free(pot_worker *worker);

/* `tick` is called now and then by the owner while it loads: the coordinator shows its progress meanwhile. */
void pot_worker_watch(pot_worker *worker, void (*tick)(void *context), void *context);
/* Bytes of experts loaded so far, and how many it will be; both 0 before it has begun. */
void pot_worker_loading(const pot_worker *worker, uint64_t *loaded, uint64_t *total);

/* Handles everything that has arrived, without waiting.  *done is set after Leave.  An error here ends the worker (it has told
 * the coordinator why). */
pot_status pot_worker_poll(pot_worker *worker, bool *done, pot_err *err);
/* Waits and polls until Leave (OK), a stop signal (CANCELLED, after a Leave to the coordinator), or an error. */
pot_status pot_worker_serve(pot_worker *worker, pot_err *err);

#endif
