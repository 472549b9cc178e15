/* A message is an opcode, a number and filling.  Every wait has an end. */
#include <stdlib.h>
#include <string.h>

#include "cli/machine_link.h"
#include "common/clock.h"
#include "common/system.h"
#include "placement/map.h"

enum {
    ECHO = 1, /* answer with so many bytes */
    SINK,     /* no answer */
    QUESTION, /* answer with TEXT or FAULT */
    TEXT,
    FAULT,
    GOODBYE,
    HEAD_BYTES = 8,
    SMALL = 64,    /* a header of the data plane */
    ROW = 8192,    /* about a WORK of one token */
    BLOCK = 65536, /* still eager */
    BLOCKS = 32,   /* in a row */
    WINDOWS = 15,
    MOST_ROUNDS = 4000,
    PATIENCE_US = 20000000, /* for what is answered at once */
    GLANCE_US = 100000,
    CLOSE_US = 2000000
};
#define QUESTION_US UINT64_C(600000000)

struct probe_ranks {
    pot_transport *transport;
    pot_bootstrap bootstrap;
};

typedef struct head {
    uint32_t what, number;
} head;
_Static_assert(sizeof(head) == HEAD_BYTES, "as sent");

/* ---- the way there ------------------------------------------------------------------------------------------------ */

pot_status probe_ranks_open(probe_ranks **out, const pot_cli *cli, pot_err *err) {
    *out = NULL;
    if (cli->launch.size < 2) return POT_OK;
    probe_ranks *r = pot_alloc(sizeof *r);
    if (!r) return pot_fail(err, POT_NO_MEMORY, "no memory for %d ranks", cli->launch.size);
    /* As the engine chooses: to poll while others want the core would be measured as well. */
    bool crowded = pot_cpus_physical() < cli->launch.ranks_on_host;
    pot_ucx_options options = {.self = (uint32_t)cli->launch.rank, .spin_us = crowded ? 0 : 50};
    pot_blob address, peers[POT_MAX_WORKERS] = {{0}};
    pot_status status = pot_transport_ucx_create(&r->transport, &address, &options, err);
    if (!status) status = pot_bootstrap_mpi(&r->bootstrap, address, err);
    const pot_bootstrap *b = &r->bootstrap;
    if (!status && b->size > POT_MAX_WORKERS)
        status = pot_fail(err, POT_LIMIT, "%d ranks were started, a cluster has at most %d", b->size, POT_MAX_WORKERS);
    for (int i = 0; !status && i < b->size; i++)
        if (i != b->rank && (b->rank == 0 || i == 0)) peers[i] = b->ranks[i].address;
    if (!status) status = pot_transport_ucx_connect(r->transport, peers, (uint32_t)b->size, err);
    if (status) {
        pot_transport_close(r->transport, 0);
        pot_bootstrap_free(&r->bootstrap);
        pot_free(r);
        return status;
    }
    *out = r;
    return POT_OK;
}

const char *probe_ranks_host(const probe_ranks *r, uint32_t rank) { return r->bootstrap.ranks[rank].host; }

static pot_status send(probe_ranks *r, uint32_t peer, uint32_t what, uint32_t number, const void *text, size_t bytes,
                       pot_err *err) {
    pot_message *m = pot_transport_message(r->transport, bytes < HEAD_BYTES ? HEAD_BYTES : bytes);
    if (!m) return pot_fail(err, POT_NO_MEMORY, "no memory for a message of %zu bytes", bytes);
    const head h = {what, number};
    m->kind = POT_MESSAGE_DATA;
    if (text && bytes > HEAD_BYTES) memcpy(m->bytes + HEAD_BYTES, text, bytes - HEAD_BYTES);
    if (!text) memset(m->bytes, 1, m->n_bytes); /* a sender fills its buffer */
    memcpy(m->bytes, &h, sizeof h);
    return pot_transport_send(r->transport, peer, m, err);
}

