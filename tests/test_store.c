/* Models larger than their budget: whatever is in memory, on disk or on its way, and whatever goes wrong with the disk, the logits have the same
 * bits or there is a sentence; and memory stays under the budget. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "tests/converted.h"
#include "tests/rig.h"
#include "tests/tiny_model.h"
#include "worker/store.h"
#include "worker/usage.h"

enum { PROMPT = 14, DECODE = 5 };

static pot_err err;
#define MUST(call)                                                                     \
    do {                                                                               \
        pot_status status_ = (call);                                                   \
        if (status_ != POT_OK) fail_msg("%s: %s", pot_status_name(status_), err.text); \
    } while (0)

typedef struct subject {
    const char *preset;
    char source[64], converted[80];
    uint64_t expert_bytes;
    uint32_t vocab;
    int32_t prompt[PROMPT];
    size_t n; /* floats */
    float *truth, *got;
} subject;
static subject subjects[] = {{.preset = "experts256"}, {.preset = "wide544"}};
enum { SUBJECTS = sizeof subjects / sizeof subjects[0] };

static pot_play play_of(const subject *s) {
    return (pot_play){.prompt = s->prompt, .n_prompt = PROMPT, .n_decode = DECODE, .batch = 2};
}

/* Of the model at `path` into s->got. */
static pot_status play(subject *s, const char *path, pot_rig_options o, uint32_t tile) {
    pot_rig rig;
    o.model = path;
    if (!o.map) o.map = "contiguous";
    if (!o.n_workers) o.n_workers = 1;
    if (!o.threads) o.threads = 2;
    if (!o.timeout_us) o.timeout_us = 20000000;
    pot_status status = pot_rig_open(&rig, &o, &err);
    if (status != POT_OK) return status;
    const pot_play p = play_of(s);
    status = pot_rig_engine(&rig, tile, &err);
    if (status == POT_OK) status = pot_rig_play(s->got, &rig, &p, &err);
    pot_err ended;
    pot_status closed = pot_rig_close(&rig, status == POT_OK ? &err : &ended);
    return status == POT_OK ? closed : status;
}

static void same(subject *s, const char *what) {
    if (memcmp(s->got, s->truth, s->n * sizeof *s->got)) fail_msg("%s: %s: other logits", s->preset, what);
    memset(s->got, 0xFF, s->n * sizeof *s->got);
}

static uint64_t least_of(const char *path, const char *map, uint32_t n_workers, uint32_t worker) {
    pot_model *model;
    pot_map *m;
    uint64_t least, all;
    MUST(pot_model_open(&model, path, &pot_format_policy_default, &err));
    MUST(pot_map_make(&m, map, 1, n_workers, pot_model_layer_shapes(model), pot_model_layers(model), &err));
    pot_store_needs(&least, &all, model, m, worker);
    pot_map_free(m);
    pot_model_close(model);
    return least + (least >> 4) + (1 << 18); /* and its tables */
}

static int prepare(void **state) {
    (void)state;
    for (size_t i = 0; i < SUBJECTS; i++) {
        subject *s = &subjects[i];
        const pot_tiny *tiny = pot_tiny_preset(s->preset);
        snprintf(s->source, sizeof s->source, "/tmp/potluck-store-XXXXXX");
        if (!mkdtemp(s->source)) return -1;
        snprintf(s->converted, sizeof s->converted, "%s-packed", s->source);
        MUST(pot_tiny_write(s->source, tiny, &err));
        MUST(pot_converted_make(s->converted, s->source, &pot_format_policy_default, &err));
        pot_tiny_prompt(s->prompt, PROMPT, tiny->vocab, 5);
        const pot_play p = play_of(s);
        s->vocab = tiny->vocab;
        s->n = (size_t)p.batch * pot_play_rows(&p) * tiny->vocab;
        s->truth = calloc(s->n, sizeof *s->truth);
        s->got = calloc(s->n, sizeof *s->got);
        MUST(play(s, s->source, (pot_rig_options){.policy = pot_format_policy_default}, 64));
        memcpy(s->truth, s->got, s->n * sizeof *s->got);
        pot_model *model;
        MUST(pot_model_open(&model, s->converted, &pot_format_policy_default, &err));
        for (uint32_t l = 0; l < pot_model_layers(model); l++) {
            const pot_layer_shape *shape = &pot_model_layer_shapes(model)[l];
            for (uint32_t e = 0; e < pot_layer_experts(shape); e++)
                for (uint32_t c = 0; c < pot_layer_expert_chunks(shape, e); c++)
                    s->expert_bytes += pot_chunk_bytes(pot_model_expert_shape(model, l, e), c);
        }
        pot_model_close(model);
    }
    return 0;
}

