/* The reader: both engines on both paths give the same bytes in the promised order. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/mem.h"
#include "tests/reader_rig.h"

/* ---- what is read --------------------------------------------------------------------------------------------------- */

enum { MANY = 120, PIECE = 64 << 10, OFFSET = 40 * POT_READ_ALIGN };

static void read_at_random(int way, uint32_t depth) {
    uint8_t *memory = pages((size_t)MANY * MOST_PIECE);
    pot_read reads[MANY];
    pot_reader *reader = reader_on(data_path, way, depth, NULL);
    assert_int_equal(pot_reader_depth(reader), depth);
    assert_int_equal(pot_reader_file_bytes(reader, 0), FILE_BYTES);
    assert_string_equal(pot_reader_file_path(reader, 0), data_path);
    for (int i = 0; i < MANY; i++) {
        uint32_t bytes = POT_READ_ALIGN * (uint32_t)(1 + draw(MOST_PIECE / POT_READ_ALIGN));
        uint64_t offset = POT_READ_ALIGN * draw((PADDED_BYTES - bytes) / POT_READ_ALIGN + 1);
        if (i == 0) offset = PADDED_BYTES - bytes; /* with the incomplete block */
        memset(memory + (size_t)i * MOST_PIECE, 0xEE, bytes);
        reads[i] = piece(offset, bytes, memory + (size_t)i * MOST_PIECE);
        reads[i].has_checksum = draw(2);
        reads[i].err = &err;
        submit(reader, &reads[i], draw(4) == 0);
    }
    assert_int_equal(pot_reader_pending(reader), MANY);
    for (int i = 0; i < MANY; i++) {
        pot_read *read = take(reader);
        MUST(read->status);
        if (memcmp(read->into, content + read->offset, read->bytes) != 0)
            fail_msg("%s, depth %u: %u bytes at %llu differ", ways[way].name, depth, read->bytes,
                     (unsigned long long)read->offset);
        read->bytes = 0; /* it must not come twice */
    }
    for (int i = 0; i < MANY; i++) assert_int_equal(reads[i].bytes, 0);
    assert_null(pot_reader_take(reader, LONG_US));
    assert_int_equal(pot_reader_pending(reader), 0);
    assert_true(pot_reader_free(reader));
    munmap(memory, (size_t)MANY * MOST_PIECE);
}

static void every_way_gives_the_same_bytes(void **unused) {
    (void)unused;
    static const uint32_t depths[] = {1, 2, 7, 33};
    EACH_WAY
    for (size_t d = 0; d < 4; d++) read_at_random(way, depths[d]);
}

/* The owner looks without waiting, as between pieces of computing, and submits the piece again at once. */
static void thousands_of_reads_are_each_taken_once(void **unused) {
    (void)unused;
    enum { N = 64, ROUNDS = 4000 };
    uint8_t *memory = pages((size_t)N * POT_READ_ALIGN);
    EACH_WAY {
        pot_read reads[N], *all[N];
        pot_reader *reader = reader_on(data_path, way, 16, NULL);
        for (int i = 0; i < N; i++) {
            reads[i] = piece((uint64_t)i * POT_READ_ALIGN, POT_READ_ALIGN, memory + (size_t)i * POT_READ_ALIGN);
            all[i] = &reads[i];
        }
        pot_reader_submit(reader, all, N, false);
        int begun = N;
        for (int ended = 0; ended < ROUNDS;) {
            pot_read *read = pot_reader_take(reader, ended % 3 ? 0 : 100);
            if (!read) continue;
            ended++;
            assert_int_equal(read->status, POT_OK);
            uint64_t offset = POT_READ_ALIGN * draw(FILE_BYTES / POT_READ_ALIGN);
            *read = piece(offset, POT_READ_ALIGN, read->into);
            if (begun++ < ROUNDS) submit(reader, read, begun % 5 == 0);
        }
        assert_int_equal(pot_reader_pending(reader), 0);
        assert_true(pot_reader_free(reader));
    }
    munmap(memory, (size_t)N * POT_READ_ALIGN);
}

