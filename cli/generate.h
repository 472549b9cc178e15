/* A conversation with the engine: a started cluster, one sequence with its KV cache, and the loop that turns logits into tokens.
 * Used by run and chat.  One thread. */
#ifndef POT_CLI_GENERATE_H
#define POT_CLI_GENERATE_H

#include <jansson.h>

#include "cli/cli.h"
#include "cli/summary.h"
#include "coordinator/cluster.h"
#include "coordinator/sample.h"

typedef struct pot_session {
    pot_cluster cluster;
    pot_sequence *sequence;
    pot_tokens held;  /* the tokens whose keys are in the sequence */
    float *logits;    /* [vocab], after the last token of `held` */
    float *scratch;   /* [2 * vocab] */
    pot_tokens stops; /* ids that end an answer */
    pot_sampling sampling;
    pot_span prefill, decode;
    uint32_t ctx_tokens;
    bool quiet;
} pot_session; /* all zero = closed */

/* Starts the cluster.  On a rank above 0 it returns when the work is over, with session->cluster.engine NULL. */
pot_status pot_session_open(pot_session *session, const pot_settings *settings, const char *model,
                            const pot_tokenizer *tokenizer, pot_err *err);
void pot_session_close(pot_session *session);

/* Makes the sequence hold exactly these tokens: what it shares with them from the start is kept, the rest is computed.
 * LIMIT when they are more than the context; nothing is ever cut. */
pot_status pot_session_prompt(pot_session *session, const pot_tokens *tokens, pot_err *err);

typedef enum pot_stop_reason {
    POT_STOP_EOS,
    POT_STOP_LENGTH,
    POT_STOP_CONTEXT,
    POT_STOP_SIGNAL,
    POT_STOP_READER
} pot_stop_reason;
const char *pot_stop_reason_name(pot_stop_reason reason);

typedef struct pot_generation {
    int64_t max_tokens; /* below 0: until the model or the context ends */
    bool ignore_eos;
    void *context;
    /* Sees every token but the one that ends the answer.  *more = false stops. */
    pot_status (*token)(void *context, int32_t id, bool *more, pot_err *err);
    pot_stop_reason reason; /* out */
    uint32_t tokens;        /* out */
} pot_generation;
pot_status pot_session_generate(pot_session *session, pot_generation *generation, pot_err *err);

/* Reads the tools file: a JSON list (owned by the caller), NULL when path is NULL. */
pot_status pot_tools_read(json_t **out, const char *path, pot_err *err);

#endif
