/* One step of a store: claim, queue, give what is there, give what arrives. */
#include <inttypes.h>
#include <string.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"
#include "worker/store_internal.h"

enum {
    WAIT_SLICE_US = 100000, /* how long a wait goes without a look at its deadline */
    FEW = 8,                /* chunks that a scan waits for */
    BATCH = 16,             /* chunks given at a time while slots are short, so that they are soon free again */
    REPIN_TOKENS = 64
};

/* ---- slots ----------------------------------------------------------------------------------------------------------------- */

void pot_store_place(pot_store *s, pot_unit *u) {
    pot_slot_pool *p = &s->pools[u->pool];
    for (uint32_t c = u->chunk_begin; c < u->chunk_end; c++) {
        size_t entry = pot_store_entry(s, u->layer, u->expert, c);
        POT_ASSERT(p->n_free > 0 && s->slot_of[entry] == POT_NO_SLOT);
        s->slot_of[entry] = p->free[--p->n_free];
        s->state[entry] = POT_CHUNK_LOADING;
        s->stats.resident_bytes += pot_chunk_bytes(pot_model_expert_shape(s->model, u->layer, u->expert), c);
    }
}

pot_status pot_store_displace(pot_store *s, pot_unit *u, pot_err *err) {
    pot_slot_pool *p = &s->pools[u->pool];
    uint64_t start = pot_now_us();
    for (uint32_t c = u->chunk_begin; c < u->chunk_end && u->pending; c++) {
        size_t entry = pot_store_entry(s, u->layer, u->expert, c);
        if (s->state[entry] == POT_CHUNK_LOADING && pot_reader_cancel(s->reader, &p->reads[s->slot_of[entry]].read))
            u->pending--;
    }
    while (u->pending) { /* the kernel still writes there */
        if (pot_now_us() - start > s->choice.timeout_us) {
            s->broken = true;
            return pot_fail(err, POT_TIMEOUT, "%s: a read has not come back within %.1f s: is the disk still there?",
                            pot_store_file(s, u->layer), (double)s->choice.timeout_us / 1e6);
        }
        (void)pot_store_drain(s, WAIT_SLICE_US);
    }
    for (uint32_t c = u->chunk_begin; c < u->chunk_end; c++) {
        size_t entry = pot_store_entry(s, u->layer, u->expert, c);
        p->free[p->n_free++] = s->slot_of[entry];
        s->slot_of[entry] = POT_NO_SLOT;
        s->state[entry] = POT_CHUNK_ABSENT;
        s->stats.resident_bytes -= pot_chunk_bytes(pot_model_expert_shape(s->model, u->layer, u->expert), c);
    }
    u->failed = false;
    return POT_OK;
}

static pot_status displace_evicted(pot_store *s, const pot_slot_pool *p, const uint64_t *evicted, uint32_t n,
                                   pot_err *err) {
    pot_status status = POT_OK;
    for (uint32_t i = 0; i < n && status == POT_OK; i++)
        status = pot_store_displace(s, &s->units[p->first_unit[evicted[i] >> 32] + (uint32_t)(evicted[i] & UINT32_MAX)],
                                    err);
    return status;
}

/* ---- reads ----------------------------------------------------------------------------------------------------------------- */

pot_status pot_store_queue(pot_store *s, pot_unit *u, bool urgent, pot_err *err) {
    pot_slot_pool *p = &s->pools[u->pool];
    const pot_ffn_shape *shape = pot_model_expert_shape(s->model, u->layer, u->expert);
    for (uint32_t c = u->chunk_begin; c < u->chunk_end; c++) {
        size_t entry = pot_store_entry(s, u->layer, u->expert, c);
        pot_chunk_place place;
        pot_status status = pot_store_chunk_place(&place, s, u->layer, u->expert, c, err);
        if (status != POT_OK) {
            u->failed = true;
            return status;
        }
        pot_slot_read *slot = &p->reads[s->slot_of[entry]];
        pot_read *r = &slot->read;
        *r = (pot_read){.file = s->layer_file[u->layer],
                        .bytes = (uint32_t)pot_chunk_bytes(shape, c),
                        .offset = place.offset,
                        .into = pot_slot_data(p, s->slot_of[entry]),
                        .has_checksum = s->loading, /* in a step the team does it, see check_arrived */
                        .checksum = place.checksum,
                        .user = &s->state[entry],
                        .err = &slot->err};
        u->pending++;
        pot_reader_submit(s->reader, &r, 1, urgent);
    }
    u->queued_in = s->number;
    if (!s->first_read_us) s->first_read_us = pot_now_us();
    return POT_OK;
}

