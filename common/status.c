/* Status names and error sentences.  A sentence is written once, in place, into the caller's pot_err; putting a
 * place in front of it moves the text to the right inside the same array, so nothing here allocates or fails. */
#include "common/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *text;
    int exit_code;
} statuses[POT_STATUS_COUNT] = {
#define X(name, exit_code, http_code, text) [POT_##name] = {#name, text, exit_code},
    POT_STATUS_MAP(X)
#undef X
};

static bool is_known(pot_status status) { return (unsigned)status < POT_STATUS_COUNT; }

/* A text that did not fit ends in "..." and never in half a UTF-8 character. */
static void mark_as_cut(char *text, size_t size) {
    size_t end = size - 4;
    while (end > 0 && ((unsigned char)text[end] & 0xC0) == 0x80) end--;
    memcpy(text + end, "...", 4);
}

pot_status pot_vfail(pot_err *err, pot_status status, const char *format, va_list args) {
    if (!err) return status;
    /* Arguments may point into err->text (a sentence that quotes another), so it is written aside first. */
    char text[POT_ERR_TEXT];
    int n = vsnprintf(text, sizeof text, format, args);
    if (n < 0) text[0] = 0;
    if (n >= (int)sizeof text) mark_as_cut(text, sizeof text);
    memcpy(err->text, text, strlen(text) + 1);
    err->status = status;
    return status;
}

pot_status pot_fail(pot_err *err, pot_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    pot_vfail(err, status, format, args);
    va_end(args);
    return status;
}

pot_status pot_at(pot_err *err, const char *format, ...) {
    if (!err) return POT_ERROR;
    char text[2 * POT_ERR_TEXT];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, POT_ERR_TEXT, format, args);
    va_end(args);
    if (n < 0) return err->status;
    if (n >= POT_ERR_TEXT) n = POT_ERR_TEXT - 1; /* the cut below then falls into it */
    n += snprintf(text + n, sizeof text - (size_t)n, ": %s", err->text);
    if (n >= POT_ERR_TEXT) mark_as_cut(text, POT_ERR_TEXT);
    memcpy(err->text, text, strlen(text) + 1);
    return err->status;
}

const char *pot_status_name(pot_status status) { return is_known(status) ? statuses[status].name : "UNKNOWN"; }

const char *pot_status_text(pot_status status) { return is_known(status) ? statuses[status].text : "unknown status"; }

int pot_status_exit_code(pot_status status) { return is_known(status) ? statuses[status].exit_code : 1; }

void pot_assert_failed(const char *condition, const char *file, int line) {
    fprintf(stderr, "potluck: internal error, please report it: `%s` does not hold at %s:%d\n", condition, file, line);
    abort();
}
