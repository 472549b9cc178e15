/* potluck inspect MODEL: what the directory holds (a census of tensors by what they are for, how they are stored and how they would be
 * computed) and the memory that running it takes.  Reads headers only, so it is quick for a model of any size. */
#include <string.h>

#include "cli/cli.h"
#include "common/json.h"
#include "coordinator/cluster.h"
#include "coordinator/kv.h"

typedef struct inspection {
    const char *directory;
    const pot_model *model;
    const pot_config *config;
    uint32_t n_rows;
    pot_census_row rows[POT_CENSUS_ROWS];
    pot_census_row total;
    uint32_t ctx_tokens;
    uint64_t coordinator_bytes, experts_bytes, kv_bytes;
    char layers[POT_MAX_LAYERS + 1];   /* d dense, s sparse, m MTP */
    char schedule[POT_MAX_LAYERS + 1]; /* F full (own index), S shared */
    char fingerprint[33];
} inspection;

static double gib(uint64_t bytes) { return (double)bytes / (1024.0 * 1024 * 1024); }

static pot_status look(inspection *in, const pot_cli *cli, pot_err *err) {
    const pot_config *c = in->config = pot_model_config(in->model);
    pot_map *map = NULL;
    pot_status status =
        pot_map_make(&map, "contiguous", 1, 1, pot_model_layer_shapes(in->model), pot_model_layers(in->model), err);
    if (status) return status;
    in->n_rows = pot_model_census(in->rows, POT_CENSUS_ROWS, in->model);
    for (uint32_t i = 0; i < in->n_rows; i++) {
        in->total.tensors += in->rows[i].tensors;
        in->total.parameters += in->rows[i].parameters;
        in->total.stored_bytes += in->rows[i].stored_bytes;
        in->total.packed_bytes += in->rows[i].packed_bytes;
    }
    bool f32 = cli->settings->reference || cli->settings->kv[0] == 'f';
    in->ctx_tokens = (uint64_t)cli->settings->ctx < c->max_positions ? (uint32_t)cli->settings->ctx : c->max_positions;
    in->coordinator_bytes = pot_model_coordinator_bytes(in->model);
    in->experts_bytes = pot_model_worker_bytes(in->model, map, 0);
    in->kv_bytes = pot_sequence_bytes(c, f32 ? POT_KV_F32 : POT_KV_BF16, in->ctx_tokens);
    for (uint32_t layer = 0; layer < pot_model_layers(in->model); layer++) {
        in->layers[layer] = layer >= c->n_layers ? 'm' : c->layer_is_dense[layer] ? 'd' : 's';
        in->schedule[layer] = c->layer_is_full[layer] ? 'F' : 'S';
    }
    pot_hash_text(in->fingerprint, pot_model_fingerprint(in->model));
    pot_map_free(map);
    return POT_OK;
}

static void text_row(pot_buffer *out, const pot_census_row *r) {
    pot_buffer_format(out, "  %-16s %-8s %-8s %9llu %16llu %11.3f %11.3f\n", r->group, r->stored, r->format,
                      (unsigned long long)r->tensors, (unsigned long long)r->parameters, gib(r->stored_bytes),
                      gib(r->packed_bytes));
}

