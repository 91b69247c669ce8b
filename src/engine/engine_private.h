/* The struct of an engine, shared by its files. A rank's pipeline stage has one chunk, or several with the
 * schedule interleaved. engine.c creates the engine and runs steps, engine_tasks.c has the tasks of one
 * micro-batch in one chunk, engine_plan.c runs these tasks on the device `dry` to plan the memory. */
#ifndef AXONN_ENGINE_PRIVATE_H
#define AXONN_ENGINE_PRIVATE_H

#include "axonn/pipeline.h"

#include "axonn/engine.h"

/* The int32 arrays of a micro-batch, in the order of ax_rows. */
enum { TOKENS, TARGETS, DOC_START, POSITIONS, ARRAYS };

/* The tasks that repeat from step to step. Each task has its own recording of kernel launches (ax_replay).
 *
 * A slot (memory for one micro-batch in one chunk at a time) has four backward tasks for each chunk of the
 * stage: their indices 0 … 3 are combinations of the bits FIRST and LAST, for the first and the last
 * micro-batch of a step. The task of the first micro-batch of a step sets the gradients; the tasks of later
 * micro-batches add to the gradients. In the task of the last micro-batch the reduction of gradients over
 * ranks may start. If forward and backward of a chunk are one task (ax_pipeline_is_joint), the backward task
 * runs the forward pass too; otherwise the task FORWARD runs the forward pass. If weight gradients are
 * postponed, four more tasks compute them, with indices WEIGHTS + 0 … 3 for the same combinations of bits.
 *
 * The engine itself has the task NORM, which computes the gradient norm, and for each chunk a task EVALUATION
 * + chunk, which runs a forward pass; one that scores targets is the task EVALUATION + chunks + chunk. */
enum { FIRST = 1, LAST = 2, FORWARD = 4, WEIGHTS = 5, SLOT_TASKS = 9 };
enum { NORM, EVALUATION };

/* The memory of one piece, used from the beginning of its forward to the end of its last task. */
typedef struct engine_slot {
    ax_frame *frame;
    ax_batch batch;   /* the tensors of the batch are views of `device` */
    char *device;     /* device memory: HEAD bytes for ax_batch_numbers, then int32 [ARRAYS, n, seq_len] */
    ax_replay **task; /* [chunks, SLOT_TASKS]: recordings of the launches of the slot's tasks */
} engine_slot;

/* The function from which the running step or evaluation reads its rows. `rows` and `targets`: how many rows
 * and targets that step or evaluation has over all ranks (an evaluation: `targets` is 0). */
typedef struct engine_reading {
    ax_read_rows_fn *read;
    void *source;
    int64_t rows, targets;
    bool scoring; /* the evaluation scores its targets (engine_scores) */
} engine_reading;

/* Scores of targets, with the option `scores`. */
typedef struct engine_scores {
    char *device;    /* device memory of `micro`; NULL: the engine has no scores */
    ax_scores micro; /* of this rank's positions of a micro-batch, [n, seq_len] */
    void *host;      /* copy of micro.loss */
    /* of the positions of all ranks in one ax_engine_score, [ax_engine_eval_rows, seq_len], in host memory */
    double *loss;
    int32_t *rank;
} engine_scores;

struct ax_engine {
    ax_ctx *ctx;
    ax_engine_options options;
    int64_t *costs; /* costs of the layers, by which they are divided among pipeline stages (ax_block_costs);
                       NULL: not needed, or in the plan */
    ax_model *model;
    ax_param_set *set;
    ax_pipeline *pipeline;
    engine_slot *slot;
    int slots;
    int64_t rows;     /* number of rows of a micro-batch, summed over the ranks that have different rows */
    int64_t first, n; /* this rank's rows of a micro-batch: first … first+n-1 */
    uint64_t step;    /* number of the current step */
    char *host;       /* host memory from which slot.device is filled */
    engine_reading reading;
    int64_t samples; /* how many rows of a step's batch are not padding */
    /* In device memory: the loss, the statistics of the routers (ax_batch.routers), then for each parameter
     * the sum of squares of its gradient. */
    double *numbers;
    double *routers; /* the routers' statistics after the newest step, in pinned host memory, or NULL */
    engine_scores scores;
    ax_updater *updater;
    ax_loss_scale scale;
    ax_replay **task; /* [EVALUATION + 2 · chunks]: recordings of the launches of the engine's tasks */
    bool stepped;     /* a step that had targets has run since the last ax_engine_result */
    bool empty;       /* the newest step had no target */
};

/* Bytes reserved for ax_batch_numbers at the start of slot.device. The int32 arrays follow and are therefore
 * aligned to HEAD bytes. */
enum { HEAD = 64 };
_Static_assert(sizeof(ax_batch_numbers) <= HEAD, "ax_batch_numbers must fit in HEAD bytes");

