/* Putting the parts together, in three shapes:
 *
 *   alone        rank 0 of 1: worker 0 inline over `mem`; neither MPI nor UCX is touched
 *   coordinator  rank 0 of n: the same, and workers 1..n-1 over UCX
 *   worker       rank r of n: serves over UCX until the coordinator says Leave
 */
#include "coordinator/cluster.h"

#include <stdio.h>
#include <string.h>

#include "common/clock.h"
#include "common/float_mode.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/system.h"
#include "proto/control.h"

enum { CLOSE_US = 500000, SPIN_US = 50 /* docs/cluster.md, "Sleeping and waking" */ };

struct pot_cluster_parts {
    pot_transport *mem[2]; /* the coordinator's end, worker 0's end */
    pot_transport *remote;
    pot_bootstrap bootstrap;
    pot_worker *worker; /* worker 0, inline */
    pot_map *map;
    pot_compute compute;
    pot_work_observer observer;
    pot_beacon *beacon; /* for `potluck status`; NULL when it cannot be */
};

/* ---- from settings ---------------------------------------------------------------------------------------------------------- */

static pot_status find_format(pot_format *out, const char *option, const char *name, pot_err *err) {
    if (strcmp(name, "auto") == 0) return POT_OK;
    pot_format format = pot_format_find(name);
    if (format == POT_FORMAT_NONE) {
        char known[256] = "";
        int at = 0;
        for (int f = 1; f < POT_FORMAT_COUNT; f++)
            at += snprintf(known + at, sizeof known - (size_t)at, ", %s", pot_format_get((pot_format)f)->name);
        return pot_fail(err, POT_USAGE, "--%s %s: known are auto%s", option, name, known);
    }
    *out = format;
    return POT_OK;
}

/* The option's words are checked where options are read; commands without it have none. */
static pot_rounding rounding_of(const char *name) {
    if (name && strcmp(name, "search") == 0) return POT_ROUNDING_SEARCH;
    return name && strcmp(name, "ocp") == 0 ? POT_ROUNDING_OCP : POT_ROUNDING_AUTO;
}

pot_status pot_settings_policy(pot_format_policy *out, const pot_settings *settings, pot_err *err) {
    pot_format_policy policy = {0}; /* `auto`: what the model has or would get */
    policy.reference = settings->reference;
    policy.rounding = rounding_of(settings->rounding);
    pot_status s = find_format(&policy.experts, "experts", settings->experts_format, err);
    if (s == POT_OK) s = find_format(&policy.dense, "dense", settings->dense_format, err);
    if (s == POT_OK) s = find_format(&policy.head, "head", settings->head_format, err);
    if (s == POT_OK && settings->mtp_format) s = find_format(&policy.mtp, "mtp", settings->mtp_format, err);
    if (s == POT_OK) *out = policy;
    return s;
}

/* The names of these options are choices, which the table has checked. */
pot_status pot_settings_store(pot_store_choice *out, const pot_settings *settings, pot_err *err) {
    const char *engine = settings->read_engine, *path = settings->read_path;
    *out = (pot_store_choice){.ram_bytes = settings->ram,
                              .reader = {.engine = strcmp(engine, "uring") == 0  ? POT_READ_ENGINE_URING
                                                   : strcmp(engine, "pool") == 0 ? POT_READ_ENGINE_POOL
                                                                                 : POT_READ_ENGINE_AUTO,
                                         .path = strcmp(path, "direct") == 0   ? POT_READ_PATH_DIRECT
                                                 : strcmp(path, "cached") == 0 ? POT_READ_PATH_CACHED
                                                                               : POT_READ_PATH_AUTO,
                                         .depth = (uint32_t)settings->read_depth},
                              .prefetch = settings->prefetch,
                              .disk_cache = settings->disk_cache,
                              .usage = strcmp(settings->usage, "off") == 0 ? NULL : settings->usage,
                              .timeout_us = settings->timeout_us / 4 * 3}; /* a disk is named before its worker is */
    if (settings->ram == 0)
        return pot_fail(err, POT_USAGE,
                        "--ram 0: experts need some memory, at least for two of them; `auto` takes what is free");
    return pot_cache_policy_find(&out->policy, settings->cache, err);
}

