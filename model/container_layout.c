/* Names, order, sizes and headers of a container's files. */
#include "model/container_layout.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/mem.h"

uint64_t pot_dense_bytes(const pot_config *c, pot_role role, pot_format format) {
    uint32_t rows, cols;
    pot_role_shape(c, role, &rows, &cols);
    if (!pot_role_is_matrix(role)) return (uint64_t)rows * sizeof(float);
    if (role == POT_ROLE_KV_B) /* absorbed: a head's keys are turned, its values are as they were */
        return c->n_heads * (pot_line_up(pot_matrix_bytes(format, c->kv_lora, c->nope_dim)) +
                             pot_line_up(pot_matrix_bytes(format, c->v_dim, c->kv_lora)));
    return pot_matrix_bytes(format, rows, cols);
}

void pot_container_file_name(char name[POT_CONTAINER_NAME], bool experts, uint32_t layer) {
    if (layer == POT_CONTAINER_MODEL)
        snprintf(name, POT_CONTAINER_NAME, "dense-model.safetensors");
    else
        snprintf(name, POT_CONTAINER_NAME, "%s-%03u.safetensors", experts ? "experts" : "dense", layer);
}

void pot_file_tensor_name(char name[POT_TENSOR_NAME], const pot_file_shape *s, const pot_file_tensor *t) {
    if (!s->experts) {
        pot_role_name(name, t->role, s->layer == POT_CONTAINER_MODEL ? 0 : s->layer, 0);
    } else if (s->routed && t->expert < s->config->n_routed) {
        snprintf(name, POT_TENSOR_NAME, "model.layers.%u.mlp.experts.%u.chunks", s->layer, t->expert);
    } else {
        snprintf(name, POT_TENSOR_NAME, "model.layers.%u.mlp.%schunks", s->layer, s->routed ? "shared_experts." : "");
    }
}

/* ---- what is in it --------------------------------------------------------------------------------------------------------- */

static void add_expert(pot_file_layout *l, uint64_t *at, const pot_ffn_shape *shape, uint32_t expert) {
    const uint64_t bytes = shape->n_chunks * pot_chunk_stride(shape);
    l->tensors[l->n++] = (pot_file_tensor){
        .expert = expert, .dtype = POT_DTYPE_U8, .offset = *at, .bytes = bytes, .rows = shape->n_chunks};
    *at += bytes;
    if (shape->n_chunks > l->checksum_columns) l->checksum_columns = shape->n_chunks;
}

static void add_dense(pot_file_layout *l, uint64_t *at, const pot_file_shape *s, bool matrices) {
    const bool of_model = s->layer == POT_CONTAINER_MODEL;
    const uint32_t layer = of_model ? 0 : s->layer;
    for (int r = 0; r < POT_ROLE_COUNT; r++) {
        const pot_role role = (pot_role)r;
        if (pot_role_is_ffn(role) || (role < POT_ROLE_INPUT_NORM) != of_model || pot_role_is_matrix(role) != matrices ||
            !pot_role_exists(s->config, role, layer))
            continue;
        const uint64_t bytes = pot_dense_bytes(s->config, role, s->format(s->context, role, layer));
        l->tensors[l->n++] = (pot_file_tensor){
            .role = role, .dtype = matrices ? POT_DTYPE_U8 : POT_DTYPE_F32, .offset = *at, .bytes = bytes};
        *at += bytes;
    }
}

/* Matrices come before vectors, the checksums first or last, where they lie on a multiple of eight. */
static void list_tensors(pot_file_layout *l, const pot_file_shape *s) {
    uint64_t at = 0;
    if (!s->experts) {
        l->checksum_columns = 1;
        for (int r = 0; r < POT_ROLE_COUNT; r++) { /* checksums are first: they need to lie on a multiple of eight */
            const bool of_model = s->layer == POT_CONTAINER_MODEL;
            if (!pot_role_is_ffn((pot_role)r) && (r < POT_ROLE_INPUT_NORM) == of_model &&
                pot_role_exists(s->config, (pot_role)r, of_model ? 0 : s->layer))
                at += sizeof(uint64_t);
        }
        add_dense(l, &at, s, true);
        add_dense(l, &at, s, false);
        l->file_bytes = at;
        return;
    }
    for (uint32_t e = 0; s->routed && e < s->config->n_routed; e++) add_expert(l, &at, s->routed, e);
    if (s->common) add_expert(l, &at, s->common, s->routed ? s->config->n_routed : 0);
    l->checksums = at;
    l->file_bytes = at + pot_file_checksum_bytes(l);
}

