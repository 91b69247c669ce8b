/* model: the check of grids, which needs no ranks, refuses illegal grids and suggests legal ones. */
#include "axonn/model.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* 12 query heads that share 4 key heads. */
static const ax_model_config shared = {
    .layers = 1, .hidden = 48, .heads = 12, .kv_heads = 4, .ffn = 64, .vocab = 100, .seq_len = 8};

static ax_grid_load load_of(const char *strategy, int64_t micro_batch, int64_t global_batch)
{
    ax_grid_load load = {.model = &shared, .micro_batch = micro_batch, .global_batch = global_batch};
    assert_int_equal(ax_strategy_find(strategy, &load.strategy), AX_OK);
    return load;
}

static void refused(ax_grid_load load, ax_grid_size size, int ranks, const char *why, const char *nearest)
{
    char tail[400];
    assert_int_equal(ax_model_check_grid(&load, size, ranks), AX_ERR_USAGE);
    if (!strstr(ax_error_message(), why))
        fail_msg("\"%s\" does not say \"%s\"", ax_error_message(), why);
    snprintf(tail, sizeof tail, "the nearest grids of %d ranks that do: ", ranks);
    const char *grids = strstr(ax_error_message(), tail);
    if (!grids || !strstr(grids, nearest))
        fail_msg("\"%s\" does not say \"%s%s\"", ax_error_message(), tail, nearest);
}

static void legal_grids_are_accepted(void **state)
{
    (void)state;
    ax_grid_load load = load_of("axonn", 2, 16), any = load_of("axonn", 0, 0);
    assert_int_equal(ax_model_check_grid(&load, (ax_grid_size){{1}}, 1), AX_OK);
    assert_int_equal(ax_model_check_grid(&load, (ax_grid_size){{3, 5, 2, 1, 4}}, 120), AX_OK);
    /* Two and three times as many ranks as key heads; more ranks than query heads: some ranks have none. */
    assert_int_equal(ax_model_check_grid(&load, (ax_grid_size){{8, 1, 1, 1, 1}}, 8), AX_OK);
    assert_int_equal(ax_model_check_grid(&load, (ax_grid_size){{12, 1, 1, 1, 2}}, 24), AX_OK);
    assert_int_equal(ax_model_check_grid(&load, (ax_grid_size){{16, 1, 1, 1, 1}}, 16), AX_OK);
    assert_int_equal(ax_model_check_grid(&load, (ax_grid_size){{1, 1, 1, 3, 1}}, 3), AX_OK);
    assert_int_equal(ax_model_check_grid(&any, (ax_grid_size){{1, 1, 7, 1, 11}}, 77), AX_OK);
}

/* Experts are divided among a divisor of data, at most as many ranks as there are experts. */
static void divided_experts(void **state)
{
    (void)state;
    ax_model_config sparse = shared;
    sparse.experts.n = 3;
    ax_grid_load dense = load_of("axonn", 1, 0), load = dense;
    load.model = &sparse;
    assert_int_equal(ax_model_check_grid(&load, (ax_grid_size){{1, 1, 1, 1, 6, 3}}, 6), AX_OK);
    assert_int_equal(ax_model_check_grid(&load, (ax_grid_size){{1, 1, 1, 1, 4, 2}}, 4), AX_OK);
    refused(load, (ax_grid_size){{1, 1, 1, 1, 4, 3}}, 4, "divides data (4) and is at most",
            "grid.expert=2; ");
    refused(load, (ax_grid_size){{1, 1, 1, 1, 4, 4}}, 4, "the number of the model's experts (3)",
            "grid.expert=2; ");
    refused(dense, (ax_grid_size){{1, 1, 1, 1, 4, 2}}, 4, "the number of the model's experts (0)",
            "grid.expert=1; ");
}

static void illegal_grids_are_refused(void **state)
{
    (void)state;
    ax_grid_load load = load_of("axonn", 2, 16);
    refused(load, (ax_grid_size){{6, 1, 1, 1, 1}}, 6,
            "with x = 6 the query heads of a rank would belong to two key heads: x must be at most the "
            "number of key heads, 4, or a multiple of it",
            "grid.x=3 grid.data=2; ");
    refused(load, (ax_grid_size){{2, 1, 1, 1, 2}}, 8, "it has 4 ranks, not 8", "grid.data=4; ");
    refused(load, (ax_grid_size){{1, 1, 4, 1, 4}}, 16, "too small for micro-batches of 2 on each of 16 ranks",
            "");
    refused(load, (ax_grid_size){{1, 1, 1, 1, 3}}, 3,
            "is not a multiple of 6, the rows of one micro-batch on each rank of data and z",
            "grid.x=3 grid.data=1");
    /* Suggested grids are legal in every respect: neither x = 6 nor data = 6 is suggested. */
    refused(load_of("megatron", 2, 16), (ax_grid_size){{1, 2, 1, 1, 3}}, 6, "strategy megatron is 1D tensor",
            "grid.x=3 grid.y=1 grid.data=2");
    refused(load, (ax_grid_size){{1, 1, 1, 4, 1}}, 4,
            "4 pipeline stages are too many: each needs the embedding, a block or the head, and the model "
            "has 3 of",
            "grid.pipe=2 grid.data=2; ");
    refused(load_of("ddp", 1, 16), (ax_grid_size){{1, 1, 1, 1, 3}}, 3,
            "is not a multiple of 3, the rows of one micro-batch", "grid.pipe=3 grid.data=1");
    refused(load_of("ddp", 1, 16), (ax_grid_size){{1, 1, 1, 1, 5}}, 5,
            "is not a multiple of 5, the rows of one micro-batch", "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(legal_grids_are_accepted),
                                       cmocka_unit_test(divided_experts),
                                       cmocka_unit_test(illegal_grids_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
