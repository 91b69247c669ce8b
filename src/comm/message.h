/* What collectives (comm.c) and messages (message.c) have in common, and the carriers of message.c: pinned
 * host buffers for messages of devices whose memory the host cannot access directly. The device allocates
 * them, so they are freed before the device is closed. */
#ifndef AXONN_COMM_MESSAGE_H
#define AXONN_COMM_MESSAGE_H

#include "axonn/comm.h"

/* Fills in the handle of an operation that has been started (`work`; NULL: it is complete), and tells the
 * listeners of `dev` (NULL: host memory) of the event, whose member `ends` this sets. */
void ax_comm_started(const ax_device *dev, ax_device_event *event, ax_work *work);

/* Adds the seconds since `begin` to the exposed time of `comm`, and ends an activity of `dev` (NULL: host
 * memory): in this time the caller was blocked and could not compute. Does nothing if `comm` has one rank, or
 * is NULL (a work handle that combines other handles). */
void ax_comm_expose(ax_comm *comm, const ax_device *dev, const char *activity, const char *name,
                    double begin);

/* Frees all carriers of `comm`; aborts the world first if a message is still in flight and the world has not
 * failed. */
void ax_comm_free_carriers(ax_comm *comm);

#endif
