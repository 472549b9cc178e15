/* Beacons: what is told is what is read, rates, who is dead, and directories and files that are not to be trusted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/beacon.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/mem.h"

static pot_err err;
#define MUST(call)                                     \
    do {                                               \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)

static char root[64], own[96]; /* a scratch directory, and the beacons' one in it */

static int begin(void **state) {
    (void)state;
    strcpy(root, "/tmp/potluck-test-XXXXXX");
    if (!mkdtemp(root)) return 1;
    snprintf(own, sizeof own, "%s/potluck", root);
    return 0;
}

static int end(void **state) {
    char command[160];
    (void)state;
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static const char *in_own(const char *name) {
    static char path[4][192];
    static unsigned turn;
    char *p = path[turn++ % 4];
    snprintf(p, sizeof path[0], "%s/%s", own, name);
    return p;
}

static const char *own_name(void) {
    static char name[32];
    snprintf(name, sizeof name, "%ld.json", (long)getpid());
    return name;
}

static void put(const char *path, const char *text) { MUST(pot_file_write(path, text, strlen(text), &err)); }

static pot_beacon_facts some_facts(void) {
    pot_beacon_facts f;
    pot_beacon_facts_init(&f, POT_BEACON_WORKER, POT_BEACON_SERVING);
    pot_beacon_set_model(&f, "models/a \"b\"\n\xc3\xa9");
    strcpy(f.policy, "lfu-decay");
    strcpy(f.reading, "uring, direct");
    f.worker = 1;
    f.workers = 3;
    f.ram_budget_bytes = (uint64_t)48 << 30;
    f.ram_bytes = (uint64_t)47 << 30;
    f.wanted_units = 100;
    f.ram_hits = 60;
    f.read_bytes = 1000000;
    f.tokens = 10;
    return f;
}

static void assert_same(const pot_beacon_facts *a, const pot_beacon_facts *b) {
    assert_int_equal(a->role, b->role);
    assert_int_equal(a->state, b->state);
    assert_string_equal(a->model, b->model);
    assert_string_equal(a->build, b->build);
    assert_string_equal(a->host, b->host);
    assert_string_equal(a->policy, b->policy);
    assert_string_equal(a->reading, b->reading);
#define X(name) assert_int_equal(a->name, b->name);
    POT_BEACON_NUMBER_MAP(X)
#undef X
    assert_int_equal(a->since_us, b->since_us);
}

/* ---- text ------------------------------------------------------------------------------------------------------------------- */

static void text_gives_back_every_field(void **state) {
    (void)state;
    pot_beacon_facts f = some_facts(), got;
    uint64_t n = 1000;
#define X(name) f.name = n++;
    POT_BEACON_NUMBER_MAP(X)
#undef X
    f.since_us = 1;
    f.started_us = 2;
    f.written_us = 3;
    double d = 0.5;
#define X(name, count) f.name = d++;
    POT_BEACON_RATE_MAP(X)
#undef X
    f.hit_rate = 0.25;
    pot_beacon_owner owner = {77, 88, 99}, who;
    pot_buffer text = {0};
    pot_beacon_format(&text, &owner, &f);
    MUST(pot_beacon_parse(&who, &got, text.data, text.bytes, "text", &err));
    assert_memory_equal(&who, &owner, sizeof who);
    assert_same(&got, &f);
    assert_int_equal(got.started_us, 2);
    assert_int_equal(got.written_us, 3);
#define X(name, count) assert_true(got.name == f.name);
    POT_BEACON_RATE_MAP(X)
#undef X
    assert_true(got.hit_rate == 0.25);
    pot_buffer_free(&text);
}

static void what_is_unknown_stays_unknown(void **state) {
    (void)state;
    const char text[] = "{\"potluck\": 1, \"pid\": 5, \"start_ticks\": 6, \"role\": \"coordinator\", \"state\": "
                        "\"idle\", \"written_us\": 7, \"of the future\": [1, {}]}";
    pot_beacon_owner who;
    pot_beacon_facts got;
    MUST(pot_beacon_parse(&who, &got, text, strlen(text), "text", &err));
    assert_int_equal(who.pid, 5);
    assert_int_equal(got.role, POT_BEACON_COORDINATOR);
    assert_int_equal(got.state, POT_BEACON_IDLE);
    assert_string_equal(got.model, "");
#define X(name) assert_true(got.name == POT_BEACON_UNKNOWN);
    POT_BEACON_NUMBER_MAP(X)
#undef X
    assert_true(isnan(got.hit_rate) && isnan(got.tokens_per_s));
}

static void hostile_text_is_refused_with_the_field(void **state) {
    (void)state;
#define HEAD \
    "{\"potluck\": 1, \"pid\": 5, \"start_ticks\": 6, \"role\": \"worker\", \"state\": \"idle\", \"written_us\": 7"
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "JSON"},
        {"[]", "an object"},
        {"{}", "`potluck` is missing"},
        {"{\"potluck\": 2}", "`potluck` is 2"},
        {"{\"potluck\": 1, \"pid\": 0}", "`pid` is 0"},
        {"{\"potluck\": 1, \"pid\": 99999999999}", "`pid`"},
        {"{\"potluck\": 1, \"pid\": 5}", "`start_ticks`"},
        {"{\"potluck\": 1, \"pid\": 5, \"start_ticks\": 6, \"role\": \"boss\", \"state\": \"idle\"}", "boss"},
        {"{\"potluck\": 1, \"pid\": 5, \"start_ticks\": 6, \"role\": \"worker\", \"state\": 3}", "`state`"},
        {HEAD ", \"worker\": -1}", "`worker` is -1"},
        {HEAD ", \"worker\": \"one\"}", "`worker` is a string"},
        {HEAD ", \"policy\": \"a very long name of a policy\"}", "`policy` has 28 bytes"},
        {HEAD ", \"hit_rate\": -0.5}", "`hit_rate`"},
        {HEAD ", \"pid\": 5}", "JSON"},
        {HEAD "} x", "JSON"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        pot_beacon_owner who = {1, 2, 3};
        pot_beacon_facts got = {.worker = 1234};
        pot_status s = pot_beacon_parse(&who, &got, cases[i].text, strlen(cases[i].text), "a.json", &err);
        if (!s || !strstr(err.text, cases[i].says) || !strstr(err.text, "a.json"))
            fail_msg("%s: %s, expected words: %s", cases[i].text, s ? err.text : "accepted", cases[i].says);
        assert_int_equal(who.pid, 1);
        assert_int_equal(got.worker, 1234);
    }
}