static void incomplete_block_ends_in_zeros_and_nothing_is_behind_it(void **unused) {
    (void)unused;
    uint8_t *memory = pages(2 * POT_READ_ALIGN);
    EACH_WAY {
        memset(memory, 0xEE, 2 * POT_READ_ALIGN);
        pot_read last = piece(PADDED_BYTES - POT_READ_ALIGN, POT_READ_ALIGN, memory);
        MUST(read_one(data_path, way, NULL, &last));
        assert_memory_equal(memory, content + FILE_BYTES - 1000, POT_READ_ALIGN);
        static const struct {
            uint64_t offset;
            uint32_t bytes;
        } behind[] = {{PADDED_BYTES - POT_READ_ALIGN, 2 * POT_READ_ALIGN},
                      {PADDED_BYTES, POT_READ_ALIGN},
                      {UINT64_MAX - POT_READ_ALIGN + 1, POT_READ_ALIGN}};
        for (int i = 0; i < 3; i++) {
            pot_read read = {.bytes = behind[i].bytes, .offset = behind[i].offset, .into = memory};
            char want[256];
            snprintf(want, sizeof want, "%s: %u bytes at %llu were asked for, the file ends at %d", data_path,
                     read.bytes, (unsigned long long)read.offset, FILE_BYTES);
            assert_int_equal(read_one(data_path, way, NULL, &read), POT_FORMAT);
            assert_string_equal(err.text, want);
        }
        pot_read nothing = {.into = memory};
        MUST(read_one(data_path, way, NULL, &nothing));
    }
    munmap(memory, 2 * POT_READ_ALIGN);
}

static void files_can_be_opened_while_others_are_read(void **unused) {
    (void)unused;
    enum { N = 40 };
    uint8_t *memory = pages((size_t)N * MOST_PIECE);
    EACH_WAY {
        pot_read reads[N];
        pot_reader *reader = reader_on(data_path, way, 4, NULL);
        for (uint32_t i = 0; i < N; i++) {
            reads[i] = piece((uint64_t)i * POT_READ_ALIGN, MOST_PIECE, memory + (size_t)i * MOST_PIECE);
            reads[i].file = i;
            submit(reader, &reads[i], false);
            uint32_t file;
            MUST(pot_reader_open(&file, reader, data_path, &err));
            assert_int_equal(file, i + 1);
        }
        for (int i = 0; i < N; i++) assert_int_equal(take(reader)->status, POT_OK);
        assert_true(pot_reader_free(reader));
    }
    munmap(memory, (size_t)N * MOST_PIECE);
}

/* ---- order ---------------------------------------------------------------------------------------------------------- */

static void urgent_ones_go_first_and_all_in_order(void **unused) {
    (void)unused;
    enum { N = 9 };
    uint8_t *memory = pages((size_t)N * POT_READ_ALIGN);
    EACH_WAY {
        gate g = GATE;
        pot_read_faults faults = {&g, pass, NULL};
        pot_reader *reader = reader_on(data_path, way, 1, &faults);
        pot_read reads[N];
        for (int i = 0; i < N; i++)
            reads[i] = piece((uint64_t)i * POT_READ_ALIGN, POT_READ_ALIGN, memory + (size_t)i * POT_READ_ALIGN);
        submit(reader, &reads[0], false);
        wait_until_begun(&g, 1);
        pot_read *normal[] = {&reads[1], &reads[2]}, *urgent[] = {&reads[4], &reads[5]};
        pot_reader_submit(reader, normal, 2, false);
        submit(reader, &reads[3], false);
        pot_reader_submit(reader, urgent, 2, true);
        submit(reader, &reads[6], true);
        submit(reader, &reads[7], false);
        submit(reader, &reads[8], true);
        assert_null(pot_reader_take(reader, 0));
        assert_null(pot_reader_take(reader, 1000));
        open_gate(&g);
        static const uint64_t order[N] = {0, 4, 5, 6, 8, 1, 2, 3, 7};
        for (int i = 0; i < N; i++) assert_int_equal(take(reader)->status, POT_OK);
        for (int i = 0; i < N; i++) assert_int_equal(g.offsets[i], order[i] * POT_READ_ALIGN);
        assert_true(pot_reader_free(reader));
    }
    munmap(memory, (size_t)N * POT_READ_ALIGN);
}

