/* The chat templates: fixtures/chat_vectors.json (rendered by jinja2 from the published templates) byte for byte, what
 * the vectors leave out, and the sentences for requests that are wrong. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/file.h"
#include "common/json.h"
#include "common/log.h"
#include "common/mem.h"
#include "model/chat.h"

static json_t *parse(const char *text) {
    pot_err err = {0};
    json_t *value = NULL;
    if (pot_json_parse(&value, text, strlen(text), "request", &err)) fail_msg("%s: %s", text, err.text);
    return value;
}

static pot_chat_template template_of(const char *name) {
    pot_err err = {0};
    pot_chat_template which;
    if (pot_chat_choose(&which, "", name, &err)) fail_msg("%s", err.text);
    return which;
}

/* ---- what it renders --------------------------------------------------------------------------- */

static void expect_prompt(const char *name, const json_t *request, const char *prompt, size_t bytes) {
    pot_err err = {0};
    pot_buffer out = {0};
    pot_buffer_text(&out, "before");
    if (pot_chat_render(&out, template_of(name), request, &err)) fail_msg("%s", err.text);
    if (out.bytes != bytes + 6 || memcmp(out.data, "before", 6) != 0 || memcmp(out.data + 6, prompt, bytes) != 0) {
        fail_msg("%s: \"%s\" instead of \"%s\"", name, out.data + 6, prompt);
    }
    pot_buffer_free(&out);
}

static void chat_meets_all_vectors(void **state) {
    (void)state;
    pot_err err = {0};
    json_t *vectors = NULL;
    assert_int_equal(pot_json_read(&vectors, "tests/fixtures/chat_vectors.json", 1 << 20, &err), POT_OK);
    assert_int_equal(json_array_size(vectors), 80);
    for (size_t i = 0; i < json_array_size(vectors); i++) {
        const json_t *vector = json_array_get(vectors, i), *prompt = json_object_get(vector, "prompt");
        expect_prompt(json_string_value(json_object_get(vector, "template")), json_object_get(vector, "input"),
                      json_string_value(prompt), json_string_length(prompt));
    }
    json_decref(vectors);
}

#define START "[gMASK]<sop><|system|>Reasoning Effort: Max"
#define CALLS                                                                       \
    "{'role': 'assistant', 'tool_calls': [{'id': 'a', 'function': {'name': 'f'}}, " \
    "{'id': 'b', 'function': {'name': 'g', 'arguments': ''}}]}"
#define CALLED "<|assistant|><think></think><tool_call>f</tool_call><tool_call>g</tool_call><|observation|>"
#define TOOLS "'tools': [{'function': {'name': 'f', 'strict': true}}, {'name': 'g', 'defer_loading': true}]"
#define TOOL_HEAD                                                                                           \
    "<|system|>\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "  \
    "provided with function signatures within <tools></tools> XML tags:\n<tools>\n{\"name\": \"f\"}\n"      \
    "</tools>\n\nFor each function call, output the function name and arguments within the following XML "  \
    "format:\n<tool_call>{function-name}<arg_key>{arg-key-1}</arg_key><arg_value>{arg-value-1}</arg_value>" \
    "<arg_key>{arg-key-2}</arg_key><arg_value>{arg-value-2}</arg_value>...</tool_call>"

