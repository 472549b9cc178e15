/* A growable run of bytes.  Capacity doubles, so a text of n bytes is copied O(log n) times; one byte is always kept
 * for the closing NUL. */
#include "common/buffer.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"

/* Room for `more` bytes and a NUL; false and `failed` when memory is short. */
static bool reserve(pot_buffer *b, size_t more) {
    if (b->failed) return false;
    if (more < b->capacity - b->bytes) return true; /* capacity is 0 or above bytes */
    if (more > SIZE_MAX / 4 || b->bytes > SIZE_MAX / 4) {
        b->failed = true;
        return false;
    }
    size_t capacity = b->capacity ? b->capacity : 64;
    while (capacity - b->bytes <= more) capacity *= 2;
    char *data = pot_realloc_array(b->data, capacity, 1);
    if (!data) {
        b->failed = true;
        return false;
    }
    b->data = data;
    b->capacity = capacity;
    b->data[b->bytes] = 0;
    return true;
}

void pot_buffer_append(pot_buffer *b, const void *data, size_t bytes) {
    if (!reserve(b, bytes)) return;
    if (bytes) memcpy(b->data + b->bytes, data, bytes);
    b->bytes += bytes;
    b->data[b->bytes] = 0;
}

void pot_buffer_text(pot_buffer *b, const char *text) { pot_buffer_append(b, text, strlen(text)); }

void pot_buffer_byte(pot_buffer *b, char byte) { pot_buffer_append(b, &byte, 1); }

void pot_buffer_format(pot_buffer *b, const char *format, ...) {
    if (!reserve(b, 127)) return;
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    size_t room = b->capacity - b->bytes;
    int n = vsnprintf(b->data + b->bytes, room, format, args);
    if (n < 0) {
        b->failed = true;
    } else if ((size_t)n < room) {
        b->bytes += (size_t)n;
    } else if (reserve(b, (size_t)n)) {
        vsnprintf(b->data + b->bytes, (size_t)n + 1, format, again);
        b->bytes += (size_t)n;
    }
    va_end(again);
    va_end(args);
    b->data[b->bytes] = 0; /* a failed growth must not leave half of the new text */
}

void pot_buffer_clear(pot_buffer *b) {
    b->bytes = 0;
    b->failed = false;
    if (b->data) b->data[0] = 0;
}

void pot_buffer_free(pot_buffer *b) {
    pot_free(b->data);
    *b = (pot_buffer){0};
}
