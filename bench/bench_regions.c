/* What it costs to call other threads, and from which size on it pays: a team (common/team.h) against a parallel region of OpenMP, as CSV.
 *
 *   bench_regions [threads] >bench/results/HOST/regions.csv
 *
 * A call of a part with nothing to do gives the cost itself; products of a matrix and a row, small enough to stay in a cache, show when
 * splitting pays.  Each is measured with helpers `awake` (calls follow each other, as within a token) and `asleep` (a pause before every
 * call, as behind a wait for the network).  `alone` is the caller without helpers, under the same pauses.  The last lines give the
 * least product, in multiplications, from which on the split is quicker: PRODUCTS_AWAKE and PRODUCTS_ASLEEP in common/team.c rest on
 * them.
 *
 * OpenMP reads OMP_WAIT_POLICY before main() and its threads keep spinning where it is `active`, so the program starts itself once for
 * each policy. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/mem.h"
#include "common/team.h"
#include "kernels/kernels.h"

enum {
    COLS = 256,
    LEAST_ROWS = 64,
    SIZES = 9,
    MOST_ROWS = LEAST_ROWS << (SIZES - 1),
    AWAKE_ROUNDS = 400,
    ASLEEP_ROUNDS = 100
};
enum { BETWEEN_US = 3, PAUSE_US = 1500 /* longer than the helpers of a team or a passive region spin */ };

typedef struct product {
    const pot_kernels *kernels;
    float *y;
    const pot_matrix *w; /* NULL: nothing to do */
    const pot_act_row *x;
} product;

static void part(void *context, int thread, int threads) {
    const product *p = context;
    if (!p->w) return;
    uint32_t begin, end;
    pot_team_share(&begin, &end, pot_tiles(p->w->rows), thread, threads);
    if (begin < end) p->kernels->matmul[p->w->format](p->y, p->w->rows, p->w, begin, end, p->x, 1);
}

/* ---- who runs it -------------------------------------------------------------------------------------------------- */

typedef void runner(pot_team *team, int threads, product *p);

static void alone(pot_team *team, int threads, product *p) {
    (void)team;
    (void)threads;
    part(p, 0, 1);
}

static void by_team(pot_team *team, int threads, product *p) {
    (void)threads;
    pot_team_run(team, UINT64_MAX, part, p);
}

static void by_openmp(pot_team *team, int threads, product *p) {
    (void)team;
#pragma omp parallel num_threads(threads)
    part(p, omp_get_thread_num(), omp_get_num_threads());
}

/* ---- time --------------------------------------------------------------------------------------------------------- */

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prints a line and returns the median. */
static double measure(const char *name, runner *run, pot_team *team, int threads, product *p, bool asleep) {
    double us[AWAKE_ROUNDS];
    const int rounds = asleep ? ASLEEP_ROUNDS : AWAKE_ROUNDS;
    for (int i = -2; i < rounds; i++) { /* the first two warm up */
        if (asleep) usleep(PAUSE_US);
        for (double begin = now_us(); now_us() - begin < BETWEEN_US;) { /* the caller's own work between two parts */
        }
        double begin = now_us();
        run(team, threads, p);
        if (i >= 0) us[i] = now_us() - begin;
    }
    qsort(us, (size_t)rounds, sizeof *us, compare);
    printf("%s,%s,%s,%u,%d,%.2f,%.2f,%.2f\n", name, asleep ? "asleep" : "awake",
           p->w ? pot_format_get((pot_format)p->w->format)->name : "nothing", p->w ? p->w->rows * COLS : 0, threads,
           us[rounds / 2], us[rounds / 10], us[rounds - 1 - rounds / 10]);
    fflush(stdout);
    return us[rounds / 2];
}

/* ---- all of it ---------------------------------------------------------------------------------------------------- */

static const pot_format formats[] = {POT_FORMAT_Q8_G32, POT_FORMAT_MXFP4, POT_FORMAT_F32};

