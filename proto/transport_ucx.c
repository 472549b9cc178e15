/* UCX active messages.
 *
 * Two handlers (data, control).  A small message arrives whole in the callback and is copied into a pooled buffer; a large one
 * (rendezvous) is received straight into one.  Everything that touches the UCX worker holds one mutex, so that the pulse thread may
 * send while the owner computes; callbacks run inside ucp_worker_progress and so under the mutex as well.
 *
 * UCX moves only while it is called, and a rendezvous needs its sender until it is done.  The owner computes meanwhile (the
 * coordinator its own share of a prompt), so a thread of the transport's own, the carrier, calls UCX while one is under way.
 *
 * The owner sleeps in poll() on the UCX event descriptor, a descriptor of our own (another thread's progress has queued something,
 * or wake()), and the stop signal's.  Before sleeping it may spin for a moment.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <ucp/api/ucp.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/system.h"
#include "proto/control.h"
#include "proto/pool.h"
#include "proto/ucx_guard.h"
#include "proto/wire.h"

enum {
    AM_DATA = 1,
    AM_CONTROL = 2,
    /* Above this a round trip for the rendezvous costs less than the copies; below it the automatic choice is up to 6 x slower over TCP
     * (docs/protocol.md, "Eager and rendezvous"). */
    EAGER_BYTES = 128 * 1024,
    PROGRESS_ROUNDS = 256, /* a peer that floods must not keep the owner from its queue and deadlines */
    NAP_US = 100,          /* while UCX cannot be armed, because sends wait for a peer that does not read */
    CLOSE_US = 500000      /* to take the connections down by force, all at once */
};

/* What travels with every message. */
typedef struct am_header {
    uint32_t from;
} am_header;

typedef struct ucx_peer ucx_peer;

typedef struct ucx_transport {
    pot_transport transport; /* first */
    pthread_mutex_t mutex;   /* guards all below but the constants */
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    pot_blob sealed;  /* the address, for others */
    am_header header; /* of everything that is sent: it must live as long as any send */
    uint64_t spin_us;
    int ucx_fd, own_fd;
    bool sleeping, woken;
    bool stop_told; /* receive has returned for the stop signal; the farewell that follows may sleep */
    pot_pool pool;
    pot_message *head, *tail;          /* received */
    pot_message *flying, **flying_end; /* those that UCX sends from or receives into */
    ucx_peer *peers;                   /* [n_peers] */
    uint32_t n_peers;
    pthread_t carrier;
    pthread_cond_t laden; /* something large is under way, or `closing` */
    bool has_carrier, closing;
} ucx_transport;

struct ucx_peer {
    ucx_transport *owner;
    uint32_t number;
    ucp_ep_h ep; /* NULL: not connected */
    bool lost;
    ucs_status_ptr_t closing; /* while the transport closes: its flush, then its end */
};

/* ---- queue ------------------------------------------------------------------------------------------------------------------- */

static void ring(ucx_transport *u) {
    uint64_t one = 1;
    if (write(u->own_fd, &one, sizeof one) < 0 && errno != EAGAIN)
        POT_LOG(POT_LOG_ERROR, "proto.ucx", "cannot wake the receiver: %s", strerror(errno));
}

static void enqueue(ucx_transport *u, pot_message *m) {
    m->next = NULL;
    if (u->tail)
        u->tail->next = m;
    else
        u->head = m;
    u->tail = m;
    if (u->sleeping) ring(u);
}

static pot_message *dequeue(ucx_transport *u) {
    pot_message *m = u->head;
    if (!m) return NULL;
    u->head = m->next;
    if (!u->head) u->tail = NULL;
    m->next = NULL;
    return m;
}

/* UCX forgets some of what it was given when a connection is closed by force, so it is kept in a list: what is still in it when
 * the worker is gone is ours again. */
static void lend(ucx_transport *u, pot_message *m) {
    m->internal = u;
    m->next = NULL;
    *u->flying_end = m;
    u->flying_end = &m->next;
}

/* Most are done in the order they were lent, so the walk is short. */
static void take_back(ucx_transport *u, pot_message *m) {
    pot_message **at = &u->flying;
    while (*at != m) at = &(*at)->next;
    *at = m->next;
    if (!*at) u->flying_end = at;
    m->next = NULL;
}

