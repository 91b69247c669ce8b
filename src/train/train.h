/* A training run, divided over the files of this folder.
 *
 * ax_train_run consists of parts, and one file fills each part:
 *
 *   inputs   model, tokenizer, data                            setup.c
 *   plan     grid, threads, optimizer, memory                  plan.c
 *   state    how far the run is                                train.c
 *   report   metrics, trace, traffic                           report.c
 *
 * There are four smaller parts: dir.c fills `dir`, state.c `resume`, files.c `beside`, and
 * ranks.c `trouble`. Only train.c and chat.c, which changes the tokenizer and `beside`, change an
 * ax_train_run. The functions of the other files get the ax_train_run as const, and the part that they fill
 * as a separate argument. (They may change the configuration and the engine, to which the ax_train_run has
 * pointers.) */
#ifndef AXONN_TRAIN_TRAIN_H
#define AXONN_TRAIN_TRAIN_H

#include "axonn/ckpt.h"
#include "axonn/trace.h"
#include "axonn/train.h"

#include <signal.h>

/* ---- the parts of a run -------------------------------------------------------------------------- */

typedef struct ax_sources {
    int n;
    ax_data **data;
    const char **path; /* paths as written in the configuration, which owns them */
    double *weight;  /* mixing weight of each source; all 0: sources are mixed in proportion to their sizes */
    int64_t *epochs; /* how often the run reads each source; 0: the source has a weight instead */
    bool weighted;   /* the user gave at least one source a weight */
} ax_sources;

typedef struct ax_train_inputs {
    ax_tokenizer *tokenizer;
    bool other_tokenizer; /* data.tokenizer names another tokenizer than that of model.from */
    ax_chat *chat;        /* the template of conversations; NULL: there is no tokenizer */
    ax_model_config model;
    ax_model_identity identity;
    char *model_dir; /* the model directory found for model.from, of an adapter that of its base; or NULL */
    ax_st *model_weights;   /* open weight files there, until the weights are loaded */
    char *adapter_dir;      /* the adapter's directory found for model.from; NULL: that is no adapter */
    ax_st *adapter_weights; /* its open weight file, until the weights are loaded */
    ax_masks *masks;        /* with train.sparse: what is zero in model_weights; or NULL */
    char base[17];          /* ax_st_checksum of model_weights, if the run trains an adapter; else "" */
    ax_sources train, valid, recall;
    ax_row_shape shape; /* shape (row length, packing, targets) of evaluated rows; ax_train_trained_shape:
                           that of trained rows */
    ax_row_shape recall_shape; /* shape of the rows with the documents of run.recall.data */
    bool full_rows; /* the run began with a version that left out the tokens after the last full row */
} ax_train_inputs;

/* On rank 0: the lock of run.dir, and which parts of run.dir this start of the run has made. */
typedef struct ax_train_dir {
    int lock;       /* file descriptor of run.dir/lock, 0: none */
    bool made;      /* this start of the run created the file run.dir/lock */
    size_t existed; /* length of the prefix of the path run.dir/data that existed before this start; if the
                       start fails, the directories beyond it are removed, unless they hold files */
} ax_train_dir;

/* Tells when, within a step, the ranks run an all-reduce to agree whether they abandon the step after a
 * signal. The members count pieces of work: a piece of work is the computation of one micro-batch in one
 * chunk (part of a pipeline stage), or the sampler's choice of up to 2^14 rows. Only pace.c reads and
 * changes the members. */
typedef struct ax_pace {
    ax_comm *ranks; /* the ranks that agree; all of these ranks have the same pieces of work. Borrowed */
    int64_t every;  /* number of pieces of work between two all-reduces */
    int64_t next;   /* index, in the step, of the piece of work before which the next all-reduce runs */
    int64_t piece;  /* number of pieces of work begun in this step */
    double asked;   /* time of the last all-reduce (ax_now) */
} ax_pace;

/* The evaluations that are due between two steps: of data.valid, and of run.recall.data. */
typedef struct ax_train_pending {
    bool eval, recall;
} ax_train_pending;

