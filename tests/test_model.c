/* model/model: every fixture opens, its values are those of the file by decoders of this test's own, and formats, chunks and bytes
 * are as promised.  What a checkpoint can get wrong is tried on variants: a fixture's tensors with some dropped, added or
 * stored otherwise, written to a scratch directory. */
#include <math.h>
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
#include "common/json.h"
#include "common/mem.h"
#include "kernels/convert.h"
#include "model/model.h"
#include "model/safetensors.h"

#define FIXTURE(name) "tests/fixtures/" name

static const char *const directories[] = {
    FIXTURE("indexshare"), FIXTURE("experts256"), FIXTURE("fp8"), FIXTURE("mxfp4"),
    FIXTURE("eps"),        FIXTURE("article4"),   "demo"};
enum { N_DIRECTORIES = sizeof directories / sizeof directories[0] };

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

static pot_model *must_open(const char *directory, const pot_format_policy *policy) {
    pot_model *model = NULL;
    pot_err err;
    if (pot_model_open(&model, directory, policy ? policy : &pot_format_policy_default, &err)) fail_msg("%s", err.text);
    return model;
}

/* ---- variants of fixtures ---------------------------------------------------------------------------------------------- */

enum { VARIANT_MAX = 1024 };

typedef struct variant {
    pot_shards *shards; /* the fixture's */
    json_t *config;
    pot_tensor_out tensors[VARIANT_MAX];
    uint32_t n;
    void *owned[64];
    uint32_t n_owned;
    char directory[96];
} variant;

static variant v; /* the one in work */

static void begin(const char *fixture) {
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
    assert_true(v.n < VARIANT_MAX);
    for (uint32_t i = 0; i < v.n; i++) {
        const pot_tensor *t = pot_shards_at(v.shards, i);
        v.tensors[i] = (pot_tensor_out){.name = t->name, .dtype = t->dtype, .rank = t->rank, .data = t->data};
        memcpy(v.tensors[i].shape, t->shape, sizeof t->shape);
    }
}

static void drop(const char *name) {
    for (uint32_t i = 0; i < v.n; i++)
        if (!strcmp(v.tensors[i].name, name)) {
            v.tensors[i] = v.tensors[--v.n];
            return;
        }
    fail_msg("the fixture has no tensor %s", name);
}

static void drop_prefix(const char *prefix) {
    for (uint32_t i = 0; i < v.n;)
        if (!strncmp(v.tensors[i].name, prefix, strlen(prefix)))
            v.tensors[i] = v.tensors[--v.n];
        else
            i++;
}

/* Adds or replaces a tensor; all its bytes are `fill`.  rows 0: a vector of `cols`. */
static void put(const char *name, pot_dtype dtype, uint64_t rows, uint64_t cols, uint8_t fill) {
    for (uint32_t i = 0; i < v.n; i++)
        if (!strcmp(v.tensors[i].name, name)) v.tensors[i] = v.tensors[--v.n];
    size_t bytes = (rows ? rows : 1) * cols * pot_dtype_bytes(dtype);
    uint8_t *data = malloc(bytes);
    assert_non_null(data);
    memset(data, fill, bytes);
    assert_true(v.n_owned < 64 && v.n < VARIANT_MAX);
    v.owned[v.n_owned++] = data;
    v.tensors[v.n++] =
        rows ? (pot_tensor_out){.name = name, .dtype = dtype, .rank = 2, .shape = {rows, cols}, .data = data}
             : (pot_tensor_out){.name = name, .dtype = dtype, .rank = 1, .shape = {cols}, .data = data};
}

static void set_config(const char *key, json_t *value) { json_object_set_new(v.config, key, value); }

static void write_tensors(const char *file, uint32_t from, uint32_t to) {
    char path[160];
    pot_err err;
    snprintf(path, sizeof path, "%s/%s", v.directory, file);
    if (pot_safetensors_write(path, v.tensors + from, to - from, &err)) fail_msg("%s", err.text);
}

static void write_config(void) {
    char path[160], *text = json_dumps(v.config, 0);
    snprintf(path, sizeof path, "%s/config.json", v.directory);
    assert_int_equal(pot_file_write(path, text, strlen(text), NULL), POT_OK);
    free(text);
}

static void end(void) {
    for (uint32_t i = 0; i < v.n_owned; i++) free(v.owned[i]);
    json_decref(v.config);
    pot_shards_close(v.shards);
}

static pot_model *open_variant(const pot_format_policy *policy) {
    write_tensors("model.safetensors", 0, v.n);
    write_config();
    pot_model *model = must_open(v.directory, policy);
    end();
    return model;
}

/* Must be refused; the sentence begins with the file (or the directory) and goes on as given. */
static void refuse_variant(pot_status status, const char *sentence) {
    write_tensors("model.safetensors", 0, v.n);
    write_config();
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
    end();
}

/* ---- values ------------------------------------------------------------------------------------------------------------- */

static float element_of(const pot_tensor *t, uint64_t i) {
    uint16_t half;
    float f;
    switch (t->dtype) {
    case POT_DTYPE_F32: memcpy(&f, t->data + 4 * i, 4); return f;
    case POT_DTYPE_BF16: memcpy(&half, t->data + 2 * i, 2); return pot_f32_from_bf16(half);
    default: fail_msg("%s: dtype %s", t->name, pot_dtype_name(t->dtype)); return 0;
    }
}

/* Weight [row, col] of `name` as the layouts are described in docs/model.md, worked out a second time. */
static float weight_of(const pot_shards *shards, const char *name, uint32_t row, uint32_t col, uint32_t cols) {
    static const float e2m1[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6};
    char beside[192];
    const pot_tensor *t = pot_shards_find(shards, name);
    assert_non_null(t);
    if (t->dtype == POT_DTYPE_BF16 || t->dtype == POT_DTYPE_F32) return element_of(t, (uint64_t)row * cols + col);
    if (t->dtype == POT_DTYPE_F8_E4M3) {
        snprintf(beside, sizeof beside, "%s_scale_inv", name);
        uint8_t code = t->data[(uint64_t)row * cols + col];
        int exponent = code >> 3 & 15, mantissa = code & 7;
        float magnitude = exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
        float scale =
            element_of(pot_shards_find(shards, beside), (uint64_t)(row / 128) * ((cols + 127) / 128) + col / 128);
        return (code & 0x80 ? -magnitude : magnitude) * scale;
    }
    snprintf(beside, sizeof beside, "%s_scale", name);
    const pot_tensor *scale = pot_shards_find(shards, beside);
    if (scale) {
        uint8_t code = t->data[(uint64_t)row * (cols / 2) + col / 2] >> (col % 2 * 4) & 15;
        float power = ldexpf(1, scale->data[(uint64_t)row * (cols / 32) + col / 32] - 127);
        return (code & 8 ? -1.0f : 1.0f) * e2m1[code & 7] * power;
    }
    snprintf(beside, sizeof beside, "%s.qs", name);
    int code = t->data[(uint64_t)row * ((cols + 1) / 2) + col / 2] >> (col % 2 * 4) & 15;
    return (float)(code - 8) * element_of(pot_shards_find(shards, beside), row);
}

