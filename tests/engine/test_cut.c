/* engine: where the stages of a pipeline begin if pipe.cut is auto. The engines are on the dry device, as any
 * rank of any grid. */
#include "engine/costs.h"
#include "support/check.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST = 16 };

typedef struct setup {
    const char *family;
    const char *window_layers; /* NULL: no windows */
    int64_t layers, hidden, vocab, seq_len, rows, micro_batches, recompute;
    int64_t lora; /* the rank of low-rank updates of q and v; 0: none */
    ax_dtype compute;
    ax_grid_size grid;
    int zero;
    bool evaluates;
} setup;

/* The costs and the cut of a setup, as one rank finds them. */
typedef struct result {
    int64_t cost[MOST + 2], cut[MOST + 3];
} result;

static ax_model_config config_of(const setup *s)
{
    const ax_family *family;
    OK(ax_family_find(s->family, &family));
    ax_model_config c = ax_model_config_defaults(family);
    c.layers = s->layers;
    c.hidden = s->hidden;
    c.heads = c.kv_heads = s->hidden / 32;
    c.ffn = 4 * s->hidden;
    c.vocab = s->vocab;
    c.seq_len = s->seq_len;
    c.window = s->window_layers ? 16 : 0;
    c.window_layers = s->window_layers ? strdup(s->window_layers) : NULL;
    c.low_rank[AX_MATRIX_Q] = c.low_rank[AX_MATRIX_V] = (ax_low_rank){.rank = s->lora, .scale = 1};
    return c;
}

static ax_engine_options options_of(const setup *s, const ax_model_config *config)
{
    ax_engine_options o = {.model = config,
                           .seq_len = s->seq_len,
                           .micro_batch = s->rows,
                           .global_batch =
                               s->rows * s->micro_batches * s->grid.of[AX_Z] * s->grid.of[AX_DATA],
                           .recompute = s->recompute};
    if (!s->evaluates)
        OK(ax_optim_find("adamw", &o.optim));
    return o;
}

static void find(const setup *s, int rank, result *out)
{
    ax_model_config config = config_of(s);
    ax_engine_options options = options_of(s, &config);
    ax_ctx *ctx;
    ax_engine *engine;
    int64_t *costs;
    ax_parallel parallel = ax_parallel_default;
    parallel.zero = s->zero;
    int ranks = (int)ax_grid_size_ranks(s->grid);
    OK(ax_ctx_create_dry(rank, ranks, s->grid, s->compute, &parallel, &ctx));
    OK(ax_block_costs(ctx, &options, &costs));
    OK(ax_engine_create(ctx, &options, NULL, 0, &engine));
    *out = (result){.cost = {0}};
    memcpy(out->cost, costs, (size_t)(s->layers + 2) * sizeof *costs);
    memcpy(out->cut, ax_engine_model(engine)->cut, (size_t)(s->grid.of[AX_PIPE] + 1) * sizeof *out->cut);
    free(costs);
    ax_engine_destroy(&engine);
    ax_ctx_destroy(&ctx);
    ax_model_config_fini(&config);
}

/* The sum of the costs of the units first … end-1. */
static int64_t sum(const int64_t *cost, int64_t first, int64_t end)
{
    int64_t all = 0;
    for (int64_t i = first; i < end; i++)
        all += cost[i];
    return all;
}

/* The least cost of the most expensive of `stages` stages that have the units first … end-1. */
static int64_t best_of(const int64_t *cost, int64_t first, int64_t end, int stages)
{
    int64_t best = stages == 1 ? sum(cost, first, end) : INT64_MAX;
    for (int64_t at = first + 1; at < end && stages > 1; at++)
        best = ax_min(best, ax_max(sum(cost, first, at), best_of(cost, at, end, stages - 1)));
    return best;
}

/* No cut makes the most expensive stage cheaper, by the costs that the dry run counted. */
static void cuts_are_the_best(void **state)
{
    (void)state;
    static const setup all[] = {
        {"gpt2", NULL, 12, 128, 5000, 64, 4, 8, .compute = AX_BF16, .grid = {{1, 1, 1, 2, 1}}},
        {"gpt2", NULL, 12, 128, 500, 64, 4, 1, .compute = AX_F32, .grid = {{1, 1, 1, 4, 1}}, .recompute = 2},
        {"qwen2", "011011000111", 12, 64, 900, 512, 1, 4, .compute = AX_BF16, .grid = {{1, 1, 1, 3, 1}}},
        {"llama", NULL, 7, 96, 900, 33, 1, 4, .lora = 4, .compute = AX_F32, .grid = {{2, 1, 1, 5, 1}}},
        {"gpt2", NULL, 5, 64, 100, 20, 3, 2, .compute = AX_F64, .grid = {{1, 2, 2, 7, 1}}, .zero = 2},
        {"qwen3", NULL, 9, 64, 100, 20, 3, 2, .compute = AX_F16, .grid = {{1, 1, 1, 3, 2}},
         .evaluates = true},
    };
    for (size_t i = 0; i < AX_COUNT(all); i++) {
        const setup *s = &all[i];
        result r;
        int64_t most = 0;
        find(s, 0, &r);
        for (int p = 0; p < s->grid.of[AX_PIPE]; p++) {
            int64_t first = p ? r.cut[p] + 1 : 0,
                    end = p < s->grid.of[AX_PIPE] - 1 ? r.cut[p + 1] + 1 : s->layers + 2;
            assert_true(first < end);
            most = ax_max(most, sum(r.cost, first, end));
        }
        assert_int_equal(most, best_of(r.cost, 0, s->layers + 2, s->grid.of[AX_PIPE]));
    }
}

