/* The clock of a planned run (axonn/clock.h): transfers that share a carrier, overlap, the trace; and the
 * communication time of the linear layers of a block against the closed forms of 2502.08145, section
 * "Performance model". */
#include "axonn/clock.h"
#include "axonn/nn.h"
#include "support/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* ---- carriers and overlap ------------------------------------------------------------------------ */

enum { LINK, MEMORY };
static const double LATENCY = 0.25;

/* A kernel takes as many seconds as it has elements. */
static ax_status price_fill(void *user, ax_kernel kernel, const void *args, double *seconds)
{
    (void)user;
    AX_CHECK(kernel == AX_K_fill, AX_ERR_USAGE, "kernel %s has no price", ax_kernel_name(kernel));
    *seconds = (double)((const ax_fill_args *)args)->n;
    return AX_OK;
}

/* An all-reduce takes a latency and then the link for as many seconds as it has elements; an all-gather the
 * memory, then the link; a broadcast the link, and meanwhile the device for a second; a message to a rank the
 * link; a copy the memory. What is received takes no time. */
static ax_status price_elements(void *user, const ax_device_event *e, ax_leg leg[AX_LEGS], int *legs)
{
    (void)user;
    const double n = (double)e->operand[0].count;
    if (e->kind == AX_ON_COLLECTIVE && ((const ax_coll_args *)e->args)->coll == AX_ALL_REDUCE) {
        leg[(*legs)++] = (ax_leg){AX_NO_CARRIER, LATENCY};
        leg[(*legs)++] = (ax_leg){LINK, n};
    } else if (e->kind == AX_ON_COLLECTIVE) {
        const bool broadcasts = ((const ax_coll_args *)e->args)->coll == AX_BROADCAST;
        leg[(*legs)++] = broadcasts ? (ax_leg){AX_ON_DEVICE, 1} : (ax_leg){MEMORY, n};
        leg[(*legs)++] = (ax_leg){LINK, n};
    } else if (e->kind == AX_ON_COPY) {
        leg[(*legs)++] = (ax_leg){MEMORY, n};
    } else if (((const ax_message_args *)e->args)->sends) {
        leg[(*legs)++] = (ax_leg){LINK, n};
    }
    return AX_OK;
}

typedef struct bench {
    ax_comm *world;
    ax_device *dev;
    ax_stream stream;
    ax_clock *clock;
    char *data;
} bench;

static void open_bench(bench *b)
{
    static const ax_prices prices = {price_fill, price_elements, NULL};
    OK(ax_comm_dry_create(1, 4, &b->world));
    OK(ax_device_open("dry", 1, &b->dev));
    b->stream = (ax_stream){b->dev, NULL};
    OK(ax_device_alloc(b->dev, 4096, (void **)&b->data));
    OK(ax_clock_create(b->dev, &prices, &b->clock));
}

static void close_bench(bench *b)
{
    OK(ax_clock_status(b->clock));
    ax_clock_destroy(&b->clock);
    assert_true(!b->dev->now && !b->dev->heard);
    ax_device_close(&b->dev);
    ax_comm_destroy(&b->world);
}

static void compute(bench *b, int64_t seconds)
{
    OK(ax_run_fill(&b->stream, &(ax_fill_args){.n = seconds, .y = b->data, .dtype = AX_F32}));
}

static ax_work *reduce(bench *b, int64_t n)
{
    ax_work *work;
    OK(ax_all_reduce(b->world, &b->stream, b->data, n, AX_F32, AX_SUM, &work));
    return work;
}

static void transfers_take_their_carriers_in_turn(void **state)
{
    (void)state;
    bench b;
    ax_work *one, *other;
    open_bench(&b);
    one = reduce(&b, 2);   /* the link: 0.25 … 2.25 */
    other = reduce(&b, 3); /* 2.25 … 5.25: its latency passes meanwhile */
    assert_true(ax_device_now(b.dev) == 0);
    OK(ax_wait(&other));
    assert_true(ax_device_now(b.dev) == 5.25);
    OK(ax_wait(&one));
    assert_true(ax_device_now(b.dev) == 5.25);
    OK(ax_all_gather(b.world, &b.stream, b.data, b.data + 1024, 4, AX_F32,
                     &one)); /* memory … 9.25, link … 13.25 */
    OK(ax_all_gather(b.world, &b.stream, b.data, b.data + 1024, 1, AX_F32, &other)); /* … 10.25, … 14.25 */
    OK(ax_wait(&one));
    assert_true(ax_device_now(b.dev) == 13.25);
    OK(ax_wait(&other));
    assert_true(ax_device_now(b.dev) == 14.25);
    assert_true(ax_clock_carried(b.clock, LINK) == 10 && ax_clock_carried(b.clock, MEMORY) == 5);
    assert_true(ax_clock_computed(b.clock) == 0 && ax_comm_traffic_get(b.world).exposed == 14.25);
    close_bench(&b);
}

