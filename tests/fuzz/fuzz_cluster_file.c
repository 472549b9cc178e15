/* A cluster file, written by hand or by anybody's machine. */
#include <string.h>

#include "common/mem.h"
#include "placement/cluster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static pot_machines machines, again;
    pot_err err;
    pot_buffer text = {0}, same = {0};
    if (pot_machines_parse(&machines, (const char *)data, size, "fuzz", &err)) return 0;
    /* What was understood can be written, is understood again, and is then written the same way. */
    pot_machines_format(&text, &machines);
    POT_ASSERT(!pot_machines_parse(&again, text.data, text.bytes, "again", &err));
    pot_machines_format(&same, &again);
    POT_ASSERT(text.failed || same.failed || (text.bytes == same.bytes && !memcmp(text.data, same.data, text.bytes)));
    for (uint32_t w = 0; w < machines.n; w++) {
        pot_cost_worker speed;
        pot_machine_speed(&speed, &machines.of[w]);
        POT_ASSERT(pot_machine_disk_rate(&machines.of[w], size << 10, (uint32_t)size % 40) >= 0);
    }
    pot_buffer_free(&text);
    pot_buffer_free(&same);
    return 0;
}
