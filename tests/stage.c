/* The lies are told in send(): a worker hands over a right message, and something else leaves.  Its pulse sends from another
 * thread, so the trick is atomic. */
#include "tests/stage.h"

#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "proto/control.h"

enum { MINUTE_US = 60000000, HEARTBEAT_US = 5000, SLOW_BEATS = 500 };

/* ---- lies ------------------------------------------------------------------------------------------------------------- */

static pot_liar *liar_of(pot_transport *t) { return (pot_liar *)(void *)t; }

static pot_message *liar_message(pot_transport *t, size_t bytes) {
    return pot_transport_message(liar_of(t)->inner, bytes);
}
static void liar_release(pot_transport *t, pot_message *m) { pot_message_release(liar_of(t)->inner, m); }
static pot_status liar_receive(pot_transport *t, uint64_t timeout_us, pot_message **out, pot_err *err) {
    return pot_transport_receive(liar_of(t)->inner, timeout_us, out, err);
}
static void liar_wake(pot_transport *t) { pot_transport_wake(liar_of(t)->inner); }
static void liar_close(pot_transport *t, uint64_t timeout_us) { pot_transport_close(liar_of(t)->inner, timeout_us); }

static void send_copy(pot_liar *l, uint32_t peer, const pot_message *m, const pot_wire_header *h) {
    pot_message *copy = pot_transport_message(l->inner, m->n_bytes);
    if (!copy) return;
    memcpy(copy->bytes, m->bytes, m->n_bytes);
    copy->kind = m->kind;
    if (h) pot_wire_put_header(copy->bytes, h);
    (void)pot_transport_send(l->inner, peer, copy, NULL);
}

/* The same SUM, but item 0 is moved, and row sums are as they were. */
static pot_message *moved(pot_liar *l, const pot_message *m, const pot_wire_header *header) {
    pot_wire_sum sum;
    if (pot_wire_sum_parse(&sum, m->bytes, m->n_bytes, NULL) != POT_OK || header->n_hints) return NULL;
    pot_wire_header h = *header;
    h.n_hints = 1;
    h.payload_bytes += 8;
    pot_message *out = pot_transport_message(l->inner, m->n_bytes + 8);
    if (!out) return NULL;
    memset(out->bytes + m->n_bytes, 0, 8); /* the list: item 0 */
    memcpy(out->bytes, m->bytes, m->n_bytes);
    pot_wire_put_header(out->bytes, &h);
    out->bytes[sum.covered - m->bytes] &= 0xfe;
    out->kind = m->kind;
    return out;
}

static pot_message *another_row(pot_liar *l, const pot_message *m, const pot_wire_header *header) {
    pot_wire_sum sum;
    if (pot_wire_sum_parse(&sum, m->bytes, m->n_bytes, NULL) != POT_OK) return NULL;
    size_t row = (size_t)header->columns * 4, rows_end = m->n_bytes - 40 - (size_t)header->n_hints * 4;
    pot_wire_header h = *header;
    h.n_rows++;
    h.payload_bytes += row;
    pot_message *out = pot_transport_message(l->inner, m->n_bytes + row);
    if (!out) return NULL;
    memcpy(out->bytes, m->bytes, rows_end);
    memset(out->bytes + rows_end, 0, row);
    memcpy(out->bytes + rows_end + row, m->bytes + rows_end, m->n_bytes - rows_end);
    pot_wire_put_header(out->bytes, &h);
    out->kind = m->kind;
    return out;
}

static pot_status send_control(pot_liar *l, uint32_t peer, pot_control_type type, uint64_t step, const char *text,
                               pot_err *err) {
    pot_control c = {.type = type};
    if (type == POT_CONTROL_WELCOME) {
        c.welcome = (pot_welcome){
            .protocol = 1, .n_workers = 1, .hidden = 1, .n_layers = 1, .heartbeat_us = 1000, .dead_us = 2000};
    } else {
        c.error = (pot_control_error){.code = POT_IO, .step = step};
        snprintf(c.error.text, sizeof c.error.text, "%s", text);
    }
    return pot_control_send(l->inner, peer, &c, err);
}

