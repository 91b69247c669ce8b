/* The time of a layer with experts beside a dense gated MLP of the same active parameters: forward and
 * backward, in bf16 on the cpu device, accumulating into gradients that are there.
 *
 *     cmake --build build --target bench_experts && build/bench_experts [THREADS]
 *
 * Each line has the medians of ROUNDS rounds in which the two take turns, with their minima and maxima, the
 * rates of the active parameters' operations, and the ratio of the rates. At few rows an expert the gradients
 * of weights are the limit: each takes 8 bytes of traffic, and 2 operations a row. With "serve" as first
 * argument the program waits for lines "CASE SIDE" (numbers from 0; side 0 has experts, 1 is dense), and
 * answers each with the milliseconds of one round: bench/experts.py does so, beside PyTorch. */
#include "axonn/nn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 11, SIDES = 2 };

static const struct {
    int64_t experts, top_k, d, f, rows; /* rows: of an expert, on average */
} cases[] = {{8, 2, 768, 2048, 256}, {64, 8, 1024, 512, 256}, {8, 2, 768, 2048, 64}, {64, 8, 1024, 512, 64}};

/* One of the two layers, with what it needs. */
typedef struct side {
    ax_layer *net;
    ax_param_set *set;
    ax_frame *frame;
} side;

static void check(ax_status status)
{
    if (status == AX_OK)
        return;
    fprintf(stderr, "bench_experts: %s\n", ax_error_message());
    exit(1);
}

static int64_t tokens_of(int c) { return cases[c].rows * cases[c].experts / cases[c].top_k; }

static ax_layer *layer_of(ax_ctx *ctx, int c, int which)
{
    if (which == 0)
        return ax_moe(ctx, "experts",
                      &(ax_moe_config){.width = cases[c].d,
                                       .ffn = cases[c].f,
                                       .experts = cases[c].experts,
                                       .top_k = cases[c].top_k,
                                       .renormalize = true,
                                       .activation = AX_SILU,
                                       .init_std = 0.02,
                                       .down_init_std = 0.02});
    return ax_mlp(ctx, "dense",
                  &(ax_mlp_config){.width = cases[c].d,
                                   .ffn = cases[c].f * cases[c].top_k,
                                   .activation = AX_SILU,
                                   .init_std = 0.02,
                                   .down_init_std = 0.02,
                                   .gated = true,
                                   .no_bias = true});
}

static void open_side(ax_ctx *ctx, int c, int which, side *s)
{
    s->net = layer_of(ctx, c, which);
    check(s->net ? AX_OK : ax_error_status());
    check(ax_layer_param_set(s->net, 0, &s->set));
    check(ax_param_set_init(s->set));
    check(ax_frame_create(
        ctx,
        (size_t)tokens_of(c) * (size_t)(cases[c].top_k * (4 * cases[c].f + 3 * cases[c].d) + 8 * cases[c].d) *
                4 +
            ((size_t)64 << 20),
        &s->frame));
    check(ax_param_set_zero_grad(s->set));
}

static void close_side(side *s)
{
    ax_frame_destroy(&s->frame);
    ax_param_set_destroy(&s->set);
    ax_layer_destroy(&s->net);
}

/* Runs forward and backward, and returns the milliseconds. */
static double run_round(ax_ctx *ctx, int c, side *s)
{
    ax_tensor x, y, dx;
    const int64_t n = tokens_of(c);
    ax_tensor like = ax_tensor_make(ctx->compute, 3, (int64_t[]){1, n, cases[c].d}, NULL, NULL);
    check(ax_frame_begin(s->frame, "train", AX_MODE_TRAIN, NULL));
    check(ax_frame_alloc(s->frame, &like, &x));
    ax_init_normal_args init = {.extent = {1, 1, n, cases[c].d},
                                .n = {1, 1, n, cases[c].d},
                                .key = 7,
                                .std = 1,
                                .y = x.data,
                                .dtype = x.dtype};
    check(ax_run_init_normal(ctx->stream, &init));
    const double begin = ax_now();
    check(ax_layer_forward(s->net, s->frame, &x, &y));
    check(ax_layer_backward(s->net, s->frame, &y, &dx));
    check(ax_frame_at_end(s->frame, NULL, NULL));
    return (ax_now() - begin) * 1e3;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void bench_case(ax_ctx *ctx, int c)
{
    side s[SIDES];
    double ms[SIDES][ROUNDS], rate[SIDES];
    const double flops = 18.0 * (double)(tokens_of(c) * cases[c].top_k) * (double)(cases[c].d * cases[c].f);
    for (int i = 0; i < SIDES; i++) {
        open_side(ctx, c, i, &s[i]);
        run_round(ctx, c, &s[i]);
    }
    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < SIDES; i++)
            ms[i][r] = run_round(ctx, c, &s[i]);
    printf("E %2lld k %lld d %4lld f %4lld, %3lld rows an expert:", (long long)cases[c].experts,
           (long long)cases[c].top_k, (long long)cases[c].d, (long long)cases[c].f, (long long)cases[c].rows);
    for (int i = 0; i < SIDES; i++) {
        qsort(ms[i], ROUNDS, sizeof ms[i][0], ascending);
        rate[i] = flops / ms[i][ROUNDS / 2] / 1e6;
        printf("  %s %.0f ms (%.0f ... %.0f), %.0f GFLOP/s", i ? "dense" : "experts", ms[i][ROUNDS / 2],
               ms[i][0], ms[i][ROUNDS - 1], rate[i]);
        close_side(&s[i]);
    }
    printf("  ratio %.2f\n", rate[0] / rate[1]);
    fflush(stdout);
}

static void serve(ax_ctx *ctx)
{
    int c, which, now[2] = {-1, -1};
    side s = {0};
    while (scanf("%d %d", &c, &which) == 2) {
        if (c != now[0] || which != now[1]) {
            close_side(&s);
            s = (side){0};
            open_side(ctx, c, which, &s);
            run_round(ctx, c, &s);
            now[0] = c;
            now[1] = which;
        }
        printf("%.3f\n", run_round(ctx, c, &s));
        fflush(stdout);
    }
    close_side(&s);
}

int main(int argc, char **argv)
{
    const bool serves = argc > 1 && !strcmp(argv[1], "serve");
    const int threads = argc > 1 + serves ? atoi(argv[1 + serves]) : 0;
    ax_comm *self;
    ax_ctx *ctx;
    check(ax_comm_self_create(&self));
    check(ax_ctx_create(self, (ax_grid_size){{1}}, "cpu", threads ? threads : 2, AX_BF16, 1, &ctx));
    for (size_t c = 0; !serves && c < AX_COUNT(cases); c++)
        bench_case(ctx, (int)c);
    if (serves)
        serve(ctx);
    ax_ctx_destroy(&ctx);
    ax_comm_destroy(&self);
    return 0;
}
