/* Shards are mapped, their headers parsed with jansson, and every tensor checked before it gets a row in the table:
 *
 *   8 bytes   header length, little-endian
 *   header    {"name": {"dtype": "BF16", "shape": [..], "data_offsets": [begin, end]}, "__metadata__": {..}}
 *   data
 *
 * The table is sorted by name; look-up goes through an open-addressed hash of the names (a model has up to 120,000 tensors). */
#include "model/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/json.h"
#include "common/mem.h"
#include "model/shard_names.h"

enum { MAX_HEADER_BYTES = 100 * 1024 * 1024, MAX_TENSORS = 1 << 22 }; /* the largest GLM release has 118,629 tensors */
enum { HASH_ALL_BYTES = 1 << 30, HASH_SAMPLE_BYTES = 4096 };

static const struct {
    const char *text;
    uint32_t bytes;
} DTYPES[] = {
#define X(text, name, bits) {text, (bits) / 8},
    POT_DTYPE_MAP(X)
#undef X
};

const char *pot_dtype_name(pot_dtype dtype) { return DTYPES[dtype].text; }
uint32_t pot_dtype_bytes(pot_dtype dtype) { return DTYPES[dtype].bytes; }

typedef struct shard {
    char *path;
    pot_mapping mapping;
    json_t *header; /* owns the tensors' names */
} shard;

struct pot_shards {
    shard *shards;
    uint32_t n_shards;
    pot_tensor *tensors;
    uint32_t n_tensors, capacity;
    uint32_t *slots;  /* index + 1, 0 = free */
    uint32_t n_slots; /* a power of two */
};

/* ---- one header ------------------------------------------------------------------------------------------------ */

/* *out is NULL unless it returns OK. */
static pot_status parse_header(json_t **out, uint64_t *data_begin, const uint8_t *bytes, uint64_t n_bytes,
                               uint64_t file_bytes, const char *name, pot_err *err) {
    *out = NULL;
    if (file_bytes < 8 || n_bytes < 8)
        return pot_fail(err, POT_FORMAT, "%s: %" PRIu64 " bytes long, a safetensors file has at least 8", name,
                        file_bytes);
    uint64_t length = 0;
    for (int i = 7; i >= 0; i--) length = length << 8 | bytes[i];
    if (length > MAX_HEADER_BYTES)
        return pot_fail(err, POT_FORMAT,
                        "%s: its header would be %" PRIu64 " bytes long, at most %d are read; is it safetensors?", name,
                        length, MAX_HEADER_BYTES);
    if (length > file_bytes - 8 || length > n_bytes - 8)
        return pot_fail(err, POT_FORMAT,
                        "%s: its header is %" PRIu64 " bytes long, the file has %" PRIu64
                        " after the length; is it cut off?",
                        name, length, (file_bytes - 8));
    pot_status s = pot_json_parse(out, (const char *)bytes + 8, (size_t)length, name, err);
    if (s != POT_OK) return pot_at(err, "safetensors header");
    if (!json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        return pot_fail(err, POT_FORMAT, "%s: the header is not a JSON object", name);
    }
    *data_begin = 8 + length;
    return POT_OK;
}

static pot_status find_dtype(pot_dtype *out, const char *text, const char *file, const char *name, pot_err *err) {
    for (int i = 0; i < POT_DTYPE_COUNT; i++)
        if (strcmp(text, DTYPES[i].text) == 0) {
            *out = (pot_dtype)i;
            return POT_OK;
        }
    return pot_fail(err, POT_FORMAT, "%s: tensor %s has the unknown dtype %s", file, name, text);
}

/* Says what stands where a whole number should. */
static const char *describe(char out[48], const json_t *value) {
    if (json_is_string(value))
        snprintf(out, 48, "\"%.40s\"", json_string_value(value));
    else if (json_is_number(value))
        snprintf(out, 48, "%.17g", json_number_value(value));
    else
        snprintf(out, 48, "no number");
    return out;
}

