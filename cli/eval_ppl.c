/* potluck eval ppl MODEL TEXT: how well the model predicts a text, and how far its packed form is from the reference.
 *
 * The tokens are cut into windows that do not overlap; each starts fresh, and every token but a window's first is predicted.
 * --against reference runs a second engine in this process (all weights in f32) over the same rows and compares the two
 * distributions token by token; only one block of logits is held at a time. */
#include <math.h>

#include "cli/cli.h"
#include "common/file.h"
#include "common/mem.h"
#include "common/progress.h"
#include "common/system.h"
#include "coordinator/cluster.h"
#include "coordinator/sample.h"
#include "kernels/math.h"

enum { BLOCK = 64, MAX_TEXT_BYTES = 1 << 30 };

/* A mean with its standard error. */
typedef struct tally {
    uint64_t n;
    double sum, squares;
} tally;

static void add(tally *t, double x) {
    t->n++;
    t->sum += x;
    t->squares += x * x;
}

static double mean(const tally *t) { return t->n ? t->sum / (double)t->n : 0; }

static double standard_error(const tally *t) {
    if (t->n < 2) return 0;
    double n = (double)t->n, variance = (t->squares - t->sum * t->sum / n) / (n - 1);
    return sqrt(variance > 0 ? variance / n : 0);
}

/* One of the two engines under comparison. */
typedef struct side {
    pot_cluster cluster;
    pot_sequence *sequence;
    float *logits; /* [BLOCK][vocab] */
    tally nll;
} side;

typedef struct evaluation {
    side tested, reference; /* reference only with --against */
    bool compare;
    tally kl;
    uint64_t agreed;
    uint32_t window, windows;
} evaluation;

static pot_status side_open(side *s, uint32_t window, pot_err *err) {
    const pot_config *config = pot_model_config(s->cluster.model);
    if (window > config->max_positions) {
        return pot_fail(err, POT_LIMIT, "--window %u is more than the model's %u positions", window,
                        config->max_positions);
    }
    s->logits = pot_alloc_array((size_t)BLOCK * config->vocab, sizeof(float));
    if (!s->logits) return pot_fail(err, POT_NO_MEMORY, "no memory for the logits");
    return pot_sequence_create(&s->sequence, config, s->cluster.kv, window, err);
}

static void side_close(side *s) {
    pot_sequence_free(s->sequence);
    pot_free(s->logits);
    pot_cluster_stop(&s->cluster);
}

/* n tokens from position `first` of the window; logits of each but the window's last, whose successor is not in it. */
static pot_status side_step(side *s, const int32_t *ids, uint32_t first, uint32_t n, uint32_t n_logits, pot_err *err) {
    pot_row rows[BLOCK];
    uint32_t wanted[BLOCK];
    for (uint32_t i = 0; i < n; i++) {
        rows[i] = (pot_row){s->sequence, first + i, ids[first + i]};
        wanted[i] = i;
    }
    return pot_engine_forward(s->cluster.engine, rows, n, NULL, s->logits, wanted, n_logits, NULL, err);
}

/* Kullback-Leibler divergence of q from p, in nats, both given as logits. */
static double divergence(const float *p, const float *q, uint32_t vocab) {
    double p_total = (double)p[0] - pot_log_softmax(p, vocab, 0); /* log of the sum of exponentials */
    double q_total = (double)q[0] - pot_log_softmax(q, vocab, 0), sum = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        double log_p = (double)p[i] - p_total, log_q = (double)q[i] - q_total;
        sum += pot_exp(log_p) * (log_p - log_q);
    }
    return sum;
}

static pot_status window_score(evaluation *e, const int32_t *ids, uint32_t n, pot_err *err) {
    const uint32_t vocab = pot_model_config(e->tested.cluster.model)->vocab;
    pot_sequence_truncate(e->tested.sequence, 0);
    if (e->compare) pot_sequence_truncate(e->reference.sequence, 0);
    for (uint32_t first = 0; first < n; first += BLOCK) {
        uint32_t rows = n - first < BLOCK ? n - first : BLOCK;
        uint32_t predictions = first + rows == n ? rows - 1 : rows;
        pot_status status = side_step(&e->tested, ids, first, rows, predictions, err);
        if (!status && e->compare) status = side_step(&e->reference, ids, first, rows, predictions, err);
        if (status) return status;
        for (uint32_t i = 0; i < predictions; i++) {
            const float *logits = e->tested.logits + (size_t)i * vocab,
                        *truth = e->reference.logits + (size_t)i * vocab;
            add(&e->tested.nll, -pot_log_softmax(logits, vocab, ids[first + i + 1]));
            if (!e->compare) continue;
            add(&e->reference.nll, -pot_log_softmax(truth, vocab, ids[first + i + 1]));
            add(&e->kl, divergence(truth, logits, vocab));
            e->agreed += pot_argmax(logits, vocab) == pot_argmax(truth, vocab);
        }
    }
    e->windows++;
    return POT_OK;
}

static pot_status score(evaluation *e, const pot_tokens *tokens, bool quiet, pot_err *err) {
    pot_progress progress;
    pot_progress_begin_count(&progress, "evaluating", tokens->n, "tokens", quiet);
    pot_status status = POT_OK;
    for (size_t at = 0; at + 1 < tokens->n && !status; at += e->window) {
        size_t n = tokens->n - at < e->window ? tokens->n - at : e->window;
        status = window_score(e, tokens->ids + at, (uint32_t)n, err);
        if (!status && pot_stop_requested())
            status = pot_fail(err, POT_CANCELLED, "stopped after %u windows", e->windows);
        pot_progress_update(&progress, at + n);
    }
    pot_progress_end(&progress);
    return status;
}

