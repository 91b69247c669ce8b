/* parallel: parameters. Initial values, gradients and their norm must not depend on the grid. */
#include "axonn/parallel.h"
#include "support/params.h"
#include "support/ranks.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { OUT = 7, IN = 9, UNIT = 2, B = 5, T = 3 };

static const ax_role weight_roles[] = {AX_ROLE_INNER, AX_ROLE_MODEL};

typedef struct world_case {
    ax_grid_size grid;
    const char *device;
    ax_dtype compute;
    double weight[OUT * IN]; /* initial values that the serial run drew */
} world_case;

/* One rank's parameters: a weight, its bias, and the weight a second time, as tied weights are listed. */
typedef struct model {
    ax_ctx *ctx;
    ax_frame *frame;
    ax_param *weight, *bias;
    ax_param_set *set;
} model;

static ax_status model_create(ax_comm *world, const world_case *w, int slots, model *m)
{
    AX_TRY(ax_ctx_create(world, w->grid, w->device, 1, w->compute, 42, &m->ctx));
    AX_TRY(ax_frame_create(m->ctx, 1 << 18, &m->frame));
    AX_TRY(ax_frame_begin(m->frame, "case", AX_MODE_TRAIN, NULL));
    AX_TRY(ax_param_create(m->ctx, "h.weight", 2, (int64_t[]){OUT, IN}, (int64_t[]){UNIT, 1}, weight_roles,
                           AX_INIT_NORMAL, 0.02, &m->weight));
    AX_TRY(ax_param_create(m->ctx, "h.bias", 1, (int64_t[]){OUT}, (int64_t[]){UNIT}, weight_roles,
                           AX_INIT_ONE, 0, &m->bias));
    return ax_param_set_create(m->ctx, (ax_param *[]){m->weight, m->bias, m->weight}, 3, slots, &m->set);
}

static void model_destroy(model *m)
{
    ax_param_set_destroy(&m->set);
    ax_param_destroy(&m->weight);
    ax_param_destroy(&m->bias);
    ax_frame_destroy(&m->frame);
    ax_ctx_destroy(&m->ctx);
}

/* ---- memory and initial values ------------------------------------------------------------------- */

/* Returns the bytes of an array of state in its block. */
static size_t room_of(const ax_param_state *s)
{
    int64_t bytes = s->n * (int64_t)ax_dtype_size(s->dtype);
    return (size_t)ax_round_up(ax_max(bytes, 1), 64);
}

static ax_status check_memory(const model *m)
{
    const ax_param_set *set = m->set;
    EXPECT(set->n == 2 && set->param[0] == m->weight && set->param[1] == m->bias);
    EXPECT(ax_param_set_find(set, "h.bias") == m->bias && !ax_param_set_find(set, "h"));
    bool rounds = m->ctx->compute != m->ctx->accum;
    const ax_param_state *weight = m->weight->state, *bias = m->bias->state;
    const size_t *bytes = set->memory.bytes;
    EXPECT((m->weight->rest.data != weight->data) == rounds && (bytes[AX_MEMORY_COPIES] > 0) == rounds);
    EXPECT(m->weight->rest.dtype == m->ctx->compute && weight->dtype == m->ctx->accum);
    EXPECT(m->bias->rest.data == bias->data && m->bias->rest.dtype == m->ctx->accum);
    /* State has no room for padding of collectives, which weights and gradients have. */
    size_t state = room_of(weight) + room_of(bias);
    EXPECT(bytes[AX_MEMORY_OPTIMIZER] == 2 * state);
    EXPECT(rounds ? bytes[AX_MEMORY_WEIGHTS] == state : bytes[AX_MEMORY_WEIGHTS] >= state);
    EXPECT(bytes[AX_MEMORY_GRADIENTS] >= state);
    EXPECT((ax_memory_total(&set->block[AX_BLOCK_STATE].memory) > bytes[AX_MEMORY_OPTIMIZER]) == rounds);
    EXPECT(m->weight->decay && !m->bias->decay);
    return AX_OK;
}

