/* potluck status: what the potluck processes of this user on this host are doing, from the files that they write (common/beacon.h).  Nobody
 * is asked, so it costs them nothing, and the figures are as old as it says. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "common/beacon.h"
#include "common/clock.h"
#include "common/json.h"
#include "common/mem.h"
#include "common/system.h"

/* X(name, heading, aligned to the right) */
#define COLUMN_MAP(X)          \
    X(PID, "pid", true)        \
    X(ROLE, "role", false)     \
    X(STATE, "state", false)   \
    X(UP, "up", true)          \
    X(VRAM, "VRAM GiB", true)  \
    X(RAM, "RAM GiB", true)    \
    X(OWNED, "owns GiB", true) \
    X(HITS, "hits", true)      \
    X(RECENT, "now", true)     \
    X(DISK, "disk MB/s", true) \
    X(TOKENS, "tok/s", true)   \
    X(STEPS, "steps/s", true)  \
    X(AGE, "age", true)        \
    X(MODEL, "model", false)
enum {
#define X(name, heading, right) COL_##name,
    COLUMN_MAP(X)
#undef X
        COLUMNS
};
enum { CELL = 560 };
typedef char row[COLUMNS][CELL];

static const struct {
    const char *heading;
    bool right;
} columns[] = {
#define X(name, heading, right) {heading, right},
    COLUMN_MAP(X)
#undef X
};

/* ---- cells -------------------------------------------------------------------------------------------------------------------- */

static bool known(uint64_t number) { return number != POT_BEACON_UNKNOWN; }

/* From `then` to now; 0 when a clock says that it is still to come. */
static uint64_t passed_us(uint64_t then, uint64_t now) { return now > then ? now - then : 0; }

static void put_time(char *out, uint64_t us) {
    unsigned long long s = us / 1000000;
    if (s < 10)
        snprintf(out, CELL, "%.1fs", (double)us / 1e6);
    else if (s < 60)
        snprintf(out, CELL, "%llus", s);
    else if (s < 3600)
        snprintf(out, CELL, "%llum%02llus", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, CELL, "%lluh%02llum", s / 3600, s / 60 % 60);
    else
        snprintf(out, CELL, "%llud%02lluh", s / 86400, s / 3600 % 24);
}

static void put_since(char *out, uint64_t then, uint64_t now) {
    if (known(then)) put_time(out, passed_us(then, now));
}

static void put_gib(char *out, uint64_t used, uint64_t budget) {
    char part[2][32] = {"-", "-"};
    if (!known(used) && !known(budget)) return;
    if (known(used)) snprintf(part[0], sizeof part[0], "%.2f", (double)used / 0x1p30);
    if (known(budget)) snprintf(part[1], sizeof part[1], "%.2f", (double)budget / 0x1p30);
    snprintf(out, CELL, "%s/%s", part[0], part[1]);
}

static void put_number(char *out, int decimals, double value, const char *unit) {
    if (isfinite(value)) snprintf(out, CELL, "%.*f%s", decimals, value, unit);
}

/* 0 to 1 since the start; NaN when nothing was wanted yet. */
static double hit_rate(const pot_beacon_facts *f) {
    if (!known(f->wanted_units) || !f->wanted_units || !known(f->ram_hits)) return NAN;
    double hits = (double)f->ram_hits + (known(f->vram_hits) ? (double)f->vram_hits : 0);
    return fmin(hits / (double)f->wanted_units, 1);
}

static double loading_percent(const pot_beacon_facts *f) {
    if (f->state != POT_BEACON_LOADING || !known(f->load_done_bytes) || !known(f->load_total_bytes)) return NAN;
    if (!f->load_total_bytes) return 100;
    return fmin(100.0 * (double)f->load_done_bytes / (double)f->load_total_bytes, 100);
}

