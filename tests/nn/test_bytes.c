/* The bytes that a linear layer communicates, counted by the communicators, equal the closed forms of
 * 2502.08145, section "Performance model", exactly and on every rank. Per micro-batch: all-gathers of the
 * weight and a reduce-scatter of its gradient along z, the all-reduce of outputs along the axis that splits
 * the inputs, and the all-reduce of input gradients along the axis that splits the outputs. Per step: one
 * reduction along data. No extent is divisible by the grid: messages are padded to the largest part of the
 * group. */
#include "axonn/nn.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { IN = 13, OUT = 22, ROWS = 7, T = 3, MICRO_BATCHES = 3 };

typedef enum variant { PLAIN, RECOMPUTED, KEPT, CACHED, VARIANTS } variant;

typedef struct bytes_case {
    ax_grid_size grid;
    ax_dtype compute;
    bool transposed; /* hidden → model: x and y swap roles */
    variant variant;
} bytes_case;

/* ---- closed forms -------------------------------------------------------------------------------- */

/* Returns the size of part `i` of n, split into `parts` balanced parts with the larger ones first. */
static int64_t share(int64_t n, int parts, int i) { return n / parts + (i < n % parts); }

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/* Returns the bytes that a ring sends for an all-gather or reduce-scatter: (g-1)/g of the whole, which has g
 * equal parts. */
static int64_t gather_bytes(int g, int64_t part) { return (g - 1) * part; }
static int64_t reduce_bytes(int g, int64_t size) { return 2 * (g - 1) * size / g; }

/* Bytes per axis in one step. */
typedef struct volumes {
    int64_t x, y, z, data;
} volumes;

/* This rank has m rows, k inputs and n outputs. An element has e bytes in kernels and a bytes in gradients.
 * The axis that splits inputs has gk ranks, the axis that splits outputs gn. */
static volumes closed_form(const bytes_case *c, int x, int y, int z, int data)
{
    ax_grid_size g = c->grid;
    int gk = c->transposed ? g.of[AX_X] : g.of[AX_Y], gn = c->transposed ? g.of[AX_Y] : g.of[AX_X];
    int64_t m = share(share(ROWS, g.of[AX_DATA], data), g.of[AX_Z], z) * T;
    int64_t k = share(IN, gk, c->transposed ? x : y), n = share(OUT, gn, c->transposed ? y : x);
    int64_t e = (int64_t)ax_dtype_size(c->compute), a = c->compute == AX_F64 ? 8 : 4;
    int forwards = c->variant == RECOMPUTED || (c->variant == KEPT && gk == 1) ? 2 : 1;
    /* AG_z: once for each forward and once for backward of each micro-batch; once per step if the weight is
     * cached. A forward that takes kept sums needs no weight. RS_z: of the whole gradient. */
    int64_t gathers = c->variant == CACHED ? 1 : (forwards + 1) * MICRO_BATCHES,
            part = ceil_div(n, g.of[AX_Z]) * k;
    volumes v = {.z = gathers * gather_bytes(g.of[AX_Z], part * e) +
                      MICRO_BATCHES * gather_bytes(g.of[AX_Z], part * a)};
    int64_t outputs = MICRO_BATCHES * forwards * reduce_bytes(gk, m * n * e);
    int64_t inputs = MICRO_BATCHES * reduce_bytes(gn, m * k * e);
    v.x = c->transposed ? outputs : inputs;
    v.y = c->transposed ? inputs : outputs;
    v.data = reduce_bytes(g.of[AX_DATA], part * a);
    return v;
}

/* ---- measured bytes ------------------------------------------------------------------------------ */

typedef struct bench {
    ax_ctx *ctx;
    ax_layer *net;
    ax_param_set *set;
    ax_frame *frame;
} bench;

