/* Ends in one process.  A message changes hands by pointer: the sender's buffer is put into the receiver's queue, and goes back to
 * the pool that all ends of the hub share.  One mutex for the hub: ends are few and messages are large. */
#include "proto/transport.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/mem.h"
#include "proto/pool.h"

typedef struct mem_end mem_end;

typedef struct hub {
    pthread_mutex_t mutex;
    pot_pool pool; /* guarded by mutex */
    uint32_t n_ends, open_ends;
    mem_end *ends; /* [n_ends] */
} hub;

struct mem_end {
    pot_transport transport; /* first: a pot_transport is an end */
    hub *hub;
    uint32_t self;
    pthread_cond_t ready;
    pot_message *head, *tail; /* guarded by hub->mutex, like the rest */
    bool woken, closed;
};

static pot_message *mem_message(pot_transport *t, size_t bytes) {
    hub *h = ((mem_end *)(void *)t)->hub;
    pthread_mutex_lock(&h->mutex);
    pot_message *m = pot_pool_take(&h->pool, bytes);
    pthread_mutex_unlock(&h->mutex);
    return m;
}

static void mem_release(pot_transport *t, pot_message *m) {
    hub *h = ((mem_end *)(void *)t)->hub;
    pthread_mutex_lock(&h->mutex);
    pot_pool_give(&h->pool, m);
    pthread_mutex_unlock(&h->mutex);
}

static void enqueue(mem_end *end, pot_message *m) {
    m->next = NULL;
    if (end->tail)
        end->tail->next = m;
    else
        end->head = m;
    end->tail = m;
    pthread_cond_signal(&end->ready);
}

static pot_status mem_send(pot_transport *t, uint32_t peer, pot_message *m, pot_err *err) {
    mem_end *from = (mem_end *)(void *)t;
    hub *h = from->hub;
    POT_ASSERT(peer < h->n_ends && peer != from->self);
    pthread_mutex_lock(&h->mutex);
    mem_end *to = &h->ends[peer];
    bool gone = to->closed;
    if (gone) {
        pot_pool_give(&h->pool, m);
    } else {
        m->peer = from->self;
        enqueue(to, m);
    }
    pthread_mutex_unlock(&h->mutex);
    return gone ? pot_fail(err, POT_PEER_LOST, "end %u has closed", peer) : POT_OK;
}

static pot_status mem_receive(pot_transport *t, uint64_t timeout_us, pot_message **out, pot_err *err) {
    (void)err;
    mem_end *end = (mem_end *)(void *)t;
    hub *h = end->hub;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t nanoseconds = (uint64_t)until.tv_nsec + timeout_us % 1000000 * 1000;
    until.tv_sec += (time_t)(timeout_us / 1000000 + nanoseconds / 1000000000);
    until.tv_nsec = (long)(nanoseconds % 1000000000);
    pthread_mutex_lock(&h->mutex);
    while (!end->head && !end->woken && timeout_us)
        if (pthread_cond_timedwait(&end->ready, &h->mutex, &until) == ETIMEDOUT) break;
    pot_message *m = end->head;
    if (m) {
        end->head = m->next;
        if (!end->head) end->tail = NULL;
        m->next = NULL;
    } else {
        end->woken = false;
    }
    pthread_mutex_unlock(&h->mutex);
    *out = m;
    return POT_OK;
}

static void mem_wake(pot_transport *t) {
    mem_end *end = (mem_end *)(void *)t;
    pthread_mutex_lock(&end->hub->mutex);
    end->woken = true;
    pthread_cond_signal(&end->ready);
    pthread_mutex_unlock(&end->hub->mutex);
}

static void free_hub(hub *h) {
    for (uint32_t i = 0; i < h->n_ends; i++) pthread_cond_destroy(&h->ends[i].ready);
    pthread_mutex_destroy(&h->mutex);
    pot_pool_drain(&h->pool);
    pot_free(h->ends);
    pot_free(h);
}

/* Everybody else learns of it behind what was sent before; the last one to leave frees the hub. */
static void mem_close(pot_transport *t, uint64_t timeout_us) {
    (void)timeout_us; /* what was sent is in its queue already */
    mem_end *end = (mem_end *)(void *)t;
    hub *h = end->hub;
    pthread_mutex_lock(&h->mutex);
    end->closed = true;
    while (end->head) {
        pot_message *m = end->head;
        end->head = m->next;
        pot_pool_give(&h->pool, m);
    }
    end->tail = NULL;
    for (uint32_t i = 0; i < h->n_ends; i++) {
        pot_message *m = h->ends[i].closed ? NULL : pot_pool_take(&h->pool, 32);
        if (!m) continue;
        snprintf((char *)m->bytes, 32, "it has closed");
        m->kind = POT_MESSAGE_LOST;
        m->peer = end->self;
        enqueue(&h->ends[i], m);
    }
    bool last = --h->open_ends == 0;
    pthread_mutex_unlock(&h->mutex);
    if (last) free_hub(h);
}

static const pot_transport_ops mem_ops = {.name = "mem",
                                          .message = mem_message,
                                          .release = mem_release,
                                          .send = mem_send,
                                          .receive = mem_receive,
                                          .wake = mem_wake,
                                          .close = mem_close};

pot_status pot_transport_mem_create(pot_transport **ends, uint32_t n, pot_err *err) {
    hub *h = pot_alloc(sizeof *h);
    mem_end *all = pot_alloc_array(n, sizeof *all);
    if (!h || !all) {
        pot_free(h);
        pot_free(all);
        return pot_fail(err, POT_NO_MEMORY, "no memory for %u ends of a transport", n);
    }
    pthread_mutex_init(&h->mutex, NULL);
    h->n_ends = h->open_ends = n;
    h->ends = all;
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    for (uint32_t i = 0; i < n; i++) {
        all[i].transport.ops = &mem_ops;
        all[i].hub = h;
        all[i].self = i;
        pthread_cond_init(&all[i].ready, &monotonic);
        ends[i] = &all[i].transport;
    }
    pthread_condattr_destroy(&monotonic);
    return POT_OK;
}
