/* The loop from a prompt to an answer.
 *
 *   prompt    tokens that the sequence already holds are kept (chat: the turns before), the rest passes the engine in blocks
 *   generate  sample from the last logits -> end? -> show -> one row through the engine -> ...
 *
 * The blocks bound the memory of a step and let a long prompt show its progress and be stopped; where they are cut changes
 * no bit of the result. */
#include "cli/generate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "common/clock.h"
#include "common/json.h"
#include "common/mem.h"
#include "common/progress.h"
#include "common/system.h"

enum { PROMPT_BLOCK = 512, MAX_TOOLS_BYTES = 16 * 1024 * 1024 };

/* ---- opening ------------------------------------------------------------------------------------------------------ */

/* What ends an answer: the config's ids, and the added tokens that begin somebody else's turn. */
static pot_status find_stops(pot_session *session, const pot_config *config, const pot_tokenizer *tokenizer,
                             pot_err *err) {
    pot_status status = POT_OK;
    for (uint32_t i = 0; i < config->n_eos && !status; i++)
        status = pot_tokens_push(&session->stops, config->eos[i], err);
    static const char *const names[] = {"<|endoftext|>", "<|user|>", "<|observation|>"};
    for (size_t i = 0; i < sizeof names / sizeof names[0] && !status; i++) {
        int32_t id = pot_tokenizer_added(tokenizer, names[i]);
        if (id >= 0) status = pot_tokens_push(&session->stops, id, err);
    }
    return status;
}

/* Flags over the model's own defaults; without --seed one is drawn and later printed, so that a run can be repeated. */
static pot_status choose_sampling(pot_sampling *out, const pot_settings *settings, const pot_config *config,
                                  pot_err *err) {
    out->temperature = isnan(settings->temperature) ? config->temperature : (float)settings->temperature;
    out->top_p = isnan(settings->top_p) ? config->top_p : (float)settings->top_p;
    out->min_p = isnan(settings->min_p) ? 0 : (float)settings->min_p;
    out->top_k = settings->top_k < 0 ? config->top_k_sampling : (int32_t)settings->top_k;
    uint32_t drawn = 0;
    if (settings->seed >= 0) {
        out->seed = (uint64_t)settings->seed;
    } else if (getrandom(&drawn, sizeof drawn, 0) == (ssize_t)sizeof drawn) {
        out->seed = drawn;
    } else {
        return pot_fail(err, POT_IO, "the system gave no random seed; choose one with --seed");
    }
    return POT_OK;
}

pot_status pot_session_open(pot_session *session, const pot_settings *settings, const char *model,
                            const pot_tokenizer *tokenizer, pot_err *err) {
    *session = (pot_session){.quiet = settings->quiet};
    pot_status status = pot_cluster_start(&session->cluster, settings, model, err);
    if (status || !session->cluster.engine) return status;
    const pot_config *config = pot_model_config(session->cluster.model);
    session->ctx_tokens =
        (uint64_t)settings->ctx < config->max_positions ? (uint32_t)settings->ctx : config->max_positions;
    status = choose_sampling(&session->sampling, settings, config, err);
    if (!status) status = find_stops(session, config, tokenizer, err);
    if (!status)
        status = pot_sequence_create(&session->sequence, config, session->cluster.kv, session->ctx_tokens, err);
    if (!status) {
        session->logits = pot_alloc_array(config->vocab, sizeof(float));
        session->scratch = pot_alloc_array(config->vocab, 2 * sizeof(float));
        if (!session->logits || !session->scratch) status = pot_fail(err, POT_NO_MEMORY, "no memory for the logits");
    }
    if (status) pot_session_close(session);
    return status;
}

void pot_session_close(pot_session *session) {
    pot_sequence_free(session->sequence);
    pot_tokens_free(&session->held);
    pot_tokens_free(&session->stops);
    pot_free(session->logits);
    pot_free(session->scratch);
    pot_cluster_stop(&session->cluster);
    *session = (pot_session){0};
}

/* ---- prompt ------------------------------------------------------------------------------------------------------- */

/* n tokens on top of what is held; logits of the last one. */
static pot_status feed(pot_session *session, const int32_t *ids, uint32_t n, pot_err *err) {
    pot_row rows[PROMPT_BLOCK];
    uint32_t first = (uint32_t)session->held.n, last = n - 1;
    pot_status status = POT_OK;
    for (uint32_t i = 0; i < n; i++) rows[i] = (pot_row){session->sequence, first + i, ids[i]};
    for (uint32_t i = 0; i < n && !status; i++) status = pot_tokens_push(&session->held, ids[i], err);
    if (!status)
        status = pot_engine_forward(session->cluster.engine, rows, n, NULL, session->logits, &last, 1, NULL, err);
    if (status) session->held.n = first; /* as the engine leaves the sequence */
    return status;
}

