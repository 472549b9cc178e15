/* The control plane: every frame there and back over `mem`, its golden bytes (GOLDEN=renew rewrites tests/golden/control), hostile
 * frames, maps in parts, and the heartbeat's thread. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "common/mem.h"
#include "proto/control.h"

enum { MINUTE_US = 60000000 };

static pot_err err; /* calls write their sentence here */
#define MUST(call)                                     \
    do {                                               \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)

static pot_transport *ends[2];

static int open_ends(void **state) {
    (void)state;
    return pot_transport_mem_create(ends, 2, &err) == POT_OK ? 0 : -1;
}

static int close_ends(void **state) {
    (void)state;
    pot_transport_close(ends[0], 0);
    pot_transport_close(ends[1], 0);
    return 0;
}

static pot_message *take(void) {
    pot_message *m;
    MUST(pot_transport_receive(ends[1], MINUTE_US, &m, &err));
    assert_non_null(m);
    return m;
}

static void expect_nothing_more(void) {
    pot_message *m;
    MUST(pot_transport_receive(ends[1], 0, &m, &err));
    assert_null(m);
}

/* ---- there and back ---------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    pot_control control;
} frames[] = {
    {"hello",
     {.type = POT_CONTROL_HELLO,
      .hello = {.protocol_min = 1,
                .protocol_max = 7,
                .build = "0.1.0",
                .host = "tessa",
                .kernels = "avx2",
                .transport = "ucx",
                .pid = -2,
                .threads = 12,
                .ram_bytes = 0xf102030405060708}}},
    {"welcome",
     {.type = POT_CONTROL_WELCOME,
      .welcome = {.protocol = 1,
                  .worker = 63,
                  .n_workers = 64,
                  .session = UINT64_MAX,
                  .model = "/models/GLM 5.2/\xc3\xa9",
                  .reference = 1,
                  .experts_format = 14,
                  .dense_format = 8,
                  .head_format = 5,
                  .mtp_format = 4,
                  .rounding = 1,
                  .fingerprint = {.low = 0x0102030405060708, .high = 0x1112131415161718},
                  .hidden = 6144,
                  .n_layers = 78,
                  .grid = 24,
                  .heartbeat_us = 250000,
                  .dead_us = 3000000}}},
    {"ready",
     {.type = POT_CONTROL_READY,
      .ready = {.epoch = 3, .bytes = 1 << 30, .fingerprint = {.low = 1, .high = UINT64_MAX}}}},
    {"heartbeat",
     {.type = POT_CONTROL_HEARTBEAT,
      .heartbeat = {.sequence = 300,
                    .state = POT_STATE_COMPUTING,
                    .steps = 1,
                    .items = 2,
                    .loaded_bytes = 3,
                    .total_bytes = UINT64_MAX}}},
    {"leave", {.type = POT_CONTROL_LEAVE, .error = {.code = POT_OK, .text = "left in order"}}},
    {"error",
     {.type = POT_CONTROL_ERROR,
      .error = {.code = POT_NUMERIC,
                .request = 1,
                .step = 88,
                .layer = 77,
                .text = "layer 77: expert 3: a value is not finite"}}},
};
enum { N_FRAMES = sizeof frames / sizeof frames[0] };

static bool renewing(void) {
    const char *golden = getenv("GOLDEN");
    return golden && strcmp(golden, "renew") == 0;
}

static void expect_golden(const char *name, const uint8_t *bytes, size_t n) {
    char path[128];
    uint8_t want[POT_CONTROL_MAX_BYTES + 1];
    snprintf(path, sizeof path, "tests/golden/control/%s.bin", name);
    FILE *f = fopen(path, renewing() ? "wb" : "rb");
    if (!f) fail_msg("%s cannot be opened", path);
    if (renewing()) {
        assert_int_equal(fwrite(bytes, 1, n, f), n);
    } else {
        assert_int_equal(fread(want, 1, sizeof want, f), n);
        assert_memory_equal(bytes, want, n);
    }
    fclose(f);
}

static void frames_come_back_as_they_were_sent(void **state) {
    (void)state;
    for (size_t i = 0; i < N_FRAMES; i++) {
        pot_control back;
        MUST(pot_control_send(ends[0], 1, &frames[i].control, &err));
        pot_message *m = take();
        assert_int_equal(m->kind, POT_MESSAGE_CONTROL);
        assert_int_equal(m->peer, 0);
        MUST(pot_control_parse(&back, m->bytes, m->n_bytes, &err));
        expect_golden(frames[i].name, m->bytes, m->n_bytes);
        /* Structs have padding: what was read is compared by what it is sent as. */
        MUST(pot_control_send(ends[0], 1, &back, &err));
        pot_message *again = take();
        assert_int_equal(again->n_bytes, m->n_bytes);
        if (memcmp(again->bytes, m->bytes, m->n_bytes) != 0) fail_msg("%s came back changed", frames[i].name);
        pot_message_release(ends[1], m);
        pot_message_release(ends[1], again);
    }
}

