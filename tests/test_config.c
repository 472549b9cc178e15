/* model/config: every rule of docs/model.md about config.json and generation_config.json, and the sentence of every refusal.
 * Cases are changes to a good config: {"key": value, ...} is put over it, and a null takes the key away. */
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
#include "model/config.h"

static json_t *base; /* the config of tests/fixtures/indexshare */

static int read_base(void **state) {
    (void)state;
    return pot_json_read(&base, "tests/fixtures/indexshare/config.json", 1 << 20, NULL) != POT_OK;
}

static int free_base(void **state) {
    (void)state;
    json_decref(base);
    return 0;
}

/* The base with changes, as text to be freed. */
static char *changed(const char *changes) {
    json_t *config = json_copy(base), *value, *over = json_loads(changes, 0, NULL);
    if (!over) fail_msg("the test's own JSON is broken: %s", changes);
    const char *key;
    json_object_foreach(over, key, value) {
        if (json_is_null(value))
            json_object_del(config, key);
        else
            json_object_set(config, key, value);
    }
    char *text = json_dumps(config, 0);
    json_decref(over);
    json_decref(config);
    return text;
}

static pot_status parse(pot_config *out, const char *changes, const char *generation, pot_err *err) {
    char *text = changed(changes);
    pot_status s = pot_config_parse(out, text, strlen(text), generation, generation ? strlen(generation) : 0, "c", err);
    free(text);
    return s;
}

static pot_config accept(const char *changes, const char *generation) {
    pot_config c;
    pot_err err;
    if (parse(&c, changes, generation, &err)) fail_msg("%s: %s", changes, err.text);
    return c;
}

/* "FFS": the schedule as letters. */
static const char *schedule_of(const pot_config *c) {
    static char text[POT_MAX_LAYERS + 1];
    for (uint32_t i = 0; i < c->n_layers + c->n_mtp; i++) text[i] = c->layer_is_full[i] ? 'F' : 'S';
    text[c->n_layers + c->n_mtp] = 0;
    return text;
}

/* ---- what is read ------------------------------------------------------------------------------------------------------- */

static void config_is_read_from_a_directory(void **state) {
    (void)state;
    pot_config c;
    pot_err err;
    if (pot_config_read(&c, "demo", &err)) fail_msg("%s", err.text);
    assert_int_equal(c.vocab, 2048);
    assert_int_equal(c.hidden, 192);
    assert_int_equal(c.dense_inner, 384);
    assert_int_equal(c.moe_inner, 64);
    assert_int_equal(c.n_layers, 5);
    assert_int_equal(c.n_mtp, 1);
    assert_int_equal(c.n_heads, 6);
    assert_int_equal(c.q_lora, 96);
    assert_int_equal(c.kv_lora, 64);
    assert_int_equal(c.nope_dim, 32);
    assert_int_equal(c.rope_dim, 16); /* and not head_dim, which is 32 */
    assert_int_equal(c.v_dim, 32);
    assert_int_equal(c.n_routed, 64);
    assert_int_equal(c.n_shared, 1);
    assert_int_equal(c.top_k, 4);
    assert_int_equal(c.n_group, 1);
    assert_int_equal(c.topk_group, 1);
    assert_true(c.norm_topk_prob);
    assert_true(c.routed_scale == 2.5f);
    assert_true(c.rms_eps == 1e-5f && c.mla_eps == 1e-5f);
    assert_true(c.rope_theta == 10000);
    assert_int_equal(c.index_dim, 32);
    assert_int_equal(c.index_heads, 8);
    assert_int_equal(c.index_topk, 64);
    assert_int_equal(c.max_positions, 4096);
    assert_string_equal(schedule_of(&c), "FFFSSF"); /* the MTP layer is always full */
    for (uint32_t i = 0; i < 6; i++) assert_int_equal(c.layer_is_dense[i], i == 0);
    assert_int_equal(c.n_eos, 3);
    assert_int_equal(c.eos[0], 2012);
}

