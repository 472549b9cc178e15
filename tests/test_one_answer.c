/* One answer (docs/numerics.md): every logit has the same bits whatever the cluster looks like.  For each model and cache format, 32
 * rotations of a prompt are computed alone, by one process, in one tile: these logits are the truth.  Then the full product
 * of workers, maps, tiles and batches must give them again, every sequence of a batch its own; and so must every kernel table, a mix
 * of tables, and any number of threads.  Rows are those of the prompt, of the MTP layer, and of decoding. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/log.h"
#include "common/mem.h"
#include "tests/rig.h"
#include "tests/tiny_model.h"

enum { MAX_BATCH = 32, DECODE = 4 };

typedef struct subject {
    const char *name; /* a preset of tiny_model.h, or "demo" */
    uint32_t n_prompt;
    char directory[64];
    int32_t prompt[128];
    uint32_t vocab, rows;
    bool draft;
    float *truth[2]; /* by pot_kv_format: [MAX_BATCH][rows][vocab] */
    float *got;      /* room for one play */
} subject;

/* The demo's prompt is longer than its index_topk of 64, those of the others are several times theirs: selections drop keys. */
static subject subjects[] = {
    {.name = "experts256", .n_prompt = 20}, {.name = "wide544", .n_prompt = 20}, {.name = "demo", .n_prompt = 66}};
enum { SUBJECTS = sizeof subjects / sizeof subjects[0] };

static const char *const maps[] = {"contiguous", "round-robin", "sliced", "random:7"};
static const uint32_t worker_counts[] = {1, 2, 3, 5, 8}, batches[] = {1, 2, 7, 32}, tiles[] = {1, 3, 64};
#define COUNT(array) (sizeof(array) / sizeof(array)[0])

#define MUST(call)                                     \
    do {                                               \
        pot_err err;                                   \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)

/* Under a sanitizer (MODE, set by tests/run) a tenth of the product is computed, each cluster with one tile and one batch, and
 * the largest batch is left out. */
static bool is_release(void) {
    const char *mode = getenv("MODE");
    return !mode || !strcmp(mode, "release");
}

static bool is_chosen(size_t w, size_t m, size_t t, size_t b) {
    return is_release() || (t == (w + m) % COUNT(tiles) && b == (w + 2 * m) % (COUNT(batches) - 1));
}

static uint32_t turns(void) { return batches[COUNT(batches) - (is_release() ? 1 : 2)]; }

/* ---- the truth ---------------------------------------------------------------------------------------------------- */

static pot_play play_of(const subject *s, pot_kv_format kv, uint32_t batch, uint32_t turn) {
    return (pot_play){.prompt = s->prompt,
                      .n_prompt = s->n_prompt,
                      .n_decode = DECODE,
                      .batch = batch,
                      .turn = turn,
                      .kv = kv,
                      .draft = s->draft};
}

static size_t sequence_floats(const subject *s) { return (size_t)s->rows * s->vocab; }

static void prepare(subject *s) {
    if (!strcmp(s->name, "demo")) {
        snprintf(s->directory, sizeof s->directory, "demo");
    } else {
        snprintf(s->directory, sizeof s->directory, "/tmp/potluck-one-answer-XXXXXX");
        assert_non_null(mkdtemp(s->directory));
        MUST(pot_tiny_write(s->directory, pot_tiny_preset(s->name), &err));
    }
    pot_rig rig;
    pot_rig_options options = {
        .model = s->directory, .policy = pot_format_policy_default, .map = "contiguous", .n_workers = 1};
    MUST(pot_rig_open(&rig, &options, &err));
    MUST(pot_rig_engine(&rig, 64, &err));
    const pot_config *config = pot_model_config(rig.model);
    s->vocab = config->vocab;
    s->draft = config->n_mtp;
    pot_tiny_prompt(s->prompt, s->n_prompt, s->vocab, 11);
    pot_play play = play_of(s, POT_KV_BF16, 1, 0);
    s->rows = pot_play_rows(&play);
    s->got = pot_alloc_array(MAX_BATCH * sequence_floats(s), sizeof(float));
    assert_non_null(s->got);
    for (int kv = POT_KV_BF16; kv <= POT_KV_F32; kv++) {
        s->truth[kv] = pot_alloc_array(MAX_BATCH * sequence_floats(s), sizeof(float));
        assert_non_null(s->truth[kv]);
        for (uint32_t turn = 0; turn < turns(); turn++) {
            play = play_of(s, (pot_kv_format)kv, 1, turn);
            MUST(pot_rig_play(s->truth[kv] + turn * sequence_floats(s), &rig, &play, &err));
        }
    }
    MUST(pot_rig_close(&rig, &err));
}

