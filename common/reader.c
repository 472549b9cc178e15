/* The reader's doors: its files, the queue, and what comes back.
 *
 *   submit ---> urgent, normal ---> job, attempts (reader_job.c) ---> done ---> taken ---> take
 *   owner       under the lock      the engine's threads              a stack   owner
 *
 * The owner looks for finished reads between pieces of computing, so a look is one load of a word.  Threads push what has
 * finished onto a stack that the owner takes whole; it alone takes, so nothing can go wrong with equal addresses.  When it sleeps,
 * it sleeps on a futex and says so, and threads make the system call only then. */
#include "common/reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/reader_internal.h"

static const char module[] = "common.reader";

enum { PATIENCE_US = 10000000 };

/* ---- threads -------------------------------------------------------------------------------------------------------- */

int pot_reader_thread_start(pot_reader *reader, void *(*run)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    pthread_mutex_lock(&reader->lock);
    /* Signals are for the threads that wait for them. */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&reader->handles[reader->n_handles], NULL, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!error) {
        reader->n_handles++;
        reader->threads++;
    }
    pthread_mutex_unlock(&reader->lock);
    return error;
}

void pot_reader_thread_ends(pot_reader *reader) {
    pthread_mutex_lock(&reader->lock);
    reader->threads--;
    pthread_cond_signal(&reader->ended);
    pthread_mutex_unlock(&reader->lock);
}

/* Asks the threads to end, which leave what is queued; false when some still hang in a read after the reader's patience. */
static bool end_threads(pot_reader *reader) {
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t ns = (uint64_t)until.tv_nsec + reader->patience_us % 1000000 * 1000;
    until.tv_sec += (time_t)(reader->patience_us / 1000000 + ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&reader->lock);
    reader->quit = true;
    reader->ops->wake(reader, 0);
    int error = 0;
    while (reader->threads && error != ETIMEDOUT) error = pthread_cond_timedwait(&reader->ended, &reader->lock, &until);
    bool all = reader->threads == 0;
    pthread_mutex_unlock(&reader->lock);
    for (uint32_t i = 0; i < reader->n_handles; i++) {
        if (all)
            pthread_join(reader->handles[i], NULL);
        else
            pthread_detach(reader->handles[i]);
    }
    reader->n_handles = 0;
    return all;
}

/* ---- create and free ------------------------------------------------------------------------------------------------ */

static pot_status start(pot_reader *reader, const pot_reader_ops *ops, uint32_t depth, pot_err *err) {
    reader->ops = ops;
    reader->depth = depth ? depth : ops->depth;
    if (reader->depth > POT_READER_MOST_DEPTH) reader->depth = POT_READER_MOST_DEPTH;
    pot_status status = POT_NO_MEMORY;
    reader->handles = pot_alloc_array(2 * (size_t)reader->depth, sizeof *reader->handles);
    if (!reader->handles)
        pot_fail(err, POT_NO_MEMORY, "no memory to read files with");
    else
        status = ops->start(reader, err);
    if (status) {
        if (reader->n_handles) end_threads(reader);
        reader->quit = false;
        ops->free(reader);
        pot_free(reader->handles);
        reader->handles = NULL;
    }
    return status;
}

static pot_status start_any(pot_reader *reader, const pot_reader_options *options, pot_err *err) {
    if (options->engine == POT_READ_ENGINE_POOL) return start(reader, &pot_reader_pool, options->depth, err);
    pot_err why;
    pot_status status = start(reader, &pot_reader_uring, options->depth, &why);
    if (!status) return POT_OK;
    if (status == POT_NO_MEMORY || options->engine == POT_READ_ENGINE_URING)
        return pot_fail(err, status, "%s", why.text);
    POT_LOG(POT_LOG_INFO, module, "%s: threads read instead", why.text);
    return start(reader, &pot_reader_pool, options->depth, err);
}

static void free_memory(pot_reader *reader) {
    for (uint32_t i = 0; i < reader->n_files; i++) {
        pot_reader_file *file = reader->files[i];
        close(file->cached_fd);
        if (file->direct_fd >= 0) close(file->direct_fd);
        pot_free(file->path);
        pot_free(file);
    }
    pot_free(reader->files);
    pot_free(reader->handles);
    pthread_cond_destroy(&reader->ended);
    pthread_mutex_destroy(&reader->lock);
    pot_free(reader);
}

pot_status pot_reader_create(pot_reader **out, const pot_reader_options *options, pot_err *err) {
    pot_reader *reader = pot_alloc(sizeof *reader);
    if (!reader) return pot_fail(err, POT_NO_MEMORY, "no memory to read files with");
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&reader->ended, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&reader->lock, NULL);
    reader->urgent.end = &reader->urgent.first;
    reader->normal.end = &reader->normal.first;
    reader->faults = options->faults;
    reader->patience_us = options->patience_us ? options->patience_us : PATIENCE_US;
    atomic_init(&reader->cached, options->path == POT_READ_PATH_CACHED);
    /* What faults are put in place of must not depend on how fast the disk is. */
    reader->unmeasured = options->path == POT_READ_PATH_AUTO && !options->faults;
    pot_status status = start_any(reader, options, err);
    if (status) {
        free_memory(reader);
        return status;
    }
    *out = reader;
    return POT_OK;
}

