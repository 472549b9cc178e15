/* A worker, polled in this thread: the test is its coordinator and speaks both planes by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>

#include "common/log.h"
#include "common/mem.h"
#include "common/system.h"
#include "kernels/linear.h"
#include "proto/control.h"
#include "tests/feed_forward.h"
#include "worker/store.h"
#include "worker/worker.h"

#define MUST(call)                                     \
    do {                                               \
        pot_err err;                                   \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)

enum { HEARTBEAT_US = 5000, DEAD_US = 100000, MAX_ITEMS = 512 };
static const char *const mxfp4 = "tests/fixtures/mxfp4";

/* ---- a coordinator by hand ---------------------------------------------------------------------------------------- */

typedef struct scene {
    pot_model *model;
    pot_map *map;
    pot_compute compute;
    uint32_t self, n_workers;
    pot_transport *ends[3]; /* coordinator, worker, a bystander */
    pot_worker *worker;
    pot_welcome welcome;
} scene;

/* Up to the worker's Hello. */
static void open_scene(scene *s, const char *model, const pot_format_policy *policy, const char *map,
                       uint32_t n_workers, uint32_t self) {
    *s = (scene){.self = self, .n_workers = n_workers};
    MUST(pot_team_create(&s->compute.team, 2, true, &err));
    MUST(pot_kernels_pick(&s->compute.kernels, "auto", &err));
    MUST(pot_model_open(&s->model, model, policy, &err));
    MUST(pot_map_make(&s->map, map, 5, n_workers, pot_model_layer_shapes(s->model), pot_model_layers(s->model), &err));
    MUST(pot_transport_mem_create(s->ends, 3, &err));
    pot_worker_options options = {.transport = s->ends[1], .compute = s->compute, .timeout_us = 2000000};
    MUST(pot_worker_create(&s->worker, &options, &err));
    s->welcome = (pot_welcome){.protocol = POT_PROTOCOL_MAX,
                               .worker = self,
                               .n_workers = n_workers,
                               .reference = policy->reference,
                               .experts_format = policy->experts,
                               .dense_format = policy->dense,
                               .head_format = policy->head,
                               .mtp_format = policy->mtp,
                               .rounding = policy->rounding,
                               .fingerprint = pot_model_fingerprint(s->model),
                               .hidden = pot_model_config(s->model)->hidden,
                               .n_layers = pot_model_layers(s->model),
                               .grid = POT_GRID_BITS,
                               .heartbeat_us = HEARTBEAT_US,
                               .dead_us = DEAD_US};
    snprintf(s->welcome.model, sizeof s->welcome.model, "%s", model);
}

static void close_scene(scene *s) {
    pot_worker_free(s->worker);
    pot_team_free(s->compute.team);
    for (int i = 0; i < 3; i++) pot_transport_close(s->ends[i], 0);
    pot_map_free(s->map);
    pot_model_close(s->model);
}

/* The next message for the coordinator that is neither a heartbeat nor about a closed end; NULL when there is none within the time. */
static pot_message *next(scene *s, uint64_t timeout_us) {
    for (;;) {
        pot_message *m;
        pot_control c;
        MUST(pot_transport_receive(s->ends[0], timeout_us, &m, &err));
        if (!m || m->kind == POT_MESSAGE_DATA) return m;
        if (m->kind == POT_MESSAGE_CONTROL) {
            MUST(pot_control_parse(&c, m->bytes, m->n_bytes, &err));
            if (c.type != POT_CONTROL_HEARTBEAT) return m;
        }
        pot_message_release(s->ends[0], m);
    }
}

static pot_control expect_control(scene *s, pot_control_type type) {
    pot_message *m = next(s, 5000000);
    pot_control c;
    assert_non_null(m);
    assert_int_equal(m->kind, POT_MESSAGE_CONTROL);
    MUST(pot_control_parse(&c, m->bytes, m->n_bytes, &err));
    pot_message_release(s->ends[0], m);
    if (c.type == POT_CONTROL_ERROR && type != POT_CONTROL_ERROR) fail_msg("the worker says: %s", c.error.text);
    assert_int_equal(c.type, type);
    return c;
}

static void send_welcome(scene *s) {
    pot_control c = {.type = POT_CONTROL_WELCOME, .welcome = s->welcome};
    MUST(pot_control_send(s->ends[0], 1, &c, &err));
}

static pot_status poll_worker(scene *s, pot_err *err) {
    bool done;
    return pot_worker_poll(s->worker, &done, err);
}

