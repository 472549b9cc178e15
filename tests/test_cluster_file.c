/* Cluster files: what they say, what is refused and in which words, that writing and reading agree, and what is worked out of them.
 * GOLDEN=renew rewrites tests/golden/cluster/written.ini. */
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
#include "common/mem.h"
#include "placement/cluster.h"
#include "placement/cluster_internal.h"

static pot_err err;
#define MUST(call)                                     \
    do {                                               \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)

static void assert_near(double found, double expected) {
    double off = found - expected, most = 1e-9 * (expected < 0 ? -expected : expected);
    if (!(off <= most && off >= -most)) fail_msg("%.12g, expected is %.12g", found, expected);
}

static pot_machines *parse(const char *text) {
    pot_machines *m = pot_alloc(sizeof *m);
    assert_non_null(m);
    MUST(pot_machines_parse(m, text, strlen(text), "test.ini", &err));
    return m;
}

#define HEAD "[cluster]\nversion = 1\n"
#define FIRST "[worker 0]\nhost = a\nram = 0\n"

/* ---- what they say ---------------------------------------------------------------------------------------------------- */

static void values_and_units_are_read(void **state) {
    (void)state;
    pot_machines *m =
        parse("; a comment\n[cluster]\nversion = 1\nnote = by hand, for a test\nport_rate = 10Gbit/s\n"
              "[worker 1]\nhost = b-2.lan\nram = 1.5GiB ; the small one\nram_rate = 25.5GB/s\n"
              "link_latency = 0.2ms\nlink_rate = 940Mbit/s\nlink_jitter = 15us\nmessage_time = 900ns\n"
              "[worker 0]\nhost = a\ncores = 8\nisa = avx2\nvram = 24GB\nvram_rate = 0.6TB/s\nram = 128GiB\n"
              "ram_rate = 50GiB/s\ndisk = 2TB\ndisk_rate = 500MB/s\ndense_rate = 40GB/s\n"
              "operations = 200Gop/s\nitem_time = 3us\n");
    assert_int_equal(m->n, 2);
    assert_string_equal(m->note, "by hand, for a test");
    assert_near(m->port_bytes_per_s, 1.25e9);
    const pot_machine *a = &m->of[0], *b = &m->of[1];
    assert_string_equal(a->host, "a");
    assert_int_equal(a->cores, 8);
    assert_string_equal(a->isa, "avx2");
    assert_int_equal(a->tiers[POT_COST_VRAM].bytes, 24000000000);
    assert_near(a->tiers[POT_COST_VRAM].bytes_per_s, 6e11);
    assert_int_equal(a->tiers[POT_COST_RAM].bytes, (uint64_t)128 << 30);
    assert_near(a->tiers[POT_COST_RAM].bytes_per_s, 50 * 0x1p30);
    assert_int_equal(a->tiers[POT_COST_DISK].bytes, 2000000000000);
    assert_near(a->tiers[POT_COST_DISK].bytes_per_s, 5e8);
    assert_near(a->dense_bytes_per_s, 4e10);
    assert_near(a->operations_per_s, 2e11);
    assert_near(a->item_s, 3e-6);
    assert_true(a->link.latency_s == 0 && a->link.bytes_per_s == 0);
    assert_string_equal(b->host, "b-2.lan");
    assert_int_equal(b->tiers[POT_COST_RAM].bytes, (uint64_t)3 << 29);
    assert_near(b->dense_bytes_per_s, 25.5e9); /* as fast as the RAM when nobody says */
    assert_near(b->link.latency_s, 2e-4);
    assert_near(b->link.bytes_per_s, 117.5e6);
    assert_near(b->link.jitter_s, 15e-6);
    assert_near(b->link.message_s, 9e-7);
    pot_free(m);
}

static void a_worker_may_hold_nothing(void **state) {
    (void)state;
    pot_machines *m =
        parse(HEAD FIRST "[worker 1]\nhost = b\nram = 0\nvram = 0\ndisk = 0\nlink_latency = 0\nlink_rate = 0\n");
    pot_cost_worker speed;
    assert_int_equal(m->n, 2);
    pot_machine_speed(&speed, &m->of[1]);
    assert_false(speed.remote);
    pot_buffer text = {0};
    pot_machines_format(&text, m);
    MUST(pot_machines_parse(m, text.data, text.bytes, "again", &err));
    assert_int_equal(m->n, 2);
    pot_buffer_free(&text);
    pot_free(m);
}

