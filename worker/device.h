/* A GPU beside the CPU: memory of its own, and a thread that computes with what lies there while the caller does something else.
 *
 * The sums are integers, so it does not matter for any bit who computed what (DESIGN 3).  One owner; between start and finish only finish may be
 * called.  In a program without CUDA, and on a machine without a GPU, there is none: pot_device_open says so.
 */
#ifndef POT_WORKER_DEVICE_H
#define POT_WORKER_DEVICE_H

#include "kernels/ffn.h"

typedef struct pot_device pot_device;

/* The `nth` process of `beside` on this machine: they take the GPUs in turn, and share what is free of one that several use.
 * `bytes`: what may be taken of its memory; 0 = leave it alone (*out is NULL), UINT64_MAX = what is free but for a reserve (*out is NULL when there is
 * no usable GPU).  NOT_FOUND when bytes were asked for and there is no GPU, LIMIT when it has not so many free. */
pot_status pot_device_open(pot_device **out, uint64_t bytes, uint32_t nth, uint32_t beside, pot_err *err);
void pot_device_close(pot_device *device);                 /* frees what was allocated; NULL is fine */
uint64_t pot_device_bytes(const pot_device *device);       /* that may be taken */
void pot_device_limit(pot_device *device, uint64_t bytes); /* no more than that may be taken; before the first alloc */
bool pot_device_shares_memory(const pot_device *device);   /* its memory is the machine's: counts as RAM too */
const char *pot_device_name(const pot_device *device);

/* Memory of the device; freed at close. */
pot_status pot_device_alloc(uint8_t **out, pot_device *device, size_t bytes, const char *what, pot_err *err);
pot_status pot_device_upload(pot_device *device, uint8_t *to, const uint8_t *from, size_t bytes, pot_err *err);

/* Begins jobs whose chunks lie in the device's memory; everything is borrowed until finish.  `n_rows` rows of x. */
void pot_device_start(pot_device *device, uint32_t hidden, const pot_act_row *x, uint32_t n_rows,
                      const pot_ffn_job *jobs, uint32_t n_jobs, int grid);
/* Waits, and adds the sums to acc [n_rows][hidden].  TIMEOUT when it does not answer: the device must not be used again, close leaves it behind. */
pot_status pot_device_finish(pot_device *device, int64_t *acc, uint64_t timeout_us, pot_err *err);

#endif
