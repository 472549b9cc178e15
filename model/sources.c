/* From a role (layer, expert) to the tensor that holds it, in whichever of the known layouts the checkpoint was written:
 *
 *   X                        BF16, F16 or F32 [rows, cols]
 *   X + X_scale_inv          F8_E4M3 [rows, cols], F32 [ceil(rows/128), ceil(cols/128)]
 *   X + X_scale              U8 [rows, cols/2] E2M1 pairs, U8 [rows, cols/32] E8M0             (Quark MXFP4)
 *   X + X.qs                 U8 or I8 bytes, F32 scales: int8, int4 or int2 rows, int4 groups, fp8 blocks
 *   experts.gate_up_proj     float [E, 2*inner, hidden], gate rows first; experts.down_proj float [E, hidden, inner]
 *
 * The layout is decided by dtype and shape of each tensor alone; quantization_config is known to be wrong in published
 * files.  Sizes that fit no layout, or two, are refused: a wrong guess gives fluent garbage. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "model/model_internal.h"

enum { SHAPE_TEXT = 8 * 21 + 3 };

static const char *shape_text(char out[SHAPE_TEXT], const pot_tensor *t) {
    int at = snprintf(out, SHAPE_TEXT, "[");
    for (uint32_t i = 0; i < t->rank; i++)
        at += snprintf(out + at, (size_t)(SHAPE_TEXT - at), "%s%" PRIu64, i ? "," : "", t->shape[i]);
    snprintf(out + at, (size_t)(SHAPE_TEXT - at), "]");
    return out;
}

static const char *file_of(const pot_model *m, const pot_tensor *t) { return pot_shards_path(m->shards, t->shard); }

static pot_status need_shape(const pot_model *m, const pot_tensor *t, uint32_t rank, const uint64_t *shape,
                             pot_err *err) {
    if (t->rank == rank && !memcmp(t->shape, shape, rank * sizeof *shape)) return POT_OK;
    pot_tensor wanted = {.rank = rank};
    memcpy(wanted.shape, shape, rank * sizeof *shape);
    char got[SHAPE_TEXT], need[SHAPE_TEXT];
    return pot_fail(err, POT_FORMAT, "%s: tensor %s is %s %s, by config.json %s was expected", file_of(m, t), t->name,
                    pot_dtype_name(t->dtype), shape_text(got, t), shape_text(need, &wanted));
}

static pot_status need_matrix(const pot_model *m, const pot_tensor *t, uint64_t rows, uint64_t cols, pot_err *err) {
    return need_shape(m, t, 2, (const uint64_t[]){rows, cols}, err);
}

static pot_status need_dtype(const pot_model *m, const pot_tensor *t, pot_dtype a, pot_dtype b, pot_err *err) {
    if (t->dtype == a || t->dtype == b) return POT_OK;
    return pot_fail(err, POT_FORMAT, "%s: tensor %s is %s, %s was expected", file_of(m, t), t->name,
                    pot_dtype_name(t->dtype), pot_dtype_name(a));
}

static bool float_kind(pot_stored_kind *kind, pot_dtype dtype) {
    switch (dtype) {
    case POT_DTYPE_F32: *kind = POT_STORED_F32; return true;
    case POT_DTYPE_BF16: *kind = POT_STORED_BF16; return true;
    case POT_DTYPE_F16: *kind = POT_STORED_F16; return true;
    default: return false;
    }
}

/* The tensor whose name is t's with `suffix` after it. */
static const pot_tensor *beside(const pot_model *m, const pot_tensor *t, const char *suffix) {
    char name[POT_TENSOR_NAME + 16];
    snprintf(name, sizeof name, "%s%s", t->name, suffix);
    return pot_shards_find(m->shards, name);
}

/* ---- one function a layout: fills kind, stride, group and scales ---- */

static pot_status read_fp8(pot_source *out, const pot_model *m, const pot_tensor *t, const pot_tensor *scale,
                           uint32_t rows, uint32_t cols, pot_err *err) {
    pot_status s = need_dtype(m, scale, POT_DTYPE_F32, POT_DTYPE_F32, err);
    if (s == POT_OK) s = need_matrix(m, t, rows, cols, err);
    if (s == POT_OK) s = need_matrix(m, scale, (rows + 127) / 128, (cols + 127) / 128, err);
    out->stored = (pot_stored){.kind = POT_STORED_FP8, .row_stride = cols};
    return s;
}

