/* What the parts of `potluck doctor` share: a report of lines, and the groups of checks.
 *
 * A check looks at one thing and says one line: good, a note (works, but could be better, or good to know) or bad (does not work, or costs much
 * speed), and what to do about it.  A check that cannot look says so in a note; it never fails.  One thread.
 */
#ifndef POT_CLI_DOCTOR_H
#define POT_CLI_DOCTOR_H

#include "cli/cli.h"

/* X(name, text) */
#define DOCTOR_MARK_MAP(X) X(GOOD, "good") X(NOTE, "note") X(BAD, "bad")
typedef enum doctor_mark {
#define X(name, text) DOCTOR_##name,
    DOCTOR_MARK_MAP(X)
#undef X
        DOCTOR_MARKS
} doctor_mark;

typedef struct doctor {
    const pot_cli *cli;
    pot_buffer out;
    uint32_t lines, counts[DOCTOR_MARKS];
} doctor;

/* `advice`: what to do, a sentence; NULL for nothing. */
void doctor_say(doctor *d, doctor_mark mark, const char *topic, const char *advice, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

void doctor_cores(doctor *d);                        /* doctor_machine.c: cores, binding, quota, instructions, clock */
void doctor_memory(doctor *d);                       /* doctor_memory.c: size, pages, swap, limits, bandwidth */
void doctor_disk(doctor *d, const char *directory);  /* doctor_disk.c: how the disk below `directory` reads */
void doctor_network(doctor *d);                      /* doctor_network.c: UCX, MPI, cards */
void doctor_gpu(doctor *d);                          /* doctor_network.c */
void doctor_model(doctor *d, const char *directory); /* cmd_doctor.c */

/* ---- looking things up, doctor_machine.c ---- */

/* The first line of a small file of the system, without its end; false when it cannot be read. */
bool doctor_read_line(char *line, size_t size, const char *path);
/* Whether there is anything in the directory. */
bool doctor_has_entries(const char *directory);
/* The number that follows `key` in such a file; `fallback` when it is not there. */
long long doctor_number(const char *path, const char *key, long long fallback);

#endif