/* Hello has been seen, Welcome and Map are sent, Ready has come. */
static void join(scene *s) {
    expect_control(s, POT_CONTROL_HELLO);
    send_welcome(s);
    MUST(pot_control_send_map(s->ends[0], 1, s->map, &err));
    MUST(poll_worker(s, &err));
    pot_control c = expect_control(s, POT_CONTROL_READY);
    assert_int_equal(c.ready.epoch, 5);
    assert_int_equal(c.ready.bytes, pot_model_worker_bytes(s->model, s->map, s->self));
    assert_true(pot_hash_equal(c.ready.fingerprint, pot_model_fingerprint(s->model)));
}

/* ---- work by hand --------------------------------------------------------------------------------------------------- */

typedef struct work {
    uint32_t layer, n_rows, n_items;
    unsigned forms;
    float *x; /* [n_rows][hidden] */
    pot_wire_item items[MAX_ITEMS];
} work;

static pot_message *make_message(scene *s, const work *w) {
    uint32_t hidden = pot_model_config(s->model)->hidden;
    pot_acts acts;
    MUST(pot_acts_create(&acts, w->n_rows, hidden, &err));
    MUST(pot_acts_fill(&acts, &s->compute, w->x, hidden, hidden, w->n_rows, w->forms, &err));
    pot_wire_header h = {.magic = POT_WIRE_MAGIC,
                         .version = POT_WIRE_VERSION,
                         .type = POT_WIRE_WORK,
                         .layer = w->layer,
                         .epoch = 5,
                         .request = 77,
                         .step = 88,
                         .n_rows = w->n_rows,
                         .n_items = w->n_items,
                         .formats = (uint8_t)w->forms,
                         .grid = POT_GRID_BITS,
                         .columns = hidden};
    pot_wire_layout layout;
    pot_wire_work_layout(&layout, &h);
    h.payload_bytes = layout.bytes - 64;
    pot_message *m = pot_transport_message(s->ends[0], layout.bytes);
    assert_non_null(m);
    memset(m->bytes, 0, layout.bytes);
    m->kind = POT_MESSAGE_DATA;
    pot_wire_put_header(m->bytes, &h);
    for (uint32_t i = 0; i < w->n_rows; i++)
        pot_wire_put_row(m->bytes + layout.rows + i * layout.row_stride, &acts.rows[i], w->forms, hidden);
    for (uint32_t i = 0; i < w->n_items; i++) pot_wire_put_item(m->bytes + layout.items + 24 * (size_t)i, &w->items[i]);
    pot_acts_free(&acts);
    return m;
}

/* Rows, and every chunk of the layer for every row with probability 1/2, as items of one or more chunks. */
static void draw_work(work *w, const scene *s, uint32_t layer, uint32_t n_rows, uint64_t *seed) {
    const pot_layer_shape *shape = &pot_model_layer_shapes(s->model)[layer];
    uint32_t hidden = pot_model_config(s->model)->hidden;
    *w = (work){.layer = layer, .n_rows = n_rows, .forms = POT_ACT_Q8 | POT_ACT_F32};
    w->x = pot_alloc_array((size_t)n_rows * hidden, sizeof *w->x);
    assert_non_null(w->x);
    for (size_t i = 0; i < (size_t)n_rows * hidden; i++) w->x[i] = pot_draw_float(seed);
    for (uint32_t row = 0; row < n_rows; row++)
        for (uint32_t e = 0; e < pot_layer_experts(shape); e++)
            for (uint32_t c = 0; c < pot_layer_expert_chunks(shape, e) && w->n_items < MAX_ITEMS; c++) {
                uint32_t end = c + 1 + pot_draw(seed, pot_layer_expert_chunks(shape, e) - c);
                if (pot_draw(seed, 2) == 0) continue;
                w->items[w->n_items++] = (pot_wire_item){.row = row,
                                                         .expert = e,
                                                         .chunk_begin = (uint16_t)c,
                                                         .chunk_end = (uint16_t)end,
                                                         .kind = POT_KIND_FFN,
                                                         .weight = pot_draw_float(seed)};
                c = end - 1;
            }
    /* Order is the sender's business. */
    for (uint32_t i = w->n_items; i > 1; i--) {
        uint32_t j = pot_draw(seed, i);
        pot_wire_item swap = w->items[i - 1];
        w->items[i - 1] = w->items[j];
        w->items[j] = swap;
    }
}

static void send_work(scene *s, const work *w) {
    pot_message *m = make_message(s, w);
    MUST(pot_transport_send(s->ends[0], 1, m, &err));
    MUST(poll_worker(s, &err));
}

