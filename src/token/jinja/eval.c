/* Evaluates expressions. */
#include "token/jinja/inner.h"

#include <math.h>
#include <string.h>

/* ---- operators --------------------------------------------------------------------------------------- */

static jv integers(jx *e, char op, int64_t a, int64_t b)
{
    int64_t out = 0;
    bool over = false;
    switch (op) {
    case '+':
        over = __builtin_add_overflow(a, b, &out);
        break;
    case '-':
        over = __builtin_sub_overflow(a, b, &out);
        break;
    case '*':
        over = __builtin_mul_overflow(a, b, &out);
        break;
    case 'P':
        out = 1;
        for (int64_t i = 0; i < b && !over && !(a == 0 || a == 1 || (a == -1 && i == 2 - b % 2)); i++)
            over = __builtin_mul_overflow(out, a, &out);
        out = a == 0 ? b == 0 : out;
        break;
    default: /* D, %: towards minus infinity */
        if (!b)
            jx_fail_own(e, "a division by zero");
        over = a == INT64_MIN && b == -1;
        if (!over) {
            const int64_t rest = a % b, less = rest && (rest < 0) != (b < 0);
            out = op == 'D' ? a / b - less : rest + (less ? b : 0);
        }
    }
    if (over)
        jx_fail(e, "a number has more than 64 bits");
    return jv_int(out);
}

static jv reals(jx *e, char op, double a, double b)
{
    if (!b && (op == '/' || op == 'D' || op == '%'))
        jx_fail_own(e, "a division by zero");
    const double rest = op == '%' || op == 'D' ? fmod(a, b) : 0;
    const bool less = rest && (rest < 0) != (b < 0);
    return jv_real(op == '+'   ? a + b
                   : op == '-' ? a - b
                   : op == '*' ? a * b
                   : op == '/' ? a / b
                   : op == 'P' ? pow(a, b)
                   : op == '%' ? (rest ? rest + (less ? b : 0) : copysign(0, b))
                               : floor((a - rest) / b - less + 0.5));
}

/* Repeats a string or a list. */
static jv repeat(jx *e, jv v, int64_t n)
{
    if (v.kind == J_STRING) {
        jstr *out = js_text(e, ""), *part = v.s;
        /* Powers of two of the string: a string without end is noticed by its length. */
        for (n = n < 0 ? 0 : n; n; n >>= 1) {
            if (n & 1)
                out = js_cat(e, out, part);
            if (n > 1)
                part = js_cat(e, part, part);
        }
        return jv_str(out);
    }
    jlist *list = list_new(e, v.list->kind);
    for (int64_t i = 0; i < n && v.list->n; i++)
        for (size_t k = 0; k < v.list->n; k++)
            list_add(e, list, v.list->v[k]);
    return jv_list(list);
}

static jv add_lists(jx *e, const jlist *a, const jlist *b)
{
    jlist *list = list_new(e, a->kind);
    for (size_t i = 0; i < a->n + b->n; i++)
        list_add(e, list, i < a->n ? a->v[i] : b->v[i - a->n]);
    return jv_list(list);
}

static bool repeats(jv v) { return v.kind == J_STRING || (v.kind == J_LIST && v.list->kind <= L_TUPLE); }

jv binary(jx *e, char op, jv a, jv b)
{
    const char one[] = {op, 0};
    jx_charge(e, 0);
    if (a.kind == J_UNDEFINED || b.kind == J_UNDEFINED)
        if (!(op == '%' && a.kind == J_STRING))
            jx_fail(e, "%s", undefined_text(e, a.kind == J_UNDEFINED ? a : b));
    if (op == '%' && a.kind == J_STRING)
        return percent_format(e, a.s, b);
    if (is_number(a) && is_number(b)) {
        const bool whole = is_integer(a) && is_integer(b) && op != '/' && !(op == 'P' && b.i < 0);
        return whole ? integers(e, op, a.i, b.i) : reals(e, op, to_real(a), to_real(b));
    }
    if (op == '+' && a.kind == J_STRING && b.kind == J_STRING)
        return jv_str(js_cat(e, a.s, b.s));
    if (op == '+' && a.kind == J_LIST && b.kind == J_LIST && a.list->kind == b.list->kind &&
        a.list->kind <= L_TUPLE)
        return add_lists(e, a.list, b.list);
    if (op == '*' && repeats(a) && is_integer(b))
        return repeat(e, a, b.i);
    if (op == '*' && repeats(b) && is_integer(a))
        return repeat(e, b, a.i);
    jx_fail(e, "%s and %s cannot be joined by \"%s\"", kind_name(a), kind_name(b),
            op == 'D'   ? "//"
            : op == 'P' ? "**"
                        : one);
}

