/* XXH3 checksums and a running hash for the model fingerprint. */
#ifndef POT_COMMON_HASH_H
#define POT_COMMON_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct pot_hash {
    uint64_t low, high;
} pot_hash;

typedef struct pot_hasher pot_hasher; /* XXH3-128 state */
pot_hasher *pot_hasher_create(void);  /* NULL when memory is short */
void pot_hasher_add(pot_hasher *h, const void *data, size_t bytes);
pot_hash pot_hasher_end(pot_hasher *h); /* frees it */

uint64_t pot_hash64(const void *data, size_t bytes);
static inline int pot_hash_equal(pot_hash a, pot_hash b) { return a.low == b.low && a.high == b.high; }
/* 32 hex digits and a NUL. */
void pot_hash_text(char out[33], pot_hash hash);

#endif
