/* The data plane's bytes: golden messages, layouts, round trips, and what the readers do with messages that are cut, lie or are
 * damaged by a bit.  GOLDEN=renew rewrites tests/golden/wire. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <math.h>

#include "common/mem.h"
#include "kernels/format.h"
#include "kernels/linear.h"
#include "proto/wire.h"

static pot_err err; /* calls write their sentence here */

typedef struct message {
    uint8_t *bytes;
    size_t n;
} message;

/* ---- the two messages of the golden files ------------------------------------------------------------------------------ */

enum { WORK_ROWS = 3, WORK_ITEMS = 5, WORK_HINTS = 3, COLUMNS = 45 };

static const pot_wire_header work_header = {.magic = POT_WIRE_MAGIC,
                                            .version = POT_WIRE_VERSION,
                                            .type = POT_WIRE_WORK,
                                            .layer = 77,
                                            .epoch = 0x0102030405060708,
                                            .request = 0x1112131415161718,
                                            .step = 0x2122232425262728,
                                            .n_rows = WORK_ROWS,
                                            .n_items = WORK_ITEMS,
                                            .n_hints = WORK_HINTS,
                                            .formats = POT_ACT_Q8 | POT_ACT_F32,
                                            .grid = 24,
                                            .columns = COLUMNS};
static const pot_wire_item work_items[WORK_ITEMS] = {
    {.row = 0, .expert = 255, .chunk_begin = 0, .chunk_end = 8, .kind = POT_KIND_FFN, .weight = 0.25f},
    {.row = 1, .expert = 3, .chunk_begin = 2, .chunk_end = 3, .kind = POT_KIND_FFN, .weight = -1.5f},
    {.row = 2, .expert = 256, .chunk_begin = 0, .chunk_end = 4096, .kind = POT_KIND_FFN, .weight = 1.0f},
    {.row = 2,
     .expert = 0x01020304,
     .chunk_begin = 0x0506,
     .chunk_end = 0x0708,
     .kind = POT_KIND_FFN,
     .weight = 1.17549435e-38f},
    {.row = 0, .expert = 0, .chunk_begin = 0, .chunk_end = 1, .kind = POT_KIND_FFN, .weight = 0.0f},
};
static const uint32_t work_hints[WORK_HINTS] = {0, 255, 0x01020304};

static void put_u32(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> 8 * i);
}

static message make_work(void) {
    pot_wire_header h = work_header;
    pot_wire_layout layout;
    pot_wire_work_layout(&layout, &h);
    h.payload_bytes = layout.bytes - 64;
    message m = {pot_alloc(layout.bytes), layout.bytes};
    assert_non_null(m.bytes);
    pot_wire_put_header(m.bytes, &h);
    for (size_t i = 0; i < WORK_ROWS * layout.row_stride; i++) m.bytes[layout.rows + i] = (uint8_t)(7 * i + 1);
    for (size_t i = 0; i < WORK_ITEMS; i++) pot_wire_put_item(m.bytes + layout.items + 24 * i, &work_items[i]);
    for (size_t i = 0; i < WORK_HINTS; i++) put_u32(m.bytes + layout.hints + 4 * i, work_hints[i]);
    return m;
}

enum { SUM_ROWS = 3, SUM_ITEMS = 70, SUM_COLUMNS = 5, SUM_MOVED = 3 };
static const uint32_t moved_items[SUM_MOVED] = {1, 64, 69};
/* Rows 0 and 2 fit int32, row 1 does not. */
static const int64_t sum_rows[SUM_ROWS][SUM_COLUMNS] = {{INT32_MAX, INT32_MIN, 1, -1, 0},
                                                        {INT64_MAX, INT64_MIN, 1, -1, (int64_t)INT32_MAX + 1},
                                                        {0, -2, 0x01020304, -0x01020304, 5}};
static const pot_wire_record sum_record = {.queue_us = 1,
                                           .load_us = 0x01020304,
                                           .compute_us = 3,
                                           .vram_bytes = 4,
                                           .ram_bytes = 0x0102030405060708,
                                           .disk_bytes = 6};

