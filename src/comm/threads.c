/* Ranks as threads of one process: the communicator for tests and sanitizers.
 *
 * A collective has three parts. First, each rank posts its arguments (in group->slot[rank]) and waits. The
 * last rank to post compares the arguments of all ranks and releases the waiting ranks, or fails the whole
 * world. Second, every rank moves its share of the data directly between the buffers of the ranks. Third, all
 * ranks wait once more, so that no buffer is reused while another rank accesses it. (A barrier has the first
 * part only.) Waiting ranks sleep instead of spinning, because there are usually more ranks than cores. Data
 * are moved without the world's lock. All accesses are ordered nevertheless, because each rank takes the lock
 * after it has posted, and holds the lock when it is released.
 *
 * Messages between two ranks are in threads_message.c.
 *
 * A deadlock is detected at once: it exists if every rank is blocked or has returned, and no device still
 * copies the data of a send. */
#include "comm/threads.h"

#include "comm/message.h"
#include "comm/reduce.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- groups (the caller holds the world's lock) -------------------------------------------------- */

static void group_free(group *g)
{
    if (!g)
        return;
    if (g->link) {
        *g->link = g->next;
        if (g->next)
            g->next->link = g->link;
    }
    pthread_cond_destroy(&g->released);
    free(g->world_rank);
    free(g->slot);
    free(g->src);
    free(g->dst);
    free(g);
}

static ax_status group_create(world *w, int size, group **out)
{
    *out = NULL;
    group *g;
    AX_TRY(ax_calloc(1, sizeof *g, &g));
    pthread_cond_init(&g->released, NULL);
    g->world = w;
    g->size = g->members = size;
    ax_status status = ax_calloc((size_t)size, sizeof *g->slot, &g->slot);
    if (status == AX_OK)
        status = ax_calloc((size_t)size, sizeof *g->world_rank, &g->world_rank);
    if (status == AX_OK)
        status = ax_calloc((size_t)size * (size_t)size, sizeof *g->src, &g->src);
    if (status == AX_OK)
        status = ax_calloc((size_t)size * (size_t)size, sizeof *g->dst, &g->dst);
    if (status != AX_OK) {
        group_free(g);
        return status;
    }
    for (int r = 0; r < size; r++) {
        g->slot[r].src = g->src + (size_t)r * (size_t)size;
        g->slot[r].dst = g->dst + (size_t)r * (size_t)size;
    }
    g->next = w->groups;
    g->link = &w->groups;
    if (g->next)
        g->next->link = &g->next;
    w->groups = g;
    *out = g;
    return AX_OK;
}

/* ---- failing and sleeping ------------------------------------------------------------------------ */

void rank_threads_wake_all(world *w)
{
    for (group *g = w->groups; g; g = g->next)
        pthread_cond_broadcast(&g->released);
    for (int r = 0; r < w->size; r++)
        pthread_cond_broadcast(&w->waiter[r].woken_up);
}

void rank_threads_fail(world *w, const char *message)
{
    if (w->failed)
        return;
    w->failed = true;
    snprintf(w->message, sizeof w->message, "%s", message);
    rank_threads_wake_all(w);
}

static void describe(const slot *s, char *out, size_t size)
{
    if (s->setup)
        snprintf(out, size, "%s", s->setup);
    else
        ax_coll_describe(&s->args, out, size);
}

void rank_threads_find_deadlock(world *w)
{
    if (w->failed || w->unready || !w->blocked || w->blocked + w->returned < w->size)
        return;
    char text[900], what[96];
    snprintf(text, sizeof text, "the ranks wait for one another:");
    const char *comma = "";
    for (const group *g = w->groups; g; g = g->next)
        for (int r = 0; r < g->size; r++)
            if (g->slot[r].waiting) {
                describe(&g->slot[r], what, sizeof what);
                ax_text_add(text, sizeof text, "%s rank %d in %s of %d ranks", comma, g->world_rank[r], what,
                            g->size);
                comma = ",";
            }
    rank_threads_list_messages(w, text, sizeof text, comma);
    if (w->returned)
        ax_text_add(text, sizeof text, ", and %d of %d ranks have returned", w->returned, w->size);
    rank_threads_fail(w, text);
}

