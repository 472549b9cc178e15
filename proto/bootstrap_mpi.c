/* MPI is initialised, used for one exchange of fixed-size cards and one of addresses, and finalized at once: a run must not hang in
 * MPI because a rank is gone.  Under Open MPI 4.1 a rank that has finalized may compute on for as long as it likes; its exit
 * status still counts (docs/protocol.md has what was tried). */
#include "proto/bootstrap.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* The C++ bindings of Open MPI's header are not wanted. */
#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#include "common/mem.h"
#include "common/system.h"

/* Addresses of UCX are some hundred bytes long; ranks times that stays far below what an MPI count can say. */
enum { EXCHANGE_DEADLINE_S = 60, MAX_ADDRESS_BYTES = 1 << 16, MAX_RANKS = 4096 };

/* ---- the launcher ----------------------------------------------------------------------------------------------------------- */

/* A number from the environment, or `fallback` when it is absent or nonsense. */
static int number(const char *name, int fallback) {
    const char *text = getenv(name);
    if (!text || !*text) return fallback;
    char *end;
    long value = strtol(text, &end, 10);
    return *end || value < 0 || value > INT_MAX ? fallback : (int)value;
}

void pot_launch_detect(pot_launch *out) {
    int size = number("OMPI_COMM_WORLD_SIZE", 0), rank = number("OMPI_COMM_WORLD_RANK", -1);
    int local = number("OMPI_COMM_WORLD_LOCAL_SIZE", 1);
    if (size == 0 && getenv("PMIX_RANK")) { /* srun --mpi=pmix */
        size = number("SLURM_STEP_NUM_TASKS", number("SLURM_NTASKS", 0));
        rank = number("PMIX_RANK", -1);
        int nodes = number("SLURM_STEP_NUM_NODES", 1);
        if (nodes > 0 && nodes <= size) local = size / nodes + (size % nodes != 0);
    }
    bool launched = size > 0 && rank >= 0 && rank < size;
    *out = launched ? (pot_launch){rank, size, local > 0 ? local : 1} : (pot_launch){0, 1, 1};
}

/* ---- a deadline on the exchange ----------------------------------------------------------------------------------------------- */

/* MPI calls have no timeouts: a thread ends the process, in words, when the other ranks do not come. */
typedef struct watchdog {
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool done;
    int rank, size;
} watchdog;

static void *watch(void *argument) {
    watchdog *w = argument;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += EXCHANGE_DEADLINE_S;
    pthread_mutex_lock(&w->mutex);
    int timed_out = 0;
    while (!w->done && !timed_out) timed_out = pthread_cond_timedwait(&w->changed, &w->mutex, &until);
    bool done = w->done;
    pthread_mutex_unlock(&w->mutex);
    if (done) return NULL;
    fprintf(stderr, "potluck: rank %d of %d: the other ranks did not come to the MPI exchange within %d s\n", w->rank,
            w->size, EXCHANGE_DEADLINE_S);
    _exit(3);
}

static void free_watchdog(watchdog *w) {
    pthread_cond_destroy(&w->changed);
    pthread_mutex_destroy(&w->mutex);
}