static void cancelled_ones_never_come(void **unused) {
    (void)unused;
    enum { N = 7 };
    uint8_t *memory = pages((size_t)N * POT_READ_ALIGN);
    EACH_WAY {
        gate g = GATE;
        pot_read_faults faults = {&g, pass, NULL};
        pot_reader *reader = reader_on(data_path, way, 1, &faults);
        pot_read reads[N];
        for (int i = 0; i < N; i++)
            reads[i] = piece((uint64_t)i * POT_READ_ALIGN, POT_READ_ALIGN, memory + (size_t)i * POT_READ_ALIGN);
        submit(reader, &reads[0], false);
        wait_until_begun(&g, 1);
        for (int i = 1; i < N - 1; i++) submit(reader, &reads[i], i == 2);
        assert_false(pot_reader_cancel(reader, &reads[0])); /* has begun */
        assert_true(pot_reader_cancel(reader, &reads[3]));  /* from the middle */
        assert_false(pot_reader_cancel(reader, &reads[3]));
        assert_true(pot_reader_cancel(reader, &reads[5])); /* the last one */
        assert_true(pot_reader_cancel(reader, &reads[2])); /* the only urgent one */
        assert_int_equal(pot_reader_pending(reader), 3);
        submit(reader, &reads[6], false); /* the ends of both lists still hold */
        submit(reader, &reads[2], true);
        open_gate(&g);
        static const uint64_t order[] = {0, 2, 1, 4, 6};
        for (int i = 0; i < 5; i++) assert_int_equal(take(reader)->status, POT_OK);
        for (int i = 0; i < 5; i++) assert_int_equal(g.offsets[i], order[i] * POT_READ_ALIGN);
        assert_false(pot_reader_cancel(reader, &reads[1]));
        assert_null(pot_reader_take(reader, 0));
        assert_true(pot_reader_free(reader));
    }
    munmap(memory, (size_t)N * POT_READ_ALIGN);
}

typedef struct opener {
    gate *g;
    pot_reader *reader;
} opener;

static void *open_when_it_ends(void *argument) {
    const opener *o = argument;
    for (bool quit = false; !quit; usleep(100)) {
        pthread_mutex_lock(&o->reader->lock);
        quit = o->reader->quit;
        pthread_mutex_unlock(&o->reader->lock);
    }
    open_gate(o->g);
    return NULL;
}

static void free_drops_what_is_queued(void **unused) {
    (void)unused;
    enum { N = 50 };
    uint8_t *memory = pages((size_t)N * MOST_PIECE);
    EACH_WAY {
        gate g = GATE;
        pot_read_faults faults = {&g, pass, NULL};
        pot_reader *reader = reader_on(data_path, way, 2, &faults);
        pot_read reads[N];
        for (int i = 0; i < N; i++) {
            reads[i] = piece(0, MOST_PIECE, memory + (size_t)i * MOST_PIECE);
            submit(reader, &reads[i], false);
        }
        wait_until_begun(&g, 1);
        opener o = {&g, reader};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, NULL, open_when_it_ends, &o), 0);
        assert_true(pot_reader_free(reader));
        pthread_join(thread, NULL);
        assert_in_range(g.begun, 1, 2);
    }
    assert_true(pot_reader_free(NULL));
    munmap(memory, (size_t)N * MOST_PIECE);
}

static void no_more_than_depth_are_in_flight(void **unused) {
    (void)unused;
    enum { N = 30, DEPTH = 5 };
    uint8_t *memory = pages((size_t)N * POT_READ_ALIGN);
    EACH_WAY {
        gate g = GATE;
        pot_read_faults faults = {&g, pass, leave};
        bool threads = ways[way].engine == POT_READ_ENGINE_POOL;
        pot_reader *reader = reader_on(data_path, way, DEPTH, &faults);
        pot_read reads[N], *all[N];
        for (int i = 0; i < N; i++) {
            reads[i] = piece((uint64_t)i * POT_READ_ALIGN, POT_READ_ALIGN, memory + (size_t)i * POT_READ_ALIGN);
            all[i] = &reads[i];
        }
        pot_reader_submit(reader, all, N, false);
        wait_until_begun(&g, threads ? DEPTH : 1);
        open_gate(&g);
        for (int i = 0; i < N; i++) assert_int_equal(take(reader)->status, POT_OK);
        assert_true(pot_reader_free(reader));
        assert_int_equal(g.most_inside, DEPTH);
        assert_int_equal(g.begun, N);
        for (uint32_t i = 0; i < N && !threads; i++) assert_int_equal(g.offsets[i], i * POT_READ_ALIGN);
    }
    munmap(memory, (size_t)N * POT_READ_ALIGN);
}

