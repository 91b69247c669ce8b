/* Whether the memory of each machine is enough for all of its ranks together. */
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

/* Checks, before anything is allocated, that all ranks have enough memory. If not, AX_ERR_MEMORY on all
 * ranks: "WHAT needs 3 GiB but only 2 GiB are available here: ADVICE". Collective along the context's world.
 */
AX_MUST_CHECK ax_status ax_memory_admit(ax_ctx *ctx, const ax_memory *memory, const char *what,
                                        const char *advice);

#endif
