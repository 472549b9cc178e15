/* potluck bench kernels: every weight format times the two matrices of an expert and a whole expert layer, by every table of kernels,
 * for one token and for many, on weights that no cache holds.
 *
 * A window of a kernel is followed at once by a window that only reads other cold weights and, for several tokens, by one that only
 * computes.  The result is the ratio of neighbouring windows: 1.0 is what the memory, or the arithmetic of this instruction set, can do.
 * Weights are random and packed once a shape; the pool repeats them, which costs a kernel the same as a pool of different ones. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/bench_probe.h"
#include "cli/cli.h"
#include "common/json.h"
#include "common/log.h"
#include "common/progress.h"
#include "common/system.h"
#include "kernels/ffn.h"
#include "kernels/linear.h"
#include "kernels/stored.h"

enum {
    HIDDEN = 6144, /* GLM-5.2 */
    INNER = 2048,
    CHOSEN = 8, /* experts of a token */
    EXPERTS = 64,
    SOURCE = 256 * HIDDEN, /* random weights: an eighth of a matrix, of a chunk each matrix */
    MAX_ROWS = 512,
    MAX_LIST = 16,
    MAX_TABLES = 16,
    GRID = 24,
    MANY_ROWS = 32, /* the layer is measured for one token and from here on */
    MOST_WINDOWS = 31,
    QUICK_WINDOWS = 21,
    LEAST_WINDOWS = 5, /* when time is short */
    SLOW_CASE_S = 10,
    QUICK_S = 40
};

static const size_t LEAST_POOL = (size_t)1 << 30, MOST_CACHE_POOL = (size_t)4 << 30, QUICK_POOL = (size_t)2 << 30;

typedef enum shape_id { UP, DOWN, LAYER, SHAPES } shape_id;
static const char *const shape_names[SHAPES] = {"2048x6144", "6144x2048", "layer"};

static const pot_format quick_formats[] = {POT_FORMAT_Q4_ROW, POT_FORMAT_Q4_G64, POT_FORMAT_MXFP4,
                                           POT_FORMAT_Q8_G32, POT_FORMAT_BF16,   POT_FORMAT_FP8};
static const uint32_t all_rows[] = {1, 2, 4, 8, 16, 64}, quick_rows[] = {1, 4, 64};

typedef struct bench {
    const pot_cli *cli;
    bool quick, json;
    int n_windows;
    double window_s;
    double
        ends; /* when the last case should end, in seconds; in quick mode later ones get fewer windows to keep to it */
    pot_format formats[MAX_LIST];
    uint32_t rows[MAX_LIST];
    const pot_kernels *tables[MAX_TABLES];
    int n_formats, n_rows, n_tables;
    uint32_t most_rows;

    pot_compute compute;
    pot_roof roof;
    size_t least_pool, most_pool; /* bytes */
    double roofline_gbps;         /* when the way to read was chosen */
    pot_acts acts;
    float *source, *y;
    uint8_t *pattern;
    int64_t *sums;
    pot_ffn_scratch scratch;
    pot_progress progress;
    uint64_t cases, done;
} bench;

/* What a window works on. */
typedef struct work {
    pot_format format;
    shape_id shape;
    pot_matrix matrix;   /* data is set by each window */
    pot_ffn_shape layer; /* shape LAYER */
    size_t item_bytes;   /* from one matrix, or layer, to the next in the pool */
    double read_bytes;   /* of those, what a kernel reads */
    double operations;   /* of an item, for one token */
    uint32_t rows;       /* tokens */
    uint32_t count;      /* items a window */
} work;

typedef struct result {
    int windows;
    pot_spread gbps, roofline, fraction, gops, peak, peak_fraction; /* the last two only for several rows */
} result;

/* ---- what to measure ---------------------------------------------------------------------------------------------- */