static void every_fixture_is_read(void **state) {
    (void)state;
    static const struct {
        const char *directory, *schedule;
        uint32_t n_eos;
        double theta;
    } cases[] = {
        {"tests/fixtures/indexshare", "FFFSSSFSF", 2, 8e6},
        {"tests/fixtures/experts256", "FFF", 2, 1e6},
        {"tests/fixtures/fp8", "FFFSF", 2, 8e6},
        {"tests/fixtures/mxfp4", "FFFSF", 2, 8e6},
        {"tests/fixtures/eps", "FSFSSF", 1, 5e4},
        {"tests/fixtures/article4", "FFFF", 2, 8e6},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_config c;
        pot_err err;
        if (pot_config_read(&c, cases[i].directory, &err)) fail_msg("%s", err.text);
        assert_string_equal(schedule_of(&c), cases[i].schedule);
        assert_int_equal(c.n_eos, cases[i].n_eos);
        assert_true(c.rope_theta == cases[i].theta);
    }
}

static void schedule_rules_have_an_order(void **state) {
    (void)state;
    static const struct {
        const char *changes, *schedule;
    } cases[] = {
        /* The list wins over everything. */
        {"{\"indexer_types\":[\"full\",\"shared\",\"full\",\"full\",\"shared\",\"shared\",\"shared\",\"full\"],"
         "\"index_topk_pattern\":\"FFFFFFFF\",\"index_topk_freq\":4,\"index_skip_topk_offset\":3}",
         "FSFFSSSFF"},
        {"{\"indexer_types\":null,\"index_topk_pattern\":\"FSSSFFFS\"}", "FSSSFFFSF"},
        {"{\"indexer_types\":null,\"index_topk_pattern\":[\"F\",\"S\",\"S\",\"S\",\"F\",\"F\",\"F\",\"S\"]}",
         "FSSSFFFSF"},
        {"{\"indexer_types\":null,\"index_topk_freq\":4,\"index_skip_topk_offset\":3}", "FFFSSSFSF"},
        {"{\"indexer_types\":null,\"index_topk_freq\":null,\"index_skip_topk_offset\":null}", "FFFFFFFFF"},
        {"{\"indexer_types\":null,\"index_topk_freq\":3,\"index_skip_topk_offset\":null}", "FFSSFSSFF"},
        {"{\"indexer_types\":null,\"index_topk_freq\":0}", "FFFFFFFFF"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_config c = accept(cases[i].changes, NULL);
        if (strcmp(schedule_of(&c), cases[i].schedule))
            fail_msg("%s: %s, expected %s", cases[i].changes, schedule_of(&c), cases[i].schedule);
    }
}

/* The published numbers: 78 layers, freq 4, offset 3 give 21 full layers. */
static void schedule_of_glm52_has_21_full_layers(void **state) {
    (void)state;
    pot_config c = accept("{\"indexer_types\":null,\"mlp_layer_types\":null,\"num_hidden_layers\":78}", NULL);
    uint32_t full = 0;
    for (uint32_t i = 0; i < 78; i++) {
        full += c.layer_is_full[i];
        assert_int_equal(c.layer_is_full[i], i < 3 || i % 4 == 2);
        assert_int_equal(c.layer_is_dense[i], i < 3);
    }
    assert_int_equal(full, 21);
    assert_true(c.layer_is_full[78] && !c.layer_is_dense[78]);
}

static void layer_types_win_over_first_k_dense(void **state) {
    (void)state;
    pot_config c =
        accept("{\"mlp_layer_types\":[\"dense\",\"sparse\",\"dense\",\"sparse\",\"sparse\",\"sparse\",\"sparse\","
               "\"sparse\"],\"moe_layer_freq\":2,\"first_k_dense_replace\":5}",
               NULL);
    for (uint32_t i = 0; i < 9; i++) assert_int_equal(c.layer_is_dense[i], i == 0 || i == 2);
    c = accept("{\"mlp_layer_types\":null,\"first_k_dense_replace\":5}", NULL);
    for (uint32_t i = 0; i < 9; i++) assert_int_equal(c.layer_is_dense[i], i < 5);
}

static void rope_theta_may_be_nested_or_flat(void **state) {
    (void)state;
    assert_true(accept("{}", NULL).rope_theta == 8e6);
    assert_true(accept("{\"rope_theta\":123}", NULL).rope_theta == 8e6); /* nested wins */
    assert_true(accept("{\"rope_theta\":123,\"rope_parameters\":null}", NULL).rope_theta == 123);
    assert_true(accept("{\"rope_theta\":123,\"rope_parameters\":{\"rope_type\":\"default\"}}", NULL).rope_theta == 123);
    assert_true(accept("{\"rope_scaling\":{\"type\":\"default\",\"factor\":1.0}}", NULL).rope_theta == 8e6);
}

static void epsilon_of_mla_has_its_own_key(void **state) {
    (void)state;
    pot_config c = accept("{\"rms_norm_eps\":1e-2}", NULL);
    assert_true(c.rms_eps == 1e-2f && c.mla_eps == 1e-2f);
    c = accept("{\"rms_norm_eps\":1e-5,\"mla_norm_eps\":1e-6}", NULL);
    assert_true(c.rms_eps == 1e-5f && c.mla_eps == 1e-6f);
}

static void groups_are_read(void **state) {
    (void)state;
    pot_config c = accept("{\"n_routed_experts\":12,\"n_group\":4,\"topk_group\":2,\"num_experts_per_tok\":6}", NULL);
    assert_int_equal(c.n_group, 4);
    assert_int_equal(c.topk_group, 2);
    c = accept("{\"n_group\":null,\"topk_group\":null}", NULL);
    assert_int_equal(c.n_group, 1);
    assert_int_equal(c.topk_group, 1);
}

static void end_of_text_is_a_union(void **state) {
    (void)state;
    static const struct {
        const char *changes, *generation;
        uint32_t n;
        int32_t ids[4];
    } cases[] = {
        {"{\"eos_token_id\":7}", NULL, 1, {7}},
        {"{\"eos_token_id\":[7,8,7]}", NULL, 2, {7, 8}},
        {"{\"eos_token_id\":null}", NULL, 0, {0}},
        {"{\"eos_token_id\":null}", "{\"eos_token_id\":[3]}", 1, {3}},
        {"{\"eos_token_id\":[7,8]}", "{\"eos_token_id\":9}", 3, {7, 8, 9}},
        {"{\"eos_token_id\":[7,8]}", "{\"eos_token_id\":[8,319]}", 3, {7, 8, 319}},
        {"{\"eos_token_id\":[]}", "{\"eos_token_id\":null}", 0, {0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_config c = accept(cases[i].changes, cases[i].generation);
        assert_int_equal(c.n_eos, cases[i].n);
        for (uint32_t k = 0; k < c.n_eos; k++) assert_int_equal(c.eos[k], cases[i].ids[k]);
    }
}

static void sampling_defaults_come_from_generation_config(void **state) {
    (void)state;
    pot_config c = accept("{}", NULL);
    assert_true(c.temperature == 1 && c.top_p == 1 && c.top_k_sampling == 0);
    c = accept("{}", "{\"temperature\":0.6,\"top_p\":0.95,\"top_k\":40,\"do_sample\":true}");
    assert_true(c.temperature == 0.6f && c.top_p == 0.95f && c.top_k_sampling == 40);
}

/* ---- what is refused ---------------------------------------------------------------------------------------------------- */

static void refusal_names_key_and_reason(void **state) {
    (void)state;
    static const struct {
        const char *changes;
        pot_status status;
        const char *sentence;
    } cases[] = {
        {"{\"model_type\":\"glm5_next\"}", POT_CONFIG,
         "c: model_type is \"glm5_next\" (GLM-5.3-Flash has linear attention in most layers); this version runs "
         "glm_moe_dsa: "
         "GLM-5, 5.1, 5.2 and 5.3"},
        {"{\"model_type\":\"glm4_moe\"}", POT_CONFIG,
         "c: model_type is \"glm4_moe\" (GLM-4.5, 4.6 and 4.7 have grouped-query attention); this version runs "
         "glm_moe_dsa: "
         "GLM-5, 5.1, 5.2 and 5.3"},
        {"{\"model_type\":\"glm4_moe_lite\"}", POT_CONFIG,
         "c: model_type is \"glm4_moe_lite\" (GLM-4.7-Flash has no indexer); this version runs glm_moe_dsa: GLM-5, "
         "5.1, 5.2 "
         "and 5.3"},
        {"{\"model_type\":\"llama\"}", POT_CONFIG,
         "c: model_type is \"llama\"; this version runs glm_moe_dsa: GLM-5, 5.1, 5.2 and 5.3"},
        {"{\"model_type\":null}", POT_FORMAT, "c: `model_type` is missing, a string was expected"},
        {"{\"rope_parameters\":{\"rope_theta\":8e6,\"rope_type\":\"yarn\"}}", POT_CONFIG,
         "c: rope_parameters.rope_type is \"yarn\", only \"default\" is computed (others turn and scale attention "
         "differently)"},
        {"{\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}}", POT_CONFIG,
         "c: rope_scaling.type is \"linear\", only \"default\" is computed (others turn and scale attention "
         "differently)"},
        {"{\"rope_scaling\":{\"factor\":4}}", POT_CONFIG, "c: rope_scaling.factor is 4, only 1 is computed"},
        {"{\"rope_parameters\":{\"rope_theta\":8e6,\"partial_rotary_factor\":0.5}}", POT_CONFIG,
         "c: rope_parameters.partial_rotary_factor is 0.5, only 1 is computed"},
        {"{\"rope_scaling\":7}", POT_FORMAT, "c: rope_scaling must be an object"},
        {"{\"rope_parameters\":null}", POT_FORMAT, "c: `rope_theta` is missing, a number was expected"},
        {"{\"rope_parameters\":{\"rope_theta\":0}}", POT_FORMAT, "c: `rope_theta` is 0, from 1 to 1e+15 was expected"},
        {"{\"attention_bias\":true}", POT_CONFIG,
         "c: attention_bias is true: biases of attention projections are not computed"},
        {"{\"hidden_act\":\"gelu\"}", POT_CONFIG, "c: hidden_act is \"gelu\", only \"silu\" is computed"},
        {"{\"scoring_func\":\"softmax\"}", POT_CONFIG, "c: scoring_func is \"softmax\", only \"sigmoid\" is computed"},
        {"{\"topk_method\":\"greedy\"}", POT_CONFIG, "c: topk_method is \"greedy\", only \"noaux_tc\" is computed"},
        {"{\"rope_interleave\":false}", POT_CONFIG,
         "c: rope_interleave is false: only the interleaved rotation is computed"},
        {"{\"indexer_rope_interleave\":false}", POT_CONFIG,
         "c: indexer_rope_interleave is false: only the interleaved rotation is computed"},
        {"{\"tie_word_embeddings\":true}", POT_CONFIG,
         "c: tie_word_embeddings is true: a head shared with the embeddings is not computed"},
        {"{\"indexer_types\":[\"shared\",\"full\",\"full\",\"full\",\"full\",\"full\",\"full\",\"full\"]}", POT_CONFIG,
         "c: layer 0 is to share the selection of a full layer, but there is none before it"},
        {"{\"indexer_types\":null,\"index_topk_freq\":2,\"index_skip_topk_offset\":0}", POT_CONFIG,
         "c: layer 0 is to share the selection of a full layer, but there is none before it"},
        {"{\"indexer_types\":[\"full\"]}", POT_CONFIG, "c: indexer_types has 1 entries, the model has 8 layers"},
        {"{\"indexer_types\":[\"full\",\"half\",\"full\",\"full\",\"full\",\"full\",\"full\",\"full\"]}", POT_CONFIG,
         "c: indexer_types[1] is \"half\", \"full\" or \"shared\" was expected"},
        {"{\"indexer_types\":[\"full\",1,\"full\",\"full\",\"full\",\"full\",\"full\",\"full\"]}", POT_CONFIG,
         "c: indexer_types[1] is no text, \"full\" or \"shared\" was expected"},
        {"{\"indexer_types\":\"full\"}", POT_FORMAT, "c: indexer_types must be a list"},
        {"{\"indexer_types\":null,\"index_topk_pattern\":\"FFF\"}", POT_CONFIG,
         "c: index_topk_pattern is \"FFF\", F or S for each of 8 layers was expected"},
        {"{\"indexer_types\":null,\"index_topk_pattern\":\"FFFxFFFF\"}", POT_CONFIG,
         "c: index_topk_pattern is \"FFFxFFFF\", F or S for each of 8 layers was expected"},
        {"{\"mlp_layer_types\":[\"moe\",\"dense\",\"dense\",\"dense\",\"dense\",\"dense\",\"dense\",\"dense\"]}",
         POT_CONFIG, "c: mlp_layer_types[0] is \"moe\", \"dense\" or \"sparse\" was expected"},
        {"{\"mlp_layer_types\":null,\"moe_layer_freq\":2}", POT_CONFIG, "c: moe_layer_freq is 2, only 1 is computed"},
        {"{\"mlp_layer_types\":null,\"first_k_dense_replace\":9}", POT_FORMAT,
         "c: `first_k_dense_replace` is 9, from 0 to 8 was expected"},
        {"{\"num_nextn_predict_layers\":2}", POT_CONFIG, "c: num_nextn_predict_layers is 2, at most 1 is computed"},
        {"{\"qk_rope_head_dim\":15,\"qk_head_dim\":null}", POT_CONFIG,
         "c: qk_rope_head_dim is 15, the rotation needs pairs"},
        {"{\"qk_head_dim\":41}", POT_CONFIG, "c: qk_head_dim is 41, qk_nope_head_dim and qk_rope_head_dim make 40"},
        {"{\"index_head_dim\":8}", POT_CONFIG,
         "c: index_head_dim 8 is less than qk_rope_head_dim 16, which it contains"},
        {"{\"moe_intermediate_size\":1048576,\"n_shared_experts\":2}", POT_CONFIG,
         "c: moe_intermediate_size 1048576 times n_shared_experts 2 is above 1048576"},
        {"{\"num_experts_per_tok\":10}", POT_CONFIG, "c: num_experts_per_tok is 10, but n_routed_experts is 9"},
        {"{\"n_group\":2}", POT_CONFIG, "c: n_routed_experts 9 cannot be divided into n_group 2"},
        {"{\"n_group\":10}", POT_CONFIG, "c: n_routed_experts 9 cannot be divided into n_group 10"},
        {"{\"n_group\":0}", POT_FORMAT, "c: `n_group` is 0, from 1 to 256 was expected"},
        {"{\"n_group\":9,\"topk_group\":2}", POT_CONFIG,
         "c: topk_group 2 of 9 groups with 1 experts each cannot give 3 experts a token"},
        {"{\"n_group\":3,\"topk_group\":4}", POT_CONFIG,
         "c: topk_group 4 of 3 groups with 3 experts each cannot give 3 experts a token"},
        {"{\"num_hidden_layers\":0}", POT_FORMAT, "c: `num_hidden_layers` is 0, from 1 to 255 was expected"},
        {"{\"num_hidden_layers\":-1}", POT_FORMAT, "c: `num_hidden_layers` is -1, from 1 to 255 was expected"},
        {"{\"num_hidden_layers\":1000000000}", POT_FORMAT,
         "c: `num_hidden_layers` is 1000000000, from 1 to 255 was expected"},
        {"{\"hidden_size\":\"96\"}", POT_FORMAT, "c: `hidden_size` is a string, an integer was expected"},
        {"{\"hidden_size\":96.5}", POT_FORMAT, "c: `hidden_size` is a number with a fraction, an integer was expected"},
        {"{\"vocab_size\":1099511627776}", POT_FORMAT,
         "c: `vocab_size` is 1099511627776, from 1 to 16777216 was expected"},
        {"{\"index_topk\":null}", POT_FORMAT, "c: `index_topk` is missing, an integer was expected"},
        {"{\"index_n_heads\":null}", POT_FORMAT, "c: `index_n_heads` is missing, an integer was expected"},
        {"{\"routed_scaling_factor\":null}", POT_FORMAT,
         "c: `routed_scaling_factor` is missing, a number was expected"},
        {"{\"rms_norm_eps\":-1}", POT_FORMAT, "c: `rms_norm_eps` is -1, from 0 to 1 was expected"},
        {"{\"norm_topk_prob\":1}", POT_FORMAT, "c: `norm_topk_prob` is an integer, true or false was expected"},
        {"{\"eos_token_id\":320}", POT_CONFIG, "c: an eos_token_id is no token: numbers from 0 to 319 were expected"},
        {"{\"eos_token_id\":[1,-1]}", POT_CONFIG,
         "c: an eos_token_id is no token: numbers from 0 to 319 were expected"},
        {"{\"eos_token_id\":\"x\"}", POT_CONFIG, "c: an eos_token_id is no token: numbers from 0 to 319 were expected"},
        {"{\"eos_token_id\":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32]"
         "}",
         POT_LIMIT, "c: more than 32 eos_token_ids"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_config c = {.vocab = 77};
        pot_err err = {0};
        pot_status s = parse(&c, cases[i].changes, NULL, &err);
        if (s != cases[i].status || strcmp(err.text, cases[i].sentence))
            fail_msg("%s: says \"%s\" (%s)\n   expected \"%s\"", cases[i].changes, err.text, pot_status_name(s),
                     cases[i].sentence);
        assert_int_equal(c.vocab, 77); /* nothing is written on failure */
    }
}

static void generation_config_is_checked(void **state) {
    (void)state;
    static const struct {
        const char *generation, *sentence;
    } cases[] = {
        {"[]", "generation_config.json: not a JSON object"},
        {"{\"top_p\":1.5}", "generation_config.json: `top_p` is 1.5, from 0 to 1 was expected"},
        {"{\"temperature\":\"hot\"}", "generation_config.json: `temperature` is a string, a number was expected"},
        {"{\"eos_token_id\":[320]}",
         "generation_config.json: an eos_token_id is no token: numbers from 0 to 319 were expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_config c;
        pot_err err = {0};
        assert_int_not_equal(parse(&c, "{}", cases[i].generation, &err), POT_OK);
        assert_string_equal(err.text, cases[i].sentence);
    }
    pot_err err;
    assert_int_equal(parse(&(pot_config){0}, "{}", "{", &err), POT_FORMAT);
    assert_non_null(strstr(err.text, "generation_config.json: not valid JSON"));
}

/* 300 MB of config: refused before it is read.  The file is sparse. */
static void huge_file_is_refused_unread(void **state) {
    (void)state;
    char directory[] = "/tmp/potluck-test-XXXXXX", path[64];
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/config.json", directory);
    assert_int_equal(pot_file_write(path, "{}", 2, NULL), POT_OK);
    assert_int_equal(truncate(path, 300000000), 0);
    pot_config c;
    pot_err err;
    assert_int_equal(pot_config_read(&c, directory, &err), POT_LIMIT);
    assert_non_null(strstr(err.text, "/config.json: 300000000 bytes or more, at most 4194304 are accepted"));
    unlink(path);
    assert_int_equal(pot_config_read(&c, directory, &err), POT_NOT_FOUND);
    assert_non_null(strstr(err.text, "/config.json: cannot be opened: No such file"));
    rmdir(directory);
    assert_int_equal(pot_config_read(&c, directory, &err), POT_NOT_FOUND);
    assert_non_null(strstr(err.text, ": no such directory; a model is a directory with config.json"));
}

static void broken_text_never_crashes(void **state) {
    (void)state;
    char *text = changed("{}");
    const size_t n = strlen(text);
    pot_config c;
    pot_err err;
    for (size_t cut = 0; cut < n; cut++) {
        char *copy = malloc(cut ? cut : 1);
        memcpy(copy, text, cut);
        assert_int_not_equal(pot_config_parse(&c, copy, cut, NULL, 0, "c", &err), POT_OK);
        free(copy);
    }
    for (size_t at = 0; at < n; at++) /* a number grows, a word changes, a bracket goes */
        for (const char *with = "9-\"[}\x80"; *with; with++) {
            char kept = text[at];
            text[at] = *with;
            pot_config_parse(&c, text, n, NULL, 0, "c", &err);
            text[at] = kept;
        }
    free(text);
}

static void memory_may_end_anywhere(void **state) {
    (void)state;
    pot_status s = POT_NO_MEMORY;
    uint64_t nth = 1;
    for (; s != POT_OK && nth < 100; nth++) {
        pot_config c;
        pot_mem_fail_at(nth);
        s = pot_config_read(&c, "demo", NULL);
        pot_mem_fail_at(0);
        assert_true(s == POT_OK || s == POT_NO_MEMORY);
    }
    assert_int_equal(s, POT_OK);
    assert_true(nth > 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(config_is_read_from_a_directory),
        cmocka_unit_test(every_fixture_is_read),
        cmocka_unit_test(schedule_rules_have_an_order),
        cmocka_unit_test(schedule_of_glm52_has_21_full_layers),
        cmocka_unit_test(layer_types_win_over_first_k_dense),
        cmocka_unit_test(rope_theta_may_be_nested_or_flat),
        cmocka_unit_test(epsilon_of_mla_has_its_own_key),
        cmocka_unit_test(groups_are_read),
        cmocka_unit_test(end_of_text_is_a_union),
        cmocka_unit_test(sampling_defaults_come_from_generation_config),
        cmocka_unit_test(refusal_names_key_and_reason),
        cmocka_unit_test(generation_config_is_checked),
        cmocka_unit_test(huge_file_is_refused_unread),
        cmocka_unit_test(broken_text_never_crashes),
        cmocka_unit_test(memory_may_end_anywhere),
    };
    return cmocka_run_group_tests(tests, read_base, free_base);
}
