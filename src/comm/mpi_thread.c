/* The communication thread: initialises MPI, starts queued operations in order, makes progress on those in
 * flight, and finalizes MPI. Read mpi.h first. */
#include "comm/mpi.h"

#include "axonn/runtime.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/sysinfo.h>
#include <time.h>

ax_status ax_mpi_check(int code, const char *call)
{
    if (code == MPI_SUCCESS)
        return AX_OK;
    char text[MPI_MAX_ERROR_STRING];
    int length;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        snprintf(text, sizeof text, "error %d", code);
    return ax_fail(AX_ERR_COMM, "the MPI function %.*s failed: %s", (int)strcspn(call, "("), call, text);
}

/* ---- communicators ------------------------------------------------------------------------------- */

const ax_mpi_path *const ax_mpi_paths[] = {&ax_mpi_node, &ax_mpi_flat, NULL};

static ax_status find_members(ax_mpi_comm *c)
{
    ax_mpi_world *w = c->world;
    int size = c->comm.size, *own;
    MPI_Group all, mine;
    AX_TRY(ax_calloc((size_t)size, sizeof *c->world_rank, &c->world_rank));
    AX_TRY(ax_calloc((size_t)size, sizeof *own, &own));
    for (int r = 0; r < size; r++)
        own[r] = r;
    int code = MPI_Comm_group(MPI_COMM_WORLD, &all);
    if (code == MPI_SUCCESS)
        code = MPI_Comm_group(c->mpi, &mine);
    if (code == MPI_SUCCESS) {
        code = MPI_Group_translate_ranks(mine, size, own, all, c->world_rank);
        MPI_Group_free(&mine);
        MPI_Group_free(&all);
    }
    free(own);
    AX_TRY(ax_mpi_check(code, "MPI_Group_translate_ranks"));
    for (int r = 0; r < size; r++)
        c->spans_nodes |= w->node[c->world_rank[r]] != w->node[c->world_rank[0]];
    return AX_OK;
}

ax_status ax_mpi_comm_make(ax_mpi_world *w, MPI_Comm mpi, uint64_t id, ax_mpi_comm **out)
{
    ax_mpi_comm *c;
    AX_TRY(ax_calloc(1, sizeof *c, &c));
    c->world = w;
    c->mpi = mpi;
    c->id = id;
    c->comm = (ax_comm){.ops = &ax_mpi_ops, .impl = c};
    *out = c;
    AX_MPI(MPI_Comm_set_errhandler(mpi, MPI_ERRORS_RETURN));
    AX_MPI(MPI_Comm_rank(mpi, &c->comm.rank));
    AX_MPI(MPI_Comm_size(mpi, &c->comm.size));
    AX_TRY(find_members(c));
    AX_TRY(ax_mpi_flat_create(c->comm.size, &c->flat));
    for (const ax_mpi_path *const *p = ax_mpi_paths; *p; p++)
        if ((*p)->attach)
            AX_TRY((*p)->attach(c));
    pthread_mutex_lock(&w->lock);
    c->next = w->comms;
    w->comms = c;
    pthread_mutex_unlock(&w->lock);
    return AX_OK;
}

void ax_mpi_comm_free(ax_mpi_comm *c)
{
    pthread_mutex_lock(&c->world->lock);
    ax_mpi_comm **link = &c->world->comms;
    while (*link && *link != c)
        link = &(*link)->next;
    if (*link)
        *link = c->next;
    pthread_mutex_unlock(&c->world->lock);
    for (const ax_mpi_path *const *p = ax_mpi_paths; *p; p++)
        if ((*p)->detach)
            (*p)->detach(c);
    ax_mpi_flat_destroy(&c->flat);
    MPI_Comm_free(&c->mpi);
    free(c->world_rank);
    free(c);
}

/* ---- operations ---------------------------------------------------------------------------------- */

void ax_mpi_wake_callers(ax_mpi_world *w)
{
    if (atomic_load(&w->sleeping)) {
        pthread_mutex_lock(&w->lock);
        pthread_cond_broadcast(&w->to_callers);
        pthread_mutex_unlock(&w->lock);
    }
}

static void complete(ax_mpi_world *w, ax_mpi_op *op, ax_status status)
{
    op->status = status;
    w->progress++;
    atomic_store(&op->done, true);
    ax_mpi_wake_callers(w);
}