static message make_sum(void) {
    pot_wire_header h = work_header;
    pot_wire_layout layout;
    h.type = POT_WIRE_SUM;
    h.formats = 1;
    h.n_rows = SUM_ROWS;
    h.n_items = SUM_ITEMS;
    h.columns = SUM_COLUMNS;
    h.n_hints = SUM_MOVED;
    pot_wire_sum_layout(&layout, &h, pot_wire_sum_wide_rows(sum_rows[0], SUM_ROWS, SUM_COLUMNS));
    h.payload_bytes = layout.bytes - 64;
    message m = {pot_alloc(layout.bytes), layout.bytes};
    assert_non_null(m.bytes);
    pot_wire_put_header(m.bytes, &h);
    for (uint32_t i = 0; i < SUM_ITEMS; i++)
        if (i != 1 && i != 64 && i != 69) m.bytes[layout.covered + i / 8] |= (uint8_t)(1u << i % 8);
    size_t put =
        pot_wire_sum_rows_put(m.bytes + layout.rows, m.bytes + layout.wide, sum_rows[0], SUM_ROWS, SUM_COLUMNS);
    assert_int_equal(put, layout.record - layout.rows);
    pot_wire_put_record(m.bytes + layout.record, &sum_record);
    for (size_t i = 0; i < SUM_MOVED; i++) put_u32(m.bytes + layout.moved + 4 * i, moved_items[i]);
    return m;
}

static void expect_golden(const char *name, const message *m) {
    char path[128];
    const char *golden = getenv("GOLDEN");
    snprintf(path, sizeof path, "tests/golden/wire/%s.bin", name);
    FILE *f = fopen(path, golden && strcmp(golden, "renew") == 0 ? "wb" : "rb");
    if (!f) fail_msg("%s cannot be opened", path);
    if (golden && strcmp(golden, "renew") == 0) {
        assert_int_equal(fwrite(m->bytes, 1, m->n, f), m->n);
    } else {
        uint8_t *want = pot_alloc(m->n + 1);
        assert_int_equal(fread(want, 1, m->n + 1, f), m->n);
        assert_memory_equal(m->bytes, want, m->n);
        pot_free(want);
    }
    fclose(f);
}

static void messages_have_the_golden_bytes(void **state) {
    (void)state;
    message work = make_work(), sum = make_sum();
    expect_golden("work", &work);
    expect_golden("sum", &sum);
    pot_free(work.bytes);
    pot_free(sum.bytes);
}

/* ---- round trips -------------------------------------------------------------------------------------------------------- */

static void expect_same_header(const pot_wire_header *a, const pot_wire_header *b) {
    assert_int_equal(a->magic, b->magic);
    assert_int_equal(a->version, b->version);
    assert_int_equal(a->flags, b->flags);
    assert_int_equal(a->layer, b->layer);
    assert_int_equal(a->epoch, b->epoch);
    assert_int_equal(a->request, b->request);
    assert_int_equal(a->step, b->step);
    assert_int_equal(a->grid, b->grid);
}

static void work_comes_back_as_it_was_put(void **state) {
    (void)state;
    message m = make_work();
    pot_wire_work work;
    assert_int_equal(pot_wire_work_parse(&work, m.bytes, m.n, &err), POT_OK);
    expect_same_header(&work.header, &work_header);
    assert_int_equal(work.header.n_rows, WORK_ROWS);
    assert_int_equal(work.header.n_items, WORK_ITEMS);
    assert_int_equal(work.header.n_hints, WORK_HINTS);
    assert_int_equal(work.header.formats, POT_ACT_Q8 | POT_ACT_F32);
    assert_int_equal(work.header.columns, COLUMNS);
    assert_int_equal(work.header.payload_bytes, m.n - 64);
    assert_ptr_equal(work.rows, m.bytes + 64);
    assert_int_equal(work.rows[1], 8);
    for (uint32_t i = 0; i < WORK_ITEMS; i++) {
        pot_wire_item item;
        pot_wire_item_get(&item, &work, i);
        assert_memory_equal(&item, &work_items[i], sizeof item);
    }
    pot_free(m.bytes);
}

