/* The step: rows of tokens in, logits out.  engine.c is the file to read first.
 *
 * A row is one token at one position of one sequence.  Rows are independent: a row's numbers do not depend on which other
 * rows are in the batch, on tile sizes, threads, kernels, workers or the map (DESIGN 3).
 * One owner thread.
 */
#ifndef POT_COORDINATOR_ENGINE_H
#define POT_COORDINATOR_ENGINE_H

#include "coordinator/kv.h"
#include "coordinator/moe.h"
#include "model/model.h"

typedef struct pot_row {
    pot_sequence *sequence;
    uint32_t position; /* rows of one sequence come in ascending positions without gaps, starting at its length */
    int32_t token;
} pot_row;

/* What a test or `eval trace` wants to see of row i (index in the step).  Any member may be NULL. */
typedef struct pot_probe {
    void *context;
    void (*hidden)(void *context, uint32_t layer, uint32_t row, const float *x); /* [hidden] after the layer */
    void (*selected)(void *context, uint32_t layer, uint32_t row, const uint32_t *positions,
                     uint32_t n); /* full layers */
    void (*experts)(void *context, uint32_t layer, uint32_t row, const uint32_t *ids, const float *weights, uint32_t k);
} pot_probe;

typedef struct pot_engine_stats {
    uint64_t rows;                                       /* that passed the trunk */
    uint64_t attention_us, router_us, head_us, total_us; /* experts, wire, wait: pot_moe_stats */
    uint64_t hints, hints_right; /* experts that were expected a layer ahead; that were chosen then by the same row */
} pot_engine_stats;

/* Rows that pass a layer together; a longer step is cut into several, with the same result. */
enum { POT_ENGINE_MAX_ROWS = 2048 };

typedef struct pot_engine_options {
    const pot_model *model; /* borrowed, as are the next two */
    pot_moe *moe;
    pot_compute compute;
    uint32_t prefill_tile; /* rows that attention takes at a time, at least 1 */
    bool prefetch;         /* tell workers which experts the next layer is expected to choose */
    bool quiet;            /* no progress while loading */
} pot_engine_options;

typedef struct pot_engine pot_engine;
/* Packs the coordinator's own weights (progress on stderr). */
pot_status pot_engine_create(pot_engine **out, const pot_engine_options *options, pot_err *err);
void pot_engine_free(pot_engine *engine);
const pot_engine_stats *pot_engine_get_stats(const pot_engine *engine);

/* One step over n rows, layer-major: all rows pass a layer before the next begins.
 * hidden [n][hidden]: after the final norm (for the head and for MTP); may be NULL.
 * logits [n_logits][vocab] of the rows listed in logit_rows (ascending indices); n_logits may be 0.
 * On error the sequences are cut back to their length before the step. */
pot_status pot_engine_forward(pot_engine *engine, const pot_row *rows, uint32_t n, float *hidden, float *logits,
                              const uint32_t *logit_rows, uint32_t n_logits, const pot_probe *probe, pot_err *err);

/* The MTP layer over n rows: row p takes the embedding of token p+1 (`token`) and the trunk's normed hidden of p.
 * z [n][hidden] after shared_head.norm (also the `hidden` of a chained draft), logits [n][vocab] or NULL. */
pot_status pot_engine_draft(pot_engine *engine, const pot_row *rows, const float *hidden, uint32_t n, float *z,
                            float *logits, const pot_probe *probe, pot_err *err);

#endif
