/* E[max over workers] of a layer, see cost.h.
 *
 *   E[max] = integral of 1 - P(all T_w <= x) dx; the times are few, so this is a sum over them in ascending order.
 *   F_w(n, x) = P(T_w <= x | n units): over m = b + c (not on the GPU), binomial, and c of these, binomial.
 *   cut:   P = product over w of sum over n of Binomial(k, units/k)(n) * F_w(n, x)
 *   whole: P = k! [t^k] product over w of sum over n of (q_w t)^n / n! * F_w(n, x): polynomials up to t^k are multiplied.
 */
#include "placement/cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "placement/map.h"

enum { GRID = 512, SIZE = POT_COST_MAX_K + 1 };

static const char *const tier_texts[] = {
#define X(name, text) text,
    POT_COST_TIER_MAP(X)
#undef X
};

const char *pot_cost_tier_text(pot_cost_tier tier) { return tier_texts[tier]; }

/* One worker in one layer, in seconds. */
typedef struct task {
    double chance;                              /* whole: its part of all units; cut: units / k */
    double away, common;                        /* chance that a unit is not in VRAM; 0 or 1: asked by every token */
    double disk;                                /* chance that a unit that is not in VRAM is on disk */
    double base_s, item_s;                      /* of a message, of each unit */
    double vram_s, ram_s, disk_s;               /* a unit */
    double vram_common_s, ram_common_s, tail_s; /* tail: the last unit that comes from disk is computed */
} task;

typedef struct workspace {
    uint32_t n, k;
    bool whole;
    double inverse_factorial[SIZE];
    double *times; /* candidates, ascending */
    size_t n_times;
    double *tables; /* [n][2][k + 1][k + 1]: chances of m of n, and of c of m */
    task tasks[POT_MAX_WORKERS];
} workspace;

/* ---- distributions ---------------------------------------------------------------------------------------------------------- */

/* out[i] = chance of i in n draws of chance p. */
static void binomial(double *out, uint32_t n, double p) {
    memset(out, 0, (n + 1) * sizeof *out);
    out[0] = 1;
    for (uint32_t draw = 0; draw < n; draw++)
        for (uint32_t i = draw + 2; i-- > 0;) out[i] = out[i] * (1 - p) + (i ? out[i - 1] * p : 0);
}

static double vram_time(const task *t, uint32_t a) { return t->vram_common_s + a * t->vram_s; }
static double ram_time(const task *t, uint32_t m) { return t->ram_common_s + m * t->ram_s; }
static double disk_time(const task *t, uint32_t c) { return c ? c * t->disk_s + t->tail_s : 0; }
static double base_time(const task *t, uint32_t n) { return n || t->common > 0 ? t->base_s + n * t->item_s : 0; }

static double *table(const workspace *ws, uint32_t worker, uint32_t draws, bool disk) {
    size_t row = ws->k + 1;
    return ws->tables + ((2 * (size_t)worker + disk) * row + draws) * row;
}

static void fill_tables(const workspace *ws) {
    for (uint32_t w = 0; w < ws->n; w++)
        for (uint32_t draws = 0; draws <= ws->k; draws++) {
            binomial(table(ws, w, draws, false), draws, ws->tasks[w].away);
            binomial(table(ws, w, draws, true), draws, ws->tasks[w].disk);
        }
}

/* P(T <= x | n units); x is one of the candidates, so that a hair of tolerance decides ties. */
static double below(const workspace *ws, uint32_t worker, uint32_t n, double x) {
    const task *t = &ws->tasks[worker];
    const double *chance_m = table(ws, worker, n, false);
    double sum = 0, left = x * (1 + 1e-12) - base_time(t, n);
    if (left < 0) return 0;
    for (uint32_t m = 0; m <= n; m++) {
        if (chance_m[m] <= 0 || vram_time(t, n - m) > left || ram_time(t, m) > left) continue;
        const double *chance_c = table(ws, worker, m, true);
        double within = 0;
        for (uint32_t c = 0; c <= m && disk_time(t, c) <= left; c++) within += chance_c[c];
        sum += chance_m[m] * within;
    }
    return sum;
}

static double all_below(const workspace *ws, double x) {
    double chance_n[SIZE], product[SIZE] = {1}, together = 1;
    for (uint32_t w = 0; w < ws->n; w++) {
        const task *t = &ws->tasks[w];
        double factor[SIZE], sum = 0;
        if (!ws->whole) {
            binomial(chance_n, ws->k, t->chance);
            for (uint32_t n = 0; n <= ws->k; n++)
                if (chance_n[n] > 0) sum += chance_n[n] * below(ws, w, n, x);
            together *= sum;
            continue;
        }
        double power = 1;
        for (uint32_t n = 0; n <= ws->k; n++, power *= t->chance)
            factor[n] = power > 0 ? power * ws->inverse_factorial[n] * below(ws, w, n, x) : 0;
        for (uint32_t d = ws->k + 1; d-- > 0;) {
            double c = 0;
            for (uint32_t n = 0; n <= d; n++) c += factor[n] * product[d - n];
            product[d] = c;
        }
    }
    return ws->whole ? product[ws->k] / ws->inverse_factorial[ws->k] : together;
}

