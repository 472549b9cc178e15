/* potluck eval trace MODEL --input F --out F: everything that the model computes for a row of token ids, as a safetensors file with
 * the names of tests/fixtures/README.md.  Made to be held against other engines, and against this one in another arrangement.
 *
 *   prefill   all rows of all sequences in one step; hidden states, selections, experts, logits of the given sequence
 *   drafts    the MTP layer over the same rows, each with the token that follows it
 *   greedy    --greedy N more tokens, one row of every sequence a step
 *
 * With --batch B the given sequence runs among B - 1 rotations of itself, in the middle, so that neighbours on both sides could
 * disturb it if rows were not independent. */
#include <stdio.h>
#include <string.h>

#include "cli/cli.h"
#include "common/mem.h"
#include "common/system.h"
#include "coordinator/cluster.h"
#include "coordinator/sample.h"
#include "model/safetensors.h"

enum { MAX_OUTPUTS = 16 + 4 * (POT_MAX_LAYERS + 1), NAME_BYTES = 32 };

typedef struct trace {
    const pot_cli *cli;
    pot_cluster cluster;
    const pot_config *config;
    uint32_t n, batch, given; /* tokens, sequences, which one is reported */
    uint32_t greedy;
    int32_t *ids;               /* [n] of the given sequence */
    pot_sequence **sequences;   /* [batch] */
    int32_t *current;           /* [batch] the latest choice of each */
    pot_row *rows;              /* [batch * n] */
    float *hidden, *all_logits; /* [batch * n][hidden] normed; [batch - 1 + n][vocab] */
    float *drafts, *draft_logits, *step_logits;
    /* What goes into the file. */
    pot_tensor_out outputs[MAX_OUTPUTS];
    char names[MAX_OUTPUTS][NAME_BYTES];
    void *owned[MAX_OUTPUTS];
    uint32_t n_outputs;
    /* Where the probe writes, by layer; NULL where a layer has nothing of the kind. */
    float *layer_hidden[POT_MAX_LAYERS + 1], *layer_weights[POT_MAX_LAYERS + 1];
    uint8_t *layer_selected[POT_MAX_LAYERS + 1];
    int32_t *layer_experts[POT_MAX_LAYERS + 1];
} trace;

/* ---- input -------------------------------------------------------------------------------------------------------- */

static int64_t read_id(const pot_tensor *t, uint64_t i) {
    int32_t narrow;
    int64_t wide;
    if (t->dtype == POT_DTYPE_I64) return memcpy(&wide, t->data + i * 8, 8), wide;
    return memcpy(&narrow, t->data + i * 4, 4), narrow;
}

static pot_status check_input(const pot_tensor *ids, const char *path, uint32_t batch, pot_err *err) {
    if (!ids) return pot_fail(err, POT_FORMAT, "%s: there is no tensor input_ids", path);
    if (ids->dtype != POT_DTYPE_I32 && ids->dtype != POT_DTYPE_I64) {
        return pot_fail(err, POT_FORMAT, "%s: input_ids is %s, need I32 or I64", path, pot_dtype_name(ids->dtype));
    }
    uint64_t count = ids->bytes / pot_dtype_bytes(ids->dtype);
    if (!count || count > INT32_MAX / batch) {
        return pot_fail(err, POT_FORMAT, "%s: input_ids has %llu tokens, need 1 to %d", path, (unsigned long long)count,
                        INT32_MAX / (int)batch);
    }
    return POT_OK;
}

static pot_status take_ids(trace *t, const pot_tensor *ids, const char *path, pot_err *err) {
    t->n = (uint32_t)(ids->bytes / pot_dtype_bytes(ids->dtype));
    t->ids = pot_alloc_array(t->n, sizeof *t->ids);
    if (!t->ids) return pot_fail(err, POT_NO_MEMORY, "no memory for %u tokens", t->n);
    for (uint32_t i = 0; i < t->n; i++) {
        int64_t id = read_id(ids, i);
        if (id < 0 || id > INT32_MAX) {
            return pot_fail(err, POT_FORMAT, "%s: input_ids[%u] is %lld", path, i, (long long)id);
        }
        t->ids[i] = (int32_t)id;
    }
    return POT_OK;
}

