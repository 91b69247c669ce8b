/* Filters of lists and maps. */
#include "token/jinja/inner.h"

#include <string.h>

static jv f_length(jx *e, jv v, const jargs *a) { return check_arguments(e, a, 0), jv_int(length_of(e, v)); }

static jv f_default(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 2);
    const jv *other = get_argument(e, a, 0, "default_value");
    const bool all = bool_argument(e, a, 1, "boolean", false);
    if (v.kind != J_UNDEFINED && !(all && !is_true(e, v)))
        return v;
    return other ? *other : jv_str(js_text(e, ""));
}

static jlist *copied(jx *e, const jlist *list, jlist_kind kind)
{
    jlist *out = list_new(e, kind);
    for (size_t i = 0; i < list->n; i++)
        list_add(e, out, list->v[i]);
    return out;
}

static jv f_list(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 0);
    return jv_list(copied(e, elements(e, v), L_LIST));
}

static jv f_first(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 0);
    jlist *list = elements(e, v);
    return list->n ? list->v[0] : jv_undefined("the list has no first element");
}

static jv f_last(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 0);
    if (v.kind == J_LIST && v.list->kind == L_GENERATOR)
        jx_fail(e, "last of a generator: make it a list");
    jlist *list = elements(e, v);
    return list->n ? list->v[list->n - 1] : jv_undefined("the list has no last element");
}

static jv f_reverse(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 0);
    jlist *out = list_back(e, elements(e, v), L_GENERATOR);
    if (v.kind != J_STRING)
        return jv_list(out);
    jstr *text = js_text(e, "");
    for (size_t i = 0; i < out->n; i++)
        text = js_cat(e, text, out->v[i].s);
    return jv_str(text);
}

static jv f_join(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 2);
    const jv *by = get_argument(e, a, 0, "d"), *attribute = get_argument(e, a, 1, "attribute");
    jlist *list = elements(e, v);
    jstr *out = js_text(e, ""), *between = by ? to_string(e, *by) : out;
    for (size_t i = 0; i < list->n; i++) {
        const jv one =
            attribute && attribute->kind != J_NONE ? get_path(e, list->v[i], *attribute) : list->v[i];
        out = js_cat(e, i ? js_cat(e, out, between) : out, to_string(e, one));
    }
    return jv_str(out);
}

static jv f_items(jx *e, jv v, const jargs *a)
{
    jv method;
    check_arguments(e, a, 0);
    if (v.kind == J_UNDEFINED)
        return jv_list(list_new(e, L_GENERATOR));
    if (v.kind != J_DICT || !find_method(e, v, "items", &method))
        jx_fail(e, "items needs a dict, but has a %s", kind_name(v));
    jv list = call_value(e, method, a);
    list.list->kind = L_GENERATOR;
    return list;
}

/* ---- map, select, reject --------------------------------------------------------------------------- */

static const char *name_argument(jx *e, const jargs *a, size_t at, const char *what)
{
    jstr *s = string_argument(e, a, at, "");
    jbuf text = {0};
    if (!s)
        jx_fail(e, "the name of a %s is missing", what);
    jbuf_add(e, &text, js_data(e, s), s->n);
    jbuf_add(e, &text, "", 1);
    return text.data;
}

/* Returns the elements of what a filter runs over: none of what is false, such as None. */
static jlist *elements_if(jx *e, jv v) { return is_true(e, v) ? elements(e, v) : list_new(e, L_LIST); }

static jv f_map(jx *e, jv v, const jargs *a)
{
    const jv *attribute = a->n ? NULL : get_argument(e, a, 0, "attribute");
    const jv *other = get_argument(e, a, SIZE_MAX, "default");
    jlist *list = elements_if(e, v), *out = list_new(e, L_GENERATOR);
    const char *name = attribute ? NULL : name_argument(e, a, 0, "filter");
    jfn fn = name ? find_filter(name) : NULL;
    jargs rest = arguments_from(a, 1);
    if (!attribute && !fn)
        jx_fail(e, "the filter %.60s is not offered", name);
    for (size_t i = 0; i < list->n; i++) {
        jx_enter(e);
        jv one = fn ? fn(e, list->v[i], &rest) : get_path(e, list->v[i], *attribute);
        jx_leave(e);
        if (attribute && other && one.kind == J_UNDEFINED)
            one = *other;
        list_add(e, out, one);
    }
    return jv_list(out);
}

