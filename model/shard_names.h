/* Which files of a directory are the model's shards; safetensors.c alone uses this. */
#ifndef POT_MODEL_SHARD_NAMES_H
#define POT_MODEL_SHARD_NAMES_H

#include <stdint.h>

#include "common/status.h"

enum { POT_MAX_SHARDS = 4096 }; /* the largest GLM release has 282 */

typedef struct pot_shard_names {
    char **names; /* ascending, without the directory */
    uint32_t n, capacity;
} pot_shard_names;

/* With model.safetensors.index.json: the files that it names.  Else model.safetensors alone, if it is there.  Else all
 * *.safetensors, and when their names count (X-00002-of-00005), none may be missing. */
pot_status pot_shard_names_find(pot_shard_names *out, const char *directory, pot_err *err);
void pot_shard_names_free(pot_shard_names *names);

#endif
