/* The ways between rank 0 and the others, under mpirun: messages there and back, and text that they send each other.
 *
 * Rank 0 asks, the others answer until it says goodbye or is gone.  Over the transport that the engine uses, with its waiting.
 */
#ifndef POT_CLI_MACHINE_LINK_H
#define POT_CLI_MACHINE_LINK_H

#include "cli/bench_probe.h"
#include "cli/cli.h"

typedef struct probe_ranks probe_ranks;

/* Collective.  Alone (size 1): *out is NULL. */
pot_status probe_ranks_open(probe_ranks **out, const pot_cli *cli, pot_err *err);
void probe_ranks_close(probe_ranks *ranks); /* on rank 0 says goodbye to all; NULL is fine */
const char *probe_ranks_host(const probe_ranks *ranks, uint32_t rank);

typedef struct probe_link {
    pot_spread round_s;     /* a message of 64 bytes there, and one back */
    double round_mean_s;    /* of all but the longest hundredth */
    pot_spread there, back; /* GB/s of messages that follow each other */
    pot_spread send_s;      /* for rank 0 to give away one message of 8 KiB */
} probe_link;

/* Rank 0. */
pot_status probe_link_measure(probe_link *out, probe_ranks *ranks, uint32_t rank, double seconds, pot_err *err);
/* Rank 0: has that rank call `answer` of probe_ranks_serve, and appends its text; may take as long as it likes, up to ten minutes. */
pot_status probe_ranks_ask(pot_buffer *text, probe_ranks *ranks, uint32_t rank, pot_err *err);

/* The others: answers until the end.  `answer` fills in a text for the one question; its fault is sent to rank 0 as well. */
pot_status probe_ranks_serve(probe_ranks *ranks, pot_status (*answer)(void *context, pot_buffer *text, pot_err *err),
                             void *context, pot_err *err);

#endif
