/* potluck plan MODEL: what lies where, what a token reads from where, how long that takes, what decides it and what would help, before
 * anything is loaded. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/plan.h"
#include "common/json.h"
#include "common/mem.h"
#include "coordinator/cluster.h"

/* Parts of a token's time: those of placement/cost.h and the coordinator's.  X(name, words) */
#define PART_MAP(X)                              \
    X(dense, "dense weights of the coordinator") \
    X(attention, "attention over the context")   \
    X(link, "links to the workers")              \
    X(items, "beside the bytes of experts")      \
    X(vram, "experts in VRAM")                   \
    X(ram, "experts in RAM")                     \
    X(disk, "experts from disk")                 \
    X(port, "the coordinator's port")
enum {
#define X(name, words) PART_##name,
    PART_MAP(X)
#undef X
        PARTS
};
static const char *const part_words[] = {
#define X(name, words) words,
    PART_MAP(X)
#undef X
};
static const char *const part_names[] = {
#define X(name, words) #name,
    PART_MAP(X)
#undef X
};

typedef struct report {
    const plan_task *task;
    const plan_cluster *cluster;
    const plan_result *result;
    const char *model;
    double parts[PARTS];
    int largest;
    plan_ideas ideas;
    char bottleneck[512];
} report;

static double gib(double bytes) { return bytes / 0x1p30; }

/* "3.4 GB": what a token reads, where small models are small. */
typedef struct words {
    char text[24];
} words;
static words size_words(double bytes) {
    static const char *const units[] = {"GB", "MB", "kB"};
    words w;
    int u = bytes >= 1e8 ? 0 : bytes >= 1e5 ? 1 : 2;
    snprintf(w.text, sizeof w.text, "%.3g %s", bytes / (u == 0 ? 1e9 : u == 1 ? 1e6 : 1e3), units[u]);
    return w;
}

/* ---- what decides --------------------------------------------------------------------------------------------------------------- */

static void split(report *r) {
    const plan_result *p = r->result;
    const pot_cost_time *t = &p->time;
    const double parts[PARTS] = {p->dense_s, p->attention_s, t->link_s, t->items_s,
                                 t->vram_s,  t->ram_s,       t->disk_s, t->port_s};
    memcpy(r->parts, parts, sizeof parts);
    for (int i = 0; i < PARTS; i++)
        if (parts[i] > parts[r->largest]) r->largest = i;
}

static void say_bottleneck(report *r) {
    const plan_result *p = r->result;
    int tier = r->largest == PART_vram ? POT_COST_VRAM : r->largest == PART_ram ? POT_COST_RAM : POT_COST_DISK;
    uint32_t worst = 0;
    int at = snprintf(r->bottleneck, sizeof r->bottleneck, "%s: %.0f%% of a token's time", part_words[r->largest],
                      100 * r->parts[r->largest] / p->token_s);
    char *rest = r->bottleneck + at;
    size_t room = sizeof r->bottleneck - (size_t)at;
    for (uint32_t w = 1; w < r->cluster->n; w++)
        if (p->workers[w].alone_s > p->workers[worst].alone_s) worst = w;
    const plan_machine *m = &r->cluster->machines[worst];
    switch (r->largest) {
    case PART_dense:
        snprintf(rest, room, "; %s at %.1f GB/s on %s", size_words(p->dense_bytes).text,
                 r->cluster->machines[0].dense_bytes_per_s / 1e9, r->cluster->machines[0].name);
        break;
    case PART_vram:
    case PART_ram:
    case PART_disk:
        snprintf(rest, room, "; the slowest is worker %u on %s, which reads %s a token at %.1f GB/s", worst, m->name,
                 size_words(p->workers[worst].wanted_bytes[tier] +
                            (tier == POT_COST_RAM ? p->workers[worst].wanted_bytes[POT_COST_DISK] : 0))
                     .text,
                 m->speed.bytes_per_s[tier] / 1e9);
        break;
    case PART_link:
        snprintf(rest, room, "; the slowest is worker %u on %s, %.3f ms and %.1f MB/s away, asked once a layer", worst,
                 m->name, 1e3 * m->speed.link_s, m->speed.link_bytes_per_s / 1e6);
        break;
    default: break;
    }
}

/* ---- text ----------------------------------------------------------------------------------------------------------------------- */

