/* How fast this machine reads its memory, multiplies, and reads its disk: what `bench machine` writes into a cluster file and `doctor` judges.
 *
 * Everything is measured in several short windows; a figure is the median of them with the tenth and ninetieth percentile.  A stop signal ends a
 * measurement with CANCELLED.  One thread.
 */
#ifndef POT_CLI_MACHINE_PROBE_H
#define POT_CLI_MACHINE_PROBE_H

#include "cli/bench_probe.h"
#include "common/settings.h"

/* ---- memory and cores ---- */

/* How many programs want a core just now (the system's load of the last minute), when that is so much that what is measured is too low; else 0.  To be
 * called before measuring. */
double probe_busy(void);

typedef struct probe_memory {
    int threads;
    size_t pool_bytes;
    const char *way;           /* of reading, in words */
    pot_spread ram_gb_per_s;   /* all threads */
    pot_spread dense_gb_per_s; /* one row times q4g64 weights that lie in RAM, their bytes */
    pot_spread gop_per_s;      /* f32, in registers */
    pot_spread
        expert_s; /* what an expert of eight chunks takes beside the time for its bytes, one row; noise may make it negative */
} probe_memory;

/* `seconds`: about how long.  NO_MEMORY when there is no room for a pool that caches do not hold. */
pot_status probe_memory_measure(probe_memory *out, const pot_settings *settings, double seconds, pot_err *err);

/* ---- GPU ---- */

typedef struct probe_gpu {
    char name[128];      /* "" = there is none */
    uint64_t bytes;      /* for experts; 0 = there is none, or its memory is the RAM */
    pot_spread gb_per_s; /* of experts in its memory, one row each */
} probe_gpu;

/* The `nth` of `beside` processes on this machine. */
pot_status probe_gpu_measure(probe_gpu *out, uint32_t nth, uint32_t beside, double seconds, pot_err *err);

/* ---- disk ---- */

typedef struct probe_disk probe_disk;

/* `place`: a directory whose large files are read (a model's), or else one in which a scratch file is written that has no name and is gone
 * with this process; or a file.  `scratch_bytes`: how large; 0 = none is written, LIMIT when there are no large files.  NOT_FOUND, IO, LIMIT (disk full). */
pot_status probe_disk_open(probe_disk **out, const char *place, uint64_t scratch_bytes, const pot_settings *settings,
                           pot_err *err);
void probe_disk_close(probe_disk *disk); /* NULL is fine */
/* GB/s of `depth` reads of `bytes` each in flight, from all over the files, in `windows` windows of about `window_s`. */
pot_status probe_disk_rate(pot_spread *gb_per_s, probe_disk *disk, uint32_t depth, uint32_t bytes, int windows,
                           double window_s, pot_err *err);
/* In words; of the last probe_disk_rate. */
const char *probe_disk_engine(const probe_disk *disk); /* "io_uring" */
const char *probe_disk_path(const probe_disk *disk);   /* "direct" */
bool probe_disk_is_scratch(const probe_disk *disk);
uint64_t probe_disk_bytes(const probe_disk *disk); /* of the files that are read, a scratch file left out */

/* Where scratch files and packed copies lie unless somebody says otherwise: $XDG_CACHE_HOME, ~/.cache, or the working directory; the first
 * that is there. */
void probe_cache_directory(char *out, size_t size);

#endif
