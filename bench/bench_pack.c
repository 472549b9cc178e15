/* How fast weights are packed (kernels/pack.c), by what they are stored as and what they become, beside a plain read of the same bytes
 * in the same run, as CSV.  Converting a model of 1.5 TB is made of this.
 *
 *   bench_pack [threads] [source] [format] [rounding] >bench/results/HOST/pack.csv
 *
 * A source or format of "" takes all of them.  source_gbps are bytes of the source, read_gbps those of the plain read; both are the
 * best of some rounds: other programs only make it slower.  The matrix has rows of 6144 columns as GLM-5.2 has, and is larger than a cache. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/float_mode.h"
#include "common/mem.h"
#include "kernels/convert.h"
#include "kernels/stored.h"

enum { ROWS = 4096, COLS = 6144, PART_ROWS = 128, ROUNDS = 7 };

typedef struct source_kind {
    const char *name;
    pot_stored_kind kind;
    uint32_t bits, group;
    pot_format copy; /* the format with the same codes */
} source_kind;

static const source_kind KINDS[] = {
    {"f32", POT_STORED_F32, 32, 0, POT_FORMAT_F32},
    {"bf16", POT_STORED_BF16, 16, 0, POT_FORMAT_BF16},
    {"f16", POT_STORED_F16, 16, 0, POT_FORMAT_F32},
    {"fp8", POT_STORED_FP8, 8, 0, POT_FORMAT_FP8},
    {"mxfp4", POT_STORED_MXFP4, 4, 0, POT_FORMAT_MXFP4},
    {"int8", POT_STORED_INT8, 8, 0, POT_FORMAT_Q8_ROW},
    {"int8g32", POT_STORED_INT8, 8, 32, POT_FORMAT_Q8_G32},
    {"int4", POT_STORED_INT4, 4, 0, POT_FORMAT_Q4_ROW},
    {"int4g64", POT_STORED_INT4, 4, 64, POT_FORMAT_Q4_G64},
    {"int4g192", POT_STORED_INT4, 4, 192, POT_FORMAT_Q4_G64_F32},
    {"int2", POT_STORED_INT2, 2, 0, POT_FORMAT_Q2_ROW},
};
static const pot_format TARGETS[] = {POT_FORMAT_BF16,   POT_FORMAT_FP8,     POT_FORMAT_Q8_ROW,
                                     POT_FORMAT_Q8_G32, POT_FORMAT_Q4_ROW,  POT_FORMAT_Q4_G32,
                                     POT_FORMAT_Q4_G64, POT_FORMAT_Q4_G128, POT_FORMAT_MXFP4};

typedef struct scene {
    pot_stored source;
    size_t bytes;     /* of codes and scales */
    size_t out_bytes; /* room */
    uint8_t *codes, *scales, *out;
    int threads;
    pot_rounding rounding;
} scene;

