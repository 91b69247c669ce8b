/* Compares training on a grid with training on one rank: tiny models, a run with its results, and the
 * comparison of two runs. Used by engine/test_equality.c in every build, and by the long test. */
#ifndef AXONN_TESTS_EQUALITY_H
#define AXONN_TESTS_EQUALITY_H

#include "support/choices.h"

enum { EQ_STEPS = 20, EQ_MOST_STEPS = 100, EQ_T = 10, EQ_PARAMS = 64 };

/* gpt2 and grouped: most axes divide their sizes. grouped: 8 query heads share 2 key heads, alternate layers
 * have no bias, and the head is not tied to the embedding and has a bias. odd: no axis divides a size (3
 * heads of 7, widths 21 and 23, 29 tokens). scarce: sizes so small that several of eight ranks hold nothing
 * (2 heads that share a key head, 5 tokens). window: of family mistral, so with RMSNorm, rotary positions and
 * a gated MLP, and biases in attention and MLP; 8 query heads share 2 key heads, and see 4 positions. norms:
 * of family qwen3, with an RMSNorm of each head of q and k and no biases; 4 heads, which share 2 key heads,
 * are twice as wide as the residual stream. lora: like window, but only attention has biases, and the
 * matrices have low-rank updates, every other one with dropout. */
typedef enum eq_model {
    EQ_GPT2,
    EQ_GROUPED,
    EQ_ODD,
    EQ_SCARCE,
    EQ_WINDOW,
    EQ_NORMS,
    EQ_LORA,
    EQ_MIXTRAL, /* experts in all blocks, both losses of routers */
    EQ_SPARSE,  /* experts in one block of three, one for each token */
    EQ_OLMOE,   /* all experts for each token, norms over all heads */
    EQ_MODELS
} eq_model;
extern const char *const eq_model_names[];
/* Whether x ranks can split the model's heads. */
bool eq_heads_fit(eq_model model, int x);

/* A run and its results. */
typedef struct eq_run {
    ax_grid_size grid;
    ax_parallel parallel;
    eq_model model;
    const char *device;
    ax_dtype compute;
    double capacity;         /* of the experts (ax_model_experts) */
    int64_t recompute, rows; /* rows of a step; each rank has one row or an even number */
    int64_t micro_batches;   /* of a step; 0: two, or one if a rank has one row */
    int steps;
    uint64_t seed;
    choices *choices; /* what `use` refers to; NULL: nothing */
    choices_use use;
    /* results, stored by rank 0: */
    double loss[EQ_MOST_STEPS], eval, norm; /* norm and gradients are those of step 1 */
    double load[EQ_MOST_STEPS], balance, z; /* expert_load of each step; losses of routers in step 1 */
    double dropped[EQ_MOST_STEPS];          /* expert_dropped of each step */
    double differ[CHOICES_SUMS], margin;    /* what CHOICES_COMPARE found */
    int params;
    char *name[EQ_PARAMS];
    double *grad[EQ_PARAMS];
    bool matrix[EQ_PARAMS];
    int64_t count[EQ_PARAMS];
} eq_run;

/* Returns the description of a run of a model on one rank, with 8 rows per step. */
eq_run eq_serial(eq_model model, const char *device, ax_dtype compute, int steps);
/* Runs `r` on rank threads and returns it with its results. The test fails if the run fails. Free the result
 * with eq_free. */
eq_run eq_do(eq_run r);
/* Runs one rank of `world`. `run` points to an eq_run; rank 0 stores the results in it. */
ax_status eq_on_rank(ax_comm *world, void *run);
void eq_free(eq_run *r);
/* Runs `r` on one rank and stores the choices of its experts in *out, which the caller destroys; NULL if the
 * model has no experts. In other precisions and with sums in other orders a token may choose other experts if
 * their probabilities are almost equal, and then the runs differ by more than roundings. So runs that are
 * compared follow the choices of one of them. */
eq_run eq_do_storing(eq_run r, choices **out);
/* Returns `r`, which follows these choices; they may be NULL. */
eq_run eq_following(eq_run r, choices *c);

/* Relative differences of the losses of all steps and of the evaluation: the largest, and the mean. */
double eq_worst_loss_gap(const eq_run *a, const eq_run *serial);
double eq_mean_loss_gap(const eq_run *a, const eq_run *serial);

/* Fails unless losses, norm and gradients of `a` are within the bounds, and the loads of experts, which
 * and the shares of dropped choices, which follow from the choices, are equal. The difference of a gradient's
 * element is relative to the root mean square of its tensor, or to 1e-3 of that of all gradients if this is
 * larger. */
void eq_assert_equal(const eq_run *a, const eq_run *serial, double loss_bound, double grad_bound);
ax_status eq_check_equal(const eq_run *a, const eq_run *serial, double loss_bound, double grad_bound);
/* Returns the largest relative error of the gradient of a matrix: the norm of its difference from that of
 * `wide`, divided by the norm of the latter. */
double eq_matrix_gap(const eq_run *a, const eq_run *wide);
/* How far bf16 or fp16 is from fp32 on one rank, over four runs with different initial weights: the mean
 * difference of the losses; for each tensor the largest difference of its gradient (root mean square); and
 * the mean over all gradients. */
typedef struct eq_gap {
    double loss, grad[EQ_PARAMS], all;
} eq_gap;
eq_gap eq_rounding_gap(eq_model model, const char *device, ax_dtype compute, bool narrow, int steps);
/* Fails if `a`, computed in 16 bits, is too far from `exact`, computed in fp32: gradients by more than twice
 * the gap, losses by more than single runs are. Each tensor's bound is at least that of the mean over all
 * tensors, because a single tensor's gap may be small by chance. */
void eq_assert_as_near(const eq_run *a, const eq_run *exact, const eq_gap *gap);

/* Run the model on every `stride`th grid of eight ranks, from number `first`, in fp32 and in 16 bits: the
 * results must be those of one rank, within the bounds explained in equality.c. With `narrow`, gradients of
 * matrices are in 16 bits too. */
void eq_fp32_on_grids(eq_model model, int steps, int first, int stride);
void eq_16_bits_on_grids(eq_model model, ax_dtype compute, bool narrow, int steps, int first, int stride);

/* Stores all factorizations of `ranks` as x·y·z·data, 20 for 8, and returns their number. */
int eq_factorizations(int ranks, ax_grid_size out[64]);

#endif
