/* The engine of the reader for where io_uring is not allowed: threads that pread, `depth` of them at a time.
 *
 * There are some threads more than that: a thread that checks what it has read lets another one read meanwhile, so that the device does
 * not wait for checksums. */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "common/mem.h"
#include "common/reader_internal.h"

enum { MOST_CHECKERS = 4 }; /* threads more than the depth; memory, not cores, bounds what they get done */

typedef struct pool {
    pthread_cond_t work; /* with the reader's lock, which guards the rest */
    uint32_t idle;       /* threads that wait for work */
    uint32_t reading;    /* threads that read; the others check */
} pool;

/* Sleeps until there is a read to begin; false at the end. */
static bool wait_for_job(pot_reader *reader, pot_job *job) {
    pool *p = reader->engine;
    bool have = false;
    pthread_mutex_lock(&reader->lock);
    while (!reader->quit && !(have = p->reading < reader->depth && pot_job_take(reader, job))) {
        p->idle++;
        pthread_cond_wait(&p->work, &reader->lock);
        p->idle--;
    }
    p->reading += have;
    pthread_mutex_unlock(&reader->lock);
    return have;
}

/* The bytes are there: another thread may read while this one checks. */
static void landed(pot_reader *reader) {
    pool *p = reader->engine;
    pthread_mutex_lock(&reader->lock);
    p->reading--;
    if (p->idle && (reader->urgent.first || reader->normal.first)) pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&reader->lock);
}

static void read_it(pot_reader *reader, pot_job *job) {
    while (pot_job_next(reader, job)) {
        ssize_t n = pread(job->fd, job->into, job->bytes, (off_t)job->offset);
        pot_job_result(reader, job, n < 0 ? -errno : n);
    }
}

static void *run(void *argument) {
    pot_reader *reader = argument;
    pot_job job;
    while (wait_for_job(reader, &job)) {
        read_it(reader, &job);
        landed(reader);
        while (!pot_job_finish(reader, &job)) read_it(reader, &job);
    }
    pot_reader_thread_ends(reader);
    return NULL;
}

static void wake(pot_reader *reader, uint32_t n) {
    pool *p = reader->engine;
    if (!p) return; /* it was never started */
    if (reader->quit || n >= p->idle) {
        pthread_cond_broadcast(&p->work);
    } else {
        while (n--) pthread_cond_signal(&p->work);
    }
}

static void free_pool(pot_reader *reader) {
    pool *p = reader->engine;
    if (!p) return;
    pthread_cond_destroy(&p->work);
    pot_free(p);
    reader->engine = NULL;
}

static pot_status start(pot_reader *reader, pot_err *err) {
    pool *p = pot_alloc(sizeof *p);
    if (!p) return pot_fail(err, POT_NO_MEMORY, "no memory to read files with");
    pthread_cond_init(&p->work, NULL);
    reader->engine = p;
    uint32_t wanted = reader->depth + (reader->depth < MOST_CHECKERS ? reader->depth : MOST_CHECKERS), i = 0;
    int error = 0;
    while (i < wanted && !(error = pot_reader_thread_start(reader, run, reader))) i++;
    if (i == 0)
        return pot_fail(err, POT_LIMIT, "no thread to read files with can be started: %s (ulimit -u)", strerror(error));
    if (i < reader->depth) reader->depth = i; /* fewer do as well, only slower */
    return POT_OK;
}

const pot_reader_ops pot_reader_pool = {"pool", 8, start, wake, free_pool};