static void sixty_four_workers_are_enough(void **state) {
    (void)state;
    pot_buffer text = {0};
    pot_buffer_text(&text, HEAD);
    for (int w = 0; w < 64; w++)
        pot_buffer_format(
            &text, "[worker %d]\nhost = h%d\nram = 1GiB\nram_rate = 1GB/s\nlink_latency = 1us\nlink_rate = 1GB/s\n", w,
            w);
    pot_machines *m = parse(text.data);
    assert_int_equal(m->n, 64);
    assert_string_equal(m->of[63].host, "h63");
    pot_free(m);
    pot_buffer_free(&text);
}

/* ---- what is refused ---------------------------------------------------------------------------------------------------- */

typedef struct refusal {
    const char *text, *words; /* of the sentence, from its begin on */
} refusal;

#define RAM "[worker 0]\nhost = a\nram_rate = 1GB/s\nram = "
#define DISK "[worker 0]\nhost = a\nram = 1GiB\nram_rate = 1GB/s\ndisk_rate_"
static const refusal refusals[] = {
    {"", "test.ini: [cluster]: version is missing; expected is a whole number"},
    {"[cluster]\nversion = 2\n" FIRST, "test.ini:2: the file is of version 2, this program reads version 1"},
    {HEAD, "test.ini: no [worker 0]: a cluster has at least one worker"},
    {"host = a\n", "test.ini:1: a key before the first section"},
    {HEAD "just words\n", "test.ini:3: `key = value` or `[section]` was expected"},
    {HEAD "[worker 0\nhost = a\n", "test.ini:3: `key = value` or `[section]` was expected"},
    {HEAD "[workers 0]\nhost = a\n", "test.ini:4: unknown section [workers 0]; there are [cluster] and [worker 0]"},
    {HEAD "[worker 00]\nhost = a\n", "test.ini:4: unknown section [worker 00]"},
    {HEAD "[worker -1]\nhost = a\n", "test.ini:4: unknown section [worker -1]"},
    {HEAD "[worker ]\nhost = a\n", "test.ini:4: unknown section [worker"},
    {HEAD "[worker 64]\nhost = a\n", "test.ini:4: section [worker 64]: workers are numbered from 0 to 63"},
    {HEAD "[worker 4294967296]\nhost = a\n", "test.ini:4: unknown section [worker 4294967296]"},
    {HEAD "[worker 0]\nhost = a\nnothing\nhost = b\n", "test.ini:5: `key = value` or `[section]` was expected"},
    {HEAD "[worker 0]\nhost = a\nhost = b\nnothing\n", "test.ini:5: host is set twice"},
    {HEAD "[worker 0]\nhost = a\n  and more\n", "test.ini:5: host is set twice"},
    {HEAD "version = 1\n", "test.ini:3: version is set twice"},
    {HEAD FIRST "host = b\n", "test.ini:6: host is set twice"},
    {HEAD FIRST "raam_rate = 1GB/s\n",
     "test.ini:6: unknown key `raam_rate`; did you mean `ram_rate`? (docs/cluster.md"},
    {HEAD FIRST "host  name = 1\n", "test.ini:6: unknown key `host  name`"},
    {HEAD "[worker 0]\nram = 0\n", "test.ini:4: [worker 0]: host is missing; expected is a name"},
    {HEAD "[worker 0]\nhost = a\n", "test.ini:4: [worker 0]: ram is missing; expected is a size such as 24GiB"},
    {HEAD "[worker 0]\nhost = a\nram = 1GiB\n",
     "test.ini:4: [worker 0]: ram_rate is missing, though there is room; expected"},
    {HEAD FIRST "vram = 1GiB\n", "test.ini:4: [worker 0]: vram_rate is missing, though there is room"},
    {HEAD FIRST "vram = 1GiB\nvram_rate = 0\n", "test.ini:4: [worker 0]: vram_rate is missing, though there is room"},
    {HEAD FIRST "disk = 1GiB\ndisk_rate = 1GB/s\n",
     "test.ini:4: [worker 0]: ram_rate is missing, which experts from disk are computed at"},
    {HEAD FIRST "[worker 2]\nhost = c\nram = 0\nlink_latency = 0\nlink_rate = 0\n",
     "test.ini:7: [worker 1] is missing, though there is [worker 2]"},
    {HEAD FIRST "[worker 1]\nhost = b\nram = 0\nlink_rate = 0\n",
     "test.ini:7: [worker 1]: link_latency is missing (only worker 0 has no link); expected is a time such as 80us"},
    {HEAD FIRST "[worker 1]\nhost = b\nram = 0\nlink_latency = 0\n", "test.ini:7: [worker 1]: link_rate is missing"},
    {HEAD RAM "12 potatoes\n", "test.ini:6: ram is `12 potatoes`, expected is a size such as 24GiB or 2TB, or 0"},
    {HEAD RAM "12\n", "test.ini:6: ram is `12`, expected"},
    {HEAD RAM "-1GiB\n", "test.ini:6: ram is `-1GiB`, expected"},
    {HEAD RAM "1e3GiB\n", "test.ini:6: ram is `1e3GiB`, expected"},
    {HEAD RAM "nan\n", "test.ini:6: ram is `nan`, expected"},
    {HEAD RAM "0x10GiB\n", "test.ini:6: ram is `0x10GiB`, expected"},
    {HEAD RAM ".5GiB\n", "test.ini:6: ram is `.5GiB`, expected"},
    {HEAD RAM "5.GiB\n", "test.ini:6: ram is `5.GiB`, expected"},
    {HEAD RAM "1.2.3GiB\n", "test.ini:6: ram is `1.2.3GiB`, expected"},
    {HEAD RAM "1 GiB\n", "test.ini:6: ram is `1 GiB`, expected"},
    {HEAD RAM "1gib\n", "test.ini:6: ram is `1gib`, expected"},
    {HEAD RAM "9007199254740993B\n", "test.ini:6: ram is `9007199254740993B`, expected"},
    {HEAD RAM "8193TiB\n", "test.ini:6: ram is `8193TiB`, expected"},
    {HEAD RAM "\n", "test.ini:6: ram is ``, expected"},
    {HEAD RAM "1000000000000000000000000000000000GiB\n", "test.ini:6: ram is `1000"},
    {HEAD FIRST "ram_rate = 1GB\n",
     "test.ini:6: ram_rate is `1GB`, expected is a rate such as 3.2GB/s or 10Gbit/s, or 0"},
    {HEAD FIRST "ram_rate = 1001TB/s\n", "test.ini:6: ram_rate is `1001TB/s`, expected"},
    {HEAD FIRST "ram_rate = 0.5B/s\n", "test.ini:6: ram_rate is `0.5B/s`, expected"},
    {HEAD FIRST "item_time = 61s\n", "test.ini:6: item_time is `61s`, expected is a time such as 80us"},
    {HEAD FIRST "item_time = 5\n", "test.ini:6: item_time is `5`, expected"},
    {HEAD FIRST "operations = 5GB/s\n", "test.ini:6: operations is `5GB/s`, expected is a number of operations"},
    {HEAD FIRST "cores = 1.5\n", "test.ini:6: cores is `1.5`, expected is a whole number up to 65536"},
    {HEAD FIRST "cores = 65537\n", "test.ini:6: cores is `65537`, expected"},
    {HEAD FIRST "isa = a b\n", "test.ini:6: isa is `a b`, expected is a name of letters"},
    {HEAD FIRST "isa = sixteen.letters.\n", "test.ini:6: isa has 16 characters, at most 15 are accepted"},
    {HEAD "note = a\tb\n", "test.ini:3: note is `a\tb`, expected is a text"},
    {HEAD DISK "1MiB = 1GB/s 2GB/s\n", "test.ini:7: disk_rate_1MiB has 2 rates, expected are 6: with 1, 2, 4"},
    {HEAD DISK "1MiB = 1GB/s 2GB/s 3GB/s 4GB/s 5GB/s 6GB/s 7GB/s\n", "test.ini:7: disk_rate_1MiB has 7 rates"},
    {HEAD DISK "1MiB = 1GB/s 2GB/s 0 4GB/s 5GB/s 6GB/s\n",
     "test.ini:7: disk_rate_1MiB: rate number 3 is `0`, expected is a rate above 0"},
    {HEAD DISK "big = 1GB/s\n",
     "test.ini:7: disk_rate_big: `big` is no size of a read, expected is a key such as disk_rate_1MiB"},
    {HEAD DISK "0 = 1GB/s\n", "test.ini:7: disk_rate_0: `0` is no size of a read"},
    {HEAD DISK "1MiB = 1B/s 1B/s 1B/s 1B/s 1B/s 1B/s\ndisk_rate_1024KiB = 1B/s 1B/s 1B/s 1B/s 1B/s 1B/s\n",
     "test.ini:8: disk_rate_1024KiB: reads of this size are described twice"},
};

