/* Checks whether a grid is legal for a model, a batch and a strategy. Needs no communicator, so that the
 * check can run before the ranks are started. */
#include "axonn/model.h"

#include <stdio.h>

static int64_t rows_of(const ax_grid_load *load, ax_grid_size size)
{
    return ax_max(load->micro_batch, 1) * ax_strategy_ranks(load->strategy, AX_ROLE_BATCH, size);
}

static bool heads_fit(const ax_grid_load *load, ax_grid_size size)
{
    const ax_model_config *m = load->model;
    return !m ||
           ax_heads_fit(m->heads, m->kv_heads, (int)ax_strategy_ranks(load->strategy, AX_ROLE_INNER, size));
}

/* Returns true if the model is not known yet, or has at least as many units as the grid has pipeline stages.
 * The units are the embedding, each block, and the final norm with the head; each stage needs at least
 * one. */
static bool stages_fit(const ax_grid_load *load, ax_grid_size size)
{
    return !load->model || ax_grid_size_along(size, AX_PIPE) <= load->model->layers + 2;
}

static bool batch_fits(const ax_grid_load *load, ax_grid_size size)
{
    return load->global_batch % rows_of(load, size) == 0;
}

/* Returns true if the model, if it is known, has an expert for each rank among which they are divided. */
static bool experts_fit(const ax_grid_load *load, ax_grid_size size)
{
    const int ranks = ax_grid_size_along(size, AX_SIZE_EXPERT);
    return ax_grid_size_along(size, AX_DATA) % ranks == 0 &&
           (!load->model || ranks == 1 || ranks <= load->model->experts.n);
}

bool ax_model_fits_grid(const void *of, ax_grid_size size)
{
    const ax_grid_load *load = of;
    return !ax_strategy_lacks(load->strategy, size) && heads_fit(load, size) && stages_fit(load, size) &&
           experts_fit(load, size) && batch_fits(load, size);
}

/* Writes one reason why the grid is not legal to `why`. */
static void explain(const ax_grid_load *load, ax_grid_size size, int ranks, char why[256])
{
    const ax_model_config *m = load->model;
    const int64_t rows = rows_of(load, size), has = ax_grid_size_ranks(size);
    if (has != ranks)
        snprintf(why, 256, "it has %lld rank%s, not %d", (long long)has, has == 1 ? "" : "s", ranks);
    else if (ax_strategy_lacks(load->strategy, size))
        snprintf(why, 256, "strategy %s is %s: the other axes must be 1", load->strategy->name,
                 load->strategy->help);
    else if (!heads_fit(load, size))
        snprintf(why, 256,
                 "with x = %d the query heads of a rank would belong to two key heads: x must be at most the "
                 "number of key heads, %lld, or a multiple of it",
                 ax_grid_size_along(size, AX_X), (long long)m->kv_heads);
    else if (!stages_fit(load, size))
        snprintf(
            why, 256,
            "%d pipeline stages are too many: each needs the embedding, a block or the head, and the model "
            "has %lld of these",
            ax_grid_size_along(size, AX_PIPE), (long long)m->layers + 2);
    else if (!experts_fit(load, size))
        snprintf(why, 256,
                 "experts can be divided among a number of ranks that divides data (%d) and is at most the "
                 "number of the model's experts (%lld)",
                 ax_grid_size_along(size, AX_DATA), (long long)(m ? m->experts.n : 0));
    else if (load->global_batch < rows)
        snprintf(
            why, 256,
            "a global batch of %lld rows is too small for micro-batches of %lld on each of %lld ranks of "
            "data and z",
            (long long)load->global_batch, (long long)ax_max(load->micro_batch, 1),
            (long long)(rows / ax_max(load->micro_batch, 1)));
    else
        snprintf(why, 256,
                 "a global batch of %lld rows is not a multiple of %lld, the rows of one micro-batch on each "
                 "rank of data and z",
                 (long long)load->global_batch, (long long)rows);
}

ax_status ax_model_check_grid(const ax_grid_load *load, ax_grid_size size, int ranks)
{
    if (ax_grid_size_ranks(size) == ranks && ax_model_fits_grid(load, size))
        return AX_OK;
    char why[256], grid[80], nearest[320];
    explain(load, size, ranks, why);
    return ax_fail(AX_ERR_USAGE, "the grid %s does not fit: %s; the nearest grids of %d ranks that do: %s",
                   ax_grid_size_print(size, grid), why, ranks,
                   ax_grid_nearest(size, ranks, ax_model_fits_grid, load, nearest));
}
