/* Reads and prints JSON through Jansson. If Jansson rejects a text, parses it again with its numbers
 * rewritten to values that Jansson can represent. For ax_json_parse_verbatim, each number that Jansson could
 * print in another way (every real, -0, integers beyond 64 bits, NaN and Infinity) becomes a string that
 * consists of MARK and the number's text; ax_json_print removes the mark and the quotes. MARK is an escaped
 * NUL character. No other string of the text begins with MARK, because callers parse the text with
 * ax_json_parse, which rejects NUL in strings, before they parse it with ax_json_parse_verbatim. */
#include "axonn/json.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define MARK "\\u0000"

/* Returns the byte after the string whose opening quote is at `at`; `end` if the string is not closed. */
static const char *skip_string(const char *at, const char *end)
{
    for (at++; at < end && *at != '"'; at++)
        at += *at == '\\';
    return at < end ? at + 1 : end;
}

/* Returns the next byte that may begin a string or a number; `end` if there is none. */
static const char *skip_other(const char *at, const char *end)
{
    while (at < end && (!*at || !strchr("\"-0123456789NI", *at)))
        at++;
    return at;
}

/* ---- numbers ------------------------------------------------------------------------------------- */

typedef enum number_kind { NOT_A_NUMBER, INTEGER, REAL, NAN_WORD, INFINITY_WORD } number_kind;

static const char *skip_digits(const char *at, const char *end)
{
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at;
}

static bool has_word(const char *at, const char *end, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(end - at) >= n && !memcmp(at, word, n);
}

/* Scans a number of JSON's grammar at `at`, or Python's NaN, Infinity or -Infinity. *next is the byte after
 * the number. If there is no number, *next is the byte after the scanned bytes, so that no byte is scanned
 * twice. */
static number_kind scan_number(const char *at, const char *end, const char **next)
{
    const char *digits = at + (*at == '-'), *p = skip_digits(digits, end);
    number_kind kind = INTEGER;
    if (has_word(at, end, "NaN")) {
        *next = at + 3;
        return NAN_WORD;
    }
    if (has_word(digits, end, "Infinity")) {
        *next = digits + 8;
        return INFINITY_WORD;
    }
    *next = p;
    if (p == digits || (*digits == '0' && p > digits + 1))
        return NOT_A_NUMBER;
    if (p < end && *p == '.') {
        const char *fraction = p + 1;
        kind = REAL;
        *next = p = skip_digits(fraction, end);
        if (p == fraction)
            return NOT_A_NUMBER;
    }
    if (p < end && (*p == 'e' || *p == 'E')) {
        const char *power = p + 1;
        power += power < end && (*power == '+' || *power == '-');
        kind = REAL;
        *next = p = skip_digits(power, end);
        if (p == power)
            return NOT_A_NUMBER;
    }
    return kind;
}

/* Returns true if an integer fits into int64_t. Its text (the digits, and perhaps a minus sign) has n bytes
 * and is at `at`. */
static bool fits_integer(const char *at, size_t n)
{
    bool negative = *at == '-';
    const char *limit = negative ? "9223372036854775808" : "9223372036854775807";
    size_t digits = n - negative;
    return digits < 19 || (digits == 19 && memcmp(at + negative, limit, 19) <= 0);
}

/* Appends the number whose text has n bytes and is at `at`, as a value that Jansson can represent: NaN
 * becomes null, infinity and numbers too large for a double become the largest double (or its negative), and
 * other integers beyond 64 bits become reals. For JSON trees whose values are used and not printed again. */
static ax_status write_readable(number_kind kind, const char *at, size_t n, ax_buf *out)
{
    char *text;
    if (kind == NAN_WORD)
        return ax_buf_add(out, "null", 4);
    AX_TRY(ax_strndup(at, n, &text));
    bool huge = isinf(strtod(text, NULL));
    free(text);
    if (huge)
        return ax_buf_printf(out, "%s1.7976931348623157e308", *at == '-' ? "-" : "");
    AX_TRY(ax_buf_add(out, at, n));
    return kind == INTEGER && !fits_integer(at, n) ? ax_buf_add(out, ".0", 2) : AX_OK;
}

/* Appends the number whose text has n bytes and is at `at`, for ax_json_print: unchanged if Jansson prints it
 * with the same digits, else as a string of MARK and this text. */
