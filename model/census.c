/* What a model takes: bytes of the coordinator, of a worker under a map, and the table that `inspect` prints.  Computed from
 * headers alone, and equal to what loading allocates, so that a refusal comes before the first gigabyte is read. */
#include <string.h>

#include "common/mem.h"
#include "model/model_internal.h"

/* What the coordinator holds of one tensor outside the experts. */
static uint64_t dense_bytes(const pot_model *m, pot_role role, uint32_t layer) {
    return pot_line_up(pot_model_dense_bytes(m, role, layer));
}

static uint64_t expert_bytes(const pot_ffn_shape *shape) {
    uint64_t bytes = 0;
    for (uint32_t chunk = 0; chunk < shape->n_chunks; chunk++) bytes += pot_chunk_bytes(shape, chunk);
    return bytes;
}

/* One matrix's share of its expert's chunks.  `down` is what gate and up leave: its own tiles and the padding to pages. */
static uint64_t ffn_bytes(const pot_model *m, pot_role role, uint32_t layer) {
    const pot_layer_formats *f = &m->layers[layer];
    const pot_ffn_shape *shape = pot_role_is_routed(role) ? &f->routed : &f->common;
    const uint64_t one = pot_matrix_bytes((pot_format)shape->gate_up_format, shape->inner, shape->hidden);
    bool down = role == POT_ROLE_EXPERT_DOWN || role == POT_ROLE_SHARED_DOWN || role == POT_ROLE_DENSE_DOWN;
    return down ? expert_bytes(shape) - 2 * one : one;
}

uint64_t pot_model_layer_bytes(const pot_model *m, uint32_t layer) {
    uint64_t bytes = 0;
    for (int role = POT_ROLE_INPUT_NORM; role < POT_ROLE_COUNT; role++)
        if (!pot_role_is_ffn((pot_role)role) && pot_role_exists(&m->config, (pot_role)role, layer))
            bytes += dense_bytes(m, (pot_role)role, layer);
    return bytes;
}

uint64_t pot_model_coordinator_bytes(const pot_model *m) {
    uint64_t bytes = 0;
    for (int role = 0; role < POT_ROLE_INPUT_NORM; role++) bytes += dense_bytes(m, (pot_role)role, 0);
    for (uint32_t layer = 0; layer < pot_model_layers(m); layer++) bytes += pot_model_layer_bytes(m, layer);
    return bytes;
}

uint64_t pot_model_worker_bytes(const pot_model *m, const pot_map *map, uint32_t worker) {
    uint64_t bytes = 0;
    for (uint32_t layer = 0; layer < pot_model_layers(m); layer++)
        for (uint32_t expert = 0; expert < pot_layer_experts(&m->shapes[layer]); expert++) {
            const pot_ffn_shape *shape = pot_model_expert_shape(m, layer, expert);
            uint32_t n;
            const pot_map_range *ranges = pot_map_ranges(map, layer, expert, &n);
            for (uint32_t i = 0; i < n; i++)
                if (ranges[i].owners >> worker & 1)
                    for (uint32_t chunk = ranges[i].chunk_begin; chunk < ranges[i].chunk_end; chunk++)
                        bytes += pot_chunk_bytes(shape, chunk);
        }
    return bytes;
}

pot_status pot_model_check_memory(uint64_t needed_bytes, const char *what, pot_err *err) {
    pot_memory_info info;
    pot_memory_read(&info);
    if (needed_bytes <= info.usable_bytes) return POT_OK;
    bool cgroup = info.usable_bytes < info.available_bytes;
    return pot_fail(err, POT_LIMIT,
                    "%s: %.3f GiB needed, %s leaves %.3f GiB; more workers or smaller formats would help", what,
                    (double)needed_bytes / 0x1p30, cgroup ? "the memory limit of this cgroup" : "this machine",
                    (double)info.usable_bytes / 0x1p30);
}

/* ---- the table ---- */