static jv negate(jx *e, jv v, bool minus)
{
    if (!is_number(v))
        jx_fail(e, "%s",
                v.kind == J_UNDEFINED ? undefined_text(e, v) : "the sign of something that is no number");
    if (v.kind == J_REAL)
        return jv_real(minus ? -v.real : v.real);
    return minus ? integers(e, '-', 0, v.i) : jv_int(v.i);
}

static bool compares(jx *e, char op, jv a, jv b)
{
    switch (op) {
    case 'E':
        return is_equal(e, a, b);
    case 'N':
        return !is_equal(e, a, b);
    case 'i':
        return contains(e, b, a);
    case 'n':
        return !contains(e, b, a);
    case '<':
        return compare(e, a, b) < 0;
    case '>':
        return compare(e, a, b) > 0;
    case 'L':
        return compare(e, a, b) <= 0;
    default:
        return compare(e, a, b) >= 0;
    }
}

/* Compares what has facets. */
static jv compare_facets(jx *e, jv a, jv b, const void *with)
{
    const char op = *(const char *)with;
    const bool told = op == 'E' || op == 'N' || (op != 'i' && op != 'n' && is_number(a) && is_number(b));
    return told ? jv_bool(compares(e, op, a, b)) : (jv){.kind = NO_FACET};
}

/* Adds, subtracts or multiplies small numbers that have facets. */
static jv add_facets(jx *e, jv a, jv b, const void *with)
{
    enum { MOST = 1 << 30 };
    const bool small =
        a.kind == J_INT && b.kind == J_INT && a.i < MOST && a.i > -MOST && b.i < MOST && b.i > -MOST;
    return small ? integers(e, *(const char *)with, a.i, b.i) : (jv){.kind = NO_FACET};
}

/* Returns an attribute of a map. */
static jv attribute_facets(jx *e, jv a, jv b, const void *with)
{
    jv value;
    (void)b;
    return a.kind == J_DICT && dict_find(e, a.dict, with, &value) ? value : (jv){.kind = NO_FACET};
}

static jv test_facets(jx *e, jv a, jv b, const void *with)
{
    const node *n = with;
    (void)b;
    return jv_bool(n->fn(e, a, &(jargs){0}).i != n->flag);
}

static jv not_facets(jx *e, jv a, jv b, const void *with)
{
    (void)b;
    (void)with;
    return jv_bool(!is_true(e, a));
}

/* As eval, for one who can do with facets. */
static jv eval_facets(jx *e, scope *s, const node *n)
{
    const jv out = eval_unasked(e, s, n);
    return out.kind == J_LIST ? settle(e, out) : out;
}

/* Maps a value that has facets, or two. Returns false if this cannot be told, and settles them. */
static bool maps(jx *e, jv *a, jv *b, facet_fn *how, const void *with, jv *out)
{
    if (!a->facets && !b->facets)
        return false;
    jv x = *a, y = *b;
    x.facets = y.facets = 0;
    if (!e->aside && how(e, x, y, with).kind != NO_FACET) {
        *out = map_facets(e, *a, *b, how, with);
        return true;
    }
    *a = settle(e, *a);
    *b = settle(e, *b);
    return false;
}

