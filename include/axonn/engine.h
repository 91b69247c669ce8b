/* engine: training steps, evaluation and generation, built from the other rooms (the folders of src/).
 *
 * Four objects, each usable alone:
 *
 *   ax_engine     a model with its memory and optimizer: runs one training step or one evaluation. No files.
 *   ax_generator  a model that continues token sequences
 *   ax_train      a whole training run from a configuration: data, checkpoints, metrics, signals
 *   ax_trainer    the engine of a training run, for programs that run its steps themselves
 *
 * B is the number of rows (samples) in a step's global batch, T the number of positions in a row. */
#ifndef AXONN_ENGINE_H
#define AXONN_ENGINE_H

#include "axonn/ckpt.h"
#include "axonn/config.h"
#include "axonn/data.h"
#include "axonn/model.h"
#include "axonn/optim.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- engine -------------------------------------------------------------------------------------- */

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
} ax_engine_options;

/* Memory of an engine by class, in bytes on this rank: device memory, but `pinned` and one buffer in `batch`
 * are host memory. */
typedef struct ax_memory {
    size_t weights; /* master weights; for parameters that are not trained (frozen, or no optimizer) the
                       weights that kernels read */
    size_t copies;  /* weights that kernels read, if they have memory of their own: weights in the compute
                       dtype, and all-gathered weights that are kept (train.weight_cache) */
    size_t gradients, optimizer;
    size_t activations; /* activations and saved tensors (ax_frame) */
    size_t batch;       /* buffers for tokens, targets and positions, for loss and gradient norms, and the
                           tables of the optimizer (ax_updater) */
    size_t tables;      /* cosines and sines of rotary position embeddings */
    size_t messages;    /* buffers of messages between pipeline stages */
    size_t cache;       /* a generator's key/value cache */
    size_t workspace;   /* scratch memory of kernels */
    size_t pinned;      /* pinned host memory for messages between pipeline stages; 0 if the host can access
                           the device's memory whenever it wants to; not part of ax_memory_total */
} ax_memory;
size_t ax_memory_total(const ax_memory *memory);

/* The result of a dry run: a step and an evaluation on the device `dry`, which has no memory and computes
 * nothing (ax_engine_plan_make). */
typedef struct ax_engine_plan {
    ax_memory memory;
    ax_frame_plan *frame;
    ax_param_orders *orders;
    ax_axisset *axes; /* sets of grid axes along which ranks communicate; ax_grid_prepare creates a
                         communicator for each */
    int64_t *costs; /* costs of the embedding, of each block and of the head, by which the layers are divided
                       among pipeline stages (ax_model_use.costs); NULL: not needed */
} ax_engine_plan;

/* Runs a training step (if there is an optimizer) and an evaluation as this rank of `grid` over `world`, on
 * the device `dry`, which has no memory and computes nothing. `parallel` (NULL: the defaults), `device` and
 * `threads` are those of the real run. The caller releases *out with ax_engine_plan_fini. AX_ERR_USAGE if the
 * options contradict each other. Collective along world. */
AX_MUST_CHECK ax_status ax_engine_plan_make(const ax_engine_options *options, ax_comm *world,
                                            ax_grid_size grid, const ax_parallel *parallel,
                                            const char *device, int threads, ax_dtype compute,
                                            ax_engine_plan *out);
void ax_engine_plan_fini(ax_engine_plan *plan);

/* Creates an engine and allocates its memory. The weights are undefined until ax_param_set_init or a
 * checkpoint sets them. If `plan` is NULL, the activation memory (ax_frame) has `frame_bytes` bytes, and each
 * allocation is placed after the previous one, without reuse (bump mode, tensor.h). Borrows ctx,
 * options->model and plan. Collective along the grid. */
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
/* Returns the number of rows of a micro-batch, summed over the ranks that have different rows. */
int64_t ax_engine_rows(const ax_engine *engine);

/* Writes rows first … end-1 of the current step (or evaluation) to *out; ax_sampler_read is such a function.
 * A step calls it on each rank once at the start of each micro-batch; a pipeline stage with several chunks,
 * once for each chunk. If the function fails on all ranks, the step ends there, and the next step discards
 * the gradients accumulated so far (ax_param_set_zero_grad). If it fails on some ranks only, the others wait
 * for these ranks. With pipeline stages, the function may also give up the step: it returns AX_ERR_SIGNAL on
 * all ranks of the first stage, for the same piece (one micro-batch in one chunk). The stages then only
 * exchange the remaining messages of the step, and the step returns AX_ERR_SIGNAL on all ranks. */
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

/* ---- models from directories --------------------------------------------------------------------- */

/* A model directory opened for inference: config.json, the tokenizer if there is one, open weight files. Or a
 * LoRA adapter's directory opened together with its base model: then `config` describes the base model with
 * the adapter's low-rank updates. */