void ax_mpi_fail_quietly(ax_mpi_world *w, const char *message)
{
    pthread_mutex_lock(&w->lock);
    if (!atomic_load(&w->failed))
        snprintf(w->message, sizeof w->message, "%s", message);
    atomic_store(&w->failed, true);
    pthread_mutex_unlock(&w->lock);
}

void ax_mpi_fail(ax_mpi_world *w, const char *message)
{
    if (atomic_load(&w->failed))
        return;
    ax_mpi_note note = {.kind = AX_NOTE_FAIL};
    snprintf(note.text, sizeof note.text, "%s", message);
    ax_mpi_fail_quietly(w, message);
    ax_mpi_note_send_all(w, &note);
}

/* Removes the first operation of the queue and returns it; returns NULL if the queue is empty. If `local`
 * is true, also returns NULL, and removes nothing, if the first operation needs MPI. */
static ax_mpi_op *dequeue(ax_mpi_world *w, bool local)
{
    if (!atomic_load(&w->queued))
        return NULL;
    pthread_mutex_lock(&w->lock);
    ax_mpi_op *op = w->queue;
    if (op && local && !op->local)
        op = NULL;
    if (op) {
        w->queue = op->next;
        if (!w->queue)
            w->queue_end = &w->queue;
        atomic_fetch_sub(&w->queued, 1);
    }
    pthread_mutex_unlock(&w->lock);
    return op;
}

/* Completes all operations and messages with AX_ERR_COMM. MPI requests that are active stay active until the
 * job ends. */
static void drop_all(ax_mpi_world *w)
{
    for (ax_mpi_op *op; (op = w->active);) {
        w->active = op->next;
        complete(w, op, AX_ERR_COMM);
    }
    for (ax_mpi_op *op; (op = dequeue(w, false));)
        complete(w, op, AX_ERR_COMM);
    ax_mpi_drop_messages(w);
}

const ax_mpi_path *ax_mpi_path_of(const ax_mpi_comm *c, const ax_coll_args *args)
{
    const ax_mpi_path *const *p = ax_mpi_paths;
    while (p[1] && !(*p)->takes(c, args))
        p++;
    return *p;
}

/* Starts queued operations in order. Stops after an operation whose calls are still being compared or that
 * has pieces (parts of its data) not yet started. If `local` is true, also stops before an operation that
 * needs MPI. Returns true if an operation was started. */
static bool start_queued(ax_mpi_world *w, bool local)
{
    bool moved = false;
    ax_mpi_op **end = &w->active, *op, *last = NULL;
    for (; *end; end = &(*end)->next)
        last = *end;
    while ((!last || (!last->checking && !last->unstarted)) && (op = dequeue(w, local))) {
        op->next = NULL;
        *end = last = op;
        end = &op->next;
        op->checking = w->checks && op->c->comm.size > 1;
        if ((op->checking ? ax_mpi_check_start(op) : op->path->start(op)) != AX_OK)
            ax_mpi_fail(w, ax_error_message());
        moved = true;
    }
    return moved;
}

/* Makes progress on an operation: first on the comparison of the ranks' calls (mpi_check.c), then on the
 * collective. */
static ax_status progress_op(ax_mpi_op *op, bool *done)
{
    if (op->checking) {
        bool checked = false;
        AX_TRY(ax_mpi_check_test(op, &checked));
        if (!checked)
            return AX_OK;
        op->checking = false;
        op->c->world->progress++;
        AX_TRY(op->path->start(op));
    }
    return op->path->test(op, done);
}

/* Makes progress on all operations in flight; if `local` is true, only on those that need no MPI. A caller's
 * thread (`local`) leaves errors to the communication thread, because ax_mpi_fail sends control messages
 * through MPI. */
static bool progress_active(ax_mpi_world *w, bool local)
{
    uint64_t before = w->progress;
    for (ax_mpi_op **link = &w->active; *link && !atomic_load(&w->failed);) {
        ax_mpi_op *op = *link;
        bool done = false;
        ax_status status = local && !op->local ? AX_OK : progress_op(op, &done);
        if (status == AX_OK && done) {
            *link = op->next;
            status = op->finish ? op->finish(op) : AX_OK;
        } else
            link = &op->next;
        if (status != AX_OK && !local)
            ax_mpi_fail(w, ax_error_message());
        if (done) /* only after ax_mpi_fail, which sets w->message: op's caller then reads w->message */
            complete(w, op, status);
    }
    return w->progress != before;
}

