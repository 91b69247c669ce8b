/* Parses expressions, with the precedence of jinja2.parser. */
#include "token/jinja/inner.h"

#include <string.h>

node *new_node(parser *p, node_type type)
{
    node *n = jx_alloc(p->e, sizeof *n);
    n->type = (uint8_t)type;
    n->line = p->at->line;
    p->e->line = p->at->line;
    return n;
}

void add_node(node ***end, node *more)
{
    AX_ASSERT(*end);
    **end = more;
    *end = &more->next;
}

void unexpected(parser *p, const char *wanted)
{
    const token *t = p->at;
    static const char two[] = "ENGLDP", *const texts[] = {"==", "!=", ">=", "<=", "//", "**"};
    const char *place = t->kind == T_OP ? strchr(two, t->op) : NULL;
    const char one[] = {t->op, 0};
    p->e->line = t->line;
    if (t->kind == T_NAME || t->kind == T_STRING)
        jx_fail(p->e, "expected %s, but there is %s%.*s", wanted, t->kind == T_STRING ? "the string " : "",
                (int)ax_min((int64_t)t->n, 60), t->text);
    jx_fail(p->e, "expected %s, but there is %s", wanted,
            place                    ? texts[place - two]
            : t->kind == T_OP        ? one
            : t->kind == T_BLOCK_END ? "the end of the tag (%})"
            : t->kind == T_PRINT_END ? "the end of the tag (}})"
            : t->kind == T_END       ? "the end of the template"
                                     : "a number");
}

bool is_op(const parser *p, char op) { return p->at->kind == T_OP && p->at->op == op; }

static bool token_is(const token *t, const char *name)
{
    return t->kind == T_NAME && t->n == strlen(name) && !memcmp(t->text, name, t->n);
}

bool is_name(const parser *p, const char *name) { return token_is(p->at, name); }

bool skip_op(parser *p, char op)
{
    const bool there = is_op(p, op);
    p->at += there;
    return there;
}

bool skip_name(parser *p, const char *name)
{
    const bool there = is_name(p, name);
    p->at += there;
    return there;
}

void expect_op(parser *p, char op)
{
    const char wanted[] = {op, 0};
    if (!skip_op(p, op))
        unexpected(p, wanted);
}

const char *take_name(parser *p, const char *what)
{
    if (p->at->kind != T_NAME)
        unexpected(p, what);
    const token *t = p->at++;
    return jx_intern(p->e, &p->out->names, t->text, t->n);
}

/* ---- primaries ------------------------------------------------------------------------------------- */

static node *constant(parser *p, jv value)
{
    node *n = new_node(p, N_CONST);
    n->value = value;
    return n;
}

/* Strings that follow each other are one. */
static node *parse_strings(parser *p)
{
    jbuf text = {0};
    node *n = new_node(p, N_CONST);
    for (; p->at->kind == T_STRING; p->at++)
        jbuf_add(p->e, &text, p->at->text, p->at->n);
    n->value = jv_str(js_new(p->e, text.n ? text.data : "", text.n, AX_JINJA_TEMPLATE));
    return n;
}

static node *parse_list(parser *p)
{
    node *n = new_node(p, N_LIST), **end = &n->a;
    p->at++;
    while (!is_op(p, ']')) {
        if (n->a)
            expect_op(p, ',');
        if (is_op(p, ']'))
            break;
        add_node(&end, parse_expression(p));
    }
    p->at++;
    return n;
}

static node *parse_dict(parser *p)
{
    node *n = new_node(p, N_DICT), **end = &n->a;
    p->at++;
    while (!is_op(p, '}')) {
        if (n->a)
            expect_op(p, ',');
        if (is_op(p, '}'))
            break;
        add_node(&end, parse_expression(p));
        expect_op(p, ':');
        add_node(&end, parse_expression(p));
    }
    p->at++;
    return n;
}

static node *parse_brackets(parser *p)
{
    p->at++;
    if (is_op(p, ')')) {
        node *n = new_node(p, N_TUPLE);
        p->at++;
        return n;
    }
    node *n = parse_tuple(p, true);
    expect_op(p, ')');
    return n;
}

/* Notes that a variable is read; `asked`: in a way that says that it may not be there. Functions that
 * templates have are no variables. */
static void note_read(parser *p, const char *name, bool asked)
{
    if (find_builtin(jinja_functions, name))
        return;
    if (asked || !names_find(&p->out->bound, name, strlen(name)))
        jx_intern(p->e, &p->out->reads, name, strlen(name));
}

