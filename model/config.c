/* config.json is read key by key through typed getters with bounds, then checked as a whole.  Bounds are generous: they keep sizes
 * from overflowing, not future models out. */
#include "model/config.h"

#include <string.h>

#include "common/file.h"
#include "common/json.h"
#include "common/mem.h"

/* MAX_DIM is also the widest expert that can be placed: 4096 chunks of 256. */
enum { MAX_CONFIG_BYTES = 4 * 1024 * 1024, MAX_DIM = 1 << 20 };

typedef struct reader {
    const json_t *root;
    const char *name;
    pot_err *err;
} reader;

/* ---- getters ------------------------------------------------------------------------------------------------------- */

static pot_status get_u32(const reader *r, uint32_t *out, const char *key, int64_t min, int64_t max, bool required) {
    int64_t value = *out;
    pot_status s = pot_json_int(&value, r->root, key, min, max, required, r->name, r->err);
    if (s == POT_OK) *out = (uint32_t)value;
    return s;
}

static pot_status get_float(const reader *r, float *out, const char *key, double min, double max, bool required) {
    double value = *out;
    pot_status s = pot_json_double(&value, r->root, key, min, max, required, r->name, r->err);
    if (s == POT_OK) *out = (float)value;
    return s;
}

/* Absent is fine; another value than `want` is something that we do not compute. */
static pot_status need_text(const reader *r, const char *key, const char *want) {
    const char *got = want;
    pot_status s = pot_json_string(&got, r->root, key, false, r->name, r->err);
    if (s == POT_OK && strcmp(got, want) != 0)
        s = pot_fail(r->err, POT_CONFIG, "%s: %s is \"%.60s\", only \"%s\" is computed", r->name, key, got, want);
    return s;
}

static pot_status need_bool(const reader *r, const char *key, bool want, const char *why) {
    bool got = want;
    pot_status s = pot_json_bool(&got, r->root, key, false, r->name, r->err);
    if (s == POT_OK && got != want)
        s = pot_fail(r->err, POT_CONFIG, "%s: %s is %s: %s", r->name, key, got ? "true" : "false", why);
    return s;
}

/* ---- what is refused ------------------------------------------------------------------------------------------------ */

static pot_status check_type(const reader *r) {
    static const struct {
        const char *type, *why;
    } relatives[] = {
        {"glm5_next", " (GLM-5.3-Flash has linear attention in most layers)"},
        {"glm4_moe", " (GLM-4.5, 4.6 and 4.7 have grouped-query attention)"},
        {"glm4_moe_lite", " (GLM-4.7-Flash has no indexer)"},
    };
    const char *type = NULL, *why = "";
    pot_status s = pot_json_string(&type, r->root, "model_type", true, r->name, r->err);
    if (s != POT_OK || strcmp(type, "glm_moe_dsa") == 0) return s;
    for (size_t i = 0; i < sizeof relatives / sizeof *relatives; i++)
        if (strcmp(type, relatives[i].type) == 0) why = relatives[i].why;
    return pot_fail(r->err, POT_CONFIG,
                    "%s: model_type is \"%.60s\"%s; this version runs glm_moe_dsa: GLM-5, 5.1, 5.2 and 5.3", r->name,
                    type, why);
}

static pot_status check_kind(const reader *r) {
    pot_status s = check_type(r);
    if (s == POT_OK) s = need_text(r, "hidden_act", "silu");
    if (s == POT_OK) s = need_text(r, "scoring_func", "sigmoid");
    if (s == POT_OK) s = need_text(r, "topk_method", "noaux_tc");
    if (s == POT_OK) s = need_bool(r, "attention_bias", false, "biases of attention projections are not computed");
    if (s == POT_OK)
        s = need_bool(r, "tie_word_embeddings", false, "a head shared with the embeddings is not computed");
    if (s == POT_OK) s = need_bool(r, "rope_interleave", true, "only the interleaved rotation is computed");
    if (s == POT_OK) s = need_bool(r, "indexer_rope_interleave", true, "only the interleaved rotation is computed");
    return s;
}

