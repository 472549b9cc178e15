/* Items name a row, an expert and a range of chunks.  All rows of one chunk become one job, so that its weights are read once: places
 * are counted chunk by chunk, then filled (a counting sort, without memory of its own).  The jobs go through pot_ffn_run, whose
 * integer sums make order and grouping irrelevant. */
#include "worker/compute.h"

#include <inttypes.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "kernels/ffn.h"
#include "kernels/linear.h"
#include "kernels/math.h"
#include "proto/wire.h"

struct pot_work {
    const pot_model *model;
    pot_compute compute;
    pot_ffn_scratch scratch;
    uint64_t items;
    pot_wire_record record; /* of the latest reply */
    /* [chunks of the layer that has most] */
    size_t *ends;              /* where a chunk's rows end in job_rows */
    pot_ffn_job *jobs;         /* all of the step, by expert and chunk; without their weights */
    pot_store_want *wants;     /* [a job each] what the store is asked for */
    pot_store_given *given;    /* what it has given: */
    pot_ffn_job *batch;        /* the jobs that can be done now */
    pot_ffn_job *device_batch; /* those that the GPU does meanwhile */
    /* [row_capacity] */
    pot_act_row *rows;
    int32_t *block_sums; /* [row_capacity][blocks of a row]: what the wire leaves out of an activation row */
    uint64_t *seen;      /* the latest job that had this row */
    int64_t *sums;       /* [row_capacity][hidden] */
    uint32_t row_capacity;
    uint64_t job_count; /* ever: numbers for `seen` */
    /* [item_capacity] */
    uint32_t *moved;
    uint8_t *covered; /* bitmap */
    uint32_t item_capacity;
    /* [place_capacity] what jobs point into: a place is one row of one chunk */
    uint32_t *job_rows;
    float *job_weights;
    size_t place_capacity;
};

/* Chunks of a layer are numbered through, the common expert's last. */
static uint32_t layer_chunks(const pot_layer_shape *shape) {
    return shape->n_routed * shape->routed_chunks + shape->common_chunks;
}
static uint32_t chunk_number(const pot_layer_shape *shape, uint32_t expert, uint32_t chunk) {
    return expert * shape->routed_chunks + chunk;
}

pot_status pot_work_create(pot_work **out, const pot_model *model, const pot_compute *compute, pot_err *err) {
    uint32_t most = 0;
    for (uint32_t i = 0; i < pot_model_layers(model); i++) {
        uint32_t chunks = layer_chunks(&pot_model_layer_shapes(model)[i]);
        if (chunks > most) most = chunks;
    }
    pot_work *w = pot_alloc(sizeof *w);
    if (w) {
        w->model = model;
        w->compute = *compute;
        w->ends = pot_alloc_array(most, sizeof *w->ends);
        w->jobs = pot_alloc_array(most, sizeof *w->jobs);
        w->wants = pot_alloc_array(most, sizeof *w->wants);
        w->given = pot_alloc_array(most, sizeof *w->given);
        w->batch = pot_alloc_array(most, sizeof *w->batch);
        w->device_batch = pot_alloc_array(most, sizeof *w->device_batch);
    }
    if (!w || !w->ends || !w->jobs || !w->wants || !w->given || !w->batch || !w->device_batch) {
        pot_work_free(w);
        return pot_fail(err, POT_NO_MEMORY, "no memory for a worker");
    }
    *out = w;
    return POT_OK;
}

