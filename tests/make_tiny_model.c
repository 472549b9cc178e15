/* For the scripts:
 *
 *   make_tiny_model PRESET DIRECTORY      a random model; the directory is made when it is not there
 *   make_tiny_model prompt N VOCAB FILE   N random token ids as input for `eval trace` */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/mem.h"
#include "model/safetensors.h"
#include "tests/tiny_model.h"

static pot_status write_model(const char *preset, const char *directory, pot_err *err) {
    const pot_tiny *tiny = pot_tiny_preset(preset);
    if (!tiny) return pot_fail(err, POT_USAGE, "there is no preset `%s`", preset);
    if (mkdir(directory, 0777) && errno != EEXIST) return pot_fail(err, POT_IO, "%s: %s", directory, strerror(errno));
    return pot_tiny_write(directory, tiny, err);
}

static pot_status write_prompt(const char *count, const char *vocab, const char *path, pot_err *err) {
    uint32_t n = (uint32_t)strtoul(count, NULL, 10), size = (uint32_t)strtoul(vocab, NULL, 10);
    int32_t *ids = pot_alloc_array(n, sizeof *ids);
    if (!n || !size || !ids) return pot_fail(err, POT_USAGE, "prompt of %s ids below %s", count, vocab);
    pot_tiny_prompt(ids, n, size, 11);
    const pot_tensor_out tensor = {.name = "input_ids", .dtype = POT_DTYPE_I32, .rank = 1, .shape = {n}, .data = ids};
    pot_status s = pot_safetensors_write(path, &tensor, 1, err);
    pot_free(ids);
    return s;
}

int main(int argc, char **argv) {
    pot_err err;
    pot_status s;
    if (argc == 3) {
        s = write_model(argv[1], argv[2], &err);
    } else if (argc == 5 && !strcmp(argv[1], "prompt")) {
        s = write_prompt(argv[2], argv[3], argv[4], &err);
    } else {
        s = pot_fail(&err, POT_USAGE, "usage: make_tiny_model PRESET DIRECTORY | prompt N VOCAB FILE");
    }
    if (s != POT_OK) fprintf(stderr, "make_tiny_model: %s\n", err.text);
    return pot_status_exit_code(s);
}
