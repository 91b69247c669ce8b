/* The clock of a planned run: a listener that adds up what prices say (axonn/clock.h). */
#include "axonn/clock.h"

#include <math.h>
#include <stdlib.h>

struct ax_clock {
    ax_device *dev;
    ax_prices prices;
    ax_listener listener;
    double now, computed;
    double free_at[AX_CARRIERS], carried[AX_CARRIERS]; /* when a carrier has done all that it has taken */
    ax_status status;
};

/* Keeps the first error of a price. Returns true if there is none: the price is a time. */
static bool keep(ax_clock *c, ax_status status, const char *name, double seconds)
{
    if (status == AX_OK && !(isfinite(seconds) && seconds >= 0))
        status = ax_fail(AX_ERR_USAGE,
                         "the price of %s is %g seconds: it must be finite and not negative; look for rates "
                         "that cannot be in the description of the machine",
                         name, seconds);
    c->status = c->status == AX_OK ? status : c->status;
    return status == AX_OK;
}

/* Occupies the carriers of a transfer, from now on. Returns its end. Times of carriers are those of
 * transfers.
 */
static double carry(ax_clock *c, const ax_device_event *e)
{
    ax_leg leg[AX_LEGS];
    int legs = 0;
    double at = c->now; /* what occupies the device takes it meanwhile */
    const ax_status status = c->prices.transfer(c->prices.user, e, leg, &legs);
    for (int i = 0; keep(c, status, e->name, i < legs ? leg[i].seconds : 0) && i < legs; i++) {
        const int carrier = leg[i].carrier;
        if (carrier < 0) {
            *(carrier == AX_ON_DEVICE ? &c->now : &at) += leg[i].seconds;
            continue;
        }
        AX_ASSERT(carrier < AX_CARRIERS);
        at = (at > c->free_at[carrier] ? at : c->free_at[carrier]) + leg[i].seconds;
        c->free_at[carrier] = at;
        c->carried[carrier] += leg[i].seconds;
    }
    return at;
}

static void wait_until(ax_clock *c, double end) { c->now = end > c->now ? end : c->now; }

static void compute(ax_clock *c, const ax_device_event *e)
{
    double seconds = 0;
    const ax_status status = c->prices.kernel(c->prices.user, e->kernel, e->args, &seconds);
    if (!keep(c, status, e->name, seconds))
        return;
    c->computed += seconds;
    c->now += seconds;
}

static void hear(void *user, const ax_device_event *e)
{
    ax_clock *c = user;
    if (e->kind == AX_ON_KERNEL)
        compute(c, e);
    else if (e->kind == AX_ON_WAIT)
        wait_until(c, *e->ends);
    else if (e->ends)
        *e->ends = carry(c, e);
    else /* complete on return */
        wait_until(c, carry(c, e));
}

ax_status ax_clock_create(ax_device *dev, const ax_prices *prices, ax_clock **out)
{
    AX_TRY(ax_calloc(1, sizeof **out, out));
    ax_clock *c = *out;
    AX_ASSERT(!dev->now);
    c->dev = dev;
    c->prices = *prices;
    c->listener = (ax_listener){AX_ON_KERNEL | AX_ON_COPY | AX_ON_COLLECTIVE | AX_ON_MESSAGE | AX_ON_WAIT,
                                hear, c, NULL};
    dev->now = &c->now;
    ax_device_listen(dev, &c->listener);
    return AX_OK;
}

void ax_clock_destroy(ax_clock **clock)
{
    if (*clock) {
        ax_device_unlisten((*clock)->dev, &(*clock)->listener);
        (*clock)->dev->now = NULL;
    }
    free(*clock);
    *clock = NULL;
}

ax_status ax_clock_status(const ax_clock *clock) { return clock->status; }
double ax_clock_computed(const ax_clock *clock) { return clock->computed; }
double ax_clock_carried(const ax_clock *clock, int carrier) { return clock->carried[carrier]; }