bool pot_reader_free(pot_reader *reader) {
    if (!reader) return true;
    if (!end_threads(reader)) {
        /* The threads still need the reader when the kernel lets them go, if it ever does. */
        atomic_store(&reader->abandoned, true);
        POT_LOG(POT_LOG_WARN, module, "reads still hang after %" PRIu64 " ms, they are left behind with their memory",
                reader->patience_us / 1000);
        return false;
    }
    reader->ops->free(reader);
    free_memory(reader);
    return true;
}

/* ---- files ---------------------------------------------------------------------------------------------------------- */

static int open_retrying(const char *path, int flags) {
    int fd;
    do {
        fd = open(path, O_RDONLY | O_CLOEXEC | flags);
    } while (fd < 0 && errno == EINTR);
    return fd;
}

static pot_status open_failed(const char *path, pot_err *err) {
    int error = errno;
    if (error == EMFILE) {
        struct rlimit limit = {0};
        getrlimit(RLIMIT_NOFILE, &limit);
        return pot_fail(err, POT_LIMIT,
                        "%s: cannot be opened: this process may have %llu files open and has them: raise the limit "
                        "(ulimit -n, or LimitNOFILE= of a service); each file of a model needs two",
                        path, (unsigned long long)limit.rlim_cur);
    }
    if (error == ENFILE)
        return pot_fail(err, POT_LIMIT,
                        "%s: cannot be opened: this machine has as many files open as it may: close something or raise "
                        "the limit (sysctl fs.file-max)",
                        path);
    bool missing = error == ENOENT || error == ENOTDIR;
    return pot_fail(err, missing ? POT_NOT_FOUND : POT_IO, "%s: cannot be opened: %s", path, strerror(error));
}

/* Opens both ways; the caller closes what is open, on failure too. */
static pot_status open_both(pot_reader_file *file, const char *path, pot_err *err) {
    struct stat info, twin;
    if (stat(path, &info)) return open_failed(path, err);
    /* Asked before it is opened, which would wait for a writer if it is a pipe. */
    if (!S_ISREG(info.st_mode)) return pot_fail(err, POT_IO, "%s: is not a regular file", path);
    file->cached_fd = open_retrying(path, 0);
    if (file->cached_fd < 0) return open_failed(path, err);
    if (fstat(file->cached_fd, &info))
        return pot_fail(err, POT_IO, "%s: cannot be examined: %s", path, strerror(errno));
    file->bytes = (uint64_t)info.st_size;
    file->device = info.st_dev;
    file->inode = info.st_ino;
    /* Whole pieces are asked for: to read ahead of them would only read what may not be wanted. */
    (void)posix_fadvise(file->cached_fd, 0, 0, POSIX_FADV_RANDOM);
    file->direct_fd = open_retrying(path, O_DIRECT);
    if (file->direct_fd < 0 && errno == EINVAL) {
        atomic_init(&file->no_direct, true);
        POT_LOG(POT_LOG_DEBUG, module, "%s: its file system cannot read past the page cache, it is read through it",
                path);
        return POT_OK;
    }
    if (file->direct_fd < 0) return open_failed(path, err);
    if (fstat(file->direct_fd, &twin) || twin.st_dev != info.st_dev || twin.st_ino != info.st_ino)
        return pot_fail(err, POT_IO, "%s: was replaced while it was opened: start again", path);
    return POT_OK;
}

/* Room for one more; the array moves under the lock because threads look files up. */
static bool make_room(pot_reader *reader) {
    if (reader->n_files < reader->room) return true;
    uint32_t room = reader->room ? 2 * reader->room : 16;
    pthread_mutex_lock(&reader->lock);
    pot_reader_file **files = pot_realloc_array(reader->files, room, sizeof(pot_reader_file *));
    if (files) {
        reader->files = files;
        reader->room = room;
    }
    pthread_mutex_unlock(&reader->lock);
    return files != NULL;
}

pot_status pot_reader_open(uint32_t *out, pot_reader *reader, const char *path, pot_err *err) {
    pot_reader_file *file = pot_alloc(sizeof *file);
    char *copy = pot_strdup(path);
    if (!file || !copy || !make_room(reader)) {
        pot_free(file);
        pot_free(copy);
        return pot_fail(err, POT_NO_MEMORY, "%s: no memory to read it with", path);
    }
    file->cached_fd = file->direct_fd = -1;
    file->path = copy;
    pot_status status = open_both(file, path, err);
    if (status) {
        if (file->cached_fd >= 0) close(file->cached_fd);
        if (file->direct_fd >= 0) close(file->direct_fd);
        pot_free(copy);
        pot_free(file);
        return status;
    }
    if (file->direct_fd < 0) atomic_fetch_add(&reader->not_direct, 1);
    pthread_mutex_lock(&reader->lock);
    reader->files[reader->n_files++] = file;
    pthread_mutex_unlock(&reader->lock);
    if (reader->unmeasured) pot_reader_measure(reader, reader->n_files - 1);
    *out = reader->n_files - 1;
    return POT_OK;
}

