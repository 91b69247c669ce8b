/* Dropout in a network whose frame gets no batch: each training task draws another mask; forward, backward
 * and recomputation of one task use the same; all grids draw the same. Also p = 1. */
#include "axonn/nn.h"
#include "support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { B = 4, T = 3, WIDTH = 12, COUNT = B * T * WIDTH, STEPS = 4 };

/* Outputs and input gradients of STEPS training tasks, as global arrays. */
typedef struct outcome {
    double y[STEPS][COUNT], dx[STEPS][COUNT];
} outcome;

typedef ax_layer *make_fn(ax_ctx *ctx);

typedef struct run {
    ax_grid_size grid;
    make_fn *make;
    bool evaluates;    /* also runs a task in AX_MODE_EVAL before each step */
    bool has_batch;    /* the frame gets a batch without numbers, not NULL */
    outcome *out;      /* filled by rank 0 */
    int64_t *launches; /* number of launched kernels on rank 0, or NULL */
} run;

static ax_layer *dropout(ax_ctx *ctx) { return ax_dropout(ctx, "drop", 0.5); }

static ax_layer *attention(ax_ctx *ctx)
{
    ax_attention_config c = {
        .width = WIDTH, .heads = 4, .init_std = 0.5, .proj_init_std = 0.5, .dropout = 0.5};
    return ax_attention(ctx, "attn", &c);
}

static ax_layer *both(ax_ctx *ctx)
{
    return ax_sequence_of(ctx, "both", 2, (ax_layer *[]){attention(ctx), dropout(ctx)});
}

static ax_layer *rate_0(ax_ctx *ctx)
{
    ax_attention_config c = {.width = WIDTH, .heads = 4, .init_std = 0.5, .proj_init_std = 0.5, .dropout = 0};
    return ax_sequence_of(ctx, "both", 2,
                          (ax_layer *[]){ax_attention(ctx, "attn", &c), ax_dropout(ctx, "drop", 0)});
}

static ax_layer *no_dropout(ax_ctx *ctx)
{
    ax_attention_config c = {.width = WIDTH, .heads = 4, .init_std = 0.5, .proj_init_std = 0.5};
    return ax_attention(ctx, "attn", &c);
}

static ax_layer *recomputed(ax_ctx *ctx) { return ax_recompute(ctx, "again", both(ctx)); }

static ax_layer *drops_all(ax_ctx *ctx) { return ax_dropout(ctx, "all", 1); }

static ax_layer *attention_drops_all(ax_ctx *ctx)
{
    ax_attention_config c = {.width = WIDTH, .heads = 4, .init_std = 0.5, .proj_init_std = 0.5, .dropout = 1};
    return ax_attention(ctx, "attn", &c);
}

/* Makes a tensor of values in [1, 2) in frame memory. */
static ax_status fill(ax_ctx *ctx, ax_frame *frame, ax_tensor *x)
{
    static const ax_role roles[] = {AX_ROLE_BATCH, AX_ROLE_NONE, AX_ROLE_MODEL};
    double host[COUNT];
    ax_layout layout = ax_layout_of_roles(ctx, roles, 3);
    ax_tensor like = ax_tensor_make(AX_F64, 3, (int64_t[]){B, T, WIDTH}, NULL, &layout);
    for (int i = 0; i < COUNT; i++)
        host[i] = 1 + ax_rng_uniform(9, (uint64_t)i);
    AX_TRY(ax_frame_alloc(frame, &like, x));
    return ax_tensor_scatter(ctx, x, host);
}

static ax_status run_task(const run *r, ax_ctx *ctx, ax_layer *net, ax_frame *frame, ax_mode mode, double *y,
                          double *dx)
{
    static const ax_batch empty;
    ax_tensor in, out, grad;
    AX_TRY(ax_frame_begin(frame, "task", mode, r->has_batch ? &empty : NULL));
    AX_TRY(fill(ctx, frame, &in));
    AX_TRY(ax_layer_forward(net, frame, &in, &out));
    AX_TRY(ax_tensor_collect(ctx, &out, y));
    if (mode == AX_MODE_EVAL)
        return AX_OK;
    AX_TRY(fill(ctx, frame, &in));
    AX_TRY(ax_layer_backward(net, frame, &in, &grad));
    return ax_tensor_collect(ctx, &grad, dx);
}

static void count(void *user, const ax_device_event *launch)
{
    (void)launch;
    ++*(int64_t *)user;
}

static ax_status run_steps(const run *r, ax_ctx *ctx, ax_layer *net, outcome *out)
{
    ax_param_set *set = NULL;
    ax_frame *frame = NULL;
    ax_listener listener = {AX_ON_KERNEL, count, r->launches, NULL};
    if (r->launches && ax_comm_rank(ctx->world) == 0)
        ax_device_listen(ctx->dev, &listener);
    ax_status status = ax_layer_param_set(net, 0, &set);
    if (status == AX_OK)
        status = ax_param_set_init(set);
    if (status == AX_OK)
        status = ax_frame_create(ctx, 1 << 20, &frame);
    for (int s = 0; s < STEPS && status == AX_OK; s++) {
        if (r->evaluates)
            status = run_task(r, ctx, net, frame, AX_MODE_EVAL, out->y[s], NULL);
        if (status == AX_OK)
            status = ax_param_set_zero_grad(set);
        if (status == AX_OK)
            status = run_task(r, ctx, net, frame, AX_MODE_TRAIN, out->y[s], out->dx[s]);
    }
    ax_device_unlisten(ctx->dev, &listener);
    ax_frame_destroy(&frame);
    ax_param_set_destroy(&set);
    return status;
}