static void compare_matrix(const pot_model *model, const pot_shards *shards, pot_role role, uint32_t layer,
                           uint32_t expert, const char *name) {
    pot_stored stored;
    pot_err err;
    if (pot_model_matrix(&stored, model, role, layer, expert, &err)) fail_msg("%s", err.text);
    assert_string_equal(stored.name, name);
    float *row = malloc(stored.cols * sizeof *row);
    for (uint32_t k = 0; k < 5; k++) {
        uint32_t r = k * (stored.rows - 1) / 4;
        if (pot_stored_row(row, &stored, r, 0, stored.cols, &err)) fail_msg("%s", err.text);
        for (uint32_t col = 0; col < stored.cols; col++)
            if (row[col] != weight_of(shards, name, r, col, stored.cols))
                fail_msg("%s [%u, %u] is %g, the file has %g", name, r, col, (double)row[col],
                         (double)weight_of(shards, name, r, col, stored.cols));
    }
    free(row);
}

static void values_are_those_of_the_file(void **state) {
    (void)state;
    static const struct {
        pot_role role;
        const char *suffix;
    } matrices[] = {{POT_ROLE_Q_A, "self_attn.q_a_proj"},
                    {POT_ROLE_Q_B, "self_attn.q_b_proj"},
                    {POT_ROLE_KV_A, "self_attn.kv_a_proj_with_mqa"},
                    {POT_ROLE_KV_B, "self_attn.kv_b_proj"},
                    {POT_ROLE_O, "self_attn.o_proj"},
                    {POT_ROLE_INDEX_Q, "self_attn.indexer.wq_b"},
                    {POT_ROLE_INDEX_K, "self_attn.indexer.wk"},
                    {POT_ROLE_INDEX_WEIGHTS, "self_attn.indexer.weights_proj"},
                    {POT_ROLE_ROUTER, "mlp.gate"},
                    {POT_ROLE_SHARED_GATE, "mlp.shared_experts.gate_proj"},
                    {POT_ROLE_SHARED_DOWN, "mlp.shared_experts.down_proj"},
                    {POT_ROLE_DENSE_UP, "mlp.up_proj"},
                    {POT_ROLE_DENSE_DOWN, "mlp.down_proj"},
                    {POT_ROLE_EH_PROJ, "eh_proj"}};
    for (int d = 0; d < N_DIRECTORIES; d++) {
        pot_model *model = must_open(directories[d], NULL);
        const pot_config *c = pot_model_config(model);
        pot_shards *shards;
        assert_int_equal(pot_shards_open(&shards, directories[d], NULL), POT_OK);
        compare_matrix(model, shards, POT_ROLE_EMBED, 0, 0, "model.embed_tokens.weight");
        compare_matrix(model, shards, POT_ROLE_HEAD, 0, 0, "lm_head.weight");
        uint32_t compared = 0;
        for (uint32_t layer = 0; layer < pot_model_layers(model); layer++)
            for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
                char name[160];
                snprintf(name, sizeof name, "model.layers.%u.%s.weight", layer, matrices[i].suffix);
                bool indexer = strstr(name, ".indexer.") && !c->layer_is_full[layer];
                if (!pot_shards_find(shards, name) || indexer) continue;
                compare_matrix(model, shards, matrices[i].role, layer, 0, name);
                compared++;
            }
        assert_true(compared >= 8 * c->n_layers);
        pot_shards_close(shards);
        pot_model_close(model);
    }
}

static void routed_experts_are_those_of_the_file(void **state) {
    (void)state;
    static const struct {
        pot_role role;
        const char *suffix;
    } parts[] = {
        {POT_ROLE_EXPERT_GATE, "gate_proj"}, {POT_ROLE_EXPERT_UP, "up_proj"}, {POT_ROLE_EXPERT_DOWN, "down_proj"}};
    for (int d = 0; d < N_DIRECTORIES; d++) {
        if (strstr(directories[d], "experts256")) continue;
        pot_model *model = must_open(directories[d], NULL);
        const pot_config *c = pot_model_config(model);
        pot_shards *shards;
        assert_int_equal(pot_shards_open(&shards, directories[d], NULL), POT_OK);
        for (uint32_t layer = 0; layer < pot_model_layers(model); layer++)
            for (uint32_t expert = 0; !c->layer_is_dense[layer] && expert < c->n_routed; expert++)
                for (int i = 0; i < 3; i++) {
                    char name[160];
                    snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s.weight", layer, expert,
                             parts[i].suffix);
                    compare_matrix(model, shards, parts[i].role, layer, expert, name);
                }
        pot_shards_close(shards);
        pot_model_close(model);
    }
}

/* One tensor for all experts: rows 0..I-1 of an expert are gate, then up. */
static void fused_experts_are_taken_apart(void **state) {
    (void)state;
    pot_model *model = must_open(FIXTURE("experts256"), NULL);
    const pot_config *c = pot_model_config(model);
    pot_shards *shards;
    assert_int_equal(pot_shards_open(&shards, FIXTURE("experts256"), NULL), POT_OK);
    const uint32_t inner = c->moe_inner, hidden = c->hidden;
    float row[256];
    for (uint32_t layer = 1; layer < 3; layer++)
        for (uint32_t expert = 0; expert < 256; expert += 51)
            for (int part = 0; part < 3; part++) {
                char name[96];
                snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s", layer,
                         part == 2 ? "down_proj" : "gate_up_proj");
                const pot_tensor *t = pot_shards_find(shards, name);
                assert_non_null(t);
                pot_stored stored;
                assert_int_equal(
                    pot_model_matrix(&stored, model, (pot_role)(POT_ROLE_EXPERT_GATE + part), layer, expert, NULL),
                    POT_OK);
                assert_int_equal(stored.rows, part == 2 ? hidden : inner);
                assert_int_equal(stored.cols, part == 2 ? inner : hidden);
                for (uint32_t r = 0; r < stored.rows; r += 7) {
                    assert_int_equal(pot_stored_row(row, &stored, r, 0, stored.cols, NULL), POT_OK);
                    uint64_t first = part == 2 ? (uint64_t)expert * hidden + r
                                               : (uint64_t)expert * 2 * inner + (part == 1 ? inner : 0) + r;
                    for (uint32_t k = 0; k < stored.cols; k++)
                        assert_true(row[k] == element_of(t, first * stored.cols + k));
                }
            }
    pot_shards_close(shards);
    pot_model_close(model);
}

