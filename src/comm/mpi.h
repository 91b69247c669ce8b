/* Communicators over MPI: declarations that the files mpi*.c share.
 *
 * Each rank has one communication thread, which makes all MPI calls, from MPI_Init_thread to MPI_Finalize.
 * Other threads pass operations to it through a queue (mpi.c) and wait for their completion. The
 * communication thread (mpi_thread.c) starts operations strictly in the order in which they were queued. It
 * tests all operations in flight in turn, which makes progress on them. Between creation and destruction of
 * the world it must not block, because it also answers the watchdogs of other ranks; the only exceptions are
 * short MPI calls after a barrier (ax_mpi_op.finish). Two implementations ("paths") move the data of
 * collectives: mpi_flat.c by MPI messages, mpi_node.c through memory that the ranks of a node share.
 *
 * A waiting caller may itself make progress on an operation that needs only shared memory (`local`), which
 * saves two thread switches. Every thread that makes progress on operations holds the lock `progress_lock`.
 * Callers never make MPI calls.
 *
 * Access: in the structs below, comments say which members only the communication thread accesses, and which
 * are accessed under world->lock or world->progress_lock. */
#ifndef AXONN_COMM_MPI_H
#define AXONN_COMM_MPI_H

#include "comm/node.h"
#include "comm/world.h"

#include <mpi.h>
#include <pthread.h>
#include <stdatomic.h>

typedef struct ax_mpi_world ax_mpi_world;
typedef struct ax_mpi_comm ax_mpi_comm;
typedef struct ax_mpi_op ax_mpi_op;
typedef struct ax_mpi_flat_state ax_mpi_flat_state;
typedef struct ax_mpi_message ax_mpi_message;

/* The first MPI tag of messages (ax_send, ax_recv). Collectives by MPI messages use smaller tags. */
enum { AX_MPI_MESSAGE_TAG = 16384 };

/* One implementation of collectives: by MPI messages, or by shared memory. `takes` runs on any thread. The
 * other functions run on the communication thread; start and test also run on waiting callers' threads if the
 * operation is `local`. No function may block, except attach and detach, which are collective along the
 * communicator. */
typedef struct ax_mpi_path {
    const char *name;
    /* attach is called after a communicator was created, detach before it is freed. NULL: nothing to do. */
    ax_status (*attach)(ax_mpi_comm *c);
    void (*detach)(ax_mpi_comm *c);
    /* Returns true if this implementation (path) can run the collective. The result must be the same on all
     * ranks. NULL: it can run every collective. */
    bool (*takes)(const ax_mpi_comm *c, const ax_coll_args *args);
    /* `start` begins the operation op. `test` makes progress on op, and sets *done to true when this rank's
     * part of op is complete. While op->unstarted (the number of pieces of op that have not begun) is not 0,
     * no later operation is started. */
    ax_status (*start)(ax_mpi_op *op);
    ax_status (*test)(ax_mpi_op *op, bool *done);
} ax_mpi_path;

/* The implementations of collectives (paths) by preference, and then NULL. The last path accepts every
 * collective. */
extern const ax_mpi_path *const ax_mpi_paths[];
extern const ax_mpi_path ax_mpi_flat, ax_mpi_node;
extern const ax_comm_ops ax_mpi_ops;

struct ax_mpi_comm {
    ax_comm comm;
    ax_mpi_world *world;
    ax_mpi_comm *next; /* next in the list world->comms; accessed under world->lock */
    MPI_Comm mpi;
    uint64_t id;     /* identifies the communicator; the same on all its ranks */
    int *world_rank; /* world_rank[r]: world rank of this communicator's rank r */
    bool spans_nodes;
    int64_t called; /* number of operations that this rank has called on this communicator so far
                       (ax_comm_destroy not counted); accessed under world->lock */
    int tags; /* tag number of the next piece (part of the data) of an operation that uses MPI messages (path
                 `flat`), the same on all ranks; communication thread only */
    void *path_state; /* state of the shared-memory path (mpi_node.c), set before callers get the
                         communicator; NULL: the communicator does not use this path. Operations in flight
                         access the state under `progress_lock` */
    /* Accessed under `progress_lock`: */
    ax_mpi_flat_state *flat; /* state for collectives by MPI messages */
    bool reserved;           /* the communicator was given its buffers (ax_mpi_flat_reserve) */
};

