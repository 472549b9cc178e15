/* Converting: the destination is looked at and locked, the source opened, then one file after the other is written, renamed, entered into the journal.
 *
 * What a crash can leave: files under temporary names (removed by the next run), a file that was renamed but is not in the journal (written again), a
 * journal with everything in it beside a potluck.json (the next run ends as this one would have). */
#include "model/convert.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/system.h"
#include "model/convert_internal.h"

enum {
    SPARE_BYTES = 16 << 20,
    MAX_SIDECAR = 256 << 20
}; /* spare: journal, tokenizer, what the file system itself takes */

static const char PARTIAL[] = ".partial";
/* What else a model's directory has; copied as it is. */
static const char *const sidecars[] = {"config.json",           "generation_config.json", "tokenizer.json",
                                       "tokenizer_config.json", "chat_template.jinja",    "special_tokens_map.json"};
enum { N_SIDECARS = sizeof sidecars / sizeof *sidecars };

static pot_status no_path(pot_err *err) { return pot_fail(err, POT_NO_MEMORY, "no memory for a path"); }

/* ---- the destination ------------------------------------------------------------------------------------------------------- */

static bool has_file(const char *directory, const char *name) {
    char *path = pot_path_join(directory, name);
    const bool has = path && pot_file_exists(path);
    pot_free(path);
    return has;
}

static bool ends_with(const char *name, const char *end) {
    const size_t length = strlen(name), tail = strlen(end);
    return length > tail && strcmp(name + length - tail, end) == 0;
}

/* "convert.json.1234-0.tmp": writing it was interrupted (pot_file_write). */
static bool is_half_written(const char *name) {
    const char *const own[] = {POT_CONVERT_JOURNAL ".", POT_CONTAINER_MANIFEST "."};
    for (int i = 0; i < 2; i++)
        if (!strncmp(name, own[i], strlen(own[i])) && ends_with(name, ".tmp")) return true;
    for (int i = 0; i < N_SIDECARS; i++)
        if (!strncmp(name, sidecars[i], strlen(sidecars[i])) && name[strlen(sidecars[i])] == '.' &&
            ends_with(name, ".tmp"))
            return true;
    return false;
}

/* The first thing in it that a conversion which has just begun would not have made. */
static pot_status check_empty(const char *directory, pot_err *err) {
    DIR *stream = opendir(directory);
    if (!stream) return pot_fail(err, POT_IO, "%s: cannot be read as a directory: %s", directory, strerror(errno));
    pot_status s = POT_OK;
    for (struct dirent *e; s == POT_OK && (e = readdir(stream));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && strcmp(e->d_name, POT_CONVERT_LOCK) &&
            !is_half_written(e->d_name))
            s = pot_fail(err, POT_USAGE,
                         "%s: is not empty (%.100s) and no conversion was begun there: choose another directory",
                         directory, e->d_name);
    closedir(stream);
    return s;
}

static pot_status check_destination(const char *directory, pot_err *err) {
    const bool begun = has_file(directory, POT_CONVERT_JOURNAL);
    if (!begun && has_file(directory, POT_CONTAINER_MANIFEST))
        return pot_fail(err, POT_USAGE,
                        "%s: is a finished container, which is never overwritten: choose another directory, or remove "
                        "it first",
                        directory);
    return begun ? POT_OK : check_empty(directory, err);
}

static pot_status make_destination(pot_convert_job *j, pot_err *err) {
    const char *directory = j->options->destination;
    if (mkdir(directory, 0777) == 0) {
        j->made_directory = true;
        return POT_OK;
    }
    if (errno != EEXIST) return pot_fail(err, POT_IO, "%s: cannot be made: %s", directory, strerror(errno));
    if (!pot_directory_exists(directory)) return pot_fail(err, POT_USAGE, "%s: is no directory", directory);
    return check_destination(directory, err);
}

