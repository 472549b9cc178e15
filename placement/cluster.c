/* The tables that a cluster file consists of, writing one, and what is worked out of its numbers. */
#include "placement/cluster.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/mem.h"
#include "placement/cluster_internal.h"

const uint32_t pot_machine_depths[POT_MACHINE_DEPTHS] = {1, 2, 4, 8, 16, 32};
const char pot_curve_prefix[] = "disk_rate_";

/* ---- the file's vocabulary ------------------------------------------------------------------------------------------ */

#define AT(member) offsetof(pot_cluster_head, member)
const pot_key pot_cluster_keys[POT_CLUSTER_KEYS] = {
    {"version", POT_KEY_COUNT, AT(version), 0, true},
    {"note", POT_KEY_TEXT, AT(note), POT_MACHINES_NOTE, false},
    {"port_rate", POT_KEY_RATE, AT(port_bytes_per_s), 0, false},
};
#undef AT

#define AT(member) offsetof(pot_machine, member)
const pot_key pot_worker_keys[POT_WORKER_KEYS] = {
    {"host", POT_KEY_WORD, AT(host), POT_MACHINE_HOST, true},
    {"cores", POT_KEY_COUNT, AT(cores), 0, false},
    {"isa", POT_KEY_WORD, AT(isa), POT_MACHINE_ISA, false},
    {"vram", POT_KEY_BYTES, AT(tiers[POT_COST_VRAM].bytes), 0, false},
    {"vram_rate", POT_KEY_RATE, AT(tiers[POT_COST_VRAM].bytes_per_s), 0, false},
    {"ram", POT_KEY_BYTES, AT(tiers[POT_COST_RAM].bytes), 0, true},
    {"ram_rate", POT_KEY_RATE, AT(tiers[POT_COST_RAM].bytes_per_s), 0, false},
    {"disk", POT_KEY_BYTES, AT(tiers[POT_COST_DISK].bytes), 0, false},
    {"disk_rate", POT_KEY_RATE, AT(tiers[POT_COST_DISK].bytes_per_s), 0, false},
    {"dense_rate", POT_KEY_RATE, AT(dense_bytes_per_s), 0, false},
    {"operations", POT_KEY_OPERATIONS, AT(operations_per_s), 0, false},
    {"item_time", POT_KEY_TIME, AT(item_s), 0, false},
    {"link_latency", POT_KEY_TIME, AT(link.latency_s), 0, false},
    {"link_rate", POT_KEY_RATE, AT(link.bytes_per_s), 0, false},
    {"link_jitter", POT_KEY_TIME, AT(link.jitter_s), 0, false},
    {"message_time", POT_KEY_TIME, AT(link.message_s), 0, false},
};
#undef AT

static const pot_unit size_units[] = {{"TiB", 0x1p40}, {"GiB", 0x1p30}, {"MiB", 0x1p20}, {"KiB", 0x1p10}, {"B", 1},
                                      {"TB", 1e12},    {"GB", 1e9},     {"MB", 1e6},     {"kB", 1e3}};
static const pot_unit rate_units[] = {{"GB/s", 1e9},         {"MB/s", 1e6},        {"kB/s", 1e3},     {"B/s", 1},
                                      {"TB/s", 1e12},        {"GiB/s", 0x1p30},    {"MiB/s", 0x1p20}, {"KiB/s", 0x1p10},
                                      {"Gbit/s", 1e9 / 8.0}, {"Mbit/s", 1e6 / 8.0}};
