/* The bytes that a layer with experts communicates, counted by the communicators, equal the closed forms
 * exactly: they depend neither on the experts' number nor on their widths, nor on how many a token chooses,
 * except for the choices, their weights and the gradients of these. S is the bytes of a rank's n tokens, [n,
 * width], and e the number of ranks among which experts are divided.
 *   forward    along data.exp: all-gather of the tokens, reduce-scatter of the result, each (e-1) · S/(xy);
 *              all-gathers of the choices and their weights, (e-1) · n · top_k numbers
 *              along y: all-gather of the tokens and reduce-scatter of the result, each e · (y-1)/y · S
 *              along x: all-reduce of what is left, 2(x-1)/x · S/y; with e > 1, where what crosses data.exp
 * is split along x, all-gather of the tokens and reduce-scatter of the result, each e · (x-1)/x · S/y, and
 * all-gather of the rank's own part, (x-1)/x · S/y backward   the same with gradients: the reduce-scatter of
 * (e-1) · n · top_k numbers along data.exp in place of choices and weights, and their all-reduce along x and
 * y together
 *
 * With a capacity, if e > 1, S is the bytes of [experts, samples, places, width] on a rank:
 *   forward    along data.exp: two all-to-alls, each (e-1)/e · S/(xy), without overlap.dtd (e-1)/e · S
 *              along x and y: three times (two times without overlap.dtd) (x-1)/x · S and (y-1)/y · S/x;
 * along y also the all-gather of the tokens backward   the same */
#include "axonn/nn.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include <cmocka.h>

enum { WIDTH = 24, ROWS = 8, T = 3, LONG = 8 };

typedef struct moe_case {
    ax_grid_size grid;
    int64_t ffn, experts, top_k;
    ax_dtype compute;
    double capacity;
    bool dtd;
    bool kept; /* forward runs again in backward, and does not communicate again */
} moe_case;

static ax_status run_layer(ax_ctx *ctx, ax_layer *net, int64_t tokens)
{
    ax_param_set *set;
    ax_frame *frame;
    ax_tensor x, y, dx;
    ax_layout layout = ax_activation_layout(ctx, AX_ROLE_MODEL);
    ax_tensor like = ax_tensor_make(ctx->compute, 3, (int64_t[]){ROWS, tokens, WIDTH}, NULL, &layout);
    AX_TRY(ax_layer_param_set(net, 0, &set));
    AX_TRY(ax_param_set_init(set));
    AX_TRY(ax_frame_create(ctx, 1 << 20, &frame));
    AX_TRY(ax_param_set_zero_grad(set));
    AX_TRY(ax_frame_begin(frame, "train", AX_MODE_TRAIN, NULL));
    AX_TRY(ax_frame_alloc(frame, &like, &x));
    ax_fill_args fill = {.n = ax_tensor_count(ctx->grid, &x), .value = 0.5, .y = x.data, .dtype = x.dtype};
    AX_TRY(ax_run_fill(ctx->stream, &fill));
    AX_TRY(ax_layer_forward(net, frame, &x, &y));
    AX_TRY(ax_layer_backward(net, frame, &y, &dx));
    ax_status status = ax_frame_at_end(frame, NULL, NULL);
    ax_frame_destroy(&frame);
    ax_param_set_destroy(&set);
    return status;
}

static ax_status expect(const ax_grid *grid, const char *where, ax_axisset axes, int64_t want)
{
    int64_t have = ax_grid_effective(grid, axes) == axes ? traffic_along(grid, axes).bytes : 0;
    AX_CHECK(have == want, AX_ERR_INTERNAL, "%lld bytes went along %s, the closed form says %lld",
             (long long)have, where, (long long)want);
    return AX_OK;
}

/* Every expert has a place for each of LONG tokens. */
static ax_status compare_exchange(const ax_grid *grid, const moe_case *c)
{
    const int x = c->grid.of[AX_X], y = c->grid.of[AX_Y], e = ax_grid_size_along(c->grid, AX_SIZE_EXPERT);
    const int64_t tokens = ROWS / c->grid.of[AX_DATA] * LONG * WIDTH * (int64_t)ax_dtype_size(c->compute),
                  places = c->experts * tokens, times = 2 * (c->dtd ? 3 : 2);
    AX_TRY(expect(grid, "data.exp", ax_grid_atoms(grid, 1u << ax_grid_experts(grid)->minor),
                  4 * (e - 1) * places / e / (c->dtd ? x * y : 1)));
    AX_TRY(expect(grid, "x", 1u << AX_X, x > 1 ? times * (x - 1) * places / x : 0));
    AX_TRY(expect(grid, "y", 1u << AX_Y,
                  y > 1 ? times * (y - 1) * places / (x * y) + 2 * (y - 1) * tokens / y : 0));
    return expect(grid, "x and y", 1u << AX_X | 1u << AX_Y, 0);
}

