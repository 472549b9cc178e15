/* One product or one expert layer: from host memory to the device and back.
 *
 * All that a call needs goes over in one copy (job table, row lists, weights of the routing, activations), then
 * the kernels run, then one copy brings the results.  A job of more than 16 rows is cut into several over the same
 * chunk; they lie next to each other in the grid, so the second finds the weights in L2.
 *
 * A layer is two launches when its chunks have one format, as a model's have; otherwise one a phase and
 * format.  Each launch takes the kernel for the largest number of rows among its jobs. */
#include "kernels/cuda/kernels.cuh"
#include "kernels/cuda/runtime.cuh"

extern "C" {
#include "common/mem.h"
}

/* ---- formats ---- */

struct format_kernels {
    const pot_cuda_kernels *kernels;
    scale_layout scales;
};

static format_kernels kernels_for(unsigned format) {
    const pot_format_traits *t = pot_format_get((pot_format)format);
    format_kernels out = {};
    if (t->bits == 32)
        out.kernels = &pot_cuda_f32;
    else if (t->bits == 16)
        out.kernels = &pot_cuda_bf16;
    else if (t->bits == 8)
        out.kernels = t->integer ? &pot_cuda_int8 : &pot_cuda_fp8;
    else if (t->bits == 2)
        out.kernels = &pot_cuda_int2;
    else
        out.kernels = t->scale == POT_SCALE_E8M0 ? &pot_cuda_e2m1 : &pot_cuda_int4;

    out.scales.kind = t->scale == POT_SCALE_NONE  ? SCALE_NONE
                      : t->scale == POT_SCALE_F32 ? SCALE_F32
                      : t->scale == POT_SCALE_F16 ? SCALE_F16
                                                  : SCALE_E8M0;
    out.scales.line_shift = t->scale == POT_SCALE_E8M0 ? 2 : t->scale == POT_SCALE_F16 ? 1 : 0;
    out.scales.per_row = t->scale != POT_SCALE_NONE && t->blocks_per_group == 0;
    out.scales.group_shift = 31;
    for (uint8_t shift = 0; shift < 3; shift++)
        if (t->blocks_per_group == 1u << shift) out.scales.group_shift = shift;
    return out;
}

static int row_choice(uint32_t n) {
    int choice = 0;
    while (n > (uint32_t)ROW_CHOICE[choice]) choice++;
    return choice;
}

/* ---- a call's memory: offsets that hold on both sides ---- */

struct arena {
    size_t bytes;
};

static size_t place(arena *a, size_t count, size_t size) {
    const size_t at = a->bytes, align = 256;
    a->bytes += (count * size + align - 1) / align * align;
    return at;
}

template <class T> static T *at(uint8_t *base, size_t offset) { return reinterpret_cast<T *>(base + offset); }

/* Where the activation rows of a call lie. */
struct act_places {
    size_t codes, scales, values;
    uint32_t blocks;
    bool integer, floating; /* forms that are needed */
};

static act_places place_acts(arena *a, uint32_t rows, uint32_t cols, bool integer, bool floating) {
    act_places p = {};
    p.blocks = pot_blocks(cols);
    p.integer = integer;
    p.floating = floating;
    const size_t blocks = (size_t)rows * p.blocks;
    p.codes = place(a, integer ? blocks * POT_BLOCK : 0, 1);
    p.scales = place(a, integer ? blocks : 0, sizeof(float));
    p.values = place(a, floating ? blocks * POT_BLOCK : 0, sizeof(float));
    return p;
}

static void copy_act(uint8_t *host, const act_places &p, uint32_t row, const pot_act_row &x) {
    const size_t codes = (size_t)p.blocks * POT_BLOCK;
    if (p.integer) {
        memcpy(host + p.codes + row * codes, x.codes, codes);
        memcpy(host + p.scales + row * p.blocks * sizeof(float), x.scales, p.blocks * sizeof(float));
    }
    if (p.floating) memcpy(host + p.values + row * codes * sizeof(float), x.values, codes * sizeof(float));
}

