/* What a unit is worth to each policy, and in which order units go. */
#include <string.h>

#include "common/mem.h"
#include "placement/cache_internal.h"

#define HINT 0.5           /* what a hint is worth, in wants */
#define PROTECTED_PART 0.8 /* of the slots: SLRU */
#define LATELY 4.0  /* LFU_DECAY: what it is worth in wants to be among the latest token's: 2 to 6 are equally good */
#define HOTTEST 4.0 /* wants, with which the hottest unit of earlier runs begins */
#define RENORMAL 1e100 /* weight at which all values are divided by it */

static const char *const names[POT_CACHE_POLICIES] = {
#define X(name, text) text,
    POT_CACHE_POLICY_MAP(X)
#undef X
};

const char *pot_cache_policy_name(pot_cache_policy policy) { return names[policy]; }

pot_status pot_cache_policy_find(pot_cache_policy *out, const char *name, pot_err *err) {
    for (int i = 0; i < POT_CACHE_POLICIES; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (pot_cache_policy)i;
            return POT_OK;
        }
    return pot_fail(err, POT_USAGE, "there is no cache policy `%s`; there are lfu-decay, lfu, lru, lfru, slru and gdsf",
                    name);
}

/* ---- values -------------------------------------------------------------------------------------------------------- */

/* SLRU: when protected units take more than their part, the group that wants more of it gives up its oldest. */
static void unprotect_oldest(pot_cache *c, pot_cache_group *g) {
    while ((double)c->protected_slots > PROTECTED_PART * (double)c->slots) {
        pot_cache_unit *oldest = NULL;
        for (uint32_t i = 0; i < g->n_residents; i++) {
            pot_cache_unit *u = &c->units[g->residents[i]];
            if ((u->flags & POT_CACHE_PROTECTED) && (!oldest || u->value < oldest->value)) oldest = u;
        }
        if (!oldest) return;
        oldest->flags &= (uint8_t)~POT_CACHE_PROTECTED;
        oldest->value = c->now; /* once more through the first segment, as if it had come now */
        c->protected_slots -= oldest->slots;
    }
}

static void gdsf_value(const pot_cache *c, pot_cache_unit *u) {
    u->value = c->inflation + u->second * (double)u->cost / (double)u->slots;
}

void pot_cache_touch(pot_cache *c, pot_cache_unit *u) {
    pot_cache_group *g = &c->groups[u->group];
    g->known = false;
    u->usage++;
    u->last = c->now;
    switch (c->policy) {
    case POT_CACHE_LFU_DECAY: u->value += c->weight; break;
    case POT_CACHE_LFU: u->value += 1; break;
    case POT_CACHE_LFRU:
        u->value += 1;
        u->second = c->now;
        break;
    case POT_CACHE_SLRU:
        if ((u->flags & POT_CACHE_RESIDENT) && !(u->flags & (POT_CACHE_SCANNED | POT_CACHE_PROTECTED))) {
            u->flags |= POT_CACHE_PROTECTED;
            c->protected_slots += u->slots;
        }
        u->value = c->now;
        unprotect_oldest(c, g);
        break;
    case POT_CACHE_GDSF:
        u->second += 1;
        gdsf_value(c, u);
        break;
    default: u->value = c->now; break; /* LRU */
    }
    if (u->flags & POT_CACHE_FORESEEN) c->stats.prefetch_used++;
    pot_cache_flag(c, u, 0, POT_CACHE_SCANNED | POT_CACHE_FORESEEN);
}

void pot_cache_entered(pot_cache *c, pot_cache_unit *u) {
    if (c->policy == POT_CACHE_GDSF) gdsf_value(c, u);
}

void pot_cache_left(pot_cache *c, pot_cache_unit *u) {
    if (c->policy == POT_CACHE_GDSF) {
        if (!(u->flags & POT_CACHE_SCANNED) && u->value > c->inflation) c->inflation = u->value;
        u->second = 0;
    }
    if (u->flags & POT_CACHE_PROTECTED) c->protected_slots -= u->slots;
}

void pot_cache_tick(pot_cache *c) {
    c->now++;
    c->weight *= c->growth;
    if (c->policy != POT_CACHE_LFU_DECAY || c->weight < RENORMAL) return;
    for (uint32_t i = 0; i < c->n_units; i++) c->units[i].value /= c->weight;
    c->weight = 1;
}