/* A non-negative integer below 2^63 at value[index]. */
static pot_status get_length(uint64_t *out, const json_t *list, size_t index, const char *file, const char *name,
                             const char *field, pot_err *err) {
    const json_t *value = json_array_get(list, index);
    char text[48];
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return pot_fail(err, POT_FORMAT, "%s: tensor %s: %s[%zu] is %s, a whole number from 0 up was expected", file,
                        name, field, index, describe(text, value));
    *out = (uint64_t)json_integer_value(value);
    return POT_OK;
}

/* Fills everything but data and shard; *begin is the offset inside the data part. */
static pot_status read_tensor(pot_tensor *t, uint64_t *begin, const char *name, const json_t *entry,
                              uint64_t data_bytes, const char *file, pot_err *err) {
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    if (!dtype || !json_is_array(shape) || !json_is_array(offsets) || json_array_size(offsets) != 2)
        return pot_fail(err, POT_FORMAT, "%s: tensor %s needs a dtype, a shape and two data_offsets", file, name);
    *t = (pot_tensor){.name = name};
    *begin = 0;
    pot_status s = find_dtype(&t->dtype, dtype, file, name, err);
    if (s != POT_OK) return s;
    if (json_array_size(shape) > POT_MAX_RANK)
        return pot_fail(err, POT_FORMAT, "%s: tensor %s has %zu dimensions, at most %d were expected", file, name,
                        json_array_size(shape), POT_MAX_RANK);
    t->rank = (uint32_t)json_array_size(shape);
    uint64_t bytes = pot_dtype_bytes(t->dtype);
    bool empty = false;
    for (uint32_t i = 0; i < t->rank; i++) {
        s = get_length(&t->shape[i], shape, i, file, name, "shape", err);
        if (s != POT_OK) return s;
        empty |= t->shape[i] == 0;
    }
    for (uint32_t i = 0; i < t->rank && !empty; i++)
        if (__builtin_mul_overflow(bytes, t->shape[i], &bytes) || bytes > INT64_MAX)
            return pot_fail(err, POT_FORMAT, "%s: tensor %s has more elements than 63 bits can count", file, name);
    if (empty) bytes = 0;
    uint64_t end = 0;
    s = get_length(begin, offsets, 0, file, name, "data_offsets", err);
    if (s == POT_OK) s = get_length(&end, offsets, 1, file, name, "data_offsets", err);
    if (s != POT_OK) return s;
    if (*begin > end || end > data_bytes)
        return pot_fail(err, POT_FORMAT,
                        "%s: tensor %s lies at bytes %" PRIu64 " to %" PRIu64 " of the data, which has %" PRIu64, file,
                        name, *begin, end, data_bytes);
    if (end - *begin != bytes)
        return pot_fail(err, POT_FORMAT, "%s: tensor %s has %" PRIu64 " bytes, its shape and dtype %s need %" PRIu64,
                        file, name, (end - *begin), dtype, bytes);
    t->bytes = bytes;
    return POT_OK;
}

typedef struct extent {
    uint64_t begin, end;
    const char *name;
} extent;

