/* Compares training on a grid with training on one rank; see equality.h. */
#include "support/equality.h"

#include "axonn/model.h"
#include "support/check.h"
#include "support/params.h"
#include "support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

const char *const eq_model_names[] = {"gpt2",  "grouped", "odd",     "scarce", "window",
                                      "norms", "lora",    "mixtral", "sparse", "olmoe"};

/* ---- the models ---------------------------------------------------------------------------------- */

static const struct {
    const char *family;
    int64_t layers, hidden, heads, kv_heads, head_dim, ffn, vocab, window;
    ax_model_dropout dropout;
    bool tie;
    ax_no_bias no_bias;
} shapes[EQ_MODELS] = {
    [EQ_GPT2] = {"gpt2", 2, 32, 4, 4, 0, 64, 64, 0, {0.1, 0.2, 0.1}, true, {0}},
    [EQ_GROUPED] = {"gpt2", 2, 32, 8, 2, 0, 48, 40, 0, {.attn = 0.1}, false, {0}},
    [EQ_ODD] = {"gpt2", 2, 21, 3, 3, 0, 23, 29, 0, {0}, true, {0}},
    [EQ_SCARCE] = {"gpt2", 1, 6, 2, 1, 0, 3, 5, 0, {0}, false, {0}},
    [EQ_WINDOW] = {"mistral", 2, 32, 8, 2, 0, 48, 40, 4, {.attn = 0.1}, false, {0}},
    [EQ_NORMS] = {"qwen3", 2, 32, 4, 2, 16, 40, 56, 0, {.resid = 0.1}, true, {true, true, true}},
    [EQ_LORA] = {"mistral", 2, 32, 8, 2, 0, 48, 40, 4, {.resid = 0.1}, true, {.mlp = true}},
    [EQ_MIXTRAL] = {"mixtral", 2, 24, 4, 2, 0, 20, 40, 4, {.resid = 0.1}, false, {true, true, true}},
    [EQ_SPARSE] = {"qwen3_moe", 3, 16, 2, 2, 12, 24, 40, 0, {0}, true, {true, true, true}},
    [EQ_OLMOE] = {"olmoe", 2, 18, 6, 2, 4, 13, 29, 0, {0}, false, {true, true, true}},
};

static const ax_model_experts experts[EQ_MODELS] = {
    [EQ_MIXTRAL] = {.n = 5, .top_k = 2, .renormalize = true, .step = 1, .balance = 0.1, .z_loss = 0.05},
    [EQ_SPARSE] = {.n = 9, .top_k = 1, .ffn = 7, .step = 2, .balance = 0.2},
    [EQ_OLMOE] = {.n = 3, .top_k = 3, .renormalize = true, .step = 1, .z_loss = 0.1},
};

static ax_status make_config(eq_model model, ax_model_config *out)
{
    const ax_family *family;
    AX_TRY(ax_family_find(shapes[model].family, &family));
    *out = ax_model_config_defaults(family);
    out->layers = shapes[model].layers;
    out->hidden = shapes[model].hidden;
    out->heads = shapes[model].heads;
    out->kv_heads = shapes[model].kv_heads;
    out->head_dim = shapes[model].head_dim;
    out->ffn = shapes[model].ffn;
    out->vocab = shapes[model].vocab;
    out->window = shapes[model].window;
    out->dropout = shapes[model].dropout;
    out->tie = shapes[model].tie;
    out->no_bias = shapes[model].no_bias;
    out->experts = experts[model];
    out->seq_len = EQ_T;
    out->init_std = 0.2;
    out->norm_eps = 1e-5;
    /* Ranks differ between matrices and blocks, two matrices have no update, and one has none in block 0. */
    for (int m = 0; m < AX_MATRIX_COUNT && model == EQ_LORA; m++) {
        const double drop = 0.25 * (m % 2);
        const ax_low_rank updates[] = {{m == AX_MATRIX_PROJ ? 0 : 1 + m % 4, 2, drop},
                                       {1 + (m + 1) % 4, 1.5, drop}};
        if (m != AX_MATRIX_K && m != AX_MATRIX_UP)
            AX_TRY(ax_model_config_set_updates(out, (ax_matrix)m, updates));
    }
    return AX_OK;
}

