/* Rules between the keys of a configuration. */
#include "config_private.h"

#include "engine/train.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Whether both keys are valid. A rule between two keys is skipped if one of them is already wrong. */
static bool both_ok(const ax_config *cfg, const char *a, const char *b)
{
    return ax_option_ok(cfg->set, a) && ax_option_ok(cfg->set, b);
}

/* Finds the divisors of n nearest to d: *below <= d <= *above, both d if d divides n. d <= n. */
static void nearest_divisors(int64_t n, int64_t d, int64_t *below, int64_t *above)
{
    *below = ax_divisor_below(n, d);
    *above = n / ax_divisor_below(n, n / d);
}

static void check_model(ax_config *cfg)
{
    bool family = ax_config_given(cfg, "model.family"), from = ax_config_given(cfg, "model.from");
    if (family == from && both_ok(cfg, "model.family", "model.from"))
        ax_option_error(cfg->set, "model.family",
                        "give either model.family (a new model) or model.from (an existing one), %s",
                        family ? "not both" : "neither is given");
    if (!family || !both_ok(cfg, "model.hidden", "model.heads") || cfg->model.hidden % cfg->model.heads == 0)
        return;
    if (cfg->model.heads > cfg->model.hidden) {
        ax_option_error(cfg->set, "model.heads",
                        "must divide model.hidden (%" PRId64 "), so it cannot be larger", cfg->model.hidden);
        return;
    }
    int64_t below, above;
    nearest_divisors(cfg->model.hidden, cfg->model.heads, &below, &above);
    ax_option_error(cfg->set, "model.heads",
                    "%" PRId64 " must divide model.hidden (%" PRId64 "); the nearest are %" PRId64
                    " and %" PRId64,
                    cfg->model.heads, cfg->model.hidden, below, above);
}

/* Returns the number of ranks among which the batch's rows are divided. */
static int64_t batch_ranks(const ax_config *cfg) { return cfg->grid.data * cfg->grid.z; }

/* Prints the number of which train.global_batch must be a multiple, as a product of keys. */
static const char *batch_factors(const ax_config *cfg, char out[128])
{
    if (batch_ranks(cfg) == 1)
        snprintf(out, 128, "train.micro_batch (%" PRId64 ")", cfg->train.micro_batch);
    else
        snprintf(
            out, 128,
            "train.micro_batch x grid.data x grid.z (%" PRId64 " x %" PRId64 " x %" PRId64 " = %" PRId64 ")",
            cfg->train.micro_batch, cfg->grid.data, cfg->grid.z, cfg->train.micro_batch * batch_ranks(cfg));
    return out;
}

static void check_batch(ax_config *cfg)
{
    if (!both_ok(cfg, "train.global_batch", "train.micro_batch") || !both_ok(cfg, "grid.data", "grid.z"))
        return;
    int64_t global = cfg->train.global_batch, rows = cfg->train.micro_batch * batch_ranks(cfg);
    if (global % rows == 0)
        return;
    char of[128];
    batch_factors(cfg, of);
    if (rows > global) {
        ax_option_error(cfg->set, "train.global_batch",
                        "%" PRId64 " must be a multiple of %s; the nearest is %" PRId64, global, of, rows);
        return;
    }
    int64_t below, above, multiple = global / rows * rows;
    if (global % batch_ranks(cfg)) {
        ax_option_error(cfg->set, "train.global_batch",
                        "%" PRId64 " must be a multiple of %s; the nearest are %" PRId64 " and %" PRId64,
                        global, of, multiple, multiple + rows);
        return;
    }
    nearest_divisors(global / batch_ranks(cfg), cfg->train.micro_batch, &below, &above);
    ax_option_error(cfg->set, "train.global_batch",
                    "%" PRId64 " must be a multiple of %s; the nearest are %" PRId64 " and %" PRId64
                    ", or micro-batches of %" PRId64 " and %" PRId64,
                    global, of, multiple, multiple + rows, below, above);
}

static void check_schedule(ax_config *cfg)
{
    if (both_ok(cfg, "optim.lr", "optim.min_lr") && cfg->optim.min_lr > cfg->optim.lr)
        ax_option_error(cfg->set, "optim.min_lr", "%g must be at most optim.lr (%g)", cfg->optim.min_lr,
                        cfg->optim.lr);
}

/* ---- the grid ------------------------------------------------------------------------------------ */

/* Prints the key of an axis, such as "grid.x". */
static const char *axis_key(ax_axis axis, char out[16])
{
    snprintf(out, 16, "grid.%s", ax_axis_name(axis));
    return out;
}

static void check_grid(ax_config *cfg)
{
    const ax_strategy *s;
    ax_grid_order order;
    char key[16];
    if (ax_option_ok(cfg->set, "grid.order") && ax_grid_order_parse(cfg->grid.order, &order) != AX_OK)
        ax_option_error(cfg->set, "grid.order", "%s", ax_error_message());
    if (!ax_option_ok(cfg->set, "strategy") || ax_strategy_find(cfg->strategy, &s) != AX_OK)
        return;
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        if (ax_strategy_lacks(s, ax_run_grid(cfg)) >> a & 1 &&
            ax_option_ok(cfg->set, axis_key((ax_axis)a, key)))
            ax_option_error(cfg->set, key, "must be 1, not %d, with strategy %s: %s",
                            ax_grid_size_along(ax_run_grid(cfg), (ax_axis)a), s->name, s->help);
}

ax_status ax_config_check_ranks(ax_config *cfg, int ranks)
{
    ax_grid_load load = {.micro_batch = cfg->train.micro_batch, .global_batch = cfg->train.global_batch};
    ax_grid_size wanted = ax_run_grid(cfg);
    int64_t product = 1;
    char key[16] = "grid.data", grid[80], nearest[320]; /* key: the first axis above 1, else grid.data */
    for (int a = AX_AXES_STANDARD - 1; a >= 0; a--) {
        int n = ax_grid_size_along(wanted, (ax_axis)a);
        product = ax_min(product * n, INT32_MAX);
        if (n > 1)
            axis_key((ax_axis)a, key);
    }
    if (product == ranks)
        return AX_OK;
    AX_TRY(ax_strategy_find(cfg->strategy, &load.strategy));
    ax_option_error(cfg->set, key,
                    "the grid %s needs %" PRId64 " rank%s but there %s %d: start "
                    "as many (--ranks %" PRId64 "), or choose one of the nearest grids that fit: %s",
                    ax_grid_size_print(wanted, grid), product, product == 1 ? "" : "s",
                    ranks == 1 ? "is" : "are", ranks, product,
                    ax_grid_nearest(wanted, ranks, ax_model_fits_grid, &load, nearest));
    return ax_option_finish(cfg->set);
}

void config_check(ax_config *cfg)
{
    check_model(cfg);
    check_batch(cfg);
    check_schedule(cfg);
    check_grid(cfg);
}
