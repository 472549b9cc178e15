/* potluck convert SRC DST: a checkpoint becomes a container, with a report of what that did; verify DIR: its checksums; bench slice DIR: a
 * container of random weights with the true dimensions of a large model. */
#include <ctype.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "common/file.h"
#include "common/json.h"
#include "common/mem.h"
#include "common/system.h"
#include "coordinator/cluster.h"
#include "model/convert.h"

enum { MOST_FAULTS = 20, MAX_PATH = 4096 };

static double gib(uint64_t bytes) { return (double)bytes / 0x1p30; }
static double gb_per_s(uint64_t bytes, double seconds) { return seconds > 0 ? (double)bytes / 1e9 / seconds : 0; }

/* ---- options --------------------------------------------------------------------------------------------------------------- */

static bool read_layer(uint32_t *out, const char **at) {
    char *end;
    if (!isdigit((unsigned char)**at)) return false;
    const unsigned long value = strtoul(*at, &end, 10);
    *at = end;
    *out = (uint32_t)value;
    return value < POT_MAX_LAYERS;
}

/* "3-7" or "3": [begin, end). */
static pot_status read_layers(uint32_t *begin, uint32_t *end, const char *text, pot_err *err) {
    const char *at = text;
    uint32_t first = 0, last;
    bool good = read_layer(&first, &at);
    last = first;
    if (good && *at == '-') {
        at++;
        good = read_layer(&last, &at);
    }
    if (!good || *at || last < first)
        return pot_fail(err, POT_USAGE, "--layers %s: a layer, or two as in `3-7`, was expected", text);
    *begin = first;
    *end = last + 1;
    return POT_OK;
}

static pot_status read_options(pot_convert_options *out, const pot_cli *cli, pot_err *err) {
    const pot_settings *settings = cli->settings;
    *out = (pot_convert_options){.threads = pot_threads_choose((int)settings->threads, 1),
                                 .delete_source = settings->delete_source,
                                 .quiet = settings->quiet};
    signal(SIGXFSZ, SIG_IGN); /* a file that grows over its limit is an error of write() with a sentence */
    return pot_settings_policy(&out->policy, settings, err);
}

/* ---- the report ------------------------------------------------------------------------------------------------------------ */

static void change_text(char out[32], const pot_convert_row *row) {
    const double change = pot_pack_error_relative(&row->sums);
    if (!row->sampled)
        snprintf(out, 32, "-");
    else if (change == 0)
        snprintf(out, 32, "exact");
    else
        snprintf(out, 32, "%.5f", change);
}

static void row_text(pot_buffer *out, const pot_convert_row *r) {
    char change[32];
    change_text(change, r);
    pot_buffer_format(out, "  %-16s %-8s %-9s %9" PRIu64 " %16" PRIu64 " %11.3f %11.3f %9s", r->census.group,
                      r->census.stored, r->census.format, r->census.tensors, r->census.parameters,
                      gib(r->census.stored_bytes), gib(r->census.packed_bytes), change);
    if (r->unpacked) pot_buffer_format(out, "  %" PRIu64 " with groups that no format has", r->unpacked);
    if (r->requantized) pot_buffer_format(out, "  %" PRIu64 " quantized anew", r->requantized);
    pot_buffer_byte(out, '\n');
}

static void layer_text(char out[24], uint32_t layer) {
    if (layer == POT_CONTAINER_MODEL)
        snprintf(out, 24, "model");
    else
        snprintf(out, 24, "layer %u", layer);
}

