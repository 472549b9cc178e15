/* Message buffers by size class (powers of two from 256 bytes), kept when they are given back.  Not locked: the transport that
 * owns the pool holds its own mutex. */
#ifndef POT_PROTO_POOL_H
#define POT_PROTO_POOL_H

#include "proto/transport.h"

enum { POT_POOL_CLASSES = 32 };
typedef struct pot_pool {
    pot_message *free[POT_POOL_CLASSES];
} pot_pool;

pot_message *pot_pool_take(pot_pool *pool, size_t bytes); /* NULL when memory is short; n_bytes is set */
void pot_pool_give(pot_pool *pool, pot_message *message);
void pot_pool_drain(pot_pool *pool);

#endif