static pot_status unknown_format(const char *word, int length, pot_err *err) {
    char names[256] = "";
    for (int f = 1; f < POT_FORMAT_COUNT; f++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", f > 1 ? ", " : "", pot_format_get((pot_format)f)->name);
    }
    return pot_fail(err, POT_USAGE, "--formats: `%.*s` is not a format; there are %s", length, word, names);
}

static pot_status read_formats(bench *b, const char *list, pot_err *err) {
    for (const char *at = list;; at++) {
        int length = (int)strcspn(at, ",");
        char word[32];
        snprintf(word, sizeof word, "%.*s", length, at);
        pot_format format = pot_format_find(word);
        if (format == POT_FORMAT_NONE) return unknown_format(at, length < 64 ? length : 64, err);
        if (b->n_formats == MAX_LIST) return pot_fail(err, POT_USAGE, "--formats: more than %d are listed", MAX_LIST);
        b->formats[b->n_formats++] = format;
        at += length;
        if (!*at) return POT_OK;
    }
}

static pot_status read_rows(bench *b, const char *list, pot_err *err) {
    for (const char *at = list;; at++) {
        char *end;
        unsigned long n = *at >= '0' && *at <= '9' ? strtoul(at, &end, 10) : 0;
        if (n < 1 || n > MAX_ROWS || (*end && *end != ','))
            return pot_fail(err, POT_USAGE, "--rows: `%.64s` is not a list of numbers from 1 to %d, as in 1,16,64",
                            list, MAX_ROWS);
        if (b->n_rows == MAX_LIST) return pot_fail(err, POT_USAGE, "--rows: more than %d are listed", MAX_LIST);
        b->rows[b->n_rows++] = (uint32_t)n;
        at = end;
        if (!*at) return POT_OK;
    }
}

static pot_status choose(bench *b, pot_err *err) {
    const pot_settings *s = b->cli->settings;
    pot_status status = POT_OK;
    if (s->formats) {
        status = read_formats(b, s->formats, err);
    } else if (b->quick) {
        for (size_t i = 0; i < sizeof quick_formats / sizeof *quick_formats; i++)
            b->formats[b->n_formats++] = quick_formats[i];
    } else {
        for (int f = 1; f < POT_FORMAT_COUNT; f++) b->formats[b->n_formats++] = (pot_format)f;
    }
    if (!status && s->rows) {
        status = read_rows(b, s->rows, err);
    } else {
        const uint32_t *rows = b->quick ? quick_rows : all_rows;
        size_t n = b->quick ? sizeof quick_rows / sizeof *quick_rows : sizeof all_rows / sizeof *all_rows;
        for (size_t i = 0; i < n; i++) b->rows[b->n_rows++] = rows[i];
    }
    for (int i = 0; i < b->n_rows; i++)
        if (b->rows[i] > b->most_rows) b->most_rows = b->rows[i];
    if (!status && !b->quick && !strcmp(s->kernels, "auto")) {
        b->n_tables = pot_kernels_list(b->tables, MAX_TABLES);
    } else if (!status) {
        status = pot_kernels_pick(&b->tables[0], s->kernels, err);
        b->n_tables = 1;
    }
    return status;
}

static bool wanted(shape_id shape, uint32_t rows) { return shape != LAYER || rows == 1 || rows >= MANY_ROWS; }

static work describe(pot_format format, shape_id shape) {
    work w = {.format = format, .shape = shape};
    double weights = (double)HIDDEN * INNER;
    if (shape == LAYER) {
        pot_ffn_shape_init(&w.layer, HIDDEN, INNER, format, format);
        uint32_t width = w.layer.chunk_width, chunks = CHOSEN * w.layer.n_chunks;
        w.item_bytes = chunks * pot_chunk_bytes(&w.layer, 0);
        w.read_bytes = (double)chunks *
                       (double)(2 * pot_matrix_bytes(format, width, HIDDEN) + pot_matrix_bytes(format, HIDDEN, width));
        w.operations = 2 * 3 * CHOSEN * weights;
        return w;
    }
    w.matrix = (pot_matrix){
        .rows = shape == UP ? INNER : HIDDEN, .cols = shape == UP ? HIDDEN : INNER, .format = (uint8_t)format};
    w.matrix.tile_stride = pot_tile_bytes(format, w.matrix.cols, 0);
    w.item_bytes = pot_matrix_bytes(format, w.matrix.rows, w.matrix.cols);
    w.read_bytes = (double)w.item_bytes;
    w.operations = 2 * weights;
    return w;
}

