/* The tokenizer's door: text to ids and back.
 *
 * Text is cut at added tokens, the leftmost first and the longest of those that begin there; each rest goes
 * through the split pattern and each piece through BPE.  The pattern sees a rest as a whole text: its (?!\S) holds at
 * the end of it, as it does in Hugging Face's tokenizers. */
#include "model/tokenizer.h"

#include <string.h>

#include "common/mem.h"
#include "model/tokenizer_parts.h"

/* Positions in a piece are 32-bit numbers, and a prompt is never that long. */
#define TEXT_LIMIT ((size_t)1 << 30)

/* ---- lists of ids ------------------------------------------------------------------------------ */

pot_status pot_tokens_push(pot_tokens *tokens, int32_t id, pot_err *err) {
    if (tokens->n == tokens->capacity) {
        size_t capacity = tokens->capacity ? 2 * tokens->capacity : 64;
        int32_t *ids = pot_realloc_array(tokens->ids, capacity, sizeof *ids);
        if (!ids) return pot_fail(err, POT_NO_MEMORY, "not enough memory for %zu token ids", capacity);
        tokens->ids = ids;
        tokens->capacity = capacity;
    }
    tokens->ids[tokens->n++] = id;
    return POT_OK;
}

void pot_tokens_free(pot_tokens *tokens) {
    pot_free(tokens->ids);
    *tokens = (pot_tokens){0};
}

/* ---- added tokens ------------------------------------------------------------------------------ */

/* First of the tokens from `low` to `high` whose byte `at` is not below `byte`; all of them are longer than `at`. */
static size_t lower_bound(const pot_tokenizer *t, const pot_added_set *set, size_t low, size_t high, size_t at,
                          unsigned byte) {
    while (low < high) {
        size_t middle = (low + high) / 2;
        unsigned char found = (unsigned char)t->arena[t->tokens[set->ids[middle]].offset + at];
        if (found < byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The longest added token at the beginning of `text`, or POT_NO_TOKEN. */
static uint32_t longest_added(const pot_tokenizer *t, const pot_added_set *set, const unsigned char *text,
                              size_t bytes) {
    uint32_t best = POT_NO_TOKEN;
    size_t low = 0, high = set->n;
    for (size_t at = 0; low < high; at++) {
        /* All in the range share `at` bytes with the text; one that has no more is the first of them. */
        if (t->tokens[set->ids[low]].bytes == at) best = set->ids[low++];
        if (at == bytes) break;
        low = lower_bound(t, set, low, high, at, text[at]);
        high = lower_bound(t, set, low, high, at, text[at] + 1u);
    }
    return best;
}

int32_t pot_tokenizer_added(const pot_tokenizer *t, const char *text) {
    size_t bytes = strlen(text);
    const pot_added_set *sets[] = {&t->literal, &t->normalized};
    for (size_t i = 0; i < 2; i++) {
        uint32_t id = longest_added(t, sets[i], (const unsigned char *)text, bytes);
        if (id != POT_NO_TOKEN && t->tokens[id].bytes == bytes) return (int32_t)id;
    }
    return -1;
}

bool pot_tokenizer_is_special(const pot_tokenizer *t, int32_t id) {
    return id >= 0 && (uint32_t)id < t->size && t->tokens[id].special;
}

uint32_t pot_tokenizer_size(const pot_tokenizer *t) { return t->size; }

/* ---- encoding ---------------------------------------------------------------------------------- */

typedef struct encoder {
    pot_tokens *out;
    const pot_tokenizer *tokenizer;
    pot_bpe_scratch scratch;
} encoder;

typedef pot_status (*rest_fn)(encoder *e, const unsigned char *text, size_t bytes, pot_err *err);

/* Cuts `text` at the tokens of `set` and gives each rest to `rest`. */
static pot_status cut(encoder *e, const pot_added_set *set, rest_fn rest, const unsigned char *text, size_t bytes,
                      pot_err *err) {
    size_t begin = 0, at = 0;
    pot_status status = POT_OK;
    while (at < bytes && !status) {
        uint32_t id = POT_NO_TOKEN;
        if (set->starts[text[at]]) id = longest_added(e->tokenizer, set, text + at, bytes - at);
        if (id == POT_NO_TOKEN) {
            at++;
            continue;
        }
        status = rest(e, text + begin, at - begin, err);
        if (!status) status = pot_tokens_push(e->out, (int32_t)id, err);
        at += e->tokenizer->tokens[id].bytes;
        begin = at;
    }
    return status ? status : rest(e, text + begin, bytes - begin, err);
}

static pot_status encode_plain(encoder *e, const unsigned char *text, size_t bytes, pot_err *err) {
    pot_status status = POT_OK;
    for (size_t at = 0, n; at < bytes && !status; at += n) {
        n = pot_split_piece(text + at, bytes - at);
        status = pot_bpe_encode(e->out, e->tokenizer, &e->scratch, text + at, n, err);
    }
    return status;
}

static pot_status cut_at_normalized(encoder *e, const unsigned char *text, size_t bytes, pot_err *err) {
    return cut(e, &e->tokenizer->normalized, encode_plain, text, bytes, err);
}

pot_status pot_tokenizer_encode(pot_tokens *out, const pot_tokenizer *t, const char *text, size_t bytes, pot_err *err) {
    if (bytes > TEXT_LIMIT) {
        return pot_fail(err, POT_LIMIT, "the text has %zu bytes, at most %zu can be tokenized", bytes, TEXT_LIMIT);
    }
    if (bytes == 0) return POT_OK;
    pot_buffer repaired = {0};
    if (!pot_utf8_valid(text, bytes)) {
        pot_detokenizer state = {0};
        pot_utf8_repair(&repaired, &state, text, bytes);
        pot_detokenizer_end(&repaired, &state);
        if (repaired.failed) {
            pot_buffer_free(&repaired);
            return pot_fail(err, POT_NO_MEMORY, "not enough memory to tokenize %zu bytes", bytes);
        }
        text = repaired.data;
        bytes = repaired.bytes;
    }
    size_t n_before = out->n;
    encoder e = {.out = out, .tokenizer = t};
    pot_status status = cut(&e, &t->literal, cut_at_normalized, (const unsigned char *)text, bytes, err);
    if (status) out->n = n_before;
    pot_bpe_scratch_free(&e.scratch);
    pot_buffer_free(&repaired);
    return status;
}

/* ---- decoding ---------------------------------------------------------------------------------- */

void pot_tokenizer_decode(pot_buffer *out, const pot_tokenizer *t, const int32_t *ids, size_t n, bool skip_special) {
    for (size_t i = 0; i < n; i++) {
        if (ids[i] < 0 || (uint32_t)ids[i] >= t->size) continue;
        const pot_token *token = &t->tokens[ids[i]];
        if (skip_special && token->special) continue;
        pot_buffer_append(out, t->arena + token->offset, token->bytes);
    }
}

void pot_tokenizer_close(pot_tokenizer *t) {
    if (!t) return;
    pot_free(t->arena);
    pot_free(t->tokens);
    pot_free(t->by_text);
    pot_free(t->merges);
    pot_free(t->literal.ids);
    pot_free(t->normalized.ids);
    pot_free(t);
}
