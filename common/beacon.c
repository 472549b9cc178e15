/* Where beacons lie, who may put one there, and whose owners are still alive.
 *
 * Every name is resolved below a directory that was opened once and looked at through its descriptor, and no link is followed: whoever puts
 * something else under the known name, before or meanwhile, changes nothing but that there is no beacon. */
#include "common/beacon.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"

enum { MAX_BYTES = 65536, MAX_ENTRIES = 4096, EVERY_US = 1000000, CHANGED_US = 100000 };

struct pot_beacon {
    int directory;
    char name[32], beside[40]; /* PID.json, .PID.json.tmp */
    pot_beacon_owner owner;
    uint64_t started_us;
    pot_beacon_facts last; /* as written; written_us unknown before the first time */
    bool complained;
};

/* ---- processes --------------------------------------------------------------------------------------------------------------- */

/* When a process was started, in ticks since boot: field 22 of its stat, where the second may hold any characters, but is followed by
 * the last parenthesis.  false when there is no such process, and *unknown when that cannot be said.  Allocates nothing. */
static bool start_of(uint64_t *ticks, bool *unknown, int64_t pid) {
    char path[64], text[2048];
    snprintf(path, sizeof path, "/proc/%" PRId64 "/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    *unknown = fd < 0 && errno != ENOENT && errno != ESRCH;
    if (fd < 0) return false;
    ssize_t n = read(fd, text, sizeof text - 1);
    *unknown = n < 0 && errno != ESRCH;
    close(fd);
    if (n <= 0) return false;
    text[n] = 0;
    char *at = strrchr(text, ')');
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    *unknown = !at || sscanf(at, " %" SCNu64, ticks) != 1;
    return !*unknown;
}

/* Gone for certain. */
static bool is_gone(int64_t pid) {
    uint64_t ticks;
    bool unknown;
    return !start_of(&ticks, &unknown, pid) && !unknown;
}

/* The number of the process number space that this process lives in, as a container has one of its own; 0 when unknown. */
static uint64_t own_space(void) {
    char text[64] = "";
    ssize_t n = readlink("/proc/self/ns/pid", text, sizeof text - 1);
    uint64_t number = 0;
    if (n > 0 && sscanf(text, "pid:[%" SCNu64 "]", &number) != 1) number = 0;
    return number;
}

/* ---- the directory ----------------------------------------------------------------------------------------------------------- */

/* "$XDG_RUNTIME_DIR/potluck"; NULL when that is not set. */
static char *session_directory(void) {
    const char *base = getenv("XDG_RUNTIME_DIR");
    return base && *base == '/' ? pot_path_join(base, "potluck") : NULL;
}

static void shared_directory(char *out, size_t size) { snprintf(out, size, "/tmp/potluck-%ld", (long)geteuid()); }

/* Opens it, refusing what is not this user's alone. */
static pot_status open_directory(int *out, const char *path, pot_err *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat info;
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
        return pot_fail(err, POT_REFUSED, "%s: is a link or a file, a directory was expected; remove it", path);
    if (fd < 0) {
        bool missing = errno == ENOENT;
        return pot_fail(err, missing ? POT_NOT_FOUND : POT_IO, "%s: cannot be opened: %s", path, strerror(errno));
    }
    pot_status status = POT_OK;
    if (fstat(fd, &info)) {
        status = pot_fail(err, POT_IO, "%s: cannot be examined: %s", path, strerror(errno));
    } else if (info.st_uid != geteuid()) {
        status = pot_fail(err, POT_REFUSED, "%s: belongs to user %ld, expected was %ld", path, (long)info.st_uid,
                          (long)geteuid());
    } else if (info.st_mode & 077) {
        status = pot_fail(err, POT_REFUSED, "%s: has mode %03o, which lets others in; expected was 700 (chmod 700 %s)",
                          path, (unsigned)(info.st_mode & 0777), path);
    }
    if (status) {
        close(fd);
        return status;
    }
    *out = fd;
    return POT_OK;
}

static pot_status make_directory(int *out, const char *path, pot_err *err) {
    if (mkdir(path, 0700) && errno != EEXIST)
        return pot_fail(err, POT_IO, "%s: cannot be made: %s", path, strerror(errno));
    return open_directory(out, path, err);
}

/* A session's directory may be gone while its processes go on: then the shared one does. */
static pot_status make_usual_directory(int *out, pot_err *err) {
    char shared[64];
    char *session = session_directory();
    bool done = session && !make_directory(out, session, err);
    pot_free(session);
    if (done) return POT_OK;
    shared_directory(shared, sizeof shared);
    return make_directory(out, shared, err);
}

/* ---- telling ------------------------------------------------------------------------------------------------------------------ */

pot_status pot_beacon_open(pot_beacon **out, const char *directory, pot_err *err) {
    int fd;
    bool unknown;
    pot_status status = directory ? make_directory(&fd, directory, err) : make_usual_directory(&fd, err);
    if (status) return status;
    pot_beacon *b = pot_alloc(sizeof *b);
    if (!b) {
        close(fd);
        return pot_fail(err, POT_NO_MEMORY, "no memory for a beacon");
    }
    b->directory = fd;
    b->owner = (pot_beacon_owner){.pid = getpid(), .space = own_space()};
    b->started_us = pot_now_us();
    b->last.written_us = POT_BEACON_UNKNOWN;
    snprintf(b->name, sizeof b->name, "%" PRId64 ".json", b->owner.pid);
    snprintf(b->beside, sizeof b->beside, ".%" PRId64 ".json.tmp", b->owner.pid);
    if (!start_of(&b->owner.start_ticks, &unknown, b->owner.pid)) {
        pot_beacon_close(b);
        return pot_fail(err, POT_IO,
                        "/proc/%ld/stat cannot be read, so that nobody could tell whether this process lives",
                        (long)getpid());
    }
    *out = b;
    return POT_OK;
}

void pot_beacon_close(pot_beacon *b) {
    if (!b) return;
    unlinkat(b->directory, b->name, 0);
    close(b->directory);
    pot_free(b);
}

bool pot_beacon_due(const pot_beacon *b, pot_beacon_state state, uint64_t now_us) {
    if (!b) return false;
    if (b->last.written_us == POT_BEACON_UNKNOWN) return true;
    uint64_t passed = now_us - b->last.written_us;
    return passed >= EVERY_US || (state != b->last.state && passed >= CHANGED_US);
}

static pot_status write_beside(const pot_beacon *b, int fd, const char *text, size_t bytes, pot_err *err) {
    pot_status status = POT_OK;
    while (bytes && !status) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            status = pot_fail(err, POT_IO, "%s: cannot be written: %s", b->beside, strerror(errno));
        } else {
            text += n;
            bytes -= (size_t)n;
        }
    }
    if (close(fd) && !status) status = pot_fail(err, POT_IO, "%s: cannot be closed: %s", b->beside, strerror(errno));
    return status;
}

