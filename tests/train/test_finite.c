/* Steps whose gradient is not finite: loss scales too large for fp16, and updates that are skipped. */
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

/* ---- loss scaling -------------------------------------------------------------------------------- */

enum { SCALED_STEPS = 20 };

/* Input and results (of rank 0) of some steps in fp16 that begin with a given loss scale. */
typedef struct scaling {
    ax_grid_size grid;
    double start;
    bool large_head; /* gradients overflow with every loss scale */
    bool narrow;     /* gradients of matrices are in fp16 */
    double loss[SCALED_STEPS], norm[SCALED_STEPS], scale[SCALED_STEPS], end;
    bool overflow[SCALED_STEPS], updated[SCALED_STEPS];
    int64_t skipped;
} scaling;

static ax_status first_weights(ax_engine *engine, ax_ctx *ctx, float *out)
{
    const ax_tensor master = master_of(ax_engine_params(engine)->param[0]), *w = &master;
    float *all;
    AX_TRY(ax_calloc((size_t)ax_tensor_global_count(w), sizeof *all, &all));
    ax_status status = ax_tensor_collect(ctx, w, all);
    memcpy(out, all, VOCAB * sizeof *out);
    free(all);
    return status;
}

/* Makes gradients overflow with every loss scale. The final norm's weight is 0, so the logits and the loss
 * are finite. The head's weights, by which the gradient is multiplied, are 65000. */
static ax_status enlarge_head(ax_engine *engine)
{
    ax_param_set *set = ax_engine_params(engine);
    for (int i = 0; i < set->n; i++) {
        ax_param *p = set->param[i];
        int64_t n = p->state[AX_STATE_MASTER].n;
        float *w = p->state[AX_STATE_MASTER].data;
        if (!strcmp(p->name, "embed.tokens"))
            for (int64_t k = 0; k < n; k++)
                w[k] = k / 21 % 2 ? 65000 : -65000;
        if (!strcmp(p->name, "norm.weight"))
            memset(w, 0, (size_t)n * sizeof *w);
    }
    return ax_param_set_refresh(set);
}

/* A step without targets changes neither weights nor the loss scale, although weight decay and momentum
 * would, and does not hide the result of the step before it. */
static ax_status empty_steps(ax_engine *engine, ax_ctx *ctx, const scaling *s)
{
    uint64_t seed = 5;
    float before[VOCAB], after[VOCAB];
    ax_step_result r;
    const ax_hyper h = {
        .lr = 0.003, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = SCALED_STEPS};
    const int64_t targets = s->large_head ? 1 : tiny_targets();
    AX_TRY(ax_engine_step(engine, SCALED_STEPS + 1, tiny_rows, &seed, targets, &h));
    AX_TRY(first_weights(engine, ctx, before));
    AX_TRY(ax_engine_step(engine, SCALED_STEPS + 2, tiny_rows, &seed, 0, &h));
    AX_TRY(ax_engine_result(engine, &r));
    AX_CHECK(!r.empty && isfinite(r.loss), AX_ERR_INTERNAL, "the result of a step is lost");
    const ax_loss_scale scale = *ax_engine_loss_scale(engine);
    AX_TRY(ax_engine_step(engine, SCALED_STEPS + 3, tiny_rows, &seed, 0, &h));
    AX_TRY(ax_engine_result(engine, &r));
    AX_TRY(first_weights(engine, ctx, after));
    AX_CHECK(r.empty && r.finite && isnan(r.loss) && isnan(r.grad_norm) && !r.overflow, AX_ERR_INTERNAL,
             "an empty step has a loss of %g and a norm of %g", r.loss, r.grad_norm);
    AX_CHECK(!memcmp(before, after, sizeof after) && ax_engine_loss_scale(engine)->scale == scale.scale &&
                 ax_engine_loss_scale(engine)->good_steps == scale.good_steps,
             AX_ERR_INTERNAL, "an empty step changed something");
    return AX_OK;
}