static uint32_t random_bits(void) {
    static uint32_t state = 1;
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

/* About normal, as weights are. */
static float random_weight(void) {
    float sum = 0.0f;
    for (int i = 0; i < 4; i++) sum += (float)(int32_t)random_bits() * 0x1p-31f;
    return sum * 0.02f;
}

static void fill(scene *s, const source_kind *k) {
    const size_t n = (size_t)ROWS * COLS, groups = k->group ? COLS / k->group : 1;
    const size_t n_scales = k->bits >= 16                 ? 0
                            : k->kind == POT_STORED_FP8   ? ROWS / 128 * (COLS / 128)
                            : k->kind == POT_STORED_MXFP4 ? n / 32
                                                          : ROWS * groups;
    s->source = (pot_stored){.kind = k->kind,
                             .rows = ROWS,
                             .cols = COLS,
                             .group = k->group,
                             .codes = s->codes,
                             .scales = s->scales,
                             .row_stride = (size_t)COLS * k->bits / 8,
                             .name = k->name};
    s->bytes = n * k->bits / 8 + n_scales * (k->kind == POT_STORED_MXFP4 ? 1 : 4);
    for (size_t i = 0; i < n && k->bits >= 16; i++) {
        const float value = random_weight();
        const uint16_t half = k->kind == POT_STORED_F16 ? pot_f16_from_f32(value) : pot_bf16_from_f32(value);
        memcpy(s->codes + i * k->bits / 8, k->bits == 32 ? (const void *)&value : &half, k->bits / 8);
    }
    for (size_t i = 0; i < n * k->bits / 8 && k->bits < 16; i++)
        s->codes[i] = (uint8_t)(k->kind == POT_STORED_FP8 ? random_bits() % 127 : random_bits() >> 8);
    for (size_t i = 0; i < n_scales; i++) {
        const float scale = 0.0078125f; /* also as f16 */
        if (k->kind == POT_STORED_MXFP4)
            s->scales[i] = (uint8_t)(118 + random_bits() % 4);
        else
            memcpy(s->scales + 4 * i, &scale, 4);
    }
}

/* ---- what is measured --------------------------------------------------------------------------------------------- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static uint64_t sum_words(const uint8_t *at, size_t bytes) {
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 64 <= bytes; i += 64)
        for (size_t j = 0; j < 8; j++) {
            uint64_t word;
            memcpy(&word, at + i + 8 * j, 8);
            sum[j] ^= word;
        }
    for (int j = 1; j < 8; j++) sum[0] ^= sum[j];
    return sum[0];
}

static volatile uint64_t read_sum; /* or the reads would be left out */

static double read_seconds(const scene *s) {
    uint64_t kept[64];
    const double begin = now();
#pragma omp parallel for schedule(static) num_threads(s->threads)
    for (int part = 0; part < 64; part++) {
        const size_t bytes = s->bytes / 64;
        kept[part] = sum_words(s->codes + (size_t)part * bytes, bytes);
    }
    const double end = now();
    for (int part = 0; part < 64; part++) read_sum ^= kept[part];
    return end - begin;
}

static double pack_seconds(const scene *s, pot_format format) {
    const size_t tile = pot_tile_bytes(format, COLS, 0);
    const double begin = now();
#pragma omp parallel for schedule(dynamic) num_threads(s->threads)
    for (uint32_t part = 0; part < ROWS / PART_ROWS; part++) {
        pot_err err;
        pot_fp_strict();
        /* The output comes round again, as a buffer that is written to a file and filled anew does. */
        uint8_t *out = s->out + part % 8 * (PART_ROWS / POT_TILE_ROWS * tile);
        const uint32_t row = part * PART_ROWS;
        if (pot_pack(out, tile, format, s->rounding, &s->source, row, row + PART_ROWS, 0, COLS, &err) != POT_OK) {
            fprintf(stderr, "bench_pack: %s\n", err.text);
            exit(1);
        }
    }
    return now() - begin;
}

static void measure(const scene *s, const source_kind *k, pot_format format) {
    double read = read_seconds(s), pack = pack_seconds(s, format);
    for (int i = 1; i < ROUNDS; i++) {
        const double again = read_seconds(s), more = pack_seconds(s, format);
        read = again < read ? again : read;
        pack = more < pack ? more : pack;
    }
    static const char *const ROUNDING[] = {"auto", "search", "ocp"};
    printf("%s,%s,%s,%d,%.3f,%.1f,%.3f\n", k->name, pot_format_get(format)->name, ROUNDING[s->rounding], s->threads,
           (double)s->bytes / pack * 1e-9, (double)ROWS * COLS / pack * 1e-6, (double)s->bytes / read * 1e-9);
    fflush(stdout);
}

int main(int argc, char **argv) {
    const char *kind = argc > 2 ? argv[2] : "", *target = argc > 3 ? argv[3] : "";
    const char *rounding = argc > 4 ? argv[4] : "auto";
    scene s = {.threads = argc > 1 ? atoi(argv[1]) : 1,
               .rounding = strcmp(rounding, "search") == 0 ? POT_ROUNDING_SEARCH
                           : strcmp(rounding, "ocp") == 0  ? POT_ROUNDING_OCP
                                                           : POT_ROUNDING_AUTO};
    const size_t codes = (size_t)ROWS * COLS * 4;
    s.out_bytes = pot_tile_bytes(POT_FORMAT_F32, COLS, 0) * (PART_ROWS / POT_TILE_ROWS) * 8;
    s.codes = pot_alloc_aligned(codes + (size_t)ROWS * COLS / 8); /* the scales behind the codes */
    s.out = pot_alloc_aligned(s.out_bytes);
    if (s.threads < 1 || s.codes == NULL || s.out == NULL) {
        fprintf(stderr, "usage: bench_pack [threads] [source] [format] [auto|search|ocp]; needs 150 MB\n");
        return 1;
    }
    s.scales = s.codes + codes;
    pot_fp_strict();
    printf("source,format,rounding,threads,source_gbps,million_weights_per_s,read_gbps\n");
    for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS; k++) {
        if (*kind && strcmp(kind, KINDS[k].name) != 0) continue;
        fill(&s, &KINDS[k]);
        bool copied = false;
        for (size_t t = 0; t <= sizeof TARGETS / sizeof *TARGETS; t++) {
            const bool last = t == sizeof TARGETS / sizeof *TARGETS;
            const pot_format format = last ? KINDS[k].copy : TARGETS[t];
            if ((last && copied) || (*target && strcmp(target, pot_format_get(format)->name) != 0)) continue;
            copied |= format == KINDS[k].copy;
            measure(&s, &KINDS[k], format);
        }
    }
    pot_free(s.codes);
    pot_free(s.out);
    return 0;
}
