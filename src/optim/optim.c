/* The table of optimizers: AdamW, and SGD with momentum. */
#include "axonn/optim.h"

#include <stdio.h>
#include <string.h>

static ax_status adamw(ax_stream *stream, const ax_hyper *h, const ax_update *u)
{
    return ax_run_adamw(stream, &(ax_adamw_args){.n = u->n,
                                                 .copied = u->copied,
                                                 .arrays = u->arrays,
                                                 .beta1 = h->beta1,
                                                 .beta2 = h->beta2,
                                                 .eps = h->eps,
                                                 .decay = h->weight_decay,
                                                 .array = u->array,
                                                 .table = u->table,
                                                 .numbers = u->numbers,
                                                 .dtype = u->dtype,
                                                 .copy_dtype = u->copy_dtype});
}

static ax_status sgd(ax_stream *stream, const ax_hyper *h, const ax_update *u)
{
    return ax_run_sgd(stream, &(ax_sgd_args){.n = u->n,
                                             .copied = u->copied,
                                             .arrays = u->arrays,
                                             .momentum = h->momentum,
                                             .decay = h->weight_decay,
                                             .array = u->array,
                                             .table = u->table,
                                             .numbers = u->numbers,
                                             .dtype = u->dtype,
                                             .copy_dtype = u->copy_dtype});
}

static const char *const adamw_slots[] = {"exp_avg", "exp_avg_sq"};
static const char *const sgd_slots[] = {"momentum_buffer"};

static const ax_optim table[] = {{"adamw", 2, adamw_slots, adamw}, {"sgd", 1, sgd_slots, sgd}};

const char *ax_optim_name(int index) { return index < (int)AX_COUNT(table) ? table[index].name : NULL; }

ax_status ax_optim_find(const char *name, const ax_optim **out)
{
    for (size_t i = 0; i < AX_COUNT(table); i++)
        if (!strcmp(name, table[i].name)) {
            *out = &table[i];
            return AX_OK;
        }
    return ax_fail(AX_ERR_USAGE, "there is no optimizer \"%s\"; choose adamw or sgd", name);
}
