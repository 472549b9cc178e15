/* Options: where values come from, what is refused and in which words, and the texts made from the table.
 * GOLDEN=renew rewrites tests/golden/help.txt and docs/options.md instead of comparing with them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/file.h"
#include "common/json.h"
#include "common/mem.h"
#include "common/settings.h"

typedef struct values {
    bool flag;
    int64_t count;
    double share;
    uint64_t size, wait;
    const char *name, *kind;
} values;

static const pot_option rows[] = {
    {"flag", NULL, POT_OPTION_BOOL, offsetof(values, flag), "false", "", "First", 3, 0, 0, NULL, "A switch."},
    {"row-count", "n", POT_OPTION_INT, offsetof(values, count), "4", "ROWS", "First", 1, 1, 100, NULL, "A count."},
    {"share", NULL, POT_OPTION_NUMBER, offsetof(values, share), "model", "NUMBER", "First", 3, 0, 1, "model",
     "A share."},
    {"size", NULL, POT_OPTION_BYTES, offsetof(values, size), "64MiB", "BYTES", "First", 3, 0, 0, NULL, "A size."},
    {"wait", NULL, POT_OPTION_TIME, offsetof(values, wait), "auto", "TIME", "Second", 3, 0, 0, "auto", "A time."},
    {"name", NULL, POT_OPTION_TEXT, offsetof(values, name), NULL, "TEXT", "Second", 3, 0, 0, NULL, "A text."},
    {"kind", NULL, POT_OPTION_CHOICE, offsetof(values, kind), "flat", "KIND", "Second", 3, 0, 0,
     "flat|round|random:", "A choice."},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static pot_options *create(values *v) {
    pot_options *o = NULL;
    pot_err err;
    if (pot_options_create(&o, rows, ROWS, v, &err)) fail_msg("%s", err.text);
    return o;
}

/* Cuts `line` at blanks; argv[0] stands for the command. */
static int split(char *line, char *argv[16]) {
    int argc = 1;
    argv[0] = line;
    for (char *word = strtok(line, " "); word; word = strtok(NULL, " ")) argv[argc++] = word;
    return argc;
}

static pot_status read_line(pot_options *o, const char *line, pot_err *err) {
    char copy[256], *argv[16];
    const char *positional[2];
    int n;
    snprintf(copy, sizeof copy, "%s", line);
    return pot_options_arguments(o, split(copy, argv), argv, 1, positional, 2, &n, err);
}

static pot_status read_text(pot_options *o, const char *text, size_t bytes, pot_err *err) {
    char path[] = "/tmp/potluck-options-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, text, bytes) == (ssize_t)bytes);
    close(fd);
    pot_status status = pot_options_file(o, path, err);
    unlink(path);
    return status;
}

/* ---- where values come from -------------------------------------------------------------------- */

static void options_start_with_defaults(void **state) {
    (void)state;
    values v;
    pot_options *o = create(&v);
    assert_false(v.flag);
    assert_int_equal(v.count, 4);
    assert_true(isnan(v.share));
    assert_int_equal(v.size, 64 << 20);
    assert_true(v.wait == UINT64_MAX);
    assert_null(v.name);
    assert_string_equal(v.kind, "flat");
    const char *where;
    assert_int_equal(pot_options_origin(o, "row-count", &where), POT_ORIGIN_DEFAULT);
    assert_string_equal(where, "");
    pot_options_free(o);
    pot_options_free(NULL);
}

