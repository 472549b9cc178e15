/* A conversion can be stopped, go on, be done in parts, lose its source on the way, run out of memory, and meet a journal that lies. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/system.h"
#include "model/safetensors.h"
#include "tests/conversion.h"

/* ---- stopping and going on ------------------------------------------------------------------------------------------------- */

static void layers_can_be_converted_in_parts(void **state) {
    (void)state;
    make_reference("tests/fixtures/indexshare");
    remove_all(destination);
    pot_convert_options o = options_of("tests/fixtures/indexshare", destination);
    o.layer_begin = 2;
    o.layer_end = 4;
    pot_convert_report r;
    MUST(pot_convert(&r, &o, &err));
    assert_false(r.finished);
    assert_string_equal(r.missing, "0-1, 4-8");
    assert_int_equal(r.files_done, 9 + 1 + 2);
    pot_convert_report_free(&r);
    assert_false(pot_container_is(destination));
    assert_int_equal(verify(destination), 0);
    o.layer_begin = 8;
    o.layer_end = 9;
    convert(&o, false);
    o.layer_begin = 9;
    o.layer_end = 10;
    refuse(&o, POT_USAGE, "--layers 9-9: the model has layers 0 to 8");
    o.layer_begin = 0;
    o.layer_end = 0;
    MUST(pot_convert(&r, &o, &err));
    assert_true(r.finished);
    assert_int_equal(r.files_written, 6);
    assert_string_equal(r.missing, "");
    pot_convert_report_free(&r);
    check_same_files(other, destination);
}

static void stopped_conversion_goes_on(void **state) {
    (void)state;
    make_reference("tests/fixtures/mxfp4");
    remove_all(destination);
    pot_convert_options o = options_of("tests/fixtures/mxfp4", destination);
    o.layer_end = 1;
    convert(&o, false);
    o.layer_end = 0;
    raise(SIGINT);
    refuse(&o, POT_CANCELLED, "the same command goes on from there");
    pot_stop_clear();
    assert_false(pot_file_exists(in(destination, POT_CONVERT_LOCK)));
    /* What a crash leaves: half a file, half a journal, a whole file that is not in the journal. */
    copy_file("README.md", in(destination, "experts-001.safetensors.partial"));
    copy_file("README.md", in(destination, "convert.json.123-4.tmp"));
    copy_file("README.md", in(destination, "experts-002.safetensors"));
    convert(&o, true);
    check_same_files(other, destination);
    refuse(&o, POT_USAGE, "is a finished container, which is never overwritten");
    check_same_files(other, destination);
}

static void damaged_file_is_written_again(void **state) {
    (void)state;
    make_reference("tests/fixtures/fp8");
    remove_all(destination);
    pot_convert_options o = options_of("tests/fixtures/fp8", destination);
    o.layer_end = 2;
    convert(&o, false);
    assert_int_equal(truncate(in(destination, "experts-001.safetensors"), 5000), 0);
    assert_int_equal(unlink(in(destination, "dense-000.safetensors")), 0);
    assert_true(verify(destination) == 2);
    o.layer_end = 0;
    pot_log_configure("error", NULL);
    convert(&o, true);
    pot_log_configure("warn", NULL);
    check_same_files(other, destination);
}

static void other_options_and_sources_are_refused(void **state) {
    (void)state;
    remove_all(destination);
    remove_all(source);
    pot_convert_options o = options_of("tests/fixtures/eps", destination);
    o.layer_end = 1;
    convert(&o, false);
    pot_convert_options changed = o;
    changed.policy.experts = POT_FORMAT_Q4_G64;
    refuse(&changed, POT_USAGE,
           "begun with --experts auto --dense q4g64 --head q8g32 --mtp auto --rounding auto, this run "
           "has --experts q4g64 --dense q4g64");
    changed = o;
    changed.policy.rounding = POT_ROUNDING_SEARCH;
    refuse(&changed, POT_USAGE, "--rounding search: give the same options");
    changed = o;
    changed.source = "tests/fixtures/fp8";
    refuse(&changed, POT_USAGE, "begun from the source eps, this run has fp8");
    /* Of the same name, but with other weights. */
    char eps[PATH + 8];
    snprintf(eps, sizeof eps, "%s/eps", scratch);
    mkdir(eps, 0777);
    copy_file("tests/fixtures/eps/config.json", in(eps, "config.json"));
    copy_file("tests/fixtures/eps/model.safetensors", in(eps, "model.safetensors"));
    changed.source = eps;
    convert(&changed, false); /* the same weights elsewhere are the same source */
    int fd = open(in(eps, "model.safetensors"), O_WRONLY);
    assert_true(fd >= 0 && pwrite(fd, "\x3c", 1, lseek(fd, -1, SEEK_END)) == 1);
    close(fd);
    refuse(&changed, POT_USAGE, "its files are not the same");
    remove_all(eps);
    refuse(&(pot_convert_options){.source = "tests/fixtures/no", .destination = other, .threads = 1}, POT_NOT_FOUND,
           "tests/fixtures/no: cannot be found");
}