static ax_status check_init(const model *m, world_case *w)
{
    double weight[OUT * IN], use[OUT * IN], bias[OUT];
    AX_TRY(ax_param_set_init(m->set));
    const ax_tensor master = master_of(m->weight);
    AX_TRY(ax_tensor_collect(m->ctx, &master, weight));
    AX_TRY(ax_tensor_collect(m->ctx, &m->weight->rest, use));
    AX_TRY(ax_tensor_collect(m->ctx, &m->bias->rest, bias));
    double sum = 0;
    for (int i = 0; i < OUT * IN; i++) {
        double x = ax_load(m->ctx->accum, weight, i);
        sum += x * x;
        if (ax_comm_size(m->ctx->world) == 1)
            w->weight[i] = x;
        EXPECT(x == w->weight[i]);
        double rounded;
        ax_store(m->ctx->compute, &rounded, 0, x);
        EXPECT(ax_load(m->ctx->compute, use, i) == ax_load(m->ctx->compute, &rounded, 0));
    }
    EXPECT(fabs(sqrt(sum / (OUT * IN)) / 0.02 - 1) < 0.3);
    for (int i = 0; i < OUT; i++)
        EXPECT(ax_load(m->ctx->accum, bias, i) == 1);
    return AX_OK;
}

/* ---- gradients ----------------------------------------------------------------------------------- */

static double value(int which, int64_t i) { return (double)((i * 5 + which * 3 + i / 7) % 5) - 2; }

/* A tensor in frame memory, filled with value(which, ·). */
static ax_status activation(const model *m, int which, int ndim, const int64_t *dim, const int64_t *unit,
                            const char *layout_text, ax_dtype dtype, ax_tensor *out)
{
    ax_layout layout;
    double global[B * T * IN];
    AX_TRY(ax_layout_parse(m->ctx->grid, layout_text, &ndim, &layout));
    ax_tensor t = ax_tensor_make(dtype, ndim, dim, unit, &layout);
    for (int64_t i = 0; i < ax_tensor_global_count(&t); i++)
        ax_store(t.dtype, global, i, value(which, i));
    AX_TRY(ax_frame_alloc(m->frame, &t, &t));
    AX_TRY(ax_tensor_scatter(m->ctx, &t, global));
    *out = t;
    return AX_OK;
}

/* Σ_bt dy[b,t,o]·x[b,t,i]. */
static double weight_grad(int o, int i)
{
    double sum = 0;
    for (int bt = 0; bt < B * T; bt++)
        sum += value(1, bt * OUT + o) * value(0, bt * IN + i);
    return sum;
}

static ax_status check_sumsq(const model *m, const double *weight, const double *bias)
{
    double want[2] = {0, 0}, have[2];
    for (int i = 0; i < OUT * IN; i++)
        want[0] += weight[i] * weight[i];
    for (int i = 0; i < OUT; i++)
        want[1] += bias[i] * bias[i];
    void *scratch;
    AX_TRY(ax_frame_scratch(m->frame, AX_F64, 2, &scratch));
    AX_TRY(ax_param_set_grad_sumsq(m->set, scratch));
    AX_TRY(ax_copy_out(m->ctx->stream, have, scratch, sizeof have));
    /* Here all stages say that they own the parameters, so each adds them. */
    int stages = ax_grid_axis_size(m->ctx->grid, AX_PIPE);
    EXPECT(have[0] == stages * want[0] && have[1] == stages * want[1]);
    return AX_OK;
}