typedef struct ax_train_state {
    ax_ctx *ctx;
    ax_engine *engine;
    ax_sampler *sampler;
    int64_t step, tokens;     /* number of steps that are done, and of target tokens in these steps */
    int64_t step_targets;     /* targets of the current step */
    int64_t saved_step;       /* step of the newest checkpoint that was written or resumed from; -1: none */
    ax_train_pending pending; /* what is due after the current step */
    bool keeps_plans; /* the device keeps its plans of GEMMs (the algorithms that it chose) in run.dir */
    int signal;       /* signal that some rank had received by the last exchange between ranks, or 0 */
    int64_t given_up; /* the step that was abandoned because of the signal, or 0 */
    ax_comm *stage;   /* the ranks of this rank's pipeline stage; NULL: there is one stage */
    ax_pace drawing, computing; /* while a step's rows are chosen; while its micro-batches are computed */
    ax_train_result *result;
} ax_train_state;

/* A set of grid axes along which ranks communicate. */
typedef struct ax_train_axes {
    char name[AX_AXISSET_TEXT]; /* such as "x" or "z.data" */
    const ax_comm *comm;    /* NULL: only other ranks (another pipeline stage) communicate along these axes */
    ax_comm_traffic before; /* traffic counters of `comm` at the start of the step */
} ax_train_axes;

typedef struct ax_train_report {
    ax_metrics *metrics; /* NULL on all ranks except rank 0 */
    ax_trace *trace;     /* NULL: no trace is recorded */
    double trace_origin; /* the time (ax_now) that is time 0 in the trace; almost the same moment on all
                            ranks */
    double peak_flops;   /* peak FLOP/s of a device, mean over the ranks */
    int64_t baseline;    /* resident bytes of the process before the planned memory is allocated */
    double step_began;
    ax_listener launches, activities; /* for `flops`, and for `trace` */
    double flops;                     /* FLOPs of all kernels since the step began */
    double waited;                    /* value of ax_engine_waited at step_began */
    int n_axes;
    ax_train_axes *axes;
    ax_metrics_axes *row_axes;
    double *exchanged; /* buffer for the values that ax_train_exchange reduces over all ranks */
    bool no_targets, no_eval_targets; /* a warning of a step or of an evaluation without targets was logged;
                                         each is logged only once */
} ax_train_report;

/* The checkpoint from which a run starts. */
typedef struct ax_train_resume {
    char *dir;            /* checkpoint directory, or NULL: start from the beginning */
    bool new_run;         /* train.resume gives the path `dir`: this is a new run, which may differ from the
                             run that wrote the checkpoint */
    ax_loss_scale scale;  /* fp16 loss scale saved in the checkpoint; 0: none saved */
    struct json_t *state; /* training/state.json of the checkpoint, or NULL */
} ax_train_resume;

/* A small file (not weights) of a checkpoint. Owns name and data. */
typedef struct ax_train_file {
    char *name, *data;
    size_t size;
} ax_train_file;

typedef struct ax_train_files {
    int n;
    ax_train_file *file;
} ax_train_files;

/* The first error that occurred on this rank alone. ax_train_exchange and ax_train_agree tell the other
 * ranks. */
typedef struct ax_train_trouble {
    ax_status status;
    char message[1024];
} ax_train_trouble;

/* Why a run is started: AX_TRAIN_PLANS to make only the plan, without writing files; AX_TRAIN_TRAINS to
 * train. */
typedef enum ax_train_purpose { AX_TRAIN_PLANS, AX_TRAIN_TRAINS } ax_train_purpose;

typedef struct ax_train_run {
    ax_comm *world;    /* borrowed */
    ax_config *config; /* borrowed */
    ax_train_purpose purpose;
    ax_train_dir dir;
    ax_train_inputs inputs;
    ax_train_plan plan;
    ax_train_state state;
    ax_train_report report;
    ax_train_resume resume;
    ax_train_files beside; /* on rank 0: the small files of the directory from which the run starts, and plans
                            of GEMMs that the run passes on (ax_train_carry_plans); copied into every
                            checkpoint */
    ax_train_trouble trouble;
} ax_train_run;

/* ---- train.c ------------------------------------------------------------------------------------- */

ax_status ax_train_start(ax_train_run *run, ax_train_purpose purpose);
void ax_train_finish(ax_train_run *run);

/* ---- dir.c: run.dir ------------------------------------------------------------------------------ */

/* Creates run.dir and locks it. AX_ERR_USAGE if another run holds the lock. */
ax_status ax_train_lock(const ax_train_run *run, ax_train_dir *out);
/* Removes, after a start that failed, the file `lock`, data/, run.dir and its parents, if this start made
 * them and the directories are empty. Keeps the error message. */
