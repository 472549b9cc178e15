/* potluck bench store: tokens pass the experts of a converted model through a worker's store, by budget, policy and way of reading.
 *
 * A case is a store of its own.  Each token wants the experts that a generator of routed tokens (placement/routing.h) gives it, layer by layer, in
 * real WORK messages to real worker code.  After each layer the same chunks that the store had to read are read once more by
 * a reader that does nothing else (device_gbps): the two ways of reading see the same disk in the same second. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/bench_probe.h"
#include "cli/cli.h"
#include "common/json.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/system.h"
#include "coordinator/cluster.h"
#include "kernels/linear.h"
#include "placement/routing.h"
#include "worker/compute.h"

enum { MOST_CASES = 32, SEED = 1, PREFILL_ROWS = 256, WARM_TOKENS = 4, READ_BACK_US = 60000000 };

/* Fits GLM-5.2 over all layers (docs/store.md): chance of the expert of rank r, from 1 on, of 256. */
static double heat_of_rank(uint32_t rank, uint32_t n) { return pow(rank, -0.2) * exp(-0.008 * rank * 256.0 / n); }

typedef struct bench_case {
    pot_cache_policy policy;
    pot_read_engine engine;
    pot_read_path path;
    double share; /* of the expert bytes; 0 = --ram */
    bool prefill, prefetch;
} bench_case;

typedef struct result {
    uint64_t tokens, budget_bytes, peak_bytes, disk_bytes, reads;
    double hit_rate, wait_s, compute_s, load_s, device_s, total_s;
    char mode[48];
} result;

typedef struct bench {
    const pot_cli *cli;
    pot_model *model;
    pot_map *map;
    pot_compute compute;
    pot_transport *ends[2];
    pot_work *work;
    pot_heat heat;
    pot_acts acts;
    uint32_t *chosen, *guessed; /* [sparse layers][k] of a token */
    uint32_t first_sparse, n_sparse, k;
    uint64_t owned_bytes;
    /* The chunks of a step that were not in memory, to be read again. */
    pot_read *reads;
    uint32_t n_reads;
    pot_slab
        slots; /* [most] where they go: huge pages, as the store's (a read into small ones took three times as long) */
    size_t slot_bytes;
    bool slots_are_ours; /* no read has hung */
    pot_reader *plain;
    uint32_t *plain_file; /* [layers] */
} bench;

/* ---- the generator --------------------------------------------------------------------------------------------------------- */

/* The same curve in every layer, over experts in an order of the layer's own. */
static pot_status make_heat(bench *b, pot_err *err) {
    const pot_config *c = pot_model_config(b->model);
    for (uint32_t l = 0; l < c->n_layers; l++) {
        if (c->layer_is_dense[l]) continue;
        if (!b->n_sparse++) b->first_sparse = l;
    }
    b->k = c->top_k;
    b->heat = (pot_heat){.n_layers = b->n_sparse, .n_experts = c->n_routed};
    b->heat.of = pot_alloc_array((size_t)b->n_sparse * c->n_routed, sizeof *b->heat.of);
    b->heat.layer = pot_alloc_array(b->n_sparse, sizeof *b->heat.layer);
    b->chosen = pot_alloc_array((size_t)b->n_sparse * b->k * PREFILL_ROWS, sizeof *b->chosen);
    b->guessed = pot_alloc_array((size_t)b->n_sparse * b->k, sizeof *b->guessed);
    if (!b->heat.of || !b->heat.layer || !b->chosen || !b->guessed)
        return pot_fail(err, POT_NO_MEMORY, "no memory for the heat of %u layers", b->n_sparse);
    uint64_t state = SEED;
    for (uint32_t l = 0; l < b->n_sparse; l++) {
        double *of = b->heat.of + (size_t)l * c->n_routed;
        b->heat.layer[l] = b->first_sparse + l;
        for (uint32_t e = 0; e < c->n_routed; e++) of[e] = heat_of_rank(e + 1, c->n_routed);
        for (uint32_t e = c->n_routed; e-- > 1;) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            uint32_t other = (uint32_t)((state >> 33) % (e + 1));
            double swap = of[e];
            of[e] = of[other];
            of[other] = swap;
        }
    }
    return POT_OK;
}