static pot_status check_times(const pot_settings *s, pot_err *err) {
    if (s->heartbeat_us < 1000 || s->dead_us < 2 * s->heartbeat_us || s->timeout_us < s->dead_us)
        return pot_fail(
            err, POT_USAGE,
            "--heartbeat %g s, --dead-after %g s and --timeout %g s: a heartbeat is at least 1ms, death after at least "
            "two of them, and the timeout not before it",
            (double)s->heartbeat_us / 1e6, (double)s->dead_us / 1e6, (double)s->timeout_us / 1e6);
    return POT_OK;
}

static pot_status choose_compute(pot_compute *out, const pot_settings *settings, int ranks_on_host, pot_err *err) {
    pot_fp_strict();
    if (!settings->keep_binding) (void)pot_cpus_widen();
    pot_status s = pot_kernels_pick(&out->kernels, settings->kernels, err);
    if (s != POT_OK) return s;
    return pot_team_create(&out->team, pot_threads_choose((int)settings->threads, ranks_on_host), false, err);
}

/* Polling is for machines where every rank has a core of its own: elsewhere a rank that polls keeps another from computing. */
static uint64_t choose_spin(const pot_settings *settings, int ranks_on_host) {
    if (settings->spin_us != UINT64_MAX) return settings->spin_us;
    return ranks_on_host <= pot_cpus_physical() ? SPIN_US : 0;
}

/* ---- ranks -------------------------------------------------------------------------------------------------------------------- */

/* Everybody's address, and connections: the coordinator to all, a worker to the coordinator. */
static pot_status connect_ranks(struct pot_cluster_parts *parts, const pot_settings *settings, const pot_launch *launch,
                                pot_err *err) {
    pot_ucx_options options = {.self = (uint32_t)launch->rank, .spin_us = choose_spin(settings, launch->ranks_on_host)};
    pot_blob address;
    pot_status s = pot_transport_ucx_create(&parts->remote, &address, &options, err);
    if (s == POT_OK) s = pot_bootstrap_mpi(&parts->bootstrap, address, err);
    if (s != POT_OK) return s;
    const pot_bootstrap *b = &parts->bootstrap;
    if (b->size > POT_MAX_WORKERS)
        return pot_fail(err, POT_LIMIT, "%d ranks were started, a cluster has at most %d", b->size, POT_MAX_WORKERS);
    pot_blob peers[POT_MAX_WORKERS] = {{0}};
    for (int r = 0; r < b->size; r++)
        if (r != b->rank && (b->rank == 0 || r == 0)) peers[r] = b->ranks[r].address;
    return pot_transport_ucx_connect(parts->remote, peers, (uint32_t)b->size, err);
}

/* A tile needs memory for all its rows: no more of them than a step or the context can have. */
static uint32_t choose_tile(const pot_settings *settings, const pot_config *config) {
    int64_t most = settings->ctx < config->max_positions ? settings->ctx : config->max_positions;
    if (most > POT_ENGINE_MAX_ROWS) most = POT_ENGINE_MAX_ROWS;
    return (uint32_t)(settings->prefill_tile < most ? settings->prefill_tile : most);
}

/* Which workers run on the host of `rank`. */
static uint64_t workers_beside(const struct pot_cluster_parts *parts, int rank) {
    const pot_bootstrap *b = &parts->bootstrap;
    uint64_t mask = (uint64_t)1 << rank;
    for (int r = 0; r < b->size; r++)
        if (strcmp(b->ranks[r].host, b->ranks[rank].host) == 0) mask |= (uint64_t)1 << r;
    return mask;
}

/* What the coordinator and all workers of this host will hold, before anything is loaded: the experts of a converted model need not be
 * in memory. */
