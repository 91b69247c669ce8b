/* engine: training on pipeline stages against the same grid with one stage. Every sum over micro-batches runs
 * in one order under every schedule, so untied models have the same bits: losses, norms, gradients, weights.
 */
#include "axonn/engine.h"
#include "axonn/pipe.h"
#include "support/lazy.h"
#include "support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 6, SEQ = 12, VOCAB = 29, STEPS = 3, MOST = 60000 };

typedef struct setup {
    ax_grid_size grid; /* x, y, z, pipe, data */
    int zero, schedule;
    int64_t slack, micro_batches, recompute;
    ax_dtype compute;
    bool tied, lazy, llama;
    const char *device;
    const int64_t *cut;
    const char *strategy;
} setup;

typedef struct result {
    double loss[STEPS], norm[STEPS], eval;
    double *values; /* weights, then gradients, of all parameters one after the other */
    int64_t n;
} result;

typedef struct job {
    const setup *s;
    result *out;
} job;

static ax_status rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    (void)source;
    for (int64_t row = first; row < end; row++)
        for (int64_t i = 0; i < SEQ; i++) {
            uint64_t at = (uint64_t)(row * SEQ + i);
            int64_t to = (row - first) * SEQ + i;
            out->tokens[to] = (int32_t)(ax_rng_uniform(11, at) * VOCAB);
            out->targets[to] = at % 7 == 3 ? -1 : (int32_t)(ax_rng_uniform(11, at + 1) * VOCAB);
            out->doc_start[to] = i < SEQ / 2 ? 0 : SEQ / 2;
            out->position[to] = (int32_t)i - out->doc_start[to];
        }
    return AX_OK;
}

/* Collects the values of a parameter that this rank's stage owns; one rank of the stage stores them. */
static ax_status store(ax_ctx *ctx, const ax_tensor *t, double *to)
{
    void *host;
    int64_t n = ax_tensor_global_count(t);
    AX_TRY(ax_calloc((size_t)n, ax_dtype_size(t->dtype), &host));
    ax_status status = ax_tensor_collect(ctx, t, host);
    const ax_grid *g = ctx->grid;
    int rank = ax_grid_rank(g), sum = 0;
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        sum += a == AX_PIPE ? 0 : ax_grid_coord(g, rank, (ax_axis)a);
    for (int64_t k = 0; k < n && sum == 0; k++)
        to[k] = ax_load(t->dtype, host, k);
    free(host);
    return status;
}

static ax_status store_all(ax_ctx *ctx, const ax_param_set *set, result *out)
{
    int64_t at = 0;
    for (int which = 0; which < 2; which++)
        for (int i = 0; i < set->n; i++) {
            const ax_param *p = set->param[i];
            int64_t n = ax_tensor_global_count(&p->master);
            EXPECT(at + n <= MOST);
            if (ax_param_is_owned(p))
                AX_TRY(store(ctx, which ? &p->grad : &p->master, out->values + at));
            at += n;
        }
    out->n = at;
    return AX_OK;
}

static ax_status steps(ax_ctx *ctx, ax_engine *engine, const setup *s, int64_t global, result *out)
{
    int64_t targets = 0;
    for (int64_t at = 0; at < global * SEQ; at++)
        targets += at % 7 != 3;
    AX_TRY(ax_param_set_init(ax_engine_params(engine)));
    for (int i = 0; i < STEPS; i++) {
        ax_step_result r;
        ax_hyper h = {
            .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = i + 1};
        AX_TRY(ax_engine_step(engine, i + 1, rows, NULL, targets, &h));
        AX_TRY(ax_engine_result(engine, &r));
        EXPECT(r.finite || s->compute == AX_F16);
        double eval;
        if (i == 0) /* between two steps, as in a run; the last micro-batch is not full */
            AX_TRY(ax_engine_eval(engine, rows, NULL, global - 1, &eval));
        if (ax_grid_rank(ctx->grid) == 0) {
            out->loss[i] = r.loss;
            out->norm[i] = r.grad_norm;
            out->eval = i ? out->eval : eval;
        }
    }
    return store_all(ctx, ax_engine_params(engine), out);
}

