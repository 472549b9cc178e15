/* The coordinator's side of the cluster: who is there, do they match, are they alive.
 *
 * Owns the handshake (Hello -> Welcome, Map, Ready), the pulse, and the receive loop of the token path.  Worker 0 is usually the
 * coordinator's own (`local`, polled inline over `mem`); the others are reached over `remote`.  One owner thread.
 * A dead peer (LOST, Leave, or no heartbeat for dead_us) fails every wait at once with PEER_LOST and a sentence that
 * names rank, host and what it was doing.
 */
#ifndef POT_COORDINATOR_PEERS_H
#define POT_COORDINATOR_PEERS_H

#include "common/status.h"
#include "model/model.h"
#include "placement/map.h"
#include "proto/transport.h"
#include "proto/wire.h"
#include "worker/worker.h"

typedef struct pot_peer_stats {
    char host[64], kernels[32];
    uint64_t rounds, sent_bytes, received_bytes, compute_us, held_bytes;
    uint64_t read_bytes; /* of weights, to compute; of those: */
    uint64_t disk_bytes; /* had to be fetched from disk first, which took in all (computing went on): */
    uint64_t load_us;
    uint64_t dropped; /* replies that came too late to be of use */
} pot_peer_stats;

typedef struct pot_peers_options {
    pot_transport *local;      /* end 0 of a mem transport; worker w is its peer w + 1.  NULL = no local workers */
    uint32_t n_local;          /* workers reached over `local`: the first n_local workers */
    pot_worker *inline_worker; /* worker 0, polled inside waits; NULL when every local worker has its own thread */
    pot_transport *remote;     /* NULL = none; worker w is its peer w (rank) */
    uint32_t n_workers;        /* all */
    const pot_model *model;
    pot_map *map;                               /* its own reference is taken */
    uint64_t heartbeat_us, dead_us, timeout_us; /* timeout_us: join and load without progress */
    bool quiet;                                 /* no progress lines */
} pot_peers_options;

typedef struct pot_peers pot_peers;
/* Waits for every Hello, sends Welcome and Map, waits until every worker is Ready (progress on stderr). */
pot_status pot_peers_create(pot_peers **out, const pot_peers_options *options, pot_err *err);
/* Leave to all, waits a moment for theirs, frees. */
void pot_peers_free(pot_peers *peers);

uint32_t pot_peers_count(const pot_peers *peers);
pot_map *pot_peers_map(const pot_peers *peers); /* borrowed */
const pot_peer_stats *pot_peers_stats(const pot_peers *peers, uint32_t worker);

/* The token path: a message to fill, its sending, and the next SUM (checked, *sum borrows *message until released). */
pot_message *pot_peers_message(pot_peers *peers, uint32_t worker, size_t bytes);
pot_status pot_peers_send(pot_peers *peers, uint32_t worker, pot_message *message, pot_err *err);
/* Runs worker 0 inline (its compute time counts as experts, not as waiting). */
pot_status pot_peers_run_local(pot_peers *peers, pot_err *err);
pot_status pot_peers_receive(pot_peers *peers, uint32_t *worker, pot_message **message, pot_wire_sum *sum,
                             pot_err *err);
/* Of a SUM that was used: the worker has answered. */
void pot_peers_release(pot_peers *peers, uint32_t worker, pot_message *message);
/* Releases a reply to work that nobody waits for any more, and counts it. */
void pot_peers_drop(pot_peers *peers, uint32_t worker, pot_message *message);
/* While there is no work: takes the heartbeats that have come in, without waiting, and reports whoever is gone. */
pot_status pot_peers_tend(pot_peers *peers, pot_err *err);

#endif
