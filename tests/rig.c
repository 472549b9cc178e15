/* Opening goes in the order of the handshake: transports, workers (their Hello waits in the coordinator's queue), then the peers,
 * who answer.  A worker thread that fails closes its end at once, so that it is a lost peer and not a silent one. */
#include "tests/rig.h"

#include <string.h>

#include "common/mem.h"
#include "coordinator/sample.h"

enum { MAX_TABLES = 8, HEARTBEAT_US = 250000, MINUTE_US = 60000000 };

static void *worker_main(void *context) {
    pot_rig_worker *w = context;
    pot_worker *worker = NULL;
    w->status = pot_worker_create(&worker, &w->options, &w->err);
    if (w->status == POT_OK) w->status = pot_worker_serve(worker, &w->err);
    pot_worker_free(worker);
    if (w->status != POT_OK) pot_transport_close(w->options.transport, HEARTBEAT_US);
    return NULL;
}

static pot_status start_workers(pot_rig *rig, const pot_rig_options *o, uint64_t timeout_us, pot_err *err) {
    const pot_kernels *tables[MAX_TABLES];
    int n_tables = pot_kernels_list(tables, MAX_TABLES);
    for (uint32_t i = 0; i < o->n_workers; i++) {
        pot_rig_worker *w = &rig->workers[i];
        w->options =
            (pot_worker_options){.transport = rig->ends[i + 1], .compute = rig->compute, .timeout_us = timeout_us};
        w->options.store = o->store;
        w->options.observer = o->observer;
        w->options.store.prefetch = o->prefetch;
        if (o->ram_bytes) w->options.store.ram_bytes = o->ram_bytes[i];
        if (o->mixed_kernels) w->options.compute.kernels = tables[i % (uint32_t)n_tables];
        if (i > 0) w->options.compute.team = NULL; /* a team has one caller */
        if (i == 0) {
            pot_status s = pot_worker_create(&rig->inline_worker, &w->options, err);
            if (s != POT_OK) return s;
        } else if (pthread_create(&w->thread, NULL, worker_main, w)) {
            return pot_fail(err, POT_ERROR, "no thread for worker %u", i);
        } else {
            w->started = true;
        }
    }
    return POT_OK;
}

static pot_status open_parts(pot_rig *rig, const pot_rig_options *o, pot_err *err) {
    uint64_t timeout_us = o->timeout_us ? o->timeout_us : MINUTE_US;
    pot_status s = pot_kernels_pick(&rig->compute.kernels, o->kernels, err);
    if (s == POT_OK) s = pot_team_create(&rig->compute.team, o->threads ? o->threads : 1, true, err);
    if (s == POT_OK) s = pot_model_open(&rig->model, o->model, &o->policy, err);
    if (s == POT_OK)
        s = pot_map_make(&rig->map, o->map, 1, o->n_workers, pot_model_layer_shapes(rig->model),
                         pot_model_layers(rig->model), err);
    if (s == POT_OK) s = pot_transport_mem_create(rig->ends, o->n_workers + 1, err);
    if (s == POT_OK) s = start_workers(rig, o, timeout_us, err);
    if (s != POT_OK) return s;
    const pot_peers_options peers = {.local = rig->ends[0],
                                     .n_local = o->n_workers,
                                     .inline_worker = rig->inline_worker,
                                     .n_workers = o->n_workers,
                                     .model = rig->model,
                                     .map = rig->map,
                                     .heartbeat_us = HEARTBEAT_US,
                                     .dead_us = timeout_us,
                                     .timeout_us = timeout_us,
                                     .quiet = true};
    s = pot_peers_create(&rig->peers, &peers, err);
    return s == POT_OK ? pot_moe_create(&rig->moe, rig->model, rig->peers, &rig->compute, err) : s;
}

pot_status pot_rig_open(pot_rig *rig, const pot_rig_options *options, pot_err *err) {
    *rig = (pot_rig){.prefetch = options->prefetch};
    pot_status s = open_parts(rig, options, err);
    if (s != POT_OK) pot_rig_close(rig, NULL);
    return s;
}

pot_status pot_rig_engine(pot_rig *rig, uint32_t tile, pot_err *err) {
    pot_engine_free(rig->engine);
    rig->engine = NULL;
    const pot_engine_options options = {.model = rig->model,
                                        .moe = rig->moe,
                                        .compute = rig->compute,
                                        .prefill_tile = tile,
                                        .prefetch = rig->prefetch,
                                        .quiet = true};
    return pot_engine_create(&rig->engine, &options, err);
}

pot_status pot_rig_close(pot_rig *rig, pot_err *err) {
    pot_engine_free(rig->engine);
    pot_moe_free(rig->moe);
    pot_peers_free(rig->peers);
    pot_worker_free(rig->inline_worker);
    pot_transport_close(rig->ends[0], HEARTBEAT_US);
    pot_status s = POT_OK;
    for (uint32_t i = 0; i < POT_MAX_WORKERS; i++) {
        pot_rig_worker *w = &rig->workers[i];
        if (w->started) pthread_join(w->thread, NULL);
        if (w->status == POT_OK) pot_transport_close(rig->ends[i + 1], 0);
        if (s == POT_OK && w->status != POT_OK) s = pot_fail(err, w->status, "worker %u: %s", i, w->err.text);
    }
    pot_map_free(rig->map);
    pot_model_close(rig->model);
    pot_team_free(rig->compute.team);
    *rig = (pot_rig){0};
    return s;
}