static ax_status run_on(ax_comm *world, const setup *s, result *out)
{
    const int64_t rows_each = 2, global = rows_each * s->micro_batches * s->grid.z * s->grid.data;
    ax_model_config config = {.layers = LAYERS,
                              .hidden = 21,
                              .heads = 3,
                              .kv_heads = 3,
                              .ffn = 23,
                              .vocab = VOCAB,
                              .seq_len = SEQ,
                              .dropout = {0.1, 0.1, 0.1},
                              .init_std = 0.2,
                              .norm_eps = 1e-5,
                              .tie = s->tied};
    if (s->llama) {
        config.hidden = 24;
        config.norm = AX_NORM_RMS;
        config.biases = AX_BIASES_NONE;
        config.gated = true;
        config.rope.theta = 10000;
        config.activation = AX_SILU;
    }
    AX_TRY(ax_family_find(s->llama ? "llama" : "gpt2", &config.family));
    ax_engine_options options = {.model = &config,
                                 .seq_len = SEQ,
                                 .micro_batch = rows_each,
                                 .global_batch = global,
                                 .recompute = s->recompute,
                                 .clip = 1.0};
    AX_TRY(ax_optim_find("adamw", &options.optim));
    ax_parallel parallel = ax_parallel_default;
    parallel.zero = s->zero;
    parallel.pipe.schedule = s->schedule;
    parallel.pipe.slack = s->slack;
    parallel.pipe.cut = s->cut;
    AX_TRY(ax_strategy_find(s->strategy ? s->strategy : "axonn", &parallel.strategy));
    ax_ctx *ctx = NULL;
    ax_engine *engine = NULL;
    ax_engine_plan plan = {.frame = NULL};
    const char *device = s->device ? s->device : "cpu";
    ax_status status = ax_engine_plan_make(&options, world, s->grid, &parallel, device, 1, s->compute, &plan);
    if (status == AX_OK)
        status = ax_ctx_create(world, s->grid, device, 1, s->compute, 3, &ctx);
    if (status == AX_OK)
        ctx->parallel = parallel;
    if (status == AX_OK)
        status = ax_engine_create(ctx, &options, &plan, 0, &engine);
    if (status == AX_OK)
        status = ax_grid_prepare(ctx->grid, plan.axes);
    if (status == AX_OK)
        status = steps(ctx, engine, s, global, out);
    if (status == AX_OK) {
        const ax_param_set *set = ax_engine_params(engine);
        EXPECT(set->bytes_master == plan.memory.weights && set->bytes_use == plan.memory.copies);
        EXPECT(set->bytes_grad + set->bytes_tied == plan.memory.gradients &&
               set->bytes_state == plan.memory.optimizer);
    }
    ax_engine_destroy(&engine);
    ax_engine_plan_fini(&plan);
    ax_ctx_destroy(&ctx);
    return status;
}

static ax_status run_rank(ax_comm *world, void *arg)
{
    const job *j = arg;
    ax_comm *late;
    if (!j->s->lazy)
        return run_on(world, j->s, j->out);
    AX_TRY(lazy_create(world, NULL, &late));
    ax_status status = run_on(late, j->s, j->out);
    ax_comm_destroy(&late);
    return status;
}

static void run_setup(const setup *s, result *out)
{
    job j = {s, out};
    *out = (result){.eval = 0};
    out->values = calloc(MOST, sizeof *out->values);
    assert_non_null(out->values);
    int ranks = s->grid.x * s->grid.y * s->grid.z * s->grid.pipe * s->grid.data;
    assert_ranks(ranks, run_rank, &j);
}

static const char *describe(const setup *s, char text[200])
{
    static const char *const schedules[] = {"message", "1f1b", "gpipe"};
    snprintf(text, 200,
             "x=%d y=%d z=%d pipe=%d data=%d zero %d, %s, slack %d, %d micro-batches, recompute %d, %s%s%s",
             s->grid.x, s->grid.y, s->grid.z, s->grid.pipe, s->grid.data, s->zero, schedules[s->schedule],
             (int)s->slack, (int)s->micro_batches, (int)s->recompute, ax_dtype_name(s->compute),
             s->tied ? ", tied" : "", s->lazy ? ", lazy" : "");
    return text;
}

