/* Runs statements, and renders templates. */
#include "token/jinja/inner.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* ---- scopes ------------------------------------------------------------------------------------------ */

scope *scope_new(jx *e, scope *parent)
{
    scope *s = jx_alloc(e, sizeof *s);
    s->parent = parent;
    s->era = e->era;
    return s;
}

/* Bindings lie in a list, of which `n` were passed. */
static void charge_bindings(jx *e, size_t n) { jx_charge(e, 4 * n); }

void scope_set(jx *e, scope *s, const char *name, jv value)
{
    struct binding *b = s->first;
    size_t n = 0;
    for (; b && b->name != name; n++)
        b = b->next;
    charge_bindings(e, n);
    /* What ends before a side run does, or before the main loop begins, need not be restored. */
    const bool kept = e->aside ? s->era != e->era : !s->parent || !s->parent->parent;
    if (!b) {
        b = jx_alloc(e, sizeof *b);
        b->name = name;
        b->next = s->first;
        if (kept)
            jx_keep(e, &s->first, sizeof s->first);
        s->first = b;
    } else if (kept) {
        jx_keep(e, &b->value, sizeof b->value);
    }
    b->value = value;
}

struct binding *find_binding(const scope *s, const char *name)
{
    struct binding *b = s->first;
    while (b && b->name != name)
        b = b->next;
    return b;
}

bool scope_get(jx *e, const scope *s, const char *name, jv *value)
{
    size_t n = 0;
    for (; s; s = s->parent, n++)
        for (const struct binding *b = s->first; b; b = b->next, n++)
            if (b->name == name) {
                charge_bindings(e, n);
                *value = b->value;
                return true;
            }
    charge_bindings(e, n);
    return false;
}

/* Sets a member of a namespace. */
static void set_member(jx *e, jdict *d, jv key, jv value)
{
    e->effects++;
    jx_keep(e, d, sizeof *d);
    for (size_t i = 0; (e->aside || e->logging) && i < d->n; i++)
        if (is_equal(e, d->key[i], key))
            jx_keep(e, &d->value[i], sizeof d->value[i]);
    if (e->aside || e->logging) /* a new member does not go where another run has one */
        d->capacity = d->n;
    const size_t n = d->n;
    dict_set(e, d, key, value);
    e->lasting += d->n != n || !is_first(value);
}

void assign(jx *e, scope *s, const node *target, jv value)
{
    if (target->type == N_NAME) {
        scope_set(e, s, target->name, value);
        return;
    }
    if (target->type == N_NSREF) {
        jv space;
        if (!scope_get(e, s, target->name, &space) || (space = settle(e, space)).kind != J_NAMESPACE)
            jx_fail(e, "%s is no namespace, so its attribute %s cannot be set", target->name, target->text);
        if (target->text[0] == '_')
            jx_fail(e, "an attribute of a namespace cannot begin with \"_\"");
        set_member(e, space.dict, jv_str(js_text(e, target->text)), value);
        return;
    }
    jlist *list = elements(e, value);
    size_t n = 0;
    for (const node *one = target->a; one; one = one->next, n++)
        if (n < list->n)
            assign(e, s, one, list->v[n]);
    if (n != list->n)
        jx_fail(e, "%zu values for %zu names", list->n, n);
}

/* ---- loops ------------------------------------------------------------------------------------------- */

static void check_idle(jx *e, const jloop *loop)
{
    if (loop->busy)
        jx_fail(e, "the condition of a loop asks what follows in this loop");
}

static bool passes(jx *e, jloop *loop, jv value)
{
    const node *n = loop->node;
    if (!n->c)
        return true;
    scope *s = scope_new(e, loop->outer);
    loop->busy = true;
    assign(e, s, n->a, value);
    const bool yes = is_true(e, eval(e, s, n->c));
    loop->busy = false;
    return yes;
}

