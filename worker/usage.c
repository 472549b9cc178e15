/* Reading and writing the usage file.  Every line is checked before the first is used. */
#include "worker/usage.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/file.h"
#include "common/log.h"
#include "worker/store_internal.h"

enum { MAX_BYTES = 16 << 20, VERSION = 1, MEMORY = 10000 /* tokens: older habits fade */ };

/* ---- where ----------------------------------------------------------------------------------------------------------------- */

static bool make_directory(const char *path) { return !mkdir(path, 0700) || errno == EEXIST; }

/* ~/.cache/potluck, made if need be; NULL when there is no such place. */
static char *cache_directory(void) {
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool given = base && *base;
    if (!given && (!home || !*home)) return NULL;
    char *parent = given ? pot_strdup(base) : pot_path_join(home, ".cache");
    char *path = parent && make_directory(parent) ? pot_path_join(parent, "potluck") : NULL;
    pot_free(parent);
    if (path && make_directory(path)) return path;
    pot_free(path);
    return NULL;
}

pot_status pot_usage_path(char **out, const char *wanted, const pot_model *model, uint32_t worker, pot_err *err) {
    *out = NULL;
    if (!wanted) return POT_OK;
    if (strcmp(wanted, "auto") != 0) { /* the other workers' files stand beside the first one's */
        char suffix[16] = "";
        pot_buffer name = {0};
        if (worker) snprintf(suffix, sizeof suffix, "-%u", worker);
        pot_buffer_format(&name, "%s%s", wanted, suffix);
        *out = name.failed ? NULL : name.data;
        if (name.failed) pot_buffer_free(&name);
        return *out ? POT_OK : pot_fail(err, POT_NO_MEMORY, "no memory for the name of a usage file");
    }
    char *directory = cache_directory();
    if (!directory) return POT_OK;
    char hash[33], name[80];
    pot_hash_text(hash, pot_model_fingerprint(model));
    snprintf(name, sizeof name, "usage-%s-%u.txt", hash, worker);
    *out = pot_path_join(directory, name);
    pot_free(directory);
    return *out ? POT_OK : pot_fail(err, POT_NO_MEMORY, "no memory for the name of a usage file");
}

/* ---- reading --------------------------------------------------------------------------------------------------------------- */

typedef struct cursor {
    const char *at, *end;
} cursor;

/* A decimal number followed by `after`; at most `max`. */
static bool read_number(uint64_t *out, cursor *c, uint64_t max, char after) {
    uint64_t value = 0;
    const char *begin = c->at;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++) {
        uint64_t digit = (uint64_t)(*c->at - '0');
        if (value > (max - digit) / 10) return false;
        value = value * 10 + digit;
    }
    if (c->at == begin || c->at == c->end || *c->at != after) return false;
    c->at++;
    *out = value;
    return true;
}

static bool read_text(cursor *c, const char *text) {
    size_t n = strlen(text);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, text, n)) return false;
    c->at += n;
    return true;
}

pot_status pot_usage_parse(const char *text, size_t bytes, const char *name, pot_hash fingerprint, uint32_t n_layers,
                           void (*count)(void *context, uint32_t layer, uint32_t expert, uint64_t n), void *context,
                           pot_err *err) {
    char own[33], last[32];
    pot_hash_text(own, fingerprint);
    const size_t tail = sizeof "end 0123456789abcdef\n" - 1;
    if (bytes < tail) return pot_fail(err, POT_FORMAT, "%s: is cut short", name);
    snprintf(last, sizeof last, "end %016" PRIx64 "\n", pot_hash64(text, bytes - tail));
    if (memcmp(text + bytes - tail, last, tail) != 0)
        return pot_fail(err, POT_FORMAT, "%s: its checksum does not match: it was cut short or changed", name);
    cursor c = {text, text + bytes - tail};
    uint64_t layers;
    if (!read_text(&c, "potluck-usage 1 ")) return pot_fail(err, POT_FORMAT, "%s: is no usage file of version 1", name);
    if (!read_text(&c, own)) return pot_fail(err, POT_FORMAT, "%s: belongs to another model than %s", name, own);
    if (!read_text(&c, " ") || !read_number(&layers, &c, UINT32_MAX, '\n') || layers != n_layers)
        return pot_fail(err, POT_FORMAT, "%s: does not say %u layers", name, n_layers);
    for (int pass = 0; pass < 2; pass++) {
        cursor lines = c;
        for (uint32_t line = 2; lines.at < lines.end; line++) {
            uint64_t layer, expert, n;
            if (!read_number(&layer, &lines, n_layers - 1, ' ') || !read_number(&expert, &lines, UINT32_MAX, ' ') ||
                !read_number(&n, &lines, UINT64_MAX >> 1, '\n'))
                return pot_fail(err, POT_FORMAT, "%s:%u: `LAYER EXPERT COUNT` was expected", name, line);
            if (pass) count(context, (uint32_t)layer, (uint32_t)expert, n);
        }
    }
    return POT_OK;
}