static node *parse_name(parser *p)
{
    static const struct {
        const char *name;
        jv value;
    } constants[] = {
        {"true", {.kind = J_BOOL, .i = 1}},  {"True", {.kind = J_BOOL, .i = 1}},
        {"false", {.kind = J_BOOL, .i = 0}}, {"False", {.kind = J_BOOL, .i = 0}},
        {"none", {.kind = J_NONE}},          {"None", {.kind = J_NONE}},
    };
    for (size_t i = 0; i < AX_COUNT(constants); i++)
        if (is_name(p, constants[i].name)) {
            node *n = constant(p, constants[i].value);
            p->at++;
            return n;
        }
    node *n = new_node(p, N_NAME);
    n->name = take_name(p, "a name");
    note_read(p, n->name, false);
    p->out->asks_date |= !strcmp(n->name, "strftime_now");
    return n;
}

node *parse_primary(parser *p)
{
    node *n;
    jx_enter(p->e);
    switch (p->at->kind) {
    case T_NAME:
        n = parse_name(p);
        break;
    case T_STRING:
        n = parse_strings(p);
        break;
    case T_INT:
        n = constant(p, jv_int(p->at->i));
        p->at++;
        break;
    case T_REAL:
        n = constant(p, jv_real(p->at->real));
        p->at++;
        break;
    default:
        n = is_op(p, '(')   ? parse_brackets(p)
            : is_op(p, '[') ? parse_list(p)
            : is_op(p, '{') ? parse_dict(p)
                            : NULL;
        if (!n)
            unexpected(p, "an expression");
    }
    jx_leave(p->e);
    return n;
}

/* ---- what follows a primary -------------------------------------------------------------------------- */

static node *parse_argument(parser *p, const token *first)
{
    node *n = new_node(p, N_ARG);
    if (skip_op(p, '*'))
        n->op = '*';
    else if (skip_op(p, 'P'))
        n->op = 'P';
    else if (first->kind == T_NAME && first[1].kind == T_OP && first[1].op == '=') {
        n->name = take_name(p, "a name");
        p->at++;
    }
    n->a = parse_expression(p);
    return n;
}

node *parse_arguments(parser *p)
{
    node *list = NULL, **end = &list;
    bool named = false;
    expect_op(p, '(');
    while (!is_op(p, ')')) {
        if (list)
            expect_op(p, ',');
        if (is_op(p, ')'))
            break;
        node *more = parse_argument(p, p->at);
        if (named && !more->name && !more->op)
            unexpected(p, "a named argument");
        named |= more->name || more->op == 'P';
        add_node(&end, more);
    }
    p->at++;
    return list;
}

static node *parse_call(parser *p, node *callee)
{
    node *n = new_node(p, N_CALL);
    n->a = callee;
    n->b = parse_arguments(p);
    return n;
}

/* Parses what stands in the brackets of an item: an expression or a slice. */
static node *parse_subscript(parser *p)
{
    node *first = is_op(p, ':') ? NULL : parse_expression(p);
    if (!is_op(p, ':'))
        return first;
    node *n = new_node(p, N_SLICE);
    n->a = first;
    p->at++;
    if (!is_op(p, ':') && !is_op(p, ']') && !is_op(p, ','))
        n->b = parse_expression(p);
    if (skip_op(p, ':') && !is_op(p, ']') && !is_op(p, ','))
        n->c = parse_expression(p);
    return n;
}

/* Gives an attribute its name. */
static void set_attribute(parser *p, node *n, const char *name)
{
    n->type = N_ATTR;
    n->name = name;
    n->value = jv_str(js_text(p->e, name));
    n->flag = !names_method(name) && strncmp(name, "__", 2) != 0;
    n->op = (uint8_t)loop_number(name);
    n->fn = string_method(name);
}

/* Returns the name of the attribute that is the item of this key, for any value; NULL: it may be another. */
static const char *attribute_name(parser *p, const node *key)
{
    if (key->type != N_CONST || key->value.kind != J_STRING || memchr(key->value.s->data, 0, key->value.s->n))
        return NULL;
    const char *name = jx_intern(p->e, &p->out->names, key->value.s->data, key->value.s->n);
    return names_method(name) || !strncmp(name, "__", 2) ? NULL : name;
}

static node *parse_item(parser *p, node *object)
{
    node *n = new_node(p, N_ITEM);
    n->a = object;
    p->at++;
    n->b = parse_subscript(p);
    if (is_op(p, ',')) {
        node *tuple = new_node(p, N_TUPLE), **end = &tuple->a;
        add_node(&end, n->b);
        while (skip_op(p, ','))
            add_node(&end, parse_subscript(p));
        n->b = tuple;
    }
    expect_op(p, ']');
    const char *name = attribute_name(p, n->b);
    if (name) {
        set_attribute(p, n, name);
        n->b = NULL;
    }
    return n;
}

