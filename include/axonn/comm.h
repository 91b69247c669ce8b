/* comm: communicators, that is groups of ranks, and their collective operations. The world is the
 * communicator of all ranks; a node is a machine, or for tests a part of one (setting
 * runtime.ranks_per_node).
 *
 * A communicator has one table of operations (ax_comm_ops), as a device has. Backends:
 *
 *   self      one rank: a collective is a local copy
 *   threads   ranks are threads of one process, for tests and sanitizers
 *   mpi       ranks are processes that a launcher started; one thread of each process makes all MPI calls
 *   dry       one rank of several, of which the others do not exist: for dry runs (ax_comm_dry_create)
 *
 * Nonblocking. Every operation stores a work handle in *work and may return before it is complete. The
 * buffers belong to the operation until ax_wait. A backend whose operations are complete on return stores
 * NULL, which ax_wait accepts. Counts are in elements.
 *
 * Order. All ranks of a communicator must call the same collectives in the same order, with the same
 * operation, count and dtype. There must be one order of all collectives of all communicators of which the
 * calls of each rank are a part: it is not enough that each two ranks agree. The order of ax_wait calls is
 * free. If ranks compare their calls and the calls differ, every rank gets AX_ERR_COMM instead of hanging.
 * Collectives of backend threads, and of path "node" (ax_comm_path) among the ranks of one node, always
 * compare the calls. Others (path "flat", and from device to device) compare them only in builds with
 * assertions.
 *
 * Messages (ax_send, ax_recv) go from one rank to another. Messages are independent of collectives: a message
 * does not wait for a collective, nor a collective for a message. So ranks need not agree on the order of a
 * message and a collective.
 *
 * Devices. `stream` belongs to the device that owns the buffers; it is NULL for host memory. Device memory is
 * discrete if it is not host memory. Collectives on discrete memory go through host memory, and the host
 * waits for the device. If the communicator is connected (ax_comm_connect), its collectives go from
 * device to device, and ax_wait makes the stream wait; the host waits only if launches are timed or traced.
 * Messages of discrete device memory always go through pinned host memory, on the device's copy streams. The
 * host does not wait for the device in ax_send and ax_recv (but see ax_comm_reserve_messages). If a message
 * has arrived, ax_wait on its receive makes the stream wait for the copy to the device; the host waits for
 * this copy only if launches are traced.
 *
 * Failure. The world fails when a collective or a message of a rank cannot be completed, when a rank calls
 * ax_comm_abort, and, with backend threads, when the function of a rank returns an error. From then on the
 * calls of all ranks return AX_ERR_COMM. (With backend mpi, ax_comm_abort ends all processes instead.)
 * Messages in flight may still arrive: the buffers of failed operations must stay allocated until the process
 * ends.
 *
 * Reductions add in rank order. Exception: if a group has equally many ranks, two or more, on each of several
 * nodes, a large reduction first adds within each node and then adds the nodes' sums. In both cases the
 * result has the same bits on every rank and in every run. If NCCL reduces, from device to device, NCCL
 * chooses the order of additions, the same on every rank; NCCL may round BF16 and F16 after each addition,
 * and its MAX may drop a NaN. */
#ifndef AXONN_COMM_H
#define AXONN_COMM_H

#include "axonn/dev.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ax_work ax_work;
/* Traffic of this rank on one communicator, counted since the communicator's creation. On a communicator of
 * one rank nothing is counted. */
typedef struct ax_comm_traffic {
    int64_t calls; /* number of collectives and of sent messages */
    int64_t bytes; /* bytes that each of g ranks would send in a ring algorithm: (g-1)/g of the larger of send
                      and receive buffer for all-gather, reduce-scatter and all-to-all, 2(g-1)/g of the buffer
                      for all-reduce; a message counts on its sender, with all its bytes */
    int64_t wire; /* bytes sent to ranks on other nodes, added by ax_wait; bytes that go from device to device
                     are not counted */
    double exposed; /* seconds that the host spent inside collectives, ax_wait and ax_wait_some. Between
                       connected devices the host waits only if launches are timed or traced. When data are
                       copied through the host, the time includes the wait for preceding kernels, unless
                       launches are timed (AX_ON_TIME) */
} ax_comm_traffic;

int ax_comm_rank(const ax_comm *comm);
int ax_comm_size(const ax_comm *comm);
ax_comm_traffic ax_comm_traffic_get(const ax_comm *comm);

