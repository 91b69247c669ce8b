/* Training steps: recomputation, planning, the check device, grids, micro-batches, 16 bits. */
#include "support/params.h"
#include "support/ranks.h"
#include "support/tiny.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEPS = 4 };

/* Reads the same rows, but as one document each: attention reaches back to the start of the row. */
static ax_status open_rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    AX_TRY(tiny_rows(source, first, end, out));
    memset(out->doc_start, 0, (size_t)((end - first) * T) * sizeof *out->doc_start);
    return AX_OK;
}

typedef struct setup {
    const char *device;
    ax_grid_size grid;
    int64_t micro_batch, recompute;
    ax_dtype compute;
    double dropout;
    int threads;
    bool planned, whole_rows, open;
    /* results, of rank 0 */
    double loss[STEPS], norm[STEPS], eval;
    double *weights;
    int64_t n_weights;
} setup;

static ax_status collect_weights(ax_ctx *ctx, ax_param_set *set, setup *s)
{
    s->n_weights = 0;
    s->weights = calloc(20000, sizeof(double));
    for (int i = 0; i < set->n; i++) {
        const ax_tensor master = master_of(set->param[i]), *w = &master;
        /* The gradient of the key bias is zero in exact arithmetic. Adam turns its rounding errors into
         * updates, which do not change the output. */
        if (strstr(set->param[i]->name, "attn.k.bias"))
            continue;
        int64_t n = ax_tensor_global_count(w);
        void *host = calloc((size_t)n, ax_dtype_size(w->dtype));
        ax_status status = ax_tensor_collect(ctx, w, host);
        for (int64_t k = 0; k < n; k++)
            s->weights[s->n_weights++] = ax_load(w->dtype, host, k);
        free(host);
        AX_TRY(status);
    }
    return AX_OK;
}

static ax_status steps(ax_engine *engine, setup *s)
{
    AX_TRY(ax_param_set_init(ax_engine_params(engine)));
    uint64_t seed = 5;
    ax_read_rows_fn *read = s->open ? open_rows : tiny_rows;
    for (int i = 0; i < STEPS; i++) {
        ax_step_result r;
        ax_hyper h = {
            .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = i + 1};
        AX_TRY(ax_engine_step(engine, i + 1, read, &seed, tiny_targets(), &h));
        AX_TRY(ax_engine_result(engine, &r));
        AX_CHECK(r.finite, AX_ERR_NUMERIC, "step %d: %s is not finite", i + 1,
                 r.culprit ? r.culprit : "the loss");
        s->loss[i] = r.loss;
        s->norm[i] = r.grad_norm;
    }
    return ax_engine_eval(engine, read, &seed, GLOBAL - 3, &s->eval);
}

static ax_status run_rank(ax_comm *world, void *arg)
{
    setup mine = *(setup *)arg, *s = &mine;
    ax_model_config config = tiny(s->dropout);
    ax_engine_options options = {.model = &config,
                                 .seq_len = T,
                                 .micro_batch = s->micro_batch,
                                 .global_batch = GLOBAL,
                                 .recompute = s->recompute,
                                 .whole_rows = s->whole_rows,
                                 .clip = 1.0};
    ax_ctx *ctx = NULL;
    ax_engine *engine = NULL;
    ax_engine_plan plan = {.frame = NULL};
    AX_TRY(ax_optim_find("adamw", &options.optim));
    ax_status status = ax_ctx_create(world, s->grid, s->device, s->threads, s->compute, 3, &ctx);
    if (status == AX_OK && s->planned)
        status =
            ax_engine_plan_make(&options, world, s->grid, NULL, s->device, s->threads, s->compute, &plan);
    if (status == AX_OK)
        status = ax_engine_create(ctx, &options, s->planned ? &plan : NULL, 4 << 20, &engine);
    if (status == AX_OK)
        status = steps(engine, s);
    if (status == AX_OK)
        status = collect_weights(ctx, ax_engine_params(engine), s);
    if (status == AX_OK && s->planned &&
        ax_frame_high_water(ax_engine_frame(engine)) != plan.memory.bytes[AX_MEMORY_ACTIVATIONS])
        status =
            ax_fail(AX_ERR_INTERNAL, "%zu bytes of the frame's %zu were used",
                    ax_frame_high_water(ax_engine_frame(engine)), plan.memory.bytes[AX_MEMORY_ACTIVATIONS]);
    ax_engine_destroy(&engine);
    ax_engine_plan_fini(&plan);
    ax_ctx_destroy(&ctx);
    if (ax_comm_rank(world) == 0)
        *(setup *)arg = mine;
    else
        free(mine.weights);
    return status;
}