static void options_later_sources_win(void **state) {
    (void)state;
    static const char *const environment[] = {"HOME=/root", "POTLUCK_ROW_COUNT=6", "POTLUCK_NAME=from env", NULL};
    static const char text[] = "# comment\nrow-count = 5\nname = from file\nkind = round ; why\nflag = yes\n";
    values v;
    pot_err err;
    const char *where;
    pot_options *o = create(&v);
    assert_int_equal(read_text(o, text, sizeof text - 1, &err), POT_OK);
    assert_int_equal(v.count, 5);
    assert_string_equal(v.kind, "round");
    assert_int_equal(pot_options_environment(o, environment, &err), POT_OK);
    assert_int_equal(v.count, 6);
    assert_string_equal(v.name, "from env");
    assert_int_equal(read_line(o, "-n 7 --no-flag", &err), POT_OK);
    assert_int_equal(v.count, 7);
    assert_false(v.flag);
    assert_int_equal(pot_options_origin(o, "row-count", &where), POT_ORIGIN_FLAG);
    assert_string_equal(where, "-n");
    assert_int_equal(pot_options_origin(o, "name", &where), POT_ORIGIN_ENVIRONMENT);
    assert_string_equal(where, "POTLUCK_NAME");
    assert_int_equal(pot_options_origin(o, "kind", &where), POT_ORIGIN_FILE);
    assert_memory_equal(where, "/tmp/potluck-options-", 21);
    /* Whatever the order of the calls, a lower source does not replace a higher one. */
    assert_int_equal(pot_options_environment(o, environment, &err), POT_OK);
    assert_int_equal(read_text(o, text, sizeof text - 1, &err), POT_OK);
    assert_int_equal(v.count, 7);
    assert_string_equal(v.name, "from env");
    pot_options_free(o);
}

static void options_units_are_read(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t size;
    } sizes[] =
        {{"0", 0}, {"5B", 5}, {"64KiB", 65536}, {"1.5GB", 1500000000}, {"2GiB", 2147483648u}, {"1TiB", 1099511627776u}},
      times[] = {{"0", 0},          {"50us", 50},     {"250ms", 250000},   {"3s", 3000000},
                 {"2m", 120000000}, {"0.5s", 500000}, {"auto", UINT64_MAX}};
    char line[64];
    values v;
    pot_err err;
    pot_options *o = create(&v);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        snprintf(line, sizeof line, "--size %s", sizes[i].text);
        assert_int_equal(read_line(o, line, &err), POT_OK);
        assert_true(v.size == sizes[i].size);
    }
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        snprintf(line, sizeof line, "--wait=%s", times[i].text);
        assert_int_equal(read_line(o, line, &err), POT_OK);
        assert_true(v.wait == times[i].size);
    }
    pot_options_free(o);
}

static void options_and_arguments_mix(void **state) {
    (void)state;
    char line[] = "first --name --flag - -- --share", *argv[16];
    int argc = split(line, argv);
    const char *positional[3];
    int n;
    values v;
    pot_err err;
    pot_options *o = create(&v);
    assert_int_equal(pot_options_arguments(o, argc, argv, 1, positional, 3, &n, &err), POT_OK);
    assert_int_equal(n, 3);
    assert_string_equal(positional[0], "first");
    assert_string_equal(positional[1], "-");
    assert_string_equal(positional[2], "--share");
    assert_string_equal(v.name, "--flag"); /* a value is taken as it is */
    assert_false(v.flag);
    assert_int_equal(pot_options_arguments(o, 1, argv, 1, positional, 0, &n, &err), POT_OK);
    assert_int_equal(n, 0);
    assert_int_equal(pot_options_arguments(o, argc, argv, 1, positional, 2, &n, &err), POT_USAGE);
    assert_string_equal(err.text, "unexpected argument `--share`: at most 2 can be given");
    pot_options_free(o);
}

/* ---- what is refused --------------------------------------------------------------------------- */