/* Moves to the next element that passes the loop's condition. Returns false if there is none. */
bool loop_peek(jx *e, jloop *loop)
{
    check_idle(e, loop);
    while (!loop->peeked && loop->next < loop->items->n) {
        loop->peeked = passes(e, loop, loop->items->v[loop->next]);
        loop->next += !loop->peeked;
    }
    return loop->peeked;
}

/* Keeps what a look at the elements that follow changes. */
static void keep_loop(jx *e, jloop *loop)
{
    jx_keep(e, &loop->items, sizeof loop->items);
    jx_keep(e, &loop->next, sizeof loop->next);
    jx_keep(e, &loop->node, sizeof loop->node);
    jx_keep(e, &loop->peeked, sizeof loop->peeked);
    jx_keep(e, &loop->busy, sizeof loop->busy);
}

/* Returns true if an element follows. */
static bool has_next(jx *e, jloop *loop)
{
    keep_loop(e, loop);
    asked(e, loop->items, (int64_t)loop->next + 1);
    return loop_peek(e, loop);
}

/* Returns the number of elements that follow, which settles those that pass, and `more`. */
static jv count_rest(jx *e, jloop *loop, int64_t more)
{
    check_idle(e, loop);
    keep_loop(e, loop);
    if (!loop->node->c)
        return count_facets(e, loop->items, 1, more - (int64_t)loop->next);
    asked(e, loop->items, ALL_MESSAGES);
    e->lasting++;
    jlist *rest = list_new(e, L_LIST);
    for (; loop_peek(e, loop); loop->peeked = false)
        list_add(e, rest, loop->items->v[loop->next++]);
    node *plain = jx_alloc(e, sizeof *plain);
    *plain = *loop->node;
    plain->c = NULL;
    loop->node = plain;
    loop->items = rest;
    loop->next = 0;
    return jv_int((int64_t)rest->n + more);
}

static jv m_cycle(jx *e, jv self, const jargs *a)
{
    if (!a->n)
        jx_fail(e, "loop.cycle needs values");
    return a->v[(size_t)self.loop->index % a->n];
}

static jv m_changed(jx *e, jv self, const jargs *a)
{
    jlist *now = list_new(e, L_TUPLE);
    for (size_t i = 0; i < a->n; i++)
        list_add(e, now, a->v[i]);
    const bool changed =
        self.loop->changed.kind == J_UNDEFINED || !is_equal(e, self.loop->changed, jv_list(now));
    e->effects++;
    e->lasting++;
    jx_keep(e, &self.loop->changed, sizeof self.loop->changed);
    self.loop->changed = jv_list(now);
    return jv_bool(changed);
}

size_t loop_number(const char *name)
{
    static const char *const names[] = {"index",    "index0",    "first",  "last",     "length",
                                        "revindex", "revindex0", "depth",  "previtem", "nextitem",
                                        "depth0",   "cycle",     "changed"};
    size_t i = 0;
    while (i < AX_COUNT(names) && strcmp(names[i], name) != 0)
        i++;
    return i;
}

jv loop_attribute(jx *e, jloop *loop, size_t number)
{
    const jv self = {.kind = J_LOOP, .loop = loop};
    switch (number) {
    case 0:
        return jv_int(loop->index + 1);
    case 1:
        return jv_int(loop->index);
    case 2:
        return jv_bool(!loop->index);
    case 3:
        return jv_bool(!has_next(e, loop));
    case 4:
        return count_rest(e, loop, loop->index + 1);
    case 5:
        return count_rest(e, loop, 1);
    case 6:
        return count_rest(e, loop, 0);
    case 7:
        return jv_int(loop->depth + 1);
    case 8:
        return loop->has_before ? loop->before : jv_undefined("there is no previous item");
    case 9:
        return has_next(e, loop) ? loop->items->v[loop->next] : jv_undefined("there is no next item");
    case 10:
        return jv_int(loop->depth);
    case LOOP_CYCLE:
        return bind_method(e, self, "cycle", m_cycle);
    case LOOP_CYCLE + 1:
        return bind_method(e, self, "changed", m_changed);
    default:
        return jv_undefined("loop has no such attribute");
    }
}

