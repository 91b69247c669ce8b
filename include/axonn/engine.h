/* engine: assembles the rooms below into training steps, evaluation and generation.
 *
 * Three objects, each usable alone:
 *
 *   ax_engine     a model with its memory and optimizer: one training step, one evaluation. No files.
 *   ax_generator  a model that continues token sequences
 *   ax_train      a whole training run from a configuration: data, checkpoints, metrics, signals
 *
 * Letters: B rows (samples) of a step's global batch, T positions. */
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
    int64_t micro_batch;   /* rows per (data, z) coordinate and micro-step */
    int64_t global_batch;  /* B = micro_batch · data · z · number of micro-steps */
    int64_t recompute;     /* as for ax_model_create */
    bool whole_rows;       /* attention goes back to the row's start: ax_rows.doc_start is not looked at */
    const ax_optim *optim; /* NULL: evaluation only, no gradients */
    double clip;
} ax_engine_options;

/* Device memory of an engine by class, in bytes on this rank. */
typedef struct ax_memory {
    size_t weights; /* master weights */
    size_t copies;  /* weights as kernels read them, where that is another dtype */
    size_t gradients, optimizer;
    size_t activations; /* the frame */
    size_t batch;       /* tokens, targets, positions; loss and norms, what an update goes by */
    size_t cache;       /* keys and values of a generator */
    size_t workspace;   /* scratch of kernels */
} ax_memory;
size_t ax_memory_total(const ax_memory *memory);

/* What a dry run of the real step found out before anything was allocated. */
typedef struct ax_engine_plan {
    ax_memory memory;
    ax_frame_plan *frame;
    ax_param_orders *orders;
} ax_engine_plan;

/* Runs one micro-batch of a training step (with an optimizer) and one of an evaluation on the dry device, as
 * this rank of `grid` over `world`. `parallel` (NULL: the defaults), `device`, `threads`: of the real run.
 * The caller releases *out with ax_engine_plan_fini. AX_ERR_USAGE if the options do not fit together.
 * Collective along world. */
AX_MUST_CHECK ax_status ax_engine_plan_make(const ax_engine_options *options, ax_comm *world,
                                            ax_grid_size grid, const ax_parallel *parallel,
                                            const char *device, int threads, ax_dtype compute,
                                            ax_engine_plan *out);
void ax_engine_plan_fini(ax_engine_plan *plan);

/* Allocates the engine; weights are uninitialised until ax_param_set_init or a checkpoint fills them. `plan`
 * NULL: a bump frame of `frame_bytes` instead. Borrows ctx, options->model and plan. Collective along the
 * grid. */
AX_MUST_CHECK ax_status ax_engine_create(ax_ctx *ctx, const ax_engine_options *options,
                                         const ax_engine_plan *plan, size_t frame_bytes, ax_engine **out);
void ax_engine_destroy(ax_engine **engine);
ax_param_set *ax_engine_params(ax_engine *engine);
ax_model *ax_engine_model(ax_engine *engine);
ax_frame *ax_engine_frame(ax_engine *engine);
/* The loss scale of the next step: a caller may read it, and put it back where training goes on. */
ax_loss_scale *ax_engine_loss_scale(ax_engine *engine);
/* Rows of a micro-batch, all ranks together. */
int64_t ax_engine_rows(const ax_engine *engine);

/* Gives rows first … end-1 of the present step (or evaluation): ax_sampler_read fits. A step calls it once in
 * each micro-batch, before anything else; where it fails, on all ranks alike, the step ends there, and
 * ax_param_set_zero_grad drops its gradients. */
typedef ax_status ax_read_rows_fn(void *source, int64_t first, int64_t end, const ax_rows *out);
/* Gives none: for a dry device, which reads nothing. */
ax_read_rows_fn ax_rows_none;

/* One training step: forward and backward of every micro-batch, gradients summed, clipped and applied.
 * `targets`: unmasked targets of the global batch. A device that runs apart from the host (a GPU) is given
 * the work, and nothing waits for it. A step whose loss or gradient is not finite changes nothing, nor does
 * any that follows, until ax_engine_result has told of it. Collective along the grid. Allocates nothing after
 * the first two calls. */
