/* How it works.
 *
 * Every unit has a value that its policy gives it when it is wanted (cache_policies.c); the unit of the lowest rank goes first, from whichever
 * group.  Shares of a layer were measured: equal ones that cannot be borrowed lose hits (bench/results, cache.csv), and with a floor below
 * which others cannot push a layer nothing changed.  What made sharing good was two rules, without which LFU falls behind equal shares:
 *  - What the last token wanted is more likely to be wanted again than its count says, but its count is low, so other layers would take its
 *    slots before its own layer is asked again.  Until then it counts for more.
 *  - A token passes the groups in ascending order.  Of two equal units the one goes whose group is visited last from now on: what this token
 *    needs in the next layers is not thrown out for what it needed in the last ones, which is what LRU does to a cycle longer than the cache.
 *
 * The first unit to go of each group is remembered until something changes in the group, so an admission looks at the residents of one or
 * two groups, and at one unit of each other. */
#include "placement/cache.h"

#include <string.h>

#include "common/mem.h"
#include "placement/cache_internal.h"

#define DECAY 0.96
#define PINNED_PART 0.03125 /* of the slots, at most: more of them cost hits on every trace that we have */
#define AHEAD_PART 0.25     /* of the slots, at most, for units that were read ahead and not yet wanted */
#define SCAN_PART 0.125     /* of the slots, at most, that a scan takes from what other steps have earned ... */
enum { SCAN_UNITS = 32 };   /* ... and no more than so many of the largest units: they keep a disk busy */
enum { PIN_MARGIN = 4 };    /* and 25% */

/* ---- creation ------------------------------------------------------------------------------------------------------ */

void pot_cache_free(pot_cache *c) {
    if (!c) return;
    pot_free(c->groups);
    pot_free(c->units);
    pot_free(c->lists);
    pot_free(c->step);
    pot_free(c->ahead);
    pot_free(c->order);
    pot_free(c->chosen);
    pot_free(c->evicted);
    pot_free(c);
}

static pot_status count_units(uint32_t *n, uint32_t *most, const pot_cache_options *o, pot_err *err) {
    uint64_t sum = 0;
    for (uint32_t g = 0; g < o->n_groups; g++) {
        sum += o->group_units[g];
        if (o->group_units[g] > *most) *most = o->group_units[g];
    }
    if (sum >= POT_CACHE_NONE)
        return pot_fail(err, POT_LIMIT, "the cache: %llu units in %u layers are too many", (unsigned long long)sum,
                        o->n_groups);
    *n = (uint32_t)sum;
    return POT_OK;
}

static pot_status take_units(pot_cache *c, const pot_cache_options *o, pot_err *err) {
    uint32_t n = 0;
    for (uint32_t g = 0; g < c->n_groups; g++) {
        c->groups[g] = (pot_cache_group){.first = n, .units = o->group_units[g], .residents = c->lists + n};
        for (uint32_t i = 0; i < o->group_units[g]; i++, n++) {
            pot_cache_unit *u = &c->units[n];
            u->group = g;
            u->slots = o->unit_slots ? o->unit_slots[n] : 1;
            u->cost = o->unit_cost ? o->unit_cost[n] : 1;
            if (u->slots == 0) return pot_fail(err, POT_BUG, "the cache: unit %u of layer %u takes no slots", i, g);
            if (u->slots > o->slots)
                return pot_fail(
                    err, POT_LIMIT,
                    "the cache: unit %u of layer %u takes %u slots, but there are %u: a larger budget is needed", i, g,
                    u->slots, o->slots);
            if (u->slots > c->largest) c->largest = u->slots;
        }
    }
    return POT_OK;
}

