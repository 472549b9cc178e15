/* Workers are numbered 0..n-1; the first n_local of them are reached over the `mem` transport (worker w is its peer w + 1), the
 * others over the remote one (worker w is its peer w).
 *
 * All messages come through one place, next_message(): it lets the inline worker run, looks at both transports, and sleeps only on the
 * one that others can wake: the remote one when there is one, else the local one. */
#include "coordinator/peers.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/progress.h"
#include "common/system.h"
#include "proto/control.h"

enum { SLEEP_US = 100000 /* how long a wait may go without a look at deadlines and signals */ };

typedef enum peer_state { PEER_EXPECTED, PEER_LOADING, PEER_READY, PEER_GONE } peer_state;

typedef struct peer {
    peer_state state;
    pot_hello hello;
    pot_peer_stats stats;
    uint64_t heard_us;
    uint64_t progress_us; /* when it last got on: loaded something, computed something */
    pot_heartbeat last;
} peer;

struct pot_peers {
    pot_peers_options o;
    peer *peers; /* [n_workers] */
    pot_pulse *pulse;
    pot_pulse_counters counters;
    uint64_t dropped; /* late or stale replies */
    bool remote_first; /* turns, so that neither transport starves */
};

/* ---- addresses ------------------------------------------------------------------------------------------------------------ */

static pot_transport *transport_of(const pot_peers *p, uint32_t worker) { return worker < p->o.n_local ? p->o.local : p->o.remote; }
static uint32_t address_of(const pot_peers *p, uint32_t worker) { return worker < p->o.n_local ? worker + 1 : worker; }
static bool is_inline(const pot_peers *p, uint32_t worker) { return p->o.inline_worker && worker == 0; }

/* n_workers when the message is from nobody we know. */
static uint32_t worker_of(const pot_peers *p, const pot_transport *t, uint32_t address) {
    uint32_t worker = t == p->o.local ? address - 1 : address;
    bool known = worker < p->o.n_workers && (t == p->o.local) == (worker < p->o.n_local);
    return known ? worker : p->o.n_workers;
}

/* "worker 2 (rank 2 on host tessa)" */
static const char *name_of(const pot_peers *p, uint32_t worker, char out[160]) {
    const peer *w = &p->peers[worker];
    if (is_inline(p, worker))
        snprintf(out, 160, "worker %u (the coordinator's own)", worker);
    else
        snprintf(out, 160, "worker %u (rank %u on %s)", worker, worker, w->hello.host[0] ? w->hello.host : "an unknown host");
    return out;
}

/* ---- messages --------------------------------------------------------------------------------------------------------------- */

/* The next message from anybody, or NULL after SLEEP_US at the latest. */
static pot_status next_message(pot_peers *p, pot_transport **from, pot_message **out, uint64_t sleep_us, pot_err *err) {
    pot_transport *order[2] = {p->o.local, p->o.remote};
    if (p->remote_first) {
        order[0] = p->o.remote;
        order[1] = p->o.local;
    }
    p->remote_first = !p->remote_first;
    if (p->o.inline_worker) {
        bool done;
        pot_status s = pot_worker_poll(p->o.inline_worker, &done, err);
        if (s != POT_OK) return pot_at(err, "worker 0 (the coordinator's own)");
    }
    for (int i = 0; i < 2; i++) {
        if (!order[i]) continue;
        pot_status s = pot_transport_receive(order[i], 0, out, err);
        if (s != POT_OK || *out) {
            *from = order[i];
            return s;
        }
    }
    pot_transport *wake = p->o.remote ? p->o.remote : p->o.local;
    bool others = p->o.remote || p->o.n_local > (p->o.inline_worker ? 1u : 0u);
    *from = wake;
    return pot_transport_receive(wake, others ? sleep_us : 0, out, err);
}

static pot_status lost(pot_peers *p, uint32_t worker, const char *why, pot_err *err) {
    char name[160];
    p->peers[worker].state = PEER_GONE;
    return pot_fail(err, POT_PEER_LOST, "%s is gone: %s", name_of(p, worker, name), why);
}

