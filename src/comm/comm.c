/* The public collectives. Each call fills an ax_coll_args, checks it, adds it to the traffic counters, and
 * passes it to the communicator's backend. comm.h says what the backends are, and declares their table of
 * functions (ax_comm_ops). */
#include "comm/link.h"
#include "comm/message.h"
#include "comm/wire.h"

#include <stdlib.h>

int ax_comm_rank(const ax_comm *comm) { return comm->rank; }
int ax_comm_size(const ax_comm *comm) { return comm->size; }
ax_comm_traffic ax_comm_traffic_get(const ax_comm *comm) { return comm->traffic; }

/* Returns the bytes that one of `size` ranks would send in a ring algorithm. */
static int64_t ring_bytes(const ax_coll_args *args, int size)
{
    int64_t bytes = args->count * (int64_t)ax_dtype_size(args->dtype);
    switch (args->coll) {
    case AX_ALL_REDUCE:
        return 2 * (size - 1) * bytes / size;
    case AX_BROADCAST:
        return (size - 1) * bytes / size;
    case AX_BARRIER:
        return 0;
    default:
        return (size - 1) * bytes;
    }
}

static bool reducible(ax_dtype dtype) { return dtype <= AX_I64; /* F64, F32, BF16, F16, I32, I64 */ }

static ax_status check(const ax_comm *comm, const ax_coll_args *args)
{
    const char *name = ax_coll_name(args->coll);
    AX_CHECK(args->count >= 0, AX_ERR_INTERNAL, "collective %s: the count is %lld; it must be 0 or more",
             name, (long long)args->count);
    bool reduces = args->coll == AX_ALL_REDUCE || args->coll == AX_REDUCE_SCATTER;
    AX_CHECK(!reduces || reducible(args->dtype), AX_ERR_INTERNAL,
             "collective %s cannot reduce %s: only f64, f32, bf16, f16, i32 and i64 can be reduced", name,
             ax_dtype_name(args->dtype));
    AX_CHECK(args->root >= 0 && args->root < comm->size, AX_ERR_INTERNAL,
             "collective %s: the root is %d, which is not a rank of this group (0 to %d)", name, args->root,
             comm->size - 1);
    return AX_OK;
}

void ax_comm_expose(ax_comm *comm, const ax_device *dev, const char *activity, const char *name, double begin)
{
    if (!comm || comm->size == 1)
        return;
    comm->traffic.exposed += ax_device_now(dev) - begin;
    if (dev)
        ax_activity_end(dev, activity, name, begin, 0);
}

void ax_comm_started(const ax_device *dev, ax_device_event *event, ax_work *work)
{
    event->ends = work ? &work->ends : NULL;
    if (work) {
        work->ends = 0;
        work->comm = event->comm;
        work->dev = dev;
        work->name = event->name;
        work->operands = event->operands;
        for (int i = 0; i < event->operands; i++)
            work->operand[i] = event->operand[i];
    }
    if (dev)
        ax_device_tell(dev, event);
}

static ax_status need_staging(ax_comm *comm, size_t bytes)
{
    if (comm->staging && bytes <= comm->staging_bytes)
        return AX_OK;
    free(comm->staging);
    comm->staging = NULL;
    comm->staging_bytes = 0;
    AX_TRY(ax_calloc(1, bytes + 1, &comm->staging));
    comm->staging_bytes = bytes;
    return AX_OK;
}

/* Runs a collective on discrete device memory, which the host cannot access: copies the data to a host
 * buffer, runs the collective on this buffer, and copies the result back. */
static ax_status run_staged(ax_comm *comm, ax_stream *stream, const ax_coll_args *args)
{
    ax_operand operand[2];
    ax_coll_operands(args, comm->size, operand);
    size_t element = ax_dtype_size(args->dtype), out = (size_t)operand[0].count * element,
           back = (size_t)operand[1].count * element;
    /* Offset of the data to send in the staging buffer; the result is received at offset 0. If the device's
     * send and receive buffer are the same, both offsets are 0. */
    size_t from = args->send == args->recv ? 0 : back;
    ax_coll_args staged = *args;
    ax_work *work = NULL;
    AX_TRY(need_staging(comm, from + ax_max(out, back)));
    staged.send = comm->staging + from;
    staged.recv = comm->staging;
    AX_TRY(ax_copy_out(stream, comm->staging + from, args->send, out));
    AX_TRY(comm->ops->run(comm, NULL, &staged, &work));
    if (work)
        AX_TRY(work->wait(work));
    return ax_copy_in(stream, args->recv, comm->staging, back);
}

/* Runs a collective: over the link or through the staging buffer if the device has discrete memory, otherwise
 * directly by the backend. Some devices let the host access their memory only between their functions `enter`
 * and `leave`. On such a device the call blocks, because the collective must complete before `leave`. */