static void flags_are_refused_with_the_reason(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"--row-cout 3", "unknown option `--row-cout`; did you mean `--row-count`?"},
        {"--shares=1", "unknown option `--shares`; did you mean `--share`?"},
        {"--something-else", "unknown option `--something-else` (`--help` lists them)"},
        {"-x", "unknown option `-x` (`--help` lists them)"},
        {"-row-count 3", "unknown option `-row-count` (`--help` lists them)"},
        {"-n", "-n needs a value: ROWS"},
        {"-n 0", "-n: `0` is out of range, from 1 to 100 was expected"},
        {"-n 99999999999999999999", "-n: `99999999999999999999` is out of range, from 1 to 100 was expected"},
        {"-n 3.5", "-n: `3.5` is not a whole number"},
        {"--row-count=", "--row-count: `` is not a whole number"},
        {"--share 1.5", "--share: `1.5` is out of range, from 0 to 1 was expected (or `model`)"},
        {"--share nan", "--share: `nan` is not a number (or `model`)"},
        {"--size 64", "--size: `64` has no unit, write it such as 64MiB"},
        {"--size 64M", "--size: `64M` has an unknown unit or is too large, write it such as 64MiB"},
        {"--size 99999999999TiB",
         "--size: `99999999999TiB` has an unknown unit or is too large, write it such as 64MiB"},
        {"--size -5MiB", "--size: `-5MiB` is not a number with a unit, such as 64MiB"},
        {"--wait 3", "--wait: `3` has no unit, write it such as 250ms (or `auto`)"},
        {"--kind oval", "--kind: `oval` is not one of flat|round|random:"},
        {"--kind random:", "--kind: `random:` is not one of flat|round|random:"},
        {"--kind flatter", "--kind: `flatter` is not one of flat|round|random:"},
        {"--flag=maybe", "--flag: `maybe` is neither true nor false"},
        {"--no-flag=true", "--no-flag: only a switch can be negated, and without a value"},
        {"--no-name", "--no-name: only a switch can be negated, and without a value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        values v;
        pot_err err = {0};
        pot_options *o = create(&v);
        assert_int_equal(read_line(o, cases[i][0], &err), POT_USAGE);
        assert_string_equal(err.text, cases[i][1]);
        assert_int_equal(v.count, 4);
        pot_options_free(o);
    }
}

static void flags_belong_to_commands(void **state) {
    (void)state;
    char line[] = "--row-count 3", *argv[16];
    int argc = split(line, argv);
    const char *positional[1];
    int n;
    values v;
    pot_err err;
    pot_options *o = create(&v);
    assert_int_equal(pot_options_arguments(o, argc, argv, 2, positional, 1, &n, &err), POT_USAGE);
    assert_string_equal(err.text, "--row-count is no option of this command");
    assert_int_equal(read_line(o, "--kind random:12", &err), POT_OK);
    assert_string_equal(v.kind, "random:12");
    pot_options_free(o);
}

static void variables_are_refused_with_the_reason(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"POTLUCK_ROW_COUN=3", "unknown variable POTLUCK_ROW_COUN in the environment; did you mean POTLUCK_ROW_COUNT?"},
        {"POTLUCK_row_count=3",
         "unknown variable POTLUCK_row_count in the environment; did you mean POTLUCK_ROW_COUNT?"},
        {"POTLUCK_=3", "unknown variable POTLUCK_ in the environment"},
        {"POTLUCK_WEIGHT_WATCHERS=3", "unknown variable POTLUCK_WEIGHT_WATCHERS in the environment"},
        {"POTLUCK_SIZE=12", "POTLUCK_SIZE: `12` has no unit, write it such as 64MiB"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *environment[] = {cases[i][0], NULL};
        values v;
        pot_err err = {0};
        pot_options *o = create(&v);
        assert_int_equal(pot_options_environment(o, environment, &err), POT_USAGE);
        assert_string_equal(err.text, cases[i][1]);
        pot_options_free(o);
    }
}