/* Returns the number of this rank's positions in a micro-batch. */
static inline int64_t engine_positions(const ax_engine *e) { return e->n * e->options.seq_len; }

static inline size_t engine_batch_bytes(const ax_engine *e)
{
    return HEAD + (size_t)(ARRAYS * engine_positions(e)) * sizeof(int32_t);
}

/* Returns how many statistics the routers of all stages have, and how many numbers of a step are summed over
 * ranks: these and the loss. */
static inline int64_t engine_routers(const ax_engine *e)
{
    const ax_model_config *m = &e->model->config;
    return ax_model_config_sparse_blocks(m, m->layers) * (3 + m->experts.n);
}
static inline int64_t engine_sums(const ax_engine *e) { return 1 + engine_routers(e); }

static inline size_t engine_numbers_bytes(const ax_engine *e)
{
    return (size_t)(engine_sums(e) + e->set->n) * sizeof(double);
}

/* Returns the bytes of device memory in which this rank scores a micro-batch. */
static inline size_t engine_scores_bytes(const ax_engine *e)
{
    const size_t each = ax_dtype_size(e->ctx->accum) + sizeof(int32_t);
    return e->options.scores ? (size_t)engine_positions(e) * each : 0;
}

static inline int engine_chunks(const ax_engine *e) { return ax_pipeline_stage(e->pipeline)->chunks; }
static inline bool engine_postpones(const ax_engine *e) { return ax_pipeline_stage(e->pipeline)->postpone; }
/* Returns true if the update reduces the gradients (ax_updater_step_reducing), which then do not wait for a
 * norm to clip by. */
static inline bool engine_reduces_late(const ax_engine *e)
{
    return e->options.clip == 0 && ax_offload_chunk(e->set);
}

/* ---- engine_tasks.c ------------------------------------------------------------------------------ */

/* Does the work of a task, in the memory of slot `s`; NULL for the task NORM, which needs no slot. */
typedef ax_status engine_task_fn(ax_engine *e, engine_slot *s, ax_pipe_piece piece);
/* Runs a task, and records its kernel launches in `replay`. If the launches are the same as in the last run
 * of this task, the device replays the recorded launches instead (on a GPU: as CUDA graphs). */
ax_status engine_run_task(ax_engine *e, ax_replay *replay, engine_task_fn *work, engine_slot *s,
                          ax_pipe_piece piece);

/* Writes to `out`, and returns, the name under which the frame (activation memory) plans the task `name` of a
 * chunk. Chunks have different layers, so each chunk has tasks of its own. */
const char *engine_task_name(const char *name, int chunk, char out[24]);

/* The functions that ax_pipeline_tasks points to. In training, engine_start_piece loads the rows of a
 * micro-batch, and runs its forward pass unless forward and backward are one task (ax_pipeline_is_joint).
 * engine_end_piece runs its backward pass (and before it the forward pass, if the two are one task),
 * engine_add_weight_grads the postponed GEMMs of its weight gradients. In an evaluation, engine_eval_piece
 * loads the rows, runs the forward pass, and takes the scores of its targets if
 * the evaluation scores them. `engine` is an ax_engine, `index` the index of a slot. */
ax_status engine_start_piece(void *engine, ax_pipe_piece piece, int index);
ax_status engine_end_piece(void *engine, ax_pipe_piece piece, int index);
ax_status engine_add_weight_grads(void *engine, ax_pipe_piece piece, int index);
ax_status engine_eval_piece(void *engine, ax_pipe_piece piece, int index);
/* Copies the scores of a micro-batch, which the last chunk of the model has computed, to this rank's rows of
 * the engine's host memory. */
ax_status engine_take_scores(ax_engine *e, int64_t micro_batch);

/* ---- engine_plan.c ------------------------------------------------------------------------------- */

/* Runs the tasks of micro-batch `index` of a dry step that has `of` micro-batches, one chunk after the other.
 * times[chunk] gets their seconds, if the device has a clock; NULL: they are not wanted. */
ax_status engine_dry_micro_batch(ax_engine *e, int64_t index, int64_t of, ax_piece_seconds *times);

/* ---- engine.c: the beginning and the end of a step ----------------------------------------------- */

ax_status engine_begin_step(ax_engine *e);
/* Begins step number e->step, and runs forward and backward of its micro-batches. engine_end_step follows. */
ax_status engine_run_micro_batches(ax_engine *e, ax_read_rows_fn *read, void *source, int64_t targets);
ax_status engine_end_step(ax_engine *e, int64_t targets, const ax_hyper *hyper);
/* Runs the micro-batches of an evaluation. Its sums over ranks follow. */
ax_status engine_run_evaluation(ax_engine *e, const engine_reading *reading);

#endif