static void empty_frames_are_small_and_read_as_zeros(void **state) {
    (void)state;
    const pot_control ready = {.type = POT_CONTROL_READY}, leave = {.type = POT_CONTROL_LEAVE};
    for (int i = 0; i < 2; i++) {
        pot_control back;
        MUST(pot_control_send(ends[0], 1, i ? &leave : &ready, &err));
        pot_message *m = take();
        assert_int_equal(m->n_bytes, 8);
        MUST(pot_control_parse(&back, m->bytes, m->n_bytes, &err));
        assert_int_equal(back.type, i ? POT_CONTROL_LEAVE : POT_CONTROL_READY);
        if (i)
            assert_true(back.error.code == POT_OK && back.error.step == 0 && back.error.text[0] == 0);
        else
            assert_true(back.ready.epoch == 0 && back.ready.bytes == 0 && back.ready.fingerprint.high == 0);
        pot_message_release(ends[1], m);
    }
}

static void sentence_loses_its_control_characters(void **state) {
    (void)state;
    pot_control c = {.type = POT_CONTROL_ERROR, .error = {.code = POT_IO, .text = "no file `\x1b[31m\n\x7f` here"}},
                back;
    MUST(pot_control_send(ends[0], 1, &c, &err));
    pot_message *m = take();
    MUST(pot_control_parse(&back, m->bytes, m->n_bytes, &err));
    assert_string_equal(back.error.text, "no file `?[31m??` here");
    pot_message_release(ends[1], m);
    memset(c.error.text, 'x', sizeof c.error.text - 1); /* as long as it can be */
    MUST(pot_control_send(ends[0], 1, &c, &err));
    m = take();
    MUST(pot_control_parse(&back, m->bytes, m->n_bytes, &err));
    assert_string_equal(back.error.text, c.error.text);
    pot_message_release(ends[1], m);
}

/* ---- hostile frames ------------------------------------------------------------------------------------------------------- */

/* A frame put together by hand. */
typedef struct frame {
    uint8_t bytes[POT_CONTROL_MAX_BYTES + 8];
    size_t n;
} frame;

static void begin(frame *f, uint8_t type) {
    memcpy(f->bytes, (const uint8_t[8]){'P', 'T', 'L', 'C', type, 1, 0, 0}, 8);
    f->n = 8;
}

static void put_varint(frame *f, uint64_t value) {
    for (; value > 127; value >>= 7) f->bytes[f->n++] = (uint8_t)(value | 128);
    f->bytes[f->n++] = (uint8_t)value;
}

static void put_number(frame *f, unsigned field, uint64_t value) {
    put_varint(f, field << 3);
    put_varint(f, value);
}

static void put_text(frame *f, unsigned field, const void *text, size_t n) {
    put_varint(f, field << 3 | 2);
    put_varint(f, n);
    memcpy(f->bytes + f->n, text, n);
    f->n += n;
}

/* Parses from a heap block of the exact size, so that the sanitizers see what is read behind it. */
static pot_status parse(const frame *f, pot_control *out) {
    uint8_t *copy = malloc(f->n ? f->n : 1);
    assert_non_null(copy);
    memcpy(copy, f->bytes, f->n);
    pot_status s = pot_control_parse(out, copy, f->n, &err);
    free(copy);
    return s;
}

static void expect_refusal(const frame *f, const char *words) {
    pot_control c, before;
    memset(&c, 0x5a, sizeof c);
    before = c;
    pot_status s = parse(f, &c);
    if (s != POT_FORMAT || !strstr(err.text, words))
        fail_msg("%s `%s`, expected `%s`", pot_status_name(s), s ? err.text : "", words);
    assert_memory_equal(&c, &before, sizeof c); /* outputs are written only on success */
}