static void note_heartbeat(pot_peers *p, uint32_t worker, const pot_heartbeat *h) {
    peer *w = &p->peers[worker];
    if (h->steps != w->last.steps || h->loaded_bytes != w->last.loaded_bytes) w->progress_us = w->heard_us;
    w->last = *h;
}

static pot_status send_welcome(pot_peers *p, uint32_t worker, pot_err *err) {
    const pot_format_policy *policy = pot_model_policy(p->o.model);
    pot_control c = {.type = POT_CONTROL_WELCOME};
    c.welcome = (pot_welcome){.protocol = POT_PROTOCOL_MAX, .session = (uint64_t)getpid(), .worker = worker,
                              .n_workers = p->o.n_workers, .reference = policy->reference, .experts_format = policy->experts,
                              .dense_format = policy->dense, .head_format = policy->head,
                              .fingerprint = pot_model_fingerprint(p->o.model), .hidden = pot_model_config(p->o.model)->hidden,
                              .n_layers = pot_model_layers(p->o.model), .grid = POT_GRID_BITS,
                              .heartbeat_us = p->o.heartbeat_us, .dead_us = p->o.dead_us};
    const char *path = pot_model_directory(p->o.model);
    if (strlen(path) >= sizeof c.welcome.model)
        return pot_fail(err, POT_LIMIT, "the model's path has %zu bytes, at most %zu can be told to workers", strlen(path),
                        sizeof c.welcome.model - 1);
    snprintf(c.welcome.model, sizeof c.welcome.model, "%s", path);
    pot_status s = pot_control_send(transport_of(p, worker), address_of(p, worker), &c, err);
    if (s == POT_OK) s = pot_control_send_map(transport_of(p, worker), address_of(p, worker), p->o.map, err);
    return s;
}

/* Tells a worker why it is turned away, then reports the same sentence. */
static pot_status refuse(pot_peers *p, uint32_t worker, pot_err *err) {
    pot_control c = {.type = POT_CONTROL_ERROR};
    c.error.code = POT_REFUSED;
    snprintf(c.error.text, sizeof c.error.text, "%s", err->text);
    (void)pot_control_send(transport_of(p, worker), address_of(p, worker), &c, NULL);
    return POT_REFUSED;
}

static pot_status on_hello(pot_peers *p, uint32_t worker, const pot_hello *hello, pot_err *err) {
    char name[160];
    peer *w = &p->peers[worker];
    pot_err why;
    if (w->state != PEER_EXPECTED) return pot_fail(err, POT_FORMAT, "%s says Hello twice", name_of(p, worker, name));
    w->hello = *hello;
    snprintf(w->stats.host, sizeof w->stats.host, "%s", hello->host);
    snprintf(w->stats.kernels, sizeof w->stats.kernels, "%s", hello->kernels);
    if (hello->protocol_max < POT_PROTOCOL_MIN || hello->protocol_min > POT_PROTOCOL_MAX) {
        (void)pot_fail(&why, POT_REFUSED, "%s (build %s) speaks protocols %u to %u, the coordinator (build %s) %d to %d",
                       name_of(p, worker, name), hello->build, hello->protocol_min, hello->protocol_max, POT_VERSION,
                       POT_PROTOCOL_MIN, POT_PROTOCOL_MAX);
        if (err) *err = why;
        return refuse(p, worker, &why);
    }
    w->state = PEER_LOADING;
    return send_welcome(p, worker, err);
}

static pot_status on_ready(pot_peers *p, uint32_t worker, const pot_ready *ready, pot_err *err) {
    char name[160];
    if (p->peers[worker].state != PEER_LOADING) return pot_fail(err, POT_FORMAT, "%s is ready twice", name_of(p, worker, name));
    if (ready->epoch != pot_map_epoch(p->o.map) || !pot_hash_equal(ready->fingerprint, pot_model_fingerprint(p->o.model))) {
        char theirs[33], ours[33];
        pot_hash_text(theirs, ready->fingerprint);
        pot_hash_text(ours, pot_model_fingerprint(p->o.model));
        return pot_fail(err, POT_REFUSED, "%s is ready for map %" PRIu64 " of model %s, the coordinator's are %" PRIu64 " and %s",
                        name_of(p, worker, name), ready->epoch, theirs, pot_map_epoch(p->o.map), ours);
    }
    p->peers[worker].stats.held_bytes = ready->bytes;
    p->peers[worker].state = PEER_READY;
    return POT_OK;
}

