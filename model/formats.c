/* Which packed format every matrix gets, how the experts are cut, and the fingerprint that two processes compare. */
#include <string.h>

#include "common/mem.h"
#include "model/container_layout.h"

const pot_format_policy pot_format_policy_default = {.dense = POT_FORMAT_Q4_G64, .head = POT_FORMAT_Q8_G32};

const char *pot_wish_name(pot_wish wish) {
    static const char *const names[POT_WISHES] = {"experts", "dense", "head", "mtp"};
    return names[wish];
}

pot_format pot_policy_wish(const pot_format_policy *p, pot_wish wish) {
    const pot_format formats[POT_WISHES] = {p->experts, p->dense, p->head, p->mtp};
    return formats[wish];
}

/* ---- experts ----------------------------------------------------------------------------------------------------------- */

static bool is_float(const pot_stored *stored) { return stored->kind <= POT_STORED_F16; }

/* What drafts: with 4 bits its guesses are hardly ever right, so it costs time in place of saving it. */
static pot_format mtp_format(const pot_model *m, pot_format others) {
    if (m->policy.mtp != POT_FORMAT_NONE) return m->policy.mtp;
    return others != POT_FORMAT_NONE && pot_format_get(others)->bits < 8 ? POT_FORMAT_Q8_G32 : others;
}

static pot_format wanted_format(const pot_model *m, const pot_stored *stored, uint32_t layer) {
    const pot_format_policy *policy = &m->policy;
    if (policy->reference) return POT_FORMAT_F32;
    if (m->synthetic) return pot_synthetic_format(m->synthetic);
    const pot_format wanted = layer < m->config.n_layers ? policy->experts : mtp_format(m, policy->experts);
    if (wanted != POT_FORMAT_NONE && is_float(stored)) return wanted;
    return pot_stored_natural_format(stored);
}

/* One format for a layer's experts: where they differ, the smallest float format that holds all of them exactly (E2M1 has
 * two bits of significand, and the scales of MXFP4 stay inside bf16's exponents). */
static pot_format join(pot_format a, pot_format b) {
    if (a == b || b == POT_FORMAT_NONE) return a;
    if (a == POT_FORMAT_NONE) return b;
    bool small = (a == POT_FORMAT_BF16 || a == POT_FORMAT_MXFP4) && (b == POT_FORMAT_BF16 || b == POT_FORMAT_MXFP4);
    return small ? POT_FORMAT_BF16 : POT_FORMAT_F32;
}

static pot_status add_format(pot_format *format, const pot_model *m, pot_role role, uint32_t layer, uint32_t expert,
                             pot_err *err) {
    pot_source source;
    pot_status s = pot_source_find(&source, m, role, layer, expert, err);
    if (s == POT_OK) *format = join(*format, wanted_format(m, &source.stored, layer));
    return s;
}

/* gate is the first of three neighbouring roles: gate, up, down. */
static pot_status choose_ffn(pot_ffn_shape *out, const pot_model *m, pot_role gate, uint32_t layer, uint32_t copies,
                             uint32_t inner, pot_err *err) {
    pot_format gate_up = POT_FORMAT_NONE, down = POT_FORMAT_NONE;
    pot_status s = POT_OK;
    for (uint32_t e = 0; e < copies && s == POT_OK; e++) {
        s = add_format(&gate_up, m, gate, layer, e, err);
        if (s == POT_OK) s = add_format(&gate_up, m, (pot_role)(gate + 1), layer, e, err);
        if (s == POT_OK) s = add_format(&down, m, (pot_role)(gate + 2), layer, e, err);
    }
    if (s != POT_OK) return s;
    pot_ffn_shape_init(out, m->config.hidden, inner, gate_up, down);
    POT_ASSERT(out->n_chunks <= POT_MAX_CHUNKS); /* the config's bounds see to it */
    return POT_OK;
}

static pot_status create_layers(pot_model *m, pot_err *err) {
    m->layers = pot_alloc_array(pot_model_layers(m), sizeof *m->layers);
    m->shapes = pot_alloc_array(pot_model_layers(m), sizeof *m->shapes);
    if (m->layers && m->shapes) return POT_OK;
    return pot_fail(err, POT_NO_MEMORY, "%s: no memory for %u layers", m->directory, pot_model_layers(m));
}

static void set_shape(pot_model *m, uint32_t layer) {
    const pot_layer_formats *f = &m->layers[layer];
    m->shapes[layer] = (pot_layer_shape){m->config.layer_is_dense[layer] ? 0 : m->config.n_routed, f->routed.n_chunks,
                                         f->common.n_chunks};
}

/* Of a converted model, or of one that is being converted while its source goes away. */
static const pot_container *formats_of(const pot_model *m) { return m->container ? m->container : m->remembered; }

pot_status pot_model_take_formats(pot_model *m, pot_err *err) {
    pot_status s = create_layers(m, err);
    for (uint32_t i = 0; i < pot_model_layers(m) && s == POT_OK; i++) {
        const pot_ffn_shape *routed = pot_container_shape(formats_of(m), i, true);
        const pot_ffn_shape *common = pot_container_shape(formats_of(m), i, false);
        if (routed) m->layers[i].routed = *routed;
        if (common) m->layers[i].common = *common;
        set_shape(m, i);
    }
    return s;
}