static void long_model_names_lose_their_beginning(void **state) {
    (void)state;
    pot_beacon_facts f = {0};
    char name[1500];
    memset(name, 'x', sizeof name);
    for (size_t i = 0; i + 2 < sizeof name; i += 2) memcpy(name + i, "\xc3\xa9", 2);
    strcpy(name + sizeof name - 4, "end");
    pot_beacon_set_model(&f, name);
    assert_true(strlen(f.model) >= sizeof f.model - 2);
    assert_string_equal(f.model + strlen(f.model) - 3, "end");
    assert_true((f.model[0] & 0xC0) != 0x80);
}

/* ---- a live beacon ------------------------------------------------------------------------------------------------------------- */

static void what_is_told_is_listed_until_closed(void **state) {
    (void)state;
    pot_beacon *b;
    pot_beacon_list list;
    MUST(pot_beacon_open(&b, own, &err));
    MUST(pot_beacon_list_read(&list, own, &err));
    assert_int_equal(list.n, 0); /* nothing told yet */
    pot_beacon_list_free(&list);
    pot_beacon_facts f = some_facts();
    pot_beacon_tell(b, &f, pot_now_us());
    struct stat info;
    assert_int_equal(stat(own, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    assert_int_equal(stat(in_own(own_name()), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    MUST(pot_beacon_list_read(&list, own, &err));
    assert_int_equal(list.n, 1);
    assert_null(list.fault);
    assert_null(list.entries[0].fault);
    assert_int_equal(list.entries[0].pid, getpid());
    assert_same(&list.entries[0].facts, &f);
    assert_true(list.entries[0].facts.written_us <= pot_now_us());
    pot_beacon_list_free(&list);
    pot_beacon_close(b);
    assert_int_equal(access(in_own(own_name()), F_OK), -1);
    MUST(pot_beacon_list_read(&list, own, &err));
    assert_int_equal(list.n, 0);
    pot_beacon_list_free(&list);
}

static void rates_are_of_the_time_between_two_writes(void **state) {
    (void)state;
    pot_beacon *b;
    pot_beacon_list list;
    uint64_t now = pot_now_us() - 10000000;
    MUST(pot_beacon_open(&b, own, &err));
    pot_beacon_facts f = some_facts();
    pot_beacon_tell(b, &f, now);
    MUST(pot_beacon_list_read(&list, own, &err));
    assert_true(isnan(list.entries[0].facts.tokens_per_s) && isnan(list.entries[0].facts.hit_rate));
    pot_beacon_list_free(&list);
    f.tokens += 5;
    f.read_bytes += 3000000;
    f.wanted_units += 40;
    f.ram_hits += 10;
    f.vram_hits = POT_BEACON_UNKNOWN;
    pot_beacon_tell(b, &f, now + 2000000);
    MUST(pot_beacon_list_read(&list, own, &err));
    assert_true(list.entries[0].facts.tokens_per_s == 2.5);
    assert_true(list.entries[0].facts.read_bytes_per_s == 1500000);
    assert_true(isnan(list.entries[0].facts.steps_per_s)); /* never known */
    assert_true(list.entries[0].facts.hit_rate == 0.25);
    pot_beacon_list_free(&list);
    f.tokens = 3; /* a counter that began anew gives no rate */
    pot_beacon_tell(b, &f, now + 3000000);
    MUST(pot_beacon_list_read(&list, own, &err));
    assert_true(isnan(list.entries[0].facts.tokens_per_s) && isnan(list.entries[0].facts.hit_rate));
    pot_beacon_list_free(&list);
    pot_beacon_close(b);
}

static void due_once_a_second_or_when_the_state_changes(void **state) {
    (void)state;
    pot_beacon *b;
    uint64_t now = 50000000;
    assert_false(pot_beacon_due(NULL, POT_BEACON_IDLE, now));
    MUST(pot_beacon_open(&b, own, &err));
    assert_true(pot_beacon_due(b, POT_BEACON_SERVING, now));
    pot_beacon_facts f = some_facts();
    pot_beacon_tell(b, &f, now);
    assert_false(pot_beacon_due(b, POT_BEACON_SERVING, now + 999999));
    assert_true(pot_beacon_due(b, POT_BEACON_SERVING, now + 1000000));
    assert_false(pot_beacon_due(b, POT_BEACON_IDLE, now + 50000));
    assert_true(pot_beacon_due(b, POT_BEACON_IDLE, now + 100000));
    pot_beacon_tell(NULL, &f, now);
    pot_beacon_close(b);
    pot_beacon_close(NULL);
}

/* ---- the dead ------------------------------------------------------------------------------------------------------------------ */

/* A child that tells and then waits to be killed; its beacon outlives it. */
static pid_t start_child(void) {
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (!child) {
        pot_beacon *b;
        pot_beacon_facts f = some_facts();
        if (pot_beacon_open(&b, own, NULL)) _exit(1);
        pot_beacon_tell(b, &f, pot_now_us());
        if (write(ready[1], "", 1) != 1) _exit(1);
        for (;;) pause();
    }
    char byte;
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return child;
}

static void files_of_the_dead_are_removed(void **state) {
    (void)state;
    pot_beacon_list list;
    char name[32], half[48];
    pid_t child = start_child();
    MUST(pot_beacon_list_read(&list, own, &err));
    assert_int_equal(list.n, 1);
    assert_int_equal(list.entries[0].pid, child);
    pot_beacon_list_free(&list);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    snprintf(name, sizeof name, "%ld.json", (long)child);
    snprintf(half, sizeof half, ".%s.tmp", name);
    put(in_own(half), "{");
    assert_int_equal(access(in_own(name), F_OK), 0);
    MUST(pot_beacon_list_read(&list, own, &err));
    assert_int_equal(list.n, 0);
    pot_beacon_list_free(&list);
    assert_int_equal(access(in_own(name), F_OK), -1);
    assert_int_equal(access(in_own(half), F_OK), -1);
}

/* This process's own file with one thing changed. */
static void put_own(const char *from, const char *to) {
    pot_beacon *b;
    pot_buffer text = {0};
    pot_beacon_facts f = some_facts();
    MUST(pot_beacon_open(&b, own, &err));
    pot_beacon_tell(b, &f, pot_now_us());
    MUST(pot_file_read(&text, in_own(own_name()), 1 << 20, &err));
    pot_beacon_close(b);
    pot_buffer changed = {0};
    const char *at = strstr(text.data, from);
    assert_non_null(at);
    pot_buffer_append(&changed, text.data, (size_t)(at - text.data));
    pot_buffer_text(&changed, to);
    at += strcspn(at, ",}");
    pot_buffer_text(&changed, at);
    MUST(pot_file_write(in_own(own_name()), changed.data, changed.bytes, &err));
    pot_buffer_free(&changed);
    pot_buffer_free(&text);
}

static size_t count_listed(void) {
    pot_beacon_list list;
    MUST(pot_beacon_list_read(&list, own, &err));
    size_t n = list.n;
    for (size_t i = 0; i < n; i++) assert_null(list.entries[i].fault);
    pot_beacon_list_free(&list);
    return n;
}

static void the_number_alone_does_not_make_it_the_same_process(void **state) {
    (void)state;
    put_own("\"start_ticks\": ", "\"start_ticks\": 1");
    assert_int_equal(count_listed(), 0);
    assert_int_equal(access(in_own(own_name()), F_OK), -1);
    put_own("\"written_us\": ", "\"written_us\": 9000000000000000000"); /* before the machine was started */
    assert_int_equal(count_listed(), 0);
    assert_int_equal(access(in_own(own_name()), F_OK), -1);
    put_own("\"space\": ", "\"space\": 12"); /* another container's: neither shown nor removed */
    assert_int_equal(count_listed(), 0);
    assert_int_equal(access(in_own(own_name()), F_OK), 0);
}

/* ---- what is not to be trusted --------------------------------------------------------------------------------------------------- */

static void invalid_files_are_reported(void **state) {
    (void)state;
    pot_beacon_list list;
    pot_beacon *b;
    MUST(pot_beacon_open(&b, own, &err));
    put(in_own(own_name()), "{\"potluck\": 1, \"pid\": ");
    put(in_own("1x.json"), "not looked at");
    put(in_own("007.json"), "not looked at");
    put(in_own("notes.txt"), "not looked at");
    MUST(pot_beacon_list_read(&list, own, &err));
    assert_int_equal(list.n, 1);
    assert_non_null(list.entries[0].fault);
    assert_non_null(strstr(list.entries[0].fault, own_name()));
    pot_beacon_list_free(&list);
    pot_buffer large = {0};
    for (int i = 0; i < 20000; i++) pot_buffer_text(&large, "    ");
    MUST(pot_file_write(in_own(own_name()), large.data, large.bytes, &err));
    pot_buffer_free(&large);
    MUST(pot_beacon_list_read(&list, own, &err));
    assert_non_null(strstr(list.entries[0].fault, "65536"));
    pot_beacon_list_free(&list);
    pot_beacon_close(b);
}

static void links_and_pipes_are_not_followed(void **state) {
    (void)state;
    pot_beacon_list list;
    pot_beacon *b;
    char secret[96];
    snprintf(secret, sizeof secret, "%s/secret", root);
    put(secret, "kept");
    MUST(pot_beacon_open(&b, own, &err));
    assert_int_equal(symlink(secret, in_own(own_name())), 0);
    MUST(pot_beacon_list_read(&list, own, &err));
    assert_int_equal(list.n, 1);
    assert_non_null(strstr(list.entries[0].fault, "link"));
    pot_beacon_list_free(&list);
    char half[48];
    snprintf(half, sizeof half, ".%s.tmp", own_name());
    assert_int_equal(symlink(secret, in_own(half)), 0);
    pot_beacon_facts f = some_facts();
    pot_beacon_tell(b, &f, pot_now_us()); /* replaces both links, and not what they name */
    pot_buffer text = {0};
    MUST(pot_file_read(&text, secret, 100, &err));
    assert_string_equal(text.data, "kept");
    pot_buffer_free(&text);
    assert_int_equal(count_listed(), 1);
    unlink(in_own(own_name()));
    assert_int_equal(mkfifo(in_own(own_name()), 0600), 0);
    MUST(pot_beacon_list_read(&list, own, &err)); /* does not wait for a writer */
    assert_non_null(list.entries[0].fault);
    pot_beacon_list_free(&list);
    pot_beacon_close(b);
}

static void assert_refused(const char *word) {
    pot_beacon *b = NULL;
    pot_beacon_list list;
    assert_int_equal(pot_beacon_open(&b, own, &err), POT_REFUSED);
    if (!strstr(err.text, word) || !strstr(err.text, own)) fail_msg("%s: expected word: %s", err.text, word);
    assert_null(b);
    MUST(pot_beacon_list_read(&list, own, &err));
    assert_int_equal(list.n, 0);
    assert_non_null(list.fault);
    pot_beacon_list_free(&list);
}

static void directories_of_others_are_refused(void **state) {
    (void)state;
    assert_int_equal(mkdir(own, 0700), 0);
    assert_int_equal(chmod(own, 0755), 0);
    assert_refused("755");
    assert_int_equal(chmod(own, 0700), 0);
    if (!geteuid()) {
        assert_int_equal(chown(own, 12345, (gid_t)-1), 0);
        assert_refused("12345");
    }
    assert_int_equal(rmdir(own), 0);
    char elsewhere[96];
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", root);
    assert_int_equal(mkdir(elsewhere, 0700), 0);
    assert_int_equal(symlink(elsewhere, own), 0);
    assert_refused("link");
    assert_int_equal(unlink(own), 0);
    put(own, "a file");
    assert_refused("file");
    unlink(own);
}

static void failing_to_write_does_no_harm(void **state) {
    (void)state;
    pot_beacon *b;
    MUST(pot_beacon_open(&b, own, &err));
    assert_int_equal(rmdir(own), 0);
    pot_beacon_facts f = some_facts();
    pot_beacon_tell(b, &f, pot_now_us()); /* a warning */
    assert_int_equal(pot_beacon_write(b, "x", 1, &err), POT_IO);
    pot_beacon_close(b);
}

static void short_memory_is_survived(void **state) {
    (void)state;
    pot_beacon *b;
    pot_beacon_facts f = some_facts();
    pot_beacon_list list;
    for (uint64_t nth = 1;; nth++) {
        pot_mem_fail_at(nth);
        pot_status s = pot_beacon_open(&b, own, &err);
        if (!s) {
            pot_beacon_tell(b, &f, pot_now_us());
            s = pot_beacon_list_read(&list, own, &err);
            if (!s) pot_beacon_list_free(&list);
            pot_beacon_close(b);
        }
        bool reached = nth > 60;
        pot_mem_fail_at(0);
        if (reached) break;
    }
}

static void the_usual_place_is_the_session_and_then_tmp(void **state) {
    (void)state;
    pot_beacon *b;
    pot_beacon_list list;
    char shared[64], name[128];
    setenv("XDG_RUNTIME_DIR", root, 1);
    MUST(pot_beacon_open(&b, NULL, &err));
    pot_beacon_facts f = some_facts();
    pot_beacon_tell(b, &f, pot_now_us());
    assert_int_equal(access(in_own(own_name()), F_OK), 0);
    for (int with = 1; with >= 0;
         with--) { /* found from a session with and without the variable only where it is visible */
        if (!with) unsetenv("XDG_RUNTIME_DIR");
        MUST(pot_beacon_list_read(&list, NULL, &err));
        bool found = false;
        for (size_t i = 0; i < list.n; i++) found |= list.entries[i].pid == getpid();
        assert_int_equal(found, with);
        pot_beacon_list_free(&list);
    }
    pot_beacon_close(b);
    setenv("XDG_RUNTIME_DIR", "/no/such/directory", 1); /* a session that has ended */
    MUST(pot_beacon_open(&b, NULL, &err));
    pot_beacon_tell(b, &f, pot_now_us());
    snprintf(shared, sizeof shared, "/tmp/potluck-%ld", (long)geteuid());
    snprintf(name, sizeof name, "%s/%s", shared, own_name());
    assert_int_equal(access(name, F_OK), 0);
    pot_beacon_close(b);
    unsetenv("XDG_RUNTIME_DIR");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_gives_back_every_field),
        cmocka_unit_test(what_is_unknown_stays_unknown),
        cmocka_unit_test(hostile_text_is_refused_with_the_field),
        cmocka_unit_test(long_model_names_lose_their_beginning),
        TEST(what_is_told_is_listed_until_closed),
        TEST(rates_are_of_the_time_between_two_writes),
        TEST(due_once_a_second_or_when_the_state_changes),
        TEST(files_of_the_dead_are_removed),
        TEST(the_number_alone_does_not_make_it_the_same_process),
        TEST(invalid_files_are_reported),
        TEST(links_and_pipes_are_not_followed),
        TEST(directories_of_others_are_refused),
        TEST(failing_to_write_does_no_harm),
        TEST(short_memory_is_survived),
        TEST(the_usual_place_is_the_session_and_then_tmp),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
