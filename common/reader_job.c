/* One read, from the queue to its owner.
 *
 * An attempt goes past the page cache where place and length lie on POT_READ_ALIGN and the file allows it; the incomplete block
 * at a file's end, and what a short read left off a block's edge, go through the page cache.  Pages that were read so are dropped:
 * the owner keeps what it wants in its own memory, and the page cache would only take memory from it.
 *
 * A piece with a wrong checksum may have been spoilt on the way, so it is read once more, from the device; only if that is wrong too
 * is it a fault. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/reader_internal.h"

static const char module[] = "common.reader";

static pot_read *pop(pot_reader_list *list) {
    pot_read *read = list->first;
    if (!read) return NULL;
    list->first = read->next;
    if (!list->first) list->end = &list->first;
    return read;
}

bool pot_job_take(pot_reader *reader, pot_job *job) {
    pot_read *read = pop(&reader->urgent);
    if (!read) read = pop(&reader->normal);
    if (!read) return false;
    *job = (pot_job){.read = read, .file = reader->files[read->file], .began_us = pot_now_us()};
    return true;
}

/* ---- faults --------------------------------------------------------------------------------------------------------- */

/* " (the file at this path is another one now)" or "": the descriptor keeps the old file, the path may name a new one. */
static const char *replaced(const pot_reader_file *file) {
    struct stat now;
    if (stat(file->path, &now)) return errno == ENOENT ? " (there is no file at this path any more)" : "";
    if (now.st_dev != file->device || now.st_ino != file->inode)
        return " (the file at this path is another one than was opened)";
    return "";
}

static void fail_past_end(pot_job *job) {
    pot_read *read = job->read;
    job->status = pot_fail(read->err, POT_FORMAT,
                           "%s: %" PRIu32 " bytes at %" PRIu64 " were asked for, the file ends at %" PRIu64,
                           job->file->path, read->bytes, read->offset, job->file->bytes);
}

/* The read ended before the bytes did. */
static void fail_short(pot_job *job) {
    struct stat now;
    pot_read *read = job->read;
    const pot_reader_file *file = job->file;
    if (!fstat(file->cached_fd, &now) && (uint64_t)now.st_size != file->bytes)
        job->status = pot_fail(read->err, POT_IO,
                               "%s: is now %" PRIu64 " bytes, was %" PRIu64
                               " when it was opened: was it replaced?  %" PRIu32 " bytes at %" PRIu64
                               " cannot be read; leave model files alone while they are in use, and start again",
                               file->path, (uint64_t)now.st_size, file->bytes, job->want, read->offset);
    else
        job->status = pot_fail(read->err, POT_IO,
                               "%s: of %" PRIu32 " bytes at %" PRIu64 " only %" PRIu32
                               " can be read, though the file is %" PRIu64 " bytes%s; look at the file system (dmesg)",
                               file->path, job->want, read->offset, job->done, file->bytes, replaced(file));
}

static void fail_errno(pot_job *job, int error) {
    pot_read *read = job->read;
    job->status =
        pot_fail(read->err, POT_IO,
                 "%s: %" PRIu32 " bytes at %" PRIu64 " cannot be read: %s; look at the disk (dmesg, smartctl)",
                 job->file->path, job->bytes, job->offset, strerror(error));
}

static void fail_checksum(pot_job *job, uint64_t found) {
    pot_read *read = job->read;
    const pot_reader_file *file = job->file;
    char twice[64] = "twice";
    if (found != job->first_checksum)
        snprintf(twice, sizeof twice, "after %016" PRIx64 " the first time", job->first_checksum);
    job->status =
        pot_fail(read->err, POT_IO,
                 "%s: %" PRIu32 " bytes at %" PRIu64 " have checksum %016" PRIx64 " (%s), expected %016" PRIx64
                 "%s: the disk or the memory changed them; `potluck verify` names all that is damaged",
                 file->path, read->bytes, read->offset, found, twice, read->checksum, replaced(file));
}

/* ---- attempts ------------------------------------------------------------------------------------------------------- */

