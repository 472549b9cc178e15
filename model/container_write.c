/* Writing one file of a container, and checking one.
 *
 * Experts: a batch of chunks is packed by all threads while a thread of its own writes the batch before, past the page cache where the file system
 * lets it.  What the next expert is made of is asked for ahead of time, what has been used is given back. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/float_mode.h"
#include "common/mem.h"
#include "common/system.h"
#include "model/container_layout.h"

enum { MOST_FAULTS = 8 };
static const uint64_t BATCH_BYTES = (uint64_t)32 << 20;

/* ---- the file -------------------------------------------------------------------------------------------------------------- */

typedef struct out_file {
    const char *path;
    int fd, direct; /* direct: -1 where the file system has no O_DIRECT */
} out_file;

static pot_status open_out(out_file *out, const char *path, uint64_t bytes, pot_err *err) {
    *out = (out_file){.path = path, .fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666), .direct = -1};
    if (out->fd < 0) return pot_fail(err, POT_IO, "%s: cannot be created: %s", path, strerror(errno));
    if (ftruncate(out->fd, (off_t)bytes))
        return pot_fail(err, POT_IO, "%s: cannot be made %" PRIu64 " bytes long: %s", path, bytes, strerror(errno));
    out->direct = open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
    return POT_OK;
}

static pot_status write_at(out_file *out, const void *data, uint64_t bytes, uint64_t offset, pot_err *err) {
    const uint8_t *at = data;
    while (bytes) {
        const bool aligned = ((uintptr_t)at | bytes | offset) % POT_CONTAINER_ALIGN == 0;
        const int fd = aligned && out->direct >= 0 ? out->direct : out->fd;
        ssize_t n = pwrite(fd, at, bytes < (1u << 30) ? (size_t)bytes : 1u << 30, (off_t)offset);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EINVAL && fd == out->direct) { /* opened, but not meant */
            close(out->direct);
            out->direct = -1;
            continue;
        }
        if (n <= 0)
            return pot_fail(err, POT_IO, "%s: cannot be written at %" PRIu64 ": %s", out->path, offset,
                            n ? strerror(errno) : "nothing was written");
        at += n;
        offset += (uint64_t)n;
        bytes -= (uint64_t)n;
    }
    return POT_OK;
}

static pot_status close_out(out_file *out, pot_status status, pot_err *err) {
    if (out->direct >= 0) close(out->direct);
    if (out->fd < 0) return status;
    if (status == POT_OK && fsync(out->fd))
        status = pot_fail(err, POT_IO, "%s: cannot be synced: %s", out->path, strerror(errno));
    (void)posix_fadvise(out->fd, 0, 0, POSIX_FADV_DONTNEED);
    if (close(out->fd) && status == POT_OK)
        status = pot_fail(err, POT_IO, "%s: cannot be closed: %s", out->path, strerror(errno));
    return status;
}

/* ---- writing behind -------------------------------------------------------------------------------------------------------- */

typedef struct run {
    uint64_t at, bytes, offset; /* in the buffer; in the file */
} run;

typedef struct batch {
    uint8_t *data;
    run *runs;
    uint32_t n_runs;
    enum { EMPTY, FULL } state;
} batch;

typedef struct writer {
    out_file *out;
    batch batches[2];
    pthread_t thread;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    bool ending; /* guarded by mutex, as are the states and: */
    pot_status status;
    pot_err fault;
} writer;

static void *writer_main(void *context) {
    writer *w = context;
    pthread_mutex_lock(&w->mutex);
    for (uint32_t turn = 0;; turn++) {
        batch *b = &w->batches[turn % 2];
        while (b->state != FULL && !w->ending) pthread_cond_wait(&w->changed, &w->mutex);
        if (b->state != FULL) break;
        const bool go_on = w->status == POT_OK;
        pthread_mutex_unlock(&w->mutex);
        pot_status status = POT_OK;
        pot_err fault;
        for (uint32_t i = 0; i < b->n_runs && go_on && status == POT_OK; i++)
            status = write_at(w->out, b->data + b->runs[i].at, b->runs[i].bytes, b->runs[i].offset, &fault);
        pthread_mutex_lock(&w->mutex);
        if (status != POT_OK && w->status == POT_OK) {
            w->status = status;
            w->fault = fault;
        }
        b->state = EMPTY;
        pthread_cond_broadcast(&w->changed);
    }
    pthread_mutex_unlock(&w->mutex);
    return NULL;
}

