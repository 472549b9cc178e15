/* The `ucx` transport between two processes, without MPI: each test forks both (UCX must not be started before a fork), which swap
 * their address blobs over a socket.  Everything runs over what UCX picks on one host (shared memory) and over TCP. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <ucp/api/ucp.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/system.h"
#include "proto/control.h"
#include "proto/ucx_guard.h"

#ifndef __has_feature /* clang's */
#define __has_feature(name) 0
#endif

enum { MINUTE_US = 60000000, EAGER = 128 * 1024, BACK_S = 120 };

static pot_err err; /* of each process's own thread */

/* In a child: says where and what, and ends it. */
#define CHECK(condition)                                                                                       \
    do {                                                                                                       \
        if (!(condition)) {                                                                                    \
            fprintf(stderr, "%s:%d: not so: %s (last error: %s)\n", __FILE__, __LINE__, #condition, err.text); \
            _exit(1);                                                                                          \
        }                                                                                                      \
    } while (0)

typedef struct side {
    uint32_t self;
    int link;    /* a stream to the other process, for addresses and for keeping step */
    pid_t other; /* 0 for the process that was forked first */
    pot_transport *t;
} side;
typedef void role(side *s);

/* ---- two processes -------------------------------------------------------------------------------------------------------- */

static void put_all(int fd, const void *bytes, size_t n) { CHECK(write(fd, bytes, n) == (ssize_t)n); }

static void get_all(int fd, void *bytes, size_t n) {
    for (size_t at = 0; at < n;) {
        ssize_t got = read(fd, (char *)bytes + at, n - at);
        CHECK(got > 0);
        at += (size_t)got;
    }
}

/* Waits until the other one comes here too. */
static void meet(side *s) {
    char c = 0;
    put_all(s->link, &c, 1);
    get_all(s->link, &c, 1);
}

static void swap_blobs(int link, pot_blob own, void *theirs, size_t room, pot_blob *out) {
    uint64_t n = own.n_bytes;
    put_all(link, &n, sizeof n);
    put_all(link, own.bytes, own.n_bytes);
    get_all(link, &n, sizeof n);
    CHECK(n <= room);
    get_all(link, theirs, n);
    *out = (pot_blob){theirs, n};
}

static void open_side(side *s) {
    static char theirs[4096];
    const pot_ucx_options options = {.self = s->self, .spin_us = 0};
    pot_blob own, peers[2] = {{0}};
    CHECK(pot_transport_ucx_create(&s->t, &own, &options, &err) == POT_OK);
    swap_blobs(s->link, own, theirs, sizeof theirs, &peers[1 - s->self]);
    CHECK(pot_transport_ucx_connect(s->t, peers, 2, &err) == POT_OK);
    meet(s);
}

static pid_t start(role *run, uint32_t self, int link, int others_link, pid_t other, const char *tls) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid) return pid;
    close(others_link);
    if (tls) setenv("UCX_TLS", tls, 1);
    alarm(BACK_S); /* nothing that hangs here outlives the test */
    side s = {.self = self, .link = link, .other = other};
    run(&s);
    exit(0);
}

/* Whoever ends is reaped at once: UCX over shared memory takes a zombie for alive.  `pids[1]` must end by `signal` unless that is 0. */
static void expect_ends(const pid_t pids[2], int signal, const char *tls) {
    int failed = -1, status_of_failed = 0;
    for (int n = 0; n < 2; n++) {
        int status;
        int which = wait(&status) == pids[1], wanted = which ? signal : 0;
        bool good =
            wanted ? WIFSIGNALED(status) && WTERMSIG(status) == wanted : WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if (good || failed >= 0) continue;
        failed = which;
        status_of_failed = status;
        if (n == 0) kill(pids[!which], SIGKILL);
    }
    if (failed >= 0)
        fail_msg("process %d over %s: status %x", failed, tls ? tls : "what UCX picks", (unsigned)status_of_failed);
}

static const char *const networks[] = {NULL, "tcp,self"};

/* Process 0 runs `zero` and knows process 1, which runs `one` and ends by `signal`. */
static void run_pair(role *zero, role *one, int signal) {
    for (int i = 0; i < 2; i++) {
        int link[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, link), 0);
        pid_t second = start(one, 1, link[1], link[0], 0, networks[i]);
        pid_t first = start(zero, 0, link[0], link[1], second, networks[i]);
        close(link[0]);
        close(link[1]);
        expect_ends((const pid_t[2]){first, second}, signal, networks[i]);
    }
}

