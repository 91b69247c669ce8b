/* Experts that are divided among ranks, where one rank gets the rows of all tokens and the others none: the
 * results are those of one rank that has all experts. And the memory of a model whose experts are divided. */
#include "axonn/nn.h"
#include "support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { WIDTH = 7, FFN = 5, EXPERTS = 6, ROWS = 4, T = 3, TOKENS = ROWS * T, PARAMS = 4 };
enum { VALUES = 2 * TOKENS * WIDTH + EXPERTS * WIDTH * (1 + 3 * FFN) };

typedef struct moe_case {
    ax_grid_size grid;
    int64_t top_k;
    int first;   /* every token chooses the experts from this one on */
    double room; /* ax_parallel.expert_room */
    double capacity;
    bool dtd;      /* ax_parallel.overlap.dtd */
    double *value; /* result: output, input gradient and gradients of the parameters, on rank 0 */
} moe_case;

static ax_layer *make_layer(ax_ctx *ctx, int64_t width, int64_t ffn, int64_t experts, int64_t top_k,
                            double capacity)
{
    return ax_moe(ctx, "m",
                  &(ax_moe_config){.width = width,
                                   .ffn = ffn,
                                   .experts = experts,
                                   .top_k = top_k,
                                   .renormalize = true,
                                   .activation = AX_SILU,
                                   .init_std = 0.5,
                                   .down_init_std = 0.5,
                                   .capacity = capacity});
}

/* Makes the router, of which each rank has all, prefer experts from `first` on: tokens are positive. */
static void aim(ax_param *router, int first)
{
    double *w = router->rounded.data;
    for (int e = 0; e < EXPERTS; e++)
        for (int i = 0; i < WIDTH; i++)
            w[e * WIDTH + i] = (e >= first ? 0.1 : -0.1) - 0.01 * abs(e - first) - 0.001 * i;
}

static ax_status take(ax_ctx *ctx, const ax_tensor *t, double **at)
{
    AX_TRY(ax_tensor_collect(ctx, t, *at));
    *at += ax_tensor_global_count(t);
    return AX_OK;
}

static ax_status run_layer(ax_ctx *ctx, ax_layer *net, const moe_case *c, double *out)
{
    ax_param_set *set;
    ax_frame *frame;
    ax_tensor x, y, dx;
    double tokens[TOKENS * WIDTH];
    ax_layout layout = ax_activation_layout(ctx, AX_ROLE_MODEL);
    ax_tensor like = ax_tensor_make(AX_F64, 3, (int64_t[]){ROWS, T, WIDTH}, NULL, &layout);
    for (int i = 0; i < TOKENS * WIDTH; i++)
        tokens[i] = 0.5 + ax_rng_uniform(5, (uint64_t)i);
    AX_TRY(ax_layer_param_set(net, 0, &set));
    AX_TRY(ax_param_set_init(set));
    aim(set->param[0], c->first);
    AX_TRY(ax_frame_create(ctx, 1 << 20, &frame));
    AX_TRY(ax_param_set_zero_grad(set));
    AX_TRY(ax_frame_begin(frame, "train", AX_MODE_TRAIN, NULL));
    AX_TRY(ax_frame_alloc(frame, &like, &x));
    AX_TRY(ax_tensor_scatter(ctx, &x, tokens));
    AX_TRY(ax_layer_forward(net, frame, &x, &y));
    AX_TRY(take(ctx, &y, &out));
    AX_TRY(ax_layer_backward(net, frame, &x, &dx));
    AX_TRY(take(ctx, &dx, &out));
    AX_TRY(ax_param_set_sync_grad(set));
    for (int i = 0; i < PARAMS; i++)
        AX_TRY(take(ctx, &set->param[i]->grad, &out));
    ax_frame_destroy(&frame);
    ax_param_set_destroy(&set);
    return AX_OK;
}

static ax_status run_rank(ax_comm *world, void *arg)
{
    const moe_case *c = arg;
    ax_ctx *ctx;
    double *out;
    AX_TRY(ax_calloc(VALUES, sizeof *out, &out));
    AX_TRY(ax_ctx_create(world, c->grid, "ref", 1, AX_F64, 1, &ctx));
    ctx->parallel.expert_room = c->room;
    ctx->parallel.overlap.dtd = c->dtd;
    ax_layer *net = make_layer(ctx, WIDTH, FFN, EXPERTS, c->top_k, c->capacity);
    ax_status status = net ? run_layer(ctx, net, c, out) : ax_error_status();
    for (int i = 0; i < VALUES && ax_comm_rank(world) == 0; i++)
        c->value[i] = out[i];
    free(out);
    ax_layer_destroy(&net);
    ax_ctx_destroy(&ctx);
    return status;
}

static void run(moe_case c)
{
    if (ax_comm_threads_run(grid_ranks(c.grid), run_rank, &c) != AX_OK)
        fail_msg("top %d from %d on: %s", (int)c.top_k, c.first, ax_error_message());
}

