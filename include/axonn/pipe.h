/* pipe: schedules of pipeline parallelism, computed from counts of tasks, and the cut of a model into stages.
 *
 * A pipeline has P stages. Each of the M micro-batches of a step runs forward on stages 0 … P-1, and then
 * backward on stages P-1 … 0. With AX_PIPE_INTERLEAVED each stage has several chunks of the model: a
 * micro-batch runs forward through the first chunks of stages 0 … P-1, then through their second chunks, and
 * so on, and backward through the same chunks in reverse order. A piece is one micro-batch in one chunk. A
 * chunk runs its forwards, and its backwards, in the order of the micro-batches under every schedule; a
 * schedule decides only whether a forward or a backward is next. So sums over micro-batches are added in the
 * same order under every schedule. docs/guide/pipeline.md has the reasons. Nothing here
 * communicates. */
#ifndef AXONN_PIPE_H
#define AXONN_PIPE_H

#include "axonn/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ax_pipe_schedule {
    /* The order follows the arrival of messages (arXiv 2110.13005): if the input of a backward has arrived,
     * that backward is next, else a forward whose input has arrived, if fewer than ax_pipe_stage.flight
     * pieces are between their forward and their backward. */
    AX_PIPE_MESSAGE,
    /* First as many forwards as ax_pipe_stage.flight says, then alternately a backward and a forward while
     * forwards are left, then the remaining backwards. */
    AX_PIPE_1F1B,
    /* All forwards, then all backwards. */
    AX_PIPE_GPIPE,
    /* 1F1B of pieces instead of micro-batches (arXiv 2104.04473, section 2.2). With v chunks, a stage's
     * wait for the first micro-batch is 1/v of the wait with AX_PIPE_1F1B, and the stage sends v times as
     * many messages. */
    AX_PIPE_INTERLEAVED,
    AX_PIPE_SCHEDULES
} ax_pipe_schedule;
/* Returns the name of an ax_pipe_schedule, or NULL after the last. */
const char *ax_pipe_schedule_name(int index);

/* One stage of a pipeline, in one step. A slot is the memory that a stage keeps for one piece until the
 * backward and the postponed weight gradients of the piece are computed. */
typedef struct ax_pipe_stage {
    ax_pipe_schedule schedule;
    int stages, stage;
    int chunks; /* chunks of each stage; 1 for every schedule except AX_PIPE_INTERLEAVED */
    int64_t micro_batches;
    int64_t flight;   /* the largest number of pieces that have run forward, but not yet backward */
    int64_t postpone; /* the largest number of pieces that have run backward, but whose weight gradients are
                         not yet computed */
    int64_t slots;    /* flight + postpone, but no more than there are pieces */
} ax_pipe_stage;

/* The settings of a pipeline. The default of each setting is 0. The number of stages is not a setting,
 * because it is the size of the grid axis pipe. */
typedef struct ax_pipe_settings {
    ax_pipe_schedule schedule;
    int chunks;         /* chunks of each stage with AX_PIPE_INTERLEAVED; 0: one. Other schedules ignore it */
    int64_t slack;      /* how many more micro-batches a stage may hold than the number that keeps all stages
                           busy (ax_pipe_stage_of); for AX_PIPE_MESSAGE and AX_PIPE_1F1B only */
    int64_t postpone;   /* number of pieces whose weight gradients a stage may postpone (ax_pipe_next) */
    const int64_t *cut; /* cut[i]: index of the first block of stage i + 1; if stages have several chunks, of
                           chunk i + 1 in the order of forward. NULL: ax_pipe_cut chooses. Borrowed */
} ax_pipe_settings;

/* Returns true if a step of `micro_batches` micro-batches can have this schedule on `stages` stages. With
 * AX_PIPE_INTERLEAVED `micro_batches` must be a multiple of `stages`; the other schedules have no
 * condition. */
bool ax_pipe_fits(ax_pipe_schedule schedule, int64_t stages, int64_t micro_batches);

/* Returns the description of stage `stage`. P is the number of stages. With AX_PIPE_MESSAGE and AX_PIPE_1F1B,
 * `flight` is P - stage + slack: P - stage micro-batches in flight keep all stages busy if all stages take
 * equally long. With AX_PIPE_GPIPE `flight` is the number of micro-batches. With AX_PIPE_INTERLEAVED `flight`
 * is (chunks - 1)·P + 2·(P - stage) - 1: then the stage's next backward can run when its gradient arrives.
 * `flight` is never above the number of pieces. If P is 1, the stage has one slot and one chunk, and
 * postpones nothing. */
ax_pipe_stage ax_pipe_stage_of(const ax_pipe_settings *settings, int stages, int stage,
                               int64_t micro_batches);

typedef struct ax_pipe_piece {
    int64_t micro_batch;
    int chunk;
} ax_pipe_piece;

/* ax_pipe_forward returns the piece of a stage's i-th forward in a pass over n micro-batches,
 * ax_pipe_backward the piece of its i-th backward; i counts from 0 and is below n · chunks. With several
 * chunks, P (the number of stages) micro-batches run through one chunk after the other, then the next P (at
 * the end of the pass as many as are left). */
ax_pipe_piece ax_pipe_forward(const ax_pipe_stage *stage, int64_t n, int64_t i);
ax_pipe_piece ax_pipe_backward(const ax_pipe_stage *stage, int64_t n, int64_t i);