/* Keeps elements that pass a test, or do not (`keep` false). `by_attribute`: the first argument names what of
 * an element is tested. Without a test, what is true passes. */
static jv choose(jx *e, jv v, const jargs *a, bool keep, bool by_attribute)
{
    jlist *list = elements_if(e, v), *out = list_new(e, L_GENERATOR);
    if (by_attribute && !a->n)
        jx_fail(e, "the name of an attribute is missing");
    const char *name = a->n > by_attribute ? name_argument(e, a, by_attribute, "test") : NULL;
    jfn fn = name ? find_builtin(jinja_tests, name) : NULL;
    jargs rest = arguments_from(a, 1 + by_attribute);
    if (name && !fn)
        jx_fail(e, "the test %.60s is not offered", name);
    for (size_t i = 0; i < list->n; i++) {
        const jv one = by_attribute ? get_path(e, list->v[i], a->v[0]) : list->v[i];
        jx_enter(e);
        if (is_true(e, fn ? fn(e, one, &rest) : one) == keep)
            list_add(e, out, list->v[i]);
        jx_leave(e);
    }
    return jv_list(out);
}
static jv f_select(jx *e, jv v, const jargs *a) { return choose(e, v, a, true, false); }
static jv f_reject(jx *e, jv v, const jargs *a) { return choose(e, v, a, false, false); }
static jv f_selectattr(jx *e, jv v, const jargs *a) { return choose(e, v, a, true, true); }
static jv f_rejectattr(jx *e, jv v, const jargs *a) { return choose(e, v, a, false, true); }

/* ---- order ------------------------------------------------------------------------------------------ */

/* Returns what of an element decides its order: of strings the lower case, unless `exact`. */
static jv order_key(jx *e, jv v, const jv *attribute, bool exact)
{
    if (attribute && attribute->kind != J_NONE)
        v = get_path(e, v, *attribute);
    return v.kind == J_STRING && !exact ? jv_str(js_case(e, v.s, 'l')) : v;
}

/* Merges two sorted halves of `v` and of their keys. Equal elements stay in their order. */
static void merge(jx *e, jv *v, jv *key, jv *room, size_t half, size_t n, bool reverse)
{
    memcpy(room, v, n * sizeof *v);
    memcpy(room + n, key, n * sizeof *key);
    for (size_t i = 0, j = half, k = 0; k < n; k++) {
        int order = i == half                               ? 1
                    : j == n                                ? -1
                    : is_equal(e, room[n + i], room[n + j]) ? 0
                                                            : compare(e, room[n + i], room[n + j]);
        order = reverse && i < half && j < n ? -order : order;
        const size_t from = order <= 0 ? i++ : j++;
        v[k] = room[from];
        key[k] = room[n + from];
    }
}

static void sort_values(jx *e, jv *v, jv *key, jv *room, size_t n, bool reverse)
{
    if (n < 2)
        return;
    sort_values(e, v, key, room, n / 2, reverse);
    sort_values(e, v + n / 2, key + n / 2, room, n - n / 2, reverse);
    merge(e, v, key, room, n / 2, n, reverse);
}

static jlist *sorted(jx *e, const jlist *list, const jv *attribute, bool exact, bool reverse)
{
    jlist *out = copied(e, list, L_LIST), *keys = list_new(e, L_LIST);
    for (size_t i = 0; i < out->n; i++)
        list_add(e, keys, order_key(e, out->v[i], attribute, exact));
    sort_values(e, out->v, keys->v, jx_alloc(e, 2 * out->n * sizeof(jv)), out->n, reverse);
    return out;
}

