/* Selects the reduction functions for this processor's instruction set. */
#include "comm/reduce.h"

static const ax_reduce_table *table(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        return &ax_reduce_avx512;
    if (__builtin_cpu_supports("avx2"))
        return &ax_reduce_avx2;
#endif
    return &ax_reduce_generic;
}

static int type_of(ax_dtype dtype)
{
    switch (dtype) {
    case AX_F64:
        return AX_REDUCE_F64;
    case AX_BF16:
        return AX_REDUCE_BF16;
    case AX_F16:
        return AX_REDUCE_F16;
    case AX_I32:
        return AX_REDUCE_I32;
    case AX_I64:
        return AX_REDUCE_I64;
    default:
        AX_ASSERT(dtype == AX_F32); /* the public collectives reject other dtypes */
        return AX_REDUCE_F32;
    }
}

ax_reduce_fn *ax_reduce_for(ax_dtype dtype, ax_reduce_op op)
{
    return (*table())[type_of(dtype)][op == AX_MAX];
}
