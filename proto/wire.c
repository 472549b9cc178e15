/* Fields are put and taken one at a time in little-endian order, so the host's order and padding never reach the wire.  The copies of
 * constant length become plain loads and stores, which the loops over rows need: byte by byte gcc 12 took 11 us to add a row of 6,144
 * int32 sums and 19 us for int64, instead of 4 and 2. */
#include "proto/wire.h"

#include <endian.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "kernels/format.h"
#include "kernels/linear.h"

enum { RECORD_BYTES = 40 };

/* ---- fields ---------------------------------------------------------------------------------------------------------- */

static inline void put(uint8_t *at, uint64_t value, size_t bytes) {
    uint64_t little = htole64(value);
    memcpy(at, &little, bytes);
}

static inline uint64_t get(const uint8_t *at, size_t bytes) {
    uint64_t little = 0;
    memcpy(&little, at, bytes);
    return le64toh(little);
}

static size_t up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

void pot_wire_put_header(uint8_t *m, const pot_wire_header *h) {
    put(m, h->magic, 4);
    put(m + 4, h->version, 2);
    put(m + 6, h->type, 2);
    put(m + 8, h->flags, 4);
    put(m + 12, h->layer, 4);
    put(m + 16, h->epoch, 8);
    put(m + 24, h->request, 8);
    put(m + 32, h->step, 8);
    put(m + 40, h->n_rows, 4);
    put(m + 44, h->n_items, 4);
    put(m + 48, h->n_hints, 2);
    put(m + 50, h->formats, 1);
    put(m + 51, (uint8_t)h->grid, 1);
    put(m + 52, h->columns, 4);
    put(m + 56, h->payload_bytes, 8);
}

static void get_header(pot_wire_header *h, const uint8_t *m) {
    *h = (pot_wire_header){.magic = (uint32_t)get(m, 4),
                           .version = (uint16_t)get(m + 4, 2),
                           .type = (uint16_t)get(m + 6, 2),
                           .flags = (uint32_t)get(m + 8, 4),
                           .layer = (uint32_t)get(m + 12, 4),
                           .epoch = get(m + 16, 8),
                           .request = get(m + 24, 8),
                           .step = get(m + 32, 8),
                           .n_rows = (uint32_t)get(m + 40, 4),
                           .n_items = (uint32_t)get(m + 44, 4),
                           .n_hints = (uint16_t)get(m + 48, 2),
                           .formats = m[50],
                           .grid = (int8_t)m[51],
                           .columns = (uint32_t)get(m + 52, 4),
                           .payload_bytes = get(m + 56, 8)};
}

void pot_wire_put_item(uint8_t *at, const pot_wire_item *item) {
    uint32_t weight;
    memcpy(&weight, &item->weight, sizeof weight);
    put(at, item->row, 4);
    put(at + 4, item->expert, 4);
    put(at + 8, item->chunk_begin, 2);
    put(at + 10, item->chunk_end, 2);
    put(at + 12, item->kind, 2);
    put(at + 14, item->reserved, 2);
    put(at + 16, weight, 4);
    put(at + 20, item->reserved2, 4);
}

uint32_t pot_wire_hint_get(const pot_wire_work *work, uint32_t index) {
    return (uint32_t)get(work->hints + (size_t)index * 4, 4);
}

void pot_wire_put_hint(uint8_t *message, const pot_wire_layout *layout, uint32_t index, uint32_t expert) {
    put(message + layout->hints + (size_t)index * 4, expert, 4);
}

void pot_wire_item_get(pot_wire_item *out, const pot_wire_work *work, uint32_t index) {
    const uint8_t *at = work->items + (size_t)index * POT_WIRE_ITEM_BYTES;
    uint32_t weight = (uint32_t)get(at + 16, 4);
    *out = (pot_wire_item){.row = (uint32_t)get(at, 4),
                           .expert = (uint32_t)get(at + 4, 4),
                           .chunk_begin = (uint16_t)get(at + 8, 2),
                           .chunk_end = (uint16_t)get(at + 10, 2),
                           .kind = (uint16_t)get(at + 12, 2),
                           .reserved = (uint16_t)get(at + 14, 2),
                           .reserved2 = (uint32_t)get(at + 20, 4)};
    memcpy(&out->weight, &weight, sizeof weight);
}

void pot_wire_put_record(uint8_t *at, const pot_wire_record *r) {
    put(at, r->queue_us, 4);
    put(at + 4, r->load_us, 4);
    put(at + 8, r->compute_us, 4);
    put(at + 12, r->reserved, 4);
    put(at + 16, r->vram_bytes, 8);
    put(at + 24, r->ram_bytes, 8);
    put(at + 32, r->disk_bytes, 8);
}