static void what_runs_between_start_and_wait_hides_a_transfer(void **state)
{
    (void)state;
    bench b;
    char host[8];
    ax_work *work, *receive;
    const ax_message m = {.kind = AX_MESSAGE_ACTIVATION, .dtype = AX_F32, .ndim = 1, .dim = {6}};
    open_bench(&b);
    work = reduce(&b, 5);
    compute(&b, 6); /* ends after it */
    OK(ax_wait(&work));
    assert_true(ax_device_now(b.dev) == 6);
    work = reduce(&b, 5);
    compute(&b, 3);
    OK(ax_wait(&work));
    assert_true(ax_device_now(b.dev) == 11.25);
    OK(ax_send(b.world, &b.stream, &m, b.data, 2, &work));
    OK(ax_recv(b.world, &b.stream, &m, b.data, 2, &receive));
    OK(ax_wait(&receive));
    assert_true(ax_device_now(b.dev) == 11.25);
    OK(ax_wait(&work));
    assert_true(ax_device_now(b.dev) == 17.25);
    OK(ax_copy_out(&b.stream, host, b.data, sizeof host)); /* bytes are the elements of a copy */
    assert_true(ax_device_now(b.dev) == 25.25);
    assert_true(ax_clock_computed(b.clock) == 9 && ax_comm_traffic_get(b.world).exposed == 2.25 + 6);
    close_bench(&b);
}

/* The part of a transfer that occupies the device delays kernels, and is exposed; the rest is hidden by them.
 */
static void kernels_wait_for_what_occupies_the_device(void **state)
{
    (void)state;
    bench b;
    ax_work *work;
    open_bench(&b);
    OK(ax_broadcast(b.world, &b.stream, b.data, 5, AX_F32, 0, &work)); /* the device … 1, the link … 5 */
    assert_true(ax_device_now(b.dev) == 1);
    compute(&b, 2);
    assert_true(ax_device_now(b.dev) == 3);
    OK(ax_wait(&work));
    assert_true(ax_device_now(b.dev) == 5);
    assert_true(ax_clock_computed(b.clock) == 2 && ax_comm_traffic_get(b.world).exposed == 3);
    OK(ax_broadcast(b.world, &b.stream, b.data, 5, AX_F32, 0, &work));
    OK(ax_wait(&work)); /* without kernels its time is the link's */
    assert_true(ax_device_now(b.dev) == 10);
    ax_work *several[2];
    for (int i = 0; i < 2; i++) /* the link carries them one after the other: … 15, … 20 */
        OK(ax_broadcast(b.world, &b.stream, b.data, 5, AX_F32, 0, &several[i]));
    assert_true(ax_device_now(b.dev) == 12);
    compute(&b, 10);
    for (int i = 0; i < 2; i++)
        OK(ax_wait(&several[i]));
    assert_true(ax_device_now(b.dev) == 22);
    close_bench(&b);
}

/* Activities have the times of the clock, so a planned step is a trace as a measured one is. */
static void the_trace_has_the_time_of_the_clock(void **state)
{
    (void)state;
    static const struct {
        const char *kind, *name;
        double begin, end;
    } want[] = {{"start", "all_reduce", 0, 0}, {"kernel", "fill", 0, 2}, {"wait", "all_reduce", 2, 4.25}};
    bench b;
    ax_trace *trace;
    ax_event_ring *ring;
    open_bench(&b);
    OK(ax_trace_create(16, &trace));
    OK(ax_trace_ring(trace, "planned", &ring));
    ax_listener listener = ax_ring_listener(ring);
    ax_device_listen(b.dev, &listener);
    ax_work *work = reduce(&b, 4);
    compute(&b, 2);
    OK(ax_wait(&work));
    ax_device_unlisten(b.dev, &listener);
    assert_int_equal(ax_event_count(ring), AX_COUNT(want));
    for (size_t i = 0; i < AX_COUNT(want); i++) {
        const ax_event *e = ax_event_get(ring, i);
        assert_string_equal(e->kind, want[i].kind);
        assert_string_equal(e->name, want[i].name);
        assert_true(e->begin == want[i].begin && e->end == want[i].end);
    }
    ax_trace_destroy(&trace);
    close_bench(&b);
}