/* What the operations and messages in flight need to make progress: nothing (none is in flight), shared
 * memory alone, MPI for messages (ax_send, ax_recv), or MPI for an operation. If their needs differ, the last
 * of these counts. */
typedef enum in_flight { NOTHING, NEEDS_MEMORY, NEEDS_MESSAGES, NEEDS_MPI } in_flight;

static in_flight needs_of_active(const ax_mpi_world *w)
{
    in_flight most = w->messages ? NEEDS_MESSAGES : NOTHING;
    for (const ax_mpi_op *op = w->active; op && most != NEEDS_MPI; op = op->next) {
        in_flight needs = op->local ? NEEDS_MEMORY : NEEDS_MPI;
        most = needs > most ? needs : most;
    }
    return most;
}

bool ax_mpi_help(ax_mpi_world *w)
{
    if (atomic_load(&w->failed) || pthread_mutex_trylock(&w->progress_lock))
        return false;
    bool moved = start_queued(w, true);
    moved |= progress_active(w, true);
    pthread_mutex_unlock(&w->progress_lock);
    return moved;
}

/* ---- resting ------------------------------------------------------------------------------------- */

/* A pass tests all operations once. After each of the first YIELDS passes without progress (YIELDS_WAITING
 * while a caller waits) the thread yields; after each further pass without progress the thread sleeps, longer
 * and longer, from NAP to LONGEST_NAP, both times w->crowding or MOST_CROWDING. HELPED_NAP: length of a sleep
 * while waiting callers make progress themselves. IDLE_NAP: length of a sleep while nothing is in flight. All
 * sleeps are in nanoseconds, and end early if a caller needs the thread. LOOK_EVERY: the most passes between
 * two checks of control messages (notes) and the watchdog. */
enum {
    LOOK_EVERY = 64,
    YIELDS = 100,
    YIELDS_WAITING = 2000,
    NAP = 20000,
    LONGEST_NAP = 200000,
    MOST_CROWDING = 4,
    HELPED_NAP = 1000000,
    IDLE_NAP = 10000000
};

static void sleep_until_called(ax_mpi_world *w, long nanoseconds)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += nanoseconds;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->resting, true);
    if (!w->queue && !w->new_messages && !atomic_load(&w->aborting))
        pthread_cond_timedwait(&w->to_thread, &w->lock, &until);
    atomic_store(&w->resting, false);
    pthread_mutex_unlock(&w->lock);
}

/* Yields or sleeps after `idle` passes (tests of all operations) without progress; returns true if it slept.
 * While a caller waits, its core is free, so the thread mostly yields and keeps testing. While all callers
 * compute, they need the core, so the thread soon sleeps between tests. While waiting callers make progress
 * themselves and no operation needs MPI, the thread sleeps at once. The thread also sleeps at once if ranks
 * share cores: another rank can use the core, and each yield of a rank that waits costs those that compute a
 * switch and a test of MPI's sockets. So does each end of a sleep: the more ranks share a core, the longer
 * they sleep, so that together they wake as often as one rank alone; not beyond MOST_CROWDING, because what
 * is in flight between ranks that all wait becomes slower. */
static bool yield_or_sleep(ax_mpi_world *w, in_flight now, unsigned idle)
{
    bool helped = atomic_load(&w->helping) && now != NEEDS_MPI;
    unsigned yields = helped || w->crowding > 1 ? 0 : atomic_load(&w->waiting) ? YIELDS_WAITING : YIELDS;
    if (idle < yields)
        sched_yield();
    else if (helped)
        sleep_until_called(w, HELPED_NAP);
    else {
        long nap = (long)ax_min(LONGEST_NAP, NAP * (1 + (idle - yields) / 10)) *
                   (long)ax_min(w->crowding, MOST_CROWDING);
        sleep_until_called(w, now == NOTHING ? IDLE_NAP : nap);
    }
    return idle >= yields;
}

/* ---- start and end ------------------------------------------------------------------------------- */

/* Splits each node into emulated nodes of at most N ranks if runtime.ranks_per_node=N (for tests). Rank 0's
 * value is used. */
