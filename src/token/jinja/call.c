/* Calls, their arguments, and the functions of a template. */
#include "token/jinja/inner.h"

#include <string.h>
#include <time.h>

const jv *get_argument(jx *e, const jargs *a, size_t at, const char *name)
{
    (void)e;
    if (at < a->n)
        return &a->v[at];
    for (size_t i = 0; i < a->n_named; i++)
        if (!strcmp(a->names[i], name))
            return &a->named[i];
    return NULL;
}

jstr *string_argument(jx *e, const jargs *a, size_t at, const char *name)
{
    const jv *v = get_argument(e, a, at, name);
    if (!v || v->kind == J_NONE)
        return NULL;
    if (v->kind == J_UNDEFINED)
        jx_fail(e, "%s", undefined_text(e, *v));
    if (v->kind != J_STRING)
        jx_fail(e, "argument %zu is a %s, not a string", at + 1, kind_name(*v));
    return v->s;
}

int64_t int_argument(jx *e, const jargs *a, size_t at, const char *name, int64_t other)
{
    const jv *v = get_argument(e, a, at, name);
    if (!v || v->kind == J_NONE)
        return other;
    if (!is_integer(*v))
        jx_fail(e, "argument %zu (%s) is a %s, not a whole number", at + 1, name, kind_name(*v));
    return v->i;
}

bool bool_argument(jx *e, const jargs *a, size_t at, const char *name, bool other)
{
    const jv *v = get_argument(e, a, at, name);
    return v ? is_true(e, *v) : other;
}

void check_arguments(jx *e, const jargs *a, size_t most)
{
    if (a->n + a->n_named > most)
        jx_fail(e, "%zu arguments, but there can be at most %zu", a->n + a->n_named, most);
}

jargs arguments_from(const jargs *a, size_t n)
{
    jargs rest = *a;
    n = n < a->n ? n : a->n;
    rest.v = n ? rest.v + n : rest.v;
    rest.n -= n;
    return rest;
}

jfn find_builtin(const jbuiltin *table, const char *name)
{
    for (; table->name; table++)
        if (!strcmp(table->name, name))
            return table->fn;
    return NULL;
}

jfn find_filter(const char *name)
{
    jfn fn = find_builtin(jinja_text_filters, name);
    return fn ? fn : find_builtin(jinja_list_filters, name);
}

jv call_value(jx *e, jv callee, const jargs *a)
{
    jv out;
    jx_enter(e);
    switch (callee.kind) {
    case J_FUNCTION:
        out = callee.fn(e, jv_none(), a);
        break;
    case J_METHOD:
        out = callee.method->fn(e, callee.method->self, a);
        break;
    case J_MACRO:
        out = call_macro(e, callee.macro, a);
        break;
    case J_LOOP:
        if (a->n != 1 || !callee.loop->node->flag)
            jx_fail(e, "loop(...) needs one list, and a loop that is \"recursive\"");
        out = run_loop(e, callee.loop->outer, callee.loop->node, a->v[0], callee.loop->depth + 1);
        break;
    case J_UNDEFINED:
        (callee.of == 1 ? jx_fail_own : jx_fail)(e, "%s", undefined_text(e, callee));
    default:
        jx_fail(e, "a %s cannot be called", kind_name(callee));
    }
    jx_leave(e);
    return out;
}

/* Returns the name of an argument: text of the template, unless it came with a map behind **. */
static jv name_value(jx *e, const char *name)
{
    const size_t n = strlen(name);
    const bool own = names_find(&e->template->names, name, n) == name;
    return jv_str(js_new(e, name, n, own ? AX_JINJA_TEMPLATE : AX_JINJA_OTHER));
}

/* ---- macros ----------------------------------------------------------------------------------------- */

static bool named_argument(const jargs *a, const char *name, jv *value)
{
    for (size_t i = 0; i < a->n_named; i++)
        if (!strcmp(a->names[i], name)) {
            *value = a->named[i];
            return true;
        }
    return false;
}