static void an_error_of_the_prices_is_kept(void **state)
{
    (void)state;
    bench b;
    open_bench(&b);
    compute(&b, 1);
    OK(ax_clock_status(b.clock));
    OK(ax_run_convert(
        &b.stream,
        &(ax_convert_args){.n = 1, .x = b.data, .y = b.data + 64, .x_dtype = AX_F32, .y_dtype = AX_BF16}));
    compute(&b, 1);
    FAILS(AX_ERR_USAGE, "convert has no price", ax_clock_status(b.clock));
    ax_clock_destroy(&b.clock);
    ax_device_close(&b.dev);
    ax_comm_destroy(&b.world);
}

/* ---- the performance model of 2502.08145 --------------------------------------------------------- */

enum { WIDTH = 12288, ROWS = 128, T = 16 };

/* Bytes per second within a node, and of a node's link. */
static const double INNER = 3e11, LINKS = 1e11;

/* Linear layers of a block: inputs, outputs, and whether x and y swap roles. */
static const struct {
    int64_t in, out;
    bool transposed;
} layers[] = {
    {WIDTH, 3 * WIDTH, false}, {WIDTH, WIDTH, true}, {WIDTH, 4 * WIDTH, false}, {4 * WIDTH, WIDTH, true}};

static ax_status free_kernel(void *user, ax_kernel kernel, const void *args, double *seconds)
{
    (void)user, (void)kernel, (void)args, (void)seconds;
    return AX_OK;
}

/* A ring. *user is the number of ranks of a node. Between nodes all groups of the ranks of a node share its
 * link (case 2 of the paper's bandwidths), so nodes of one rank are a machine whose links are all alike. */
static ax_status price_ring(void *user, const ax_device_event *e, ax_leg leg[AX_LEGS], int *legs)
{
    if (e->kind != AX_ON_COLLECTIVE) /* a copy */
        return AX_OK;
    const ax_coll_args *args = e->args;
    const int node = *(const int *)user;
    const ax_comm_place place = ax_comm_place_of(e->comm, node);
    const int size = ax_comm_size(e->comm);
    const double rate = place.in_node == size ? INNER : LINKS / ax_min(node, place.inner),
                 bytes = (double)ax_max(e->operand[0].count, e->operand[1].count) * 4;
    leg[(*legs)++] =
        (ax_leg){LINK, (args->coll == AX_ALL_REDUCE ? 2.0 : 1.0) * (size - 1) / size * bytes / rate};
    return AX_OK;
}

/* The equations of the paper, in bytes, for a matrix of k inputs and n outputs and m rows of a data group. */
static double closed_form(const int size[4], int node, int64_t k, int64_t n, bool transposed, double m)
{
    enum { X, Y, Z, DATA };
    double rate[4], x = size[X], y = size[Y], z = size[Z], d = size[DATA];
    for (int i = 0, inner = 1; i < 4; inner *= size[i++])
        rate[i] = inner * size[i] <= node ? INNER : LINKS / ax_min(node, inner);
    const int in = transposed ? X : Y, out = transposed ? Y : X;
    const double gather = (z - 1) * (double)(k * n) / (x * y * z) / rate[Z],
                 scatter = (z - 1) / z * (double)(k * n) / (x * y) / rate[Z],
                 outputs = 2.0 * (size[in] - 1) / size[in] * m * (double)n / (z * size[out]) / rate[in],
                 inputs = 2.0 * (size[out] - 1) / size[out] * m * (double)k / (z * size[in]) / rate[out],
                 data = 2 * (d - 1) / d * (double)(k * n) / (x * y * z) / rate[DATA];
    return 4 * (gather + scatter + outputs + inputs + data);
}