/* Waits until the batch has been written; what went wrong so far. */
static pot_status wait_empty(writer *w, batch *b, pot_err *err) {
    pthread_mutex_lock(&w->mutex);
    while (b->state != EMPTY) pthread_cond_wait(&w->changed, &w->mutex);
    pot_status status = w->status;
    if (status != POT_OK && err) *err = w->fault;
    pthread_mutex_unlock(&w->mutex);
    return status;
}

static void hand_over(writer *w, batch *b) {
    pthread_mutex_lock(&w->mutex);
    b->state = FULL;
    pthread_cond_broadcast(&w->changed);
    pthread_mutex_unlock(&w->mutex);
}

/* ---- experts --------------------------------------------------------------------------------------------------------------- */

typedef struct place {
    uint32_t expert, chunk;
    uint64_t offset; /* in the file */
} place;

typedef struct expert_job {
    const pot_model *model;
    uint32_t layer;
    const pot_file_layout *layout;
    const pot_container_filter *filter;
    place *places; /* [n] chunks to write, in file order */
    uint32_t n;
    uint64_t stride; /* the largest of the file */
    uint64_t *checksums;
} expert_job;

static const pot_ffn_shape *shape_of(const expert_job *j, uint32_t expert) {
    return pot_model_expert_shape(j->model, j->layer, expert);
}

static void list_places(expert_job *j) {
    for (uint32_t t = 0; t < j->layout->n; t++) {
        const pot_file_tensor *tensor = &j->layout->tensors[t];
        const uint64_t stride = tensor->bytes / tensor->rows;
        if (stride > j->stride) j->stride = stride;
        for (uint32_t c = 0; c < tensor->rows; c++) {
            if (j->filter && !pot_map_owns(j->filter->map, j->filter->worker, j->layer, tensor->expert, c, c + 1))
                continue;
            j->places[j->n++] = (place){tensor->expert, c, j->layout->header_bytes + tensor->offset + c * stride};
        }
    }
}

/* The pages of a checkpoint that one tensor is made of. */
static void advise_tensor(const pot_model *m, pot_role role, uint32_t layer, uint32_t expert, int advice) {
    pot_source source;
    if (m->synthetic || pot_model_is_packed(m)) return;
    if (pot_source_find(&source, m, role, layer, expert, NULL) != POT_OK) return;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)source.stored.codes,
                    end = begin + source.stored.rows * source.stored.row_stride;
    /* To be dropped: whole pages only, others belong to neighbours too. */
    const uintptr_t from = advice == MADV_WILLNEED ? begin / page * page : (begin + page - 1) / page * page;
    const uintptr_t to = advice == MADV_WILLNEED ? end : end / page * page;
    if (to > from) (void)madvise((void *)from, to - from, advice);
}

static void advise(const pot_model *m, uint32_t layer, uint32_t expert, int advice) {
    const pot_role gate = m->config.layer_is_dense[layer]      ? POT_ROLE_DENSE_GATE
                          : expert < m->shapes[layer].n_routed ? POT_ROLE_EXPERT_GATE
                                                               : POT_ROLE_SHARED_GATE;
    for (int i = 0; i < 3; i++) advise_tensor(m, (pot_role)(gate + i), layer, expert, advice);
}

/* Packs places [first, first + n) into the batch; the first fault is the one that is told. */
static pot_status pack_batch(const expert_job *j, batch *b, uint32_t first, uint32_t n, int threads, pot_err *err) {
    pot_status status = POT_OK;
    atomic_bool failed = false;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (uint32_t i = 0; i < n; i++) {
        if (atomic_load(&failed)) continue;
        pot_fp_strict();
        pot_err fault;
        const place *p = &j->places[first + i];
        uint8_t *data = b->data + i * j->stride;
        const uint64_t bytes = pot_chunk_bytes(shape_of(j, p->expert), p->chunk);
        pot_status one = pot_model_load_chunk(data, j->model, j->layer, p->expert, p->chunk, &fault);
        if (one == POT_OK) {
            memset(data + bytes, 0, j->stride - bytes);
            j->checksums[p->expert * j->layout->checksum_columns + p->chunk] = pot_hash64(data, bytes);
        } else if (!atomic_exchange(&failed, true)) {
            status = one;
            if (err) *err = fault;
        }
    }
    return status;
}

