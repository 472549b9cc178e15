/* The chat templates of GLM-5.2 and GLM-5.3 as code, byte for byte what jinja2 makes of the published files.
 *
 *   [gMASK]<sop>  effort line  tools  one block a message  <|assistant|><think>
 *
 * The two differ in the effort line, in whether earlier reasoning is kept, in media, and in the order of tool results;
 * every such place asks `which`.  Null counts as absent everywhere (jinja would print "None"), and text that is markup
 * of the model ("<|user|>") is passed on as it is, as the templates do. */
#include "model/chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/json.h"
#include "common/log.h"
#include "common/mem.h"
#include "model/chat_parts.h"

/* References can repeat a tool's text many times: this bounds what a small request can grow to. */
#define PROMPT_LIMIT ((size_t)64 << 20)
#define TEMPLATE_LIMIT ((uint64_t)16 << 20)

/* ---- which template ---------------------------------------------------------------------------- */

static const char *const NAMES[] = {[POT_CHAT_GLM_5_2] = "glm-5.2", [POT_CHAT_GLM_5_3] = "glm-5.3"};

const char *pot_chat_template_name(pot_chat_template which) { return NAMES[which]; }

/* Both write an effort line.  Only 5.3 knows low effort and looks at the ids of tool calls. */
static pot_chat_template recognize(const char *text, const char *path) {
    bool effort = strstr(text, "Reasoning Effort: ");
    if (effort && strstr(text, "'low', 'high'") && strstr(text, "tool_call_id")) return POT_CHAT_GLM_5_3;
    if (!effort || !strstr(text, "'high' else 'max'")) {
        POT_LOG(POT_LOG_WARN, "model.chat", "%s is neither GLM-5.2's nor GLM-5.3's template; glm-5.2 is used", path);
    }
    return POT_CHAT_GLM_5_2;
}

/* "chat_template" of tokenizer_config.json: text, or a list of {"name", "template"}; NULL when it has none. */
static const char *config_template(const json_t *config) {
    const json_t *value = json_object_get(config, "chat_template");
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *entry = json_array_get(value, i), *name = json_object_get(entry, "name");
        if (json_is_string(name) && strcmp(json_string_value(name), "default") == 0) {
            return json_string_value(json_object_get(entry, "template"));
        }
    }
    return json_string_value(value);
}

static pot_status choose_by_jinja(pot_chat_template *out, const char *path, pot_err *err) {
    pot_buffer text = {0};
    pot_status status = pot_file_read(&text, path, TEMPLATE_LIMIT, err);
    if (!status) *out = recognize(text.data ? text.data : "", path);
    pot_buffer_free(&text);
    return status;
}

static pot_status choose_by_config(pot_chat_template *out, const char *path, pot_err *err) {
    json_t *config = NULL;
    pot_status status = pot_json_read(&config, path, TEMPLATE_LIMIT, err);
    const char *text = config_template(config);
    if (!status && text) *out = recognize(text, path);
    json_decref(config);
    return status;
}

pot_status pot_chat_choose(pot_chat_template *out, const char *directory, const char *name, pot_err *err) {
    if (name && *name) {
        for (size_t i = 0; i < sizeof NAMES / sizeof NAMES[0]; i++) {
            if (strcmp(name, NAMES[i]) == 0) {
                *out = (pot_chat_template)i;
                return POT_OK;
            }
        }
        return pot_fail(err, POT_USAGE, "chat template \"%.60s\" is unknown, expected glm-5.2 or glm-5.3", name);
    }
    pot_chat_template chosen = POT_CHAT_GLM_5_2;
    char *jinja = pot_path_join(directory, "chat_template.jinja");
    char *config = pot_path_join(directory, "tokenizer_config.json");
    pot_status status = POT_OK;
    if (!jinja || !config) {
        status = pot_fail(err, POT_NO_MEMORY, "not enough memory to look for a chat template in %s", directory);
    } else if (pot_file_exists(jinja)) {
        status = choose_by_jinja(&chosen, jinja, err);
    } else if (pot_file_exists(config)) {
        status = choose_by_config(&chosen, config, err);
    }
    pot_free(jinja);
    pot_free(config);
    if (!status) *out = chosen;
    return status;
}

