/* The part of a store that lies in a GPU's memory: the hottest units.  They stay until others have become hotter by a margin; a unit that
 * has to leave is on disk (in a model that is not converted nothing leaves). */
#include "common/log.h"
#include "common/system.h"
#include "worker/store_internal.h"

enum { SWAPS = 4 /* at a time: each stops the worker for as long as an upload takes */ };

static uint32_t unit_slots(const pot_unit *u) { return (uint32_t)(u->chunk_end - u->chunk_begin); }

/* Each pool gets a share by bytes, and in it the hottest of its units. */
static pot_status take_memory(pot_store *s, pot_unit **order, pot_err *err) {
    uint64_t all = 0;
    for (uint32_t i = 0; i < s->n_pools; i++) all += s->pools[i].owned_slots * (uint64_t)s->pools[i].slot_bytes;
    for (uint32_t i = 0; i < s->n_pools; i++) {
        pot_slot_pool *p = &s->pools[i];
        double share = (double)pot_device_bytes(s->device) / (double)all;
        p->device_slots = share < 1 ? (uint32_t)(share * p->owned_slots) : p->owned_slots;
        if (!p->device_slots) continue;
        pot_status status = pot_device_alloc(&p->device, s->device, p->device_slots * p->slot_bytes, "experts", err);
        if (status != POT_OK) return status;
        for (uint32_t k = 0; k < s->n_units; k++) {
            pot_unit *u = order[k];
            if (u->pool != i || p->device_slots_used + unit_slots(u) > p->device_slots) continue;
            u->device = p->device + p->device_slots_used * p->slot_bytes;
            p->device_slots_used += unit_slots(u);
        }
        s->stats.vram_bytes += p->device_slots_used * (uint64_t)p->slot_bytes;
    }
    return POT_OK;
}

pot_status pot_store_open_device(pot_store *s, const pot_store_options *o, pot_err *err) {
    if (!s->n_units) return POT_OK;
    pot_status status = pot_device_open(&s->device, s->choice.vram_bytes, o->nth, o->beside, err);
    if (status != POT_OK || !s->device) return status;
    /* Where the GPU's memory is the machine's, the two share: three quarters for the GPU, or what an explicit --ram leaves. */
    if (pot_device_shares_memory(s->device) && s->choice.vram_bytes == UINT64_MAX && o->machine_bytes) {
        const uint64_t ram = s->choice.ram_bytes, all = o->machine_bytes;
        const bool given = ram && ram != UINT64_MAX;
        pot_device_limit(s->device, given ? (all > ram ? all - ram : 0) : all / 4 * 3);
    }
    pot_unit **order = pot_alloc_array(s->n_units, sizeof *order);
    if (!order) return pot_fail(err, POT_NO_MEMORY, "no memory to sort %u pieces of experts", s->n_units);
    pot_store_order(order, s);
    status = take_memory(s, order, err);
    pot_free(order);
    if (status == POT_OK)
        POT_LOG(POT_LOG_INFO, "worker.store", "worker %u: %.3f GiB of experts on the GPU (%s)", s->worker,
                (double)s->stats.vram_bytes / 0x1p30, pot_device_name(s->device));
    return status;
}

static pot_status upload(pot_store *s, const pot_unit *u, uint32_t chunk, const uint8_t *data, pot_err *err) {
    const pot_ffn_shape *shape = pot_model_expert_shape(s->model, u->layer, u->expert);
    return pot_device_upload(s->device, u->device + (chunk - u->chunk_begin) * s->pools[u->pool].slot_bytes, data,
                             pot_chunk_bytes(shape, chunk), err);
}

