/* Trains tiny models on pipeline stages, and compares with the same grid with one stage. Every sum over
 * micro-batches runs in one order under every schedule, so untied models have the same bits: losses, norms,
 * gradients, weights. Used by engine/test_pipe.c and by engine/test_long_pipe.c. */
#ifndef AXONN_TESTS_PIPE_RUNS_H
#define AXONN_TESTS_PIPE_RUNS_H

#include "axonn/engine.h"
#include "axonn/pipe.h"

enum { PIPE_STEPS = 3, PIPE_RANKS = 8, PIPE_ORDER = 240, PIPE_TEXT = 240 };

typedef enum pipe_family { PIPE_GPT2, PIPE_LLAMA, PIPE_QWEN3, PIPE_EXPERTS, PIPE_FAMILIES } pipe_family;

enum {
    MESSAGE = AX_PIPE_MESSAGE,
    F1B = AX_PIPE_1F1B,
    GPIPE = AX_PIPE_GPIPE,
    INTERLEAVED = AX_PIPE_INTERLEAVED
};

typedef struct pipe_setup {
    ax_grid_size grid; /* x, y, z, pipe, data */
    int zero, schedule;
    int64_t slack, postpone, micro_batches, recompute;
    int chunks; /* with INTERLEAVED: chunks of a stage; 0: two */
    ax_dtype compute;
    bool tied;
    bool narrow;   /* gradients of matrices are in the compute dtype */
    bool keeps;    /* parallel.keep_results; not if there is one stage in place of several */
    bool lazy;     /* the communicator of lazy_create */
    uint64_t late; /* the communicator of lazy_create_late with this seed; 0: not */
    pipe_family family;
    double capacity;      /* of experts */
    const char *device;   /* NULL: "cpu" */
    const int64_t *cut;   /* NULL: balanced */
    const char *strategy; /* NULL: "axonn" */
    const char *optim;    /* NULL: "adamw" */
    ax_offload offload;
    bool unclipped; /* without a largest gradient norm */
    /* The second step is not finite: `poison` (0: none) is stored among the gradients of the matrices of rank
     * poisoned_rank, at this fraction of all their elements. Needs two micro-batches, a device that the host
     * can access, and one stage. */
    double poison, poison_at;
    int poisoned_rank;
    /* The share of the elements of the blocks' matrices that is kept (pipe_keeps); the other weights are 0.
     * 0: weights are drawn as in a run. pruned: the engine trains the kept elements alone; else a dense
     * engine does, whose summed gradients are multiplied by the mask. */
    double density;
    bool pruned;
    int more;   /* steps after those of the result's losses, of which the last is the last one's */
    bool stops; /* runs only one step, which the last rank asks to give up at its first micro-batch */
} pipe_setup;

typedef struct pipe_result {
    double loss[PIPE_STEPS], norm[PIPE_STEPS], eval;
    double *values;     /* all parameters one after the other: master weights, then moments, then gradients */
    int64_t n, weights; /* weights: how many of the values are master weights */
    /* Set if pipe_setup.late is set. group: for each rank, the number of its group; the ranks of a group must
     * run the same tasks in the same order. order: for each rank, its forwards 'F', backwards 'B' and weight
     * gradients 'W', in the order in which they ran. */
    int group[PIPE_RANKS];
    char order[PIPE_RANKS][PIPE_ORDER];
    size_t pinned[PIPE_RANKS]; /* the pinned memory that each rank plans for messages */
    int64_t begun; /* with pipe_setup.stops: the number of forwards that the first stage has begun */
} pipe_result;

/* Runs three steps and an evaluation on rank threads. With several stages, the second step is first given up
 * half-way, as after a signal. The test fails if the run fails. Free the result with pipe_free. */
void pipe_run(const pipe_setup *s, pipe_result *out);
/* Runs the setup with one stage. */
void pipe_run_one_stage(const pipe_setup *s, pipe_result *out);
void pipe_free(pipe_result *result);

/* Prints a setup. Returns text. */
const char *pipe_describe(const pipe_setup *s, char text[PIPE_TEXT]);

/* Whether an element of a block's matrix is kept. Some matrices keep everything, nothing, or a few rows. */
bool pipe_keeps(const char *name, int64_t row, int64_t col, double density);

/* Whether losses, norms and values are equal in all bits. */
bool pipe_is_same(const pipe_result *got, const pipe_result *one);
/* Whether losses, norms and weights differ by no more than roundings, which three steps amplify. */
bool pipe_is_near(const pipe_setup *s, const pipe_result *got, const pipe_result *one);
/* Fails unless the results are equal in all bits or, if the model is tied, nearly equal. */
void pipe_compare(const pipe_setup *s, const pipe_result *got, const pipe_result *one);

/* Runs a setup and the same grid with one stage, and compares them. */
void pipe_check(const pipe_setup *s);

/* Setups whose tasks are ordered by arrival, on stages of one and of several ranks. The caller sets `slack`.
 */
enum { PIPE_LATE_SETUPS = 11 };
extern const pipe_setup pipe_late_setups[PIPE_LATE_SETUPS];

/* Runs a setup once for each of `seeds` seeds, from `seed` on, which say how late each message arrives.
 * Compares each run with one stage, and the orders of tasks within each group. Returns the number of runs in
 * which a rank ran its tasks in another order than in the first run. */
int pipe_check_late(const pipe_setup *s, uint64_t seed, int seeds);

#endif
