/* tokenizer.json -> the tokenizer's tables.
 *
 * Only what GLM publishes is read: no normalizer, GLM's split pattern, byte-level BPE.  Anything else would tokenize
 * differently without anyone noticing, so it is refused by name.  "truncation" and "padding" are left unread: they
 * are settings of a call, and potluck's callers never ask for either. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/json.h"
#include "common/mem.h"
#include "model/tokenizer_parts.h"

#define FILE_LIMIT ((size_t)64 << 20)

static const char GLM_PATTERN[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

enum { BYTE_LETTERS = 324 }; /* the byte alphabet uses code points below this */

typedef struct loader {
    pot_tokenizer *t;
    const char *name;              /* of the file, for sentences */
    int16_t byte_of[BYTE_LETTERS]; /* -1: this code point stands for no byte */
    size_t arena_used;
    pot_buffer scratch; /* texts of merges */
} loader;

/* A text from the file inside a sentence: short, and on one line whatever it contains. */
typedef struct quoted {
    char text[64];
} quoted;

static quoted quote(const char *text, size_t bytes) {
    quoted q;
    size_t n = bytes < 48 ? bytes : 48;
    while (n < bytes && n && ((unsigned char)text[n] & 0xC0) == 0x80) n--; /* not inside a character */
    for (size_t i = 0; i < n; i++) q.text[i] = (unsigned char)text[i] < 32 || text[i] == 127 ? '?' : text[i];
    memcpy(q.text + n, n < bytes ? "..." : "", n < bytes ? 4 : 1);
    return q;
}

/* ---- the parts around the model ---------------------------------------------------------------- */

/* What a sentence calls a part: its "type", or what it is instead of an object. */
static quoted part_type(const json_t *part) {
    const json_t *type = json_object_get(part, "type");
    if (json_is_string(type)) return quote(json_string_value(type), json_string_length(type));
    const char *kind = !part || json_is_null(part) ? "null" : json_is_object(part) ? "without a type" : "not an object";
    return quote(kind, strlen(kind));
}

static bool is_type(const json_t *part, const char *type) {
    const json_t *found = json_object_get(part, "type");
    return json_is_string(found) && strcmp(json_string_value(found), type) == 0;
}

static bool is_absent(const json_t *value) { return !value || json_is_null(value); }

static pot_status check_split(const json_t *split, const char *name, pot_err *err) {
    const json_t *pattern = json_object_get(json_object_get(split, "pattern"), "Regex");
    if (!json_is_string(pattern) || strcmp(json_string_value(pattern), GLM_PATTERN) != 0) {
        return pot_fail(err, POT_CONFIG, "%s: the split pattern is not GLM's (%s)", name,
                        json_is_string(pattern) ? quote(json_string_value(pattern), json_string_length(pattern)).text
                                                : "no regular expression");
    }
    const json_t *behavior = json_object_get(split, "behavior");
    if (!json_is_string(behavior) || strcmp(json_string_value(behavior), "Isolated") != 0 ||
        !json_is_false(json_object_get(split, "invert"))) {
        return pot_fail(err, POT_CONFIG, "%s: the split must be Isolated and not inverted", name);
    }
    return POT_OK;
}

static pot_status check_parts(const json_t *root, const char *name, pot_err *err) {
    const json_t *part = json_object_get(root, "normalizer");
    if (!is_absent(part)) {
        return pot_fail(err, POT_CONFIG, "%s: the normalizer is %s, GLM has none and no other is supported", name,
                        part_type(part).text);
    }
    part = json_object_get(root, "pre_tokenizer");
    const json_t *steps = json_object_get(part, "pretokenizers");
    const json_t *split = json_array_get(steps, 0), *bytes = json_array_get(steps, 1);
    if (!is_type(part, "Sequence") || json_array_size(steps) != 2 || !is_type(split, "Split") ||
        !is_type(bytes, "ByteLevel")) {
        return pot_fail(err, POT_CONFIG,
                        "%s: the pre_tokenizer is %s, GLM's Sequence of Split and ByteLevel was expected", name,
                        part_type(part).text);
    }
    pot_status status = check_split(split, name, err);
    if (status) return status;
    if (!json_is_false(json_object_get(bytes, "add_prefix_space")) ||
        !json_is_false(json_object_get(bytes, "use_regex"))) {
        return pot_fail(err, POT_CONFIG,
                        "%s: the ByteLevel pre_tokenizer must have add_prefix_space and use_regex false", name);
    }
    part = json_object_get(root, "post_processor");
    if (!is_absent(part) && !is_type(part, "ByteLevel")) {
        return pot_fail(err, POT_CONFIG,
                        "%s: the post_processor is %s, which may add tokens; none or ByteLevel was expected", name,
                        part_type(part).text);
    }
    part = json_object_get(root, "decoder");
    if (!is_type(part, "ByteLevel")) {
        return pot_fail(err, POT_CONFIG, "%s: the decoder is %s, ByteLevel was expected", name, part_type(part).text);
    }
    return POT_OK;
}

