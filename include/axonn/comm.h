/* comm: communicators, that is groups of ranks, and their collective operations.
 *
 * A communicator has one table of operations (ax_comm_ops), as a device has. Backends:
 *
 *   self      one rank: a collective is a local copy
 *   threads   ranks are threads of one process, for tests and sanitizers
 *   mpi       ranks are processes that a launcher started; one thread of each process makes all MPI calls
 *
 * Nonblocking. Every operation stores a work handle in *work and may return before it is complete. The
 * buffers belong to the operation until ax_wait. A backend that completes immediately stores NULL, which
 * ax_wait accepts. Counts are in elements.
 *
 * Order. All ranks of a communicator must call the same collectives in the same order, with the same
 * operation, count and dtype. Ranks that share several communicators must also call in one common order
 * across them; the order of the waits is free. A mismatch is AX_ERR_COMM on every rank, not a hang, where
 * ranks share memory and in builds with assertions. A release build does not compare the calls of collectives
 * between nodes or from device to device.
 *
 * Devices. `stream` belongs to the device that owns the buffers; it is NULL for host memory. On a device
 * without memory (dry) no data move: the collective is counted, and reported to the observer at its start and
 * at its wait, so that a memory plan keeps the buffers in between. Buffers in discrete device memory are
 * copied through host memory, and the host waits for the device. If the communicator is connected
 * (ax_comm_connect), data go from device to device, and ax_wait makes the stream wait, not the host.
 *
 * Failure. Once any rank has failed (ax_comm_abort), calls of the other ranks return AX_ERR_COMM. Messages in
 * flight may still arrive: the buffers of failed operations must stay allocated until the process ends.
 *
 * Reductions add in rank order. A large reduction of a group with several ranks on each of several nodes
 * first adds the ranks of each node. In both cases the result has the same bits on every rank and in every
 * run. Between devices NCCL chooses the order of additions, the same on every rank; there BF16 and F16 may be
 * rounded after each addition, and MAX may drop a NaN. */
#ifndef AXONN_COMM_H
#define AXONN_COMM_H

#include "axonn/dev.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ax_comm ax_comm;
typedef struct ax_work ax_work;
/* Counters of this rank on a communicator since its creation. A group of one rank counts nothing. */
typedef struct ax_comm_traffic {
    int64_t calls;
    int64_t bytes;  /* ring-equivalent: all-gather, reduce-scatter and all-to-all (g-1)/g of the gathered
                       size, all-reduce twice that, messages their payload */
    int64_t wire;   /* bytes sent to ranks on other nodes, by operations that were waited for; without bytes
                       that devices send directly */
    double exposed; /* seconds that the host spent inside collectives and ax_wait. Between connected devices
                       the host does not wait. When data are copied through the host, the time includes that
                       of preceding kernels, unless launches are timed (ax_device.totals) */
} ax_comm_traffic;

int ax_comm_rank(const ax_comm *comm);
int ax_comm_size(const ax_comm *comm);
ax_comm_traffic ax_comm_traffic_get(const ax_comm *comm);

/* One rank. Owned by the caller. */
AX_MUST_CHECK ax_status ax_comm_self_create(ax_comm **out);

/* The world communicator of this process: over MPI the ranks that its launcher started (mpirun, srun, …), or
 * one rank without a launcher. AX_ERR_USAGE if the launcher's environment variables give more ranks than MPI
 * finds: the launcher belongs to another MPI library, or this build has no MPI. The caller owns it and
 * destroys it after all communicators that were split from it. A process can create it once. Collective along
 * all ranks. */
AX_MUST_CHECK ax_status ax_comm_world_create(ax_comm **out);

/* The launcher that started this process, according to environment variables. Not collective. */
typedef struct ax_launcher {
    const char *launcher; /* NULL: none */
    int rank, size;       /* size 0: the launcher does not set it */
} ax_launcher;
ax_launcher ax_launcher_find(void);

/* Returns name and version of the MPI library of this build ("Open MPI v4.1.4"); NULL: built without MPI. */
const char *ax_comm_mpi_library(void);

/* Runs fn(comm, arg) on `size` threads, each a rank of one world, and returns the failure that happened
 * first, with its message (prefixed "rank r: "), or AX_OK. A rank that fails aborts the others. A deadlock,
 * where all ranks wait for one another or for a rank that has returned, is AX_ERR_COMM; detecting it requires
 * that each rank makes its calls from the thread it was given. */
typedef ax_status ax_rank_fn(ax_comm *world, void *arg);
AX_MUST_CHECK ax_status ax_comm_threads_run(int size, ax_rank_fn *fn, void *arg);

