/* The reader: faults put in place and faults of the real world end in their sentences, and hold nobody up. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "tests/reader_rig.h"

/* ---- faults put in place -------------------------------------------------------------------------------------------- */

/* What befalls attempt after attempt: the last row stays. */
typedef struct trouble {
    struct {
        int error;
        uint32_t bytes; /* at most so many */
        bool flip;
    } rows[4];
    uint32_t n_rows;
    atomic_uint attempts;
} trouble;

static uint32_t row_of(const trouble *t, uint32_t attempt) { return attempt < t->n_rows ? attempt : t->n_rows - 1; }

static int before(void *context, const char *path, uint64_t offset, uint32_t *bytes) {
    (void)path;
    (void)offset;
    trouble *t = context;
    uint32_t row = row_of(t, atomic_fetch_add(&t->attempts, 1));
    if (*bytes > t->rows[row].bytes) *bytes = t->rows[row].bytes;
    return t->rows[row].error;
}

static void after(void *context, const char *path, uint64_t offset, uint8_t *data, uint32_t bytes) {
    (void)path;
    (void)offset;
    trouble *t = context;
    uint32_t attempt = atomic_load(&t->attempts) - 1;
    if (t->rows[row_of(t, attempt)].flip) data[bytes / 2] ^= (uint8_t)(1u << attempt % 8);
}

enum { PIECE = 64 << 10, OFFSET = 40 * POT_READ_ALIGN, ALL = 1 << 30 };

static pot_status read_in_trouble(int way, trouble *t, uint8_t *memory) {
    atomic_store(&t->attempts, 0);
    memset(memory, 0xEE, PIECE);
    pot_read read = piece(OFFSET, PIECE, memory);
    pot_read_faults faults = {t, before, after};
    return read_one(data_path, way, &faults, &read);
}

static void trouble_that_passes_is_not_seen(void **unused) {
    (void)unused;
    trouble cases[] = {
        {.rows = {{EINTR, ALL, false}, {0, ALL, false}}, .n_rows = 2},
        {.rows = {{EAGAIN, ALL, false}, {EINTR, ALL, false}, {0, ALL, false}}, .n_rows = 3},
        {.rows = {{0, 1, false}, {0, ALL, false}}, .n_rows = 2},
        {.rows = {{0, 1000, false}, {0, 1000, false}, {EINTR, ALL, false}, {0, ALL, false}}, .n_rows = 4},
        {.rows = {{0, 4096, false}, {0, 8192, false}, {0, 4095, false}, {0, 5000, false}}, .n_rows = 4},
        {.rows = {{0, 777, false}}, .n_rows = 1},                 /* short every time, but never nothing */
        {.rows = {{0, ALL, true}, {0, ALL, false}}, .n_rows = 2}, /* flipped on the way */
        {.rows = {{0, 30000, true}, {0, ALL, true}, {0, ALL, false}}, .n_rows = 3},
    };
    uint8_t *memory = pages(PIECE);
    EACH_WAY
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (read_in_trouble(way, &cases[i], memory)) fail_msg("%s, case %zu: %s", ways[way].name, i, err.text);
        if (memcmp(memory, content + OFFSET, PIECE) != 0) fail_msg("%s, case %zu: other bytes", ways[way].name, i);
        assert_true(atomic_load(&cases[i].attempts) >= cases[i].n_rows);
    }
    munmap(memory, PIECE);
}

static void trouble_that_stays_is_named(void **unused) {
    (void)unused;
    struct {
        trouble trouble;
        const char *parts[4];
    } cases[] = {
        {{.rows = {{EIO, ALL, false}}, .n_rows = 1},
         {"/data: 65536 bytes at 163840 cannot be read: Input/output error", "dmesg"}},
        {{.rows = {{0, 8192, false}, {EIO, ALL, false}}, .n_rows = 2},
         {"/data: 57344 bytes at 172032 cannot be read: Input/output error"}},
        {{.rows = {{EINTR, ALL, false}}, .n_rows = 1}, {"cannot be read: Interrupted system call"}},
        {{.rows = {{0, 0, false}}, .n_rows = 1},
         {"/data: of 65536 bytes at 163840 only 0 can be read, though the file is 6292456 bytes"}},
        {{.rows = {{0, 5000, false}, {0, 0, false}}, .n_rows = 2}, {"of 65536 bytes at 163840 only 5000 can be read"}},
        {{.rows = {{0, ALL, true}}, .n_rows = 1},
         {"/data: 65536 bytes at 163840 have checksum ", " (after ", "potluck verify", ", expected "}},
    };
    uint8_t *memory = pages(PIECE);
    EACH_WAY
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(read_in_trouble(way, &cases[i].trouble, memory), POT_IO);
        for (int p = 0; p < 4 && cases[i].parts[p]; p++) HAS(err.text, cases[i].parts[p]);
    }
    munmap(memory, PIECE);
}