/* Blocks with a window cost less, so the stage that has them gets more of them. */
static void windows_are_counted(void **state)
{
    (void)state;
    setup s = {"qwen2", NULL, 12, 128, 64, 4096, 1, 4, .compute = AX_F32, .grid = {{1, 1, 1, 2, 1}}};
    result none, later, earlier;
    find(&s, 0, &none);
    s.window_layers = "000000111111";
    find(&s, 0, &later);
    s.window_layers = "111111000000";
    find(&s, 0, &earlier);
    assert_int_equal(none.cut[1], 6);
    assert_true(later.cut[1] < 6 && earlier.cut[1] > 6);
    for (int i = 2; i <= 12; i++) /* equal blocks cost the same, exactly */
        assert_int_equal(none.cost[i], none.cost[1]);
    assert_true(later.cost[1] > 2 * later.cost[12]);
}

/* Frozen weights have no GEMM of their gradient and no update. With one small micro-batch a step, the update
 * of the token table makes the first stage expensive; not so if only low-rank updates are trained. */
static void frozen_weights_are_counted(void **state)
{
    (void)state;
    setup s = {"gpt2", NULL, 12, 128, 8000, 64, 1, 1, .compute = AX_BF16, .grid = {{1, 1, 1, 2, 1}}};
    result full, frozen;
    find(&s, 0, &full);
    s.lora = 4;
    find(&s, 0, &frozen);
    assert_true(full.cut[1] + 2 <= frozen.cut[1]);
    assert_true(full.cost[0] > full.cost[1] && frozen.cost[0] < frozen.cost[1] / 4);
    /* Long rows: attention, which has no weights, is most of a block, so freezing makes the head alone
     * cheaper by a third. */
    s = (setup){"gpt2", NULL, 4, 512, 5000, 16384, 1, 64, .compute = AX_F32, .grid = {{1, 1, 1, 2, 1}}};
    find(&s, 0, &full);
    s.lora = 1;
    find(&s, 0, &frozen);
    double ratio = (double)full.cost[5] / (double)full.cost[1],
           without = (double)frozen.cost[5] / (double)frozen.cost[1];
    assert_true(without < 0.8 * ratio && without > 0.6 * ratio);
}

/* A block that is recomputed runs forward twice; the head does not. */
static void recomputation_is_counted(void **state)
{
    (void)state;
    setup s = {"llama", NULL, 8, 1024, 8192, 128, 8, 16, .compute = AX_F32, .grid = {{1, 1, 1, 2, 1}}};
    result kept, again;
    find(&s, 0, &kept);
    s.recompute = 1;
    find(&s, 0, &again);
    double ratio =
        (double)again.cost[1] / (double)again.cost[9] / ((double)kept.cost[1] / (double)kept.cost[9]);
    assert_true(ratio > 1.3 && ratio < 1.34);
    assert_true(again.cut[1] <= kept.cut[1]);
}

/* Ranks with smaller boxes, or none, find the same cut. */
static void ranks_agree(void **state)
{
    (void)state;
    static const setup all[] = {
        {"gpt2", NULL, 7, 96, 333, 32, 2, 3, .compute = AX_F32, .grid = {{2, 3, 1, 3, 2}}, .zero = 1},
        {"llama", NULL, 7, 96, 333, 32, 2, 3, .compute = AX_BF16, .grid = {{3, 1, 2, 3, 1}}, .zero = 3},
        {"qwen2", "0110110", 7, 32, 65, 300, 1, 3, .compute = AX_F32, .grid = {{1, 2, 2, 3, 2}}, .lora = 3},
    };
    for (size_t i = 0; i < AX_COUNT(all); i++) {
        const ax_grid_size *g = &all[i].grid;
        result first, other;
        find(&all[i], 0, &first);
        for (int rank = 1; rank < (int)ax_grid_size_ranks(*g); rank++) {
            find(&all[i], rank, &other);
            assert_memory_equal(&first, &other, sizeof first);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cuts_are_the_best),
        cmocka_unit_test(windows_are_counted),
        cmocka_unit_test(frozen_weights_are_counted),
        cmocka_unit_test(recomputation_is_counted),
        cmocka_unit_test(ranks_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
