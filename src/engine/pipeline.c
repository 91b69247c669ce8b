/* Runs the tasks of a pipeline stage in order, and exchanges messages with other stages. Read pipeline.h
 * first; pipeline_create.c makes what is used here.
 *
 * A rank exchanges messages only with its counterparts in the previous and in the next stage: the ranks with
 * the same coordinates on all other grid axes, which therefore hold the same box of an activation. If
 * several ranks of a stage hold the same box (the ranks along x, for example), each of these ranks sends a
 * different part of the box, and the receivers all-gather the parts. So each element is sent only once.
 *
 * For each direction, the receive of the next message is always posted in advance: as soon as one message has
 * been taken, the receive of the next is posted, before anything is computed. A message is copied to a buffer
 * before it is sent. In a training step there are as many buffers as messages can be on their way, so no task
 * waits for a send. `w` is a direction of messages, ACTIVATION or GRADIENT.
 *
 * A GPU runs a task later than the host enqueues it. The host enqueues at most one task ahead of the one that
 * the GPU runs: if it went further, it would choose tasks without the messages that arrive meanwhile. */
#include "engine/pipeline_private.h"

#include <stdlib.h>
#include <time.h>

const ax_pipe_stage *ax_pipeline_stage(const ax_pipeline *p) { return &p->stage; }
size_t ax_pipeline_bytes(const ax_pipeline *p) { return p->bytes; }
double ax_pipeline_waited(const ax_pipeline *p) { return p->waited; }

void ax_pipeline_ask_stop(ax_pipeline *p) { p->asked = p->asked > 0 ? p->asked : ax_now(); }
double ax_pipeline_stop_asked(const ax_pipeline *p) { return p->asked > 0 ? ax_now() - p->asked : 0; }

bool ax_pipeline_is_joint(const ax_pipeline *p, int chunk)
{
    return ax_model_ends(p->model, chunk) &&
           (p->stage.slots == 1 || (p->stage.chunks > 1 && !p->stage.postpone));
}

/* ---- the device ---------------------------------------------------------------------------------- */

/* Records, after a task has been enqueued, an event that completes when the device has ended the task. */
static ax_status note_task(ax_pipeline *p)
{
    return p->comm ? ax_stream_record(p->ctx->stream, p->ended[p->tasks++ % ENQUEUED]) : AX_OK;
}

/* Waits, before the next task is chosen, until the device has ended all enqueued tasks but the newest. */
static ax_status keep_pace(ax_pipeline *p)
{
    return p->comm ? ax_stream_event_wait(p->ended[p->tasks % ENQUEUED]) : AX_OK;
}

/* Waits until the device has ended all enqueued tasks, or one of the `n` messages has arrived. */
static ax_status wait_while_device_computes(const ax_pipeline *p, ax_work *const message[], int n)
{
    const struct timespec pause = {.tv_nsec = 20000};
    enum { CHECK_EVERY = 100 }; /* rounds of the loop, about 10 ms */
    for (int round = 1;; round++) {
        bool over;
        if (round % CHECK_EVERY == 0)
            AX_TRY(ax_device_check_links(p->ctx->dev));
        AX_TRY(ax_stream_event_done(p->ended[(p->tasks + ENQUEUED - 1) % ENQUEUED], &over));
        for (int i = 0; i < n; i++)
            over = over || ax_work_done(message[i]);
        if (over)
            return AX_OK;
        nanosleep(&pause, NULL);
    }
}

/* Waits until one of the `n` messages has arrived. Adds to p->waited the time in which the device has no work
 * and no message has arrived. */
static ax_status wait_for_messages(ax_pipeline *p, ax_work *const message[], int n)
{
    AX_TRY(wait_while_device_computes(p, message, n));
    double begin = ax_now();
    AX_TRY(ax_wait_some(p->comm, message, n));
    p->waited += ax_now() - begin;
    return AX_OK;
}

/* ---- messages between stages --------------------------------------------------------------------- */

static ax_message message_of(const ax_pipeline *p, int w, ax_pipe_piece piece)
{
    return (ax_message){.kind = (ax_message_kind)w,
                        .dtype = p->like.dtype,
                        .step = p->step,
                        .micro_batch = piece.micro_batch,
                        .chunk = piece.chunk,
                        .ndim = 1,
                        .dim = {p->part},
                        .note = (p->given_up ? GIVEN_UP : 0) | (p->asked > 0 ? STOP_ASKED : 0)};
}