static void wrong_checksum_names_both(void **unused) {
    (void)unused;
    uint8_t *memory = pages(PIECE);
    EACH_WAY {
        char want[512];
        pot_read read = piece(OFFSET, PIECE, memory);
        read.checksum ^= 1;
        assert_int_equal(read_one(data_path, way, NULL, &read), POT_IO);
        snprintf(want, sizeof want,
                 "%s: 65536 bytes at 163840 have checksum %016llx (twice), expected %016llx: the disk or the memory "
                 "changed them; `potluck verify` names all that is damaged",
                 data_path, (unsigned long long)(read.checksum ^ 1), (unsigned long long)read.checksum);
        assert_string_equal(err.text, want);
        /* Nobody needs to ask for the sentence, or for the checksum. */
        pot_reader *reader = reader_on(data_path, way, 2, NULL);
        read.err = NULL;
        submit(reader, &read, false);
        assert_int_equal(take(reader)->status, POT_IO);
        read.has_checksum = false;
        submit(reader, &read, false);
        assert_int_equal(take(reader)->status, POT_OK);
        assert_true(pot_reader_free(reader));
    }
    munmap(memory, PIECE);
}

static void refused_direct_reads_go_through_the_page_cache(void **unused) {
    (void)unused;
    uint8_t *memory = pages(PIECE);
    EACH_WAY {
        trouble t = {.rows = {{EINVAL, ALL, false}, {0, ALL, false}}, .n_rows = 2};
        pot_reader *reader = reader_on(data_path, way, 1, NULL);
        bool direct = !strcmp(pot_reader_path(reader), "direct"); /* not every file system knows it */
        assert_true(pot_reader_free(reader));
        pot_status status = read_in_trouble(way, &t, memory);
        if (!direct) {
            assert_int_equal(status, POT_IO);
            HAS(err.text, "Invalid argument");
            continue;
        }
        MUST(status);
        assert_memory_equal(memory, content + OFFSET, PIECE);
        /* Once is enough: the next piece is not tried so. */
        atomic_store(&t.attempts, 0);
        pot_read_faults faults = {&t, before, NULL};
        reader = reader_on(data_path, way, 1, &faults);
        for (uint32_t i = 0; i < 2; i++) {
            pot_read read = piece(OFFSET, PIECE, memory);
            submit(reader, &read, false);
            assert_int_equal(take(reader)->status, POT_OK);
            assert_int_equal(atomic_load(&t.attempts), 2 + i);
        }
        assert_string_equal(pot_reader_path(reader), "cached");
        assert_true(pot_reader_free(reader));
    }
    munmap(memory, PIECE);
}

static int nap(void *context, const char *path, uint64_t offset, uint32_t *bytes) {
    (void)context;
    (void)path;
    (void)offset;
    (void)bytes;
    usleep(3000);
    return 0;
}

static void slow_reads_show_in_their_time(void **unused) {
    (void)unused;
    uint8_t *memory = pages(PIECE);
    EACH_WAY {
        pot_read read = piece(0, PIECE, memory);
        pot_read_faults faults = {NULL, nap, NULL};
        MUST(read_one(data_path, way, &faults, &read));
        assert_in_range(read.us, 3000, LONG_US);
    }
    munmap(memory, PIECE);
}

/* Left behind, so kept where the leak checkers see it. */
static pot_reader *left[WAYS];
static uint8_t *left_memory;
static pot_read left_reads[WAYS];
static gate left_gates[WAYS];

