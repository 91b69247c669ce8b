/* Descriptions of operations, for comparison between ranks and for error messages. Read mpi.h first. */
#include "comm/mpi.h"

#include <stdio.h>

ax_mpi_call ax_mpi_call_of(const ax_mpi_op *op)
{
    return (ax_mpi_call){.kind = op->kind,
                         .coll = op->args.coll,
                         .dtype = op->args.dtype,
                         .op = op->args.op,
                         .root = op->args.root,
                         .size = op->c->comm.size,
                         .comm = op->c->id,
                         .count = op->args.count,
                         .seq = op->seq};
}

void ax_mpi_call_describe(const ax_mpi_call *call, char *out, size_t size)
{
    static const char *const kinds[] = {
        [AX_MPI_SPLIT] = "split", [AX_MPI_GROUP] = "group creation", [AX_MPI_DESTROY] = "destroy"};
    ax_coll_args args = {.coll = (ax_coll)call->coll,
                         .count = call->count,
                         .dtype = (ax_dtype)call->dtype,
                         .op = (ax_reduce_op)call->op,
                         .root = call->root};
    if (call->kind == AX_MPI_COLLECTIVE)
        ax_coll_describe(&args, out, size);
    else
        snprintf(out, size, "%s", kinds[call->kind]);
}
