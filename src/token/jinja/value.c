/* Values: lists, maps, equality, order, truth, and their texts as Python prints them. */
#include "token/chat_templates.h"
#include "token/jinja/inner.h"
#include "token/tok.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

static const char *const kind_names[] = {
    "undefined", "None",  "bool",   "int",      "float", "str",   "list",           "dict",      "namespace",
    "loop",      "macro", "method", "function", "list",  "tuple", "view of a dict", "generator", "range"};

/* Returns the number of a value's kind in kind_names. */
static size_t kind_of(jv v) { return v.kind == J_LIST ? J_FUNCTION + 1 + (size_t)v.list->kind : v.kind; }

const char *kind_name(jv v) { return kind_names[kind_of(v)]; }

/* jv.of: 0: `what` is a sentence; 1: the name of a variable; 2 + a kind: of its attribute */
jv jv_no_variable(const char *name) { return (jv){.kind = J_UNDEFINED, .of = 1, .what = name}; }

jv jv_no_attribute(jv of, const char *name)
{
    return (jv){.kind = J_UNDEFINED, .of = (uint8_t)(2 + kind_of(of)), .what = name};
}

const char *undefined_text(jx *e, jv v)
{
    jbuf text = {0};
    if (!v.of)
        return v.what;
    if (v.of == 1)
        jbuf_printf(e, &text, "\"%.100s\" is not defined", v.what);
    else
        jbuf_printf(e, &text, "a %s has no attribute \"%.100s\"", kind_names[v.of - 2], v.what);
    jbuf_add(e, &text, "", 1);
    return text.data;
}

jlist *list_new(jx *e, jlist_kind kind)
{
    jlist *list = jx_alloc(e, sizeof *list);
    list->kind = kind;
    return list;
}

void list_add(jx *e, jlist *list, jv v)
{
    list->v = jx_grow(e, list->v, list->n, &list->capacity, sizeof *list->v);
    list->v[list->n++] = v;
    jx_charge(e, 0);
}

jlist *list_back(jx *e, jlist *list, jlist_kind kind)
{
    jlist *out = list_new(e, kind);
    if (list->n_back < list->n && e->aside) {
        for (size_t i = list->n; i-- > 0;)
            list_add(e, out, list->v[i]);
        return out;
    }
    if (list->n_back < list->n) {
        e->lasting++;
        jx_charge(e, list->n * sizeof *list->v);
        list->back = jx_room(e, list->n * sizeof *list->v);
        list->n_back = list->n;
        for (size_t i = 0; i < list->n; i++)
            list->back[i] = list->v[list->n - 1 - i];
    }
    out->v = list->back ? list->back + list->n_back - list->n : NULL;
    out->n = out->capacity = list->n;
    return out;
}

/* ---- maps ------------------------------------------------------------------------------------------- */

jdict *dict_new(jx *e) { return jx_alloc(e, sizeof(jdict)); }

static bool is_text(jx *e, jv v, const char *text, size_t n)
{
    const bool maybe = v.kind == J_STRING && v.s->n == n;
    jx_charge(e, maybe ? n : 0);
    return maybe && !memcmp(js_data(e, v.s), text, n);
}

static size_t place_of(jx *e, const jdict *d, jv key)
{
    if ((key.kind == J_LIST && key.list->kind != L_TUPLE) || key.kind == J_DICT)
        jx_fail(e, "a %s cannot be a key of a dict", kind_name(key));
    if (key.kind == J_STRING) {
        const char *text = js_data(e, key.s);
        for (size_t i = 0; i < d->n; i++)
            if (is_text(e, d->key[i], text, key.s->n))
                return i;
        return d->n;
    }
    for (size_t i = 0; i < d->n; i++)
        if (is_equal(e, d->key[i], key))
            return i;
    return d->n;
}

void dict_set(jx *e, jdict *d, jv key, jv value)
{
    const size_t i = place_of(e, d, key);
    if (i == d->n) {
        size_t capacity = d->capacity;
        d->key = jx_grow(e, d->key, d->n, &capacity, sizeof *d->key);
        d->value = jx_grow(e, d->value, d->n, &d->capacity, sizeof *d->value);
        d->key[d->n++] = key;
    }
    d->value[i] = value;
}