static void frame_heads_are_checked(void **state) {
    (void)state;
    static const struct {
        uint8_t head[8];
        size_t n;
        const char *words;
    } cases[] = {
        {{0}, 0, "a control frame of 0 bytes, possible are 8 to 65536"},
        {"PTLC\4\1\0", 7, "a control frame of 7 bytes"},
        {"PTLK\4\1\0", 8, "does not begin with PTLC"},
        {"PTLC\0\1\0", 8, "type 0, version 1; this build reads types 1 to 7 of version 1"},
        {"PTLC\10\1\0", 8, "type 8, version 1"},
        {"PTLC\377\1\0", 8, "type 255, version 1"},
        {"PTLC\4\0\0", 8, "type 4, version 0"},
        {"PTLC\4\2\0", 8, "type 4, version 2"},
        {"PTLC\4\1\1", 8, "type 4, version 1"},
        {{'P', 'T', 'L', 'C', 4, 1, 0, 1}, 8, "type 4, version 1"},
    };
    static frame f;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        memcpy(f.bytes, cases[i].head, 8);
        f.n = cases[i].n;
        expect_refusal(&f, cases[i].words);
    }
    begin(&f, POT_CONTROL_ERROR);
    f.n = POT_CONTROL_MAX_BYTES + 1;
    expect_refusal(&f, "a control frame of 65537 bytes, possible are 8 to 65536");
}

static void fields_are_checked(void **state) {
    (void)state;
    static const struct {
        uint8_t type;
        struct {
            unsigned field;
            uint64_t value;
        } numbers[10];
        const char *words;
    } cases[] = {
        {POT_CONTROL_HELLO, {{0}}, "Hello offers protocols 0 to 0"},
        {POT_CONTROL_HELLO, {{1, 2}, {2, 1}}, "Hello offers protocols 2 to 1"},
        {POT_CONTROL_WELCOME, {{0}}, "Welcome for worker 0 of 0, at most 64"},
        {POT_CONTROL_WELCOME, {{3, 2}, {4, 2}}, "Welcome for worker 2 of 2"},
        {POT_CONTROL_WELCOME, {{4, 65}}, "Welcome for worker 0 of 65"},
        {POT_CONTROL_WELCOME, {{4, 1}, {7, 15}}, "Welcome names formats 15, 0, 0 and 0, known are 0 to 14"},
        {POT_CONTROL_WELCOME, {{4, 1}, {9, 0xffffffff}}, "Welcome names formats 0, 0, 4294967295 and 0"},
        {POT_CONTROL_WELCOME, {{4, 1}, {18, 3}}, "Welcome asks for rounding 3"},
        {POT_CONTROL_WELCOME, {{4, 1}}, "a heartbeat of 0 us and death after 0 us"},
        {POT_CONTROL_WELCOME, {{4, 1}, {15, 999}, {16, 3000000}}, "a heartbeat of 999 us"},
        {POT_CONTROL_WELCOME, {{4, 1}, {15, 250000}, {16, 250000}}, "death after 250000 us"},
        {POT_CONTROL_WELCOME, {{4, 1}, {15, 250000}, {16, UINT64_MAX}}, "possible are 1000 to 86400000000"},
        {POT_CONTROL_WELCOME,
         {{4, 1}, {12, 0}, {13, 1}, {15, 1000}, {16, 2000}},
         "Welcome for 1 layers of hidden size 0"},
        {POT_CONTROL_WELCOME, {{4, 1}, {12, 1}, {13, 1}, {14, 63}, {15, 1000}, {16, 2000}}, "and grid 63"},
        {POT_CONTROL_HEARTBEAT, {{2, 3}}, "a Heartbeat with state 3, known are 0 to 2"},
        {POT_CONTROL_LEAVE, {{1, POT_STATUS_COUNT}}, "an Error with code 15, known are 0 to 14"},
        {POT_CONTROL_ERROR, {{1, 0xffffffff}}, "an Error with code 4294967295"},
    };
    static frame f;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        begin(&f, cases[i].type);
        for (int k = 0; k < 10 && cases[i].numbers[k].field; k++)
            put_number(&f, cases[i].numbers[k].field, cases[i].numbers[k].value);
        expect_refusal(&f, cases[i].words);
    }
}

