/* Reading a cluster file, through libinih, which hands over one key after the other without saying the line: the lines are counted as it takes
 * them.  It goes on after an error, so later keys are passed over.  What only the whole file shows (a worker left out, a tier without a rate) is
 * looked at in the end and named by its section and the line of its first key. */
#include <ctype.h>
#include <ini.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/file.h"
#include "common/mem.h"
#include "common/options.h"
#include "placement/cluster.h"
#include "placement/cluster_internal.h"

enum {
    MAX_FILE = 1 << 20,
    MAX_LINE = 198,  /* libinih cuts longer lines and reads the rest as another line */
    MAX_DIGITS = 15, /* a double has them all */
    SHOWN = 60,      /* bytes of what was found */
    NONE = -1        /* section [cluster] */
};

typedef struct reading {
    pot_machines *out;
    const char *text, *end; /* what is left */
    int line;               /* that libinih took last */
    pot_cluster_head head;
    bool head_seen[POT_CLUSTER_KEYS];
    bool seen[POT_MAX_WORKERS][POT_WORKER_KEYS];
    int head_line, lines[POT_MAX_WORKERS]; /* of the first key; 0 = there is none */
    pot_status status;
    int fault_line;
    pot_err *err;
} reading;

/* ---- values --------------------------------------------------------------------------------------------------------- */

static pot_status wrong(const pot_key *key, const char *value, pot_err *err) {
    return pot_fail(err, POT_FORMAT, "%s is `%.*s`, expected is %s", key->name, SHOWN, value,
                    pot_kinds[key->type].expected);
}

/* "12.5" exactly as a program in any locale reads it; NULL when there is no number.  Returns where it ends. */
static const char *read_decimal(double *out, const char *text) {
    double whole = 0, scale = 1;
    int digits = 0;
    bool point = false;
    const char *at = text;
    for (;; at++) {
        if (*at == '.' && !point && digits) {
            point = true;
            continue;
        }
        if (!isdigit((unsigned char)*at)) break;
        if (++digits > MAX_DIGITS) return NULL;
        whole = whole * 10 + (*at - '0');
        if (point) scale *= 10;
    }
    if (!digits || at[-1] == '.') return NULL;
    *out = whole / scale;
    return at;
}

/* One quantity of at most `n` bytes. */
static bool read_quantity(double *out, pot_key_type type, const char *text, size_t n) {
    const pot_kind *kind = &pot_kinds[type];
    char word[POT_QUANTITY_TEXT];
    double number;
    if (n >= sizeof word) return false;
    memcpy(word, text, n);
    word[n] = 0;
    const char *unit = read_decimal(&number, word);
    if (!unit) return false;
    if (number <= 0 && !*unit) { /* nothing of anything */
        *out = 0;
        return true;
    }
    for (uint32_t u = 0; u < kind->n_units; u++) {
        if (strcmp(unit, kind->units[u].name) != 0) continue;
        *out = number * kind->units[u].factor;
        return *out <= kind->most && *out >= kind->least;
    }
    return false;
}

static bool is_word(const char *text) {
    for (const char *at = text; *at; at++)
        if (!isalnum((unsigned char)*at) && *at != '.' && *at != '-' && *at != '_') return false;
    return *text != 0;
}

/* Printable, and nothing that INI would take for a comment when it is written again. */
static bool is_text(const char *text) {
    for (const char *at = text; *at; at++)
        if ((unsigned char)*at < ' ' || *at == 0x7f || *at == ';') return false;
    return true;
}

static pot_status read_text(char *out, const pot_key *key, const char *value, pot_err *err) {
    bool good = key->type == POT_KEY_WORD ? is_word(value) : is_text(value);
    if (!good) return wrong(key, value, err);
    if (strlen(value) >= key->room)
        return pot_fail(err, POT_FORMAT, "%s has %zu characters, at most %zu are accepted", key->name, strlen(value),
                        key->room - 1);
    strcpy(out, value);
    return POT_OK;
}

static pot_status read_value(void *object, const pot_key *key, const char *value, pot_err *err) {
    char *at = (char *)object + key->offset;
    double number = 0;
    if (key->type == POT_KEY_WORD || key->type == POT_KEY_TEXT) return read_text(at, key, value, err);
    if (!read_quantity(&number, key->type, value, strlen(value))) return wrong(key, value, err);
    if (key->type == POT_KEY_COUNT) {
        uint32_t count = (uint32_t)number;
        if (number != rint(number)) return wrong(key, value, err);
        memcpy(at, &count, sizeof count);
    } else if (key->type == POT_KEY_BYTES) {
        uint64_t bytes = (uint64_t)rint(number);
        memcpy(at, &bytes, sizeof bytes);
    } else {
        memcpy(at, &number, sizeof number);
    }
    return POT_OK;
}

