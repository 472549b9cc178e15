/* Opening a model: config, shards, the count in both directions, formats, fingerprint; then look-ups. */
#include "model/model.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "common/mem.h"
#include "model/container_layout.h"
#include "model/model_internal.h"

/* Weights are packed already: what is wanted must be what was asked for then. */
static pot_status check_wishes(const pot_model *m, const pot_format_policy *wanted, pot_err *err) {
    if (wanted->reference)
        return pot_fail(err, POT_USAGE,
                        "--reference: %s is converted, its weights are packed; give the checkpoint that it was made of",
                        m->directory);
    for (int i = 0; i < POT_WISHES; i++) {
        const pot_format wish = pot_policy_wish(wanted, (pot_wish)i),
                         asked = pot_container_asked(m->container, (pot_wish)i);
        if (wish != POT_FORMAT_NONE && wish != asked)
            return pot_fail(
                err, POT_USAGE, "--%s %s: %s was converted with --%s %s; convert it again, or leave the option away",
                pot_wish_name((pot_wish)i), pot_format_get(wish)->name, m->directory, pot_wish_name((pot_wish)i),
                asked == POT_FORMAT_NONE ? "auto" : pot_format_get(asked)->name);
    }
    return POT_OK;
}

static pot_status open_container(pot_model *m, const pot_format_policy *wanted, pot_err *err) {
    pot_status s = pot_config_read(&m->config, m->directory, err);
    if (s == POT_OK) s = pot_container_open(&m->container, m->directory, &m->config, err);
    if (s == POT_OK) s = pot_model_take_formats(m, err);
    if (s == POT_OK) s = check_wishes(m, wanted, err);
    m->policy = (pot_format_policy){0};
    if (s == POT_OK) s = pot_model_fingerprint_with(&m->fingerprint, m, pot_container_hash(m->container), err);
    if (s == POT_OK && !pot_hash_equal(m->fingerprint, pot_container_fingerprint(m->container)))
        s = pot_fail(err, POT_FORMAT,
                     "%s: config.json or " POT_CONTAINER_MANIFEST
                     " was changed since the model was converted: they do not give the "
                     "fingerprint that " POT_CONTAINER_MANIFEST " says",
                     m->directory);
    return s;
}

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
    if (!pot_synthetic_is(directory) && pot_container_is(directory)) {
        pot_status opened = open_container(m, policy, err);
        if (opened != POT_OK)
            pot_model_close(m);
        else
            *out = m;
        return opened;
    }
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
    pot_container_close(m->container);
    pot_container_close(m->remembered);
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
    return m->container ? pot_container_grid(m->container, layer) : POT_GRID_BITS;
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

/* Read and checked; the store has ways of its own to do this for many at a time. */
static pot_status read_chunk(uint8_t *out, const pot_model *m, uint32_t layer, uint32_t expert, uint32_t chunk,
                             pot_err *err) {
    const pot_ffn_shape *shape = pot_model_expert_shape(m, layer, expert);
    pot_chunk_place place;
    pot_status s = pot_container_chunk_place(&place, m->container, layer, expert, chunk, err);
    if (s != POT_OK) return s;
    const char *path = pot_container_chunk_file(m->container, layer);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return pot_fail(err, POT_IO, "%s: cannot be opened: %s", path, strerror(errno));
    s = pot_read_exactly(fd, out, pot_chunk_bytes(shape, chunk), place.offset, path, err);
    close(fd);
    if (s == POT_OK && pot_hash64(out, pot_chunk_bytes(shape, chunk)) != place.checksum)
        s = pot_fail(err, POT_IO,
                     "%s: is damaged: the checksum does not match (`potluck verify` finds all such places)", path);
    return s;
}

static pot_status pack_chunk(uint8_t *out, const pot_model *m, uint32_t layer, uint32_t expert, uint32_t chunk,
                             pot_err *err) {
    pot_role gate = m->config.layer_is_dense[layer]      ? POT_ROLE_DENSE_GATE
                    : expert < m->shapes[layer].n_routed ? POT_ROLE_EXPERT_GATE
                                                         : POT_ROLE_SHARED_GATE;
    pot_stored stored[3];
    for (int i = 0; i < 3; i++) {
        pot_status s = pot_model_matrix(&stored[i], m, (pot_role)(gate + i), layer, expert, err);
        if (s != POT_OK) return s;
    }
    pot_status s = pot_pack_chunk(out, pot_model_expert_shape(m, layer, expert), m->policy.rounding, chunk, &stored[0],
                                  &stored[1], &stored[2], err);
    return s;
}

pot_status pot_model_load_chunk(uint8_t *out, const pot_model *m, uint32_t layer, uint32_t expert, uint32_t chunk,
                                pot_err *err) {
    pot_status s =
        m->container ? read_chunk(out, m, layer, expert, chunk, err) : pack_chunk(out, m, layer, expert, chunk, err);
    return s == POT_OK ? s : pot_at(err, "layer %u expert %u chunk %u", layer, expert, chunk);
}

bool pot_model_is_packed(const pot_model *m) { return m->container != NULL; }

const char *pot_model_chunk_file(const pot_model *m, uint32_t layer) {
    return m->container ? pot_container_chunk_file(m->container, layer) : NULL;
}

pot_status pot_model_chunk_place(pot_chunk_place *out, const pot_model *m, uint32_t layer, uint32_t expert,
                                 uint32_t chunk, pot_err *err) {
    if (!m->container) return pot_fail(err, POT_BUG, "%s is not converted", m->directory);
    return pot_container_chunk_place(out, m->container, layer, expert, chunk, err);
}