bool eq_heads_fit(eq_model model, int x)
{
    return ax_heads_fit(shapes[model].heads, shapes[model].kv_heads, x);
}

/* ---- data ---------------------------------------------------------------------------------------- */

static bool is_masked(int64_t at) { return at % 7 == 3; }

/* Rows depend on their index only: documents of different lengths, and some masked targets. A token largely
 * determines the next one, so that the loss falls. */
static ax_status read_rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    int64_t vocab = *(const int64_t *)source;
    for (int64_t row = first; row < end; row++)
        for (int64_t i = 0, start = 0; i < EQ_T; i++) {
            int64_t at = row * EQ_T + i, to = (row - first) * EQ_T + i;
            if (ax_rng_uniform(5, (uint64_t)at) < 0.15f)
                start = i;
            int64_t token = (row * 5 + i * i + i / 3) % vocab;
            out->tokens[to] = (int32_t)token;
            out->targets[to] = is_masked(at) ? -1 : (int32_t)((token * 3 + i % 2) % vocab);
            out->doc_start[to] = (int32_t)start;
            out->position[to] = (int32_t)(i - start);
        }
    return AX_OK;
}

static int64_t count_targets(int64_t rows)
{
    int64_t n = 0;
    for (int64_t at = 0; at < rows * EQ_T; at++)
        n += !is_masked(at);
    return n;
}

/* ---- a run --------------------------------------------------------------------------------------- */

static ax_status take_gradients(ax_ctx *ctx, const ax_param_set *set, double scale, eq_run *r)
{
    AX_CHECK(set->n <= EQ_PARAMS, AX_ERR_INTERNAL, "%d parameters", set->n);
    for (int p = 0; p < set->n; p++) {
        const ax_tensor *g = &set->param[p]->grad;
        void *host;
        if (set->param[p]->frozen)
            continue;
        int i = r->params++;
        r->matrix[i] = g->ndim > 1;
        r->count[i] = ax_tensor_global_count(g);
        AX_TRY(ax_strdup(set->param[p]->name, &r->name[i]));
        AX_TRY(ax_calloc((size_t)r->count[i], sizeof(double), &r->grad[i]));
        AX_TRY(ax_calloc((size_t)r->count[i], sizeof(double), &host));
        ax_status status = ax_tensor_collect(ctx, g, host);
        for (int64_t k = 0; k < r->count[i]; k++)
            r->grad[i][k] = ax_load(g->dtype, host, k) / scale;
        free(host);
        AX_TRY(status);
    }
    return AX_OK;
}

/* Without gradients on pipeline stages, which have some each. */
static ax_status run_steps(ax_ctx *ctx, ax_engine *engine, int64_t vocab, eq_run *r)
{
    choices_watch watch = {0};
    if (r->choices)
        choices_begin(&watch, r->choices, r->use, engine, r->recompute);
    AX_TRY(ax_param_set_init(ax_engine_params(engine)));
    if (r->compute == AX_F16) /* gradients of the token table's update overflow with the scale of a new run */
        ax_engine_loss_scale(engine)->scale = 1 << 12;
    for (int i = 0; i < r->steps; i++) {
        ax_step_result result;
        ax_hyper h = {
            .lr = 2e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = i + 1};
        choices_pass(&watch, i, false);
        AX_TRY(ax_engine_step(engine, i + 1, read_rows, &vocab, count_targets(r->rows), &h));
        AX_TRY(ax_engine_result(engine, &result));
        EXPECT(result.finite);
        r->loss[i] = result.loss;
        r->load[i] = result.expert_load;
        r->dropped[i] = result.expert_dropped;
        r->balance = i ? r->balance : result.balance_loss;
        r->z = i ? r->z : result.z_loss;
        if (i == 0) {
            r->norm = result.grad_norm;
            if (r->grid.of[AX_PIPE] == 1)
                AX_TRY(take_gradients(ctx, ax_engine_params(engine), result.loss_scale, r));
        }
    }
    choices_pass(&watch, r->steps, true);
    AX_TRY(ax_engine_eval(engine, read_rows, &vocab, r->rows - 3, &r->eval));
    if (r->choices) {
        AX_TRY(choices_agree(&watch, ctx->world));
        memcpy(r->differ, watch.sum, sizeof r->differ);
        r->margin = watch.margin;
    }
    return AX_OK;
}