static act_view view_acts(uint8_t *device, const act_places &p) {
    act_view v = {};
    if (p.integer) {
        v.codes = at<int8_t>(device, p.codes);
        v.scales = at<float>(device, p.scales);
    }
    if (p.floating) v.values = at<float>(device, p.values);
    v.blocks = p.blocks;
    return v;
}

static pot_status to_device(pot_cuda *cuda, size_t bytes, pot_err *err) {
    return pot_cuda_check(
        cudaMemcpyAsync(cuda->device_memory, cuda->host_memory, bytes, cudaMemcpyHostToDevice, cuda->stream), cuda,
        "sending a job", err);
}

static pot_status to_host(pot_cuda *cuda, size_t offset, size_t bytes, pot_err *err) {
    return pot_cuda_check(cudaMemcpyAsync(cuda->host_memory + offset, cuda->device_memory + offset, bytes,
                                          cudaMemcpyDeviceToHost, cuda->stream),
                          cuda, "fetching a result", err);
}

static pot_status mark(pot_cuda *cuda, cudaEvent_t event, pot_err *err) {
    return pot_cuda_check(cudaEventRecord(event, cuda->stream), cuda, "recording an event", err);
}

/* ---- y = W x ---- */

pot_status pot_cuda_linear(pot_cuda *cuda, float *y, size_t y_stride, const pot_matrix *w, const pot_act_row *x,
                           uint32_t n, pot_err *err) {
    if (n == 0 || w->rows == 0) return POT_OK;
    const bool integer = pot_format_get((pot_format)w->format)->integer;
    arena a = {};
    const act_places acts = place_acts(&a, n, w->cols, integer, !integer);
    const size_t input = a.bytes, out = place(&a, (size_t)n * w->rows, sizeof(float));
    pot_status s = pot_cuda_reserve(cuda, a.bytes, err);
    if (s != POT_OK) return s;
    for (uint32_t i = 0; i < n; i++) copy_act(cuda->host_memory, acts, i, x[i]);
    s = to_device(cuda, input, err);
    if (s == POT_OK) s = mark(cuda, cuda->begin, err);
    const format_kernels f = kernels_for(w->format);
    for (uint32_t i = 0; s == POT_OK && i < n; i += MAX_ROWS) {
        matmul_args args = {};
        args.data = w->data;
        args.tile_stride = w->tile_stride;
        args.rows = w->rows;
        args.phase = w->phase;
        args.n = n - i < (uint32_t)MAX_ROWS ? n - i : (uint32_t)MAX_ROWS;
        args.scales = f.scales;
        args.x = view_acts(cuda->device_memory, acts);
        args.x.first = i;
        args.y = at<float>(cuda->device_memory, out) + (size_t)i * w->rows;
        POT_LAUNCH(f.kernels->matmul[row_choice(args.n)], pot_tiles(w->rows), THREADS, cuda->stream, args);
        s = pot_cuda_check(cudaGetLastError(), cuda, "starting a product", err);
    }
    if (s == POT_OK) s = mark(cuda, cuda->end, err);
    if (s == POT_OK) s = to_host(cuda, out, (size_t)n * w->rows * sizeof(float), err);
    if (s == POT_OK) s = pot_cuda_finish(cuda, "a product", err);
    if (s != POT_OK) return s;
    for (uint32_t i = 0; i < n; i++)
        memcpy(y + i * y_stride, at<float>(cuda->host_memory, out) + (size_t)i * w->rows, w->rows * sizeof(float));
    return POT_OK;
}

/* ---- the expert layer ---- */

