/* Cores and signals.  Cores: the affinity mask says what may be used, hwloc which of those CPUs share a core.
 * Signals: the handler sets an atomic and adds to an eventfd, so a loop may test the flag or poll the descriptor;
 * SA_RESTART is left out so that a blocking read ends with EINTR. */
#include "common/system.h"

#include <hwloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* ---- cores ------------------------------------------------------------------------------------- */

enum { MAX_CPUS = 8192 };

static bool started_by_mpi(void) { return getenv("OMPI_COMM_WORLD_SIZE") || getenv("PMIX_RANK") || getenv("PMI_RANK"); }

static int cpus_allowed(cpu_set_t *set, size_t bytes) {
    CPU_ZERO_S(bytes, set);
    if (sched_getaffinity(0, bytes, set)) CPU_SET_S(0, bytes, set);
    return CPU_COUNT_S(bytes, set);
}

int pot_cpus_widen(void) {
    cpu_set_t *set = CPU_ALLOC(MAX_CPUS);
    size_t bytes = CPU_ALLOC_SIZE(MAX_CPUS);
    if (!set) return 1;
    if (started_by_mpi()) { /* a mask that the user set with taskset is left alone */
        memset(set, 0xFF, bytes);
        sched_setaffinity(0, bytes, set); /* the kernel keeps what the cpuset allows; a refusal changes nothing */
    }
    int n = cpus_allowed(set, bytes);
    CPU_FREE(set);
    return n;
}

/* Cores of the topology with at least one CPU in `set`; 0 when hwloc cannot tell. */
static int count_cores(const cpu_set_t *set, size_t bytes) {
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology)) return 0;
    int n = 0;
    if (!hwloc_topology_load(topology)) {
        hwloc_obj_t core = NULL;
        while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core))) {
            unsigned cpu;
            hwloc_bitmap_foreach_begin(cpu, core->cpuset) if (cpu < MAX_CPUS && CPU_ISSET_S(cpu, bytes, set)) {
                n++;
                break;
            }
            hwloc_bitmap_foreach_end();
        }
    }
    hwloc_topology_destroy(topology);
    return n;
}

int pot_cpus_physical(void) {
    cpu_set_t *set = CPU_ALLOC(MAX_CPUS);
    size_t bytes = CPU_ALLOC_SIZE(MAX_CPUS);
    if (!set) return 1;
    int cpus = cpus_allowed(set, bytes);
    int cores = count_cores(set, bytes);
    CPU_FREE(set);
    return cores > 0 ? cores : cpus;
}

int pot_threads_choose(int wanted, int ranks_on_host) {
    if (wanted > 0) return wanted;
    const char *text = getenv("OMP_NUM_THREADS");
    long n = text ? strtol(text, NULL, 10) : 0;
    if (n > 0 && n <= MAX_CPUS) return (int)n;
    int share = pot_cpus_physical() / (ranks_on_host > 0 ? ranks_on_host : 1);
    return share > 0 ? share : 1;
}

static char host_name[256];

static void read_host_name(void) {
    if (gethostname(host_name, sizeof host_name - 1) || !host_name[0]) strcpy(host_name, "localhost");
}

const char *pot_host_name(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, read_host_name);
    return host_name;
}

/* ---- signals ----------------------------------------------------------------------------------- */

static atomic_int stop_signal, stop_event = -1;

static void on_signal(int number) {
    if (number == SIGINT && atomic_load(&stop_signal) == SIGINT) {
        signal(SIGINT, SIG_DFL); /* delivered when this handler returns: the parent sees a death by SIGINT */
        raise(SIGINT);
        return;
    }
    atomic_store(&stop_signal, number);
    uint64_t one = 1;
    ssize_t written = write(atomic_load(&stop_event), &one, sizeof one);
    (void)written; /* a full counter is readable already */
}

void pot_stop_install(void) {
    if (atomic_load(&stop_event) >= 0) return;
    atomic_store(&stop_event, eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
    struct sigaction action = {.sa_handler = on_signal};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

bool pot_stop_requested(void) { return atomic_load_explicit(&stop_signal, memory_order_relaxed) != 0; }

int pot_stop_signal(void) { return atomic_load(&stop_signal); }

int pot_stop_fd(void) { return atomic_load(&stop_event); }

void pot_stop_clear(void) {
    atomic_store(&stop_signal, 0);
    uint64_t count;
    ssize_t got = read(atomic_load(&stop_event), &count, sizeof count);
    (void)got; /* nothing to read is what we want */
}