typedef struct ax_pretrained {
    char *dir;
    char *base; /* directory of an adapter's base model, with config.json and weights; NULL: `dir` holds no
                   adapter */
    ax_model_config config;
    ax_model_identity identity;
    ax_tokenizer *tokenizer; /* or NULL */
    bool untied;    /* config.json ties the output layer to the token embedding, but the weight files hold an
                       output layer with other values; the model is read as untied */
    ax_ids ends;    /* tokens that end a generated text: `eos_token_id` of generation_config.json, else
                       of config.json, else the tokenizer's end of text */
    ax_st *weights; /* open weight files, still readable after a training run has removed the checkpoint;
                       NULL: the directory has no weights */
    ax_st *adapter; /* the adapter's open weight file, or NULL */
    ax_adapter description; /* of an adapter: its adapter_config.json */
    ax_buf left; /* a line on arrays in the weight files that belong to no parameter; empty: there are none */
} ax_pretrained;

/* Opens `model`: a Hugging Face directory, an adapter's directory, a checkpoint or a run directory. The
 * caller releases *out with ax_pretrained_close. AX_ERR_DATA if files are damaged, if the weights do not
 * match config.json, or if an adapter does not fit its base model. */
AX_MUST_CHECK ax_status ax_pretrained_open(const char *model, ax_pretrained *out);
/* Opens `model` on all ranks, as ax_pretrained_open does, from the directory that rank 0 finds. If each rank
 * searched by itself, a run that is training could write a newer checkpoint between two searches. Collective
 * along world. */
AX_MUST_CHECK ax_status ax_pretrained_open_shared(ax_comm *world, const char *model, ax_pretrained *out);
void ax_pretrained_close(ax_pretrained *model);
/* Reads the weights into a parameter set of the same model. If `config` has low-rank updates and `adapter` is
 * NULL, the updates keep their values. Collective along the grid. */
AX_MUST_CHECK ax_status ax_pretrained_load(const ax_pretrained *model, ax_param_set *set);

/* How a text is continued. A value below 0 is not given. */
typedef struct ax_generation {
    double temperature, top_p, min_p; /* as in ax_sampling */
    int64_t top_k;
    double repetition_penalty; /* ax_sample_penalize; 1: none */
} ax_generation;

/* Replaces the values of *how that are not given by those of the model's generation_config.json (of an
 * adapter its own, else its base's), or by defaults: temperature 1, all tokens, no penalty. `do_sample:
 * false` there means temperature 0 if no value of the sampling was given. `said` gets what the file decided,
 * "" if nothing: "temperature 0.7, top-p 0.8". `left` gets the keys of the file that change in transformers
 * which tokens are taken, and have no effect here: "typical_p, num_beams". AX_ERR_DATA if the file is damaged
 * or a value in it is not allowed. */
AX_MUST_CHECK ax_status ax_pretrained_generation(const ax_pretrained *model, ax_generation *how,
                                                 char said[160], char left[160]);

/* What ax_model_convert has written. */
typedef struct ax_conversion {
    int arrays, converted; /* number of arrays; number of arrays whose dtype changed */
    int merged;            /* number of arrays to which an adapter's update was added */
    int files;             /* number of weight files that were written */
    int64_t bytes;         /* total size of the weight files and their index */
    int64_t overflows;     /* number of finite values that became infinite in the new dtype */
} ax_conversion;

typedef struct ax_conversion_args {
    const char *dir;     /* a model directory (ax_ckpt_find_model) of any family; no network is built. Or an
                            adapter's directory: the result is the base model with the adapter's updates
                            added */
    const char *out;     /* the directory to write, whose parent exists */
    ax_dtype dtype;      /* dtype to which arrays of F64, F32, BF16 or F16 are converted; AX_DTYPE_COUNT: no
                            conversion */
    int64_t shard_bytes; /* largest size of a weight file; 0: 5 GB (ax_st_plan) */
    /* Called before each part of an array is copied, with the number of bytes copied so far (`done`) and of
     * all bytes (`total`); may be NULL. If it returns false, the conversion ends with AX_ERR_SIGNAL. */
    bool (*progress)(void *user, int64_t done, int64_t total);
    void *user;
} ax_conversion_args;

/* Writes a copy of a model directory: its arrays with the same keys and shapes, config.json with the new
 * dtype, and the other files of a model that checkpoints copy (such as the tokenizer). The copy is written to
 * a hidden directory beside `out`, synced and renamed; if it fails, nothing remains. The conversion needs
 * memory for the headers and config.json, and 4 MiB for arrays of any size; for an adapter, also for two
 * factors in float64. AX_ERR_USAGE: `out` exists. AX_ERR_DATA: a damaged file, or no disk space. Not
 * collective. */