/* The same, but what was sent goes on its way meanwhile: UCX moves only when it is called.  Nothing may come any more. */
static void part(side *s) {
    char c = 0;
    put_all(s->link, &c, 1);
    while (recv(s->link, &c, 1, MSG_DONTWAIT) != 1) {
        pot_message *m;
        CHECK(pot_transport_receive(s->t, 1000, &m, &err) == POT_OK);
        CHECK(!m || m->kind == POT_MESSAGE_LOST);
        if (m) pot_message_release(s->t, m);
    }
}

static pot_message *take(side *s) {
    pot_message *m;
    uint64_t until = pot_now_us() + MINUTE_US;
    do {
        CHECK(pot_transport_receive(s->t, MINUTE_US, &m, &err) == POT_OK);
        CHECK(pot_now_us() < until);
    } while (!m);
    return m;
}

static pot_message *make(pot_transport *t, uint8_t kind, size_t bytes, uint32_t seed) {
    pot_message *m = pot_transport_message(t, bytes);
    CHECK(m != NULL);
    m->kind = kind;
    for (size_t i = 0; i < bytes; i++) m->bytes[i] = (uint8_t)(i * 7 + (i >> 8) + seed);
    return m;
}

static bool has_pattern(const pot_message *m, size_t bytes, uint32_t seed) {
    if (m->n_bytes != bytes) return false;
    for (size_t i = 0; i < bytes; i++)
        if (m->bytes[i] != (uint8_t)(i * 7 + (i >> 8) + seed)) return false;
    return true;
}

/* ---- messages --------------------------------------------------------------------------------------------------------------- */

static const size_t sizes[] = {0,     1,     63,        64,    65,        4095,   4096,    8191,          8192,   8193,
                               65535, 65536, EAGER - 1, EAGER, EAGER + 1, 200000, 1 << 20, (1 << 20) + 1, 4 << 20};
enum { N_SIZES = sizeof sizes / sizeof sizes[0] };

static void ask_for_echoes(side *s) {
    open_side(s);
    for (uint32_t round = 0; round < 3; round++)
        for (uint32_t i = 0; i < N_SIZES; i++) {
            uint8_t kind = sizes[i] <= POT_CONTROL_MAX_BYTES && round == 1 ? POT_MESSAGE_CONTROL : POT_MESSAGE_DATA;
            CHECK(pot_transport_send(s->t, 1, make(s->t, kind, sizes[i], i + round), &err) == POT_OK);
            pot_message *m = take(s);
            CHECK(m->kind == kind && m->peer == 1 && has_pattern(m, sizes[i], i + round));
            CHECK((uintptr_t)m->bytes % 64 == 0);
            pot_message_release(s->t, m);
        }
    part(s);
    pot_transport_close(s->t, 1000000);
}

static void echo(side *s) {
    open_side(s);
    for (uint32_t n = 3 * N_SIZES; n > 0; n--) {
        pot_message *m = take(s);
        CHECK(m->peer == 0 && m->kind != POT_MESSAGE_LOST);
        CHECK(pot_transport_send(s->t, 0, m, &err) == POT_OK); /* the same buffer goes back */
    }
    part(s);
    pot_transport_close(s->t, 1000000);
}

static void messages_of_every_size_come_back(void **state) {
    (void)state;
    run_pair(ask_for_echoes, echo, 0);
}

/* A rendezvous needs its sender.  This one computes: it waits for a byte over the link and does not call the transport at all. */
enum { LARGE = 3, LARGE_BYTES = 2 << 20 };

static void send_and_compute(side *s) {
    char c;
    open_side(s);
    for (uint32_t i = 0; i < LARGE; i++)
        CHECK(pot_transport_send(s->t, 1, make(s->t, POT_MESSAGE_DATA, LARGE_BYTES, i), &err) == POT_OK);
    get_all(s->link, &c, 1);
    part(s);
    pot_transport_close(s->t, 1000000);
}

