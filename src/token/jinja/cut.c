/* Finds, while a template is rendered, what it would write for the first messages alone.
 *
 * Most templates run once over their messages. When a loop over them comes to a message, all that was done so
 * far would have been done for the messages before it alone, unless the template has asked for more of the
 * list: its length, its last element, whether the loop's element is the last. e->need is the least number of
 * messages for which all that was asked has the same answer. So the rest of the template is run with the list
 * cut off, and what it changed is undone: a side run. Where a template asks about the element that follows,
 * the side run begins a message earlier. */
#include "token/jinja/inner.h"

#include <string.h>

/* What a side run changes, to be undone. */
struct undo {
    void *place;
    size_t size;
    char old[sizeof(jdict)];
};

void jx_keep(jx *e, void *place, size_t size)
{
    if (!e->aside)
        return;
    e->undo = jx_grow(e, e->undo, e->n_undo, &e->undo_capacity, sizeof *e->undo);
    struct undo *u = &e->undo[e->n_undo++];
    u->place = place;
    u->size = size;
    memcpy(u->old, place, size);
}

static void undo(jx *e)
{
    for (; e->n_undo; e->n_undo--) {
        const struct undo *u = &e->undo[e->n_undo - 1];
        memcpy(u->place, u->old, u->size);
    }
}

/* ---- what was asked ---------------------------------------------------------------------------------- */

void watch(jx *e, jlist *list, size_t offset)
{
    if (!e->cuts || e->aside || !list->n) /* an empty list is empty for fewer messages too */
        return;
    e->watched = jx_grow(e, e->watched, e->n_watched, &e->watched_capacity, sizeof *e->watched);
    e->watched[e->n_watched++] = list;
    list->watched = true;
    list->offset = offset;
}

void asked(jx *e, const jlist *list, int64_t n)
{
    if (!list->watched || e->aside)
        return;
    const size_t need = n < 0 || (size_t)n > list->n ? SIZE_MAX : list->offset + (size_t)n;
    e->need = need > e->need ? need : e->need;
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

/* Runs what follows with n messages, within the memory that is left for side runs. Returns NULL if the
 * template failed. */
static jstr *run_aside(jx *e, jloop *loop, const char *name, size_t n, bool prompt, bool again)
{
    jmp_buf leave, *const outer = e->out;
    const jx before = *e;
    const jloop loop_before = *loop;
    arena *const a = e->arena;
    const size_t most = a->most, used = a->used;
    jstr *volatile tail = NULL;
    e->aside = true;
    e->steps = e->side_steps;
    e->out = &leave;
    a->most = used + e->side_memory;
    if (!setjmp(leave)) {
        e->text = js_text(e, "");
        cut_lists(e, n);
        if (prompt) {
            jx_keep(e, &e->prompt->value, sizeof e->prompt->value);
            e->prompt->value = jv_bool(true);
        }
        run_rest(e, loop, name, again);
        js_data(e, e->text);
        tail = e->text;
    }
    undo(e);
    const jx after = *e;
    *e = before;
    e->out = outer;
    e->side_steps = after.steps;
    e->undo = after.undo;
    e->undo_capacity = after.undo_capacity;
    e->side_memory -= a->used - used;
    a->most = most + (a->used - used);
    *loop = loop_before;
    if (!tail && ax_error_status() == AX_ERR_MEMORY)
        longjmp(*outer, 1);
    return tail;
}

/* Finds what the template writes for the first n messages, if that is wanted and can be told. */
static void find_cut(jx *e, jloop *loop, const char *name, size_t n, bool again)
{
    for (int prompt = 0; prompt < 2 && n < e->cuts->n; prompt++) {
        ax_jinja_cut *cut = &e->cuts->cut[2 * n + (size_t)prompt];
        if (!cut->wanted || cut->known || e->need > n || (prompt && (e->asked_prompt || !e->prompt)) ||
            e->side_steps <= 0 || !e->side_memory)
            continue;
        cut->same = e->text->n;
        const jstr *tail = run_aside(e, loop, name, n, prompt, again);
        cut->known = tail != NULL;
        e->tails[2 * n + (size_t)prompt] = tail;
    }
}

bool starts_watch(jx *e, const jloop *loop)
{
    const bool plain = !loop->node->c && !loop->node->flag;
    if (!plain)
        asked(e, loop->items, ALL_MESSAGES);
    return plain && loop->items->watched && e->cuts && !e->aside && !e->inside && !e->captured;
}

void watch_next(jx *e, jloop *loop, const char *name)
{
    const size_t n = loop->items->offset + loop->next; /* messages before the next element */
    if (!loop->wrote) /* a loop that only looks at messages is followed by the one that writes them */
        return;
    find_cut(e, loop, name, n, false);
    e->early |= e->need > n;
    if (e->early)
        find_cut(e, loop, name, n + 1, true);
}
