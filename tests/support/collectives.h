/* Tests that every backend of comm must pass: rank functions for worlds of any size and kind. */
#ifndef AXONN_TESTS_COLLECTIVES_H
#define AXONN_TESTS_COLLECTIVES_H

#include "axonn/comm.h"

ax_rank_fn check_collectives;       /* every collective, dtype and reduction, at 0 … 1111 elements */
ax_rank_fn check_large_collectives; /* the same with buffers of up to millions of bytes */
ax_rank_fn check_rank_order;        /* sums equal additions in rank order, bit for bit */
ax_rank_fn check_splits;            /* splits of splits, some without ranks, with ranks in any order */
ax_rank_fn check_groups;            /* groups that their ranks create at different times */
ax_rank_fn check_overlap;           /* many operations in flight */
ax_rank_fn check_random; /* random operations on the communicators of a grid, with waits at random times */

#endif
