/* Options from a user's hands: the input's lines are variables of the environment, and then the arguments of a command that takes
 * every flag. */
#include <string.h>

#include "common/settings.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MAX_LINES = 64, MAX_BYTES = 4096, MAX_POSITIONAL = 8 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char text[MAX_BYTES + 1], program[] = "potluck", *lines[MAX_LINES + 2] = {program};
    int n = 1;
    if (size > MAX_BYTES) size = MAX_BYTES;
    if (size) memcpy(text, data, size);
    text[size] = 0;
    for (char *at = text, *end; at && n <= MAX_LINES; at = end) {
        end = strchr(at, '\n');
        if (end) *end++ = 0;
        lines[n++] = at;
    }
    size_t rows;
    const pot_option *table = pot_settings_table(&rows);
    pot_settings settings;
    pot_options *options = NULL;
    const char *positional[MAX_POSITIONAL];
    int n_positional;
    pot_err err;
    if (pot_options_create(&options, table, rows, &settings, &err)) return 0;
    pot_options_environment(options, (const char *const *)(lines + 1), &err);
    pot_options_arguments(options, n, lines, POT_CMD_ALL, positional, MAX_POSITIONAL, &n_positional, &err);
    pot_buffer shown = {0};
    pot_options_show(&shown, options, true);
    pot_buffer_free(&shown);
    pot_options_free(options);
    return 0;
}
