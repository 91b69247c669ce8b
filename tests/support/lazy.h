/* A communicator that does nothing before it is waited for. */
#ifndef AXONN_TESTS_LAZY_H
#define AXONN_TESTS_LAZY_H

#include "axonn/comm.h"

/* Wraps `inner`: an operation runs when it, or a later one of this rank, is waited for. Until then what it
 * will write is NaN, and a write to that, or to what it will send, is an error when it is awaited: so a
 * missing ax_wait is seen. `outstanding` (may be NULL) becomes the most operations that were under way at a
 * time. Host memory only. The caller owns *out, and destroys it before inner. */
AX_MUST_CHECK ax_status lazy_create(ax_comm *inner, int *outstanding, ax_comm **out);

#endif