/* Untied: the same bits. Tied: the table's gradient is the sum of two sums, in another order than with one
 * stage. Relative to the norm, that differs by some roundings of the compute dtype's accumulator (fp32: 6e-8
 * each), which three steps of AdamW amplify where its second moment is small: less than a step of lr, 0.01.
 */
static void compare(const setup *s, const result *got, const result *want)
{
    char text[200];
    bool same = !memcmp(got->loss, want->loss, sizeof got->loss) &&
                !memcmp(got->norm, want->norm, sizeof got->norm) && got->n == want->n &&
                !memcmp(got->values, want->values, (size_t)got->n * sizeof *got->values);
    double loss = fabs(got->loss[STEPS - 1] - want->loss[STEPS - 1]),
           norm = fabs(got->norm[0] / want->norm[0] - 1);
    bool near = got->n == want->n && loss < 1e-3 && norm < 1e-5;
    for (int64_t i = 0; i < want->n / 2; i++)
        near = near && fabs(got->values[i] - want->values[i]) < 0.01;
    /* The sum of micro-batches' losses is rounded in double. */
    bool eval = fabs(got->eval / want->eval - 1) < (s->tied ? 1e-4 : 1e-12);
    if ((s->tied ? !near : !same) || !eval)
        fail_msg("%s: losses %.17g %.17g %.17g, not %.17g %.17g %.17g; norm %.17g, not %.17g; eval %.17g, "
                 "not %.17g",
                 describe(s, text), got->loss[0], got->loss[1], got->loss[2], want->loss[0], want->loss[1],
                 want->loss[2], got->norm[0], want->norm[0], got->eval, want->eval);
}

static void check(const setup *s)
{
    result want, got;
    setup one = *s;
    one.grid.pipe = 1;
    one.lazy = false;
    one.cut = NULL;
    run_setup(&one, &want);
    run_setup(s, &got);
    compare(s, &got, &want);
    free(want.values);
    free(got.values);
}

enum { MESSAGE = AX_PIPE_MESSAGE, F1B = AX_PIPE_1F1B, GPIPE = AX_PIPE_GPIPE };

static void stages_of_one_rank(void **state)
{
    (void)state;
    static const int64_t cut[] = {0, 5, 6};
    const setup all[] = {
        {.grid = {1, 1, 1, 2, 1}, .schedule = MESSAGE, .micro_batches = 7, .compute = AX_F32},
        {.grid = {1, 1, 1, 2, 1}, .schedule = F1B, .micro_batches = 1, .compute = AX_BF16},
        {.grid = {1, 1, 1, 3, 1}, .schedule = GPIPE, .micro_batches = 2, .compute = AX_F32, .recompute = 1},
        {.grid = {1, 1, 1, 3, 1}, .schedule = MESSAGE, .slack = 2, .micro_batches = 16, .compute = AX_BF16},
        {.grid = {1, 1, 1, 4, 1}, .schedule = F1B, .slack = 1, .micro_batches = 7, .compute = AX_F16},
        {.grid = {1, 1, 1, 4, 1}, .schedule = MESSAGE, .micro_batches = 5, .compute = AX_F32, .cut = cut},
        {.grid = {1, 1, 1, 4, 1}, .schedule = GPIPE, .micro_batches = 3, .compute = AX_F64, .device = "ref"},
        {.grid = {1, 1, 1, 8, 1}, .schedule = MESSAGE, .micro_batches = 7, .compute = AX_F32, .recompute = 2},
        {.grid = {1, 1, 1, 3, 1}, .schedule = MESSAGE, .micro_batches = 7, .compute = AX_F32, .lazy = true},
        {.grid = {1, 1, 1, 2, 1},
         .schedule = MESSAGE,
         .micro_batches = 3,
         .compute = AX_F32,
         .device = "check"},
        {.grid = {1, 1, 1, 3, 1}, .schedule = MESSAGE, .micro_batches = 4, .compute = AX_BF16, .llama = true},
    };
    for (size_t i = 0; i < AX_COUNT(all); i++)
        check(&all[i]);
}