static void vectors_are_read_as_f32(void **state) {
    (void)state;
    pot_model *model = must_open(FIXTURE("indexshare"), NULL);
    const pot_config *c = pot_model_config(model);
    pot_shards *shards;
    assert_int_equal(pot_shards_open(&shards, FIXTURE("indexshare"), NULL), POT_OK);
    static const struct {
        pot_role role;
        uint32_t layer;
        const char *name;
    } cases[] = {{POT_ROLE_FINAL_NORM, 0, "model.norm.weight"},
                 {POT_ROLE_INPUT_NORM, 3, "model.layers.3.input_layernorm.weight"},
                 {POT_ROLE_Q_A_NORM, 8, "model.layers.8.self_attn.q_a_layernorm.weight"},
                 {POT_ROLE_KV_A_NORM, 0, "model.layers.0.self_attn.kv_a_layernorm.weight"},
                 {POT_ROLE_INDEX_K_BIAS, 6, "model.layers.6.self_attn.indexer.k_norm.bias"},
                 {POT_ROLE_ROUTER_BIAS, 5, "model.layers.5.mlp.gate.e_score_correction_bias"},
                 {POT_ROLE_MTP_NORM, 8, "model.layers.8.shared_head.norm.weight"}};
    float values[512];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const pot_tensor *t = pot_shards_find(shards, cases[i].name);
        pot_err err;
        if (pot_model_vector(values, model, cases[i].role, cases[i].layer, (uint32_t)t->shape[0], &err))
            fail_msg("%s", err.text);
        for (uint32_t k = 0; k < t->shape[0]; k++) assert_true(values[k] == element_of(t, k));
    }
    pot_err err;
    assert_int_equal(pot_model_vector(values, model, POT_ROLE_INDEX_K_BIAS, 3, c->index_dim, &err), POT_BUG);
    assert_int_equal(pot_model_vector(values, model, POT_ROLE_ENORM, 0, c->hidden, &err), POT_BUG);
    assert_int_equal(pot_model_vector(values, model, POT_ROLE_INPUT_NORM, 9, c->hidden, &err), POT_BUG);
    pot_shards_close(shards);
    pot_model_close(model);
}

/* ---- formats and chunks ---------------------------------------------------------------------------------------------------- */

static void experts_keep_their_stored_format(void **state) {
    (void)state;
    static const struct {
        const char *directory;
        uint32_t layer, routed_chunks, common_chunks;
        pot_format routed, common;
    } cases[] = {
        {FIXTURE("indexshare"), 0, 0, 5, POT_FORMAT_NONE, POT_FORMAT_BF16}, /* 160 = 5 x 32 */
        {FIXTURE("indexshare"), 4, 2, 2, POT_FORMAT_BF16, POT_FORMAT_BF16},
        {FIXTURE("experts256"), 2, 1, 1, POT_FORMAT_BF16, POT_FORMAT_BF16},
        {FIXTURE("fp8"), 3, 5, 5, POT_FORMAT_FP8, POT_FORMAT_FP8},
        {FIXTURE("mxfp4"), 3, 5, 5, POT_FORMAT_MXFP4, POT_FORMAT_MXFP4},
        {FIXTURE("mxfp4"), 4, 5, 5, POT_FORMAT_BF16, POT_FORMAT_BF16}, /* the MTP layer */
        {FIXTURE("eps"), 5, 2, 2, POT_FORMAT_F32, POT_FORMAT_F32},
        {FIXTURE("article4"), 2, 2, 2, POT_FORMAT_Q4_ROW, POT_FORMAT_Q4_ROW},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_model *model = must_open(cases[i].directory, NULL);
        uint32_t layer = cases[i].layer, routed = pot_model_config(model)->n_routed;
        const pot_ffn_shape *r = pot_model_routed(model, layer), *common = pot_model_common(model, layer);
        const pot_layer_shape *shape = &pot_model_layer_shapes(model)[layer];
        assert_non_null(common);
        assert_int_equal(common->gate_up_format, cases[i].common);
        assert_int_equal(common->down_format, cases[i].common);
        assert_int_equal(common->n_chunks, cases[i].common_chunks);
        assert_int_equal(shape->common_chunks, common->n_chunks);
        if (cases[i].routed) {
            assert_int_equal(r->gate_up_format, cases[i].routed);
            assert_int_equal(r->down_format, cases[i].routed);
            assert_int_equal(r->n_chunks, cases[i].routed_chunks);
            assert_int_equal(shape->n_routed, routed);
            assert_int_equal(shape->routed_chunks, r->n_chunks);
            assert_ptr_equal(pot_model_expert_shape(model, layer, routed - 1), r);
            assert_ptr_equal(pot_model_expert_shape(model, layer, routed), common);
        } else {
            assert_null(r);
            assert_int_equal(shape->n_routed, 0);
            assert_ptr_equal(pot_model_expert_shape(model, layer, 0), common);
        }
        assert_int_equal(pot_model_grid(model, layer), 24);
        pot_model_close(model);
    }
}

