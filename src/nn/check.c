/* Two checks of a layer: its gradients against finite differences, and its results on a grid against those of
 * one rank. The layer tests and `axonn selftest` run the checks on all sample layers (samples.c). */
#include "axonn/nn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* B: rows of the batch. T: positions of a row. FRAME: bytes of activation memory. */
enum { B = 3, T = 4, MAX_PARAMS = 16, FRAME = 1 << 20 };

/* The results of one run of a layer: its output, and the gradients of its input and of each parameter. Each
 * array has all elements of its tensor, collected from all ranks. */
typedef struct outcome {
    double *y, *dx, *grad[MAX_PARAMS];
    int64_t y_count, x_count, grad_count[MAX_PARAMS];
    int params;
} outcome;

typedef struct job {
    const ax_layer_sample *sample;
    ax_grid_size grid;
    const ax_parallel *parallel; /* NULL: ax_parallel_default */
    const char *device;
    outcome *out; /* rank 0 stores its results here */
} job;

static double noise(uint64_t stream, int64_t i)
{
    return ax_rng_normal(ax_rng_key(7, "test", stream), (uint64_t)i);
}

static ax_status filled(ax_ctx *ctx, ax_tensor *t, double scale, uint64_t stream)
{
    int64_t n = ax_tensor_global_count(t);
    void *global;
    AX_TRY(ax_calloc((size_t)n + 1, ax_dtype_size(t->dtype), &global));
    for (int64_t i = 0; i < n; i++)
        ax_store(t->dtype, global, i, scale * noise(stream, i));
    ax_status status =
        ax_ctx_alloc(ctx, AX_MEMORY_ACTIVATIONS, (size_t)ax_tensor_bytes(ctx->grid, t) + 1, &t->data);
    if (status == AX_OK)
        status = ax_tensor_scatter(ctx, t, global);
    free(global);
    return status;
}

/* Makes a batch of tokens and targets. In row b a second document starts at position b + 1, and positions
 * count from the start of the document. */
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
    ax_layout layout = ax_layout_of_roles(ctx, (ax_role[]){AX_ROLE_BATCH, AX_ROLE_NONE}, 2);
    ax_tensor *const t[] = {&batch->tokens, &batch->targets, &batch->doc_start, &batch->positions};
    for (int i = 0; i < 4; i++) {
        *t[i] = ax_tensor_make(AX_I32, 2, (int64_t[]){B, T}, NULL, &layout);
        AX_TRY(ax_ctx_alloc(ctx, AX_MEMORY_ACTIVATIONS, (size_t)ax_tensor_bytes(ctx->grid, t[i]) + 1,
                            &t[i]->data));
        AX_TRY(ax_tensor_scatter(ctx, t[i], host[i]));
    }
    const ax_batch_numbers now = {.step = 3, .first_row = 5 * T, .loss_scale = 1};
    void *numbers;
    AX_TRY(ax_ctx_alloc(ctx, AX_MEMORY_ACTIVATIONS, sizeof now, &numbers));
    batch->now = numbers;
    AX_TRY(ax_copy_in(ctx->stream, numbers, &now, sizeof now));
    return AX_OK;
}

static ax_status collect(ax_ctx *ctx, const ax_tensor *t, double **out, int64_t *count)
{
    *count = ax_tensor_global_count(t);
    void *global;
    AX_TRY(ax_calloc((size_t)*count + 1, ax_dtype_size(t->dtype), &global));
    ax_status status = ax_calloc((size_t)*count + 1, sizeof(double), out);
    if (status == AX_OK)
        status = ax_tensor_collect(ctx, t, global);
    for (int64_t i = 0; status == AX_OK && i < *count; i++)
        (*out)[i] = ax_load(t->dtype, global, i);
    free(global);
    return status;
}

/* A layer under test on one rank of the grid: the layer with its context, parameters, activation memory
 * (frame), batch and input. */
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
    AX_TRY(ax_ctx_create(world, j->grid, j->device, 1, AX_F64, 11, &b->ctx));
    if (j->parallel)
        b->ctx->parallel = *j->parallel;
    b->layer = j->sample->make(b->ctx);
    if (!b->layer)
        return ax_error_status();
    AX_TRY(ax_layer_param_set(b->layer, 0, &b->set));
    AX_TRY(ax_param_set_init(b->set));
    /* Replaces the initial value of all parameters by random numbers. The initial biases and norm weights are
     * constants, which could hide errors. The random numbers are small, so that the softmax does not amplify
     * rounding errors. */
    for (int i = 0; i < b->set->n; i++) {
        ax_tensor moved = b->set->param[i]->rounded;
        AX_TRY(filled(b->ctx, &moved, 0.3, 100 + (uint64_t)i));
        AX_TRY(ax_run_copy_box(b->ctx->stream,
                               &(ax_copy_box_args){.n = {1, 1, 1, ax_tensor_count(b->ctx->grid, &moved)},
                                                   .x_stride = {0, 0, 0, 1},
                                                   .y_stride = {0, 0, 0, 1},
                                                   .x = moved.data,
                                                   .y = b->set->param[i]->rounded.data,
                                                   .dtype = moved.dtype}));
        ax_ctx_free(b->ctx, AX_MEMORY_ACTIVATIONS, moved.data,
                    (size_t)ax_tensor_bytes(b->ctx->grid, &moved) + 1);
    }
    AX_TRY(ax_param_set_refresh(b->set));
    AX_TRY(ax_frame_create(b->ctx, FRAME, &b->frame));
    AX_TRY(make_batch(b->ctx, &b->batch));
    if (!j->sample->x_width)
        return AX_OK;
    ax_layout layout = ax_activation_layout(b->ctx, j->sample->x_role);
    b->x = ax_tensor_make(AX_F64, 3, (int64_t[]){B, T, j->sample->x_width},
                          (int64_t[]){1, 1, j->sample->x_unit}, &layout);
    return filled(b->ctx, &b->x, 1, 1);
}