static void print_workers(pot_buffer *out, const report *r) {
    const plan_result *p = r->result;
    pot_buffer_format(out, "\n  %-6s %-20s %9s | %9s %9s %9s | %9s %9s %9s | %8s\n", "worker", "machine", "owns GiB",
                      "VRAM GiB", "RAM GiB", "disk GiB", "VRAM MB", "RAM MB", "disk MB", "alone ms");
    for (uint32_t w = 0; w < r->cluster->n; w++) {
        const plan_worker *k = &p->workers[w];
        pot_buffer_format(out, "  %-6u %-20.20s %9.3f |", w, r->cluster->machines[w].name, gib((double)k->owned_bytes));
        for (int t = 0; t < POT_COST_TIERS; t++) pot_buffer_format(out, " %9.3f", gib((double)k->lies_bytes[t]));
        pot_buffer_text(out, " |");
        for (int t = 0; t < POT_COST_TIERS; t++) pot_buffer_format(out, " %9.1f", k->wanted_bytes[t] / 1e6);
        pot_buffer_format(out, " | %8.2f\n", 1e3 * k->alone_s);
    }
    pot_buffer_text(out, "  (lies in | a token takes from it | its own time for a token, waiting for nobody)\n");
}

static void print_token(pot_buffer *out, const report *r) {
    const plan_result *p = r->result;
    double all = 0;
    for (int t = 0; t < POT_COST_TIERS; t++) all += p->time.bytes[t];
    pot_buffer_format(out, "\na token chooses %.0f experts and takes %s of experts", p->experts, size_words(all).text);
    for (int t = 0; all > 0 && t < POT_COST_TIERS; t++)
        pot_buffer_format(out, "%s %.1f%% from %s", t ? "," : ":", 100 * p->time.bytes[t] / all,
                          pot_cost_tier_text((pot_cost_tier)t));
    pot_buffer_text(out, "\n\n");
    for (int i = 0; i < PARTS; i++)
        pot_buffer_format(out, "  %-34s %10.2f ms %4.0f%%\n", part_words[i], 1e3 * r->parts[i],
                          100 * r->parts[i] / p->token_s);
    pot_buffer_format(out, "  %-34s %10.2f ms      = %.3g tok/s for one stream\n", "a token", 1e3 * p->token_s,
                      1 / p->token_s);
}

static void print_text(pot_buffer *out, const report *r) {
    const plan_result *p = r->result;
    pot_buffer_format(out, "plan      %s on %u worker%s, map %s, context of %u tokens\n", r->model, r->cluster->n,
                      r->cluster->n == 1 ? "" : "s", r->task->map, r->task->ctx_tokens);
    pot_buffer_format(out, "figures   %s\nchoices   %s\n", r->cluster->figures, r->task->choices);
    if (!pot_model_is_packed(r->task->model))
        pot_buffer_text(out,
                        "note      the model is not converted: it runs only where all of it fits into memory, and is "
                        "planned here as if `potluck convert` had packed it\n");
    pot_buffer_format(
        out,
        "\ncoordinator on %s: weights %.3f GiB, KV cache %.3f GiB, %.2f GiB kept free; experts of worker 0 in "
        "RAM: %.2f GiB\n",
        r->cluster->machines[0].name, gib((double)p->coordinator_bytes), gib((double)p->kv_bytes),
        gib((double)p->reserve_bytes), gib((double)p->ram_bytes[0]));
    print_workers(out, r);
    print_token(out, r);
    pot_buffer_format(out, "\nbottleneck  %s\n", r->bottleneck);
    for (int i = 0; i < r->ideas.n; i++)
        pot_buffer_format(out, "%s%-58s %8.3g tok/s  (%+.0f%%)\n", i ? "            " : "would help  ",
                          r->ideas.of[i].words, 1 / r->ideas.of[i].token_s,
                          100 * (p->token_s / r->ideas.of[i].token_s - 1));
}

/* ---- JSON ----------------------------------------------------------------------------------------------------------------------- */

static void json_text(pot_buffer *out, const char *key, const char *text) {
    pot_buffer_format(out, "\"%s\": ", key);
    pot_json_quote(out, text, strlen(text));
    pot_buffer_text(out, ", ");
}

static void json_tiers(pot_buffer *out, const char *key, const double *values) {
    pot_buffer_format(out, "\"%s\": {\"vram\": %.0f, \"ram\": %.0f, \"disk\": %.0f}", key, values[0], values[1],
                      values[2]);
}

