/* What a token costs: the time of one stream of tokens on machines that are described by a few numbers.  Pure arithmetic.
 *
 * One layer, one token.  The token chooses k experts; worker w has a part (a unit, of `unit_bytes`) of n of them, of which a are found in the
 * memory of its GPU, b in its RAM and c on its disk, a + b + c = n.  It answers after
 *
 *   T_w = link_s + message_bytes / link_bytes_per_s + n * item_s
 *         + max( G, C, D )             GPU, CPU and disk work at the same time
 *   G   = (a * unit_bytes + common bytes in VRAM) / VRAM's bytes_per_s
 *   C   = ((b + c) * unit_bytes + common bytes in RAM) / RAM's      what comes from disk is computed from RAM
 *   D   = c * unit_bytes / disk's + unit_bytes / RAM's              the last one to arrive is computed after it; 0 when c = 0
 *
 * (common bytes on disk are read before all that) and 0 when it is asked for nothing.  The coordinator goes on when the slowest has answered, so the layer takes E[max over w of T_w], not the
 * largest expected time:
 *
 *   whole experts   (n_1 .. n_W) is multinomial: k draws with w's part of the expected units
 *   cut ones        each worker by itself: n_w is binomial, k draws with the chance units_w / k (1 when it has a slice of each)
 *   (a, b, c)       given n, multinomial with `share`
 *
 * Draws are with replacement, where the router's k experts are different ones: a little more spread than there is, so a little too slow.
 * The maximum is exact for these distributions up to a grid of some hundred times, which are rounded up.
 *
 * Messages leave and arrive one after the other through the coordinator's port, and its processor handles them one after the other.  One
 * message's bytes are in T_w already, so what comes on top is
 * port_s = sum over w of P(w is asked) * message_s + (expected remote workers asked - 1, at least 0) * message_bytes / port_bytes_per_s.
 */
#ifndef POT_PLACEMENT_COST_H
#define POT_PLACEMENT_COST_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

/* X(name, text) */
#define POT_COST_TIER_MAP(X) X(VRAM, "VRAM") X(RAM, "RAM") X(DISK, "disk")
typedef enum pot_cost_tier {
#define X(name, text) POT_COST_##name,
    POT_COST_TIER_MAP(X)
#undef X
        POT_COST_TIERS
} pot_cost_tier;
const char *pot_cost_tier_text(pot_cost_tier tier);

typedef struct pot_cost_worker {
    double bytes_per_s[POT_COST_TIERS]; /* above 0 where the tier is used, and RAM's where the disk's is */
    double item_s;                      /* beside the bytes, for each unit */
    double link_s;                      /* there and back, of an empty message; 0 within a process */
    double link_bytes_per_s;            /* 0 = does not count */
    double message_s;                   /* of the coordinator's, to send and receive one message */
    bool remote;                        /* its messages pass the coordinator's port */
} pot_cost_worker;

/* What one layer's tokens ask of a worker. */
typedef struct pot_cost_load {
    double units;      /* expected, a token: the sum over its experts of how often each is chosen; at most k */
    double unit_bytes; /* on average over what is chosen */
    double share[POT_COST_TIERS];        /* of the wanted units, where they are found: sum 1 */
    double common_bytes[POT_COST_TIERS]; /* that every token wants of it */
} pot_cost_load;

typedef struct pot_cost_layer {
    uint32_t k;                 /* chosen experts, at most POT_COST_MAX_K; 0 in a dense layer */
    bool whole;                 /* every expert lies on one worker */
    double message_bytes;       /* WORK and SUM of one token together */
    const pot_cost_load *loads; /* [n_workers] */
} pot_cost_layer;

typedef struct pot_cost_cluster {
    uint32_t n_workers; /* at most POT_MAX_WORKERS (placement/map.h) */
    const pot_cost_worker *workers;
    double port_bytes_per_s; /* 0 = does not count */
} pot_cost_cluster;

enum { POT_COST_MAX_K = 64 };

/* Parts of E[max], in this order: each is what its time adds to a layer in which nothing of the later parts takes any. */
#define POT_COST_PART_MAP(X) X(link) X(items) X(vram) X(ram) X(disk)

typedef struct pot_cost_time {
    double slowest_s; /* E[max over workers], the sum of the parts */
#define X(name) double name##_s;
    POT_COST_PART_MAP(X)
#undef X
    double port_s;                /* on top */
    double bytes[POT_COST_TIERS]; /* expected, over all workers */
    double asked;                 /* expected number of workers that are asked for something */
} pot_cost_time;

/* Adds one layer to `total`.  NO_MEMORY; BUG for numbers that cannot be (units above k, a used tier without speed). */
pot_status pot_cost_add_layer(pot_cost_time *total, const pot_cost_cluster *cluster, const pot_cost_layer *layer,
                              pot_err *err);
/* E[T_w] of one worker alone, over the same distributions. */
pot_status pot_cost_worker_s(double *out, const pot_cost_cluster *cluster, const pot_cost_layer *layer, uint32_t worker,
                             pot_err *err);

/* The coordinator's own part of a token, attention and everything else outside the experts: each weight is read once, then the keys; arithmetic on
 * the keys may take longer than reading them.  dense_bytes / r + max(kv_bytes / r, operations / operations_per_s), r = bytes_per_s. */
typedef struct pot_cost_dense {
    double dense_bytes, kv_bytes, operations;
    double bytes_per_s, operations_per_s;
} pot_cost_dense;
double pot_cost_dense_s(const pot_cost_dense *dense);

/* How a real model chooses, where nothing is known of this one: the share of all choices that falls on the hottest part (0 to 1) of a layer's
 * experts.  p(r) ~ r^-0.2 * e^(-0.008 r) for the rank r of 256, stretched to n_experts: fitted to GLM-5.2, whose top quarter of
 * experts took 58% of the choices (the curve: 55%), top half 82%. */
double pot_cost_curve(uint32_t n_experts, double part);

#endif