/* ---- rope ------------------------------------------------------------------------------------------------------------ */

/* rope_parameters (new) or rope_scaling (old): no scaling of any kind is computed. */
static pot_status check_rope(const reader *r, const json_t *rope, const char *where) {
    static const char *const keys[] = {"rope_type", "type"};
    if (!rope || json_is_null(rope)) return POT_OK;
    if (!json_is_object(rope)) return pot_fail(r->err, POT_FORMAT, "%s: %s must be an object", r->name, where);
    for (int i = 0; i < 2; i++) {
        const char *type = "default";
        pot_status s = pot_json_string(&type, rope, keys[i], false, r->name, r->err);
        if (s != POT_OK) return s;
        if (strcmp(type, "default") != 0)
            return pot_fail(
                r->err, POT_CONFIG,
                "%s: %s.%s is \"%.60s\", only \"default\" is computed (others turn and scale attention differently)",
                r->name, where, keys[i], type);
    }
    static const char *const scales[] = {"factor", "partial_rotary_factor"};
    for (int i = 0; i < 2; i++) {
        double scale = 1;
        pot_status s = pot_json_double(&scale, rope, scales[i], 0, 1e9, false, r->name, r->err);
        if (s != POT_OK) return s;
        if (scale != 1)
            return pot_fail(r->err, POT_CONFIG, "%s: %s.%s is %g, only 1 is computed", r->name, where, scales[i],
                            scale);
    }
    return POT_OK;
}

/* The nested rope_theta wins over the flat one. */
static pot_status read_rope(pot_config *c, const reader *r) {
    const json_t *rope = json_object_get(r->root, "rope_parameters");
    pot_status s = check_rope(r, json_object_get(r->root, "rope_scaling"), "rope_scaling");
    if (s == POT_OK) s = check_rope(r, rope, "rope_parameters");
    const json_t *theta = json_object_get(rope, "rope_theta");
    bool nested = theta && json_typeof(theta) != JSON_NULL;
    if (s == POT_OK)
        s = pot_json_double(&c->rope_theta, nested ? rope : r->root, "rope_theta", 1, 1e15, true, r->name, r->err);
    return s;
}

/* ---- layers ---------------------------------------------------------------------------------------------------------- */

/* A list with one of two words for each layer; out[i] says whether it is `yes`. */
static pot_status read_words(bool *out, const pot_config *c, const reader *r, const json_t *list, const char *key,
                             const char *yes, const char *no) {
    if (!json_is_array(list)) return pot_fail(r->err, POT_FORMAT, "%s: %s must be a list", r->name, key);
    if (json_array_size(list) != c->n_layers)
        return pot_fail(r->err, POT_CONFIG, "%s: %s has %zu entries, the model has %u layers", r->name, key,
                        json_array_size(list), c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *word = json_string_value(json_array_get(list, i));
        if (!word || (strcmp(word, yes) != 0 && strcmp(word, no) != 0))
            return pot_fail(r->err, POT_CONFIG, "%s: %s[%u] is %s%.60s%s, \"%s\" or \"%s\" was expected", r->name, key,
                            i, word ? "\"" : "", word ? word : "no text", word ? "\"" : "", yes, no);
        out[i] = strcmp(word, yes) == 0;
    }
    return POT_OK;
}

