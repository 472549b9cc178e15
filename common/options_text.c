/* Texts made from the option table: --help, `config show` and docs/options.md. */
#include <stdio.h>
#include <string.h>

#include "common/json.h"
#include "common/options_internal.h"

enum { COLUMNS = 100, INDENT = 32 };

/* ---- parts ------------------------------------------------------------------------------------- */

static const char *origin_name(pot_option_origin origin) {
    static const char *const names[] = {"default", "file", "environment", "flag"};
    return names[origin];
}

/* The first row of a group starts it; rows of one group stand together in the table. */
static bool starts_group(const pot_options *o, size_t i) {
    return i == 0 || strcmp(o->table[i].group, o->table[i - 1].group) != 0;
}

static bool in_group_for(const pot_options *o, size_t first, unsigned command) {
    for (size_t i = first; i < o->n && !strcmp(o->table[i].group, o->table[first].group); i++) {
        if (o->table[i].commands & command) return true;
    }
    return false;
}

/* "from 0 to 1": the bounds of a number that has any. */
static void append_bounds(pot_buffer *out, const pot_option *row) {
    bool number = row->type == POT_OPTION_INT || row->type == POT_OPTION_NUMBER;
    if (!number || !(row->min < row->max)) return;
    if (row->max >= 0x1p53) {
        pot_buffer_format(out, "at least %.15g", row->min);
    } else {
        pot_buffer_format(out, "%.15g to %.15g", row->min, row->max);
    }
}

/* A comma before every part but the first. */
static void separate(pot_buffer *out, bool *first) {
    if (!*first) pot_buffer_text(out, ", ");
    *first = false;
}

/* "Sentence [a|b|c, default a]" */
static void append_description(pot_buffer *out, const pot_option *row) {
    pot_buffer facts = {0};
    bool first = true;
    if (row->type == POT_OPTION_CHOICE) {
        separate(&facts, &first);
        pot_buffer_text(&facts, row->choices);
    }
    pot_buffer bounds = {0};
    append_bounds(&bounds, row);
    if (bounds.bytes) {
        separate(&facts, &first);
        pot_buffer_append(&facts, bounds.data, bounds.bytes);
    }
    pot_buffer_free(&bounds);
    if (row->fallback && row->type != POT_OPTION_BOOL) {
        separate(&facts, &first);
        pot_buffer_format(&facts, "default %s", row->fallback);
    }
    pot_buffer_text(out, row->help);
    if (facts.bytes) pot_buffer_format(out, " [%s]", facts.data);
    if (facts.failed) out->failed = true;
    pot_buffer_free(&facts);
}

/* Words of `text` from column INDENT on, broken before COLUMNS; the cursor stands at `column`. */
static void append_wrapped(pot_buffer *out, const char *text, size_t column) {
    while (*text) {
        size_t word = strcspn(text, " ");
        if (column > INDENT && column + 1 + word > COLUMNS) {
            pot_buffer_byte(out, '\n');
            column = 0;
        } else if (column > INDENT) {
            pot_buffer_byte(out, ' ');
            column++;
        }
        if (column < INDENT) {
            pot_buffer_format(out, "%*s", (int)(INDENT - column), "");
            column = INDENT;
        }
        pot_buffer_append(out, text, word);
        column += word;
        text += word + (text[word] == ' ');
    }
    pot_buffer_byte(out, '\n');
}

/* ---- help -------------------------------------------------------------------------------------- */

static void help_row(pot_buffer *out, const pot_option *row) {
    char flag[128];
    int n = row->alias ? snprintf(flag, sizeof flag, "  -%s, --%s", row->alias, row->name)
                       : snprintf(flag, sizeof flag, "      --%s", row->name);
    pot_buffer_append(out, flag, (size_t)n);
    size_t column = (size_t)n;
    if (row->type != POT_OPTION_BOOL) {
        pot_buffer_format(out, " %s", row->argument);
        column += 1 + strlen(row->argument);
    }
    if (column + 2 > INDENT) {
        pot_buffer_byte(out, '\n');
        column = 0;
    }
    pot_buffer text = {0};
    append_description(&text, row);
    if (text.failed) out->failed = true;
    append_wrapped(out, text.data ? text.data : "", column);
    pot_buffer_free(&text);
}

