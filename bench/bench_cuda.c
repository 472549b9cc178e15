/* The CUDA kernels on a real device: the same bits as the generic CPU kernels, then bytes per second of weights against
 * a copy on the device, interleaved, medians.  GLM's expert shape: hidden 6144, chunks of 256, eight chunks an expert.
 *
 *   build/release/bench/bench_cuda [DEVICE [ROUNDS]]
 *
 * "layer" reads 8 experts out of as many as fill POOL_BYTES, others every time, so that L2 does not help; "linear" one
 * of several matrices of 6144 x 6144.  A copy reads and writes, so its line counts both; fraction is weights per second over that.
 * seconds are those of the device between the first kernel's start and the last one's end. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/cuda/cuda.h"
#include "kernels/linear.h"

enum { HIDDEN = 6144, INNER = 2048, CHOSEN = 8, MAX_CHUNKS = 8, GRID = 24, MAX_N = 16, MAX_ROUNDS = 200 };
static const size_t POOL_BYTES = (size_t)3 << 30;

static const pot_format FORMATS[] = {POT_FORMAT_MXFP4,  POT_FORMAT_Q4_G32, POT_FORMAT_Q4_G64, POT_FORMAT_Q4_G128,
                                     POT_FORMAT_Q4_ROW, POT_FORMAT_Q2_ROW, POT_FORMAT_Q8_G32, POT_FORMAT_Q8_ROW,
                                     POT_FORMAT_FP8,    POT_FORMAT_BF16,   POT_FORMAT_F32};
static const uint32_t COUNTS[] = {1, 2, 4, 8, 16};

static pot_err err;
static pot_cuda *cuda;
static const pot_kernels *generic;
static int rounds = 30;

static void check(pot_status s) {
    if (s == POT_OK) return;
    fprintf(stderr, "bench_cuda: %s\n", err.text);
    exit(pot_status_exit_code(s));
}

static uint32_t random_bits(void) {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 32);
}

static float random_float(void) { return (float)(int32_t)random_bits() * 0x1p-31f; }

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n) {
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[n / 2];
}

/* Words that are harmless as codes and as scales of a format: small, and about as many below zero as above. */
static void fill_weights(uint8_t *data, size_t bytes, pot_format format) {
    const bool e8m0 = format == POT_FORMAT_MXFP4;
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t word =
            e8m0 ? 0x70707070u | (random_bits() & 0x0f0f0f0fu) : 0x3c003c00u | (random_bits() & 0x80038003u);
        memcpy(data + i, &word, 4);
    }
}

typedef struct pool {
    uint8_t *host, *device; /* one unit on the host, all units on the device */
    size_t unit_bytes;
    uint32_t units;
} pool;

static pool pool_create(size_t unit_bytes, pot_format format) {
    pool p = {.unit_bytes = unit_bytes, .units = (uint32_t)(POOL_BYTES / unit_bytes)};
    p.host = pot_alloc_aligned(unit_bytes);
    if (p.host == NULL) check(pot_fail(&err, POT_NO_MEMORY, "no memory for %zu bytes of weights", unit_bytes));
    fill_weights(p.host, unit_bytes, format);
    check(pot_cuda_alloc(&p.device, cuda, p.units * unit_bytes, "the benchmark's weights", &err));
    for (uint32_t u = 0; u < p.units; u++)
        check(pot_cuda_upload(cuda, p.device + u * unit_bytes, p.host, unit_bytes, &err));
    return p;
}

static void pool_free(pool *p) {
    pot_free(p->host);
    pot_cuda_free(cuda, p->device);
}

static double copy_gbps(pool *p) {
    const size_t half = p->units / 2 * p->unit_bytes, bytes = half < (size_t)256 << 20 ? half : (size_t)256 << 20;
    check(pot_cuda_copy(cuda, p->device, p->device + half, bytes, &err));
    return 2e-9 * (double)bytes / pot_cuda_seconds(cuda);
}

static void print_line(const char *what, pot_format format, uint32_t n, double bytes, double *seconds, double *copies) {
    const double gbps = 1e-9 * bytes / median(seconds, rounds), copy = median(copies, rounds);
    printf("%s,%s,%u,%.1f,%.1f,%.1f,%.3f\n", what, pot_format_get(format)->name, n, 1e6 * seconds[rounds / 2], gbps,
           copy, gbps / copy);
    fflush(stdout);
}

