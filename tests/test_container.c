/* model/container*: what is written is what a checkpoint packs to, byte for byte; nothing that is cut, changed, foreign or made up gets
 * past opening or checking without a sentence. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/file.h"
#include "common/json.h"
#include "common/mem.h"
#include "model/container_layout.h"

#define FIXTURE(name) "tests/fixtures/" name

enum { MAX_FILES = 64, MAX_PATH = 256, MAX_TEXT = 1 << 20 };

static char scratch[64];

static int setup(void **state) {
    (void)state;
    strcpy(scratch, "/tmp/potluck-test-XXXXXX");
    return mkdtemp(scratch) ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", scratch);
    return system(command);
}

/* ---- making one ------------------------------------------------------------------------------------------------------------ */

typedef struct made {
    char directory[MAX_PATH / 2];
    pot_model *source;
    pot_container_file files[MAX_FILES];
    uint32_t n;
} made;

static const char *in(const char *directory, const char *name) {
    static char path[4][MAX_PATH];
    static unsigned turn;
    char *p = path[turn++ % 4];
    snprintf(p, MAX_PATH, "%s/%s", directory, name);
    return p;
}

static void copy_file(const char *from, const char *to) {
    pot_buffer data = {0};
    pot_err err;
    if (pot_file_read(&data, from, UINT32_MAX, &err) || pot_file_write(to, data.data, data.bytes, &err))
        fail_msg("%s", err.text);
    pot_buffer_free(&data);
}

static pot_model *must_open(const char *directory, const pot_format_policy *policy) {
    pot_model *m = NULL;
    pot_err err;
    if (pot_model_open(&m, directory, policy ? policy : &pot_format_policy_default, &err)) fail_msg("%s", err.text);
    return m;
}

/* A wish for nothing in particular: what fits every container. */
static const pot_format_policy ANY = {0};

static void write_manifest(const made *c) {
    pot_buffer text = {0};
    pot_err err;
    if (pot_container_manifest(&text, c->source, "a \"source\"", c->files, c->n, &err) ||
        pot_file_write(in(c->directory, POT_CONTAINER_MANIFEST), text.data, text.bytes, &err))
        fail_msg("%s", err.text);
    pot_buffer_free(&text);
}

static void make(made *c, const char *source, const pot_format_policy *policy, int threads) {
    static int serial;
    *c = (made){.source = must_open(source, policy)};
    snprintf(c->directory, sizeof c->directory, "%s/c%d", scratch, serial++);
    assert_int_equal(mkdir(c->directory, 0777), 0);
    copy_file(in(source, "config.json"), in(c->directory, "config.json"));
    c->n = pot_container_files(c->files, MAX_FILES, c->source);
    assert_true(c->n <= MAX_FILES);
    for (uint32_t i = 0; i < c->n; i++) {
        const uint64_t planned = c->files[i].bytes;
        pot_err err;
        if (pot_container_write(&c->files[i], in(c->directory, c->files[i].name), c->source, threads, NULL, NULL, &err))
            fail_msg("%s", err.text);
        assert_int_equal(c->files[i].bytes, planned);
    }
    write_manifest(c);
}

static void drop(made *c) {
    pot_model_close(c->source);
    c->source = NULL;
}

static void refuse_with(const char *directory, pot_status status, const pot_format_policy *policy, const char *part) {
    pot_model *m = NULL;
    pot_err err;
    pot_status s = pot_model_open(&m, directory, policy, &err);
    if (s == POT_OK) {
        pot_model_close(m);
        fail_msg("opened, although: %s", part);
    }
    if (s != status || !strstr(err.text, part)) fail_msg("status %d: %s\nexpected %d: %s", s, err.text, status, part);
}

static void refuse(const char *directory, pot_status status, const char *part) {
    refuse_with(directory, status, &ANY, part);
}

/* ---- equal to the source --------------------------------------------------------------------------------------------------- */

