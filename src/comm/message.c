/* The public functions for messages (ax_send, ax_recv). Each call is checked, added to the traffic counters
 * (on the sender), and passed to the communicator's backend. The data are copied through pinned host memory,
 * on the device's copy streams, if the host cannot access the device's memory directly: if the device has
 * discrete memory, or memory that is accessible only between its functions `enter` and `leave`. comm.h says
 * what the backends are, and declares their table of functions (ax_comm_ops). */
#include "comm/message.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- descriptions -------------------------------------------------------------------------------- */

static const char *kind_name(ax_message_kind kind)
{
    static const char *const names[AX_MESSAGE_KINDS] = {[AX_MESSAGE_ACTIVATION] = "activation",
                                                        [AX_MESSAGE_GRADIENT] = "gradient",
                                                        [AX_MESSAGE_TASK] = "task",
                                                        [AX_MESSAGE_WEIGHT] = "weights"};
    return kind < AX_MESSAGE_KINDS ? names[kind] : "unknown";
}

char *ax_message_describe(const ax_message *m, char out[AX_MESSAGE_TEXT])
{
    char chunk[32] = "";
    if (m->chunk)
        snprintf(chunk, sizeof chunk, " for chunk %d", m->chunk);
    snprintf(out, AX_MESSAGE_TEXT, "%s of micro-batch %lld of step %lld%s, %s [", kind_name(m->kind),
             (long long)m->micro_batch, (long long)m->step, chunk,
             m->dtype < AX_DTYPE_COUNT ? ax_dtype_name(m->dtype) : "unknown dtype");
    for (int d = 0; d < m->ndim && d < AX_MESSAGE_DIMS; d++)
        ax_text_add(out, AX_MESSAGE_TEXT, "%s%lld", d ? ", " : "", (long long)m->dim[d]);
    ax_text_add(out, AX_MESSAGE_TEXT, "]");
    return out;
}

bool ax_message_equal(const ax_message *a, const ax_message *b)
{
    bool same = a->kind == b->kind && a->dtype == b->dtype && a->step == b->step &&
                a->micro_batch == b->micro_batch && a->chunk == b->chunk && a->ndim == b->ndim;
    for (int d = 0; same && d < a->ndim; d++)
        same = a->dim[d] == b->dim[d];
    return same;
}

static int64_t count_of(const ax_message *m)
{
    int64_t count = 1;
    for (int d = 0; d < m->ndim; d++)
        count *= m->dim[d];
    return count;
}

static ax_status check(const ax_comm *comm, const ax_message *m, int peer)
{
    char text[AX_MESSAGE_TEXT];
    int64_t count = 1;
    AX_CHECK(peer >= 0 && peer < comm->size && peer != comm->rank, AX_ERR_INTERNAL,
             "ax_send or ax_recv: the peer is %d, but must be another rank of this group (0 to %d, not the "
             "calling rank, %d)",
             peer, comm->size - 1, comm->rank);
    AX_CHECK(m->ndim >= 0 && m->ndim <= AX_MESSAGE_DIMS, AX_ERR_INTERNAL,
             "ax_send or ax_recv: the message has %d dims; it must have 0 to %d", m->ndim, AX_MESSAGE_DIMS);
    for (int d = 0; d < m->ndim; d++)
        AX_CHECK(m->dim[d] >= 0 && !__builtin_mul_overflow(count, m->dim[d], &count), AX_ERR_INTERNAL,
                 "ax_send or ax_recv: the message \"%s\" has a negative extent, or more elements than 64 "
                 "bits can count",
                 ax_message_describe(m, text));
    AX_CHECK(
        count <= INT32_MAX / (int64_t)ax_dtype_size(m->dtype), AX_ERR_USAGE,
        "the message \"%s\" is too large: at most 2^31 - 1 bytes are possible; use smaller micro-batches",
        ax_message_describe(m, text));
    return AX_OK;
}

/* ---- devices whose memory the host cannot access directly ----------------------------------------- */

/* A pinned host buffer for one message at a time. Buffers are reused, so after the first few training steps
 * no more buffers are allocated. */
typedef struct ax_comm_carrier {
    ax_work work;
    struct ax_comm_carrier *next;
    bool busy;     /* the message is in flight: ax_wait has not ended it */
    bool reserved; /* made by ax_comm_reserve_messages */
    ax_device *dev;
    char *host;
    size_t room;          /* bytes of `host` */
    ax_stream *stream;    /* the caller's stream */
    ax_message_args args; /* the caller's arguments */
    /* An event that is complete when the copy between device and `host` is done. Exception: until the copy of
     * a received message is enqueued, the event is complete when the work is done that was on `stream` at the
     * call of ax_recv. */
    ax_stream_event *copy;
} carrier;

