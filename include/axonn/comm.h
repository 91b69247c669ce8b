/* comm: groups of ranks and the messages between them.
 *
 * A communicator is a group of ranks with one table of operations (ax_comm_ops), as a device is. Backends:
 *
 *   self      one rank: every collective is already complete
 *   threads   ranks are threads of one process, for tests and sanitizers
 *   mpi       ranks are processes that a launcher started; one thread of each makes all calls of MPI
 *
 * Every operation is split-phase: it takes a place for a work handle and may return before it is done. The
 * buffers belong to the operation until ax_wait. A backend that completes at once stores NULL, which ax_wait
 * accepts. Ranks that share several communicators call on them in one common order, whatever they wait for in
 * between. `stream` is of the device that owns the buffers, or NULL when they are host memory; on a device
 * without memory (dry) nothing moves: a collective is counted, and observed when it starts and when it is
 * awaited, so that a plan keeps its buffers in between. What a device holds apart from the host's memory goes
 * through the host, and waits for the device, unless the communicator is connected (ax_comm_connect): then it
 * goes from device to device, and ax_wait makes the stream wait, not the host. Counts are in elements. All
 * collectives are collective along the communicator, and all its ranks must call them in the same order with
 * the same operation, count and dtype: a mismatch is AX_ERR_COMM on every rank, not a hang, where ranks share
 * memory and in builds with assertions; what a release build sends between nodes, or from device to device,
 * is not compared. Once any rank has failed (ax_comm_abort) the others' calls return AX_ERR_COMM, and
 * messages that were on their way may still arrive: buffers of operations that failed stay where they are
 * until the process ends. Reductions add in rank order; where a group has several ranks on each of several
 * nodes, large ones add those of each node first. Either way the result is the same bits on every rank and in
 * every run. Between devices NCCL decides the order of sums, the same on every rank; BF16 and F16 may be
 * rounded after each addition there, and MAX may drop a NaN. */
#ifndef AXONN_COMM_H
#define AXONN_COMM_H

#include "axonn/dev.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ax_comm ax_comm;
typedef struct ax_work ax_work;
/* What this rank did on a communicator since it was made. A group of one moves nothing and counts nothing. */
typedef struct ax_comm_traffic {
    int64_t calls;
    int64_t bytes;  /* ring-equivalent: all-gather, reduce-scatter and all-to-all (g-1)/g of the gathered
                       size, all-reduce twice that, messages their payload */
    int64_t wire;   /* sent to ranks on other nodes, of operations that were waited for; what devices send
                       themselves is not seen */
    double exposed; /* seconds in which a caller was inside a collective or ax_wait. The host's: where devices
                       reach each other it does not wait, and through it, it waits for the kernels before too,
                       unless launches are timed (ax_device.totals) */
} ax_comm_traffic;

int ax_comm_rank(const ax_comm *comm);
int ax_comm_size(const ax_comm *comm);
ax_comm_traffic ax_comm_traffic_get(const ax_comm *comm);

/* One rank. Owned by the caller. */
AX_MUST_CHECK ax_status ax_comm_self_create(ax_comm **out);

/* The world that this process was started in: the ranks of its launcher (mpirun, srun, …) over MPI, or one
 * rank where none started it. AX_ERR_USAGE if the launcher's environment speaks of more ranks than MPI finds:
 * another MPI's launcher, or a build without MPI. Owned by the caller, who destroys it once all communicators
 * split from it are; once in the life of a process. Collective along all ranks. */
AX_MUST_CHECK ax_status ax_comm_world_create(ax_comm **out);

/* What the environment says of the launcher that started this process. Not collective. */
typedef struct ax_launcher {
    const char *launcher; /* NULL: none */
    int rank, size;       /* size 0: a launcher that does not say it */
} ax_launcher;
ax_launcher ax_launcher_find(void);

/* The MPI library that was built in, as it names itself ("Open MPI v4.1.4"); NULL: none. */
const char *ax_comm_mpi_library(void);

/* Runs fn(comm, arg) on `size` threads, each a rank of one world, and returns the first failure in time with
 * its message (prefixed "rank r: "), or AX_OK. A rank that fails aborts the others. Ranks that all wait for
 * one another, or for a rank that has returned, fail with AX_ERR_COMM instead of hanging; so each rank must
 * make its calls from the thread it was given. */
typedef ax_status ax_rank_fn(ax_comm *world, void *arg);
AX_MUST_CHECK ax_status ax_comm_threads_run(int size, ax_rank_fn *fn, void *arg);

/* Splits: ranks with equal `color` form a group, ordered by `key` then rank. color < 0: no group, *out =
 * NULL. Collective along comm. The caller owns *out and destroys it before comm. */
AX_MUST_CHECK ax_status ax_comm_split(ax_comm *comm, int color, int key, ax_comm **out);
/* Nothing may be in flight. Collective along comm, unless the world has failed. */
void ax_comm_destroy(ax_comm **comm);

/* A caller that waits in vain: if nothing moves on a rank for `seconds` although it waits (0: never; default
 * 30), and another rank does not answer, or all wait for one another or for ranks that have left, the job
 * ends with exit code AX_ERR_COMM and a message that names the operation and the ranks. Ranks that are merely
 * late, because they compute, are warned of. Who waits for a device that waits for others asks only whether
 * they answer: the device may compute. Over MPI only: threads find such ranks at once. Not collective.
 */
void ax_comm_set_timeout(ax_comm *world, double seconds);
/* Until the next ax_comm_set_timeout, a rank that does not answer within 2 seconds while this one waits ends
 * the job: for a rank that was told to stop. A signal handler may call it. Not collective. */
void ax_comm_hurry(ax_comm *world);

