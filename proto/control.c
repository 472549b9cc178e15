/* Plain structs to frames and back.
 *
 *   frame   u32 magic "PTLC", u8 type, u8 version, u16 0, then one packed message of control.proto; at most 64 KiB in all
 *
 * Unpacking allocates from a budget, so that a small frame cannot ask for much memory, and nothing in control.proto contains
 * itself, so depth is bounded by the format.  After unpacking every field is checked: protobuf-c checks none. */
#include "proto/control.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/stored.h"
#include "proto/control.pb-c.h"

enum { FRAME_BYTES = 8, FRAME_VERSION = 1, BUDGET_BYTES = 1 << 20 };

/* ---- budgeted allocator --------------------------------------------------------------------------------------------- */

typedef struct budget {
    size_t left;
} budget;

static void *budget_alloc(void *data, size_t bytes) {
    budget *b = data;
    if (bytes > b->left) return NULL;
    b->left -= bytes;
    return pot_alloc(bytes);
}

static void budget_free(void *data, void *pointer) {
    (void)data; /* what a frame has used is not given back: the budget is for the whole frame */
    pot_free(pointer);
}

/* ---- frames ----------------------------------------------------------------------------------------------------------- */

static const ProtobufCMessageDescriptor *descriptor_of(pot_control_type type) {
    switch (type) {
    case POT_CONTROL_HELLO: return &potluck__hello__descriptor;
    case POT_CONTROL_WELCOME: return &potluck__welcome__descriptor;
    case POT_CONTROL_MAP: return &potluck__map__descriptor;
    case POT_CONTROL_READY: return &potluck__ready__descriptor;
    case POT_CONTROL_HEARTBEAT: return &potluck__heartbeat__descriptor;
    case POT_CONTROL_LEAVE:
    case POT_CONTROL_ERROR: return &potluck__error__descriptor;
    }
    return NULL;
}

static pot_status send_frame(pot_transport *t, uint32_t peer, pot_control_type type, const ProtobufCMessage *message,
                             pot_err *err) {
    size_t bytes = FRAME_BYTES + protobuf_c_message_get_packed_size(message);
    POT_ASSERT(bytes <= POT_CONTROL_MAX_BYTES);
    pot_message *m = pot_transport_message(t, bytes);
    if (!m) return pot_fail(err, POT_NO_MEMORY, "no memory for a control frame of %zu bytes", bytes);
    m->kind = POT_MESSAGE_CONTROL;
    const uint8_t head[FRAME_BYTES] = {'P', 'T', 'L', 'C', (uint8_t)type, FRAME_VERSION, 0, 0};
    memcpy(m->bytes, head, FRAME_BYTES);
    protobuf_c_message_pack(message, m->bytes + FRAME_BYTES);
    return pot_transport_send(t, peer, m, err);
}

static pot_status unpack_frame(ProtobufCMessage **out, pot_control_type *type, ProtobufCAllocator *allocator,
                               const uint8_t *bytes, size_t n, pot_err *err) {
    if (n < FRAME_BYTES || n > POT_CONTROL_MAX_BYTES)
        return pot_fail(err, POT_FORMAT, "a control frame of %zu bytes, possible are %d to %d", n, FRAME_BYTES,
                        POT_CONTROL_MAX_BYTES);
    if (memcmp(bytes, "PTLC", 4) != 0)
        return pot_fail(err, POT_FORMAT, "a control frame that does not begin with PTLC");
    *type = (pot_control_type)bytes[4];
    const ProtobufCMessageDescriptor *descriptor = descriptor_of(*type);
    if (!descriptor || bytes[5] != FRAME_VERSION || bytes[6] || bytes[7])
        return pot_fail(err, POT_FORMAT,
                        "a control frame of type %u, version %u; this build reads types 1 to %d of version %d",
                        bytes[4], bytes[5], POT_CONTROL_ERROR, FRAME_VERSION);
    *out = protobuf_c_message_unpack(descriptor, allocator, n - FRAME_BYTES, bytes + FRAME_BYTES);
    if (!*out)
        return pot_fail(err, POT_FORMAT, "a control frame of type %u and %zu bytes that cannot be unpacked", bytes[4],
                        n);
    return POT_OK;
}

/* ---- texts ------------------------------------------------------------------------------------------------------------- */

static ProtobufCBinaryData from_text(const char *text) {
    return (ProtobufCBinaryData){strlen(text), (uint8_t *)(uintptr_t)text};
}

