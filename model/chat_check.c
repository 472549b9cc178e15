/* Checks a chat request before it is rendered.  Jinja prints an undefined value as nothing and drops what it does not
 * know; a person who wrote "contents" or a role of another model should rather read where the mistake is. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "model/chat_parts.h"

/* Where in the request: "messages[3].content". */
typedef struct place {
    char text[128];
} place;

__attribute__((format(printf, 2, 3))) static place inside(const char *outer, const char *format, ...) {
    char inner[64];
    place at;
    va_list args;
    va_start(args, format);
    vsnprintf(inner, sizeof inner, format, args);
    va_end(args);
    size_t n = strlen(outer), m = strlen(inner);
    if (n > sizeof at.text - sizeof inner) n = sizeof at.text - sizeof inner;
    memcpy(at.text, outer, n);
    memcpy(at.text + n, inner, m + 1);
    return at;
}

static const char *kind(const json_t *value) {
    if (!value) return "missing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "text";
    case JSON_INTEGER:
    case JSON_REAL: return "a number";
    case JSON_TRUE:
    case JSON_FALSE: return "true or false";
    default: return "null";
    }
}

static bool is_absent(const json_t *value) { return !value || json_is_null(value); }

static pot_status wrong(const char *path, const char *key, const json_t *value, const char *expected, pot_err *err) {
    return pot_fail(err, POT_USAGE, "%s%s is %s, expected %s", path, key, kind(value), expected);
}

/* `key` starts with the dot that joins it to the path, or is the whole path. */
static const json_t *field(const json_t *object, const char *key) {
    return json_object_get(object, key[0] == '.' ? key + 1 : key);
}

static pot_status check_text(const json_t *object, const char *path, const char *key, bool required, pot_err *err) {
    const json_t *value = field(object, key);
    if (json_is_string(value) || (!required && is_absent(value))) return POT_OK;
    return wrong(path, key, value, required ? "text" : "text or null", err);
}

static pot_status check_bool(const json_t *object, const char *path, const char *key, pot_err *err) {
    const json_t *value = field(object, key);
    return json_is_boolean(value) || is_absent(value) ? POT_OK : wrong(path, key, value, "true or false", err);
}

/* ---- what both files ask ----------------------------------------------------------------------- */

bool pot_chat_has_role(const json_t *message, const char *role) {
    const json_t *value = json_object_get(message, "role");
    return json_is_string(value) && strcmp(json_string_value(value), role) == 0;
}

bool pot_chat_is_references(const json_t *content) {
    const json_t *type = json_object_get(json_array_get(content, 0), "type");
    return json_is_string(type) && strcmp(json_string_value(type), "tool_reference") == 0;
}

bool pot_chat_is_outputs(const json_t *content) {
    return !pot_chat_is_references(content) && json_object_get(json_array_get(content, 0), "output");
}

const json_t *pot_chat_called(const json_t *call) {
    const json_t *function = json_object_get(call, "function");
    return json_object_size(function) ? function : call;
}

/* ---- messages ---------------------------------------------------------------------------------- */

static pot_status check_part(const json_t *part, const char *path, pot_err *err) {
    static const char *const TYPES[] = {"text",      "image", "image_url", "video",
                                        "video_url", "audio", "audio_url", "input_audio"};
    if (json_is_string(part)) return POT_OK;
    if (!json_is_object(part)) return wrong(path, "", part, "text or an object with a type", err);
    pot_status status = check_text(part, path, ".type", true, err);
    if (status) return status;
    const char *type = json_string_value(json_object_get(part, "type"));
    for (size_t i = 0; i < sizeof TYPES / sizeof TYPES[0]; i++) {
        if (strcmp(type, TYPES[i]) == 0) return i ? POT_OK : check_text(part, path, ".text", true, err);
    }
    return pot_fail(err, POT_USAGE,
                    "%s.type is \"%.40s\", expected text, image, image_url, video, video_url, audio, audio_url or "
                    "input_audio",
                    path, type);
}

static pot_status check_reference(const json_t *part, const char *path, pot_err *err) {
    if (!json_is_object(part)) return wrong(path, "", part, "a tool_reference", err);
    return check_text(part, path, ".name", true, err);
}

static pot_status check_content(const json_t *content, const char *path, pot_err *err) {
    if (json_is_string(content) || is_absent(content)) return POT_OK;
    if (!json_is_array(content)) return wrong(path, "", content, "text, a list of parts or null", err);
    bool references = pot_chat_is_references(content);
    for (size_t i = 0; i < json_array_size(content); i++) {
        place at = inside(path, "[%zu]", i);
        const json_t *part = json_array_get(content, i);
        pot_status status = references ? check_reference(part, at.text, err) : check_part(part, at.text, err);
        if (status) return status;
    }
    return POT_OK;
}

static pot_status check_ids(const json_t *object, const char *path, pot_err *err) {
    pot_status status = check_text(object, path, ".tool_call_id", false, err);
    return status ? status : check_text(object, path, ".id", false, err);
}

