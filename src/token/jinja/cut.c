/* Finds, while a template is rendered, what it would write for the first messages alone.
 *
 * Most templates run once over their messages. When this loop, the main one, comes to a message, all that was
 * done so far would have been done for the messages before it alone, in the cases (facet.c) that agree with
 * all that was decided. So the rest of the template is run with the list cut off, and what it changed is
 * undone: a side run. e->need is the least number of messages for which all that was asked of the list itself
 * has the same answer. Where a template asks about the element that follows, the side run begins a message
 * earlier.
 *
 * Many templates look at their messages before they write them, for the last question or for calls. Then the
 * cases part ways before the main loop. If a loop looks at the messages in their order, what a case has at
 * its end lies in e->undo. Else what comes before the main loop is run once more for each case, from the
 * first statement that asked. The variables that are other than in the run of the whole conversation get
 * facets, and the cases agree again. */
#include "token/jinja/inner.h"

#include <string.h>

/* What a side run changes, to be undone. */
struct undo {
    void *place;
    size_t size;
    char old[sizeof(jdict)];
};

static void grow_undo(jx *e, void *with)
{
    (void)with;
    e->lasting += e->n_undo == e->undo_capacity;
    e->undo = jx_grow(e, e->undo, e->n_undo, &e->undo_capacity, sizeof *e->undo);
}

void jx_keep(jx *e, void *place, size_t size)
{
    enum { MOST = 50000 };
    e->logging = e->logging && e->n_undo < MOST;
    if (e->aside)
        grow_undo(e, NULL);
    else if (e->logging && e->n_undo == e->undo_capacity)
        e->logging = on_the_side(e, grow_undo, NULL);
    if (!e->aside && !e->logging)
        return;
    struct undo *u = &e->undo[e->n_undo++];
    u->place = place;
    u->size = size;
    memcpy(u->old, place, size);
}

/* Undoes what was changed since e->undo had n elements. */
static void undo(jx *e, size_t n)
{
    for (; e->n_undo > n; e->n_undo--) {
        const struct undo *u = &e->undo[e->n_undo - 1];
        memcpy(u->place, u->old, u->size);
    }
}

static void swap(struct undo *u)
{
    char now[sizeof u->old];
    memcpy(now, u->place, u->size);
    memcpy(u->place, u->old, u->size);
    memcpy(u->old, now, u->size);
}

/* Brings all that is kept to what it was when e->undo had `to` elements; *at: when it had as many as now. */
static void move(jx *e, size_t *at, size_t to)
{
    e->side_steps -= (int64_t)(*at > to ? *at - to : to - *at);
    while (*at > to)
        swap(&e->undo[--*at]);
    while (*at < to)
        swap(&e->undo[(*at)++]);
}

/* ---- side runs --------------------------------------------------------------------------------------- */

/* Lets lists of messages end behind the first n messages. */
static void cut_lists(jx *e, size_t n)
{
    for (size_t i = 0; i < e->n_watched; i++) {
        jlist *list = e->watched[i];
        jx_charge(e, 0);
        const size_t left = n > list->offset ? n - list->offset : 0;
        jx_keep(e, &list->n, sizeof list->n);
        list->n = left < list->n ? left : list->n;
    }
}

/* Runs what follows the loop; `again`: after its next element. */
static void run_rest(jx *e, jloop *loop, const char *name, bool again)
{
    if (again)
        run_next(e, loop, name);
    e->flow = FLOW_ON;
    while (e->frame) {
        const struct frame *f = e->frame;
        e->frame = f->outer;
        run(e, f->s, f->next);
    }
}

/* Runs from the start to the loop that is sought. */
static void run_start(jx *e, const struct start *start)
{
    scope *s = e->frame->s;
    for (const struct frame *f = e->frame; f; f = f->outer)
        s = f->s;
    e->text = start->text;
    e->frame = NULL;
    run(e, s, start->from);
}

/* What a side run does: it goes from `start` to the loop e->seeks, or on from an element of a loop. */
typedef struct aside {
    size_t number; /* of its case */
    const struct start *start;
    bool twin; /* the case that follows begins there too, with as many messages */
    jloop *loop;
    const char *name;
    bool again;
} aside;

/* Runs a case, with the steps and memory that are left. Sets *tail to what it writes; NULL: the template
 * failed. Sets e->reached, e->twin and e->twin_reached. */