static ax_status run(ax_comm *comm, ax_stream *stream, const ax_coll_args *args, ax_work **work)
{
    ax_device *dev = stream ? stream->dev : NULL;
    if (dev && dev->ops.discrete_memory)
        return comm->link ? ax_comm_link_run(comm, stream, args, work) : run_staged(comm, stream, args);
    if (!dev || !dev->ops.enter)
        return comm->ops->run(comm, stream, args, work);
    dev->ops.enter(dev);
    ax_status status = comm->ops->run(comm, stream, args, work);
    if (status == AX_OK && *work)
        status = (*work)->wait(*work);
    *work = NULL;
    if (dev->ops.leave)
        dev->ops.leave(dev);
    return status;
}

/* On a device with discrete memory whose kernel launches are timed, waits for the kernels in the stream, so
 * that their time does not count as communication. */
static ax_status finish_kernels(ax_stream *stream)
{
    const ax_device *dev = stream ? stream->dev : NULL;
    return dev && dev->ops.discrete_memory && dev->heard & AX_ON_TIME ? ax_stream_wait(stream) : AX_OK;
}

static ax_status collective(ax_comm *comm, ax_stream *stream, const ax_coll_args *args, ax_work **work)
{
    *work = NULL;
    AX_TRY(check(comm, args));
    if (comm->size > 1) {
        comm->traffic.calls++;
        comm->traffic.bytes += ring_bytes(args, comm->size);
    }
    const ax_device *dev = stream ? stream->dev : NULL;
    ax_operand operand[2];
    ax_device_event event = {AX_ON_COLLECTIVE, .name = ax_coll_name(args->coll),
                             .args = args,     .operand = operand,
                             .operands = 2,    .comm = comm};
    ax_coll_operands(args, comm->size, operand);
    if (!comm->link)
        AX_TRY(finish_kernels(stream));
    double begin = ax_device_now(dev);
    ax_status status = run(comm, stream, args, work);
    ax_comm_started(dev, &event, *work); /* a clock advances here, if kernels wait for the transfer */
    ax_comm_expose(comm, dev, "start", event.name, begin);
    if (*work)
        (*work)->stream = stream;
    return status;
}

ax_status ax_all_reduce(ax_comm *comm, ax_stream *stream, void *data, int64_t count, ax_dtype dtype,
                        ax_reduce_op op, ax_work **work)
{
    ax_coll_args args = {
        .coll = AX_ALL_REDUCE, .send = data, .recv = data, .count = count, .dtype = dtype, .op = op};
    return collective(comm, stream, &args, work);
}

ax_status ax_all_gather(ax_comm *comm, ax_stream *stream, const void *send, void *recv, int64_t count,
                        ax_dtype dtype, ax_work **work)
{
    ax_coll_args args = {.coll = AX_ALL_GATHER, .send = send, .recv = recv, .count = count, .dtype = dtype};
    return collective(comm, stream, &args, work);
}

ax_status ax_reduce_scatter(ax_comm *comm, ax_stream *stream, const void *send, void *recv, int64_t count,
                            ax_dtype dtype, ax_reduce_op op, ax_work **work)
{
    ax_coll_args args = {
        .coll = AX_REDUCE_SCATTER, .send = send, .recv = recv, .count = count, .dtype = dtype, .op = op};
    return collective(comm, stream, &args, work);
}

ax_status ax_all_to_all(ax_comm *comm, ax_stream *stream, const void *send, void *recv, int64_t count,
                        ax_dtype dtype, ax_work **work)
{
    ax_coll_args args = {.coll = AX_ALL_TO_ALL, .send = send, .recv = recv, .count = count, .dtype = dtype};
    return collective(comm, stream, &args, work);
}

ax_status ax_broadcast(ax_comm *comm, ax_stream *stream, void *data, int64_t count, ax_dtype dtype, int root,
                       ax_work **work)
{
    ax_coll_args args = {
        .coll = AX_BROADCAST, .send = data, .recv = data, .count = count, .dtype = dtype, .root = root};
    return collective(comm, stream, &args, work);
}

ax_status ax_barrier(ax_comm *comm)
{
    ax_work *work;
    ax_coll_args args = {.coll = AX_BARRIER, .dtype = AX_U8};
    AX_TRY(collective(comm, NULL, &args, &work));
    return ax_wait(&work);
}

ax_status ax_wait(ax_work **work)
{
    ax_work *pending = *work;
    *work = NULL;
    if (!pending)
        return AX_OK;
    /* A copy of what this thread has set, because `wait` frees the handle. Another thread may set the rest.
     */
    ax_work was = {.comm = pending->comm,
                   .stream = pending->stream,
                   .dev = pending->dev,
                   .name = pending->name,
                   .operand = {pending->operand[0], pending->operand[1]},
                   .operands = pending->operands,
                   .ends = pending->ends};
    ax_status kernels = finish_kernels(was.stream);
    double begin = ax_device_now(was.dev);
    if (was.dev)
        ax_device_tell(was.dev,
                       &(ax_device_event){AX_ON_WAIT, was.name, .operand = was.operand,
                                          .operands = was.operands, .ends = &was.ends, .comm = was.comm});
    ax_status status = pending->wait(pending);
    ax_comm_expose(was.comm, was.dev, "wait", was.name, begin);
    return status == AX_OK ? kernels : status;
}