struct layer {
    const pot_ffn_job *jobs;
    uint32_t n_jobs, hidden;
    uint32_t n_parts;   /* jobs of at most MAX_ROWS rows */
    uint32_t n_rows;    /* of all jobs together */
    uint32_t n_used;    /* rows of x that occur; they are sent, in the order of x */
    uint32_t *place_of; /* [n_x] place of a row of x among those that are sent; UINT32_MAX = not */
    uint32_t n_x;
    act_places x;
    /* offsets */
    size_t parts, order, rows, weights, input, hidden_codes, hidden_scales, hidden_values, acc, fault, bytes;
};

/* The parts that have one pair of formats go into one launch a phase. */
enum { MAX_GROUPS = POT_FORMAT_COUNT * POT_FORMAT_COUNT };
struct launch_group {
    unsigned gate_format, down_format;
    uint32_t begin, count; /* in `order` */
    uint32_t most_rows;
};

static launch_group *find_group(launch_group *groups, uint32_t *n_groups, const pot_chunk &c) {
    for (uint32_t i = 0; i < *n_groups; i++)
        if (groups[i].gate_format == c.gate.format && groups[i].down_format == c.down.format) return &groups[i];
    launch_group *g = &groups[(*n_groups)++];
    *g = launch_group();
    g->gate_format = c.gate.format;
    g->down_format = c.down.format;
    return g;
}

/* Counts, and makes place_of. */
static pot_status survey(layer *l, pot_err *err) {
    for (uint32_t j = 0; j < l->n_jobs; j++) {
        const pot_ffn_job *job = &l->jobs[j];
        const pot_chunk *c = &job->chunk;
        POT_ASSERT(c->down.rows == l->hidden && c->down.cols == c->gate.rows && c->gate.cols == l->hidden);
        POT_ASSERT(c->up.rows == c->gate.rows && c->up.cols == c->gate.cols && c->up.format == c->gate.format);
        POT_ASSERT(c->up.tile_stride == c->gate.tile_stride && c->up.phase == c->gate.phase);
        POT_ASSERT(pot_blocks(c->gate.rows) <= MAX_CHUNK_BLOCKS);
        l->n_parts += (job->n_rows + MAX_ROWS - 1) / MAX_ROWS;
        l->n_rows += job->n_rows;
        for (uint32_t i = 0; i < job->n_rows; i++)
            if (job->rows[i] >= l->n_x) l->n_x = job->rows[i] + 1;
    }
    l->place_of = static_cast<uint32_t *>(pot_alloc_array(l->n_x, sizeof *l->place_of));
    if (l->place_of == nullptr)
        return pot_fail(err, POT_NO_MEMORY, "no memory for the rows of %u expert chunks", l->n_jobs);
    for (uint32_t j = 0; j < l->n_jobs; j++)
        for (uint32_t i = 0; i < l->jobs[j].n_rows; i++) l->place_of[l->jobs[j].rows[i]] = 1;
    for (uint32_t r = 0; r < l->n_x; r++) l->place_of[r] = l->place_of[r] ? l->n_used++ : UINT32_MAX;
    return POT_OK;
}

static void lay_out(layer *l) {
    bool x_integer = false, x_floating = false, h_integer = false, h_floating = false;
    for (uint32_t j = 0; j < l->n_jobs; j++) {
        const bool gate = pot_format_get((pot_format)l->jobs[j].chunk.gate.format)->integer;
        const bool down = pot_format_get((pot_format)l->jobs[j].chunk.down.format)->integer;
        x_integer |= gate, x_floating |= !gate, h_integer |= down, h_floating |= !down;
    }
    const size_t blocks = (size_t)l->n_rows * MAX_CHUNK_BLOCKS;
    arena a = {};
    l->parts = place(&a, l->n_parts, sizeof(chunk_job));
    l->order = place(&a, l->n_parts, sizeof(uint32_t));
    l->rows = place(&a, l->n_rows, sizeof(uint32_t));
    l->weights = place(&a, l->n_rows, sizeof(float));
    l->x = place_acts(&a, l->n_used, l->hidden, x_integer, x_floating);
    l->input = a.bytes;
    l->hidden_codes = place(&a, h_integer ? blocks * POT_BLOCK : 0, 1);
    l->hidden_scales = place(&a, h_integer ? blocks : 0, sizeof(float));
    l->hidden_values = place(&a, h_floating ? blocks * POT_BLOCK : 0, sizeof(float));
    l->acc = place(&a, (size_t)l->n_used * l->hidden, sizeof(int64_t));
    l->fault = place(&a, 1, sizeof(uint32_t));
    l->bytes = a.bytes;
}

