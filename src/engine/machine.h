/* Checks whether the memory of each machine, or of each GPU, is enough for all ranks that share it. */
#ifndef AXONN_ENGINE_MACHINE_H
#define AXONN_ENGINE_MACHINE_H

#include "axonn/engine.h"

/* A memory that several ranks share: that of a machine, or of one of its GPUs. */
typedef struct ax_machine {
    int ranks;        /* number of ranks that share this memory */
    double need;      /* bytes that these ranks need together */
    double available; /* bytes available, the smallest number that any of these ranks reports; < 0: unknown */
    char of[64]; /* text for messages that says which ranks share the memory, such as " (2 ranks on node7)";
                    "" if the world has one rank */
} ax_machine;

/* Sets *out to a description of the memory that this rank shares with other ranks, and of the bytes that all
 * these ranks need together. `need` is the number of bytes that this rank needs on backend `device`,
 * `local_rank` its local rank. Collective along `world`. */
AX_MUST_CHECK ax_status ax_machine_find(ax_comm *world, const char *device, int local_rank, size_t need,
                                        ax_machine *out);
bool ax_machine_fits(const ax_machine *machine);

/* Sets *bytes to the bytes of pinned host memory that this rank reserves for messages in a run on backend
 * `device`; 0 if the host can access the device's memory. `dry`: the grid of a dry run, whose communicators
 * have counted these bytes (ax_comm_reserve_messages). Not collective. */
AX_MUST_CHECK ax_status ax_memory_find_pinned(const ax_grid *dry, const char *device, size_t *bytes);

/* Checks, before anything is allocated, that all ranks have enough memory. Otherwise returns AX_ERR_MEMORY on
 * all ranks, with a message made of the texts `what` and `advice`: "WHAT needs 3 GiB but only 2 GiB are
 * available here: ADVICE". Collective along the world. */
AX_MUST_CHECK ax_status ax_memory_admit(ax_ctx *ctx, const ax_memory *memory, const char *what,
                                        const char *advice);

#endif
