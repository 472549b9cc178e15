/* What the tests of convert share: scratch directories, converting with few words, comparing directories. */
#ifndef POT_TESTS_CONVERSION_H
#define POT_TESTS_CONVERSION_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/convert.h"

enum { PATH = 256 };

#define MUST(call)                                     \
    do {                                               \
        pot_err err;                                   \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)

/* Set by begin_conversions; those of a test are removed by the next one that wants them. */
extern char scratch[64], source[PATH], destination[PATH], other[PATH];
/* cmocka's group set-up and tear-down. */
int begin_conversions(void **state);
int end_conversions(void **state);

const char *in(const char *directory, const char *name); /* "directory/name", valid for four calls */
void remove_all(const char *directory);                  /* and its files */
void copy_file(const char *from, const char *to);
uint32_t count_shards(const char *directory);
void check_same_files(const char *a, const char *b); /* the same names with the same bytes */

pot_convert_options options_of(const char *from, const char *to);
void convert(const pot_convert_options *options, bool finished);
void refuse(const pot_convert_options *options, pot_status status, const char *words);
uint32_t verify(const char *directory); /* faults */
void make_reference(const char *from);  /* converted in one go, to `other` */

#endif
