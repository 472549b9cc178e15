/* Round trips over the transports, as CSV.  Each case has a side that echoes and a side that measures: two threads for `mem`, two forked
 * processes that exchange addresses over pipes for `ucx`.  `sleep` waits in the kernel at once, `spin` polls before that.
 *
 *   bench_transport [rounds] >bench/results/CPU/transport.csv
 *
 * UCX_TLS=tcp,self in the environment measures TCP instead of shared memory.  The lines with 0 bytes are an end that waits and gets
 * nothing: `rounds` seconds of it, and the share of a core that it takes in percent as the last column. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/mem.h"
#include "common/system.h"
#include "proto/transport.h"

/* A header, a decode row of q8 activations, a row of int32 sums of GLM-5.2, and a batch that takes the rendezvous. */
static const size_t sizes[] = {64, 6912, 24 * 1024, 256 * 1024};
enum {
    N_SIZES = sizeof sizes / sizeof *sizes,
    WARM_UP = 200,
    MOST_ROUNDS = 100000,
    SPIN_US = 1000,
    PATIENCE_US = 20000000,
    IDLE_S = 3,
    GLANCE_US = 100000 /* how often a coordinator that waits looks around */
};

static void must(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "bench_transport: %s\n", what);
    exit(1);
}

static pot_message *next(pot_transport *t) {
    pot_message *m;
    must(pot_transport_receive(t, PATIENCE_US, &m, NULL) == POT_OK && m, "no answer");
    return m;
}

/* Until an empty message comes, or the other side is gone. */
static void echo(pot_transport *t) {
    for (;;) {
        pot_message *m = next(t);
        if (m->kind == POT_MESSAGE_LOST || m->n_bytes == 0) {
            pot_message_release(t, m);
            return;
        }
        must(pot_transport_send(t, m->peer, m, NULL) == POT_OK, "the echo cannot send");
    }
}

