/* The three kernels and what the host hands to them.  Each .cu of codes makes one pot_cuda_kernels by
 * POT_CUDA_DEFINE_KERNELS; run.cu picks from them. */
#ifndef POT_KERNELS_CUDA_KERNELS_CUH
#define POT_KERNELS_CUDA_KERNELS_CUH

#include "kernels/cuda/product.cuh"

/* Rows that a kernel can take at once: it holds one accumulator for each, used or not. */
static const int ROW_CHOICES = 3, ROW_CHOICE[ROW_CHOICES] = {1, 4, 16}, MAX_ROWS = 16;
static const uint32_t MAX_CHUNK_BLOCKS = 8; /* a chunk's inner rows: 256 at most */

struct matmul_args {
    const uint8_t *data;
    uint64_t tile_stride;
    uint32_t rows, phase, n;
    scale_layout scales;
    act_view x;
    float *y; /* [n][rows] */
};

/* One chunk for at most MAX_ROWS rows. */
struct chunk_job {
    const uint8_t *gate, *up, *down;
    uint64_t gate_up_stride, down_stride;
    uint32_t inner;
    uint32_t gate_up_phase, down_phase;
    uint32_t n, first; /* its rows are rows[first..first+n); so are its weights and hidden rows */
    uint32_t number;   /* of the caller's job */
};

/* Hidden rows have room for MAX_CHUNK_BLOCKS blocks whatever the chunk. */
struct layer_args {
    const chunk_job *jobs;
    const uint32_t *order; /* [blocks of the grid / blocks a job]: the jobs of this launch */
    scale_layout scales;
    const uint32_t *rows;
    const float *weights;
    act_view x; /* gate and up */
    int8_t *hidden_codes;
    float *hidden_scales, *hidden_values; /* values are NULL where no down takes floats */
    bool down_integer;                    /* gate_up writes codes; else values */
    uint32_t hidden;                      /* the model's width */
    unsigned long long *acc;              /* [rows of x][hidden] */
    int grid;
    unsigned *fault; /* the least number of a job with a value that is not finite or too large */
};

struct pot_cuda_kernels {
    void (*matmul[ROW_CHOICES])(matmul_args); /* a block a tile */
    void (*gate_up[ROW_CHOICES])(layer_args); /* a block for 32 inner rows of a job */
    void (*down[ROW_CHOICES])(layer_args);    /* a block for DOWN_TILES tiles of a job */
};

extern const pot_cuda_kernels pot_cuda_f32, pot_cuda_bf16, pot_cuda_fp8, pot_cuda_int8, pot_cuda_int4, pot_cuda_int2,
    pot_cuda_e2m1;

/* ---- y = W x ---- */

struct run_of_tiles { /* tiles that follow each other in one matrix */
    const uint8_t *data;
    uint64_t stride;
    uint32_t first, end;
    __device__ const uint8_t *operator()(int t) const {
        return first + (uint32_t)t < end ? data + (first + (uint32_t)t) * stride : nullptr;
    }
};

template <codes C, int N> __global__ void __launch_bounds__(THREADS, N == 16 ? 2 : 3) matmul_kernel(matmul_args a) {
    typedef shapes<C, N, 1> S;
    typedef typename S::shared stages;
    POT_SHARED(stages, shared);
    const uint32_t tile_index = blockIdx.x;
    const run_of_tiles tiles = {a.data, a.tile_stride, tile_index, tile_index + 1};
    float value[S::OWN];
    product<C, N, 1>(value, shared, tiles, a.x.blocks, a.phase, a.x, (int)a.n, a.scales);
#pragma unroll
    for (int j = 0; j < S::OWN; j++) {
        int tile, i, row;
        if (!own_output<N, 1>(j, (int)a.n, &tile, &i, &row)) continue;
        const uint32_t out = tile_index * TILE_ROWS + (uint32_t)row;
        if (out < a.rows) a.y[(size_t)i * a.rows + out] = value[j];
    }
}

/* ---- phase A: gate, up, SwiGLU, requantize ---- */

static const int GATE_UP_TILES = 4;

struct gate_up_tiles { /* gate, up, gate, up: in a packed chunk these four follow each other */
    const uint8_t *gate, *up;
    uint64_t stride;
    uint32_t first, end;
    __device__ const uint8_t *operator()(int t) const {
        const uint32_t index = first + (uint32_t)t / 2;
        return index < end ? (t % 2 ? up : gate) + index * stride : nullptr;
    }
};

/* One block of 32 hidden values by one warp, a value a lane: scale = largest / 127, code = rint(value / scale).  false when
 * a value is not finite. */
POT_DEVICE bool quantize_block(int8_t *codes, float *scale_out, float value, int lane) {
    uint32_t largest = __float_as_uint(value) & 0x7fffffffu;
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        uint32_t other = (uint32_t)from_lane((int)largest, distance);
        largest = other > largest ? other : largest;
    }
    const bool finite = largest < 0x7f800000u;
    const float amax = __uint_as_float(largest);
    const float scale = !finite || amax < 0x1p-100f ? 0.0f : __fdiv_rn(amax, 127.0f);
    codes[lane] = scale == 0.0f ? 0 : (int8_t)rintf(__fdiv_rn(value, scale));
    if (lane == 0) *scale_out = scale;
    return finite;
}