/* The next message, which the caller releases. */
static pot_status next(pot_message **out, probe_ranks *r, uint64_t patience_us, pot_err *err) {
    uint64_t end = pot_now_us() + patience_us;
    for (;;) {
        pot_message *m = NULL;
        pot_status status = pot_transport_receive(r->transport, GLANCE_US, &m, err);
        if (status) return status;
        if (pot_stop_requested()) {
            pot_message_release(r->transport, m);
            return pot_fail(err, POT_CANCELLED, "stopped");
        }
        if (m && m->kind == POT_MESSAGE_LOST) {
            status = pot_fail(err, POT_PEER_LOST, "rank %u is gone: %.200s", m->peer, (const char *)m->bytes);
            pot_message_release(r->transport, m);
            return status;
        }
        if (m && m->n_bytes >= HEAD_BYTES) {
            *out = m;
            return POT_OK;
        }
        pot_message_release(r->transport, m);
        if (pot_now_us() > end) return pot_fail(err, POT_TIMEOUT, "no answer within %.0f s", (double)patience_us / 1e6);
    }
}

void probe_ranks_close(probe_ranks *r) {
    if (!r) return;
    for (int i = 1; r->bootstrap.rank == 0 && i < r->bootstrap.size; i++)
        (void)send(r, (uint32_t)i, GOODBYE, 0, NULL, HEAD_BYTES, NULL);
    pot_transport_close(r->transport, CLOSE_US);
    pot_bootstrap_free(&r->bootstrap);
    pot_free(r);
}

/* ---- measuring ---------------------------------------------------------------------------------------------------- */

static pot_status echo(probe_ranks *r, uint32_t rank, size_t there, uint32_t back, pot_err *err) {
    pot_message *m;
    pot_status status = send(r, rank, ECHO, back, NULL, there, err);
    if (!status) status = next(&m, r, PATIENCE_US, err);
    if (!status) pot_message_release(r->transport, m);
    return status;
}

