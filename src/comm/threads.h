/* Ranks as threads of one process: what threads.c (collectives, groups) and threads_message.c share. A group
 * is the ranks of one communicator. */
#ifndef AXONN_COMM_THREADS_H
#define AXONN_COMM_THREADS_H

#include "axonn/comm.h"

#include <pthread.h>

typedef struct group group;
typedef struct world world;

/* A rank's current call on a group: a collective, a split, or the creation of the group. */
typedef struct slot {
    ax_coll_args args;
    const char *setup; /* "split" or "group creation"; NULL: a collective */
    bool waiting;
    int color, key;
    group *sub;       /* result of a split: this rank's new group */
    int sub_rank;     /* result of a split: this rank's index in `sub` */
    const void **src; /* every rank's send buffer: the sources of this rank's reductions */
    void **dst;       /* every rank's receive buffer, or one address: where this rank's reductions write */
} slot;

struct group {
    world *world;
    group *next, **link; /* links of the doubly linked list world->groups */
    int size, members;   /* members: number of ranks that have not destroyed their communicator */
    int arrived;
    bool forming;   /* threads_group is creating the group, and not all ranks of the group have called
                       threads_group yet */
    uint64_t round; /* number of times that waiting ranks have been released */
    pthread_cond_t released;
    int *world_rank;
    slot *slot;
    const void **src; /* the arrays `src` of all slots, of `size` pointers each */
    void **dst;       /* the arrays `dst` of all slots, of `size` pointers each */
};

/* A call of ax_send or ax_recv. Of the sender and the receiver of a message, the one that calls second copies
 * the data. Exception: if a device still copies the sender's data to the host then, any rank that later finds
 * this copy complete copies the data to the receiver. */
typedef struct pending {
    ax_work work;
    struct pending *next; /* next in the list world->open, world->unready or world->unused */
    struct pending *made; /* next in the list world->made */
    group *g;
    int rank; /* the caller's rank in the group */
    ax_message_args args;
    bool done;
    struct waiter *waiter; /* wakes the rank that waits for this call; NULL: no rank waits for it */
} pending;

/* The state of a rank that waits for messages. */
typedef struct waiter {
    pthread_cond_t woken_up;
    bool woken;
} waiter;

struct world {
    pthread_mutex_t lock;
    group *groups;
    waiter *waiter;   /* waiter[r]: the waiter of rank r */
    pending *open;    /* calls of ax_send and ax_recv that the other rank has not matched yet, in the order of
                         the calls */
    pending *unready; /* sends whose data a device still copies to the host, in the order of the calls */
    pending *unused;  /* free handles */
    pending *made;    /* all handles that were allocated */
    int size, blocked, returned; /* blocked: number of ranks that wait for other ranks; returned: number of
                                    ranks whose function has returned */
    int first_failed;            /* the rank that failed or aborted first; -1: none */
    bool failed;
    char message[1024]; /* why the world has failed, once `failed` is true */
};

/* The caller of the functions from here to rank_threads_list_messages holds the world's lock.
 * rank_threads_fail makes the world fail with `message`, unless it has already failed. */
void rank_threads_fail(world *w, const char *message);
/* Fails the world if there is a deadlock: every rank is blocked or has returned, and no send waits for a
 * device that copies its data. */
void rank_threads_find_deadlock(world *w);
/* Sleeps until `woken` is signalled. If a send waits for a device that copies its data, sleeps at most 50 µs,
 * and then looks for copied data and for a deadlock (rank_threads_look_for_data,
 * rank_threads_find_deadlock). */
void rank_threads_sleep(world *w, pthread_cond_t *woken);
/* Wakes all ranks that sleep, so that they check again whether they must wait. */
void rank_threads_wake_all(world *w);
/* Starts the sends whose data no device copies any more: copies the data to the receiver, or adds the send to
 * world->open. */
void rank_threads_look_for_data(world *w);
/* Appends to `text` descriptions of the messages that ranks wait for, with `comma` before the first one. */
void rank_threads_list_messages(const world *w, char *text, size_t size, const char *comma);

AX_MUST_CHECK ax_status rank_threads_messages_create(world *w);
void rank_threads_messages_destroy(world *w);

/* Between ranks that are threads of one process: rank_threads_message starts to send or receive a message
 * (ax_send, ax_recv), and rank_threads_wait_some waits until one of `n` messages is complete
 * (ax_wait_some). */
ax_status rank_threads_message(ax_comm *comm, const ax_message_args *args, ax_work **work);
ax_status rank_threads_wait_some(ax_comm *comm, ax_work *const works[], int n);

#endif