static pot_status check_model(const json_t *model, pot_tokenizer *t, const char *name, pot_err *err) {
    if (!is_type(model, "BPE")) {
        return pot_fail(err, POT_CONFIG, "%s: the model is %s, BPE was expected", name, part_type(model).text);
    }
    static const char *const UNUSED[] = {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"};
    for (size_t i = 0; i < sizeof UNUSED / sizeof UNUSED[0]; i++) {
        const json_t *value = json_object_get(model, UNUSED[i]);
        bool empty = (json_is_string(value) && json_string_length(value) == 0) ||
                     (json_is_number(value) && json_number_value(value) == 0);
        if (!is_absent(value) && !empty) {
            return pot_fail(err, POT_CONFIG, "%s: model.%s is set, GLM has none and it is not supported", name,
                            UNUSED[i]);
        }
    }
    bool byte_fallback = false;
    pot_status status = pot_json_bool(&byte_fallback, model, "byte_fallback", false, name, err);
    if (!status) status = pot_json_bool(&t->ignore_merges, model, "ignore_merges", false, name, err);
    if (!status && byte_fallback) {
        status = pot_fail(err, POT_CONFIG, "%s: model.byte_fallback is true, only byte-level BPE is supported", name);
    }
    return status;
}

/* ---- the byte alphabet ------------------------------------------------------------------------- */

/* GPT-2's alphabet: a byte that prints in Latin-1 stands for itself, the others are numbered from U+0100. */
static void fill_alphabet(int16_t byte_of[BYTE_LETTERS]) {
    for (int i = 0; i < BYTE_LETTERS; i++) byte_of[i] = -1;
    int next = 256;
    for (int byte = 0; byte < 256; byte++) {
        bool prints = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
        byte_of[prints ? byte : next++] = (int16_t)byte;
    }
}

/* Writes the bytes that `text` (valid UTF-8) spells; SIZE_MAX when a character of it is not in the alphabet. */
static size_t spell(char *out, const int16_t byte_of[BYTE_LETTERS], const char *text, size_t bytes) {
    const unsigned char *p = (const unsigned char *)text, *end = p + bytes;
    size_t n = 0;
    while (p < end) {
        unsigned code = *p++;
        if (code >= 0xE0) return SIZE_MAX;
        if (code >= 0xC0) code = (code & 0x1F) << 6 | (*p++ & 0x3Fu);
        if (code >= BYTE_LETTERS || byte_of[code] < 0) return SIZE_MAX;
        out[n++] = (char)byte_of[code];
    }
    return n;
}

/* ---- vocabulary -------------------------------------------------------------------------------- */

static bool read_id(uint32_t *out, const json_t *value) {
    if (!json_is_integer(value) || json_integer_value(value) < 0) return false;
    if (json_integer_value(value) >= POT_TOKENIZER_ID_LIMIT) return false;
    *out = (uint32_t)json_integer_value(value);
    return true;
}

/* Finds the room that is needed: the largest id, and the bytes of all texts. */
static pot_status create_tokens(loader *l, const json_t *vocab, const json_t *added, pot_err *err) {
    size_t bytes = 1;
    uint32_t largest = 0, id = 0;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)vocab, key, value) {
        size_t length = strlen(key);
        if (!read_id(&id, value)) {
            return pot_fail(err, POT_FORMAT, "%s: the id of \"%s\" is not an integer from 0 to %d", l->name,
                            quote(key, length).text, POT_TOKENIZER_ID_LIMIT - 1);
        }
        if (id > largest) largest = id;
        bytes += length;
    }
    size_t i;
    json_array_foreach(added, i, value) {
        if (!read_id(&id, json_object_get(value, "id"))) {
            return pot_fail(err, POT_FORMAT, "%s: added_tokens[%zu] has no id from 0 to %d", l->name, i,
                            POT_TOKENIZER_ID_LIMIT - 1);
        }
        if (id > largest) largest = id;
        bytes += json_string_length(json_object_get(value, "content"));
    }
    l->t->size = largest + 1;
    l->t->tokens = pot_alloc_array(l->t->size, sizeof *l->t->tokens);
    l->t->arena = pot_alloc(bytes);
    if (!l->t->tokens || !l->t->arena) {
        return pot_fail(err, POT_NO_MEMORY, "%s: not enough memory for %" PRIu32 " tokens", l->name, l->t->size);
    }
    return POT_OK;
}