/* Printable text only: it will stand in a sentence on somebody's terminal. */
static pot_status to_text(char *out, size_t room, const ProtobufCBinaryData *data, const char *field, pot_err *err) {
    if (data->len >= room)
        return pot_fail(err, POT_FORMAT, "control: %s has %zu bytes, at most %zu are possible", field, data->len,
                        room - 1);
    for (size_t i = 0; i < data->len; i++)
        if (data->data[i] < 0x20 || data->data[i] == 0x7f)
            return pot_fail(err, POT_FORMAT, "control: %s has the byte %02x in it, expected text", field,
                            data->data[i]);
    if (data->len) memcpy(out, data->data, data->len);
    out[data->len] = 0;
    return POT_OK;
}

/* A sentence for the wire: cut to what fits, control characters (from a file's name, say) replaced. */
static ProtobufCBinaryData sentence(char room[POT_CONTROL_TEXT], const char *text) {
    size_t n = 0;
    for (; n < POT_CONTROL_TEXT - 1 && text[n]; n++)
        room[n] = (unsigned char)text[n] < 0x20 || text[n] == 0x7f ? '?' : text[n];
    room[n] = 0;
    return from_text(room);
}

/* ---- sending ------------------------------------------------------------------------------------------------------------- */

pot_status pot_control_send(pot_transport *t, uint32_t peer, const pot_control *c, pot_err *err) {
    switch (c->type) {
    case POT_CONTROL_HELLO: {
        const pot_hello *h = &c->hello;
        Potluck__Hello m = POTLUCK__HELLO__INIT;
        m.protocol_min = h->protocol_min;
        m.protocol_max = h->protocol_max;
        m.build = from_text(h->build);
        m.host = from_text(h->host);
        m.pid = h->pid;
        m.kernels = from_text(h->kernels);
        m.transport = from_text(h->transport);
        m.threads = h->threads;
        m.ram_bytes = h->ram_bytes;
        return send_frame(t, peer, c->type, &m.base, err);
    }
    case POT_CONTROL_WELCOME: {
        const pot_welcome *w = &c->welcome;
        Potluck__Welcome m = POTLUCK__WELCOME__INIT;
        m.protocol = w->protocol;
        m.session = w->session;
        m.worker = w->worker;
        m.n_workers = w->n_workers;
        m.model = from_text(w->model);
        m.reference = w->reference != 0;
        m.experts_format = w->experts_format;
        m.dense_format = w->dense_format;
        m.head_format = w->head_format;
        m.mtp_format = w->mtp_format;
        m.rounding = w->rounding;
        m.fingerprint_low = w->fingerprint.low;
        m.fingerprint_high = w->fingerprint.high;
        m.hidden = w->hidden;
        m.n_layers = w->n_layers;
        m.grid = w->grid;
        m.heartbeat_us = w->heartbeat_us;
        m.dead_us = w->dead_us;
        return send_frame(t, peer, c->type, &m.base, err);
    }
    case POT_CONTROL_READY: {
        Potluck__Ready m = POTLUCK__READY__INIT;
        m.epoch = c->ready.epoch;
        m.bytes = c->ready.bytes;
        m.fingerprint_low = c->ready.fingerprint.low;
        m.fingerprint_high = c->ready.fingerprint.high;
        return send_frame(t, peer, c->type, &m.base, err);
    }
    case POT_CONTROL_HEARTBEAT: {
        const pot_heartbeat *h = &c->heartbeat;
        Potluck__Heartbeat m = POTLUCK__HEARTBEAT__INIT;
        m.sequence = h->sequence;
        m.state = h->state;
        m.steps = h->steps;
        m.items = h->items;
        m.loaded_bytes = h->loaded_bytes;
        m.total_bytes = h->total_bytes;
        return send_frame(t, peer, c->type, &m.base, err);
    }
    case POT_CONTROL_LEAVE:
    case POT_CONTROL_ERROR: {
        char text[POT_CONTROL_TEXT];
        Potluck__Error m = POTLUCK__ERROR__INIT;
        m.code = c->error.code;
        m.request = c->error.request;
        m.step = c->error.step;
        m.layer = c->error.layer;
        m.text = sentence(text, c->error.text);
        return send_frame(t, peer, c->type, &m.base, err);
    }
    case POT_CONTROL_MAP: break;
    }
    return pot_fail(err, POT_BUG, "control type %d has no frame of its own", c->type);
}

/* ---- receiving ------------------------------------------------------------------------------------------------------------ */

