/* Everything that must stand before the first token, from the settings: launch, transports, own worker, peers, engine. */
#ifndef POT_COORDINATOR_CLUSTER_H
#define POT_COORDINATOR_CLUSTER_H

#include "common/settings.h"
#include "coordinator/engine.h"
#include "proto/bootstrap.h"

typedef struct pot_cluster {
    pot_launch launch;
    pot_model *model;
    pot_peers *peers;
    pot_moe *moe;
    pot_engine *engine;
    pot_kv_format kv;
    uint64_t load_us;
    struct pot_cluster_parts *parts; /* transports, bootstrap, own worker */
} pot_cluster;

/* Rank 0: becomes coordinator and worker 0; *out is ready for pot_engine_forward.  Other ranks: serve as workers until Leave and
 * return with out->engine NULL (the caller then exits with the returned status). */
pot_status pot_cluster_start(pot_cluster *out, const pot_settings *settings, const char *model_directory, pot_err *err);
/* The same, and `observer` sees what this rank's worker computes. */
pot_status pot_cluster_start_observed(pot_cluster *out, const pot_settings *settings, const char *model_directory,
                                      const pot_work_observer *observer, pot_err *err);
/* The same in this process alone, whatever the launcher says: `eval --against reference` keeps a second engine beside the cluster. */
pot_status pot_cluster_start_alone(pot_cluster *out, const pot_settings *settings, const char *model_directory,
                                   pot_err *err);
void pot_cluster_stop(pot_cluster *cluster); /* also an all-zero one */

/* The formats that --reference, --experts-format, --dense-format and --head-format ask for. */
pot_status pot_settings_policy(pot_format_policy *out, const pot_settings *settings, pot_err *err);
/* What the options of the group "Expert store" ask for. */
pot_status pot_settings_store(pot_store_choice *out, const pot_settings *settings, pot_err *err);

#endif