/* Splits: ranks with equal `color` form a group, ordered by `key` then rank. color < 0: no group, *out =
 * NULL. Collective along comm. The caller owns *out and destroys it before comm. */
AX_MUST_CHECK ax_status ax_comm_split(ax_comm *comm, int color, int key, ax_comm **out);
/* No operation may be in flight. Collective along comm, unless the world has failed. */
void ax_comm_destroy(ax_comm **comm);

/* Sets the timeout of the watchdog (0: off; default 30 s). A rank that waits for `seconds` without progress
 * asks all other ranks what they do. If one does not answer, or if all wait for one another or for ranks that
 * have left, the job ends with exit code AX_ERR_COMM and a message that names the operation and the ranks.
 * Ranks that are late because they compute cause a warning only. A rank that waits for its device, whose
 * collectives wait for other devices, checks only that all ranks answer, because the device may be computing.
 * Backend mpi only: backend threads detects deadlocks immediately. Not collective. */
void ax_comm_set_timeout(ax_comm *world, double seconds);
/* Called when this rank was asked to stop, so that it does not wait long for a rank that is dead: until the
 * next ax_comm_set_timeout, the job ends if this rank waits and another rank does not answer within 2
 * seconds. Async-signal-safe. Not collective. */
void ax_comm_hurry(ax_comm *world);

/* Makes every pending and later operation of the world fail with AX_ERR_COMM. Over MPI it does not return: it
 * ends the job with exit code `status`. The first rank that aborts logs `message` (NULL: none) as an error. A
 * process that exits before it has destroyed its world aborts the job with its own exit code. Not collective.
 */
void ax_comm_abort(ax_comm *comm, ax_status status, const char *message);

/* data[i] <- reduction over ranks, in place. dtype F64, F32, BF16 or F16 (summed in F32), I32 or I64. */
AX_MUST_CHECK ax_status ax_all_reduce(ax_comm *comm, ax_stream *stream, void *data, int64_t count,
                                      ax_dtype dtype, ax_reduce_op op, ax_work **work);
/* recv[r·count …] <- rank r's send[0 … count). send may be recv + rank·count (in place). */
AX_MUST_CHECK ax_status ax_all_gather(ax_comm *comm, ax_stream *stream, const void *send, void *recv,
                                      int64_t count, ax_dtype dtype, ax_work **work);
/* recv[0 … count) <- reduction over ranks of send[rank·count …]; recv does not overlap send. */
AX_MUST_CHECK ax_status ax_reduce_scatter(ax_comm *comm, ax_stream *stream, const void *send, void *recv,
                                          int64_t count, ax_dtype dtype, ax_reduce_op op, ax_work **work);
/* recv[s·count …] <- rank s's send[rank·count …]; recv does not overlap send. */
AX_MUST_CHECK ax_status ax_all_to_all(ax_comm *comm, ax_stream *stream, const void *send, void *recv,
                                      int64_t count, ax_dtype dtype, ax_work **work);
/* data <- data of `root`. ax_comm_traffic.bytes grows by (g-1)/g of the size. */
AX_MUST_CHECK ax_status ax_broadcast(ax_comm *comm, ax_stream *stream, void *data, int64_t count,
                                     ax_dtype dtype, int root, ax_work **work);
AX_MUST_CHECK ax_status ax_barrier(ax_comm *comm);

/* Host memory for buffers of collectives: zeroed whole pages between guard pages. If the ranks of a node
 * share memory, the other ranks of the node map it too, and collectives need no copies. If shared memory is
 * exhausted, one warning is logged and the memory is private: collectives on it are slower, with the same
 * results. For set-up, never within a step. `bytes` is the same in both calls; NULL may be freed. Not
 * collective. AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_comm_alloc(ax_comm *comm, size_t bytes, void **out);
void ax_comm_free(ax_comm *comm, void *memory, size_t bytes);
/* Returns the bytes of other ranks' shared memory that this process has touched. The kernel counts these
 * pages as resident in this process (ax_memory_peak) and in their owners. Not collective. */
int64_t ax_comm_foreign_memory(const ax_comm *comm);

/* Lets collectives on buffers of `dev` go from device to device if every rank has a device of its own and the
 * library for it (NCCL). Otherwise data are still copied through the host, `why` gives the reason, and the
 * result is AX_OK. `why` is empty if the device shares the host's memory. `name` is the communicator's name
 * in messages. The connection lasts until ax_comm_disconnect, which ax_comm_destroy calls; disconnect before
 * closing the device. For set-up. Both are collective along comm. AX_ERR_COMM. */
