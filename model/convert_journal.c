/* convert.json.  It is written by this program and may have been changed by anything: every field is checked, and a file that it calls finished is
 * looked at again before that is believed (convert.c). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/file.h"
#include "common/mem.h"
#include "model/convert_internal.h"
#include "model/shard_names.h"

enum { VERSION = 1, MAX_JOURNAL = 64 << 20, MAX_ROWS = 256, OPTIONS_TEXT = 160 };

/* ---- which conversion it is ------------------------------------------------------------------------------------------------ */

static const char *format_name(pot_format format) {
    return format == POT_FORMAT_NONE ? "auto" : pot_format_get(format)->name;
}

static void options_text(char out[OPTIONS_TEXT], const pot_format_policy *p) {
    static const char *const roundings[] = {"auto", "search", "ocp"};
    snprintf(out, OPTIONS_TEXT, "--experts %s --dense %s --head %s --mtp %s --rounding %s", format_name(p->experts),
             format_name(p->dense), format_name(p->head), format_name(p->mtp), roundings[p->rounding]);
}

static pot_status check_same(const pot_convert_job *j, pot_err *err) {
    const char *path = j->journal_path, *options, *source;
    char own[OPTIONS_TEXT];
    options_text(own, &j->options->policy);
    pot_status s = pot_json_string(&source, j->journal, "source", true, path, err);
    if (s == POT_OK) s = pot_json_string(&options, j->journal, "options", true, path, err);
    if (s != POT_OK) return s;
    if (strcmp(source, j->source_name) != 0)
        return pot_fail(err, POT_USAGE,
                        "%s: begun from the source %.200s, this run has %.200s: give that one, or another directory to "
                        "write to",
                        path, source, j->source_name);
    if (strcmp(options, own) != 0)
        return pot_fail(err, POT_USAGE,
                        "%s: begun with %.200s, this run has %s: give the same options, or another directory to write "
                        "to",
                        path, options, own);
    return POT_OK;
}

/* ---- reading --------------------------------------------------------------------------------------------------------------- */

pot_status pot_journal_parse(json_t **out, const char *path, pot_err *err) {
    json_t *root;
    int64_t version = 0;
    pot_status s = pot_json_read(&root, path, MAX_JOURNAL, err);
    if (s != POT_OK) return s;
    s = pot_json_int(&version, root, "convert", 1, INT32_MAX, true, path, err);
    if (s == POT_OK && version != VERSION)
        s = pot_fail(err, POT_FORMAT,
                     "%s: is of version %lld, this potluck reads version %d; go on with the potluck that began", path,
                     (long long)version, VERSION);
    if (s == POT_OK)
        *out = root;
    else
        json_decref(root);
    return s;
}

static pot_status read_shard(pot_convert_shard *out, const json_t *entry, const char *path, pot_err *err) {
    const char *name;
    int64_t bytes = 0;
    pot_status s = pot_json_string(&name, entry, "name", true, path, err);
    if (s == POT_OK && (strchr(name, '/') || name[0] == '.' || !name[0]))
        s = pot_fail(err, POT_FORMAT, "%s: `%.60s` is no name of a source file", path, name);
    if (s == POT_OK) s = pot_json_int(&bytes, entry, "bytes", 1, INT64_MAX, true, path, err);
    if (s == POT_OK) s = pot_json_hash(&out->hash, entry, "hash", path, err);
    if (s == POT_OK) s = pot_json_bool(&out->deleted, entry, "deleted", true, path, err);
    if (s != POT_OK) return s;
    out->bytes = (uint64_t)bytes;
    out->name = pot_strdup(name);
    return out->name ? POT_OK : pot_fail(err, POT_NO_MEMORY, "%s: no memory to read it", path);
}

static pot_status read_shards(pot_convert_job *j, pot_err *err) {
    const json_t *list = json_object_get(j->journal, "shards");
    if (!list) return POT_OK;
    const size_t n = json_array_size(list);
    if (!json_is_array(list) || n > POT_MAX_SHARDS)
        return pot_fail(err, POT_FORMAT, "%s: `shards` must be a list of at most %d", j->journal_path, POT_MAX_SHARDS);
    j->shards = pot_alloc_array(n, sizeof *j->shards);
    if (!j->shards) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to read it", j->journal_path);
    for (; j->n_shards < n; j->n_shards++) {
        pot_status s = read_shard(&j->shards[j->n_shards], json_array_get(list, j->n_shards), j->journal_path, err);
        if (s != POT_OK) return s;
    }
    return POT_OK;
}