static int clean(void **state) {
    (void)state;
    for (size_t i = 0; i < SUBJECTS; i++) {
        pot_converted_remove(subjects[i].source);
        pot_converted_remove(subjects[i].converted);
        free(subjects[i].truth);
        free(subjects[i].got);
    }
    return 0;
}

/* ---- one answer ------------------------------------------------------------------------------------------------------------ */

static void converted_model_gives_the_same_logits(void **state) {
    (void)state;
    for (size_t i = 0; i < SUBJECTS; i++) {
        MUST(play(&subjects[i], subjects[i].converted, (pot_rig_options){0}, 64));
        same(&subjects[i], "everything in RAM");
        MUST(play(&subjects[i], subjects[i].converted, (pot_rig_options){.n_workers = 3, .map = "random:3"}, 3));
        same(&subjects[i], "three workers");
    }
}

/* The least that works, 5% and 30%; the reader's combinations take turns with the policies. */
static void any_budget_policy_and_way_of_reading_gives_the_same_logits(void **state) {
    (void)state;
    for (size_t i = 0; i < SUBJECTS; i++) {
        subject *s = &subjects[i];
        const uint64_t least = least_of(s->converted, "contiguous", 1, 0);
        const uint64_t budgets[] = {least, s->expert_bytes / 20, s->expert_bytes * 3 / 10, s->expert_bytes * 2};
        for (size_t b = 0; b < sizeof budgets / sizeof *budgets; b++)
            for (int p = 0; p < POT_CACHE_POLICIES; p++)
                for (int way = 0; way < 4; way++) {
                    if ((way + p + (int)b) % 2 && b != 0) continue;
                    const pot_store_choice choice = {
                        .ram_bytes = budgets[b] < least ? least : budgets[b],
                        .policy = (pot_cache_policy)p,
                        .reader = {.engine = way & 1 ? POT_READ_ENGINE_POOL : POT_READ_ENGINE_URING,
                                   .path = way & 2 ? POT_READ_PATH_CACHED : POT_READ_PATH_DIRECT,
                                   .depth = 1 + (uint32_t)(b * 3 + (size_t)way) % 8}};
                    char what[96];
                    snprintf(what, sizeof what, "budget %zu, %s, way %d", b, pot_cache_policy_name(choice.policy), way);
                    MUST(play(s, s->converted, (pot_rig_options){.store = choice, .threads = 1 + way % 3},
                              way ? 5 : 64));
                    same(s, what);
                }
    }
}

static void workers_with_different_budgets_give_the_same_logits(void **state) {
    (void)state;
    static const char *const maps[] = {"contiguous", "sliced", "round-robin", "random:9"};
    for (size_t i = 0; i < SUBJECTS; i++)
        for (size_t m = 0; m < sizeof maps / sizeof *maps; m++) {
            subject *s = &subjects[i];
            uint64_t ram[3];
            for (uint32_t w = 0; w < 3; w++) ram[w] = least_of(s->converted, maps[m], 3, w) << (w == 2 ? 3 : 0);
            ram[1] = 0; /* everything */
            MUST(play(s, s->converted, (pot_rig_options){.n_workers = 3, .map = maps[m], .ram_bytes = ram}, 7));
            same(s, maps[m]);
        }
}

static void reading_ahead_gives_the_same_logits(void **state) {
    (void)state;
    for (size_t i = 0; i < SUBJECTS; i++) {
        subject *s = &subjects[i];
        for (int workers = 1; workers <= 2; workers++) {
            uint64_t ram[2];
            for (uint32_t w = 0; w < 2; w++)
                ram[w] = 2 * least_of(s->converted, "round-robin", (uint32_t)workers, workers == 1 ? 0 : w);
            MUST(play(s, s->converted,
                      (pot_rig_options){
                          .n_workers = (uint32_t)workers, .map = "round-robin", .ram_bytes = ram, .prefetch = true},
                      4));
            same(s, "prefetch");
        }
    }
}

