/* Option values: where they come from and what is refused.
 *
 * Each source (default, file, environment, flag) hands texts to set_option(), which parses by the row's type, checks
 * bounds and stores value, text and origin; a source of lower rank never replaces a value of higher rank.  Everything
 * that a person can mistype ends in a sentence which names the place, the text and what was expected. */
#include "common/options.h"

#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/mem.h"
#include "common/options_internal.h"

static const char prefix[] = "POTLUCK_";

/* ---- names ------------------------------------------------------------------------------------- */

void pot_option_variable(char out[POT_OPTION_NAME_MAX], const char *name) {
    size_t n = sizeof prefix - 1;
    memcpy(out, prefix, n);
    for (; *name && n + 1 < POT_OPTION_NAME_MAX; name++) {
        out[n++] = *name == '-' ? '_' : (char)toupper((unsigned char)*name);
    }
    out[n] = 0;
}

size_t pot_edit_distance(const char *a, const char *b) {
    enum { MAX = 64 };
    size_t row[MAX], n = strlen(a), m = strlen(b);
    if (n >= MAX || m >= MAX) return MAX;
    for (size_t j = 0; j <= m; j++) row[j] = j;
    for (size_t i = 0; i < n; i++) {
        size_t corner = row[0];
        row[0] = i + 1;
        for (size_t j = 0; j < m; j++) {
            size_t least = row[j] < row[j + 1] ? row[j] : row[j + 1], change = corner + (a[i] != b[j]);
            corner = row[j + 1];
            row[j + 1] = change <= least ? change : least + 1;
        }
    }
    return row[m];
}

static const pot_option *find_option(const pot_options *o, const char *name, size_t length) {
    for (size_t i = 0; i < o->n; i++) {
        if (strlen(o->table[i].name) == length && !strncmp(o->table[i].name, name, length)) return &o->table[i];
    }
    return NULL;
}

/* The known name nearest to a mistyped one, or NULL when none is near enough to be what was meant. */
static const char *nearest_name(const pot_options *o, const char *name, size_t length) {
    char typed[POT_OPTION_NAME_MAX];
    if (length >= sizeof typed) return NULL;
    memcpy(typed, name, length);
    typed[length] = 0;
    const char *nearest = NULL;
    size_t least = length < 4 ? 2 : 4; /* a guess changes at most 3 letters, 1 of a short name */
    for (size_t i = 0; i < o->n; i++) {
        size_t d = pot_edit_distance(typed, o->table[i].name);
        if (d < least) {
            least = d;
            nearest = o->table[i].name;
        }
    }
    return nearest;
}

/* ---- values ------------------------------------------------------------------------------------ */

/* A place ("--temp", "POTLUCK_TEMP", "potluck.conf: temp") and the text given there, for sentences. */
typedef struct given {
    const char *label, *text;
} given;

static pot_status parse_bool(bool *out, const given *g, pot_err *err) {
    static const char *const words[][2] = {{"false", "true"}, {"no", "yes"}, {"off", "on"}, {"0", "1"}};
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        for (int value = 0; value < 2; value++) {
            if (!strcmp(g->text, words[i][value])) {
                *out = value;
                return POT_OK;
            }
        }
    }
    return pot_fail(err, POT_USAGE, "%s: `%s` is neither true nor false", g->label, g->text);
}

static pot_status parse_int(int64_t *out, const pot_option *row, const given *g, pot_err *err) {
    char *end;
    errno = 0;
    long long value = strtoll(g->text, &end, 10);
    if (end == g->text || *end || isspace((unsigned char)*g->text)) {
        return pot_fail(err, POT_USAGE, "%s: `%s` is not a whole number", g->label, g->text);
    }
    bool bounded = row->min < row->max;
    if (errno || (bounded && ((double)value < row->min || (double)value > row->max))) {
        return pot_fail(err, POT_USAGE, "%s: `%s` is out of range, from %.0f to %.0f was expected", g->label, g->text,
                        bounded ? row->min : (double)INT64_MIN, bounded ? row->max : (double)INT64_MAX);
    }
    *out = value;
    return POT_OK;
}

static pot_status parse_number(double *out, const pot_option *row, const given *g, pot_err *err) {
    char *end;
    double value = strtod(g->text, &end);
    if (end == g->text || *end || !isfinite(value) || isspace((unsigned char)*g->text)) {
        return pot_fail(err, POT_USAGE, "%s: `%s` is not a number", g->label, g->text);
    }
    if (row->min < row->max && (value < row->min || value > row->max)) {
        return pot_fail(err, POT_USAGE, "%s: `%s` is out of range, from %g to %g was expected", g->label, g->text,
                        row->min, row->max);
    }
    *out = value;
    return POT_OK;
}

typedef struct unit {
    const char *name;
    double factor;
} unit;

