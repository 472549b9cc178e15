/* One pass over the expected tensors by name.  What only describes the fixture (inputs, margins) is not compared. */
#include "tests/compare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/safetensors.h"

enum { WORDS = 96 };

typedef struct verdict {
    bool holds;
    char words[WORDS]; /* the figure, or what is wrong */
} verdict;

#define VERDICT(out, does_hold, ...) ((out)->holds = (does_hold), (void)snprintf((out)->words, WORDS, __VA_ARGS__))

static uint64_t elements(const pot_tensor *t) { return t->bytes / pot_dtype_bytes(t->dtype); }

static bool is_float(pot_dtype dtype) { return dtype == POT_DTYPE_F32 || dtype == POT_DTYPE_F64; }

/* Element i of a tensor of floats or integers; data may lie at any alignment. */
static double value_at(const pot_tensor *t, uint64_t i) {
    const uint8_t *at = t->data + i * pot_dtype_bytes(t->dtype);
    float f;
    double d;
    int32_t narrow;
    int64_t wide;
    switch (t->dtype) {
    case POT_DTYPE_F32: return memcpy(&f, at, sizeof f), (double)f;
    case POT_DTYPE_F64: return memcpy(&d, at, sizeof d), d;
    case POT_DTYPE_I32: return memcpy(&narrow, at, sizeof narrow), (double)narrow;
    case POT_DTYPE_I64: return memcpy(&wide, at, sizeof wide), (double)wide;
    case POT_DTYPE_U8: return *at;
    default: return NAN;
    }
}

static void compare_floats(verdict *out, const pot_tensor *want, const pot_tensor *got, double tolerance) {
    double worst = 0, largest = 0;
    for (uint64_t i = 0; i < elements(want); i++) {
        double w = value_at(want, i), g = value_at(got, i);
        if (!isfinite(g)) {
            VERDICT(out, false, "element %llu is not finite", (unsigned long long)i);
            return;
        }
        worst = fmax(worst, fabs(g - w));
        largest = fmax(largest, fabs(w));
    }
    double error = worst == 0 ? 0 : worst / largest;
    VERDICT(out, error <= tolerance, "relative error %.1e", error);
}

static void compare_integers(verdict *out, const pot_tensor *want, const pot_tensor *got) {
    uint64_t different = 0, first = 0;
    for (uint64_t i = elements(want); i-- > 0;)
        if (value_at(want, i) != value_at(got, i)) different++, first = i;
    if (different)
        VERDICT(out, false, "%llu of %llu differ, first %llu", (unsigned long long)different,
                (unsigned long long)elements(want), (unsigned long long)first);
    else
        VERDICT(out, true, "equal");
}

/* Rows whose margin is small may differ: the reference itself would choose otherwise with other rounding. */
static void compare_choices(verdict *out, const pot_tensor *want, const pot_tensor *got, const pot_tensor *margins,
                            double tolerance) {
    uint64_t rows = elements(margins), width = elements(want) / rows;
    uint64_t sure = 0, wrong = 0, different = 0, first = 0;
    for (uint64_t r = 0; r < rows; r++) {
        bool clear = value_at(margins, r) > 10 * tolerance, differs = false;
        for (uint64_t i = r * width; i < (r + 1) * width && !differs; i++)
            differs = value_at(want, i) != value_at(got, i);
        sure += clear;
        different += differs;
        if (clear && differs && !wrong++) first = r;
    }
    if (wrong)
        VERDICT(out, false, "%llu of %llu clear rows differ, first %llu", (unsigned long long)wrong,
                (unsigned long long)sure, (unsigned long long)first);
    else
        VERDICT(out, true, "%llu rows differ, %llu of %llu are clear", (unsigned long long)different,
                (unsigned long long)sure, (unsigned long long)rows);
}

static bool begins(const char *name, const char *prefix) { return !strncmp(name, prefix, strlen(prefix)); }

static bool is_compared(const char *name) {
    return strcmp(name, "input_ids") && strcmp(name, "mtp_next_ids") && !begins(name, "select_margin.") &&
           !begins(name, "route_margin.");
}

/* selected.3 -> select_margin.3, experts.3 -> route_margin.3; NULL for what is no choice. */
static const pot_tensor *margins_of(const pot_shards *expected, const char *name) {
    char margin[WORDS];
    const char *kind = begins(name, "selected.") ? "select_margin" : begins(name, "experts.") ? "route_margin" : NULL;
    if (!kind) return NULL;
    snprintf(margin, sizeof margin, "%s%s", kind, strchr(name, '.'));
    return pot_shards_find(expected, margin);
}

static void compare_tensor(verdict *out, const pot_shards *expected, const pot_tensor *want, const pot_tensor *got,
                           double tolerance) {
    if (!got) {
        VERDICT(out, false, "missing");
        return;
    }
    const pot_tensor *margins = margins_of(expected, want->name);
    if (elements(got) != elements(want))
        VERDICT(out, false, "%llu elements, expected %llu", (unsigned long long)elements(got),
                (unsigned long long)elements(want));
    else if (is_float(want->dtype) != is_float(got->dtype))
        VERDICT(out, false, "dtype %s, expected %s", pot_dtype_name(got->dtype), pot_dtype_name(want->dtype));
    else if (is_float(want->dtype))
        compare_floats(out, want, got, tolerance);
    else if (margins && elements(margins))
        compare_choices(out, want, got, margins, tolerance);
    else
        compare_integers(out, want, got);
}

pot_status pot_compare_files(uint32_t *bad, pot_buffer *report, const char *expected_path, const char *got_path,
                             double tolerance, pot_err *err) {
    pot_shards *expected = NULL, *got = NULL;
    pot_status s = pot_shards_open_file(&expected, expected_path, err);
    if (s == POT_OK) s = pot_shards_open_file(&got, got_path, err);
    *bad = 0;
    for (uint32_t i = 0; s == POT_OK && i < pot_shards_tensors(expected); i++) {
        const pot_tensor *want = pot_shards_at(expected, i);
        if (!is_compared(want->name)) continue;
        verdict v;
        compare_tensor(&v, expected, want, pot_shards_find(got, want->name), tolerance);
        *bad += !v.holds;
        pot_buffer_format(report, "%s %-16s %s\n", v.holds ? "  " : "!!", want->name, v.words);
    }
    pot_shards_close(expected);
    pot_shards_close(got);
    return s;
}
