/* The disk as the expert store reads it: so many pieces in flight, from all over the files, past the page cache unless --read-path says otherwise. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "cli/machine_probe.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/reader.h"
#include "common/system.h"

enum {
    MOST_FILES = 256,
    LEAST_FILE = 16 << 20, /* smaller ones are left out: configurations and tokenizers */
    MOST_DEPTH = 256,
    STEP = 4 << 20, /* of writing */
    WAIT_US = 10000000
};
#define LEAST_TOTAL (UINT64_C(256) << 20) /* less is no test of a disk */

struct probe_disk {
    pot_read_engine engine;
    pot_read_path path;
    int n_files, scratch; /* scratch: its descriptor, or -1 */
    char *files[MOST_FILES];
    uint64_t bytes[MOST_FILES], total;
    uint64_t random;
    const char *engine_text, *path_text;
};

const char *probe_disk_engine(const probe_disk *disk) { return disk->engine_text; }
const char *probe_disk_path(const probe_disk *disk) { return disk->path_text; }
bool probe_disk_is_scratch(const probe_disk *disk) { return disk->scratch >= 0; }
uint64_t probe_disk_bytes(const probe_disk *disk) { return disk->scratch >= 0 ? 0 : disk->total; }

void probe_cache_directory(char *out, size_t size) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    snprintf(out, size, "%s", cache ? cache : "");
    if (cache && pot_directory_exists(out)) return;
    snprintf(out, size, "%s/.cache", home ? home : "");
    if (home && pot_directory_exists(out)) return;
    snprintf(out, size, ".");
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* ---- which files -------------------------------------------------------------------------------------------------- */

static pot_status add_file(probe_disk *d, const char *path, pot_err *err) {
    struct stat st;
    if (stat(path, &st) || !S_ISREG(st.st_mode) || st.st_size < LEAST_FILE || d->n_files == MOST_FILES) return POT_OK;
    char *copy = pot_strdup(path);
    if (!copy) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to read it", path);
    d->bytes[d->n_files] = (uint64_t)st.st_size;
    d->files[d->n_files++] = copy;
    d->total += (uint64_t)st.st_size;
    return POT_OK;
}

static pot_status add_directory(probe_disk *d, const char *path, pot_err *err) {
    pot_status status = POT_OK;
    DIR *directory = opendir(path);
    if (!directory) return pot_fail(err, POT_IO, "%s: cannot be read: %s", path, strerror(errno));
    for (struct dirent *e; !status && (e = readdir(directory));) {
        char *file = pot_path_join(path, e->d_name);
        status = file ? add_file(d, file, err) : pot_fail(err, POT_NO_MEMORY, "%s: no memory to read it", path);
        pot_free(file);
    }
    closedir(directory);
    return status;
}

static void forget_files(probe_disk *d) {
    for (int i = 0; i < d->n_files; i++) pot_free(d->files[i]);
    d->n_files = 0;
    d->total = 0;
}

/* Nothing that a file system could compress or leave out. */
static pot_status write_scratch(const probe_disk *d, const char *path, uint64_t bytes, uint64_t *buffer, pot_err *err) {
    uint64_t state = UINT64_C(0x9e3779b97f4a7c15);
    for (uint64_t done = 0; done < bytes;) {
        if (pot_stop_requested()) return pot_fail(err, POT_CANCELLED, "stopped");
        for (size_t i = 0; done % STEP == 0 && i < STEP / sizeof *buffer; i++) buffer[i] = next_random(&state);
        ssize_t n = write(d->scratch, (const char *)buffer + done % STEP, STEP - (size_t)(done % STEP));
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0)
            return pot_fail(err, errno == ENOSPC || errno == EDQUOT ? POT_LIMIT : POT_IO,
                            "%s: a scratch file of %llu MiB cannot be written there: %s", path,
                            (unsigned long long)(bytes >> 20), strerror(errno));
        done += (uint64_t)n;
    }
    if (fsync(d->scratch))
        return pot_fail(err, POT_IO, "%s: the scratch file cannot be written: %s", path, strerror(errno));
    (void)posix_fadvise(d->scratch, 0, 0, POSIX_FADV_DONTNEED);
    return POT_OK;
}

