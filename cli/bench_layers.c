/* potluck bench layers MODEL: how near a decoded token comes to the speed of memory in each phase of a layer.
 *
 *   dense     attention, norms and router: the coordinator alone
 *   experts   from the dispatch of a layer's work until its sum is there: all ranks
 *   compute   a rank's own part of that, by its own clock
 *
 * The engine decodes random tokens as it would any others; the phases are differences of its counters.  After each token every rank
 * reads other weights out of its own store, with the same threads and pages: what it reaches then is its roofline, and the result is the
 * ratio of the two, token by token.  Ranks that computed at the same time also read at the same time; then, with several ranks, the
 * coordinator reads alone, as it computes the dense phase alone.
 *
 * A rank knows its own roofline only, so each prints its own rows; the row of the whole expert phase compares the bytes of its
 * slowest rank with the coordinator's roofline. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench_probe.h"
#include "cli/cli.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/progress.h"
#include "common/system.h"
#include "coordinator/cluster.h"

enum {
    TOKENS = 48,
    MOST_TOKENS = 1024,
    WARM_TOKENS = 4,        /* the first of them finds out how to read */
    WINDOW_BYTES = 1 << 27, /* about what a token reads in a phase of one layer */
    LEAST_POOL = 1 << 17,   /* a thread */
    SETTLE_US = 5000        /* until the other ranks have ended their windows, too */
};

/* One token: what a phase read, how long it took, and how fast memory was. */
typedef struct sample {
    double bytes, us, roofline;
} sample;

typedef struct samples {
    sample *at; /* [MOST_TOKENS] */
    int n;
} samples;

typedef struct bench {
    const pot_cli *cli;
    uint32_t tokens, layers;
    /* What this rank's worker computes. */
    const pot_compute *compute; /* NULL before the first piece of work */
    pot_roof roof;
    double roofline; /* of the latest window */
    sample own;      /* adds up over the layers of a token */
    uint32_t last_layer;
    uint32_t seen; /* tokens */
    samples dense, whole, computed;
} bench;

/* ---- reading ------------------------------------------------------------------------------------------------------ */

/* Borrows the store's memory as the pool. */
static void meet(bench *b, const pot_work_done *work) {
    const pot_kernels *best;
    size_t bytes;
    const uint8_t *memory = pot_store_memory(work->store, &bytes);
    b->compute = work->compute;
    b->layers = pot_model_config(work->model)->n_layers;
    /* The roof only reads. */
    b->roof = (pot_roof){.team = work->compute->team,
                         .reads = pot_kernels_pick(&best, "auto", NULL) == POT_OK ? best : work->compute->kernels,
                         .slab = {.base = (uint8_t *)(uintptr_t)memory, .bytes = bytes},
                         .bytes = bytes};
}

/* A store of a few megabytes is good for tests; what is read then is a cache. */
static bool has_pool(const bench *b) {
    return b->compute && b->roof.bytes >= (size_t)LEAST_POOL * (size_t)pot_team_threads(b->compute->team);
}

static double read_window(bench *b) {
    size_t most = b->roof.bytes / 2;
    return pot_roof_roofline(&b->roof, most < WINDOW_BYTES ? most : WINDOW_BYTES);
}

static void push(samples *s, double bytes, double us, double roofline) {
    if (s->n < MOST_TOKENS) s->at[s->n++] = (sample){bytes, us, roofline};
}

/* After the last layer of a token, while the coordinator does the same. */
static void end_token(bench *b) {
    if (!has_pool(b)) return;
    if (b->seen++ == 0) (void)pot_roof_choose(&b->roof, 0.01);
    b->roofline = read_window(b);
    if (b->seen > WARM_TOKENS && b->own.us > 0) push(&b->computed, b->own.bytes, b->own.us, b->roofline);
    b->own = (sample){0};
}

static void on_work(void *context, const pot_work_done *work) {
    bench *b = context;
    if (!b->compute) meet(b, work);
    /* A rank that had nothing to do in the last layer did not see that token end; it is left out. */
    if (b->cli->launch.rank > 0 && work->layer <= b->last_layer) b->own = (sample){0};
    b->last_layer = work->layer;
    b->own.bytes += (double)(work->record->vram_bytes + work->record->ram_bytes + work->record->disk_bytes);
    b->own.us += work->record->compute_us;
    /* The coordinator's own worker runs in the middle of its phase: it reads later. */
    if (b->cli->launch.rank > 0 && work->layer + 1 == b->layers) end_token(b);
}

/* ---- rows --------------------------------------------------------------------------------------------------------- */