void eq_free(eq_run *r)
{
    for (int i = 0; i < r->params; i++) {
        free(r->name[i]);
        free(r->grad[i]);
    }
    r->params = 0;
}

/* Checks that the plan has exactly the sets of axes along which the steps communicated. */
static ax_status check_axes(const ax_grid *grid, const ax_grid_use *planned)
{
    ax_grid_use *used;
    int i = 0;
    AX_TRY(ax_grid_used(grid, &used));
    while (used[i].axes && used[i].axes == planned[i].axes)
        i++;
    bool same = used[i].axes == planned[i].axes;
    free(used);
    AX_CHECK(same, AX_ERR_INTERNAL, "the steps communicated along other sets of axes than the plan has");
    return AX_OK;
}

static ax_status check_memory(const ax_ctx *ctx, const ax_memory *planned)
{
    EXPECT(held_as_planned(ctx, planned));
    return AX_OK;
}

ax_status eq_on_rank(ax_comm *world, void *arg)
{
    eq_run mine = *(const eq_run *)arg;
    ax_model_config config;
    /* two micro-batches per step if each rank has at least two rows */
    int64_t per_rank = mine.rows / (mine.grid.of[AX_Z] * mine.grid.of[AX_DATA]);
    int64_t micro_batches = mine.micro_batches ? mine.micro_batches : per_rank > 1 ? 2 : 1;
    ax_engine_options options = {.model = &config,
                                 .seq_len = EQ_T,
                                 .micro_batch = per_rank / micro_batches,
                                 .global_batch = mine.rows,
                                 .recompute = mine.recompute,
                                 .clip = 1.0};
    ax_ctx *ctx = NULL;
    ax_engine *engine = NULL;
    ax_engine_plan plan = {.frame = NULL};
    AX_TRY(make_config(mine.model, &config));
    config.experts.capacity = mine.capacity;
    AX_TRY(ax_optim_find("adamw", &options.optim));
    ax_status status = ax_ctx_create(world, mine.grid, mine.device, 1, mine.compute, mine.seed, &ctx);
    if (status == AX_OK) {
        ctx->parallel = mine.parallel;
        status = ax_engine_plan_make(&options, world, mine.grid, &mine.parallel, mine.device, 1, mine.compute,
                                     &plan);
    }
    if (status == AX_OK)
        status = ax_engine_create(ctx, &options, &plan, 0, &engine);
    if (status == AX_OK)
        status = run_steps(ctx, engine, config.vocab, &mine);
    if (status == AX_OK)
        status = check_axes(ctx->grid, plan.axes);
    if (status == AX_OK)
        status = check_memory(ctx, &plan.memory);
    ax_engine_destroy(&engine);
    ax_engine_plan_fini(&plan);
    ax_ctx_destroy(&ctx);
    ax_model_config_fini(&config);
    if (ax_comm_rank(world) == 0)
        *(eq_run *)arg = mine;
    else
        eq_free(&mine);
    return status;
}

static void describe(const eq_run *r, char out[160])
{
    const ax_strategy *s = r->parallel.strategy;
    snprintf(out, 160, "%s %s%s x=%d y=%d z=%d data=%d %s zero=%d%s", eq_model_names[r->model],
             ax_dtype_name(r->compute), r->parallel.narrow_grads ? " narrow" : "", r->grid.of[AX_X],
             r->grid.of[AX_Y], r->grid.of[AX_Z], r->grid.of[AX_DATA], s ? s->name : "axonn", r->parallel.zero,
             r->parallel.keep_results ? " keeps"
             : r->recompute           ? " recompute"
                                      : "");
}

