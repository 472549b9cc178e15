/* Layer by layer: look whether the file is whole and holds what is owned; else write it beside, rename it, and note its hash. */
#include "model/chunk_copy.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/file.h"
#include "common/json.h"
#include "common/log.h"
#include "common/mem.h"
#include "model/container_layout.h"

typedef struct copied_layer {
    pot_file_layout layout;
    uint64_t *checksums; /* NULL = the worker owns nothing of it, or it is not there yet */
    char *path;
    pot_container_file file;
    bool wanted;
} copied_layer;

struct pot_chunk_copy {
    char *directory;
    const pot_model *model;
    uint32_t n_layers;
    copied_layer *layers; /* [n_layers] */
    int lock;
};

/* ---- the directory --------------------------------------------------------------------------------------------------------- */

static pot_status make_directory(char **out, const char *parent, const char *name, pot_err *err) {
    *out = pot_path_join(parent, name);
    if (!*out) return pot_fail(err, POT_NO_MEMORY, "%s: no memory for the name of a directory", parent);
    if (mkdir(*out, 0777) && errno != EEXIST)
        return pot_fail(err, POT_IO, "--disk-cache: %s: cannot be made: %s", *out, strerror(errno));
    return POT_OK;
}

static pot_status open_directory(pot_chunk_copy *c, const char *path, uint32_t worker, pot_err *err) {
    char hash[33], name[40], *of_model = NULL, *lock = NULL;
    pot_hash_text(hash, pot_model_fingerprint(c->model));
    snprintf(name, sizeof name, "worker-%u", worker);
    if (mkdir(path, 0777) && !pot_directory_exists(path)) /* another worker may be making it too */
        return pot_fail(err, POT_IO, "--disk-cache: %s: cannot be made: %s", path, strerror(errno));
    pot_status s = make_directory(&of_model, path, hash, err);
    if (s == POT_OK) s = make_directory(&c->directory, of_model, name, err);
    if (s == POT_OK && !(lock = pot_path_join(c->directory, "lock")))
        s = pot_fail(err, POT_NO_MEMORY, "%s: no memory to lock it", c->directory);
    if (s == POT_OK) {
        c->lock = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (c->lock < 0)
            s = pot_fail(err, POT_IO, "--disk-cache: %s: cannot be opened: %s", lock, strerror(errno));
        else if (flock(c->lock, LOCK_EX | LOCK_NB))
            s = pot_fail(err, POT_IO, "--disk-cache: %s is in use by another process: give each its own directory",
                         c->directory);
    }
    pot_free(of_model);
    pot_free(lock);
    return s;
}

/* ---- copy.json ------------------------------------------------------------------------------------------------------------- */

static pot_status save_hashes(const pot_chunk_copy *c, pot_err *err) {
    pot_buffer text = {0};
    const char *comma = "";
    pot_buffer_text(&text, "{\"potluck-copy\": 1, \"files\": {");
    for (uint32_t i = 0; i < c->n_layers; i++) {
        if (!c->layers[i].checksums) continue;
        char hash[33];
        pot_hash_text(hash, c->layers[i].file.hash);
        pot_buffer_format(&text, "%s\n  \"%s\": \"%s\"", comma, c->layers[i].file.name, hash);
        comma = ",";
    }
    pot_buffer_text(&text, "}}\n");
    char *path = pot_path_join(c->directory, "copy.json");
    pot_status s = text.failed || !path
                       ? pot_fail(err, POT_NO_MEMORY, "%s: no memory to note what is in it", c->directory)
                       : pot_file_write(path, text.data, text.bytes, err);
    pot_free(path);
    pot_buffer_free(&text);
    return s;
}

/* What cannot be read is made again. */
static void load_hashes(pot_chunk_copy *c) {
    char *path = pot_path_join(c->directory, "copy.json");
    json_t *root = NULL;
    pot_err err;
    if (path && pot_file_exists(path) && pot_json_read(&root, path, 1 << 20, &err) != POT_OK)
        POT_LOG(POT_LOG_WARN, "model", "%s; the copies are made again", err.text);
    const json_t *files = root ? json_object_get(root, "files") : NULL;
    for (uint32_t i = 0; i < c->n_layers && json_is_object(files); i++) {
        pot_hash hash;
        if (pot_json_hash(&hash, files, c->layers[i].file.name, path, NULL) == POT_OK) c->layers[i].file.hash = hash;
    }
    json_decref(root);
    pot_free(path);
}

/* ---- layers ---------------------------------------------------------------------------------------------------------------- */

static pot_status lay_out(pot_chunk_copy *c, pot_err *err) {
    for (uint32_t i = 0; i < c->n_layers; i++) {
        copied_layer *l = &c->layers[i];
        const pot_file_shape shape = pot_model_file_shape(c->model, true, i);
        pot_status s = pot_file_layout_make(&l->layout, &shape, err);
        if (s != POT_OK) return s;
        l->file = (pot_container_file){.experts = true, .layer = i, .bytes = l->layout.file_bytes};
        pot_container_file_name(l->file.name, true, i);
        l->path = pot_path_join(c->directory, l->file.name);
        if (!l->path) return pot_fail(err, POT_NO_MEMORY, "%s: no memory for its names", c->directory);
    }
    return POT_OK;
}

