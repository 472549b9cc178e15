/* From logits to a token: greedy, temperature, top-k, top-p, min-p, with our own counter-based generator (Philox 4x32-10), so that
 * a seed gives the same text on every host and in every batch.  Ties go to the lower id. */
#ifndef POT_COORDINATOR_SAMPLE_H
#define POT_COORDINATOR_SAMPLE_H

#include <stdint.h>

#include "common/status.h"

typedef struct pot_sampling {
    float temperature;  /* 0 = greedy */
    int32_t top_k;      /* 0 = all */
    float top_p, min_p; /* 1 and 0 = off */
    uint64_t seed;
} pot_sampling;

/* scratch: [2 * vocab] floats.  The draw depends on (seed, position) only.  NUMERIC when a logit is NaN. */
pot_status pot_sample(int32_t *out, const float *logits, uint32_t vocab, const pot_sampling *sampling,
                      uint64_t position, float *scratch, pot_err *err);
int32_t pot_argmax(const float *logits, uint32_t n);

/* Philox 4x32-10: four words for (key, counter). */
void pot_philox(uint32_t out[4], uint64_t key, uint64_t counter_low, uint64_t counter_high);

/* Natural log of the softmax probability of `token` (double throughout, fixed operations). */
double pot_log_softmax(const float *logits, uint32_t vocab, int32_t token);

#endif