/* The one who holds the lock may remove the file, so a lock on a file that has gone counts for nothing. */
static pot_status take_lock(pot_convert_job *j, pot_err *err) {
    char *path = pot_path_join(j->options->destination, POT_CONVERT_LOCK);
    if (!path) return no_path(err);
    pot_status s = POT_OK;
    for (bool again = true; again && s == POT_OK;) {
        struct stat mine, there;
        j->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (j->lock < 0)
            s = pot_fail(err, POT_IO, "%s: cannot be created: %s", path, strerror(errno));
        else if (flock(j->lock, LOCK_EX | LOCK_NB))
            s = errno == EWOULDBLOCK
                    ? pot_fail(err, POT_USAGE, "%s: another potluck is converting to this directory", path)
                    : pot_fail(err, POT_IO, "%s: cannot be locked: %s", path, strerror(errno));
        again = s == POT_OK && (fstat(j->lock, &mine) || stat(path, &there) || mine.st_ino != there.st_ino);
        if ((again || s != POT_OK) && j->lock >= 0) {
            close(j->lock);
            j->lock = -1;
        }
    }
    pot_free(path);
    return s == POT_OK ? check_destination(j->options->destination, err) : s; /* it may have been finished meanwhile */
}

static void release_lock(pot_convert_job *j) {
    char *path = j->lock >= 0 ? pot_path_join(j->options->destination, POT_CONVERT_LOCK) : NULL;
    if (path) unlink(path);
    pot_free(path);
    if (j->lock >= 0) close(j->lock);
    j->lock = -1;
}

static pot_status sync_directory(const char *directory, pot_err *err) {
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return pot_fail(err, POT_IO, "%s: cannot be opened: %s", directory, strerror(errno));
    /* Some file systems cannot sync a directory; then there is nothing better to be had. */
    const bool failed = fsync(fd) && errno != EINVAL;
    const int fault = errno;
    close(fd);
    return failed ? pot_fail(err, POT_IO, "%s: cannot be synced: %s", directory, strerror(fault)) : POT_OK;
}

static pot_status remove_in(const char *directory, const char *name, pot_err *err) {
    char *path = pot_path_join(directory, name);
    if (!path) return no_path(err);
    pot_status s = POT_OK;
    if (unlink(path) && errno != ENOENT) s = pot_fail(err, POT_IO, "%s: cannot be removed: %s", path, strerror(errno));
    pot_free(path);
    return s;
}

static bool is_leftover(const pot_convert_job *j, const char *name) {
    char partial[POT_CONTAINER_NAME + sizeof PARTIAL];
    for (uint32_t i = 0; i < j->n_files; i++) {
        snprintf(partial, sizeof partial, "%s%s", j->files[i].file.name, PARTIAL);
        if (strcmp(partial, name) == 0) return true;
    }
    return is_half_written(name);
}

static pot_status remove_leftovers(const pot_convert_job *j, pot_err *err) {
    const char *directory = j->options->destination;
    DIR *stream = opendir(directory);
    if (!stream) return pot_fail(err, POT_IO, "%s: cannot be read as a directory: %s", directory, strerror(errno));
    pot_status s = POT_OK;
    for (struct dirent *e; s == POT_OK && (e = readdir(stream));)
        if (is_leftover(j, e->d_name)) s = remove_in(directory, e->d_name, err);
    closedir(stream);
    return s;
}

/* ---- what is to be done ---------------------------------------------------------------------------------------------------- */

pot_status pot_convert_list_files(pot_convert_job *j, uint32_t n_layers, pot_err *err) {
    const uint32_t n = 2 * n_layers + 1;
    j->files = pot_alloc_array(n, sizeof *j->files);
    if (!j->files) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to list its files", j->options->destination);
    j->n_files = n;
    for (uint32_t i = 0; i < n; i++) {
        pot_container_file *f = &j->files[i].file;
        f->layer = i == n - 1 ? POT_CONTAINER_MODEL : i / 2;
        f->experts = i < n - 1 && i % 2;
        pot_container_file_name(f->name, f->experts, f->layer);
    }
    return POT_OK;
}

/* Header and checksums of what the journal calls finished; the data is for `potluck verify`. */
static pot_status check_header(const pot_convert_job *j, const pot_container_file *file, pot_err *err) {
    const pot_file_shape shape = pot_model_file_shape(j->model, file->experts, file->layer);
    char *path = pot_path_join(j->options->destination, file->name);
    pot_file_layout layout;
    uint64_t *checksums = NULL;
    int fd = -1;
    pot_status s = path ? pot_file_layout_make(&layout, &shape, err) : no_path(err);
    if (s == POT_OK) {
        s = pot_file_open_checked(&fd, &checksums, &layout, file, path, err);
        pot_file_layout_free(&layout);
    }
    if (fd >= 0) close(fd);
    pot_free(checksums);
    pot_free(path);
    return s;
}

