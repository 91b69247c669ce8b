/* clock: the time of a planned run, on a device that computes nothing (dev.h: dry).
 *
 * A clock listens to a device. Kernels and copies take the seconds that they are priced at, one after the
 * other, as on a stream. A collective or message occupies what carries it (the memory of a node, a link
 * between nodes), after all that this carrier has taken before; ax_wait advances the clock to its end. So
 * what runs between start and wait hides it, and transfers that share a carrier delay one another. The other
 * ranks do not exist: they are taken to start at the same time. */
#ifndef AXONN_CLOCK_H
#define AXONN_CLOCK_H

#include "axonn/dev.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A part of a transfer: it occupies one of the carriers for `seconds`, after the parts before it, or none of
 * them (AX_NO_CARRIER: it only takes time, as the latency of a link), or, while the others go on, the device
 * (AX_ON_DEVICE: kernels wait, as where the cores that compute also move the data).
 */
enum { AX_CARRIERS = 8, AX_LEGS = 4, AX_NO_CARRIER = -1, AX_ON_DEVICE = -2 };
typedef struct ax_leg {
    int carrier; /* 0 … AX_CARRIERS-1, as the owner of the prices numbers them; or one of those below 0 */
    double seconds;
} ax_leg;

/* What things cost. If a function fails, or gives a time that is negative or not finite (AX_ERR_USAGE), the
 * clock keeps the error for ax_clock_status, and takes no time. */
typedef struct ax_prices {
    /* Sets *seconds to the time of a kernel. `args`: those of ax_launch. */
    ax_status (*kernel)(void *user, ax_kernel kernel, const void *args, double *seconds);
    /* Sets leg[0 … *legs - 1] to the parts of a copy, collective or message. *legs is 0
     * before the call: the transfer takes no time. */
    ax_status (*transfer)(void *user, const ax_device_event *event, ax_leg leg[AX_LEGS], int *legs);
    void *user;
} ax_prices;

typedef struct ax_clock ax_clock;

/* Creates a clock at time 0, which the device has until ax_clock_destroy: ax_device_now is its time. It keeps
 * a copy of *prices. The caller owns *out, and destroys it before the device is closed. A device has at most
 * one clock. */
AX_MUST_CHECK ax_status ax_clock_create(ax_device *dev, const ax_prices *prices, ax_clock **out);
void ax_clock_destroy(ax_clock **clock);
/* Returns AX_OK, or the first error of the prices. */
AX_MUST_CHECK ax_status ax_clock_status(const ax_clock *clock);
/* Return the seconds of all kernels so far, and the seconds for which a carrier was occupied. */
double ax_clock_computed(const ax_clock *clock);
double ax_clock_carried(const ax_clock *clock, int carrier);

#ifdef __cplusplus
}
#endif
#endif
