/* Runs a fuzz target on every file of its corpus, so that old findings stay found without a fuzzer, and on mutants of
 * each: cut short, with bytes changed, with a part repeated.  They are the same mutants in every run.
 * The program's own name says which corpus: fuzz_config reads tests/fuzz/corpus/config. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "common/buffer.h"
#include "common/file.h"
#include "common/mem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MUTANTS = 150, MAX_MUTANT_BYTES = 65536 };

/* The target gets a copy of exactly the input's size, so that reading past its end is seen by a sanitizer. */
static void run_target(const void *data, size_t size) {
    uint8_t *copy = pot_alloc(size);
    if (!copy) return;
    if (size) memcpy(copy, data, size);
    LLVMFuzzerTestOneInput(copy, size);
    pot_free(copy);
}

static uint32_t below(uint32_t *state, size_t n) {
    *state = *state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)(*state >> 8) * n >> 24);
}

static void mutate(pot_buffer *out, const pot_buffer *from, uint32_t seed) {
    static const unsigned char interesting[] = {0, 1, 0x7f, 0x80, 0xff, '"', '0', '9', '-', '[', '}', ','};
    uint32_t state = seed;
    pot_buffer_clear(out);
    if (seed % 3 == 0) { /* cut short */
        pot_buffer_append(out, from->data, below(&state, from->bytes));
        return;
    }
    pot_buffer_append(out, from->data, from->bytes);
    if (seed % 3 == 1) { /* a few bytes changed */
        for (uint32_t n = 1 + below(&state, 4); n && !out->failed; n--) {
            unsigned char *at = (unsigned char *)out->data + below(&state, out->bytes);
            if (below(&state, 2))
                *at = interesting[below(&state, sizeof interesting)];
            else
                *at ^= (unsigned char)(1u << below(&state, 8));
        }
        return;
    }
    size_t begin = below(&state, from->bytes), length = 1 + below(&state, from->bytes - begin);
    pot_buffer_append(out, from->data + begin, length); /* a part repeated at the end */
}

static bool replay(const char *path) {
    pot_err err;
    pot_buffer text = {0}, mutant = {0};
    bool done = !pot_file_read(&text, path, 64u << 20, &err);
    if (done) {
        run_target(text.data, text.bytes);
    } else {
        printf("FAIL  %s: %s\n", path, err.text);
    }
    for (uint32_t seed = 0; done && seed < MUTANTS && text.bytes && text.bytes <= MAX_MUTANT_BYTES; seed++) {
        mutate(&mutant, &text, seed);
        run_target(mutant.data, mutant.bytes);
    }
    pot_buffer_free(&mutant);
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
    if (n && !failures) printf("ok    %d inputs and their mutants\n", n);
    return n == 0 || failures;
}