/* Which chunk a state belongs to. */
static pot_unit *unit_of_read(pot_store *s, const pot_read *r) {
    return &s->units[s->unit_of[(const uint8_t *)r->user - s->state]];
}

bool pot_store_drain(pot_store *s, uint64_t timeout_us) {
    pot_read *r = pot_reader_take(s->reader, timeout_us);
    if (!r) return false;
    pot_unit *u = unit_of_read(s, r);
    u->pending--;
    if (r->status == POT_OK) {
        *(uint8_t *)r->user = r->has_checksum ? POT_CHUNK_READY : POT_CHUNK_UNCHECKED;
        s->stats.read_bytes += r->bytes;
        s->stats.reads++;
        if (s->progress) atomic_fetch_add(s->progress, r->bytes);
        s->last_read_us = pot_now_us();
    } else {
        u->failed = true;
        if ((s->loading || (u->left && u->queued_in == s->number)) && s->fault.status == POT_OK) {
            s->fault = *r->err;
            pot_at(&s->fault, "layer %u expert %u", u->layer, u->expert);
        }
    }
    return true;
}

/* A unit of which a read failed that was begun before this step is read again: only this step's own faults end it. */
static pot_status read_again(pot_store *s, pot_unit *u, pot_err *err) {
    pot_status status = pot_store_displace(s, u, err);
    if (status != POT_OK) return status;
    pot_store_place(s, u);
    return pot_store_queue(s, u, true, err);
}

/* A unit that is wanted now and was only expected so far goes to the front of the queue. */
static void hurry(pot_store *s, pot_unit *u) {
    pot_slot_pool *p = &s->pools[u->pool];
    for (uint32_t c = u->chunk_begin; c < u->chunk_end && u->pending; c++) {
        size_t entry = pot_store_entry(s, u->layer, u->expert, c);
        pot_read *r = s->state[entry] == POT_CHUNK_LOADING ? &p->reads[s->slot_of[entry]].read : NULL;
        if (r && pot_reader_cancel(s->reader, r)) pot_reader_submit(s->reader, &r, 1, true);
    }
}

/* ---- begin ----------------------------------------------------------------------------------------------------------------- */

/* The distinct units of the wants, ascending as these are; those in the GPU's memory need no claim. */
static void collect_units(pot_store *s, uint32_t n, bool scan) {
    uint32_t last = POT_NO_UNIT;
    s->n_step_units = s->n_open = s->n_on_device = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t unit = s->unit_of[pot_store_entry(s, s->layer, s->wants[i].expert, s->wants[i].chunk)];
        POT_ASSERT(unit != POT_NO_UNIT);
        pot_unit *u = &s->units[unit];
        if (unit != last) {
            u->uses += !scan;
            u->left = 0;
            if (!u->device)
                s->step_units[s->n_step_units++] = unit;
            else
                s->stats.vram_wanted += !scan;
            last = unit;
        }
        if (u->device) {
            s->on_device[s->n_on_device++] = i;
        } else {
            u->left++;
            s->open[s->n_open++] = i;
        }
    }
}

static pot_status claim(pot_store *s, uint32_t pool, bool scan, pot_err *err) {
    uint32_t n = 0;
    pot_status status = POT_OK;
    pot_slot_pool *p = &s->pools[pool];
    for (uint32_t i = 0; i < s->n_step_units; i++)
        if (s->units[s->step_units[i]].pool == pool) s->numbers[n++] = s->units[s->step_units[i]].number;
    if (!n) return POT_OK;
    p->in_step = true;
    (void)pot_cache_begin(p->cache, s->layer, s->numbers, n, scan, s->hits);
    for (uint32_t i = 0, k = 0; i < s->n_step_units && status == POT_OK; i++) {
        pot_unit *u = &s->units[s->step_units[i]];
        if (u->pool != pool) continue;
        if (!s->hits[k++])
            s->misses[s->n_misses++] = s->step_units[i];
        else if (u->failed)
            status = read_again(s, u, err);
        else if (u->pending)
            hurry(s, u);
    }
    return status;
}

