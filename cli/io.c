/* Standard output and line input of the commands, on plain descriptors: no stdio buffer stands between a token and the reader,
 * and a wait for input ends when a stop signal comes. */
#include <errno.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli.h"
#include "common/system.h"

enum { TEND_MS = 250 };

pot_status pot_out_write(pot_out *out, const void *data, size_t bytes, pot_err *err) {
    const char *at = data;
    while (bytes && !out->closed) {
        ssize_t wrote = write(STDOUT_FILENO, at, bytes);
        if (wrote >= 0) {
            at += wrote;
            bytes -= (size_t)wrote;
        } else if (errno == EPIPE) {
            out->closed = true;
        } else if (errno == EAGAIN) { /* a launcher may have made the pipe non-blocking */
            struct pollfd fds[2] = {{STDOUT_FILENO, POLLOUT, 0}, {pot_stop_fd(), POLLIN, 0}};
            poll(fds, 2, -1); /* a reader may take its time; a signal ends the wait */
            if (pot_stop_requested()) return pot_fail(err, POT_CANCELLED, "stopped while standard output was full");
        } else if (errno != EINTR) {
            return pot_fail(err, POT_IO, "cannot write to standard output: %s", strerror(errno));
        }
    }
    return POT_OK;
}

pot_status pot_out_buffer(pot_out *out, pot_buffer *buffer, pot_err *err) {
    if (buffer->failed) return pot_fail(err, POT_NO_MEMORY, "not enough memory for the output");
    pot_status status = pot_out_write(out, buffer->data, buffer->bytes, err);
    pot_buffer_clear(buffer);
    return status;
}

/* Reads once more into `pending`; sets at_end. */
static pot_status fill(pot_lines *lines, pot_err *err) {
    struct pollfd waits[2] = {{.fd = lines->fd, .events = POLLIN}, {.fd = pot_stop_fd(), .events = POLLIN}};
    for (int ready = 0; ready <= 0;) {
        ready = poll(waits, 2, lines->tend ? TEND_MS : -1);
        if (ready < 0 && errno != EINTR) return pot_fail(err, POT_IO, "cannot wait for input: %s", strerror(errno));
        pot_status status = ready == 0 ? lines->tend(lines->context, err) : POT_OK;
        if (status) return status;
    }
    if (pot_stop_requested()) return pot_fail(err, POT_CANCELLED, "stopped while waiting for input");
    char block[65536];
    ssize_t got = read(lines->fd, block, sizeof block);
    if (got < 0) {
        if (errno == EINTR || errno == EAGAIN) return POT_OK;
        return pot_fail(err, POT_IO, "cannot read standard input: %s", strerror(errno));
    }
    lines->at_end = got == 0;
    pot_buffer_append(&lines->pending, block, (size_t)got);
    if (lines->pending.failed) return pot_fail(err, POT_NO_MEMORY, "not enough memory for the input");
    if (lines->pending.bytes - lines->begin > POT_LINES_MAX_BYTES) {
        return pot_fail(err, POT_LIMIT, "the input has more than %d MiB in one piece", POT_LINES_MAX_BYTES >> 20);
    }
    return POT_OK;
}

pot_status pot_lines_next(pot_lines *lines, const char **line, size_t *bytes, pot_err *err) {
    /* What was given out before goes away now, so that `pending` does not grow with the number of lines. */
    if (lines->begin) {
        memmove(lines->pending.data, lines->pending.data + lines->begin, lines->pending.bytes - lines->begin + 1);
        lines->pending.bytes -= lines->begin;
        lines->begin = lines->scanned = 0;
    }
    while (true) {
        char *start = lines->pending.data;
        char *end = start ? memchr(start + lines->scanned, '\n', lines->pending.bytes - lines->scanned) : NULL;
        if (!end && !lines->at_end) {
            lines->scanned = lines->pending.bytes;
            pot_status status = fill(lines, err);
            if (status) return status;
            continue;
        }
        if (!start || (!end && !lines->pending.bytes)) {
            *line = NULL;
            *bytes = 0;
            return POT_OK;
        }
        *bytes = end ? (size_t)(end - start) : lines->pending.bytes;
        lines->begin = *bytes + (end != NULL);
        start[*bytes] = 0; /* the newline's place, or that of the buffer's own NUL */
        *line = start;
        return POT_OK;
    }
}

pot_status pot_lines_rest(pot_lines *lines, pot_buffer *all, pot_err *err) {
    while (!lines->at_end) {
        pot_status status = fill(lines, err);
        if (status) return status;
    }
    pot_buffer_append(all, lines->pending.data + lines->begin, lines->pending.bytes - lines->begin);
    lines->begin = lines->pending.bytes;
    if (all->failed) return pot_fail(err, POT_NO_MEMORY, "not enough memory for the input");
    return POT_OK;
}

void pot_lines_close(pot_lines *lines) { pot_buffer_free(&lines->pending); }
