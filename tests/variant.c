/* The fixture stays mapped while a variant is in work, so unchanged tensors are never copied. */
#include "tests/variant.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "common/file.h"
#include "common/json.h"

static char scratch[64];

int pot_variant_setup(void **state) {
    (void)state;
    strcpy(scratch, "/tmp/potluck-test-XXXXXX");
    return mkdtemp(scratch) ? 0 : -1;
}

int pot_variant_teardown(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    return system(command);
}

pot_model *pot_must_open(const char *directory, const pot_format_policy *policy) {
    pot_model *model = NULL;
    pot_err err;
    if (pot_model_open(&model, directory, policy ? policy : &pot_format_policy_default, &err)) fail_msg("%s", err.text);
    return model;
}

enum { MAX_TENSORS = 1024, MAX_OWNED = 16 };

typedef struct variant {
    pot_shards *shards; /* the fixture's */
    json_t *config;
    pot_tensor_out tensors[MAX_TENSORS];
    uint32_t n;
    void *owned[MAX_OWNED];
    uint32_t n_owned;
    char directory[96];
} variant;

static variant v; /* the one in work */

void pot_variant_begin(const char *fixture) {
    static int serial;
    char path[128];
    v = (variant){0};
    snprintf(v.directory, sizeof v.directory, "%s/v%d", scratch, serial++);
    assert_int_equal(mkdir(v.directory, 0777), 0);
    pot_err err;
    if (pot_shards_open(&v.shards, fixture, &err)) fail_msg("%s", err.text);
    snprintf(path, sizeof path, "%s/config.json", fixture);
    if (pot_json_read(&v.config, path, 1 << 20, &err)) fail_msg("%s", err.text);
    v.n = pot_shards_tensors(v.shards);
    assert_true(v.n < MAX_TENSORS);
    for (uint32_t i = 0; i < v.n; i++) {
        const pot_tensor *t = pot_shards_at(v.shards, i);
        v.tensors[i] = (pot_tensor_out){.name = t->name, .dtype = t->dtype, .rank = t->rank, .data = t->data};
        memcpy(v.tensors[i].shape, t->shape, sizeof t->shape);
    }
}

void pot_variant_drop(const char *name) {
    for (uint32_t i = 0; i < v.n; i++)
        if (!strcmp(v.tensors[i].name, name)) {
            v.tensors[i] = v.tensors[--v.n];
            return;
        }
    fail_msg("the fixture has no tensor %s", name);
}

void pot_variant_drop_prefix(const char *prefix) {
    for (uint32_t i = 0; i < v.n;)
        if (!strncmp(v.tensors[i].name, prefix, strlen(prefix)))
            v.tensors[i] = v.tensors[--v.n];
        else
            i++;
}

static void put(const char *name, pot_dtype dtype, uint32_t rank, const uint64_t *shape, uint8_t fill) {
    for (uint32_t i = 0; i < v.n; i++)
        if (!strcmp(v.tensors[i].name, name)) v.tensors[i] = v.tensors[--v.n];
    pot_tensor_out *t = &v.tensors[v.n++];
    *t = (pot_tensor_out){.name = name, .dtype = dtype, .rank = rank};
    size_t bytes = pot_dtype_bytes(dtype);
    for (uint32_t i = 0; i < rank; i++) bytes *= t->shape[i] = shape[i];
    uint8_t *data = malloc(bytes);
    assert_non_null(data);
    memset(data, fill, bytes);
    assert_true(v.n_owned < MAX_OWNED && v.n < MAX_TENSORS);
    t->data = v.owned[v.n_owned++] = data;
}

void pot_variant_put(const char *name, pot_dtype dtype, uint64_t rows, uint64_t cols, uint8_t fill) {
    put(name, dtype, rows ? 2 : 1, rows ? (const uint64_t[]){rows, cols} : (const uint64_t[]){cols}, fill);
}

void pot_variant_put_stack(const char *name, pot_dtype dtype, uint64_t n, uint64_t rows, uint64_t cols) {
    put(name, dtype, 3, (const uint64_t[]){n, rows, cols}, 0);
}

void pot_variant_config(const char *key, json_t *value) {
    if (value)
        json_object_set_new(v.config, key, value);
    else
        json_object_del(v.config, key);
}

const char *pot_variant_write(uint32_t n_files) {
    static pot_tensor_out dealt[MAX_TENSORS];
    char path[160];
    pot_err err;
    for (uint32_t f = 0; f < n_files; f++) {
        uint32_t n = 0;
        for (uint32_t i = f; i < v.n; i += n_files) dealt[n++] = v.tensors[i];
        if (n_files == 1)
            snprintf(path, sizeof path, "%s/model.safetensors", v.directory);
        else
            snprintf(path, sizeof path, "%s/model-%05u-of-%05u.safetensors", v.directory, f + 1, n_files);
        if (pot_safetensors_write(path, dealt, n, &err)) fail_msg("%s", err.text);
    }
    char *text = json_dumps(v.config, 0);
    snprintf(path, sizeof path, "%s/config.json", v.directory);
    if (pot_file_write(path, text, strlen(text), &err)) fail_msg("%s", err.text);
    free(text);
    return v.directory;
}

void pot_variant_end(void) {
    for (uint32_t i = 0; i < v.n_owned; i++) free(v.owned[i]);
    json_decref(v.config);
    pot_shards_close(v.shards);
    v = (variant){0};
}

pot_model *pot_variant_open(const pot_format_policy *policy) {
    pot_variant_write(1);
    pot_model *model = pot_must_open(v.directory, policy);
    pot_variant_end();
    return model;
}

/* Must be refused; the sentence begins with the file (or the directory) and goes on as given. */
void pot_variant_refuse(pot_status status, const char *sentence) {
    pot_variant_write(1);
    pot_model *model = NULL;
    pot_err err = {0};
    pot_status s = pot_model_open(&model, v.directory, &pot_format_policy_default, &err);
    if (s == POT_OK) fail_msg("opened; expected \"%s\"", sentence);
    assert_null(model);
    size_t n = strlen(v.directory);
    const char *rest = !strncmp(err.text, v.directory, n) ? err.text + n : err.text;
    if (!strncmp(rest, "/model.safetensors", 18)) rest += 18;
    if (strcmp(rest, sentence) || s != status)
        fail_msg("says \"%s\" (%s)\n   expected \"%s\"", err.text, pot_status_name(s), sentence);
    pot_variant_end();
}