pot_status pot_cache_create(pot_cache **out, const pot_cache_options *o, pot_err *err) {
    uint32_t n = 0, most = 0;
    pot_status status = count_units(&n, &most, o, err);
    if (status != POT_OK) return status;
    if (!(o->decay >= 0 && o->decay <= 1))
        return pot_fail(err, POT_USAGE, "the cache: a decay of %g was asked for, possible are 0 to 1", o->decay);
    pot_cache *c = pot_alloc(sizeof *c);
    if (!c) goto err_memory;
    c->groups = pot_alloc_array(o->n_groups, sizeof *c->groups);
    c->units = pot_alloc_array(n, sizeof *c->units);
    c->lists = pot_alloc_array(n, sizeof *c->lists);
    c->ahead = pot_alloc_array(n, sizeof *c->ahead);
    c->order = pot_alloc_array(n, sizeof *c->order);
    c->step = pot_alloc_array(most, sizeof *c->step);
    if (!c->groups || !c->units || !c->lists || !c->ahead || !c->order || !c->step) goto err_memory;
    c->policy = o->policy;
    c->n_groups = o->n_groups;
    c->n_units = n;
    c->slots = c->free = o->slots;
    c->passed = c->last = o->n_groups ? o->n_groups - 1 : 0;
    c->growth = 1 / (o->decay > 0 ? o->decay : DECAY);
    c->weight = 1;
    status = take_units(c, o, err);
    if (status != POT_OK) goto err_free;
    c->chosen = pot_alloc_array(c->largest, sizeof *c->chosen);
    c->evicted = pot_alloc_array(c->largest, sizeof *c->evicted);
    if (!c->chosen || !c->evicted) goto err_memory;
    c->scan_limit = (uint32_t)(SCAN_PART * (double)c->slots);
    if (c->scan_limit > SCAN_UNITS * c->largest) c->scan_limit = SCAN_UNITS * c->largest;
    if (c->scan_limit < c->largest) c->scan_limit = c->largest;
    *out = c;
    return POT_OK;
err_memory:
    status = pot_fail(err, POT_NO_MEMORY, "no memory to keep account of %u experts", n);
err_free:
    pot_cache_free(c);
    return status;
}

/* ---- accounts ------------------------------------------------------------------------------------------------------ */

static pot_cache_unit *unit_at(const pot_cache *c, uint32_t group, uint32_t unit) {
    POT_ASSERT(group < c->n_groups && unit < c->groups[group].units);
    return &c->units[c->groups[group].first + unit];
}

static uint64_t name_of(const pot_cache *c, const pot_cache_unit *u) {
    return (uint64_t)u->group << 32 | (uint32_t)(u - c->units - c->groups[u->group].first);
}

/* Adds the unit to the sums that its flags belong to (sign 1), or takes it off (-1). */
static void account(pot_cache *c, const pot_cache_unit *u, int sign) {
    uint32_t slots = sign > 0 ? u->slots : 0u - u->slots;
    if (u->flags & POT_CACHE_HELD) c->held += slots;
    if (u->flags & POT_CACHE_AHEAD) c->ahead_slots += slots;
    if (u->flags & POT_CACHE_PINNED) {
        c->pinned_slots += slots;
        c->stats.pinned_units += (uint32_t)sign;
    }
    if (u->flags & POT_CACHE_SCANNED) {
        c->scanned += slots;
        if (u->flags & POT_CACHE_HELD) c->scanned_held += slots;
    }
}

void pot_cache_flag(pot_cache *c, pot_cache_unit *u, unsigned on, unsigned off) {
    account(c, u, -1);
    u->flags = (uint8_t)((u->flags | on) & ~off);
    account(c, u, 1);
    c->groups[u->group].known = false;
}

static void enter(pot_cache *c, pot_cache_unit *u, unsigned flags) {
    pot_cache_group *g = &c->groups[u->group];
    POT_ASSERT(c->free >= u->slots);
    u->place = g->n_residents;
    g->residents[g->n_residents++] = (uint32_t)(u - c->units);
    g->used += u->slots;
    c->free -= u->slots;
    pot_cache_flag(c, u, POT_CACHE_RESIDENT | flags, 0);
    pot_cache_entered(c, u);
}

static void leave(pot_cache *c, pot_cache_unit *u) {
    pot_cache_group *g = &c->groups[u->group];
    pot_cache_left(c, u);
    g->residents[u->place] = g->residents[--g->n_residents];
    c->units[g->residents[u->place]].place = u->place;
    g->used -= u->slots;
    c->free += u->slots;
    pot_cache_flag(c, u, 0, UINT8_MAX);
}

