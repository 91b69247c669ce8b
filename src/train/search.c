/* The search for the layout of a run: the candidates, in the order of their times.
 *
 * A node of the search is a candidate of which the first keys have values. Its time is that of the fastest
 * that it can become if memory does not count. The node with the least time is opened: each value of its next
 * key is a node. A node whose keys all have values comes out when no other can become faster.
 *
 * Where bounds tell little, that takes too long: then candidates are improved key by key (descents), and the
 * best that is found within a number of replays is given. */
#include "train/search.h"

#include "axonn/runtime.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What an open key may change beyond what its values say: some are not always fastest, if transfers hide
 * behind one another. An open node counts as this much faster. */
static const double open_share = 0.98;

/* Beyond the number that is asked for, candidates are of interest only if they are this near to the first:
 * replayed as a whole, one of them may turn out to be faster. */
static const double near_share = 0.03;

/* If bounds have not told the fastest after PATIENCE replays, or AFTER_ROOT if the grids alone take as many,
 * candidates of many grids are made in BEGIN more, and improved key by key in DESCEND more. Nodes that cannot
 * become faster than these are then left out, and the search ends after END more. */
enum { PATIENCE = 4000, AFTER_ROOT = 1000, BEGIN = 1500, DESCEND = 3000, END = 3500 };

enum { WHOLE = 50 }; /* candidates that are replayed as a whole */

typedef struct node {
    ax_candidate c;
    int depth;    /* keys that have values */
    double bound; /* no candidate that this node can become is faster */
    int64_t number;
} node;

/* A heap of nodes, the one with the least bound first; of equal ones the newest. */
typedef struct frontier {
    node *of;
    size_t n, room;
    int64_t made;
} frontier;

static bool is_before(const node *a, const node *b)
{
    return a->bound < b->bound || (a->bound <= b->bound && a->number > b->number);
}

static void swap(node *a, node *b)
{
    const node t = *a;
    *a = *b;
    *b = t;
}

static ax_status push(frontier *f, const node *new)
{
    if (f->n == f->room) {
        node *more;
        AX_TRY(ax_calloc(ax_max(2 * f->room, 256), sizeof *more, &more));
        if (f->n)
            memcpy(more, f->of, f->n * sizeof *more);
        free(f->of);
        f->of = more;
        f->room = ax_max(2 * f->room, 256);
    }
    size_t i = f->n++;
    f->of[i] = *new;
    f->of[i].number = f->made++;
    for (; i && is_before(&f->of[i], &f->of[(i - 1) / 2]); i = (i - 1) / 2)
        swap(&f->of[i], &f->of[(i - 1) / 2]);
    return AX_OK;
}

static void sink(frontier *f, size_t i)
{
    for (size_t k; (k = 2 * i + 1) < f->n; i = k) {
        k += k + 1 < f->n && is_before(&f->of[k + 1], &f->of[k]);
        if (!is_before(&f->of[k], &f->of[i]))
            break;
        swap(&f->of[i], &f->of[k]);
    }
}

static node pop(frontier *f)
{
    const node first = f->of[0];
    f->of[0] = f->of[--f->n];
    sink(f, 0);
    return first;
}

/* ---- what was replayed before ---------------------------------------------------------------------- */

/* Different nodes are completed to the same candidate: what was found is kept. */
typedef struct found {
    int64_t value[AX_SEARCH_KEYS];
    int mode; /* search_mode + 1; 0: an empty place */
    double seconds;
    size_t memory, host;
    bool refused;
} found;

typedef struct memo {
    found *of;
    size_t n, room; /* room: a power of two */
} memo;

static found *find_place(const memo *m, const int64_t *value, int mode)
{
    uint64_t key = (uint64_t)mode;
    for (int i = 0; i < AX_SEARCH_KEYS; i++)
        key = (key ^ (uint64_t)value[i]) * UINT64_C(0x9e3779b97f4a7c15) ^ key >> 29;
    size_t i = (size_t)(key >> 20) & (m->room - 1);
    while (m->of[i].mode &&
           (m->of[i].mode != mode || memcmp(m->of[i].value, value, sizeof m->of[i].value) != 0))
        i = (i + 1) & (m->room - 1);
    return &m->of[i];
}

