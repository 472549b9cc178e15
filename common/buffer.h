/* A growable run of bytes, also used to build text.  Owner: the caller; pot_buffer_free() when done.
 * After a failed growth `failed` is set, later appends do nothing, and the content so far stays valid:
 * check once at the end.  `data` is always followed by a NUL that `bytes` does not count. */
#ifndef POT_COMMON_BUFFER_H
#define POT_COMMON_BUFFER_H

#include <stdbool.h>
#include <stddef.h>

typedef struct pot_buffer {
    char *data;
    size_t bytes, capacity;
    bool failed;
} pot_buffer; /* all zero = empty */

void pot_buffer_append(pot_buffer *buffer, const void *data, size_t bytes);
void pot_buffer_text(pot_buffer *buffer, const char *text);
void pot_buffer_format(pot_buffer *buffer, const char *format, ...) __attribute__((format(printf, 2, 3)));
void pot_buffer_byte(pot_buffer *buffer, char byte);
void pot_buffer_clear(pot_buffer *buffer); /* keeps the capacity */
void pot_buffer_free(pot_buffer *buffer);

#endif
