/* `potluck verify`: every checksum of what potluck.json, or the journal of a conversion under way, lists. */
#include <string.h>

#include "common/file.h"
#include "common/mem.h"
#include "common/system.h"
#include "model/convert_internal.h"

typedef struct verifying {
    const char *directory;
    pot_config config;
    pot_container *container;
    pot_convert_file *files;
    uint32_t n_files;
    int threads;
    pot_verify_fault *fault;
    void *context;
    const char *name; /* of the file that is being read */
    bool named;       /* a tensor of it was found damaged */
    pot_progress progress;
    uint64_t done_bytes;
    pot_verify_result result;
} verifying;

/* ---- what there should be -------------------------------------------------------------------------------------------------- */

static pot_status list_files(verifying *v, uint32_t n, pot_err *err) {
    v->files = pot_alloc_array(n, sizeof *v->files);
    if (!v->files) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to list its files", v->directory);
    v->n_files = n;
    return POT_OK;
}

static pot_status read_finished(verifying *v, pot_err *err) {
    uint32_t n;
    pot_status s = pot_config_read(&v->config, v->directory, err);
    if (s == POT_OK) s = pot_container_read(&v->container, v->directory, &v->config, err);
    if (s != POT_OK) return s;
    const pot_container_file *files = pot_container_list(v->container, &n);
    s = list_files(v, n, err);
    for (uint32_t i = 0; s == POT_OK && i < n; i++) v->files[i].file = files[i];
    v->result.finished = true;
    return s;
}

/* The journal has the formats, and config.json was the first thing to be copied. */
static pot_status read_begun(verifying *v, pot_err *err) {
    char *path = pot_path_join(v->directory, POT_CONVERT_JOURNAL);
    json_t *root = NULL;
    pot_status s = path ? pot_journal_parse(&root, path, err) : pot_fail(err, POT_NO_MEMORY, "no memory for a path");
    if (s == POT_OK) s = pot_config_read(&v->config, v->directory, err);
    if (s == POT_OK) s = pot_container_remember(&v->container, root, path, v->directory, &v->config, err);
    const uint32_t n_layers = v->config.n_layers + v->config.n_mtp;
    if (s == POT_OK) s = list_files(v, 2 * n_layers + 1, err);
    for (uint32_t i = 0; s == POT_OK && i < v->n_files; i++) {
        pot_container_file *f = &v->files[i].file;
        f->layer = i == 2 * n_layers ? POT_CONTAINER_MODEL : i / 2;
        f->experts = i < 2 * n_layers && i % 2;
        pot_container_file_name(f->name, f->experts, f->layer);
    }
    const json_t *list = json_object_get(root, "files");
    for (size_t i = 0; s == POT_OK && i < json_array_size(list); i++)
        s = pot_journal_file(v->files, v->n_files, json_array_get(list, i), path, err);
    uint32_t n = 0;
    for (uint32_t i = 0; s == POT_OK && i < v->n_files; i++) {
        if (v->files[i].finished)
            v->files[n++] = v->files[i];
        else
            pot_free(v->files[i].rows);
    }
    if (s == POT_OK) v->n_files = n;
    json_decref(root);
    pot_free(path);
    return s;
}

/* ---- reading it ------------------------------------------------------------------------------------------------------------ */

static bool read_more(void *context, uint64_t bytes) {
    verifying *v = context;
    v->done_bytes += bytes;
    pot_progress_update(&v->progress, v->done_bytes < v->progress.total ? v->done_bytes : v->progress.total);
    return !pot_stop_requested();
}

static void damaged(void *context, const char *tensor, int64_t chunk) {
    verifying *v = context;
    v->named = true;
    v->fault(v->context, v->name, tensor, chunk, NULL);
}

static pot_status verify_file(verifying *v, const pot_convert_file *f, pot_err *err) {
    const pot_container_watcher watcher = {.wrote = read_more, .damaged = damaged, .context = v};
    char *path = pot_path_join(v->directory, f->file.name);
    if (!path) return pot_fail(err, POT_NO_MEMORY, "no memory for a path");
    v->name = f->file.name;
    v->named = false;
    pot_err fault;
    pot_status s = pot_container_check_listed(v->container, &f->file, path, v->threads, &watcher, &fault);
    pot_free(path);
    if (s == POT_OK) return POT_OK;
    if (s == POT_CANCELLED || s == POT_NO_MEMORY || s == POT_LIMIT) {
        if (err) *err = fault;
        return s;
    }
    if (s == POT_NOT_FOUND)
        v->result.missing_files++;
    else
        v->result.damaged_files++;
    if (!v->named) v->fault(v->context, v->name, NULL, -1, fault.text);
    return POT_OK;
}

static pot_status verify_files(verifying *v, bool quiet, pot_err *err) {
    for (uint32_t i = 0; i < v->n_files; i++) v->result.bytes += v->files[i].file.bytes;
    v->result.files = v->n_files;
    pot_progress_begin(&v->progress, "verifying", v->result.bytes, quiet);
    pot_status s = POT_OK;
    for (uint32_t i = 0; i < v->n_files && s == POT_OK; i++) s = verify_file(v, &v->files[i], err);
    pot_progress_end(&v->progress);
    return s;
}

/* config.json and the formats, which the fingerprint covers; the files' own sums have been compared. */
static void verify_whole(verifying *v) {
    pot_model *m = NULL;
    pot_err fault;
    const pot_format_policy none = {0};
    if (pot_model_open(&m, v->directory, &none, &fault) == POT_OK) {
        pot_model_close(m);
        return;
    }
    v->result.damaged_files++;
    v->fault(v->context, POT_CONTAINER_MANIFEST, NULL, -1, fault.text);
}

pot_status pot_verify(pot_verify_result *out, const char *directory, int threads, bool quiet, pot_verify_fault *fault,
                      void *context, pot_err *err) {
    verifying v = {.directory = directory, .threads = threads, .fault = fault, .context = context};
    char *journal = pot_path_join(directory, POT_CONVERT_JOURNAL);
    pot_status s = POT_OK;
    if (!journal)
        s = pot_fail(err, POT_NO_MEMORY, "no memory for a path");
    else if (pot_container_is(directory))
        s = read_finished(&v, err);
    else if (pot_file_exists(journal))
        s = read_begun(&v, err);
    else
        s = pot_fail(err, POT_NOT_FOUND,
                     "%s: has neither " POT_CONTAINER_MANIFEST " nor " POT_CONVERT_JOURNAL
                     ": is it what `potluck convert` wrote?",
                     directory);
    if (s == POT_OK) s = verify_files(&v, quiet, err);
    if (s == POT_OK && v.result.finished && !v.result.damaged_files && !v.result.missing_files) verify_whole(&v);
    if (s == POT_OK) *out = v.result;
    for (uint32_t i = 0; i < v.n_files; i++) pot_free(v.files[i].rows);
    pot_free(v.files);
    pot_container_close(v.container);
    pot_free(journal);
    return s;
}
