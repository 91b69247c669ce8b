/* See steps.h. */
#include "support/steps.h"

#include "support/params.h"
#include "support/ranks.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const shape odd = {21, 3, 23, 29, 12}, even = {32, 4, 64, 128, 16}, small = {3, 1, 5, 29, 12};

static ax_status model_of(const setup *s, ax_model_config *out)
{
    const shape *h = s->shape;
    ax_model_config c = {.layers = 2,
                         .hidden = h->hidden,
                         .heads = h->heads,
                         .kv_heads = h->heads,
                         .ffn = h->ffn,
                         .vocab = h->vocab,
                         .seq_len = h->seq_len,
                         .dropout = {0.1, 0.1, 0.1},
                         .init_std = 0.2,
                         .norm_eps = 1e-5,
                         .tie = true};
    *out = c;
    return ax_family_find("gpt2", &out->family);
}

/* The data depend on the index of the row only. */
static ax_status rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    const shape *h = source;
    for (int64_t row = first; row < end; row++)
        for (int64_t i = 0, t = h->seq_len; i < t; i++) {
            uint64_t at = (uint64_t)(row * t + i);
            int64_t to = (row - first) * t + i;
            out->tokens[to] = (int32_t)(ax_rng_uniform(11, at) * (float)h->vocab);
            out->targets[to] = at % 7 == 3 ? -1 : (int32_t)(ax_rng_uniform(11, at + 1) * (float)h->vocab);
            out->doc_start[to] = i < t / 2 ? 0 : (int32_t)(t / 2);
            out->position[to] = (int32_t)i - out->doc_start[to];
        }
    return AX_OK;
}

static ax_status collect_weights(ax_ctx *ctx, ax_param_set *set, setup *s)
{
    AX_TRY(ax_calloc(MAX_WEIGHTS, sizeof(double), &s->weights));
    for (int i = 0; i < set->n; i++) {
        const ax_tensor master = master_of(set->param[i]), *w = &master;
        int64_t n = ax_tensor_global_count(w);
        /* The key bias has a gradient of zero in exact arithmetic: AdamW turns its rounding errors into
         * updates. */
        if (strstr(set->param[i]->name, "attn.k.bias"))
            continue;
        EXPECT(w->dtype == AX_F64 || w->dtype == AX_F32);
        void *host;
        AX_TRY(ax_calloc((size_t)n, ax_dtype_size(w->dtype), &host));
        ax_status status = ax_tensor_collect(ctx, w, host);
        EXPECT(s->n_weights + n <= MAX_WEIGHTS);
        for (int64_t k = 0; k < n; k++)
            s->weights[s->n_weights++] = ax_load(w->dtype, host, k);
        free(host);
        AX_TRY(status);
    }
    return AX_OK;
}

static int64_t bytes_along(const ax_ctx *ctx, ax_axis axis)
{
    return traffic_along(ctx->grid, (ax_axisset)(1u << axis)).bytes;
}

/* Whether a kernel ran during the gather. Events are in the order of their ends, so the loop goes back from
 * the gather's end to kernels that began after its start. */
static bool ran_beside_a_kernel(const ax_event_ring *ring, size_t first, size_t gather)
{
    double began = ax_event_get(ring, gather)->begin;
    for (size_t i = gather; i-- > first;) {
        const ax_event *e = ax_event_get(ring, i);
        if (!strcmp(e->kind, "kernel") && e->begin >= began)
            return true;
    }
    return false;
}

static void count_gathers(const ax_event_ring *ring, size_t first, setup *s)
{
    s->gathers = s->alone = 0;
    for (size_t i = first; i < ax_event_count(ring); i++)
        if (!strcmp(ax_event_get(ring, i)->kind, "gather")) {
            s->gathers++;
            s->alone += !ran_beside_a_kernel(ring, first, i);
        }
}

static ax_status steps(ax_ctx *ctx, ax_engine *engine, const ax_event_ring *ring, setup *s)
{
    int64_t targets = 0;
    for (int64_t at = 0; at < GLOBAL * s->shape->seq_len; at++)
        targets += at % 7 != 3;
    AX_TRY(ax_param_set_init(ax_engine_params(engine)));
    for (int i = 0; i < STEPS; i++) {
        ax_step_result r;
        ax_hyper h = {
            .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = i + 1};
        int64_t z = bytes_along(ctx, AX_Z), data = bytes_along(ctx, AX_DATA);
        size_t events = ax_event_count(ring);
        AX_TRY(ax_engine_step(engine, i + 1, rows, (void *)s->shape, targets, &h));
        AX_TRY(ax_engine_result(engine, &r));
        EXPECT(r.finite);
        s->z_bytes = bytes_along(ctx, AX_Z) - z;
        s->data_bytes = bytes_along(ctx, AX_DATA) - data;
        count_gathers(ring, events, s);
        s->loss[i] = r.loss;
        s->norm[i] = r.grad_norm;
        if (i == 0) /* an evaluation between two steps, as in a run */
            AX_TRY(ax_engine_eval(engine, rows, (void *)s->shape, GLOBAL - 3, &s->eval));
    }
    return AX_OK;
}

