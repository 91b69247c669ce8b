/* Parses statements. */
#include "token/jinja/inner.h"
#include "token/tok.h"

#include <stdlib.h>
#include <string.h>

static node *parse_body(parser *p, const char *const *ends);

/* Ends the tag in which the parser is. */
static void end_tag(parser *p)
{
    if (p->at->kind != T_BLOCK_END)
        unexpected(p, "the end of the tag (%})");
    p->at++;
}

/* Parses the body of a block up to {% END %}, which is read too. */
static node *parse_block(parser *p, const char *end)
{
    const char *const ends[] = {end, NULL};
    end_tag(p);
    node *body = parse_body(p, ends);
    p->at++; /* END */
    end_tag(p);
    return body;
}

/* Takes a name to which the template gives a value. */
static const char *take_bound(parser *p, const char *what)
{
    const char *name = take_name(p, what);
    jx_intern(p->e, &p->out->bound, name, strlen(name));
    return name;
}

/* ---- targets --------------------------------------------------------------------------------------- */

static node *parse_one_target(parser *p, bool attributes)
{
    static const char *const reserved[] = {"true", "True", "false", "False", "none", "None"};
    if (is_op(p, '(')) {
        jx_enter(p->e);
        node *tuple = new_node(p, N_TUPLE), **end = &tuple->a;
        p->at++;
        do {
            if (is_op(p, ')'))
                break;
            add_node(&end, parse_one_target(p, attributes));
        } while (skip_op(p, ','));
        expect_op(p, ')');
        jx_leave(p->e);
        return tuple;
    }
    node *n = new_node(p, N_NAME);
    for (size_t i = 0; i < AX_COUNT(reserved); i++)
        if (is_name(p, reserved[i]))
            unexpected(p, "the name of a variable");
    n->name = take_bound(p, "the name of a variable");
    if (attributes && skip_op(p, '.')) {
        n->type = N_NSREF;
        n->text = take_name(p, "the name of an attribute");
    }
    return n;
}

/* Parses what a value is assigned to: names that commas make a tuple. */
static node *parse_target(parser *p, bool attributes)
{
    node *first = parse_one_target(p, attributes);
    if (!is_op(p, ','))
        return first;
    node *n = new_node(p, N_TUPLE), **end = &n->a;
    add_node(&end, first);
    while (skip_op(p, ',') && (p->at->kind == T_NAME || is_op(p, '(')) && !is_name(p, "in"))
        add_node(&end, parse_one_target(p, attributes));
    return n;
}

/* ---- statements ------------------------------------------------------------------------------------- */

static node *parse_for(parser *p)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    node *n = new_node(p, N_FOR);
    n->a = parse_target(p, false);
    if (!skip_name(p, "in"))
        unexpected(p, "\"in\"");
    n->b = parse_tuple(p, false);
    n->c = skip_name(p, "if") ? parse_expression(p) : NULL;
    n->flag = skip_name(p, "recursive");
    end_tag(p);
    n->d = parse_body(p, ends);
    n->op = can_write(n->d) ? 'w' : 0;
    n->keeps = keeps_loop(n->d);
    n->until = n->c || n->flag || n->keeps ? NULL : find_until(n->d, n->a, new_node(p, N_NOT));
    if (skip_name(p, "else"))
        n->other = parse_block(p, "endfor");
    else {
        p->at++;
        end_tag(p);
    }
    return n;
}

/* Parses an `if` and its elif, which are nested in `other` of each other. */
static node *parse_if(parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    node *first = NULL, **place = &first;
    const int before = p->branches;
    for (;;) {
        node *n = new_node(p, N_IF);
        *place = n;
        place = &n->other;
        n->a = parse_tuple(p, false);
        end_tag(p);
        p->branches++;
        n->d = parse_body(p, ends);
        if (skip_name(p, "elif"))
            continue;
        if (skip_name(p, "else")) {
            n->flag = true; /* `other` is a body, no further if */
            n->other = parse_block(p, "endif");
        } else {
            p->at++;
            end_tag(p);
        }
        p->branches = before;
        return first;
    }
}