static pot_status send_sum(pot_liar *l, uint32_t peer, pot_message *m, pot_err *err) {
    pot_wire_header h, other;
    pot_trick trick = l->trick;
    pot_message *spoilt = NULL;
    if (trick == POT_TRICK_NONE || pot_wire_header_parse(&h, m->bytes, m->n_bytes, NULL) != POT_OK)
        return pot_transport_send(l->inner, peer, m, err);
    other = h;
    switch (trick) {
    case POT_TRICK_TWICE: send_copy(l, peer, m, NULL); break;
    case POT_TRICK_OTHER_STEP:
        other.step--;
        send_copy(l, peer, m, &other);
        break;
    case POT_TRICK_OTHER_REQUEST:
        other.request++;
        send_copy(l, peer, m, &other);
        break;
    case POT_TRICK_OTHER_LAYER:
        other.layer++;
        send_copy(l, peer, m, &other);
        break;
    case POT_TRICK_OTHER_EPOCH:
        other.epoch++;
        send_copy(l, peer, m, &other);
        break;
    case POT_TRICK_BESIDE:
        other.request++;
        pot_wire_put_header(m->bytes, &other);
        break;
    case POT_TRICK_OLD_ERROR: (void)send_control(l, peer, POT_CONTROL_ERROR, h.step - 1, "an old story", NULL); break;
    case POT_TRICK_MOVED: spoilt = moved(l, m, &h); break;
    case POT_TRICK_ANOTHER_ROW: spoilt = another_row(l, m, &h); break;
    case POT_TRICK_CUT: m->n_bytes -= 8; break;
    case POT_TRICK_NOISE: memset(m->bytes, 0xa5, m->n_bytes); break;
    case POT_TRICK_WORK:
        other.type = POT_WIRE_WORK;
        pot_wire_put_header(m->bytes, &other);
        break;
    case POT_TRICK_ERROR:
    case POT_TRICK_LEAVE:
    case POT_TRICK_WELCOME:
    case POT_TRICK_WITHHOLD:
    case POT_TRICK_MUTE:
        pot_message_release(l->inner, m);
        if (trick == POT_TRICK_ERROR)
            return send_control(l, peer, POT_CONTROL_ERROR, h.step, "the disk is on fire", err);
        if (trick == POT_TRICK_LEAVE) return send_control(l, peer, POT_CONTROL_LEAVE, 0, "had enough", err);
        return trick == POT_TRICK_WELCOME ? send_control(l, peer, POT_CONTROL_WELCOME, 0, "", err) : POT_OK;
    case POT_TRICK_BAD_CONTROL:
        memset(m->bytes, 0xa5, m->n_bytes);
        m->n_bytes = 40;
        m->kind = POT_MESSAGE_CONTROL;
        break;
    default: break;
    }
    if (spoilt) {
        pot_message_release(l->inner, m);
        m = spoilt;
    }
    return pot_transport_send(l->inner, peer, m, err);
}

/* Ready is kept until there have been SLOW_BEATS heartbeats, each of which has one byte more. */
static pot_status send_slowly(pot_liar *l, uint32_t peer, pot_message *m, pot_control *beat, pot_err *err) {
    pot_message *held = NULL;
    pthread_mutex_lock(&l->mutex);
    if (!beat) {
        l->held = m;
    } else if (++l->beats >= SLOW_BEATS) {
        held = l->held;
        l->held = NULL;
    }
    if (beat) beat->heartbeat.loaded_bytes = l->beats;
    pthread_mutex_unlock(&l->mutex);
    if (!beat) return POT_OK;
    pot_message_release(l->inner, m);
    if (held) (void)pot_transport_send(l->inner, peer, held, NULL);
    return pot_control_send(l->inner, peer, beat, err);
}

static pot_status send_frame(pot_liar *l, uint32_t peer, pot_message *m, pot_err *err) {
    pot_control c;
    pot_trick trick = l->trick;
    bool lies = pot_control_parse(&c, m->bytes, m->n_bytes, NULL) == POT_OK;
    bool hello = lies && c.type == POT_CONTROL_HELLO, ready = lies && c.type == POT_CONTROL_READY;
    bool beat = lies && c.type == POT_CONTROL_HEARTBEAT;
    if (trick == POT_TRICK_MUTE || (trick == POT_TRICK_NO_HELLO && hello) || (trick == POT_TRICK_NO_READY && ready)) {
        pot_message_release(l->inner, m);
        return POT_OK;
    }
    if ((trick == POT_TRICK_HELLO_TWICE && hello) || (trick == POT_TRICK_READY_TWICE && ready))
        send_copy(l, peer, m, NULL);
    bool changed = true;
    if (trick == POT_TRICK_OLD_HELLO && hello) {
        c.hello.protocol_min = 98;
        c.hello.protocol_max = 99;
    } else if (trick == POT_TRICK_OTHER_READY && ready) {
        c.ready.epoch = 4242;
    } else if (trick == POT_TRICK_MODEL_READY && ready) {
        c.ready.fingerprint.low ^= 1;
    } else if (trick == POT_TRICK_NO_READY && beat) {
        c.heartbeat.loaded_bytes = 1;
    } else if (trick == POT_TRICK_SLOW_READY && (beat || ready)) {
        return send_slowly(l, peer, m, ready ? NULL : &c, err);
    } else {
        changed = false;
    }
    if (changed) {
        pot_message_release(l->inner, m);
        return pot_control_send(l->inner, peer, &c, err);
    }
    if (trick == POT_TRICK_EARLY_DATA && ready) m->kind = POT_MESSAGE_DATA;
    return pot_transport_send(l->inner, peer, m, err);
}