static pot_status read_mxfp4(pot_source *out, const pot_model *m, const pot_tensor *t, const pot_tensor *scale,
                             uint32_t rows, uint32_t cols, pot_err *err) {
    pot_status s = need_dtype(m, t, POT_DTYPE_U8, POT_DTYPE_U8, err);
    if (s == POT_OK) s = need_dtype(m, scale, POT_DTYPE_U8, POT_DTYPE_F8_E8M0, err);
    if (s == POT_OK && cols % 32)
        s = pot_fail(err, POT_FORMAT, "%s: tensor %s would be MXFP4 of %u columns, a multiple of 32 was expected",
                     file_of(m, t), t->name, cols);
    if (s == POT_OK) s = need_matrix(m, t, rows, cols / 2, err);
    if (s == POT_OK) s = need_matrix(m, scale, rows, cols / 32, err);
    out->stored = (pot_stored){.kind = POT_STORED_MXFP4, .row_stride = cols / 2};
    return s;
}

/* All readings of so many bytes and scales; *out is one of them. */
static uint32_t container_readings(pot_stored *out, bool signed_bytes, uint64_t bytes, uint64_t scales, uint64_t rows,
                                   uint32_t cols) {
    static const uint32_t groups[] = {16, 32, 48, 64, 96, 128, 192, 256};
    uint32_t fits = 0;
#define FITS(...) (*out = (pot_stored){__VA_ARGS__}, fits++)
    if (bytes == rows * cols && scales == rows) FITS(.kind = POT_STORED_INT8, .row_stride = cols);
    if (signed_bytes) return fits;
    if (bytes == rows * cols && scales == (rows + 127) / 128 * ((cols + 127) / 128))
        FITS(.kind = POT_STORED_FP8, .row_stride = cols);
    const uint32_t four = (cols + 1) / 2, two = (cols + 3) / 4;
    if (bytes == rows * four && scales == rows) FITS(.kind = POT_STORED_INT4, .row_stride = four);
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
        if (cols > groups[i] && bytes == rows * four && scales == rows * ((cols + groups[i] - 1) / groups[i]))
            FITS(.kind = POT_STORED_INT4, .row_stride = four, .group = groups[i]);
    if (bytes == rows * two && scales == rows) FITS(.kind = POT_STORED_INT2, .row_stride = two);
#undef FITS
    return fits;
}

static pot_status read_container(pot_source *out, const pot_model *m, const pot_tensor *t, const pot_tensor *scale,
                                 uint32_t rows, uint32_t cols, pot_err *err) {
    pot_status s = need_dtype(m, scale, POT_DTYPE_F32, POT_DTYPE_F32, err);
    if (s != POT_OK) return s;
    const uint64_t scales = scale->bytes / sizeof(float);
    /* A flat list of bytes is all rows; two dimensions must agree about how many rows there are. */
    bool rows_agree = t->rank == 1 || (t->rank == 2 && t->shape[0] == rows);
    uint32_t fits = 0;
    if (rows_agree) fits = container_readings(&out->stored, t->dtype == POT_DTYPE_I8, t->bytes, scales, rows, cols);
    if (fits == 1) return POT_OK;
    char got[SHAPE_TEXT];
    return pot_fail(err, POT_FORMAT,
                    "%s: tensor %s is %s %s with %" PRIu64
                    " scales, which fits %s of a [%u,%u] matrix as int8, int4 or int2 "
                    "rows, int4 groups or fp8 blocks%s",
                    file_of(m, t), t->name, pot_dtype_name(t->dtype), shape_text(got, t), scales,
                    fits ? "more than one reading" : "no reading", rows, cols,
                    fits ? "; int8 rows can be told apart by the dtype I8" : "");
}

static pot_status read_unscaled(const pot_model *m, const pot_tensor *t, pot_err *err) {
    if (t->dtype == POT_DTYPE_F8_E4M3)
        return pot_fail(err, POT_FORMAT, "%s: tensor %s is F8_E4M3, but %s_scale_inv with its scales is missing",
                        file_of(m, t), t->name, t->name);
    if (t->dtype == POT_DTYPE_U8 || t->dtype == POT_DTYPE_I8)
        return pot_fail(err, POT_FORMAT,
                        "%s: tensor %s is %s, but its scales are missing: neither %s_scale nor %s.qs is there",
                        file_of(m, t), t->name, pot_dtype_name(t->dtype), t->name, t->name);
    return pot_fail(err, POT_FORMAT,
                    "%s: tensor %s is %s; BF16, F16, F32, or F8_E4M3, U8 or I8 with scales was expected", file_of(m, t),
                    t->name, pot_dtype_name(t->dtype));
}