/* The answer: what the store holds is covered and summed, the rest is listed. */
static void expect_sum(scene *s, const work *w) {
    uint32_t hidden = pot_model_config(s->model)->hidden, n_held = 0;
    pot_message *m = next(s, 0);
    assert_non_null(m);
    if (m->kind == POT_MESSAGE_CONTROL) {
        pot_control c;
        MUST(pot_control_parse(&c, m->bytes, m->n_bytes, &err));
        fail_msg("instead of a SUM, control type %d: %s", c.type, c.error.text);
    }
    pot_wire_sum sum;
    MUST(pot_wire_sum_parse(&sum, m->bytes, m->n_bytes, &err));
    assert_int_equal(sum.header.request, 77);
    assert_int_equal(sum.header.step, 88);
    assert_int_equal(sum.header.epoch, 5);
    assert_int_equal(sum.header.layer, w->layer);
    assert_int_equal(sum.header.n_rows, w->n_rows);
    assert_int_equal(sum.header.n_items, w->n_items);
    pot_wire_item *held = pot_alloc_array(w->n_items, sizeof *held);
    int64_t *expected = pot_alloc_array((size_t)w->n_rows * hidden, sizeof *expected);
    int64_t *got = pot_alloc_array((size_t)w->n_rows * hidden, sizeof *got);
    for (uint32_t i = 0; i < w->n_items; i++) {
        const pot_wire_item *item = &w->items[i];
        bool owned = pot_map_owns(s->map, s->self, w->layer, item->expert, item->chunk_begin, item->chunk_end);
        assert_int_equal(pot_wire_bit(sum.covered, i), owned);
        if (owned) held[n_held++] = *item;
    }
    assert_int_equal(sum.header.n_hints, w->n_items - n_held);
    MUST(pot_plain_sums(expected, s->model, &s->compute, w->layer, w->x, w->n_rows, held, n_held, &err));
    pot_wire_sum_rows_add(got, NULL, &sum);
    assert_memory_equal(got, expected, (size_t)w->n_rows * hidden * sizeof *got);
    pot_free(held);
    pot_free(expected);
    pot_free(got);
    pot_message_release(s->ends[0], m);
}

/* A piece of good work, to see that the worker goes on. */
static void expect_alive(scene *s) {
    uint64_t seed = 3;
    work w;
    draw_work(&w, s, 1, 2, &seed);
    send_work(s, &w);
    expect_sum(s, &w);
    pot_free(w.x);
}

static void expect_told(scene *s, pot_status code, const char *words) {
    pot_control c = expect_control(s, POT_CONTROL_ERROR);
    if ((pot_status)c.error.code != code || !strstr(c.error.text, words))
        fail_msg("the worker says %s: `%s`, expected %s with `%s`", pot_status_name((pot_status)c.error.code),
                 c.error.text, pot_status_name(code), words);
}

/* ---- joining ---------------------------------------------------------------------------------------------------------- */

static void worker_introduces_itself(void **state) {
    (void)state;
    scene s;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    pot_control c = expect_control(&s, POT_CONTROL_HELLO);
    assert_int_equal(c.hello.protocol_min, POT_PROTOCOL_MIN);
    assert_int_equal(c.hello.protocol_max, POT_PROTOCOL_MAX);
    assert_int_equal(c.hello.pid, getpid());
    assert_int_equal(c.hello.threads, 2);
    assert_string_equal(c.hello.kernels, s.compute.kernels->name);
    assert_string_equal(c.hello.transport, "mem");
    assert_string_equal(c.hello.host, pot_host_name());
    assert_true(c.hello.ram_bytes > 0);
    close_scene(&s);
}

static void worker_refuses_another_model_with_both_fingerprints(void **state) {
    (void)state;
    scene s;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    expect_control(&s, POT_CONTROL_HELLO);
    char ours[33], theirs[33];
    pot_hash_text(ours, s.welcome.fingerprint);
    s.welcome.fingerprint.low ^= 1;
    pot_hash_text(theirs, s.welcome.fingerprint);
    send_welcome(&s);
    pot_err err;
    assert_int_equal(poll_worker(&s, &err), POT_REFUSED);
    assert_non_null(strstr(err.text, ours));
    assert_non_null(strstr(err.text, theirs));
    assert_non_null(strstr(err.text, mxfp4));
    expect_told(&s, POT_REFUSED, theirs);
    close_scene(&s);
}

static void worker_refuses_another_policy(void **state) {
    (void)state;
    scene s;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    expect_control(&s, POT_CONTROL_HELLO);
    s.welcome.reference = 1; /* the fingerprint is that of the packed model */
    send_welcome(&s);
    pot_err err;
    assert_int_equal(poll_worker(&s, &err), POT_REFUSED);
    close_scene(&s);
}

static void worker_refuses_other_dimensions_with_both_numbers(void **state) {
    (void)state;
    scene s;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    expect_control(&s, POT_CONTROL_HELLO);
    s.welcome.hidden = 6144;
    send_welcome(&s);
    pot_err err;
    assert_int_equal(poll_worker(&s, &err), POT_REFUSED);
    assert_non_null(strstr(err.text, "6144"));
    assert_non_null(strstr(err.text, "128"));
    close_scene(&s);
}

