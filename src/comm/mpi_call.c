/* Operations in words. Read mpi.h first. */
#include "comm/mpi.h"

#include <stdio.h>
#include <string.h>

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
    static const char *const kinds[] = {"", "split", "destroy"};
    bool reduces = call->coll == AX_ALL_REDUCE || call->coll == AX_REDUCE_SCATTER;
    if (call->kind != AX_MPI_COLLECTIVE || call->coll == AX_BARRIER)
        snprintf(out, size, "%s", call->kind ? kinds[call->kind] : "barrier");
    else
        snprintf(out, size, "%s%s of %lld %s", ax_coll_name(call->coll),
                 reduces && call->op == AX_MAX ? " (max)" : "", (long long)call->count,
                 ax_dtype_name(call->dtype));
    size_t len = strlen(out);
    if (call->kind == AX_MPI_COLLECTIVE && call->coll == AX_BROADCAST)
        snprintf(out + len, size - len, " from %d", call->root);
}