bool dict_get(jx *e, const jdict *d, jv key, jv *value)
{
    const size_t i = place_of(e, d, key);
    if (i < d->n)
        *value = d->value[i];
    return i < d->n;
}

bool dict_find(jx *e, const jdict *d, const jstr *key, jv *value)
{
    for (size_t i = 0; i < d->n; i++)
        if (is_text(e, d->key[i], key->data, key->n)) {
            *value = d->value[i];
            return true;
        }
    return false;
}

/* ---- truth, equality, order ---------------------------------------------------------------------------- */

bool is_true(jx *e, jv v)
{
    switch (v.kind) {
    case J_UNDEFINED:
    case J_NONE:
        return false;
    case J_BOOL:
    case J_INT:
        return v.i != 0;
    case J_REAL:
        return v.real != 0;
    case J_STRING:
        return v.s->n > 0;
    case J_LIST:
        return v.list->n > 0 || v.list->kind == L_GENERATOR;
    case J_DICT:
        return v.dict->n > 0;
    default:
        (void)e;
        return true;
    }
}

static bool same_lists(jx *e, const jlist *a, const jlist *b)
{
    if (a->n != b->n || (a->kind == L_TUPLE) != (b->kind == L_TUPLE))
        return false;
    jx_enter(e);
    bool same = true;
    for (size_t i = 0; i < a->n && same; i++)
        same = is_equal(e, a->v[i], b->v[i]);
    jx_leave(e);
    return same;
}

static bool same_dicts(jx *e, const jdict *a, const jdict *b)
{
    bool same = a->n == b->n;
    jv value;
    jx_enter(e);
    for (size_t i = 0; i < a->n && same; i++)
        same = dict_get(e, b, a->key[i], &value) && is_equal(e, a->value[i], value);
    jx_leave(e);
    return same;
}

bool is_equal(jx *e, jv a, jv b)
{
    jx_charge(e, 0);
    if (is_number(a) && is_number(b))
        return is_integer(a) && is_integer(b) ? a.i == b.i : to_real(a) == to_real(b);
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case J_STRING:
        return a.s->n == b.s->n && !js_compare(e, a.s, b.s);
    case J_LIST:
        return a.list == b.list || same_lists(e, a.list, b.list);
    case J_DICT:
        return a.dict == b.dict || same_dicts(e, a.dict, b.dict);
    case J_UNDEFINED:
    case J_NONE:
        return true;
    case J_FUNCTION:
        return a.fn == b.fn;
    default:
        return a.dict == b.dict;
    }
}

static int compare_lists(jx *e, const jlist *a, const jlist *b)
{
    for (size_t i = 0; i < a->n && i < b->n; i++)
        if (!is_equal(e, a->v[i], b->v[i])) {
            jx_enter(e);
            const int order = compare(e, a->v[i], b->v[i]);
            jx_leave(e);
            return order;
        }
    return (a->n > b->n) - (a->n < b->n);
}

int compare(jx *e, jv a, jv b)
{
    jx_charge(e, 0);
    if (is_integer(a) && is_integer(b))
        return (a.i > b.i) - (a.i < b.i);
    if (is_number(a) && is_number(b))
        return (to_real(a) > to_real(b)) - (to_real(a) < to_real(b));
    if (a.kind == J_STRING && b.kind == J_STRING)
        return js_compare(e, a.s, b.s);
    if (a.kind == J_LIST && b.kind == J_LIST && a.list->kind == b.list->kind && a.list->kind <= L_TUPLE)
        return compare_lists(e, a.list, b.list);
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED)
        jx_fail(e, "%s", undefined_text(e, a.kind == J_UNDEFINED ? a : b));
    jx_fail(e, "a %s and a %s have no order", kind_name(a), kind_name(b));
}