/* ---- times ------------------------------------------------------------------------------------------------------------------- */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* All that a worker's time can be is base(n) + one of three; more than GRID of them are thinned, each to the next above it. */
static pot_status list_times(workspace *ws, pot_err *err) {
    size_t most = (size_t)ws->n * (ws->k + 1) * (ws->k + 1) * 3, n = 0;
    double *times = pot_alloc_array(most, sizeof *times);
    if (!times) return pot_fail(err, POT_NO_MEMORY, "no memory for %zu times", most);
    for (uint32_t w = 0; w < ws->n; w++) {
        const task *t = &ws->tasks[w];
        for (uint32_t count = 0; count <= ws->k; count++)
            for (uint32_t i = 0; i <= count; i++) {
                times[n++] = base_time(t, count) + vram_time(t, i);
                times[n++] = base_time(t, count) + ram_time(t, i);
                times[n++] = base_time(t, count) + disk_time(t, i);
            }
    }
    qsort(times, n, sizeof *times, ascending);
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (i + 1 == n || times[i + 1] > times[i] * (1 + 1e-9)) times[kept++] = times[i];
    size_t step = (kept + GRID - 1) / GRID, thin = 0;
    for (size_t i = 0; i < kept; i++)
        if ((kept - 1 - i) % step == 0) times[thin++] = times[i];
    ws->times = times;
    ws->n_times = thin;
    return POT_OK;
}

static pot_status expected_maximum(double *out, workspace *ws, pot_err *err) {
    pot_status status = list_times(ws, err);
    if (status) return status;
    fill_tables(ws);
    double sum = 0, reached = 0, chance = 0; /* of a maximum at or below the time before */
    for (size_t i = 0; i < ws->n_times && chance < 1 - 1e-12; i++) {
        sum += (ws->times[i] - reached) * (1 - chance);
        reached = ws->times[i];
        chance = all_below(ws, reached);
    }
    pot_free(ws->times);
    *out = sum;
    return POT_OK;
}

/* ---- a layer ----------------------------------------------------------------------------------------------------------------- */

static double per(double bytes, double bytes_per_s) { return bytes_per_s > 0 ? bytes / bytes_per_s : 0; }

static bool adds_up(const pot_cost_worker *w, const pot_cost_load *l, uint32_t k) {
    double sum = 0;
    bool used[POT_COST_TIERS];
    for (int t = 0; t < POT_COST_TIERS; t++) {
        if (!(l->share[t] >= 0 && l->common_bytes[t] >= 0)) return false;
        used[t] = (l->units > 0 && l->share[t] > 0 && l->unit_bytes > 0) || l->common_bytes[t] > 0;
        sum += l->share[t];
    }
    used[POT_COST_RAM] |= used[POT_COST_DISK]; /* it is computed from there */
    for (int t = 0; t < POT_COST_TIERS; t++)
        if (used[t] && !(w->bytes_per_s[t] > 0)) return false;
    return l->units >= 0 && l->units <= k * (1 + 1e-6) && (l->units <= 0 || fabs(sum - 1) < 1e-6) && l->unit_bytes >= 0;
}

/* Only the first `parts` parts take time. */
static void make_task(task *out, const pot_cost_worker *w, const pot_cost_layer *layer, const pot_cost_load *l,
                      double all_units, int parts) {
    double away = l->units > 0 ? l->share[POT_COST_RAM] + l->share[POT_COST_DISK] : 0;
    double whole = all_units > 0 ? l->units / all_units : 0, cut = layer->k ? l->units / layer->k : 0;
    *out = (task){.chance = layer->whole ? whole : fmin(cut, 1),
                  .away = fmin(away, 1),
                  .disk = away > 0 ? fmin(l->share[POT_COST_DISK] / away, 1) : 0};
    for (int t = 0; t < POT_COST_TIERS; t++)
        if (l->common_bytes[t] > 0) out->common = 1;
    const double *rate = w->bytes_per_s;
    if (parts > 0) out->base_s = w->link_s + per(layer->message_bytes, w->link_bytes_per_s);
    if (parts > 1) out->item_s = w->item_s;
    if (parts > 2) {
        out->vram_s = per(l->unit_bytes, rate[POT_COST_VRAM]);
        out->vram_common_s = per(l->common_bytes[POT_COST_VRAM], rate[POT_COST_VRAM]);
    }
    if (parts > 3) {
        out->ram_s = per(l->unit_bytes, rate[POT_COST_RAM]);
        out->ram_common_s = per(l->common_bytes[POT_COST_RAM] + l->common_bytes[POT_COST_DISK], rate[POT_COST_RAM]);
    }
    if (parts > 4) {
        out->disk_s = per(l->unit_bytes, rate[POT_COST_DISK]);
        out->tail_s = out->ram_s;
        out->base_s += per(l->common_bytes[POT_COST_DISK], rate[POT_COST_DISK]);
    }
}

