/* One WORK message to one SUM message.  Owner: the worker; its memory is reused, so a warm worker allocates nothing. */
#ifndef POT_WORKER_COMPUTE_H
#define POT_WORKER_COMPUTE_H

#include "proto/transport.h"
#include "proto/wire.h"
#include "worker/store.h"

typedef struct pot_work pot_work;
pot_status pot_work_create(pot_work **out, const pot_model *model, const pot_compute *compute, pot_err *err);
void pot_work_free(pot_work *work);

/* *reply is a fresh message of `t`, ready to be sent.  Items that the store does not hold are listed as moved.  FORMAT for a message
 * that is malformed or does not fit the model, NUMERIC for a value that is not finite; *request, *step and *layer are set
 * as far as the header could be read. */
pot_status pot_work_run(pot_work *work, pot_message **reply, pot_transport *t, pot_store *store,
                        const pot_message *message, uint64_t *request, uint64_t *step, uint32_t *layer, pot_err *err);
uint64_t pot_work_items(const pot_work *work);                /* computed so far */
const pot_wire_record *pot_work_record(const pot_work *work); /* of the latest reply */

#endif
