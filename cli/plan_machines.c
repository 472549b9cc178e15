/* The machines that a plan is for, and what is known of how their experts are chosen. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli/plan.h"
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/system.h"
#include "placement/cluster.h"
#include "worker/device.h"
#include "worker/usage.h"

/* ---- this machine ------------------------------------------------------------------------------------------------------------ */

static pot_status this_gpu(plan_machine *m, uint64_t wanted, pot_err *err) {
    m->vram_bytes = wanted;
    if (wanted != UINT64_MAX) return POT_OK;
    pot_device *device = NULL;
    pot_status status = pot_device_open(&device, UINT64_MAX, 0, 1, err);
    m->vram_bytes = device ? pot_device_bytes(device) : 0;
    if (device && pot_device_shares_memory(device)) m->vram_bytes = 0; /* it counts as RAM */
    pot_device_close(device);
    return status;
}

static pot_status this_machine(plan_cluster *out, const pot_settings *settings, pot_err *err) {
    pot_memory_info memory;
    plan_machine *m = &out->machines[0];
    pot_memory_read(&memory);
    snprintf(m->name, sizeof m->name, "%.63s", pot_host_name());
    m->machine_bytes = settings->ram == UINT64_MAX ? memory.usable_bytes : 0;
    m->ram_bytes = settings->ram;
    m->disk_bytes = UINT64_MAX;
    m->dense_bytes_per_s = PLAN_RAM_BYTES_PER_S;
    m->speed.bytes_per_s[POT_COST_VRAM] = PLAN_VRAM_BYTES_PER_S;
    m->speed.bytes_per_s[POT_COST_RAM] = PLAN_RAM_BYTES_PER_S;
    m->speed.bytes_per_s[POT_COST_DISK] = PLAN_DISK_BYTES_PER_S;
    out->n = 1;
    out->port_bytes_per_s = PLAN_LINK_BYTES_PER_S;
    out->operations_per_s = PLAN_OPERATIONS_PER_S;
    snprintf(out->figures, sizeof out->figures,
             "round ones, nothing was measured: RAM %.0f GB/s, VRAM %.0f GB/s, disk %.0f GB/s, attention %.0f Gop/s "
             "(`potluck bench machine -o FILE` measures, --cluster FILE takes that)",
             PLAN_RAM_BYTES_PER_S / 1e9, PLAN_VRAM_BYTES_PER_S / 1e9, PLAN_DISK_BYTES_PER_S / 1e9,
             PLAN_OPERATIONS_PER_S / 1e9);
    return this_gpu(m, settings->vram, err);
}

void plan_add_worker(plan_cluster *c) {
    plan_machine *m = &c->machines[c->n];
    *m = c->machines[c->n - 1];
    snprintf(m->name, sizeof m->name, "one more");
    if (!m->speed.remote) {
        m->speed.remote = true;
        m->speed.link_s = PLAN_LINK_S;
        m->speed.link_bytes_per_s = PLAN_LINK_BYTES_PER_S;
    }
    c->n++;
}

/* ---- a file ---------------------------------------------------------------------------------------------------------------------- */

static bool stand_in(double *rate, double round) {
    if (*rate > 0) return false;
    *rate = round;
    return true;
}

/* true when a round figure had to stand in for one that the file does not have. */
static bool from_entry(plan_machine *out, const pot_machine *m, const pot_settings *settings) {
    bool round = false;
    snprintf(out->name, sizeof out->name, "%s", m->host);
    pot_machine_speed(&out->speed, m);
    out->speed.link_s = m->link.latency_s + m->link.jitter_s;
    out->speed.message_s = m->link.message_s; /* one after the other, so on top of the slowest worker's time */
    out->machine_bytes = m->tiers[POT_COST_RAM].bytes;
    out->ram_bytes = settings->ram;
    if (!out->machine_bytes) out->ram_bytes = 0;
    out->vram_bytes = m->tiers[POT_COST_VRAM].bytes < settings->vram ? m->tiers[POT_COST_VRAM].bytes : settings->vram;
    out->disk_bytes = m->tiers[POT_COST_DISK].bytes;
    round |= stand_in(&out->speed.bytes_per_s[POT_COST_RAM], PLAN_RAM_BYTES_PER_S);
    if (out->vram_bytes) round |= stand_in(&out->speed.bytes_per_s[POT_COST_VRAM], PLAN_VRAM_BYTES_PER_S);
    if (out->disk_bytes) round |= stand_in(&out->speed.bytes_per_s[POT_COST_DISK], PLAN_DISK_BYTES_PER_S);
    out->dense_bytes_per_s = m->dense_bytes_per_s > 0 ? m->dense_bytes_per_s : out->speed.bytes_per_s[POT_COST_RAM];
    return round;
}