template <codes C, int N> __global__ void __launch_bounds__(THREADS, N == 16 ? 2 : 3) gate_up_kernel(layer_args a) {
    typedef shapes<C, N, GATE_UP_TILES> S;
    typedef typename S::shared stages;
    POT_SHARED(stages, shared);
    typedef float tile_sums[N][GATE_UP_TILES][TILE_ROWS];
    POT_SHARED(tile_sums, sums);
    const chunk_job &job = a.jobs[a.order[blockIdx.x / MAX_CHUNK_BLOCKS]];
    const uint32_t block = blockIdx.x % MAX_CHUNK_BLOCKS, inner_begin = block * BLOCK;
    if (inner_begin >= job.inner) return; /* the whole block */
    act_view x = a.x;
    x.rows = a.rows + job.first;
    const gate_up_tiles tiles = {job.gate, job.up, job.gate_up_stride, block * (BLOCK / TILE_ROWS),
                                 (job.inner + TILE_ROWS - 1) / TILE_ROWS};
    float value[S::OWN];
    product<C, N, GATE_UP_TILES>(value, shared, tiles, x.blocks, job.gate_up_phase, x, (int)job.n, a.scales);
#pragma unroll
    for (int j = 0; j < S::OWN; j++) {
        int tile, i, row;
        if (!own_output<N, GATE_UP_TILES>(j, (int)job.n, &tile, &i, &row)) continue;
        /* What pads the block must be zero. */
        sums[i][tile][row] = inner_begin + (uint32_t)(tile / 2 * TILE_ROWS + row) < job.inner ? value[j] : 0.0f;
    }
    __syncthreads();
    const int lane = threadIdx.x % WARP, tile = lane / TILE_ROWS * 2, row = lane % TILE_ROWS;
    bool finite = true;
    for (uint32_t i = threadIdx.x / WARP; i < job.n; i += WARPS) {
        const float h = swiglu(sums[i][tile][row], sums[i][tile + 1][row]);
        const size_t at = (size_t)(job.first + i) * MAX_CHUNK_BLOCKS + block;
        if (a.down_integer)
            finite = quantize_block(a.hidden_codes + at * BLOCK, a.hidden_scales + at, h, lane) && finite;
        else
            a.hidden_values[at * BLOCK + (uint32_t)lane] = h;
    }
    if (!finite && lane == 0) atomicMin(a.fault, job.number);
}

/* ---- phase B: down, routing weight, sum on the grid ---- */

static const int DOWN_TILES = 8;

/* Sums meet in global memory by atomicAdd: 64-bit integers do not care for the order, so any number of chunks can add
 * to a row at once, and the grid is jobs x tiles without a second pass. */
template <codes C, int N> __global__ void __launch_bounds__(THREADS, N == 16 ? 2 : 3) down_kernel(layer_args a) {
    typedef shapes<C, N, DOWN_TILES> S;
    typedef typename S::shared stages;
    POT_SHARED(stages, shared);
    const uint32_t all_tiles = (a.hidden + TILE_ROWS - 1) / TILE_ROWS;
    const uint32_t blocks_a_job = (all_tiles + DOWN_TILES - 1) / DOWN_TILES;
    const chunk_job &job = a.jobs[a.order[blockIdx.x / blocks_a_job]];
    const uint32_t first_tile = blockIdx.x % blocks_a_job * DOWN_TILES;
    /* Rows are MAX_CHUNK_BLOCKS apart, the product has fewer where the chunk is short. */
    const act_view x = {a.hidden_codes, a.hidden_scales, a.hidden_values, nullptr, job.first, MAX_CHUNK_BLOCKS};
    const run_of_tiles tiles = {job.down, job.down_stride, first_tile, all_tiles};
    float value[S::OWN];
    product<C, N, DOWN_TILES>(value, shared, tiles, (job.inner + BLOCK - 1) / BLOCK, job.down_phase, x, (int)job.n,
                              a.scales);
    bool fits = true;
#pragma unroll
    for (int j = 0; j < S::OWN; j++) {
        int tile, i, row;
        if (!own_output<N, DOWN_TILES>(j, (int)job.n, &tile, &i, &row)) continue;
        const uint32_t out = (first_tile + (uint32_t)tile) * TILE_ROWS + (uint32_t)row, at = job.first + (uint32_t)i;
        if (out >= a.hidden) continue;
        int64_t q;
        if (to_grid(&q, __fmul_rn(value[j], a.weights[at]), a.grid))
            atomicAdd(&a.acc[(size_t)a.rows[at] * a.hidden + out], (unsigned long long)q);
        else
            fits = false;
    }
    if (!fits) atomicMin(a.fault, job.number);
}

#define POT_CUDA_DEFINE_KERNELS(name, C)                                     \
    const pot_cuda_kernels name = {                                          \
        {matmul_kernel<C, 1>, matmul_kernel<C, 4>, matmul_kernel<C, 16>},    \
        {gate_up_kernel<C, 1>, gate_up_kernel<C, 4>, gate_up_kernel<C, 16>}, \
        {down_kernel<C, 1>, down_kernel<C, 4>, down_kernel<C, 16>},          \
    };

#endif
