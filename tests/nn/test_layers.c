/* Every layer of layers.def: its gradients against finite differences in float64 on the reference device, and
 * its values and gradients on all grids of up to 8 thread-ranks over x, y and data against the serial run. */
#include "axonn/nn.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { B = 3, T = 4, MAX_PARAMS = 16, FRAME = 1 << 20 };

/* What one run of a layer yields, all global arrays. */
typedef struct outcome {
    double *y, *dx, *grad[MAX_PARAMS];
    int64_t y_count, x_count, grad_count[MAX_PARAMS];
    int params;
} outcome;

typedef struct job {
    const ax_layer_sample *sample;
    ax_grid_size grid;
    const char *device;
    ax_dtype dtype;
    outcome *out; /* filled by rank 0 */
} job;

static double noise(uint64_t stream, int64_t i)
{
    return ax_rng_normal(ax_rng_key(7, "test", stream), (uint64_t)i);
}

static ax_status filled(ax_ctx *ctx, ax_tensor *t, double scale, uint64_t stream)
{
    int64_t n = ax_tensor_global_count(t);
    void *global = calloc((size_t)n + 1, ax_dtype_size(t->dtype));
    for (int64_t i = 0; i < n; i++)
        ax_store(t->dtype, global, i, scale * noise(stream, i));
    ax_status status = ax_device_alloc(ctx->dev, (size_t)ax_tensor_bytes(ctx->grid, t) + 1, &t->data);
    if (status == AX_OK)
        status = ax_tensor_scatter(ctx, t, global);
    free(global);
    return status;
}

/* Tokens, documents that start in the middle of a row, and their positions. */
static ax_status make_batch(ax_ctx *ctx, ax_batch *batch)
{
    int32_t host[4][B * T];
    for (int b = 0; b < B; b++)
        for (int t = 0; t < T; t++) {
            int start = t >= b + 1 ? b + 1 : 0;
            host[0][b * T + t] = (b * 5 + t * 3) % AX_SAMPLE_VOCAB;
            host[1][b * T + t] = (b + t) % AX_SAMPLE_VOCAB;
            host[2][b * T + t] = start;
            host[3][b * T + t] = t - start;
        }
    ax_layout layout = ax_layout_of_roles((ax_role[]){AX_ROLE_BATCH, AX_ROLE_NONE}, 2);
    ax_tensor *const t[] = {&batch->tokens, &batch->targets, &batch->doc_start, &batch->positions};
    for (int i = 0; i < 4; i++) {
        *t[i] = ax_tensor_make(AX_I32, 2, (int64_t[]){B, T}, NULL, &layout);
        AX_TRY(ax_device_alloc(ctx->dev, (size_t)ax_tensor_bytes(ctx->grid, t[i]) + 1, &t[i]->data));
        AX_TRY(ax_tensor_scatter(ctx, t[i], host[i]));
    }
    batch->step = 3;
    return AX_OK;
}

static ax_status collect(ax_ctx *ctx, const ax_tensor *t, double **out, int64_t *count)
{
    *count = ax_tensor_global_count(t);
    void *global = calloc((size_t)*count + 1, ax_dtype_size(t->dtype));
    *out = calloc((size_t)*count + 1, sizeof(double));
    AX_TRY(ax_tensor_collect(ctx, t, global));
    for (int64_t i = 0; i < *count; i++)
        (*out)[i] = ax_load(t->dtype, global, i);
    free(global);
    return AX_OK;
}

/* One layer with everything around it, on one rank. */
typedef struct bench {
    ax_ctx *ctx;
    ax_layer *layer;
    ax_param_set *set;
    ax_frame *frame;
    ax_batch batch;
    ax_tensor x;
} bench;

