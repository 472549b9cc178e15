/* What the reader (common/reader.h) gets from a disk, beside a plain loop that does nothing but read, as CSV.
 *
 *   bench_reader FILE [GiB] >bench/results/HOST/reader.csv      (a file much larger than any cache of the disk; or its first GiB)
 *
 * `plain` is io_uring with O_DIRECT, as many reads in flight, from the same file in the same kind of order, and nothing is done with
 * what comes.  The reader checks XXH3 of each piece except where `checksums` says none.  All read into the same memory, which is larger
 * than a cache.  They take turns in an order that is drawn for each round, because disks change their mind within seconds; `fraction`
 * is the median over the rounds of the rate divided by plain's in the same round.  No piece is read twice before all have been.
 * `cpu_ms_per_gb` is the time of all threads of the process. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <liburing.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/mem.h"
#include "common/reader.h"

enum { ROUNDS = 9, ROUND_BYTES = 192 << 20, MOST_DEPTH = 32, BUFFERS = 2 * MOST_DEPTH, WAIT_US = 30000000 };

static const uint32_t depths[] = {1, 2, 4, 8, 16, 32}, sizes[] = {612 * 4096, 1 << 20};

typedef struct way {
    const char *engine, *path;
    pot_read_engine reader_engine;
    pot_read_path reader_path;
    bool checked;
} way;

static const way ways[] = {{"plain", "direct", POT_READ_ENGINE_AUTO, POT_READ_PATH_DIRECT, false},
                           {"io_uring", "direct", POT_READ_ENGINE_URING, POT_READ_PATH_DIRECT, false},
                           {"io_uring", "direct", POT_READ_ENGINE_URING, POT_READ_PATH_DIRECT, true},
                           {"pool", "direct", POT_READ_ENGINE_POOL, POT_READ_PATH_DIRECT, true},
                           {"io_uring", "cached", POT_READ_ENGINE_URING, POT_READ_PATH_CACHED, true},
                           {"pool", "cached", POT_READ_ENGINE_POOL, POT_READ_PATH_CACHED, true}};
enum { WAYS = sizeof ways / sizeof *ways };

/* The pieces of one size: in an order without pattern, with their checksums. */
typedef struct piece_list {
    const char *path;
    uint32_t bytes, n, next;
    uint64_t *checksums;
    uint32_t *order;
    uint8_t *memory; /* BUFFERS pieces */
} piece_list;

static uint32_t next_piece(piece_list *list) {
    uint32_t piece = list->order[list->next];
    list->next = (list->next + 1) % list->n;
    return piece;
}

static bool fail(const char *what, const char *why) {
    fprintf(stderr, "bench_reader: %s: %s\n", what, why);
    return false;
}

static uint64_t draw(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* ---- the plain loop ------------------------------------------------------------------------------------------------- */

static void ask(struct io_uring *ring, int fd, piece_list *list, uint32_t buffer) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
    uint64_t offset = (uint64_t)next_piece(list) * list->bytes;
    io_uring_prep_read(sqe, fd, list->memory + (size_t)buffer * list->bytes, list->bytes, offset);
    io_uring_sqe_set_data64(sqe, buffer);
}

static bool loop(struct io_uring *ring, int fd, piece_list *list, uint32_t depth, uint32_t pieces) {
    uint32_t begun = 0, ended = 0, unused[BUFFERS];
    for (uint32_t i = 0; i < BUFFERS; i++) unused[i] = i;
    for (; begun < depth && begun < pieces; begun++) ask(ring, fd, list, unused[begun]);
    while (ended < pieces) {
        struct io_uring_cqe *cqe;
        int n = io_uring_submit_and_wait(ring, 1);
        if (n < 0 && n != -EINTR) return fail("io_uring", strerror(-n));
        while (!io_uring_peek_cqe(ring, &cqe)) {
            if (cqe->res != (int)list->bytes) return fail(list->path, "a read was short or failed");
            unused[ended++ % BUFFERS] = (uint32_t)io_uring_cqe_get_data64(cqe);
            io_uring_cqe_seen(ring, cqe);
            if (begun < pieces) ask(ring, fd, list, unused[begun++ % BUFFERS]);
        }
    }
    return true;
}