static node *parse_attribute(parser *p, node *object)
{
    p->at++;
    if (p->at->kind == T_INT) {
        node *n = new_node(p, N_ITEM);
        n->a = object;
        n->b = constant(p, jv_int(p->at->i));
        p->at++;
        return n;
    }
    node *n = new_node(p, N_ATTR);
    n->a = object;
    set_attribute(p, n, take_name(p, "the name of an attribute"));
    return n;
}

/* Counts what follows a primary, or a filter: each part is one level of the tree. */
static void count_link(parser *p, int *links)
{
    if (++*links > JX_DEPTH / 2)
        jx_fail(p->e, "more than %d attributes, calls or filters follow each other", JX_DEPTH / 2);
}

static node *parse_postfix(parser *p, node *n)
{
    for (int links = 0;; count_link(p, &links))
        if (is_op(p, '.'))
            n = parse_attribute(p, n);
        else if (is_op(p, '['))
            n = parse_item(p, n);
        else if (is_op(p, '('))
            n = parse_call(p, n);
        else
            return n;
}

/* Notes a filter or test that is not offered, with its line unless it is that of the first one. */
static void note_missing(parser *p, const char *kind, const node *n)
{
    if (n->fn || p->branches)
        return;
    p->missing_line = p->missing.n ? p->missing_line : n->line;
    jbuf_printf(p->e, &p->missing, "%s%s %.60s", p->missing.n ? ", " : "", kind, n->name);
    if (n->line != p->missing_line)
        jbuf_printf(p->e, &p->missing, " (line %d)", n->line);
}

static node *parse_filter(parser *p, node *input)
{
    node *n = new_node(p, N_FILTER);
    n->a = input;
    n->name = take_name(p, "the name of a filter");
    n->fn = find_filter(n->name);
    note_missing(p, "filter", n);
    n->b = is_op(p, '(') ? parse_arguments(p) : NULL;
    n->op = !n->b && (!strcmp(n->name, "length") || !strcmp(n->name, "count")) ? 'l' : 0;
    return n;
}

node *parse_filters(parser *p, node *input, bool started)
{
    for (int links = 0; started || skip_op(p, '|'); started = false) {
        input = parse_filter(p, input);
        count_link(p, &links);
    }
    return input;
}

/* Returns true if the argument of a test begins here, without brackets around it. */
static bool argument_follows(const parser *p)
{
    static const char *const no[] = {"else", "or", "and"};
    const token_kind kind = p->at->kind;
    if (kind == T_STRING || kind == T_INT || kind == T_REAL || is_op(p, '[') || is_op(p, '{'))
        return true;
    for (size_t i = 0; i < AX_COUNT(no); i++)
        if (is_name(p, no[i]))
            return false;
    return kind == T_NAME;
}

static bool asks_kind(const char *test)
{
    static const char *const kinds[] = {"defined", "undefined", "none",     "string",  "number",
                                        "integer", "float",     "boolean",  "true",    "false",
                                        "mapping", "iterable",  "sequence", "callable"};
    for (size_t i = 0; i < AX_COUNT(kinds); i++)
        if (!strcmp(test, kinds[i]))
            return true;
    return false;
}

static node *parse_test(parser *p, node *input)
{
    node *n = new_node(p, N_TEST);
    n->a = input;
    p->at++;
    n->flag = skip_name(p, "not");
    n->name = take_name(p, "the name of a test");
    n->fn = find_builtin(jinja_tests, n->name);
    if (input->type == N_NAME && (!strcmp(n->name, "defined") || !strcmp(n->name, "undefined")))
        note_read(p, input->name, true);
    note_missing(p, "test", n);
    if (is_op(p, '(')) {
        n->b = parse_arguments(p);
    } else if (argument_follows(p)) {
        if (is_name(p, "is"))
            unexpected(p, "one test (tests cannot be chained with is)");
        n->b = new_node(p, N_ARG);
        n->b->a = parse_postfix(p, parse_primary(p));
    }
    n->op = !n->b && asks_kind(n->name) ? 'k' : 0;
    return n;
}

static node *parse_filters_and_tests(parser *p, node *n)
{
    for (int links = 0;; count_link(p, &links))
        if (skip_op(p, '|'))
            n = parse_filter(p, n);
        else if (is_name(p, "is"))
            n = parse_test(p, n);
        else if (is_op(p, '('))
            n = parse_call(p, n);
        else
            return n;
}

/* ---- operators --------------------------------------------------------------------------------------- */

