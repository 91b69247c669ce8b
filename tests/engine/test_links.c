/* Collectives from GPU to GPU: every collective against its definition, layers and training on grids, the
 * fallback through host memory with its reason, and failures. Runs on emulated GPUs with a stand-in for NCCL
 * (tests/cuda) or, without AXONN_PLUGINS, on the GPUs of the host, if there are several. With argument
 * "absent" NCCL is missing, and all collectives go through host memory. */
#include "axonn/nn.h"

#include "support/collectives.h"
#include "support/equality.h"
#include "support/on_device.h"
#include "support/ranks.h"
#include "support/sanitized.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const char *path = "nccl";
static int gpus; /* number of GPUs of this host, at most 8 */

/* Counts GPUs: ranks with successive local ranks get successive GPUs. */
static int count_gpus(void)
{
    int first, place, n = 1;
    ax_device_available("cuda", 0, &first);
    while (n < 8 && (ax_device_available("cuda", n, &place), place != first))
        n++;
    return n;
}

/* Opens GPU number `number`; rank r uses number r. */
static ax_status open_gpu(int number, ax_device **out)
{
    ax_binding binding = {.local_rank = number};
    return ax_device_open_bound("cuda", 1, &binding, out);
}

/* ---- against their definitions ------------------------------------------------------------------- */

static ax_status checked_on_gpu(ax_comm *world, void *arg)
{
    ax_device *dev;
    ax_comm *over = NULL;
    AX_TRY(open_gpu(ax_comm_rank(world), &dev));
    ax_status status = on_device_create(world, dev, path, &over);
    if (status == AX_OK)
        status = (*(ax_rank_fn *const *)arg)(over, NULL);
    ax_comm_destroy(&over);
    ax_device_close(&dev);
    return status;
}

static void collectives_are_right(void **state)
{
    ax_rank_fn *check = check_collectives;
    (void)state;
    for (int size = 2; size <= gpus; size += size < 4 ? 1 : 4)
        assert_ranks(size, checked_on_gpu, &check);
}

static void splits_order_and_nest(void **state)
{
    ax_rank_fn *check = check_splits;
    (void)state;
    assert_ranks(gpus > 5 && SANITIZED ? 5 : gpus, checked_on_gpu, &check);
}

static void operations_overlap(void **state)
{
    ax_rank_fn *overlap = check_overlap, *random = check_random;
    (void)state;
    assert_ranks(gpus < 4 ? gpus : 4, checked_on_gpu, &overlap);
    assert_ranks(gpus < 4 ? gpus : 4, checked_on_gpu, &random);
}

/* ---- on grids ------------------------------------------------------------------------------------ */

/* Every group of a grid of eight is linked, also groups along factors of x. */
static ax_status grid_of_eight(ax_comm *world, void *arg)
{
    static const ax_coll_args any = {.coll = AX_ALL_GATHER, .count = 1, .dtype = AX_BF16};
    ax_ctx *ctx;
    (void)arg;
    AX_TRY(ax_ctx_create(world, (ax_grid_size){{4, 1, 2, 1, 1}}, "cuda", 1, AX_F32, 1, &ctx));
    int factoring;
    ax_status status = ax_grid_factor(ctx->grid, AX_FACTOR_KV, 2, &factoring);
    for (unsigned set = 0; set < 1u << ax_grid_axes(ctx->grid) && status == AX_OK; set++) {
        ax_comm *along;
        status = ax_grid_comm(ctx->grid, (ax_axisset)set, &along);
    }
    for (int i = 0; i < ax_grid_groups(ctx->grid) && status == AX_OK; i++) {
        ax_axisset axes;
        ax_comm *c = ax_grid_group(ctx->grid, i, &axes);
        if (ax_comm_size(c) > 1 && strcmp(ax_comm_path(c, ctx->stream, &any), path))
            status = ax_fail(AX_ERR_INTERNAL, "axes %x: %s", axes, ax_comm_path(c, ctx->stream, &any));
    }
    ax_ctx_destroy(&ctx);
    return status;
}