static void compare_chunks(const pot_model *a, const pot_model *b, uint32_t layer) {
    const pot_layer_shape *shape = &pot_model_layer_shapes(a)[layer];
    for (uint32_t e = 0; e < pot_layer_experts(shape); e++) {
        const pot_ffn_shape *ffn = pot_model_expert_shape(a, layer, e), *other = pot_model_expert_shape(b, layer, e);
        assert_memory_equal(ffn, other, sizeof *ffn);
        for (uint32_t c = 0; c < ffn->n_chunks; c++) {
            const size_t bytes = pot_chunk_bytes(ffn, c);
            uint8_t *left = pot_alloc_aligned(bytes), *right = pot_alloc_aligned(bytes);
            pot_err err;
            pot_chunk_place place;
            memset(right, 0xa5, bytes);
            if (pot_model_load_chunk(left, a, layer, e, c, &err) || pot_model_load_chunk(right, b, layer, e, c, &err) ||
                pot_model_chunk_place(&place, b, layer, e, c, &err))
                fail_msg("%s", err.text);
            assert_memory_equal(left, right, bytes);
            assert_int_equal(place.offset % 4096, 0);
            assert_true(place.checksum == pot_hash64(left, bytes));
            pot_free(left);
            pot_free(right);
        }
    }
}

static void compare_dense(const pot_model *a, const pot_model *b, uint32_t layer) {
    for (int r = 0; r < POT_ROLE_COUNT; r++) {
        const pot_role role = (pot_role)r;
        if (pot_role_is_ffn(role) || !pot_role_exists(pot_model_config(a), role, layer)) continue;
        const uint64_t bytes = pot_model_dense_bytes(a, role, layer);
        assert_int_equal(pot_model_dense_bytes(b, role, layer), bytes);
        uint8_t *left = pot_alloc_aligned(bytes), *right = pot_alloc_aligned(bytes);
        pot_err err;
        memset(right, 0xa5, bytes);
        if (pot_model_load_dense(left, a, role, layer, 2, &err) || pot_model_load_dense(right, b, role, layer, 1, &err))
            fail_msg("%s", err.text);
        assert_memory_equal(left, right, bytes);
        pot_free(left);
        pot_free(right);
    }
}

static void compare(const made *c) {
    pot_model *packed = must_open(c->directory, &ANY);
    assert_true(pot_model_is_packed(packed));
    assert_false(pot_model_is_packed(c->source));
    assert_int_equal(pot_model_layers(packed), pot_model_layers(c->source));
    assert_int_equal(pot_model_coordinator_bytes(packed), pot_model_coordinator_bytes(c->source));
    for (uint32_t layer = 0; layer < pot_model_layers(c->source); layer++) {
        assert_int_equal(pot_model_grid(packed, layer), pot_model_grid(c->source, layer));
        compare_chunks(c->source, packed, layer);
        compare_dense(c->source, packed, layer);
    }
    pot_model_close(packed);
}

static void every_checkpoint_is_kept_as_it_packs(void **state) {
    (void)state;
    static const char *const fixtures[] = {FIXTURE("article4"),   FIXTURE("eps"),   FIXTURE("fp8"),
                                           FIXTURE("indexshare"), FIXTURE("mxfp4"), "demo"};
    for (size_t i = 0; i < sizeof fixtures / sizeof fixtures[0]; i++) {
        made c;
        make(&c, fixtures[i], NULL, 2);
        compare(&c);
        for (uint32_t f = 0; f < c.n; f++) {
            pot_err err;
            if (pot_container_check(&c.files[f], in(c.directory, c.files[f].name), c.source, 2, false, NULL, &err))
                fail_msg("%s", err.text);
        }
        drop(&c);
    }
}

static void every_format_is_kept(void **state) {
    (void)state;
    for (int f = POT_FORMAT_NONE + 1; f < POT_FORMAT_COUNT; f++) {
        const pot_format format = (pot_format)f;
        const pot_format_policy policy = {.experts = format, .dense = format, .head = format};
        made c;
        make(&c, FIXTURE("eps"), &policy, 1);
        compare(&c);
        pot_model_close(must_open(c.directory, &policy)); /* the same wish is granted */
        drop(&c);
    }
}