static ax_status emulate_nodes(ax_mpi_world *w, int size)
{
    const char *text;
    ax_status read = ax_runtime_get(AX_RUNTIME_RANKS_PER_NODE, &text);
    int n = read == AX_OK ? (int)strtol(text, NULL, 10) : 0;
    AX_MPI(MPI_Bcast(&n, 1, MPI_INT, 0, MPI_COMM_WORLD));
    if (n <= 0)
        return AX_OK;
    int *seen; /* seen[r]: ranks counted so far on the node whose first rank is r */
    AX_TRY(ax_calloc((size_t)size, sizeof *seen, &seen));
    int *first; /* first[r]: first rank of the latest emulated node on the node whose first rank is r */
    ax_status status = ax_calloc((size_t)size, sizeof *first, &first);
    for (int r = 0; r < size && status == AX_OK; r++) {
        int node = w->node[r];
        if (seen[node]++ % n == 0)
            first[node] = r;
        w->node[r] = first[node];
    }
    free(first);
    free(seen);
    return status;
}

/* Counts the ranks that share this rank's processors: those of its kernel, in whatever container or network
 * namespace, though MPI sees a host in each. */
static ax_status find_crowding(ax_mpi_world *w, int size)
{
    const uint64_t mine = ax_kernel_key();
    uint64_t *keys;
    int sharing = 0;
    AX_TRY(ax_calloc((size_t)size, sizeof *keys, &keys));
    const ax_status status = ax_mpi_check(
        MPI_Allgather(&mine, 1, MPI_UINT64_T, keys, 1, MPI_UINT64_T, MPI_COMM_WORLD), "MPI_Allgather");
    for (int r = 0; r < size; r++)
        sharing += keys[r] == mine;
    w->crowding = (int)ax_ceil_div(sharing, get_nprocs());
    free(keys);
    return status;
}

static ax_status find_nodes(ax_mpi_world *w, int rank, int size)
{
    MPI_Comm node;
    int first = rank;
    AX_TRY(find_crowding(w, size));
    AX_TRY(ax_calloc((size_t)size, sizeof *w->node, &w->node));
    AX_MPI(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node));
    AX_MPI(MPI_Bcast(&first, 1, MPI_INT, 0, node));
    AX_MPI(MPI_Comm_free(&node));
    AX_MPI(MPI_Allgather(&first, 1, MPI_INT, w->node, 1, MPI_INT, MPI_COMM_WORLD));
    return emulate_nodes(w, size);
}

/* Initialises MPI, unless the program has already initialised it. In that case the program also finalizes
 * MPI, and must have initialised it with MPI_THREAD_MULTIPLE, because the program and this thread both call
 * MPI. */
static ax_status init_mpi(ax_mpi_world *w)
{
    int initialized, finalized, level;
    MPI_Initialized(&initialized);
    MPI_Finalized(&finalized);
    AX_CHECK(!finalized, AX_ERR_USAGE,
             "this process has already called MPI_Finalize: it can create a world over MPI only before that, "
             "and only once");
    w->owns_mpi = !initialized;
    if (w->owns_mpi)
        AX_MPI(MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &level));
    else
        AX_MPI(MPI_Query_thread(&level));
    AX_CHECK(level >= (w->owns_mpi ? MPI_THREAD_FUNNELED : MPI_THREAD_MULTIPLE), AX_ERR_USAGE,
             w->owns_mpi ? "this MPI library does not support MPI_THREAD_FUNNELED, which axonn needs: use "
                           "another MPI library"
                         : "this program initialised MPI with a thread level below MPI_THREAD_MULTIPLE: call "
                           "MPI_Init_thread with MPI_THREAD_MULTIPLE");
    return AX_OK;
}

static ax_status check_launch(const ax_mpi_world *w, int size)
{
    const ax_launcher *l = &w->launch;
    bool fits = l->size ? size == l->size : size > 1 || l->rank == 0;
    char meant[32] = "several ranks";
    if (l->size)
        snprintf(meant, sizeof meant, "%d ranks", l->size);
    AX_CHECK(fits, AX_ERR_USAGE,
             "%s started %s, but MPI finds %d: this program uses another MPI library (%s) than its launcher; "
             "start it with that library's mpirun",
             l->launcher, meant, size, ax_comm_mpi_library());
    return AX_OK;
}

