/* Values that depend on the number of messages.
 *
 * While a template is rendered for a conversation, some of what it reads would be otherwise for the first
 * messages alone: the length of the list, its last message, add_generation_prompt. Such a value has facets:
 * what it would be in each case, which is a number of messages with or without the prompt for an answer.
 * Facets are carried through assignments, attributes, sums and comparisons. Where a value decides what is
 * done, the cases in which it decides otherwise no longer agree with what is rendered; where it becomes
 * anything else, those in which it is another. */
#include "token/jinja/inner.h"

#include <math.h>
#include <string.h>

/* ---- cases ------------------------------------------------------------------------------------------- */

size_t first_case(const jx *e, size_t n)
{
    size_t low = 0, high = e->n_cases;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (messages_of(e, middle) < n)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The run of the whole conversation is no longer that of some case. */
static void part_ways(jx *e)
{
    if (!e->first.from && e->logging)
        e->first = e->statement;
}

void disagree(jx *e, size_t i)
{
    if (e->cases[i].agrees)
        part_ways(e);
    e->cases[i].agrees = false;
}

void cannot_tell(jx *e)
{
    if (e->aside)
        jx_fail(e, "what a template asks cannot be told for the first messages");
    for (; e->open < e->n_cases; e->open++)
        disagree(e, e->open);
}

void swap_budget(jx *e)
{
    arena *a = e->arena;
    const int64_t steps = e->steps;
    const struct room room = {a->at, a->left, a->most - a->used};
    e->steps = e->side_steps;
    e->side_steps = steps;
    a->at = e->room.at;
    a->left = e->room.left;
    a->most = a->used + e->room.rest;
    e->room = room;
}

bool on_the_side(jx *e, side_fn *work, void *with)
{
    jmp_buf leave, *const outer = e->out;
    const int depth = e->depth;
    volatile bool done = false;
    if (e->open == e->n_cases)
        return false;
    e->lasting++;
    swap_budget(e);
    e->out = &leave;
    if (!setjmp(leave)) {
        work(e, with);
        done = true;
    }
    e->out = outer;
    e->depth = depth;
    swap_budget(e);
    if (!done && ax_error_status() == AX_ERR_MEMORY)
        longjmp(*outer, 1);
    if (!done)
        cannot_tell(e);
    return done;
}

/* ---- lists of messages ------------------------------------------------------------------------------- */

static void add_watched(jx *e, void *list)
{
    e->watched = jx_grow(e, e->watched, e->n_watched, &e->watched_capacity, sizeof *e->watched);
    e->watched[e->n_watched++] = list;
}

void watch(jx *e, jlist *list, size_t offset)
{
    /* an empty list is empty for fewer messages too */
    list->watched = e->cuts && !e->aside && list->n && on_the_side(e, add_watched, list);
    list->offset = offset;
}

void asked(jx *e, const jlist *list, int64_t n)
{
    if (!list->watched || e->aside)
        return;
    const size_t need = n < 0 || (size_t)n > list->n ? SIZE_MAX : list->offset + (size_t)n;
    if (need <= e->need)
        return;
    e->need = need;
    if (e->open < e->n_cases && messages_of(e, e->open) < need)
        part_ways(e);
}

/* ---- facets ------------------------------------------------------------------------------------------ */

static bool same_lists(jx *e, const jlist *a, const jlist *b)
{
    bool same = a->n == b->n && a->kind == b->kind && a->kind != L_GENERATOR;
    jx_enter(e);
    for (size_t i = 0; i < a->n && same; i++)
        same = same_value(e, a->v[i], b->v[i]);
    jx_leave(e);
    return same;
}

static bool same_dicts(jx *e, const jdict *a, const jdict *b)
{
    bool same = a->n == b->n;
    jx_enter(e);
    for (size_t i = 0; i < a->n && same; i++)
        same = same_value(e, a->key[i], b->key[i]) && same_value(e, a->value[i], b->value[i]);
    jx_leave(e);
    return same;
}

bool same_contents(jx *e, jv a, jv b)
{
    jx_charge(e, 0);
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case J_UNDEFINED:
    case J_NONE:
        return true;
    case J_REAL:
        return a.real == b.real && !signbit(a.real) == !signbit(b.real);
    case J_BOOL:
    case J_INT:
        return a.i == b.i;
    case J_STRING:
        return a.s == b.s || (a.s->n == b.s->n && !a.s->mixed && !b.s->mixed && a.s->from == b.s->from &&
                              !js_compare(e, a.s, b.s));
    case J_LIST:
        return a.list == b.list || same_lists(e, a.list, b.list);
    case J_DICT:
        return a.dict == b.dict || same_dicts(e, a.dict, b.dict);
    case J_MACRO:
        return a.macro->node == b.macro->node && a.macro->outer == b.macro->outer;
    case J_FUNCTION:
        return a.fn == b.fn;
    default:
        return a.dict == b.dict;
    }
}

