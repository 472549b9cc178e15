/* potluck run MODEL: one prompt, one answer.
 *
 * The prompt is made before the cluster starts, so that a wrong file name costs nothing.  Text goes to standard output as it
 * comes, and nothing else does; the report goes to standard error. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/generate.h"
#include "common/json.h"
#include "model/chat.h"

/* -p TEXT, else all of standard input. */
static pot_status read_prompt(pot_buffer *out, const pot_settings *settings, pot_err *err) {
    if (settings->prompt) {
        pot_buffer_text(out, settings->prompt);
        return out->failed ? pot_fail(err, POT_NO_MEMORY, "not enough memory for the prompt") : POT_OK;
    }
    if (isatty(STDIN_FILENO)) return pot_fail(err, POT_USAGE, "no prompt: give -p TEXT, or text on standard input");
    pot_lines lines = {.fd = STDIN_FILENO};
    pot_status status = pot_lines_rest(&lines, out, err);
    pot_lines_close(&lines);
    return status;
}

/* The user's message with the system's before it and the tools, in the model's template. */
static pot_status apply_template(pot_buffer *prompt, const pot_cli *cli, pot_err *err) {
    const pot_settings *settings = cli->settings;
    pot_chat_template which;
    json_t *tools = NULL;
    pot_status status = pot_template_choose(&which, cli, err);
    if (!status) status = pot_tools_read(&tools, settings->tools, err);
    if (status) return status;
    json_t *messages = json_array();
    if (settings->system)
        json_array_append_new(messages, json_pack("{s:s,s:s}", "role", "system", "content", settings->system));
    json_array_append_new(
        messages, json_pack("{s:s,s:s%}", "role", "user", "content", prompt->data ? prompt->data : "", prompt->bytes));
    json_t *request = json_pack("{s:o,s:b}", "messages", messages, "enable_thinking", settings->think);
    if (tools) json_object_set_new(request, "tools", tools);
    pot_buffer rendered = {0};
    if (json_array_size(messages) != 1u + (settings->system != NULL)) {
        status = pot_fail(err, POT_FORMAT, "the prompt is not valid UTF-8, which --chat needs");
    } else {
        status = pot_chat_render(&rendered, which, request, err);
    }
    json_decref(request);
    if (status) {
        pot_buffer_free(&rendered);
        return status;
    }
    pot_buffer_free(prompt);
    *prompt = rendered;
    return POT_OK;
}

static pot_status make_prompt(pot_tokens *out, const pot_cli *cli, const pot_tokenizer *tokenizer, pot_err *err) {
    pot_buffer text = {0};
    pot_status status = read_prompt(&text, cli->settings, err);
    if (!status && !text.bytes) status = pot_fail(err, POT_USAGE, "the prompt is empty");
    if (!status && cli->settings->chat) status = apply_template(&text, cli, err);
    if (!status) status = pot_tokenizer_encode(out, tokenizer, text.data, text.bytes, err);
    pot_buffer_free(&text);
    return status;
}

/* ---- the answer, token by token ----------------------------------------------------------------------------------- */

typedef struct printer {
    pot_out *out;
    const pot_tokenizer *tokenizer;
    pot_detokenizer detokenizer;
    pot_buffer text;
} printer;

static pot_status print_token(void *context, int32_t id, bool *more, pot_err *err) {
    printer *p = context;
    pot_detokenizer_push(&p->text, &p->detokenizer, p->tokenizer, id, true);
    pot_status status = pot_out_buffer(p->out, &p->text, err);
    *more = !p->out->closed;
    return status;
}

/* Ends the text with what the detokenizer holds back.  No newline: nothing goes out that the model did not say. */
static pot_status print_end(printer *p, pot_err *err) {
    pot_detokenizer_end(&p->text, &p->detokenizer);
    pot_status status = pot_out_buffer(p->out, &p->text, err);
    pot_buffer_free(&p->text);
    return status;
}

static void report(const pot_session *session, const pot_settings *settings, const pot_generation *g,
                   size_t prompt_tokens) {
    pot_summary summary = {.cluster = &session->cluster,
                           .prefill = &session->prefill,
                           .decode = &session->decode,
                           .prompt_tokens = (uint32_t)prompt_tokens,
                           .generated_tokens = g->tokens,
                           .ctx_tokens = session->ctx_tokens,
                           .stopped_by = pot_stop_reason_name(g->reason),
                           .sampled = session->sampling.temperature > 0,
                           .seed = session->sampling.seed};
    if (settings->quiet) return;
    pot_buffer text = {0};
    if (settings->json) {
        pot_summary_json(&text, &summary);
    } else {
        pot_summary_text(&text, &summary);
    }
    if (!text.failed) fwrite(text.data, 1, text.bytes, stderr);
    pot_buffer_free(&text);
}

static pot_status answer(pot_session *session, const pot_cli *cli, const pot_tokenizer *tokenizer,
                         const pot_tokens *prompt, pot_err *err) {
    printer print = {.out = cli->out, .tokenizer = tokenizer};
    pot_generation generation = {.max_tokens = cli->settings->n_predict,
                                 .ignore_eos = cli->settings->ignore_eos,
                                 .context = &print,
                                 .token = print_token};
    pot_status status = pot_session_prompt(session, prompt, err);
    if (!status) status = pot_session_generate(session, &generation, err);
    pot_err late = {0};
    pot_status ended = print_end(&print, &late);
    if (status) return status;
    if (ended) {
        *err = late;
        return ended;
    }
    report(session, cli->settings, &generation, prompt->n);
    if (generation.reason != POT_STOP_SIGNAL) return POT_OK;
    return pot_fail(err, POT_CANCELLED, "stopped after %u tokens", generation.tokens);
}

/* Rank 0: prompt, then the cluster, then the answer. */
static pot_status coordinate(const pot_cli *cli, pot_err *err) {
    pot_tokenizer *tokenizer = NULL;
    pot_tokens prompt = {0};
    pot_session session = {0};
    const pot_settings *s = cli->settings;
    if (!s->chat && (s->system || s->tools || s->think))
        return pot_fail(err, POT_USAGE, "--system, --tools and --think go into the chat template: they need --chat");
    pot_status status = pot_tokenizer_open(&tokenizer, cli->arguments[0], err);
    if (!status) status = make_prompt(&prompt, cli, tokenizer, err);
    if (!status) status = pot_session_open(&session, cli->settings, cli->arguments[0], tokenizer, err);
    if (!status) {
        status = answer(&session, cli, tokenizer, &prompt, err);
        pot_session_close(&session);
    }
    pot_tokens_free(&prompt);
    pot_tokenizer_close(tokenizer);
    return status;
}

pot_status pot_cmd_run(const pot_cli *cli, pot_err *err) {
    return cli->launch.rank == 0 ? coordinate(cli, err) : pot_cmd_worker(cli, err);
}