static pot_status read_input(trace *t, pot_err *err) {
    const char *path = t->cli->settings->input;
    pot_shards *file = NULL;
    pot_status status = pot_shards_open_file(&file, path, err);
    if (status) return status;
    const pot_tensor *ids = pot_shards_find(file, "input_ids");
    status = check_input(ids, path, t->batch, err);
    if (!status) status = take_ids(t, ids, path, err);
    pot_shards_close(file);
    return status;
}

/* ---- what goes into the file -------------------------------------------------------------------------------------- */

static void output(trace *t, const char *kind, int layer, pot_dtype dtype, uint32_t rank, uint64_t rows,
                   uint64_t columns, const void *data) {
    POT_ASSERT(t->n_outputs < MAX_OUTPUTS);
    char *name = t->names[t->n_outputs];
    if (layer < 0) {
        snprintf(name, NAME_BYTES, "%s", kind);
    } else {
        snprintf(name, NAME_BYTES, "%s.%d", kind, layer);
    }
    t->outputs[t->n_outputs++] =
        (pot_tensor_out){.name = name, .dtype = dtype, .rank = rank, .shape = {rows, columns}, .data = data};
}

/* A tensor of its own for one layer; NULL when memory is short. */
static void *layer_output(trace *t, const char *kind, uint32_t layer, pot_dtype dtype, uint64_t columns) {
    void *data = pot_alloc_array((size_t)t->n * columns, pot_dtype_bytes(dtype));
    if (!data) return NULL;
    t->owned[t->n_outputs] = data;
    output(t, kind, (int)layer, dtype, 2, t->n, columns, data);
    return data;
}

static pot_status prepare(trace *t, pot_err *err) {
    const pot_config *c = t->config;
    const size_t rows = (size_t)t->batch * t->n;
    bool short_of_memory = false;
    for (uint32_t layer = 0; layer < c->n_layers + c->n_mtp; layer++) {
        short_of_memory |= !(t->layer_hidden[layer] = layer_output(t, "hidden", layer, POT_DTYPE_F32, c->hidden));
        if (c->layer_is_full[layer]) {
            short_of_memory |= !(t->layer_selected[layer] = layer_output(t, "selected", layer, POT_DTYPE_U8, t->n));
        }
        if (!c->layer_is_dense[layer]) {
            short_of_memory |= !(t->layer_experts[layer] = layer_output(t, "experts", layer, POT_DTYPE_I32, c->top_k));
            short_of_memory |= !(t->layer_weights[layer] = layer_output(t, "weights", layer, POT_DTYPE_F32, c->top_k));
        }
    }
    short_of_memory |= !(t->sequences = pot_alloc_array(t->batch, sizeof(pot_sequence *)));
    short_of_memory |= !(t->current = pot_alloc_array(t->batch, sizeof(int32_t)));
    short_of_memory |= !(t->rows = pot_alloc_array(rows, sizeof(pot_row)));
    short_of_memory |= !(t->hidden = pot_alloc_array(rows * c->hidden, sizeof(float)));
    short_of_memory |= !(t->all_logits = pot_alloc_array((size_t)(t->batch - 1 + t->n) * c->vocab, sizeof(float)));
    short_of_memory |= !(t->step_logits = pot_alloc_array((size_t)t->batch * c->vocab, sizeof(float)));
    if (c->n_mtp) {
        short_of_memory |= !(t->drafts = pot_alloc_array(rows * c->hidden, sizeof(float)));
        short_of_memory |= !(t->draft_logits = pot_alloc_array(rows * c->vocab, sizeof(float)));
    }
    if (short_of_memory)
        return pot_fail(err, POT_NO_MEMORY, "no memory to trace %u tokens in a batch of %u", t->n, t->batch);
    uint64_t positions = (uint64_t)t->n + t->greedy;
    if (positions > c->max_positions) {
        return pot_fail(err, POT_LIMIT, "%u tokens and --greedy %u are more than the model's %u positions", t->n,
                        t->greedy, c->max_positions);
    }
    pot_status status = POT_OK;
    for (uint32_t b = 0; b < t->batch && !status; b++) {
        status = pot_sequence_create(&t->sequences[b], c, t->cluster.kv, (uint32_t)positions, err);
    }
    return status;
}

/* ---- the probe: rows of the given sequence only ------------------------------------------------------------------- */

