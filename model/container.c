/* potluck.json: writing it, and opening a container by it.  Every field is checked before it is used; headers, checksums and their hashes of all files that
 * are there are read at once (about 100 KB a layer), the data when it is wanted. */
#include "model/container.h"

#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/file.h"
#include "common/json.h"
#include "common/mem.h"
#include "model/container_layout.h"

enum { MAX_MANIFEST = 64 << 20 };

/* One file, as opened. */
typedef struct part {
    pot_file_layout layout;
    uint64_t *checksums; /* NULL = the file is not on this machine */
    char *path;
    int fd; /* dense: for reading; experts: closed again, -1 */
} part;

typedef struct layer_facts {
    pot_ffn_shape routed, common;  /* n_chunks 0 = none */
    uint8_t dense[POT_ROLE_COUNT]; /* pot_format */
    int grid;
} layer_facts;

struct pot_container {
    char *directory;
    const pot_config *config;
    uint32_t n_layers;
    layer_facts *layers; /* [n_layers]; roles that belong to no layer are in the first */
    pot_container_file *files;
    part *parts; /* [n_files] */
    uint32_t n_files;
    pot_hash fingerprint;         /* that potluck.json says */
    pot_format asked[POT_WISHES]; /* NONE = auto */
};

/* Where the files of a layer are in the list. */
static uint32_t dense_index(const pot_container *c, uint32_t layer) {
    return layer == POT_CONTAINER_MODEL ? 2 * c->n_layers : 2 * layer;
}
static uint32_t experts_index(uint32_t layer) { return 2 * layer + 1; }

/* ---- writing --------------------------------------------------------------------------------------------------------------- */

static void put_shape(pot_buffer *out, const char *name, const pot_ffn_shape *shape) {
    if (!shape) return;
    pot_buffer_format(out, ", \"%s\": {\"inner\": %u, \"chunk\": %u, \"gate_up\": \"%s\", \"down\": \"%s\"}", name,
                      shape->inner, shape->chunk_width, pot_format_get((pot_format)shape->gate_up_format)->name,
                      pot_format_get((pot_format)shape->down_format)->name);
}

static void put_layer(pot_buffer *out, const pot_model *m, uint32_t layer) {
    pot_buffer_format(out, "{\"layer\": %u, \"grid\": %d", layer, pot_model_grid(m, layer));
    put_shape(out, "routed", pot_model_routed(m, layer));
    put_shape(out, "common", pot_model_common(m, layer));
    pot_buffer_byte(out, '}');
}

static void put_formats(pot_buffer *out, const pot_model *m) {
    const char *comma = "";
    for (uint32_t layer = 0; layer < pot_model_layers(m); layer++)
        for (int r = 0; r < POT_ROLE_COUNT; r++) {
            const pot_role role = (pot_role)r;
            if (pot_role_is_ffn(role) || !pot_role_is_matrix(role) || !pot_role_exists(&m->config, role, layer))
                continue;
            char name[POT_TENSOR_NAME];
            pot_role_name(name, role, layer, 0);
            pot_buffer_format(out, "%s\n  \"%s\": \"%s\"", comma, name,
                              pot_format_get(pot_model_packed_format(m, role, layer))->name);
            comma = ",";
        }
}

void pot_container_put_formats(pot_buffer *out, const pot_model *m) {
    pot_buffer_text(out, "\"asked\": {");
    for (int i = 0; i < POT_WISHES; i++) {
        const pot_format format = pot_policy_wish(&m->policy, (pot_wish)i);
        pot_buffer_format(out, "%s\"%s\": \"%s\"", i ? ", " : "", pot_wish_name((pot_wish)i),
                          format == POT_FORMAT_NONE ? "auto" : pot_format_get(format)->name);
    }
    pot_buffer_format(out, "},\n \"mtp_layers\": %u,\n \"layers\": [", m->config.n_mtp);
    for (uint32_t layer = 0; layer < pot_model_layers(m); layer++) {
        pot_buffer_text(out, layer ? ",\n  " : "\n  ");
        put_layer(out, m, layer);
    }
    pot_buffer_text(out, "],\n \"formats\": {");
    put_formats(out, m);
    pot_buffer_byte(out, '}');
}