static jv eval_compare(jx *e, scope *s, const node *n)
{
    jv left = eval_facets(e, s, n->a), out;
    if (!n->b->next) {
        jv right = eval_facets(e, s, n->b->a);
        const char op = (char)n->b->op;
        return maps(e, &left, &right, compare_facets, &op, &out) ? out
                                                                 : jv_bool(compares(e, op, left, right));
    }
    left = settle(e, left);
    for (const node *o = n->b; o; o = o->next) {
        const jv right = eval(e, s, o->a);
        if (!compares(e, (char)o->op, left, right))
            return jv_bool(false);
        left = right;
    }
    return jv_bool(true);
}

/* ---- parts of expressions ------------------------------------------------------------------------------ */

static jv eval_name(jx *e, scope *s, const node *n)
{
    jv value;
    return scope_get(e, s, n->name, &value) ? value : jv_no_variable(n->name);
}

static jv eval_list(jx *e, scope *s, const node *n)
{
    jlist *list = list_new(e, n->type == N_TUPLE ? L_TUPLE : L_LIST);
    for (const node *one = n->a; one; one = one->next)
        list_add(e, list, eval(e, s, one));
    return jv_list(list);
}

static jv eval_dict(jx *e, scope *s, const node *n)
{
    jdict *d = dict_new(e);
    for (const node *one = n->a; one; one = one->next->next) {
        const jv key = eval(e, s, one);
        dict_set(e, d, key, eval(e, s, one->next));
    }
    return jv_dict(d);
}

/* Returns the slice of a list of messages; `value`: its bounds. */
static jv slice_messages(jx *e, jv object, const jv value[3])
{
    const int64_t first = value[0].kind == J_NONE ? 0 : value[0].kind == J_INT ? value[0].i : -1;
    const bool from = first >= 0 && value[2].kind == J_NONE;
    const bool rest = from && value[1].kind == J_NONE,
               front = from && value[1].kind == J_INT && value[1].i >= 0;
    if (!rest)
        asked(e, object.list, front ? value[1].i : -1);
    const jv out = get_slice(e, object, &value[0], &value[1], &value[2]);
    if (rest)
        watch(e, out.list, object.list->offset + (size_t)first);
    return out;
}

static jv eval_item(jx *e, scope *s, const node *n)
{
    const jv unasked = eval_unasked(e, s, n->a), object = unasked.facets ? settle(e, unasked) : unasked;
    const bool watched = object.kind == J_LIST && object.list->watched;
    if (n->b->type != N_SLICE) {
        const jv key = eval(e, s, n->b);
        if (watched && key.kind == J_INT && key.i < 0 && key.i > -INT32_MAX && !e->aside)
            return last_message(e, object.list, key.i);
        if (watched)
            asked(e, object.list, key.kind == J_INT && key.i >= 0 && key.i < INT32_MAX ? key.i + 1 : -1);
        return get_item(e, object, key);
    }
    const node *const parts[] = {n->b->a, n->b->b, n->b->c};
    jv value[3];
    for (int i = 0; i < 3; i++)
        value[i] = parts[i] ? eval(e, s, parts[i]) : jv_none();
    return watched ? slice_messages(e, object, value) : get_slice(e, object, &value[0], &value[1], &value[2]);
}

static jv eval_attribute(jx *e, scope *s, const node *n)
{
    jv object = eval_facets(e, s, n->a), none = jv_none(), value;
    if (object.facets && n->flag && maps(e, &object, &none, attribute_facets, n->value.s, &value))
        return value;
    object = settle(e, object);
    if (object.kind == J_LOOP)
        return loop_attribute(e, object.loop, n->op);
    if (n->flag && (object.kind == J_DICT || object.kind == J_NAMESPACE))
        return dict_find(e, object.dict, n->value.s, &value) ? value : jv_no_attribute(object, n->name);
    return get_attribute(e, object, n->name);
}

static jv eval_concat(jx *e, scope *s, const node *n)
{
    jstr *text = js_text(e, "");
    for (const node *one = n->a; one; one = one->next)
        text = js_cat(e, text, to_string(e, eval(e, s, one)));
    return jv_str(text);
}

