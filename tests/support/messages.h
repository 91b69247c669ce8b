/* Tests of messages that every backend of comm must pass: rank functions for worlds of any size and kind. */
#ifndef AXONN_TESTS_MESSAGES_H
#define AXONN_TESTS_MESSAGES_H

#include "axonn/comm.h"

ax_rank_fn check_messages; /* between all ranks, of all kinds and sizes, posted and awaited in any order */
ax_rank_fn check_message_window; /* several messages of one kind in flight, large and small */
ax_rank_fn check_message_ring;   /* ax_wait_some: a ring in which each rank passes on what it receives */
ax_rank_fn check_late_data;      /* sends whose data come later, as if a device still copied them */
ax_rank_fn check_independent;    /* rank 0 starts a collective and then sends a message, which rank 1 receives
                                    before it starts the collective */

#endif