static pot_status read_float(pot_source *out, const pot_model *m, const pot_tensor *t, uint32_t rows, uint32_t cols,
                             pot_err *err) {
    if (!float_kind(&out->stored.kind, t->dtype))
        return pot_fail(err, POT_FORMAT, "%s: tensor %s is %s; BF16, F16 or F32 was expected", file_of(m, t), t->name,
                        pot_dtype_name(t->dtype));
    out->stored.row_stride = (size_t)cols * pot_dtype_bytes(t->dtype);
    return cols ? need_matrix(m, t, rows, cols, err) : need_shape(m, t, 1, (const uint64_t[]){rows}, err);
}

static pot_status read_matrix(pot_source *out, const pot_model *m, const pot_tensor *t, uint32_t rows, uint32_t cols,
                              pot_err *err) {
    pot_stored_kind kind;
    if (float_kind(&kind, t->dtype)) return read_float(out, m, t, rows, cols, err);
    const pot_tensor *scale = NULL;
    pot_status s;
    if (t->dtype == POT_DTYPE_F8_E4M3 && (scale = beside(m, t, "_scale_inv")))
        s = read_fp8(out, m, t, scale, rows, cols, err);
    else if ((t->dtype == POT_DTYPE_U8 || t->dtype == POT_DTYPE_I8) && (scale = beside(m, t, "_scale")))
        s = read_mxfp4(out, m, t, scale, rows, cols, err);
    else if ((t->dtype == POT_DTYPE_U8 || t->dtype == POT_DTYPE_I8) && (scale = beside(m, t, ".qs")))
        s = read_container(out, m, t, scale, rows, cols, err);
    else
        return read_unscaled(m, t, err);
    if (s != POT_OK) return s;
    out->stored.scales = scale->data;
    out->tensors[1] = scale;
    return POT_OK;
}

/* ---- all experts of a layer in one tensor ---- */

static const pot_tensor *find_fused(const pot_model *m, pot_role role, uint32_t layer) {
    char name[POT_TENSOR_NAME];
    const char *what = role == POT_ROLE_EXPERT_DOWN ? "down_proj" : "gate_up_proj";
    const pot_tensor *t = NULL;
    for (int i = 0; i < 2 && !t; i++) {
        snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s%s", layer, what, i ? ".weight" : "");
        t = pot_shards_find(m->shards, name);
    }
    return t;
}

static pot_status read_fused(pot_source *out, const pot_model *m, const pot_tensor *t, pot_role role, uint32_t expert,
                             uint32_t rows, uint32_t cols, pot_err *err) {
    const uint64_t stack = role == POT_ROLE_EXPERT_DOWN ? rows : 2 * (uint64_t)rows; /* rows of one expert */
    if (!float_kind(&out->stored.kind, t->dtype))
        return pot_fail(
            err, POT_FORMAT,
            "%s: tensor %s is %s; fused experts are read as BF16, F16 or F32, quantized ones need one tensor an expert",
            file_of(m, t), t->name, pot_dtype_name(t->dtype));
    pot_status s = need_shape(m, t, 3, (const uint64_t[]){m->config.n_routed, stack, cols}, err);
    if (s != POT_OK) return s;
    out->stored.row_stride = (size_t)cols * pot_dtype_bytes(t->dtype);
    out->stored.codes = t->data + (expert * stack + (role == POT_ROLE_EXPERT_UP ? rows : 0)) * out->stored.row_stride;
    return POT_OK;
}

pot_status pot_source_find(pot_source *out, const pot_model *m, pot_role role, uint32_t layer, uint32_t expert,
                           pot_err *err) {
    char name[POT_TENSOR_NAME];
    uint32_t rows, cols;
    pot_role_name(name, role, layer, expert);
    pot_role_shape(&m->config, role, &rows, &cols);
    pot_source found = {0};
    pot_status s;
    if (m->synthetic) {
        pot_synthetic_find(&found.stored, m, role, layer, expert);
        *out = found;
        return POT_OK;
    }
    if (m->container)
        return pot_fail(err, POT_BUG, "%s: is asked of a converted model, which has no such tensor", name);
    const pot_tensor *t = pot_shards_find(m->shards, name);
    if (t) {
        s = cols ? read_matrix(&found, m, t, rows, cols, err) : read_float(&found, m, t, rows, 0, err);
        found.stored.codes = t->data;
    } else {
        t = pot_role_is_routed(role) ? find_fused(m, role, layer) : NULL;
        if (!t) return POT_NOT_FOUND;
        s = read_fused(&found, m, t, role, expert, rows, cols, err);
    }
    if (s != POT_OK) return s;
    found.stored.rows = rows;
    found.stored.cols = cols;
    found.stored.name = t->name;
    found.tensors[0] = t;
    *out = found;
    return POT_OK;
}
