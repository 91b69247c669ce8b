/* For tests that run on several rank threads. cmocka's assertions leave by longjmp, which no rank thread may
 * do: rank functions use EXPECT and return a status, which assert_ranks asserts. */
#ifndef AXONN_TESTS_RANKS_H
#define AXONN_TESTS_RANKS_H

#include "axonn/grid.h"

/* In a function that returns ax_status: fails with the place and text of a condition that does not hold. */
#define EXPECT(cond) AX_CHECK(cond, AX_ERR_INTERNAL, "%s:%d: %s", __FILE__, __LINE__, #cond)

/* Runs fn on `size` rank threads; the test fails, with the first failing rank's message, unless all succeed.
 */
void assert_ranks(int size, ax_rank_fn *fn, const void *arg);

/* The number of ranks of a grid. */
int grid_ranks(ax_grid_size size);

/* Small random numbers for test cases: the next of 0 … n-1 from *state. */
int random_below(uint64_t *state, int n);

#endif
