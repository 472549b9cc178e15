/* The mechanism behind every option: one table row makes the flag --name, the variable POTLUCK_NAME, the key `name` in
 * an INI file, a line of --help, a row of docs/options.md and of `config show`.
 * Precedence: default < file (/etc/potluck/potluck.conf, ~/.config/potluck/potluck.conf, ./potluck.conf or
 * --config FILE) < environment < flag.
 * Unknown flags, keys and POTLUCK_ variables are refused with the nearest known name; sizes and times need a unit.
 */
#ifndef POT_COMMON_OPTIONS_H
#define POT_COMMON_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buffer.h"
#include "common/status.h"

typedef enum pot_option_type {
    POT_OPTION_BOOL,   /* bool: --name, --no-name, --name=true|false */
    POT_OPTION_INT,    /* int64_t within [min, max] */
    POT_OPTION_NUMBER, /* double within [min, max] */
    POT_OPTION_BYTES,  /* uint64_t: 64MiB, 2GiB, 1.5GB; a bare number above 0 is refused */
    POT_OPTION_TIME,   /* uint64_t microseconds: 50us, 250ms, 3s, 2m */
    POT_OPTION_TEXT,   /* const char *, owned by the values */
    POT_OPTION_CHOICE  /* const char *, one of `choices` ("a|b|c"; a choice ending in ':' takes a suffix) */
} pot_option_type;

/* INT, NUMBER, BYTES and TIME may name one word in `choices` ("auto", "model") that stands for a value which only the
 * program can know; it is stored as -1, NaN, UINT64_MAX, UINT64_MAX. */

typedef struct pot_option {
    const char *name;  /* "prefill-tile" */
    const char *alias; /* "n" for -n, or NULL */
    pot_option_type type;
    size_t offset;        /* into the caller's struct */
    const char *fallback; /* default as text; NULL = unset (TEXT and CHOICE) */
    const char *argument; /* "TOKENS" in --help */
    const char *group;    /* heading in --help: "Generation" */
    unsigned commands;    /* bit set of commands that take it as a flag; the caller's numbering */
    double min, max;      /* INT, NUMBER; min == max: no bounds */
    const char *choices;
    const char *help; /* one sentence */
} pot_option;

typedef enum pot_option_origin {
    POT_ORIGIN_DEFAULT,
    POT_ORIGIN_FILE,
    POT_ORIGIN_ENVIRONMENT,
    POT_ORIGIN_FLAG
} pot_option_origin;

typedef struct pot_options pot_options; /* table + values + origins */
/* `values` is the caller's struct, filled with defaults here.  Borrowed table. */
pot_status pot_options_create(pot_options **out, const pot_option *table, size_t n, void *values, pot_err *err);
void pot_options_free(pot_options *options); /* frees the texts that `values` points to */

pot_status pot_options_file(pot_options *options, const char *path, pot_err *err);
pot_status pot_options_environment(pot_options *options, const char *const *environ_, pot_err *err);
/* argv[0] is skipped.  Arguments that are no options go to positional[] (at most max), "--" ends options. */
pot_status pot_options_arguments(pot_options *options, int argc, char **argv, unsigned command, const char **positional,
                                 int max, int *n_positional, pot_err *err);
/* `where`, unless NULL: the file's path, the variable or the flag, borrowed; "" for a default. */
pot_option_origin pot_options_origin(const pot_options *options, const char *name, const char **where);

void pot_options_help(pot_buffer *out, const pot_options *options, unsigned command); /* grouped, 100 columns */
void pot_options_show(pot_buffer *out, const pot_options *options, bool json);        /* name = value (origin) */
void pot_options_markdown(pot_buffer *out, const pot_options *options);               /* docs/options.md */

/* Edits (insert, delete, change) that turn a into b, for "did you mean"; 64 when a word is too long to be a guess. */
size_t pot_edit_distance(const char *a, const char *b);

#endif
