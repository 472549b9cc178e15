/* Who is there: MPI starts the processes and hands out addresses; MPI is finalized before the first token, and no MPI call is
 * made after that.  Without a launcher the process is alone (rank 0 of 1). */
#ifndef POT_PROTO_BOOTSTRAP_H
#define POT_PROTO_BOOTSTRAP_H

#include <stdbool.h>
#include <stdint.h>

#include "common/status.h"
#include "proto/transport.h"

typedef struct pot_launch {
    int rank, size; /* from the launcher's environment; 0 of 1 when there is none */
    int ranks_on_host;
} pot_launch;
/* Only reads the environment (OMPI_COMM_WORLD_*, PMIX/SLURM when MPI can be initialised there): cheap, no MPI call. */
void pot_launch_detect(pot_launch *out);

typedef struct pot_rank {
    pot_blob address;
    char host[64];
} pot_rank;
typedef struct pot_bootstrap {
    pot_rank *ranks; /* [size], owned */
    int rank, size;
} pot_bootstrap;
/* Collective over all ranks, with a deadline: gives each rank everybody's address. */
pot_status pot_bootstrap_mpi(pot_bootstrap *out, pot_blob address, pot_err *err);
void pot_bootstrap_free(pot_bootstrap *bootstrap);

#endif
