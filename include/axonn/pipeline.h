/* A rank's part in a pipeline: the order of its stage's tasks, and the messages between stages. What a task
 * computes is up to the caller (engine_tasks.c). On a grid with one stage there are no messages. A stage has
 * one chunk, or several with the schedule interleaved.
 *
 * docs/guide/pipeline.md explains the protocol, and why it cannot deadlock. */
#ifndef AXONN_PIPELINE_H
#define AXONN_PIPELINE_H

#include "axonn/model.h"
#include "axonn/pipe.h"

typedef struct ax_pipeline ax_pipeline;

/* run[task] runs a task of a piece. The tasks are AX_PIPE_FORWARD, AX_PIPE_BACKWARD and, if the stage
 * postpones weight gradients, AX_PIPE_WEIGHTS. `slot` is the index of the memory for this piece, from 0;
 * all tasks of a piece get the same slot. */
typedef struct ax_pipeline_tasks {
    ax_status (*run[AX_PIPE_DONE])(void *user, ax_pipe_piece piece, int slot);
    void *user;
} ax_pipeline_tasks;

/* Creates this rank's part in a pipeline, with the buffers of its messages. A micro-batch has `rows` ×
 * `seq_len` tokens over the ranks that have different rows, a training step `micro_batches` micro-batches.
 * `trains` false: the pipeline is used for evaluation only, without backward. Borrows `model`. Not
 * collective. */
AX_MUST_CHECK ax_status ax_pipeline_create(ax_model *model, int64_t rows, int64_t seq_len,
                                           int64_t micro_batches, bool trains, ax_pipeline **out);
void ax_pipeline_destroy(ax_pipeline **pipeline);
/* Gets the communicators of the pipeline, and reserves pinned memory for its messages, unless an earlier call
 * has. ax_pipeline_begin calls it, since ax_grid_prepare creates the communicators only after the pipeline; a
 * caller for whom one rank must not fail alone there calls it before, and agrees. Collective along the grid.
 */
AX_MUST_CHECK ax_status ax_pipeline_connect(ax_pipeline *pipeline);
const ax_pipe_stage *ax_pipeline_stage(const ax_pipeline *pipeline);
/* Returns the bytes of memory of the message buffers. */
size_t ax_pipeline_bytes(const ax_pipeline *pipeline);
/* Returns true if one task runs forward and backward of each piece of this chunk, because the backward
 * directly follows the forward. This is so for the last chunk of the model, if the last stage has one slot,
 * or has several chunks and does not postpone weight gradients. */
bool ax_pipeline_is_joint(const ax_pipeline *pipeline, int chunk);

/* Begins a step (or an evaluation, with `backward` false) of `n` micro-batches: starts the first receives of
 * messages. */
AX_MUST_CHECK ax_status ax_pipeline_begin(ax_pipeline *pipeline, int64_t step, int64_t n, bool backward);
/* Runs all tasks of the step in the order of the schedule, and waits until all sent messages have arrived. */
AX_MUST_CHECK ax_status ax_pipeline_run(ax_pipeline *pipeline, const ax_pipeline_tasks *tasks);
/* Waits until all messages that this rank has sent have arrived. ax_pipeline_run calls this at its end. */
AX_MUST_CHECK ax_status ax_pipeline_end(ax_pipeline *pipeline);
/* Returns the seconds, since the pipeline was created, in which this rank waited because it had no task. */
double ax_pipeline_waited(const ax_pipeline *pipeline);

/* ax_pipeline_ask_stop is called within a task, on any rank: all messages that this rank sends later in the
 * step carry a note, and a rank that receives the note adds it to its own messages. With the gradients the
 * note reaches the first stage, which may then give up the step. ax_pipeline_stop_asked returns the seconds
 * since this rank called ax_pipeline_ask_stop in the running step, or received such a note; 0: neither. */
void ax_pipeline_ask_stop(ax_pipeline *pipeline);
double ax_pipeline_stop_asked(const ax_pipeline *pipeline);

/* ax_pipeline_take and ax_pipeline_send are called within a task. ax_pipeline_take waits for the activation
 * or gradient from the neighbouring stage and copies it to memory of `frame`. ax_pipeline_send sends an
 * activation or gradient to the neighbouring stage; `tensor` may be overwritten after the call. */
AX_MUST_CHECK ax_status ax_pipeline_take(ax_pipeline *pipeline, ax_message_kind kind, ax_frame *frame,
                                         ax_tensor *out);
AX_MUST_CHECK ax_status ax_pipeline_send(ax_pipeline *pipeline, ax_message_kind kind, ax_frame *frame,
                                         ax_pipe_piece piece, const ax_tensor *tensor);
/* Called within a forward task. Runs the layers of the piece's chunk, with the messages before and after
 * them: receives the chunk's input into batch->x, unless the chunk begins the model, and sends its output. Of
 * the chunk that ends the model it runs no layer, because the caller does (ax_model_loss, ax_model_logits).
 * `batch` is that of the frame's task. */
AX_MUST_CHECK ax_status ax_pipeline_forward(ax_pipeline *pipeline, ax_pipe_piece piece, ax_frame *frame,
                                            ax_batch *batch);
/* Called after a step. Broadcasts n elements of device memory from each rank of the last stage to its
 * counterparts in the other stages. */
AX_MUST_CHECK ax_status ax_pipeline_share(ax_pipeline *pipeline, void *data, int64_t n, ax_dtype dtype);

#endif
