/* What the machine of this rank can hold, beside what its ranks need. */
#ifndef AXONN_ENGINE_MACHINE_H
#define AXONN_ENGINE_MACHINE_H

#include "axonn/engine.h"

/* Ranks that share a machine, or a GPU of it, share its memory. */
typedef struct ax_machine {
    int ranks;
    double need, available; /* of its ranks together; what the one that sees least sees. < 0: unknown */
    char of[64];            /* "" or " (2 ranks of node7)" */
} ax_machine;

/* The machine on which this rank, its number `neighbour`, wants `need` bytes of backend `device`. Collective
 * along world. */
AX_MUST_CHECK ax_status ax_machine_find(ax_comm *world, const char *device, int neighbour, size_t need,
                                        ax_machine *out);
bool ax_machine_fits(const ax_machine *machine);

/* AX_ERR_MEMORY on all ranks if what any of them needs is not there: "WHAT needs 3 GiB and 2 GiB can be taken
 * here: ADVICE". Asked before any of it is allocated. Collective along the context's world. */
AX_MUST_CHECK ax_status ax_memory_admit(ax_ctx *ctx, const ax_memory *memory, const char *what,
                                        const char *advice);

#endif