pot_status pot_container_manifest(pot_buffer *out, const pot_model *m, const char *source,
                                  const pot_container_file *files, uint32_t n, pot_err *err) {
    pot_hash fingerprint;
    char text[33];
    pot_status s = pot_model_fingerprint_with(&fingerprint, m, pot_container_files_hash(files, n), err);
    if (s != POT_OK) return s;
    pot_hash_text(text, fingerprint);
    pot_buffer_format(out, "{\"potluck\": %d, \"source\": ", POT_CONTAINER_VERSION);
    pot_json_quote(out, source, strlen(source));
    pot_buffer_format(out, ", \"fingerprint\": \"%s\", ", text);
    pot_container_put_formats(out, m);
    pot_buffer_text(out, ",\n \"files\": [");
    for (uint32_t i = 0; i < n; i++) {
        pot_hash_text(text, files[i].hash);
        pot_buffer_format(out, "%s\n  {\"name\": \"%s\", \"bytes\": %" PRIu64 ", \"hash\": \"%s\"}", i ? "," : "",
                          files[i].name, files[i].bytes, text);
    }
    pot_buffer_text(out, "]}\n");
    return out->failed ? pot_fail(err, POT_NO_MEMORY, "no memory to write %s", POT_CONTAINER_MANIFEST) : POT_OK;
}

/* ---- reading potluck.json -------------------------------------------------------------------------------------------------- */

static bool parse_hash(pot_hash *out, const char *text) {
    char again[33];
    if (strlen(text) != 32 || sscanf(text, "%16" SCNx64 "%16" SCNx64, &out->high, &out->low) != 2) return false;
    pot_hash_text(again, *out);
    return strcmp(text, again) == 0;
}

pot_status pot_json_hash(pot_hash *out, const json_t *object, const char *key, const char *name, pot_err *err) {
    const char *text;
    pot_status s = pot_json_string(&text, object, key, true, name, err);
    if (s != POT_OK || parse_hash(out, text)) return s;
    return pot_fail(err, POT_FORMAT, "%s: `%s` is `%.40s`, 32 hexadecimal digits were expected", name, key, text);
}

static pot_status get_format(pot_format *out, const json_t *object, const char *key, const char *name, pot_err *err) {
    const char *text;
    pot_status s = pot_json_string(&text, object, key, true, name, err);
    if (s != POT_OK) return s;
    *out = pot_format_find(text);
    if (*out != POT_FORMAT_NONE) return POT_OK;
    return pot_fail(err, POT_FORMAT, "%s: `%s` is `%.40s`, which is no weight format that this version knows", name,
                    key, text);
}

static pot_status get_shape(pot_ffn_shape *out, const json_t *layer, const char *key, uint32_t hidden, uint32_t inner,
                            const char *name, pot_err *err) {
    const json_t *object = json_object_get(layer, key);
    int64_t found_inner = 0, chunk = 0;
    pot_format gate_up, down;
    if (!json_is_object(object)) return pot_fail(err, POT_FORMAT, "%s: `%s` is missing, or no object", name, key);
    pot_status s = pot_json_int(&found_inner, object, "inner", 1, INT32_MAX, true, name, err);
    if (s == POT_OK) s = pot_json_int(&chunk, object, "chunk", 1, INT32_MAX, true, name, err);
    if (s == POT_OK) s = get_format(&gate_up, object, "gate_up", name, err);
    if (s == POT_OK) s = get_format(&down, object, "down", name, err);
    if (s != POT_OK) return s;
    if (found_inner != inner || chunk != pot_chunk_width(inner))
        return pot_fail(err, POT_FORMAT,
                        "%s: `%s` has inner width %lld in chunks of %lld, by config.json it is %u in chunks of %u",
                        name, key, (long long)found_inner, (long long)chunk, inner, pot_chunk_width(inner));
    pot_ffn_shape_init(out, hidden, inner, gate_up, down);
    return POT_OK;
}

static pot_status get_layer(pot_container *c, uint32_t layer, const json_t *object, const char *name, pot_err *err) {
    const pot_config *config = c->config;
    layer_facts *f = &c->layers[layer];
    int64_t number = 0, grid = 0;
    char place[64 + 512];
    snprintf(place, sizeof place, "%.512s: layer %u", name, layer);
    pot_status s = pot_json_int(&number, object, "layer", layer, layer, true, place, err);
    if (s == POT_OK) s = pot_json_int(&grid, object, "grid", 1, 40, true, place, err);
    f->grid = (int)grid;
    if (s == POT_OK && config->layer_is_dense[layer])
        return get_shape(&f->common, object, "common", config->hidden, config->dense_inner, place, err);
    if (s == POT_OK) s = get_shape(&f->routed, object, "routed", config->hidden, config->moe_inner, place, err);
    if (s == POT_OK && config->n_shared)
        s = get_shape(&f->common, object, "common", config->hidden, config->moe_inner * config->n_shared, place, err);
    return s;
}

