/* Training steps of a tiny GPT-2 on any grid, with a memory plan, and their results: for tests on rank
 * threads and for tests that a launcher starts. */
#ifndef AXONN_TESTS_STEPS_H
#define AXONN_TESTS_STEPS_H

#include "axonn/engine.h"

enum { GLOBAL = 24, STEPS = 3, MAX_WEIGHTS = 40000 };

typedef struct shape {
    int64_t hidden, heads, ffn, vocab, seq_len;
} shape;
/* odd: no axis divides a size. even: all sizes are divisible, so no message is padded. small: matrices of 3
 * and 5 rows. */
extern const shape odd, even, small;

typedef struct setup {
    const shape *shape;
    ax_grid_size grid;
    ax_parallel parallel;
    int64_t micro_batch, recompute;
    ax_dtype compute;
    bool lazy;
    /* results, stored by rank 0 */
    double loss[STEPS], norm[STEPS], eval, *weights;
    int64_t n_weights;
    int outstanding;
    int64_t z_bytes, data_bytes; /* bytes of the last step on the communicator along z alone, and on that
                                    along data alone */
    bool traced;
    int gathers, alone; /* gathers: number of all-gathers in the last step; alone: number of those during
                           which no kernel ran */
} setup;

/* Stores the results of every rank in its *s; the caller frees s->weights. Collective along world. */
AX_MUST_CHECK ax_status steps_run(ax_comm *world, setup *s);

/* "x=1 y=1 z=2 data=2 zero 1, micro-batches of 3, recompute 1, cache" */
const char *steps_describe(const setup *s, char text[160]);

/* Returns AX_ERR_INTERNAL unless all numbers equal those of the serial run up to the order of sums. In
 * float64 three steps of AdamW amplify roundings of 1e-16 by the ratio of sqrt(v) to the gradient's smallest
 * elements, at most 1e5 here. */
AX_MUST_CHECK ax_status steps_check(const setup *s, const setup *serial);

#endif
