/* The seal is 16 bytes: "PTUA", u16 major and minor version of UCX, u64 checksum of all before it; in the byte order of the host,
 * because a host of the other order could not use the address either. */
#include "proto/ucx_guard.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include <ucp/api/ucp.h>
#include <ucs/debug/log_def.h>

#include "common/hash.h"
#include "common/log.h"
#include "common/mem.h"

/* ---- log ---------------------------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 6, 0))) static ucs_log_func_rc_t on_log(const char *file, unsigned line,
                                                                      const char *function, ucs_log_level_t level,
                                                                      const ucs_log_component_config_t *component,
                                                                      const char *format, va_list arguments) {
    (void)file;
    (void)line;
    (void)function;
    (void)component;
    char text[512];
    vsnprintf(text, sizeof text, format, arguments);
    if (level > UCS_LOG_LEVEL_WARN)
        pot_log_write(POT_LOG_INFO, "ucx", "%s", text); /* somebody set UCX_LOG_LEVEL to read it */
    else if (strstr(text, "MM_ERROR_HANDLING"))
        POT_LOG(POT_LOG_DEBUG, "ucx", "%s", text); /* our own setting, where the user has turned shared memory off */
    else
        POT_LOG(level == UCS_LOG_LEVEL_FATAL ? POT_LOG_ERROR : POT_LOG_WARN, "ucx", "%s", text);
    return UCS_LOG_FUNC_RC_STOP;
}

static void push_handler(void) { ucs_log_push_handler(on_log); }

void pot_ucx_log_redirect(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, push_handler);
}

/* ---- addresses ---------------------------------------------------------------------------------------------------------------- */

typedef struct seal {
    char mark[4];
    uint16_t major, minor;
    uint64_t checksum;
} seal;

static const char seal_mark[4] = {'P', 'T', 'U', 'A'};

static seal own_seal(void) {
    unsigned major, minor, release;
    ucp_get_version(&major, &minor, &release);
    seal s = {.major = (uint16_t)major, .minor = (uint16_t)minor};
    memcpy(s.mark, seal_mark, sizeof s.mark);
    return s;
}

pot_status pot_ucx_address_seal(pot_blob *out, pot_blob address, pot_err *err) {
    seal s = own_seal();
    uint8_t *bytes = pot_alloc(address.n_bytes + sizeof s);
    if (!bytes) return pot_fail(err, POT_NO_MEMORY, "no memory for an address of %zu bytes", address.n_bytes);
    memcpy(bytes, address.bytes, address.n_bytes);
    memcpy(bytes + address.n_bytes, &s, offsetof(seal, checksum));
    s.checksum = pot_hash64(bytes, address.n_bytes + offsetof(seal, checksum));
    memcpy(bytes + address.n_bytes, &s, sizeof s);
    *out = (pot_blob){bytes, address.n_bytes + sizeof s};
    return POT_OK;
}

pot_status pot_ucx_address_check(pot_blob sealed, pot_err *err) {
    seal s, own = own_seal();
    if (sealed.n_bytes <= sizeof s)
        return pot_fail(err, POT_FORMAT, "%zu bytes are too few for a UCX address", sealed.n_bytes);
    size_t n = sealed.n_bytes - sizeof s;
    memcpy(&s, (const uint8_t *)sealed.bytes + n, sizeof s);
    if (memcmp(s.mark, seal_mark, sizeof s.mark) != 0 ||
        s.checksum != pot_hash64(sealed.bytes, n + offsetof(seal, checksum)))
        return pot_fail(err, POT_FORMAT, "%zu bytes that are no address of this program, or were changed on the way",
                        sealed.n_bytes);
    if (s.major != own.major)
        return pot_fail(err, POT_REFUSED, "it uses UCX %u.%u, this process %u.%u: their addresses differ", s.major,
                        s.minor, own.major, own.minor);
    if (s.minor != own.minor)
        POT_LOG(POT_LOG_WARN, "proto.ucx",
                "a peer uses UCX %u.%u, this process %u.%u: if they do not meet, use one version", s.major, s.minor,
                own.major, own.minor);
    return POT_OK;
}