static void json_workers(pot_buffer *out, const report *r) {
    pot_buffer_text(out, "\"workers\": [");
    for (uint32_t w = 0; w < r->cluster->n; w++) {
        const plan_worker *k = &r->result->workers[w];
        const plan_machine *m = &r->cluster->machines[w];
        double lies[POT_COST_TIERS];
        for (int t = 0; t < POT_COST_TIERS; t++) lies[t] = (double)k->lies_bytes[t];
        pot_buffer_text(out, w ? ", {" : "{");
        json_text(out, "machine", m->name);
        pot_buffer_format(out,
                          "\"owned_bytes\": %" PRIu64 ", \"ram_budget_bytes\": %" PRIu64
                          ", \"vram_budget_bytes\": %" PRIu64 ", ",
                          k->owned_bytes, r->result->ram_bytes[w], m->vram_bytes);
        json_tiers(out, "lies_bytes", lies);
        pot_buffer_text(out, ", ");
        json_tiers(out, "token_bytes", k->wanted_bytes);
        pot_buffer_format(out, ", \"token_units\": %.4f, \"alone_ms\": %.4f}", k->units, 1e3 * k->alone_s);
    }
    pot_buffer_text(out, "], ");
}

static void print_json(pot_buffer *out, const report *r) {
    const plan_result *p = r->result;
    pot_buffer_byte(out, '{');
    json_text(out, "model", r->model);
    json_text(out, "map", r->task->map);
    json_text(out, "figures", r->cluster->figures);
    json_text(out, "choices", r->task->choices);
    pot_buffer_format(
        out, "\"packed\": %s, \"ctx\": %u, \"coordinator_bytes\": %" PRIu64 ", \"kv_bytes\": %" PRIu64 ", ",
        pot_model_is_packed(r->task->model) ? "true" : "false", r->task->ctx_tokens, p->coordinator_bytes, p->kv_bytes);
    pot_buffer_format(out, "\"reserve_bytes\": %" PRIu64 ", \"token_dense_bytes\": %.0f, \"token_experts\": %.0f, ",
                      p->reserve_bytes, p->dense_bytes, p->experts);
    json_tiers(out, "token_bytes", p->time.bytes);
    pot_buffer_text(out, ", ");
    json_workers(out, r);
    pot_buffer_text(out, "\"ms\": {");
    for (int i = 0; i < PARTS; i++) pot_buffer_format(out, "\"%s\": %.4f, ", part_names[i], 1e3 * r->parts[i]);
    pot_buffer_format(out, "\"token\": %.4f}, \"tokens_per_s\": %.6g, ", 1e3 * p->token_s, 1 / p->token_s);
    json_text(out, "bottleneck_part", part_names[r->largest]);
    json_text(out, "bottleneck", r->bottleneck);
    pot_buffer_text(out, "\"would_help\": [");
    for (int i = 0; i < r->ideas.n; i++) {
        pot_buffer_text(out, i ? ", {" : "{");
        json_text(out, "change", r->ideas.of[i].words);
        pot_buffer_format(out, "\"tokens_per_s\": %.6g}", 1 / r->ideas.of[i].token_s);
    }
    pot_buffer_text(out, "]}\n");
}

/* ---- the command ---------------------------------------------------------------------------------------------------------------- */

static pot_status make_report(const pot_cli *cli, const plan_task *task, const plan_cluster *cluster,
                              plan_result *result, pot_err *err) {
    pot_buffer text = {0};
    pot_status status = plan_compute(result, task, cluster, err);
    if (status) return status;
    report r = {.task = task, .cluster = cluster, .result = result, .model = cli->arguments[0]};
    split(&r);
    say_bottleneck(&r);
    status = plan_find_ideas(&r.ideas, task, cluster, result, err);
    if (status) return status;
    if (cli->settings->json)
        print_json(&text, &r);
    else
        print_text(&text, &r);
    status = pot_out_buffer(cli->out, &text, err);
    pot_buffer_free(&text);
    return status;
}

pot_status pot_cmd_plan(const pot_cli *cli, pot_err *err) {
    const pot_settings *settings = cli->settings;
    pot_format_policy policy;
    pot_model *model = NULL;
    pot_status status = pot_settings_policy(&policy, settings, err);
    if (!status) status = pot_model_open(&model, cli->arguments[0], &policy, err);
    if (status) return status;
    uint32_t most = pot_model_config(model)->max_positions;
    plan_task task = {.model = model,
                      .map = settings->map,
                      .ctx_tokens = settings->ctx < most ? (uint32_t)settings->ctx : most,
                      .kv = settings->reference || settings->kv[0] == 'f' ? POT_KV_F32 : POT_KV_BF16};
    plan_cluster *cluster = pot_alloc(sizeof *cluster);
    plan_result *result = pot_alloc(sizeof *result);
    if (!cluster || !result) status = pot_fail(err, POT_NO_MEMORY, "no memory for a plan");
    if (!status) status = plan_machines(cluster, settings, err);
    if (!status) status = plan_read_heat(&task, settings, err);
    if (!status) status = make_report(cli, &task, cluster, result, err);
    pot_free(task.heat);
    pot_free(result);
    pot_free(cluster);
    pot_model_close(model);
    return status;
}
