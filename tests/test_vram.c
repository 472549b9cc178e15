/* Workers with part of their experts in the memory of a GPU (tests/cuda_shim stands in for one): the same logits, whatever lies where. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/mem.h"
#include "tests/cuda_shim/shim.h"
#include "tests/rig.h"

static pot_err err;
#define MUST(call)                                                                     \
    do {                                                                               \
        pot_status status_ = (call);                                                   \
        if (status_ != POT_OK) fail_msg("%s: %s", pot_status_name(status_), err.text); \
    } while (0)

enum { PROMPT = 12, DECODE = 4 };

static float *play(const char *model, uint32_t n_workers, uint64_t vram_bytes, size_t *n) {
    int32_t prompt[PROMPT];
    for (int i = 0; i < PROMPT; i++) prompt[i] = 3 + i * 5 % 29;
    pot_rig rig;
    const pot_rig_options options = {.model = model,
                                     .policy = pot_format_policy_default,
                                     .map = "random:5",
                                     .n_workers = n_workers,
                                     .threads = 2,
                                     .store = {.vram_bytes = vram_bytes}};
    MUST(pot_rig_open(&rig, &options, &err));
    MUST(pot_rig_engine(&rig, 8, &err));
    const pot_play p = {.prompt = prompt, .n_prompt = PROMPT, .n_decode = DECODE, .batch = 2};
    *n = (size_t)p.batch * pot_play_rows(&p) * pot_model_config(rig.model)->vocab;
    float *logits = calloc(*n, sizeof *logits);
    MUST(pot_rig_play(logits, &rig, &p, &err));
    MUST(pot_rig_close(&rig, &err));
    assert_int_equal(pot_shim_live(), 0);
    return logits;
}

static void logits_do_not_depend_on_the_gpu(void **state) {
    (void)state;
    static const char *const models[] = {"tests/fixtures/mxfp4", "tests/fixtures/article4", "tests/fixtures/fp8"};
    /* One shim has one user at a time, so several workers cannot share it in one process. */
    static const uint64_t budgets[] = {64 << 10, 300 << 10, 1 << 30};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        size_t n, same;
        float *truth = play(models[m], 1, 0, &n);
        for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++) {
            float *logits = play(models[m], 1, budgets[i], &same);
            assert_int_equal(same, n);
            assert_memory_equal(logits, truth, n * sizeof *truth);
            free(logits);
        }
        free(truth);
    }
}

static void a_gpu_without_so_much_memory_is_refused(void **state) {
    (void)state;
    pot_rig rig;
    const pot_rig_options options = {.model = "tests/fixtures/mxfp4",
                                     .policy = pot_format_policy_default,
                                     .map = "contiguous",
                                     .n_workers = 1,
                                     .store = {.vram_bytes = (uint64_t)1 << 40}};
    assert_int_equal(pot_rig_open(&rig, &options, &err), POT_LIMIT);
    assert_non_null(strstr(err.text, "--vram asks for 1024.000 GiB"));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_do_not_depend_on_the_gpu),
                                       cmocka_unit_test(a_gpu_without_so_much_memory_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
