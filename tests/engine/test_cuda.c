/* Layers on grids, whole training runs and memory on the device "cuda". CTest sets AXONN_PLUGINS, which makes
 * that an emulated GPU. Without it the test needs a real one. */
#include "axonn/config.h"
#include "axonn/engine.h"
#include "axonn/nn.h"

#include "engine/fit.h"
#include "support/check.h"
#include "support/emulated.h"
#include "support/equality.h"
#include "support/sampled.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* In float64 a device or a grid only changes the order of sums of at most a few hundred terms: 1e-12 is 1e4
 * roundings. */
static void layers_equal_the_reference(void **state)
{
    static const struct {
        ax_grid_size grid;
        int zero;
    } cases[] = {{{{1, 1, 1, 1, 1}}, 0}, {{{2, 1, 2, 1, 1}}, 0}, {{{1, 2, 1, 1, 2}}, 3}};
    (void)state;
    for (int s = 0; s < ax_layer_sample_count; s++)
        for (size_t i = 0; i < AX_COUNT(cases); i++) {
            if ((s + (int)i) % one_of(5, 5))
                continue;
            ax_parallel parallel = ax_parallel_default;
            double worst;
            parallel.zero = cases[i].zero;
            if (ax_layer_check_grid(&ax_layer_samples[s], cases[i].grid, &parallel, "cuda", &worst) != AX_OK)
                fail_msg("%s, case %zu: %s", ax_layer_samples[s].name, i, ax_error_message());
            if (!(worst < 1e-12))
                fail_msg("%s, case %zu: off by %.1e", ax_layer_samples[s].name, i, worst);
        }
}

/* The bounds are those of grids on the host (test_equality.c): a device only adds another order of sums.
 * GPT-2's gradients of matrices are in bf16, too. In 16 bits two models choose other experts than in fp32,
 * which changes more than roundings do; engine.equality runs them with the choices of fp32, on the host. */
static void training_equals_the_reference(void **state)
{
    enum { FEW = 3 };
    (void)state;
    for (int m = 0; m < EQ_MODELS; m += one_of(3, EQ_MODELS)) {
        eq_run want = eq_do(eq_serial((eq_model)m, "ref", AX_F64, FEW));
        eq_run got = eq_do(eq_serial((eq_model)m, "cuda", AX_F64, FEW));
        eq_assert_equal(&got, &want, 1e-12, 1e-11);
        eq_free(&got);
        eq_free(&want);
        want = eq_do(eq_serial((eq_model)m, "ref", AX_F32, FEW));
        got = eq_do(eq_serial((eq_model)m, "cuda", AX_F32, FEW));
        eq_assert_equal(&got, &want, 1e-5, 1e-4);
        eq_free(&got);
        const bool chooses = m == EQ_MIXTRAL || m == EQ_SPARSE;
        for (int fp16 = 0; fp16 < 2 && !chooses; fp16++) {
            ax_dtype compute = fp16 ? AX_F16 : AX_BF16;
            const bool narrow = m == EQ_GPT2 && !fp16;
            eq_gap gap = eq_rounding_gap((eq_model)m, "ref", compute, narrow, FEW);
            got = eq_serial((eq_model)m, "cuda", compute, FEW);
            got.parallel.narrow_grads = narrow;
            got = eq_do(got);
            eq_assert_as_near(&got, &want, &gap);
            eq_free(&got);
        }
        eq_free(&want);
    }
}

static void ranks_share_a_gpu(void **state)
{
    (void)state;
    eq_run one = eq_do(eq_serial(EQ_GROUPED, "ref", AX_F64, 2)),
           split = eq_serial(EQ_GROUPED, "cuda", AX_F64, 2);
    split.grid = (ax_grid_size){{2, 1, 2, 1, 2}};
    split.parallel.zero = 1;
    split = eq_do(split);
    eq_assert_equal(&split, &one, 1e-12, 1e-11);
    eq_free(&split);
    eq_free(&one);
}