/* Contributes two contractions in the gradient's layout, and parts of the bias gradient in other layouts. */
static ax_status check_gradients(const model *m)
{
    static const char *const parts[] = {"o", "o@x", "o@z.y +x", "o@pipe/x +z", "o@data"};
    ax_tensor x, dy, part;
    AX_TRY(activation(m, 0, 3, (int64_t[]){B, T, IN}, NULL, "b@data.z, t, i@y", m->ctx->compute, &x));
    AX_TRY(activation(m, 1, 3, (int64_t[]){B, T, OUT}, (int64_t[]){1, 1, UNIT}, "b@data.z, t, o@x",
                      m->ctx->compute, &dy));
    AX_TRY(ax_param_set_zero_grad(m->set));
    for (int i = 0; i < 2; i++)
        AX_TRY(ax_param_accumulate(m->frame, m->weight, "bto,bti->oi", &dy, &x));
    for (size_t i = 0; i < AX_COUNT(parts); i++) {
        AX_TRY(activation(m, (int)i, 1, (int64_t[]){OUT}, (int64_t[]){UNIT}, parts[i], m->ctx->accum, &part));
        AX_TRY(ax_param_add_grad(m->frame, m->bias, &part));
    }
    AX_TRY(ax_param_grad_target(m->frame, m->bias, &m->bias->sum.layout, &part, NULL));
    EXPECT(part.data == m->bias->sum.data);
    EXPECT(ax_param_set_grad_sumsq(m->set, NULL) == AX_ERR_INTERNAL);
    EXPECT(strstr(ax_error_message(), "the gradients are still partial sums"));
    AX_TRY(ax_param_set_sync_grad(m->set));
    EXPECT(ax_param_grad_target(m->frame, m->bias, &m->bias->sum.layout, &part, NULL) == AX_ERR_INTERNAL);
    EXPECT(strstr(ax_error_message(), "the gradient of h.bias is final: call ax_param_set_zero_grad"));
    double weight[OUT * IN], bias[OUT], want_bias[OUT] = {0};
    AX_TRY(ax_tensor_collect(m->ctx, &m->weight->grad, weight));
    AX_TRY(ax_tensor_collect(m->ctx, &m->bias->grad, bias));
    double w[OUT * IN];
    for (int o = 0; o < OUT; o++) {
        for (size_t i = 0; i < AX_COUNT(parts); i++)
            want_bias[o] += value((int)i, o);
        EXPECT(ax_load(m->ctx->accum, bias, o) == want_bias[o]);
        for (int i = 0; i < IN; i++) {
            w[o * IN + i] = ax_load(m->ctx->accum, weight, o * IN + i);
            EXPECT(w[o * IN + i] == 2 * weight_grad(o, i));
        }
    }
    return check_sumsq(m, w, want_bias);
}

/* Operands split along another axis than the gradient: the contribution is redistributed. */
static ax_status check_detour(const model *m)
{
    ax_tensor x, dy;
    double weight[OUT * IN];
    AX_TRY(activation(m, 0, 3, (int64_t[]){B, T, IN}, NULL, "b@y, t@z, i@pipe", m->ctx->compute, &x));
    AX_TRY(activation(m, 1, 3, (int64_t[]){B, T, OUT}, (int64_t[]){1, 1, UNIT}, "b@y, t@z, o",
                      m->ctx->compute, &dy));
    AX_TRY(ax_param_set_zero_grad(m->set));
    AX_TRY(ax_param_accumulate(m->frame, m->weight, "bto,bti->oi", &dy, &x));
    AX_TRY(ax_param_set_sync_grad(m->set));
    AX_TRY(ax_tensor_collect(m->ctx, &m->weight->grad, weight));
    for (int o = 0; o < OUT; o++)
        for (int i = 0; i < IN; i++)
            EXPECT(ax_load(m->ctx->accum, weight, o * IN + i) == weight_grad(o, i));
    return AX_OK;
}

static ax_status on_one_grid(ax_comm *world, void *arg)
{
    model m = {0};
    ax_status status = model_create(world, arg, 2, &m);
    if (status == AX_OK)
        status = check_memory(&m);
    if (status == AX_OK)
        status = check_init(&m, arg);
    if (status == AX_OK)
        status = check_gradients(&m);
    if (status == AX_OK)
        status = check_detour(&m);
    model_destroy(&m);
    return status;
}

