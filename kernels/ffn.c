/* The expert layer over a list of jobs (DESIGN 3: a chunk is a small expert, sums are integers).
 *
 * Phase A: a unit is some blocks of 32 inner rows of one job's chunk.  Gate and up tiles alternate in memory, so the unit is one
 *          product over one stretch of it; its epilogue applies SwiGLU and leaves the blocks in the scratch, quantized if
 *          `down` wants integers.
 * Phase B: a unit is a range of hidden tiles, for which its thread walks all jobs: no two threads write one sum.
 *
 * Threads take units as they come: jobs differ in rows, and threads in how much of their core they get.  With one row a unit is as
 * long as may be, for long streams are what memory is quick at; with many rows it is what lies between two products that must
 * stay small. */
#include "kernels/ffn.h"

#include <stdatomic.h>
#include <string.h>

#include "common/mem.h"

enum {
    BATCH = 64,                   /* rows of a product */
    OUTPUTS = 64 * POT_BLOCK,     /* of a product in phase A: the values of 64 blocks, gate and up */
    MAX_BLOCKS = 256 / POT_BLOCK, /* of a chunk */
    MAX_OUT = 4096,               /* outputs of a product in phase B */
    UNITS_A = 4,
    UNITS_B = 2 /* units a thread should find at least */
};

/* One job and where its hidden values lie: per row `blocks` of codes, then their scales, then their sums; or of values. */
typedef struct job_state {
    const pot_ffn_job *job;
    uint8_t *hidden;
    size_t row_bytes;
    uint32_t blocks;
    uint32_t span;       /* blocks a unit */
    uint32_t first_unit; /* of phase A */
    bool integer;
} job_state;

typedef struct layer_run {
    const pot_kernels *kernels;
    pot_team *team;
    int64_t *acc;
    const pot_act_row *x;
    job_state *states;
    uint32_t n_jobs, hidden, units_a;
    int grid;
    atomic_uint next_a, next_b;
    atomic_uint bad; /* the first job with a fault, whatever the threads do */
} layer_run;

void pot_ffn_scratch_free(pot_ffn_scratch *scratch) {
    pot_free(scratch->memory);
    *scratch = (pot_ffn_scratch){0};
}

static pot_act_row hidden_row(const job_state *state, uint32_t i) {
    uint8_t *row = state->hidden + i * state->row_bytes;
    if (!state->integer) return (pot_act_row){.values = (float *)(void *)row};
    float *scales = (float *)(void *)(row + (size_t)state->blocks * POT_BLOCK);
    return (pot_act_row){.codes = (int8_t *)row, .scales = scales, .sums = (int32_t *)(void *)(scales + state->blocks)};
}

static void report(layer_run *run, uint32_t job) {
    unsigned before = atomic_load(&run->bad);
    while (job < before && !atomic_compare_exchange_weak(&run->bad, &before, job)) {
    }
}

/* ---- phase A ---------------------------------------------------------------------------------------------------- */

/* Gate and up as they lie in memory: one matrix whose even tiles are gate's and whose odd ones are up's, from a block on. */
static pot_matrix gate_and_up(const pot_chunk *chunk, uint32_t block, uint32_t blocks) {
    const size_t tile_bytes = (size_t)(chunk->up.data - chunk->gate.data);
    uint32_t tiles = pot_tiles(chunk->gate.rows), first = block * (POT_BLOCK / POT_TILE_ROWS);
    uint32_t count = blocks * (POT_BLOCK / POT_TILE_ROWS);
    if (count > tiles - first) count = tiles - first;
    pot_matrix m = chunk->gate;
    m.data += first * chunk->gate.tile_stride;
    m.tile_stride = tile_bytes;
    m.rows = 2 * count * POT_TILE_ROWS;
    return m;
}

/* From a row's gate and up values, tile by tile, to `blocks` blocks of hidden values.  false when one is not finite. */
static bool finish_blocks(const layer_run *run, const job_state *state, uint32_t row, uint32_t block, uint32_t blocks,
                          const float *y, uint32_t tiles) {
    float h[MAX_BLOCKS * POT_BLOCK];
    for (uint32_t t = 0; t < tiles; t++)
        run->kernels->swiglu(h + t * POT_TILE_ROWS, y + 2 * t * POT_TILE_ROWS, y + (2 * t + 1) * POT_TILE_ROWS,
                             POT_TILE_ROWS);
    const uint32_t wanted = blocks * POT_BLOCK, left = state->job->chunk.gate.rows - block * POT_BLOCK;
    if (left < wanted) memset(h + left, 0, (wanted - left) * sizeof *h); /* what pads the last block must be zero */
    uint8_t *out = state->hidden + row * state->row_bytes;
    if (!state->integer) {
        memcpy((float *)(void *)out + block * POT_BLOCK, h, (size_t)blocks * POT_BLOCK * sizeof *h);
        return true;
    }
    float *scales = (float *)(void *)(out + (size_t)state->blocks * POT_BLOCK);
    int32_t *sums = (int32_t *)(void *)(scales + state->blocks);
    return run->kernels->quantize((int8_t *)out + block * POT_BLOCK, scales + block, sums + block, h, blocks);
}

