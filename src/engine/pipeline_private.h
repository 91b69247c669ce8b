/* The state of a pipeline stage, which pipeline_create.c makes and pipeline.c runs. */
#ifndef AXONN_ENGINE_PIPELINE_PRIVATE_H
#define AXONN_ENGINE_PIPELINE_PRIVATE_H

#include "axonn/pipeline.h"

enum { ENQUEUED = 2 }; /* the most tasks on the device at a time: the one that it runs, and the next */
enum { ACTIVATION, GRADIENT, DIRECTIONS };
/* Bits of ax_message.note. GIVEN_UP: the sender has given up the step. STOP_ASKED: the sender knows that a
 * rank asked to give up the step (ax_pipeline_ask_stop). */
enum { GIVEN_UP = 1, STOP_ASKED = 2 };
_Static_assert(ACTIVATION == (int)AX_MESSAGE_ACTIVATION && GRADIENT == (int)AX_MESSAGE_GRADIENT,
               "the kinds of messages between stages are the first two");

/* One direction of messages: activations go to the next stage, gradients to the previous one. */
typedef struct direction {
    int from, to; /* `from`: the stage that sends to this stage; `to`: the stage to which this stage
                     sends; -1: none */
    int64_t next; /* number, in this step, of this stage's forward (for gradients: backward) whose input is
                     the message that `receive` receives */
    int64_t sent; /* number of messages that this rank has sent in this direction in this step */
    ax_work *receive; /* the receive of the next message, or NULL */
    char *in;         /* the buffer into which `receive` writes */
    char *out;        /* `buffers` buffers for messages to send, one after the other */
    ax_work **sends;  /* [buffers]: the send in flight from each buffer, or NULL */
    int64_t buffers;
} direction;

struct ax_pipeline {
    ax_ctx *ctx;
    ax_pipe_stage stage;
    ax_model *model;
    ax_pipe_slots slots;
    ax_comm *comm;   /* communicator along the grid axis pipe; NULL if there is one stage */
    ax_tensor like;  /* shape, dtype and layout of an activation between stages, without data */
    ax_comm *copies; /* communicator of the ranks of this stage that have the same box of an activation; NULL:
                        no other rank has this rank's box */
    int64_t part;    /* number of elements of an activation that this rank sends; the other ranks of `copies`
                        send the rest */
    ax_comm *group;  /* the ranks that run collectives together within a task and must run tasks in the same
                        order; NULL: this rank alone, or a fixed order */
    int32_t *task;   /* [decision]: the tasks (ax_pipe_task) that rank 0 of `group` has chosen in this step */
    ax_work **decision_sends; /* [decision, rank]: the sends of task[decision] from rank 0 of `group` to each
                                 other rank */
    int64_t decisions;        /* number of decisions in this step so far */
    direction direction[DIRECTIONS];
    char *memory;
    size_t bytes;
    int64_t step, n; /* `step`: index of the running step; `n`: how many micro-batches the step has */
    bool backward;
    bool given_up; /* the running step is given up: nothing is computed, only messages are exchanged */
    double asked;  /* when this rank learned that a rank asked to give up the running step; 0: none did */
    double waited;
    /* With several stages: ended[i % ENQUEUED] is complete when the device has ended task number i. */
    ax_stream_event *ended[ENQUEUED];
    int64_t tasks; /* number of tasks that this rank has enqueued so far, over all steps */
};

static inline bool is_first(const ax_pipeline *p) { return p->stage.stage == 0; }
static inline bool is_last(const ax_pipeline *p) { return p->stage.stage == p->stage.stages - 1; }

/* Returns the bytes of a message's buffer: this rank's part of an activation, in whole cache lines. */
size_t pipeline_part_bytes(const ax_pipeline *p);

#endif
