/* The tables of byte-level BPE, and the merging of one piece.
 *
 * A piece starts as one token a byte, in a linked list.  A heap holds every neighbouring pair that has a merge, keyed
 * by (rank, position): the lowest rank comes first, the leftmost one among equals.  A merge makes two new pairs, which
 * are pushed; pairs that it destroyed stay in the heap and are recognised when they come up, because the pair that then
 * stands at their position has another rank.  n bytes cause at most n - 1 merges, so the work is O(n log n). */
#include <string.h>

#include "common/hash.h"
#include "common/mem.h"
#include "model/tokenizer_parts.h"

/* ---- tables ------------------------------------------------------------------------------------ */

static uint64_t slots_for(size_t n) {
    uint64_t slots = 16;
    while (slots < 2 * (uint64_t)n + 1) slots *= 2;
    return slots;
}

pot_status pot_bpe_create_tables(pot_tokenizer *t, size_t n_vocab, size_t n_merges, pot_err *err) {
    uint64_t texts = slots_for(n_vocab), merges = slots_for(n_merges);
    t->by_text = pot_alloc_array(texts, sizeof *t->by_text);
    t->merges = pot_alloc_array(merges, sizeof *t->merges);
    if (!t->by_text || !t->merges) return pot_fail(err, POT_NO_MEMORY, "not enough memory for the tokenizer's tables");
    memset(t->by_text, 0xFF, texts * sizeof *t->by_text);
    memset(t->merges, 0xFF, merges * sizeof *t->merges);
    t->text_mask = texts - 1;
    t->merge_mask = merges - 1;
    return POT_OK;
}

void pot_bpe_add_text(pot_tokenizer *t, uint32_t id) {
    uint64_t slot = pot_hash64(t->arena + t->tokens[id].offset, t->tokens[id].bytes) & t->text_mask;
    while (t->by_text[slot] != POT_NO_TOKEN) slot = (slot + 1) & t->text_mask;
    t->by_text[slot] = id;
}

uint32_t pot_bpe_find_text(const pot_tokenizer *t, const void *text, size_t bytes) {
    uint64_t slot = pot_hash64(text, bytes) & t->text_mask;
    for (; t->by_text[slot] != POT_NO_TOKEN; slot = (slot + 1) & t->text_mask) {
        const pot_token *token = &t->tokens[t->by_text[slot]];
        if (token->bytes == bytes && memcmp(t->arena + token->offset, text, bytes) == 0) break;
    }
    return t->by_text[slot];
}

/* The slot of this pair, or the empty one where it would go. */
static pot_merge *find_merge(const pot_tokenizer *t, uint32_t left, uint32_t right) {
    uint64_t key = (uint64_t)left << 32 | right;
    key ^= key >> 29;
    uint64_t slot = (key * 0x9E3779B97F4A7C15u >> 20) & t->merge_mask;
    while (t->merges[slot].left != POT_NO_TOKEN) {
        if (t->merges[slot].left == left && t->merges[slot].right == right) break;
        slot = (slot + 1) & t->merge_mask;
    }
    return &t->merges[slot];
}

void pot_bpe_add_merge(pot_tokenizer *t, pot_merge merge) { *find_merge(t, merge.left, merge.right) = merge; }

/* ---- merging ----------------------------------------------------------------------------------- */

#define END UINT32_MAX

/* Position = index of its first byte in the piece. */
typedef struct pot_bpe_symbol {
    uint32_t id; /* POT_NO_TOKEN: merged into one on its left */
    uint32_t previous, next;
} symbol;

typedef struct heap {
    uint64_t *keys; /* rank << 32 | position */
    size_t n;
} heap;

static void heap_push(heap *h, uint64_t key) {
    size_t at = h->n++;
    for (; at > 0 && h->keys[(at - 1) / 2] > key; at = (at - 1) / 2) h->keys[at] = h->keys[(at - 1) / 2];
    h->keys[at] = key;
}