void ax_train_dir_undo(const ax_train_run *run);
void ax_train_dir_fini(ax_train_dir *dir);

/* ---- setup.c: model, tokenizer, data ------------------------------------------------------------- */

/* Checks, before anything is created, that the device and all paths to read from exist. */
ax_status ax_train_check_inputs(const ax_train_run *run);
ax_status ax_train_open_model(const ax_train_run *run, ax_train_inputs *inputs);
/* sparse.c: with train.sparse, makes inputs->masks from the open weight files; fails, once a plan has read
 * them, if they have no zeros; prints their checksum. */
ax_status ax_train_open_masks(const ax_train_run *run, ax_train_inputs *inputs);
ax_status ax_train_check_masks(const ax_train_run *run);
void ax_train_print_masks(const ax_train_run *run, char out[17]);
/* Opens the data of data.train and data.valid, sets config->model.seq_len if it is 0 (ax_data_choose_length),
 * and packs their documents if data.pack is documents. *signal: a signal that any rank has received meanwhile
 * (ax_train_beat), or 0. */
ax_status ax_train_open_data(const ax_train_run *run, ax_train_inputs *inputs, int *signal);
ax_status ax_train_write_config(const ax_train_run *run);
void ax_inputs_close_weights(
    ax_train_inputs *inputs); /* closes the weight files once the weights are loaded */
void ax_inputs_fini(ax_train_inputs *inputs);

/* ---- samples.c: the samples of a run ------------------------------------------------------------- */

/* Sets the shape of the rows in *inputs, whose sources must be open. A run that started from a checkpoint of
 * an earlier version keeps the rows of that version, if it has the same sources. */
ax_status ax_train_set_shape(const ax_train_run *run, ax_train_inputs *inputs);
/* Returns the shape of the rows that are trained: inputs.shape, which must be set, with what applies to
 * training only (the goldfish loss, data.long, rows of an earlier version). */
ax_row_shape ax_train_trained_shape(const ax_train_run *run);
/* Sets train.steps to the number of steps that are needed to read the epochs of data.train, if all sources
 * have epochs and the user gave no train.steps. `step` is the number of steps that the run has done, read[i]
 * the number of samples that it has read of source i. AX_ERR_USAGE: more steps than train.steps can be. */
ax_status ax_train_derive_steps(const ax_train_run *run, int64_t step, const int64_t *read);
/* Creates the sampler of training rows for a run that has done `step` steps and has read read[i] samples of
 * source i of data.train. AX_ERR_USAGE: the epochs of the sources do not fit into the run. */
ax_status ax_train_create_sampler(const ax_train_run *run, int64_t step, const int64_t *read,
                                  ax_sampler **sampler);

/* ---- plan.c: the start-up stages that fill the plan, in this order ------------------------------- */

ax_status ax_train_plan_grid(const ax_train_run *run, ax_train_plan *plan);
ax_status ax_train_plan_ranks(const ax_train_run *run, ax_train_plan *plan);
ax_status ax_train_plan_threads(const ax_train_run *run, ax_train_plan *plan);
ax_status ax_train_plan_step(const ax_train_run *run, ax_train_plan *plan);
ax_status ax_train_plan_schedule(const ax_train_run *run, ax_train_plan *plan); /* of the learning rate */
/* Plans, logs and checks the memory that a step needs, before it is allocated (memory.c). If the length
 * of rows is not known yet, only checks that the weights fit. */
ax_status ax_train_plan_engine(const ax_train_run *run, ax_train_plan *plan);
/* Plans the engine of a rank of `world`, which may be dry, with other options and settings than the plan's.
 */
ax_status ax_train_plan_rank(const ax_train_plan *plan, const ax_engine_options *options,
                             const ax_parallel *parallel, ax_comm *world, ax_engine_plan *out);
/* Plans the engine of the rank of a pipeline stage that needs the most memory: ax_trainer_plan_stage, with
 * other options. */
ax_status ax_train_plan_stage(const ax_train_plan *plan, const ax_engine_options *options, int stage,
                              ax_engine_plan *out);
/* Raises what the plan of that rank sends to other nodes, and the buffers for it, to the most that a rank of
 * its stage needs. */
ax_status ax_train_plan_apart(const ax_train_plan *plan, ax_engine_plan *of);
/* Replays a step of that rank, whose engine is planned, on a clock with these prices (ax_stage_times_make).
 */