AX_MUST_CHECK ax_status ax_engine_step(ax_engine *engine, int64_t step, ax_read_rows_fn *read, void *source,
                                       int64_t targets, const ax_hyper *hyper);

typedef struct ax_step_result {
    double loss;      /* mean over the unmasked targets of the global batch, before the update */
    double grad_norm; /* of the whole gradient, before clipping */
    bool finite;      /* both are; false: nothing was updated */
    /* Not finite: the first parameter whose weights are not, or else the first whose gradient is not. NULL if
     * only the loss is not. */
    const char *culprit;
    bool culprit_weights; /* it is its weights */
    double loss_scale;    /* that this step had */
    bool overflow; /* not finite, and it is the gradient alone, in fp16: the next step has a smaller loss
                      scale, if there is one */
} ax_step_result;

/* What the newest step came to, or the first since the last call that was not finite; the next one is applied
 * again, and in fp16 has the loss scale that follows from this one. Waits for the step's gradient, not for
 * its update. Collective along the grid if not finite. */
AX_MUST_CHECK ax_status ax_engine_result(ax_engine *engine, ax_step_result *out);

/* Forward of `rows` rows: *loss_sum over all unmasked targets (not their mean). Collective along the grid. */
AX_MUST_CHECK ax_status ax_engine_eval(ax_engine *engine, ax_read_rows_fn *read, void *source, int64_t rows,
                                       double *loss_sum);

/* ---- models from directories --------------------------------------------------------------------- */

/* A model for inference: its directory resolved, config.json read, tokenizer loaded if there is one. */
typedef struct ax_pretrained {
    char *dir;
    ax_model_config config;
    ax_model_identity identity;
    ax_tokenizer *tokenizer; /* or NULL */
    bool untied;    /* the files hold a head that differs from the table to which config.json ties it */
    ax_ids ends;    /* tokens that end a generated text: `eos_token_id` of generation_config.json, else
                       of config.json, else the tokenizer's end of text */
    ax_st *weights; /* open, so that a run may remove the checkpoint; NULL: the directory has none */
} ax_pretrained;

/* `model`: a Hugging Face directory, a checkpoint or a run directory. The caller releases with
 * ax_pretrained_close. AX_ERR_DATA: damaged, or the weights are not those of the model that config.json
 * describes. */
AX_MUST_CHECK ax_status ax_pretrained_open(const char *model, ax_pretrained *out);
/* The same on ranks, which all take the checkpoint that rank 0 finds: a run that trains on replaces its
 * checkpoints, and there may be a newer one by the time that another rank looks. Collective along world. */
AX_MUST_CHECK ax_status ax_pretrained_open_shared(ax_comm *world, const char *model, ax_pretrained *out);
void ax_pretrained_close(ax_pretrained *model);
/* Reads its weights into a parameter set of the same shape. Collective along the grid. */
AX_MUST_CHECK ax_status ax_pretrained_load(const ax_pretrained *model, ax_param_set *set);

/* How well a model predicts data. */
typedef struct ax_evaluation {
    double loss_sum; /* over all targets, in nats */
    int64_t targets;
    int64_t untargeted;   /* tokens that nothing was predicted for: the first of each document */
    int64_t bytes;        /* of the text; -1: not known, or not all of it was used */
    double loss;          /* loss_sum / targets */
    double bits_per_byte; /* NaN if bytes are not known */
} ax_evaluation;

/* Called on each rank before each micro-batch with the rows done and their total; false on any of them stops
 * all with AX_ERR_SIGNAL. */
typedef bool ax_eval_progress_fn(void *user, int64_t done, int64_t total);

/* Evaluates max_rows rows (0: all), spread evenly over a token source, and adds them to *evaluation, which
 * starts zeroed. Bits per byte charge log2(vocab) for each untargeted token, so that they compare with a
 * compressor's. `progress` may be NULL. Collective along the grid. */