static int remove_tree(const char *path) {
    char command[200];
    snprintf(command, sizeof command, "rm -rf '%s'", path);
    return system(command);
}

static void disk_cache_stands_in_for_a_converted_model(void **state) {
    (void)state;
    for (size_t i = 0; i < SUBJECTS; i++) {
        subject *s = &subjects[i];
        static char cache[100]; /* a worker of a failed run may still look at it */
        snprintf(cache, sizeof cache, "%s-cache", s->source);
        /* Made; found again; found to lack what another map gives; through another way of making it. */
        static const char *const maps[] = {"contiguous", "contiguous", "sliced", "random:3"};
        for (size_t m = 0; m < sizeof maps / sizeof *maps; m++) {
            uint64_t ram[2];
            for (uint32_t w = 0; w < 2; w++) ram[w] = least_of(s->converted, maps[m], 2, w);
            MUST(play(s, m == 3 ? s->converted : s->source,
                      (pot_rig_options){.policy = m == 3 ? (pot_format_policy){0} : pot_format_policy_default,
                                        .n_workers = 2,
                                        .map = maps[m],
                                        .ram_bytes = ram,
                                        .store = {.disk_cache = cache}},
                      9));
            same(s, maps[m]);
        }
        assert_int_equal(remove_tree(cache), 0);
    }
}

/* ---- the budget ------------------------------------------------------------------------------------------------------------ */

typedef struct opened {
    pot_model *model;
    pot_map *map;
    pot_store *store;
    _Atomic uint64_t loaded, total;
} opened;

static pot_status open_store(opened *o, const char *path, const pot_store_choice *choice) {
    *o = (opened){0};
    MUST(pot_model_open(&o->model, path, &pot_format_policy_default, &err));
    MUST(pot_map_make(&o->map, "contiguous", 1, 1, pot_model_layer_shapes(o->model), pot_model_layers(o->model), &err));
    const pot_store_options options = {.model = o->model,
                                       .map = o->map,
                                       .threads = 2,
                                       .choice = *choice,
                                       .loaded_bytes = &o->loaded,
                                       .total_bytes = &o->total};
    return pot_store_open(&o->store, &options, &err);
}

static void close_store(opened *o) {
    pot_store_free(o->store);
    pot_map_free(o->map);
    pot_model_close(o->model);
}

/* Wants all chunks of these experts and compares their bytes with those of the file. */
static pot_status step(opened *o, uint32_t layer, const uint32_t *experts, uint32_t n, bool scan) {
    static uint8_t expected[1 << 20];
    pot_store_want wants[8192];
    pot_store_given given[64];
    uint32_t n_wants = 0, got, seen = 0;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < pot_layer_expert_chunks(&pot_model_layer_shapes(o->model)[layer], experts[i]); c++)
            wants[n_wants++] = (pot_store_want){experts[i], c};
    pot_status s = pot_store_begin(o->store, layer, wants, n_wants, scan, &err);
    while (s == POT_OK && (s = pot_store_take(given, &got, 64, o->store, &err)) == POT_OK && got) {
        for (uint32_t i = 0; i < got; i++) {
            const pot_store_want *w = &wants[given[i].want];
            size_t bytes = pot_chunk_bytes(pot_model_expert_shape(o->model, layer, w->expert), w->chunk);
            pot_err ignored;
            assert_true(bytes <= sizeof expected);
            if (pot_model_load_chunk(expected, o->model, layer, w->expert, w->chunk, &ignored) == POT_OK)
                assert_memory_equal(given[i].data, expected, bytes);
            seen++;
        }
    }
    if (s == POT_OK) assert_int_equal(seen, n_wants);
    pot_store_end(o->store);
    return s;
}

/* The first `n` experts of a layer that are not in memory. */
static void find_absent(uint32_t *out, uint32_t n, const opened *o, uint32_t layer) {
    uint32_t found = 0;
    for (uint32_t e = 0; e < pot_layer_experts(&pot_model_layer_shapes(o->model)[layer]) && found < n; e++)
        if (!pot_store_holds(o->store, layer, e, 0)) out[found++] = e;
    assert_int_equal(found, n);
}