/* ---- the header ------------------------------------------------------------------------------------------------------------ */

static void entry(pot_buffer *out, const char *name, pot_dtype dtype, const char *shape, uint64_t begin, uint64_t end) {
    pot_buffer_format(out, ",\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", name,
                      pot_dtype_name(dtype), shape, begin, end);
}

static void checksum_entry(pot_buffer *out, const pot_file_layout *l, const pot_file_shape *s) {
    char name[POT_TENSOR_NAME], shape[64];
    if (s->layer == POT_CONTAINER_MODEL)
        snprintf(name, sizeof name, "model.checksums");
    else
        snprintf(name, sizeof name, "model.layers.%u.%schecksums", s->layer, s->experts ? "mlp." : "");
    snprintf(shape, sizeof shape, s->experts ? "[%u,%u]" : "[%u]", l->n, l->checksum_columns);
    entry(out, name, POT_DTYPE_U64, shape, l->checksums, l->checksums + pot_file_checksum_bytes(l));
}

static void shape_facts(pot_buffer *out, const char *which, const pot_ffn_shape *shape) {
    if (!shape) return;
    pot_buffer_format(out, ",\"%s\":\"hidden %u inner %u chunk %u gate_up %s down %s\"", which, shape->hidden,
                      shape->inner, shape->chunk_width, pot_format_get((pot_format)shape->gate_up_format)->name,
                      pot_format_get((pot_format)shape->down_format)->name);
}

static pot_status make_header(pot_file_layout *l, const pot_file_shape *s, pot_err *err) {
    pot_buffer json = {0};
    pot_buffer_format(&json, "{\"__metadata__\":{\"format\":\"potluck\",\"version\":\"%d\"", POT_CONTAINER_VERSION);
    if (s->experts) {
        shape_facts(&json, "routed", s->routed);
        shape_facts(&json, "common", s->common);
    }
    pot_buffer_byte(&json, '}');
    if (!s->experts) checksum_entry(&json, l, s);
    for (uint32_t i = 0; i < l->n; i++) {
        const pot_file_tensor *t = &l->tensors[i];
        char name[POT_TENSOR_NAME], shape[64];
        pot_file_tensor_name(name, s, t);
        if (t->rows)
            snprintf(shape, sizeof shape, "[%u,%" PRIu64 "]", t->rows, t->bytes / t->rows);
        else
            snprintf(shape, sizeof shape, "[%" PRIu64 "]", t->bytes / pot_dtype_bytes(t->dtype));
        entry(&json, name, t->dtype, shape, t->offset, t->offset + t->bytes);
    }
    if (s->experts) checksum_entry(&json, l, s);
    pot_buffer_byte(&json, '}');
    while (!json.failed && (json.bytes + 8) % POT_CONTAINER_ALIGN) pot_buffer_byte(&json, ' ');
    uint8_t length[8];
    for (int i = 0; i < 8; i++) length[i] = (uint8_t)((uint64_t)json.bytes >> (8 * i));
    pot_buffer_append(&l->header, length, sizeof length);
    if (json.bytes) pot_buffer_append(&l->header, json.data, json.bytes);
    const bool failed = json.failed || l->header.failed;
    pot_buffer_free(&json);
    return failed ? pot_fail(err, POT_NO_MEMORY, "no memory for the header of layer %u's file", s->layer) : POT_OK;
}