static int by_begin(const void *a, const void *b) {
    const extent *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* No byte may belong to two tensors, and the last one ends with the file: more or less is a sign of a damaged copy. */
static pot_status check_extents(extent *extents, size_t n, uint64_t data_bytes, const char *file, pot_err *err) {
    qsort(extents, n, sizeof *extents, by_begin);
    uint64_t end = 0;
    const char *before = NULL;
    for (size_t i = 0; i < n; i++) {
        if (extents[i].begin == extents[i].end) continue;
        if (extents[i].begin < end)
            return pot_fail(err, POT_FORMAT, "%s: the bytes of tensors %s and %s overlap", file, before,
                            extents[i].name);
        end = extents[i].end;
        before = extents[i].name;
    }
    if (end != data_bytes)
        return pot_fail(err, POT_FORMAT,
                        "%s: the tensors end at byte %" PRIu64 " of the data, which has %" PRIu64
                        "; is the file damaged?",
                        file, end, data_bytes);
    return POT_OK;
}

typedef pot_status tensor_fn(void *context, const pot_tensor *tensor, uint64_t begin, pot_err *err);

/* Checks a parsed header and hands every tensor to `each` (may be NULL). */
static pot_status walk_header(const json_t *header, uint64_t data_bytes, const char *file, tensor_fn *each,
                              void *context, pot_err *err) {
    size_t n = json_object_size(header), found = 0; /* __metadata__, if any, is counted too */
    extent *extents = pot_alloc_array(n, sizeof *extents);
    if (!extents) return pot_fail(err, POT_NO_MEMORY, "%s: no memory for %zu tensors", file, n);
    pot_status s = POT_OK;
    const char *name;
    json_t *entry;
    json_object_foreach((json_t *)header, name, entry) {
        if (strcmp(name, "__metadata__") == 0) continue;
        pot_tensor tensor = {0};
        uint64_t begin = 0;
        s = json_is_object(entry)
                ? read_tensor(&tensor, &begin, name, entry, data_bytes, file, err)
                : pot_fail(err, POT_FORMAT, "%s: tensor %s is not described by an object", file, name);
        if (s == POT_OK && each) s = each(context, &tensor, begin, err);
        if (s != POT_OK) break;
        extents[found++] = (extent){begin, begin + tensor.bytes, name};
    }
    if (s == POT_OK) s = check_extents(extents, found, data_bytes, file, err);
    pot_free(extents);
    return s;
}

pot_status pot_safetensors_check(const uint8_t *bytes, size_t n_bytes, uint64_t file_bytes, const char *name,
                                 pot_err *err) {
    json_t *header;
    uint64_t data_begin = 0;
    pot_status s = parse_header(&header, &data_begin, bytes, n_bytes, file_bytes, name, err);
    if (s != POT_OK) return s;
    s = walk_header(header, file_bytes - data_begin, name, NULL, NULL, err);
    json_decref(header);
    return s;
}

/* ---- a directory of shards --------------------------------------------------------------------------------------- */

typedef struct adder {
    pot_shards *shards;
    uint32_t shard;
    const uint8_t *data;
} adder;

static pot_status add_tensor(void *context, const pot_tensor *tensor, uint64_t begin, pot_err *err) {
    adder *a = context;
    pot_shards *s = a->shards;
    if (s->n_tensors == MAX_TENSORS)
        return pot_fail(err, POT_LIMIT, "%s: more than %d tensors, at most that many are read",
                        s->shards[a->shard].path, MAX_TENSORS);
    if (s->n_tensors == s->capacity) {
        uint32_t capacity = s->capacity ? 2 * s->capacity : 256;
        pot_tensor *grown = pot_realloc_array(s->tensors, capacity, sizeof *grown);
        if (!grown) return pot_fail(err, POT_NO_MEMORY, "no memory for %u tensors", capacity);
        s->tensors = grown;
        s->capacity = capacity;
    }
    pot_tensor *t = &s->tensors[s->n_tensors++];
    *t = *tensor;
    t->shard = a->shard;
    t->data = tensor->bytes ? a->data + begin : NULL;
    return POT_OK;
}

static pot_status add_shard(pot_shards *s, const char *path, pot_err *err) {
    shard *sh = &s->shards[s->n_shards];
    sh->path = pot_strdup(path);
    if (!sh->path) return pot_fail(err, POT_NO_MEMORY, "no memory for a path");
    s->n_shards++; /* from here on close() cleans it up */
    pot_status status = pot_mapping_open(&sh->mapping, path, err);
    if (status != POT_OK) return status;
    uint64_t data_begin = 0;
    status = parse_header(&sh->header, &data_begin, sh->mapping.base, sh->mapping.bytes, sh->mapping.bytes, path, err);
    if (status != POT_OK) return status;
    adder a = {s, s->n_shards - 1, sh->mapping.base + data_begin};
    return walk_header(sh->header, sh->mapping.bytes - data_begin, path, add_tensor, &a, err);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const pot_tensor *)a)->name, ((const pot_tensor *)b)->name);
}

