/* A training run, divided over the files train*.c.
 *
 * ax_run consists of parts, and one file fills each part:
 *
 *   inputs   model, tokenizer, data                            train_setup.c
 *   plan     grid, threads, optimizer, memory                  train_plan.c
 *   state    how far the run is                                train.c
 *   report   metrics, trace, traffic                           train_report.c
 *
 * Smaller parts are resume (train_state.c), beside (train_files.c) and trouble (train_ranks.c). Only train.c
 * changes an ax_run. The other files read it as a const one, and get the part that they fill as an argument
 * of its own. */
#ifndef AXONN_ENGINE_TRAIN_H
#define AXONN_ENGINE_TRAIN_H

#include "axonn/ckpt.h"
#include "axonn/engine.h"
#include "axonn/trace.h"

#include <signal.h>

/* ---- the parts of a run -------------------------------------------------------------------------- */

typedef struct ax_sources {
    int n;
    ax_data **data;
    const char **path; /* paths as written in the configuration, which owns them */
    double *weight;    /* mixing weights; all 0: mixed in proportion to size */
} ax_sources;

typedef struct ax_run_inputs {
    int lock; /* file descriptor of run.dir/lock, 0: none */
    ax_tokenizer *tokenizer;
    ax_model_config model;
    ax_model_identity identity;
    char *model_dir;      /* the model directory that model.from stands for, or NULL */
    ax_st *model_weights; /* open weight files of model.from, until the weights are loaded */
    ax_sources train, valid;
    ax_row_shape shape;
} ax_run_inputs;

/* How often, within a step, the ranks agree by an all-reduce whether to abandon the step after a signal.
 * Counted in pieces of work. Only train_pace.c reads and changes the members. */
typedef struct ax_pace {
    int64_t every; /* pieces between two all-reduces */
    int64_t next;  /* number of the piece before which the next all-reduce is */
    int64_t piece; /* pieces begun in this step */
    double asked;  /* time of the last all-reduce */
} ax_pace;

typedef struct ax_run_state {
    ax_ctx *ctx;
    ax_engine *engine;
    ax_sampler *sampler;
    int64_t step, tokens; /* done so far */
    int64_t saved_step;   /* step of the newest checkpoint that was written or resumed from; -1: none */
    bool eval_pending;    /* an evaluation is due after the current step */
    int signal;           /* signal that some rank had received at the last exchange between ranks, or 0 */
    int64_t given_up;     /* the step that was given up because of the signal, or 0 */
    ax_pace drawing, computing;
    ax_train_result *result;
} ax_run_state;

/* A set of grid axes along which ranks communicate. */
typedef struct ax_run_axes {
    char name[AX_AXISSET_TEXT]; /* "x", "z.data" */
    const ax_comm *comm;        /* NULL: this rank does not communicate along them, another one does */
    ax_comm_traffic before;     /* counters of traffic along these axes at the start of the step */
} ax_run_axes;

typedef struct ax_run_report {
    ax_metrics *metrics; /* on rank 0, else NULL */
    ax_trace *trace;     /* NULL: no trace is recorded */
    double trace_origin; /* time 0 of the trace, (almost) the same moment on all ranks */
    double peak_flops;   /* peak FLOP/s of a device, mean over the ranks */
    int64_t baseline;    /* bytes resident before anything planned is allocated */
    double step_began;
    double step_flops; /* FLOPs that the device had counted at step_began */
    double waited;     /* value of ax_engine_waited at step_began */
    int n_axes;
    ax_run_axes *axes;
    ax_metrics_axes *row_axes;
    double *exchanged; /* the values that ax_run_exchange reduces */
} ax_run_report;

/* The checkpoint from which a run starts. */
typedef struct ax_run_resume {
    char *dir;           /* or NULL */
    bool new_run;        /* train.resume names `dir`: the run may differ from the one that wrote it */
    ax_loss_scale scale; /* loss scale saved in the checkpoint; 0: none saved */
} ax_run_resume;

/* A small file of a checkpoint. Owns name and data. */
typedef struct ax_run_file {
    char *name, *data;
    size_t size;
} ax_run_file;

typedef struct ax_run_files {
    int n;
    ax_run_file *file;
} ax_run_files;

/* The first error of this rank's own work; the other ranks are told of it at the next exchange. */
typedef struct ax_run_trouble {
    ax_status status;
    char message[1024];
} ax_run_trouble;

