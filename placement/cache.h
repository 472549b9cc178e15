/* Which experts of a machine stay in memory: policies over slots, without memory, files or clocks of their own.  The expert store
 * (worker/store.h) and the simulator run this code.
 *
 * A unit is what is kept or dropped as a whole: the chunks of one expert that this machine owns.  Units belong to groups (layers),
 * which every token visits in ascending order.  The memory is a number of equal slots (chunks); a unit takes one or more.
 *
 * A step is begun with all units that it wants in one group: those that are resident are claimed before anything is evicted (two-phase
 * look-up: 9 to 15 points of hit rate over one by one).  Then each missing unit is admitted, which may evict units that nobody has
 * claimed, until no room can be made; the caller computes what it has, releases it, and goes on admitting.
 *
 * A scan (a prompt of many rows touches nearly every expert) leaves the counts alone, and what it admits is the first to be evicted.
 * All layers share all slots: see cache.c.  Deterministic; one owner.
 */
#ifndef POT_PLACEMENT_CACHE_H
#define POT_PLACEMENT_CACHE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

/* X(enum, name): the names are those of --cache. */
#define POT_CACHE_POLICY_MAP(X)                                                             \
    X(LFU_DECAY, "lfu-decay") /* count that fades by 0.96 a token, and pins; the default */ \
    X(LFU, "lfu")             /* count for ever */                                          \
    X(LRU, "lru")                                                                           \
    X(LFRU, "lfru") /* count, then recency */                                               \
    X(SLRU, "slru") /* segmented: a second use protects */                                  \
    X(GDSF, "gdsf") /* greedy dual size frequency: count * cost of a miss / slots, with inflation */
typedef enum pot_cache_policy {
#define X(name, text) POT_CACHE_##name,
    POT_CACHE_POLICY_MAP(X)
#undef X
        POT_CACHE_POLICIES
} pot_cache_policy;
const char *pot_cache_policy_name(pot_cache_policy policy);
pot_status pot_cache_policy_find(pot_cache_policy *out, const char *name, pot_err *err);

typedef struct pot_cache_options {
    pot_cache_policy policy;
    uint32_t n_groups;
    const uint32_t *group_units; /* [n_groups] units in each; unit u of group g is numbered from 0 within its group */
    const uint16_t *unit_slots;  /* [all units, group by group] slots each takes; NULL = one */
    const float *unit_cost;      /* [all units] what a miss costs, relative; NULL = equal */
    uint32_t slots;              /* at least the largest unit's */
    double decay;                /* a token; 0 = 0.96 */
} pot_cache_options;

typedef struct pot_cache pot_cache;
pot_status pot_cache_create(pot_cache **out, const pot_cache_options *options, pot_err *err);
void pot_cache_free(pot_cache *cache); /* NULL is fine */

/* A step of `group` wants these (distinct) units.  Resident ones are claimed; the number of them is returned, and hit[i] set.  Only one
 * group is in a step at a time.  Not a scan: counts go up; a token begins when a group is not above the last one. */
uint32_t pot_cache_begin(pot_cache *cache, uint32_t group, const uint32_t *units, uint32_t n, bool scan, bool *hit);
/* Makes `unit` of the begun group resident and claimed.  *evicted lists the units, as (group << 32 | unit), that went for it; borrowed
 * until the next call.  false, and nothing changed, when too much is claimed: compute what is there, release it, admit again.  A scan gets
 * that answer also when it has had its part of what other steps have earned (an eighth, at most 32 of the largest units) and holds a claim.
 * With nothing else claimed by the step it is always true. */
bool pot_cache_admit(pot_cache *cache, uint32_t unit, const uint64_t **evicted, uint32_t *n_evicted);
/* Gives one claim back before the end, so that a later admit may take its slots: after a wave of a scan. */
void pot_cache_release(pot_cache *cache, uint32_t unit);
void pot_cache_end(pot_cache *cache); /* of the step: all claims are given back */

/* Ahead of time, for a group that is not in a step: admits only if the policy thinks more of `unit` than of what would go, and nothing of
 * the group in a step or claimed goes.  The unit counts as claimed until a step of its group or of
 * a later one begins, or _drop. */
bool pot_cache_prefetch(pot_cache *cache, uint32_t group, uint32_t unit, const uint64_t **evicted, uint32_t *n_evicted);

bool pot_cache_resident(const pot_cache *cache, uint32_t group, uint32_t unit);
void pot_cache_drop(pot_cache *cache, uint32_t group, uint32_t unit); /* its bytes never came */

/* What is known from earlier runs, before the first step: how often a unit was wanted, ever.  It warms the policy. */
uint64_t pot_cache_usage(const pot_cache *cache, uint32_t group, uint32_t unit);
void pot_cache_set_usage(pot_cache *cache, uint32_t group, uint32_t unit, uint64_t count);
/* Before the first step: makes a unit resident if there is still room for it. */
bool pot_cache_fill(pot_cache *cache, uint32_t group, uint32_t unit);

/* Pins the hottest resident units by usage, 1/32 of the slots (LFU_DECAY only; others do nothing): a pinned unit is not evicted.  A pin
 * moves only when the newcomer's usage beats the pinned one's by 25% + 4.  Called now and then by the owner, not in a step. */
void pot_cache_repin(pot_cache *cache);

typedef struct pot_cache_stats {
    uint64_t wanted, hits, admitted, evicted; /* units, of steps that were no scans */
    uint64_t scan_wanted, scan_hits;
    uint64_t prefetched, prefetch_used;
    uint32_t slots, slots_used, pinned_units;
} pot_cache_stats;
void pot_cache_get_stats(pot_cache_stats *out, const pot_cache *cache);

#endif