/* Creates a communicator of one rank, which the caller owns. */
AX_MUST_CHECK ax_status ax_comm_self_create(ax_comm **out);

/* Creates the world communicator of this process: all ranks that a launcher (mpirun, srun, …) started,
 * connected by MPI; without a launcher, one rank. AX_ERR_USAGE if the launcher's environment variables give
 * another number of ranks than MPI finds: the launcher belongs to another MPI library, or this build has no
 * MPI. The caller owns the communicator and destroys it after all communicators that were made from it. Call
 * this function once per process, because MPI cannot be initialised again. Collective along all ranks. */
AX_MUST_CHECK ax_status ax_comm_world_create(ax_comm **out);

/* The launcher that started this process, according to environment variables. Not collective. */
typedef struct ax_launcher {
    const char *launcher; /* NULL: none */
    int rank, size;       /* size 0: the launcher does not set it */
} ax_launcher;
ax_launcher ax_launcher_find(void);

/* Returns name and version of the MPI library of this build ("Open MPI v4.1.4"); NULL: built without MPI. */
const char *ax_comm_mpi_library(void);

/* Runs fn(comm, arg) on `size` threads, each a rank of one world. Returns AX_OK, or the status of the rank
 * that failed first, with that rank's message. "rank r: " precedes the message, unless all ranks share the
 * error (ax_error_is_shared). A rank that fails aborts the other ranks. If all ranks wait for one another, or
 * for a rank that has returned (deadlock), they get AX_ERR_COMM; this requires that each rank makes its calls
 * from its own thread. */
typedef ax_status ax_rank_fn(ax_comm *world, void *arg);
AX_MUST_CHECK ax_status ax_comm_threads_run(int size, ax_rank_fn *fn, void *arg);
/* Runs fn(world, arg) on the ranks of `world`, such as those that a launcher started. If the world has one
 * rank and `ranks` is larger, runs fn on `ranks` threads instead (ax_comm_threads_run), to try a grid without
 * MPI. Aborts the job if this rank alone fails (ax_comm_abort_unshared). Collective along world. */
AX_MUST_CHECK ax_status ax_comm_run(ax_comm *world, int ranks, ax_rank_fn *fn, void *arg);

/* Splits comm like MPI_Comm_split: ranks with equal `color` form a communicator, in the order of `key`; ranks
 * with equal keys are in the order that they have in comm. A rank with color < 0 gets no communicator: *out =
 * NULL. Collective along comm. The caller owns *out and destroys it before comm. */
AX_MUST_CHECK ax_status ax_comm_split(ax_comm *comm, int color, int key, ax_comm **out);
/* Creates the communicator of the `n` ranks of comm that `ranks` lists, in this order. The calling rank must
 * be in the list. If it is alone there, *out is as from ax_comm_self_create. Collective along the listed
 * ranks, which all pass the same list; the other ranks of comm do not take part. The caller owns *out and
 * destroys it before comm. */
AX_MUST_CHECK ax_status ax_comm_group(ax_comm *comm, const int *ranks, int n, ax_comm **out);
/* Creates the world of a dry run: this process acts as rank `rank` of `size`, and the other ranks do not
 * exist. Collectives and messages on memory of the device `dry` are counted and move no data; each is in
 * flight until ax_wait, so that listeners of the device (dev.h) are told of both. Those on host memory, and
 * ax_comm_split, fail (AX_ERR_INTERNAL).
 * ax_comm_group makes communicators like this one, of one rank too. The caller owns *out. AX_ERR_USAGE if
 * there is no such rank. Not collective. */
AX_MUST_CHECK ax_status ax_comm_dry_create(int rank, int size, ax_comm **out);
/* Creates a world like that of ax_comm_dry_create, in which this process is rank 0 and decides alone: a
 * collective on host memory reduces the value of this rank only, and gathers zeros from the others. So what
 * ranks agree about (a configuration, a grid, an error) is what rank 0 says, and no other rank shares its
 * machine. For plans of runs that have not started. */