static size_t per_item(shape_id shape) { return shape == LAYER ? CHOSEN : 1; /* experts */ }

static size_t pool_bytes(const bench *b, const work *w) {
    size_t bytes = EXPERTS / per_item(w->shape) * w->item_bytes;
    if (bytes < b->least_pool) bytes = b->least_pool;
    if (bytes > b->most_pool) bytes = b->most_pool;
    if (bytes < 2 * w->item_bytes) bytes = 2 * w->item_bytes; /* one to compute with while the other gets cold */
    return bytes / w->item_bytes * w->item_bytes;
}

/* ---- memory ------------------------------------------------------------------------------------------------------- */

static size_t largest_pool(const bench *b) {
    size_t most = 0;
    for (int f = 0; f < b->n_formats; f++)
        for (int s = 0; s < SHAPES; s++) {
            work w = describe(b->formats[f], (shape_id)s);
            size_t bytes = pool_bytes(b, &w);
            if (bytes > most) most = bytes;
        }
    return most;
}

/* Sets the bounds of the pools, of which the largest takes half of the free memory where that is possible at all. */
static pot_status size_pools(bench *b, size_t *largest, pot_err *err) {
    pot_memory_info memory;
    pot_memory_read(&memory);
    uint64_t usable = memory.usable_bytes, cache = 16 * pot_roof_cache_bytes();
    b->least_pool = LEAST_POOL;
    if (!b->quick && cache > LEAST_POOL) b->least_pool = cache < MOST_CACHE_POOL ? (size_t)cache : MOST_CACHE_POOL;
    b->most_pool = b->quick ? QUICK_POOL : SIZE_MAX;
    *largest = largest_pool(b);
    if (*largest <= usable / 2) return POT_OK;
    POT_LOG(POT_LOG_WARN, "bench",
            "%.1f GiB are free: of wide formats fewer than %d experts are kept in turn, and caches may help",
            (double)usable / 0x1p30, EXPERTS);
    b->most_pool = (size_t)(usable / 2);
    *largest = largest_pool(b);
    if (*largest <= usable) return POT_OK;
    return pot_fail(err, POT_NO_MEMORY, "%.1f GiB of memory are needed for weights that no cache holds, %.1f are free",
                    (double)*largest / 0x1p30, (double)usable / 0x1p30);
}

static pot_status allocate(bench *b, pot_err *err) {
    size_t pool, pattern = (size_t)3 * SOURCE * sizeof(float) + POT_CHUNK_ALIGN;
    pot_status status = size_pools(b, &pool, err);
    if (status) return status;
    int threads = pot_threads_choose((int)b->cli->settings->threads, 1);
    status = pot_team_create(&b->compute.team, threads, false, err);
    if (!status) status = pot_roof_create(&b->roof, b->compute.team, pool, err);
    if (!status) status = pot_acts_create(&b->acts, b->most_rows, HIDDEN, err);
    if (status) return status;
    b->source = pot_alloc_array(SOURCE > b->most_rows * HIDDEN ? SOURCE : b->most_rows * HIDDEN, sizeof *b->source);
    b->y = pot_alloc_array((size_t)b->most_rows * HIDDEN, sizeof *b->y);
    b->sums = pot_alloc_array((size_t)b->most_rows * HIDDEN, sizeof *b->sums);
    b->pattern = pot_alloc_aligned(pattern);
    if (!b->source || !b->y || !b->sums || !b->pattern)
        return pot_fail(err, POT_NO_MEMORY, "no memory for %u rows of results", b->most_rows);
    return POT_OK;
}

