/* From primitives to a table: included last by every kernels_<isa>.c, which then says POT_SIMD_TABLE(<isa>). */
#ifndef POT_KERNELS_SIMD_TABLE_H
#define POT_KERNELS_SIMD_TABLE_H

#include "kernels/simd_matmul.h"
#include "kernels/simd_probe.h"
#include "kernels/simd_rows.h"

/* The table; every slot is one of the functions above. */
#define POT_SIMD_TABLE(table_name)                    \
    const pot_kernels pot_kernels_##table_name = {    \
        .name = #table_name,                          \
        .matmul = {POT_FORMAT_MAP(POT_SIMD_PRODUCT)}, \
        .quantize = quantize,                         \
        .block_sums = block_sums,                     \
        .swiglu = swiglu,                             \
        .grid_add = grid_add,                         \
        .bf16_to_f32 = bf16_to_f32,                   \
        .rms_norm = rms_norm,                         \
        .attention_scores = attention_scores,         \
        .attention_softmax = attention_softmax,       \
        .attention_values = attention_values,         \
        .attention_merge = attention_merge,           \
        .index_scores = index_scores,                 \
        .peak_int8 = peak_int8,                       \
        .peak_float = peak_float,                     \
        .read_streams = read_streams,                 \
    }
#define POT_SIMD_PRODUCT(format, name, codes, bits, scale, group) [POT_FORMAT_##format] = matmul_##format,

#endif
