/* The tokenizer against Hugging Face's: fixtures/tokenizer_vectors.json and, for what is rare and nasty,
 * fixtures/tokenizer_extra.jsonl; both with demo/tokenizer.json.  And files that must be refused, each with its
 * sentence: every case is the demo's file with one edit. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/file.h"
#include "common/json.h"
#include "common/mem.h"
#include "model/tokenizer.h"
#include "model/tokenizer_parts.h"
#include "model/unicode_tables.h"

#define MIB ((size_t)1 << 20)

/* ---- helpers ----------------------------------------------------------------------------------- */

static json_t *read_json(const char *path) {
    pot_err err = {0};
    json_t *value = NULL;
    if (pot_json_read(&value, path, 64 * MIB, &err)) fail_msg("%s", err.text);
    return value;
}

static pot_tokenizer *open_demo(void) {
    pot_err err = {0};
    pot_tokenizer *t = NULL;
    if (pot_tokenizer_open(&t, "demo", &err)) fail_msg("%s", err.text);
    return t;
}

static pot_status parse_value(pot_tokenizer **out, const json_t *value, pot_err *err) {
    char *text = json_dumps(value, 0);
    assert_non_null(text);
    pot_status status = pot_tokenizer_parse(out, text, strlen(text), "t.json", err);
    free(text);
    return status;
}

/* Sets what `path` ("model.vocab.a", "added_tokens.0.id") names to the JSON text `to`; NULL takes it away. */
static void edit(json_t *root, const char *path, const char *to) {
    char copy[128], *rest = copy;
    snprintf(copy, sizeof copy, "%s", path);
    json_t *at = root;
    for (char *key; (key = strsep(&rest, "."));) {
        json_t *value = NULL;
        if (!rest && to) assert_non_null(value = json_loads(to, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL));
        if (json_is_array(at)) {
            size_t index = strtoul(key, NULL, 10);
            if (rest)
                at = json_array_get(at, index);
            else
                assert_int_equal(value ? json_array_set_new(at, index, value) : json_array_remove(at, index), 0);
        } else {
            if (rest)
                at = json_object_get(at, key);
            else
                assert_int_equal(value ? json_object_set_new(at, key, value) : json_object_del(at, key), 0);
        }
    }
}

static pot_tokenizer *parse_edited(json_t *root) {
    pot_err err = {0};
    pot_tokenizer *t = NULL;
    if (parse_value(&t, root, &err)) fail_msg("%s", err.text);
    return t;
}

static pot_tokens encode(const pot_tokenizer *t, const char *text, size_t bytes) {
    pot_err err = {0};
    pot_tokens tokens = {0};
    if (pot_tokenizer_encode(&tokens, t, text, bytes, &err)) fail_msg("%s", err.text);
    return tokens;
}