static void sum_comes_back_as_it_was_put(void **state) {
    (void)state;
    message m = make_sum();
    pot_wire_sum sum;
    int64_t acc[SUM_ROWS][SUM_COLUMNS] = {{0}};
    assert_int_equal(pot_wire_sum_parse(&sum, m.bytes, m.n, &err), POT_OK);
    expect_same_header(&sum.header, &work_header);
    assert_memory_equal(&sum.record, &sum_record, sizeof sum_record);
    for (uint32_t i = 0; i < SUM_ITEMS; i++)
        assert_int_equal(pot_wire_bit(sum.covered, i), i != 1 && i != 64 && i != 69);
    for (uint32_t i = 0; i < SUM_ROWS; i++) assert_int_equal(pot_wire_bit(sum.wide, i), i == 1);
    assert_int_equal(sum.moved[4], 64);
    pot_wire_sum_rows_add(acc[0], NULL, &sum);
    assert_memory_equal(acc, sum_rows, sizeof acc);
    pot_free(m.bytes);
}

/* ---- layouts ------------------------------------------------------------------------------------------------------------- */

static void rows_have_the_documented_sizes(void **state) {
    (void)state;
    static const struct {
        unsigned formats;
        uint32_t columns;
        size_t bytes;
    } cases[] = {
        {POT_ACT_Q8, 1, 64},
        {POT_ACT_Q8, 32, 64},
        {POT_ACT_Q8, 33, 128},
        {POT_ACT_Q8, 6144, 6912},
        {POT_ACT_F32, 1, 128},
        {POT_ACT_F32, 45, 256},
        {POT_ACT_F32, 6144, 24576},
        {POT_ACT_Q8 | POT_ACT_F32, 45, 384},
        {POT_ACT_Q8 | POT_ACT_F32, 6144, 31488},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (pot_wire_row_bytes(cases[i].formats, cases[i].columns) != cases[i].bytes)
            fail_msg("formats %u, %u columns: %zu bytes, expected %zu", cases[i].formats, cases[i].columns,
                     pot_wire_row_bytes(cases[i].formats, cases[i].columns), cases[i].bytes);
}

static void layouts_are_aligned_and_follow_each_other(void **state) {
    (void)state;
    static const uint32_t counts[] = {1, 2, 63, 64, 65, 4096}, columns[] = {1, 5, 32, 160, 6144, 1 << 20};
    for (int r = 0; r < 6; r++)
        for (int k = 0; k < 6; k++)
            for (uint16_t hints = 0; hints < 4; hints++) {
                pot_wire_header h = {.n_rows = counts[r],
                                     .n_items = counts[5 - r],
                                     .n_hints = hints,
                                     .formats = POT_ACT_Q8,
                                     .columns = columns[k]};
                pot_wire_layout l;
                pot_wire_work_layout(&l, &h);
                assert_int_equal(l.rows, 64);
                assert_int_equal(l.row_stride % 64, 0);
                assert_int_equal(l.items, 64 + counts[r] * l.row_stride);
                assert_int_equal(l.hints, l.items + 24 * (size_t)h.n_items);
                assert_int_equal(l.bytes, l.hints + (4 * (size_t)hints + 7) / 8 * 8);
                for (uint32_t wide = 0; wide <= counts[r]; wide += counts[r]) {
                    size_t narrow_row = ((size_t)columns[k] * 4 + 7) / 8 * 8;
                    pot_wire_sum_layout(&l, &h, wide);
                    assert_int_equal(l.covered, 64);
                    assert_int_equal(l.wide, 64 + (h.n_items + 63) / 64 * 8);
                    assert_int_equal(l.rows, l.wide + (h.n_rows + 63) / 64 * 8);
                    assert_int_equal(l.record,
                                     l.rows + (counts[r] - wide) * narrow_row + wide * (size_t)columns[k] * 8);
                    assert_int_equal(l.moved, l.record + 40);
                    assert_int_equal(l.bytes, l.moved + (4 * (size_t)hints + 7) / 8 * 8);
                }
            }
}

/* ---- integers ------------------------------------------------------------------------------------------------------------ */

static void row_is_wide_exactly_when_a_value_does_not_fit(void **state) {
    (void)state;
    static const struct {
        int64_t value;
        bool wide;
    } cases[] = {
        {0, false},
        {1, false},
        {-1, false},
        {INT32_MAX, false},
        {INT32_MIN, false},
        {(int64_t)INT32_MAX + 1, true},
        {(int64_t)INT32_MIN - 1, true},
        {UINT32_MAX, true},
        {(int64_t)1 << 32, true},
        {INT64_MAX, true},
        {INT64_MIN, true},
        {(int64_t)1 << 62, true},
    };
    for (uint32_t columns = 1; columns <= 9; columns++)
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
            for (uint32_t at = 0; at < columns; at++) {
                int64_t row[9] = {0}, back[9] = {0};
                uint8_t wide[8];
                row[at] = cases[i].value;
                assert_int_equal(pot_wire_sum_wide_rows(row, 1, columns), cases[i].wide);
                size_t bytes = cases[i].wide ? 8 * (size_t)columns : (4 * (size_t)columns + 7) / 8 * 8;
                uint8_t *rows = pot_alloc(bytes); /* exactly, so that a sanitizer sees a byte too many */
                assert_int_equal(pot_wire_sum_rows_put(rows, wide, row, 1, columns), bytes);
                assert_int_equal(wide[0], cases[i].wide);
                pot_wire_sum sum = {.header = {.n_rows = 1, .columns = columns}, .rows = rows, .wide = wide};
                pot_wire_sum_rows_add(back, NULL, &sum);
                assert_memory_equal(row, back, sizeof row);
                pot_free(rows);
            }
}

static void sums_add_up_in_any_order_and_wrap(void **state) {
    (void)state;
    static const int64_t a[3] = {INT64_MAX, INT64_MIN, 5}, b[3] = {1, -1, -7}, c[3] = {INT64_MIN, INT64_MAX, 2};
    static const int64_t *const orders[][3] = {{a, b, c}, {c, b, a}, {b, a, c}};
    static const int64_t want[3] = {0, -2, 0};
    for (int o = 0; o < 3; o++) {
        int64_t acc[3] = {0};
        for (int i = 0; i < 3; i++) {
            uint8_t rows[24], wide[8];
            pot_wire_sum_rows_put(rows, wide, orders[o][i], 1, 3);
            pot_wire_sum sum = {.header = {.n_rows = 1, .columns = 3}, .rows = rows, .wide = wide};
            pot_wire_sum_rows_add(acc, NULL, &sum);
        }
        assert_memory_equal(acc, want, sizeof acc);
    }
}

static void rows_go_where_row_of_says(void **state) {
    (void)state;
    static const uint32_t row_of[SUM_ROWS] = {4, 0, 4};
    int64_t acc[5][SUM_COLUMNS] = {{0}};
    message m = make_sum();
    pot_wire_sum sum;
    assert_int_equal(pot_wire_sum_parse(&sum, m.bytes, m.n, &err), POT_OK);
    pot_wire_sum_rows_add(acc[0], row_of, &sum);
    for (int k = 0; k < SUM_COLUMNS; k++) {
        assert_int_equal(acc[0][k], sum_rows[1][k]);
        assert_int_equal(acc[4][k], sum_rows[0][k] + sum_rows[2][k]);
        assert_int_equal(acc[1][k] | acc[2][k] | acc[3][k], 0);
    }
    pot_free(m.bytes);
}

/* ---- hostile messages ------------------------------------------------------------------------------------------------------ */

static volatile uint64_t sink;

/* Reads whatever a message that was accepted points to; the sanitizers see what lies outside. */
static void read_all(const uint8_t *bytes, size_t n) {
    pot_wire_work work;
    pot_wire_sum sum;
    uint64_t seen = 0;
    if (pot_wire_work_parse(&work, bytes, n, &err) == POT_OK) {
        for (size_t i = 0; i < work.header.n_rows * work.row_stride; i++) seen += work.rows[i];
        for (uint32_t i = 0; i < work.header.n_items; i++) {
            pot_wire_item item;
            pot_wire_item_get(&item, &work, i);
            assert_true(item.row < work.header.n_rows && item.chunk_begin < item.chunk_end && isfinite(item.weight) &&
                        item.kind == POT_KIND_FFN);
        }
        for (uint32_t i = 0; i < 4u * work.header.n_hints; i++) seen += work.hints[i];
    }
    if (pot_wire_sum_parse(&sum, bytes, n, &err) == POT_OK) {
        int64_t *acc = pot_alloc_array((size_t)sum.header.n_rows * sum.header.columns, sizeof *acc);
        assert_non_null(acc);
        pot_wire_sum_rows_add(acc, NULL, &sum);
        seen += (uint64_t)acc[0];
        pot_free(acc);
        uint32_t covered = 0;
        for (uint32_t i = 0; i < sum.header.n_items; i++) covered += (uint32_t)pot_wire_bit(sum.covered, i);
        assert_int_equal(covered + sum.header.n_hints, sum.header.n_items);
        for (uint32_t i = 0; i < 4u * sum.header.n_hints; i++) seen += sum.moved[i];
    }
    sink = seen;
}

static uint8_t *exact_copy(const uint8_t *bytes, size_t n) {
    uint8_t *copy = malloc(n ? n : 1); /* plain malloc: no room behind it */
    assert_non_null(copy);
    if (n) memcpy(copy, bytes, n);
    return copy;
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    message all[2] = {make_work(), make_sum()};
    for (int k = 0; k < 2; k++) {
        for (size_t n = 0; n < all[k].n; n++) {
            pot_wire_work work;
            pot_wire_sum sum;
            uint8_t *cut = exact_copy(all[k].bytes, n);
            for (int honest = 0; honest < 2; honest++) {
                if (honest && n >= 64) /* the header agrees with the length, the counts do not */
                    for (int i = 0; i < 8; i++) cut[56 + i] = (uint8_t)((n - 64) >> 8 * i);
                assert_int_equal(pot_wire_work_parse(&work, cut, n, &err), POT_FORMAT);
                assert_int_equal(pot_wire_sum_parse(&sum, cut, n, &err), POT_FORMAT);
            }
            free(cut);
        }
        uint8_t *longer = pot_alloc(all[k].n + 8);
        memcpy(longer, all[k].bytes, all[k].n);
        pot_wire_work work;
        pot_wire_sum sum;
        assert_int_equal(pot_wire_work_parse(&work, longer, all[k].n + 8, &err), POT_FORMAT);
        assert_int_equal(pot_wire_sum_parse(&sum, longer, all[k].n + 8, &err), POT_FORMAT);
        pot_free(longer);
        pot_free(all[k].bytes);
    }
}

static void every_flipped_bit_is_refused_or_read_safely(void **state) {
    (void)state;
    message all[2] = {make_work(), make_sum()};
    for (int k = 0; k < 2; k++) {
        uint8_t *copy = exact_copy(all[k].bytes, all[k].n);
        for (size_t bit = 0; bit < all[k].n * 8; bit++) {
            copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
            read_all(copy, all[k].n);
            copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        /* In pairs within the header, where counts could make up for each other. */
        for (size_t a = 40 * 8; a < 64 * 8; a++)
            for (size_t b = a + 1; b < 64 * 8; b++) {
                copy[a / 8] ^= (uint8_t)(1u << a % 8);
                copy[b / 8] ^= (uint8_t)(1u << b % 8);
                read_all(copy, all[k].n);
                copy[a / 8] ^= (uint8_t)(1u << a % 8);
                copy[b / 8] ^= (uint8_t)(1u << b % 8);
            }
        assert_memory_equal(copy, all[k].bytes, all[k].n);
        free(copy);
        pot_free(all[k].bytes);
    }
}

typedef struct edit {
    size_t at;
    int n;
    uint64_t value;
    const char *words;
} edit;

static void expect_refusal(const message *m, const edit *e, bool is_work) {
    pot_wire_work work;
    pot_wire_sum sum;
    uint8_t *copy = exact_copy(m->bytes, m->n);
    for (int i = 0; i < e->n; i++) copy[e->at + (size_t)i] = (uint8_t)(e->value >> 8 * i);
    pot_status s = is_work ? pot_wire_work_parse(&work, copy, m->n, &err) : pot_wire_sum_parse(&sum, copy, m->n, &err);
    if (s != POT_FORMAT || !strstr(err.text, e->words))
        fail_msg("%zu := %llu: %s `%s`, expected `%s`", e->at, (unsigned long long)e->value, pot_status_name(s),
                 err.text, e->words);
    free(copy);
}

static void work_is_refused_with_what_is_wrong(void **state) {
    (void)state;
    message m = make_work();
    size_t items = 64 + WORK_ROWS * pot_wire_row_bytes(POT_ACT_Q8 | POT_ACT_F32, COLUMNS);
    const edit edits[] = {
        {0, 4, 0x50545448, "begins with 50545448, expected 4b4c5450: not potluck's"},
        {4, 2, 2, "version 2, this build reads 1"},
        {6, 2, 3, "type 3, known are 1 (WORK) and 2 (SUM)"},
        {6, 2, 2, "type 2 where type 1 was expected"},
        {8, 4, 0x80000000, "flags 80000000, version 1 has none"},
        {40, 4, 0, "0 rows of 45 columns and 5 items; at most 4096, 1048576 and 1048576"},
        {40, 4, 4097, "4097 rows"},
        {44, 4, 0, "0 items"},
        {44, 4, (1 << 20) + 1, "1048577 items"},
        {44, 4, 6, "its counts need"},
        {48, 2, 4097, "and 4097 hints"},
        {48, 2, 5, "its counts need"},
        {50, 1, 0, "row formats 0"},
        {50, 1, 4, "row formats 4"},
        {50, 1, POT_ACT_Q8, "its counts need"},
        {51, 1, 63, "grid 63, possible are 0 to 62"},
        {51, 1, 0xff, "grid -1, possible are 0 to 62"},
        {52, 4, 0, "0 columns"},
        {52, 4, (1 << 20) + 1, "1048577 columns"},
        {52, 4, 65, "its counts need"},
        {56, 8, 1, "says that it carries 1 bytes and has"},
        {56, 8, UINT64_MAX, "says that it carries 18446744073709551615 bytes"},
        {items, 4, 3, "item 0 is for row 3 of 3"},
        {items + 24 + 8, 2, 3, "item 1 has chunks 3 to 3"},
        {items + 24 + 10, 2, 0, "item 1 has chunks 2 to 0"},
        {items + 48 + 12, 2, 2, "item 2 is of kind 2, this build computes kind 1"},
        {items + 48 + 14, 2, 1, "item 2 has a weight that is not finite or uses reserved bytes"},
        {items + 72 + 16, 4, 0x7f800000, "item 3 has a weight that is not finite"},
        {items + 72 + 16, 4, 0xffc00000, "item 3 has a weight that is not finite"},
        {items + 96 + 20, 4, 1, "item 4 has a weight that is not finite or uses reserved bytes"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) expect_refusal(&m, &edits[i], true);
    pot_free(m.bytes);
}

static void sum_is_refused_with_what_is_wrong(void **state) {
    (void)state;
    enum { COVERED = 64, WIDE = COVERED + 16, RECORD = WIDE + 8 + 24 + 40 + 24, MOVED = RECORD + 40 };
    message m = make_sum();
    const edit edits[] = {
        {6, 2, 1, "type 1 where type 2 was expected"},
        {50, 1, 2, "row encoding 2, this build reads 1"},
        {50, 1, 0, "row encoding 0"},
        {44, 4, 1 << 20, "its counts need"},
        {44, 4, 71, "covers 67 items and lists 3 as moved, of 71"},
        {44, 4, 69, "lists 3 as moved, of 69"},
        {48, 2, 2, "its counts need"},
        {48, 2, 4, "covers 67 items and lists 4 as moved, of 70"},
        {48, 2, 65535, "its counts need"},
        {COVERED, 1, 0xff, "covers 68 items and lists 3"},
        {COVERED, 1, 0xf9, "covers 66 items and lists 3"},
        {COVERED + 15, 1, 0x80, "marks item 127 of 70"},
        {COVERED + 8, 1, 0x7e, "marks item 70 of 70"},
        {WIDE, 1, 0, "its counts need"},
        {WIDE, 1, 3, "its counts need"},
        {WIDE, 1, 8, "marks row 3 of 3"},
        {RECORD + 12, 4, 1, "uses the record's reserved bytes"},
        {MOVED, 4, 70, "lists item 70 of 70 as moved"},
        {MOVED, 4, 0, "lists item 0 of 70 as moved, which is covered or out of order"},
        {MOVED + 4, 4, 1, "lists item 1 of 70 as moved, which is covered or out of order"},
        {MOVED + 8, 4, 64, "lists item 64 of 70 as moved, which is covered or out of order"},
        {MOVED + 4, 4, 69, "lists item 69 of 70 as moved"},
    };
    for (size_t i = 0; i < sizeof edits / sizeof edits[0]; i++) expect_refusal(&m, &edits[i], false);
    pot_free(m.bytes);
}

/* The places that docs/protocol.md names: 40 columns are two blocks, so codes at 0, scales at 64, values at 128. */
static void row_lies_where_the_page_says(void **state) {
    (void)state;
    int8_t codes[64];
    float scales[2] = {0.5f, -3}, values[64];
    for (int i = 0; i < 64; i++) {
        codes[i] = (int8_t)(i * 5 - 128);
        values[i] = (float)i / 3;
    }
    const pot_act_row row = {.codes = codes, .scales = scales, .values = values};
    _Alignas(64) uint8_t bytes[128 + sizeof values];
    memset(bytes, 0xee, sizeof bytes);
    assert_int_equal(pot_wire_row_bytes(POT_ACT_Q8 | POT_ACT_F32, 40), sizeof bytes);
    pot_wire_put_row(bytes, &row, POT_ACT_Q8 | POT_ACT_F32, 40);
    assert_memory_equal(bytes, codes, sizeof codes);
    assert_memory_equal(bytes + 64, scales, sizeof scales);
    for (size_t i = 64 + sizeof scales; i < 128; i++) assert_int_equal(bytes[i], 0);
    assert_memory_equal(bytes + 128, values, sizeof values);
    pot_act_row got;
    pot_wire_row_get(&got, bytes, POT_ACT_Q8 | POT_ACT_F32, 40);
    assert_ptr_equal(got.codes, bytes);
    assert_ptr_equal(got.scales, bytes + 64);
    assert_ptr_equal(got.values, bytes + 128);
    pot_wire_row_get(&got, bytes, POT_ACT_F32, 40);
    assert_null(got.codes);
    assert_ptr_equal(got.values, bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(row_lies_where_the_page_says),
        cmocka_unit_test(messages_have_the_golden_bytes),
        cmocka_unit_test(work_comes_back_as_it_was_put),
        cmocka_unit_test(sum_comes_back_as_it_was_put),
        cmocka_unit_test(rows_have_the_documented_sizes),
        cmocka_unit_test(layouts_are_aligned_and_follow_each_other),
        cmocka_unit_test(row_is_wide_exactly_when_a_value_does_not_fit),
        cmocka_unit_test(sums_add_up_in_any_order_and_wrap),
        cmocka_unit_test(rows_go_where_row_of_says),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(every_flipped_bit_is_refused_or_read_safely),
        cmocka_unit_test(work_is_refused_with_what_is_wrong),
        cmocka_unit_test(sum_is_refused_with_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
