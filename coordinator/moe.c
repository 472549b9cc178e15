/* One layer's feed-forward over the cluster.
 *
 *   quantize the rows once            acts, in the forms that the layer's formats eat
 *   spread                            every (row, expert) over the workers that hold its chunks -> items per worker
 *   send                              one WORK a worker, with only the rows that it needs, heaviest first
 *   compute                           the coordinator's own worker, meanwhile
 *   receive, add                      each SUM checked: this step's, every item in it once; integer rows added
 *   y = sum * 2^-G                    the only rounding
 */
#include "coordinator/moe.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/clock.h"
#include "common/mem.h"
#include "kernels/linear.h"

enum { NOWHERE = -1 };

/* What one worker gets in this step. */
typedef struct share {
    pot_wire_item *items;
    uint32_t n_items, item_capacity;
    uint32_t *rows; /* [n_rows] the step's row of each of its rows */
    int32_t *place; /* [row_capacity] where a row of the step is among its rows, or NOWHERE */
    uint32_t n_rows;
    unsigned forms; /* of activations that its experts eat */
    uint64_t bytes; /* of weights, for every row again: what decides who is heaviest */
    bool pending;   /* its SUM has not come yet */
} share;

struct pot_moe {
    const pot_model *model;
    pot_peers *peers;
    pot_compute compute;
    pot_moe_stats stats;
    pot_acts acts;
    int64_t *sums; /* [row_capacity][hidden] */
    uint32_t row_capacity;
    share *shares; /* [n_workers] */
    uint32_t n_workers;
    uint64_t step;
    const uint32_t *hints; /* the caller's */
    uint32_t n_hints;
};

/* ---- life ------------------------------------------------------------------------------------------------------------------ */

pot_status pot_moe_create(pot_moe **out, const pot_model *model, pot_peers *peers, const pot_compute *compute,
                          pot_err *err) {
    pot_moe *m = pot_alloc(sizeof *m);
    if (m) m->shares = pot_alloc_array(pot_peers_count(peers), sizeof *m->shares);
    if (!m || !m->shares) {
        pot_free(m);
        return pot_fail(err, POT_NO_MEMORY, "no memory to dispatch to %u workers", pot_peers_count(peers));
    }
    m->model = model;
    m->peers = peers;
    m->compute = *compute;
    m->n_workers = pot_peers_count(peers);
    *out = m;
    return POT_OK;
}

static void free_rows(pot_moe *m) {
    pot_acts_free(&m->acts);
    pot_free(m->sums);
    m->sums = NULL;
    m->row_capacity = 0;
    for (uint32_t w = 0; w < m->n_workers; w++) {
        pot_free(m->shares[w].rows);
        pot_free(m->shares[w].place);
        m->shares[w].rows = NULL;
        m->shares[w].place = NULL;
    }
}

void pot_moe_free(pot_moe *m) {
    if (!m) return;
    free_rows(m);
    for (uint32_t w = 0; w < m->n_workers; w++) pot_free(m->shares[w].items);
    pot_free(m->shares);
    pot_free(m);
}

const pot_moe_stats *pot_moe_get_stats(const pot_moe *m) { return &m->stats; }

static pot_status reserve_rows(pot_moe *m, uint32_t n, pot_err *err) {
    uint32_t hidden = pot_model_config(m->model)->hidden;
    if (n <= m->row_capacity) return POT_OK;
    free_rows(m);
    pot_status s = pot_acts_create(&m->acts, n, hidden, err);
    if (s != POT_OK) return s;
    m->sums = pot_alloc_array((size_t)n * hidden, sizeof *m->sums);
    bool failed = !m->sums;
    for (uint32_t w = 0; w < m->n_workers; w++) {
        m->shares[w].rows = pot_alloc_array(n, sizeof *m->shares[w].rows);
        m->shares[w].place = pot_alloc_array(n, sizeof *m->shares[w].place);
        failed |= !m->shares[w].rows || !m->shares[w].place;
    }
    if (failed) {
        free_rows(m);
        return pot_fail(err, POT_NO_MEMORY, "no memory to dispatch %u rows", n);
    }
    m->row_capacity = n;
    return POT_OK;
}