/* ---- layouts: counts are bounded by the limits of the header, so nothing here overflows ------------------------------- */

_Static_assert(sizeof(size_t) == 8, "the largest message that the limits allow is above 4 GiB");

size_t pot_wire_row_bytes(unsigned formats, uint32_t columns) {
    size_t blocks = pot_blocks(columns), bytes = 0;
    if (formats & POT_ACT_Q8) bytes += blocks * (POT_BLOCK + sizeof(float));
    if (formats & POT_ACT_F32) bytes = up(bytes, 64) + blocks * POT_BLOCK * sizeof(float);
    return up(bytes, 64);
}

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rows are computed with as they lie on the wire, which is little-endian"
#endif

void pot_wire_put_row(uint8_t *at, const pot_act_row *row, unsigned formats, uint32_t columns) {
    size_t blocks = pot_blocks(columns), quantized = pot_wire_row_bytes(formats & POT_ACT_Q8, columns);
    if (formats & POT_ACT_Q8) {
        size_t used = blocks * (POT_BLOCK + sizeof(float));
        memcpy(at, row->codes, blocks * POT_BLOCK);
        memcpy(at + blocks * POT_BLOCK, row->scales, blocks * sizeof(float));
        memset(at + used, 0, quantized - used);
    }
    if (formats & POT_ACT_F32) memcpy(at + quantized, row->values, blocks * POT_BLOCK * sizeof(float));
}

void pot_wire_row_get(pot_act_row *out, const uint8_t *at, unsigned formats, uint32_t columns) {
    size_t blocks = pot_blocks(columns), quantized = pot_wire_row_bytes(formats & POT_ACT_Q8, columns);
    *out = (pot_act_row){0};
    if (formats & POT_ACT_Q8) {
        out->codes = (const int8_t *)at;
        out->scales = (const float *)(const void *)(at + blocks * POT_BLOCK);
    }
    if (formats & POT_ACT_F32) out->values = (const float *)(const void *)(at + quantized);
}

void pot_wire_work_layout(pot_wire_layout *out, const pot_wire_header *h) {
    *out = (pot_wire_layout){.rows = POT_WIRE_HEADER_BYTES, .row_stride = pot_wire_row_bytes(h->formats, h->columns)};
    out->items = out->rows + h->n_rows * out->row_stride;
    out->hints = out->items + (size_t)h->n_items * POT_WIRE_ITEM_BYTES;
    out->bytes = up(out->hints + (size_t)h->n_hints * 4, 8);
}

void pot_wire_sum_layout(pot_wire_layout *out, const pot_wire_header *h, uint32_t wide_rows) {
    size_t narrow = up((size_t)h->columns * 4, 8), wide = (size_t)h->columns * 8;
    *out = (pot_wire_layout){.covered = POT_WIRE_HEADER_BYTES, .row_stride = 0};
    out->wide = out->covered + ((size_t)h->n_items + 63) / 64 * 8;
    out->rows = out->wide + ((size_t)h->n_rows + 63) / 64 * 8;
    out->record = out->rows + (h->n_rows - wide_rows) * narrow + wide_rows * wide;
    out->moved = out->record + RECORD_BYTES;
    out->bytes = up(out->moved + (size_t)h->n_hints * 4, 8);
}

/* ---- reading ----------------------------------------------------------------------------------------------------------- */

enum { MAX_COLUMNS = 1 << 20 };

pot_status pot_wire_header_parse(pot_wire_header *out, const uint8_t *m, size_t bytes, pot_err *err) {
    if (bytes < POT_WIRE_HEADER_BYTES)
        return pot_fail(err, POT_FORMAT, "a data message of %zu bytes, its header alone has 64", bytes);
    pot_wire_header h;
    get_header(&h, m);
    if (h.magic != POT_WIRE_MAGIC)
        return pot_fail(err, POT_FORMAT, "a data message begins with %08" PRIx32 ", expected %08x: not potluck's",
                        h.magic, POT_WIRE_MAGIC);
    if (h.version != POT_WIRE_VERSION)
        return pot_fail(err, POT_FORMAT, "a data message of version %u, this build reads %d", h.version,
                        POT_WIRE_VERSION);
    if (h.type != POT_WIRE_WORK && h.type != POT_WIRE_SUM)
        return pot_fail(err, POT_FORMAT, "a data message of type %u, known are %d (WORK) and %d (SUM)", h.type,
                        POT_WIRE_WORK, POT_WIRE_SUM);
    if (h.flags) return pot_fail(err, POT_FORMAT, "a data message with flags %" PRIx32 ", version 1 has none", h.flags);
    if (h.n_rows == 0 || h.n_rows > POT_WIRE_MAX_ROWS || h.n_items == 0 || h.n_items > POT_WIRE_MAX_ITEMS ||
        h.columns == 0 || h.columns > MAX_COLUMNS)
        return pot_fail(err, POT_FORMAT,
                        "a data message with %" PRIu32 " rows of %" PRIu32 " columns and %" PRIu32
                        " items; at most %d, %d and %d are possible",
                        h.n_rows, h.columns, h.n_items, POT_WIRE_MAX_ROWS, MAX_COLUMNS, POT_WIRE_MAX_ITEMS);
    if (h.grid < 0 || h.grid > 62)
        return pot_fail(err, POT_FORMAT, "a data message with grid %d, possible are 0 to 62", h.grid);
    if (h.payload_bytes > POT_WIRE_MAX_PAYLOAD || h.payload_bytes != bytes - POT_WIRE_HEADER_BYTES)
        return pot_fail(err, POT_FORMAT, "a data message says that it carries %" PRIu64 " bytes and has %zu",
                        h.payload_bytes, bytes - POT_WIRE_HEADER_BYTES);
    *out = h;
    return POT_OK;
}