static void free_rows(pot_work *w) {
    pot_free(w->rows);
    pot_free(w->block_sums);
    pot_free(w->seen);
    pot_free(w->sums);
    w->rows = NULL;
    w->block_sums = NULL;
    w->seen = NULL;
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

static void free_places(pot_work *w) {
    pot_free(w->job_rows);
    pot_free(w->job_weights);
    w->job_rows = NULL;
    w->job_weights = NULL;
    w->place_capacity = 0;
}

void pot_work_free(pot_work *w) {
    if (!w) return;
    free_rows(w);
    free_items(w);
    free_places(w);
    pot_ffn_scratch_free(&w->scratch);
    pot_free(w->ends);
    pot_free(w->jobs);
    pot_free(w->wants);
    pot_free(w->given);
    pot_free(w->batch);
    pot_free(w->device_batch);
    pot_free(w);
}

uint64_t pot_work_items(const pot_work *w) { return w->items; }
const pot_wire_record *pot_work_record(const pot_work *w) { return &w->record; }

static bool reserve(pot_work *w, uint32_t rows, uint32_t items, size_t places) {
    if (rows > w->row_capacity) {
        const uint32_t hidden = pot_model_config(w->model)->hidden;
        free_rows(w);
        w->rows = pot_alloc_array(rows, sizeof *w->rows);
        w->block_sums = pot_alloc_array((size_t)rows * pot_blocks(hidden), sizeof *w->block_sums);
        w->seen = pot_alloc_array(rows, sizeof *w->seen);
        w->sums = pot_alloc_array((size_t)rows * hidden, sizeof *w->sums);
        if (!w->rows || !w->block_sums || !w->seen || !w->sums) return false;
        w->row_capacity = rows;
    }
    if (items > w->item_capacity) {
        free_items(w);
        w->moved = pot_alloc_array(items, sizeof *w->moved);
        w->covered = pot_alloc_array(((size_t)items + 63) / 64, 8);
        if (!w->moved || !w->covered) return false;
        w->item_capacity = items;
    }
    if (places > w->place_capacity) {
        free_places(w);
        w->job_rows = pot_alloc_array(places, sizeof *w->job_rows);
        w->job_weights = pot_alloc_array(places, sizeof *w->job_weights);
        if (!w->job_rows || !w->job_weights) return false;
        w->place_capacity = places;
    }
    return true;
}

/* ---- checking against the model --------------------------------------------------------------------------------------- */

static pot_status check_header(const pot_work *w, const pot_wire_header *h, const pot_store *store, pot_err *err) {
    uint32_t hidden = pot_model_config(w->model)->hidden;
    if (h->layer >= pot_model_layers(w->model))
        return pot_fail(err, POT_FORMAT, "work for layer %u, the model has %u", h->layer, pot_model_layers(w->model));
    if (h->columns != hidden)
        return pot_fail(err, POT_FORMAT, "work with rows of %u columns, the model's hidden size is %u", h->columns,
                        hidden);
    if (h->grid != pot_model_grid(w->model, h->layer))
        return pot_fail(err, POT_FORMAT, "work for grid %d, the model's is %d", h->grid,
                        pot_model_grid(w->model, h->layer));
    if (h->epoch != pot_store_epoch(store))
        return pot_fail(err, POT_FORMAT, "work by map epoch %" PRIu64 ", this worker has loaded epoch %" PRIu64,
                        h->epoch, pot_store_epoch(store));
    return POT_OK;
}

/* Whether the rows carry what this expert's formats eat, and the expert has such chunks. */
static pot_status check_item(const pot_work *w, const pot_wire_header *h, const pot_wire_item *item, uint32_t index,
                             pot_err *err) {
    const pot_layer_shape *shape = &pot_model_layer_shapes(w->model)[h->layer];
    if (item->expert >= pot_layer_experts(shape) || item->chunk_end > pot_layer_expert_chunks(shape, item->expert))
        return pot_fail(err, POT_FORMAT, "item %u asks for chunks %u to %u of expert %u, which layer %u does not have",
                        index, item->chunk_begin, item->chunk_end, item->expert, h->layer);
    unsigned need = pot_act_need(pot_model_expert_shape(w->model, h->layer, item->expert)->gate_up_format);
    if (need & ~(unsigned)h->formats)
        return pot_fail(err, POT_FORMAT, "rows in forms %u, expert %u of layer %u needs %u", h->formats, item->expert,
                        h->layer, need);
    return POT_OK;
}

/* ---- from items to jobs -------------------------------------------------------------------------------------------------- */

static bool holds(const pot_store *store, uint32_t layer, const pot_wire_item *item) {
    for (uint32_t c = item->chunk_begin; c < item->chunk_end; c++)
        if (!pot_store_owns(store, layer, item->expert, c)) return false;
    return true;
}

/* Checks all items and counts how many places they take.  A row can want a chunk only once, which bounds them. */
static pot_status count_places(const pot_work *w, size_t *places, const pot_wire_work *work, pot_err *err) {
    const pot_wire_header *h = &work->header;
    size_t most = (size_t)h->n_rows * layer_chunks(&pot_model_layer_shapes(w->model)[h->layer]);
    *places = 0;
    for (uint32_t i = 0; i < h->n_items; i++) {
        pot_wire_item item;
        pot_wire_item_get(&item, work, i);
        pot_status s = check_item(w, h, &item, i, err);
        if (s != POT_OK) return s;
        *places += item.chunk_end - item.chunk_begin;
    }
    if (*places > most)
        return pot_fail(err, POT_FORMAT,
                        "%zu chunks are asked for, layer %u has %zu for %u rows: some are asked for twice", *places,
                        h->layer, most, h->n_rows);
    return POT_OK;
}

/* Sorts the items that the store holds into covered, the others into moved; w->ends counts rows, chunk by chunk. */
static void sort_items(pot_work *w, uint32_t *n_moved, const pot_store *store, const pot_wire_work *work) {
    const pot_wire_header *h = &work->header;
    const pot_layer_shape *shape = &pot_model_layer_shapes(w->model)[h->layer];
    memset(w->ends, 0, layer_chunks(shape) * sizeof *w->ends);
    memset(w->covered, 0, ((size_t)h->n_items + 63) / 64 * 8);
    *n_moved = 0;
    for (uint32_t i = 0; i < h->n_items; i++) {
        pot_wire_item item;
        pot_wire_item_get(&item, work, i);
        if (!holds(store, h->layer, &item)) {
            w->moved[(*n_moved)++] = i;
            continue;
        }
        w->covered[i / 8] |= (uint8_t)(1u << i % 8);
        for (uint32_t c = item.chunk_begin; c < item.chunk_end; c++) w->ends[chunk_number(shape, item.expert, c)]++;
    }
}

/* Counts become places, which the covered items fill; afterwards a chunk's rows end where w->ends says. */
static void fill_places(pot_work *w, const pot_wire_work *work) {
    const pot_layer_shape *shape = &pot_model_layer_shapes(w->model)[work->header.layer];
    size_t next = 0;
    for (uint32_t k = 0; k < layer_chunks(shape); k++) {
        size_t count = w->ends[k];
        w->ends[k] = next;
        next += count;
    }
    for (uint32_t i = 0; i < work->header.n_items; i++) {
        if (!pot_wire_bit(w->covered, i)) continue;
        pot_wire_item item;
        pot_wire_item_get(&item, work, i);
        for (uint32_t c = item.chunk_begin; c < item.chunk_end; c++) {
            size_t place = w->ends[chunk_number(shape, item.expert, c)]++;
            w->job_rows[place] = item.row;
            w->job_weights[place] = item.weight;
        }
    }
}

/* A row that has a chunk twice would count double. */
static pot_status check_rows(pot_work *w, const pot_ffn_job *job, uint32_t chunk, pot_err *err) {
    w->job_count++;
    for (uint32_t i = 0; i < job->n_rows; i++) {
        if (w->seen[job->rows[i]] == w->job_count)
            return pot_fail(err, POT_FORMAT, "row %u, expert %u, chunk %u is asked for twice", job->rows[i],
                            job->expert, chunk);
        w->seen[job->rows[i]] = w->job_count;
    }
    return POT_OK;
}

static void get_rows(pot_work *w, const pot_wire_work *work) {
    const pot_wire_header *h = &work->header;
    const uint32_t blocks = pot_blocks(h->columns);
    for (uint32_t i = 0; i < h->n_rows; i++) {
        pot_act_row *row = &w->rows[i];
        pot_wire_row_get(row, work->rows + i * work->row_stride, h->formats, h->columns);
        if (row->codes == NULL) continue;
        int32_t *sums = w->block_sums + (size_t)i * blocks;
        w->compute.kernels->block_sums(sums, row->codes, blocks);
        row->sums = sums;
    }
}

static pot_status make_jobs(pot_work *w, uint32_t *n_jobs, uint32_t layer, pot_err *err) {
    const pot_layer_shape *layer_shape = &pot_model_layer_shapes(w->model)[layer];
    size_t begin = 0;
    *n_jobs = 0;
    for (uint32_t expert = 0; expert < pot_layer_experts(layer_shape); expert++) {
        const pot_ffn_shape *shape = pot_model_expert_shape(w->model, layer, expert);
        for (uint32_t chunk = 0; chunk < shape->n_chunks; chunk++) {
            size_t end = w->ends[chunk_number(layer_shape, expert, chunk)];
            if (end == begin) continue;
            w->wants[*n_jobs] = (pot_store_want){expert, chunk};
            pot_ffn_job *job = &w->jobs[(*n_jobs)++];
            *job = (pot_ffn_job){.expert = expert,
                                 .n_rows = (uint32_t)(end - begin),
                                 .rows = w->job_rows + begin,
                                 .weights = w->job_weights + begin};
            pot_status s = check_rows(w, job, chunk, err);
            if (s != POT_OK) return s;
            begin = end;
        }
    }
    return POT_OK;
}

/* ---- computing ----------------------------------------------------------------------------------------------------------- */

/* Many rows want nearly every expert that is here, which says nothing about what will be wanted next. */
static bool is_scan(const pot_store *store, const pot_wire_header *h, uint32_t n_jobs) {
    enum { FEW_ROWS = 8 };
    return h->n_rows > FEW_ROWS && n_jobs > pot_store_layer_chunks(store, h->layer) / 4;
}

/* The next layer's experts, as far as this worker has them, are read ahead. */
static void pass_hints(pot_store *store, const pot_wire_work *work) {
    const pot_wire_header *h = &work->header;
    for (uint32_t i = 0; i < h->n_hints; i++) {
        uint32_t expert = pot_wire_hint_get(work, i);
        pot_store_hint(store, h->layer + 1, &expert, 1);
    }
}

/* The jobs of what the store has given, with their weights. */
static void fill_batch(const pot_work *w, pot_ffn_job *batch, uint32_t layer, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        const pot_store_want *want = &w->wants[w->given[i].want];
        batch[i] = w->jobs[w->given[i].want];
        pot_chunk_view(&batch[i].chunk, pot_model_expert_shape(w->model, layer, want->expert), want->chunk,
                       w->given[i].data);
    }
}

