/* Losses, as means over the whole batch, and their gradients. The operations of op.h sum over the local part
 * of a tensor; this file adds up the sums of all ranks that hold different parts. */
#include "axonn/nn.h"

/* Checks that `target` has `dims` dims, and that they have the sizes and the layout of the first dims of the
 * output x. `loss` is the name of the loss in messages. */
static ax_status check_target(ax_frame *frame, const char *loss, const ax_tensor *x, const ax_tensor *target,
                              int dims)
{
    const ax_grid *grid = ax_frame_ctx(frame)->grid;
    ax_layout want = x->layout;
    char is[128], should[128];
    AX_CHECK(target->ndim == dims, AX_ERR_USAGE, "%s: the target has %d dims instead of %d", loss,
             (int)target->ndim, dims);
    for (int d = 0; d < dims; d++)
        AX_CHECK(target->dim[d] == x->dim[d], AX_ERR_USAGE,
                 "%s: dim %d of the target has %lld entries, that of the output %lld", loss, d,
                 (long long)target->dim[d], (long long)x->dim[d]);
    bool same = ax_layout_equal(grid, &want, &target->layout, dims);
    for (int d = 0; d < dims; d++)
        same = same && ax_max(target->unit[d], 1) == ax_max(x->unit[d], 1);
    AX_CHECK(
        same, AX_ERR_USAGE,
        "%s: the target's layout is [%s], that of the output [%s]: give their dims the same roles and units",
        loss, ax_layout_print(grid, &target->layout, dims, NULL, is),
        ax_layout_print(grid, &want, dims, NULL, should));
    return AX_OK;
}

/* Sets *out to `n` zeros in device memory. */
static ax_status zeros(ax_frame *frame, int n, double **out)
{
    void *memory;
    AX_TRY(ax_frame_scratch(frame, AX_F64, n, &memory));
    *out = memory;
    return ax_run_fill(ax_frame_ctx(frame)->stream, &(ax_fill_args){.n = n, .y = memory, .dtype = AX_F64});
}

/* Adds up the n `sums` over the ranks along which the first `dims` dims of x are split, and copies the totals
 * to `out` in host memory. */
static ax_status collect(ax_frame *frame, const ax_tensor *x, int dims, double *sums, int n, double *out)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    AX_TRY(ax_reduce_axes(ctx, ax_layout_split_axes(&x->layout, dims), sums, n, AX_F64, AX_SUM));
    return ax_copy_out(ctx->stream, out, sums, (size_t)n * sizeof *out);
}

ax_status ax_mse_loss(ax_frame *frame, const ax_tensor *x, const ax_tensor *target, double *loss,
                      ax_tensor *dx)
{
    double *sum, total, elements = 1;
    AX_CHECK(target->dtype == x->dtype, AX_ERR_USAGE,
             "mse loss: the target is %s, but the output %s: give both the same dtype",
             ax_dtype_name(target->dtype), ax_dtype_name(x->dtype));
    AX_CHECK(
        !x->align, AX_ERR_USAGE,
        "mse loss: the rows of the output are padded, because its linear layer has out_role AX_ROLE_VOCAB; "
        "give the layer AX_ROLE_MODEL or AX_ROLE_INNER");
    AX_CHECK(!target->align, AX_ERR_USAGE,
             "mse loss: the rows of the target are padded (align = %d bytes); give the target the align 0",
             (int)target->align);
    AX_TRY(check_target(frame, "mse loss", x, target, x->ndim));
    for (int d = 0; d < x->ndim; d++)
        elements *= (double)x->dim[d];
    AX_TRY(zeros(frame, 1, &sum));
    AX_TRY(ax_op_squared_error(frame, x, target, elements > 0 ? 2 / elements : 0, sum, dx));
    AX_TRY(collect(frame, x, x->ndim, sum, 1, &total));
    *loss = elements > 0 ? total / elements : 0;
    return AX_OK;
}

ax_status ax_cross_entropy_loss(ax_frame *frame, const ax_tensor *logits, const ax_tensor *targets,
                                int64_t ignore_index, double *loss, ax_tensor *dlogits)
{
    enum { LOSS, COUNTED, WRONG, SUMS };
    const int rows = logits->ndim - 1; /* number of dims of `targets`: all of the logits except the last */
    const int64_t classes = logits->dim[rows];
    double *sum, total[SUMS];
    ax_tensor masked, stats;
    AX_CHECK(targets->dtype == AX_I32 || targets->dtype == AX_I64, AX_ERR_USAGE,
             "cross-entropy: targets are %s, not i32 or i64", ax_dtype_name(targets->dtype));
    AX_TRY(check_target(frame, "cross-entropy", logits, targets, rows));
    AX_TRY(zeros(frame, SUMS, &sum));
    AX_TRY(ax_op_class_targets(frame, targets, classes, ignore_index, sum + COUNTED, &masked));
    AX_TRY(ax_op_cross_entropy(frame, logits, &masked, sum + LOSS, NULL, &stats));
    AX_TRY(collect(frame, logits, rows, sum, SUMS, total));
    AX_CHECK(total[WRONG] == 0, AX_ERR_DATA,
             "cross-entropy: %.0f of %.0f targets are neither a class (0 to %lld) nor ignore_index (%lld)",
             total[WRONG], total[COUNTED], (long long)classes - 1, (long long)ignore_index);
    double scale = total[COUNTED] > 0 ? 1 / total[COUNTED] : 0;
    *loss = total[LOSS] * scale;
    if (!dlogits)
        return AX_OK;
    *dlogits = *logits;
    return ax_op_cross_entropy_grad(frame, dlogits, &masked, &stats, scale);
}