ax_status ax_train_replay_stage(const ax_train_plan *plan, const ax_engine_plan *engine, int stage,
                                const ax_prices *prices, ax_event_ring *ring, ax_stage_times *out);
/* AX_ERR_USAGE if a step of the plan has work that no price is known for. */
ax_status ax_train_check_priced(const ax_train_plan *plan);
int64_t ax_train_plan_micro_batches(const ax_train_plan *plan); /* of a step, for each rank of the batch */
/* Sets *out to how the keys distribute a run over its grid. AX_ERR_USAGE if the backend is not available. */
ax_status ax_train_parallel(const ax_config *config, ax_parallel *out);
/* ax_trainer_time_step of a plan. */
ax_status ax_train_time_step(const ax_train_plan *plan, const ax_prices *prices, ax_event_ring *const ring[],
                             ax_stage_times *times, ax_step_time *out);
void ax_train_plan_fini(ax_train_plan *plan);
/* choose.c: with grid: auto, sets the keys of the grid in the configuration. Collective. */
ax_status ax_train_choose_grid(ax_train_run *run);
/* search.c: ax_search_create for a run whose model is open. */
ax_status ax_train_search(ax_train_run *run, const ax_search_options *options, ax_search **out);
/* Creates this rank's context (ax_ctx) with its device, for the grid of the plan. The caller owns *out. */
ax_status ax_train_open_device(const ax_train_plan *plan, ax_ctx **out);

/* runtime.c: runtime settings (runtime.h). ax_train_resume_runtime restores the settings that a resumed
 * run had before; ax_train_keep_runtime copies the settings that change results into the run's configuration,
 * which is saved. */
ax_status ax_train_set_runtime(const ax_train_run *run);
ax_status ax_train_resume_runtime(const ax_train_run *run);
ax_status ax_train_keep_runtime(const ax_train_run *run);

/* ---- report.c: metrics, trace, traffic ----------------------------------------------------------- */

/* Records how much memory is resident before the run allocates. */
void ax_report_baseline(ax_train_report *report);
/* Measures the device's peak FLOP/s, the denominator of MFU. Collective. */
ax_status ax_report_peak(const ax_train_run *run, ax_train_report *report);
/* Lists the sets of grid axes along which ranks communicate, for the report of traffic. Call once the model
 * is built. */
ax_status ax_report_axes(const ax_train_run *run, ax_train_report *report);
/* Listens to the rank's device: counts operations, and opens the trace if there is one. */
ax_status ax_report_listen(const ax_train_run *run, ax_train_report *report);
ax_status ax_report_open_metrics(const ax_train_run *run, ax_train_report *report);
/* Ends the progress line on the terminal, so that a message can follow. */
void ax_report_break_line(const ax_train_run *run);
void ax_report_begin_step(const ax_train_run *run, ax_train_report *report);
void ax_report_begin_traffic(ax_train_report *report);
/* Ends a step: combines the measurements of all ranks and writes the step's row of metrics. *seconds: time
 * from the start of the step until this function calls ax_train_exchange, on the slowest rank. *signal: a
 * signal that any rank has received, or 0. Also returns an error that any rank has recorded
 * (ax_train_exchange). Collective. */
ax_status ax_report_step(const ax_train_run *run, const ax_step_result *result, ax_train_report *report,
                         ax_train_trouble *trouble, double *seconds, int *signal);
ax_status ax_report_evaluation(const ax_train_run *run, const ax_evaluation *evaluation, double seconds);
ax_status ax_report_write_trace(const ax_train_run *run);
void ax_report_fini(ax_train_report *report);

/* ---- identity.c: what makes a run the same run ----------------------------------------------------- */

/* Return parts of training/state.json, which the caller releases; NULL if memory is short. */
struct json_t *
ax_train_paths(const ax_train_run *run); /* paths of data.train; for messages only: files may move */
struct json_t *ax_train_identity(const ax_train_run *run); /* values that must be the same in a resumed run,
                                                      except those of the model; in the order in which
                                                      messages print them */
struct json_t *ax_train_settings(const ax_train_run *run); /* values that a resumed run may change */
/* Converts a training/state.json that an earlier version of the program wrote to the form of this version. */
void ax_train_convert_state(const ax_train_run *run, struct json_t *state);
/* Returns how the run packs documents: the value of data.pack, but if that is auto and all sources, or none,
 * have a mask, the value that has the same effect. */
