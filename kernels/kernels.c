/* Which table of kernels a process computes with: the best one that the CPU can run, or the one asked for. */
#include "kernels/kernels.h"

#include <stdio.h>
#include <string.h>

#include "kernels/tables.h"

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