/* ---- curves ----------------------------------------------------------------------------------------------------------- */

static pot_status read_rates(pot_machine_curve *curve, const char *name, const char *value, pot_err *err) {
    int n = 0;
    for (const char *at = value; *at;) {
        size_t length = strcspn(at, " \t");
        double rate;
        if (!read_quantity(&rate, POT_KEY_RATE, at, length) || rate <= 0)
            return pot_fail(err, POT_FORMAT,
                            "%s: rate number %d is `%.*s`, expected is a rate above 0, such as 3.2GB/s", name, n + 1,
                            length < SHOWN ? (int)length : SHOWN, at);
        if (n < POT_MACHINE_DEPTHS) curve->bytes_per_s[n] = rate;
        n++;
        at += length;
        at += strspn(at, " \t");
    }
    if (n == POT_MACHINE_DEPTHS) return POT_OK;
    return pot_fail(err, POT_FORMAT, "%s has %d rates, expected are %d: with 1, 2, 4, 8, 16 and 32 reads in flight",
                    name, n, POT_MACHINE_DEPTHS);
}

static pot_status read_curve(pot_machine *m, const char *name, const char *value, pot_err *err) {
    pot_machine_curve curve = {0};
    const char *size = name + strlen(pot_curve_prefix);
    double bytes;
    if (!read_quantity(&bytes, POT_KEY_BYTES, size, strlen(size)) || bytes < 512)
        return pot_fail(err, POT_FORMAT, "%.*s: `%.*s` is no size of a read, expected is a key such as %s1MiB", SHOWN,
                        name, SHOWN, size, pot_curve_prefix);
    curve.read_bytes = (uint64_t)rint(bytes);
    pot_status status = read_rates(&curve, name, value, err);
    if (status) return status;
    uint32_t at = 0;
    while (at < m->n_curves && m->curves[at].read_bytes < curve.read_bytes) at++;
    if (at < m->n_curves && m->curves[at].read_bytes == curve.read_bytes)
        return pot_fail(err, POT_FORMAT, "%s: reads of this size are described twice", name);
    if (m->n_curves == POT_MACHINE_MOST_CURVES)
        return pot_fail(err, POT_FORMAT, "%s: more than %d sizes of reads", name, POT_MACHINE_MOST_CURVES);
    memmove(&m->curves[at + 1], &m->curves[at], (m->n_curves - at) * sizeof *m->curves);
    m->curves[at] = curve;
    m->n_curves++;
    return POT_OK;
}

/* ---- keys and sections --------------------------------------------------------------------------------------------------- */

static pot_status unknown(const pot_key *keys, int n, const char *name, pot_err *err) {
    const char *nearest = NULL;
    size_t least = 4;
    for (int k = 0; k < n; k++) {
        size_t distance = pot_edit_distance(name, keys[k].name);
        if (distance < least) {
            least = distance;
            nearest = keys[k].name;
        }
    }
    return pot_fail(err, POT_FORMAT, "unknown key `%.*s`%s%s%s (docs/cluster.md lists them)", SHOWN, name,
                    nearest ? "; did you mean `" : "", nearest ? nearest : "", nearest ? "`?" : "");
}

static pot_status set_key(void *object, bool *seen, const pot_key *keys, int n, const char *name, const char *value,
                          pot_err *err) {
    int k = 0;
    while (k < n && strcmp(keys[k].name, name) != 0) k++;
    if (k == n) return unknown(keys, n, name, err);
    if (seen[k]) return pot_fail(err, POT_FORMAT, "%s is set twice", name);
    seen[k] = true;
    return read_value(object, &keys[k], value, err);
}

