/* What `potluck status` reads: another process's file, which may be anything. */
#include "common/beacon.h"
#include "common/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    pot_err err;
    pot_beacon_owner owner, again_owner;
    static pot_beacon_facts facts, again;
    if (pot_beacon_parse(&owner, &facts, (const char *)data, size, "fuzz", &err)) return 0;
    /* What was understood can be written and is understood again. */
    pot_buffer text = {0};
    pot_beacon_format(&text, &owner, &facts);
    if (!text.failed) POT_ASSERT(!pot_beacon_parse(&again_owner, &again, text.data, text.bytes, "again", &err));
    pot_buffer_free(&text);
    return 0;
}
