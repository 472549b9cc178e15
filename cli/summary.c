/* The report at the end of a run, as text for people and as one JSON line for programs.
 *
 * A span is the difference of counters: attention, router and head are the engine's, wire, wait and experts those of moe.c.  What is
 * left of the wall time (norms, embedding, sampling, output) is `other`, so the phases of a span add up to its whole. */
#include "cli/summary.h"

#include <string.h>

#include "common/clock.h"
#include "common/json.h"
#include "model/model.h"

void pot_span_begin(pot_span *mark, const pot_cluster *cluster) {
    const pot_engine_stats *engine = pot_engine_get_stats(cluster->engine);
    const pot_moe_stats *moe = pot_moe_get_stats(cluster->moe);
    *mark = (pot_span){.wall_us = pot_now_us(),
                       .attention_us = engine->attention_us,
                       .router_us = engine->router_us,
                       .head_us = engine->head_us,
                       .wire_us = moe->wire_us,
                       .wait_us = moe->wait_us,
                       .experts_us = moe->experts_us};
}

void pot_span_end(pot_span *total, const pot_span *mark, const pot_cluster *cluster, uint64_t tokens) {
    pot_span now, step = {0};
    pot_span_begin(&now, cluster);
    step.wall_us = now.wall_us - mark->wall_us;
    uint64_t known = 0;
#define X(name) step.name##_us = now.name##_us - mark->name##_us, known += step.name##_us;
    POT_PHASE_MAP(X)
#undef X
    step.other_us = step.wall_us > known ? step.wall_us - known : 0;
#define X(name) total->name##_us += step.name##_us;
    POT_PHASE_MAP(X)
#undef X
    total->wall_us += step.wall_us;
    total->tokens += tokens;
}

static double tokens_per_s(const pot_span *span) {
    return span->wall_us ? (double)span->tokens * 1e6 / (double)span->wall_us : 0;
}

/* ---- text --------------------------------------------------------------------------------------------------------- */

static void span_line(pot_buffer *out, const char *name, const pot_span *span) {
    pot_buffer_format(out, "%-10s %8llu tokens %9.2f s %9.1f tok/s\n", name, (unsigned long long)span->tokens,
                      (double)span->wall_us / 1e6, tokens_per_s(span));
}

static void phase_line(pot_buffer *out, const char *name, const pot_summary *s, uint64_t prefill_us,
                       uint64_t decode_us) {
    const uint64_t part[2] = {prefill_us, decode_us}, whole[2] = {s->prefill->wall_us, s->decode->wall_us};
    pot_buffer_format(out, "  %-10s", name);
    for (int i = 0; i < 2; i++) {
        pot_buffer_format(out, " %10.1f ms %4.0f%%", (double)part[i] / 1e3,
                          whole[i] ? 100.0 * (double)part[i] / (double)whole[i] : 0.0);
    }
    pot_buffer_byte(out, '\n');
}

static double percent(uint64_t part, uint64_t whole) { return whole ? 100.0 * (double)part / (double)whole : 100.0; }

