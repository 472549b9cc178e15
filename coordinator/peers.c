/* Workers are numbered 0..n-1; the first n_local of them are reached over the `mem` transport (worker w is its peer w + 1), the
 * others over the remote one (worker w is its peer w).
 *
 * All messages come through take_one(): it lets the inline worker run, looks at both transports, and only when there is nothing
 * anywhere asks who has been silent for too long, and sleeps.  So a coordinator that was busy for seconds reads
 * the heartbeats of that time before it judges anybody. */
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

enum {
    SLEEP_US = 100000, /* how long a wait may go without a look at deadlines and signals */
    GLANCE_US = 1000,  /* the same while the transport that is not slept on has workers too */
    FAREWELL_US = 1000000
};

/* GREETED: has said Hello and waits for Welcome. */
typedef enum peer_state { PEER_EXPECTED, PEER_GREETED, PEER_LOADING, PEER_READY, PEER_GONE } peer_state;

typedef struct peer {
    peer_state state;
    pot_hello hello;
    pot_peer_stats stats;
    uint64_t heard_us;
    uint64_t progress_us; /* when it last got on: loaded something, computed something, was given work */
    uint64_t asked_step;
    bool owes; /* an answer to the work of asked_step */
    pot_heartbeat last;
} peer;

struct pot_peers {
    pot_peers_options o;
    peer *peers;          /* [n_workers] */
    pot_pulse *pulses[2]; /* one a transport */
    pot_pulse_counters counters;
    pot_progress loading;
    uint64_t step;     /* that somebody waits for; 0: nobody does */
    bool remote_first; /* turns, so that neither transport starves */
};

/* ---- addresses ------------------------------------------------------------------------------------------------------------ */

static pot_transport *transport_of(const pot_peers *p, uint32_t worker) {
    return worker < p->o.n_local ? p->o.local : p->o.remote;
}
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
        snprintf(out, 160, "worker %u (rank %u on %s)", worker, worker,
                 w->hello.host[0] ? w->hello.host : "an unknown host");
    return out;
}

static uint32_t count_in(const pot_peers *p, peer_state state) {
    uint32_t n = 0;
    for (uint32_t w = 0; w < p->o.n_workers; w++) n += p->peers[w].state == state;
    return n;
}

/* ---- messages --------------------------------------------------------------------------------------------------------------- */

/* The next message that is there, or NULL; the inline worker has run before. */
static pot_status look(pot_peers *p, pot_transport **from, pot_message **out, pot_err *err) {
    *out = NULL;
    if (p->o.inline_worker) {
        bool done;
        pot_status s = pot_worker_poll(p->o.inline_worker, &done, err);
        if (s != POT_OK) return pot_at(err, "worker 0 (the coordinator's own)");
    }
    p->remote_first = !p->remote_first;
    pot_transport *order[2] = {p->remote_first ? p->o.remote : p->o.local, p->remote_first ? p->o.local : p->o.remote};
    pot_status s = POT_OK;
    for (int i = 0; i < 2 && s == POT_OK && !*out; i++) {
        *from = order[i];
        if (order[i]) s = pot_transport_receive(order[i], 0, out, err);
    }
    return s;
}

/* Sleeps on the remote transport, or on the local one when it alone has workers that can wake us.  The answer of an inline worker
 * alone never comes later. */
static pot_status sleep_for(pot_peers *p, uint64_t us, pot_transport **from, pot_message **out, pot_err *err) {
    bool local_threads = p->o.n_local > (p->o.inline_worker ? 1u : 0u);
    *out = NULL;
    if (!p->o.remote && !local_threads) return POT_OK;
    *from = p->o.remote ? p->o.remote : p->o.local;
    return pot_transport_receive(*from, p->o.remote && local_threads && us > GLANCE_US ? GLANCE_US : us, out, err);
}

/* Whoever is gone may have said why: that, and the LOST behind it, are still in the queue and say more than a failed send. */
static pot_status unless_lost(pot_status s) { return s == POT_PEER_LOST ? POT_OK : s; }

