/* optim: learning-rate schedules, clipping, loss scaling, and optimizers over a parameter set.
 *
 * An optimizer is a row of a table: how many state arrays it keeps per parameter and the kernel that updates
 * flat arrays. It knows nothing of models, grids or where the state lives. */
#ifndef AXONN_OPTIM_H
#define AXONN_OPTIM_H

#include "axonn/dist.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ax_schedule_kind {
    AX_SCHEDULE_CONSTANT,
    AX_SCHEDULE_LINEAR,
    AX_SCHEDULE_COSINE,
    AX_SCHEDULE_WSD
} ax_schedule_kind;

/* "constant", "linear", "cosine", "wsd"; AX_ERR_USAGE for others. */
AX_MUST_CHECK ax_status ax_schedule_find(const char *name, ax_schedule_kind *out);

/* Steps count from 1. Step s <= warmup uses lr·s/warmup, also where the warm-up is longer than the run. After
 * it, linear and cosine fall from lr to min_lr, reached at step `steps`; wsd stays at lr and falls linearly
 * to min_lr over the last `decay` share of the steps, or what the warm-up leaves of it. docs/training.md has
 * the formulas. */
typedef struct ax_schedule {
    ax_schedule_kind kind;
    int64_t steps, warmup;
    double lr, min_lr, decay;
} ax_schedule;
double ax_schedule_lr(const ax_schedule *schedule, int64_t step);

/* Dynamic loss scaling (Micikevicius et al. 2018): gradients of activations in fp16, which has nothing below
 * 2^-24, are computed `scale` times too large, and gradients of weights, which are fp32, are divided by it as
 * they are used. A step whose gradient is not finite is not applied and halves the scale; after 2000 good
 * steps in a row it doubles. All of it is part of the training's state. */
typedef struct ax_loss_scale {
    double scale;                      /* a power of two; 1 where there is no fp16 */
    int64_t good_steps, skipped_steps; /* since the scale last changed; in all */
} ax_loss_scale;
#define AX_LOSS_SCALE_LEAST 1.0
#define AX_LOSS_SCALE_MOST 0x1p32

/* What training in this dtype starts with. */
ax_loss_scale ax_loss_scale_start(ax_dtype compute);
/* After a step in fp16. */
void ax_loss_scale_update(ax_loss_scale *scale, bool overflow);

/* The numbers of one update. Optimizers ignore what they do not have. */
typedef struct ax_hyper {
    double lr, beta1, beta2, eps, momentum, weight_decay;
    int64_t step; /* from 1: for bias correction */
} ax_hyper;

/* Arrays that are updated together: `arrays` entries of a table in device memory, and of its copy in host
 * memory (ax_update_array). */
typedef struct ax_update {
    int64_t n, copied, arrays;            /* elements of all, and of those that have a copy */
    const ax_update_array *array, *table; /* device memory, host memory */
    const ax_update_numbers *numbers;     /* device memory */
    ax_dtype dtype, copy_dtype;
} ax_update;

typedef struct ax_optim {
    const char *name;
    int slots;                     /* state arrays per parameter */
    const char *const *slot_names; /* as torch calls them; names in checkpoints */
    /* Updates master weights, state, and the copies that kernels read. What hyper has and `numbers` too is
     * taken from there. */
    ax_status (*update)(ax_stream *stream, const ax_hyper *hyper, const ax_update *update);
} ax_optim;

/* "adamw" (Loshchilov & Hutter 2019; decoupled decay, bias-corrected) or "sgd" (momentum; as
 * torch.optim.SGD). AX_ERR_USAGE naming those there are. */
AX_MUST_CHECK ax_status ax_optim_find(const char *name, const ax_optim **out);

/* An optimizer at work on a parameter set: the table of the set's arrays and what changes from step to step,
 * both in device memory, so that nothing of an update waits for the host. */
typedef struct ax_updater ax_updater;

/* Borrows the set, which has optim->slots state arrays. The caller owns *out and destroys it before the set.
 * Not collective. */
AX_MUST_CHECK ax_status ax_updater_create(const ax_optim *optim, ax_param_set *set, ax_updater **out);
void ax_updater_destroy(ax_updater **updater);
/* Device memory that it takes. */
size_t ax_updater_bytes(const ax_updater *updater);

/* What the next updates multiply gradients by, and whether they are made at all, from the step's loss, a sum
 * over `targets`, and the sums of squares of its gradients (ax_param_set_grad_sumsq), both in device memory;
 * gradients are `scale` times too large: see ax_clip_args.
 * Without it gradients are taken as they are. Enqueued; not collective. */
AX_MUST_CHECK ax_status ax_updater_clip(ax_updater *updater, const double *sumsq, const double *loss,
                                        int64_t targets, double scale, double clip);
/* One update of every parameter of the set, by one launch where nothing travels after it; decay only where
 * param->decay. What was updated is on its way to the ranks that read it (ax_param_publish), and collective
 * as that is. Enqueued. */
AX_MUST_CHECK ax_status ax_updater_step(ax_updater *updater, const ax_hyper *hyper);
/* Waits for the newest ax_updater_clip, not for what was enqueued after it, and says what it found. Not
 * collective. */
AX_MUST_CHECK ax_status ax_updater_result(ax_updater *updater, ax_update_numbers *out);
/* Updates are made again after one that was skipped. Enqueued; not collective. */
AX_MUST_CHECK ax_status ax_updater_resume(ax_updater *updater);

#ifdef __cplusplus
}
#endif
#endif