static const pot_unit operation_units[] = {{"Gop/s", 1e9}, {"Mop/s", 1e6}, {"Top/s", 1e12}};
static const pot_unit time_units[] = {{"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}};
static const pot_unit count_units[] = {{"", 1}};

#define UNITS(table, written) table, sizeof table / sizeof *table, written
const pot_kind pot_kinds[POT_KEY_TYPES] = {
    [POT_KEY_WORD] = {.expected = "a name of letters, digits, dots, dashes and underscores"},
    [POT_KEY_TEXT] = {.expected = "a text"},
    [POT_KEY_COUNT] = {UNITS(count_units, 1), 1, 65536, "a whole number up to 65536"},
    [POT_KEY_BYTES] = {UNITS(size_units, 5), 1, 0x1p53, "a size such as 24GiB or 2TB, or 0"},
    [POT_KEY_RATE] = {UNITS(rate_units, 4), 1, 1e15, "a rate such as 3.2GB/s or 10Gbit/s, or 0"},
    [POT_KEY_OPERATIONS] = {UNITS(operation_units, 2), 1e6, 1e18, "a number of operations such as 200Gop/s, or 0"},
    [POT_KEY_TIME] = {UNITS(time_units, 4), 1e-12, 60, "a time such as 80us or 0.2ms, or 0"},
};

/* ---- quantities in words ---------------------------------------------------------------------------------------------- */

/* Six digits, without zeros behind the point. */
static void put_number(char *out, size_t room, double value) {
    int digits = value > 0 ? 5 - (int)floor(log10(value)) : 0;
    snprintf(out, room, "%.*f", digits > 0 ? digits : 0, value);
    if (!strchr(out, '.')) return;
    size_t n = strlen(out);
    while (out[n - 1] == '0') out[--n] = 0;
    if (out[n - 1] == '.') out[n - 1] = 0;
}

/* Rounded before the unit is chosen, so that what is read back is written the same way again. */
static const char *quantity(char out[POT_QUANTITY_TEXT], pot_key_type type, double value) {
    const pot_kind *kind = &pot_kinds[type];
    char number[POT_QUANTITY_TEXT];
    snprintf(number, sizeof number, "%.5e", value >= kind->least ? value : 0);
    value = strtod(number, NULL);
    const pot_unit *unit = kind->units;
    const pot_unit *smallest = &kind->units[kind->n_written - 1];
    while (unit < smallest && value < unit->factor) unit++;
    put_number(number, sizeof number, value / unit->factor);
    snprintf(out, POT_QUANTITY_TEXT, "%.20s%s", number, value > 0 ? unit->name : "");
    return out;
}

const char *pot_rate_text(char out[POT_QUANTITY_TEXT], double bytes_per_s) {
    return quantity(out, POT_KEY_RATE, bytes_per_s);
}
const char *pot_time_text(char out[POT_QUANTITY_TEXT], double seconds) { return quantity(out, POT_KEY_TIME, seconds); }

/* Exact: the largest unit that divides it. */
const char *pot_size_text(char out[POT_QUANTITY_TEXT], uint64_t bytes) {
    const pot_unit *unit = size_units;
    while (unit->factor > 1 && bytes % (uint64_t)unit->factor) unit++;
    snprintf(out, POT_QUANTITY_TEXT, "%" PRIu64 "%s", bytes / (uint64_t)unit->factor, bytes ? unit->name : "");
    return out;
}

/* ---- writing ------------------------------------------------------------------------------------------------------------ */

static void put_key(pot_buffer *out, const pot_key *key, const void *object) {
    const char *at = (const char *)object + key->offset;
    char text[POT_QUANTITY_TEXT];
    uint64_t bytes;
    uint32_t count;
    double value;
    switch (key->type) {
    case POT_KEY_WORD:
    case POT_KEY_TEXT:
        if (*at) pot_buffer_format(out, "%s = %s\n", key->name, at);
        return;
    case POT_KEY_COUNT:
        memcpy(&count, at, sizeof count);
        if (count || key->needed) pot_buffer_format(out, "%s = %u\n", key->name, count);
        return;
    case POT_KEY_BYTES:
        memcpy(&bytes, at, sizeof bytes);
        if (bytes || key->needed) pot_buffer_format(out, "%s = %s\n", key->name, pot_size_text(text, bytes));
        return;
    default:
        memcpy(&value, at, sizeof value);
        if (value >= pot_kinds[key->type].least)
            pot_buffer_format(out, "%s = %s\n", key->name, quantity(text, key->type, value));
    }
}

static void put_worker(pot_buffer *out, const pot_machine *m, uint32_t number) {
    char text[POT_QUANTITY_TEXT];
    pot_buffer_format(out, "\n[worker %u]\n", number);
    for (int k = 0; k < POT_WORKER_KEYS; k++) {
        /* A link needs both of these, even where they are nothing. */
        bool link = number > 0 && pot_worker_keys[k].offset == offsetof(pot_machine, link.latency_s);
        bool rate = number > 0 && pot_worker_keys[k].offset == offsetof(pot_machine, link.bytes_per_s);
        if ((link && m->link.latency_s <= 0) || (rate && m->link.bytes_per_s <= 0))
            pot_buffer_format(out, "%s = 0\n", pot_worker_keys[k].name);
        else
            put_key(out, &pot_worker_keys[k], m);
    }
    for (uint32_t c = 0; c < m->n_curves; c++) {
        pot_buffer_format(out, "%s%s =", pot_curve_prefix, pot_size_text(text, m->curves[c].read_bytes));
        for (int d = 0; d < POT_MACHINE_DEPTHS; d++)
            pot_buffer_format(out, " %s", pot_rate_text(text, m->curves[c].bytes_per_s[d]));
        pot_buffer_byte(out, '\n');
    }
}

void pot_machines_format(pot_buffer *out, const pot_machines *machines) {
    pot_cluster_head head = {.version = POT_CLUSTER_VERSION, .port_bytes_per_s = machines->port_bytes_per_s};
    memcpy(head.note, machines->note, sizeof head.note);
    pot_buffer_text(out, "[cluster]\n");
    for (int k = 0; k < POT_CLUSTER_KEYS; k++) put_key(out, &pot_cluster_keys[k], &head);
    for (uint32_t w = 0; w < machines->n; w++) put_worker(out, &machines->of[w], w);
}

/* A line that is too long could not be read again. */
static void put_comment(pot_buffer *out, const char *comment) {
    enum { MOST = 190 };
    for (const char *line = comment; *line; line += *line != 0) {
        size_t n = strcspn(line, "\n");
        if (n)
            pot_buffer_format(out, "; %.*s%s\n", (int)(n > MOST ? MOST : n), line, n > MOST ? "..." : "");
        else
            pot_buffer_text(out, ";\n");
        line += n;
    }
    pot_buffer_byte(out, '\n');
}

pot_status pot_machines_write(const char *path, const pot_machines *machines, const char *comment, pot_err *err) {
    pot_buffer text = {0};
    pot_machines *read = pot_alloc(sizeof *read);
    if (comment && *comment) put_comment(&text, comment);
    pot_machines_format(&text, machines);
    pot_status status = !read || text.failed ? pot_fail(err, POT_NO_MEMORY, "%s: no memory for a cluster file", path)
                                             : pot_machines_parse(read, text.data, text.bytes, path, err);
    if (!status) status = pot_file_write(path, text.data, text.bytes, err);
    pot_free(read);
    pot_buffer_free(&text);
    return status;
}

/* ---- worked out of it ------------------------------------------------------------------------------------------------------ */

/* Where `x` lies between low and high on a scale of logarithms, 0 to 1. */
static double part_of(double x, double low, double high) {
    if (x <= low) return 0;
    return x >= high ? 1 : log(x / low) / log(high / low);
}

static double on_curve(const pot_machine_curve *curve, double depth) {
    int d = 0;
    while (d < POT_MACHINE_DEPTHS - 2 && depth > pot_machine_depths[d + 1]) d++;
    double p = part_of(depth, pot_machine_depths[d], pot_machine_depths[d + 1]);
    return (1 - p) * curve->bytes_per_s[d] + p * curve->bytes_per_s[d + 1];
}

double pot_machine_disk_rate(const pot_machine *m, uint64_t read_bytes, uint32_t depth) {
    if (!m->n_curves) return m->tiers[POT_COST_DISK].bytes_per_s;
    const pot_machine_curve *low = m->curves, *high = &m->curves[m->n_curves - 1];
    for (uint32_t c = 0; c < m->n_curves; c++) {
        if (m->curves[c].read_bytes <= read_bytes) low = &m->curves[c];
        if (m->curves[m->n_curves - 1 - c].read_bytes >= read_bytes) high = &m->curves[m->n_curves - 1 - c];
    }
    double a = on_curve(low, depth), b = on_curve(high, depth);
    if (low->read_bytes >= high->read_bytes) return read_bytes >= low->read_bytes ? a : b;
    double p = part_of((double)read_bytes, (double)low->read_bytes, (double)high->read_bytes);
    return (1 - p) * a + p * b;
}

void pot_machine_speed(pot_cost_worker *out, const pot_machine *m) {
    *out = (pot_cost_worker){.item_s = m->item_s,
                             .link_s = m->link.latency_s + m->link.jitter_s + m->link.message_s,
                             .link_bytes_per_s = m->link.bytes_per_s};
    for (int t = 0; t < POT_COST_TIERS; t++) out->bytes_per_s[t] = m->tiers[t].bytes_per_s;
    out->remote = m->link.latency_s > 0 || m->link.bytes_per_s > 0;
}