static pot_status check_hello(pot_hello *out, const Potluck__Hello *m, pot_err *err) {
    *out = (pot_hello){.protocol_min = m->protocol_min,
                       .protocol_max = m->protocol_max,
                       .pid = m->pid,
                       .threads = m->threads,
                       .ram_bytes = m->ram_bytes};
    if (m->protocol_min == 0 || m->protocol_min > m->protocol_max)
        return pot_fail(err, POT_FORMAT, "control: Hello offers protocols %" PRIu32 " to %" PRIu32, m->protocol_min,
                        m->protocol_max);
    pot_status s = to_text(out->build, sizeof out->build, &m->build, "Hello.build", err);
    if (s == POT_OK) s = to_text(out->host, sizeof out->host, &m->host, "Hello.host", err);
    if (s == POT_OK) s = to_text(out->kernels, sizeof out->kernels, &m->kernels, "Hello.kernels", err);
    if (s == POT_OK) s = to_text(out->transport, sizeof out->transport, &m->transport, "Hello.transport", err);
    return s;
}

static pot_status check_welcome(pot_welcome *out, const Potluck__Welcome *m, pot_err *err) {
    *out = (pot_welcome){.protocol = m->protocol,
                         .session = m->session,
                         .worker = m->worker,
                         .n_workers = m->n_workers,
                         .reference = (uint32_t)m->reference,
                         .experts_format = m->experts_format,
                         .dense_format = m->dense_format,
                         .head_format = m->head_format,
                         .mtp_format = m->mtp_format,
                         .rounding = m->rounding,
                         .fingerprint = {m->fingerprint_low, m->fingerprint_high},
                         .hidden = m->hidden,
                         .n_layers = m->n_layers,
                         .grid = m->grid,
                         .heartbeat_us = m->heartbeat_us,
                         .dead_us = m->dead_us};
    if (m->n_workers == 0 || m->n_workers > POT_MAX_WORKERS || m->worker >= m->n_workers)
        return pot_fail(err, POT_FORMAT, "control: Welcome for worker %" PRIu32 " of %" PRIu32 ", at most %d",
                        m->worker, m->n_workers, POT_MAX_WORKERS);
    if (m->experts_format >= POT_FORMAT_COUNT || m->dense_format >= POT_FORMAT_COUNT ||
        m->head_format >= POT_FORMAT_COUNT || m->mtp_format >= POT_FORMAT_COUNT)
        return pot_fail(err, POT_FORMAT,
                        "control: Welcome names formats %" PRIu32 ", %" PRIu32 ", %" PRIu32 " and %" PRIu32
                        ", known are 0 to %d",
                        m->experts_format, m->dense_format, m->head_format, m->mtp_format, POT_FORMAT_COUNT - 1);
    if (m->rounding > POT_ROUNDING_OCP)
        return pot_fail(err, POT_FORMAT, "control: Welcome asks for rounding %" PRIu32 ", known are 0 to %d",
                        m->rounding, POT_ROUNDING_OCP);
    if (m->heartbeat_us < POT_HEARTBEAT_MIN_US || m->dead_us <= m->heartbeat_us || m->dead_us > POT_DEAD_MAX_US)
        return pot_fail(err, POT_FORMAT,
                        "control: Welcome asks for a heartbeat of %" PRIu64 " us and death after %" PRIu64
                        " us, possible are %d to %" PRIu64,
                        m->heartbeat_us, m->dead_us, POT_HEARTBEAT_MIN_US, POT_DEAD_MAX_US);
    if (m->hidden == 0 || m->n_layers == 0 || m->grid > 62)
        return pot_fail(err, POT_FORMAT,
                        "control: Welcome for %" PRIu32 " layers of hidden size %" PRIu32 " and grid %" PRIu32,
                        m->n_layers, m->hidden, m->grid);
    return to_text(out->model, sizeof out->model, &m->model, "Welcome.model", err);
}

static pot_status check_error(pot_control_error *out, const Potluck__Error *m, pot_err *err) {
    *out = (pot_control_error){.code = m->code, .request = m->request, .step = m->step, .layer = m->layer};
    if (m->code >= POT_STATUS_COUNT)
        return pot_fail(err, POT_FORMAT, "control: an Error with code %" PRIu32 ", known are 0 to %d", m->code,
                        POT_STATUS_COUNT - 1);
    return to_text(out->text, sizeof out->text, &m->text, "Error.text", err);
}