static void print_text(pot_buffer *out, const char *directory, const pot_convert_report *r) {
    uint64_t sampled = 0, parameters = 0;
    pot_buffer_format(out, "%-18s %-8s %-9s %9s %16s %11s %11s %9s\n", "  role", "stored", "packed", "tensors",
                      "parameters", "stored GiB", "packed GiB", "change");
    for (uint32_t i = 0; i < r->n_rows; i++) {
        row_text(out, &r->rows[i]);
        sampled += r->rows[i].sampled;
        parameters += r->rows[i].census.parameters;
    }
    if (sampled)
        pot_buffer_format(
            out,
            "\nchange: root mean square of packed - stored over that of stored, by decoding %.1f%% of all "
            "weights from the files\n",
            100.0 * (double)sampled / (double)parameters);
    for (uint32_t i = 0; i < r->n_worst; i++) {
        char layer[24];
        layer_text(layer, r->worst[i].layer);
        pot_buffer_format(out, "%s%s %s %.5f%s", i ? ", " : "most:   ", layer, r->worst[i].census.group,
                          pot_pack_error_relative(&r->worst[i].sums), i + 1 == r->n_worst ? "\n" : "");
    }
    pot_buffer_format(
        out,
        "\n%u of %u files, %u in this run: %.3f GiB written in %.1f s (%.2f GB/s, reading %.2f GB/s), at most "
        "%.3f GiB of memory\n",
        r->files_done, r->files, r->files_written, gib(r->bytes_written), r->seconds,
        gb_per_s(r->bytes_written, r->seconds), gb_per_s(r->bytes_read, r->seconds), gib(r->peak_bytes));
    if (r->shards_deleted) pot_buffer_format(out, "%u source files removed\n", r->shards_deleted);
    if (r->finished)
        pot_buffer_format(out, "%s is finished: `potluck run %s` runs it\n", directory, directory);
    else
        pot_buffer_format(out, "%s is not finished: the experts of layers %s are missing\n", directory, r->missing);
}

static void row_json(pot_buffer *out, const pot_convert_row *r) {
    const double change = pot_pack_error_relative(&r->sums);
    pot_buffer_format(out,
                      "{\"role\": \"%s\", \"stored\": \"%s\", \"format\": \"%s\", \"tensors\": %" PRIu64
                      ", \"parameters\": %" PRIu64 ", \"stored_bytes\": %" PRIu64 ", \"packed_bytes\": %" PRIu64
                      ", \"sampled\": %" PRIu64 ", \"change\": ",
                      r->census.group, r->census.stored, r->census.format, r->census.tensors, r->census.parameters,
                      r->census.stored_bytes, r->census.packed_bytes, r->sampled);
    if (r->sampled && change <= 1e300)
        pot_buffer_format(out, "%.9g", change);
    else
        pot_buffer_text(out, "null");
    pot_buffer_format(out, ", \"unpacked\": %" PRIu64 ", \"requantized\": %" PRIu64 "}", r->unpacked, r->requantized);
}

static void print_json(pot_buffer *out, const char *directory, const pot_convert_report *r) {
    pot_buffer_text(out, "{\"destination\": ");
    pot_json_quote(out, directory, strlen(directory));
    pot_buffer_format(out, ", \"finished\": %s, \"missing_layers\": \"%s\", \"files\": %u, \"files_done\": %u, ",
                      r->finished ? "true" : "false", r->missing, r->files, r->files_done);
    pot_buffer_format(out,
                      "\"files_written\": %u, \"shards_deleted\": %u, \"bytes_written\": %" PRIu64
                      ", \"bytes_read\": %" PRIu64 ", \"seconds\": %.3f, \"write_seconds\": %.3f, "
                      "\"measure_seconds\": %.3f, \"verify_seconds\": %.3f, \"write_gbps\": %.3f, \"read_gbps\": %.3f, "
                      "\"peak_bytes\": %" PRIu64 ", \"rows\": [",
                      r->files_written, r->shards_deleted, r->bytes_written, r->bytes_read, r->seconds,
                      r->write_seconds, r->measure_seconds, r->verify_seconds, gb_per_s(r->bytes_written, r->seconds),
                      gb_per_s(r->bytes_read, r->seconds), r->peak_bytes);
    for (uint32_t i = 0; i < r->n_rows; i++) {
        if (i) pot_buffer_text(out, ", ");
        row_json(out, &r->rows[i]);
    }
    pot_buffer_text(out, "], \"worst\": [");
    for (uint32_t i = 0; i < r->n_worst; i++) {
        char layer[24];
        layer_text(layer, r->worst[i].layer);
        pot_buffer_format(out, "%s{\"where\": \"%s\", \"role\": \"%s\", \"change\": %.9g}", i ? ", " : "", layer,
                          r->worst[i].census.group, pot_pack_error_relative(&r->worst[i].sums));
    }
    pot_buffer_text(out, "]}\n");
}

