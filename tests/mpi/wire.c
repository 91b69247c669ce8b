/* wire BYTES: collectives of BYTES bytes over all ranks. Each rank prints its host name and its count of
 * bytes sent to other nodes (ax_comm_traffic.wire). */
#include "mpi/world.h"

#include <string.h>
#include <unistd.h>

static ax_status run(ax_comm *world, char **argv)
{
    size_t bytes = strtoull(argv[1], NULL, 10);
    int g = ax_comm_size(world);
    int64_t n = (int64_t)(bytes / sizeof(float));
    float *x, *y;
    ax_work *work;
    AX_TRY(ax_comm_alloc(world, bytes, (void **)&x));
    AX_TRY(ax_comm_alloc(world, bytes, (void **)&y));
    AX_TRY(ax_all_reduce(world, NULL, x, n, AX_F32, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    AX_TRY(ax_reduce_scatter(world, NULL, x, y, n / g, AX_F32, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    AX_TRY(ax_all_gather(world, NULL, x, y, n / g, AX_F32, &work));
    AX_TRY(ax_wait(&work));
    AX_TRY(ax_all_to_all(world, NULL, x, y, n / g, AX_F32, &work));
    AX_TRY(ax_wait(&work));
    AX_TRY(ax_broadcast(world, NULL, x, n, AX_F32, 0, &work));
    AX_TRY(ax_wait(&work));
    ax_comm_free(world, x, bytes);
    ax_comm_free(world, y, bytes);
    char host[64];
    gethostname(host, sizeof host);
    printf("wire %s %lld\n", host, (long long)ax_comm_traffic_get(world).wire);
    return AX_OK;
}

int main(int argc, char **argv) { return in_world(argc, argv, run); }