static void failing_allocations_leave_nothing_behind(void **unused) {
    (void)unused;
    EACH_WAY
    for (uint64_t nth = 1;; nth++) {
        pot_reader *reader = NULL;
        pot_reader_options options = {.engine = ways[way].engine, .depth = 3};
        pot_mem_fail_at(nth);
        pot_status status = pot_reader_create(&reader, &options, &err);
        pot_mem_fail_at(0);
        if (!status) {
            assert_true(pot_reader_free(reader));
            assert_true(nth > 3);
            break;
        }
        assert_int_equal(status, POT_NO_MEMORY);
        assert_null(reader);
    }
    pot_reader *reader = reader_on(data_path, 3, 1, NULL);
    for (uint32_t n = 1; n < 40; n++) /* past the first room for files */
        for (uint64_t nth = 1;; nth++) {
            uint32_t file = 77;
            pot_mem_fail_at(nth);
            pot_status status = pot_reader_open(&file, reader, data_path, &err);
            pot_mem_fail_at(0);
            if (!status) {
                assert_int_equal(file, n);
                assert_true(nth > 2);
                break;
            }
            assert_int_equal(status, POT_NO_MEMORY);
            assert_int_equal(file, 77);
        }
    assert_true(pot_reader_free(reader));
}

/* ---- the page cache ------------------------------------------------------------------------------------------------- */

static size_t pages_in_cache(const char *path, size_t bytes) {
    int fd = open(path, O_RDONLY);
    uint8_t *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    size_t n = (bytes + POT_READ_ALIGN - 1) / POT_READ_ALIGN, in = 0;
    unsigned char *seen = malloc(n);
    assert_true(fd >= 0 && map != MAP_FAILED && seen);
    assert_int_equal(mincore(map, bytes, seen), 0);
    for (size_t i = 0; i < n; i++) in += seen[i] & 1;
    free(seen);
    munmap(map, bytes);
    close(fd);
    return in;
}

static void pages_that_were_read_are_dropped(void **unused) {
    (void)unused;
    int fd = open(data_path, O_RDONLY);
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    close(fd);
    if (pages_in_cache(data_path, FILE_BYTES) > 64) skip(); /* a file system in memory */
    uint8_t *memory = pages(MOST_PIECE);
    EACH_WAY {
        pot_reader *reader = reader_on(data_path, way, 4, NULL);
        for (uint64_t at = 0; at < PADDED_BYTES; at += MOST_PIECE) {
            uint32_t bytes = PADDED_BYTES - at < MOST_PIECE ? (uint32_t)(PADDED_BYTES - at) : MOST_PIECE;
            pot_read read = piece(at, bytes, memory);
            submit(reader, &read, false);
            assert_int_equal(take(reader)->status, POT_OK);
        }
        assert_true(pot_reader_free(reader));
        assert_in_range(pages_in_cache(data_path, FILE_BYTES), 0, 64); /* of 1537 */
    }
    munmap(memory, MOST_PIECE);
}

static void path_is_measured_once_on_a_large_file(void **unused) {
    (void)unused;
    uint8_t *memory = pages(PIECE);
    /* Without extents, which is quick to make and quick to read. */
    write_file(other_path, content, FILE_BYTES);
    assert_int_equal(truncate(other_path, 200 << 20), 0);
    for (int engine = 0; engine < 2; engine++) {
        uint32_t file;
        pot_reader *reader;
        pot_reader_options options = {.engine = engine ? POT_READ_ENGINE_POOL : POT_READ_ENGINE_AUTO};
        MUST(pot_reader_create(&reader, &options, &err));
        MUST(pot_reader_open(&file, reader, data_path, &err));
        assert_true(reader->unmeasured); /* too small */
        uint64_t start = pot_now_us();
        MUST(pot_reader_open(&file, reader, other_path, &err));
        assert_true(pot_now_us() - start < 5000000);
        assert_true(!reader->unmeasured || !strcmp(pot_reader_path(reader), "cached"));
        assert_int_equal(pot_reader_pending(reader), 0);
        assert_null(pot_reader_take(reader, 0));
        pot_read read = piece(OFFSET, PIECE, memory);
        read.file = 1;
        submit(reader, &read, false);
        assert_int_equal(take(reader)->status, POT_OK);
        assert_true(pot_reader_free(reader));
    }
    munmap(memory, PIECE);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_way_gives_the_same_bytes),
        cmocka_unit_test(thousands_of_reads_are_each_taken_once),
        cmocka_unit_test(incomplete_block_ends_in_zeros_and_nothing_is_behind_it),
        cmocka_unit_test(files_can_be_opened_while_others_are_read),
        cmocka_unit_test(urgent_ones_go_first_and_all_in_order),
        cmocka_unit_test(cancelled_ones_never_come),
        cmocka_unit_test(free_drops_what_is_queued),
        cmocka_unit_test(no_more_than_depth_are_in_flight),
        cmocka_unit_test(failing_allocations_leave_nothing_behind),
        cmocka_unit_test(pages_that_were_read_are_dropped),
        cmocka_unit_test(path_is_measured_once_on_a_large_file),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