ax_data_packing ax_train_packing(const ax_train_run *run);
/* Returns how the run that wrote the checkpoint packed documents, and whether it left out the tokens after
 * the last full row. `state` must have been converted. */
ax_data_packing ax_train_saved_packing(const struct json_t *state);
bool ax_train_saved_full_rows(const struct json_t *state);
/* Compares this run with `state`, the training/state.json of a checkpoint. AX_ERR_USAGE if a value differs
 * that must be the same in a resumed run. */
ax_status ax_train_check_same(const ax_train_run *run, const struct json_t *state);
/* Return true if this run has the same sources, and rows of the same length, as the run that wrote the
 * checkpoint (how often a source is read may differ); and the same samples, that is also the same packing.
 * Only a new run can differ here: a resumed run with other samples is refused. */
bool ax_train_same_sources(const ax_train_run *run, const struct json_t *state);
bool ax_train_same_samples(const ax_train_run *run, const struct json_t *state);
/* Logs which settings differ from those of the checkpoint, if there is one. */
ax_status ax_train_log_changes(const ax_train_run *run);

/* ---- state.c: checkpoints of a run --------------------------------------------------------------- */

/* The position in the run at which a checkpoint was saved. */
typedef struct ax_train_position {
    int64_t step, tokens;
    ax_train_pending pending;
    int64_t *read; /* samples read of each source of data.train; the caller's array, at first all 0 */
} ax_train_position;

/* Finds the checkpoint from which the run starts and reads its state. A resumed run gets the value of
 * data.bos and the length of rows that it had, unless the user gave them. */
ax_status ax_train_find_resume(const ax_train_run *run, ax_train_resume *resume);
/* Returns true if the run's tokenizer puts special tokens around texts, so that data.bos has an effect. */
bool ax_train_can_frame(const ax_train_run *run);
/* Reads the position of the checkpoint, if there is one, and its loss scale into resume->scale. AX_ERR_USAGE
 * if the configuration differs from the checkpoint's in a key that a resumed run must keep. */
ax_status ax_train_restore_position(const ax_train_run *run, ax_train_resume *resume,
                                    ax_train_position *position);
/* Initializes the engine's weights, or reads them from model.from. */
ax_status ax_train_init_weights(const ax_train_run *run, ax_engine *engine);
/* Sets the weights of the run's engine. Calls ax_train_init_weights if there is no checkpoint, or if the
 * checkpoint holds a LoRA adapter, which lacks the weights of the base model. Then reads the checkpoint, if
 * there is one. */
ax_status ax_train_start_weights(const ax_train_run *run);
ax_status ax_train_save(const ax_train_run *run);
/* Computes what a checkpoint of the run takes on the disk. Called on rank 0, when the engine exists. */
ax_status ax_train_measure_checkpoint(const ax_train_run *run, ax_ckpt_size *out);
ax_status ax_train_count_checkpoints(const char *run_dir, int *n);
/* Makes the device keep the plans of its GEMMs (the algorithm chosen for each shape) in run.dir, and prefer
 * the plans in the checkpoint from which the run starts, if it has any. Checkpoints then carry the plans of
 * all ranks (ax_train_write_files). *kept: false if the device makes no plans. Collective. */
ax_status ax_train_keep_plans(const ax_train_run *run, bool *kept);
void ax_resume_fini(ax_train_resume *resume);

/* files.c: the small files of a checkpoint. ax_train_find_files reads the files to copy from the
 * checkpoint from which the run starts, or else from the directory of model.from; ax_train_write_files makes
 * the files that the run writes itself. The caller releases *out, also after an error. */
ax_status ax_train_find_files(const ax_train_run *run, ax_train_files *out);
ax_status ax_train_write_files(const ax_train_run *run, ax_train_files *out);
/* Appends, on rank 0, the plans of GEMMs in the checkpoint from which the run starts, if there are any. For
 * runs whose device makes no plans: their checkpoints pass these plans on. */
ax_status ax_train_carry_plans(const ax_train_run *run, ax_train_files *out);
/* Appends a file to *files and takes ownership of `data`, also after an error. */
ax_status ax_train_files_add(ax_train_files *files, const char *name, char *data, size_t size);
void ax_train_files_remove(ax_train_files *files, const char *name);
void ax_train_files_fini(ax_train_files *files);

