/* What options.c (values) and options_text.c (texts made from the table) share. */
#ifndef POT_COMMON_OPTIONS_INTERNAL_H
#define POT_COMMON_OPTIONS_INTERNAL_H

#include "common/options.h"

typedef struct option_state {
    char *text;  /* the value as it was written; NULL when unset.  TEXT and CHOICE values point here */
    char *where; /* NULL for a default */
    pot_option_origin origin;
} option_state;

struct pot_options {
    const pot_option *table;
    size_t n;
    char *values; /* the caller's struct */
    option_state *states;
};

enum { POT_OPTION_NAME_MAX = 64 };

/* "n-predict" -> "POTLUCK_N_PREDICT". */
void pot_option_variable(char out[POT_OPTION_NAME_MAX], const char *name);

#endif
