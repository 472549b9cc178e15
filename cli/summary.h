/* Where the time of a run went: spans of work measured by the engine's and the experts' own counters, and the report at the end. */
#ifndef POT_CLI_SUMMARY_H
#define POT_CLI_SUMMARY_H

#include "coordinator/cluster.h"

/* X(name): the phases of a step, in the order of the report; `other` is what no counter covers (norms, sampling, output). */
#define POT_PHASE_MAP(X) X(attention) X(router) X(wire) X(wait) X(experts) X(head) X(other)

/* Counters at one moment, or what was added between two of them. */
typedef struct pot_span {
    uint64_t tokens, wall_us;
#define X(name) uint64_t name##_us;
    POT_PHASE_MAP(X)
#undef X
} pot_span;

/* begin: notes the counters.  end: adds to `total` what has passed since, for so many tokens. */
void pot_span_begin(pot_span *mark, const pot_cluster *cluster);
void pot_span_end(pot_span *total, const pot_span *mark, const pot_cluster *cluster, uint64_t tokens);

typedef struct pot_summary {
    const pot_cluster *cluster;
    const pot_span *prefill, *decode;
    uint32_t prompt_tokens, generated_tokens, ctx_tokens;
    const char *stopped_by; /* "eos", "length", "context", "signal", "reader" */
    bool sampled;           /* false: greedy, and no seed was used */
    uint64_t seed;
} pot_summary;
void pot_summary_text(pot_buffer *out, const pot_summary *summary);
void pot_summary_json(pot_buffer *out, const pot_summary *summary); /* one line */

#endif