typedef struct loading {
    pot_store *store;
    uint64_t most; /* the largest count, in a first pass */
    bool measuring;
} loading;

static void take_count(void *context, uint32_t layer, uint32_t expert, uint64_t n) {
    loading *l = context;
    pot_store *s = l->store;
    if (l->measuring) {
        if (n > l->most) l->most = n;
        return;
    }
    if (l->most > MEMORY) n = (uint64_t)((double)n * ((double)MEMORY / (double)l->most));
    for (uint32_t u = s->layer_units[layer]; u < s->layer_units[layer + 1]; u++)
        if (s->units[u].expert == expert) s->units[u].uses = n;
}

/* Opening a pipe waits for its other end. */
static bool is_pipe(const char *path) {
    struct stat info;
    return !stat(path, &info) && S_ISFIFO(info.st_mode);
}

/* An empty file, one that begins as ours do, or a device; never somebody's own text. */
static bool is_ours(const char *path) {
    struct stat info;
    char begin[sizeof "potluck-usage" - 1];
    if (stat(path, &info)) return true; /* made at the end */
    if (S_ISDIR(info.st_mode)) return false;
    if (!S_ISREG(info.st_mode) || !info.st_size) return true;
    FILE *file = fopen(path, "re");
    bool is =
        file && fread(begin, 1, sizeof begin, file) == sizeof begin && !memcmp(begin, "potluck-usage", sizeof begin);
    if (file) fclose(file);
    return is;
}

void pot_usage_load(pot_store *s) {
    if (!s->usage_path || !pot_file_exists(s->usage_path)) return;
    if (is_pipe(s->usage_path)) {
        POT_LOG(POT_LOG_WARN, "worker.store", "%s: is a pipe: which experts were used is not remembered",
                s->usage_path);
        pot_free(s->usage_path);
        s->usage_path = NULL;
        return;
    }
    pot_err err;
    pot_buffer text = {0};
    if (!is_ours(s->usage_path)) {
        POT_LOG(POT_LOG_WARN, "worker.store",
                "%s: is no usage file, and is left alone: which experts were used is not remembered", s->usage_path);
        pot_free(s->usage_path);
        s->usage_path = NULL;
        return;
    }
    loading l = {.store = s, .measuring = true};
    pot_status status = pot_file_read(&text, s->usage_path, MAX_BYTES, &err);
    for (int pass = 0; pass < 2 && status == POT_OK; pass++, l.measuring = false)
        status = pot_usage_parse(text.data, text.bytes, s->usage_path, pot_model_fingerprint(s->model), s->n_layers,
                                 take_count, &l, &err);
    if (status != POT_OK) POT_LOG(POT_LOG_WARN, "worker.store", "%s; it is ignored, and replaced at the end", err.text);
    pot_buffer_free(&text);
}

/* ---- writing --------------------------------------------------------------------------------------------------------------- */

void pot_usage_save(const pot_store *s) {
    if (s->everything && !s->device) return; /* there was nothing to choose */
    char hash[33];
    pot_buffer text = {0};
    pot_hash_text(hash, pot_model_fingerprint(s->model));
    pot_buffer_format(&text, "potluck-usage %d %s %u\n", VERSION, hash, s->n_layers);
    for (uint32_t u = 0; u < s->n_units; u++) {
        const pot_unit *unit = &s->units[u];
        if (u && unit->expert == s->units[u - 1].expert && unit->layer == s->units[u - 1].layer) continue;
        if (unit->uses) pot_buffer_format(&text, "%u %u %" PRIu64 "\n", unit->layer, unit->expert, unit->uses);
    }
    if (!text.failed) pot_buffer_format(&text, "end %016" PRIx64 "\n", pot_hash64(text.data, text.bytes));
    pot_err err;
    pot_status status = text.failed ? pot_fail(&err, POT_NO_MEMORY, "%s: no memory to write it", s->usage_path)
                                    : pot_file_write(s->usage_path, text.data, text.bytes, &err);
    if (status != POT_OK)
        POT_LOG(POT_LOG_WARN, "worker.store", "which experts were used is not remembered: %s", err.text);
    pot_buffer_free(&text);
}