pot_status pot_journal_read(pot_convert_job *j, pot_err *err) {
    if (!pot_file_exists(j->journal_path)) return POT_OK;
    pot_status s = pot_journal_parse(&j->journal, j->journal_path, err);
    if (s == POT_OK) s = check_same(j, err);
    if (s == POT_OK) s = pot_json_hash(&j->fingerprint, j->journal, "fingerprint", j->journal_path, err);
    return s == POT_OK ? read_shards(j, err) : s;
}

static const char *find_group(const char *name) {
    for (int r = 0; r < POT_ROLE_COUNT; r++)
        if (strcmp(pot_role_group((pot_role)r), name) == 0) return pot_role_group((pot_role)r);
    return NULL;
}

static pot_status read_row(pot_convert_row *row, const json_t *entry, const char *path, pot_err *err) {
    const char *role, *stored, *format;
    pot_status s = pot_json_string(&role, entry, "role", true, path, err);
    if (s == POT_OK) s = pot_json_string(&stored, entry, "stored", true, path, err);
    if (s == POT_OK) s = pot_json_string(&format, entry, "format", true, path, err);
    const struct {
        const char *key;
        uint64_t *place;
    } numbers[] = {{"tensors", &row->census.tensors},
                   {"parameters", &row->census.parameters},
                   {"stored_bytes", &row->census.stored_bytes},
                   {"packed_bytes", &row->census.packed_bytes},
                   {"sampled", &row->sampled},
                   {"unpacked", &row->unpacked},
                   {"requantized", &row->requantized}};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers && s == POT_OK; i++) {
        int64_t value = 0;
        s = pot_json_int(&value, entry, numbers[i].key, 0, (int64_t)1 << 56, true, path, err);
        *numbers[i].place = (uint64_t)value;
    }
    if (s == POT_OK) s = pot_json_double(&row->sums.error, entry, "error", 0, 1e300, true, path, err);
    if (s == POT_OK) s = pot_json_double(&row->sums.size, entry, "size", 0, 1e300, true, path, err);
    if (s != POT_OK) return s;
    row->census.group = find_group(role);
    row->census.stored = pot_stored_name_find(stored);
    row->census.format = pot_format_get(pot_format_find(format))->name;
    if (row->census.group && row->census.stored && pot_format_find(format) != POT_FORMAT_NONE) return POT_OK;
    return pot_fail(err, POT_FORMAT, "%s: there are no weights of role `%.40s`, stored as `%.40s`, packed as `%.40s`",
                    path, role, stored, format);
}

static pot_status read_rows(pot_convert_file *f, const json_t *list, const char *path, pot_err *err) {
    const size_t n = json_array_size(list);
    if (!json_is_array(list) || n > MAX_ROWS)
        return pot_fail(err, POT_FORMAT, "%s: `rows` of %s must be a list of at most %d", path, f->file.name, MAX_ROWS);
    pot_free(f->rows);
    f->n_rows = 0;
    f->rows = pot_alloc_array(n, sizeof *f->rows);
    if (!f->rows) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to read it", path);
    for (; f->n_rows < n; f->n_rows++) {
        pot_convert_row *row = &f->rows[f->n_rows];
        row->layer = f->file.layer;
        pot_status s = read_row(row, json_array_get(list, f->n_rows), path, err);
        if (s != POT_OK) return s;
    }
    return POT_OK;
}

pot_status pot_journal_file(pot_convert_file *known, uint32_t n, const json_t *entry, const char *path, pot_err *err) {
    const char *name;
    int64_t bytes = 0;
    pot_status s = pot_json_string(&name, entry, "name", true, path, err);
    if (s != POT_OK) return s;
    uint32_t i = 0;
    while (i < n && strcmp(known[i].file.name, name) != 0) i++;
    if (i == n) return pot_fail(err, POT_FORMAT, "%s: this model has no file `%.60s`", path, name);
    pot_convert_file *f = &known[i];
    if (f->finished) return pot_fail(err, POT_FORMAT, "%s: lists %s twice", path, f->file.name);
    s = pot_json_int(&bytes, entry, "bytes", 1, INT64_MAX, true, path, err);
    if (s == POT_OK) s = pot_json_hash(&f->file.hash, entry, "hash", path, err);
    if (s == POT_OK) s = pot_json_bool(&f->verified, entry, "verified", true, path, err);
    if (s == POT_OK) s = read_rows(f, json_object_get(entry, "rows"), path, err);
    if (s != POT_OK) return s;
    f->file.bytes = (uint64_t)bytes;
    f->finished = true;
    return POT_OK;
}

