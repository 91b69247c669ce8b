/* engine: training steps and evaluations of a model, with its memory and optimizer. No files: rows come from
 * a function of the caller. A dry run (ax_engine_plan_make) says what a step needs before it is allocated.
 *
 * B is the number of rows (samples) in a step's global batch, T the number of positions in a row. */
#ifndef AXONN_ENGINE_H
#define AXONN_ENGINE_H

#include "axonn/clock.h"
#include "axonn/data.h"
#include "axonn/machine.h"
#include "axonn/model.h"
#include "axonn/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ax_engine ax_engine;

typedef struct ax_engine_options {
    const ax_model_config *model;
    int64_t seq_len;       /* T */
    int64_t micro_batch;   /* rows of a micro-batch on one rank; the ranks along the grid axes data and z have
                              different rows */
    int64_t global_batch;  /* B = micro_batch · data · z · number of micro-batches */
    int64_t recompute;     /* 0: keep all activations; n > 0: keep the input of every n blocks
                              (ax_model_use) */
    bool whole_rows;       /* attention crosses document boundaries within a row: ax_rows.doc_start is
                              ignored */
    const ax_optim *optim; /* NULL: evaluation only, no gradients */
    double clip;           /* largest gradient norm; 0: no clipping */
    bool scores;           /* ax_engine_score is used */
    const ax_loki *loki;   /* what attention layers do in evaluations (ax_loki_attach); NULL: read all keys */
    ax_masks *masks; /* what is zero in the blocks' matrices stays zero (ax_masks_apply); NULL: nothing */
} ax_engine_options;

/* Bytes that a rank sends along a set of grid axes (ax_comm_traffic.bytes). */
typedef struct ax_axes_bytes {
    char axes[AX_AXISSET_TEXT]; /* such as "x" or "z.data" */
    int64_t bytes;
} ax_axes_bytes;

/* The result of a dry run: a step and an evaluation on the device `dry`, which has no memory and computes
 * nothing (ax_engine_plan_make). */
typedef struct ax_engine_plan {
    ax_memory memory;
    int slots;        /* number of buckets of offloaded state that are on the device at a time */
    int64_t bucket;   /* number of elements of such a bucket */
    size_t offloaded; /* bytes of offloaded state */
    ax_frame_plan *frame;
    ax_param_uses *uses;
    ax_grid_use *axes;   /* sets of grid axes along which ranks communicate; ax_grid_prepare creates a
                            communicator for each, with its buffers */
    ax_axes_bytes *sent; /* what this rank sends in a training step, one entry for each set of axes along
                            which it sends */
    int n_sent;
    int64_t wire; /* bytes of these that go to other nodes over MPI; -1 if these are not known
                     (ax_comm_dry_nodes) */
    int *apart;   /* over a dry world: other ranks of the stage that lie otherwise on nodes (ax_grid_apart) */
    int n_apart;
    int64_t *costs; /* costs of the embedding, of each block and of the head, by which the layers are divided
                       among pipeline stages (ax_model_use.costs); NULL: not needed */
} ax_engine_plan;

/* Runs a training step (if there is an optimizer) and an evaluation as this rank of `grid` over `world`, on
 * the device `dry`, which has no memory and computes nothing. `parallel` (NULL: the defaults), `device` and
 * `threads` are those of the real run. Of `world` only the rank, the size and where its ranks lie are read.
 * The caller releases *out with ax_engine_plan_fini. AX_ERR_USAGE if the options contradict each other. Not
 * collective. */
AX_MUST_CHECK ax_status ax_engine_plan_make(const ax_engine_options *options, ax_comm *world,
                                            ax_grid_size grid, const ax_parallel *parallel,
                                            const char *device, int threads, ax_dtype compute,
                                            ax_engine_plan *out);
void ax_engine_plan_fini(ax_engine_plan *plan);

/* ---- the time of a planned step ---- */

/* Returns the prices of kernels, copies, collectives and messages on a described machine (machine.h), whose
 * ranks are numbered node by node. Borrows the machine. Messages are taken to travel while ranks compute. */
ax_prices ax_prices_of(const ax_machine *machine);
/* The same, but each collective costs what it costs if its ranks lie as close together as they can, and waits
 * for no other, unless both have more ranks than a node: no order of the ranks is faster. */
ax_prices ax_prices_least(const ax_machine *machine);

/* Micro-batches of a step that may differ in time. Transfers in flight pass from one to the next, so the
 * second is not like those after it. */
typedef enum ax_step_part {
    AX_STEP_FIRST,
    AX_STEP_SECOND,
    AX_STEP_MIDDLE, /* the third and all after it but the last */
    AX_STEP_LAST,
    AX_STEP_PARTS
} ax_step_part;
/* Returns which of them micro-batch `index` of `of` is. */
ax_step_part ax_step_part_of(int64_t index, int64_t of);

