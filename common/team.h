/* The threads that compute together: one caller and threads - 1 helpers that live as long as the team.
 *
 * A decode step is hundreds of short parallel parts, so starting one must cost about a microsecond; but the cores are also
 * wanted by other ranks, by the network and by the disk.  Hence: helpers wait for the next part spinning for 0.2 ms at most, and
 * less where that was in vain before; then they sleep until they are called.  docs/kernels.md has the figures.  OpenMP stays where a region runs for milliseconds (packing, loading).
 *
 * Flush-to-zero is off in every thread (DESIGN 3, rule 2).  One caller at a time; a part does not start another one.
 */
#ifndef POT_COMMON_TEAM_H
#define POT_COMMON_TEAM_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

typedef struct pot_team pot_team;

/* threads >= 1, the caller included.  `eager`: splits every part, however small; tests want that. */
pot_status pot_team_create(pot_team **out, int threads, bool eager, pot_err *err);
void pot_team_free(pot_team *team);         /* NULL is fine */
int pot_team_threads(const pot_team *team); /* NULL is a team of one */

/* What thread number `thread` of `threads` does; threads is that of the team, or 1 when the part is not worth waking anybody. */
typedef void pot_team_part(void *context, int thread, int threads);

/* Runs the part on all threads and returns when all have finished.  `products`: about how many multiplications the part has, or
 * what takes as long; below a threshold (lower while the helpers are awake) the caller does it alone.  The caller's flush-to-zero
 * mode is turned off and stays so. */
void pot_team_run(pot_team *team, uint64_t products, pot_team_part *part, void *context);

/* Inside a part that has `threads` threads: returns when all of them have come here. */
void pot_team_barrier(pot_team *team, int threads);

/* The share of n things that falls to a thread: [*begin, *end). */
static inline void pot_team_share(uint32_t *begin, uint32_t *end, uint32_t n, int thread, int threads) {
    *begin = (uint32_t)((uint64_t)n * (uint64_t)thread / (uint64_t)threads);
    *end = (uint32_t)((uint64_t)n * ((uint64_t)thread + 1) / (uint64_t)threads);
}

#endif
