/* A copy of one worker's chunks, packed, in a directory of its own (--disk-cache): for models that are not converted, or lie on a slow disk.
 *
 *   PATH/FINGERPRINT/worker-W/experts-LLL.safetensors   as in a container; chunks that the worker does not own are holes
 *   PATH/FINGERPRINT/worker-W/copy.json                 hashes of the files that are finished
 *
 * What is there already is used again, if it holds what the map gives to the worker now; a layer that does not is written anew.  One process at a
 * time: a lock in the directory.  Owner: the store.
 */
#ifndef POT_MODEL_CHUNK_COPY_H
#define POT_MODEL_CHUNK_COPY_H

#include "model/container.h"

typedef struct pot_chunk_copy pot_chunk_copy;

/* Makes or completes the copy.  LIMIT, before anything is written, when the disk has not the room; CANCELLED when watcher->wrote returns false. */
pot_status pot_chunk_copy_open(pot_chunk_copy **out, const char *path, const pot_model *model, const pot_map *map,
                               uint32_t worker, int threads, const pot_container_watcher *watcher, pot_err *err);
void pot_chunk_copy_close(pot_chunk_copy *copy); /* the files stay; NULL is fine */

/* As pot_model_chunk_file and pot_model_chunk_place, for chunks that the worker owns. */
const char *pot_chunk_copy_file(const pot_chunk_copy *copy, uint32_t layer);
void pot_chunk_copy_place(pot_chunk_place *out, const pot_chunk_copy *copy, uint32_t layer, uint32_t expert,
                          uint32_t chunk);

#endif