static bool has_parameter(const node *macro, const char *name)
{
    for (const node *p = macro->b; p; p = p->next)
        if (!strcmp(p->name, name))
            return true;
    return !strcmp(name, "caller");
}

/* Sets the names under which a macro sees all that its parameters do not take. */
static void set_rest(jx *e, scope *s, const jmacro *m, const jargs *a, size_t n)
{
    jlist *rest = list_new(e, L_TUPLE);
    jdict *named = dict_new(e);
    const char *varargs = e->template->varargs, *kwargs = e->template->kwargs, *caller = e->template->caller;
    jv value;
    for (size_t i = n; i < a->n; i++)
        list_add(e, rest, a->v[i]);
    jx_charge(e, 32 * n * a->n_named);
    for (size_t i = 0; i < a->n_named; i++)
        if (!has_parameter(m->node, a->names[i]))
            dict_set(e, named, name_value(e, a->names[i]), a->named[i]);
    if (rest->n && !varargs)
        jx_fail(e, "the macro %s has %zu parameters, but is called with %zu", m->node->name, n, a->n);
    if (named->n && !kwargs)
        jx_fail(e, "the macro %s has no parameter %s", m->node->name, js_data(e, named->key[0].s));
    if (varargs)
        scope_set(e, s, varargs, jv_list(rest));
    if (kwargs)
        scope_set(e, s, kwargs, jv_dict(named));
    if (caller && named_argument(a, "caller", &value))
        scope_set(e, s, caller, value);
}

jv call_macro(jx *e, const jmacro *m, const jargs *a)
{
    scope *s = scope_new(e, m->outer);
    size_t n = 0;
    const int line = e->line;
    for (const node *p = m->node->b; p; p = p->next, n++) {
        jv value = jv_undefined("a parameter of a macro has no value");
        jx_charge(e, 32 * a->n_named);
        if (n < a->n)
            value = a->v[n];
        else if (!named_argument(a, p->name, &value) && p->a)
            value = eval(e, s, p->a);
        scope_set(e, s, p->name, value);
    }
    set_rest(e, s, m, a, n);
    jstr *text = capture(e, s, m->node->d);
    e->line = line;
    return jv_str(text);
}

/* ---- functions -------------------------------------------------------------------------------------- */

static jv g_raise(jx *e, jv self, const jargs *a)
{
    (void)self;
    jstr *message = a->n ? to_string(e, a->v[0]) : js_text(e, "");
    jx_fail(e, AX_JINJA_REFUSES "%.*s", (int)ax_min((int64_t)message->n, 1500), js_data(e, message));
}

static jv g_date(jx *e, jv self, const jargs *a)
{
    (void)self;
    char format[128], text[512];
    check_arguments(e, a, 1);
    jstr *given = string_argument(e, a, 0, "format");
    const time_t now = (time_t)e->now;
    struct tm when;
    if (!given || given->n >= sizeof format)
        jx_fail(e, "strftime_now needs a format of less than %zu bytes", sizeof format);
    memcpy(format, js_data(e, given), given->n);
    format[given->n] = 0;
    if (!gmtime_r(&now, &when))
        jx_fail(e, "the time %lld has no date", (long long)now);
    const size_t n = given->n ? strftime(text, sizeof text, format, &when) : 0;
    char *copy = jx_alloc(e, n + 1);
    memcpy(copy, text, n);
    return jv_str(js_new(e, copy, n, js_from(given)));
}

static jlist *numbers_from(jx *e, jv *first, size_t n)
{
    jlist *list = list_new(e, L_RANGE);
    list->v = first;
    list->n = list->capacity = n;
    return list;
}

/* Returns the list of the whole numbers from first to last - 1. Its elements are those of all such lists. */
static jlist *count_up(jx *e, size_t first, size_t last)
{
    struct numbers *all = &e->numbers;
    for (; all->n_up < last; all->n_up++) {
        all->up = jx_grow(e, all->up, all->n_up, &all->up_capacity, sizeof *all->up);
        all->up[all->n_up] = jv_int((int64_t)all->n_up);
        e->lasting++;
        jx_charge(e, 0);
    }
    return numbers_from(e, all->up + first, last - first);
}