/* "worker 7" -> 7; NONE for "cluster". */
static pot_status read_section(int *out, const char *section, pot_err *err) {
    if (strcmp(section, "cluster") == 0) {
        *out = NONE;
        return POT_OK;
    }
    static const char worker[] = "worker ";
    if (strncmp(section, worker, sizeof worker - 1) == 0) {
        const char *digits = section + sizeof worker - 1;
        int n = 0;
        while (isdigit((unsigned char)digits[n]) && n < 4) n++;
        int number = n == 1 ? digits[0] - '0' : n == 2 ? 10 * (digits[0] - '0') + digits[1] - '0' : POT_MAX_WORKERS;
        if (n && !digits[n] && (n == 1 || digits[0] != '0')) {
            if (number >= POT_MAX_WORKERS)
                return pot_fail(err, POT_FORMAT, "section [%.*s]: workers are numbered from 0 to %d", SHOWN, section,
                                POT_MAX_WORKERS - 1);
            *out = number;
            return POT_OK;
        }
    }
    if (!*section) return pot_fail(err, POT_FORMAT, "a key before the first section, which should be [cluster]");
    return pot_fail(err, POT_FORMAT, "unknown section [%.*s]; there are [cluster] and [worker 0], [worker 1], ...",
                    SHOWN, section);
}

static pot_status read_key(reading *r, const char *section, const char *name, const char *value) {
    int w = NONE;
    pot_status status = read_section(&w, section, r->err);
    if (status) return status;
    int *first = w == NONE ? &r->head_line : &r->lines[w];
    if (!*first) *first = r->line;
    if (w == NONE) return set_key(&r->head, r->head_seen, pot_cluster_keys, POT_CLUSTER_KEYS, name, value, r->err);
    pot_machine *m = &r->out->of[w];
    if (strncmp(name, pot_curve_prefix, strlen(pot_curve_prefix)) == 0) return read_curve(m, name, value, r->err);
    return set_key(m, r->seen[w], pot_worker_keys, POT_WORKER_KEYS, name, value, r->err);
}

static int on_key(void *user, const char *section, const char *name, const char *value) {
    reading *r = user;
    if (!r->status) {
        r->status = read_key(r, section, name, value);
        r->fault_line = r->line;
    }
    return !r->status;
}

/* As fgets. */
static char *next_line(char *into, int room, void *stream) {
    reading *r = stream;
    if (r->text == r->end) return NULL;
    const char *end = memchr(r->text, '\n', (size_t)(r->end - r->text));
    size_t n = (size_t)((end ? end + 1 : r->end) - r->text);
    POT_ASSERT(n < (size_t)room); /* check_lines */
    memcpy(into, r->text, n);
    into[n] = 0;
    r->text += n;
    r->line++;
    return into;
}

/* ---- the whole file ---------------------------------------------------------------------------------------------------- */

static pot_status missing(const pot_key *key, int worker, const char *why, pot_err *err) {
    char section[24];
    if (worker == NONE)
        snprintf(section, sizeof section, "cluster");
    else
        snprintf(section, sizeof section, "worker %d", worker);
    return pot_fail(err, POT_FORMAT, "[%s]: %s is missing%s; expected is %s", section, key->name, why,
                    pot_kinds[key->type].expected);
}

static pot_status check_needed(const pot_key *keys, int n, const bool *seen, int worker, pot_err *err) {
    for (int k = 0; k < n; k++)
        if (keys[k].needed && !seen[k]) return missing(&keys[k], worker, "", err);
    return POT_OK;
}

static int key_at(size_t offset) {
    int k = 0;
    while (pot_worker_keys[k].offset != offset) k++;
    return k;
}

/* A link that nobody described would be one that costs nothing. */
static pot_status check_link(const reading *r, int w, pot_err *err) {
    static const size_t offsets[] = {offsetof(pot_machine, link.latency_s), offsetof(pot_machine, link.bytes_per_s)};
    for (int i = 0; w > 0 && i < 2; i++) {
        int k = key_at(offsets[i]);
        if (!r->seen[w][k]) return missing(&pot_worker_keys[k], w, " (only worker 0 has no link)", err);
    }
    return POT_OK;
}

static pot_status check_tiers(const pot_machine *m, int w, pot_err *err) {
    for (int t = 0; t < POT_COST_TIERS; t++) {
        const pot_key *rate = &pot_worker_keys[key_at(offsetof(pot_machine, tiers) + (size_t)t * sizeof m->tiers[0] +
                                                      offsetof(pot_machine_tier, bytes_per_s))];
        bool used = m->tiers[t].bytes > 0 || (t == POT_COST_RAM && m->tiers[POT_COST_DISK].bytes > 0);
        if (used && m->tiers[t].bytes_per_s <= 0)
            return missing(rate, w,
                           m->tiers[t].bytes ? ", though there is room" : ", which experts from disk are computed at",
                           err);
    }
    return POT_OK;
}

