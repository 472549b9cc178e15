/* Time for deadlines and statistics.  Monotonic; never used in anything that decides a token. */
#ifndef POT_COMMON_CLOCK_H
#define POT_COMMON_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline uint64_t pot_now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

#endif