static pot_status read_schedule(pot_config *c, const reader *r) {
    const json_t *types = json_object_get(r->root, "indexer_types"),
                 *pattern = json_object_get(r->root, "index_topk_pattern");
    uint32_t freq = 1, offset = 2;
    pot_status s = get_u32(r, &freq, "index_topk_freq", 0, POT_MAX_LAYERS, false);
    if (s == POT_OK) s = get_u32(r, &offset, "index_skip_topk_offset", 0, POT_MAX_LAYERS, false);
    if (s != POT_OK) return s;
    if (types && !json_is_null(types)) {
        s = read_words(c->layer_is_full, c, r, types, "indexer_types", "full", "shared");
    } else if (json_is_string(pattern)) {
        const char *text = json_string_value(pattern);
        if (strspn(text, "FS") != c->n_layers || text[c->n_layers])
            return pot_fail(r->err, POT_CONFIG,
                            "%s: index_topk_pattern is \"%.300s\", F or S for each of %u layers was expected", r->name,
                            text, c->n_layers);
        for (uint32_t i = 0; i < c->n_layers; i++) c->layer_is_full[i] = text[i] == 'F';
    } else if (pattern && !json_is_null(pattern)) {
        s = read_words(c->layer_is_full, c, r, pattern, "index_topk_pattern", "F", "S");
    } else {
        for (uint32_t i = 0; i < c->n_layers; i++) {
            uint32_t step = i + 1 > offset ? i + 1 - offset : 0;
            c->layer_is_full[i] = step % (freq ? freq : 1) == 0;
        }
    }
    for (uint32_t i = 0; i < c->n_mtp; i++) c->layer_is_full[c->n_layers + i] = true;
    if (s == POT_OK && !c->layer_is_full[0])
        s = pot_fail(r->err, POT_CONFIG,
                     "%s: layer 0 is to share the selection of a full layer, but there is none before it", r->name);
    return s;
}

static pot_status read_layer_kinds(pot_config *c, const reader *r) {
    const json_t *types = json_object_get(r->root, "mlp_layer_types");
    uint32_t dense = 0, every = 1;
    pot_status s = get_u32(r, &dense, "first_k_dense_replace", 0, c->n_layers, false);
    if (s == POT_OK) s = get_u32(r, &every, "moe_layer_freq", 0, POT_MAX_LAYERS, false);
    if (s != POT_OK) return s;
    if (!types || json_is_null(types)) {
        if (every != 1)
            return pot_fail(r->err, POT_CONFIG, "%s: moe_layer_freq is %u, only 1 is computed", r->name, every);
        for (uint32_t i = 0; i < dense; i++) c->layer_is_dense[i] = true;
        return POT_OK;
    }
    return read_words(c->layer_is_dense, c, r, types, "mlp_layer_types", "dense", "sparse");
}

static pot_status check_router(const pot_config *c, const reader *r) {
    if (c->top_k > c->n_routed)
        return pot_fail(r->err, POT_CONFIG, "%s: num_experts_per_tok is %u, but n_routed_experts is %u", r->name,
                        c->top_k, c->n_routed);
    if (c->n_routed % c->n_group)
        return pot_fail(r->err, POT_CONFIG, "%s: n_routed_experts %u cannot be divided into n_group %u", r->name,
                        c->n_routed, c->n_group);
    if (c->topk_group > c->n_group || (uint64_t)c->topk_group * (c->n_routed / c->n_group) < c->top_k)
        return pot_fail(r->err, POT_CONFIG,
                        "%s: topk_group %u of %u groups with %u experts each cannot give %u experts a token", r->name,
                        c->topk_group, c->n_group, c->n_routed / c->n_group, c->top_k);
    return POT_OK;
}

/* ---- end of text ----------------------------------------------------------------------------------------------------- */

static pot_status add_eos(pot_config *c, const json_t *value, const char *name, pot_err *err) {
    if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) >= c->vocab)
        return pot_fail(err, POT_CONFIG, "%s: an eos_token_id is no token: numbers from 0 to %u were expected", name,
                        c->vocab - 1);
    int32_t id = (int32_t)json_integer_value(value);
    for (uint32_t i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return POT_OK;
    if (c->n_eos == POT_MAX_EOS) return pot_fail(err, POT_LIMIT, "%s: more than %d eos_token_ids", name, POT_MAX_EOS);
    c->eos[c->n_eos++] = id;
    return POT_OK;
}

static pot_status read_eos(pot_config *c, const json_t *root, const char *name, pot_err *err) {
    const json_t *eos = json_object_get(root, "eos_token_id");
    if (!eos || json_is_null(eos)) return POT_OK;
    if (!json_is_array(eos)) return add_eos(c, eos, name, err);
    pot_status s = POT_OK;
    for (size_t i = 0; i < json_array_size(eos) && s == POT_OK; i++) s = add_eos(c, json_array_get(eos, i), name, err);
    return s;
}