static void grids_are_connected(void **state)
{
    (void)state;
    if (gpus < 8)
        skip();
    assert_ranks(8, grid_of_eight, NULL);
}

/* Bounds as in test_cuda.c. */
static void layers_equal_the_reference(void **state)
{
    static const ax_grid_size grids[] = {{{2, 1, 2, 1, 1}}, {{1, 2, 1, 1, 1}}};
    (void)state;
    for (int s = 0; s < ax_layer_sample_count; s++)
        for (size_t i = 0; i < AX_COUNT(grids) - SANITIZED; i++) {
            ax_parallel parallel = ax_parallel_default;
            double worst;
            if (grid_ranks(grids[i]) > gpus)
                continue;
            if (ax_layer_check_grid(&ax_layer_samples[s], grids[i], &parallel, "cuda", &worst) != AX_OK)
                fail_msg("%s, grid %zu: %s", ax_layer_samples[s].name, i, ax_error_message());
            if (!(worst < 1e-12))
                fail_msg("%s, grid %zu: off by %.1e", ax_layer_samples[s].name, i, worst);
        }
}

static void training_equals_the_reference(void **state)
{
    static const struct {
        ax_grid_size grid;
        int zero;
    } cases[] = {{{{2, 1, 2, 1, 2}}, 1}, {{{1, 2, 1, 1, 2}}, 3}, {{{1, 1, 2, 1, 1}}, 0}};
    (void)state;
    eq_run one = eq_do(eq_serial(EQ_GROUPED, "ref", AX_F64, 2));
    for (size_t i = 0; i < (SANITIZED ? 1 : AX_COUNT(cases)); i++) {
        if (grid_ranks(cases[i].grid) > gpus)
            continue;
        eq_run split = eq_serial(EQ_GROUPED, "cuda", AX_F64, 2);
        split.grid = cases[i].grid;
        split.parallel.zero = cases[i].zero;
        split.recompute = 1;
        split.parallel.keep_results = true;
        split = eq_do(split);
        eq_assert_equal(&split, &one, 1e-12, 1e-11);
        eq_free(&split);
    }
    eq_free(&one);
    one = eq_do(eq_serial(EQ_GPT2, "ref", AX_F32, 2));
    for (int fp16 = 0; fp16 < 2; fp16++) {
        ax_dtype compute = fp16 ? AX_F16 : AX_BF16;
        eq_gap gap = eq_rounding_gap(EQ_GPT2, "ref", compute, false, 2);
        eq_run rounded = eq_serial(EQ_GPT2, "cuda", compute, 2);
        rounded.grid = (ax_grid_size){{2, 1, gpus < 4 ? 1 : 2, 1, 1}};
        rounded = eq_do(rounded);
        eq_assert_as_near(&rounded, &one, &gap);
        eq_free(&rounded);
    }
    eq_free(&one);
}

/* ---- fallback through host memory ---------------------------------------------------------------- */

typedef struct fallback {
    int gpus; /* number of GPUs that the ranks share */
    char why[AX_COMM_WHY];
} fallback;

static ax_status connects(ax_comm *world, void *arg)
{
    fallback *f = arg;
    ax_device *dev;
    ax_comm *over = NULL;
    char why[AX_COMM_WHY] = "";
    AX_TRY(open_gpu(ax_comm_rank(world) % f->gpus, &dev));
    ax_status status = ax_comm_connect(world, dev, "test", why);
    if (ax_comm_rank(world) == 0)
        memcpy(f->why, why, sizeof why);
    if (status == AX_OK)
        status = on_device_create(world, dev, *why ? "staged" : "nccl", &over);
    if (status == AX_OK)
        status = check_collectives(over, NULL);
    ax_comm_destroy(&over);
    ax_device_close(&dev);
    return status;
}