/* ' stands for ": requests read better so.  Where `prompt_5_3` is NULL both give the same. */
static const struct {
    const char *request, *prompt_5_2, *prompt_5_3;
} RENDERED[] = {
    /* Null and absent are the same. */
    {"{'messages': [{'role': 'user', 'content': null}, {'role': 'system'}], 'tools': null, 'reasoning_effort': null, "
     "'enable_thinking': null, 'clear_thinking': null, 'add_generation_prompt': null}",
     START "<|user|><|system|><|assistant|><think>", NULL},
    /* A string is one of the parts, a NUL one of its characters. */
    {"{'messages': [{'role': 'user', 'content': ['a', {'type': 'text', 'text': 'b'}, {'type': 'image'}]}], "
     "'add_generation_prompt': false}",
     START "<|user|>ab<|begin_of_image|><|image|><|end_of_image|>", NULL},
    {"{'messages': [{'role': 'user', 'content': [{'type': 'video_url'}]}], 'add_generation_prompt': false}",
     START "<|user|><reminder>You are unable to process this video because you don't have multi-modal input ability. "
           "Try different methods.</reminder>",
     START "<|user|><|begin_of_video|><|video|><|end_of_video|>"},
    /* Python's strip() knows more white space than \s. */
    {"{'messages': [{'role': 'assistant', 'content': '\\u001c\\u00a0 \\u3000x \\u2028y\\u0085\\u1680\\n'}], "
     "'add_generation_prompt': false}",
     START "<|assistant|><think></think>x \xE2\x80\xA8y", NULL},
    {"{'messages': [{'role': 'assistant', 'content': 'q<think>a<think>b</think>c</think> d '}], "
     "'add_generation_prompt': false}",
     START "<|assistant|><think>b</think>d", NULL},
    /* Given reasoning leaves the content as it is; earlier reasoning is cut from it all the same. */
    {"{'messages': [{'role': 'assistant', 'content': '</think>x', 'reasoning_content': 'r'}, "
     "{'role': 'assistant', 'content': 'r</think>y'}, {'role': 'user', 'content': 'z'}], 'clear_thinking': true}",
     START "<|assistant|><think></think></think>x<|assistant|><think></think>y<|user|>z<|assistant|><think>", NULL},
    /* Arguments as text; numbers as Python prints them; a call without "function". */
    {"{'messages': [{'role': 'assistant', 'tool_calls': [{'name': 'f', 'arguments': "
     "'{\\\"x\\\": [1.0, 1e22, -0.0, 1e-7], \\\"y\\\": \\\"\\u00e9\\\", \\\"z\\\": {\\\"k\\\": null}}'}]}], "
     "'add_generation_prompt': false}",
     START
     "<|assistant|><think></think><tool_call>f<arg_key>x</arg_key><arg_value>[1.0, 1e+22, -0.0, 1e-07]</arg_value>"
     "<arg_key>y</arg_key><arg_value>\xC3\xA9</arg_value><arg_key>z</arg_key><arg_value>{\"k\": null}</arg_value>"
     "</tool_call>",
     NULL},
    /* Results in the order of the calls, also those of one message. */
    {"{'messages': [" CALLS ", {'role': 'tool', 'content': [{'output': '1', 'id': 'b'}, {'output': ['2'], "
     "'tool_call_id': 'a'}]}], 'add_generation_prompt': false}",
     START CALLED "<tool_response>1</tool_response><tool_response>2</tool_response>",
     START CALLED "<tool_response>2</tool_response><tool_response>1</tool_response>"},
    {"{'messages': [" CALLS ", {'role': 'tool', 'content': '1', 'tool_call_id': 'b'}], 'add_generation_prompt': false}",
     START CALLED "<tool_response>1</tool_response>", NULL},
    /* A tool that is found later is printed whole, though it was kept back before. */
    {"{" TOOLS ", 'messages': [{'role': 'tool', 'content': [{'type': 'tool_reference', 'name': 'g'}, "
     "{'type': 'tool_reference', 'name': 'none'}, {'type': 'tool_reference', 'name': 'f'}]}], "
     "'add_generation_prompt': false}",
     START TOOL_HEAD "<|observation|><tool_response><tools>\n{\"name\": \"g\"}\n{\"name\": \"f\"}\n</tools>"
                     "</tool_response>",
     NULL},
    {"{'messages': [{'role': 'tool', 'content': [{'type': 'tool_reference', 'name': 'g'}]}, "
     "{'role': 'user', 'content': 'u'}, {'role': 'tool', 'content': []}], 'enable_thinking': false}",
     "[gMASK]<sop><|observation|><tool_response><tools>\n</tools></"
     "tool_response><|user|>u<|observation|><tool_response>"
     "</tool_response><|assistant|><think></think>",
     START "<|observation|><tool_response><tools>\n</tools></tool_response><|user|>u<|observation|><tool_response>"
           "</tool_response><|assistant|><think>"},
};