/* Queues reads as far as slots can be had. */
static pot_status admit(pot_store *s, pot_err *err) {
    while (s->next_miss < s->n_misses) {
        pot_unit *u = &s->units[s->misses[s->next_miss]];
        pot_slot_pool *p = &s->pools[u->pool];
        const uint64_t *evicted;
        uint32_t n;
        if (!pot_cache_admit(p->cache, u->number, &evicted, &n)) return POT_OK;
        pot_status status = displace_evicted(s, p, evicted, n, err);
        if (status != POT_OK) return status;
        pot_store_place(s, u);
        s->next_miss++;
        status = pot_store_queue(s, u, true, err);
        if (status != POT_OK) return status;
    }
    return POT_OK;
}

static pot_status say_broken(const pot_store *s, pot_err *err) {
    return pot_fail(err, POT_IO,
                    "%s: a disk or a GPU that never answered holds memory: restart this worker when it is back",
                    pot_model_directory(s->model));
}

pot_status pot_store_begin(pot_store *s, uint32_t layer, const pot_store_want *wants, uint32_t n, bool scan,
                           pot_err *err) {
    const pot_ffn_shape *shape = NULL;
    s->number++;
    s->scan = scan;
    s->layer = layer;
    s->wants = wants;
    s->n_given = s->n_misses = s->next_miss = 0;
    s->first_read_us = s->last_read_us = 0;
    s->step = (pot_store_step){0};
    s->fault.status = POT_OK;
    if (s->broken) return say_broken(s, err);
    collect_units(s, n, scan);
    for (uint32_t i = 0; i < s->n_pools; i++) {
        pot_status status = claim(s, i, scan, err);
        if (status != POT_OK) return status;
    }
    for (uint32_t i = 0; i < n; i++) {
        shape = pot_model_expert_shape(s->model, layer, wants[i].expert);
        size_t entry = pot_store_entry(s, layer, wants[i].expert, wants[i].chunk);
        uint64_t *where = s->units[s->unit_of[entry]].device       ? &s->step.vram_bytes
                          : s->state[entry] >= POT_CHUNK_UNCHECKED ? &s->step.ram_bytes
                                                                   : &s->step.disk_bytes;
        *where += pot_chunk_bytes(shape, wants[i].chunk);
    }
    return admit(s, err);
}

void pot_store_hint(pot_store *s, uint32_t layer, const uint32_t *experts, uint32_t n) {
    if (!s->choice.prefetch || s->everything || !s->reader || layer >= s->n_layers) return;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t unit = s->layer_units[layer]; unit < s->layer_units[layer + 1]; unit++) {
            pot_unit *u = &s->units[unit];
            pot_slot_pool *p = &s->pools[u->pool];
            const uint64_t *evicted;
            uint32_t n_evicted;
            if (u->expert != experts[i] || u->device || !p->cache || pot_cache_resident(p->cache, layer, u->number))
                continue;
            if (!pot_cache_prefetch(p->cache, layer, u->number, &evicted, &n_evicted)) continue;
            if (displace_evicted(s, p, evicted, n_evicted, NULL) != POT_OK) return; /* the next step says so */
            pot_store_place(s, u);
            if (pot_store_queue(s, u, false, NULL) != POT_OK)
                u->failed = true; /* to be tried again when it is wanted */
        }
}

/* ---- take ------------------------------------------------------------------------------------------------------------------ */

/* What the latest take gave has been computed. */
static void finish_given(pot_store *s) {
    for (uint32_t i = 0; i < s->n_given; i++) {
        const pot_store_want *want = &s->wants[s->given[i]];
        pot_unit *u = &s->units[s->unit_of[pot_store_entry(s, s->layer, want->expert, want->chunk)]];
        if (--u->left == 0 && s->next_miss < s->n_misses) pot_cache_release(s->pools[u->pool].cache, u->number);
    }
    s->n_given = 0;
}