static void worker_refuses_an_unknown_protocol(void **state) {
    (void)state;
    scene s;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    expect_control(&s, POT_CONTROL_HELLO);
    s.welcome.protocol = POT_PROTOCOL_MAX + 1;
    send_welcome(&s);
    pot_err err;
    assert_int_equal(poll_worker(&s, &err), POT_REFUSED);
    expect_told(&s, POT_REFUSED, "protocol 2");
    close_scene(&s);
}

static void worker_says_when_the_model_is_not_there(void **state) {
    (void)state;
    scene s;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    expect_control(&s, POT_CONTROL_HELLO);
    strcpy(s.welcome.model, "/nowhere/at/all");
    send_welcome(&s);
    pot_err err;
    assert_int_not_equal(poll_worker(&s, &err), POT_OK);
    assert_non_null(strstr(err.text, "/nowhere/at/all"));
    expect_control(&s, POT_CONTROL_ERROR);
    close_scene(&s);
}

/* A worker may have the model elsewhere: its own path wins. */
static void worker_opens_the_path_that_it_was_given(void **state) {
    (void)state;
    scene s;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    expect_control(&s, POT_CONTROL_HELLO);
    pot_worker_free(s.worker);
    pot_worker_options options = {.transport = s.ends[1], .compute = s.compute, .model = mxfp4, .timeout_us = 2000000};
    MUST(pot_worker_create(&s.worker, &options, &err));
    strcpy(s.welcome.model, "/nowhere/at/all");
    join(&s);
    expect_alive(&s);
    close_scene(&s);
}

/* ---- frames that come at the wrong time --------------------------------------------------------------------------------- */

static void send_map(scene *s) { MUST(pot_control_send_map(s->ends[0], 1, s->map, &err)); }
static void send_early_work(scene *s) {
    uint64_t seed = 1;
    work w;
    draw_work(&w, s, 0, 1, &seed);
    MUST(pot_transport_send(s->ends[0], 1, make_message(s, &w), &err));
    pot_free(w.x);
}
static void send_hello(scene *s) {
    pot_control c = {.type = POT_CONTROL_HELLO, .hello = {.protocol_min = 1, .protocol_max = 1}};
    MUST(pot_control_send(s->ends[0], 1, &c, &err));
}
static void send_second_welcome(scene *s) {
    send_welcome(s);
    send_welcome(s);
}
static void send_second_map(scene *s) {
    send_welcome(s);
    send_map(s);
    send_map(s);
}
static void send_error(scene *s) {
    pot_control c = {.type = POT_CONTROL_ERROR, .error = {.code = POT_REFUSED, .text = "too old"}};
    MUST(pot_control_send(s->ends[0], 1, &c, &err));
}
static void send_noise(scene *s) {
    pot_message *m = pot_transport_message(s->ends[0], 40);
    memset(m->bytes, 0x5a, 40);
    m->kind = POT_MESSAGE_CONTROL;
    MUST(pot_transport_send(s->ends[0], 1, m, &err));
}

static void worker_ends_on_frames_out_of_order(void **state) {
    (void)state;
    static const struct {
        void (*send)(scene *s);
        pot_status status;
        const char *words;
    } cases[] = {{send_map, POT_FORMAT, "a Map before Welcome"},
                 {send_early_work, POT_FORMAT, "work before the map"},
                 {send_hello, POT_FORMAT, "only workers send"},
                 {send_second_welcome, POT_FORMAT, "a second Welcome"},
                 {send_second_map, POT_FORMAT, "a second map"},
                 {send_error, POT_REFUSED, "the coordinator: too old"},
                 {send_noise, POT_FORMAT, ""}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        scene s;
        pot_err err = {0};
        open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
        expect_control(&s, POT_CONTROL_HELLO);
        cases[i].send(&s);
        pot_status got = poll_worker(&s, &err);
        if (got != cases[i].status || !strstr(err.text, cases[i].words) || !err.text[0])
            fail_msg("case %zu: %s `%s`, expected `%s`", i, pot_status_name(got), err.text, cases[i].words);
        close_scene(&s);
    }
}

static void worker_does_not_listen_to_bystanders(void **state) {
    (void)state;
    scene s;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    join(&s);
    pot_control leave = {.type = POT_CONTROL_LEAVE};
    MUST(pot_control_send(s.ends[2], 1, &leave, &err));
    pot_transport_close(s.ends[2], 0);
    s.ends[2] = NULL;
    bool done = true;
    MUST(pot_worker_poll(s.worker, &done, &err));
    assert_false(done);
    expect_alive(&s);
    close_scene(&s);
}

/* ---- the store ------------------------------------------------------------------------------------------------------------ */

