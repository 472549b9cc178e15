/* model/safetensors and model/shard_names: what is read back is what was written; every way in which a header can lie has its
 * sentence; the right files of a directory are taken. */
#include <fcntl.h>
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/file.h"
#include "common/mem.h"
#include "model/safetensors.h"

static char scratch[64];

static int make_scratch(void **state) {
    (void)state;
    strcpy(scratch, "/tmp/potluck-test-XXXXXX");
    return mkdtemp(scratch) ? 0 : -1;
}

static int remove_scratch(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    return system(command);
}

/* In a ring of buffers, so that a few paths live side by side. */
static const char *in_scratch(const char *name) {
    static char paths[4][256];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", scratch, name);
    return path;
}

static void must_write(const char *path, const void *data, size_t bytes) {
    pot_err err;
    if (pot_file_write(path, data, bytes, &err)) fail_msg("%s", err.text);
}

/* length + header + `data` zero bytes. */
static size_t compose(uint8_t *out, const char *header, size_t data) {
    uint64_t length = strlen(header);
    for (int i = 0; i < 8; i++) out[i] = (uint8_t)(length >> 8 * i);
    for (uint64_t i = 0; i < length; i++) out[8 + i] = (uint8_t)header[i];
    memset(out + 8 + length, 0, data);
    return 8 + length + data;
}

static void make_file(const char *path, const char *header, size_t data) {
    uint8_t bytes[4096];
    must_write(path, bytes, compose(bytes, header, data));
}

static void must_say(const char *got, const char *expected) {
    if (strcmp(got, expected)) fail_msg("says \"%s\"\n   expected \"%s\"", got, expected);
}

/* ---- writing and reading --------------------------------------------------------------------------------------------- */

static void file_reads_back_as_written(void **state) {
    (void)state;
    const float weights[2][3] = {{1, 2, 3}, {4, 5, 6}};
    const uint16_t half = 0x3f80;
    const int64_t many[] = {-1, 1};
    const pot_tensor_out out[] = {
        {.name = "z.weight", .dtype = POT_DTYPE_F32, .rank = 2, .shape = {2, 3}, .data = weights},
        {.name = "scalar", .dtype = POT_DTYPE_BF16, .rank = 0, .data = &half},
        {.name = "none", .dtype = POT_DTYPE_F32, .rank = 2, .shape = {0, 4096}, .data = NULL},
        {.name = "a \"quoted\" \xC3\xA9", .dtype = POT_DTYPE_I64, .rank = 1, .shape = {2}, .data = many},
    };
    const char *path = in_scratch("written.safetensors");
    pot_err err;
    if (pot_safetensors_write(path, out, 4, &err)) fail_msg("%s", err.text);

    pot_mapping raw;
    assert_int_equal(pot_mapping_open(&raw, path, &err), POT_OK);
    uint64_t length = raw.base[0] | (uint64_t)raw.base[1] << 8;
    assert_int_equal((8 + length) % 64, 0); /* data begins on a line */
    assert_int_equal(raw.bytes, 8 + length + 24 + 2 + 0 + 16);
    pot_mapping_close(&raw);

    pot_shards *shards;
    if (pot_shards_open_file(&shards, path, &err)) fail_msg("%s", err.text);
    assert_int_equal(pot_shards_tensors(shards), 4);
    assert_int_equal(pot_shards_files(shards), 1);
    assert_string_equal(pot_shards_path(shards, 0), path);
    for (uint32_t i = 1; i < 4; i++)
        assert_true(strcmp(pot_shards_at(shards, i - 1)->name, pot_shards_at(shards, i)->name) < 0);
    for (int i = 0; i < 4; i++) {
        const pot_tensor *t = pot_shards_find(shards, out[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, out[i].dtype);
        assert_int_equal(t->rank, out[i].rank);
        assert_memory_equal(t->shape, out[i].shape, sizeof t->shape);
        if (t->bytes) assert_memory_equal(t->data, out[i].data, t->bytes);
    }
    assert_int_equal(pot_shards_find(shards, "none")->bytes, 0);
    assert_int_equal(pot_shards_find(shards, "scalar")->bytes, 2);
    assert_null(pot_shards_find(shards, "scalar."));
    assert_null(pot_shards_find(shards, ""));
    pot_shards_close(shards);
    pot_shards_close(NULL);
}

/* Two gigabytes and more: no number may pass through 32 bits.  The file is sparse. */
static void tensor_over_two_gigabytes_is_read(void **state) {
    (void)state;
    const uint64_t first = 0x90000000, all = first + 4;
    char header[256];
    snprintf(header, sizeof header,
             "{\"big\":{\"dtype\":\"U8\",\"shape\":[%" PRIu64 "],\"data_offsets\":[0,%" PRIu64 "]},"
             "\"end\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}}",
             first, first, first, all);
    const char *path = in_scratch("big.safetensors");
    make_file(path, header, 0);
    const float value = 42;
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, &value, 4, (off_t)(8 + strlen(header) + first)), 4);
    close(fd);
    pot_shards *shards;
    pot_err err;
    if (pot_shards_open_file(&shards, path, &err)) fail_msg("%s", err.text);
    assert_int_equal(pot_shards_find(shards, "big")->bytes, first);
    float got;
    memcpy(&got, pot_shards_find(shards, "end")->data, 4);
    assert_true(got == value);
    pot_shards_close(shards);
    unlink(path);
}