/* ---- the files ------------------------------------------------------------------------------------------------------------- */

static void threads_do_not_show_in_the_files(void **state) {
    (void)state;
    made a, b;
    make(&a, FIXTURE("mxfp4"), NULL, 1);
    make(&b, FIXTURE("mxfp4"), NULL, 3);
    for (uint32_t i = 0; i <= a.n; i++) {
        const char *name = i < a.n ? a.files[i].name : POT_CONTAINER_MANIFEST;
        pot_buffer left = {0}, right = {0};
        pot_err err;
        if (pot_file_read(&left, in(a.directory, name), UINT32_MAX, &err) ||
            pot_file_read(&right, in(b.directory, name), UINT32_MAX, &err))
            fail_msg("%s", err.text);
        assert_int_equal(left.bytes, right.bytes);
        assert_memory_equal(left.data, right.data, left.bytes);
        pot_buffer_free(&left);
        pot_buffer_free(&right);
    }
    drop(&a);
    drop(&b);
}

/* Any reader of safetensors takes them: no gaps, no overlap, nothing behind; chunks that are smaller than the place are followed by
 * zeros. */
static void files_are_plain_safetensors(void **state) {
    (void)state;
    made c;
    make(&c, FIXTURE("indexshare"), NULL, 2);
    for (uint32_t i = 0; i < c.n; i++) {
        pot_buffer file = {0};
        pot_err err;
        if (pot_file_read(&file, in(c.directory, c.files[i].name), UINT32_MAX, &err) ||
            pot_safetensors_check((const uint8_t *)file.data, file.bytes, file.bytes, c.files[i].name, &err))
            fail_msg("%s", err.text);
        pot_shards *shards;
        if (pot_shards_open_file(&shards, in(c.directory, c.files[i].name), &err)) fail_msg("%s", err.text);
        uint64_t held = 0, header = 0;
        for (int b = 7; b >= 0; b--) header = header << 8 | (uint8_t)file.data[b];
        for (uint32_t t = 0; t < pot_shards_tensors(shards); t++) held += pot_shards_at(shards, t)->bytes;
        assert_int_equal((header + 8) % 4096, 0);
        assert_int_equal(held + header + 8, file.bytes);
        pot_shards_close(shards);
        pot_buffer_free(&file);
    }
    pot_shards *shards;
    pot_err err;
    if (pot_shards_open_file(&shards, in(c.directory, "experts-004.safetensors"), &err)) fail_msg("%s", err.text);
    const pot_ffn_shape *shape = pot_model_routed(c.source, 4);
    const pot_tensor *t = pot_shards_find(shards, "model.layers.4.mlp.experts.1.chunks");
    assert_non_null(t);
    assert_int_equal(t->shape[0], shape->n_chunks);
    assert_int_equal(t->shape[1], pot_chunk_stride(shape));
    for (uint32_t chunk = 0; chunk < shape->n_chunks; chunk++)
        for (uint64_t b = pot_chunk_bytes(shape, chunk); b < t->shape[1]; b++)
            assert_int_equal(t->data[chunk * t->shape[1] + b], 0);
    assert_non_null(pot_shards_find(shards, "model.layers.4.mlp.shared_experts.chunks"));
    pot_shards_close(shards);
    drop(&c);
}

static bool stop(void *context, uint64_t bytes) {
    *(uint64_t *)context += bytes;
    return false;
}

static void writing_ends_in_order(void **state) {
    (void)state;
    pot_model *m = must_open(FIXTURE("eps"), NULL);
    pot_container_file files[MAX_FILES];
    pot_container_files(files, MAX_FILES, m);
    char path[MAX_PATH];
    snprintf(path, sizeof path, "%s/alone", scratch);
    pot_err err;
    for (int experts = 0; experts < 2; experts++) { /* in this order they are in the list */
        uint64_t seen = 0;
        const pot_container_watcher watcher = {.wrote = stop, .context = &seen};
        assert_int_equal(pot_container_write(&files[experts], path, m, 2, NULL, &watcher, &err), POT_CANCELLED);
        assert_true(seen > 0);
        unlink(path);
        assert_int_equal(pot_container_write(&files[experts], path, m, 2, NULL, NULL, &err), POT_OK);
        assert_int_equal(pot_container_write(&files[experts], path, m, 2, NULL, NULL, &err),
                         POT_IO); /* never over one */
        assert_non_null(strstr(err.text, "cannot be created"));
        unlink(path);
    }
    pot_model_close(m);
}

