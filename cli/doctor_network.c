/* potluck doctor: what the other machines are reached through, and the GPU.  What can go wrong between machines is known from many reports
 * (docs/cluster.md); here is what one machine alone can tell. */
#include <dirent.h>
#include <ifaddrs.h>
#include <mpi.h>
#include <net/if.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#include "cli/doctor.h"
#include "kernels/cuda/cuda.h"
#include "worker/device.h"

/* ---- UCX ---------------------------------------------------------------------------------------------------------- */

/* UCX tells its transports only as a page for people: lines that end with "TRANSPORT/DEVICE".  Lists each once. */
static void pick_transports(char *out, size_t size, char *page) {
    char *rest;
    for (char *line = strtok_r(page, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *name = strstr(line, " resource ") ? strrchr(line, ' ') : NULL;
        if (!name || !strchr(++name, '/') || strstr(out, name)) continue;
        size_t used = strlen(out);
        snprintf(out + used, size - used, "%s%s", used ? " " : "", name);
    }
}

static bool transports(char *out, size_t size, pot_err *err) {
    char *page = NULL;
    size_t bytes;
    ucp_context_h context;
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES, .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    ucs_status_t status = ucp_init(&params, NULL, &context);
    if (status != UCS_OK) {
        pot_fail(err, POT_ERROR, "UCX %s does not start: %s", ucp_get_version_string(), ucs_status_string(status));
        return false;
    }
    FILE *memory = open_memstream(&page, &bytes);
    if (memory) {
        ucp_context_print_info(context, memory);
        fclose(memory);
    }
    *out = 0;
    if (page) pick_transports(out, size, page);
    free(page);
    ucp_cleanup(context);
    return true;
}

static void ucx(doctor *d) {
    char list[512];
    pot_err err;
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    if (!transports(list, sizeof list, &err)) {
        doctor_say(d, DOCTOR_BAD, "UCX", "unset the UCX_ variables of this shell, or see what ucx_info -d says", "%s",
                   err.text);
        return;
    }
    bool same = major == UCP_API_MAJOR && minor == UCP_API_MINOR;
    doctor_say(d, same ? DOCTOR_GOOD : DOCTOR_NOTE, "UCX",
               same ? NULL : "build potluck where it runs; all machines should have one version of UCX",
               "%u.%u.%u, built with %d.%d: %s", major, minor, release, UCP_API_MAJOR, UCP_API_MINOR,
               *list ? list : "its transports are not known");
    if (*list && !strstr(list, "tcp/") && !strstr(list, "rc_") && !strstr(list, "ud_"))
        doctor_say(d, DOCTOR_BAD, "transports", "unset UCX_TLS and UCX_NET_DEVICES, or add tcp and a card to them",
                   "nothing there reaches another machine");
    if (*list && !strstr(list, "sysv/") && !strstr(list, "posix/"))
        doctor_say(d, DOCTOR_NOTE, "transports", "add sysv,posix to UCX_TLS",
                   "no shared memory: processes of this machine talk over TCP");
    if (getenv("UCX_RNDV_THRESH"))
        doctor_say(d, DOCTOR_NOTE, "UCX", "unset UCX_RNDV_THRESH",
                   "UCX_RNDV_THRESH is set: small messages may take longer");
}

/* ---- cards -------------------------------------------------------------------------------------------------------- */

static bool is_virtual(const char *name) {
    static const char *const prefixes[] = {"docker",  "virbr", "veth",    "br-", "vmnet",
                                           "vboxnet", "cni",   "flannel", "lxc"};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i]))) return true;
    return false;
}

static void card(doctor *d, const char *name) {
    char path[128], line[32];
    struct stat st;
    snprintf(path, sizeof path, "/sys/class/net/%s/wireless", name);
    bool wireless = !stat(path, &st);
    snprintf(path, sizeof path, "/sys/class/net/%s/speed", name);
    long mbit = doctor_read_line(line, sizeof line, path) ? atol(line) : -1;
    if (wireless) {
        doctor_say(d, DOCTOR_NOTE, "network", "a cable: each of some 78 layers waits for a message there and back",
                   "%s, Wi-Fi", name);
    } else if (mbit <= 0) {
        doctor_say(d, DOCTOR_GOOD, "network", NULL, "%s, its speed is not known", name);
    } else {
        doctor_say(d, mbit < 1000 ? DOCTOR_NOTE : DOCTOR_GOOD, "network",
                   mbit < 1000 ? "look at the cable and the switch, both ends can do more" : NULL, "%s, %ld Mbit/s",
                   name, mbit);
    }
}