static void what_cannot_be_is_refused_with_the_place(void **state) {
    (void)state;
    pot_machines *m = pot_alloc(sizeof *m);
    assert_non_null(m);
    m->n = 77;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *r = &refusals[i];
        if (pot_machines_parse(m, r->text, strlen(r->text), "test.ini", &err) != POT_FORMAT)
            fail_msg("accepted: %s", r->text);
        if (strncmp(err.text, r->words, strlen(r->words)) != 0) fail_msg("%s\nexpected was: %s", err.text, r->words);
    }
    assert_int_equal(m->n, 77); /* untouched */
    pot_free(m);
}

static void odd_bytes_are_refused(void **state) {
    (void)state;
    static const char nul[] = HEAD "note = a\0b\n";
    pot_machines *m = pot_alloc(sizeof *m);
    pot_buffer text = {0};
    assert_non_null(m);
    assert_int_equal(pot_machines_parse(m, nul, sizeof nul - 1, "x", &err), POT_FORMAT);
    assert_string_equal(err.text, "x: contains a NUL byte");
    pot_buffer_text(&text, HEAD "note = ");
    for (int i = 0; i < 192; i++) pot_buffer_byte(&text, 'n');
    assert_int_equal(pot_machines_parse(m, text.data, text.bytes, "x", &err), POT_FORMAT);
    assert_string_equal(err.text, "x:3: the line has 199 bytes, at most 198 are accepted");
    pot_buffer_clear(&text);
    for (int i = 0; i < (1 << 20) + 1; i++) pot_buffer_byte(&text, '\n');
    assert_int_equal(pot_machines_parse(m, text.data, text.bytes, "x", &err), POT_FORMAT);
    assert_string_equal(err.text, "x: 1048577 bytes, a cluster file has at most 1048576");
    assert_int_equal(pot_machines_read(m, "/nowhere/cluster.ini", &err), POT_NOT_FOUND);
    assert_non_null(strstr(err.text, "/nowhere/cluster.ini"));
    pot_buffer_free(&text);
    pot_free(m);
}