/* What is in memory is computed while the rest is read, and the rest as it comes; the GPU has its own part. */
static pot_status compute_jobs(pot_work *w, pot_store *store, const pot_wire_work *work, uint32_t n_jobs,
                               pot_err *err) {
    const pot_wire_header *h = &work->header;
    uint32_t n, on_device = 0;
    pot_status s = pot_store_begin(store, h->layer, w->wants, n_jobs, is_scan(store, h, n_jobs), err);
    if (s == POT_OK) pass_hints(store, work);
    if (s == POT_OK && (on_device = pot_store_take_device(w->given, store))) {
        fill_batch(w, w->device_batch, h->layer, on_device);
        pot_device_start(pot_store_device(store), h->columns, w->rows, h->n_rows, w->device_batch, on_device, h->grid);
    }
    while (s == POT_OK) {
        s = pot_store_take(w->given, &n, n_jobs, store, err);
        if (s != POT_OK || n == 0) break;
        fill_batch(w, w->batch, h->layer, n);
        s = pot_ffn_run(&w->compute, w->sums, h->columns, w->rows, w->batch, n, h->grid, &w->scratch, err);
        if (s != POT_OK) s = pot_at(err, "layer %u", h->layer);
    }
    if (on_device) {
        pot_err fault;
        pot_status finished = pot_store_finish_device(store, w->sums, &fault);
        if (s == POT_OK && finished != POT_OK) {
            if (err) *err = fault;
            s = pot_at(err, "layer %u, on the GPU", h->layer);
        }
    }
    pot_store_end(store);
    return s;
}