static bool read_plain(uint64_t *us, piece_list *list, uint32_t depth, uint32_t pieces) {
    struct io_uring ring;
    int fd = open(list->path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0) return fail(list->path, strerror(errno));
    int error = io_uring_queue_init(depth, &ring, 0);
    if (error) {
        close(fd);
        return fail("io_uring", strerror(-error));
    }
    uint64_t start = pot_now_us();
    bool good = loop(&ring, fd, list, depth, pieces);
    *us = pot_now_us() - start;
    io_uring_queue_exit(&ring);
    close(fd);
    return good;
}

/* ---- the reader ----------------------------------------------------------------------------------------------------- */

static void submit(pot_reader *reader, piece_list *list, pot_read *read) {
    uint32_t piece = next_piece(list);
    read->offset = (uint64_t)piece * list->bytes;
    read->checksum = list->checksums[piece];
    pot_reader_submit(reader, &read, 1, false);
}

/* Twice the depth is submitted at a time: an owner that has more to read than may be in flight. */
static bool drive(pot_reader *reader, const way *w, uint32_t file, piece_list *list, uint32_t depth, uint32_t pieces) {
    static pot_read reads[BUFFERS];
    pot_read *unused[BUFFERS];
    pot_err err;
    uint32_t begun = 0;
    for (uint32_t i = 0; i < BUFFERS; i++) {
        unused[i] = &reads[i];
        reads[i] = (pot_read){.file = file,
                              .bytes = list->bytes,
                              .into = list->memory + (size_t)i * list->bytes,
                              .has_checksum = w->checked,
                              .err = &err};
    }
    for (; begun < 2 * depth && begun < pieces; begun++) submit(reader, list, unused[begun]);
    for (uint32_t ended = 0; ended < pieces;) {
        pot_read *read = pot_reader_take(reader, WAIT_US);
        if (!read) return fail(list->path, "a read hangs");
        if (read->status) return fail("reader", err.text);
        unused[ended++ % BUFFERS] = read;
        if (begun < pieces) submit(reader, list, unused[begun++ % BUFFERS]);
    }
    return true;
}

static bool read_by(uint64_t *us, const way *w, piece_list *list, uint32_t depth, uint32_t pieces) {
    pot_reader *reader;
    pot_err err;
    uint32_t file;
    pot_reader_options options = {.engine = w->reader_engine, .path = w->reader_path, .depth = depth};
    if (pot_reader_create(&reader, &options, &err)) return fail("reader", err.text);
    bool good = !pot_reader_open(&file, reader, list->path, &err) || fail("reader", err.text);
    uint64_t start = pot_now_us();
    good = good && drive(reader, w, file, list, depth, pieces);
    *us = pot_now_us() - start;
    if (good && strcmp(pot_reader_path(reader), w->path) != 0)
        good = fail(list->path, "its file system cannot read past the page cache");
    return pot_reader_free(reader) && good;
}

/* ---- one case ------------------------------------------------------------------------------------------------------- */

