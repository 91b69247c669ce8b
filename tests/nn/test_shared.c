/* Linear layers with the same input (q, k and v of attention; up and gate of a gated MLP) run as one GEMM in
 * forward, one for the input gradient and one for the weight gradients, wherever the weights are stored. The
 * GEMM of a weight's gradient computes the gradient of the bias too. test_layers.c checks the results. */
#include "axonn/nn.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { WIDTH = 64, HEADS = 8, T = 3, ROWS = 8, CALLS = 3 };

typedef enum layers { ATTENTION, GROUPED, HEAD_NORMS, MLP, LOW_RANK, FROZEN_WEIGHTS } layers;

typedef struct shared_case {
    const char *what;
    layers layers;
    ax_grid_size grid;
    int zero;
    size_t cache;
    ax_dtype compute;
    int expected; /* GEMMs of one micro-batch on each rank */
    int sums;     /* launches of kernel col_sum */
} shared_case;

typedef struct counts {
    int gemms, sums;
} counts;

static ax_layer *make(ax_ctx *ctx, layers what)
{
    ax_attention_config attention = {.width = WIDTH, .heads = HEADS, .init_std = 0.1, .proj_init_std = 0.1};
    attention.kv_heads = what == ATTENTION ? HEADS : HEADS / 2;
    attention.head_norm_eps = what == HEAD_NORMS ? 1e-6 : 0;
    if (what == MLP)
        return ax_mlp(ctx, "m",
                      &(ax_mlp_config){.width = WIDTH, .ffn = 2 * WIDTH, .gated = true, .init_std = 0.1});
    return ax_attention(ctx, "a", &attention);
}

/* Freezes the layer, and adds low-rank updates to q and v. */
static ax_status adapt(ax_layer *net)
{
    static const char *const adapted[] = {"a.q", "a.v"};
    ax_layer_freeze(net);
    for (size_t i = 0; i < AX_COUNT(adapted); i++)
        AX_TRY(ax_linear_add_low_rank(ax_layer_find(net, adapted[i]), &(ax_low_rank){.rank = 4, .scale = 2}));
    return AX_OK;
}

/* Freezes the weights of attention, but not the biases. */
static void freeze_weights(ax_layer *net)
{
    static const char *const names[] = {"a.q", "a.k", "a.v", "a.proj"};
    for (size_t i = 0; i < AX_COUNT(names); i++)
        ax_layer_find(net, names[i])->param[0]->frozen = true;
}

static void count(void *user, const ax_device_event *launch)
{
    counts *c = user;
    c->gemms += launch->kernel == AX_K_gemm;
    c->sums += launch->kernel == AX_K_col_sum;
}

/* Runs several micro-batches, and counts the launches of the last one. */
static ax_status run(ax_ctx *ctx, ax_layer *net, ax_frame *frame, ax_param_set *set, counts *out)
{
    ax_tensor x, y, dx;
    ax_layout layout = ax_activation_layout(ctx, AX_ROLE_MODEL);
    ax_tensor like = ax_tensor_make(ctx->compute, 3, (int64_t[]){ROWS, T, WIDTH}, NULL, &layout);
    AX_TRY(ax_param_set_init(set));
    AX_TRY(ax_param_set_zero_grad(set));
    ax_listener listener = {AX_ON_KERNEL, count, out, NULL};
    ax_device_listen(ctx->dev, &listener);
    for (int i = 0; i < CALLS; i++) {
        AX_TRY(ax_param_set_last_micro_batch(set, i == CALLS - 1));
        AX_TRY(ax_frame_begin(frame, "train", AX_MODE_TRAIN, NULL));
        AX_TRY(ax_frame_alloc(frame, &like, &x));
        AX_TRY(ax_run_fill(ctx->stream, &(ax_fill_args){.n = ax_tensor_count(ctx->grid, &x),
                                                        .value = 0.5,
                                                        .y = x.data,
                                                        .dtype = x.dtype}));
        *out = (counts){0, 0};
        AX_TRY(ax_layer_forward(net, frame, &x, &y));
        AX_TRY(ax_layer_backward(net, frame, &y, &dx));
    }
    ax_device_unlisten(ctx->dev, &listener);
    return ax_param_set_sync_grad(set);
}

