/* What every backend of comm must do: rank functions for worlds of any size and kind. */
#ifndef AXONN_TESTS_COLLECTIVES_H
#define AXONN_TESTS_COLLECTIVES_H

#include "axonn/comm.h"

ax_rank_fn check_collectives;       /* every collective, dtype and reduction, at 0 … 1111 elements */
ax_rank_fn check_large_collectives; /* the same up to millions of bytes */
ax_rank_fn check_rank_order;        /* sums have the bits of addition in rank order */
ax_rank_fn check_splits;            /* groups of groups, some empty, in any order of ranks */
ax_rank_fn check_overlap;           /* many operations in flight */
ax_rank_fn check_random; /* any operations on a grid's communicators, in flight and waited for at will */

#endif