static void add_named(jx *e, jargs *a, size_t *capacity, const char *name, jv value)
{
    size_t same = *capacity;
    jx_charge(e, 32 * a->n_named);
    for (size_t i = 0; i < a->n_named; i++)
        if (!strcmp(a->names[i], name))
            jx_fail(e, "the argument %s is given twice", name);
    a->names = jx_grow(e, a->names, a->n_named, &same, sizeof *a->names);
    a->named = jx_grow(e, a->named, a->n_named, capacity, sizeof *a->named);
    a->names[a->n_named] = name;
    a->named[a->n_named++] = value;
}

static const char *name_of(jx *e, jv key)
{
    jbuf text = {0};
    if (key.kind != J_STRING)
        jx_fail(e, "the names of arguments behind ** must be strings");
    jbuf_add(e, &text, js_data(e, key.s), key.s->n);
    jbuf_add(e, &text, "", 1);
    return text.data;
}

static jargs eval_arguments(jx *e, scope *s, const node *list)
{
    jargs a = {0};
    jlist all = {0};
    size_t capacity = 0;
    if (!list)
        return a;
    for (const node *one = list; one; one = one->next)
        all.capacity++;
    all.v = jx_alloc(e, all.capacity * sizeof *all.v);
    for (const node *one = list; one; one = one->next) {
        const jv value = eval(e, s, one->a);
        if (one->op == '*') {
            const jlist *more = elements(e, value);
            for (size_t i = 0; i < more->n; i++)
                list_add(e, &all, more->v[i]);
        } else if (one->op == 'P') {
            if (value.kind != J_DICT)
                jx_fail(e, "** needs a dict, but has a %s", kind_name(value));
            for (size_t i = 0; i < value.dict->n; i++)
                add_named(e, &a, &capacity, name_of(e, value.dict->key[i]), value.dict->value[i]);
        } else if (one->name) {
            add_named(e, &a, &capacity, one->name, value);
        } else {
            list_add(e, &all, value);
        }
    }
    a.v = all.v;
    a.n = all.n;
    return a;
}

static bool is_positional(const node *argument)
{
    while (argument && !argument->name && !argument->op)
        argument = argument->next;
    return !argument;
}

/* Calls range with one or two arguments. It may end where the messages do; then it is a list of them, as far
 * as their number is concerned. */
static jv eval_range(jx *e, scope *s, const node *n, jv callee)
{
    const bool two = n->b->next;
    jv v[2] = {two ? eval(e, s, n->b->a) : jv_int(0)};
    v[1] = eval_unasked(e, s, two ? n->b->next->a : n->b->a);
    size_t offset = 0;
    const bool follows = v[1].facets && v[0].kind == J_INT && follows_messages(e, v[0].i, v[1], &offset);
    if (follows)
        v[1].facets = 0;
    v[1] = settle(e, v[1]);
    e->line = n->line;
    const jv out = call_value(e, callee, &(jargs){.v = two ? v : v + 1, .n = 1 + two});
    if (follows)
        watch(e, out.list, offset);
    return out;
}

static jv eval_call(jx *e, scope *s, const node *n)
{
    const node *f = n->a;
    const bool method = f->type == N_ATTR && f->fn; /* of strings; they need no value of their own */
    const jv self = method ? eval(e, s, f->a) : jv_none();
    const bool text = self.kind == J_STRING;
    const jv callee = text ? self : method ? get_attribute(e, self, f->name) : eval(e, s, f);
    if (n->b && (!n->b->next || !n->b->next->next) && is_range(callee) && is_positional(n->b))
        return eval_range(e, s, n, callee);
    const jargs a = eval_arguments(e, s, n->b);
    e->line = n->line;
    return text ? f->fn(e, self, &a) : call_value(e, callee, &a);
}

static jv eval_filter(jx *e, scope *s, const node *n)
{
    if (!n->fn)
        jx_fail(e, "the filter %.60s is not offered", n->name);
    jv input = eval_unasked(e, s, n->a);
    if (n->op == 'l' && input.kind == J_LIST && input.list->watched && !input.facets)
        return length_facets(e, input.list);
    input = settle(e, input);
    const jargs a = eval_arguments(e, s, n->b);
    e->line = n->line;
    return n->fn(e, input, &a);
}

