/* The sums of squares of gradients and of weights. One kernel call sums the squares of all arrays of a dtype,
 * from a table in device memory that is made with the parameter set. Read param.h first. */
#include "parallel/param.h"

#include <stdlib.h>

static size_t table_bytes(const ax_param_set *set) { return (size_t)set->n * sizeof(ax_sumsq_array); }

/* Returns how many elements of parameter i this rank adds to the sum over the grid. If several ranks hold the
 * same box, only one of them adds its elements; for the other ranks the result is 0. The result is also 0 for
 * a parameter that another pipeline stage updates, and for the gradient of a parameter that is not trained.
 * Gradients before their reduction count on all ranks that have them. */
static int64_t counted(const ax_param_set *set, int of, int64_t i)
{
    const ax_param *p = set->param[i];
    if (of == AX_SUMS_PARTIAL)
        return ax_param_trains(p) && p->sum.data ? ax_tensor_count(set->ctx->grid, &p->sum) : 0;
    bool counts = (of == AX_SUMS_WEIGHTS || ax_param_trains(p)) && ax_param_is_owned(p) &&
                  ax_tensor_is_primary(set->ctx->grid, &p->rounded);
    if (!counts)
        return 0;
    return of == AX_SUMS_WEIGHTS ? ax_tensor_count(set->ctx->grid, &p->rounded) : p->state[AX_STATE_MASTER].n;
}

/* Fills in a table with an entry for each parameter: of its gradient, or of its weights as kernels read them.
 * Entries of the accumulation dtype come first, because a kernel call takes arrays of one dtype: weights and
 * gradients of matrices may have the compute dtype. */
static void fill_table(const ax_param_set *set, int of, ax_param_sums *s)
{
    int64_t at = 0, first = 0;
    for (int narrow = 0; narrow < 2; narrow++) {
        for (int64_t i = 0; i < set->n; i++) {
            const ax_param *p = set->param[i];
            const ax_tensor *t = of == AX_SUMS_WEIGHTS ? &p->rounded
                                 : of == AX_SUMS_GRADS ? &p->grad
                                                       : &p->sum;
            if ((t->dtype != set->ctx->accum) != narrow)
                continue;
            s->table[at] = (ax_sumsq_array){.x = t->data, .n = counted(set, of, i), .first = first, .to = i};
            first += ax_ceil_div(s->table[at++].n, AX_SUMSQ_CHUNK);
        }
        s->end[narrow] = at;
    }
}

ax_status ax_param_sums_make(ax_param_set *set)
{
    ax_ctx *ctx = set->ctx;
    for (int of = 0; of < (ax_offload_chunk(set) ? AX_SUMS : AX_SUMS_PARTIAL); of++) {
        ax_param_sums *s = &set->flow->sums[of];
        AX_TRY(ax_calloc((size_t)set->n, sizeof *s->table, &s->table));
        fill_table(set, of, s);
        AX_TRY(ax_ctx_alloc(ctx, AX_MEMORY_BATCH, table_bytes(set), (void **)&s->array));
        set->memory.bytes[AX_MEMORY_BATCH] += table_bytes(set);
        AX_TRY(ax_copy_in(ctx->stream, s->array, s->table, table_bytes(set)));
    }
    return AX_OK;
}

void ax_param_sums_free(ax_param_set *set)
{
    for (int of = 0; of < AX_SUMS; of++) {
        ax_param_sums *s = &set->flow->sums[of];
        ax_ctx_free(set->ctx, AX_MEMORY_BATCH, s->array, table_bytes(set));
        free(s->table);
    }
}

/* Computes the sums of squares, with one kernel call for each dtype, and adds them over the grid. */
static ax_status sum(ax_param_set *set, int of, double *out)
{
    const ax_param_sums *s = &set->flow->sums[of];
    ax_axisset all = (ax_axisset)((1u << ax_grid_axes(set->ctx->grid)) - 1);
    for (int narrow = 0; narrow < 2; narrow++) {
        int64_t from = narrow ? s->end[0] : 0;
        ax_sumsq_args args = {.arrays = s->end[narrow] - from,
                              .array = s->array + from,
                              .table = s->table + from,
                              .out = out,
                              .dtype = narrow ? set->ctx->compute : set->ctx->accum};
        if (args.arrays)
            AX_TRY(ax_run_sumsq(set->ctx->stream, &args));
    }
    return ax_reduce_axes(set->ctx, all, out, set->n, AX_F64, AX_SUM);
}

ax_status ax_param_set_grad_sumsq(ax_param_set *set, double *sumsq)
{
    AX_CHECK(set->flow->synced, AX_ERR_INTERNAL,
             "the gradients are still partial sums: call ax_param_set_sync_grad first");
    return sum(set, AX_SUMS_GRADS, sumsq);
}

ax_status ax_param_set_partial_sumsq(ax_param_set *set, double *sumsq)
{
    return sum(set, AX_SUMS_PARTIAL, sumsq);
}

ax_status ax_param_set_weight_sumsq(ax_param_set *set, double *sumsq)
{
    return sum(set, AX_SUMS_WEIGHTS, sumsq);
}
