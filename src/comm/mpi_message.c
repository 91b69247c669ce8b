/* ax_send and ax_recv over MPI. Messages do not pass through the queue of collectives. Read mpi.h first.
 *
 * A message begins with a header, which the receiver compares with the message that it expects. If both ranks
 * share memory, the message has at least SHARED_BYTES, and the sender's buffer is in the sender's heap (its
 * shared memory, node.h), the header gives the buffer's offset in this heap; the receiver copies the data out
 * of the heap and then sends a reply. Otherwise the data follow as a second MPI message, the body. Each kind
 * of message has two tags, for header and body. MPI keeps the order of messages from one rank to another with
 * the same tag, so the k-th header and body of a kind belong to the same message. There is one exception: if
 * data may go through shared memory (may_share), the receiver learns from the header whether a body follows,
 * and posts the receive of the body only then; and it sends replies in the order in which messages are
 * complete. So such bodies and replies have a tag of their own, whose number is in the header.
 *
 * A send whose data a device still copies starts when this copy is complete. Whenever the communication
 * thread makes progress on messages, it asks whether the copy is complete (`ready` in ax_message_args). */
#include "comm/mpi.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* COPY_BYTES: bytes that a message copies before the other messages make progress. SHARED_BYTES: messages
 * of fewer bytes go through MPI, not shared memory. */
enum { MESSAGES_PER_BLOCK = 32, COPY_BYTES = 1 << 20, SHARED_BYTES = 4 << 10 };
enum { HEAD, BODY, REPLY, TAGS };
/* The first MPI tag of bodies whose tag number is in the header (ANNOUNCED), and the first tag of replies
 * (ANNOUNCED_REPLY). A sender uses ANNOUNCED_TAGS numbers in turn. So two of its messages in flight have the
 * same number only if it has started at least 1023 others between them. */
enum { ANNOUNCED = AX_MPI_MESSAGE_TAG + AX_MESSAGE_KINDS * REPLY, ANNOUNCED_TAGS = 1024 };
enum { ANNOUNCED_REPLY = ANNOUNCED + ANNOUNCED_TAGS };
_Static_assert(ANNOUNCED_REPLY + ANNOUNCED_TAGS <= 32767,
               "tags must be at most 32767, the smallest MPI_TAG_UB that MPI allows");

typedef struct header {
    ax_message message;
    int64_t offset; /* offset of the data in the sender's heap; -1: the data follow in a second MPI message,
                       the body */
    int64_t number; /* if may_share(): the tag of the body is ANNOUNCED + number, that of the reply
                       ANNOUNCED_REPLY + number */
    uint64_t sum;   /* checksum of the data, in builds with assertions */
} header;

struct ax_mpi_message {
    ax_work work;
    ax_mpi_message *next; /* next in the list world->new_messages, world->messages or world->free_messages */
    ax_mpi_comm *c;
    ax_message_args args;
    /* Accessed by the communication thread only: */
    bool started; /* false: a send that waits for its data, or for an earlier send of its kind */
    header head;
    MPI_Request request[TAGS];
    bool headed;   /* a receive: the header has arrived */
    size_t copied; /* a receive from the sender's heap: bytes copied so far */
    int64_t wire;
    /* The message's result, valid once `done` is true. */
    ax_status status;
    atomic_bool done;
};

/* ---- callers ------------------------------------------------------------------------------------- */

static ax_status more_messages(ax_mpi_world *w)
{
    ax_mpi_message *block;
    AX_TRY(ax_calloc(MESSAGES_PER_BLOCK + 1, sizeof *block, &block));
    block[0].next = w->message_blocks;
    w->message_blocks = block;
    for (int i = 1; i <= MESSAGES_PER_BLOCK; i++) {
        block[i].next = w->free_messages;
        w->free_messages = &block[i];
    }
    return AX_OK;
}

void ax_mpi_messages_free(ax_mpi_world *w)
{
    for (ax_mpi_message *next; w->message_blocks; w->message_blocks = next) {
        next = w->message_blocks->next;
        free(w->message_blocks);
    }
}

static bool any_done(ax_mpi_message *const m[], int n)
{
    for (int i = 0; i < n; i++)
        if (atomic_load(&m[i]->done))
            return true;
    return false;
}

