/* Log lines on stderr: `12.345678 r3 worker.store warn: text`.  stdout is for results only.
 * error: a request or process ends; warn: we go on, someone should look; info: start, stop, map change;
 * debug: per session; trace: per message.  Repeated lines are folded and counted.
 * The level and rank are process-wide and set once at start; any thread may log. */
#ifndef POT_COMMON_LOG_H
#define POT_COMMON_LOG_H

#include <stdbool.h>

#include "common/status.h"

typedef enum pot_log_level { POT_LOG_ERROR, POT_LOG_WARN, POT_LOG_INFO, POT_LOG_DEBUG, POT_LOG_TRACE } pot_log_level;

/* spec: "info" or "warn,proto.ucx=debug": a default level, then levels of modules by prefix. */
pot_status pot_log_configure(const char *spec, pot_err *err);
void pot_log_rank(int rank); /* -1 = not part of a cluster: the rank is left out */
bool pot_log_enabled(pot_log_level level, const char *module);
void pot_log_write(pot_log_level level, const char *module, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#define POT_LOG(level, module, ...)                                                    \
    do {                                                                               \
        if (pot_log_enabled(level, module)) pot_log_write(level, module, __VA_ARGS__); \
    } while (0)

#endif