static ax_status create_world(ax_mpi_world *w)
{
    int rank, size;
    MPI_Comm own;
    AX_TRY(init_mpi(w));
    if (w->owns_mpi) /* a program that has initialised MPI chooses the error handler */
        AX_MPI(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    AX_MPI(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    AX_MPI(MPI_Comm_size(MPI_COMM_WORLD, &size));
    AX_TRY(check_launch(w, size));
    ax_log_set_rank(rank, size);
    AX_TRY(find_nodes(w, rank, size));
    AX_TRY(ax_mpi_control_create(w));
    AX_TRY(ax_mpi_watch_create(w, size));
#ifndef NDEBUG
    AX_TRY(ax_mpi_checks_create(w, size));
#endif
    AX_TRY(ax_mpi_node_create(w));
    AX_MPI(MPI_Comm_dup(MPI_COMM_WORLD, &own));
    return ax_mpi_comm_make(w, own, 1, &w->comm);
}

static void announce_created(ax_mpi_world *w, ax_status status)
{
    pthread_mutex_lock(&w->lock);
    w->create_status = status;
    snprintf(w->message, sizeof w->message, "%s", status == AX_OK ? "" : ax_error_message());
    w->created = true;
    pthread_cond_broadcast(&w->to_callers);
    pthread_mutex_unlock(&w->lock);
}

/* Returns true if the MPI world has only this rank. If the creation of the world fails, MPI is finalized only
 * if this rank is alone: otherwise MPI_Finalize could wait for ranks that are inside another MPI call. The
 * launcher ends the job when this process fails. */
static bool is_alone(void)
{
    int initialized, size = 0;
    return MPI_Initialized(&initialized) == MPI_SUCCESS && initialized &&
           MPI_Comm_size(MPI_COMM_WORLD, &size) == MPI_SUCCESS && size == 1;
}

static void destroy_world(ax_mpi_world *w)
{
    if (w->control)
        ax_mpi_control_destroy(w);
    ax_mpi_watch_destroy(w);
    ax_mpi_checks_destroy(w);
    if (w->comm)
        ax_mpi_comm_free(w->comm);
    ax_mpi_node_destroy(w);
    if (w->owns_mpi)
        MPI_Finalize();
}

static void abort_job(ax_mpi_world *w)
{
    pthread_mutex_lock(&w->lock);
    const char *message = w->abort_message;
    int status = w->abort_status;
    pthread_mutex_unlock(&w->lock);
    ax_mpi_end_job(w, status, message, true);
}

/* Handles ax_comm_abort, control messages (notes) and the watchdog. Called after every LOOK_EVERY passes
 * (tests of all operations), and after each sleep. */
static void check_control(ax_mpi_world *w)
{
    if (atomic_load(&w->aborting))
        abort_job(w);
    pthread_mutex_lock(&w->progress_lock); /* the watchdog's answers read w->active */
    if (ax_mpi_control_poll(w) != AX_OK)
        ax_mpi_fail(w, ax_error_message());
    ax_mpi_watch_look(w);
    pthread_mutex_unlock(&w->progress_lock);
}

static bool drive_all(ax_mpi_world *w, in_flight *now)
{
    bool moved = false;
    pthread_mutex_lock(&w->progress_lock);
    if (atomic_load(&w->failed))
        drop_all(w);
    else {
        moved = start_queued(w, false);
        moved |= progress_active(w, false);
        moved |= ax_mpi_progress_messages(w);
    }
    *now = needs_of_active(w);
    pthread_mutex_unlock(&w->progress_lock);
    return moved;
}

void *ax_mpi_thread(void *world)
{
    ax_mpi_world *w = world;
    prctl(PR_SET_TIMERSLACK, 1000UL);
    ax_status status = create_world(w);
    announce_created(w, status);
    for (unsigned idle = 0, rounds = 0; status == AX_OK && !w->quit; rounds++) {
        in_flight now;
        bool moved = drive_all(w, &now), napped = false;
        idle = moved ? 0 : idle + 1;
        if (!moved)
            napped = yield_or_sleep(w, now, idle);
        if (napped || rounds % LOOK_EVERY == 0)
            check_control(w);
    }
    if (status == AX_OK || is_alone())
        destroy_world(w);
    return NULL;
}