static void memory_is_that_of_the_gpu(void **state)
{
    const size_t size = 64 << 20;
    ax_device *dev;
    void *memory;
    int place, again;
    (void)state;
    int64_t before = ax_device_available("cuda", 0, &place);
    assert_true(place > 0);
    assert_int_equal(ax_device_open("cuda", 1, &dev), AX_OK);
    assert_false(ax_device_uses_host_memory(dev));
    int64_t held = ax_device_held(dev);
    assert_int_equal(ax_device_alloc(dev, size, &memory), AX_OK);
    assert_true(ax_device_held(dev) >= held + (int64_t)size);
    assert_true(ax_device_available("cuda", 0, &again) <= before - (int64_t)size);
    assert_int_equal(again, place);
    ax_device_free(dev, memory, size);
    assert_true(ax_device_held(dev) >= held + (int64_t)size); /* the peak, so it does not fall */
    assert_int_equal(ax_device_alloc(dev, (size_t)before + (1 << 30), &memory), AX_ERR_MEMORY);
    assert_null(memory);
    assert_non_null(strstr(ax_error_message(), "GPU 0 has no "));
    /* The failure does not persist: the next allocation works. */
    assert_int_equal(ax_device_alloc(dev, 4096, &memory), AX_OK);
    ax_stream stream = {dev, NULL};
    double zeros[512];
    memset(zeros, 1, sizeof zeros);
    assert_int_equal(ax_copy_out(&stream, zeros, memory, sizeof zeros), AX_OK);
    for (int i = 0; i < 512; i++)
        assert_true(zeros[i] == 0);
    ax_device_free(dev, memory, 4096);
    ax_device_close(&dev);
}

/* Launches run in order, and are done when the stream has been waited for. */
static void launches_are_in_order(void **state)
{
    enum { N = 1000 };
    ax_device *dev;
    float *a, got[N], host[N];
    (void)state;
    assert_int_equal(ax_device_open("cuda", 1, &dev), AX_OK);
    assert_int_equal(ax_device_alloc(dev, sizeof got, (void **)&a), AX_OK);
    ax_stream stream = {dev, NULL};
    for (int round = 1; round <= 3; round++) {
        for (int i = 0; i < N; i++)
            host[i] = (float)(i * round);
        assert_int_equal(ax_copy_in(&stream, a, host, sizeof host), AX_OK);
        memset(host, 0, sizeof host); /* its contents were copied already */
        assert_int_equal(ax_run_scale(&stream, &(ax_scale_args){N, 2, a, AX_F32}), AX_OK);
        assert_int_equal(ax_stream_wait(&stream), AX_OK);
        assert_int_equal(ax_copy_out(&stream, got, a, sizeof got), AX_OK);
        for (int i = 0; i < N; i++)
            assert_true(got[i] == (float)(2 * i * round));
    }
    ax_device_free(dev, a, sizeof got);
    ax_device_close(&dev);
}

/* NaN stays NaN, and large numbers stay finite. */
static void nan_and_large_numbers_are_kept(void **state)
{
    enum { T = 40, N = 4 };
    static const int64_t widths[] = {16, 5}; /* with and without tensor cores */
    const float large[N] = {3e38f, -3e38f, 1e25f, -1e25f}, one[N] = {1, 1, 1, 1};
    ax_device *dev;
    char *memory;
    (void)state;
    assert_int_equal(ax_device_open("cuda", 1, &dev), AX_OK);
    assert_int_equal(ax_device_alloc(dev, 1 << 16, (void **)&memory), AX_OK);
    ax_stream stream = {dev, NULL};
    for (size_t w = 0; w < AX_COUNT(widths); w++) {
        uint16_t q[T * 16] = {0}, o[T * 16];
        q[7 * widths[w]] = ax_bf16_from_float(NAN); /* query 7 */
        ax_attention_args a = {
            .batch = 1, .q_len = T, .kv_len = T, .heads = 1, .kv_heads = 1, .head_dim = widths[w]};
        a.q_ld = a.kv_ld = widths[w];
        a.scale = 1, a.dtype = AX_BF16, a.q = memory, a.k = a.v = memory + 4096, a.o = memory + 8192;
        assert_int_equal(ax_copy_in(&stream, memory, q, sizeof q), AX_OK);
        assert_int_equal(ax_run_attention(&stream, &a), AX_OK);
        assert_int_equal(ax_copy_out(&stream, o, a.o, sizeof o), AX_OK);
        for (int64_t i = 0; i < T * widths[w]; i++)
            assert_int_equal(isnan(ax_bf16_to_float(o[i])) != 0, i / widths[w] == 7);
    }
    float got[N];
    assert_int_equal(ax_copy_in(&stream, memory, large, sizeof large), AX_OK);
    assert_int_equal(ax_copy_in(&stream, memory + 4096, one, sizeof one), AX_OK);
    ax_activation_grad_args g = {N, memory, memory + 4096, memory + 8192, AX_F32, AX_GELU_TANH};
    assert_int_equal(ax_run_activation_grad(&stream, &g), AX_OK);
    assert_int_equal(ax_copy_out(&stream, got, g.dx, sizeof got), AX_OK);
    for (int i = 0; i < N; i++)
        assert_true(got[i] == (i % 2 ? 0 : 1));
    ax_device_free(dev, memory, 1 << 16);
    ax_device_close(&dev);
}