static int prepare_all(void **state) {
    (void)state;
    for (uint32_t i = 0; i < SUBJECTS; i++) prepare(&subjects[i]);
    return 0;
}

static int clear_all(void **state) {
    (void)state;
    for (uint32_t i = 0; i < SUBJECTS; i++) {
        subject *s = &subjects[i];
        pot_free(s->got);
        for (int kv = 0; kv < 2; kv++) pot_free(s->truth[kv]);
        if (!strcmp(s->name, "demo") || !s->directory[0]) continue;
        char path[96];
        snprintf(path, sizeof path, "%s/config.json", s->directory);
        unlink(path);
        snprintf(path, sizeof path, "%s/model.safetensors", s->directory);
        unlink(path);
        rmdir(s->directory);
    }
    return 0;
}

/* Plays and compares; on a difference says where the first one is. */
static void check(subject *s, pot_rig *rig, pot_kv_format kv, uint32_t batch, const char *what) {
    pot_play play = play_of(s, kv, batch, 0);
    memset(s->got, 0, batch * sequence_floats(s) * sizeof(float));
    MUST(pot_rig_play(s->got, rig, &play, &err));
    const float *truth = s->truth[kv];
    if (!memcmp(s->got, truth, batch * sequence_floats(s) * sizeof(float))) return;
    size_t at = 0;
    while (!memcmp(s->got + at, truth + at, sizeof(float))) at++;
    size_t row = at / s->vocab;
    fail_msg("%s, %s KV, batch %u, %s: sequence %zu, row %zu of %u, logit %zu is %.9g, alone it is %.9g", s->name,
             kv == POT_KV_F32 ? "f32" : "bf16", batch, what, row / s->rows, row % s->rows, s->rows, at % s->vocab,
             (double)s->got[at], (double)truth[at]);
}

/* ---- the tests ---------------------------------------------------------------------------------------------------- */

static void product_of_workers_maps_tiles_and_batches(subject *s) {
    char what[96];
    for (size_t w = 0; w < COUNT(worker_counts); w++) {
        for (size_t m = 0; m < COUNT(maps); m++) {
            pot_rig rig;
            pot_rig_options options = {.model = s->directory,
                                       .policy = pot_format_policy_default,
                                       .map = maps[m],
                                       .n_workers = worker_counts[w]};
            MUST(pot_rig_open(&rig, &options, &err));
            for (size_t t = 0; t < COUNT(tiles); t++) {
                MUST(pot_rig_engine(&rig, tiles[t], &err));
                snprintf(what, sizeof what, "%u workers, map %s, tile %u", worker_counts[w], maps[m], tiles[t]);
                for (size_t b = 0; b < COUNT(batches); b++) {
                    if (!is_chosen(w, m, t, b)) continue;
                    check(s, &rig, POT_KV_BF16, batches[b], what);
                    /* The demo is the slow one: its f32 caches meet every cluster, but one tile only. */
                    if (tiles[t] == 64 || strcmp(s->name, "demo")) check(s, &rig, POT_KV_F32, batches[b], what);
                }
            }
            MUST(pot_rig_close(&rig, &err));
        }
    }
}

static void answer_of_256_experts_is_the_same_in_every_cluster(void **state) {
    (void)state;
    product_of_workers_maps_tiles_and_batches(&subjects[0]);
}

static void answer_of_ragged_chunks_is_the_same_in_every_cluster(void **state) {
    (void)state;
    product_of_workers_maps_tiles_and_batches(&subjects[1]);
}

static void answer_of_the_demo_is_the_same_in_every_cluster(void **state) {
    (void)state;
    product_of_workers_maps_tiles_and_batches(&subjects[2]);
}