static void bench_close(bench *b)
{
    ax_tensor *const t[] = {&b->batch.tokens, &b->batch.targets, &b->batch.doc_start, &b->batch.positions,
                            &b->x};
    for (size_t i = 0; i < AX_COUNT(t) && b->ctx; i++)
        if (t[i]->data)
            ax_ctx_free(b->ctx, AX_MEMORY_ACTIVATIONS, t[i]->data,
                        (size_t)ax_tensor_bytes(b->ctx->grid, t[i]) + 1);
    if (b->ctx)
        ax_ctx_free(b->ctx, AX_MEMORY_ACTIVATIONS, (void *)(uintptr_t)b->batch.now, sizeof *b->batch.now);
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

/* Runs the layer forward, then backward from a fixed dy, and stores the results in *out. */
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
    AX_CHECK(b->set->n <= MAX_PARAMS, AX_ERR_INTERNAL,
             "a sample layer has %d parameters; at most %d are possible", b->set->n, MAX_PARAMS);
    out->params = b->set->n;
    for (int i = 0; i < b->set->n; i++) {
        ax_tensor grad = b->set->param[i]->grad;
        AX_TRY(collect(b->ctx, &grad, &out->grad[i], &out->grad_count[i]));
    }
    ax_ctx_free(b->ctx, AX_MEMORY_ACTIVATIONS, dy.data, (size_t)ax_tensor_bytes(b->ctx->grid, &dy) + 1);
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

/* Returns the largest |a[i] - b[i]|, divided by the root mean square of b, or by 1e-3 · scale if that is
 * larger. `scale` is the largest of the root mean squares of the gradients (global_scale), or 0 if a and b
 * are outputs. */
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
    worst = fmax(worst, deviation(a->dx, serial->dx, serial->x_count, scale));
    for (int i = 0; i < serial->params; i++)
        worst = fmax(worst, deviation(a->grad[i], serial->grad[i], serial->grad_count[i], scale));
    return worst;
}

/* ---- finite differences -------------------------------------------------------------------------- */

/* Computes the function whose gradient is checked: Σ y·dy, for the current values of the parameters and of x.
 * dy is the same as in `both`. */
static ax_status objective(bench *b, double *out)
{
    ax_tensor y;
    double *values;
    int64_t n;
    AX_TRY(forward(b, &y));
    AX_TRY(collect(b->ctx, &y, &values, &n));
    *out = 0;
    for (int64_t i = 0; i < n; i++)
        *out += values[i] * noise(2, i);
    free(values);
    return AX_OK;
}

/* Computes the derivative of `objective` with respect to the element *at (of a parameter or of x), by
 * Richardson extrapolation of the central differences with steps h and 2h. Its error is O(h⁴) + O(eps/h).
 * Both terms are below 1e-10 for h = 2e-4 in double precision and values of order one. */
static ax_status derivative(bench *b, double *at, double *out)
{
    const double h = 2e-4, keep = *at;
    const double steps[] = {h, -h, 2 * h, -2 * h};
    double f[4] = {0};
    ax_status status = AX_OK;
    for (int i = 0; status == AX_OK && i < 4; i++) {
        *at = keep + steps[i];
        status = objective(b, &f[i]);
    }
    *at = keep;
    *out = (8 * (f[0] - f[1]) - (f[2] - f[3])) / (12 * h);
    return status;
}

static ax_status worst_gradient(bench *b, const outcome *o, double *worst)
{
    double scale = global_scale(o);
    *worst = 0;
    for (int p = -1; p < b->set->n; p++) {
        int64_t n = p < 0 ? o->x_count : o->grad_count[p];
        double *values = p < 0 ? b->x.data : b->set->param[p]->rounded.data;
        const double *exact = p < 0 ? o->dx : o->grad[p];
        double unit = fmax(rms(exact, n), 1e-3 * scale);
        for (int64_t i = 0; i < n; i++) {
            double slope;
            AX_TRY(derivative(b, &values[i], &slope));
            *worst = fmax(*worst, fabs(slope - exact[i]) / unit);
        }
    }
    return AX_OK;
}

ax_status ax_layer_check_gradient(const ax_layer_sample *sample, double *worst)
{
    job j = {.sample = sample, .device = "ref"};
    ax_comm *self;
    bench b = {0};
    outcome o = {0};
    AX_TRY(ax_comm_self_create(&self));
    ax_status status = bench_open(&j, self, &b);
    if (status == AX_OK)
        status = both(&b, &o);
    if (status == AX_OK)
        status = worst_gradient(&b, &o, worst);
    outcome_free(&o);
    bench_close(&b);
    ax_comm_destroy(&self);
    return status;
}

/* ---- grids --------------------------------------------------------------------------------------- */

ax_status ax_layer_check_grid(const ax_layer_sample *sample, ax_grid_size grid, const ax_parallel *parallel,
                              const char *device, double *worst)
{
    outcome serial = {0}, split = {0};
    job one = {sample, {{0}}, NULL, "ref", &serial}, many = {sample, grid, parallel, device, &split};
    ax_status status = ax_comm_threads_run(1, run_rank, &one);
    if (status == AX_OK)
        status = ax_comm_threads_run((int)ax_grid_size_ranks(grid), run_rank, &many);
    if (status == AX_OK)
        *worst = compare(&split, &serial);
    outcome_free(&serial);
    outcome_free(&split);
    return status;
}
