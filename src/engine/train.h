/* A training run, divided over the files train*.c. train.c has the start-up stages and the loop. */
#ifndef AXONN_ENGINE_TRAIN_H
#define AXONN_ENGINE_TRAIN_H

#include "axonn/ckpt.h"
#include "axonn/engine.h"
#include "axonn/trace.h"

#include <signal.h>

typedef struct ax_sources {
    int n;
    ax_data **data;
    const char **path; /* paths as in the configuration, which owns them */
    double *weight;    /* mixing weights; all 0: mixed in proportion to size */
} ax_sources;

/* A set of grid axes along which ranks communicate. */
typedef struct ax_run_axes {
    char name[AX_AXISSET_TEXT]; /* "x", "z.data" */
    const ax_comm *comm;
    ax_comm_traffic before; /* counters of the communicator at the start of this step */
} ax_run_axes;

/* How often the ranks agree, within a step, whether to give the step up (train_pace.c). Counted in pieces of
 * work. */
typedef struct ax_pace {
    int64_t every; /* pieces between two questions */
    int64_t next;  /* number of the piece before which the ranks ask next */
    int64_t piece; /* pieces begun in this step */
    double asked;  /* time of the last question */
} ax_pace;

/* A small file of a checkpoint. Owns name and data. */
typedef struct ax_run_file {
    char *name, *data;
    size_t size;
} ax_run_file;

typedef struct ax_run_files {
    int n;
    ax_run_file *file;
} ax_run_files;

typedef struct ax_run {
    ax_config *config;
    int lock; /* file descriptor of run.dir/lock, 0: none */
    ax_tokenizer *tokenizer;
    ax_model_config model;
    ax_model_identity identity;
    char *model_dir;      /* the model directory that model.from stands for, or NULL */
    ax_st *model_weights; /* the weights' files of model.from, until they are loaded */
    char *resume_dir;     /* checkpoint to start from, or NULL */
    bool new_run;         /* train.resume names resume_dir: the run may differ from the one that wrote it */
    ax_run_files beside;  /* on rank 0: files beside the initial weights, copied into every checkpoint */
    ax_sources train, valid;
    ax_row_shape shape;
    ax_sampler *sampler;
    ax_train_plan plan;
    ax_comm *world; /* borrowed */
    ax_ctx *ctx;
    ax_engine *engine;
    ax_metrics *metrics; /* on rank 0, else NULL */
    ax_trace *trace;     /* NULL: no trace is recorded */
    double trace_origin; /* time 0 of the trace, (almost) the same moment on all ranks */
    int n_axes;
    ax_run_axes *axes;
    ax_metrics_axes *row_axes;
    double *exchanged; /* the values that ax_run_exchange reduces */
    int signal;        /* a signal that any rank had received at the last exchange, or 0 */
    int64_t given_up;  /* the step that was given up because of the signal, or 0 */
    ax_pace drawing, computing;
    double step_began;
    ax_status trouble; /* first error of this rank's own work; the others learn of it at the next exchange */
    char trouble_message[1024];
    double peak_flops;    /* peak FLOP/s of a device, mean over the ranks */
    int64_t baseline;     /* bytes resident before anything planned is allocated */
    int64_t step, tokens; /* steps and tokens done so far */
    ax_loss_scale scale;  /* loss scale in the resumed checkpoint; all 0: there is none */
    ax_train_result *result;
    int64_t saved_step; /* step of the run's newest checkpoint, written or resumed; -1: none */
    bool eval_pending;  /* an evaluation is due after the current step */
} ax_run;

/* train.c. ax_run_start runs the start-up stages for one purpose: to make the plan, without files, or to
 * train. */
typedef enum ax_run_purpose { AX_RUN_PLANS, AX_RUN_TRAINS } ax_run_purpose;
ax_status ax_run_start(ax_run *run, ax_run_purpose purpose);
/* Aborts the job if `status` is an error that the other ranks do not share: they may be waiting for this
 * rank. */
void ax_run_abort_unshared(ax_comm *world, ax_status status);
void ax_run_finish(ax_run *run); /* releases everything */

/* train_setup.c: model, tokenizer, data. */
ax_status ax_run_find_inputs(ax_run *run);
ax_status ax_run_lock(ax_run *run);
ax_status ax_run_open_model(ax_run *run);
ax_status ax_run_open_data(ax_run *run);
ax_status ax_run_write_config(ax_run *run);
void ax_sources_close(ax_sources *sources);