static pot_status lost(pot_peers *p, uint32_t worker, const char *why, pot_err *err) {
    char name[160];
    p->peers[worker].state = PEER_GONE;
    /* A signal to a whole job reaches its ranks in any order. */
    if (pot_stop_requested()) return pot_fail(err, POT_CANCELLED, "stopped by a signal");
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
    c.welcome = (pot_welcome){.protocol = POT_PROTOCOL_MAX,
                              .session = (uint64_t)getpid(),
                              .worker = worker,
                              .n_workers = p->o.n_workers,
                              .reference = policy->reference,
                              .experts_format = policy->experts,
                              .dense_format = policy->dense,
                              .head_format = policy->head,
                              .mtp_format = policy->mtp,
                              .rounding = policy->rounding,
                              .fingerprint = pot_model_fingerprint(p->o.model),
                              .hidden = pot_model_config(p->o.model)->hidden,
                              .n_layers = pot_model_layers(p->o.model),
                              .grid = POT_GRID_BITS,
                              .heartbeat_us = p->o.heartbeat_us,
                              .dead_us = p->o.dead_us};
    const char *path = pot_model_directory(p->o.model);
    if (strlen(path) >= sizeof c.welcome.model)
        return pot_fail(err, POT_LIMIT, "the model's path has %zu bytes, at most %zu can be told to workers",
                        strlen(path), sizeof c.welcome.model - 1);
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
    w->progress_us = w->heard_us;
    w->hello = *hello;
    snprintf(w->stats.host, sizeof w->stats.host, "%s", hello->host);
    snprintf(w->stats.kernels, sizeof w->stats.kernels, "%s", hello->kernels);
    if (hello->protocol_max < POT_PROTOCOL_MIN || hello->protocol_min > POT_PROTOCOL_MAX) {
        (void)pot_fail(&why, POT_REFUSED,
                       "%s (build %s) speaks protocols %u to %u, the coordinator (build %s) %d to %d",
                       name_of(p, worker, name), hello->build, hello->protocol_min, hello->protocol_max, POT_VERSION,
                       POT_PROTOCOL_MIN, POT_PROTOCOL_MAX);
        if (err) *err = why;
        return refuse(p, worker, &why);
    }
    w->state = PEER_GREETED;
    return POT_OK;
}

/* The inline worker loads in this thread, so it is let in last: the others load meanwhile. */
static pot_status welcome_greeted(pot_peers *p, pot_err *err) {
    char name[160];
    uint32_t expected = count_in(p, PEER_EXPECTED);
    for (uint32_t w = p->o.n_workers; w-- > 0;) {
        if (p->peers[w].state != PEER_GREETED || (is_inline(p, w) && expected)) continue;
        p->peers[w].state = PEER_LOADING;
        if (unless_lost(send_welcome(p, w, err)) != POT_OK) return pot_at(err, "%s", name_of(p, w, name));
    }
    return POT_OK;
}

