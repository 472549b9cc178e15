/* Memory that runs out at any point ends a run with a sentence: a tiny model is opened, put on a coordinator and two workers, and
 * played, over and over, while one allocation after the other fails.  Crashes, hangs and (under a sanitizer) leaks are what this
 * finds; the worker with a thread of its own is hit too, and then the coordinator must notice. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/mem.h"
#include "tests/rig.h"
#include "tests/tiny_model.h"

enum { PROMPT = 6 };

static char directory[] = "/tmp/potluck-short-memory-XXXXXX";

static pot_status run_once(float *logits, pot_err *err) {
    int32_t prompt[PROMPT];
    const pot_tiny *tiny = pot_tiny_preset("small");
    pot_tiny_prompt(prompt, PROMPT, tiny->vocab, 1);
    pot_rig rig;
    pot_rig_options options = {.model = directory,
                               .policy = pot_format_policy_default,
                               .map = "round-robin",
                               .n_workers = 2,
                               .timeout_us = 10000000};
    pot_play play = {.prompt = prompt, .n_prompt = PROMPT, .n_decode = 1, .batch = 2, .draft = true};
    pot_status s = pot_rig_open(&rig, &options, err);
    if (s != POT_OK) return s;
    s = pot_rig_engine(&rig, 4, err);
    if (s == POT_OK) s = pot_rig_play(logits, &rig, &play, err);
    pot_status closed = pot_rig_close(&rig, s == POT_OK ? err : NULL);
    return s == POT_OK ? closed : s;
}

static void failed_allocation_ends_a_run_with_a_sentence(void **state) {
    (void)state;
    const pot_tiny *tiny = pot_tiny_preset("small");
    float *truth = calloc(2 * (2 * PROMPT + 1) * tiny->vocab, sizeof *truth),
          *logits = calloc(2 * (2 * PROMPT + 1) * tiny->vocab, sizeof *truth);
    pot_err err = {0};
    assert_int_equal(run_once(truth, &err), POT_OK);
    int failures = 0, successes = 0;
    /* Three runs without a fault in a row mean that all points are behind. */
    for (uint64_t nth = 1; successes < 3; nth++) {
        err = (pot_err){0};
        pot_mem_fail_at(nth);
        pot_status s = run_once(logits, &err);
        pot_mem_fail_at(0);
        if (s == POT_OK) {
            successes++;
            assert_memory_equal(logits, truth, 2 * (2 * PROMPT + 1) * tiny->vocab * sizeof *truth);
            continue;
        }
        successes = 0;
        failures++;
        if (!err.text[0] || s == POT_BUG)
            fail_msg("allocation %llu: %s, `%s`", (unsigned long long)nth, pot_status_name(s), err.text);
    }
    printf("%d failures survived\n", failures);
    assert_true(failures > 30);
    free(truth);
    free(logits);
}

int main(void) {
    pot_err err;
    if (!mkdtemp(directory) || pot_tiny_write(directory, pot_tiny_preset("small"), &err)) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(failed_allocation_ends_a_run_with_a_sentence)};
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    char path[96];
    snprintf(path, sizeof path, "%s/config.json", directory);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    unlink(path);
    rmdir(directory);
    return failures;
}