pot_status pot_model_choose_formats(pot_model *m, pot_err *err) {
    const pot_config *c = &m->config;
    uint32_t layers = c->n_layers + c->n_mtp;
    pot_status s = create_layers(m, err);
    for (uint32_t i = 0; i < layers && s == POT_OK; i++) {
        pot_layer_formats *f = &m->layers[i];
        if (c->layer_is_dense[i]) {
            s = choose_ffn(&f->common, m, POT_ROLE_DENSE_GATE, i, 1, c->dense_inner, err);
        } else {
            s = choose_ffn(&f->routed, m, POT_ROLE_EXPERT_GATE, i, c->n_routed, c->moe_inner, err);
            if (s == POT_OK && c->n_shared)
                s = choose_ffn(&f->common, m, POT_ROLE_SHARED_GATE, i, 1, c->moe_inner * c->n_shared, err);
        }
        set_shape(m, i);
    }
    return s;
}

/* ---- dense matrices ------------------------------------------------------------------------------------------------------ */

pot_format pot_model_format(const pot_model *m, pot_role role, uint32_t layer) {
    if (formats_of(m)) return pot_container_format(formats_of(m), role, layer);
    if (m->policy.reference) return POT_FORMAT_F32;
    switch (role) {
    case POT_ROLE_ROUTER:
    case POT_ROLE_INDEX_WEIGHTS: return POT_FORMAT_F32; /* they decide what is chosen, and are small */
    case POT_ROLE_KV_B: return m->policy.dense;         /* absorbed: its halves are packed anew */
    default: break;
    }
    pot_source source;
    if (pot_source_find(&source, m, role, layer, 0, NULL) != POT_OK) return POT_FORMAT_NONE;
    if (!is_float(&source.stored)) return pot_stored_natural_format(&source.stored);
    switch (role) {
    case POT_ROLE_Q_A:
    case POT_ROLE_Q_B:
    case POT_ROLE_KV_A:
    case POT_ROLE_O: return m->policy.dense;
    case POT_ROLE_EH_PROJ: return mtp_format(m, m->policy.head);
    default: return m->policy.head;
    }
}

pot_format pot_model_packed_format(const pot_model *m, pot_role role, uint32_t layer) {
    if (!pot_role_is_matrix(role)) return POT_FORMAT_F32;
    if (!pot_role_is_ffn(role)) return pot_model_format(m, role, layer);
    const pot_layer_formats *f = &m->layers[layer];
    const pot_ffn_shape *shape = pot_role_is_routed(role) ? &f->routed : &f->common;
    bool down = role == POT_ROLE_EXPERT_DOWN || role == POT_ROLE_SHARED_DOWN || role == POT_ROLE_DENSE_DOWN;
    return (pot_format)(down ? shape->down_format : shape->gate_up_format);
}

/* ---- fingerprint ------------------------------------------------------------------------------------------------------------ */

/* All that decides the numbers which two processes must agree on; not the end-of-text ids or the sampling defaults, which only
 * the coordinator reads.  Element by element, so that no padding gets in. */
static void hash_config(pot_hasher *h, const pot_config *c) {
    const uint32_t numbers[] = {c->vocab,      c->hidden,       c->dense_inner,    c->moe_inner, c->n_layers,
                                c->n_mtp,      c->n_heads,      c->q_lora,         c->kv_lora,   c->nope_dim,
                                c->rope_dim,   c->v_dim,        c->n_routed,       c->n_shared,  c->top_k,
                                c->n_group,    c->topk_group,   c->norm_topk_prob, c->index_dim, c->index_heads,
                                c->index_topk, c->max_positions};
    const float reals[] = {c->routed_scale, c->rms_eps, c->mla_eps};
    pot_hasher_add(h, numbers, sizeof numbers);
    pot_hasher_add(h, reals, sizeof reals);
    pot_hasher_add(h, &c->rope_theta, sizeof c->rope_theta);
    pot_hasher_add(h, c->layer_is_dense, sizeof c->layer_is_dense);
    pot_hasher_add(h, c->layer_is_full, sizeof c->layer_is_full);
}

static void hash_layer(pot_hasher *h, const pot_model *m, uint32_t layer) {
    for (int role = 0; role < POT_ROLE_COUNT; role++) {
        if (!pot_role_exists(&m->config, (pot_role)role, layer)) continue;
        const uint32_t format = pot_model_packed_format(m, (pot_role)role, layer);
        pot_hasher_add(h, &format, sizeof format);
    }
    const uint32_t cut[] = {m->layers[layer].routed.chunk_width, m->layers[layer].common.chunk_width,
                            (uint32_t)pot_model_grid(m, layer)};
    pot_hasher_add(h, cut, sizeof cut);
}

pot_status pot_model_fingerprint_with(pot_hash *out, const pot_model *m, pot_hash tensors, pot_err *err) {
    pot_hasher *h = tensors.low || tensors.high ? pot_hasher_create() : NULL;
    if (!h) return pot_fail(err, POT_NO_MEMORY, "%s: no memory for a fingerprint", m->directory);
    hash_config(h, &m->config);
    for (uint32_t layer = 0; layer < pot_model_layers(m); layer++) hash_layer(h, m, layer);
    pot_hasher_add(h, &tensors, sizeof tensors);
    *out = pot_hasher_end(h);
    return POT_OK;
}

pot_status pot_model_make_fingerprint(pot_model *m, pot_err *err) {
    return pot_model_fingerprint_with(
        &m->fingerprint, m, m->synthetic ? pot_synthetic_hash(m->synthetic) : pot_shards_hash(m->shards), err);
}