void rank_threads_sleep(world *w, pthread_cond_t *woken)
{
    enum { PAUSE = 50000 }; /* nanoseconds between two calls of rank_threads_look_for_data */
    struct timespec until;
    if (!w->unready) {
        pthread_cond_wait(woken, &w->lock);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += PAUSE;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_cond_timedwait(woken, &w->lock, &until);
    rank_threads_look_for_data(w);
    rank_threads_find_deadlock(w);
}

static bool slots_agree(const slot *a, const slot *b)
{
    if (a->setup || b->setup)
        return a->setup == b->setup;
    const ax_coll_args *p = &a->args, *q = &b->args;
    return p->coll == q->coll && p->count == q->count && p->dtype == q->dtype && p->op == q->op &&
           p->root == q->root;
}

static void check_agreement(group *g)
{
    for (int r = 1; r < g->size; r++) {
        if (slots_agree(&g->slot[0], &g->slot[r]))
            continue;
        char one[96], other[96], text[300];
        describe(&g->slot[r], one, sizeof one);
        describe(&g->slot[0], other, sizeof other);
        snprintf(
            text, sizeof text,
            "rank %d called %s where rank %d called %s: all ranks must make the same calls in the same order",
            g->world_rank[r], one, g->world_rank[0], other);
        rank_threads_fail(g->world, text);
        return;
    }
}

/* ---- waiting for all ranks of a group ------------------------------------------------------------ */

/* Creates the groups of a split. Runs on the rank that calls the split last. */
static ax_status make_subgroups(group *g)
{
    for (int r = 0; r < g->size; r++) {
        slot *mine = &g->slot[r];
        int size = 0, rank = 0, first = g->size;
        for (int q = 0; q < g->size; q++) {
            const slot *other = &g->slot[q];
            if (other->color != mine->color)
                continue;
            size++;
            rank += other->key < mine->key || (other->key == mine->key && q < r);
            first = q < first ? q : first;
        }
        if (mine->color < 0)
            continue;
        if (first == r)
            AX_TRY(group_create(g->world, size, &mine->sub));
        mine->sub = g->slot[first].sub;
        mine->sub_rank = rank;
        mine->sub->world_rank[rank] = g->world_rank[r];
    }
    return AX_OK;
}

typedef void last_arrival_fn(group *g);

static void finish_split(group *g)
{
    check_agreement(g);
    if (!g->world->failed && make_subgroups(g) != AX_OK)
        rank_threads_fail(g->world, ax_error_message());
}

static void release_all(group *g)
{
    g->arrived = 0;
    g->round++;
    /* The released ranks no longer count as blocked, even before they wake, so that no false deadlock is
     * found. */
    g->world->blocked -= g->size - 1;
    pthread_cond_broadcast(&g->released);
}

static void sleep_until_released(group *g, slot *mine, bool even_if_failed)
{
    world *w = g->world;
    uint64_t round = g->round;
    mine->waiting = true;
    w->blocked++;
    rank_threads_find_deadlock(w);
    while (g->round == round && (even_if_failed || !w->failed))
        rank_threads_sleep(w, &g->released);
    mine->waiting = false;
}

/* Waits until all ranks of the group have posted the arguments of their calls. The last rank to post runs
 * `at_last` and then releases the waiting ranks, unless at_last made the world fail. Even if the world fails
 * meanwhile, either all ranks of the group are released or none. Otherwise a released rank would access
 * buffers of ranks whose calls have already returned. */
static ax_status wait_all_posted(group *g, int rank, last_arrival_fn *at_last)
{
    world *w = g->world;
    pthread_mutex_lock(&w->lock);
    uint64_t round = g->round;
    if (!w->failed && ++g->arrived == g->size) {
        at_last(g);
        if (!w->failed)
            release_all(g);
    } else if (!w->failed) {
        sleep_until_released(g, &g->slot[rank], false);
    }
    ax_status status = g->round == round ? ax_fail(AX_ERR_COMM, "%s", w->message) : AX_OK;
    pthread_mutex_unlock(&w->lock);
    return status;
}

/* Waits until all ranks of the group have moved their data. Every rank calls this function, because moving
 * data cannot fail or block. */
static void wait_all_moved(group *g, int rank)
{
    pthread_mutex_lock(&g->world->lock);
    if (++g->arrived == g->size)
        release_all(g);
    else
        sleep_until_released(g, &g->slot[rank], true);
    pthread_mutex_unlock(&g->world->lock);
}

/* ---- moving -------------------------------------------------------------------------------------- */

/* Reduces elements [first, first + count) of all send buffers into `out`; if out is NULL, into every rank's
 * receive buffer at `first`. */
static void reduce(group *g, int rank, int64_t first, int64_t count, void *out)
{
    slot *mine = &g->slot[rank];
    const ax_coll_args *a = &mine->args;
    size_t offset = (size_t)first * ax_dtype_size(a->dtype);
    for (int r = 0; r < g->size; r++) {
        mine->src[r] = (const char *)g->slot[r].args.send + offset;
        mine->dst[r] = (char *)g->slot[r].args.recv + offset;
    }
    if (out)
        mine->dst[0] = out;
    if (count > 0)
        ax_reduce_for(a->dtype, a->op)(g->size, mine->src, out ? 1 : g->size, mine->dst, count);
}

static void copy(void *to, const void *from, size_t bytes)
{
    if (to != from && bytes)
        memcpy(to, from, bytes);
}

/* Moves this rank's share of a collective's data, after the last rank to post its arguments has found that
 * all calls agree. */
static void move_data(group *g, int rank)
{
    const ax_coll_args *a = &g->slot[rank].args;
    size_t chunk = (size_t)a->count * ax_dtype_size(a->dtype);
    char *recv = a->recv;
    switch (a->coll) {
    case AX_ALL_REDUCE: {
        /* This rank reduces one slice for all ranks. The slices are disjoint, so all ranks write in place. */
        int64_t lo = a->count * rank / g->size, hi = a->count * (rank + 1) / g->size;
        reduce(g, rank, lo, hi - lo, NULL);
        break;
    }
    case AX_REDUCE_SCATTER:
        reduce(g, rank, a->count * rank, a->count, recv);
        break;
    case AX_ALL_GATHER:
        for (int r = 0; r < g->size; r++)
            copy(recv + (size_t)r * chunk, g->slot[r].args.send, chunk);
        break;
    case AX_ALL_TO_ALL:
        for (int r = 0; r < g->size; r++)
            copy(recv + (size_t)r * chunk, (const char *)g->slot[r].args.send + (size_t)rank * chunk, chunk);
        break;
    case AX_BROADCAST:
        copy(recv, g->slot[a->root].args.send, chunk);
        break;
    case AX_BARRIER:
        break;
    }
}

/* ---- the backend's table ------------------------------------------------------------------------- */

static ax_status threads_run(ax_comm *comm, ax_stream *stream, const ax_coll_args *args, ax_work **work)
{
    (void)stream;
    (void)work;
    group *g = comm->impl;
    slot *mine = &g->slot[comm->rank];
    mine->args = *args;
    mine->setup = NULL;
    AX_TRY(wait_all_posted(g, comm->rank, check_agreement));
    if (args->coll == AX_BARRIER)
        return AX_OK;
    move_data(g, comm->rank);
    wait_all_moved(g, comm->rank);
    return AX_OK;
}

static const ax_comm_ops threads_ops;

static ax_status threads_split(ax_comm *comm, int color, int key, ax_comm **out)
{
    group *g = comm->impl;
    ax_comm *sub;
    AX_TRY(ax_calloc(1, sizeof *sub, &sub));
    slot *mine = &g->slot[comm->rank];
    mine->setup = "split";
    mine->color = color;
    mine->key = key;
    mine->sub = NULL;
    ax_status status = wait_all_posted(g, comm->rank, finish_split);
    if (status != AX_OK || !mine->sub) {
        free(sub);
        return status;
    }
    AX_ASSERT(mine->sub); /* make_subgroups has given a group to every rank with a colour */
    *sub = (ax_comm){.ops = &threads_ops, .rank = mine->sub_rank, .size = mine->sub->size, .impl = mine->sub};
    *out = sub;
    return AX_OK;
}

static void end_forming(group *g) { g->forming = false; }

/* Finds the group of the ranks `world_rank` that another of these ranks has begun to create. If there is
 * none, begins to create the group. The caller holds the lock. */
static ax_status find_forming(world *w, const int *world_rank, int n, group **out)
{
    size_t bytes = (size_t)n * sizeof *world_rank;
    for (*out = w->groups; *out; *out = (*out)->next)
        if ((*out)->forming && (*out)->size == n && !memcmp((*out)->world_rank, world_rank, bytes))
            return AX_OK;
    AX_TRY(group_create(w, n, out));
    memcpy((*out)->world_rank, world_rank, bytes);
    (*out)->forming = true;
    return AX_OK;
}

/* Joins the group of the ranks `world_rank`, which is being created, as its rank `rank`. Waits until all
 * ranks of the group have joined. */
static ax_status join_forming(world *w, const int *world_rank, int n, int rank, group **out)
{
    pthread_mutex_lock(&w->lock);
    ax_status status = find_forming(w, world_rank, n, out);
    if (status == AX_OK)
        (*out)->slot[rank].setup = "group creation";
    pthread_mutex_unlock(&w->lock);
    return status == AX_OK ? wait_all_posted(*out, rank, end_forming) : status;
}

static ax_status threads_group(ax_comm *comm, const int *ranks, int n, ax_comm **out)
{
    group *parent = comm->impl, *made;
    ax_comm *sub = NULL;
    int rank = 0, *world_rank;
    if (n == 1)
        return ax_comm_self_create(out);
    AX_TRY(ax_calloc((size_t)n, sizeof *world_rank, &world_rank));
    for (int i = 0; i < n; i++) {
        world_rank[i] = parent->world_rank[ranks[i]];
        rank = ranks[i] == comm->rank ? i : rank;
    }
    ax_status status = ax_calloc(1, sizeof *sub, &sub);
    if (status == AX_OK)
        status = join_forming(parent->world, world_rank, n, rank, &made);
    free(world_rank);
    if (status != AX_OK) {
        free(sub);
        return status;
    }
    *sub = (ax_comm){.ops = &threads_ops, .rank = rank, .size = n, .impl = made};
    *out = sub;
    return AX_OK;
}

static void abort_as_rank(world *w, int rank, const char *why)
{
    char text[1024];
    snprintf(text, sizeof text, "rank %d %s", rank, why);
    pthread_mutex_lock(&w->lock);
    if (w->first_failed < 0)
        w->first_failed = rank;
    rank_threads_fail(w, text);
    pthread_mutex_unlock(&w->lock);
}

static void threads_abort(ax_comm *comm, ax_status status, const char *message)
{
    (void)status;
    group *g = comm->impl;
    char why[900] = "aborted the communicator";
    if (message)
        snprintf(why, sizeof why, "failed: %s", message);
    abort_as_rank(g->world, g->world_rank[comm->rank], why);
}

static const char *threads_failed(ax_comm *comm)
{
    world *w = ((group *)comm->impl)->world;
    pthread_mutex_lock(&w->lock);
    const char *why = w->failed ? w->message : NULL;
    pthread_mutex_unlock(&w->lock);
    return why;
}

static void threads_destroy(ax_comm *comm)
{
    group *g = comm->impl;
    world *w = g->world;
    pthread_mutex_lock(&w->lock);
    if (--g->members == 0)
        group_free(g);
    pthread_mutex_unlock(&w->lock);
    free(comm);
}

static const ax_comm_ops threads_ops = {.name = "threads",
                                        .run = threads_run,
                                        .split = threads_split,
                                        .group = threads_group,
                                        .abort = threads_abort,
                                        .failed = threads_failed,
                                        .message = rank_threads_message,
                                        .wait_some = rank_threads_wait_some,
                                        .destroy = threads_destroy};

/* ---- running ------------------------------------------------------------------------------------- */

typedef struct rank_thread {
    pthread_t thread;
    ax_comm comm;
    ax_rank_fn *fn;
    void *arg;
    ax_status status;
    bool shared; /* all ranks return the same failure (ax_error_is_shared) */
    char message[2048];
} rank_thread;

static void *rank_main(void *arg)
{
    rank_thread *t = arg;
    group *g = t->comm.impl;
    world *w = g->world;
    ax_log_set_rank(t->comm.rank, t->comm.size);
    t->status = t->fn(&t->comm, t->arg);
    if (t->status != AX_OK) {
        char why[900];
        t->shared = ax_error_is_shared();
        snprintf(t->message, sizeof t->message, "%s", ax_error_message());
        snprintf(why, sizeof why, "failed: %s", t->message);
        abort_as_rank(w, t->comm.rank, why);
    }
    pthread_mutex_lock(&w->lock);
    w->returned++;
    rank_threads_find_deadlock(w);
    pthread_mutex_unlock(&w->lock);
    return NULL;
}

/* Returns the failure of w->first_failed, the rank that failed or aborted first. If there is no such rank, or
 * if that rank returned AX_OK after its abort, returns the failure of the lowest rank that failed. */
static ax_status first_failure(const world *w, const rank_thread *t)
{
    int first = w->first_failed >= 0 && t[w->first_failed].status != AX_OK ? w->first_failed : -1;
    for (int r = 0; r < w->size && first < 0; r++)
        if (t[r].status != AX_OK)
            first = r;
    if (first < 0)
        return AX_OK;
    return t[first].shared ? ax_fail(t[first].status, "%s", t[first].message)
                           : ax_fail(t[first].status, "rank %d: %s", first, t[first].message);
}

static ax_status run_threads(world *w, group *g, rank_thread *t, ax_rank_fn *fn, void *arg)
{
    int started = 0, error = 0;
    for (int r = 0; r < w->size; r++) {
        g->world_rank[r] = r;
        t[r].comm = (ax_comm){.ops = &threads_ops, .rank = r, .size = w->size, .impl = g};
        t[r].fn = fn;
        t[r].arg = arg;
    }
    while (started < w->size && !error) {
        error = ax_thread_start(&t[started].thread, rank_main, &t[started]);
        started += !error;
    }
    if (error)
        abort_as_rank(w, started, "could not be started");
    for (int r = 0; r < started; r++)
        pthread_join(t[r].thread, NULL);
    for (int r = 0; r < w->size; r++)
        free(t[r].comm.staging);
    AX_CHECK(!error, AX_ERR_MEMORY,
             "cannot start thread %d of %d, one for each rank: %s; use fewer ranks, or raise the limit of "
             "processes (ulimit -u)",
             started + 1, w->size, strerror(error));
    return first_failure(w, t);
}

ax_status ax_comm_threads_run(int size, ax_rank_fn *fn, void *arg)
{
    AX_CHECK(size >= 1, AX_ERR_USAGE, "ax_comm_threads_run: size is %d; a world needs at least one rank",
             size);
    world w = {.size = size, .first_failed = -1};
    pthread_mutex_init(&w.lock, NULL);
    group *g = NULL;
    rank_thread *t = NULL;
    ax_status status = rank_threads_messages_create(&w);
    if (status == AX_OK)
        status = group_create(&w, size, &g);
    if (status == AX_OK)
        status = ax_calloc((size_t)size, sizeof *t, &t);
    if (status == AX_OK)
        status = run_threads(&w, g, t, fn, arg);
    free(t);
    /* Frees the world's own group, and the groups that ranks had not destroyed when they failed. */
    for (group *next; w.groups; w.groups = next) {
        next = w.groups->next;
        w.groups->link = NULL;
        group_free(w.groups);
    }
    rank_threads_messages_destroy(&w);
    pthread_mutex_destroy(&w.lock);
    return status;
}