static bool are_constant(jx *e, const jv *v, size_t n)
{
    bool constant = true;
    jx_enter(e);
    for (size_t i = 0; i < n && constant; i++)
        constant = is_constant(e, v[i]);
    jx_leave(e);
    return constant;
}

bool is_constant(jx *e, jv v)
{
    jx_charge(e, 0);
    if (v.kind == J_LIST)
        return v.list->kind != L_GENERATOR && !v.list->watched && are_constant(e, v.list->v, v.list->n);
    if (v.kind == J_DICT)
        return v.dict->given ||
               (are_constant(e, v.dict->key, v.dict->n) && are_constant(e, v.dict->value, v.dict->n));
    return v.kind < J_LIST;
}

/* What values are in the cases, or make of them. */
typedef struct facets {
    jv (*in)(jx *e, struct facets *f, size_t i); /* the value in a case */
    jv out;                                      /* the value in the whole conversation */
    jv a, b;
    facet_fn *how;
    const void *with;
    const jlist *list;
    int64_t plus, add;
    jv last_a, last_b, last; /* what was made of them in the case before; `last` undefined: nothing yet */
} facets;

static void settle_aside(jx *e, void *with)
{
    facets *f = with;
    jx_charge(e, 8 * (e->n_cases - e->open));
    for (size_t i = e->open; i < e->n_cases; i++)
        if (e->cases[i].agrees && !same_value(e, f->in(e, f, i), f->out))
            disagree(e, i);
}

static jv value_in(jx *e, facets *f, size_t i) { return facet_of(e, f->a, i); }
static jv truth_in(jx *e, facets *f, size_t i) { return jv_bool(is_true(e, facet_of(e, f->a, i))); }

jv facet_aside(jx *e, jv v)
{
    const jv here = facet_of(e, v, e->now_case);
    e->twin = e->twin && same_value(e, here, facet_of(e, v, e->now_case + 1));
    return here;
}

jv settle_facets(jx *e, jv v)
{
    if (e->aside)
        return facet_aside(e, v);
    facets f = {.in = value_in, .a = v, .out = v};
    f.out.facets = 0;
    on_the_side(e, settle_aside, &f);
    return settle(e, f.out);
}

bool settle_true(jx *e, jv v)
{
    if (v.kind == J_LIST && v.list->watched)
        asked(e, v.list, 1);
    const bool yes = is_true(e, v);
    if (v.facets && !e->aside)
        on_the_side(e, settle_aside, &(facets){.in = truth_in, .a = v, .out = jv_bool(yes)});
    return yes;
}

/* Gives f->out the facets, if they differ in a case that is still to come. */
static void take_facets(jx *e, void *with)
{
    facets *f = with;
    const size_t size = e->n_cases * sizeof *e->scratch;
    bool differs = false;
    jx_charge(e, 8 * (e->n_cases - e->open));
    for (size_t i = e->open; i < e->n_cases; i++) {
        jv *value = &e->scratch[i];
        *value = e->cases[i].agrees ? f->in(e, f, i) : f->out;
        if (value->kind == NO_FACET)
            disagree(e, i);
        else
            differs = differs || !same_value(e, *value, f->out);
    }
    if (!differs)
        return;
    if (size > e->facet_room) {
        settle_aside(e, f);
        return;
    }
    e->facets = jx_grow(e, e->facets, e->n_facets, &e->facets_capacity, sizeof *e->facets);
    jv *table = jx_alloc(e, size);
    memcpy(table + e->open, e->scratch + e->open, size - e->open * sizeof *table);
    e->facet_room -= size;
    e->facets[e->n_facets++] = table;
    f->out.facets = (uint32_t)e->n_facets;
}

static jv with_facets(jx *e, facets f)
{
    f.out.facets = 0;
    on_the_side(e, take_facets, &f);
    return f.out;
}

/* Values often are the same in cases that follow each other. */
static jv mapped_in(jx *e, facets *f, size_t i)
{
    const jv a = facet_of(e, f->a, i), b = facet_of(e, f->b, i);
    if (!f->last.kind || !is_identical(a, f->last_a) || !is_identical(b, f->last_b))
        f->last = f->how(e, a, b, f->with);
    f->last_a = a;
    f->last_b = b;
    return f->last;
}

jv map_facets(jx *e, jv a, jv b, facet_fn *how, const void *with)
{
    return with_facets(
        e, (facets){.in = mapped_in, .out = how(e, a, b, with), .a = a, .b = b, .how = how, .with = with});
}