static double units_of_all(const pot_cost_cluster *cluster, const pot_cost_layer *layer) {
    double all = 0;
    for (uint32_t w = 0; w < cluster->n_workers; w++) all += layer->loads[w].units;
    return all;
}

static pot_status begin(workspace **out, const pot_cost_cluster *cluster, const pot_cost_layer *layer, pot_err *err) {
    if (!cluster->n_workers || cluster->n_workers > POT_MAX_WORKERS || layer->k > POT_COST_MAX_K)
        return pot_fail(err, POT_BUG, "a cost of %u workers and %u experts a token was asked for", cluster->n_workers,
                        layer->k);
    for (uint32_t w = 0; w < cluster->n_workers; w++)
        if (!adds_up(&cluster->workers[w], &layer->loads[w], layer->k))
            return pot_fail(err, POT_BUG, "the load of worker %u does not add up", w);
    workspace *ws = pot_alloc(sizeof *ws);
    uint32_t k = layer->k && units_of_all(cluster, layer) > 0 ? layer->k : 0;
    double *tables = pot_alloc_array((size_t)cluster->n_workers * 2 * (k + 1) * (k + 1), sizeof *tables);
    if (!ws || !tables) {
        pot_free(ws);
        pot_free(tables);
        return pot_fail(err, POT_NO_MEMORY, "no memory for a cost");
    }
    ws->tables = tables;
    ws->n = cluster->n_workers;
    ws->k = k;
    ws->whole = layer->whole;
    ws->inverse_factorial[0] = 1;
    for (uint32_t i = 1; i < SIZE; i++) ws->inverse_factorial[i] = ws->inverse_factorial[i - 1] / i;
    *out = ws;
    return POT_OK;
}

static void end(workspace *ws) {
    pot_free(ws->tables);
    pot_free(ws);
}

static void add_bytes(pot_cost_time *total, const pot_cost_cluster *cluster, const pot_cost_layer *layer,
                      const workspace *ws) {
    double remote = 0;
    for (uint32_t w = 0; w < cluster->n_workers; w++) {
        const pot_cost_load *l = &layer->loads[w];
        for (int i = 0; i < POT_COST_TIERS; i++)
            total->bytes[i] += l->units * l->unit_bytes * l->share[i] + l->common_bytes[i];
        const task *t = &ws->tasks[w];
        double asked = t->common > 0 ? 1 : 1 - pow(1 - t->chance, ws->k);
        total->asked += asked;
        total->port_s += asked * cluster->workers[w].message_s;
        if (cluster->workers[w].remote) remote += asked;
    }
    if (remote > 1) total->port_s += (remote - 1) * per(layer->message_bytes, cluster->port_bytes_per_s);
}

pot_status pot_cost_add_layer(pot_cost_time *total, const pot_cost_cluster *cluster, const pot_cost_layer *layer,
                              pot_err *err) {
    enum { PARTS = 5 };
    workspace *ws;
    pot_status status = begin(&ws, cluster, layer, err);
    if (status) return status;
    double reached[PARTS + 1] = {0}, all = units_of_all(cluster, layer);
    for (int parts = 1; !status && parts <= PARTS; parts++) {
        for (uint32_t w = 0; w < ws->n; w++)
            make_task(&ws->tasks[w], &cluster->workers[w], layer, &layer->loads[w], all, parts);
        status = expected_maximum(&reached[parts], ws, err);
    }
    if (!status) {
        int part = 0;
#define X(name) total->name##_s += reached[part + 1] - reached[part], part++;
        POT_COST_PART_MAP(X)
#undef X
        total->slowest_s += reached[PARTS];
        add_bytes(total, cluster, layer, ws);
    }
    end(ws);
    return status;
}

pot_status pot_cost_worker_s(double *out, const pot_cost_cluster *cluster, const pot_cost_layer *layer, uint32_t worker,
                             pot_err *err) {
    workspace *ws;
    pot_status status = begin(&ws, cluster, layer, err);
    if (status) return status;
    make_task(&ws->tasks[0], &cluster->workers[worker], layer, &layer->loads[worker], units_of_all(cluster, layer), 5);
    ws->n = 1;
    ws->whole = false; /* alone, a multinomial's part is binomial */
    status = expected_maximum(out, ws, err);
    end(ws);
    return status;
}

double pot_cost_dense_s(const pot_cost_dense *d) {
    double keys = per(d->kv_bytes, d->bytes_per_s), work = per(d->operations, d->operations_per_s);
    return per(d->dense_bytes, d->bytes_per_s) + (keys > work ? keys : work);
}

/* ---- the curve --------------------------------------------------------------------------------------------------------------- */

static double curve_at(double rank) { return pow(rank, -0.2) * exp(-0.008 * rank); }

double pot_cost_curve(uint32_t n_experts, double part) {
    double all = 0, hot = 0, most = part * n_experts;
    for (uint32_t e = 0; e < n_experts; e++) {
        double p = curve_at((e + 1) * 256.0 / n_experts), taken = most - e;
        all += p;
        hot += p * (taken >= 1 ? 1 : taken > 0 ? taken : 0);
    }
    return all > 0 ? hot / all : 0;
}