/* A file may not grow beyond 8 KiB, as on a disk that is full: in a process of its own, for the limit stays. */
static void full_disk_is_told(void **state) {
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        pot_model *m;
        pot_err err;
        pot_container_file files[MAX_FILES];
        char path[MAX_PATH];
        const struct rlimit limit = {8192, 8192};
        int bad = 1;
        snprintf(path, sizeof path, "%s/full", scratch);
        signal(SIGXFSZ, SIG_IGN);
        if (pot_model_open(&m, FIXTURE("eps"), &pot_format_policy_default, &err) == POT_OK) {
            pot_container_files(files, MAX_FILES, m);
            setrlimit(RLIMIT_FSIZE, &limit);
            bad = 0;
            for (int i = 0; i < 2; i++) {
                if (pot_container_write(&files[i], path, m, 1, NULL, NULL, &err) != POT_IO || !strstr(err.text, path))
                    bad = 2;
                unlink(path);
            }
        }
        _exit(bad);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* ---- what is not there ----------------------------------------------------------------------------------------------------- */

static void experts_of_others_may_be_missing(void **state) {
    (void)state;
    made c;
    make(&c, FIXTURE("eps"), NULL, 2);
    pot_model *all = must_open(c.directory, &ANY);
    assert_int_equal(unlink(in(c.directory, "experts-003.safetensors")), 0);
    pot_model *part = must_open(c.directory, &ANY);
    const pot_hash left = pot_model_fingerprint(all), right = pot_model_fingerprint(part);
    assert_true(pot_hash_equal(left, right));
    assert_non_null(pot_model_chunk_file(part, 4));
    assert_null(pot_model_chunk_file(part, 3));
    const size_t bytes = pot_chunk_bytes(pot_model_expert_shape(part, 3, 0), 0);
    uint8_t *out = pot_alloc_aligned(bytes);
    pot_chunk_place place;
    pot_err err;
    assert_int_equal(pot_model_chunk_place(&place, part, 3, 0, 0, &err), POT_NOT_FOUND);
    assert_non_null(strstr(err.text, "experts-003.safetensors"));
    assert_int_equal(pot_model_load_chunk(out, part, 3, 0, 0, &err), POT_NOT_FOUND);
    /* Gone after it was opened. */
    assert_int_equal(unlink(in(c.directory, "experts-004.safetensors")), 0);
    assert_int_equal(pot_model_load_chunk(out, part, 4, 0, 0, &err), POT_IO);
    assert_non_null(strstr(err.text, "experts-004.safetensors"));
    pot_free(out);
    pot_model_close(all);
    pot_model_close(part);
    drop(&c);
}

static void left_out_chunks_are_holes(void **state) {
    (void)state;
    pot_model *m = must_open(FIXTURE("eps"), NULL);
    pot_map *map;
    pot_err err;
    if (pot_map_make(&map, "random:3", 1, 3, pot_model_layer_shapes(m), pot_model_layers(m), &err))
        fail_msg("%s", err.text);
    pot_container_file files[MAX_FILES];
    const uint32_t n = pot_container_files(files, MAX_FILES, m);
    char path[MAX_PATH];
    uint32_t with_holes = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!files[i].experts) continue;
        const pot_container_filter filter = {map, 1};
        snprintf(path, sizeof path, "%s/holes-%u", scratch, i);
        if (pot_container_write(&files[i], path, m, 2, &filter, NULL, &err)) fail_msg("%s", err.text);
        assert_int_equal(pot_container_check(&files[i], path, m, 2, true, NULL, &err), POT_OK);
        if (pot_container_check(&files[i], path, m, 2, false, NULL, &err) != POT_OK) {
            assert_non_null(strstr(err.text, " chunk "));
            with_holes++;
        }
    }
    assert_true(with_holes > 0);
    pot_map_free(map);
    pot_model_close(m);
}

