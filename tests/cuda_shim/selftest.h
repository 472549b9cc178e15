/* Kernels with mistakes, for the test that the shim sees them. */
#ifndef POT_TESTS_CUDA_SHIM_SELFTEST_H
#define POT_TESTS_CUDA_SHIM_SELFTEST_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { POT_SHIM_WRONG_KERNELS = 5 };
void pot_shim_wrong_kernel(int which); /* does not return */

/* Threads read what their neighbours wrote, without a barrier between: a number that depends on the order. */
uint32_t pot_shim_racing_kernel(void);

#ifdef __cplusplus
}
#endif

#endif
