/* The source of a conversion: which one it is, opening what is left of it, and removing shards that are not needed any more.
 *
 * Once shards are gone, formats cannot be chosen again and the count of tensors cannot be made: the journal remembers the former, and for the latter
 * only what the unfinished files need must be there.  The shards that are left must be those that the conversion began with, by their hashes. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "model/convert_internal.h"

/* ---- which it is ----------------------------------------------------------------------------------------------------------- */

pot_status pot_source_name(char **out, const char *source, pot_err *err) {
    char *path = pot_synthetic_is(source) ? NULL : realpath(source, NULL);
    if (!path && !pot_synthetic_is(source))
        return pot_fail(err, POT_NOT_FOUND, "%s: cannot be found: %s", source, strerror(errno));
    const char *last = path ? strrchr(path, '/') : NULL;
    *out = pot_strdup(last && last[1] ? last + 1 : path ? path : source);
    free(path);
    return *out ? POT_OK : pot_fail(err, POT_NO_MEMORY, "%s: no memory for its name", source);
}

/* Of config and formats, which can be had when tensors are gone. */
static pot_status shape_hash(pot_hash *out, const pot_model *m, pot_err *err) {
    return pot_model_fingerprint_with(out, m, (pot_hash){1, 1}, err);
}

static pot_status check_fingerprint(const pot_convert_job *j, pot_err *err) {
    char was[33], is[33];
    const pot_hash found = pot_model_fingerprint(j->model);
    if (pot_hash_equal(found, j->fingerprint)) return POT_OK;
    pot_hash_text(was, j->fingerprint);
    pot_hash_text(is, found);
    return pot_fail(err, POT_USAGE,
                    "%s: begun from a %s with the fingerprint %s, %s has %s: its files are not the same; give that "
                    "source, or another directory to write to",
                    j->journal_path, j->source_name, was, j->options->source, is);
}

/* ---- opening --------------------------------------------------------------------------------------------------------------- */

static pot_status open_whole(pot_convert_job *j, pot_err *err) {
    pot_status s = pot_model_open(&j->model, j->options->source, &j->options->policy, err);
    if (s != POT_OK) return s;
    if (j->journal)
        s = check_fingerprint(j, err);
    else
        j->fingerprint = pot_model_fingerprint(j->model);
    if (s == POT_OK) s = pot_convert_list_files(j, pot_model_layers(j->model), err);
    return s == POT_OK && j->journal ? pot_journal_take_files(j, err) : s;
}

static pot_status shard_hash(pot_hash *out, const char *path, pot_err *err) {
    pot_shards *one = NULL;
    pot_status s = pot_shards_open_file(&one, path, err);
    if (s != POT_OK) return s;
    *out = pot_shards_hash(one);
    pot_shards_close(one);
    return out->low || out->high ? POT_OK : pot_fail(err, POT_NO_MEMORY, "%s: no memory for its hash", path);
}

static pot_status same_shard(bool *same, const pot_convert_shard *shard, const char *path, pot_err *err) {
    struct stat info;
    pot_hash hash = {0};
    *same = false;
    if (stat(path, &info) || (uint64_t)info.st_size != shard->bytes) return POT_OK;
    pot_status s = shard_hash(&hash, path, err);
    *same = pot_hash_equal(hash, shard->hash);
    return s;
}

/* One that the journal calls deleted, and that a crash left behind. */
static pot_status delete_leftover(const pot_convert_job *j, const pot_convert_shard *shard, const char *path,
                                  pot_err *err) {
    bool same = false;
    struct stat info;
    if (lstat(path, &info)) return POT_OK;
    pot_status s = j->options->delete_source && S_ISREG(info.st_mode) ? same_shard(&same, shard, path, err) : POT_OK;
    if (s == POT_OK && same && unlink(path))
        s = pot_fail(err, POT_IO, "%s: cannot be removed: %s", path, strerror(errno));
    return s;
}

static pot_status check_left_shard(const pot_convert_job *j, const pot_convert_shard *shard, pot_err *err) {
    char *path = pot_path_join(j->options->source, shard->name);
    if (!path) return pot_fail(err, POT_NO_MEMORY, "%s: no memory for a path", shard->name);
    bool same = false;
    pot_status s = shard->deleted ? delete_leftover(j, shard, path, err) : same_shard(&same, shard, path, err);
    if (s == POT_OK && !shard->deleted && !same)
        s = pot_file_exists(path) ? pot_fail(err, POT_USAGE, "%s: is not the file that this conversion began with (%s)",
                                             path, j->journal_path)
                                  : pot_fail(err, POT_NOT_FOUND,
                                             "%s: is missing, but not everything that came from it is converted", path);
    pot_free(path);
    return s;
}

