/* Checks whether the memory of each device, each GPU and each machine is enough for all ranks that share
 * it. */
#ifndef AXONN_ENGINE_FIT_H
#define AXONN_ENGINE_FIT_H

#include "axonn/engine.h"

/* The memories that must be enough for a rank: what runtime.device_memory allows its device to hold; the
 * memory of its GPU, which it may share with other ranks; the memory of its machine. A device that uses host
 * memory needs the last. */
typedef enum ax_fit_part { AX_FIT_LIMIT, AX_FIT_GPU, AX_FIT_HOST, AX_FIT_PARTS } ax_fit_part;

typedef struct ax_fit {
    struct {
        int ranks;        /* number of ranks that share this memory, this rank included */
        double need;      /* bytes that these ranks need together */
        double available; /* bytes available, the smallest number that any of these ranks reports; < 0:
                             unknown, or no limit */
    } memory[AX_FIT_PARTS];
    ax_fit_part tightest; /* the memory of which the largest share is needed */
    bool has_gpu;         /* the device's memory is not host memory */
    int world;            /* number of all ranks */
} ax_fit;

/* Sets *out to a description of the memories that this rank needs, alone or with other ranks. `need` is what
 * this rank needs on backend `device`, `local_rank` its local rank. Collective along `world`. */
AX_MUST_CHECK ax_status ax_fit_find(ax_comm *world, const char *device, int local_rank, const ax_memory *need,
                                    ax_fit *out);
bool ax_fit_holds(const ax_fit *fit);
/* Returns the bytes that are needed of the tightest memory. */
double ax_fit_need(const ax_fit *fit);
/* Fails with AX_ERR_MEMORY unless all memories are enough. The message is made of the texts
 * `what` and `advice`: "WHAT 3 GiB but only 2 GiB are available here: ADVICE". Not collective. */
AX_MUST_CHECK ax_status ax_fit_check(const ax_fit *fit, const char *what, const char *advice);

/* Returns the bytes of pinned host memory that this rank reserves for messages in a run on a device whose
 * memory the host cannot access. `dry`: the grid of a dry run, whose communicators have counted these bytes
 * (ax_comm_reserve_messages). */
size_t ax_memory_pinned(const ax_grid *dry);

/* Checks, before anything is allocated, that all ranks have enough memory for a plan with communicators along
 * `used`, whose buffers may be there already. Otherwise returns AX_ERR_MEMORY on all ranks, with the message
 * of ax_fit_check. Collective along the world. */
AX_MUST_CHECK ax_status ax_memory_admit(ax_ctx *ctx, const ax_memory *memory, const ax_grid_use *used,
                                        const char *what, const char *advice);

#endif
