/* Status codes and error sentences.
 *
 * A function that can fail for a reason a person should read returns `pot_status` and takes
 * `pot_err *err` last.  Whoever detects a fault words it once with pot_fail(): names, numbers, what was
 * found, what was expected, what to do.  Whoever passes it on only adds where, with pot_at().  Nobody
 * prints on the way: main(), the wire and (later) HTTP print, once.  `err` may be NULL.
 * Outputs are written only on success.  The caller owns `pot_err`; it needs no clean-up.
 */
#ifndef POT_COMMON_STATUS_H
#define POT_COMMON_STATUS_H

#include <stdarg.h>
#include <stdbool.h>

/* name, process exit code, HTTP code, what is broken beyond the call */
#define POT_STATUS_MAP(X)                                                 \
    X(OK, 0, 200, "ok")                                                   \
    X(ERROR, 1, 500, "error")                                             \
    X(USAGE, 2, 400, "wrong option or argument")                          \
    X(CONFIG, 1, 500, "unsupported or contradictory model configuration") \
    X(FORMAT, 1, 500, "malformed file or message")                        \
    X(NOT_FOUND, 1, 404, "not found")                                     \
    X(IO, 1, 500, "input or output failed")                               \
    X(NO_MEMORY, 1, 503, "not enough memory")                             \
    X(LIMIT, 1, 400, "a limit was exceeded")                              \
    X(NUMERIC, 1, 500, "a value was not finite or out of range")          \
    X(TIMEOUT, 3, 504, "a deadline passed")                               \
    X(PEER_LOST, 3, 502, "a peer is gone")                                \
    X(REFUSED, 3, 502, "a peer does not match")                           \
    X(CANCELLED, 130, 499, "cancelled")                                   \
    X(BUG, 1, 500, "an internal error, please report it")

typedef enum pot_status {
#define X(name, exit_code, http_code, text) POT_##name,
    POT_STATUS_MAP(X)
#undef X
        POT_STATUS_COUNT
} pot_status;

enum { POT_ERR_TEXT = 1024 };

typedef struct pot_err {
    pot_status status;
    char text[POT_ERR_TEXT]; /* a whole sentence without a full stop at its end; cut if too long */
} pot_err;

/* Writes the sentence and returns `status`, so that `return pot_fail(err, POT_IO, "...")` reads well. */
pot_status pot_fail(pot_err *err, pot_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
pot_status pot_vfail(pot_err *err, pot_status status, const char *format, va_list args)
    __attribute__((format(printf, 3, 0)));

/* Puts "where: " in front of the sentence and returns err's status (POT_ERROR when err is NULL). */
pot_status pot_at(pot_err *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

const char *pot_status_name(pot_status status); /* "PEER_LOST" */
const char *pot_status_text(pot_status status);
int pot_status_exit_code(pot_status status);

/* Always on: only our own bug can break it.  Prints the expression and place, then aborts. */
#define POT_ASSERT(condition)                                                \
    do {                                                                     \
        if (!(condition)) pot_assert_failed(#condition, __FILE__, __LINE__); \
    } while (0)
void pot_assert_failed(const char *condition, const char *file, int line) __attribute__((noreturn));

#endif