static ax_status make_room(memo *m)
{
    memo more = {.n = m->n, .room = m->room ? 2 * m->room : 1024};
    if (2 * (m->n + 1) <= m->room)
        return AX_OK;
    AX_TRY(ax_calloc(more.room, sizeof *more.of, &more.of));
    for (size_t i = 0; i < m->room; i++)
        if (m->of[i].mode)
            *find_place(&more, m->of[i].value, m->of[i].mode) = m->of[i];
    free(m->of);
    *m = more;
    return AX_OK;
}

/* The arrays of a search. */
typedef struct tables {
    search_values mine, other; /* of the node that is opened, and to complete one */
    memo memo;
} tables;

/* search_replay of few blocks, unless it was done before. */
static ax_status replay_once(struct ax_search *s, tables *t, search_mode mode, ax_candidate *c)
{
    int64_t value[AX_SEARCH_KEYS];
    memcpy(value, c->value, sizeof value);
    if (mode <= SEARCH_ANYWAY) /* the order does not count */
        value[AX_SEARCH_ORDER] = 0;
    if (mode == SEARCH_ORDERED && ax_grid_size_along(c->grid, AX_PIPE) == 1)
        mode = SEARCH_TIMED;
    AX_TRY(make_room(&t->memo));
    found *f = find_place(&t->memo, value, (int)mode + 1);
    if (!f->mode) {
        AX_TRY(search_replay(s, c, mode, false));
        s->candidates += mode == SEARCH_TIMED;
        *f = (found){.mode = (int)mode + 1,
                     .seconds = c->seconds,
                     .memory = c->memory,
                     .host = c->host,
                     .refused = c->refused};
        memcpy(f->value, value, sizeof value);
        t->memo.n++;
    }
    c->seconds = f->seconds;
    c->memory = f->memory;
    c->host = f->host;
    c->refused = f->refused;
    return AX_OK;
}

/* ---- nodes ----------------------------------------------------------------------------------------- */

/* Gives the keys from `depth` on their fastest value, or the one that needs the least memory. Returns false
 * if one of them has no value. */
static bool complete(const struct ax_search *s, tables *t, int depth, bool frugal, ax_candidate *c)
{
    for (int key = depth; key < AX_SEARCH_KEYS; key++) {
        search_list(s, c, (ax_search_key)key, &t->other);
        if (!t->other.n)
            return false;
        search_set(s, c, (ax_search_key)key, t->other.of[frugal ? t->other.n - 1 : 0]);
    }
    return true;
}

static bool fits(const struct ax_search *s, const ax_candidate *c)
{
    const int64_t host = s->by.machine->host.memory;
    return !c->refused && c->memory <= s->limit && (!host || c->host <= (size_t)host);
}

/* Sets *out to whether the node can become a candidate that fits. */
static ax_status can_fit(struct ax_search *s, tables *t, const node *n, bool *out)
{
    ax_candidate c = n->c;
    *out = complete(s, t, n->depth, true, &c);
    if (!*out)
        return AX_OK;
    AX_TRY(replay_once(s, t, n->depth <= AX_SEARCH_MICRO_BATCH ? SEARCH_ROOM : SEARCH_MEMORY, &c));
    if (!c.refused && (!s->least || c.memory < s->least)) {
        s->least = c.memory;
        s->least_of = c;
    }
    *out = fits(s, &c);
    return AX_OK;
}

/* Finds the time of the fastest candidate that the node can become: infinity if there is none. *fit: that
 * candidate fits, and so all do that the node can become. */
static ax_status find_bound(struct ax_search *s, tables *t, node *n, bool *fit)
{
    const bool whole = n->depth == AX_SEARCH_KEYS;
    const search_mode mode = whole                               ? SEARCH_TIMED
                             : n->depth <= AX_SEARCH_MICRO_BATCH ? SEARCH_OPEN
                             : n->depth <= AX_SEARCH_ORDER       ? SEARCH_ANYWAY
                                                                 : SEARCH_ORDERED;
    ax_candidate c = n->c;
    *fit = complete(s, t, n->depth, false, &c);
    if (!*fit) {
        n->bound = INFINITY;
        return AX_OK;
    }
    AX_TRY(replay_once(s, t, mode, &c));
    *fit = fits(s, &c);
    if (whole)
        n->c = c;
    if (!c.refused)
        n->bound = fmax(n->bound, c.seconds * (whole ? 1 : open_share));
    return AX_OK;
}