static pot_status on_control(pot_peers *p, uint32_t worker, const pot_message *m, pot_err *err) {
    char name[160];
    pot_control c;
    pot_status s = pot_control_parse(&c, m->bytes, m->n_bytes, err);
    if (s != POT_OK) return pot_at(err, "%s", name_of(p, worker, name));
    switch (c.type) {
    case POT_CONTROL_HELLO: return on_hello(p, worker, &c.hello, err);
    case POT_CONTROL_READY: return on_ready(p, worker, &c.ready, err);
    case POT_CONTROL_HEARTBEAT: note_heartbeat(p, worker, &c.heartbeat); return POT_OK;
    case POT_CONTROL_LEAVE: return lost(p, worker, c.error.text[0] ? c.error.text : "it left", err);
    case POT_CONTROL_ERROR:
        return pot_fail(err, (pot_status)(c.error.code ? c.error.code : POT_ERROR), "%s: %s", name_of(p, worker, name), c.error.text);
    case POT_CONTROL_WELCOME:
    case POT_CONTROL_MAP: break;
    }
    return pot_fail(err, POT_FORMAT, "%s sends a control frame of type %d, which only a coordinator sends", name_of(p, worker, name),
                    c.type);
}

/* Signals, and workers that have been silent for too long.  Only called when the queues are empty: the coordinator itself may have been
 * away from them for seconds. */
static pot_status check_lives(pot_peers *p, pot_err *err) {
    if (pot_stop_requested()) return pot_fail(err, POT_CANCELLED, "stopped by a signal");
    uint64_t now = pot_now_us();
    for (uint32_t w = 0; w < p->o.n_workers; w++) {
        const peer *q = &p->peers[w];
        if (is_inline(p, w) || q->state == PEER_EXPECTED || now - q->heard_us <= p->o.dead_us) continue;
        char why[80];
        snprintf(why, sizeof why, "nothing was heard from it for %.1f s", (double)(now - q->heard_us) / 1e6);
        return lost(p, w, why, err);
    }
    return POT_OK;
}

/* Takes one message if there is one and deals with everything but data, which goes to the caller (*out, to be released). */
static pot_status take_one(pot_peers *p, uint32_t *worker, pot_message **out, bool *idle, pot_err *err) {
    pot_transport *from;
    pot_message *m;
    *out = NULL;
    pot_status s = next_message(p, &from, &m, SLEEP_US, err);
    if (s != POT_OK) return s;
    *idle = !m;
    if (!m) return check_lives(p, err);
    *worker = worker_of(p, from, m->peer);
    if (*worker == p->o.n_workers) {
        POT_LOG(POT_LOG_WARN, "coordinator.peers", "a message from peer %u, whom nobody knows, is dropped", m->peer);
        pot_message_release(from, m);
        return POT_OK;
    }
    p->peers[*worker].heard_us = pot_now_us();
    if (m->kind == POT_MESSAGE_DATA) {
        *out = m;
        return POT_OK;
    }
    s = m->kind == POT_MESSAGE_CONTROL ? on_control(p, *worker, m, err) : lost(p, *worker, (const char *)m->bytes, err);
    pot_message_release(from, m);
    return s;
}

/* ---- joining ------------------------------------------------------------------------------------------------------------------ */

static pot_status missing(const pot_peers *p, pot_err *err) {
    char list[200] = "";
    int at = 0;
    for (uint32_t w = 0; w < p->o.n_workers && at < 180; w++)
        if (p->peers[w].state == PEER_EXPECTED) at += snprintf(list + at, sizeof list - (size_t)at, "%s%u", at ? ", " : "", w);
    return pot_fail(err, POT_TIMEOUT, "no Hello from workers %s within %.0f s (--timeout)", list, (double)p->o.timeout_us / 1e6);
}