/* space.c: checks, before step 1, that the disk has room for the checkpoints of the run. AX_ERR_DATA if
 * not even one fits; a warning if not all fit that are there at a time. Called on rank 0. */
ax_status ax_train_check_space(const ax_train_run *run);

/* chat.c: stores in the run's checkpoints the chat template by which the conversations of data.train
 * were written. Changes the run's tokenizer and run->beside (files that are copied into checkpoints). Called
 * on rank 0. */
ax_status ax_train_carry_template(ax_train_run *run);

/* unlearned.c: if the run trains low-rank updates only, logs a warning that names the tokens that the
 * chat template writes and that the base model has never learned. Called on rank 0. */
ax_status ax_train_warn_unlearned(const ax_train_run *run, const ax_chat *chat);

/* eval.c. Clears what metrics.jsonl already has of the evaluations of this step. Collective. */
ax_status ax_train_eval_missing(const ax_train_run *run, ax_train_pending *pending);
/* Evaluates the model on data.valid and reports the result. AX_ERR_SIGNAL on all ranks if any rank received a
 * signal. Collective. */
ax_status ax_train_evaluate(const ax_train_run *run, ax_evaluation *out);
/* Counts the documents of run.recall.data that the model recalls, and reports them, likewise. */
ax_status ax_train_recall(const ax_train_run *run);

/* ---- ranks.c: exchanges between ranks ------------------------------------------------------------ */

bool ax_train_first(const ax_train_run *run);
/* The functions of ranks.c below are collective, except ax_trouble_note. */
ax_status ax_train_max(const ax_train_run *run, int64_t *values, int n); /* values[i] = maximum over ranks */
/* Checks that all ranks have the same configuration, and gives the grid in it as many ranks as there are. */
ax_status ax_train_compare_configs(const ax_train_run *run);
/* Keeps ranks in contact while one rank works for all, so that signals to any rank are known within about a
 * second and the watchdog does not warn of a late rank. The working rank calls this about once a second with
 * *done = false, and once with true at its end. The waiting ranks call it in a loop until it sets *done to
 * true. *signal: a signal that any rank has received, or 0. */
ax_status ax_train_beat(const ax_train_run *run, bool *done, int *signal);
void ax_trouble_note(ax_train_trouble *trouble,
                     ax_status status); /* records an error for the next exchange */
ax_status
ax_train_agree(const ax_train_run *run); /* returns, on all ranks, the error that any rank has recorded */
/* Exchanges values between all ranks; called once a step. max[0 … AX_EXCHANGE_OWN-1] is used internally. The
 * caller fills in the n values from max[AX_EXCHANGE_OWN] on, and sum[0 … sums-1]. Each of the n values is
 * replaced by its maximum over the ranks, and each of sum by its sum over the ranks. *signal: a signal that
 * any rank has received, or 0. Sets the watchdog's timeout again, because a signal may have shortened it.
 * Returns the error that any rank has recorded. */
enum { AX_EXCHANGE_OWN = 2 };
ax_status ax_train_exchange(const ax_train_run *run, double *max, int n, double *sum, int sums, int *signal);

/* pace.c: if a step still runs ten seconds after a signal, all ranks of pace->ranks abandon the step
 * before the same piece of work (one micro-batch, or part of the choice of rows). */
void ax_pace_begin(ax_pace *pace); /* called at the start of a step */
/* Returns AX_ERR_SIGNAL on all ranks of pace->ranks, and sets *signal to the signal, if the step is
 * abandoned; otherwise leaves *signal unchanged. Called before each piece of work. */
ax_status ax_pace_piece(const ax_train_run *run, ax_pace *pace, int *signal);
/* Ends a step that took `seconds`, the same value on all ranks. */
void ax_pace_end(ax_pace *pace, double seconds);

/* signal.c: SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 ask for a stop at the next step boundary. */
/* Installs the handlers. After a signal, the handlers shorten the watchdog's timeout for the ranks of `comm`
 * (ax_comm_hurry). */
void ax_signals_install(ax_comm *comm);
void ax_signals_restore(ax_comm *comm);
double ax_signal_age(void);          /* seconds since the first signal; 0: there was none */
void ax_signals_saving(bool begins); /* a save begins (true) or ends (false); while it lasts, a signal does
                                        not shorten the watchdog's timeout */

#endif
