/* All heap memory of potluck.
 *
 * Ordinary objects: pot_alloc family (zero-initialised; NULL only when memory is short or a test makes
 * allocation number n fail).  Weights and caches: slabs, 2 MiB aligned and advised to use huge pages
 * (measured: +10-17% read bandwidth, docs/kernels).  Whoever creates, frees.
 */
#ifndef POT_COMMON_MEM_H
#define POT_COMMON_MEM_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

void *pot_alloc(size_t bytes);                                 /* zeroed; pot_alloc(0) gives a valid pointer */
void *pot_alloc_array(size_t count, size_t size);              /* zeroed; NULL also when count * size overflows */
void *pot_realloc_array(void *old, size_t count, size_t size); /* new part is not zeroed */
char *pot_strdup(const char *text);
void pot_free(void *pointer); /* NULL is fine */

/* 64-byte aligned, zeroed; free with pot_free. */
void *pot_alloc_aligned(size_t bytes);

/* A large mapping; NULL with a sentence when the machine has no room.  Zeroed, first touch decides the node. */
typedef struct pot_slab {
    uint8_t *base;
    size_t bytes; /* as asked for; the mapping is rounded up to 2 MiB */
} pot_slab;
pot_status pot_slab_create(pot_slab *out, size_t bytes, const char *what, pot_err *err);
void pot_slab_free(pot_slab *slab); /* also for an all-zero slab */

/* Memory this process may use: min(physical RAM available, what its cgroup leaves). */
typedef struct pot_memory_info {
    uint64_t total_bytes;        /* physical */
    uint64_t available_bytes;    /* MemAvailable */
    uint64_t cgroup_limit_bytes; /* UINT64_MAX when there is none */
    uint64_t usable_bytes;       /* the smaller of the two, what is used already taken off */
} pot_memory_info;
void pot_memory_read(pot_memory_info *out);
/* What is kept free on a machine with so much RAM, for caches, buffers and the page cache: a sixteenth, at least 256 MiB, at most 4 GiB. */
uint64_t pot_memory_reserve(uint64_t total_bytes);

/* Of this process: resident now, and the most since the start or the last reset.  0 where /proc does not tell. */
uint64_t pot_memory_resident(void);
uint64_t pot_memory_peak(void);
void pot_memory_peak_reset(void);

/* Tests: the nth allocation from now on (1 = the next) fails once; 0 = never. */
void pot_mem_fail_at(uint64_t nth);

#endif