static json_t *parse_quoted(const char *text) {
    char copy[1024];
    assert_true(strlen(text) < sizeof copy);
    for (size_t i = 0; i <= strlen(text); i++) copy[i] = text[i] == '\'' ? '"' : text[i];
    return parse(copy);
}

static void chat_renders_what_the_vectors_leave_out(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof RENDERED / sizeof RENDERED[0]; i++) {
        json_t *request = parse_quoted(RENDERED[i].request);
        const char *other = RENDERED[i].prompt_5_3 ? RENDERED[i].prompt_5_3 : RENDERED[i].prompt_5_2;
        expect_prompt("glm-5.2", request, RENDERED[i].prompt_5_2, strlen(RENDERED[i].prompt_5_2));
        expect_prompt("glm-5.3", request, other, strlen(other));
        json_decref(request);
    }
}

/* 5.3 puts results in order: with many, that must not take time that grows with the square. */
static void chat_orders_many_results(void **state) {
    (void)state;
    enum { CALLS_N = 100000 };
    json_t *calls = json_array(), *messages = json_array();
    json_array_append_new(messages, json_pack("{s:s, s:o}", "role", "assistant", "tool_calls", calls));
    pot_buffer expected = {0};
    pot_buffer_text(&expected, START "<|assistant|><think></think>");
    for (int i = 0; i < CALLS_N; i++) {
        char id[16];
        snprintf(id, sizeof id, "c%d", i);
        json_array_append_new(calls, json_pack("{s:s, s:s}", "id", id, "name", "f"));
        pot_buffer_text(&expected, "<tool_call>f</tool_call>");
        snprintf(id, sizeof id, "c%d", CALLS_N - 1 - i);
        json_array_append_new(messages,
                              json_pack("{s:s, s:s, s:s}", "role", "tool", "tool_call_id", id, "content", id));
    }
    pot_buffer_text(&expected, "<|observation|>");
    for (int i = 0; i < CALLS_N; i++) pot_buffer_format(&expected, "<tool_response>c%d</tool_response>", i);
    json_t *request = json_pack("{s:o, s:b}", "messages", messages, "add_generation_prompt", 0);
    expect_prompt("glm-5.3", request, expected.data, expected.bytes);
    pot_buffer_free(&expected);
    json_decref(request);
}

/* ---- what it refuses --------------------------------------------------------------------------- */

