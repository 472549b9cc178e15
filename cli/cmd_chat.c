/* potluck chat MODEL: a conversation, one line a turn.
 *
 * Every turn renders the whole conversation and gives it to the session, which keeps what it has already computed.  On a
 * terminal the model's thinking is shown dimmed; elsewhere, or with NO_COLOR, its tags are printed as they are.  Ctrl-C stops the
 * answer, not the program (under mpirun the launcher itself ends the job). */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "cli/generate.h"
#include "common/json.h"
#include "common/system.h"
#include "model/chat.h"

typedef struct conversation {
    const pot_cli *cli;
    const pot_tokenizer *tokenizer;
    pot_chat_template which;
    pot_session session;
    json_t *messages, *tools; /* tools may be NULL */
    bool think;
    int32_t think_begin, think_end; /* token ids, -1 when the model has none */
    bool terminal, dimmed;          /* a person sits there; thinking may be dimmed */
    /* The answer that is being written. */
    bool thinking;
    pot_detokenizer detokenizer;
    pot_buffer screen, thoughts, content;
} conversation;

static const char DIM[] = "\033[2m", PLAIN[] = "\033[0m";

/* ---- the answer --------------------------------------------------------------------------------------------------- */

static void switch_thinking(conversation *c, bool thinking) {
    if (c->thinking == thinking) return;
    c->thinking = thinking;
    if (c->dimmed) {
        pot_buffer_text(&c->screen, thinking ? DIM : PLAIN);
        if (!thinking) pot_buffer_byte(&c->screen, '\n');
    } else {
        pot_buffer_text(&c->screen, thinking ? "<think>" : "</think>");
    }
}

static pot_status show_token(void *context, int32_t id, bool *more, pot_err *err) {
    conversation *c = context;
    if (id >= 0 && (id == c->think_begin || id == c->think_end)) {
        switch_thinking(c, id == c->think_begin);
    } else {
        size_t before = c->screen.bytes;
        pot_detokenizer_push(&c->screen, &c->detokenizer, c->tokenizer, id, true);
        pot_buffer_append(c->thinking ? &c->thoughts : &c->content, c->screen.data + before, c->screen.bytes - before);
    }
    pot_status status = pot_out_buffer(c->cli->out, &c->screen, err);
    *more = !c->cli->out->closed;
    return status;
}

static pot_status end_answer(conversation *c, const pot_generation *g, pot_err *err) {
    size_t before = c->screen.bytes;
    pot_detokenizer_end(&c->screen, &c->detokenizer);
    pot_buffer_append(c->thinking ? &c->thoughts : &c->content, c->screen.data + before, c->screen.bytes - before);
    if (c->thinking && c->dimmed) pot_buffer_text(&c->screen, PLAIN);
    if (g->reason == POT_STOP_CONTEXT) fputs("\n[the context is full; /reset begins anew]", stderr);
    if (g->reason == POT_STOP_SIGNAL && c->terminal) pot_buffer_text(&c->screen, " [stopped]");
    pot_buffer_byte(&c->screen, '\n');
    return pot_out_buffer(c->cli->out, &c->screen, err);
}

static json_t *message(const char *role, const char *text, size_t bytes) {
    return json_pack("{s:s,s:s%}", "role", role, "content", text ? text : "", bytes);
}

static pot_status render(conversation *c, pot_buffer *prompt, pot_err *err) {
    json_t *request = json_pack("{s:O,s:b}", "messages", c->messages, "enable_thinking", c->think);
    if (!request) return pot_fail(err, POT_NO_MEMORY, "not enough memory for the conversation");
    if (c->tools) json_object_set(request, "tools", c->tools);
    pot_status status = pot_chat_render(prompt, c->which, request, err);
    json_decref(request);
    return status;
}

/* true when the prompt leaves the model inside its thinking. */
static bool ends_in_thinking(const pot_buffer *prompt) {
    static const char tag[] = "<think>";
    size_t n = sizeof tag - 1;
    return prompt->bytes >= n && !memcmp(prompt->data + prompt->bytes - n, tag, n);
}