void pot_summary_text(pot_buffer *out, const pot_summary *s) {
    uint32_t workers = pot_peers_count(s->cluster->peers);
    pot_buffer_format(out, "\nloaded     in %.2f s, %u worker%s, context %u tokens\n",
                      (double)s->cluster->load_us / 1e6, workers, workers == 1 ? "" : "s", s->ctx_tokens);
    span_line(out, "prefill", s->prefill);
    span_line(out, "decode", s->decode);
    pot_buffer_format(out, "stopped by %s after %u tokens", s->stopped_by, s->generated_tokens);
    if (s->sampled) pot_buffer_format(out, ", --seed %llu gives the same again", (unsigned long long)s->seed);
    pot_buffer_format(out, "\n\n  %-10s %18s %19s\n", "phase", "prefill", "decode");
#define X(name) phase_line(out, #name, s, s->prefill->name##_us, s->decode->name##_us);
    POT_PHASE_MAP(X)
#undef X
    pot_buffer_format(out, "\n  %-6s %-20s %-8s %9s %11s %11s %12s %11s %8s %11s %7s\n", "worker", "host", "kernels",
                      "rounds", "sent MiB", "back MiB", "compute ms", "holds MiB", "in mem", "disk MiB", "GB/s");
    for (uint32_t w = 0; w < workers; w++) {
        const pot_peer_stats *p = pot_peers_stats(s->cluster->peers, w);
        pot_buffer_format(out, "  %-6u %-20.20s %-8.8s %9llu %11.2f %11.2f %12.1f %11.1f %7.1f%% %11.1f %7.2f\n", w,
                          p->host, p->kernels, (unsigned long long)p->rounds, (double)p->sent_bytes / 1048576,
                          (double)p->received_bytes / 1048576, (double)p->compute_us / 1e3,
                          (double)p->held_bytes / 1048576, percent(p->read_bytes - p->disk_bytes, p->read_bytes),
                          (double)p->disk_bytes / 1048576,
                          p->load_us ? (double)p->disk_bytes / 1e3 / (double)p->load_us : 0.0);
    }
    const pot_engine_stats *engine = pot_engine_get_stats(s->cluster->engine);
    if (engine->hints)
        pot_buffer_format(out, "\n  --prefetch: %.1f%% of the experts that were expected a layer ahead were chosen\n",
                          percent(engine->hints_right, engine->hints));
}

/* ---- JSON --------------------------------------------------------------------------------------------------------- */

static void span_json(pot_buffer *out, const char *name, const pot_span *span) {
    pot_buffer_format(out, "\"%s\": {\"tokens\": %llu, \"seconds\": %.6f, \"tokens_per_s\": %.3f, \"phase_us\": {",
                      name, (unsigned long long)span->tokens, (double)span->wall_us / 1e6, tokens_per_s(span));
    const char *comma = "";
#define X(phase)                                                                                   \
    pot_buffer_format(out, "%s\"" #phase "\": %llu", comma, (unsigned long long)span->phase##_us); \
    comma = ", ";
    POT_PHASE_MAP(X)
#undef X
    pot_buffer_text(out, "}}, ");
}

void pot_summary_json(pot_buffer *out, const pot_summary *s) {
    pot_buffer_format(out, "{\"load_seconds\": %.6f, \"ctx\": %u, \"prompt_tokens\": %u, \"generated_tokens\": %u, ",
                      (double)s->cluster->load_us / 1e6, s->ctx_tokens, s->prompt_tokens, s->generated_tokens);
    pot_buffer_format(out, "\"stopped_by\": \"%s\", \"seed\": ", s->stopped_by);
    if (s->sampled) {
        pot_buffer_format(out, "%llu, ", (unsigned long long)s->seed);
    } else {
        pot_buffer_text(out, "null, ");
    }
    span_json(out, "prefill", s->prefill);
    span_json(out, "decode", s->decode);
    pot_buffer_text(out, "\"workers\": [");
    for (uint32_t w = 0; w < pot_peers_count(s->cluster->peers); w++) {
        const pot_peer_stats *p = pot_peers_stats(s->cluster->peers, w);
        pot_buffer_text(out, w ? ", {\"host\": " : "{\"host\": ");
        pot_json_quote(out, p->host, strlen(p->host));
        pot_buffer_text(out, ", \"kernels\": ");
        pot_json_quote(out, p->kernels, strlen(p->kernels));
        pot_buffer_format(out,
                          ", \"rounds\": %llu, \"sent_bytes\": %llu, \"received_bytes\": %llu, \"compute_us\": %llu, "
                          "\"held_bytes\": %llu, \"read_bytes\": %llu, \"disk_bytes\": %llu, \"load_us\": %llu}",
                          (unsigned long long)p->rounds, (unsigned long long)p->sent_bytes,
                          (unsigned long long)p->received_bytes, (unsigned long long)p->compute_us,
                          (unsigned long long)p->held_bytes, (unsigned long long)p->read_bytes,
                          (unsigned long long)p->disk_bytes, (unsigned long long)p->load_us);
    }
    const pot_engine_stats *engine = pot_engine_get_stats(s->cluster->engine);
    pot_buffer_format(out, "], \"hints\": %llu, \"hints_right\": %llu}\n", (unsigned long long)engine->hints,
                      (unsigned long long)engine->hints_right);
}
