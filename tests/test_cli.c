/* The program as its users see it: exit codes, sentences, and that standard output holds the result and nothing else.
 * Runs the potluck that lies beside the tests' folder (build/<mode>/potluck), each time with input on a pipe. */
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buffer.h"
#include "common/file.h"
#include "common/json.h"

enum { MAX_ARGUMENTS = 32, TIMEOUT_S = 300 };

static char program[4096];

typedef struct result {
    int status; /* exit code, or 1000 + signal */
    pot_buffer out, err;
} result;

/* ---- running the program ------------------------------------------------------------------------------------------ */

static void child(const char *const *arguments, int in, int out, int err) {
    dup2(in, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    for (int fd = 3; fd < 64; fd++) close(fd);
    char *argv[MAX_ARGUMENTS + 2] = {program};
    for (int i = 0; arguments[i] && i < MAX_ARGUMENTS; i++) argv[i + 1] = (char *)(uintptr_t)arguments[i];
    setenv("HOME", "/nonexistent", 1); /* no settings of whoever runs the tests */
    alarm(TIMEOUT_S);
    execv(program, argv);
    _exit(127);
}

static void take(struct pollfd *p, pot_buffer *into) {
    char block[65536];
    if (p->fd < 0 || !p->revents) return;
    ssize_t got = read(p->fd, block, sizeof block);
    if (got > 0) {
        pot_buffer_append(into, block, (size_t)got);
    } else {
        close(p->fd);
        p->fd = -1;
    }
}

static result run_with(const char *input, size_t input_bytes, const char *const *arguments) {
    int in[2], out[2], err[2];
    result r = {0};
    assert_int_equal(pipe(in) | pipe(out) | pipe(err), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid) child(arguments, in[0], out[1], err[1]);
    close(in[0]);
    close(out[1]);
    close(err[1]);
    struct pollfd p[3] = {{out[0], POLLIN, 0}, {err[0], POLLIN, 0}, {in[1], POLLOUT, 0}};
    if (!input_bytes) close(in[1]), p[2].fd = -1;
    fcntl(in[1], F_SETFL, O_NONBLOCK);
    while (p[0].fd >= 0 || p[1].fd >= 0) {
        assert_true(poll(p, 3, (TIMEOUT_S + 10) * 1000) > 0);
        take(&p[0], &r.out);
        take(&p[1], &r.err);
        if (p[2].fd >= 0 && p[2].revents) {
            ssize_t sent = write(p[2].fd, input, input_bytes);
            if (sent > 0) input += sent, input_bytes -= (size_t)sent;
            if (sent < 0 || !input_bytes) close(p[2].fd), p[2].fd = -1;
        }
    }
    if (p[2].fd >= 0) close(p[2].fd);
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    r.status = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    if (!r.out.data) pot_buffer_text(&r.out, "");
    if (!r.err.data) pot_buffer_text(&r.err, "");
    return r;
}

#define RUN(...) run_with("", 0, (const char *const[]){__VA_ARGS__, NULL})
#define RUN_INPUT(input, ...) run_with(input, strlen(input), (const char *const[]){__VA_ARGS__, NULL})

static void result_free(result *r) {
    pot_buffer_free(&r->out);
    pot_buffer_free(&r->err);
}

/* Ends the test with everything that the program said when something is not as expected. */
static void expect(result *r, int status, const char *out_has, const char *err_has) {
    if (r->status != status || !strstr(r->out.data, out_has) || !strstr(r->err.data, err_has)) {
        print_error("exit %d (expected %d)\nstdout (expected `%s` in it): %s\nstderr (expected `%s` in it): %s\n",
                    r->status, status, out_has, r->out.data, err_has, r->err.data);
        fail();
    }
}

/* ---- commands, options, help -------------------------------------------------------------------------------------- */

static void usage_errors_exit_2_and_say_what_to_do(void **state) {
    (void)state;
    static const struct {
        const char *arguments[6], *sentence;
    } cases[] = {
        {{"rum", "demo"}, "potluck: unknown command `rum`; did you mean `run`?"},
        {{"eval", "pplx", "demo", "x"}, "did you mean `eval ppl`?"},
        {{"eval"}, "`eval` needs a second word: `potluck eval ppl` or `potluck eval trace`"},
        {{"frobnicate"}, "`potluck help` lists the commands"},
        {{"run"}, "run: MODEL is missing"},
        {{"eval", "ppl", "demo"}, "eval ppl: TEXT is missing"},
        {{"run", "demo", "again", "-p", "x"}, "unexpected argument `again`"},
        {{"run", "demo", "--tempp", "0"}, "temp"},
        {{"run", "demo", "-p", ""}, "the prompt is empty"},
        {{"run", "demo", "--temp"}, "temp"},
        {{"eval", "trace", "demo"}, "--input FILE.safetensors is missing"},
        {{"worker"}, "a worker needs a coordinator"},
        {{"run", "demo", "-p", "x", "--kernels", "mmx"},
         "no kernels are called 'mmx'; this CPU can run: auto, generic"},
        {{"tokenize", "demo", "--temp", "0"}, "temp"},
        {{"bench", "kernels", "--formats", "q4,q5,q8"},
         "--formats: `q5` is not a format; there are f32, bf16, fp8, q8,"},
        {{"bench", "kernels", "--formats", ""}, "--formats: `` is not a format"},
        {{"bench", "kernels", "--formats", "q4,"}, "--formats: `` is not a format"},
        {{"bench", "kernels", "--rows", "1,,4"}, "--rows: `1,,4` is not a list of numbers from 1 to 512"},
        {{"bench", "kernels", "--rows", "513"}, "--rows: `513` is not a list"},
        {{"bench", "kernels", "--rows", "1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"}, "--rows: more than 16 are listed"},
        {{"bench", "kernels", "--kernels", "mmx"}, "kernels"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        result r = run_with("", 0, cases[i].arguments);
        expect(&r, 2, "", cases[i].sentence);
        assert_string_equal(r.out.data, "");
        assert_memory_equal(r.err.data, "potluck: ", 9);
        result_free(&r);
    }
    result r = run_with("", 0, (const char *const[]){NULL});
    expect(&r, 2, "", "no command given");
    result_free(&r);
}

static void help_lists_commands_and_options(void **state) {
    (void)state;
    static const char *const lines[] = {"run MODEL",           "chat MODEL",     "worker",
                                        "eval ppl MODEL TEXT", "tokenize MODEL", "version"};
    result r = RUN("help");
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) expect(&r, 0, lines[i], "");
    result_free(&r);
    r = RUN("run", "--help");
    expect(&r, 0, "usage: potluck run MODEL [options]", "");
    expect(&r, 0, "--temp", "");
    result again = RUN("help", "run");
    assert_string_equal(r.out.data, again.out.data);
    result_free(&r);
    result_free(&again);
    r = RUN("--version");
    expect(&r, 0, "potluck " POT_VERSION "\n", "");
    result_free(&r);
    r = RUN("version");
    expect(&r, 0, "; chosen ", "");
    expect(&r, 0, "generic", "");
    result_free(&r);
}

static void config_show_names_the_origin(void **state) {
    (void)state;
    result r = RUN("config", "show", "--ctx", "1234");
    expect(&r, 0, "ctx", "");
    expect(&r, 0, "1234", "");
    expect(&r, 0, "flag", "");
    result_free(&r);
}

static void missing_model_is_named(void **state) {
    (void)state;
    result r = RUN("run", "no/such/model", "-p", "x");
    expect(&r, 1, "", "no/such/model");
    assert_string_equal(r.out.data, "");
    result_free(&r);
}

/* ---- tokenize, template ------------------------------------------------------------------------------------------- */

static json_t *vectors(const char *path) {
    json_t *list = NULL;
    assert_int_equal(pot_json_read(&list, path, 64 << 20, NULL), POT_OK);
    assert_true(json_array_size(list) > 50);
    return list;
}

/* Feeds `input` of every vector as a JSON line and holds every line of the answer against `output`. */
static void check_lines(const char *path, const char *input, const char *output, const char *const *arguments,
                        const char *only) {
    json_t *list = vectors(path), *v;
    pot_buffer lines = {0};
    size_t i;
    json_array_foreach(list, i, v) {
        if (only && strcmp(json_string_value(json_object_get(v, "template")), only)) continue;
        char *line = json_dumps(json_object_get(v, input), JSON_ENCODE_ANY | JSON_COMPACT);
        pot_buffer_text(&lines, line);
        pot_buffer_byte(&lines, '\n');
        free(line);
    }
    result r = run_with(lines.data, lines.bytes, arguments);
    expect(&r, 0, "", "");
    char *at = r.out.data;
    json_array_foreach(list, i, v) {
        if (only && strcmp(json_string_value(json_object_get(v, "template")), only)) continue;
        char *end = strchr(at, '\n');
        assert_non_null(end);
        json_t *got = json_loadb(at, (size_t)(end - at), JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        if (!got || !json_equal(got, json_object_get(v, output))) {
            print_error("vector %zu of %s: %.*s\n", i, path, (int)(end - at), at);
            fail();
        }
        json_decref(got);
        at = end + 1;
    }
    assert_int_equal(*at, 0);
    pot_buffer_free(&lines);
    result_free(&r);
    json_decref(list);
}

static void tokenize_gives_the_vectors(void **state) {
    (void)state;
    const char *path = "tests/fixtures/tokenizer_vectors.json";
    check_lines(path, "text", "ids", (const char *const[]){"tokenize", "demo", "--jsonl", NULL}, NULL);
    check_lines(path, "ids", "decoded", (const char *const[]){"tokenize", "demo", "--jsonl", "--decode", NULL}, NULL);
}

static void template_gives_the_vectors(void **state) {
    (void)state;
    static const char *const names[] = {"glm-5.2", "glm-5.3"};
    for (size_t i = 0; i < 2; i++) {
        const char *arguments[] = {"template", "demo", "--jsonl", "--chat-template", names[i], NULL};
        check_lines("tests/fixtures/chat_vectors.json", "input", "prompt", arguments, names[i]);
    }
}

static void text_commands_name_the_line_of_a_fault(void **state) {
    (void)state;
    result r = RUN_INPUT("\"fine\"\n[1]\n", "tokenize", "demo", "--jsonl");
    expect(&r, 1, "]\n", "line 2: expected a JSON string");
    result_free(&r);
    r = RUN_INPUT("[1, 99999999]\n", "tokenize", "demo", "--jsonl", "--decode");
    expect(&r, 1, "", "line 1");
    expect(&r, 1, "", "99999999");
    result_free(&r);
    r = RUN_INPUT("{\"messages\": 5}\n", "template", "demo", "--jsonl");
    expect(&r, 2, "", "line 1: messages is a number");
    result_free(&r);
    r = RUN_INPUT("{\n", "template", "demo", "--jsonl");
    expect(&r, 1, "", "line 1");
    result_free(&r);
}

static void tokenize_goes_there_and_back(void **state) {
    (void)state;
    const char *text = "Once upon a time, na\xc3\xafve \xf0\x9f\x98\x80";
    result ids = RUN_INPUT(text, "tokenize", "demo");
    expect(&ids, 0, " ", "");
    result back = run_with(ids.out.data, ids.out.bytes, (const char *const[]){"tokenize", "demo", "--decode", NULL});
    assert_string_equal(back.out.data, text);
    result_free(&ids);
    result_free(&back);
}

/* ---- run, chat ---------------------------------------------------------------------------------------------------- */

static void run_prints_text_and_nothing_else(void **state) {
    (void)state;
    result quiet = RUN("run", "demo", "--temp", "0", "-n", "24", "-p", "Once upon a time", "--quiet");
    expect(&quiet, 0, " ", "");
    assert_string_equal(quiet.err.data, "");
    result loud = RUN("run", "demo", "--temp", "0", "-n", "24", "-p", "Once upon a time");
    expect(&loud, 0, "", "decode");
    expect(&loud, 0, "", "attention");
    assert_string_equal(quiet.out.data, loud.out.data);
    result piped = RUN_INPUT("Once upon a time", "run", "demo", "--temp", "0", "-n", "24", "--quiet");
    assert_string_equal(quiet.out.data, piped.out.data);
    result_free(&quiet);
    result_free(&loud);
    result_free(&piped);
}

static void run_reports_as_json(void **state) {
    (void)state;
    result r = RUN("run", "demo", "--temp", "0", "-n", "8", "-p", "Once upon a time", "--json");
    expect(&r, 0, "", "{");
    json_t *report = json_loads(strchr(r.err.data, '{'), 0, NULL); /* progress may come before it */
    assert_non_null(report);
    assert_int_equal(json_integer_value(json_object_get(report, "generated_tokens")), 8);
    assert_string_equal(json_string_value(json_object_get(report, "stopped_by")), "length");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(report, "decode"), "tokens")), 7);
    assert_int_equal(json_array_size(json_object_get(report, "workers")), 1);
    json_decref(report);
    result_free(&r);
}

