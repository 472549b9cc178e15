/* Option files: any bytes end in values or in a sentence. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/settings.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char path[64];
    if (!path[0]) snprintf(path, sizeof path, "/tmp/potluck-fuzz-options-%ld", (long)getpid());
    FILE *file = fopen(path, "w");
    if (!file) abort();
    fwrite(data, 1, size, file);
    fclose(file);
    size_t n;
    const pot_option *table = pot_settings_table(&n);
    pot_settings settings;
    pot_options *options;
    pot_err err = {0};
    if (pot_options_create(&options, table, n, &settings, &err)) abort();
    pot_status status = pot_options_file(options, path, &err);
    if (status && (status != POT_USAGE || strncmp(err.text, path, strlen(path)) != 0)) abort();
    pot_buffer text = {0};
    pot_options_show(&text, options, true);
    pot_buffer_free(&text);
    pot_options_free(options);
    unlink(path);
    return 0;
}
