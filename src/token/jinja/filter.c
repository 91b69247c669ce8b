/* Filters of texts and numbers, and tojson. */
#include "token/jinja/inner.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- JSON, as json.dumps of Python writes it -------------------------------------------------------- */

typedef struct dumper {
    jbuf out;
    int32_t from;
    const char *indent; /* NULL: on one line */
    size_t n_indent;
    const char *item, *key; /* separators */
    size_t n_item, n_key;
    bool ascii, sorted;
} dumper;

static void dump(jx *e, dumper *d, jv v, int depth);

static void dump_string(jx *e, dumper *d, jstr *s)
{
    static const char plain[] = "\b\f\n\r\t\"\\", escaped[] = "bfnrt\"\\";
    const char *data = js_data(e, s);
    d->from = from_both(d->from, js_from(s));
    jbuf_add(e, &d->out, "\"", 1);
    for (size_t i = 0, n; i < s->n; i += n) {
        const unsigned char c = (unsigned char)data[i];
        for (n = 0; i + n < s->n; n++) {
            const unsigned char k = (unsigned char)data[i + n];
            if (k < 0x20 || k == '"' || k == '\\' || (d->ascii && k >= 0x7f))
                break;
        }
        if (n) {
            jbuf_add(e, &d->out, data + i, n);
            continue;
        }
        n = 1;
        const char *place = c ? strchr(plain, c) : NULL;
        if (place) {
            jbuf_printf(e, &d->out, "\\%c", escaped[place - plain]);
        } else if (c < 0x80) {
            jbuf_printf(e, &d->out, c == 0x7f ? "\x7f" : "\\u%04x", c);
        } else {
            jstr *one = js_sub(e, s, i, s->n - i);
            n = js_offset(e, one, 1);
            uint32_t code = c & (0xffu >> (n + 1));
            for (size_t k = 1; k < n; k++)
                code = code << 6 | ((unsigned char)data[i + k] & 0x3f);
            if (code >= 0x10000)
                jbuf_printf(e, &d->out, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10),
                            0xdc00 + (code & 0x3ff));
            else
                jbuf_printf(e, &d->out, "\\u%04x", code);
        }
    }
    jbuf_add(e, &d->out, "\"", 1);
}

static void dump_break(jx *e, dumper *d, int depth)
{
    if (!d->indent)
        return;
    jbuf_add(e, &d->out, "\n", 1);
    for (int i = 0; i < depth; i++)
        jbuf_add(e, &d->out, d->indent, d->n_indent);
}

static void dump_real(jx *e, dumper *d, double value)
{
    if (isnan(value) || isinf(value))
        jbuf_printf(e, &d->out, "%s", isnan(value) ? "NaN" : value < 0 ? "-Infinity" : "Infinity");
    else
        put_real(e, value, &d->out);
}

static void dump_key(jx *e, dumper *d, jv key)
{
    if (key.kind == J_STRING) {
        dump_string(e, d, key.s);
        return;
    }
    if (key.kind == J_LIST || key.kind == J_UNDEFINED)
        jx_fail(e, "tojson: a key of a map is a %s", kind_name(key));
    jbuf_add(e, &d->out, "\"", 1);
    dump(e, d, key, 0);
    jbuf_add(e, &d->out, "\"", 1);
}

static void dump_list(jx *e, dumper *d, const jlist *list, int depth)
{
    if (list->kind > L_TUPLE)
        jx_fail(e, "tojson: a %s is no JSON: make it a list", kind_name(jv_list((jlist *)list)));
    jbuf_add(e, &d->out, "[", 1);
    for (size_t i = 0; i < list->n; i++) {
        jbuf_add(e, &d->out, d->item, i ? d->n_item : 0);
        dump_break(e, d, depth + 1);
        dump(e, d, list->v[i], depth + 1);
    }
    if (list->n)
        dump_break(e, d, depth);
    jbuf_add(e, &d->out, "]", 1);
}

static jdict *sort_dict(jx *e, const jdict *d)
{
    jdict *out = dict_new(e);
    jv list = jv_list(list_new(e, L_LIST));
    for (size_t i = 0; i < d->n; i++)
        list_add(e, list.list, d->key[i]);
    const jv sorted =
        find_filter("sort")(e, list, &(jargs){.v = (jv[]){jv_bool(false), jv_bool(true)}, .n = 2});
    for (size_t i = 0; i < d->n; i++) {
        jv value;
        dict_get(e, d, sorted.list->v[i], &value);
        dict_set(e, out, sorted.list->v[i], value);
    }
    return out;
}