/* Checks that the plan predicted the memory that the steps used. */
static ax_status check_memory_plan(const ax_ctx *ctx, ax_engine *engine, const ax_engine_plan *plan)
{
    EXPECT(held_as_planned(ctx, &plan->memory));
    EXPECT(!ax_grid_lacking_buffers(ctx->grid, plan->axes)); /* another engine would add none */
    EXPECT(ax_frame_high_water(ax_engine_frame(engine)) == plan->memory.bytes[AX_MEMORY_ACTIVATIONS]);
    EXPECT(has_planned_memory(ax_engine_params(engine), &plan->memory));
    return AX_OK;
}

/* Checks that before set-up all planned buffers of collectives are missing. */
static ax_status check_lacking(const ax_ctx *ctx, const ax_engine_plan *plan)
{
    EXPECT(ax_grid_lacking_buffers(ctx->grid, plan->axes) == plan->memory.bytes[AX_MEMORY_COLLECTIVES]);
    return AX_OK;
}

ax_status steps_run(ax_comm *world, setup *s)
{
    ax_model_config config;
    AX_TRY(model_of(s, &config));
    ax_engine_options options = {.model = &config,
                                 .seq_len = s->shape->seq_len,
                                 .micro_batch = s->micro_batch,
                                 .global_batch = GLOBAL,
                                 .recompute = s->recompute,
                                 .clip = 1.0};
    ax_ctx *ctx = NULL;
    ax_engine *engine = NULL;
    ax_engine_plan plan = {.frame = NULL};
    AX_TRY(ax_optim_find("adamw", &options.optim));
    ax_trace *trace = NULL;
    ax_event_ring *ring;
    if (s->traced)
        AX_TRY(ax_trace_create(1 << 14, &trace));
    AX_TRY(ax_trace_ring(trace, "compute", &ring));
    ax_listener listener = ax_ring_listener(ring);
    ax_status status =
        ax_engine_plan_make(&options, world, s->grid, &s->parallel, "ref", 1, s->compute, &plan);
    if (status == AX_OK)
        status = ax_ctx_create(world, s->grid, "ref", 1, s->compute, 3, &ctx);
    if (status == AX_OK)
        ctx->parallel = s->parallel;
    if (status == AX_OK)
        ax_device_listen(ctx->dev, &listener);
    if (status == AX_OK)
        status = ax_engine_create(ctx, &options, &plan, 0, &engine);
    if (status == AX_OK)
        status = check_lacking(ctx, &plan);
    if (status == AX_OK)
        status = ax_grid_prepare(ctx->grid, plan.axes);
    if (status == AX_OK)
        status = steps(ctx, engine, ring, s);
    if (status == AX_OK)
        status = check_memory_plan(ctx, engine, &plan);
    if (status == AX_OK) /* takes buffers that steps do not need */
        status = collect_weights(ctx, ax_engine_params(engine), s);
    ax_engine_destroy(&engine);
    ax_engine_plan_fini(&plan);
    ax_ctx_destroy(&ctx);
    ax_trace_destroy(&trace);
    return status;
}

const char *steps_describe(const setup *s, char text[160])
{
    snprintf(text, 160, "x=%d y=%d z=%d data=%d zero %d, micro-batches of %d, recompute %d%s%s",
             s->grid.of[AX_X], s->grid.of[AX_Y], s->grid.of[AX_Z], s->grid.of[AX_DATA], s->parallel.zero,
             (int)s->micro_batch, (int)s->recompute, s->parallel.weight_cache ? ", cache" : "",
             s->lazy ? ", lazy" : "");
    return text;
}

static double worst_of(const double *a, const double *b, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++)
        worst = fmax(worst, fabs(a[i] - b[i]) / fmax(fabs(b[i]), 1e-3));
    return worst;
}

ax_status steps_check(const setup *s, const setup *serial)
{
    double loss = worst_of(s->loss, serial->loss, STEPS), norm = worst_of(s->norm, serial->norm, STEPS),
           eval = worst_of(&s->eval, &serial->eval, 1),
           weights = worst_of(s->weights, serial->weights, s->n_weights);
    char text[160];
    AX_CHECK(loss < 1e-11 && norm < 1e-11 && eval < 1e-11 && weights < 1e-9, AX_ERR_INTERNAL,
             "%s: loss %.1e, norm %.1e, eval %.1e, weights %.1e off", steps_describe(s, text), loss, norm,
             eval, weights);
    return AX_OK;
}
