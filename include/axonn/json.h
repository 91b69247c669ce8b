/* json: reading JSON whose numbers have any size, and writing numbers back digit for digit.
 *
 * All JSON that the program reads goes through these functions. The trees are those of the library Jansson,
 * whose integers have 64 bits and whose reals are finite doubles. Other programs write numbers beyond these:
 * transformers' tokenizers have "model_max_length": 1000000000000000019884624838656, and Python's json module
 * writes NaN and Infinity. Not collective. */
#ifndef AXONN_JSON_H
#define AXONN_JSON_H

#include "axonn/base.h"

#ifdef __cplusplus
extern "C" {
#endif

struct json_t; /* of <jansson.h> */

/* Parses `size` bytes of text into a tree for reading values (ax_json_parse_verbatim makes one for printing).
 * An integer beyond 64 bits reads as a real; a number beyond the range of a double, or Infinity, as the
 * largest double of its sign; NaN as null. `flags` are Jansson's (JSON_REJECT_DUPLICATES, JSON_ALLOW_NUL).
 * The caller releases *out, NULL after a failure, with json_decref. AX_ERR_DATA: the message is
 * "WHERE:LINE:COLUMN: not valid JSON: REASON". If `where` is NULL, the message is "not valid JSON: REASON
 * (column C)", with the line too if it is not line 1. LINE and COLUMN are the position of the first character
 * of the wrong token, counted from 1, columns in characters. */
AX_MUST_CHECK ax_status ax_json_parse(const char *where, const char *text, size_t size, size_t flags,
                                      struct json_t **out);

/* The position at which a JSON text begins in a file. */
typedef struct ax_json_place {
    const char *path;
    int64_t line, column;
} ax_json_place;

/* Parses `size` bytes of text into a tree for reading values, as ax_json_parse does. The text is a part of
 * the file at `place`, which error messages name; place NULL: the text is not from a file. */
AX_MUST_CHECK ax_status ax_json_parse_at(const ax_json_place *place, const char *text, size_t size,
                                         size_t flags, struct json_t **out);

/* Parses a whole file into a tree for reading values, as ax_json_parse does. AX_ERR_DATA also if the file
 * cannot be read. */
AX_MUST_CHECK ax_status ax_json_read_file(const char *path, size_t flags, struct json_t **out);

/* Parses text into a tree for ax_json_print, which writes each number as it is in the text. In this tree,
 * numbers that Jansson might print differently are stored as strings. So read values from a tree that
 * ax_json_parse makes instead, and call ax_json_parse first: the text must be one that ax_json_parse accepts
 * without JSON_ALLOW_NUL. AX_ERR_DATA as for ax_json_parse. */
AX_MUST_CHECK ax_status ax_json_parse_verbatim(const char *where, const char *text, size_t size,
                                               struct json_t **out);

/* Appends `value` as JSON text; `flags` are those of Jansson's json_dumps. A real has the fewest digits that
 * read back as the same double. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_json_print(const struct json_t *value, size_t flags, ax_buf *out);

/* Returns n bytes as a JSON string; NULL: out of memory. Bytes that are not UTF-8 become U+FFFD. */
struct json_t *ax_json_text(const char *bytes, size_t n);

#ifdef __cplusplus
}
#endif
#endif