static void take_from_a_busy_sender(side *s) {
    char c = 0;
    open_side(s);
    for (uint32_t i = 0; i < LARGE; i++) {
        pot_message *m = take(s);
        CHECK(has_pattern(m, LARGE_BYTES, i));
        pot_message_release(s->t, m);
    }
    put_all(s->link, &c, 1);
    part(s);
    pot_transport_close(s->t, 1000000);
}

static void large_message_arrives_while_its_sender_computes(void **state) {
    (void)state;
    run_pair(send_and_compute, take_from_a_busy_sender, 0);
}

/* More than the kernel's and UCX's buffers hold, before the other side reads anything. */
enum { FLOOD = 400, FLOOD_BYTES = 60000 };

static void flood(side *s) {
    open_side(s);
    for (uint32_t i = 0; i < FLOOD; i++)
        CHECK(pot_transport_send(s->t, 1, make(s->t, POT_MESSAGE_DATA, FLOOD_BYTES, i), &err) == POT_OK);
    meet(s);
    pot_message *m = take(s);
    CHECK(m->kind == POT_MESSAGE_CONTROL);
    pot_message_release(s->t, m);
    pot_transport_close(s->t, 1000000);
}

static void drink(side *s) {
    open_side(s);
    meet(s);
    for (uint32_t i = 0; i < FLOOD; i++) {
        pot_message *m = take(s);
        CHECK(has_pattern(m, FLOOD_BYTES, i)); /* in order */
        pot_message_release(s->t, m);
    }
    CHECK(pot_transport_send(s->t, 0, make(s->t, POT_MESSAGE_CONTROL, 8, 0), &err) == POT_OK);
    pot_transport_close(s->t, 1000000); /* flushes it */
}

static void flood_waits_for_a_slow_reader(void **state) {
    (void)state;
    run_pair(flood, drink, 0);
}

enum { MESSAGES = 1000 };

typedef struct sender {
    pthread_t thread;
    pot_transport *t;
    uint32_t tag;
} sender;

static void *send_numbers(void *argument) {
    sender *s = argument;
    for (uint32_t i = 0; i < MESSAGES; i++) {
        pot_message *m = pot_transport_message(s->t, 8 + i % 5000);
        CHECK(m != NULL);
        m->kind = POT_MESSAGE_DATA;
        memcpy(m->bytes, (const uint32_t[2]){s->tag, i}, 8);
        CHECK(pot_transport_send(s->t, 1, m, NULL) == POT_OK);
    }
    return NULL;
}

static void send_from_two_threads(side *s) {
    open_side(s);
    sender senders[2] = {{.t = s->t, .tag = 0}, {.t = s->t, .tag = 1}};
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&senders[i].thread, NULL, send_numbers, &senders[i]) == 0);
    pot_message *m = take(s); /* the owner sleeps in receive meanwhile; comes when all have arrived */
    CHECK(m->kind == POT_MESSAGE_CONTROL);
    pot_message_release(s->t, m);
    for (int i = 0; i < 2; i++) pthread_join(senders[i].thread, NULL);
    part(s);
    pot_transport_close(s->t, 1000000);
}

static void count_numbers(side *s) {
    uint32_t next[2] = {0};
    open_side(s);
    for (int i = 0; i < 2 * MESSAGES; i++) {
        uint32_t got[2];
        pot_message *m = take(s);
        CHECK(m->kind == POT_MESSAGE_DATA && m->n_bytes >= 8);
        memcpy(got, m->bytes, 8);
        CHECK(got[0] < 2 && got[1] == next[got[0]]++);
        pot_message_release(s->t, m);
    }
    CHECK(pot_transport_send(s->t, 0, make(s->t, POT_MESSAGE_CONTROL, 8, 0), &err) == POT_OK);
    part(s);
    pot_transport_close(s->t, 1000000);
}

static void two_threads_send_in_order(void **state) {
    (void)state;
    run_pair(send_from_two_threads, count_numbers, 0);
}

/* ---- waiting ------------------------------------------------------------------------------------------------------------------ */

static void *wake_soon(void *t) {
    usleep(30000);
    pot_transport_wake(t);
    return NULL;
}

static void *stop_soon(void *unused) {
    (void)unused;
    usleep(30000);
    kill(getpid(), SIGTERM);
    return NULL;
}