static const unit byte_units[] = {{"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
                                  {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},    {NULL, 0}};
static const unit time_units[] = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}, {"m", 60e6}, {NULL, 0}};

/* A number and its unit; only 0 needs none.  `example` ends the refusal. */
static pot_status parse_quantity(uint64_t *out, const unit *units, const char *example, const given *g, pot_err *err) {
    char *end;
    double value = strtod(g->text, &end);
    if (end == g->text || !isdigit((unsigned char)*g->text) || !isfinite(value)) {
        return pot_fail(err, POT_USAGE, "%s: `%s` is not a number with a unit, such as %s", g->label, g->text, example);
    }
    while (*end == ' ') end++;
    if (!*end && value == 0) {
        *out = 0;
        return POT_OK;
    }
    for (const unit *u = units; u->name; u++) {
        if (strcmp(u->name, end)) continue;
        if (value * u->factor >= 0x1p63) break;
        *out = (uint64_t)(value * u->factor + 0.5);
        return POT_OK;
    }
    return pot_fail(err, POT_USAGE, "%s: `%s` %s, write it such as %s", g->label, g->text,
                    *end ? "has an unknown unit or is too large" : "has no unit", example);
}

static pot_status parse_choice(const pot_option *row, const given *g, pot_err *err) {
    for (const char *p = row->choices; *p;) {
        size_t length = strcspn(p, "|");
        bool suffix = p[length - 1] == ':';
        if (!strncmp(g->text, p, length) && (suffix ? g->text[length] != 0 : g->text[length] == 0)) return POT_OK;
        p += length;
        if (*p) p++;
    }
    return pot_fail(err, POT_USAGE, "%s: `%s` is not one of %s", g->label, g->text, row->choices);
}

static bool is_word(const pot_option *row, const char *text) { return row->choices && !strcmp(row->choices, text); }

/* Parses `text` and writes the value.  TEXT and CHOICE store `kept`, the copy that the options own. */
static pot_status store_value(pot_options *o, const pot_option *row, const given *g, const char *kept, pot_err *err) {
    void *target = o->values + row->offset;
    bool word = is_word(row, g->text);
    pot_status status = POT_OK;
    switch (row->type) {
    case POT_OPTION_BOOL: {
        bool value = false;
        status = parse_bool(&value, g, err);
        if (!status) memcpy(target, &value, sizeof value);
        break;
    }
    case POT_OPTION_INT: {
        int64_t value = -1;
        if (!word) status = parse_int(&value, row, g, err);
        if (!status) memcpy(target, &value, sizeof value);
        break;
    }
    case POT_OPTION_NUMBER: {
        double value = (double)NAN;
        if (!word) status = parse_number(&value, row, g, err);
        if (!status) memcpy(target, &value, sizeof value);
        break;
    }
    case POT_OPTION_BYTES:
    case POT_OPTION_TIME: {
        uint64_t value = UINT64_MAX;
        bool bytes = row->type == POT_OPTION_BYTES;
        if (!word) status = parse_quantity(&value, bytes ? byte_units : time_units, bytes ? "64MiB" : "250ms", g, err);
        if (!status) memcpy(target, &value, sizeof value);
        break;
    }
    case POT_OPTION_CHOICE: status = parse_choice(row, g, err); /* fallthrough */
    case POT_OPTION_TEXT:
        if (!status) memcpy(target, &kept, sizeof kept);
        break;
    }
    if (status && row->choices && row->type != POT_OPTION_CHOICE && err) {
        size_t length = strlen(err->text);
        snprintf(err->text + length, sizeof err->text - length, " (or `%s`)", row->choices);
    }
    return status;
}

/* `where` is what the origin of the value is called: the flag, the variable or the file. */
static pot_status set_option(pot_options *o, const pot_option *row, const given *g, pot_option_origin origin,
                             const char *where, pot_err *err) {
    option_state *state = &o->states[row - o->table];
    if (origin < state->origin) return POT_OK;
    char *text = pot_strdup(g->text), *place = pot_strdup(where);
    pot_status status = POT_OK;
    if (!text || !place) status = pot_fail(err, POT_NO_MEMORY, "%s: no memory for the value", g->label);
    if (!status) status = store_value(o, row, g, text, err);
    if (status) {
        pot_free(text);
        pot_free(place);
        return status;
    }
    pot_free(state->text);
    pot_free(state->where);
    *state = (option_state){.text = text, .where = place, .origin = origin};
    return POT_OK;
}

/* ---- defaults ---------------------------------------------------------------------------------- */

static pot_status set_default(pot_options *o, const pot_option *row, pot_err *err) {
    given g = {.label = row->name, .text = row->fallback};
    if (row->fallback) return set_option(o, row, &g, POT_ORIGIN_DEFAULT, "", err);
    POT_ASSERT(row->type == POT_OPTION_TEXT || row->type == POT_OPTION_CHOICE);
    const char *unset = NULL;
    memcpy(o->values + row->offset, &unset, sizeof unset);
    return POT_OK;
}

