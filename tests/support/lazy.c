/* See lazy.h. All communicators of a rank share one queue, as they would share a communication thread. */
#include "support/lazy.h"

#include "support/ranks.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct queue queue;

typedef struct operation {
    ax_work work;
    queue *queue;
    struct operation *next;
    ax_comm *inner;
    ax_stream *stream;
    ax_coll_args args;
    char *sent, *received; /* copies of the data to send and of the result; `received` is NULL if the result
                              replaces `sent` */
    size_t send_bytes, recv_bytes;
    bool done;
    ax_status status;
} operation;

struct queue {
    operation *first, **end;
    int users, length, *outstanding;
    bool late;       /* lazy_create_late */
    uint64_t random; /* the state of random_below */
    int pause;       /* the longest pause, in microseconds */
};

typedef struct lazy {
    ax_comm *inner;
    queue *queue;
} lazy;

/* Returns the offset of the send buffer in the receive buffer for an all-gather in place, otherwise
 * recv_bytes. */
static size_t own_part(const operation *o)
{
    size_t at = (size_t)((uintptr_t)o->args.send - (uintptr_t)o->args.recv);
    return o->args.coll == AX_ALL_GATHER && at < o->recv_bytes ? at : o->recv_bytes;
}

static ax_status check_untouched(const operation *o)
{
    const char *recv = o->args.recv;
    size_t own = own_part(o);
    bool same = o->args.send == recv || !o->send_bytes || !memcmp(o->args.send, o->sent, o->send_bytes);
    AX_CHECK(same || own < o->recv_bytes, AX_ERR_INTERNAL,
             "%s: the send buffer was changed before the operation was awaited", ax_coll_name(o->args.coll));
    for (size_t i = 0; i < o->recv_bytes; i++)
        AX_CHECK((i >= own && i < own + o->send_bytes) || recv[i] == (char)0xff, AX_ERR_INTERNAL,
                 "%s: the receive buffer was written before the operation was awaited",
                 ax_coll_name(o->args.coll));
    return AX_OK;
}

/* Runs the operation on private buffers, because other operations and other ranks must not depend on when the
 * caller waits. */
static ax_status perform(operation *o)
{
    ax_work *work = NULL;
    ax_coll_args args = o->args;
    args.send = o->sent;
    args.recv = o->args.coll == AX_ALL_REDUCE || o->args.coll == AX_BROADCAST ? o->sent : o->received;
    AX_TRY(o->inner->ops->run(o->inner, o->stream, &args, &work));
    return work ? work->wait(work) : AX_OK;
}

static void operation_free(operation *o)
{
    free(o->sent);
    free(o->received);
    free(o);
}

/* Runs all queued operations up to `work`, and copies the result of `work` to the caller's buffer. */
static ax_status lazy_wait(ax_work *work)
{
    operation *mine = (operation *)work;
    queue *q = mine->queue;
    while (!mine->done) {
        operation *o = q->first;
        q->first = o->next;
        q->length--;
        if (!q->first)
            q->end = &q->first;
        o->done = true;
        o->status = perform(o);
    }
    ax_status status = mine->status == AX_OK ? check_untouched(mine) : mine->status;
    if (status == AX_OK && mine->recv_bytes)
        memcpy(mine->args.recv, mine->received == NULL ? mine->sent : mine->received, mine->recv_bytes);
    operation_free(mine);
    return status;
}