/* Sorts the table, refuses a name that stands in two shards, builds the hash. */
static pot_status build_index(pot_shards *s, pot_err *err) {
    if (s->n_tensors) qsort(s->tensors, s->n_tensors, sizeof *s->tensors, by_name);
    for (uint32_t i = 1; i < s->n_tensors; i++)
        if (strcmp(s->tensors[i - 1].name, s->tensors[i].name) == 0)
            return pot_fail(err, POT_FORMAT, "tensor %s stands in %s and in %s", s->tensors[i].name,
                            s->shards[s->tensors[i - 1].shard].path, s->shards[s->tensors[i].shard].path);
    for (s->n_slots = 16; s->n_slots < 2 * s->n_tensors; s->n_slots *= 2) {
    }
    s->slots = pot_alloc_array(s->n_slots, sizeof *s->slots);
    if (!s->slots) return pot_fail(err, POT_NO_MEMORY, "no memory for an index of %u tensors", s->n_tensors);
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        uint32_t at = (uint32_t)pot_hash64(s->tensors[i].name, strlen(s->tensors[i].name)) & (s->n_slots - 1);
        while (s->slots[at]) at = (at + 1) & (s->n_slots - 1);
        s->slots[at] = i + 1;
    }
    return POT_OK;
}

/* NULL when memory is short. */
static pot_shards *create(uint32_t n_shards) {
    pot_shards *s = pot_alloc(sizeof *s);
    if (s) s->shards = pot_alloc_array(n_shards, sizeof *s->shards);
    if (s && s->shards) return s;
    pot_free(s);
    return NULL;
}

static pot_status finish(pot_shards **out, pot_shards *shards, pot_status s, pot_err *err) {
    if (s == POT_OK) s = build_index(shards, err);
    if (s == POT_OK) {
        *out = shards;
    } else {
        pot_shards_close(shards);
    }
    return s;
}

pot_status pot_shards_open_some(pot_shards **out, const char *directory, const char *const *names, uint32_t n,
                                pot_err *err) {
    pot_shards *shards = create(n);
    if (!shards) return pot_fail(err, POT_NO_MEMORY, "%s: no memory for %u files", directory, n);
    pot_status s = POT_OK;
    for (uint32_t i = 0; s == POT_OK && i < n; i++) {
        char *path = pot_path_join(directory, names[i]);
        s = path ? add_shard(shards, path, err) : pot_fail(err, POT_NO_MEMORY, "%s: no memory for a path", directory);
        pot_free(path);
    }
    return finish(out, shards, s, err);
}

pot_status pot_shards_open(pot_shards **out, const char *directory, pot_err *err) {
    pot_shard_names names = {0};
    pot_status s = pot_shard_names_find(&names, directory, err);
    if (s != POT_OK) return s;
    s = pot_shards_open_some(out, directory, (const char *const *)names.names, names.n, err);
    pot_shard_names_free(&names);
    return s;
}

void pot_shards_drop(pot_shards *s, uint32_t index) {
    for (uint32_t i = 0; i < s->n_tensors; i++)
        if (s->tensors[i].shard == index) s->tensors[i].data = NULL;
    pot_mapping_close(&s->shards[index].mapping);
}

pot_status pot_shards_open_file(pot_shards **out, const char *path, pot_err *err) {
    pot_shards *shards = create(1);
    if (!shards) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to open it", path);
    return finish(out, shards, add_shard(shards, path, err), err);
}

void pot_shards_close(pot_shards *s) {
    if (!s) return;
    for (uint32_t i = 0; i < s->n_shards; i++) {
        json_decref(s->shards[i].header);
        pot_mapping_close(&s->shards[i].mapping);
        pot_free(s->shards[i].path);
    }
    pot_free(s->shards);
    pot_free(s->tensors);
    pot_free(s->slots);
    pot_free(s);
}