void run_next(jx *e, jloop *loop, const char *name)
{
    scope *s = scope_new(e, loop->outer);
    loop->has_before = loop->index >= 0;
    loop->before = loop->now;
    loop->now = loop->items->v[loop->next++];
    loop->peeked = false;
    loop->index++;
    jx_charge(e, 0);
    assign(e, s, loop->node->a, loop->now);
    if (name)
        scope_set(e, s, name, (jv){.kind = J_LOOP, .loop = loop});
    e->inside++;
    run(e, s, loop->node->d);
    e->inside--;
}

/* Runs the round of a loop for what is next. Its memory is released if nothing of it is needed further. */
static void run_round(jx *e, jloop *loop, const char *name)
{
    const arena memory = *e->arena;
    const jstr *text = e->text;
    const size_t lasting = e->lasting, n_undo = e->n_undo, n_marks = e->n_marks;
    const uint32_t since = e->since;
    e->since = ++e->now_born;
    run_next(e, loop, name);
    if (!loop->node->keeps && e->lasting == lasting && e->text == text && e->n_undo == n_undo &&
        e->n_marks == n_marks)
        arena_rewind(e->arena, &memory);
    e->since = since;
}

/* Runs a loop. Returns its text if it is one within itself (depth > 0). */
jv run_loop(jx *e, scope *s, const node *n, jv items, int depth)
{
    jloop *loop = jx_alloc(e, sizeof *loop);
    const char *name = e->template->loop;
    jstr *before = e->text;
    const bool captured = e->captured;
    if (depth) {
        e->text = js_text(e, "");
        e->captured = true;
    }
    *loop = (jloop){.items = elements(e, items), .index = -1, .node = n, .outer = s, .depth = depth};
    jx_enter(e);
    if (e->seeks == n && e->aside)
        reach(e, s, loop->items);
    const bool watched = starts_watch(e, s, loop);
    while (e->flow != FLOW_BREAK && loop_peek(e, loop)) {
        const size_t effects = e->effects, written = e->text->n;
        if (watched)
            watch_next(e, loop, name);
        run_round(e, loop, name);
        if (e->effects != effects || e->text->n != written ||
            n->keeps) /* else it had no effect that this element was there */
            asked(e, loop->items, (int64_t)loop->next);
        loop->wrote |= e->text->n != written;
        if (e->flow == FLOW_CONTINUE)
            e->flow = FLOW_ON;
        if (n->until && loop_peek(e, loop) && !settle_true(e, eval_unasked(e, s, n->until)))
            break;
    }
    e->flow = FLOW_ON;
    if (watched && n->op != 'w')
        leave_loop(e, s, loop);
    if (n->other) /* whether the list has an element decides if `else` runs */
        asked(e, loop->items, loop->index < 0 ? ALL_MESSAGES : 1);
    if (loop->index < 0 && n->other)
        run(e, scope_new(e, s), n->other);
    jx_leave(e);
    if (!depth)
        return jv_none();
    jstr *text = e->text;
    e->text = before;
    e->captured = captured;
    return jv_str(text);
}

/* ---- statements --------------------------------------------------------------------------------------- */

jstr *capture(jx *e, scope *s, const node *body)
{
    jstr *before = e->text;
    const bool captured = e->captured;
    const int flow = (int)e->flow;
    e->text = js_text(e, "");
    e->captured = true;
    e->flow = FLOW_ON;
    e->inside++;
    run(e, s, body);
    e->inside--;
    if (e->flow != FLOW_ON)
        jx_fail(e, "break or continue in a block that is not in a loop of its own");
    jstr *text = e->text;
    e->text = before;
    e->captured = captured;
    e->flow = flow;
    return text;
}

static void put(jx *e, jstr *text) { e->text = js_cat(e, e->text, text); }

/* Applies filters to the text of a block. */
static jv filter_text(jx *e, scope *s, const node *filter, jstr *text)
{
    if (!filter)
        return jv_str(text);
    jx_enter(e);
    const jv input = filter_text(e, s, filter->a, text);
    jx_leave(e);
    node one = *filter, value = {.type = N_CONST, .line = filter->line, .value = input};
    one.a = &value;
    return eval(e, s, &one);
}

