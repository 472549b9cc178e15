/* What the tests of the reader share: a file with known content, the four ways to read it, and a gate that holds reads up. */
#ifndef TESTS_READER_RIG_H
#define TESTS_READER_RIG_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/reader_internal.h"

enum { FILE_BYTES = (6 << 20) + 1000, PADDED_BYTES = (6 << 20) + POT_READ_ALIGN, LONG_US = 20000000 };
enum { MOST_PIECE = 256 << 10, WAYS = 4 };

extern pot_err err;
extern char scratch[64], data_path[128], other_path[128];
extern uint8_t *content; /* of the file at data_path, zeros after its end */

typedef struct reader_way {
    pot_read_engine engine;
    pot_read_path path;
    const char *name;
} reader_way;
extern const reader_way ways[WAYS];
extern bool has_uring;

/* Over the ways that this machine allows. */
#define EACH_WAY for (int way = has_uring ? 0 : 2; way < WAYS; way++)
#define MUST(call)                                     \
    do {                                               \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)
#define HAS(text, part)                                                                       \
    do {                                                                                      \
        if (!strstr(text, part)) fail_msg("\"%s\" should have \"%s\" in it", (text), (part)); \
    } while (0)

/* For cmocka's group. */
int set_up(void **unused);
int tear_down(void **unused);

uint64_t draw(uint64_t below);
void write_file(const char *path, const void *bytes, size_t n);
uint8_t *pages(size_t bytes); /* zeros; for munmap */

/* A reader with `path` as file 0. */
pot_reader *reader_on(const char *path, int way, uint32_t depth, const pot_read_faults *faults);
/* A read of data_path with its checksum. */
pot_read piece(uint64_t offset, uint32_t bytes, uint8_t *into);
void submit(pot_reader *reader, pot_read *read, bool urgent);
pot_read *take(pot_reader *reader); /* fails when none comes */
/* One read from start to end on a reader of its own; the sentence is in `err`. */
pot_status read_one(const char *path, int way, const pot_read_faults *faults, pot_read *read);

/* Lets attempts begin only when it is open, and notes them. */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
    uint32_t begun, inside, most_inside;
    uint64_t offsets[256];
} gate;
#define GATE \
    { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER }

/* For pot_read_faults: before, after. */
int pass(void *context, const char *path, uint64_t offset, uint32_t *bytes);
void leave(void *context, const char *path, uint64_t offset, uint8_t *data, uint32_t bytes);
void open_gate(gate *g);
void wait_until_begun(gate *g, uint32_t n);

#endif
