/* A part is published by adding one to `call`; helpers wait for that word to change, work, and count themselves in.
 *
 * Every wait looks at its word for a while and then sleeps on a futex.  How long it looks is learnt: each thread doubles its
 * patience when looking was enough and halves it when it was not, so that threads whose cores are shared, or whose work
 * comes rarely, sleep at once.  Looking never yields: the scheduler gives a core that is given away to whoever computes there, for
 * milliseconds, while a thread that sleeps is preferred when it is woken.  Words that threads wait on keep away from each
 * other by a cache line. */
#include "common/team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/float_mode.h"
#include "common/mem.h"

enum {
    /* A thread looks for its word at least and at most so long before it sleeps (each a power of two times the other).  The least
     * is about what waking takes, so little is lost by it, and gaps up to it are enough to learn patience again. */
    LEAST_US = 25,
    MOST_US = 200,            /* more than lies between two parts of a step that runs in this process */
    PRODUCTS_AWAKE = 1 << 17, /* from here on splitting pays (bench_regions): some microseconds of one thread */
    PRODUCTS_ASLEEP = 1 << 20 /* waking costs more than such a part gains, but the next parts find the helpers awake */
};

/* A word that changes, and how many threads sleep until it does. */
typedef struct signal_word {
    _Alignas(64) atomic_uint value;
    atomic_uint sleepers;
} signal_word;

struct pot_team {
    int threads;
    bool eager, quit;
    pot_team_part *part; /* of the current call */
    void *context;
    signal_word call;                 /* parts begun */
    signal_word finished;             /* parts that the helpers have finished */
    signal_word passed;               /* barriers passed */
    _Alignas(64) atomic_uint busy;    /* helpers that still work on this call */
    _Alignas(64) atomic_uint arrived; /* threads at the barrier */
    pthread_t helpers[];
};

static void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void raise_word(signal_word *word) {
    atomic_fetch_add(&word->value, 1);
    if (atomic_load(&word->sleepers) > 0)
        syscall(SYS_futex, &word->value, FUTEX_WAKE_PRIVATE, INT32_MAX, NULL, NULL, 0);
}

static _Thread_local unsigned patience_us = MOST_US;

static bool look_for_change(signal_word *word, unsigned old) {
    const uint64_t begin = pot_now_us();
    do {
        for (int i = 0; i < 32; i++) {
            if (atomic_load_explicit(&word->value, memory_order_acquire) != old) return true;
            pause_cpu();
        }
    } while (pot_now_us() - begin < patience_us);
    return false;
}

/* Returns when the word is no longer `old`. */
static void await_change(signal_word *word, unsigned old) {
    if (look_for_change(word, old)) {
        if (patience_us < MOST_US) patience_us *= 2;
        return;
    }
    if (patience_us > LEAST_US) patience_us /= 2;
    /* The order matters: raise_word reads `sleepers` after it has changed the value, so either it sees this thread or the
     * futex sees the new value. */
    atomic_fetch_add(&word->sleepers, 1);
    while (atomic_load(&word->value) == old) syscall(SYS_futex, &word->value, FUTEX_WAIT_PRIVATE, old, NULL, NULL, 0);
    atomic_fetch_sub(&word->sleepers, 1);
}

/* ---- life --------------------------------------------------------------------------------------- */

typedef struct birth {
    pot_team *team;
    int thread;
} birth;

static void *help(void *context) {
    birth *b = context;
    pot_team *team = b->team;
    const int thread = b->thread;
    pot_free(b);
    pot_fp_strict();
    for (unsigned seen = 0;; seen++) {
        await_change(&team->call, seen);
        if (team->quit) return NULL;
        team->part(team->context, thread, team->threads);
        if (atomic_fetch_sub(&team->busy, 1) == 1) raise_word(&team->finished);
    }
}

/* Ends the helpers 1 to n. */
static void dismiss(pot_team *team, int n) {
    team->quit = true;
    raise_word(&team->call);
    for (int i = 0; i < n; i++) pthread_join(team->helpers[i], NULL);
    pot_free(team);
}

pot_status pot_team_create(pot_team **out, int threads, bool eager, pot_err *err) {
    POT_ASSERT(threads >= 1);
    size_t helpers = (size_t)threads - 1, bytes = sizeof(pot_team) + helpers * sizeof(pthread_t);
    pot_team *team = pot_alloc_aligned(bytes);
    if (!team) return pot_fail(err, POT_NO_MEMORY, "no memory for a team of %d threads", threads);
    team->threads = threads;
    team->eager = eager;
    for (int i = 0; i < threads - 1; i++) {
        birth *b = pot_alloc(sizeof *b);
        if (b) *b = (birth){.team = team, .thread = i + 1};
        if (!b || pthread_create(&team->helpers[i], NULL, help, b) != 0) {
            pot_free(b);
            dismiss(team, i);
            return pot_fail(err, POT_NO_MEMORY, "cannot start thread %d of %d: ask for fewer with --threads", i + 2,
                            threads);
        }
    }
    *out = team;
    return POT_OK;
}

void pot_team_free(pot_team *team) {
    if (team) dismiss(team, team->threads - 1);
}

int pot_team_threads(const pot_team *team) { return team ? team->threads : 1; }

/* ---- work --------------------------------------------------------------------------------------- */

static bool worth(pot_team *team, uint64_t products) {
    if (!team || team->threads == 1) return false;
    if (team->eager) return true;
    bool asleep = atomic_load_explicit(&team->call.sleepers, memory_order_relaxed) > 0;
    return products >= (uint64_t)(asleep ? PRODUCTS_ASLEEP : PRODUCTS_AWAKE);
}

void pot_team_run(pot_team *team, uint64_t products, pot_team_part *part, void *context) {
    pot_fp_strict();
    if (!worth(team, products)) {
        part(context, 0, 1);
        return;
    }
    team->part = part;
    team->context = context;
    const unsigned finished = atomic_load(&team->finished.value);
    atomic_store(&team->busy, (unsigned)team->threads - 1);
    raise_word(&team->call);
    part(context, 0, team->threads);
    await_change(&team->finished, finished);
}

void pot_team_barrier(pot_team *team, int threads) {
    if (threads == 1) return;
    const unsigned passed = atomic_load(&team->passed.value);
    if (atomic_fetch_add(&team->arrived, 1) + 1 == (unsigned)threads) {
        atomic_store(&team->arrived, 0);
        raise_word(&team->passed);
        return;
    }
    await_change(&team->passed, passed);
}