static ax_status scaled_steps(ax_engine *engine, ax_ctx *ctx, scaling *s)
{
    AX_TRY(ax_param_set_init(ax_engine_params(engine)));
    if (s->large_head)
        AX_TRY(enlarge_head(engine));
    uint64_t seed = 5;
    *ax_engine_loss_scale(engine) = (ax_loss_scale){.scale = s->start};
    float before[VOCAB], after[VOCAB];
    AX_TRY(first_weights(engine, ctx, before));
    for (int i = 0; i < SCALED_STEPS; i++) {
        ax_step_result r;
        ax_hyper h = {.lr = 0.003, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .step = i + 1};
        int64_t targets = s->large_head ? 1 : tiny_targets();
        AX_TRY(ax_engine_step(engine, i + 1, tiny_rows, &seed, targets, &h));
        AX_TRY(ax_engine_result(engine, &r));
        AX_TRY(first_weights(engine, ctx, after));
        s->loss[i] = r.loss, s->norm[i] = r.grad_norm;
        s->scale[i] = r.loss_scale, s->overflow[i] = r.overflow;
        s->updated[i] = memcmp(before, after, sizeof after) != 0;
        AX_CHECK(r.finite == s->updated[i] && r.finite != r.overflow, AX_ERR_INTERNAL,
                 "step %d: finite %d, overflow %d", i + 1, r.finite, r.overflow);
        memcpy(before, after, sizeof after);
    }
    s->end = ax_engine_loss_scale(engine)->scale;
    s->skipped = ax_engine_loss_scale(engine)->skipped_steps;
    return empty_steps(engine, ctx, s);
}

/* Checks that all ranks have the same results. */
static ax_status agree(ax_comm *world, const scaling *mine)
{
    double ends[] = {mine->end, -mine->end, (double)mine->skipped, -(double)mine->skipped};
    ax_work *work = NULL;
    AX_TRY(ax_all_reduce(world, NULL, ends, AX_COUNT(ends), AX_F64, AX_MAX, &work));
    AX_TRY(ax_wait(&work));
    AX_CHECK(ends[0] == -ends[1] && ends[2] == -ends[3], AX_ERR_INTERNAL,
             "loss scales %g to %g, %g to %g steps skipped", -ends[1], ends[0], -ends[3], ends[2]);
    return AX_OK;
}

static ax_status scaled_rank(ax_comm *world, void *arg)
{
    scaling mine = *(scaling *)arg;
    ax_model_config config = tiny(0);
    ax_engine_options options = {
        .model = &config, .seq_len = T, .micro_batch = 2, .global_batch = GLOBAL, .clip = 1.0};
    ax_ctx *ctx = NULL;
    ax_engine *engine = NULL;
    AX_TRY(ax_optim_find("adamw", &options.optim));
    ax_status status = ax_ctx_create(world, mine.grid, "cpu", 1, AX_F16, 7, &ctx);
    if (status == AX_OK) {
        ctx->parallel.zero = mine.grid.of[AX_DATA] - 1; /* 1 on two ranks of data, 3 on four */
        ctx->parallel.narrow_grads = mine.narrow;
        status = ax_engine_create(ctx, &options, NULL, 8 << 20, &engine);
    }
    if (status == AX_OK)
        status = scaled_steps(engine, ctx, &mine);
    if (status == AX_OK)
        status = agree(world, &mine);
    ax_engine_destroy(&engine);
    ax_ctx_destroy(&ctx);
    if (ax_comm_rank(world) == 0)
        *(scaling *)arg = mine;
    return status;
}

static scaling scaled(ax_grid_size g, double start, bool large_head)
{
    scaling s = {.grid = g, .start = start, .large_head = large_head};
    OK(ax_comm_threads_run((int)ax_grid_size_ranks(g), scaled_rank, &s));
    return s;
}

/* Steps that overflow change nothing and halve the scale, until one does not overflow. From then on the
 * scale, a power of two, changes no result, except where fp16 rounds. All ranks of a grid agree. */
static void a_scale_that_is_too_large_is_halved(void **state)
{
    (void)state;
    const ax_grid_size one = {{1, 1, 1, 1, 1}},
                       grids[] = {{{2, 1, 1, 1, 2}}, {{1, 2, 2, 1, 1}}, {{1, 1, 1, 1, 4}}};
    scaling fine = scaled(one, 0x1p10, false), large = scaled(one, 0x1p26, false);
    int first = 0;
    while (first < SCALED_STEPS && large.overflow[first])
        first++;
    assert_in_range(first, 3, SCALED_STEPS - 4);
    assert_int_equal(large.skipped, first);
    assert_true(large.end == 0x1p26 / (double)(1 << first) && fine.end == 0x1p10 && fine.skipped == 0);
    for (int i = 0; i < SCALED_STEPS; i++) {
        assert_true(large.overflow[i] == (i < first) && !fine.overflow[i]);
        assert_true(large.scale[i] == 0x1p26 / (double)(1 << (i < first ? i : first)));
        assert_true(large.loss[i] == fine.loss[0] || i > first);
    }
    assert_true(fabs(large.norm[first] / fine.norm[0] - 1) < 1e-2);
    assert_true(fine.loss[SCALED_STEPS - 1] < 0.95 * fine.loss[0]);
    for (size_t i = 0; i < AX_COUNT(grids); i++) {
        scaling split = scaled(grids[i], 0x1p26, false);
        assert_true(split.skipped > 2 && fabs((double)(split.skipped - large.skipped)) <= 1);
        assert_true(fabs(split.loss[SCALED_STEPS - 1] / large.loss[SCALED_STEPS - 1] - 1) < 2e-2);
    }
}

