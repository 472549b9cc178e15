/* JSON in: jansson with duplicate keys refused, and getters that word what is wrong with a field.
 * JSON out: exactly as Python's json.dumps(x, ensure_ascii=False) writes it, because prompts are made from such text
 * and a different space is a different prompt. */
#include "common/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"

/* ---- parsing ----------------------------------------------------------------------------------- */

pot_status pot_json_parse(json_t **out, const char *text, size_t bytes, const char *name, pot_err *err) {
    json_error_t error;
    /* jansson itself refuses nesting over 2,048 levels, which also bounds every recursion over its values. */
    size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL | JSON_DECODE_ANY;
    json_t *value = json_loadb(text, bytes, flags, &error);
    if (!value) {
        pot_status status = json_error_code(&error) == json_error_out_of_memory ? POT_NO_MEMORY : POT_FORMAT;
        return pot_fail(err, status, "%s: not valid JSON at line %d, column %d: %s", name, error.line, error.column,
                        error.text);
    }
    *out = value;
    return POT_OK;
}

pot_status pot_json_read(json_t **out, const char *path, uint64_t max_bytes, pot_err *err) {
    pot_buffer text = {0};
    pot_status status = pot_file_read(&text, path, max_bytes, err);
    if (!status) status = pot_json_parse(out, text.data ? text.data : "", text.bytes, path, err);
    pot_buffer_free(&text);
    return status;
}

/* ---- getters ----------------------------------------------------------------------------------- */

static const char *type_name(const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction";
    case JSON_TRUE:
    case JSON_FALSE: return "true or false";
    default: return "null";
    }
}

/* *value NULL with POT_OK: the field is absent or null and may be. */
static pot_status find_field(const json_t **value, const json_t *object, const char *key, bool required,
                             const char *expected, const char *name, pot_err *err) {
    if (!json_is_object(object)) {
        return pot_fail(err, POT_FORMAT, "%s: %s where an object with `%s` was expected", name,
                        object ? type_name(object) : "nothing", key);
    }
    *value = json_object_get(object, key);
    if (json_is_null(*value)) *value = NULL;
    if (*value || !required) return POT_OK;
    return pot_fail(err, POT_FORMAT, "%s: `%s` is missing, %s was expected", name, key, expected);
}

static pot_status wrong_type(const json_t *value, const char *key, const char *expected, const char *name,
                             pot_err *err) {
    return pot_fail(err, POT_FORMAT, "%s: `%s` is %s, %s was expected", name, key, type_name(value), expected);
}

pot_status pot_json_int(int64_t *out, const json_t *object, const char *key, int64_t min, int64_t max, bool required,
                        const char *name, pot_err *err) {
    const json_t *value = NULL;
    pot_status status = find_field(&value, object, key, required, "an integer", name, err);
    if (status || !value) return status;
    if (!json_is_integer(value)) return wrong_type(value, key, "an integer", name, err);
    int64_t number = json_integer_value(value);
    if (number < min || number > max) {
        return pot_fail(err, POT_FORMAT, "%s: `%s` is %" PRId64 ", from %" PRId64 " to %" PRId64 " was expected", name,
                        key, number, min, max);
    }
    *out = number;
    return POT_OK;
}

pot_status pot_json_double(double *out, const json_t *object, const char *key, double min, double max, bool required,
                           const char *name, pot_err *err) {
    const json_t *value = NULL;
    pot_status status = find_field(&value, object, key, required, "a number", name, err);
    if (status || !value) return status;
    if (!json_is_number(value)) return wrong_type(value, key, "a number", name, err);
    double number = json_number_value(value);
    if (!(number >= min && number <= max)) {
        return pot_fail(err, POT_FORMAT, "%s: `%s` is %g, from %g to %g was expected", name, key, number, min, max);
    }
    *out = number;
    return POT_OK;
}

pot_status pot_json_bool(bool *out, const json_t *object, const char *key, bool required, const char *name,
                         pot_err *err) {
    const json_t *value = NULL;
    pot_status status = find_field(&value, object, key, required, "true or false", name, err);
    if (status || !value) return status;
    if (!json_is_boolean(value)) return wrong_type(value, key, "true or false", name, err);
    *out = json_is_true(value);
    return POT_OK;
}

pot_status pot_json_string(const char **out, const json_t *object, const char *key, bool required, const char *name,
                           pot_err *err) {
    const json_t *value = NULL;
    pot_status status = find_field(&value, object, key, required, "a string", name, err);
    if (status || !value) return status;
    if (!json_is_string(value)) return wrong_type(value, key, "a string", name, err);
    const char *text = json_string_value(value);
    if (strlen(text) != json_string_length(value)) {
        return pot_fail(err, POT_FORMAT, "%s: `%s` contains a NUL character, which no field here may", name, key);
    }
    *out = text;
    return POT_OK;
}

/* ---- writing ----------------------------------------------------------------------------------- */