static void report_lost(ucx_peer *peer, const char *why) {
    ucx_transport *u = peer->owner;
    if (peer->lost) return;
    peer->lost = true;
    size_t bytes = strlen(why) + 1;
    pot_message *m = pot_pool_take(&u->pool, bytes);
    if (!m) return; /* silence has the same end, later */
    memcpy(m->bytes, why, bytes);
    m->kind = POT_MESSAGE_LOST;
    m->peer = peer->number;
    enqueue(u, m);
}

/* ---- UCX callbacks --------------------------------------------------------------------------------------------------------------- */

static void on_endpoint_error(void *argument, ucp_ep_h ep, ucs_status_t status) {
    (void)ep;
    report_lost(argument, ucs_status_string(status));
}

static void on_data_received(void *request, ucs_status_t status, size_t length, void *user) {
    pot_message *m = user;
    ucx_transport *u = m->internal;
    ucx_peer *peer = &u->peers[m->peer];
    (void)length;
    take_back(u, m);
    if (status == UCS_OK && !peer->lost) {
        enqueue(u, m);
    } else {
        if (status != UCS_OK) report_lost(peer, ucs_status_string(status));
        pot_pool_give(&u->pool, m);
    }
    if (request) ucp_request_free(request);
}

static ucs_status_t on_message(ucx_transport *u, uint8_t kind, size_t most, const void *header, size_t header_bytes,
                               void *data, size_t bytes, const ucp_am_recv_param_t *param) {
    am_header h;
    if (header_bytes != sizeof h || bytes > most) {
        POT_LOG(POT_LOG_WARN, "proto.ucx", "a message of %zu bytes with a header of %zu is dropped", bytes,
                header_bytes);
        return UCS_OK;
    }
    memcpy(&h, header, sizeof h);
    if (h.from >= u->n_peers || h.from == u->header.from) {
        POT_LOG(POT_LOG_WARN, "proto.ucx", "a message from the unknown peer %u is dropped", h.from);
        return UCS_OK;
    }
    if (u->peers[h.from].lost) return UCS_OK; /* LOST is the last that is heard of a peer */
    pot_message *m = pot_pool_take(&u->pool, bytes);
    if (!m) {
        report_lost(&u->peers[h.from], "no memory to receive what it sent");
        return UCS_OK;
    }
    m->kind = kind;
    m->peer = h.from;
    if (!(param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV)) {
        if (bytes) memcpy(m->bytes, data, bytes);
        enqueue(u, m);
        return UCS_OK;
    }
    ucp_request_param_t receive = {.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
                                   .cb.recv_am = on_data_received,
                                   .user_data = m};
    lend(u, m);
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(u->worker, data, m->bytes, bytes, &receive);
    if (UCS_PTR_IS_PTR(request)) return UCS_INPROGRESS;
    on_data_received(NULL, UCS_PTR_STATUS(request), bytes, m); /* done at once, or failed */
    return UCS_OK;
}

static ucs_status_t on_data(void *argument, const void *header, size_t header_bytes, void *data, size_t bytes,
                            const ucp_am_recv_param_t *param) {
    return on_message(argument, POT_MESSAGE_DATA, sizeof(pot_wire_header) + POT_WIRE_MAX_PAYLOAD, header, header_bytes,
                      data, bytes, param);
}

static ucs_status_t on_control(void *argument, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param) {
    return on_message(argument, POT_MESSAGE_CONTROL, POT_CONTROL_MAX_BYTES, header, header_bytes, data, bytes, param);
}

static void on_sent(void *request, ucs_status_t status, void *user) {
    pot_message *m = user;
    ucx_transport *u = m->internal;
    take_back(u, m);
    if (status != UCS_OK) report_lost(&u->peers[m->peer], ucs_status_string(status));
    pot_pool_give(&u->pool, m);
    if (request) ucp_request_free(request);
}

/* ---- the ops -------------------------------------------------------------------------------------------------------------------- */

static void progress(ucx_transport *u) {
    for (int i = 0; i < PROGRESS_ROUNDS && ucp_worker_progress(u->worker); i++) {
    }
}

static void *carry(void *argument) {
    ucx_transport *u = argument;
    pthread_mutex_lock(&u->mutex);
    while (!u->closing) {
        pthread_cond_wait(&u->laden, &u->mutex);
        while (u->flying && !u->closing) {
            progress(u);
            pthread_mutex_unlock(&u->mutex);
            usleep(NAP_US);
            pthread_mutex_lock(&u->mutex);
        }
    }
    pthread_mutex_unlock(&u->mutex);
    return NULL;
}