void pot_options_help(pot_buffer *out, const pot_options *o, unsigned command) {
    for (size_t i = 0; i < o->n; i++) {
        if (starts_group(o, i) && in_group_for(o, i, command)) pot_buffer_format(out, "\n%s\n", o->table[i].group);
        if (o->table[i].commands & command) help_row(out, &o->table[i]);
    }
}

/* ---- config show ------------------------------------------------------------------------------- */

static void show_text(pot_buffer *out, const pot_option *row, const option_state *state) {
    pot_buffer_format(out, "%-16s = %s  (%s", row->name, state->text ? state->text : "", origin_name(state->origin));
    if (state->origin != POT_ORIGIN_DEFAULT) pot_buffer_format(out, " %s", state->where);
    pot_buffer_text(out, ")\n");
}

static void show_json(pot_buffer *out, const pot_option *row, const option_state *state) {
    pot_buffer_format(out, "\"%s\": {\"value\": ", row->name);
    if (state->text) {
        pot_json_quote(out, state->text, strlen(state->text));
    } else {
        pot_buffer_text(out, "null");
    }
    pot_buffer_format(out, ", \"origin\": \"%s\", \"where\": ", origin_name(state->origin));
    const char *where = state->where ? state->where : "";
    pot_json_quote(out, where, strlen(where));
    pot_buffer_byte(out, '}');
}

void pot_options_show(pot_buffer *out, const pot_options *o, bool json) {
    if (json) pot_buffer_byte(out, '{');
    for (size_t i = 0; i < o->n; i++) {
        if (!json) {
            show_text(out, &o->table[i], &o->states[i]);
            continue;
        }
        if (i) pot_buffer_text(out, ",\n ");
        show_json(out, &o->table[i], &o->states[i]);
    }
    if (json) pot_buffer_text(out, "}\n");
}

/* ---- docs/options.md --------------------------------------------------------------------------- */

/* A cell of a Markdown table: a bar would end it. */
static void append_cell(pot_buffer *out, const char *text) {
    for (; *text; text++) {
        if (*text == '|') pot_buffer_byte(out, '\\');
        pot_buffer_byte(out, *text);
    }
}

static void markdown_row(pot_buffer *out, const pot_option *row) {
    char variable[POT_OPTION_NAME_MAX];
    pot_option_variable(variable, row->name);
    pot_buffer_text(out, "| `");
    if (row->alias) pot_buffer_format(out, "-%s`, `", row->alias);
    pot_buffer_format(out, "--%s%s%s` | `%s` | ", row->name, row->type == POT_OPTION_BOOL ? "" : " ",
                      row->type == POT_OPTION_BOOL ? "" : row->argument, variable);
    pot_buffer text = {0};
    append_description(&text, row);
    if (text.failed) out->failed = true;
    append_cell(out, text.data ? text.data : "");
    pot_buffer_free(&text);
    pot_buffer_text(out, " |\n");
}

static const char page_head[] =
    "# Options\n\n"
    "This page is made from the table in `common/settings.c` by `make golden`; edit the table, not the page.\n"
    "\n"
    "Every option is a flag (`--name VALUE` or `--name=VALUE`; a switch is `--name` or `--no-name`), a variable\n"
    "(`POTLUCK_NAME`) and a line in a file (`name = value`; lines that begin with `#` or `;`, and what follows a\n"
    "space and `;`, are comments). Later sources win: default, `/etc/potluck/potluck.conf`,\n"
    "`~/.config/potluck/potluck.conf`, `./potluck.conf` (or the file of `--config`), environment, flag.\n"
    "Unknown names are refused with the nearest known one. Sizes and times need a unit: `64MiB`, `1.5GB`,\n"
    "`50us`, `250ms`, `3s`, `2m`. `potluck config show` prints every value and where it came from.\n";

void pot_options_markdown(pot_buffer *out, const pot_options *o) {
    pot_buffer_text(out, page_head);
    for (size_t i = 0; i < o->n; i++) {
        if (starts_group(o, i)) {
            pot_buffer_format(out, "\n## %s\n\n| Flag | Variable | Meaning |\n|---|---|---|\n", o->table[i].group);
        }
        markdown_row(out, &o->table[i]);
    }
}