static void run_aside(jx *e, const aside *what, const jstr **out)
{
    jmp_buf leave, *const outer = e->out;
    e->era++;
    swap_budget(e);
    const jx before = *e;
    const arena memory = *e->arena;
    const jloop loop_before = what->loop ? *what->loop : (jloop){0};
    jstr *volatile tail = NULL;
    volatile bool failed = true;
    e->aside = true;
    e->since = ++e->now_born;
    e->logging = e->reached = e->twin_reached = false;
    e->twin = what->twin;
    e->now_case = what->number;
    e->out = &leave;
    if (!setjmp(leave)) {
        cut_lists(e, e->cases[what->number].cut / 2);
        if (what->start) {
            run_start(e, what->start);
        } else {
            e->text = js_text(e, "");
            run_rest(e, what->loop, what->name, what->again);
            js_data(e, e->text);
            tail = e->text;
        }
        failed = false;
    }
    undo(e, before.n_undo);
    if (e->lasting == before.lasting && !tail)
        arena_rewind(e->arena, &memory);
    const int64_t steps = e->steps;
    const size_t capacity = e->undo_capacity;
    const uint32_t born = e->now_born;
    const bool reached = e->reached, twin = e->twin, twin_reached = e->twin_reached;
    struct undo *list = e->undo;
    const struct numbers numbers = e->numbers; /* they last */
    *e = before;
    e->numbers = numbers;
    e->out = outer;
    e->steps = steps;
    e->reached = reached;
    e->twin = twin;
    e->twin_reached = twin_reached;
    e->now_born = born;
    e->undo = list;
    e->undo_capacity = capacity;
    swap_budget(e);
    if (what->loop)
        *what->loop = loop_before;
    if (failed && !reached && ax_error_status() == AX_ERR_MEMORY)
        longjmp(*outer, 1);
    *out = tail;
}

/* ---- before the main loop ------------------------------------------------------------------------------ */

/* A variable, or an attribute of a namespace that is the value of one: element k of d. */
struct cell {
    struct binding *b;
    jdict *d;
    size_t k;
    jv key, value;
    bool comparable; /* that it is the same in a side run can be told from what it holds */
    jv *facets;      /* [n_cases], if it has others in a case */
};

/* The variables and the text where the main loop begins. */
struct state {
    scope *s;
    jlist *items;
    jstr *text;
    struct cell *cell;
    size_t n, capacity;
    bool known, same; /* same: as in the case that is compared, but for facets */
};

static void add_cell(jx *e, struct state *state, struct cell cell)
{
    const jv v = cell.value;
    cell.comparable = (v.kind == J_LIST && v.list->watched) || v.kind == J_FUNCTION ||
                      (v.kind == J_MACRO && v.macro->outer == state->s) || is_constant(e, v);
    state->cell = jx_grow(e, state->cell, state->n, &state->capacity, sizeof *state->cell);
    state->cell[state->n++] = cell;
}

static void take_state(jx *e, void *with)
{
    struct state *state = with;
    js_data(e, e->text);
    for (struct binding *b = state->s->first; b; b = b->next) {
        const jdict *d = b->value.kind == J_NAMESPACE ? b->value.dict : NULL;
        add_cell(e, state, (struct cell){.b = b, .value = b->value});
        for (size_t k = 0; d && k < d->n; k++)
            add_cell(
                e, state,
                (struct cell){.b = b, .d = b->value.dict, .k = k, .key = d->key[k], .value = d->value[k]});
    }
    state->known = true;
}

/* Compares the value of a variable in a side run with that in the run of the whole conversation, and notes
 * the facet if it is another. */
static bool compare_cell(jx *e, struct cell *cell, jv value)
{
    value = facet_of(e, value, e->now_case);
    const jv whole = cell->facets ? cell->facets[e->now_case] : facet_of(e, cell->value, e->now_case);
    const size_t size = e->n_cases * sizeof value;
    if (!cell->comparable)
        return false;
    if (same_value(e, whole, value))
        return true;
    if (!is_constant(e, value) || !is_constant(e, whole))
        return false;
    e->lasting += !cell->facets || !is_first(value);
    if (!cell->facets) {
        cell->facets = jx_alloc(e, size);
        for (size_t i = 0; i < e->n_cases; i++)
            cell->facets[i] = facet_of(e, cell->value, i);
    }
    cell->facets[e->now_case] = value;
    return true;
}

/* Returns true if the variable of cell k, a namespace, is the same one as that of another cell exactly where
 * it is so in the side run, in which it is `space`. */
static bool is_paired(jx *e, const struct state *state, size_t k, const jdict *space)
{
    bool paired = true;
    for (size_t i = 0; i < k && paired; i++) {
        const struct cell *other = &state->cell[i];
        jx_charge(e, 64);
        if (other->value.kind == J_NAMESPACE && !other->d)
            paired = (other->value.dict == state->cell[k].value.dict) ==
                     (find_binding(state->s, other->b->name)->value.dict == space);
    }
    return paired;
}