/* How long the tasks of a micro-batch take in one chunk: of[AX_PIPE_FORWARD], of[AX_PIPE_BACKWARD],
 * of[AX_PIPE_WEIGHTS]. */
typedef struct ax_piece_seconds {
    double of[AX_PIPE_DONE];
} ax_piece_seconds;

typedef struct ax_axes_seconds {
    char axes[AX_AXISSET_TEXT];
    double seconds;
} ax_axes_seconds;

/* How long a rank of a pipeline stage works in a step, in seconds. */
typedef struct ax_stage_times {
    int chunks;
    ax_piece_seconds *task; /* [AX_STEP_PARTS, chunks]; 0 for parts that a step of few micro-batches lacks */
    double message[2]; /* an activation, and a gradient, on its way to the next stage (ax_message_kind) */
    double end;        /* beginning and end of a step: clearing, reductions, norm, update */
    double computed;   /* all kernels of a step */
    ax_axes_seconds *exposed; /* [n_exposed]: for each set of axes, how long the rank waits for collectives */
    int n_exposed;
} ax_stage_times;

/* Replays a step of this rank of `grid` over `world`, a communicator of a dry run, in the memory of its
 * `plan`, on a clock with these prices (clock.h). Adds the activities of the step to `ring` (NULL: to none).
 * The times are those of the rank alone: it neither waits for other ranks of its stage nor for other stages.
 * The caller releases *out with ax_stage_times_fini. AX_ERR_USAGE if the options have no optimizer; errors of
 * the prices. Not collective. */
AX_MUST_CHECK ax_status ax_stage_times_make(const ax_engine_options *options, const ax_engine_plan *plan,
                                            ax_comm *world, ax_grid_size grid, const ax_parallel *parallel,
                                            ax_dtype compute, const ax_prices *prices, ax_event_ring *ring,
                                            ax_stage_times *out);
void ax_stage_times_fini(ax_stage_times *times);

/* The time of a step, in seconds. */
typedef struct ax_step_time {
    double seconds;
    double bubble; /* how long a stage waits for messages of others, mean over the stages */
} ax_step_time;

/* Runs the schedule of a pipeline on the times of its stages (ax_pipe_simulate); of one stage adds them up.
 * The end of a step begins when all stages have done their tasks. */
AX_MUST_CHECK ax_status ax_step_time_make(const ax_pipe_settings *settings, int stages, int64_t micro_batches,
                                          const ax_stage_times *stage, ax_step_time *out);

/* Creates an engine and allocates its memory. The weights are undefined until ax_param_set_init or a
 * checkpoint sets them. If `plan` is NULL, the activation memory (ax_frame) has `frame_bytes` bytes, and each
 * allocation is placed after the previous one, without reuse (bump mode, tensor.h); frame_bytes 0 is for a
 * dry run, which records a plan. Borrows ctx, options->model and plan. Collective along the grid. */
AX_MUST_CHECK ax_status ax_engine_create(ax_ctx *ctx, const ax_engine_options *options,
                                         const ax_engine_plan *plan, size_t frame_bytes, ax_engine **out);
/* Frees an engine; *engine may be NULL. If a step has failed while messages between pipeline stages were in
 * flight, aborts the world first (ax_comm_abort). */
void ax_engine_destroy(ax_engine **engine);
ax_param_set *ax_engine_params(ax_engine *engine);
ax_model *ax_engine_model(ax_engine *engine);
ax_frame *ax_engine_frame(ax_engine *engine);
/* Returns the loss scale of the next step, owned by the engine. Checkpoints store this struct, and a resumed
 * run restores it. */
ax_loss_scale *ax_engine_loss_scale(ax_engine *engine);
/* Returns the seconds, summed since the engine was created, during which this rank's pipeline stage waited
 * for other stages. */
double ax_engine_waited(const ax_engine *engine);
/* Return the number of rows of a micro-batch, summed over the ranks that have different rows; and how many
 * rows ax_engine_eval should get at a time: one micro-batch or, with pipeline stages, so many that all of
 * them work. */
int64_t ax_engine_rows(const ax_engine *engine);
int64_t ax_engine_eval_rows(const ax_engine *engine);

/* Writes rows first … end-1 of the current step (or evaluation) to *out; ax_sampler_read is such a function.
 * A step calls it on each rank once at the start of each micro-batch; a pipeline stage with several chunks,
 * once for each chunk. If the function fails on all ranks, the step ends there, and the next step discards
 * the gradients accumulated so far (ax_param_set_zero_grad). If it fails on some ranks only, the others wait
 * for these ranks. With pipeline stages, the function may also give up the step: it returns AX_ERR_SIGNAL on
 * all ranks of the first stage, for the same piece. The stages then only exchange the remaining messages
 * of the step, and the step returns AX_ERR_SIGNAL on all ranks. */
