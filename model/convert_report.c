/* What a conversion did: bytes by role and format, and how much the numbers changed, by decoding samples of the written file and of the source.
 *
 * Of a file of experts some chunks are decoded, spread over experts and chunks (all, when there are few); of a dense matrix some tiles of sixteen
 * rows; of kv_b, which is stored turned, some heads.  The sums go into the journal, so that the report covers what earlier runs did. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/mem.h"
#include "model/convert_internal.h"

enum { MAX_ROWS = 64, SAMPLE_CHUNKS = 8, SAMPLE_TILES = 8, SAMPLE_HEADS = 2 };

typedef struct measuring {
    const pot_model *model;
    const pot_convert_file *file;
    const char *path;
    int fd;
    pot_file_layout layout;
    pot_convert_row rows[MAX_ROWS];
    uint32_t n_rows;
} measuring;

/* ---- rows ------------------------------------------------------------------------------------------------------------------ */

static bool alike(const pot_census_row *a, const pot_census_row *b) {
    return !strcmp(a->group, b->group) && !strcmp(a->stored, b->stored) && !strcmp(a->format, b->format);
}

static pot_convert_row *row_of(measuring *m, pot_role role, uint32_t layer, const pot_stored *stored) {
    pot_census_row key = {0};
    uint32_t none = 0;
    pot_census_row_of(&key, &none, 1, m->model, role, layer, stored);
    for (uint32_t i = 0; i < m->n_rows; i++) {
        if (alike(&m->rows[i].census, &key)) return &m->rows[i];
    }
    return NULL;
}

static bool is_in(const measuring *m, pot_role role, uint32_t layer) {
    if (m->file->file.layer == POT_CONTAINER_MODEL) return role < POT_ROLE_INPUT_NORM;
    return role >= POT_ROLE_INPUT_NORM && pot_role_is_ffn(role) == m->file->file.experts &&
           pot_role_exists(&m->model->config, role, layer);
}

static void count_kept(measuring *m, pot_role role, uint32_t layer) {
    const uint32_t copies = pot_role_is_routed(role) ? m->model->config.n_routed : 1;
    const pot_format packed = pot_model_packed_format(m->model, role, layer);
    for (uint32_t expert = 0; expert < copies && pot_role_is_matrix(role); expert++) {
        pot_source source;
        if (pot_source_find(&source, m->model, role, layer, expert, NULL) != POT_OK) continue;
        const pot_stored *stored = &source.stored;
        pot_convert_row *row = row_of(m, role, layer, stored);
        if (!row || stored->kind <= POT_STORED_F16) continue;
        const pot_format natural = pot_stored_natural_format(stored);
        if (natural == POT_FORMAT_F32)
            row->unpacked++;
        else if (natural != packed)
            row->requantized++;
    }
}

static void list_rows(measuring *m) {
    pot_census_row census[MAX_ROWS];
    const uint32_t layer = m->file->file.layer == POT_CONTAINER_MODEL ? 0 : m->file->file.layer;
    uint32_t n = 0;
    for (int role = 0; role < POT_ROLE_COUNT; role++)
        if (is_in(m, (pot_role)role, layer)) pot_census_add(census, &n, MAX_ROWS, m->model, (pot_role)role, layer);
    for (uint32_t i = 0; i < n; i++) m->rows[i] = (pot_convert_row){.census = census[i], .layer = m->file->file.layer};
    m->n_rows = n;
    for (int role = 0; role < POT_ROLE_COUNT; role++)
        if (is_in(m, (pot_role)role, layer)) count_kept(m, (pot_role)role, layer);
}

static pot_status add(measuring *m, pot_role role, uint32_t layer, const pot_matrix *packed, const pot_stored *stored,
                      uint32_t row_begin, uint32_t col_begin, pot_err *err) {
    pot_pack_error sums = {0};
    pot_status s = pot_pack_error_add(&sums, packed, stored, row_begin, col_begin, err);
    if (s != POT_OK) return s;
#pragma omp critical(pot_convert_sums)
    {
        pot_convert_row *row = row_of(m, role, layer, stored);
        if (row) {
            row->sums.error += sums.error;
            row->sums.size += sums.size;
            row->sampled += (uint64_t)packed->rows * packed->cols;
        }
    }
    return POT_OK;
}

/* ---- experts --------------------------------------------------------------------------------------------------------------- */