static bool hidden_blocks(const layer_run *run, const job_state *state, uint32_t block) {
    const pot_ffn_job *job = state->job;
    const uint32_t blocks = state->blocks - block < state->span ? state->blocks - block : state->span;
    const pot_matrix m = gate_and_up(&job->chunk, block, blocks);
    bool finite = true;
    for (uint32_t i = 0; i < job->n_rows; i += BATCH) {
        uint32_t count = job->n_rows - i < BATCH ? job->n_rows - i : BATCH;
        pot_act_row rows[BATCH];
        float y[2 * OUTPUTS];
        for (uint32_t r = 0; r < count; r++) rows[r] = run->x[job->rows[i + r]];
        run->kernels->matmul[m.format](y, m.rows, &m, 0, pot_tiles(m.rows), rows, count);
        for (uint32_t r = 0; r < count; r++)
            finite &= finish_blocks(run, state, i + r, block, blocks, y + (size_t)r * m.rows, pot_tiles(m.rows) / 2);
    }
    return finite;
}

static void phase_a(layer_run *run) {
    uint32_t j = 0, unit;
    while ((unit = atomic_fetch_add(&run->next_a, 1)) < run->units_a) {
        while (j + 1 < run->n_jobs && unit >= run->states[j + 1].first_unit) j++;
        const job_state *state = &run->states[j];
        if (!hidden_blocks(run, state, (unit - state->first_unit) * state->span)) report(run, j);
    }
}

/* ---- phase B ---------------------------------------------------------------------------------------------------- */

/* One job over the tiles [begin, end).  false when a value does not fit the grid. */
static bool add_down(const layer_run *run, const job_state *state, uint32_t begin, uint32_t end) {
    const pot_ffn_job *job = state->job;
    const pot_matrix *down = &job->chunk.down;
    if (job->n_rows == 0) return true;
    const uint32_t batch = job->n_rows < BATCH ? job->n_rows : BATCH, most = MAX_OUT / POT_TILE_ROWS / batch;
    bool fits = true;
    for (uint32_t t = begin, tiles; t < end; t += tiles) {
        tiles = end - t < most ? end - t : most;
        pot_matrix part = *down;
        part.data += t * down->tile_stride;
        part.rows = down->rows - t * POT_TILE_ROWS;
        if (part.rows > tiles * POT_TILE_ROWS) part.rows = tiles * POT_TILE_ROWS;
        for (uint32_t i = 0; i < job->n_rows; i += BATCH) {
            uint32_t count = job->n_rows - i < BATCH ? job->n_rows - i : BATCH;
            pot_act_row rows[BATCH];
            float v[MAX_OUT];
            for (uint32_t r = 0; r < count; r++) rows[r] = hidden_row(state, i + r);
            run->kernels->matmul[part.format](v, part.rows, &part, 0, tiles, rows, count);
            for (uint32_t r = 0; r < count; r++) {
                int64_t *sums = run->acc + (size_t)job->rows[i + r] * run->hidden + t * POT_TILE_ROWS;
                fits &=
                    run->kernels->grid_add(sums, v + (size_t)r * part.rows, job->weights[i + r], part.rows, run->grid);
            }
        }
    }
    return fits;
}

static void phase_b(layer_run *run, int threads) {
    const uint32_t tiles = pot_tiles(run->hidden), units = threads == 1 ? 1 : (uint32_t)threads * UNITS_B;
    uint32_t unit;
    while ((unit = atomic_fetch_add(&run->next_b, 1)) < units) {
        uint32_t begin, end;
        pot_team_share(&begin, &end, tiles, (int)unit, (int)units);
        for (uint32_t j = 0; j < run->n_jobs; j++)
            if (!add_down(run, &run->states[j], begin, end)) report(run, j);
    }
}

/* ---- both ------------------------------------------------------------------------------------------------------- */

