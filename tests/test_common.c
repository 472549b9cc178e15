/* common/: error sentences, memory that fails on demand, buffers, files, JSON in and out, log lines, hashes, signals. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buffer.h"
#include "common/file.h"
#include "common/hash.h"
#include "common/json.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/progress.h"
#include "common/system.h"

static char scratch[64];

static int make_scratch(void **state) {
    (void)state;
    strcpy(scratch, "/tmp/potluck-test-XXXXXX");
    return mkdtemp(scratch) ? 0 : -1;
}

static int remove_scratch(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    return system(command);
}

static char *in_scratch(const char *name) {
    char *path = pot_path_join(scratch, name);
    assert_non_null(path);
    return path;
}

/* ---- status ------------------------------------------------------------------------------------ */

static void status_sentence_gets_its_place(void **state) {
    (void)state;
    pot_err err = {0};
    assert_int_equal(pot_fail(&err, POT_FORMAT, "field %d is %s", 3, "odd"), POT_FORMAT);
    assert_int_equal(pot_at(&err, "file %s", "a.json"), POT_FORMAT);
    assert_string_equal(err.text, "file a.json: field 3 is odd");
    assert_int_equal(pot_fail(&err, POT_IO, "again: %s", err.text), POT_IO); /* may quote itself */
    assert_string_equal(err.text, "again: file a.json: field 3 is odd");
    assert_int_equal(pot_fail(NULL, POT_LIMIT, "nobody reads this"), POT_LIMIT);
    assert_int_equal(pot_at(NULL, "nowhere"), POT_ERROR);
}

static void status_sentence_is_cut_between_characters(void **state) {
    (void)state;
    pot_err err = {0};
    char longer[2 * POT_ERR_TEXT];
    for (size_t shift = 0; shift < 3; shift++) {
        memset(longer, 'a', shift);
        for (size_t i = shift; i + 3 < sizeof longer; i += 3) memcpy(longer + i, "\xE2\x82\xAC", 4);
        for (int at = 0; at < 2; at++) {
            if (at) {
                pot_fail(&err, POT_ERROR, "x");
                pot_at(&err, "%s", longer);
            } else {
                pot_fail(&err, POT_ERROR, "%s", longer);
            }
            size_t n = strlen(err.text);
            assert_true(n < POT_ERR_TEXT && n > POT_ERR_TEXT - 8);
            assert_string_equal(err.text + n - 3, "...");
            assert_int_equal((unsigned char)err.text[n - 4], 0xAC); /* the last byte of a whole character */
        }
    }
}

static void status_codes_have_names(void **state) {
    (void)state;
    assert_string_equal(pot_status_name(POT_PEER_LOST), "PEER_LOST");
    assert_int_equal(pot_status_exit_code(POT_PEER_LOST), 3);
    assert_int_equal(pot_status_exit_code(POT_USAGE), 2);
    assert_string_equal(pot_status_name((pot_status)99), "UNKNOWN");
    for (int i = 0; i < POT_STATUS_COUNT; i++) assert_true(strlen(pot_status_text((pot_status)i)) > 1);
}

/* ---- memory ------------------------------------------------------------------------------------ */

static void memory_is_zeroed_and_aligned(void **state) {
    (void)state;
    for (size_t bytes = 0; bytes < 300; bytes += 37) {
        uint8_t *a = pot_alloc_aligned(bytes), *b = pot_alloc(bytes);
        assert_non_null(a);
        assert_non_null(b);
        assert_int_equal((uintptr_t)a % 64, 0);
        for (size_t i = 0; i < bytes; i++) assert_int_equal(a[i] | b[i], 0);
        pot_free(a);
        pot_free(b);
    }
    assert_null(pot_alloc_array(SIZE_MAX / 2, 3));
    assert_null(pot_realloc_array(NULL, SIZE_MAX / 2, 3));
    pot_free(NULL);
}