/* Compares with one rank, whatever the memory for rows is; with a capacity, whatever ranks send. */
static void compare_with_one_rank(double capacity)
{
    static double one[VALUES], many[VALUES];
    static const ax_grid_size grids[] = {{{1, 1, 1, 1, 3, 3}}, {{1, 1, 1, 1, 4, 2}}, {{2, 1, 1, 1, 2, 2}}};
    for (int top_k = 1; top_k <= 2; top_k++)
        for (int first = 0; first < EXPERTS; first += EXPERTS - top_k) {
            run((moe_case){
                .grid = {{1}}, .top_k = top_k, .first = first, .capacity = capacity, .value = one});
            for (size_t g = 0; g < 2 * AX_COUNT(grids); g++) {
                run((moe_case){.grid = grids[g / 2],
                               .top_k = top_k,
                               .first = first,
                               .room = g % 2 ? 1 : 1e3,
                               .capacity = capacity,
                               .dtd = g % 2,
                               .value = many});
                for (int i = 0; i < VALUES; i++)
                    if (!(fabs(many[i] - one[i]) <= 1e-12))
                        fail_msg("grid %zu, top %d from %d on: value %d is %g, not %g", g / 2, top_k, first,
                                 i, many[i], one[i]);
            }
        }
}

/* All tokens choose the last experts, or the first ones: those of one rank. Sums of at most TOKENS terms of
 * order one are in another order than on one rank. With a capacity of 2 one or two of the three tokens of a
 * sample have places. */
static void one_rank_may_get_all_rows(void **state)
{
    (void)state;
    compare_with_one_rank(0);
    compare_with_one_rank(2);
}

static void dropping_duplicates_changes_no_bit(void **state)
{
    (void)state;
    static double all[VALUES], parts[VALUES];
    static const ax_grid_size grids[] = {
        {{2, 1, 1, 1, 2, 2}}, {{2, 2, 1, 1, 2, 2}}, {{1, 3, 1, 1, 2, 2}}, {{2, 1, 1, 1, 4, 4}}};
    for (size_t g = 0; g < AX_COUNT(grids); g++)
        for (int top_k = 1; top_k <= 2; top_k++) {
            moe_case c = {.grid = grids[g], .top_k = top_k, .first = 1, .capacity = 3, .value = all};
            run(c);
            c.dtd = true;
            c.value = parts;
            run(c);
            assert_memory_equal(parts, all, sizeof all);
        }
}

/* ---- memory -------------------------------------------------------------------------------------- */

enum { WIDE = 64, INNER = 128, STAGE = 1 };

/* Returns the bytes of a matrix of n elements in bf16 that AdamW updates, with ZeRO 1 along r ranks: 2 in
 * kernels and 4 of gradient, and a share of 12 of state and 4 of summed gradient; with r = 1 the sum over
 * micro-batches is the gradient. */
static size_t bytes_of(int64_t n, int r) { return (size_t)(r > 1 ? 6 * n + 16 * n / r : 18 * n); }

/* All sizes are multiples of those of the ranks, so that nothing is padded. */
static void experts_take_the_memory_of_their_replicas(void **state)
{
    (void)state;
    static const int sizes[][2] = {{8, 1}, {8, 2}, {8, 4}, {8, 8}, {4, 4}, {1, 1}}; /* data, expert */
    for (int experts = 8; experts <= 64; experts *= 8)
        for (size_t i = 0; i < AX_COUNT(sizes); i++) {
            const int data = sizes[i][0], expert = sizes[i][1];
            const ax_parallel parallel = {.zero = STAGE};
            ax_ctx *ctx;
            ax_param_set *set;
            assert_int_equal(ax_ctx_create_dry(0, data, (ax_grid_size){{1, 1, 1, 1, data, expert}}, AX_BF16,
                                               &parallel, &ctx),
                             AX_OK);
            ax_layer *net = make_layer(ctx, WIDE, INNER, experts, 2, 0);
            assert_non_null(net);
            assert_int_equal(ax_layer_param_set(net, 2, &set), AX_OK);
            size_t held = 0;
            static const ax_memory_class classes[] = {AX_MEMORY_WEIGHTS, AX_MEMORY_COPIES,
                                                      AX_MEMORY_GRADIENTS, AX_MEMORY_OPTIMIZER};
            for (size_t k = 0; k < AX_COUNT(classes); k++)
                held += set->memory.bytes[classes[k]];
            assert_int_equal(held, bytes_of((int64_t)experts * WIDE, data) +
                                       bytes_of((int64_t)3 * experts / expert * WIDE * INNER, data / expert));
            ax_param_set_destroy(&set);
            ax_layer_destroy(&net);
            ax_ctx_destroy(&ctx);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_rank_may_get_all_rows),
                                       cmocka_unit_test(dropping_duplicates_changes_no_bit),
                                       cmocka_unit_test(experts_take_the_memory_of_their_replicas)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
