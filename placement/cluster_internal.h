/* What reading (cluster_read.c) and writing (cluster.c) of a cluster file share: the table of keys and of units. */
#ifndef POT_PLACEMENT_CLUSTER_INTERNAL_H
#define POT_PLACEMENT_CLUSTER_INTERNAL_H

#include <stddef.h>

#include "placement/cluster.h"

typedef enum pot_key_type {
    POT_KEY_WORD,       /* char[room] of [A-Za-z0-9._-] */
    POT_KEY_TEXT,       /* char[room], anything printable */
    POT_KEY_COUNT,      /* uint32_t */
    POT_KEY_BYTES,      /* uint64_t */
    POT_KEY_RATE,       /* double, bytes a second */
    POT_KEY_OPERATIONS, /* double, operations a second */
    POT_KEY_TIME,       /* double, seconds */
    POT_KEY_TYPES
} pot_key_type;

typedef struct pot_key {
    const char *name;
    pot_key_type type;
    size_t offset, room; /* room of texts */
    bool needed;         /* by every section of its kind */
} pot_key;

typedef struct pot_unit {
    const char *name;
    double factor;
} pot_unit;

typedef struct pot_kind {
    const pot_unit *units; /* by falling size, the ones to write with first; NULL for words and texts */
    uint32_t n_units, n_written;
    double least, most;   /* 0 is always possible */
    const char *expected; /* "a rate such as 50GB/s, or 0" */
} pot_kind;

enum { POT_CLUSTER_KEYS = 3, POT_WORKER_KEYS = 16 };
extern const pot_key pot_cluster_keys[POT_CLUSTER_KEYS]; /* offsets into pot_cluster_head */
extern const pot_key pot_worker_keys[POT_WORKER_KEYS];   /* into pot_machine */
extern const pot_kind pot_kinds[POT_KEY_TYPES];
extern const char pot_curve_prefix[]; /* a key that begins so and ends with a size is a curve */

enum { POT_CLUSTER_VERSION = 1 };

/* [cluster] as it stands in the file. */
typedef struct pot_cluster_head {
    uint32_t version;
    char note[POT_MACHINES_NOTE];
    double port_bytes_per_s;
} pot_cluster_head;

#endif