/* Neighbours in the file are written at once. */
static void make_runs(const expert_job *j, batch *b, uint32_t first, uint32_t n) {
    b->n_runs = 0;
    for (uint32_t i = 0; i < n; i++) {
        const place *p = &j->places[first + i];
        const uint64_t bytes = pot_chunk_stride(shape_of(j, p->expert));
        run *last = b->n_runs ? &b->runs[b->n_runs - 1] : NULL;
        if (last && last->offset + last->bytes == p->offset && last->at + last->bytes == i * j->stride)
            last->bytes += bytes;
        else
            b->runs[b->n_runs++] = (run){i * j->stride, bytes, p->offset};
    }
}

static pot_status pack_all(expert_job *j, writer *w, uint32_t most, int threads, const pot_container_watcher *watcher,
                           pot_err *err) {
    pot_status status = POT_OK;
    uint32_t asked = 0; /* experts whose pages have been asked for */
    for (uint32_t first = 0, turn = 0; first < j->n && status == POT_OK; turn++) {
        batch *b = &w->batches[turn % 2];
        const uint32_t n = j->n - first < most ? j->n - first : most, last = j->places[first + n - 1].expert;
        status = wait_empty(w, b, err);
        /* Those of this batch, and as many again: a chunk needs all of its expert's `down`, so it waits for the last page of that. */
        const uint32_t until = last + 2 + (last - j->places[first].expert);
        for (; asked <= until && asked < j->layout->n; asked++)
            advise(j->model, j->layer, j->layout->tensors[asked].expert, MADV_WILLNEED);
        if (status == POT_OK) status = pack_batch(j, b, first, n, threads, err);
        if (status != POT_OK) break;
        make_runs(j, b, first, n);
        hand_over(w, b);
        for (uint32_t e = j->places[first].expert; e < last; e++) advise(j->model, j->layer, e, MADV_DONTNEED);
        first += n;
        if (watcher && watcher->wrote && !watcher->wrote(watcher->context, n * j->stride))
            status = pot_fail(err, POT_CANCELLED, "stopped while layer %u was written", j->layer);
    }
    return status;
}

static pot_status write_behind(expert_job *j, out_file *out, int threads, const pot_container_watcher *watcher,
                               pot_err *err) {
    const uint32_t most = (uint32_t)(BATCH_BYTES / j->stride) + (uint32_t)threads;
    writer w = {.out = out};
    bool ready = true;
    for (int i = 0; i < 2; i++) {
        void *data = NULL;
        if (posix_memalign(&data, POT_CONTAINER_ALIGN, most * j->stride)) data = NULL;
        w.batches[i].data = data;
        w.batches[i].runs = pot_alloc_array(most, sizeof *w.batches[i].runs);
        ready = ready && data && w.batches[i].runs;
    }
    pthread_mutex_init(&w.mutex, NULL);
    pthread_cond_init(&w.changed, NULL);
    pot_status status = POT_OK;
    if (!ready)
        status = pot_fail(err, POT_NO_MEMORY, "%s: no memory for %u chunks to be written", out->path, 2 * most);
    else if (pthread_create(&w.thread, NULL, writer_main, &w))
        status = pot_fail(err, POT_ERROR, "%s: no thread to write it", out->path);
    else {
        status = pack_all(j, &w, most, threads, watcher, err);
        pot_status written = wait_empty(&w, &w.batches[0], status == POT_OK ? err : NULL);
        if (status == POT_OK) status = written;
        written = wait_empty(&w, &w.batches[1], status == POT_OK ? err : NULL);
        if (status == POT_OK) status = written;
        pthread_mutex_lock(&w.mutex);
        w.ending = true;
        pthread_cond_broadcast(&w.changed);
        pthread_mutex_unlock(&w.mutex);
        pthread_join(w.thread, NULL);
    }
    for (int i = 0; i < 2; i++) {
        free(w.batches[i].data);
        pot_free(w.batches[i].runs);
    }
    pthread_mutex_destroy(&w.mutex);
    pthread_cond_destroy(&w.changed);
    return status;
}

