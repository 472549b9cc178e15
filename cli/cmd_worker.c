/* potluck worker, and what every command does on a rank above 0: hold experts and compute for the coordinator until it says Leave. */
#include "cli/cli.h"
#include "coordinator/cluster.h"

pot_status pot_cmd_worker(const pot_cli *cli, pot_err *err) {
    if (cli->launch.rank == 0) {
        return pot_fail(err, POT_USAGE,
                        "a worker needs a coordinator as rank 0: mpirun -n 1 potluck run MODEL : -n 3 potluck worker");
    }
    pot_cluster cluster = {0};
    pot_status status = pot_cluster_start(&cluster, cli->settings, NULL, err);
    pot_cluster_stop(&cluster);
    return status;
}