static ax_status write_verbatim(number_kind kind, const char *at, size_t n, ax_buf *out)
{
    bool minus_zero = n == 2 && !memcmp(at, "-0", 2);
    if (kind == INTEGER && fits_integer(at, n) && !minus_zero)
        return ax_buf_add(out, at, n);
    return ax_buf_printf(out, "\"" MARK "%.*s\"", (int)n, at);
}

typedef ax_status (*write_number_fn)(number_kind kind, const char *at, size_t n, ax_buf *out);

/* Scans one piece of the text: a number, a string, or bytes that are neither. Returns NOT_A_NUMBER for a
 * string and for other bytes. *next is the byte after the piece. */
static number_kind next_piece(const char *at, const char *end, const char **next)
{
    number_kind kind = scan_number(at, end, next);
    if (kind == NOT_A_NUMBER)
        *next = *at == '"' ? skip_string(at, end) : skip_other(*next > at ? *next : at + 1, end);
    return kind;
}

/* Appends the text with its numbers written by `write_number`. All other bytes are copied unchanged, also if
 * the text is not JSON. */
static ax_status rewrite_numbers(const char *text, size_t size, write_number_fn write_number, ax_buf *out)
{
    const char *end = text + size;
    for (const char *at = text, *next; at < end; at = next) {
        number_kind kind = next_piece(at, end, &next);
        AX_TRY(kind == NOT_A_NUMBER ? ax_buf_add(out, at, (size_t)(next - at))
                                    : write_number(kind, at, (size_t)(next - at), out));
    }
    return AX_OK;
}

/* ---- reading ------------------------------------------------------------------------------------- */

/* A text to parse, and its position in a file, for messages. */
typedef struct source {
    const ax_json_place *place; /* NULL: not known */
    const char *text;
    size_t size;
    write_number_fn write_number;
} source;

/* Maps a position in the rewritten text to the original text. Returns the first byte of the number or string
 * at that position; outside of numbers and strings, returns the byte at that position. */
static const char *find_piece(const source *s, size_t position)
{
    const char *at = s->text, *end = at + s->size, *next;
    ax_buf part = {0};
    for (size_t before = 0, n; at < end; at = next, before += n) {
        number_kind kind = next_piece(at, end, &next);
        part.size = 0;
        if (kind != NOT_A_NUMBER && s->write_number(kind, at, (size_t)(next - at), &part) != AX_OK)
            break;
        n = kind == NOT_A_NUMBER ? (size_t)(next - at) : part.size;
        if (position < before + n) {
            at += kind == NOT_A_NUMBER && *at != '"' ? position - before : 0;
            break;
        }
    }
    ax_buf_fini(&part);
    return at;
}

/* Returns the position in the original text at which the token that Jansson rejected begins. Jansson reports
 * the position after the token, and quotes a token of up to 20 bytes: "… near 'TOKEN'". */
static const char *find_error(const source *s, const json_error_t *error)
{
    size_t position = (size_t)ax_max(error->position, 0), n = 1;
    const char *quoted = strstr(error->text, " near '");
    if (quoted)
        n = strlen(quoted) - strlen(" near ''");
    else if (strstr(error->text, " near end of file"))
        n = 0;
    return find_piece(s, position - (n < position ? n : position));
}

/* Advances line and column of a place over the characters from `at` to `to`. */
static void advance_place(ax_json_place *place, const char *at, const char *to)
{
    for (; at < to; at++) {
        place->column += (*at & 0xC0) != 0x80; /* counts characters by their first bytes */
        if (*at == '\n') {
            place->line++;
            place->column = 1;
        }
    }
}

static ax_status fail_parse(const source *s, const json_error_t *error)
{
    ax_json_place at = s->place ? *s->place : (ax_json_place){NULL, 1, 1};
    const char *why = json_error_code(error) == json_error_null_character
                          ? "the character \\u0000 is not allowed in strings here"
                          : error->text;
    const char *stand_in = at.line == 1 && at.column == 1 ? ax_file_stand_in(s->text, s->size) : NULL;
    if (at.path && stand_in)
        return ax_fail(AX_ERR_DATA, "%s %s", at.path, stand_in);
    advance_place(&at, s->text, find_error(s, error));
    if (at.path)
        return ax_fail(AX_ERR_DATA, "%s:%lld:%lld: not valid JSON: %s", at.path, (long long)at.line,
                       (long long)at.column, why);
    if (at.line == 1)
        return ax_fail(AX_ERR_DATA, "not valid JSON: %s (column %lld)", why, (long long)at.column);
    return ax_fail(AX_ERR_DATA, "not valid JSON: %s (line %lld of the text, column %lld)", why,
                   (long long)at.line, (long long)at.column);
}

