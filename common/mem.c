/* Heap objects, slabs and the memory that is left.
 *
 * Objects come from malloc; a test can make the nth allocation fail.  A slab is an anonymous mapping of whole 2 MiB
 * pages: one more page is mapped than needed and the ends are given back, which is how mmap is made to align.
 * What is left is the smaller of MemAvailable and the room in every cgroup above this process, where file pages count
 * as room because the kernel drops them before it kills anyone. */
#include "common/mem.h"

#include <inttypes.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static const size_t huge_page = (size_t)2 << 20;
static _Atomic uint64_t fail_countdown;

void pot_mem_fail_at(uint64_t nth) { atomic_store(&fail_countdown, nth); }

static bool must_fail(void) {
    uint64_t left = atomic_load_explicit(&fail_countdown, memory_order_relaxed);
    while (left && !atomic_compare_exchange_weak(&fail_countdown, &left, left - 1)) continue;
    return left == 1;
}

/* ---- objects ----------------------------------------------------------------------------------- */

void *pot_alloc(size_t bytes) { return must_fail() ? NULL : calloc(1, bytes ? bytes : 1); }

void *pot_alloc_array(size_t count, size_t size) {
    size_t bytes;
    return __builtin_mul_overflow(count, size, &bytes) ? NULL : pot_alloc(bytes);
}

void *pot_realloc_array(void *old, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || must_fail()) return NULL;
    return realloc(old, bytes ? bytes : 1); /* realloc(p, 0) would free p and look like a failure */
}