/* ---- report ------------------------------------------------------------------------------------------------------- */

/* exp(mean) with the error that the mean's own gives, to first order. */
static void perplexity_text(pot_buffer *out, const char *name, const tally *nll) {
    double perplexity = exp(mean(nll));
    pot_buffer_format(out, "%-11s perplexity %.4f +- %.4f  (%.5f +- %.5f nats a token)\n", name, perplexity,
                      perplexity * standard_error(nll), mean(nll), standard_error(nll));
}

static void print_text(pot_buffer *out, const evaluation *e) {
    pot_buffer_format(out, "%llu tokens predicted in %u windows of %u\n", (unsigned long long)e->tested.nll.n,
                      e->windows, e->window);
    perplexity_text(out, "model", &e->tested.nll);
    if (!e->compare) return;
    perplexity_text(out, "reference", &e->reference.nll);
    pot_buffer_format(out, "difference  %+.3f%% perplexity\n",
                      100 * (exp(mean(&e->tested.nll) - mean(&e->reference.nll)) - 1));
    pot_buffer_format(out, "divergence  %.6f +- %.6f nats (KL of the model from the reference, mean over tokens)\n",
                      mean(&e->kl), standard_error(&e->kl));
    pot_buffer_format(out, "agreement   %.3f%% of first choices are equal\n",
                      100 * (double)e->agreed / (double)e->kl.n);
}

static void perplexity_json(pot_buffer *out, const char *prefix, const tally *nll) {
    double perplexity = exp(mean(nll));
    pot_buffer_format(
        out, ", \"%snll\": %.9f, \"%snll_error\": %.9f, \"%sperplexity\": %.9f, \"%sperplexity_error\": %.9f", prefix,
        mean(nll), prefix, standard_error(nll), prefix, perplexity, prefix, perplexity * standard_error(nll));
}

static void print_json(pot_buffer *out, const evaluation *e) {
    pot_buffer_format(out, "{\"predicted\": %llu, \"windows\": %u, \"window\": %u", (unsigned long long)e->tested.nll.n,
                      e->windows, e->window);
    perplexity_json(out, "", &e->tested.nll);
    if (e->compare) {
        perplexity_json(out, "reference_", &e->reference.nll);
        pot_buffer_format(out, ", \"kl\": %.9f, \"kl_error\": %.9f, \"top1_agreement\": %.9f", mean(&e->kl),
                          standard_error(&e->kl), (double)e->agreed / (double)e->kl.n);
    }
    pot_buffer_text(out, "}\n");
}

/* ---- the command -------------------------------------------------------------------------------------------------- */

static pot_status read_tokens(pot_tokens *out, const pot_cli *cli, pot_err *err) {
    pot_tokenizer *tokenizer = NULL;
    pot_buffer text = {0};
    pot_status status = pot_tokenizer_open(&tokenizer, cli->arguments[0], err);
    if (!status) status = pot_file_read(&text, cli->arguments[1], MAX_TEXT_BYTES, err);
    if (!status) status = pot_tokenizer_encode(out, tokenizer, text.data ? text.data : "", text.bytes, err);
    if (!status && cli->settings->tokens > 0 && (size_t)cli->settings->tokens < out->n)
        out->n = (size_t)cli->settings->tokens;
    if (!status && out->n < 2) {
        status = pot_fail(err, POT_LIMIT, "%s has %zu tokens; at least two are needed", cli->arguments[1], out->n);
    }
    pot_buffer_free(&text);
    pot_tokenizer_close(tokenizer);
    return status;
}

static pot_status open_sides(evaluation *e, const pot_cli *cli, pot_err *err) {
    const char *model = cli->arguments[0];
    pot_status status = pot_cluster_start(&e->tested.cluster, cli->settings, model, err);
    if (!status) status = side_open(&e->tested, e->window, err);
    if (status || !e->compare) return status;
    pot_settings reference = *cli->settings;
    reference.reference = true;
    status = pot_cluster_start_alone(&e->reference.cluster, &reference, model, err);
    return status ? status : side_open(&e->reference, e->window, err);
}

static pot_status coordinate(const pot_cli *cli, pot_err *err) {
    pot_tokens tokens = {0};
    evaluation e = {.window = (uint32_t)cli->settings->window, .compare = cli->settings->against != NULL};
    pot_status status = read_tokens(&tokens, cli, err);
    if (!status) status = open_sides(&e, cli, err);
    if (!status) status = score(&e, &tokens, cli->settings->quiet, err);
    if (!status) {
        pot_buffer text = {0};
        if (cli->settings->json) {
            print_json(&text, &e);
        } else {
            print_text(&text, &e);
        }
        status = pot_out_buffer(cli->out, &text, err);
        pot_buffer_free(&text);
    }
    side_close(&e.reference);
    side_close(&e.tested);
    pot_tokens_free(&tokens);
    return status;
}

pot_status pot_cmd_eval_ppl(const pot_cli *cli, pot_err *err) {
    return cli->launch.rank == 0 ? coordinate(cli, err) : pot_cmd_worker(cli, err);
}
