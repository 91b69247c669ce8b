/* train: a whole training run from a configuration (ax_train): data, checkpoints, metrics, signals. A program
 * that runs the steps itself uses an ax_trainer, the plan and the engine of a run. */
#ifndef AXONN_TRAIN_H
#define AXONN_TRAIN_H

#include "axonn/config.h"
#include "axonn/infer.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- training runs ------------------------------------------------------------------------------- */

/* The result of a run. */
typedef struct ax_train_result {
    int64_t step, tokens; /* number of steps done, also before a resume; number of targets in these steps */
    double loss;          /* loss of the last step; NaN if no step was run */
    double eval_loss, bits_per_byte; /* results of the last evaluation; NaN if unknown */
    char *checkpoint;                /* directory of the newest checkpoint, or NULL; the caller frees */
} ax_train_result;

/* Installs handlers of SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2, which record the signal. After a signal,
 * ax_train saves and stops at the end of the current step; if that step still runs ten seconds later,
 * ax_train drops the step and saves the state before it. If no step has begun, ax_train stops at the end of
 * its first step. Tokenization ends at once (AX_ERR_SIGNAL), and so do evaluations. A SIGINT a second or more
 * after the first signal ends the process without saving. ax_train installs the handlers itself while it
 * runs. A program that calls ax_signals_catch first in main also records signals that arrive before ax_train.
 * The handlers call `tell` (NULL: nothing), which must be async-signal-safe. While they are installed,
 * SIGPIPE is ignored; signals that the process ignored before stay ignored. */
void ax_signals_catch(void (*tell)(void));
/* Returns the last signal that the handlers recorded, or 0. */
int ax_signal_pending(void);

/* Runs a whole training run on the ranks of `world`: everything that `axonn train` does once the
 * configuration is loaded. Returns AX_OK when all steps are done, or AX_ERR_SIGNAL when a rank received a
 * signal earlier: the run has then saved a checkpoint, unless it was still tokenizing data. Each rank passes
 * its own `config`, with the same values as the other ranks; values that come from the model's own
 * config.json are filled in. An error before the first step is returned by all ranks (ax_error_is_shared) and
 * leaves older checkpoints untouched. A rank that fails without the other ranks learning of it aborts the
 * world (ax_comm_abort), because the other ranks may be waiting for this rank. Collective along world. */
AX_MUST_CHECK ax_status ax_train(ax_comm *world, ax_config *config, ax_train_result *result);

/* ---- the steps of a run -------------------------------------------------------------------------- */

/* What is decided about a training run before anything is allocated: grid, sizes, dtypes, optimizer and
 * memory. It follows from the configuration and the number of ranks. */
typedef struct ax_train_plan {
    const ax_config *config; /* borrowed */
    ax_comm *ranks; /* the ranks of the world, renumbered in the order that the key grid.order gives */
    ax_grid_size grid;
    ax_parallel parallel;
    ax_threads threads;
    ax_dtype compute; /* dtype of activations and of the operands of GEMMs (ax_ctx) */
    ax_schedule schedule;
    ax_engine_options options; /* options.model is the run's model */
    ax_engine_plan engine;     /* planned memory of this rank's engine */
    int64_t mem_planned;       /* planned bytes of device memory on the rank that needs the most */
} ax_train_plan;

/* Returns the hyper-parameters of step `step`; steps count from 1. */
ax_hyper ax_train_hyper(const ax_train_plan *plan, int64_t step);
/* Writes short descriptions of a model and of a grid, as in metrics.jsonl: "gpt2 12 x 768" (layers x hidden),
 * "data=1 pipe=1 x=2 y=1 z=1". */
void ax_train_describe(const ax_model_config *config, ax_grid_size size, char model[96], char grid[96]);

/* A trainer, for programs that run the training steps themselves: everything that ax_train prepares from a
 * configuration before its first step, except data and files. */
typedef struct ax_trainer ax_trainer;

/* Creates a trainer with the plan that follows from `config` (ax_train_plan). Reads only the model
 * (model.from or model.config) and the tokenizer, and writes nothing. Errors as for ax_train. Borrows world
 * and config. The caller owns *out. Collective along world. */
AX_MUST_CHECK ax_status ax_trainer_create(ax_comm *world, ax_config *config, ax_trainer **out);
void ax_trainer_destroy(ax_trainer **trainer);
/* Returns the trainer's plan, valid as long as the trainer. */
const ax_train_plan *ax_trainer_plan(const ax_trainer *trainer);
/* Plans the engine of the rank of pipeline stage `stage` (0, ...) that needs the most memory: the one with
 * coordinate 0 along all other axes. The caller releases *out with ax_engine_plan_fini. Not collective. */
AX_MUST_CHECK ax_status ax_trainer_plan_stage(const ax_trainer *trainer, int stage, ax_engine_plan *out);
/* Plans how long a step takes with these prices (clock.h). Each pipeline stage is planned as by
 * ax_trainer_plan_stage, whose rank is replayed (ax_stage_times_make). times[i] gets the times of stage i,
 * which the caller releases with ax_stage_times_fini, *out those of the step. ring[i] (`ring` NULL: none)
 * gets the activities of stage i. AX_ERR_USAGE if a price is missing, also those of offload.optimizer=file
 * and of an offloaded state that the host updates, which have none. Not collective. */
AX_MUST_CHECK ax_status ax_trainer_time_step(const ax_trainer *trainer, const ax_prices *prices,
                                             ax_event_ring *const ring[], ax_stage_times *times,
                                             ax_step_time *out);
/* Creates the context and the engine that the trainer's plan describes, and sets the initial weights. The
 * caller owns *ctx and *engine, also after an error, and destroys them before the trainer. Collective along
 * world. */
AX_MUST_CHECK ax_status ax_trainer_engine(const ax_trainer *trainer, ax_ctx **ctx, ax_engine **engine);

/* Sets *shape and *bos to the rows with which the run that wrote the checkpoint model->dir evaluates, and to
 * whether it puts special tokens around texts (data.bos). If no run wrote it, or the checkpoint has been
 * removed since it was opened, shape->seq_len is 0, and the other values are the defaults of their keys. Not
 * collective. AX_ERR_DATA if training/state.json is damaged. */
AX_MUST_CHECK ax_status ax_train_saved_shape(const ax_pretrained *model, ax_row_shape *shape, bool *bos);

#ifdef __cplusplus
}
#endif
#endif