static pot_status check_tool_message(const json_t *message, const char *path, pot_err *err) {
    const json_t *content = json_object_get(message, "content");
    place at = inside(path, ".content");
    pot_status status = check_ids(message, path, err);
    if (status) return status;
    if (!pot_chat_is_outputs(content)) return check_content(content, at.text, err);
    for (size_t i = 0; i < json_array_size(content) && !status; i++) {
        const json_t *entry = json_array_get(content, i), *output = json_object_get(entry, "output");
        place entry_at = inside(at.text, "[%zu]", i);
        if (!output) return wrong(entry_at.text, ".output", output, "text, a list of parts or null", err);
        status = check_ids(entry, entry_at.text, err);
        if (!status) status = check_content(output, inside(entry_at.text, ".output").text, err);
    }
    return status;
}

/* The content of a message that is not a tool's. */
static pot_status check_said(const json_t *message, const char *path, pot_err *err) {
    const json_t *content = json_object_get(message, "content");
    place at = inside(path, ".content");
    if (pot_chat_is_references(content)) {
        return pot_fail(err, POT_USAGE, "%s has a tool_reference, expected only in messages of a tool", at.text);
    }
    return check_content(content, at.text, err);
}

static pot_status check_assistant(const json_t *message, const char *path, pot_err *err) {
    const json_t *calls = json_object_get(message, "tool_calls");
    pot_status status = check_said(message, path, err);
    if (!status) status = check_text(message, path, ".reasoning_content", false, err);
    if (!status && !is_absent(calls) && !json_is_array(calls)) {
        status = wrong(path, ".tool_calls", calls, "a list or null", err);
    }
    for (size_t i = 0; i < json_array_size(calls) && !status; i++) {
        const json_t *call = json_array_get(calls, i), *function = json_object_get(call, "function");
        place at = inside(path, ".tool_calls[%zu]", i);
        if (!json_is_object(call)) return wrong(at.text, "", call, "an object", err);
        if (!is_absent(function) && !json_is_object(function)) {
            return wrong(at.text, ".function", function, "an object", err);
        }
        status = check_ids(call, at.text, err);
        if (pot_chat_called(call) != call) at = inside(path, ".tool_calls[%zu].function", i);
        if (!status) status = check_text(pot_chat_called(call), at.text, ".name", true, err);
        const json_t *arguments = json_object_get(pot_chat_called(call), "arguments");
        if (!status && !is_absent(arguments) && !json_is_string(arguments) && !json_is_object(arguments)) {
            status = wrong(at.text, ".arguments", arguments, "an object, or one as JSON text", err);
        }
    }
    return status;
}

static pot_status check_message(const json_t *message, size_t index, pot_err *err) {
    place at = inside("", "messages[%zu]", index);
    if (!json_is_object(message)) return wrong(at.text, "", message, "an object", err);
    pot_status status = check_text(message, at.text, ".role", true, err);
    if (status) return status;
    if (pot_chat_has_role(message, "tool")) return check_tool_message(message, at.text, err);
    if (pot_chat_has_role(message, "assistant")) return check_assistant(message, at.text, err);
    if (pot_chat_has_role(message, "user") || pot_chat_has_role(message, "system")) {
        return check_said(message, at.text, err);
    }
    return pot_fail(err, POT_USAGE, "%s.role is \"%.40s\", expected system, user, assistant or tool", at.text,
                    json_string_value(json_object_get(message, "role")));
}

/* ---- the rest of the request ------------------------------------------------------------------- */

static pot_status check_tool(const json_t *tool, size_t index, pot_err *err) {
    place at = inside("", "tools[%zu]", index);
    if (!json_is_object(tool)) return wrong(at.text, "", tool, "an object", err);
    const json_t *function = json_object_get(tool, "function");
    if (function) {
        if (!json_is_object(function)) return wrong(at.text, ".function", function, "an object", err);
        tool = function;
        at = inside("", "tools[%zu].function", index);
    }
    pot_status status = check_text(tool, at.text, ".name", true, err);
    return status ? status : check_bool(tool, at.text, ".defer_loading", err);
}

pot_status pot_chat_check(const json_t *request, pot_err *err) {
    static const char *const SWITCHES[] = {"enable_thinking", "clear_thinking", "add_generation_prompt"};
    if (!json_is_object(request)) return wrong("the request", "", request, "an object with messages", err);
    const json_t *messages = json_object_get(request, "messages"), *tools = json_object_get(request, "tools");
    pot_status status = check_text(request, "", "reasoning_effort", false, err);
    for (size_t i = 0; i < 3 && !status; i++) status = check_bool(request, "", SWITCHES[i], err);
    if (status) return status;
    if (!json_is_array(messages)) return wrong("messages", "", messages, "a list of messages", err);
    if (json_array_size(messages) == 0) {
        return pot_fail(err, POT_USAGE, "messages is empty, expected at least one message");
    }
    if (!is_absent(tools) && !json_is_array(tools)) return wrong("tools", "", tools, "a list or null", err);
    for (size_t i = 0; i < json_array_size(tools) && !status; i++) {
        status = check_tool(json_array_get(tools, i), i, err);
    }
    for (size_t i = 0; i < json_array_size(messages) && !status; i++) {
        status = check_message(json_array_get(messages, i), i, err);
    }
    return status;
}
