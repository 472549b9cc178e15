/* The GPU as a worker uses it: chunks of experts that lie in its memory, many for one row, through worker/device.h. */
#include <stdio.h>
#include <string.h>

#include "cli/machine_probe.h"
#include "common/system.h"
#include "kernels/linear.h"
#include "worker/device.h"

/* Chunks of GLM-5.2; a batch is what eight experts are. */
enum { HIDDEN = 6144, INNER = 2048, BATCH = 64, MOST_CHUNKS = 1024, WINDOWS = 15, GRID = 24, ANSWER_US = 30000000 };

typedef struct probe {
    pot_device *device;
    pot_compute alone;
    pot_ffn_shape shape;
    size_t chunk_bytes;
    uint8_t *memory; /* the device's */
    uint32_t n, next;
    pot_acts acts;
    float x[HIDDEN];
    int64_t *sums;
} probe;

/* Zeros are weights as good as any: no GPU looks at them before it multiplies.  More of them than its caches hold. */
static pot_status prepare(probe *p, pot_err *err) {
    pot_ffn_shape_init(&p->shape, HIDDEN, INNER, POT_FORMAT_MXFP4, POT_FORMAT_MXFP4);
    p->chunk_bytes = pot_chunk_bytes(&p->shape, 0);
    uint64_t room = pot_device_bytes(p->device) / p->chunk_bytes;
    uint32_t wanted = room < MOST_CHUNKS ? (uint32_t)room : MOST_CHUNKS;
    if (wanted < BATCH)
        return pot_fail(err, POT_LIMIT, "%s: too little memory to measure it", pot_device_name(p->device));
    uint8_t *zeros = pot_alloc(p->chunk_bytes);
    p->sums = pot_alloc_array(HIDDEN, sizeof *p->sums);
    pot_status status = zeros && p->sums ? POT_OK : pot_fail(err, POT_NO_MEMORY, "no memory to measure a GPU");
    if (!status)
        status = pot_device_alloc(&p->memory, p->device, wanted * p->chunk_bytes, "weights to measure with", err);
    for (; !status && p->n < wanted; p->n++)
        status = pot_device_upload(p->device, p->memory + p->n * p->chunk_bytes, zeros, p->chunk_bytes, err);
    pot_free(zeros);
    for (int i = 0; i < HIDDEN; i++) p->x[i] = (float)(i % 17 - 8);
    if (!status) status = pot_kernels_pick(&p->alone.kernels, "auto", err);
    if (!status) status = pot_acts_create(&p->acts, 1, HIDDEN, err);
    return status ? status
                  : pot_acts_fill(&p->acts, &p->alone, p->x, HIDDEN, HIDDEN, 1, pot_act_need(POT_FORMAT_MXFP4), err);
}

static pot_status batch(probe *p, pot_err *err) {
    static const uint32_t row = 0;
    static const float weight = 1;
    pot_ffn_job jobs[BATCH];
    for (int i = 0; i < BATCH; i++) {
        jobs[i] = (pot_ffn_job){.n_rows = 1, .rows = &row, .weights = &weight};
        pot_chunk_view(&jobs[i].chunk, &p->shape, 0, p->memory + (size_t)(p->next++ % p->n) * p->chunk_bytes);
    }
    pot_device_start(p->device, HIDDEN, p->acts.rows, 1, jobs, BATCH, GRID);
    return pot_device_finish(p->device, p->sums, ANSWER_US, err);
}

static pot_status measure(pot_spread *out, probe *p, double seconds, pot_err *err) {
    double rates[WINDOWS];
    pot_status status = batch(p, err);
    for (int w = 0; !status && w < WINDOWS; w++) {
        double begin = pot_bench_seconds(), now = begin, bytes = 0;
        while (!status && now - begin < seconds / WINDOWS) {
            status = batch(p, err);
            bytes += (double)p->chunk_bytes * BATCH;
            now = pot_bench_seconds();
        }
        rates[w] = bytes / (now - begin) * 1e-9;
        if (!status && pot_stop_requested()) status = pot_fail(err, POT_CANCELLED, "stopped");
    }
    if (!status) *out = pot_spread_of(rates, WINDOWS);
    return status;
}

pot_status probe_gpu_measure(probe_gpu *out, uint32_t nth, uint32_t beside, double seconds, pot_err *err) {
    *out = (probe_gpu){0};
    probe *p = pot_alloc(sizeof *p);
    if (!p) return pot_fail(err, POT_NO_MEMORY, "no memory to measure a GPU");
    pot_status status = pot_device_open(&p->device, UINT64_MAX, nth, beside, err);
    if (!status && p->device) {
        snprintf(out->name, sizeof out->name, "%s", pot_device_name(p->device));
        if (!pot_device_shares_memory(p->device)) {
            out->bytes = pot_device_bytes(p->device);
            status = prepare(p, err);
            if (!status) status = measure(&out->gb_per_s, p, seconds, err);
        }
    }
    pot_device_close(p->device);
    pot_acts_free(&p->acts);
    pot_free(p->sums);
    pot_free(p);
    return status;
}
