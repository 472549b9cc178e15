/* Progress on stderr.  Nothing is shown in the first two seconds, so short work stays silent; after that a terminal
 * line is redrawn ten times a second at most, and a log file gets a line every five seconds. */
#include "common/progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/clock.h"

enum { SILENT_US = 2000000, REDRAW_US = 100000, LINE_US = 5000000 };

static void amount(char *out, size_t size, double value, const char *unit) {
    if (unit) {
        snprintf(out, size, "%.0f", value);
    } else if (value >= 0x1p30) {
        snprintf(out, size, "%.2f GiB", value / 0x1p30);
    } else {
        snprintf(out, size, "%.1f MiB", value / 0x1p20);
    }
}

static void show(pot_progress *p, uint64_t now) {
    char done[32], total[32], rate[32], line[256];
    double seconds = (double)(now - p->started_us) / 1e6;
    double per_second = seconds > 0 ? (double)p->done / seconds : 0;
    amount(done, sizeof done, (double)p->done, p->unit);
    amount(total, sizeof total, (double)p->total, p->unit);
    amount(rate, sizeof rate, per_second, p->unit);
    int n = snprintf(line, sizeof line, "%s%s: %s of %s%s%s, %s/s", p->is_terminal ? "\r" : "", p->what, done, total,
                     p->unit ? " " : "", p->unit ? p->unit : "", rate);
    if (n > 0 && (size_t)n < sizeof line - 48 && p->done < p->total && per_second > 0) {
        n += snprintf(line + n, sizeof line - (size_t)n, ", %.0f s left", (double)(p->total - p->done) / per_second);
    }
    if (n < 0 || (size_t)n >= sizeof line - 8) n = (int)sizeof line - 8;
    memcpy(line + n, p->is_terminal ? "\033[K" : "\n", p->is_terminal ? 4 : 2); /* clears what a longer line left */
    fputs(line, stderr);
    fflush(stderr);
    p->shown_us = now;
}

void pot_progress_begin_count(pot_progress *p, const char *what, uint64_t total, const char *unit, bool quiet) {
    *p = (pot_progress){.what = what,
                        .unit = unit,
                        .total = total,
                        .started_us = pot_now_us(),
                        .quiet = quiet,
                        .is_terminal = isatty(STDERR_FILENO) == 1};
}

void pot_progress_begin(pot_progress *p, const char *what, uint64_t total_bytes, bool quiet) {
    pot_progress_begin_count(p, what, total_bytes, NULL, quiet);
}

void pot_progress_update(pot_progress *p, uint64_t done) {
    p->done = done;
    if (p->quiet) return;
    uint64_t now = pot_now_us();
    if (now - p->started_us < SILENT_US) return;
    if (p->shown_us && now - p->shown_us < (p->is_terminal ? REDRAW_US : LINE_US)) return;
    show(p, now);
}

void pot_progress_end(pot_progress *p) {
    if (p->quiet || !p->shown_us) return;
    show(p, pot_now_us());
    if (p->is_terminal) fputc('\n', stderr);
}