static void release(bench *b) {
    pot_roof_free(&b->roof);
    pot_acts_free(&b->acts);
    pot_ffn_scratch_free(&b->scratch);
    pot_team_free(b->compute.team);
    pot_free(b->source);
    pot_free(b->y);
    pot_free(b->sums);
    pot_free(b->pattern);
}

/* ---- weights and activations -------------------------------------------------------------------------------------- */

static void randomize(float *values, size_t n, float most) {
    uint32_t state = 1;
    for (size_t i = 0; i < n; i++) {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        values[i] = (float)(int32_t)state * 0x1p-31f * most;
    }
}

static pot_status pack(const bench *b, uint8_t *out, size_t tile_stride, pot_format format, uint32_t cols,
                       pot_err *err) {
    uint32_t rows = SOURCE / cols;
    pot_stored source = {.kind = POT_STORED_F32,
                         .rows = rows,
                         .cols = cols,
                         .codes = b->source,
                         .row_stride = cols * sizeof(float),
                         .name = "random weights"};
    return pot_pack(out, tile_stride, format, POT_ROUNDING_AUTO, &source, 0, rows, 0, cols, err);
}

/* Packs an eighth of a matrix, or a chunk, and fills the pool with it; fills the activations. */
static pot_status prepare(bench *b, const work *w, pot_err *err) {
    size_t bytes;
    pot_status status = POT_OK;
    randomize(b->source, SOURCE, 0.03f);
    if (w->shape == LAYER) {
        pot_chunk chunk;
        pot_chunk_view(&chunk, &w->layer, 0, b->pattern);
        const pot_matrix *const parts[] = {&chunk.gate, &chunk.up, &chunk.down};
        for (int i = 0; i < 3 && !status; i++)
            status = pack(b, b->pattern + (parts[i]->data - b->pattern), parts[i]->tile_stride, w->format,
                          parts[i]->cols, err);
        bytes = pot_chunk_bytes(&w->layer, 0);
    } else {
        status = pack(b, b->pattern, w->matrix.tile_stride, w->format, w->matrix.cols, err);
        bytes = pot_matrix_bytes(w->format, SOURCE / w->matrix.cols, w->matrix.cols);
    }
    if (status) return status;
    pot_roof_fill(&b->roof, pool_bytes(b, w), b->pattern, bytes);
    uint32_t cols = w->shape == DOWN ? INNER : HIDDEN;
    randomize(b->source, (size_t)b->most_rows * cols, 1);
    b->compute.kernels = b->roof.reads;
    return pot_acts_fill(&b->acts, &b->compute, b->source, cols, cols, b->most_rows, POT_ACT_Q8 | POT_ACT_F32, err);
}

/* ---- windows ------------------------------------------------------------------------------------------------------ */

static pot_status run_layers(bench *b, const work *w, const uint8_t *data, pot_err *err) {
    uint32_t rows[MAX_ROWS];
    float weights[MAX_ROWS];
    pot_ffn_job jobs[CHOSEN * 8];
    const uint32_t chunks = w->layer.n_chunks, n_jobs = CHOSEN * chunks;
    POT_ASSERT(n_jobs <= sizeof jobs / sizeof *jobs);
    for (uint32_t i = 0; i < w->rows; i++) {
        rows[i] = i;
        weights[i] = 1.0f / CHOSEN;
    }
    pot_status status = POT_OK;
    for (uint32_t i = 0; i < w->count && !status; i++) {
        for (uint32_t j = 0; j < n_jobs; j++, data += pot_chunk_bytes(&w->layer, 0)) {
            jobs[j] = (pot_ffn_job){.expert = j / chunks, .n_rows = w->rows, .rows = rows, .weights = weights};
            pot_chunk_view(&jobs[j].chunk, &w->layer, j % chunks, data);
        }
        status = pot_ffn_run(&b->compute, b->sums, HIDDEN, b->acts.rows, jobs, n_jobs, GRID, &b->scratch, err);
    }
    return status;
}