pot_status pot_options_create(pot_options **out, const pot_option *table, size_t n, void *values, pot_err *err) {
    pot_options *o = pot_alloc(sizeof *o);
    option_state *states = pot_alloc_array(n, sizeof *states);
    if (!o || !states) {
        pot_free(o);
        pot_free(states);
        return pot_fail(err, POT_NO_MEMORY, "no memory for %zu options", n);
    }
    *o = (pot_options){.table = table, .n = n, .values = values, .states = states};
    pot_status status = POT_OK;
    for (size_t i = 0; i < n && !status; i++) status = set_default(o, &table[i], err);
    if (status) {
        pot_options_free(o);
        return status;
    }
    *out = o;
    return POT_OK;
}

void pot_options_free(pot_options *o) {
    if (!o) return;
    for (size_t i = 0; i < o->n; i++) {
        pot_free(o->states[i].text);
        pot_free(o->states[i].where);
    }
    pot_free(o->states);
    pot_free(o);
}

pot_option_origin pot_options_origin(const pot_options *o, const char *name, const char **where) {
    const pot_option *row = find_option(o, name, strlen(name));
    POT_ASSERT(row);
    const option_state *state = &o->states[row - o->table];
    if (where) *where = state->where ? state->where : "";
    return state->origin;
}

/* ---- files ------------------------------------------------------------------------------------- */

enum { MAX_FILE = 1 << 20, MAX_LINE = 198 }; /* libinih cuts longer lines and reads the rest as another line */

typedef struct file_reader {
    pot_options *options;
    const char *path;
    bool *seen; /* one flag a row */
    pot_status status;
    pot_err *err;
} file_reader;

static pot_status read_key(file_reader *r, const char *section, const char *name, const char *value) {
    pot_options *o = r->options;
    if (*section) return pot_fail(r->err, POT_USAGE, "section [%s]: options stand in no section", section);
    const pot_option *row = find_option(o, name, strlen(name));
    if (!row) {
        const char *nearest = nearest_name(o, name, strlen(name));
        return pot_fail(r->err, POT_USAGE, "unknown key `%s`%s%s%s", name, nearest ? "; did you mean `" : "",
                        nearest ? nearest : "", nearest ? "`?" : "");
    }
    if (r->seen[row - o->table]) return pot_fail(r->err, POT_USAGE, "`%s` is set twice in this file", name);
    r->seen[row - o->table] = true;
    given g = {.label = name, .text = value};
    return set_option(o, row, &g, POT_ORIGIN_FILE, r->path, r->err);
}

/* libinih goes on after an error and returns the line of the first one, so later keys are passed over. */
static int on_key(void *user, const char *section, const char *name, const char *value) {
    file_reader *r = user;
    if (!r->status) r->status = read_key(r, section, name, value);
    return !r->status;
}

static pot_status check_lines(const pot_buffer *text, const char *path, pot_err *err) {
    if (memchr(text->data, 0, text->bytes)) return pot_fail(err, POT_USAGE, "%s: contains a NUL byte", path);
    int line = 1;
    for (const char *p = text->data; *p; line++) {
        size_t length = strcspn(p, "\n");
        if (length > MAX_LINE) {
            return pot_fail(err, POT_USAGE, "%s:%d: the line has %zu bytes, at most %d are accepted", path, line,
                            length, (int)MAX_LINE);
        }
        p += length + (p[length] == '\n');
    }
    return POT_OK;
}

static pot_status parse_file(pot_options *o, const pot_buffer *text, const char *path, pot_err *err) {
    pot_status status = check_lines(text, path, err);
    if (status) return status;
    file_reader r = {.options = o, .path = path, .seen = pot_alloc_array(o->n, sizeof(bool)), .err = err};
    if (!r.seen) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to read it", path);
    int line = ini_parse_string(text->data, on_key, &r);
    pot_free(r.seen);
    if (r.status) {
        pot_at(err, "%s:%d", path, line);
        return r.status;
    }
    return line ? pot_fail(err, POT_USAGE, "%s:%d: `key = value` was expected", path, line) : POT_OK;
}

pot_status pot_options_file(pot_options *o, const char *path, pot_err *err) {
    pot_buffer text = {0};
    pot_status status = pot_file_read(&text, path, MAX_FILE, err);
    if (!status && text.bytes) status = parse_file(o, &text, path, err);
    pot_buffer_free(&text);
    return status;
}

/* ---- environment ------------------------------------------------------------------------------- */