static void nine_curves_are_too_many(void **state) {
    (void)state;
    pot_buffer text = {0};
    pot_machines *m = pot_alloc(sizeof *m);
    assert_non_null(m);
    pot_buffer_text(&text, HEAD FIRST);
    for (int i = 9; i > 0; i--) pot_buffer_format(&text, "disk_rate_%dKiB = 1B/s 1B/s 1B/s 1B/s 1B/s %dB/s\n", i, i);
    assert_int_equal(pot_machines_parse(m, text.data, text.bytes, "x", &err), POT_FORMAT);
    assert_string_equal(err.text, "x:14: disk_rate_1KiB: more than 8 sizes of reads");
    text.data[text.bytes - strlen("disk_rate_1KiB = 1B/s 1B/s 1B/s 1B/s 1B/s 1B/s\n")] = 0;
    MUST(pot_machines_parse(m, text.data, strlen(text.data), "x", &err));
    assert_int_equal(m->of[0].n_curves, 8);
    for (uint32_t i = 0; i < 8; i++) { /* ascending, whatever the file's order */
        assert_int_equal(m->of[0].curves[i].read_bytes, (i + 2) << 10);
        assert_near(m->of[0].curves[i].bytes_per_s[5], i + 2.0);
    }
    pot_buffer_free(&text);
    pot_free(m);
}

static void memory_may_be_short(void **state) {
    (void)state;
    pot_machines *m = pot_alloc(sizeof *m);
    assert_non_null(m);
    for (uint64_t nth = 1;; nth++) {
        pot_mem_fail_at(nth);
        pot_status status = pot_machines_parse(m, HEAD FIRST, strlen(HEAD FIRST), "x", &err);
        pot_mem_fail_at(0);
        if (status == POT_OK) break;
        assert_int_equal(status, POT_NO_MEMORY);
        assert_true(nth < 10);
    }
    pot_free(m);
}