static double cpu_ms(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-3;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

typedef struct figures {
    double gbps[ROUNDS], fraction[ROUNDS], cpu[ROUNDS];
} figures;

static void print(const way *w, const piece_list *list, uint32_t depth, figures *f) {
    qsort(f->gbps, ROUNDS, sizeof(double), compare);
    qsort(f->fraction, ROUNDS, sizeof(double), compare);
    qsort(f->cpu, ROUNDS, sizeof(double), compare);
    printf("%s,%s,%s,%u,%u,%d,%.3f,%.4f,%.4f,%.4f,%.1f\n", w->engine, w->path, w->checked ? "xxh3" : "none",
           list->bytes, depth, ROUNDS, f->gbps[ROUNDS / 2], f->fraction[ROUNDS / 2], f->fraction[1],
           f->fraction[ROUNDS - 2], f->cpu[ROUNDS / 2]);
    fflush(stdout);
}

/* An order without pattern: what one leaves behind (a busy disk, pages to be freed) must not always meet the same other one. */
static void draw_order(int order[WAYS], int first, int end) {
    static uint64_t state = 88172645463325252u;
    int n = 0;
    order[n++] = 0;
    for (int w = first; w < end; w++) order[n++] = w;
    for (int i = n; i > 1; i--) {
        int other = (int)(draw(&state) % (uint64_t)i), w = order[i - 1];
        order[i - 1] = order[other];
        order[other] = w;
    }
}

/* The ways from `first` to `end` beside plain. */
static bool measure(piece_list *list, uint32_t depth, int first, int end) {
    static figures all[WAYS];
    uint32_t pieces = ROUND_BYTES / list->bytes;
    for (int round = 0; round < ROUNDS; round++) {
        int order[WAYS];
        draw_order(order, first, end);
        for (int i = 0; i <= end - first; i++) {
            int w = order[i];
            uint64_t us;
            double before = cpu_ms(), gb = (double)pieces * list->bytes / 1e9;
            if (!(w ? read_by(&us, &ways[w], list, depth, pieces) : read_plain(&us, list, depth, pieces))) return false;
            all[w].cpu[round] = (cpu_ms() - before) / gb;
            all[w].gbps[round] = gb / ((double)us * 1e-6);
        }
        for (int i = 0; i <= end - first; i++) {
            int w = order[i];
            all[w].fraction[round] = all[w].gbps[round] / all[0].gbps[round];
        }
    }
    if (first == 1) print(&ways[0], list, depth, &all[0]);
    for (int w = first; w < end; w++) print(&ways[w], list, depth, &all[w]);
    return true;
}

/* Apart, because the page cache is so slow that the disk has long been idle when the next one begins. */
static bool measure_both_paths(piece_list *list, uint32_t depth) {
    int cached = 1;
    while (ways[cached].reader_path == POT_READ_PATH_DIRECT) cached++;
    return measure(list, depth, 1, cached) && measure(list, depth, cached, WAYS);
}

/* ---- all of it ------------------------------------------------------------------------------------------------------ */

static void shuffle(piece_list *list) {
    uint64_t state = 88172645463325252u;
    for (uint32_t i = 0; i < list->n; i++) list->order[i] = i;
    for (uint32_t i = list->n; i > 1; i--) {
        uint32_t other = (uint32_t)(draw(&state) % i), piece = list->order[i - 1];
        list->order[i - 1] = list->order[other];
        list->order[other] = piece;
    }
}

static bool compute_checksums(piece_list *list) {
    int fd = open(list->path, O_RDONLY | O_DIRECT | O_CLOEXEC);
    if (fd < 0) return fail(list->path, strerror(errno));
    bool good = true;
    for (uint32_t i = 0; i < list->n && good; i++) {
        ssize_t n = pread(fd, list->memory, list->bytes, (off_t)((uint64_t)i * list->bytes));
        good = n == (ssize_t)list->bytes || fail(list->path, "cannot be read whole");
        list->checksums[i] = pot_hash64(list->memory, list->bytes);
    }
    close(fd);
    return good;
}

static bool measure_size(const char *path, uint64_t file_bytes, uint32_t bytes) {
    piece_list list = {.path = path, .bytes = bytes, .n = (uint32_t)(file_bytes / bytes)};
    pot_slab slab = {0};
    pot_err err;
    bool good = list.n >= BUFFERS || fail(path, "is too small to measure with");
    if (good && pot_slab_create(&slab, (size_t)BUFFERS * bytes, "pieces", &err)) good = fail("memory", err.text);
    list.memory = slab.base;
    list.checksums = pot_alloc_array(list.n, sizeof *list.checksums);
    list.order = pot_alloc_array(list.n, sizeof *list.order);
    if (good && (!list.checksums || !list.order)) good = fail(path, "no memory for its checksums");
    if (good) {
        memset(slab.base, 1, slab.bytes);
        shuffle(&list);
        good = compute_checksums(&list);
    }
    for (size_t d = 0; d < sizeof depths / sizeof *depths && good; d++) good = measure_both_paths(&list, depths[d]);
    pot_free(list.checksums);
    pot_free(list.order);
    pot_slab_free(&slab);
    return good;
}

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: bench_reader FILE [GiB]\n");
        return 2;
    }
    int fd = open(argv[1], O_RDONLY | O_CLOEXEC);
    off_t end = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (end < 0) return !fail(argv[1], strerror(errno));
    close(fd);
    uint64_t bytes = (uint64_t)end, most = argc > 2 ? strtoull(argv[2], NULL, 10) << 30 : UINT64_MAX;
    if (bytes > most) bytes = most;
    printf("# command: bench_reader FILE, of %.1f GiB; %d rounds of %d MiB each\n", (double)bytes / 0x1p30, ROUNDS,
           ROUND_BYTES >> 20);
    printf("engine,path,checksums,piece_bytes,depth,rounds,gbps,fraction,fraction_low,fraction_high,cpu_ms_per_gb\n");
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        if (!measure_size(argv[1], bytes, sizes[s])) return 1;
    return 0;
}
