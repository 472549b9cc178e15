/* The pool is a ring: each window takes the bytes after those of the window before, so that all of it is equally cold.  A roofline window
 * gives every thread one contiguous part, which it reads as a few long streams; which number of streams is best, and whether prefetching
 * helps, differs between machines and is found out at the start. */
#include "cli/bench_probe.h"

#include <hwloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/file.h"

/* ---- numbers ------------------------------------------------------------------------------------------------------ */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

pot_spread pot_spread_of(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, compare);
    return (pot_spread){.median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2,
                        .p10 = values[(n - 1) / 10],
                        .p90 = values[n - 1 - (n - 1) / 10]};
}

double pot_bench_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- ways to read ------------------------------------------------------------------------------------------------- */

typedef uint64_t lanes __attribute__((vector_size(16)));

/* A line of each stream in turn; the streams follow each other in memory. */
static inline __attribute__((always_inline)) uint64_t read_plain(const uint8_t *data, size_t bytes, const int streams,
                                                                 const size_t ahead) {
    lanes sum[4] = {{0}};
    size_t each = bytes / (size_t)streams;
    for (size_t at = 0; at < each; at += POT_LINE_BYTES)
        for (int s = 0; s < streams; s++) {
            const lanes *line = (const lanes *)(const void *)(data + (size_t)s * each + at);
            if (ahead) __builtin_prefetch((const uint8_t *)line + ahead);
            for (int i = 0; i < 4; i++) sum[i] += line[i];
        }
    sum[0] += sum[1] + sum[2] + sum[3];
    return sum[0][0] + sum[0][1];
}

enum { AHEAD = 1024 };

#define PLAIN(name, streams, ahead)                                                       \
    static uint64_t name(const pot_kernels *kernels, const uint8_t *data, size_t bytes) { \
        (void)kernels;                                                                    \
        return read_plain(data, bytes, streams, ahead);                                   \
    }
PLAIN(one, 1, 0)
PLAIN(one_ahead, 1, AHEAD)
PLAIN(two, 2, 0)
PLAIN(two_ahead, 2, AHEAD)
PLAIN(four, 4, 0)
PLAIN(four_ahead, 4, AHEAD)

static uint64_t kernel_four(const pot_kernels *k, const uint8_t *data, size_t bytes) {
    size_t each = bytes / 4;
    return k->read_streams((const uint8_t *const[]){data, data + each, data + 2 * each, data + 3 * each}, each);
}

/* One stream, by the wide loads of the table: four neighbouring pages at a time. */
static uint64_t kernel_one(const pot_kernels *k, const uint8_t *data, size_t bytes) {
    enum { PAGE = 4096 };
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes; at += 4 * PAGE) sum += kernel_four(k, data + at, 4 * PAGE);
    return sum;
}

static const struct {
    const char *name;
    uint64_t (*read)(const pot_kernels *k, const uint8_t *data, size_t bytes);
} ways[] = {
    {"4 streams a thread, wide loads, prefetch", kernel_four},
    {"1 stream a thread by 4 pages, wide loads, prefetch", kernel_one},
    {"1 stream a thread", one},
    {"1 stream a thread, prefetch", one_ahead},
    {"2 streams a thread", two},
    {"2 streams a thread, prefetch", two_ahead},
    {"4 streams a thread", four},
    {"4 streams a thread, prefetch", four_ahead},
};
enum { WAYS = sizeof ways / sizeof ways[0], UNIT = 4 * 4096 /* what every way can divide */ };

const char *pot_roof_way(const pot_roof *roof) { return ways[roof->way].name; }

/* ---- the pool ----------------------------------------------------------------------------------------------------- */

pot_status pot_roof_create(pot_roof *out, pot_team *team, size_t bytes, pot_err *err) {
    pot_roof roof = {.team = team};
    pot_status status = pot_kernels_pick(&roof.reads, "auto", err);
    if (!status) status = pot_slab_create(&roof.slab, bytes, "weights to measure with", err);
    if (!status) *out = roof;
    return status;
}

void pot_roof_free(pot_roof *roof) { pot_slab_free(&roof->slab); }

typedef struct filling {
    uint8_t *base;
    size_t bytes, pattern_bytes;
    const uint8_t *pattern;
} filling;

static void fill_part(void *context, int thread, int threads) {
    const filling *f = context;
    uint32_t begin, end;
    pot_team_share(&begin, &end, (uint32_t)((f->bytes + f->pattern_bytes - 1) / f->pattern_bytes), thread, threads);
    for (uint32_t i = begin; i < end; i++) {
        size_t at = i * f->pattern_bytes, left = f->bytes - at;
        memcpy(f->base + at, f->pattern, left < f->pattern_bytes ? left : f->pattern_bytes);
    }
}