/* Enqueues the copy between device and host buffer on a copy stream of the device. The copy begins when the
 * event c->copy, as recorded before, is complete. Then records c->copy again, behind the copy. */
static ax_status enqueue_copy(carrier *c)
{
    const ax_message_args *a = &c->args;
    ax_stream copies = ax_copy_stream(c->dev, a->sends ? AX_TO_HOST : AX_TO_DEVICE);
    AX_TRY(ax_stream_await(&copies, c->copy));
    AX_TRY(a->sends ? ax_copy_out_async(&copies, c->host, a->data, a->bytes)
                    : ax_copy_in_async(&copies, a->data, c->host, a->bytes));
    return ax_stream_record(&copies, c->copy);
}

/* Copies a message that has arrived to the device. The caller's stream waits for the copy. The host does not
 * wait, unless activities are listened to: without this wait the copy's time would count as time of the next
 * kernel. */
static ax_status deliver(carrier *c)
{
    AX_TRY(enqueue_copy(c));
    AX_TRY(ax_stream_await(c->stream, c->copy));
    return c->dev->heard & AX_ON_ACTIVITY ? ax_stream_event_wait(c->copy) : AX_OK;
}

static ax_status carry_end(ax_work *work)
{
    carrier *c = (carrier *)work;
    /* For a send, the wait for the copy comes first, because it returns errors of the device: after such an
     * error the data never reach the host buffer, so the message is never sent. */
    ax_status status = c->args.sends ? ax_stream_event_wait(c->copy) : AX_OK;
    if (status != AX_OK)
        return status; /* the send is still in flight, so the carrier stays busy */
    status = c->work.inner ? c->work.inner->wait(c->work.inner) : AX_OK;
    if (status == AX_OK && !c->args.sends)
        status = deliver(c);
    c->busy = false;
    return status;
}

static bool carry_done(const ax_work *work) { return ax_work_done(work->inner); }

/* Sets *yes to whether a send's data are in the host buffer. Any thread may call this function. */
static ax_status is_copied(void *user, bool *yes)
{
    return ax_stream_event_done(((carrier *)user)->copy, yes);
}

static ax_status make_carrier(ax_comm *comm, ax_device *dev, size_t bytes, carrier **out)
{
    carrier *c;
    AX_TRY(ax_calloc(1, sizeof *c, &c));
    c->dev = dev;
    c->room = bytes;
    c->next = comm->carriers;
    comm->carriers = *out = c;
    AX_TRY(ax_pinned_alloc(dev, bytes, (void **)&c->host));
    return ax_stream_event_create(dev, &c->copy);
}

/* Finds a large enough buffer of `dev` that is free: its last message has been waited for, and its last copy
 * is done. If no buffer is free, but a reserved one is free except that its last copy still runs, waits for
 * this copy. Otherwise makes one more buffer. Does not wait for messages in flight, because that could last
 * for ever. */
static ax_status find_carrier(ax_comm *comm, ax_device *dev, size_t bytes, carrier **out)
{
    carrier *copying = NULL;
    for (carrier *c = comm->carriers; c; c = c->next) {
        bool done;
        if (c->busy || c->dev != dev || c->room < bytes || !c->copy)
            continue;
        AX_TRY(ax_stream_event_done(c->copy, &done));
        *out = c;
        if (done)
            return AX_OK;
        copying = c->reserved ? c : copying;
    }
    if (!copying)
        return make_carrier(comm, dev, bytes, out);
    *out = copying;
    return ax_stream_event_wait(copying->copy);
}

static ax_status carry_start(ax_comm *comm, ax_stream *stream, const ax_message_args *args, ax_work **work)
{
    carrier *c = NULL;
    ax_message_args host = *args;
    AX_TRY(find_carrier(comm, stream->dev, args->bytes, &c));
    c->work = (ax_work){.wait = carry_end, .done = carry_done};
    c->args = *args;
    c->stream = stream;
    AX_TRY(ax_stream_record(stream, c->copy));
    if (args->sends) {
        AX_TRY(enqueue_copy(c));
        host.ready = is_copied;
        host.user = c;
    }
    host.data = c->host;
    host.dev = NULL;
    AX_TRY(comm->ops->message(comm, &host, &c->work.inner));
    c->busy = true;
    *work = &c->work;
    return AX_OK;
}