static pot_status check_finished(pot_convert_job *j, pot_err *err) {
    for (uint32_t i = 0; i < j->n_files; i++) {
        pot_convert_file *f = &j->files[i];
        pot_err fault;
        pot_status s = f->finished ? check_header(j, &f->file, &fault) : POT_OK;
        if (s == POT_OK) continue;
        if (s == POT_NO_MEMORY || s == POT_LIMIT || j->model->remembered) { /* its source may be gone */
            if (err) *err = fault;
            return j->model->remembered ? pot_at(err, "%s has removed source files already", POT_CONVERT_JOURNAL) : s;
        }
        POT_LOG(POT_LOG_WARN, "convert", "%s; it is written again", fault.text);
        f->finished = f->verified = false;
        f->n_rows = 0;
    }
    return POT_OK;
}

static pot_status choose_files(pot_convert_job *j, pot_err *err) {
    const pot_convert_options *o = j->options;
    const uint32_t layers = pot_model_layers(j->model);
    if (o->layer_end && (o->layer_begin >= o->layer_end || o->layer_end > layers))
        return pot_fail(err, POT_USAGE, "--layers %u-%u: the model has layers 0 to %u", o->layer_begin,
                        o->layer_end - 1, layers - 1);
    for (uint32_t i = 0; i < j->n_files; i++) {
        pot_convert_file *f = &j->files[i];
        const uint32_t layer = f->file.layer;
        f->wanted =
            !f->finished && (!f->file.experts || !o->layer_end || (layer >= o->layer_begin && layer < o->layer_end));
    }
    return POT_OK;
}

static uint64_t bytes_to_write(const pot_convert_job *j) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < j->n_files; i++)
        if (j->files[i].wanted) bytes += j->files[i].file.bytes;
    return bytes;
}

/* What --delete-source will free is not counted on: it comes later, and may lie on another disk. */
static pot_status check_space(const pot_convert_job *j, pot_err *err) {
    struct statvfs disk;
    const uint64_t bytes = bytes_to_write(j);
    if (!bytes || statvfs(j->options->destination, &disk)) return POT_OK;
    const uint64_t needed = bytes + SPARE_BYTES, there = (uint64_t)disk.f_bavail * disk.f_frsize;
    if (needed <= there) return POT_OK;
    return pot_fail(err, POT_LIMIT,
                    "%s: %.3f GiB are still to be written, the disk has %.3f GiB left; smaller formats, --layers or "
                    "another disk would help",
                    j->options->destination, (double)needed / 0x1p30, (double)there / 0x1p30);
}

/* ---- one file -------------------------------------------------------------------------------------------------------------- */

static bool wrote(void *context, uint64_t bytes) {
    pot_convert_job *j = context;
    j->done_bytes += bytes;
    pot_progress_update(&j->progress, j->done_bytes < j->progress.total ? j->done_bytes : j->progress.total);
    return !pot_stop_requested();
}

static double seconds_since(uint64_t start_us) { return (double)(pot_now_us() - start_us) / 1e6; }

static pot_status verify_file(pot_convert_job *j, pot_convert_file *f, const char *path, pot_err *err) {
    const pot_container_watcher watcher = {.wrote = wrote, .context = j};
    const uint64_t start = pot_now_us();
    if (!j->options->delete_source || f->verified) return POT_OK;
    pot_status s = pot_container_check(&f->file, path, j->model, j->options->threads, false, &watcher, err);
    j->report.verify_seconds += seconds_since(start);
    f->verified = s == POT_OK;
    return s;
}

static pot_status write_under(pot_convert_job *j, pot_convert_file *f, const char *partial, const char *path,
                              pot_err *err) {
    const pot_container_watcher watcher = {.wrote = wrote, .context = j};
    uint64_t start = pot_now_us();
    pot_status s = pot_container_write(&f->file, partial, j->model, j->options->threads, NULL, &watcher, err);
    j->report.write_seconds += seconds_since(start);
    start = pot_now_us();
    if (s == POT_OK) s = pot_convert_measure(j, f, partial, err);
    j->report.measure_seconds += seconds_since(start);
    if (s == POT_OK && rename(partial, path))
        s = pot_fail(err, POT_IO, "%s: cannot be renamed: %s", partial, strerror(errno));
    if (s != POT_OK) unlink(partial);
    return s == POT_OK ? sync_directory(j->options->destination, err) : s;
}