static node *parse_set(parser *p)
{
    node *n = new_node(p, N_SET);
    n->a = parse_target(p, true);
    if (skip_op(p, '=')) {
        n->b = parse_tuple(p, true);
        end_tag(p);
        return n;
    }
    n->type = N_SET_BLOCK;
    n->b = parse_filters(p, NULL, false);
    n->d = parse_block(p, "endset");
    return n;
}

/* Parses the parameters of a macro, or of the macro that a block `call` makes. */
static node *parse_parameters(parser *p)
{
    node *list = NULL, **end = &list;
    expect_op(p, '(');
    while (!is_op(p, ')')) {
        if (list)
            expect_op(p, ',');
        if (is_op(p, ')'))
            break;
        node *n = new_node(p, N_ARG);
        n->name = take_bound(p, "the name of a parameter");
        n->a = skip_op(p, '=') ? parse_expression(p) : NULL;
        add_node(&end, n);
    }
    p->at++;
    return list;
}

static node *parse_macro(parser *p)
{
    node *n = new_node(p, N_MACRO);
    n->name = take_bound(p, "the name of the macro");
    n->b = parse_parameters(p);
    n->d = parse_block(p, "endmacro");
    return n;
}

static node *parse_call_block(parser *p)
{
    node *n = new_node(p, N_CALL_BLOCK), *m = new_node(p, N_MACRO);
    m->name = jx_intern(p->e, &p->out->names, "caller", 6);
    m->b = is_op(p, '(') ? parse_parameters(p) : NULL;
    n->a = parse_expression(p);
    if (n->a->type != N_CALL)
        unexpected(p, "a call of a macro");
    m->d = parse_block(p, "endcall");
    n->c = m;
    return n;
}

static node *parse_filter_block(parser *p)
{
    node *n = new_node(p, N_FILTER_BLOCK);
    n->a = parse_filters(p, NULL, true);
    n->d = parse_block(p, "endfilter");
    return n;
}

static node *parse_with(parser *p)
{
    node *n = new_node(p, N_WITH), **end = &n->b;
    while (p->at->kind != T_BLOCK_END) {
        if (n->b)
            expect_op(p, ',');
        node *one = new_node(p, N_ARG);
        one->c = parse_one_target(p, false);
        expect_op(p, '=');
        one->a = parse_expression(p);
        add_node(&end, one);
    }
    n->d = parse_block(p, "endwith");
    return n;
}

static node *parse_generation(parser *p)
{
    node *n = new_node(p, N_GENERATION);
    p->out->marks = true;
    n->d = parse_block(p, "endgeneration");
    return n;
}

static node *parse_word(parser *p, node_type type)
{
    node *n = new_node(p, type);
    end_tag(p);
    return n;
}
static node *parse_break(parser *p) { return parse_word(p, N_BREAK); }
static node *parse_continue(parser *p) { return parse_word(p, N_CONTINUE); }

static node *parse_print(parser *p)
{
    node *n = new_node(p, N_PRINT);
    n->a = parse_tuple(p, true);
    end_tag(p);
    return n;
}

static node *parse_statement(parser *p)
{
    static const struct {
        const char *name;
        node *(*parse)(parser *p);
    } tags[] = {
        {"for", parse_for},
        {"if", parse_if},
        {"set", parse_set},
        {"macro", parse_macro},
        {"call", parse_call_block},
        {"filter", parse_filter_block},
        {"with", parse_with},
        {"print", parse_print},
        {"break", parse_break},
        {"continue", parse_continue},
        {"generation", parse_generation},
    };
    for (size_t i = 0; i < AX_COUNT(tags); i++)
        if (skip_name(p, tags[i].name))
            return tags[i].parse(p);
    if (p->at->kind != T_NAME)
        unexpected(p, "the name of a tag");
    p->e->line = p->at->line;
    jx_fail(p->e, "the tag %.*s is not offered here", (int)ax_min((int64_t)p->at->n, 60), p->at->text);
}

static bool ends_here(const parser *p, const char *const *ends)
{
    for (; ends && *ends; ends++)
        if (is_name(p, *ends))
            return true;
    return false;
}