/* Opens a node: enters one for each value of its next key that can become a candidate that fits. */
static ax_status open_node(struct ax_search *s, tables *t, const node *from, frontier *f)
{
    const int depth = from->depth + 1;
    search_list(s, &from->c, (ax_search_key)from->depth, &t->mine);
    for (int i = 0; i < t->mine.n; i++) {
        node child = *from;
        const bool matters = t->mine.n > 1 || depth == AX_SEARCH_KEYS;
        bool fit = true;
        child.depth = depth;
        search_set(s, &child.c, (ax_search_key)from->depth, t->mine.of[i]);
        if (matters || depth == AX_SEARCH_ORDER + 1)
            AX_TRY(find_bound(s, t, &child, &fit));
        fit |= !matters;
        if (!fit)
            AX_TRY(can_fit(s, t, &child, &fit));
        if (fit && isfinite(child.bound))
            AX_TRY(push(f, &child));
    }
    return AX_OK;
}

/* ---- the best -------------------------------------------------------------------------------------- */

/* The fastest first; of equally fast ones the one that needs the least memory. */
static bool is_better(const ax_candidate *a, const ax_candidate *b)
{
    const double less = (b->seconds - a->seconds) / b->seconds;
    return less > 1e-9 || (less > -1e-9 && a->memory < b->memory);
}

/* Returns true if the description does not tell the two apart. */
static bool is_same(const ax_candidate *a, const ax_candidate *b)
{
    return a->value[AX_SEARCH_GRID] == b->value[AX_SEARCH_GRID] && a->memory == b->memory &&
           fabs(a->seconds - b->seconds) <= 1e-9 * a->seconds;
}

/* Enters a candidate among the best, of which there are at most `most`. */
static void enter(struct ax_search *s, const ax_candidate *c, int most)
{
    int at = s->n;
    for (int i = 0; i < s->n; i++)
        if (is_same(&s->best[i], c))
            return;
    for (; at && is_better(c, &s->best[at - 1]); at--)
        if (at < most)
            s->best[at] = s->best[at - 1];
    if (at == most)
        return;
    s->best[at] = *c;
    s->n += s->n < most;
}

/* Returns true if no node with this bound can become one of the candidates that are of interest. */
static bool is_hopeless(const struct ax_search *s, double bound, int most)
{
    return (s->n == most && bound >= s->best[most - 1].seconds) ||
           (s->n >= s->by.most && bound > s->best[0].seconds * (1 + near_share));
}

/* Fails if a signal has come that the program does not end by. */
static ax_status check_signal(void)
{
    return ax_signal_pending() ? ax_fail(AX_ERR_SIGNAL, "the search for a layout was stopped by a signal")
                               : AX_OK;
}

/* ---- descent: a candidate that becomes faster key by key ------------------------------------------- */

static bool has_value(const search_values *v, int64_t value)
{
    int i = 0;
    while (i < v->n && v->of[i] != value)
        i++;
    return i < v->n;
}

/* Gives a key of the candidate another value; the keys after it keep theirs if they can, and else get their
 * first. Returns false if one of them has none. */
static bool change(const struct ax_search *s, tables *t, ax_search_key key, int64_t value, ax_candidate *c)
{
    search_set(s, c, key, value);
    for (int k = key + 1; k < AX_SEARCH_KEYS; k++) {
        search_list(s, c, (ax_search_key)k, &t->other);
        if (!t->other.n)
            return false;
        search_set(s, c, (ax_search_key)k, has_value(&t->other, c->value[k]) ? c->value[k] : t->other.of[0]);
    }
    return true;
}

/* Returns true if a factor of one size of a grid, given to another size, makes the other grid. */
static bool are_near(ax_grid_size a, ax_grid_size b)
{
    int others = 0;
    for (int i = 0; i < AX_GRID_SIZES; i++)
        others += ax_grid_size_along(a, (ax_axis)i) != ax_grid_size_along(b, (ax_axis)i);
    return others <= 2;
}

/* Gives a key the value with which the candidate is fastest and fits. Sets *better to whether that is
 * another. */