static void store_holds_what_the_map_gives_and_nothing_else(void **state) {
    (void)state;
    pot_model *model;
    pot_map *map;
    MUST(pot_model_open(&model, mxfp4, &pot_format_policy_default, &err));
    MUST(pot_map_make(&map, "random:4", 9, 3, pot_model_layer_shapes(model), pot_model_layers(model), &err));
    uint8_t *packed = pot_alloc_aligned(1 << 20);
    for (uint32_t worker = 0; worker < 3; worker++) {
        pot_store *store;
        _Atomic uint64_t loaded = 0, total = 0;
        const pot_store_options options = {
            .model = model, .map = map, .worker = worker, .threads = 2, .loaded_bytes = &loaded, .total_bytes = &total};
        MUST(pot_store_open(&store, &options, &err));
        assert_int_equal(pot_store_epoch(store), 9);
        assert_int_equal(pot_store_bytes(store), pot_model_worker_bytes(model, map, worker));
        assert_int_equal(loaded, pot_store_bytes(store));
        assert_int_equal(total, pot_store_bytes(store));
        for (uint32_t l = 0; l < pot_model_layers(model); l++) {
            const pot_layer_shape *shape = &pot_model_layer_shapes(model)[l];
            for (uint32_t e = 0; e < pot_layer_experts(shape); e++)
                for (uint32_t c = 0; c < pot_layer_expert_chunks(shape, e); c++) {
                    bool owned = pot_map_owns(map, worker, l, e, c, c + 1);
                    assert_int_equal(pot_store_owns(store, l, e, c), owned);
                    if (!owned) continue;
                    const pot_store_want want = {e, c};
                    pot_store_given given;
                    uint32_t n;
                    MUST(pot_store_begin(store, l, &want, 1, false, &err));
                    MUST(pot_store_take(&given, &n, 1, store, &err));
                    assert_int_equal(n, 1);
                    assert_int_equal(given.want, 0);
                    assert_int_equal((uintptr_t)given.data % POT_LINE_BYTES, 0);
                    size_t bytes = pot_chunk_bytes(pot_model_expert_shape(model, l, e), c);
                    assert_true(bytes <= 1 << 20);
                    memset(packed, 0, bytes);
                    MUST(pot_model_load_chunk(packed, model, l, e, c, &err));
                    assert_memory_equal(given.data, packed, bytes);
                    MUST(pot_store_take(&given, &n, 1, store, &err));
                    assert_int_equal(n, 0);
                    pot_store_end(store);
                }
            assert_false(pot_store_owns(store, l, pot_layer_experts(shape), 0));
            assert_false(pot_store_owns(store, l, 0, pot_layer_expert_chunks(shape, 0)));
        }
        assert_false(pot_store_owns(store, pot_model_layers(model), 0, 0));
        pot_store_free(store);
    }
    pot_free(packed);
    pot_map_free(map);
    pot_model_close(model);
}

/* ---- work ------------------------------------------------------------------------------------------------------------------- */

static void worker_sums_equal_the_plain_computation(void **state) {
    (void)state;
    static const struct {
        const char *model;
        bool reference;
    } subjects[] = {{"tests/fixtures/mxfp4", false},
                    {"tests/fixtures/mxfp4", true},
                    {"tests/fixtures/fp8", false},
                    {"tests/fixtures/article4", false},
                    {"tests/fixtures/experts256", false},
                    {"tests/fixtures/indexshare", true},
                    {"demo", false}};
    static const char *const maps[] = {"contiguous", "round-robin", "sliced", "random:1"};
    uint64_t seed = 1;
    for (size_t i = 0; i < sizeof subjects / sizeof subjects[0]; i++) {
        pot_format_policy policy = pot_format_policy_default;
        policy.reference = subjects[i].reference;
        for (uint32_t self = 0; self < 3; self++) {
            scene s;
            open_scene(&s, subjects[i].model, &policy, maps[(i + self) % 4], 3, self);
            join(&s);
            for (uint32_t layer = 0; layer < pot_model_layers(s.model); layer++) {
                work w;
                draw_work(&w, &s, layer, 1 + pot_draw(&seed, 3), &seed);
                if (w.n_items) {
                    send_work(&s, &w);
                    expect_sum(&s, &w);
                }
                pot_free(w.x);
            }
            close_scene(&s);
        }
    }
}

static void worker_that_is_warm_allocates_nothing(void **state) {
    (void)state;
    scene s;
    open_scene(&s, mxfp4, &pot_format_policy_default, "sliced", 2, 0);
    join(&s);
    uint64_t seed = 8;
    work w;
    draw_work(&w, &s, 1, 3, &seed);
    for (int i = 0; i < 2; i++) {
        send_work(&s, &w);
        expect_sum(&s, &w);
    }
    pot_message *m = make_message(&s, &w);
    MUST(pot_transport_send(s.ends[0], 1, m, &err));
    pot_mem_fail_at(1);
    pot_err err = {0};
    pot_status polled = poll_worker(&s, &err);
    pot_mem_fail_at(0);
    if (polled != POT_OK) fail_msg("%s", err.text);
    expect_sum(&s, &w);
    pot_free(w.x);
    close_scene(&s);
}

