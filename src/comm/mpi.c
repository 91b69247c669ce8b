/* The part of the communicator over MPI that runs on the callers' threads: queues operations for the
 * communication thread, which makes all MPI calls, and waits for their completion. Read mpi.h first. */
#include "comm/mpi.h"
#include "comm/wire.h"
#include "comm/world.h"

#include <math.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- operations ---------------------------------------------------------------------------------- */

enum {
    OPS_PER_BLOCK = 256,
    SPINS = 200,            /* yields before the caller of a short operation sleeps */
    SHORT_BYTES = 64 << 10, /* an operation is short if its `count` elements have at most this many bytes */
    SPINS_HELPING = 10000,  /* spins without progress before a waiting caller sleeps: 1 to 3 ms */
    SPINS_CROWDED = 50,     /* as SPINS_HELPING, on a machine with fewer processors than ranks */
    NAPS_HELPING = 100,     /* sleeps without progress before a waiting caller stops testing operations */
    NAP_HELPING = 20000,    /* length of each sleep in ns */
    ABORT_SECONDS = 20,
    TIMEOUT_MS = 1000 * AX_COMM_TIMEOUT
};

/* Adds a block of work handles to the free list. Handles of completed operations return to this list; blocks
 * are freed with the world. The number of handles grows to the largest number of operations in flight, so
 * after the first few training steps no more handles are allocated. */
static ax_status more_ops(ax_mpi_world *w)
{
    ax_mpi_op *block;
    AX_TRY(ax_calloc(OPS_PER_BLOCK + 1, sizeof *block, &block));
    block[0].next = w->op_blocks;
    w->op_blocks = block;
    for (int i = 1; i <= OPS_PER_BLOCK; i++) {
        block[i].next = w->free_ops;
        w->free_ops = &block[i];
    }
    return AX_OK;
}

static ax_status world_error(ax_mpi_world *w)
{
    pthread_mutex_lock(&w->lock);
    ax_status status = ax_fail(AX_ERR_COMM, "%s", w->message);
    pthread_mutex_unlock(&w->lock);
    return status;
}