static ax_status improve(struct ax_search *s, tables *t, ax_search_key key, int64_t end, ax_candidate *c,
                         bool *better)
{
    const ax_candidate before = *c;
    *better = false;
    search_list(s, &before, key, &t->mine);
    for (int i = 0; i < t->mine.n && s->replays < end; i++) {
        ax_candidate next = before;
        if (t->mine.of[i] == before.value[key] ||
            (key == AX_SEARCH_GRID && !are_near(before.grid, s->grid[t->mine.of[i]])) ||
            !change(s, t, key, t->mine.of[i], &next))
            continue;
        AX_TRY(check_signal());
        AX_TRY(replay_once(s, t, SEARCH_TIMED, &next));
        if (fits(s, &next) &&
            next.seconds < c->seconds * (1 - 1e-9)) { /* descents end: none goes in a circle */
            *c = next;
            *better = true;
        }
    }
    return AX_OK;
}

/* Gives the candidate the largest micro-batch with which its stages have a few each. */
static void begin_with_few(const struct ax_search *s, const search_values *micro_batch, ax_candidate *c)
{
    enum { FEW = 4 };
    const int64_t few = FEW * ax_grid_size_along(c->grid, AX_PIPE);
    int i = 0;
    do
        search_set(s, c, AX_SEARCH_MICRO_BATCH, micro_batch->of[i++]);
    while (i < micro_batch->n && search_micro_batches(s, c) < few);
}

/* Gives all keys of a candidate behind its grid values to begin with: the micro-batch above, of the other
 * keys the fastest values or those that need the least memory, and the schedule that is replayed the fastest.
 * Returns false if a key has none. */
static bool begin_with(const struct ax_search *s, tables *t, bool frugal, ax_candidate *c)
{
    for (int key = AX_SEARCH_GRID + 1; key < AX_SEARCH_KEYS; key++) {
        search_list(s, c, (ax_search_key)key, &t->other);
        if (!t->other.n)
            return false;
        if (key == AX_SEARCH_MICRO_BATCH)
            begin_with_few(s, &t->other, c);
        else
            search_set(s, c, (ax_search_key)key,
                       t->other.of[frugal || key >= AX_SEARCH_SCHEDULE ? t->other.n - 1 : 0]);
    }
    return true;
}

/* Finds a candidate to begin with that has the grid of the node. Sets *fit to whether there is one. */
static ax_status find_beginning(struct ax_search *s, tables *t, const node *n, ax_candidate *c, bool *fit)
{
    enum { FASTEST, FRUGAL, LEAST, TRIES };
    *fit = false;
    for (int i = 0; i < TRIES && !*fit; i++) {
        *c = n->c;
        if (i == LEAST ? complete(s, t, n->depth, true, c) : begin_with(s, t, i == FRUGAL, c)) {
            AX_TRY(replay_once(s, t, SEARCH_TIMED, c));
            *fit = fits(s, c);
        }
    }
    return AX_OK;
}

/* Improves a candidate until no other value of one key is faster, and enters what it becomes. */
static ax_status descend(struct ax_search *s, tables *t, ax_candidate c, int64_t end, int most)
{
    for (int key = 0, unchanged = 0; unchanged < AX_SEARCH_KEYS; key = (key + 1) % AX_SEARCH_KEYS) {
        bool better;
        AX_TRY(improve(s, t, (ax_search_key)key, end, &c, &better));
        unchanged = better ? 0 : unchanged + 1;
        if (better)
            enter(s, &c, most);
    }
    return AX_OK;
}

static int by_bound(const void *a, const void *b) { return is_before(a, b) ? -1 : is_before(b, a); }

/* Descends from a candidate of each grid: of those with the least bounds, the fastest candidate first. of[n]:
 * the nodes; seen[grid]: false. */
static ax_status descend_from(struct ax_search *s, tables *t, node *of, size_t n, bool *seen, int most)
{
    const int64_t begin = s->replays + BEGIN, end = begin + DESCEND;
    size_t begun = 0;
    qsort(of, n, sizeof *of, by_bound);
    for (size_t i = 0; i < n && s->replays < begin; i++) {
        ax_candidate c;
        bool *grid = &seen[of[i].c.value[AX_SEARCH_GRID]], fit;
        if (*grid)
            continue;
        *grid = true;
        AX_TRY(check_signal());
        AX_TRY(find_beginning(s, t, &of[i], &c, &fit));
        if (!fit)
            continue;
        enter(s, &c, most);
        of[begun] = of[i];
        of[begun].c = c;
        of[begun++].bound = c.seconds;
    }
    qsort(of, begun, sizeof *of, by_bound);
    for (size_t i = 0; i < begun && s->replays < end; i++)
        AX_TRY(descend(s, t, of[i].c, end, most));
    return AX_OK;
}