/* Not synced: what a crash of the machine loses is of no use after it. */
pot_status pot_beacon_write(pot_beacon *b, const char *text, size_t bytes, pot_err *err) {
    const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(b->directory, b->beside, flags, 0600);
    if (fd < 0 && errno == EEXIST && !unlinkat(b->directory, b->beside, 0)) /* of one that was killed while writing */
        fd = openat(b->directory, b->beside, flags, 0600);
    if (fd < 0) return pot_fail(err, POT_IO, "%s: cannot be created: %s", b->beside, strerror(errno));
    pot_status status = write_beside(b, fd, text, bytes, err);
    if (!status && renameat(b->directory, b->beside, b->directory, b->name))
        status = pot_fail(err, POT_IO, "%s: cannot be replaced: %s", b->name, strerror(errno));
    if (status) unlinkat(b->directory, b->beside, 0);
    return status;
}

static double rate(uint64_t now, uint64_t before, uint64_t passed_us) {
    if (now == POT_BEACON_UNKNOWN || before == POT_BEACON_UNKNOWN || now < before || !passed_us) return NAN;
    return (double)(now - before) * 1e6 / (double)passed_us;
}

static void work_out_rates(pot_beacon_facts *f, const pot_beacon_facts *last) {
    f->hit_rate = NAN;
#define X(name, count) f->name = NAN;
    POT_BEACON_RATE_MAP(X)
#undef X
    if (last->written_us == POT_BEACON_UNKNOWN || f->written_us <= last->written_us) return;
    uint64_t passed = f->written_us - last->written_us;
#define X(name, count) f->name = rate(f->count, last->count, passed);
    POT_BEACON_RATE_MAP(X)
#undef X
    double wanted = rate(f->wanted_units, last->wanted_units, passed), hits = rate(f->ram_hits, last->ram_hits, passed);
    double vram_hits = rate(f->vram_hits, last->vram_hits, passed);
    if (wanted > 0 && isfinite(hits)) f->hit_rate = (hits + (isfinite(vram_hits) ? vram_hits : 0)) / wanted;
    if (f->hit_rate > 1) f->hit_rate = 1; /* counters that were not read at the same moment */
}