/* ---- the reply ------------------------------------------------------------------------------------------------------------ */

static pot_message *make_sum(const pot_work *w, pot_transport *t, const pot_wire_header *work, uint32_t n_moved,
                             const pot_wire_record *record) {
    pot_wire_header h = *work;
    pot_wire_layout layout;
    uint32_t wide = pot_wire_sum_wide_rows(w->sums, h.n_rows, h.columns);
    h.type = POT_WIRE_SUM;
    h.formats = POT_WIRE_ROWS_INT;
    h.n_hints = (uint16_t)n_moved;
    pot_wire_sum_layout(&layout, &h, wide);
    h.payload_bytes = layout.bytes - POT_WIRE_HEADER_BYTES;
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

pot_status pot_work_run(pot_work *w, pot_message **reply, pot_transport *t, pot_store *store,
                        const pot_message *message, uint64_t *request, uint64_t *step, uint32_t *layer, pot_err *err) {
    uint64_t start = pot_now_us();
    pot_wire_work work;
    uint32_t n_moved, n_jobs;
    size_t places;
    pot_status s = pot_wire_header_parse(&work.header, message->bytes, message->n_bytes, err);
    if (s != POT_OK) return s;
    *request = work.header.request;
    *step = work.header.step;
    *layer = work.header.layer;
    s = pot_wire_work_parse(&work, message->bytes, message->n_bytes, err);
    const pot_wire_header *h = &work.header;
    if (s == POT_OK) s = check_header(w, h, store, err);
    if (s == POT_OK) s = count_places(w, &places, &work, err);
    if (s != POT_OK) return s;
    if (!reserve(w, h->n_rows, h->n_items, places))
        return pot_fail(err, POT_NO_MEMORY, "no memory for %u rows and %zu chunks of work", h->n_rows, places);
    sort_items(w, &n_moved, store, &work);
    if (n_moved > UINT16_MAX)
        return pot_fail(err, POT_FORMAT, "%u of %u items are not held here: this is another map", n_moved, h->n_items);
    fill_places(w, &work);
    s = make_jobs(w, &n_jobs, h->layer, err);
    if (s != POT_OK) return s;
    get_rows(w, &work);
    memset(w->sums, 0, (size_t)h->n_rows * h->columns * sizeof *w->sums);
    s = compute_jobs(w, store, &work, n_jobs, err);
    if (s != POT_OK) return s;
    w->items += h->n_items;
    const pot_store_step *read = pot_store_last_step(store);
    uint64_t total = pot_now_us() - start;
    w->record = (pot_wire_record){.load_us = (uint32_t)read->load_us,
                                  .compute_us = (uint32_t)(total - read->wait_us),
                                  .vram_bytes = read->vram_bytes,
                                  .ram_bytes = read->ram_bytes,
                                  .disk_bytes = read->disk_bytes};
    if (read->disk_bytes)
        POT_LOG(POT_LOG_DEBUG, "worker.store",
                "layer %u: %u rows, %.1f MB in memory, %.1f MB read in %.1f ms, computed %.1f ms, waited %.1f ms",
                h->layer, h->n_rows, (double)read->ram_bytes / 1e6, (double)read->disk_bytes / 1e6,
                (double)read->load_us / 1e3, (double)(total - read->wait_us) / 1e3, (double)read->wait_us / 1e3);
    *reply = make_sum(w, t, h, n_moved, &w->record);
    return *reply ? POT_OK : pot_fail(err, POT_NO_MEMORY, "no memory for a reply of %u rows", h->n_rows);
}