static ax_status descend_from_all(struct ax_search *s, tables *t, const frontier *f, int most)
{
    node *of = NULL;
    bool *seen = NULL;
    ax_status status = ax_calloc((size_t)s->n_grids, sizeof *seen, &seen);
    if (status == AX_OK)
        status = ax_calloc(f->n, sizeof *of, &of);
    if (status == AX_OK) {
        memcpy(of, f->of, f->n * sizeof *of);
        status = descend_from(s, t, of, f->n, seen, most);
    }
    free(of);
    free(seen);
    return status;
}

/* ---- the search ------------------------------------------------------------------------------------ */

/* Finds the best candidates, at most `most`. */
static ax_status take_best(struct ax_search *s, tables *t, frontier *f, int most)
{
    const node root = {.depth = 0};
    AX_TRY(open_node(s, t, &root, f));
    const int64_t patience = ax_max(PATIENCE, s->replays + AFTER_ROOT);
    int64_t end = INT64_MAX; /* set by the descents */
    while (f->n && (!s->n || s->replays < end) && !is_hopeless(s, f->of[0].bound, most)) {
        if (end == INT64_MAX && s->replays >= patience) {
            AX_TRY(descend_from_all(s, t, f, most));
            end = s->replays + END;
            continue;
        }
        const node n = pop(f);
        AX_TRY(check_signal());
        if (n.depth < AX_SEARCH_KEYS)
            AX_TRY(open_node(s, t, &n, f));
        else
            enter(s, &n.c, most);
    }
    return AX_OK;
}

/* Replays the best as a whole, and leaves out those that do not fit. */
static ax_status replay_best(struct ax_search *s)
{
    ax_candidate *few = s->best;
    const int n = s->n;
    s->n = 0;
    s->best = NULL;
    ax_status status = ax_calloc((size_t)ax_max(n, 1), sizeof *s->best, &s->best);
    for (int i = 0; i < n && status == AX_OK; i++) {
        status = search_replay(s, &few[i], SEARCH_TIMED, true);
        if (status == AX_OK && fits(s, &few[i]))
            enter(s, &few[i], n);
    }
    free(few);
    return status;
}

/* Replays every candidate with the values of `c` as a whole. */
static ax_status try_every(struct ax_search *s, tables *t, const ax_candidate *c, int depth)
{
    search_values values = t->mine;
    ax_candidate next = *c;
    if (depth == AX_SEARCH_KEYS) {
        s->candidates++;
        AX_TRY(search_replay(s, &next, SEARCH_TIMED, true));
        if (fits(s, &next))
            enter(s, &next, s->by.most);
        return AX_OK;
    }
    AX_TRY(ax_calloc((size_t)s->values_most, sizeof *values.of, &values.of));
    search_list(s, c, (ax_search_key)depth, &values);
    ax_status status = AX_OK;
    for (int i = 0; i < values.n && status == AX_OK; i++) {
        search_set(s, &next, (ax_search_key)depth, values.of[i]);
        status = try_every(s, t, &next, depth + 1);
    }
    free(values.of);
    return status;
}

static ax_status rank(struct ax_search *s, tables *t)
{
    const int most = (int)ax_max(s->by.most, WHOLE);
    const ax_candidate none = {.n_along = 0};
    frontier f = {.n = 0};
    AX_TRY(ax_calloc((size_t)most, sizeof *s->best, &s->best));
    if (s->by.every)
        return try_every(s, t, &none, 0);
    ax_status status = take_best(s, t, &f, most);
    free(f.of);
    if (status == AX_OK)
        status = replay_best(s);
    s->n = (int)ax_min(s->n, s->by.most);
    return status;
}

/* ---- if nothing fits ------------------------------------------------------------------------------- */

/* Returns the bytes that a rank needs at least if the weights, in the compute dtype, are divided evenly. */
static double least_share(const struct ax_search *s, int64_t ranks)
{
    return (double)search_weights(s) / (double)ranks;
}

enum { MOST_DIVIDED = 32 }; /* grids that are tried for each number of ranks */

