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
    ax_comm *ranks;          /* the ranks of the world, renumbered in this order: */
    ax_grid_order order;     /* the key grid.order */
    ax_grid_size grid;
    ax_parallel parallel;
    ax_threads threads;
    int64_t scratch, ranks_per_node; /* of the machine that is planned for; 0: those of this machine, and the
                                        setting runtime.ranks_per_node */
    ax_dtype compute;                /* dtype of activations and of the operands of GEMMs (ax_ctx) */
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
 * coordinate 0 along all other axes. What it sends to other nodes and its buffers of collectives are the most
 * that a rank of the stage has. The caller releases *out with ax_engine_plan_fini. Not collective. */
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

/* ---- the search for a layout --------------------------------------------------------------------- */

/* The keys that decide how a run lies on its ranks, in the order in which a search gives them values: X(ID,
 * the key in the configuration). The first stands for the sizes grid.data, grid.expert, grid.pipe, grid.x,
 * grid.y and grid.z. */
#define AX_SEARCHED(X)                                                                                       \
    X(GRID, "grid")                                                                                          \
    X(MICRO_BATCH, "train.micro_batch")                                                                      \
    X(RECOMPUTE, "train.recompute")                                                                          \
    X(ORDER, "grid.order")                                                                                   \
    X(ZERO, "zero")                                                                                          \
    X(OFFLOAD, "offload.optimizer")                                                                          \
    X(RECOMPUTE_COMM, "train.recompute_comm")                                                                \
    X(WEIGHT_CACHE, "train.weight_cache")                                                                    \
    X(SCHEDULE, "pipe.schedule")                                                                             \
    X(CHUNKS, "pipe.chunks")                                                                                 \
    X(SLACK, "pipe.slack")                                                                                   \
    X(POSTPONE, "pipe.postpone")
typedef enum ax_search_key {
#define AX_SEARCH_ID_(ID, key) AX_SEARCH_##ID,
    AX_SEARCHED(AX_SEARCH_ID_)
#undef AX_SEARCH_ID_
        AX_SEARCH_KEYS
} ax_search_key;

/* A layout with its planned time and memory. */
enum { AX_CANDIDATE_AXES = 12 };
typedef struct ax_candidate {
    ax_grid_size grid;
    ax_grid_order order;
    int64_t
        value[AX_SEARCH_KEYS]; /* as the fields of the keys in ax_engine_options and ax_parallel have them */
    double seconds;            /* of a step */
    double bubble;             /* how long a stage waits for messages of others, mean over the stages */
    int stage;                 /* that computes longest */
    double computed;           /* seconds of its kernels */
    double exposed;            /* how long it waits for collectives */
    ax_axes_seconds along[AX_CANDIDATE_AXES]; /* the same by axes; what has no place is in none */
    int n_along;
    size_t memory, host; /* bytes of the rank that needs the most, on its device and of its node's memory */
    bool refused;        /* the engine cannot run it; never of a candidate that a search returns */
} ax_candidate;

/* What a candidate sends in a step: a collective of the ranks along some axes. */
typedef struct ax_candidate_sent {
    char axes[AX_AXISSET_TEXT];
    ax_coll coll;
    double calls, bytes; /* in a step; bytes of the larger buffers */
    double seconds;      /* if nothing hid or delayed them */
} ax_candidate_sent;

typedef struct ax_search_options {
    const ax_machine *machine; /* borrowed */
    int ranks;
    bool axes_only; /* only the sizes of the grid and its order are chosen; other keys are as configured */
    bool every;     /* replays every candidate as a whole, without bounds: exact, and slow */
    int most;       /* how many candidates are kept */
} ax_search_options;

/* A search over the layouts of a run: the values of the keys of AX_SEARCHED that the configuration does not
 * give (with grid: auto, the axes in any case), for the step that takes the least time on the machine, in the
 * memory of its devices, of its nodes, and of runtime.device_memory. What changes the training (the global
 * batch, dtypes, the length of rows) is not searched.
 *
 * Keys get values one after the other. A candidate with some keys open is replayed with the values that are
 * fastest if memory does not count, and takes part in the search only if it fits with those that need the
 * least memory; so a candidate whose keys all have values, and that comes first, is the fastest (a best-first
 * search). If none has come first after some thousand replays, candidates are improved key by key, and the
 * search then ends with the best that it has found in as many more. If the model's blocks are alike, replays
 * of two and three blocks give the time of all; the best are replayed as a whole. ax_search_create does this;
 * it reads the model only. AX_ERR_USAGE: keys contradict the search, no grid is legal, or a rate is missing.
 * AX_ERR_MEMORY: no candidate fits; the message says what is missing, and how many ranks would do. Borrows
 * config and machine. The caller owns *out. Not collective.
 */
typedef struct ax_search ax_search;
AX_MUST_CHECK ax_status ax_search_create(ax_config *config, const ax_search_options *options,
                                         ax_search **out);
void ax_search_destroy(ax_search **search);
/* Return the number of candidates, at most options.most, and candidate i, the fastest first; how many
 * candidates were timed, with all keys, and how many steps of a rank were replayed for that. */
int ax_search_count(const ax_search *search);
const ax_candidate *ax_search_get(const ax_search *search, int i);
int64_t ax_search_ranked(const ax_search *search);
int64_t ax_search_replays(const ax_search *search);
/* Appends the keys of a candidate that were searched and have an effect: "grid.data=4 … zero=1". */
AX_MUST_CHECK ax_status ax_search_words(const ax_search *search, const ax_candidate *candidate, ax_buf *out);
/* Lists what the longest computing stage of a candidate sends in a step, the longest first. The caller frees
 * *out. */
AX_MUST_CHECK ax_status ax_search_explain(ax_search *search, const ax_candidate *candidate,
                                          ax_candidate_sent **out, int *n);

#ifdef __cplusplus
}
#endif
#endif