/* Returns the piece (micro-batch and chunk) of this stage's i-th forward (w GRADIENT: i-th backward) in the
 * running step or evaluation. */
static ax_pipe_piece piece_at(const ax_pipeline *p, int w, int64_t i)
{
    return w == ACTIVATION ? ax_pipe_forward(&p->stage, p->n, i) : ax_pipe_backward(&p->stage, p->n, i);
}

static int64_t pieces(const ax_pipeline *p) { return p->n * p->stage.chunks; }

/* Returns true if the input of the piece's forward (w GRADIENT: backward) comes from another stage. */
static bool has_message(const ax_pipeline *p, int w, ax_pipe_piece piece)
{
    return w == ACTIVATION ? !ax_model_begins(p->model, piece.chunk) : !ax_model_ends(p->model, piece.chunk);
}

/* Starts the receive of the next message in direction `w`, if another message is to come in this step. */
static ax_status post(ax_pipeline *p, int w)
{
    direction *y = &p->direction[w];
    if (!p->comm || y->from < 0 || (w == GRADIENT && !p->backward))
        return AX_OK;
    while (y->next < pieces(p) && !has_message(p, w, piece_at(p, w, y->next)))
        y->next++;
    if (y->next == pieces(p))
        return AX_OK;
    ax_message m = message_of(p, w, piece_at(p, w, y->next));
    return ax_recv(p->comm, p->ctx->stream, &m, y->in, y->from, &y->receive);
}

static ax_status copy(ax_pipeline *p, const void *from, void *to, int64_t n)
{
    return n > 0 ? ax_run_copy_box(p->ctx->stream, &(ax_copy_box_args){.n = {1, 1, 1, n},
                                                                       .x_stride = {0, 0, 0, 1},
                                                                       .y_stride = {0, 0, 0, 1},
                                                                       .x = from,
                                                                       .y = to,
                                                                       .dtype = p->like.dtype})
                 : AX_OK;
}

/* Waits for the receive *work, and reads the message's note: whether the step is given up, and whether a rank
 * asked for that. */
static ax_status wait_for(ax_pipeline *p, ax_work **work)
{
    AX_ASSERT(*work);
    AX_TRY(wait_for_messages(p, work, 1));
    int note = ax_work_note(*work);
    p->given_up = p->given_up || (note & GIVEN_UP);
    if (note & STOP_ASKED)
        ax_pipeline_ask_stop(p);
    return ax_wait(work);
}

/* Starts the receive of the next message in direction `w`. Called when the received message has been used. */
static ax_status taken(ax_pipeline *p, int w)
{
    p->direction[w].next++;
    return post(p, w);
}

/* Notes in the trace that a message of this kind is sent or was received. */
static void note_moment(const ax_pipeline *p, const char *what, ax_message_kind kind, ax_pipe_piece piece)
{
    const ax_device *dev = p->ctx->dev;
    ax_activity_end(dev, what, kind == AX_MESSAGE_GRADIENT ? "gradient" : "activation",
                    ax_activity_begin(dev), piece.micro_batch);
}

ax_status ax_pipeline_take(ax_pipeline *p, ax_message_kind kind, ax_frame *frame, ax_tensor *out)
{
    direction *y = &p->direction[kind];
    ax_work *work = NULL;
    int64_t ranks = p->copies ? ax_comm_size(p->copies) : 1;
    *out = p->like;
    AX_TRY(ax_frame_scratch(frame, p->like.dtype, ranks * p->part, &out->data));
    AX_TRY(ax_wait(&y->receive)); /* needed in a dry run only; in a real run, run_or_pass_on has already
                                     waited for the message */
    if (p->copies)
        AX_TRY(ax_all_gather(p->copies, p->ctx->stream, y->in, out->data, p->part, p->like.dtype, &work));
    else
        AX_TRY(copy(p, y->in, out->data, p->part));
    AX_TRY(ax_wait(&work));
    note_moment(p, "receive", kind, piece_at(p, (int)kind, y->next));
    return taken(p, (int)kind);
}

