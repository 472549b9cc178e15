/* A cluster described by numbers: what each machine can keep and how fast it reads it, and what the way to it costs.  `potluck bench machine`
 * measures and writes this, `potluck plan` and the simulator read it, people write it by hand for machines that they do not have yet.
 *
 * As a file it is INI (docs/cluster.md has the table of keys): a section [cluster], and [worker 0] to [worker N-1].  Every number has a unit.
 * Reading is strict: an unknown key, a missing one, a number without a unit or two numbers that contradict each other is refused with file,
 * line, what was found and what is expected.  What was read and is written again reads the same.
 *
 * Pure arithmetic but for pot_machines_read and _write.
 */
#ifndef POT_PLACEMENT_CLUSTER_H
#define POT_PLACEMENT_CLUSTER_H

#include "common/buffer.h"
#include "common/status.h"
#include "placement/cost.h"
#include "placement/map.h"

enum { POT_MACHINE_DEPTHS = 6, POT_MACHINE_MOST_CURVES = 8, POT_MACHINE_HOST = 64, POT_MACHINE_ISA = 16 };

/* Reads in flight at which a curve has its values: 1 2 4 8 16 32. */
extern const uint32_t pot_machine_depths[POT_MACHINE_DEPTHS];

typedef struct pot_machine_curve {
    uint64_t read_bytes; /* of one read */
    double bytes_per_s[POT_MACHINE_DEPTHS];
} pot_machine_curve;

/* Between the coordinator and this worker. */
typedef struct pot_machine_link {
    double latency_s;   /* there and back, of an empty message */
    double bytes_per_s; /* 0 = does not count */
    double jitter_s;    /* mean of an exponential delay that comes on top of latency_s */
    double message_s;   /* of the coordinator's time, for each message */
} pot_machine_link;

typedef struct pot_machine_tier {
    uint64_t bytes;     /* that potluck may use; on worker 0, what the coordinator itself needs is in the RAM's */
    double bytes_per_s; /* above 0 where bytes are; of the disk: with the reads in flight that the expert store keeps */
} pot_machine_tier;

typedef struct pot_machine {
    char host[POT_MACHINE_HOST];
    uint32_t cores;            /* physical ones; 0 = not known */
    char isa[POT_MACHINE_ISA]; /* table of kernels; "" = not known */
    pot_machine_tier tiers[POT_COST_TIERS];
    uint32_t n_curves; /* of the disk, ascending read_bytes; may be none */
    pot_machine_curve curves[POT_MACHINE_MOST_CURVES];
    double
        dense_bytes_per_s; /* weights of the dense layers, multiplied with one token: the RAM's rate unless it was measured */
    double operations_per_s; /* f32 multiplications and additions, at most; 0 = not known */
    double item_s;           /* for each expert that is wanted, beside its bytes */
    pot_machine_link link;   /* all zero for worker 0, unless the coordinator is on another machine */
} pot_machine;

enum { POT_MACHINES_NOTE = 192 };
typedef struct pot_machines {
    char note[POT_MACHINES_NOTE]; /* where the figures come from */
    double port_bytes_per_s;      /* of the coordinator, which all messages pass; 0 = does not count */
    uint32_t n;                   /* 1 to POT_MAX_WORKERS */
    pot_machine of[POT_MAX_WORKERS];
} pot_machines; /* some ten KiB: for the heap */

/* NOT_FOUND, FORMAT with file:line, what was found and what is expected. */
pot_status pot_machines_read(pot_machines *out, const char *path, pot_err *err);
pot_status pot_machines_parse(pot_machines *out, const char *text, size_t bytes, const char *name, pot_err *err);
/* Numbers are rounded to six digits, sizes are exact. */
void pot_machines_format(pot_buffer *out, const pot_machines *machines);
/* `comment`: lines that are put in front as comments, cut where they are long; may be NULL.  FORMAT, and nothing is written, when the file
 * could not be read again. */
pot_status pot_machines_write(const char *path, const pot_machines *machines, const char *comment, pot_err *err);

/* Bytes a second that the disk gives with so many reads of such a size in flight: between the measured ones by interpolation, beyond them
 * the nearest.  The disk's one rate when nothing was measured. */
double pot_machine_disk_rate(const pot_machine *machine, uint64_t read_bytes, uint32_t depth);

/* As the model of what a token costs wants it. */
void pot_machine_speed(pot_cost_worker *out, const pot_machine *machine);

/* A rate, time or size in words with six digits at most, as in the file: "1.25GB/s". */
enum { POT_QUANTITY_TEXT = 32 };
const char *pot_rate_text(char out[POT_QUANTITY_TEXT], double bytes_per_s);
const char *pot_time_text(char out[POT_QUANTITY_TEXT], double seconds);
const char *pot_size_text(char out[POT_QUANTITY_TEXT], uint64_t bytes);

#endif
