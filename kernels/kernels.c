/* Which table of kernels a process computes with: the best one that the CPU can run, or the one asked for. */
#include "kernels/kernels.h"

#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "kernels/tables.h"

bool pot_kernels_generic_usable(void) { return true; }

#if defined(__x86_64__)
/* Here and not in kernels_avx2.c: this must run on any CPU.  The builtin also asks whether the OS keeps the
 * registers; compilers disagree on whether it knows "f16c". */
bool pot_kernels_avx2_usable(void) {
    unsigned eax, ebx, ecx, edx;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &eax, &ebx, &ecx, &edx) &&
           (ecx & bit_F16C);
}
#endif

static const struct {
    const pot_kernels *table;
    bool (*usable)(void);
} TABLES[] = {
#define X(name) {&pot_kernels_##name, pot_kernels_##name##_usable},
    POT_KERNEL_TABLES(X)
#undef X
};

enum { N_TABLES = sizeof TABLES / sizeof TABLES[0] };

int pot_kernels_list(const pot_kernels **out, int max) {
    int n = 0;
    for (int i = 0; i < N_TABLES && n < max; i++)
        if (TABLES[i].usable()) out[n++] = TABLES[i].table;
    return n;
}

pot_status pot_kernels_pick(const pot_kernels **out, const char *name, pot_err *err) {
    const pot_kernels *usable[N_TABLES] = {NULL};
    int n = pot_kernels_list(usable, N_TABLES);
    if (name == NULL || strcmp(name, "auto") == 0) {
        *out = usable[n - 1];
        return POT_OK;
    }
    char names[128] = "auto";
    for (int i = 0; i < n; i++) {
        if (strcmp(name, usable[i]->name) == 0) {
            *out = usable[i];
            return POT_OK;
        }
        size_t length = strlen(names);
        snprintf(names + length, sizeof names - length, ", %s", usable[i]->name);
    }
    for (int i = 0; i < N_TABLES; i++)
        if (strcmp(name, TABLES[i].table->name) == 0)
            return pot_fail(err, POT_USAGE,
                            "kernels '%s' need instructions that this CPU does not have; it can run: %s", name, names);
    return pot_fail(err, POT_USAGE, "no kernels are called '%s'; this CPU can run: %s", name, names);
}