static void store_stays_under_its_budget(void **state) {
    (void)state;
    static const double shares[] = {0.05, 0.30, 0.60};
    if (getenv("MODE") && strcmp(getenv("MODE"), "release")) {
        print_message("skipped: sanitizers have memory of their own\n");
        skip();
    }
    const pot_tiny *preset = pot_tiny_preset("wide544");
    pot_tiny tiny = *preset; /* 96 experts of 0.9 MB a layer */
    char source[] = "/tmp/potluck-store-XXXXXX", converted[80];
    tiny.hidden = 512, tiny.moe_inner = 1024, tiny.n_routed = 96, tiny.n_layers = 3, tiny.n_mtp = 0;
    assert_non_null(mkdtemp(source));
    snprintf(converted, sizeof converted, "%s-packed", source);
    MUST(pot_tiny_write(source, &tiny, &err));
    MUST(pot_converted_make(converted, source, &(pot_format_policy){.experts = POT_FORMAT_Q4_G64}, &err));
    pot_converted_remove(source);
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        opened o;
        pot_store_stats stats;
        pot_store_choice choice = {.policy = POT_CACHE_LFU_DECAY};
        pot_model *model;
        MUST(pot_model_open(&model, converted, &pot_format_policy_default, &err));
        for (uint32_t l = 0; l < pot_model_layers(model); l++)
            for (uint32_t e = 0; e < 97 && e < pot_layer_experts(&pot_model_layer_shapes(model)[l]); e++)
                for (uint32_t c = 0; c < pot_layer_expert_chunks(&pot_model_layer_shapes(model)[l], e); c++)
                    choice.ram_bytes += pot_chunk_bytes(pot_model_expert_shape(model, l, e), c);
        pot_model_close(model);
        choice.ram_bytes = (uint64_t)(shares[i] * (double)choice.ram_bytes);
        uint64_t before = pot_memory_resident();
        pot_memory_peak_reset();
        MUST(open_store(&o, converted, &choice));
        for (uint32_t turn = 0; turn < 60; turn++)
            for (uint32_t layer = 1; layer < 3; layer++) {
                uint32_t experts[5];
                for (uint32_t k = 0; k < 5; k++) experts[k] = k * 19 + (turn * 7 + layer * 3) % 19;
                MUST(step(&o, layer, experts, 5, false));
            }
        uint64_t peak = pot_memory_peak();
        pot_store_get_stats(&stats, o.store);
        assert_true(stats.read_bytes > 0);
        assert_true(stats.slot_bytes <= choice.ram_bytes && stats.budget_bytes == choice.ram_bytes);
        if (peak - before > choice.ram_bytes + (2 << 20)) /* a thread's stack and the like */
            fail_msg("budget %llu, resident memory grew by %llu", (unsigned long long)choice.ram_bytes,
                     (unsigned long long)(peak - before));
        assert_true(stats.slot_bytes > choice.ram_bytes * 8 / 10 - (6 << 20)); /* and it is used */
        close_store(&o);
    }
    pot_converted_remove(converted);
}

static void budget_that_holds_no_two_experts_is_refused(void **state) {
    (void)state;
    opened o;
    const pot_store_choice choice = {.ram_bytes = 4096};
    assert_int_equal(open_store(&o, subjects[0].converted, &choice), POT_LIMIT);
    assert_non_null(strstr(err.text, "(--ram) are too little"));
    assert_non_null(strstr(err.text, "at least"));
    close_store(&o);
    assert_int_equal(open_store(&o, subjects[0].source, &choice), POT_LIMIT);
    assert_non_null(strstr(err.text, "potluck convert"));
    close_store(&o);
}

static void scan_reads_each_expert_once(void **state) {
    (void)state;
    opened o;
    pot_store_stats before, after;
    uint32_t all[256];
    for (uint32_t i = 0; i < 256; i++) all[i] = i;
    const pot_store_choice choice = {.ram_bytes = least_of(subjects[0].converted, "contiguous", 1, 0)};
    MUST(open_store(&o, subjects[0].converted, &choice));
    for (uint32_t layer = 1; layer < 3; layer++) {
        uint32_t absent = 0;
        for (uint32_t i = 0; i < 256; i++) absent += !pot_store_holds(o.store, layer, i, 0);
        assert_true(absent > 100);
        pot_store_get_stats(&before, o.store);
        MUST(step(&o, layer, all, 256, true));
        pot_store_get_stats(&after, o.store);
        assert_int_equal(after.reads - before.reads, absent);
    }
    close_store(&o);
}

