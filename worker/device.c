/* The thread sleeps until there is work; it and the owner take turns with the device, never at the same time. */
#include "worker/device.h"

#include "common/log.h"
#include "kernels/cuda/cuda.h"

#ifdef POT_HAVE_CUDA

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/float_mode.h"
#include "common/mem.h"

enum { MOST_BLOCKS = 16 };

/* Working memory of kernels, and what the driver takes later. */
static const uint64_t reserve_bytes = (uint64_t)512 << 20;

struct pot_device {
    pot_cuda *cuda;
    pot_cuda_info info;
    uint64_t bytes;
    uint8_t *blocks[MOST_BLOCKS];
    uint32_t n_blocks;
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool lost;                               /* it did not answer in time: whatever it holds is left to it */
    enum { IDLE, BUSY, DONE, ENDING } state; /* guarded by mutex */
    /* The work. */
    uint32_t hidden, n_rows, n_jobs;
    const pot_act_row *x;
    const pot_ffn_job *jobs;
    int grid;
    int64_t *sums; /* [capacity] */
    size_t capacity;
    pot_status status;
    pot_err fault;
};

static pot_status run_jobs(pot_device *d) {
    const size_t n = (size_t)d->n_rows * d->hidden;
    if (n > d->capacity) {
        pot_free(d->sums);
        d->sums = pot_alloc_array(n, sizeof *d->sums);
        d->capacity = d->sums ? n : 0;
        if (!d->sums) return pot_fail(&d->fault, POT_NO_MEMORY, "no memory for the sums of %u rows", d->n_rows);
    }
    memset(d->sums, 0, n * sizeof *d->sums);
    return pot_cuda_ffn_run(d->cuda, d->sums, d->hidden, d->x, d->jobs, d->n_jobs, d->grid, &d->fault);
}

static void *device_main(void *context) {
    pot_device *d = context;
    pot_fp_strict();
    pthread_mutex_lock(&d->mutex);
    while (d->state != ENDING) {
        if (d->state == BUSY) {
            pthread_mutex_unlock(&d->mutex);
            pot_status status = run_jobs(d);
            pthread_mutex_lock(&d->mutex);
            d->status = status;
            d->state = DONE;
            pthread_cond_broadcast(&d->changed);
        } else {
            pthread_cond_wait(&d->changed, &d->mutex);
        }
    }
    pthread_mutex_unlock(&d->mutex);
    return NULL;
}

static pot_status open_device(pot_device *d, uint64_t bytes, int device, uint32_t sharers, pot_err *err) {
    pot_status s = pot_cuda_describe(&d->info, device, err);
    if (s == POT_OK) s = pot_cuda_open(&d->cuda, device, err);
    if (s != POT_OK) return s;
    const uint64_t spare = d->info.free_bytes > reserve_bytes ? d->info.free_bytes - reserve_bytes : 0;
    d->bytes = bytes == UINT64_MAX ? spare / sharers : bytes;
    if (d->bytes > spare)
        return pot_fail(err, POT_LIMIT,
                        "--vram asks for %.3f GiB, the GPU (%s) has %.3f GiB free beside its working memory",
                        (double)bytes / 0x1p30, d->info.name, (double)spare / 0x1p30);
    if (pthread_create(&d->thread, NULL, device_main, d)) return pot_fail(err, POT_ERROR, "no thread for the GPU");
    d->has_thread = true;
    return POT_OK;
}