/* Orders grids by the number of parts into which they divide the blocks and their weights, the most first:
 * these need little memory, though not always the least. */
static int most_divided(const void *a, const void *b)
{
    int64_t ways[2];
    for (int i = 0; i < 2; i++) {
        const ax_grid_size *size = i ? b : a;
        ways[i] = ax_grid_size_along(*size, AX_X) * ax_grid_size_along(*size, AX_Y) *
                  ax_grid_size_along(*size, AX_PIPE);
    }
    return (ways[0] < ways[1]) - (ways[0] > ways[1]);
}

/* Sets *out to whether one of the most divided grids of `ranks` ranks has a candidate that fits. */
static ax_status enough(struct ax_search *s, tables *t, int64_t ranks, bool *out)
{
    *out = false;
    if (least_share(s, ranks) > (double)s->limit)
        return AX_OK;
    s->ranks = ranks;
    ax_comm_destroy(&s->world);
    AX_TRY(ax_comm_alone_create((int)ranks, &s->world));
    s->base.ranks = s->world;
    AX_TRY(search_list_grids(s));
    free(t->memo.of); /* its candidates have other grids */
    t->memo = (memo){.n = 0};
    qsort(s->grid, (size_t)s->n_grids, sizeof *s->grid, most_divided);
    for (int i = 0; i < ax_min(s->n_grids, MOST_DIVIDED) && !*out; i++) {
        node n = {.depth = 1};
        search_set(s, &n.c, AX_SEARCH_GRID, i);
        AX_TRY(check_signal());
        AX_TRY(can_fit(s, t, &n, out));
        if (*out && complete(s, t, 1, true, &n.c)) { /* all stages, where that was of the first */
            AX_TRY(replay_once(s, t, SEARCH_MEMORY, &n.c));
            *out = fits(s, &n.c);
        }
    }
    return AX_OK;
}

/* The numbers of ranks that are of interest: within a node all, beyond it those of whole nodes. Return the
 * next one above `ranks`, and how many are above `ranks` and below `end`. */
static int64_t next_ranks(const struct ax_search *s, int64_t ranks)
{
    const int64_t unit = s->by.machine->ranks_per_node;
    return ranks < unit ? ranks + 1 : (ranks / unit + 1) * unit;
}

static int64_t count_ranks(const struct ax_search *s, int64_t ranks, int64_t end)
{
    const int64_t unit = s->by.machine->ranks_per_node, last = end - 1;
    return ax_min(last, unit - 1) + last / unit - ax_min(ranks, unit - 1) - ranks / unit;
}

/* Sets *out to the smallest number of ranks that would do, if the grids that are tried have the one that
 * needs the least; 0: none was found. Below the first that was found all are tried if they are not too many.
 * Else *smallest is false, and *out is the smallest if more ranks never need more memory each. */
static ax_status find_enough(struct ax_search *s, tables *t, int64_t *out, bool *smallest)
{
    enum { ALL = 64 };
    const int64_t all = ax_machine_ranks(s->by.machine);
    const size_t least = s->least;
    bool do_fit = false;
    int64_t low = s->by.ranks, high = low;
    while (!do_fit && high < all) {
        low = high;
        high = ax_min(next_ranks(s, 2 * high - 1), all);
        AX_TRY(enough(s, t, high, &do_fit));
    }
    *out = do_fit ? high : 0;
    *smallest = do_fit && count_ranks(s, s->by.ranks, high) <= ALL;
    if (*smallest)
        low = s->by.ranks;
    while (*out && count_ranks(s, low, *out)) {
        int64_t ranks = next_ranks(s, *smallest ? low : (low + *out) / 2 - 1);
        if (ranks <= low || ranks >= *out)
            ranks = next_ranks(s, low);
        AX_TRY(enough(s, t, ranks, &do_fit));
        *(do_fit ? out : &low) = ranks;
    }
    s->least = least;
    return AX_OK;
}

/* Writes how many ranks would do. */
static ax_status advise(struct ax_search *s, tables *t, char out[96])
{
    int64_t ranks;
    bool smallest;
    AX_TRY(find_enough(s, t, &ranks, &smallest));
    snprintf(out, 96, "no number of ranks up to the machine's %lld was found that would do",
             (long long)ax_machine_ranks(s->by.machine));
    if (ranks)
        snprintf(out, 96, "%s%lld%s", smallest ? "the smallest number of ranks that would do is " : "",
                 (long long)ranks, smallest ? "" : " ranks would do");
    return AX_OK;
}