/* ---- writing ------------------------------------------------------------------------------------------------------------- */

static pot_machines *example(void) {
    pot_machines *m = pot_alloc(sizeof *m);
    assert_non_null(m);
    m->n = 2;
    m->port_bytes_per_s = 1.17654321e8;
    strcpy(m->note, "an example");
    m->of[0] = (pot_machine){
        .host = "big",
        .cores = 16,
        .isa = "avx512",
        .tiers = {{(uint64_t)24 << 30, 1.5e12}, {100000000001, 75.25e9}, {2000000000000, 999.9999e6}},
        .n_curves = 2,
        .curves = {{65536, {1e8, 2e8, 4e8, 8e8, 1.5e9, 1.6e9}}, {1048576, {1e9, 1.8e9, 3e9, 5e9, 5e9, 5e9}}},
        .dense_bytes_per_s = 70.123456789e9,
        .operations_per_s = 1.25e12,
        .item_s = 3.3333333e-6};
    m->of[1] = (pot_machine){.host = "small",
                             .tiers = {{0, 0}, {(uint64_t)7 << 20, 999}, {0, 0}},
                             .dense_bytes_per_s = 0.5, /* less than a file can say */
                             .link = {.bytes_per_s = 0, .latency_s = 0.0301, .jitter_s = 5e-9}};
    return m;
}

static void writing_is_golden(void **state) {
    (void)state;
    static const char path[] = "tests/golden/cluster/written.ini";
    pot_machines *m = example();
    pot_buffer text = {0}, expected = {0};
    pot_machines_format(&text, m);
    const char *golden = getenv("GOLDEN");
    if (golden && !strcmp(golden, "renew")) MUST(pot_file_write(path, text.data, text.bytes, &err));
    MUST(pot_file_read(&expected, path, 1 << 16, &err));
    if (text.bytes != expected.bytes || memcmp(text.data, expected.data, text.bytes) != 0)
        fail_msg("%s differs from what is written now (make golden renews it):\n%s", path, text.data);
    pot_buffer_free(&text);
    pot_buffer_free(&expected);
    pot_free(m);
}

/* Within the digits that are written. */
static void what_was_written_reads_the_same(void **state) {
    (void)state;
    char path[] = "/tmp/test_cluster_file_XXXXXX";
    pot_machines *m = example(), *again = pot_alloc(sizeof *again);
    pot_buffer first = {0}, second = {0};
    assert_non_null(again);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    MUST(pot_machines_write(path, m, "two lines\n\nand a gap\n", &err));
    MUST(pot_machines_read(again, path, &err));
    pot_machines_format(&first, m);
    pot_machines_format(&second, again);
    assert_int_equal(again->n, 2);
    assert_int_equal(again->of[0].tiers[POT_COST_RAM].bytes, 100000000001);
    assert_int_equal(again->of[0].n_curves, 2);
    assert_near(again->of[0].dense_bytes_per_s, 70.1235e9);
    assert_near(again->of[0].tiers[POT_COST_DISK].bytes_per_s, 1e9); /* 999.9999 MB/s to six digits */
    assert_near(again->of[1].dense_bytes_per_s, 999);
    pot_buffer text = {0};
    MUST(pot_file_read(&text, path, 1 << 16, &err));
    assert_int_equal(strncmp(text.data, "; two lines\n;\n; and a gap\n\n[cluster]\n", 37), 0);
    unlink(path);
    pot_buffer_free(&text);
    pot_buffer_free(&first);
    pot_buffer_free(&second);
    pot_free(again);
    pot_free(m);
}