/* The model's turn after the user's: the answer is shown, and kept in the conversation with its thinking. */
static pot_status answer(conversation *c, pot_err *err) {
    pot_buffer prompt = {0};
    pot_tokens tokens = {0};
    pot_generation generation = {.max_tokens = c->cli->settings->n_predict,
                                 .ignore_eos = c->cli->settings->ignore_eos,
                                 .context = c,
                                 .token = show_token};
    c->detokenizer = (pot_detokenizer){0};
    c->thinking = false;
    pot_buffer_clear(&c->thoughts);
    pot_buffer_clear(&c->content);
    pot_status status = render(c, &prompt, err);
    if (!status) status = pot_tokenizer_encode(&tokens, c->tokenizer, prompt.data, prompt.bytes, err);
    if (!status) status = pot_session_prompt(&c->session, &tokens, err);
    if (!status) {
        if (ends_in_thinking(&prompt)) switch_thinking(c, true);
        status = pot_session_generate(&c->session, &generation, err);
    }
    if (!status) status = end_answer(c, &generation, err);
    if (!status) {
        json_t *reply = message("assistant", c->content.data, c->content.bytes);
        if (c->thoughts.bytes) {
            json_object_set_new(reply, "reasoning_content", json_stringn(c->thoughts.data, c->thoughts.bytes));
        }
        if (!reply || json_array_append_new(c->messages, reply)) {
            status = pot_fail(err, POT_NO_MEMORY, "not enough memory for the conversation");
        }
    }
    pot_buffer_free(&prompt);
    pot_tokens_free(&tokens);
    return status;
}

/* ---- the person's side -------------------------------------------------------------------------------------------- */