/* Returns the list of the n whole numbers from first downwards. Its elements are those of all such lists. */
static jlist *count_down(jx *e, size_t first, size_t n)
{
    struct numbers *all = &e->numbers;
    if (first >= all->n_down) {
        const size_t most = 2 * first + 64;
        jx_charge(e, most * sizeof *all->down);
        all->down = jx_room(e, most * sizeof *all->down);
        all->n_down = most;
        e->lasting++;
        for (size_t i = 0; i < most; i++)
            all->down[i] = jv_int((int64_t)(most - 1 - i));
    }
    return numbers_from(e, all->down + (all->n_down - 1 - first), n);
}

static jv g_range(jx *e, jv self, const jargs *a)
{
    enum { MOST = 100000 };
    (void)self;
    check_arguments(e, a, 3);
    if (!a->n)
        jx_fail(e, "range needs a number");
    const int64_t first = a->n > 1 ? int_argument(e, a, 0, "", 0) : 0;
    const int64_t last = int_argument(e, a, a->n > 1, "", 0), step = int_argument(e, a, 2, "", 1);
    if (!step)
        jx_fail(e, "the step of a range is 0");
    if (step == 1 && first >= 0 && first < last && last <= MOST)
        return jv_list(count_up(e, (size_t)first, (size_t)last));
    if (step == -1 && last >= -1 && first > last && first < MOST)
        return jv_list(count_down(e, (size_t)first, (size_t)(first - last)));
    jlist *list = list_new(e, L_RANGE);
    for (int64_t i = first; step > 0 ? i < last : i > last;) {
        if (list->n == MOST)
            jx_fail_own(e, "a range has more than %d numbers", MOST);
        list_add(e, list, jv_int(i));
        if (__builtin_add_overflow(i, step, &i))
            break;
    }
    return jv_list(list);
}

/* Makes a map of a map or of pairs, and of named arguments. */
static jdict *make_dict(jx *e, const jargs *a)
{
    jdict *d = dict_new(e);
    if (a->n > 1)
        jx_fail(e, "dict takes one map, and named values");
    if (a->n && a->v[0].kind == J_DICT) {
        for (size_t i = 0; i < a->v[0].dict->n; i++)
            dict_set(e, d, a->v[0].dict->key[i], a->v[0].dict->value[i]);
    } else if (a->n) {
        jlist *pairs = elements(e, a->v[0]);
        for (size_t i = 0; i < pairs->n; i++) {
            jlist *pair = elements(e, pairs->v[i]);
            if (pair->n != 2)
                jx_fail(e, "dict: element %zu is not a pair", i);
            dict_set(e, d, pair->v[0], pair->v[1]);
        }
    }
    for (size_t i = 0; i < a->n_named; i++)
        dict_set(e, d, name_value(e, a->names[i]), a->named[i]);
    return d;
}

static jv g_dict(jx *e, jv self, const jargs *a)
{
    (void)self;
    return jv_dict(make_dict(e, a));
}

static jv g_namespace(jx *e, jv self, const jargs *a)
{
    (void)self;
    jdict *d = make_dict(e, a);
    for (size_t i = 0; i < d->n; i++)
        if (d->key[i].kind == J_STRING && d->key[i].s->n && js_data(e, d->key[i].s)[0] == '_')
            jx_fail(e, "an attribute of a namespace cannot begin with \"_\"");
    return (jv){.kind = J_NAMESPACE, .dict = d};
}

bool is_range(jv callee) { return callee.kind == J_FUNCTION && callee.fn == g_range; }

const jbuiltin jinja_functions[] = {
    {"raise_exception", g_raise}, {"strftime_now", g_date},
    {"range", g_range},           {"dict", g_dict},
    {"namespace", g_namespace},   {0},
};

void set_globals(jx *e, scope *root)
{
    for (const jbuiltin *f = jinja_functions; f->name; f++) {
        const char *name = names_find(&e->template->names, f->name, strlen(f->name));
        if (name)
            scope_set(e, root, name, (jv){.kind = J_FUNCTION, .fn = f->fn});
    }
}