static pot_status need_type(const pot_wire_header *h, pot_wire_type type, pot_err *err) {
    if (h->type == type) return POT_OK;
    return pot_fail(err, POT_FORMAT, "a data message of type %u where type %d was expected", h->type, type);
}

static pot_status need_bytes(size_t got, size_t want, pot_err *err) {
    if (got == want) return POT_OK;
    return pot_fail(err, POT_FORMAT, "a data message of %zu bytes, its counts need %zu", got, want);
}

static pot_status check_item(const pot_wire_item *item, uint32_t index, uint32_t n_rows, pot_err *err) {
    if (item->row >= n_rows)
        return pot_fail(err, POT_FORMAT, "item %u is for row %" PRIu32 " of %u", index, item->row, n_rows);
    if (item->kind != POT_KIND_FFN)
        return pot_fail(err, POT_FORMAT, "item %u is of kind %u, this build computes kind %d", index, item->kind,
                        POT_KIND_FFN);
    if (item->chunk_begin >= item->chunk_end)
        return pot_fail(err, POT_FORMAT, "item %u has chunks %u to %u", index, item->chunk_begin, item->chunk_end);
    if (item->reserved || item->reserved2 || !isfinite(item->weight))
        return pot_fail(err, POT_FORMAT, "item %u has a weight that is not finite or uses reserved bytes", index);
    return POT_OK;
}

pot_status pot_wire_work_parse(pot_wire_work *out, const uint8_t *m, size_t bytes, pot_err *err) {
    pot_wire_work w = {0};
    pot_status s = pot_wire_header_parse(&w.header, m, bytes, err);
    if (s == POT_OK) s = need_type(&w.header, POT_WIRE_WORK, err);
    if (s != POT_OK) return s;
    if (w.header.formats == 0 || (w.header.formats & ~(POT_ACT_Q8 | POT_ACT_F32)) ||
        w.header.n_hints > POT_WIRE_MAX_HINTS)
        return pot_fail(err, POT_FORMAT, "a WORK message with row formats %u and %u hints", w.header.formats,
                        w.header.n_hints);
    pot_wire_layout layout;
    pot_wire_work_layout(&layout, &w.header);
    s = need_bytes(bytes, layout.bytes, err);
    if (s != POT_OK) return s;
    w.rows = m + layout.rows;
    w.row_stride = layout.row_stride;
    w.items = m + layout.items;
    w.hints = m + layout.hints;
    for (uint32_t i = 0; i < w.header.n_items && s == POT_OK; i++) {
        pot_wire_item item;
        pot_wire_item_get(&item, &w, i);
        s = check_item(&item, i, w.header.n_rows, err);
    }
    if (s == POT_OK) *out = w;
    return s;
}

/* Bits set in the first n; POT_FORMAT when one is set behind them. */
static pot_status count_bits(uint32_t *out, const uint8_t *bitmap, uint32_t n, const char *what, pot_err *err) {
    uint32_t count = 0, padded = (n + 63) / 64 * 64;
    for (uint32_t i = 0; i < padded; i++)
        if (pot_wire_bit(bitmap, i)) {
            if (i >= n) return pot_fail(err, POT_FORMAT, "a SUM message marks %s %u of %u", what, i, n);
            count++;
        }
    *out = count;
    return POT_OK;
}

