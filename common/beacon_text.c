/* Facts to JSON and back.  What is not known is left out, so that an older reader, or a newer one, sees "not known" and nothing wrong. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/beacon.h"
#include "common/json.h"
#include "common/system.h"

enum { VERSION = 1 };

static const char *const roles[] = {
#define X(name, text) text,
    POT_BEACON_ROLE_MAP(X)
#undef X
};
static const char *const states[] = {
#define X(name, text) text,
    POT_BEACON_STATE_MAP(X)
#undef X
};

const char *pot_beacon_role_text(pot_beacon_role role) {
    return (unsigned)role < POT_BEACON_ROLES ? roles[role] : "unknown";
}
const char *pot_beacon_state_text(pot_beacon_state state) {
    return (unsigned)state < POT_BEACON_STATES ? states[state] : "unknown";
}

static void know_nothing(pot_beacon_facts *out) {
    *out = (pot_beacon_facts){.since_us = POT_BEACON_UNKNOWN,
                              .started_us = POT_BEACON_UNKNOWN,
                              .written_us = POT_BEACON_UNKNOWN,
                              .hit_rate = NAN};
#define X(name) out->name = POT_BEACON_UNKNOWN;
    POT_BEACON_NUMBER_MAP(X)
#undef X
#define X(name, count) out->name = NAN;
    POT_BEACON_RATE_MAP(X)
#undef X
}

void pot_beacon_facts_init(pot_beacon_facts *out, pot_beacon_role role, pot_beacon_state state) {
    know_nothing(out);
    out->role = role;
    out->state = state;
    snprintf(out->build, sizeof out->build, "%s", POT_VERSION);
    snprintf(out->host, sizeof out->host, "%.63s", pot_host_name());
}

/* Cut at the front, where the same directories stand in every path; at the start of a character. */
void pot_beacon_set_model(pot_beacon_facts *facts, const char *model) {
    size_t length = strlen(model), room = sizeof facts->model - 1;
    if (length > room) model += length - room;
    while (length > room && (*model & 0xC0) == 0x80) model++;
    snprintf(facts->model, sizeof facts->model, "%s", model);
}

/* ---- writing -------------------------------------------------------------------------------------------------------------- */

static void put_text(pot_buffer *out, const char *key, const char *text) {
    if (!*text) return;
    pot_buffer_format(out, ", \"%s\": ", key);
    pot_json_quote(out, text, strlen(text));
}

static void put_number(pot_buffer *out, const char *key, uint64_t value) {
    if (value <= INT64_MAX) pot_buffer_format(out, ", \"%s\": %" PRIu64, key, value);
}

static void put_rate(pot_buffer *out, const char *key, double value) {
    if (isfinite(value)) pot_buffer_format(out, ", \"%s\": %.6f", key, value);
}

void pot_beacon_format(pot_buffer *out, const pot_beacon_owner *owner, const pot_beacon_facts *facts) {
    pot_buffer_format(out, "{\"potluck\": %d, \"pid\": %" PRId64, VERSION, owner->pid);
    put_number(out, "start_ticks", owner->start_ticks);
    put_number(out, "space", owner->space);
    put_text(out, "role", pot_beacon_role_text(facts->role));
    put_text(out, "state", pot_beacon_state_text(facts->state));
    put_text(out, "model", facts->model);
    put_text(out, "build", facts->build);
    put_text(out, "host", facts->host);
    put_text(out, "policy", facts->policy);
    put_text(out, "reading", facts->reading);
#define X(name) put_number(out, #name, facts->name);
    POT_BEACON_NUMBER_MAP(X)
#undef X
    put_number(out, "since_us", facts->since_us);
    put_number(out, "started_us", facts->started_us);
    put_number(out, "written_us", facts->written_us);
#define X(name, count) put_rate(out, #name, facts->name);
    POT_BEACON_RATE_MAP(X)
#undef X
    put_rate(out, "hit_rate", facts->hit_rate);
    pot_buffer_text(out, "}\n");
}