typedef enum ax_mpi_kind { AX_MPI_COLLECTIVE, AX_MPI_SPLIT, AX_MPI_GROUP, AX_MPI_DESTROY } ax_mpi_kind;

struct ax_mpi_op {
    ax_work work;
    ax_mpi_op *next; /* next in the list world->queue, world->active or world->free_ops */
    ax_mpi_comm *c;
    ax_mpi_kind kind;
    int64_t seq; /* number of the operation on its communicator, from 1 */
    ax_coll_args args;
    /* For a barrier that other work follows (split, group creation, destroy, ax_comm_call_mpi): does this
     * work. Called on the communication thread when the barrier is complete. May make MPI calls that block
     * until all ranks of the group have made the same calls. NULL: nothing follows. */
    ax_status (*finish)(ax_mpi_op *op);
    int color, key;       /* arguments of ax_comm_split */
    ax_mpi_comm *made;    /* the communicator that a split or ax_comm_group created */
    ax_comm_mpi_fn *call; /* the function given to ax_comm_call_mpi; `user` is its argument */
    void *user;
    const ax_mpi_path *path;
    bool local; /* uses shared memory only, no MPI calls */
    /* Accessed under `progress_lock` while the operation is in flight: */
    bool checking;  /* the ranks are still comparing their calls; the operation has not started */
    int tag;        /* for path `flat` (MPI messages): tag number of the operation's first piece */
    int64_t stride; /* for path `flat`: distance in elements between the beginnings of the blocks that a
                       gather writes; 0: args.count */
    /* For path `flat`, which cuts an operation into pieces. pieces: number of all pieces; unstarted: of
     * pieces not yet started; open: of pieces in flight. */
    int64_t pieces, unstarted, open;
    int64_t wire;    /* bytes that this rank has sent to other nodes for this operation */
    ax_node_op node; /* state of a collective that uses shared memory */
    /* The operation's result, valid once `done` is true. */
    ax_status status;
    atomic_bool done;
};

/* The arguments of a rank's call, without pointers, so that they can be sent to other ranks. `comm` and
 * `size` are the id and the size of the communicator. */
typedef struct ax_mpi_call {
    int kind, coll, dtype, op, root, size;
    uint64_t comm;
    int64_t count, seq;
} ax_mpi_call;

ax_mpi_call ax_mpi_call_of(const ax_mpi_op *op);
/* Prints a call, such as "all_reduce of 8 f32". */
void ax_mpi_call_describe(const ax_mpi_call *call, char *out, size_t size);

typedef struct ax_mpi_checks ax_mpi_checks;
typedef struct ax_mpi_control ax_mpi_control;
typedef struct ax_mpi_watch ax_mpi_watch;
typedef struct ax_mpi_guard ax_mpi_guard;