static pot_status convert(const pot_cli *cli, const pot_convert_options *options, pot_err *err) {
    pot_convert_report report;
    pot_status s = pot_convert(&report, options, err);
    if (s != POT_OK) return s;
    pot_buffer text = {0};
    if (cli->settings->json)
        print_json(&text, options->destination, &report);
    else if (!cli->settings->quiet)
        print_text(&text, options->destination, &report);
    s = pot_out_buffer(cli->out, &text, err);
    pot_buffer_free(&text);
    pot_convert_report_free(&report);
    return s;
}

pot_status pot_cmd_convert(const pot_cli *cli, pot_err *err) {
    pot_convert_options options;
    pot_status s = read_options(&options, cli, err);
    if (s == POT_OK && cli->settings->layers)
        s = read_layers(&options.layer_begin, &options.layer_end, cli->settings->layers, err);
    options.source = cli->arguments[0];
    options.destination = cli->arguments[1];
    return s == POT_OK ? convert(cli, &options, err) : s;
}

/* ---- verify ---------------------------------------------------------------------------------------------------------------- */

typedef struct fault_text {
    pot_buffer text;
    bool json;
    uint64_t n;
} fault_text;

static void add_fault(void *context, const char *file, const char *tensor, int64_t chunk, const char *text) {
    fault_text *f = context;
    if (f->n++ >= MOST_FAULTS) return;
    if (f->json) {
        pot_buffer_format(&f->text, "%s{\"file\": \"%s\"", f->n > 1 ? ", " : "", file);
        if (tensor) pot_buffer_format(&f->text, ", \"tensor\": \"%s\"", tensor);
        if (chunk >= 0) pot_buffer_format(&f->text, ", \"chunk\": %lld", (long long)chunk);
        if (text) {
            pot_buffer_text(&f->text, ", \"text\": ");
            pot_json_quote(&f->text, text, strlen(text));
        }
        pot_buffer_byte(&f->text, '}');
    } else if (tensor) {
        pot_buffer_format(&f->text, "damaged: %s, tensor %s", file, tensor);
        if (chunk >= 0) pot_buffer_format(&f->text, ", chunk %lld", (long long)chunk);
        pot_buffer_byte(&f->text, '\n');
    } else {
        pot_buffer_format(&f->text, "damaged: %s\n", text);
    }
}

static void print_verified(pot_buffer *out, const pot_verify_result *r, const fault_text *faults,
                           const char *directory) {
    if (faults->json) {
        pot_buffer_format(out,
                          "{\"files\": %u, \"bytes\": %" PRIu64
                          ", \"finished\": %s, \"damaged_files\": %u, \"missing_files\": %u, \"faults\": [",
                          r->files, r->bytes, r->finished ? "true" : "false", r->damaged_files, r->missing_files);
        pot_buffer_format(out, "%s]}\n", faults->text.data ? faults->text.data : "");
        return;
    }
    if (faults->text.data) pot_buffer_text(out, faults->text.data);
    if (faults->n > MOST_FAULTS) pot_buffer_format(out, "and %" PRIu64 " more\n", faults->n - MOST_FAULTS);
    if (!faults->n)
        pot_buffer_format(out, "%s: %u files, %.3f GiB, all as they were written%s\n", directory, r->files,
                          gib(r->bytes), r->finished ? "" : "; the conversion is not finished");
}

pot_status pot_cmd_verify(const pot_cli *cli, pot_err *err) {
    const char *directory = cli->arguments[0];
    fault_text faults = {.json = cli->settings->json};
    pot_verify_result result;
    pot_status s = pot_verify(&result, directory, pot_threads_choose((int)cli->settings->threads, 1),
                              cli->settings->quiet, add_fault, &faults, err);
    pot_buffer text = {0};
    if (s == POT_OK) {
        print_verified(&text, &result, &faults, directory);
        if (faults.text.failed) text.failed = true;
        s = pot_out_buffer(cli->out, &text, err);
    }
    if (s == POT_OK && faults.n)
        s = pot_fail(err, POT_FORMAT, "%s: %u of %u files damaged, %u missing: convert or copy them again", directory,
                     result.damaged_files, result.files, result.missing_files);
    pot_buffer_free(&text);
    pot_buffer_free(&faults.text);
    return s;
}

