/* Names, descriptions and operands of collectives. */
#include "axonn/dev.h"

#include <stdio.h>

const char *ax_coll_name(ax_coll coll)
{
    static const char *const names[] = {"all_reduce", "all_gather", "reduce_scatter",
                                        "all_to_all", "broadcast",  "barrier"};
    return (unsigned)coll < AX_COUNT(names) ? names[coll] : "unknown collective";
}

void ax_coll_operands(const ax_coll_args *args, int size, ax_operand out[2])
{
    bool in_parts = args->coll == AX_REDUCE_SCATTER || args->coll == AX_ALL_TO_ALL,
         out_parts = args->coll == AX_ALL_GATHER || args->coll == AX_ALL_TO_ALL;
    int64_t sent = args->count * (in_parts ? size : 1), received = args->count * (out_parts ? size : 1);
    out[0] = (ax_operand){args->send, sent, sent, args->dtype, AX_READ};
    out[1] = (ax_operand){args->recv, received, received, args->dtype, AX_WRITE};
}

void ax_coll_describe(const ax_coll_args *args, char *out, size_t size)
{
    const char *name = ax_coll_name(args->coll);
    bool reduces = args->coll == AX_ALL_REDUCE || args->coll == AX_REDUCE_SCATTER;
    char root[24] = "";
    if (args->coll == AX_BROADCAST)
        snprintf(root, sizeof root, " from %d", args->root);
    if (args->coll == AX_BARRIER)
        snprintf(out, size, "%s", name);
    else
        snprintf(out, size, "%s%s of %lld %s%s", name, reduces && args->op == AX_MAX ? " (max)" : "",
                 (long long)args->count, ax_dtype_name(args->dtype), root);
}