static pot_status set_system(conversation *c, const char *text, pot_err *err) {
    json_t *first = json_array_get(c->messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    bool there = role && !strcmp(role, "system");
    json_t *new = message("system", text, strlen(text));
    if (!new) return pot_fail(err, POT_FORMAT, "the system text is not valid UTF-8");
    if (there ? json_array_set_new(c->messages, 0, new) : json_array_insert_new(c->messages, 0, new)) {
        return pot_fail(err, POT_NO_MEMORY, "not enough memory for the conversation");
    }
    return POT_OK;
}

static pot_status reset(conversation *c, pot_err *err) {
    json_array_clear(c->messages);
    return c->cli->settings->system ? set_system(c, c->cli->settings->system, err) : POT_OK;
}

static const char help_text[] = "/help          this list\n"
                                "/reset         forget the conversation\n"
                                "/think         let the model reason before it answers\n"
                                "/nothink       answer at once\n"
                                "/system TEXT   set the system message\n"
                                "/quit          end (as Ctrl-D does)\n"
                                "Ctrl-C stops an answer.\n";

/* A line that begins with a slash. */
static pot_status slash_command(conversation *c, const char *line, bool *quit, pot_err *err) {
    if (!strcmp(line, "/quit")) {
        *quit = true;
    } else if (!strcmp(line, "/reset")) {
        return reset(c, err);
    } else if (!strcmp(line, "/think") || !strcmp(line, "/nothink")) {
        c->think = line[1] == 't';
    } else if (!strncmp(line, "/system ", 8)) {
        return set_system(c, line + 8, err);
    } else if (!strcmp(line, "/help")) {
        fputs(help_text, stderr);
    } else {
        fprintf(stderr, "unknown command %s; /help lists them\n", line);
    }
    return POT_OK;
}

/* One turn of the person and one of the model.  What only this turn is to blame for is said, and the conversation goes on without it. */
static pot_status turn(conversation *c, const char *line, size_t bytes, pot_err *err) {
    json_t *said = message("user", line, bytes);
    if (!said || json_array_append_new(c->messages, said)) {
        fputs("that line is not valid UTF-8; it was not sent\n", stderr);
        return POT_OK;
    }
    pot_status status = answer(c, err);
    if (status != POT_LIMIT && !(status == POT_CANCELLED && pot_stop_signal() == SIGINT)) return status;
    fprintf(stderr, "%s\n", err->text);
    json_array_remove(c->messages, json_array_size(c->messages) - 1);
    return POT_OK;
}

/* While nobody types, the workers' signs of life are taken in, and one that has gone is noticed. */
static pot_status tend(void *context, pot_err *err) {
    const conversation *c = context;
    return pot_peers_tend(c->session.cluster.peers, err);
}

static pot_status converse(conversation *c, pot_err *err) {
    pot_lines lines = {.fd = STDIN_FILENO, .tend = tend, .context = c};
    bool quit = false;
    pot_status status = POT_OK;
    while (!status && !quit && !c->cli->out->closed) {
        const char *line;
        size_t bytes;
        if (c->terminal) status = pot_out_write(c->cli->out, "> ", 2, err);
        if (!status) status = pot_lines_next(&lines, &line, &bytes, err);
        if (status == POT_CANCELLED && pot_stop_signal() == SIGINT) { /* Ctrl-C at the prompt drops what was typed */
            pot_stop_clear();
            if (c->terminal) fputs("\n(Ctrl-D or /quit ends)\n", stderr);
            status = c->terminal ? POT_OK : POT_CANCELLED;
            continue;
        }
        if (status || !line) break;
        if (bytes && line[bytes - 1] == '\r') bytes--;
        if (!bytes) continue;
        status = line[0] == '/' ? slash_command(c, line, &quit, err) : turn(c, line, bytes, err);
        if (!status && pot_stop_signal() == SIGINT) pot_stop_clear();
        if (!status && pot_stop_requested()) status = pot_fail(err, POT_CANCELLED, "stopped");
    }
    if (c->terminal && !quit && !status) pot_out_write(c->cli->out, "\n", 1, err);
    pot_lines_close(&lines);
    return status;
}

static pot_status coordinate(const pot_cli *cli, pot_err *err) {
    pot_tokenizer *tokenizer = NULL;
    const pot_settings *settings = cli->settings;
    const char *no_color = getenv("NO_COLOR");
    /* Both ends: mpirun gives every rank a pseudo-terminal as standard output, whatever its own is. */
    bool terminal = isatty(STDIN_FILENO) && isatty(STDOUT_FILENO);
    conversation c = {.cli = cli,
                      .messages = json_array(),
                      .think = settings->think,
                      .terminal = terminal,
                      .dimmed = terminal && !(no_color && *no_color)};
    pot_status status = pot_template_choose(&c.which, cli, err);
    if (!status) status = pot_tools_read(&c.tools, settings->tools, err);
    if (!status) status = reset(&c, err);
    if (!status) status = pot_tokenizer_open(&tokenizer, cli->arguments[0], err);
    if (!status) {
        c.tokenizer = tokenizer;
        c.think_begin = pot_tokenizer_added(tokenizer, "<think>");
        c.think_end = pot_tokenizer_added(tokenizer, "</think>");
        status = pot_session_open(&c.session, settings, cli->arguments[0], tokenizer, err);
    }
    if (!status) {
        if (terminal && !settings->quiet) {
            fprintf(stderr, "%s, template %s, context %u tokens; /help lists the commands\n", cli->arguments[0],
                    pot_chat_template_name(c.which), c.session.ctx_tokens);
        }
        status = converse(&c, err);
        pot_session_close(&c.session);
    }
    pot_tokenizer_close(tokenizer);
    json_decref(c.messages);
    json_decref(c.tools);
    pot_buffer_free(&c.screen);
    pot_buffer_free(&c.thoughts);
    pot_buffer_free(&c.content);
    return status;
}

pot_status pot_cmd_chat(const pot_cli *cli, pot_err *err) {
    return cli->launch.rank == 0 ? coordinate(cli, err) : pot_cmd_worker(cli, err);
}