void pot_cache_settle(pot_cache *c) {
    if (c->settled) return;
    c->settled = true;
    uint64_t most = 0;
    for (uint32_t i = 0; i < c->n_units; i++)
        if (c->units[i].usage > most) most = c->units[i].usage;
    if (!most) return;
    for (uint32_t i = 0; i < c->n_units; i++) {
        pot_cache_unit *u = &c->units[i];
        if (c->policy == POT_CACHE_LFU_DECAY) u->value = HOTTEST * (double)u->usage / (double)most;
        if (c->policy == POT_CACHE_LFU || c->policy == POT_CACHE_LFRU) u->value = (double)u->usage;
    }
}

/* ---- ranks --------------------------------------------------------------------------------------------------------- */

/* Values are taken as of the unit's own group: one that this token has not come to yet has missed one chance less. */
pot_cache_rank pot_cache_rank_of(const pot_cache *c, const pot_cache_unit *u) {
    bool coming = u->group > c->passed;
    pot_cache_rank r = {u->flags & POT_CACHE_SCANNED ? 0 : 1, u->value, 0};
    bool lately = u->last && u->last == c->groups[u->group].seen;
    switch (c->policy) {
    case POT_CACHE_LFU_DECAY:
        if (coming) r.value *= c->growth;
        if (lately) r.value += LATELY * c->weight;
        break;
    case POT_CACHE_SLRU:
        if (u->flags & POT_CACHE_PROTECTED) r.tier = 2;
        if (coming) r.value += 1;
        break;
    case POT_CACHE_LRU:
        if (coming) r.value += 1;
        break;
    case POT_CACHE_LFRU: r.second = u->second + coming; break;
    default: break;
    }
    if (lately && c->policy != POT_CACHE_LFU_DECAY && r.tier) r.tier = 3;
    return r;
}

pot_cache_rank pot_cache_rank_hinted(const pot_cache *c, const pot_cache_unit *u) {
    pot_cache_rank r = pot_cache_rank_of(c, u);
    switch (c->policy) {
    case POT_CACHE_LFU_DECAY: r.value += HINT * c->weight; break;
    case POT_CACHE_LFU:
    case POT_CACHE_LFRU: r.value += HINT; break;
    case POT_CACHE_GDSF: r.value = c->inflation + HINT * (double)u->cost / (double)u->slots; break;
    default: r.value = c->now - 1.0 / HINT; break; /* as if it had been wanted a moment ago */
    }
    return r;
}

int pot_cache_rank_compare(const pot_cache_rank *a, const pot_cache_rank *b) {
    if (a->tier != b->tier) return a->tier < b->tier ? -1 : 1;
    if (a->value != b->value) return a->value < b->value ? -1 : 1;
    if (a->second != b->second) return a->second < b->second ? -1 : 1;
    return 0;
}

/* ---- sorting ------------------------------------------------------------------------------------------------------- */

static bool hotter(const pot_cache *c, uint32_t a, uint32_t b) {
    const pot_cache_unit *x = &c->units[a], *y = &c->units[b];
    if (x->usage != y->usage) return x->usage > y->usage;
    uint32_t i = a - c->groups[x->group].first, j = b - c->groups[y->group].first;
    return i != j ? i < j : x->group < y->group;
}

static void sink(const pot_cache *c, uint32_t *order, uint32_t at, uint32_t n) {
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n) return;
        if (child + 1 < n && hotter(c, order[child], order[child + 1])) child++; /* the colder one */
        if (!hotter(c, order[at], order[child])) return;
        uint32_t swap = order[at];
        order[at] = order[child];
        order[child] = swap;
        at = child;
    }
}

/* A heap with the coldest on top, taken from the end: no memory is needed, unlike qsort's. */
void pot_cache_sort(pot_cache *c, uint32_t n) {
    for (uint32_t i = n / 2; i-- > 0;) sink(c, c->order, i, n);
    for (uint32_t i = n; i-- > 1;) {
        uint32_t coldest = c->order[0];
        c->order[0] = c->order[i];
        c->order[i] = coldest;
        sink(c, c->order, 0, i);
    }
}