pot_status pot_wire_sum_parse(pot_wire_sum *out, const uint8_t *m, size_t bytes, pot_err *err) {
    pot_wire_sum sum = {0};
    pot_wire_layout layout;
    uint32_t wide, covered;
    pot_status s = pot_wire_header_parse(&sum.header, m, bytes, err);
    if (s == POT_OK) s = need_type(&sum.header, POT_WIRE_SUM, err);
    if (s != POT_OK) return s;
    const pot_wire_header *h = &sum.header;
    if (h->formats != POT_WIRE_ROWS_INT)
        return pot_fail(err, POT_FORMAT, "a SUM message with row encoding %u, this build reads %d", h->formats,
                        POT_WIRE_ROWS_INT);
    pot_wire_sum_layout(&layout, h, 0);
    if (bytes < layout.rows) return need_bytes(bytes, layout.bytes, err);
    s = count_bits(&covered, m + layout.covered, h->n_items, "item", err);
    if (s == POT_OK) s = count_bits(&wide, m + layout.wide, h->n_rows, "row", err);
    if (s != POT_OK) return s;
    pot_wire_sum_layout(&layout, h, wide);
    s = need_bytes(bytes, layout.bytes, err);
    if (s != POT_OK) return s;
    if (covered + h->n_hints != h->n_items)
        return pot_fail(err, POT_FORMAT, "a SUM message covers %u items and lists %u as moved, of %" PRIu32, covered,
                        h->n_hints, h->n_items);
    sum.covered = m + layout.covered;
    sum.wide = m + layout.wide;
    sum.rows = m + layout.rows;
    sum.moved = m + layout.moved;
    /* Ascending, so that none is there twice: with the count above each item is covered or moved. */
    for (uint32_t i = 0, next = 0; i < h->n_hints; i++) {
        uint32_t item = (uint32_t)get(sum.moved + 4 * (size_t)i, 4);
        if (item < next || item >= h->n_items || pot_wire_bit(sum.covered, item))
            return pot_fail(err, POT_FORMAT,
                            "a SUM message lists item %" PRIu32 " of %" PRIu32
                            " as moved, which is covered or out of order",
                            item, h->n_items);
        next = item + 1;
    }
    const uint8_t *r = m + layout.record;
    sum.record = (pot_wire_record){
        (uint32_t)get(r, 4), (uint32_t)get(r + 4, 4), (uint32_t)get(r + 8, 4), (uint32_t)get(r + 12, 4),
        get(r + 16, 8),      get(r + 24, 8),          get(r + 32, 8)};
    if (sum.record.reserved) return pot_fail(err, POT_FORMAT, "a SUM message uses the record's reserved bytes");
    *out = sum;
    return POT_OK;
}

/* ---- sums ---------------------------------------------------------------------------------------------------------------- */

static bool fits_narrow(const int64_t *row, uint32_t columns) {
    uint64_t outside = 0;
    for (uint32_t i = 0; i < columns; i++) outside |= (uint64_t)(row[i] != (int32_t)row[i]);
    return outside == 0;
}

uint32_t pot_wire_sum_wide_rows(const int64_t *sums, uint32_t n_rows, uint32_t columns) {
    uint32_t wide = 0;
    for (uint32_t i = 0; i < n_rows; i++) wide += !fits_narrow(sums + (size_t)i * columns, columns);
    return wide;
}

size_t pot_wire_sum_rows_put(uint8_t *rows, uint8_t *wide, const int64_t *sums, uint32_t n_rows, uint32_t columns) {
    uint8_t *at = rows;
    memset(wide, 0, ((size_t)n_rows + 63) / 64 * 8);
    for (uint32_t i = 0; i < n_rows; i++, sums += columns) {
        if (fits_narrow(sums, columns)) {
            for (uint32_t k = 0; k < columns; k++, at += 4) put(at, (uint64_t)sums[k], 4);
            if (columns % 2) {
                put(at, 0, 4);
                at += 4;
            }
        } else {
            wide[i / 8] |= (uint8_t)(1u << i % 8);
            for (uint32_t k = 0; k < columns; k++, at += 8) put(at, (uint64_t)sums[k], 8);
        }
    }
    return (size_t)(at - rows);
}

void pot_wire_sum_rows_add(int64_t *acc, const uint32_t *row_of, const pot_wire_sum *sum) {
    uint32_t columns = sum->header.columns;
    const uint8_t *at = sum->rows;
    for (uint32_t i = 0; i < sum->header.n_rows; i++) {
        /* Unsigned: a sum that wraps on the way is still free of order. */
        uint64_t *to = (uint64_t *)acc + (size_t)(row_of ? row_of[i] : i) * columns;
        if (pot_wire_bit(sum->wide, i)) {
            for (uint32_t k = 0; k < columns; k++, at += 8) to[k] += get(at, 8);
        } else {
            for (uint32_t k = 0; k < columns; k++, at += 4) to[k] += (uint64_t)(int64_t)(int32_t)get(at, 4);
            if (columns % 2) at += 4;
        }
    }
}
