/* model/model: every fixture opens, its values are those of the file by decoders of this test's own, and formats, chunks, bytes and
 * fingerprint are as promised. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/mem.h"
#include "kernels/convert.h"
#include "tests/variant.h"

#define FIXTURE(name) "tests/fixtures/" name

static const char *const directories[] = {
    FIXTURE("indexshare"), FIXTURE("experts256"), FIXTURE("fp8"), FIXTURE("mxfp4"),
    FIXTURE("eps"),        FIXTURE("article4"),   "demo"};
enum { N_DIRECTORIES = sizeof directories / sizeof directories[0] };

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
        pot_model *model = pot_must_open(directories[d], NULL);
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
        pot_model *model = pot_must_open(directories[d], NULL);
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
    pot_model *model = pot_must_open(FIXTURE("experts256"), NULL);
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
    pot_model *model = pot_must_open(FIXTURE("indexshare"), NULL);
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
        pot_model *model = pot_must_open(cases[i].directory, NULL);
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
         POT_FORMAT_Q4_G64,
         POT_FORMAT_Q4_G64,
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
         {.experts = POT_FORMAT_Q4_G64, .dense = POT_FORMAT_BF16, .head = POT_FORMAT_Q8_ROW},
         POT_FORMAT_BF16,
         POT_FORMAT_BF16,
         POT_FORMAT_F32,
         POT_FORMAT_F32,
         POT_FORMAT_Q8_ROW,
         POT_FORMAT_Q4_G64},
        {FIXTURE("fp8"),
         {.experts = POT_FORMAT_Q4_G64},
         POT_FORMAT_FP8,
         POT_FORMAT_Q4_G64,
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
         POT_FORMAT_Q4_G64,
         POT_FORMAT_Q4_G64,
         POT_FORMAT_F32,
         POT_FORMAT_F32,
         POT_FORMAT_Q8_G32,
         POT_FORMAT_MXFP4},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_model *model = pot_must_open(cases[i].directory, &cases[i].policy);
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
    pot_variant_begin(FIXTURE("mxfp4"));
    pot_variant_drop("model.layers.2.mlp.experts.3.up_proj.weight_scale");
    pot_variant_put("model.layers.2.mlp.experts.3.up_proj.weight", POT_DTYPE_BF16, 288, 128, 0x3c);
    pot_model *model = pot_variant_open(NULL);
    c = pot_model_config(model);
    assert_int_equal(c->n_routed, 6);
    assert_int_equal(pot_model_routed(model, 2)->gate_up_format, POT_FORMAT_BF16);
    assert_int_equal(pot_model_routed(model, 2)->down_format, POT_FORMAT_MXFP4);
    assert_int_equal(pot_model_routed(model, 1)->gate_up_format, POT_FORMAT_MXFP4);
    pot_model_close(model);

    pot_variant_begin(FIXTURE("fp8"));
    pot_variant_drop("model.layers.2.mlp.experts.3.down_proj.weight_scale_inv");
    pot_variant_put("model.layers.2.mlp.experts.3.down_proj.weight", POT_DTYPE_BF16, 160, 320, 0x3c);
    model = pot_variant_open(NULL);
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
    if (pot_model_load_chunk(bytes, model, layer, expert, chunk, &err)) fail_msg("%s", err.text);
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
        pot_model *model = pot_must_open(directories[d], NULL);
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
    pot_variant_begin(FIXTURE("indexshare"));
    pot_variant_put("model.layers.4.mlp.experts.5.up_proj.weight", POT_DTYPE_BF16, 64, 96, 0xff); /* not numbers */
    pot_model *model = pot_variant_open(NULL);
    uint8_t *bytes = pot_alloc_aligned(pot_chunk_bytes(pot_model_routed(model, 4), 1));
    pot_err err;
    assert_int_equal(pot_model_load_chunk(bytes, model, 4, 5, 1, &err), POT_NUMERIC);
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
        pot_model *model = pot_must_open(directories[d], NULL);
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
    pot_model *model = pot_must_open(FIXTURE("eps"), &(pot_format_policy){.reference = true});
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
    pot_model *model = pot_must_open(FIXTURE("indexshare"), NULL);
    pot_hash first = pot_model_fingerprint(model);
    pot_model_close(model);
    model = pot_must_open(FIXTURE("indexshare"), NULL);
    assert_true(pot_hash_equal(first, pot_model_fingerprint(model)));
    pot_model_close(model);

    for (int i = 0; i < 10; i++) {
        pot_format_policy policy = pot_format_policy_default;
        pot_variant_begin(FIXTURE("indexshare"));
        bool equal = false;
        switch (i) {
        case 0:
            pot_variant_config("rope_parameters",
                               json_pack("{s:f,s:s}", "rope_theta", 8000001.0, "rope_type", "default"));
            break;
        case 1: pot_variant_config("routed_scaling_factor", json_real(2.25)); break;
        case 2: pot_variant_config("mla_norm_eps", json_real(1e-5)); break;
        case 3: policy.reference = true; break;
        case 4: policy.dense = POT_FORMAT_BF16; break;
        case 5: pot_variant_put("model.norm.weight", POT_DTYPE_F32, 0, 96, 0); break;
        case 6: pot_variant_config("index_topk", json_integer(13)); break;
        case 7: pot_variant_put("model.norm.weight", POT_DTYPE_BF16, 0, 96, 0x3c); break; /* only the numbers */
        case 8:
            pot_variant_config("eos_token_id", json_integer(5)), equal = true;
            break;                    /* the coordinator's own affair */
        default: equal = true; break; /* a copy */
        }
        model = pot_variant_open(&policy);
        if (pot_hash_equal(first, pot_model_fingerprint(model)) != equal) fail_msg("case %d", i);
        pot_model_close(model);
    }
}

/* The same tensors in two files, an expert's three matrices apart: the same model. */
static void shards_may_split_experts(void **state) {
    (void)state;
    pot_model *model = pot_must_open(FIXTURE("indexshare"), NULL);
    pot_hash one = pot_model_fingerprint(model);
    pot_model_close(model);
    pot_variant_begin(FIXTURE("indexshare"));
    model = pot_must_open(pot_variant_write(2), NULL);
    assert_true(pot_hash_equal(one, pot_model_fingerprint(model)));
    pot_model_close(model);
    pot_variant_end();
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
    };
    return cmocka_run_group_tests(tests, pot_variant_setup, pot_variant_teardown);
}
