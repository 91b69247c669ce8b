/* Messages between ranks that are threads. The side (sender or receiver) that calls first adds its call to
 * the list world->open. The other side finds this call in the list and copies the data. Both sides hold the
 * world's lock. A send whose data a device still copies to the host is in the list world->unready first.
 * Every rank that waits for anything checks this list regularly; a rank that finds a copy complete does the
 * sender's part. Read threads.h first. */
#include "comm/threads.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ax_status rank_threads_messages_create(world *w)
{
    AX_TRY(ax_calloc((size_t)w->size, sizeof *w->waiter, &w->waiter));
    for (int r = 0; r < w->size; r++)
        pthread_cond_init(&w->waiter[r].woken_up, NULL);
    return AX_OK;
}

void rank_threads_messages_destroy(world *w)
{
    for (int r = 0; r < w->size && w->waiter; r++)
        pthread_cond_destroy(&w->waiter[r].woken_up);
    free(w->waiter);
    for (pending *m = w->made, *next; m; m = next) {
        next = m->made;
        free(m);
    }
}

/* Describes a call in `out`: "receive of activation of micro-batch 3 of step 7, bf16 [4, 256, 768] from rank
 * 1". */
static void describe(const pending *m, char *out, size_t size)
{
    char text[AX_MESSAGE_TEXT];
    snprintf(out, size, "%s of %s %s rank %d", m->args.sends ? "send" : "receive",
             ax_message_describe(&m->args.message, text), m->args.sends ? "to" : "from",
             m->g->world_rank[m->args.peer]);
}

void rank_threads_list_messages(const world *w, char *text, size_t size, const char *comma)
{
    char what[AX_MESSAGE_TEXT + 48];
    for (const pending *m = w->open; m; m = m->next)
        if (m->waiter) {
            describe(m, what, sizeof what);
            ax_text_add(text, size, "%s rank %d in %s", comma, m->g->world_rank[m->rank], what);
            comma = ",";
        }
}

/* ---- waiting (the caller holds the lock) --------------------------------------------------------- */

/* Completes a message. A rank that waits for the message no longer counts as blocked, even before it wakes,
 * so that no false deadlock is found. */
static void complete(world *w, pending *m)
{
    m->done = true;
    if (!m->waiter || m->waiter->woken)
        return;
    m->waiter->woken = true;
    w->blocked--;
    pthread_cond_signal(&m->waiter->woken_up);
}

static bool any_done(pending *const *m, int n)
{
    bool done = false;
    for (int i = 0; i < n; i++)
        done = done || m[i]->done;
    return done;
}

static void sleep_until_any_done(world *w, pending *const *m, int n)
{
    waiter *me = &w->waiter[m[0]->g->world_rank[m[0]->rank]];
    if (w->failed || any_done(m, n))
        return;
    for (int i = 0; i < n; i++)
        m[i]->waiter = me;
    me->woken = false;
    w->blocked++;
    rank_threads_find_deadlock(w);
    while (!me->woken && !w->failed)
        rank_threads_sleep(w, &me->woken_up);
    for (int i = 0; i < n; i++)
        m[i]->waiter = NULL;
}

static ax_status wait_any(world *w, pending *const *m, int n)
{
    AX_ASSERT(n > 0);
    sleep_until_any_done(w, m, n);
    return any_done(m, n) ? AX_OK : ax_fail(AX_ERR_COMM, "%s", w->message);
}

static ax_status message_wait(ax_work *work)
{
    pending *m = (pending *)work;
    world *w = m->g->world;
    pthread_mutex_lock(&w->lock);
    ax_status status = wait_any(w, &m, 1);
    if (status == AX_OK) { /* after an error the handle is not reused, because it may still be in the list
                              world->open */
        m->next = w->unused;
        w->unused = m;
    }
    pthread_mutex_unlock(&w->lock);
    return status;
}

static bool message_done(const ax_work *work)
{
    const pending *m = (const pending *)work;
    pthread_mutex_lock(&m->g->world->lock);
    rank_threads_look_for_data(m->g->world);
    bool done = m->done || m->g->world->failed; /* if the world has failed, ax_wait returns the error */
    pthread_mutex_unlock(&m->g->world->lock);
    return done;
}

ax_status rank_threads_wait_some(ax_comm *comm, ax_work *const works[], int n)
{
    world *w = ((group *)comm->impl)->world;
    pending *m[AX_WAIT_SOME];
    for (int i = 0; i < n; i++)
        m[i] = (pending *)works[i];
    pthread_mutex_lock(&w->lock);
    ax_status status = wait_any(w, m, n);
    pthread_mutex_unlock(&w->lock);
    return status;
}