/* Replays a step of one linear layer, with the weight gathered once. */
static ax_status replay(ax_ctx *ctx, size_t l)
{
    const ax_role in = layers[l].transposed ? AX_ROLE_INNER : AX_ROLE_MODEL,
                  out = layers[l].transposed ? AX_ROLE_MODEL : AX_ROLE_INNER;
    const ax_linear_config config = {.in = layers[l].in,
                                     .out = layers[l].out,
                                     .in_role = in,
                                     .out_role = out,
                                     .init_std = 0.1,
                                     .no_bias = true};
    ax_layer *layer = ax_linear(ctx, "l", &config);
    ax_layout layout = ax_activation_layout(ctx, in);
    ax_tensor like = ax_tensor_make(AX_F32, 3, (int64_t[]){ROWS, T, layers[l].in}, NULL, &layout), x, y, dx;
    ax_param_set *set;
    ax_frame *frame;
    AX_TRY(ax_layer_param_set(layer, 0, &set));
    AX_TRY(ax_frame_create(ctx, 0, &frame));
    AX_TRY(ax_param_set_zero_grad(set));
    AX_TRY(ax_param_set_last_micro_batch(set, true));
    AX_TRY(ax_frame_begin(frame, "train", AX_MODE_TRAIN, NULL));
    AX_TRY(ax_frame_alloc(frame, &like, &x));
    AX_TRY(ax_layer_forward(layer, frame, &x, &y));
    AX_TRY(ax_layer_backward(layer, frame, &y, &dx));
    AX_TRY(ax_param_set_sync_grad(set));
    ax_frame_destroy(&frame);
    ax_param_set_destroy(&set);
    ax_layer_destroy(&layer);
    return AX_OK;
}

/* Returns the communication time of all layers, and compares that of each with its closed form. */
static double block_seconds(const int size[4], int node, bool overlaps)
{
    const ax_prices prices = {free_kernel, price_ring, &node};
    ax_parallel parallel = ax_parallel_default;
    ax_ctx *ctx;
    ax_clock *clock;
    if (!overlaps)
        parallel.overlap.oar = parallel.overlap.ors = parallel.overlap.oag = false;
    parallel.weight_cache = (int64_t)1 << 40;
    const ax_grid_size grid = {{size[0], size[1], size[2], 1, size[3]}};
    OK(ax_ctx_create_dry(0, (int)ax_grid_size_ranks(grid), grid, AX_F32, &parallel, &ctx));
    OK(ax_clock_create(ctx->dev, &prices, &clock));
    for (size_t l = 0; l < AX_COUNT(layers); l++) {
        const double begin = ax_device_now(ctx->dev),
                     want = closed_form(size, node, layers[l].in, layers[l].out, layers[l].transposed,
                                        (double)ROWS * T / size[3]);
        OK(replay(ctx, l));
        const double took = ax_device_now(ctx->dev) - begin;
        if (fabs(took - want) > 1e-9 * want)
            fail_msg("x=%d y=%d z=%d data=%d layer %zu: %.12g s, the closed form says %.12g", size[0],
                     size[1], size[2], size[3], l, took, want);
    }
    const double seconds = ax_device_now(ctx->dev);
    OK(ax_clock_status(clock));
    ax_clock_destroy(&clock);
    ax_ctx_destroy(&ctx);
    return seconds;
}

static void linear_layers_take_the_time_of_the_closed_forms(void **state)
{
    (void)state;
    int grids = 0;
    for (int x = 1; x <= 64; x *= 2)
        for (int y = 1; x * y <= 64; y *= 2)
            for (int z = 1; x * y * z <= 64; z *= 2, grids++)
                for (int node = 1; node <= 8; node *= 8)
                    block_seconds((int[]){x, y, z, 64 / (x * y * z)}, node, grids % 2);
    assert_int_equal(grids, 84);
}

/* The outputs of qkv and up are 3 and 4 times as wide as the inputs: 3y + x is least. */
static void the_best_split_of_48_ranks_is_12_by_4(void **state)
{
    (void)state;
    for (int z = 1; z <= 8; z *= 2) {
        int best = 0;
        double least = INFINITY;
        for (int x = 1; x <= 48; x++) {
            double took = 48 % x ? INFINITY : block_seconds((int[]){x, 48 / x, z, 1}, 1, false);
            best = took < least ? x : best;
            least = fmin(took, least);
        }
        assert_int_equal(best, 12);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(transfers_take_their_carriers_in_turn),
        cmocka_unit_test(what_runs_between_start_and_wait_hides_a_transfer),
        cmocka_unit_test(kernels_wait_for_what_occupies_the_device),
        cmocka_unit_test(the_trace_has_the_time_of_the_clock),
        cmocka_unit_test(an_error_of_the_prices_is_kept),
        cmocka_unit_test(linear_layers_take_the_time_of_the_closed_forms),
        cmocka_unit_test(the_best_split_of_48_ranks_is_12_by_4),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
