/* The files of a converted model (docs/formats.md, "The container"): what they are called and hold, writing one, opening all, checking one.
 *
 *   experts-LLL.safetensors   a layer's experts: chunks [n_chunks, chunk_bytes] U8, each on a 4096 boundary, and their checksums
 *   dense-LLL.safetensors     a layer's other tensors, packed as the coordinator keeps them, and their checksums
 *   dense-model.safetensors   embeddings, head and final norm
 *   potluck.json              which formats, files and hashes: written last, so a container is finished when it is there
 *
 * A file's hash covers its header and its checksums, and these cover the data; so the fingerprint, made of the files' hashes, covers every byte, and a
 * machine that lacks some files (a worker needs only experts of its own, a coordinator all dense ones) has the same one.
 */
#ifndef POT_MODEL_CONTAINER_H
#define POT_MODEL_CONTAINER_H

#include "common/buffer.h"
#include "model/model.h"

enum { POT_CONTAINER_NAME = 48, POT_CONTAINER_VERSION = 1 };
#define POT_CONTAINER_MODEL UINT32_MAX /* "layer" of dense-model */
#define POT_CONTAINER_MANIFEST "potluck.json"

typedef struct pot_container_file {
    char name[POT_CONTAINER_NAME];
    bool experts;
    uint32_t layer; /* or POT_CONTAINER_MODEL */
    uint64_t bytes;
    pot_hash hash; /* of header and checksums */
} pot_container_file;

/* The files that a model becomes, in the order of writing: for each layer dense and experts, dense-model last.  Returns how many (at most `max` are
 * written to out); names and sizes are set, hashes are not. */
uint32_t pot_container_files(pot_container_file *out, uint32_t max, const pot_model *model);

/* Which chunks to write, others become holes; NULL = all. */
typedef struct pot_container_filter {
    const pot_map *map;
    uint32_t worker;
} pot_container_filter;
typedef struct pot_container_watcher {
    bool (*wrote)(void *context,
                  uint64_t bytes); /* more bytes of the file are on their way; false ends the writing with CANCELLED */
    void (*damaged)(void *context, const char *tensor,
                    int64_t chunk); /* checking found this; chunk -1: there are none */
    void *context;
} pot_container_watcher;

/* Writes one of these files to `path`, which must not exist, and syncs it; sets file->hash.  Chunks are packed by `threads` threads while those before
 * are written; memory does not grow with the model.  Pages of a checkpoint that have been used are given back. */
pot_status pot_container_write(pot_container_file *file, const char *path, const pot_model *model, int threads,
                               const pot_container_filter *filter, const pot_container_watcher *watcher, pot_err *err);
/* The text of potluck.json for these files.  source: what the model is called. */
pot_status pot_container_manifest(pot_buffer *out, const pot_model *model, const char *source,
                                  const pot_container_file *files, uint32_t n, pot_err *err);

/* Reads a whole file of a container and checks its header, its checksums against `file->hash`, and every chunk or tensor against them.  `model`: that it was
 * converted from, or the container itself.  FORMAT names
 * file, tensor and chunk of each fault, up to a few.  holes: chunks that were left out are no fault. */
pot_status pot_container_check(const pot_container_file *file, const char *path, const pot_model *model, int threads,
                               bool holes, const pot_container_watcher *watcher, pot_err *err);

/* ---- opening (model.c) ---- */

typedef struct pot_container pot_container;
/* Whether the directory has a potluck.json. */
bool pot_container_is(const char *directory);
/* Reads potluck.json and all headers and checksums that are there.  The config must have been read; the number of MTP layers is set in it. */
pot_status pot_container_open(pot_container **out, const char *directory, pot_config *config, pot_err *err);
void pot_container_close(pot_container *container);
pot_hash pot_container_hash(const pot_container *container);        /* of all files' hashes */
pot_hash pot_container_fingerprint(const pot_container *container); /* that potluck.json says the model has */
pot_format pot_container_asked(const pot_container *container, pot_wish wish); /* by whoever converted; NONE = auto */
const pot_container_file *pot_container_list(const pot_container *container, uint32_t *n);
/* What it holds. */
const pot_ffn_shape *pot_container_shape(const pot_container *container, uint32_t layer, bool routed); /* NULL = none */
pot_format pot_container_format(const pot_container *container, pot_role role, uint32_t layer); /* of a dense tensor */
int pot_container_grid(const pot_container *container, uint32_t layer);
const char *pot_container_chunk_file(const pot_container *container, uint32_t layer);
pot_status pot_container_chunk_place(pot_chunk_place *out, const pot_container *container, uint32_t layer,
                                     uint32_t expert, uint32_t chunk, pot_err *err);
/* Reads and checks. */
pot_status pot_container_read_dense(uint8_t *out, uint64_t bytes, const pot_container *container, pot_role role,
                                    uint32_t layer, pot_err *err);

#endif
