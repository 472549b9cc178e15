/* The parts of a GLM-5 model by config alone: which layer has which tensors, what they are called and what shape they have.
 * docs/model.md has the same as a table. */
#include <stdio.h>
#include <string.h>

#include "model/model_internal.h"

static const struct {
    const char *suffix, *group;
} ROLES[] = {
#define X(name, suffix, group) {suffix, group},
    POT_ROLE_MAP(X)
#undef X
};

const char *pot_role_group(pot_role role) { return ROLES[role].group; }
/* Belongs to no layer; layer 0 stands for it. */
static bool is_global(pot_role role) { return role <= POT_ROLE_HEAD; }
bool pot_role_is_routed(pot_role role) { return role >= POT_ROLE_EXPERT_GATE && role <= POT_ROLE_EXPERT_DOWN; }
bool pot_role_is_ffn(pot_role role) { return role >= POT_ROLE_EXPERT_GATE && role <= POT_ROLE_DENSE_DOWN; }

bool pot_role_is_matrix(pot_role role) {
    return role != POT_ROLE_ROUTER_BIAS && strcmp(ROLES[role].group, "norms") != 0;
}

bool pot_role_exists(const pot_config *c, pot_role role, uint32_t layer) {
    if (is_global(role)) return layer == 0;
    const bool sparse = !c->layer_is_dense[layer];
    switch (role) {
    case POT_ROLE_INDEX_Q:
    case POT_ROLE_INDEX_K:
    case POT_ROLE_INDEX_K_NORM:
    case POT_ROLE_INDEX_K_BIAS:
    case POT_ROLE_INDEX_WEIGHTS: return c->layer_is_full[layer];
    case POT_ROLE_ROUTER:
    case POT_ROLE_ROUTER_BIAS:
    case POT_ROLE_EXPERT_GATE:
    case POT_ROLE_EXPERT_UP:
    case POT_ROLE_EXPERT_DOWN: return sparse;
    case POT_ROLE_SHARED_GATE:
    case POT_ROLE_SHARED_UP:
    case POT_ROLE_SHARED_DOWN: return sparse && c->n_shared > 0;
    case POT_ROLE_DENSE_GATE:
    case POT_ROLE_DENSE_UP:
    case POT_ROLE_DENSE_DOWN: return !sparse;
    case POT_ROLE_ENORM:
    case POT_ROLE_HNORM:
    case POT_ROLE_EH_PROJ:
    case POT_ROLE_MTP_NORM: return layer >= c->n_layers;
    default: return true;
    }
}

void pot_role_shape(const pot_config *c, pot_role role, uint32_t *rows, uint32_t *cols) {
    const struct {
        uint32_t rows, cols;
    } shapes[POT_ROLE_COUNT] = {
        [POT_ROLE_EMBED] = {c->vocab, c->hidden},
        [POT_ROLE_FINAL_NORM] = {c->hidden, 0},
        [POT_ROLE_HEAD] = {c->vocab, c->hidden},
        [POT_ROLE_INPUT_NORM] = {c->hidden, 0},
        [POT_ROLE_POST_NORM] = {c->hidden, 0},
        [POT_ROLE_Q_A] = {c->q_lora, c->hidden},
        [POT_ROLE_Q_A_NORM] = {c->q_lora, 0},
        [POT_ROLE_Q_B] = {c->n_heads * (c->nope_dim + c->rope_dim), c->q_lora},
        [POT_ROLE_KV_A] = {c->kv_lora + c->rope_dim, c->hidden},
        [POT_ROLE_KV_A_NORM] = {c->kv_lora, 0},
        [POT_ROLE_KV_B] = {c->n_heads * (c->nope_dim + c->v_dim), c->kv_lora},
        [POT_ROLE_O] = {c->hidden, c->n_heads * c->v_dim},
        [POT_ROLE_INDEX_Q] = {c->index_heads * c->index_dim, c->q_lora},
        [POT_ROLE_INDEX_K] = {c->index_dim, c->hidden},
        [POT_ROLE_INDEX_K_NORM] = {c->index_dim, 0},
        [POT_ROLE_INDEX_K_BIAS] = {c->index_dim, 0},
        [POT_ROLE_INDEX_WEIGHTS] = {c->index_heads, c->hidden},
        [POT_ROLE_ROUTER] = {c->n_routed, c->hidden},
        [POT_ROLE_ROUTER_BIAS] = {c->n_routed, 0},
        [POT_ROLE_EXPERT_GATE] = {c->moe_inner, c->hidden},
        [POT_ROLE_EXPERT_UP] = {c->moe_inner, c->hidden},
        [POT_ROLE_EXPERT_DOWN] = {c->hidden, c->moe_inner},
        [POT_ROLE_SHARED_GATE] = {c->moe_inner * c->n_shared, c->hidden},
        [POT_ROLE_SHARED_UP] = {c->moe_inner * c->n_shared, c->hidden},
        [POT_ROLE_SHARED_DOWN] = {c->hidden, c->moe_inner * c->n_shared},
        [POT_ROLE_DENSE_GATE] = {c->dense_inner, c->hidden},
        [POT_ROLE_DENSE_UP] = {c->dense_inner, c->hidden},
        [POT_ROLE_DENSE_DOWN] = {c->hidden, c->dense_inner},
        [POT_ROLE_ENORM] = {c->hidden, 0},
        [POT_ROLE_HNORM] = {c->hidden, 0},
        [POT_ROLE_EH_PROJ] = {c->hidden, 2 * c->hidden},
        [POT_ROLE_MTP_NORM] = {c->hidden, 0},
    };
    *rows = shapes[role].rows;
    *cols = shapes[role].cols;
}

void pot_role_name(char name[POT_TENSOR_NAME], pot_role role, uint32_t layer, uint32_t expert) {
    int at = is_global(role) ? 0 : snprintf(name, POT_TENSOR_NAME, "model.layers.%u.", layer);
    size_t left = (size_t)(POT_TENSOR_NAME - at);
    const char *suffix = ROLES[role].suffix, *number = strstr(suffix, "%u");
    if (number)
        snprintf(name + at, left, "%.*s%u%s", (int)(number - suffix), suffix, expert, number + 2);
    else
        snprintf(name + at, left, "%s", suffix);
}

bool pot_name_in_layer(const char *name, uint32_t *layer, const char **rest) {
    int end = 0;
    if (sscanf(name, "model.layers.%6u.%n", layer, &end) != 1 || !end) return false;
    *rest = name + end;
    return true;
}
