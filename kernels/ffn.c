/* The expert layer over a list of jobs (DESIGN 3: a chunk is a small expert, sums are integers).
 *
 * Phase A: one unit of work is 32 inner rows of one job's chunk, which is one block of what `down` will read.
 *          It multiplies gate and up, applies SwiGLU and leaves the block in the scratch, quantized if `down`
 *          wants integers.
 * Phase B: each thread owns a range of hidden tiles and walks all jobs over it: no two threads write one sum.
 *
 * Both phases take a job's rows in batches of BATCH, so that what lies between two products stays on the stack. */
#include "kernels/ffn.h"

#include <omp.h>
#include <string.h>

#include "common/mem.h"
#include "kernels/math.h"

enum {
    BATCH = 32,
    OUT_TILES = 4, /* tiles of `down` a product in phase B */
    OUT_COLS = OUT_TILES * POT_TILE_ROWS,
    MAX_BLOCKS = 256 / POT_BLOCK /* of a chunk */
};

/* One job and where its hidden values lie: per row `blocks` of codes and then their scales, or of values. */
typedef struct job_state {
    const pot_ffn_job *job;
    uint8_t *hidden;
    size_t row_bytes;
    uint32_t blocks;
    bool integer;
} job_state;

void pot_ffn_scratch_free(pot_ffn_scratch *scratch) {
    pot_free(scratch->memory);
    *scratch = (pot_ffn_scratch){0};
}

static pot_act_row hidden_row(const job_state *state, uint32_t i) {
    uint8_t *row = state->hidden + i * state->row_bytes;
    if (!state->integer) return (pot_act_row){.values = (float *)(void *)row};
    return (pot_act_row){.codes = (int8_t *)row, .scales = (float *)(void *)(row + (size_t)state->blocks * POT_BLOCK)};
}

/* The 32 rows of a gate or up matrix that make block `block`. */
static pot_matrix block_rows(const pot_matrix *matrix, uint32_t block) {
    pot_matrix part = *matrix;
    part.data += (size_t)block * (POT_BLOCK / POT_TILE_ROWS) * matrix->tile_stride;
    uint32_t left = matrix->rows - block * POT_BLOCK;
    part.rows = left < POT_BLOCK ? left : POT_BLOCK;
    return part;
}

/* Phase A, one unit.  false when a hidden value is not finite. */
static bool hidden_block(const job_state *state, uint32_t block, const pot_kernels *kernels, const pot_act_row *x) {
    const pot_ffn_job *job = state->job;
    const pot_matrix gate = block_rows(&job->chunk.gate, block), up = block_rows(&job->chunk.up, block);
    const uint32_t tiles = pot_tiles(gate.rows);
    bool finite = true;
    for (uint32_t i = 0; i < job->n_rows; i += BATCH) {
        uint32_t count = job->n_rows - i < BATCH ? job->n_rows - i : BATCH;
        pot_act_row rows[BATCH];
        float g[BATCH * POT_BLOCK], u[BATCH * POT_BLOCK];
        for (uint32_t r = 0; r < count; r++) rows[r] = x[job->rows[i + r]];
        if (gate.rows < POT_BLOCK) { /* what pads the block must be zero */
            memset(g, 0, sizeof g);
            memset(u, 0, sizeof u);
        }
        kernels->matmul[gate.format](g, POT_BLOCK, &gate, 0, tiles, rows, count);
        kernels->matmul[up.format](u, POT_BLOCK, &up, 0, tiles, rows, count);
        kernels->swiglu(g, g, u, count * POT_BLOCK);
        for (uint32_t r = 0; r < count; r++) {
            uint8_t *out = state->hidden + (i + r) * state->row_bytes;
            if (state->integer)
                finite &= kernels->quantize((int8_t *)out + block * POT_BLOCK,
                                            (float *)(void *)(out + (size_t)state->blocks * POT_BLOCK) + block,
                                            g + r * POT_BLOCK, 1);
            else
                memcpy((float *)(void *)out + block * POT_BLOCK, g + r * POT_BLOCK, POT_BLOCK * sizeof(float));
        }
    }
    return finite;
}

/* Phase B, one job over the tiles [begin, end).  false when a value does not fit the grid. */
static bool add_down(int64_t *acc, uint32_t hidden, const job_state *state, uint32_t begin, uint32_t end,
                     const pot_kernels *kernels, int grid) {
    const pot_ffn_job *job = state->job;
    const pot_matrix *down = &job->chunk.down;
    bool fits = true;
    for (uint32_t t = begin; t < end; t += OUT_TILES) {
        pot_matrix part = *down;
        const uint32_t first = t * POT_TILE_ROWS, tiles = end - t < OUT_TILES ? end - t : OUT_TILES;
        part.data += t * down->tile_stride;
        part.rows = hidden - first < tiles * POT_TILE_ROWS ? hidden - first : tiles * POT_TILE_ROWS;
        for (uint32_t i = 0; i < job->n_rows; i += BATCH) {
            uint32_t count = job->n_rows - i < BATCH ? job->n_rows - i : BATCH;
            pot_act_row rows[BATCH];
            float v[BATCH * OUT_COLS];
            for (uint32_t r = 0; r < count; r++) rows[r] = hidden_row(state, i + r);
            kernels->matmul[part.format](v, OUT_COLS, &part, 0, tiles, rows, count);
            for (uint32_t r = 0; r < count; r++)
                fits &= kernels->grid_add(acc + (size_t)job->rows[i + r] * hidden + first, v + r * OUT_COLS,
                                          job->weights[i + r], part.rows, grid);
        }
    }
    return fits;
}