eq_run eq_do(eq_run r)
{
    char text[160];
    describe(&r, text);
    if (ax_comm_threads_run(grid_ranks(r.grid), eq_on_rank, &r) != AX_OK)
        fail_msg("%s: %s", text, ax_error_message());
    return r;
}

eq_run eq_do_storing(eq_run r, choices **out)
{
    ax_model_config config;
    *out = NULL;
    if (experts[r.model].n) {
        OK(make_config(r.model, &config));
        OK(choices_create(&(choices){.passes = r.steps + 1,
                                     .rows = r.rows,
                                     .tokens = EQ_T,
                                     .blocks = ax_model_config_sparse_blocks(&config, config.layers),
                                     .top_k = config.experts.top_k},
                          out));
        ax_model_config_fini(&config);
    }
    r.choices = *out;
    r.use = CHOICES_STORE;
    return eq_do(r);
}

eq_run eq_following(eq_run r, choices *c)
{
    r.choices = c;
    r.use = CHOICES_FOLLOW;
    return r;
}

/* ---- comparing ----------------------------------------------------------------------------------- */

static double rms(const double *v, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += v[i] * v[i];
    return sqrt(sum / (double)n);
}

/* Returns the root mean square of all gradients together. */
static double global_rms(const eq_run *r)
{
    double sum = 0;
    int64_t n = 0;
    for (int p = 0; p < r->params; p++) {
        sum += rms(r->grad[p], r->count[p]) * rms(r->grad[p], r->count[p]) * (double)r->count[p];
        n += r->count[p];
    }
    return sqrt(sum / (double)n);
}

/* Returns the unit for differences of the gradients of parameter p. A bias of keys shifts all scores of a
 * query by the same amount, so its gradient is zero except for rounding: the unit is then that of all
 * gradients. */
static double unit_of(const eq_run *serial, int p)
{
    double global = global_rms(serial);
    return strstr(serial->name[p], "attn.k.bias")
               ? global
               : fmax(rms(serial->grad[p], serial->count[p]), 1e-3 * global);
}

/* Returns the largest difference of the gradients of parameter p, relative to unit_of. */
static double largest_gap(const eq_run *a, const eq_run *serial, int p)
{
    double worst = 0;
    for (int64_t i = 0; i < serial->count[p]; i++)
        worst = fmax(worst, fabs(a->grad[p][i] - serial->grad[p][i]));
    return worst / unit_of(serial, p);
}

/* Returns the root mean square difference of the gradients of parameter p, relative to unit_of. */
static double rms_gap(const eq_run *a, const eq_run *serial, int p)
{
    double sum = 0;
    for (int64_t i = 0; i < serial->count[p]; i++)
        sum += (a->grad[p][i] - serial->grad[p][i]) * (a->grad[p][i] - serial->grad[p][i]);
    return sqrt(sum / (double)serial->count[p]) / unit_of(serial, p);
}

static double relative(double a, double b) { return fabs(a - b) / fabs(b); }

double eq_worst_loss_gap(const eq_run *a, const eq_run *serial)
{
    double worst = relative(a->eval, serial->eval);
    for (int i = 0; i < serial->steps; i++)
        worst = fmax(worst, relative(a->loss[i], serial->loss[i]));
    return worst;
}

double eq_mean_loss_gap(const eq_run *a, const eq_run *serial)
{
    double sum = relative(a->eval, serial->eval);
    for (int i = 0; i < serial->steps; i++)
        sum += relative(a->loss[i], serial->loss[i]);
    return sum / (serial->steps + 1);
}