static void cards(doctor *d) {
    struct ifaddrs *all, *i, *j;
    char virtual[256] = "", real[256] = "";
    if (getifaddrs(&all)) return;
    for (i = all; i; i = i->ifa_next) {
        int family = i->ifa_addr ? i->ifa_addr->sa_family : 0;
        if ((family != AF_INET && family != AF_INET6) || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK))
            continue;
        for (j = all; j != i; j = j->ifa_next) /* a card with several addresses is one card */
            if (!strcmp(i->ifa_name, j->ifa_name) && j->ifa_addr &&
                (j->ifa_addr->sa_family == AF_INET || j->ifa_addr->sa_family == AF_INET6))
                break;
        if (j != i) continue;
        char *list = is_virtual(i->ifa_name) ? virtual : real;
        size_t used = strlen(list);
        snprintf(list + used, sizeof virtual - used, "%s%s", used ? "," : "", i->ifa_name);
        if (list == real) card(d, i->ifa_name);
    }
    freeifaddrs(all);
    if (!*real) doctor_say(d, DOCTOR_NOTE, "network", NULL, "no card is up: this machine can only work alone");
    if (*virtual && !getenv("UCX_NET_DEVICES")) {
        char advice[400];
        snprintf(advice, sizeof advice, "for a cluster: export UCX_NET_DEVICES=%s, on each machine its own",
                 *real ? real : "CARD");
        doctor_say(d, DOCTOR_NOTE, "network", advice,
                   "%s lead to no other machine, but UCX and MPI may choose them and wait for ever", virtual);
    }
}

/* ---- MPI ---------------------------------------------------------------------------------------------------------- */

static bool on_path(const char *program) {
    const char *path = getenv("PATH");
    char file[1024];
    while (path && *path) {
        size_t length = strcspn(path, ":");
        snprintf(file, sizeof file, "%.*s/%s", (int)length, path, program);
        if (length && !access(file, X_OK)) return true;
        path += length + (path[length] == ':');
    }
    return false;
}

/* What killed processes of this user left in /dev/shm. */
static int left_over(void) {
    DIR *dir = opendir("/dev/shm");
    struct stat st;
    int n = 0;
    for (struct dirent *e; dir && (e = readdir(dir));)
        n += !strncmp(e->d_name, "vader_segment.", 14) && !fstatat(dirfd(dir), e->d_name, &st, 0) &&
             st.st_uid == geteuid();
    if (dir) closedir(dir);
    return n;
}

static void mpi(doctor *d) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(version, &length); /* allowed before MPI_Init */
    version[strcspn(version, ",\n")] = 0;
    if (!on_path("mpirun")) {
        doctor_say(d, DOCTOR_NOTE, "MPI", "`make deps` installs it", "%s, but no mpirun on the PATH: one machine only",
                   version);
    } else {
        doctor_say(d, DOCTOR_GOOD, "MPI", NULL, "%s; all machines should have the same", version);
    }
    if (!on_path("ssh"))
        doctor_say(d, DOCTOR_NOTE, "ssh", "install openssh-client, if this machine is to start others",
                   "not on the PATH");
    int n = left_over();
    if (n > 8)
        doctor_say(d, DOCTOR_NOTE, "/dev/shm", "when nothing runs: rm /dev/shm/vader_segment.*",
                   "%d files of MPI programs, "
                   "some perhaps of killed ones",
                   n);
}

void doctor_network(doctor *d) {
    ucx(d);
    cards(d);
    mpi(d);
}

/* ---- GPU ---------------------------------------------------------------------------------------------------------- */

void doctor_gpu(doctor *d) {
    char line[256];
    bool driver = doctor_read_line(line, sizeof line, "/proc/driver/nvidia/version");
    pot_err err;
    pot_device *device = NULL;
    if (pot_device_open(&device, UINT64_MAX, 0, 1, &err)) {
        doctor_say(d, DOCTOR_BAD, "GPU", "nvidia-smi; --vram 0 leaves it alone", "%s", err.text);
    } else if (device) {
        doctor_say(d, DOCTOR_GOOD, "GPU", NULL, "%s, %.2f GiB for experts%s", pot_device_name(device),
                   (double)pot_device_bytes(device) / 0x1p30,
                   pot_device_shares_memory(device) ? ", which are part of the RAM" : "");
    } else if (driver) {
#ifdef POT_HAVE_CUDA
        doctor_say(d, DOCTOR_BAD, "GPU",
                   "nvidia-smi; a driver that is older than the CUDA of this build cannot be used",
                   "there is a driver (%s), but no device that can be used", line);
#else
        doctor_say(d, DOCTOR_NOTE, "GPU", "make CUDA=1, with the CUDA toolkit",
                   "there is a driver, but this potluck is built without CUDA: %s", line);
#endif
    } else {
        doctor_say(d, DOCTOR_GOOD, "GPU", NULL, "none");
    }
    pot_device_close(device);
}
