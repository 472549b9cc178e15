/* The machine as this process sees it: cores it may use, signals that end it. */
#ifndef POT_COMMON_SYSTEM_H
#define POT_COMMON_SYSTEM_H

#include <stdbool.h>
#include <stdint.h>

/* Lifts a launcher's one-core binding (mpirun's default) back to every core that the cpuset allows.
 * Returns the number of CPUs the process may run on afterwards. */
int pot_cpus_widen(void);
/* Physical cores among the CPUs the process may use (hwloc); at least 1. */
int pot_cpus_physical(void);
/* Threads for compute: `wanted` if above 0, else OMP_NUM_THREADS if set, else physical cores / ranks_on_host. */
int pot_threads_choose(int wanted, int ranks_on_host);

const char *pot_host_name(void); /* static storage */

/* SIGINT and SIGTERM set a flag and wake poll(): the first asks for an orderly end, a second one of SIGINT
 * ends the process at once.  pot_stop_fd() becomes readable when the flag is set. */
void pot_stop_install(void);
bool pot_stop_requested(void);
int pot_stop_signal(void); /* 0, SIGINT or SIGTERM */
int pot_stop_fd(void);
void pot_stop_clear(void); /* chat: Ctrl-C stops the answer, not the program */

#endif
