/* y = W x for n rows, split over tiles of output rows among threads; and the activation rows it eats.
 * Rows are independent and each output is one chain, so threads and n never change a bit. */
#ifndef POT_KERNELS_LINEAR_H
#define POT_KERNELS_LINEAR_H

#include "kernels/kernels.h"

/* y[i*y_stride + r], r < w->rows. */
void pot_linear(const pot_compute *compute, float *y, size_t y_stride, const pot_matrix *w, const pot_act_row *x,
                uint32_t n);

/* Room for n activation rows of `cols` columns in every form a format may ask for; one owner, reused for every product.
 * A row lies as [codes blocks*32][scales blocks*4][sums blocks*4] and/or [values blocks*128]. */
typedef struct pot_acts {
    pot_act_row *rows; /* [capacity] */
    uint8_t *memory;
    uint32_t capacity, max_blocks;
} pot_acts;
pot_status pot_acts_create(pot_acts *out, uint32_t capacity_rows, uint32_t max_cols, pot_err *err);
void pot_acts_free(pot_acts *acts);

enum { POT_ACT_Q8 = 1, POT_ACT_F32 = 2 }; /* bits: which forms are needed */
static inline unsigned pot_act_need(unsigned format) {
    return pot_format_get((pot_format)format)->integer ? POT_ACT_Q8 : POT_ACT_F32;
}

/* Fills rows [0, n) from x[i*x_stride + 0..cols): quantized, copied or both; padding zeroed.  POT_NUMERIC when an
 * element is not finite.  n <= capacity, cols <= max_cols. */
pot_status pot_acts_fill(pot_acts *acts, const pot_compute *compute, const float *x, size_t x_stride, uint32_t cols,
                         uint32_t n, unsigned need, pot_err *err);

#endif