static const struct {
    const char *request, *sentence;
} REFUSED[] = {
    {"[]", "the request is a list, expected an object with messages"},
    {"{}", "messages is missing, expected a list of messages"},
    {"{'messages': null}", "messages is null, expected a list of messages"},
    {"{'messages': 'Hi'}", "messages is text, expected a list of messages"},
    {"{'messages': []}", "messages is empty, expected at least one message"},
    {"{'messages': ['Hi']}", "messages[0] is text, expected an object"},
    {"{'messages': [{'content': 'Hi'}]}", "messages[0].role is missing, expected text"},
    {"{'messages': [{'role': 7}]}", "messages[0].role is a number, expected text"},
    {"{'messages': [{'role': 'robot'}]}", "messages[0].role is \"robot\", expected system, user, assistant or tool"},
    {"{'messages': [{'role': 'user'}, {'role': 'user'}, {'role': 'user', 'content': 7}]}",
     "messages[2].content is a number, expected text, a list of parts or null"},
    {"{'messages': [{'role': 'system', 'content': {}}]}",
     "messages[0].content is an object, expected text, a list of parts or null"},
    {"{'messages': [{'role': 'user', 'content': ['a', null]}]}",
     "messages[0].content[1] is null, expected text or an object with a type"},
    {"{'messages': [{'role': 'user', 'content': [{'text': 'a'}]}]}",
     "messages[0].content[0].type is missing, expected text"},
    {"{'messages': [{'role': 'user', 'content': [{'type': 'text'}]}]}",
     "messages[0].content[0].text is missing, expected text"},
    {"{'messages': [{'role': 'user', 'content': [{'type': 'file'}]}]}",
     "messages[0].content[0].type is \"file\", expected text, image, image_url, video, video_url, audio, audio_url or "
     "input_audio"},
    {"{'messages': [{'role': 'user', 'content': [{'type': 'tool_reference', 'name': 'f'}]}]}",
     "messages[0].content has a tool_reference, expected only in messages of a tool"},
    {"{'messages': [{'role': 'assistant', 'reasoning_content': []}]}",
     "messages[0].reasoning_content is a list, expected text or null"},
    {"{'messages': [{'role': 'assistant', 'tool_calls': {}}]}",
     "messages[0].tool_calls is an object, expected a list or null"},
    {"{'messages': [{'role': 'assistant', 'tool_calls': ['f']}]}",
     "messages[0].tool_calls[0] is text, expected an object"},
    {"{'messages': [{'role': 'assistant', 'tool_calls': [{'function': 'f'}]}]}",
     "messages[0].tool_calls[0].function is text, expected an object"},
    {"{'messages': [{'role': 'assistant', 'tool_calls': [{'function': {'x': 1}}]}]}",
     "messages[0].tool_calls[0].function.name is missing, expected text"},
    {"{'messages': [{'role': 'assistant', 'tool_calls': [{'name': 'f', 'id': 3}]}]}",
     "messages[0].tool_calls[0].id is a number, expected text or null"},
    {"{'messages': [{'role': 'assistant', 'tool_calls': [{'name': 'f', 'arguments': [1]}]}]}",
     "messages[0].tool_calls[0].arguments is a list, expected an object, or one as JSON text"},
    {"{'messages': [{'role': 'assistant', 'tool_calls': [{'name': 'f', 'arguments': '[1]'}]}]}",
     "messages[0].tool_calls[0]: the text of arguments is not a JSON object"},
    {"{'messages': [{'role': 'tool', 'tool_call_id': 3}]}",
     "messages[0].tool_call_id is a number, expected text or null"},
    {"{'messages': [{'role': 'tool', 'content': true}]}",
     "messages[0].content is true or false, expected text, a list of parts or null"},
    {"{'messages': [{'role': 'tool', 'content': [{'output': 'a'}, 'b']}]}",
     "messages[0].content[1].output is missing, expected text, a list of parts or null"},
    {"{'messages': [{'role': 'tool', 'content': [{'output': 5}]}]}",
     "messages[0].content[0].output is a number, expected text, a list of parts or null"},
    {"{'messages': [{'role': 'tool', 'content': [{'type': 'tool_reference'}]}]}",
     "messages[0].content[0].name is missing, expected text"},
    {"{'messages': [{'role': 'tool', 'content': [{'type': 'tool_reference', 'name': 'f'}, 'b']}]}",
     "messages[0].content[1] is text, expected a tool_reference"},
    {"{'messages': [{'role': 'user'}], 'tools': {}}", "tools is an object, expected a list or null"},
    {"{'messages': [{'role': 'user'}], 'tools': ['f']}", "tools[0] is text, expected an object"},
    {"{'messages': [{'role': 'user'}], 'tools': [{'function': null}]}",
     "tools[0].function is null, expected an object"},
    {"{'messages': [{'role': 'user'}], 'tools': [{'function': {}}]}",
     "tools[0].function.name is missing, expected text"},
    {"{'messages': [{'role': 'user'}], 'tools': [{'name': 'f', 'defer_loading': 1}]}",
     "tools[0].defer_loading is a number, expected true or false"},
    {"{'messages': [{'role': 'user'}], 'enable_thinking': 'no'}", "enable_thinking is text, expected true or false"},
    {"{'messages': [{'role': 'user'}], 'clear_thinking': 0}", "clear_thinking is a number, expected true or false"},
    {"{'messages': [{'role': 'user'}], 'add_generation_prompt': 1}",
     "add_generation_prompt is a number, expected true or false"},
    {"{'messages': [{'role': 'user'}], 'reasoning_effort': true}",
     "reasoning_effort is true or false, expected text or null"},
};