static pot_status open_shards_left(pot_convert_job *j, pot_err *err) {
    const char **names = pot_alloc_array(j->n_shards, sizeof *names);
    if (!names) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to open it", j->options->source);
    uint32_t n = 0;
    pot_status s = POT_OK;
    for (uint32_t i = 0; i < j->n_shards && s == POT_OK; i++) {
        s = check_left_shard(j, &j->shards[i], err);
        if (!j->shards[i].deleted) names[n++] = j->shards[i].name;
    }
    if (s == POT_OK) s = pot_shards_open_some(&j->model->shards, j->options->source, names, n, err);
    pot_free(names);
    return s;
}

static pot_status check_shape(const pot_convert_job *j, pot_err *err) {
    pot_hash was = {0}, is = {0};
    pot_status s = pot_json_hash(&was, j->journal, "shape", j->journal_path, err);
    if (s == POT_OK) s = shape_hash(&is, j->model, err);
    if (s != POT_OK || pot_hash_equal(was, is)) return s;
    return pot_fail(err, POT_USAGE,
                    "%s: config.json of %s, or the formats that the journal says, are not those that the conversion "
                    "began with",
                    j->journal_path, j->options->source);
}

/* The formats are the journal's, of the tensors only those are needed that have not been converted. */
static pot_status open_rest(pot_convert_job *j, pot_err *err) {
    const char *directory = j->options->source;
    pot_model *m = j->model = pot_alloc(sizeof *m);
    if (!m || !(m->directory = pot_strdup(directory)))
        return pot_fail(err, POT_NO_MEMORY, "%s: no memory to open it", directory);
    m->policy = j->options->policy;
    m->fingerprint = j->fingerprint;
    pot_status s = pot_config_read(&m->config, directory, err);
    if (s == POT_OK)
        s = pot_container_remember(&m->remembered, j->journal, j->journal_path, directory, &m->config, err);
    if (s == POT_OK) s = pot_model_take_formats(m, err);
    if (s == POT_OK) s = check_shape(j, err);
    if (s == POT_OK) s = pot_convert_list_files(j, pot_model_layers(m), err);
    if (s == POT_OK) s = pot_journal_take_files(j, err);
    if (s == POT_OK) s = open_shards_left(j, err);
    bool *finished = s == POT_OK ? pot_alloc_array(j->n_files, sizeof *finished) : NULL;
    if (s == POT_OK && !finished) s = pot_fail(err, POT_NO_MEMORY, "%s: no memory to open it", directory);
    for (uint32_t i = 0; finished && i < j->n_files; i++) finished[i] = j->files[i].finished;
    if (s == POT_OK) s = pot_model_take_rest(m, finished, err);
    pot_free(finished);
    return s;
}

static bool parts_are_gone(const pot_convert_job *j) {
    for (uint32_t i = 0; i < j->n_shards; i++)
        if (j->shards[i].deleted) return true;
    return false;
}

static pot_status set_sizes(pot_convert_job *j, pot_err *err) {
    pot_container_file *files = pot_alloc_array(j->n_files, sizeof *files);
    if (!files) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to list its files", j->options->destination);
    const uint32_t n = pot_container_files(files, j->n_files, j->model);
    pot_status s = POT_OK;
    POT_ASSERT(n == j->n_files);
    for (uint32_t i = 0; i < n; i++) {
        pot_container_file *f = &j->files[i].file;
        POT_ASSERT(strcmp(f->name, files[i].name) == 0);
        if (j->files[i].finished && f->bytes != files[i].bytes && s == POT_OK)
            s = pot_fail(err, POT_FORMAT, "%s: says that %s has %" PRIu64 " bytes, with these formats it has %" PRIu64,
                         j->journal_path, f->name, f->bytes, files[i].bytes);
        f->bytes = files[i].bytes;
    }
    pot_free(files);
    return s;
}

pot_status pot_source_open(pot_convert_job *j, pot_err *err) {
    const char *source = j->options->source;
    if (!pot_synthetic_is(source) && pot_container_is(source))
        return pot_fail(err, POT_USAGE, "%s: is converted already; give the checkpoint that it was made of", source);
    pot_status s = parts_are_gone(j) ? open_rest(j, err) : open_whole(j, err);
    if (s == POT_OK) s = set_sizes(j, err);
    return s == POT_OK ? shape_hash(&j->shape, j->model, err) : s;
}

/* ---- removing shards ------------------------------------------------------------------------------------------------------- */