struct ax_mpi_world {
    ax_mpi_comm *comm; /* the communicator of the world */
    pthread_t thread;
    int *node;       /* node[r]: the smallest rank on the node of rank r */
    ax_node *shared; /* this node's shared memory; NULL on all ranks if it is switched off, if no node has
                        several ranks, or if any rank cannot share memory */
    int crowding;    /* ranks of this kernel per processor, rounded up: above 1 they share processors */
    bool owns_mpi;   /* this library has initialised MPI and must finalize MPI; communication thread only */
    /* Accessed under `lock`: */
    pthread_mutex_t lock;
    pthread_cond_t to_thread, to_callers;
    ax_mpi_op *queue, **queue_end, *free_ops;
    ax_mpi_comm *comms; /* all communicators */
    ax_mpi_message *new_messages, *free_messages;
    ax_mpi_message *message_blocks; /* allocated blocks of messages; the first message of each block links to
                                       the next block */
    ax_mpi_message *const *awaited; /* a caller waits for any one of these messages; NULL: no caller does */
    ax_mpi_op *op_blocks; /* blocks of work handles; the first handle of each block links to the next block */
    int n_awaited;        /* number of messages in `awaited` */
    int abort_status;     /* status of ax_comm_abort; 0: not called */
    const char *abort_message;
    char message[1024];  /* why the world failed */
    ax_launcher launch;  /* set before the communication thread starts */
    ax_mpi_guard *guard; /* the exit handler's data; never accessed by the communication thread */
    ax_status create_status;
    bool created; /* the communication thread has set create_status */
    /* Atomic; accessed also without `lock`: */
    atomic_int queued;          /* number of operations in the queue */
    atomic_int queued_messages; /* number of messages in new_messages */
    atomic_int waiting; /* number of waiting callers that leave all progress to the communication thread */
    atomic_int sleeping, helping; /* sleeping: how many of the `waiting` callers sleep; helping: number of
                                     waiting callers that make progress themselves */
    atomic_bool resting;          /* the communication thread sleeps on to_thread */
    /* failed: the world has failed; aborting: ax_comm_abort was called; leaving: this rank destroys the
     * world; ending: this rank ends the job (ax_mpi_end_job). */
    atomic_bool failed, aborting, leaving, ending;
    atomic_bool said_full;  /* the warning about full shared memory was already logged */
    atomic_bool hurried;    /* ax_comm_hurry was called, and ax_comm_set_timeout was not called after that */
    atomic_int timeout_ms;  /* timeout of the watchdog in ms; 0: off */
    atomic_llong in_device; /* until this time (ms of ax_now) this rank counts as waiting for its device */
    pthread_mutex_t progress_lock;
    /* Accessed under `progress_lock`: */
    ax_mpi_op *active; /* operations in flight, in the order in which they were started */
    uint64_t progress; /* grows whenever any operation or message makes progress; the watchdog compares it
                          with an earlier value */
    /* Accessed by the communication thread only (except that callers read the pointer `checks`): */
    ax_mpi_message *messages; /* messages in flight, and sends that cannot start yet */
    uint64_t announced; /* number of sends started; selects the MPI tag of a message's data (mpi_message.c) */
    ax_mpi_checks *checks; /* NULL: calls are not compared */
    ax_mpi_control *control;
    ax_mpi_watch *watch;
    bool quit; /* the world is destroyed: the communication thread ends */
};

/* Returns the implementation (path) that runs a collective: MPI messages or shared memory. */
const ax_mpi_path *ax_mpi_path_of(const ax_mpi_comm *c, const ax_coll_args *args);

/* Converts an MPI return code to a status with MPI's error text; `call` names the MPI function. */
AX_MUST_CHECK ax_status ax_mpi_check(int code, const char *call);
#define AX_MPI(call) AX_TRY(ax_mpi_check(call, #call))

static inline bool ax_mpi_same_node(const ax_mpi_comm *c, int rank)
{
    return c->world->node[c->world_rank[rank]] == c->world->node[c->world_rank[c->comm.rank]];
}

/* Makes a communicator that takes ownership of the MPI communicator `mpi`. Runs on the communication thread;
 * collective. */
AX_MUST_CHECK ax_status ax_mpi_comm_make(ax_mpi_world *w, MPI_Comm mpi, uint64_t id, ax_mpi_comm **out);
void ax_mpi_comm_free(ax_mpi_comm *c);

/* Starts queued operations that need only shared memory (`local`), and makes progress on such operations.
 * Does nothing if the world has failed or another thread holds `progress_lock`. A caller's thread calls this
 * function while it waits. Returns true if there was progress. */
