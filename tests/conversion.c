#include "tests/conversion.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file.h"
#include "common/mem.h"
#include "common/system.h"

/* ---- directories ----------------------------------------------------------------------------------------------------------- */

char scratch[64], source[PATH], destination[PATH], other[PATH];

const char *in(const char *directory, const char *name) {
    static char paths[4][2 * PATH];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, 2 * PATH, "%s/%s", directory, name);
    return path;
}

void remove_all(const char *directory) {
    DIR *stream = opendir(directory);
    if (!stream) return;
    for (struct dirent *e; (e = readdir(stream));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..")) unlink(in(directory, e->d_name));
    closedir(stream);
    rmdir(directory);
}

int begin_conversions(void **state) {
    (void)state;
    /* In memory where that can be: every file is synced, and this writes some thousands. */
    const bool memory = pot_directory_exists("/dev/shm") && access("/dev/shm", W_OK) == 0;
    snprintf(scratch, sizeof scratch, "%s/potluck-convert-XXXXXX", memory ? "/dev/shm" : "/tmp");
    if (!mkdtemp(scratch)) return -1;
    snprintf(source, sizeof source, "%s/source", scratch);
    snprintf(destination, sizeof destination, "%s/packed", scratch);
    snprintf(other, sizeof other, "%s/other", scratch);
    pot_stop_install();
    return 0;
}

int end_conversions(void **state) {
    (void)state;
    remove_all(source);
    remove_all(destination);
    remove_all(other);
    rmdir(scratch);
    return 0;
}

void copy_file(const char *from, const char *to) {
    pot_buffer text = {0};
    MUST(pot_file_read(&text, from, 64 << 20, &err));
    MUST(pot_file_write(to, text.data ? text.data : "", text.bytes, &err));
    pot_buffer_free(&text);
}

uint32_t count_shards(const char *directory) {
    uint32_t n = 0;
    DIR *stream = opendir(directory);
    assert_non_null(stream);
    for (struct dirent *e; (e = readdir(stream));) n += strstr(e->d_name, ".safetensors") != NULL;
    closedir(stream);
    return n;
}

/* Both have the same files with the same bytes. */
void check_same_files(const char *a, const char *b) {
    uint32_t n[2] = {0};
    for (int i = 0; i < 2; i++) {
        DIR *stream = opendir(i ? b : a);
        assert_non_null(stream);
        for (struct dirent *e; (e = readdir(stream));) {
            if (e->d_name[0] == '.') continue;
            n[i]++;
            pot_buffer x = {0}, y = {0};
            if (i) continue;
            MUST(pot_file_read(&x, in(a, e->d_name), 64 << 20, &err));
            MUST(pot_file_read(&y, in(b, e->d_name), 64 << 20, &err));
            if (x.bytes != y.bytes || memcmp(x.data, y.data, x.bytes)) fail_msg("%s differs", e->d_name);
            pot_buffer_free(&x);
            pot_buffer_free(&y);
        }
        closedir(stream);
    }
    assert_int_equal(n[0], n[1]);
}

/* ---- converting ------------------------------------------------------------------------------------------------------------ */

pot_convert_options options_of(const char *from, const char *to) {
    return (pot_convert_options){
        .source = from, .destination = to, .policy = pot_format_policy_default, .threads = 2, .quiet = true};
}

void convert(const pot_convert_options *o, bool finished) {
    pot_convert_report report;
    MUST(pot_convert(&report, o, &err));
    assert_int_equal(report.finished, finished);
    pot_convert_report_free(&report);
}

void refuse(const pot_convert_options *o, pot_status status, const char *words) {
    pot_convert_report report;
    pot_err err = {0};
    const pot_status s = pot_convert(&report, o, &err);
    if (s != status || !strstr(err.text, words))
        fail_msg("%s `%s`, %s `%s` was expected", pot_status_name(s), s ? err.text : "", pot_status_name(status),
                 words);
}

static void count_fault(void *context, const char *file, const char *tensor, int64_t chunk, const char *text) {
    (void)file, (void)tensor, (void)chunk, (void)text;
    ++*(uint32_t *)context;
}

uint32_t verify(const char *directory) {
    uint32_t faults = 0;
    pot_verify_result result;
    MUST(pot_verify(&result, directory, 2, true, count_fault, &faults, &err));
    assert_int_equal(result.damaged_files + result.missing_files > 0, faults > 0);
    return faults;
}

void make_reference(const char *from) {
    remove_all(other);
    pot_convert_options o = options_of(from, other);
    convert(&o, true);
}