static ax_status bench_open(ax_comm *world, const bytes_case *c, bench *b)
{
    ax_linear_config linear = {.in = IN,
                               .out = OUT,
                               .in_role = c->transposed ? AX_ROLE_INNER : AX_ROLE_MODEL,
                               .out_role = c->transposed ? AX_ROLE_MODEL : AX_ROLE_INNER,
                               .init_std = 0.1,
                               .no_bias = true};
    AX_TRY(ax_ctx_create(world, c->grid, "cpu", 1, c->compute, 1, &b->ctx));
    b->ctx->parallel.weight_cache = c->variant == CACHED ? 1 << 20 : 0;
    b->net = ax_linear(b->ctx, "l", &linear);
    b->ctx->parallel.keep_results = c->variant == KEPT;
    if (b->net && (c->variant == RECOMPUTED || c->variant == KEPT))
        b->net = ax_recompute(b->ctx, "again", b->net);
    if (!b->net)
        return ax_error_status();
    AX_TRY(ax_layer_param_set(b->net, 0, &b->set));
    AX_TRY(ax_param_set_init(b->set));
    return ax_frame_create(b->ctx, 1 << 20, &b->frame);
}

static void bench_close(bench *b)
{
    ax_frame_destroy(&b->frame);
    ax_param_set_destroy(&b->set);
    ax_layer_destroy(&b->net);
    ax_ctx_destroy(&b->ctx);
}

static ax_status zeros(bench *b, ax_role role, int64_t width, ax_tensor *out)
{
    ax_layout layout = ax_activation_layout(b->ctx, role);
    ax_tensor t = ax_tensor_make(b->ctx->compute, 3, (int64_t[]){ROWS, T, width}, NULL, &layout);
    AX_TRY(ax_frame_alloc(b->frame, &t, out));
    ax_fill_args fill = {.n = ax_tensor_count(b->ctx->grid, out), .y = out->data, .dtype = out->dtype};
    return fill.n ? ax_run_fill(b->ctx->stream, &fill) : AX_OK;
}

static ax_status step(bench *b, bool transposed)
{
    ax_tensor x, y, dx;
    AX_TRY(ax_param_set_zero_grad(b->set));
    for (int i = 0; i < MICRO_BATCHES; i++) {
        if (i == MICRO_BATCHES - 1)
            AX_TRY(ax_param_set_last_micro_batch(b->set, true));
        AX_TRY(ax_frame_begin(b->frame, "train", AX_MODE_TRAIN, NULL));
        AX_TRY(zeros(b, transposed ? AX_ROLE_INNER : AX_ROLE_MODEL, IN, &x));
        AX_TRY(ax_layer_forward(b->net, b->frame, &x, &y));
        AX_TRY(ax_layer_backward(b->net, b->frame, &y, &dx));
    }
    return ax_param_set_sync_grad(b->set);
}

static int64_t bytes_along(const ax_grid *grid, ax_axisset axes) { return traffic_along(grid, axes).bytes; }

/* Returns the bytes sent along all sets of several axes. */
static int64_t other_bytes(const ax_grid *grid)
{
    int64_t bytes = 0;
    for (ax_axisset axes = 0; axes < 1 << ax_grid_axes(grid); axes++)
        if (ax_grid_effective(grid, axes) == axes && (axes & (axes - 1)))
            bytes += bytes_along(grid, axes);
    return bytes;
}

static ax_status compare(const ax_grid *grid, const bytes_case *c)
{
    int rank = ax_grid_rank(grid);
    volumes want = closed_form(c, ax_grid_coord(grid, rank, AX_X), ax_grid_coord(grid, rank, AX_Y),
                               ax_grid_coord(grid, rank, AX_Z), ax_grid_coord(grid, rank, AX_DATA));
    const struct {
        ax_axis axis;
        int64_t want;
    } axes[] = {{AX_X, want.x}, {AX_Y, want.y}, {AX_Z, want.z}, {AX_DATA, want.data}};
    for (size_t i = 0; i < AX_COUNT(axes); i++) {
        int64_t have = bytes_along(grid, (ax_axisset)(1u << axes[i].axis));
        AX_CHECK(have == axes[i].want, AX_ERR_INTERNAL, "%lld bytes went along %s, the closed form says %lld",
                 (long long)have, ax_grid_axis_name(grid, axes[i].axis), (long long)axes[i].want);
    }
    AX_CHECK(!other_bytes(grid), AX_ERR_INTERNAL, "%lld bytes went along several axes",
             (long long)other_bytes(grid));
    return AX_OK;
}