/* *seconds: how long the window's items took. */
static pot_status run_window(bench *b, const work *w, double *seconds, pot_err *err) {
    pot_status status = POT_OK;
    const uint8_t *data = pot_roof_take(&b->roof, w->count * w->item_bytes, w->item_bytes);
    double begin = pot_bench_seconds();
    if (w->shape == LAYER) {
        status = run_layers(b, w, data, err);
    } else {
        pot_matrix m = w->matrix;
        for (uint32_t i = 0; i < w->count; i++) {
            m.data = data + i * w->item_bytes;
            pot_linear(&b->compute, b->y, m.rows, &m, b->acts.rows, w->rows);
        }
    }
    *seconds = pot_bench_seconds() - begin;
    return status;
}

/* Makes a window about as long as it should be: several items, or for slow kernels a part of a matrix. */
static pot_status fit_window(bench *b, work *w, pot_err *err) {
    pot_status status = POT_OK;
    double seconds = 1;
    w->count = 1;
    for (int i = 0; i < 2 && !status; i++) status = run_window(b, w, &seconds, err); /* the first one warms up */
    double items = b->window_s / seconds;
    size_t room = b->roof.bytes / 2 / w->item_bytes;
    if (items >= 1) {
        w->count = items < (double)room ? (uint32_t)items : (uint32_t)room;
    } else if (w->shape != LAYER && items < 0.5) {
        uint32_t step = (uint32_t)pot_team_threads(b->compute.team) * POT_TILE_ROWS * 2, all = w->matrix.rows;
        uint32_t part = (uint32_t)((double)all * items) / step * step;
        w->matrix.rows = part > step ? part : step < all ? step : all;
        w->read_bytes *= (double)w->matrix.rows / all;
        w->operations *= (double)w->matrix.rows / all;
    }
    return status;
}

/* How long the next case may take. */
static double allowance(const bench *b) {
    if (!b->quick) return SLOW_CASE_S;
    double left = b->ends - pot_bench_seconds();
    return left > 0 ? left / (double)(b->cases - b->done) : 0;
}

static pot_status measure(bench *b, result *out, work *w, pot_err *err) {
    double gbps[MOST_WINDOWS], roofline[MOST_WINDOWS], fraction[MOST_WINDOWS], gops[MOST_WINDOWS], peak[MOST_WINDOWS],
        peak_fraction[MOST_WINDOWS], seconds;
    const bool integer = pot_format_get(w->format)->integer;
    const double ends = pot_bench_seconds() + allowance(b);
    pot_status status = fit_window(b, w, err);
    if (status) return status;
    int n = 0;
    const size_t read = (size_t)(b->roofline_gbps * 1e9 * b->window_s), room = b->roof.bytes / 2;
    for (int i = 0; i < b->n_windows && (i < LEAST_WINDOWS || pot_bench_seconds() < ends); i = ++n) {
        if (pot_stop_requested()) return pot_fail(err, POT_CANCELLED, "stopped");
        status = run_window(b, w, &seconds, err);
        if (status) return status;
        roofline[i] = pot_roof_roofline(&b->roof, read < room ? read : room);
        gbps[i] = w->count * w->read_bytes / seconds * 1e-9;
        gops[i] = w->count * w->operations * w->rows / seconds * 1e-9;
        fraction[i] = gbps[i] / roofline[i];
        if (w->rows == 1) continue;
        peak[i] = pot_roof_peak(&b->roof, b->compute.kernels, integer, b->window_s / 3);
        peak_fraction[i] = gops[i] / peak[i];
    }
    *out = (result){.windows = n,
                    .gbps = pot_spread_of(gbps, n),
                    .roofline = pot_spread_of(roofline, n),
                    .fraction = pot_spread_of(fraction, n),
                    .gops = pot_spread_of(gops, n)};
    if (w->rows > 1) {
        out->peak = pot_spread_of(peak, n);
        out->peak_fraction = pot_spread_of(peak_fraction, n);
    }
    return POT_OK;
}

