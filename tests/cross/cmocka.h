/* The part of cmocka that tests/test_exact.c uses, for a statically linked program of another architecture: distributions do not
 * carry cmocka for the targets of their cross compilers. */
#ifndef POT_TESTS_CROSS_CMOCKA_H
#define POT_TESTS_CROSS_CMOCKA_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct CMUnitTest {
    const char *name;
    void (*function)(void **state);
};
#define cmocka_unit_test(function) {#function, function}

#define fail_msg(...)                                \
    do {                                             \
        printf("%s:%d: ", __FILE__, __LINE__);       \
        printf(__VA_ARGS__);                         \
        printf("\n[  FAILED  ] 1 test(s).\n");       \
        exit(1);                                     \
    } while (0)
#define assert_true(condition)                       \
    do {                                             \
        if (!(condition)) fail_msg("%s", #condition); \
    } while (0)
#define assert_false(condition) assert_true(!(condition))
#define assert_null(pointer) assert_true((pointer) == NULL)
#define assert_non_null(pointer) assert_true((pointer) != NULL)
#define assert_int_equal(a, b) assert_true((long long)(a) == (long long)(b))
#define assert_memory_equal(a, b, bytes) assert_true(memcmp(a, b, bytes) == 0)

static inline int run_group(const struct CMUnitTest *tests, size_t n, int (*setup)(void **), int (*teardown)(void **)) {
    void *state = NULL;
    assert_true(setup == NULL || setup(&state) == 0);
    for (size_t i = 0; i < n; i++) {
        tests[i].function(&state);
        printf("[       OK ] %s\n", tests[i].name);
        fflush(stdout);
    }
    assert_true(teardown == NULL || teardown(&state) == 0);
    printf("[  PASSED  ] %zu test(s).\n", n);
    return 0;
}
#define cmocka_run_group_tests(tests, setup, teardown) run_group(tests, sizeof tests / sizeof tests[0], setup, teardown)

#endif
