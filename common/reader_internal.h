/* What the parts of the reader share: the queue (reader.c), one read with its attempts (reader_job.c), and the engines that carry
 * attempts out (reader_uring.c, reader_pool.c).
 *
 * A queued pot_read becomes a job when an engine has room for it.  An engine asks pot_job_next for the job's next attempt, makes it,
 * and tells pot_job_result; that goes on until the bytes have landed or there is a fault; then pot_job_finish checks, and hands the
 * read to the owner or wants it read again. */
#ifndef POT_COMMON_READER_INTERNAL_H
#define POT_COMMON_READER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

#include "common/reader.h"

enum {
    POT_READER_MOST_DEPTH = 1024,
    POT_READER_MOST_ATTEMPT = 1 << 30, /* bytes; the kernel cuts one read near 2 GiB */
    POT_READER_MOST_IDLE = 1000 /* attempts in a row that brought nothing (EINTR, EAGAIN) before that is a fault */
};

/* Written by pot_reader_open before the first read of it, then only `no_direct` changes. */
typedef struct pot_reader_file {
    char *path;
    int cached_fd, direct_fd; /* direct_fd is -1 where the file system knows no O_DIRECT */
    uint64_t bytes;
    dev_t device;
    ino_t inode;
    atomic_bool no_direct; /* a read past the page cache was refused */
} pot_reader_file;

typedef struct pot_reader_list {
    pot_read *first, **end; /* `end` points at the last one's `next`, or at `first` */
} pot_reader_list;

typedef struct pot_job {
    pot_read *read;
    pot_reader_file *file;
    uint64_t began_us;
    uint64_t first_checksum; /* of the first reading, when `again` */
    uint32_t want, done;     /* bytes that the file has of it; bytes that have landed */
    uint32_t idle;           /* attempts in a row without a byte */
    bool again;              /* it is the second reading */
    pot_status status;
    /* The attempt that pot_job_next prepared.  `keep` is what a fault leaves of it. */
    int fd;
    uint32_t bytes, keep;
    uint8_t *into;
    uint64_t offset;
    bool direct;
    struct pot_job *next; /* the engine's */
} pot_job;

typedef struct pot_reader_ops {
    const char *name;
    uint32_t depth; /* when none is asked for */
    /* Starts the threads.  May make reader->depth smaller. */
    pot_status (*start)(pot_reader *reader, pot_err *err);
    void (*wake)(pot_reader *reader, uint32_t n); /* n reads were queued, or `quit` is set; called with the lock held */
    void (*free)(pot_reader *reader);             /* after all threads have ended */
} pot_reader_ops;
extern const pot_reader_ops pot_reader_uring, pot_reader_pool;

struct pot_reader {
    const pot_reader_ops *ops;
    void *engine; /* the engine's own */
    const pot_read_faults *faults;
    uint32_t depth;
    uint64_t patience_us;
    atomic_bool cached;     /* read through the page cache; where not, files without O_DIRECT still are */
    atomic_bool abandoned;  /* the owner has gone and what is in flight must not be touched any more */
    atomic_uint not_direct; /* files that are read through the page cache though `cached` is false */
    bool unmeasured;        /* the owner's: the path is still to be chosen */

    pthread_mutex_t lock; /* of all until the next comment */
    pot_reader_list urgent, normal;
    bool quit;
    uint32_t threads; /* that run */
    uint32_t n_handles;
    pthread_t *handles;      /* room for 2 * depth */
    pthread_cond_t ended;    /* threads has become smaller */
    pot_reader_file **files; /* the array is replaced only under the lock; the owner reads it without */
    uint32_t n_files, room;

    _Atomic(pot_read *) done; /* finished ones, the last one first: threads push, the owner takes all */
    atomic_uint finished;     /* changes after each push; the owner sleeps on it */
    atomic_bool asleep;

    pot_read *taken; /* the owner's: taken from `done`, the oldest first */
    uint32_t pending;
};

/* The next queued read as a job; false when none is queued.  With the lock held. */
bool pot_job_take(pot_reader *reader, pot_job *job);
/* Prepares the next attempt.  False when there is nothing more to do than pot_job_finish. */
bool pot_job_next(pot_reader *reader, pot_job *job);
/* `result`: bytes, or -errno. */
void pot_job_result(pot_reader *reader, pot_job *job, int64_t result);
/* Checks and hands over; false when it is to be read again from pot_job_next on. */
bool pot_job_finish(pot_reader *reader, pot_job *job);

/* For the engines: starts a thread that calls pot_reader_thread_ends last.  An errno, or 0. */
int pot_reader_thread_start(pot_reader *reader, void *(*run)(void *), void *argument);
void pot_reader_thread_ends(pot_reader *reader);
/* Makes the choice between both paths when this file is good for it. */
void pot_reader_measure(pot_reader *reader, uint32_t file);
void pot_reader_hand_over(pot_reader *reader, pot_read *read);

#endif
