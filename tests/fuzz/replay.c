/* Runs a fuzz target once on every file of its corpus, so that old findings stay found without a fuzzer.
 * The program's own name says which corpus: fuzz_config reads tests/fuzz/corpus/config. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "common/buffer.h"
#include "common/file.h"
#include "common/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The target gets a copy of exactly the input's size, so that reading past its end is seen by a sanitizer. */
static bool replay(const char *path) {
    pot_err err;
    pot_buffer text = {0};
    uint8_t *copy = NULL;
    bool done = !pot_file_read(&text, path, 64u << 20, &err);
    if (done) copy = pot_alloc(text.bytes);
    if (copy) {
        if (text.bytes) memcpy(copy, text.data, text.bytes);
        LLVMFuzzerTestOneInput(copy, text.bytes);
    } else {
        printf("FAIL  %s: %s\n", path, done ? "no memory" : err.text);
    }
    done = copy != NULL;
    pot_free(copy);
    pot_buffer_free(&text);
    return done;
}

int main(int argc, char **argv) {
    const char *name = argc > 0 ? strrchr(argv[0], '/') : NULL;
    name = name && !strncmp(name, "/fuzz_", 6) ? name + 6 : "";
    char *folder = pot_path_join("tests/fuzz/corpus", name);
    DIR *directory = folder ? opendir(folder) : NULL;
    if (!directory) {
        printf("FAIL  no corpus in %s\n", folder ? folder : "tests/fuzz/corpus");
        pot_free(folder);
        return 1;
    }
    int n = 0, failures = 0;
    for (struct dirent *entry; (entry = readdir(directory));) {
        if (entry->d_name[0] == '.') continue;
        char *path = pot_path_join(folder, entry->d_name);
        failures += !path || !replay(path);
        n++;
        pot_free(path);
    }
    closedir(directory);
    pot_free(folder);
    if (n && !failures) printf("ok    %d inputs\n", n);
    return n == 0 || failures;
}