static pot_read *read_of(const pot_store *s, size_t entry) {
    return &s->pools[s->units[s->unit_of[entry]].pool].reads[s->slot_of[entry]].read;
}

static void check_part(void *context, int thread, int threads) {
    const pot_store *s = context;
    uint32_t begin, end;
    pot_team_share(&begin, &end, s->n_arrived, thread, threads);
    for (uint32_t i = begin; i < end; i++) {
        const pot_read *r = read_of(s, s->arrived[i]);
        s->sound[i] = pot_hash64(r->into, r->bytes) == r->checksum;
    }
}

/* Checksums of what has arrived, by all threads, so that the disk need not wait for them.  A chunk that is not sound is read again, and the
 * reader looks at it itself: it knows what to say. */
static void check_arrived(pot_store *s) {
    uint64_t bytes = 0;
    s->n_arrived = 0;
    for (uint32_t i = 0; i < s->n_open; i++) {
        const pot_store_want *want = &s->wants[s->open[i]];
        size_t entry = pot_store_entry(s, s->layer, want->expert, want->chunk);
        if (s->state[entry] != POT_CHUNK_UNCHECKED) continue;
        s->arrived[s->n_arrived++] = (uint32_t)entry;
        bytes += read_of(s, entry)->bytes;
    }
    if (!s->n_arrived) return;
    pot_team_run(s->team, bytes, check_part, s);
    for (uint32_t i = 0; i < s->n_arrived; i++) {
        pot_read *r = read_of(s, s->arrived[i]);
        pot_unit *u = &s->units[s->unit_of[s->arrived[i]]];
        s->state[s->arrived[i]] = s->sound[i] ? POT_CHUNK_READY : POT_CHUNK_LOADING;
        if (s->sound[i]) continue;
        r->has_checksum = true;
        u->pending++;
        u->queued_in = s->number;
        pot_reader_submit(s->reader, &r, 1, true);
    }
}

static uint32_t give_ready(pot_store *s, pot_store_given *out, uint32_t max) {
    uint32_t n = 0, kept = 0;
    if (s->next_miss < s->n_misses && max > BATCH) max = BATCH;
    for (uint32_t i = 0; i < s->n_open; i++) {
        const pot_store_want *want = &s->wants[s->open[i]];
        size_t entry = pot_store_entry(s, s->layer, want->expert, want->chunk);
        if (n == max || s->state[entry] != POT_CHUNK_READY) {
            s->open[kept++] = s->open[i];
            continue;
        }
        s->given[n] = s->open[i];
        out[n++] = (pot_store_given){s->open[i],
                                     pot_slot_data(&s->pools[s->units[s->unit_of[entry]].pool], s->slot_of[entry])};
    }
    s->n_open = kept;
    s->n_given = n;
    return n;
}

/* Of many rows a chunk is soon read and long computed: several at a time share the cost of bringing threads together.  Not when nothing is
 * on its way, and a few rows want each chunk at once. */
static bool is_worth_waiting(const pot_store *s, uint32_t max) {
    uint32_t ready = 0;
    if (!s->scan || !s->reader || s->fault.status != POT_OK || !pot_reader_pending(s->reader)) return false;
    const uint32_t enough = max < FEW ? max : FEW;
    for (uint32_t i = 0; i < s->n_open && ready < enough; i++) {
        const pot_store_want *want = &s->wants[s->open[i]];
        ready += s->state[pot_store_entry(s, s->layer, want->expert, want->chunk)] >= POT_CHUNK_UNCHECKED;
    }
    return ready < enough && ready < s->n_open;
}

static pot_status wait_for_read(pot_store *s, uint64_t begun_us, pot_err *err) {
    uint64_t start = pot_now_us();
    if (start - begun_us > s->choice.timeout_us)
        return pot_fail(err, POT_TIMEOUT,
                        "%s: a piece of layer %u was not read within %.1f s: is the disk still there?",
                        pot_store_file(s, s->layer), s->layer, (double)(start - begun_us) / 1e6);
    (void)pot_store_drain(s, WAIT_SLICE_US);
    s->step.wait_us += pot_now_us() - start;
    return POT_OK;
}

