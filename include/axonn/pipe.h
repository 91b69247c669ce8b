/* pipe: schedules of pipeline parallelism as functions of counts, and the cut of a model into stages.
 *
 * A pipeline has P stages. Each of the M micro-batches of a step runs forward on stages 0 … P-1, and then
 * backward on stages P-1 … 0. A stage runs its forwards, and its backwards, in the order of the micro-batches
 * under every schedule; a schedule decides only which of the two is next. So sums over micro-batches have one
 * order. docs/decisions/0022-pipeline-by-messages.md has the reasons. Nothing here communicates. */
#ifndef AXONN_PIPE_H
#define AXONN_PIPE_H

#include "axonn/base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ax_pipe_schedule {
    /* What has arrived is next, backwards first (2110.13005): a stage never waits while it could compute. */
    AX_PIPE_MESSAGE,
    /* As many forwards as the stage has slots, then a backward and a forward in turns. */
    AX_PIPE_1F1B,
    /* All forwards, then all backwards. */
    AX_PIPE_GPIPE,
    AX_PIPE_SCHEDULES
} ax_pipe_schedule;

/* One stage of a step. A slot holds what the backward of a micro-batch needs. */
typedef struct ax_pipe_stage {
    ax_pipe_schedule schedule;
    int stages, stage;
    int64_t micro_batches, slots;
} ax_pipe_stage;

/* The stage with its slots: `slack` more than the P - s that keep all stages busy if every task takes as long
 * as planned, at most M; M for gpipe; one if the only stage is both first and last. */
ax_pipe_stage ax_pipe_stage_of(ax_pipe_schedule schedule, int stages, int stage, int64_t micro_batches,
                               int64_t slack);

/* What a stage has done in this step, and whether the inputs of its next forward and backward
 * have arrived. */
typedef struct ax_pipe_counts {
    int64_t forwards, backwards;
    bool activation, gradient;
} ax_pipe_counts;

typedef enum ax_pipe_task { AX_PIPE_WAIT, AX_PIPE_FORWARD, AX_PIPE_BACKWARD, AX_PIPE_DONE } ax_pipe_task;

/* The task that the stage begins now. AX_PIPE_WAIT: a message must arrive first. */
ax_pipe_task ax_pipe_next(const ax_pipe_stage *stage, const ax_pipe_counts *now);
/* The next task of a schedule that does not depend on arrivals: what ax_pipe_next returns once it has
 * arrived. False for AX_PIPE_MESSAGE. */
bool ax_pipe_is_fixed(ax_pipe_schedule schedule);

/* Cuts `blocks` blocks of equal cost into stages, so that the most expensive stage is as cheap as possible.
 * The first stage has the embedding too, and the last one the head, at these costs in units of a block.
 * begin[s] is the first block of stage s, begin[stages] = blocks. Each stage between them has at least one
 * block: stages <= blocks + 2. */
void ax_pipe_cut(int stages, int64_t blocks, double embedding, double head, int64_t *begin);

#ifdef __cplusplus
}
#endif
#endif