static void policy_decides_for_floats_only(void **state) {
    (void)state;
    static const struct {
        const char *directory;
        pot_format_policy policy;
        pot_format q_a, kv_b, router, index_weights, head, routed;
    } cases[] = {
        {FIXTURE("indexshare"),
         {0},
         POT_FORMAT_Q8_G32,
         POT_FORMAT_Q8_G32,
         POT_FORMAT_F32,
         POT_FORMAT_F32,
         POT_FORMAT_Q8_G32,
         POT_FORMAT_BF16},
        {FIXTURE("indexshare"),
         {.reference = true, .experts = POT_FORMAT_MXFP4},
         POT_FORMAT_F32,
         POT_FORMAT_F32,
         POT_FORMAT_F32,
         POT_FORMAT_F32,
         POT_FORMAT_F32,
         POT_FORMAT_F32},
        {FIXTURE("indexshare"),
         {false, POT_FORMAT_Q4_G64, POT_FORMAT_BF16, POT_FORMAT_Q8_ROW},
         POT_FORMAT_BF16,
         POT_FORMAT_BF16,
         POT_FORMAT_F32,
         POT_FORMAT_F32,
         POT_FORMAT_Q8_ROW,
         POT_FORMAT_Q4_G64},
        {FIXTURE("fp8"),
         {.experts = POT_FORMAT_Q4_G64},
         POT_FORMAT_FP8,
         POT_FORMAT_Q8_G32,
         POT_FORMAT_F32,
         POT_FORMAT_F32,
         POT_FORMAT_Q8_G32,
         POT_FORMAT_FP8},
        {FIXTURE("article4"),
         {.dense = POT_FORMAT_BF16},
         POT_FORMAT_Q4_ROW,
         POT_FORMAT_BF16,
         POT_FORMAT_F32,
         POT_FORMAT_F32,
         POT_FORMAT_Q8_G32,
         POT_FORMAT_Q4_ROW},
        {FIXTURE("mxfp4"),
         {.experts = POT_FORMAT_Q8_ROW},
         POT_FORMAT_Q8_G32,
         POT_FORMAT_Q8_G32,
         POT_FORMAT_F32,
         POT_FORMAT_F32,
         POT_FORMAT_Q8_G32,
         POT_FORMAT_MXFP4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_model *model = must_open(cases[i].directory, &cases[i].policy);
        uint32_t sparse = pot_model_config(model)->n_layers - 1, full = 0;
        assert_int_equal(pot_model_format(model, POT_ROLE_Q_A, 0), cases[i].q_a);
        assert_int_equal(pot_model_format(model, POT_ROLE_KV_B, 0), cases[i].kv_b);
        assert_int_equal(pot_model_format(model, POT_ROLE_ROUTER, sparse), cases[i].router);
        assert_int_equal(pot_model_format(model, POT_ROLE_INDEX_WEIGHTS, full), cases[i].index_weights);
        assert_int_equal(pot_model_format(model, POT_ROLE_HEAD, 0), cases[i].head);
        assert_int_equal(pot_model_format(model, POT_ROLE_EMBED, 0), cases[i].head);
        assert_int_equal(pot_model_routed(model, sparse)->gate_up_format, cases[i].routed);
        assert_int_equal(pot_model_routed(model, sparse)->down_format, cases[i].routed);
        pot_model_close(model);
    }
}

/* Where the experts of a layer differ, the smallest float that holds them all exactly. */
static void mixed_experts_meet_in_a_float_format(void **state) {
    (void)state;
    const pot_config *c;
    begin(FIXTURE("mxfp4"));
    drop("model.layers.2.mlp.experts.3.up_proj.weight_scale");
    put("model.layers.2.mlp.experts.3.up_proj.weight", POT_DTYPE_BF16, 288, 128, 0x3c);
    pot_model *model = open_variant(NULL);
    c = pot_model_config(model);
    assert_int_equal(c->n_routed, 6);
    assert_int_equal(pot_model_routed(model, 2)->gate_up_format, POT_FORMAT_BF16);
    assert_int_equal(pot_model_routed(model, 2)->down_format, POT_FORMAT_MXFP4);
    assert_int_equal(pot_model_routed(model, 1)->gate_up_format, POT_FORMAT_MXFP4);
    pot_model_close(model);

    begin(FIXTURE("fp8"));
    drop("model.layers.2.mlp.experts.3.down_proj.weight_scale_inv");
    put("model.layers.2.mlp.experts.3.down_proj.weight", POT_DTYPE_BF16, 160, 320, 0x3c);
    model = open_variant(NULL);
    assert_int_equal(pot_model_routed(model, 2)->gate_up_format, POT_FORMAT_FP8);
    assert_int_equal(pot_model_routed(model, 2)->down_format, POT_FORMAT_F32);
    pot_model_close(model);
}

static void compare_chunk(const pot_model *model, uint32_t layer, uint32_t expert, uint32_t chunk,
                          const pot_stored *stored) {
    const pot_ffn_shape *shape = pot_model_expert_shape(model, layer, expert);
    uint8_t *bytes = pot_alloc_aligned(pot_chunk_bytes(shape, chunk));
    float *packed = malloc(4096 * sizeof(float)), *want = malloc(4096 * sizeof(float));
    pot_err err;
    if (pot_model_pack_chunk(bytes, model, layer, expert, chunk, &err)) fail_msg("%s", err.text);
    pot_chunk view;
    pot_chunk_view(&view, shape, chunk, bytes);
    uint32_t begin_row = pot_chunk_begin(shape, chunk), rows = pot_chunk_rows(shape, chunk);
    for (uint32_t r = 0; r < rows; r++)
        for (int part = 0; part < 2; part++) {
            pot_matrix_row(packed, part ? &view.up : &view.gate, r);
            assert_int_equal(pot_stored_row(want, &stored[part], begin_row + r, 0, shape->hidden, NULL), POT_OK);
            assert_memory_equal(packed, want, shape->hidden * sizeof(float));
        }
    for (uint32_t r = 0; r < shape->hidden; r++) {
        pot_matrix_row(packed, &view.down, r);
        assert_int_equal(pot_stored_row(want, &stored[2], r, begin_row, begin_row + rows, NULL), POT_OK);
        assert_memory_equal(packed, want, rows * sizeof(float));
    }
    free(packed);
    free(want);
    pot_free(bytes);
}

/* Natural formats hold the stored values exactly: every chunk of a routed, the shared and the dense expert. */
static void chunks_hold_the_stored_values(void **state) {
    (void)state;
    for (int d = 0; d < N_DIRECTORIES; d++) {
        pot_model *model = must_open(directories[d], NULL);
        const pot_config *c = pot_model_config(model);
        for (uint32_t layer = 0; layer < pot_model_layers(model); layer++) {
            uint32_t experts = pot_layer_experts(&pot_model_layer_shapes(model)[layer]);
            for (uint32_t expert = experts - 1 < 2 ? 0 : experts - 2; expert < experts; expert++) {
                pot_role gate = c->layer_is_dense[layer] ? POT_ROLE_DENSE_GATE
                                : expert < c->n_routed   ? POT_ROLE_EXPERT_GATE
                                                         : POT_ROLE_SHARED_GATE;
                pot_stored stored[3];
                for (int i = 0; i < 3; i++)
                    assert_int_equal(pot_model_matrix(&stored[i], model, (pot_role)(gate + i), layer, expert, NULL),
                                     POT_OK);
                const pot_ffn_shape *shape = pot_model_expert_shape(model, layer, expert);
                for (uint32_t chunk = 0; chunk < shape->n_chunks; chunk++)
                    compare_chunk(model, layer, expert, chunk, stored);
            }
        }
        pot_model_close(model);
    }
}

static void fault_in_a_chunk_names_its_place(void **state) {
    (void)state;
    begin(FIXTURE("indexshare"));
    put("model.layers.4.mlp.experts.5.up_proj.weight", POT_DTYPE_BF16, 64, 96, 0xff); /* not numbers */
    pot_model *model = open_variant(NULL);
    uint8_t *bytes = pot_alloc_aligned(pot_chunk_bytes(pot_model_routed(model, 4), 1));
    pot_err err;
    assert_int_equal(pot_model_pack_chunk(bytes, model, 4, 5, 1, &err), POT_NUMERIC);
    assert_string_equal(err.text,
                        "layer 4 expert 5 chunk 1: model.layers.4.mlp.experts.5.up_proj.weight: row 32, column 0 is "
                        "not a number, need a finite number");
    pot_free(bytes);
    pot_model_close(model);
}

/* ---- bytes, census, fingerprint ---------------------------------------------------------------------------------------------- */

static bool is_expert_group(const char *group) {
    return !strcmp(group, "experts") || !strcmp(group, "shared experts") || !strcmp(group, "dense layers");
}

static void census_adds_up(void **state) {
    (void)state;
    for (int d = 0; d < N_DIRECTORIES; d++) {
        pot_model *model = must_open(directories[d], NULL);
        pot_shards *shards;
        assert_int_equal(pot_shards_open(&shards, directories[d], NULL), POT_OK);
        uint64_t in_files = 0;
        for (uint32_t i = 0; i < pot_shards_tensors(shards); i++) in_files += pot_shards_at(shards, i)->bytes;
        pot_census_row rows[POT_CENSUS_ROWS];
        uint32_t n = pot_model_census(rows, POT_CENSUS_ROWS, model);
        uint64_t stored = 0, dense = 0, experts = 0;
        for (uint32_t i = 0; i < n; i++) {
            stored += rows[i].stored_bytes;
            *(is_expert_group(rows[i].group) ? &experts : &dense) += rows[i].packed_bytes;
        }
        assert_int_equal(stored, in_files); /* nothing is left out, nothing counted twice */
        assert_int_equal(dense, pot_model_coordinator_bytes(model));

        static const char *const maps[] = {"contiguous", "sliced", "round-robin"};
        for (int m = 0; m < 3; m++) {
            pot_map *map = NULL;
            uint64_t all = 0;
            assert_int_equal(
                pot_map_make(&map, maps[m], 1, 3, pot_model_layer_shapes(model), pot_model_layers(model), NULL),
                POT_OK);
            for (uint32_t w = 0; w < 3; w++) all += pot_model_worker_bytes(model, map, w);
            assert_int_equal(all, experts);
            pot_map_free(map);
        }
        assert_int_equal(pot_model_census(rows, 2, model), 2); /* no room: as many as fit */
        pot_shards_close(shards);
        pot_model_close(model);
    }
}

/* Worked out by hand: `eps` in reference formats, all in F32. */
static void coordinator_bytes_are_what_loading_takes(void **state) {
    (void)state;
    pot_model *model = must_open(FIXTURE("eps"), &(pot_format_policy){.reference = true});
#define MATRIX(rows, cols) (((rows) + 15) / 16 * 16 * (uint64_t)(((cols) + 31) / 32 * 32) * 4)
#define VECTOR(n) (((n)*4u + 63) / 64 * 64)
    uint64_t layer = VECTOR(96) * 2 + VECTOR(32) + VECTOR(24) + MATRIX(32, 96) + MATRIX(72, 32) + MATRIX(32, 96) +
                     3 * (MATRIX(24, 16) + MATRIX(24, 24)) + MATRIX(96, 72);
    uint64_t index = MATRIX(256, 32) + MATRIX(16, 96) + 2 * VECTOR(16) + MATRIX(16, 96);
    uint64_t router = MATRIX(5, 96) + VECTOR(5);
    assert_int_equal(pot_model_coordinator_bytes(model),
                     2 * MATRIX(260, 96) + VECTOR(96) + 6 * layer + 3 * index + 4 * router);
    pot_model_close(model);
}

static void fingerprint_is_of_what_must_agree(void **state) {
    (void)state;
    pot_model *model = must_open(FIXTURE("indexshare"), NULL);
    pot_hash first = pot_model_fingerprint(model);
    pot_model_close(model);
    model = must_open(FIXTURE("indexshare"), NULL);
    assert_true(pot_hash_equal(first, pot_model_fingerprint(model)));
    pot_model_close(model);

    for (int i = 0; i < 9; i++) {
        pot_format_policy policy = pot_format_policy_default;
        begin(FIXTURE("indexshare"));
        bool equal = false;
        switch (i) {
        case 0:
            set_config("rope_parameters", json_pack("{s:f,s:s}", "rope_theta", 8000001.0, "rope_type", "default"));
            break;
        case 1: set_config("routed_scaling_factor", json_real(2.25)); break;
        case 2: set_config("mla_norm_eps", json_real(1e-5)); break;
        case 3: policy.reference = true; break;
        case 4: policy.dense = POT_FORMAT_BF16; break;
        case 5: put("model.norm.weight", POT_DTYPE_F32, 0, 96, 0); break;
        case 6: set_config("index_topk", json_integer(13)); break;
        case 7: set_config("eos_token_id", json_integer(5)), equal = true; break; /* the coordinator's own affair */
        default: equal = true; break;                                             /* a copy */
        }
        model = open_variant(&policy);
        if (pot_hash_equal(first, pot_model_fingerprint(model)) != equal) fail_msg("case %d", i);
        pot_model_close(model);
    }
}

/* The same tensors in two files, an expert's three matrices apart: the same model. */
static void shards_may_split_experts(void **state) {
    (void)state;
    pot_model *model = must_open(FIXTURE("indexshare"), NULL);
    pot_hash one = pot_model_fingerprint(model);
    pot_model_close(model);
    begin(FIXTURE("indexshare"));
    for (uint32_t i = 0; i < v.n; i += 2) { /* even places first */
        pot_tensor_out t = v.tensors[i];
        v.tensors[i] = v.tensors[i / 2];
        v.tensors[i / 2] = t;
    }
    write_tensors("model-00002-of-00002.safetensors", 0, v.n / 2);
    write_tensors("model-00001-of-00002.safetensors", v.n / 2, v.n);
    write_config();
    model = must_open(v.directory, NULL);
    assert_true(pot_hash_equal(one, pot_model_fingerprint(model)));
    pot_model_close(model);
    end();
}

static void memory_refusal_names_both_numbers(void **state) {
    (void)state;
    pot_err err;
    assert_int_equal(pot_model_check_memory(0, "nothing", &err), POT_OK);
    assert_int_equal(pot_model_check_memory((uint64_t)1 << 60, "worker 3", &err), POT_LIMIT);
    double needed, left;
    const char *leaves = strstr(err.text, " leaves ");
    assert_non_null(leaves);
    assert_int_equal(sscanf(err.text, "worker 3: %lf GiB needed, ", &needed), 1);
    assert_int_equal(sscanf(leaves, " leaves %lf GiB", &left), 1);
    assert_true(needed == 1073741824 && left > 0 && left < needed);
}

/* ---- the count in both directions ------------------------------------------------------------------------------------------- */

static void missing_and_unknown_tensors_are_listed(void **state) {
    (void)state;
    begin(FIXTURE("eps"));
    drop("model.layers.3.mlp.experts.2.up_proj.weight");
    refuse_variant(POT_FORMAT,
                   ": 1 tensors are missing in 1 file; is a file missing, or does config.json belong to another "
                   "model? Missing: model.layers.3.mlp.experts.2.up_proj.weight");

    begin(FIXTURE("eps"));
    put("model.layers.0.self_attn.rotary_emb.inv_freq", POT_DTYPE_F32, 0, 4, 0);
    refuse_variant(POT_FORMAT,
                   ": 1 of 159 tensors are unknown in 1 file; does config.json belong to another model? Unknown: "
                   "model.layers.0.self_attn.rotary_emb.inv_freq");

    begin(FIXTURE("eps"));
    drop_prefix("model.layers.5.mlp.experts.");
    put("extra", POT_DTYPE_F32, 0, 4, 0);
    refuse_variant(
        POT_FORMAT,
        ": 15 tensors are missing and 1 of 144 tensors are unknown in 1 file; is a file missing, or does config.json "
        "belong to another model? Missing: model.layers.5.mlp.experts.0.gate_proj.weight, "
        "model.layers.5.mlp.experts.1.gate_proj.weight, model.layers.5.mlp.experts.2.gate_proj.weight, "
        "model.layers.5.mlp.experts.3.gate_proj.weight, model.layers.5.mlp.experts.4.gate_proj.weight, "
        "model.layers.5.mlp.experts.0.up_proj.weight, model.layers.5.mlp.experts.1.up_proj.weight, "
        "model.layers.5.mlp.experts.2.up_proj.weight and 7 more. Unknown: extra");

    begin(FIXTURE("eps")); /* a config with fewer layers does not quietly drop the rest */
    set_config("num_hidden_layers", json_integer(5));
    set_config("index_topk_pattern", json_string("FSFSS"));
    json_object_del(v.config, "mlp_layer_types");
    write_tensors("model.safetensors", 0, v.n);
    write_config();
    pot_model *model = NULL;
    pot_err err;
    assert_int_equal(pot_model_open(&model, v.directory, &pot_format_policy_default, &err), POT_FORMAT);
    assert_non_null(strstr(err.text, ": 34 of 158 tensors are unknown in 1 file;"));
    end();
}

static uint64_t ignored(const pot_model *model) {
    pot_census_row rows[POT_CENSUS_ROWS];
    uint32_t n = pot_model_census(rows, POT_CENSUS_ROWS, model);
    return n && !strcmp(rows[n - 1].group, "ignored") ? rows[n - 1].tensors : 0;
}

static void known_extras_are_ignored(void **state) {
    (void)state;
    /* The MTP layer's copies of embeddings and head. */
    begin(FIXTURE("indexshare"));
    put("model.layers.8.embed_tokens.weight", POT_DTYPE_BF16, 320, 96, 0);
    put("model.layers.8.shared_head.head.weight", POT_DTYPE_BF16, 320, 96, 0);
    /* An indexer where the schedule says shared, in FP8. */
    put("model.layers.3.self_attn.indexer.wk.weight", POT_DTYPE_F8_E4M3, 32, 96, 0);
    put("model.layers.3.self_attn.indexer.wk.weight_scale_inv", POT_DTYPE_F32, 1, 1, 0);
    put("model.layers.3.self_attn.indexer.k_norm.bias", POT_DTYPE_BF16, 0, 32, 0);
    pot_model *model = open_variant(NULL);
    assert_int_equal(ignored(model), 5);
    assert_int_equal(pot_model_layers(model), 9);
    pot_model_close(model);

    static const struct {
        const char *name;
        bool mtp; /* counted by the config */
    } others[] = {
        {"model.layers.3.self_attn.indexer.wk.bias", true},
        {"model.layers.0.embed_tokens.weight", true},
        {"model.layers.6.self_attn.indexer.wk.weight_scale_inv", true}, /* a full layer's is used, or unknown */
        {"model.layers.8.extra.weight", true},
        {"model.layers.9.embed_tokens.weight", true},
        {"model.layers.9.input_layernorm.weight", false},
        {"model.layers.8x.extra.weight", false}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char sentence[256];
        begin(FIXTURE("indexshare"));
        put(others[i].name, POT_DTYPE_BF16, 0, 32, 0);
        if (!others[i].mtp) set_config("num_nextn_predict_layers", json_integer(0));
        snprintf(sentence, sizeof sentence,
                 ": 1 of 315 tensors are unknown in 1 file; does config.json belong to another model? Unknown: %s",
                 others[i].name);
        refuse_variant(POT_FORMAT, sentence);
    }

    begin(FIXTURE("indexshare")); /* an MTP layer that the config does not count */
    set_config("num_nextn_predict_layers", json_integer(0));
    model = open_variant(NULL);
    assert_int_equal(pot_model_layers(model), 8);
    assert_true(ignored(model) > 20);
    pot_model_close(model);
}

static void absent_mtp_layer_is_gone_without(void **state) {
    (void)state;
    begin(FIXTURE("indexshare"));
    drop_prefix("model.layers.8.");
    pot_model *model = open_variant(NULL);
    assert_int_equal(pot_model_config(model)->n_mtp, 0);
    assert_int_equal(pot_model_layers(model), 8);
    pot_model_close(model);

    begin(FIXTURE("indexshare")); /* half of one is a fault */
    drop("model.layers.8.eh_proj.weight");
    refuse_variant(POT_FORMAT,
                   ": 1 tensors are missing in 1 file; is a file missing, or does config.json belong to another "
                   "model? Missing: model.layers.8.eh_proj.weight");
}

/* ---- layouts ---------------------------------------------------------------------------------------------------------------- */

#define Q_A "model.layers.1.self_attn.q_a_proj.weight" /* [48, 96] in article4 */
#define EXPERT "model.layers.2.mlp.experts.1.gate_proj.weight"

static void container_is_read_by_its_sizes(void **state) {
    (void)state;
    static const struct {
        pot_dtype dtype;
        uint64_t rows, cols, scales; /* rows 0: flat */
        pot_stored_kind kind;
        uint32_t group;
    } cases[] = {
        {POT_DTYPE_U8, 0, 48 * 96, 48, POT_STORED_INT8, 0},
        {POT_DTYPE_I8, 0, 48 * 96, 48, POT_STORED_INT8, 0},
        {POT_DTYPE_I8, 48, 96, 48, POT_STORED_INT8, 0},
        {POT_DTYPE_U8, 0, 48 * 48, 48, POT_STORED_INT4, 0},
        {POT_DTYPE_U8, 48, 48, 48 * 3, POT_STORED_INT4, 32},
        {POT_DTYPE_U8, 0, 48 * 48, 48 * 6, POT_STORED_INT4, 16},
        {POT_DTYPE_U8, 0, 48 * 24, 48, POT_STORED_INT2, 0},
        {POT_DTYPE_U8, 0, 48 * 96, 1, POT_STORED_FP8, 0}, /* one block of 128 x 128 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin(FIXTURE("article4"));
        put(Q_A, cases[i].dtype, cases[i].rows, cases[i].cols, 0x11);
        put(Q_A ".qs", POT_DTYPE_F32, 0, cases[i].scales, 0x3c);
        pot_model *model = open_variant(NULL);
        pot_stored stored;
        assert_int_equal(pot_model_matrix(&stored, model, POT_ROLE_Q_A, 1, 0, NULL), POT_OK);
        assert_int_equal(stored.kind, cases[i].kind);
        assert_int_equal(stored.group, cases[i].group);
        assert_int_equal(stored.rows, 48);
        assert_int_equal(stored.cols, 96);
        float row[96];
        for (uint32_t r = 0; r < 48; r++) assert_int_equal(pot_stored_row(row, &stored, r, 0, 96, NULL), POT_OK);
        pot_model_close(model);
    }
}

#define READINGS " of a [48,96] matrix as int8, int4 or int2 rows, int4 groups or fp8 blocks"

static void container_of_other_sizes_is_refused(void **state) {
    (void)state;
    static const struct {
        pot_dtype dtype;
        uint64_t rows, cols, scales;
        const char *sentence;
    } cases[] = {
        {POT_DTYPE_U8, 0, 2303, 48, ": tensor " Q_A " is U8 [2303] with 48 scales, which fits no reading" READINGS},
        {POT_DTYPE_U8, 0, 2304, 47, ": tensor " Q_A " is U8 [2304] with 47 scales, which fits no reading" READINGS},
        {POT_DTYPE_U8, 0, 2304, 49, ": tensor " Q_A " is U8 [2304] with 49 scales, which fits no reading" READINGS},
        {POT_DTYPE_U8, 0, 1000, 48, ": tensor " Q_A " is U8 [1000] with 48 scales, which fits no reading" READINGS},
        {POT_DTYPE_U8, 0, 1152, 96, ": tensor " Q_A " is U8 [1152] with 96 scales, which fits no reading" READINGS},
        {POT_DTYPE_I8, 0, 2304, 48, ": tensor " Q_A " is I8 [2304] with 48 scales, which fits no reading" READINGS},
        {POT_DTYPE_U8, 96, 48, 48, ": tensor " Q_A " is U8 [96,48] with 48 scales, which fits no reading" READINGS},
        /* 96 columns in two groups: of 48, or of 64 and 32. */
        {POT_DTYPE_U8, 0, 2304, 96,
         ": tensor " Q_A " is U8 [2304] with 96 scales, which fits more than one reading" READINGS
         "; int8 rows can be told apart by the dtype I8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin(FIXTURE("article4"));
        put(Q_A, cases[i].dtype, cases[i].rows, cases[i].cols, 0x11);
        put(Q_A ".qs", POT_DTYPE_F32, 0, cases[i].scales, 0x3c);
        refuse_variant(POT_FORMAT, cases[i].sentence);
    }
    begin(FIXTURE("article4"));
    put(Q_A ".qs", POT_DTYPE_BF16, 0, 48, 0x3c);
    refuse_variant(POT_FORMAT, ": tensor " Q_A ".qs is BF16, F32 was expected");
}

/* As many rows as there are blocks of 128 x 128: GLM's o_proj [6144, 16384] is such a matrix, here it is [96, 12288]. */
static void int8_rows_and_fp8_blocks_are_not_confused(void **state) {
    (void)state;
    for (int signed_bytes = 0; signed_bytes < 2; signed_bytes++) {
        begin(FIXTURE("article4"));
        set_config("intermediate_size", json_integer(12288));
        drop_prefix("model.layers.0.mlp.");
        put("model.layers.0.mlp.gate_proj.weight", POT_DTYPE_BF16, 12288, 96, 0);
        put("model.layers.0.mlp.up_proj.weight", POT_DTYPE_BF16, 12288, 96, 0);
        put("model.layers.0.mlp.down_proj.weight", signed_bytes ? POT_DTYPE_I8 : POT_DTYPE_U8, 0, 96 * 12288, 1);
        put("model.layers.0.mlp.down_proj.weight.qs", POT_DTYPE_F32, 0, 96, 0x3c);
        if (signed_bytes) {
            pot_model *model = open_variant(NULL);
            assert_int_equal(pot_model_common(model, 0)->down_format, POT_FORMAT_Q8_ROW);
            assert_int_equal(pot_model_common(model, 0)->n_chunks, 48);
            pot_model_close(model);
        } else {
            refuse_variant(POT_FORMAT,
                           ": tensor model.layers.0.mlp.down_proj.weight is U8 [1179648] with 96 scales, which fits "
                           "more than one reading of a [96,12288] matrix as int8, int4 or int2 rows, int4 groups or "
                           "fp8 blocks; int8 rows can be told apart by the dtype I8");
        }
    }
}

static void other_layouts_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *fixture, *name;
        pot_dtype dtype;
        uint64_t rows, cols;
        const char *sentence;
    } cases[] = {
        {FIXTURE("eps"), "model.layers.1.self_attn.q_a_proj.weight", POT_DTYPE_F32, 96, 32,
         ": tensor model.layers.1.self_attn.q_a_proj.weight is F32 [96,32], by config.json [32,96] was expected"},
        {FIXTURE("eps"), "model.layers.1.self_attn.q_a_proj.weight", POT_DTYPE_F32, 0, 32 * 96,
         ": tensor model.layers.1.self_attn.q_a_proj.weight is F32 [3072], by config.json [32,96] was expected"},
        {FIXTURE("eps"), "model.layers.1.self_attn.q_a_proj.weight", POT_DTYPE_I32, 32, 12,
         ": tensor model.layers.1.self_attn.q_a_proj.weight is I32; BF16, F16, F32, or F8_E4M3, U8 or I8 with scales "
         "was "
         "expected"},
        {FIXTURE("eps"), "model.layers.1.self_attn.q_a_proj.weight", POT_DTYPE_F8_E4M3, 32, 96,
         ": tensor model.layers.1.self_attn.q_a_proj.weight is F8_E4M3, but "
         "model.layers.1.self_attn.q_a_proj.weight_scale_inv with its scales is missing"},
        {FIXTURE("eps"), "model.layers.1.self_attn.q_a_proj.weight", POT_DTYPE_U8, 32, 48,
         ": tensor model.layers.1.self_attn.q_a_proj.weight is U8, but its scales are missing: neither "
         "model.layers.1.self_attn.q_a_proj.weight_scale nor model.layers.1.self_attn.q_a_proj.weight.qs is there"},
        {FIXTURE("eps"), "model.layers.1.input_layernorm.weight", POT_DTYPE_U8, 0, 96,
         ": tensor model.layers.1.input_layernorm.weight is U8; BF16, F16 or F32 was expected"},
        {FIXTURE("eps"), "model.layers.1.input_layernorm.weight", POT_DTYPE_F32, 0, 95,
         ": tensor model.layers.1.input_layernorm.weight is F32 [95], by config.json [96] was expected"},
        {FIXTURE("fp8"), EXPERT "_scale_inv", POT_DTYPE_BF16, 3, 2,
         ": tensor " EXPERT "_scale_inv is BF16, F32 was expected"},
        {FIXTURE("fp8"), EXPERT "_scale_inv", POT_DTYPE_F8_E8M0, 3, 2,
         ": tensor " EXPERT "_scale_inv is F8_E8M0, F32 was expected"},
        {FIXTURE("fp8"), EXPERT "_scale_inv", POT_DTYPE_F32, 2, 2,
         ": tensor " EXPERT "_scale_inv is F32 [2,2], by config.json [3,2] was expected"},
        {FIXTURE("fp8"), EXPERT "_scale_inv", POT_DTYPE_F32, 0, 6,
         ": tensor " EXPERT "_scale_inv is F32 [6], by config.json [3,2] was expected"},
        {FIXTURE("mxfp4"), EXPERT "_scale", POT_DTYPE_F32, 288, 4, ": tensor " EXPERT "_scale is F32, U8 was expected"},
        {FIXTURE("mxfp4"), EXPERT "_scale", POT_DTYPE_U8, 288, 8,
         ": tensor " EXPERT "_scale is U8 [288,8], by config.json [288,4] was expected"},
        {FIXTURE("mxfp4"), EXPERT, POT_DTYPE_U8, 288, 128,
         ": tensor " EXPERT " is U8 [288,128], by config.json [288,64] was expected"},
        {FIXTURE("mxfp4"), EXPERT, POT_DTYPE_I8, 288, 64, ": tensor " EXPERT " is I8, U8 was expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin(cases[i].fixture);
        put(cases[i].name, cases[i].dtype, cases[i].rows, cases[i].cols, 0x11);
        refuse_variant(POT_FORMAT, cases[i].sentence);
    }
}

static void scales_of_mxfp4_may_be_called_e8m0(void **state) {
    (void)state;
    begin(FIXTURE("mxfp4"));
    put(EXPERT "_scale", POT_DTYPE_F8_E8M0, 288, 4, 120);
    pot_model *model = open_variant(NULL);
    assert_int_equal(pot_model_routed(model, 2)->gate_up_format, POT_FORMAT_MXFP4);
    pot_model_close(model);
}

static void put_fused(const char *name, pot_dtype dtype, uint64_t experts, uint64_t rows, uint64_t cols) {
    put(name, dtype, 0, experts * rows * cols, 0);
    pot_tensor_out *t = &v.tensors[v.n - 1];
    t->rank = 3;
    t->shape[0] = experts;
    t->shape[1] = rows;
    t->shape[2] = cols;
}

static void fused_layouts_are_checked(void **state) {
    (void)state;
    static const struct {
        const char *gate_up;
        pot_dtype dtype;
        uint64_t rows, cols;
        const char *sentence; /* NULL: opens */
    } cases[] = {
        {"model.layers.2.mlp.experts.gate_up_proj", POT_DTYPE_BF16, 128, 96, NULL},
        {"model.layers.2.mlp.experts.gate_up_proj.weight", POT_DTYPE_F16, 128, 96, NULL},
        {"model.layers.2.mlp.experts.gate_up_proj", POT_DTYPE_BF16, 96, 128,
         ": tensor model.layers.2.mlp.experts.gate_up_proj is BF16 [5,96,128], by config.json [5,128,96] was expected"},
        {"model.layers.2.mlp.experts.gate_up_proj", POT_DTYPE_U8, 128, 48,
         ": tensor model.layers.2.mlp.experts.gate_up_proj is U8; fused experts are read as BF16, F16 or F32, "
         "quantized ones "
         "need one tensor an expert"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin(FIXTURE("eps"));
        drop_prefix("model.layers.2.mlp.experts.");
        put_fused(cases[i].gate_up, cases[i].dtype, 5, cases[i].rows, cases[i].cols);
        put_fused("model.layers.2.mlp.experts.down_proj", POT_DTYPE_F32, 5, 96, 64);
        if (cases[i].sentence)
            refuse_variant(POT_FORMAT, cases[i].sentence);
        else
            pot_model_close(open_variant(NULL));
    }
    begin(FIXTURE("eps")); /* both layouts at once */
    put_fused("model.layers.2.mlp.experts.gate_up_proj", POT_DTYPE_BF16, 5, 128, 96);
    refuse_variant(POT_FORMAT,
                   ": 1 of 159 tensors are unknown in 1 file; does config.json belong to another model? Unknown: "
                   "model.layers.2.mlp.experts.gate_up_proj");
}

/* ---- damage ----------------------------------------------------------------------------------------------------------------- */

static void damaged_files_never_crash(void **state) {
    (void)state;
    char file[160];
    begin(FIXTURE("article4"));
    write_tensors("model.safetensors", 0, v.n);
    write_config();
    snprintf(file, sizeof file, "%s/model.safetensors", v.directory);
    FILE *f = fopen(file, "r+b");
    assert_non_null(f);
    uint32_t random = 7, refused = 0;
    for (int round = 0; round < 400; round++) {
        random = random * 1664525 + 1013904223;
        long at = (long)((random >> 4) % 30000); /* the header has more */
        fseek(f, at, SEEK_SET);
        int kept = fgetc(f);
        fseek(f, at, SEEK_SET);
        fputc(round % 2 ? kept ^ (1 << (random >> 29)) : '0' + (int)(random >> 28) % 10, f);
        fflush(f);
        pot_model *model = NULL;
        pot_err err;
        if (pot_model_open(&model, v.directory, &pot_format_policy_default, &err)) {
            refused++;
            assert_true(strlen(err.text) > 20);
        }
        pot_model_close(model);
        fseek(f, at, SEEK_SET);
        fputc(kept, f);
        fflush(f);
    }
    fclose(f);
    assert_true(refused > 300);
    end();
}

static void memory_may_end_anywhere(void **state) {
    (void)state;
    pot_status s = POT_NO_MEMORY;
    uint64_t nth = 1;
    for (; s != POT_OK && nth < 1000; nth++) {
        pot_model *model = NULL;
        pot_mem_fail_at(nth);
        s = pot_model_open(&model, FIXTURE("article4"), &pot_format_policy_default, NULL);
        pot_mem_fail_at(0);
        if (s == POT_OK) {
            pot_model_close(model);
        } else {
            assert_int_equal(s, POT_NO_MEMORY);
            assert_null(model);
        }
    }
    assert_int_equal(s, POT_OK);
    assert_true(nth > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_those_of_the_file),
        cmocka_unit_test(routed_experts_are_those_of_the_file),
        cmocka_unit_test(fused_experts_are_taken_apart),
        cmocka_unit_test(vectors_are_read_as_f32),
        cmocka_unit_test(experts_keep_their_stored_format),
        cmocka_unit_test(policy_decides_for_floats_only),
        cmocka_unit_test(mixed_experts_meet_in_a_float_format),
        cmocka_unit_test(chunks_hold_the_stored_values),
        cmocka_unit_test(fault_in_a_chunk_names_its_place),
        cmocka_unit_test(census_adds_up),
        cmocka_unit_test(coordinator_bytes_are_what_loading_takes),
        cmocka_unit_test(fingerprint_is_of_what_must_agree),
        cmocka_unit_test(shards_may_split_experts),
        cmocka_unit_test(memory_refusal_names_both_numbers),
        cmocka_unit_test(missing_and_unknown_tensors_are_listed),
        cmocka_unit_test(known_extras_are_ignored),
        cmocka_unit_test(absent_mtp_layer_is_gone_without),
        cmocka_unit_test(container_is_read_by_its_sizes),
        cmocka_unit_test(container_of_other_sizes_is_refused),
        cmocka_unit_test(int8_rows_and_fp8_blocks_are_not_confused),
        cmocka_unit_test(other_layouts_are_refused_by_name),
        cmocka_unit_test(scales_of_mxfp4_may_be_called_e8m0),
        cmocka_unit_test(fused_layouts_are_checked),
        cmocka_unit_test(damaged_files_never_crash),
        cmocka_unit_test(memory_may_end_anywhere),
    };
    return cmocka_run_group_tests(tests, make_scratch, remove_scratch);
}
