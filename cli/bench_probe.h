/* What a machine can do, measured beside what a kernel does: a pool of cold memory, the rate at which it can be read, the operations
 * that an instruction set can do a second, and medians.
 *
 * Machines are shared and clocks wander, so a rate alone says little.  Whoever measures takes short windows and after each one, at once,
 * a window of the roof; what counts is the ratio of the two, window by window.  One thread owns a roof.
 */
#ifndef POT_CLI_BENCH_PROBE_H
#define POT_CLI_BENCH_PROBE_H

#include "common/mem.h"
#include "kernels/kernels.h"

typedef struct pot_spread {
    double median, p10, p90;
} pot_spread;
pot_spread pot_spread_of(double *values, int n); /* sorts them; n >= 1 */

double pot_bench_seconds(void); /* monotonic, in nanoseconds */

typedef struct pot_roof {
    pot_team *team;           /* borrowed */
    const pot_kernels *reads; /* whose read_streams is used: the best that the CPU can run, whatever is measured */
    pot_slab slab;
    size_t bytes; /* of the slab, walked through round and round */
    size_t next;
    int way; /* of reading; see pot_roof_way */
} pot_roof;

/* Room for pools of up to `bytes`. */
pot_status pot_roof_create(pot_roof *out, pot_team *team, size_t bytes, pot_err *err);
void pot_roof_free(pot_roof *roof); /* also an all-zero one */

/* Makes a pool of `bytes`, the pattern over and over; the last copy may be cut. */
void pot_roof_fill(pot_roof *roof, size_t bytes, const uint8_t *pattern, size_t pattern_bytes);
/* Finds the fastest way to read the pool, for roofline windows from now on; returns its GB/s. */
double pot_roof_choose(pot_roof *roof, double window_s);
const char *pot_roof_way(const pot_roof *roof); /* in words */

/* The next `bytes` (at most half the pool) from a multiple of `align` on.  Nothing has touched them since most of the pool was walked
 * through, so they are cold. */
const uint8_t *pot_roof_take(pot_roof *roof, size_t bytes, size_t align);

/* GB/s of reading the next `bytes` of the pool with all threads. */
double pot_roof_roofline(pot_roof *roof, size_t bytes);
/* 10^9 operations a second that all threads do in registers, in a window of about `window_s`. */
double pot_roof_peak(const pot_roof *roof, const pot_kernels *kernels, bool integer, double window_s);

uint64_t pot_roof_cache_bytes(void); /* all last-level caches together; 0 when unknown */
/* The CPU's own name, into name[size]. */
void pot_roof_cpu(char *name, size_t size);

#endif