static void pause_core(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

/* Waits briefly after a test without progress: pauses the core (yields if the machine has fewer processors
 * than ranks), or sleeps once the wait is long. Yielding is not enough in a long wait: on a core shared with
 * other threads, sched_yield may return to this thread at once. */
static void back_off(const ax_mpi_world *w, int idle)
{
    if (idle >= SPINS_HELPING)
        nanosleep(&(struct timespec){.tv_nsec = NAP_HELPING}, NULL);
    else if (w->crowding > 1)
        sched_yield();
    else
        pause_core();
}

/* Makes progress on local operations (those that need only shared memory) until op is done, or until there
 * was no progress in SPINS_HELPING spins (SPINS_CROWDED if ranks share processors) and NAPS_HELPING sleeps
 * after them. */
static void progress_while_waiting(ax_mpi_world *w, const ax_mpi_op *op)
{
    const int enough = SPINS_HELPING + NAPS_HELPING,
              first = w->crowding > 1 ? SPINS_HELPING - SPINS_CROWDED : 0;
    atomic_fetch_add(&w->helping, 1);
    for (int idle = first; idle < enough && !atomic_load(&op->done); idle++)
        if (ax_mpi_help(w))
            idle = first;
        else
            back_off(w, idle);
    atomic_fetch_sub(&w->helping, 1);
}

static void block_until_done(ax_mpi_world *w, ax_mpi_op *op)
{
    if (op->local)
        progress_while_waiting(w, op);
    if (atomic_load(&op->done))
        return;
    /* Spins for short operations only: in a long operation the communication thread makes better use of
     * the core. */
    bool short_wait = op->args.count * (int64_t)ax_dtype_size(op->args.dtype) <= SHORT_BYTES;
    int most = short_wait ? SPINS : 0;
    atomic_fetch_add(&w->waiting, 1);
    for (int spins = 0; spins < most && !atomic_load(&op->done); spins++)
        sched_yield();
    if (!atomic_load(&op->done)) {
        pthread_mutex_lock(&w->lock);
        atomic_fetch_add(&w->sleeping, 1);
        if (atomic_load(&w->resting))
            pthread_cond_signal(&w->to_thread);
        while (!atomic_load(&op->done))
            pthread_cond_wait(&w->to_callers, &w->lock);
        atomic_fetch_sub(&w->sleeping, 1);
        pthread_mutex_unlock(&w->lock);
    }
    atomic_fetch_sub(&w->waiting, 1);
}

/* Waits for op, copies op to *result, and puts op on the free list. Another thread may reuse op at once;
 * *result stays valid. If op destroys the communicator, op->c may already be freed when this function
 * returns. */
static ax_status complete(ax_mpi_world *w, ax_mpi_op *op, ax_mpi_op *result)
{
    block_until_done(w, op);
    *result = *op;
    ax_status status = op->status == AX_OK ? AX_OK : world_error(w);
    pthread_mutex_lock(&w->lock);
    op->next = w->free_ops;
    w->free_ops = op;
    pthread_mutex_unlock(&w->lock);
    return status;
}

static ax_status op_wait(ax_work *work)
{
    ax_mpi_op *op = (ax_mpi_op *)work, result;
    ax_mpi_comm *c = op->c;
    ax_status status = complete(c->world, op, &result);
    c->comm.traffic.wire += result.wire;
    return status;
}

/* Queues a copy of the operation `what` for the communication thread, which makes all MPI calls. */
static ax_status submit(ax_mpi_comm *c, const ax_mpi_op *what, ax_mpi_op **out)
{
    ax_mpi_world *w = c->world;
    if (atomic_load(&w->failed))
        return world_error(w);
    pthread_mutex_lock(&w->lock);
    ax_status status = w->free_ops ? AX_OK : more_ops(w);
    if (status == AX_OK) {
        ax_mpi_op *op = w->free_ops;
        w->free_ops = op->next;
        *op = *what;
        op->work.wait = op_wait;
        op->c = c;
        op->path = op->kind == AX_MPI_COLLECTIVE ? ax_mpi_path_of(c, &op->args) : &ax_mpi_flat;
        op->local = op->path == &ax_mpi_node && !op->finish && !c->spans_nodes && !w->checks;
        op->seq = c->called + 1;
        /* A destroy is not counted: if another rank calls a further operation instead, that rank's watchdog
         * must see that this rank has not called the operation. */
        c->called += op->kind != AX_MPI_DESTROY;
        op->next = NULL;
        *w->queue_end = op;
        w->queue_end = &op->next;
        atomic_fetch_add(&w->queued, 1);
        if (atomic_load(&w->resting))
            pthread_cond_signal(&w->to_thread);
        *out = op;
    }
    pthread_mutex_unlock(&w->lock);
    return status;
}

/* Lets the communication thread run a barrier of the group and then the function what->finish, which may make
 * blocking MPI calls. Waits for the barrier and the function, and copies the completed operation to *what. */
static ax_status barrier_then_finish(ax_mpi_comm *c, ax_mpi_op *what)
{
    ax_mpi_world *w = c->world;
    ax_mpi_op *op;
    what->args = (ax_coll_args){.coll = AX_BARRIER, .dtype = AX_U8};
    AX_TRY(submit(c, what, &op));
    return complete(w, op, what);
}

/* ---- the backend's table ------------------------------------------------------------------------- */

static ax_mpi_comm *mpi_comm_of(ax_comm *comm) { return comm->impl; }

static ax_status mpi_run(ax_comm *comm, ax_stream *stream, const ax_coll_args *args, ax_work **work)
{
    (void)stream;
    ax_mpi_op *op, what = {.args = *args};
    AX_TRY(submit(mpi_comm_of(comm), &what, &op));
    *work = &op->work;
    return AX_OK;
}

static ax_status split_now(ax_mpi_op *op)
{
    MPI_Comm made;
    AX_MPI(MPI_Comm_split(op->c->mpi, op->color < 0 ? MPI_UNDEFINED : op->color, op->key, &made));
    /* The new communicator's id is the same on all its ranks and different for every split and colour. */
    uint64_t id = ax_rng_key(op->c->id, "split", (uint64_t)op->seq << 32 | (uint32_t)op->color);
    return made == MPI_COMM_NULL ? AX_OK : ax_mpi_comm_make(op->c->world, made, id, &op->made);
}

static ax_status mpi_split(ax_comm *comm, int color, int key, ax_comm **out)
{
    ax_mpi_op what = {.kind = AX_MPI_SPLIT, .finish = split_now, .color = color, .key = key};
    AX_TRY(barrier_then_finish(mpi_comm_of(comm), &what));
    *out = what.made ? &what.made->comm : NULL;
    return AX_OK;
}

/* Returns the id of the communicator that ax_comm_group creates. The id is computed from the id of `group`, a
 * temporary communicator of the same ranks. */
static uint64_t made_id(const ax_mpi_comm *group) { return ax_rng_key(group->id, "made", 0); }

static bool is_listed(const ax_mpi_world *w, uint64_t id)
{
    const ax_mpi_comm *c = w->comms;
    while (c && c->id != id)
        c = c->next;
    return c;
}

static ax_status group_now(ax_mpi_op *op)
{
    ax_mpi_world *w = op->c->world;
    MPI_Group all, mine;
    MPI_Comm made;
    AX_MPI(MPI_Comm_group(w->comm->mpi, &all));
    AX_MPI(MPI_Group_incl(all, op->c->comm.size, op->c->world_rank, &mine));
    AX_MPI(MPI_Comm_create_group(w->comm->mpi, mine, 0, &made));
    MPI_Group_free(&mine);
    MPI_Group_free(&all);
    return ax_mpi_comm_make(w, made, made_id(op->c), &op->made);
}

/* Adds the temporary communicator `group` to the world's list of communicators, in which the watchdog looks
 * up how many operations a rank has called. Chooses group->id from `ranks`, a hash of the group's world
 * ranks, such that no communicator in the list has the id made_id(group), the id of the final communicator.
 * All ranks choose the same id, because they create and destroy the communicators that they share in the same
 * order. */
static void list_group(ax_mpi_world *w, ax_mpi_comm *group, uint64_t ranks)
{
    uint64_t k = 0;
    pthread_mutex_lock(&w->lock);
    do
        group->id = ax_rng_key(ranks, "group", k++);
    while (is_listed(w, made_id(group)));
    group->next = w->comms;
    w->comms = group;
    pthread_mutex_unlock(&w->lock);
}

static void unlist_group(ax_mpi_world *w, const ax_mpi_comm *group)
{
    pthread_mutex_lock(&w->lock);
    ax_mpi_comm **link = &w->comms;
    while (*link != group)
        link = &(*link)->next;
    *link = group->next;
    pthread_mutex_unlock(&w->lock);
}

/* Creates the communicator of the ranks that `ranks` lists (ax_comm_group). The ranks first run a barrier on
 * a temporary communicator (`meet`), which uses the world's MPI communicator. After the barrier all ranks
 * have called ax_comm_group. So MPI_Comm_create_group, which blocks the communication thread, does not wait
 * long. */
static ax_status mpi_group(ax_comm *comm, const int *ranks, int n, ax_comm **out)
{
    const ax_mpi_comm *parent = mpi_comm_of(comm);
    ax_mpi_world *w = parent->world;
    ax_mpi_comm meet = {.comm.size = n, .world = w, .mpi = w->comm->mpi, .flat = w->comm->flat};
    ax_mpi_op what = {.kind = AX_MPI_GROUP, .finish = group_now};
    uint64_t key = 0;
    if (n == 1)
        return ax_comm_self_create(out);
    AX_TRY(ax_calloc((size_t)n, sizeof *meet.world_rank, &meet.world_rank));
    for (int i = 0; i < n; i++) {
        int rank = meet.world_rank[i] = parent->world_rank[ranks[i]];
        key = ax_rng_key(key, "rank", (uint64_t)rank);
        if (ranks[i] == comm->rank)
            meet.comm.rank = i;
        meet.spans_nodes |= w->node[rank] != w->node[meet.world_rank[0]];
    }
    list_group(w, &meet, key);
    meet.tags = (int)(meet.id >> 40);
    ax_status status = barrier_then_finish(&meet, &what);
    unlist_group(w, &meet);
    free(meet.world_rank);
    if (status == AX_OK)
        *out = &what.made->comm;
    return status;
}

static const char *mpi_path(const ax_comm *comm, const ax_coll_args *args)
{
    return ax_mpi_path_of(comm->impl, args)->name;
}

static void mpi_nodes(const ax_comm *comm, int *node, bool *shared)
{
    const ax_mpi_comm *c = comm->impl;
    for (int r = 0; r < comm->size; r++)
        node[r] = c->world->node[c->world_rank[r]];
    *shared = c->world->shared;
}

static ax_comm_buffers buffers_of(const ax_mpi_comm *c)
{
    ax_comm_buffers all = {.columns = 0};
    ax_mpi_flat_reserved(c, all.piece);
    ax_mpi_node_reserved(c, &all);
    return all;
}

static ax_comm_buffers mpi_buffers(ax_comm *comm)
{
    const ax_mpi_comm *c = mpi_comm_of(comm);
    pthread_mutex_lock(&c->world->progress_lock);
    const ax_comm_buffers all = buffers_of(c);
    pthread_mutex_unlock(&c->world->progress_lock);
    return all;
}

static ax_status mpi_reserve(ax_comm *comm, const ax_comm_buffers *buffers)
{
    ax_mpi_comm *c = mpi_comm_of(comm);
    ax_comm_buffers all = *buffers;
    pthread_mutex_lock(&c->world->progress_lock);
    if (c->reserved) {
        const ax_comm_buffers had = buffers_of(c);
        ax_wire_raise(&all, &had);
    }
    ax_status status = ax_mpi_flat_reserve(c, all.piece);
    if (status == AX_OK)
        status = ax_mpi_node_reserve(c, &all);
    pthread_mutex_unlock(&c->world->progress_lock);
    return status;
}

static ax_status call_now(ax_mpi_op *op) { return op->call(op->user, &op->c->mpi); }

static ax_status mpi_call(ax_comm *comm, ax_comm_mpi_fn *call, void *user)
{
    ax_mpi_op what = {.finish = call_now, .call = call, .user = user};
    return barrier_then_finish(mpi_comm_of(comm), &what);
}

static ax_status free_now(ax_mpi_op *op)
{
    ax_mpi_comm *c = op->c;
    if (c == c->world->comm)
        c->world->quit = true;
    else
        ax_mpi_comm_free(c);
    return AX_OK;
}

/* Sets the timeout of the watchdog. `seconds` < 0 means that ax_comm_hurry was called (a short timeout,
 * because the job is stopping). */
static void mpi_set_timeout(ax_comm *comm, double seconds)
{
    ax_mpi_world *w = mpi_comm_of(comm)->world;
    atomic_store(&w->hurried, seconds < 0);
    if (seconds >= 0)
        atomic_store(&w->timeout_ms, (int)(fmin(seconds, 1e6) * 1000));
}

/* Asks the communication thread to end the job and this process. If that takes longer than ABORT_SECONDS,
 * this thread ends the process with exit code `status`; the launcher then ends the job, because one of its
 * processes failed. */
static void mpi_abort(ax_comm *comm, ax_status status, const char *message)
{
    ax_mpi_world *w = mpi_comm_of(comm)->world;
    pthread_mutex_lock(&w->lock);
    w->abort_status = (int)status;
    w->abort_message = message;
    atomic_store(&w->aborting, true);
    pthread_cond_signal(&w->to_thread);
    pthread_mutex_unlock(&w->lock);
    sleep(ABORT_SECONDS);
    ax_comm_exit((int)status);
}

/* Returns why the world has failed, or NULL (`failed` of ax_comm_ops). Each call marks this rank as waiting
 * for its device during the next STILL_WAITS ms. A thread that waits for the device calls this function at
 * much shorter intervals. */
static const char *mpi_failed(ax_comm *comm)
{
    enum { STILL_WAITS = 250 };
    ax_mpi_world *w = mpi_comm_of(comm)->world;
    atomic_store(&w->in_device, (long long)(ax_now() * 1000) + STILL_WAITS);
    return atomic_load(&w->failed) ? w->message : NULL;
}

/* The data of the exit handler. Never freed, because on_exit handlers cannot be unregistered. */
struct ax_mpi_guard {
    ax_mpi_world *world; /* NULL: the world is not created yet, or is destroyed */
    pid_t pid;           /* this process; the handler does nothing in forked children, whose pid differs */
};

/* ---- the world ----------------------------------------------------------------------------------- */

static void world_free(ax_mpi_world *w)
{
    for (ax_mpi_op *next; w->op_blocks; w->op_blocks = next) {
        next = w->op_blocks->next;
        free(w->op_blocks);
    }
    ax_mpi_messages_free(w);
    pthread_cond_destroy(&w->to_thread);
    pthread_cond_destroy(&w->to_callers);
    pthread_mutex_destroy(&w->lock);
    pthread_mutex_destroy(&w->progress_lock);
    free(w->node);
    free(w);
}

static void mpi_destroy(ax_comm *comm)
{
    ax_mpi_comm *c = mpi_comm_of(comm);
    ax_mpi_world *w = c->world;
    bool world = c == w->comm;
    ax_mpi_op what = {.kind = AX_MPI_DESTROY, .finish = free_now};
    if (world)
        atomic_store(&w->leaving, true);
    ax_status status = barrier_then_finish(c, &what);
    if (world && status == AX_OK) {
        pthread_join(w->thread, NULL);
        w->guard->world = NULL;
        world_free(w);
    }
}

const ax_comm_ops ax_mpi_ops = {.name = "mpi",
                                .run = mpi_run,
                                .split = mpi_split,
                                .group = mpi_group,
                                .set_timeout = mpi_set_timeout,
                                .abort = mpi_abort,
                                .failed = mpi_failed,
                                .message = ax_mpi_message_call,
                                .wait_some = ax_mpi_wait_some,
                                .destroy = mpi_destroy,
                                .alloc = ax_mpi_node_alloc,
                                .free = ax_mpi_node_free,
                                .foreign_memory = ax_mpi_node_foreign,
                                .path = mpi_path,
                                .nodes = mpi_nodes,
                                .buffers = mpi_buffers,
                                .reserve = mpi_reserve,
                                .call_mpi = mpi_call};

/* ---- the end of the process ---------------------------------------------------------------------- */

/* Exit handler: aborts the job if the process exits before it has destroyed its world, because the other
 * ranks would wait for ever. */
static void at_exit(int status, void *arg)
{
    const ax_mpi_guard *g = arg;
    if (!g->world || g->pid != getpid() || atomic_load(&g->world->ending))
        return;
    const char *message = atomic_load(&g->world->failed)
                              ? g->world->message
                              : "this rank's process exited without leaving the world (ax_comm_destroy)";
    mpi_abort(&g->world->comm->comm, status ? (ax_status)(status & 255) : AX_ERR_COMM,
              status ? NULL : message);
}

static ax_status guard_exit(ax_mpi_world *w)
{
    AX_TRY(ax_calloc(1, sizeof *w->guard, &w->guard));
    w->guard->pid = getpid();
    AX_CHECK(!on_exit(at_exit, w->guard), AX_ERR_MEMORY,
             "not enough memory to register the function that ends the other ranks if this process exits "
             "early (on_exit)");
    return AX_OK;
}

/* ---- creation ------------------------------------------------------------------------------------ */

/* Waits until MPI has connected the ranks. The watchdog does not run yet, and if a rank fails inside MPI, the
 * other ranks may wait for that rank for ever. So rank 0 warns after START_WARN seconds, and every rank's
 * process exits after START_END seconds. */
static void wait_until_created(ax_mpi_world *w)
{
    enum { START_WARN = 30, START_END = 600 };
    double begin = ax_now();
    bool warned = false;
    struct timespec until;
    pthread_mutex_lock(&w->lock);
    while (!w->created) {
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_sec++;
        pthread_cond_timedwait(&w->to_callers, &w->lock, &until);
        double waited = ax_now() - begin;
        if (!w->created && waited > START_END) {
            ax_log(AX_LOG_ERROR,
                   "rank %d: MPI did not connect the ranks within %d seconds, so the job ends: one may have "
                   "failed in MPI (its messages above say why), or a host is out of reach",
                   w->launch.rank, START_END);
            ax_comm_exit(AX_ERR_COMM);
        }
        if (!w->created && waited > START_WARN && !warned && w->launch.rank <= 0)
            ax_log(AX_LOG_WARN,
                   "rank %d: MPI has not connected the ranks for %d seconds: one may have failed in MPI (its "
                   "messages above say why; a limit of memory, ulimit -v, is one cause), or a host is out of "
                   "reach; this rank waits for %d seconds",
                   w->launch.rank, START_WARN, START_END);
        warned = warned || waited > START_WARN;
    }
    pthread_mutex_unlock(&w->lock);
}

static ax_status start_thread(ax_mpi_world *w)
{
    int error = ax_thread_start(&w->thread, ax_mpi_thread, w);
    AX_CHECK(!error, AX_ERR_MEMORY,
             "cannot start this rank's communication thread: %s; raise the limit of processes (ulimit -u)",
             strerror(error));
    wait_until_created(w);
    if (w->create_status == AX_OK)
        return AX_OK;
    pthread_join(w->thread, NULL);
    return ax_fail(w->create_status, "%s", w->message);
}

ax_status ax_comm_mpi_create(ax_launcher launch, ax_comm **out)
{
    ax_mpi_world *w;
    AX_TRY(ax_calloc(1, sizeof *w, &w));
    w->launch = launch;
    w->queue_end = &w->queue;
    atomic_init(&w->timeout_ms, TIMEOUT_MS);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_mutex_init(&w->lock, NULL);
    pthread_mutex_init(&w->progress_lock, NULL);
    pthread_cond_init(&w->to_thread, &monotonic);
    pthread_cond_init(&w->to_callers, NULL);
    pthread_condattr_destroy(&monotonic);
    ax_status status = guard_exit(w);
    if (status == AX_OK)
        status = start_thread(w);
    if (status == AX_OK) {
        w->guard->world = w;
        ax_log_set_rank(w->comm->comm.rank, w->comm->comm.size);
        *out = &w->comm->comm;
    } else
        world_free(w);
    return status;
}

const char *ax_comm_mpi_library(void)
{
    static _Thread_local char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length;
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS)
        return "an MPI library of unknown version";
    text[strcspn(text, ",\n")] = 0;
    for (char *c = text; (c = strchr(c, '\t'));)
        *c = ' ';
    return text;
}
