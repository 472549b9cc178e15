/* potluck bench machine [PATH]: measures this machine, and under mpirun the machine of every rank and the way to it, one after the other, for a
 * cluster file.
 *
 * Each rank measures itself when rank 0 asks for it, and answers with a cluster file of one worker; a table for people goes along as its
 * comment lines.  Nothing else runs meanwhile, so ranks on one machine do not disturb each other, but then each believes that it has the machine
 * for itself: what they share is divided among them at the end. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <time.h>

#include "cli/cli.h"
#include "cli/machine_link.h"
#include "cli/machine_probe.h"
#include "common/json.h"
#include "common/log.h"
#include "common/progress.h"
#include "common/system.h"
#include "kernels/kernels.h"
#include "placement/cluster.h"

/* Reads of an expert's chunk in a small format, and of a whole chunk of GLM-5.2 (about 2.3 MB), and in between. */
static const uint32_t read_sizes[] = {256 << 10, 1 << 20, 2 << 20};
enum { N_SIZES = sizeof read_sizes / sizeof read_sizes[0], STORE_DEPTH = 8 };

typedef struct bench {
    const pot_cli *cli;
    const char *place; /* whose disk */
    char cache[512];
    uint32_t nth, beside; /* this process among those on its machine */
    pot_machine machine;
    pot_buffer table;
    pot_progress progress;
    uint64_t steps;
} bench;

/* ---- this machine ------------------------------------------------------------------------------------------------- */

static void row(bench *b, const char *what, double factor, const char *unit, const pot_spread *s) {
    pot_buffer_format(&b->table, "  %-30s %9.2f  %9.2f  %9.2f  %s\n", what, s->median * factor, s->p10 * factor,
                      s->p90 * factor, unit);
}

static void step(bench *b) { pot_progress_update(&b->progress, ++b->steps); }

static pot_status measure_memory(bench *b, pot_err *err) {
    probe_memory m;
    pot_memory_info info;
    pot_status status = probe_memory_measure(&m, b->cli->settings, b->cli->settings->quick ? 1 : 6, err);
    if (status) return status;
    pot_memory_read(&info);
    pot_machine *o = &b->machine;
    o->tiers[POT_COST_RAM].bytes = info.usable_bytes / 4096 * 4096;
    o->tiers[POT_COST_RAM].bytes_per_s = m.ram_gb_per_s.median * 1e9;
    o->dense_bytes_per_s = m.dense_gb_per_s.median * 1e9;
    o->operations_per_s = m.gop_per_s.median * 1e9;
    row(b, "RAM", 1, "GB/s", &m.ram_gb_per_s);
    row(b, "one row times q4g64", 1, "GB/s", &m.dense_gb_per_s);
    o->item_s = m.expert_s.median > 0 ? m.expert_s.median : 0;
    row(b, "f32 in registers", 1, "Gop/s", &m.gop_per_s);
    row(b, "an expert, beside its bytes", 1e6, "us", &m.expert_s);
    step(b);
    return POT_OK;
}

static pot_status measure_gpu(bench *b, pot_err *err) {
    probe_gpu g;
    pot_status status = probe_gpu_measure(&g, b->nth, b->beside, b->cli->settings->quick ? 0.5 : 3, err);
    if (status) return status;
    if (g.bytes) {
        b->machine.tiers[POT_COST_VRAM].bytes = g.bytes / 4096 * 4096;
        b->machine.tiers[POT_COST_VRAM].bytes_per_s = g.gb_per_s.median * 1e9;
        row(b, "VRAM, experts of mxfp4", 1, "GB/s", &g.gb_per_s);
    }
    step(b);
    return POT_OK;
}

static pot_status measure_curve(bench *b, probe_disk *disk, uint32_t bytes, pot_err *err) {
    bool quick = b->cli->settings->quick;
    pot_machine_curve *curve = &b->machine.curves[b->machine.n_curves];
    pot_status status = POT_OK;
    curve->read_bytes = bytes;
    for (int d = 0; !status && d < POT_MACHINE_DEPTHS; d++) {
        pot_spread s;
        char what[64];
        status = probe_disk_rate(&s, disk, pot_machine_depths[d], bytes, quick ? 3 : 7, quick ? 0.1 : 0.25, err);
        if (status) return status;
        snprintf(what, sizeof what, "disk, %2u reads of %u KiB", pot_machine_depths[d], bytes >> 10);
        row(b, what, 1, "GB/s", &s);
        curve->bytes_per_s[d] = s.median * 1e9;
        if (pot_machine_depths[d] == STORE_DEPTH) b->machine.tiers[POT_COST_DISK].bytes_per_s = s.median * 1e9;
        step(b);
    }
    b->machine.n_curves++;
    return status;
}