/* Returns the next buffer for a message in direction `y`, and sets *send to the handle of the earlier send
 * that may still use this buffer. */
static char *next_buffer(direction *y, size_t bytes, ax_work ***send)
{
    int64_t buffer = y->sent++ % y->buffers;
    *send = &y->sends[buffer];
    return y->out + (size_t)buffer * bytes;
}

static ax_status send_piece(ax_pipeline *p, int w, ax_pipe_piece piece, const char *out, ax_work **send)
{
    /* A message from the last stage to the first is for the chunk after the sender's; a message from the
     * first stage to the last is for the chunk before the sender's. */
    piece.chunk += w == ACTIVATION ? is_last(p) : -is_first(p);
    ax_message m = message_of(p, w, piece);
    return ax_send(p->comm, p->ctx->stream, &m, out, p->direction[w].to, send);
}

ax_status ax_pipeline_send(ax_pipeline *p, ax_message_kind kind, ax_frame *frame, ax_pipe_piece piece,
                           const ax_tensor *tensor)
{
    direction *y = &p->direction[kind];
    ax_tensor whole;
    int64_t first = p->copies ? ax_comm_rank(p->copies) * p->part : 0;
    ax_work **send;
    char *out = next_buffer(y, pipeline_part_bytes(p), &send);
    AX_TRY(ax_settle(frame, tensor, &p->like.layout, &whole));
    AX_TRY(ax_wait(send)); /* waits for the previous send from this buffer. In training that send has ended
                              already (see make_directions); in an evaluation it may still run */
    int64_t n = ax_min(p->part, ax_tensor_count(p->ctx->grid, &whole) - first);
    note_moment(p, "send", kind, piece);
    AX_TRY(copy(p, (const char *)whole.data + first * (int64_t)ax_dtype_size(whole.dtype), out, n));
    return send_piece(p, (int)kind, piece, out, send);
}

ax_status ax_pipeline_forward(ax_pipeline *p, ax_pipe_piece piece, ax_frame *frame, ax_batch *batch)
{
    ax_tensor y;
    if (!ax_model_begins(p->model, piece.chunk))
        AX_TRY(ax_pipeline_take(p, AX_MESSAGE_ACTIVATION, frame, &batch->x));
    if (ax_model_ends(p->model, piece.chunk))
        return AX_OK;
    AX_TRY(ax_model_forward(p->model, piece.chunk, frame, &y));
    return ax_pipeline_send(p, AX_MESSAGE_ACTIVATION, frame, piece, &y);
}

ax_status ax_pipeline_share(ax_pipeline *p, void *data, int64_t n, ax_dtype dtype)
{
    ax_work *work;
    if (!p->comm)
        return AX_OK;
    AX_TRY(ax_broadcast(p->comm, p->ctx->stream, data, n, dtype, p->stage.stages - 1, &work));
    return ax_wait(&work);
}

/* ---- the order of tasks -------------------------------------------------------------------------- */

ax_status ax_pipeline_begin(ax_pipeline *p, int64_t step, int64_t n, bool backward)
{
    p->step = step;
    p->n = n;
    p->backward = backward;
    p->decisions = 0;
    p->given_up = false;
    p->asked = 0;
    AX_TRY(ax_pipeline_connect(p));
    for (int w = 0; w < DIRECTIONS; w++)
        p->direction[w].next = p->direction[w].sent = 0;
    ax_pipe_slots_empty(&p->slots);
    AX_TRY(note_task(p)); /* counts what was enqueued before, the update of the previous step, as a task */
    AX_TRY(post(p, ACTIVATION));
    return post(p, GRADIENT);
}

static ax_message decision(const ax_pipeline *p)
{
    return (ax_message){.kind = AX_MESSAGE_TASK,
                        .dtype = AX_I32,
                        .step = p->step,
                        .micro_batch = p->decisions,
                        .ndim = 1,
                        .dim = {1}};
}

/* Waits until a message with an activation or a gradient arrives. `activation` (`gradient`): a message of
 * this kind has arrived already, so the function waits for the other kind only. */
