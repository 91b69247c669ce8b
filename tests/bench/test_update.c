/* The end of a step without a model (bench_update): it reduces over the replicas of its own stage, and
 * updates all matrices of this stage, wherever their state lies; its parts do the same, one after the other.
 */
#include "bench/bench.h"
#include "support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

/* Two matrices for each stage, the second with one row. */
enum { STAGES = 2, REPLICAS = 2, FULL = 1 << 20, ROW = 1024, ELEMENTS = FULL + 1 };

/* Checks one matrix after `steps` steps. A gradient is 1 on each replica. AdamW divides the mean of gradients
 * that are all alike by their size, so each step moves weights by the learning rate, 1e-4. In two steps,
 * decay (1e-5 of a weight) and rounding change the weights by 1e-9 and less. */
static ax_status check_matrix(const bench_update *u, const ax_param *p, float *weights)
{
    const ax_param_state *master = &p->state[AX_STATE_MASTER];
    const float *grad = p->grad.data;
    AX_TRY(ax_param_state_read(u->ctx, master, 0, master->n, weights));
    for (int64_t i = 0; i < master->n; i++)
        EXPECT(grad[i] == REPLICAS && fabs(weights[i] + 1e-4 * (double)u->steps) < 2e-9);
    return AX_OK;
}

static ax_status check(const bench_update *u, float *weights)
{
    int64_t n = 0;
    for (int i = 0; i < u->params; i++) {
        if (u->param[i]->place == AX_PARAM_AWAY)
            continue;
        n += u->param[i]->state[AX_STATE_MASTER].n;
        AX_TRY(check_matrix(u, u->param[i], weights));
    }
    EXPECT(n == FULL + ROW && u->elements == n && u->params == 2 * STAGES);
    return AX_OK;
}

static ax_status run_steps(bench_update *u, ax_frame *frame, float *weights)
{
    double reduction = 0, update = 0;
    AX_TRY(bench_update_begin(u, frame));
    AX_TRY(bench_update_end(u));
    AX_TRY(check(u, weights));
    AX_TRY(bench_update_time_parts(u, frame, &reduction, &update));
    EXPECT(u->steps == 2 && reduction > 0 && update > 0);
    return check(u, weights);
}

static ax_status make_and_run(ax_ctx *ctx, ax_frame *frame, float *weights)
{
    bench_update u;
    ax_status status = bench_update_make(ctx, ELEMENTS, &u);
    if (status == AX_OK)
        status = run_steps(&u, frame, weights);
    bench_update_fini(&u);
    return status;
}

static ax_status all_cases(ax_ctx *ctx, ax_frame *frame, float *weights)
{
    static const ax_offload cases[] = {
        {.optimizer = AX_OFFLOAD_NONE},
        {.optimizer = AX_OFFLOAD_HOST},
        {.optimizer = AX_OFFLOAD_HOST, .update = AX_OFFLOAD_ON_DEVICE, .bucket = 100000},
        {.optimizer = AX_OFFLOAD_HOST, .update = AX_OFFLOAD_ON_DEVICE, .bucket = 100000, .chunk = 2},
        {.optimizer = AX_OFFLOAD_FILE, .bucket = 100000, .chunk = 100},
    };
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ctx->parallel.offload = cases[i];
        AX_TRY(make_and_run(ctx, frame, weights));
    }
    static const ax_offload idle[] = {{.optimizer = AX_OFFLOAD_NONE, .chunk = 1},
                                      {.optimizer = AX_OFFLOAD_HOST, .chunk = 1}};
    for (size_t i = 0; i < AX_COUNT(idle); i++) {
        ctx->parallel.offload = idle[i];
        EXPECT(make_and_run(ctx, frame, weights) == AX_ERR_USAGE);
    }
    return AX_OK;
}

static ax_status run_rank(ax_comm *world, void *arg)
{
    const ax_grid_size grid = {.of = {[AX_PIPE] = STAGES, [AX_DATA] = REPLICAS}};
    ax_ctx *ctx = NULL;
    ax_frame *frame = NULL;
    float *weights = NULL;
    (void)arg;
    ax_status status = ax_calloc(FULL, sizeof *weights, &weights);
    if (status == AX_OK)
        status = ax_ctx_create(world, grid, "cpu", 1, AX_BF16, 0, &ctx);
    if (status == AX_OK)
        status = ax_frame_create(ctx, 4096, &frame);
    if (status == AX_OK)
        status = all_cases(ctx, frame, weights);
    ax_frame_destroy(&frame);
    ax_ctx_destroy(&ctx);
    free(weights);
    return status;
}

static void stage_is_reduced_and_updated(void **state)
{
    (void)state;
    assert_ranks(STAGES * REPLICAS, run_rank, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(stage_is_reduced_and_updated)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
