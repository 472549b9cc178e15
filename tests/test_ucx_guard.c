/* Sealed addresses, and UCX's log, which must not reach stdout.  UCX itself is not opened here. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>
#include <unistd.h>

#include <ucs/debug/log_def.h>

#include "common/hash.h"
#include "common/log.h"
#include "common/mem.h"
#include "proto/ucx_guard.h"

#define MUST(call)                                     \
    do {                                               \
        pot_err err;                                   \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)

enum { ADDRESS = 79, SEAL = 16, VERSION_AT = ADDRESS + 4 };

static pot_blob sealed_example(void) {
    static uint8_t address[ADDRESS];
    for (int i = 0; i < ADDRESS; i++) address[i] = (uint8_t)(i * 37 + 1);
    pot_blob sealed;
    MUST(pot_ucx_address_seal(&sealed, (pot_blob){address, ADDRESS}, &err));
    assert_int_equal(sealed.n_bytes, ADDRESS + SEAL);
    assert_memory_equal(sealed.bytes, address, ADDRESS); /* UCX reads it from the front */
    return sealed;
}

static void release(pot_blob b) { pot_free((void *)(uintptr_t)b.bytes); }

static void sealed_address_passes(void **state) {
    (void)state;
    pot_blob sealed = sealed_example();
    MUST(pot_ucx_address_check(sealed, &err));
    release(sealed);
}

static void address_with_any_bit_changed_is_refused(void **state) {
    (void)state;
    pot_blob sealed = sealed_example();
    uint8_t bytes[ADDRESS + SEAL];
    memcpy(bytes, sealed.bytes, sizeof bytes);
    for (size_t bit = 0; bit < 8 * sizeof bytes; bit++) {
        pot_err err = {0};
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(pot_ucx_address_check((pot_blob){bytes, sizeof bytes}, &err), POT_FORMAT);
        assert_non_null(strstr(err.text, "95 bytes"));
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    release(sealed);
}

static void address_of_any_other_length_is_refused(void **state) {
    (void)state;
    pot_blob sealed = sealed_example();
    for (size_t n = 0; n < sealed.n_bytes; n++) { /* each in a block of its own, so that reading beyond it is noticed */
        uint8_t *copy = pot_alloc(n);
        memcpy(copy, sealed.bytes, n);
        assert_int_equal(pot_ucx_address_check((pot_blob){copy, n}, NULL), POT_FORMAT);
        pot_free(copy);
    }
    uint8_t longer[ADDRESS + SEAL + 1] = {0};
    memcpy(longer, sealed.bytes, sealed.n_bytes);
    assert_int_equal(pot_ucx_address_check((pot_blob){longer, sizeof longer}, NULL), POT_FORMAT);
    release(sealed);
}

/* Seals the example again as another version of UCX would have. */
static pot_status check_as_version(unsigned add_major, unsigned add_minor, uint16_t found[2], pot_err *err) {
    pot_blob sealed = sealed_example();
    uint8_t *bytes = (uint8_t *)(uintptr_t)sealed.bytes;
    memcpy(found, bytes + VERSION_AT, 4);
    const uint16_t version[2] = {(uint16_t)(found[0] + add_major), (uint16_t)(found[1] + add_minor)};
    memcpy(bytes + VERSION_AT, version, sizeof version);
    uint64_t checksum = pot_hash64(bytes, VERSION_AT + 4);
    memcpy(bytes + VERSION_AT + 4, &checksum, sizeof checksum);
    pot_status s = pot_ucx_address_check(sealed, err);
    release(sealed);
    return s;
}

static void address_of_another_major_version_is_refused_with_both(void **state) {
    (void)state;
    uint16_t own[2];
    pot_err err = {0};
    char both[64];
    assert_int_equal(check_as_version(1, 0, own, &err), POT_REFUSED);
    snprintf(both, sizeof both, "UCX %d.%d, this process %d.%d", own[0] + 1, own[1], own[0], own[1]);
    assert_non_null(strstr(err.text, both));
    assert_int_equal(pot_log_configure("error", NULL), POT_OK); /* a minor one is only warned of */
    assert_int_equal(check_as_version(0, 1, own, &err), POT_OK);
    assert_int_equal(pot_log_configure("warn", NULL), POT_OK);
}

static void seal_says_when_memory_is_short(void **state) {
    (void)state;
    pot_blob sealed = {0};
    pot_mem_fail_at(1);
    assert_int_equal(pot_ucx_address_seal(&sealed, (pot_blob){"x", 1}, NULL), POT_NO_MEMORY);
    pot_mem_fail_at(0);
    assert_null(sealed.bytes);
}

/* What a call writes to one of the standard streams; "" for nothing. */
static void catch_stream(char *text, size_t room, FILE *stream, int fd, void (*call)(void)) {
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stream);
    int kept = dup(fd);
    assert_true(kept >= 0 && dup2(fileno(file), fd) == fd);
    call();
    fflush(stream);
    assert_int_equal(dup2(kept, fd), fd);
    close(kept);
    rewind(file);
    text[fread(text, 1, room - 1, file)] = 0;
    fclose(file);
}

static void warn(void) { ucs_warn("a warning of %d", 42); }
static void complain(void) { ucs_error("an error of %s", "UCX"); }
static void warn_of_our_setting(void) { ucs_warn("invalid configuration: %s", "MM_ERROR_HANDLING=y"); }

static void log_of_ucx_goes_to_ours(void **state) {
    (void)state;
    static const struct {
        void (*call)(void);
        const char *words; /* NULL: nothing */
    } cases[] = {
        {warn, "ucx warn: a warning of 42"}, {complain, "ucx warn: an error of UCX"}, {warn_of_our_setting, NULL}};
    char text[1000];
    pot_ucx_log_redirect();
    pot_ucx_log_redirect(); /* again: still one line each */
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        catch_stream(text, sizeof text, stdout, STDOUT_FILENO, cases[i].call);
        assert_string_equal(text, "");
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(pot_log_configure("warn", NULL), POT_OK);
        catch_stream(text, sizeof text, stderr, STDERR_FILENO, cases[i].call);
        if (cases[i].words)
            assert_non_null(strstr(text, cases[i].words));
        else
            assert_string_equal(text, "");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sealed_address_passes),
        cmocka_unit_test(address_with_any_bit_changed_is_refused),
        cmocka_unit_test(address_of_any_other_length_is_refused),
        cmocka_unit_test(address_of_another_major_version_is_refused_with_both),
        cmocka_unit_test(seal_says_when_memory_is_short),
        cmocka_unit_test(log_of_ucx_goes_to_ours),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