/* Compares the variables of a side run, which has come to the main loop. */
static bool compare_cells(jx *e, const struct state *state)
{
    size_t n = 0;
    for (const struct binding *b = state->s->first; b; b = b->next)
        n += 1 + (b->value.kind == J_NAMESPACE ? b->value.dict->n : 0);
    bool same = n == state->n;
    for (size_t i = 0; i < state->n && same; i++) {
        struct cell *cell = &state->cell[i];
        const struct binding *b = find_binding(state->s, cell->b->name);
        const bool space = cell->value.kind == J_NAMESPACE && !cell->d;
        jx_charge(e, 64);
        if (!b || ((space || cell->d) && b->value.kind != J_NAMESPACE))
            same = false;
        else if (cell->d)
            same = cell->k < b->value.dict->n && is_equal(e, cell->key, b->value.dict->key[cell->k]) &&
                   compare_cell(e, cell, b->value.dict->value[cell->k]);
        else
            same = space ? is_paired(e, state, i, b->value.dict) : compare_cell(e, cell, b->value);
    }
    return same;
}

static bool same_text(jx *e, jstr *a, jstr *b)
{
    if (a == b)
        return true;
    if (a->n != b->n || js_compare(e, a, b) != 0 || a->mixed != b->mixed ||
        (a->mixed ? a->n_runs != b->n_runs : a->from != b->from))
        return false;
    bool same = true;
    for (size_t i = 0; a->mixed && i < a->n_runs; i++)
        same = same && a->runs[i].end == b->runs[i].end && a->runs[i].from == b->runs[i].from;
    return same;
}

void reach(jx *e, scope *s, jlist *items)
{
    const struct state *state = e->state;
    e->reached = s == state->s && same_value(e, jv_list(items), jv_list(state->items)) &&
                 same_text(e, e->text, state->text) && compare_cells(e, state);
    if (e->twin) { /* variables that were not read may have other facets there */
        e->now_case++;
        e->twin_reached = e->reached && compare_cells(e, state);
    }
    longjmp(*e->out, 1);
}

/* Gives variables the facets that were found. */
static void set_facets(jx *e, void *with)
{
    const struct state *state = with;
    for (size_t i = 0; i < state->n; i++) {
        const struct cell *cell = &state->cell[i];
        if (!cell->facets)
            continue;
        e->facets = jx_grow(e, e->facets, e->n_facets, &e->facets_capacity, sizeof *e->facets);
        e->facets[e->n_facets++] = cell->facets;
        jv *place = cell->d ? &cell->d->value[cell->k] : &cell->b->value;
        place->facets = (uint32_t)e->n_facets;
    }
}

/* Returns true if a case need not be run, or no more. */
static bool is_done(const jx *e, size_t i)
{
    const struct jcase *c = &e->cases[i];
    return c->lost || (c->agrees && e->need <= messages_of(e, i));
}

static const struct start *start_of(const jx *e, size_t i)
{
    return e->cases[i].start.from ? &e->cases[i].start : &e->first;
}

/* From here on no case needs what was before. */
static void agree_again(jx *e, struct state *state)
{
    for (size_t i = e->open; i < e->n_cases; i++)
        e->cases[i].start.from = NULL;
    e->first.from = NULL;
    e->n_undo = e->statement.log = 0;
    e->need = 0;
    if (state->known)
        on_the_side(e, set_facets, state);
}

/* Lets the cases agree again at a loop, which have parted ways before it. */
static void enter_loop(jx *e, scope *s, const jloop *loop)
{
    size_t at = e->n_undo;
    const size_t end = at;
    struct state state = {.s = s, .items = loop->items, .text = e->text};
    const jstr *none;
    e->state = NULL;
    e->seeks = loop->node;
    for (size_t i = e->open; i < e->n_cases; i++) {
        struct jcase *c = &e->cases[i];
        if (is_done(e, i))
            continue;
        const struct start *start = start_of(e, i);
        const bool twin = i + 1 < e->n_cases && !is_done(e, i + 1) &&
                          messages_of(e, i) == messages_of(e, i + 1) &&
                          start->from == start_of(e, i + 1)->from && start->log == start_of(e, i + 1)->log;
        if (!e->state && on_the_side(e, take_state, &state))
            e->state = &state;
        c->agrees = e->twin = false;
        if (state.known && start->from && e->logging && e->side_steps > 0) {
            move(e, &at, start->log);
            run_aside(e, &(aside){.number = i, .start = start, .twin = twin}, &none);
            c->agrees = e->reached;
        }
        c->lost = !c->agrees;
        if (e->twin) {
            c[1].agrees = e->twin_reached;
            c[1].lost = !c[1].agrees;
            i++;
        }
    }
    move(e, &at, end);
    agree_again(e, &state);
    e->logging = e->logging && loop->node->op != 'w';
    e->seeks = NULL;
    e->state = NULL;
}