static void run_part(void *context, int thread, int threads) {
    layer_run *run = context;
    (void)thread;
    phase_a(run);
    pot_team_barrier(run->team, threads);
    phase_b(run, threads); /* also after a fault: codes of a block that was refused are unspecified but harmless */
}

static size_t aligned(size_t bytes) { return (bytes + POT_LINE_BYTES - 1) / POT_LINE_BYTES * POT_LINE_BYTES; }

/* Lays the jobs out in the scratch, which is grown if need be.  *work counts multiplications. */
static pot_status plan(layer_run *run, uint64_t *work, const pot_ffn_job *jobs, pot_ffn_scratch *scratch,
                       pot_err *err) {
    size_t head = aligned(run->n_jobs * sizeof(job_state)), bytes = head;
    *work = 0;
    for (uint32_t j = 0; j < run->n_jobs; j++) {
        const pot_chunk *chunk = &jobs[j].chunk;
        POT_ASSERT(chunk->down.rows == run->hidden && chunk->down.cols == chunk->gate.rows);
        POT_ASSERT(chunk->gate.cols == run->hidden && pot_blocks(chunk->gate.rows) <= MAX_BLOCKS);
        bytes += aligned((size_t)jobs[j].n_rows * pot_blocks(chunk->gate.rows) * POT_BLOCK * sizeof(float));
        *work += (uint64_t)3 * jobs[j].n_rows * chunk->gate.rows * run->hidden;
    }
    if (bytes > scratch->bytes) {
        pot_ffn_scratch_free(scratch);
        scratch->memory = pot_alloc_aligned(bytes);
        if (scratch->memory == NULL)
            return pot_fail(err, POT_NO_MEMORY, "no memory for the hidden values of %u expert chunks (%zu bytes)",
                            run->n_jobs, bytes);
        scratch->bytes = bytes;
    }
    run->states = (job_state *)(void *)scratch->memory;
    uint8_t *at = scratch->memory + head;
    for (uint32_t j = 0; j < run->n_jobs; j++) {
        const pot_matrix *down = &jobs[j].chunk.down;
        bool integer = pot_format_get((pot_format)down->format)->integer;
        uint32_t blocks = pot_blocks(down->cols);
        size_t block_bytes = integer ? POT_BLOCK + sizeof(float) + sizeof(int32_t) : POT_BLOCK * sizeof(float);
        run->states[j] = (job_state){
            .job = &jobs[j], .hidden = at, .row_bytes = blocks * block_bytes, .blocks = blocks, .integer = integer};
        at += aligned(jobs[j].n_rows * run->states[j].row_bytes);
    }
    return POT_OK;
}

/* Cuts the jobs into units of at most `most` blocks; returns how many there are. */
static uint32_t cut(layer_run *run, uint32_t most) {
    uint32_t units = 0;
    for (uint32_t j = 0; j < run->n_jobs; j++) {
        job_state *state = &run->states[j];
        uint32_t rows = state->job->n_rows < BATCH ? state->job->n_rows : BATCH,
                 room = OUTPUTS / POT_BLOCK / (rows ? rows : 1);
        state->span = room < most ? room : most;
        state->first_unit = units;
        units += (state->blocks + state->span - 1) / state->span;
    }
    return units;
}

pot_status pot_ffn_run(const pot_compute *compute, int64_t *acc, uint32_t hidden, const pot_act_row *x,
                       const pot_ffn_job *jobs, uint32_t n_jobs, int grid, pot_ffn_scratch *scratch, pot_err *err) {
    if (n_jobs == 0) return POT_OK;
    layer_run run = {.kernels = compute->kernels,
                     .team = compute->team,
                     .acc = acc,
                     .x = x,
                     .n_jobs = n_jobs,
                     .hidden = hidden,
                     .grid = grid,
                     .bad = UINT32_MAX};
    uint64_t work;
    pot_status status = plan(&run, &work, jobs, scratch, err);
    if (status != POT_OK) return status;
    const int threads = pot_team_threads(compute->team);
    uint32_t most = MAX_BLOCKS;
    run.units_a = cut(&run, most);
    while (threads > 1 && most > 1 && run.units_a < (uint32_t)threads * UNITS_A) run.units_a = cut(&run, most /= 2);

    pot_team_run(compute->team, work, run_part, &run);
    const uint32_t bad = atomic_load(&run.bad);
    if (bad == UINT32_MAX) return POT_OK;
    return pot_fail(err, POT_NUMERIC, "expert %u gave a value that is not finite or too large for the sum",
                    jobs[bad].expert);
}