/* ---- spreading --------------------------------------------------------------------------------------------------------------- */

/* Of a range's owners the one with the least to read so far; the preferred one when equal.  Which copy computes changes no bit. */
static uint32_t pick_owner(const pot_moe *m, const pot_map_range *range) {
    uint32_t best = range->first;
    for (uint64_t left = range->owners; left; left &= left - 1) {
        uint32_t w = (uint32_t)__builtin_ctzll(left);
        if (m->shares[w].bytes < m->shares[best].bytes) best = w;
    }
    return best;
}

static pot_status add_item(share *s, uint32_t row, uint32_t expert, const pot_map_range *range, float weight,
                           pot_err *err) {
    if (s->place[row] == NOWHERE) {
        s->place[row] = (int32_t)s->n_rows;
        s->rows[s->n_rows++] = row;
    }
    uint32_t local = (uint32_t)s->place[row];
    pot_wire_item *last = s->n_items ? &s->items[s->n_items - 1] : NULL;
    if (last && last->row == local && last->expert == expert && last->chunk_end == range->chunk_begin) {
        last->chunk_end = range->chunk_end;
        return POT_OK;
    }
    if (s->n_items == s->item_capacity) {
        uint32_t capacity = s->item_capacity ? 2 * s->item_capacity : 256;
        pot_wire_item *grown =
            capacity <= POT_WIRE_MAX_ITEMS ? pot_realloc_array(s->items, capacity, sizeof *grown) : NULL;
        if (!grown) return pot_fail(err, POT_NO_MEMORY, "no room for more than %u items in one step", s->item_capacity);
        s->items = grown;
        s->item_capacity = capacity;
    }
    s->items[s->n_items++] = (pot_wire_item){.row = local,
                                             .expert = expert,
                                             .chunk_begin = range->chunk_begin,
                                             .chunk_end = range->chunk_end,
                                             .kind = POT_KIND_FFN,
                                             .weight = weight};
    return POT_OK;
}

static pot_status spread_expert(pot_moe *m, uint32_t layer, uint32_t row, uint32_t expert, float weight, pot_err *err) {
    const pot_ffn_shape *shape = pot_model_expert_shape(m->model, layer, expert);
    uint32_t n_ranges;
    const pot_map_range *ranges = pot_map_ranges(pot_peers_map(m->peers), layer, expert, &n_ranges);
    if (n_ranges == 0) return pot_fail(err, POT_BUG, "layer %u has no expert %u", layer, expert);
    size_t chunk_bytes = pot_chunk_bytes(shape, 0);
    for (uint32_t i = 0; i < n_ranges; i++) {
        share *s = &m->shares[pick_owner(m, &ranges[i])];
        s->forms |= pot_act_need(shape->gate_up_format);
        s->bytes += chunk_bytes * (ranges[i].chunk_end - ranges[i].chunk_begin);
        pot_status status = add_item(s, row, expert, &ranges[i], weight, err);
        if (status != POT_OK) return status;
    }
    return POT_OK;
}

static pot_status spread(pot_moe *m, uint32_t n, uint32_t layer, const uint32_t *experts, const float *weights,
                         uint32_t k, pot_err *err) {
    const pot_layer_shape *shape = &pot_model_layer_shapes(m->model)[layer];
    POT_ASSERT(k == 0 || (experts && weights));
    for (uint32_t w = 0; w < m->n_workers; w++) {
        share *s = &m->shares[w];
        s->n_items = s->n_rows = s->forms = 0;
        s->bytes = 0;
        s->pending = false;
        for (uint32_t i = 0; i < n; i++) s->place[i] = NOWHERE;
    }
    pot_status status = POT_OK;
    for (uint32_t i = 0; i < n && status == POT_OK; i++) {
        for (uint32_t j = 0; j < k && status == POT_OK; j++)
            status = spread_expert(m, layer, i, experts[(size_t)i * k + j], weights[(size_t)i * k + j], err);
        if (shape->common_chunks && status == POT_OK) status = spread_expert(m, layer, i, shape->n_routed, 1.0f, err);
    }
    return status;
}