static pot_message *ucx_message(pot_transport *t, size_t bytes) {
    ucx_transport *u = (ucx_transport *)(void *)t;
    pthread_mutex_lock(&u->mutex);
    pot_message *m = pot_pool_take(&u->pool, bytes);
    pthread_mutex_unlock(&u->mutex);
    return m;
}

static void ucx_release(pot_transport *t, pot_message *m) {
    ucx_transport *u = (ucx_transport *)(void *)t;
    pthread_mutex_lock(&u->mutex);
    pot_pool_give(&u->pool, m);
    pthread_mutex_unlock(&u->mutex);
}

static void post(ucx_transport *u, ucx_peer *peer, pot_message *m) {
    ucp_request_param_t param = {.op_attr_mask =
                                     UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
                                 .flags = (m->n_bytes <= EAGER_BYTES ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV),
                                 .cb.send = on_sent,
                                 .user_data = m};
    m->peer = peer->number;
    lend(u, m);
    ucs_status_ptr_t request = ucp_am_send_nbx(peer->ep, m->kind == POT_MESSAGE_CONTROL ? AM_CONTROL : AM_DATA,
                                               &u->header, sizeof u->header, m->bytes, m->n_bytes, &param);
    if (!UCS_PTR_IS_PTR(request)) on_sent(NULL, UCS_PTR_STATUS(request), m);
}

static pot_status ucx_send(pot_transport *t, uint32_t number, pot_message *m, pot_err *err) {
    ucx_transport *u = (ucx_transport *)(void *)t;
    pthread_mutex_lock(&u->mutex);
    ucx_peer *peer = number < u->n_peers ? &u->peers[number] : NULL;
    bool possible = peer && peer->ep && !peer->lost;
    if (possible) {
        bool large = m->n_bytes > EAGER_BYTES;
        post(u, peer, m);
        progress(u);
        if (large && u->flying) pthread_cond_signal(&u->laden);
    } else {
        pot_pool_give(&u->pool, m);
    }
    pthread_mutex_unlock(&u->mutex);
    return possible ? POT_OK : pot_fail(err, POT_PEER_LOST, "peer %u is gone, or was never connected", number);
}

/* Sleeps until something happens, at most until `until_us`.  Called with the mutex held, returns with it held.  UCX that
 * cannot be armed has something for us, which the next look finds: *busy counts the looks in vain, and the second one is
 * followed by a nap. */
static void sleep_until(ucx_transport *u, uint64_t until_us, int *busy) {
    uint64_t now = pot_now_us(), left = until_us > now ? until_us - now : 0;
    if (ucp_worker_arm(u->worker) == UCS_OK) {
        *busy = 0;
    } else {
        if ((*busy)++ == 0) return;
        if (left > NAP_US) left = NAP_US;
    }
    u->sleeping = true;
    pthread_mutex_unlock(&u->mutex);
    struct timespec timeout = {(time_t)(left / 1000000), (long)(left % 1000000 * 1000)};
    /* poll() leaves out descriptors below 0. */
    struct pollfd fds[3] = {
        {*busy ? -1 : u->ucx_fd, POLLIN, 0}, {u->own_fd, POLLIN, 0}, {u->stop_told ? -1 : pot_stop_fd(), POLLIN, 0}};
    (void)ppoll(fds, 3, &timeout, NULL);
    pthread_mutex_lock(&u->mutex);
    u->sleeping = false;
    if (fds[1].revents & POLLIN) {
        uint64_t count;
        if (read(u->own_fd, &count, sizeof count) < 0 && errno != EAGAIN)
            POT_LOG(POT_LOG_ERROR, "proto.ucx", "cannot read the wake-up: %s", strerror(errno));
    }
}

static pot_status ucx_receive(pot_transport *t, uint64_t timeout_us, pot_message **out, pot_err *err) {
    (void)err;
    ucx_transport *u = (ucx_transport *)(void *)t;
    uint64_t start = pot_now_us(), until = timeout_us < UINT64_MAX - start ? start + timeout_us : UINT64_MAX;
    int busy = 0;
    pthread_mutex_lock(&u->mutex);
    for (;;) {
        progress(u);
        *out = dequeue(u);
        uint64_t now = pot_now_us();
        bool stop = pot_stop_requested(), told = u->stop_told;
        u->stop_told = stop && (told || (!*out && timeout_us)); /* one who only looks has not been told */
        if (*out || u->woken || now >= until || (stop && !told)) break;
        if (now - start < u->spin_us) {
            pthread_mutex_unlock(&u->mutex); /* let the pulse in */
            pthread_mutex_lock(&u->mutex);
        } else {
            sleep_until(u, until, &busy);
        }
    }
    if (!*out) u->woken = false;
    pthread_mutex_unlock(&u->mutex);
    return POT_OK;
}