static pot_status read_variable(pot_options *o, const char *name, size_t length, const char *value, pot_err *err) {
    char variable[POT_OPTION_NAME_MAX], lower[POT_OPTION_NAME_MAX];
    for (size_t i = 0; i < o->n; i++) {
        pot_option_variable(variable, o->table[i].name);
        if (strlen(variable) != length || strncmp(variable, name, length)) continue;
        given g = {.label = variable, .text = value};
        return set_option(o, &o->table[i], &g, POT_ORIGIN_ENVIRONMENT, variable, err);
    }
    size_t n = 0;
    for (const char *p = name + sizeof prefix - 1; p < name + length && n + 1 < sizeof lower; p++) {
        lower[n++] = *p == '_' ? '-' : (char)tolower((unsigned char)*p);
    }
    const char *nearest = nearest_name(o, lower, n);
    if (!nearest) return pot_fail(err, POT_USAGE, "unknown variable %.*s in the environment", (int)length, name);
    pot_option_variable(variable, nearest);
    return pot_fail(err, POT_USAGE, "unknown variable %.*s in the environment; did you mean %s?", (int)length, name,
                    variable);
}

pot_status pot_options_environment(pot_options *o, const char *const *environ_, pot_err *err) {
    for (; *environ_; environ_++) {
        const char *equals = strchr(*environ_, '=');
        if (!equals || strncmp(*environ_, prefix, sizeof prefix - 1)) continue;
        pot_status status = read_variable(o, *environ_, (size_t)(equals - *environ_), equals + 1, err);
        if (status) return status;
    }
    return POT_OK;
}

/* ---- flags ------------------------------------------------------------------------------------- */

static const pot_option *find_alias(const pot_options *o, const char *alias) {
    for (size_t i = 0; i < o->n; i++) {
        if (o->table[i].alias && !strcmp(o->table[i].alias, alias)) return &o->table[i];
    }
    return NULL;
}

static pot_status unknown_flag(const pot_options *o, const char *argument, size_t length, pot_err *err) {
    const char *nearest = argument[1] == '-' ? nearest_name(o, argument + 2, length - 2) : NULL;
    return pot_fail(err, POT_USAGE, "unknown option `%.*s`%s%s%s", (int)length, argument,
                    nearest ? "; did you mean `--" : "", nearest ? nearest : "",
                    nearest ? "`?" : " (`--help` lists them)");
}

/* One option at argv[i], with the next argument as its value when it needs one; *used counts both. */
static pot_status read_flag(pot_options *o, int left, char **argv, unsigned command, int *used, pot_err *err) {
    const char *argument = argv[0];
    size_t length = strcspn(argument, "=");
    const char *value = argument[length] ? argument + length + 1 : NULL;
    bool negated = false;
    const pot_option *row;
    *used = 1;
    if (argument[1] != '-') {
        length = strlen(argument);
        value = NULL;
        row = find_alias(o, argument + 1);
    } else {
        row = find_option(o, argument + 2, length - 2);
        if (!row && !strncmp(argument, "--no-", 5)) {
            row = find_option(o, argument + 5, length - 5);
            negated = row != NULL;
        }
    }
    if (!row) return unknown_flag(o, argument, length, err);
    char label[POT_OPTION_NAME_MAX + 8];
    snprintf(label, sizeof label, "%.*s", (int)length, argument);
    if (!(row->commands & command)) return pot_fail(err, POT_USAGE, "%s is no option of this command", label);
    if (negated && (row->type != POT_OPTION_BOOL || value)) {
        return pot_fail(err, POT_USAGE, "%s: only a switch can be negated, and without a value", label);
    }
    if (row->type == POT_OPTION_BOOL) {
        if (!value) value = negated ? "false" : "true";
    } else if (!value) {
        if (left < 2) return pot_fail(err, POT_USAGE, "%s needs a value: %s", label, row->argument);
        value = argv[1];
        *used = 2;
    }
    given g = {.label = label, .text = value};
    return set_option(o, row, &g, POT_ORIGIN_FLAG, label, err);
}

pot_status pot_options_arguments(pot_options *o, int argc, char **argv, unsigned command, const char **positional,
                                 int max, int *n_positional, pot_err *err) {
    int n = 0;
    bool options_end = false;
    for (int i = 1, used; i < argc; i += used) {
        used = 1;
        if (!options_end && !strcmp(argv[i], "--")) {
            options_end = true;
        } else if (!options_end && argv[i][0] == '-' && argv[i][1]) { /* "-" alone is a name, of standard input */
            pot_status status = read_flag(o, argc - i, argv + i, command, &used, err);
            if (status) return status;
        } else if (n == max) {
            return pot_fail(err, POT_USAGE, "unexpected argument `%s`: at most %d can be given", argv[i], max);
        } else {
            positional[n++] = argv[i];
        }
    }
    *n_positional = n;
    return POT_OK;
}