/* Whole blocks past the page cache as far as they go, the rest through it. */
static void prepare(const pot_reader *reader, pot_job *job) {
    uint32_t left = job->want - job->done, blocks = left & ~(uint32_t)(POT_READ_ALIGN - 1);
    pot_reader_file *file = job->file;
    /* The second reading of a piece goes past the cache on either path. */
    bool may = file->direct_fd >= 0 && !atomic_load_explicit(&file->no_direct, memory_order_relaxed) &&
               (job->again || !atomic_load_explicit(&reader->cached, memory_order_relaxed));
    job->direct = may && job->done % POT_READ_ALIGN == 0 && blocks;
    job->fd = job->direct ? file->direct_fd : file->cached_fd;
    job->bytes = job->direct ? blocks : left;
    /* From off a block's edge only up to the next one, when what follows can go past the cache again. */
    if (may && !job->direct && job->done % POT_READ_ALIGN && left > POT_READ_ALIGN)
        job->bytes = POT_READ_ALIGN - job->done % POT_READ_ALIGN;
    if (job->bytes > POT_READER_MOST_ATTEMPT) job->bytes = POT_READER_MOST_ATTEMPT;
    job->keep = job->bytes;
    job->into = job->read->into + job->done;
    job->offset = job->read->offset + job->done;
}

/* Once a job: what the file has of it.  The last block of a file may be incomplete, then zeros follow. */
static void begin(pot_job *job) {
    pot_read *read = job->read;
    uint64_t end = (job->file->bytes + POT_READ_ALIGN - 1) & ~(uint64_t)(POT_READ_ALIGN - 1);
    if (read->offset > end || read->bytes > end - read->offset) {
        fail_past_end(job);
        return;
    }
    uint64_t left = job->file->bytes - read->offset;
    job->want = left < read->bytes ? (uint32_t)left : read->bytes;
    memset(read->into + job->want, 0, read->bytes - job->want);
}

bool pot_job_next(pot_reader *reader, pot_job *job) {
    if (!job->want && !job->status) begin(job);
    while (!job->status && job->done < job->want) {
        prepare(reader, job);
        if (!reader->faults || !reader->faults->before) return true;
        int error = reader->faults->before(reader->faults->context, job->file->path, job->offset, &job->keep);
        if (atomic_load(&reader->abandoned)) return false;
        if (job->keep > job->bytes) job->keep = job->bytes;
        if (error <= 0 && job->keep) return true;
        pot_job_result(reader, job, error > 0 ? -error : 0);
    }
    return false;
}

/* A file system may allow to open with O_DIRECT and yet refuse to read so. */
static void leave_direct(pot_reader *reader, pot_job *job) {
    if (atomic_exchange(&job->file->no_direct, true)) return;
    atomic_fetch_add(&reader->not_direct, 1);
    POT_LOG(POT_LOG_DEBUG, module, "%s: cannot be read past the page cache, it is read through it", job->file->path);
}

void pot_job_result(pot_reader *reader, pot_job *job, int64_t result) {
    if (atomic_load(&reader->abandoned)) return;
    if (result == -EINTR || result == -EAGAIN) {
        if (++job->idle >= POT_READER_MOST_IDLE) fail_errno(job, (int)-result);
    } else if (result == -EINVAL && job->direct) {
        leave_direct(reader, job);
    } else if (result < 0) {
        fail_errno(job, (int)-result);
    } else if (result == 0) {
        fail_short(job);
    } else {
        uint32_t n = result > job->keep ? job->keep : (uint32_t)result;
        if (reader->faults && reader->faults->after)
            reader->faults->after(reader->faults->context, job->file->path, job->offset, job->into, n);
        job->idle = 0;
        job->done += n;
        if (!job->direct) (void)posix_fadvise(job->fd, (off_t)job->offset, (off_t)n, POSIX_FADV_DONTNEED);
    }
}

/* ---- the end -------------------------------------------------------------------------------------------------------- */

/* Pages in the cache may be what is wrong: without O_DIRECT they are dropped so that the device is asked. */
static void read_again(pot_job *job, uint64_t found) {
    job->first_checksum = found;
    job->again = true;
    job->done = 0;
    (void)posix_fadvise(job->file->cached_fd, (off_t)job->read->offset, (off_t)job->read->bytes, POSIX_FADV_DONTNEED);
}

bool pot_job_finish(pot_reader *reader, pot_job *job) {
    pot_read *read = job->read;
    if (atomic_load(&reader->abandoned)) return true;
    if (!job->status && read->has_checksum) {
        uint64_t found = pot_hash64(read->into, read->bytes);
        if (found != read->checksum && !job->again) {
            read_again(job, found);
            return false;
        }
        if (found != read->checksum)
            fail_checksum(job, found);
        else if (job->again)
            POT_LOG(POT_LOG_WARN, module,
                    "%s: %" PRIu32 " bytes at %" PRIu64 " were wrong when they were first read, and right the second "
                    "time: the memory, the disk or its cable may be failing",
                    job->file->path, read->bytes, read->offset);
    }
    read->status = job->status;
    read->us = pot_now_us() - job->began_us;
    pot_reader_hand_over(reader, read);
    return true;
}
