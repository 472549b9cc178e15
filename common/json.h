/* Bounded JSON on top of jansson: typed getters that say file, field, what was found and what was expected.
 * Parsed values are jansson's (json_decref by whoever parsed); getters borrow. */
#ifndef POT_COMMON_JSON_H
#define POT_COMMON_JSON_H

#include <jansson.h>
#include <stdint.h>

#include "common/buffer.h"
#include "common/status.h"

/* Parses one JSON text.  Duplicate keys, trailing text and nesting over jansson's limit are refused; `name` is what
 * the sentence calls the text (a path).  \u0000 is accepted. */
pot_status pot_json_parse(json_t **out, const char *text, size_t bytes, const char *name, pot_err *err);
pot_status pot_json_read(json_t **out, const char *path, uint64_t max_bytes, pot_err *err);

/* Fields of an object.  `required` false: absent or null leaves *out as it was and is OK. */
pot_status pot_json_int(int64_t *out, const json_t *object, const char *key, int64_t min, int64_t max, bool required,
                        const char *name, pot_err *err);
pot_status pot_json_double(double *out, const json_t *object, const char *key, double min, double max, bool required,
                           const char *name, pot_err *err);
pot_status pot_json_bool(bool *out, const json_t *object, const char *key, bool required, const char *name,
                         pot_err *err);
/* Borrowed string (NUL-free), valid while the object lives. */
pot_status pot_json_string(const char **out, const json_t *object, const char *key, bool required, const char *name,
                           pot_err *err);

/* Appends a JSON string literal, quotes included; UTF-8 is kept, invalid bytes become U+FFFD, control
 * characters are escaped as Python's json.dumps(ensure_ascii=False) does. */
void pot_json_quote(pot_buffer *out, const char *text, size_t bytes);
/* Appends `value` with Python's json.dumps separators (", ", ": "), ensure_ascii=False, keys in file order. */
void pot_json_dump_python(pot_buffer *out, const json_t *value);

#endif