static void wait_for_nothing(side *s) {
    pot_message *m;
    pthread_t thread;
    open_side(s);
    static const uint64_t waits[] = {0, 1, 999, 50000};
    for (int i = 0; i < 4; i++) {
        uint64_t begin = pot_now_us();
        CHECK(pot_transport_receive(s->t, waits[i], &m, &err) == POT_OK && !m);
        CHECK(pot_now_us() - begin >= waits[i]);
    }
    uint64_t begin = pot_now_us();
    CHECK(pthread_create(&thread, NULL, wake_soon, s->t) == 0);
    CHECK(pot_transport_receive(s->t, MINUTE_US, &m, &err) == POT_OK && !m);
    CHECK(pot_now_us() - begin < MINUTE_US);
    pthread_join(thread, NULL);
    /* A stop signal ends one wait; after that there is a farewell to be said, which may sleep. */
    pot_stop_install();
    CHECK(pthread_create(&thread, NULL, stop_soon, NULL) == 0);
    begin = pot_now_us();
    CHECK(pot_transport_receive(s->t, MINUTE_US, &m, &err) == POT_OK && !m && pot_stop_requested());
    CHECK(pot_now_us() - begin < MINUTE_US);
    pthread_join(thread, NULL);
    begin = pot_now_us();
    CHECK(pot_transport_receive(s->t, 20000, &m, &err) == POT_OK && !m);
    CHECK(pot_now_us() - begin >= 20000);
    /* One who only looks takes the news from nobody. */
    pot_stop_clear();
    CHECK(pot_transport_receive(s->t, 0, &m, &err) == POT_OK && !m);
    kill(getpid(), SIGTERM);
    CHECK(pot_transport_receive(s->t, 0, &m, &err) == POT_OK && !m);
    begin = pot_now_us();
    CHECK(pot_transport_receive(s->t, MINUTE_US, &m, &err) == POT_OK && !m);
    CHECK(pot_now_us() - begin < MINUTE_US);
    part(s);
    pot_transport_close(s->t, 1000000);
}

static void stay(side *s) {
    open_side(s);
    part(s);
    pot_transport_close(s->t, 1000000);
}

static void wait_ends_with_deadline_wake_or_signal(void **state) {
    (void)state;
    run_pair(wait_for_nothing, stay, 0);
}

/* ---- loss ------------------------------------------------------------------------------------------------------------------------ */

static void lose_the_other(side *s) {
    pot_message *m;
    open_side(s);
    m = take(s);
    CHECK(has_pattern(m, 1000, 1));
    pot_message_release(s->t, m);
    CHECK(kill(s->other, SIGKILL) == 0);
    uint64_t begin = pot_now_us();
    m = take(s);
    CHECK(m->kind == POT_MESSAGE_LOST && m->peer == 1 && memchr(m->bytes, 0, m->n_bytes) && m->bytes[0]);
    /* Within 5 s is what is promised; four times that is for a machine with other work. */
    CHECK(pot_now_us() - begin < 20000000);
    pot_message_release(s->t, m);
    CHECK(pot_transport_send(s->t, 1, make(s->t, POT_MESSAGE_DATA, 1000, 0), &err) == POT_PEER_LOST);
    CHECK(strcmp(err.text, "peer 1 is gone, or was never connected") == 0);
    CHECK(pot_transport_send(s->t, 0, make(s->t, POT_MESSAGE_DATA, 1000, 0), &err) == POT_PEER_LOST); /* itself */
    CHECK(pot_transport_send(s->t, 2, make(s->t, POT_MESSAGE_DATA, 1000, 0), &err) == POT_PEER_LOST);
    CHECK(pot_transport_receive(s->t, 1500000, &m, &err) == POT_OK && !m); /* LOST comes once */
    begin = pot_now_us();
    pot_transport_close(s->t, MINUTE_US);
    CHECK(pot_now_us() - begin < MINUTE_US);
}

static void wait_to_be_killed(side *s) {
    open_side(s);
    CHECK(pot_transport_send(s->t, 0, make(s->t, POT_MESSAGE_DATA, 1000, 1), &err) == POT_OK);
    for (;;) pot_message_release(s->t, take(s));
}

static void killed_peer_is_reported_once(void **state) {
    (void)state;
    run_pair(lose_the_other, wait_to_be_killed, SIGKILL);
}

