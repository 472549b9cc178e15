/* MLA in its absorbed form with a shared rotary key, and the DSA indexer that says which keys a query may see.
 *
 * A tile of rows goes through a layer's attention at once: keys are written to the cache first and read back in its format, so a
 * row of a prompt and a row of decode see the same bits.  The formulas are those of docs/model.md; the order of operations
 * is docs/numerics.md.
 */
#ifndef POT_COORDINATOR_ATTENTION_H
#define POT_COORDINATOR_ATTENTION_H

#include "coordinator/engine.h"
#include "coordinator/weights.h"
#include "kernels/linear.h"

/* Which positions each row of the step attends to: chosen on a full layer, reused by the shared layers after it.
 * Row i sees count[i] positions, ascending: positions[i * stride ..], or simply 0..count[i]-1 while everything fits. */
typedef struct pot_selection {
    uint32_t *positions; /* [capacity][stride] */
    uint32_t *count;     /* [capacity] */
    bool *everything;    /* [capacity] */
    uint32_t capacity, stride;
} pot_selection;
/* Grown to hold n rows of at most `stride` positions; the content is not kept. */
pot_status pot_selection_reserve(pot_selection *selection, uint32_t n, uint32_t stride, pot_err *err);
void pot_selection_free(pot_selection *selection);

typedef struct pot_attention pot_attention; /* working memory for tiles of rows */
pot_status pot_attention_create(pot_attention **out, const pot_model *model, const pot_compute *compute,
                                uint32_t max_tile, pot_err *err);
void pot_attention_free(pot_attention *attention);

/* x [n][hidden] += attention(input_norm(x)) for the step's rows [first, first + n), n <= max_tile. */
pot_status pot_attention_forward(pot_attention *attention, float *x, const pot_layer_weights *weights, uint32_t layer,
                                 const pot_row *rows, uint32_t first, uint32_t n, pot_selection *selection,
                                 pot_err *err);

/* indexer.c: fills the selection of one row from its index query q [index_heads][index_dim] and weights [index_heads], against the index keys 0..position of its sequence.  scores: [position + 1] of scratch. */
typedef struct pot_index_query {
    const pot_config *config;
    const pot_compute *compute;
    const pot_sequence *sequence;
    uint32_t layer, position;
    const float *q, *weights;
} pot_index_query;
pot_status pot_index_select(uint32_t *positions, uint32_t *count, const pot_index_query *query, float *scores,
                            uint64_t *order, pot_err *err);

/* The k largest of n scores, ties to the lower index, as ascending positions; order: [n] of scratch.  k <= n. */
void pot_top_positions(uint32_t *positions, uint32_t k, const float *scores, uint32_t n, uint64_t *order);

#endif
