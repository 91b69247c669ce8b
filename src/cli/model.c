/* Opening a MODEL argument on a device. */
#include "model.h"

#include <string.h>

ax_status model_open(const model_args *args, opened_model *out)
{
    *out = (opened_model){0};
    ax_dtype compute = !strcmp(args->precision, "bf16") ? AX_BF16 : AX_F32;
    ax_status status = ax_pretrained_open(args->model, &out->model);
    if (status == AX_OK)
        status = ax_comm_self_create(&out->self);
    if (status == AX_OK)
        status = ax_ctx_create(out->self, (ax_grid_size){1, 1, 1, 1, 1}, args->device, (int)args->threads,
                               compute, 0, &out->ctx);
    if (status != AX_OK)
        model_close(out);
    return status;
}

void model_close(opened_model *opened)
{
    ax_ctx_destroy(&opened->ctx);
    ax_comm_destroy(&opened->self);
    ax_pretrained_close(&opened->model);
}
