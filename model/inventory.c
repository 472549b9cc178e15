/* The count in both directions.  An expected tensor that is not there, or one that is there and that we do not know, means
 * that the model would compute something else than its makers did, usually without any other sign. */
#include <string.h>

#include "common/buffer.h"
#include "common/log.h"
#include "common/mem.h"
#include "model/model_internal.h"

enum { LISTED = 8 }; /* names in a sentence */

typedef struct name_list {
    pot_buffer text;
    uint32_t n;
} name_list;

typedef struct inventory {
    const pot_model *model;
    bool *known; /* [tensors] */
    name_list missing, unknown;
} inventory;

static void add_name(name_list *list, const char *name) {
    if (list->n < LISTED) pot_buffer_format(&list->text, "%s%s", list->n ? ", " : "", name);
    list->n++;
}

static void end_list(name_list *list) {
    if (list->n > LISTED) pot_buffer_format(&list->text, " and %u more", list->n - LISTED);
}

static bool has_name_under(const pot_model *m, uint32_t layer) {
    uint32_t found;
    const char *rest;
    for (uint32_t i = 0; i < pot_shards_tensors(m->shards); i++)
        if (pot_name_in_layer(pot_shards_at(m->shards, i)->name, &found, &rest) && found == layer) return true;
    return false;
}

/* Many quantized releases leave the MTP layer out while their config still counts it. */
static void drop_absent_mtp(pot_model *m) {
    if (!m->config.n_mtp || has_name_under(m, m->config.n_layers)) return;
    m->config.n_mtp = 0;
    POT_LOG(POT_LOG_WARN, "model",
            "%s: config.json counts an MTP layer, but no tensor of layer %u is there: going on without it",
            m->directory, m->config.n_layers);
}

static pot_status count_role(inventory *v, pot_role role, uint32_t layer, pot_err *err) {
    const pot_model *m = v->model;
    uint32_t copies = pot_role_is_routed(role) ? m->config.n_routed : 1;
    for (uint32_t expert = 0; expert < copies; expert++) {
        pot_source source;
        pot_status s = pot_source_find(&source, m, role, layer, expert, err);
        if (s == POT_NOT_FOUND) {
            char name[POT_TENSOR_NAME];
            pot_role_name(name, role, layer, expert);
            add_name(&v->missing, name);
            continue;
        }
        if (s != POT_OK) return s;
        for (int i = 0; i < 2; i++)
            if (source.tensors[i]) v->known[source.tensors[i] - pot_shards_at(m->shards, 0)] = true;
    }
    return POT_OK;
}

/* `name` is `base`, or its scales in one of the layouts. */
static bool is_of(const char *name, const char *base) {
    static const char *const ends[] = {"", "_scale_inv", "_scale", ".qs"};
    size_t length = strlen(base);
    if (strncmp(name, base, length)) return false;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (!strcmp(name + length, ends[i])) return true;
    return false;
}

/* Tensors that some releases carry although nothing reads them: an indexer in a layer that shares another one's choice, the MTP
 * layer's own copies of embeddings and head (equal to the main ones), and an MTP layer that the config does not count. */
static bool is_ignored(const pot_model *m, const char *name) {
    static const char *const indexer[] = {"self_attn.indexer.wq_b.weight", "self_attn.indexer.wk.weight",
                                          "self_attn.indexer.k_norm.weight", "self_attn.indexer.k_norm.bias",
                                          "self_attn.indexer.weights_proj.weight"};
    const pot_config *c = &m->config;
    uint32_t layer;
    const char *rest;
    if (!pot_name_in_layer(name, &layer, &rest)) return false;
    if (layer < c->n_layers) {
        for (size_t i = 0; i < sizeof indexer / sizeof *indexer && !c->layer_is_full[layer]; i++)
            if (is_of(rest, indexer[i])) return true;
        return false;
    }
    if (layer > c->n_layers) return false;
    if (c->n_mtp) return is_of(rest, "embed_tokens.weight") || is_of(rest, "shared_head.head.weight");
    /* Only eh_proj says that this is an MTP layer and not one that the config forgot. */
    char eh_proj[POT_TENSOR_NAME];
    pot_role_name(eh_proj, POT_ROLE_EH_PROJ, layer, 0);
    return pot_shards_find(m->shards, eh_proj) != NULL;
}