/* ---- reports ------------------------------------------------------------------------------------------------------ */

static void command_line(pot_buffer *out, const bench *b) {
    const pot_settings *s = b->cli->settings;
    pot_buffer_text(out, "potluck bench kernels");
    if (b->quick) pot_buffer_text(out, " --quick");
    if (b->json) pot_buffer_text(out, " --json");
    if (strcmp(s->kernels, "auto")) pot_buffer_format(out, " --kernels %s", s->kernels);
    if (s->threads) pot_buffer_format(out, " --threads %d", (int)s->threads);
    if (s->formats) pot_buffer_format(out, " --formats %s", s->formats);
    if (s->rows) pot_buffer_format(out, " --rows %s", s->rows);
}

static pot_status report_machine(const bench *b, pot_err *err) {
    char cpu[128];
    pot_buffer text = {0}, command = {0};
    pot_roof_cpu(cpu, sizeof cpu);
    command_line(&command, b);
    int threads = pot_team_threads(b->compute.team), cores = pot_cpus_physical();
    unsigned long long cache = pot_roof_cache_bytes();
    if (b->json) {
        pot_buffer_text(&text, "{\"command\": ");
        pot_json_quote(&text, command.data ? command.data : "", command.bytes);
        pot_buffer_text(&text, ", \"version\": \"" POT_VERSION "\", \"cpu\": ");
        pot_json_quote(&text, cpu, strlen(cpu));
        pot_buffer_format(&text,
                          ", \"cores\": %d, \"threads\": %d, \"l3_bytes\": %llu, \"best_table\": \"%s\", \"reads\": "
                          "\"%s\", \"roofline_gbps\": %.2f}\n",
                          cores, threads, cache, b->roof.reads->name, pot_roof_way(&b->roof), b->roofline_gbps);
    } else {
        pot_buffer_format(&text,
                          "# command: %s; version: " POT_VERSION
                          "; cpu: %s; cores: %d; threads: %d; L3: %.0f MiB; best table: %s; "
                          "reads: %s; roofline: %.1f GB/s\n",
                          command.data ? command.data : "", cpu, cores, threads, (double)cache / 0x1p20,
                          b->roof.reads->name, pot_roof_way(&b->roof), b->roofline_gbps);
        pot_buffer_text(&text,
                        "format,table,shape,rows,threads,experts,windows,gbps,roofline_gbps,fraction,fraction_p10,"
                        "fraction_p90,gops,peak_gops,peak_fraction,peak_fraction_p10,peak_fraction_p90\n");
    }
    text.failed |= command.failed;
    pot_status status = pot_out_buffer(b->cli->out, &text, err);
    pot_buffer_free(&command);
    pot_buffer_free(&text);
    return status;
}