static size_t aligned(size_t bytes) { return (bytes + POT_LINE_BYTES - 1) / POT_LINE_BYTES * POT_LINE_BYTES; }

/* Lays the jobs out in the scratch, which is grown if need be; NULL when memory is short.  *work counts
 * multiplications. */
static job_state *plan(uint64_t *work, const pot_ffn_job *jobs, uint32_t n_jobs, uint32_t hidden,
                       pot_ffn_scratch *scratch, pot_err *err) {
    size_t head = aligned(n_jobs * sizeof(job_state)), bytes = head;
    *work = 0;
    for (uint32_t j = 0; j < n_jobs; j++) {
        const pot_chunk *chunk = &jobs[j].chunk;
        POT_ASSERT(chunk->down.rows == hidden && chunk->down.cols == chunk->gate.rows);
        POT_ASSERT(chunk->gate.cols == hidden && pot_blocks(chunk->gate.rows) <= MAX_BLOCKS);
        bytes += aligned((size_t)jobs[j].n_rows * pot_blocks(chunk->gate.rows) * POT_BLOCK * sizeof(float));
        *work += (uint64_t)3 * jobs[j].n_rows * chunk->gate.rows * hidden;
    }
    if (bytes > scratch->bytes) {
        pot_ffn_scratch_free(scratch);
        scratch->memory = pot_alloc_aligned(bytes);
        if (scratch->memory == NULL) {
            pot_fail(err, POT_NO_MEMORY, "no memory for the hidden values of %u expert chunks (%zu bytes)", n_jobs,
                     bytes);
            return NULL;
        }
        scratch->bytes = bytes;
    }
    job_state *states = (job_state *)(void *)scratch->memory;
    uint8_t *at = scratch->memory + head;
    for (uint32_t j = 0; j < n_jobs; j++) {
        const pot_matrix *down = &jobs[j].chunk.down;
        bool integer = pot_format_get((pot_format)down->format)->integer;
        uint32_t blocks = pot_blocks(down->cols);
        states[j] = (job_state){.job = &jobs[j],
                                .hidden = at,
                                .row_bytes = blocks * (integer ? POT_BLOCK + sizeof(float) : POT_BLOCK * sizeof(float)),
                                .blocks = blocks,
                                .integer = integer};
        at += aligned(jobs[j].n_rows * states[j].row_bytes);
    }
    return states;
}

pot_status pot_ffn_run(const pot_compute *compute, int64_t *acc, uint32_t hidden, const pot_act_row *x,
                       const pot_ffn_job *jobs, uint32_t n_jobs, int grid, pot_ffn_scratch *scratch, pot_err *err) {
    if (n_jobs == 0) return POT_OK;
    uint64_t work;
    const job_state *states = plan(&work, jobs, n_jobs, hidden, scratch, err);
    if (states == NULL) return POT_NO_MEMORY;

    const pot_kernels *kernels = compute->kernels;
    const uint32_t tiles = pot_tiles(hidden);
    uint32_t bad = UINT32_MAX; /* the first job with a fault, whatever the threads do */
    const bool worth = pot_worth_threads(compute, work);
#pragma omp parallel num_threads(compute->threads) if (worth) reduction(min : bad)
    {
        pot_fp_strict();
        /* A unit is some microseconds of reading weights, and jobs differ in rows: handed out as threads
         * come. */
#pragma omp for schedule(dynamic, 1)
        for (uint32_t unit = 0; unit < n_jobs * MAX_BLOCKS; unit++) {
            const job_state *state = &states[unit / MAX_BLOCKS];
            uint32_t block = unit % MAX_BLOCKS;
            if (block < state->blocks && !hidden_block(state, block, kernels, x) && unit / MAX_BLOCKS < bad)
                bad = unit / MAX_BLOCKS;
        }
        /* Phase B also runs after a fault: codes of a block that was refused are unspecified but harmless. */
        uint64_t thread = (uint64_t)omp_get_thread_num(), threads = (uint64_t)omp_get_num_threads();
        uint32_t begin = (uint32_t)(tiles * thread / threads), end = (uint32_t)(tiles * (thread + 1) / threads);
        for (uint32_t j = 0; j < n_jobs; j++)
            if (!add_down(acc, hidden, &states[j], begin, end, kernels, grid) && j < bad) bad = j;
    }
    if (bad == UINT32_MAX) return POT_OK;
    return pot_fail(err, POT_NUMERIC, "expert %u gave a value that is not finite or too large for the sum",
                    jobs[bad].expert);
}