static void run_if(jx *e, scope *s, const node *n)
{
    for (; n; n = n->other) {
        if (settle_true(e, eval_unasked(e, s, n->a))) {
            run(e, s, n->d);
            return;
        }
        if (n->flag) {
            run(e, s, n->other);
            return;
        }
    }
}

static jv make_macro(jx *e, scope *s, const node *n)
{
    jmacro *m = jx_alloc(e, sizeof *m);
    *m = (jmacro){n, s};
    return (jv){.kind = J_MACRO, .macro = m};
}

/* Calls a macro with a further argument, `caller`, that writes the block. */
static void run_call_block(jx *e, scope *s, const node *n)
{
    scope *inner = scope_new(e, s);
    node caller = {.type = N_CONST, .line = n->line, .value = make_macro(e, s, n->c)};
    node argument = {.type = N_ARG, .line = n->line, .name = n->c->name, .a = &caller, .next = n->a->b};
    node call = *n->a;
    call.b = &argument;
    put(e, to_string(e, eval(e, inner, &call)));
}

static void run_with(jx *e, scope *s, const node *n)
{
    scope *inner = scope_new(e, s);
    for (const node *one = n->b; one; one = one->next)
        assign(e, inner, one->c, eval(e, s, one->a));
    run(e, inner, n->d);
}

/* Notes which bytes of the text are in the block. In a block whose text is a value they are not known. */
static void run_generation(jx *e, scope *s, const node *n)
{
    jstr *text = capture(e, scope_new(e, s), n->d);
    if (e->captured) {
        e->lost |= text->n > 0;
    } else {
        e->marks = jx_grow(e, e->marks, e->n_marks, &e->marks_capacity, sizeof *e->marks);
        e->marks[e->n_marks++] = (struct mark){e->text->n, e->text->n + text->n};
    }
    put(e, text);
}

static void run_set(jx *e, scope *s, const node *n)
{
    jv value = eval_unasked(e, s, n->b);
    if (n->a->type == N_TUPLE || value.kind == J_LIST)
        value = n->a->type == N_NAME ? value : settle(e, value);
    assign(e, s, n->a, value);
}

static void run_for(jx *e, scope *s, const node *n)
{
    const jv items = eval_unasked(e, s, n->b);
    run_loop(e, s, n, items.facets ? settle(e, items) : items, 0);
}

static void run_one(jx *e, scope *s, const node *n)
{
    switch ((node_type)n->type) {
    case N_DATA:
        put(e, n->value.s);
        break;
    case N_PRINT:
        put(e, to_string(e, eval(e, s, n->a)));
        break;
    case N_FOR:
        run_for(e, s, n);
        break;
    case N_IF:
        run_if(e, s, n);
        break;
    case N_SET:
        run_set(e, s, n);
        break;
    case N_SET_BLOCK:
        assign(e, s, n->a, filter_text(e, s, n->b, capture(e, scope_new(e, s), n->d)));
        break;
    case N_MACRO:
        scope_set(e, s, n->name, make_macro(e, s, n));
        break;
    case N_CALL_BLOCK:
        run_call_block(e, s, n);
        break;
    case N_FILTER_BLOCK:
        put(e, to_string(e, filter_text(e, s, n->a, capture(e, scope_new(e, s), n->d))));
        break;
    case N_WITH:
        run_with(e, s, n);
        break;
    case N_GENERATION:
        run_generation(e, s, n);
        break;
    case N_BREAK:
    case N_CONTINUE:
        e->flow = n->type == N_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
        break;
    default:
        break;
    }
}

void run(jx *e, scope *s, const node *body)
{
    struct frame here = {NULL, s, e->frame};
    e->frame = &here;
    jx_enter(e);
    for (; body && e->flow == FLOW_ON; body = body->next) {
        here.next = body->next;
        jx_charge(e, 0);
        e->line = body->line;
        if (!here.outer)
            e->statement = (struct start){body, e->n_undo, e->text};
        run_one(e, s, body);
    }
    jx_leave(e);
    e->frame = here.outer;
}