static pot_status build_something(char **out) {
    *out = NULL;
    pot_buffer b = {0};
    json_t *value = NULL;
    pot_status status = pot_json_parse(&value, "{\"a\": [1, 2.5, \"x\"]}", 20, "text", NULL);
    if (!status) pot_json_dump_python(&b, value);
    json_decref(value);
    for (int i = 0; i < 100; i++) pot_buffer_format(&b, " line %d", i);
    char *copy = b.failed ? NULL : pot_strdup(b.data);
    char *aligned = pot_alloc_aligned(100), *again = pot_realloc_array(NULL, 10, 10);
    pot_slab slab;
    if (!status) status = pot_slab_create(&slab, 100, "a slab", NULL);
    if (!status) pot_slab_free(&slab);
    if (!copy || !aligned || !again) status = POT_NO_MEMORY;
    pot_buffer_free(&b);
    pot_free(aligned);
    pot_free(again);
    if (status) {
        pot_free(copy);
    } else {
        *out = copy;
    }
    return status;
}

/* Every allocation on the way fails once; the leak checker sees what an error path forgets. */
static void memory_may_end_anywhere(void **state) {
    (void)state;
    char *text = NULL;
    uint64_t n = 0;
    pot_status status;
    do {
        pot_mem_fail_at(++n);
        status = build_something(&text);
        pot_mem_fail_at(0);
        assert_true(status == POT_OK || status == POT_NO_MEMORY);
        assert_true(n < 100);
    } while (status);
    assert_true(n > 5);
    assert_memory_equal(text, "{\"a\": [1, 2.5, \"x\"]} line 0 line 1", 34);
    pot_free(text);
}

static void slab_is_aligned_and_refuses_the_impossible(void **state) {
    (void)state;
    pot_slab slab;
    pot_err err;
    assert_int_equal(pot_slab_create(&slab, (5 << 20) + 1, "experts", &err), POT_OK);
    assert_int_equal((uintptr_t)slab.base % (2 << 20), 0);
    assert_int_equal(slab.bytes, (5 << 20) + 1);
    slab.base[0] = slab.base[(6 << 20) - 1] = 1; /* the whole of the rounded size is there */
    pot_slab_free(&slab);
    assert_null(slab.base);
    pot_slab_free(&slab);
    assert_int_equal(pot_slab_create(&slab, 0, "nothing", &err), POT_OK);
    assert_int_equal(pot_slab_create(&slab, (size_t)1 << 60, "experts", &err), POT_NO_MEMORY);
    assert_non_null(strstr(err.text, "experts: 1073741824.000 GiB needed, "));
    assert_non_null(strstr(err.text, "GiB can still be used"));
}

static void memory_left_is_plausible(void **state) {
    (void)state;
    pot_memory_info memory;
    pot_memory_read(&memory);
    assert_true(memory.total_bytes > (64u << 20));
    assert_true(memory.available_bytes > 0 && memory.available_bytes <= memory.total_bytes);
    assert_true(memory.usable_bytes > 0 && memory.usable_bytes <= memory.available_bytes);
}

/* ---- buffer ------------------------------------------------------------------------------------ */

static void buffer_grows_and_keeps_its_nul(void **state) {
    (void)state;
    pot_buffer b = {0};
    char expected[4096] = "";
    for (int i = 0; i < 300; i++) {
        pot_buffer_format(&b, "%d,", i);
        sprintf(expected + strlen(expected), "%d,", i);
        assert_int_equal(b.bytes, strlen(expected));
        assert_string_equal(b.data, expected);
    }
    char longer[1000];
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    pot_buffer_clear(&b);
    assert_string_equal(b.data, "");
    pot_buffer_format(&b, "<%s>", longer);
    assert_int_equal(b.bytes, 1001);
    pot_buffer_free(&b);
    pot_buffer_append(&b, "a\0b", 3);
    pot_buffer_byte(&b, 'c');
    pot_buffer_append(&b, NULL, 0);
    assert_memory_equal(b.data, "a\0bc", 5);
    pot_buffer_free(&b);
}

static void buffer_keeps_what_it_had_when_memory_ends(void **state) {
    (void)state;
    pot_buffer b = {0};
    pot_buffer_text(&b, "kept");
    pot_mem_fail_at(1);
    for (int i = 0; i < 100; i++) pot_buffer_text(&b, "more than fits into it");
    pot_mem_fail_at(0);
    assert_true(b.failed);
    assert_int_equal(b.bytes % 22, 4);
    assert_memory_equal(b.data, "kept", 4);
    assert_int_equal(b.data[b.bytes], 0);
    pot_buffer_append(&b, "x", SIZE_MAX / 2);
    assert_true(b.failed);
    pot_buffer_free(&b);
}