/* ---- matching (the caller holds the lock) -------------------------------------------------------- */

/* Removes the oldest counterpart of m (the receive of a send, or the send of a receive) from the list
 * world->open and returns it. Returns NULL if there is none. */
static pending *take_other_side(world *w, const pending *m)
{
    for (pending **link = &w->open; *link; link = &(*link)->next) {
        pending *o = *link;
        if (o->g != m->g || o->args.sends == m->args.sends || o->rank != m->args.peer ||
            o->args.peer != m->rank || o->args.message.kind != m->args.message.kind)
            continue;
        *link = o->next;
        return o;
    }
    return NULL;
}

static void append(pending **list, pending *m)
{
    while (*list)
        list = &(*list)->next;
    m->next = NULL;
    *list = m;
}

static void copy_data(world *w, pending *send, pending *recv)
{
    if (!ax_message_equal(&send->args.message, &recv->args.message)) {
        char a[AX_MESSAGE_TEXT], b[AX_MESSAGE_TEXT], text[2 * AX_MESSAGE_TEXT + 160];
        snprintf(text, sizeof text,
                 "rank %d sent the %s, where rank %d receives the %s: both ranks must call ax_send and "
                 "ax_recv in the same order",
                 send->g->world_rank[send->rank], ax_message_describe(&send->args.message, a),
                 recv->g->world_rank[recv->rank], ax_message_describe(&recv->args.message, b));
        rank_threads_fail(w, text);
        return;
    }
    if (send->args.bytes)
        memcpy(recv->args.data, send->args.data, send->args.bytes);
    recv->work.note = send->args.message.note;
    complete(w, send);
    complete(w, recv);
}

static void match(world *w, pending *m)
{
    pending *other = take_other_side(w, m);
    if (!other)
        append(&w->open, m);
    else
        copy_data(w, m->args.sends ? m : other, m->args.sends ? other : m);
}

/* Returns true if an earlier send of the same kind from the same rank to the same rank is still in the list
 * world->unready. */
static bool is_behind(const world *w, const pending *m)
{
    const pending *o = w->unready;
    while (o != m && (o->g != m->g || o->rank != m->rank || o->args.peer != m->args.peer ||
                      o->args.message.kind != m->args.message.kind))
        o = o->next;
    return o != m;
}

/* Returns true if no device copies the data of a send any more. Fails the world if the device fails. */
static bool has_data(world *w, const pending *m)
{
    bool yes = true;
    if (!m->args.ready || m->args.ready(m->args.user, &yes) == AX_OK)
        return yes;
    char text[900];
    snprintf(text, sizeof text, "rank %d failed: %s", m->g->world_rank[m->rank], ax_error_message());
    rank_threads_fail(w, text);
    return false;
}

void rank_threads_look_for_data(world *w)
{
    for (pending **link = &w->unready; *link && !w->failed;) {
        pending *m = *link;
        if (is_behind(w, m) || !has_data(w, m)) {
            link = &m->next;
            continue;
        }
        *link = m->next;
        match(w, m);
    }
}

static ax_status new_handle(world *w, pending **out)
{
    *out = w->unused;
    if (*out) {
        pending *made = (*out)->made;
        w->unused = (*out)->next;
        **out = (pending){.made = made};
        return AX_OK;
    }
    AX_TRY(ax_calloc(1, sizeof **out, out));
    (*out)->made = w->made;
    w->made = *out;
    return AX_OK;
}

static ax_status call(group *g, int rank, const ax_message_args *args, pending **out)
{
    world *w = g->world;
    AX_CHECK(!w->failed, AX_ERR_COMM, "%s", w->message);
    AX_TRY(new_handle(w, out));
    pending *m = *out;
    m->work = (ax_work){.wait = message_wait, .done = message_done};
    m->g = g;
    m->rank = rank;
    m->args = *args;
    if (!args->sends) {
        match(w, m);
        return AX_OK;
    }
    append(&w->unready, m);
    rank_threads_look_for_data(w);
    if (w->unready) /* from now on, ranks that sleep must check whether the data have been copied */
        rank_threads_wake_all(w);
    return AX_OK;
}

ax_status rank_threads_message(ax_comm *comm, const ax_message_args *args, ax_work **work)
{
    group *g = comm->impl;
    pending *m;
    pthread_mutex_lock(&g->world->lock);
    ax_status status = call(g, comm->rank, args, &m);
    pthread_mutex_unlock(&g->world->lock);
    AX_TRY(status);
    *work = &m->work;
    return AX_OK;
}
