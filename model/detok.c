/* From ids back to text: UTF-8 is put together byte by byte.
 *
 * `held` is always the beginning of some character.  A byte that continues it is added; one that does not turns what is
 * held into one U+FFFD and starts anew.  This is the Unicode standard's "maximal subpart" rule, the one of Python's
 * errors="replace" and of Rust's from_utf8_lossy, so that the streamed text is bytes.decode("utf-8", "replace") of the
 * whole, however it was cut.  The same machine repairs text before it is encoded, as Hugging Face's callers do. */
#include "model/tokenizer_parts.h"

#define REPLACEMENT "\xEF\xBF\xBD"

/* Bytes of the character that `first` begins; 0: none. */
static unsigned length_by(unsigned char first) {
    if (first < 0x80) return 1;
    if (first < 0xC2) return 0;
    if (first < 0xE0) return 2;
    if (first < 0xF0) return 3;
    return first < 0xF5 ? 4 : 0;
}

/* May `byte` follow the `n` bytes held?  The bounds of the second byte exclude overlong forms, surrogates and what lies
 * above U+10FFFF. */
static bool continues(const unsigned char *held, unsigned n, unsigned char byte) {
    unsigned char low = 0x80, high = 0xBF;
    if (n == 1) {
        if (held[0] == 0xE0) low = 0xA0;
        if (held[0] == 0xED) high = 0x9F;
        if (held[0] == 0xF0) low = 0x90;
        if (held[0] == 0xF4) high = 0x8F;
    }
    return byte >= low && byte <= high;
}

static void push_byte(pot_buffer *out, pot_detokenizer *state, unsigned char byte) {
    if (state->n_held && !continues(state->held, state->n_held, byte)) pot_detokenizer_end(out, state);
    if (!state->n_held && !length_by(byte)) {
        pot_buffer_text(out, REPLACEMENT);
        return;
    }
    state->held[state->n_held++] = byte;
    if (state->n_held == length_by(state->held[0])) {
        pot_buffer_append(out, state->held, state->n_held);
        state->n_held = 0;
    }
}

void pot_utf8_repair(pot_buffer *out, pot_detokenizer *state, const void *text, size_t bytes) {
    const unsigned char *p = text;
    for (size_t i = 0; i < bytes; i++) push_byte(out, state, p[i]);
}

bool pot_utf8_valid(const void *text, size_t bytes) {
    const unsigned char *p = text;
    unsigned n = 0; /* bytes of the present character that are seen */
    for (size_t i = 0; i < bytes; i++) {
        if (n ? !continues(p + i - n, n, p[i]) : !length_by(p[i])) return false;
        n++;
        if (n == length_by(p[i + 1 - n])) n = 0;
    }
    return n == 0;
}

void pot_detokenizer_push(pot_buffer *out, pot_detokenizer *state, const pot_tokenizer *t, int32_t id,
                          bool skip_special) {
    if (id < 0 || (uint32_t)id >= t->size) return;
    const pot_token *token = &t->tokens[id];
    if (skip_special && token->special) return;
    pot_utf8_repair(out, state, t->arena + token->offset, token->bytes);
}

void pot_detokenizer_end(pot_buffer *out, pot_detokenizer *state) {
    if (state->n_held) pot_buffer_text(out, REPLACEMENT);
    state->n_held = 0;
}