static pot_hash hash_of(const char *header, size_t data) {
    const char *path = in_scratch("hash.safetensors");
    make_file(path, header, data);
    pot_shards *shards;
    pot_err err;
    if (pot_shards_open_file(&shards, path, &err)) fail_msg("%s", err.text);
    pot_hash hash = pot_shards_hash(shards);
    pot_shards_close(shards);
    return hash;
}

static void hash_is_of_names_dtypes_and_shapes(void **state) {
    (void)state;
    const char *a = "{\"x\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
                    "\"y\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]}}";
    const char *moved = "{\"__metadata__\":{\"k\":\"v\"},\"y\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                        "\"x\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[3,11]}}";
    assert_true(pot_hash_equal(hash_of(a, 11), hash_of(moved, 11)));
    const char *const others[] = {
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},\"y\":{\"dtype\":\"U8\",\"shape\":[3],"
        "\"data_offsets\":[8,11]}}",
        "{\"x\":{\"dtype\":\"I32\",\"shape\":[2,1],\"data_offsets\":[0,8]},\"y\":{\"dtype\":\"U8\",\"shape\":[3],"
        "\"data_offsets\":[8,11]}}",
        "{\"x\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},\"z\":{\"dtype\":\"U8\",\"shape\":[3],"
        "\"data_offsets\":[8,11]}}",
    };
    for (size_t i = 0; i < 3; i++) assert_false(pot_hash_equal(hash_of(a, 11), hash_of(others[i], 11)));
}

/* ---- headers that lie ------------------------------------------------------------------------------------------------- */

