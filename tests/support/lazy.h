/* A communicator that starts an operation only when it is waited for. */
#ifndef AXONN_TESTS_LAZY_H
#define AXONN_TESTS_LAZY_H

#include "axonn/comm.h"

/* Wraps `inner`. An operation runs when it, or a later one of this rank, is waited for. Until then its
 * receive buffer is NaN. The wait fails if the receive buffer or the send buffer was written before it. So a
 * missing ax_wait is found. `outstanding` (may be NULL) receives the largest number of operations in flight.
 * Host memory only. The caller owns *out, and destroys it before `inner`. */
AX_MUST_CHECK ax_status lazy_create(ax_comm *inner, int *outstanding, ax_comm **out);

#endif
