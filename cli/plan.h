/* What `potluck plan` works out before anything is loaded: what lies where on machines that are described by numbers, and what a token then
 * costs (placement/cost.h).  From headers only.
 *
 * A plan is a pure function of task and cluster, so "what if" is the same function on a changed cluster.  One thread; nothing here prints.
 */
#ifndef POT_CLI_PLAN_H
#define POT_CLI_PLAN_H

#include "common/settings.h"
#include "coordinator/kv.h"
#include "model/model.h"
#include "placement/cost.h"

/* ---- machines ---- */

/* The round figures where nothing was measured: a desktop with two channels of DDR4 or DDR5, an NVMe disk, a middling GPU, 10 Gbit Ethernet. */
#define PLAN_RAM_BYTES_PER_S 40e9
#define PLAN_VRAM_BYTES_PER_S 400e9
#define PLAN_DISK_BYTES_PER_S 3e9
#define PLAN_LINK_BYTES_PER_S 1.1e9
#define PLAN_LINK_S 100e-6
#define PLAN_OPERATIONS_PER_S 200e9 /* attention, which multiplies in f32 */

typedef struct plan_machine {
    char name[64];
    uint64_t ram_bytes, vram_bytes; /* for experts, ceilings; UINT64_MAX RAM = what is left of machine_bytes */
    uint64_t machine_bytes;         /* RAM that potluck may use for everything; 0 = not known */
    uint64_t disk_bytes;            /* for the model; 0 = none, UINT64_MAX = not known */
    double dense_bytes_per_s;       /* multiplying one token by the coordinator's weights */
    pot_cost_worker speed;
} plan_machine;

typedef struct plan_cluster {
    uint32_t n;
    plan_machine machines[POT_MAX_WORKERS]; /* worker 0 is on the coordinator's machine */
    double port_bytes_per_s;                /* 0 = does not count */
    double operations_per_s;
    char figures[512]; /* where the figures come from, a sentence */
} plan_cluster;

/* --cluster FILE, or this machine with --ram and --vram. */
pot_status plan_machines(plan_cluster *out, const pot_settings *settings, pot_err *err);
/* Of `cluster`, one worker more, like its last one; the link is the round one when there is none yet. */
void plan_add_worker(plan_cluster *cluster);

/* ---- what is asked ---- */

typedef struct plan_task {
    const pot_model *model; /* borrowed */
    const char *map;        /* policy */
    uint32_t ctx_tokens;
    pot_kv_format kv;
    double *heat;      /* [layers][n_routed] how often a token chooses each; NULL = only the curve is known */
    char choices[512]; /* where that comes from, a sentence */
} plan_task;

/* Sets heat and choices: --usage FILE, off, or what earlier runs on this machine left. */
pot_status plan_read_heat(plan_task *task, const pot_settings *settings, pot_err *err);

/* ---- the plan ---- */

typedef struct plan_worker {
    uint64_t owned_bytes;
    uint64_t lies_bytes[POT_COST_TIERS]; /* of the experts that it owns, the hottest first in the fastest */
    double wanted_bytes[POT_COST_TIERS]; /* of a token, found there */
    double units;                        /* parts of routed experts that a token wants of it */
    double alone_s;                      /* its own time, a token, if nobody waited for others */
} plan_worker;

typedef struct plan_result {
    uint64_t coordinator_bytes, kv_bytes; /* beside the experts, on machine 0 */
    uint64_t reserve_bytes;               /* kept free there, for the KV cache too */
    uint64_t ram_bytes[POT_MAX_WORKERS];  /* for experts, in the end */
    double dense_bytes, experts;          /* of a token: weights read by the coordinator; routed experts */
    double dense_s, attention_s;
    pot_cost_time time;
    double token_s;
    plan_worker workers[POT_MAX_WORKERS];
} plan_result;

/* LIMIT, with both numbers, when it cannot work: a machine too small for the coordinator, a worker for two of its experts, or one that needs a
 * disk and has none. */
pot_status plan_compute(plan_result *out, const plan_task *task, const plan_cluster *cluster, pot_err *err);

/* What would help: changes of machines or map that make a token at least half a percent faster, the best first. */
enum { PLAN_MAX_IDEAS = 12 };
typedef struct plan_idea {
    char words[160];
    double token_s;
} plan_idea;
typedef struct plan_ideas {
    plan_idea of[PLAN_MAX_IDEAS];
    int n;
} plan_ideas;
pot_status plan_find_ideas(plan_ideas *out, const plan_task *task, const plan_cluster *cluster,
                           const plan_result *result, pot_err *err);

/* The loads of all layers, and where everything lies; the first half of plan_compute. */
typedef struct plan_loads {
    uint32_t layers, workers;
    pot_cost_load *loads; /* [layers][workers] */
    bool *whole;          /* [layers] */
} plan_loads;
pot_status plan_place(plan_loads *loads, plan_result *result, const plan_task *task, const plan_cluster *cluster,
                      pot_err *err);
void plan_loads_free(plan_loads *loads); /* also an all-zero one */

#endif
