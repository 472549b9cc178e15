/* Past the page cache or through it?  Which is faster depends on the file system, the device and the kernel, so it is tried: pieces
 * from all over the file, the same number of bytes or the same time on either path, once in a reader's life. */
#include <fcntl.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/reader_internal.h"

static const char module[] = "common.reader";

enum {
    PIECE_BYTES = 512 << 10,
    MOST_PIECES = 64,            /* on one path */
    LEAST_FILE_BYTES = 64 << 20, /* smaller files are read so soon that it does not matter */
    MOST_US = 20000,             /* on one path; then what is in flight is waited for */
    MOST_WAIT_US = 1000000,      /* for one piece: a disk that hangs is not for here to find out */
    BUFFERS = 16
};

typedef struct measurement {
    pot_read reads[BUFFERS];
    pot_slab slab;
    uint32_t file;
    uint64_t places; /* pieces that the file has */
    uint64_t place;  /* the next one */
} measurement;

/* Steps of about the golden section go all over the file without coming back soon. */
static uint64_t next_offset(measurement *m) {
    m->place = (m->place + m->places * 618 / 1000 + 1) % m->places;
    return m->place * PIECE_BYTES;
}

static void submit_one(pot_reader *reader, measurement *m, pot_read *read) {
    read->offset = next_offset(m);
    /* What is in the page cache already would make that path look fast. */
    (void)posix_fadvise(reader->files[m->file]->cached_fd, (off_t)read->offset, PIECE_BYTES, POSIX_FADV_DONTNEED);
    pot_reader_submit(reader, &read, 1, false);
}

/* Bytes per microsecond; 0 when it failed. */
static double rate(pot_reader *reader, measurement *m) {
    uint32_t begun = 0, ended = 0, most = reader->depth < BUFFERS ? reader->depth : BUFFERS;
    bool failed = false;
    uint64_t start = pot_now_us();
    while (begun < most) submit_one(reader, m, &m->reads[begun++]);
    while (ended < begun) {
        pot_read *read = pot_reader_take(reader, MOST_WAIT_US);
        if (!read) return 0;
        ended++;
        failed = failed || read->status;
        if (!failed && begun < MOST_PIECES && pot_now_us() - start < MOST_US) {
            submit_one(reader, m, read);
            begun++;
        }
    }
    uint64_t us = pot_now_us() - start;
    return failed ? 0 : (double)PIECE_BYTES * ended / (double)(us ? us : 1);
}

/* False when memory is short. */
static bool prepare(measurement *m, const pot_reader_file *file, uint32_t number) {
    if (pot_slab_create(&m->slab, (size_t)BUFFERS * PIECE_BYTES, "measuring the disk", NULL)) return false;
    memset(m->slab.base, 1, m->slab.bytes); /* the first touch of a page must not be measured */
    m->file = number;
    m->places = file->bytes / PIECE_BYTES;
    for (uint32_t i = 0; i < BUFFERS; i++)
        m->reads[i] = (pot_read){.file = number, .bytes = PIECE_BYTES, .into = m->slab.base + (size_t)i * PIECE_BYTES};
    return true;
}

/* Reads that hang are left to themselves: they will write to the memory if they go on, and pot_reader_take must know them. */
static void leave_behind(pot_reader *reader, measurement *m) {
    for (uint32_t i = 0; i < BUFFERS; i++) m->reads[i].user = reader;
    reader->pending = 0;
}

void pot_reader_measure(pot_reader *reader, uint32_t number) {
    const pot_reader_file *file = reader->files[number];
    if (file->bytes < LEAST_FILE_BYTES || file->direct_fd < 0 || reader->pending) return;
    measurement *m = pot_alloc(sizeof *m);
    if (!m || !prepare(m, file, number)) {
        pot_free(m); /* another file may come; until then past the cache */
        return;
    }
    reader->unmeasured = false;
    double direct = rate(reader, m), cached = 0;
    if (!reader->pending) {
        atomic_store(&reader->cached, true);
        cached = rate(reader, m);
    }
    if (!reader->pending) { /* before and after: others use the disk too, and what passes must not look like the disk */
        atomic_store(&reader->cached, false);
        double again = rate(reader, m);
        if (again > direct) direct = again;
    }
    /* The page cache costs a core and memory that others want: it must be clearly faster. */
    bool through = cached > 1.5 * direct;
    atomic_store(&reader->cached, through);
    POT_LOG(POT_LOG_DEBUG, module, "%s: %.2f GB/s past the page cache, %.2f through it: read %s it", file->path,
            direct / 1e3, cached / 1e3, through ? "through" : "past");
    if (reader->pending) {
        leave_behind(reader, m);
        return;
    }
    pot_slab_free(&m->slab);
    pot_free(m);
}