/* ---- sending ------------------------------------------------------------------------------------------------------------------- */

static unsigned forms_of(const pot_ffn_shape *shape) { return shape ? pot_act_need(shape->gate_up_format) : 0; }

static pot_status send_share(pot_moe *m, uint32_t worker, uint32_t layer, pot_err *err) {
    share *s = &m->shares[worker];
    uint32_t hidden = pot_model_config(m->model)->hidden;
    pot_wire_header h = {.magic = POT_WIRE_MAGIC,
                         .version = POT_WIRE_VERSION,
                         .type = POT_WIRE_WORK,
                         .layer = layer,
                         .epoch = pot_map_epoch(pot_peers_map(m->peers)),
                         .step = m->step,
                         .n_rows = s->n_rows,
                         .n_items = s->n_items,
                         .n_hints = (uint16_t)m->n_hints,
                         .formats = (uint8_t)s->forms,
                         .grid = (int8_t)pot_model_grid(m->model, layer),
                         .columns = hidden};
    pot_wire_layout layout;
    pot_wire_work_layout(&layout, &h);
    h.payload_bytes = layout.bytes - POT_WIRE_HEADER_BYTES;
    pot_message *message = pot_peers_message(m->peers, worker, layout.bytes);
    if (!message) return pot_fail(err, POT_NO_MEMORY, "no memory for a message of %zu bytes", layout.bytes);
    pot_wire_put_header(message->bytes, &h);
    for (uint32_t i = 0; i < s->n_rows; i++)
        pot_wire_put_row(message->bytes + layout.rows + i * layout.row_stride, &m->acts.rows[s->rows[i]], s->forms,
                         hidden);
    for (uint32_t i = 0; i < s->n_items; i++)
        pot_wire_put_item(message->bytes + layout.items + (size_t)i * POT_WIRE_ITEM_BYTES, &s->items[i]);
    memset(message->bytes + layout.hints, 0, layout.bytes - layout.hints);
    for (uint32_t i = 0; i < m->n_hints; i++) pot_wire_put_hint(message->bytes, &layout, i, m->hints[i]);
    s->pending = true;
    return pot_peers_send(m->peers, worker, message, err);
}

/* Heaviest first, so that the longest wait begins soonest.  *sent counts. */
static pot_status send_all(pot_moe *m, uint32_t layer, uint32_t *sent, pot_err *err) {
    for (*sent = 0;; ++*sent) {
        uint32_t heaviest = m->n_workers;
        for (uint32_t w = 0; w < m->n_workers; w++) {
            const share *s = &m->shares[w];
            if (s->n_items && !s->pending && (heaviest == m->n_workers || s->bytes > m->shares[heaviest].bytes))
                heaviest = w;
        }
        if (heaviest == m->n_workers) return POT_OK;
        pot_status status = send_share(m, heaviest, layer, err);
        if (status != POT_OK) return status;
    }
}

/* ---- receiving ------------------------------------------------------------------------------------------------------------------- */

/* A reply of another step (late, or sent twice) is never used. */
static bool is_current(const pot_moe *m, uint32_t worker, uint32_t layer, const pot_wire_header *h) {
    return m->shares[worker].pending && h->step == m->step && h->layer == layer && h->request == 0 &&
           h->epoch == pot_map_epoch(pot_peers_map(m->peers));
}

static pot_status check_sum(const pot_moe *m, uint32_t worker, uint32_t layer, const pot_wire_sum *sum, pot_err *err) {
    const share *s = &m->shares[worker];
    const pot_wire_header *h = &sum->header;
    uint32_t hidden = pot_model_config(m->model)->hidden;
    if (h->n_rows != s->n_rows || h->n_items != s->n_items || h->columns != hidden ||
        h->grid != pot_model_grid(m->model, layer))
        return pot_fail(
            err, POT_FORMAT,
            "worker %u, layer %u: a SUM of %u rows, %u items, %u columns, grid %d for work of %u, %u, %u, %d", worker,
            layer, h->n_rows, h->n_items, h->columns, h->grid, s->n_rows, s->n_items, hidden,
            pot_model_grid(m->model, layer));
    for (uint32_t i = 0; i < s->n_items; i++)
        if (!pot_wire_bit(sum->covered, i))
            return pot_fail(err, POT_BUG,
                            "worker %u does not hold chunks %u to %u of expert %u in layer %u, which map epoch %" PRIu64
                            " gives to it",
                            worker, s->items[i].chunk_begin, s->items[i].chunk_end, s->items[i].expert, layer,
                            h->epoch);
    return POT_OK;
}