static void destination_of_others_is_left_alone(void **state) {
    (void)state;
    remove_all(destination);
    mkdir(destination, 0777);
    copy_file("README.md", in(destination, "thesis.txt"));
    pot_convert_options o = options_of("tests/fixtures/eps", destination);
    refuse(&o, POT_USAGE, "is not empty (thesis.txt) and no conversion was begun there");
    assert_false(pot_file_exists(in(destination, POT_CONVERT_LOCK)));
    unlink(in(destination, "thesis.txt"));
    o.destination = in(destination, "a/b");
    refuse(&o, POT_IO, "cannot be made");
    o.destination = "README.md";
    refuse(&o, POT_USAGE, "is no directory");
    o = options_of("tests/fixtures/eps", destination);
    int fd = open(in(destination, POT_CONVERT_LOCK), O_CREAT | O_RDWR, 0666);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    refuse(&o, POT_USAGE, "another potluck is converting to this directory");
    close(fd);
    convert(&o, true);
    o.source = destination;
    o.destination = other;
    remove_all(other);
    refuse(&o, POT_USAGE, "is converted already");
    assert_false(pot_directory_exists(other)); /* made, and taken away again */
}

/* ---- a journal that lies --------------------------------------------------------------------------------------------------- */

static void begin_journal(pot_buffer *text) {
    remove_all(destination);
    pot_convert_options o = options_of("tests/fixtures/eps", destination);
    o.layer_end = 1;
    convert(&o, false);
    pot_buffer_clear(text);
    MUST(pot_file_read(text, in(destination, POT_CONVERT_JOURNAL), 1 << 20, &err));
}

static void hostile_journals_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
        const char *words;
    } cases[] = {
        {"\"convert\": 1", "\"convert\": 2", "is of version 2"},
        {"\"convert\": 1", "\"convert\": \"1\"", "convert"},
        {"\"files\": [", "\"files\": {\"a\": [", ""},
        {"\"files\": [", "\"file\": [", "`files` must be a list"},
        {"dense-000.safetensors", "../../dense-000.safeten", "this model has no file"},
        {"dense-001.safetensors", "dense-000.safetensors", "lists dense-000.safetensors twice"},
        {"\"hash\": \"", "\"hash\": \"x", "32 hexadecimal digits"},
        {"\"verified\": false", "\"verified\": 0", "verified"},
        {"\"rows\": [", "\"rows\": 3, \"r\": [", "must be a list"},
        {"\"role\": \"norms\"", "\"role\": \"\\u001b[2J\"", "there are no weights of role"},
        {"\"stored\": \"F32\"", "\"stored\": \"F33\"", "there are no weights of role"},
        {"\"format\": \"f32\"", "\"format\": \"none\"", "there are no weights of role"},
        {"\"error\": 0", "\"error\": -1", "error"},
        {"\"tensors\": ", "\"tensors\": 9e9, \"t\": ", "tensors"},
        {"\"fingerprint\": \"", "\"fingerprint\": \"0000", "32 hexadecimal digits"},
    };
    pot_buffer text = {0}, changed = {0};
    begin_journal(&text);
    const pot_convert_options o = options_of("tests/fixtures/eps", destination);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *at = strstr(text.data, cases[i].from);
        if (!at) fail_msg("`%s` is not in the journal", cases[i].from);
        pot_buffer_clear(&changed);
        pot_buffer_append(&changed, text.data, (size_t)(at - text.data));
        pot_buffer_text(&changed, cases[i].to);
        pot_buffer_text(&changed, at + strlen(cases[i].from));
        MUST(pot_file_write(in(destination, POT_CONVERT_JOURNAL), changed.data, changed.bytes, &err));
        refuse(&o, POT_FORMAT, cases[i].words);
    }
    for (size_t n = 0; n < text.bytes - 2; n += 1 + text.bytes / 60) { /* cut short anywhere */
        MUST(pot_file_write(in(destination, POT_CONVERT_JOURNAL), text.data, n, &err));
        refuse(&o, POT_FORMAT, POT_CONVERT_JOURNAL);
    }
    MUST(pot_file_write(in(destination, POT_CONVERT_JOURNAL), text.data, text.bytes, &err));
    convert(&o, true);
    make_reference("tests/fixtures/eps");
    check_same_files(other, destination);
    pot_buffer_free(&text);
    pot_buffer_free(&changed);
}

