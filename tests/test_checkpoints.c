/* model/model on checkpoints as they come: what is missing, unknown or superfluous, every layout in which a tensor may be stored and
 * those that are refused, each with its sentence, and damage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/mem.h"
#include "tests/variant.h"

#define FIXTURE(name) "tests/fixtures/" name

/* ---- the count in both directions ------------------------------------------------------------------------------------------- */

static void missing_and_unknown_tensors_are_listed(void **state) {
    (void)state;
    pot_variant_begin(FIXTURE("eps"));
    pot_variant_drop("model.layers.3.mlp.experts.2.up_proj.weight");
    pot_variant_refuse(POT_FORMAT,
                       ": 1 tensors are missing in 1 file; is a file missing, or does config.json belong to another "
                       "model? Missing: model.layers.3.mlp.experts.2.up_proj.weight");

    pot_variant_begin(FIXTURE("eps"));
    pot_variant_put("model.layers.0.self_attn.rotary_emb.inv_freq", POT_DTYPE_F32, 0, 4, 0);
    pot_variant_refuse(POT_FORMAT,
                       ": 1 of 159 tensors are unknown in 1 file; does config.json belong to another model? Unknown: "
                       "model.layers.0.self_attn.rotary_emb.inv_freq");

    pot_variant_begin(FIXTURE("eps"));
    pot_variant_drop_prefix("model.layers.5.mlp.experts.");
    pot_variant_put("extra", POT_DTYPE_F32, 0, 4, 0);
    pot_variant_refuse(
        POT_FORMAT,
        ": 15 tensors are missing and 1 of 144 tensors are unknown in 1 file; is a file missing, or does config.json "
        "belong to another model? Missing: model.layers.5.mlp.experts.0.gate_proj.weight, "
        "model.layers.5.mlp.experts.1.gate_proj.weight, model.layers.5.mlp.experts.2.gate_proj.weight, "
        "model.layers.5.mlp.experts.3.gate_proj.weight, model.layers.5.mlp.experts.4.gate_proj.weight, "
        "model.layers.5.mlp.experts.0.up_proj.weight, model.layers.5.mlp.experts.1.up_proj.weight, "
        "model.layers.5.mlp.experts.2.up_proj.weight and 7 more. Unknown: extra");

    pot_variant_begin(FIXTURE("eps")); /* a config with fewer layers does not quietly drop the rest */
    pot_variant_config("num_hidden_layers", json_integer(5));
    pot_variant_config("index_topk_pattern", json_string("FSFSS"));
    pot_variant_config("mlp_layer_types", NULL);
    const char *directory = pot_variant_write(1);
    pot_model *model = NULL;
    pot_err err;
    assert_int_equal(pot_model_open(&model, directory, &pot_format_policy_default, &err), POT_FORMAT);
    assert_non_null(strstr(err.text, ": 34 of 158 tensors are unknown in 1 file;"));
    pot_variant_end();
}

static uint64_t ignored(const pot_model *model) {
    pot_census_row rows[POT_CENSUS_ROWS];
    uint32_t n = pot_model_census(rows, POT_CENSUS_ROWS, model);
    return n && !strcmp(rows[n - 1].group, "ignored") ? rows[n - 1].tensors : 0;
}

static void known_extras_are_ignored(void **state) {
    (void)state;
    /* The MTP layer's copies of embeddings and head. */
    pot_variant_begin(FIXTURE("indexshare"));
    pot_variant_put("model.layers.8.embed_tokens.weight", POT_DTYPE_BF16, 320, 96, 0);
    pot_variant_put("model.layers.8.shared_head.head.weight", POT_DTYPE_BF16, 320, 96, 0);
    /* An indexer where the schedule says shared, in FP8. */
    pot_variant_put("model.layers.3.self_attn.indexer.wk.weight", POT_DTYPE_F8_E4M3, 32, 96, 0);
    pot_variant_put("model.layers.3.self_attn.indexer.wk.weight_scale_inv", POT_DTYPE_F32, 1, 1, 0);
    pot_variant_put("model.layers.3.self_attn.indexer.k_norm.bias", POT_DTYPE_BF16, 0, 32, 0);
    pot_model *model = pot_variant_open(NULL);
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
        pot_variant_begin(FIXTURE("indexshare"));
        pot_variant_put(others[i].name, POT_DTYPE_BF16, 0, 32, 0);
        if (!others[i].mtp) pot_variant_config("num_nextn_predict_layers", json_integer(0));
        snprintf(sentence, sizeof sentence,
                 ": 1 of 315 tensors are unknown in 1 file; does config.json belong to another model? Unknown: %s",
                 others[i].name);
        pot_variant_refuse(POT_FORMAT, sentence);
    }

    pot_variant_begin(FIXTURE("indexshare")); /* an MTP layer that the config does not count */
    pot_variant_config("num_nextn_predict_layers", json_integer(0));
    model = pot_variant_open(NULL);
    assert_int_equal(pot_model_layers(model), 8);
    assert_true(ignored(model) > 20);
    pot_model_close(model);
}