typedef struct ax_run {
    ax_comm *world;    /* borrowed */
    ax_config *config; /* borrowed */
    ax_run_inputs inputs;
    ax_train_plan plan;
    ax_run_state state;
    ax_run_report report;
    ax_run_resume resume;
    ax_run_files beside; /* on rank 0: files beside the initial weights, copied into every checkpoint */
    ax_run_trouble trouble;
} ax_run;

/* ---- train.c ------------------------------------------------------------------------------------- */

/* Why the start-up stages run: only to make the plan, without writing files, or to train. */
typedef enum ax_run_purpose { AX_RUN_PLANS, AX_RUN_TRAINS } ax_run_purpose;
ax_status ax_run_start(ax_run *run, ax_run_purpose purpose);
/* Aborts the job if `status` is an error that the other ranks do not share: they may be waiting for this
 * rank. */
void ax_run_abort_unshared(ax_comm *world, ax_status status);
void ax_run_finish(ax_run *run); /* releases everything */

/* ---- train_setup.c: model, tokenizer, data ------------------------------------------------------- */

/* Checks that the device and all paths to read from exist, before anything is created. */
ax_status ax_run_check_inputs(const ax_run *run);
ax_status ax_run_lock(const ax_run *run, ax_run_inputs *inputs);
ax_status ax_run_open_model(const ax_run *run, ax_run_inputs *inputs);
/* Opens the data of inputs and the sampler of their rows. *signal: as ax_run_beat. */
ax_status ax_run_open_data(const ax_run *run, ax_run_inputs *inputs, ax_sampler **sampler, int *signal);
ax_status ax_run_write_config(const ax_run *run);
void ax_inputs_close_weights(ax_run_inputs *inputs); /* called once the weights are loaded */
void ax_inputs_fini(ax_run_inputs *inputs);

/* ---- train_plan.c: the stages that fill the plan, in this order ---------------------------------- */

ax_status ax_run_plan_grid(const ax_run *run, ax_train_plan *plan);
ax_status ax_run_plan_ranks(const ax_run *run, ax_train_plan *plan);
ax_status ax_run_plan_threads(const ax_run *run, ax_train_plan *plan);
ax_status ax_run_plan_step(const ax_run *run, ax_train_plan *plan);
ax_status ax_run_plan_engine(const ax_run *run, ax_train_plan *plan);
void ax_run_plan_fini(ax_train_plan *plan);
/* Creates the context of the plan's ranks on their devices. The caller owns *out. */
ax_status ax_run_open_device(const ax_train_plan *plan, ax_ctx **out);
ax_dtype ax_run_dtype(int precision); /* `precision` is an ax_config_precision */
const char *ax_run_dtype_name(int precision);
ax_grid_size ax_run_grid(const ax_config *config);

/* train_runtime.c: runtime settings (runtime.h). ax_run_resume_runtime restores the settings that a resumed
 * run had before; ax_run_keep_runtime copies the settings that change results into the run's configuration,
 * which is saved. */
ax_status ax_run_set_runtime(const ax_run *run);
ax_status ax_run_resume_runtime(const ax_run *run);
ax_status ax_run_keep_runtime(const ax_run *run);

/* train_memory.c: plans, logs and checks the memory that a step needs, before it is allocated. */
ax_status ax_run_plan_memory(const ax_run *run, ax_engine_plan *out);

/* ---- train_report.c: metrics, trace, traffic ----------------------------------------------------- */

/* Records how much memory is resident before the run allocates. */
void ax_report_baseline(ax_run_report *report);
/* Measures the device's peak FLOP/s, the denominator of MFU. Collective. */
ax_status ax_report_peak(const ax_run *run, ax_run_report *report);
ax_status ax_report_axes(const ax_run *run, ax_run_report *report); /* of the grid, once the model is built */
ax_status ax_report_open_trace(const ax_run *run, ax_run_report *report);
ax_status ax_report_open_metrics(const ax_run *run, ax_run_report *report);
/* Ends the line of progress on the terminal, before a message. */
void ax_report_break_line(const ax_run *run);
void ax_report_begin_step(const ax_run *run, ax_run_report *report);
void ax_report_begin_traffic(ax_run_report *report);
/* Ends a step: combines the measurements of all ranks and writes the row. *seconds: how long the step took
 * until the exchange, on the slowest rank. *signal, and errors: as ax_run_exchange. Collective. */
ax_status ax_report_step(const ax_run *run, const ax_step_result *result, ax_run_report *report,
                         ax_run_trouble *trouble, double *seconds, int *signal);
ax_status ax_report_evaluation(const ax_run *run, const ax_evaluation *evaluation, double seconds);
ax_status ax_report_write_trace(const ax_run *run);
void ax_report_fini(ax_run_report *report);