/* ---- who goes ------------------------------------------------------------------------------------------------------ */

/* Groups that are visited later from now on give first. */
static uint32_t visits_until(const pot_cache *c, uint32_t group) {
    return group > c->passed ? group - c->passed : group + c->n_groups - c->passed;
}

static uint32_t least_of(pot_cache *c, pot_cache_group *g) {
    if (g->known) return g->least;
    pot_cache_rank least = {0};
    g->least = POT_CACHE_NONE;
    for (uint32_t i = 0; i < g->n_residents; i++) {
        uint32_t n = g->residents[i];
        const pot_cache_unit *u = &c->units[n];
        if (u->flags & (POT_CACHE_HELD | POT_CACHE_CHOSEN)) continue;
        pot_cache_rank r = pot_cache_rank_of(c, u);
        int order = g->least == POT_CACHE_NONE ? -1 : pot_cache_rank_compare(&r, &least);
        if (order > 0 || (order == 0 && n > g->least)) continue;
        g->least = n;
        least = r;
    }
    g->known = true;
    return g->least;
}

/* The unit that goes first, of all groups but `spared` (POT_CACHE_NONE = of all); POT_CACHE_NONE when none can go. */
static uint32_t find_least(pot_cache *c, uint32_t spared, pot_cache_rank *rank) {
    uint32_t best = POT_CACHE_NONE, from = 0;
    for (uint32_t i = 0; i < c->n_groups; i++) {
        uint32_t n = i == spared ? POT_CACHE_NONE : least_of(c, &c->groups[i]);
        if (n == POT_CACHE_NONE) continue;
        pot_cache_rank r = pot_cache_rank_of(c, &c->units[n]);
        int order = best == POT_CACHE_NONE ? -1 : pot_cache_rank_compare(&r, rank);
        if (order > 0 || (order == 0 && visits_until(c, i) < visits_until(c, from))) continue;
        best = n;
        from = i;
        *rank = r;
    }
    return best;
}

static void choose(pot_cache *c, uint32_t unit) {
    c->units[unit].flags |= POT_CACHE_CHOSEN;
    c->groups[c->units[unit].group].known = false;
    c->chosen[c->n_chosen++] = unit;
}

static void unmark_chosen(pot_cache *c) {
    for (uint32_t i = 0; i < c->n_chosen; i++) {
        pot_cache_unit *u = &c->units[c->chosen[i]];
        u->flags &= (uint8_t)~POT_CACHE_CHOSEN;
        c->groups[u->group].known = false;
    }
}

/* Chooses who goes until `slots` are free, only units below `limit` unless that is NULL.  false: they cannot be had. */
static bool choose_for(pot_cache *c, uint32_t slots, uint32_t spared, const pot_cache_rank *limit) {
    uint32_t free = c->free;
    c->n_chosen = 0;
    while (free < slots) {
        pot_cache_rank rank;
        uint32_t unit = find_least(c, spared, &rank);
        if (unit == POT_CACHE_NONE || (limit && pot_cache_rank_compare(&rank, limit) >= 0)) break;
        choose(c, unit);
        free += c->units[unit].slots;
    }
    unmark_chosen(c);
    return free >= slots;
}

static void evict_chosen(pot_cache *c, const uint64_t **evicted, uint32_t *n_evicted) {
    for (uint32_t i = 0; i < c->n_chosen; i++) {
        pot_cache_unit *u = &c->units[c->chosen[i]];
        c->evicted[i] = name_of(c, u);
        leave(c, u);
    }
    *evicted = c->evicted;
    *n_evicted = c->n_chosen;
}

/* ---- steps --------------------------------------------------------------------------------------------------------- */

