/* One line of progress for anything that takes longer than two seconds: bytes done, rate, time left.
 * On a terminal it is redrawn in place; elsewhere a plain line every 5 s.  Owner: the caller's stack. */
#ifndef POT_COMMON_PROGRESS_H
#define POT_COMMON_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct pot_progress {
    const char *what; /* "loading experts" */
    const char *unit; /* "tokens"; NULL = bytes */
    uint64_t total, done, started_us, shown_us;
    bool is_terminal, quiet;
} pot_progress;

void pot_progress_begin(pot_progress *p, const char *what, uint64_t total_bytes, bool quiet);
/* Counts something else than bytes: "tokens". */
void pot_progress_begin_count(pot_progress *p, const char *what, uint64_t total, const char *unit, bool quiet);
void pot_progress_update(pot_progress *p, uint64_t done);
void pot_progress_end(pot_progress *p);

#endif