#define TENSOR(dtype, shape, offsets) \
    "{\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void header_is_refused_with_the_reason(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *sentence;
    } cases[] = {
        {TENSOR("F32", "[\"4\"]", "[0,16]"), 16,
         "f: tensor t: shape[0] is \"4\", a whole number from 0 up was expected"},
        {TENSOR("F32", "[1,2.5]", "[0,16]"), 16, "f: tensor t: shape[1] is 2.5, a whole number from 0 up was expected"},
        {TENSOR("F32", "[-4]", "[0,16]"), 16, "f: tensor t: shape[0] is -4, a whole number from 0 up was expected"},
        {TENSOR("F32", "[null]", "[0,16]"), 16,
         "f: tensor t: shape[0] is no number, a whole number from 0 up was expected"},
        {TENSOR("F32", "[9223372036854775807,2]", "[0,16]"), 16,
         "f: tensor t has more elements than 63 bits can count"},
        {TENSOR("U8", "[4294967296,4294967296]", "[0,16]"), 16, "f: tensor t has more elements than 63 bits can count"},
        {TENSOR("U8", "[4294967296,2147483648]", "[0,16]"), 16, "f: tensor t has more elements than 63 bits can count"},
        {TENSOR("U8", "[1,1,1,1,1,1,1,1,16]", "[0,16]"), 16, "f: tensor t has 9 dimensions, at most 8 were expected"},
        {TENSOR("F32", "4", "[0,16]"), 16, "f: tensor t needs a dtype, a shape and two data_offsets"},
        {TENSOR("F32", "[4]", "[0,16,16]"), 16, "f: tensor t needs a dtype, a shape and two data_offsets"},
        {TENSOR("F32", "[4]", "[0]"), 16, "f: tensor t needs a dtype, a shape and two data_offsets"},
        {"{\"t\":{\"shape\":[4],\"data_offsets\":[0,16]}}", 16,
         "f: tensor t needs a dtype, a shape and two data_offsets"},
        {"{\"t\":[1]}", 16, "f: tensor t is not described by an object"},
        {TENSOR("F4", "[4]", "[0,16]"), 16, "f: tensor t has the unknown dtype F4"},
        {TENSOR("F32", "[4]", "[0,17]"), 16, "f: tensor t lies at bytes 0 to 17 of the data, which has 16"},
        {TENSOR("F32", "[4]", "[9223372036854775800,9223372036854775807]"), 16,
         "f: tensor t lies at bytes 9223372036854775800 to 9223372036854775807 of the data, which has 16"},
        {TENSOR("F32", "[4]", "[16,0]"), 16, "f: tensor t lies at bytes 16 to 0 of the data, which has 16"},
        {TENSOR("F32", "[4]", "[-1,15]"), 16,
         "f: tensor t: data_offsets[0] is -1, a whole number from 0 up was expected"},
        {TENSOR("F32", "[5]", "[0,16]"), 16, "f: tensor t has 16 bytes, its shape and dtype F32 need 20"},
        {TENSOR("F32", "[]", "[0,16]"), 16, "f: tensor t has 16 bytes, its shape and dtype F32 need 4"},
        {TENSOR("F32", "[0,4096]", "[0,16]"), 16, "f: tensor t has 16 bytes, its shape and dtype F32 need 0"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[0,9]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]}}",
         16, "f: the bytes of tensors a and b overlap"},
        {TENSOR("F32", "[4]", "[0,16]"), 20,
         "f: the tensors end at byte 16 of the data, which has 20; is the file damaged?"},
        {"[]", 0, "f: the header is not a JSON object"},
        {"{t\":1}", 0, "safetensors header: f: not valid JSON at line 1, column 2: string or '}' expected near 't'"},
        {"{\"t\":1,\"t\":2}", 0,
         "safetensors header: f: not valid JSON at line 1, column 10: duplicate object key near '\"t\"'"},
        {"{}{}", 0, "safetensors header: f: not valid JSON at line 1, column 3: end of file expected near '{'"},
        {"", 0, "safetensors header: f: not valid JSON at line 1, column 0: '[' or '{' expected near end of file"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t bytes[1024];
        size_t n = compose(bytes, cases[i].header, cases[i].data);
        pot_err err = {0};
        if (pot_safetensors_check(bytes, n, n, "f", &err) == POT_OK) fail_msg("accepted: %s", cases[i].header);
        if (strncmp(cases[i].sentence, "safetensors header: f: not valid JSON", 37)) {
            must_say(err.text, cases[i].sentence);
        } else if (strncmp(err.text, "safetensors header: f: not valid JSON at line 1, column", 55)) {
            fail_msg("%s: says %s", cases[i].header, err.text); /* the rest is jansson's */
        }
        assert_int_equal(err.status, POT_FORMAT);
    }
}