/* What was read ahead for `group`, or for a group between the last step's and it, is no longer claimed. */
static void end_ahead(pot_cache *c, uint32_t group) {
    uint32_t kept = 0, span = group > c->last ? group - c->last : group + c->n_groups - c->last;
    for (uint32_t i = 0; i < c->n_ahead; i++) {
        pot_cache_unit *u = &c->units[c->ahead[i]];
        uint32_t distance = u->group > c->last ? u->group - c->last : u->group + c->n_groups - c->last;
        if (distance <= span)
            pot_cache_flag(c, u, 0, POT_CACHE_AHEAD);
        else
            c->ahead[kept++] = c->ahead[i];
    }
    c->n_ahead = kept;
}

static void claim(pot_cache *c, pot_cache_unit *u) {
    POT_ASSERT(!(u->flags & POT_CACHE_CLAIMED) && c->n_step < c->groups[c->current].units);
    pot_cache_flag(c, u, POT_CACHE_CLAIMED, 0);
    c->step[c->n_step++] = (uint32_t)(u - c->units);
}

uint32_t pot_cache_begin(pot_cache *c, uint32_t group, const uint32_t *units, uint32_t n, bool scan, bool *hit) {
    uint32_t hits = 0;
    POT_ASSERT(!c->in_step && group < c->n_groups);
    pot_cache_settle(c);
    end_ahead(c, group);
    if (!scan) {
        if (group <= c->passed) pot_cache_tick(c);
        c->passed = group;
        c->groups[group].seen = c->now;
        c->groups[group].known = false;
    }
    c->last = c->current = group;
    c->in_step = true;
    c->scan = scan;
    for (uint32_t i = 0; i < n; i++) {
        pot_cache_unit *u = unit_at(c, group, units[i]);
        hit[i] = u->flags & POT_CACHE_RESIDENT;
        if (!scan) pot_cache_touch(c, u);
        if (!hit[i]) continue;
        claim(c, u);
        hits++;
    }
    *(scan ? &c->stats.scan_wanted : &c->stats.wanted) += n;
    *(scan ? &c->stats.scan_hits : &c->stats.hits) += hits;
    return hits;
}

/* A scan takes free slots and those of scans before it; of others', a few at a time, unless nothing else of it is left to wait for. */
static bool scan_may(const pot_cache *c, uint32_t slots) {
    uint32_t scanned = c->scanned - c->scanned_held, claimed = 0;
    if (slots <= c->free + scanned) return true;
    for (uint32_t i = 0; i < c->n_step && !claimed; i++) claimed = c->units[c->step[i]].flags & POT_CACHE_CLAIMED;
    return !claimed || c->scanned - scanned + slots <= c->scan_limit;
}

bool pot_cache_admit(pot_cache *c, uint32_t unit, const uint64_t **evicted, uint32_t *n_evicted) {
    POT_ASSERT(c->in_step);
    pot_cache_unit *u = unit_at(c, c->current, unit);
    POT_ASSERT(!(u->flags & POT_CACHE_RESIDENT));
    *n_evicted = 0;
    if (c->slots - c->held < u->slots || (c->scan && !scan_may(c, u->slots))) return false;
    bool found = choose_for(c, u->slots, POT_CACHE_NONE, NULL);
    POT_ASSERT(found);
    evict_chosen(c, evicted, n_evicted);
    enter(c, u, c->scan ? POT_CACHE_SCANNED : 0);
    claim(c, u);
    if (c->scan) return true;
    c->stats.admitted++;
    c->stats.evicted += *n_evicted;
    return true;
}

void pot_cache_release(pot_cache *c, uint32_t unit) {
    POT_ASSERT(c->in_step);
    pot_cache_flag(c, unit_at(c, c->current, unit), 0, POT_CACHE_CLAIMED);
}

void pot_cache_end(pot_cache *c) {
    POT_ASSERT(c->in_step);
    for (uint32_t i = 0; i < c->n_step; i++) pot_cache_flag(c, &c->units[c->step[i]], 0, POT_CACHE_CLAIMED);
    c->n_step = 0;
    c->in_step = false;
}

/* ---- ahead of time ------------------------------------------------------------------------------------------------- */

