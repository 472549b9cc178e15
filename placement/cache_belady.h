/* The best that any cache could do who knew the future: for comparison with the policies of cache.h, offline, units of one slot each.
 *
 * Two-phase, as the store works: units of a step that are resident at its begin are hits, and all of them must be there together.  One by
 * one: each is looked up after the one before it may have been evicted for, as most engines do; the future is known there too, so this one
 * is never worse, and both are the same once the slots hold a step or two.
 */
#ifndef POT_PLACEMENT_CACHE_BELADY_H
#define POT_PLACEMENT_CACHE_BELADY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* What is wanted: step after step. */
typedef struct pot_cache_trace {
    size_t n_steps;
    const size_t *begin;   /* [n_steps + 1] where a step begins in units[] */
    const uint32_t *units; /* numbers below n_units, distinct within a step, of all groups together */
    uint32_t n_units;
} pot_cache_trace;

/* Hits per step into hits[n_steps] (NULL = not wanted), all of them into *total. */
pot_status pot_belady(uint64_t *total, uint32_t *hits, const pot_cache_trace *trace, uint32_t slots, bool one_by_one,
                      pot_err *err);

#endif