static void texts_are_checked(void **state) {
    (void)state;
    static frame f;
    static char long_text[POT_CONTROL_TEXT + 1];
    memset(long_text, 'x', sizeof long_text);
    static const struct {
        uint8_t type;
        unsigned field;
        size_t most;
        const char *name;
    } fields[] = {{POT_CONTROL_HELLO, 3, 63, "Hello.build"},       {POT_CONTROL_HELLO, 4, 63, "Hello.host"},
                  {POT_CONTROL_HELLO, 6, 31, "Hello.kernels"},     {POT_CONTROL_HELLO, 7, 63, "Hello.transport"},
                  {POT_CONTROL_WELCOME, 5, 1023, "Welcome.model"}, {POT_CONTROL_ERROR, 5, 1023, "Error.text"}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        for (int bad = 0; bad < 6; bad++) {
            static const char *const texts[] = {NULL, "a\nb", "\x1b[2J", "\x7f", "\t", NULL};
            char words[128];
            pot_control c;
            begin(&f, fields[i].type);
            if (fields[i].type == POT_CONTROL_HELLO) {
                put_number(&f, 1, 1);
                put_number(&f, 2, 1);
            } else if (fields[i].type == POT_CONTROL_WELCOME) {
                static const unsigned valid[][2] = {{4, 1}, {12, 1}, {13, 1}, {15, 1000}, {16, 2000}};
                for (int k = 0; k < 5; k++) put_number(&f, valid[k][0], valid[k][1]);
            }
            size_t head = f.n;
            if (bad == 0) {
                put_text(&f, fields[i].field, long_text, fields[i].most + 1);
                snprintf(words, sizeof words, "control: %s has %zu bytes, at most %zu are possible", fields[i].name,
                         fields[i].most + 1, fields[i].most);
            } else if (bad == 5) {
                put_text(&f, fields[i].field, "a\0b", 3);
                snprintf(words, sizeof words, "control: %s has the byte 00 in it, expected text", fields[i].name);
            } else {
                put_text(&f, fields[i].field, texts[bad], strlen(texts[bad]));
                snprintf(words, sizeof words, "control: %s has the byte ", fields[i].name);
            }
            expect_refusal(&f, words);
            f.n = head; /* the longest that is possible, and bytes above 127, pass */
            put_text(&f, fields[i].field, long_text, fields[i].most);
            assert_int_equal(parse(&f, &c), POT_OK);
            f.n = head;
            put_text(&f, fields[i].field, "\xc3\xa9\xff", 3);
            assert_int_equal(parse(&f, &c), POT_OK);
        }
}

static void lengths_that_lie_are_refused(void **state) {
    (void)state;
    static frame f;
    static const uint64_t lengths[] = {1, 2, 127, 128, 65536, 0x7fffffff, 0xffffffff, 0x7fffffffffffffff, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        begin(&f, POT_CONTROL_ERROR);
        put_varint(&f, 5 << 3 | 2);
        put_varint(&f, lengths[i]); /* and nothing behind it */
        expect_refusal(&f, "cannot be unpacked");
        begin(&f, POT_CONTROL_MAP);
        put_varint(&f, 6 << 3 | 2);
        put_varint(&f, lengths[i]);
        expect_refusal(&f, "cannot be unpacked");
    }
    begin(&f, POT_CONTROL_HEARTBEAT); /* a number without an end */
    memset(f.bytes + f.n, 0xff, 4);
    f.n += 4;
    expect_refusal(&f, "cannot be unpacked");
}

static void memory_of_a_frame_has_a_budget(void **state) {
    (void)state;
    static frame f;
    static char text[1023];
    pot_control c;
    begin(&f, POT_CONTROL_MAP); /* 32,764 times range_count, each without a value */
    while (f.n + 2 <= POT_CONTROL_MAX_BYTES) put_text(&f, 4, "", 0);
    expect_refusal(&f, "cannot be unpacked");
    begin(&f, POT_CONTROL_HEARTBEAT); /* fields that nobody knows */
    while (f.n + 2 <= POT_CONTROL_MAX_BYTES) put_number(&f, 15, 0);
    expect_refusal(&f, "cannot be unpacked");
    begin(&f, POT_CONTROL_ERROR); /* the same text again and again: what was freed is not given back */
    while (f.n + 1026 <= POT_CONTROL_MAX_BYTES) put_text(&f, 5, text, sizeof text);
    (void)parse(&f, &c);              /* either way: no leak, no double free (the sanitizers) */
    begin(&f, POT_CONTROL_HEARTBEAT); /* a few unknown fields are a newer build's */
    put_number(&f, 1, 5);
    put_number(&f, 100, 1);
    put_text(&f, 101, "new", 3);
    assert_int_equal(parse(&f, &c), POT_OK);
    assert_int_equal(c.heartbeat.sequence, 5);
}

static void damaged_frames_are_refused_or_read_safely(void **state) {
    (void)state;
    static frame f;
    pot_control c;
    for (size_t i = 0; i < N_FRAMES; i++) {
        MUST(pot_control_send(ends[0], 1, &frames[i].control, &err));
        pot_message *m = take();
        memcpy(f.bytes, m->bytes, m->n_bytes);
        for (f.n = 0; f.n < m->n_bytes; f.n++) (void)parse(&f, &c);
        for (size_t bit = 0; bit < 8 * m->n_bytes; bit++) {
            f.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            if (parse(&f, &c) == POT_OK) { /* then all texts end */
                if (c.type == POT_CONTROL_HELLO) assert_true(strlen(c.hello.host) < sizeof c.hello.host);
                if (c.type == POT_CONTROL_ERROR) assert_true(strlen(c.error.text) < sizeof c.error.text);
            }
            f.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        pot_message_release(ends[1], m);
    }
}

/* ---- maps ---------------------------------------------------------------------------------------------------------------------- */

typedef struct shape {
    pot_layer_shape layers[4];
    uint32_t n;
} shape;
static const shape shapes[] = {
    {{{0, 0, 48}, {256, 8, 8}, {256, 8, 8}}, 3},
    {{{0, 0, 1}}, 1},
    {{{0, 0, 0}, {3, 2, 0}, {0, 0, 0}}, 3},
    {{{300, 64, 64}}, 1},                 /* more ranges than a frame has room for, when sliced */
    {{{5000, 1, 0}, {2, 4096, 4096}}, 2}, /* more experts than a frame; experts that fill one */
};

static void map_arrives_as_it_was_sent(void **state) {
    (void)state;
    static const char *const policies[] = {"contiguous", "sliced", "random:3"};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int p = 0; p < 3; p++)
            for (uint32_t workers = 1; workers <= 64; workers += 21) {
                const shape *s = &shapes[i];
                pot_map *map, *back = NULL;
                pot_map_receiver *receiver = pot_map_receiver_create(s->layers, s->n, workers);
                uint32_t n_frames = 0;
                assert_non_null(receiver);
                MUST(pot_map_make(&map, policies[p], 0x1122334455, workers, s->layers, s->n, &err));
                MUST(pot_control_send_map(ends[0], 1, map, &err));
                while (!back) {
                    pot_control c;
                    pot_message *m = take();
                    assert_true(m->n_bytes <= POT_CONTROL_MAX_BYTES);
                    MUST(pot_control_parse(&c, m->bytes, m->n_bytes, &err));
                    assert_int_equal(c.type, POT_CONTROL_MAP);
                    MUST(pot_map_receiver_add(receiver, &back, m->bytes, m->n_bytes, &err));
                    pot_message_release(ends[1], m);
                    n_frames++;
                }
                expect_nothing_more();
                assert_true(n_frames >= s->n);
                if (i == 3 && p == 1 && workers == 64) assert_true(n_frames > 4);
                assert_true(pot_map_equal(map, back));
                assert_int_equal(pot_map_epoch(back), 0x1122334455);
                pot_map_free(map);
                pot_map_free(back);
                pot_map_receiver_free(receiver);
            }
}

static void map_frame_has_the_golden_bytes(void **state) {
    (void)state;
    static const pot_layer_shape layer = {3, 4, 5};
    pot_map *map;
    MUST(pot_map_make(&map, "random:6", 300, 64, &layer, 1, &err));
    MUST(pot_control_send_map(ends[0], 1, map, &err));
    pot_message *m = take();
    expect_golden("map", m->bytes, m->n_bytes);
    pot_message_release(ends[1], m);
    pot_map_free(map);
}

static const pot_layer_shape two[2] = {{0, 0, 3}, {2, 4, 1}};

typedef struct map_part {
    uint64_t epoch;
    uint32_t layer, first_expert;
    uint32_t counts[4], n_counts;
    uint32_t ends[4], n_ends;
    uint64_t owners[4];
    uint32_t n_owners;
    uint32_t firsts[4], n_firsts;
    bool commit;
} map_part;

static void put_part(frame *f, const map_part *p) {
    begin(f, POT_CONTROL_MAP);
    put_number(f, 1, p->epoch);
    put_number(f, 2, p->layer);
    put_number(f, 3, p->first_expert);
    for (uint32_t i = 0; i < p->n_counts; i++) put_number(f, 4, p->counts[i]); /* not packed: as good */
    for (uint32_t i = 0; i < p->n_ends; i++) put_number(f, 5, p->ends[i]);
    for (uint32_t i = 0; i < p->n_owners; i++) {
        put_varint(f, 6 << 3 | 1);
        for (int k = 0; k < 8; k++) f->bytes[f->n++] = (uint8_t)(p->owners[i] >> 8 * k);
    }
    for (uint32_t i = 0; i < p->n_firsts; i++) put_number(f, 7, p->firsts[i]);
    put_number(f, 8, p->commit);
}

#define WHOLE(n) .n_counts = n, .n_ends = n, .n_owners = n, .n_firsts = n
static const map_part part_0 = {.epoch = 4, .layer = 0, .counts = {1}, .ends = {3}, .owners = {1}, WHOLE(1)};
static const map_part part_1 = {.epoch = 4,
                                .layer = 1,
                                .counts = {1, 1, 1},
                                .ends = {4, 4, 1},
                                .owners = {2, 3, 1},
                                .firsts = {1, 0, 0},
                                WHOLE(3),
                                .commit = true};

static pot_status feed(pot_map_receiver *r, const map_part *part, pot_map **out) {
    static frame f;
    put_part(&f, part);
    return pot_map_receiver_add(r, out, f.bytes, f.n, &err);
}

static void map_is_put_together_from_parts_in_any_order(void **state) {
    (void)state;
    pot_map_receiver *r = pot_map_receiver_create(two, 2, 2);
    pot_map *map;
    map_part late = part_0, early = part_1, tail = part_1;
    late.commit = true;
    early.commit = false;
    early.n_counts = early.n_ends = early.n_owners = early.n_firsts = 2;
    tail.first_expert = 2;
    tail.counts[0] = tail.ends[0] = 1;
    tail.owners[0] = 1;
    tail.firsts[0] = 0;
    tail.n_counts = tail.n_ends = tail.n_owners = tail.n_firsts = 1;
    tail.commit = false;
    for (uint64_t epoch = 4; epoch < 7; epoch++) { /* the receiver serves one epoch after the other */
        late.epoch = early.epoch = tail.epoch = epoch;
        MUST(feed(r, &tail, &map));
        assert_null(map);
        MUST(feed(r, &early, &map));
        assert_null(map);
        MUST(feed(r, &late, &map));
        assert_non_null(map);
        assert_int_equal(pot_map_epoch(map), epoch);
        assert_true(pot_map_owns(map, 1, 1, 0, 0, 4) && pot_map_owns(map, 0, 1, 1, 0, 4) &&
                    pot_map_owns(map, 0, 1, 2, 0, 1));
        pot_map_free(map);
    }
    pot_map_receiver_free(r);
    pot_map_receiver_free(NULL);
}

static void map_parts_that_lie_are_refused(void **state) {
    (void)state;
    static const struct {
        map_part part;
        const char *words;
    } cases[] = {
        {{.epoch = 4, .layer = 1, .commit = true}, "map: layer 1 expert 0: chunk 0 is missing"}, /* commit early */
        {{.epoch = 5, .layer = 1}, "a Map frame of epoch 5 while epoch 4 is incomplete"},
        {{.epoch = 4, .layer = 1, .counts = {1}, .ends = {4}, .owners = {1}, .n_counts = 1, .n_ends = 1, .n_firsts = 1},
         "a Map frame with 1 ranges, 0 owners and 1 first owners"},
        {{.epoch = 4, .layer = 1, .counts = {1}, .ends = {4}, .owners = {1}, .n_counts = 1, .n_ends = 1, .n_owners = 1},
         "a Map frame with 1 ranges, 1 owners and 0 first owners"},
        {{.epoch = 4, .layer = 1, .counts = {2}, .ends = {4}, .owners = {1}, WHOLE(1)},
         "counts more ranges than the 1 it has"},
        {{.epoch = 4, .layer = 1, .counts = {0xffffffff}, .ends = {4}, .owners = {1}, WHOLE(1)},
         "counts more ranges than the 1 it has"},
        {{.epoch = 4,
          .layer = 1,
          .counts = {1},
          .ends = {2, 4},
          .owners = {1, 1},
          .n_counts = 1,
          .n_ends = 2,
          .n_owners = 2,
          .n_firsts = 2},
         "counts 1 ranges and has 2"},
        {{.epoch = 4,
          .layer = 1,
          .counts = {0, 1},
          .ends = {4},
          .owners = {1},
          .n_counts = 2,
          .n_ends = 1,
          .n_owners = 1,
          .n_firsts = 1},
         "from expert 0 on has no ranges for its expert 0"},
        {{.epoch = 4, .layer = 1, .first_expert = UINT32_MAX, .counts = {1}, .ends = {4}, .owners = {1}, WHOLE(1)},
         "map: layer 1 has no expert 4294967295"},
        {{.epoch = 4, .layer = 2, .counts = {1}, .ends = {4}, .owners = {1}, WHOLE(1)}, "map: layer 2 has no expert 0"},
        {{.epoch = 4,
          .layer = 1,
          .counts = {2},
          .ends = {3, 3},
          .owners = {1, 1},
          .n_counts = 1,
          .n_ends = 2,
          .n_owners = 2,
          .n_firsts = 2},
         "map: layer 1 expert 0: chunks 3 to 3 of 4"},
        {{.epoch = 4, .layer = 1, .counts = {1}, .ends = {5}, .owners = {1}, WHOLE(1)},
         "map: layer 1 expert 0: chunks 0 to 5 of 4"},
        {{.epoch = 4, .layer = 1, .counts = {1}, .ends = {4}, .owners = {4}, .firsts = {2}, WHOLE(1)},
         "owners 4 with worker 2 first, there are 2 workers"},
        {{.epoch = 4, .layer = 1, .counts = {1}, .ends = {4}, .owners = {0}, WHOLE(1)}, "owners 0 with worker 0 first"},
        {{.epoch = 4, .layer = 0, .counts = {1}, .ends = {3}, .owners = {2}, .firsts = {1}, WHOLE(1), .commit = true},
         "map: layer 0 expert 0: chunk 0 is there twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        pot_map_receiver *r = pot_map_receiver_create(two, 2, 2);
        pot_map *map;
        MUST(feed(r, &part_0, &map));
        pot_status s = feed(r, &cases[i].part, &map);
        if (s != POT_FORMAT || !strstr(err.text, cases[i].words))
            fail_msg("case %zu: %s `%s`, expected `%s`", i, pot_status_name(s), err.text, cases[i].words);
        assert_null(map);
        /* What was there before is gone with it; a whole epoch from the start is fine. */
        MUST(feed(r, &part_0, &map));
        MUST(feed(r, &part_1, &map));
        assert_non_null(map);
        pot_map_free(map);
        pot_map_receiver_free(r);
    }
}

static void map_parts_without_end_are_refused(void **state) {
    (void)state;
    pot_map_receiver *r = pot_map_receiver_create(two, 2, 2);
    pot_map *map;
    for (int i = 0; i < 12; i++) MUST(feed(r, &part_0, &map));
    assert_int_equal(feed(r, &part_0, &map), POT_FORMAT);
    assert_string_equal(err.text, "map: more ranges than the 12 chunks that there are");
    pot_map_receiver_free(r);
}

static void receiver_takes_maps_only(void **state) {
    (void)state;
    static frame f;
    pot_map_receiver *r = pot_map_receiver_create(two, 2, 2);
    pot_map *map;
    begin(&f, POT_CONTROL_READY);
    assert_int_equal(pot_map_receiver_add(r, &map, f.bytes, f.n, &err), POT_FORMAT);
    assert_string_equal(err.text, "a control frame of type 4 where a Map was expected");
    put_part(&f, &part_1);
    for (f.n--; f.n > 0; f.n--) { /* cut anywhere: refused, or a part that is there so far */
        assert_true(pot_map_receiver_add(r, &map, f.bytes, f.n, &err) == POT_OK || err.status == POT_FORMAT);
        assert_null(map);
    }
    pot_map_receiver_free(r);
}

/* ---- the heartbeat ------------------------------------------------------------------------------------------------------------ */

static pot_heartbeat next_beat(void) {
    pot_control c;
    pot_message *m = take();
    MUST(pot_control_parse(&c, m->bytes, m->n_bytes, &err));
    assert_int_equal(c.type, POT_CONTROL_HEARTBEAT);
    pot_message_release(ends[1], m);
    return c.heartbeat;
}

static void pulse_beats_with_the_latest_counters(void **state) {
    (void)state;
    static pot_pulse_counters counters;
    const uint32_t peer = 1;
    pot_pulse *pulse;
    MUST(pot_pulse_start(&pulse, ends[0], &peer, 1, 1000, &counters, &err));
    for (uint64_t i = 0; i < 20; i++) assert_int_equal(next_beat().sequence, i);
    counters.steps = 7;
    counters.items = 8;
    counters.state = POT_STATE_COMPUTING;
    counters.loaded_bytes = 9;
    counters.total_bytes = 10;
    pot_heartbeat h;
    do h = next_beat();
    while (h.total_bytes == 0); /* those that were on their way */
    assert_true(h.steps == 7 && h.items == 8 && h.state == POT_STATE_COMPUTING && h.loaded_bytes == 9);
    pot_pulse_stop(pulse);
    for (pot_message *m;;) {
        MUST(pot_transport_receive(ends[1], 0, &m, &err));
        if (!m) break;
        pot_message_release(ends[1], m);
    }
    MUST(pot_transport_send(ends[0], 1, pot_transport_message(ends[0], 1), &err)); /* nothing comes behind the stop */
    pot_message_release(ends[1], take());
    expect_nothing_more();
}

static void pulse_stops_in_the_middle_of_its_interval(void **state) {
    (void)state;
    static pot_pulse_counters counters;
    const uint32_t peer = 1;
    pot_pulse *pulse;
    uint64_t start = pot_now_us();
    MUST(pot_pulse_start(&pulse, ends[0], &peer, 1, (uint64_t)3600 * 1000000, &counters, &err));
    assert_int_equal(next_beat().sequence, 0); /* the first one at once */
    pot_pulse_stop(pulse);
    assert_true(pot_now_us() - start < MINUTE_US); /* not after the hour */
    pot_pulse_stop(NULL);
}

static void pulse_outlives_its_peer(void **state) {
    (void)state;
    static pot_pulse_counters counters;
    pot_transport *three[3];
    const uint32_t peers[2] = {1, 2};
    pot_pulse *pulse;
    pot_message *m;
    MUST(pot_transport_mem_create(three, 3, &err));
    MUST(pot_pulse_start(&pulse, three[0], peers, 2, 1000, &counters, &err));
    pot_transport_close(three[1], 0);
    for (int i = 0; i < 5;) { /* the other one still gets its beats */
        MUST(pot_transport_receive(three[2], MINUTE_US, &m, &err));
        assert_non_null(m);
        i += m->kind == POT_MESSAGE_CONTROL;
        pot_message_release(three[2], m);
    }
    pot_pulse_stop(pulse);
    pot_transport_close(three[0], 0);
    pot_transport_close(three[2], 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, open_ends, close_ends)
    const struct CMUnitTest tests[] = {
        TEST(frames_come_back_as_they_were_sent),
        TEST(empty_frames_are_small_and_read_as_zeros),
        TEST(sentence_loses_its_control_characters),
        TEST(frame_heads_are_checked),
        TEST(fields_are_checked),
        TEST(texts_are_checked),
        TEST(lengths_that_lie_are_refused),
        TEST(memory_of_a_frame_has_a_budget),
        TEST(damaged_frames_are_refused_or_read_safely),
        TEST(map_arrives_as_it_was_sent),
        TEST(map_frame_has_the_golden_bytes),
        TEST(map_is_put_together_from_parts_in_any_order),
        TEST(map_parts_that_lie_are_refused),
        TEST(map_parts_without_end_are_refused),
        TEST(receiver_takes_maps_only),
        TEST(pulse_beats_with_the_latest_counters),
        TEST(pulse_stops_in_the_middle_of_its_interval),
        TEST(pulse_outlives_its_peer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