bool pot_cache_prefetch(pot_cache *c, uint32_t group, uint32_t unit, const uint64_t **evicted, uint32_t *n_evicted) {
    pot_cache_unit *u = unit_at(c, group, unit);
    *n_evicted = 0;
    if ((c->in_step && group == c->current) || (u->flags & POT_CACHE_RESIDENT)) return false;
    pot_cache_settle(c);
    uint32_t ahead = c->ahead_slots + u->slots;
    if ((double)ahead > AHEAD_PART * (double)c->slots || c->pinned_slots + ahead + c->largest > c->slots) return false;
    pot_cache_rank limit = pot_cache_rank_hinted(c, u);
    if (!choose_for(c, u->slots, c->in_step ? c->current : POT_CACHE_NONE, &limit)) return false;
    evict_chosen(c, evicted, n_evicted);
    enter(c, u, POT_CACHE_AHEAD | POT_CACHE_FORESEEN);
    c->ahead[c->n_ahead++] = (uint32_t)(u - c->units);
    c->stats.prefetched++;
    return true;
}

bool pot_cache_resident(const pot_cache *c, uint32_t group, uint32_t unit) {
    return unit_at(c, group, unit)->flags & POT_CACHE_RESIDENT;
}

void pot_cache_drop(pot_cache *c, uint32_t group, uint32_t unit) {
    pot_cache_unit *u = unit_at(c, group, unit);
    if (!(u->flags & POT_CACHE_RESIDENT)) return;
    for (uint32_t i = 0; i < c->n_ahead; i++)
        if (&c->units[c->ahead[i]] == u) c->ahead[i--] = c->ahead[--c->n_ahead];
    for (uint32_t i = 0; i < c->n_step; i++)
        if (&c->units[c->step[i]] == u) c->step[i--] = c->step[--c->n_step];
    leave(c, u);
}

/* ---- what is remembered -------------------------------------------------------------------------------------------- */

uint64_t pot_cache_usage(const pot_cache *c, uint32_t group, uint32_t unit) { return unit_at(c, group, unit)->usage; }

void pot_cache_set_usage(pot_cache *c, uint32_t group, uint32_t unit, uint64_t count) {
    unit_at(c, group, unit)->usage = count;
}

bool pot_cache_fill(pot_cache *c, uint32_t group, uint32_t unit) {
    pot_cache_unit *u = unit_at(c, group, unit);
    if ((u->flags & POT_CACHE_RESIDENT) || u->slots > c->free) return false;
    enter(c, u, 0);
    return true;
}

static bool may_pin(const pot_cache *c, uint32_t slots) {
    return (double)slots <= PINNED_PART * (double)c->slots && slots + c->ahead_slots + c->largest <= c->slots;
}

/* From the hottest on: a free pin is taken, or the coldest pin that is beaten by the margin.  The coldest pins are found from the end. */
void pot_cache_repin(pot_cache *c) {
    uint32_t n = 0;
    POT_ASSERT(!c->in_step);
    if (c->policy != POT_CACHE_LFU_DECAY) return;
    for (uint32_t i = 0; i < c->n_units; i++)
        if (c->units[i].flags & POT_CACHE_RESIDENT) c->order[n++] = i;
    pot_cache_sort(c, n);
    for (uint32_t i = 0, end = n; i < end; i++) {
        pot_cache_unit *u = &c->units[c->order[i]];
        if (u->usage <= PIN_MARGIN) return;
        if (u->flags & POT_CACHE_PINNED) continue;
        while (!may_pin(c, c->pinned_slots + u->slots)) {
            while (end > i + 1 && !(c->units[c->order[end - 1]].flags & POT_CACHE_PINNED)) end--;
            if (end <= i + 1) return;
            pot_cache_unit *coldest = &c->units[c->order[end - 1]];
            if ((double)u->usage <= 1.25 * (double)coldest->usage + PIN_MARGIN) return;
            pot_cache_flag(c, coldest, 0, POT_CACHE_PINNED);
            end--;
        }
        pot_cache_flag(c, u, POT_CACHE_PINNED, 0);
    }
}

void pot_cache_get_stats(pot_cache_stats *out, const pot_cache *c) {
    *out = c->stats;
    out->slots = c->slots;
    out->slots_used = c->slots - c->free;
}