/* Returns how many messages a list has in a case. */
static int64_t count_in(const jx *e, const jlist *list, size_t i)
{
    const int64_t left = (int64_t)messages_of(e, i) - (int64_t)list->offset;
    return left < 0 ? 0 : ax_min(left, (int64_t)list->n);
}

static jv number_in(jx *e, facets *f, size_t i) { return jv_int(f->plus * count_in(e, f->list, i) + f->add); }

jv count_facets(jx *e, const jlist *list, int64_t plus, int64_t add)
{
    const jv out = jv_int(plus * (int64_t)list->n + add);
    if (!list->watched || e->aside)
        return out;
    return with_facets(e, (facets){.in = number_in, .out = out, .list = list, .plus = plus, .add = add});
}

/* Makes the facets of a list's length, for all that ask, if there is room. */
static void take_length(jx *e, void *with)
{
    jlist *list = with;
    const size_t size = e->n_cases * sizeof(jv);
    if (size > e->facet_room)
        return;
    e->facet_room -= size;
    jx_charge(e, size);
    jv *table = jx_alloc(e, size);
    for (size_t i = 0; i < e->n_cases; i++)
        table[i] = jv_int(count_in(e, list, i));
    e->facets = jx_grow(e, e->facets, e->n_facets, &e->facets_capacity, sizeof *e->facets);
    e->facets[e->n_facets++] = table;
    list->length = (uint32_t)e->n_facets;
}

jv length_facets(jx *e, jlist *list)
{
    jv out = jv_int((int64_t)list->n);
    if (!list->watched || e->aside)
        return out;
    if (!list->length)
        on_the_side(e, take_length, list);
    if (!list->length)
        return count_facets(e, list, 1, 0);
    out.facets = list->length;
    return out;
}

typedef struct numbers_after {
    jv last;
    int64_t first, n; /* n: how many there are in the whole conversation */
    size_t offset;
    bool follows;
} numbers_after;

static void check_numbers(jx *e, void *with)
{
    numbers_after *r = with;
    jx_charge(e, 8 * (e->n_cases - e->open));
    for (size_t i = e->open; i < e->n_cases && r->follows; i++) {
        const jv last = facet_of(e, r->last, i);
        const int64_t left = (int64_t)messages_of(e, i) - (int64_t)r->offset,
                      n = last.kind == J_INT && last.i > r->first ? last.i - r->first : 0;
        if (e->cases[i].agrees)
            r->follows = last.kind == J_INT && n == (left < 0 ? 0 : ax_min(left, r->n));
    }
}

bool follows_messages(jx *e, int64_t first, jv last, size_t *offset)
{
    enum { MOST = 1 << 30 };
    if (e->aside || !e->n_watched || last.kind != J_INT || last.i > MOST || first < 0 || first > MOST)
        return false;
    const int64_t all = (int64_t)e->watched[0]->n, n = last.i > first ? last.i - first : 0;
    numbers_after r = {
        .last = last, .first = first, .n = n, .offset = (size_t)(all - n), .follows = n <= all};
    if (!r.follows || !on_the_side(e, check_numbers, &r))
        return false;
    *offset = r.offset;
    return r.follows;
}

/* Returns element f->add < 0 of the first n messages of a list. */
static jv element_of(const facets *f, int64_t n)
{
    return n + f->add < 0 ? jv_undefined("there is no such message") : f->list->v[n + f->add];
}

static jv element_in(jx *e, facets *f, size_t i) { return element_of(f, count_in(e, f->list, i)); }

jv last_message(jx *e, const jlist *list, int64_t i)
{
    facets f = {.in = element_in, .list = list, .add = i};
    f.out = element_of(&f, (int64_t)list->n);
    return with_facets(e, f);
}

/* ---- the cuts that are wanted -------------------------------------------------------------------------- */

static jv prompt_in(jx *e, facets *f, size_t i)
{
    (void)f;
    return jv_bool(e->cases[i].cut % 2);
}

void make_cases(jx *e)
{
    swap_budget(e);
    e->tails = jx_alloc(e, 2 * e->cuts->n * sizeof *e->tails);
    e->cases = jx_alloc(e, (2 * e->cuts->n + 1) * sizeof *e->cases);
    for (size_t i = 0; i < 2 * e->cuts->n; i++)
        if (e->cuts->cut[i].wanted)
            e->cases[e->n_cases++] = (struct jcase){.cut = i, .agrees = true};
    e->scratch = jx_alloc(e, (e->n_cases + 1) * sizeof *e->scratch);
    e->logging = e->n_cases > 0;
    swap_budget(e);
    /* To render a case by itself takes more than this: its context is read. */
    e->side_steps += (int64_t)(e->n_cases * (e->read / 8));
}

jv prompt_facets(jx *e, jv whole) { return with_facets(e, (facets){.in = prompt_in, .out = whole}); }
