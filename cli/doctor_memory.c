/* potluck doctor: memory, what the system lets a process do with it, and how fast it is. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "cli/doctor.h"
#include "cli/machine_probe.h"
#include "common/mem.h"

static double gib(uint64_t bytes) { return (double)bytes / 0x1p30; }

static void size(doctor *d) {
    pot_memory_info m;
    pot_memory_read(&m);
    char limit[96] = "";
    if (m.cgroup_limit_bytes != UINT64_MAX)
        snprintf(limit, sizeof limit, ", a cgroup allows %.2f GiB", gib(m.cgroup_limit_bytes));
    bool short_of = m.usable_bytes < UINT64_C(2) << 30;
    doctor_say(d, short_of ? DOCTOR_BAD : DOCTOR_GOOD, "memory",
               short_of ? "end other programs, or raise the limit (docker --memory, MemoryMax= of a systemd unit)"
                        : NULL,
               "%.2f GiB, %.2f GiB of them free for potluck%s", gib(m.total_bytes), gib(m.usable_bytes), limit);
}

static void huge_pages(doctor *d) {
    char line[128];
    const char *path = "/sys/kernel/mm/transparent_hugepage/enabled";
    if (!doctor_read_line(line, sizeof line, path)) {
        doctor_say(d, DOCTOR_NOTE, "huge pages", NULL, "this kernel has none: reading weights is about a tenth slower");
    } else if (strstr(line, "[never]")) {
        doctor_say(d, DOCTOR_BAD, "huge pages", "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
                   "off: reading weights is 10 to 17%% slower");
    } else {
        doctor_say(d, DOCTOR_GOOD, "huge pages", NULL, "%s",
                   strstr(line, "[always]") ? "always" : "where they are asked for");
    }
}

static void swap(doctor *d) {
    long long total = doctor_number("/proc/meminfo", "SwapTotal:", 0) * 1024;
    long long left = doctor_number("/proc/meminfo", "SwapFree:", 0) * 1024;
    if (!total) {
        doctor_say(d, DOCTOR_GOOD, "swap", NULL, "none");
    } else if (total - left > (256ll << 20)) {
        doctor_say(d, DOCTOR_NOTE, "swap",
                   "end what fills the memory, or sudo swapoff -a: weights in swap are slower than on disk",
                   "%.2f of %.2f GiB are in use", gib((uint64_t)(total - left)), gib((uint64_t)total));
    } else {
        doctor_say(d, DOCTOR_GOOD, "swap", NULL, "%.2f GiB, hardly used", gib((uint64_t)total));
    }
}

static void locked(doctor *d) {
    struct rlimit r = {0};
    if (getrlimit(RLIMIT_MEMLOCK, &r)) return;
    /* Network cards that write to memory need it pinned; nothing else does. */
    bool rdma = doctor_has_entries("/sys/class/infiniband");
    if (r.rlim_cur == RLIM_INFINITY) {
        doctor_say(d, DOCTOR_GOOD, "memlock", NULL, "unlimited");
    } else {
        doctor_say(d, rdma ? DOCTOR_BAD : DOCTOR_GOOD, "memlock",
                   rdma
                       ? "`* - memlock unlimited` in /etc/security/limits.conf, LimitMEMLOCK=infinity in a systemd unit"
                       : NULL,
                   "%llu KiB, %s", (unsigned long long)(r.rlim_cur >> 10),
                   rdma ? "but RDMA needs all that it sends to be locked" : "enough without RDMA");
    }
}

static void descriptors(doctor *d) {
    struct rlimit r = {0};
    if (getrlimit(RLIMIT_NOFILE, &r)) return;
    /* A file for each layer (two with O_DIRECT), sockets for each peer, and what MPI takes. */
    bool few = r.rlim_cur < 512;
    doctor_say(d, few ? DOCTOR_BAD : DOCTOR_GOOD, "open files", few ? "ulimit -n 4096 before potluck is started" : NULL,
               few ? "%llu are allowed, a large model on a cluster takes some 400" : "%llu are allowed",
               (unsigned long long)r.rlim_cur);
}

static void shared(doctor *d) {
    struct statvfs fs;
    if (statvfs("/dev/shm", &fs)) {
        doctor_say(d, DOCTOR_NOTE, "/dev/shm", NULL, "there is none: processes of this machine talk over TCP");
        return;
    }
    uint64_t bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
    bool small = bytes < UINT64_C(256) << 20;
    doctor_say(d, small ? DOCTOR_BAD : DOCTOR_GOOD, "/dev/shm",
               small ? "docker run --shm-size=1g, or --ipc=host" : NULL,
               small ? "%.2f GiB free: several processes on this machine can end with a bus error" : "%.2f GiB free",
               gib(bytes));
}

static void bandwidth(doctor *d) {
    pot_err err;
    probe_memory m;
    if (probe_memory_measure(&m, d->cli->settings, d->cli->settings->quick ? 0.6 : 2, &err)) {
        doctor_say(d, DOCTOR_NOTE, "RAM rate", NULL, "%s", err.text);
        return;
    }
    bool slow = m.ram_gb_per_s.median < 8;
    double lost = 1 - m.dense_gb_per_s.median / m.ram_gb_per_s.median;
    doctor_say(d, slow ? DOCTOR_NOTE : DOCTOR_GOOD, "RAM rate",
               slow ? "other programs? one memory module in place of two? a clock that is held down?" : NULL,
               "%.1f GB/s with %d threads (%.1f to %.1f); a token of GLM-5.2 reads about 12 GB", m.ram_gb_per_s.median,
               m.threads, m.ram_gb_per_s.p10, m.ram_gb_per_s.p90);
    doctor_say(
        d, lost > 0.4 ? DOCTOR_NOTE : DOCTOR_GOOD, "compute",
        lost > 0.4 ? "more --threads, or a CPU with wider instructions; `potluck bench kernels` tells more" : NULL,
        "4-bit weights are multiplied at %.1f GB/s, f32 at %.0f Gop/s", m.dense_gb_per_s.median, m.gop_per_s.median);
}

void doctor_memory(doctor *d) {
    size(d);
    huge_pages(d);
    swap(d);
    locked(d);
    descriptors(d);
    shared(d);
    bandwidth(d);
}
