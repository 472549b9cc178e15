/* Which tables this CPU can run.  Compiled for any CPU of the architecture; the builtins also ask whether the OS keeps the
 * registers. */
#include "kernels/tables.h"

bool pot_kernels_generic_usable(void) { return true; }

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

bool pot_kernels_avx2_usable(void) {
    unsigned eax, ebx, ecx, edx;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
           (ecx & bit_F16C); /* compilers disagree on whether the builtin knows "f16c" */
}

bool pot_kernels_avxvnni_usable(void) {
    unsigned eax, ebx, ecx, edx;
    enum { AVX_VNNI = 1 << 4 };
    return pot_kernels_avx2_usable() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & AVX_VNNI);
}

/* The first AVX-512 machines lack VNNI: they are served by the avx2 table. */
bool pot_kernels_avx512_usable(void) {
    return pot_kernels_avx2_usable() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}

/* Linux gives a process the tiles' registers only when it asks for them. */
bool pot_kernels_amx_usable(void) {
    enum { AMX_TILE = 1 << 24, AMX_INT8 = 1 << 25, REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    unsigned eax, ebx, ecx, edx;
    return pot_kernels_avx512_usable() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) && (edx & AMX_TILE) &&
           (edx & AMX_INT8) && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

bool pot_kernels_neon_usable(void) {
    enum { ASIMDDP = 1 << 20 };
    return (getauxval(AT_HWCAP) & ASIMDDP) != 0;
}
#endif