static void put_state(char *out, const pot_beacon_facts *f, uint64_t now) {
    char since[CELL] = "";
    double percent = loading_percent(f);
    put_since(since, f->since_us, now);
    if (isfinite(percent))
        snprintf(out, CELL, "%s %.0f%%", pot_beacon_state_text(f->state), percent);
    else
        snprintf(out, CELL, "%s%s%.20s", pot_beacon_state_text(f->state), *since ? " " : "", since);
}

static void put_role(char *out, const pot_beacon_facts *f) {
    char which[64] = "";
    if (known(f->worker) && known(f->workers))
        snprintf(which, sizeof which, "worker %" PRIu64 " of %" PRIu64, f->worker, f->workers);
    if (f->role == POT_BEACON_WORKER && *which)
        snprintf(out, CELL, "%s", which);
    else
        snprintf(out, CELL, "%s%s%s", pot_beacon_role_text(f->role), *which ? ", " : "", which);
}

static void fill_row(row cells, const pot_beacon_entry *e, uint64_t now) {
    const pot_beacon_facts *f = &e->facts;
    for (int c = 0; c < COLUMNS; c++) strcpy(cells[c], "-");
    snprintf(cells[COL_PID], CELL, "%" PRId64, e->pid);
    if (e->fault) {
        snprintf(cells[COL_ROLE], CELL, "unknown");
        return;
    }
    put_role(cells[COL_ROLE], f);
    put_state(cells[COL_STATE], f, now);
    put_since(cells[COL_UP], f->started_us, now);
    put_gib(cells[COL_VRAM], f->vram_bytes, f->vram_budget_bytes);
    put_gib(cells[COL_RAM], f->ram_bytes, f->ram_budget_bytes);
    if (known(f->owned_bytes)) put_number(cells[COL_OWNED], 2, (double)f->owned_bytes / 0x1p30, "");
    put_number(cells[COL_HITS], 1, 100 * hit_rate(f), "%");
    put_number(cells[COL_RECENT], 1, 100 * f->hit_rate, "%");
    put_number(cells[COL_DISK], 1, f->read_bytes_per_s / 1e6, "");
    put_number(cells[COL_TOKENS], 2, f->tokens_per_s, "");
    put_number(cells[COL_STEPS], 1, f->steps_per_s, "");
    put_since(cells[COL_AGE], f->written_us, now);
    if (*f->model) snprintf(cells[COL_MODEL], CELL, "%s", f->model);
    for (char *c = cells[COL_MODEL]; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127) *c = '?'; /* for the terminal's sake */
}

/* ---- text --------------------------------------------------------------------------------------------------------------------- */

static void print_row(pot_buffer *out, row cells, const int *widths) {
    for (int c = 0; c < COLUMNS; c++) {
        int pad = widths[c] - (int)strlen(cells[c]);
        const char *gap = c ? "  " : "";
        if (c == COLUMNS - 1)
            pot_buffer_format(out, "%s%s\n", gap, cells[c]);
        else if (columns[c].right)
            pot_buffer_format(out, "%s%*s%s", gap, pad, "", cells[c]);
        else
            pot_buffer_format(out, "%s%s%*s", gap, cells[c], pad, "");
    }
}

static pot_status print_table(pot_buffer *out, const pot_beacon_list *list, uint64_t now, pot_err *err) {
    int widths[COLUMNS] = {0};
    row *rows = pot_alloc_array(list->n + 1, sizeof *rows);
    if (!rows) return pot_fail(err, POT_NO_MEMORY, "no memory for a table of %zu processes", list->n);
    for (int c = 0; c < COLUMNS; c++) snprintf(rows[0][c], CELL, "%s", columns[c].heading);
    for (size_t i = 0; i < list->n; i++) fill_row(rows[i + 1], &list->entries[i], now);
    for (size_t i = 0; i <= list->n; i++)
        for (int c = 0; c < COLUMNS; c++)
            if ((int)strlen(rows[i][c]) > widths[c]) widths[c] = (int)strlen(rows[i][c]);
    for (size_t i = 0; i <= list->n; i++) print_row(out, rows[i], widths);
    pot_free(rows);
    return POT_OK;
}