/* train_plan.c: the stages that fill run->plan, in this order. */
ax_status ax_run_plan_grid(ax_run *run);
ax_status ax_run_plan_ranks(ax_run *run);
ax_status ax_run_plan_threads(ax_run *run);
ax_status ax_run_plan_step(ax_run *run);
ax_status ax_run_plan_engine(ax_run *run);
void ax_run_plan_fini(ax_train_plan *plan);
/* Creates the context of the plan's ranks on their devices. The caller owns *out. */
ax_status ax_run_open_device(const ax_train_plan *plan, ax_ctx **out);
ax_dtype ax_run_dtype(int precision); /* `precision` is an ax_config_precision */
const char *ax_run_dtype_name(int precision);
ax_grid_size ax_run_grid(const ax_config *config);

/* train_runtime.c: settings of the process. ax_run_resume_runtime uses those again that the run had before;
 * ax_run_keep_runtime puts those that the run keeps into its configuration. */
ax_status ax_run_set_runtime(ax_run *run);
ax_status ax_run_resume_runtime(ax_run *run);
ax_status ax_run_keep_runtime(ax_run *run);

/* train_memory.c: plans, logs and checks the memory that a step needs, before it is allocated; measures the
 * peak. */
ax_status ax_run_plan_memory(const ax_run *run, ax_engine_plan *out);
ax_status ax_run_measure_peak(ax_run *run);

/* train_state.c: checkpoints of a run. */
ax_status ax_run_find_resume(ax_run *run);
ax_status ax_run_restore_position(ax_run *run); /* AX_ERR_USAGE if the configuration makes it another run */
ax_status ax_run_start_weights(ax_run *run);    /* those of the checkpoint, or those of ax_run_init_weights */
/* Initializes the engine's weights, or reads them from model.from. */
ax_status ax_run_init_weights(const ax_run *run, ax_engine *engine);
ax_status ax_run_save(ax_run *run);

/* train_files.c: the small files of a checkpoint. */
ax_status ax_run_find_files(ax_run *run);
/* The caller releases *out, also after an error. */
ax_status ax_run_write_files(const ax_run *run, ax_run_files *out);
void ax_run_files_fini(ax_run_files *files);

/* train_ranks.c: exchanges between ranks. All are collective except ax_run_begin_traffic, ax_run_exposed and
 * ax_run_note_trouble. */
ax_status ax_run_max(const ax_run *run, int64_t *values, int n); /* values[i] = maximum over ranks */
ax_status ax_run_average_peak(ax_run *run);
/* Checks that all ranks have the same configuration, and that its grid fits their number. */
ax_status ax_run_compare_configs(ax_run *run);
/* Called about once a second by a rank that works for all, and in a loop by the ranks that wait for it, until
 * that rank sets *done. All ranks learn of signals to any of them. */
ax_status ax_run_beat(ax_run *run, bool *done);
AX_MUST_CHECK ax_status ax_run_find_axes(ax_run *run);
void ax_run_begin_traffic(ax_run *run);
double ax_run_exposed(const ax_run *run);                /* seconds that this rank has waited for others since
                                                           ax_run_begin_traffic */
void ax_run_note_trouble(ax_run *run, ax_status status); /* records an error for the next exchange */
ax_status ax_run_agree(ax_run *run); /* returns the error that any rank has recorded, on all ranks */
/* Ends a step: combines the row over all ranks, and shares signals and recorded errors. */
ax_status ax_run_exchange(ax_run *run, ax_metrics_step *row);

/* train_pace.c: all ranks leave a step that still runs ten seconds after a signal, all at the same place. */
void ax_pace_begin(ax_pace *pace); /* at the start of a step */
/* Called before each piece of work; all ranks have the same number of pieces. AX_ERR_SIGNAL on all ranks if
 * the step is given up; run->given_up is then its number. */
ax_status ax_pace_piece(ax_run *run, ax_pace *pace);
void ax_pace_end(ax_pace *pace, double seconds); /* `seconds` that the pieces took, the same on all ranks */

/* train_eval.c */
ax_status ax_run_find_evaluation(ax_run *run);
ax_status ax_run_evaluate(ax_run *run);

bool ax_run_first(const ax_run *run); /* this is rank 0 */

/* train_signal.c: SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 ask for a stop at the next step boundary. */
void ax_signals_install(ax_comm *comm); /* after a signal, comm's timeout is shortened (ax_comm_hurry) */
void ax_signals_restore(ax_comm *comm);
double ax_signal_age(void);          /* seconds since the first signal; 0: there was none */
void ax_signals_saving(bool begins); /* a save begins or ends: during it ranks may take long to answer */

#endif