/* ---- train_state.c: checkpoints of a run --------------------------------------------------------- */

/* The position in the run at which a checkpoint was saved. */
typedef struct ax_run_position {
    int64_t step, tokens;
    bool eval_pending;
} ax_run_position;

ax_status ax_run_find_resume(const ax_run *run, ax_run_resume *resume);
/* Restores the sampler, and sets *position. AX_ERR_USAGE if the configuration differs from the checkpoint's
 * in a value that a resumed run must keep. */
ax_status ax_run_restore_position(const ax_run *run, ax_run_resume *resume, ax_run_position *position);
/* Initializes the engine's weights, or reads them from model.from. */
ax_status ax_run_init_weights(const ax_run *run, ax_engine *engine);
/* Sets the weights of the run's engine: those of the checkpoint, or those of ax_run_init_weights. */
ax_status ax_run_start_weights(const ax_run *run);
ax_status ax_run_save(const ax_run *run);
void ax_resume_fini(ax_run_resume *resume);

/* beside.c: whether a file of this name, in a model directory, is copied together with the model. Weights and
 * optimizer state of trainers are not. Files above AX_BESIDE_MOST bytes are not copied either, except a
 * tokenizer's. */
bool ax_beside_copied(const char *name);
enum { AX_BESIDE_MOST = 16 << 20 };

/* train_files.c: the small files of a checkpoint. ax_run_find_files finds those beside the initial weights,
 * ax_run_write_files makes those that the run writes. The caller releases *out, also after an error. */
ax_status ax_run_find_files(const ax_run *run, ax_run_files *out);
ax_status ax_run_write_files(const ax_run *run, ax_run_files *out);
void ax_run_files_fini(ax_run_files *files);

/* train_eval.c. ax_run_eval_missing clears *pending if the evaluation of this step is in the metrics already.
 * Both are collective. */
ax_status ax_run_eval_missing(const ax_run *run, bool *pending);
/* Evaluates the model on data.valid and reports the result. AX_ERR_SIGNAL on all ranks: some rank received a
 * signal. */
ax_status ax_run_evaluate(const ax_run *run, ax_evaluation *out);

/* ---- train_ranks.c: exchanges between ranks ------------------------------------------------------ */

bool ax_run_first(const ax_run *run); /* whether this rank is rank 0 */
/* The functions below are collective, except ax_trouble_note. */
ax_status ax_run_max(const ax_run *run, int64_t *values, int n); /* values[i] = maximum over ranks */
/* Checks that all ranks have the same configuration, and that its grid fits their number. */
ax_status ax_run_compare_configs(const ax_run *run);
/* Keeps ranks in contact while one rank works for all: the working rank calls it about once a second, the
 * waiting ranks call it in a loop, until the working rank sets *done. *signal: a signal that any rank has
 * received, or 0. */
ax_status ax_run_beat(const ax_run *run, bool *done, int *signal);
void ax_trouble_note(ax_run_trouble *trouble, ax_status status); /* records an error for the next exchange */
ax_status ax_run_agree(const ax_run *run); /* returns the error that any rank has recorded, on all ranks */
/* Called once a step. The caller fills in max[AX_EXCHANGE_OWN + i] for i = 0 … n-1, and *sum: each of the
 * former becomes its maximum over the ranks, *sum becomes the sum over the ranks. *signal: a signal that any
 * rank has received, or 0. Returns the error that any rank has recorded. */
enum { AX_EXCHANGE_OWN = 2 };
ax_status ax_run_exchange(const ax_run *run, double *max, int n, double *sum, int *signal);

/* train_pace.c: if a step still runs ten seconds after a signal, all ranks abandon it at the same piece of
 * work. */
void ax_pace_begin(ax_pace *pace); /* at the start of a step */
/* Called before each piece of work; all ranks have the same number of pieces. AX_ERR_SIGNAL on all ranks if
 * the step is given up; *signal is then the signal, otherwise it is unchanged. */
ax_status ax_pace_piece(const ax_run *run, ax_pace *pace, int *signal);
void ax_pace_end(ax_pace *pace, double seconds); /* `seconds` that the pieces took, the same on all ranks */

/* train_signal.c: SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 ask for a stop at the next step boundary. */
void ax_signals_install(ax_comm *comm); /* after a signal, comm's timeout is shortened (ax_comm_hurry) */
void ax_signals_restore(ax_comm *comm);
double ax_signal_age(void);          /* seconds since the first signal; 0: there was none */
void ax_signals_saving(bool begins); /* a save begins, or ends (false): during it ranks may answer late */

#endif