static ax_status wait_for_arrival(ax_pipeline *p, bool activation, bool gradient)
{
    ax_work *open[DIRECTIONS];
    int n = 0;
    if (!activation && p->direction[ACTIVATION].receive)
        open[n++] = p->direction[ACTIVATION].receive;
    if (!gradient && p->direction[GRADIENT].receive)
        open[n++] = p->direction[GRADIENT].receive;
    AX_CHECK(n, AX_ERR_INTERNAL,
             "pipeline stage %d has no task and waits for nothing (this is a bug: please report it)",
             p->stage.stage);
    return wait_for_messages(p, open, n);
}

/* Returns true if the input of this stage's forward (w GRADIENT: backward) number i has arrived. An input
 * that comes from no other stage counts as arrived. */
static bool has_arrived(const ax_pipeline *p, int w, int64_t i)
{
    return !has_message(p, w, piece_at(p, w, i)) || ax_work_done(p->direction[w].receive);
}

/* Chooses the next task according to the messages that this rank has received. Waits for a message if no task
 * can run yet. */
static ax_status decide(ax_pipeline *p, ax_pipe_counts *now, ax_pipe_task *out)
{
    for (*out = AX_PIPE_WAIT; *out == AX_PIPE_WAIT;) {
        now->activation = now->forwards < pieces(p) && has_arrived(p, ACTIVATION, now->forwards);
        now->gradient = now->backwards < now->forwards && has_arrived(p, GRADIENT, now->backwards);
        *out = ax_pipe_next(&p->stage, now);
        if (*out == AX_PIPE_WAIT)
            AX_TRY(wait_for_arrival(p, now->activation, now->gradient));
    }
    return AX_OK;
}

/* Chooses the next task, and starts nonblocking sends of the choice to the other ranks of the group. Called
 * on rank 0 of the group. */
static ax_status send_decision(ax_pipeline *p, ax_pipe_counts *now, ax_pipe_task *out)
{
    ax_message m = decision(p);
    int ranks = ax_comm_size(p->group);
    AX_TRY(decide(p, now, out));
    if (*out == AX_PIPE_DONE)
        return AX_OK;
    int32_t *task = &p->task[p->decisions];
    *task = (int32_t)*out;
    for (int r = 1; r < ranks; r++)
        AX_TRY(ax_send(p->group, NULL, &m, task, r, &p->decision_sends[p->decisions * ranks + r]));
    p->decisions++;
    return AX_OK;
}

static ax_status receive_decision(ax_pipeline *p, const ax_pipe_counts *now, ax_pipe_task *out)
{
    ax_message m = decision(p);
    ax_work *work;
    *out = AX_PIPE_DONE;
    if (now->weights == pieces(p))
        return AX_OK;
    AX_TRY(ax_recv(p->group, NULL, &m, &p->task[p->decisions], 0, &work));
    AX_TRY(wait_for(p, &work));
    *out = (ax_pipe_task)p->task[p->decisions++];
    return AX_OK;
}

static ax_status next_task(ax_pipeline *p, ax_pipe_counts *now, ax_pipe_task *out)
{
    if (p->group)
        return ax_comm_rank(p->group) ? receive_decision(p, now, out) : send_decision(p, now, out);
    if (!ax_pipe_is_fixed(&p->stage))
        return decide(p, now, out);
    /* In a fixed order the next task does not depend on which messages have arrived. So the task's message is
     * treated as arrived here, and run_or_pass_on waits for the message. */
    now->activation = now->forwards < pieces(p);
    now->gradient = now->backwards < now->forwards;
    *out = ax_pipe_next(&p->stage, now);
    return AX_OK;
}

/* ---- running ------------------------------------------------------------------------------------- */

static const char *const task_names[] = {
    [AX_PIPE_FORWARD] = "forward", [AX_PIPE_BACKWARD] = "backward", [AX_PIPE_WEIGHTS] = "weights"};

/* Replaces a forward or a backward in a step that is given up: takes the input message of the piece, and
 * sends the output message of the piece with arbitrary data. So no other stage waits forever. */
static ax_status pass_on(ax_pipeline *p, int w, ax_pipe_piece piece)
{
    direction *y = &p->direction[w];
    if (has_message(p, w, piece))
        AX_TRY(taken(p, w));
    if (!has_message(p, ACTIVATION + GRADIENT - w, piece)) /* first or last chunk of the model: there is no
                                                              message to send */
        return AX_OK;
    ax_work **send;
    const char *out = next_buffer(y, pipeline_part_bytes(p), &send);
    AX_TRY(ax_wait(send));
    return send_piece(p, w, piece, out, send);
}