static pot_status wait_until_ready(pot_peers *p, pot_err *err) {
    uint64_t started = pot_now_us(), total = 0;
    pot_progress progress;
    for (uint32_t w = 0; w < p->o.n_workers; w++) total += pot_model_worker_bytes(p->o.model, p->o.map, w);
    pot_progress_begin(&progress, "loading experts", total, p->o.quiet);
    pot_status s = POT_OK;
    for (;;) {
        uint32_t worker, ready = 0, expected = 0;
        uint64_t loaded = 0, now = pot_now_us();
        pot_message *m = NULL;
        bool idle;
        s = take_one(p, &worker, &m, &idle, err);
        if (s != POT_OK) break;
        if (m) {
            pot_peers_release(p, worker, m);
            s = pot_fail(err, POT_FORMAT, "worker %u sends data before there is work", worker);
            break;
        }
        for (uint32_t w = 0; w < p->o.n_workers; w++) {
            const peer *q = &p->peers[w];
            ready += q->state == PEER_READY;
            expected += q->state == PEER_EXPECTED;
            loaded += q->state == PEER_READY ? q->stats.held_bytes : q->last.loaded_bytes;
            if (q->state == PEER_LOADING && !is_inline(p, w) && now - q->progress_us > p->o.timeout_us && now > q->progress_us) {
                char name[160];
                s = pot_fail(err, POT_TIMEOUT, "%s has not got on with loading for %.0f s (--timeout)", name_of(p, w, name),
                             (double)(now - q->progress_us) / 1e6);
            }
        }
        pot_progress_update(&progress, loaded);
        if (s == POT_OK && expected && now - started > p->o.timeout_us) s = missing(p, err);
        if (s != POT_OK || ready == p->o.n_workers) break;
    }
    pot_progress_end(&progress);
    return s;
}

static pot_status start_pulse(pot_peers *p, pot_err *err) {
    pot_transport *t = p->o.remote ? p->o.remote : p->o.local;
    uint32_t addresses[POT_MAX_WORKERS], n = 0;
    for (uint32_t w = p->o.remote ? p->o.n_local : 0; w < p->o.n_workers; w++)
        if (!is_inline(p, w)) addresses[n++] = address_of(p, w);
    if (n == 0) return POT_OK;
    return pot_pulse_start(&p->pulse, t, addresses, n, p->o.heartbeat_us, &p->counters, err);
}

pot_status pot_peers_create(pot_peers **out, const pot_peers_options *options, pot_err *err) {
    POT_ASSERT(options->n_workers >= 1 && options->n_workers <= POT_MAX_WORKERS && options->n_local <= options->n_workers);
    pot_peers *p = pot_alloc(sizeof *p);
    if (p) p->peers = pot_alloc_array(options->n_workers, sizeof *p->peers);
    if (!p || !p->peers) {
        pot_free(p);
        return pot_fail(err, POT_NO_MEMORY, "no memory for %u workers", options->n_workers);
    }
    p->o = *options;
    (void)pot_map_ref(options->map);
    for (uint32_t w = 0; w < options->n_workers; w++) p->peers[w].heard_us = p->peers[w].progress_us = pot_now_us();
    pot_status s = start_pulse(p, err);
    if (s == POT_OK) s = wait_until_ready(p, err);
    if (s != POT_OK) {
        pot_peers_free(p);
        return s;
    }
    *out = p;
    return POT_OK;
}