static void expect_ids(const pot_tokenizer *t, const char *text, size_t bytes, const int32_t *ids, size_t n) {
    pot_tokens got = encode(t, text, bytes);
    bool same = got.n == n && (n == 0 || memcmp(got.ids, ids, n * sizeof *ids) == 0);
    if (!same) {
        fprintf(stderr, "\"%.*s\" gives", (int)bytes, text);
        for (size_t i = 0; i < got.n; i++) fprintf(stderr, " %d", got.ids[i]);
        fprintf(stderr, ", expected");
        for (size_t i = 0; i < n; i++) fprintf(stderr, " %d", ids[i]);
        fprintf(stderr, "\n");
    }
    assert_true(same);
    pot_tokens_free(&got);
}
#define EXPECT_IDS(t, text, ...)                                      \
    expect_ids(t, text, strlen(text), (const int32_t[]){__VA_ARGS__}, \
               sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

static void expect_text(const pot_buffer *got, const char *text, size_t bytes) {
    assert_false(got->failed);
    if (got->bytes != bytes || (bytes && memcmp(got->data, text, bytes) != 0)) {
        fail_msg("\"%.*s\" instead of \"%.*s\"", (int)got->bytes, got->bytes ? got->data : "", (int)bytes, text);
    }
}

/* bytes.decode("utf-8", "replace") of the ids, decoded in one go. */
static pot_buffer decode_whole(const pot_tokenizer *t, const int32_t *ids, size_t n) {
    pot_buffer raw = {0}, text = {0};
    pot_detokenizer state = {0};
    pot_tokenizer_decode(&raw, t, ids, n, false);
    pot_utf8_repair(&text, &state, raw.data, raw.bytes);
    pot_detokenizer_end(&text, &state);
    pot_buffer_free(&raw);
    return text;
}

/* One vector: to ids, back in one go, and streamed from every token on, so that characters are cut everywhere. */
static void check_vector(const pot_tokenizer *t, const json_t *vector) {
    const json_t *text = json_object_get(vector, "text"), *list = json_object_get(vector, "ids");
    const json_t *decoded = json_object_get(vector, "decoded");
    size_t n = json_array_size(list);
    int32_t *ids = pot_alloc_array(n, sizeof *ids);
    for (size_t i = 0; i < n; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    expect_ids(t, json_string_value(text), json_string_length(text), ids, n);

    if (!decoded) decoded = text;
    for (size_t from = 0; from <= n; from++) {
        pot_buffer whole = decode_whole(t, ids + from, n - from), streamed = {0};
        if (from == 0) expect_text(&whole, json_string_value(decoded), json_string_length(decoded));
        pot_detokenizer state = {0};
        for (size_t i = from; i < n; i++) {
            pot_detokenizer_push(&streamed, &state, t, ids[i], false);
            assert_true(pot_utf8_valid(streamed.data, streamed.bytes));
        }
        pot_detokenizer_end(&streamed, &state);
        expect_text(&streamed, whole.data, whole.bytes);
        pot_buffer_free(&whole);
        pot_buffer_free(&streamed);
    }
    pot_free(ids);
}

/* ---- against Hugging Face ---------------------------------------------------------------------- */

static void tokenizer_meets_all_vectors(void **state) {
    (void)state;
    pot_tokenizer *t = open_demo();
    json_t *vectors = read_json("tests/fixtures/tokenizer_vectors.json");
    assert_int_equal(json_array_size(vectors), 533);
    for (size_t i = 0; i < json_array_size(vectors); i++) check_vector(t, json_array_get(vectors, i));
    json_decref(vectors);
    pot_tokenizer_close(t);
}

static void tokenizer_meets_nasty_vectors(void **state) {
    (void)state;
    pot_err err = {0};
    pot_buffer file = {0};
    pot_tokenizer *t = open_demo();
    assert_int_equal(pot_file_read(&file, "tests/fixtures/tokenizer_extra.jsonl", MIB, &err), POT_OK);
    size_t n = 0;
    for (char *line = file.data, *end; (end = strchr(line, '\n')); line = end + 1, n++) {
        json_t *vector = NULL;
        assert_int_equal(pot_json_parse(&vector, line, (size_t)(end - line), "tokenizer_extra.jsonl", &err), POT_OK);
        check_vector(t, vector);
        json_decref(vector);
    }
    assert_int_equal(n, 420);
    pot_buffer_free(&file);
    pot_tokenizer_close(t);
}

static void unicode_ranges_ascend(void **state) {
    (void)state;
    size_t points[4] = {0};
    for (unsigned i = 0; i < pot_unicode_n_ranges; i++) {
        const pot_unicode_range *range = &pot_unicode_ranges[i];
        assert_true(range->first <= range->last && (i == 0 || range->first > pot_unicode_ranges[i - 1].last));
        points[range->class] += range->last - range->first + 1;
    }
    assert_int_equal(points[POT_CHAR_LETTER], 141028);
    assert_int_equal(points[POT_CHAR_NUMBER], 1911);
    assert_int_equal(points[POT_CHAR_SPACE], 25);
}

/* ---- text that is not UTF-8 -------------------------------------------------------------------- */

/* Python's bytes.decode("utf-8", "replace"); U+FFFD is written as '?'. */
static const struct {
    const char *bytes, *text;
} BROKEN[] = {
    {"\xFF", "?"},
    {"a\x80z", "a?z"},
    {"\xC0\xAF", "??"}, /* overlong */
    {"\xC3", "?"},      /* cut at the end */
    {"\xC3(", "?("},
    {"\xE4\xB8", "?"}, /* two of three bytes are one part */
    {"\xE4\xB8\xE4\xB8\xAD", "?\xE4\xB8\xAD"},
    {"\xE0\x80\x80", "???"}, /* overlong */
    {"\xED\xA0\x80", "???"}, /* surrogate */
    {"\xF0\x9F\x98", "?"},
    {"\xF0\x9F\x98x", "?x"},
    {"\xF0\x80\x80\x80", "????"}, /* overlong */
    {"\xF4\x90\x80\x80", "????"}, /* above U+10FFFF */
    {"\xF5\x80", "??"},
    {"\xF0\x9F\x91\x8D\xF0\x9F", "\xF0\x9F\x91\x8D?"},
};

static void invalid_utf8_is_replaced_as_python_does(void **state) {
    (void)state;
    pot_tokenizer *t = open_demo();
    for (size_t i = 0; i < sizeof BROKEN / sizeof BROKEN[0]; i++) {
        pot_buffer expected = {0};
        for (const char *p = BROKEN[i].text; *p; p++) {
            if (*p == '?')
                pot_buffer_text(&expected, "\xEF\xBF\xBD");
            else
                pot_buffer_byte(&expected, *p);
        }
        size_t bytes = strlen(BROKEN[i].bytes);
        assert_false(pot_utf8_valid(BROKEN[i].bytes, bytes));
        assert_true(pot_utf8_valid(expected.data, expected.bytes));
        for (size_t cut = 0; cut <= bytes; cut++) { /* in two parts, at every place */
            pot_buffer got = {0};
            pot_detokenizer held = {0};
            pot_utf8_repair(&got, &held, BROKEN[i].bytes, cut);
            pot_utf8_repair(&got, &held, BROKEN[i].bytes + cut, bytes - cut);
            pot_detokenizer_end(&got, &held);
            expect_text(&got, expected.data, expected.bytes);
            pot_buffer_free(&got);
        }
        pot_tokens ids = encode(t, expected.data, expected.bytes);
        expect_ids(t, BROKEN[i].bytes, bytes, ids.ids, ids.n);
        pot_tokens_free(&ids);
        pot_buffer_free(&expected);
    }
    pot_tokenizer_close(t);
}

/* ---- the variants of the file ------------------------------------------------------------------ */

static void merges_may_be_pairs_or_text(void **state) {
    (void)state;
    json_t *root = read_json("demo/tokenizer.json"), *vectors = read_json("tests/fixtures/tokenizer_vectors.json");
    json_t *merges = json_object_get(json_object_get(root, "model"), "merges");
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *pair = json_array_get(merges, i);
        assert_int_equal(json_array_size(pair), 2);
        json_array_set_new(merges, i,
                           json_sprintf("%s %s", json_string_value(json_array_get(pair, 0)),
                                        json_string_value(json_array_get(pair, 1))));
    }
    pot_tokenizer *t = parse_edited(root);
    for (size_t i = 0; i < json_array_size(vectors); i++) check_vector(t, json_array_get(vectors, i));
    pot_tokenizer_close(t);
    json_decref(vectors);
    json_decref(root);
}

static void ignore_merges_takes_a_piece_whole(void **state) {
    (void)state;
    json_t *root = read_json("demo/tokenizer.json");
    edit(root, "model.vocab.qzqz", "3000"); /* no merge leads to it */
    pot_tokenizer *t = parse_edited(root);
    EXPECT_IDS(t, "qzqz", 3000);
    EXPECT_IDS(t, "qzqzq", 80, 89, 80, 89, 80);
    assert_int_equal(pot_tokenizer_size(t), 3001);
    pot_tokenizer_close(t);
    edit(root, "model.ignore_merges", "false");
    t = parse_edited(root);
    EXPECT_IDS(t, "qzqz", 80, 89, 80, 89);
    pot_tokenizer_close(t);
    edit(root, "model.ignore_merges", NULL); /* the default is false */
    t = parse_edited(root);
    EXPECT_IDS(t, "qzqz", 80, 89, 80, 89);
    pot_tokenizer_close(t);
    json_decref(root);
}

static void added_tokens_match_leftmost_longest(void **state) {
    (void)state;
    json_t *root = read_json("demo/tokenizer.json"), *added = json_object_get(root, "added_tokens");
    static const struct {
        int id;
        const char *content;
        bool normalized;
    } MORE[] = {{2048, "<|user|><|", false}, {2049, "<th", true},      {2050, "k>x", true},
                {2051, "\n\n", true},        {2052, "e\u0301", false}, {64, "a", false}};
    for (size_t i = 0; i < sizeof MORE / sizeof MORE[0]; i++) {
        json_array_append_new(added, json_pack("{s:i, s:s, s:b}", "id", MORE[i].id, "content", MORE[i].content,
                                               "normalized", MORE[i].normalized));
    }
    pot_tokenizer *t = parse_edited(root);
    EXPECT_IDS(t, "<|user|><|user|>", 2048, 296, 295); /* the longer one, though a second <|user|> is lost */
    EXPECT_IDS(t, "<|user|>", 2019);
    EXPECT_IDS(t, "<think>x", 2033, 87); /* "normalized" ones only see what is left */
    EXPECT_IDS(t, "<thk>x", 2049, 2050);
    EXPECT_IDS(t, "\n\n\n", 2051, 198);
    EXPECT_IDS(t, "ha!", 71, 64, 0); /* also one of the vocabulary, inside a word */
    EXPECT_IDS(t, "ee\u0301e", 68, 2052, 68);
    assert_int_equal(pot_tokenizer_added(t, "<|user|>"), 2019);
    assert_int_equal(pot_tokenizer_added(t, "<th"), 2049);
    assert_int_equal(pot_tokenizer_added(t, "<|user"), -1);
    assert_int_equal(pot_tokenizer_added(t, ""), -1);
    assert_true(pot_tokenizer_is_special(t, 2019));
    assert_false(pot_tokenizer_is_special(t, 2033)); /* <think> */
    assert_false(pot_tokenizer_is_special(t, 64));
    assert_false(pot_tokenizer_is_special(t, -1));
    assert_false(pot_tokenizer_is_special(t, 999999));
    pot_tokenizer_close(t);
    json_decref(root);
}

static void decoding_skips_special_tokens_on_request(void **state) {
    (void)state;
    pot_tokenizer *t = open_demo();
    /* <|user|>, two bytes of a character with an unknown id, a special and a plain token between them, <think> */
    const int32_t ids[] = {2019, 161, 999999, -5, 2018, 116, 255, 2033};
    pot_buffer out = {0}, streamed = {0};
    pot_tokenizer_decode(&out, t, ids, 8, true);
    expect_text(&out, "\xE5\xB8\xAD<think>", 10);
    pot_detokenizer state_ = {0};
    for (size_t i = 0; i < 8; i++) pot_detokenizer_push(&streamed, &state_, t, ids[i], true);
    pot_detokenizer_end(&streamed, &state_);
    expect_text(&streamed, out.data, out.bytes);
    pot_buffer_free(&out);
    pot_buffer_free(&streamed);
    pot_tokenizer_close(t);
}

/* One piece of 1 MiB: with anything quadratic in it this would take hours. */
static void long_pieces_are_merged_in_time(void **state) {
    (void)state;
    static const struct {
        const char *unit;
        size_t n_ids;
    } CASES[] = {
        {"a", MIB},   {" ", MIB / 4}, {"\n", MIB / 2}, {"=", MIB}, {"the", MIB / 3 + 1}, {"1", MIB / 3 * 2 + 1},
        {"\r\n ", 0}, {"<|", 0},      {"\xC5\xBF", 0}, {"\xFF", 0}};
    pot_tokenizer *t = open_demo();
    char *text = pot_alloc(MIB);
    for (size_t c = 0; c < sizeof CASES / sizeof CASES[0]; c++) {
        size_t unit = strlen(CASES[c].unit), bytes = MIB / unit * unit;
        for (size_t i = 0; i < bytes; i++) text[i] = CASES[c].unit[i % unit];
        pot_tokens ids = encode(t, text, bytes);
        if (CASES[c].n_ids) assert_int_equal(ids.n, CASES[c].n_ids);
        pot_buffer back = decode_whole(t, ids.ids, ids.n);
        if (pot_utf8_valid(text, bytes)) expect_text(&back, text, bytes);
        pot_buffer_free(&back);
        pot_tokens_free(&ids);
    }
    pot_free(text);
    pot_tokenizer_close(t);
}

/* ---- what is refused --------------------------------------------------------------------------- */

static const struct {
    const char *path, *to, *sentence;
} REFUSED[] = {
    {"normalizer", "{\"type\": \"NFC\"}", "t.json: the normalizer is NFC, GLM has none and no other is supported"},
    {"normalizer", "7", "t.json: the normalizer is not an object, GLM has none and no other is supported"},
    {"pre_tokenizer", "null", "t.json: the pre_tokenizer is null, GLM's Sequence of Split and ByteLevel was expected"},
    {"pre_tokenizer", "{\"type\": \"Whitespace\"}",
     "t.json: the pre_tokenizer is Whitespace, GLM's Sequence of Split and ByteLevel was expected"},
    {"pre_tokenizer.pretokenizers.1", NULL,
     "t.json: the pre_tokenizer is Sequence, GLM's Sequence of Split and ByteLevel was expected"},
    {"pre_tokenizer.pretokenizers.0.pattern.Regex", "\"\\\\s+\"", "t.json: the split pattern is not GLM's (\\s+)"},
    {"pre_tokenizer.pretokenizers.0.pattern", "{\"String\": \" \"}",
     "t.json: the split pattern is not GLM's (no regular expression)"},
    {"pre_tokenizer.pretokenizers.0.behavior", "\"Removed\"", "t.json: the split must be Isolated and not inverted"},
    {"pre_tokenizer.pretokenizers.0.invert", "true", "t.json: the split must be Isolated and not inverted"},
    {"pre_tokenizer.pretokenizers.1.add_prefix_space", "true",
     "t.json: the ByteLevel pre_tokenizer must have add_prefix_space and use_regex false"},
    {"pre_tokenizer.pretokenizers.1.use_regex", "true",
     "t.json: the ByteLevel pre_tokenizer must have add_prefix_space and use_regex false"},
    {"post_processor", "{\"type\": \"TemplateProcessing\"}",
     "t.json: the post_processor is TemplateProcessing, which may add tokens; none or ByteLevel was expected"},
    {"decoder", "null", "t.json: the decoder is null, ByteLevel was expected"},
    {"decoder", "{\"type\": \"Metaspace\"}", "t.json: the decoder is Metaspace, ByteLevel was expected"},
    {"model", "null", "t.json: the model is null, BPE was expected"},
    {"model.type", "\"Unigram\"", "t.json: the model is Unigram, BPE was expected"},
    {"model.type", NULL, "t.json: the model is without a type, BPE was expected"},
    {"model.dropout", "0.1", "t.json: model.dropout is set, GLM has none and it is not supported"},
    {"model.unk_token", "\"<unk>\"", "t.json: model.unk_token is set, GLM has none and it is not supported"},
    {"model.continuing_subword_prefix", "\"##\"",
     "t.json: model.continuing_subword_prefix is set, GLM has none and it is not supported"},
    {"model.end_of_word_suffix", "\"</w>\"",
     "t.json: model.end_of_word_suffix is set, GLM has none and it is not supported"},
    {"model.byte_fallback", "true", "t.json: model.byte_fallback is true, only byte-level BPE is supported"},
    {"model.ignore_merges", "\"yes\"", "t.json: `ignore_merges` is a string, true or false was expected"},
    {"model.vocab", "[]", "t.json: model.vocab is not an object"},
    {"model.vocab", NULL, "t.json: model.vocab is not an object"},
    {"model.vocab.a", NULL, "t.json: the vocabulary has no token for byte 0x61"},
    {"model.vocab.\304\200", NULL, "t.json: the vocabulary has no token for byte 0x00"},
    {"model.vocab.a", "65", "t.json: id 65 is given twice, the second time to \"b\""},
    {"model.vocab.a", "-1", "t.json: the id of \"a\" is not an integer from 0 to 4194303"},
    {"model.vocab.a", "4194304", "t.json: the id of \"a\" is not an integer from 0 to 4194303"},
    {"model.vocab.a", "1.5", "t.json: the id of \"a\" is not an integer from 0 to 4194303"},
    {"model.vocab.a", "\"1\"", "t.json: the id of \"a\" is not an integer from 0 to 4194303"},
    {"model.merges", "{}", "t.json: model.merges is not a list"},
    {"model.merges", NULL, "t.json: model.merges is not a list"},
    {"model.merges.5", "\"ab\"", "t.json: merge 5 is neither [\"a\", \"b\"] nor \"a b\""},
    {"model.merges.5", "\"a b c\"", "t.json: merge 5 is neither [\"a\", \"b\"] nor \"a b\""},
    {"model.merges.5", "\" b\"", "t.json: merge 5 is neither [\"a\", \"b\"] nor \"a b\""},
    {"model.merges.5", "[\"a\"]", "t.json: merge 5 is neither [\"a\", \"b\"] nor \"a b\""},
    {"model.merges.5", "[\"a\", 1]", "t.json: merge 5 is neither [\"a\", \"b\"] nor \"a b\""},
    {"model.merges.5", "[\"a\", \"zzzz\"]", "t.json: merge 5 names \"zzzz\", which the vocabulary does not have"},
    {"model.merges.5", "[\"\344\270\255\", \"a\"]",
     "t.json: merge 5 names \"\344\270\255\", which the vocabulary does not have"},
    {"model.merges.5", "[\"q\", \"z\"]", "t.json: merge 5 makes \"qz\", which the vocabulary does not have"},
    {"model.merges.5", "7", "t.json: merge 5 is neither [\"a\", \"b\"] nor \"a b\""},
    {"added_tokens", "{}", "t.json: added_tokens is not a list"},
    {"added_tokens.3", "\"x\"", "t.json: added_tokens[3] has no id from 0 to 4194303"},
    {"added_tokens.3.id", NULL, "t.json: added_tokens[3] has no id from 0 to 4194303"},
    {"added_tokens.3.id", "4194304", "t.json: added_tokens[3] has no id from 0 to 4194303"},
    {"added_tokens.3.id", "2016", "t.json: added_tokens[4]: id 2016 of \"<sop>\" is taken by another token"},
    {"added_tokens.3.id", "65", "t.json: added_tokens[3]: id 65 of \"[sMASK]\" is taken by another token"},
    {"added_tokens.3.content", NULL, "t.json: added_tokens[3]: `content` is missing, a string was expected"},
    {"added_tokens.3.content", "\"\"", "t.json: added_tokens[3]: the text has 0 bytes, from 1 to 1024 were expected"},
    {"added_tokens.3.content", "\"a\\u0000b\"",
     "t.json: added_tokens[3]: `content` contains a NUL character, which no field here may"},
    {"added_tokens.3.content", "\"<sop>\"", "t.json: added_tokens has \"<sop>\" twice"},
    {"added_tokens.3.content", "\"a\"", "t.json: added_tokens[3]: \"a\" has id 2015 here and 64 in the vocabulary"},
    {"added_tokens.3.lstrip", "true",
     "t.json: added_tokens[3]: lstrip is true, which GLM does not use and is not supported"},
    {"added_tokens.3.rstrip", "true",
     "t.json: added_tokens[3]: rstrip is true, which GLM does not use and is not supported"},
    {"added_tokens.3.single_word", "true",
     "t.json: added_tokens[3]: single_word is true, which GLM does not use and is not supported"},
    {"added_tokens.3.special", "1", "t.json: added_tokens[3]: `special` is an integer, true or false was expected"},
    {"added_tokens.3.normalized", "\"no\"",
     "t.json: added_tokens[3]: `normalized` is a string, true or false was expected"},
};

static void tokenizer_refuses_with_the_reason(void **state) {
    (void)state;
    json_t *original = read_json("demo/tokenizer.json");
    for (size_t i = 0; i < sizeof REFUSED / sizeof REFUSED[0]; i++) {
        json_t *root = json_deep_copy(original);
        edit(root, REFUSED[i].path, REFUSED[i].to);
        pot_err err = {0};
        pot_tokenizer *t = NULL;
        pot_status status = parse_value(&t, root, &err);
        if (!status || strcmp(err.text, REFUSED[i].sentence) != 0) {
            fail_msg("%s = %s: \"%s\" instead of \"%s\"", REFUSED[i].path, REFUSED[i].to ? REFUSED[i].to : "(absent)",
                     status ? err.text : "accepted", REFUSED[i].sentence);
        }
        assert_null(t);
        json_decref(root);
    }
    json_decref(original);
}

static void tokenizer_refuses_text_that_is_no_file(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t bytes;
        const char *sentence;
    } CASES[] = {
        {"", 0, "t.json: not valid JSON at line 1, column "},
        {"[1, 2]", 6, "t.json: not a JSON object"},
        {"{\"model\": {\"vocab\": {\"a\": 1, \"a\": 2}}}", 40, "t.json: not valid JSON at line 1, column "},
        {"{}", 64 * MIB + 1, "t.json: 67108865 bytes, at most 67108864 were expected"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        pot_err err = {0};
        pot_tokenizer *t = NULL;
        assert_int_not_equal(pot_tokenizer_parse(&t, CASES[i].text, CASES[i].bytes, "t.json", &err), POT_OK);
        assert_memory_equal(err.text, CASES[i].sentence, strlen(CASES[i].sentence)); /* what follows is jansson's */
        assert_null(t);
    }
    pot_err err = {0};
    pot_tokenizer *t = NULL;
    assert_int_not_equal(pot_tokenizer_open(&t, "tests/fixtures", &err), POT_OK);
    assert_non_null(strstr(err.text, "tests/fixtures/tokenizer.json"));
}

static void added_token_of_any_length_is_bounded(void **state) {
    (void)state;
    json_t *root = read_json("demo/tokenizer.json");
    char content[POT_TOKENIZER_ADDED_BYTES + 4] = "\"";
    memset(content + 1, 'x', POT_TOKENIZER_ADDED_BYTES);
    strcat(content, "\"");
    edit(root, "added_tokens.3.content", content);
    pot_tokenizer *t = parse_edited(root);
    expect_ids(t, content + 1, POT_TOKENIZER_ADDED_BYTES, (const int32_t[]){2015}, 1);
    pot_tokenizer_close(t);
    content[POT_TOKENIZER_ADDED_BYTES + 1] = 'x';
    strcat(content, "\"");
    edit(root, "added_tokens.3.content", content);
    pot_err err = {0};
    assert_int_equal(parse_value(&t, root, &err), POT_FORMAT);
    assert_string_equal(err.text, "t.json: added_tokens[3]: the text has 1025 bytes, from 1 to 1024 were expected");
    json_decref(root);
}

/* Every allocation of loading and encoding fails once. */
static void tokenizer_survives_lack_of_memory(void **state) {
    (void)state;
    json_t *root = read_json("demo/tokenizer.json");
    pot_status status = POT_NO_MEMORY;
    for (uint64_t nth = 1; status; nth++) {
        pot_err err = {0};
        pot_tokenizer *t = NULL;
        pot_mem_fail_at(nth);
        status = parse_value(&t, root, &err);
        pot_mem_fail_at(0);
        assert_true(status == POT_OK || status == POT_NO_MEMORY);
        assert_true(nth > 6 || status); /* the loop does reach allocations */
        pot_tokenizer_close(t);
    }
    json_decref(root);

    pot_tokenizer *t = open_demo();
    char text[3000];
    memset(text, 'a', sizeof text);
    text[2999] = '\xFF';
    status = POT_NO_MEMORY;
    for (uint64_t nth = 1; status; nth++) {
        pot_err err = {0};
        pot_tokens tokens = {0};
        assert_int_equal(pot_tokens_push(&tokens, 7, &err), POT_OK);
        pot_mem_fail_at(nth);
        status = pot_tokenizer_encode(&tokens, t, text, sizeof text, &err);
        pot_mem_fail_at(0);
        assert_true(status == POT_OK || status == POT_NO_MEMORY);
        assert_true(status == POT_OK || tokens.n == 1); /* what was there stays */
        assert_true(nth > 3 || status);
        pot_tokens_free(&tokens);
    }
    pot_tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizer_meets_all_vectors),
        cmocka_unit_test(tokenizer_meets_nasty_vectors),
        cmocka_unit_test(unicode_ranges_ascend),
        cmocka_unit_test(invalid_utf8_is_replaced_as_python_does),
        cmocka_unit_test(merges_may_be_pairs_or_text),
        cmocka_unit_test(ignore_merges_takes_a_piece_whole),
        cmocka_unit_test(added_tokens_match_leftmost_longest),
        cmocka_unit_test(decoding_skips_special_tokens_on_request),
        cmocka_unit_test(long_pieces_are_merged_in_time),
        cmocka_unit_test(tokenizer_refuses_with_the_reason),
        cmocka_unit_test(tokenizer_refuses_text_that_is_no_file),
        cmocka_unit_test(added_token_of_any_length_is_bounded),
        cmocka_unit_test(tokenizer_survives_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