/* The same if the gradients of matrices are in fp16: they are sums over the rows of a step, which overflow
 * with scales at which the gradients of activations do not. */
static void fp16_gradients_that_overflow_halve_the_scale(void **state)
{
    (void)state;
    const scaling large = scaled((ax_grid_size){{1, 1, 1, 1, 1}}, 0x1p26, false);
    for (int ranks = 1; ranks <= 2; ranks++) {
        scaling s = {.grid = {{1, 1, 1, 1, ranks}}, .start = 0x1p26, .narrow = true};
        OK(ax_comm_threads_run(ranks, scaled_rank, &s));
        assert_in_range(s.skipped, large.skipped + 1, SCALED_STEPS - 4);
        assert_true(s.end == 0x1p26 / (double)(1 << s.skipped));
        for (int i = 0; i < SCALED_STEPS; i++)
            assert_true(s.overflow[i] == (i < s.skipped));
        assert_true(s.loss[SCALED_STEPS - 1] < 0.95 * s.loss[0]);
    }
}

/* At its minimum the scale is not lowered any more, and the result still reports the overflow. */
static void overflow_at_the_smallest_scale_is_reported(void **state)
{
    (void)state;
    scaling s = scaled((ax_grid_size){{1}}, 4, true);
    assert_true(s.end == AX_LOSS_SCALE_LEAST && s.skipped == SCALED_STEPS);
    for (int i = 0; i < SCALED_STEPS; i++)
        assert_true(s.overflow[i] && isfinite(s.loss[i]) && s.scale[i] == (i < 2 ? 4 >> i : 1));
}

/* ---- not finite ---------------------------------------------------------------------------------- */

/* A copy of all master weights, compute copies and optimizer state. */
typedef struct image {
    size_t bytes;
    char *data;
} image;

static ax_status take_image(ax_engine *engine, ax_ctx *ctx, image *out)
{
    const ax_param_set *set = ax_engine_params(engine);
    const ax_param_block *weights = &set->block[AX_BLOCK_WEIGHTS], *rest = &set->block[AX_BLOCK_STATE];
    const size_t first = ax_memory_total(&weights->memory), second = ax_memory_total(&rest->memory);
    *out = (image){.bytes = first + second};
    AX_TRY(ax_calloc(1, out->bytes, &out->data));
    AX_TRY(ax_copy_out(ctx->stream, out->data, weights->data, first));
    return ax_copy_out(ctx->stream, out->data + first, rest->data, second);
}

static bool equal_images(const image *a, const image *b)
{
    return a->bytes == b->bytes && !memcmp(a->data, b->data, a->bytes);
}

/* Sets the first weight of this rank's part of `param`. */
static ax_status put_weight(ax_engine *engine, ax_ctx *ctx, ax_param *param, float value)
{
    if (param->state[AX_STATE_MASTER].n)
        AX_TRY(ax_param_state_write(ctx, &param->state[AX_STATE_MASTER], 0, 1, &value));
    return ax_param_set_refresh(ax_engine_params(engine));
}

static ax_status queue_step(ax_engine *engine, int step)
{
    static uint64_t seed = 5;
    ax_hyper h = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = step};
    return ax_engine_step(engine, step, tiny_rows, &seed, tiny_targets(), &h);
}

typedef struct skipping {
    image before, spoilt, after;
} skipping;

/* A step on weights with a NaN changes nothing, and its result names the parameter. Steps that are queued
 * before the result is read change nothing either, even if the weight has been repaired. The step after that
 * trains. */
