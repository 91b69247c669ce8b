/* Tests: what may follow `is`. */
#include "token/jinja/inner.h"

static jv argument(jx *e, const jargs *a)
{
    check_arguments(e, a, 1);
    if (!a->n)
        jx_fail(e, "a test needs what to compare with");
    return a->v[0];
}

static jv kind_is(jx *e, const jargs *a, bool is) { return check_arguments(e, a, 0), jv_bool(is); }

static jv t_defined(jx *e, jv v, const jargs *a) { return kind_is(e, a, v.kind != J_UNDEFINED); }
static jv t_undefined(jx *e, jv v, const jargs *a) { return kind_is(e, a, v.kind == J_UNDEFINED); }
static jv t_none(jx *e, jv v, const jargs *a) { return kind_is(e, a, v.kind == J_NONE); }
static jv t_string(jx *e, jv v, const jargs *a) { return kind_is(e, a, v.kind == J_STRING); }
static jv t_number(jx *e, jv v, const jargs *a) { return kind_is(e, a, is_number(v)); }
static jv t_integer(jx *e, jv v, const jargs *a) { return kind_is(e, a, v.kind == J_INT); }
static jv t_float(jx *e, jv v, const jargs *a) { return kind_is(e, a, v.kind == J_REAL); }
static jv t_boolean(jx *e, jv v, const jargs *a) { return kind_is(e, a, v.kind == J_BOOL); }
static jv t_true(jx *e, jv v, const jargs *a) { return kind_is(e, a, v.kind == J_BOOL && v.i); }
static jv t_false(jx *e, jv v, const jargs *a) { return kind_is(e, a, v.kind == J_BOOL && !v.i); }
static jv t_mapping(jx *e, jv v, const jargs *a) { return kind_is(e, a, v.kind == J_DICT); }

static jv t_iterable(jx *e, jv v, const jargs *a)
{
    return kind_is(e, a,
                   v.kind == J_STRING || v.kind == J_LIST || v.kind == J_DICT || v.kind == J_UNDEFINED ||
                       v.kind == J_LOOP);
}

static jv t_sequence(jx *e, jv v, const jargs *a)
{
    const bool list = v.kind == J_LIST && v.list->kind != L_VIEW && v.list->kind != L_GENERATOR;
    return kind_is(e, a, list || v.kind == J_STRING || v.kind == J_DICT || v.kind == J_UNDEFINED);
}

static jv t_callable(jx *e, jv v, const jargs *a)
{
    return kind_is(e, a,
                   v.kind == J_MACRO || v.kind == J_METHOD || v.kind == J_FUNCTION || v.kind == J_LOOP ||
                       v.kind == J_UNDEFINED);
}

static jv modulo(jx *e, jv v, int64_t by, int64_t rest)
{
    const jv left = binary(e, '%', v, jv_int(by));
    return jv_bool(is_equal(e, left, jv_int(rest)));
}
static jv t_odd(jx *e, jv v, const jargs *a) { return check_arguments(e, a, 0), modulo(e, v, 2, 1); }
static jv t_even(jx *e, jv v, const jargs *a) { return check_arguments(e, a, 0), modulo(e, v, 2, 0); }
static jv t_divisible(jx *e, jv v, const jargs *a)
{
    const jv by = argument(e, a);
    return jv_bool(is_equal(e, binary(e, '%', v, by), jv_int(0)));
}

static jv t_eq(jx *e, jv v, const jargs *a) { return jv_bool(is_equal(e, v, argument(e, a))); }
static jv t_ne(jx *e, jv v, const jargs *a) { return jv_bool(!is_equal(e, v, argument(e, a))); }
static jv t_lt(jx *e, jv v, const jargs *a) { return jv_bool(compare(e, v, argument(e, a)) < 0); }
static jv t_gt(jx *e, jv v, const jargs *a) { return jv_bool(compare(e, v, argument(e, a)) > 0); }
static jv t_le(jx *e, jv v, const jargs *a) { return jv_bool(compare(e, v, argument(e, a)) <= 0); }
static jv t_ge(jx *e, jv v, const jargs *a) { return jv_bool(compare(e, v, argument(e, a)) >= 0); }
static jv t_in(jx *e, jv v, const jargs *a) { return jv_bool(contains(e, argument(e, a), v)); }

static jv t_sameas(jx *e, jv v, const jargs *a)
{
    const jv other = argument(e, a);
    if (v.kind != other.kind)
        return jv_bool(false);
    if (v.kind == J_LIST || v.kind == J_DICT) {
        cannot_tell(e);
        return jv_bool(v.dict == other.dict);
    }
    return jv_bool(is_equal(e, v, other));
}

/* Letters of one case among any others. */
static jv has_case(jx *e, jv v, const jargs *a, const char *name)
{
    jv method;
    check_arguments(e, a, 0);
    const jv text = jv_str(to_string(e, v));
    find_method(e, text, name, &method);
    return call_value(e, method, a);
}
static jv t_upper(jx *e, jv v, const jargs *a) { return has_case(e, v, a, "isupper"); }
static jv t_lower(jx *e, jv v, const jargs *a) { return has_case(e, v, a, "islower"); }

const jbuiltin jinja_tests[] = {
    {"defined", t_defined},
    {"undefined", t_undefined},
    {"none", t_none},
    {"string", t_string},
    {"number", t_number},
    {"integer", t_integer},
    {"float", t_float},
    {"boolean", t_boolean},
    {"true", t_true},
    {"false", t_false},
    {"mapping", t_mapping},
    {"iterable", t_iterable},
    {"sequence", t_sequence},
    {"callable", t_callable},
    {"odd", t_odd},
    {"even", t_even},
    {"divisibleby", t_divisible},
    {"eq", t_eq},
    {"equalto", t_eq},
    {"==", t_eq},
    {"ne", t_ne},
    {"!=", t_ne},
    {"lt", t_lt},
    {"lessthan", t_lt},
    {"<", t_lt},
    {"gt", t_gt},
    {"greaterthan", t_gt},
    {">", t_gt},
    {"le", t_le},
    {"<=", t_le},
    {"ge", t_ge},
    {">=", t_ge},
    {"in", t_in},
    {"sameas", t_sameas},
    {"upper", t_upper},
    {"lower", t_lower},
    {0},
};