static ax_status run_rank(ax_comm *world, void *arg)
{
    const bytes_case *c = arg;
    bench b = {0};
    ax_status status = bench_open(world, c, &b);
    if (status == AX_OK)
        status = step(&b, c->transposed);
    if (status == AX_OK)
        status = compare(b.ctx->grid, c);
    bench_close(&b);
    return status;
}

static void run(const bytes_case *c)
{
    static const char *const names[] = {"plain", "recomputed", "kept", "cached"};
    const ax_grid_size *g = &c->grid;
    if (ax_comm_threads_run(grid_ranks(*g), run_rank, (void *)c) != AX_OK)
        fail_msg("x=%d y=%d z=%d data=%d %s%s %s: %s", g->of[AX_X], g->of[AX_Y], g->of[AX_Z], g->of[AX_DATA],
                 ax_dtype_name(c->compute), c->transposed ? " transposed" : "", names[c->variant],
                 ax_error_message());
}

static void linear_layers_send_the_bytes_of_the_closed_forms(void **state)
{
    (void)state;
    for (int ranks = 1; ranks <= 8; ranks++)
        for (int x = 1; x <= ranks; x++)
            for (int y = 1; x * y <= ranks; y++)
                for (int z = 1; x * y * z <= ranks; z++)
                    for (int i = 0; ranks % (x * y * z) == 0 && i < 2 * VARIANTS; i++)
                        run(&(bytes_case){.grid = {{x, y, z, 1, ranks / (x * y * z)}},
                                          .compute = ranks % 2 ? AX_F32 : AX_BF16,
                                          .transposed = i % 2,
                                          .variant = (variant)(i / 2)});
}

/* ---- low-rank updates ---------------------------------------------------------------------------- */

/* Extents that all grids divide, so that buckets have no padding. */
enum { WIDE_IN = 64, WIDE_OUT = 128, RANK = 8, WIDE_ROWS = 8, SETS = 32 };

typedef struct update_case {
    ax_grid_size grid;
    bool transposed;
} update_case;

/* Runs a step of a frozen linear layer, with or without an update. bytes[s] is what this rank has sent along
 * the set s of axes. */
static ax_status measure(ax_comm *world, const update_case *c, bool update, int64_t bytes[SETS])
{
    bench b = {0};
    ax_role in = c->transposed ? AX_ROLE_INNER : AX_ROLE_MODEL,
            out = c->transposed ? AX_ROLE_MODEL : AX_ROLE_INNER;
    ax_linear_config linear = {
        .in = WIDE_IN, .out = WIDE_OUT, .in_role = in, .out_role = out, .init_std = 0.1, .no_bias = true};
    ax_tensor x, y, dx;
    AX_TRY(ax_ctx_create(world, c->grid, "cpu", 1, AX_BF16, 1, &b.ctx));
    b.net = ax_linear(b.ctx, "l", &linear);
    if (!b.net)
        return ax_error_status();
    ax_layer_freeze(b.net);
    if (update)
        AX_TRY(ax_linear_add_low_rank(b.net, &(ax_low_rank){.rank = RANK, .scale = 2}));
    AX_TRY(ax_layer_param_set(b.net, 0, &b.set));
    AX_TRY(ax_param_set_init(b.set));
    AX_TRY(ax_frame_create(b.ctx, 1 << 20, &b.frame));
    AX_TRY(ax_param_set_zero_grad(b.set));
    for (int i = 0; i < MICRO_BATCHES; i++) {
        AX_TRY(ax_frame_begin(b.frame, "train", AX_MODE_TRAIN, NULL));
        ax_layout layout = ax_activation_layout(b.ctx, in);
        ax_tensor like = ax_tensor_make(AX_BF16, 3, (int64_t[]){WIDE_ROWS, T, WIDE_IN}, NULL, &layout);
        AX_TRY(ax_frame_alloc(b.frame, &like, &x));
        AX_TRY(ax_run_fill(
            b.ctx->stream,
            &(ax_fill_args){.n = ax_tensor_count(b.ctx->grid, &x), .y = x.data, .dtype = x.dtype}));
        AX_TRY(ax_layer_forward(b.net, b.frame, &x, &y));
        AX_TRY(ax_layer_backward(b.net, b.frame, &y, &dx));
    }
    AX_TRY(ax_param_set_sync_grad(b.set));
    for (ax_axisset s = 0; s < SETS; s++)
        bytes[s] = ax_grid_effective(b.ctx->grid, s) == s && s ? bytes_along(b.ctx->grid, s) : 0;
    bench_close(&b);
    return AX_OK;
}