static pot_status load_vocab(loader *l, const json_t *vocab, pot_err *err) {
    pot_tokenizer *t = l->t;
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)vocab, key, value) {
        uint32_t id = (uint32_t)json_integer_value(value);
        pot_token *token = &t->tokens[id];
        if (token->known) {
            return pot_fail(err, POT_FORMAT, "%s: id %" PRIu32 " is given twice, the second time to \"%s\"", l->name,
                            id, quote(key, strlen(key)).text);
        }
        char *text = t->arena + l->arena_used;
        size_t bytes = spell(text, l->byte_of, key, strlen(key));
        bool spelled = bytes != SIZE_MAX;
        if (!spelled) {
            /* No text leads to such a token; if its id comes all the same, it stands for itself. */
            bytes = strlen(key);
            memcpy(text, key, bytes);
        }
        *token = (pot_token){.offset = (uint32_t)l->arena_used, .bytes = (uint32_t)bytes, .known = true};
        l->arena_used += bytes;
        if (spelled) pot_bpe_add_text(t, id);
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        unsigned char text = (unsigned char)byte;
        t->byte_ids[byte] = pot_bpe_find_text(t, &text, 1);
        if (t->byte_ids[byte] == POT_NO_TOKEN) {
            return pot_fail(err, POT_FORMAT, "%s: the vocabulary has no token for byte 0x%02X", l->name, byte);
        }
    }
    return POT_OK;
}

/* ---- merges ------------------------------------------------------------------------------------ */

/* Gives the two halves of merge `rank`, spelled ["a", "b"] or "a b". */
static bool merge_halves(const char *half[2], size_t bytes[2], const json_t *merge) {
    if (json_is_string(merge)) {
        const char *text = json_string_value(merge), *space = strchr(text, ' ');
        if (!space || strlen(text) != json_string_length(merge) || strchr(space + 1, ' ')) return false;
        half[0] = text;
        half[1] = space + 1;
        bytes[0] = (size_t)(space - text);
        bytes[1] = strlen(space + 1);
        return bytes[0] && bytes[1];
    }
    if (json_array_size(merge) != 2) return false;
    for (size_t i = 0; i < 2; i++) {
        const json_t *part = json_array_get(merge, i);
        if (!json_is_string(part)) return false;
        half[i] = json_string_value(part);
        bytes[i] = json_string_length(part);
        if (bytes[i] == 0) return false;
    }
    return true;
}

static pot_status load_merge(loader *l, const json_t *merge, size_t rank, pot_err *err) {
    const char *half[2];
    size_t bytes[2];
    if (!merge_halves(half, bytes, merge)) {
        return pot_fail(err, POT_FORMAT, "%s: merge %zu is neither [\"a\", \"b\"] nor \"a b\"", l->name, rank);
    }
    pot_buffer_clear(&l->scratch);
    for (size_t i = 0; i < 2; i++) pot_buffer_append(&l->scratch, half[i], bytes[i]);
    if (l->scratch.failed) return pot_fail(err, POT_NO_MEMORY, "%s: not enough memory for merge %zu", l->name, rank);

    /* Spelled in place: the bytes are never more than the letters. */
    char *left = l->scratch.data, *right = left + bytes[0];
    uint32_t ids[3] = {POT_NO_TOKEN, POT_NO_TOKEN, POT_NO_TOKEN}; /* left, right, both together */
    size_t n_left = spell(left, l->byte_of, half[0], bytes[0]), n_right = spell(right, l->byte_of, half[1], bytes[1]);
    if (n_left != SIZE_MAX) ids[0] = pot_bpe_find_text(l->t, left, n_left);
    if (n_right != SIZE_MAX) ids[1] = pot_bpe_find_text(l->t, right, n_right);
    for (size_t i = 0; i < 2; i++) {
        if (ids[i] == POT_NO_TOKEN) {
            return pot_fail(err, POT_FORMAT, "%s: merge %zu names \"%s\", which the vocabulary does not have", l->name,
                            rank, quote(half[i], bytes[i]).text);
        }
    }
    memmove(left + n_left, right, n_right);
    ids[2] = pot_bpe_find_text(l->t, left, n_left + n_right);
    if (ids[2] == POT_NO_TOKEN) {
        return pot_fail(err, POT_FORMAT, "%s: merge %zu makes \"%s%s\", which the vocabulary does not have", l->name,
                        rank, quote(half[0], bytes[0]).text, quote(half[1], bytes[1]).text);
    }
    pot_bpe_add_merge(l->t, (pot_merge){ids[0], ids[1], (uint32_t)rank, ids[2]});
    return POT_OK;
}

