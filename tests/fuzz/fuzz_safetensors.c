/* A safetensors file's header: length, JSON, dtypes, shapes and offsets, all from outside. */
#include "model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    pot_err err;
    pot_safetensors_check(data, size, size, "fuzz", &err);
    pot_safetensors_check(data, size, size + 4096, "fuzz", &err); /* as if only the file's beginning were here */
    return 0;
}