static int along(ax_grid_size g, ax_axisset set)
{
    int n = 1;
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        n *= set >> a & 1 ? ax_grid_size_along(g, (ax_axis)a) : 1;
    return n;
}

/* Removes the axes of size 1. */
static ax_axisset effective(ax_grid_size g, ax_axisset set)
{
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        if (ax_grid_size_along(g, (ax_axis)a) == 1)
            set &= (ax_axisset) ~(1u << a);
    return set;
}

/* Adds the bytes of one factor. Its whole part on this rank has `size` elements; ranks along `other` hold
 * different parts of the other factor, so its gradient is summed along `other` and data. */
static void add_factor(const update_case *c, int64_t size, ax_axis other, int64_t want[SETS])
{
    ax_axisset sums = effective(c->grid, (ax_axisset)(1u << other | 1u << AX_DATA));
    int64_t part = size / c->grid.of[AX_Z];
    /* Gathered once for forward and once for backward; the gradient is scattered in each micro-batch. */
    want[1 << AX_Z] += MICRO_BATCHES * gather_bytes(c->grid.of[AX_Z], part * (2 * 2 + 4));
    want[sums] += sums ? reduce_bytes(along(c->grid, sums), part * 4) : 0;
}

static ax_status compare_update(ax_comm *world, void *arg)
{
    const update_case *c = arg;
    int64_t with[SETS], without[SETS], want[SETS] = {0};
    AX_TRY(measure(world, c, false, without));
    AX_TRY(measure(world, c, true, with));
    ax_axis in = c->transposed ? AX_X : AX_Y, out = c->transposed ? AX_Y : AX_X;
    add_factor(c, (int64_t)RANK * WIDE_IN / ax_grid_size_along(c->grid, in), out, want);
    add_factor(c, (int64_t)RANK * WIDE_OUT / ax_grid_size_along(c->grid, out), in, want);
    want[0] = 0;
    for (int s = 0; s < SETS; s++)
        AX_CHECK(with[s] - without[s] == want[s], AX_ERR_INTERNAL,
                 "the update adds %lld bytes along the axes %x, the closed form says %lld",
                 (long long)(with[s] - without[s]), (unsigned)s, (long long)want[s]);
    return AX_OK;
}

/* No activation is communicated that the frozen layer does not communicate: only factors and their gradients
 * add bytes. */
static void low_rank_updates_communicate_no_activations(void **state)
{
    (void)state;
    for (int x = 1; x <= 8; x *= 2)
        for (int y = 1; x * y <= 8; y *= 2)
            for (int z = 1; x * y * z <= 8; z *= 2)
                for (int d = 1; x * y * z * d <= 8; d *= 2)
                    for (int transposed = 0; transposed < 2; transposed++) {
                        update_case c = {{{x, y, z, 1, d}}, transposed};
                        if (ax_comm_threads_run(grid_ranks(c.grid), compare_update, &c) != AX_OK)
                            fail_msg("x=%d y=%d z=%d data=%d%s: %s", x, y, z, d,
                                     transposed ? " transposed" : "", ax_error_message());
                    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(linear_layers_send_the_bytes_of_the_closed_forms),
                                       cmocka_unit_test(low_rank_updates_communicate_no_activations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