pot_status pot_device_open(pot_device **out, uint64_t bytes, uint32_t nth, uint32_t beside, pot_err *err) {
    *out = NULL;
    if (bytes == 0) return POT_OK;
    const uint32_t count = (uint32_t)pot_cuda_count();
    if (count == 0) {
        if (bytes == UINT64_MAX) return POT_OK;
        return pot_fail(err, POT_NOT_FOUND, "--vram asks for %.3f GiB, but this machine has no GPU that CUDA can use",
                        (double)bytes / 0x1p30);
    }
    pot_device *d = pot_alloc(sizeof *d);
    if (!d) return pot_fail(err, POT_NO_MEMORY, "no memory for a GPU");
    pthread_mutex_init(&d->mutex, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&d->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    const uint32_t device = nth % count, sharers = beside > device ? (beside - device + count - 1) / count : 1;
    pot_status s = open_device(d, bytes, (int)device, sharers, err);
    if (s == POT_OK) {
        *out = d;
        return POT_OK;
    }
    pot_device_close(d);
    if (bytes != UINT64_MAX) return s;
    if (err) POT_LOG(POT_LOG_WARN, "worker.device", "the GPU is not used: %s", err->text);
    return POT_OK;
}

void pot_device_close(pot_device *d) {
    if (!d) return;
    if (d->lost) { /* its thread and the driver may come back to all of this */
        pthread_detach(d->thread);
        return;
    }
    if (d->has_thread) {
        pthread_mutex_lock(&d->mutex);
        d->state = ENDING;
        pthread_cond_broadcast(&d->changed);
        pthread_mutex_unlock(&d->mutex);
        pthread_join(d->thread, NULL);
    }
    for (uint32_t i = 0; i < d->n_blocks; i++) pot_cuda_free(d->cuda, d->blocks[i]);
    pot_cuda_close(d->cuda);
    pthread_mutex_destroy(&d->mutex);
    pthread_cond_destroy(&d->changed);
    pot_free(d->sums);
    pot_free(d);
}

uint64_t pot_device_bytes(const pot_device *d) { return d->bytes; }
void pot_device_limit(pot_device *d, uint64_t bytes) {
    if (bytes < d->bytes) d->bytes = bytes;
}
bool pot_device_shares_memory(const pot_device *d) { return d->info.integrated; }
const char *pot_device_name(const pot_device *d) { return d->info.name; }

pot_status pot_device_alloc(uint8_t **out, pot_device *d, size_t bytes, const char *what, pot_err *err) {
    POT_ASSERT(d->n_blocks < MOST_BLOCKS);
    pot_status s = pot_cuda_alloc(out, d->cuda, bytes, what, err);
    if (s == POT_OK) d->blocks[d->n_blocks++] = *out;
    return s;
}

pot_status pot_device_upload(pot_device *d, uint8_t *to, const uint8_t *from, size_t bytes, pot_err *err) {
    return pot_cuda_upload(d->cuda, to, from, bytes, err);
}

void pot_device_start(pot_device *d, uint32_t hidden, const pot_act_row *x, uint32_t n_rows, const pot_ffn_job *jobs,
                      uint32_t n_jobs, int grid) {
    pthread_mutex_lock(&d->mutex);
    POT_ASSERT(d->state == IDLE);
    d->hidden = hidden;
    d->x = x;
    d->n_rows = n_rows;
    d->jobs = jobs;
    d->n_jobs = n_jobs;
    d->grid = grid;
    d->state = BUSY;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->mutex);
}

pot_status pot_device_finish(pot_device *d, int64_t *acc, uint64_t timeout_us, pot_err *err) {
    struct timespec until;
    int waited = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(timeout_us / 1000000) + 1; /* whole seconds are fine enough */
    pthread_mutex_lock(&d->mutex);
    POT_ASSERT(d->state == BUSY || d->state == DONE);
    while (d->state == BUSY && waited == 0) waited = pthread_cond_timedwait(&d->changed, &d->mutex, &until);
    d->lost = d->state == BUSY;
    if (!d->lost) d->state = IDLE;
    pthread_mutex_unlock(&d->mutex);
    if (d->lost)
        return pot_fail(
            err, POT_TIMEOUT,
            "the GPU (%s) has not answered within %.0f s: restart this worker, without --vram if it does not help",
            d->info.name, (double)timeout_us / 1e6);
    if (d->status != POT_OK) {
        if (err) *err = d->fault;
        return d->status;
    }
    for (size_t i = 0; i < (size_t)d->n_rows * d->hidden; i++) acc[i] += d->sums[i];
    return POT_OK;
}

#else

pot_status pot_device_open(pot_device **out, uint64_t bytes, uint32_t nth, uint32_t beside, pot_err *err) {
    (void)nth, (void)beside;
    *out = NULL;
    if (bytes == 0 || bytes == UINT64_MAX) return POT_OK;
    return pot_fail(err, POT_NOT_FOUND,
                    "--vram asks for %.3f GiB, but this potluck was built without CUDA (make CUDA=1)",
                    (double)bytes / 0x1p30);
}

/* Nobody has a device to call these with. */
void pot_device_close(pot_device *d) { POT_ASSERT(!d); }
uint64_t pot_device_bytes(const pot_device *d) { return d ? 1 : 0; }
void pot_device_limit(pot_device *d, uint64_t bytes) { POT_ASSERT(!d || bytes); }
bool pot_device_shares_memory(const pot_device *d) { return d != NULL; }
const char *pot_device_name(const pot_device *d) { return d ? "?" : "none"; }
pot_status pot_device_alloc(uint8_t **out, pot_device *d, size_t bytes, const char *what, pot_err *err) {
    (void)out, (void)d, (void)bytes;
    return pot_fail(err, POT_BUG, "%s: there is no GPU", what);
}
pot_status pot_device_upload(pot_device *d, uint8_t *to, const uint8_t *from, size_t bytes, pot_err *err) {
    (void)d, (void)to, (void)from, (void)bytes;
    return pot_fail(err, POT_BUG, "an upload without a GPU");
}
void pot_device_start(pot_device *d, uint32_t hidden, const pot_act_row *x, uint32_t n_rows, const pot_ffn_job *jobs,
                      uint32_t n_jobs, int grid) {
    (void)d, (void)hidden, (void)x, (void)n_rows, (void)jobs, (void)n_jobs, (void)grid;
    POT_ASSERT(false);
}
pot_status pot_device_finish(pot_device *d, int64_t *acc, uint64_t timeout_us, pot_err *err) {
    (void)d, (void)acc, (void)timeout_us;
    return pot_fail(err, POT_BUG, "there is no GPU");
}

#endif
