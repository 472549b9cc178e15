/* In place of kernels/cpu.c: emulation stands on AVX2, and with it every table can run. */
#include "kernels/tables.h"

#define X(name) \
    bool pot_kernels_##name##_usable(void) { return &pot_kernels_##name == &pot_kernels_generic || __builtin_cpu_supports("avx2"); }
POT_KERNEL_TABLES(X)
#undef X