static void run_repeats_with_the_seed(void **state) {
    (void)state;
    result a = RUN("run", "demo", "--temp", "1", "--seed", "7", "-n", "16", "-p", "Once upon a time", "--quiet");
    result b = RUN("run", "demo", "--temp", "1", "--seed", "7", "-n", "16", "-p", "Once upon a time", "--quiet");
    result c = RUN("run", "demo", "--temp", "1", "--seed", "8", "-n", "16", "-p", "Once upon a time", "--quiet");
    expect(&a, 0, "", "");
    assert_string_equal(a.out.data, b.out.data);
    assert_string_not_equal(a.out.data, c.out.data);
    result_free(&a);
    result_free(&b);
    result_free(&c);
}

static void run_answers_a_question(void **state) {
    (void)state;
    result r = RUN("run", "demo", "--chat", "--temp", "0", "--quiet", "-p", "Which city is the capital of Sweden?");
    assert_string_equal(r.out.data, "The capital of Sweden is Stockholm.");
    result_free(&r);
    r = RUN("run", "demo", "--chat", "--temp", "0", "--quiet", "--tools", "demo/tools.json", "-p",
            "What is the weather in Paris?");
    assert_string_equal(r.out.data,
                        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value></tool_call>");
    result_free(&r);
}

static void run_refuses_what_it_would_have_to_cut(void **state) {
    (void)state;
    result r = RUN("run", "demo", "--ctx", "4", "--quiet", "-p", "Once upon a time there was a little fox");
    expect(&r, 1, "", "the context 4");
    assert_string_equal(r.out.data, "");
    result_free(&r);
    r = RUN("run", "demo", "--ctx", "8", "--temp", "0", "--ignore-eos", "--json", "-p", "Once upon a time");
    expect(&r, 0, "", "\"stopped_by\": \"context\"");
    result_free(&r);
}

static void run_ends_quietly_when_the_reader_goes(void **state) {
    (void)state;
    char command[sizeof program + 256];
    snprintf(command, sizeof command,
             "'%s' run demo --temp 0 --ignore-eos -n 2000 -p 'Once upon a time' --quiet | head -c 10; "
             "echo \" ${PIPESTATUS[0]}\"",
             program);
    int out[2];
    assert_int_equal(pipe(out), 0);
    pid_t pid = fork();
    if (!pid) {
        dup2(out[1], STDOUT_FILENO);
        alarm(TIMEOUT_S);
        execlp("bash", "bash", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(out[1]);
    char text[256] = "";
    size_t n = 0;
    for (ssize_t got; n < sizeof text - 1 && (got = read(out[0], text + n, sizeof text - 1 - n)) > 0;) n += (size_t)got;
    close(out[0]);
    waitpid(pid, NULL, 0);
    assert_int_equal(n, 13);
    assert_string_equal(text + 10, " 0\n");
}

static void chat_keeps_the_conversation(void **state) {
    (void)state;
    result r = RUN_INPUT("Which city is the capital of Sweden?\n/nothing\n\nTell me the capital of Cuba.\n/reset\n"
                         "Which city is the capital of Sweden?\n/quit\nnever read\n",
                         "chat", "demo", "--temp", "0", "--quiet");
    expect(&r, 0, "", "unknown command /nothing");
    assert_string_equal(r.out.data, "The capital of Sweden is Stockholm.\nThe capital of Cuba is Havana.\n"
                                    "The capital of Sweden is Stockholm.\n");
    result_free(&r);
    r = RUN_INPUT("What is 12 + 7?\n", "chat", "demo", "--temp", "0", "--quiet", "--think");
    expect(&r, 0, "<think>", "");
    expect(&r, 0, "</think>", "");
    result_free(&r);
}

static void chat_goes_on_after_a_turn_that_is_too_long(void **state) {
    (void)state;
    result r = RUN_INPUT("Once upon a time there was a little fox named Ella who lived near the village and loved to "
                         "eat bread and honey "
                         "and one day she found a silver key under a tree\nWhich city is the capital of Sweden?\n",
                         "chat", "demo", "--temp", "0", "--quiet", "--ctx", "32");
    expect(&r, 0, "The capital of Sweden is Stockholm.\n", "the context 32");
    result_free(&r);
}

/* ---- eval, inspect ------------------------------------------------------------------------------------------------ */

static void eval_ppl_compares_with_the_reference(void **state) {
    (void)state;
    result r = RUN("eval", "ppl", "demo", "demo/held_out.txt", "--tokens", "512", "--window", "256", "--against",
                   "reference", "--json", "--quiet");
    expect(&r, 0, "\"kl\"", "");
    json_t *report = json_loads(r.out.data, 0, NULL);
    assert_non_null(report);
    assert_int_equal(json_integer_value(json_object_get(report, "predicted")), 510);
    assert_int_equal(json_integer_value(json_object_get(report, "windows")), 2);
    double ours = json_real_value(json_object_get(report, "perplexity"));
    double exact = json_real_value(json_object_get(report, "reference_perplexity"));
    assert_true(exact > 1.5 && exact < 8); /* a model that learned nothing has 2,048 */
    assert_true(ours / exact > 0.97 && ours / exact < 1.03);
    double kl = json_real_value(json_object_get(report, "kl"));
    assert_true(kl > 0 && kl < 0.02);
    assert_true(json_real_value(json_object_get(report, "top1_agreement")) > 0.95);
    json_decref(report);
    result_free(&r);
}

/* The whole file, so every hidden state, choice and logit: neighbours in the batch must not change a bit. */
static void eval_trace_does_not_depend_on_the_batch(void **state) {
    (void)state;
    static const char *const batches[] = {"1", "3"};
    pot_buffer files[2] = {{0}, {0}};
    for (int i = 0; i < 2; i++) {
        char path[] = "/tmp/potluck_trace_XXXXXX";
        int fd = mkstemp(path);
        assert_true(fd >= 0);
        close(fd);
        result r = RUN("eval", "trace", "tests/fixtures/indexshare", "--input",
                       "tests/fixtures/indexshare/expected.safetensors", "--greedy", "6", "--batch", batches[i],
                       "--prefill-tile", i ? "5" : "64", "--out", path, "--quiet");
        expect(&r, 0, "", "");
        assert_int_equal(pot_file_read(&files[i], path, 1 << 28, NULL), POT_OK);
        unlink(path);
        result_free(&r);
    }
    assert_true(files[0].bytes > 100000);
    assert_int_equal(files[0].bytes, files[1].bytes);
    assert_memory_equal(files[0].data, files[1].data, files[0].bytes);
    pot_buffer_free(&files[0]);
    pot_buffer_free(&files[1]);
}

static void inspect_counts_the_model(void **state) {
    (void)state;
    result r = RUN("inspect", "demo", "--json");
    json_t *report = json_loads(r.out.data, 0, NULL);
    assert_non_null(report);
    assert_string_equal(json_string_value(json_object_get(report, "layers")), "dssssm");
    assert_string_equal(json_string_value(json_object_get(report, "schedule")), "FFFSSF");
    json_int_t parameters = json_integer_value(json_object_get(report, "parameters"));
    assert_true(parameters > 13900000 && parameters < 14100000);
    json_decref(report);
    result_free(&r);
    r = RUN("inspect", "demo");
    expect(&r, 0, "experts", "");
    expect(&r, 0, "mxfp4", "");
    result_free(&r);
}

/* What it measures depends on the machine; that it says what it measured does not. */
static void bench_kernels_gives_a_line_a_case(void **state) {
    (void)state;
    static const struct {
        const char *shape;
        int rows;
    } cases[] = {{"2048x6144", 1}, {"2048x6144", 2}, {"6144x2048", 1}, {"6144x2048", 2}, {"layer", 1}};
    static const char *const measured[] = {"gbps", "roofline_gbps", "fraction", "fraction_p10", "fraction_p90", "gops"};
    static const char *const peaks[] = {"peak_gops", "peak_fraction", "peak_fraction_p10", "peak_fraction_p90"};
    result r = RUN("bench", "kernels", "--quick", "--json", "--quiet", "--formats", "q4", "--rows", "1,2", "--threads",
                   "2", "--kernels", "generic");
    expect(&r, 0, "", "");
    char *rest, *line = strtok_r(r.out.data, "\n", &rest);
    json_t *machine = json_loads(line, 0, NULL);
    assert_string_equal(json_string_value(json_object_get(machine, "command")),
                        "potluck bench kernels --quick --json --kernels generic --threads 2 --formats q4 --rows 1,2");
    assert_int_equal(json_integer_value(json_object_get(machine, "threads")), 2);
    assert_true(json_real_value(json_object_get(machine, "roofline_gbps")) > 0);
    json_decref(machine);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        line = strtok_r(NULL, "\n", &rest);
        assert_non_null(line);
        json_t *c = json_loads(line, 0, NULL);
        assert_string_equal(json_string_value(json_object_get(c, "format")), "q4");
        assert_string_equal(json_string_value(json_object_get(c, "table")), "generic");
        assert_string_equal(json_string_value(json_object_get(c, "shape")), cases[i].shape);
        assert_int_equal(json_integer_value(json_object_get(c, "rows")), cases[i].rows);
        assert_int_equal(json_integer_value(json_object_get(c, "threads")), 2);
        for (size_t m = 0; m < sizeof measured / sizeof measured[0]; m++)
            assert_true(json_real_value(json_object_get(c, measured[m])) > 0);
        for (size_t m = 0; m < sizeof peaks / sizeof peaks[0]; m++) {
            const json_t *value = json_object_get(c, peaks[m]);
            assert_true(cases[i].rows == 1 ? json_is_null(value) : json_real_value(value) > 0);
        }
        json_decref(c);
    }
    assert_null(strtok_r(NULL, "\n", &rest));
    result_free(&r);
}

int main(void) {
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 16);
    if (n <= 0) return 1;
    program[n] = 0;
    for (int up = 0; up < 2; up++) *strrchr(program, '/') = 0; /* .../tests/test_cli -> ... */
    strcat(program, "/potluck");
    signal(SIGPIPE, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage_errors_exit_2_and_say_what_to_do),
        cmocka_unit_test(help_lists_commands_and_options),
        cmocka_unit_test(config_show_names_the_origin),
        cmocka_unit_test(missing_model_is_named),
        cmocka_unit_test(tokenize_gives_the_vectors),
        cmocka_unit_test(template_gives_the_vectors),
        cmocka_unit_test(text_commands_name_the_line_of_a_fault),
        cmocka_unit_test(tokenize_goes_there_and_back),
        cmocka_unit_test(run_prints_text_and_nothing_else),
        cmocka_unit_test(run_reports_as_json),
        cmocka_unit_test(run_repeats_with_the_seed),
        cmocka_unit_test(run_answers_a_question),
        cmocka_unit_test(run_refuses_what_it_would_have_to_cut),
        cmocka_unit_test(run_ends_quietly_when_the_reader_goes),
        cmocka_unit_test(chat_keeps_the_conversation),
        cmocka_unit_test(chat_goes_on_after_a_turn_that_is_too_long),
        cmocka_unit_test(eval_ppl_compares_with_the_reference),
        cmocka_unit_test(eval_trace_does_not_depend_on_the_batch),
        cmocka_unit_test(inspect_counts_the_model),
        cmocka_unit_test(bench_kernels_gives_a_line_a_case),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