static void header_is_accepted(void **state) {
    (void)state;
    static const struct {
        const char *header;
        size_t data;
    } cases[] = {
        {TENSOR("F32", "[]", "[0,4]"), 4},
        {TENSOR("F32", "[0,4096]", "[0,0]"), 0},
        {TENSOR("U8", "[0,9223372036854775807,9223372036854775807]", "[0,0]"), 0}, /* no elements at all */
        {TENSOR("U8", "[1,1,1,1,1,1,1,16]", "[0,16]"), 16},
        {TENSOR("F8_E8M0", "[16]", "[0,16]"), 16},
        {"{}      ", 0},
        {"{\"__metadata__\":{\"format\":\"pt\"}}", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t bytes[1024];
        size_t n = compose(bytes, cases[i].header, cases[i].data);
        pot_err err = {0};
        if (pot_safetensors_check(bytes, n, n, "f", &err)) fail_msg("%s: %s", cases[i].header, err.text);
    }
}

static void header_length_is_bounded(void **state) {
    (void)state;
    uint8_t bytes[64] = {0};
    pot_err err;
    assert_int_equal(pot_safetensors_check(bytes, 7, 7, "f", &err), POT_FORMAT);
    must_say(err.text, "f: 7 bytes long, a safetensors file has at least 8");
    bytes[0] = 57; /* one more than there is */
    assert_int_equal(pot_safetensors_check(bytes, 64, 64, "f", &err), POT_FORMAT);
    must_say(err.text, "f: its header is 57 bytes long, the file has 56 after the length; is it cut off?");
    bytes[0] = 50; /* inside the file, but not inside what was read of it */
    assert_int_equal(pot_safetensors_check(bytes, 40, 64, "f", &err), POT_FORMAT);
    must_say(err.text, "f: its header is 50 bytes long, the file has 56 after the length; is it cut off?");
    memset(bytes, 0xff, 8);
    assert_int_equal(pot_safetensors_check(bytes, 64, 64, "f", &err), POT_FORMAT);
    must_say(err.text,
             "f: its header would be 18446744073709551615 bytes long, at most 104857600 are read; is it safetensors?");
}

/* ---- damage ------------------------------------------------------------------------------------------------------------- */

static size_t good_file(uint8_t *out) {
    return compose(
        out,
        "{\"__metadata__\":{\"format\":\"pt\"},\"a.b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
        "\"c\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]},\"d\":{\"dtype\":\"F8_E4M3\",\"shape\":[0,7],"
        "\"data_offsets\":[16,16]}}",
        16);
}

/* A heap copy of just the bytes that exist, so that a read past them is seen. */
static pot_status check_copy(const uint8_t *bytes, size_t n, uint64_t file_bytes) {
    uint8_t *copy = malloc(n ? n : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, n);
    pot_err err;
    pot_status s = pot_safetensors_check(copy, n, file_bytes, "f", &err);
    if (s != POT_OK) assert_true(strlen(err.text) > 10);
    free(copy);
    return s;
}

static void file_cut_off_anywhere_is_refused(void **state) {
    (void)state;
    uint8_t bytes[1024];
    size_t n = good_file(bytes);
    assert_int_equal(check_copy(bytes, n, n), POT_OK);
    for (size_t cut = 0; cut < n; cut++) {
        assert_int_not_equal(check_copy(bytes, cut, cut), POT_OK);
        const char *path = in_scratch("cut.safetensors");
        must_write(path, bytes, cut);
        pot_shards *shards = NULL;
        assert_int_not_equal(pot_shards_open_file(&shards, path, NULL), POT_OK);
        assert_null(shards);
    }
}

static void damaged_bytes_never_crash(void **state) {
    (void)state;
    uint8_t good[1024], bytes[1024];
    size_t n = good_file(good), accepted = 0;
    uint32_t random = 1;
    for (size_t at = 0; at < n; at++)
        for (int bit = 0; bit < 8; bit++) {
            memcpy(bytes, good, n);
            bytes[at] ^= (uint8_t)(1 << bit);
            accepted += check_copy(bytes, n, n) == POT_OK;
        }
    assert_true(accepted > 16 * 8 - 1 && accepted < n * 8 / 2); /* data is free, and some letters of names */
    for (int round = 0; round < 20000; round++) {
        memcpy(bytes, good, n);
        for (int k = 0; k < 3; k++) {
            random = random * 1664525 + 1013904223;
            bytes[8 + (random >> 8) % (n - 8)] = (uint8_t) "{}[]\",:0919-eE.tfn \\u"[(random >> 24) % 21];
        }
        check_copy(bytes, n, n);
    }
}

/* ---- which files ------------------------------------------------------------------------------------------------------ */

static void one_tensor(const char *directory, const char *file, const char *tensor) {
    char path[256], header[128];
    snprintf(path, sizeof path, "%s/%s", directory, file);
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", tensor);
    make_file(path, header, 1);
}

static const char *fresh_directory(void) {
    static char path[96];
    static int serial;
    snprintf(path, sizeof path, "%s/dir%d", scratch, serial++);
    assert_int_equal(mkdir(path, 0777), 0);
    return path;
}

static void put_text(const char *directory, const char *file, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "%s/%s", directory, file);
    must_write(path, text, strlen(text));
}