static pot_status print_text(pot_buffer *out, const pot_beacon_list *list, uint64_t now, pot_err *err) {
    pot_status status = POT_OK;
    if (list->n)
        status = print_table(out, list, now, err);
    else
        pot_buffer_format(out, "no potluck process of this user runs on %s\n", pot_host_name());
    for (size_t i = 0; i < list->n; i++)
        if (list->entries[i].fault) pot_buffer_format(out, "ignored   %s\n", list->entries[i].fault);
    if (list->fault) pot_buffer_format(out, "ignored   %s\n", list->fault);
    return status;
}

/* ---- JSON --------------------------------------------------------------------------------------------------------------------- */

static void json_text(pot_buffer *out, const char *key, const char *text) {
    pot_buffer_format(out, ", \"%s\": ", key);
    if (text && *text)
        pot_json_quote(out, text, strlen(text));
    else
        pot_buffer_text(out, "null");
}

static void json_double(pot_buffer *out, const char *key, double value) {
    if (isfinite(value))
        pot_buffer_format(out, ", \"%s\": %.6f", key, value);
    else
        pot_buffer_format(out, ", \"%s\": null", key);
}

static void json_seconds(pot_buffer *out, const char *key, uint64_t then, uint64_t now) {
    json_double(out, key, known(then) ? (double)passed_us(then, now) / 1e6 : NAN);
}

static void json_process(pot_buffer *out, const pot_beacon_entry *e, uint64_t now) {
    const pot_beacon_facts *f = &e->facts;
    pot_buffer_format(out, "{\"pid\": %" PRId64, e->pid);
    json_text(out, "fault", e->fault);
    if (!e->fault) {
        json_text(out, "role", pot_beacon_role_text(f->role));
        json_text(out, "state", pot_beacon_state_text(f->state));
        json_text(out, "model", f->model);
        json_text(out, "build", f->build);
        json_text(out, "host", f->host);
        json_text(out, "policy", f->policy);
        json_text(out, "reading", f->reading);
        json_seconds(out, "up_s", f->started_us, now);
        json_seconds(out, "in_state_s", f->since_us, now);
        json_seconds(out, "age_s", f->written_us, now);
        json_double(out, "loaded", loading_percent(f) / 100);
        json_double(out, "hit_rate", hit_rate(f));
        json_double(out, "recent_hit_rate", f->hit_rate);
#define X(name, count) json_double(out, #name, f->name);
        POT_BEACON_RATE_MAP(X)
#undef X
#define X(name)                                                       \
    if (known(f->name))                                               \
        pot_buffer_format(out, ", \"" #name "\": %" PRIu64, f->name); \
    else                                                              \
        pot_buffer_text(out, ", \"" #name "\": null");
        POT_BEACON_NUMBER_MAP(X)
#undef X
    }
    pot_buffer_byte(out, '}');
}

static void print_json(pot_buffer *out, const pot_beacon_list *list, uint64_t now) {
    pot_buffer_text(out, "{\"host\": ");
    pot_json_quote(out, pot_host_name(), strlen(pot_host_name()));
    json_text(out, "fault", list->fault);
    pot_buffer_text(out, ", \"processes\": [");
    for (size_t i = 0; i < list->n; i++) {
        pot_buffer_text(out, i ? ", " : "");
        json_process(out, &list->entries[i], now);
    }
    pot_buffer_text(out, "]}\n");
}

pot_status pot_cmd_status(const pot_cli *cli, pot_err *err) {
    pot_beacon_list list = {0};
    pot_buffer text = {0};
    pot_status status = pot_beacon_list_read(&list, NULL, err);
    if (status) return status;
    uint64_t now = pot_now_us();
    if (cli->settings->json)
        print_json(&text, &list, now);
    else
        status = print_text(&text, &list, now, err);
    if (!status) status = pot_out_buffer(cli->out, &text, err);
    pot_buffer_free(&text);
    pot_beacon_list_free(&list);
    return status;
}