/* Long comments are cut; what could not be read again is not written. */
static void only_what_can_be_read_is_written(void **state) {
    (void)state;
    char path[] = "/tmp/test_cluster_file_XXXXXX", comment[1000];
    pot_machines *m = example(), *again = pot_alloc(sizeof *again);
    assert_non_null(again);
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    memset(comment, 'c', sizeof comment);
    comment[sizeof comment - 1] = 0;
    comment[190] = comment[383] = '\n'; /* of 190 bytes, which fit, and of 192 and more */
    MUST(pot_machines_write(path, m, comment, &err));
    MUST(pot_machines_read(again, path, &err));
    pot_buffer text = {0};
    MUST(pot_file_read(&text, path, 1 << 16, &err));
    const char *second = strchr(text.data, '\n') + 1, *third = strchr(second, '\n') + 1;
    assert_int_equal(second - text.data, 2 + 190 + 1);
    assert_int_equal(third - second, 2 + 190 + 3 + 1);
    assert_memory_equal(third - 4, "...\n", 4);
    strcpy(m->of[1].host, "no name");
    assert_int_equal(pot_machines_write(path, m, NULL, &err), POT_FORMAT);
    assert_non_null(strstr(err.text, "host is `no name`, expected"));
    MUST(pot_machines_read(again, path, &err));
    assert_string_equal(again->of[1].host, "small");
    assert_int_equal(pot_machines_write("/nowhere/x.ini", again, NULL, &err), POT_IO);
    unlink(path);
    pot_buffer_free(&text);
    pot_free(again);
    pot_free(m);
}

static void quantities_are_short_and_round_before_they_choose_a_unit(void **state) {
    (void)state;
    char text[POT_QUANTITY_TEXT];
    assert_string_equal(pot_rate_text(text, 0), "0");
    assert_string_equal(pot_rate_text(text, 0.5), "0"); /* less than a file can say */
    assert_string_equal(pot_rate_text(text, 1e9), "1GB/s");
    assert_string_equal(pot_rate_text(text, 999999999), "1GB/s");
    assert_string_equal(pot_rate_text(text, 999999000), "999.999MB/s");
    assert_string_equal(pot_rate_text(text, 1234567.89), "1.23457MB/s");
    assert_string_equal(pot_rate_text(text, 1.25), "1.25B/s");
    assert_string_equal(pot_rate_text(text, 1e15), "1000000GB/s");
    assert_string_equal(pot_time_text(text, 0.0301), "30.1ms");
    assert_string_equal(pot_time_text(text, 999.99999e-6), "1ms");
    assert_string_equal(pot_time_text(text, 1.23456e-12), "0.00123456ns");
    assert_string_equal(pot_size_text(text, 0), "0");
    assert_string_equal(pot_size_text(text, 1536), "1536B");
    assert_string_equal(pot_size_text(text, (uint64_t)3 << 29), "1536MiB");
    assert_string_equal(pot_size_text(text, (uint64_t)2 << 40), "2TiB");
}

/* ---- what is worked out ----------------------------------------------------------------------------------------------------- */

static void disk_rates_are_interpolated(void **state) {
    (void)state;
    pot_machine m = {.tiers = {[POT_COST_DISK] = {1, 7}},
                     .n_curves = 2,
                     .curves = {{1 << 16, {1, 2, 3, 4, 5, 6}}, {1 << 20, {10, 20, 30, 40, 50, 60}}}};
    assert_near(pot_machine_disk_rate(&m, 1 << 16, 1), 1);
    assert_near(pot_machine_disk_rate(&m, 1 << 20, 32), 60);
    assert_near(pot_machine_disk_rate(&m, 1 << 20, 4), 30);
    assert_near(pot_machine_disk_rate(&m, 4096, 8), 4);        /* smaller than all */
    assert_near(pot_machine_disk_rate(&m, 1 << 24, 8), 40);    /* larger than all */
    assert_near(pot_machine_disk_rate(&m, 1 << 20, 0), 10);    /* shallower */
    assert_near(pot_machine_disk_rate(&m, 1 << 20, 1000), 60); /* deeper */
    assert_near(pot_machine_disk_rate(&m, 1 << 18, 2), 11);    /* half way in powers of two */
    assert_near(pot_machine_disk_rate(&m, 1 << 17, 2), 6.5);
    assert_near(pot_machine_disk_rate(&m, 1 << 20, 6), 30 + 10 * 0.58496250072115619);
    m.n_curves = 1;
    assert_near(pot_machine_disk_rate(&m, 1 << 10, 4), 3);
    assert_near(pot_machine_disk_rate(&m, 1 << 30, 4), 3);
    m.n_curves = 0;
    assert_near(pot_machine_disk_rate(&m, 1 << 20, 4), 7);
}