/* ---- the whole -------------------------------------------------------------------------------------------------------- */

static pot_status read_numbers(pot_config *c, const reader *r) {
    const struct {
        uint32_t *place;
        const char *key;
        int64_t min, max;
        bool required;
    } rows[] = {
        {&c->vocab, "vocab_size", 1, 1 << 24, true},
        {&c->hidden, "hidden_size", 1, MAX_DIM, true},
        {&c->dense_inner, "intermediate_size", 1, MAX_DIM, true},
        {&c->moe_inner, "moe_intermediate_size", 1, MAX_DIM, true},
        {&c->n_layers, "num_hidden_layers", 1, POT_MAX_LAYERS - 1, true},
        {&c->n_mtp, "num_nextn_predict_layers", 0, POT_MAX_LAYERS, false},
        {&c->n_heads, "num_attention_heads", 1, 1024, true},
        {&c->q_lora, "q_lora_rank", 1, MAX_DIM, true},
        {&c->kv_lora, "kv_lora_rank", 1, 1 << 14, true},
        {&c->nope_dim, "qk_nope_head_dim", 1, 1 << 14, true},
        {&c->rope_dim, "qk_rope_head_dim", 2, 1 << 14, true},
        {&c->v_dim, "v_head_dim", 1, 1 << 14, true},
        {&c->n_routed, "n_routed_experts", 1, 4096, true},
        {&c->n_shared, "n_shared_experts", 0, 64, true},
        {&c->top_k, "num_experts_per_tok", 1, POT_MAX_TOP_K, true},
        {&c->n_group, "n_group", 1, POT_MAX_GROUPS, false},
        {&c->topk_group, "topk_group", 1, POT_MAX_GROUPS, false},
        {&c->index_dim, "index_head_dim", 2, 512, true},
        {&c->index_heads, "index_n_heads", 1, 256, true},
        {&c->index_topk, "index_topk", 1, 1 << 20, true},
        {&c->max_positions, "max_position_embeddings", 1, 1 << 24, true},
    };
    pot_status s = POT_OK;
    for (size_t i = 0; i < sizeof rows / sizeof *rows && s == POT_OK; i++)
        s = get_u32(r, rows[i].place, rows[i].key, rows[i].min, rows[i].max, rows[i].required);
    if (s == POT_OK) s = get_float(r, &c->rms_eps, "rms_norm_eps", 0, 1, true);
    c->mla_eps = c->rms_eps;
    if (s == POT_OK) s = get_float(r, &c->mla_eps, "mla_norm_eps", 0, 1, false);
    if (s == POT_OK) s = get_float(r, &c->routed_scale, "routed_scaling_factor", 0, 1e6, true);
    if (s == POT_OK) s = pot_json_bool(&c->norm_topk_prob, r->root, "norm_topk_prob", false, r->name, r->err);
    if (s != POT_OK) return s;
    if ((uint64_t)c->moe_inner * c->n_shared > MAX_DIM)
        return pot_fail(r->err, POT_CONFIG, "%s: moe_intermediate_size %u times n_shared_experts %u is above %d",
                        r->name, c->moe_inner, c->n_shared, MAX_DIM);
    if (c->n_mtp > 1)
        return pot_fail(r->err, POT_CONFIG, "%s: num_nextn_predict_layers is %u, at most 1 is computed", r->name,
                        c->n_mtp);
    uint32_t head_dim = c->nope_dim + c->rope_dim;
    s = get_u32(r, &head_dim, "qk_head_dim", 0, INT32_MAX, false);
    if (s != POT_OK) return s;
    if (head_dim != c->nope_dim + c->rope_dim)
        return pot_fail(r->err, POT_CONFIG, "%s: qk_head_dim is %u, qk_nope_head_dim and qk_rope_head_dim make %u",
                        r->name, head_dim, c->nope_dim + c->rope_dim);
    if (c->rope_dim % 2)
        return pot_fail(r->err, POT_CONFIG, "%s: qk_rope_head_dim is %u, the rotation needs pairs", r->name,
                        c->rope_dim);
    if (c->index_dim < c->rope_dim)
        return pot_fail(r->err, POT_CONFIG, "%s: index_head_dim %u is less than qk_rope_head_dim %u, which it contains",
                        r->name, c->index_dim, c->rope_dim);
    return POT_OK;
}