static pot_status from_file(plan_cluster *out, const pot_settings *settings, pot_err *err) {
    pot_machines *file = pot_alloc(sizeof *file);
    if (!file) return pot_fail(err, POT_NO_MEMORY, "no memory for a cluster file");
    pot_status status = pot_machines_read(file, settings->cluster, err);
    bool round = false;
    if (!status) {
        out->n = file->n;
        out->port_bytes_per_s = file->port_bytes_per_s;
        out->operations_per_s = file->of[0].operations_per_s;
        for (uint32_t w = 0; w < file->n; w++) round |= from_entry(&out->machines[w], &file->of[w], settings);
        round |= stand_in(&out->operations_per_s, PLAN_OPERATIONS_PER_S);
        snprintf(out->figures, sizeof out->figures, "%.160s%s%.160s%s", settings->cluster, *file->note ? ": " : "",
                 file->note, round ? "; a round figure stands in for each that is not there" : "");
    }
    pot_free(file);
    return status;
}

pot_status plan_machines(plan_cluster *out, const pot_settings *settings, pot_err *err) {
    *out = (plan_cluster){0};
    return settings->cluster ? from_file(out, settings, err) : this_machine(out, settings, err);
}

/* ---- how experts are chosen ---------------------------------------------------------------------------------------------------- */

typedef struct counting {
    plan_task *task;
    double *counts;
} counting;

static void count(void *context, uint32_t layer, uint32_t expert, uint64_t n) {
    const counting *c = context;
    const pot_config *config = pot_model_config(c->task->model);
    if (layer < pot_model_layers(c->task->model) && expert < config->n_routed)
        c->counts[(size_t)layer * config->n_routed + expert] += (double)n;
}

/* A file that is not there says nothing; one that is not whole is reported and says nothing either. */
static bool read_counts(counting *c, const char *path) {
    pot_err err;
    pot_buffer text = {0};
    const pot_model *model = c->task->model;
    pot_status status = pot_file_read(&text, path, 16 << 20, &err);
    if (!status)
        status = pot_usage_parse(text.data ? text.data : "", text.bytes, path, pot_model_fingerprint(model),
                                 pot_model_layers(model), count, c, &err);
    pot_buffer_free(&text);
    if (status && status != POT_NOT_FOUND) POT_LOG(POT_LOG_WARN, "plan", "ignored: %s", err.text);
    return !status;
}

/* Counts become how often a token chooses each expert: top_k in all, none more than once, and none never. */
static void normalize(double *counts, const plan_task *task) {
    const pot_config *c = pot_model_config(task->model);
    for (uint32_t layer = 0; layer < pot_model_layers(task->model); layer++) {
        double *p = counts + (size_t)layer * c->n_routed, sum = 0;
        for (uint32_t e = 0; e < c->n_routed; e++) sum += p[e] += 0.5;
        for (uint32_t e = 0; e < c->n_routed; e++) p[e] *= c->top_k / sum;
    }
}

pot_status plan_read_heat(plan_task *task, const pot_settings *settings, pot_err *err) {
    const pot_config *c = pot_model_config(task->model);
    bool automatic = strcmp(settings->usage, "auto") == 0, off = strcmp(settings->usage, "off") == 0;
    snprintf(task->choices, sizeof task->choices,
             "by the curve of GLM-5.2 (docs/cluster.md); a usage file of earlier runs would tell more");
    if (off) return POT_OK;
    counting found = {task, pot_alloc_array((size_t)pot_model_layers(task->model) * c->n_routed + 1, sizeof(double))};
    if (!found.counts) return pot_fail(err, POT_NO_MEMORY, "no memory for the heat of experts");
    pot_status status = POT_OK;
    int files = 0;
    for (uint32_t w = 0; !status && w < (automatic ? POT_MAX_WORKERS : 1); w++) {
        char *path;
        status = pot_usage_path(&path, settings->usage, task->model, w, err);
        if (!status && path) files += read_counts(&found, path);
        pot_free(path);
    }
    if (!status && !automatic && !files)
        status = pot_fail(err, POT_FORMAT, "--usage %s: cannot be used (the line above says why, if it is there)",
                          settings->usage);
    if (status || !files) {
        pot_free(found.counts);
        return status;
    }
    normalize(found.counts, task);
    task->heat = found.counts;
    snprintf(task->choices, sizeof task->choices, "as counted in earlier runs of this model, %d usage file%s", files,
             files == 1 ? "" : "s");
    return POT_OK;
}
