/* config.json, and what follows a NUL byte as generation_config.json. */
#include <string.h>

#include "model/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    pot_err err;
    static pot_config config;
    const char *text = (const char *)data, *cut = size ? memchr(text, 0, size) : NULL;
    if (cut)
        pot_config_parse(&config, text, (size_t)(cut - text), cut + 1, size - (size_t)(cut + 1 - text), "fuzz", &err);
    else
        pot_config_parse(&config, text, size, NULL, 0, "fuzz", &err);
    return 0;
}