/* Sleeps until one of the messages is done. The watchdog reads `awaited` under the lock. */
static void block_until_any_done(ax_mpi_world *w, ax_mpi_message *const m[], int n)
{
    if (any_done(m, n))
        return;
    atomic_fetch_add(&w->waiting, 1);
    pthread_mutex_lock(&w->lock);
    w->awaited = m;
    w->n_awaited = n;
    atomic_fetch_add(&w->sleeping, 1);
    if (atomic_load(&w->resting))
        pthread_cond_signal(&w->to_thread);
    while (!any_done(m, n))
        pthread_cond_wait(&w->to_callers, &w->lock);
    atomic_fetch_sub(&w->sleeping, 1);
    w->awaited = NULL;
    pthread_mutex_unlock(&w->lock);
    atomic_fetch_sub(&w->waiting, 1);
}

static ax_status world_error(ax_mpi_world *w)
{
    pthread_mutex_lock(&w->lock);
    ax_status status = ax_fail(AX_ERR_COMM, "%s", w->message);
    pthread_mutex_unlock(&w->lock);
    return status;
}

static ax_status message_wait(ax_work *work)
{
    ax_mpi_message *m = (ax_mpi_message *)work;
    ax_mpi_world *w = m->c->world;
    block_until_any_done(w, &m, 1);
    m->c->comm.traffic.wire += m->wire;
    ax_status status = m->status == AX_OK ? AX_OK : world_error(w);
    pthread_mutex_lock(&w->lock);
    m->next = w->free_messages;
    w->free_messages = m;
    pthread_mutex_unlock(&w->lock);
    return status;
}

static bool message_done(const ax_work *work) { return atomic_load(&((const ax_mpi_message *)work)->done); }

ax_status ax_mpi_wait_some(ax_comm *comm, ax_work *const works[], int n)
{
    ax_mpi_message *m[AX_WAIT_SOME];
    for (int i = 0; i < n; i++)
        m[i] = (ax_mpi_message *)works[i];
    block_until_any_done(((ax_mpi_comm *)comm->impl)->world, m, n);
    return AX_OK;
}

ax_status ax_mpi_message_call(ax_comm *comm, const ax_message_args *args, ax_work **work)
{
    ax_mpi_comm *c = comm->impl;
    ax_mpi_world *w = c->world;
    if (atomic_load(&w->failed))
        return world_error(w);
    pthread_mutex_lock(&w->lock);
    ax_status status = w->free_messages ? AX_OK : more_messages(w);
    if (status == AX_OK) {
        ax_mpi_message *m = w->free_messages;
        w->free_messages = m->next;
        *m = (ax_mpi_message){.work = {.wait = message_wait, .done = message_done}, .c = c, .args = *args};
        ax_mpi_message **end = &w->new_messages;
        while (*end)
            end = &(*end)->next;
        *end = m;
        atomic_fetch_add(&w->queued_messages, 1);
        if (atomic_load(&w->resting))
            pthread_cond_signal(&w->to_thread);
        *work = &m->work;
    }
    pthread_mutex_unlock(&w->lock);
    return status;
}

/* ---- the communication thread: starting ---------------------------------------------------------- */

/* Returns true if the receiver may read the data from the sender's heap (memory that the ranks of a node
 * share). The result is the same on sender and receiver. */
static bool may_share(const ax_mpi_message *m)
{
    return m->c->world->shared && ax_mpi_same_node(m->c, m->args.peer) && m->args.bytes >= SHARED_BYTES;
}

static int tag_of(const ax_mpi_message *m, int part)
{
    if (part == HEAD || !may_share(m))
        return AX_MPI_MESSAGE_TAG + (int)m->args.message.kind * REPLY + part;
    return (part == BODY ? ANNOUNCED : ANNOUNCED_REPLY) + (int)m->head.number;
}

static ax_status isend(ax_mpi_message *m, int part, const void *data, size_t bytes)
{
    return ax_mpi_check(
        MPI_Isend(data, (int)bytes, MPI_BYTE, m->args.peer, tag_of(m, part), m->c->mpi, &m->request[part]),
        "MPI_Isend");
}

static ax_status irecv(ax_mpi_message *m, int part, void *data, size_t bytes)
{
    return ax_mpi_check(
        MPI_Irecv(data, (int)bytes, MPI_BYTE, m->args.peer, tag_of(m, part), m->c->mpi, &m->request[part]),
        "MPI_Irecv");
}

static uint64_t checksum(const ax_mpi_message *m)
{
#ifdef NDEBUG
    (void)m;
    return 0;
#else
    return XXH3_64bits(m->args.data, m->args.bytes);
#endif
}

