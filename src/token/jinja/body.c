/* What can be told of the bodies of statements before they run. */
#include "token/jinja/inner.h"

#include <string.h>

/* Returns true if a statement can write text. What prints raise_exception(...) does not. */
static bool statement_writes(const node *n)
{
    switch ((node_type)n->type) {
    case N_DATA:
        return n->value.s->n > 0;
    case N_PRINT:
        return !(n->a->type == N_CALL && n->a->a->type == N_NAME &&
                 !strcmp(n->a->a->name, "raise_exception"));
    case N_IF:
        for (; n; n = n->other)
            if (can_write(n->d) || (n->flag && can_write(n->other)))
                return true;
            else if (n->flag)
                break;
        return false;
    case N_FOR:
        return n->op == 'w' || (n->other && can_write(n->other));
    case N_WITH:
        return can_write(n->d);
    case N_CALL_BLOCK:
    case N_FILTER_BLOCK:
    case N_GENERATION:
        return true;
    default:
        return false;
    }
}

bool can_write(const node *body)
{
    while (body && !statement_writes(body))
        body = body->next;
    return body != NULL;
}

/* Returns true if an expression has a value in each round of a loop if it has one in the first: numbers. */
static bool stays_defined(const node *n, const node *target)
{
    switch ((node_type)n->type) {
    case N_CONST:
        return true;
    case N_NAME:
        return target->type == N_NAME && n->name != target->name;
    case N_FILTER:
        return n->op == 'l' && n->a && n->a->type == N_NAME && stays_defined(n->a, target);
    case N_ATTR:
        return n->a->type == N_NAME && !strcmp(n->a->name, "loop") && !strncmp(n->name, "index", 5);
    case N_BINARY:
        return (n->op == '+' || n->op == '-') && stays_defined(n->a, target) && stays_defined(n->b, target);
    default:
        return false;
    }
}

bool keeps_loop(const node *n)
{
    for (; n; n = n->next) {
        const bool read = n->type == N_ATTR && n->op < LOOP_CYCLE && n->a->type == N_NAME;
        if (n->type == N_NAME && !strcmp(n->name, "loop"))
            return true;
        if ((!read && keeps_loop(n->a)) || keeps_loop(n->b) || keeps_loop(n->c) || keeps_loop(n->d) ||
            keeps_loop(n->other))
            return true;
    }
    return false;
}

static bool is_empty(const node *body)
{
    while (body && body->type == N_DATA && !body->value.s->n)
        body = body->next;
    return !body;
}

/* Returns what ends a search: the attribute `open` of a body such as
 *     {% set i = ... %}{% if space.open and ... %}{% set space.open = false %} ... {% endif %}
 * or `not space.found`; or `inverse`, which becomes `not space.found`, of a body such as
 *     {% if space.found %}{% elif ... %} ... {% endif %}
 * Once it is false, the body does nothing. Returns NULL for other bodies. */
const node *find_until(node *body, const node *target, node *inverse)
{
    const node *first = body;
    node *found = NULL;
    bool skips = false;
    for (; body; body = body->next) {
        if (body->type == N_IF && !found && (!body->other || is_empty(body->d))) {
            found = body->a;
            skips = body->other;
        } else if (!(body->type == N_DATA && !body->value.s->n) &&
                   !(body->type == N_SET && body->a->type == N_NAME && stays_defined(body->b, target)))
            return NULL;
    }
    while (found && found->type == N_AND && !skips)
        found = found->a;
    node *mark = found && found->type == N_NOT ? found->a : found;
    if (!mark || mark->type != N_ATTR || !mark->flag || mark->a->type != N_NAME || target->type != N_NAME ||
        mark->a->name == target->name || !strcmp(mark->a->name, "loop"))
        return NULL;
    for (; first; first = first->next)
        if (first->type == N_SET && first->a->name == mark->a->name)
            return NULL;
    inverse->a = mark;
    return !skips ? found : mark == found ? inverse : mark;
}

/* ---- what a template writes ---------------------------------------------------------------------------- */

typedef struct wanted {
    const char *text;
    size_t size;
} wanted;

static bool writes(const node *n, const wanted *w);

static bool has_text(jv v, const wanted *w)
{
    return v.kind == J_STRING && v.s->data && v.s->n >= w->size &&
           memmem(v.s->data, v.s->n, w->text, w->size);
}

/* Returns true if a string of a node can become text that is written. What is compared, searched or split
 * with is not. */
static bool node_writes(const node *n, const wanted *w)
{
    switch ((node_type)n->type) {
    case N_CONST:
    case N_DATA:
        return has_text(n->value, w);
    case N_COMPARE:
    case N_TEST:
        return false;
    case N_IF:
        for (; n; n = n->other)
            if (writes(n->d, w) || (n->flag && writes(n->other, w)))
                return true;
            else if (n->flag)
                break;
        return false;
    case N_COND:
        return writes(n->b, w) || writes(n->c, w);
    case N_CALL:
        return n->a->type == N_ATTR ? writes(n->a->a, w) : writes(n->b, w);
    default:
        return writes(n->a, w) || writes(n->b, w) || writes(n->c, w) || writes(n->d, w) ||
               writes(n->other, w);
    }
}

static bool writes(const node *n, const wanted *w)
{
    while (n && !node_writes(n, w))
        n = n->next;
    return n != NULL;
}

bool ax_jinja_writes(const ax_jinja *template, const char *text, size_t size)
{
    return writes(template->body, &(wanted){text, size});
}