static pot_status read_config(pot_config *c, const json_t *root, const char *name, pot_err *err) {
    reader r = {root, name, err};
    if (!json_is_object(root)) return pot_fail(err, POT_FORMAT, "%s: not a JSON object", name);
    pot_status s = check_kind(&r);
    if (s == POT_OK) s = read_numbers(c, &r);
    if (s == POT_OK) s = check_router(c, &r);
    if (s == POT_OK) s = read_rope(c, &r);
    if (s == POT_OK) s = read_layer_kinds(c, &r);
    if (s == POT_OK) s = read_schedule(c, &r);
    if (s == POT_OK) s = read_eos(c, root, name, err);
    return s;
}

static pot_status read_generation(pot_config *c, const json_t *root, const char *name, pot_err *err) {
    if (!json_is_object(root)) return pot_fail(err, POT_FORMAT, "%s: not a JSON object", name);
    reader r = {root, name, err};
    int64_t top_k = c->top_k_sampling;
    pot_status s = read_eos(c, root, name, err);
    if (s == POT_OK) s = get_float(&r, &c->temperature, "temperature", 0, 100, false);
    if (s == POT_OK) s = get_float(&r, &c->top_p, "top_p", 0, 1, false);
    if (s == POT_OK) s = pot_json_int(&top_k, root, "top_k", 0, INT32_MAX, false, name, err);
    c->top_k_sampling = (int32_t)top_k;
    return s;
}

pot_status pot_config_parse(pot_config *out, const char *text, size_t bytes, const char *generation,
                            size_t generation_bytes, const char *name, pot_err *err) {
    /* What may be absent has the value that it has in the models' own class. */
    pot_config c = {
        .n_group = 1, .topk_group = 1, .norm_topk_prob = true, .routed_scale = 1, .temperature = 1, .top_p = 1};
    json_t *root;
    pot_status s = pot_json_parse(&root, text, bytes, name, err);
    if (s != POT_OK) return s;
    s = read_config(&c, root, name, err);
    json_decref(root);
    if (s == POT_OK && generation) {
        s = pot_json_parse(&root, generation, generation_bytes, "generation_config.json", err);
        if (s != POT_OK) return s;
        s = read_generation(&c, root, "generation_config.json", err);
        json_decref(root);
    }
    if (s == POT_OK) *out = c;
    return s;
}

pot_status pot_config_read(pot_config *out, const char *directory, pot_err *err) {
    char *path = pot_path_join(directory, "config.json"), *beside = pot_path_join(directory, "generation_config.json");
    pot_buffer text = {0}, generation = {0};
    pot_status s = path && beside ? POT_OK : pot_fail(err, POT_NO_MEMORY, "no memory for a path");
    if (s == POT_OK && !pot_directory_exists(directory))
        s = pot_fail(err, POT_NOT_FOUND, "%s: no such directory; a model is a directory with config.json", directory);
    if (s == POT_OK) s = pot_file_read(&text, path, MAX_CONFIG_BYTES, err);
    bool has_generation = s == POT_OK && pot_file_exists(beside);
    if (has_generation) s = pot_file_read(&generation, beside, MAX_CONFIG_BYTES, err);
    if (s == POT_OK)
        s = pot_config_parse(out, text.data, text.bytes, has_generation ? generation.data : NULL, generation.bytes,
                             path, err);
    pot_buffer_free(&text);
    pot_buffer_free(&generation);
    pot_free(path);
    pot_free(beside);
    return s;
}