pot_status pot_journal_take_files(pot_convert_job *j, pot_err *err) {
    const json_t *list = json_object_get(j->journal, "files");
    if (!json_is_array(list) || json_array_size(list) > j->n_files)
        return pot_fail(err, POT_FORMAT, "%s: `files` must be a list of at most %u", j->journal_path, j->n_files);
    pot_status s = POT_OK;
    for (size_t i = 0; i < json_array_size(list) && s == POT_OK; i++)
        s = pot_journal_file(j->files, j->n_files, json_array_get(list, i), j->journal_path, err);
    return s;
}

/* ---- writing --------------------------------------------------------------------------------------------------------------- */

static void put_shards(pot_buffer *out, const pot_convert_job *j) {
    char hash[33];
    if (!j->n_shards) return;
    pot_buffer_text(out, ",\n \"shards\": [");
    for (uint32_t i = 0; i < j->n_shards; i++) {
        const pot_convert_shard *shard = &j->shards[i];
        pot_hash_text(hash, shard->hash);
        pot_buffer_text(out, i ? ",\n  {\"name\": " : "\n  {\"name\": ");
        pot_json_quote(out, shard->name, strlen(shard->name));
        pot_buffer_format(out, ", \"bytes\": %" PRIu64 ", \"hash\": \"%s\", \"deleted\": %s}", shard->bytes, hash,
                          shard->deleted ? "true" : "false");
    }
    pot_buffer_byte(out, ']');
}

static void put_row(pot_buffer *out, const pot_convert_row *r) {
    pot_buffer_format(out,
                      "{\"role\": \"%s\", \"stored\": \"%s\", \"format\": \"%s\", \"tensors\": %" PRIu64
                      ", \"parameters\": %" PRIu64 ", \"stored_bytes\": %" PRIu64 ", \"packed_bytes\": %" PRIu64
                      ", \"sampled\": %" PRIu64 ", \"error\": %.17g, \"size\": %.17g, \"unpacked\": %" PRIu64
                      ", \"requantized\": %" PRIu64 "}",
                      r->census.group, r->census.stored, r->census.format, r->census.tensors, r->census.parameters,
                      r->census.stored_bytes, r->census.packed_bytes, r->sampled, r->sums.error, r->sums.size,
                      r->unpacked, r->requantized);
}

static void put_file(pot_buffer *out, const pot_convert_file *f) {
    char hash[33];
    pot_hash_text(hash, f->file.hash);
    pot_buffer_format(out, "{\"name\": \"%s\", \"bytes\": %" PRIu64 ", \"hash\": \"%s\", \"verified\": %s, \"rows\": [",
                      f->file.name, f->file.bytes, hash, f->verified ? "true" : "false");
    for (uint32_t i = 0; i < f->n_rows; i++) {
        pot_buffer_text(out, i ? ",\n   " : "\n   ");
        put_row(out, &f->rows[i]);
    }
    pot_buffer_text(out, "]}");
}

pot_status pot_journal_write(const pot_convert_job *j, pot_err *err) {
    pot_buffer text = {0};
    char options[OPTIONS_TEXT], hash[33], shape[33];
    options_text(options, &j->options->policy);
    pot_hash_text(hash, j->fingerprint);
    pot_hash_text(shape, j->shape);
    pot_buffer_format(&text, "{\"convert\": %d, \"source\": ", VERSION);
    pot_json_quote(&text, j->source_name, strlen(j->source_name));
    pot_buffer_format(&text, ", \"fingerprint\": \"%s\", \"shape\": \"%s\", \"options\": \"%s\",\n ", hash, shape,
                      options);
    pot_container_put_formats(&text, j->model);
    put_shards(&text, j);
    pot_buffer_text(&text, ",\n \"files\": [");
    const char *comma = "\n  ";
    for (uint32_t i = 0; i < j->n_files; i++) {
        if (!j->files[i].finished) continue;
        pot_buffer_text(&text, comma);
        put_file(&text, &j->files[i]);
        comma = ",\n  ";
    }
    pot_buffer_text(&text, "]}\n");
    pot_status s = text.failed ? pot_fail(err, POT_NO_MEMORY, "%s: no memory to write it", j->journal_path)
                               : pot_file_write(j->journal_path, text.data, text.bytes, err);
    pot_buffer_free(&text);
    return s;
}