static void add_row(pot_buffer *out, const bench *b, const char *phase, const samples *s) {
    double ms[MOST_TOKENS], bytes[MOST_TOKENS], rate[MOST_TOKENS], roofline[MOST_TOKENS], fraction[MOST_TOKENS];
    if (s->n == 0) return;
    for (int i = 0; i < s->n; i++) {
        const sample *one = &s->at[i];
        ms[i] = one->us * 1e-3 / b->layers;
        bytes[i] = one->bytes / b->layers;
        rate[i] = one->bytes / one->us * 1e-3;
        roofline[i] = one->roofline;
        fraction[i] = rate[i] / one->roofline;
    }
    const pot_spread f = pot_spread_of(fraction, s->n);
    const double t = pot_spread_of(ms, s->n).median, n = pot_spread_of(bytes, s->n).median,
                 r = pot_spread_of(rate, s->n).median, m = pot_spread_of(roofline, s->n).median;
    const int rank = b->cli->launch.rank;
    if (b->cli->settings->json)
        pot_buffer_format(out,
                          "{\"phase\": \"%s\", \"rank\": %d, \"ms_per_layer\": %.4f, \"bytes_per_layer\": %.0f, "
                          "\"gbps\": %.3f, \"roofline_gbps\": %.3f, \"fraction\": %.4f, \"fraction_p10\": %.4f, "
                          "\"fraction_p90\": %.4f}\n",
                          phase, rank, t, n, r, m, f.median, f.p10, f.p90);
    else
        pot_buffer_format(out, "%s,%d,%.4f,%.0f,%.3f,%.3f,%.4f,%.4f,%.4f\n", phase, rank, t, n, r, m, f.median, f.p10,
                          f.p90);
}

static void add_machine(pot_buffer *out, const bench *b, const pot_cluster *cluster) {
    const char *model = b->cli->arguments[0];
    const pot_ffn_shape *routed = pot_model_routed(cluster->model, b->layers - 1);
    const char *experts = routed ? pot_format_get((pot_format)routed->gate_up_format)->name : "none";
    const char *dense = pot_format_get(pot_model_format(cluster->model, POT_ROLE_O, 0))->name;
    const int threads = pot_team_threads(b->compute->team), ranks = (int)pot_peers_count(cluster->peers);
    char cpu[128];
    pot_roof_cpu(cpu, sizeof cpu);
    if (b->cli->settings->json) {
        pot_buffer_text(out, "{\"model\": ");
        pot_json_quote(out, model, strlen(model));
        pot_buffer_text(out, ", \"version\": \"" POT_VERSION "\", \"cpu\": ");
        pot_json_quote(out, cpu, strlen(cpu));
        pot_buffer_format(
            out,
            ", \"cores\": %d, \"threads\": %d, \"ranks\": %d, \"map\": \"%s\", \"layers\": %u, \"tokens\": "
            "%u, \"experts\": \"%s\", \"dense\": \"%s\", \"table\": \"%s\", \"reads\": \"%s\"}\n",
            pot_cpus_physical(), threads, ranks, b->cli->settings->map, b->layers, b->tokens, experts, dense,
            b->compute->kernels->name, pot_roof_way(&b->roof));
        return;
    }
    pot_buffer_format(out,
                      "# bench layers %s; version: " POT_VERSION
                      "; cpu: %s; cores: %d; ranks: %d of %d threads; map: %s; "
                      "layers: %u; tokens: %u; experts: %s; dense: %s; table: %s; reads: %s\n",
                      model, cpu, pot_cpus_physical(), ranks, threads, b->cli->settings->map, b->layers, b->tokens,
                      experts, dense, b->compute->kernels->name, pot_roof_way(&b->roof));
    pot_buffer_text(out,
                    "phase,rank,ms_per_layer,bytes_per_layer,gbps,roofline_gbps,fraction,fraction_p10,fraction_p90\n");
}

static pot_status report(const bench *b, const pot_cluster *cluster, pot_err *err) {
    pot_buffer text = {0};
    if (cluster) {
        add_machine(&text, b, cluster);
        add_row(&text, b, "dense", &b->dense);
        add_row(&text, b, "experts", &b->whole);
    }
    add_row(&text, b, "compute", &b->computed);
    pot_status status = pot_out_buffer(b->cli->out, &text, err);
    pot_buffer_free(&text);
    return status;
}

/* ---- the coordinator ---------------------------------------------------------------------------------------------- */

/* Counters of the engine and of all workers at one moment. */
typedef struct counters {
    uint64_t dense_us, experts_us;
    uint64_t read_bytes[POT_MAX_WORKERS], compute_us[POT_MAX_WORKERS];
} counters;

