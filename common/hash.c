/* XXH3 by libxxhash.  The 128-bit state is the library's own object: its size belongs to the shared library's
 * version, so it is created there and not embedded here. */
#include "common/hash.h"

#include <stdio.h>
#include <xxhash.h>

#include "common/mem.h"

struct pot_hasher {
    XXH3_state_t *state;
};

pot_hasher *pot_hasher_create(void) {
    pot_hasher *h = pot_alloc(sizeof *h);
    if (!h) return NULL;
    h->state = XXH3_createState();
    if (!h->state) {
        pot_free(h);
        return NULL;
    }
    XXH3_128bits_reset(h->state);
    return h;
}

void pot_hasher_add(pot_hasher *h, const void *data, size_t bytes) {
    if (bytes) XXH3_128bits_update(h->state, data, bytes);
}

pot_hash pot_hasher_end(pot_hasher *h) {
    XXH128_hash_t hash = XXH3_128bits_digest(h->state);
    XXH3_freeState(h->state);
    pot_free(h);
    return (pot_hash){.low = hash.low64, .high = hash.high64};
}

uint64_t pot_hash64(const void *data, size_t bytes) { return XXH3_64bits(bytes ? data : "", bytes); }

void pot_hash_text(char out[33], pot_hash hash) {
    snprintf(out, 33, "%016llx%016llx", (unsigned long long)hash.high, (unsigned long long)hash.low);
}