static void stages_of_several_ranks(void **state)
{
    (void)state;
    const setup all[] = {
        {.grid = {2, 1, 1, 2, 1}, .schedule = MESSAGE, .micro_batches = 7, .compute = AX_F32},
        {.grid = {2, 1, 1, 4, 1}, .schedule = MESSAGE, .slack = 1, .micro_batches = 7, .compute = AX_BF16},
        {.grid = {1, 2, 1, 2, 1}, .schedule = MESSAGE, .micro_batches = 2, .compute = AX_F32, .recompute = 1},
        {.grid = {1, 1, 2, 2, 1}, .schedule = MESSAGE, .micro_batches = 7, .compute = AX_F32},
        {.grid = {1, 1, 2, 3, 1}, .schedule = F1B, .micro_batches = 7, .compute = AX_BF16},
        {.grid = {1, 1, 1, 2, 2}, .schedule = MESSAGE, .micro_batches = 7, .compute = AX_F32},
        {.grid = {1, 1, 1, 3, 2}, .schedule = MESSAGE, .zero = 1, .micro_batches = 7, .compute = AX_BF16},
        {.grid = {1, 1, 1, 2, 2}, .schedule = MESSAGE, .zero = 2, .micro_batches = 7, .compute = AX_F32},
        {.grid = {1, 1, 1, 4, 2}, .schedule = MESSAGE, .zero = 3, .micro_batches = 7, .compute = AX_BF16},
        {.grid = {2, 1, 2, 2, 1}, .schedule = GPIPE, .micro_batches = 3, .compute = AX_F32},
        {.grid = {2, 2, 1, 2, 1}, .schedule = MESSAGE, .micro_batches = 3, .compute = AX_F16},
        {.grid = {2, 1, 1, 2, 2},
         .schedule = MESSAGE,
         .zero = 3,
         .micro_batches = 4,
         .compute = AX_F32,
         .recompute = 1},
        {.grid = {3, 1, 1, 2, 1},
         .schedule = MESSAGE,
         .micro_batches = 3,
         .compute = AX_F32,
         .strategy = "megatron"},
        {.grid = {1, 1, 2, 2, 2},
         .schedule = F1B,
         .micro_batches = 3,
         .compute = AX_F32,
         .strategy = "hsdp",
         .zero = 2},
        {.grid = {2, 1, 1, 2, 1}, .schedule = MESSAGE, .micro_batches = 4, .compute = AX_F32, .lazy = true},
    };
    for (size_t i = 0; i < AX_COUNT(all); i++)
        check(&all[i]);
}

static void tied_tables(void **state)
{
    (void)state;
    const setup all[] = {
        {.grid = {1, 1, 1, 2, 1}, .schedule = MESSAGE, .micro_batches = 7, .compute = AX_F32, .tied = true},
        {.grid = {1, 1, 1, 4, 1}, .schedule = F1B, .micro_batches = 3, .compute = AX_BF16, .tied = true},
        {.grid = {2, 1, 1, 2, 2},
         .schedule = MESSAGE,
         .zero = 1,
         .micro_batches = 3,
         .compute = AX_F32,
         .tied = true},
        {.grid = {1, 1, 2, 2, 2},
         .schedule = MESSAGE,
         .zero = 3,
         .micro_batches = 3,
         .compute = AX_F32,
         .tied = true},
        {.grid = {1, 2, 1, 3, 1}, .schedule = GPIPE, .micro_batches = 2, .compute = AX_F32, .tied = true},
    };
    for (size_t i = 0; i < AX_COUNT(all); i++)
        check(&all[i]);
}

/* On a GPU that the host emulates: messages go through host memory. */
static void stages_of_gpus(void **state)
{
    (void)state;
    const setup all[] = {
        {.grid = {1, 1, 1, 3, 1},
         .schedule = MESSAGE,
         .micro_batches = 4,
         .compute = AX_BF16,
         .device = "cuda"},
        {.grid = {2, 1, 1, 2, 1},
         .schedule = MESSAGE,
         .micro_batches = 3,
         .compute = AX_F32,
         .device = "cuda"},
    };
    if (!getenv("AXONN_PLUGINS"))
        skip();
    for (size_t i = 0; i < AX_COUNT(all); i++)
        check(&all[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stages_of_one_rank),
        cmocka_unit_test(stages_of_several_ranks),
        cmocka_unit_test(tied_tables),
        cmocka_unit_test(stages_of_gpus),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