static pot_status write_experts(out_file *out, uint64_t *checksums, const pot_file_layout *layout, const pot_model *m,
                                uint32_t layer, int threads, const pot_container_filter *filter,
                                const pot_container_watcher *watcher, pot_err *err) {
    expert_job j = {.model = m, .layer = layer, .layout = layout, .filter = filter, .checksums = checksums};
    j.places = pot_alloc_array((size_t)layout->n * layout->checksum_columns, sizeof *j.places);
    if (!j.places) return pot_fail(err, POT_NO_MEMORY, "%s: no memory to list its chunks", out->path);
    list_places(&j);
    pot_status status = j.n ? write_behind(&j, out, threads, watcher, err) : POT_OK;
    for (uint32_t t = 0; t < layout->n; t++) advise(m, layer, layout->tensors[t].expert, MADV_DONTNEED);
    pot_free(j.places);
    return status;
}

/* ---- dense ----------------------------------------------------------------------------------------------------------------- */

static pot_status write_dense(out_file *out, uint64_t *checksums, const pot_file_layout *layout, const pot_model *m,
                              uint32_t layer, int threads, const pot_container_watcher *watcher, pot_err *err) {
    const uint32_t of = layer == POT_CONTAINER_MODEL ? 0 : layer;
    pot_status status = POT_OK;
    for (uint32_t i = 0; i < layout->n && status == POT_OK; i++) {
        const pot_file_tensor *t = &layout->tensors[i];
        for (uint32_t k = i ? i + 1 : 0; k < i + 2 && k < layout->n; k++) /* read while the one before is packed */
            advise_tensor(m, layout->tensors[k].role, of, 0, MADV_WILLNEED);
        uint8_t *data = pot_alloc_aligned(t->bytes);
        if (!data)
            return pot_fail(err, POT_NO_MEMORY, "%s: no memory for a tensor of %" PRIu64 " bytes", out->path, t->bytes);
        status = pot_model_load_dense(data, m, t->role, of, threads, err);
        advise_tensor(m, t->role, of, 0, MADV_DONTNEED);
        checksums[i] = pot_hash64(data, t->bytes);
        if (status == POT_OK) status = write_at(out, data, t->bytes, layout->header_bytes + t->offset, err);
        pot_free(data);
        if (status == POT_OK && watcher && watcher->wrote && !watcher->wrote(watcher->context, t->bytes))
            status = pot_fail(err, POT_CANCELLED, "stopped while %s was written", out->path);
    }
    return status;
}

/* ---- a file ---------------------------------------------------------------------------------------------------------------- */

pot_status pot_container_write(pot_container_file *file, const char *path, const pot_model *m, int threads,
                               const pot_container_filter *filter, const pot_container_watcher *watcher, pot_err *err) {
    const pot_file_shape shape = pot_model_file_shape(m, file->experts, file->layer);
    pot_file_layout layout;
    pot_status s = pot_file_layout_make(&layout, &shape, err);
    if (s != POT_OK) return s;
    out_file out = {.path = path, .fd = -1, .direct = -1};
    uint64_t *checksums = pot_alloc(pot_file_checksum_bytes(&layout));
    if (!checksums) s = pot_fail(err, POT_NO_MEMORY, "%s: no memory for its checksums", path);
    if (s == POT_OK) s = open_out(&out, path, layout.file_bytes, err);
    if (s == POT_OK && file->experts)
        s = write_experts(&out, checksums, &layout, m, file->layer, threads, filter, watcher, err);
    else if (s == POT_OK)
        s = write_dense(&out, checksums, &layout, m, file->layer, threads, watcher, err);
    if (s == POT_OK)
        s = write_at(&out, checksums, pot_file_checksum_bytes(&layout), layout.header_bytes + layout.checksums, err);
    if (s == POT_OK) s = write_at(&out, layout.header.data, layout.header.bytes, 0, err);
    if (s == POT_OK) s = pot_file_hash(&file->hash, &layout, checksums, err);
    file->bytes = layout.file_bytes;
    s = close_out(&out, s, err);
    pot_free(checksums);
    pot_file_layout_free(&layout);
    return s;
}