static void dump_dict(jx *e, dumper *d, const jdict *dict, int depth)
{
    dict = d->sorted ? sort_dict(e, dict) : dict;
    jbuf_add(e, &d->out, "{", 1);
    for (size_t i = 0; i < dict->n; i++) {
        jbuf_add(e, &d->out, d->item, i ? d->n_item : 0);
        dump_break(e, d, depth + 1);
        dump_key(e, d, dict->key[i]);
        jbuf_add(e, &d->out, d->key, d->n_key);
        dump(e, d, dict->value[i], depth + 1);
    }
    if (dict->n)
        dump_break(e, d, depth);
    jbuf_add(e, &d->out, "}", 1);
}

static void dump(jx *e, dumper *d, jv v, int depth)
{
    jx_enter(e);
    switch (v.kind) {
    case J_NONE:
        jbuf_printf(e, &d->out, "null");
        break;
    case J_BOOL:
        jbuf_printf(e, &d->out, v.i ? "true" : "false");
        break;
    case J_INT:
        jbuf_printf(e, &d->out, "%lld", (long long)v.i);
        break;
    case J_REAL:
        dump_real(e, d, v.real);
        break;
    case J_STRING:
        dump_string(e, d, v.s);
        break;
    case J_LIST:
        dump_list(e, d, v.list, depth);
        break;
    case J_DICT:
        dump_dict(e, d, v.dict, depth);
        break;
    default:
        jx_fail(e, "tojson: %s", v.kind == J_UNDEFINED ? undefined_text(e, v) : "a value that is no JSON");
    }
    jx_leave(e);
}

static void set_indent(jx *e, dumper *d, const jv *indent)
{
    if (!indent || indent->kind == J_NONE)
        return;
    d->n_item = 1;
    if (indent->kind == J_STRING) {
        d->indent = js_data(e, indent->s);
        d->n_indent = indent->s->n;
        return;
    }
    if (!is_integer(*indent) || indent->i > 64)
        jx_fail(e, "tojson: the indent must be a number up to 64, or a string");
    d->n_indent = indent->i > 0 ? (size_t)indent->i : 0;
    char *spaces = jx_alloc(e, d->n_indent + 1);
    memset(spaces, ' ', d->n_indent);
    d->indent = spaces;
}

jv filter_tojson(jx *e, jv self, const jargs *a)
{
    dumper d = {.item = ", ", .n_item = 2, .key = ": ", .n_key = 2, .from = AX_JINJA_TEMPLATE};
    check_arguments(e, a, 4);
    d.ascii = bool_argument(e, a, 0, "ensure_ascii", false);
    set_indent(e, &d, get_argument(e, a, 1, "indent"));
    const jv *separators = get_argument(e, a, 2, "separators");
    if (separators && separators->kind != J_NONE) {
        jlist *list = elements(e, *separators);
        if (list->n != 2 || list->v[0].kind != J_STRING || list->v[1].kind != J_STRING)
            jx_fail(e, "tojson: separators must be two strings");
        d.item = js_data(e, list->v[0].s);
        d.n_item = list->v[0].s->n;
        d.key = js_data(e, list->v[1].s);
        d.n_key = list->v[1].s->n;
    }
    d.sorted = bool_argument(e, a, 3, "sort_keys", false);
    dump(e, &d, self, 0);
    return jv_str(js_new(e, d.out.data, d.out.n, d.from));
}

/* ---- texts ------------------------------------------------------------------------------------------- */

static jv f_upper(jx *e, jv v, const jargs *a)
{
    return check_arguments(e, a, 0), jv_str(js_case(e, to_string(e, v), 'u'));
}
static jv f_lower(jx *e, jv v, const jargs *a)
{
    return check_arguments(e, a, 0), jv_str(js_case(e, to_string(e, v), 'l'));
}
static jv f_title(jx *e, jv v, const jargs *a)
{
    return check_arguments(e, a, 0), jv_str(js_case(e, to_string(e, v), 'T'));
}
static jv f_capitalize(jx *e, jv v, const jargs *a)
{
    return check_arguments(e, a, 0), jv_str(js_case(e, to_string(e, v), 'c'));
}
static jv f_string(jx *e, jv v, const jargs *a) { return check_arguments(e, a, 0), jv_str(to_string(e, v)); }

