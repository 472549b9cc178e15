/* Messages of the data plane: whatever parses must be safe to read through to its end. */
#include "common/mem.h"
#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_SUMS = 1 << 20 };

static volatile uint64_t sink; /* keeps the reads below from being optimised away */

static void read_work(const pot_wire_work *work) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < work->header.n_rows; i++)
        sum += work->rows[i * work->row_stride] + work->rows[(i + 1) * work->row_stride - 1];
    for (uint32_t i = 0; i < work->header.n_items; i++) {
        pot_wire_item item;
        pot_wire_item_get(&item, work, i);
        POT_ASSERT(item.row < work->header.n_rows && item.chunk_begin < item.chunk_end &&
                   item.weight - item.weight == 0);
        sum += item.expert;
    }
    for (uint32_t i = 0; i < 4u * work->header.n_hints; i++) sum += work->hints[i];
    sink = sum;
}

static void read_sum(const pot_wire_sum *sum) {
    uint64_t cells = (uint64_t)sum->header.n_rows * sum->header.columns, seen = sum->record.ram_bytes;
    for (uint32_t i = 0; i < sum->header.n_items; i++) seen += (uint64_t)pot_wire_bit(sum->covered, i);
    for (uint32_t i = 0; i < 4u * sum->header.n_hints; i++) seen += sum->moved[i];
    sink = seen;
    if (cells > MAX_SUMS) return;
    int64_t *acc = pot_alloc_array(cells, sizeof *acc);
    if (acc) pot_wire_sum_rows_add(acc, NULL, sum);
    pot_free(acc);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    pot_err err;
    pot_wire_header header;
    pot_wire_work work;
    pot_wire_sum sum;
    pot_wire_header_parse(&header, data, size, &err);
    if (!pot_wire_work_parse(&work, data, size, &err)) read_work(&work);
    if (!pot_wire_sum_parse(&sum, data, size, &err)) read_sum(&sum);
    return 0;
}