static const char *const names[] = {"F32", "BF16", "F16", "FP8", "MXFP4", "INT8", "INT4", "INT2", "INT4 grp"};
enum { INT4_GROUPS = 8, N_NAMES = sizeof names / sizeof *names };

static const char *stored_name(const pot_stored *stored) {
    return names[stored->kind == POT_STORED_INT4 && stored->group ? INT4_GROUPS : (int)stored->kind];
}

const char *pot_stored_name_find(const char *name) {
    for (int i = 0; i < N_NAMES; i++)
        if (!strcmp(names[i], name)) return names[i];
    return NULL;
}

/* The row of that kind, new if need be; NULL when there is no room. */
static pot_census_row *find_row(pot_census_row *rows, uint32_t *n, uint32_t max, const char *group, const char *stored,
                                const char *format) {
    for (uint32_t i = 0; i < *n; i++)
        if (!strcmp(rows[i].group, group) && !strcmp(rows[i].stored, stored) && !strcmp(rows[i].format, format))
            return &rows[i];
    if (*n == max) return NULL;
    rows[*n] = (pot_census_row){.group = group, .stored = stored, .format = format};
    return &rows[(*n)++];
}

/* A random model stores nothing. */
static uint64_t stored_bytes(const pot_source *source) {
    if (!source->tensors[0]) return 0;
    bool fused = source->tensors[0]->rank == 3;
    uint64_t bytes = fused ? source->stored.rows * source->stored.row_stride : source->tensors[0]->bytes;
    return bytes + (source->tensors[1] ? source->tensors[1]->bytes : 0);
}

static void add_source(pot_census_row *row, const pot_model *m, pot_role role, uint32_t layer,
                       const pot_source *source) {
    const pot_stored *stored = &source->stored;
    row->tensors++;
    row->parameters += (uint64_t)stored->rows * (stored->cols ? stored->cols : 1);
    const uint64_t packed = pot_role_is_ffn(role) ? ffn_bytes(m, role, layer) : dense_bytes(m, role, layer);
    row->stored_bytes += m->container ? packed : stored_bytes(source);
    row->packed_bytes += packed;
}

pot_census_row *pot_census_row_of(pot_census_row *rows, uint32_t *n, uint32_t max, const pot_model *m, pot_role role,
                                  uint32_t layer, const pot_stored *stored) {
    return find_row(rows, n, max, pot_role_group(role), m->container ? "packed" : stored_name(stored),
                    pot_format_get(pot_model_packed_format(m, role, layer))->name);
}

void pot_census_add(pot_census_row *rows, uint32_t *n, uint32_t max, const pot_model *m, pot_role role,
                    uint32_t layer) {
    const uint32_t copies = pot_role_is_routed(role) ? m->config.n_routed : 1;
    for (uint32_t expert = 0; expert < copies; expert++) {
        pot_source source = {0};
        if (!m->container && pot_source_find(&source, m, role, layer, expert, NULL) != POT_OK) continue;
        if (m->container) pot_role_shape(&m->config, role, &source.stored.rows, &source.stored.cols);
        pot_census_row *row = pot_census_row_of(rows, n, max, m, role, layer, &source.stored);
        if (row) add_source(row, m, role, layer, &source);
    }
}

uint32_t pot_model_census(pot_census_row *out, uint32_t max, const pot_model *m) {
    uint32_t n = 0;
    for (int role = 0; role < POT_ROLE_COUNT; role++)
        for (uint32_t layer = 0; layer < pot_model_layers(m); layer++)
            if (pot_role_exists(&m->config, (pot_role)role, layer))
                pot_census_add(out, &n, max, m, (pot_role)role, layer);
    pot_census_row *row = m->ignored_tensors ? find_row(out, &n, max, "ignored", "-", "-") : NULL;
    if (row) {
        row->tensors = m->ignored_tensors;
        row->stored_bytes = m->ignored_bytes;
    }
    return n;
}