/* Runs the task, or pass_on if the step is given up. The message just received tells a stage whether the step
 * is given up. On the first stage, the task itself fails with AX_ERR_SIGNAL when it reads its rows
 * (train/pace.c). */
static ax_status run_or_pass_on(ax_pipeline *p, const ax_pipeline_tasks *t, ax_pipe_task task,
                                ax_pipe_piece piece, int slot)
{
    int w = task == AX_PIPE_FORWARD ? ACTIVATION : GRADIENT;
    bool moves = task != AX_PIPE_WEIGHTS && p->comm;
    if (moves && has_message(p, w, piece))
        AX_TRY(wait_for(p, &p->direction[w].receive));
    if (!p->given_up) {
        ax_status status = t->run[task](t->user, piece, slot);
        p->given_up = status == AX_ERR_SIGNAL;
        if (!p->given_up || !moves)
            return status;
    }
    return moves ? pass_on(p, w, piece) : AX_OK;
}

/* Puts a piece that runs forward into a slot, and returns its index; an evaluation keeps no activations, and
 * uses only slot 0. */
static int enter_slot(ax_pipeline *p, ax_pipe_piece piece)
{
    return p->backward ? ax_pipe_slots_take(&p->slots, piece) : 0;
}

/* Runs a forward, a backward, or the postponed weight gradients of a piece. A piece's slot is free after its
 * last task. */
static ax_status run_task(ax_pipeline *p, const ax_pipeline_tasks *t, ax_pipe_task task, ax_pipe_counts *now)
{
    bool forward = task == AX_PIPE_FORWARD,
         ends = task == AX_PIPE_WEIGHTS || (!forward && !p->stage.postpone);
    int64_t number = forward ? now->forwards++ : task == AX_PIPE_BACKWARD ? now->backwards++ : now->weights;
    ax_pipe_piece piece = piece_at(p, forward ? ACTIVATION : GRADIENT, number);
    int slot = forward ? enter_slot(p, piece) : ax_pipe_slots_find(&p->slots, piece);
    double begin = ax_activity_begin(p->ctx->dev);
    AX_TRY(run_or_pass_on(p, t, task, piece, slot));
    if (!forward || !ax_pipeline_is_joint(p, piece.chunk)) /* joint: one task, noted after its backward */
        AX_TRY(note_task(p));
    now->weights += ends;
    if (ends)
        ax_pipe_slots_release(&p->slots, slot);
    if (p->comm)
        ax_activity_end(p->ctx->dev, "task", task_names[task], begin, piece.micro_batch);
    return AX_OK;
}

ax_status ax_pipeline_end(ax_pipeline *p)
{
    for (int w = 0; w < DIRECTIONS; w++)
        for (int64_t i = 0; p->direction[w].sends && i < p->direction[w].buffers; i++)
            AX_TRY(ax_wait(&p->direction[w].sends[i]));
    for (int64_t i = 0; p->group && i < p->decisions * ax_comm_size(p->group); i++)
        AX_TRY(ax_wait(&p->decision_sends[i]));
    return AX_OK;
}

ax_status ax_pipeline_run(ax_pipeline *p, const ax_pipeline_tasks *tasks)
{
    ax_pipe_counts now = {0};
    ax_pipe_task task;
    for (int64_t i = 0; i < pieces(p) && !p->backward; i++) {
        AX_TRY(keep_pace(p));
        AX_TRY(run_task(p, tasks, AX_PIPE_FORWARD, &now));
    }
    while (p->backward) {
        AX_TRY(keep_pace(p));
        AX_TRY(next_task(p, &now, &task));
        if (task == AX_PIPE_DONE)
            break;
        AX_TRY(run_task(p, tasks, task, &now));
    }
    AX_TRY(ax_pipeline_end(p));
    AX_CHECK(!p->given_up, AX_ERR_SIGNAL,
             "step %lld was stopped by a signal before it was complete, and is dropped", (long long)p->step);
    return AX_OK;
}