/* ---- text -------------------------------------------------------------------------------------- */

typedef struct span {
    const char *text;
    size_t bytes;
} span;

typedef struct renderer {
    pot_buffer *out;
    pot_chat_template which;
    const json_t *tools, *messages;
    size_t n_messages;
    size_t last_user; /* index of the last message of a user; SIZE_MAX: none */
    bool keep_thinking;
} renderer;

static void put(pot_buffer *out, const json_t *string) {
    pot_buffer_append(out, json_string_value(string), json_string_length(string));
}

static bool same_text(const json_t *a, const json_t *b) {
    return json_is_string(a) && json_is_string(b) && json_equal(a, b);
}

static void put_media(const renderer *r, pot_buffer *out, const char *type) {
    bool image = strncmp(type, "image", 5) == 0, video = strncmp(type, "video", 5) == 0;
    if (image) {
        pot_buffer_text(out, "<|begin_of_image|><|image|><|end_of_image|>");
    } else if (r->which == POT_CHAT_GLM_5_2) {
        pot_buffer_format(out,
                          "<reminder>You are unable to process this %s because you don't have multi-modal input "
                          "ability. Try different methods.</reminder>",
                          video ? "video" : "audio");
    } else {
        pot_buffer_text(out,
                        video ? "<|begin_of_video|><|video|><|end_of_video|>" : "<|begin_of_audio|><|end_of_audio|>");
    }
}

/* The content of a message as text, parts one after the other. */
static void put_content(const renderer *r, pot_buffer *out, const json_t *content) {
    if (json_is_string(content)) put(out, content);
    for (size_t i = 0; i < json_array_size(content); i++) {
        const json_t *part = json_array_get(content, i);
        const char *type = json_string_value(json_object_get(part, "type"));
        if (json_is_string(part)) {
            put(out, part);
        } else if (strcmp(type, "text") == 0) {
            put(out, json_object_get(part, "text"));
        } else {
            put_media(r, out, type);
        }
    }
}

/* Bytes of the character at p that Python's str.strip() takes off, 0: none.  Its white space is \s and U+001C..1F. */
static size_t space_bytes(const unsigned char *p, const unsigned char *end) {
    if ((p[0] >= 0x09 && p[0] <= 0x0D) || (p[0] >= 0x1C && p[0] <= 0x20)) return 1;
    size_t left = (size_t)(end - p);
    if (left >= 2 && p[0] == 0xC2 && (p[1] == 0x85 || p[1] == 0xA0)) return 2;
    if (left < 3 || p[0] < 0xE1 || p[0] > 0xE3) return 0;
    unsigned code = (p[0] & 0x0Fu) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
    bool space = code == 0x1680 || (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 ||
                 code == 0x202F || code == 0x205F || code == 0x3000;
    return space ? 3 : 0;
}

static span strip(span s) {
    const unsigned char *p = (const unsigned char *)s.text, *end = p + s.bytes;
    size_t n;
    while (p < end && (n = space_bytes(p, end))) p += n;
    const unsigned char *begin = p, *stop = p;
    while (p < end) {
        n = space_bytes(p, end);
        p += n ? n : 1;
        if (!n) stop = p;
    }
    return (span){(const char *)begin, (size_t)(stop - begin)};
}

/* What follows the last `mark` in s; s itself when there is none. */
static span after_last(span s, const char *mark) {
    size_t length = strlen(mark);
    const char *found;
    while (s.bytes && (found = memmem(s.text, s.bytes, mark, length))) {
        s.bytes -= (size_t)(found - s.text) + length;
        s.text = found + length;
    }
    return s;
}

/* ---- tools ------------------------------------------------------------------------------------- */

static const json_t *tool_function(const json_t *tool) {
    const json_t *function = json_object_get(tool, "function");
    return function ? function : tool;
}

static void put_tool(pot_buffer *out, const json_t *tool) {
    const char *key, *separator = "";
    json_t *value;
    pot_buffer_byte(out, '{');
    json_object_foreach((json_t *)tool, key, value) {
        if (strcmp(key, "defer_loading") == 0 || strcmp(key, "strict") == 0) continue;
        /* The templates print this key without escapes; only what is below it goes through json.dumps. */
        pot_buffer_format(out, "%s\"%s\": ", separator, key);
        pot_json_dump_python(out, value);
        separator = ", ";
    }
    pot_buffer_byte(out, '}');
}

static void put_tools(const renderer *r) {
    if (json_array_size(r->tools) == 0) return;
    pot_buffer_text(r->out,
                    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
                    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n");
    for (size_t i = 0; i < json_array_size(r->tools); i++) {
        const json_t *tool = tool_function(json_array_get(r->tools, i));
        if (json_is_true(json_object_get(tool, "defer_loading"))) continue;
        put_tool(r->out, tool);
        pot_buffer_byte(r->out, '\n');
    }
    pot_buffer_text(
        r->out, "</tools>\n\nFor each function call, output the function name and arguments within the following XML "
                "format:\n<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}"
                "</arg_value><arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>");
}

/* ---- messages of the assistant ----------------------------------------------------------------- */

static pot_status put_arguments(pot_buffer *out, const json_t *arguments, size_t message, size_t call, pot_err *err) {
    json_t *parsed = NULL;
    if (json_is_string(arguments) && json_string_length(arguments)) {
        char name[96];
        snprintf(name, sizeof name, "messages[%zu].tool_calls[%zu]: the text of arguments", message, call);
        pot_status status =
            pot_json_parse(&parsed, json_string_value(arguments), json_string_length(arguments), name, err);
        if (status == POT_FORMAT && err) err->status = POT_USAGE;
        if (status) return status == POT_FORMAT ? POT_USAGE : status;
        if (!json_is_object(parsed)) {
            json_decref(parsed);
            return pot_fail(err, POT_USAGE, "%s is not a JSON object", name);
        }
        arguments = parsed;
    }
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)arguments, key, value) {
        pot_buffer_format(out, "<arg_key>%s</arg_key><arg_value>", key);
        if (json_is_string(value)) {
            put(out, value);
        } else {
            pot_json_dump_python(out, value);
        }
        pot_buffer_text(out, "</arg_value>");
    }
    json_decref(parsed);
    return POT_OK;
}