static pot_status liar_send(pot_transport *t, uint32_t peer, pot_message *m, pot_err *err) {
    pot_liar *l = liar_of(t);
    if (m->kind != POT_MESSAGE_DATA) return send_frame(l, peer, m, err);
    if (l->n_order < POT_MAX_WORKERS) l->order[l->n_order++] = peer;
    return send_sum(l, peer, m, err);
}

static const pot_transport_ops liar_ops = {.name = "liar",
                                           .message = liar_message,
                                           .release = liar_release,
                                           .send = liar_send,
                                           .receive = liar_receive,
                                           .wake = liar_wake,
                                           .close = liar_close};

void pot_stage_trick(pot_stage *stage, uint32_t worker, pot_trick trick) { stage->actors[worker].liar.trick = trick; }

/* ---- the stage ----------------------------------------------------------------------------------------------------------- */

static void *act(void *context) {
    pot_actor *a = context;
    pot_worker *worker = NULL;
    a->status = pot_worker_create(&worker, &a->options, &a->err);
    if (a->status == POT_OK) a->status = pot_worker_serve(worker, &a->err);
    pot_worker_free(worker);
    pot_transport_close(a->options.transport, 0);
    return NULL;
}

static pot_status start_actor(pot_stage *stage, const pot_stage_options *o, uint32_t w, pot_err *err) {
    pot_actor *a = &stage->actors[w];
    a->liar = (pot_liar){.transport.ops = &liar_ops, .inner = stage->ends[w + 1], .mutex = PTHREAD_MUTEX_INITIALIZER};
    a->liar.trick = w && w == o->liar ? o->trick : POT_TRICK_NONE;
    a->options = (pot_worker_options){.transport = &a->liar.transport,
                                      .compute = stage->compute,
                                      .model = w && w == o->liar ? o->other_model : NULL,
                                      .timeout_us = MINUTE_US};
    if (w == 0 && o->inline_worker) return pot_worker_create(&stage->inline_worker, &a->options, err);
    if (pthread_create(&a->thread, NULL, act, a)) return pot_fail(err, POT_ERROR, "no thread for worker %u", w);
    a->started = true;
    return POT_OK;
}

pot_status pot_stage_open(pot_stage *stage, const pot_stage_options *o, pot_err *err) {
    *stage = (pot_stage){0};
    pot_status s = pot_kernels_pick(&stage->compute.kernels, "auto", err);
    if (s == POT_OK) s = pot_model_open(&stage->model, o->model, &o->policy, err);
    if (s == POT_OK)
        s = pot_map_make(&stage->map, o->map, 3, o->n_workers, pot_model_layer_shapes(stage->model),
                         pot_model_layers(stage->model), err);
    if (s == POT_OK) s = pot_transport_mem_create(stage->ends, o->n_workers + 1, err);
    for (uint32_t w = 0; w < o->n_workers && s == POT_OK; w++) s = start_actor(stage, o, w, err);
    if (s != POT_OK) return s;
    stage->coordinator = (pot_liar){.transport.ops = &liar_ops, .inner = stage->ends[0]};
    pot_peers_options peers = {.local = &stage->coordinator.transport,
                               .n_local = o->n_workers,
                               .inline_worker = stage->inline_worker,
                               .n_workers = o->n_workers,
                               .model = stage->model,
                               .map = stage->map,
                               .heartbeat_us = o->heartbeat_us ? o->heartbeat_us : HEARTBEAT_US,
                               .dead_us = o->dead_us ? o->dead_us : MINUTE_US,
                               .timeout_us = o->timeout_us ? o->timeout_us : MINUTE_US,
                               .quiet = true};
    s = pot_peers_create(&stage->peers, &peers, err);
    return s == POT_OK ? pot_moe_create(&stage->moe, stage->model, stage->peers, &stage->compute, err) : s;
}

void pot_stage_close(pot_stage *stage) {
    pot_moe_free(stage->moe);
    pot_peers_free(stage->peers);
    pot_worker_free(stage->inline_worker);
    pot_transport_close(stage->ends[0], 0); /* whoever is left sees that and ends */
    for (uint32_t w = 0; w < POT_MAX_WORKERS; w++) {
        if (stage->actors[w].started)
            pthread_join(stage->actors[w].thread, NULL);
        else
            pot_transport_close(stage->ends[w + 1], 0);
    }
    pot_map_free(stage->map);
    pot_model_close(stage->model);
    *stage = (pot_stage){0};
}
