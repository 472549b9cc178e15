/* The fixtures, end to end: `potluck eval trace --reference` on each checkpoint must compute what PyTorch computed: logits, hidden
 * states, selections, experts and their weights, greedy tokens, and the MTP layer's numbers.  Runs the potluck that lies beside
 * the tests' folder, once with the generic kernels and once with the best. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/safetensors.h"
#include "tests/compare.h"

static char program[4096], trace[] = "/tmp/potluck-trace-XXXXXX";

/* Runs the program and gives its exit status; what it says goes to the test's own output. */
static int run(const char *const *arguments) {
    pid_t pid = fork();
    if (!pid) {
        alarm(300);
        execv(program, (char *const *)(uintptr_t)arguments);
        _exit(127);
    }
    int status = -1;
    return pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* How many greedy tokens a fixture has. */
static uint64_t greedy_of(const char *path) {
    pot_shards *file = NULL;
    pot_err err;
    if (pot_shards_open_file(&file, path, &err)) fail_msg("%s", err.text);
    const pot_tensor *greedy = pot_shards_find(file, "greedy");
    uint64_t n = greedy ? greedy->shape[0] : 0;
    pot_shards_close(file);
    return n;
}

static void hold(const char *directory, const char *kernels) {
    char expected[256], greedy[24];
    snprintf(expected, sizeof expected, "%s/expected.safetensors", directory);
    snprintf(greedy, sizeof greedy, "%llu", (unsigned long long)greedy_of(expected));
    int status = run((const char *const[]){program, "eval", "trace", directory, "--input", expected, "--greedy", greedy,
                                           "--reference", "--kernels", kernels, "--prefill-tile", "7", "--threads", "1",
                                           "--quiet", "--out", trace, NULL});
    if (status) fail_msg("%s: eval trace ended with status %d", directory, status);
    uint32_t bad;
    pot_buffer report = {0};
    pot_err err;
    if (pot_compare_files(&bad, &report, expected, trace, 1e-4, &err)) fail_msg("%s", err.text);
    printf("%s, %s kernels:\n%s", directory, kernels, report.data ? report.data : "");
    pot_buffer_free(&report);
    if (bad) fail_msg("%s: %u tensors fall short (marked !!)", directory, bad);
}

static void fixture_holds(void **state) {
    hold(*state, "generic");
    hold(*state, "auto");
}

/* A comparison that lets everything pass would make all of the above hold. */
static void comparison_notices_another_models_numbers(void **state) {
    (void)state;
    uint32_t bad;
    pot_buffer report = {0};
    pot_err err;
    const char *one = "tests/fixtures/fp8/expected.safetensors", *other = "tests/fixtures/mxfp4/expected.safetensors";
    if (pot_compare_files(&bad, &report, one, one, 0, &err)) fail_msg("%s", err.text);
    assert_int_equal(bad, 0);
    if (pot_compare_files(&bad, &report, one, other, 1e-4, &err)) fail_msg("%s", err.text);
    pot_buffer_free(&report);
    assert_int_equal(bad, 21); /* all of them */
}

int main(int argc, char **argv) {
    const char *slash = argc ? strrchr(argv[0], '/') : NULL;
    snprintf(program, sizeof program, "%.*s/../potluck", slash ? (int)(slash - argv[0]) : 1, slash ? argv[0] : ".");
    int file = mkstemp(trace);
    if (file < 0) return 1;
    close(file);
#define FIXTURE(name, directory) \
    { "fixture_" name "_holds", fixture_holds, NULL, NULL, (void *)(uintptr_t)directory }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comparison_notices_another_models_numbers),
        FIXTURE("indexshare", "tests/fixtures/indexshare"),
        FIXTURE("experts256", "tests/fixtures/experts256"),
        FIXTURE("fp8", "tests/fixtures/fp8"),
        FIXTURE("mxfp4", "tests/fixtures/mxfp4"),
        FIXTURE("eps", "tests/fixtures/eps"),
        FIXTURE("article4", "tests/fixtures/article4"),
        FIXTURE("demo", "demo"),
    };
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    unlink(trace);
    return failures;
}