AX_MUST_CHECK ax_status ax_comm_alone_create(int size, ax_comm **out);
/* Numbers the ranks of a dry run's world as they lie on the machine, node by node: rank i is number ranks[i],
 * 0 <= ranks[i] < size. Without a call rank i is number i. Call it before groups are made. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_comm_dry_number(ax_comm *world, const int *ranks);
/* Says that nodes have `ranks_per_node` ranks each, which share memory or not, so that the world and groups
 * made afterwards count what they would send to other nodes over MPI (ax_comm_traffic.wire, up to the
 * rounding of slices), and the buffers that they would need for it (ax_comm_buffers_of). 0: they count none.
 * AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_comm_dry_nodes(ax_comm *world, int ranks_per_node, bool shared);
/* Does the same for the nodes of `real`, a communicator of as many ranks; ranks that are not of backend mpi
 * have no nodes, and nothing is counted. Not collective. */
AX_MUST_CHECK ax_status ax_comm_dry_nodes_of(ax_comm *world, const ax_comm *real);
/* Returns true if a communicator of a dry run counts these. */
bool ax_comm_dry_has_nodes(const ax_comm *comm);
/* Changes key[m] for each number m of the world: to equal values where, after equal ones, the groups of two
 * ranks along the axes of `comm` lie alike on nodes, and have as many ranks on the nodes of the two. Changes
 * none and returns false if all do, or if the nodes are not those of ax_comm_dry_nodes. */
bool ax_comm_dry_mark(const ax_comm *comm, uint64_t *key);
/* Returns the number in the world of rank `rank` of a communicator of a dry run. */
int ax_comm_world_rank(const ax_comm *comm, int rank);
/* How the ranks of a communicator of a dry run lie on nodes of `ranks_per_node` ranks each. The communicator
 * keeps the answer, so calls are not thread-safe. */
typedef struct ax_comm_place {
    int inner;   /* distance of neighbours in the world: how many ranks the axes inside have */
    int in_node; /* the most ranks that are on one node; of this communicator and those of other ranks along
                    the same axes, that which has the fewest there */
} ax_comm_place;
ax_comm_place ax_comm_place_of(const ax_comm *comm, int ranks_per_node);
/* Returns true for a communicator of a dry run, whose other ranks do not exist. */
bool ax_comm_is_dry(const ax_comm *comm);
/* Destroys a communicator that has no operation in flight. Collective along comm, unless the world has
 * failed. */
void ax_comm_destroy(ax_comm **comm);

/* Sets the timeout of the watchdog (0: off; default AX_COMM_TIMEOUT). A rank that waits for `seconds` without
 * progress asks all other ranks what they are doing. The job ends if one rank does not answer, or if all
 * ranks wait for one another or for ranks that have left. The exit code is AX_ERR_COMM, and a message names
 * the operation and the ranks. Ranks that are late because they compute cause a warning only. A rank that
 * waits for a collective from device to device (NCCL) checks only that all ranks answer, because the device
 * may still be computing. Backend mpi only: backend threads detects deadlocks immediately. Not collective. */
void ax_comm_set_timeout(ax_comm *world, double seconds);
#define AX_COMM_TIMEOUT 30 /* seconds */
/* Makes the watchdog quick until the next ax_comm_set_timeout, even a watchdog that is off: if this rank
 * waits and another rank does not answer within about 2 seconds, the job ends. A quick watchdog does not
 * detect ranks that wait for one another. Signal handlers call this function when they ask the rank to stop,
 * so that the rank does not wait long for a dead rank. Backend mpi only. Async-signal-safe. Not
 * collective. */
void ax_comm_hurry(ax_comm *world);

/* Makes every pending and later operation of the world fail with AX_ERR_COMM. With backend mpi the job ends
 * instead, and ax_comm_abort does not return: the first rank that aborts logs its `message` (NULL: none) as
 * an error, and all processes exit with its `status`. A process that exits before it has destroyed its world
 * over MPI aborts the job with its own exit code (AX_ERR_COMM if that code is 0). Not collective. */
void ax_comm_abort(ax_comm *comm, ax_status status, const char *message);
/* Calls ax_comm_abort with the message of the last error if `status` is an error of this rank only
 * (ax_error_is_shared): the other ranks may be waiting for this rank. Not collective. */
void ax_comm_abort_unshared(ax_comm *world, ax_status status);
/* Sets a function that this process calls with its exit code, right before it ends because a job over MPI is
 * aborted. (A process that MPI or the launcher kills does not call it.) The function may run on any thread,
 * and twice; it must be async-signal-safe. NULL: none. Not collective. */
void ax_comm_on_abort(void (*function)(int code));

