/* optim: learning-rate schedules, clipping, loss scaling, and optimizers over a parameter set (ax_param_set,
 * all parameters of a model).
 *
 * An optimizer (ax_optim) is the number of its state arrays per parameter, and a function that updates flat
 * arrays. This function does not depend on models or grids, or on where the state is stored. */
#ifndef AXONN_OPTIM_H
#define AXONN_OPTIM_H

#include "axonn/parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ax_schedule_kind {
    AX_SCHEDULE_CONSTANT,
    AX_SCHEDULE_LINEAR,
    AX_SCHEDULE_COSINE,
    AX_SCHEDULE_WSD
} ax_schedule_kind;

/* Finds a schedule by its name: "constant", "linear", "cosine" or "wsd"; AX_ERR_USAGE for other names. */
AX_MUST_CHECK ax_status ax_schedule_find(const char *name, ax_schedule_kind *out);
/* Returns the name of an ax_schedule_kind, or NULL after the last. */
const char *ax_schedule_name(int index);

/* A learning-rate schedule. Steps count from 1. Step s <= warmup has learning rate lr·s/warmup, even if the
 * warm-up is longer than the run. After the warm-up, constant stays at lr; linear and cosine decay from lr to
 * min_lr, which they reach at step `steps`. wsd (warmup-stable-decay) stays at lr, and then decays linearly
 * to min_lr over the last decay·steps steps, or over all steps after the warm-up if these are fewer.
 * docs/training.md has the formulas. */
typedef struct ax_schedule {
    ax_schedule_kind kind;
    int64_t steps, warmup;
    double lr, min_lr, decay;
} ax_schedule;
double ax_schedule_lr(const ax_schedule *schedule, int64_t step);

/* Dynamic loss scaling (Micikevicius et al. 2018). Numbers up to 2^-25 become 0 in fp16. So the backward pass
 * computes activation gradients multiplied by `scale`, and the update divides weight gradients, which are
 * fp32, by `scale`. A step whose gradient is not finite is skipped and halves the scale; after 2000 good
 * steps in a row the scale doubles. The scale stays between AX_LOSS_SCALE_LEAST and AX_LOSS_SCALE_MOST.
 * Checkpoints store the struct. */
typedef struct ax_loss_scale {
    double scale;          /* a power of two; 1 unless the compute dtype is fp16 */
    int64_t good_steps;    /* steps without overflow since the last overflow or doubling of the scale */
    int64_t skipped_steps; /* steps with overflow since the beginning of the run */
} ax_loss_scale;
#define AX_LOSS_SCALE_LEAST 1.0
#define AX_LOSS_SCALE_MOST 0x1p32

/* Returns the initial loss scale for training in compute dtype `compute`. */
ax_loss_scale ax_loss_scale_start(ax_dtype compute);
/* Halves the scale if the gradient of the step was not finite (`overflow`); doubles it after 2000 good steps
 * in a row. To be called after each step in fp16. */
void ax_loss_scale_update(ax_loss_scale *scale, bool overflow);

/* The hyper-parameters of one update. An optimizer ignores those that it does not have. */
typedef struct ax_hyper {
    double lr, beta1, beta2, eps, momentum, weight_decay;
    int64_t step; /* index of the step, from 1, for Adam's bias correction */
} ax_hyper;

typedef struct ax_optim {
    const char *name;
    int moments;                     /* number of state arrays per parameter */
    const char *const *moment_names; /* names of these arrays in PyTorch and in checkpoints: "exp_avg", … */
    /* Updates master weights, state, and the copies that kernels read: launches the optimizer's kernel. */
    ax_status (*update)(ax_stream *stream, const ax_update_args *args);
} ax_optim;

/* Finds an optimizer by its name: "adamw" (Loshchilov & Hutter 2019; decoupled decay, bias-corrected) or
 * "sgd" (momentum; as torch.optim.SGD). AX_ERR_USAGE for other names; the message lists the two. */
AX_MUST_CHECK ax_status ax_optim_find(const char *name, const ax_optim **out);
/* Returns the name of optimizer number `index`, or NULL after the last. */
const char *ax_optim_name(int index);

/* An updater applies an optimizer to a parameter set. The table of the set's arrays (ax_update_array) and the
 * inputs that change with each step (ax_update_numbers) are in device memory, so that an update never waits
 * for the host. */
typedef struct ax_updater ax_updater;

/* Creates an updater, which updates the parameters of `set` by the optimizer. Borrows `set`, which must have
 * been created with optim->moments state arrays per parameter. The caller owns *out and destroys it before
 * the set. Not collective. */
AX_MUST_CHECK ax_status ax_updater_create(const ax_optim *optim, ax_param_set *set, ax_updater **out);
void ax_updater_destroy(ax_updater **updater);
/* Returns the bytes of device memory that the updater has allocated. */
size_t ax_updater_bytes(const ax_updater *updater);

/* Computes, on the device, the factor by which the next updates multiply gradients, and whether these updates
 * are skipped (kernel clip). loss: the loss of the step, summed over `targets` targets; sumsq: the sums of
 * squares of the step's gradients (ax_param_set_grad_sumsq). Both are in device memory. scale: the loss
 * scale, by which gradients are multiplied; clip: see ax_clip_args. Before the first call the factor is 1.
 * The work is only enqueued. Not collective. */
AX_MUST_CHECK ax_status ax_updater_clip(ax_updater *updater, const double *sumsq, const double *loss,
                                        int64_t targets, double scale, double clip);
/* Updates once each parameter of the set that is not frozen and that this rank's pipeline stage owns
 * (ax_param_is_owned), with weight decay only if param->decay, and then all-gathers the parameters whose new
 * weights are split over ranks (ax_param_all_gather). Without such parameters the update is one kernel
 * launch. The work is only enqueued. Collective as ax_param_all_gather. */
AX_MUST_CHECK ax_status ax_updater_step(ax_updater *updater, const ax_hyper *hyper);
/* Ends a step, without clipping, whose gradients are reduced while buckets of offloaded state are updated;
 * for sets with ax_offload_chunk. Call it instead of ax_param_set_sync_grad, ax_updater_clip and
 * ax_updater_step. Updates nothing if loss or gradients are not finite. numbers: device memory for 1 + set->n
 * doubles: the loss of the step, the same on all ranks, then room for the sums of squares of the gradients.
 * `targets` and `scale` are as for ax_updater_clip. Waits for the gradients before their reduction.
 * Collective along the grid. */
AX_MUST_CHECK ax_status ax_updater_step_reducing(ax_updater *updater, double *numbers, int64_t targets,
                                                 double scale, const ax_hyper *hyper);
/* Waits for the newest ax_updater_clip, but not for work enqueued after it, and returns its result. Not
 * collective. */
AX_MUST_CHECK ax_status ax_updater_result(ax_updater *updater, ax_update_numbers *out);
/* Lets updates take effect again: after one update was skipped, all later updates are skipped too, until this
 * call. The work is only enqueued. Not collective. */
AX_MUST_CHECK ax_status ax_updater_resume(ax_updater *updater);

#ifdef __cplusplus
}
#endif
#endif
