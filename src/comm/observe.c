/* See observe.h. */
#include "comm/observe.h"

#include <stdlib.h>
#include <string.h>

/* A work handle, which is used for one operation (collective or message) at a time. */
typedef struct ax_comm_observed {
    ax_work work;
    struct ax_comm_observed *next;
    bool busy; /* ax_wait has not been called for the handle's operation */
    ax_device *dev;
    ax_operand operand[2];
    int n;
} observed;

static void observe(const observed *o)
{
    if (o->dev->observe)
        o->dev->observe(o->dev->observe_user, o->operand, o->n);
}

static ax_status observe_end(ax_work *work)
{
    observed *o = (observed *)work;
    observe(o);
    o->busy = false;
    return AX_OK;
}

static bool is_done(const ax_work *work)
{
    (void)work;
    return true;
}

/* Finds a handle that is free, or adds one to the communicator's list. */
static ax_status find_handle(ax_comm *comm, observed **out)
{
    for (*out = comm->observed; *out; *out = (*out)->next)
        if (!(*out)->busy)
            return AX_OK;
    AX_TRY(ax_calloc(1, sizeof **out, out));
    (*out)->next = comm->observed;
    comm->observed = *out;
    return AX_OK;
}

ax_status ax_comm_observe(ax_comm *comm, ax_device *dev, const ax_operand *operand, int n, ax_work **work)
{
    observed *o;
    AX_ASSERT(n <= (int)AX_COUNT(o->operand));
    AX_TRY(find_handle(comm, &o));
    o->work = (ax_work){.wait = observe_end, .done = is_done};
    o->busy = true;
    o->dev = dev;
    o->n = n;
    memcpy(o->operand, operand, (size_t)n * sizeof *operand);
    observe(o);
    *work = &o->work;
    return AX_OK;
}

void ax_comm_free_observed(ax_comm *comm)
{
    for (observed *next; comm->observed; comm->observed = next) {
        next = comm->observed->next;
        free(comm->observed);
    }
}