static void ucx_wake(pot_transport *t) {
    ucx_transport *u = (ucx_transport *)(void *)t;
    pthread_mutex_lock(&u->mutex);
    u->woken = true;
    ring(u);
    pthread_mutex_unlock(&u->mutex);
}

/* ---- closing ---------------------------------------------------------------------------------------------------------------------- */

/* Progress until all peers' requests are done or the time is up; those that are left are given up. */
static void wait_for_all(ucx_transport *u, uint64_t until_us) {
    for (uint32_t i = 0; i < u->n_peers; i++) {
        ucs_status_ptr_t request = u->peers[i].closing;
        u->peers[i].closing = NULL;
        if (!UCS_PTR_IS_PTR(request)) continue;
        while (ucp_request_check_status(request) == UCS_INPROGRESS && pot_now_us() < until_us)
            if (!ucp_worker_progress(u->worker)) usleep(NAP_US);
        ucp_request_free(request);
    }
}

static void destroy(ucx_transport *u) {
    if (u->address) ucp_worker_release_address(u->worker, u->address);
    if (u->worker) ucp_worker_destroy(u->worker);
    if (u->context) ucp_cleanup(u->context);
    if (u->own_fd >= 0) close(u->own_fd);
    for (pot_message *m; (m = dequeue(u));) pot_pool_give(&u->pool, m);
    for (pot_message *m; (m = u->flying);) {
        take_back(u, m);
        pot_pool_give(&u->pool, m);
    }
    pot_pool_drain(&u->pool);
    pthread_cond_destroy(&u->laden);
    pthread_mutex_destroy(&u->mutex);
    pot_free((void *)(uintptr_t)u->sealed.bytes);
    pot_free(u->peers);
    pot_free(u);
}

static void ucx_close(pot_transport *t, uint64_t timeout_us) {
    ucx_transport *u = (ucx_transport *)(void *)t;
    uint64_t until = pot_now_us() + timeout_us;
    pthread_mutex_lock(&u->mutex);
    u->closing = true;
    pthread_cond_signal(&u->laden);
    pthread_mutex_unlock(&u->mutex);
    if (u->has_carrier) pthread_join(u->carrier, NULL);
    pthread_mutex_lock(&u->mutex);
    /* A finished send has only left our buffer: the flush gets the last bytes out.  The lost will not take them. */
    const ucp_request_param_t flush = {0};
    for (uint32_t i = 0; i < u->n_peers; i++) {
        ucx_peer *peer = &u->peers[i];
        if (peer->ep && !peer->lost) peer->closing = ucp_ep_flush_nbx(peer->ep, &flush);
    }
    wait_for_all(u, until);
    while (u->flying && pot_now_us() < until)
        if (!ucp_worker_progress(u->worker)) usleep(NAP_US);
    /* By force: an orderly end needs the other side, which may have stopped. */
    const ucp_request_param_t force = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE};
    for (uint32_t i = 0; i < u->n_peers; i++) {
        ucx_peer *peer = &u->peers[i];
        if (peer->ep) peer->closing = ucp_ep_close_nbx(peer->ep, &force);
        peer->ep = NULL;
    }
    wait_for_all(u, pot_now_us() + CLOSE_US);
    pthread_mutex_unlock(&u->mutex);
    destroy(u);
}

static const pot_transport_ops ucx_ops = {.name = "ucx",
                                          .message = ucx_message,
                                          .release = ucx_release,
                                          .send = ucx_send,
                                          .receive = ucx_receive,
                                          .wake = ucx_wake,
                                          .close = ucx_close};

/* ---- opening ---------------------------------------------------------------------------------------------------------------------- */

static pot_status ucx_fault(pot_err *err, const char *what, ucs_status_t status) {
    return pot_fail(err, POT_ERROR, "UCX: %s: %s (docs/cluster.md, \"Networks\")", what, ucs_status_string(status));
}

