/* The life of a worker: Hello, Welcome, Map, load, Ready, then WORK after WORK until Leave. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/float_mode.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/system.h"
#include "proto/control.h"
#include "worker/compute.h"
#include "worker/store.h"
#include "worker/worker.h"

struct pot_worker {
    pot_worker_options options;
    pot_welcome welcome;
    pot_model *model; /* NULL before Welcome */
    pot_map_receiver *receiver;
    pot_map *map; /* NULL before the first commit */
    pot_store *store;
    pot_work *work;
    pot_pulse *pulse; /* only while serving: a worker that is polled shares its thread with the coordinator */
    pot_pulse_counters counters;
    pot_store_watcher watcher;
    pot_memory_info memory; /* when it started */
    uint64_t heard_us;
    uint64_t since_us, worked_us; /* when the state began; the latest work */
    pot_beacon_state told;        /* the state */
    bool serving, done;
};

/* ---- telling --------------------------------------------------------------------------------------------------------------- */

enum { IDLE_US = 1000000 };

static void fill_facts(const pot_worker *w, pot_beacon_facts *f) {
    pot_store_stats s;
    f->worker = w->welcome.worker;
    f->workers = w->welcome.n_workers;
    f->since_us = w->since_us;
    if (w->model) pot_beacon_set_model(f, pot_model_directory(w->model));
    f->load_done_bytes = w->counters.loaded_bytes;
    f->load_total_bytes = w->counters.total_bytes;
    if (!w->store) return;
    pot_store_get_stats(&s, w->store);
    f->vram_budget_bytes = s.vram_budget_bytes;
    f->vram_bytes = s.vram_bytes;
    f->ram_budget_bytes = s.budget_bytes;
    f->ram_bytes = s.resident_bytes;
    f->owned_bytes = s.owned_bytes;
    f->wanted_units = s.cache.wanted + s.vram_wanted;
    f->vram_hits = s.vram_wanted;
    f->ram_hits = s.cache.hits;
    f->read_bytes = s.read_bytes;
    f->steps = s.steps;
    f->tokens = s.tokens;
    if (w->counters.state != 1) f->load_done_bytes = f->load_total_bytes; /* what is read later is no loading */
    snprintf(f->policy, sizeof f->policy, "%s", s.policy);
    snprintf(f->reading, sizeof f->reading, "%s, %s", s.read_engine, s.read_path);
}

/* For `potluck status`: at most once a second. */
static void tell_status(pot_worker *w) {
    if (!w->options.beacon) return;
    uint64_t now = pot_now_us();
    pot_beacon_state state = w->counters.state == 1         ? POT_BEACON_LOADING
                             : !w->store                    ? POT_BEACON_STARTING
                             : now - w->worked_us > IDLE_US ? POT_BEACON_IDLE
                                                            : POT_BEACON_SERVING;
    if (state != w->told || !w->since_us) {
        w->told = state;
        w->since_us = now;
    }
    if (!pot_beacon_due(w->options.beacon, state, now)) return;
    pot_beacon_facts facts;
    pot_beacon_facts_init(&facts, w->options.role, state);
    fill_facts(w, &facts);
    pot_beacon_tell(w->options.beacon, &facts, now);
}

static void tick_while_loading(void *context) {
    pot_worker *w = context;
    tell_status(w);
    if (w->watcher.tick) w->watcher.tick(w->watcher.context);
}

/* ---- joining --------------------------------------------------------------------------------------------------------------- */

static pot_status send_hello(pot_worker *w, pot_err *err) {
    pot_control c = {.type = POT_CONTROL_HELLO};
    pot_memory_read(&w->memory);
    c.hello = (pot_hello){.protocol_min = POT_PROTOCOL_MIN,
                          .protocol_max = POT_PROTOCOL_MAX,
                          .pid = getpid(),
                          .threads = (uint32_t)pot_team_threads(w->options.compute.team),

                          .ram_bytes = w->memory.usable_bytes};
    snprintf(c.hello.build, sizeof c.hello.build, "%s", POT_VERSION);
    snprintf(c.hello.host, sizeof c.hello.host, "%.63s", pot_host_name());
    snprintf(c.hello.kernels, sizeof c.hello.kernels, "%s", w->options.compute.kernels->name);
    snprintf(c.hello.transport, sizeof c.hello.transport, "%s", w->options.transport->ops->name);
    return pot_control_send(w->options.transport, w->options.coordinator, &c, err);
}