/* All sizes of a format by one runner: `us` gets the medians. */
static bool measure_sizes(double us[SIZES], const char *name, runner *run, pot_team *team, int threads,
                          const pot_kernels *kernels, pot_format format, bool asleep) {
    static int8_t codes[COLS];
    static float scales[COLS / POT_BLOCK], values[COLS], y[MOST_ROWS];
    static int32_t sums[COLS / POT_BLOCK];
    const pot_act_row x = {codes, scales, sums, values};
    pot_matrix w = {.tile_stride = pot_tile_bytes(format, COLS, 0), .cols = COLS, .format = (uint8_t)format};
    uint8_t *data = pot_alloc_aligned(w.tile_stride * pot_tiles(MOST_ROWS)); /* zeros */
    if (!data) return false;
    w.data = data;
    for (int i = 0; i < SIZES; i++) {
        w.rows = (uint32_t)LEAST_ROWS << i;
        product p = {kernels, y, &w, &x};
        us[i] = measure(name, run, team, threads, &p, asleep);
    }
    pot_free(data);
    return true;
}

/* From here on the split is quicker at every size. */
static void print_threshold(const char *name, bool asleep, pot_format format, const double *one, const double *split) {
    int i = SIZES;
    while (i > 0 && split[i - 1] < one[i - 1]) i--;
    const char *state = asleep ? "asleep" : "awake", *of = pot_format_get(format)->name;
    if (i < SIZES) {
        printf("# %s, %s, %s: splitting pays from %d multiplications on\n", name, state, of, (LEAST_ROWS << i) * COLS);
    } else {
        printf("# %s, %s, %s: splitting does not pay up to %d multiplications\n", name, state, of, MOST_ROWS * COLS);
    }
}

static int measure_all(int threads, const char *policy) {
    const pot_kernels *kernels;
    pot_team *team = NULL;
    pot_err err;
    char openmp[32];
    snprintf(openmp, sizeof openmp, "openmp-%s", policy);
    if (pot_kernels_pick(&kernels, "auto", &err) || pot_team_create(&team, threads, true, &err)) {
        fprintf(stderr, "bench_regions: %s\n", err.text);
        return 1;
    }
    const struct {
        const char *name;
        runner *run;
    } runners[] = {{"team", by_team}, {openmp, by_openmp}};
    /* The team before the threads of OpenMP exist, and only once: beside active ones it would be disturbed. */
    bool good = true;
    for (int r = strcmp(policy, "passive") != 0; r < 2; r++)
        for (int asleep = 0; asleep < 2; asleep++) {
            product nothing = {0};
            measure(runners[r].name, runners[r].run, team, threads, &nothing, asleep);
            for (size_t f = 0; f < sizeof formats / sizeof *formats && good; f++) {
                double one[SIZES], split[SIZES];
                good =
                    measure_sizes(one, "alone", alone, team, 1, kernels, formats[f], asleep) &&
                    measure_sizes(split, runners[r].name, runners[r].run, team, threads, kernels, formats[f], asleep);
                if (good) print_threshold(runners[r].name, asleep, formats[f], one, split);
            }
        }
    pot_team_free(team);
    return !good;
}

/* This program again, with the policy in its environment. */
static int measure_under(const char *policy, char **argv) {
    int status;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        setenv("OMP_WAIT_POLICY", policy, 1);
        execv("/proc/self/exe", argv);
        _exit(127);
    }
    return child < 0 || waitpid(child, &status, 0) != child || status != 0;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    if (threads < 2) {
        fprintf(stderr, "usage: bench_regions [threads, at least 2]\n");
        return 1;
    }
    const char *policy = getenv("OMP_WAIT_POLICY");
    if (policy) return measure_all(threads, policy);
    printf("# command: bench_regions %d\n", threads);
    printf("runner,helpers,format,products,threads,median_us,p10_us,p90_us\n");
    return measure_under("passive", argv) || measure_under("active", argv);
}