uint64_t pot_reader_file_bytes(const pot_reader *reader, uint32_t file) {
    POT_ASSERT(file < reader->n_files);
    return reader->files[file]->bytes;
}

const char *pot_reader_file_path(const pot_reader *reader, uint32_t file) {
    POT_ASSERT(file < reader->n_files);
    return reader->files[file]->path;
}

/* ---- in ------------------------------------------------------------------------------------------------------------- */

void pot_reader_submit(pot_reader *reader, pot_read *const reads[], uint32_t n, bool urgent) {
    if (!n) return;
    for (uint32_t i = 0; i < n; i++) {
        POT_ASSERT(reads[i]->file < reader->n_files);
        POT_ASSERT(reads[i]->offset % POT_READ_ALIGN == 0 && reads[i]->bytes % POT_READ_ALIGN == 0);
        POT_ASSERT((uintptr_t)reads[i]->into % POT_READ_ALIGN == 0);
        reads[i]->next = i + 1 < n ? reads[i + 1] : NULL;
    }
    pthread_mutex_lock(&reader->lock);
    pot_reader_list *list = urgent ? &reader->urgent : &reader->normal;
    *list->end = reads[0];
    list->end = &reads[n - 1]->next;
    reader->ops->wake(reader, n);
    pthread_mutex_unlock(&reader->lock);
    reader->pending += n;
}

static bool unlink_from(pot_reader_list *list, pot_read *read) {
    for (pot_read **at = &list->first; *at; at = &(*at)->next) {
        if (*at != read) continue;
        *at = read->next;
        if (list->end == &read->next) list->end = at;
        return true;
    }
    return false;
}

bool pot_reader_cancel(pot_reader *reader, pot_read *read) {
    pthread_mutex_lock(&reader->lock);
    bool found = unlink_from(&reader->urgent, read) || unlink_from(&reader->normal, read);
    pthread_mutex_unlock(&reader->lock);
    if (found) reader->pending--;
    return found;
}

/* ---- out ------------------------------------------------------------------------------------------------------------ */

void pot_reader_hand_over(pot_reader *reader, pot_read *read) {
    pot_read *top = atomic_load(&reader->done);
    do {
        read->next = top;
    } while (!atomic_compare_exchange_weak(&reader->done, &top, read));
    atomic_fetch_add(&reader->finished, 1);
    if (atomic_load(&reader->asleep)) syscall(SYS_futex, &reader->finished, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Moves what has finished over to the owner, in the order in which it finished. */
static bool refill(pot_reader *reader) {
    if (reader->taken) return true;
    if (!atomic_load_explicit(&reader->done, memory_order_relaxed)) return false;
    for (pot_read *read = atomic_exchange(&reader->done, NULL), *below; read; read = below) {
        below = read->next;
        read->next = reader->taken;
        reader->taken = read;
    }
    return true;
}

/* False when the time has passed with nothing finished. */
static bool sleep_until(pot_reader *reader, uint64_t deadline_us) {
    bool have;
    atomic_store(&reader->asleep, true);
    for (;;) {
        uint32_t seen = atomic_load(&reader->finished);
        if ((have = refill(reader))) break;
        uint64_t now = pot_now_us();
        if (now >= deadline_us) break;
        uint64_t left = deadline_us - now;
        struct timespec time = {.tv_sec = (time_t)(left / 1000000), .tv_nsec = (long)(left % 1000000 * 1000)};
        syscall(SYS_futex, &reader->finished, FUTEX_WAIT_PRIVATE, seen, &time, NULL, 0);
    }
    atomic_store(&reader->asleep, false);
    return have;
}

static pot_read *take_any(pot_reader *reader, uint64_t timeout_us) {
    if (!refill(reader)) {
        if (!timeout_us) return NULL;
        uint64_t now = pot_now_us();
        if (!sleep_until(reader, timeout_us > UINT64_MAX / 2 - now ? UINT64_MAX / 2 : now + timeout_us)) return NULL;
    }
    pot_read *read = reader->taken;
    reader->taken = read->next;
    read->next = NULL;
    return read;
}

pot_read *pot_reader_take(pot_reader *reader, uint64_t timeout_us) {
    pot_read *read = NULL;
    if (!reader->pending) return NULL;
    /* A read of the measurement that hung and has come after all is nobody's. */
    do {
        read = take_any(reader, timeout_us);
    } while (read && read->user == reader);
    if (read) reader->pending--;
    return read;
}

uint32_t pot_reader_pending(const pot_reader *reader) { return reader->pending; }

/* ---- for reports ---------------------------------------------------------------------------------------------------- */

const char *pot_reader_engine(const pot_reader *reader) { return reader->ops->name; }

const char *pot_reader_path(const pot_reader *reader) {
    if (atomic_load(&reader->cached)) return "cached";
    return reader->n_files && atomic_load(&reader->not_direct) >= reader->n_files ? "cached" : "direct";
}

uint32_t pot_reader_depth(const pot_reader *reader) { return reader->depth; }
