/* Belady's rule: of all that may go, the unit goes that is wanted last.  Keys lie in a heap; one that is no longer true is thrown away
 * when it comes up. */
#include "placement/cache_belady.h"

#include "common/mem.h"

#define NEVER UINT64_MAX

typedef struct entry {
    uint64_t next; /* place in trace->units where it is wanted again */
    uint32_t unit;
} entry;

typedef struct state {
    const pot_cache_trace *trace;
    uint64_t *next;    /* [accesses] where the same unit is wanted again */
    uint64_t *soonest; /* [n_units] of a resident unit: its next access */
    bool *resident;
    entry *heap; /* [accesses + 1] furthest on top */
    size_t n_heap;
    uint32_t used, slots;
} state;

static void push(state *s, uint32_t unit, uint64_t next) {
    size_t at = s->n_heap++;
    s->soonest[unit] = next;
    for (; at && s->heap[(at - 1) / 2].next < next; at = (at - 1) / 2) s->heap[at] = s->heap[(at - 1) / 2];
    s->heap[at] = (entry){next, unit};
}

static void pop(state *s) {
    entry last = s->heap[--s->n_heap];
    size_t at = 0;
    for (size_t child = 1; child < s->n_heap; at = child, child = 2 * at + 1) {
        if (child + 1 < s->n_heap && s->heap[child + 1].next > s->heap[child].next) child++;
        if (s->heap[child].next <= last.next) break;
        s->heap[at] = s->heap[child];
    }
    if (s->n_heap) s->heap[at] = last;
}

/* Evicts the unit that is wanted last, if that is at `from` or later. */
static bool evict(state *s, uint64_t from) {
    while (s->n_heap) {
        entry top = s->heap[0];
        if (s->resident[top.unit] && s->soonest[top.unit] == top.next) {
            if (top.next < from) return false;
            pop(s);
            s->resident[top.unit] = false;
            s->used--;
            return true;
        }
        pop(s);
    }
    return false;
}

static uint32_t one_by_one_step(state *s, size_t begin, size_t end) {
    uint32_t hits = 0;
    for (size_t i = begin; i < end; i++) {
        uint32_t unit = s->trace->units[i];
        if (s->resident[unit]) {
            hits++;
        } else {
            if (s->used == s->slots) (void)evict(s, 0);
            s->resident[unit] = true;
            s->used++;
        }
        push(s, unit, s->next[i]);
    }
    return hits;
}

/* What the step wants has keys within the step until its end, so that it cannot go.  Without room, a unit is read, used, and not kept. */
static uint32_t two_phase_step(state *s, size_t begin, size_t end) {
    uint32_t hits = 0;
    for (size_t i = begin; i < end; i++) hits += s->resident[s->trace->units[i]];
    for (size_t i = begin; i < end; i++) {
        uint32_t unit = s->trace->units[i];
        if (s->resident[unit] || (s->used == s->slots && !evict(s, end))) continue;
        s->resident[unit] = true;
        s->used++;
    }
    for (size_t i = begin; i < end; i++)
        if (s->resident[s->trace->units[i]]) push(s, s->trace->units[i], s->next[i]);
    return hits;
}

static void find_next(state *s, uint64_t *last, size_t n) {
    for (uint32_t u = 0; u < s->trace->n_units; u++) last[u] = NEVER;
    for (size_t i = n; i-- > 0;) {
        s->next[i] = last[s->trace->units[i]];
        last[s->trace->units[i]] = i;
    }
}

pot_status pot_belady(uint64_t *total, uint32_t *hits, const pot_cache_trace *trace, uint32_t slots, bool one_by_one,
                      pot_err *err) {
    size_t n = trace->begin[trace->n_steps];
    state s = {.trace = trace, .slots = slots};
    pot_status status = POT_OK;
    if (!slots) return pot_fail(err, POT_LIMIT, "the best cache: no slots");
    s.next = pot_alloc_array(n, sizeof *s.next);
    s.soonest = pot_alloc_array(trace->n_units, sizeof *s.soonest);
    s.resident = pot_alloc_array(trace->n_units, sizeof *s.resident);
    s.heap = pot_alloc_array(n + 1, sizeof *s.heap);
    if (!s.next || !s.soonest || !s.resident || !s.heap) {
        status = pot_fail(err, POT_NO_MEMORY, "the best cache: no memory for %zu accesses", n);
    } else {
        find_next(&s, s.soonest, n);
        *total = 0;
        for (size_t i = 0; i < trace->n_steps; i++) {
            uint32_t h = one_by_one ? one_by_one_step(&s, trace->begin[i], trace->begin[i + 1])
                                    : two_phase_step(&s, trace->begin[i], trace->begin[i + 1]);
            if (hits) hits[i] = h;
            *total += h;
        }
    }
    pot_free(s.next);
    pot_free(s.soonest);
    pot_free(s.resident);
    pot_free(s.heap);
    return status;
}
