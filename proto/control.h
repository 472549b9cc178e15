/* The control plane: protobuf-c messages (control.proto) in frames of at most 64 KiB, unpacked with a budgeted allocator, every
 * field checked after unpacking.  This header hides the generated code: the rest of the program sees plain structs.
 *
 * Order of a join, over any transport:
 *   worker  Hello    protocol range, build, host, pid, kernel table, capacity
 *   coord.  Welcome  session, worker number, model path, format policy, fingerprint, dims, c, G, n_workers, heartbeat
 *           Map...   a layer in one frame or more; the frame with commit = true makes the epoch valid
 *   worker  Ready    epoch, own fingerprint, bytes held        (or Error: why not, in words)
 *   both    Heartbeat every heartbeat_us; Leave to end in order; Error with a sentence.
 * A refusal names both values.  Field numbers are never reused.
 */
#ifndef POT_PROTO_CONTROL_H
#define POT_PROTO_CONTROL_H

#include "common/hash.h"
#include "common/status.h"
#include "placement/map.h"
#include "proto/transport.h"

enum { POT_CONTROL_MAX_BYTES = 64 * 1024, POT_PROTOCOL_MIN = 1, POT_PROTOCOL_MAX = 1, POT_CONTROL_TEXT = 1024 };
/* A faster heartbeat is a flood; dead_us has room for a day. */
enum { POT_HEARTBEAT_MIN_US = 1000 };
#define POT_DEAD_MAX_US ((uint64_t)86400 * 1000000)

typedef enum pot_control_type {
    POT_CONTROL_HELLO = 1,
    POT_CONTROL_WELCOME,
    POT_CONTROL_MAP,
    POT_CONTROL_READY,
    POT_CONTROL_HEARTBEAT,
    POT_CONTROL_LEAVE,
    POT_CONTROL_ERROR
} pot_control_type;

typedef struct pot_hello {
    uint32_t protocol_min, protocol_max;
    char build[64], host[64], kernels[32], transport[64];
    int64_t pid;
    uint32_t threads;
    uint64_t ram_bytes; /* usable */
} pot_hello;

typedef struct pot_welcome {
    uint32_t protocol, worker, n_workers;
    uint64_t session;
    char model[POT_CONTROL_TEXT];
    uint32_t reference, experts_format, dense_format, head_format, mtp_format, rounding; /* pot_format_policy */
    pot_hash fingerprint;
    uint32_t hidden, n_layers, grid;
    uint64_t heartbeat_us, dead_us;
} pot_welcome;

typedef struct pot_ready {
    uint64_t epoch, bytes;
    pot_hash fingerprint;
} pot_ready;

typedef enum pot_process_state { POT_STATE_IDLE, POT_STATE_LOADING, POT_STATE_COMPUTING } pot_process_state;

typedef struct pot_heartbeat {
    uint64_t sequence;
    uint32_t state; /* pot_process_state */
    uint64_t steps, items;
    uint64_t loaded_bytes, total_bytes;
} pot_heartbeat;

typedef struct pot_control_error {
    uint32_t code; /* pot_status */
    uint64_t request, step;
    uint32_t layer;
    char text[POT_CONTROL_TEXT];
} pot_control_error;

typedef struct pot_control {
    pot_control_type type;
    union {
        pot_hello hello;
        pot_welcome welcome;
        pot_ready ready;
        pot_heartbeat heartbeat;
        pot_control_error error; /* also the reason of a LEAVE: code OK = in order */
    };
} pot_control;

/* Packs into a fresh message of `t` and sends it (MAP has its own call). */
pot_status pot_control_send(pot_transport *t, uint32_t peer, const pot_control *control, pot_err *err);
/* Checks and unpacks one frame.  MAP frames are fed to the receiver instead (below): *out then only has the type. */
pot_status pot_control_parse(pot_control *out, const uint8_t *bytes, size_t n_bytes, pot_err *err);

/* One layer a frame (more frames when it has more than 4096 ranges); the last one commits. */
pot_status pot_control_send_map(pot_transport *t, uint32_t peer, const pot_map *map, pot_err *err);
typedef struct pot_map_receiver pot_map_receiver;
pot_map_receiver *pot_map_receiver_create(const pot_layer_shape *layers, uint32_t n_layers, uint32_t n_workers);
/* *out = the committed map when this frame completes one, else NULL.  Frames of two epochs may not mix; a frame that is refused
 * takes those of its epoch with it. */
pot_status pot_map_receiver_add(pot_map_receiver *receiver, pot_map **out, const uint8_t *bytes, size_t n_bytes,
                                pot_err *err);
void pot_map_receiver_free(pot_map_receiver *receiver);

/* A thread that sends a Heartbeat to each peer every interval (1 us to a day), also while the owner computes for seconds.  The
 * counters are the owner's to update at any time. */
typedef struct pot_pulse pot_pulse;
typedef struct pot_pulse_counters {
    _Atomic uint32_t state;
    _Atomic uint64_t steps, items, loaded_bytes, total_bytes;
} pot_pulse_counters;
pot_status pot_pulse_start(pot_pulse **out, pot_transport *t, const uint32_t *peers, uint32_t n, uint64_t interval_us,
                           const pot_pulse_counters *counters, pot_err *err);
void pot_pulse_stop(pot_pulse *pulse);

#endif