static void send(pot_transport *t, uint32_t peer, size_t bytes) {
    pot_message *m = pot_transport_message(t, bytes);
    must(m, "no memory");
    m->kind = POT_MESSAGE_DATA;
    memset(m->bytes, 1, bytes); /* a sender fills its buffer */
    must(pot_transport_send(t, peer, m, NULL) == POT_OK, "cannot send");
}

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static double cpu_us(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1e6 + (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void measure_idle(pot_transport *t, const char *transport, const char *wait) {
    pot_message *m;
    double start = now_us(), cpu = cpu_us();
    while (now_us() - start < IDLE_S * 1e6)
        must(pot_transport_receive(t, GLANCE_US, &m, NULL) == POT_OK && !m, "an unasked message");
    printf("%s,%s,0,%d,,,,,%.2f\n", transport, wait, IDLE_S, 100 * (cpu_us() - cpu) / (now_us() - start));
    fflush(stdout);
}

static void measure(pot_transport *t, uint32_t peer, const char *transport, const char *wait, int rounds) {
    double *took = pot_alloc_array((size_t)rounds, sizeof *took);
    must(took, "no memory");
    for (int s = 0; s < N_SIZES; s++) {
        double cpu = 0;
        for (int i = -WARM_UP; i < rounds; i++) {
            if (i == 0) cpu = cpu_us();
            double start = now_us();
            send(t, peer, sizes[s]);
            pot_message_release(t, next(t));
            if (i >= 0) took[i] = now_us() - start;
        }
        cpu = (cpu_us() - cpu) / rounds;
        qsort(took, (size_t)rounds, sizeof *took, by_value);
        printf("%s,%s,%zu,%d,%.1f,%.1f,%.1f,%.1f,%.1f\n", transport, wait, sizes[s], rounds, took[rounds / 2],
               took[rounds / 10], took[rounds * 9 / 10], took[(int)(rounds * 0.99)], cpu);
        fflush(stdout);
    }
    measure_idle(t, transport, wait);
    send(t, peer, 0);
    pot_free(took);
}

/* ---- mem ------------------------------------------------------------------------------------------------------------------------ */

static void *echo_thread(void *end) {
    echo(end);
    return NULL;
}

static void bench_mem(int rounds) {
    pot_transport *ends[2];
    pthread_t thread;
    must(pot_transport_mem_create(ends, 2, NULL) == POT_OK, "no mem transport");
    must(pthread_create(&thread, NULL, echo_thread, ends[1]) == 0, "no thread");
    measure(ends[0], 1, "mem", "sleep", rounds);
    pthread_join(thread, NULL);
    pot_transport_close(ends[0], 0);
    pot_transport_close(ends[1], 0);
}

/* ---- ucx ------------------------------------------------------------------------------------------------------------------------ */

static void exchange(int to, int from, pot_blob mine, void *other, uint32_t *n_other, uint32_t room) {
    uint32_t n = (uint32_t)mine.n_bytes;
    must(write(to, &n, sizeof n) == sizeof n && write(to, mine.bytes, n) == n, "the pipe is closed");
    must(read(from, n_other, sizeof *n_other) == sizeof *n_other && *n_other <= room, "the pipe is closed");
    must(read(from, other, *n_other) == *n_other, "the pipe is closed");
}

/* One process of the pair; UCX is opened after the fork, because it does not survive one. */
static void ucx_side(uint32_t self, int to, int from, uint64_t spin_us, int rounds) {
    static uint8_t other[1 << 14];
    pot_err err;
    pot_transport *t;
    pot_blob mine, peers[2] = {{0}};
    const pot_ucx_options options = {.self = self, .spin_us = spin_us};
    must(pot_transport_ucx_create(&t, &mine, &options, &err) == POT_OK, err.text);
    uint32_t n;
    exchange(to, from, mine, other, &n, sizeof other);
    peers[1 - self] = (pot_blob){other, n};
    must(pot_transport_ucx_connect(t, peers, 2, &err) == POT_OK, err.text);
    if (self == 0)
        measure(t, 1, "ucx", spin_us ? "spin" : "sleep", rounds);
    else
        echo(t);
    pot_transport_close(t, 1000000);
}

static void bench_ucx(uint64_t spin_us, int rounds) {
    int pipes[2][2];
    pid_t pids[2];
    for (int i = 0; i < 2; i++) must(pipe(pipes[i]) == 0, "no pipe");
    for (uint32_t i = 0; i < 2; i++) {
        pids[i] = fork();
        must(pids[i] >= 0, "no process");
        if (pids[i] == 0) {
            ucx_side(i, pipes[i][1], pipes[1 - i][0], spin_us, rounds);
            exit(0);
        }
    }
    for (int i = 0; i < 2; i++) {
        int status;
        must(waitpid(pids[i], &status, 0) == pids[i] && status == 0, "a process of the pair failed");
    }
    for (int i = 0; i < 4; i++) close(pipes[i / 2][i % 2]);
}

/* The first line of what a command prints, or "unknown". */
static void print_first_line(const char *name, const char *command) {
    char line[256] = "";
    FILE *out = popen(command, "r");
    if (out && fgets(line, sizeof line, out)) line[strcspn(line, "\n")] = 0;
    if (out) pclose(out);
    printf("# %s: %s\n", name, line[0] ? line : "unknown");
}

static void print_head(int rounds) {
    struct utsname host;
    uname(&host);
    print_first_line("commit", "git describe --always --dirty 2>/dev/null");
    printf("# host: %s %s %s, %d cores\n", host.sysname, host.release, host.machine, pot_cpus_physical());
    print_first_line("cpu", "sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo");
    const char *tls = getenv("UCX_TLS");
    printf("# command: %s%s%sbench_transport %d\n", tls ? "UCX_TLS=" : "", tls ? tls : "", tls ? " " : "", rounds);
    printf("transport,mode,bytes,n,median_us,p10_us,p90_us,p99_us,cpu_us_a_round\n");
}

int main(int argc, char **argv) {
    int rounds = argc > 1 ? atoi(argv[1]) : 2000;
    must(rounds > 0 && rounds <= MOST_ROUNDS, "usage: bench_transport [rounds]");
    print_head(rounds);
    fflush(stdout); /* before a fork, or it is printed twice */
    bench_mem(rounds);
    bench_ucx(0, rounds);
    bench_ucx(SPIN_US, rounds);
    return 0;
}