static ax_status start_send(ax_mpi_message *m)
{
    ax_mpi_world *w = m->c->world;
    memset(&m->head, 0, sizeof m->head); /* padding bytes are sent too */
    m->head.message = m->args.message;
    m->head.sum = checksum(m);
    m->head.offset = may_share(m) ? ax_node_offset(w->shared, m->args.data, m->args.bytes) : -1;
    m->head.number = (int64_t)(w->announced++ % ANNOUNCED_TAGS);
    if (!ax_mpi_same_node(m->c, m->args.peer))
        m->wire = (int64_t)m->args.bytes;
    AX_TRY(isend(m, HEAD, &m->head, sizeof m->head));
    return m->head.offset >= 0 ? irecv(m, REPLY, NULL, 0) : isend(m, BODY, m->args.data, m->args.bytes);
}

static ax_status start_recv(ax_mpi_message *m)
{
    AX_TRY(irecv(m, HEAD, &m->head, sizeof m->head));
    return may_share(m) ? AX_OK : irecv(m, BODY, m->args.data, m->args.bytes);
}

/* Returns true if an earlier send of the same kind to the same rank has not started. */
static bool is_behind(const ax_mpi_world *w, const ax_mpi_message *m)
{
    const ax_mpi_message *o = w->messages;
    while (o != m && (o->started || o->c != m->c || o->args.peer != m->args.peer ||
                      o->args.message.kind != m->args.message.kind))
        o = o->next;
    return o != m;
}

/* Sets *yes to whether a message can start: a receive at once; a send when all earlier sends of its kind to
 * the same rank have started and no device copies its data any more. */
static ax_status can_start(const ax_mpi_world *w, const ax_mpi_message *m, bool *yes)
{
    *yes = !m->args.sends || !is_behind(w, m);
    return *yes && m->args.ready ? m->args.ready(m->args.user, yes) : AX_OK;
}

static ax_status start(ax_mpi_message *m)
{
    m->started = true;
    for (int part = 0; part < TAGS; part++)
        m->request[part] = MPI_REQUEST_NULL;
    return m->args.sends ? start_send(m) : start_recv(m);
}

/* ---- the communication thread: progress ---------------------------------------------------------- */

static ax_status compare(const ax_mpi_message *m)
{
    char a[AX_MESSAGE_TEXT], b[AX_MESSAGE_TEXT];
    AX_CHECK(ax_message_equal(&m->head.message, &m->args.message), AX_ERR_COMM,
             "rank %d sent the %s, where rank %d receives the %s: both ranks must call ax_send and ax_recv "
             "in the same order",
             m->c->world_rank[m->args.peer], ax_message_describe(&m->head.message, a),
             m->c->world_rank[m->c->comm.rank], ax_message_describe(&m->args.message, b));
    return AX_OK;
}

static ax_status test(ax_mpi_message *m, int part, bool *came)
{
    int yes;
    AX_MPI(MPI_Test(&m->request[part], &yes, MPI_STATUS_IGNORE));
    *came = yes;
    return AX_OK;
}

/* Copies the next COPY_BYTES of a message from the sender's heap. After the last bytes, sends a reply to
 * the sender. */
static ax_status copy_some(ax_mpi_message *m)
{
    const ax_mpi_world *w = m->c->world;
    size_t n = m->args.bytes - m->copied;
    n = n < COPY_BYTES ? n : COPY_BYTES;
    int local = ax_mpi_local_number(w, m->c->world_rank[m->args.peer]);
    const char *from = ax_node_at(w->shared, local, m->head.offset);
    memcpy((char *)m->args.data + m->copied, from + m->copied, n);
    m->copied += n;
    m->c->world->progress++;
    return m->copied == m->args.bytes ? isend(m, REPLY, NULL, 0) : AX_OK;
}

static ax_status verify(const ax_mpi_message *m)
{
    char text[AX_MESSAGE_TEXT];
    AX_CHECK(m->head.sum == checksum(m), AX_ERR_COMM,
             "the data of the %s changed on the way from rank %d to rank %d: do not change a message's "
             "buffer before ax_wait",
             ax_message_describe(&m->args.message, text), m->c->world_rank[m->args.peer],
             m->c->world_rank[m->c->comm.rank]);
    return AX_OK;
}

/* Makes progress on a receive. The body (the data) may arrive before the header (the description) is
 * compared. If the body is too long for the buffer, MPI reports this error only when test() tests the body,
 * after the comparison; so the user gets the comparison's error message, not MPI's. */
static ax_status progress_recv(ax_mpi_message *m, bool *done)
{
    if (!m->headed) {
        AX_TRY(test(m, HEAD, &m->headed));
        if (!m->headed)
            return AX_OK;
        m->c->world->progress++;
        AX_TRY(compare(m));
        m->work.note = m->head.message.note;
        if (may_share(m) && m->head.offset < 0)
            AX_TRY(irecv(m, BODY, m->args.data, m->args.bytes));
    }
    if (m->head.offset >= 0 && m->copied < m->args.bytes)
        AX_TRY(copy_some(m));
    if (m->head.offset >= 0 && m->copied < m->args.bytes)
        return AX_OK;
    AX_TRY(test(m, m->head.offset >= 0 ? REPLY : BODY, done));
    return *done ? verify(m) : AX_OK;
}