static pot_status add_scratch(probe_disk *d, const char *path, uint64_t bytes, pot_err *err) {
    struct statvfs room;
    bytes = bytes / STEP * STEP;
    if (!statvfs(path, &room) && (uint64_t)room.f_bavail * room.f_frsize < 2 * bytes)
        return pot_fail(err, POT_LIMIT, "%s: %llu MiB are free; a scratch file of %llu MiB wants twice as much", path,
                        (unsigned long long)(room.f_bavail * room.f_frsize >> 20), (unsigned long long)(bytes >> 20));
    char *name = pot_path_join(path, ".potluck-scratch-XXXXXX"), link[64];
    uint64_t *buffer = pot_alloc(STEP);
    pot_status status =
        name && buffer ? POT_OK : pot_fail(err, POT_NO_MEMORY, "%s: no memory for a scratch file", path);
    if (!status) {
        d->scratch = mkostemp(name, O_CLOEXEC);
        if (d->scratch < 0)
            status = pot_fail(err, POT_IO, "%s: no scratch file can be made there: %s", path, strerror(errno));
        else
            unlink(name); /* whatever ends this process, nothing is left */
    }
    if (!status) status = write_scratch(d, path, bytes, buffer, err);
    if (!status) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", d->scratch);
        status = add_file(d, link, err);
    }
    if (!status && !d->n_files) status = pot_fail(err, POT_LIMIT, "%s: a scratch file is too small", path);
    pot_free(buffer);
    pot_free(name);
    return status;
}

static pot_read_engine engine_of(const char *name) {
    return !strcmp(name, "uring")  ? POT_READ_ENGINE_URING
           : !strcmp(name, "pool") ? POT_READ_ENGINE_POOL
                                   : POT_READ_ENGINE_AUTO;
}

pot_status probe_disk_open(probe_disk **out, const char *place, uint64_t scratch_bytes, const pot_settings *settings,
                           pot_err *err) {
    probe_disk *d = pot_alloc(sizeof *d);
    if (!d) return pot_fail(err, POT_NO_MEMORY, "no memory to measure a disk");
    *d = (probe_disk){.engine = engine_of(settings->read_engine),
                      .scratch = -1,
                      .random = 88172645463325252u,
                      .engine_text = "",
                      .path_text = ""};
    /* What is read through the cache now would be memory's rate the next time, so `auto` goes past it. */
    d->path = strcmp(settings->read_path, "cached") != 0 ? POT_READ_PATH_DIRECT : POT_READ_PATH_CACHED;
    pot_status status;
    if (pot_directory_exists(place)) {
        status = add_directory(d, place, err);
        if (!status && d->total < LEAST_TOTAL) {
            forget_files(d);
            status = scratch_bytes ? add_scratch(d, place, scratch_bytes, err)
                                   : pot_fail(err, POT_LIMIT, "%s: no large files", place);
        }
    } else if (!pot_file_exists(place)) {
        status = pot_fail(err, POT_NOT_FOUND, "%s: there is no such file or directory", place);
    } else {
        status = add_file(d, place, err);
        if (!status && d->total < LEAST_TOTAL)
            status = pot_fail(err, POT_LIMIT, "%s: smaller than %llu MiB, too small to measure a disk with", place,
                              (unsigned long long)(LEAST_TOTAL >> 20));
    }
    if (status) {
        probe_disk_close(d);
        return status;
    }
    *out = d;
    return POT_OK;
}