static ax_status lazy_run(ax_comm *comm, ax_stream *stream, const ax_coll_args *args, ax_work **work)
{
    lazy *l = comm->impl;
    queue *q = l->queue;
    operation *o;
    AX_TRY(ax_calloc(1, sizeof *o, &o));
    size_t part = (size_t)args->count * ax_dtype_size(args->dtype), whole = part * (size_t)comm->size;
    bool gathers = args->coll == AX_ALL_GATHER, scatters = args->coll == AX_REDUCE_SCATTER,
         all = args->coll == AX_ALL_TO_ALL, root = args->coll == AX_BROADCAST && comm->rank == args->root;
    *o = (operation){.work = {.wait = lazy_wait},
                     .queue = q,
                     .inner = l->inner,
                     .stream = stream,
                     .args = *args,
                     .send_bytes = scatters || all ? whole : part,
                     .recv_bytes = root             ? 0
                                   : gathers || all ? whole
                                                    : part};
    AX_TRY(ax_calloc(o->send_bytes + 1, 1, &o->sent));
    if (gathers || scatters || all)
        AX_TRY(ax_calloc(o->recv_bytes + 1, 1, &o->received));
    if (o->send_bytes)
        memcpy(o->sent, args->send, o->send_bytes);
    if (o->recv_bytes)
        memset(args->recv, 0xff, o->recv_bytes);
    if (own_part(o) < o->recv_bytes)
        memcpy((void *)args->send, o->sent, o->send_bytes);
    *q->end = o;
    q->end = &o->next;
    q->length++;
    if (q->outstanding && q->length > *q->outstanding)
        *q->outstanding = q->length;
    if (args->coll == AX_BARRIER)
        return lazy_wait(&o->work);
    *work = &o->work;
    return AX_OK;
}

/* ---- messages ------------------------------------------------------------------------------------ */

/* A message on a private buffer. Received data are copied to the caller's buffer when the caller waits for
 * the message. */
typedef struct letter {
    ax_work work;
    queue *queue;
    ax_work *inner;
    int polls; /* number of polls after its arrival in which the message still seems not to have arrived */
    ax_message_args args;
    char *copy;
} letter;

static ax_status check_message(const letter *m)
{
    const char *data = m->args.data;
    if (m->args.sends)
        AX_CHECK(!m->args.bytes || !memcmp(data, m->copy, m->args.bytes), AX_ERR_INTERNAL,
                 "message: the send buffer was changed before the message was awaited");
    for (size_t i = 0; i < m->args.bytes && !m->args.sends; i++)
        AX_CHECK(data[i] == (char)0xff, AX_ERR_INTERNAL,
                 "message: the receive buffer was written before the message was awaited");
    return AX_OK;
}

/* Returns a random number of at most `most`; 0 if messages are not late. */
static int draw(queue *q, int most) { return q->late ? random_below(&q->random, most + 1) : 0; }

static void pause_if_late(queue *q)
{
    struct timespec t = {.tv_nsec = 1000L * draw(q, q->pause)};
    if (t.tv_nsec)
        nanosleep(&t, NULL);
}

static ax_status message_wait(ax_work *work)
{
    letter *m = (letter *)work;
    pause_if_late(m->queue);
    ax_status status = m->inner ? m->inner->wait(m->inner) : AX_OK;
    if (status == AX_OK)
        status = check_message(m);
    if (status == AX_OK && !m->args.sends && m->args.bytes)
        memcpy(m->args.data, m->copy, m->args.bytes);
    free(m->copy);
    free(m);
    return status;
}

static bool message_done(const ax_work *work)
{
    letter *m = (letter *)(uintptr_t)work;
    if (!ax_work_done(m->inner))
        return false;
    m->work.note = ax_work_note(m->inner);
    return m->polls-- <= 0;
}

static ax_status lazy_message(ax_comm *comm, const ax_message_args *args, ax_work **work)
{
    ax_comm *inner = ((lazy *)comm->impl)->inner;
    queue *q = ((lazy *)comm->impl)->queue;
    letter *m;
    AX_TRY(ax_calloc(1, sizeof *m, &m));
    m->queue = q;
    m->polls = !args->sends && draw(q, 1) ? draw(q, LAZY_POLLS) : 0;
    if (args->sends)
        pause_if_late(q);
    m->work = (ax_work){.wait = message_wait, .done = message_done};
    m->args = *args;
    AX_TRY(ax_calloc(args->bytes + 1, 1, &m->copy));
    if (args->sends && args->bytes)
        memcpy(m->copy, args->data, args->bytes);
    else if (args->bytes)
        memset(args->data, 0xff, args->bytes);
    ax_message_args own = *args;
    own.data = m->copy;
    AX_TRY(inner->ops->message(inner, &own, &m->inner));
    *work = &m->work;
    return AX_OK;
}

