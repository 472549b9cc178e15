/* Holds the tensors that an engine computed against a fixture's, by the rules of tests/oracle/compare.py:
 * floats by max|a-b| / max|b| over the tensor; integers are equal wherever the fixture's stored margin says that the choice is not a
 * coin toss. */
#ifndef POT_TESTS_COMPARE_H
#define POT_TESTS_COMPARE_H

#include <stdint.h>

#include "common/buffer.h"
#include "common/status.h"

/* *bad: how many tensors of `expected` are missing from `got` or differ.  report: a line a tensor with its worst figure. */
pot_status pot_compare_files(uint32_t *bad, pot_buffer *report, const char *expected, const char *got, double tolerance,
                             pot_err *err);

#endif