/* ---- playing ------------------------------------------------------------------------------------------------------ */

typedef struct stage {
    pot_rig *rig;
    const pot_play *play;
    uint32_t vocab, hidden, rows; /* rows: of logits, a sequence */
    pot_sequence **sequences;     /* [batch] */
    pot_row *step;                /* [batch * n_prompt] */
    uint32_t *wanted;             /* [batch * n_prompt] */
    float *step_logits;           /* [batch * n_prompt][vocab] */
    float *step_hidden, *drafts;  /* [batch * n_prompt][hidden] */
    int32_t *current;             /* [batch] the latest choice of each */
} stage;

uint32_t pot_play_rows(const pot_play *play) { return play->n_prompt * (play->draft ? 2 : 1) + play->n_decode; }

static int32_t prompt_token(const pot_play *play, uint32_t b, uint32_t p) {
    return play->prompt[(p + b + play->turn) % play->n_prompt];
}

static pot_status stage_set(stage *g, pot_err *err) {
    const pot_play *play = g->play;
    size_t rows = (size_t)play->batch * play->n_prompt;
    g->sequences = pot_alloc_array(play->batch, sizeof *g->sequences);
    g->step = pot_alloc_array(rows, sizeof *g->step);
    g->wanted = pot_alloc_array(rows, sizeof *g->wanted);
    g->step_logits = pot_alloc_array(rows * g->vocab, sizeof(float));
    g->step_hidden = pot_alloc_array(rows * g->hidden, sizeof(float));
    g->drafts = pot_alloc_array(rows * g->hidden, sizeof(float));
    g->current = pot_alloc_array(play->batch, sizeof *g->current);
    if (!g->sequences || !g->step || !g->wanted || !g->step_logits || !g->step_hidden || !g->drafts || !g->current)
        return pot_fail(err, POT_NO_MEMORY, "no memory to play %u sequences", play->batch);
    pot_status s = POT_OK;
    for (uint32_t b = 0; b < play->batch && s == POT_OK; b++)
        s = pot_sequence_create(&g->sequences[b], pot_model_config(g->rig->model), play->kv,
                                play->n_prompt + play->n_decode, err);
    return s;
}

static void stage_clear(stage *g) {
    for (uint32_t b = 0; g->sequences && b < g->play->batch; b++) pot_sequence_free(g->sequences[b]);
    pot_free(g->sequences);
    pot_free(g->step);
    pot_free(g->wanted);
    pot_free(g->step_logits);
    pot_free(g->step_hidden);
    pot_free(g->drafts);
    pot_free(g->current);
}

/* step_logits, n rows a sequence, to row `at` of each sequence in `logits`. */
static void keep(float *logits, const stage *g, uint32_t at, uint32_t n) {
    for (uint32_t b = 0; b < g->play->batch; b++)
        memcpy(logits + ((size_t)b * g->rows + at) * g->vocab, g->step_logits + (size_t)b * n * g->vocab,
               (size_t)n * g->vocab * sizeof(float));
}

static void choose(stage *g, uint32_t n) {
    for (uint32_t b = 0; b < g->play->batch; b++)
        g->current[b] = pot_argmax(g->step_logits + ((size_t)(b + 1) * n - 1) * g->vocab, g->vocab);
}

static pot_status play_prompt(float *logits, stage *g, pot_err *err) {
    const uint32_t n = g->play->n_prompt, rows = g->play->batch * n;
    for (uint32_t i = 0; i < rows; i++) {
        g->step[i] = (pot_row){g->sequences[i / n], i % n, prompt_token(g->play, i / n, i % n)};
        g->wanted[i] = i;
    }
    pot_status s =
        pot_engine_forward(g->rig->engine, g->step, rows, g->step_hidden, g->step_logits, g->wanted, rows, NULL, err);
    if (s != POT_OK) return s;
    keep(logits, g, 0, n);
    choose(g, n);
    if (!g->play->draft) return POT_OK;
    for (uint32_t i = 0; i < rows; i++)
        g->step[i].token = i % n + 1 < n ? prompt_token(g->play, i / n, i % n + 1) : g->current[i / n];
    s = pot_engine_draft(g->rig->engine, g->step, g->step_hidden, rows, g->drafts, g->step_logits, NULL, err);
    if (s == POT_OK) keep(logits, g, n, n);
    return s;
}

static pot_status play_decode(float *logits, stage *g, pot_err *err) {
    const uint32_t n = g->play->n_prompt, batch = g->play->batch;
    for (uint32_t step = 0; step < g->play->n_decode; step++) {
        for (uint32_t b = 0; b < batch; b++) g->step[b] = (pot_row){g->sequences[b], n + step, g->current[b]};
        pot_status s =
            pot_engine_forward(g->rig->engine, g->step, batch, NULL, g->step_logits, g->wanted, batch, NULL, err);
        if (s != POT_OK) return s;
        keep(logits, g, n * (g->play->draft ? 2 : 1) + step, 1);
        choose(g, 1);
    }
    return POT_OK;
}

pot_status pot_rig_play(float *logits, pot_rig *rig, const pot_play *play, pot_err *err) {
    const pot_config *config = pot_model_config(rig->model);
    stage g = {.rig = rig, .play = play, .vocab = config->vocab, .hidden = config->hidden, .rows = pot_play_rows(play)};
    pot_status s = stage_set(&g, err);
    if (s == POT_OK) s = play_prompt(logits, &g, err);
    if (s == POT_OK) s = play_decode(logits, &g, err);
    stage_clear(&g);
    return s;
}
