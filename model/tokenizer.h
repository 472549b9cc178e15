/* tokenizer.json: byte-level BPE with GLM's split pattern, and a streaming detokenizer.
 *
 * Encode: text is cut at added tokens (literal, leftmost-longest, special or not); each rest by the split pattern
 * (Unicode classes from committed tables, the ones that Hugging Face `tokenizers` matches); each piece is looked up
 * whole when ignore_merges is set, else merged by rank with a heap: O(n log n), so 1 MiB of one repeated character takes
 * under a second.  Input need not be valid UTF-8: each maximal part that is not becomes U+FFFD first, as Python's
 * errors="replace" does for Hugging Face's callers.
 * Immutable after open; any thread.
 */
#ifndef POT_MODEL_TOKENIZER_H
#define POT_MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/buffer.h"
#include "common/status.h"

typedef struct pot_tokenizer pot_tokenizer;
pot_status pot_tokenizer_open(pot_tokenizer **out, const char *directory, pot_err *err); /* DIR/tokenizer.json */
pot_status pot_tokenizer_parse(pot_tokenizer **out, const char *json, size_t bytes, const char *name, pot_err *err);
void pot_tokenizer_close(pot_tokenizer *tokenizer);

uint32_t pot_tokenizer_size(const pot_tokenizer *tokenizer); /* one above the largest id */
/* The id of an added token by its text, -1 when there is none. */
int32_t pot_tokenizer_added(const pot_tokenizer *tokenizer, const char *text);
bool pot_tokenizer_is_special(const pot_tokenizer *tokenizer, int32_t id);

typedef struct pot_tokens {
    int32_t *ids;
    size_t n, capacity;
} pot_tokens; /* all zero = empty; owner: the caller */
pot_status pot_tokens_push(pot_tokens *tokens, int32_t id, pot_err *err);
void pot_tokens_free(pot_tokens *tokens);

/* Appends the ids of `text`. */
pot_status pot_tokenizer_encode(pot_tokens *out, const pot_tokenizer *tokenizer, const char *text, size_t bytes,
                                pot_err *err);
/* Appends the bytes of the ids; with skip_special, special added tokens give nothing.  An unknown id gives nothing. */
void pot_tokenizer_decode(pot_buffer *out, const pot_tokenizer *tokenizer, const int32_t *ids, size_t n,
                          bool skip_special);

/* Streaming: bytes of an incomplete UTF-8 character are held back until it is whole; what can never become one is U+FFFD.
 * All zero = start. */
typedef struct pot_detokenizer {
    unsigned char held[4];
    uint8_t n_held;
} pot_detokenizer;
void pot_detokenizer_push(pot_buffer *out, pot_detokenizer *state, const pot_tokenizer *tokenizer, int32_t id,
                          bool skip_special);
void pot_detokenizer_end(pot_buffer *out, pot_detokenizer *state);

#endif