static pot_status report_case(const bench *b, const work *w, const result *r, pot_err *err) {
    pot_buffer text = {0};
    const char *format = pot_format_get(w->format)->name, *table = b->compute.kernels->name,
               *shape = shape_names[w->shape];
    size_t experts = b->roof.bytes / w->item_bytes * per_item(w->shape);
    int threads = pot_team_threads(b->compute.team);
    const bool peak = w->rows > 1;
    if (b->json) {
        pot_buffer_format(
            &text,
            "{\"format\": \"%s\", \"table\": \"%s\", \"shape\": \"%s\", \"rows\": %u, \"threads\": %d, "
            "\"experts\": %zu, \"windows\": %d, \"gbps\": %.3f, \"roofline_gbps\": %.3f, \"fraction\": %.4f, "
            "\"fraction_p10\": %.4f, \"fraction_p90\": %.4f, \"gops\": %.3f, ",
            format, table, shape, w->rows, threads, experts, r->windows, r->gbps.median, r->roofline.median,
            r->fraction.median, r->fraction.p10, r->fraction.p90, r->gops.median);
        if (peak) {
            pot_buffer_format(&text,
                              "\"peak_gops\": %.3f, \"peak_fraction\": %.4f, \"peak_fraction_p10\": %.4f, "
                              "\"peak_fraction_p90\": %.4f}\n",
                              r->peak.median, r->peak_fraction.median, r->peak_fraction.p10, r->peak_fraction.p90);
        } else {
            pot_buffer_text(&text, "\"peak_gops\": null, \"peak_fraction\": null, \"peak_fraction_p10\": null, "
                                   "\"peak_fraction_p90\": null}\n");
        }
    } else {
        pot_buffer_format(&text, "%s,%s,%s,%u,%d,%zu,%d,%.3f,%.3f,%.4f,%.4f,%.4f,%.3f,", format, table, shape, w->rows,
                          threads, experts, r->windows, r->gbps.median, r->roofline.median, r->fraction.median,
                          r->fraction.p10, r->fraction.p90, r->gops.median);
        if (peak) {
            pot_buffer_format(&text, "%.3f,%.4f,%.4f,%.4f\n", r->peak.median, r->peak_fraction.median,
                              r->peak_fraction.p10, r->peak_fraction.p90);
        } else {
            pot_buffer_text(&text, ",,,\n");
        }
    }
    pot_status status = pot_out_buffer(b->cli->out, &text, err);
    pot_buffer_free(&text);
    return status;
}

/* ---- all of it ---------------------------------------------------------------------------------------------------- */

static pot_status measure_weights(bench *b, const work *prepared, pot_err *err) {
    pot_status status = prepare(b, prepared, err);
    if (!status && b->roofline_gbps == 0) {
        b->roofline_gbps = pot_roof_choose(&b->roof, b->window_s);
        status = report_machine(b, err);
    }
    for (int t = 0; t < b->n_tables && !status; t++)
        for (int i = 0; i < b->n_rows && !status && !b->cli->out->closed; i++) {
            if (!wanted(prepared->shape, b->rows[i])) continue;
            work w = *prepared;
            result r = {0};
            w.rows = b->rows[i];
            b->compute.kernels = b->tables[t];
            status = measure(b, &r, &w, err);
            if (!status) status = report_case(b, &w, &r, err);
            pot_progress_update(&b->progress, ++b->done);
        }
    return status;
}

static pot_status measure_all(bench *b, pot_err *err) {
    uint64_t of_a_format = 0;
    for (int s = 0; s < SHAPES; s++)
        for (int i = 0; i < b->n_rows; i++) of_a_format += wanted((shape_id)s, b->rows[i]);
    b->cases = of_a_format * (uint64_t)b->n_formats * (uint64_t)b->n_tables;
    b->ends = pot_bench_seconds() + QUICK_S;
    pot_progress_begin_count(&b->progress, "measuring", b->cases, "cases", b->cli->settings->quiet);
    pot_status status = POT_OK;
    for (int f = 0; f < b->n_formats && !status; f++)
        for (int s = 0; s < SHAPES && !status && !b->cli->out->closed; s++) {
            work w = describe(b->formats[f], (shape_id)s);
            status = measure_weights(b, &w, err);
        }
    pot_progress_end(&b->progress);
    return status;
}

pot_status pot_cmd_bench_kernels(const pot_cli *cli, pot_err *err) {
    bench b = {.cli = cli, .quick = cli->settings->quick, .json = cli->settings->json};
    b.n_windows = b.quick ? QUICK_WINDOWS : MOST_WINDOWS;
    b.window_s = b.quick ? 0.006 : 0.010;
    pot_status status = choose(&b, err);
    if (!status) status = allocate(&b, err);
    if (!status) status = measure_all(&b, err);
    release(&b);
    return status;
}