static pot_status put_assistant(const renderer *r, size_t index, pot_err *err) {
    static const char END[] = "</think>";
    const json_t *message = json_array_get(r->messages, index);
    const json_t *reasoning = json_object_get(message, "reasoning_content");
    pot_buffer text = {0};
    put_content(r, &text, json_object_get(message, "content"));
    span content = {text.data ? text.data : "", text.bytes}, thought = {0};
    const char *end = memmem(content.text, content.bytes, END, strlen(END));
    if (json_is_string(reasoning)) {
        thought = (span){json_string_value(reasoning), json_string_length(reasoning)};
    } else if (end) {
        thought = after_last((span){content.text, (size_t)(end - content.text)}, "<think>");
        content = after_last(content, END);
    }
    bool after_user = r->last_user == SIZE_MAX || index > r->last_user;
    if (!r->keep_thinking && !after_user) thought.bytes = 0;
    content = strip(content);
    pot_buffer_text(r->out, "<|assistant|><think>");
    pot_buffer_append(r->out, thought.text, thought.bytes);
    pot_buffer_text(r->out, END);
    pot_buffer_append(r->out, content.text, content.bytes);
    bool failed = text.failed;
    pot_buffer_free(&text);
    if (failed) return pot_fail(err, POT_NO_MEMORY, "not enough memory for messages[%zu]", index);

    const json_t *calls = json_object_get(message, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        const json_t *called = pot_chat_called(json_array_get(calls, i));
        pot_buffer_text(r->out, "<tool_call>");
        put(r->out, json_object_get(called, "name"));
        pot_status status = put_arguments(r->out, json_object_get(called, "arguments"), index, i, err);
        if (status) return status;
        pot_buffer_text(r->out, "</tool_call>");
    }
    return POT_OK;
}

/* ---- messages of tools ------------------------------------------------------------------------- */

static void put_references(const renderer *r, const json_t *references) {
    pot_buffer_text(r->out, "<tool_response><tools>\n");
    for (size_t i = 0; i < json_array_size(references) && r->out->bytes <= PROMPT_LIMIT; i++) {
        const json_t *name = json_object_get(json_array_get(references, i), "name");
        for (size_t j = 0; j < json_array_size(r->tools); j++) {
            const json_t *tool = tool_function(json_array_get(r->tools, j));
            if (!same_text(json_object_get(tool, "name"), name)) continue;
            put_tool(r->out, tool);
            pot_buffer_byte(r->out, '\n');
        }
    }
    pot_buffer_text(r->out, "</tools></tool_response>");
}

