/* potluck doctor: how the disk reads, in the way of the expert store. */
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "cli/doctor.h"
#include "cli/machine_probe.h"
#include "common/reader.h"

enum { DEPTH = 8, PIECE = 2 << 20 /* about a chunk of GLM-5.2 */ };

static void uring(doctor *d) {
    pot_err err;
    pot_reader *reader = NULL;
    pot_reader_options options = {.engine = POT_READ_ENGINE_URING};
    if (pot_reader_create(&reader, &options, &err)) {
        doctor_say(d, DOCTOR_NOTE, "io_uring",
                   "threads read in its place, a little slower; sysctl kernel.io_uring_disabled=0, or a "
                   "container profile that permits it",
                   "%s", err.text);
    } else {
        doctor_say(d, DOCTOR_GOOD, "io_uring", NULL, "permitted");
    }
    pot_reader_free(reader);
}

static void room(doctor *d, const char *directory) {
    struct statvfs fs;
    if (statvfs(directory, &fs)) return;
    doctor_say(d, DOCTOR_GOOD, "disk", NULL, "%s: %.1f of %.1f GB are free", directory,
               (double)fs.f_bavail * (double)fs.f_frsize / 1e9, (double)fs.f_blocks * (double)fs.f_frsize / 1e9);
}

static void rate(doctor *d, const char *place) {
    pot_err err;
    pot_spread one, all;
    probe_disk *disk = NULL;
    char cache[512];
    bool quick = d->cli->settings->quick;
    const int windows = quick ? 3 : 7;
    const double window_s = quick ? 0.1 : 0.2;
    /* A small model says nothing about a disk, and its directory is no place for scratch files. */
    pot_status status = probe_disk_open(&disk, place, 0, d->cli->settings, &err);
    if (status == POT_LIMIT) {
        probe_cache_directory(cache, sizeof cache);
        status = probe_disk_open(&disk, cache, (uint64_t)(quick ? 256 : 512) << 20, d->cli->settings, &err);
    }
    if (!status) status = probe_disk_rate(&one, disk, 1, PIECE, windows, window_s, &err);
    if (!status) status = probe_disk_rate(&all, disk, DEPTH, PIECE, windows, window_s, &err);
    if (status) {
        doctor_say(d, status == POT_LIMIT ? DOCTOR_NOTE : DOCTOR_BAD, "disk rate",
                   "name a MODEL, or set XDG_CACHE_HOME to a place with room", "%s", err.text);
        probe_disk_close(disk);
        return;
    }
    bool direct = !strcmp(probe_disk_path(disk), "direct");
    bool wanted = strcmp(d->cli->settings->read_path, "cached") != 0;
    if (wanted)
        doctor_say(d, direct ? DOCTOR_GOOD : DOCTOR_NOTE, "O_DIRECT",
                   direct
                       ? NULL
                       : "a local file system (ext4, xfs, btrfs) has it; through the page cache reading takes more CPU",
                   direct ? "works there" : "not on this file system");
    bool slow = all.median < 0.5;
    doctor_say(d, slow ? DOCTOR_NOTE : DOCTOR_GOOD, "disk rate",
               slow ? "keep all experts in RAM (`potluck plan`), or put the model on an NVMe disk" : NULL,
               "%.2f GB/s with %d reads of 2 MiB in flight (%.2f to %.2f), %.2f GB/s with one; %s, %s", all.median,
               DEPTH, all.p10, all.p90, one.median, probe_disk_engine(disk),
               probe_disk_is_scratch(disk) ? "a scratch file" : "the model's files");
    probe_disk_close(disk);
}

void doctor_disk(doctor *d, const char *directory) {
    char cache[512];
    if (!directory) {
        probe_cache_directory(cache, sizeof cache);
        directory = cache;
    }
    uring(d);
    room(d, directory);
    rate(d, directory);
}