static pot_status check(pot_control *out, const ProtobufCMessage *message, pot_err *err) {
    switch (out->type) {
    case POT_CONTROL_HELLO: return check_hello(&out->hello, (const Potluck__Hello *)message, err);
    case POT_CONTROL_WELCOME: return check_welcome(&out->welcome, (const Potluck__Welcome *)message, err);
    case POT_CONTROL_READY: {
        const Potluck__Ready *m = (const Potluck__Ready *)message;
        out->ready = (pot_ready){m->epoch, m->bytes, {m->fingerprint_low, m->fingerprint_high}};
        return POT_OK;
    }
    case POT_CONTROL_HEARTBEAT: {
        const Potluck__Heartbeat *m = (const Potluck__Heartbeat *)message;
        if (m->state > POT_STATE_COMPUTING)
            return pot_fail(err, POT_FORMAT, "control: a Heartbeat with state %" PRIu32 ", known are 0 to %d", m->state,
                            POT_STATE_COMPUTING);
        out->heartbeat = (pot_heartbeat){m->sequence, m->state, m->steps, m->items, m->loaded_bytes, m->total_bytes};
        return POT_OK;
    }
    case POT_CONTROL_LEAVE:
    case POT_CONTROL_ERROR: return check_error(&out->error, (const Potluck__Error *)message, err);
    case POT_CONTROL_MAP: return POT_OK; /* the receiver reads it */
    }
    return pot_fail(err, POT_BUG, "control type %d", out->type);
}

pot_status pot_control_parse(pot_control *out, const uint8_t *bytes, size_t n_bytes, pot_err *err) {
    budget b = {BUDGET_BYTES};
    ProtobufCAllocator allocator = {budget_alloc, budget_free, &b};
    ProtobufCMessage *message;
    pot_control c;
    memset(&c, 0, sizeof c);
    pot_status s = unpack_frame(&message, &c.type, &allocator, bytes, n_bytes, err);
    if (s != POT_OK) return s;
    s = check(&c, message, err);
    protobuf_c_message_free_unpacked(message, &allocator);
    if (s == POT_OK) *out = c;
    return s;
}

/* ---- the map --------------------------------------------------------------------------------------------------------------- */

/* A range takes at most 11 bytes and an expert 2, so this many of both stay below a frame; an expert never has more. */
enum { MAP_FRAME_RANGES = POT_MAX_CHUNKS };

typedef struct map_frame {
    uint32_t *count, *chunk_end, *first; /* [MAP_FRAME_RANGES] each */
    uint64_t *owners;
    Potluck__Map message;
} map_frame;

static void free_map_frame(map_frame *f) {
    pot_free(f->count);
    pot_free(f->chunk_end);
    pot_free(f->first);
    pot_free(f->owners);
}

static pot_status create_map_frame(map_frame *f, pot_err *err) {
    *f = (map_frame){.count = pot_alloc_array(MAP_FRAME_RANGES, sizeof *f->count),
                     .chunk_end = pot_alloc_array(MAP_FRAME_RANGES, sizeof *f->chunk_end),
                     .first = pot_alloc_array(MAP_FRAME_RANGES, sizeof *f->first),
                     .owners = pot_alloc_array(MAP_FRAME_RANGES, sizeof *f->owners)};
    if (f->count && f->chunk_end && f->first && f->owners) return POT_OK;
    free_map_frame(f);
    return pot_fail(err, POT_NO_MEMORY, "no memory to send a map");
}

/* Fills the frame with experts from `expert` on; returns the first that did not fit. */
static uint32_t fill_map_frame(map_frame *f, const pot_map *map, uint32_t layer, uint32_t expert) {
    Potluck__Map *m = &f->message;
    potluck__map__init(m);
    m->epoch = pot_map_epoch(map);
    m->layer = layer;
    m->first_expert = expert;
    uint32_t experts = pot_layer_experts(pot_map_layer_shape(map, layer)), n = 0;
    for (; expert < experts && m->n_range_count < MAP_FRAME_RANGES; expert++) {
        uint32_t count;
        const pot_map_range *ranges = pot_map_ranges(map, layer, expert, &count);
        if (n + count > MAP_FRAME_RANGES) break;
        f->count[m->n_range_count++] = count;
        for (uint32_t i = 0; i < count; i++, n++) {
            f->chunk_end[n] = ranges[i].chunk_end;
            f->owners[n] = ranges[i].owners;
            f->first[n] = ranges[i].first;
        }
    }
    m->range_count = f->count;
    m->chunk_end = f->chunk_end;
    m->owners = f->owners;
    m->first_owner = f->first;
    m->n_chunk_end = m->n_owners = m->n_first_owner = n;
    return expert;
}

