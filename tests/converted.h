/* Converting a model for a test, by the parts that `potluck convert` is made of. */
#ifndef POT_TESTS_CONVERTED_H
#define POT_TESTS_CONVERTED_H

#include "model/model.h"

/* Makes `directory` (which must not exist) a converted model. */
pot_status pot_converted_make(const char *directory, const char *source, const pot_format_policy *policy, pot_err *err);
/* Removes a directory with all files in it (no folders). */
void pot_converted_remove(const char *directory);

#endif