void pot_beacon_tell(pot_beacon *b, const pot_beacon_facts *facts, uint64_t now_us) {
    if (!b) return;
    pot_err err;
    pot_buffer text = {0};
    pot_beacon_facts f = *facts;
    f.started_us = b->started_us;
    f.written_us = now_us;
    work_out_rates(&f, &b->last);
    pot_beacon_format(&text, &b->owner, &f);
    pot_status status = text.failed ? pot_fail(&err, POT_NO_MEMORY, "no memory for %zu bytes", text.bytes)
                                    : pot_beacon_write(b, text.data, text.bytes, &err);
    pot_buffer_free(&text);
    b->last = f;
    if (status && !b->complained)
        POT_LOG(POT_LOG_WARN, "beacon", "`potluck status` will not see this process: %s", err.text);
    b->complained |= status != POT_OK;
}

/* ---- reading ------------------------------------------------------------------------------------------------------------------- */

/* "123.json" or ".123.json.tmp": whose file it is; 0 for any other name. */
static int64_t pid_of_name(const char *name) {
    char own[40];
    int64_t pid = strtoll(name + (*name == '.'), NULL, 10);
    if (pid <= 0 || pid > INT32_MAX) return 0;
    snprintf(own, sizeof own, "%" PRId64 ".json", pid);
    if (!strcmp(name, own)) return pid;
    snprintf(own, sizeof own, ".%" PRId64 ".json.tmp", pid);
    return strcmp(name, own) ? 0 : pid;
}

/* NOT_FOUND when it has gone meanwhile.  What is no file of this user is not read. */
static pot_status read_file(pot_buffer *out, int directory, const char *name, pot_err *err) {
    int fd = openat(directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    struct stat info;
    if (fd < 0)
        return pot_fail(err, errno == ENOENT ? POT_NOT_FOUND : POT_IO, "%s: cannot be opened: %s", name,
                        errno == ELOOP ? "it is a link" : strerror(errno));
    pot_status status = POT_OK;
    char block[4096];
    if (fstat(fd, &info) || !S_ISREG(info.st_mode) || info.st_uid != geteuid())
        status = pot_fail(err, POT_REFUSED, "%s: is not a regular file of this user", name);
    for (ssize_t n = 1; !status && n;) {
        n = read(fd, block, sizeof block);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) status = pot_fail(err, POT_IO, "%s: cannot be read: %s", name, strerror(errno));
        if (n > 0) pot_buffer_append(out, block, (size_t)n);
        if (!status && out->bytes > MAX_BYTES)
            status = pot_fail(err, POT_LIMIT, "%s: more than %d bytes", name, MAX_BYTES);
    }
    close(fd);
    if (!status && out->failed) status = pot_fail(err, POT_NO_MEMORY, "%s: no memory to read it", name);
    return status;
}

typedef enum verdict { SHOW, PASS_OVER, REMOVE } verdict;

/* A process of another number space cannot be looked up from here, so its file is left alone.  One that was written in the future was
 * written before the machine was started. */
static verdict judge(const pot_beacon_entry *e, const pot_beacon_owner *owner, uint64_t now_us) {
    uint64_t ticks, space = own_space();
    bool unknown;
    if (owner->space && space && owner->space != space) return PASS_OVER;
    if (!start_of(&ticks, &unknown, e->pid)) return unknown ? PASS_OVER : REMOVE;
    if (ticks != owner->start_ticks) return REMOVE;
    return e->facts.written_us <= now_us + EVERY_US ? SHOW : REMOVE;
}