/* What a stage has begun in this step: `forwards` and `backwards` are numbers of pieces, `weights` is the
 * number of pieces whose weight gradients were begun. If nothing is postponed, `weights` equals `backwards`.
 * `activation`: the input of the next forward has arrived. `gradient`: the input of the next backward has
 * arrived. */
typedef struct ax_pipe_counts {
    int64_t forwards, backwards, weights;
    bool activation, gradient;
} ax_pipe_counts;

typedef enum ax_pipe_task {
    AX_PIPE_WAIT,
    AX_PIPE_FORWARD,
    AX_PIPE_BACKWARD,
    AX_PIPE_WEIGHTS, /* compute the postponed weight gradients of one micro-batch in one chunk, in the order
                        of the backwards */
    AX_PIPE_DONE
} ax_pipe_task;

/* Returns the task that the stage begins now. AX_PIPE_WAIT: a message must arrive first. Postponed weight
 * gradients (zero bubble, arXiv 2401.10241) are computed when the stage would wait otherwise, and before a
 * backward after which more than `postpone` pieces would have postponed weight gradients. */
ax_pipe_task ax_pipe_next(const ax_pipe_stage *stage, const ax_pipe_counts *now);
/* Returns true if the order of the stage's tasks does not depend on when messages arrive. */
bool ax_pipe_is_fixed(const ax_pipe_stage *stage);

/* The slots of a stage in a step. A piece takes the first free slot after the slot that was taken last. So
 * with one chunk, micro-batch i is always in slot i mod slots, whatever the order of tasks. */
typedef struct ax_pipe_slots {
    int64_t n, last;     /* `last`: the slot that was taken last */
    ax_pipe_piece *held; /* [n]: the piece in each slot; micro_batch -1: the slot is free. Owned */
} ax_pipe_slots;

/* Makes the slots of a stage, all free; ax_pipe_slots_fini frees them. */
AX_MUST_CHECK ax_status ax_pipe_slots_init(const ax_pipe_stage *stage, ax_pipe_slots *out);
void ax_pipe_slots_fini(ax_pipe_slots *slots);
/* Makes all slots free, as at the beginning of a step. */
void ax_pipe_slots_empty(ax_pipe_slots *slots);
/* Puts a piece into a free slot, of which there must be one, and returns its index. */
int ax_pipe_slots_take(ax_pipe_slots *slots, ax_pipe_piece piece);
/* Returns the slot of a piece that is in one. */
int ax_pipe_slots_find(const ax_pipe_slots *slots, ax_pipe_piece piece);
void ax_pipe_slots_release(ax_pipe_slots *slots, int slot);
/* Sets holds[slot · chunks + chunk] to whether a step puts a piece of the chunk into the slot. If arrival
 * decides the order of tasks, any slot may get a piece of any chunk, and all are true. */
AX_MUST_CHECK ax_status ax_pipe_slot_chunks(const ax_pipe_stage *stage, bool *holds);

/* How long things take in a simulated step, in any unit. */
typedef struct ax_pipe_times {
    /* Returns how long a task takes. `done` is what the stage has begun, this task included; if nothing is
     * postponed, a backward includes the weight gradients. Called once for each task, in the order of their
     * beginnings. */
    double (*task)(void *user, const ax_pipe_stage *stage, ax_pipe_task task, ax_pipe_piece piece,
                   const ax_pipe_counts *done);
    /* Returns the time from the end of a task of `stage` until its activation, or gradient, has arrived at
     * the next stage. */
    double (*message)(void *user, int stage, bool gradient);
    void *user;
} ax_pipe_times;

/* Runs the tasks of one step on all stages by ax_pipe_next, as the engine does, and sets ends[i] to the time
 * at which stage i has ended its last task; the step begins at 0. Messages do not delay each other. If stages
 * take equally long, and messages no time, a step takes (M + (P-1)/v)·(forward + backward) of M micro-batches
 * on P stages of v chunks. AX_ERR_USAGE if the schedule stops, because it does not fit (ax_pipe_fits). */
AX_MUST_CHECK ax_status ax_pipe_simulate(const ax_pipe_settings *settings, int stages, int64_t micro_batches,
                                         const ax_pipe_times *times, double *ends);

/* Cuts a model of `blocks` blocks into stages, so that the most expensive stage is as cheap as possible and
 * the others cost nearly the same. The first stage also has the embedding, and the last stage the head.
 * cost[0] is the cost of the embedding, cost[1 + i] that of block i, and cost[blocks + 1] that of the head,
 * in any unit: integers, whose sums are exact. NULL: each block costs 1, and the embedding and the head
 * nothing. Chunk c of stage s is part p = c · stages + s: begin[p] is its first block, and begin[stages ·
 * chunks] = blocks. Each part has at least one block, except the first and the last, so stages · chunks <=
 * blocks + 2.
 *
 * With several chunks, the numbers of blocks are chosen as if all blocks had the mean cost, and the chunks of
 * a stage cost nearly the same. The most expensive stage is then as cheap as possible only if all blocks have
 * the same cost. */
void ax_pipe_cut(int stages, int chunks, int64_t blocks, const int64_t *cost, int64_t *begin);

#ifdef __cplusplus
}
#endif
#endif