typedef ax_status ax_read_rows_fn(void *source, int64_t first, int64_t end, const ax_rows *out);
/* Two functions for an ax_read_rows_fn, with which a rank of a later stage asks the first stage to give up
 * the step. ax_engine_ask_stop adds a note to the messages that this rank sends later in the step; ranks that
 * receive the note pass it on, and with the gradients it reaches the first stage. ax_engine_stop_asked
 * returns the seconds since this rank called ax_engine_ask_stop in the running step, or received such a note;
 * 0: neither. Not collective: the ranks of the first stage must agree before they give up the step. */
void ax_engine_ask_stop(ax_engine *engine);
double ax_engine_stop_asked(const ax_engine *engine);
/* An ax_read_rows_fn that writes no rows: for the device `dry`, which does not read them. */
ax_status ax_rows_none(void *source, int64_t first, int64_t end, const ax_rows *out);

/* Runs one training step: forward and backward of every micro-batch, then reduces and clips the gradients and
 * updates the weights. `targets` is the number of unmasked targets in the global batch; with 0 the step
 * computes, reads and changes nothing. On a GPU the work is enqueued, and the host does not wait for it,
 * except in collectives that go through host memory, and on a pipeline stage, which is at most one task ahead
 * of its GPU. If the loss or the gradient is not finite, this step and all following steps leave weights and
 * optimizer state unchanged, until ax_engine_result has reported this step. Collective along the grid.
 * Allocates nothing after the first two calls. */
AX_MUST_CHECK ax_status ax_engine_step(ax_engine *engine, int64_t step, ax_read_rows_fn *read, void *source,
                                       int64_t targets, const ax_hyper *hyper);
/* Sets how many rows of the batches of the following steps are samples (at first: all); others are padding.
 * The losses of routers are means over the samples. Every rank calls it with the same number. */
void ax_engine_set_samples(ax_engine *engine, int64_t samples);

typedef struct ax_step_result {
    double loss;      /* mean over the unmasked targets of the global batch, before the update */
    double grad_norm; /* norm of the whole gradient, before clipping */
    bool finite;      /* loss and grad_norm are finite; false: nothing was updated */
    bool empty; /* the step had no target, so nothing was computed or updated: loss and grad_norm are NaN, and
                   `finite` is true */
    /* If `finite` is false: the name of the first parameter with a weight that is not finite. If all weights
     * are finite: the name of the first parameter whose gradient is not finite. NULL if only the loss is not
     * finite. */
    const char *culprit;
    bool culprit_weights; /* a weight of parameter `culprit` is not finite; false: its gradient is not
                             finite */
    double loss_scale;    /* the loss scale of this step (fp16; else 1) */
    /* Models with experts (ax_moe): means over the sparse blocks and the samples of the step of the balance
     * loss and of the z loss, and the largest ratio, in any block, of the choices of one expert to the mean
     * of all. 0: the model has no experts. expert_dropped: the fraction (0 to 1) of all choices that had no
     * place, because the experts have a capacity. */
    double balance_loss, z_loss, expert_load, expert_dropped;
    bool overflow; /* fp16 only: the gradient is not finite, but loss and weights are. The next step has a
                      smaller loss scale, unless that is already the smallest */
} ax_step_result;

/* Returns the result of the newest step (that had targets, if one such has run since the last call). If the
 * loss or gradient of a step since the last call was not finite, returns the result of the first such step
 * instead, and the steps after this call update the weights again (ax_engine_step). In fp16, updates the loss
 * scale from this result. Waits for the step's gradient, not for its update. Collective along the grid if
 * `finite` is false. */
AX_MUST_CHECK ax_status ax_engine_result(ax_engine *engine, ax_step_result *out);

/* Runs the forward pass on rows 0 … rows-1 that `read` gives, divided among the ranks that split the batch.
 * *loss_sum is the sum (not the mean) of the losses of all unmasked targets. Collective along the grid. */
AX_MUST_CHECK ax_status ax_engine_eval(ax_engine *engine, ax_read_rows_fn *read, void *source, int64_t rows,
                                       double *loss_sum);

/* What a model says of the targets of an evaluation, [rows, T]; both 0 at positions without a target. */
typedef struct ax_target_scores {
    const double *loss;
    const int32_t *rank; /* number of tokens with a larger logit, or with the same logit and a smaller id: 0
                            if the target is the token that ax_sample takes at temperature 0 */
} ax_target_scores;

/* Does what ax_engine_eval does with at most ax_engine_eval_rows rows, and gives all ranks the loss and the
 * rank of each target. *out is in host memory of the engine, valid until the next call. Needs the option
 * `scores`. Collective along the grid. */
AX_MUST_CHECK ax_status ax_engine_score(ax_engine *engine, ax_read_rows_fn *read, void *source, int64_t rows,
                                        ax_target_scores *out);

#ifdef __cplusplus
}
#endif
#endif
