/* Training on a grid against training on one rank: three tiny models, what a run yields, and how two runs are
 * compared. Used by the campaign of every build (engine/test_equality.c) and the long one. */
#ifndef AXONN_TESTS_EQUALITY_H
#define AXONN_TESTS_EQUALITY_H

#include "axonn/engine.h"

enum { EQ_STEPS = 20, EQ_MOST_STEPS = 100, EQ_T = 10, EQ_PARAMS = 64 };

/* gpt2 and grouped divide by most axes, odd by none: 3 heads of 7, widths of 21 and 23, 29 tokens. scarce has
 * so little of everything that many of eight ranks hold nothing: 2 heads that share a key, 5 tokens. grouped:
 * 8 query heads share 2 key heads, with biases and without, and the head is no token table but has a bias. */
typedef enum eq_model { EQ_GPT2, EQ_GROUPED, EQ_ODD, EQ_SCARCE, EQ_MODELS } eq_model;
extern const char *const eq_model_names[];

/* One run and what came of it. */
typedef struct eq_run {
    ax_grid_size grid;
    ax_parallel parallel;
    eq_model model;
    const char *device;
    ax_dtype compute;
    int64_t recompute, rows; /* rows: of a step; those of a rank one, or even */
    int steps;
    uint64_t seed;
    /* of rank 0: */
    double loss[EQ_MOST_STEPS], eval, norm; /* norm and gradients: of step 1 */
    int params;
    char *name[EQ_PARAMS];
    double *grad[EQ_PARAMS];
    int64_t count[EQ_PARAMS];
} eq_run;

/* One rank's run of a model, of 8 rows, to be done. */
eq_run eq_serial(eq_model model, const char *device, ax_dtype compute, int steps);
/* Does it, on rank threads; the test fails if it does. eq_free releases the result. */
eq_run eq_do(eq_run r);
/* The same as one rank of `world`: `run` points to an eq_run, which rank 0 completes. */
ax_status eq_on_rank(ax_comm *world, void *run);
void eq_free(eq_run *r);

/* Relative differences of the losses of all steps and of the evaluation: the worst, and their mean. */
double eq_worst_loss_gap(const eq_run *a, const eq_run *serial);
double eq_mean_loss_gap(const eq_run *a, const eq_run *serial);

/* Fails unless losses and norm of `a`, and each element of each gradient (relative to max(the tensor's rms,
 * 1e-3 of the global rms)), are within the bounds of the serial run. */
void eq_assert_equal(const eq_run *a, const eq_run *serial, double loss_bound, double grad_bound);
ax_status eq_check_equal(const eq_run *a, const eq_run *serial, double loss_bound, double grad_bound);
/* How far one rank's bf16 or fp16 is from its fp32 in four runs from other weights: the mean gap of the
 * losses, the largest of each tensor's gradient (root mean square), and the mean of all gradients. */
typedef struct eq_gap {
    double loss, grad[EQ_PARAMS], all;
} eq_gap;
eq_gap eq_rounding_gap(eq_model model, const char *device, ax_dtype compute, int steps);
/* Fails if gradients of `a`, of the same 16 bits, are further from those of `exact`, of fp32, than twice the
 * gap, or its losses than single runs reach. A single tensor's gap may be small by chance, so none is held to
 * less than the mean of all. */
void eq_assert_as_near(const eq_run *a, const eq_run *exact, const eq_gap *gap);

/* All ways to write `ranks` as x·y·z·data: 20 for 8. */
int eq_factorizations(int ranks, ax_grid_size out[64]);

#endif