AX_MUST_CHECK ax_status ax_engine_eval_data(ax_engine *engine, const ax_data *data, const ax_row_shape *shape,
                                            int64_t max_rows, ax_eval_progress_fn *progress, void *user,
                                            ax_evaluation *evaluation);

/* Evaluates the model on a token source in rows of `shape`, `batch` at a time; `progress` may be NULL.
 * Collective along the grid. */
AX_MUST_CHECK ax_status ax_pretrained_eval(ax_ctx *ctx, const ax_pretrained *model, const ax_data *data,
                                           const ax_row_shape *shape, int64_t batch,
                                           ax_eval_progress_fn *progress, void *user, ax_evaluation *out);

/* ---- generation ---------------------------------------------------------------------------------- */

typedef struct ax_generator ax_generator;

/* A generator for prompts of exactly `prompt` tokens and up to `capacity` positions in all (at most the
 * model's seq_len). */
AX_MUST_CHECK ax_status ax_generator_create(ax_ctx *ctx, const ax_pretrained *model, int64_t prompt,
                                            int64_t capacity, ax_generator **out);
void ax_generator_destroy(ax_generator **generator);
const ax_memory *ax_generator_memory(const ax_generator *generator);

/* Feeds `n` tokens (the prompt first, single tokens after it) and returns the host logits of the last
 * (`vocab` floats, owned by the generator, valid until the next call). */
AX_MUST_CHECK ax_status ax_generator_feed(ax_generator *generator, const int32_t *tokens, int64_t n,
                                          const float **logits);

/* Forgets all but the first `positions` tokens (AX_ERR_USAGE if there are fewer): to go on otherwise after a
 * prompt that was fed once, or with 0 to begin with another prompt of the same length. */
AX_MUST_CHECK ax_status ax_generator_rewind(ax_generator *generator, int64_t positions);

/* Logits of all positions of a sequence: host [n, vocab], given to `take` row by row. */
typedef ax_status ax_take_logits_fn(void *user, int64_t position, const float *logits, int64_t vocab);
AX_MUST_CHECK ax_status ax_pretrained_logits(ax_ctx *ctx, const ax_pretrained *model, const int32_t *tokens,
                                             int64_t n, ax_take_logits_fn *take, void *user);

/* What the tokens take by which a generator continues a prompt. Times in seconds. */
typedef struct ax_generate_times {
    ax_spread prompt; /* of a whole prompt, up to its last position's logits */
    ax_spread token;  /* of a token: the one before it is fed, and the likeliest is drawn */
    /* This rank's: */
    double weights;  /* bytes of the matrices that a token's products read */
    ax_spread read;  /* bytes per second at which the device reads them (ax_device_read); 0: not known */
    ax_spread share; /* of a round: the time that reading the weights takes over its median token's; 0: not
                        known */
    ax_kernel_total kernel[AX_KERNEL_COUNT]; /* means of a token */
    ax_memory memory;                        /* planned */
    int64_t held;                            /* taken of the device's memory at most (ax_device_held) */
    char model[96], grid[96];                /* as ax_step_times has them */
} ax_generate_times;

/* Feeds `prompt` random tokens, draws `tokens` more, reads the weights where they lie, and this for `rounds`
 * rounds, after one that does not count: what the machine is busy with besides, and how fast its memory is,
 * is then the same for both. On a device with a clock of its own the times of kernels are those of a round
 * that follows. Collective along the grid. */
AX_MUST_CHECK ax_status ax_generate_time(ax_ctx *ctx, const ax_pretrained *model, int64_t prompt,
                                         int64_t tokens, int64_t rounds, ax_generate_times *out);

/* ---- training runs ------------------------------------------------------------------------------- */

/* What came of a run. */
typedef struct ax_train_result {
    int64_t step, tokens;
    double loss;                     /* of the last step; NaN if none was made */
    double eval_loss, bits_per_byte; /* of the last evaluation; NaN if unknown */
    char *checkpoint;                /* the newest, or NULL; the caller frees */
} ax_train_result;

