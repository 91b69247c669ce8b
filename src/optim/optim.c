/* The table of optimizers: AdamW, and SGD with momentum. */
#include "axonn/optim.h"

#include <string.h>

static const char *const adamw_moments[] = {"exp_avg", "exp_avg_sq"};
static const char *const sgd_moments[] = {"momentum_buffer"};

static const ax_optim table[] = {{"adamw", 2, adamw_moments, ax_run_adamw},
                                 {"sgd", 1, sgd_moments, ax_run_sgd}};

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