static void chat_refuses_with_the_place(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof REFUSED / sizeof REFUSED[0]; i++) {
        json_t *request = parse_quoted(REFUSED[i].request);
        for (int which = POT_CHAT_GLM_5_2; which <= POT_CHAT_GLM_5_3; which++) {
            pot_err err = {0};
            pot_buffer out = {0};
            pot_status status = pot_chat_render(&out, (pot_chat_template)which, request, &err);
            if (status != POT_USAGE || err.status != POT_USAGE || strcmp(err.text, REFUSED[i].sentence) != 0) {
                fail_msg("%s: \"%s\" instead of \"%s\"", REFUSED[i].request, err.text, REFUSED[i].sentence);
            }
            assert_int_equal(out.bytes, 0);
        }
        json_decref(request);
    }
}

static void chat_refuses_arguments_that_are_no_json(void **state) {
    (void)state;
    json_t *request =
        parse_quoted("{'messages': [{'role': 'assistant', 'tool_calls': [{'name': 'f', 'arguments': '{x'}]}]}");
    pot_err err = {0};
    pot_buffer out = {0};
    assert_int_equal(pot_chat_render(&out, POT_CHAT_GLM_5_2, request, &err), POT_USAGE);
    assert_int_equal(err.status, POT_USAGE);
    assert_non_null(strstr(err.text, "messages[0].tool_calls[0]: the text of arguments: not valid JSON at line 1"));
    assert_int_equal(out.bytes, 0);
    json_decref(request);
}

/* A small request must not become a prompt of gigabytes. */
static void chat_bounds_the_prompt(void **state) {
    (void)state;
    enum { REFERENCES = 20000, DESCRIPTION = 8192 };
    char text[DESCRIPTION + 1];
    memset(text, 'd', DESCRIPTION);
    text[DESCRIPTION] = 0;
    json_t *references = json_array();
    for (int i = 0; i < REFERENCES; i++) {
        json_array_append_new(references, json_pack("{s:s, s:s}", "type", "tool_reference", "name", "f"));
    }
    json_t *request = json_pack("{s:[{s:s, s:o}], s:[{s:s, s:s}]}", "messages", "role", "tool", "content", references,
                                "tools", "name", "f", "description", text);
    pot_err err = {0};
    pot_buffer out = {0};
    assert_int_equal(pot_chat_render(&out, POT_CHAT_GLM_5_3, request, &err), POT_LIMIT);
    assert_string_equal(err.text, "the prompt is longer than 64 MiB");
    assert_int_equal(out.bytes, 0);
    json_decref(request);
}

static void chat_survives_lack_of_memory(void **state) {
    (void)state;
    json_t *request = parse_quoted(RENDERED[7].request);
    pot_status status = POT_NO_MEMORY;
    for (uint64_t nth = 1; status; nth++) {
        pot_err err = {0};
        pot_buffer out = {0};
        pot_mem_fail_at(nth);
        status = pot_chat_render(&out, POT_CHAT_GLM_5_3, request, &err);
        pot_mem_fail_at(0);
        assert_true(status == POT_OK || status == POT_NO_MEMORY);
        assert_true(status == POT_OK || out.bytes == 0);
        assert_true(nth > 4 || status);
        pot_buffer_free(&out);
    }
    json_decref(request);
}

/* ---- which template ---------------------------------------------------------------------------- */

#define EFFORT_5_2                                                                                                    \
    "[gMASK]<sop>\n{%- set effort = 'high' if reasoning_effort is defined and reasoning_effort == 'high' else 'max' " \
    "-%}\n"                                                                                                           \
    "<|system|>Reasoning Effort: {{ effort | capitalize }}"
#define EFFORT_5_3                                                                                            \
    "[gMASK]<sop>\n{%- set effort = reasoning_effort if reasoning_effort in ['low', 'high'] else 'max' -%}\n" \
    "<|system|>Reasoning Effort: {{ effort | capitalize }}{%- if obj.tool_call_id -%}"