/* Removes *at from its list and frees it. */
static void free_carrier(carrier **at)
{
    carrier *c = *at;
    *at = c->next;
    ax_pinned_free(c->dev, c->host, c->room);
    ax_stream_event_destroy(&c->copy);
    free(c);
}

/* Frees the carriers. If a message is still in flight, this rank has failed; then this rank first aborts the
 * world, unless the world has already failed, because other ranks may still use the message's buffer. */
void ax_comm_free_carriers(ax_comm *comm)
{
    bool in_flight = false;
    for (const carrier *c = comm->carriers; c; c = c->next)
        in_flight = in_flight || c->busy;
    if (in_flight && !(comm->ops->failed && comm->ops->failed(comm)))
        comm->ops->abort(comm, ax_error_status(), ax_error_message());
    while (comm->carriers)
        free_carrier(&comm->carriers);
    comm->reserved = 0;
}

/* ---- public functions ---------------------------------------------------------------------------- */

ax_status ax_comm_reserve_messages(ax_comm *comm, ax_device *dev, size_t bytes, int64_t n)
{
    carrier *c;
    for (int64_t i = 0; i < n && !ax_device_host_access(dev); i++) {
        AX_TRY(make_carrier(comm, dev, bytes, &c));
        c->reserved = true;
    }
    comm->reserved += (size_t)n * bytes;
    return AX_OK;
}

void ax_comm_release_messages(ax_comm *comm, ax_device *dev, size_t bytes, int64_t n)
{
    const size_t all = (size_t)n * bytes;
    comm->reserved -= comm->reserved < all ? comm->reserved : all; /* it is 0 after a disconnect */
    for (carrier **at = &comm->carriers; *at && n > 0;) {
        const carrier *c = *at;
        if (c->reserved && !c->busy && c->dev == dev && c->room == bytes &&
            ax_stream_event_wait(c->copy) == AX_OK) {
            free_carrier(at);
            n--;
        } else {
            at = &(*at)->next;
        }
    }
}

size_t ax_comm_reserved_messages(const ax_comm *comm) { return comm->reserved; }

static ax_status message(ax_comm *comm, ax_stream *stream, ax_message_args *args, ax_work **work)
{
    ax_device *dev = args->dev = stream ? stream->dev : NULL;
    *work = NULL;
    AX_TRY(check(comm, &args->message, args->peer));
    args->bytes = (size_t)count_of(&args->message) * ax_dtype_size(args->message.dtype);
    if (args->sends) {
        comm->traffic.calls++;
        comm->traffic.bytes += (int64_t)args->bytes;
    }
    AX_TRY(!dev || ax_device_host_access(dev) ? comm->ops->message(comm, args, work)
                                              : carry_start(comm, stream, args, work));
    const int64_t count = count_of(&args->message);
    const ax_operand operand = {args->data, count, count, args->message.dtype,
                                args->sends ? AX_READ : AX_WRITE};
    ax_comm_started(dev,
                    &(ax_device_event){AX_ON_MESSAGE, .name = kind_name(args->message.kind), .args = args,
                                       .operand = &operand, .operands = 1, .comm = comm},
                    *work);
    if (*work)
        (*work)->stream = NULL; /* ax_wait need not wait for earlier kernels, because events order the copies
                                   between device and host buffer */
    return AX_OK;
}

ax_status ax_send(ax_comm *comm, ax_stream *stream, const ax_message *m, const void *data, int to,
                  ax_work **work)
{
    ax_message_args args = {.message = *m, .sends = true, .peer = to, .data = (void *)(uintptr_t)data};
    return message(comm, stream, &args, work);
}

ax_status ax_recv(ax_comm *comm, ax_stream *stream, const ax_message *m, void *data, int from, ax_work **work)
{
    ax_message_args args = {.message = *m, .peer = from, .data = data};
    return message(comm, stream, &args, work);
}

bool ax_work_done(const ax_work *work) { return !work || (work->done && work->done(work)); }
int ax_work_note(const ax_work *work) { return work->inner ? work->inner->note : work->note; }

ax_status ax_wait_some(ax_comm *comm, ax_work *const works[], int n)
{
    ax_work *inner[AX_WAIT_SOME];
    AX_ASSERT(n > 0 && n <= AX_WAIT_SOME);
    for (int i = 0; i < n; i++) {
        if (ax_work_done(works[i]))
            return AX_OK;
        inner[i] = works[i]->inner ? works[i]->inner : works[i];
    }
    double begin = ax_device_now(works[0]->dev);
    ax_status status = comm->ops->wait_some(comm, inner, n);
    ax_comm_expose(comm, works[0]->dev, "wait", "message", begin);
    return status;
}