/* ---- a step does not wait ------------------------------------------------------------------------ */

/* Returns a counter of the emulated GPU; NULL on a real one. */
static emulated_count_fn *counter_of_gpu(const char *name)
{
    return (emulated_count_fn *)(uintptr_t)emulated_function(name);
}

static ax_status some_rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    int64_t t = *(const int64_t *)source;
    for (int64_t i = 0; i < (end - first) * t; i++) {
        out->tokens[i] = (int32_t)((first * t + i) * 5 % 17);
        out->targets[i] = (int32_t)((first * t + i) * 7 % 17);
        out->doc_start[i] = 0;
        out->position[i] = (int32_t)(i % t);
    }
    return AX_OK;
}

enum {
    STEPS = 5,
    KNOWN = 2, /* steps in which libraries look at shapes for the first time */
    GRAPHS = 2 /* graphs of a step: one for each micro-batch. The sums of squares are too few launches */
};

/* Runs the steps; *loss is that of the last one. The number of targets, and with it the scale of the loss,
 * differs from step to step. */
static ax_status steps_of_two_micro_batches(ax_engine *engine, ax_ctx *ctx, bool as_graphs, double *loss)
{
    emulated_count_fn *waits = counter_of_gpu(EMULATED_WAITS), *graphs = counter_of_gpu(EMULATED_GRAPHS);
    int64_t t = 8;
    AX_TRY(ax_param_set_init(ax_engine_params(engine)));
    for (int step = 1; step <= STEPS; step++) {
        ax_hyper h = {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = step};
        ax_step_result r;
        long before = waits(), launched = graphs();
        AX_TRY(ax_engine_step(engine, step, some_rows, &t, 2 * t + step, &h));
        long queued = waits();
        launched = graphs() - launched;
        AX_TRY(ax_engine_result(engine, &r));
        long seen = waits();
        AX_TRY(ax_stream_wait(ctx->stream));
        AX_CHECK(r.finite && r.loss > 1 && r.grad_norm > 0, AX_ERR_NUMERIC, "loss %g, norm %g", r.loss,
                 r.grad_norm);
        AX_CHECK(step <= KNOWN || queued == before, AX_ERR_INTERNAL, "step %d: the host waited %ld times",
                 step, queued - before);
        AX_CHECK(step <= KNOWN || (seen == queued + 1 && waits() == seen + 1), AX_ERR_INTERNAL,
                 "step %d: %ld waits for the result, %ld for the update", step, seen - queued,
                 waits() - seen);
        AX_CHECK(launched == (as_graphs && step > 1 ? GRAPHS : 0), AX_ERR_INTERNAL, "step %d: %ld graphs",
                 step, launched);
        *loss = r.loss;
    }
    return AX_OK;
}

/* Within a step, from the first micro-batch to the update, the host waits for nothing but the result, which
 * is ready before the update is done. Launches that repeat become graphs, with the same results
 * as without. */
