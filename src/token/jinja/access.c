/* Attributes, items and slices, as the sandbox of Jinja gives them: an attribute is first a method, then a
 * key of a map; an item is first a key, then a method. */
#include "token/jinja/inner.h"

#include <string.h>

jv get_attribute(jx *e, jv object, const char *name)
{
    jv value;
    if (object.kind == J_UNDEFINED)
        jx_fail(e, "%s", undefined_text(e, object));
    if (name[0] == '_' && name[1] == '_')
        jx_fail(e, "the attribute %.60s is not offered", name);
    if (object.kind == J_LOOP)
        return settle(e, loop_attribute(e, object.loop, loop_number(name)));
    if (find_method(e, object, name, &value) || ((object.kind == J_DICT || object.kind == J_NAMESPACE) &&
                                                 dict_find(e, object.dict, js_text(e, name), &value)))
        return settle(e, value);
    if (object.kind == J_MACRO && !strcmp(name, "name"))
        return jv_str(js_text(e, object.macro->node->name));
    return jv_no_attribute(object, name);
}

/* Returns an element of a sequence; a negative index counts from the end. */
static bool at_index(jx *e, jv object, int64_t i, jv *value)
{
    const int64_t n = length_of(e, object);
    i += i < 0 ? n : 0;
    if (i < 0 || i >= n)
        return false;
    if (object.kind == J_LIST) {
        *value = object.list->v[i];
        return true;
    }
    const size_t begin = js_offset(e, object.s, (size_t)i);
    jstr *rest = js_sub(e, object.s, begin, object.s->n - begin);
    *value = jv_str(js_sub(e, rest, 0, js_offset(e, rest, 1)));
    return true;
}

static const char *key_text(jx *e, jv key)
{
    jbuf text = {0};
    jstr *s = to_string(e, key);
    jbuf_add(e, &text, js_data(e, s), s->n);
    jbuf_add(e, &text, "", 1);
    return text.data;
}

jv get_item(jx *e, jv object, jv key)
{
    jv value;
    if (object.kind == J_UNDEFINED)
        jx_fail(e, "%s", undefined_text(e, object));
    if (object.kind == J_DICT && key.kind != J_DICT && !(key.kind == J_LIST && key.list->kind != L_TUPLE) &&
        dict_get(e, object.dict, key, &value))
        return value;
    if (is_integer(key) &&
        (object.kind == J_STRING ||
         (object.kind == J_LIST && object.list->kind != L_VIEW && object.list->kind != L_GENERATOR)) &&
        at_index(e, object, key.i, &value))
        return value;
    if (key.kind == J_STRING)
        return get_attribute(e, object, key_text(e, key));
    return jv_no_attribute(object, key.kind <= J_REAL ? key_text(e, key) : kind_name(key));
}

/* Returns a bound of a slice, within 0 … n (step > 0) or -1 … n-1. */
static int64_t bound(jx *e, const jv *v, int64_t n, int64_t step, int64_t other)
{
    if (!v || v->kind == J_NONE)
        return other;
    if (!is_integer(*v))
        jx_fail(e, "a bound of a slice is a %s, not a whole number", kind_name(*v));
    const int64_t low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    const int64_t i = v->i < 0 ? v->i + n : v->i;
    return i < low ? low : i > high ? high : i;
}

jv get_slice(jx *e, jv object, const jv *low, const jv *high, const jv *step)
{
    if (object.kind == J_UNDEFINED)
        jx_fail(e, "%s", undefined_text(e, object));
    if (object.kind != J_STRING &&
        (object.kind != J_LIST || object.list->kind == L_VIEW || object.list->kind == L_GENERATOR))
        return jv_no_attribute(object, "slice");
    const int64_t n = length_of(e, object);
    const int64_t by = !step || step->kind == J_NONE ? 1 : is_integer(*step) ? step->i : 0;
    if (!by)
        jx_fail(e, "the step of a slice is 0 or no whole number");
    const int64_t begin = bound(e, low, n, by, by > 0 ? 0 : n - 1);
    const int64_t end = bound(e, high, n, by, by > 0 ? n : -1);
    if (object.kind == J_STRING && by == 1) {
        if (begin >= end)
            return jv_str(js_text(e, ""));
        const size_t from = js_offset(e, object.s, (size_t)begin);
        jstr *rest = js_sub(e, object.s, from, object.s->n - from);
        return jv_str(js_sub(e, rest, 0, js_offset(e, rest, (size_t)(end - begin))));
    }
    if (object.kind == J_LIST && by == -1 && begin == n - 1 && end == -1)
        return jv_list(list_back(e, object.list, object.list->kind));
    jlist *all = elements(e, object), *list = list_new(e, object.kind == J_LIST ? object.list->kind : L_LIST);
    for (int64_t i = begin; by > 0 ? i < end : i > end; i += by) {
        list_add(e, list, all->v[i]);
        if (by > n || by < -n)
            break;
    }
    if (object.kind == J_LIST)
        return jv_list(list);
    jstr *text = js_text(e, "");
    for (size_t i = 0; i < list->n; i++)
        text = js_cat(e, text, list->v[i].s);
    return jv_str(text);
}

/* Returns true for a path of one part that is no number. */
static bool is_plain(jx *e, jstr *path)
{
    const char *text = js_data(e, path);
    return path->n && !(*text >= '0' && *text <= '9') && !memchr(text, '.', path->n);
}

jv get_path(jx *e, jv object, jv path)
{
    if (path.kind != J_STRING || is_plain(e, path.s))
        return get_item(e, object, path);
    const char *text = key_text(e, path);
    for (const char *dot; *text; text = dot + (*dot == '.')) {
        dot = strchr(text, '.');
        dot = dot ? dot : text + strlen(text);
        int64_t index = 0;
        bool number = dot > text && dot - text < 10;
        for (const char *c = text; c < dot; c++) {
            number = number && *c >= '0' && *c <= '9';
            index = number ? 10 * index + *c - '0' : 0;
        }
        object = get_item(e, object,
                          number ? jv_int(index)
                                 : jv_str(js_new(e, text, (size_t)(dot - text), AX_JINJA_TEMPLATE)));
    }
    return object;
}