static void read_that_hangs_keeps_nobody(void **unused) {
    (void)unused;
    left_memory = pages((size_t)WAYS * PIECE);
    EACH_WAY {
        left_gates[way] = (gate)GATE;
        static pot_read_faults faults[WAYS];
        faults[way] = (pot_read_faults){&left_gates[way], pass, NULL};
        pot_reader_options options = {.engine = ways[way].engine,
                                      .path = ways[way].path,
                                      .depth = 2,
                                      .faults = &faults[way],
                                      .patience_us = 30000};
        uint32_t file;
        MUST(pot_reader_create(&left[way], &options, &err));
        MUST(pot_reader_open(&file, left[way], data_path, &err));
        left_reads[way] = piece(0, PIECE, left_memory + (size_t)way * PIECE);
        submit(left[way], &left_reads[way], false);
        wait_until_begun(&left_gates[way], 1);
        uint64_t start = pot_now_us();
        assert_null(pot_reader_take(left[way], 20000));
        assert_in_range(pot_now_us() - start, 20000, LONG_US);
        start = pot_now_us();
        assert_false(pot_reader_free(left[way]));
        assert_in_range(pot_now_us() - start, 30000, LONG_US);
        open_gate(&left_gates[way]);
    }
    usleep(20000);
    /* What came after all has left the memory alone. */
    for (size_t i = 0; i < (size_t)WAYS * PIECE; i++) assert_int_equal(left_memory[i], 0);
}

/* ---- faults of the real world --------------------------------------------------------------------------------------- */

static void file_that_shrinks_is_told_from_a_bad_disk(void **unused) {
    (void)unused;
    uint8_t *memory = pages(PIECE);
    EACH_WAY {
        char want[512];
        write_file(other_path, content, FILE_BYTES);
        pot_reader *reader = reader_on(other_path, way, 2, NULL);
        assert_int_equal(truncate(other_path, OFFSET + 100), 0);
        pot_read read = piece(OFFSET, PIECE, memory);
        read.err = &err;
        submit(reader, &read, false);
        assert_int_equal(take(reader)->status, POT_IO);
        snprintf(want, sizeof want,
                 "%s: is now %d bytes, was %d when it was opened: was it replaced?  65536 bytes at %d cannot be read; "
                 "leave model files alone while they are in use, and start again",
                 other_path, OFFSET + 100, FILE_BYTES, OFFSET);
        assert_string_equal(err.text, want);
        assert_true(pot_reader_free(reader));
    }
    munmap(memory, PIECE);
}

static void file_that_is_replaced_goes_on_or_is_told(void **unused) {
    (void)unused;
    char third[160];
    snprintf(third, sizeof third, "%s/third", scratch);
    uint8_t *memory = pages(PIECE);
    EACH_WAY {
        write_file(other_path, content, FILE_BYTES);
        pot_reader *reader = reader_on(other_path, way, 2, NULL);
        write_file(third, content + 1, FILE_BYTES - 1);
        assert_int_equal(rename(third, other_path), 0);
        /* The old file is still open and whole. */
        pot_read read = piece(OFFSET, PIECE, memory);
        read.err = &err;
        submit(reader, &read, false);
        MUST(take(reader)->status);
        read.checksum ^= 1;
        submit(reader, &read, false);
        assert_int_equal(take(reader)->status, POT_IO);
        HAS(err.text, "(the file at this path is another one than was opened)");
        unlink(other_path);
        submit(reader, &read, false);
        assert_int_equal(take(reader)->status, POT_IO);
        HAS(err.text, "(there is no file at this path any more)");
        assert_true(pot_reader_free(reader));
        /* Written over in place: the checksum finds it. */
        write_file(other_path, content, FILE_BYTES);
        reader = reader_on(other_path, way, 2, NULL);
        write_file(other_path, content + 1, FILE_BYTES - 1);
        read = piece(OFFSET, PIECE, memory);
        read.err = &err;
        submit(reader, &read, false);
        assert_int_equal(take(reader)->status, POT_IO);
        HAS(err.text, "have checksum");
        assert_true(pot_reader_free(reader));
    }
    munmap(memory, PIECE);
}

