/* Items name a row, an expert and a range of chunks.  They are spread into (expert, chunk, row) entries and sorted, so that all rows
 * of one chunk form one job and its weights are read once; the jobs go through pot_ffn_run, whose integer sums make order and
 * grouping irrelevant. */
#include "worker/compute.h"

#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/mem.h"
#include "kernels/ffn.h"
#include "kernels/linear.h"
#include "kernels/math.h"
#include "proto/wire.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "rows are computed with as they lie on the wire, which is little-endian"
#endif

typedef struct entry {
    uint32_t expert, chunk, row;
    float weight;
} entry;

struct pot_work {
    const pot_model *model;
    pot_compute compute;
    pot_ffn_scratch scratch;
    uint64_t items;
    /* [row_capacity] */
    pot_act_row *rows;
    int64_t *sums; /* [row_capacity][hidden] */
    uint32_t row_capacity;
    /* [item_capacity]; entries and what jobs point into: [entry_capacity] */
    uint32_t *moved;
    uint8_t *covered; /* bitmap */
    uint32_t item_capacity;
    entry *entries;
    pot_ffn_job *jobs;
    uint32_t *job_rows;
    float *job_weights;
    size_t entry_capacity;
};

pot_status pot_work_create(pot_work **out, const pot_model *model, const pot_compute *compute, pot_err *err) {
    pot_work *w = pot_alloc(sizeof *w);
    if (!w) return pot_fail(err, POT_NO_MEMORY, "no memory for a worker");
    w->model = model;
    w->compute = *compute;
    *out = w;
    return POT_OK;
}

static void free_rows(pot_work *w) {
    pot_free(w->rows);
    pot_free(w->sums);
    w->rows = NULL;
    w->sums = NULL;
    w->row_capacity = 0;
}

static void free_items(pot_work *w) {
    pot_free(w->moved);
    pot_free(w->covered);
    w->moved = NULL;
    w->covered = NULL;
    w->item_capacity = 0;
}

static void free_entries(pot_work *w) {
    pot_free(w->entries);
    pot_free(w->jobs);
    pot_free(w->job_rows);
    pot_free(w->job_weights);
    w->entries = NULL;
    w->jobs = NULL;
    w->job_rows = NULL;
    w->job_weights = NULL;
    w->entry_capacity = 0;
}

void pot_work_free(pot_work *w) {
    if (!w) return;
    free_rows(w);
    free_items(w);
    free_entries(w);
    pot_ffn_scratch_free(&w->scratch);
    pot_free(w);
}

uint64_t pot_work_items(const pot_work *w) { return w->items; }

static bool reserve(pot_work *w, uint32_t rows, uint32_t items, size_t entries) {
    if (rows > w->row_capacity) {
        free_rows(w);
        w->rows = pot_alloc_array(rows, sizeof *w->rows);
        w->sums = pot_alloc_array((size_t)rows * pot_model_config(w->model)->hidden, sizeof *w->sums);
        if (!w->rows || !w->sums) return false;
        w->row_capacity = rows;
    }
    if (items > w->item_capacity) {
        free_items(w);
        w->moved = pot_alloc_array(items, sizeof *w->moved);
        w->covered = pot_alloc_array(((size_t)items + 63) / 64, 8);
        if (!w->moved || !w->covered) return false;
        w->item_capacity = items;
    }
    if (entries > w->entry_capacity) {
        free_entries(w);
        w->entries = pot_alloc_array(entries, sizeof *w->entries);
        w->jobs = pot_alloc_array(entries, sizeof *w->jobs);
        w->job_rows = pot_alloc_array(entries, sizeof *w->job_rows);
        w->job_weights = pot_alloc_array(entries, sizeof *w->job_weights);
        if (!w->entries || !w->jobs || !w->job_rows || !w->job_weights) return false;
        w->entry_capacity = entries;
    }
    return true;
}

/* ---- checking against the model --------------------------------------------------------------------------------------- */

static unsigned forms_needed(const pot_ffn_shape *shape) { return shape ? pot_act_need(shape->gate_up_format) : 0; }

static pot_status check_work(const pot_work *w, const pot_wire_work *work, pot_err *err) {
    const pot_wire_header *h = &work->header;
    uint32_t hidden = pot_model_config(w->model)->hidden;
    if (h->layer >= pot_model_layers(w->model))
        return pot_fail(err, POT_FORMAT, "work for layer %u, the model has %u", h->layer, pot_model_layers(w->model));
    if (h->columns != hidden)
        return pot_fail(err, POT_FORMAT, "work with rows of %u columns, the model's hidden size is %u", h->columns, hidden);
    if (h->grid != pot_model_grid(w->model, h->layer))
        return pot_fail(err, POT_FORMAT, "work for grid %d, the model's is %d", h->grid, pot_model_grid(w->model, h->layer));
    return POT_OK;
}