/* Fails because even the weights take more than all ranks have. */
static ax_status fail_weights(struct ax_search *s, tables *t)
{
    char need[32], most[32], advice[96];
    const double share = least_share(s, s->by.ranks), limit = (double)s->limit;
    AX_TRY(advise(s, t, advice));
    return ax_fail(
        AX_ERR_MEMORY,
        "no layout of %d ranks fits: the weights alone, which need %.0f ranks, take %s of each but "
        "its device has %s: %s",
        s->by.ranks, ceil(share * s->by.ranks / limit), ax_format_bytes(share, need),
        ax_format_bytes(limit, most), advice);
}

/* Fails with what is missing. */
static ax_status fail_small(struct ax_search *s, tables *t)
{
    ax_candidate least = s->least_of;
    const int64_t host = s->by.machine->host.memory;
    char need[32], most[32], grid[80], advice[96];
    AX_CHECK(s->least || !*s->refused, AX_ERR_USAGE, "no layout of %d ranks is possible; of one of them: %s",
             s->by.ranks, s->refused);
    AX_CHECK(s->least, AX_ERR_USAGE,
             "no grid of %d ranks is legal for the model, train.global_batch and the keys that are given",
             s->by.ranks);
    AX_TRY(
        search_replay(s, &least, SEARCH_MEMORY, true)); /* all stages, where that was perhaps of the first */
    AX_CHECK(!fits(s, &least), AX_ERR_USAGE,
             "no layout of %d ranks is possible with the keys that are given: give fewer of them",
             s->by.ranks);
    const bool device = least.memory > s->limit;
    ax_grid_size_print(least.grid, grid);
    AX_TRY(advise(s, t, advice));
    const bool by_key = device && s->limit < (size_t)s->by.machine->device.memory;
    return ax_fail(AX_ERR_MEMORY,
                   "no layout of %d ranks fits: the one that needs the least (%s) takes %s of %s but %s%s "
                   "allows only %s: %s",
                   s->by.ranks, grid, ax_format_bytes((double)(device ? least.memory : least.host), need),
                   device ? "device memory" : "host memory of a node",
                   by_key ? "runtime.device_memory" : "machine ", by_key ? "" : s->by.machine->name,
                   ax_format_bytes(device ? (double)s->limit : (double)host, most), advice);
}

/* ---- start ----------------------------------------------------------------------------------------- */

/* Returns true if the blocks are alike, so that a few of them tell the time and memory of all. */
static bool are_alike(const ax_train_run *run)
{
    const ax_model_config *m = &run->inputs.model;
    const int64_t cache = run->config->train.weight_cache,
                  sparse = ax_model_config_sparse_blocks(m, m->layers);
    const int64_t recompute = run->config->train.recompute;
    return !m->window_layers && !m->low_rank_blocks && !run->inputs.masks &&
           (sparse == 0 || sparse == m->layers) && cache == 0 && recompute <= 1;
}

/* Returns true if the key keeps the value that the configuration gives it. */
static bool is_fixed(const struct ax_search *s, ax_search_key key)
{
    const ax_config *c = s->run->config;
    const char *name = search_key_names[key];
    if (key == AX_SEARCH_GRID)
        return false; /* size by size (search_list_grids) */
    if (key == AX_SEARCH_RECOMPUTE && c->train.recompute == AX_CONFIG_RECOMPUTE_AUTO)
        return false;
    if (key == AX_SEARCH_ORDER)
        return c->grid.choice ? ax_option_typed(c->set, name) : ax_config_given(c, name);
    return s->by.axes_only || ax_config_given(c, name);
}