/* Calls for every chunk of the layer that the worker owns; the bytes of all. */
static uint64_t owned_bytes(const pot_chunk_copy *c, const pot_map *map, uint32_t worker, uint32_t layer,
                            bool *missing) {
    const copied_layer *l = &c->layers[layer];
    uint64_t bytes = 0;
    *missing = false;
    for (uint32_t e = 0; e < l->layout.n; e++)
        for (uint32_t k = 0; k < l->layout.tensors[e].rows; k++) {
            if (!pot_map_owns(map, worker, layer, e, k, k + 1)) continue;
            bytes += l->layout.tensors[e].bytes / l->layout.tensors[e].rows;
            if (!l->checksums || !l->checksums[(size_t)e * l->layout.checksum_columns + k]) *missing = true;
        }
    return bytes;
}

/* A file that is whole and noted; anything else is as good as none. */
static void find_layer(copied_layer *l) {
    int fd;
    if (!l->file.hash.low && !l->file.hash.high) return;
    if (pot_file_open_checked(&fd, &l->checksums, &l->layout, &l->file, l->path, NULL) == POT_OK) close(fd);
}

static pot_status write_layer(pot_chunk_copy *c, uint32_t layer, const pot_container_filter *filter, int threads,
                              const pot_container_watcher *watcher, pot_err *err) {
    copied_layer *l = &c->layers[layer];
    char *beside = pot_path_join(c->directory, "writing.tmp");
    int fd;
    if (!beside) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to write it", l->path);
    (void)unlink(beside); /* of a run that was killed */
    pot_free(l->checksums);
    l->checksums = NULL;
    pot_status s = pot_container_write(&l->file, beside, c->model, threads, filter, watcher, err);
    if (s == POT_OK && rename(beside, l->path))
        s = pot_fail(err, POT_IO, "%s: cannot be put into place: %s", l->path, strerror(errno));
    if (s != POT_OK) (void)unlink(beside);
    if (s == POT_OK) s = pot_file_open_checked(&fd, &l->checksums, &l->layout, &l->file, l->path, err);
    if (s == POT_OK) close(fd);
    if (s == POT_OK) s = save_hashes(c, err);
    pot_free(beside);
    return s;
}

static pot_status check_room(const pot_chunk_copy *c, uint64_t needed, pot_err *err) {
    struct statvfs fs;
    if (statvfs(c->directory, &fs))
        return pot_fail(err, POT_IO, "%s: cannot be examined: %s", c->directory, strerror(errno));
    const uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (needed <= room) return POT_OK;
    return pot_fail(err, POT_LIMIT, "--disk-cache: %s: %.3f GiB are still to be written, the disk has %.3f GiB free",
                    c->directory, (double)needed / 0x1p30, (double)room / 0x1p30);
}

static pot_status complete(pot_chunk_copy *c, const pot_map *map, uint32_t worker, int threads,
                           const pot_container_watcher *watcher, pot_err *err) {
    const pot_container_filter filter = {map, worker};
    uint64_t needed = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        find_layer(&c->layers[i]);
        uint64_t bytes = owned_bytes(c, map, worker, i, &c->layers[i].wanted);
        if (c->layers[i].wanted) needed += bytes;
    }
    pot_status s = needed ? check_room(c, needed, err) : POT_OK;
    if (needed && s == POT_OK)
        POT_LOG(POT_LOG_INFO, "model", "worker %u writes %.3f GiB of experts to %s", worker, (double)needed / 0x1p30,
                c->directory);
    for (uint32_t i = 0; i < c->n_layers && s == POT_OK; i++)
        if (c->layers[i].wanted) s = write_layer(c, i, &filter, threads, watcher, err);
    return s;
}

/* ---- the whole ------------------------------------------------------------------------------------------------------------- */

pot_status pot_chunk_copy_open(pot_chunk_copy **out, const char *path, const pot_model *model, const pot_map *map,
                               uint32_t worker, int threads, const pot_container_watcher *watcher, pot_err *err) {
    pot_chunk_copy *c = pot_alloc(sizeof *c);
    if (!c) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to open it", path);
    c->model = model;
    c->lock = -1;
    c->n_layers = pot_model_layers(model);
    c->layers = pot_alloc_array(c->n_layers, sizeof *c->layers);
    pot_status s = c->layers ? POT_OK : pot_fail(err, POT_NO_MEMORY, "%s: no memory to open it", path);
    if (s == POT_OK) s = open_directory(c, path, worker, err);
    if (s == POT_OK) s = lay_out(c, err);
    if (s == POT_OK) load_hashes(c);
    if (s == POT_OK) s = complete(c, map, worker, threads, watcher, err);
    if (s != POT_OK) {
        pot_chunk_copy_close(c);
        return s;
    }
    *out = c;
    return POT_OK;
}

void pot_chunk_copy_close(pot_chunk_copy *c) {
    if (!c) return;
    for (uint32_t i = 0; c->layers && i < c->n_layers; i++) {
        pot_file_layout_free(&c->layers[i].layout);
        pot_free(c->layers[i].checksums);
        pot_free(c->layers[i].path);
    }
    if (c->lock >= 0) close(c->lock);
    pot_free(c->layers);
    pot_free(c->directory);
    pot_free(c);
}

const char *pot_chunk_copy_file(const pot_chunk_copy *c, uint32_t layer) {
    return c->layers[layer].checksums ? c->layers[layer].path : NULL;
}

void pot_chunk_copy_place(pot_chunk_place *out, const pot_chunk_copy *c, uint32_t layer, uint32_t expert,
                          uint32_t chunk) {
    const copied_layer *l = &c->layers[layer];
    const pot_file_tensor *t = &l->layout.tensors[expert];
    POT_ASSERT(l->checksums);
    *out = (pot_chunk_place){.offset = l->layout.header_bytes + t->offset + chunk * (t->bytes / t->rows),
                             .checksum = l->checksums[(size_t)expert * l->layout.checksum_columns + chunk]};
}