pot_status pot_worker_create(pot_worker **out, const pot_worker_options *options, pot_err *err) {
    pot_worker *w = pot_alloc(sizeof *w);
    if (!w) return pot_fail(err, POT_NO_MEMORY, "no memory for a worker");
    w->options = *options;
    w->heard_us = pot_now_us();
    pot_status s = send_hello(w, err);
    if (s != POT_OK) {
        pot_worker_free(w);
        return s;
    }
    *out = w;
    return POT_OK;
}

void pot_worker_free(pot_worker *w) {
    if (!w) return;
    pot_pulse_stop(w->pulse);
    pot_work_free(w->work);
    pot_store_free(w->store);
    pot_map_free(w->map);
    pot_map_receiver_free(w->receiver);
    pot_model_close(w->model);
    pot_free(w);
}

void pot_worker_watch(pot_worker *w, void (*tick)(void *context), void *context) {
    w->watcher = (pot_store_watcher){tick, context};
}

void pot_worker_loading(const pot_worker *w, uint64_t *loaded, uint64_t *total) {
    *loaded = w->counters.loaded_bytes;
    *total = w->counters.total_bytes;
}

static pot_status compare_models(const pot_worker *w, pot_err *err) {
    const pot_welcome *h = &w->welcome;
    const char *path = pot_model_directory(w->model);
    pot_hash own = pot_model_fingerprint(w->model);
    uint32_t hidden = pot_model_config(w->model)->hidden, layers = pot_model_layers(w->model);
    if (hidden != h->hidden || layers != h->n_layers)
        return pot_fail(err, POT_REFUSED, "%s has %u layers of hidden size %u, the coordinator's model %u of %u", path,
                        layers, hidden, h->n_layers, h->hidden);
    if (!pot_hash_equal(own, h->fingerprint)) {
        char ours[33], theirs[33];
        pot_hash_text(ours, own);
        pot_hash_text(theirs, h->fingerprint);
        return pot_fail(err, POT_REFUSED,
                        "%s has the fingerprint %s, the coordinator's model %s: not the same files, or formats", path,
                        ours, theirs);
    }
    return POT_OK;
}

static pot_status start_pulse(pot_worker *w, pot_err *err) {
    if (!w->serving || w->pulse || !w->welcome.heartbeat_us) return POT_OK;
    return pot_pulse_start(&w->pulse, w->options.transport, &w->options.coordinator, 1, w->welcome.heartbeat_us,
                           &w->counters, err);
}

static pot_status on_welcome(pot_worker *w, const pot_welcome *welcome, pot_err *err) {
    if (w->model) return pot_fail(err, POT_FORMAT, "a second Welcome");
    if (welcome->protocol < POT_PROTOCOL_MIN || welcome->protocol > POT_PROTOCOL_MAX)
        return pot_fail(err, POT_REFUSED, "the coordinator speaks protocol %u, this worker %d to %d", welcome->protocol,
                        POT_PROTOCOL_MIN, POT_PROTOCOL_MAX);
    w->welcome = *welcome;
    pot_status s = start_pulse(w, err);
    if (s != POT_OK) return s;
    pot_format_policy policy = {.reference = welcome->reference != 0,
                                .experts = (pot_format)welcome->experts_format,
                                .dense = (pot_format)welcome->dense_format,
                                .head = (pot_format)welcome->head_format,
                                .mtp = (pot_format)welcome->mtp_format,
                                .rounding = (pot_rounding)welcome->rounding};
    s = pot_model_open(&w->model, w->options.model ? w->options.model : welcome->model, &policy, err);
    if (s == POT_OK) s = compare_models(w, err);
    if (s == POT_OK) s = pot_work_create(&w->work, w->model, &w->options.compute, err);
    if (s != POT_OK) return s;
    w->receiver =
        pot_map_receiver_create(pot_model_layer_shapes(w->model), pot_model_layers(w->model), welcome->n_workers);
    return w->receiver ? POT_OK : pot_fail(err, POT_NO_MEMORY, "no memory to receive a map");
}

/* A coordinator that is gone may have said Leave before: what it sent, and the LOST behind it, are read first. */
static pot_status unless_lost(pot_status s) { return s == POT_PEER_LOST ? POT_OK : s; }

/* Of the memory that was free when this worker started: what is left beside the coordinator and a reserve (caches, buffers, KV), shared among
 * the workers of this machine by what each would need for everything. */
