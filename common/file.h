/* Reading and writing whole files with bounded sizes, and read-only mappings.  EINTR and short reads are
 * handled here and nowhere else.  Every sentence names the path. */
#ifndef POT_COMMON_FILE_H
#define POT_COMMON_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "common/buffer.h"
#include "common/status.h"

/* Appends the whole file to `out`; refuses one of more than `max_bytes` before reading it. */
pot_status pot_file_read(pot_buffer *out, const char *path, uint64_t max_bytes, pot_err *err);
/* Writes to a temporary name beside it, fsyncs, renames: a reader sees the old file or the new one. */
pot_status pot_file_write(const char *path, const void *data, size_t bytes, pot_err *err);
bool pot_file_exists(const char *path);
bool pot_directory_exists(const char *path);

/* Read-only mapping; an empty file gives base NULL, bytes 0.  Close also a zeroed one. */
typedef struct pot_mapping {
    const uint8_t *base;
    uint64_t bytes;
} pot_mapping;
pot_status pot_mapping_open(pot_mapping *out, const char *path, pot_err *err);
void pot_mapping_close(pot_mapping *mapping);

/* "dir/name" into a new string; NULL when memory is short. */
char *pot_path_join(const char *directory, const char *name);

#endif