static pot_status convert_file(pot_convert_job *j, pot_convert_file *f, pot_err *err) {
    char *path = pot_path_join(j->options->destination, f->file.name);
    pot_buffer partial = {0};
    pot_buffer_format(&partial, "%s%s", path ? path : "", PARTIAL);
    pot_status s = path && !partial.failed ? POT_OK : no_path(err);
    if (s == POT_OK && f->wanted) {
        s = write_under(j, f, partial.data, path, err);
        f->finished = s == POT_OK;
    }
    if (s == POT_OK) s = verify_file(j, f, path, err);
    if (s == POT_FORMAT && !f->wanted) { /* damaged since it was finished; all that it was made of is still there */
        POT_LOG(POT_LOG_WARN, "model", "%s; it is written again", err ? err->text : path);
        f->finished = false;
        f->wanted = true;
        s = unlink(path) ? pot_fail(err, POT_IO, "%s: cannot be removed: %s", path, strerror(errno))
                         : write_under(j, f, partial.data, path, err);
        f->finished = s == POT_OK;
        if (s == POT_OK) s = verify_file(j, f, path, err);
    }
    if (s == POT_OK) s = pot_journal_write(j, err);
    if (s == POT_OK && f->wanted) {
        j->report.files_written++;
        j->report.bytes_written += f->file.bytes;
        for (uint32_t i = 0; i < f->n_rows; i++) j->report.bytes_read += f->rows[i].census.stored_bytes;
    }
    if (s == POT_OK && j->options->delete_source) s = pot_source_delete(j, err);
    pot_buffer_free(&partial);
    pot_free(path);
    return s;
}

static pot_status convert_files(pot_convert_job *j, pot_err *err) {
    uint64_t total = bytes_to_write(j);
    for (uint32_t i = 0; i < j->n_files && j->options->delete_source; i++)
        if ((j->files[i].finished || j->files[i].wanted) && !j->files[i].verified) total += j->files[i].file.bytes;
    pot_progress_begin(&j->progress, "converting", total, j->options->quiet);
    pot_status s = POT_OK;
    for (uint32_t i = 0; i < j->n_files && s == POT_OK; i++) {
        pot_convert_file *f = &j->files[i];
        if (pot_stop_requested())
            s = pot_fail(err, POT_CANCELLED, "stopped");
        else if (f->wanted || (f->finished && !f->verified && j->options->delete_source))
            s = convert_file(j, f, err);
    }
    pot_progress_end(&j->progress);
    return s;
}

/* ---- the end --------------------------------------------------------------------------------------------------------------- */

static pot_status write_in(const char *directory, const char *name, const pot_buffer *text, pot_err *err) {
    char *path = pot_path_join(directory, name);
    pot_status s = path ? pot_file_write(path, text->data, text->bytes, err) : no_path(err);
    pot_free(path);
    return s;
}

static pot_status copy_sidecar(const pot_convert_job *j, const char *name, pot_err *err) {
    pot_buffer text = {0};
    pot_status s = POT_OK;
    if (j->model->synthetic) {
        if (strcmp(name, "config.json") != 0) return POT_OK;
        s = pot_synthetic_config(&text, j->options->source, err);
    } else {
        if (!has_file(j->options->source, name)) return POT_OK;
        char *path = pot_path_join(j->options->source, name);
        s = path ? pot_file_read(&text, path, MAX_SIDECAR, err) : no_path(err);
        pot_free(path);
    }
    if (s == POT_OK) s = write_in(j->options->destination, name, &text, err);
    pot_buffer_free(&text);
    return s;
}

static pot_status write_manifest(const pot_convert_job *j, pot_err *err) {
    pot_container_file *files = pot_alloc_array(j->n_files, sizeof *files);
    if (!files) return pot_fail(err, POT_NO_MEMORY, "no memory to list the files");
    for (uint32_t i = 0; i < j->n_files; i++) files[i] = j->files[i].file;
    pot_buffer text = {0};
    pot_status s = pot_container_manifest(&text, j->model, j->source_name, files, j->n_files, err);
    if (s == POT_OK) s = write_in(j->options->destination, POT_CONTAINER_MANIFEST, &text, err);
    pot_buffer_free(&text);
    pot_free(files);
    return s;
}