static ax_status bench_open(const job *j, ax_comm *world, bench *b)
{
    *b = (bench){0};
    AX_TRY(ax_ctx_create(world, j->grid, j->device, 1, j->dtype, 11, &b->ctx));
    b->layer = j->sample->make(b->ctx);
    AX_CHECK(b->layer, AX_ERR_INTERNAL, "sample %s: %s", j->sample->name, ax_error_message());
    AX_TRY(ax_layer_param_set(b->layer, 0, &b->set));
    AX_TRY(ax_param_set_init(b->set));
    /* Biases and norms start at constants: move them, so that their effect is seen. Weights of
     * this size keep the softmax from amplifying roundings. */
    for (int i = 0; i < b->set->n; i++) {
        ax_tensor moved = b->set->param[i]->master;
        AX_TRY(filled(b->ctx, &moved, 0.3, 100 + (uint64_t)i));
        AX_TRY(ax_run_copy_box(b->ctx->stream,
                               &(ax_copy_box_args){.n = {1, 1, 1, ax_tensor_count(b->ctx->grid, &moved)},
                                                   .x_stride = {0, 0, 0, 1},
                                                   .y_stride = {0, 0, 0, 1},
                                                   .x = moved.data,
                                                   .y = b->set->param[i]->master.data,
                                                   .dtype = moved.dtype}));
        ax_device_free(b->ctx->dev, moved.data, (size_t)ax_tensor_bytes(b->ctx->grid, &moved) + 1);
    }
    AX_TRY(ax_param_set_refresh(b->set));
    AX_TRY(ax_frame_create(b->ctx, FRAME, &b->frame));
    AX_TRY(make_batch(b->ctx, &b->batch));
    if (!j->sample->x_width)
        return AX_OK;
    ax_layout layout = ax_activation_layout(j->sample->x_role);
    b->x = ax_tensor_make(j->dtype, 3, (int64_t[]){B, T, j->sample->x_width},
                          (int64_t[]){1, 1, j->sample->x_unit}, &layout);
    return filled(b->ctx, &b->x, 1, 1);
}

static void bench_close(bench *b)
{
    ax_tensor *const t[] = {&b->batch.tokens, &b->batch.targets, &b->batch.doc_start, &b->batch.positions,
                            &b->x};
    for (size_t i = 0; i < AX_COUNT(t) && b->ctx; i++)
        if (t[i]->data)
            ax_device_free(b->ctx->dev, t[i]->data, (size_t)ax_tensor_bytes(b->ctx->grid, t[i]) + 1);
    ax_frame_destroy(&b->frame);
    ax_param_set_destroy(&b->set);
    ax_layer_destroy(&b->layer);
    ax_ctx_destroy(&b->ctx);
}

static ax_status forward(bench *b, ax_tensor *y)
{
    AX_TRY(ax_frame_begin(b->frame, "test", AX_MODE_TRAIN, &b->batch));
    return ax_layer_forward(b->layer, b->frame, b->x.data ? &b->x : NULL, y);
}

/* Forward and backward with fixed dy. */
static ax_status both(bench *b, outcome *out)
{
    ax_tensor y, dy, dx;
    AX_TRY(ax_param_set_zero_grad(b->set));
    AX_TRY(forward(b, &y));
    AX_TRY(collect(b->ctx, &y, &out->y, &out->y_count));
    dy = y;
    AX_TRY(filled(b->ctx, &dy, 1, 2));
    AX_TRY(ax_layer_backward(b->layer, b->frame, &dy, &dx));
    if (b->x.data)
        AX_TRY(collect(b->ctx, &dx, &out->dx, &out->x_count));
    AX_TRY(ax_param_set_sync_grad(b->set));
    out->params = b->set->n;
    for (int i = 0; i < b->set->n; i++) {
        ax_tensor grad = b->set->param[i]->grad;
        grad.layout.partial = 0; /* synchronised */
        AX_TRY(collect(b->ctx, &grad, &out->grad[i], &out->grad_count[i]));
    }
    ax_device_free(b->ctx->dev, dy.data, (size_t)ax_tensor_bytes(b->ctx->grid, &dy) + 1);
    return AX_OK;
}

static void outcome_free(outcome *o)
{
    free(o->y);
    free(o->dx);
    for (int i = 0; i < o->params; i++)
        free(o->grad[i]);
    *o = (outcome){0};
}

static ax_status run_rank(ax_comm *world, void *arg)
{
    const job *j = arg;
    bench b;
    outcome out = {0};
    ax_status status = bench_open(j, world, &b);
    if (status == AX_OK)
        status = both(&b, &out);
    bench_close(&b);
    if (ax_comm_rank(world) == 0)
        *j->out = out;
    else
        outcome_free(&out);
    return status;
}

static double rms(const double *v, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++)
        s += v[i] * v[i];
    return n ? sqrt(s / (double)n) : 0;
}

/* Largest deviation relative to max(rms of the tensor, 1e-3 · scale). */
static double deviation(const double *a, const double *b, int64_t n, double scale)
{
    double worst = 0, unit = fmax(rms(b, n), 1e-3 * scale);
    for (int64_t i = 0; i < n; i++)
        worst = fmax(worst, fabs(a[i] - b[i]) / unit);
    return worst;
}

static double global_scale(const outcome *o)
{
    double s = rms(o->dx, o->x_count);
    for (int i = 0; i < o->params; i++)
        s = fmax(s, rms(o->grad[i], o->grad_count[i]));
    return s;
}

