/* Reading many pieces of files into memory, several at a time, while the caller computes.
 *
 * Two engines with one behaviour: io_uring, and a pool of threads that pread (containers often forbid io_uring).  Two paths: past
 * the page cache (O_DIRECT), or through it, whose pages are then dropped.  Every combination gives the same bytes; `auto` tries
 * io_uring first, and measures both paths for a moment on the first file.
 *
 * Reads begin in the order of submission, at most `depth` in flight, and finish in any order.  Short reads and EINTR are gone on with
 * here.  A piece that does not have its checksum is read once more, past any cache, before it is a fault.  Every fault names the file,
 * the place and what to do.  One owner thread submits and takes; checksums are computed by the reader's own thread(s).
 */
#ifndef POT_COMMON_READER_H
#define POT_COMMON_READER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"

enum { POT_READ_ALIGN = 4096 };

typedef enum pot_read_engine { POT_READ_ENGINE_AUTO, POT_READ_ENGINE_URING, POT_READ_ENGINE_POOL } pot_read_engine;
typedef enum pot_read_path { POT_READ_PATH_AUTO, POT_READ_PATH_DIRECT, POT_READ_PATH_CACHED } pot_read_path;

/* What a test puts between the reader and the file: called by the reader's threads before each attempt, may sleep (with io_uring one
 * thread makes all attempts, so all of them wait then).  `bytes` may be made smaller (a short read); an errno above 0 is what the
 * attempt ends with.  `after` may change what was read. */
typedef struct pot_read_faults {
    void *context;
    int (*before)(void *context, const char *path, uint64_t offset, uint32_t *bytes);
    void (*after)(void *context, const char *path, uint64_t offset, uint8_t *data, uint32_t bytes);
} pot_read_faults;

typedef struct pot_reader_options {
    pot_read_engine engine;
    pot_read_path path;
    /* 0 = 8, which keeps a disk busy with pieces of about a MiB or more; an urgent piece waits for those that have begun. */
    uint32_t depth;
    uint64_t patience_us;          /* of pot_reader_free with reads that hang; 0 = 10 s */
    const pot_read_faults *faults; /* NULL in the product */
} pot_reader_options;

/* One piece.  The caller owns it and must leave it and its memory alone between submit and take.  `offset`, `bytes` and `into` are
 * multiples of POT_READ_ALIGN.  It may reach into the incomplete block at the end of a file: zeros follow the end then, for the
 * checksum too. */
typedef struct pot_read {
    uint32_t file; /* as pot_reader_open numbered it */
    uint32_t bytes;
    uint64_t offset;
    uint8_t *into;
    bool has_checksum;
    uint64_t checksum; /* pot_hash64 of the bytes */
    void *user;
    /* The result. */
    pot_status status;
    pot_err *err;          /* where to put the sentence of a fault; may be NULL */
    uint64_t us;           /* from the start of the read to its end */
    struct pot_read *next; /* the reader's */
} pot_read;

typedef struct pot_reader pot_reader;
pot_status pot_reader_create(pot_reader **out, const pot_reader_options *options, pot_err *err);
/* Waits for what is in flight and drops what is queued; NULL is fine.  False when reads still hang after `patience_us`: the kernel
 * may yet write to their memory, so neither that nor the pot_reads may be freed or used any more. */
bool pot_reader_free(pot_reader *reader);

/* A file to read from, open until pot_reader_free.  LIMIT when file descriptors are exhausted, with what to do. */
pot_status pot_reader_open(uint32_t *file, pot_reader *reader, const char *path, pot_err *err);
uint64_t pot_reader_file_bytes(const pot_reader *reader, uint32_t file); /* when it was opened */
const char *pot_reader_file_path(const pot_reader *reader, uint32_t file);

/* Never waits; any number may be queued.  `urgent` ones go before all others that are queued but not begun; among themselves they keep
 * the order of submission. */
void pot_reader_submit(pot_reader *reader, pot_read *const reads[], uint32_t n, bool urgent);
/* A finished read, in the order of finishing, or NULL when none finishes within `timeout_us` (0 = look only, which costs next to
 * nothing) or none is pending. */
pot_read *pot_reader_take(pot_reader *reader, uint64_t timeout_us);
uint32_t pot_reader_pending(const pot_reader *reader); /* submitted and not yet taken */
/* Takes a queued read back before it has begun; false when it is too late, and then it will come by take. */
bool pot_reader_cancel(pot_reader *reader, pot_read *read);

/* In words, for reports: "io_uring", "direct". */
const char *pot_reader_engine(const pot_reader *reader);
const char *pot_reader_path(const pot_reader *reader);
uint32_t pot_reader_depth(const pot_reader *reader);

#endif
