/* A directory may hold other safetensors files than the model's (adapters, saved activations), so the choice follows what
 * writers of checkpoints do: an index names its shards, a model of one file is called model.safetensors, and only where there is
 * neither are all files taken.  A shard that should be there and is not is reported with how many there are. */
#include "model/shard_names.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/json.h"
#include "common/log.h"
#include "common/mem.h"

enum { MAX_INDEX_BYTES = 64 * 1024 * 1024, NAME_BYTES = 256 };

static const char INDEX[] = "model.safetensors.index.json", SINGLE[] = "model.safetensors", SUFFIX[] = ".safetensors";

void pot_shard_names_free(pot_shard_names *names) {
    for (uint32_t i = 0; i < names->n; i++) pot_free(names->names[i]);
    pot_free(names->names);
    *names = (pot_shard_names){0};
}

static pot_status add(pot_shard_names *names, const char *name, const char *directory, pot_err *err) {
    if (names->n == POT_MAX_SHARDS)
        return pot_fail(err, POT_LIMIT, "%s: more than %d safetensors files, at most that many are read", directory,
                        POT_MAX_SHARDS);
    if (names->n == names->capacity) {
        uint32_t capacity = names->capacity ? 2 * names->capacity : 16;
        char **grown = pot_realloc_array(names->names, capacity, sizeof *grown);
        if (!grown) return pot_fail(err, POT_NO_MEMORY, "%s: no memory for the names of %u files", directory, capacity);
        names->names = grown;
        names->capacity = capacity;
    }
    char *copy = pot_strdup(name);
    if (!copy) return pot_fail(err, POT_NO_MEMORY, "%s: no memory for the name of a file", directory);
    names->names[names->n++] = copy;
    return POT_OK;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void sort(pot_shard_names *names) {
    if (names->n) qsort(names->names, names->n, sizeof *names->names, by_text);
}

static bool has(const pot_shard_names *names, const char *name) {
    return names->n && bsearch(&name, names->names, names->n, sizeof *names->names, by_text);
}

static bool ends_as_shard(const char *name) {
    size_t length = strlen(name), suffix = strlen(SUFFIX);
    return length > suffix && !strcmp(name + length - suffix, SUFFIX);
}

/* ---- what lies there ----------------------------------------------------------------------------------------------- */

static pot_status list(pot_shard_names *out, const char *directory, pot_err *err) {
    DIR *stream = opendir(directory);
    if (!stream)
        return pot_fail(err, POT_NOT_FOUND, "%s: cannot be read as a directory: %s", directory, strerror(errno));
    pot_status s = POT_OK;
    for (struct dirent *e; s == POT_OK && (e = readdir(stream));)
        /* Hidden files are leftovers of copying ("._model.safetensors" of macOS). */
        if (e->d_name[0] != '.' && ends_as_shard(e->d_name)) s = add(out, e->d_name, directory, err);
    closedir(stream);
    sort(out);
    return s;
}

/* X-00002-of-00005.safetensors: the length of X, and the 5. */
static bool parse_numbered(const char *name, int *stem, unsigned *total) {
    const char *of = strstr(name, "-of-");
    unsigned number;
    int end = 0;
    if (!of || of - name < 6 || sscanf(of - 6, "-%5u-of-%5u.safetensors%n", &number, total, &end) != 2 || !end)
        return false;
    *stem = (int)(of - name) - 6;
    return *total <= POT_MAX_SHARDS;
}

static pot_status check_numbers(const pot_shard_names *names, const char *directory, pot_err *err) {
    int stem, last_stem = -1;
    unsigned total, last_total = 0;
    for (uint32_t i = 0; i < names->n; i++) {
        const char *name = names->names[i];
        if (!parse_numbered(name, &stem, &total)) continue;
        if (stem == last_stem && total == last_total && !strncmp(name, names->names[i - 1], (size_t)stem)) continue;
        last_stem = stem;
        last_total = total;
        char gap[NAME_BYTES] = "", wanted[NAME_BYTES];
        uint32_t here = 0;
        for (unsigned k = 1; k <= total; k++) {
            snprintf(wanted, sizeof wanted, "%.*s-%05u-of-%05u%s", stem, name, k, total, SUFFIX);
            if (has(names, wanted)) {
                here++;
            } else if (!gap[0]) {
                memcpy(gap, wanted, sizeof gap);
            }
        }
        if (gap[0])
            return pot_fail(err, POT_NOT_FOUND, "%s: %s is missing: %u of %u shards are here", directory, gap, here,
                            total);
    }
    return POT_OK;
}

/* ---- what the index names ------------------------------------------------------------------------------------------ */

static pot_status read_index(pot_shard_names *out, const char *path, const char *directory, pot_err *err) {
    json_t *index = NULL, *value, *seen = NULL;
    const char *tensor;
    pot_status s = pot_json_read(&index, path, MAX_INDEX_BYTES, err);
    if (s != POT_OK) return s;
    const json_t *map = json_object_get(index, "weight_map");
    if (!json_is_object(map) || !json_object_size(map))
        s = pot_fail(err, POT_FORMAT, "%s: `weight_map` must be an object that says which file holds which tensor",
                     path);
    else if (!(seen = json_object()))
        s = pot_fail(err, POT_NO_MEMORY, "%s: no memory to read it", path);
    if (s == POT_OK) {
        json_object_foreach((json_t *)(uintptr_t)map, tensor, value) {
            const char *name = json_string_value(value);
            if (!name || strlen(name) != json_string_length(value) || strchr(name, '/') || name[0] == '.' ||
                !ends_as_shard(name)) {
                s = pot_fail(err, POT_FORMAT,
                             "%s: tensor %s must have the name of a safetensors file in this directory", path, tensor);
                break;
            }
            if (json_object_get(seen, name)) continue;
            if (json_object_set_new(seen, name, json_true()))
                s = pot_fail(err, POT_NO_MEMORY, "%s: no memory to read it", path);
            if (s == POT_OK) s = add(out, name, directory, err);
            if (s != POT_OK) break;
        }
    }
    json_decref(seen);
    json_decref(index);
    sort(out);
    return s;
}

static pot_status check_here(const pot_shard_names *wanted, const pot_shard_names *here, const char *directory,
                             pot_err *err) {
    const char *gap = NULL;
    uint32_t found = 0;
    for (uint32_t i = 0; i < wanted->n; i++) {
        if (has(here, wanted->names[i])) {
            found++;
        } else if (!gap) {
            gap = wanted->names[i];
        }
    }
    if (!gap) return POT_OK;
    return pot_fail(err, POT_NOT_FOUND, "%s: %s is missing: %u of %u shards that %s names are here", directory, gap,
                    found, wanted->n, INDEX);
}

pot_status pot_shard_names_find(pot_shard_names *out, const char *directory, pot_err *err) {
    pot_shard_names here = {0}, chosen = {0};
    char *index = pot_path_join(directory, INDEX);
    pot_status s = index ? list(&here, directory, err) : pot_fail(err, POT_NO_MEMORY, "no memory for a path");
    if (s == POT_OK && pot_file_exists(index)) {
        s = read_index(&chosen, index, directory, err);
        if (s == POT_OK) s = check_here(&chosen, &here, directory, err);
    } else if (s == POT_OK && has(&here, SINGLE)) {
        s = add(&chosen, SINGLE, directory, err);
    } else if (s == POT_OK && !here.n) {
        s = pot_fail(err, POT_NOT_FOUND, "%s: no *.safetensors here; is it a model's directory?", directory);
    } else if (s == POT_OK) {
        s = check_numbers(&here, directory, err);
        chosen = here;
        here = (pot_shard_names){0};
    }
    if (s == POT_OK && here.n > chosen.n)
        POT_LOG(POT_LOG_DEBUG, "model", "%s: %u other safetensors files do not belong to the model and are not read",
                directory, here.n - chosen.n);
    pot_shard_names_free(&here);
    pot_free(index);
    if (s == POT_OK) {
        *out = chosen;
    } else {
        pot_shard_names_free(&chosen);
    }
    return s;
}
