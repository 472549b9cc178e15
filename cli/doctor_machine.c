/* potluck doctor: the cores, how much of them this process may have, and what they can do. */
#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench_probe.h"
#include "cli/doctor.h"
#include "cli/machine_probe.h"
#include "common/system.h"
#include "kernels/kernels.h"

/* ---- looking things up -------------------------------------------------------------------------------------------- */

bool doctor_read_line(char *line, size_t size, const char *path) {
    FILE *file = fopen(path, "re");
    if (!file) return false;
    bool fine = fgets(line, (int)size, file) != NULL;
    fclose(file);
    if (fine) line[strcspn(line, "\n")] = 0;
    return fine;
}

long long doctor_number(const char *path, const char *key, long long fallback) {
    char line[512];
    FILE *file = fopen(path, "re");
    if (!file) return fallback;
    long long value = fallback;
    size_t length = strlen(key);
    while (fgets(line, sizeof line, file))
        if (!strncmp(line, key, length) && sscanf(line + length, "%lld", &value) == 1) break;
    fclose(file);
    return value;
}

bool doctor_has_entries(const char *directory) {
    DIR *dir = opendir(directory);
    if (!dir) return false;
    bool found = false;
    for (struct dirent *e; !found && (e = readdir(dir));) found = e->d_name[0] != '.';
    closedir(dir);
    return found;
}

static int count_entries(const char *directory, const char *prefix) {
    DIR *dir = opendir(directory);
    if (!dir) return 0;
    int n = 0;
    size_t length = strlen(prefix);
    for (struct dirent *e; (e = readdir(dir));)
        n += !strncmp(e->d_name, prefix, length) && e->d_name[length] >= '0' && e->d_name[length] <= '9';
    closedir(dir);
    return n;
}

/* ---- how many ----------------------------------------------------------------------------------------------------- */

static int cpus_now(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    return sched_getaffinity(0, sizeof set, &set) ? 0 : CPU_COUNT(&set);
}

static void binding(doctor *d) {
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    int bound = cpus_now(), widened = pot_cpus_widen();
    char cpu[128];
    pot_roof_cpu(cpu, sizeof cpu);
    int cores = pot_cpus_physical();
    doctor_say(d, DOCTOR_GOOD, "cores", NULL, "%d core%s%s (%d CPU%s), %s", cores, cores == 1 ? "" : "s",
               widened > cores ? " with several threads each; potluck computes with one on each" : "", widened,
               widened == 1 ? "" : "s", cpu);
    if (bound && widened > bound) {
        doctor_say(d, DOCTOR_NOTE, "binding", "mpirun --bind-to none leaves it out; --keep-binding keeps it",
                   "the launcher bound this process to %d of %d CPUs; potluck widens that when it runs", bound,
                   widened);
    } else if (widened < online) {
        doctor_say(d, DOCTOR_NOTE, "binding", "look at taskset, the cpuset of a container, or Slurm's --cpus-per-task",
                   "this process may use %d of the machine's %ld CPUs", widened, online);
    } else {
        doctor_say(d, DOCTOR_GOOD, "binding", NULL, "all CPUs may be used");
    }
    const char *threads = getenv("OMP_NUM_THREADS");
    if (threads && atoi(threads) != cores)
        doctor_say(d, DOCTOR_NOTE, "threads", "unset OMP_NUM_THREADS, unless that is meant; --threads goes before it",
                   "OMP_NUM_THREADS is %s, there are %d cores", threads, cores);
    int nodes = count_entries("/sys/devices/system/node", "node");
    if (nodes > 1)
        doctor_say(d, DOCTOR_NOTE, "NUMA", "try one rank for each node: mpirun --map-by numa, and compare",
                   "%d nodes: half of the memory or more is far from each core", nodes);
}

/* CPUs' worth of time that a cgroup allows; 0 = no limit. */
static double quota_of(const char *folder) {
    char path[700], line[128];
    double quota = 0, period = 0;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (doctor_read_line(line, sizeof line, path))
        return sscanf(line, "%lf %lf", &quota, &period) == 2 && period > 0 ? quota / period : 0;
    snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
    if (doctor_read_line(line, sizeof line, path)) quota = atof(line);
    snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
    if (doctor_read_line(line, sizeof line, path)) period = atof(line);
    return quota > 0 && period > 0 ? quota / period : 0;
}