static ax_status progress_send(ax_mpi_message *m, bool *done)
{
    bool headed;
    AX_TRY(test(m, HEAD, &headed));
    AX_TRY(test(m, m->head.offset >= 0 ? REPLY : BODY, done));
    *done = *done && headed;
    return AX_OK;
}

static void complete(ax_mpi_world *w, ax_mpi_message *m, ax_status status)
{
    m->status = status;
    w->progress++;
    atomic_store(&m->done, true);
    ax_mpi_wake_callers(w);
}

static ax_mpi_message *take_new(ax_mpi_world *w)
{
    if (!atomic_load(&w->queued_messages))
        return NULL;
    pthread_mutex_lock(&w->lock);
    ax_mpi_message *m = w->new_messages;
    if (m) {
        w->new_messages = m->next;
        atomic_fetch_sub(&w->queued_messages, 1);
    }
    pthread_mutex_unlock(&w->lock);
    return m;
}

static void start_new(ax_mpi_world *w)
{
    ax_mpi_message **end = &w->messages;
    while (*end)
        end = &(*end)->next;
    for (ax_mpi_message *m; (m = take_new(w)); end = &m->next) {
        m->next = NULL;
        *end = m;
    }
    /* Once the world has failed, no message is started, because callers may then free what `ready` reads. */
    for (ax_mpi_message *m = w->messages; m && !atomic_load(&w->failed); m = m->next) {
        bool yes = false;
        ax_status status = m->started ? AX_OK : can_start(w, m, &yes);
        if (status == AX_OK && yes)
            status = start(m);
        if (status != AX_OK)
            ax_mpi_fail(w, ax_error_message());
    }
}

bool ax_mpi_progress_messages(ax_mpi_world *w)
{
    uint64_t before = w->progress;
    start_new(w);
    for (ax_mpi_message **link = &w->messages; *link && !atomic_load(&w->failed);) {
        ax_mpi_message *m = *link;
        bool done = false;
        ax_status status = !m->started     ? AX_OK
                           : m->args.sends ? progress_send(m, &done)
                                           : progress_recv(m, &done);
        if (status != AX_OK)
            ax_mpi_fail(w, ax_error_message());
        else if (done) {
            *link = m->next;
            complete(w, m, AX_OK);
            continue;
        }
        link = &m->next;
    }
    return w->progress != before;
}

/* Completes all messages with AX_ERR_COMM. The messages' MPI requests stay active until the job ends. */
void ax_mpi_drop_messages(ax_mpi_world *w)
{
    for (ax_mpi_message *m; (m = w->messages);) {
        w->messages = m->next;
        complete(w, m, AX_ERR_COMM);
    }
    for (ax_mpi_message *m; (m = take_new(w));)
        complete(w, m, AX_ERR_COMM);
}

/* ---- for the watchdog ---------------------------------------------------------------------------- */

bool ax_mpi_awaits_data(const ax_mpi_world *w)
{
    const ax_mpi_message *m = w->messages;
    while (m && m->started)
        m = m->next;
    return m;
}

bool ax_mpi_awaits_messages(ax_mpi_world *w)
{
    pthread_mutex_lock(&w->lock);
    bool yes = w->awaited;
    pthread_mutex_unlock(&w->lock);
    return yes;
}

bool ax_mpi_describe_awaited(ax_mpi_world *w, char *out, size_t size)
{
    char text[AX_MESSAGE_TEXT];
    pthread_mutex_lock(&w->lock);
    int n = w->awaited ? w->n_awaited : 0;
    for (int i = 0; i < n; i++) {
        const ax_mpi_message *m = w->awaited[i];
        ax_text_add(out, size, "%s%s of %s %s rank %d", i ? ", or " : "", m->args.sends ? "send" : "receive",
                    ax_message_describe(&m->args.message, text), m->args.sends ? "to" : "from",
                    m->c->world_rank[m->args.peer]);
    }
    pthread_mutex_unlock(&w->lock);
    return n;
}

bool ax_mpi_awaits_message_of(ax_mpi_world *w, int world_rank)
{
    bool found = false;
    pthread_mutex_lock(&w->lock);
    for (int i = 0; w->awaited && i < w->n_awaited; i++)
        found = found || w->awaited[i]->c->world_rank[w->awaited[i]->args.peer] == world_rank;
    pthread_mutex_unlock(&w->lock);
    return found;
}
