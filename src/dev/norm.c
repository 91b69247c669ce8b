/* Makes the arguments of norm_stats and norm_apply, the two kernels that kernel norm fuses, from the
 * arguments of norm; likewise for norm_grad, which fuses norm_grad_stats and norm_grad_apply. */
#include "axonn/dev.h"

ax_norm_stats_args ax_norm_stats_of(const ax_norm_args *a)
{
    return (ax_norm_stats_args){.rows = a->rows,
                                .cols = a->cols,
                                .a = a->a,
                                .b = a->b,
                                .x = a->x,
                                .sum = a->sum,
                                .m2 = a->m2,
                                .dtype = a->dtype,
                                .kind = a->kind};
}

ax_norm_apply_args ax_norm_apply_of(const ax_norm_args *a)
{
    return (ax_norm_apply_args){.rows = a->rows,
                                .cols = a->cols,
                                .global_cols = a->cols,
                                .eps = a->eps,
                                .x = a->b ? a->x : a->a,
                                .sum = a->sum,
                                .m2 = a->m2,
                                .weight = a->weight,
                                .bias = a->bias,
                                .y = a->y,
                                .dtype = a->dtype,
                                .kind = a->kind};
}

ax_norm_grad_stats_args ax_norm_grad_stats_of(const ax_norm_grad_args *a)
{
    return (ax_norm_grad_stats_args){.rows = a->rows,
                                     .cols = a->cols,
                                     .global_cols = a->cols,
                                     .eps = a->eps,
                                     .x = a->x,
                                     .dy = a->dy,
                                     .sum = a->sum,
                                     .m2 = a->m2,
                                     .weight = a->weight,
                                     .dtype = a->dtype,
                                     .kind = a->kind};
}

ax_norm_grad_apply_args ax_norm_grad_apply_of(const ax_norm_grad_args *a)
{
    return (ax_norm_grad_apply_args){.rows = a->rows,
                                     .cols = a->cols,
                                     .global_cols = a->cols,
                                     .eps = a->eps,
                                     .x = a->x,
                                     .dy = a->dy,
                                     .add = a->add,
                                     .sum = a->sum,
                                     .m2 = a->m2,
                                     .weight = a->weight,
                                     .dx = a->dx,
                                     .dweight = a->dweight,
                                     .dbias = a->dbias,
                                     .dtype = a->dtype,
                                     .kind = a->kind};
}
