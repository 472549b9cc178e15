/* The *.safetensors of a model's directory, mapped read-only, with one hash index over their tensors.
 *
 * Headers come from outside: length, JSON, dtype, shape (rank <= 8, product in 63 bits) and offsets (inside the file, no
 * overlap, bytes = shape * dtype, nothing after the last tensor) are checked before use.  Which files are the model's is
 * shard_names.h; a missing shard is named with how many there should be.  A tensor name in two shards is refused.
 * Owner: the caller of open; everything borrowed lives until close.  Read-only after open: any thread may look up.
 */
#ifndef POT_MODEL_SAFETENSORS_H
#define POT_MODEL_SAFETENSORS_H

#include <stdint.h>

#include "common/buffer.h"
#include "common/hash.h"
#include "common/status.h"

/* X(name in the file, our name, bits an element) */
/* clang-format off */
#define POT_DTYPE_MAP(X)                                                                                     \
    X("F64", F64, 64) X("F32", F32, 32) X("F16", F16, 16) X("BF16", BF16, 16) X("F8_E4M3", F8_E4M3, 8)       \
    X("F8_E5M2", F8_E5M2, 8) X("F8_E8M0", F8_E8M0, 8) X("I64", I64, 64) X("I32", I32, 32) X("I16", I16, 16)  \
    X("I8", I8, 8) X("U8", U8, 8) X("U16", U16, 16) X("U32", U32, 32) X("U64", U64, 64) X("BOOL", BOOL, 8)
/* clang-format on */
typedef enum pot_dtype {
#define X(text, name, bits) POT_DTYPE_##name,
    POT_DTYPE_MAP(X)
#undef X
        POT_DTYPE_COUNT
} pot_dtype;
const char *pot_dtype_name(pot_dtype dtype);
uint32_t pot_dtype_bytes(pot_dtype dtype);

enum { POT_MAX_RANK = 8 };

typedef struct pot_tensor {
    const char *name;
    pot_dtype dtype;
    uint32_t rank;
    uint64_t shape[POT_MAX_RANK];
    const uint8_t *data; /* in the mapping; any alignment */
    uint64_t bytes;
    uint32_t shard;
} pot_tensor;

typedef struct pot_shards pot_shards;
pot_status pot_shards_open(pot_shards **out, const char *directory, pot_err *err);
pot_status pot_shards_open_file(pot_shards **out, const char *path, pot_err *err); /* one file alone */
/* These files of the directory alone, whatever else should be there. */
pot_status pot_shards_open_some(pot_shards **out, const char *directory, const char *const *names, uint32_t n,
                                pot_err *err);
void pot_shards_close(pot_shards *shards);
/* Gives a shard's mapping back, so that the file's blocks are free once it is unlinked.  Its tensors stay known, their data is NULL. */
void pot_shards_drop(pot_shards *shards, uint32_t shard);

uint32_t pot_shards_files(const pot_shards *shards);
uint32_t pot_shards_tensors(const pot_shards *shards);
const pot_tensor *pot_shards_at(const pot_shards *shards, uint32_t index);     /* by name, ascending */
const pot_tensor *pot_shards_find(const pot_shards *shards, const char *name); /* NULL when absent */
const char *pot_shards_path(const pot_shards *shards, uint32_t shard);
/* Of names, dtypes, shapes and data, whatever the order of shards; all zero when memory is short.  Up to 1 GiB all data is
 * hashed; of larger models a page in the middle of each tensor, which tells two trainings apart but not every flipped bit. */
pot_hash pot_shards_hash(const pot_shards *shards);

/* Checks one header: bytes of the file's first part and the file's whole size. */
pot_status pot_safetensors_check(const uint8_t *bytes, size_t n_bytes, uint64_t file_bytes, const char *name,
                                 pot_err *err);

/* Writing one file: names in the order given; data is borrowed until write returns. */
typedef struct pot_tensor_out {
    const char *name;
    pot_dtype dtype;
    uint32_t rank;
    uint64_t shape[POT_MAX_RANK];
    const void *data;
} pot_tensor_out;
pot_status pot_safetensors_write(const char *path, const pot_tensor_out *tensors, uint32_t n, pot_err *err);

#endif
