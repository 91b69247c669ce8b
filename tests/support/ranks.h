/* For tests with several rank threads. An assertion of cmocka leaves by longjmp, which is not allowed in a
 * rank thread: rank functions use EXPECT and return a status, which assert_ranks checks. */
#ifndef AXONN_TESTS_RANKS_H
#define AXONN_TESTS_RANKS_H

#include "axonn/grid.h"

/* In a function that returns ax_status: fails if the condition does not hold, with its place and text. */
#define EXPECT(cond) AX_CHECK(cond, AX_ERR_INTERNAL, "%s:%d: %s", __FILE__, __LINE__, #cond)

/* Runs fn on `size` rank threads. The test fails with the message of the first rank that failed. */
void assert_ranks(int size, ax_rank_fn *fn, const void *arg);

/* Returns the traffic of this rank along a set of axes: zeros if there is no communicator along these axes
 * yet. */
ax_comm_traffic traffic_along(const ax_grid *grid, ax_axisset axes);

/* Returns the bytes of pinned memory that are reserved for messages on all communicators of the grid: none if
 * the device needs none. */
size_t reserved_messages(const ax_ctx *ctx);

/* Returns the number of ranks of a grid. */
int grid_ranks(ax_grid_size size);

/* Returns the next random number from *state, at least 0 and below n. */
int random_below(uint64_t *state, int n);

#endif