static void worker_names_layer_and_expert_of_a_fault(void **state) {
    (void)state;
    pot_format_policy policy = pot_format_policy_default;
    policy.reference = true;
    scene s;
    open_scene(&s, mxfp4, &policy, "contiguous", 1, 0);
    join(&s);
    uint64_t seed = 5;
    work w;
    draw_work(&w, &s, 2, 1, &seed);
    w.items[0] = (pot_wire_item){.expert = 4, .chunk_end = 1, .kind = POT_KIND_FFN, .weight = 1};
    w.n_items = 1;
    for (uint32_t i = 0; i < pot_model_config(s.model)->hidden; i++) w.x[i] = 3e38f;
    send_work(&s, &w);
    pot_control c = expect_control(&s, POT_CONTROL_ERROR);
    assert_int_equal(c.error.code, POT_NUMERIC);
    assert_int_equal(c.error.request, 77);
    assert_int_equal(c.error.step, 88);
    assert_int_equal(c.error.layer, 2);
    assert_non_null(strstr(c.error.text, "layer 2"));
    assert_non_null(strstr(c.error.text, "expert 4"));
    pot_free(w.x);
    expect_alive(&s);
    close_scene(&s);
}

/* Rows are checked by the coordinator; a worker that gets bad ones all the same does not sum them. */
static void worker_refuses_scales_that_are_not_finite(void **state) {
    (void)state;
    scene s;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    join(&s);
    uint64_t seed = 5;
    work w;
    draw_work(&w, &s, 1, 1, &seed);
    w.forms = POT_ACT_Q8;
    w.items[0] = (pot_wire_item){.expert = 3, .chunk_end = 1, .kind = POT_KIND_FFN, .weight = 1};
    w.n_items = 1;
    pot_message *m = make_message(&s, &w);
    float scale = NAN;
    memcpy(m->bytes + 64 + pot_blocks(pot_model_config(s.model)->hidden) * POT_BLOCK, &scale, sizeof scale);
    MUST(pot_transport_send(s.ends[0], 1, m, &err));
    MUST(poll_worker(&s, &err));
    expect_told(&s, POT_NUMERIC, "layer 1: expert 3");
    pot_free(w.x);
    expect_alive(&s);
    close_scene(&s);
}

/* ---- hostile work -------------------------------------------------------------------------------------------------------------- */

static void same_item_twice(work *w) { w->items[w->n_items++] = w->items[0]; }
static void overlapping_items(work *w) {
    w->items[0] = (pot_wire_item){.expert = 2, .chunk_end = 3, .kind = POT_KIND_FFN, .weight = 1};
    w->items[1] = (pot_wire_item){.expert = 2, .chunk_begin = 2, .chunk_end = 5, .kind = POT_KIND_FFN, .weight = 1};
    w->n_items = 2;
}
static void far_more_items_than_chunks(work *w) {
    w->n_items = MAX_ITEMS;
    for (uint32_t i = 0; i < MAX_ITEMS; i++)
        w->items[i] = (pot_wire_item){.expert = 1, .chunk_end = 5, .kind = POT_KIND_FFN, .weight = 1};
}
static void row_outside(work *w) { w->items[1].row = w->n_rows; }
static void expert_outside(work *w) { w->items[1].expert = 7; }
static void huge_expert(work *w) { w->items[1].expert = UINT32_MAX; }
static void chunk_outside(work *w) { w->items[1].chunk_end = 60000; }
static void chunks_backwards(work *w) { w->items[1].chunk_begin = w->items[1].chunk_end; }
static void weight_not_finite(work *w) { w->items[1].weight = 1.0f / 0.0f; }
static void kind_unknown(work *w) { w->items[1].kind = POT_KIND_LINEAR_ROWS; }
static void form_missing(work *w) { w->forms = POT_ACT_F32; }

static void worker_refuses_hostile_items(void **state) {
    (void)state;
    static const struct {
        void (*spoil)(work *w);
        const char *words;
    } cases[] = {{same_item_twice, "asked for twice"},
                 {overlapping_items, "row 0, expert 2, chunk 2 is asked for twice"},
                 {far_more_items_than_chunks, "asked for twice"},
                 {row_outside, "row"},
                 {expert_outside, "expert 7"},
                 {huge_expert, "expert 4294967295"},
                 {chunk_outside, "60000"},
                 {chunks_backwards, "chunks"},
                 {weight_not_finite, "weight"},
                 {kind_unknown, "kind 3"},
                 {form_missing, "needs 1"}};
    scene s;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    join(&s);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t seed = 20;
        work w;
        draw_work(&w, &s, 1, 2, &seed);
        cases[i].spoil(&w);
        send_work(&s, &w);
        pot_control c = expect_control(&s, POT_CONTROL_ERROR);
        if (c.error.code != POT_FORMAT || c.error.step != 88 || !strstr(c.error.text, cases[i].words))
            fail_msg("case %zu: %s, step %llu: `%s`, expected `%s`", i, pot_status_name((pot_status)c.error.code),
                     (unsigned long long)c.error.step, c.error.text, cases[i].words);
        pot_free(w.x);
        expect_alive(&s);
    }
    close_scene(&s);
}