/* ---- files ------------------------------------------------------------------------------------- */

static void file_comes_back_as_written(void **state) {
    (void)state;
    pot_err err;
    char *path = in_scratch("data");
    pot_buffer big = {0}, back = {0};
    for (int i = 0; i < 50000; i++) pot_buffer_format(&big, "%d ", i);
    assert_int_equal(pot_file_write(path, "old", 3, &err), POT_OK);
    assert_int_equal(pot_file_write(path, big.data, big.bytes, &err), POT_OK);
    pot_buffer_text(&back, "before ");
    assert_int_equal(pot_file_read(&back, path, big.bytes, &err), POT_OK);
    assert_int_equal(back.bytes, big.bytes + 7);
    assert_memory_equal(back.data + 7, big.data, big.bytes);

    pot_mapping mapping;
    assert_int_equal(pot_mapping_open(&mapping, path, &err), POT_OK);
    assert_int_equal(mapping.bytes, big.bytes);
    assert_memory_equal(mapping.base, big.data, big.bytes);
    pot_mapping_close(&mapping);
    pot_mapping_close(&mapping);
    pot_buffer_free(&big);
    pot_buffer_free(&back);
    pot_free(path);
}

static void file_over_the_bound_is_refused(void **state) {
    (void)state;
    pot_err err;
    char *path = in_scratch("bounded");
    char expected[256];
    assert_int_equal(pot_file_write(path, "0123456789", 10, &err), POT_OK);
    pot_buffer b = {0};
    pot_buffer_text(&b, "kept");
    assert_int_equal(pot_file_read(&b, path, 9, &err), POT_LIMIT);
    snprintf(expected, sizeof expected, "%s: 10 bytes or more, at most 9 are accepted", path);
    assert_string_equal(err.text, expected);
    assert_string_equal(b.data, "kept");
    assert_int_equal(pot_file_read(&b, "/dev/zero", 100000, &err), POT_LIMIT); /* no size to look at, and no end */
    assert_string_equal(b.data, "kept");
    assert_int_equal(b.bytes, 4);
    pot_buffer_free(&b);
    pot_free(path);
}

static void file_sentences_name_the_path(void **state) {
    (void)state;
    pot_err err;
    pot_buffer b = {0};
    pot_mapping mapping;
    assert_int_equal(pot_file_read(&b, "/no/such/file", 9, &err), POT_NOT_FOUND);
    assert_string_equal(err.text, "/no/such/file: cannot be opened: No such file or directory");
    assert_int_equal(pot_file_read(&b, scratch, 9, &err), POT_IO);
    assert_non_null(strstr(err.text, "is a directory, a file was expected"));
    assert_int_equal(pot_mapping_open(&mapping, "/dev/null", &err), POT_IO);
    assert_string_equal(err.text, "/dev/null: is not a regular file, so it cannot be mapped");
    assert_int_equal(pot_file_write("/no/such/folder/x", "", 0, &err), POT_IO);
    assert_non_null(strstr(err.text, "/no/such/folder/x"));
    assert_false(pot_file_exists(scratch));
    assert_true(pot_directory_exists(scratch));
    assert_null(b.data);
}