/* ---- removing the source --------------------------------------------------------------------------------------------------- */

/* A fixture's tensors in files of our own: one a layer and one for what belongs to none; scales in a file of their own; in the first a tensor that
 * nothing reads. */
static uint32_t deal(const char *fixture, bool ignored) {
    static const uint8_t nothing[64];
    pot_shards *shards = NULL;
    remove_all(source);
    mkdir(source, 0777);
    copy_file(in(fixture, "config.json"), in(source, "config.json"));
    MUST(pot_shards_open(&shards, fixture, &err));
    const uint32_t n = pot_shards_tensors(shards);
    pot_tensor_out *out = pot_alloc_array(n + 1, sizeof *out);
    uint32_t files = 0, layers = 0;
    for (uint32_t i = 0; i < n; i++) {
        unsigned layer;
        if (sscanf(pot_shards_at(shards, i)->name, "model.layers.%u.", &layer) == 1 && layer + 1 > layers)
            layers = layer + 1;
    }
    for (uint32_t part = 0; part <= 2 * layers; part++) {
        uint32_t k = 0;
        for (uint32_t i = 0; i < n; i++) {
            const pot_tensor *t = pot_shards_at(shards, i);
            unsigned layer = layers;
            const bool of_layer = sscanf(t->name, "model.layers.%u.", &layer) == 1;
            const bool scales = of_layer && (strstr(t->name, "weight_scale") || strstr(t->name, ".qs"));
            if (part != layer + (scales ? layers + 1 : 0)) continue;
            out[k] = (pot_tensor_out){t->name, t->dtype, t->rank, {0}, t->data};
            memcpy(out[k++].shape, t->shape, sizeof t->shape);
        }
        if (part == 0 && ignored)
            out[k++] = (pot_tensor_out){"model.layers.8.embed_tokens.weight", POT_DTYPE_BF16, 2, {4, 8}, nothing};
        char name[64];
        snprintf(name, sizeof name, "part-%02u.safetensors", part);
        if (!k) continue;
        MUST(pot_safetensors_write(in(source, name), out, k, &err));
        files++;
    }
    pot_free(out);
    pot_shards_close(shards);
    return files;
}

