/* The tables of a vocabulary are padded in memory by rows of zeros, which GEMMs of the output head use: their
 * extents are multiples of what fits 128 bytes, whatever the vocabulary, and nothing else changes. */
#include "axonn/nn.h"
#include "support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { WIDTH = 24, VOCAB = 301, ROWS = 8, T = 3, STEPS = 2 };

typedef struct vocab_case {
    const char *device;
    ax_grid_size grid;
    int zero;
    size_t cache;
    ax_dtype compute;
    bool bias;
} vocab_case;

/* What `look` has seen: GEMMs, and how many of them have an extent that is not a multiple of `unit`, apart
 * from WIDTH and the number of rows. */
typedef struct seen {
    int64_t unit, rows;
    int gemms, odd;
} seen;

static void look(void *user, const ax_device_event *launch)
{
    seen *s = user;
    const ax_gemm_args *g = launch->args;
    if (launch->kernel != AX_K_gemm)
        return;
    const int64_t extents[] = {g->m, g->n, g->k};
    bool odd = false;
    for (int i = 0; i < 3; i++)
        odd |= extents[i] % s->unit && extents[i] % WIDTH && extents[i] != s->rows;
    s->gemms++;
    s->odd += odd;
}

static ax_status all_finite(ax_ctx *ctx, const ax_tensor *t)
{
    static _Thread_local double global[VOCAB * WIDTH];
    AX_TRY(ax_tensor_collect(ctx, t, global));
    for (int64_t i = 0; i < ax_tensor_global_count(t); i++)
        EXPECT(isfinite(ax_load(t->dtype, global, i)));
    return AX_OK;
}

/* One micro-batch: logits of x, their loss, and backward. */
static ax_status micro_batch(ax_ctx *ctx, ax_layer *head, ax_frame *frame)
{
    ax_layout layout = ax_activation_layout(ctx, AX_ROLE_MODEL), of_ids = {.dim[0] = layout.dim[0]};
    ax_tensor like = ax_tensor_make(ctx->compute, 3, (int64_t[]){ROWS, T, WIDTH}, NULL, &layout),
              ids = ax_tensor_make(AX_I32, 2, (int64_t[]){ROWS, T}, NULL, &of_ids), x, y, dx;
    double loss, ones[ROWS * T * WIDTH];
    int32_t targets[ROWS * T];
    for (int i = 0; i < ROWS * T * WIDTH; i++)
        ax_store(ctx->compute, ones, i, 0.5);
    for (int i = 0; i < ROWS * T; i++)
        targets[i] = i * 12;
    AX_TRY(ax_frame_begin(frame, "train", AX_MODE_TRAIN, NULL));
    AX_TRY(ax_frame_alloc(frame, &like, &x));
    AX_TRY(ax_frame_alloc(frame, &ids, &ids));
    AX_TRY(ax_tensor_scatter(ctx, &x, ones));
    AX_TRY(ax_tensor_scatter(ctx, &ids, targets));
    AX_TRY(ax_layer_forward(head, frame, &x, &y));
    AX_TRY(ax_cross_entropy_loss(frame, &y, &ids, -1, &loss, &y));
    EXPECT(isfinite(loss));
    AX_TRY(ax_layer_backward(head, frame, &y, &dx));
    return all_finite(ctx, &dx);
}

static ax_status run(ax_ctx *ctx, const vocab_case *c, ax_layer *head, ax_frame *frame, ax_param_set *set)
{
    const ax_param *w = head->param[AX_LINEAR_WEIGHT];
    seen s = {.unit = AX_ROW_ALIGN / (int64_t)ax_dtype_size(c->compute)};
    ax_tensor used = w->rest;
    used.layout = w->use;
    s.rows =
        ax_tensor_extent(ctx->grid,
                         &(ax_tensor){.ndim = 1,
                                      .dim = {ROWS},
                                      .layout = {.dim[0] = ax_activation_layout(ctx, AX_ROLE_MODEL).dim[0]}},
                         0) *
        T;
    bool needs = ax_tensor_extent(ctx->grid, &used, 0) % s.unit;
    AX_TRY(ax_param_set_init(set));
    ax_listener listener = {AX_ON_KERNEL, look, &s, NULL};
    ax_device_listen(ctx->dev, &listener);
    for (int step = 0; step < STEPS; step++) {
        s.gemms = s.odd = 0;
        AX_TRY(ax_param_set_zero_grad(set));
        for (int i = 0; i < 2; i++) {
            AX_TRY(ax_param_set_last_micro_batch(set, i));
            AX_TRY(micro_batch(ctx, head, frame));
        }
        AX_TRY(ax_param_set_sync_grad(set));
        AX_TRY(all_finite(ctx, &w->grad));
        AX_TRY(ax_param_set_refresh(set));
        EXPECT(s.gemms == 2 * 3);
        EXPECT(s.odd == (c->bias && needs ? s.gemms : 0));
    }
    ax_device_unlisten(ctx->dev, &listener);
    return AX_OK;
}

static ax_status on_rank(ax_comm *world, void *arg)
{
    const vocab_case *c = arg;
    ax_ctx *ctx;
    ax_frame *frame = NULL;
    ax_param_set *set = NULL;
    AX_TRY(ax_ctx_create(world, c->grid, c->device, 1, c->compute, 1, &ctx));
    ctx->parallel.zero = c->zero;
    ctx->parallel.weight_cache = c->cache;
    ax_layer *head = ax_linear(ctx, "head",
                               &(ax_linear_config){.in = WIDTH,
                                                   .out = VOCAB,
                                                   .in_role = AX_ROLE_MODEL,
                                                   .out_role = AX_ROLE_VOCAB,
                                                   .init_std = 0.1,
                                                   .no_bias = !c->bias});
    ax_status status = head ? ax_layer_param_set(head, 0, &set) : ax_error_status();
    if (status == AX_OK)
        status = ax_frame_create(ctx, 1 << 20, &frame);
    if (status == AX_OK)
        status = run(ctx, c, head, frame, set);
    ax_frame_destroy(&frame);
    ax_param_set_destroy(&set);
    ax_layer_destroy(&head);
    ax_ctx_destroy(&ctx);
    return status;
}

static void gemms_of_the_head_have_even_extents(void **state)
{
    (void)state;
    const vocab_case cases[] = {
        {"check:cpu", {{1, 1, 1, 1, 1}}, 0, 0, AX_BF16, false},
        {"check:cpu", {{1, 1, 1, 1, 1}}, 0, 0, AX_F32, false},
        {"check", {{1, 1, 1, 1, 1}}, 0, 0, AX_F64, false},
        {"check:cpu", {{2, 1, 1, 1, 1}}, 0, 0, AX_BF16, false},
        {"check:cpu", {{2, 2, 1, 1, 1}}, 0, 0, AX_F32, false},
        {"check:cpu", {{1, 1, 3, 1, 1}}, 0, 0, AX_BF16, false},
        {"check:cpu", {{1, 1, 1, 1, 3}}, 1, 0, AX_BF16, false},
        {"check:cpu", {{1, 1, 1, 1, 3}}, 2, 0, AX_BF16, false},
        {"check:cpu", {{2, 1, 2, 1, 2}}, 3, 0, AX_BF16, false},
        {"check:cpu", {{1, 1, 2, 1, 2}}, 3, 1 << 20, AX_F32, false},
        {"check:cpu", {{1, 1, 1, 1, 1}}, 0, 0, AX_BF16, true},
    };
    for (size_t i = 0; i < AX_COUNT(cases); i++)
        assert_ranks(grid_ranks(cases[i].grid), on_rank, &cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gemms_of_the_head_have_even_extents)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
