/* What a pot_model is inside, and what the files that make it up share; nobody outside model/ includes this.
 *
 *   roles.c      what a model of this config consists of: names and shapes
 *   sources.c    how a checkpoint stores one of them
 *   inventory.c  the count in both directions
 *   formats.c    what they are packed to, chunks, fingerprint
 *   census.c     bytes and reports
 *   synthetic.c  random weights in place of files
 *   dense.c      tensors outside the experts, packed
 *   container*.c the files of a converted model
 *   convert*.c   making them
 */
#ifndef POT_MODEL_INTERNAL_H
#define POT_MODEL_INTERNAL_H

#include "model/container.h"
#include "model/model.h"
#include "model/safetensors.h"

typedef struct pot_layer_formats {
    pot_ffn_shape routed, common; /* n_chunks 0 = there is none */
} pot_layer_formats;

typedef struct pot_synthetic pot_synthetic;

struct pot_model {
    char *directory;
    pot_config config;
    pot_format_policy policy;
    pot_shards *shards;       /* of a checkpoint; NULL in any other model */
    pot_synthetic *synthetic; /* of a random model */
    pot_container *container; /* of a converted one */
    pot_container
        *remembered; /* formats of a checkpoint of which files are gone already (convert_source.c); else NULL */
    uint32_t ignored_tensors; /* known, but of no use to this config */
    uint64_t ignored_bytes;
    pot_layer_formats *layers; /* [n_layers + n_mtp] */
    pot_layer_shape *shapes;   /* [n_layers + n_mtp] */
    pot_hash fingerprint;
};

/* ---- roles.c ---- */

enum { POT_TENSOR_NAME = 160 };
void pot_role_name(char name[POT_TENSOR_NAME], pot_role role, uint32_t layer, uint32_t expert);
const char *pot_role_group(pot_role role);
bool pot_role_is_matrix(pot_role role);
bool pot_role_is_routed(pot_role role); /* one for each routed expert */
bool pot_role_is_ffn(pot_role role);    /* of an expert, routed or common: packed as chunks */
bool pot_role_exists(const pot_config *config, pot_role role, uint32_t layer);
/* "model.layers.7.mlp.gate.weight": 7 and "mlp.gate.weight"; false when the name belongs to no layer. */
bool pot_name_in_layer(const char *name, uint32_t *layer, const char **rest);

/* ---- sources.c ---- */

/* A matrix or vector as found (a vector: rows = n, cols = 0), and the tensors that hold it (tensors[1]: scales, or NULL;
 * both NULL in a random model). */
typedef struct pot_source {
    pot_stored stored;
    const pot_tensor *tensors[2];
} pot_source;
/* NOT_FOUND, without a sentence, when there is no tensor of that name; FORMAT when it is stored in no way that we know. */
pot_status pot_source_find(pot_source *out, const pot_model *model, pot_role role, uint32_t layer, uint32_t expert,
                           pot_err *err);

/* ---- synthetic.c ---- */

bool pot_synthetic_is(const char *name); /* random:... */
/* By the model's `directory` and policy: its config and pools of random numbers. */
pot_status pot_synthetic_open(pot_model *model, pot_err *err);
/* Its config.json. */
pot_status pot_synthetic_config(pot_buffer *out, const char *name, pot_err *err);
void pot_synthetic_close(pot_synthetic *synthetic);              /* NULL is fine */
pot_format pot_synthetic_format(const pot_synthetic *synthetic); /* of the experts */
/* Of the numbers that all weights come from; all zero when memory is short. */
pot_hash pot_synthetic_hash(const pot_synthetic *synthetic);
void pot_synthetic_find(pot_stored *out, const pot_model *model, pot_role role, uint32_t layer, uint32_t expert);

/* ---- inventory.c ---- */

/* Each expected tensor found once, each found tensor known.  Takes the MTP layer out of the config when the files lack it. */
pot_status pot_model_take_inventory(pot_model *model, pot_err *err);
/* Of a checkpoint of which files are gone: what the container's files that are not finished yet need is there. */
pot_status pot_model_take_rest(pot_model *model, const bool *finished, pot_err *err);
/* Which of the container's files (pot_container_files) a role's tensors go into. */
uint32_t pot_role_file(pot_role role, uint32_t layer, uint32_t n_layers);

/* ---- formats.c ---- */

pot_status pot_model_choose_formats(pot_model *model, pot_err *err);
pot_status pot_model_take_formats(pot_model *model, pot_err *err); /* those of its container, or remembered */
pot_status pot_model_make_fingerprint(pot_model *model, pot_err *err);
pot_format pot_model_packed_format(const pot_model *model, pot_role role, uint32_t layer); /* of any role */

/* ---- census.c ---- */

/* Adds a role's tensors in that layer (all experts) to the rows of their kind. */
void pot_census_add(pot_census_row *rows, uint32_t *n, uint32_t max, const pot_model *model, pot_role role,
                    uint32_t layer);
/* The row that a tensor of that role, stored like this, belongs to; NULL when there is no room for a new one. */
pot_census_row *pot_census_row_of(pot_census_row *rows, uint32_t *n, uint32_t max, const pot_model *model,
                                  pot_role role, uint32_t layer, const pot_stored *stored);
const char *pot_stored_name_find(const char *name); /* the same name, kept for ever; NULL when it is none of a row's */

#endif