static jv f_sort(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 3);
    return jv_list(sorted(e, elements(e, v), get_argument(e, a, 2, "attribute"),
                          bool_argument(e, a, 1, "case_sensitive", false),
                          bool_argument(e, a, 0, "reverse", false)));
}

static jv f_dictsort(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 3);
    jstr *by = string_argument(e, a, 1, "by");
    const jv place = jv_int(by && js_is(e, by, "value"));
    if (by && !place.i && !js_is(e, by, "key"))
        jx_fail(e, "dictsort sorts by \"key\" or \"value\"");
    const jv items = f_items(e, v, &(jargs){0});
    return jv_list(sorted(e, items.list, &place, bool_argument(e, a, 0, "case_sensitive", false),
                          bool_argument(e, a, 2, "reverse", false)));
}

static jv f_unique(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 2);
    const bool exact = bool_argument(e, a, 0, "case_sensitive", false);
    const jv *attribute = get_argument(e, a, 1, "attribute");
    jlist *list = elements(e, v), *out = list_new(e, L_GENERATOR);
    jdict *seen = dict_new(e);
    for (size_t i = 0; i < list->n; i++) {
        const jv key = order_key(e, list->v[i], attribute, exact);
        jv value;
        if (dict_get(e, seen, key, &value))
            continue;
        dict_set(e, seen, key, jv_none());
        list_add(e, out, list->v[i]);
    }
    return jv_list(out);
}

static jv extreme(jx *e, jv v, const jargs *a, int sign)
{
    check_arguments(e, a, 2);
    const bool exact = bool_argument(e, a, 0, "case_sensitive", false);
    const jv *attribute = get_argument(e, a, 1, "attribute");
    jlist *list = elements(e, v);
    jv best = jv_undefined("the list has no elements");
    for (size_t i = 0; i < list->n; i++)
        if (!i || sign * compare(e, order_key(e, list->v[i], attribute, exact),
                                 order_key(e, best, attribute, exact)) >
                      0)
            best = list->v[i];
    return best;
}
static jv f_max(jx *e, jv v, const jargs *a) { return extreme(e, v, a, 1); }
static jv f_min(jx *e, jv v, const jargs *a) { return extreme(e, v, a, -1); }

static jv f_sum(jx *e, jv v, const jargs *a)
{
    check_arguments(e, a, 2);
    const jv *attribute = get_argument(e, a, 0, "attribute"), *start = get_argument(e, a, 1, "start");
    jlist *list = elements(e, v);
    jv sum = start ? *start : jv_int(0);
    for (size_t i = 0; i < list->n; i++)
        sum =
            binary(e, '+', sum,
                   attribute && attribute->kind != J_NONE ? get_path(e, list->v[i], *attribute) : list->v[i]);
    return sum;
}

static jv f_attr(jx *e, jv v, const jargs *a)
{
    jv method;
    check_arguments(e, a, 1);
    const char *name = name_argument(e, a, 0, "attribute");
    if (v.kind == J_DICT) /* keys are no attributes */
        return find_method(e, v, name, &method) ? method : jv_undefined("a dict has no such attribute");
    return get_attribute(e, v, name);
}

const jbuiltin jinja_list_filters[] = {
    {"length", f_length},
    {"count", f_length},
    {"default", f_default},
    {"d", f_default},
    {"list", f_list},
    {"first", f_first},
    {"last", f_last},
    {"reverse", f_reverse},
    {"join", f_join},
    {"items", f_items},
    {"map", f_map},
    {"select", f_select},
    {"reject", f_reject},
    {"selectattr", f_selectattr},
    {"sort", f_sort},
    {"rejectattr", f_rejectattr},
    {"dictsort", f_dictsort},
    {"unique", f_unique},
    {"max", f_max},
    {"min", f_min},
    {"sum", f_sum},
    {"attr", f_attr},
    {0},
};