/* From now on SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are noted for the ax_train that follows, which
 * stops after its first step and saves. ax_train does that while it runs; a program that calls this first in
 * main loses no signal while it starts. `tell`, or NULL, is called by the handler and must be
 * async-signal-safe. */
void ax_signals_catch(void (*tell)(void));
/* The signal that was noted last, or 0. */
int ax_signal_pending(void);

/* A whole run on the ranks of `world`: everything that `axonn train` does once the configuration is loaded.
 * Returns AX_OK when all steps are done, AX_ERR_SIGNAL when a signal, to any of the ranks, stopped it after
 * saving. `config` is completed (from the model's own config.json) in place; each rank has its own, with the
 * same values. Whatever is wrong before the first step is returned by all ranks alike (ax_error_is_shared)
 * and leaves older checkpoints untouched; an error that the others cannot share, since they may be waiting
 * for this rank, aborts the world (ax_comm_abort). Collective along world. */
AX_MUST_CHECK ax_status ax_train(ax_comm *world, ax_config *config, ax_train_result *result);

/* What the steps of a configuration take. Times in seconds, of a step. */
typedef struct ax_step_times {
    ax_spread seconds; /* of the slowest rank */
    int64_t tokens;    /* of all ranks */
    double flops;      /* of the model, of all ranks (ax_model_config_flops_per_token) */
    /* This rank's, means over the steps: */
    double exposed; /* in which it waited for other ranks, in the steps in which kernels are timed */
    ax_kernel_total kernel[AX_KERNEL_COUNT];
    int threads;
    double peak, stream; /* what its device can do at best: ax_device_peak, ax_device_stream */
    ax_memory memory;    /* planned */
    int64_t held;        /* taken of the device's memory at most (ax_device_held) */
    ax_dtype compute;    /* what kernels read */
    char model[96];      /* "gpt2 12 x 768" */
    char grid[96];       /* "data=1 pipe=1 x=2 y=1 z=1" */
} ax_step_times;

/* Makes `warm` steps, then `steps` more and times these: the run's own steps, on random tokens. On a device
 * with a clock of its own the times of kernels are those of as many steps that follow. Reads nothing but
 * model.from and the tokenizer, writes nothing. Errors as those of ax_train. Collective along world. */
AX_MUST_CHECK ax_status ax_train_time(ax_comm *world, ax_config *config, int64_t warm, int64_t steps,
                                      ax_step_times *out);

/* One of the matrix products of a step. */
typedef struct ax_product {
    ax_gemm_args args; /* whose pointers are NULL */
    bool bias;         /* it adds one */
    bool pre;          /* it keeps, or takes, what an activation is of */
    int64_t calls;     /* in a step */
    ax_spread seconds; /* of a call */
} ax_product;

/* The matrix products of a step of this rank, different ones only, those that take most of a step first. */
typedef struct ax_step_products {
    ax_product *product;
    int64_t n;
    int64_t calls;  /* in a step, of all */
    double flops;   /* of a step */
    double seconds; /* that a step's products should take: all calls at their medians */
    int threads;
    int64_t cache;               /* bytes of the last-level caches; operands come from beyond; 0: not known */
    double peak[AX_DTYPE_COUNT]; /* ax_device_peak of the dtypes that are multiplied */
    ax_dtype compute;
    const char *device;
    char model[96], grid[96]; /* as ax_step_times has them */
} ax_step_products;

/* Finds the products of a training step of this configuration, by running the step on the dry device, and
 * times each by itself `runs` times on the configuration's device, on operands that are in no cache. Ranks
 * find and time their own, at the same time. Errors as those of ax_train_time. The caller releases *out with
 * ax_step_products_fini, whatever is returned. Collective along world. */
AX_MUST_CHECK ax_status ax_train_products(ax_comm *world, ax_config *config, int64_t runs,
                                          ax_step_products *out);
void ax_step_products_fini(ax_step_products *products);

#ifdef __cplusplus
}
#endif
#endif
