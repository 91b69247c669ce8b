/* The communicator over MPI: what its files share.
 *
 * Each rank has one communication thread, which makes all calls of MPI, from MPI_Init_thread to MPI_Finalize.
 * Other threads hand it operations (mpi.c) through a queue and wait for their completion. The thread
 * (mpi_thread.c) starts operations strictly in the order in which they were queued and drives all that are in
 * flight by testing; nothing that it does may block, because it also answers for the rank. A path moves the
 * data: mpi_flat.c by messages, mpi_node.c through memory that ranks of a node share.
 *
 * An operation that needs only memory (`local`) may also be driven by a caller that waits: that saves two
 * switches between threads. Who drives holds the lock `driving`, and callers leave alone what needs MPI.
 *
 * Who may touch what: members marked T belong to the communication thread, D to who drives. */
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

/* One way to carry collectives. All functions run on the communication thread and must not block, but attach
 * and detach, which all ranks of the communicator call together. */
typedef struct ax_mpi_path {
    const char *name;
    /* A communicator was made, or is to be freed; NULL: nothing to do. */
    ax_status (*attach)(ax_mpi_comm *c);
    void (*detach)(ax_mpi_comm *c);
    /* True if this path carries the collective. Decided from what all ranks of the group share. NULL: always.
     */
    bool (*takes)(const ax_mpi_comm *c, const ax_coll_args *args);
    /* Begins op; drives it, and says when this rank's part is done. While op->unstarted is not 0, no later
     * operation is started. */
    ax_status (*start)(ax_mpi_op *op);
    ax_status (*test)(ax_mpi_op *op, bool *done);
} ax_mpi_path;

/* In order of preference; the last takes everything. */
extern const ax_mpi_path *const ax_mpi_paths[];
extern const ax_mpi_path ax_mpi_flat, ax_mpi_node;
extern const ax_comm_ops ax_mpi_ops;

struct ax_mpi_comm {
    ax_comm comm;
    ax_mpi_world *world;
    ax_mpi_comm *next; /* among the world's (lock) */
    MPI_Comm mpi;
    uint64_t id;     /* the same on all members */
    int *world_rank; /* of each member */
    bool spans_nodes;
    int64_t called;          /* operations so far (lock) */
    int tags;                /* T: given out so far; the same on all members */
    void *path_state;        /* T: of the path that shares memory */
    ax_mpi_flat_state *flat; /* T: of the path by messages: the world's, or one of its own */
};

typedef enum ax_mpi_kind { AX_MPI_COLLECTIVE, AX_MPI_SPLIT, AX_MPI_DESTROY } ax_mpi_kind;

struct ax_mpi_op {
    ax_work work;
    ax_mpi_op *next; /* in the queue, among the active, or among the free */
    ax_mpi_comm *c;
    ax_mpi_kind kind;
    int64_t seq; /* the how-manieth on its communicator, from 1 */
    ax_coll_args args;
    /* What follows the collective on the communication thread, on all ranks of the group: a call of MPI that
     * blocks until they have come. NULL: nothing. */
    ax_status (*finish)(ax_mpi_op *op);
    int color, key; /* of a split, and its result */
    ax_mpi_comm *made;
    const ax_coll_args *timed; /* of a measurement of the library, and its result */
    double seconds;
    const ax_mpi_path *path;
    bool local; /* it needs no MPI */
    /* D, and T unless it is local: */
    bool checking;                   /* whether all call the same; it has not started yet */
    int tag;                         /* the first of its tags */
    int64_t stride;                  /* of the flat path: elements between the blocks that a gather writes */
    int64_t pieces, unstarted, open; /* of the flat path; any path may use them */
    int64_t wire;                    /* bytes sent to other nodes */
    ax_node_op node;                 /* of the path that shares memory */
    /* The result, valid once done. */
    ax_status status;
    atomic_bool done;
};

/* What a rank called, in plain data. */
typedef struct ax_mpi_call {
    int kind, coll, dtype, op, root, size;
    uint64_t comm;
    int64_t count, seq;
} ax_mpi_call;

ax_mpi_call ax_mpi_call_of(const ax_mpi_op *op);
/* "all_reduce of 8 f32" */
void ax_mpi_call_describe(const ax_mpi_call *call, char *out, size_t size);

typedef struct ax_mpi_checks ax_mpi_checks;
typedef struct ax_mpi_control ax_mpi_control;
typedef struct ax_mpi_watch ax_mpi_watch;
typedef struct ax_mpi_guard ax_mpi_guard;

struct ax_mpi_world {
    ax_mpi_comm *comm; /* the world's own */
    pthread_t thread;
    int *node;       /* of each rank: the smallest rank with which it shares memory */
    ax_node *shared; /* the node's memory; NULL: none, on any rank */
    bool crowded;    /* the node has fewer cores than ranks */
    bool owns_mpi;   /* T: MPI is ours to finalize */
    /* Under the lock: */
    pthread_mutex_t lock;
    pthread_cond_t to_thread, to_callers;
    ax_mpi_op *queue, **queue_end, *free_ops;
    ax_mpi_comm *comms;   /* all */
    ax_mpi_op *op_blocks; /* all handles; the first of each block links to the next */
    int abort_status;     /* asked for by ax_comm_abort; 0: not */
    const char *abort_message;
    char message[1024]; /* why the world failed */
    ax_launcher launch;
    ax_mpi_guard *guard; /* of the end of the process */
    ax_status create_status;
    bool created; /* or not, says create_status */
    /* Read without it: */
    atomic_int queued;  /* operations in the queue */
    atomic_int waiting; /* callers in ax_wait, those of them that sleep, and those that drive */
    atomic_int sleeping, helping;
    atomic_bool resting; /* the communication thread sleeps */
    atomic_bool failed, aborting, leaving, ending;
    atomic_bool said_full;  /* that shared memory is */
    atomic_int timeout_ms;  /* of the watchdog; 0: off */
    atomic_bool hurried;    /* ranks have HURRY_SECONDS to answer */
    atomic_llong in_device; /* until then, in ms of ax_now, this rank counts as waiting for others there */
    pthread_mutex_t driving;
    /* D: */
    ax_mpi_op *active;
    uint64_t progress; /* counts what moved: any path adds to it */
    /* T: */
    ax_mpi_flat_state *flat;
    ax_mpi_checks *checks; /* NULL: not checked */
    ax_mpi_control *control;
    ax_mpi_watch *watch;
    bool quit;
};

