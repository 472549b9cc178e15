/* Checkpoints that are not quite right: a fixture's tensors with some dropped, added or stored otherwise, written to a
 * scratch directory and opened.  One variant is in work at a time, from begin to end. */
#ifndef POT_TESTS_VARIANT_H
#define POT_TESTS_VARIANT_H

#include <jansson.h>

#include "model/model.h"
#include "model/safetensors.h"

/* cmocka's group set-up and tear-down. */
int pot_variant_setup(void **state);
int pot_variant_teardown(void **state);

void pot_variant_begin(const char *fixture);
void pot_variant_end(void);
void pot_variant_drop(const char *name);
void pot_variant_drop_prefix(const char *prefix);
/* Adds or replaces a tensor; all its bytes are `fill`.  rows 0: a vector of `cols`. */
void pot_variant_put(const char *name, pot_dtype dtype, uint64_t rows, uint64_t cols, uint8_t fill);
/* A tensor [n, rows, cols] of zeros. */
void pot_variant_put_stack(const char *name, pot_dtype dtype, uint64_t n, uint64_t rows, uint64_t cols);
void pot_variant_config(const char *key, json_t *value); /* takes the reference; NULL removes the key */

/* Writes config and tensors, these dealt out to n files in turn; gives the directory. */
const char *pot_variant_write(uint32_t n_files);

/* Opens a directory that must open; policy NULL = the default. */
pot_model *pot_must_open(const char *directory, const pot_format_policy *policy);
/* Writes, opens, ends. */
pot_model *pot_variant_open(const pot_format_policy *policy);
/* Writes; opening must be refused with a sentence that begins with the file or the directory and goes on as given.  Ends. */
void pot_variant_refuse(pot_status status, const char *sentence);

#endif