/* The place of a step's row in the given sequence, or false. */
static bool place(const trace *t, uint32_t row, size_t *out) {
    uint32_t first = t->given * t->n;
    *out = row - first;
    return row >= first && row - first < t->n;
}

static void see_hidden(void *context, uint32_t layer, uint32_t row, const float *x) {
    trace *t = context;
    size_t at;
    if (place(t, row, &at))
        memcpy(t->layer_hidden[layer] + at * t->config->hidden, x, t->config->hidden * sizeof(float));
}

static void see_selected(void *context, uint32_t layer, uint32_t row, const uint32_t *positions, uint32_t n) {
    trace *t = context;
    size_t at;
    if (!place(t, row, &at) || !t->layer_selected[layer]) return;
    for (uint32_t i = 0; i < n; i++) t->layer_selected[layer][at * t->n + (positions ? positions[i] : i)] = 1;
}

static void see_experts(void *context, uint32_t layer, uint32_t row, const uint32_t *ids, const float *weights,
                        uint32_t k) {
    trace *t = context;
    size_t at;
    if (!place(t, row, &at) || !t->layer_experts[layer]) return;
    for (uint32_t i = 0; i < k; i++) {
        t->layer_experts[layer][at * k + i] = (int32_t)ids[i];
        t->layer_weights[layer][at * k + i] = weights[i];
    }
}

/* ---- the three parts ---------------------------------------------------------------------------------------------- */

/* Token p of sequence b: the given one is as it came, the others are rotations of it. */
static int32_t token_at(const trace *t, uint32_t b, uint32_t p) {
    uint32_t turn = (b + t->batch - t->given) % t->batch;
    return t->ids[((uint64_t)p + turn) % t->n];
}

static void fill_rows(trace *t, uint32_t ahead) {
    for (uint32_t b = 0; b < t->batch; b++) {
        for (uint32_t p = 0; p < t->n; p++) {
            int32_t token = p + ahead < t->n ? token_at(t, b, p + ahead) : t->current[b];
            t->rows[(size_t)b * t->n + p] = (pot_row){t->sequences[b], p, token};
        }
    }
}

static pot_status prefill(trace *t, const pot_probe *probe, pot_err *err) {
    const uint32_t vocab = t->config->vocab, n_logits = t->batch - 1 + t->n;
    uint32_t *wanted = pot_alloc_array(n_logits, sizeof *wanted), n = 0;
    if (!wanted) return pot_fail(err, POT_NO_MEMORY, "no memory for the rows");
    for (uint32_t b = 0; b < t->batch; b++) {
        for (uint32_t p = b == t->given ? 0 : t->n - 1; p < t->n; p++) wanted[n++] = b * t->n + p;
    }
    fill_rows(t, 0);
    pot_status status = pot_engine_forward(t->cluster.engine, t->rows, t->batch * t->n, t->hidden, t->all_logits,
                                           wanted, n_logits, probe, err);
    pot_free(wanted);
    if (status) return status;
    for (uint32_t b = 0; b < t->batch; b++) {
        size_t last = b + (b >= t->given ? t->n - 1 : 0);
        t->current[b] = pot_argmax(t->all_logits + last * vocab, vocab);
    }
    output(t, "input_ids", -1, POT_DTYPE_I32, 1, t->n, 0, t->ids);
    output(t, "logits", -1, POT_DTYPE_F32, 2, t->n, vocab, t->all_logits + (size_t)t->given * vocab);
    return POT_OK;
}

static pot_status drafts(trace *t, const pot_probe *probe, pot_err *err) {
    const pot_config *c = t->config;
    if (!c->n_mtp) return POT_OK;
    fill_rows(t, 1);
    pot_status status = pot_engine_draft(t->cluster.engine, t->rows, t->hidden, t->batch * t->n, t->drafts,
                                         t->draft_logits, probe, err);
    if (status) return status;
    int32_t *next = pot_alloc_array(t->n, sizeof *next);
    if (!next) return pot_fail(err, POT_NO_MEMORY, "no memory for the drafts");
    const size_t first = (size_t)t->given * t->n;
    for (uint32_t p = 0; p < t->n; p++) next[p] = t->rows[first + p].token;
    t->owned[t->n_outputs] = next;
    output(t, "mtp_next_ids", -1, POT_DTYPE_I32, 1, t->n, 0, next);
    output(t, "mtp_hidden", -1, POT_DTYPE_F32, 2, t->n, c->hidden, t->drafts + first * c->hidden);
    output(t, "mtp_logits", -1, POT_DTYPE_F32, 2, t->n, c->vocab, t->draft_logits + first * c->vocab);
    return POT_OK;
}