static node *parse_unary(parser *p, bool filters)
{
    node *n;
    jx_enter(p->e);
    if (is_op(p, '-') || is_op(p, '+')) {
        n = new_node(p, is_op(p, '-') ? N_NEG : N_POS);
        p->at++;
        n->a = parse_unary(p, false);
    } else {
        n = parse_primary(p);
    }
    n = parse_postfix(p, n);
    jx_leave(p->e);
    return filters ? parse_filters_and_tests(p, n) : n;
}

/* Operators that bind alike, from the left; the first row binds most. Between rows 1 and 2 stands "~". */
static const char *const rows[] = {"P", "*/D%", "+-"};

static node *parse_binary(parser *p, int row);

static node *parse_concat(parser *p)
{
    node *first = parse_binary(p, 1);
    if (!is_op(p, '~'))
        return first;
    node *n = new_node(p, N_CONCAT), **end = &n->a;
    add_node(&end, first);
    while (skip_op(p, '~'))
        add_node(&end, parse_binary(p, 1));
    return n;
}

static node *parse_operand(parser *p, int row)
{
    return row == 0 ? parse_unary(p, true) : row == 2 ? parse_concat(p) : parse_binary(p, row - 1);
}

static node *parse_binary(parser *p, int row)
{
    node *n = parse_operand(p, row);
    for (int depth = 0; p->at->kind == T_OP && strchr(rows[row], p->at->op); depth++) {
        node *more = new_node(p, N_BINARY);
        more->op = (uint8_t)p->at->op;
        if (depth == JX_DEPTH / 2)
            jx_fail(p->e, "more than %d operators follow each other", JX_DEPTH / 2);
        p->at++;
        more->a = n;
        more->b = parse_operand(p, row);
        n = more;
    }
    return n;
}

static node *parse_compare(parser *p)
{
    node *first = parse_binary(p, 2), *n = NULL, **end = NULL;
    for (;;) {
        char op = 0;
        if (p->at->kind == T_OP && strchr("ENGL<>", p->at->op))
            op = p->at->op;
        else if (is_name(p, "in"))
            op = 'i';
        else if (is_name(p, "not") && token_is(p->at + 1, "in"))
            op = 'n';
        if (!op)
            return n ? n : first;
        if (!n) {
            n = new_node(p, N_COMPARE);
            n->a = first;
            end = &n->b;
        }
        node *operand = new_node(p, N_ARG);
        operand->op = (uint8_t)op;
        p->at += op == 'n' ? 2 : 1;
        operand->a = parse_binary(p, 2);
        add_node(&end, operand);
    }
}

static node *parse_not(parser *p)
{
    if (!is_name(p, "not"))
        return parse_compare(p);
    jx_enter(p->e);
    node *n = new_node(p, N_NOT);
    p->at++;
    n->a = parse_not(p);
    jx_leave(p->e);
    return n;
}

/* Parses operands of `and` (type N_AND) or `or`, whose own operands bind more. */
static node *parse_logic(parser *p, node_type type)
{
    node *n = type == N_AND ? parse_not(p) : parse_logic(p, N_AND);
    for (int depth = 0; skip_name(p, type == N_AND ? "and" : "or"); depth++) {
        node *more = new_node(p, type);
        if (depth == JX_DEPTH / 2)
            jx_fail(p->e, "more than %d operators follow each other", JX_DEPTH / 2);
        more->a = n;
        more->b = type == N_AND ? parse_not(p) : parse_logic(p, N_AND);
        n = more;
    }
    return n;
}

node *parse_expression(parser *p)
{
    jx_enter(p->e);
    node *n = parse_logic(p, N_OR);
    for (int depth = 0; is_name(p, "if"); depth++) {
        node *cond = new_node(p, N_COND);
        if (depth == JX_DEPTH / 2)
            jx_fail(p->e, "more than %d conditions follow each other", JX_DEPTH / 2);
        p->at++;
        cond->b = n;
        cond->a = parse_logic(p, N_OR);
        cond->c = skip_name(p, "else") ? parse_expression(p) : NULL;
        n = cond;
    }
    jx_leave(p->e);
    return n;
}

node *parse_tuple(parser *p, bool conditional)
{
    node *first = conditional ? parse_expression(p) : parse_logic(p, N_OR);
    if (!is_op(p, ','))
        return first;
    node *n = new_node(p, N_TUPLE), **end = &n->a;
    add_node(&end, first);
    while (skip_op(p, ',')) {
        if (p->at->kind == T_PRINT_END || p->at->kind == T_BLOCK_END || is_op(p, ')'))
            break;
        add_node(&end, conditional ? parse_expression(p) : parse_logic(p, N_OR));
    }
    return n;
}