/* The least along the way from our own cgroup to the top; in a container the path may be the host's, then the top alone counts. */
static double walk_quota(const char *mount, const char *path) {
    char folder[600];
    double least = 0;
    snprintf(folder, sizeof folder, "%s%s", mount, path);
    for (;;) {
        double quota = quota_of(folder);
        if (quota > 0 && (least <= 0 || quota < least)) least = quota;
        char *slash = strrchr(folder, '/');
        if (!slash || (size_t)(slash - folder) < strlen(mount)) return least;
        *slash = 0;
    }
}

static void quota(doctor *d) {
    char line[512];
    double least = 0;
    FILE *file = fopen("/proc/self/cgroup", "re");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!path) continue;
        *path++ = 0;
        if (!strcmp(path, "/")) path++;
        controllers++;
        bool cpu =
            !strcmp(controllers, "cpu") || strstr(controllers, "cpu,") == controllers || strstr(controllers, ",cpu,");
        double found = !*controllers ? walk_quota("/sys/fs/cgroup", path)
                       : cpu         ? walk_quota("/sys/fs/cgroup/cpu", path)
                                     : 0;
        if (found > 0 && (least <= 0 || found < least)) least = found;
    }
    if (file) fclose(file);
    int threads = pot_threads_choose((int)d->cli->settings->threads, 1);
    if (least <= 0) {
        doctor_say(d, DOCTOR_GOOD, "CPU quota", NULL, "none");
    } else if (least < threads) {
        doctor_say(
            d, DOCTOR_BAD, "CPU quota",
            "raise it (docker --cpus, CPUQuota= of a systemd unit), or take fewer --threads",
            "this cgroup gets the time of %.2f CPUs, but potluck would start %d threads: they would be stopped again "
            "and again",
            least, threads);
    } else {
        doctor_say(d, DOCTOR_GOOD, "CPU quota", NULL, "the time of %.2f CPUs, enough for %d threads", least, threads);
    }
}

/* ---- what they can do --------------------------------------------------------------------------------------------- */

static void instructions(doctor *d) {
    enum { MAX_TABLES = 16 };
    const pot_kernels *usable[MAX_TABLES], *chosen;
    pot_err err;
    char list[256] = "";
    int n = pot_kernels_list(usable, MAX_TABLES);
    for (int i = 0; i < n; i++) {
        size_t used = strlen(list);
        snprintf(list + used, sizeof list - used, "%s%s", i ? " " : "", usable[i]->name);
    }
    if (pot_kernels_pick(&chosen, d->cli->settings->kernels, &err)) {
        doctor_say(d, DOCTOR_BAD, "kernels", "leave --kernels at auto", "%s", err.text);
    } else if (!strcmp(chosen->name, "generic")) {
        doctor_say(d, DOCTOR_NOTE, "kernels",
                   n > 1 ? "leave --kernels at auto" : "a CPU with AVX2 or NEON is many times faster",
                   "generic, the slow one, of %s", list);
    } else {
        doctor_say(d, strcmp(chosen->name, usable[n - 1]->name) != 0 ? DOCTOR_NOTE : DOCTOR_GOOD, "kernels", NULL,
                   "%s, of %s", chosen->name, list);
    }
}

static void governor(doctor *d) {
    char name[64], driver[64] = "";
    if (!doctor_read_line(name, sizeof name, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")) {
        doctor_say(d, DOCTOR_GOOD, "clock", NULL, "not ours to set (no cpufreq here, as in most virtual machines)");
        return;
    }
    doctor_read_line(driver, sizeof driver, "/sys/devices/system/cpu/cpu0/cpufreq/scaling_driver");
    long long khz = doctor_number("/sys/devices/system/cpu/cpu0/cpufreq/scaling_max_freq", "", 0);
    long long most = doctor_number("/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq", "", khz);
    /* The drivers that choose the clock in hardware call their ordinary mode so. */
    bool hardware = strstr(driver, "pstate") != NULL;
    bool slow = khz < most || (!strcmp(name, "powersave") && !hardware);
    doctor_say(d, slow ? DOCTOR_NOTE : DOCTOR_GOOD, "clock",
               slow ? "cpupower frequency-set -g performance, while potluck runs" : NULL,
               "governor %s (%s), up to %.2f of %.2f GHz", name, driver, (double)khz / 1e6, (double)most / 1e6);
}

static void load(doctor *d) {
    double busy = probe_busy();
    if (busy > 0)
        doctor_say(d, DOCTOR_NOTE, "load", "look at top, and measure again when it is quiet",
                   "%.1f other programs want a core just now: the rates below are lower than the machine's", busy);
}

void doctor_cores(doctor *d) {
    load(d);
    binding(d);
    quota(d);
    instructions(d);
    governor(d);
}