static setup run(setup s)
{
    const ax_grid_size *g = &s.grid;
    OK(ax_comm_threads_run((int)ax_grid_size_ranks(*g), run_rank, &s));
    return s;
}

static const setup base = {.device = "cpu",
                           .grid = {{1, 1, 1, 1, 1}},
                           .micro_batch = 2,
                           .compute = AX_F32,
                           .dropout = 0.2,
                           .threads = 2,
                           .planned = true};

static void same_bits(const setup *a, const setup *b)
{
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    assert_memory_equal(a->norm, b->norm, sizeof a->norm);
    assert_int_equal(a->n_weights, b->n_weights);
    assert_memory_equal(a->weights, b->weights, (size_t)a->n_weights * sizeof(double));
    assert_true(a->eval == b->eval);
}

static void recomputation_changes_no_bit(void **state)
{
    (void)state;
    static const ax_dtype dtypes[] = {AX_F32, AX_BF16, AX_F16};
    for (size_t d = 0; d < AX_COUNT(dtypes); d++) {
        setup plain = base;
        plain.compute = dtypes[d];
        plain = run(plain);
        for (int64_t stride = 1; stride <= 3; stride++) {
            setup again = base;
            again.compute = plain.compute;
            again.recompute = stride;
            again = run(again);
            same_bits(&plain, &again);
            free(again.weights);
        }
        free(plain.weights);
    }
}

/* With whole_rows, doc_start is not read. */
static void whole_rows_have_no_documents(void **state)
{
    (void)state;
    setup masked = run(base), open = base, whole = base;
    open.open = true;
    open = run(open);
    whole.whole_rows = true;
    whole = run(whole);
    same_bits(&open, &whole);
    assert_true(masked.loss[0] != open.loss[0] && masked.eval != open.eval);
    free(masked.weights);
    free(open.weights);
    free(whole.weights);
}

/* The results are the same with a planned frame, which reuses addresses, and a bump frame, which does not;
 * and with one thread and three. */
static void planning_and_threads_change_no_bit(void **state)
{
    (void)state;
    setup planned = run(base), bump = base, threads = base;
    bump.planned = false;
    threads.threads = 3;
    bump = run(bump);
    threads = run(threads);
    same_bits(&planned, &bump);
    same_bits(&planned, &threads);
    free(planned.weights);
    free(bump.weights);
    free(threads.weights);
}

/* The check device poisons fresh memory and faults on host access. The step neither reads memory that was not
 * written nor accesses device memory from the host. */
static void the_check_device_finds_nothing(void **state)
{
    (void)state;
    static const char *const pairs[][2] = {{"ref", "check"}, {"cpu", "check:cpu"}};
    for (size_t i = 0; i < AX_COUNT(pairs); i++) {
        setup plain = base, checked = base;
        plain.device = pairs[i][0];
        checked.device = pairs[i][1];
        plain = run(plain);
        checked = run(checked);
        same_bits(&plain, &checked);
        free(plain.weights);
        free(checked.weights);
    }
}

static double worst_of(const double *a, const double *b, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++)
        worst = fmax(worst, fabs(a[i] - b[i]) / fmax(fabs(b[i]), 1e-3));
    return worst;
}

/* In float64 a grid only changes the order of sums. Four steps of AdamW amplify rounding errors of 1e-16 by
 * the ratio of sqrt(v) to the smallest entries of the gradient, at most 1e5 here. */
