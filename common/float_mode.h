/* How this thread computes with floats; part of the answer (DESIGN 3, rule 2). */
#ifndef POT_COMMON_FLOAT_MODE_H
#define POT_COMMON_FLOAT_MODE_H

/* Turns FTZ and DAZ off and rounding to nearest in this thread: the first line of every thread and parallel region. */
void pot_fp_strict(void);

#endif
