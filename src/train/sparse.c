/* Training of a pruned model (key train.sparse): the masks of its matrices are the zeros of model.from. */
#include "train/train.h"

#include <stdio.h>
#include <stdlib.h>

static ax_status read_mask(void *source, ax_ctx *ctx, const ax_param *param, const ax_box *box,
                           uint64_t *bits)
{
    const ax_train_inputs *inputs = source;
    return ax_ckpt_read_mask(inputs->model_weights, param, ax_family_prefix(inputs->model.family), ctx->accum,
                             box, bits);
}

ax_status ax_train_open_masks(const ax_train_run *run, ax_train_inputs *inputs)
{
    if (!run->config->train.sparse)
        return AX_OK;
    AX_CHECK(inputs->model_weights, AX_ERR_DATA,
             "%s holds no weights (*.safetensors), whose zeros train.sparse keeps: copy them there",
             inputs->model_dir);
    return ax_masks_create(run->world, read_mask, inputs, &inputs->masks);
}

ax_status ax_train_check_masks(const ax_train_run *run)
{
    const ax_masks *masks = run->inputs.masks;
    AX_CHECK(
        !masks || ax_masks_count(masks), AX_ERR_DATA,
        "train.sparse: the matrices of the blocks of %s have no zeros: prune the model first (axonn prune), "
        "or set train.sparse to false",
        run->inputs.model_dir);
    return AX_OK;
}

void ax_train_print_masks(const ax_train_run *run, char out[17])
{
    snprintf(out, 17, "%016llx", (unsigned long long)ax_masks_checksum(run->inputs.masks));
}
