/* A host that stands in for a GPU: kernels/cuda/ *.cu compiled by a C++ compiler against the cuda_runtime.h of this
 * folder.  What a test may turn.
 *
 * A block's threads are fibers of one thread and blocks run one after another, so a run can be repeated exactly and
 * sanitizers see every access.  What it finds: reads and writes out of bounds, shared memory that nobody wrote (it is
 * filled with garbage before each block), barriers that not all threads reach, exchanges that depend on the order of
 * threads.  What it cannot find: two threads of a GPU that really run at once; the orders make up for some of that. */
#ifndef POT_TESTS_CUDA_SHIM_SHIM_H
#define POT_TESTS_CUDA_SHIM_SHIM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* In which order threads that may go on do so: "forward", "reverse", or a number, the seed of a shuffle that also lets
 * some warps run ahead of others.  The start value comes from POT_CUDA_SHIM_ORDER; forward when that is not set. */
void pot_shim_order(const char *order);

/* The devices that there are, all alike. */
void pot_shim_devices(int count, int major, int minor);

/* The nth call of the CUDA runtime from now on (1 = the next) fails once with "out of memory"; 0 = never. */
void pot_shim_fail_at(uint64_t nth);
uint64_t pot_shim_live(void); /* allocations, streams and events that were not freed */

#ifdef __cplusplus
}
#endif

#endif