static void file_write_leaves_devices_alone(void **state) {
    (void)state;
    pot_err err;
    struct stat info;
    char *path = in_scratch("link"), *target = in_scratch("target");
    assert_int_equal(pot_file_write(target, "old content", 11, &err), POT_OK);
    assert_int_equal(symlink(target, path), 0);
    assert_int_equal(pot_file_write(path, "new", 3, &err), POT_OK);
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    pot_buffer b = {0};
    assert_int_equal(pot_file_read(&b, target, 100, &err), POT_OK);
    assert_string_equal(b.data, "new");
    assert_int_equal(pot_file_write("/dev/null", "x", 1, &err), POT_OK);
    assert_int_equal(lstat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
    pot_buffer_free(&b);
    pot_free(path);
    pot_free(target);
}

static void mapping_of_an_empty_file_is_empty(void **state) {
    (void)state;
    pot_err err;
    char *path = in_scratch("empty");
    assert_int_equal(pot_file_write(path, "", 0, &err), POT_OK);
    pot_mapping mapping = {.bytes = 1};
    assert_int_equal(pot_mapping_open(&mapping, path, &err), POT_OK);
    assert_null(mapping.base);
    assert_int_equal(mapping.bytes, 0);
    pot_mapping_close(&mapping);
    pot_free(path);
}

static void path_join_adds_one_slash(void **state) {
    (void)state;
    static const char *const cases[][3] = {{"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}};
    for (size_t i = 0; i < 4; i++) {
        char *path = pot_path_join(cases[i][0], cases[i][1]);
        assert_string_equal(path, cases[i][2]);
        pot_free(path);
    }
}

/* ---- JSON -------------------------------------------------------------------------------------- */

static void json_refuses_with_the_place(void **state) {
    (void)state;
    char deep[8192];
    memset(deep, '[', 4000);
    deep[4000] = 0;
    const struct {
        const char *text, *sentence;
    } cases[] = {
        {"{\"a\": 1, \"a\": 2}", "c.json: not valid JSON at line 1, column 12: duplicate object key"},
        {"{\"a\": 1} x", "c.json: not valid JSON at line 1, column 10: end of file expected"},
        {"{\n\"a\": }", "c.json: not valid JSON at line 2, column 6: unexpected token"},
        {"", "c.json: not valid JSON"},
        {"\"\xff\"", "unable to decode byte 0xff"},
        {"[1e999]", "real number overflow"},
        {"[1234567890123456789012]", "too big integer"},
        {deep, "maximum parsing depth reached"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *value = NULL;
        pot_err err;
        assert_int_equal(pot_json_parse(&value, cases[i].text, strlen(cases[i].text), "c.json", &err), POT_FORMAT);
        if (!strstr(err.text, cases[i].sentence)) fail_msg("case %zu: %s", i, err.text);
        assert_null(value);
    }
}

static void json_getters_say_what_they_found(void **state) {
    (void)state;
    static const char text[] =
        "{\"n\": 7, \"x\": 2.5, \"s\": \"t\", \"b\": true, \"z\": null, \"nul\": \"a\\u0000b\", \"l\": [1]}";
    pot_err err;
    json_t *object = NULL;
    assert_int_equal(pot_json_parse(&object, text, sizeof text - 1, "c.json", &err), POT_OK);
    int64_t n = -5;
    double x = -5;
    bool b = false;
    const char *s = "kept";
    assert_int_equal(pot_json_int(&n, object, "n", 0, 7, true, "c.json", &err), POT_OK);
    assert_int_equal(n, 7);
    assert_int_equal(pot_json_double(&x, object, "n", 0, 10, true, "c.json", &err),
                     POT_OK); /* an integer is a number */
    assert_true(x == 7);
    assert_int_equal(pot_json_bool(&b, object, "b", true, "c.json", &err), POT_OK);
    assert_true(b);
    assert_int_equal(pot_json_string(&s, object, "s", true, "c.json", &err), POT_OK);
    assert_string_equal(s, "t");

    s = "kept";
    n = 3;
    assert_int_equal(pot_json_string(&s, object, "z", false, "c.json", &err), POT_OK); /* null is absent */
    assert_int_equal(pot_json_int(&n, object, "none", 0, 1, false, "c.json", &err), POT_OK);
    assert_string_equal(s, "kept");
    assert_int_equal(n, 3);

#define REFUSED(call, sentence)                  \
    do {                                         \
        assert_int_equal(call, POT_FORMAT);      \
        assert_string_equal(err.text, sentence); \
    } while (0)
    REFUSED(pot_json_int(&n, object, "none", 0, 9, true, "c.json", &err),
            "c.json: `none` is missing, an integer was expected");
    REFUSED(pot_json_int(&n, object, "z", 0, 9, true, "c.json", &err),
            "c.json: `z` is missing, an integer was expected");
    REFUSED(pot_json_int(&n, object, "n", 8, 9, true, "c.json", &err), "c.json: `n` is 7, from 8 to 9 was expected");
    REFUSED(pot_json_int(&n, object, "x", 0, 9, true, "c.json", &err),
            "c.json: `x` is a number with a fraction, an integer was expected");
    REFUSED(pot_json_int(&n, object, "s", 0, 9, false, "c.json", &err),
            "c.json: `s` is a string, an integer was expected");
    REFUSED(pot_json_double(&x, object, "x", 3, 4, true, "c.json", &err),
            "c.json: `x` is 2.5, from 3 to 4 was expected");
    REFUSED(pot_json_double(&x, object, "l", 3, 4, true, "c.json", &err),
            "c.json: `l` is a list, a number was expected");
    REFUSED(pot_json_bool(&b, object, "n", true, "c.json", &err),
            "c.json: `n` is an integer, true or false was expected");
    REFUSED(pot_json_string(&s, object, "b", true, "c.json", &err),
            "c.json: `b` is true or false, a string was expected");
    REFUSED(pot_json_string(&s, object, "nul", true, "c.json", &err),
            "c.json: `nul` contains a NUL character, which no field here may");
    REFUSED(pot_json_int(&n, json_object_get(object, "l"), "n", 0, 9, false, "c.json", &err),
            "c.json: a list where an object with `n` was expected");
#undef REFUSED
    assert_int_equal(n, 3);
    json_decref(object);
}

static void json_quote_is_pythons(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t bytes;
        const char *quoted;
    } cases[] = {
        {"", 0, "\"\""},
        {"a\"b\\c/d", 7, "\"a\\\"b\\\\c/d\""},
        {"\b\f\n\r\t", 5, "\"\\b\\f\\n\\r\\t\""},
        {"\0\x01\x1f\x7f", 4, "\"\\u0000\\u0001\\u001f\x7f\""},
        {"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", 9, "\"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\""},
        {"\xE2\x80\xA8", 3, "\"\xE2\x80\xA8\""}, /* U+2028 stays */
        {"\xFFx", 2, "\"\xEF\xBF\xBDx\""},
        {"\xC0\xAF", 2, "\"\xEF\xBF\xBD\xEF\xBF\xBD\""},                 /* overlong */
        {"\xED\xA0\x80", 3, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""}, /* a surrogate */
        {"\xF0\x9F\x98", 3, "\"\xEF\xBF\xBD\""},                         /* cut off: one replacement */
        {"\xF0\x9F\x98x", 4, "\"\xEF\xBF\xBDx\""},
        {"\xF4\x90\x80\x80", 4, "\"\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD\""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_buffer b = {0};
        char *exact = malloc(cases[i].bytes + 1); /* a sanitizer sees a read past the end */
        memcpy(exact, cases[i].text, cases[i].bytes);
        char *tight = realloc(exact, cases[i].bytes ? cases[i].bytes : 1);
        pot_json_quote(&b, tight, cases[i].bytes);
        assert_string_equal(b.data, cases[i].quoted);
        free(tight);
        pot_buffer_free(&b);
    }
}

/* Expected texts are Python's json.dumps. */
static void json_numbers_are_pythons(void **state) {
    (void)state;
    static const struct {
        double number;
        const char *text;
    } cases[] = {
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {1.0, "1.0"},
        {-1.5, "-1.5"},
        {0.1, "0.1"},
        {0.0001, "0.0001"},
        {1e-05, "1e-05"},
        {1.5e-05, "1.5e-05"},
        {0.00012345, "0.00012345"},
        {123456.789, "123456.789"},
        {100000.0, "100000.0"},
        {999999999999999.9, "999999999999999.9"},
        {1e15, "1000000000000000.0"},
        {1e+16, "1e+16"},
        {1.5e+16, "1.5e+16"},
        {9007199254740993.0, "9007199254740992.0"},
        {12345678901234567.0, "1.2345678901234568e+16"},
        {1e+22, "1e+22"},
        {1e+23, "1e+23"},
        {5e-324, "5e-324"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"},
        {1.7976931348623157e+308, "1.7976931348623157e+308"},
        {1.0 / 3.0, "0.3333333333333333"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_buffer b = {0};
        json_t *number = json_real(cases[i].number);
        pot_json_dump_python(&b, number);
        assert_string_equal(b.data, cases[i].text);
        json_decref(number);
        pot_buffer_free(&b);
    }
}

static void json_dump_keeps_order_and_spaces(void **state) {
    (void)state;
    static const char in[] = "{\"z\":1,\"a\":[true,false,null,-3,{}],\"\\u00e9\":{\"k\":\"\\u20ac\\n\"},\"e\":[]}";
    static const char out[] =
        "{\"z\": 1, \"a\": [true, false, null, -3, {}], \"\xC3\xA9\": {\"k\": \"\xE2\x82\xAC\\n\"}, \"e\": []}";
    json_t *value = NULL;
    pot_buffer b = {0};
    assert_int_equal(pot_json_parse(&value, in, sizeof in - 1, "text", NULL), POT_OK);
    pot_json_dump_python(&b, value);
    assert_string_equal(b.data, out);
    json_decref(value);
    pot_buffer_free(&b);
}

/* ---- log, hash, progress ----------------------------------------------------------------------- */

static void log_levels_go_by_the_longest_prefix(void **state) {
    (void)state;
    pot_err err;
    assert_int_equal(pot_log_configure("warn,proto=info,proto.ucx=trace", &err), POT_OK);
    assert_true(pot_log_enabled(POT_LOG_WARN, "worker"));
    assert_false(pot_log_enabled(POT_LOG_INFO, "worker"));
    assert_true(pot_log_enabled(POT_LOG_INFO, "proto.mem"));
    assert_false(pot_log_enabled(POT_LOG_INFO, "protocol"));
    assert_true(pot_log_enabled(POT_LOG_TRACE, "proto.ucx.am"));
    static const char *const refused[] = {"loud", "info,proto=", "=info", "proto=info=debug"};
    for (size_t i = 0; i < 4; i++) assert_int_equal(pot_log_configure(refused[i], &err), POT_USAGE);
    pot_log_configure("loud", &err);
    assert_string_equal(err.text, "log level `loud` is unknown: error, warn, info, debug or trace was expected");
    assert_false(pot_log_enabled(POT_LOG_INFO, "worker")); /* a refused text changes nothing */
    assert_int_equal(pot_log_configure("info", &err), POT_OK);
}

/* What `act` writes to stderr, in a child process so that its end is part of it. */
static void capture(pot_buffer *out, void (*act)(void)) {
    pot_err err;
    char *path = in_scratch("stderr");
    pid_t child = fork();
    if (child == 0) {
        if (!freopen(path, "w", stderr)) _exit(9);
        act();
        exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(pot_file_read(out, path, 1 << 20, &err), POT_OK);
    pot_free(path);
}

static void write_log(void) {
    pot_log_rank(3);
    for (int i = 0; i < 5; i++) POT_LOG(POT_LOG_WARN, "worker.store", "slow read of %s", "a\nb\033[1m");
    POT_LOG(POT_LOG_INFO, "worker", "other");
    POT_LOG(POT_LOG_DEBUG, "worker", "not shown");
    POT_LOG(POT_LOG_INFO, "worker", "last");
    POT_LOG(POT_LOG_INFO, "worker", "last");
}

static void log_folds_repeated_lines(void **state) {
    (void)state;
    pot_buffer b = {0};
    capture(&b, write_log);
    static const char *const lines[] = {
        " r3 worker.store warn: slow read of a b [1m\n", " r3 worker.store warn: slow read of a b [1m (4 more times)\n",
        " r3 worker info: other\n", " r3 worker info: last\n", " r3 worker info: last (1 more times)\n"};
    const char *p = b.data;
    for (size_t i = 0; i < 5; i++) {
        size_t digits = strspn(p, "0123456789.");
        assert_true(digits >= 8);
        p += digits;
        if (strncmp(p, lines[i], strlen(lines[i])) != 0) fail_msg("line %zu of:\n%s", i, b.data);
        p += strlen(lines[i]);
    }
    assert_string_equal(p, "");
    pot_buffer_free(&b);
}

static void show_progress(void) {
    pot_progress p;
    pot_progress_begin(&p, "loading", 4u << 20, false);
    pot_progress_update(&p, 1 << 20);
    pot_progress_end(&p); /* too early to say anything */
    pot_progress_begin_count(&p, "scoring", 100, "tokens", false);
    p.started_us -= 10000000;
    pot_progress_update(&p, 50);
    pot_progress_update(&p, 51); /* too soon after the last line */
    pot_progress_begin(&p, "quiet", 100, true);
    p.started_us -= 10000000;
    pot_progress_update(&p, 50);
    pot_progress_end(&p);
}

static void progress_speaks_after_two_seconds(void **state) {
    (void)state;
    pot_buffer b = {0};
    capture(&b, show_progress);
    assert_string_equal(b.data, "scoring: 50 of 100 tokens, 5/s, 10 s left\n");
    pot_buffer_free(&b);
}

static void hash_does_not_depend_on_pieces(void **state) {
    (void)state;
    pot_hasher *whole = pot_hasher_create(), *pieces = pot_hasher_create();
    pot_hasher_add(whole, "hello world", 11);
    for (int i = 0; i < 11; i++) pot_hasher_add(pieces, &"hello world"[i], 1);
    pot_hash a = pot_hasher_end(whole), b = pot_hasher_end(pieces);
    assert_true(pot_hash_equal(a, b));
    char text[33];
    pot_hash_text(text, a);
    assert_string_equal(text, "df8d09e93f874900a99b8775cc15b6c7"); /* xxh128sum */
    assert_true(pot_hash64("", 0) == 0x2d06800538d394c2u && pot_hash64(NULL, 0) == 0x2d06800538d394c2u);
}

/* ---- system ------------------------------------------------------------------------------------ */

static void threads_are_shared_among_ranks(void **state) {
    (void)state;
    unsetenv("OMP_NUM_THREADS");
    int cores = pot_cpus_physical();
    assert_true(cores >= 1);
    assert_true(pot_cpus_widen() >= 1);
    assert_int_equal(pot_threads_choose(5, 2), 5);
    assert_int_equal(pot_threads_choose(0, 1), cores);
    assert_int_equal(pot_threads_choose(0, 1000000), 1);
    setenv("OMP_NUM_THREADS", "3", 1);
    assert_int_equal(pot_threads_choose(0, 1), 3);
    unsetenv("OMP_NUM_THREADS");
    assert_true(strlen(pot_host_name()) > 0);
}

static void stop_is_seen_and_cleared(void **state) {
    (void)state;
    pot_stop_install();
    assert_false(pot_stop_requested());
    for (int round = 0; round < 2; round++) {
        raise(SIGINT);
        assert_true(pot_stop_requested());
        assert_int_equal(pot_stop_signal(), SIGINT);
        pot_stop_clear();
        assert_false(pot_stop_requested());
        uint64_t count;
        assert_int_equal(read(pot_stop_fd(), &count, sizeof count), -1); /* nothing left to read */
    }
    raise(SIGTERM);
    assert_int_equal(pot_stop_signal(), SIGTERM);
    pot_stop_clear();
}

static void second_interrupt_ends_the_process(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        pot_stop_install();
        raise(SIGINT);
        raise(SIGINT);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_sentence_gets_its_place),
        cmocka_unit_test(status_sentence_is_cut_between_characters),
        cmocka_unit_test(status_codes_have_names),
        cmocka_unit_test(memory_is_zeroed_and_aligned),
        cmocka_unit_test(memory_may_end_anywhere),
        cmocka_unit_test(slab_is_aligned_and_refuses_the_impossible),
        cmocka_unit_test(memory_left_is_plausible),
        cmocka_unit_test(buffer_grows_and_keeps_its_nul),
        cmocka_unit_test(buffer_keeps_what_it_had_when_memory_ends),
        cmocka_unit_test(file_comes_back_as_written),
        cmocka_unit_test(file_over_the_bound_is_refused),
        cmocka_unit_test(file_sentences_name_the_path),
        cmocka_unit_test(file_write_leaves_devices_alone),
        cmocka_unit_test(mapping_of_an_empty_file_is_empty),
        cmocka_unit_test(path_join_adds_one_slash),
        cmocka_unit_test(json_refuses_with_the_place),
        cmocka_unit_test(json_getters_say_what_they_found),
        cmocka_unit_test(json_quote_is_pythons),
        cmocka_unit_test(json_numbers_are_pythons),
        cmocka_unit_test(json_dump_keeps_order_and_spaces),
        cmocka_unit_test(log_levels_go_by_the_longest_prefix),
        cmocka_unit_test(log_folds_repeated_lines),
        cmocka_unit_test(progress_speaks_after_two_seconds),
        cmocka_unit_test(hash_does_not_depend_on_pieces),
        cmocka_unit_test(threads_are_shared_among_ranks),
        cmocka_unit_test(stop_is_seen_and_cleared),
        cmocka_unit_test(second_interrupt_ends_the_process),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
