/* What quantization costs, on the demo model: perplexity of the packed default path against --reference, and the skills that the
 * model was trained for.  The bounds are the project's own promise (docs/numerics.md), not what happens to come out today. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/json.h"
#include "common/log.h"
#include "common/mem.h"
#include "coordinator/sample.h"
#include "model/tokenizer.h"
#include "tests/rig.h"

enum { LIMIT = 48, CONTEXT = 1024, MAX_SKILLS = 16 };

#define MUST(call)                                     \
    do {                                               \
        pot_err err;                                   \
        if (call) fail_msg("%s: %s", #call, err.text); \
    } while (0)

/* ---- perplexity --------------------------------------------------------------------------------------------------- */

static char program[4096];

static void perplexity_is_within_a_hundredth_of_the_reference(void **state) {
    (void)state;
    char command[4400], line[4096] = "";
    snprintf(command, sizeof command,
             "%s eval ppl demo demo/held_out.txt --tokens 8192 --window 512 --against reference --json --quiet",
             program);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    char *got = fgets(line, sizeof line, pipe);
    assert_int_equal(pclose(pipe), 0);
    assert_non_null(got);
    json_t *report = NULL;
    int64_t predicted = 0;
    double perplexity = 0, reference = 0, kl = -1, agreement = 0;
    MUST(pot_json_parse(&report, line, strlen(line), "eval ppl", &err));
    MUST(pot_json_int(&predicted, report, "predicted", 0, 8192, true, "eval ppl", &err));
    MUST(pot_json_double(&perplexity, report, "perplexity", 0, 1e9, true, "eval ppl", &err));
    MUST(pot_json_double(&reference, report, "reference_perplexity", 0, 1e9, true, "eval ppl", &err));
    MUST(pot_json_double(&kl, report, "kl", -1, 1e9, true, "eval ppl", &err));
    MUST(pot_json_double(&agreement, report, "top1_agreement", 0, 1, true, "eval ppl", &err));
    json_decref(report);
    printf("perplexity %.4f, reference %.4f (%+.3f%%), KL %.6f nats, first choices equal in %.2f%%\n", perplexity,
           reference, 100 * (perplexity / reference - 1), kl, 100 * agreement);
    assert_int_equal(predicted, 16 * 511);
    assert_true(fabs(perplexity / reference - 1) <= 0.01);
    assert_true(kl >= 0 && kl < 0.05); /* far above what a right packing costs, far below what a wrong one does */
}

/* ---- skills ------------------------------------------------------------------------------------------------------- */

typedef struct skill {
    const char *name;
    int64_t expected, right, prompts;
} skill;

typedef struct examination {
    pot_rig rig;
    const pot_config *config;
    pot_tokenizer *tokenizer;
    pot_kv_format kv;
    float *logits;
    json_t *file;
    skill skills[MAX_SKILLS];
    int n_skills;
} examination;

static void examination_open(examination *e, bool reference) {
    *e = (examination){.kv = reference ? POT_KV_F32 : POT_KV_BF16};
    pot_rig_options options = {
        .model = "demo", .policy = pot_format_policy_default, .map = "contiguous", .n_workers = 1};
    if (reference) options.policy = (pot_format_policy){.reference = true};
    MUST(pot_rig_open(&e->rig, &options, &err));
    MUST(pot_rig_engine(&e->rig, 64, &err));
    MUST(pot_tokenizer_open(&e->tokenizer, "demo", &err));
    MUST(pot_json_read(&e->file, "demo/demo_skills.json", 1 << 24, &err));
    e->config = pot_model_config(e->rig.model);
    e->logits = pot_alloc_array(e->config->vocab, sizeof(float));
    assert_non_null(e->logits);
    const char *name;
    json_t *score;
    json_object_foreach(json_object_get(e->file, "scores"), name, score) {
        assert_true(e->n_skills < MAX_SKILLS);
        e->skills[e->n_skills].name = name;
        e->skills[e->n_skills++].expected = json_integer_value(json_object_get(score, "right"));
    }
    assert_true(e->n_skills > 0);
}

static void examination_close(examination *e) {
    json_decref(e->file);
    pot_free(e->logits);
    pot_tokenizer_close(e->tokenizer);
    MUST(pot_rig_close(&e->rig, &err));
}

static bool ends_text(const pot_config *config, int32_t id) {
    for (uint32_t i = 0; i < config->n_eos; i++)
        if (config->eos[i] == id) return true;
    return false;
}