static void ranks_that_share_a_gpu_go_through_the_host(void **state)
{
    fallback f = {.gpus = 2};
    (void)state;
    assert_ranks(3, connects, &f);
    assert_non_null(strstr(f.why, "ranks 0 and 2 of 3 share the device at "));
}

static void without_nccl_all_goes_through_the_host(void **state)
{
    fallback f = {.gpus = 2};
    (void)state;
    assert_ranks(3, connects, &f);
    assert_non_null(strstr(f.why, "NCCL cannot be loaded: "));
}

/* ---- failures ------------------------------------------------------------------------------------ */

enum { RANKS = 3, N = 1000 };

static int ranks(void) { return gpus < RANKS ? gpus : RANKS; }

typedef struct outcome {
    ax_status (*body)(ax_comm *world, ax_stream *stream, void *memory);
    ax_status status[RANKS];
    char message[RANKS][400];
    double seconds;
} outcome;

static ax_status on_gpu(ax_comm *world, void *arg)
{
    outcome *o = arg;
    ax_device *dev;
    void *memory = NULL;
    char why[AX_COMM_WHY];
    int me = ax_comm_rank(world);
    AX_TRY(open_gpu(me, &dev));
    ax_stream stream = {dev, NULL};
    AX_TRY(ax_comm_connect(world, dev, "test", why));
    AX_TRY(ax_device_alloc(dev, 2 * N * sizeof(float), &memory));
    o->status[me] = o->body(world, &stream, memory);
    if (o->status[me] != AX_OK)
        snprintf(o->message[me], sizeof o->message[me], "%s", ax_error_message());
    /* Aborts first, as ax_train does: destroying a link may wait for the other ranks, which must not wait for
     * this one meanwhile. */
    if (o->status[me] != AX_OK)
        ax_comm_abort(world, o->status[me], o->message[me]);
    ax_device_free(dev, memory, 2 * N * sizeof(float));
    ax_comm_disconnect(world);
    ax_device_close(&dev);
    return o->status[me];
}