pot_status pot_store_load_device(pot_store *s, const pot_store_options *o, pot_err *err) {
    size_t most = 0;
    if (!s->device) return POT_OK;
    for (uint32_t i = 0; i < s->n_pools; i++)
        if (s->pools[i].slot_bytes > most) most = s->pools[i].slot_bytes;
    uint8_t *chunk = pot_alloc_aligned(most);
    pot_status status = chunk ? POT_OK : pot_fail(err, POT_NO_MEMORY, "no memory to load experts");
    for (uint32_t i = 0; i < s->n_units && status == POT_OK; i++) {
        const pot_unit *u = &s->units[i];
        if (!u->device) continue;
        if (pot_stop_requested())
            status = pot_fail(err, POT_CANCELLED, "stopped by a signal while experts were loaded");
        for (uint32_t c = u->chunk_begin; c < u->chunk_end && status == POT_OK; c++) {
            status = pot_model_load_chunk(chunk, s->model, u->layer, u->expert, c, err);
            if (status == POT_OK) status = upload(s, u, c, chunk, err);
            atomic_fetch_add(o->loaded_bytes,
                             pot_chunk_bytes(pot_model_expert_shape(s->model, u->layer, u->expert), c));
        }
        if (o->watcher.tick) o->watcher.tick(o->watcher.context);
    }
    pot_free(chunk);
    return status;
}

pot_status pot_store_finish_device(pot_store *s, int64_t *acc, pot_err *err) {
    pot_status status = pot_device_finish(s->device, acc, s->choice.timeout_us, err);
    if (status == POT_TIMEOUT) s->broken = true;
    return status;
}

/* ---- while running --------------------------------------------------------------------------------------------------------- */

/* Whether all of it is in RAM now, so that moving it takes an upload and no read. */
static bool is_in_ram(const pot_store *s, const pot_unit *u) {
    for (uint32_t c = u->chunk_begin; c < u->chunk_end; c++)
        if (s->state[pot_store_entry(s, u->layer, u->expert, c)] != POT_CHUNK_READY) return false;
    return true;
}

/* The hottest in RAM and the coldest on the GPU, of one pool and size. */
static bool find_swap_in(pot_store *s, uint32_t pool, pot_unit **hot, pot_unit **cold) {
    *hot = *cold = NULL;
    for (uint32_t i = 0; i < s->n_units; i++) {
        pot_unit *u = &s->units[i];
        if (u->pool == pool && u->device && (!*cold || u->uses < (*cold)->uses)) *cold = u;
    }
    for (uint32_t i = 0; i < s->n_units && *cold; i++) {
        pot_unit *u = &s->units[i];
        if (!u->device && u->pool == pool && unit_slots(u) == unit_slots(*cold) && (!*hot || u->uses > (*hot)->uses) &&
            is_in_ram(s, u))
            *hot = u;
    }
    return *hot && (double)(*hot)->uses > 1.25 * (double)(*cold)->uses + 4;
}

static bool find_swap(pot_store *s, pot_unit **hot, pot_unit **cold) {
    for (uint32_t pool = 0; pool < s->n_pools; pool++)
        if (find_swap_in(s, pool, hot, cold)) return true;
    return false;
}

void pot_store_repin_device(pot_store *s) {
    pot_unit *hot, *cold;
    if (!s->reader) return; /* what leaves the GPU must be on disk */
    for (int i = 0; i < SWAPS && find_swap(s, &hot, &cold); i++) {
        uint8_t *place = cold->device;
        cold->device = NULL;
        hot->device = place;
        for (uint32_t c = hot->chunk_begin; c < hot->chunk_end; c++) {
            size_t entry = pot_store_entry(s, hot->layer, hot->expert, c);
            pot_err err;
            if (upload(s, hot, c, pot_slot_data(&s->pools[hot->pool], s->slot_of[entry]), &err) == POT_OK) continue;
            POT_LOG(POT_LOG_WARN, "worker.store", "an expert stays in RAM: %s", err.text);
            hot->device = NULL; /* the place stays empty: both are elsewhere */
            return;
        }
        pot_cache_drop(s->pools[hot->pool].cache, hot->layer, hot->number);
        (void)pot_store_displace(s, hot, NULL);
    }
}