static jv eval_test(jx *e, scope *s, const node *n)
{
    if (!n->fn)
        jx_fail(e, "the test %.60s is not offered", n->name);
    jv input = eval_unasked(e, s, n->a), none = jv_none(), out;
    if (n->op == 'k')
        return maps(e, &input, &none, test_facets, n, &out) ? out : test_facets(e, input, none, n);
    input = settle(e, input);
    const jargs a = eval_arguments(e, s, n->b);
    e->line = n->line;
    return jv_bool(n->fn(e, input, &a).i != n->flag);
}

static jv eval_cond(jx *e, scope *s, const node *n)
{
    if (settle_true(e, eval_unasked(e, s, n->a)))
        return eval_unasked(e, s, n->b);
    return n->c ? eval_unasked(e, s, n->c)
                : jv_undefined("the expression behind \"if\" is false, and there is no \"else\"");
}

/* Returns what `and` or `or` makes of two values. */
static jv logic_facets(jx *e, jv a, jv b, const void *with)
{
    const node *n = with;
    return is_true(e, a) == (n->type == N_OR) ? a : b;
}

static jv eval_logic(jx *e, scope *s, const node *n)
{
    const jv left = eval_unasked(e, s, n->a);
    if (left.facets && !e->aside && n->b->type == N_NAME) { /* looking at it has no effect */
        const jv right = eval_unasked(e, s, n->b);
        if (right.facets || right.kind < J_LIST)
            return map_facets(e, left, right, logic_facets, n);
    }
    return settle_true(e, left) == (n->type == N_OR) ? left : eval_unasked(e, s, n->b);
}

static jv eval_not(jx *e, scope *s, const node *n)
{
    jv v = eval_unasked(e, s, n->a), none = jv_none(), out;
    return maps(e, &v, &none, not_facets, NULL, &out) ? out : jv_bool(!settle_true(e, v));
}

static jv eval_binary(jx *e, scope *s, const node *n)
{
    jv left = eval_facets(e, s, n->a), right = eval_facets(e, s, n->b), out;
    const char op = (char)n->op;
    if ((op == '+' || op == '-' || op == '*') && maps(e, &left, &right, add_facets, &op, &out))
        return out;
    left = settle(e, left);
    return binary(e, op, left, settle(e, right));
}

static jv eval_sign(jx *e, scope *s, const node *n) { return negate(e, eval(e, s, n->a), n->type == N_NEG); }

/* What evaluates each type of node but constants and names. */
typedef jv eval_fn(jx *e, scope *s, const node *n);
static eval_fn *const evals[] = {
    [N_LIST] = eval_list, [N_TUPLE] = eval_list,    [N_DICT] = eval_dict,     [N_ATTR] = eval_attribute,
    [N_ITEM] = eval_item, [N_CALL] = eval_call,     [N_FILTER] = eval_filter, [N_TEST] = eval_test,
    [N_NEG] = eval_sign,  [N_POS] = eval_sign,      [N_NOT] = eval_not,       [N_AND] = eval_logic,
    [N_OR] = eval_logic,  [N_BINARY] = eval_binary, [N_CONCAT] = eval_concat, [N_COMPARE] = eval_compare,
    [N_COND] = eval_cond,
};

jv eval_unasked(jx *e, scope *s, const node *n)
{
    if (n->type == N_CONST)
        return n->value;
    jx_charge(e, 0);
    e->line = n->line;
    jv out;
    if (n->type == N_NAME) {
        out = eval_name(e, s, n);
    } else {
        if (n->type >= AX_COUNT(evals) || !evals[n->type])
            jx_fail(e, "a slice stands where a value is needed");
        jx_enter(e);
        out = evals[n->type](e, s, n);
        jx_leave(e);
    }
    return out.facets && e->aside ? facet_aside(e, out) : out;
}

jv eval(jx *e, scope *s, const node *n) { return settle(e, eval_unasked(e, s, n)); }