/* The path of a collective. */
const ax_mpi_path *ax_mpi_path_of(const ax_mpi_comm *c, const ax_coll_args *args);

/* AX_OK, or the failure of a call of MPI in words. */
AX_MUST_CHECK ax_status ax_mpi_check(int code, const char *call);
#define AX_MPI(call) AX_TRY(ax_mpi_check(call, #call))

static inline bool ax_mpi_same_node(const ax_mpi_comm *c, int rank)
{
    return c->world->node[c->world_rank[rank]] == c->world->node[c->world_rank[c->comm.rank]];
}

/* Makes a communicator of `mpi`, which it takes over. Communication thread; collective. */
AX_MUST_CHECK ax_status ax_mpi_comm_make(ax_mpi_world *w, MPI_Comm mpi, uint64_t id, ax_mpi_comm **out);
void ax_mpi_comm_free(ax_mpi_comm *c);

/* Drives what needs no MPI, if nobody else drives now; true if something moved. Callers that wait. */
bool ax_mpi_help(ax_mpi_world *w);
/* The life of the communication thread. */
void *ax_mpi_thread(void *world);

/* Everything below is for the communication thread. */

AX_MUST_CHECK ax_status ax_mpi_flat_create(ax_mpi_flat_state **out);
void ax_mpi_flat_destroy(ax_mpi_flat_state **flat);

/* Finds out whether and how the ranks of each node can share memory. Collective along the world. */
AX_MUST_CHECK ax_status ax_mpi_node_create(ax_mpi_world *w);
void ax_mpi_node_destroy(ax_mpi_world *w);
/* Those of ax_comm_ops. */
ax_status ax_mpi_node_alloc(ax_comm *comm, size_t bytes, void **out);
bool ax_mpi_node_free(ax_comm *comm, void *memory);
int64_t ax_mpi_node_foreign(const ax_comm *comm);

/* Fails the world: all operations in flight and to come, on all ranks or on this one. The first message
 * counts. */
void ax_mpi_fail(ax_mpi_world *w, const char *message);
void ax_mpi_fail_quietly(ax_mpi_world *w, const char *message);

/* mpi_check.c: the ranks of a group compare what they call. One operation at a time. */
AX_MUST_CHECK ax_status ax_mpi_checks_create(ax_mpi_world *w, int size);
void ax_mpi_checks_destroy(ax_mpi_world *w);
AX_MUST_CHECK ax_status ax_mpi_check_start(ax_mpi_op *op);
AX_MUST_CHECK ax_status ax_mpi_check_test(ax_mpi_op *op, bool *done);

/* mpi_control.c: notes between communication threads. */
enum { AX_NOTE_TEXT = 512 };
typedef enum ax_note_kind {
    AX_NOTE_FAIL,   /* text: the world has failed */
    AX_NOTE_CLAIM,  /* to rank 0: may I speak for the job? */
    AX_NOTE_GRANT,  /* state 1 or -1: yes, no */
    AX_NOTE_END,    /* state, moment: the job ends with this exit code then */
    AX_NOTE_ASK,    /* ask, comm: what do you do? */
    AX_NOTE_ANSWER, /* ask, state, progress, called, text */
} ax_note_kind;
typedef struct ax_mpi_note {
    int kind, from, state;
    int64_t ask, called;
    uint64_t comm, progress;
    double moment; /* of the wall clock */
    char text[AX_NOTE_TEXT];
} ax_mpi_note;

AX_MUST_CHECK ax_status ax_mpi_control_create(ax_mpi_world *w);
void ax_mpi_control_destroy(ax_mpi_world *w);
AX_MUST_CHECK ax_status ax_mpi_control_poll(ax_mpi_world *w);
/* False: it could not be sent. */
bool ax_mpi_note_send(ax_mpi_world *w, int to, const ax_mpi_note *note);
void ax_mpi_note_send_all(ax_mpi_world *w, const ax_mpi_note *note);
/* Says why, if no other rank did, and ends the job; all_hear false: also ranks that do not read notes. */
void ax_mpi_end_job(ax_mpi_world *w, int status, const char *message, bool all_hear)
    __attribute__((noreturn));

/* mpi_watch.c: looks now and then whether a caller waits in vain. */
AX_MUST_CHECK ax_status ax_mpi_watch_create(ax_mpi_world *w, int size);
void ax_mpi_watch_destroy(ax_mpi_world *w);
void ax_mpi_watch_look(ax_mpi_world *w);
void ax_mpi_watch_answer(ax_mpi_world *w, const ax_mpi_note *question);
void ax_mpi_watch_hear(ax_mpi_world *w, const ax_mpi_note *note);

#endif