/* ---- faults ---------------------------------------------------------------------------------------------------------------- */

typedef struct trouble {
    atomic_int
        kind; /* 0 none, else an errno; -1 flips a bit once, -2 flips it always, -3 slow, -4 hangs, -5 short reads */
    atomic_int count;
    atomic_bool let_go;
} trouble;

static int trouble_before(void *context, const char *path, uint64_t offset, uint32_t *bytes) {
    trouble *t = context;
    (void)path, (void)offset;
    int kind = atomic_load(&t->kind);
    if (kind == -3) usleep(3000);
    if (kind == -4)
        while (!atomic_load(&t->let_go)) usleep(1000);
    if (kind == -5 && *bytes > 4096) *bytes = 4096;
    return kind > 0 ? kind : 0;
}

static void trouble_after(void *context, const char *path, uint64_t offset, uint8_t *data, uint32_t bytes) {
    trouble *t = context;
    (void)path, (void)offset;
    int kind = atomic_load(&t->kind);
    if (kind == -2 || (kind == -1 && atomic_fetch_add(&t->count, 1) == 0)) data[bytes / 2] ^= 4;
}

static void open_in_trouble(opened *o, trouble *t, const pot_read_faults *faults, int engine, uint64_t timeout_us) {
    const pot_store_choice choice = {
        .ram_bytes = least_of(subjects[1].converted, "contiguous", 1, 0),
        .reader = {.engine = engine ? POT_READ_ENGINE_POOL : POT_READ_ENGINE_URING, .faults = faults},
        .timeout_us = timeout_us};
    atomic_store(&t->kind, 0);
    MUST(open_store(o, subjects[1].converted, &choice));
}

static void read_that_fails_ends_the_step_and_the_next_one_reads_again(void **state) {
    (void)state;
    static const struct {
        int kind;
        pot_status status;
        const char *says;
    } cases[] = {{EIO, POT_IO, "Input/output error"},
                 {-2, POT_IO, "checksum"},
                 {-1, POT_OK, ""},
                 {-3, POT_OK, ""},
                 {-5, POT_OK, ""}};
    for (int engine = 0; engine < 2; engine++)
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            trouble t = {0};
            const pot_read_faults faults = {&t, trouble_before, trouble_after};
            opened o;
            open_in_trouble(&o, &t, &faults, engine, 0);
            uint32_t others[2];
            const uint32_t again[] = {2, 5, 7};
            find_absent(others, 2, &o, 1);
            atomic_store(&t.kind, cases[i].kind);
            err.text[0] = 0;
            pot_status got = step(&o, 1, others, 2, false);
            if (got != cases[i].status) fail_msg("case %zu: %s `%s`", i, pot_status_name(got), err.text);
            if (!strstr(err.text, cases[i].says)) fail_msg("case %zu: `%s`", i, err.text);
            if (got != POT_OK) {
                assert_non_null(strstr(err.text, "experts-001.safetensors"));
                assert_non_null(strstr(err.text, "layer 1 expert"));
            }
            atomic_store(&t.kind, 0);
            MUST(step(&o, 1, others, 2, false));
            MUST(step(&o, 2, again, 3, false));
            close_store(&o);
        }
}

static void read_that_fails_while_loading_is_told_at_once(void **state) {
    (void)state;
    for (int kind = -2; kind <= EIO; kind += EIO + 2) {
        trouble t = {.kind = kind};
        const pot_read_faults faults = {&t, trouble_before, trouble_after};
        const pot_store_choice choice = {.reader = {.faults = &faults}}; /* everything fits */
        opened o;
        assert_int_equal(open_store(&o, subjects[1].converted, &choice), POT_IO);
        assert_non_null(strstr(err.text, "safetensors"));
        close_store(&o);
    }
}

/* Which workers have seen a prompt as a scan, and a token as none; each reports on its own thread. */
typedef struct scans {
    pthread_mutex_t mutex;
    const pot_store *prompts[4], *tokens[4];
} scans;

