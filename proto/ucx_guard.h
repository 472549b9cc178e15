/* What UCX leaves open: where its log goes, and whether bytes are an address before it trusts them. */
#ifndef POT_PROTO_UCX_GUARD_H
#define POT_PROTO_UCX_GUARD_H

#include "common/status.h"
#include "proto/transport.h"

/* UCX writes its log to stdout, where only results belong: from the first call on it goes to ours. */
void pot_ucx_log_redirect(void);

/* An address with a seal behind it: mark, UCX version, checksum.  out->bytes is owned: pot_free. */
pot_status pot_ucx_address_seal(pot_blob *out, pot_blob address, pot_err *err);
/* Only sealed bytes may reach ucp_ep_create(), which aborts the process on others (UCX 1.13.1).  UCX reads from the front and needs
 * no length, so `sealed.bytes` is the address. */
pot_status pot_ucx_address_check(pot_blob sealed, pot_err *err);

#endif