static void close_on_the_killed(side *s) {
    open_side(s);
    for (uint32_t i = 0; i < 50; i++)
        CHECK(pot_transport_send(s->t, 1, make(s->t, POT_MESSAGE_DATA, 100000, i), &err) == POT_OK);
    CHECK(pot_transport_send(s->t, 1, make(s->t, POT_MESSAGE_DATA, 4 << 20, 0), &err) == POT_OK);
    CHECK(kill(s->other, SIGKILL) == 0);
    for (uint32_t i = 0; i < 50 && pot_transport_send(s->t, 1, make(s->t, POT_MESSAGE_DATA, 100000, i), &err) == POT_OK;
         i++) {
    }
    uint64_t begin = pot_now_us();
    pot_transport_close(s->t, 300000);
    CHECK(pot_now_us() - begin < 10000000);
}

static void never_read(side *s) {
    open_side(s);
    for (;;) pause();
}

static void close_does_not_wait_for_the_killed(void **state) {
    (void)state;
    run_pair(close_on_the_killed, never_read, SIGKILL);
}

/* The peer is there, but does nothing: nobody will report it as lost, and its buffers are full. */
static void close_on_the_stopped(side *s) {
    pot_message *m;
    open_side(s);
    CHECK(kill(s->other, SIGSTOP) == 0);
    for (uint32_t i = 0; i < 200; i++)
        CHECK(pot_transport_send(s->t, 1, make(s->t, POT_MESSAGE_DATA, 60000, i), &err) == POT_OK);
    CHECK(pot_transport_send(s->t, 1, make(s->t, POT_MESSAGE_DATA, 1 << 20, 0), &err) == POT_OK);
    CHECK(pot_transport_receive(s->t, 200000, &m, &err) == POT_OK && !m);
    uint64_t begin = pot_now_us();
    pot_transport_close(s->t, 300000);
    uint64_t took = pot_now_us() - begin;
    CHECK(took < 10000000); /* 0.3 s and up to 0.5 s by force; the rest is for a machine with other work */
    CHECK(kill(s->other, SIGKILL) == 0);
}

static void close_does_not_wait_for_the_stopped(void **state) {
    (void)state;
    run_pair(close_on_the_stopped, never_read, SIGKILL);
}

/* ---- what is not ours -------------------------------------------------------------------------------------------------------------- */

typedef struct am_text {
    unsigned id;
    const void *header;
    size_t header_bytes, bytes;
} am_text;

static void ignore_error(void *unused, ucp_ep_h ep, ucs_status_t status) {
    (void)unused;
    (void)ep;
    (void)status;
}

/* A program that speaks UCX, but not potluck.  Its settings are those of the transport: UCX 1.13 ends a process whose peer chose other
 * lanes ("endpoint reconfiguration not supported yet"). */
static void send_garbage(side *s) {
    static const uint32_t from_nobody = 99, from_yourself = 0, from_me[3] = {1, 1, 1};
    static uint8_t payload[1 << 20];
    const am_text texts[] = {
        {7, from_me, 4, 100},
        {1, NULL, 0, 100},
        {1, from_me, 3, 100},
        {1, from_me, 8, 100},
        {1, &from_nobody, 4, 100},
        {1, &from_yourself, 4, 100},
        {2, from_me, 4, POT_CONTROL_MAX_BYTES + 1},
        {2, from_me, 4, 1 << 20},
        {1, &from_nobody, 4, 1 << 20},
        {1, from_me, 4, 77}, /* the only good one */
    };
    static char theirs[4096];
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    ucp_ep_h ep;
    pot_blob own, sealed, other;
    const ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES,
                                 .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP};
    const ucp_worker_params_t worker_params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                               .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucp_config_t *config;
    CHECK(ucp_config_read(NULL, NULL, &config) == UCS_OK);
    CHECK(ucp_config_modify(config, "MM_ERROR_HANDLING", "y") == UCS_OK);
    pot_ucx_log_redirect();
    CHECK(ucp_init(&params, config, &context) == UCS_OK);
    ucp_config_release(config);
    CHECK(ucp_worker_create(context, &worker_params, &worker) == UCS_OK);
    CHECK(ucp_worker_get_address(worker, &address, &own.n_bytes) == UCS_OK);
    own.bytes = address;
    CHECK(pot_ucx_address_seal(&sealed, own, &err) == POT_OK);
    swap_blobs(s->link, sealed, theirs, sizeof theirs, &other);
    pot_free((void *)(uintptr_t)sealed.bytes);
    const ucp_ep_params_t ep_params = {.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS |
                                                     UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                                                     UCP_EP_PARAM_FIELD_ERR_HANDLER,
                                       .address = other.bytes,
                                       .err_mode = UCP_ERR_HANDLING_MODE_PEER,
                                       .err_handler = {ignore_error, NULL}};
    CHECK(ucp_ep_create(worker, &ep_params, &ep) == UCS_OK);
    meet(s);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const ucp_request_param_t eager = {.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
                                           .flags =
                                               texts[i].bytes < EAGER ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV};
        ucs_status_ptr_t request =
            ucp_am_send_nbx(ep, texts[i].id, texts[i].header, texts[i].header_bytes, payload, texts[i].bytes, &eager);
        CHECK(!UCS_PTR_IS_ERR(request));
        if (!request) continue;
        while (ucp_request_check_status(request) == UCS_INPROGRESS) ucp_worker_progress(worker);
        ucp_request_free(request);
    }
    char done = 0;
    while (recv(s->link, &done, 1, MSG_DONTWAIT) != 1) ucp_worker_progress(worker);
    ucp_worker_release_address(worker, address);
    ucp_worker_destroy(worker);
    ucp_cleanup(context);
}