static void files_are_refused_with_the_line(void **state) {
    (void)state;
    char longer[400];
    memset(longer, 'x', sizeof longer);
    memcpy(longer, "# one\nname=", 11);
    longer[399] = 0;
    const struct {
        const char *text;
        size_t bytes;
        const char *sentence; /* after the path */
    } cases[] = {
        {"\n\nrow-cout = 3\n", 0, ":3: unknown key `row-cout`; did you mean `row-count`?"},
        {"name = a\nflag = true\nname = b\n", 0, ":3: `name` is set twice in this file"},
        {"row-count = many\n", 0, ":1: row-count: `many` is not a whole number"},
        {"# fine\nrow-count\n", 0, ":2: `key = value` was expected"},
        {"[Cluster]\nname = a\n", 0, ":2: section [Cluster]: options stand in no section"},
        {"name = a\0b\n", 11, ": contains a NUL byte"},
        {longer, 0, ":2: the line has 393 bytes, at most 198 are accepted"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        values v;
        pot_err err = {0};
        pot_options *o = create(&v);
        size_t bytes = cases[i].bytes ? cases[i].bytes : strlen(cases[i].text);
        assert_int_equal(read_text(o, cases[i].text, bytes, &err), POT_USAGE);
        assert_memory_equal(err.text, "/tmp/potluck-options-", 21);
        assert_string_equal(err.text + 27, cases[i].sentence);
        pot_options_free(o);
    }
}

static void options_survive_the_end_of_memory(void **state) {
    (void)state;
    pot_status status;
    uint64_t n = 0;
    do {
        values v;
        pot_options *o = NULL;
        pot_mem_fail_at(++n);
        status = pot_options_create(&o, rows, ROWS, &v, NULL);
        if (!status) status = read_line(o, "--name abc --kind round", NULL);
        if (!status) status = read_text(o, "size = 1GiB\n", 12, NULL);
        pot_mem_fail_at(0);
        pot_options_free(o);
        assert_true(status == POT_OK || status == POT_NO_MEMORY);
        assert_true(n < 100);
    } while (status);
    assert_true(n > 10);
}

static void edit_distance_counts_edits(void **state) {
    (void)state;
    assert_int_equal(pot_edit_distance("", ""), 0);
    assert_int_equal(pot_edit_distance("abc", ""), 3);
    assert_int_equal(pot_edit_distance("kitten", "sitting"), 3);
    assert_int_equal(pot_edit_distance("map", "mpa"), 2);
    char longer[100] = {0};
    memset(longer, 'a', 99);
    assert_int_equal(pot_edit_distance(longer, "a"), 64);
}

/* ---- texts ------------------------------------------------------------------------------------- */

static void show_names_values_and_origins(void **state) {
    (void)state;
    values v;
    pot_err err;
    pot_buffer b = {0};
    pot_options *o = create(&v);
    assert_int_equal(read_line(o, "--name a\"b --flag", &err), POT_OK);
    pot_options_show(&b, o, false);
    assert_non_null(strstr(b.data, "row-count        = 4  (default)\n"));
    assert_non_null(strstr(b.data, "flag             = true  (flag --flag)\n"));
    pot_buffer_clear(&b);
    pot_options_show(&b, o, true);
    json_t *shown = NULL;
    assert_int_equal(pot_json_parse(&shown, b.data, b.bytes, "config show", &err), POT_OK);
    assert_int_equal(json_object_size(shown), ROWS);
    assert_string_equal(json_string_value(json_object_get(json_object_get(shown, "name"), "value")), "a\"b");
    json_decref(shown);
    pot_buffer_free(&b);
    pot_options_free(o);
}

/* Every row: a sentence, a group that stands together, a unique name, a default that parses. */
static void settings_table_is_well_formed(void **state) {
    (void)state;
    size_t n;
    const pot_option *table = pot_settings_table(&n);
    pot_settings settings;
    pot_err err;
    pot_options *o = NULL;
    if (pot_options_create(&o, table, n, &settings, &err)) fail_msg("%s", err.text);
    size_t bytes = 0;
    for (size_t i = 0; i < n; i++) {
        const pot_option *row = &table[i];
        assert_int_equal(row->help[strlen(row->help) - 1], '.');
        assert_true(row->commands != 0);
        for (size_t j = 0; j < i; j++) {
            assert_string_not_equal(row->name, table[j].name);
            assert_true(row->offset != table[j].offset);
            if (!strcmp(row->group, table[j].group)) assert_string_equal(row->group, table[i - 1].group);
        }
        bytes += row->type == POT_OPTION_BOOL ? sizeof(bool) : 8;
    }
    /* Members without a row would be left out of this sum (padding is less than a word before each aligned member). */
    assert_true(sizeof settings - bytes < 64);
    assert_true(settings.spin_us == UINT64_MAX && settings.heartbeat_us == 250000 && settings.dead_us == 3000000);
    assert_true(isnan(settings.temperature) && isnan(settings.top_p) && isnan(settings.min_p));
    assert_int_equal(settings.top_k, -1);
    assert_int_equal(settings.seed, -1);
    pot_options_free(o);
}

static void compare_golden(const char *path, const pot_buffer *text) {
    pot_err err;
    const char *golden = getenv("GOLDEN");
    if (golden && !strcmp(golden, "renew")) {
        if (pot_file_write(path, text->data, text->bytes, &err)) fail_msg("%s", err.text);
        return;
    }
    pot_buffer expected = {0};
    if (pot_file_read(&expected, path, 1 << 20, &err)) fail_msg("%s (`make golden` makes it)", err.text);
    bool equal = expected.bytes == text->bytes && !memcmp(expected.data, text->data, text->bytes);
    pot_buffer_free(&expected);
    if (!equal) fail_msg("%s is not what the option table gives now; `make golden` renews it, look at the diff", path);
}

static void help_is_golden(void **state) {
    (void)state;
    static const struct {
        const char *name;
        unsigned bit;
    } commands[] = {{"run", POT_CMD_RUN},
                    {"chat", POT_CMD_CHAT},
                    {"worker", POT_CMD_WORKER},
                    {"eval", POT_CMD_EVAL},
                    {"tools", POT_CMD_TOOLS},
                    {"bench kernels", POT_CMD_BENCH},
                    {"bench layers", POT_CMD_LAYERS}};
    size_t n;
    const pot_option *table = pot_settings_table(&n);
    pot_settings settings;
    pot_options *o = NULL;
    pot_buffer b = {0};
    assert_int_equal(pot_options_create(&o, table, n, &settings, NULL), POT_OK);
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        pot_buffer_format(&b, "%s==== %s ====\n", i ? "\n" : "", commands[i].name);
        pot_options_help(&b, o, commands[i].bit);
    }
    for (const char *p = b.data; *p; p += strcspn(p, "\n") + 1) assert_true(strcspn(p, "\n") <= 100);
    compare_golden("tests/golden/help.txt", &b);
    pot_buffer_free(&b);
    pot_options_free(o);
}

static void options_page_is_golden(void **state) {
    (void)state;
    size_t n;
    const pot_option *table = pot_settings_table(&n);
    pot_settings settings;
    pot_options *o = NULL;
    pot_buffer b = {0};
    assert_int_equal(pot_options_create(&o, table, n, &settings, NULL), POT_OK);
    pot_options_markdown(&b, o);
    compare_golden("docs/options.md", &b);
    pot_buffer_free(&b);
    pot_options_free(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_start_with_defaults),
        cmocka_unit_test(options_later_sources_win),
        cmocka_unit_test(options_units_are_read),
        cmocka_unit_test(options_and_arguments_mix),
        cmocka_unit_test(flags_are_refused_with_the_reason),
        cmocka_unit_test(flags_belong_to_commands),
        cmocka_unit_test(variables_are_refused_with_the_reason),
        cmocka_unit_test(files_are_refused_with_the_line),
        cmocka_unit_test(options_survive_the_end_of_memory),
        cmocka_unit_test(edit_distance_counts_edits),
        cmocka_unit_test(show_names_values_and_origins),
        cmocka_unit_test(settings_table_is_well_formed),
        cmocka_unit_test(help_is_golden),
        cmocka_unit_test(options_page_is_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