pot_status pot_control_send_map(pot_transport *t, uint32_t peer, const pot_map *map, pot_err *err) {
    map_frame frame;
    pot_status s = create_map_frame(&frame, err);
    if (s != POT_OK) return s;
    uint32_t layers = pot_map_layers(map);
    for (uint32_t layer = 0; layer < layers && s == POT_OK; layer++) {
        uint32_t experts = pot_layer_experts(pot_map_layer_shape(map, layer)), expert = 0;
        do { /* once also for a layer without experts, so that the last frame is always sent */
            expert = fill_map_frame(&frame, map, layer, expert);
            frame.message.commit = layer + 1 == layers && expert == experts;
            s = send_frame(t, peer, POT_CONTROL_MAP, &frame.message.base, err);
        } while (expert < experts && s == POT_OK);
    }
    free_map_frame(&frame);
    return s;
}

struct pot_map_receiver {
    pot_layer_shape *layers;
    uint32_t n_layers, n_workers;
    pot_map_builder *builder; /* NULL between epochs */
    uint64_t epoch;
};

pot_map_receiver *pot_map_receiver_create(const pot_layer_shape *layers, uint32_t n_layers, uint32_t n_workers) {
    pot_map_receiver *r = pot_alloc(sizeof *r);
    if (!r) return NULL;
    r->layers = pot_alloc_array(n_layers, sizeof *r->layers);
    if (!r->layers) {
        pot_free(r);
        return NULL;
    }
    memcpy(r->layers, layers, n_layers * sizeof *layers);
    r->n_layers = n_layers;
    r->n_workers = n_workers;
    return r;
}

void pot_map_receiver_free(pot_map_receiver *r) {
    if (!r) return;
    pot_map_builder_free(r->builder);
    pot_free(r->layers);
    pot_free(r);
}

static pot_status add_map_frame(pot_map_receiver *r, const Potluck__Map *m, pot_err *err) {
    if (m->n_owners != m->n_chunk_end || m->n_first_owner != m->n_chunk_end)
        return pot_fail(err, POT_FORMAT, "control: a Map frame with %zu ranges, %zu owners and %zu first owners",
                        m->n_chunk_end, m->n_owners, m->n_first_owner);
    if (r->builder && m->epoch != r->epoch)
        return pot_fail(err, POT_FORMAT,
                        "control: a Map frame of epoch %" PRIu64 " while epoch %" PRIu64 " is incomplete", m->epoch,
                        r->epoch);
    if (!r->builder) {
        pot_status s = pot_map_builder_create(&r->builder, m->epoch, r->n_workers, r->layers, r->n_layers, err);
        if (s != POT_OK) return s;
        r->epoch = m->epoch;
    }
    size_t at = 0;
    for (size_t e = 0; e < m->n_range_count; e++) {
        uint32_t begin = 0;
        if (m->range_count[e] == 0 || e > UINT32_MAX - m->first_expert)
            return pot_fail(err, POT_FORMAT,
                            "control: a Map frame from expert %" PRIu32 " on has no ranges for its expert %zu",
                            m->first_expert, e);
        for (uint32_t i = 0; i < m->range_count[e]; i++, at++) {
            if (at >= m->n_chunk_end)
                return pot_fail(err, POT_FORMAT, "control: a Map frame counts more ranges than the %zu it has",
                                m->n_chunk_end);
            pot_status s = pot_map_builder_add(r->builder, m->layer, m->first_expert + (uint32_t)e, begin,
                                               m->chunk_end[at], m->owners[at], m->first_owner[at], err);
            if (s != POT_OK) return s;
            begin = m->chunk_end[at];
        }
    }
    if (at != m->n_chunk_end)
        return pot_fail(err, POT_FORMAT, "control: a Map frame counts %zu ranges and has %zu", at, m->n_chunk_end);
    return POT_OK;
}

pot_status pot_map_receiver_add(pot_map_receiver *r, pot_map **out, const uint8_t *bytes, size_t n_bytes,
                                pot_err *err) {
    budget b = {BUDGET_BYTES};
    ProtobufCAllocator allocator = {budget_alloc, budget_free, &b};
    ProtobufCMessage *message;
    pot_control_type type;
    *out = NULL;
    pot_status s = unpack_frame(&message, &type, &allocator, bytes, n_bytes, err);
    if (s != POT_OK) return s;
    if (type != POT_CONTROL_MAP) {
        s = pot_fail(err, POT_FORMAT, "a control frame of type %d where a Map was expected", type);
    } else {
        const Potluck__Map *m = (const Potluck__Map *)message;
        s = add_map_frame(r, m, err);
        if (s == POT_OK && m->commit) {
            s = pot_map_builder_finish(out, r->builder, err);
            r->builder = NULL;
        } else if (s != POT_OK) { /* half an epoch is of no use */
            pot_map_builder_free(r->builder);
            r->builder = NULL;
        }
    }
    protobuf_c_message_free_unpacked(message, &allocator);
    return s;
}
