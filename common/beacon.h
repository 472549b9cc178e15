/* How a running process tells others on its host what it does, without listening to anybody: a small JSON file that it alone rewrites,
 * and that `potluck status` reads.
 *
 * The file is PID.json in $XDG_RUNTIME_DIR/potluck, else in /tmp/potluck-UID: a directory of this user with mode 700, which is checked, and
 * in which no link is ever followed.  It is replaced as a whole, at most once a second, and removed at the end.  One that a killed process
 * left behind is removed by whoever reads next: it names the moment that its process was started, so another process with the same number is no
 * mistake.  All times are those of pot_now_us(), which processes of one host share.
 *
 * A beacon belongs to one thread, and a process has at most one.  Nothing that computes may depend on one: a failure to write is told once, as
 * a warning, and that is all.
 */
#ifndef POT_COMMON_BEACON_H
#define POT_COMMON_BEACON_H

#include <stdint.h>

#include "common/buffer.h"
#include "common/status.h"

#define POT_BEACON_ROLE_MAP(X) X(COORDINATOR, "coordinator") X(WORKER, "worker") X(TOOL, "tool")
#define POT_BEACON_STATE_MAP(X) \
    X(STARTING, "starting") X(LOADING, "loading") X(SERVING, "serving") X(IDLE, "idle") X(ENDING, "ending")
#define X(name, text) POT_BEACON_##name,
typedef enum pot_beacon_role { POT_BEACON_ROLE_MAP(X) POT_BEACON_ROLES } pot_beacon_role;
typedef enum pot_beacon_state { POT_BEACON_STATE_MAP(X) POT_BEACON_STATES } pot_beacon_state;
#undef X
const char *pot_beacon_role_text(pot_beacon_role role);
const char *pot_beacon_state_text(pot_beacon_state state);

#define POT_BEACON_UNKNOWN UINT64_MAX

/* Numbers that its owner fills in, each POT_BEACON_UNKNOWN while it is not known.  `worker` counts from 0 and is the coordinator's own one too.
 * ram_bytes, vram_bytes: of experts, in memory now; owned_bytes: of experts, wherever they are.
 * wanted_units, vram_hits and ram_hits are of steps that were no scans.  These and read_bytes (from disk), tokens and steps count from the start. */
#define POT_BEACON_NUMBER_MAP(X) \
    X(worker)                    \
    X(workers)                   \
    X(load_done_bytes)           \
    X(load_total_bytes)          \
    X(vram_budget_bytes)         \
    X(vram_bytes)                \
    X(ram_budget_bytes)          \
    X(ram_bytes)                 \
    X(owned_bytes)               \
    X(wanted_units)              \
    X(vram_hits)                 \
    X(ram_hits)                  \
    X(read_bytes)                \
    X(tokens)                    \
    X(steps)
/* Over the time between the last two writes; the beacon itself works them out, NaN while it cannot. */
#define POT_BEACON_RATE_MAP(X) X(read_bytes_per_s, read_bytes) X(tokens_per_s, tokens) X(steps_per_s, steps)

typedef struct pot_beacon_facts {
    pot_beacon_role role;
    pot_beacon_state state;
    char model[512];                        /* as the user named it; what is longer loses its beginning */
    char build[32];                         /* version */
    char host[64], policy[16], reading[32]; /* "uring, direct" */
#define X(name) uint64_t name;
    POT_BEACON_NUMBER_MAP(X)
#undef X
    uint64_t since_us; /* when the state began */
    /* The beacon's own: */
    uint64_t started_us, written_us;
#define X(name, count) double name;
    POT_BEACON_RATE_MAP(X)
#undef X
    double hit_rate; /* 0 to 1, of the units wanted since the last write but one */
} pot_beacon_facts;

/* Nothing known but role, state, version and host. */
void pot_beacon_facts_init(pot_beacon_facts *out, pot_beacon_role role, pot_beacon_state state);
void pot_beacon_set_model(pot_beacon_facts *facts, const char *model);

/* ---- the process that tells ---- */

typedef struct pot_beacon pot_beacon;
/* directory: NULL = the usual one, which is made.  Nothing is written yet.  REFUSED when the directory is somebody else's, open to others, or a
 * link. */
pot_status pot_beacon_open(pot_beacon **out, const char *directory, pot_err *err);
void pot_beacon_close(pot_beacon *beacon); /* removes the file; NULL is fine */
/* Whether to write now: a second has passed since the last time, or the state is another and a tenth of a second has.  Cheap; false for
 * NULL. */
bool pot_beacon_due(const pot_beacon *beacon, pot_beacon_state state, uint64_t now_us);
/* Works out the rates and writes, due or not.  NULL is fine. */
void pot_beacon_tell(pot_beacon *beacon, const pot_beacon_facts *facts, uint64_t now_us);
/* The writing alone: replaces the file. */
pot_status pot_beacon_write(pot_beacon *beacon, const char *text, size_t bytes, pot_err *err);

/* ---- the process that reads ---- */

typedef struct pot_beacon_entry {
    int64_t pid;
    pot_beacon_facts facts;
    char *fault; /* NULL, or why the file cannot be understood; facts then hold nothing */
} pot_beacon_entry;
typedef struct pot_beacon_list {
    pot_beacon_entry *entries; /* ascending pids */
    size_t n;
    char *fault; /* NULL, or why a directory was not looked into */
} pot_beacon_list;
/* All live processes of this user that tell.  directory: NULL = both usual places, for a process may have been started from a session with
 * other variables.  Removes what dead processes left. */
pot_status pot_beacon_list_read(pot_beacon_list *out, const char *directory, pot_err *err);
void pot_beacon_list_free(pot_beacon_list *list); /* also an all-zero one */

/* ---- the text, for tests and fuzzing ---- */

/* Who wrote a file: a process by its number, the moment it was started (clock ticks since boot) and its process number space, 0 when unknown. */
typedef struct pot_beacon_owner {
    int64_t pid;
    uint64_t start_ticks, space;
} pot_beacon_owner;
void pot_beacon_format(pot_buffer *out, const pot_beacon_owner *owner, const pot_beacon_facts *facts);
/* Keys that this version does not know are passed over; FORMAT when one that it knows is not what it should be. */
pot_status pot_beacon_parse(pot_beacon_owner *owner, pot_beacon_facts *facts, const char *text, size_t bytes,
                            const char *name, pot_err *err);

#endif