/* e->pid is set.  fault is set for a file that cannot be understood but may be a live process's. */
static verdict look_at(pot_beacon_entry *e, int directory, const char *name) {
    pot_err err = {0};
    pot_buffer text = {0};
    pot_beacon_owner owner = {0};
    pot_status status = read_file(&text, directory, name, &err);
    if (!status) status = pot_beacon_parse(&owner, &e->facts, text.data ? text.data : "", text.bytes, name, &err);
    if (!status && owner.pid != e->pid)
        status =
            pot_fail(&err, POT_FORMAT, "%s: `pid` is %" PRId64 ", %" PRId64 " was expected", name, owner.pid, e->pid);
    pot_buffer_free(&text);
    if (status == POT_NOT_FOUND) return PASS_OVER;
    if (!status) return judge(e, &owner, pot_now_us());
    if (status != POT_NO_MEMORY && is_gone(e->pid)) return REMOVE;
    e->fault = pot_strdup(err.text);
    return e->fault ? SHOW : PASS_OVER;
}

static pot_status add_entry(pot_beacon_list *list, pot_beacon_entry *e, pot_err *err) {
    if ((list->n & (list->n - 1)) == 0) { /* grows at powers of two */
        pot_beacon_entry *more = pot_realloc_array(list->entries, list->n ? 2 * list->n : 1, sizeof *more);
        if (!more) return pot_fail(err, POT_NO_MEMORY, "no memory for %zu processes", list->n + 1);
        list->entries = more;
    }
    list->entries[list->n++] = *e;
    return POT_OK;
}

static pot_status read_directory(pot_beacon_list *list, const char *path, pot_err *err) {
    int fd;
    pot_status status = open_directory(&fd, path, err);
    if (status) return status;
    DIR *directory = fdopendir(fd);
    if (!directory) {
        close(fd);
        return pot_fail(err, POT_IO, "%s: cannot be listed: %s", path, strerror(errno));
    }
    for (struct dirent *d; !status && list->n < MAX_ENTRIES && (d = readdir(directory));) {
        pot_beacon_entry e = {.pid = pid_of_name(d->d_name)};
        bool half = d->d_name[0] == '.';
        if (!e.pid) continue;
        verdict v = !half ? look_at(&e, fd, d->d_name) : is_gone(e.pid) ? REMOVE : PASS_OVER;
        if (v == REMOVE) unlinkat(fd, d->d_name, 0);
        if (v == SHOW) status = add_entry(list, &e, err);
        if (status || v != SHOW) pot_free(e.fault);
    }
    closedir(directory);
    return status;
}

/* A directory that is not there has no beacons; one that is not to be trusted is said. */
static pot_status read_or_say(pot_beacon_list *list, const char *path, pot_err *err) {
    pot_err fault;
    pot_status status = read_directory(list, path, &fault);
    if (!status || status == POT_NOT_FOUND) return POT_OK;
    if (status == POT_NO_MEMORY) return pot_fail(err, status, "%s", fault.text);
    if (!list->fault) list->fault = pot_strdup(fault.text);
    return POT_OK;
}

static int by_pid(const void *a, const void *b) {
    const pot_beacon_entry *x = a, *y = b;
    return (x->pid > y->pid) - (x->pid < y->pid);
}

pot_status pot_beacon_list_read(pot_beacon_list *out, const char *directory, pot_err *err) {
    pot_beacon_list list = {0};
    pot_status status;
    if (directory) {
        status = read_or_say(&list, directory, err);
    } else {
        char path[64];
        char *session = session_directory();
        shared_directory(path, sizeof path);
        status = read_or_say(&list, path, err);
        if (!status && session && strcmp(session, path) != 0) status = read_or_say(&list, session, err);
        bool known = session && *session;
        snprintf(path, sizeof path, "/run/user/%ld/potluck", (long)geteuid());
        if (!status && !(known && !strcmp(session, path))) status = read_or_say(&list, path, err);
        pot_free(session);
    }
    if (status) {
        pot_beacon_list_free(&list);
        return status;
    }
    if (list.n) qsort(list.entries, list.n, sizeof *list.entries, by_pid);
    *out = list;
    return POT_OK;
}

void pot_beacon_list_free(pot_beacon_list *list) {
    for (size_t i = 0; i < list->n; i++) pot_free(list->entries[i].fault);
    pot_free(list->entries);
    pot_free(list->fault);
    *list = (pot_beacon_list){0};
}