/* data[i] <- sum or maximum over all ranks of data[i], in place. dtype: F64, F32, I32, I64, or BF16 or F16,
 * which are summed in F32. */
AX_MUST_CHECK ax_status ax_all_reduce(ax_comm *comm, ax_stream *stream, void *data, int64_t count,
                                      ax_dtype dtype, ax_reduce_op op, ax_work **work);
/* recv[r·count …] <- send[0 … count) of rank r, for each rank r. `send` may be recv + rank·count, where rank
 * is that of the caller (in place). */
AX_MUST_CHECK ax_status ax_all_gather(ax_comm *comm, ax_stream *stream, const void *send, void *recv,
                                      int64_t count, ax_dtype dtype, ax_work **work);
/* recv[i] <- sum or maximum over all ranks of send[rank·count + i], i < count, where rank is that of the
 * receiver. recv does not overlap send. */
AX_MUST_CHECK ax_status ax_reduce_scatter(ax_comm *comm, ax_stream *stream, const void *send, void *recv,
                                          int64_t count, ax_dtype dtype, ax_reduce_op op, ax_work **work);
/* recv[s·count …] <- send[rank·count …] of rank s, for each rank s, where rank is that of the receiver. recv
 * does not overlap send. */
AX_MUST_CHECK ax_status ax_all_to_all(ax_comm *comm, ax_stream *stream, const void *send, void *recv,
                                      int64_t count, ax_dtype dtype, ax_work **work);
/* data <- data of rank root. Adds (g-1)/g of the size to ax_comm_traffic.bytes, g being the number of
 * ranks. */
AX_MUST_CHECK ax_status ax_broadcast(ax_comm *comm, ax_stream *stream, void *data, int64_t count,
                                     ax_dtype dtype, int root, ax_work **work);
AX_MUST_CHECK ax_status ax_barrier(ax_comm *comm);

/* Allocates and frees host memory for buffers of collectives: zeroed whole pages between guard pages. If the
 * ranks of a node share memory, the other ranks of the node map these pages too, and collectives between them
 * read the buffers in place. If shared memory is exhausted, one warning is logged and the memory is private:
 * collectives on it are slower, with the same results. For set-up, never within a step. ax_comm_free gets the
 * same `bytes` as ax_comm_alloc; memory NULL is allowed. Not collective. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_comm_alloc(ax_comm *comm, size_t bytes, void **out);
void ax_comm_free(ax_comm *comm, void *memory, size_t bytes);
/* Estimates the bytes of other ranks' shared memory that are resident in this process because it has touched
 * them. Linux counts these pages as resident in this process (ax_memory_now, ax_memory_peak) and in the
 * process that owns them. Not collective. */
int64_t ax_comm_foreign_memory(const ax_comm *comm);

/* Lets collectives on buffers of `dev` go from device to device if every rank has a device of its own and
 * NCCL. Otherwise data are still copied through the host, the reason is written to `why`, and the result is
 * AX_OK. `why` is empty if the devices were connected, or if no connection is needed: the device uses host
 * memory, the communicator has one rank, or it is connected already. `name` is the communicator's name in
 * messages. The connection lasts until ax_comm_disconnect, which ax_comm_destroy calls. ax_comm_disconnect
 * also frees the pinned memory through which messages of a device went. So call it before the device is
 * closed, even for a communicator that is not connected. For set-up, not for training steps. ax_comm_connect
 * is collective along comm; ax_comm_disconnect is collective only if comm is connected. AX_ERR_COMM if a rank
 * fails. */
enum { AX_COMM_WHY = 512 };
AX_MUST_CHECK ax_status ax_comm_connect(ax_comm *comm, ax_device *dev, const char *name,
                                        char why[AX_COMM_WHY]);
void ax_comm_disconnect(ax_comm *comm);

/* Returns the path of a collective, that is, how its data travel between the ranks, if the buffers are on
 * `stream`'s device (NULL: in host memory): "node" (through memory that the ranks of a node share, and
 * between nodes by MPI messages), "flat" (MPI messages), "threads", "self", "nccl", or "staged" (copied to
 * the host, then one of the first four). Of `args` only the members coll, count and dtype are read. Not
 * collective. */
const char *ax_comm_path(const ax_comm *comm, const ax_stream *stream, const ax_coll_args *args);