bool ax_mpi_help(ax_mpi_world *w);
/* The main function of the communication thread. */
void *ax_mpi_thread(void *world);

/* mpi_message.c, over MPI: ax_mpi_message_call implements ax_send and ax_recv, ax_mpi_wait_some implements
 * ax_wait_some. ax_mpi_messages_free frees the memory of all handles of messages. */
ax_status ax_mpi_message_call(ax_comm *comm, const ax_message_args *args, ax_work **work);
ax_status ax_mpi_wait_some(ax_comm *comm, ax_work *const works[], int n);
void ax_mpi_messages_free(ax_mpi_world *w);

/* Everything below is for the communication thread, unless its comment says otherwise. */

/* Wakes all callers that sleep, after an operation or a message was completed. Any thread may call this
 * function. */
void ax_mpi_wake_callers(ax_mpi_world *w);
/* Starts new messages and makes progress on all messages. Returns true if there was progress. */
bool ax_mpi_progress_messages(ax_mpi_world *w);
void ax_mpi_drop_messages(ax_mpi_world *w);
/* Returns true if a send waits for data that a device of this rank computes or copies. */
bool ax_mpi_awaits_data(const ax_mpi_world *w);
/* Returns true if a caller waits for messages. */
bool ax_mpi_awaits_messages(ax_mpi_world *w);
/* Appends to `out` a description of the messages that a caller waits for. Returns false if no caller waits
 * for messages. */
bool ax_mpi_describe_awaited(ax_mpi_world *w, char *out, size_t size);
/* Returns true if a caller waits for a message from or to the world's rank `world_rank`. */
bool ax_mpi_awaits_message_of(ax_mpi_world *w, int world_rank);

/* Creates the state of a communicator of `size` ranks. Pieces take the scratch buffers that they need, until
 * ax_mpi_flat_reserve gives the communicator buffers of these sizes; it is called under `progress_lock`,
 * while no operation is in flight. ax_mpi_flat_reserved enters the sizes into a list that begins as zeros. */
AX_MUST_CHECK ax_status ax_mpi_flat_create(int size, ax_mpi_flat_state **out);
void ax_mpi_flat_destroy(ax_mpi_flat_state **flat);
AX_MUST_CHECK ax_status ax_mpi_flat_reserve(ax_mpi_comm *c, const size_t bytes[AX_COMM_PIECES]);
void ax_mpi_flat_reserved(const ax_mpi_comm *c, size_t bytes[AX_COMM_PIECES]);

/* Creates world->shared, the node's shared memory, if this succeeds on all ranks of the world. Collective
 * along the world. */
AX_MUST_CHECK ax_status ax_mpi_node_create(ax_mpi_world *w);
void ax_mpi_node_destroy(ax_mpi_world *w);
/* Returns the index of `world_rank` among the ranks of its node, in ascending order. */
int ax_mpi_local_number(const ax_mpi_world *w, int world_rank);
/* Implement `alloc`, `free` and `foreign_memory` of ax_comm_ops: allocate and free memory that the node's
 * ranks share; estimate how many resident bytes of this process are such memory of other ranks. Any thread
 * may call them. */
ax_status ax_mpi_node_alloc(ax_comm *comm, size_t bytes, void **out);
bool ax_mpi_node_free(ax_comm *comm, void *memory);
int64_t ax_mpi_node_foreign(const ax_comm *comm);
/* Do the part of `reserve` and `buffers` of ax_comm_ops that is for the exchange between nodes; called under
 * `progress_lock`. */
AX_MUST_CHECK ax_status ax_mpi_node_reserve(ax_mpi_comm *c, const ax_comm_buffers *buffers);
void ax_mpi_node_reserved(const ax_mpi_comm *c, ax_comm_buffers *out);

/* Make all operations in flight and all later operations fail with `message`: ax_mpi_fail on all ranks,
 * ax_mpi_fail_quietly on this rank only. If the world has already failed, its earlier message is kept. */