/* Makes every pending and later operation of the world fail with AX_ERR_COMM. Over MPI it does not return:
 * it ends the job with exit code `status`, after `message` (NULL: none) was logged as an error if this rank
 * is the first to abort. A process that exits before it destroyed its world does the same with its exit code.
 * Not collective. */
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
/* data of `root` to all. Bytes: (g-1)/g of the size. */
AX_MUST_CHECK ax_status ax_broadcast(ax_comm *comm, ax_stream *stream, void *data, int64_t count,
                                     ax_dtype dtype, int root, ax_work **work);
AX_MUST_CHECK ax_status ax_barrier(ax_comm *comm);

/* Host memory for buffers of collectives: zeroed whole pages between guard pages, which the ranks of this
 * one's node see too where they share memory, so that collectives on it copy nothing. Where that cannot be
 * had, it is said once and the memory is this rank's own: collectives on it are slower, and the same. For
 * set-up, never within a step. `bytes` is the same in both calls; NULL may be freed. Not collective.
 * AX_ERR_MEMORY. */
AX_MUST_CHECK ax_status ax_comm_alloc(ax_comm *comm, size_t bytes, void **out);
void ax_comm_free(ax_comm *comm, void *memory, size_t bytes);
/* Bytes of other ranks' memory that this process has touched: the system counts them as resident here
 * (ax_memory_peak) and with their owners. Not collective. */
int64_t ax_comm_foreign_memory(const ax_comm *comm);

/* Lets collectives on buffers of `dev` go from device to device, where that can be: every rank has one of its
 * own, and the library for it (NCCL). Else they go through the host as before, `why` says why, and the result
 * is AX_OK; `why` is empty where the device's memory is the host's. `name` is the communicator's in messages.
 * Until ax_comm_disconnect, which ax_comm_destroy calls, and which comes before the device is closed. For
 * set-up. Both are collective along comm. AX_ERR_COMM. */
enum { AX_COMM_WHY = 512 };
AX_MUST_CHECK ax_status ax_comm_connect(ax_comm *comm, ax_device *dev, const char *name,
                                        char why[AX_COMM_WHY]);
void ax_comm_disconnect(ax_comm *comm);

/* How a collective on buffers of `stream`'s device (NULL: host memory) would travel: "node" (memory that the
 * ranks of a node share), "flat" (messages), "threads", "self"; "nccl"; "staged" (over one of the former).
 * args: coll, count and dtype are looked at. Not collective. */
const char *ax_comm_path(const ax_comm *comm, const ax_stream *stream, const ax_coll_args *args);
/* Seconds that the MPI library's own blocking collective takes on the same arguments (f32 or f64), for
 * comparison: from when all ranks are there until this one has its result. Collective along comm.
 * AX_ERR_USAGE where there is no MPI. */
AX_MUST_CHECK ax_status ax_comm_time_mpi(ax_comm *comm, const ax_coll_args *args, double *seconds);

/* Waits for *work (NULL: done already) and sets it to NULL. */
AX_MUST_CHECK ax_status ax_wait(ax_work **work);

/* ---- ranks that decide together ---- */

/* Ends a phase that may fail on some ranks: every rank gives its status, and all return that of the lowest
 * rank that failed, with its message ("rank 2: …"; without the rank if all failed with the same words).
 * AX_ERR_COMM or the rank's own error if the ranks cannot be reached. Collective along comm. */
AX_MUST_CHECK ax_status ax_comm_agree(ax_comm *comm, ax_status mine);
/* The text of rank `root`, which may be NULL, to all: on the others *text is overwritten with a copy that the
 * caller frees. Collective along comm. */
AX_MUST_CHECK ax_status ax_comm_share_text(ax_comm *comm, int root, char **text);

/* ---- for backends ---- */

/* What every backend's work handle begins with. */
struct ax_work {
    ax_status (*wait)(ax_work *work); /* completes the operation and frees the handle */
    /* Filled in by the public functions; comm NULL: made of other handles. */
    ax_comm *comm;
    ax_stream *stream;   /* of the buffers, or NULL */
    ax_event_ring *ring; /* where the wait is noted, as "wait" */
    const char *name;    /* of the collective */
};

typedef struct ax_comm_ops {
    const char *name;
    ax_status (*run)(ax_comm *comm, ax_stream *stream, const ax_coll_args *args, ax_work **work);
    ax_status (*split)(ax_comm *comm, int color, int key, ax_comm **out);
    void (*set_timeout)(ax_comm *comm, double seconds); /* NULL: nothing to set */
    void (*abort)(ax_comm *comm, ax_status status, const char *message);
    /* Why the world has failed, or NULL. Asked again and again by who waits for other ranks elsewhere, in a
     * device, and for the watchdog the sign that this rank does. Optional. */
    const char *(*failed)(ax_comm *comm);
    void (*destroy)(ax_comm *comm);
    /* Optional, all or none: memory that other ranks see. `alloc` may leave *out NULL; `free` says whether
     * the memory was from there. */
    ax_status (*alloc)(ax_comm *comm, size_t bytes, void **out);
    bool (*free)(ax_comm *comm, void *memory);
    int64_t (*foreign_memory)(const ax_comm *comm);
    /* Optional: for measurements. */
    const char *(*path)(const ax_comm *comm, const ax_coll_args *args);
    ax_status (*time_mpi)(ax_comm *comm, const ax_coll_args *args, double *seconds);
} ax_comm_ops;

struct ax_comm {
    const ax_comm_ops *ops;
    int rank, size;
    ax_comm_traffic traffic;
    char *staging; /* host memory that collectives of a device with memory of its own go through; or NULL */
    size_t staging_bytes;
    struct ax_comm_link *link; /* that they go over instead; or NULL */
    void *impl;
};

#ifdef __cplusplus
}
#endif
#endif
