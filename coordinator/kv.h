/* The KV cache of one sequence: per layer and token a latent [kv_lora] and a rotary key [rope_dim] (post-norm, post-rope), and on
 * full layers an index key [index_dim]; bf16 or f32.  A row is written before it is read, and read back in the cache's
 * format, so prefill and decode see the same bits.  Owner: whoever created it; one thread at a time. */
#ifndef POT_COORDINATOR_KV_H
#define POT_COORDINATOR_KV_H

#include <stdint.h>

#include "common/status.h"
#include "kernels/kernels.h"
#include "model/config.h"

typedef enum pot_kv_format { POT_KV_BF16, POT_KV_F32 } pot_kv_format;

typedef struct pot_sequence pot_sequence;
pot_status pot_sequence_create(pot_sequence **out, const pot_config *config, pot_kv_format format, uint32_t ctx_tokens,
                               pot_err *err);
void pot_sequence_free(pot_sequence *sequence);
uint64_t pot_sequence_bytes(const pot_config *config, pot_kv_format format, uint32_t ctx_tokens);

uint32_t pot_sequence_capacity(const pot_sequence *sequence);
uint32_t pot_sequence_length(const pot_sequence *sequence); /* tokens the trunk has seen */
/* Forgets what lies behind `length` (<= current), in the MTP layer's cache too. */
void pot_sequence_truncate(pot_sequence *sequence, uint32_t length);

/* ---- for the engine ---- */

void pot_sequence_advance(pot_sequence *sequence, uint32_t length);     /* the trunk has seen so many now */
uint32_t pot_sequence_mtp_length(const pot_sequence *sequence);         /* rows in the MTP layer's cache */
void pot_sequence_mtp_advance(pot_sequence *sequence, uint32_t length); /* may also go back: drafts are overwritten */

/* A key row is [kv_lora latent | rope_dim rotary], f32 here and the cache's format inside.  Keys from `position` on, n of
 * them, are read into out [n][kv_lora + rope_dim]. */
void pot_kv_write(pot_sequence *sequence, uint32_t layer, uint32_t position, const float *row);
void pot_kv_read(float *out, const pot_sequence *sequence, const pot_kernels *kernels, uint32_t layer,
                 uint32_t position, uint32_t n);
/* Index keys [index_dim], on full layers only. */
void pot_kv_index_write(pot_sequence *sequence, uint32_t layer, uint32_t position, const float *row);
void pot_kv_index_read(float *out, const pot_sequence *sequence, const pot_kernels *kernels, uint32_t layer,
                       uint32_t position, uint32_t n);

#endif