static void count_unknown(inventory *v, uint32_t *ignored, uint64_t *ignored_bytes) {
    const pot_shards *shards = v->model->shards;
    for (uint32_t i = 0; i < pot_shards_tensors(shards); i++) {
        const pot_tensor *t = pot_shards_at(shards, i);
        if (v->known[i]) continue;
        if (is_ignored(v->model, t->name)) {
            ++*ignored;
            *ignored_bytes += t->bytes;
        } else {
            add_name(&v->unknown, t->name);
        }
    }
}

/* Counts and what may mend it come first, because a long sentence is cut at its end. */
static pot_status refuse(inventory *v, pot_err *err) {
    const pot_model *m = v->model;
    uint32_t files = pot_shards_files(m->shards);
    end_list(&v->missing);
    end_list(&v->unknown);
    pot_buffer text = {0};
    pot_buffer_format(&text, "%s: ", m->directory);
    if (v->missing.n) pot_buffer_format(&text, "%u tensors are missing", v->missing.n);
    if (v->unknown.n)
        pot_buffer_format(&text, "%s%u of %u tensors are unknown", v->missing.n ? " and " : "", v->unknown.n,
                          pot_shards_tensors(m->shards));
    pot_buffer_format(&text, " in %u file%s; ", files, files == 1 ? "" : "s");
    pot_buffer_text(&text, v->missing.n ? "is a file missing, or does config.json belong to another model?"
                                        : "does config.json belong to another model?");
    if (v->missing.n) pot_buffer_format(&text, " Missing: %s", v->missing.text.data);
    if (v->unknown.n) pot_buffer_format(&text, "%s Unknown: %s", v->missing.n ? "." : "", v->unknown.text.data);
    bool failed = text.failed || v->missing.text.failed || v->unknown.text.failed;
    pot_status s = failed ? pot_fail(err, POT_NO_MEMORY, "%s: no memory to say which tensors are missing", m->directory)
                          : pot_fail(err, POT_FORMAT, "%s", text.data);
    pot_buffer_free(&text);
    return s;
}

uint32_t pot_role_file(pot_role role, uint32_t layer, uint32_t n_layers) {
    if (role < POT_ROLE_INPUT_NORM) return 2 * n_layers;
    return 2 * layer + (pot_role_is_ffn(role) ? 1 : 0);
}

pot_status pot_model_take_rest(pot_model *m, const bool *finished, pot_err *err) {
    const uint32_t n = pot_shards_tensors(m->shards), n_layers = pot_model_layers(m);
    inventory v = {.model = m, .known = pot_alloc_array(n, sizeof *v.known)};
    if (!v.known) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to count %u tensors", m->directory, n);
    pot_status s = POT_OK;
    for (uint32_t layer = 0; layer < n_layers; layer++)
        for (int role = 0; role < POT_ROLE_COUNT && s == POT_OK; role++)
            if (pot_role_exists(&m->config, (pot_role)role, layer) &&
                !finished[pot_role_file((pot_role)role, layer, n_layers)])
                s = count_role(&v, (pot_role)role, layer, err);
    if (s == POT_OK && v.missing.n) s = refuse(&v, err);
    pot_free(v.known);
    pot_buffer_free(&v.missing.text);
    return s;
}

pot_status pot_model_take_inventory(pot_model *m, pot_err *err) {
    drop_absent_mtp(m);
    const uint32_t n = pot_shards_tensors(m->shards);
    inventory v = {.model = m, .known = pot_alloc_array(n, sizeof *v.known)};
    if (!v.known) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to count %u tensors", m->directory, n);
    pot_status s = POT_OK;
    for (uint32_t layer = 0; layer < pot_model_layers(m); layer++)
        for (int role = 0; role < POT_ROLE_COUNT && s == POT_OK; role++)
            if (pot_role_exists(&m->config, (pot_role)role, layer)) s = count_role(&v, (pot_role)role, layer, err);
    if (s == POT_OK) {
        count_unknown(&v, &m->ignored_tensors, &m->ignored_bytes);
        if (v.missing.n || v.unknown.n) s = refuse(&v, err);
    }
    if (s == POT_OK && m->ignored_tensors)
        POT_LOG(POT_LOG_INFO, "model", "%s: %u tensors that this config does not use are ignored", m->directory,
                m->ignored_tensors);
    pot_free(v.known);
    pot_buffer_free(&v.missing.text);
    pot_buffer_free(&v.unknown.text);
    return s;
}