static void print_text(pot_buffer *out, const inspection *in) {
    const pot_config *c = in->config;
    pot_buffer_format(out, "%s: %u layers%s, hidden %u, vocabulary %u, context up to %u\n", in->directory, c->n_layers,
                      c->n_mtp ? " and one for drafts (MTP)" : "", c->hidden, c->vocab, c->max_positions);
    pot_buffer_format(out, "experts   %u a layer, %u chosen, %u shared, width %u\n", c->n_routed, c->top_k, c->n_shared,
                      c->moe_inner);
    pot_buffer_format(out, "attention %u heads, latent %u + %u, index keeps %u positions\n", c->n_heads, c->kv_lora,
                      c->rope_dim, c->index_topk);
    pot_buffer_format(out,
                      "layers    %s  (d dense, s sparse, m MTP)\nindexer   %s  (F own selection, S the one before)\n",
                      in->layers, in->schedule);
    pot_buffer_format(out, "model id  %s\n\n  %-16s %-8s %-8s %9s %16s %11s %11s\n", in->fingerprint, "role", "stored",
                      "computed", "tensors", "parameters", "stored GiB", "packed GiB");
    for (uint32_t i = 0; i < in->n_rows; i++) text_row(out, &in->rows[i]);
    pot_census_row total = in->total;
    total.group = "total";
    total.stored = total.format = "";
    text_row(out, &total);
    pot_buffer_format(out, "\nmemory    coordinator %.3f GiB, all experts %.3f GiB, KV cache of %u tokens %.3f GiB\n",
                      gib(in->coordinator_bytes), gib(in->experts_bytes), in->ctx_tokens, gib(in->kv_bytes));
}

static void print_json(pot_buffer *out, const inspection *in) {
    const pot_config *c = in->config;
    pot_buffer_text(out, "{\"model\": ");
    pot_json_quote(out, in->directory, strlen(in->directory));
    pot_buffer_format(
        out,
        ", \"fingerprint\": \"%s\", \"layers\": \"%s\", \"schedule\": \"%s\", \"hidden\": %u, \"vocab\": %u, "
        "\"max_positions\": %u, \"n_routed\": %u, \"top_k\": %u, \"n_shared\": %u, \"moe_inner\": %u, ",
        in->fingerprint, in->layers, in->schedule, c->hidden, c->vocab, c->max_positions, c->n_routed, c->top_k,
        c->n_shared, c->moe_inner);
    pot_buffer_text(out, "\"census\": [");
    for (uint32_t i = 0; i < in->n_rows; i++) {
        const pot_census_row *r = &in->rows[i];
        pot_buffer_format(
            out,
            "%s{\"role\": \"%s\", \"stored\": \"%s\", \"format\": \"%s\", \"tensors\": %llu, \"parameters\": %llu, "
            "\"stored_bytes\": %llu, \"packed_bytes\": %llu}",
            i ? ", " : "", r->group, r->stored, r->format, (unsigned long long)r->tensors,
            (unsigned long long)r->parameters, (unsigned long long)r->stored_bytes,
            (unsigned long long)r->packed_bytes);
    }
    pot_buffer_format(out,
                      "], \"tensors\": %llu, \"parameters\": %llu, \"stored_bytes\": %llu, \"packed_bytes\": %llu, ",
                      (unsigned long long)in->total.tensors, (unsigned long long)in->total.parameters,
                      (unsigned long long)in->total.stored_bytes, (unsigned long long)in->total.packed_bytes);
    pot_buffer_format(out, "\"ctx\": %u, \"coordinator_bytes\": %llu, \"experts_bytes\": %llu, \"kv_bytes\": %llu}\n",
                      in->ctx_tokens, (unsigned long long)in->coordinator_bytes, (unsigned long long)in->experts_bytes,
                      (unsigned long long)in->kv_bytes);
}

pot_status pot_cmd_inspect(const pot_cli *cli, pot_err *err) {
    pot_format_policy policy;
    pot_model *model = NULL;
    pot_status status = pot_settings_policy(&policy, cli->settings, err);
    if (!status) status = pot_model_open(&model, cli->arguments[0], &policy, err);
    if (status) return status;
    inspection in = {.directory = cli->arguments[0], .model = model};
    status = look(&in, cli, err);
    if (!status) {
        pot_buffer text = {0};
        if (cli->settings->json) {
            print_json(&text, &in);
        } else {
            print_text(&text, &in);
        }
        status = pot_out_buffer(cli->out, &text, err);
        pot_buffer_free(&text);
    }
    pot_model_close(model);
    return status;
}