static pot_status measure_chunk(measuring *m, uint32_t tensor, uint32_t chunk, pot_err *err) {
    const pot_file_tensor *t = &m->layout.tensors[tensor];
    const uint32_t layer = m->file->file.layer;
    const pot_ffn_shape *shape = pot_model_expert_shape(m->model, layer, t->expert);
    const pot_role gate = m->model->config.layer_is_dense[layer]         ? POT_ROLE_DENSE_GATE
                          : t->expert < m->model->shapes[layer].n_routed ? POT_ROLE_EXPERT_GATE
                                                                         : POT_ROLE_SHARED_GATE;
    const uint64_t bytes = pot_chunk_bytes(shape, chunk);
    uint8_t *data = pot_alloc_aligned(bytes);
    if (!data) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to look at it", m->path);
    pot_status s = pot_read_exactly(m->fd, data, bytes,
                                    m->layout.header_bytes + t->offset + chunk * (t->bytes / t->rows), m->path, err);
    pot_chunk view;
    pot_chunk_view(&view, shape, chunk, data);
    const pot_matrix *matrices[] = {&view.gate, &view.up, &view.down};
    const uint32_t begin = pot_chunk_begin(shape, chunk);
    for (int i = 0; i < 3 && s == POT_OK; i++) {
        const pot_role role = (pot_role)(gate + i);
        pot_stored stored;
        s = pot_model_matrix(&stored, m->model, role, layer, t->expert, err);
        if (s == POT_OK) s = add(m, role, layer, matrices[i], &stored, i < 2 ? begin : 0, i < 2 ? 0 : begin, err);
    }
    pot_free(data);
    return s;
}

static pot_status measure_experts(measuring *m, int threads, pot_err *err) {
    uint32_t total = 0;
    for (uint32_t t = 0; t < m->layout.n; t++) total += m->layout.tensors[t].rows;
    const uint32_t step = total > SAMPLE_CHUNKS ? total / SAMPLE_CHUNKS : 1;
    const uint32_t n = (total + step - 1) / step;
    pot_status status = POT_OK;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (uint32_t i = 0; i <= n; i++) {
        pot_err fault;
        uint32_t k = i < n ? i * step : total - 1, tensor = 0; /* the last is of the expert that every token takes */
        if (i == n && (total - 1) % step == 0) continue;
        while (k >= m->layout.tensors[tensor].rows) k -= m->layout.tensors[tensor++].rows;
        pot_status s = measure_chunk(m, tensor, k, &fault);
#pragma omp critical(pot_convert_fault)
        if (s != POT_OK && status == POT_OK) {
            status = s;
            if (err) *err = fault;
        }
    }
    return status;
}

/* ---- dense ----------------------------------------------------------------------------------------------------------------- */

static pot_status measure_matrix(measuring *m, const pot_file_tensor *t, uint32_t layer, const uint8_t *data,
                                 const pot_stored *stored, pot_err *err) {
    const pot_format format = pot_model_format(m->model, t->role, layer);
    const size_t tile_bytes = pot_tile_bytes(format, stored->cols, 0);
    const uint32_t tiles = pot_tiles(stored->rows), step = tiles > SAMPLE_TILES ? tiles / SAMPLE_TILES : 1;
    pot_status s = POT_OK;
    for (uint32_t tile = 0; tile < tiles && s == POT_OK; tile += step) {
        const uint32_t begin = tile * POT_TILE_ROWS, left = stored->rows - begin;
        const pot_matrix packed = {.data = data + tile * tile_bytes,
                                   .tile_stride = tile_bytes,
                                   .rows = left < POT_TILE_ROWS ? left : POT_TILE_ROWS,
                                   .cols = stored->cols,
                                   .format = (uint8_t)format};
        s = add(m, t->role, layer, &packed, stored, begin, 0, err);
    }
    return s;
}

