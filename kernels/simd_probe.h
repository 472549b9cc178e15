/* What an instruction set can do at best, over the primitives of simd_matmul.h and these:
 *
 *   vi_line(at) vi_add(a, b)      16 int32 from a line of 64 bytes
 *   vi_dot4(acc, w, x)            acc + four products of bytes a lane, unsigned times signed where the ISA wants it so
 *   KEEP(v)                       the compiler must take v for something that changes here */
#ifndef POT_KERNELS_SIMD_PROBE_H
#define POT_KERNELS_SIMD_PROBE_H

enum { CHAINS = 6 /* more than an fma has cycles of latency, divided by two a cycle; few enough for 16 registers */ };

static uint64_t peak_int8(uint64_t rounds) {
    vi acc[CHAINS], w = vi_set(0x01020304), x = vi_set(0x04030201);
    for (int i = 0; i < CHAINS; i++) acc[i] = vi_set(i);
    for (uint64_t n = 0; n < rounds; n++) {
        KEEP(w);
        for (int i = 0; i < CHAINS; i++) acc[i] = vi_dot4(acc[i], w, x);
    }
    for (int i = 0; i < CHAINS; i++) KEEP(acc[i]);
    return rounds * CHAINS * POT_TILE_ROWS * 4 * 2;
}

static uint64_t peak_float(uint64_t rounds) {
    vf acc[CHAINS], a = vf_set(0.5f), b = vf_set(0.25f);
    for (int i = 0; i < CHAINS; i++) acc[i] = vf_set((float)i);
    for (uint64_t n = 0; n < rounds; n++) {
        KEEP(a);
        for (int i = 0; i < CHAINS; i++) acc[i] = vf_fma(acc[i], a, b);
    }
    for (int i = 0; i < CHAINS; i++) KEEP(acc[i]);
    return rounds * CHAINS * POT_TILE_ROWS * 2;
}

static uint32_t read_streams(const uint8_t *const stream[4], size_t bytes) {
    vi sum[4];
    for (int s = 0; s < 4; s++) sum[s] = vi_set(0);
    for (size_t at = 0; at < bytes; at += POT_LINE_BYTES)
        for (int s = 0; s < 4; s++) {
            __builtin_prefetch(stream[s] + at + POT_PREFETCH_AHEAD);
            sum[s] = vi_add(sum[s], vi_line(stream[s] + at));
        }
    int32_t lane[POT_TILE_ROWS];
    uint32_t total = 0;
    for (int s = 0; s < 4; s++) {
        memcpy(lane, &sum[s], sizeof lane);
        for (int i = 0; i < POT_TILE_ROWS; i++) total += (uint32_t)lane[i];
    }
    return total;
}

#endif