static void note_store(const pot_store **list, const pot_store *store) {
    for (int i = 0; i < 4; i++) {
        if (list[i] == store) return;
        if (list[i]) continue;
        list[i] = store;
        return;
    }
}

static void see_scans(void *context, const pot_work_done *work) {
    scans *seen = context;
    pot_store_stats stats;
    pot_store_get_stats(&stats, work->store);
    pthread_mutex_lock(&seen->mutex);
    if (stats.cache.scan_wanted) note_store(seen->prompts, work->store);
    if (stats.cache.wanted) note_store(seen->tokens, work->store);
    pthread_mutex_unlock(&seen->mutex);
}

/* A prompt is a scan for a worker that has a quarter of the experts, too; tokens after it are none. */
static void prompts_are_scans_however_few_experts_a_worker_has(void **state) {
    (void)state;
    subject *s = &subjects[1]; /* few experts: 14 rows want most of them */
    for (uint32_t workers = 1; workers <= 4; workers += 3) {
        scans seen = {.mutex = PTHREAD_MUTEX_INITIALIZER};
        const pot_rig_options o = {.model = s->converted,
                                   .map = "contiguous",
                                   .n_workers = workers,
                                   .threads = 2,
                                   .observer = {see_scans, &seen}};
        /* So many rows that each worker gets more than a few. */
        const pot_play p = {.prompt = s->prompt, .n_prompt = PROMPT, .n_decode = DECODE, .batch = 8};
        float *logits = calloc((size_t)p.batch * pot_play_rows(&p) * s->vocab, sizeof *logits);
        pot_rig rig;
        MUST(pot_rig_open(&rig, &o, &err));
        MUST(pot_rig_engine(&rig, 64, &err));
        MUST(pot_rig_play(logits, &rig, &p, &err));
        MUST(pot_rig_close(&rig, &err));
        free(logits);
        assert_non_null(seen.prompts[workers - 1]);
        assert_non_null(seen.tokens[workers - 1]);
    }
}

/* The worker's clock must end before the coordinator's, or the disk would be called a worker that does not answer. */
static void dead_disk_in_a_cluster_is_named(void **state) {
    (void)state;
    subject *s = &subjects[1];
    trouble t = {0};
    const pot_read_faults faults = {&t, trouble_before, trouble_after};
    uint64_t ram[2] = {0, 0};
    for (uint32_t w = 0; w < 2; w++) ram[w] = least_of(s->converted, "round-robin", 2, w);
    pot_rig rig;
    const pot_rig_options o = {.model = s->converted,
                               .map = "round-robin",
                               .n_workers = 2,
                               .threads = 2,
                               .timeout_us = 2000000,
                               .ram_bytes = ram,
                               .store = {.reader = {.faults = &faults}, .timeout_us = 1500000}};
    MUST(pot_rig_open(&rig, &o, &err));
    MUST(pot_rig_engine(&rig, 64, &err));
    atomic_store(&t.kind, -4);
    const pot_play p = play_of(s);
    assert_int_equal(pot_rig_play(s->got, &rig, &p, &err), POT_TIMEOUT);
    if (!strstr(err.text, "is the disk still there?")) fail_msg("%s", err.text);
    atomic_store(&t.kind, 0);
    atomic_store(&t.let_go, true);
    (void)pot_rig_close(&rig, NULL);
}

/* An MTP layer is one that no step may ever ask for. */
static void tokens_are_counted_beside_an_mtp_layer(void **state) {
    (void)state;
    pot_tiny tiny = *pot_tiny_preset("experts256");
    char source[] = "/tmp/potluck-store-XXXXXX", converted[80];
    tiny.n_mtp = 1;
    assert_non_null(mkdtemp(source));
    snprintf(converted, sizeof converted, "%s-packed", source);
    MUST(pot_tiny_write(source, &tiny, &err));
    MUST(pot_converted_make(converted, source, &pot_format_policy_default, &err));
    pot_converted_remove(source);
    opened o;
    pot_store_stats stats;
    const pot_store_choice choice = {.ram_bytes = subjects[0].expert_bytes / 2};
    MUST(open_store(&o, converted, &choice));
    const uint32_t some[] = {3, 250};
    for (int token = 0; token < 70; token++)
        for (uint32_t layer = 1; layer < 3; layer++) MUST(step(&o, layer, some, 2, false));
    pot_store_get_stats(&stats, o.store);
    assert_true(stats.cache.pinned_units > 0);
    close_store(&o);
    pot_converted_remove(converted);
}

