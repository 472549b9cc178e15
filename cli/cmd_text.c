/* potluck tokenize and potluck template: the two steps between text and the model, for scripts and tests.
 * With --jsonl a JSON value a line in and one a line out; without, one text in and one out. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "common/json.h"
#include "model/chat.h"

/* A line of input as JSON (owned by the caller); sentences name the line. */
static pot_status parse_line(json_t **out, const char *line, size_t bytes, size_t number, pot_err *err) {
    char name[64];
    snprintf(name, sizeof name, "line %zu", number);
    return pot_json_parse(out, line, bytes, name, err);
}

/* ---- tokenize ----------------------------------------------------------------------------------------------------- */

static void print_ids(pot_buffer *out, const pot_tokens *tokens, const char *begin, const char *between,
                      const char *end) {
    pot_buffer_text(out, begin);
    for (size_t i = 0; i < tokens->n; i++) pot_buffer_format(out, "%s%d", i ? between : "", tokens->ids[i]);
    pot_buffer_text(out, end);
}

static pot_status encode_json(pot_buffer *out, const pot_tokenizer *tokenizer, const json_t *value, size_t number,
                              pot_err *err) {
    if (!json_is_string(value)) return pot_fail(err, POT_FORMAT, "line %zu: expected a JSON string", number);
    pot_tokens tokens = {0};
    pot_status status =
        pot_tokenizer_encode(&tokens, tokenizer, json_string_value(value), json_string_length(value), err);
    if (!status) print_ids(out, &tokens, "[", ", ", "]\n");
    pot_tokens_free(&tokens);
    return status;
}

static pot_status check_id(int64_t id, const pot_tokenizer *tokenizer, pot_err *err) {
    if (id >= 0 && id < pot_tokenizer_size(tokenizer)) return POT_OK;
    return pot_fail(err, POT_LIMIT, "token %lld is not between 0 and %u", (long long)id,
                    pot_tokenizer_size(tokenizer) - 1);
}

static pot_status decode_json(pot_buffer *out, const pot_tokenizer *tokenizer, const json_t *value, size_t number,
                              pot_err *err) {
    if (!json_is_array(value)) return pot_fail(err, POT_FORMAT, "line %zu: expected a JSON list of token ids", number);
    pot_tokens tokens = {0};
    pot_buffer text = {0};
    pot_status status = POT_OK;
    for (size_t i = 0; i < json_array_size(value) && !status; i++) {
        const json_t *id = json_array_get(value, i);
        status = json_is_integer(id) ? check_id(json_integer_value(id), tokenizer, err)
                                     : pot_fail(err, POT_FORMAT, "element %zu is not an integer", i);
        if (!status) status = pot_tokens_push(&tokens, (int32_t)json_integer_value(id), err);
    }
    if (!status) {
        pot_tokenizer_decode(&text, tokenizer, tokens.ids, tokens.n, false);
        pot_json_quote(out, text.data ? text.data : "", text.bytes);
        pot_buffer_byte(out, '\n');
    } else {
        pot_at(err, "line %zu", number);
    }
    pot_buffer_free(&text);
    pot_tokens_free(&tokens);
    return status;
}

/* All of the input is one text, or with --decode ids between blanks. */
static pot_status whole_input(pot_buffer *out, const pot_tokenizer *tokenizer, const pot_buffer *in, bool decode,
                              pot_err *err) {
    pot_tokens tokens = {0};
    pot_status status = POT_OK;
    if (!decode) {
        status = pot_tokenizer_encode(&tokens, tokenizer, in->data ? in->data : "", in->bytes, err);
        if (!status) print_ids(out, &tokens, "", " ", "\n");
    } else {
        const char *at = in->data ? in->data : "";
        while (!status) {
            at += strspn(at, " \t\r\n,[]");
            if (!*at) break;
            char *end;
            long long id = strtoll(at, &end, 10);
            if (end == at) {
                status =
                    pot_fail(err, POT_FORMAT, "expected token ids, found `%.*s`", (int)strcspn(at, " \t\r\n,"), at);
            } else {
                status = check_id(id, tokenizer, err);
            }
            if (!status) status = pot_tokens_push(&tokens, (int32_t)id, err);
            at = end;
        }
        if (!status) pot_tokenizer_decode(out, tokenizer, tokens.ids, tokens.n, false);
    }
    pot_tokens_free(&tokens);
    return status;
}