static void fill(const layer *l, uint8_t *host, const pot_act_row *x) {
    chunk_job *part = at<chunk_job>(host, l->parts);
    uint32_t row = 0;
    for (uint32_t j = 0; j < l->n_jobs; j++) {
        const pot_ffn_job *job = &l->jobs[j];
        const pot_chunk *c = &job->chunk;
        for (uint32_t i = 0; i < job->n_rows; i += MAX_ROWS, part++) {
            *part = chunk_job();
            part->gate = c->gate.data;
            part->up = c->up.data;
            part->down = c->down.data;
            part->gate_up_stride = c->gate.tile_stride;
            part->down_stride = c->down.tile_stride;
            part->inner = c->gate.rows;
            part->gate_up_phase = c->gate.phase;
            part->down_phase = c->down.phase;
            part->n = job->n_rows - i < (uint32_t)MAX_ROWS ? job->n_rows - i : (uint32_t)MAX_ROWS;
            part->first = row + i;
            part->number = j;
        }
        for (uint32_t i = 0; i < job->n_rows; i++, row++) {
            at<uint32_t>(host, l->rows)[row] = l->place_of[job->rows[i]];
            at<float>(host, l->weights)[row] = job->weights[i];
        }
    }
    for (uint32_t r = 0; r < l->n_x; r++)
        if (l->place_of[r] != UINT32_MAX) copy_act(host, l->x, l->place_of[r], x[r]);
}

/* Sorts the parts into groups, in `order`. */
static void group_parts(launch_group *groups, const layer *l, uint8_t *host, uint32_t *n_groups) {
    const chunk_job *parts = at<chunk_job>(host, l->parts);
    uint32_t *order = at<uint32_t>(host, l->order), begin = 0;
    for (uint32_t p = 0; p < l->n_parts; p++) {
        launch_group *g = find_group(groups, n_groups, l->jobs[parts[p].number].chunk);
        g->count++;
        if (parts[p].n > g->most_rows) g->most_rows = parts[p].n;
    }
    for (uint32_t i = 0; i < *n_groups; i++) {
        groups[i].begin = begin;
        begin += groups[i].count;
        groups[i].count = 0;
    }
    for (uint32_t p = 0; p < l->n_parts; p++) {
        launch_group *g = find_group(groups, n_groups, l->jobs[parts[p].number].chunk);
        order[g->begin + g->count++] = p;
    }
}

static pot_status launch_phase(pot_cuda *cuda, const layer *l, const launch_group *groups, uint32_t n_groups,
                               layer_args args, bool down, pot_err *err) {
    const uint32_t blocks_a_job =
        down ? (pot_tiles(l->hidden) + DOWN_TILES - 1) / DOWN_TILES : (uint32_t)MAX_CHUNK_BLOCKS;
    for (uint32_t i = 0; i < n_groups; i++) {
        const launch_group *g = &groups[i];
        const format_kernels f = kernels_for(down ? g->down_format : g->gate_format);
        const int choice = row_choice(g->most_rows);
        args.scales = f.scales;
        args.down_integer = pot_format_get((pot_format)g->down_format)->integer;
        args.order = at<uint32_t>(cuda->device_memory, l->order) + g->begin;
        POT_LAUNCH(down ? f.kernels->down[choice] : f.kernels->gate_up[choice], g->count * blocks_a_job, THREADS,
                   cuda->stream, args);
        pot_status s = pot_cuda_check(cudaGetLastError(), cuda, down ? "starting down" : "starting gate and up", err);
        if (s != POT_OK) return s;
    }
    return POT_OK;
}