static pot_status check_worker(reading *r, int w, pot_err *err) {
    r->fault_line = r->lines[w];
    pot_machine *m = &r->out->of[w];
    pot_status status = check_needed(pot_worker_keys, POT_WORKER_KEYS, r->seen[w], w, err);
    if (!status) status = check_tiers(m, w, err);
    if (!status) status = check_link(r, w, err);
    if (m->dense_bytes_per_s <= 0) m->dense_bytes_per_s = m->tiers[POT_COST_RAM].bytes_per_s;
    return status;
}

static pot_status check_file(reading *r, pot_err *err) {
    r->fault_line = r->head_line;
    pot_status status = check_needed(pot_cluster_keys, POT_CLUSTER_KEYS, r->head_seen, NONE, err);
    if (status) return status;
    if (r->head.version != POT_CLUSTER_VERSION)
        return pot_fail(err, POT_FORMAT, "the file is of version %u, this program reads version %d", r->head.version,
                        POT_CLUSTER_VERSION);
    int n = POT_MAX_WORKERS;
    while (n && !r->lines[n - 1]) n--;
    r->fault_line = 0;
    if (!n) return pot_fail(err, POT_FORMAT, "no [worker 0]: a cluster has at least one worker");
    for (int w = 0; w < n && !status; w++) {
        if (!r->lines[w]) {
            r->fault_line = r->lines[n - 1];
            return pot_fail(err, POT_FORMAT, "[worker %d] is missing, though there is [worker %d]", w, n - 1);
        }
        status = check_worker(r, w, err);
    }
    r->out->n = (uint32_t)n;
    r->out->port_bytes_per_s = r->head.port_bytes_per_s;
    memcpy(r->out->note, r->head.note, sizeof r->out->note);
    return status;
}

static pot_status check_lines(const char *text, size_t bytes, const char *name, pot_err *err) {
    if (bytes > MAX_FILE)
        return pot_fail(err, POT_FORMAT, "%s: %zu bytes, a cluster file has at most %d", name, bytes, (int)MAX_FILE);
    if (memchr(text, 0, bytes)) return pot_fail(err, POT_FORMAT, "%s: contains a NUL byte", name);
    int line = 1;
    for (size_t at = 0; at < bytes; line++) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end ? (size_t)(end - text) - at : bytes - at;
        if (length > MAX_LINE)
            return pot_fail(err, POT_FORMAT, "%s:%d: the line has %zu bytes, at most %d are accepted", name, line,
                            length, (int)MAX_LINE);
        at += length + 1;
    }
    return POT_OK;
}

static pot_status parse(reading *r, const char *name) {
    int line = ini_parse_stream(next_line, r, on_key, r);
    if (line < 0) return pot_fail(r->err, POT_NO_MEMORY, "%s: no memory to read it", name);
    if (line && (!r->status || line < r->fault_line)) /* what follows was read wrongly */
        return pot_fail(r->err, POT_FORMAT, "%s:%d: `key = value` or `[section]` was expected", name, line);
    pot_status status = r->status ? r->status : check_file(r, r->err);
    if (!status) return POT_OK;
    return r->fault_line ? pot_at(r->err, "%s:%d", name, r->fault_line) : pot_at(r->err, "%s", name);
}

pot_status pot_machines_parse(pot_machines *out, const char *text, size_t bytes, const char *name, pot_err *err) {
    pot_err unread;
    pot_status status = check_lines(text, bytes, name, err);
    if (status) return status;
    reading *r = pot_alloc(sizeof *r);
    pot_machines *found = pot_alloc(sizeof *found);
    if (!r || !found) {
        status = pot_fail(err, POT_NO_MEMORY, "%s: no memory to read it", name);
    } else {
        *r = (reading){.out = found, .text = text, .end = text + bytes, .err = err ? err : &unread};
        status = parse(r, name);
        if (!status) *out = *found;
    }
    pot_free(found);
    pot_free(r);
    return status;
}

pot_status pot_machines_read(pot_machines *out, const char *path, pot_err *err) {
    pot_buffer text = {0};
    pot_status status = pot_file_read(&text, path, MAX_FILE, err);
    if (!status) status = pot_machines_parse(out, text.data ? text.data : "", text.bytes, path, err);
    pot_buffer_free(&text);
    return status;
}