/* Length of the UTF-8 character at p (at most `left` bytes); 0 when it is not one, and then *skip is the length of the
 * part that a decoder replaces as one (Unicode 3.9, best practice; Python's errors="replace"). */
static size_t utf8_length(const unsigned char *p, size_t left, size_t *skip) {
    unsigned char low = 0x80, high = 0xBF; /* bounds of the second byte exclude overlong forms and surrogates */
    size_t length;
    *skip = 1;
    if (p[0] < 0x80) return 1;
    if (p[0] >= 0xC2 && p[0] <= 0xDF) {
        length = 2;
    } else if (p[0] >= 0xE0 && p[0] <= 0xEF) {
        length = 3;
        if (p[0] == 0xE0) low = 0xA0;
        if (p[0] == 0xED) high = 0x9F;
    } else if (p[0] >= 0xF0 && p[0] <= 0xF4) {
        length = 4;
        if (p[0] == 0xF0) low = 0x90;
        if (p[0] == 0xF4) high = 0x8F;
    } else {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if (i >= left || p[i] < low || p[i] > high) {
            *skip = i;
            return 0;
        }
        low = 0x80;
        high = 0xBF;
    }
    return length;
}

static void quote_control(pot_buffer *out, unsigned char c) {
    static const char short_names[] = "\bb\ff\nn\rr\tt";
    for (const char *p = short_names; *p; p += 2) {
        if ((unsigned char)*p == c) {
            pot_buffer_format(out, "\\%c", p[1]);
            return;
        }
    }
    pot_buffer_format(out, "\\u%04x", c);
}

void pot_json_quote(pot_buffer *out, const char *text, size_t bytes) {
    const unsigned char *p = (const unsigned char *)text;
    pot_buffer_byte(out, '"');
    for (size_t i = 0, step; i < bytes; i += step) {
        size_t length = utf8_length(p + i, bytes - i, &step);
        if (!length) {
            pot_buffer_text(out, "\xEF\xBF\xBD");
            continue;
        }
        step = length;
        if (p[i] < 0x20) {
            quote_control(out, p[i]);
        } else {
            if (p[i] == '"' || p[i] == '\\') pot_buffer_byte(out, '\\');
            pot_buffer_append(out, p + i, length);
        }
    }
    pot_buffer_byte(out, '"');
}

/* Python's repr(float): the fewest digits that read back as the same number, with an exponent only when the decimal
 * point would stand more than 16 places to the right of the first digit or more than 4 zeros to the left of it. */
static void dump_real(pot_buffer *out, double x) {
    char text[40];
    int precision = 0;
    do {
        snprintf(text, sizeof text, "%.*e", precision, x);
    } while (strtod(text, NULL) != x && ++precision <= 17);
    char digits[24] = "";
    int n = 0;
    const char *p = text;
    if (*p == '-') {
        pot_buffer_byte(out, '-');
        p++;
    }
    for (; *p && *p != 'e'; p++) {
        if (*p != '.') digits[n++] = *p;
    }
    int exponent = (int)strtol(p + 1, NULL, 10); /* of the first digit */
    if (exponent < -4 || exponent >= 16) {
        pot_buffer_format(out, "%c%s%.*se%c%02d", digits[0], n > 1 ? "." : "", n - 1, digits + 1,
                          exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        pot_buffer_format(out, "0.%.*s%.*s", -exponent - 1, "000", n, digits);
    } else if (n <= exponent + 1) {
        pot_buffer_format(out, "%.*s%.*s.0", n, digits, exponent + 1 - n, "0000000000000000");
    } else {
        pot_buffer_format(out, "%.*s.%.*s", exponent + 1, digits, n - exponent - 1, digits + exponent + 1);
    }
}

void pot_json_dump_python(pot_buffer *out, const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_OBJECT: {
        const char *key, *separator = "";
        json_t *field;
        pot_buffer_byte(out, '{');
        json_object_foreach((json_t *)(uintptr_t)value, key, field) {
            pot_buffer_text(out, separator);
            pot_json_quote(out, key, strlen(key));
            pot_buffer_text(out, ": ");
            pot_json_dump_python(out, field);
            separator = ", ";
        }
        pot_buffer_byte(out, '}');
        break;
    }
    case JSON_ARRAY:
        pot_buffer_byte(out, '[');
        for (size_t i = 0; i < json_array_size(value); i++) {
            if (i) pot_buffer_text(out, ", ");
            pot_json_dump_python(out, json_array_get(value, i));
        }
        pot_buffer_byte(out, ']');
        break;
    case JSON_STRING: pot_json_quote(out, json_string_value(value), json_string_length(value)); break;
    case JSON_INTEGER: pot_buffer_format(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value)); break;
    case JSON_REAL: dump_real(out, json_real_value(value)); break;
    case JSON_TRUE: pot_buffer_text(out, "true"); break;
    case JSON_FALSE: pot_buffer_text(out, "false"); break;
    case JSON_NULL: pot_buffer_text(out, "null"); break;
    }
}
