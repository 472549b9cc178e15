/* What a parallel region costs and when it pays: one product of a matrix and a row, in one thread and split over several, as CSV.
 *
 *   OMP_WAIT_POLICY=passive bench_regions [threads] >bench/results/HOST/regions.csv
 *
 * Without the variable, threads spin for a while before they sleep, which is quicker as long as nobody else wants their cores.
 * pot_worth_threads (kernels/kernels.h) rests on these numbers. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/mem.h"
#include "kernels/kernels.h"

enum { COLS = 256, MOST_ROWS = 16384, ROUNDS = 300, REPEATS = 7, PAUSE = 3000 };

/* Between two products of a model there is work in one thread: long enough for a core to fall asleep, but not for spinning to end. */
static void work_alone(void) {
    for (volatile int i = 0; i < PAUSE; i++) {
    }
}

static void multiply(float *y, const pot_kernels *k, const pot_matrix *w, const pot_act_row *x, int threads) {
    uint32_t tiles = pot_tiles(w->rows);
    if (threads == 1) {
        k->matmul[w->format](y, w->rows, w, 0, tiles, x, 1);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        uint64_t thread = (uint64_t)omp_get_thread_num(), all = (uint64_t)omp_get_num_threads();
        k->matmul[w->format](y, w->rows, w, (uint32_t)(tiles * thread / all), (uint32_t)(tiles * (thread + 1) / all), x,
                             1);
    }
}

/* Microseconds for one product; the best of several repeats, for others may use the machine. */
static double measure(float *y, const pot_kernels *k, const pot_matrix *w, const pot_act_row *x, int threads) {
    uint64_t best = UINT64_MAX;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        uint64_t spent = 0;
        for (int round = 0; round < ROUNDS; round++) {
            work_alone();
            uint64_t start = pot_now_us();
            multiply(y, k, w, x, threads);
            spent += pot_now_us() - start;
        }
        if (spent < best) best = spent;
    }
    return (double)best / ROUNDS;
}

int main(int argc, char **argv) {
    static const pot_format formats[] = {POT_FORMAT_Q8_G32, POT_FORMAT_MXFP4, POT_FORMAT_F32};
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    const pot_kernels *kernels;
    pot_err err;
    if (threads < 2 || pot_kernels_pick(&kernels, "auto", &err) != POT_OK) {
        fprintf(stderr, "usage: bench_regions [threads, at least 2]\n");
        return 1;
    }
    static int8_t codes[COLS];
    static float scales[COLS / POT_BLOCK], values[COLS], y[MOST_ROWS];
    const pot_act_row x = {codes, scales, values};
    printf("format,products,threads,one_us,split_us\n");
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (uint32_t rows = 64; rows <= MOST_ROWS; rows *= 2) {
            pot_matrix w = {.tile_stride = pot_tile_bytes(formats[f], COLS, 0),
                            .rows = rows,
                            .cols = COLS,
                            .format = (uint8_t)formats[f]};
            uint8_t *data = pot_alloc_aligned(w.tile_stride * pot_tiles(rows)); /* zeros */
            if (!data) return 1;
            w.data = data;
            printf("%s,%u,%d,%.1f,%.1f\n", pot_format_get(formats[f])->name, rows * COLS, threads,
                   measure(y, kernels, &w, &x, 1), measure(y, kernels, &w, &x, threads));
            pot_free(data);
        }
    return 0;
}