static pot_status check_memory(const pot_cluster *c, const pot_settings *settings, pot_err *err) {
    const struct pot_cluster_parts *parts = c->parts;
    uint64_t bytes = pot_model_coordinator_bytes(c->model), here = workers_beside(parts, 0);
    for (uint64_t left = here; left; left &= left - 1) {
        uint64_t least, all;
        pot_store_needs(&least, &all, c->model, parts->map, (uint32_t)__builtin_ctzll(left));
        bytes += pot_model_is_packed(c->model) || settings->disk_cache ? least : all;
    }
    char what[80];
    const int n = __builtin_popcountll(here);
    snprintf(what, sizeof what, "the coordinator with %d worker%s on this machine", n, n == 1 ? "" : "s");
    return pot_model_check_memory(bytes, what, err);
}

/* ---- the coordinator -------------------------------------------------------------------------------------------------------------- */

static pot_status create_parts(pot_cluster *c, pot_err *err) {
    c->parts = pot_alloc(sizeof *c->parts);
    return c->parts ? POT_OK : pot_fail(err, POT_NO_MEMORY, "no memory for a cluster");
}

static pot_status open_model(pot_cluster *c, const pot_settings *settings, const char *directory, pot_err *err) {
    pot_format_policy policy;
    if (!directory)
        return pot_fail(err, POT_USAGE, "a worker needs a coordinator: start both with mpirun (docs/cluster.md)");
    pot_status s = pot_settings_policy(&policy, settings, err);
    if (s == POT_OK) s = pot_model_open(&c->model, directory, &policy, err);
    c->kv = settings->reference || strcmp(settings->kv, "f32") == 0 ? POT_KV_F32 : POT_KV_BF16;
    return s;
}

/* Own worker, peers, dispatch, engine; the remote transport, if any, is connected. */
static pot_status assemble(pot_cluster *c, const pot_settings *settings, uint32_t n_workers, pot_err *err) {
    struct pot_cluster_parts *parts = c->parts;
    pot_status s = pot_map_make(&parts->map, settings->map, 1, n_workers, pot_model_layer_shapes(c->model),
                                pot_model_layers(c->model), err);
    if (s == POT_OK) s = check_memory(c, settings, err);
    if (s == POT_OK) s = pot_transport_mem_create(parts->mem, 2, err);
    if (s != POT_OK) return s;
    pot_worker_options own = {.transport = parts->mem[1],
                              .coordinator = 0,
                              .compute = parts->compute,
                              .timeout_us = settings->timeout_us,
                              .host_workers = workers_beside(parts, 0),
                              .beacon = parts->beacon,
                              .role = POT_BEACON_COORDINATOR,
                              .observer = parts->observer};
    s = pot_settings_store(&own.store, settings, err);
    if (s != POT_OK) return s;
    s = pot_worker_create(&parts->worker, &own, err);
    if (s != POT_OK) return s;
    pot_peers_options peers = {.local = parts->mem[0],
                               .n_local = 1,
                               .inline_worker = parts->worker,
                               .remote = parts->remote,
                               .n_workers = n_workers,
                               .model = c->model,
                               .map = parts->map,
                               .heartbeat_us = settings->heartbeat_us,
                               .dead_us = settings->dead_us,
                               .timeout_us = settings->timeout_us,
                               .quiet = settings->quiet};
    s = pot_peers_create(&c->peers, &peers, err);
    if (s == POT_OK) s = pot_moe_create(&c->moe, c->model, c->peers, &parts->compute, err);
    if (s != POT_OK) return s;
    pot_engine_options engine = {.model = c->model,
                                 .moe = c->moe,
                                 .compute = parts->compute,
                                 .prefill_tile = choose_tile(settings, pot_model_config(c->model)),
                                 .prefetch = settings->prefetch,
                                 .quiet = settings->quiet};
    return pot_engine_create(&c->engine, &engine, err);
}

/* Ranks that wait for their Welcome need not wait for a timeout. */
static void dismiss(const struct pot_cluster_parts *parts) {
    const pot_control leave = {.type = POT_CONTROL_LEAVE};
    for (int r = 1; r < parts->bootstrap.size; r++) (void)pot_control_send(parts->remote, (uint32_t)r, &leave, NULL);
}