/* One result: the content of a message, or the output of one entry of it. */
static void put_result(const renderer *r, const json_t *content) {
    if (pot_chat_is_references(content)) {
        put_references(r, content);
        return;
    }
    pot_buffer_text(r->out, "<tool_response>");
    put_content(r, r->out, content);
    pot_buffer_text(r->out, "</tool_response>");
}

/* The id by which a result names its call, or a call itself; NULL: none. */
static const json_t *id_of(const json_t *object) {
    const json_t *id = json_object_get(object, "tool_call_id");
    if (json_string_length(id) == 0) id = json_object_get(object, "id");
    return json_string_length(id) ? id : NULL;
}

typedef struct result {
    const json_t *id, *content;
} result;

/* The results of the messages begin..end-1, in the order in which they came; returns how many.  `out` may be NULL. */
static size_t collect_results(result *out, const renderer *r, size_t begin, size_t end) {
    size_t n = 0;
    for (size_t i = begin; i < end; i++) {
        const json_t *message = json_array_get(r->messages, i), *content = json_object_get(message, "content");
        size_t entries = pot_chat_is_outputs(content) ? json_array_size(content) : 1;
        for (size_t j = 0; j < entries; j++, n++) {
            if (!out) continue;
            const json_t *entry = json_array_get(content, j);
            bool outputs = pot_chat_is_outputs(content);
            out[n] =
                outputs ? (result){id_of(entry), json_object_get(entry, "output")} : (result){id_of(message), content};
        }
    }
    return n;
}

typedef struct call {
    const json_t *id;
    size_t index; /* among the calls of its message */
} call;

static int compare_calls(const void *a, const void *b) {
    const json_t *x = ((const call *)a)->id, *y = ((const call *)b)->id;
    size_t n = json_string_length(x), m = json_string_length(y);
    int order = memcmp(json_string_value(x), json_string_value(y), n < m ? n : m);
    return order ? order : (n > m) - (n < m);
}

/* GLM-5.3 wants results in the order of the calls.  Fills order[n_calls] with the result of each call (SIZE_MAX: none
 * yet); false when some result names no call, or one that another names too, or when calls share an id. */
static bool order_results(size_t *order, call *calls, size_t n_calls, const json_t *tool_calls, const result *results,
                          size_t n) {
    for (size_t i = 0; i < n_calls; i++) {
        calls[i] = (call){id_of(json_array_get(tool_calls, i)), i};
        if (!calls[i].id) return false;
        order[i] = SIZE_MAX;
    }
    qsort(calls, n_calls, sizeof *calls, compare_calls);
    for (size_t i = 1; i < n_calls; i++) {
        if (compare_calls(&calls[i - 1], &calls[i]) == 0) return false;
    }
    for (size_t i = 0; i < n; i++) {
        call key = {results[i].id, 0}, *found;
        found = key.id ? bsearch(&key, calls, n_calls, sizeof *calls, compare_calls) : NULL;
        if (!found || order[found->index] != SIZE_MAX) return false;
        order[found->index] = i;
    }
    return n_calls > 0;
}

/* All messages of tools that stand together, begin..end-1. */
static pot_status put_results(const renderer *r, size_t begin, size_t end, pot_err *err) {
    const json_t *before = begin ? json_array_get(r->messages, begin - 1) : NULL;
    const json_t *tool_calls = pot_chat_has_role(before, "assistant") ? json_object_get(before, "tool_calls") : NULL;
    size_t n = collect_results(NULL, r, begin, end), n_calls = json_array_size(tool_calls);
    result *results = pot_alloc_array(n, sizeof *results);
    size_t *order = pot_alloc_array(n_calls, sizeof *order);
    call *calls = pot_alloc_array(n_calls, sizeof *calls);
    pot_status status = POT_OK;
    if (results && order && calls) {
        collect_results(results, r, begin, end);
        pot_buffer_text(r->out, "<|observation|>");
        bool sorted = r->which == POT_CHAT_GLM_5_3 && order_results(order, calls, n_calls, tool_calls, results, n);
        for (size_t i = 0; i < (sorted ? n_calls : n); i++) {
            size_t at = sorted ? order[i] : i;
            if (at != SIZE_MAX) put_result(r, results[at].content);
        }
    } else {
        status = pot_fail(err, POT_NO_MEMORY, "not enough memory for the results of %zu tool calls", n);
    }
    pot_free(results);
    pot_free(order);
    pot_free(calls);
    return status;
}

