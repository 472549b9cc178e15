/* What cache.c (slots, claims) and cache_policies.c (who goes first) share. */
#ifndef POT_PLACEMENT_CACHE_INTERNAL_H
#define POT_PLACEMENT_CACHE_INTERNAL_H

#include "placement/cache.h"

#define POT_CACHE_NONE UINT32_MAX

enum pot_cache_flag {
    POT_CACHE_RESIDENT = 1,
    POT_CACHE_CLAIMED = 2,    /* by the step */
    POT_CACHE_AHEAD = 4,      /* read ahead: claimed until its group has had a step */
    POT_CACHE_PINNED = 8,     /* among the hottest by usage */
    POT_CACHE_SCANNED = 16,   /* admitted by a scan and not wanted by another step since */
    POT_CACHE_PROTECTED = 32, /* SLRU: wanted again while it was resident */
    POT_CACHE_CHOSEN = 64,    /* goes, if enough others are found */
    POT_CACHE_FORESEEN = 128, /* came by reading ahead and has not been wanted yet */
    POT_CACHE_HELD = POT_CACHE_CLAIMED | POT_CACHE_AHEAD | POT_CACHE_PINNED
};

typedef struct pot_cache_unit {
    double value; /* LFU_DECAY: count in wants of the first token; LRU, SLRU: token; LFU, LFRU: count; GDSF: priority */
    double second; /* LFRU: token; GDSF: count since it came */
    uint64_t usage;
    uint32_t place; /* in its group's list of residents */
    uint32_t group;
    uint32_t last; /* token that wanted it last, 0 = none */
    float cost;
    uint16_t slots;
    uint8_t flags;
} pot_cache_unit;

typedef struct pot_cache_group {
    uint32_t first, units;      /* in units[] of the cache */
    uint32_t *residents;        /* [n_residents] in no order */
    uint32_t n_residents, used; /* used: slots */
    uint32_t seen;              /* token of its latest step that was no scan */
    uint32_t least;             /* who goes first, or POT_CACHE_NONE, if known */
    bool known;
} pot_cache_group;

struct pot_cache {
    pot_cache_policy policy;
    uint32_t n_groups, n_units, slots, largest;
    pot_cache_group *groups; /* [n_groups] */
    pot_cache_unit *units;   /* [n_units] group by group */
    uint32_t *lists;         /* [n_units] what the groups' residents point into */
    uint32_t *step;          /* [n_step] claimed by the step */
    uint32_t *ahead;         /* [n_ahead] read ahead */
    uint32_t *order;         /* [n_units] for sorting */
    uint32_t *chosen;        /* [n_chosen] to go */
    uint64_t *evicted;       /* [largest] the same, as the caller gets them */
    uint32_t n_step, n_ahead, n_chosen;
    uint32_t free, held, ahead_slots, pinned_slots, scanned, scanned_held; /* slots; held: of units that cannot go */
    uint32_t protected_slots;                                              /* SLRU */
    uint32_t scan_limit;                                                   /* slots */
    uint32_t now;                                                          /* tokens */
    uint32_t passed;                                                       /* the group where the token is */
    uint32_t last;                                                         /* group of the last step, scan or not */
    uint32_t current;                                                      /* group of the step */
    bool in_step, scan, settled;
    double growth, weight; /* weight: of a want of this token, growth times the last one's */
    double inflation;      /* GDSF */
    pot_cache_stats stats;
};

/* A step that is no scan wants `unit`, resident or not. */
void pot_cache_touch(pot_cache *cache, pot_cache_unit *unit);
/* After it became resident, and when it has gone. */
void pot_cache_entered(pot_cache *cache, pot_cache_unit *unit);
void pot_cache_left(pot_cache *cache, pot_cache_unit *unit);
/* A new token: older wants weigh less. */
void pot_cache_tick(pot_cache *cache);
/* Makes what was set by pot_cache_set_usage the policy's start; does nothing the second time. */
void pot_cache_settle(pot_cache *cache);

/* Who goes first: the lower rank. */
typedef struct pot_cache_rank {
    int tier;
    double value, second;
} pot_cache_rank;
pot_cache_rank pot_cache_rank_of(const pot_cache *cache, const pot_cache_unit *unit);
int pot_cache_rank_compare(const pot_cache_rank *a, const pot_cache_rank *b);
/* Of an absent unit that a hint names. */
pot_cache_rank pot_cache_rank_hinted(const pot_cache *cache, const pot_cache_unit *unit);

/* Sorts order[0..n): hottest by usage first; of equal ones, the lower number within its group. */
void pot_cache_sort(pot_cache *cache, uint32_t n);
/* Changes flags and all sums over them. */
void pot_cache_flag(pot_cache *cache, pot_cache_unit *unit, unsigned on, unsigned off);

#endif