bool contains(jx *e, jv in, jv v)
{
    jv found;
    switch (in.kind) {
    case J_STRING:
        if (v.kind != J_STRING)
            jx_fail(e, "a %s cannot be in a string", kind_name(v));
        return js_find(e, in.s, v.s, 0) != SIZE_MAX;
    case J_DICT:
        return dict_get(e, in.dict, v, &found);
    case J_LIST:
    case J_UNDEFINED:
        break;
    default:
        jx_fail(e, "nothing can be in a %s", kind_name(in));
    }
    jlist *list = elements(e, in);
    for (size_t i = 0; i < list->n; i++)
        if (is_equal(e, list->v[i], v))
            return true;
    return false;
}

int64_t length_of(jx *e, jv v)
{
    if (v.kind == J_STRING)
        return (int64_t)js_length(e, v.s);
    if (v.kind == J_DICT)
        return (int64_t)v.dict->n;
    if (v.kind == J_LIST && v.list->kind != L_GENERATOR)
        return (int64_t)v.list->n;
    if (v.kind != J_UNDEFINED)
        jx_fail(e, "a %s has no length", kind_name(v));
    return 0;
}

static jlist *characters(jx *e, jstr *s)
{
    jlist *list = list_new(e, L_LIST);
    const char *data = js_data(e, s);
    for (size_t at = 0, n; at < s->n; at += n) {
        n = tok_utf8_size((unsigned char)data[at]);
        list_add(e, list, jv_str(js_sub(e, s, at, n)));
    }
    return list;
}

jlist *elements(jx *e, jv v)
{
    jlist *list;
    switch (v.kind) {
    case J_LIST:
        list = v.list;
        if (list->kind != L_GENERATOR)
            return list;
        jx_keep(e, &list->spent, sizeof list->spent);
        e->effects++;
        v.list = list->spent ? list_new(e, L_LIST) : list;
        list->spent = true;
        return v.list;
    case J_STRING:
        return characters(e, v.s);
    case J_DICT:
        list = list_new(e, L_LIST);
        for (size_t i = 0; i < v.dict->n; i++)
            list_add(e, list, v.dict->key[i]);
        return list;
    case J_UNDEFINED:
        return list_new(e, L_LIST);
    default:
        jx_fail(e, "a %s has no elements to run over", kind_name(v));
    }
}

/* ---- texts ------------------------------------------------------------------------------------------- */