static double compare(const outcome *a, const outcome *serial)
{
    double scale = global_scale(serial), worst = deviation(a->y, serial->y, serial->y_count, 0);
    assert_int_equal(a->y_count, serial->y_count);
    worst = fmax(worst, deviation(a->dx, serial->dx, serial->x_count, scale));
    for (int i = 0; i < serial->params; i++)
        worst = fmax(worst, deviation(a->grad[i], serial->grad[i], serial->grad_count[i], scale));
    return worst;
}

static void must(ax_status status)
{
    if (status != AX_OK)
        fail_msg("%s: %s", ax_status_name(status), ax_error_message());
}

/* ---- finite differences -------------------------------------------------------------------------- */

/* Σ y·dy for the present parameters and x. */
static double objective(bench *b)
{
    ax_tensor y;
    double *values, sum = 0;
    int64_t n;
    must(forward(b, &y));
    must(collect(b->ctx, &y, &values, &n));
    for (int64_t i = 0; i < n; i++)
        sum += values[i] * noise(2, i);
    free(values);
    return sum;
}

/* Central differences with step h have error O(h²) + O(eps/h): with h = 1e-4 in double, with values of order
 * 1 to 100, both are below 1e-8 · scale … 1e-10; Richardson's combination of h and 2h removes the h² term. */
static double numeric(bench *b, double *at)
{
    const double h = 2e-4, keep = *at;
    double f[4];
    const double steps[] = {h, -h, 2 * h, -2 * h};
    for (int i = 0; i < 4; i++) {
        *at = keep + steps[i];
        f[i] = objective(b);
    }
    *at = keep;
    return (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
}

static void gradients_match_finite_differences(void **state)
{
    (void)state;
    for (int s = 0; s < ax_layer_sample_count; s++) {
        job j = {.sample = &ax_layer_samples[s], .grid = {1, 1, 1, 1, 1}, .device = "ref", .dtype = AX_F64};
        ax_comm *self;
        bench b;
        outcome o = {0};
        must(ax_comm_self_create(&self));
        must(bench_open(&j, self, &b));
        must(both(&b, &o));
        double scale = global_scale(&o), worst = 0;
        for (int p = -1; p < b.set->n; p++) {
            int64_t n = p < 0 ? o.x_count : o.grad_count[p];
            double *values = p < 0 ? b.x.data : b.set->param[p]->master.data;
            const double *exact = p < 0 ? o.dx : o.grad[p];
            double unit = fmax(rms(exact, n), 1e-3 * scale);
            for (int64_t i = 0; i < n; i++)
                worst = fmax(worst, fabs(numeric(&b, &values[i]) - exact[i]) / unit);
        }
        printf("%-20s worst relative gradient error %.1e\n", j.sample->name, worst);
        assert_true(worst < 1e-6);
        outcome_free(&o);
        bench_close(&b);
        ax_comm_destroy(&self);
    }
}

/* ---- grids --------------------------------------------------------------------------------------- */

static void on_grid(const ax_layer_sample *sample, ax_grid_size grid, const char *device,
                    const outcome *serial, double bound)
{
    outcome o = {0};
    job j = {sample, grid, device, AX_F64, &o};
    ax_status status = ax_comm_threads_run(grid.x * grid.y * grid.data, run_rank, &j);
    if (status != AX_OK)
        fail_msg("%s on x=%d y=%d data=%d: %s", sample->name, grid.x, grid.y, grid.data, ax_error_message());
    double worst = compare(&o, serial);
    if (!(worst < bound))
        fail_msg("%s on x=%d y=%d data=%d, %s: off by %.1e", sample->name, grid.x, grid.y, grid.data, device,
                 worst);
    outcome_free(&o);
}

/* In float64 a grid only reorders sums of at most a few hundred terms: 1e-12 is 1e4 roundings. */
static void all_grids_equal_serial(void **state)
{
    (void)state;
    int runs = 0;
    for (int s = 0; s < ax_layer_sample_count; s++) {
        outcome serial = {0};
        job j = {&ax_layer_samples[s], {1, 1, 1, 1, 1}, "ref", AX_F64, &serial};
        must(ax_comm_threads_run(1, run_rank, &j));
        for (int x = 1; x <= 8; x++)
            for (int y = 1; x * y <= 8; y++)
                for (int d = 1; x * y * d <= 8; d++, runs++)
                    on_grid(&ax_layer_samples[s], (ax_grid_size){x, y, 1, 1, d}, "ref", &serial, 1e-12);
        // CHECK
        outcome_free(&serial);
    }
    printf("%d layer and grid pairs\n", runs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_match_finite_differences),
                                       cmocka_unit_test(all_grids_equal_serial)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