ax_status eq_check_equal(const eq_run *a, const eq_run *serial, double loss_bound, double grad_bound)
{
    char text[160];
    describe(a, text);
    double loss = eq_worst_loss_gap(a, serial), norm = relative(a->norm, serial->norm);
    const bool routers =
        relative(a->balance, serial->balance) <= loss_bound && relative(a->z, serial->z) <= loss_bound;
    AX_CHECK(
        !memcmp(a->load, serial->load, (size_t)a->steps * sizeof *a->load) &&
            !memcmp(a->dropped, serial->dropped, (size_t)a->steps * sizeof *a->dropped) &&
            (!serial->balance || routers),
        AX_ERR_INTERNAL,
        "%s: experts have other loads, other choices have no place, or the losses of routers differ by %.1e "
        "and %.1e",
        text, relative(a->balance, serial->balance), relative(a->z, serial->z));
    AX_CHECK(loss <= loss_bound && norm <= loss_bound, AX_ERR_INTERNAL,
             "%s: losses off by %.1e, the norm by %.1e", text, loss, norm);
    AX_CHECK(a->params == serial->params, AX_ERR_INTERNAL, "%s: %d parameters", text, a->params);
    for (int p = 0; p < serial->params; p++) {
        double gap = largest_gap(a, serial, p);
        AX_CHECK(gap <= grad_bound, AX_ERR_INTERNAL, "%s: the gradient of %s is off by %.1e", text,
                 serial->name[p], gap);
    }
    return AX_OK;
}

void eq_assert_equal(const eq_run *a, const eq_run *serial, double loss_bound, double grad_bound)
{
    if (eq_check_equal(a, serial, loss_bound, grad_bound) != AX_OK)
        fail_msg("%s", ax_error_message());
}

/* Vectors, whose gradients are in fp32 in any case, are not compared. */
double eq_matrix_gap(const eq_run *a, const eq_run *wide)
{
    double worst = 0;
    for (int p = 0; p < wide->params; p++) {
        double error = 0, norm = 0;
        for (int64_t i = 0; i < wide->count[p]; i++) {
            error += (a->grad[p][i] - wide->grad[p][i]) * (a->grad[p][i] - wide->grad[p][i]);
            norm += wide->grad[p][i] * wide->grad[p][i];
        }
        if (wide->matrix[p])
            worst = fmax(worst, sqrt(error / norm));
        else
            assert_true(error == 0);
    }
    return worst;
}

eq_gap eq_rounding_gap(eq_model model, const char *device, ax_dtype compute, bool narrow, int steps)
{
    enum { SEEDS = 4 };
    eq_gap gap = {0};
    choices *chosen;
    for (int i = 0; i < SEEDS; i++) {
        eq_run exact = eq_serial(model, device, AX_F32, steps), rounded;
        exact.seed += (uint64_t)i;
        rounded = exact;
        rounded.compute = compute;
        rounded.parallel.narrow_grads = narrow;
        exact = eq_do_storing(exact, &chosen);
        rounded = eq_do(eq_following(rounded, chosen));
        gap.loss += eq_mean_loss_gap(&rounded, &exact) / SEEDS;
        for (int p = 0; p < exact.params; p++) {
            gap.grad[p] = fmax(gap.grad[p], rms_gap(&rounded, &exact, p));
            gap.all += rms_gap(&rounded, &exact, p) / SEEDS / exact.params;
        }
        eq_free(&exact);
        eq_free(&rounded);
        choices_destroy(&chosen);
    }
    return gap;
}

/* Bounds, in units of the gap that one rank shows between 16 bits and fp32. A gradient has so many elements
 * that its distance is close to the expected one. The losses of a run are a single sample, because rounding
 * in the first steps changes the weights of all later steps. Their factor is the product of three: sqrt(2),
 * because ranks round their partial sums and then round the total; 2.5 standard deviations, which some of the
 * 40 runs on grids reach; and 1 / 0.8, because the mean gap is 0.8 standard deviations. */
enum { GRAD_GAPS = 2 };
#define LOSS_GAPS (1.41 * 2.5 / 0.8)

void eq_assert_as_near(const eq_run *a, const eq_run *exact, const eq_gap *gap)
{
    char text[160];
    describe(a, text);
    double loss = eq_mean_loss_gap(a, exact), norm = relative(a->norm, exact->norm);
    if (!(loss <= LOSS_GAPS * gap->loss && norm <= GRAD_GAPS * gap->all))
        fail_msg("%s: losses are %.1e from fp32, one rank's %.1e; the norm %.1e, gradients %.1e", text, loss,
                 gap->loss, norm, gap->all);
    for (int p = 0; p < exact->params; p++) {
        double bound = GRAD_GAPS * fmax(gap->grad[p], gap->all);
        if (!(rms_gap(a, exact, p) <= bound))
            fail_msg("%s: the gradient of %s is %.1e from fp32, above %.1e", text, exact->name[p],
                     rms_gap(a, exact, p), bound);
    }
}