/* ---- one layer ------------------------------------------------------------------------------------------------------------- */

/* WORK of `n` rows (all of the same numbers: which are no matter to the store), each with its experts and the common one. */
static pot_message *make_work(const bench *b, const pot_store *store, uint32_t layer, uint32_t n,
                              const uint32_t *experts, size_t stride, const uint32_t *hints) {
    const pot_layer_shape *shape = &pot_model_layer_shapes(b->model)[layer];
    const pot_ffn_shape *routed = pot_model_routed(b->model, layer), *common = pot_model_common(b->model, layer);
    unsigned forms = routed ? pot_act_need(routed->gate_up_format) : 0;
    if (common) forms |= pot_act_need(common->gate_up_format);
    const uint32_t of_row = (routed ? b->k : 0) + (common ? 1 : 0);
    pot_wire_header h = {.magic = POT_WIRE_MAGIC,
                         .version = POT_WIRE_VERSION,
                         .type = POT_WIRE_WORK,
                         .layer = layer,
                         .epoch = pot_store_epoch(store),
                         .n_rows = n,
                         .n_items = n * of_row,
                         .n_hints = (uint16_t)(hints ? b->k : 0),
                         .formats = (uint8_t)forms,
                         .grid = (int8_t)pot_model_grid(b->model, layer),
                         .columns = pot_model_config(b->model)->hidden};
    pot_wire_layout layout;
    pot_wire_work_layout(&layout, &h);
    h.payload_bytes = layout.bytes - POT_WIRE_HEADER_BYTES;
    pot_message *m = pot_transport_message(b->ends[0], layout.bytes);
    if (!m) return NULL;
    m->n_bytes = layout.bytes;
    memset(m->bytes + layout.hints, 0, layout.bytes - layout.hints);
    pot_wire_put_header(m->bytes, &h);
    for (uint32_t i = 0; i < n; i++) {
        uint8_t *at = m->bytes + layout.items + (size_t)i * of_row * POT_WIRE_ITEM_BYTES;
        pot_wire_put_row(m->bytes + layout.rows + i * layout.row_stride, &b->acts.rows[0], forms, h.columns);
        for (uint32_t j = 0; j < of_row; j++, at += POT_WIRE_ITEM_BYTES) {
            const bool is_routed = routed && j < b->k;
            const pot_wire_item item = {.row = i,
                                        .expert = is_routed ? experts[i * stride + j] : shape->n_routed,
                                        .chunk_end =
                                            (uint16_t)(is_routed ? shape->routed_chunks : shape->common_chunks),
                                        .kind = POT_KIND_FFN,
                                        .weight = is_routed ? 1.0f / (float)b->k : 1.0f};
            pot_wire_put_item(at, &item);
        }
    }
    for (uint32_t i = 0; hints && i < b->k; i++) pot_wire_put_hint(m->bytes, &layout, i, hints[i]);
    return m;
}

static void note_miss(bench *b, const pot_store *store, uint32_t layer, uint32_t expert) {
    const pot_ffn_shape *shape = pot_model_expert_shape(b->model, layer, expert);
    for (uint32_t c = 0; c < shape->n_chunks; c++) {
        pot_chunk_place place;
        if (pot_store_holds(store, layer, expert, c) ||
            pot_model_chunk_place(&place, b->model, layer, expert, c, NULL) != POT_OK)
            continue;
        b->reads[b->n_reads] = (pot_read){.file = b->plain_file[layer],
                                          .bytes = (uint32_t)pot_chunk_bytes(shape, c),
                                          .offset = place.offset,
                                          .into = b->slots.base + b->n_reads * b->slot_bytes};
        b->n_reads++;
    }
}