static pot_status get_layers(pot_container *c, const json_t *root, const char *name, pot_err *err) {
    const json_t *layers = json_object_get(root, "layers"), *formats = json_object_get(root, "formats");
    if (!json_is_array(layers) || json_array_size(layers) != c->n_layers)
        return pot_fail(err, POT_FORMAT, "%s: `layers` has %zu entries, by config.json there are %u layers", name,
                        json_array_size(layers), c->n_layers);
    if (!json_is_object(formats)) return pot_fail(err, POT_FORMAT, "%s: `formats` is missing, or no object", name);
    pot_status s = POT_OK;
    for (uint32_t layer = 0; layer < c->n_layers && s == POT_OK; layer++) {
        s = get_layer(c, layer, json_array_get(layers, layer), name, err);
        for (int r = 0; r < POT_ROLE_COUNT && s == POT_OK; r++) {
            const pot_role role = (pot_role)r;
            if (pot_role_is_ffn(role) || !pot_role_exists(c->config, role, layer)) continue;
            c->layers[layer].dense[role] = POT_FORMAT_F32;
            if (!pot_role_is_matrix(role)) continue;
            char key[POT_TENSOR_NAME];
            pot_format format;
            pot_role_name(key, role, layer, 0);
            s = get_format(&format, formats, key, name, err);
            if (s == POT_OK) c->layers[layer].dense[role] = (uint8_t)format;
        }
    }
    return s;
}

static pot_status get_files(pot_container *c, const json_t *root, const char *name, pot_err *err) {
    const json_t *files = json_object_get(root, "files");
    if (!json_is_array(files) || json_array_size(files) != c->n_files)
        return pot_fail(err, POT_FORMAT, "%s: `files` has %zu entries, a model of %u layers has %u", name,
                        json_array_size(files), c->n_layers, c->n_files);
    for (uint32_t i = 0; i < c->n_files; i++) {
        const json_t *object = json_array_get(files, i);
        pot_container_file *f = &c->files[i];
        const char *text;
        int64_t bytes = 0;
        f->layer = i == 2 * c->n_layers ? POT_CONTAINER_MODEL : i / 2;
        f->experts = f->layer != POT_CONTAINER_MODEL && i % 2;
        pot_container_file_name(f->name, f->experts, f->layer);
        pot_status s = pot_json_string(&text, object, "name", true, name, err);
        if (s == POT_OK && strcmp(text, f->name) != 0)
            s = pot_fail(err, POT_FORMAT, "%s: file %u is called `%.60s`, `%s` was expected", name, i, text, f->name);
        if (s == POT_OK) s = pot_json_int(&bytes, object, "bytes", 1, INT64_MAX, true, name, err);
        if (s == POT_OK) s = pot_json_hash(&f->hash, object, "hash", name, err);
        if (s != POT_OK) return s;
        f->bytes = (uint64_t)bytes;
    }
    return POT_OK;
}

/* Layers and formats, which a journal of convert has too. */
static pot_status read_formats(pot_container *c, const json_t *root, const char *name, pot_config *config,
                               pot_err *err) {
    int64_t mtp = 0;
    pot_status s = pot_json_int(&mtp, root, "mtp_layers", 0, config->n_mtp, true, name, err);
    if (s != POT_OK) return s;
    config->n_mtp = (uint32_t)mtp;
    c->config = config;
    c->n_layers = config->n_layers + config->n_mtp;
    c->layers = pot_alloc_array(c->n_layers, sizeof *c->layers);
    c->files = pot_alloc_array(2 * c->n_layers + 1, sizeof *c->files);
    c->parts = pot_alloc_array(2 * c->n_layers + 1, sizeof *c->parts);
    if (!c->layers || !c->files || !c->parts)
        return pot_fail(err, POT_NO_MEMORY, "%s: no memory for the files of %u layers", name, c->n_layers);
    c->n_files = 2 * c->n_layers + 1;
    for (uint32_t i = 0; i < c->n_files; i++) c->parts[i].fd = -1;
    return get_layers(c, root, name, err);
}

/* What the options said when it was converted. */
static pot_status get_wishes(pot_container *c, const json_t *root, const char *name, pot_err *err) {
    const json_t *asked = json_object_get(root, "asked");
    if (!json_is_object(asked)) return pot_fail(err, POT_FORMAT, "%s: `asked` is missing, or no object", name);
    for (int i = 0; i < POT_WISHES; i++) {
        const char *text;
        pot_status s = pot_json_string(&text, asked, pot_wish_name((pot_wish)i), true, name, err);
        if (s == POT_OK && strcmp(text, "auto") != 0)
            s = get_format(&c->asked[i], asked, pot_wish_name((pot_wish)i), name, err);
        if (s != POT_OK) return s;
    }
    return POT_OK;
}

