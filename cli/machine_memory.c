/* Memory and cores: the rate at which all threads together read what no cache holds, the same with a multiplication, and how much they can
 * multiply when nothing has to be read. */
#include <stdlib.h>
#include <string.h>

#include "cli/machine_probe.h"
#include "common/system.h"
#include "kernels/ffn.h"
#include "kernels/linear.h"

enum {
    WINDOWS = 15,
    EXPERTS = 8, /* of a token */
    CHUNKS = 8,
    GRID = 24,
    ROWS = 6144,
    COLS = 6144 /* a projection of GLM-5.2 */
};
#define LEAST_POOL ((size_t)256 << 20)
#define MOST_POOL ((size_t)1 << 30)

double probe_busy(void) {
    double load;
    return getloadavg(&load, 1) == 1 && load > 0.5 * pot_cpus_physical() + 0.5 ? load : 0;
}

typedef struct probe {
    pot_roof roof;
    pot_compute compute;
    pot_acts acts;
    float *x, *y;
    int64_t *sums;
    pot_ffn_scratch scratch;
    size_t matrix_bytes;
} probe;

/* Codes and scales of any bits would do, were there no NaN: every byte 0x38 gives f32 and f16 scales that are small and positive. */
static pot_status prepare(probe *p, size_t pool, pot_err *err) {
    uint8_t bytes[4096];
    memset(bytes, 0x38, sizeof bytes);
    p->matrix_bytes = pot_matrix_bytes(POT_FORMAT_Q4_G64, ROWS, COLS);
    p->x = pot_alloc_array(COLS, sizeof(float));
    p->y = pot_alloc_array(ROWS, sizeof(float));
    p->sums = pot_alloc_array(COLS, sizeof *p->sums);
    if (!p->x || !p->y || !p->sums) return pot_fail(err, POT_NO_MEMORY, "no memory to measure the memory with");
    pot_roof_fill(&p->roof, pool, bytes, sizeof bytes);
    for (int i = 0; i < COLS; i++) p->x[i] = (float)(i % 17 - 8);
    pot_status status = pot_acts_create(&p->acts, 1, COLS, err);
    return status ? status
                  : pot_acts_fill(&p->acts, &p->compute, p->x, COLS, COLS, 1, pot_act_need(POT_FORMAT_Q4_G64), err);
}

/* GB/s of packed weights. */
static double multiply(probe *p, double seconds) {
    double begin = pot_bench_seconds(), bytes = 0, now = begin;
    while (now - begin < seconds) {
        pot_matrix w = {.data = pot_roof_take(&p->roof, p->matrix_bytes, 64),
                        .tile_stride = pot_tile_bytes(POT_FORMAT_Q4_G64, COLS, 0),
                        .rows = ROWS,
                        .cols = COLS,
                        .format = POT_FORMAT_Q4_G64};
        pot_linear(&p->compute, p->y, ROWS, &w, p->acts.rows, 1);
        bytes += (double)p->matrix_bytes;
        now = pot_bench_seconds();
    }
    return bytes / (now - begin) * 1e-9;
}

/* Seconds for EXPERTS' worth of chunks that lie somewhere else each time. */
static pot_status run_chunks(double *out, probe *p, const pot_ffn_shape *shape, pot_err *err) {
    static const uint32_t first = 0;
    static const float weight = 1;
    pot_ffn_job jobs[EXPERTS * CHUNKS];
    size_t bytes = pot_chunk_bytes(shape, 0);
    for (int i = 0; i < EXPERTS * CHUNKS; i++) {
        jobs[i] = (pot_ffn_job){.n_rows = 1, .rows = &first, .weights = &weight};
        pot_chunk_view(&jobs[i].chunk, shape, 0, pot_roof_take(&p->roof, bytes, POT_CHUNK_ALIGN));
    }
    double begin = pot_bench_seconds();
    pot_status status =
        pot_ffn_run(&p->compute, p->sums, COLS, p->acts.rows, jobs, EXPERTS * CHUNKS, GRID, &p->scratch, err);
    *out = pot_bench_seconds() - begin;
    return status;
}

