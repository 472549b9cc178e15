/* compare_tensors EXPECTED GOT: as tests/oracle/compare.py, for machines without Python's packages.  Exit status 1 when a
 * tensor is missing or differs. */
#include <stdio.h>

#include "tests/compare.h"

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: compare_tensors EXPECTED.safetensors GOT.safetensors\n");
        return 2;
    }
    uint32_t bad;
    pot_buffer report = {0};
    pot_err err;
    if (pot_compare_files(&bad, &report, argv[1], argv[2], 1e-4, &err)) {
        fprintf(stderr, "compare_tensors: %s\n", err.text);
        return 1;
    }
    fputs(report.data ? report.data : "", stdout);
    if (bad)
        printf("%u tensors fall short\n", bad);
    else
        puts("all tensors hold");
    pot_buffer_free(&report);
    return bad != 0;
}