/* ---- all grids of eight ranks -------------------------------------------------------------------- */

/* Returns the run on a grid; every other grid uses recomputation, and half of these keep results. */
static eq_run on_grid(eq_run serial, ax_grid_size grid, int index)
{
    serial.grid = grid;
    serial.recompute = index % 2;
    serial.parallel.keep_results = index % 4 == 3;
    return eq_do(serial);
}

/* fp32 sums in another order differ by 1e-6 of their terms. The optimizer divides by the root of the second
 * moment; after 20 steps the difference is 1e-7 of the loss. */
void eq_fp32_on_grids(eq_model model, int steps, int first, int stride)
{
    ax_grid_size grids[64];
    int n = eq_factorizations(8, grids), runs = 0;
    choices *chosen;
    eq_run serial = eq_serial(model, "cpu", AX_F32, steps), one = eq_do_storing(serial, &chosen);
    assert_true(steps < EQ_STEPS || one.loss[steps - 1] < 0.65 * one.loss[0]); /* the model does train */
    double loss = 0;
    for (int g = first; g < n; g += stride, runs++) {
        eq_run split = on_grid(eq_following(serial, chosen), grids[g], g + (int)model);
        eq_assert_equal(&split, &one, 1e-5, 1e-4);
        loss = fmax(loss, eq_worst_loss_gap(&split, &one));
        eq_free(&split);
    }
    printf("%s: losses of %d steps on %d grids within %.1e of one rank's\n", eq_model_names[model], steps,
           runs, loss);
    eq_free(&one);
    choices_destroy(&chosen);
}

/* Gradients in 16 bits are rounded after each contribution on one rank too, so `gap` has these roundings; a
 * grid adds those of the reductions. */
void eq_16_bits_on_grids(eq_model model, ax_dtype compute, bool narrow, int steps, int first, int stride)
{
    ax_grid_size grids[64];
    int n = eq_factorizations(8, grids), runs = 0;
    choices *chosen;
    eq_run exact = eq_do_storing(eq_serial(model, "cpu", AX_F32, steps), &chosen);
    eq_run serial = eq_serial(model, "cpu", compute, steps);
    eq_gap gap = eq_rounding_gap(model, "cpu", compute, narrow, steps);
    serial.parallel.narrow_grads = narrow;
    double loss = 0, sum = 0;
    for (int g = first; g < n; g += stride, runs++) {
        eq_run split = on_grid(eq_following(serial, chosen), grids[g], g + (int)model);
        eq_assert_as_near(&split, &exact, &gap);
        double times = eq_mean_loss_gap(&split, &exact) / gap.loss;
        loss = fmax(loss, times);
        sum += times;
        eq_free(&split);
    }
    printf("%s: losses in %s%s on %d grids %.2f times as far from fp32 as one rank's, at most %.2f\n",
           eq_model_names[model], ax_dtype_name(compute), narrow ? ", gradients too," : "", runs, sum / runs,
           loss);
    assert_true(sum <= 2 * runs); /* mean over all grids, so one lucky grid does not count */
    eq_free(&exact);
    choices_destroy(&chosen);
}

int eq_factorizations(int ranks, ax_grid_size out[64])
{
    int n = 0;
    for (int x = 1; x <= ranks; x++)
        for (int y = 1; x * y <= ranks; y++)
            for (int z = 1; x * y * z <= ranks; z++)
                if (ranks % (x * y * z) == 0)
                    out[n++] = (ax_grid_size){{x, y, z, 1, ranks / (x * y * z)}};
    return n;
}

eq_run eq_serial(eq_model model, const char *device, ax_dtype compute, int steps)
{
    return (eq_run){.grid = {{1, 1, 1, 1, 1}},
                    .parallel = ax_parallel_default,
                    .model = model,
                    .device = device,
                    .compute = compute,
                    .rows = 8,
                    .steps = steps,
                    .seed = 3};
}