/* Of a model's disk: its files are there, and what is free; with a scratch file: what is free. */
static void count_disk(bench *b) {
    struct statvfs fs;
    if (statvfs(b->place, &fs)) return;
    b->machine.tiers[POT_COST_DISK].bytes = (uint64_t)fs.f_bavail * fs.f_frsize / 4096 * 4096;
}

static pot_status measure_disk(bench *b, pot_err *err) {
    bool quick = b->cli->settings->quick;
    probe_disk *disk = NULL;
    pot_status status = probe_disk_open(&disk, b->place, (uint64_t)(quick ? 256 : 1024) << 20, b->cli->settings, err);
    /* Without room for a scratch file all the rest is worth having. */
    if (status == POT_LIMIT && !b->cli->n_arguments) {
        pot_buffer_format(&b->table, "  disk: not measured: %s\n", err->text);
        return POT_OK;
    }
    for (int i = quick ? N_SIZES - 1 : 0; !status && i < N_SIZES; i++)
        status = measure_curve(b, disk, read_sizes[i], err);
    if (!status) {
        pot_buffer_format(&b->table, "  disk: %s, %s; %s%s\n", probe_disk_engine(disk), probe_disk_path(disk),
                          probe_disk_is_scratch(disk) ? "a scratch file in " : "", b->place);
        count_disk(b);
        b->machine.tiers[POT_COST_DISK].bytes += probe_disk_bytes(disk);
    }
    probe_disk_close(disk);
    return status;
}

static pot_status measure_here(bench *b, pot_err *err) {
    pot_machine *m = &b->machine;
    const pot_kernels *kernels;
    char cpu[128];
    bool quick = b->cli->settings->quick;
    pot_status status = pot_kernels_pick(&kernels, b->cli->settings->kernels, err);
    if (status) return status;
    (void)pot_cpus_widen();
    pot_roof_cpu(cpu, sizeof cpu);
    *m = (pot_machine){.cores = (uint32_t)pot_cpus_physical()};
    snprintf(m->host, sizeof m->host, "%.63s", pot_host_name());
    for (char *c = m->host; *c; c++) /* as a cluster file wants it */
        if (!isalnum((unsigned char)*c) && !strchr(".-_", *c)) *c = '-';
    if (!*m->host) snprintf(m->host, sizeof m->host, "unnamed");
    snprintf(m->isa, sizeof m->isa, "%.15s", kernels->name);
    pot_buffer_format(&b->table, "%s: %u cores, %s, %s\n  %-30s %9s  %9s  %9s\n", m->host, m->cores, kernels->name, cpu,
                      "", "median", "10%", "90%");
    pot_progress_begin_count(&b->progress, "measuring", 2 + POT_MACHINE_DEPTHS * (quick ? 1u : (unsigned)N_SIZES),
                             "steps", b->cli->settings->quiet || b->cli->launch.rank > 0);
    status = measure_memory(b, err);
    if (!status) status = measure_gpu(b, err);
    if (!status) status = measure_disk(b, err);
    pot_progress_end(&b->progress);
    return status;
}

/* ---- other ranks -------------------------------------------------------------------------------------------------- */

/* On a rank above 0: the table as comments, then a cluster of one. */
static pot_status answer(void *context, pot_buffer *text, pot_err *err) {
    bench *b = context;
    pot_machines *one = pot_alloc(sizeof *one);
    if (!one) return pot_fail(err, POT_NO_MEMORY, "no memory for what was measured");
    pot_status status = measure_here(b, err);
    if (!status) {
        one->n = 1;
        one->of[0] = b->machine;
        pot_machines_format(text, one);
        pot_buffer_byte(text, 0);
        pot_buffer_append(text, b->table.data, b->table.bytes);
    }
    pot_free(one);
    return status;
}