static ax_status run_rank(ax_comm *world, void *arg)
{
    const run *r = arg;
    outcome mine;
    ax_ctx *ctx;
    AX_TRY(ax_ctx_create(world, r->grid, "check", 1, AX_F64, 5, &ctx));
    ax_layer *net = r->make(ctx);
    ax_status status = net ? run_steps(r, ctx, net, &mine) : ax_error_status();
    if (status == AX_OK && ax_comm_rank(world) == 0)
        *r->out = mine;
    ax_layer_destroy(&net);
    ax_ctx_destroy(&ctx);
    return status;
}

static outcome outcome_of(run r)
{
    outcome out;
    r.out = &out;
    assert_ranks(grid_ranks(r.grid), run_rank, &r);
    return out;
}

static const ax_grid_size one = {{1, 1, 1, 1, 1}};

static void successive_steps_have_different_masks(void **state)
{
    (void)state;
    make_fn *const nets[] = {dropout, attention, both};
    for (size_t i = 0; i < AX_COUNT(nets); i++)
        for (int with = 0; with < 2; with++) {
            outcome o = outcome_of((run){.grid = one, .make = nets[i], .has_batch = with});
            for (int a = 0; a < STEPS; a++)
                for (int b = 0; b < a; b++)
                    assert_memory_not_equal(o.y[a], o.y[b], sizeof o.y[a]);
        }
}

/* The input and dy of the test have the same values, so y and dx have them too. */
static void backward_uses_the_mask_of_forward(void **state)
{
    (void)state;
    outcome o = outcome_of((run){.grid = one, .make = dropout});
    assert_memory_equal(o.y, o.dx, sizeof o.y);
    for (int s = 0; s < STEPS; s++) {
        int zeros = 0;
        for (int i = 0; i < COUNT; i++)
            zeros += o.y[s][i] == 0;
        assert_in_range(zeros, COUNT / 4, 3 * COUNT / 4);
    }
}

static void recomputation_and_evaluation_keep_the_masks(void **state)
{
    (void)state;
    outcome plain = outcome_of((run){.grid = one, .make = both}),
            again = outcome_of((run){.grid = one, .make = recomputed}),
            between = outcome_of((run){.grid = one, .make = both, .evaluates = true});
    assert_memory_equal(&plain, &again, sizeof plain);
    assert_memory_equal(&plain, &between, sizeof plain);
}

static void all_grids_draw_the_same_masks(void **state)
{
    (void)state;
    static const ax_grid_size grids[] = {{{2, 1, 1, 1, 1}}, {{1, 2, 1, 1, 1}}, {{1, 1, 2, 1, 1}},
                                         {{1, 1, 1, 1, 4}}, {{2, 2, 1, 1, 2}}, {{4, 1, 2, 1, 1}}};
    const outcome serial = outcome_of((run){.grid = one, .make = both});
    for (size_t g = 0; g < AX_COUNT(grids); g++) {
        outcome o = outcome_of((run){.grid = grids[g], .make = both});
        for (int s = 0; s < STEPS; s++)
            for (int i = 0; i < COUNT; i++) {
                assert_true(fabs(o.y[s][i] - serial.y[s][i]) < 1e-12 * COUNT);
                assert_true(fabs(o.dx[s][i] - serial.dx[s][i]) < 1e-12 * COUNT);
            }
    }
}

/* As in PyTorch, p = 1 drops all elements: outputs and gradients are 0, not NaN. */
static void p_of_1_drops_all(void **state)
{
    (void)state;
    static const outcome zero;
    static const ax_grid_size grids[] = {{{1, 1, 1, 1, 1}}, {{2, 1, 1, 1, 2}}, {{8, 1, 1, 1, 1}}};
    make_fn *const nets[] = {drops_all, attention_drops_all};
    for (size_t g = 0; g < AX_COUNT(grids); g++)
        for (size_t i = 0; i < AX_COUNT(nets); i++) {
            outcome o = outcome_of((run){.grid = grids[g], .make = nets[i]});
            assert_true(!memcmp(&o, &zero, sizeof o));
        }
}

/* At rate 0 the bits and the launched kernels are those of a network without dropout. */
static void rate_0_is_no_dropout(void **state)
{
    (void)state;
    static const ax_grid_size grids[] = {{{1, 1, 1, 1, 1}}, {{2, 2, 1, 1, 2}}};
    for (size_t g = 0; g < AX_COUNT(grids); g++) {
        int64_t launches_at_0 = 0, launches_without = 0;
        outcome at_0 = outcome_of((run){.grid = grids[g], .make = rate_0, .launches = &launches_at_0}),
                without =
                    outcome_of((run){.grid = grids[g], .make = no_dropout, .launches = &launches_without});
        assert_true(launches_at_0 > 0 && launches_at_0 == launches_without);
        assert_memory_equal(&at_0, &without, sizeof at_0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(successive_steps_have_different_masks),
                                       cmocka_unit_test(backward_uses_the_mask_of_forward),
                                       cmocka_unit_test(recomputation_and_evaluation_keep_the_masks),
                                       cmocka_unit_test(all_grids_draw_the_same_masks),
                                       cmocka_unit_test(rate_0_is_no_dropout),
                                       cmocka_unit_test(p_of_1_drops_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