char *pot_strdup(const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = pot_alloc(bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

void *pot_alloc_aligned(size_t bytes) {
    void *pointer;
    if (bytes > SIZE_MAX - 64 || must_fail()) return NULL;
    bytes = (bytes + 63) & ~(size_t)63; /* kernels may read whole lines at the end */
    if (posix_memalign(&pointer, 64, bytes ? bytes : 64)) return NULL;
    memset(pointer, 0, bytes);
    return pointer;
}

void pot_free(void *pointer) { free(pointer); }

/* ---- slabs ------------------------------------------------------------------------------------- */

static size_t whole_pages(size_t bytes) { return (bytes + huge_page - 1) & ~(huge_page - 1); }

static pot_status no_room(size_t bytes, const char *what, pot_err *err) {
    pot_memory_info memory;
    pot_memory_read(&memory);
    return pot_fail(err, POT_NO_MEMORY, "%s: %.3f GiB needed, %.3f GiB can still be used on this machine", what,
                    (double)bytes / 0x1p30, (double)memory.usable_bytes / 0x1p30);
}

pot_status pot_slab_create(pot_slab *out, size_t bytes, const char *what, pot_err *err) {
    if (bytes == 0) {
        *out = (pot_slab){0};
        return POT_OK;
    }
    if (bytes > (size_t)PTRDIFF_MAX - 2 * huge_page || must_fail()) return no_room(bytes, what, err);
    size_t size = whole_pages(bytes);
    uint8_t *map = mmap(NULL, size + huge_page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map == MAP_FAILED) return no_room(bytes, what, err);
    size_t before = -(uintptr_t)map & (huge_page - 1);
    if (before) munmap(map, before);
    munmap(map + before + size, huge_page - before);
    /* Small ones (tests, tiny models) would only waste memory on a huge page; a kernel without them may refuse. */
    if (bytes >= huge_page) madvise(map + before, size, MADV_HUGEPAGE);
    *out = (pot_slab){.base = map + before, .bytes = bytes};
    return POT_OK;
}

void pot_slab_free(pot_slab *slab) {
    if (slab->base) munmap(slab->base, whole_pages(slab->bytes));
    *slab = (pot_slab){0};
}

/* ---- what is left ------------------------------------------------------------------------------ */

/* The number after `key` at the start of a line ("MemAvailable:", "inactive_file "), or `fallback`. */
static uint64_t number_in_file(const char *path, const char *key, uint64_t fallback) {
    FILE *file = fopen(path, "re");
    if (!file) return fallback;
    char line[256];
    uint64_t value = fallback;
    size_t length = strlen(key);
    while (fgets(line, sizeof line, file)) {
        if (!strncmp(line, key, length) && sscanf(line + length, "%" SCNu64, &value) == 1) break;
    }
    fclose(file);
    return value;
}

static uint64_t subtract(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

typedef struct cgroup_files {
    const char *limit, *used, *inactive, *active; /* file names; keys in memory.stat */
} cgroup_files;

/* One cgroup folder.  "max" does not parse as a number and v1 writes a huge one; both mean that there is no limit. */
static void read_cgroup(pot_memory_info *out, uint64_t *room, const char *folder, const cgroup_files *names) {
    char path[PATH_MAX + 64];
    snprintf(path, sizeof path, "%s/%s", folder, names->limit);
    uint64_t limit = number_in_file(path, "", UINT64_MAX);
    if (limit >= out->total_bytes) return;
    snprintf(path, sizeof path, "%s/%s", folder, names->used);
    uint64_t used = number_in_file(path, "", 0);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    uint64_t file = number_in_file(path, names->inactive, 0) + number_in_file(path, names->active, 0);
    uint64_t left = subtract(limit, subtract(used, file));
    if (limit < out->cgroup_limit_bytes) out->cgroup_limit_bytes = limit;
    if (left < *room) *room = left;
}

/* From the process's own cgroup up to the mount: each of them may set a limit.  In a container /proc may show the
 * host's path, which is not there; then only the folders that exist (at least the mount itself) count. */
static void walk_cgroups(pot_memory_info *out, uint64_t *room, const char *mount, const char *path,
                         const cgroup_files *names) {
    char folder[PATH_MAX];
    int n = snprintf(folder, sizeof folder, "%s%s", mount, path);
    if (n < 0 || n >= (int)sizeof folder) return;
    for (;;) {
        read_cgroup(out, room, folder, names);
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < strlen(mount)) return;
        *slash = 0;
    }
}

static uint64_t read_cgroups(pot_memory_info *out) {
    static const cgroup_files v2 = {"memory.max", "memory.current", "inactive_file ", "active_file "};
    static const cgroup_files v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file ",
                                    "total_active_file "};
    uint64_t room = UINT64_MAX;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file) return room;
    char line[PATH_MAX];
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':');
        char *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        controllers++;
        if (!strcmp(path, "/")) path++; /* no trailing slash after the mount */
        if (!*controllers) {
            walk_cgroups(out, &room, "/sys/fs/cgroup", path, &v2);
        } else if (strstr(controllers, "memory")) {
            walk_cgroups(out, &room, "/sys/fs/cgroup/memory", path, &v1);
        }
    }
    fclose(file);
    return room;
}

void pot_memory_read(pot_memory_info *out) {
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * page;
    uint64_t free_now = (uint64_t)sysconf(_SC_AVPHYS_PAGES) * page;
    *out = (pot_memory_info){.total_bytes = total, .cgroup_limit_bytes = UINT64_MAX};
    out->available_bytes = number_in_file("/proc/meminfo", "MemAvailable:", free_now / 1024) * 1024;
    uint64_t room = read_cgroups(out);
    out->usable_bytes = room < out->available_bytes ? room : out->available_bytes;
}

uint64_t pot_memory_reserve(uint64_t total_bytes) {
    const uint64_t least = (uint64_t)256 << 20, most = (uint64_t)4 << 30, part = total_bytes / 16;
    return part < least ? least : part > most ? most : part;
}

uint64_t pot_memory_resident(void) { return number_in_file("/proc/self/status", "VmRSS:", 0) * 1024; }
uint64_t pot_memory_peak(void) { return number_in_file("/proc/self/status", "VmHWM:", 0) * 1024; }

void pot_memory_peak_reset(void) {
    FILE *file = fopen("/proc/self/clear_refs", "we");
    if (!file) return;
    fputs("5", file); /* see proc(5) */
    fclose(file);
}