static void absent_mtp_layer_is_gone_without(void **state) {
    (void)state;
    pot_variant_begin(FIXTURE("indexshare"));
    pot_variant_drop_prefix("model.layers.8.");
    pot_model *model = pot_variant_open(NULL);
    assert_int_equal(pot_model_config(model)->n_mtp, 0);
    assert_int_equal(pot_model_layers(model), 8);
    pot_model_close(model);

    pot_variant_begin(FIXTURE("indexshare")); /* half of one is a fault */
    pot_variant_drop("model.layers.8.eh_proj.weight");
    pot_variant_refuse(POT_FORMAT,
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
        pot_variant_begin(FIXTURE("article4"));
        pot_variant_put(Q_A, cases[i].dtype, cases[i].rows, cases[i].cols, 0x11);
        pot_variant_put(Q_A ".qs", POT_DTYPE_F32, 0, cases[i].scales, 0x3c);
        pot_model *model = pot_variant_open(NULL);
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
        pot_variant_begin(FIXTURE("article4"));
        pot_variant_put(Q_A, cases[i].dtype, cases[i].rows, cases[i].cols, 0x11);
        pot_variant_put(Q_A ".qs", POT_DTYPE_F32, 0, cases[i].scales, 0x3c);
        pot_variant_refuse(POT_FORMAT, cases[i].sentence);
    }
    pot_variant_begin(FIXTURE("article4"));
    pot_variant_put(Q_A ".qs", POT_DTYPE_BF16, 0, 48, 0x3c);
    pot_variant_refuse(POT_FORMAT, ": tensor " Q_A ".qs is BF16, F32 was expected");
}

/* As many rows as there are blocks of 128 x 128: GLM's o_proj [6144, 16384] is such a matrix, here it is [96, 12288]. */
static void int8_rows_and_fp8_blocks_are_not_confused(void **state) {
    (void)state;
    for (int signed_bytes = 0; signed_bytes < 2; signed_bytes++) {
        pot_variant_begin(FIXTURE("article4"));
        pot_variant_config("intermediate_size", json_integer(12288));
        pot_variant_drop_prefix("model.layers.0.mlp.");
        pot_variant_put("model.layers.0.mlp.gate_proj.weight", POT_DTYPE_BF16, 12288, 96, 0);
        pot_variant_put("model.layers.0.mlp.up_proj.weight", POT_DTYPE_BF16, 12288, 96, 0);
        pot_variant_put("model.layers.0.mlp.down_proj.weight", signed_bytes ? POT_DTYPE_I8 : POT_DTYPE_U8, 0,
                        96 * 12288, 1);
        pot_variant_put("model.layers.0.mlp.down_proj.weight.qs", POT_DTYPE_F32, 0, 96, 0x3c);
        if (signed_bytes) {
            pot_model *model = pot_variant_open(NULL);
            assert_int_equal(pot_model_common(model, 0)->down_format, POT_FORMAT_Q8_ROW);
            assert_int_equal(pot_model_common(model, 0)->n_chunks, 48);
            pot_model_close(model);
        } else {
            pot_variant_refuse(
                POT_FORMAT, ": tensor model.layers.0.mlp.down_proj.weight is U8 [1179648] with 96 scales, which fits "
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
        pot_variant_begin(cases[i].fixture);
        pot_variant_put(cases[i].name, cases[i].dtype, cases[i].rows, cases[i].cols, 0x11);
        pot_variant_refuse(POT_FORMAT, cases[i].sentence);
    }
}

static void scales_of_mxfp4_may_be_called_e8m0(void **state) {
    (void)state;
    pot_variant_begin(FIXTURE("mxfp4"));
    pot_variant_put(EXPERT "_scale", POT_DTYPE_F8_E8M0, 288, 4, 120);
    pot_model *model = pot_variant_open(NULL);
    assert_int_equal(pot_model_routed(model, 2)->gate_up_format, POT_FORMAT_MXFP4);
    pot_model_close(model);
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
        pot_variant_begin(FIXTURE("eps"));
        pot_variant_drop_prefix("model.layers.2.mlp.experts.");
        pot_variant_put_stack(cases[i].gate_up, cases[i].dtype, 5, cases[i].rows, cases[i].cols);
        pot_variant_put_stack("model.layers.2.mlp.experts.down_proj", POT_DTYPE_F32, 5, 96, 64);
        if (cases[i].sentence)
            pot_variant_refuse(POT_FORMAT, cases[i].sentence);
        else
            pot_model_close(pot_variant_open(NULL));
    }
    pot_variant_begin(FIXTURE("eps")); /* both layouts at once */
    pot_variant_put_stack("model.layers.2.mlp.experts.gate_up_proj", POT_DTYPE_BF16, 5, 128, 96);
    pot_variant_refuse(POT_FORMAT,
                       ": 1 of 159 tensors are unknown in 1 file; does config.json belong to another model? Unknown: "
                       "model.layers.2.mlp.experts.gate_up_proj");
}

/* ---- damage ----------------------------------------------------------------------------------------------------------------- */

static void damaged_files_never_crash(void **state) {
    (void)state;
    char file[160];
    pot_variant_begin(FIXTURE("article4"));
    const char *directory = pot_variant_write(1);
    snprintf(file, sizeof file, "%s/model.safetensors", directory);
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
        if (pot_model_open(&model, directory, &pot_format_policy_default, &err)) {
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
    pot_variant_end();
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
    return cmocka_run_group_tests(tests, pot_variant_setup, pot_variant_teardown);
}