static void same_on_all_grids(const char *device)
{
    static const ax_grid_size grids[] = {
        {{1, 1, 1, 1, 1}}, {{2, 1, 1, 1, 1}}, {{1, 2, 1, 1, 1}}, {{1, 1, 3, 1, 1}}, {{1, 1, 1, 1, 4}},
        {{2, 2, 2, 1, 1}}, {{2, 1, 2, 1, 2}}, {{2, 2, 1, 2, 1}}, {{5, 1, 1, 1, 1}}, {{1, 1, 2, 1, 4}}};
    static const ax_dtype dtypes[] = {AX_F64, AX_F32, AX_BF16, AX_F16};
    for (size_t d = 0; d < AX_COUNT(dtypes); d++) {
        world_case w = {.device = device, .compute = dtypes[d]};
        for (size_t i = 0; i < AX_COUNT(grids); i++) {
            w.grid = grids[i];
            assert_ranks(grid_ranks(w.grid), on_one_grid, &w);
        }
    }
}

static void parameters_are_the_same_on_all_grids(void **state)
{
    (void)state;
    same_on_all_grids("ref");
    same_on_all_grids("check");
}

/* ---- vectors ------------------------------------------------------------------------------------- */

enum { VECTORS = 9 };

/* Adds 1 to each element of a gradient, as kernels do that only add. */
static ax_status add_one(ax_frame *frame, ax_param *p)
{
    ax_tensor out;
    AX_TRY(ax_param_grad_target(frame, p, &p->sum.layout, &out, NULL));
    for (int64_t i = 0; i < out.dim[0]; i++)
        ((float *)out.data)[i] += 1;
    return ax_param_add_grad(frame, p, &out);
}

/* Two steps of two micro-batches. The last vector gets no contribution. */
static ax_status steps_of_vectors(ax_ctx *ctx, ax_frame *frame, ax_param_set *set)
{
    ax_kernel_total totals[AX_KERNEL_COUNT] = {{0}};
    ax_listener times = ax_kernel_totals(totals);
    ax_device_listen(ctx->dev, &times);
    for (int step = 0; step < 2; step++) {
        AX_TRY(ax_param_set_zero_grad(set));
        for (int batch = 0; batch < 2; batch++) {
            AX_TRY(ax_frame_begin(frame, "backward", AX_MODE_TRAIN, NULL));
            for (int i = 0; i < VECTORS - 1; i++)
                AX_TRY(add_one(frame, set->param[i]));
        }
        AX_TRY(ax_param_set_sync_grad(set));
        EXPECT(totals[AX_K_fill].calls == step + 1);
        for (int i = 0; i < VECTORS; i++)
            for (int64_t j = 0; j < set->param[i]->grad.dim[0]; j++)
                EXPECT(((float *)set->param[i]->grad.data)[j] == (i < VECTORS - 1 ? 2 : 0));
    }
    ax_device_unlisten(ctx->dev, &times);
    return AX_OK;
}

