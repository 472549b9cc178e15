/* Inside model/container*.c: what a container's file looks like, from the model's shapes alone. */
#ifndef POT_MODEL_CONTAINER_LAYOUT_H
#define POT_MODEL_CONTAINER_LAYOUT_H

#include "common/json.h"
#include "model/container.h"
#include "model/model_internal.h"

enum { POT_CONTAINER_ALIGN = 4096 };

/* What decides the layout: the config and the formats, of a model to be written or a container to be read. */
typedef struct pot_file_shape {
    const pot_config *config;
    bool experts;
    uint32_t layer;                                                           /* or POT_CONTAINER_MODEL */
    const pot_ffn_shape *routed, *common;                                     /* experts: NULL = none */
    pot_format (*format)(const void *context, pot_role role, uint32_t layer); /* dense */
    const void *context;
} pot_file_shape;

typedef struct pot_file_tensor {
    pot_role role;   /* dense */
    uint32_t expert; /* experts: the map's number */
    pot_dtype dtype;
    uint64_t offset; /* from the start of the data */
    uint64_t bytes;
    uint32_t rows; /* of a U8 [rows, bytes / rows], a chunk each; 0 = one dimension */
} pot_file_tensor;

typedef struct pot_file_layout {
    pot_file_tensor *tensors; /* in file order; the checksums are not among them */
    uint32_t n;
    uint32_t checksum_columns; /* chunks of an expert at the most; 1 in a dense file */
    uint64_t checksums;        /* offset */
    uint64_t header_bytes;     /* where the data starts */
    uint64_t file_bytes;
    pot_buffer header; /* with its length in front and its padding */
} pot_file_layout;

pot_status pot_file_layout_make(pot_file_layout *out, const pot_file_shape *shape, pot_err *err);
void pot_file_layout_free(pot_file_layout *layout);
static inline uint64_t pot_file_checksum_bytes(const pot_file_layout *l) {
    return (uint64_t)l->n * l->checksum_columns * sizeof(uint64_t);
}
/* Of a tensor: "model.layers.3.mlp.experts.17.chunks". */
void pot_file_tensor_name(char name[POT_TENSOR_NAME], const pot_file_shape *shape, const pot_file_tensor *tensor);
/* XXH3-128 of header and checksums. */
pot_status pot_file_hash(pot_hash *out, const pot_file_layout *layout, const void *checksums, pot_err *err);
void pot_container_file_name(char name[POT_CONTAINER_NAME], bool experts, uint32_t layer);
/* Of a role outside the experts, in this format. */
uint64_t pot_dense_bytes(const pot_config *config, pot_role role, pot_format format);

/* The shape of one of a model's files. */
pot_file_shape pot_model_file_shape(const pot_model *model, bool experts, uint32_t layer);
/* Fingerprint of this config and these formats with that hash of the tensors. */
pot_status pot_model_fingerprint_with(pot_hash *out, const pot_model *model, pot_hash tensors, pot_err *err);
pot_hash pot_container_files_hash(const pot_container_file *files, uint32_t n);

/* Opens a file of the container: size, header, checksums and their hash are what they should be; *checksums is the caller's to free. */
pot_status pot_file_open_checked(int *fd, uint64_t **checksums, const pot_file_layout *layout,
                                 const pot_container_file *file, const char *path, pot_err *err);
pot_status pot_container_check_shape(const pot_container_file *file, const char *path, const pot_file_shape *shape,
                                     int threads, bool holes, const pot_container_watcher *watcher, pot_err *err);

/* The formats in potluck.json, which the journal of convert has too: `"mtp_layers": N, "layers": [...], "formats": {...}`. */
void pot_container_put_formats(pot_buffer *out, const pot_model *model);
/* These alone, of no files: for pot_container_shape and pot_container_format.  Sets the config's number of MTP layers. */
pot_status pot_container_remember(pot_container **out, const json_t *root, const char *name, const char *directory,
                                  pot_config *config, pot_err *err);
/* potluck.json alone, without looking at the files: for the list and pot_container_check_listed. */
pot_status pot_container_read(pot_container **out, const char *directory, pot_config *config, pot_err *err);
/* pot_container_check of a file of these formats. */
pot_status pot_container_check_listed(const pot_container *container, const pot_container_file *file, const char *path,
                                      int threads, const pot_container_watcher *watcher, pot_err *err);

/* A field of 32 hexadecimal digits. */
pot_status pot_json_hash(pot_hash *out, const json_t *object, const char *key, const char *name, pot_err *err);

/* Positioned reading of exactly so many bytes; `path` for the sentence. */
pot_status pot_read_exactly(int fd, void *out, uint64_t bytes, uint64_t offset, const char *path, pot_err *err);

#endif