/* A loop that only looks at messages has come to the end of some cases: they go on behind it. */
static void note_starts(jx *e, const jloop *loop, size_t n)
{
    const node *here = loop->node;
    if (!e->logging || e->statement.from != here || here->other || e->need > n)
        return;
    for (size_t i = first_case(e, n); i < e->n_cases && messages_of(e, i) == n; i++)
        if (e->cases[i].agrees && !e->cases[i].start.from)
            e->cases[i].start = (struct start){here->next, e->n_undo, e->text};
}

static void compare_start(jx *e, void *with)
{
    struct state *state = with;
    state->same = compare_cells(e, state);
}

/* Returns true if all cases that parted ways in a loop came to its end there. */
static bool have_starts(const jx *e, const jloop *loop)
{
    bool all = true, any = false;
    for (size_t i = e->open; i < e->n_cases && all; i++) {
        const struct start *start = &e->cases[i].start;
        if (is_done(e, i))
            continue;
        any = true;
        all = start->from && start->from == loop->node->next && start->text == e->text;
    }
    return all && any;
}

void leave_loop(jx *e, scope *s, const jloop *loop)
{
    struct state state = {.s = s, .text = e->text, .same = true};
    size_t at = e->n_undo;
    const size_t end = at;
    if (!e->logging || e->statement.from != loop->node || e->side_steps <= 0 || !have_starts(e, loop) ||
        !on_the_side(e, take_state, &state))
        return;
    for (size_t i = e->open; i < e->n_cases && state.same; i++) {
        if (is_done(e, i))
            continue;
        move(e, &at, e->cases[i].start.log);
        e->now_case = i;
        state.same = on_the_side(e, compare_start, &state) && state.same;
    }
    move(e, &at, end);
    if (!state.same) /* they part ways until the loop that writes */
        return;
    for (size_t i = e->open; i < e->n_cases; i++)
        e->cases[i].agrees = !e->cases[i].lost;
    agree_again(e, &state);
}

/* ---- in the main loop ---------------------------------------------------------------------------------- */

/* Finds what the template writes for the first n messages, if that is wanted and can be told. */
static void find_cut(jx *e, jloop *loop, const char *name, size_t n, bool again)
{
    for (size_t i = e->open; i < e->n_cases && messages_of(e, i) <= n; i++) {
        ax_jinja_cut *cut = &e->cuts->cut[e->cases[i].cut];
        e->early |= messages_of(e, i) == n && !cut->known &&
                    !e->cases[i].agrees; /* its last element is written otherwise */
        if (messages_of(e, i) < n || cut->known || e->need > n || !e->cases[i].agrees || e->side_steps <= 0 ||
            (cut->spare && e->prompts_hold))
            continue;
        const aside what = {.number = i, .loop = loop, .name = name, .again = again};
        cut->same = e->text->n;
        run_aside(e, &what, &e->tails[e->cases[i].cut]);
        cut->known = e->tails[e->cases[i].cut] != NULL;
        if (cut->known && e->cases[i].cut % 2 && !e->prompted)
            e->prompted = i + 1;
    }
}

/* Looks whether the whole text goes on as the first one with the prompt. It is taken to be so for the others.
 */
static void check_prompt(jx *e)
{
    const size_t cut = e->cases[e->prompted - 1].cut, at = e->cuts->cut[cut].same;
    const jstr *tail = e->tails[cut];
    e->checked = true;
    e->prompts_hold = at + tail->n <= e->text->n && !memcmp(js_data(e, e->text) + at, tail->data, tail->n);
}

bool starts_watch(jx *e, scope *s, const jloop *loop)
{
    const bool plain = !loop->node->c && !loop->node->flag;
    if (!plain)
        asked(e, loop->items, ALL_MESSAGES);
    const bool watched = plain && loop->items->watched && e->cuts && !e->aside && !e->inside && !e->captured;
    if (watched && e->logging && (loop->node->op == 'w' || e->statement.from == loop->node))
        enter_loop(e, s, loop);
    return watched;
}

void watch_next(jx *e, jloop *loop, const char *name)
{
    const size_t n = loop->items->offset + loop->next; /* messages before the next element */
    if (loop->node->op != 'w')
        note_starts(e, loop, n);
    if (!loop->wrote) /* a loop that only looks at messages is followed by the one that writes them */
        return;
    while (e->open < e->n_cases && messages_of(e, e->open) < n)
        e->open++;
    if (e->prompted && !e->checked && n > messages_of(e, e->prompted - 1))
        check_prompt(e);
    find_cut(e, loop, name, n, false);
    e->early |= e->need > n;
    if (e->early)
        find_cut(e, loop, name, n + 1, true);
}