/* ---- checking -------------------------------------------------------------------------------------------------------------- */

typedef struct fault_list {
    pot_buffer text;
    uint32_t n;
    const pot_container_watcher *watcher;
} fault_list;

static void add_fault(fault_list *list, const char *name, uint32_t chunk, bool has_chunk, uint64_t found,
                      uint64_t expected) {
#pragma omp critical(pot_container_fault)
    {
        if (list->n < MOST_FAULTS) {
            pot_buffer_format(&list->text, "%s%s", list->n ? "; " : "", name);
            if (has_chunk) pot_buffer_format(&list->text, " chunk %u", chunk);
            pot_buffer_format(&list->text, ": checksum %016" PRIx64 ", %016" PRIx64 " was expected", found, expected);
        }
        list->n++;
        if (list->watcher && list->watcher->damaged)
            list->watcher->damaged(list->watcher->context, name, has_chunk ? (int64_t)chunk : -1);
    }
}

typedef struct piece {
    uint64_t offset, bytes, expected;
    uint32_t tensor, chunk;
} piece;

/* Everything in the file that has a checksum.  A dense file's layout does not know of chunks: rows is 0. */
static uint32_t list_pieces(piece *out, const pot_file_shape *shape, const pot_file_layout *l,
                            const uint64_t *checksums) {
    uint32_t n = 0;
    for (uint32_t t = 0; t < l->n; t++) {
        const pot_file_tensor *tensor = &l->tensors[t];
        const pot_ffn_shape *ffn =
            shape->routed && tensor->expert < shape->config->n_routed ? shape->routed : shape->common;
        for (uint32_t c = 0; c < (tensor->rows ? tensor->rows : 1); c++)
            out[n++] = (piece){
                l->header_bytes + tensor->offset + (tensor->rows ? c * (tensor->bytes / tensor->rows) : 0),
                tensor->rows ? pot_chunk_bytes(ffn, c) : tensor->bytes, checksums[t * l->checksum_columns + c], t, c};
    }
    return n;
}

static pot_status check_pieces(fault_list *faults, int fd, const char *path, const pot_file_shape *shape,
                               const pot_file_layout *l, const piece *pieces, uint32_t n, int threads, bool holes,
                               const pot_container_watcher *watcher, pot_err *err) {
    pot_status status = POT_OK;
    atomic_bool failed = false;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (uint32_t i = 0; i < n; i++) {
        if (atomic_load(&failed)) continue;
        pot_err fault;
        const piece *p = &pieces[i];
        if (holes && p->expected == 0) continue;
        uint8_t *data = pot_alloc_aligned(p->bytes);
        pot_status one = data ? pot_read_exactly(fd, data, p->bytes, p->offset, path, &fault)
                              : pot_fail(&fault, POT_NO_MEMORY, "%s: no memory to check it", path);
        if (one == POT_OK && pot_hash64(data, p->bytes) != p->expected) {
            char name[POT_TENSOR_NAME];
            pot_file_tensor_name(name, shape, &l->tensors[p->tensor]);
            add_fault(faults, name, p->chunk, shape->experts, pot_hash64(data, p->bytes), p->expected);
        }
        pot_free(data);
        if (one == POT_OK && watcher && watcher->wrote && omp_get_thread_num() == 0 &&
            !watcher->wrote(watcher->context, p->bytes * (uint64_t)omp_get_num_threads()))
            one = pot_fail(&fault, POT_CANCELLED, "stopped while %s was checked", path);
        if (one != POT_OK && !atomic_exchange(&failed, true)) {
            status = one;
            if (err) *err = fault;
        }
    }
    return status;
}