static pot_status open_context(ucx_transport *u, pot_err *err) {
    ucp_config_t *config;
    ucs_status_t status = ucp_config_read(NULL, NULL, &config);
    if (status != UCS_OK) return ucx_fault(err, "its configuration cannot be read", status);
    /* Without this an endpoint with error handling leaves shared memory unused (openucx/ucx#8477). */
    (void)ucp_config_modify(config, "MM_ERROR_HANDLING", "y");
    /* A dead process on the same host is noticed after so long; silent hosts are the heartbeat's. */
    if (!getenv("UCX_KEEPALIVE_INTERVAL")) (void)ucp_config_modify(config, "KEEPALIVE_INTERVAL", "1s");
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
                           .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP,
                           .name = "potluck"};
    status = ucp_init(&params, config, &u->context);
    ucp_config_release(config);
    return status == UCS_OK ? POT_OK : ucx_fault(err, "it does not start", status);
}

static ucs_status_t set_handler(ucx_transport *u, unsigned id, ucp_am_recv_callback_t callback) {
    ucp_am_handler_param_t param = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                                                  UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
                                    .id = id,
                                    .flags = UCP_AM_FLAG_WHOLE_MSG,
                                    .cb = callback,
                                    .arg = u};
    return ucp_worker_set_am_recv_handler(u->worker, &param);
}

static pot_status open_worker(ucx_transport *u, pot_err *err) {
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t status = ucp_worker_create(u->context, &params, &u->worker);
    if (status != UCS_OK) return ucx_fault(err, "no worker can be made", status);
    status = set_handler(u, AM_DATA, on_data);
    if (status == UCS_OK) status = set_handler(u, AM_CONTROL, on_control);
    if (status == UCS_OK) status = ucp_worker_get_efd(u->worker, &u->ucx_fd);
    pot_blob address = {0};
    if (status == UCS_OK) status = ucp_worker_get_address(u->worker, &u->address, &address.n_bytes);
    if (status != UCS_OK) return ucx_fault(err, "its worker cannot be set up", status);
    address.bytes = u->address;
    return pot_ucx_address_seal(&u->sealed, address, err);
}

pot_status pot_transport_ucx_create(pot_transport **out, pot_blob *address, const pot_ucx_options *options,
                                    pot_err *err) {
    ucx_transport *u = pot_alloc(sizeof *u);
    if (!u) return pot_fail(err, POT_NO_MEMORY, "no memory for a transport");
    u->transport.ops = &ucx_ops;
    u->header.from = options->self;
    u->spin_us = options->spin_us;
    u->flying_end = &u->flying;
    pot_ucx_log_redirect();
    pthread_mutex_init(&u->mutex, NULL);
    pthread_cond_init(&u->laden, NULL);
    u->own_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    pot_status s =
        u->own_fd >= 0 ? open_context(u, err) : pot_fail(err, POT_IO, "no event descriptor: %s", strerror(errno));
    if (s == POT_OK) s = open_worker(u, err);
    if (s != POT_OK) {
        destroy(u);
        return s;
    }
    *address = u->sealed;
    *out = &u->transport;
    return POT_OK;
}

pot_status pot_transport_ucx_connect(pot_transport *t, const pot_blob *peers, uint32_t n, pot_err *err) {
    ucx_transport *u = (ucx_transport *)(void *)t;
    pot_status s = POT_OK;
    pthread_mutex_lock(&u->mutex);
    u->peers = pot_alloc_array(n, sizeof *u->peers);
    if (!u->peers) s = pot_fail(err, POT_NO_MEMORY, "no memory for %u peers", n);
    for (uint32_t i = 0; i < n && s == POT_OK; i++) {
        ucx_peer *peer = &u->peers[i];
        *peer = (ucx_peer){.owner = u, .number = i};
        u->n_peers = i + 1;
        if (peers[i].n_bytes == 0) continue;
        s = pot_ucx_address_check(peers[i], err);
        if (s != POT_OK) {
            s = pot_at(err, "the address of rank %u", i);
            break;
        }
        ucp_ep_params_t params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER,
                                  .address = peers[i].bytes,
                                  .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                                  .err_handler = {on_endpoint_error, peer}};
        ucs_status_t status = ucp_ep_create(u->worker, &params, &peer->ep);
        if (status != UCS_OK) {
            peer->ep = NULL;
            s = ucx_fault(err, "no connection can be made", status);
        }
    }
    if (s == POT_OK && !u->has_carrier) {
        int failed = pthread_create(&u->carrier, NULL, carry, u);
        u->has_carrier = !failed;
        if (failed) s = pot_fail(err, POT_ERROR, "the transport's thread does not start: %s", strerror(failed));
    }
    pthread_mutex_unlock(&u->mutex);
    return s;
}