/* Whether the rows carry what this expert's formats eat, and the expert has such chunks. */
static pot_status check_item(const pot_work *w, const pot_wire_header *h, const pot_wire_item *item, uint32_t index, pot_err *err) {
    const pot_layer_shape *shape = &pot_model_layer_shapes(w->model)[h->layer];
    if (item->expert >= pot_layer_experts(shape) || item->chunk_end > pot_layer_expert_chunks(shape, item->expert))
        return pot_fail(err, POT_FORMAT, "item %u asks for chunks %u to %u of expert %u, which layer %u does not have", index,
                        item->chunk_begin, item->chunk_end, item->expert, h->layer);
    unsigned need = forms_needed(pot_model_expert_shape(w->model, h->layer, item->expert));
    if (need & ~(unsigned)h->formats)
        return pot_fail(err, POT_FORMAT, "rows in forms %u, expert %u of layer %u needs %u", h->formats, item->expert, h->layer, need);
    return POT_OK;
}

/* ---- from items to jobs -------------------------------------------------------------------------------------------------- */

static bool holds(const pot_store *store, uint32_t layer, const pot_wire_item *item) {
    for (uint32_t c = item->chunk_begin; c < item->chunk_end; c++)
        if (!pot_store_chunk(store, layer, item->expert, c)) return false;
    return true;
}

static int by_chunk(const void *left, const void *right) {
    const entry *a = left, *b = right;
    if (a->expert != b->expert) return a->expert < b->expert ? -1 : 1;
    if (a->chunk != b->chunk) return a->chunk < b->chunk ? -1 : 1;
    return a->row < b->row ? -1 : a->row > b->row;
}

/* Entries of the items that the store holds; the others are listed in w->moved. */
static pot_status spread(pot_work *w, size_t *n_entries, uint32_t *n_moved, const pot_store *store, const pot_wire_work *work,
                         pot_err *err) {
    const pot_wire_header *h = &work->header;
    size_t total = 0;
    pot_wire_item item;
    for (uint32_t i = 0; i < h->n_items; i++) {
        pot_wire_item_get(&item, work, i);
        pot_status s = check_item(w, h, &item, i, err);
        if (s != POT_OK) return s;
        total += item.chunk_end - item.chunk_begin;
    }
    if (!reserve(w, h->n_rows, h->n_items, total))
        return pot_fail(err, POT_NO_MEMORY, "no memory for %u rows and %zu chunks of work", h->n_rows, total);
    size_t n = 0;
    *n_moved = 0;
    memset(w->covered, 0, ((size_t)h->n_items + 63) / 64 * 8);
    for (uint32_t i = 0; i < h->n_items; i++) {
        pot_wire_item_get(&item, work, i);
        if (!holds(store, h->layer, &item)) {
            w->moved[(*n_moved)++] = i;
            continue;
        }
        w->covered[i / 8] |= (uint8_t)(1u << i % 8);
        for (uint32_t c = item.chunk_begin; c < item.chunk_end; c++)
            w->entries[n++] = (entry){item.expert, c, item.row, item.weight};
    }
    qsort(w->entries, n, sizeof *w->entries, by_chunk);
    for (size_t i = 1; i < n; i++)
        if (by_chunk(&w->entries[i - 1], &w->entries[i]) == 0)
            return pot_fail(err, POT_FORMAT, "row %u, expert %u, chunk %u is asked for twice", w->entries[i].row, w->entries[i].expert,
                            w->entries[i].chunk);
    *n_entries = n;
    return POT_OK;
}

static uint32_t make_jobs(pot_work *w, size_t n, const pot_store *store, uint32_t layer, uint64_t *bytes) {
    uint32_t jobs = 0;
    *bytes = 0;
    for (size_t i = 0, end; i < n; i = end) {
        const entry *first = &w->entries[i];
        for (end = i; end < n && w->entries[end].expert == first->expert && w->entries[end].chunk == first->chunk; end++) {
            w->job_rows[end] = w->entries[end].row;
            w->job_weights[end] = w->entries[end].weight;
        }
        const pot_ffn_shape *shape = pot_model_expert_shape(w->model, layer, first->expert);
        pot_ffn_job *job = &w->jobs[jobs++];
        *job = (pot_ffn_job){.expert = first->expert, .n_rows = (uint32_t)(end - i), .rows = w->job_rows + i,
                             .weights = w->job_weights + i};
        pot_chunk_view(&job->chunk, shape, first->chunk, pot_store_chunk(store, layer, first->expert, first->chunk));
        *bytes += pot_chunk_bytes(shape, first->chunk);
    }
    return jobs;
}

