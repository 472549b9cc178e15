/* What would help: the plan once more for each change of a list, one at a time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/plan.h"
#include "common/mem.h"

typedef struct search {
    const plan_task *task;
    const plan_cluster *cluster;
    const plan_result *result;
    plan_ideas *out;
    plan_cluster *changed; /* where changes are made */
    plan_result *again;
} search;

/* What cannot work, or helps too little, is no idea. */
static pot_status try(search *s, const char *map, const char *words, pot_err *err) {
    pot_err why;
    plan_task task = *s->task;
    if (map) task.map = map;
    pot_status status = plan_compute(s->again, &task, s->changed, &why);
    if (status == POT_LIMIT) return POT_OK;
    if (status) return pot_fail(err, status, "%s", why.text);
    if (s->again->token_s < 0.995 * s->result->token_s && s->out->n < PLAN_MAX_IDEAS) {
        plan_idea *i = &s->out->of[s->out->n++];
        snprintf(i->words, sizeof i->words, "%s", words);
        i->token_s = s->again->token_s;
    }
    return POT_OK;
}

/* ---- changes of machines ------------------------------------------------------------------------------------------------------- */

static bool disk_is_used(const search *s) { return s->result->time.bytes[POT_COST_DISK] > 0; }
static bool links_are_used(const search *s) { return s->cluster->n > 1; }
static bool no_gpu(const search *s) { return !s->cluster->machines[0].vram_bytes; }

/* Not a machine of which more must be known than the room for experts. */
static void set_ram(plan_machine *m, uint64_t bytes) {
    m->ram_bytes = bytes;
    m->machine_bytes = 0;
}

static void more_ram(plan_cluster *c, const search *s) {
    for (uint32_t w = 0; w < c->n; w++) set_ram(&c->machines[w], 2 * s->result->ram_bytes[w]);
}

static void speed_up(plan_cluster *c, pot_cost_tier tier) {
    for (uint32_t w = 0; w < c->n; w++) c->machines[w].speed.bytes_per_s[tier] *= 2;
}
static void faster_disks(plan_cluster *c, const search *s) {
    (void)s;
    speed_up(c, POT_COST_DISK);
}
static void faster_memory(plan_cluster *c, const search *s) {
    (void)s;
    c->machines[0].dense_bytes_per_s *= 2;
    speed_up(c, POT_COST_RAM);
}

static void faster_links(plan_cluster *c, const search *s) {
    (void)s;
    c->port_bytes_per_s *= 2;
    for (uint32_t w = 0; w < c->n; w++) {
        c->machines[w].speed.link_s /= 2;
        c->machines[w].speed.link_bytes_per_s *= 2;
    }
}

static void a_gpu(plan_cluster *c, const search *s) {
    (void)s;
    c->machines[0].vram_bytes = (uint64_t)24 << 30;
    c->machines[0].speed.bytes_per_s[POT_COST_VRAM] = PLAN_VRAM_BYTES_PER_S;
}

static void faster_attention(plan_cluster *c, const search *s) {
    (void)s;
    c->operations_per_s *= 2;
}

static const struct {
    const char *words;
    bool (*of_use)(const search *s); /* NULL = always */
    void (*make)(plan_cluster *c, const search *s);
} changes[] = {
    {"twice the RAM for experts on every machine", disk_is_used, more_ram},
    {"disks that read twice as fast", disk_is_used, faster_disks},
    {"memory that reads twice as fast on every machine", NULL, faster_memory},
    {"links of half the delay and twice the rate", links_are_used, faster_links},
    {"a GPU of 24 GiB, 400 GB/s for the experts of worker 0", no_gpu, a_gpu},
    {"a processor that computes attention twice as fast", NULL, faster_attention},
};

static pot_status try_changes(search *s, pot_err *err) {
    pot_status status = POT_OK;
    for (size_t i = 0; !status && i < sizeof changes / sizeof *changes; i++) {
        if (changes[i].of_use && !changes[i].of_use(s)) continue;
        *s->changed = *s->cluster;
        changes[i].make(s->changed, s);
        status = try(s, NULL, changes[i].words, err);
    }
    return status;
}

/* ---- another worker, another map ------------------------------------------------------------------------------------------------- */

/* Of the last one's kind.  It has no coordinator to feed, but is given no more memory for experts either. */
static pot_status try_worker(search *s, pot_err *err) {
    char words[160];
    plan_cluster *c = s->changed;
    if (s->cluster->n == POT_MAX_WORKERS) return POT_OK;
    *c = *s->cluster;
    const uint32_t last = c->n - 1;
    snprintf(words, sizeof words, "one more worker like %.60s%s", c->machines[last].name,
             c->machines[last].speed.remote ? "" : ", over 10 Gbit/s Ethernet");
    plan_add_worker(c);
    set_ram(&c->machines[c->n - 1], s->result->ram_bytes[last]);
    return try(s, NULL, words, err);
}

static pot_status try_maps(search *s, pot_err *err) {
    static const char *const maps[] = {"contiguous", "sliced"};
    char words[160];
    pot_status status = POT_OK;
    *s->changed = *s->cluster;
    for (size_t i = 0; !status && s->cluster->n > 1 && i < sizeof maps / sizeof *maps; i++) {
        snprintf(words, sizeof words, "--map %s", maps[i]);
        if (strcmp(maps[i], s->task->map) != 0) status = try(s, maps[i], words, err);
    }
    return status;
}

static int best_first(const void *a, const void *b) {
    const plan_idea *x = a, *y = b;
    return (x->token_s > y->token_s) - (x->token_s < y->token_s);
}

pot_status plan_find_ideas(plan_ideas *out, const plan_task *task, const plan_cluster *cluster,
                           const plan_result *result, pot_err *err) {
    search s = {task, cluster, result, out, pot_alloc(sizeof *s.changed), pot_alloc(sizeof *s.again)};
    pot_status status = POT_OK;
    out->n = 0;
    if (!s.changed || !s.again) status = pot_fail(err, POT_NO_MEMORY, "no memory for a plan");
    if (!status) status = try_changes(&s, err);
    if (!status) status = try_worker(&s, err);
    if (!status) status = try_maps(&s, err);
    qsort(out->of, (size_t)out->n, sizeof *out->of, best_first);
    pot_free(s.changed);
    pot_free(s.again);
    return status;
}
