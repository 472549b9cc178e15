/* What the files of the tokenizer share; nobody else includes this.
 *
 *   tokenizer_load.c   tokenizer.json -> struct pot_tokenizer
 *   tokenizer.c        the door: cuts text at added tokens, decodes ids
 *   tokenizer_split.c  GLM's split pattern
 *   tokenizer_bpe.c    tables, and the merging of one piece
 *   detok.c            UTF-8 repair, streaming
 */
#ifndef POT_MODEL_TOKENIZER_PARTS_H
#define POT_MODEL_TOKENIZER_PARTS_H

#include "model/tokenizer.h"

enum {
    POT_TOKENIZER_ID_LIMIT = 1 << 22,
    POT_TOKENIZER_ADDED_BYTES = 1024, /* longest text of an added token: bounds the work at each byte of a text */
};

typedef struct pot_token {
    uint32_t offset, bytes; /* in pot_tokenizer.arena: what the id stands for, as plain bytes */
    bool known;             /* ids may have gaps */
    bool added, special;
} pot_token;

/* left + right -> id, in the order of rank; left is POT_NO_TOKEN in an empty slot. */
typedef struct pot_merge {
    uint32_t left, right, rank, id;
} pot_merge;
#define POT_NO_TOKEN UINT32_MAX

/* Added tokens in the order of their bytes: the ones that share a beginning stand together, so a search byte by byte
 * narrows a range, as a trie would, without nodes. */
typedef struct pot_added_set {
    uint32_t *ids; /* [n] */
    size_t n;
    bool starts[256]; /* some token begins with this byte */
} pot_added_set;

struct pot_tokenizer {
    char *arena;
    pot_token *tokens; /* [size], by id */
    uint32_t size;
    bool ignore_merges;
    uint32_t byte_ids[256];
    uint32_t *by_text; /* hash table with open addressing: ids of vocab, POT_NO_TOKEN where empty */
    uint64_t text_mask;
    pot_merge *merges; /* the same kind of table */
    uint64_t merge_mask;
    /* Hugging Face looks for tokens with "normalized": false in the text first, and for the others in what is left. */
    pot_added_set literal, normalized;
};

/* Tables.  Sizes are powers of two above twice the number of entries, so that a search always meets an empty slot. */
pot_status pot_bpe_create_tables(pot_tokenizer *tokenizer, size_t n_vocab, size_t n_merges, pot_err *err);
void pot_bpe_add_text(pot_tokenizer *tokenizer, uint32_t id);
uint32_t pot_bpe_find_text(const pot_tokenizer *tokenizer, const void *text, size_t bytes); /* or POT_NO_TOKEN */
void pot_bpe_add_merge(pot_tokenizer *tokenizer, pot_merge merge); /* a repeated pair: the last one counts */

/* Room for the merging of one piece, kept from piece to piece.  All zero = empty. */
typedef struct pot_bpe_scratch {
    struct pot_bpe_symbol *symbols;
    uint64_t *heap;
    size_t capacity; /* bytes of a piece that fit */
} pot_bpe_scratch;
void pot_bpe_scratch_free(pot_bpe_scratch *scratch);
pot_status pot_bpe_encode(pot_tokens *out, const pot_tokenizer *tokenizer, pot_bpe_scratch *scratch,
                          const unsigned char *piece, size_t bytes, pot_err *err);

/* Bytes of the first piece that the split pattern cuts from `text`: valid UTF-8, not empty. */
size_t pot_split_piece(const unsigned char *text, size_t bytes);

bool pot_utf8_valid(const void *text, size_t bytes);
/* Appends `text` with every part that is not UTF-8 replaced by U+FFFD, as Python's errors="replace" does. */
void pot_utf8_repair(pot_buffer *out, pot_detokenizer *state, const void *text, size_t bytes);

#endif