static uint64_t share_of_machine(const pot_worker *w, const pot_map *map, uint64_t *usable) {
    const uint64_t GIB = (uint64_t)1 << 30;
    *usable = w->memory.usable_bytes;
    uint64_t reserve = pot_memory_reserve(w->memory.total_bytes), all = 0, own = 0;
    if (w->options.host_workers & 1) reserve += pot_model_coordinator_bytes(w->model);
    for (uint32_t i = 0; i < w->welcome.n_workers; i++) {
        uint64_t least, everything;
        if (!(w->options.host_workers >> i & 1) && i != w->welcome.worker) continue;
        pot_store_needs(&least, &everything, w->model, map, i);
        all += everything;
        if (i == w->welcome.worker) own = everything;
    }
    if (!pot_model_is_packed(w->model))
        return w->memory.usable_bytes; /* the coordinator has seen to it that all of it fits */
    uint64_t left = w->memory.usable_bytes > reserve ? w->memory.usable_bytes - reserve : 0;
    *usable = left;
    return all <= left || !all ? own + own / 64 + GIB / 16 : (uint64_t)((double)left * ((double)own / (double)all));
}

static pot_status load(pot_worker *w, pot_map *map, pot_err *err) {
    if (w->store) {
        pot_map_free(map);
        return pot_fail(err, POT_FORMAT, "a second map: this version does not move experts while it runs");
    }
    w->map = map;
    w->counters.state = 1;
    const uint64_t before = ((uint64_t)1 << w->welcome.worker) - 1;
    uint64_t usable;
    const uint64_t share = share_of_machine(w, map, &usable);
    const pot_store_options options = {.model = w->model,
                                       .map = map,
                                       .worker = w->welcome.worker,
                                       .team = w->options.compute.team,
                                       .threads = pot_team_threads(w->options.compute.team),
                                       .machine_bytes = share,
                                       .usable_bytes = usable,
                                       .nth = (uint32_t)__builtin_popcountll(w->options.host_workers & before),
                                       .beside = (uint32_t)__builtin_popcountll(w->options.host_workers),
                                       .choice = w->options.store,
                                       .loaded_bytes = &w->counters.loaded_bytes,
                                       .total_bytes = &w->counters.total_bytes,
                                       .watcher = {tick_while_loading, w}};
    pot_status s = pot_store_open(&w->store, &options, err);
    w->counters.state = 0;
    if (s != POT_OK) return s;
    pot_control c = {.type = POT_CONTROL_READY};
    pot_store_stats stats;
    pot_store_get_stats(&stats, w->store);
    c.ready = (pot_ready){pot_map_epoch(map), stats.resident_bytes, pot_model_fingerprint(w->model)};
    POT_LOG(POT_LOG_DEBUG, "worker", "holds %" PRIu64 " of %" PRIu64 " bytes of experts, map epoch %" PRIu64,
            stats.resident_bytes, stats.owned_bytes, c.ready.epoch);
    return unless_lost(pot_control_send(w->options.transport, w->options.coordinator, &c, err));
}

/* ---- messages ---------------------------------------------------------------------------------------------------------------- */

/* Tells the coordinator in words; what cannot be sent is the owner's to notice as a lost peer. */
static void tell(pot_worker *w, pot_control_type type, const pot_err *why, uint64_t request, uint64_t step,
                 uint32_t layer) {
    pot_control c = {.type = type};
    c.error = (pot_control_error){.code = why->status, .request = request, .step = step, .layer = layer};
    snprintf(c.error.text, sizeof c.error.text, "%s", why->text);
    (void)pot_control_send(w->options.transport, w->options.coordinator, &c, NULL);
}

/* A fault in one piece of work ends the request, which is the coordinator's to do; the worker goes on. */
static pot_status on_work(pot_worker *w, const pot_message *m, pot_err *err) {
    uint64_t request = 0, step = 0;
    uint32_t layer = 0;
    pot_message *reply = NULL;
    pot_err fault;
    if (!w->store) return pot_fail(err, POT_FORMAT, "work before the map was there");
    w->counters.state = 2;
    pot_status s = pot_work_run(w->work, &reply, w->options.transport, w->store, m, &request, &step, &layer, &fault);
    w->counters.state = 0;
    w->counters.steps++;
    w->worked_us = pot_now_us();
    w->counters.items = pot_work_items(w->work);
    if (s != POT_OK) {
        tell(w, POT_CONTROL_ERROR, &fault, request, step, layer);
        return POT_OK;
    }
    s = unless_lost(pot_transport_send(w->options.transport, w->options.coordinator, reply, err));
    if (s == POT_OK && w->options.observer.done) {
        const pot_work_done work = {&w->options.compute, w->model, w->store, pot_work_record(w->work), layer};
        w->options.observer.done(w->options.observer.context, &work);
    }
    return s;
}