/* One head of kv_b: its keys were turned before they were packed, so they are turned here for the comparison. */
static pot_status measure_head(measuring *m, uint32_t layer, uint32_t head, const uint8_t *data,
                               const pot_stored *stored, float *rows, float *turned, pot_err *err) {
    const pot_config *c = &m->model->config;
    const uint32_t per_head = c->nope_dim + c->v_dim;
    const pot_format format = pot_model_format(m->model, POT_ROLE_KV_B, layer);
    const pot_matrix key = {.data = data,
                            .tile_stride = pot_tile_bytes(format, c->nope_dim, 0),
                            .rows = c->kv_lora,
                            .cols = c->nope_dim,
                            .format = (uint8_t)format};
    const pot_matrix value = {.data = data + pot_line_up(pot_matrix_bytes(format, c->kv_lora, c->nope_dim)),
                              .tile_stride = pot_tile_bytes(format, c->kv_lora, 0),
                              .rows = c->v_dim,
                              .cols = c->kv_lora,
                              .format = (uint8_t)format};
    pot_status s = POT_OK;
    for (uint32_t r = 0; r < c->nope_dim && s == POT_OK; r++)
        s = pot_stored_row(rows + (size_t)r * c->kv_lora, stored, head * per_head + r, 0, c->kv_lora, err);
    if (s != POT_OK) return s;
    for (uint32_t r = 0; r < c->nope_dim; r++)
        for (uint32_t k = 0; k < c->kv_lora; k++)
            turned[(size_t)k * c->nope_dim + r] = rows[(size_t)r * c->kv_lora + k];
    /* What it is stored as decides the row of the report, so the sums of the turned copy are added to that of the source. */
    const pot_stored copy = {.kind = POT_STORED_F32,
                             .rows = c->kv_lora,
                             .cols = c->nope_dim,
                             .codes = turned,
                             .row_stride = c->nope_dim * sizeof(float),
                             .name = stored->name};
    pot_convert_row *row = row_of(m, POT_ROLE_KV_B, layer, stored);
    if (!row) return POT_OK;
    s = pot_pack_error_add(&row->sums, &key, &copy, 0, 0, err);
    if (s == POT_OK) s = pot_pack_error_add(&row->sums, &value, stored, head * per_head + c->nope_dim, 0, err);
    row->sampled += (uint64_t)per_head * c->kv_lora;
    return s;
}

static pot_status measure_absorbed(measuring *m, uint32_t layer, const uint8_t *data, const pot_stored *stored,
                                   pot_err *err) {
    const pot_config *c = &m->model->config;
    const pot_format format = pot_model_format(m->model, POT_ROLE_KV_B, layer);
    const uint64_t head_bytes = pot_line_up(pot_matrix_bytes(format, c->kv_lora, c->nope_dim)) +
                                pot_line_up(pot_matrix_bytes(format, c->v_dim, c->kv_lora));
    float *rows = pot_alloc_array((size_t)c->nope_dim * c->kv_lora, sizeof(float));
    float *turned = pot_alloc_array((size_t)c->nope_dim * c->kv_lora, sizeof(float));
    pot_status s = rows && turned ? POT_OK : pot_fail(err, POT_NO_MEMORY, "%s: no memory to look at it", m->path);
    const uint32_t step = c->n_heads > SAMPLE_HEADS ? c->n_heads / SAMPLE_HEADS : 1;
    for (uint32_t head = 0; head < c->n_heads && s == POT_OK; head += step)
        s = measure_head(m, layer, head, data + head * head_bytes, stored, rows, turned, err);
    pot_free(rows);
    pot_free(turned);
    return s;
}

static pot_status measure_dense(measuring *m, pot_err *err) {
    const uint32_t layer = m->file->file.layer == POT_CONTAINER_MODEL ? 0 : m->file->file.layer;
    pot_status s = POT_OK;
    for (uint32_t i = 0; i < m->layout.n && s == POT_OK; i++) {
        const pot_file_tensor *t = &m->layout.tensors[i];
        pot_stored stored;
        if (!pot_role_is_matrix(t->role)) continue;
        uint8_t *data = pot_alloc_aligned(t->bytes);
        if (!data) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to look at it", m->path);
        s = pot_read_exactly(m->fd, data, t->bytes, m->layout.header_bytes + t->offset, m->path, err);
        if (s == POT_OK) s = pot_model_matrix(&stored, m->model, t->role, layer, 0, err);
        if (s == POT_OK)
            s = t->role == POT_ROLE_KV_B ? measure_absorbed(m, layer, data, &stored, err)
                                         : measure_matrix(m, t, layer, data, &stored, err);
        pot_free(data);
    }
    return s;
}

/* ---- a file ---------------------------------------------------------------------------------------------------------------- */

static pot_status measure_samples(measuring *m, int threads, pot_err *err) {
    const pot_file_shape shape = pot_model_file_shape(m->model, m->file->file.experts, m->file->file.layer);
    pot_status s = pot_file_layout_make(&m->layout, &shape, err);
    if (s != POT_OK) return s;
    m->fd = open(m->path, O_RDONLY | O_CLOEXEC);
    if (m->fd < 0)
        s = pot_fail(err, POT_IO, "%s: cannot be opened again", m->path);
    else
        s = m->file->file.experts ? measure_experts(m, threads, err) : measure_dense(m, err);
    if (m->fd >= 0) {
        (void)posix_fadvise(m->fd, 0, 0, POSIX_FADV_DONTNEED);
        close(m->fd);
    }
    pot_file_layout_free(&m->layout);
    return s;
}