/* Waits until one of the messages has arrived, then polls the messages until one of them is reported as
 * arrived (`polls`). */
static ax_status lazy_wait_some(ax_comm *comm, ax_work *const works[], int n)
{
    ax_comm *inner = ((lazy *)comm->impl)->inner;
    ax_work *of[AX_WAIT_SOME];
    for (int i = 0; i < n; i++)
        of[i] = ((letter *)works[i])->inner;
    AX_TRY(inner->ops->wait_some(inner, of, n));
    for (int i = 0; !message_done(works[i]); i = (i + 1) % n)
        pause_if_late(((lazy *)comm->impl)->queue);
    return AX_OK;
}

static const ax_comm_ops lazy_ops;

static ax_status wrap(ax_comm *inner, queue *q, ax_comm **out)
{
    lazy *l;
    AX_TRY(ax_calloc(1, sizeof **out, out));
    AX_TRY(ax_calloc(1, sizeof *l, &l));
    *l = (lazy){inner, q};
    q->users++;
    **out = (ax_comm){.ops = &lazy_ops, .rank = inner->rank, .size = inner->size, .impl = l};
    return AX_OK;
}

static ax_status lazy_split(ax_comm *comm, int color, int key, ax_comm **out)
{
    lazy *l = comm->impl;
    ax_comm *inner;
    *out = NULL;
    AX_TRY(ax_comm_split(l->inner, color, key, &inner));
    return inner ? wrap(inner, l->queue, out) : AX_OK;
}

static ax_status lazy_group(ax_comm *comm, const int *ranks, int n, ax_comm **out)
{
    lazy *l = comm->impl;
    ax_comm *inner;
    if (n == 1)
        return ax_comm_self_create(out);
    AX_TRY(ax_comm_group(l->inner, ranks, n, &inner));
    return wrap(inner, l->queue, out);
}

static void lazy_abort(ax_comm *comm, ax_status status, const char *message)
{
    ax_comm_abort(((lazy *)comm->impl)->inner, status, message);
}

/* The caller owns the inner communicator of the world. The wrapper destroys only those that it split. */
static void lazy_destroy(ax_comm *comm)
{
    lazy *l = comm->impl;
    queue *q = l->queue;
    if (--q->users == 0) {
        for (operation *o = q->first, *next; o; o = next) {
            next = o->next;
            operation_free(o);
        }
        free(q);
    } else {
        ax_comm_destroy(&l->inner);
    }
    free(l);
    free(comm);
}

static const ax_comm_ops lazy_ops = {.name = "lazy",
                                     .run = lazy_run,
                                     .split = lazy_split,
                                     .group = lazy_group,
                                     .abort = lazy_abort,
                                     .message = lazy_message,
                                     .wait_some = lazy_wait_some,
                                     .destroy = lazy_destroy};

static ax_status create(ax_comm *inner, queue start, ax_comm **out)
{
    queue *q;
    AX_TRY(ax_calloc(1, sizeof *q, &q));
    *q = start;
    q->end = &q->first;
    return wrap(inner, q, out);
}

ax_status lazy_create(ax_comm *inner, int *outstanding, ax_comm **out)
{
    return create(inner, (queue){.outstanding = outstanding}, out);
}

ax_status lazy_create_late(ax_comm *inner, uint64_t seed, ax_comm **out)
{
    static const int pauses[] = {0, 50, 200, 800};
    uint64_t key = ax_rng_key(seed, "late", (uint64_t)inner->rank);
    int pause = pauses[random_below(&key, AX_COUNT(pauses))];
    return create(inner, (queue){.late = true, .random = key, .pause = pause}, out);
}