/* ---- template ----------------------------------------------------------------------------------------------------- */

pot_status pot_template_choose(pot_chat_template *out, const pot_cli *cli, pot_err *err) {
    const char *name = cli->settings->chat_template;
    return pot_chat_choose(out, cli->arguments[0], strcmp(name, "auto") ? name : NULL, err);
}

/* `value` is a request, or a whole case of chat_vectors.json: {"template": NAME, "input": REQUEST}. */
static pot_status render_json(pot_buffer *out, pot_chat_template model_s, const json_t *value, bool quote,
                              pot_err *err) {
    pot_chat_template which = model_s;
    const json_t *input = json_object_get(value, "input");
    const char *name = json_string_value(json_object_get(value, "template"));
    pot_status status = input && name ? pot_chat_choose(&which, NULL, name, err) : POT_OK;
    pot_buffer prompt = {0};
    if (!status) status = pot_chat_render(&prompt, which, input ? input : value, err);
    if (!status && quote) {
        pot_json_quote(out, prompt.data ? prompt.data : "", prompt.bytes);
        pot_buffer_byte(out, '\n');
    } else if (!status) {
        pot_buffer_append(out, prompt.data, prompt.bytes);
    }
    if (prompt.failed) out->failed = true;
    pot_buffer_free(&prompt);
    return status;
}

/* ---- the two commands --------------------------------------------------------------------------------------------- */

/* One line or the whole input, whichever the command asked for, through `each`. */
typedef struct converter {
    const pot_cli *cli;
    const pot_tokenizer *tokenizer; /* NULL = template */
    pot_chat_template which;
} converter;

static pot_status convert_line(pot_buffer *out, const converter *c, const char *line, size_t bytes, size_t number,
                               pot_err *err) {
    json_t *value = NULL;
    pot_status status = parse_line(&value, line, bytes, number, err);
    if (status) return status;
    if (!c->tokenizer) {
        status = render_json(out, c->which, value, true, err);
        if (status) pot_at(err, "line %zu", number);
    } else if (c->cli->settings->decode) {
        status = decode_json(out, c->tokenizer, value, number, err);
    } else {
        status = encode_json(out, c->tokenizer, value, number, err);
    }
    json_decref(value);
    return status;
}

static pot_status convert_all(pot_buffer *out, const converter *c, const pot_buffer *in, pot_err *err) {
    if (c->tokenizer) return whole_input(out, c->tokenizer, in, c->cli->settings->decode, err);
    json_t *value = NULL;
    pot_status status = pot_json_parse(&value, in->data ? in->data : "", in->bytes, "standard input", err);
    if (!status) status = render_json(out, c->which, value, false, err);
    json_decref(value);
    return status;
}

static pot_status convert(const converter *c, pot_err *err) {
    pot_lines lines = {.fd = STDIN_FILENO};
    pot_buffer in = {0}, out = {0};
    pot_status status = POT_OK;
    if (!c->cli->settings->jsonl) {
        status = pot_lines_rest(&lines, &in, err);
        if (!status) status = convert_all(&out, c, &in, err);
        if (!status) status = pot_out_buffer(c->cli->out, &out, err);
    }
    for (size_t number = 1; c->cli->settings->jsonl && !status && !c->cli->out->closed; number++) {
        const char *line;
        size_t bytes;
        status = pot_lines_next(&lines, &line, &bytes, err);
        if (status || !line) break;
        if (!line[strspn(line, " \t\r")]) continue;
        status = convert_line(&out, c, line, bytes, number, err);
        if (!status) status = pot_out_buffer(c->cli->out, &out, err);
    }
    pot_lines_close(&lines);
    pot_buffer_free(&in);
    pot_buffer_free(&out);
    return status;
}

pot_status pot_cmd_tokenize(const pot_cli *cli, pot_err *err) {
    pot_tokenizer *tokenizer = NULL;
    pot_status status = pot_tokenizer_open(&tokenizer, cli->arguments[0], err);
    if (status) return status;
    status = convert(&(converter){.cli = cli, .tokenizer = tokenizer}, err);
    pot_tokenizer_close(tokenizer);
    return status;
}

pot_status pot_cmd_template(const pot_cli *cli, pot_err *err) {
    converter c = {.cli = cli};
    pot_status status = pot_template_choose(&c.which, cli, err);
    return status ? status : convert(&c, err);
}