static pot_status decode(trace *t, pot_err *err) {
    if (!t->greedy) return POT_OK;
    const uint32_t vocab = t->config->vocab;
    int32_t *chosen = pot_alloc_array(t->greedy, sizeof *chosen);
    uint32_t *wanted = pot_alloc_array(t->batch, sizeof *wanted);
    if (!chosen || !wanted) {
        pot_free(chosen);
        pot_free(wanted);
        return pot_fail(err, POT_NO_MEMORY, "no memory for --greedy %u", t->greedy);
    }
    t->owned[t->n_outputs] = chosen;
    output(t, "greedy", -1, POT_DTYPE_I32, 1, t->greedy, 0, chosen);
    pot_status status = POT_OK;
    for (uint32_t step = 0; step < t->greedy; step++) {
        chosen[step] = t->current[t->given];
        if (step + 1 == t->greedy) break;
        for (uint32_t b = 0; b < t->batch; b++) {
            t->rows[b] = (pot_row){t->sequences[b], t->n + step, t->current[b]};
            wanted[b] = b;
        }
        status =
            pot_engine_forward(t->cluster.engine, t->rows, t->batch, NULL, t->step_logits, wanted, t->batch, NULL, err);
        if (!status && pot_stop_requested()) status = pot_fail(err, POT_CANCELLED, "stopped after %u tokens", step + 1);
        if (status) break;
        for (uint32_t b = 0; b < t->batch; b++) t->current[b] = pot_argmax(t->step_logits + (size_t)b * vocab, vocab);
    }
    pot_free(wanted);
    return status;
}

/* ---- the command -------------------------------------------------------------------------------------------------- */

static void trace_close(trace *t) {
    for (uint32_t b = 0; t->sequences && b < t->batch; b++) pot_sequence_free(t->sequences[b]);
    for (uint32_t i = 0; i < MAX_OUTPUTS; i++) pot_free(t->owned[i]);
    pot_free(t->sequences);
    pot_free(t->ids);
    pot_free(t->current);
    pot_free(t->rows);
    pot_free(t->hidden);
    pot_free(t->all_logits);
    pot_free(t->drafts);
    pot_free(t->draft_logits);
    pot_free(t->step_logits);
    pot_cluster_stop(&t->cluster);
    pot_free(t);
}

static pot_status coordinate(const pot_cli *cli, pot_err *err) {
    const pot_settings *settings = cli->settings;
    trace *t = pot_alloc(sizeof *t);
    if (!t) return pot_fail(err, POT_NO_MEMORY, "no memory for the trace");
    t->cli = cli;
    t->batch = (uint32_t)settings->batch;
    t->given = t->batch / 2;
    t->greedy = (uint32_t)settings->greedy;
    const pot_probe probe = {.context = t, .hidden = see_hidden, .selected = see_selected, .experts = see_experts};
    pot_status status = read_input(t, err);
    if (!status) status = pot_cluster_start(&t->cluster, settings, cli->arguments[0], err);
    if (!status) {
        t->config = pot_model_config(t->cluster.model);
        status = prepare(t, err);
    }
    if (!status) status = prefill(t, &probe, err);
    if (!status) status = drafts(t, &probe, err);
    if (!status) status = decode(t, err);
    if (!status) status = pot_safetensors_write(settings->out, t->outputs, t->n_outputs, err);
    trace_close(t);
    return status;
}

pot_status pot_cmd_eval_trace(const pot_cli *cli, pot_err *err) {
    if (!cli->settings->input) return pot_fail(err, POT_USAGE, "eval trace: --input FILE.safetensors is missing");
    if (!cli->settings->out) return pot_fail(err, POT_USAGE, "eval trace: --out FILE.safetensors is missing");
    return cli->launch.rank == 0 ? coordinate(cli, err) : pot_cmd_worker(cli, err);
}