static ax_status reduce(ax_comm *world, ax_stream *stream, void *memory, int64_t n)
{
    float first;
    ax_work *work;
    AX_TRY(ax_all_reduce(world, stream, memory, n, AX_F32, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    return ax_copy_out(stream, &first, memory, sizeof first);
}

static outcome ends(ax_status (*body)(ax_comm *, ax_stream *, void *))
{
    outcome o = {.body = body};
    double begin = ax_now();
    assert_int_not_equal(ax_comm_threads_run(ranks(), on_gpu, &o), AX_OK);
    o.seconds = ax_now() - begin;
    return o;
}

static ax_status one_fails(ax_comm *world, ax_stream *stream, void *memory)
{
    AX_TRY(reduce(world, stream, memory, N));
    if (ax_comm_rank(world) == 1)
        return ax_fail(AX_ERR_DATA, "the file is short");
    return reduce(world, stream, memory, N);
}

static void a_failing_rank_ends_the_others(void **state)
{
    (void)state;
    outcome o = ends(one_fails);
    assert_true(o.seconds < 60); /* half of the time after which a rank gives up waiting for another */
    for (int r = 0; r < ranks(); r++) {
        assert_int_equal(o.status[r], r == 1 ? AX_ERR_DATA : AX_ERR_COMM);
        if (r != 1 && !strstr(o.message[r], "rank 1 failed: the file is short"))
            fail_msg("rank %d: %s", r, o.message[r]);
    }
}

/* The others poll an event behind a collective that rank 1 does not join. */
static ax_status one_fails_and_others_poll(ax_comm *world, ax_stream *stream, void *memory)
{
    ax_work *work;
    ax_stream_event *event;
    bool done = false;
    AX_TRY(reduce(world, stream, memory, N));
    if (ax_comm_rank(world) == 1)
        return ax_fail(AX_ERR_DATA, "the file is short");
    AX_TRY(ax_stream_event_create(stream->dev, &event));
    ax_status status = ax_all_reduce(world, stream, memory, N, AX_F32, AX_SUM, &work);
    if (status == AX_OK)
        status = ax_wait(&work);
    if (status == AX_OK)
        status = ax_stream_record(stream, event);
    while (status == AX_OK && !done) {
        status = ax_device_check_links(stream->dev);
        if (status == AX_OK)
            status = ax_stream_event_done(event, &done);
    }
    ax_stream_event_destroy(&event);
    return status;
}

static void a_failing_rank_ends_polling(void **state)
{
    (void)state;
    outcome o = ends(one_fails_and_others_poll);
    for (int r = 0; r < ranks(); r++) {
        assert_int_equal(o.status[r], r == 1 ? AX_ERR_DATA : AX_ERR_COMM);
        if (r != 1 && !strstr(o.message[r], "rank 1 failed: the file is short"))
            fail_msg("rank %d: %s", r, o.message[r]);
    }
}

static ax_status one_differs(ax_comm *world, ax_stream *stream, void *memory)
{
    return reduce(world, stream, memory, ax_comm_rank(world) == 1 ? N / 2 : N);
}

static void mismatches_are_errors(void **state)
{
    (void)state;
    if (!getenv("AXONN_PLUGINS")) /* the real NCCL does not compare calls */
        skip();
    outcome o = ends(one_differs);
    for (int r = 0; r < ranks(); r++)
        assert_int_equal(o.status[r], AX_ERR_COMM);
}

static ax_status one_is_missing(ax_comm *world, ax_stream *stream, void *memory)
{
    AX_TRY(reduce(world, stream, memory, N));
    return ax_comm_rank(world) == 1 ? AX_OK : reduce(world, stream, memory, N);
}

static void a_rank_that_never_comes_is_an_error(void **state)
{
    (void)state;
    if (!getenv("AXONN_PLUGINS")) /* the real NCCL waits forever */
        skip();
    setenv("AXONN_EMULATED_PATIENCE", "3", 1);
    outcome o = ends(one_is_missing);
    unsetenv("AXONN_EMULATED_PATIENCE");
    for (int r = 0; r < ranks(); r++)
        assert_int_equal(o.status[r], r == 1 ? AX_OK : AX_ERR_COMM);
    if (!strstr(o.message[0], "all_reduce of 1000 f32"))
        fail_msg("%s", o.message[0]);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(collectives_are_right),
        cmocka_unit_test(splits_order_and_nest),
        cmocka_unit_test(operations_overlap),
        cmocka_unit_test(grids_are_connected),
        cmocka_unit_test(layers_equal_the_reference),
        cmocka_unit_test(training_equals_the_reference),
        cmocka_unit_test(ranks_that_share_a_gpu_go_through_the_host),
        cmocka_unit_test(a_failing_rank_ends_the_others),
        cmocka_unit_test(a_failing_rank_ends_polling),
        cmocka_unit_test(mismatches_are_errors),
        cmocka_unit_test(a_rank_that_never_comes_is_an_error),
    };
    const struct CMUnitTest absent[] = {
        cmocka_unit_test(without_nccl_all_goes_through_the_host),
        cmocka_unit_test(grids_are_connected),
    };
    if (ax_device_absent("cuda")) {
        printf("cuda: %s\n", ax_device_absent("cuda"));
        return getenv("AXONN_PLUGINS") ? 1 : 77;
    }
    gpus = count_gpus();
    if (gpus < 2) {
        printf("cuda: one GPU has no other to reach\n");
        return 77;
    }
    if (argc < 2 || strcmp(argv[1], "absent") != 0)
        return cmocka_run_group_tests(tests, NULL, NULL);
    path = "staged";
    return cmocka_run_group_tests(absent, NULL, NULL);
}