pot_status pot_container_check_shape(const pot_container_file *file, const char *path, const pot_file_shape *shape,
                                     int threads, bool holes, const pot_container_watcher *watcher, pot_err *err) {
    pot_file_layout l;
    pot_status s = pot_file_layout_make(&l, shape, err);
    if (s != POT_OK) return s;
    uint64_t *checksums = NULL;
    int fd = -1;
    s = pot_file_open_checked(&fd, &checksums, &l, file, path, err);
    piece *pieces = pot_alloc_array((size_t)l.n * l.checksum_columns, sizeof *pieces);
    fault_list faults = {.watcher = watcher};
    if (s == POT_OK && !pieces) s = pot_fail(err, POT_NO_MEMORY, "%s: no memory to check it", path);
    if (s == POT_OK) {
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* the disk is what is to be checked */
        uint32_t n = list_pieces(pieces, shape, &l, checksums);
        s = check_pieces(&faults, fd, path, shape, &l, pieces, n, threads, holes, watcher, err);
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    }
    if (s == POT_OK && faults.n)
        s = pot_fail(err, POT_FORMAT, "%s: %u damaged: %s%s", path, faults.n, faults.text.data ? faults.text.data : "",
                     faults.n > MOST_FAULTS ? " and more" : "");
    if (fd >= 0) close(fd);
    pot_buffer_free(&faults.text);
    pot_free(pieces);
    pot_free(checksums);
    pot_file_layout_free(&l);
    return s;
}

/* Opens a file and reads its checksums: size, header and hash are what they should be. */
pot_status pot_file_open_checked(int *out, uint64_t **checksums, const pot_file_layout *l,
                                 const pot_container_file *file, const char *path, pot_err *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe would wait for its other end */
    struct stat info;
    if (fd >= 0 && (fstat(fd, &info) || !S_ISREG(info.st_mode))) {
        close(fd);
        return pot_fail(err, POT_IO, "%s: is not a regular file", path);
    }
    if (fd < 0) {
        const bool missing = errno == ENOENT, many = errno == EMFILE || errno == ENFILE;
        return pot_fail(err,
                        missing ? POT_NOT_FOUND
                        : many  ? POT_LIMIT
                                : POT_IO,
                        "%s: cannot be opened: %s%s", path, strerror(errno), many ? " (ulimit -n)" : "");
    }
    const uint64_t found = (uint64_t)lseek(fd, 0, SEEK_END), header_bytes = l->header.bytes;
    char *header = pot_alloc(header_bytes);
    uint64_t *sums = pot_alloc(pot_file_checksum_bytes(l));
    pot_status s = POT_OK;
    pot_hash hash = {0};
    if (!header || !sums)
        s = pot_fail(err, POT_NO_MEMORY, "%s: no memory for its header", path);
    else if (found != l->file_bytes || (file->bytes && found != file->bytes))
        s = pot_fail(err, POT_FORMAT,
                     "%s: has %" PRIu64 " bytes, %" PRIu64 " were expected: was it cut short or replaced?", path, found,
                     found != l->file_bytes ? l->file_bytes : file->bytes);
    if (s == POT_OK) s = pot_read_exactly(fd, header, header_bytes, 0, path, err);
    if (s == POT_OK && memcmp(header, l->header.data, header_bytes) != 0)
        s = pot_fail(
            err, POT_FORMAT,
            "%s: its header is not that of such a file with the formats of %s: was it changed, or is it another "
            "conversion's?",
            path, POT_CONTAINER_MANIFEST);
    if (s == POT_OK)
        s = pot_read_exactly(fd, sums, pot_file_checksum_bytes(l), l->header_bytes + l->checksums, path, err);
    if (s == POT_OK) s = pot_file_hash(&hash, l, sums, err);
    if (s == POT_OK && !pot_hash_equal(hash, file->hash)) {
        char got[33], need[33];
        pot_hash_text(got, hash);
        pot_hash_text(need, file->hash);
        s = pot_fail(
            err, POT_FORMAT,
            "%s: header and checksums have the hash %s, %s says %s: it was changed, or is another conversion's", path,
            got, POT_CONTAINER_MANIFEST, need);
    }
    pot_free(header);
    if (s != POT_OK) {
        pot_free(sums);
        close(fd);
        return s;
    }
    *out = fd;
    *checksums = sums;
    return POT_OK;
}