static void what_cannot_be_opened_is_said(void **unused) {
    (void)unused;
    pot_reader *reader = reader_on(data_path, 3, 1, NULL);
    uint32_t file = 77;
    char path[160];
    snprintf(path, sizeof path, "%s/missing", scratch);
    assert_int_equal(pot_reader_open(&file, reader, path, &err), POT_NOT_FOUND);
    HAS(err.text, "/missing: cannot be opened: No such file or directory");
    assert_int_equal(pot_reader_open(&file, reader, scratch, &err), POT_IO);
    HAS(err.text, ": is not a regular file");
    snprintf(path, sizeof path, "%s/pipe", scratch);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(pot_reader_open(&file, reader, path, &err), POT_IO); /* and does not wait for a writer */
    unlink(path);
    assert_int_equal(file, 77);
    assert_true(pot_reader_free(reader));
}

static void exhausted_descriptors_are_a_limit(void **unused) {
    (void)unused;
    struct rlimit limit, low;
    getrlimit(RLIMIT_NOFILE, &limit);
    pot_reader *reader = reader_on(data_path, 3, 1, NULL);
    int next = open("/dev/null", O_RDONLY);
    close(next);
    for (rlim_t more = 0; more < 2; more++) { /* none of both descriptors, or only the second one, is missing */
        uint32_t file = 77;
        low = (struct rlimit){(rlim_t)next + more, limit.rlim_max};
        setrlimit(RLIMIT_NOFILE, &low);
        pot_status status = pot_reader_open(&file, reader, data_path, &err);
        setrlimit(RLIMIT_NOFILE, &limit);
        assert_int_equal(status, POT_LIMIT);
        HAS(err.text, "raise the limit (ulimit -n");
        assert_int_equal(file, 77);
    }
    uint32_t file;
    MUST(pot_reader_open(&file, reader, data_path, &err));
    assert_int_equal(file, 1);
    assert_true(pot_reader_free(reader));
}

/* In a process of its own, where io_uring_setup ends in `error` as in a container. */
static int without_uring(int error) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 77;
    pot_reader *reader;
    pot_reader_options options = {.engine = POT_READ_ENGINE_URING, .path = POT_READ_PATH_DIRECT};
    if (pot_reader_create(&reader, &options, &err) != POT_LIMIT) return 1;
    if (!strstr(err.text, "io_uring cannot be used here: ") || !strstr(err.text, strerror(error))) return 2;
    options.engine = POT_READ_ENGINE_AUTO;
    uint32_t file;
    if (pot_reader_create(&reader, &options, &err) || strcmp(pot_reader_engine(reader), "pool") != 0) return 3;
    if (pot_reader_open(&file, reader, data_path, &err)) return 4;
    uint8_t *memory = pages(PIECE);
    pot_read read = piece(OFFSET, PIECE, memory);
    submit(reader, &read, false);
    if (pot_reader_take(reader, LONG_US) != &read || read.status) return 5;
    return pot_reader_free(reader) ? 0 : 6;
}

static void forbidden_uring_is_replaced_by_threads(void **unused) {
    (void)unused;
    static const int errors[] = {ENOSYS, EPERM, EACCES, ENOMEM};
    for (int i = 0; i < 4; i++) {
        int status;
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (!child) _exit(without_uring(errors[i]));
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        if (WEXITSTATUS(status) == 77) skip(); /* filters are forbidden too */
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(trouble_that_passes_is_not_seen),
        cmocka_unit_test(trouble_that_stays_is_named),
        cmocka_unit_test(wrong_checksum_names_both),
        cmocka_unit_test(refused_direct_reads_go_through_the_page_cache),
        cmocka_unit_test(slow_reads_show_in_their_time),
        cmocka_unit_test(read_that_hangs_keeps_nobody),
        cmocka_unit_test(file_that_shrinks_is_told_from_a_bad_disk),
        cmocka_unit_test(file_that_is_replaced_goes_on_or_is_told),
        cmocka_unit_test(what_cannot_be_opened_is_said),
        cmocka_unit_test(exhausted_descriptors_are_a_limit),
        cmocka_unit_test(forbidden_uring_is_replaced_by_threads),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