static pot_status on_ready(pot_peers *p, uint32_t worker, const pot_ready *ready, pot_err *err) {
    char name[160];
    if (p->peers[worker].state != PEER_LOADING)
        return pot_fail(err, POT_FORMAT, "%s is ready twice", name_of(p, worker, name));
    if (ready->epoch != pot_map_epoch(p->o.map) ||
        !pot_hash_equal(ready->fingerprint, pot_model_fingerprint(p->o.model))) {
        char theirs[33], ours[33];
        pot_hash_text(theirs, ready->fingerprint);
        pot_hash_text(ours, pot_model_fingerprint(p->o.model));
        return pot_fail(err, POT_REFUSED,
                        "%s is ready for map %" PRIu64 " of model %s, the coordinator's are %" PRIu64 " and %s",
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
        if (c.error.step && c.error.step != p->step) { /* about work that nobody waits for any more */
            p->peers[worker].stats.dropped++;
            return POT_OK;
        }
        return pot_fail(err, (pot_status)(c.error.code ? c.error.code : POT_ERROR), "%s: %s", name_of(p, worker, name),
                        c.error.text);
    case POT_CONTROL_WELCOME:
    case POT_CONTROL_MAP: break;
    }
    return pot_fail(err, POT_FORMAT, "%s sends a control frame of type %d, which only a coordinator sends",
                    name_of(p, worker, name), c.type);
}

static pot_status missing(const pot_peers *p, pot_err *err) {
    char list[200] = "";
    int at = 0;
    for (uint32_t w = 0; w < p->o.n_workers && at < 180; w++)
        if (p->peers[w].state == PEER_EXPECTED)
            at += snprintf(list + at, sizeof list - (size_t)at, "%s%u", at ? ", " : "", w);
    return pot_fail(err, POT_TIMEOUT, "no Hello from ranks %s within %.1f s (--timeout)", list,
                    (double)p->o.timeout_us / 1e6);
}

static pot_status timed_out(const pot_peers *p, uint32_t worker, const char *what, uint64_t us, pot_err *err) {
    char name[160];
    return pot_fail(err, POT_TIMEOUT, "%s %s for %.1f s (--timeout)", name_of(p, worker, name), what, (double)us / 1e6);
}

/* Workers that are silent or do not get on.  Only asked when all queues are empty. */
static pot_status check_lives(pot_peers *p, pot_err *err) {
    uint64_t now = pot_now_us();
    for (uint32_t w = 0; w < p->o.n_workers; w++) {
        const peer *q = &p->peers[w];
        uint64_t silent = now - q->heard_us, idle = now - q->progress_us;
        bool has_pulse = !is_inline(p, w) && q->state != PEER_EXPECTED && q->state != PEER_GREETED;
        if (has_pulse && silent > p->o.dead_us) {
            char why[80];
            snprintf(why, sizeof why, "nothing was heard from it for %.1f s (--dead-after)", (double)silent / 1e6);
            return lost(p, w, why, err);
        }
        if (idle <= p->o.timeout_us) continue;
        if (q->state == PEER_EXPECTED) return missing(p, err);
        if (q->state == PEER_LOADING) return timed_out(p, w, "has not got on with loading", idle, err);
        if (q->owes && q->asked_step == p->step) return timed_out(p, w, "has not answered", idle, err);
    }
    return POT_OK;
}

/* Deals with everything but data, which goes to the caller (*out, to be released).  After `wait_us` without a message, *out is
 * NULL; *idle says whether there was none at all. */
static pot_status take_one(pot_peers *p, uint32_t *worker, pot_message **out, bool *idle, uint64_t wait_us,
                           pot_err *err) {
    pot_transport *from;
    pot_message *m;
    *out = NULL;
    if (pot_stop_requested()) return pot_fail(err, POT_CANCELLED, "stopped by a signal");
    pot_status s = look(p, &from, &m, err);
    if (s == POT_OK && !m) s = check_lives(p, err);
    if (s == POT_OK && !m && wait_us) s = sleep_for(p, wait_us, &from, &m, err);
    if (s != POT_OK) return s;
    *idle = !m;
    if (!m) return POT_OK;
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

static void show_loading(void *context) {
    pot_peers *p = context;
    uint64_t loaded = 0, total = 0;
    for (uint32_t w = 0; w < p->o.n_workers; w++) {
        const peer *q = &p->peers[w];
        uint64_t has = q->stats.held_bytes, wants = has;
        if (q->state != PEER_READY && is_inline(p, w)) {
            pot_worker_loading(p->o.inline_worker, &has, &wants);
        } else if (q->state != PEER_READY) {
            has = q->last.loaded_bytes;
            wants = q->last.total_bytes;
        }
        loaded += has;
        total += wants ? wants : pot_model_worker_bytes(p->o.model, p->o.map, w); /* until it knows itself */
    }
    p->loading.total = total;
    pot_progress_update(&p->loading, loaded);
}

static pot_status join_all(pot_peers *p, pot_err *err) {
    pot_status s = POT_OK;
    while (s == POT_OK && count_in(p, PEER_READY) < p->o.n_workers) {
        uint32_t worker;
        pot_message *m;
        bool idle;
        s = welcome_greeted(p, err);
        if (s == POT_OK) s = take_one(p, &worker, &m, &idle, SLEEP_US, err);
        if (s != POT_OK) break;
        if (m) {
            pot_message_release(transport_of(p, worker), m);
            s = pot_fail(err, POT_FORMAT, "worker %u sends data before there is work", worker);
        }
        show_loading(p);
    }
    return s;
}

static pot_status wait_until_ready(pot_peers *p, pot_err *err) {
    uint64_t total = 0;
    for (uint32_t w = 0; w < p->o.n_workers; w++) total += pot_model_worker_bytes(p->o.model, p->o.map, w);
    pot_progress_begin(&p->loading, "loading experts", total, p->o.quiet);
    if (p->o.inline_worker) pot_worker_watch(p->o.inline_worker, show_loading, p);
    pot_status s = join_all(p, err);
    if (p->o.inline_worker) pot_worker_watch(p->o.inline_worker, NULL, NULL);
    pot_progress_end(&p->loading);
    return s;
}

static pot_status start_pulse(pot_peers *p, pot_pulse **out, pot_transport *t, pot_err *err) {
    uint32_t addresses[POT_MAX_WORKERS], n = 0;
    for (uint32_t w = 0; w < p->o.n_workers; w++)
        if (transport_of(p, w) == t && !is_inline(p, w)) addresses[n++] = address_of(p, w);
    return n ? pot_pulse_start(out, t, addresses, n, p->o.heartbeat_us, &p->counters, err) : POT_OK;
}

pot_status pot_peers_create(pot_peers **out, const pot_peers_options *options, pot_err *err) {
    POT_ASSERT(options->n_workers >= 1 && options->n_workers <= POT_MAX_WORKERS &&
               options->n_local <= options->n_workers);
    pot_peers *p = pot_alloc(sizeof *p);
    if (p) p->peers = pot_alloc_array(options->n_workers, sizeof *p->peers);
    if (!p || !p->peers) {
        pot_free(p);
        return pot_fail(err, POT_NO_MEMORY, "no memory for %u workers", options->n_workers);
    }
    p->o = *options;
    (void)pot_map_ref(options->map);
    for (uint32_t w = 0; w < options->n_workers; w++) p->peers[w].heard_us = p->peers[w].progress_us = pot_now_us();
    pot_status s = start_pulse(p, &p->pulses[0], p->o.local, err);
    if (s == POT_OK) s = start_pulse(p, &p->pulses[1], p->o.remote, err);
    if (s == POT_OK) s = wait_until_ready(p, err);
    if (s != POT_OK) {
        pot_peers_free(p);
        return s;
    }
    *out = p;
    return POT_OK;
}

/* Whether the message is the last one of its sender. */
static bool is_farewell(const pot_message *m) {
    pot_control c;
    if (m->kind == POT_MESSAGE_LOST) return true;
    return m->kind == POT_MESSAGE_CONTROL && pot_control_parse(&c, m->bytes, m->n_bytes, NULL) == POT_OK &&
           c.type == POT_CONTROL_LEAVE;
}

/* Leave to all, also to those who have not said Hello; then a moment for their own, so that nobody sees a broken connection. */
static void say_farewell(pot_peers *p) {
    const pot_control leave = {.type = POT_CONTROL_LEAVE};
    uint64_t until = pot_now_us() + FAREWELL_US;
    uint32_t waiting = 0;
    for (uint32_t w = 0; w < p->o.n_workers; w++) {
        if (p->peers[w].state == PEER_GONE) continue;
        bool sent = pot_control_send(transport_of(p, w), address_of(p, w), &leave, NULL) == POT_OK;
        if (!sent || is_inline(p, w))
            p->peers[w].state = PEER_GONE;
        else
            waiting++;
    }
    while (waiting && pot_now_us() < until) {
        pot_transport *from;
        pot_message *m;
        if (look(p, &from, &m, NULL) != POT_OK) break;
        if (!m && sleep_for(p, GLANCE_US, &from, &m, NULL) != POT_OK) break;
        if (!m) continue;
        uint32_t w = worker_of(p, from, m->peer);
        if (w < p->o.n_workers && p->peers[w].state != PEER_GONE && is_farewell(m)) {
            p->peers[w].state = PEER_GONE;
            waiting--;
        }
        pot_message_release(from, m);
    }
}

void pot_peers_free(pot_peers *p) {
    if (!p) return;
    for (int i = 0; i < 2; i++) pot_pulse_stop(p->pulses[i]);
    say_farewell(p);
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

static void give_back(const pot_peers *p, uint32_t worker, pot_message *m) {
    pot_message_release(transport_of(p, worker), m);
}

void pot_peers_release(pot_peers *p, uint32_t worker, pot_message *m) {
    p->peers[worker].owes = false;
    give_back(p, worker, m);
}

void pot_peers_drop(pot_peers *p, uint32_t worker, pot_message *m) {
    p->peers[worker].stats.dropped++;
    POT_LOG(POT_LOG_DEBUG, "coordinator.peers", "a late reply of worker %u is dropped", worker);
    give_back(p, worker, m);
}

pot_status pot_peers_send(pot_peers *p, uint32_t worker, pot_message *m, pot_err *err) {
    char name[160];
    peer *w = &p->peers[worker];
    pot_wire_header h;
    pot_status s = pot_wire_header_parse(&h, m->bytes, m->n_bytes, err);
    if (s == POT_OK && w->state == PEER_GONE) s = pot_fail(err, POT_PEER_LOST, "it is gone");
    if (s != POT_OK) {
        give_back(p, worker, m);
        return pot_at(err, "%s", name_of(p, worker, name));
    }
    m->kind = POT_MESSAGE_DATA;
    w->stats.rounds++;
    w->stats.sent_bytes += m->n_bytes;
    w->progress_us = pot_now_us(); /* the clock of --timeout starts with the work */
    w->asked_step = p->step = h.step;
    w->owes = true;
    s = unless_lost(pot_transport_send(transport_of(p, worker), address_of(p, worker), m, err));
    return s == POT_OK ? s : pot_at(err, "%s", name_of(p, worker, name));
}

pot_status pot_peers_run_local(pot_peers *p, pot_err *err) {
    bool done;
    if (!p->o.inline_worker) return POT_OK;
    pot_status s = pot_worker_poll(p->o.inline_worker, &done, err);
    return s == POT_OK ? s : pot_at(err, "worker 0 (the coordinator's own)");
}

pot_status pot_peers_receive(pot_peers *p, uint32_t *worker, pot_message **message, pot_wire_sum *sum, pot_err *err) {
    char name[160];
    pot_message *m = NULL;
    bool idle;
    pot_status s = POT_OK;
    while (s == POT_OK && !m) s = take_one(p, worker, &m, &idle, SLEEP_US, err);
    if (s != POT_OK) return s;
    s = pot_wire_sum_parse(sum, m->bytes, m->n_bytes, err);
    if (s != POT_OK) {
        give_back(p, *worker, m);
        return pot_at(err, "%s", name_of(p, *worker, name));
    }
    peer *w = &p->peers[*worker];
    w->stats.received_bytes += m->n_bytes;
    w->stats.compute_us += sum->record.compute_us;
    w->stats.read_bytes += sum->record.vram_bytes + sum->record.ram_bytes + sum->record.disk_bytes;
    w->stats.disk_bytes += sum->record.disk_bytes;
    w->stats.load_us += sum->record.load_us;
    *message = m;
    return POT_OK;
}

pot_status pot_peers_tend(pot_peers *p, pot_err *err) {
    pot_status s = POT_OK;
    p->step = 0;
    for (bool idle = false; s == POT_OK && !idle;) {
        uint32_t worker;
        pot_message *m;
        s = take_one(p, &worker, &m, &idle, 0, err);
        if (s == POT_OK && m) pot_peers_drop(p, worker, m);
    }
    return s;
}