static pot_status read_manifest(pot_container *c, pot_config *config, pot_err *err) {
    char *path = pot_path_join(c->directory, POT_CONTAINER_MANIFEST);
    json_t *root = NULL;
    int64_t version = 0;
    pot_status s = path ? pot_json_read(&root, path, MAX_MANIFEST, err)
                        : pot_fail(err, POT_NO_MEMORY, "%s: no memory to open it", c->directory);
    if (s == POT_OK) s = pot_json_int(&version, root, "potluck", 1, INT32_MAX, true, path, err);
    if (s == POT_OK && version != POT_CONTAINER_VERSION)
        s = pot_fail(err, POT_FORMAT, "%s: is of version %lld, this potluck reads version %d: a newer potluck made it",
                     path, (long long)version, POT_CONTAINER_VERSION);
    if (s == POT_OK) s = pot_json_hash(&c->fingerprint, root, "fingerprint", path, err);
    if (s == POT_OK) s = read_formats(c, root, path, config, err);
    if (s == POT_OK) s = get_wishes(c, root, path, err);
    if (s == POT_OK) s = get_files(c, root, path, err);
    json_decref(root);
    pot_free(path);
    return s;
}

/* ---- opening --------------------------------------------------------------------------------------------------------------- */

static pot_format layer_format(const void *context, pot_role role, uint32_t layer) {
    return pot_container_format(context, role, layer);
}

static pot_file_shape part_shape(const pot_container *c, const pot_container_file *f) {
    pot_file_shape s = {
        .config = c->config, .experts = f->experts, .layer = f->layer, .format = layer_format, .context = c};
    if (f->experts) {
        s.routed = pot_container_shape(c, f->layer, true);
        s.common = pot_container_shape(c, f->layer, false);
    }
    return s;
}

static pot_status open_part(pot_container *c, uint32_t i, pot_err *err) {
    const pot_container_file *f = &c->files[i];
    part *p = &c->parts[i];
    const pot_file_shape shape = part_shape(c, f);
    pot_status s = pot_file_layout_make(&p->layout, &shape, err);
    if (s != POT_OK) return s;
    p->path = pot_path_join(c->directory, f->name);
    if (!p->path) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to open it", c->directory);
    /* Another machine's: a fault only when it is wanted.  A worker needs its own experts and nothing dense. */
    if (!pot_file_exists(p->path)) return POT_OK;
    s = pot_file_open_checked(&p->fd, &p->checksums, &p->layout, f, p->path, err);
    if (s == POT_OK && f->experts) {
        close(p->fd);
        p->fd = -1;
    }
    pot_buffer_free(&p->layout.header); /* has been compared */
    return s;
}

bool pot_container_is(const char *directory) {
    char path[PATH_MAX]; /* no allocation: without memory it would pass for a checkpoint */
    int n = snprintf(path, sizeof path, "%s/%s", directory, POT_CONTAINER_MANIFEST);
    return n > 0 && n < (int)sizeof path && pot_file_exists(path);
}

static pot_status create(pot_container **out, const char *directory, pot_err *err) {
    pot_container *c = pot_alloc(sizeof *c);
    if (!c || !(c->directory = pot_strdup(directory))) {
        pot_free(c);
        return pot_fail(err, POT_NO_MEMORY, "%s: no memory to open it", directory);
    }
    *out = c;
    return POT_OK;
}

static pot_status finish(pot_container **out, pot_container *c, pot_status s) {
    if (s == POT_OK)
        *out = c;
    else
        pot_container_close(c);
    return s;
}

pot_status pot_container_read(pot_container **out, const char *directory, pot_config *config, pot_err *err) {
    pot_container *c;
    pot_status s = create(&c, directory, err);
    return s == POT_OK ? finish(out, c, read_manifest(c, config, err)) : s;
}

pot_status pot_container_remember(pot_container **out, const json_t *root, const char *name, const char *directory,
                                  pot_config *config, pot_err *err) {
    pot_container *c;
    pot_status s = create(&c, directory, err);
    return s == POT_OK ? finish(out, c, read_formats(c, root, name, config, err)) : s;
}

pot_status pot_container_open(pot_container **out, const char *directory, pot_config *config, pot_err *err) {
    pot_container *c = NULL;
    pot_status s = pot_container_read(&c, directory, config, err);
    for (uint32_t i = 0; s == POT_OK && i < c->n_files; i++) s = open_part(c, i, err);
    return c ? finish(out, c, s) : s;
}

