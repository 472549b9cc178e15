/* potluck doctor [MODEL]: whether this machine is set up well for potluck, a line for everything that is known to matter and what to do where it is
 * not.  Ends with 1 when something is bad. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cli/doctor.h"
#include "common/json.h"
#include "common/mem.h"
#include "coordinator/cluster.h"
#include "coordinator/kv.h"

/* ---- the report --------------------------------------------------------------------------------------------------- */

static const char *const marks[] = {
#define X(name, text) text,
    DOCTOR_MARK_MAP(X)
#undef X
};

static void json_text(pot_buffer *out, const char *key, const char *text) {
    pot_buffer_format(out, ", \"%s\": ", key);
    if (text) {
        pot_json_quote(out, text, strlen(text));
    } else {
        pot_buffer_text(out, "null");
    }
}

void doctor_say(doctor *d, doctor_mark mark, const char *topic, const char *advice, const char *format, ...) {
    char found[1200];
    va_list args;
    va_start(args, format);
    vsnprintf(found, sizeof found, format, args);
    va_end(args);
    d->counts[mark]++;
    if (d->cli->settings->json) {
        pot_buffer_format(&d->out, "%s  {\"mark\": \"%s\"", d->lines ? ",\n" : "", marks[mark]);
        json_text(&d->out, "topic", topic);
        json_text(&d->out, "found", found);
        json_text(&d->out, "advice", advice);
        pot_buffer_byte(&d->out, '}');
    } else {
        pot_buffer_format(&d->out, "%-4s  %-12s %s\n", marks[mark], topic, found);
        if (advice) pot_buffer_format(&d->out, "%20s-> %s\n", "", advice);
    }
    d->lines++;
}

/* What is known so far, so that nobody waits before an empty screen. */
static pot_status flush(doctor *d, pot_err *err) {
    pot_status status = pot_out_buffer(d->cli->out, &d->out, err);
    pot_buffer_clear(&d->out);
    return status;
}

/* ---- the model ---------------------------------------------------------------------------------------------------- */

static double gib(uint64_t bytes) { return (double)bytes / 0x1p30; }

static pot_status experts_bytes(uint64_t *out, const pot_model *model, pot_err *err) {
    pot_map *map = NULL;
    pot_status status =
        pot_map_make(&map, "contiguous", 1, 1, pot_model_layer_shapes(model), pot_model_layers(model), err);
    if (status) return status;
    *out = pot_model_worker_bytes(model, map, 0);
    pot_map_free(map);
    return POT_OK;
}

static void fits(doctor *d, const pot_model *model) {
    pot_err err;
    pot_memory_info memory;
    uint64_t experts;
    const pot_config *c = pot_model_config(model);
    const pot_settings *s = d->cli->settings;
    bool f32 = s->reference || s->kv[0] == 'f';
    uint32_t ctx = (uint64_t)s->ctx < c->max_positions ? (uint32_t)s->ctx : c->max_positions;
    uint64_t own = pot_model_coordinator_bytes(model) + pot_sequence_bytes(c, f32 ? POT_KV_F32 : POT_KV_BF16, ctx);
    if (experts_bytes(&experts, model, &err)) {
        doctor_say(d, DOCTOR_BAD, "fits", NULL, "%s", err.text);
        return;
    }
    pot_memory_read(&memory);
    if (own > memory.usable_bytes) {
        doctor_say(d, DOCTOR_BAD, "fits",
                   "let a machine with more memory be rank 0, or take a smaller --ctx or --dense",
                   "the coordinator needs %.2f GiB with a context of %u tokens, %.2f GiB are free", gib(own), ctx,
                   gib(memory.usable_bytes));
    } else if (own + experts <= memory.usable_bytes) {
        doctor_say(d, DOCTOR_GOOD, "fits", NULL,
                   "all of it in RAM: coordinator %.2f GiB, experts %.2f GiB, %.2f GiB free", gib(own), gib(experts),
                   gib(memory.usable_bytes));
    } else if (pot_model_is_packed(model)) {
        doctor_say(d, DOCTOR_NOTE, "fits", "`potluck plan MODEL` says how fast that is, and what would help",
                   "alone, %.2f GiB of %.2f GiB of experts are read from disk when they are needed",
                   gib(own + experts - memory.usable_bytes), gib(experts));
    } else {
        doctor_say(
            d, DOCTOR_NOTE, "fits", "`potluck convert` makes a model whose experts can be read from disk",
            "alone, %.2f GiB of %.2f GiB of experts do not fit, and are not stored so that they could stay on disk",
            gib(own + experts - memory.usable_bytes), gib(experts));
    }
}