static bool start_watchdog(watchdog *w) {
    pthread_mutex_init(&w->mutex, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&w->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    if (pthread_create(&w->thread, NULL, watch, w) == 0) return true;
    free_watchdog(w);
    return false;
}

static void stop_watchdog(watchdog *w) {
    pthread_mutex_lock(&w->mutex);
    w->done = true;
    pthread_cond_signal(&w->changed);
    pthread_mutex_unlock(&w->mutex);
    pthread_join(w->thread, NULL);
    free_watchdog(w);
}

/* ---- the exchange --------------------------------------------------------------------------------------------------------------- */

typedef struct card {
    char host[64];
    uint32_t address_bytes;
} card;

static pot_status gather(pot_bootstrap *b, card *cards, int *counts, int *offsets, uint8_t **addresses,
                         pot_blob address, pot_err *err) {
    int total = 0;
    if (MPI_Allgather(MPI_IN_PLACE, 0, MPI_BYTE, cards, (int)sizeof *cards, MPI_BYTE, MPI_COMM_WORLD) != MPI_SUCCESS)
        return pot_fail(err, POT_ERROR, "MPI could not gather the ranks' cards");
    for (int r = 0; r < b->size; r++) {
        if (cards[r].address_bytes > MAX_ADDRESS_BYTES)
            return pot_fail(err, POT_FORMAT, "rank %d has an address of %u bytes, at most %d are possible", r,
                            cards[r].address_bytes, MAX_ADDRESS_BYTES);
        counts[r] = (int)cards[r].address_bytes;
        offsets[r] = total;
        total += counts[r];
    }
    *addresses = pot_alloc((size_t)total);
    if (!*addresses) return pot_fail(err, POT_NO_MEMORY, "no memory for the addresses of %d ranks", b->size);
    if (MPI_Allgatherv(address.bytes, (int)address.n_bytes, MPI_BYTE, *addresses, counts, offsets, MPI_BYTE,
                       MPI_COMM_WORLD) != MPI_SUCCESS)
        return pot_fail(err, POT_ERROR, "MPI could not gather the ranks' addresses");
    for (int r = 0; r < b->size; r++) {
        pot_rank *rank = &b->ranks[r];
        rank->address = (pot_blob){*addresses + offsets[r], (size_t)counts[r]};
        memcpy(rank->host, cards[r].host, sizeof rank->host);
        rank->host[sizeof rank->host - 1] = 0;
    }
    return POT_OK;
}

static pot_status exchange(pot_bootstrap *out, pot_blob address, pot_err *err) {
    pot_bootstrap b = {0};
    MPI_Comm_rank(MPI_COMM_WORLD, &b.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &b.size);
    if (b.size > MAX_RANKS)
        return pot_fail(err, POT_LIMIT, "%d ranks were started, at most %d can meet", b.size, MAX_RANKS);
    if (address.n_bytes > MAX_ADDRESS_BYTES)
        return pot_fail(err, POT_BUG, "an own address of %zu bytes", address.n_bytes);
    uint8_t *addresses = NULL;
    card *cards = pot_alloc_array((size_t)b.size, sizeof *cards);
    int *counts = pot_alloc_array((size_t)b.size, sizeof *counts),
        *offsets = pot_alloc_array((size_t)b.size, sizeof *offsets);
    b.ranks = pot_alloc_array((size_t)b.size, sizeof *b.ranks);
    pot_status s = POT_OK;
    if (!cards || !counts || !offsets || !b.ranks) {
        s = pot_fail(err, POT_NO_MEMORY, "no memory for %d ranks", b.size);
    } else {
        cards[b.rank] = (card){.address_bytes = (uint32_t)address.n_bytes};
        snprintf(cards[b.rank].host, sizeof cards[b.rank].host, "%.63s", pot_host_name());
        s = gather(&b, cards, counts, offsets, &addresses, address, err);
    }
    pot_free(cards);
    pot_free(counts);
    pot_free(offsets);
    if (s != POT_OK) {
        pot_free(addresses);
        pot_free(b.ranks);
        return s;
    }
    *out = b; /* ranks[0].address.bytes is the start of the addresses, freed with them */
    return POT_OK;
}

pot_status pot_bootstrap_mpi(pot_bootstrap *out, pot_blob address, pot_err *err) {
    pot_launch launch;
    pot_launch_detect(&launch);
    watchdog dog = {.rank = launch.rank, .size = launch.size};
    if (!start_watchdog(&dog)) return pot_fail(err, POT_ERROR, "no thread to watch over the MPI exchange");
    int provided;
    pot_status s = POT_OK;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) {
        s = pot_fail(err, POT_ERROR, "MPI_Init_thread failed");
    } else {
        s = exchange(out, address, err);
        MPI_Finalize();
    }
    stop_watchdog(&dog);
    return s;
}

void pot_bootstrap_free(pot_bootstrap *b) {
    if (b->ranks) pot_free((void *)(uintptr_t)b->ranks[0].address.bytes);
    pot_free(b->ranks);
    *b = (pot_bootstrap){0};
}