ax_status ax_comm_split(ax_comm *comm, int color, int key, ax_comm **out)
{
    *out = NULL;
    return comm->ops->split(comm, color, key, out);
}

ax_status ax_comm_group(ax_comm *comm, const int *ranks, int n, ax_comm **out)
{
    bool member = false;
    *out = NULL;
    for (int i = 0; i < n; i++) {
        AX_CHECK(ranks[i] >= 0 && ranks[i] < comm->size, AX_ERR_INTERNAL,
                 "ax_comm_group: ranks[%d] is %d, which is not a rank of the communicator (0 to %d)", i,
                 ranks[i], comm->size - 1);
        member |= ranks[i] == comm->rank;
    }
    AX_CHECK(member, AX_ERR_INTERNAL,
             "ax_comm_group: the list of ranks does not contain the calling rank, %d", comm->rank);
    return comm->ops->group(comm, ranks, n, out);
}

void ax_comm_set_timeout(ax_comm *world, double seconds)
{
    if (world->ops->set_timeout)
        world->ops->set_timeout(world, seconds > 0 ? seconds : 0);
}

void ax_comm_hurry(ax_comm *world)
{
    if (world->ops->set_timeout)
        world->ops->set_timeout(world, -1);
}

enum { PAGE = 4096 };

ax_status ax_comm_alloc(ax_comm *comm, size_t bytes, void **out)
{
    *out = NULL;
    if (comm->ops->alloc)
        AX_TRY(comm->ops->alloc(comm, bytes, out));
    if (*out)
        return AX_OK;
    ax_region region;
    AX_TRY(ax_region_create(bytes, &region));
    *out = region.base;
    return AX_OK;
}

void ax_comm_free(ax_comm *comm, void *memory, size_t bytes)
{
    if (!memory || (comm->ops->free && comm->ops->free(comm, memory)))
        return;
    ax_region region = {memory, (size_t)ax_round_up((int64_t)(bytes ? bytes : 1), PAGE)};
    ax_region_destroy(&region);
}

int64_t ax_comm_foreign_memory(const ax_comm *comm)
{
    return comm->ops->foreign_memory ? comm->ops->foreign_memory(comm) : 0;
}

size_t ax_comm_buffers_bytes(const ax_comm_buffers *buffers)
{
    size_t bytes = buffers->columns;
    for (int i = 0; i < AX_COMM_PIECES; i++)
        bytes += buffers->piece[i] + buffers->exchange[i];
    return bytes;
}

ax_comm_buffers ax_comm_buffers_of(ax_comm *comm)
{
    return comm->ops->buffers ? comm->ops->buffers(comm) : (ax_comm_buffers){.columns = 0};
}

ax_status ax_comm_reserve_buffers(ax_comm *comm, const ax_comm_buffers *buffers)
{
    return comm->ops->reserve && ax_comm_buffers_bytes(buffers) ? comm->ops->reserve(comm, buffers) : AX_OK;
}

size_t ax_comm_lacking_buffers(ax_comm *comm, const ax_comm_buffers *buffers)
{
    const ax_comm_buffers had = ax_comm_buffers_of(comm);
    ax_comm_buffers all = *buffers;
    ax_wire_raise(&all, &had);
    return ax_comm_buffers_bytes(&all) - ax_comm_buffers_bytes(&had);
}

const char *ax_comm_path(const ax_comm *comm, const ax_stream *stream, const ax_coll_args *args)
{
    if (stream && stream->dev->ops.discrete_memory)
        return comm->link ? stream->dev->ops.links->name : "staged";
    return comm->ops->path ? comm->ops->path(comm, args) : comm->ops->name;
}

ax_status ax_comm_call_mpi(ax_comm *comm, ax_comm_mpi_fn *call, void *user)
{
    AX_CHECK(comm->ops->call_mpi, AX_ERR_USAGE,
             "ax_comm_call_mpi needs ranks that communicate over MPI, and these ranks do not: start several "
             "with mpirun");
    return comm->ops->call_mpi(comm, call, user);
}

void ax_comm_abort(ax_comm *comm, ax_status status, const char *message)
{
    comm->ops->abort(comm, status, message);
}

void ax_comm_abort_unshared(ax_comm *world, ax_status status)
{
    if (status != AX_OK && ax_comm_size(world) > 1 && !ax_error_is_shared())
        ax_comm_abort(world, status, ax_error_message());
}

ax_status ax_comm_run(ax_comm *world, int ranks, ax_rank_fn *fn, void *arg)
{
    if (ax_comm_size(world) == 1 && ranks > 1)
        return ax_comm_threads_run(ranks, fn, arg);
    ax_status status = fn(world, arg);
    ax_comm_abort_unshared(world, status);
    return status;
}

void ax_comm_destroy(ax_comm **comm)
{
    if (*comm) {
        ax_comm_disconnect(*comm);
        free((*comm)->staging);
        (*comm)->ops->destroy(*comm);
    }
    *comm = NULL;
}
