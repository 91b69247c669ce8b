/* Times the collectives and the messages of the MPI library itself. */
#include "bench/bench.h"

#ifdef AXONN_HAVE_MPI
#include <mpi.h>

typedef struct timed_call {
    const ax_coll_args *args;
    double seconds; /* the result */
} timed_call;

static ax_status check(int code, const char *call)
{
    char text[MPI_MAX_ERROR_STRING] = "unknown error";
    int length;
    if (code == MPI_SUCCESS)
        return AX_OK;
    MPI_Error_string(code, text, &length);
    return ax_fail(AX_ERR_COMM, "%s failed: %s", call, text);
}

static ax_status send_or_receive(MPI_Comm comm, const ax_coll_args *a, MPI_Datatype type)
{
    int rank, n = (int)a->count;
    AX_TRY(check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank"));
    if (rank == 0)
        return check(MPI_Send(a->send, n, type, 1, 0, comm), "MPI_Send");
    return rank == 1 ? check(MPI_Recv(a->recv, n, type, 0, 0, comm, MPI_STATUS_IGNORE), "MPI_Recv") : AX_OK;
}

static ax_status call_library(MPI_Comm comm, const ax_coll_args *a)
{
    int n = (int)a->count;
    MPI_Datatype type = a->dtype == AX_F64 ? MPI_DOUBLE : MPI_FLOAT;
    MPI_Op op = a->op == AX_MAX ? MPI_MAX : MPI_SUM;
    if ((int)a->coll == BENCH_MESSAGE)
        return send_or_receive(comm, a, type);
    switch (a->coll) {
    case AX_ALL_REDUCE:
        return check(MPI_Allreduce(MPI_IN_PLACE, a->recv, n, type, op, comm), "MPI_Allreduce");
    case AX_ALL_GATHER:
        return check(MPI_Allgather(a->send, n, type, a->recv, n, type, comm), "MPI_Allgather");
    case AX_REDUCE_SCATTER:
        return check(MPI_Reduce_scatter_block(a->send, a->recv, n, type, op, comm),
                     "MPI_Reduce_scatter_block");
    case AX_ALL_TO_ALL:
        return check(MPI_Alltoall(a->send, n, type, a->recv, n, type, comm), "MPI_Alltoall");
    case AX_BROADCAST:
        return check(MPI_Bcast(a->recv, n, type, a->root, comm), "MPI_Bcast");
    case AX_BARRIER:
        break;
    }
    return check(MPI_Barrier(comm), "MPI_Barrier");
}

/* Times one call of the MPI library, after a barrier. Runs on the thread that makes all MPI calls
 * (ax_comm_call_mpi). */
static ax_status time_call(void *user, const void *mpi_comm)
{
    timed_call *timed = user;
    const MPI_Comm *comm = mpi_comm;
    AX_TRY(check(MPI_Barrier(*comm), "MPI_Barrier"));
    double begin = ax_now();
    AX_TRY(call_library(*comm, timed->args));
    timed->seconds = ax_now() - begin;
    return AX_OK;
}

ax_status bench_time_mpi(ax_comm *comm, const ax_coll_args *args, double *seconds)
{
    AX_CHECK((args->dtype == AX_F32 || args->dtype == AX_F64) && args->count <= INT32_MAX, AX_ERR_USAGE,
             "the MPI library's collectives can be timed only with f32 or f64 and fewer than 2^31 elements");
    timed_call timed = {.args = args};
    AX_TRY(ax_comm_call_mpi(comm, time_call, &timed));
    *seconds = timed.seconds;
    return AX_OK;
}

#else

ax_status bench_time_mpi(ax_comm *comm, const ax_coll_args *args, double *seconds)
{
    (void)comm, (void)args, (void)seconds;
    return ax_fail(AX_ERR_USAGE, "collectives cannot be compared with those of MPI, because this axonn was "
                                 "built without MPI: install an MPI library and build it again");
}

#endif
