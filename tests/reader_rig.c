#include "tests/reader_rig.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/hash.h"
#include "common/log.h"

pot_err err;
char scratch[64], data_path[128], other_path[128];
uint8_t *content; /* of the file, zeros after its end */

const reader_way ways[WAYS] = {{POT_READ_ENGINE_URING, POT_READ_PATH_DIRECT, "io_uring, direct"},
                               {POT_READ_ENGINE_URING, POT_READ_PATH_CACHED, "io_uring, cached"},
                               {POT_READ_ENGINE_POOL, POT_READ_PATH_DIRECT, "pool, direct"},
                               {POT_READ_ENGINE_POOL, POT_READ_PATH_CACHED, "pool, cached"}};

bool has_uring;

/* ---- help ----------------------------------------------------------------------------------------------------------- */

static uint64_t state = 88172645463325252u;
uint64_t draw(uint64_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % below;
}

void write_file(const char *path, const void *bytes, size_t n) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_true(fd >= 0);
    for (size_t at = 0; at < n;) {
        ssize_t m = write(fd, (const char *)bytes + at, n - at);
        assert_true(m > 0);
        at += (size_t)m;
    }
    assert_int_equal(fsync(fd), 0); /* dirty pages cannot be dropped */
    close(fd);
}

uint8_t *pages(size_t bytes) {
    uint8_t *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(p != MAP_FAILED);
    return p;
}

int set_up(void **unused) {
    (void)unused;
    pot_log_configure("error", NULL); /* the faults below are announced */
    strcpy(scratch, "/tmp/potluck-test-XXXXXX");
    if (!mkdtemp(scratch)) return -1;
    snprintf(data_path, sizeof data_path, "%s/data", scratch);
    snprintf(other_path, sizeof other_path, "%s/other", scratch);
    content = calloc(1, PADDED_BYTES);
    if (!content) return -1;
    for (size_t i = 0; i < FILE_BYTES; i++) content[i] = (uint8_t)draw(256);
    write_file(data_path, content, FILE_BYTES);
    pot_reader *reader;
    pot_reader_options options = {.engine = POT_READ_ENGINE_URING};
    has_uring = !pot_reader_create(&reader, &options, &err);
    if (has_uring) pot_reader_free(reader);
    if (!has_uring) print_message("without io_uring: %s\n", err.text);
    return 0;
}

int tear_down(void **unused) {
    (void)unused;
    unlink(data_path);
    unlink(other_path);
    free(content);
    return rmdir(scratch);
}

pot_reader *reader_on(const char *path, int way, uint32_t depth, const pot_read_faults *faults) {
    pot_reader *reader;
    uint32_t file;
    pot_reader_options options = {
        .engine = ways[way].engine, .path = ways[way].path, .depth = depth, .faults = faults, .patience_us = LONG_US};
    MUST(pot_reader_create(&reader, &options, &err));
    MUST(pot_reader_open(&file, reader, path, &err));
    assert_int_equal(file, 0);
    return reader;
}

pot_read piece(uint64_t offset, uint32_t bytes, uint8_t *into) {
    return (pot_read){.bytes = bytes,
                      .offset = offset,
                      .into = into,
                      .has_checksum = true,
                      .checksum = pot_hash64(content + offset, bytes)};
}

void submit(pot_reader *reader, pot_read *read, bool urgent) { pot_reader_submit(reader, &read, 1, urgent); }

pot_read *take(pot_reader *reader) {
    uint64_t start = pot_now_us();
    pot_read *read = pot_reader_take(reader, LONG_US);
    if (!read) fail_msg("no read has finished");
    if (pot_now_us() - start > LONG_US / 2) fail_msg("the owner was not woken");
    return read;
}

pot_status read_one(const char *path, int way, const pot_read_faults *faults, pot_read *read) {
    pot_reader *reader = reader_on(path, way, 2, faults);
    read->err = &err;
    submit(reader, read, false);
    assert_ptr_equal(take(reader), read);
    assert_true(pot_reader_free(reader));
    return read->status;
}

int pass(void *context, const char *path, uint64_t offset, uint32_t *bytes) {
    (void)path;
    (void)bytes;
    gate *g = context;
    pthread_mutex_lock(&g->lock);
    g->offsets[g->begun++ % 256] = offset;
    if (++g->inside > g->most_inside) g->most_inside = g->inside;
    pthread_cond_broadcast(&g->changed);
    while (!g->open) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
    return 0;
}

void leave(void *context, const char *path, uint64_t offset, uint8_t *data, uint32_t bytes) {
    (void)path;
    (void)offset;
    (void)data;
    (void)bytes;
    gate *g = context;
    pthread_mutex_lock(&g->lock);
    g->inside--;
    pthread_mutex_unlock(&g->lock);
}

void open_gate(gate *g) {
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

void wait_until_begun(gate *g, uint32_t n) {
    pthread_mutex_lock(&g->lock);
    while (g->begun < n) pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}