/* Waits until the operation *work is complete (on discrete device memory the stream may wait in place of the
 * host; see "Devices" above), and sets *work to NULL. If *work is NULL, returns at once. */
AX_MUST_CHECK ax_status ax_wait(ax_work **work);

/* ---- messages ------------------------------------------------------------------------------------ */

/* The kind of data that a message carries. On one communicator, messages of one kind from one rank to another
 * are received in the order in which they were sent; different kinds are independent of each other. */
typedef enum ax_message_kind {
    AX_MESSAGE_ACTIVATION, /* output of a pipeline stage, for the next stage */
    AX_MESSAGE_GRADIENT,   /* gradient of an activation, for the stage that sent it */
    AX_MESSAGE_TASK,       /* which task the ranks of a pipeline stage run next */
    AX_MESSAGE_WEIGHT,     /* weights that two pipeline stages share, and their gradients */
    AX_MESSAGE_KINDS
} ax_message_kind;

/* The description of a message. Sender and receiver must pass equal descriptions, except for `note`. */
enum { AX_MESSAGE_DIMS = 4 };
typedef struct ax_message {
    ax_message_kind kind;
    ax_dtype dtype;
    int64_t step, micro_batch;
    int chunk; /* which chunk of the receiving pipeline stage the data are for (pipe.h) */
    int ndim;
    int64_t dim[AX_MESSAGE_DIMS]; /* shape of the data */
    int note;                     /* a number that the sender passes to the receiver (ax_work_note) */
} ax_message;

/* Prints a message, such as "activation of micro-batch 3 of step 7, bf16 [4, 256, 768]". Returns out. */
enum { AX_MESSAGE_TEXT = 192 };
char *ax_message_describe(const ax_message *message, char out[AX_MESSAGE_TEXT]);

/* ax_send sends data to rank `to` of comm, ax_recv receives data from rank `from`. `to` and `from` must be
 * other ranks than the calling one. The buffers belong to the message until ax_wait. A send is complete when
 * its data have arrived, or when the backend has copied them; a receive may be posted before or after the
 * send. If the descriptions of sender and receiver differ, the world fails with AX_ERR_COMM, and the error
 * message has both. Over MPI, builds with assertions also check that the data did not change on the way. At
 * most 2^31 - 1 bytes. Not collective. */
AX_MUST_CHECK ax_status ax_send(ax_comm *comm, ax_stream *stream, const ax_message *message, const void *data,
                                int to, ax_work **work);
AX_MUST_CHECK ax_status ax_recv(ax_comm *comm, ax_stream *stream, const ax_message *message, void *data,
                                int from, ax_work **work);
/* Reserves `n` pinned host buffers of `bytes` bytes each for messages of device memory on `comm`, unless the
 * host can access the memory of `dev` at any time (ax_device_host_access). A message uses a buffer until its
 * ax_wait has returned; a received message also until its copy to the device is done. If all buffers that are
 * large enough are in use, one more is allocated; but if for a reserved one only the copy still runs, the
 * host waits for this copy instead. ax_comm_disconnect frees the buffers. For set-up. Not collective. */
AX_MUST_CHECK ax_status ax_comm_reserve_messages(ax_comm *comm, ax_device *dev, size_t bytes, int64_t n);
/* Frees `n` buffers that were reserved with the same arguments, after their last copies. If a step or the
 * device has failed, buffers that may still be in use stay until ax_comm_disconnect. Not collective. */
void ax_comm_release_messages(ax_comm *comm, ax_device *dev, size_t bytes, int64_t n);
/* Returns the bytes of the buffers that ax_comm_reserve_messages was asked for on `comm`, also if the device
 * needs none. */
size_t ax_comm_reserved_messages(const ax_comm *comm);
/* ---- buffers of collectives between nodes ---- */

/* Over MPI, a collective of ranks that share no memory runs in pieces, and those that add need scratch for
 * what other ranks send. At most AX_COMM_PIECES pieces of a communicator are in flight at a time: an
 * operation whose scratch is in use waits. */
enum { AX_COMM_PIECES = 16 };
typedef struct ax_comm_buffers {
    size_t piece[AX_COMM_PIECES]; /* bytes of scratch of pieces among all ranks, the largest first */
    size_t
        exchange[AX_COMM_PIECES]; /* the same of large collectives that run within nodes and between them */
    size_t columns;               /* bytes of the blocks that such a collective sends or receives */
} ax_comm_buffers;
size_t ax_comm_buffers_bytes(const ax_comm_buffers *buffers);
/* Returns the buffers of a communicator: in a dry run those that its operations, as they were in flight
 * together, have needed so far; over MPI those that it has; of other backends none. Not collective. */
