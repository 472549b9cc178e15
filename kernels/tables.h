/* Inside kernels/ only: the tables of POT_KERNEL_TABLES, one a file, and whether this CPU can run them. */
#ifndef POT_KERNELS_TABLES_H
#define POT_KERNELS_TABLES_H

#include "kernels/kernels.h"

#define X(name)                                  \
    extern const pot_kernels pot_kernels_##name; \
    bool pot_kernels_##name##_usable(void);
POT_KERNEL_TABLES(X)
#undef X

#endif