void pot_roof_fill(pot_roof *roof, size_t bytes, const uint8_t *pattern, size_t pattern_bytes) {
    POT_ASSERT(bytes <= roof->slab.bytes && pattern_bytes > 0);
    filling f = {roof->slab.base, bytes, pattern_bytes, pattern};
    pot_team_run(roof->team, UINT64_MAX, fill_part, &f);
    roof->bytes = bytes;
    roof->next = 0;
}

const uint8_t *pot_roof_take(pot_roof *roof, size_t bytes, size_t align) {
    size_t at = (roof->next + align - 1) / align * align;
    POT_ASSERT(bytes <= roof->bytes);
    if (at + bytes > roof->bytes) at = 0;
    roof->next = at + bytes;
    return roof->slab.base + at;
}

/* ---- windows ------------------------------------------------------------------------------------------------------ */

typedef struct reading {
    const pot_roof *roof;
    const uint8_t *data;
    size_t each;              /* bytes a thread */
    _Atomic uint64_t checked; /* so that no read can be left out */
} reading;

static void read_part(void *context, int thread, int threads) {
    reading *r = context;
    (void)threads;
    atomic_fetch_add(&r->checked, ways[r->roof->way].read(r->roof->reads, r->data + (size_t)thread * r->each, r->each));
}

double pot_roof_roofline(pot_roof *roof, size_t bytes) {
    size_t threads = (size_t)pot_team_threads(roof->team);
    reading r = {.roof = roof, .each = bytes / threads / UNIT * UNIT};
    if (!r.each) r.each = UNIT;
    r.data = pot_roof_take(roof, r.each * threads, UNIT);
    double begin = pot_bench_seconds();
    pot_team_run(roof->team, UINT64_MAX, read_part, &r);
    return (double)(r.each * threads) / (pot_bench_seconds() - begin) * 1e-9;
}

double pot_roof_choose(pot_roof *roof, double window_s) {
    enum { ROUNDS = 21 };
    double rate[WAYS][ROUNDS], best = 0;
    int chosen = 0;
    size_t most = roof->bytes / 2, bytes = most;
    for (int round = -1; round < ROUNDS; round++) /* the first one finds out how much a window reads */
        for (int w = 0; w < WAYS; w++) {
            roof->way = w;
            double r = pot_roof_roofline(roof, bytes);
            if (round >= 0) {
                rate[w][round] = r;
            } else if (w == 0) {
                double wanted = r * 1e9 * window_s;
                bytes = wanted < (double)most ? (size_t)wanted : most;
            }
        }
    for (int w = 0; w < WAYS; w++) {
        double r = pot_spread_of(rate[w], ROUNDS).median;
        if (r > best) {
            best = r;
            chosen = w;
        }
    }
    roof->way = chosen;
    return best;
}

typedef struct turning {
    uint64_t (*peak)(uint64_t rounds);
    uint64_t rounds;
    _Atomic uint64_t operations;
} turning;

static void turn_part(void *context, int thread, int threads) {
    turning *t = context;
    (void)thread;
    (void)threads;
    atomic_fetch_add(&t->operations, t->peak(t->rounds));
}

double pot_roof_peak(const pot_roof *roof, const pot_kernels *kernels, bool integer, double window_s) {
    turning t = {.peak = integer ? kernels->peak_int8 : kernels->peak_float, .rounds = 4096};
    for (;;) { /* a tenth of the window, at least, tells how many rounds fill it */
        double begin = pot_bench_seconds();
        t.peak(t.rounds);
        double seconds = pot_bench_seconds() - begin;
        if (seconds > window_s / 10) {
            double rounds = (double)t.rounds * window_s / seconds;
            t.rounds = rounds > 1 ? (uint64_t)rounds : 1;
            break;
        }
        t.rounds *= 4;
    }
    double begin = pot_bench_seconds();
    pot_team_run(roof->team, UINT64_MAX, turn_part, &t);
    return (double)atomic_load(&t.operations) / (pot_bench_seconds() - begin) * 1e-9;
}

/* ---- the machine -------------------------------------------------------------------------------------------------- */

uint64_t pot_roof_cache_bytes(void) {
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology)) return 0;
    uint64_t bytes = 0;
    if (!hwloc_topology_load(topology)) {
        hwloc_obj_t cache = NULL;
        while ((cache = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_L3CACHE, cache)))
            bytes += cache->attr->cache.size;
    }
    hwloc_topology_destroy(topology);
    return bytes;
}

void pot_roof_cpu(char *name, size_t size) {
    pot_buffer text = {0};
    snprintf(name, size, "unknown CPU");
    if (pot_file_read(&text, "/proc/cpuinfo", 64 << 20, NULL) == POT_OK) {
        const char *at = strstr(text.data, "model name");
        if (at) at = strchr(at, ':');
        if (at) snprintf(name, size, "%.*s", (int)strcspn(at + 2, "\n"), at + 2);
    }
    pot_buffer_free(&text);
}