static const char *last_part(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static pot_status describe_shard(pot_convert_shard *out, const char *path, pot_err *err) {
    struct stat info;
    if (lstat(path, &info)) return pot_fail(err, POT_IO, "%s: cannot be examined: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return pot_fail(err, POT_USAGE,
                        "--delete-source: %s is a link, and removing it would free nothing; give the directory where "
                        "the files themselves lie",
                        path);
    out->bytes = (uint64_t)info.st_size;
    pot_status s = shard_hash(&out->hash, path, err);
    if (s != POT_OK) return s;
    out->name = pot_strdup(last_part(path));
    return out->name ? POT_OK : pot_fail(err, POT_NO_MEMORY, "%s: no memory for its name", path);
}

static pot_status list_shards(pot_convert_job *j, pot_err *err) {
    const uint32_t n = pot_shards_files(j->model->shards);
    j->shards = pot_alloc_array(n, sizeof *j->shards);
    if (!j->shards) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to list its files", j->options->source);
    for (; j->n_shards < n; j->n_shards++) {
        pot_status s = describe_shard(&j->shards[j->n_shards], pot_shards_path(j->model->shards, j->n_shards), err);
        if (s != POT_OK) return s;
    }
    return POT_OK;
}

static void own_role(pot_convert_job *j, pot_role role, uint32_t layer) {
    const pot_model *m = j->model;
    const uint32_t copies = pot_role_is_routed(role) ? m->config.n_routed : 1;
    for (uint32_t expert = 0; expert < copies; expert++) {
        pot_source source;
        /* What cannot be found any more belongs to a file that is finished and verified. */
        if (pot_source_find(&source, m, role, layer, expert, NULL) != POT_OK) continue;
        for (int i = 0; i < 2; i++)
            if (source.tensors[i])
                j->owners[source.tensors[i] - pot_shards_at(m->shards, 0)] =
                    pot_role_file(role, layer, pot_model_layers(m));
    }
}

pot_status pot_source_prepare_deletion(pot_convert_job *j, pot_err *err) {
    const pot_model *m = j->model;
    if (!j->options->delete_source) return POT_OK;
    if (!m->shards) return pot_fail(err, POT_USAGE, "--delete-source: %s is no directory of files", j->options->source);
    pot_status s = j->n_shards ? POT_OK : list_shards(j, err);
    if (s != POT_OK) return s;
    const uint32_t n = pot_shards_tensors(m->shards);
    j->owners = pot_alloc_array(n, sizeof *j->owners);
    if (!j->owners) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to count its tensors", j->options->source);
    for (uint32_t i = 0; i < n; i++) j->owners[i] = POT_CONVERT_NOBODY;
    for (uint32_t layer = 0; layer < pot_model_layers(m); layer++)
        for (int role = 0; role < POT_ROLE_COUNT; role++)
            if (pot_role_exists(&m->config, (pot_role)role, layer)) own_role(j, (pot_role)role, layer);
    return POT_OK;
}

static pot_convert_shard *shard_of(const pot_convert_job *j, uint32_t index) {
    const char *name = last_part(pot_shards_path(j->model->shards, index));
    for (uint32_t i = 0; i < j->n_shards; i++)
        if (strcmp(j->shards[i].name, name) == 0) return &j->shards[i];
    return NULL;
}

/* An MTP layer that the config does not count is not converted: it must not be lost either.  (What a checkpoint has twice may go.) */
static bool is_left_out(const pot_model *m, const char *name) {
    uint32_t layer;
    const char *rest;
    return !m->config.n_mtp && pot_name_in_layer(name, &layer, &rest) && layer >= m->config.n_layers;
}

/* needed[shard]: a tensor of it goes into a file that is not there or not verified. */
static void find_needed(bool *needed, const pot_convert_job *j) {
    const pot_shards *shards = j->model->shards;
    for (uint32_t i = 0; i < pot_shards_tensors(shards); i++) {
        const pot_tensor *t = pot_shards_at(shards, i);
        if (j->owners[i] == POT_CONVERT_NOBODY ? is_left_out(j->model, t->name) : !j->files[j->owners[i]].verified)
            needed[t->shard] = true;
    }
}

static pot_status remove_shard(pot_convert_job *j, uint32_t index, pot_err *err) {
    const char *path = pot_shards_path(j->model->shards, index);
    pot_shards_drop(j->model->shards, index);
    if (unlink(path) && errno != ENOENT)
        return pot_fail(err, POT_IO, "%s: cannot be removed: %s", path, strerror(errno));
    j->report.shards_deleted++;
    POT_LOG(POT_LOG_INFO, "convert", "%s: everything in it is converted and verified: removed", path);
    return POT_OK;
}

/* The journal says first which are to go, so that a crash in between leaves files, not doubts. */
pot_status pot_source_delete(pot_convert_job *j, pot_err *err) {
    const uint32_t n = pot_shards_files(j->model->shards);
    bool *needed = pot_alloc_array(n, sizeof *needed), any = false;
    if (!needed) return pot_fail(err, POT_NO_MEMORY, "no memory to list what is to be removed");
    find_needed(needed, j);
    for (uint32_t i = 0; i < n; i++) {
        pot_convert_shard *shard = shard_of(j, i);
        if (!shard || shard->deleted) needed[i] = true;
        if (!needed[i]) any = shard->deleted = true;
    }
    pot_status s = any ? pot_journal_write(j, err) : POT_OK;
    for (uint32_t i = 0; i < n && s == POT_OK; i++)
        if (!needed[i]) s = remove_shard(j, i, err);
    pot_free(needed);
    return s;
}
