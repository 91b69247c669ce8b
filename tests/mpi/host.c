/* mpi: a program that initialises and finalizes MPI itself, and makes MPI calls while it has an axonn world.
 */
#include "support/collectives.h"

#include <mpi.h>
#include <stdio.h>

static ax_status run(void)
{
    ax_comm *world;
    AX_TRY(ax_comm_world_create(&world));
    int rank, sum;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    AX_CHECK(rank == ax_comm_rank(world), AX_ERR_INTERNAL, "rank %d is %d", rank, ax_comm_rank(world));
    ax_status status = check_overlap(world, NULL);
    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    if (status == AX_OK && sum != ax_comm_size(world) * (ax_comm_size(world) - 1) / 2)
        status = ax_fail(AX_ERR_INTERNAL, "the ranks sum to %d", sum);
    MPI_Errhandler handler;
    MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
    if (status == AX_OK && handler != MPI_ERRORS_ARE_FATAL)
        status = ax_fail(AX_ERR_INTERNAL, "the program's errors are handled in another way than it chose");
    MPI_Errhandler_free(&handler);
    ax_comm_destroy(&world);
    return status;
}

int main(void)
{
    int level, sum = 1, one = 1;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    ax_status status = run();
    if (level < MPI_THREAD_MULTIPLE && status == AX_ERR_USAGE)
        status = AX_OK; /* axonn requires MPI_THREAD_MULTIPLE here and must refuse */
    if (status != AX_OK)
        fprintf(stderr, "%s\n", ax_error_message());
    else
        MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD); /* MPI still works */
    MPI_Finalize();
    return status == AX_OK && (sum > 1 || level < MPI_THREAD_MULTIPLE) ? 0 : 1;
}
