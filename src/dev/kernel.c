/* Facts of the kernels: name, size of the argument struct, element types taken. */
#include "dev/backend.h"

#include <string.h>

#define BIT(dtype) (1u << (dtype))
enum {
    ACCUM = BIT(AX_F64) | BIT(AX_F32),
    ACTIVATION = ACCUM | BIT(AX_BF16) | BIT(AX_F16),
    ALL = BIT(AX_DTYPE_COUNT) - 1
};

typedef struct kernel_info {
    const char *name;
    size_t size, used; /* bytes, and those up to the last field */
    size_t dtype_offset;
    unsigned dtypes; /* that the field at dtype_offset may have; 0: there is none */
} kernel_info;

#define END(kernel, last)                                                                                    \
    (offsetof(ax_##kernel##_args, last) + sizeof(((const ax_##kernel##_args *)NULL)->last))
#define KERNEL(kernel, field, last, mask)                                                                    \
    [AX_K_##kernel] = {#kernel, sizeof(ax_##kernel##_args), END(kernel, last),                               \
                       offsetof(ax_##kernel##_args, field), mask}

static const kernel_info kernels[AX_KERNEL_COUNT] = {
    KERNEL(gemm, dtype, pre, ACTIVATION),
    KERNEL(bias_add, dtype, dtype, ACTIVATION),
    KERNEL(col_sum, dtype, dtype, ACTIVATION),
    KERNEL(norm, dtype, dtype, ACTIVATION),
    KERNEL(norm_stats, dtype, dtype, ACTIVATION),
    KERNEL(norm_recentre, dtype, dtype, ACCUM),
    KERNEL(norm_apply, dtype, dtype, ACTIVATION),
    KERNEL(norm_grad, dtype, dtype, ACTIVATION),
    KERNEL(norm_grad_stats, dtype, dtype, ACTIVATION),
    KERNEL(norm_grad_apply, dtype, dtype, ACTIVATION),
    KERNEL(attention, dtype, dtype, ACTIVATION),
    KERNEL(attention_grad, dtype, dtype, ACTIVATION),
    KERNEL(embedding, dtype, accumulate, ACTIVATION),
    KERNEL(embedding_grad, dtype, dtype, ACTIVATION),
    KERNEL(gelu, dtype, kind, ACTIVATION),
    KERNEL(gelu_grad, dtype, kind, ACTIVATION),
    KERNEL(add, dtype, dtype, ACTIVATION),
    KERNEL(dropout, dtype, dtype, ACTIVATION),
    KERNEL(ce_max, dtype, dtype, ACTIVATION),
    KERNEL(ce_sum, dtype, dtype, ACTIVATION),
    KERNEL(ce_loss, dtype, dtype, ACCUM),
    KERNEL(ce_grad, dtype, dtype, ACTIVATION),
    KERNEL(sumsq, dtype, dtype, ACTIVATION),
    KERNEL(scale, dtype, dtype, ACTIVATION),
    KERNEL(convert, x_dtype, y_dtype, ACTIVATION),
    KERNEL(copy_box, dtype, accumulate, ALL),
    KERNEL(fill, dtype, dtype, ALL),
    KERNEL(init_normal, dtype, dtype, ACCUM),
    [AX_K_clip] = {"clip", sizeof(ax_clip_args), END(clip, numbers), 0, 0},
    KERNEL(adamw, dtype, copy_dtype, ACCUM),
    KERNEL(sgd, dtype, copy_dtype, ACCUM),
};

const char *ax_kernel_name(ax_kernel kernel)
{
    return (unsigned)kernel < AX_KERNEL_COUNT ? kernels[kernel].name : "unknown kernel";
}

size_t ax_kernel_args_size(ax_kernel kernel)
{
    return (unsigned)kernel < AX_KERNEL_COUNT ? kernels[kernel].size : 0;
}

size_t ax_kernel_args_used(ax_kernel kernel) { return kernels[kernel].used; }

static ax_status check_then(const ax_gemm_args *g)
{
    bool fits = g->c_dtype == g->dtype && !g->accumulate && g->ldc == ax_max(g->n, 1);
    bool has = g->then == AX_THEN_GELU || (g->then == AX_THEN_GELU_GRAD && g->pre && !g->bias);
    AX_CHECK(g->then == AX_THEN_STORE ? !g->pre : fits && has, AX_ERR_USAGE,
             "kernel gemm: what it is given does not fit what is to become of its sums");
    return AX_OK;
}

/* Types that an argument struct has besides. */
static ax_status check_second(ax_kernel kernel, const void *args, ax_dtype dtype)
{
    ax_dtype second = dtype;
    bool taken = true;
    if (kernel == AX_K_gemm) {
        second = ((const ax_gemm_args *)args)->c_dtype;
        taken = second == dtype || second == ax_dtype_accum(dtype);
        AX_TRY(check_then(args));
    } else if (kernel == AX_K_convert) {
        second = ((const ax_convert_args *)args)->y_dtype;
        taken = (unsigned)second < AX_DTYPE_COUNT && (ACTIVATION & BIT(second));
    } else if (kernel == AX_K_copy_box && ((const ax_copy_box_args *)args)->accumulate)
        taken = ACTIVATION & BIT(dtype);
    AX_CHECK(taken, AX_ERR_USAGE, "kernel %s does not make elements of %s from those of %s",
             ax_kernel_name(kernel), ax_dtype_name(second), ax_dtype_name(dtype));
    return AX_OK;
}

ax_status ax_kernel_check(ax_kernel kernel, const void *args)
{
    const kernel_info *info = &kernels[kernel];
    ax_dtype dtype;
    if (!info->dtypes)
        return AX_OK;
    memcpy(&dtype, (const char *)args + info->dtype_offset, sizeof dtype);
    AX_CHECK((unsigned)dtype < AX_DTYPE_COUNT && (info->dtypes & BIT(dtype)), AX_ERR_USAGE,
             "kernel %s does not take elements of %s", info->name, ax_dtype_name(dtype));
    return check_second(kernel, args, dtype);
}