static void worker_refuses_hostile_headers(void **state) {
    (void)state;
    static const struct {
        size_t at;
        uint8_t byte;
        const char *words;
    } cases[] = {{0, 0, "begins with"}, {4, 9, "version 9"},    {6, 9, "type 9"},    {6, POT_WIRE_SUM, "type 2"},
                 {8, 1, "flags"},       {12, 200, "layer 200"}, {16, 6, "epoch 6"},  {40, 9, ""},
                 {44, 200, ""},         {50, 8, "formats 8"},   {51, 23, "grid 23"}, {51, 0x80, "grid -128"},
                 {52, 64, ""},          {56, 1, "carries"}};
    scene s;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    join(&s);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint64_t seed = 20;
        work w;
        draw_work(&w, &s, 1, 2, &seed);
        pot_message *m = make_message(&s, &w);
        m->bytes[cases[i].at] = cases[i].byte;
        MUST(pot_transport_send(s.ends[0], 1, m, &err));
        MUST(poll_worker(&s, &err));
        pot_control c = expect_control(&s, POT_CONTROL_ERROR);
        if (c.error.code != POT_FORMAT || !strstr(c.error.text, cases[i].words))
            fail_msg("case %zu: %s: `%s`, expected `%s`", i, pot_status_name((pot_status)c.error.code), c.error.text,
                     cases[i].words);
        pot_free(w.x);
        expect_alive(&s);
    }
    close_scene(&s);
}

/* Whatever arrives, there is one answer to it, and the worker lives on. */
static void worker_survives_noise(void **state) {
    (void)state;
    scene s;
    open_scene(&s, mxfp4, &pot_format_policy_default, "random:2", 2, 1);
    join(&s);
    uint64_t seed = 31;
    work w;
    draw_work(&w, &s, 1, 2, &seed);
    int sums = 0, refusals = 0;
    for (int round = 0; round < 800; round++) {
        pot_message *m = make_message(&s, &w);
        if (round % 10 == 0) m->n_bytes = pot_draw(&seed, (uint32_t)m->n_bytes);
        for (uint32_t k = 1 + pot_draw(&seed, 4); k > 0 && m->n_bytes; k--) {
            uint32_t where =
                pot_draw(&seed, 3) ? pot_draw(&seed, (uint32_t)m->n_bytes) : pot_draw(&seed, 64) % (uint32_t)m->n_bytes;
            m->bytes[where] = (uint8_t)pot_draw(&seed, 256);
        }
        MUST(pot_transport_send(s.ends[0], 1, m, &err));
        MUST(poll_worker(&s, &err));
        m = next(&s, 0);
        assert_non_null(m);
        sums += m->kind == POT_MESSAGE_DATA;
        refusals += m->kind == POT_MESSAGE_CONTROL;
        pot_message_release(s.ends[0], m);
        assert_null(next(&s, 0));
    }
    assert_true(sums > 40 && refusals > 40);
    expect_alive(&s);
    pot_free(w.x);
    close_scene(&s);
}

/* ---- serving ---------------------------------------------------------------------------------------------------------------------- */

typedef struct serving {
    scene *scene;
    pthread_t thread;
    pot_status status;
    pot_err err;
} serving;

static void *serve(void *context) {
    serving *v = context;
    v->status = pot_worker_serve(v->scene->worker, &v->err);
    return NULL;
}

static void start_serving(serving *v, scene *s) {
    *v = (serving){.scene = s};
    assert_int_equal(pthread_create(&v->thread, NULL, serve, v), 0);
    expect_control(s, POT_CONTROL_HELLO);
    send_welcome(s);
    MUST(pot_control_send_map(s->ends[0], 1, s->map, &err));
    expect_control(s, POT_CONTROL_READY);
}

static void expect_end(serving *v, pot_status status, const char *words) {
    pthread_join(v->thread, NULL);
    if (v->status != status || !strstr(v->err.text, words))
        fail_msg("the worker ended with %s: `%s`, expected `%s`", pot_status_name(v->status), v->err.text, words);
}

