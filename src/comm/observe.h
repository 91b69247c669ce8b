/* Collectives and messages on the dry device, which has no memory: nothing is moved, and the device's
 * observer (a callback) is told the operands. */
#ifndef AXONN_COMM_OBSERVE_H
#define AXONN_COMM_OBSERVE_H

#include "axonn/comm.h"

/* Tells the observer of `dev` the operands of an operation on comm twice: here, and in ax_wait on *work. At
 * most 2 operands (n). The work handle belongs to comm. */
AX_MUST_CHECK ax_status ax_comm_observe(ax_comm *comm, ax_device *dev, const ax_operand *operand, int n,
                                        ax_work **work);
/* Frees all handles that ax_comm_observe has made on comm, also those for which ax_wait has not been called
 * because this rank has failed. */
void ax_comm_free_observed(ax_comm *comm);

#endif