static void grids_train_as_one_rank_does(void **state)
{
    (void)state;
    static const ax_grid_size grids[] = {{{2, 1, 1, 1, 1}}, {{1, 2, 1, 1, 1}}, {{1, 1, 1, 1, 2}},
                                         {{1, 1, 1, 1, 4}}, {{2, 2, 1, 1, 2}}, {{3, 1, 1, 1, 2}},
                                         {{1, 3, 1, 1, 1}}, {{4, 2, 1, 1, 1}}};
    setup serial = base;
    serial.device = "ref";
    serial.compute = AX_F64;
    serial = run(serial);
    for (size_t i = 0; i < AX_COUNT(grids); i++) {
        setup s = base;
        s.device = "ref";
        s.compute = AX_F64;
        s.grid = grids[i];
        s.threads = 1;
        s.micro_batch = grids[i].of[AX_DATA] == 4 ? 1 : 2;
        s.recompute = i % 2;
        s = run(s);
        double loss = worst_of(s.loss, serial.loss, STEPS), norm = worst_of(s.norm, serial.norm, STEPS),
               eval = worst_of(&s.eval, &serial.eval, 1),
               weights = worst_of(s.weights, serial.weights, s.n_weights);
        printf("x=%d y=%d data=%d: loss %.1e, norm %.1e, eval %.1e, weights %.1e\n", grids[i].of[AX_X],
               grids[i].of[AX_Y], grids[i].of[AX_DATA], loss, norm, eval, weights);
        assert_true(loss < 1e-11 && norm < 1e-11 && eval < 1e-11 && weights < 1e-9);
        free(s.weights);
    }
    free(serial.weights);
}

/* The size of micro-batches does not matter: dropout is a function of the global sample, and the loss is a
 * mean over all targets of the step. */
static void micro_batches_do_not_matter(void **state)
{
    (void)state;
    setup one = base;
    one.device = "ref";
    one.compute = AX_F64;
    one.micro_batch = GLOBAL;
    one = run(one);
    for (int64_t micro = 1; micro < GLOBAL; micro *= 2) {
        setup s = base;
        s.device = "ref";
        s.compute = AX_F64;
        s.micro_batch = micro;
        s = run(s);
        assert_true(worst_of(s.loss, one.loss, STEPS) < 1e-11);
        assert_true(worst_of(s.weights, one.weights, s.n_weights) < 1e-9);
        free(s.weights);
    }
    free(one.weights);
}

/* Compares 16-bit training on cpu with the error that rounding to 16 bits causes on the reference device: the
 * losses of cpu may differ from the fp32 reference at most twice as much as those of the 16-bit reference,
 * over all steps. */
static double check_gap(ax_dtype compute)
{
    setup exact = base, rounded = base, fast = base;
    exact.device = rounded.device = "ref";
    rounded.compute = fast.compute = compute;
    exact = run(exact);
    rounded = run(rounded);
    fast = run(fast);
    double gap = 0, ours = 0;
    for (int i = 0; i < STEPS; i++) {
        gap += fabs(rounded.loss[i] - exact.loss[i]);
        ours += fabs(fast.loss[i] - exact.loss[i]);
    }
    printf("gap of %s on ref %.1e, of cpu %.1e\n", ax_dtype_name(compute), gap / STEPS, ours / STEPS);
    assert_true(gap > 0 && ours <= 2 * gap);
    free(exact.weights);
    free(rounded.weights);
    free(fast.weights);
    return gap;
}

static void sixteen_bits_stay_within_twice_the_reference_gap(void **state)
{
    (void)state;
    double bf16 = check_gap(AX_BF16), fp16 = check_gap(AX_F16);
    assert_true(fp16 < bf16); /* fp16 has three more bits of precision */
}

static void options_that_do_not_fit_are_refused(void **state)
{
    (void)state;
    static const struct {
        int64_t seq_len, micro_batch, global_batch;
    } bad[] = {{T, 3, 8}, {T + 1, 2, 8}, {T, INT64_C(1) << 52, INT64_C(1) << 52}};
    ax_model_config config = tiny(0);
    ax_comm *self;
    OK(ax_comm_self_create(&self));
    for (size_t i = 0; i < AX_COUNT(bad); i++) {
        ax_engine_options options = {.model = &config,
                                     .seq_len = bad[i].seq_len,
                                     .micro_batch = bad[i].micro_batch,
                                     .global_batch = bad[i].global_batch};
        ax_engine_plan plan;
        assert_int_equal(ax_engine_plan_make(&options, self, base.grid, NULL, "cpu", 1, AX_F32, &plan),
                         AX_ERR_USAGE);
    }
    ax_comm_destroy(&self);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(recomputation_changes_no_bit),
                                       cmocka_unit_test(whole_rows_have_no_documents),
                                       cmocka_unit_test(planning_and_threads_change_no_bit),
                                       cmocka_unit_test(the_check_device_finds_nothing),
                                       cmocka_unit_test(grids_train_as_one_rank_does),
                                       cmocka_unit_test(micro_batches_do_not_matter),
                                       cmocka_unit_test(sixteen_bits_stay_within_twice_the_reference_gap),
                                       cmocka_unit_test(options_that_do_not_fit_are_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
