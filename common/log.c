/* Log lines.  Levels are read without a lock; a line is built whole and leaves in one write(2), so lines of threads and
 * ranks never mix.  The last line is remembered: an equal one is only counted, and the count is printed when another
 * line comes, a second has passed, or the process ends. */
#include "common/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"

enum { MAX_RULES = 16, MAX_PREFIX = 48, MAX_TEXT = 1024, FOLD_US = 1000000 };

static const char *const level_names[] = {"error", "warn", "info", "debug", "trace"};

typedef struct log_rule {
    char prefix[MAX_PREFIX];
    pot_log_level level;
} log_rule;

/* Rules are written once, before threads start, and published by the count. */
static log_rule rules[MAX_RULES];
static atomic_int n_rules, default_level = POT_LOG_INFO, own_rank = -1;
static _Atomic uint64_t start_us;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
    pot_log_level level;
    char module[MAX_PREFIX], text[MAX_TEXT];
    uint64_t repeats, shown_us;
} last;

/* ---- levels ------------------------------------------------------------------------------------ */

static pot_status parse_level(pot_log_level *out, const char *text, size_t length, pot_err *err) {
    for (int i = 0; i <= POT_LOG_TRACE; i++) {
        if (strlen(level_names[i]) == length && !strncmp(level_names[i], text, length)) {
            *out = (pot_log_level)i;
            return POT_OK;
        }
    }
    return pot_fail(err, POT_USAGE, "log level `%.*s` is unknown: error, warn, info, debug or trace was expected",
                    (int)length, text);
}

pot_status pot_log_configure(const char *spec, pot_err *err) {
    log_rule parsed[MAX_RULES] = {0};
    pot_log_level level = POT_LOG_INFO;
    int n = 0;
    for (const char *p = spec; *p;) {
        size_t length = strcspn(p, ",");
        const char *equals = memchr(p, '=', length);
        size_t prefix = equals ? (size_t)(equals - p) : 0;
        const char *name = equals ? equals + 1 : p;
        if (equals && (n == MAX_RULES || prefix == 0 || prefix >= MAX_PREFIX)) {
            return pot_fail(err, POT_USAGE,
                            "log level `%.*s`: at most %d rules MODULE=LEVEL, with names of 1 to %d bytes", (int)length,
                            p, MAX_RULES, MAX_PREFIX - 1);
        }
        pot_status status = parse_level(equals ? &parsed[n].level : &level, name, length - (size_t)(name - p), err);
        if (status) return status;
        if (equals) memcpy(parsed[n++].prefix, p, prefix);
        p += length;
        if (*p == ',') p++;
    }
    atomic_store(&n_rules, 0);
    memcpy(rules, parsed, sizeof rules);
    atomic_store(&default_level, (int)level);
    atomic_store(&n_rules, n);
    return POT_OK;
}

void pot_log_rank(int rank) { atomic_store(&own_rank, rank); }

/* A rule for `proto` holds for `proto` and `proto.ucx`; the longest one that fits wins. */
bool pot_log_enabled(pot_log_level level, const char *module) {
    int limit = atomic_load_explicit(&default_level, memory_order_relaxed);
    size_t longest = 0;
    for (int i = 0, n = atomic_load_explicit(&n_rules, memory_order_acquire); i < n; i++) {
        size_t length = strlen(rules[i].prefix);
        if (length < longest || strncmp(module, rules[i].prefix, length)) continue;
        if (module[length] && module[length] != '.') continue;
        longest = length;
        limit = (int)rules[i].level;
    }
    return (int)level <= limit;
}

/* ---- lines ------------------------------------------------------------------------------------- */

static void write_line(pot_log_level level, const char *module, const char *text, uint64_t repeats, uint64_t now) {
    char line[MAX_TEXT + 160], rank[16] = "", count[48] = "";
    int r = atomic_load(&own_rank);
    if (r >= 0) snprintf(rank, sizeof rank, " r%d", r);
    if (repeats) snprintf(count, sizeof count, " (%llu more times)", (unsigned long long)repeats);
    uint64_t since = now - atomic_load(&start_us);
    int n = snprintf(line, sizeof line, "%llu.%06llu%s %s %s: %s%s\n", (unsigned long long)(since / 1000000),
                     (unsigned long long)(since % 1000000), rank, module, level_names[level], text, count);
    if (n < 0) return;
    size_t bytes = (size_t)n < sizeof line ? (size_t)n : sizeof line - 1;
    ssize_t written = write(STDERR_FILENO, line, bytes);
    (void)written; /* there is nowhere left to complain */
}

static void show_repeats(uint64_t now) {
    if (last.repeats) write_line(last.level, last.module, last.text, last.repeats, now);
    last.repeats = 0;
    last.shown_us = now;
}

static void flush_at_exit(void) {
    if (pthread_mutex_trylock(&lock)) return;
    show_repeats(pot_now_us());
    pthread_mutex_unlock(&lock);
}

static void register_flush(void) { atexit(flush_at_exit); }

void pot_log_write(pot_log_level level, const char *module, const char *format, ...) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, register_flush);
    char text[MAX_TEXT];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0) return;
    for (char *p = text; *p; p++) {
        if ((unsigned char)*p < 0x20 || *p == 0x7F) *p = ' '; /* a name from a peer must not start a line or colour */
    }
    uint64_t now = pot_now_us(), none = 0;
    atomic_compare_exchange_strong(&start_us, &none, now);
    pthread_mutex_lock(&lock);
    if (last.shown_us && level == last.level && !strcmp(text, last.text) && !strcmp(module, last.module)) {
        last.repeats++;
        if (now - last.shown_us >= FOLD_US) show_repeats(now);
    } else {
        show_repeats(now);
        last.level = level;
        snprintf(last.module, sizeof last.module, "%s", module);
        memcpy(last.text, text, strlen(text) + 1);
        write_line(level, module, text, 0, now);
    }
    pthread_mutex_unlock(&lock);
}
