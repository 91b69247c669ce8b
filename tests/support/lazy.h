/* A communicator that starts an operation only when it is waited for. */
#ifndef AXONN_TESTS_LAZY_H
#define AXONN_TESTS_LAZY_H

#include "axonn/comm.h"

/* Wraps `inner`. An operation runs when it, or a later one of this rank, is waited for. Until then its
 * receive buffer is NaN. The wait fails if the receive buffer or the send buffer was written before the wait.
 * So a missing ax_wait is found. `outstanding` (may be NULL) receives the largest number of operations in
 * flight. Host memory only. The caller owns *out, and destroys it before `inner`. */
AX_MUST_CHECK ax_status lazy_create(ax_comm *inner, int *outstanding, ax_comm **out);

/* Does what lazy_create does, and makes messages late, in another way for each `seed`. Every second message
 * that a rank receives seems not to have arrived for the first 0 to LAZY_POLLS polls (ax_work_done) after its
 * arrival, until the rank waits for it. Before a rank sends, and before it waits for a message, it pauses.
 * For each rank, the seed chooses the longest pause: 0, 50, 200 or 800 microseconds. So some ranks are ahead
 * of others. */
enum { LAZY_POLLS = 5 };
AX_MUST_CHECK ax_status lazy_create_late(ax_comm *inner, uint64_t seed, ax_comm **out);

#endif