static jv f_trim(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 1);
    return jv_str(js_strip(e, to_string(e, v), string_argument(e, a, 0, "chars"), true, true));
}

static jv f_replace(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 3);
    const jv *old = get_argument(e, a, 0, "old"), *new = get_argument(e, a, 1, "new");
    if (!old || !new)
        jx_fail(e, "replace needs two strings");
    return jv_str(js_replace(e, to_string(e, v), to_string(e, *old), to_string(e, *new),
                             int_argument(e, a, 2, "count", -1)));
}

static jv f_escape(jx *e, jv v, const jargs *a)
{
    static const char *const pairs[][2] = {
        {"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"'", "&#39;"}, {"\"", "&#34;"}};
    check_arguments(e, a, 0);
    jstr *s = to_string(e, v);
    for (size_t i = 0; i < AX_COUNT(pairs); i++)
        s = js_replace(e, s, js_text(e, pairs[i][0]), js_text(e, pairs[i][1]), -1);
    return jv_str(s);
}

static jv f_indent(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 3);
    const jv *width = get_argument(e, a, 0, "width");
    const bool first = bool_argument(e, a, 1, "first", false), blank = bool_argument(e, a, 2, "blank", false);
    jstr *by = width && width->kind == J_STRING ? width->s : NULL, *s = to_string(e, v),
         *out = js_text(e, "");
    jstr *newline = js_text(e, "\n");
    const int64_t n = by ? 0 : int_argument(e, a, 0, "width", 4);
    if (n > 1000)
        jx_fail(e, "indent: %lld spaces are too many", (long long)n);
    for (int64_t i = 0; i < n; i++)
        by = by ? js_cat(e, by, js_text(e, " ")) : js_text(e, " ");
    by = by ? by : js_text(e, "");
    out = first ? by : out;
    size_t begin = 0;
    for (size_t at; (at = js_find(e, s, newline, begin)) != SIZE_MAX; begin = at + 1) {
        out = js_cat(e, out, js_sub(e, s, begin, at + 1 - begin));
        const bool empty = at + 1 == s->n || js_data(e, s)[at + 1] == '\n';
        if (blank || !empty)
            out = js_cat(e, out, by);
    }
    return jv_str(js_cat(e, out, js_sub(e, s, begin, s->n - begin)));
}

/* Writes one value by a format of `%`. */
static jstr *percent_one(jx *e, char kind, int precision, jv v)
{
    jbuf out = {0};
    int32_t from = AX_JINJA_TEMPLATE;
    char text[400];
    if (kind == 's')
        return to_string(e, v);
    if (kind == 'r') {
        put_repr(e, v, &out, &from);
        return js_new(e, out.data, out.n, from);
    }
    if (!is_number(v))
        jx_fail(e, "%%%c needs a number, but has a %s", kind, kind_name(v));
    if (kind != 'f' && v.kind == J_REAL && !(fabs(v.real) < 0x1p63))
        jx_fail(e, "%%%c needs a whole number of at most 64 bits", kind);
    if (kind == 'f')
        snprintf(text, sizeof text, "%.*f", precision < 0 ? 6 : precision, to_real(v));
    else
        snprintf(text, sizeof text, "%lld", (long long)(is_integer(v) ? v.i : (int64_t)v.real));
    jbuf_printf(e, &out, "%s", text);
    return js_new(e, out.data, out.n, from);
}

jv percent_format(jx *e, jstr *format, jv values)
{
    const bool tuple = values.kind == J_LIST && values.list->kind == L_TUPLE;
    const jlist one = {.v = &values, .n = 1};
    const jlist *list = tuple ? values.list : &one;
    jstr *out = js_text(e, "");
    const char *data = js_data(e, format);
    size_t begin = 0, next = 0;
    for (size_t i = 0; i < format->n; i++) {
        if (data[i] != '%')
            continue;
        out = js_cat(e, out, js_sub(e, format, begin, i - begin));
        int precision = -1;
        i++;
        if (i + 1 < format->n && data[i] == '.' && data[i + 1] >= '0' && data[i + 1] <= '9') {
            precision = data[i + 1] - '0';
            i += 2;
        }
        const char kind = i < format->n ? data[i] : 0;
        begin = i + 1;
        if (kind == '%' && precision < 0) {
            out = js_cat(e, out, js_text(e, "%"));
            continue;
        }
        if (!kind || !strchr("srdif", kind) || (precision >= 0 && kind != 'f'))
            jx_fail(e, "a format has something else than %%s, %%r, %%d, %%i, %%f, %%.2f and %%%%");
        if (next >= list->n)
            jx_fail(e, "a format has more places than there are values");
        out = js_cat(e, out, percent_one(e, kind, precision, list->v[next++]));
    }
    if (next < list->n && (tuple || values.kind != J_DICT))
        jx_fail(e, "a format has fewer places than there are values");
    return jv_str(js_cat(e, out, js_sub(e, format, begin, format->n - begin)));
}

static jv f_format(jx *e, jv v, const jargs *a)
{
    jlist *values = list_new(e, L_TUPLE);
    for (size_t i = 0; i < a->n; i++)
        list_add(e, values, a->v[i]);
    if (a->n_named)
        jx_fail(e, "the filter format with named values is not offered");
    return percent_format(e, to_string(e, v), jv_list(values));
}

/* ---- numbers ------------------------------------------------------------------------------------------- */

static char *plain_text(jx *e, jv v)
{
    jstr *s = js_strip(e, v.s, NULL, true, true);
    char *text = jx_alloc(e, s->n + 1);
    memcpy(text, js_data(e, s), s->n);
    return text;
}

static jv f_int(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 2);
    const jv *given = get_argument(e, a, 0, "default");
    const int64_t base = int_argument(e, a, 1, "base", 10);
    const jv other = given ? *given : jv_int(0);
    if (is_integer(v))
        return jv_int(v.i);
    if (v.kind == J_REAL)
        return fabs(v.real) < 0x1p63 ? jv_int((int64_t)v.real) : other;
    if (v.kind == J_UNDEFINED)
        jx_fail(e, "%s", undefined_text(e, v));
    if (v.kind != J_STRING || (base != 10 && base != 16 && base != 8 && base != 2))
        return other;
    char *end, *text = plain_text(e, v);
    const long long value = strtoll(text, &end, (int)base);
    if (*text && !*end)
        return jv_int(value);
    const double real = strtod(text, &end);
    return *text && !*end && !strpbrk(text, "xXnN") && fabs(real) < 0x1p63 ? jv_int((int64_t)real) : other;
}

