/* A message and its bytes are one allocation: the struct fills the first cache line, the bytes begin on the next. */
#include "proto/pool.h"

#include "common/mem.h"

enum { LINE = 64, SMALLEST_SHIFT = 8 };

static int class_of(size_t bytes) {
    int c = 0;
    while (c < POT_POOL_CLASSES && ((size_t)1 << (c + SMALLEST_SHIFT)) < bytes) c++;
    return c;
}

pot_message *pot_pool_take(pot_pool *pool, size_t bytes) {
    int c = class_of(bytes);
    if (c >= POT_POOL_CLASSES) return NULL;
    pot_message *m = pool->free[c];
    if (m) {
        pool->free[c] = m->next;
    } else {
        size_t capacity = (size_t)1 << (c + SMALLEST_SHIFT);
        _Static_assert(sizeof(pot_message) <= LINE, "a message's head fits a cache line");
        uint8_t *memory = pot_alloc_aligned(LINE + capacity);
        if (!memory) return NULL;
        m = (pot_message *)(void *)memory;
        m->bytes = memory + LINE;
        m->capacity = capacity;
    }
    m->n_bytes = bytes;
    m->next = NULL;
    m->internal = NULL;
    return m;
}

void pot_pool_give(pot_pool *pool, pot_message *m) {
    int c = class_of(m->capacity);
    m->next = pool->free[c];
    pool->free[c] = m;
}

void pot_pool_drain(pot_pool *pool) {
    for (int c = 0; c < POT_POOL_CLASSES; c++)
        while (pool->free[c]) {
            pot_message *m = pool->free[c];
            pool->free[c] = m->next;
            pot_free(m);
        }
}