static pot_status receive_all(pot_moe *m, uint32_t layer, uint32_t pending, pot_err *err) {
    while (pending) {
        uint64_t start = pot_now_us();
        uint32_t worker;
        pot_message *message;
        pot_wire_sum sum;
        pot_status s = pot_peers_receive(m->peers, &worker, &message, &sum, err);
        uint64_t received = pot_now_us();
        m->stats.wait_us += received - start;
        if (s != POT_OK) return s;
        if (is_current(m, worker, layer, &sum.header)) {
            s = check_sum(m, worker, layer, &sum, err);
            if (s == POT_OK) pot_wire_sum_rows_add(m->sums, m->shares[worker].rows, &sum);
            m->shares[worker].pending = false;
            pending--;
            pot_peers_release(m->peers, worker, message);
        } else {
            pot_peers_drop(m->peers, worker, message);
        }
        m->stats.wire_us += pot_now_us() - received;
        if (s != POT_OK) return s;
    }
    return POT_OK;
}

/* ---- the whole ---------------------------------------------------------------------------------------------------------------------- */

static pot_status forward_rows(pot_moe *m, float *y, const float *h, uint32_t n, uint32_t layer,
                               const uint32_t *experts, const float *weights, uint32_t k, pot_err *err) {
    uint64_t start = pot_now_us();
    uint32_t hidden = pot_model_config(m->model)->hidden, sent = 0;
    unsigned forms = forms_of(pot_model_routed(m->model, layer)) | forms_of(pot_model_common(m->model, layer));
    m->step++;
    pot_status s = reserve_rows(m, n, err);
    if (s == POT_OK && pot_acts_fill(&m->acts, &m->compute, h, hidden, hidden, n, forms, err) != POT_OK)
        s = pot_at(err, "layer %u: the input of the experts", layer);
    if (s == POT_OK) s = spread(m, n, layer, experts, weights, k, err);
    if (s == POT_OK) s = send_all(m, layer, &sent, err);
    uint64_t dispatched = pot_now_us();
    m->stats.wire_us += dispatched - start;
    if (s == POT_OK) s = pot_peers_run_local(m->peers, err);
    m->stats.experts_us += pot_now_us() - dispatched;
    if (s != POT_OK) return s;
    memset(m->sums, 0, (size_t)n * hidden * sizeof *m->sums);
    s = receive_all(m, layer, sent, err);
    if (s != POT_OK) return s;
    float unit = ldexpf(1.0f, -pot_model_grid(m->model, layer));
    for (size_t i = 0; i < (size_t)n * hidden; i++) y[i] = (float)m->sums[i] * unit;
    return POT_OK;
}

pot_status pot_moe_forward(pot_moe *m, float *y, const float *h, uint32_t n, uint32_t layer, const uint32_t *experts,
                           const float *weights, uint32_t k, pot_err *err) {
    size_t hidden = pot_model_config(m->model)->hidden;
    for (uint32_t first = 0; first < n; first += POT_WIRE_MAX_ROWS) {
        uint32_t part = n - first < POT_WIRE_MAX_ROWS ? n - first : POT_WIRE_MAX_ROWS;
        pot_status s = forward_rows(m, y + first * hidden, h + first * hidden, part, layer,
                                    experts ? experts + (size_t)first * k : NULL,
                                    weights ? weights + (size_t)first * k : NULL, k, err);
        m->n_hints = 0;
        if (s != POT_OK) return s;
    }
    return POT_OK;
}

void pot_moe_hint(pot_moe *m, const uint32_t *experts, uint32_t n) {
    m->hints = experts;
    m->n_hints = n < POT_WIRE_MAX_HINTS ? n : POT_WIRE_MAX_HINTS;
}