void pot_container_close(pot_container *c) {
    if (!c) return;
    for (uint32_t i = 0; c->parts && i < c->n_files; i++) {
        pot_file_layout_free(&c->parts[i].layout);
        pot_free(c->parts[i].checksums);
        pot_free(c->parts[i].path);
        if (c->parts[i].fd >= 0) close(c->parts[i].fd);
    }
    pot_free(c->layers);
    pot_free(c->files);
    pot_free(c->parts);
    pot_free(c->directory);
    pot_free(c);
}

/* ---- what it holds --------------------------------------------------------------------------------------------------------- */

pot_hash pot_container_hash(const pot_container *c) { return pot_container_files_hash(c->files, c->n_files); }
pot_hash pot_container_fingerprint(const pot_container *c) { return c->fingerprint; }
int pot_container_grid(const pot_container *c, uint32_t layer) { return c->layers[layer].grid; }

pot_format pot_container_asked(const pot_container *c, pot_wish wish) { return c->asked[wish]; }

const pot_container_file *pot_container_list(const pot_container *c, uint32_t *n) {
    *n = c->n_files;
    return c->files;
}

const pot_ffn_shape *pot_container_shape(const pot_container *c, uint32_t layer, bool routed) {
    const pot_ffn_shape *shape = routed ? &c->layers[layer].routed : &c->layers[layer].common;
    return shape->n_chunks ? shape : NULL;
}

pot_format pot_container_format(const pot_container *c, pot_role role, uint32_t layer) {
    return (pot_format)c->layers[layer].dense[role];
}

const char *pot_container_chunk_file(const pot_container *c, uint32_t layer) {
    const part *p = &c->parts[experts_index(layer)];
    return p->checksums ? p->path : NULL;
}

pot_status pot_container_chunk_place(pot_chunk_place *out, const pot_container *c, uint32_t layer, uint32_t expert,
                                     uint32_t chunk, pot_err *err) {
    const part *p = &c->parts[experts_index(layer)];
    if (!p->checksums)
        return pot_fail(err, POT_NOT_FOUND, "%s: is not on this machine, but the map gives experts of layer %u to it",
                        p->path, layer);
    const pot_file_tensor *t = &p->layout.tensors[expert];
    POT_ASSERT(expert < p->layout.n && chunk < t->rows);
    *out = (pot_chunk_place){.offset = p->layout.header_bytes + t->offset + chunk * (t->bytes / t->rows),
                             .checksum = p->checksums[(size_t)expert * p->layout.checksum_columns + chunk]};
    return POT_OK;
}

pot_status pot_container_read_dense(uint8_t *out, uint64_t bytes, const pot_container *c, pot_role role, uint32_t layer,
                                    pot_err *err) {
    const bool of_model = role < POT_ROLE_INPUT_NORM;
    const part *p = &c->parts[dense_index(c, of_model ? POT_CONTAINER_MODEL : layer)];
    if (!p->checksums)
        return pot_fail(err, POT_NOT_FOUND, "%s: is not on this machine; a coordinator needs all dense-*.safetensors",
                        p->path);
    for (uint32_t i = 0; i < p->layout.n; i++) {
        const pot_file_tensor *t = &p->layout.tensors[i];
        if (t->role != role) continue;
        POT_ASSERT(t->bytes == bytes);
        pot_status s = pot_read_exactly(p->fd, out, bytes, p->layout.header_bytes + t->offset, p->path, err);
        /* It is in its place now: the page cache has better uses. */
        (void)posix_fadvise(p->fd, (off_t)(p->layout.header_bytes + t->offset), (off_t)bytes, POSIX_FADV_DONTNEED);
        if (s != POT_OK || pot_hash64(out, bytes) == p->checksums[i]) return s;
        char name[POT_TENSOR_NAME];
        pot_role_name(name, role, layer, 0);
        return pot_fail(
            err, POT_IO,
            "%s: tensor %s is damaged: its checksum does not match (`potluck verify` finds all such places)", p->path,
            name);
    }
    return pot_fail(err, POT_BUG, "layer %u has no %s", layer, pot_role_group(role));
}

pot_status pot_container_check(const pot_container_file *file, const char *path, const pot_model *m, int threads,
                               bool holes, const pot_container_watcher *watcher, pot_err *err) {
    const pot_file_shape shape = pot_model_file_shape(m, file->experts, file->layer);
    return pot_container_check_shape(file, path, &shape, threads, holes, watcher, err);
}

pot_status pot_container_check_listed(const pot_container *c, const pot_container_file *file, const char *path,
                                      int threads, const pot_container_watcher *watcher, pot_err *err) {
    const pot_file_shape shape = part_shape(c, file);
    return pot_container_check_shape(file, path, &shape, threads, false, watcher, err);
}