static uint64_t heap_pop(heap *h) {
    uint64_t top = h->keys[0], last = h->keys[--h->n];
    size_t at = 0;
    for (size_t child = 1; child < h->n; child = 2 * at + 1) {
        if (child + 1 < h->n && h->keys[child + 1] < h->keys[child]) child++;
        if (last <= h->keys[child]) break;
        h->keys[at] = h->keys[child];
        at = child;
    }
    h->keys[at] = last;
    return top;
}

/* The merge of the symbol at `position` and its right neighbour; NULL when there is none. */
static const pot_merge *merge_at(const pot_tokenizer *t, const symbol *symbols, uint32_t position) {
    const symbol *left = &symbols[position];
    if (left->id == POT_NO_TOKEN || left->next == END) return NULL;
    const pot_merge *merge = find_merge(t, left->id, symbols[left->next].id);
    return merge->left == POT_NO_TOKEN ? NULL : merge;
}

static void push_pair(heap *h, const pot_tokenizer *t, const symbol *symbols, uint32_t position) {
    const pot_merge *merge = merge_at(t, symbols, position);
    if (merge) heap_push(h, (uint64_t)merge->rank << 32 | position);
}

static void merge_all(const pot_tokenizer *t, symbol *symbols, heap *h, uint32_t n) {
    for (uint32_t i = 0; i + 1 < n; i++) push_pair(h, t, symbols, i);
    while (h->n) {
        uint64_t key = heap_pop(h);
        uint32_t position = (uint32_t)key;
        const pot_merge *merge = merge_at(t, symbols, position);
        if (!merge || merge->rank != key >> 32) continue;
        symbol *left = &symbols[position], *right = &symbols[left->next];
        left->id = merge->id;
        left->next = right->next;
        right->id = POT_NO_TOKEN;
        if (left->next != END) symbols[left->next].previous = position;
        if (left->previous != END) push_pair(h, t, symbols, left->previous);
        push_pair(h, t, symbols, position);
    }
}

void pot_bpe_scratch_free(pot_bpe_scratch *scratch) {
    pot_free(scratch->symbols);
    pot_free(scratch->heap);
    *scratch = (pot_bpe_scratch){0};
}

static pot_status reserve(pot_bpe_scratch *scratch, size_t bytes, pot_err *err) {
    if (bytes <= scratch->capacity) return POT_OK;
    pot_bpe_scratch_free(scratch);
    size_t capacity = bytes < 256 ? 256 : bytes;
    scratch->symbols = pot_alloc_array(capacity, sizeof *scratch->symbols);
    /* n - 1 pairs at first; each of at most n - 1 merges takes one out and puts two in. */
    scratch->heap = pot_alloc_array(capacity, 2 * sizeof *scratch->heap);
    if (!scratch->symbols || !scratch->heap) {
        return pot_fail(err, POT_NO_MEMORY, "not enough memory to tokenize a word of %zu bytes", bytes);
    }
    scratch->capacity = capacity;
    return POT_OK;
}

pot_status pot_bpe_encode(pot_tokens *out, const pot_tokenizer *t, pot_bpe_scratch *scratch, const unsigned char *piece,
                          size_t bytes, pot_err *err) {
    if (t->ignore_merges || bytes == 1) {
        uint32_t id = pot_bpe_find_text(t, piece, bytes);
        if (id != POT_NO_TOKEN) return pot_tokens_push(out, (int32_t)id, err);
    }
    pot_status status = reserve(scratch, bytes, err);
    if (status) return status;
    symbol *symbols = scratch->symbols;
    uint32_t n = (uint32_t)bytes;
    for (uint32_t i = 0; i < n; i++) {
        symbols[i] = (symbol){t->byte_ids[piece[i]], i ? i - 1 : END, i + 1 < n ? i + 1 : END};
    }
    heap h = {.keys = scratch->heap};
    merge_all(t, symbols, &h, n);
    for (uint32_t i = 0; i != END && !status; i = symbols[i].next) {
        status = pot_tokens_push(out, (int32_t)symbols[i].id, err);
    }
    return status;
}