/* Leave to all; then a moment for their own Leave, so that nobody sees a broken connection. */
void pot_peers_free(pot_peers *p) {
    if (!p) return;
    pot_control c = {.type = POT_CONTROL_LEAVE};
    uint32_t waiting = 0;
    pot_pulse_stop(p->pulse);
    for (uint32_t w = 0; w < p->o.n_workers; w++) {
        if (p->peers[w].state == PEER_GONE || p->peers[w].state == PEER_EXPECTED) continue;
        bool sent = pot_control_send(transport_of(p, w), address_of(p, w), &c, NULL) == POT_OK;
        if (sent && !is_inline(p, w)) waiting++;
    }
    uint64_t until = pot_now_us() + 1000000;
    while (waiting && pot_now_us() < until) {
        pot_transport *from;
        pot_message *m;
        if (next_message(p, &from, &m, 10000, NULL) != POT_OK) break;
        if (!m) continue;
        pot_control got;
        bool left = m->kind == POT_MESSAGE_LOST ||
                    (m->kind == POT_MESSAGE_CONTROL && pot_control_parse(&got, m->bytes, m->n_bytes, NULL) == POT_OK &&
                     got.type == POT_CONTROL_LEAVE);
        uint32_t w = worker_of(p, from, m->peer);
        if (left && w < p->o.n_workers && p->peers[w].state != PEER_GONE) {
            p->peers[w].state = PEER_GONE;
            waiting--;
        }
        pot_message_release(from, m);
    }
    pot_map_free(p->o.map);
    pot_free(p->peers);
    pot_free(p);
}

uint32_t pot_peers_count(const pot_peers *p) { return p->o.n_workers; }
pot_map *pot_peers_map(const pot_peers *p) { return p->o.map; }
const pot_peer_stats *pot_peers_stats(const pot_peers *p, uint32_t worker) { return &p->peers[worker].stats; }

/* ---- the token path -------------------------------------------------------------------------------------------------------------- */

pot_message *pot_peers_message(pot_peers *p, uint32_t worker, size_t bytes) {
    return pot_transport_message(transport_of(p, worker), bytes);
}

void pot_peers_release(pot_peers *p, uint32_t worker, pot_message *m) { pot_message_release(transport_of(p, worker), m); }

pot_status pot_peers_send(pot_peers *p, uint32_t worker, pot_message *m, pot_err *err) {
    char name[160];
    peer *w = &p->peers[worker];
    m->kind = POT_MESSAGE_DATA;
    w->stats.rounds++;
    w->stats.sent_bytes += m->n_bytes;
    w->progress_us = pot_now_us(); /* the clock of --timeout starts with the work */
    pot_status s = pot_transport_send(transport_of(p, worker), address_of(p, worker), m, err);
    return s == POT_OK ? s : pot_at(err, "%s", name_of(p, worker, name));
}

pot_status pot_peers_run_local(pot_peers *p, pot_err *err) {
    bool done;
    if (!p->o.inline_worker) return POT_OK;
    pot_status s = pot_worker_poll(p->o.inline_worker, &done, err);
    return s == POT_OK ? s : pot_at(err, "worker 0 (the coordinator's own)");
}

pot_status pot_peers_receive(pot_peers *p, uint32_t *worker, pot_message **message, pot_wire_sum *sum, pot_err *err) {
    uint64_t started = pot_now_us();
    char name[160];
    for (;;) {
        pot_message *m;
        bool idle;
        pot_status s = take_one(p, worker, &m, &idle, err);
        if (s != POT_OK) return s;
        if (m) {
            s = pot_wire_sum_parse(sum, m->bytes, m->n_bytes, err);
            if (s != POT_OK) {
                pot_peers_release(p, *worker, m);
                return pot_at(err, "%s", name_of(p, *worker, name));
            }
            p->peers[*worker].stats.received_bytes += m->n_bytes;
            p->peers[*worker].stats.compute_us += sum->record.compute_us;
            *message = m;
            return POT_OK;
        }
        /* Alive, but no reply: as long as somebody gets on with his work we go on waiting. */
        uint64_t latest = started, now = pot_now_us();
        for (uint32_t w = 0; w < p->o.n_workers; w++)
            if (p->peers[w].progress_us > latest) latest = p->peers[w].progress_us;
        if (idle && now > latest && now - latest > p->o.timeout_us)
            return pot_fail(err, POT_TIMEOUT, "no worker has answered for %.0f s (--timeout)", (double)(now - latest) / 1e6);
    }
}