/* ---- damage ---------------------------------------------------------------------------------------------------------------- */

static void flip(const char *path, uint64_t offset) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    fseek(f, (long)offset, SEEK_SET);
    int byte = fgetc(f);
    fseek(f, (long)offset, SEEK_SET);
    fputc(byte ^ 4, f);
    assert_int_equal(fclose(f), 0);
}

static void flipped_bit_of_a_chunk_is_named(void **state) {
    (void)state;
    made c;
    make(&c, FIXTURE("eps"), NULL, 2);
    pot_model *m = must_open(c.directory, &ANY);
    const char *path = in(c.directory, "experts-003.safetensors");
    pot_chunk_place place;
    pot_err err;
    assert_int_equal(pot_model_chunk_place(&place, m, 3, 1, 1, &err), POT_OK);
    flip(path, place.offset + 100);
    const pot_container_file *file = &c.files[3 * 2 + 1];
    assert_string_equal(file->name, "experts-003.safetensors");
    for (int own = 0; own < 2; own++) { /* by the checkpoint, by the container itself */
        assert_int_equal(pot_container_check(file, path, own ? m : c.source, 2, false, NULL, &err), POT_FORMAT);
        assert_non_null(strstr(err.text, path));
        assert_non_null(strstr(err.text, "1 damaged: model.layers.3.mlp.experts.1.chunks chunk 1"));
    }
    uint8_t *out = pot_alloc_aligned(pot_chunk_bytes(pot_model_expert_shape(m, 3, 1), 1));
    assert_int_equal(pot_model_load_chunk(out, m, 3, 1, 1, &err), POT_IO);
    assert_non_null(strstr(err.text, "layer 3 expert 1 chunk 1"));
    assert_non_null(strstr(err.text, path));
    pot_free(out);
    pot_model_close(m);
    drop(&c);
}

static void flipped_bit_of_a_dense_tensor_is_named(void **state) {
    (void)state;
    made c;
    make(&c, FIXTURE("eps"), NULL, 2);
    pot_model *m = must_open(c.directory, &ANY);
    const pot_file_shape shape = pot_model_file_shape(m, false, 2);
    pot_file_layout layout;
    pot_err err;
    assert_int_equal(pot_file_layout_make(&layout, &shape, &err), POT_OK);
    for (uint32_t t = 0; t < layout.n; t++) {
        const pot_file_tensor *tensor = &layout.tensors[t];
        const char *path = in(c.directory, "dense-002.safetensors");
        const uint64_t at = layout.header_bytes + tensor->offset + tensor->bytes - 1;
        char name[POT_TENSOR_NAME];
        pot_file_tensor_name(name, &shape, tensor);
        uint8_t *out = pot_alloc_aligned(tensor->bytes);
        flip(path, at);
        assert_int_equal(pot_container_check(&c.files[2 * 2], path, m, 1, false, NULL, &err), POT_FORMAT);
        assert_non_null(strstr(err.text, name));
        assert_int_equal(pot_model_load_dense(out, m, tensor->role, 2, 1, &err), POT_IO);
        assert_non_null(strstr(err.text, name));
        flip(path, at);
        assert_int_equal(pot_model_load_dense(out, m, tensor->role, 2, 1, &err), POT_OK);
        pot_free(out);
    }
    pot_file_layout_free(&layout);
    pot_model_close(m);
    drop(&c);
}