/* ---- reading -------------------------------------------------------------------------------------------------------------- */

/* What is being read, and the first fault; after one every getter does nothing. */
typedef struct reading {
    const json_t *object;
    const char *name;
    pot_status status;
    pot_err *err;
} reading;

static void get_number(uint64_t *out, reading *r, const char *key, bool required) {
    int64_t value = -1;
    if (r->status) return;
    r->status = pot_json_int(&value, r->object, key, 0, INT64_MAX, required, r->name, r->err);
    if (!r->status && value >= 0) *out = (uint64_t)value;
}

static void get_rate(double *out, reading *r, const char *key) {
    if (!r->status) r->status = pot_json_double(out, r->object, key, 0, 1e18, false, r->name, r->err);
}

static void get_text(char *out, size_t size, reading *r, const char *key) {
    const char *text = NULL;
    if (r->status) return;
    r->status = pot_json_string(&text, r->object, key, false, r->name, r->err);
    if (r->status || !text) return;
    if (strlen(text) >= size)
        r->status = pot_fail(r->err, POT_FORMAT, "%s: `%s` has %zu bytes, at most %zu were expected", r->name, key,
                             strlen(text), size - 1);
    else
        memcpy(out, text, strlen(text) + 1);
}

static unsigned get_word(reading *r, const char *key, const char *const *words, unsigned n) {
    const char *text = NULL;
    if (r->status) return 0;
    r->status = pot_json_string(&text, r->object, key, true, r->name, r->err);
    for (unsigned i = 0; !r->status && i < n; i++)
        if (!strcmp(words[i], text)) return i;
    if (!r->status)
        r->status =
            pot_fail(r->err, POT_FORMAT, "%s: `%s` is \"%.40s\", which this version does not know", r->name, key, text);
    return 0;
}

static void read_facts(pot_beacon_facts *facts, reading *r) {
    facts->role = (pot_beacon_role)get_word(r, "role", roles, POT_BEACON_ROLES);
    facts->state = (pot_beacon_state)get_word(r, "state", states, POT_BEACON_STATES);
    get_text(facts->model, sizeof facts->model, r, "model");
    get_text(facts->build, sizeof facts->build, r, "build");
    get_text(facts->host, sizeof facts->host, r, "host");
    get_text(facts->policy, sizeof facts->policy, r, "policy");
    get_text(facts->reading, sizeof facts->reading, r, "reading");
#define X(name) get_number(&facts->name, r, #name, false);
    POT_BEACON_NUMBER_MAP(X)
#undef X
    get_number(&facts->since_us, r, "since_us", false);
    get_number(&facts->started_us, r, "started_us", false);
    get_number(&facts->written_us, r, "written_us", true);
#define X(name, count) get_rate(&facts->name, r, #name);
    POT_BEACON_RATE_MAP(X)
#undef X
    get_rate(&facts->hit_rate, r, "hit_rate");
}

pot_status pot_beacon_parse(pot_beacon_owner *owner, pot_beacon_facts *facts, const char *text, size_t bytes,
                            const char *name, pot_err *err) {
    json_t *object = NULL;
    pot_status status = pot_json_parse(&object, text, bytes, name, err);
    if (status) return status;
    reading r = {.object = object, .name = name, .err = err};
    pot_beacon_owner who = {0};
    pot_beacon_facts found;
    int64_t version = 0, pid = 0;
    know_nothing(&found);
    r.status = pot_json_int(&version, object, "potluck", VERSION, VERSION, true, name, err);
    if (!r.status) r.status = pot_json_int(&pid, object, "pid", 1, INT32_MAX, true, name, err);
    who.pid = pid;
    get_number(&who.start_ticks, &r, "start_ticks", true);
    get_number(&who.space, &r, "space", false);
    read_facts(&found, &r);
    json_decref(object);
    if (r.status) return r.status;
    *owner = who;
    *facts = found;
    return POT_OK;
}