/* ---- added tokens ------------------------------------------------------------------------------ */

static pot_status load_added(loader *l, const json_t *entry, size_t index, pot_err *err) {
    pot_tokenizer *t = l->t;
    char name[512];
    snprintf(name, sizeof name, "%.400s: added_tokens[%zu]", l->name, index);
    const char *content = NULL;
    pot_status status = pot_json_string(&content, entry, "content", true, name, err);
    static const char *const UNSUPPORTED[] = {"single_word", "lstrip", "rstrip"};
    for (size_t i = 0; i < 3 && !status; i++) {
        bool set = false;
        status = pot_json_bool(&set, entry, UNSUPPORTED[i], false, name, err);
        if (!status && set) {
            status = pot_fail(err, POT_CONFIG, "%s: %s is true, which GLM does not use and is not supported", name,
                              UNSUPPORTED[i]);
        }
    }
    bool special = false;
    if (!status) status = pot_json_bool(&special, entry, "special", false, name, err);
    bool normalized = !special; /* Hugging Face's default */
    if (!status) status = pot_json_bool(&normalized, entry, "normalized", false, name, err);
    if (status) return status;

    size_t bytes = strlen(content);
    if (bytes == 0 || bytes > POT_TOKENIZER_ADDED_BYTES) {
        return pot_fail(err, POT_FORMAT, "%s: the text has %zu bytes, from 1 to %d were expected", name, bytes,
                        POT_TOKENIZER_ADDED_BYTES);
    }
    /* An added token may repeat an entry of the vocabulary, then under the same id. */
    uint32_t id = (uint32_t)json_integer_value(json_object_get(entry, "id")), in_vocab = POT_NO_TOKEN;
    char letters[POT_TOKENIZER_ADDED_BYTES];
    size_t n_letters = spell(letters, l->byte_of, content, bytes);
    if (n_letters != SIZE_MAX) in_vocab = pot_bpe_find_text(t, letters, n_letters);
    if (in_vocab != POT_NO_TOKEN && in_vocab != id) {
        return pot_fail(err, POT_FORMAT, "%s: \"%s\" has id %" PRIu32 " here and %" PRIu32 " in the vocabulary", name,
                        quote(content, bytes).text, id, in_vocab);
    }
    if (t->tokens[id].added || (t->tokens[id].known && in_vocab != id)) {
        return pot_fail(err, POT_FORMAT, "%s: id %" PRIu32 " of \"%s\" is taken by another token", name, id,
                        quote(content, bytes).text);
    }
    memcpy(t->arena + l->arena_used, content, bytes);
    uint32_t offset = (uint32_t)l->arena_used;
    t->tokens[id] = (pot_token){offset, (uint32_t)bytes, .known = true, .added = true, .special = special};
    l->arena_used += bytes;
    pot_added_set *set = normalized ? &t->normalized : &t->literal;
    set->ids[set->n++] = id;
    set->starts[(unsigned char)content[0]] = true;
    return POT_OK;
}