/* ---- rendering ------------------------------------------------------------------------------------------
 */

/* Gives each message its number, and its role the template as its origin. */
static jv read_messages(jx *e, const json_t *messages)
{
    jlist *list = list_new(e, L_LIST);
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *one = json_array_get(messages, i), *role = json_object_get(one, "role");
        const jv v = from_json(e, one, (int32_t)(i + 1));
        if (v.kind == J_DICT && json_is_string(role))
            dict_set(e, v.dict, jv_str(js_text(e, "role")), from_json(e, role, AX_JINJA_TEMPLATE));
        list_add(e, list, v);
    }
    return jv_list(list);
}

static const char given_variables[] = "chat_template_kwargs";

/* Sets the variables that an object has; `from`: where its strings come from. */
static void set_variables(jx *e, scope *root, const json_t *object, int32_t from)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        const char *known = names_find(&e->template->names, name, strlen(name));
        if (!known || (from == AX_JINJA_TEMPLATE && !strcmp(name, given_variables)))
            continue;
        scope_set(e, root, known,
                  json_is_array(value) && !strcmp(name, "messages")
                      ? read_messages(e, value)
                      : from_json(e, value, json_is_string(value) ? from : AX_JINJA_OTHER));
    }
}

static void set_context(jx *e, scope *root, const json_t *context)
{
    set_variables(e, root, json_object_get(context, given_variables), AX_JINJA_OTHER);
    set_variables(e, root, context, AX_JINJA_TEMPLATE);
}

/* Copies a text and its origins out of the arena. */
static ax_status take_tail(const jstr *s, ax_jinja_text *out)
{
    const jrun all = {s->n, s->from}, *runs = s->mixed ? s->runs : &all;
    const size_t before = out->text.size;
    AX_TRY(ax_buf_add(&out->text, s->data, s->n));
    for (size_t i = 0; s->n && i < (s->mixed ? s->n_runs : 1); i++, out->n_parts++) {
        const ax_jinja_part part = {before + runs[i].end, runs[i].from, 0};
        AX_TRY(ax_buf_add(&out->parts, &part, sizeof part));
    }
    return AX_OK;
}

static ax_status take_tails(jx *e)
{
    ax_jinja_cuts *cuts = e->cuts;
    for (size_t i = 0; cuts && i < 2 * cuts->n; i++) {
        cuts->cut[i].begin = cuts->tails.text.size;
        cuts->cut[i].part = cuts->tails.n_parts;
        if (cuts->cut[i].known)
            AX_TRY(take_tail(e->tails[i], &cuts->tails));
        cuts->cut[i].end = cuts->tails.text.size;
    }
    return AX_OK;
}

/* Copies the text, its origins and its marks out of the arena. */
static ax_status take(jx *e, ax_jinja_text *out)
{
    size_t begin = 0, run = 0, mark = 0;
    const jstr *s = e->text;
    AX_TRY(ax_buf_add(&out->text, s->data, s->n));
    AX_TRY(ax_buf_reserve(&out->parts, (s->n_runs + 2 * e->n_marks + 1) * sizeof(ax_jinja_part)));
    while (begin < s->n) {
        while (mark < e->n_marks && e->marks[mark].end <= begin)
            mark++;
        const bool marked = mark < e->n_marks && e->marks[mark].begin <= begin;
        const size_t bound = mark == e->n_marks ? s->n : marked ? e->marks[mark].end : e->marks[mark].begin;
        const size_t end = s->mixed && s->runs[run].end < bound ? s->runs[run].end : bound;
        const ax_jinja_part part = {end, s->mixed ? s->runs[run].from : s->from,
                                    marked ? (uint32_t)mark + 1 : 0};
        AX_TRY(ax_buf_add(&out->parts, &part, sizeof part));
        out->n_parts++;
        run += s->mixed && s->runs[run].end == end;
        begin = end;
    }
    return AX_OK;
}