void probe_disk_close(probe_disk *d) {
    if (!d) return;
    forget_files(d);
    if (d->scratch >= 0) close(d->scratch);
    pot_free(d);
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

typedef struct running {
    probe_disk *disk;
    pot_reader *reader;
    pot_read reads[MOST_DEPTH];
    pot_err fault;
    uint32_t files[MOST_FILES]; /* the reader's numbers */
    uint32_t depth, bytes;
} running;

/* Any file that is large enough, any place in it: by bytes, so that a large file is read more often than a small one. */
static void submit(running *r, pot_read *read) {
    probe_disk *d = r->disk;
    uint64_t at = next_random(&d->random) % d->total;
    int file = 0;
    while (file + 1 < d->n_files && at >= d->bytes[file]) at -= d->bytes[file++];
    uint64_t places = (d->bytes[file] - r->bytes) / POT_READ_ALIGN + 1;
    read->file = r->files[file];
    read->offset = at / POT_READ_ALIGN % places * POT_READ_ALIGN;
    read->bytes = r->bytes;
    read->err = &r->fault;
    pot_reader_submit(r->reader, &read, 1, false);
}

/* GB/s; reads that are in flight at the end are the next window's. */
static pot_status window(double *out, running *r, double seconds, pot_err *err) {
    uint64_t bytes = 0;
    double begin = pot_bench_seconds(), now = begin;
    while (now - begin < seconds) {
        pot_read *read = pot_reader_take(r->reader, WAIT_US);
        if (pot_stop_requested()) return pot_fail(err, POT_CANCELLED, "stopped");
        if (!read)
            return pot_fail(err, POT_TIMEOUT, "%s: a read has not finished in %d s", r->disk->files[0],
                            WAIT_US / 1000000);
        if (read->status) return pot_fail(err, read->status, "%s", r->fault.text);
        bytes += read->bytes;
        submit(r, read);
        now = pot_bench_seconds();
    }
    *out = (double)bytes / (now - begin) * 1e-9;
    return POT_OK;
}

static pot_status run(pot_spread *out, running *r, int windows, double window_s, pot_err *err) {
    enum { MOST_WINDOWS = 64 };
    double rates[MOST_WINDOWS], warm;
    pot_status status = POT_OK;
    if (windows > MOST_WINDOWS) windows = MOST_WINDOWS;
    for (int f = 0; !status && f < r->disk->n_files; f++)
        status = pot_reader_open(&r->files[f], r->reader, r->disk->files[f], err);
    if (status) return status;
    for (uint32_t i = 0; i < r->depth; i++) submit(r, &r->reads[i]);
    status = window(&warm, r, window_s / 3, err);
    for (int w = 0; !status && w < windows; w++) status = window(&rates[w], r, window_s, err);
    if (!status) *out = pot_spread_of(rates, windows);
    r->disk->engine_text = pot_reader_engine(r->reader);
    r->disk->path_text = pot_reader_path(r->reader);
    return status;
}

pot_status probe_disk_rate(pot_spread *out, probe_disk *d, uint32_t depth, uint32_t bytes, int windows, double window_s,
                           pot_err *err) {
    pot_slab memory;
    running *r = pot_alloc(sizeof *r);
    if (!r) return pot_fail(err, POT_NO_MEMORY, "no memory to measure a disk");
    *r = (running){.disk = d, .depth = depth < MOST_DEPTH ? depth : MOST_DEPTH, .bytes = bytes};
    pot_status status = pot_slab_create(&memory, (size_t)r->depth * bytes, "reads from disk", err);
    if (!status) {
        pot_reader_options options = {.engine = d->engine, .path = d->path, .depth = r->depth};
        for (uint32_t i = 0; i < r->depth; i++) r->reads[i].into = memory.base + (size_t)i * bytes;
        status = pot_reader_create(&r->reader, &options, err);
        if (!status) {
            status = run(out, r, windows, window_s, err);
            /* Reads that hang may yet write to their memory: then it stays. */
            if (!pot_reader_free(r->reader))
                return status ? status : pot_fail(err, POT_TIMEOUT, "%s: hangs", d->files[0]);
        }
        pot_slab_free(&memory);
    }
    pot_free(r);
    return status;
}