/* Chunks of 256 and of 32 rows: what the small ones take more than an eighth of the large ones is not for bytes. */
static pot_status beside_bytes(double *out, probe *p, pot_err *err) {
    pot_ffn_shape large, small;
    double t, u;
    pot_ffn_shape_init(&large, COLS, 2048, POT_FORMAT_MXFP4, POT_FORMAT_MXFP4);
    pot_ffn_shape_init(&small, COLS, 256, POT_FORMAT_MXFP4, POT_FORMAT_MXFP4);
    pot_status status = run_chunks(&t, p, &large, err);
    if (!status) status = run_chunks(&u, p, &small, err);
    double part = (double)pot_chunk_bytes(&small, 0) / (double)pot_chunk_bytes(&large, 0);
    if (!status) *out = (u - part * t) / (1 - part) / EXPERTS;
    return status;
}

static pot_status measure(probe_memory *out, probe *p, double seconds, pot_err *err) {
    double ram[WINDOWS], dense[WINDOWS], gop[WINDOWS], expert[WINDOWS];
    double window = seconds / (4 * WINDOWS);
    double rate = pot_roof_choose(&p->roof, window / 8);
    double bytes = rate * 1e9 * window;
    size_t most = p->roof.bytes / 2;
    pot_status status = POT_OK;
    for (int i = 0; i < WINDOWS; i++) {
        if (pot_stop_requested()) return pot_fail(err, POT_CANCELLED, "stopped");
        ram[i] = pot_roof_roofline(&p->roof, bytes < (double)most ? (size_t)bytes : most);
        dense[i] = multiply(p, window);
        gop[i] = pot_roof_peak(&p->roof, p->compute.kernels, false, window / 2);
        status = beside_bytes(&expert[i], p, err);
        if (status) return status;
    }
    out->ram_gb_per_s = pot_spread_of(ram, WINDOWS);
    out->dense_gb_per_s = pot_spread_of(dense, WINDOWS);
    out->gop_per_s = pot_spread_of(gop, WINDOWS);
    out->expert_s = pot_spread_of(expert, WINDOWS);
    out->way = pot_roof_way(&p->roof);
    return POT_OK;
}

/* Four times what the caches hold, within what is free. */
static pot_status choose_pool(size_t *out, pot_err *err) {
    pot_memory_info memory;
    pot_memory_read(&memory);
    uint64_t cache = 4 * pot_roof_cache_bytes();
    *out = cache < LEAST_POOL ? LEAST_POOL : cache < MOST_POOL ? (size_t)cache / 4096 * 4096 : MOST_POOL;
    if (*out <= memory.usable_bytes / 2) return POT_OK;
    return pot_fail(err, POT_NO_MEMORY,
                    "%zu MiB are needed to measure the memory with, twice as much should be free, %llu MiB are",
                    *out >> 20, (unsigned long long)(memory.usable_bytes >> 20));
}

pot_status probe_memory_measure(probe_memory *out, const pot_settings *settings, double seconds, pot_err *err) {
    probe p = {0};
    probe_memory result = {.threads = pot_threads_choose((int)settings->threads, 1)};
    pot_status status = choose_pool(&result.pool_bytes, err);
    if (!status) status = pot_kernels_pick(&p.compute.kernels, settings->kernels, err);
    if (!status) status = pot_team_create(&p.compute.team, result.threads, false, err);
    if (!status) status = pot_roof_create(&p.roof, p.compute.team, result.pool_bytes, err);
    if (!status) status = prepare(&p, result.pool_bytes, err);
    if (!status) status = measure(&result, &p, seconds, err);
    if (!status) *out = result;
    pot_acts_free(&p.acts);
    pot_free(p.x);
    pot_free(p.y);
    pot_free(p.sums);
    pot_ffn_scratch_free(&p.scratch);
    pot_roof_free(&p.roof);
    pot_team_free(p.compute.team);
    return status;
}
