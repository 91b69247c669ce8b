/* mpi: a program that initialises and finalizes MPI itself, and makes MPI calls while it has an axonn world:
 * on its own thread, and on that of the world (ax_comm_call_mpi). */
#include "support/collectives.h"

#include <mpi.h>
#include <stdio.h>

/* Sums `*user` over the ranks of a communicator. */
static ax_status sum_ranks(void *user, const void *mpi_comm)
{
    const MPI_Comm *comm = mpi_comm;
    MPI_Allreduce(MPI_IN_PLACE, user, 1, MPI_INT, MPI_SUM, *comm);
    return AX_OK;
}

/* Checks that ax_comm_call_mpi passes the MPI_Comm of the communicator's ranks, and that a communicator
 * without MPI refuses the call. */
static ax_status check_call(ax_comm *world)
{
    ax_comm *alone, *half;
    int rank = ax_comm_rank(world), mine = rank, sum = rank + 1;
    AX_TRY(ax_comm_self_create(&alone));
    ax_status status = ax_comm_call_mpi(alone, sum_ranks, &mine);
    ax_comm_destroy(&alone);
    AX_CHECK(status == AX_ERR_USAGE && mine == rank, AX_ERR_INTERNAL, "one rank alone: %d, not a refusal",
             status);
    AX_TRY(ax_comm_call_mpi(world, sum_ranks, &sum));
    int n = ax_comm_size(world);
    AX_CHECK(sum == n * (n + 1) / 2, AX_ERR_INTERNAL, "the ranks sum to %d", sum);
    AX_TRY(ax_comm_split(world, rank % 2, 0, &half));
    sum = 1;
    status = ax_comm_call_mpi(half, sum_ranks, &sum);
    n = ax_comm_size(half);
    ax_comm_destroy(&half);
    AX_TRY(status);
    AX_CHECK(sum == n, AX_ERR_INTERNAL, "a group of %d ranks sums to %d", n, sum);
    return AX_OK;
}

static ax_status run(void)
{
    ax_comm *world;
    AX_TRY(ax_comm_world_create(&world));
    int rank, sum;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    AX_CHECK(rank == ax_comm_rank(world), AX_ERR_INTERNAL, "rank %d is %d", rank, ax_comm_rank(world));
    ax_status status = check_overlap(world, NULL);
    if (status == AX_OK)
        status = check_call(world);
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