ax_comm_buffers ax_comm_buffers_of(ax_comm *comm);
/* Gives a communicator over MPI these buffers: from then on operations in flight wait for one another instead
 * of taking more, unless one alone needs more. (Without a call each takes what it needs, and keeps it.) Their
 * pages are resident at once. A further call adds what its buffers have more. For set-up: no operation of
 * this rank on `comm` is in flight. Does nothing with other backends, or if no buffer has bytes, as in plans
 * that do not know the nodes. Not collective. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_comm_reserve_buffers(ax_comm *comm, const ax_comm_buffers *buffers);
/* Returns the bytes that this call would add to the buffers that the communicator has. */
size_t ax_comm_lacking_buffers(ax_comm *comm, const ax_comm_buffers *buffers);

/* Returns true if ax_wait on this message would return at once; also if `work` is NULL. */
bool ax_work_done(const ax_work *work);
/* Returns the number `note` that the sender passed (ax_message). `work` is a receive that is done
 * (ax_work_done). */
int ax_work_note(const ax_work *work);
/* Waits until at least one of `n` messages is complete, 1 <= n <= AX_WAIT_SOME. A NULL in `works` counts as a
 * complete message. `comm` is the communicator of one of the messages. The caller then calls ax_wait on each
 * complete message (ax_work_done). */
enum { AX_WAIT_SOME = 8 };
AX_MUST_CHECK ax_status ax_wait_some(ax_comm *comm, ax_work *const works[], int n);

/* Runs `call` on the thread that makes this process's MPI calls, on every rank, once all ranks of comm have
 * called this function. For programs that call MPI themselves, because only that thread may call MPI.
 * `mpi_comm` points to an MPI_Comm of comm's ranks, with the error handler MPI_ERRORS_RETURN. `call` may
 * block only in collectives of this MPI_Comm. If `call` fails, the world fails: ax_comm_call_mpi returns
 * AX_ERR_COMM with the message of `call`. Collective along comm. AX_ERR_USAGE if the backend is not mpi. */
typedef ax_status ax_comm_mpi_fn(void *user, const void *mpi_comm);
AX_MUST_CHECK ax_status ax_comm_call_mpi(ax_comm *comm, ax_comm_mpi_fn *call, void *user);

/* ---- agreement on errors and texts ---- */

/* Makes all ranks fail if one has failed. Every rank passes its own status, `mine`. All ranks return the
 * status of the lowest rank that failed, with that rank's message ("rank 2: …"; without the rank if all ranks
 * failed with the same message). If the other ranks cannot be reached: AX_ERR_COMM, or this rank's own error.
 * Collective along comm. */
AX_MUST_CHECK ax_status ax_comm_agree(ax_comm *comm, ax_status mine);
/* Broadcasts rank root's *text, which may be NULL. On the other ranks *text is overwritten, without being
 * freed, with a copy that the caller frees. Collective along comm. */
AX_MUST_CHECK ax_status ax_comm_share_text(ax_comm *comm, int root, char **text);

/* Gives all ranks the runtime settings of rank 0 (runtime.h), because launchers do not pass every environment
 * variable to every host. AX_ERR_USAGE, naming the rank, if a rank already uses another value. Collective
 * along world. */
AX_MUST_CHECK ax_status ax_comm_share_runtime(ax_comm *world);

/* ---- for backends ---- */

/* The work handle of an operation in flight: the first member of every backend's own handle. */
struct ax_work {
    ax_status (*wait)(ax_work *work);  /* completes the operation and frees the handle */
    bool (*done)(const ax_work *work); /* messages only: true if the operation is complete */
    ax_work *inner; /* messages only: the backend's handle, if this handle also copies the data to or from a
                       device; else NULL */
    int note; /* receives only: the number `note` that the sender passed, once the operation is complete */
    /* The public functions set the members below. comm is NULL for a handle that combines other handles. */
    ax_comm *comm;
    ax_stream *stream;     /* stream of the buffers of a collective; NULL: host memory, or a message */
    const ax_device *dev;  /* the device that owns the buffers; NULL: host memory */
    const char *name;      /* name of the collective, or kind of the message */
    ax_operand operand[2]; /* [operands]: the device memory of the operation, if a listener was told of it */
    int operands;
    double ends; /* on the device's clock, if it has one */
};