/* Greedy tokens after the prompt, the one that ends the text included. */
static void answer(pot_tokens *out, examination *e, const char *prompt) {
    pot_tokens ids = {0};
    pot_sequence *sequence = NULL;
    MUST(pot_tokenizer_encode(&ids, e->tokenizer, prompt, strlen(prompt), &err));
    MUST(pot_sequence_create(&sequence, e->config, e->kv, CONTEXT, &err));
    assert_true(ids.n > 0 && ids.n + LIMIT <= CONTEXT);
    pot_row *rows = pot_alloc_array(ids.n, sizeof *rows);
    assert_non_null(rows);
    uint32_t n = (uint32_t)ids.n, position = n;
    for (uint32_t i = 0; i < n; i++) rows[i] = (pot_row){sequence, i, ids.ids[i]};
    for (;;) {
        const uint32_t last = n - 1;
        MUST(pot_engine_forward(e->rig.engine, rows, n, NULL, e->logits, &last, 1, NULL, &err));
        int32_t id = pot_argmax(e->logits, e->config->vocab);
        MUST(pot_tokens_push(out, id, &err));
        if (ends_text(e->config, id) || out->n == LIMIT) break;
        rows[0] = (pot_row){sequence, position++, id};
        n = 1;
    }
    pot_free(rows);
    pot_sequence_free(sequence);
    pot_tokens_free(&ids);
}

static const char *text_of(const json_t *item, const char *key) {
    const char *text = NULL;
    MUST(pot_json_string(&text, item, key, true, "demo_skills.json", &err));
    return text;
}

static bool answer_contains(const examination *e, const pot_tokens *tokens, const char *must) {
    pot_buffer text = {0};
    pot_tokenizer_decode(&text, e->tokenizer, tokens->ids, tokens->n, false);
    bool does = text.data && strstr(text.data, must);
    pot_buffer_free(&text);
    return does;
}

static bool same_tokens(const pot_tokens *got, const json_t *want) {
    if (got->n != json_array_size(want)) return false;
    for (size_t i = 0; i < got->n; i++)
        if (json_integer_value(json_array_get(want, i)) != got->ids[i]) return false;
    return true;
}

static void skills_survive_quantization(void **state) {
    (void)state;
    examination e;
    examination_open(&e, false);
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(e.file, "cases"), i, item) {
        pot_tokens tokens = {0};
        answer(&tokens, &e, text_of(item, "prompt"));
        for (int k = 0; k < e.n_skills; k++) {
            if (strcmp(e.skills[k].name, text_of(item, "skill"))) continue;
            e.skills[k].prompts++;
            e.skills[k].right += answer_contains(&e, &tokens, text_of(item, "must_contain"));
        }
        pot_tokens_free(&tokens);
    }
    int lost = 0;
    for (int k = 0; k < e.n_skills; k++) {
        const skill *s = &e.skills[k];
        printf("%-12s %2lld of %lld right, reference %lld\n", s->name, (long long)s->right, (long long)s->prompts,
               (long long)s->expected);
        lost += s->right < s->expected - 1;
    }
    examination_close(&e);
    assert_int_equal(lost, 0);
}

static void reference_gives_the_tokens_of_pytorch(void **state) {
    (void)state;
    examination e;
    examination_open(&e, true);
    int clear = 0, unclear_differ = 0, wrong = 0;
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(e.file, "cases"), i, item) {
        pot_tokens tokens = {0};
        double margin = 0;
        MUST(pot_json_double(&margin, item, "min_margin", 0, 1e9, true, "demo_skills.json", &err));
        answer(&tokens, &e, text_of(item, "prompt"));
        bool same = same_tokens(&tokens, json_object_get(item, "tokens"));
        clear += margin > 1e-3;
        if (!same && margin > 1e-3) {
            wrong++;
            printf("case %zu (%s, margin %g) has other tokens\n", i, text_of(item, "skill"), margin);
        }
        unclear_differ += !same && margin <= 1e-3;
        pot_tokens_free(&tokens);
    }
    printf("%d prompts with a clear margin, %d of them differ; %d of the others differ\n", clear, wrong,
           unclear_differ);
    examination_close(&e);
    assert_true(clear > 100);
    assert_int_equal(wrong, 0);
}

int main(int argc, char **argv) {
    pot_log_configure("warn", NULL);
    const char *slash = argc ? strrchr(argv[0], '/') : NULL;
    snprintf(program, sizeof program, "%.*s/../potluck", slash ? (int)(slash - argv[0]) : 1, slash ? argv[0] : ".");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(perplexity_is_within_a_hundredth_of_the_reference),
        cmocka_unit_test(skills_survive_quantization),
        cmocka_unit_test(reference_gives_the_tokens_of_pytorch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