/* What is neither attention nor router nor head is the experts: adding their sum to the residual stream is theirs, too. */
static void count(counters *c, const pot_cluster *cluster) {
    const pot_engine_stats *engine = pot_engine_get_stats(cluster->engine);
    c->dense_us = engine->attention_us + engine->router_us;
    c->experts_us = engine->total_us - c->dense_us - engine->head_us;
    for (uint32_t w = 0; w < pot_peers_count(cluster->peers); w++) {
        c->read_bytes[w] = pot_peers_stats(cluster->peers, w)->read_bytes;
        c->compute_us[w] = pot_peers_stats(cluster->peers, w)->compute_us;
    }
}

static void take_sample(bench *b, const counters *before, const counters *after, const pot_cluster *cluster,
                        double alone) {
    uint32_t slowest = 0;
    double dense_bytes = 0;
    for (uint32_t w = 1; w < pot_peers_count(cluster->peers); w++)
        if (after->compute_us[w] - before->compute_us[w] > after->compute_us[slowest] - before->compute_us[slowest])
            slowest = w;
    for (uint32_t i = 0; i < b->layers; i++) dense_bytes += (double)pot_model_layer_bytes(cluster->model, i);
    push(&b->dense, dense_bytes, (double)(after->dense_us - before->dense_us), alone);
    push(&b->whole, (double)(after->read_bytes[slowest] - before->read_bytes[slowest]),
         (double)(after->experts_us - before->experts_us), b->roofline);
}

static pot_status decode(bench *b, const pot_cluster *cluster, pot_sequence *sequence, float *hidden, pot_err *err) {
    const pot_config *config = pot_model_config(cluster->model);
    const bool several = pot_peers_count(cluster->peers) > 1;
    pot_progress progress;
    pot_status status = POT_OK;
    pot_progress_begin_count(&progress, "measuring", WARM_TOKENS + b->tokens, "tokens", b->cli->settings->quiet);
    for (uint32_t t = 0; t < WARM_TOKENS + b->tokens && !status; t++) {
        counters before, after;
        const pot_row row = {sequence, t, (int32_t)(t * 2654435761u % config->vocab)};
        count(&before, cluster);
        status = pot_engine_forward(cluster->engine, &row, 1, hidden, hidden, NULL, 0, NULL, err);
        if (status) break;
        count(&after, cluster);
        if (!has_pool(b)) {
            status = pot_fail(err, POT_LIMIT, "this rank holds %zu bytes of experts, which is too few to measure with",
                              b->roof.bytes);
            break;
        }
        end_token(b);
        double alone = b->roofline;
        if (several) {
            usleep(SETTLE_US);
            alone = read_window(b);
        }
        if (t >= WARM_TOKENS) take_sample(b, &before, &after, cluster, alone);
        pot_progress_update(&progress, t + 1);
    }
    pot_progress_end(&progress);
    return status;
}

static pot_status coordinate(bench *b, const pot_cluster *cluster, pot_err *err) {
    const pot_config *config = pot_model_config(cluster->model);
    pot_sequence *sequence = NULL;
    b->layers = config->n_layers;
    float *hidden = pot_alloc_array(config->hidden, sizeof *hidden);
    pot_status status = hidden ? POT_OK : pot_fail(err, POT_NO_MEMORY, "no memory for a row of hidden values");
    if (!status) status = pot_sequence_create(&sequence, config, cluster->kv, WARM_TOKENS + b->tokens, err);
    if (!status) status = decode(b, cluster, sequence, hidden, err);
    if (!status) status = report(b, cluster, err);
    pot_sequence_free(sequence);
    pot_free(hidden);
    return status;
}

/* ---- every rank --------------------------------------------------------------------------------------------------- */

pot_status pot_cmd_bench_layers(const pot_cli *cli, pot_err *err) {
    const int64_t tokens = cli->settings->tokens ? cli->settings->tokens : TOKENS;
    if (tokens > MOST_TOKENS)
        return pot_fail(err, POT_USAGE, "--tokens %lld: at most %d are measured", (long long)tokens, MOST_TOKENS);
    bench b = {.cli = cli, .tokens = (uint32_t)tokens};
    sample *memory = pot_alloc_array(3 * (size_t)MOST_TOKENS, sizeof *memory);
    if (!memory) return pot_fail(err, POT_NO_MEMORY, "no memory for measurements");
    b.dense.at = memory;
    b.whole.at = memory + MOST_TOKENS;
    b.computed.at = memory + 2 * MOST_TOKENS;
    pot_cluster cluster = {0};
    const pot_work_observer observer = {on_work, &b};
    const char *model = cli->launch.rank == 0 ? cli->arguments[0] : NULL;
    pot_status status = pot_cluster_start_observed(&cluster, cli->settings, model, &observer, err);
    if (!status && cluster.engine) status = coordinate(&b, &cluster, err);
    if (!status && cli->launch.rank > 0) status = report(&b, NULL, err);
    pot_cluster_stop(&cluster);
    pot_free(memory);
    return status;
}