void put_real(jx *e, double value, jbuf *out)
{
    ax_buf text = {0};
    char copy[64] = "";
    if (isnan(value) || isinf(value)) {
        jbuf_printf(e, out, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    if (chat_put_real(value, &text) == AX_OK)
        memcpy(copy, text.data, text.size < sizeof copy ? text.size : sizeof copy - 1);
    ax_buf_fini(&text);
    jbuf_printf(e, out, "%s", copy);
}

static void repr_string(jx *e, jstr *s, jbuf *out)
{
    const char *data = js_data(e, s);
    const bool single = memchr(data, '\'', s->n) && !memchr(data, '"', s->n);
    const char quote = single ? '"' : '\'';
    jbuf_add(e, out, &quote, 1);
    for (size_t i = 0, n; i < s->n; i += n) {
        const uint32_t c = tok_utf8_get(data + i, &n);
        const char *escape = c == '\n'   ? "\\n"
                             : c == '\r' ? "\\r"
                             : c == '\t' ? "\\t"
                             : c == '\\' ? "\\\\"
                                         : NULL;
        if (escape)
            jbuf_printf(e, out, "%s", escape);
        else if (c == (unsigned char)quote)
            jbuf_printf(e, out, "\\%c", quote);
        else if (c < 0x20 || (c >= 0x7f && c <= 0xa0) || c == 0xad)
            jbuf_printf(e, out, "\\x%02x", c);
        else if (c == 0x2028 || c == 0x2029 || (c >= 0x2000 && c <= 0x200f) || c == 0x3000 || c == 0xfeff)
            jbuf_printf(e, out, "\\u%04x", c);
        else
            jbuf_add(e, out, data + i, n);
    }
    jbuf_add(e, out, &quote, 1);
}

static void repr_list(jx *e, const jlist *list, jbuf *out, int32_t *from)
{
    const bool tuple = list->kind == L_TUPLE;
    if (list->kind > L_TUPLE)
        jx_fail(e, "a %s cannot be written: make it a list", kind_name(jv_list((jlist *)list)));
    jbuf_add(e, out, tuple ? "(" : "[", 1);
    for (size_t i = 0; i < list->n; i++) {
        jbuf_add(e, out, ", ", i ? 2 : 0);
        put_repr(e, list->v[i], out, from);
    }
    jbuf_add(e, out, ",", tuple && list->n == 1);
    jbuf_add(e, out, tuple ? ")" : "]", 1);
}

static void repr_dict(jx *e, const jdict *d, jbuf *out, int32_t *from)
{
    jbuf_add(e, out, "{", 1);
    for (size_t i = 0; i < d->n; i++) {
        jbuf_add(e, out, ", ", i ? 2 : 0);
        put_repr(e, d->key[i], out, from);
        jbuf_add(e, out, ": ", 2);
        put_repr(e, d->value[i], out, from);
    }
    jbuf_add(e, out, "}", 1);
}

void put_repr(jx *e, jv v, jbuf *out, int32_t *from)
{
    jx_enter(e);
    switch (v.kind) {
    case J_UNDEFINED:
        jbuf_printf(e, out, "Undefined");
        break;
    case J_NONE:
        jbuf_printf(e, out, "None");
        break;
    case J_BOOL:
        jbuf_printf(e, out, v.i ? "True" : "False");
        break;
    case J_INT:
        jbuf_printf(e, out, "%lld", (long long)v.i);
        break;
    case J_REAL:
        put_real(e, v.real, out);
        break;
    case J_STRING:
        js_data(e, v.s);
        *from = from_both(*from, js_from(v.s));
        repr_string(e, v.s, out);
        break;
    case J_LIST:
        repr_list(e, v.list, out, from);
        break;
    case J_DICT:
        repr_dict(e, v.dict, out, from);
        break;
    default:
        jx_fail(e, "a %s cannot be written", kind_name(v));
    }
    jx_leave(e);
}

jstr *to_string(jx *e, jv v)
{
    jbuf out = {0};
    int32_t from = AX_JINJA_TEMPLATE;
    if (v.kind == J_STRING)
        return v.s;
    if (v.kind == J_UNDEFINED)
        return js_text(e, "");
    put_repr(e, v, &out, &from);
    return js_new(e, out.data, out.n, from);
}

/* ---- the context ------------------------------------------------------------------------------------- */

static jv from_object(jx *e, const json_t *object, int32_t from)
{
    jdict *d = dict_new(e);
    json_t *o = (json_t *)object;
    d->given = true;
    d->capacity = json_object_size(o);
    d->key = jx_alloc(e, d->capacity * sizeof *d->key);
    d->value = jx_alloc(e, d->capacity * sizeof *d->value);
    for (void *at = json_object_iter(o); at; at = json_object_iter_next(o, at), d->n++) {
        const size_t n = json_object_iter_key_len(at);
        e->read += n;
        d->key[d->n] = jv_str(js_new(e, json_object_iter_key(at), n, from));
        d->value[d->n] = from_json(e, json_object_iter_value(at), from);
    }
    return jv_dict(d);
}

jv from_json(jx *e, const json_t *value, int32_t from)
{
    jv out = jv_none();
    jx_enter(e);
    e->read += 16;
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        out = from_object(e, value, from);
        break;
    case JSON_ARRAY:
        out = jv_list(list_new(e, L_LIST));
        for (size_t i = 0; i < json_array_size(value); i++)
            list_add(e, out.list, from_json(e, json_array_get(value, i), from));
        break;
    case JSON_STRING:
        out = jv_str(js_new(e, json_string_value(value), json_string_length(value), from));
        e->read += out.s->n;
        break;
    case JSON_INTEGER:
        out = jv_int(json_integer_value(value));
        break;
    case JSON_REAL:
        out = jv_real(json_real_value(value));
        break;
    case JSON_TRUE:
    case JSON_FALSE:
        out = jv_bool(json_is_true(value));
        break;
    default:
        break;
    }
    jx_leave(e);
    return out;
}