/* ---- all of it --------------------------------------------------------------------------------- */

static void put_effort(const renderer *r, const json_t *request) {
    const char *effort = json_string_value(json_object_get(request, "reasoning_effort")), *shown = "Max";
    bool thinking = !json_is_false(json_object_get(request, "enable_thinking"));
    if (r->which == POT_CHAT_GLM_5_2 && !thinking) return;
    if (effort && strcmp(effort, "high") == 0) shown = "High";
    if (effort && strcmp(effort, "low") == 0 && r->which == POT_CHAT_GLM_5_3) shown = "Low";
    pot_buffer_format(r->out, "<|system|>Reasoning Effort: %s", shown);
}

/* Renders the message at *index, for tools the whole run of them, and moves *index behind it. */
static pot_status put_message(const renderer *r, size_t *index, pot_err *err) {
    size_t begin = (*index)++;
    const json_t *message = json_array_get(r->messages, begin);
    if (pot_chat_has_role(message, "assistant")) return put_assistant(r, begin, err);
    if (pot_chat_has_role(message, "tool")) {
        while (pot_chat_has_role(json_array_get(r->messages, *index), "tool")) (*index)++;
        return put_results(r, begin, *index, err);
    }
    pot_buffer_text(r->out, pot_chat_has_role(message, "user") ? "<|user|>" : "<|system|>");
    put_content(r, r->out, json_object_get(message, "content"));
    return POT_OK;
}

static pot_status render(const renderer *r, const json_t *request, pot_err *err) {
    pot_buffer_text(r->out, "[gMASK]<sop>");
    put_effort(r, request);
    put_tools(r);
    for (size_t i = 0; i < r->n_messages;) {
        pot_status status = put_message(r, &i, err);
        if (status) return status;
        if (r->out->bytes > PROMPT_LIMIT) {
            return pot_fail(err, POT_LIMIT, "the prompt is longer than %zu MiB", PROMPT_LIMIT >> 20);
        }
    }
    if (!json_is_false(json_object_get(request, "add_generation_prompt"))) {
        bool thinking = !json_is_false(json_object_get(request, "enable_thinking"));
        bool closed = r->which == POT_CHAT_GLM_5_2 && !thinking;
        pot_buffer_text(r->out, closed ? "<|assistant|><think></think>" : "<|assistant|><think>");
    }
    return r->out->failed ? pot_fail(err, POT_NO_MEMORY, "not enough memory for the prompt") : POT_OK;
}

pot_status pot_chat_render(pot_buffer *out, pot_chat_template which, const json_t *request, pot_err *err) {
    pot_status status = pot_chat_check(request, err);
    if (status) return status;
    const json_t *clear = json_object_get(request, "clear_thinking");
    renderer r = {
        .which = which,
        .tools = json_object_get(request, "tools"),
        .messages = json_object_get(request, "messages"),
        .last_user = SIZE_MAX,
        /* 5.2 drops earlier reasoning unless told not to, 5.3 keeps it unless told not to. */
        .keep_thinking = which == POT_CHAT_GLM_5_2 ? json_is_false(clear) : !json_is_true(clear),
    };
    r.n_messages = json_array_size(r.messages);
    for (size_t i = 0; i < r.n_messages; i++) {
        if (pot_chat_has_role(json_array_get(r.messages, i), "user")) r.last_user = i;
    }
    pot_buffer prompt = {0};
    r.out = &prompt;
    status = render(&r, request, err);
    if (!status) {
        pot_buffer_append(out, prompt.data, prompt.bytes);
        if (out->failed) status = pot_fail(err, POT_NO_MEMORY, "not enough memory for the prompt");
    }
    pot_buffer_free(&prompt);
    return status;
}