static void disk_that_does_not_answer_is_named_in_time(void **state) {
    (void)state;
    for (int engine = 0; engine < 2; engine++) {
        trouble t = {0};
        const pot_read_faults faults = {&t, trouble_before, trouble_after};
        opened o;
        open_in_trouble(&o, &t, &faults, engine, 300000);
        uint32_t others[2];
        find_absent(others, 2, &o, 1);
        atomic_store(&t.kind, -4);
        uint64_t start = pot_now_us();
        assert_int_equal(step(&o, 1, others, 2, false), POT_TIMEOUT);
        assert_true(pot_now_us() - start < 5000000);
        assert_non_null(strstr(err.text, "is the disk still there?"));
        atomic_store(&t.kind, 0);
        atomic_store(&t.let_go, true);
        close_store(&o);
    }
}

static void edit_file(const char *path, off_t at, int flip, off_t length) {
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    uint8_t byte;
    if (flip) {
        assert_int_equal(pread(fd, &byte, 1, at), 1);
        byte ^= 1;
        assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    }
    if (length >= 0) assert_int_equal(ftruncate(fd, length), 0);
    close(fd);
}

/* Damage to real files, without any injection. */
static void damaged_files_are_named(void **state) {
    (void)state;
    subject *s = &subjects[1];
    char copy[100], path[160];
    snprintf(copy, sizeof copy, "%s-damaged", s->source);
    MUST(pot_converted_make(copy, s->source, &pot_format_policy_default, &err));
    snprintf(path, sizeof path, "%s/experts-001.safetensors", copy);
    const pot_store_choice choice = {.ram_bytes = least_of(copy, "contiguous", 1, 0)};
    uint32_t others[2];
    opened o;
    MUST(open_store(&o, copy, &choice));
    find_absent(others, 2, &o, 1);
    pot_chunk_place place;
    MUST(pot_model_chunk_place(&place, o.model, 1, others[1], 1, &err));
    edit_file(path, (off_t)place.offset + 1000, 1, -1); /* a bit is flipped while it runs */
    assert_int_equal(step(&o, 1, others, 2, false), POT_IO);
    assert_non_null(strstr(err.text, "experts-001.safetensors"));
    assert_non_null(strstr(err.text, "potluck verify"));
    edit_file(path, (off_t)place.offset + 1000, 1, -1);
    MUST(step(&o, 1, others, 2, false));
    find_absent(others, 2, &o, 1);
    edit_file(path, 0, 0, 8192); /* cut short while it runs */
    assert_int_equal(step(&o, 1, others, 2, false), POT_IO);
    assert_non_null(strstr(err.text, "experts-001.safetensors"));
    close_store(&o);
    pot_model *model; /* cut short before */
    assert_int_equal(pot_model_open(&model, copy, &pot_format_policy_default, &err), POT_FORMAT);
    assert_non_null(strstr(err.text, "was it cut short"));
    assert_int_equal(unlink(path), 0); /* not there: a fault only if it is wanted */
    assert_int_equal(open_store(&o, copy, &choice), POT_NOT_FOUND);
    assert_non_null(strstr(err.text, "is not on this machine"));
    close_store(&o);
    pot_converted_remove(copy);
}

static void file_descriptors_that_run_out_are_told(void **state) {
    (void)state;
    struct rlimit old, few;
    opened o;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &old), 0);
    const pot_store_choice choice = {.ram_bytes = least_of(subjects[1].converted, "contiguous", 1, 0)};
    bool refused = false;
    for (rlim_t n = 8; n < 40; n++) {
        few = (struct rlimit){n, old.rlim_max};
        o = (opened){0};
        MUST(pot_model_open(&o.model, subjects[1].converted, &pot_format_policy_default, &err));
        MUST(
            pot_map_make(&o.map, "contiguous", 1, 1, pot_model_layer_shapes(o.model), pot_model_layers(o.model), &err));
        const pot_store_options options = {.model = o.model,
                                           .map = o.map,
                                           .threads = 1,
                                           .choice = choice,
                                           .loaded_bytes = &o.loaded,
                                           .total_bytes = &o.total};
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
        pot_status status = pot_store_open(&o.store, &options, &err);
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &old), 0);
        if (status != POT_OK) {
            refused = true;
            if (!strstr(err.text, "ulimit -n")) fail_msg("%s", err.text);
        }
        close_store(&o);
    }
    assert_true(refused);
}