static void the_host_waits_for_results_only(void **state)
{
    (void)state;
    ax_device *dev;
    ax_comm *self;
    double loss[4];
    assert_int_equal(ax_device_open("cuda", 1, &dev), AX_OK);
    emulated_count_fn *waits = counter_of_gpu(EMULATED_WAITS);
    ax_device_close(&dev);
    if (!waits)
        skip();
    assert_int_equal(ax_comm_self_create(&self), AX_OK);
    for (int way = 0; way < 4; way++) {
        bool bf16 = way / 2, as_graphs = way % 2;
        setenv("AXONN_GRAPHS", as_graphs ? "on" : "off", 1);
        ax_model_config config = {.layers = 2,
                                  .hidden = 32,
                                  .heads = 2,
                                  .kv_heads = 2,
                                  .ffn = 64,
                                  .vocab = 17,
                                  .seq_len = 8,
                                  .init_std = 0.1,
                                  .norm_eps = 1e-5,
                                  .dropout = {0.1, 0.1, 0.1},
                                  .tie = true};
        ax_engine_options options = {
            .model = &config, .seq_len = 8, .micro_batch = 1, .global_batch = 2, .clip = 1};
        ax_engine_plan plan = {.frame = NULL};
        ax_engine *engine = NULL;
        ax_ctx *ctx;
        ax_dtype compute = bf16 ? AX_BF16 : AX_F32;
        ax_grid_size one = {{1, 1, 1, 1, 1}};
        assert_int_equal(ax_family_find("gpt2", &config.family), AX_OK);
        assert_int_equal(ax_optim_find("adamw", &options.optim), AX_OK);
        assert_int_equal(ax_ctx_create(self, one, "cuda", 1, compute, 1, &ctx), AX_OK);
        ax_status status = ax_engine_plan_make(&options, self, one, NULL, "cuda", 1, compute, &plan);
        if (status == AX_OK)
            status = ax_engine_create(ctx, &options, &plan, 0, &engine);
        if (status == AX_OK)
            status = steps_of_two_micro_batches(engine, ctx, as_graphs, &loss[way]);
        if (status != AX_OK)
            fail_msg("%s: %s", ax_dtype_name(compute), ax_error_message());
        ax_engine_destroy(&engine);
        ax_engine_plan_fini(&plan);
        ax_ctx_destroy(&ctx);
    }
    unsetenv("AXONN_GRAPHS");
    assert_true(loss[0] == loss[1] && loss[2] == loss[3]);
    ax_comm_destroy(&self);
}

/* What is planned for the host is compared with the host's memory, all else with the GPU's. */
static void host_memory_is_checked_too(void **state)
{
    static const struct {
        ax_memory_class of;
        const char *said;
    } cases[] = {{AX_MEMORY_WEIGHTS, "a step needs 1024.0 PiB of device memory but only "},
                 {AX_MEMORY_PINNED, "a step needs 1024.0 PiB of host memory but only "}};
    (void)state;
    ax_comm *self;
    ax_fit m;
    OK(ax_comm_self_create(&self));
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        ax_memory need = {.bytes[AX_MEMORY_GRADIENTS] = 1};
        need.bytes[cases[i].of] = (size_t)1 << 60;
        OK(ax_fit_find(self, "cuda", 0, &need, &m));
        FAILS(AX_ERR_MEMORY, cases[i].said, ax_fit_check(&m, "a step needs", "x"));
    }
    ax_comm_destroy(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_host_waits_for_results_only), cmocka_unit_test(layers_equal_the_reference),
        cmocka_unit_test(training_equals_the_reference),   cmocka_unit_test(ranks_share_a_gpu),
        cmocka_unit_test(memory_is_that_of_the_gpu),       cmocka_unit_test(launches_are_in_order),
        cmocka_unit_test(nan_and_large_numbers_are_kept),  cmocka_unit_test(host_memory_is_checked_too)};
    if (ax_device_absent("cuda")) {
        printf("cuda: %s\n", ax_device_absent("cuda"));
        return getenv("AXONN_PLUGINS") ? 1 : 77; /* an emulated GPU is always there */
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
