/* Moving messages between processes: an ops table with `mem` (threads of one process) and `ucx` (shared memory, TCP, RDMA).
 *
 * A transport is one process's end; peers are numbered by the bootstrap (0 = the coordinator).  Messages are pooled,
 * 64-byte aligned buffers: the sender asks for one, fills it in place and gives it away; the receiver takes one and frees it
 * to the pool.  No allocation once the pool is warm.  Any thread may send; one thread (the owner) receives.
 * A lost peer arrives as a message of kind LOST, the last one from it.  Every wait has a deadline.  Messages from one thread to one
 * peer arrive in the order they were sent, but over `ucx` one above 128 KiB (a rendezvous) may be overtaken by later ones.
 * Data messages begin with pot_wire_header; control messages are frames of control.h (at most 64 KiB).
 */
#ifndef POT_PROTO_TRANSPORT_H
#define POT_PROTO_TRANSPORT_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

typedef enum pot_message_kind { POT_MESSAGE_DATA = 1, POT_MESSAGE_CONTROL = 2, POT_MESSAGE_LOST = 3 } pot_message_kind;

typedef struct pot_message {
    uint8_t *bytes; /* 64-byte aligned */
    size_t n_bytes, capacity;
    uint32_t peer;            /* received: from whom; sent: to whom */
    uint8_t kind;             /* pot_message_kind; LOST: bytes hold the reason as text with a NUL */
    struct pot_message *next; /* the transport's */
    void *internal;           /* the transport's */
} pot_message;

typedef struct pot_transport pot_transport;
typedef struct pot_transport_ops {
    const char *name;
    pot_message *(*message)(pot_transport *t, size_t bytes); /* NULL when memory is short */
    void (*release)(pot_transport *t, pot_message *m);
    /* Takes m in every case.  PEER_LOST when the peer is known to be gone. */
    pot_status (*send)(pot_transport *t, uint32_t peer, pot_message *m, pot_err *err);
    /* *out = the next message, or NULL when none came within timeout_us (0 = look once).  Also returns (NULL, OK) early, once, when
     * pot_transport_wake() was called, and over `ucx` when a stop signal arrived. */
    pot_status (*receive)(pot_transport *t, uint64_t timeout_us, pot_message **out, pot_err *err);
    void (*wake)(pot_transport *t); /* any thread */
    /* Lets queued sends finish for at most timeout_us, then closes everything, by force where need be.  No other thread may be in
     * or come to this end any more. */
    void (*close)(pot_transport *t, uint64_t timeout_us);
} pot_transport_ops;
struct pot_transport {
    const pot_transport_ops *ops;
};

static inline pot_message *pot_transport_message(pot_transport *t, size_t bytes) { return t->ops->message(t, bytes); }
static inline void pot_message_release(pot_transport *t, pot_message *m) {
    if (m) t->ops->release(t, m);
}
static inline pot_status pot_transport_send(pot_transport *t, uint32_t peer, pot_message *m, pot_err *err) {
    return t->ops->send(t, peer, m, err);
}
static inline pot_status pot_transport_receive(pot_transport *t, uint64_t timeout_us, pot_message **out, pot_err *err) {
    return t->ops->receive(t, timeout_us, out, err);
}
static inline void pot_transport_wake(pot_transport *t) { t->ops->wake(t); }
static inline void pot_transport_close(pot_transport *t, uint64_t timeout_us) {
    if (t) t->ops->close(t, timeout_us);
}

/* n ends in one process, every one a peer of every other; each end has one owner thread. */
pot_status pot_transport_mem_create(pot_transport **ends /* [n] */, uint32_t n, pot_err *err);

/* UCX: create gives this process's address blob (borrowed, for the bootstrap to hand out); connect takes the blobs of those it
 * will talk to (peers may differ per process; entries with 0 bytes are skipped). */
typedef struct pot_ucx_options {
    uint32_t self;    /* own number */
    uint64_t spin_us; /* busy polling before sleeping; 0 when ranks outnumber cores */
} pot_ucx_options;
typedef struct pot_blob {
    const void *bytes;
    size_t n_bytes;
} pot_blob;
pot_status pot_transport_ucx_create(pot_transport **out, pot_blob *address, const pot_ucx_options *options,
                                    pot_err *err);
pot_status pot_transport_ucx_connect(pot_transport *t, const pot_blob *peers /* [n] */, uint32_t n, pot_err *err);

#endif