/* The arguments of the function `message` of ax_comm_ops. If `sends` is true, the message is sent to rank
 * `peer` and `data` is only read; else it is received from rank `peer`. */
typedef struct ax_message_args {
    ax_message message;
    bool sends;
    int peer;
    void *data;
    size_t bytes;
    ax_device *dev; /* the device that owns `data`; NULL: host memory. A backend that moves data can access
                       them on the host in either case */
    /* Sends only, optional: a device still copies to `data`. The backend calls `ready` from any thread, until
     * it sets *yes to true, and reads the data only then. Meanwhile later sends of the same kind to the same
     * rank wait too. If `ready` fails, the world fails. When the world has failed, `ready` is not called any
     * more, so `user` may be freed. */
    ax_status (*ready)(void *user, bool *yes);
    void *user;
} ax_message_args;

/* Returns true if two descriptions of a message are equal. */
bool ax_message_equal(const ax_message *a, const ax_message *b);

typedef struct ax_comm_ops {
    const char *name;
    ax_status (*run)(ax_comm *comm, ax_stream *stream, const ax_coll_args *args, ax_work **work);
    ax_status (*split)(ax_comm *comm, int color, int key, ax_comm **out);
    ax_status (*group)(ax_comm *comm, const int *ranks, int n, ax_comm **out);
    void (*set_timeout)(ax_comm *comm, double seconds); /* seconds -1: ax_comm_hurry; NULL: no watchdog */
    void (*abort)(ax_comm *comm, ax_status status, const char *message);
    /* Returns the reason if the world has failed, else NULL. A thread that waits for a collective from device
     * to device calls this function again and again; the watchdog takes these calls as the sign that the rank
     * waits for its device. Optional. */
    const char *(*failed)(ax_comm *comm);
    void (*destroy)(ax_comm *comm);
    /* Implement ax_comm_alloc, ax_comm_free and ax_comm_foreign_memory: memory that other ranks of the node
     * map too. Optional: a backend has all three functions or none. If `alloc` leaves *out NULL,
     * ax_comm_alloc allocates private memory instead. `free` returns false, and frees nothing, if the memory
     * is not from `alloc`. */
    ax_status (*alloc)(ax_comm *comm, size_t bytes, void **out);
    bool (*free)(ax_comm *comm, void *memory);
    int64_t (*foreign_memory)(const ax_comm *comm);
    const char *(*path)(const ax_comm *comm, const ax_coll_args *args); /* optional */
    /* Sets node[r] to a number of the node of each rank r, below the number of ranks of the world, and
     * *shared to whether the ranks of a node share memory. Optional, as the next two, which implement
     * ax_comm_buffers_of and ax_comm_reserve_buffers. */
    void (*nodes)(const ax_comm *comm, int *node, bool *shared);
    ax_comm_buffers (*buffers)(ax_comm *comm);
    ax_status (*reserve)(ax_comm *comm, const ax_comm_buffers *buffers);
    ax_status (*call_mpi)(ax_comm *comm, ax_comm_mpi_fn *call,
                          void *user); /* implements ax_comm_call_mpi; NULL: the backend does not use MPI */
    /* `message` implements ax_send and ax_recv, `wait_some` ax_wait_some. Both are NULL if the backend has
     * only one rank. */
    ax_status (*message)(ax_comm *comm, const ax_message_args *args, ax_work **work);
    ax_status (*wait_some)(ax_comm *comm, ax_work *const works[], int n);
} ax_comm_ops;

struct ax_comm {
    const ax_comm_ops *ops;
    int rank, size;
    ax_comm_traffic traffic;
    char *staging; /* host buffer for collectives of devices with discrete memory; or NULL */
    size_t staging_bytes;
    struct ax_comm_carrier *carriers; /* list of pinned host buffers for messages of a device whose memory the
                                         host cannot access directly */
    size_t reserved;                  /* bytes for which ax_comm_reserve_messages was called */
    struct ax_comm_link *link; /* direct connection of the devices, used instead of `staging`; or NULL */
    void *impl;
};

#ifdef __cplusplus
}
#endif
#endif