/* Here and there in a header and in the checksums. */
static void changed_header_or_checksums_are_refused(void **state) {
    (void)state;
    made c;
    make(&c, FIXTURE("eps"), NULL, 2);
    for (int experts = 0; experts < 2; experts++) {
        const pot_file_shape shape = pot_model_file_shape(c.source, experts, 3);
        pot_file_layout layout;
        pot_err err;
        assert_int_equal(pot_file_layout_make(&layout, &shape, &err), POT_OK);
        const char *path = in(c.directory, experts ? "experts-003.safetensors" : "dense-003.safetensors");
        const uint64_t sums = pot_file_checksum_bytes(&layout);
        for (uint64_t i = 0; i < layout.header_bytes + sums; i += i < layout.header_bytes ? 211 : 3) {
            const bool in_header = i < layout.header_bytes;
            const uint64_t at = in_header ? i : layout.header_bytes + layout.checksums + (i - layout.header_bytes);
            flip(path, at);
            refuse(c.directory, POT_FORMAT,
                   in_header ? "its header is not that" : "header and checksums have the hash");
            flip(path, at);
        }
        pot_file_layout_free(&layout);
    }
    pot_model_close(must_open(c.directory, &ANY));
    drop(&c);
}

static void cut_and_grown_files_are_refused(void **state) {
    (void)state;
    made c;
    make(&c, FIXTURE("eps"), NULL, 2);
    for (uint32_t i = 0; i < c.n; i++) {
        const char *path = in(c.directory, c.files[i].name);
        pot_buffer kept = {0};
        pot_err err;
        if (pot_file_read(&kept, path, UINT32_MAX, &err)) fail_msg("%s", err.text);
        const uint64_t sizes[] = {0, 7, 8, 4095, kept.bytes - 1, kept.bytes + 1};
        for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
            assert_int_equal(truncate(path, (off_t)sizes[k]), 0);
            refuse(c.directory, POT_FORMAT, "was it cut short or replaced?");
            assert_int_equal(pot_container_check(&c.files[i], path, c.source, 1, false, NULL, &err), POT_FORMAT);
        }
        if (pot_file_write(path, kept.data, kept.bytes, &err)) fail_msg("%s", err.text);
        pot_buffer_free(&kept);
    }
    pot_model_close(must_open(c.directory, &ANY));
    drop(&c);
}

/* Two conversions of one checkpoint with other formats: files of the one do not get into the other. */
static void files_of_another_conversion_are_refused(void **state) {
    (void)state;
    const pot_format_policy q8 = {.experts = POT_FORMAT_Q8_ROW}, q4 = {.experts = POT_FORMAT_Q4_ROW};
    const pot_format_policy searched = {.experts = POT_FORMAT_Q4_ROW, .rounding = POT_ROUNDING_SEARCH};
    made a, b, s;
    make(&a, FIXTURE("eps"), &q8, 1);
    make(&b, FIXTURE("eps"), &q4, 1);
    make(&s, FIXTURE("eps"), &searched, 1);
    copy_file(in(a.directory, "experts-003.safetensors"), in(b.directory, "experts-003.safetensors"));
    refuse(b.directory, POT_FORMAT, "experts-003.safetensors");
    /* Same header, other weights. */
    copy_file(in(s.directory, "experts-003.safetensors"), in(b.directory, "experts-003.safetensors"));
    refuse(b.directory, POT_FORMAT, "is another conversion's");
    /* Another layer's. */
    copy_file(in(b.directory, "experts-004.safetensors"), in(b.directory, "experts-003.safetensors"));
    refuse(b.directory, POT_FORMAT, "experts-003.safetensors");
    drop(&a);
    drop(&b);
    drop(&s);
}

static void other_wishes_are_refused(void **state) {
    (void)state;
    made c;
    make(&c, FIXTURE("eps"), NULL, 1);
    const pot_format_policy experts = {.experts = POT_FORMAT_Q4_ROW}, dense = {.dense = POT_FORMAT_BF16},
                            head = {.head = POT_FORMAT_F32}, reference = {.reference = true};
    refuse_with(c.directory, POT_USAGE, &experts, "--experts q4");
    refuse_with(c.directory, POT_USAGE, &dense, "--dense bf16");
    refuse_with(c.directory, POT_USAGE, &head, "--head f32");
    refuse_with(c.directory, POT_USAGE, &reference, "--reference");
    pot_model_close(must_open(c.directory, &pot_format_policy_default));
    drop(&c);
}

/* ---- potluck.json that somebody made up ------------------------------------------------------------------------------------ */

