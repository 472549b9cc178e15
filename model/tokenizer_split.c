/* GLM's split pattern, by hand:
 *
 *   (?i:'s|'t|'re|'ve|'m|'ll|'d)
 *   |[^\r\n\p{L}\p{N}]?\p{L}+
 *   |\p{N}{1,3}
 *   | ?[^\s\p{L}\p{N}]+[\r\n]*
 *   |\s*[\r\n]+
 *   |\s+(?!\S)
 *   |\s+
 *
 * Every character is a letter, a number, white space or none of these, so some alternative always matches, and the
 * first that does needs no search: each case below looks ahead over one run of a class.  No character is looked at
 * more than three times, which keeps long runs linear. */
#include "model/tokenizer_parts.h"
#include "model/unicode_tables.h"

typedef struct character {
    pot_char_class class;
    bool newline; /* \r or \n */
    const unsigned char *next;
} character;

static pot_char_class class_of(uint32_t code) {
    if (code < 128) {
        uint32_t lower = code | 0x20;
        if (lower >= 'a' && lower <= 'z') return POT_CHAR_LETTER;
        if (code >= '0' && code <= '9') return POT_CHAR_NUMBER;
        return code == ' ' || (code >= '\t' && code <= '\r') ? POT_CHAR_SPACE : POT_CHAR_OTHER;
    }
    unsigned low = 0, high = pot_unicode_n_ranges;
    while (low < high) {
        unsigned middle = (low + high) / 2;
        if (code > pot_unicode_ranges[middle].last) {
            low = middle + 1;
        } else if (code < pot_unicode_ranges[middle].first) {
            high = middle;
        } else {
            return pot_unicode_ranges[middle].class;
        }
    }
    return POT_CHAR_OTHER;
}

/* The character at p, which is valid UTF-8 and not the end. */
static character read_character(const unsigned char *p) {
    uint32_t code = p[0];
    unsigned length = 1;
    if (code >= 0xF0) {
        code = (code & 0x07) << 18 | (p[1] & 0x3Fu) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
        length = 4;
    } else if (code >= 0xE0) {
        code = (code & 0x0F) << 12 | (p[1] & 0x3Fu) << 6 | (p[2] & 0x3Fu);
        length = 3;
    } else if (code >= 0xC0) {
        code = (code & 0x1F) << 6 | (p[1] & 0x3Fu);
        length = 2;
    }
    return (character){.class = class_of(code), .newline = code == '\r' || code == '\n', .next = p + length};
}

/* Skips characters of one class, at most `limit`. */
static const unsigned char *skip_class(const unsigned char *p, const unsigned char *end, pot_char_class class,
                                       size_t limit) {
    for (size_t n = 0; p < end && n < limit; n++) {
        character c = read_character(p);
        if (c.class != class) break;
        p = c.next;
    }
    return p;
}

/* Bytes of (?i:'s|'t|'re|'ve|'m|'ll|'d) at p, 0 when it is none.  U+017F, the long s, is the only character outside
 * ASCII that folds to one of these letters (unicode_tables.py proves it). */
static size_t contraction(const unsigned char *p, const unsigned char *end) {
    size_t left = (size_t)(end - p);
    if (left < 2 || p[0] != '\'') return 0;
    unsigned char first = p[1] | 0x20;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 2;
    if (left < 3) return 0;
    if (p[1] == 0xC5 && p[2] == 0xBF) return 3;
    unsigned char second = p[2] | 0x20;
    bool pair = (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
    return pair ? 3 : 0;
}

/* \s*[\r\n]+ | \s+(?!\S) | \s+ at p, where there is white space. */
static const unsigned char *white_space(const unsigned char *p, const unsigned char *end) {
    const unsigned char *at = p, *last = p, *after_newline = NULL;
    while (at < end) {
        character c = read_character(at);
        if (c.class != POT_CHAR_SPACE) break;
        if (c.newline) after_newline = c.next;
        last = at;
        at = c.next;
    }
    if (after_newline) return after_newline;
    /* The last one stays for the word that follows, unless nothing follows or it is the only one. */
    return at == end || last == p ? at : last;
}

size_t pot_split_piece(const unsigned char *text, size_t bytes) {
    const unsigned char *end = text + bytes;
    size_t n = contraction(text, end);
    if (n) return n;

    character first = read_character(text);
    if (first.class == POT_CHAR_NUMBER) return (size_t)(skip_class(text, end, POT_CHAR_NUMBER, 3) - text);

    const unsigned char *word = first.class == POT_CHAR_LETTER || first.newline ? text : first.next;
    const unsigned char *stop = skip_class(word, end, POT_CHAR_LETTER, SIZE_MAX);
    if (stop > word) return (size_t)(stop - text);

    const unsigned char *marks = text[0] == ' ' ? text + 1 : text;
    stop = skip_class(marks, end, POT_CHAR_OTHER, SIZE_MAX);
    if (stop > marks) {
        while (stop < end && (*stop == '\r' || *stop == '\n')) stop++;
        return (size_t)(stop - text);
    }
    return (size_t)(white_space(text, end) - text);
}
