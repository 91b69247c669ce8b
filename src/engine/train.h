/* A training run and the pieces of it: train.c has the order of things and the loop. */
#ifndef AXONN_ENGINE_TRAIN_H
#define AXONN_ENGINE_TRAIN_H

#include "axonn/ckpt.h"
#include "axonn/engine.h"
#include "axonn/trace.h"

#include <signal.h>

/* pretrained.c: says in the log what was read otherwise than config.json says. */
void pretrained_log(const ax_pretrained *m);

typedef struct ax_sources {
    int n;
    ax_data **data;
    const char **path; /* as the configuration, which owns them, names them */
    double *weight;    /* 0, all of them: mixed by size */
} ax_sources;

/* A set of axes of the grid along which ranks talk. */
typedef struct ax_run_axes {
    char name[AX_AXISSET_TEXT]; /* "x", "z.data" */
    const ax_comm *comm;
    ax_comm_traffic before; /* this step */
} ax_run_axes;

/* When ranks ask one another, within a step, whether it goes on: after every so many pieces of its work. */
typedef struct ax_pace {
    int64_t every, next, piece; /* pieces: between two questions; before the next; begun in this step */
    double asked;               /* when they did last */
} ax_pace;

/* A small file of a checkpoint; owns both. */
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
    char *model_dir;      /* what model.from means, or NULL */
    ax_st *model_weights; /* of model.from, until they are loaded */
    char *resume_dir;     /* checkpoint to continue, or NULL */
    bool new_run;         /* it was named to start another run from */
    ax_run_files beside;  /* rank 0's: copied along with the weights that the run began with */
    ax_sources train, valid;
    ax_row_shape shape;
    ax_sampler *sampler;
    ax_engine_plan plan;
    ax_engine_options options;
    const ax_optim *optim;
    ax_schedule schedule;
    ax_comm *world;  /* borrowed */
    ax_comm *placed; /* the same ranks, numbered as the grid stands on them */
    ax_threads threads;
    ax_ctx *ctx;
    ax_engine *engine;
    ax_metrics *metrics; /* rank 0's */
    ax_trace *trace;     /* NULL: nothing is noted */
    double trace_origin; /* a moment that all ranks share */
    int n_axes;
    ax_run_axes *axes;
    ax_metrics_axes *row_axes;
    double *exchanged; /* what ax_run_exchange reduces */
    int signal;        /* that some rank had at the last exchange, or 0 */
    int64_t given_up;  /* the step that the signal did not wait for, or 0 */
    ax_pace drawing, computing;
    double step_began;
    ax_status trouble; /* of this rank's own work, told at the next exchange */
    char trouble_message[1024];
    double peak_flops;    /* mean of the ranks */
    int64_t baseline;     /* bytes resident before anything planned is taken */
    int64_t step, tokens; /* done so far */
    ax_loss_scale scale;  /* of the checkpoint that is continued; 0: it has none */
    ax_train_result *result;
    int64_t saved_step; /* of the run's newest checkpoint, written or resumed; -1: none */
    bool eval_pending;  /* a signal cut the evaluation of this step short */
} ax_run;

/* train.c: up to a plan of memory, up to a first step that needs no files, or up to that of a whole run; what
 * steps are told, and after the last. */
typedef enum ax_run_purpose { AX_RUN_PLANS, AX_RUN_STEPS, AX_RUN_TRAINS } ax_run_purpose;
ax_status ax_run_start(ax_run *run, ax_run_purpose purpose);
ax_hyper ax_run_hyper(const ax_run *run, int64_t step);
void ax_run_describe(const ax_model_config *config, ax_grid_size size, char model[96], char grid[96]);
void ax_run_settle(const ax_run *run, ax_status status); /* ends the job if the others may be waiting */
void ax_run_finish(ax_run *run);

/* train_setup.c: model, tokenizer, data. */
ax_status ax_run_find_inputs(ax_run *run);
ax_status ax_run_lock(ax_run *run);
ax_status ax_run_open_model(ax_run *run);
ax_status ax_run_open_data(ax_run *run);
ax_status ax_run_write_config(ax_run *run);
void ax_sources_close(ax_sources *sources);

/* train_memory.c: what a step needs, said and checked before it is taken; the device's measured peak. */
ax_status ax_run_plan_memory(ax_run *run);
ax_status ax_run_measure_peak(ax_run *run);

/* train_state.c: checkpoints of a run. */
ax_status ax_run_find_resume(ax_run *run);
ax_status ax_run_restore_position(ax_run *run); /* refuses what would be another run */
ax_status ax_run_start_weights(ax_run *run);    /* drawn, read from model.from, or resumed */
ax_status ax_run_save(ax_run *run);

/* train_files.c: the small files of a checkpoint. */
ax_status ax_run_find_files(ax_run *run);
ax_status ax_run_write_files(const ax_run *run, ax_run_files *out); /* the run's own; released either way */
void ax_run_files_fini(ax_run_files *files);

/* train_ranks.c: what ranks tell one another. All are collective but for those that note. */
ax_status ax_run_max(const ax_run *run, int64_t *values, int n); /* values[i] <- the largest of any rank */
ax_status ax_run_average_peak(ax_run *run);
ax_status ax_run_compare_configs(ax_run *run); /* one configuration, which fits the ranks */
/* One rank works, the others call this until it says done; all learn of signals to any of them. */
ax_status ax_run_beat(ax_run *run, bool *done);
AX_MUST_CHECK ax_status ax_run_find_axes(ax_run *run);
void ax_run_begin_traffic(ax_run *run);
double ax_run_exposed(const ax_run *run); /* seconds since then in which this rank waited for others */
void ax_run_note_trouble(ax_run *run, ax_status status);
ax_status ax_run_agree(ax_run *run); /* on the trouble that was noted */
/* Ends a step: the row becomes that of all ranks, signals and trouble become known. */
ax_status ax_run_exchange(ax_run *run, ax_metrics_step *row);

/* train_pace.c: a step that still runs ten seconds after a signal is given up by all ranks at the same place.
 */
void ax_pace_begin(ax_pace *pace); /* a step begins */
/* Before each piece of work, of which all ranks have as many. AX_ERR_SIGNAL on all ranks if the step is given
 * up, which is then run->given_up. */
ax_status ax_pace_piece(ax_run *run, ax_pace *pace);
void ax_pace_end(ax_pace *pace, double seconds); /* what the pieces took, the same on all ranks */

/* train_eval.c */
ax_status ax_run_find_evaluation(ax_run *run);
ax_status ax_run_evaluate(ax_run *run);

bool ax_run_first(const ax_run *run); /* this is rank 0 */

/* train_signal.c: SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 ask for a stop at the next step boundary. */
void ax_signals_install(ax_comm *comm); /* which hurries once a signal came */
void ax_signals_restore(ax_comm *comm);
double ax_signal_age(void);          /* seconds since the first one came; 0: none did */
void ax_signals_saving(bool begins); /* a save begins or ends: others may be silent meanwhile */

ax_dtype ax_run_dtype(int precision); /* of an ax_config_precision, and its word */
const char *ax_run_dtype_name(int precision);
ax_grid_size ax_run_grid(const ax_config *config);
ax_parallel ax_run_parallel(const ax_config *config);

#endif
