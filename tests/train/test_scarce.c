/* Allocations that fail: each allocation of an engine's life fails in turn, on one rank and on a grid. Every
 * failure is returned as a status, and everything allocated before is freed. */
#include "axonn/engine.h"
#include "support/mallocs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { T = 4, ROWS = 4, VOCAB = 7 };

static ax_status rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    (void)source;
    for (int64_t i = 0; i < (end - first) * T; i++) {
        out->tokens[i] = (int32_t)(i % VOCAB);
        out->targets[i] = (int32_t)((i + 1) % VOCAB);
        out->doc_start[i] = 0;
        out->position[i] = (int32_t)(i % T);
    }
    return AX_OK;
}

/* Plans, creates, runs and destroys an engine. */
static ax_status live_and_die(ax_comm *world, ax_grid_size grid)
{
    char source[] = "{}";
    ax_model_config config = {.layers = 2,
                              .hidden = 4,
                              .heads = 2,
                              .kv_heads = 2,
                              .ffn = 6,
                              .vocab = VOCAB,
                              .seq_len = T,
                              .dropout = {0.1, 0.1, 0.1},
                              .init_std = 0.1,
                              .norm_eps = 1e-5,
                              .source = source};
    ax_engine_options options = {
        .model = &config, .seq_len = T, .micro_batch = 1, .global_batch = ROWS, .recompute = 1, .clip = 1};
    ax_engine_plan plan = {.frame = NULL};
    ax_engine *engine = NULL;
    ax_ctx *ctx = NULL;
    ax_step_result result;
    ax_hyper hyper = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.9, .eps = 1e-8, .step = 1};
    AX_TRY(ax_family_find("gpt2", &config.family));
    AX_TRY(ax_optim_find("adamw", &options.optim));
    ax_status status = ax_ctx_create(world, grid, "cpu", 1, AX_BF16, 1, &ctx);
    if (status == AX_OK)
        ctx->parallel.pipe.postpone = 1; /* with one stage nothing is postponed */
    if (status == AX_OK)
        status = ax_engine_plan_make(&options, world, grid, &ctx->parallel, "cpu", 1, AX_BF16, &plan);
    if (status == AX_OK)
        status = ax_engine_create(ctx, &options, &plan, 0, &engine);
    if (status == AX_OK)
        status = ax_param_set_init(ax_engine_params(engine));
    if (status == AX_OK)
        status = ax_engine_step(engine, 1, rows, NULL, ROWS * T, &hyper);
    if (status == AX_OK)
        status = ax_engine_result(engine, &result);
    ax_engine_destroy(&engine);
    ax_engine_plan_fini(&plan);
    ax_ctx_destroy(&ctx);
    return status;
}

static ax_status on_a_grid(ax_comm *world, void *arg)
{
    return live_and_die(world, *(const ax_grid_size *)arg);
}

static void failures_are_reported_and_nothing_leaks(void **state)
{
    (void)state;
    if (!MALLOCS_COUNTED)
        skip();
    ax_grid_size grids[] = {{{1, 1, 1, 1, 1}}, {{2, 1, 1, 1, 2}}, {{1, 1, 1, 2, 1}}};
    for (size_t g = 0; g < AX_COUNT(grids); g++) {
        int ranks = (int)ax_grid_size_ranks(grids[g]);
        for (int warm = 0; warm < 2; warm++) {
            atomic_store(&mallocs_made, 0);
            assert_int_equal(ax_comm_threads_run(ranks, on_a_grid, &grids[g]), AX_OK);
        }
        long all = atomic_load(&mallocs_made), step = ranks == 1 ? 1 : 7;
        printf("%d ranks: %ld allocations\n", ranks, all);
        assert_true(all > 100);
        for (long n = 1; n <= all; n += step) {
            long before = atomic_load(&mallocs_alive);
            atomic_store(&mallocs_made, 0);
            atomic_store(&mallocs_victim, n);
            ax_status status = ax_comm_threads_run(ranks, on_a_grid, &grids[g]);
            atomic_store(&mallocs_victim, 0);
            /* A rank that runs out of memory in the middle of a split makes the communicator fail. */
            bool met = atomic_load(&mallocs_made) >= n;
            if (met && status != AX_ERR_MEMORY && !(status == AX_ERR_COMM && ranks > 1))
                fail_msg("allocation %ld failed: %s: %s", n, ax_status_name(status), ax_error_message());
            if (atomic_load(&mallocs_alive) != before)
                fail_msg("allocation %ld failed: %ld blocks leak", n, atomic_load(&mallocs_alive) - before);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(failures_are_reported_and_nothing_leaks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