/* What opening says, without the directory's name; "" when it opens. */
static const char *open_says(const char *directory, uint32_t *tensors) {
    static pot_err err;
    pot_shards *shards = NULL;
    if (pot_shards_open(&shards, directory, &err) == POT_OK) {
        if (tensors) *tensors = pot_shards_tensors(shards);
        pot_shards_close(shards);
        return "";
    }
    const char *rest = strstr(err.text, directory);
    assert_true(rest == err.text);
    return rest + strlen(directory);
}

static void missing_shard_is_named_and_counted(void **state) {
    (void)state;
    char file[64];
    for (int with_index = 0; with_index < 2; with_index++)
        for (int gap = 1; gap <= 5; gap += 2) {
            const char *directory = fresh_directory();
            pot_buffer index = {0};
            pot_buffer_text(&index, "{\"metadata\":{},\"weight_map\":{");
            for (int i = 1; i <= 5; i++) {
                char tensor[16];
                snprintf(file, sizeof file, "model-%05d-of-00005.safetensors", i);
                snprintf(tensor, sizeof tensor, "t%d", i);
                if (i != gap) one_tensor(directory, file, tensor);
                pot_buffer_format(&index, "%s\"%s\":\"%s\"", i > 1 ? "," : "", tensor, file);
            }
            pot_buffer_text(&index, "}}");
            if (with_index) put_text(directory, "model.safetensors.index.json", index.data);
            pot_buffer_free(&index);
            char sentence[160];
            snprintf(sentence, sizeof sentence, ": model-%05d-of-00005.safetensors is missing: 4 of 5 shards %s", gap,
                     with_index ? "that model.safetensors.index.json names are here" : "are here");
            must_say(open_says(directory, NULL), sentence);
            snprintf(file, sizeof file, "model-%05d-of-00005.safetensors", gap);
            one_tensor(directory, file, "gap");
            uint32_t n = 0;
            must_say(open_says(directory, &n), "");
            assert_int_equal(n, 5);
        }
}