/* ---- usage ----------------------------------------------------------------------------------------------------------------- */

static void usage_is_remembered_and_a_damaged_file_is_not_believed(void **state) {
    (void)state;
    subject *s = &subjects[0];
    char path[100];
    snprintf(path, sizeof path, "%s/usage.txt", s->converted);
    const pot_store_choice choice = {.ram_bytes = s->expert_bytes / 2, .usage = path};
    const uint32_t hot[] = {200, 201, 202, 203};
    opened o;
    MUST(open_store(&o, s->converted, &choice));
    for (int i = 0; i < 5; i++) MUST(step(&o, 1, hot, 4, false));
    close_store(&o);
    MUST(open_store(&o, s->converted, &choice)); /* loads them first */
    for (int i = 0; i < 4; i++) assert_true(pot_store_holds(o.store, 1, hot[i], 0));
    close_store(&o);

    pot_buffer text = {0};
    MUST(pot_file_read(&text, path, 1 << 20, &err));
    assert_non_null(strstr(text.data, "\n1 200 5\n"));
    text.data[text.bytes / 2] ^= 1;
    MUST(pot_file_write(path, text.data, text.bytes, &err));
    MUST(open_store(&o, s->converted, &choice));
    assert_false(pot_store_holds(o.store, 1, hot[0], 0));
    close_store(&o);
    MUST(pot_file_write(path, "", 0, &err));
    MUST(open_store(&o, s->converted, &choice));
    close_store(&o);
    pot_buffer_free(&text);

    const pot_store_choice nowhere = {.ram_bytes = choice.ram_bytes, .usage = "/proc/potluck-cannot-write-here"};
    MUST(open_store(&o, s->converted, &nowhere)); /* a warning, no fault */
    MUST(step(&o, 1, hot, 4, false));
    close_store(&o);
}

static void usage_of_a_full_disk_is_a_warning(void **state) {
    (void)state;
    opened o;
    const uint32_t some[] = {1, 2};
    const pot_store_choice choice = {.ram_bytes = least_of(subjects[0].converted, "contiguous", 1, 0),
                                     .usage = "/dev/full"};
    MUST(open_store(&o, subjects[0].converted, &choice));
    MUST(step(&o, 1, some, 2, false));
    close_store(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(converted_model_gives_the_same_logits),
        cmocka_unit_test(any_budget_policy_and_way_of_reading_gives_the_same_logits),
        cmocka_unit_test(workers_with_different_budgets_give_the_same_logits),
        cmocka_unit_test(reading_ahead_gives_the_same_logits),
        cmocka_unit_test(disk_cache_stands_in_for_a_converted_model),
        cmocka_unit_test(store_stays_under_its_budget),
        cmocka_unit_test(budget_that_holds_no_two_experts_is_refused),
        cmocka_unit_test(scan_reads_each_expert_once),
        cmocka_unit_test(read_that_fails_ends_the_step_and_the_next_one_reads_again),
        cmocka_unit_test(read_that_fails_while_loading_is_told_at_once),
        cmocka_unit_test(prompts_are_scans_however_few_experts_a_worker_has),
        cmocka_unit_test(dead_disk_in_a_cluster_is_named),
        cmocka_unit_test(tokens_are_counted_beside_an_mtp_layer),
        cmocka_unit_test(disk_that_does_not_answer_is_named_in_time),
        cmocka_unit_test(damaged_files_are_named),
        cmocka_unit_test(file_descriptors_that_run_out_are_told),
        cmocka_unit_test(usage_is_remembered_and_a_damaged_file_is_not_believed),
        cmocka_unit_test(usage_of_a_full_disk_is_a_warning),
    };
    (void)pot_log_configure("error", NULL);
    return cmocka_run_group_tests(tests, prepare, clean);
}