static int by_value(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static pot_status rounds(probe_link *out, probe_ranks *r, uint32_t rank, double seconds, pot_err *err) {
    double *took = pot_alloc_array(MOST_ROUNDS, sizeof *took), begin = 0;
    pot_status status = took ? POT_OK : pot_fail(err, POT_NO_MEMORY, "no memory for %d times", MOST_ROUNDS);
    int n = 0;
    for (int i = -20; !status && n < MOST_ROUNDS; i++) { /* connections are made by the first ones */
        double start = pot_bench_seconds();
        if (i == 0) begin = start;
        if (i > 10 && start - begin > seconds) break;
        status = echo(r, rank, SMALL, SMALL, err);
        if (i >= 0) took[n++] = pot_bench_seconds() - start;
    }
    if (!status) {
        double sum = 0;
        out->round_s = pot_spread_of(took, n);
        qsort(took, (size_t)n, sizeof *took, by_value);
        int kept = n - n / 100;
        for (int i = 0; i < kept; i++) sum += took[i];
        out->round_mean_s = sum / kept;
    }
    pot_free(took);
    return status;
}

/* GB/s of BLOCKS blocks one way; the round that ends them is taken off. */
static pot_status stream(double *out, probe_ranks *r, uint32_t rank, bool there, double round_s, pot_err *err) {
    double begin = pot_bench_seconds();
    pot_status status = POT_OK;
    for (int i = 0; !status && i < BLOCKS; i++)
        status = there ? send(r, rank, SINK, 0, NULL, BLOCK, err) : send(r, rank, ECHO, BLOCK, NULL, SMALL, err);
    for (int i = 0; !status && !there && i < BLOCKS; i++) {
        pot_message *m;
        status = next(&m, r, PATIENCE_US, err);
        if (!status) pot_message_release(r->transport, m);
    }
    if (!status && there) status = echo(r, rank, SMALL, SMALL, err);
    double took = pot_bench_seconds() - begin;
    /* Not more off than half: what is measured is then hardly longer than the latency. */
    *out = (double)BLOCKS * BLOCK / (took - round_s > took / 2 ? took - round_s : took / 2) * 1e-9;
    return status;
}

/* Seconds to give away one of several messages; their arrival is then waited for. */
static pot_status giving(double *out, probe_ranks *r, uint32_t rank, pot_err *err) {
    pot_status status = POT_OK;
    double begin = pot_bench_seconds();
    for (int i = 0; !status && i < 8; i++) status = send(r, rank, SINK, 0, NULL, ROW, err);
    *out = (pot_bench_seconds() - begin) / 8;
    return status ? status : echo(r, rank, SMALL, SMALL, err);
}

pot_status probe_link_measure(probe_link *out, probe_ranks *r, uint32_t rank, double seconds, pot_err *err) {
    double there[WINDOWS], back[WINDOWS], give[WINDOWS];
    pot_status status = rounds(out, r, rank, seconds, err);
    for (int i = -1; !status && i < WINDOWS; i++) {
        double a, b, c;
        status = stream(&a, r, rank, true, out->round_s.median, err);
        if (!status) status = stream(&b, r, rank, false, out->round_s.median, err);
        if (!status) status = giving(&c, r, rank, err);
        if (status || i < 0) continue;
        there[i] = a;
        back[i] = b;
        give[i] = c;
    }
    if (status) return pot_at(err, "the link to rank %u on %s", rank, probe_ranks_host(r, rank));
    out->there = pot_spread_of(there, WINDOWS);
    out->back = pot_spread_of(back, WINDOWS);
    out->send_s = pot_spread_of(give, WINDOWS);
    return POT_OK;
}

pot_status probe_ranks_ask(pot_buffer *text, probe_ranks *r, uint32_t rank, pot_err *err) {
    pot_message *m;
    head h;
    pot_status status = send(r, rank, QUESTION, 0, NULL, HEAD_BYTES, err);
    if (!status) status = next(&m, r, QUESTION_US, err);
    if (status) return pot_at(err, "rank %u on %s", rank, probe_ranks_host(r, rank));
    memcpy(&h, m->bytes, sizeof h);
    int n = (int)(m->n_bytes - HEAD_BYTES);
    if (h.what == TEXT)
        pot_buffer_append(text, m->bytes + HEAD_BYTES, (size_t)n);
    else
        status = pot_fail(err, h.number ? (pot_status)(h.number % POT_STATUS_COUNT) : POT_ERROR, "rank %u on %s: %.*s",
                          rank, probe_ranks_host(r, rank), n, (const char *)m->bytes + HEAD_BYTES);
    pot_message_release(r->transport, m);
    return status;
}

/* ---- answering ---------------------------------------------------------------------------------------------------- */

static pot_status answer_question(probe_ranks *r, pot_status (*answer)(void *context, pot_buffer *text, pot_err *err),
                                  void *context, pot_err *err) {
    pot_buffer text = {0};
    pot_status status = answer(context, &text, err);
    if (!status && text.failed) status = pot_fail(err, POT_NO_MEMORY, "no memory for what was measured");
    pot_status sent = status ? send(r, 0, FAULT, (uint32_t)status, err->text, HEAD_BYTES + strlen(err->text), NULL)
                             : send(r, 0, TEXT, 0, text.data, HEAD_BYTES + text.bytes, err);
    pot_buffer_free(&text);
    return status ? status : sent;
}

pot_status probe_ranks_serve(probe_ranks *r, pot_status (*answer)(void *context, pot_buffer *text, pot_err *err),
                             void *context, pot_err *err) {
    for (;;) {
        pot_message *m;
        head h;
        pot_status status = next(&m, r, QUESTION_US * POT_MAX_WORKERS, err);
        if (status) return status;
        memcpy(&h, m->bytes, sizeof h);
        pot_message_release(r->transport, m);
        if (h.what == GOODBYE) return POT_OK;
        if (h.what == ECHO) status = send(r, 0, 0, 0, NULL, h.number <= BLOCK ? h.number : BLOCK, err);
        if (h.what == QUESTION) status = answer_question(r, answer, context, err);
        if (status && status != POT_CANCELLED && h.what == QUESTION) status = POT_OK; /* rank 0 says it */
        if (status) return status;
    }
}