static void index_is_checked(void **state) {
    (void)state;
    static const struct {
        const char *index, *sentence;
    } cases[] = {
        {"{\"weight_map\":{\"t\":\"gone.safetensors\"}}",
         ": gone.safetensors is missing: 0 of 1 shards that model.safetensors.index.json names are here"},
        {"{\"weight_map\":{\"t\":\"../a.safetensors\"}}",
         "/model.safetensors.index.json: tensor t must have the name of a safetensors file in this directory"},
        {"{\"weight_map\":{\"t\":\"sub/a.safetensors\"}}",
         "/model.safetensors.index.json: tensor t must have the name of a safetensors file in this directory"},
        {"{\"weight_map\":{\"t\":5}}",
         "/model.safetensors.index.json: tensor t must have the name of a safetensors file in this directory"},
        {"{\"weight_map\":{\"t\":\"a.bin\"}}",
         "/model.safetensors.index.json: tensor t must have the name of a safetensors file in this directory"},
        {"{\"weight_map\":[]}",
         "/model.safetensors.index.json: `weight_map` must be an object that says which file holds which tensor"},
        {"{\"weight_map\":{}}",
         "/model.safetensors.index.json: `weight_map` must be an object that says which file holds which tensor"},
        {"[1]",
         "/model.safetensors.index.json: `weight_map` must be an object that says which file holds which tensor"},
        {"{\"weight_map\":{\"t\":\"a.safetensors\"}}", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *directory = fresh_directory();
        one_tensor(directory, "a.safetensors", "t");
        put_text(directory, "model.safetensors.index.json", cases[i].index);
        must_say(open_says(directory, NULL), cases[i].sentence);
    }
    const char *directory = fresh_directory();
    put_text(directory, "model.safetensors.index.json", "{\"weight_map\":");
    one_tensor(directory, "a.safetensors", "t");
    assert_non_null(strstr(open_says(directory, NULL), "/model.safetensors.index.json: not valid JSON at line 1"));
}

static void only_the_models_files_are_read(void **state) {
    (void)state;
    uint32_t n = 0;
    const char *directory = fresh_directory();
    must_say(open_says(directory, NULL), ": no *.safetensors here; is it a model's directory?");
    one_tensor(directory, "out-00000.safetensors", "a"); /* the article's names: all of them */
    one_tensor(directory, "out-mtp-00000.safetensors", "b");
    one_tensor(directory, "._out-00000.safetensors", "hidden");
    put_text(directory, ".safetensors", "no");
    must_say(open_says(directory, &n), "");
    assert_int_equal(n, 2);
    one_tensor(directory, "model.safetensors", "c"); /* a model of one file */
    must_say(open_says(directory, &n), "");
    assert_int_equal(n, 1);
    put_text(directory, "model.safetensors.index.json",
             "{\"weight_map\":{\"a\":\"out-00000.safetensors\",\"b\":\"out-mtp-00000.safetensors\",\"c\":\"model."
             "safetensors\"}}");
    must_say(open_says(directory, &n), "");
    assert_int_equal(n, 3);

    char missing[128];
    snprintf(missing, sizeof missing, "%s/none", directory);
    must_say(open_says(missing, NULL), ": cannot be read as a directory: No such file or directory");
}

static void tensor_in_two_shards_is_refused(void **state) {
    (void)state;
    const char *directory = fresh_directory();
    one_tensor(directory, "a.safetensors", "same");
    one_tensor(directory, "b.safetensors", "same");
    pot_shards *shards = NULL;
    pot_err err;
    assert_int_equal(pot_shards_open(&shards, directory, &err), POT_FORMAT);
    char one[256], other[256];
    snprintf(one, sizeof one, "tensor same stands in %s/a.safetensors and in %s/b.safetensors", directory, directory);
    snprintf(other, sizeof other, "tensor same stands in %s/b.safetensors and in %s/a.safetensors", directory,
             directory);
    if (strcmp(err.text, one) && strcmp(err.text, other)) fail_msg("says %s", err.text);
}

/* Every allocation on the way fails once; the leak checker sees what an error path forgets. */
static void memory_may_end_anywhere(void **state) {
    (void)state;
    const char *directory = "tests/fixtures/experts256", *out = in_scratch("memory.safetensors");
    const pot_tensor_out tensor = {.name = "t", .dtype = POT_DTYPE_F32, .rank = 1, .shape = {4}, .data = (float[4]){0}};
    pot_status s = POT_NO_MEMORY;
    uint64_t nth = 1;
    for (; s != POT_OK && nth < 1000; nth++) {
        pot_shards *shards = NULL;
        pot_err err = {0};
        pot_mem_fail_at(nth);
        s = pot_shards_open(&shards, directory, &err);
        pot_mem_fail_at(0);
        if (s == POT_OK) {
            pot_shards_close(shards);
        } else {
            assert_int_equal(s, POT_NO_MEMORY);
            assert_null(shards);
        }
    }
    assert_int_equal(s, POT_OK);
    assert_true(nth > 10);
    s = POT_NO_MEMORY;
    for (nth = 1; s != POT_OK && nth < 100; nth++) {
        pot_mem_fail_at(nth);
        s = pot_safetensors_write(out, &tensor, 1, NULL);
        pot_mem_fail_at(0);
    }
    assert_int_equal(s, POT_OK);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(file_reads_back_as_written),
        cmocka_unit_test(tensor_over_two_gigabytes_is_read),
        cmocka_unit_test(hash_is_of_names_dtypes_and_shapes),
        cmocka_unit_test(header_is_refused_with_the_reason),
        cmocka_unit_test(header_is_accepted),
        cmocka_unit_test(header_length_is_bounded),
        cmocka_unit_test(file_cut_off_anywhere_is_refused),
        cmocka_unit_test(damaged_bytes_never_crash),
        cmocka_unit_test(missing_shard_is_named_and_counted),
        cmocka_unit_test(index_is_checked),
        cmocka_unit_test(only_the_models_files_are_read),
        cmocka_unit_test(tensor_in_two_shards_is_refused),
        cmocka_unit_test(memory_may_end_anywhere),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
