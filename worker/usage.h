/* Which experts were wanted how often, remembered from run to run in a small text file:
 *
 *   potluck-usage 1 FINGERPRINT LAYERS
 *   LAYER EXPERT COUNT                      ascending; experts that were never wanted are left out
 *   end XXH3-64-OF-ALL-LINES-BEFORE
 *
 * It is replaced as a whole.  A file that is not whole, or another model's, is reported and ignored: it decides what is loaded first, no
 * more.  docs/store.md.
 */
#ifndef POT_WORKER_USAGE_H
#define POT_WORKER_USAGE_H

#include "model/model.h"
#include "worker/store.h"

/* Where: `wanted` itself, with -WORKER behind it for all but worker 0; for "auto" usage-FINGERPRINT-WORKER.txt in $XDG_CACHE_HOME/potluck or ~/.cache/potluck, which is made; *out is NULL for NULL,
 * and for "auto" without a home.  The caller frees it. */
pot_status pot_usage_path(char **out, const char *wanted, const pot_model *model, uint32_t worker, pot_err *err);
/* Sets the uses of the store's units to what the file says. */
void pot_usage_load(pot_store *store);
/* Writes them; a failure is a warning. */
void pot_usage_save(const pot_store *store);

/* The text alone, for tests and fuzzing: calls `count` for every line of a whole and valid file. */
pot_status pot_usage_parse(const char *text, size_t bytes, const char *name, pot_hash fingerprint, uint32_t n_layers,
                           void (*count)(void *context, uint32_t layer, uint32_t expert, uint64_t n), void *context,
                           pot_err *err);

#endif
