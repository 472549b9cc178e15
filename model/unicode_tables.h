/* The classes of characters that GLM's split pattern tells apart, as Hugging Face `tokenizers` matches them.
 * unicode_tables.c is written by unicode_tables.py. */
#ifndef POT_MODEL_UNICODE_TABLES_H
#define POT_MODEL_UNICODE_TABLES_H

#include <stdint.h>

typedef enum pot_char_class {
    POT_CHAR_OTHER,  /* [^\s\p{L}\p{N}] */
    POT_CHAR_LETTER, /* \p{L} */
    POT_CHAR_NUMBER, /* \p{N} */
    POT_CHAR_SPACE,  /* \s */
} pot_char_class;

typedef struct pot_unicode_range {
    uint32_t first, last;
    pot_char_class class;
} pot_unicode_range;

/* Ascending, without overlap; a code point in none of them is POT_CHAR_OTHER. */
extern const pot_unicode_range pot_unicode_ranges[];
extern const unsigned pot_unicode_n_ranges;

#endif