pot_status pot_convert_measure(pot_convert_job *j, pot_convert_file *file, const char *path, pot_err *err) {
    measuring *m = pot_alloc(sizeof *m);
    if (!m) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to look at it", path);
    m->model = j->model;
    m->file = file;
    m->path = path;
    list_rows(m);
    pot_status s = j->options->unmeasured ? POT_OK : measure_samples(m, j->options->threads, err);
    if (s == POT_OK) {
        pot_free(file->rows);
        file->rows = pot_alloc_array(m->n_rows, sizeof *file->rows);
        file->n_rows = file->rows ? m->n_rows : 0;
        if (file->n_rows) memcpy(file->rows, m->rows, m->n_rows * sizeof *file->rows);
        if (!file->rows) s = pot_fail(err, POT_NO_MEMORY, "%s: no memory to remember what it has", path);
    }
    pot_free(m);
    return s;
}

/* ---- all files ------------------------------------------------------------------------------------------------------------- */

static void add_up(pot_convert_row *to, const pot_convert_row *from) {
    to->census.tensors += from->census.tensors;
    to->census.parameters += from->census.parameters;
    to->census.stored_bytes += from->census.stored_bytes;
    to->census.packed_bytes += from->census.packed_bytes;
    to->sampled += from->sampled;
    to->sums.error += from->sums.error;
    to->sums.size += from->sums.size;
    to->unpacked += from->unpacked;
    to->requantized += from->requantized;
}

static void note_worst(pot_convert_report *r, const pot_convert_row *row) {
    const double change = pot_pack_error_relative(&row->sums);
    if (!(change > 0)) return;
    uint32_t at = r->n_worst;
    while (at > 0 && pot_pack_error_relative(&r->worst[at - 1].sums) < change) at--;
    if (at == POT_CONVERT_WORST) return;
    const uint32_t last = r->n_worst < POT_CONVERT_WORST ? r->n_worst : POT_CONVERT_WORST - 1;
    memmove(&r->worst[at + 1], &r->worst[at], (last - at) * sizeof *r->worst);
    r->worst[at] = *row;
    r->n_worst = last + 1;
}

/* In the order of roles, whatever the order of files. */
static int by_role(const void *a, const void *b) {
    const pot_census_row *x = &((const pot_convert_row *)a)->census, *y = &((const pot_convert_row *)b)->census;
    for (int r = 0; r < POT_ROLE_COUNT && strcmp(x->group, y->group); r++) {
        const char *group = pot_role_group((pot_role)r);
        if (strcmp(group, x->group) == 0 || strcmp(group, y->group) == 0) return strcmp(group, x->group) == 0 ? -1 : 1;
    }
    const int stored = strcmp(x->stored, y->stored);
    return stored ? stored : strcmp(x->format, y->format);
}

pot_status pot_convert_sum_up(pot_convert_job *j, pot_err *err) {
    pot_convert_report *r = &j->report;
    uint32_t most = 0;
    for (uint32_t i = 0; i < j->n_files; i++) most += j->files[i].finished ? j->files[i].n_rows : 0;
    r->rows = pot_alloc_array(most, sizeof *r->rows);
    if (!r->rows) return pot_fail(err, POT_NO_MEMORY, "no memory for a report of %u rows", most);
    for (uint32_t i = 0; i < j->n_files; i++) {
        const pot_convert_file *f = &j->files[i];
        for (uint32_t k = 0; f->finished && k < f->n_rows; k++) {
            uint32_t at = 0;
            while (at < r->n_rows && !alike(&r->rows[at].census, &f->rows[k].census)) at++;
            if (at == r->n_rows) {
                r->rows[r->n_rows++] = f->rows[k];
            } else {
                add_up(&r->rows[at], &f->rows[k]);
            }
            note_worst(r, &f->rows[k]);
        }
    }
    if (r->n_rows) qsort(r->rows, r->n_rows, sizeof *r->rows, by_role);
    return POT_OK;
}

void pot_convert_report_free(pot_convert_report *r) {
    pot_free(r->rows);
    *r = (pot_convert_report){0};
}