static ax_status on_one_rank(ax_comm *world, void *arg)
{
    ax_ctx *ctx;
    ax_frame *frame;
    ax_param *param[VECTORS];
    ax_param_set *set;
    (void)arg;
    AX_TRY(ax_ctx_create(world, (ax_grid_size){{1}}, "ref", 1, AX_F32, 1, &ctx));
    AX_TRY(ax_frame_create(ctx, 1 << 12, &frame));
    for (int i = 0; i < VECTORS; i++) {
        char name[8];
        snprintf(name, sizeof name, "p%d", i);
        AX_TRY(ax_param_create(ctx, name, 1, (int64_t[]){1 + 7 * i}, NULL, weight_roles, AX_INIT_ZERO, 0,
                               &param[i]));
    }
    AX_TRY(ax_param_set_create(ctx, param, VECTORS, 0, &set));
    AX_TRY(steps_of_vectors(ctx, frame, set));
    ax_frame_destroy(&frame);
    ax_param_set_destroy(&set);
    for (int i = 0; i < VECTORS; i++)
        ax_param_destroy(&param[i]);
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

static void gradients_of_vectors_are_cleared_together(void **state)
{
    (void)state;
    assert_ranks(1, on_one_rank, NULL);
}

/* ---- when reductions start ----------------------------------------------------------------------- */

enum { ROWS = 1500, COLS = 2000, BUCKET_PARAMS = 5 };

/* Contributes `value` for each element, in the gradient's own layout. */
static ax_status contribute(ax_frame *frame, ax_param *p, double value)
{
    ax_tensor out;
    bool fresh;
    ax_ctx *ctx = ax_frame_ctx(frame);
    AX_TRY(ax_param_grad_target(frame, p, &p->sum.layout, &out, &fresh));
    int64_t n = ax_tensor_count(ctx->grid, &out);
    EXPECT(out.data == p->sum.data);
    if (fresh)
        AX_TRY(ax_run_fill(ctx->stream,
                           &(ax_fill_args){.n = n, .value = value, .y = out.data, .dtype = out.dtype}));
    for (int64_t i = 0; i < n && !fresh; i++)
        ((float *)out.data)[i] += (float)value;
    return ax_param_add_grad(frame, p, &out);
}

static int64_t calls_on_data(const ax_ctx *ctx) { return traffic_along(ctx->grid, 1 << AX_DATA).calls; }

/* The backward pass of one micro-batch; `calls` receives the number of reductions that each parameter
 * started. */
static ax_status backward(ax_frame *frame, ax_param **param, int64_t *calls)
{
    AX_TRY(ax_frame_begin(frame, "backward", AX_MODE_TRAIN, NULL));
    for (int i = BUCKET_PARAMS - 1; i >= 0; i--) {
        int64_t before = calls_on_data(ax_frame_ctx(frame));
        AX_TRY(contribute(frame, param[i], 1 + i));
        if (i == 3) /* a parameter that is used twice */
            AX_TRY(contribute(frame, param[i], 1 + i));
        calls[i] = calls_on_data(ax_frame_ctx(frame)) - before;
    }
    return AX_OK;
}

static ax_status reductions(ax_ctx *ctx, ax_frame *frame, ax_param_set *set, ax_param **param, bool knows)
{
    /* Two matrices of 12 MB do not fit one bucket: the first has the small ones before it, the second the
     * vector behind it. In the last micro-batch a bucket is reduced as soon as its last gradient is complete.
     * In the first one the number of contributions is not known, so no reduction starts early, unless another
     * set has recorded it (`knows`). */
    static const int64_t early[BUCKET_PARAMS] = {1, 0, 0, 1, 0}, none[BUCKET_PARAMS] = {0};
    int64_t calls[BUCKET_PARAMS];
    for (int step = 0; step < 2; step++)
        for (int micro_steps = 1; micro_steps <= 2; micro_steps++) {
            AX_TRY(ax_param_set_zero_grad(set));
            if (micro_steps > 1)
                AX_TRY(backward(frame, param, calls));
            AX_TRY(ax_param_set_last_micro_batch(set, true));
            AX_TRY(backward(frame, param, calls));
            bool starts = knows || step || micro_steps > 1;
            EXPECT(!memcmp(calls, starts ? early : none, sizeof calls));
            if (starts) {
                ax_tensor out;
                EXPECT(ax_param_grad_target(frame, param[0], &param[0]->sum.layout, &out, NULL) ==
                       AX_ERR_INTERNAL);
                EXPECT(strstr(ax_error_message(), "more contributions than in the previous micro-batch"));
            }
            int64_t before = calls_on_data(ctx);
            AX_TRY(ax_param_set_sync_grad(set));
            EXPECT(calls_on_data(ctx) - before == (starts ? 0 : 2));
            for (int i = 0; i < BUCKET_PARAMS; i++)
                EXPECT(*(float *)param[i]->grad.data ==
                       (float)(2 * micro_steps * (1 + i) * (i == 3 ? 2 : 1)));
        }
    return AX_OK;
}

static ax_status on_two_ranks(ax_comm *world, void *arg)
{
    static const int64_t dim[BUCKET_PARAMS][2] = {{10, 10}, {3, 7}, {ROWS, COLS}, {ROWS, COLS}, {11}};
    ax_ctx *ctx;
    ax_frame *frame;
    ax_param *param[BUCKET_PARAMS];
    ax_param_set *set;
    ax_param_uses *uses = NULL;
    (void)arg;
    AX_TRY(ax_ctx_create(world, (ax_grid_size){{1, 1, 1, 1, 2}}, "ref", 1, AX_F32, 1, &ctx));
    for (int i = 0; i < BUCKET_PARAMS; i++) {
        char name[8];
        snprintf(name, sizeof name, "p%d", i);
        AX_TRY(ax_param_create(ctx, name, i < 4 ? 2 : 1, dim[i], NULL, weight_roles, AX_INIT_ZERO, 0,
                               &param[i]));
    }
    for (int knows = 0; knows < 2; knows++) {
        AX_TRY(ax_frame_create(ctx, 1 << 12, &frame));
        AX_TRY(ax_param_set_create(ctx, param, BUCKET_PARAMS, 0, &set));
        if (knows)
            AX_TRY(ax_param_set_learn_uses(set, uses));
        ax_param_uses_destroy(&uses);
        AX_TRY(reductions(ctx, frame, set, param, knows));
        AX_TRY(ax_param_set_take_uses(set, &uses));
        ax_frame_destroy(&frame);
        ax_param_set_destroy(&set);
    }
    ax_param_uses_destroy(&uses);
    for (int i = 0; i < BUCKET_PARAMS; i++)
        ax_param_destroy(&param[i]);
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

static void reductions_start_when_a_bucket_is_complete(void **state)
{
    (void)state;
    assert_ranks(2, on_two_ranks, NULL);
}

/* ---- errors -------------------------------------------------------------------------------------- */

static ax_status misuse(ax_comm *world, void *arg)
{
    model m = {0};
    world_case w = {.grid = {{1, 1, 1, 1, 1}}, .device = "ref", .compute = AX_F32};
    (void)arg;
    AX_TRY(model_create(world, &w, -1, &m));
    EXPECT(!m.weight->grad.data && !m.set->memory.bytes[AX_MEMORY_GRADIENTS] &&
           !ax_memory_total(&m.set->block[AX_BLOCK_STATE].memory));
    EXPECT(ax_param_set_zero_grad(m.set) == AX_ERR_INTERNAL);
    EXPECT(strstr(ax_error_message(), "has no gradients"));
    ax_tensor target;
    EXPECT(ax_param_grad_target(m.frame, m.bias, &m.bias->sum.layout, &target, NULL) == AX_ERR_INTERNAL);
    ax_param *same, *split_by_batch;
    ax_param_set *set;
    AX_TRY(ax_param_create(m.ctx, "h.bias", 1, (int64_t[]){3}, NULL, weight_roles, AX_INIT_ZERO, 0, &same));
    EXPECT(ax_param_set_create(m.ctx, (ax_param *[]){m.bias, same}, 2, 0, &set) == AX_ERR_INTERNAL);
    EXPECT(
        !strcmp(ax_error_message(), "two parameters have the name h.bias: give the layers different names") &&
        !set);
    EXPECT(ax_param_create(m.ctx, "p", 1, (int64_t[]){3}, NULL, (ax_role[]){AX_ROLE_BATCH}, AX_INIT_ZERO, 0,
                           &split_by_batch) == AX_ERR_INTERNAL);
    EXPECT(strstr(ax_error_message(), "gradient of parameter p: axis"));
    ax_param_destroy(&same);
    model_destroy(&m);
    return AX_OK;
}

static void misuse_is_an_error(void **state)
{
    (void)state;
    assert_ranks(1, misuse, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parameters_are_the_same_on_all_grids),
        cmocka_unit_test(gradients_of_vectors_are_cleared_together),
        cmocka_unit_test(reductions_start_when_a_bucket_is_complete),
        cmocka_unit_test(misuse_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