static jv f_float(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 1);
    const jv *given = get_argument(e, a, 0, "default");
    const jv other = given ? *given : jv_real(0);
    if (is_number(v))
        return jv_real(to_real(v));
    if (v.kind == J_UNDEFINED)
        jx_fail(e, "%s", undefined_text(e, v));
    if (v.kind != J_STRING)
        return other;
    char *end, *text = plain_text(e, v);
    const double real = strtod(text, &end);
    return *text && !*end && !strpbrk(text, "xX(") ? jv_real(real) : other;
}

static jv f_abs(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 0);
    if (!is_number(v) || (is_integer(v) && v.i == INT64_MIN))
        jx_fail(e, "abs of a %s", kind_name(v));
    return v.kind == J_REAL ? jv_real(fabs(v.real)) : jv_int(v.i < 0 ? -v.i : v.i);
}

static jv f_round(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 2);
    const int64_t digits = int_argument(e, a, 0, "precision", 0);
    jstr *method = string_argument(e, a, 1, "method");
    if (!is_number(v) || digits < 0 || digits > 15)
        jx_fail(e, "round needs a number and 0 to 15 digits");
    if (is_integer(v) && (!method || js_is(e, method, "common")))
        return jv_int(v.i);
    const double by = pow(10, (double)digits), x = to_real(v);
    if (method && (js_is(e, method, "ceil") || js_is(e, method, "floor")))
        return jv_real((js_is(e, method, "ceil") ? ceil(x * by) : floor(x * by)) / by);
    if (method && !js_is(e, method, "common"))
        jx_fail(e, "round: the methods are common, ceil and floor");
    char text[400]; /* printf rounds the exact value to even, as Python does */
    snprintf(text, sizeof text, "%.*f", (int)digits, x);
    return jv_real(strtod(text, NULL));
}

const jbuiltin jinja_text_filters[] = {
    {"upper", f_upper},
    {"lower", f_lower},
    {"title", f_title},
    {"capitalize", f_capitalize},
    {"string", f_string},
    {"trim", f_trim},
    {"replace", f_replace},
    {"escape", f_escape},
    {"e", f_escape},
    {"safe", f_string},
    {"indent", f_indent},
    {"format", f_format},
    {"int", f_int},
    {"float", f_float},
    {"abs", f_abs},
    {"round", f_round},
    {"tojson", filter_tojson},
    {0},
};