/* Ranks meet before the model is looked at: if it is refused, the others are told. */
static pot_status coordinate(pot_cluster *c, const pot_settings *settings, const char *directory, pot_err *err) {
    pot_status s = c->launch.size > 1 ? connect_ranks(c->parts, settings, &c->launch, err) : POT_OK;
    if (s != POT_OK) return s;
    s = open_model(c, settings, directory, err);
    if (s == POT_OK) s = assemble(c, settings, (uint32_t)c->launch.size, err);
    if (s != POT_OK && !c->peers) dismiss(c->parts);
    return s;
}

/* ---- a worker ------------------------------------------------------------------------------------------------------------------------ */

static pot_status serve(pot_cluster *c, const pot_settings *settings, pot_err *err) {
    struct pot_cluster_parts *parts = c->parts;
    pot_status s = connect_ranks(parts, settings, &c->launch, err);
    if (s != POT_OK) return s;
    pot_worker_options options = {.transport = parts->remote,
                                  .coordinator = 0,
                                  .compute = parts->compute,
                                  .model = settings->model,
                                  .timeout_us = settings->timeout_us,
                                  .host_workers = workers_beside(parts, c->launch.rank),
                                  .beacon = parts->beacon,
                                  .role = POT_BEACON_WORKER,
                                  .observer = parts->observer};
    s = pot_settings_store(&options.store, settings, err);
    if (s == POT_OK) s = pot_worker_create(&parts->worker, &options, err);
    return s == POT_OK ? pot_worker_serve(parts->worker, err) : s;
}

/* ---- life ------------------------------------------------------------------------------------------------------------------------------ */

static pot_status start(pot_cluster *out, const pot_launch *launch, const pot_settings *settings, const char *directory,
                        const pot_work_observer *observer, pot_err *err) {
    uint64_t begin = pot_now_us();
    pot_cluster c = {.launch = *launch};
    pot_status s = create_parts(&c, err);
    if (s == POT_OK && observer) c.parts->observer = *observer;
    pot_err silent; /* a run does not depend on being seen */
    if (s == POT_OK && pot_beacon_open(&c.parts->beacon, NULL, &silent) != POT_OK)
        POT_LOG(POT_LOG_DEBUG, "coordinator", "`potluck status` will not see this process: %s", silent.text);
    if (s == POT_OK) s = check_times(settings, err);
    if (s == POT_OK) s = choose_compute(&c.parts->compute, settings, launch->ranks_on_host, err);
    if (s == POT_OK) s = launch->rank == 0 ? coordinate(&c, settings, directory, err) : serve(&c, settings, err);
    c.load_us = pot_now_us() - begin;
    if (s != POT_OK) {
        pot_cluster_stop(&c);
        return s;
    }
    *out = c;
    return POT_OK;
}

pot_status pot_cluster_start(pot_cluster *out, const pot_settings *settings, const char *directory, pot_err *err) {
    return pot_cluster_start_observed(out, settings, directory, NULL, err);
}

pot_status pot_cluster_start_observed(pot_cluster *out, const pot_settings *settings, const char *directory,
                                      const pot_work_observer *observer, pot_err *err) {
    pot_launch launch;
    pot_launch_detect(&launch);
    return start(out, &launch, settings, directory, observer, err);
}

pot_status pot_cluster_start_alone(pot_cluster *out, const pot_settings *settings, const char *directory,
                                   pot_err *err) {
    pot_launch launch = {.rank = 0, .size = 1, .ranks_on_host = 1};
    return start(out, &launch, settings, directory, NULL, err);
}

void pot_cluster_stop(pot_cluster *c) {
    pot_engine_free(c->engine);
    pot_moe_free(c->moe);
    pot_peers_free(c->peers);
    if (c->parts) {
        pot_worker_free(c->parts->worker);
        pot_beacon_close(c->parts->beacon);
        pot_transport_close(c->parts->mem[0], 0);
        pot_transport_close(c->parts->mem[1], 0);
        pot_transport_close(c->parts->remote, CLOSE_US);
        pot_bootstrap_free(&c->parts->bootstrap);
        pot_map_free(c->parts->map);
        pot_team_free(c->parts->compute.team);
        pot_free(c->parts);
    }
    pot_model_close(c->model);
    *c = (pot_cluster){0};
}