enum { AX_COMM_WHY = 512 };
AX_MUST_CHECK ax_status ax_comm_connect(ax_comm *comm, ax_device *dev, const char *name,
                                        char why[AX_COMM_WHY]);
void ax_comm_disconnect(ax_comm *comm);

/* Returns the path of a collective on buffers of `stream`'s device (NULL: host memory): "node" (memory that
 * the ranks of a node share), "flat" (MPI messages), "threads", "self"; "nccl"; "staged" (copied to the host,
 * then one of the first four). Only coll, count and dtype of `args` are read. Not collective. */
const char *ax_comm_path(const ax_comm *comm, const ax_stream *stream, const ax_coll_args *args);

/* Waits for *work (NULL: already complete) and sets it to NULL. */
AX_MUST_CHECK ax_status ax_wait(ax_work **work);

/* For programs that call MPI themselves, which only one thread of a process may do: on every rank, once all
 * ranks of comm have arrived, runs `call` on the thread that makes the MPI calls. `mpi_comm` points to the
 * MPI_Comm of comm's ranks; errors on it are returned, not fatal. `call` may block only in collectives of
 * this MPI_Comm. Returns the status of `call`; an error fails the world. Collective along comm. AX_ERR_USAGE
 * if the backend is not mpi. */
typedef ax_status ax_comm_mpi_fn(void *user, const void *mpi_comm);
AX_MUST_CHECK ax_status ax_comm_call_mpi(ax_comm *comm, ax_comm_mpi_fn *call, void *user);

/* ---- agreement on errors and texts ---- */

/* Ends a phase that may fail on some ranks. Every rank passes its status; all return the status of the lowest
 * rank that failed, with its message ("rank 2: …"; without the rank if all ranks failed with the same
 * message). AX_ERR_COMM, or the rank's own error, if the other ranks cannot be reached. Collective along
 * comm. */
AX_MUST_CHECK ax_status ax_comm_agree(ax_comm *comm, ax_status mine);
/* Broadcasts the text of rank `root`, which may be NULL. On the other ranks *text is overwritten with a copy
 * that the caller frees. Collective along comm. */
AX_MUST_CHECK ax_status ax_comm_share_text(ax_comm *comm, int root, char **text);

/* Gives all ranks the runtime settings of rank 0 (runtime.h), because launchers do not pass every environment
 * variable to every host. AX_ERR_USAGE, naming the rank, if a rank already uses another value. Collective
 * along world. */
AX_MUST_CHECK ax_status ax_comm_share_runtime(ax_comm *world);

/* ---- for backends ---- */

/* The first member of every backend's work handle. */
struct ax_work {
    ax_status (*wait)(ax_work *work); /* completes the operation and frees the handle */
    /* Set by the public functions; comm is NULL for a handle that combines other handles. */
    ax_comm *comm;
    ax_stream *stream;   /* stream of the buffers, or NULL */
    ax_event_ring *ring; /* receives the "wait" event */
    const char *name;    /* name of the collective */
};

typedef struct ax_comm_ops {
    const char *name;
    ax_status (*run)(ax_comm *comm, ax_stream *stream, const ax_coll_args *args, ax_work **work);
    ax_status (*split)(ax_comm *comm, int color, int key, ax_comm **out);
    void (*set_timeout)(ax_comm *comm, double seconds); /* NULL: nothing to set */
    void (*abort)(ax_comm *comm, ax_status status, const char *message);
    /* Returns why the world has failed, or NULL. A thread that waits for a collective of its device calls
     * this repeatedly; from these calls the watchdog knows that the rank waits for its device. Optional. */
    const char *(*failed)(ax_comm *comm);
    void (*destroy)(ax_comm *comm);
    /* Memory that other ranks map too. Optional, all three or none. `alloc` may leave *out NULL; `free`
     * returns whether the memory came from `alloc`. */
    ax_status (*alloc)(ax_comm *comm, size_t bytes, void **out);
    bool (*free)(ax_comm *comm, void *memory);
    int64_t (*foreign_memory)(const ax_comm *comm);
    const char *(*path)(const ax_comm *comm, const ax_coll_args *args);     /* optional */
    ax_status (*call_mpi)(ax_comm *comm, ax_comm_mpi_fn *call, void *user); /* NULL: not over MPI */
} ax_comm_ops;

struct ax_comm {
    const ax_comm_ops *ops;
    int rank, size;
    ax_comm_traffic traffic;
    char *staging; /* host buffer for collectives of devices with discrete memory; or NULL */
    size_t staging_bytes;
    struct ax_comm_link *link; /* direct connection of the devices, used instead of `staging`; or NULL */
    void *impl;
};

#ifdef __cplusplus
}
#endif
#endif