pot_status pot_file_layout_make(pot_file_layout *out, const pot_file_shape *shape, pot_err *err) {
    pot_file_layout l = {0};
    const uint32_t most = shape->experts ? (shape->routed ? shape->config->n_routed : 0) + 1 : POT_ROLE_COUNT;
    l.tensors = pot_alloc_array(most, sizeof *l.tensors);
    if (!l.tensors) return pot_fail(err, POT_NO_MEMORY, "no memory for the list of a file's tensors");
    list_tensors(&l, shape);
    pot_status s = make_header(&l, shape, err);
    l.header_bytes = l.header.bytes;
    l.file_bytes += l.header_bytes;
    if (s != POT_OK) {
        pot_file_layout_free(&l);
        return s;
    }
    *out = l;
    return POT_OK;
}

void pot_file_layout_free(pot_file_layout *l) {
    pot_free(l->tensors);
    pot_buffer_free(&l->header);
    *l = (pot_file_layout){0};
}

pot_status pot_file_hash(pot_hash *out, const pot_file_layout *l, const void *checksums, pot_err *err) {
    pot_hasher *h = pot_hasher_create();
    if (!h) return pot_fail(err, POT_NO_MEMORY, "no memory for a checksum");
    pot_hasher_add(h, l->header.data, l->header.bytes);
    pot_hasher_add(h, checksums, pot_file_checksum_bytes(l));
    *out = pot_hasher_end(h);
    return POT_OK;
}

/* ---- of a model ------------------------------------------------------------------------------------------------------------ */

static pot_format model_format(const void *context, pot_role role, uint32_t layer) {
    return pot_model_packed_format(context, role, layer);
}

pot_file_shape pot_model_file_shape(const pot_model *m, bool experts, uint32_t layer) {
    pot_file_shape s = {.config = &m->config, .experts = experts, .layer = layer, .format = model_format, .context = m};
    if (experts) {
        s.routed = pot_model_routed(m, layer);
        s.common = pot_model_common(m, layer);
    }
    return s;
}

static void add_file(pot_container_file *out, uint32_t *n, uint32_t max, bool experts, uint32_t layer) {
    if (*n < max) {
        out[*n] = (pot_container_file){.experts = experts, .layer = layer};
        pot_container_file_name(out[*n].name, experts, layer);
    }
    ++*n;
}

uint32_t pot_container_files(pot_container_file *out, uint32_t max, const pot_model *m) {
    uint32_t n = 0;
    for (uint32_t layer = 0; layer < pot_model_layers(m); layer++) {
        add_file(out, &n, max, false, layer);
        add_file(out, &n, max, true, layer);
    }
    add_file(out, &n, max, false, POT_CONTAINER_MODEL);
    for (uint32_t i = 0; i < n && i < max; i++) {
        const pot_file_shape shape = pot_model_file_shape(m, out[i].experts, out[i].layer);
        pot_file_layout layout;
        if (pot_file_layout_make(&layout, &shape, NULL) != POT_OK) continue; /* writing will say so */
        out[i].bytes = layout.file_bytes;
        pot_file_layout_free(&layout);
    }
    return n;
}

pot_hash pot_container_files_hash(const pot_container_file *files, uint32_t n) {
    pot_hasher *h = pot_hasher_create();
    if (!h) return (pot_hash){0};
    for (uint32_t i = 0; i < n; i++) pot_hasher_add(h, &files[i].hash, sizeof files[i].hash);
    return pot_hasher_end(h);
}

pot_status pot_read_exactly(int fd, void *out, uint64_t bytes, uint64_t offset, const char *path, pot_err *err) {
    uint8_t *at = out;
    while (bytes) {
        const size_t part =
            bytes < (1u << 30) ? (size_t)bytes : 1u << 30; /* the kernel takes at most 2 GiB at a time */
        ssize_t n = pread(fd, at, part, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return pot_fail(err, POT_IO, "%s: cannot be read at %" PRIu64 ": %s", path, offset, strerror(errno));
        if (n == 0)
            return pot_fail(err, POT_IO,
                            "%s: ends at %" PRIu64 ", %" PRIu64 " more bytes were expected: was it cut short?", path,
                            offset, bytes);
        at += n;
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return POT_OK;
}
