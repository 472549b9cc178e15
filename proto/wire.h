/* The data plane: one WORK message per worker, layer and step; one SUM message back.  Little-endian, versioned, bounds-checked;
 * golden bytes in tests/golden/wire.  docs/protocol.md is the page for other implementations.
 *
 * A message is a 64-byte header and a payload whose sections start on 8-byte boundaries (rows on 64):
 *
 *   WORK  rows     n_rows x row_bytes: [q8: codes int8 blocks*32, scales f32 blocks][f32: values f32 blocks*32], by `formats`
 *         items    n_items x pot_wire_item (24 bytes)
 *         hints    n_hints x u32: experts that the router expects in the next layer
 *   SUM   covered  bitmap of the WORK's items that are in the sums, ceil(n_items/64) u64
 *         wide     bitmap of the rows that are int64, ceil(n_rows/64) u64
 *         rows     per row hidden x i32 or i64, each row padded to 8 bytes
 *         record   pot_wire_record
 *         moved    n_hints x u32, ascending: items that this worker does not own (the header's n_hints counts them);
 *                  every item is either covered or moved
 *
 * Padding is sent as zero and not looked at.  A SUM echoes epoch, request, step, layer, rows, items, grid of its WORK.  Whoever reads a message checks it with
 * pot_wire_work_parse / pot_wire_sum_parse before touching the payload; the views borrow the message's bytes.
 */
#ifndef POT_PROTO_WIRE_H
#define POT_PROTO_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"
#include "kernels/kernels.h"

enum {
    POT_WIRE_MAGIC = 0x4b4c5450, /* "PTLK" */
    POT_WIRE_VERSION = 1,
    POT_WIRE_MAX_ROWS = 4096,
    POT_WIRE_MAX_ITEMS = 1 << 20,
    POT_WIRE_MAX_HINTS = 4096
};
/* Sizes on the wire, and how a SUM's rows are encoded (int32 or int64 each). */
enum { POT_WIRE_HEADER_BYTES = 64, POT_WIRE_ITEM_BYTES = 24, POT_WIRE_ROWS_INT = 1 };
/* The largest payload that either side accepts. */
#define POT_WIRE_MAX_PAYLOAD ((uint64_t)1 << 30)

/* Numbers are never reused.  3 and 4 are reserved for sums between workers and for work that is passed on. */
typedef enum pot_wire_type {
    POT_WIRE_WORK = 1,
    POT_WIRE_SUM = 2,
    POT_WIRE_REDUCE = 3,
    POT_WIRE_CHAIN = 4
} pot_wire_type;

/* Item kinds: 2 and 3 are reserved for columns of a linear layer (order-free sum) and rows of one (concatenation). */
typedef enum pot_wire_kind { POT_KIND_FFN = 1, POT_KIND_LINEAR_COLUMNS = 2, POT_KIND_LINEAR_ROWS = 3 } pot_wire_kind;

typedef struct pot_wire_header {
    uint32_t magic;
    uint16_t version;
    uint16_t type;
    uint32_t flags; /* 0 in version 1 */
    uint32_t layer;
    uint64_t epoch; /* of the map that the sender dispatched by */
    uint64_t request;
    uint64_t step;
    uint32_t n_rows;
    uint32_t n_items;
    uint16_t n_hints; /* SUM: moved items */
    uint8_t formats;  /* POT_ACT_Q8 | POT_ACT_F32: what a row carries; SUM: the row encodings (1 = int32/int64) */
    int8_t grid;      /* G */
    uint32_t columns; /* hidden size */
    uint64_t payload_bytes;
} pot_wire_header; /* in host order here; 64 bytes little-endian on the wire */

typedef struct pot_wire_item {
    uint32_t row, expert;
    uint16_t chunk_begin, chunk_end;
    uint16_t kind, reserved;
    float weight;
    uint32_t reserved2;
} pot_wire_item;

typedef struct pot_wire_record {
    uint32_t queue_us, load_us, compute_us, reserved;
    uint64_t vram_bytes, ram_bytes, disk_bytes;
} pot_wire_record;

/* Sizes, so that a sender asks for one buffer and fills the sections in place. */
typedef struct pot_wire_layout {
    size_t rows, row_stride;             /* offsets from the start of the message (header included) */
    size_t items, hints;                 /* WORK */
    size_t covered, wide, record, moved; /* SUM */
    size_t bytes;                        /* whole message */
} pot_wire_layout;
void pot_wire_work_layout(pot_wire_layout *out, const pot_wire_header *h);
/* `wide_rows`: how many rows are int64.  Row offsets are not equal then: rows follow in order, each 8-byte padded. */
void pot_wire_sum_layout(pot_wire_layout *out, const pot_wire_header *h, uint32_t wide_rows);

void pot_wire_put_header(uint8_t *message, const pot_wire_header *h);
void pot_wire_put_item(uint8_t *at, const pot_wire_item *item);
void pot_wire_put_record(uint8_t *at, const pot_wire_record *record);

/* Bytes of one activation row for `columns` in the given formats; a multiple of 64. */
size_t pot_wire_row_bytes(unsigned formats, uint32_t columns);
/* Writes a row in the given forms, or shows where its parts lie in a message, which is computed with in place. */
void pot_wire_put_row(uint8_t *at, const pot_act_row *row, unsigned formats, uint32_t columns);
void pot_wire_row_get(pot_act_row *out, const uint8_t *at, unsigned formats, uint32_t columns);

typedef struct pot_wire_work {
    pot_wire_header header;
    const uint8_t *rows;
    size_t row_stride;
    const uint8_t *items, *hints;
} pot_wire_work;
typedef struct pot_wire_sum {
    pot_wire_header header;
    const uint8_t *covered, *wide, *rows, *moved;
    pot_wire_record record;
} pot_wire_sum;

/* Header fields, section sizes against the message's length, every item's row, kind, chunk range order and weight (finite),
 * reserved fields 0.  FORMAT with what was found and expected. */
pot_status pot_wire_work_parse(pot_wire_work *out, const uint8_t *message, size_t bytes, pot_err *err);
pot_status pot_wire_sum_parse(pot_wire_sum *out, const uint8_t *message, size_t bytes, pot_err *err);
pot_status pot_wire_header_parse(pot_wire_header *out, const uint8_t *message, size_t bytes, pot_err *err);
void pot_wire_item_get(pot_wire_item *out, const pot_wire_work *work, uint32_t index);
uint32_t pot_wire_hint_get(const pot_wire_work *work, uint32_t index); /* any number: not checked against a model */
void pot_wire_put_hint(uint8_t *message, const pot_wire_layout *layout, uint32_t index, uint32_t expert);

static inline int pot_wire_bit(const uint8_t *bitmap, uint32_t i) { return bitmap[i / 8] >> (i % 8) & 1; }

/* Encodes sums [n_rows][columns] into the rows section: int32 where a row fits, else int64; sets `wide`.  Returns the bytes written. */
size_t pot_wire_sum_rows_put(uint8_t *rows, uint8_t *wide, const int64_t *sums, uint32_t n_rows, uint32_t columns);
uint32_t pot_wire_sum_wide_rows(const int64_t *sums, uint32_t n_rows, uint32_t columns); /* how many do not fit */
/* acc[row_of[i]][columns] += row i, as wrapping int64 (order-free); row_of NULL = identity. */
void pot_wire_sum_rows_add(int64_t *acc, const uint32_t *row_of, const pot_wire_sum *sum);

#endif