static ax_status skip_steps(ax_engine *engine, ax_ctx *ctx, skipping *s)
{
    ax_step_result r;
    ax_param *param = ax_param_set_find(ax_engine_params(engine), "h.1.mlp.down.weight");
    float weight = 0;
    EXPECT(param);
    AX_TRY(ax_param_set_init(ax_engine_params(engine)));
    AX_TRY(queue_step(engine, 1));
    AX_TRY(ax_engine_result(engine, &r));
    EXPECT(r.finite && !r.culprit && r.loss > 1 && r.grad_norm > 0);
    AX_TRY(take_image(engine, ctx, &s->before));
    if (param->state[AX_STATE_MASTER].n)
        AX_TRY(ax_param_state_read(ctx, &param->state[AX_STATE_MASTER], 0, 1, &weight));
    AX_TRY(put_weight(engine, ctx, param, NAN));
    AX_TRY(take_image(engine, ctx, &s->spoilt));
    AX_TRY(queue_step(engine, 2));
    AX_TRY(ax_engine_result(engine, &r));
    EXPECT(!r.finite && isnan(r.loss) && !signbit(r.grad_norm) && r.culprit_weights);
    EXPECT(!strcmp(r.culprit, param->name));
    AX_TRY(take_image(engine, ctx, &s->after));
    EXPECT(equal_images(&s->after, &s->spoilt) && !equal_images(&s->after, &s->before));
    free(s->after.data);
    AX_TRY(queue_step(engine, 3));
    AX_TRY(put_weight(engine, ctx, param, weight));
    AX_TRY(queue_step(engine, 4));
    AX_TRY(take_image(engine, ctx, &s->after));
    EXPECT(equal_images(&s->after, &s->before));
    AX_TRY(ax_engine_result(engine, &r)); /* of step 3 */
    EXPECT(!r.finite && isnan(r.loss) && r.culprit && !r.culprit_weights);
    free(s->after.data);
    AX_TRY(queue_step(engine, 5));
    AX_TRY(ax_engine_result(engine, &r));
    EXPECT(r.finite && r.loss > 1);
    AX_TRY(take_image(engine, ctx, &s->after));
    EXPECT(!equal_images(&s->after, &s->before));
    return AX_OK;
}

typedef struct skip_case {
    const char *device;
    ax_grid_size grid;
    ax_dtype compute;
    int zero;
} skip_case;

static ax_status skip_rank(ax_comm *world, void *arg)
{
    const skip_case *c = arg;
    ax_model_config config = tiny(0.2);
    ax_engine_options options = {
        .model = &config, .seq_len = T, .micro_batch = 1, .global_batch = GLOBAL, .clip = 1.0};
    ax_ctx *ctx = NULL;
    ax_engine *engine = NULL;
    skipping s = {{0}, {0}, {0}};
    AX_TRY(ax_optim_find("adamw", &options.optim));
    AX_TRY(ax_ctx_create(world, c->grid, c->device, 1, c->compute, 3, &ctx));
    ctx->parallel.zero = c->zero;
    ax_status status = ax_engine_create(ctx, &options, NULL, 4 << 20, &engine);
    if (status == AX_OK)
        status = skip_steps(engine, ctx, &s);
    free(s.before.data);
    free(s.spoilt.data);
    free(s.after.data);
    ax_engine_destroy(&engine);
    ax_ctx_destroy(&ctx);
    return status;
}

static void nonfinite_steps_change_nothing(void **state)
{
    (void)state;
    static const skip_case cases[] = {{"cpu", {{1, 1, 1, 1, 1}}, AX_BF16, 0},
                                      {"check:cpu", {{1, 1, 1, 1, 1}}, AX_F32, 0},
                                      {"cpu", {{2, 1, 1, 1, 2}}, AX_BF16, 1},
                                      {"cpu", {{1, 1, 2, 1, 2}}, AX_F32, 3}};
    for (size_t i = 0; i < AX_COUNT(cases); i++) {
        const ax_grid_size *g = &cases[i].grid;
        if (ax_comm_threads_run((int)ax_grid_size_ranks(*g), skip_rank, (void *)&cases[i]) != AX_OK)
            fail_msg("case %zu: %s", i, ax_error_message());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_scale_that_is_too_large_is_halved),
                                       cmocka_unit_test(fp16_gradients_that_overflow_halve_the_scale),
                                       cmocka_unit_test(overflow_at_the_smallest_scale_is_reported),
                                       cmocka_unit_test(nonfinite_steps_change_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