static pot_status retry_failed(pot_store *s, pot_err *err) {
    for (uint32_t i = 0; i < s->n_step_units && s->fault.status == POT_OK; i++) {
        pot_unit *u = &s->units[s->step_units[i]];
        if (!u->failed || u->pending || !u->left) continue;
        pot_status status = read_again(s, u, err);
        if (status != POT_OK) return status;
    }
    return POT_OK;
}

pot_status pot_store_take(pot_store_given *out, uint32_t *n, uint32_t max, pot_store *s, pot_err *err) {
    uint64_t heard_us = 0;
    if (s->broken) return say_broken(s, err);
    finish_given(s);
    for (;;) {
        pot_status status = admit(s, err);
        if (status != POT_OK) return status;
        while (s->reader && pot_store_drain(s, 0)) continue;
        status = retry_failed(s, err);
        if (status != POT_OK) return status;
        const bool more = is_worth_waiting(s, max);
        if (!more) check_arrived(s);
        *n = more ? 0 : give_ready(s, out, max);
        if (*n || !s->n_open) return POT_OK;
        if (s->fault.status != POT_OK) {
            if (err) *err = s->fault;
            return s->fault.status;
        }
        POT_ASSERT(s->reader && pot_reader_pending(s->reader));
        uint64_t reads = s->stats.reads;
        if (!heard_us) heard_us = pot_now_us();
        status = wait_for_read(s, heard_us, err);
        if (status != POT_OK) return status;
        if (s->stats.reads != reads) heard_us = pot_now_us();
    }
}

/* A unit of which a read failed is of no use; one whose reads are still under way stays. */
static void drop_failed(pot_store *s) {
    for (uint32_t i = 0; i < s->n_step_units; i++) {
        pot_unit *u = &s->units[s->step_units[i]];
        if (!u->failed || u->pending || pot_store_displace(s, u, NULL) != POT_OK) continue;
        pot_cache_drop(s->pools[u->pool].cache, u->layer, u->number);
    }
}

/* Tokens pass the layers in ascending order, but not every worker has something to do in each of them, and an MTP layer is not always asked. */
static void count_token(pot_store *s) {
    const bool is_new = s->layer <= s->last_layer;
    s->last_layer = s->layer;
    if (!is_new || ++s->stats.tokens % REPIN_TOKENS) return;
    for (uint32_t i = 0; i < s->n_pools; i++)
        if (s->pools[i].cache) pot_cache_repin(s->pools[i].cache);
    if (s->device) pot_store_repin_device(s);
}

void pot_store_end(pot_store *s) {
    drop_failed(s);
    for (uint32_t i = 0; i < s->n_pools; i++)
        if (s->pools[i].in_step) {
            pot_cache_end(s->pools[i].cache);
            s->pools[i].in_step = false;
        }
    if (s->first_read_us && s->last_read_us > s->first_read_us) s->step.load_us = s->last_read_us - s->first_read_us;
    s->stats.wait_us += s->step.wait_us;
    s->stats.load_us += s->step.load_us;
    s->stats.steps++;
    s->last_step = s->step;
    for (uint32_t i = 0; i < s->n_step_units; i++) s->units[s->step_units[i]].left = 0;
    s->n_step_units = s->n_open = s->n_given = 0;
    if (!s->scan) count_token(s);
}

pot_device *pot_store_device(const pot_store *s) { return s->device; }

uint32_t pot_store_take_device(pot_store_given *out, const pot_store *s) {
    for (uint32_t i = 0; i < s->n_on_device; i++) {
        const pot_store_want *want = &s->wants[s->on_device[i]];
        const pot_unit *u = &s->units[s->unit_of[pot_store_entry(s, s->layer, want->expert, want->chunk)]];
        out[i] = (pot_store_given){s->on_device[i],
                                   u->device + (want->chunk - u->chunk_begin) * s->pools[u->pool].slot_bytes};
    }
    return s->n_on_device;
}