/* Bounds what the rendering of a context of e->read bytes and values takes, among them n messages: templates
 * may look at all messages for each of them. Gives half of the memory that is there to what only the cases
 * need. */
static void set_limits(jx *e, size_t n)
{
    enum { MOST = 5000 };
    arena *a = e->arena;
    const int64_t pairs = ax_min((int64_t)n, MOST) * ax_min((int64_t)n, MOST);
    a->most = ((size_t)40 << 20) + 64 * e->read;
    e->steps = e->side_steps = 1000000 + 100 * (int64_t)e->read + 20 * pairs;
    e->most_text = ((size_t)4 << 20) + 8 * e->read;
    if (!e->cuts)
        return;
    e->room = (struct room){.left = (a->left / 2) & ~(size_t)15, .rest = a->most / 2};
    e->facet_room = a->most / 8;
    a->left -= e->room.left;
    e->room.at = e->room.left ? a->at + a->left : NULL;
}

static ax_status try_render(jx *e, const json_t *context)
{
    static const char prompt[] = "add_generation_prompt";
    jmp_buf leave;
    e->out = &leave;
    if (setjmp(leave))
        return ax_error_status();
    scope *root = scope_new(e, NULL);
    e->text = js_text(e, "");
    set_globals(e, root);
    set_context(e, root, context);
    struct binding *messages = find_binding(root, names_find(&e->template->names, "messages", 8));
    struct binding *asks = find_binding(root, names_find(&e->template->names, prompt, sizeof prompt - 1));
    const bool listed = messages && messages->value.kind == J_LIST;
    set_limits(e, listed ? messages->value.list->n : 0);
    if (e->cuts)
        make_cases(e);
    if (listed)
        watch(e, messages->value.list, 0);
    if (asks)
        asks->value = prompt_facets(e, asks->value);
    run(e, scope_new(e, root), e->template->body);
    js_data(e, e->text);
    return AX_OK;
}

/* Lets an arena begin with memory that is there from one rendering to the next: memory->size bytes, as many
 * as the last one took. */
static ax_status lend(ax_buf *memory, arena *a)
{
    const size_t size = memory->size;
    memory->size = 0;
    AX_TRY(ax_buf_reserve(memory, size));
    a->at = memory->data;
    a->left = memory->capacity & ~(size_t)15;
    return AX_OK;
}

static void keep_size(ax_buf *memory, const arena *a)
{
    enum { MOST = 1 << 20 };
    memory->size = ax_min((int64_t)(memory->capacity + a->used), MOST);
}

ax_status ax_jinja_render_cuts(const ax_jinja *template, const json_t *context, int64_t now,
                               ax_jinja_cuts *cuts, ax_jinja_text *out)
{
    jx *e;
    out->text.size = out->parts.size = out->n_parts = 0;
    out->lost = out->own_fault = false;
    AX_TRY(ax_calloc(1, sizeof *e, &e));
    arena memory = {.most = SIZE_MAX};
    *e = (jx){.arena = &memory,
              .where = template->where,
              .line = 1,
              .template = template,
              .now = now,
              .cuts = cuts,
              .steps = INT64_MAX};
    ax_status status = lend(&out->memory, &memory);
    if (status == AX_OK)
        status = try_render(e, context);
    if (status == AX_OK)
        status = take(e, out);
    if (status == AX_OK)
        status = take_tails(e);
    out->lost = e->lost;
    out->own_fault = status != AX_OK && e->own_fault;
    keep_size(&out->memory, &memory);
    arena_fini(&memory);
    free(e);
    return status;
}

ax_status ax_jinja_render(const ax_jinja *template, const json_t *context, int64_t now, ax_jinja_text *out)
{
    return ax_jinja_render_cuts(template, context, now, NULL, out);
}

void ax_jinja_text_fini(ax_jinja_text *text)
{
    ax_buf_fini(&text->text);
    ax_buf_fini(&text->parts);
    ax_buf_fini(&text->memory);
    *text = (ax_jinja_text){0};
}