/* Fills the plan that candidates begin with: all that does not depend on the layout. */
static ax_status make_base(struct ax_search *s)
{
    const ax_train_run *run = s->run;
    ax_train_plan *p = &s->base;
    AX_TRY(ax_comm_alone_create(s->by.ranks, &s->world));
    p->config = run->config;
    AX_TRY(ax_train_parallel(run->config, &p->parallel));
    p->scratch = s->by.machine->device.scratch;
    p->ranks_per_node = s->by.machine->ranks_per_node;
    p->compute = ax_config_dtype(run->config->train.precision);
    p->ranks = s->world;
    AX_TRY(ax_grid_order_parse(run->config->grid.order, &p->order));
    AX_TRY(ax_threads_share(s->world, (int)run->config->threads, &p->threads));
    AX_TRY(ax_train_plan_step(run, p));
    if (!p->options.seq_len)
        p->options.seq_len = ax_min(ax_model_config_positions(&run->inputs.model), AX_ROW_MOST);
    if (strcmp(run->config->device, "cuda") == 0 && !ax_config_given(run->config, "offload.optimizer") &&
        !ax_config_given(run->config, "offload.update"))
        p->parallel.offload.update = AX_OFFLOAD_ON_DEVICE; /* an update on the host has no price */
    s->offloads = p->parallel.offload.update == AX_OFFLOAD_ON_DEVICE;
    s->alike = are_alike(run);
    for (int key = 0; key < AX_SEARCH_KEYS; key++)
        s->fixed[key] = is_fixed(s, (ax_search_key)key);
    AX_TRY(ax_ctx_find_limit(&s->limit));
    if (!s->limit || s->limit > (size_t)s->by.machine->device.memory)
        s->limit = (size_t)s->by.machine->device.memory;
    return s->fixed[AX_SEARCH_OFFLOAD] ? ax_train_check_priced(p) : AX_OK;
}

/* Searches. */
static ax_status search(struct ax_search *s)
{
    enum { VALUES = 4096 }; /* more than any key but the grid has */
    tables t = {.memo = {.n = 0}};
    AX_TRY(ax_machine_check_ranks(s->by.machine, s->by.ranks));
    AX_TRY(make_base(s));
    AX_TRY(ax_machine_check_times(s->by.machine, s->base.compute, s->by.ranks));
    AX_TRY(search_list_grids(s));
    s->values_most = (int)ax_max(s->n_grids, VALUES);
    AX_TRY(ax_calloc((size_t)s->values_most, sizeof *t.mine.of, &t.mine.of));
    ax_status status = ax_calloc((size_t)s->values_most, sizeof *t.other.of, &t.other.of);
    const bool hopeless = least_share(s, s->by.ranks) > (double)s->limit;
    if (status == AX_OK && !hopeless)
        status = rank(s, &t);
    if (status == AX_OK && !s->n)
        status = hopeless ? fail_weights(s, &t) : fail_small(s, &t);
    free(t.mine.of);
    free(t.other.of);
    free(t.memo.of);
    return status;
}

ax_status ax_train_search(ax_train_run *run, const ax_search_options *options, ax_search **out)
{
    AX_TRY(ax_calloc(1, sizeof **out, out));
    ax_search *s = *out;
    s->run = run;
    s->by = *options;
    s->ranks = options->ranks;
    ax_status status = search(s);
    if (status != AX_OK)
        ax_search_destroy(out);
    return status;
}

ax_status ax_search_create(ax_config *config, const ax_search_options *options, ax_search **out)
{
    AX_TRY(ax_calloc(1, sizeof **out, out));
    ax_search *s = *out;
    s->own = (ax_train_run){.config = config, .purpose = AX_TRAIN_PLANS};
    s->run = &s->own;
    s->by = *options;
    s->ranks = options->ranks;
    ax_status status = ax_comm_alone_create(1, &s->own.world);
    if (status == AX_OK)
        status = ax_train_set_runtime(&s->own);
    if (status == AX_OK)
        status = ax_train_open_model(&s->own, &s->own.inputs);
    if (status == AX_OK)
        status = search(s);
    if (status != AX_OK)
        ax_search_destroy(out);
    return status;
}

void ax_search_destroy(ax_search **search)
{
    if (!*search)
        return;
    ax_search *s = *search;
    ax_comm_destroy(&s->world);
    ax_inputs_fini(&s->own.inputs);
    ax_comm_destroy(&s->own.world);
    free(s->grid);
    free(s->best);
    free(s);
    *search = NULL;
}

int ax_search_count(const ax_search *s) { return s->n; }
const ax_candidate *ax_search_get(const ax_search *s, int i) { return &s->best[i]; }
int64_t ax_search_ranked(const ax_search *s) { return s->candidates; }
int64_t ax_search_replays(const ax_search *s) { return s->replays; }