void ax_mpi_fail(ax_mpi_world *w, const char *message);
void ax_mpi_fail_quietly(ax_mpi_world *w, const char *message);

/* mpi_check.c: in builds with assertions, the ranks of a group compare their calls, one operation at a
 * time. */
AX_MUST_CHECK ax_status ax_mpi_checks_create(ax_mpi_world *w, int size);
void ax_mpi_checks_destroy(ax_mpi_world *w);
AX_MUST_CHECK ax_status ax_mpi_check_start(ax_mpi_op *op);
AX_MUST_CHECK ax_status ax_mpi_check_test(ax_mpi_op *op, bool *done);

/* mpi_control.c: control messages ("notes") between communication threads. Each kind uses the members `kind`
 * and `from` of ax_mpi_note, and the members that its comment names. */
enum { AX_NOTE_TEXT = 512 };
typedef enum ax_note_kind {
    AX_NOTE_FAIL,   /* tells the receiver that the world has failed; `text` says why */
    AX_NOTE_CLAIM,  /* the sender asks rank 0 to be the rank that logs why the job ends */
    AX_NOTE_GRANT,  /* rank 0's reply to AX_NOTE_CLAIM; `state` is 1 for yes, -1 for no */
    AX_NOTE_END,    /* tells all ranks to exit with code `state` at time `moment` */
    AX_NOTE_ASK,    /* the sender's watchdog asks what the receiver is doing; uses `ask` and `comm` */
    AX_NOTE_ANSWER, /* reply to AX_NOTE_ASK; uses `ask`, `state`, `progress`, `called` and `text` */
} ax_note_kind;
typedef struct ax_mpi_note {
    int kind, from, state; /* from: rank of the sender */
    /* ask: number of the question. comm: id of the communicator that the question is about; 0: none. called:
     * number of operations that the answering rank has called on this communicator. progress: world->progress
     * of the answering rank. */
    int64_t ask, called;
    uint64_t comm, progress;
    double moment; /* wall-clock time at which all ranks exit */
    char text[AX_NOTE_TEXT];
} ax_mpi_note;

AX_MUST_CHECK ax_status ax_mpi_control_create(ax_mpi_world *w);
void ax_mpi_control_destroy(ax_mpi_world *w);
AX_MUST_CHECK ax_status ax_mpi_control_poll(ax_mpi_world *w);
/* Sends a control message to rank `to`. Returns false if the message could not be sent. */
bool ax_mpi_note_send(ax_mpi_world *w, int to, const ax_mpi_note *note);
void ax_mpi_note_send_all(ax_mpi_world *w, const ax_mpi_note *note);
/* Ends the job with exit code `status`, and logs `message` (NULL: nothing). If rank 0 has allowed another
 * rank to log why the job ends (AX_NOTE_CLAIM), logs nothing, and first waits up to 10 seconds for that
 * rank's AX_NOTE_END. all_hear: true if every rank still reads control messages (notes); if false, MPI_Abort
 * ends the ranks that do not read them. */
void ax_mpi_end_job(ax_mpi_world *w, int status, const char *message, bool all_hear)
    __attribute__((noreturn));

/* mpi_watch.c: the watchdog. The communication thread regularly calls ax_mpi_watch_look, which detects
 * callers that would wait for ever. ax_mpi_watch_answer replies to a question of another rank's watchdog
 * (AX_NOTE_ASK); ax_mpi_watch_hear takes such a reply (AX_NOTE_ANSWER). */
AX_MUST_CHECK ax_status ax_mpi_watch_create(ax_mpi_world *w, int size);
void ax_mpi_watch_destroy(ax_mpi_world *w);
void ax_mpi_watch_look(ax_mpi_world *w);
void ax_mpi_watch_answer(ax_mpi_world *w, const ax_mpi_note *question);
void ax_mpi_watch_hear(ax_mpi_world *w, const ax_mpi_note *note);

#endif