/* Parses up to a tag whose name is one of `ends` (NULL: to the end), which is the next token then. */
static node *parse_body(parser *p, const char *const *ends)
{
    node *body = NULL, **end = &body;
    jx_enter(p->e);
    for (;;) {
        const token *t = p->at++;
        if (t->kind == T_END) {
            p->at--;
            if (ends)
                unexpected(p, ends[0]);
            break;
        }
        if (t->kind == T_DATA) {
            node *n = new_node(p, N_DATA);
            n->value = jv_str(js_new(p->e, t->text, t->n, AX_JINJA_TEMPLATE));
            add_node(&end, n);
        } else if (t->kind == T_PRINT) {
            node *n = new_node(p, N_PRINT);
            n->a = parse_tuple(p, true);
            if (p->at->kind != T_PRINT_END)
                unexpected(p, "the end of the tag (}})");
            p->at++;
            add_node(&end, n);
        } else if (ends_here(p, ends)) {
            break;
        } else {
            add_node(&end, parse_statement(p));
        }
    }
    jx_leave(p->e);
    return body;
}

/* ---- templates --------------------------------------------------------------------------------------- */

static void parse_text(jx *e, ax_jinja *out, const char *text, size_t size)
{
    parser p = {.e = e, .out = out};
    const size_t good = tok_utf8_prefix(text, size);
    if (good < size)
        jx_fail(e, "byte %zu of the template is not UTF-8", good + 1);
    p.at = out->tokens = jx_lex(e, text, size);
    out->body = parse_body(&p, NULL);
    out->loop = names_find(&out->names, "loop", 4);
    out->varargs = names_find(&out->names, "varargs", 7);
    out->kwargs = names_find(&out->names, "kwargs", 6);
    out->caller = names_find(&out->names, "caller", 6);
    e->line = p.missing.n ? p.missing_line : e->line;
    if (p.missing.n)
        jx_fail(e, "the template uses what axonn does not offer: %.*s",
                (int)ax_min((int64_t)p.missing.n, 1500), p.missing.data);
}

static ax_status try_parse(jx *e, ax_jinja *out, const char *text, size_t size)
{
    jmp_buf leave;
    e->out = &leave;
    if (setjmp(leave))
        return ax_error_status();
    parse_text(e, out, text, size);
    return AX_OK;
}

ax_status ax_jinja_parse(const char *where, const char *text, size_t size, ax_jinja **out)
{
    enum { MOST_BYTES = 1 << 20 };
    jx *e;
    ax_jinja *t = NULL;
    ax_status status = ax_calloc(1, sizeof *e, &e);
    *out = NULL;
    if (status == AX_OK)
        status = ax_calloc(1, sizeof *t, out);
    t = *out;
    if (status == AX_OK)
        status = ax_strdup(where, &t->where);
    if (status == AX_OK && size > MOST_BYTES)
        status = ax_fail(AX_ERR_DATA, "%s: the template has more than 1 MiB", where);
    if (status == AX_OK) {
        t->arena.most = 56 << 20;
        *e = (jx){.arena = &t->arena, .where = t->where, .steps = 20000000, .most_text = 4 << 20, .line = 1};
        status = try_parse(e, t, text, size);
    }
    free(e);
    if (status != AX_OK)
        ax_jinja_destroy(out);
    return status;
}

void ax_jinja_destroy(ax_jinja **template)
{
    ax_jinja *t = *template;
    if (!t)
        return;
    arena_fini(&t->arena);
    free(t->where);
    free(t);
    *template = NULL;
}

bool ax_jinja_marks(const ax_jinja *template) { return template->marks; }

bool ax_jinja_has(const ax_jinja *template, const char *text, size_t size)
{
    const token *t = template->tokens;
    while (t->kind != T_END &&
           !((t->kind == T_DATA || t->kind == T_STRING) && t->n >= size && memmem(t->text, t->n, text, size)))
        t++;
    return t->kind != T_END;
}

bool ax_jinja_reads(const ax_jinja *template, const char *name)
{
    return names_find(&template->reads, name, strlen(name));
}

bool ax_jinja_asks_date(const ax_jinja *template) { return template->asks_date; }
