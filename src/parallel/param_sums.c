/* The sums of squares of gradients and of weights. One kernel call sums the squares of all arrays of a dtype,
 * from a table in device memory that is made with the parameter set. Read param.h first. */
#include "parallel/param.h"

#include <stdlib.h>

static size_t table_bytes(const ax_param_set *set) { return (size_t)set->n * sizeof(ax_sumsq_array); }

static ax_dtype dtype_of(const ax_param_set *set, bool grads, int64_t i)
{
    const ax_param *p = set->param[i];
    return grads ? p->grad.dtype : p->state[AX_STATE_MASTER].dtype;
}

/* Returns how many elements of parameter i this rank adds to the sum over the grid. If several ranks hold the
 * same box, only one of them adds its elements; for the other ranks the result is 0. The result is also 0 for
 * a parameter that another pipeline stage updates, and, if `grads` is true, for a parameter that is not
 * trained, because that has no gradient. */
static int64_t counted(const ax_param_set *set, bool grads, int64_t i)
{
    const ax_param *p = set->param[i];
    bool counts = (!grads || ax_param_trains(p)) && ax_param_is_owned(p) &&
                  ax_tensor_is_primary(set->ctx->grid, &p->grad);
    return counts ? p->state[AX_STATE_MASTER].n : 0;
}

/* Fills in a table with an entry for each parameter. Entries of equal dtype are adjacent, because a kernel
 * call takes arrays of one dtype: weights that are not trained may have another dtype than master weights. */
static void fill_table(const ax_param_set *set, bool grads, ax_sumsq_array *table)
{
    int64_t at = 0, first = 0;
    for (int other = 0; other < 2; other++)
        for (int64_t i = 0; i < set->n; i++) {
            const ax_param *p = set->param[i];
            if ((dtype_of(set, grads, i) != set->ctx->accum) != other)
                continue;
            table[at] = (ax_sumsq_array){.x = grads ? p->grad.data : p->state[AX_STATE_MASTER].data,
                                         .n = counted(set, grads, i),
                                         .first = first,
                                         .to = i};
            first += ax_ceil_div(table[at++].n, AX_SUMSQ_CHUNK);
        }
}

ax_status ax_param_sums_make(ax_param_set *set)
{
    ax_ctx *ctx = set->ctx;
    for (int grads = 0; grads < 2; grads++) {
        ax_param_sums *s = &set->flow->sums[grads];
        AX_TRY(ax_calloc((size_t)set->n, sizeof *s->table, &s->table));
        fill_table(set, grads, s->table);
        AX_TRY(ax_ctx_alloc(ctx, table_bytes(set), (void **)&s->array));
        set->memory.bytes[AX_MEMORY_BATCH] += table_bytes(set);
        AX_TRY(ax_copy_in(ctx->stream, s->array, s->table, table_bytes(set)));
    }
    return AX_OK;
}

void ax_param_sums_free(ax_param_set *set)
{
    for (int grads = 0; grads < 2; grads++) {
        ax_param_sums *s = &set->flow->sums[grads];
        ax_ctx_free(set->ctx, s->array, table_bytes(set));
        free(s->table);
    }
}

/* Computes the sums of squares, with one kernel call for each dtype, and adds them over the grid. */
static ax_status sum(ax_param_set *set, bool grads, double *out)
{
    const ax_param_sums *s = &set->flow->sums[grads];
    ax_axisset all = (ax_axisset)((1u << ax_grid_axes(set->ctx->grid)) - 1);
    for (int64_t from = 0, end; from < set->n; from = end) {
        ax_dtype dtype = dtype_of(set, grads, s->table[from].to);
        for (end = from; end < set->n && dtype_of(set, grads, s->table[end].to) == dtype; end++)
            ;
        AX_TRY(ax_run_sumsq(set->ctx->stream, &(ax_sumsq_args){.arrays = end - from,
                                                               .array = s->array + from,
                                                               .table = s->table + from,
                                                               .out = out,
                                                               .dtype = dtype}));
    }
    return ax_reduce_axes(set->ctx, all, out, set->n, AX_F64, AX_SUM);
}

ax_status ax_param_set_grad_sumsq(ax_param_set *set, double *sumsq)
{
    AX_CHECK(set->flow->synced, AX_ERR_INTERNAL,
             "the gradients are still partial sums: call ax_param_set_sync_grad first");
    return sum(set, true, sumsq);
}

ax_status ax_param_set_weight_sumsq(ax_param_set *set, double *sumsq) { return sum(set, false, sumsq); }