static void worker_leaves_when_asked(void **state) {
    (void)state;
    scene s;
    serving v;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    s.welcome.dead_us = 30000000; /* this coordinator has no pulse */
    start_serving(&v, &s);
    pot_control leave = {.type = POT_CONTROL_LEAVE};
    MUST(pot_control_send(s.ends[0], 1, &leave, &err));
    expect_end(&v, POT_OK, "");
    expect_control(&s, POT_CONTROL_LEAVE);
    close_scene(&s);
}

static void worker_has_a_pulse(void **state) {
    (void)state;
    scene s;
    serving v;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    s.welcome.dead_us = 30000000;
    start_serving(&v, &s);
    uint64_t held = pot_model_worker_bytes(s.model, s.map, 0);
    for (int beats = 0; beats < 5;) {
        pot_message *m;
        pot_control c;
        MUST(pot_transport_receive(s.ends[0], 5000000, &m, &err));
        assert_non_null(m);
        MUST(pot_control_parse(&c, m->bytes, m->n_bytes, &err));
        assert_int_equal(c.type, POT_CONTROL_HEARTBEAT);
        beats += c.heartbeat.loaded_bytes == held && c.heartbeat.total_bytes == held;
        pot_message_release(s.ends[0], m);
    }
    pot_control leave = {.type = POT_CONTROL_LEAVE};
    MUST(pot_control_send(s.ends[0], 1, &leave, &err));
    expect_end(&v, POT_OK, "");
    close_scene(&s);
}

static void worker_ends_when_the_coordinator_is_silent(void **state) {
    (void)state;
    scene s;
    serving v;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    start_serving(&v, &s);
    expect_end(&v, POT_PEER_LOST, "nothing was heard from the coordinator");
    close_scene(&s);
}

static void worker_ends_when_the_coordinator_is_gone(void **state) {
    (void)state;
    scene s;
    serving v;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    s.welcome.dead_us = 30000000;
    start_serving(&v, &s);
    pot_transport_close(s.ends[0], 0);
    s.ends[0] = NULL;
    expect_end(&v, POT_PEER_LOST, "the coordinator is gone");
    close_scene(&s);
}

static void worker_says_goodbye_after_a_signal(void **state) {
    (void)state;
    scene s;
    serving v;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    s.welcome.dead_us = 30000000;
    start_serving(&v, &s);
    raise(SIGTERM);
    pot_transport_wake(s.ends[1]);
    expect_end(&v, POT_CANCELLED, "signal");
    pot_control c = expect_control(&s, POT_CONTROL_LEAVE);
    assert_int_equal(c.error.code, POT_CANCELLED);
    pot_stop_clear();
    close_scene(&s);
}

static void worker_stops_loading_after_a_signal(void **state) {
    (void)state;
    scene s;
    open_scene(&s, mxfp4, &pot_format_policy_default, "contiguous", 1, 0);
    expect_control(&s, POT_CONTROL_HELLO);
    send_welcome(&s);
    send_map(&s);
    raise(SIGTERM);
    pot_err err;
    assert_int_equal(poll_worker(&s, &err), POT_CANCELLED);
    pot_stop_clear();
    close_scene(&s);
}

int main(void) {
    pot_err err;
    pot_stop_install();
    if (pot_log_configure("error", &err)) return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(worker_introduces_itself),
        cmocka_unit_test(worker_refuses_another_model_with_both_fingerprints),
        cmocka_unit_test(worker_refuses_another_policy),
        cmocka_unit_test(worker_refuses_other_dimensions_with_both_numbers),
        cmocka_unit_test(worker_refuses_an_unknown_protocol),
        cmocka_unit_test(worker_says_when_the_model_is_not_there),
        cmocka_unit_test(worker_opens_the_path_that_it_was_given),
        cmocka_unit_test(worker_ends_on_frames_out_of_order),
        cmocka_unit_test(worker_does_not_listen_to_bystanders),
        cmocka_unit_test(store_holds_what_the_map_gives_and_nothing_else),
        cmocka_unit_test(worker_sums_equal_the_plain_computation),
        cmocka_unit_test(worker_that_is_warm_allocates_nothing),
        cmocka_unit_test(worker_names_layer_and_expert_of_a_fault),
        cmocka_unit_test(worker_refuses_scales_that_are_not_finite),
        cmocka_unit_test(worker_refuses_hostile_items),
        cmocka_unit_test(worker_refuses_hostile_headers),
        cmocka_unit_test(worker_survives_noise),
        cmocka_unit_test(worker_leaves_when_asked),
        cmocka_unit_test(worker_has_a_pulse),
        cmocka_unit_test(worker_ends_when_the_coordinator_is_silent),
        cmocka_unit_test(worker_ends_when_the_coordinator_is_gone),
        cmocka_unit_test(worker_says_goodbye_after_a_signal),
        cmocka_unit_test(worker_stops_loading_after_a_signal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