static ax_status parse_rewritten(const source *s, size_t flags, json_t **out)
{
    ax_buf rewritten = {0};
    json_error_t error = {0};
    ax_status status = rewrite_numbers(s->text, s->size, s->write_number, &rewritten);
    if (status == AX_OK &&
        !(*out = json_loadb(rewritten.data ? rewritten.data : "", rewritten.size, flags, &error)))
        status = fail_parse(s, &error);
    ax_buf_fini(&rewritten);
    return status;
}

ax_status ax_json_parse_at(const ax_json_place *place, const char *text, size_t size, size_t flags,
                           json_t **out)
{
    json_error_t error;
    /* The unchanged text is tried first, which is faster and usually succeeds. */
    *out = json_loadb(text, size, flags, &error);
    return *out ? AX_OK : parse_rewritten(&(source){place, text, size, write_readable}, flags, out);
}

ax_status ax_json_parse(const char *where, const char *text, size_t size, size_t flags, json_t **out)
{
    return ax_json_parse_at(where ? &(ax_json_place){where, 1, 1} : NULL, text, size, flags, out);
}

ax_status ax_json_parse_verbatim(const char *where, const char *text, size_t size, json_t **out)
{
    *out = NULL;
    return parse_rewritten(&(source){&(ax_json_place){where, 1, 1}, text, size, write_verbatim},
                           JSON_ALLOW_NUL, out);
}

ax_status ax_json_read_file(const char *path, size_t flags, json_t **out)
{
    char *text;
    size_t size;
    *out = NULL;
    AX_TRY(ax_file_read(path, &text, &size));
    ax_status status = ax_json_parse(path, text, size, flags, out);
    free(text);
    return status;
}

/* ---- writing ------------------------------------------------------------------------------------- */

/* Appends the number `digits` with the fewest digits that read back as the same double. Adds ".0" if
 * these have neither a decimal point nor an exponent, so that the number remains a real. */
static ax_status add_real(const char *digits, ax_buf *out)
{
    char text[32];
    double value = strtod(digits, NULL);
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(text, sizeof text, "%.*g", precision, value);
        if (strtod(text, NULL) == value)
            break;
    }
    return ax_buf_printf(out, strpbrk(text, ".e") ? "%s" : "%s.0", text);
}

/* Appends a text that Jansson printed: reals get the fewest digits, and strings with MARK become numbers
 * again. */
static ax_status add_numbers(const char *text, ax_buf *out)
{
    const size_t opening = strlen("\"" MARK);
    const char *end = text + strlen(text);
    for (const char *at = text, *next; at < end; at = next) {
        if (next_piece(at, end, &next) == REAL) {
            AX_TRY(add_real(at, out));
            continue;
        }
        bool marked = !strncmp(at, "\"" MARK, opening);
        const char *from = marked ? at + opening : at, *to = marked ? next - 1 : next;
        AX_TRY(ax_buf_add(out, from, (size_t)(to - from)));
    }
    return AX_OK;
}

ax_status ax_json_print(const json_t *value, size_t flags, ax_buf *out)
{
    char *text = json_dumps(value, flags);
    AX_CHECK(text, AX_ERR_MEMORY, "not enough memory to write the JSON of a model's configuration");
    ax_status status = add_numbers(text, out);
    free(text);
    return status;
}

json_t *ax_json_text(const char *bytes, size_t n)
{
    static const char REPLACEMENT[] = "\xef\xbf\xbd";
    ax_buf valid = {0};
    ax_status status = ax_buf_reserve(&valid, n + 1);
    while (n && status == AX_OK) {
        utf8proc_int32_t point;
        utf8proc_ssize_t used =
            utf8proc_iterate((const utf8proc_uint8_t *)bytes, (utf8proc_ssize_t)n, &point);
        status = used > 0 ? ax_buf_add(&valid, bytes, (size_t)used) : ax_buf_add(&valid, REPLACEMENT, 3);
        used = used > 0 ? used : 1;
        bytes += used;
        n -= (size_t)used;
    }
    json_t *text = status == AX_OK ? json_stringn(valid.data ? valid.data : "", valid.size) : NULL;
    ax_buf_fini(&valid);
    return text;
}
