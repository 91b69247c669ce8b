/* The table of optimizers. */
#include "axonn/optim.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The copy that kernels read, or NULL where they read the master weights themselves. */
static void *copy_of(const ax_param *param)
{
    return param->rounded.data == param->master.data ? NULL : param->rounded.data;
}

static ax_status adamw(ax_stream *stream, const ax_hyper *h, ax_param *param, int64_t count)
{
    return ax_run_adamw(stream, &(ax_adamw_args){.n = count,
                                                 .lr = h->lr,
                                                 .beta1 = h->beta1,
                                                 .beta2 = h->beta2,
                                                 .eps = h->eps,
                                                 .decay = param->decay ? h->weight_decay : 0,
                                                 .correction1 = 1 - pow(h->beta1, (double)h->step),
                                                 .correction2 = 1 - pow(h->beta2, (double)h->step),
                                                 .grad_scale = h->grad_scale,
                                                 .w = param->master.data,
                                                 .m = param->slot[0].data,
                                                 .v = param->slot[1].data,
                                                 .copy = copy_of(param),
                                                 .g = param->grad.data,
                                                 .dtype = param->master.dtype,
                                                 .copy_dtype = param->rounded.dtype});
}

static ax_status sgd(ax_stream *stream, const ax_hyper *h, ax_param *param, int64_t count)
{
    return ax_run_sgd(stream, &(ax_sgd_args){.n = count,
                                             .lr = h->lr,
                                             .momentum = h->momentum,
                                             .decay = param->decay ? h->weight_decay : 0,
                                             .grad_scale = h->grad_scale,
                                             .w = param->master.data,
                                             .m = param->slot[0].data,
                                             .copy = copy_of(param),
                                             .g = param->grad.data,
                                             .dtype = param->master.dtype,
                                             .copy_dtype = param->rounded.dtype});
}

static const char *const adamw_slots[] = {"exp_avg", "exp_avg_sq"};
static const char *const sgd_slots[] = {"momentum_buffer"};

static const ax_optim table[] = {{"adamw", 2, adamw_slots, adamw}, {"sgd", 1, sgd_slots, sgd}};

ax_status ax_optim_find(const char *name, const ax_optim **out)
{
    for (size_t i = 0; i < AX_COUNT(table); i++)
        if (!strcmp(name, table[i].name)) {
            *out = &table[i];
            return AX_OK;
        }
    return ax_fail(AX_ERR_USAGE, "optimizer \"%s\" does not exist; there are adamw and sgd", name);
}

ax_status ax_optim_step(const ax_optim *optim, const ax_hyper *hyper, ax_param_set *set)
{
    for (int i = 0; i < set->n; i++) {
        int64_t count = ax_tensor_count(set->ctx->grid, &set->param[i]->master);
        AX_TRY(optim->update(set->ctx->stream, hyper, set->param[i], count));
        AX_TRY(ax_param_publish(set->param[i]));
    }
    return AX_OK;
}