/* ---- bench slice ----------------------------------------------------------------------------------------------------------- */

/* The demo lies beside the program's sources, or where `make install` puts it. */
static bool find_demo(char out[MAX_PATH]) {
    static const char *const places[] = {"demo", "../demo", "../../demo", "../share/potluck/demo"};
    char program[MAX_PATH / 2];
    const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n <= 0) return false;
    program[n] = 0;
    char *slash = strrchr(program, '/');
    if (!slash) return false;
    *slash = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(out, MAX_PATH, "%s/%s/tokenizer.json", program, places[i]);
        if (pot_file_exists(out)) {
            snprintf(out, MAX_PATH, "%s/%s", program, places[i]);
            return true;
        }
    }
    return false;
}

/* The tokenizer, and what goes with it: which tokens end a text. */
static pot_status copy_demo(const char *demo, const char *directory, pot_err *err) {
    static const char *const names[] = {"tokenizer.json", "generation_config.json"};
    pot_status s = POT_OK;
    for (int i = 0; i < 2 && s == POT_OK; i++) {
        char *from = pot_path_join(demo, names[i]), *to = pot_path_join(directory, names[i]);
        pot_buffer text = {0};
        s = from && to ? pot_file_read(&text, from, 64 << 20, err) : pot_fail(err, POT_NO_MEMORY, "no memory");
        if (s == POT_OK) s = pot_file_write(to, text.data, text.bytes, err);
        pot_buffer_free(&text);
        pot_free(from);
        pot_free(to);
    }
    return s;
}

/* Ids that the slice has no embedding for would end the first prompt. */
static pot_status check_tokenizer(const char *directory, pot_err *err) {
    pot_tokenizer *tokenizer = NULL;
    pot_config config;
    pot_status s = pot_config_read(&config, directory, err);
    if (s == POT_OK) s = pot_tokenizer_open(&tokenizer, directory, err);
    if (s != POT_OK) return s;
    const uint32_t ids = pot_tokenizer_size(tokenizer);
    pot_tokenizer_close(tokenizer);
    if (ids <= config.vocab) return POT_OK;
    return pot_fail(err, POT_FORMAT, "the demo's tokenizer has ids up to %u, the slice a vocabulary of %u", ids,
                    config.vocab);
}

pot_status pot_cmd_bench_slice(const pot_cli *cli, pot_err *err) {
    const char *directory = cli->arguments[0], *at = cli->settings->layers ? cli->settings->layers : "2";
    char source[64], demo[MAX_PATH];
    uint32_t layers = 0;
    pot_convert_options options;
    pot_status s = read_options(&options, cli, err);
    if (s == POT_OK) {
        options.policy.experts = pot_format_find(cli->settings->slice_format);
        if (options.policy.experts == POT_FORMAT_NONE)
            s = pot_fail(err, POT_USAGE, "--format %s: is no weight format; mxfp4 and q4g64 are two",
                         cli->settings->slice_format);
    }
    if (s == POT_OK && (!read_layer(&layers, &at) || *at || !layers))
        s = pot_fail(err, POT_USAGE, "--layers %s: how many layers the slice is to have was expected",
                     cli->settings->layers);
    if (s != POT_OK) return s;
    snprintf(source, sizeof source, "random:glm-5.2,layers=%u", layers);
    options.source = source;
    options.destination = directory;
    options.unmeasured = true;
    s = convert(cli, &options, err);
    if (s != POT_OK) return s;
    if (find_demo(demo)) {
        s = copy_demo(demo, directory, err);
        return s == POT_OK ? check_tokenizer(directory, err) : s;
    }
    fprintf(stderr, "%s: has no tokenizer, because the demo was not found: it can be measured, not be talked to\n",
            directory);
    return POT_OK;
}
