/* Opening a model: config, shards, the count in both directions, formats, fingerprint; then look-ups. */
#include "model/model.h"

#include "common/mem.h"
#include "model/model_internal.h"

static pot_status open_files(pot_model *m, pot_err *err) {
    pot_status s = pot_config_read(&m->config, m->directory, err);
    if (s == POT_OK) s = pot_shards_open(&m->shards, m->directory, err);
    return s == POT_OK ? pot_model_take_inventory(m, err) : s;
}

pot_status pot_model_open(pot_model **out, const char *directory, const pot_format_policy *policy, pot_err *err) {
    pot_model *m = pot_alloc(sizeof *m);
    if (!m || !(m->directory = pot_strdup(directory))) {
        pot_free(m);
        return pot_fail(err, POT_NO_MEMORY, "%s: no memory to open it", directory);
    }
    m->policy = *policy;
    if (m->policy.dense == POT_FORMAT_NONE) m->policy.dense = pot_format_policy_default.dense;
    if (m->policy.head == POT_FORMAT_NONE) m->policy.head = pot_format_policy_default.head;
    pot_status s = pot_synthetic_is(directory) ? pot_synthetic_open(m, err) : open_files(m, err);
    if (s == POT_OK) s = pot_model_choose_formats(m, err);
    if (s == POT_OK) s = pot_model_make_fingerprint(m, err);
    if (s != POT_OK) {
        pot_model_close(m);
        return s;
    }
    *out = m;
    return POT_OK;
}

void pot_model_close(pot_model *m) {
    if (!m) return;
    pot_shards_close(m->shards);
    pot_synthetic_close(m->synthetic);
    pot_free(m->layers);
    pot_free(m->shapes);
    pot_free(m->directory);
    pot_free(m);
}

const pot_config *pot_model_config(const pot_model *m) { return &m->config; }
const char *pot_model_directory(const pot_model *m) { return m->directory; }
uint32_t pot_model_layers(const pot_model *m) { return m->config.n_layers + m->config.n_mtp; }
pot_hash pot_model_fingerprint(const pot_model *m) { return m->fingerprint; }
const pot_format_policy *pot_model_policy(const pot_model *m) { return &m->policy; }
const pot_layer_shape *pot_model_layer_shapes(const pot_model *m) { return m->shapes; }

int pot_model_grid(const pot_model *m, uint32_t layer) {
    POT_ASSERT(layer < pot_model_layers(m));
    return POT_GRID_BITS; /* packed containers will bring a table */
}

static pot_status find(pot_source *out, const pot_model *m, pot_role role, uint32_t layer, uint32_t expert,
                       pot_err *err) {
    if (layer >= pot_model_layers(m) || !pot_role_exists(&m->config, role, layer))
        return pot_fail(err, POT_BUG, "layer %u has no %s", layer, pot_role_group(role));
    return pot_source_find(out, m, role, layer, expert, err);
}

pot_status pot_model_matrix(pot_stored *out, const pot_model *m, pot_role role, uint32_t layer, uint32_t expert,
                            pot_err *err) {
    pot_source source;
    pot_status s = find(&source, m, role, layer, expert, err);
    if (s == POT_OK) *out = source.stored;
    return s;
}

pot_status pot_model_vector(float *out, const pot_model *m, pot_role role, uint32_t layer, uint32_t n, pot_err *err) {
    pot_source source = {0};
    pot_status s = find(&source, m, role, layer, 0, err);
    if (s != POT_OK) return s;
    POT_ASSERT(source.stored.rows == n && source.stored.cols == 0);
    source.stored.rows = 1; /* a vector is read as one row */
    source.stored.cols = n;
    return pot_stored_row(out, &source.stored, 0, 0, n, err);
}

const pot_ffn_shape *pot_model_routed(const pot_model *m, uint32_t layer) {
    return m->layers[layer].routed.n_chunks ? &m->layers[layer].routed : NULL;
}

const pot_ffn_shape *pot_model_common(const pot_model *m, uint32_t layer) {
    return m->layers[layer].common.n_chunks ? &m->layers[layer].common : NULL;
}

const pot_ffn_shape *pot_model_expert_shape(const pot_model *m, uint32_t layer, uint32_t expert) {
    return expert < m->shapes[layer].n_routed ? pot_model_routed(m, layer) : pot_model_common(m, layer);
}

pot_status pot_model_pack_chunk(uint8_t *out, const pot_model *m, uint32_t layer, uint32_t expert, uint32_t chunk,
                                pot_err *err) {
    pot_role gate = m->config.layer_is_dense[layer]      ? POT_ROLE_DENSE_GATE
                    : expert < m->shapes[layer].n_routed ? POT_ROLE_EXPERT_GATE
                                                         : POT_ROLE_SHARED_GATE;
    pot_stored stored[3];
    for (int i = 0; i < 3; i++) {
        pot_status s = pot_model_matrix(&stored[i], m, (pot_role)(gate + i), layer, expert, err);
        if (s != POT_OK) return s;
    }
    pot_status s =
        pot_pack_chunk(out, pot_model_expert_shape(m, layer, expert), chunk, &stored[0], &stored[1], &stored[2], err);
    return s == POT_OK ? s : pot_at(err, "layer %u expert %u chunk %u", layer, expert, chunk);
}