AX_MUST_CHECK ax_status ax_model_convert(const ax_conversion_args *args, ax_conversion *result);

/* The result of an evaluation of a model on token sources. */
typedef struct ax_evaluation {
    double loss_sum; /* over all targets, in nats */
    int64_t targets;
    int64_t untargeted;   /* tokens that are not targets: the first of the source or of each document,
                             those that a mask excludes, and those of rows that were not evaluated */
    int64_t begins;       /* number of those among them that the tokenizer puts before each text */
    int64_t bytes;        /* bytes of the text; -1: unknown, or not all of the text was evaluated */
    double loss;          /* loss_sum / targets; NaN if there is no target */
    double bits_per_byte; /* NaN if `bytes` is -1, or if there is no target */
} ax_evaluation;

/* Called on each rank before each micro-batch (with pipeline stages: before each group of several
 * micro-batches), with the number of rows done and of all rows. If the function returns false on any rank,
 * the evaluation fails with AX_ERR_SIGNAL on all ranks. */
typedef bool ax_eval_progress_fn(void *user, int64_t done, int64_t total);

/* Evaluates the engine's model on max_rows rows (0: all), spread evenly over a token source, and adds the
 * result to *evaluation, which the caller zeroes before the first source. Bits per byte include log2(vocab)
 * bits for each untargeted token, to be comparable with the bits per byte of a compressor; but none for the
 * token that the tokenizer puts before each text (ax_data_info.begin_id), because it is known. `progress` may
 * be NULL. AX_ERR_DATA if the source has no rows. Collective along the grid. */
AX_MUST_CHECK ax_status ax_engine_eval_data(ax_engine *engine, const ax_data *data, const ax_row_shape *shape,
                                            int64_t max_rows, ax_eval_progress_fn *progress, void *user,
                                            ax_evaluation *evaluation);

/* Evaluates the model on all rows of a token source, rows of `shape`, in micro-batches of `batch` rows
 * (ax_engine_options.micro_batch); `progress` may be NULL. Collective along the grid. */
AX_MUST_CHECK ax_status ax_pretrained_eval(ax_ctx *ctx, const ax_pretrained *model, const ax_data *data,
                                           const ax_row_shape *shape, int64_t batch,
                                           ax_eval_progress_fn *progress, void *user, ax_evaluation *out);

/* ---- generation ---------------------------------------------------------------------------------- */

typedef struct ax_generator ax_generator;

/* Creates a generator for prompts of exactly `prompt` tokens, and sequences of at most `capacity` tokens,
 * prompt included (`capacity` is at most ax_model_config_positions), and loads the weights. AX_ERR_USAGE if
 * the context's strategy splits the batch over several ranks (use ax_strategy_inference). The caller owns
 * *out. Collective along the grid. */
AX_MUST_CHECK ax_status ax_generator_create(ax_ctx *ctx, const ax_pretrained *model, int64_t prompt,
                                            int64_t capacity, ax_generator **out);
void ax_generator_destroy(ax_generator **generator);
const ax_memory *ax_generator_memory(const ax_generator *generator);

/* Feeds `n` tokens: first the whole prompt, then one token per call. Sets *logits to the logits of the last
 * token: `vocab` floats in the generator's host memory, valid until the next call. Collective along the
 * grid. */
AX_MUST_CHECK ax_status ax_generator_feed(ax_generator *generator, const int32_t *tokens, int64_t n,
                                          const float **logits);

/* Drops all tokens after the first `positions` from the key/value cache; AX_ERR_USAGE if there are fewer.
 * With this function a program generates several continuations of a prompt that it feeds once, or, with
 * `positions` 0, feeds another prompt of the same length. */
AX_MUST_CHECK ax_status ax_generator_rewind(ax_generator *generator, int64_t positions);

/* Builds the model, loads its weights, computes the logits of all n positions of a sequence and passes them
 * to `take`, one position at a time, as `vocab` floats on the host. Collective along the grid. */
typedef ax_status ax_take_logits_fn(void *user, int64_t position, const float *logits, int64_t vocab);
AX_MUST_CHECK ax_status ax_pretrained_logits(ax_ctx *ctx, const ax_pretrained *model, const int32_t *tokens,
                                             int64_t n, ax_take_logits_fn *take, void *user);

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
/* Creates the context and the engine that the trainer's plan describes, and sets the initial weights. The
 * caller owns *ctx and *engine, also after an error, and destroys them before the trainer. Collective along
 * world. */
AX_MUST_CHECK ax_status ax_trainer_engine(const ax_trainer *trainer, ax_ctx **ctx, ax_engine **engine);

#ifdef __cplusplus
}
#endif
#endif