static pot_status run_layer(pot_cuda *cuda, const layer *l, const pot_act_row *x, int grid, pot_err *err) {
    uint8_t *const host = cuda->host_memory, *const device = cuda->device_memory;
    launch_group groups[MAX_GROUPS];
    uint32_t n_groups = 0;
    fill(l, host, x);
    group_parts(groups, l, host, &n_groups);

    layer_args args = {};
    args.jobs = at<chunk_job>(device, l->parts);
    args.rows = at<uint32_t>(device, l->rows);
    args.weights = at<float>(device, l->weights);
    args.x = view_acts(device, l->x);
    args.hidden_codes = at<int8_t>(device, l->hidden_codes);
    args.hidden_scales = at<float>(device, l->hidden_scales);
    args.hidden_values = at<float>(device, l->hidden_values);
    args.hidden = l->hidden;
    args.acc = at<unsigned long long>(device, l->acc);
    args.grid = grid;
    args.fault = at<unsigned>(device, l->fault);

    pot_status s = to_device(cuda, l->input, err);
    if (s == POT_OK)
        s = pot_cuda_check(cudaMemsetAsync(device + l->acc, 0, l->fault - l->acc, cuda->stream), cuda,
                           "clearing the sums", err);
    if (s == POT_OK)
        s = pot_cuda_check(cudaMemsetAsync(device + l->fault, 0xff, sizeof(unsigned), cuda->stream), cuda,
                           "clearing the fault", err);
    if (s == POT_OK) s = mark(cuda, cuda->begin, err);
    if (s == POT_OK) s = launch_phase(cuda, l, groups, n_groups, args, false, err);
    if (s == POT_OK) s = launch_phase(cuda, l, groups, n_groups, args, true, err);
    if (s == POT_OK) s = mark(cuda, cuda->end, err);
    if (s == POT_OK) s = to_host(cuda, l->acc, l->fault + sizeof(unsigned) - l->acc, err);
    return s == POT_OK ? pot_cuda_finish(cuda, "an expert layer", err) : s;
}

pot_status pot_cuda_ffn_run(pot_cuda *cuda, int64_t *acc, uint32_t hidden, const pot_act_row *x,
                            const pot_ffn_job *jobs, uint32_t n_jobs, int grid, pot_err *err) {
    POT_ASSERT(grid >= -62 && grid <= 62);
    layer l = {};
    l.jobs = jobs;
    l.n_jobs = n_jobs;
    l.hidden = hidden;
    pot_status s = survey(&l, err);
    if (s == POT_OK && l.n_parts > 0) {
        lay_out(&l);
        s = pot_cuda_reserve(cuda, l.bytes, err);
        if (s == POT_OK) s = run_layer(cuda, &l, x, grid, err);
        const unsigned fault = s == POT_OK ? *at<unsigned>(cuda->host_memory, l.fault) : UINT32_MAX;
        if (fault != UINT32_MAX)
            s = pot_fail(err, POT_NUMERIC, "expert %u gave a value that is not finite or too large for the sum",
                         jobs[fault].expert);
    }
    if (s == POT_OK && l.n_parts > 0) {
        const uint64_t *sums = at<uint64_t>(cuda->host_memory, l.acc);
        for (uint32_t r = 0; r < l.n_x; r++) {
            if (l.place_of[r] == UINT32_MAX) continue;
            for (uint32_t k = 0; k < hidden; k++) /* unsigned: sums that wrap are still free of order */
                acc[(size_t)r * hidden + k] =
                    (int64_t)((uint64_t)acc[(size_t)r * hidden + k] + sums[(size_t)l.place_of[r] * hidden + k]);
        }
    }
    pot_free(l.place_of);
    return s;
}