static const struct {
    const char *jinja, *config; /* the files of the model; NULL: not there */
    const char *name;           /* --chat-template */
    const char *expected;
} CHOICES[] = {
    {NULL, NULL, NULL, "glm-5.2"},
    {EFFORT_5_2, NULL, NULL, "glm-5.2"},
    {EFFORT_5_3, NULL, NULL, "glm-5.3"},
    {EFFORT_5_3, NULL, "", "glm-5.3"},
    {EFFORT_5_3, NULL, "glm-5.2", "glm-5.2"},
    {EFFORT_5_2, NULL, "glm-5.3", "glm-5.3"},
    {"{{ messages }} of some other model", NULL, NULL, "glm-5.2"}, /* with a warning */
    {"", NULL, NULL, "glm-5.2"},
    {NULL, "{\"chat_template\": \"Reasoning Effort: {{ e if e in ['low', 'high'] else 'max' }} {{ m.tool_call_id }}\"}",
     NULL, "glm-5.3"},
    {NULL,
     "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"x\"}, {\"name\": \"default\", \"template\": "
     "\"Reasoning Effort: ['low', 'high'] tool_call_id\"}]}",
     NULL, "glm-5.3"},
    {NULL, "{\"chat_template\": \"Reasoning Effort: {{ 'high' if e == 'high' else 'max' }}\"}", NULL, "glm-5.2"},
    {NULL, "{\"model_max_length\": 1000}", NULL, "glm-5.2"},
    {EFFORT_5_2, "{\"chat_template\": \"Reasoning Effort: ['low', 'high'] tool_call_id\"}", NULL,
     "glm-5.2"}, /* the file wins */
};

typedef struct directory {
    char path[64], jinja[128], config[128];
} directory;

static directory make_directory(void) {
    directory d = {.path = "/tmp/potluck-test-XXXXXX"};
    assert_non_null(mkdtemp(d.path));
    snprintf(d.jinja, sizeof d.jinja, "%s/chat_template.jinja", d.path);
    snprintf(d.config, sizeof d.config, "%s/tokenizer_config.json", d.path);
    return d;
}

static void chat_template_is_chosen_by_name_then_by_file(void **state) {
    (void)state;
    pot_err err = {0};
    assert_int_equal(pot_log_configure("error", &err), POT_OK);
    directory d = make_directory();
    for (size_t i = 0; i < sizeof CHOICES / sizeof CHOICES[0]; i++) {
        const char *jinja = CHOICES[i].jinja, *config = CHOICES[i].config;
        if (jinja) assert_int_equal(pot_file_write(d.jinja, jinja, strlen(jinja), &err), POT_OK);
        if (config) assert_int_equal(pot_file_write(d.config, config, strlen(config), &err), POT_OK);
        pot_chat_template which;
        if (pot_chat_choose(&which, d.path, CHOICES[i].name, &err)) fail_msg("case %zu: %s", i, err.text);
        if (strcmp(pot_chat_template_name(which), CHOICES[i].expected) != 0) {
            fail_msg("case %zu: %s instead of %s", i, pot_chat_template_name(which), CHOICES[i].expected);
        }
        unlink(d.jinja);
        unlink(d.config);
    }
    rmdir(d.path);
}

static void chat_template_that_is_unknown_is_refused(void **state) {
    (void)state;
    pot_err err = {0};
    pot_chat_template which;
    assert_int_equal(pot_chat_choose(&which, ".", "chatml", &err), POT_USAGE);
    assert_string_equal(err.text, "chat template \"chatml\" is unknown, expected glm-5.2 or glm-5.3");
    directory d = make_directory();
    assert_int_equal(pot_file_write(d.config, "{", 1, &err), POT_OK);
    assert_int_equal(pot_chat_choose(&which, d.path, NULL, &err), POT_FORMAT);
    assert_non_null(strstr(err.text, "tokenizer_config.json: not valid JSON"));
    unlink(d.config);
    rmdir(d.path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_meets_all_vectors),
        cmocka_unit_test(chat_renders_what_the_vectors_leave_out),
        cmocka_unit_test(chat_orders_many_results),
        cmocka_unit_test(chat_refuses_with_the_place),
        cmocka_unit_test(chat_refuses_arguments_that_are_no_json),
        cmocka_unit_test(chat_bounds_the_prompt),
        cmocka_unit_test(chat_survives_lack_of_memory),
        cmocka_unit_test(chat_template_is_chosen_by_name_then_by_file),
        cmocka_unit_test(chat_template_that_is_unknown_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