static pot_status ask(bench *b, pot_machine *out, probe_ranks *ranks, uint32_t rank, pot_err *err) {
    pot_buffer text = {0};
    pot_machines *one = pot_alloc(sizeof *one);
    if (!one) return pot_fail(err, POT_NO_MEMORY, "no memory for what was measured");
    pot_status status = probe_ranks_ask(&text, ranks, rank, err);
    if (!status && text.failed) status = pot_fail(err, POT_NO_MEMORY, "no memory for what was measured");
    if (!status && !text.bytes)
        status = pot_fail(err, POT_FORMAT, "rank %u on %s answers nothing", rank, probe_ranks_host(ranks, rank));
    if (!status) status = pot_machines_parse(one, text.data, strlen(text.data), probe_ranks_host(ranks, rank), err);
    if (!status) {
        size_t head = strlen(text.data) + 1;
        *out = one->of[0];
        if (head < text.bytes) pot_buffer_append(&b->table, text.data + head, text.bytes - head);
    }
    pot_buffer_free(&text);
    pot_free(one);
    return status;
}

/* What a round takes at best, and on average longer: the file's latency and jitter. */
static pot_status measure_link(bench *b, pot_machine *out, probe_ranks *ranks, uint32_t rank, pot_err *err) {
    probe_link l;
    pot_status status = probe_link_measure(&l, ranks, rank, b->cli->settings->quick ? 0.5 : 2, err);
    if (status) return status;
    row(b, "link, there and back", 1e6, "us", &l.round_s);
    row(b, "link, there", 1, "GB/s", &l.there);
    row(b, "link, back", 1, "GB/s", &l.back);
    row(b, "link, to give away a message", 1e6, "us", &l.send_s);
    out->link.latency_s = l.round_s.p10;
    out->link.jitter_s = l.round_mean_s > l.round_s.p10 ? l.round_mean_s - l.round_s.p10 : 0;
    out->link.bytes_per_s = 1e9 * (l.there.median < l.back.median ? l.there.median : l.back.median);
    out->link.message_s = l.send_s.median;
    return POT_OK;
}

static pot_status measure_others(bench *b, pot_machines *all, probe_ranks *ranks, pot_err *err) {
    pot_status status = POT_OK;
    for (uint32_t r = 1; !status && r < all->n; r++) {
        if (!b->cli->settings->quiet)
            POT_LOG(POT_LOG_INFO, "bench", "rank %u of 0 to %u, on %s", r, all->n - 1, probe_ranks_host(ranks, r));
        pot_buffer_format(&b->table, "\nrank %u, ", r);
        status = ask(b, &all->of[r], ranks, r, err);
        if (!status) status = measure_link(b, &all->of[r], ranks, r, err);
    }
    return status;
}

/* Ranks on one machine have its memory, cores and disk together. */
static void share(pot_machines *all) {
    uint32_t beside[POT_MAX_WORKERS];
    for (uint32_t a = 0; a < all->n; a++) {
        beside[a] = 0;
        for (uint32_t c = 0; c < all->n; c++) beside[a] += !strcmp(all->of[a].host, all->of[c].host);
    }
    for (uint32_t w = 0; w < all->n; w++) {
        pot_machine *m = &all->of[w];
        double n = beside[w];
        if (beside[w] < 2) continue;
        m->cores = m->cores > beside[w] ? m->cores / beside[w] : 1;
        m->dense_bytes_per_s /= n;
        m->operations_per_s /= n;
        for (int t = POT_COST_RAM; t < POT_COST_TIERS; t++) {
            m->tiers[t].bytes = m->tiers[t].bytes / beside[w] / 4096 * 4096;
            m->tiers[t].bytes_per_s /= n;
        }
        for (uint32_t c = 0; c < m->n_curves; c++)
            for (int d = 0; d < POT_MACHINE_DEPTHS; d++) m->curves[c].bytes_per_s[d] /= n;
    }
}

/* All messages pass one card: the fastest link to another machine is what it gives at least. */
static void find_port(pot_machines *all) {
    for (uint32_t w = 1; w < all->n; w++)
        if (strcmp(all->of[w].host, all->of[0].host) != 0 && all->of[w].link.bytes_per_s > all->port_bytes_per_s)
            all->port_bytes_per_s = all->of[w].link.bytes_per_s;
}

/* ---- the command -------------------------------------------------------------------------------------------------- */