pot_status pot_session_prompt(pot_session *session, const pot_tokens *tokens, pot_err *err) {
    if (!tokens->n) return pot_fail(err, POT_USAGE, "the prompt is empty");
    if (tokens->n > session->ctx_tokens) {
        return pot_fail(err, POT_LIMIT,
                        "the prompt has %zu tokens, the context %u (--ctx, at most what the model allows)", tokens->n,
                        session->ctx_tokens);
    }
    size_t common = 0;
    while (common < tokens->n && common < session->held.n && tokens->ids[common] == session->held.ids[common]) common++;
    if (common == tokens->n) common--; /* its logits are needed */
    pot_sequence_truncate(session->sequence, (uint32_t)common);
    session->held.n = common;

    pot_span mark;
    pot_span_begin(&mark, &session->cluster);
    pot_progress progress;
    pot_progress_begin_count(&progress, "reading the prompt", tokens->n - common, "tokens", session->quiet);
    pot_status status = POT_OK;
    for (size_t at = common; at < tokens->n && !status;) {
        size_t n = tokens->n - at < PROMPT_BLOCK ? tokens->n - at : PROMPT_BLOCK;
        status = feed(session, tokens->ids + at, (uint32_t)n, err);
        at += n;
        pot_progress_update(&progress, at - common);
        if (!status && pot_stop_requested()) status = pot_fail(err, POT_CANCELLED, "stopped while reading the prompt");
    }
    pot_progress_end(&progress);
    pot_span_end(&session->prefill, &mark, &session->cluster, status ? 0 : tokens->n - common);
    return status;
}

/* ---- answer ------------------------------------------------------------------------------------------------------- */

const char *pot_stop_reason_name(pot_stop_reason reason) {
    static const char *const names[] = {"eos", "length", "context", "signal", "reader"};
    return names[reason];
}

static bool is_stop(const pot_session *session, int32_t id) {
    for (size_t i = 0; i < session->stops.n; i++) {
        if (session->stops.ids[i] == id) return true;
    }
    return false;
}

pot_status pot_session_generate(pot_session *session, pot_generation *g, pot_err *err) {
    const uint32_t vocab = pot_model_config(session->cluster.model)->vocab;
    g->tokens = 0;
    g->reason = POT_STOP_LENGTH;
    while (g->max_tokens < 0 || g->tokens < g->max_tokens) {
        pot_span mark;
        pot_span_begin(&mark, &session->cluster);
        int32_t id;
        bool more = true;
        pot_status status =
            pot_sample(&id, session->logits, vocab, &session->sampling, session->held.n, session->scratch, err);
        if (status) return status;
        if (!g->ignore_eos && is_stop(session, id)) {
            g->reason = POT_STOP_EOS;
            return POT_OK;
        }
        g->tokens++;
        status = g->token(g->context, id, &more, err);
        if (status) return status;
        bool last = g->max_tokens >= 0 && g->tokens >= g->max_tokens;
        if (!more) g->reason = POT_STOP_READER;
        if (pot_stop_requested()) g->reason = POT_STOP_SIGNAL;
        if (!more || pot_stop_requested() || last) return POT_OK;
        if (session->held.n >= session->ctx_tokens) {
            g->reason = POT_STOP_CONTEXT;
            return POT_OK;
        }
        status = feed(session, &id, 1, err);
        if (status == POT_CANCELLED && pot_stop_requested()) { /* the signal came in the middle of the step */
            g->reason = POT_STOP_SIGNAL;
            return POT_OK;
        }
        if (status) return status;
        pot_span_end(&session->decode, &mark, &session->cluster, 1);
    }
    return POT_OK;
}

/* ---- tools -------------------------------------------------------------------------------------------------------- */

pot_status pot_tools_read(json_t **out, const char *path, pot_err *err) {
    json_t *tools = NULL;
    if (path) {
        pot_status status = pot_json_read(&tools, path, MAX_TOOLS_BYTES, err);
        if (status) return status;
        if (!json_is_array(tools)) {
            json_decref(tools);
            return pot_fail(err, POT_FORMAT, "%s: expected a list of tools, as an OpenAI client sends them", path);
        }
    }
    *out = tools;
    return POT_OK;
}