/* Which layers' experts are missing, as ranges. */
static void list_missing(pot_convert_job *j) {
    pot_convert_report *r = &j->report;
    pot_buffer text = {0};
    uint32_t n_layers = (j->n_files - 1) / 2;
    for (uint32_t layer = 0; layer < n_layers; layer++) {
        if (j->files[2 * layer + 1].finished) continue;
        const uint32_t first = layer;
        while (layer + 1 < n_layers && !j->files[2 * (layer + 1) + 1].finished) layer++;
        pot_buffer_format(&text, first == layer ? "%s%u" : "%s%u-%u", text.bytes ? ", " : "", first, layer);
    }
    if (text.data) snprintf(r->missing, sizeof r->missing, "%s", text.data);
    pot_buffer_free(&text);
}

static pot_status finish(pot_convert_job *j, pot_err *err) {
    pot_convert_report *r = &j->report;
    const char *directory = j->options->destination;
    r->files = j->n_files;
    for (uint32_t i = 0; i < j->n_files; i++) r->files_done += j->files[i].finished;
    list_missing(j);
    if (r->files_done < r->files) return POT_OK;
    pot_status s = write_manifest(j, err);
    if (s == POT_OK) s = sync_directory(directory, err);
    if (s == POT_OK) s = remove_in(directory, POT_CONVERT_JOURNAL, err);
    r->finished = s == POT_OK;
    return s;
}

/* ---- all of it ------------------------------------------------------------------------------------------------------------- */

static void free_job(pot_convert_job *j) {
    release_lock(j);
    if (j->made_directory && !has_file(j->options->destination, POT_CONVERT_JOURNAL))
        (void)rmdir(j->options->destination); /* succeeds when nothing is in it */
    pot_model_close(j->model);
    json_decref(j->journal);
    for (uint32_t i = 0; i < j->n_files; i++) pot_free(j->files[i].rows);
    for (uint32_t i = 0; i < j->n_shards; i++) pot_free((char *)(uintptr_t)j->shards[i].name);
    pot_free(j->files);
    pot_free(j->shards);
    pot_free(j->owners);
    pot_free(j->source_name);
    pot_free(j->journal_path);
}

static pot_status prepare(pot_convert_job *j, pot_err *err) {
    const pot_convert_options *o = j->options;
    if (o->delete_source && pot_synthetic_is(o->source))
        return pot_fail(err, POT_USAGE, "--delete-source: %s is no directory of files", o->source);
    pot_status s = pot_source_name(&j->source_name, o->source, err);
    if (s == POT_OK) s = make_destination(j, err);
    if (s == POT_OK) s = take_lock(j, err);
    if (s == POT_OK && !(j->journal_path = pot_path_join(o->destination, POT_CONVERT_JOURNAL))) s = no_path(err);
    if (s == POT_OK) s = pot_journal_read(j, err);
    if (s == POT_OK) s = pot_source_open(j, err);
    if (s == POT_OK) s = remove_leftovers(j, err);
    if (s == POT_OK) s = check_finished(j, err);
    if (s == POT_OK) s = choose_files(j, err);
    if (s == POT_OK) s = check_space(j, err);
    if (s == POT_OK) s = pot_source_prepare_deletion(j, err);
    if (s == POT_OK) s = pot_journal_write(j, err);
    for (int i = 0; i < N_SIDECARS && s == POT_OK; i++) s = copy_sidecar(j, sidecars[i], err);
    return s == POT_OK ? sync_directory(o->destination, err) : s;
}

static pot_status hint(const pot_convert_job *j, pot_status s, pot_err *err) {
    uint32_t done = 0;
    for (uint32_t i = 0; i < j->n_files; i++) done += j->files[i].finished;
    if (!j->journal_path || !pot_file_exists(j->journal_path) || !err) return s;
    char text[POT_ERR_TEXT];
    snprintf(text, sizeof text, "%s", err->text);
    return pot_fail(err, s, "%.800s; %u of %u files are finished, the same command goes on from there", text, done,
                    j->n_files);
}

pot_status pot_convert(pot_convert_report *out, const pot_convert_options *options, pot_err *err) {
    pot_convert_job j = {.options = options, .lock = -1};
    const uint64_t start = pot_now_us();
    pot_status s = prepare(&j, err);
    if (s == POT_OK) {
        s = convert_files(&j, err);
        if (s == POT_OK) s = finish(&j, err);
        if (s == POT_OK) s = pot_convert_sum_up(&j, err);
        if (s != POT_OK) s = hint(&j, s, err);
    }
    j.report.seconds = seconds_since(start);
    j.report.peak_bytes = pot_memory_peak();
    if (s == POT_OK)
        *out = j.report;
    else
        pot_convert_report_free(&j.report);
    free_job(&j);
    return s;
}