static void put_json_worker(pot_buffer *out, const pot_machine *m) {
    static const char *const tiers[] = {"vram", "ram", "disk"};
    pot_buffer_text(out, "{\"host\": ");
    pot_json_quote(out, m->host, strlen(m->host));
    pot_buffer_format(out, ", \"cores\": %u, \"isa\": \"%s\"", m->cores, m->isa);
    for (int t = 0; t < POT_COST_TIERS; t++)
        pot_buffer_format(out, ", \"%s_bytes\": %" PRIu64 ", \"%s_bytes_per_s\": %.0f", tiers[t], m->tiers[t].bytes,
                          tiers[t], m->tiers[t].bytes_per_s);
    pot_buffer_format(
        out,
        ", \"dense_bytes_per_s\": %.0f, \"operations_per_s\": %.0f, \"item_us\": %.3f, \"link_latency_us\": %.3f, "
        "\"link_jitter_us\": %.3f, \"link_bytes_per_s\": %.0f, \"message_us\": %.3f, \"disk_reads\": [",
        m->dense_bytes_per_s, m->operations_per_s, m->item_s * 1e6, m->link.latency_s * 1e6, m->link.jitter_s * 1e6,
        m->link.bytes_per_s, m->link.message_s * 1e6);
    for (uint32_t c = 0; c < m->n_curves; c++)
        for (int d = 0; d < POT_MACHINE_DEPTHS; d++)
            pot_buffer_format(out, "%s{\"bytes\": %" PRIu64 ", \"depth\": %u, \"bytes_per_s\": %.0f}",
                              c || d ? ", " : "", m->curves[c].read_bytes, pot_machine_depths[d],
                              m->curves[c].bytes_per_s[d]);
    pot_buffer_text(out, "]}");
}

static void put_json(pot_buffer *out, const pot_machines *all) {
    pot_buffer_format(out, "{\"port_bytes_per_s\": %.0f, \"workers\": [", all->port_bytes_per_s);
    for (uint32_t w = 0; w < all->n; w++) {
        if (w) pot_buffer_text(out, ",\n ");
        put_json_worker(out, &all->of[w]);
    }
    pot_buffer_text(out, "]}\n");
}

static pot_status report(bench *b, const pot_machines *all, pot_err *err) {
    const char *path = b->cli->settings->out;
    if (path && b->table.failed) return pot_fail(err, POT_NO_MEMORY, "%s: no memory for a cluster file", path);
    pot_status status = path ? pot_machines_write(path, all, b->table.data, err) : POT_OK;
    if (status) return status;
    if (b->cli->settings->json) {
        pot_buffer_clear(&b->table);
        put_json(&b->table, all);
    } else if (!path) {
        pot_buffer_text(&b->table, "\n");
        pot_machines_format(&b->table, all);
    } else {
        pot_buffer_format(&b->table, "\nwritten to %s, for `potluck plan MODEL --cluster %s`\n", path, path);
    }
    return pot_out_buffer(b->cli->out, &b->table, err);
}

static pot_status coordinate(bench *b, probe_ranks *ranks, pot_err *err) {
    pot_machines *all = pot_alloc(sizeof *all);
    if (!all) return pot_fail(err, POT_NO_MEMORY, "no memory for what is measured");
    char date[32];
    time_t now = time(NULL);
    struct tm local;
    bool busy = probe_busy() > 0;
    if (busy)
        POT_LOG(POT_LOG_WARN, "bench", "%.1f other programs want a core just now: what is measured is too low",
                probe_busy());
    strftime(date, sizeof date, "%Y-%m-%d", localtime_r(&now, &local));
    all->n = (uint32_t)b->cli->launch.size;
    snprintf(all->note, sizeof all->note, "measured by potluck " POT_VERSION " on %s%s%s", date,
             b->cli->settings->quick ? ", quickly" : "", busy ? ", while the machine was busy" : "");
    pot_status status = measure_here(b, err);
    all->of[0] = b->machine;
    if (!status && ranks) status = measure_others(b, all, ranks, err);
    if (!status) {
        share(all);
        find_port(all);
        status = report(b, all, err);
    }
    pot_free(all);
    return status;
}

pot_status pot_cmd_bench_machine(const pot_cli *cli, pot_err *err) {
    bench b = {.cli = cli,
               .place = cli->n_arguments ? cli->arguments[0] : b.cache,
               .beside = (uint32_t)cli->launch.ranks_on_host};
    probe_cache_directory(b.cache, sizeof b.cache);
    b.nth = b.beside > 1 ? (uint32_t)cli->launch.rank % b.beside : 0;
    probe_ranks *ranks = NULL;
    pot_status status = probe_ranks_open(&ranks, cli, err);
    if (!status) status = cli->launch.rank ? probe_ranks_serve(ranks, answer, &b, err) : coordinate(&b, ranks, err);
    probe_ranks_close(ranks);
    pot_buffer_free(&b.table);
    return status;
}