static void check_machine(subject *s, const pot_rig_options *options, const char *what) {
    pot_rig rig;
    MUST(pot_rig_open(&rig, options, &err));
    MUST(pot_rig_engine(&rig, 5, &err));
    check(s, &rig, POT_KV_BF16, 3, what);
    check(s, &rig, POT_KV_F32, 3, what);
    MUST(pot_rig_close(&rig, &err));
}

static void answer_is_the_same_with_every_kernel_table(void **state) {
    (void)state;
    const pot_kernels *tables[8];
    int n = pot_kernels_list(tables, 8);
    for (uint32_t i = 0; i < SUBJECTS; i++) {
        subject *s = &subjects[i];
        pot_rig_options options = {
            .model = s->directory, .policy = pot_format_policy_default, .map = "sliced", .n_workers = 2};
        for (int k = 0; k < n; k++) {
            options.kernels = tables[k]->name;
            check_machine(s, &options, tables[k]->name);
        }
        options.kernels = NULL;
        options.mixed_kernels = true;
        options.n_workers = 4;
        check_machine(s, &options, "mixed tables");
    }
}

static void answer_is_the_same_with_any_number_of_threads(void **state) {
    (void)state;
    char what[32];
    for (uint32_t i = 0; i < SUBJECTS; i++) {
        for (int threads = 1; threads <= 4; threads++) {
            pot_rig_options options = {.model = subjects[i].directory,
                                       .policy = pot_format_policy_default,
                                       .map = "random:7",
                                       .n_workers = 2,
                                       .threads = threads};
            snprintf(what, sizeof what, "%d threads", threads);
            check_machine(&subjects[i], &options, what);
        }
    }
}

/* A prompt that is decoded token by token instead of in one step. */
static void answer_of_prefill_is_the_answer_of_decode(void **state) {
    (void)state;
    for (uint32_t i = 0; i < SUBJECTS; i++) {
        subject *s = &subjects[i];
        pot_rig rig;
        pot_rig_options options = {
            .model = s->directory, .policy = pot_format_policy_default, .map = "contiguous", .n_workers = 1};
        MUST(pot_rig_open(&rig, &options, &err));
        MUST(pot_rig_engine(&rig, 1, &err));
        pot_sequence *sequence = NULL;
        MUST(pot_sequence_create(&sequence, pot_model_config(rig.model), POT_KV_BF16, s->n_prompt, &err));
        for (uint32_t p = 0; p < s->n_prompt; p++) {
            pot_row row = {sequence, p, s->prompt[p]};
            const uint32_t wanted = 0;
            MUST(pot_engine_forward(rig.engine, &row, 1, NULL, s->got + (size_t)p * s->vocab, &wanted, 1, NULL, &err));
        }
        assert_memory_equal(s->got, s->truth[POT_KV_BF16], (size_t)s->n_prompt * s->vocab * sizeof(float));
        pot_sequence_free(sequence);
        MUST(pot_rig_close(&rig, &err));
    }
}

/* The comparisons above would hold for an engine that ignores its input: these must differ. */
static void answer_depends_on_what_it_should(void **state) {
    (void)state;
    for (uint32_t i = 0; i < SUBJECTS; i++) {
        subject *s = &subjects[i];
        size_t bytes = sequence_floats(s) * sizeof(float);
        assert_memory_not_equal(s->truth[POT_KV_BF16], s->truth[POT_KV_F32], bytes);
        for (uint32_t turn = 1; turn < turns() && turn % s->n_prompt; turn++)
            assert_memory_not_equal(s->truth[POT_KV_BF16], s->truth[POT_KV_BF16] + turn * sequence_floats(s), bytes);
    }
}

int main(void) {
    pot_log_configure("warn", NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answer_depends_on_what_it_should),
        cmocka_unit_test(answer_of_prefill_is_the_answer_of_decode),
        cmocka_unit_test(answer_is_the_same_with_every_kernel_table),
        cmocka_unit_test(answer_is_the_same_with_any_number_of_threads),
        cmocka_unit_test(answer_of_256_experts_is_the_same_in_every_cluster),
        cmocka_unit_test(answer_of_ragged_chunks_is_the_same_in_every_cluster),
        cmocka_unit_test(answer_of_the_demo_is_the_same_in_every_cluster),
    };
    return cmocka_run_group_tests(tests, prepare_all, clear_all);
}