uint32_t pot_shards_files(const pot_shards *s) { return s->n_shards; }
uint32_t pot_shards_tensors(const pot_shards *s) { return s->n_tensors; }
const pot_tensor *pot_shards_at(const pot_shards *s, uint32_t index) { return &s->tensors[index]; }
const char *pot_shards_path(const pot_shards *s, uint32_t index) { return s->shards[index].path; }

const pot_tensor *pot_shards_find(const pot_shards *s, const char *name) {
    uint32_t at = (uint32_t)pot_hash64(name, strlen(name)) & (s->n_slots - 1);
    for (; s->slots[at]; at = (at + 1) & (s->n_slots - 1))
        if (strcmp(s->tensors[s->slots[at] - 1].name, name) == 0) return &s->tensors[s->slots[at] - 1];
    return NULL;
}

pot_hash pot_shards_hash(const pot_shards *s) {
    pot_hasher *h = pot_hasher_create();
    if (!h) return (pot_hash){0, 0};
    uint64_t total = 0;
    for (uint32_t i = 0; i < s->n_tensors; i++) total += s->tensors[i].bytes;
    const bool all = total <= HASH_ALL_BYTES;
    for (uint32_t i = 0; i < s->n_tensors; i++) {
        const pot_tensor *t = &s->tensors[i];
        uint64_t numbers[2 + POT_MAX_RANK] = {t->dtype, t->rank};
        memcpy(numbers + 2, t->shape, sizeof t->shape);
        pot_hasher_add(h, t->name, strlen(t->name) + 1);
        pot_hasher_add(h, numbers, sizeof numbers);
        const uint64_t bytes = all || t->bytes < HASH_SAMPLE_BYTES ? t->bytes : HASH_SAMPLE_BYTES;
        if (bytes) pot_hasher_add(h, t->data + (t->bytes - bytes) / 2, bytes);
    }
    return pot_hasher_end(h);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static uint64_t tensor_out_bytes(const pot_tensor_out *t) {
    uint64_t bytes = pot_dtype_bytes(t->dtype);
    for (uint32_t i = 0; i < t->rank; i++) bytes *= t->shape[i];
    return bytes;
}

static void put_header(pot_buffer *out, const pot_tensor_out *tensors, uint32_t n) {
    uint64_t at = 0;
    pot_buffer_byte(out, '{');
    for (uint32_t i = 0; i < n; i++) {
        uint64_t bytes = tensor_out_bytes(&tensors[i]);
        if (i) pot_buffer_byte(out, ',');
        pot_json_quote(out, tensors[i].name, strlen(tensors[i].name));
        pot_buffer_format(out, ":{\"dtype\":\"%s\",\"shape\":[", pot_dtype_name(tensors[i].dtype));
        for (uint32_t k = 0; k < tensors[i].rank; k++)
            pot_buffer_format(out, "%s%" PRIu64, k ? "," : "", tensors[i].shape[k]);
        pot_buffer_format(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", at, (at + bytes));
        at += bytes;
    }
    pot_buffer_byte(out, '}');
    while (!out->failed && (out->bytes + 8) % 64) pot_buffer_byte(out, ' '); /* data begins on a cache line */
}

pot_status pot_safetensors_write(const char *path, const pot_tensor_out *tensors, uint32_t n, pot_err *err) {
    pot_buffer header = {0}, file = {0};
    put_header(&header, tensors, n);
    uint64_t length = header.bytes;
    for (int i = 0; i < 8; i++) pot_buffer_byte(&file, (char)(length >> 8 * i));
    pot_buffer_append(&file, header.data, header.bytes);
    for (uint32_t i = 0; i < n; i++) pot_buffer_append(&file, tensors[i].data, (size_t)tensor_out_bytes(&tensors[i]));
    pot_status s = header.failed || file.failed
                       ? pot_fail(err, POT_NO_MEMORY, "%s: no memory to write %u tensors", path, n)
                       : pot_file_write(path, file.data, file.bytes, err);
    pot_buffer_free(&header);
    pot_buffer_free(&file);
    return s;
}
