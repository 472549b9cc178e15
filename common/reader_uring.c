/* The engine of the reader on io_uring: one thread that keeps `depth` reads with the kernel and checks what has come.
 *
 * The device must not wait for checksums.  So a turn of the loop takes what has come, puts new reads in its place, submits, and only
 * then checks one piece.  Pieces that wait to be checked keep their job, of which there are twice as many as the depth: when checking
 * is slower than the device, reading stops for it.
 *
 * The thread sleeps in the kernel, on completions.  A read of an eventfd is always among what it waits for; the owner writes to that
 * only when the thread has found the queue empty, so a busy reader costs the owner no system call. */
#include <errno.h>
#include <liburing.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "common/log.h"
#include "common/mem.h"
#include "common/reader_internal.h"

static const char module[] = "common.reader";

typedef struct uring {
    struct io_uring ring;
    bool open;
    int bell;           /* the eventfd */
    uint64_t rung;      /* where its reads go */
    bool listening;     /* a read of it is with the kernel */
    bool hungry;        /* guarded by the reader's lock: the queue was found empty, so ring */
    bool quitting;      /* the thread has seen `quit` */
    uint32_t in_flight; /* reads with the kernel */
    pot_job *jobs;      /* 2 * depth */
    pot_job *free;
    pot_job *landed, **landed_end; /* to be checked, the oldest first */
} uring;

/* ---- what goes to the kernel ---------------------------------------------------------------------------------------- */

/* The ring has room for every job and the bell, so there is always an entry, whatever the kernel has taken of the earlier ones. */
static struct io_uring_sqe *entry(uring *u) {
    struct io_uring_sqe *sqe = io_uring_get_sqe(&u->ring);
    POT_ASSERT(sqe);
    return sqe;
}

static void listen_to_bell(uring *u) {
    struct io_uring_sqe *sqe = entry(u);
    io_uring_prep_read(sqe, u->bell, &u->rung, sizeof u->rung, 0);
    io_uring_sqe_set_data(sqe, NULL);
    u->listening = true;
}

/* The job's next attempt, or among those that have landed. */
static void go_on(pot_reader *reader, uring *u, pot_job *job) {
    if (!pot_job_next(reader, job)) {
        job->next = NULL;
        *u->landed_end = job;
        u->landed_end = &job->next;
        return;
    }
    struct io_uring_sqe *sqe = entry(u);
    io_uring_prep_read(sqe, job->fd, job->into, job->bytes, job->offset);
    io_uring_sqe_set_data(sqe, job);
    u->in_flight++;
}

/* Takes what is queued while there is room. */
static void begin_more(pot_reader *reader, uring *u) {
    while (!u->quitting && u->free && u->in_flight < reader->depth) {
        pot_job *job = u->free, *next = job->next;
        pthread_mutex_lock(&reader->lock);
        u->quitting = reader->quit;
        bool have = !u->quitting && pot_job_take(reader, job);
        u->hungry = !have;
        pthread_mutex_unlock(&reader->lock);
        if (!have) {
            job->next = next;
            return;
        }
        u->free = next;
        go_on(reader, u, job);
    }
}

/* Submits; waits for a completion when there is nothing else to do.  What the kernel cannot take now stays in the ring. */
static void submit(uring *u) {
    int n = io_uring_submit_and_wait(&u->ring, u->landed ? 0 : 1);
    if (n >= 0 || n == -EINTR) return;
    POT_LOG(POT_LOG_WARN, module, "io_uring takes no reads at the moment: %s", strerror(-n));
    usleep(1000);
}

/* ---- what comes back ------------------------------------------------------------------------------------------------ */

static void reap(pot_reader *reader, uring *u) {
    struct io_uring_cqe *cqe;
    while (!io_uring_peek_cqe(&u->ring, &cqe)) {
        pot_job *job = io_uring_cqe_get_data(cqe);
        int result = cqe->res;
        io_uring_cqe_seen(&u->ring, cqe);
        if (!job) {
            u->listening = false;
            continue;
        }
        u->in_flight--;
        pot_job_result(reader, job, result);
        go_on(reader, u, job);
    }
}

static void check_one(pot_reader *reader, uring *u) {
    pot_job *job = u->landed;
    if (!job) return;
    u->landed = job->next;
    if (!u->landed) u->landed_end = &u->landed;
    if (!pot_job_finish(reader, job)) {
        go_on(reader, u, job);
        return;
    }
    job->next = u->free;
    u->free = job;
}

static void *run(void *argument) {
    pot_reader *reader = argument;
    uring *u = reader->engine;
    for (;;) {
        if (!u->listening) listen_to_bell(u);
        begin_more(reader, u);
        if (u->quitting && !u->in_flight && !u->landed) break;
        submit(u);
        reap(reader, u);
        begin_more(reader, u);
        if (u->landed) io_uring_submit(&u->ring);
        check_one(reader, u);
    }
    pot_reader_thread_ends(reader);
    return NULL;
}

/* ---- start and end -------------------------------------------------------------------------------------------------- */

static void wake(pot_reader *reader, uint32_t n) {
    (void)n;
    uring *u = reader->engine;
    if (!u || !(u->hungry || reader->quit)) return;
    uint64_t one = 1;
    u->hungry = false;
    while (write(u->bell, &one, sizeof one) < 0 && errno == EINTR) continue;
}

static void free_uring(pot_reader *reader) {
    uring *u = reader->engine;
    if (!u) return;
    if (u->open) io_uring_queue_exit(&u->ring);
    if (u->bell >= 0) close(u->bell);
    pot_free(u->jobs);
    pot_free(u);
    reader->engine = NULL;
}

/* An errno, or 0. */
static int open_ring(uring *u, uint32_t entries) {
    struct io_uring_params params = {.flags = IORING_SETUP_CLAMP};
    int error = -io_uring_queue_init_params(entries, &u->ring, &params);
    if (error) return error;
    u->open = true;
    struct io_uring_probe *probe = io_uring_get_probe_ring(&u->ring);
    bool reads = probe && io_uring_opcode_supported(probe, IORING_OP_READ); /* Linux 5.6 */
    io_uring_free_probe(probe);
    return reads ? 0 : ENOSYS;
}

static pot_status start(pot_reader *reader, pot_err *err) {
    uring *u = pot_alloc(sizeof *u);
    uint32_t n_jobs = 2 * reader->depth;
    reader->engine = u;
    if (!u || !(u->jobs = pot_alloc_array(n_jobs, sizeof *u->jobs))) {
        if (u) u->bell = -1;
        return pot_fail(err, POT_NO_MEMORY, "no memory to read files with");
    }
    u->landed_end = &u->landed;
    for (uint32_t i = 0; i < n_jobs; i++) u->jobs[i].next = i + 1 < n_jobs ? &u->jobs[i + 1] : NULL;
    u->free = u->jobs;
    u->bell = eventfd(0, EFD_CLOEXEC);
    int error = u->bell < 0 ? errno : open_ring(u, n_jobs + 1);
    if (!error) error = pot_reader_thread_start(reader, run, reader);
    if (!error) return POT_OK;
    const char *what = error == ENOSYS || error == EPERM || error == EACCES
                           ? " (containers and old kernels often forbid it)"
                       : error == ENOMEM ? " (raise ulimit -l)"
                       : error == EMFILE ? " (raise ulimit -n)"
                                         : "";
    return pot_fail(err, POT_LIMIT, "io_uring cannot be used here: %s%s", strerror(error), what);
}

const pot_reader_ops pot_reader_uring = {"io_uring", 8, start, wake, free_uring};