static void drop_garbage(side *s) {
    const char done = 0;
    CHECK(pot_log_configure("error", &err) == POT_OK); /* the warnings are as they should be */
    open_side(s);
    pot_message *m = take(s);
    CHECK(m->kind == POT_MESSAGE_DATA && m->peer == 1 && m->n_bytes == 77);
    pot_message_release(s->t, m);
    put_all(s->link, &done, 1);
    pot_transport_close(s->t, 1000000);
}

static void garbage_is_dropped(void **state) {
    (void)state;
    run_pair(drop_garbage, send_garbage, 0);
}

static void connect_to_garbage(side *s) {
    pot_blob own, peers[2] = {{0}};
    const pot_ucx_options options = {.self = 0};
    CHECK(pot_transport_ucx_create(&s->t, &own, &options, &err) == POT_OK);
    CHECK(own.n_bytes > 0 && own.n_bytes < 4096);
    CHECK(pot_transport_send(s->t, 1, make(s->t, POT_MESSAGE_DATA, 10, 0), &err) ==
          POT_PEER_LOST); /* not connected yet */
    CHECK(pot_transport_ucx_connect(s->t, peers, 2, &err) == POT_OK);
    CHECK(pot_transport_send(s->t, 1, make(s->t, POT_MESSAGE_DATA, 10, 0), &err) ==
          POT_PEER_LOST); /* nobody to connect to */
    pot_transport_close(s->t, 0);
    CHECK(pot_transport_ucx_create(&s->t, &own, &options, &err) == POT_OK);
    static const uint8_t garbage[200] = {1, 2, 3};
    peers[1] = (pot_blob){garbage, sizeof garbage};
    CHECK(pot_transport_ucx_connect(s->t, peers, 2, &err) == POT_FORMAT);
    CHECK(strstr(err.text, "the address of rank 1: ") == err.text);
    pot_transport_close(s->t, 0); /* never connected */
}

static void do_nothing(side *s) { (void)s; }

static void transport_without_peers_sends_nothing(void **state) {
    (void)state;
    run_pair(connect_to_garbage, do_nothing, 0);
}

int main(void) {
#if defined __SANITIZE_THREAD__ || __has_feature(thread_sanitizer)
    puts("UCX is not built for the thread sanitizer");
    return 77;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_every_size_come_back),
        cmocka_unit_test(large_message_arrives_while_its_sender_computes),
        cmocka_unit_test(flood_waits_for_a_slow_reader),
        cmocka_unit_test(two_threads_send_in_order),
        cmocka_unit_test(wait_ends_with_deadline_wake_or_signal),
        cmocka_unit_test(killed_peer_is_reported_once),
        cmocka_unit_test(close_does_not_wait_for_the_killed),
        cmocka_unit_test(close_does_not_wait_for_the_stopped),
        cmocka_unit_test(garbage_is_dropped),
        cmocka_unit_test(transport_without_peers_sends_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
