/* A thread of its own, because the owner of a transport may compute for seconds and must not be taken for dead meanwhile. */
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "common/mem.h"
#include "proto/control.h"

struct pot_pulse {
    pot_transport *transport;
    const pot_pulse_counters *counters;
    uint32_t *peers;
    uint32_t n;
    uint64_t interval_us;
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t stopped;
    bool stop; /* guarded by mutex */
};

static void beat(pot_pulse *p, uint64_t sequence) {
    pot_control c = {.type = POT_CONTROL_HEARTBEAT};
    c.heartbeat = (pot_heartbeat){.sequence = sequence,
                                  .state = p->counters->state,
                                  .steps = p->counters->steps,
                                  .items = p->counters->items,
                                  .loaded_bytes = p->counters->loaded_bytes,
                                  .total_bytes = p->counters->total_bytes};
    /* A peer that is gone is the owner's to notice: it gets a LOST message. */
    for (uint32_t i = 0; i < p->n; i++) (void)pot_control_send(p->transport, p->peers[i], &c, NULL);
}

static void *run(void *argument) {
    pot_pulse *p = argument;
    for (uint64_t sequence = 0;; sequence++) {
        struct timespec at; /* from now on: beats that were missed (a stopped process, say) are not made up for */
        beat(p, sequence);
        clock_gettime(CLOCK_MONOTONIC, &at);
        uint64_t nanoseconds = (uint64_t)at.tv_nsec + p->interval_us * 1000;
        at.tv_sec += (time_t)(nanoseconds / 1000000000);
        at.tv_nsec = (long)(nanoseconds % 1000000000);
        pthread_mutex_lock(&p->mutex);
        while (!p->stop && pthread_cond_timedwait(&p->stopped, &p->mutex, &at) == 0) {
        }
        bool stop = p->stop;
        pthread_mutex_unlock(&p->mutex);
        if (stop) return NULL;
    }
}

pot_status pot_pulse_start(pot_pulse **out, pot_transport *t, const uint32_t *peers, uint32_t n, uint64_t interval_us,
                           const pot_pulse_counters *counters, pot_err *err) {
    pot_pulse *p = pot_alloc(sizeof *p);
    if (p) p->peers = pot_alloc_array(n, sizeof *p->peers);
    if (!p || !p->peers) {
        pot_free(p);
        return pot_fail(err, POT_NO_MEMORY, "no memory for the heartbeat");
    }
    p->transport = t;
    p->counters = counters;
    p->n = n;
    p->interval_us = interval_us;
    memcpy(p->peers, peers, n * sizeof *peers);
    pthread_mutex_init(&p->mutex, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&p->stopped, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int failed = pthread_create(&p->thread, NULL, run, p);
    if (failed) {
        pthread_cond_destroy(&p->stopped);
        pthread_mutex_destroy(&p->mutex);
        pot_free(p->peers);
        pot_free(p);
        return pot_fail(err, POT_ERROR, "the heartbeat's thread does not start: %s", strerror(failed));
    }
    *out = p;
    return POT_OK;
}

void pot_pulse_stop(pot_pulse *p) {
    if (!p) return;
    pthread_mutex_lock(&p->mutex);
    p->stop = true;
    pthread_cond_signal(&p->stopped);
    pthread_mutex_unlock(&p->mutex);
    pthread_join(p->thread, NULL);
    pthread_cond_destroy(&p->stopped);
    pthread_mutex_destroy(&p->mutex);
    pot_free(p->peers);
    pot_free(p);
}