typedef struct edit {
    const char *from, *to;
    const char *part; /* of the sentence */
} edit;

/* The first place of `from` becomes `to`. */
static void put_edited(const made *c, const pot_buffer *text, const char *from, const char *to) {
    const char *place = strstr(text->data, from);
    if (!place) fail_msg("there is no %s", from);
    pot_buffer out = {0};
    pot_err err;
    pot_buffer_append(&out, text->data, (size_t)(place - text->data));
    pot_buffer_text(&out, to);
    pot_buffer_text(&out, place + strlen(from));
    if (pot_file_write(in(c->directory, POT_CONTAINER_MANIFEST), out.data, out.bytes, &err)) fail_msg("%s", err.text);
    pot_buffer_free(&out);
}

/* Without fsync: it is written a hundred times. */
static void put_manifest(const made *c, const char *text, size_t bytes) {
    FILE *f = fopen(in(c->directory, POT_CONTAINER_MANIFEST), "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

static void read_manifest_text(pot_buffer *text, const made *c) {
    pot_err err;
    if (pot_file_read(text, in(c->directory, POT_CONTAINER_MANIFEST), MAX_TEXT, &err)) fail_msg("%s", err.text);
    pot_buffer_byte(text, 0);
}

static void made_up_manifests_are_refused(void **state) {
    (void)state;
    static const edit edits[] = {
        {"\"potluck\": 1", "\"potluck\": 2", "a newer potluck made it"},
        {"\"potluck\": 1", "\"potluck\": -1", "`potluck`"},
        {"\"potluck\": 1, ", "", "`potluck`"},
        {"\"mtp_layers\": 0", "\"mtp_layers\": 1", "`mtp_layers`"},
        {"\"mtp_layers\": 0", "\"mtp_layers\": 4294967296", "`mtp_layers`"},
        {"\"fingerprint\": \"", "\"fingerprint\": \"x", "32 hexadecimal digits"},
        {"\"fingerprint\"", "\"fingerprints\"", "`fingerprint`"},
        {"\"layers\": [", "\"layers\": [{},", "`layers` has"},
        {"\"layers\": [", "\"layers\": [], \"l\": [", "`layers` has 0"},
        {"\"layers\": [", "\"layers\": 3, \"l\": [", "`layers` has 0"},
        {"{\"layer\": 0, ", "{\"layer\": 1, ", "`layer`"},
        {"{\"layer\": 0, ", "{", "`layer`"},
        {"\"grid\": 24", "\"grid\": 0", "`grid`"},
        {"\"grid\": 24", "\"grid\": 63", "`grid`"},
        {"\"grid\": 24", "\"grid\": 23", "fingerprint"},
        {"\"common\": {", "\"common\": [], \"other\": {", "`common`"},
        {"\"routed\": {", "\"routes\": {", "`routed`"},
        {"\"chunk\": 32", "\"chunk\": 64", "in chunks of"},
        {"\"inner\": ", "\"inner\": 1", "inner width"},
        {"\"inner\": ", "\"inner\": 0, \"i\": ", "`inner`"},
        {"\"gate_up\": \"", "\"gate_up\": \"x", "no weight format"},
        {"\"gate_up\": \"", "\"gate_up\": 3, \"g\": \"", "`gate_up`"},
        {"\"formats\": {", "\"formats\": [], \"f\": {", "`formats`"},
        {"\"model.layers.0.self_attn.o_proj.weight\": \"q4g64\"",
         "\"model.layers.0.self_attn.o_proj.weight\": \"none\"", "no weight format"},
        {"\"model.layers.0.self_attn.o_proj.weight\": \"q4g64\"",
         "\"model.layers.0.self_attn.o_proj.weight\": \"q4g32\"", "dense-000.safetensors"},
        {"\"model.layers.0.self_attn.o_proj.weight\"", "\"model.layers.0.self_attn.oh_proj.weight\"", "o_proj"},
        {"\"files\": [", "\"files\": [{},", "`files` has"},
        {"\"name\": \"dense-000.safetensors\"", "\"name\": \"../../etc/passwd\"",
         "`dense-000.safetensors` was expected"},
        {"\"bytes\": ", "\"bytes\": -", "`bytes`"},
        {"\"bytes\": ", "\"bytes\": 1", "was it cut short or replaced?"},
        {"\"bytes\": ", "\"bytes\": \"x\", \"b\": ", "`bytes`"},
        {"\"hash\": \"", "\"hash\": \" ", "32 hexadecimal digits"},
        {"]}\n", "]}x", "not valid JSON"},
    };
    made c;
    make(&c, FIXTURE("eps"), NULL, 1);
    pot_buffer text = {0};
    read_manifest_text(&text, &c);
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) {
        put_edited(&c, &text, edits[i].from, edits[i].to);
        refuse(c.directory, POT_FORMAT, edits[i].part);
    }
    pot_buffer_free(&text);
    drop(&c);
}

/* Some byte changed: refused, or of no importance (spaces, the source's name). */
static void no_byte_of_the_manifest_passes(void **state) {
    (void)state;
    made c;
    make(&c, FIXTURE("eps"), NULL, 1);
    pot_model *whole = must_open(c.directory, &ANY);
    pot_buffer text = {0};
    read_manifest_text(&text, &c);
    const size_t bytes = text.bytes - 1;
    static const char others[] = {'9', '"', ' '};
    for (size_t i = 0; i < bytes; i += 11) {
        const char was = text.data[i];
        pot_err err;
        pot_model *m = NULL;
        text.data[i] = others[i / 11 % 3];
        put_manifest(&c, text.data, bytes);
        pot_status s = pot_model_open(&m, c.directory, &ANY, &err);
        if (s == POT_OK) {
            const pot_hash a = pot_model_fingerprint(m), b = pot_model_fingerprint(whole);
            assert_true(pot_hash_equal(a, b));
            pot_model_close(m);
        } else {
            assert_int_equal(s, POT_FORMAT);
            assert_true(strlen(err.text) > 10);
        }
        text.data[i] = was;
    }
    for (size_t cut = 0; cut < bytes; cut += 307) {
        put_manifest(&c, text.data, cut);
        refuse(c.directory, POT_FORMAT, POT_CONTAINER_MANIFEST);
    }
    pot_buffer_free(&text);
    pot_model_close(whole);
    drop(&c);
}

static void another_config_is_refused(void **state) {
    (void)state;
    made c;
    make(&c, FIXTURE("eps"), NULL, 1);
    json_t *config = NULL;
    pot_err err;
    if (pot_json_read(&config, in(c.directory, "config.json"), MAX_TEXT, &err)) fail_msg("%s", err.text);
    json_object_set_new(config, "rms_norm_eps", json_real(0.25));
    assert_int_equal(json_dump_file(config, in(c.directory, "config.json"), 0), 0);
    refuse(c.directory, POT_FORMAT, "config.json or potluck.json was changed");
    json_decref(config);
    drop(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_checkpoint_is_kept_as_it_packs),
        cmocka_unit_test(every_format_is_kept),
        cmocka_unit_test(threads_do_not_show_in_the_files),
        cmocka_unit_test(files_are_plain_safetensors),
        cmocka_unit_test(writing_ends_in_order),
        cmocka_unit_test(full_disk_is_told),
        cmocka_unit_test(experts_of_others_may_be_missing),
        cmocka_unit_test(left_out_chunks_are_holes),
        cmocka_unit_test(flipped_bit_of_a_chunk_is_named),
        cmocka_unit_test(flipped_bit_of_a_dense_tensor_is_named),
        cmocka_unit_test(changed_header_or_checksums_are_refused),
        cmocka_unit_test(cut_and_grown_files_are_refused),
        cmocka_unit_test(files_of_another_conversion_are_refused),
        cmocka_unit_test(other_wishes_are_refused),
        cmocka_unit_test(made_up_manifests_are_refused),
        cmocka_unit_test(no_byte_of_the_manifest_passes),
        cmocka_unit_test(another_config_is_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