static void source_goes_away_file_by_file(void **state) {
    (void)state;
    static const struct {
        const char *fixture;
        bool ignored;
    } cases[] = {{"tests/fixtures/indexshare", true},
                 {"tests/fixtures/fp8", false},
                 {"tests/fixtures/mxfp4", false},
                 {"tests/fixtures/article4", false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t files = deal(cases[i].fixture, cases[i].ignored);
        make_reference(source);
        remove_all(destination);
        pot_convert_options o = options_of(source, destination);
        o.layer_end = 1;
        convert(&o, false); /* without removing anything */
        assert_int_equal(count_shards(source), files);
        o.delete_source = true;
        o.layer_begin = 1;
        o.layer_end = 2;
        convert(&o, false); /* layers 0 and 1 are finished and verified now, and so is what belongs to no layer */
        const uint32_t left = count_shards(source);
        assert_true(left <= files - 3);
        assert_int_equal(verify(destination), 0);
        /* A file of which the source is gone must not be lost. */
        assert_int_equal(rename(in(destination, "experts-001.safetensors"), in(scratch, "away")), 0);
        refuse(&o, POT_NOT_FOUND, "has removed source files already");
        assert_int_equal(rename(in(scratch, "away"), in(destination, "experts-001.safetensors")), 0);
        /* What is left must be what was there. */
        assert_int_equal(rename(in(source, "part-02.safetensors"), in(scratch, "away")), 0);
        refuse(&o, POT_NOT_FOUND, "is missing, but not everything that came from it is converted");
        copy_file(in(scratch, "away"), in(source, "part-02.safetensors"));
        unlink(in(scratch, "away"));
        o.delete_source = false;
        o.layer_begin = 0;
        o.layer_end = 3;
        convert(&o, false);
        assert_int_equal(count_shards(source), left);
        o.delete_source = true;
        o.layer_end = 0;
        convert(&o, true);
        assert_int_equal(count_shards(source), 0);
        assert_true(pot_file_exists(in(source, "config.json")));
        check_same_files(other, destination);
    }
}

static void changed_rest_of_a_source_is_refused(void **state) {
    (void)state;
    deal("tests/fixtures/eps", false);
    remove_all(destination);
    pot_convert_options o = options_of(source, destination);
    o.delete_source = true;
    o.layer_end = 2;
    convert(&o, false);
    const char *path = in(source, "part-03.safetensors");
    int fd = open(path, O_RDWR);
    uint8_t byte = 0;
    assert_true(fd >= 0 && pread(fd, &byte, 1, lseek(fd, -1, SEEK_END)) == 1);
    byte ^= 1;
    assert_true(pwrite(fd, &byte, 1, lseek(fd, -1, SEEK_END)) == 1);
    refuse(&o, POT_USAGE, "is not the file that this conversion began with");
    byte ^= 1;
    assert_true(pwrite(fd, &byte, 1, lseek(fd, -1, SEEK_END)) == 1);
    close(fd);
    pot_buffer text = {0};
    MUST(pot_file_read(&text, in(source, "config.json"), 1 << 20, &err));
    char *top = strstr(text.data, "\"rope_theta\": 5");
    assert_non_null(top);
    top[strlen("\"rope_theta\": ")] = '2';
    MUST(pot_file_write(in(source, "config.json"), text.data, text.bytes, &err));
    refuse(&o, POT_USAGE, "config.json");
    top[strlen("\"rope_theta\": ")] = '5';
    MUST(pot_file_write(in(source, "config.json"), text.data, text.bytes, &err));
    pot_buffer_free(&text);
    o.layer_end = 0;
    convert(&o, true);
    assert_int_equal(verify(destination), 0);
}

static void nothing_but_shards_is_ever_removed(void **state) {
    (void)state;
    remove_all(destination);
    pot_convert_options o = options_of("random:tiny", destination);
    o.delete_source = true;
    refuse(&o, POT_USAGE, "random:tiny is no directory of files");
    assert_false(pot_directory_exists(destination));
    deal("tests/fixtures/eps", false);
    copy_file("README.md", in(source, "notes.txt"));
    assert_int_equal(rename(in(source, "part-00.safetensors"), in(scratch, "away")), 0);
    assert_int_equal(symlink("../away", in(source, "part-00.safetensors")), 0);
    o.source = source;
    refuse(&o, POT_USAGE, "part-00.safetensors is a link");
    assert_true(pot_file_exists(in(scratch, "away")));
    assert_int_equal(rename(in(scratch, "away"), in(source, "part-00.safetensors")), 0);
    convert(&o, true);
    assert_int_equal(count_shards(source), 0);
    assert_true(pot_file_exists(in(source, "notes.txt")));
}

/* ---- no memory ------------------------------------------------------------------------------------------------------------- */

static void failed_allocations_leave_a_conversion_that_goes_on(void **state) {
    (void)state;
    make_reference("tests/fixtures/eps");
    remove_all(destination);
    pot_convert_options o = options_of("tests/fixtures/eps", destination);
    o.threads = 1;
    pot_log_configure("error", NULL);
    uint32_t failed = 0;
    for (uint64_t n = 1; n < 4000; n += 1 + n / 12) {
        pot_convert_report r;
        pot_err err;
        pot_mem_fail_at(n);
        const pot_status s = pot_convert(&r, &o, &err);
        pot_mem_fail_at(0);
        if (s == POT_OK) {
            pot_convert_report_free(&r);
            check_same_files(other, destination);
        }
        failed += s != POT_OK;
        if (s == POT_OK || failed % 3 == 0) remove_all(destination); /* now and then from the start */
    }
    pot_log_configure("warn", NULL);
    assert_true(failed > 10);
    if (!pot_container_is(destination)) convert(&o, true);
    check_same_files(other, destination);
}

int main(void) {
    pot_log_configure("warn", NULL);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_can_be_converted_in_parts),
        cmocka_unit_test(stopped_conversion_goes_on),
        cmocka_unit_test(damaged_file_is_written_again),
        cmocka_unit_test(other_options_and_sources_are_refused),
        cmocka_unit_test(destination_of_others_is_left_alone),
        cmocka_unit_test(hostile_journals_are_refused),
        cmocka_unit_test(source_goes_away_file_by_file),
        cmocka_unit_test(changed_rest_of_a_source_is_refused),
        cmocka_unit_test(nothing_but_shards_is_ever_removed),
        cmocka_unit_test(failed_allocations_leave_a_conversion_that_goes_on),
    };
    return cmocka_run_group_tests(tests, begin_conversions, end_conversions);
}