static void texts(doctor *d, const char *directory) {
    pot_err err;
    pot_tokenizer *tokenizer = NULL;
    pot_chat_template template;
    const char *named = d->cli->settings->chat_template;
    const char *advice = "copy tokenizer.json, tokenizer_config.json and chat_template.jinja of the checkpoint there";
    if (pot_tokenizer_open(&tokenizer, directory, &err)) {
        doctor_say(d, DOCTOR_BAD, "tokenizer", advice, "%s", err.text);
    } else {
        doctor_say(d, DOCTOR_GOOD, "tokenizer", NULL, "%u tokens", pot_tokenizer_size(tokenizer));
    }
    pot_tokenizer_close(tokenizer);
    if (pot_chat_choose(&template, directory, strcmp(named, "auto") ? named : NULL, &err)) {
        doctor_say(d, DOCTOR_BAD, "template", advice, "%s", err.text);
    } else {
        doctor_say(d, DOCTOR_GOOD, "template", NULL, "that of %s", pot_chat_template_name(template));
    }
}

void doctor_model(doctor *d, const char *directory) {
    pot_err err;
    pot_format_policy policy;
    pot_model *model = NULL;
    pot_status status = pot_settings_policy(&policy, d->cli->settings, &err);
    if (!status) status = pot_model_open(&model, directory, &policy, &err);
    if (status) {
        doctor_say(d, DOCTOR_BAD, "model", NULL, "%s", err.text);
        return;
    }
    const pot_config *c = pot_model_config(model);
    doctor_say(d, DOCTOR_GOOD, "model", NULL, "%s opens: %u layers, %u experts each, %s", directory, c->n_layers,
               c->n_routed, pot_model_is_packed(model) ? "converted" : "a checkpoint");
    fits(d, model);
    pot_model_close(model);
    if (strncmp(directory, "random:", 7) != 0) texts(d, directory);
}

/* ---- the command -------------------------------------------------------------------------------------------------- */

static pot_status look(doctor *d, const char *directory, pot_err *err) {
    bool json = d->cli->settings->json;
    pot_status status = POT_OK;
    doctor_cores(d);
    doctor_memory(d);
    if (!json) status = flush(d, err);
    doctor_disk(d, directory && strncmp(directory, "random:", 7) != 0 ? directory : NULL);
    if (!status && !json) status = flush(d, err);
    doctor_network(d);
    doctor_gpu(d);
    if (directory) doctor_model(d, directory);
    return status;
}

pot_status pot_cmd_doctor(const pot_cli *cli, pot_err *err) {
    doctor d = {.cli = cli};
    bool json = cli->settings->json;
    if (json) pot_buffer_text(&d.out, "{\"checks\": [\n");
    pot_status status = look(&d, cli->n_arguments ? cli->arguments[0] : NULL, err);
    pot_buffer_format(&d.out,
                      json ? "\n], \"good\": %u, \"notes\": %u, \"bad\": %u}\n" : "\n%u good, %u notes, %u bad\n",
                      d.counts[DOCTOR_GOOD], d.counts[DOCTOR_NOTE], d.counts[DOCTOR_BAD]);
    if (!status) status = flush(&d, err);
    pot_buffer_free(&d.out);
    if (!status && d.counts[DOCTOR_BAD])
        status = pot_fail(err, POT_ERROR, "doctor: %u of %u checks are bad", d.counts[DOCTOR_BAD], d.lines);
    return status;
}