/* Seconds that a reader needs for the noted chunks, which does nothing else. */
static pot_status read_again(bench *b, double *seconds, pot_err *err) {
    double start = pot_bench_seconds();
    for (uint32_t i = 0; i < b->n_reads; i++) {
        pot_read *r = &b->reads[i];
        pot_reader_submit(b->plain, &r, 1, false);
    }
    for (uint32_t i = 0; i < b->n_reads; i++) {
        pot_read *r = pot_reader_take(b->plain, READ_BACK_US);
        if (!r) return pot_fail(err, POT_TIMEOUT, "%s: the disk does not answer", pot_model_directory(b->model));
        if (r->status != POT_OK) return pot_fail(err, r->status, "%s: cannot be read", pot_model_directory(b->model));
    }
    *seconds += pot_bench_seconds() - start;
    return POT_OK;
}

static int ascending(const void *a, const void *b) {
    const uint32_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

static pot_status pass_layer(bench *b, result *out, pot_store *store, uint32_t layer, uint32_t n,
                             const uint32_t *experts, size_t stride, const uint32_t *hints, pot_err *err) {
    uint64_t request, step;
    uint32_t at;
    pot_message *reply;
    const pot_layer_shape *shape = &pot_model_layer_shapes(b->model)[layer];
    b->n_reads = 0;
    if (n == 1) { /* a prompt reads nearly everything: its pattern is that of loading */
        for (uint32_t j = 0; shape->n_routed && j < b->k; j++) note_miss(b, store, layer, experts[j]);
        if (shape->common_chunks) note_miss(b, store, layer, shape->n_routed);
    }
    pot_message *m = make_work(b, store, layer, n, experts, stride, hints);
    if (!m) return pot_fail(err, POT_NO_MEMORY, "no memory for a message");
    double start = pot_bench_seconds();
    pot_status s = pot_work_run(b->work, &reply, b->ends[1], store, m, &request, &step, &at, err);
    out->total_s += pot_bench_seconds() - start;
    pot_message_release(b->ends[0], m);
    if (s != POT_OK) return s;
    pot_message_release(b->ends[1], reply);
    out->compute_s += pot_work_record(b->work)->compute_us / 1e6;
    out->wait_s += (double)pot_store_last_step(store)->wait_us / 1e6;
    out->load_s += (double)pot_store_last_step(store)->load_us / 1e6;
    return b->n_reads ? read_again(b, &out->device_s, err) : POT_OK;
}

/* ---- one case -------------------------------------------------------------------------------------------------------------- */

static pot_status draw(bench *b, pot_routing *routing, const bench_case *c) {
    const size_t all = (size_t)b->n_sparse * b->k;
    const uint32_t rows = c->prefill ? PREFILL_ROWS : 1;
    for (uint32_t i = 0; i < rows; i++) {
        (void)pot_routing_next(routing, b->chosen + i * all);
        for (uint32_t l = 0; l < b->n_sparse; l++)
            qsort(b->chosen + i * all + (size_t)l * b->k, b->k, sizeof *b->chosen, ascending);
    }
    if (c->prefetch) pot_routing_guess(routing, 0.72, b->guessed);
    return POT_OK;
}

static pot_status pass_token(bench *b, result *out, pot_store *store, pot_routing *routing, const bench_case *c,
                             pot_err *err) {
    const pot_config *config = pot_model_config(b->model);
    const size_t all = (size_t)b->n_sparse * b->k;
    pot_status s = draw(b, routing, c);
    for (uint32_t layer = 0; layer < config->n_layers && s == POT_OK; layer++) {
        const bool sparse = !config->layer_is_dense[layer];
        const uint32_t at = sparse ? layer - b->first_sparse : 0;
        const bool hinted = c->prefetch && layer + 1 < config->n_layers && layer + 1 >= b->first_sparse;
        s = pass_layer(b, out, store, layer, c->prefill ? PREFILL_ROWS : 1, b->chosen + (size_t)at * b->k, all,
                       hinted ? b->guessed + (size_t)(layer + 1 - b->first_sparse) * b->k : NULL, err);
    }
    return s;
}

static pot_status open_plain(bench *b, const pot_store_choice *choice, pot_err *err) {
    const pot_reader_options options = {.path = POT_READ_PATH_DIRECT, .depth = choice->reader.depth};
    pot_status s = pot_reader_create(&b->plain, &options, err);
    for (uint32_t l = 0; l < pot_model_layers(b->model) && s == POT_OK; l++) {
        const char *path = pot_model_chunk_file(b->model, l);
        if (path) s = pot_reader_open(&b->plain_file[l], b->plain, path, err);
    }
    return s;
}

static pot_status run_case(bench *b, result *out, const bench_case *c, uint32_t tokens, pot_err *err) {
    _Atomic uint64_t loaded = 0, total = 0;
    pot_store *store = NULL;
    pot_routing *routing = NULL;
    pot_store_stats before, after;
    pot_store_options o = {.model = b->model,
                           .map = b->map,
                           .team = b->compute.team,
                           .threads = pot_team_threads(b->compute.team),
                           .loaded_bytes = &loaded,
                           .total_bytes = &total};
    pot_status s = pot_settings_store(&o.choice, b->cli->settings, err);
    if (s != POT_OK) return s;
    o.choice.usage = NULL; /* cases must not learn from each other */
    o.choice.vram_bytes = 0;
    o.choice.disk_cache = NULL;
    o.choice.policy = c->policy;
    o.choice.reader.engine = c->engine;
    o.choice.reader.path = c->path;
    o.choice.prefetch = c->prefetch;
    if (c->share > 0)
        o.choice.ram_bytes = (uint64_t)(c->share * (double)b->owned_bytes) + (c->share == 1 ? 64 << 20 : 0);
    const uint64_t resident = pot_memory_resident();
    pot_memory_peak_reset();
    s = pot_store_open(&store, &o, err);
    if (s == POT_OK) s = open_plain(b, &o.choice, err);
    const pot_routing_options routes = {.heat = &b->heat, POT_ROUTING_GLM_52, .seed = SEED};
    pot_routing_options r = routes;
    r.k = b->k;
    if (s == POT_OK) s = pot_routing_create(&routing, &r, err);
    result warm = {0};
    for (uint32_t t = 0; t < WARM_TOKENS && s == POT_OK && !c->prefill; t++)
        s = pass_token(b, &warm, store, routing, c, err);
    if (s == POT_OK) {
        pot_store_get_stats(&before, store);
        *out = (result){.tokens = tokens};
        for (uint32_t t = 0; t < tokens && s == POT_OK; t++)
            s = pot_stop_requested() ? pot_fail(err, POT_CANCELLED, "stopped by a signal")
                                     : pass_token(b, out, store, routing, c, err);
        pot_store_get_stats(&after, store);
        const uint64_t wanted =
            after.cache.wanted - before.cache.wanted + after.cache.scan_wanted - before.cache.scan_wanted;
        const uint64_t hits = after.cache.hits - before.cache.hits + after.cache.scan_hits - before.cache.scan_hits;
        out->hit_rate = wanted ? (double)hits / (double)wanted : 0;
        out->disk_bytes = after.read_bytes - before.read_bytes;
        out->reads = after.reads - before.reads;
        out->budget_bytes = after.budget_bytes;
        const uint64_t peak = pot_memory_peak();
        out->peak_bytes = peak > resident ? peak - resident : 0;
        snprintf(out->mode, sizeof out->mode, "%s/%s", after.read_engine, after.read_path);
    }
    pot_routing_free(routing);
    b->slots_are_ours = pot_reader_free(b->plain) && b->slots_are_ours;
    b->plain = NULL;
    pot_store_free(store);
    return s;
}

/* ---- reporting ------------------------------------------------------------------------------------------------------------- */

static void report(pot_buffer *out, const bench *b, const bench_case *c, const result *r) {
    const double gb = (double)r->disk_bytes / 1e9;
    const double read = r->load_s > 0 ? gb / r->load_s : 0, device = r->device_s > 0 ? gb / r->device_s : 0;
    const char *policy = pot_cache_policy_name(c->policy), *phase = c->prefill ? "prefill" : "decode";
    if (b->cli->settings->json) {
        pot_buffer_text(out, "{\"model\": ");
        pot_json_quote(out, pot_model_directory(b->model), strlen(pot_model_directory(b->model)));
        pot_buffer_format(
            out,
            ", \"phase\": \"%s\", \"policy\": \"%s\", \"read_mode\": \"%s\", \"prefetch\": %s, \"owned_bytes\": %llu, "
            "\"budget_bytes\": %llu, \"peak_bytes\": %llu, \"tokens\": %llu, \"hit_rate\": %.4f, \"disk_bytes\": %llu, "
            "\"read_gbps\": %.3f, \"device_gbps\": %.3f, \"load_s\": %.4f, \"wait_s\": %.4f, \"compute_s\": %.4f, "
            "\"total_s\": %.4f}\n",
            phase, policy, r->mode, c->prefetch ? "true" : "false", (unsigned long long)b->owned_bytes,
            (unsigned long long)r->budget_bytes, (unsigned long long)r->peak_bytes, (unsigned long long)r->tokens,
            r->hit_rate, (unsigned long long)r->disk_bytes, read, device, r->load_s, r->wait_s, r->compute_s,
            r->total_s);
        return;
    }
    pot_buffer_format(out, "%-8s %-10s%-9s %-16s %9.2f %9.2f %7.1f%% %9.3f %9.3f %8.2f %8.2f %8.2f %8.2f\n", phase,
                      policy, c->prefetch ? "+prefetch" : "", r->mode, (double)r->budget_bytes / 1e9,
                      (double)r->peak_bytes / 1e9, 100 * r->hit_rate, read, device, r->load_s, r->wait_s, r->compute_s,
                      r->total_s);
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------- */

static uint32_t list_cases(bench_case *out, const pot_settings *settings) {
    const double shares[] = {0.05, 0.30, 1.0};
    const bool given = settings->ram != UINT64_MAX;
    uint32_t n = 0;
#define CASE(...) \
    out[n++] = (bench_case) { __VA_ARGS__ }
    for (uint32_t i = 0; i < (given ? 1 : 3); i++)
        for (int p = 0; p < POT_CACHE_POLICIES; p++) { /* one way of reading, so that they can be compared */
            const double share = given ? 0 : shares[i];
            if (share == 1.0 && p != POT_CACHE_LFU_DECAY) continue; /* nothing is ever evicted */
            if (settings->quick && p != POT_CACHE_LFU_DECAY && p != POT_CACHE_LRU) continue;
            CASE(.policy = (pot_cache_policy)p, .path = POT_READ_PATH_DIRECT, .share = share);
        }
    const double share = given ? 0 : 0.30;
    for (int engine = POT_READ_ENGINE_URING; engine <= POT_READ_ENGINE_POOL; engine++)
        for (int path = POT_READ_PATH_DIRECT; path <= POT_READ_PATH_CACHED; path++)
            CASE(.engine = (pot_read_engine)engine, .path = (pot_read_path)path, .share = share);
    CASE(.path = POT_READ_PATH_DIRECT, .share = share, .prefetch = true);
    CASE(.path = POT_READ_PATH_DIRECT, .share = share, .prefill = true);
#undef CASE
    return n;
}

static pot_status open_bench(bench *b, pot_err *err) {
    const pot_settings *settings = b->cli->settings;
    pot_format_policy policy;
    size_t most = 0;
    pot_status s = pot_settings_policy(&policy, settings, err);
    if (s == POT_OK) s = pot_model_open(&b->model, b->cli->arguments[0], &policy, err);
    if (s != POT_OK) return s;
    if (!pot_model_is_packed(b->model))
        return pot_fail(
            err, POT_USAGE,
            "%s is not converted: only experts of a converted model are read from disk (`potluck convert`, or "
            "`potluck bench slice` for one to measure with)",
            pot_model_directory(b->model));
    const uint32_t layers = pot_model_layers(b->model), hidden = pot_model_config(b->model)->hidden;
    s = pot_map_make(&b->map, "contiguous", 1, 1, pot_model_layer_shapes(b->model), layers, err);
    if (s == POT_OK) s = pot_kernels_pick(&b->compute.kernels, settings->kernels, err);
    if (s == POT_OK) s = pot_team_create(&b->compute.team, pot_threads_choose((int)settings->threads, 1), false, err);
    if (s == POT_OK) s = pot_transport_mem_create(b->ends, 2, err);
    if (s == POT_OK) s = pot_work_create(&b->work, b->model, &b->compute, err);
    if (s == POT_OK) s = pot_acts_create(&b->acts, 1, hidden, err);
    if (s == POT_OK) s = make_heat(b, err);
    if (s != POT_OK) return s;
    b->owned_bytes = pot_model_worker_bytes(b->model, b->map, 0);
    for (uint32_t l = 0; l < layers; l++) {
        const pot_layer_shape *shape = &pot_model_layer_shapes(b->model)[l];
        for (uint32_t e = 0; e < pot_layer_experts(shape); e += shape->n_routed ? shape->n_routed : 1) {
            size_t bytes = pot_chunk_bytes(pot_model_expert_shape(b->model, l, e), 0);
            if (bytes > b->slot_bytes) b->slot_bytes = bytes;
        }
        size_t chunks = (size_t)b->k * shape->routed_chunks + shape->common_chunks;
        if (chunks > most) most = chunks;
    }
    float *x = pot_alloc_array(hidden, sizeof *x);
    b->reads = pot_alloc_array(most, sizeof *b->reads);
    b->plain_file = pot_alloc_array(layers, sizeof *b->plain_file);
    if (!x || !b->reads || !b->plain_file) {
        pot_free(x);
        return pot_fail(err, POT_NO_MEMORY, "no memory to read again what the store reads");
    }
    s = pot_slab_create(&b->slots, most * b->slot_bytes, "what is read again", err);
    if (s != POT_OK) {
        pot_free(x);
        return s;
    }
    memset(b->slots.base, 0, most * b->slot_bytes); /* not to be counted as the first case's */
    for (uint32_t i = 0; i < hidden; i++) x[i] = (float)((i * 37) % 101) / 50.0f - 1.0f;
    s = pot_acts_fill(&b->acts, &b->compute, x, hidden, hidden, 1, POT_ACT_Q8 | POT_ACT_F32, err);
    pot_free(x);
    return s;
}

static void close_bench(bench *b) {
    pot_work_free(b->work);
    pot_transport_close(b->ends[0], 0);
    pot_transport_close(b->ends[1], 0);
    pot_team_free(b->compute.team);
    pot_acts_free(&b->acts);
    pot_map_free(b->map);
    pot_model_close(b->model);
    pot_free(b->heat.of);
    pot_free(b->heat.layer);
    pot_free(b->chosen);
    pot_free(b->guessed);
    pot_free(b->reads);
    pot_free(b->plain_file);
    if (b->slots_are_ours) pot_slab_free(&b->slots);
}

pot_status pot_cmd_bench_store(const pot_cli *cli, pot_err *err) {
    bench b = {.cli = cli, .slots_are_ours = true};
    bench_case cases[MOST_CASES];
    pot_buffer text = {0};
    pot_status s = open_bench(&b, err);
    uint32_t n = s == POT_OK ? list_cases(cases, cli->settings) : 0;
    if (s == POT_OK && !cli->settings->json) {
        pot_buffer_format(
            &text,
            "%s: %.2f GB of experts; sizes in GB, rates in GB/s, times in s\n\n%-8s %-19s %-16s %9s %9s %8s %9s %9s "
            "%8s %8s %8s %8s\n",
            pot_model_directory(b.model), (double)b.owned_bytes / 1e9, "phase", "policy", "read mode", "budget", "peak",
            "hits", "read", "device", "load", "wait", "compute", "total");
        s = pot_out_buffer(cli->out, &text, err);
    }
    for (uint32_t i = 0; i < n && s == POT_OK && !cli->out->closed; i++) {
        result r = {0};
        uint32_t tokens = cli->settings->tokens ? (uint32_t)cli->settings->tokens : cli->settings->quick ? 12 : 48;
        s = run_case(&b, &r, &cases[i], cases[i].prefill ? 1 : tokens, err);
        if (s != POT_OK) break;
        report(&text, &b, &cases[i], &r);
        s = pot_out_buffer(cli->out, &text, err);
    }
    pot_buffer_free(&text);
    close_bench(&b);
    return s;
}