/* Rows are computed with where they lie in the message. */
static void view_rows(pot_work *w, const pot_wire_work *work) {
    const pot_wire_header *h = &work->header;
    size_t blocks = pot_blocks(h->columns);
    size_t quantized = pot_wire_row_bytes(h->formats & POT_ACT_Q8, h->columns);
    for (uint32_t i = 0; i < h->n_rows; i++) {
        const uint8_t *row = work->rows + i * work->row_stride;
        w->rows[i] = (pot_act_row){0};
        if (h->formats & POT_ACT_Q8) {
            w->rows[i].codes = (const int8_t *)row;
            w->rows[i].scales = (const float *)(const void *)(row + blocks * POT_BLOCK);
        }
        if (h->formats & POT_ACT_F32) w->rows[i].values = (const float *)(const void *)(row + quantized);
    }
}

/* ---- the reply ------------------------------------------------------------------------------------------------------------ */

static pot_message *make_sum(const pot_work *w, pot_transport *t, const pot_wire_header *work, uint32_t n_moved,
                             const pot_wire_record *record) {
    pot_wire_header h = *work;
    pot_wire_layout layout;
    uint32_t wide = pot_wire_sum_wide_rows(w->sums, h.n_rows, h.columns);
    h.type = POT_WIRE_SUM;
    h.formats = 1; /* rows are int32 or int64 */
    h.n_hints = (uint16_t)n_moved;
    pot_wire_sum_layout(&layout, &h, wide);
    h.payload_bytes = layout.bytes - 64;
    pot_message *m = pot_transport_message(t, layout.bytes);
    if (!m) return NULL;
    m->kind = POT_MESSAGE_DATA;
    pot_wire_put_header(m->bytes, &h);
    memcpy(m->bytes + layout.covered, w->covered, ((size_t)h.n_items + 63) / 64 * 8);
    pot_wire_sum_rows_put(m->bytes + layout.rows, m->bytes + layout.wide, w->sums, h.n_rows, h.columns);
    pot_wire_put_record(m->bytes + layout.record, record);
    memset(m->bytes + layout.moved, 0, layout.bytes - layout.moved);
    memcpy(m->bytes + layout.moved, w->moved, (size_t)n_moved * sizeof *w->moved);
    return m;
}

pot_status pot_work_run(pot_work *w, pot_message **reply, pot_transport *t, const pot_store *store, const pot_message *message,
                        uint64_t *request, uint64_t *step, uint32_t *layer, pot_err *err) {
    uint64_t start = pot_now_us(), bytes;
    pot_wire_work work;
    uint32_t n_moved = 0;
    size_t n_entries = 0;
    pot_status s = pot_wire_work_parse(&work, message->bytes, message->n_bytes, err);
    if (s != POT_OK) return s;
    const pot_wire_header *h = &work.header;
    *request = h->request;
    *step = h->step;
    *layer = h->layer;
    s = check_work(w, &work, err);
    if (s == POT_OK) s = spread(w, &n_entries, &n_moved, store, &work, err);
    if (s == POT_OK && n_moved > UINT16_MAX)
        s = pot_fail(err, POT_FORMAT, "%u of %u items are not held here: this is another map", n_moved, h->n_items);
    if (s != POT_OK) return s;
    view_rows(w, &work);
    uint32_t jobs = make_jobs(w, n_entries, store, h->layer, &bytes);
    memset(w->sums, 0, (size_t)h->n_rows * h->columns * sizeof *w->sums);
    s = pot_ffn_run(&w->compute, w->sums, h->columns, w->rows, w->jobs, jobs, h->grid, &w->scratch, err);
    if (s != POT_OK) return pot_at(err, "layer %u", h->layer);
    w->items += h->n_items;
    pot_wire_record record = {.compute_us = (uint32_t)(pot_now_us() - start), .ram_bytes = bytes};
    *reply = make_sum(w, t, h, n_moved, &record);
    return *reply ? POT_OK : pot_fail(err, POT_NO_MEMORY, "no memory for a reply of %u rows", h->n_rows);
}