static ax_status on_rank(ax_comm *world, void *arg)
{
    const shared_case *c = arg;
    ax_ctx *ctx;
    ax_frame *frame = NULL;
    ax_param_set *set = NULL;
    counts n = {0, 0};
    AX_TRY(ax_ctx_create(world, c->grid, "cpu", 1, c->compute, 1, &ctx));
    ctx->parallel.zero = c->zero;
    ctx->parallel.weight_cache = c->cache;
    ctx->parallel.overlap.oag = ctx->parallel.overlap.ors = true;
    ax_layer *net = make(ctx, c->layers);
    ax_status status = net ? AX_OK : ax_error_status();
    if (status == AX_OK && c->layers == LOW_RANK)
        status = adapt(net);
    if (status == AX_OK && c->layers == FROZEN_WEIGHTS)
        freeze_weights(net);
    if (status == AX_OK)
        status = ax_layer_param_set(net, 0, &set);
    if (status == AX_OK)
        status = ax_frame_create(ctx, 1 << 22, &frame);
    if (status == AX_OK)
        status = run(ctx, net, frame, set, &n);
    ax_frame_destroy(&frame);
    ax_param_set_destroy(&set);
    ax_layer_destroy(&net);
    ax_ctx_destroy(&ctx);
    AX_CHECK(status != AX_OK || (n.gemms == c->expected && n.sums == c->sums), AX_ERR_INTERNAL,
             "%s: %d GEMMs, not %d, or %d sums of columns, not %d", c->what, n.gemms, c->expected, n.sums,
             c->sums);
    return status;
}

/* Three GEMMs for the layers that share an input, and three for the layer after them. */
static void layers_with_one_input_are_one_gemm(void **state)
{
    (void)state;
    enum { TWO_LAYERS = 3 + 3, ALL_APART = 3 * 3 + 3, ADAPTED = 2 + 2 * 2 + 2 + 2 + 2 + 4 };
    const shared_case cases[] = {
        {"attention", ATTENTION, {{1, 1, 1, 1, 1}}, 0, 0, AX_BF16, TWO_LAYERS, 0},
        {"attention in fp32", ATTENTION, {{1, 1, 1, 1, 1}}, 0, 0, AX_F32, TWO_LAYERS, 0},
        {"grouped heads", GROUPED, {{1, 1, 1, 1, 1}}, 0, 0, AX_BF16, TWO_LAYERS, 0},
        {"grouped heads, split", GROUPED, {{2, 1, 1, 1, 1}}, 0, 0, AX_BF16, TWO_LAYERS, 0},
        {"partial sums", GROUPED, {{1, 2, 1, 1, 1}}, 0, 0, AX_BF16, TWO_LAYERS, 0},
        {"gathered weights", GROUPED, {{1, 1, 2, 1, 1}}, 0, 0, AX_BF16, TWO_LAYERS, 0},
        {"gathered weights in fp32", GROUPED, {{1, 1, 4, 1, 1}}, 0, 0, AX_F32, TWO_LAYERS, 0},
        {"ZeRO 1", GROUPED, {{1, 1, 1, 1, 2}}, 1, 0, AX_BF16, TWO_LAYERS, 0},
        {"ZeRO 2", GROUPED, {{1, 1, 1, 1, 2}}, 2, 0, AX_BF16, TWO_LAYERS, 0},
        {"ZeRO 3", GROUPED, {{2, 1, 2, 1, 2}}, 3, 0, AX_BF16, TWO_LAYERS, 0},
        {"cached weights", GROUPED, {{1, 1, 2, 1, 2}}, 3, 1 << 20, AX_BF16, TWO_LAYERS, 0},
        {"a cache that is too small", GROUPED, {{1, 1, 2, 1, 2}}, 3, 12000, AX_BF16, TWO_LAYERS, 0},
        {"gated MLP", MLP, {{1, 1, 1, 1, 1}}, 0, 0, AX_BF16, TWO_LAYERS, 0},
        {"gated MLP, gathered", MLP, {{1, 1, 2, 1, 1}}, 0, 0, AX_BF16, TWO_LAYERS, 0},
        {"low-rank updates", LOW_RANK, {{1, 1, 1, 1, 1}}, 0, 0, AX_BF16, ADAPTED, 0},
        {"low-rank updates, gathered", LOW_RANK, {{1, 1, 2, 1, 1}}, 0, 0, AX_BF16, ADAPTED, 0},
        /* The norms of heads need q and k with dense rows, so only the weights' side is joined. */
        {"norms of heads", HEAD_NORMS, {{1, 1, 1, 1, 1}}, 0, 0, AX_BF16, ALL_APART, 0},
        /* No GEMM reads the gradients of outputs together with x, so a kernel sums them for each bias. */
        {"frozen weights", FROZEN_WEIGHTS, {{1, 1, 1, 1, 1}}, 0, 0, AX_BF16, 2 + 2, 4},
    };
    for (size_t i = 0; i < AX_COUNT(cases); i++)
        assert_ranks(grid_ranks(cases[i].grid), on_rank, &cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(layers_with_one_input_are_one_gemm)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