static ax_status compare(const ax_grid *grid, const moe_case *c)
{
    const int x = c->grid.of[AX_X], y = c->grid.of[AX_Y], xy = x * y,
              e = ax_grid_size_along(c->grid, AX_SIZE_EXPERT);
    const int64_t n = ROWS / c->grid.of[AX_DATA] * T, bytes = n * WIDTH * (int64_t)ax_dtype_size(c->compute),
                  accum = (int64_t)ax_dtype_size(ax_dtype_accum(c->compute)),
                  weights = 2 * n * c->top_k * accum * (xy - 1) / xy,
                  along_x = (e > 1 ? 4 * e + 2 : 4) * (x - 1) * bytes / xy,
                  along_y = e * 2 * (2 * bytes * (y - 1) / y),
                  along_e = (e - 1) * (4 * bytes / xy + n * c->top_k * (4 + 2 * accum));
    const ax_axisset of_x = 1u << AX_X, of_y = 1u << AX_Y;
    if (e > 1)
        AX_TRY(expect(grid, "data.exp", ax_grid_atoms(grid, 1u << ax_grid_experts(grid)->minor), along_e));
    AX_TRY(expect(grid, "x", of_x, x > 1 ? along_x + (y > 1 ? 0 : weights) : 0));
    AX_TRY(expect(grid, "y", of_y, y > 1 ? along_y + (x > 1 ? 0 : weights) : 0));
    return expect(grid, "x and y", of_x | of_y, x > 1 && y > 1 ? weights : 0);
}

static ax_status run_rank(ax_comm *world, void *arg)
{
    const moe_case *c = arg;
    ax_ctx *ctx;
    AX_TRY(ax_ctx_create(world, c->grid, "cpu", 1, c->compute, 1, &ctx));
    ctx->parallel.overlap.dtd = c->dtd;
    ctx->parallel.keep_results = c->kept;
    ax_layer *net = ax_moe(ctx, "m",
                           &(ax_moe_config){.width = WIDTH,
                                            .ffn = c->ffn,
                                            .experts = c->experts,
                                            .top_k = c->top_k,
                                            .activation = AX_SILU,
                                            .init_std = 0.1,
                                            .down_init_std = 0.1,
                                            .capacity = c->capacity});
    if (net && c->kept)
        net = ax_recompute(ctx, "again", net);
    ax_status status = net ? run_layer(ctx, net, c->capacity > 0 ? LONG : T) : ax_error_status();
    if (status == AX_OK)
        status = c->capacity > 0 ? compare_exchange(ctx->grid, c) : compare(ctx->grid, c);
    ax_layer_destroy(&net);
    ax_ctx_destroy(&ctx);
    return status;
}

static void experts_send_the_bytes_of_the_closed_forms(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{7, 3, 1}, {40, 9, 2}, {5, 4, 4}}; /* inner width, experts, chosen */
    for (int x = 1; x <= 4; x++)
        for (int y = 1; x * y <= 8; y++)
            for (size_t i = 0; i < AX_COUNT(sizes); i++) {
                if (WIDTH % y || (WIDTH / y) % x || (ROWS * T * WIDTH / y) % x)
                    continue;
                moe_case c = {.grid = {{x, y, 1, 1,
                                        x * y <= 2   ? 4
                                        : x * y <= 4 ? 2
                                                     : 1}},
                              .ffn = sizes[i][0],
                              .experts = sizes[i][1],
                              .top_k = sizes[i][2],
                              .compute = i % 2 ? AX_F32 : AX_BF16,
                              .kept = (x + y) % 2};
                for (int e = 1; e <= c.grid.of[AX_DATA] && e <= c.experts; e *= 2) {
                    c.grid.of[AX_SIZE_EXPERT] = e;
                    if (ax_comm_threads_run(grid_ranks(c.grid), run_rank, &c) != AX_OK)
                        fail_msg("x=%d y=%d expert=%d, %lld of %lld: %s", x, y, e, (long long)c.top_k,
                                 (long long)c.experts, ax_error_message());
                }
            }
}

static void places_send_the_bytes_of_the_closed_forms(void **state)
{
    (void)state;
    static const ax_grid_size grids[] = {{{1, 1, 1, 1, 4, 2}}, {{1, 1, 1, 1, 4, 4}}, {{2, 1, 1, 1, 4, 4}},
                                         {{1, 2, 1, 1, 4, 2}}, {{2, 2, 1, 1, 2, 2}}, {{1, 4, 1, 1, 2, 2}}};
    for (size_t g = 0; g < 2 * AX_COUNT(grids); g++) {
        moe_case c = {.grid = grids[g / 2],
                      .ffn = 7,
                      .experts = 4,
                      .top_k = 2,
                      .compute = g % 3 ? AX_F32 : AX_BF16,
                      .capacity = 2,
                      .dtd = g % 2,
                      .kept = g / 2 % 2};
        if (ax_comm_threads_run(grid_ranks(c.grid), run_rank, &c) != AX_OK)
            fail_msg("grid %zu, dtd %d: %s", g / 2, c.dtd, ax_error_message());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(experts_send_the_bytes_of_the_closed_forms),
                                       cmocka_unit_test(places_send_the_bytes_of_the_closed_forms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
