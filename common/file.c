/* Whole files in and out, and read-only mappings.  A file is replaced by writing beside it and renaming, so that a
 * reader, or a crash, never sees half of it. */
#include "common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/mem.h"
#include "common/system.h"

/* An open file and its facts; directories are refused here because read() on them says nothing useful. */
static pot_status open_for_reading(int *fd, struct stat *info, const char *path, pot_err *err) {
    do {
        *fd = open(path, O_RDONLY | O_CLOEXEC);
    } while (*fd < 0 && errno == EINTR && !pot_stop_requested()); /* a pipe may have no other end */
    if (*fd < 0) {
        bool missing = errno == ENOENT || errno == ENOTDIR;
        return pot_fail(err, missing ? POT_NOT_FOUND : POT_IO, "%s: cannot be opened: %s", path, strerror(errno));
    }
    pot_status status = POT_OK;
    if (fstat(*fd, info)) {
        status = pot_fail(err, POT_IO, "%s: cannot be examined: %s", path, strerror(errno));
    } else if (S_ISDIR(info->st_mode)) {
        status = pot_fail(err, POT_IO, "%s: is a directory, a file was expected", path);
    }
    if (status) close(*fd);
    return status;
}

static pot_status too_large(const char *path, uint64_t found, uint64_t max_bytes, pot_err *err) {
    return pot_fail(err, POT_LIMIT, "%s: %" PRIu64 " bytes or more, at most %" PRIu64 " are accepted", path, found,
                    max_bytes);
}

/* Reads to the end of the file, which may be a pipe or may grow meanwhile: the bound holds in every case. */
static pot_status read_to_end(pot_buffer *out, int fd, const char *path, uint64_t max_bytes, pot_err *err) {
    char block[16384];
    uint64_t total = 0;
    for (;;) {
        ssize_t n = read(fd, block, sizeof block);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0)
            return pot_fail(err, POT_IO, "%s: cannot be read after %" PRIu64 " bytes: %s", path, total,
                            strerror(errno));
        if (n == 0) return POT_OK;
        total += (uint64_t)n;
        if (total > max_bytes) return too_large(path, total, max_bytes, err);
        pot_buffer_append(out, block, (size_t)n);
        if (out->failed) return pot_fail(err, POT_NO_MEMORY, "%s: no memory for %" PRIu64 " bytes", path, total);
    }
}

pot_status pot_file_read(pot_buffer *out, const char *path, uint64_t max_bytes, pot_err *err) {
    int fd;
    struct stat info = {0};
    pot_status status = open_for_reading(&fd, &info, path, err);
    if (status) return status;
    size_t before = out->bytes;
    if (S_ISREG(info.st_mode) && (uint64_t)info.st_size > max_bytes) {
        status = too_large(path, (uint64_t)info.st_size, max_bytes, err);
    } else {
        status = read_to_end(out, fd, path, max_bytes, err);
    }
    close(fd);
    if (status && out->data) {
        out->bytes = before; /* outputs change only on success */
        out->data[before] = 0;
    }
    return status;
}

static pot_status write_all(int fd, const char *path, const void *data, size_t bytes, pot_err *err) {
    const char *p = data;
    while (bytes) {
        ssize_t n = write(fd, p, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return pot_fail(err, POT_IO, "%s: cannot be written: %s", path, strerror(errno));
        p += n;
        bytes -= (size_t)n;
    }
    return POT_OK;
}

/* Opens, writes, closes; `flags` says whether the file must be new. */
static pot_status write_file(const char *path, int flags, bool sync, const void *data, size_t bytes, pot_err *err) {
    int fd = open(path, O_WRONLY | O_CLOEXEC | flags, 0666);
    if (fd < 0) return pot_fail(err, POT_IO, "%s: cannot be created: %s", path, strerror(errno));
    pot_status status = write_all(fd, path, data, bytes, err);
    if (!status && sync && fsync(fd)) status = pot_fail(err, POT_IO, "%s: cannot be synced: %s", path, strerror(errno));
    if (close(fd) && !status) status = pot_fail(err, POT_IO, "%s: cannot be closed: %s", path, strerror(errno));
    return status;
}

pot_status pot_file_write(const char *path, const void *data, size_t bytes, pot_err *err) {
    static atomic_uint serial;
    struct stat info;
    /* /dev/null, a pipe or a link must not be replaced by a regular file. */
    if (!lstat(path, &info) && !S_ISREG(info.st_mode)) return write_file(path, O_TRUNC, false, data, bytes, err);
    pot_buffer beside = {0};
    pot_buffer_format(&beside, "%s.%ld-%u.tmp", path, (long)getpid(), atomic_fetch_add(&serial, 1));
    if (beside.failed) {
        pot_buffer_free(&beside);
        return pot_fail(err, POT_NO_MEMORY, "%s: no memory to write it", path);
    }
    pot_status status = write_file(beside.data, O_CREAT | O_EXCL, true, data, bytes, err);
    if (!status && rename(beside.data, path))
        status = pot_fail(err, POT_IO, "%s: cannot be replaced: %s", path, strerror(errno));
    if (status) unlink(beside.data);
    pot_buffer_free(&beside);
    return status;
}

bool pot_file_exists(const char *path) {
    struct stat info;
    return !stat(path, &info) && !S_ISDIR(info.st_mode);
}

bool pot_directory_exists(const char *path) {
    struct stat info;
    return !stat(path, &info) && S_ISDIR(info.st_mode);
}

pot_status pot_mapping_open(pot_mapping *out, const char *path, pot_err *err) {
    int fd;
    struct stat info = {0};
    pot_status status = open_for_reading(&fd, &info, path, err);
    if (status) return status;
    if (!S_ISREG(info.st_mode)) {
        status = pot_fail(err, POT_IO, "%s: is not a regular file, so it cannot be mapped", path);
    } else if (info.st_size == 0) {
        *out = (pot_mapping){0};
    } else {
        void *base = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (base == MAP_FAILED) {
            status = pot_fail(err, POT_IO, "%s: cannot be mapped (%" PRIu64 " bytes): %s", path, (uint64_t)info.st_size,
                              strerror(errno));
        } else {
            *out = (pot_mapping){.base = base, .bytes = (uint64_t)info.st_size};
        }
    }
    close(fd);
    return status;
}

void pot_mapping_close(pot_mapping *mapping) {
    if (mapping->base) munmap((void *)(uintptr_t)mapping->base, (size_t)mapping->bytes);
    *mapping = (pot_mapping){0};
}

char *pot_path_join(const char *directory, const char *name) {
    size_t length = strlen(directory);
    bool slash = length > 0 && directory[length - 1] != '/';
    pot_buffer path = {0};
    pot_buffer_format(&path, "%s%s%s", directory, slash ? "/" : "", name);
    if (path.failed) pot_buffer_free(&path);
    return path.data;
}