static int compare_added(const void *a, const void *b, void *context) {
    const pot_tokenizer *t = context;
    const pot_token *x = &t->tokens[*(const uint32_t *)a], *y = &t->tokens[*(const uint32_t *)b];
    size_t common = x->bytes < y->bytes ? x->bytes : y->bytes;
    int order = memcmp(t->arena + x->offset, t->arena + y->offset, common);
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

static pot_status sort_added(loader *l, pot_added_set *set, pot_err *err) {
    qsort_r(set->ids, set->n, sizeof *set->ids, compare_added, l->t);
    for (size_t i = 1; i < set->n; i++) {
        if (compare_added(&set->ids[i - 1], &set->ids[i], l->t) == 0) {
            const pot_token *token = &l->t->tokens[set->ids[i]];
            return pot_fail(err, POT_FORMAT, "%s: added_tokens has \"%s\" twice", l->name,
                            quote(l->t->arena + token->offset, token->bytes).text);
        }
    }
    return POT_OK;
}

static pot_status load_all_added(loader *l, const json_t *added, pot_err *err) {
    pot_added_set *sets[] = {&l->t->literal, &l->t->normalized};
    for (size_t i = 0; i < 2; i++) {
        sets[i]->ids = pot_alloc_array(json_array_size(added), sizeof *sets[i]->ids);
        if (!sets[i]->ids) return pot_fail(err, POT_NO_MEMORY, "%s: not enough memory for added tokens", l->name);
    }
    size_t i;
    json_t *entry;
    json_array_foreach(added, i, entry) {
        pot_status status = load_added(l, entry, i, err);
        if (status) return status;
    }
    pot_status status = sort_added(l, sets[0], err);
    return status ? status : sort_added(l, sets[1], err);
}

/* ---- all of it --------------------------------------------------------------------------------- */

static pot_status load(loader *l, const json_t *root, pot_err *err) {
    if (!json_is_object(root)) return pot_fail(err, POT_FORMAT, "%s: not a JSON object", l->name);
    const json_t *model = json_object_get(root, "model"), *added = json_object_get(root, "added_tokens");
    const json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    pot_status status = check_parts(root, l->name, err);
    if (!status) status = check_model(model, l->t, l->name, err);
    if (status) return status;
    if (!json_is_object(vocab)) return pot_fail(err, POT_FORMAT, "%s: model.vocab is not an object", l->name);
    if (!json_is_array(merges)) return pot_fail(err, POT_FORMAT, "%s: model.merges is not a list", l->name);
    if (!is_absent(added) && !json_is_array(added)) {
        return pot_fail(err, POT_FORMAT, "%s: added_tokens is not a list", l->name);
    }
    fill_alphabet(l->byte_of);
    status = create_tokens(l, vocab, added, err);
    if (!status) status = pot_bpe_create_tables(l->t, json_object_size(vocab), json_array_size(merges), err);
    if (!status) status = load_vocab(l, vocab, err);
    for (size_t rank = 0; rank < json_array_size(merges) && !status; rank++) {
        status = load_merge(l, json_array_get(merges, rank), rank, err);
    }
    return status ? status : load_all_added(l, added, err);
}

pot_status pot_tokenizer_parse(pot_tokenizer **out, const char *json, size_t bytes, const char *name, pot_err *err) {
    if (bytes > FILE_LIMIT) {
        return pot_fail(err, POT_LIMIT, "%s: %zu bytes, at most %zu were expected", name, bytes, FILE_LIMIT);
    }
    loader l = {.name = name};
    json_t *root = NULL;
    pot_status status = pot_json_parse(&root, json, bytes, name, err);
    if (!status) {
        l.t = pot_alloc(sizeof *l.t);
        status = l.t ? load(&l, root, err) : pot_fail(err, POT_NO_MEMORY, "%s: not enough memory", name);
    }
    json_decref(root);
    pot_buffer_free(&l.scratch);
    if (status) {
        pot_tokenizer_close(l.t);
    } else {
        *out = l.t;
    }
    return status;
}

pot_status pot_tokenizer_open(pot_tokenizer **out, const char *directory, pot_err *err) {
    char *path = pot_path_join(directory, "tokenizer.json");
    if (!path) return pot_fail(err, POT_NO_MEMORY, "not enough memory to open %s/tokenizer.json", directory);
    pot_buffer text = {0};
    pot_status status = pot_file_read(&text, path, FILE_LIMIT, err);
    if (!status) status = pot_tokenizer_parse(out, text.data ? text.data : "", text.bytes, path, err);
    pot_buffer_free(&text);
    pot_free(path);
    return status;
}