static void bench_layer(pot_format format, const pot_acts *x) {
    pot_ffn_shape shape;
    pot_ffn_shape_init(&shape, HIDDEN, INNER, format, format);
    const size_t chunk = pot_chunk_bytes(&shape, 0);
    pool p = pool_create(shape.n_chunks * chunk, format);
    static uint32_t rows[MAX_N];
    static float weights[MAX_N];
    for (uint32_t i = 0; i < MAX_N; i++) {
        rows[i] = i;
        weights[i] = 0x1p-20f * random_float();
    }
    const size_t sums = (size_t)MAX_N * HIDDEN;
    int64_t *want = pot_alloc_array(sums, sizeof *want), *got = pot_alloc_array(sums, sizeof *got);
    if (want == NULL || got == NULL) check(pot_fail(&err, POT_NO_MEMORY, "no memory for sums"));
    for (size_t c = 0; c < sizeof COUNTS / sizeof COUNTS[0]; c++) {
        const uint32_t n = COUNTS[c];
        pot_ffn_job jobs[CHOSEN * MAX_CHUNKS];
        const uint32_t n_jobs = CHOSEN * shape.n_chunks;
        double seconds[MAX_ROUNDS], copies[MAX_ROUNDS];
        for (int r = 0; r < rounds; r++) {
            for (uint32_t j = 0; j < n_jobs; j++) {
                const uint32_t expert = (j / shape.n_chunks + (uint32_t)r * CHOSEN) % p.units;
                jobs[j] = (pot_ffn_job){.expert = expert, .n_rows = n, .rows = rows, .weights = weights};
                pot_chunk_view(&jobs[j].chunk, &shape, j % shape.n_chunks,
                               p.device + expert * p.unit_bytes + j % shape.n_chunks * chunk);
            }
            check(pot_cuda_ffn_run(cuda, got, HIDDEN, x->rows, jobs, n_jobs, GRID, &err));
            seconds[r] = pot_cuda_seconds(cuda);
            copies[r] = copy_gbps(&p);
        }
        /* Two chunks of one expert against the CPU are enough: all experts are the same bytes. */
        const pot_compute compute = {.kernels = generic};
        pot_ffn_scratch scratch = {0};
        memset(want, 0, sums * sizeof *want);
        memset(got, 0, sums * sizeof *got);
        check(pot_cuda_ffn_run(cuda, got, HIDDEN, x->rows, jobs, 2, GRID, &err));
        for (uint32_t j = 0; j < 2; j++) pot_chunk_view(&jobs[j].chunk, &shape, j, p.host + j * chunk);
        check(pot_ffn_run(&compute, want, HIDDEN, x->rows, jobs, 2, GRID, &scratch, &err));
        pot_ffn_scratch_free(&scratch);
        if (memcmp(want, got, sums * sizeof *want) != 0)
            check(pot_fail(&err, POT_NUMERIC, "%s with %u rows: sums differ from the CPU's",
                           pot_format_get(format)->name, n));
        print_line("layer", format, n, (double)CHOSEN * (double)p.unit_bytes, seconds, copies);
    }
    pot_free(want);
    pot_free(got);
    pool_free(&p);
}

static void bench_linear(pot_format format, const pot_acts *x) {
    pool p = pool_create(pot_matrix_bytes(format, HIDDEN, HIDDEN), format);
    pot_matrix w = {
        .tile_stride = pot_tile_bytes(format, HIDDEN, 0), .rows = HIDDEN, .cols = HIDDEN, .format = (uint8_t)format};
    const size_t outputs = (size_t)MAX_N * HIDDEN;
    float *want = pot_alloc_array(outputs, sizeof *want), *got = pot_alloc_array(outputs, sizeof *got);
    if (want == NULL || got == NULL) check(pot_fail(&err, POT_NO_MEMORY, "no memory for outputs"));
    for (size_t c = 0; c < sizeof COUNTS / sizeof COUNTS[0]; c++) {
        const uint32_t n = COUNTS[c];
        double seconds[MAX_ROUNDS], copies[MAX_ROUNDS];
        for (int r = 0; r < rounds; r++) {
            w.data = p.device + (uint32_t)r % p.units * p.unit_bytes;
            check(pot_cuda_linear(cuda, got, HIDDEN, &w, x->rows, n, &err));
            seconds[r] = pot_cuda_seconds(cuda);
            copies[r] = copy_gbps(&p);
        }
        w.data = p.host;
        generic->matmul[format](want, HIDDEN, &w, 0, pot_tiles(256), x->rows, n);
        for (uint32_t i = 0; i < n; i++)
            if (memcmp(want + i * HIDDEN, got + i * HIDDEN, 256 * sizeof *want) != 0)
                check(pot_fail(&err, POT_NUMERIC, "%s with %u rows: outputs differ from the CPU's",
                               pot_format_get(format)->name, n));
        print_line("linear", format, n, (double)p.unit_bytes, seconds, copies);
    }
    pot_free(want);
    pot_free(got);
    pool_free(&p);
}

int main(int argc, char **argv) {
    const int device = argc > 1 ? atoi(argv[1]) : 0;
    if (argc > 2) rounds = atoi(argv[2]);
    if (rounds < 1 || rounds > MAX_ROUNDS)
        check(pot_fail(&err, POT_USAGE, "%s rounds, need 1 to %d", argv[2], MAX_ROUNDS));
    pot_cuda_info info;
    check(pot_cuda_describe(&info, device, &err));
    check(pot_cuda_open(&cuda, device, &err));
    check(pot_kernels_pick(&generic, "generic", &err));
    const pot_compute compute = {.kernels = generic};
    float *values = pot_alloc_array((size_t)MAX_N * HIDDEN, sizeof *values);
    if (values == NULL) check(pot_fail(&err, POT_NO_MEMORY, "no memory for activations"));
    for (size_t i = 0; i < (size_t)MAX_N * HIDDEN; i++) values[i] = random_float();
    pot_acts x;
    check(pot_acts_create(&x, MAX_N, HIDDEN, &err));
    check(pot_acts_fill(&x, &compute, values, HIDDEN, HIDDEN, MAX_N, POT_ACT_Q8 | POT_ACT_F32, &err));

    printf("# device %s, capability %d.%d, %d multiprocessors; medians of %d\n", info.name, info.capability / 10,
           info.capability % 10, info.multiprocessors, rounds);
    printf("case,format,rows,us,gbps,copy_gbps,fraction\n");
    for (size_t f = 0; f < sizeof FORMATS / sizeof FORMATS[0]; f++) {
        bench_layer(FORMATS[f], &x);
        bench_linear(FORMATS[f], &x);
    }
    pot_acts_free(&x);
    pot_free(values);
    pot_cuda_close(cuda);
    return 0;
}