static void a_machine_becomes_a_cost(void **state) {
    (void)state;
    pot_machines *m = example();
    pot_cost_worker speed;
    pot_machine_speed(&speed, &m->of[0]);
    assert_false(speed.remote);
    assert_near(speed.bytes_per_s[POT_COST_VRAM], 1.5e12);
    assert_near(speed.bytes_per_s[POT_COST_RAM], 75.25e9);
    assert_near(speed.bytes_per_s[POT_COST_DISK], 999.9999e6);
    assert_near(speed.item_s, 3.3333333e-6);
    assert_near(speed.link_s, 0);
    m->of[1].link = (pot_machine_link){.latency_s = 1e-4, .jitter_s = 2e-5, .message_s = 3e-6, .bytes_per_s = 1e9};
    pot_machine_speed(&speed, &m->of[1]);
    assert_true(speed.remote);
    assert_near(speed.link_s, 1.23e-4);
    assert_near(speed.link_bytes_per_s, 1e9);
    m->of[1].link.bytes_per_s = 0; /* does not count, but the way is far */
    pot_machine_speed(&speed, &m->of[1]);
    assert_true(speed.remote);
    pot_free(m);
}

/* ---- the examples ------------------------------------------------------------------------------------------------------------ */

static void every_example_is_good(void **state) {
    (void)state;
    static const struct {
        const char *path;
        uint32_t n;
    } examples[] = {{"one-box", 1},  {"two-laptops", 2}, {"four-home", 4}, {"eight-rdma", 8}, {"dgx-and-two", 3},
                    {"wan-pair", 2}, {"shape-a", 4},     {"shape-b", 4},   {"shape-c", 4},    {"shape-d", 8}};
    pot_machines *m = pot_alloc(sizeof *m);
    assert_non_null(m);
    for (size_t i = 0; i < sizeof examples / sizeof *examples; i++) {
        char path[128];
        snprintf(path, sizeof path, "bench/clusters/%s.ini", examples[i].path);
        MUST(pot_machines_read(m, path, &err));
        assert_int_equal(m->n, examples[i].n);
        for (uint32_t w = 0; w < m->n; w++) assert_true(m->of[w].tiers[POT_COST_RAM].bytes > 0);
    }
    pot_free(m);
}

/* docs/cluster.md names every key, and its example is a good one. */
static void the_document_is_in_step(void **state) {
    (void)state;
    pot_buffer text = {0}, word = {0};
    pot_machines *m = pot_alloc(sizeof *m);
    assert_non_null(m);
    MUST(pot_file_read(&text, "docs/cluster.md", 1 << 20, &err));
    const char *section = strstr(text.data, "## The cluster file");
    assert_non_null(section);
    for (int k = 0; k < POT_CLUSTER_KEYS + POT_WORKER_KEYS; k++) {
        const pot_key *key = k < POT_CLUSTER_KEYS ? &pot_cluster_keys[k] : &pot_worker_keys[k - POT_CLUSTER_KEYS];
        pot_buffer_clear(&word);
        pot_buffer_format(&word, "`%s`", key->name);
        if (!strstr(section, word.data)) fail_msg("docs/cluster.md does not have %s", word.data);
    }
    const char *example = strstr(section, "```\n");
    assert_non_null(example);
    example += 4;
    const char *end = strstr(example, "```");
    assert_non_null(end);
    MUST(pot_machines_parse(m, example, (size_t)(end - example), "the example in docs/cluster.md", &err));
    assert_int_equal(m->n, 2);
    pot_buffer_free(&word);
    pot_buffer_free(&text);
    pot_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_units_are_read),
        cmocka_unit_test(a_worker_may_hold_nothing),
        cmocka_unit_test(sixty_four_workers_are_enough),
        cmocka_unit_test(what_cannot_be_is_refused_with_the_place),
        cmocka_unit_test(odd_bytes_are_refused),
        cmocka_unit_test(nine_curves_are_too_many),
        cmocka_unit_test(memory_may_be_short),
        cmocka_unit_test(writing_is_golden),
        cmocka_unit_test(what_was_written_reads_the_same),
        cmocka_unit_test(only_what_can_be_read_is_written),
        cmocka_unit_test(quantities_are_short_and_round_before_they_choose_a_unit),
        cmocka_unit_test(disk_rates_are_interpolated),
        cmocka_unit_test(a_machine_becomes_a_cost),
        cmocka_unit_test(every_example_is_good),
        cmocka_unit_test(the_document_is_in_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