static pot_status on_control(pot_worker *w, const pot_message *m, pot_err *err) {
    pot_control c;
    pot_map *map = NULL;
    pot_status s = pot_control_parse(&c, m->bytes, m->n_bytes, err);
    if (s != POT_OK) return s;
    switch (c.type) {
    case POT_CONTROL_WELCOME: return on_welcome(w, &c.welcome, err);
    case POT_CONTROL_MAP:
        if (!w->receiver) return pot_fail(err, POT_FORMAT, "a Map before Welcome");
        s = pot_map_receiver_add(w->receiver, &map, m->bytes, m->n_bytes, err);
        return s == POT_OK && map ? load(w, map, err) : s;
    case POT_CONTROL_HEARTBEAT: return POT_OK;
    case POT_CONTROL_LEAVE: w->done = true; return POT_OK;
    case POT_CONTROL_ERROR:
        return pot_fail(err, (pot_status)(c.error.code ? c.error.code : POT_ERROR), "the coordinator: %s",
                        c.error.text);
    case POT_CONTROL_HELLO:
    case POT_CONTROL_READY: break;
    }
    return pot_fail(err, POT_FORMAT, "a control frame of type %d, which only workers send", c.type);
}

static pot_status handle(pot_worker *w, const pot_message *m, pot_err *err) {
    w->heard_us = pot_now_us();
    switch (m->kind) {
    case POT_MESSAGE_DATA: return on_work(w, m, err);
    case POT_MESSAGE_CONTROL: return on_control(w, m, err);
    default: break;
    }
    return pot_fail(err, POT_PEER_LOST, "the coordinator is gone: %.*s", (int)m->n_bytes, (const char *)m->bytes);
}

/* One message, waiting for it at most timeout_us; *got says whether there was one. */
static pot_status step(pot_worker *w, uint64_t timeout_us, bool *got, pot_err *err) {
    pot_message *m;
    pot_err fault;
    pot_status s = pot_transport_receive(w->options.transport, timeout_us, &m, err);
    *got = s == POT_OK && m;
    if (!*got) return s;
    if (m->peer != w->options.coordinator) {
        if (m->kind != POT_MESSAGE_LOST) /* that one is no business of this worker */
            POT_LOG(POT_LOG_WARN, "worker", "a message from peer %u, which is not the coordinator, is dropped",
                    m->peer);
    } else {
        s = handle(w, m, &fault);
        if (s != POT_OK && m->kind != POT_MESSAGE_LOST) tell(w, POT_CONTROL_ERROR, &fault, 0, 0, 0);
        if (s != POT_OK && err) *err = fault;
    }
    pot_message_release(w->options.transport, m);
    return s;
}

/* ---- running ------------------------------------------------------------------------------------------------------------------ */

pot_status pot_worker_poll(pot_worker *w, bool *done, pot_err *err) {
    pot_status s = POT_OK;
    pot_fp_strict();
    for (bool got = true; got && s == POT_OK && !w->done;) s = step(w, 0, &got, err);
    tell_status(w);
    *done = w->done;
    return s;
}

static pot_status check_silence(const pot_worker *w, pot_err *err) {
    uint64_t silent = pot_now_us() - w->heard_us;
    uint64_t limit = w->model ? w->welcome.dead_us : w->options.timeout_us;
    if (silent <= limit) return POT_OK;
    return pot_fail(err, POT_PEER_LOST, "nothing was heard from the coordinator for %.1f s", (double)silent / 1e6);
}

pot_status pot_worker_serve(pot_worker *w, pot_err *err) {
    pot_status s = POT_OK;
    pot_fp_strict();
    w->serving = true;
    while (s == POT_OK && !w->done) {
        bool got;
        if (pot_stop_requested()) {
            pot_err why;
            s = pot_fail(&why, POT_CANCELLED, "stopped by a signal");
            tell(w, POT_CONTROL_LEAVE, &why, 0, 0, 0);
            if (err) *err = why;
            break;
        }
        s = step(w, w->model ? w->welcome.heartbeat_us : 250000, &got, err);
        if (s == POT_OK && !got) s = check_silence(w, err);
        tell_status(w);
    }
    if (s == POT_OK) { /* an answer to Leave, so that the coordinator need not wait for the connection to break */
        pot_err why;
        (void)pot_fail(&why, POT_OK, "left in order");
        tell(w, POT_CONTROL_LEAVE, &why, 0, 0, 0);
    }
    pot_pulse_stop(w->pulse);
    w->pulse = NULL;
    return s;
}
