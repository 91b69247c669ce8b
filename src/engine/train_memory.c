/* Memory is known before it is taken: the plan by class, the check against what is there, and what would fit.
 */
#include "engine/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ax_dtype ax_run_compute_dtype(const ax_config *config)
{
    return config->train.precision == AX_CONFIG_BF16 ? AX_BF16 : AX_F32;
}

ax_grid_size ax_run_grid(const ax_config *config)
{
    return (ax_grid_size){.x = (int)config->grid.x,
                          .y = (int)config->grid.y,
                          .z = (int)config->grid.z,
                          .pipe = (int)config->grid.pipe,
                          .data = (int)config->grid.data};
}

static ax_status plan_with(const ax_run *run, int64_t micro_batch, int64_t recompute, ax_engine_plan *out)
{
    ax_engine_options options = run->options;
    options.micro_batch = micro_batch;
    options.recompute = recompute;
    return ax_engine_plan_make(&options, run->world, ax_run_grid(run->config), NULL, run->config->device,
                               (int)run->config->threads, ax_run_compute_dtype(run->config), out);
}

static void say(const ax_run *run)
{
    const ax_memory *m = &run->plan.memory;
    const struct {
        const char *what;
        size_t bytes;
    } rows[] = {{"weights", m->weights},         {"compute copies", m->copies},   {"gradients", m->gradients},
                {"optimizer", m->optimizer},     {"activations", m->activations}, {"batch", m->batch},
                {"kernel scratch", m->workspace}};
    char text[512] = "", size[32];
    size_t used = 0;
    for (size_t i = 0; i < AX_COUNT(rows); i++)
        if (rows[i].bytes && used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %s", used ? ", " : "",
                                     rows[i].what, ax_format_bytes((double)rows[i].bytes, size));
    ax_log(AX_LOG_INFO, "memory: %s in all: %s", ax_format_bytes((double)ax_memory_total(m), size), text);
}

/* The largest step that fits: first smaller micro-batches, then recomputation too. */
static ax_status suggest(const ax_run *run, size_t available, char *out, size_t size)
{
    for (int full = 0; full < 2; full++)
        for (int64_t micro = run->options.micro_batch; micro > 0; micro--) {
            if (run->options.global_batch % micro || (!full && micro == run->options.micro_batch))
                continue;
            ax_engine_plan plan;
            AX_TRY(plan_with(run, micro, full ? 1 : run->options.recompute, &plan));
            size_t need = ax_memory_total(&plan.memory);
            ax_engine_plan_fini(&plan);
            if (need > available)
                continue;
            char text[32];
            snprintf(out, size, "train.micro_batch: %lld%s would fit (%s)", (long long)micro,
                     full ? " with train.recompute: full" : "", ax_format_bytes((double)need, text));
            return AX_OK;
        }
    snprintf(out, size,
             "even train.micro_batch: 1 with train.recompute: full does not fit: the model is too large for "
             "this machine");
    return AX_OK;
}

/* What no way of running the model can do without. Asked before the plan, which takes its time with very deep
 * models. */
static ax_status check_parameters(const ax_run *run)
{
    int64_t parameters, matmul, available = ax_memory_available();
    ax_model_config_params(&run->model, &parameters, &matmul);
    double need = (double)parameters * (2 + run->optim->slots) * sizeof(float) / ax_comm_size(run->world);
    char a[32], b[32];
    AX_CHECK(
        available < 0 || need <= (double)available, AX_ERR_MEMORY,
        "the weights, gradients and optimizer state of the model's %lld parameters need %s and %s can be "
        "taken here: the model is too large for this machine",
        (long long)parameters, ax_format_bytes(need, a), ax_format_bytes((double)available, b));
    return AX_OK;
}

ax_status ax_run_plan_memory(ax_run *run)
{
    AX_TRY(check_parameters(run));
    AX_TRY(plan_with(run, run->options.micro_batch, run->options.recompute, &run->plan));
    say(run);
    int64_t available = ax_memory_available();
    size_t need = ax_memory_total(&run->plan.memory);
    if (available < 0 || need <= (size_t)available)
        return AX_OK;
    char advice[256], a[32], b[32];
    AX_TRY(suggest(run, (size_t)available, advice, sizeof advice));
    return ax_fail(AX_ERR_MEMORY, "a step needs %s and %s can be taken here: %s",
                   ax_format_bytes((double)need, a), ax_format_bytes((double)available, b), advice);
}

/* The best of a few large matrix products on this device: the denominator of MFU. Takes a few hundredths of a
 * second. */
ax_status ax_run_measure_peak(ax_run *run)
{
    enum { N = 768, TRIES = 30 };
    const double patience = 0.06; /* seconds: a slow or busy machine gets fewer tries */
    if (strcmp(run->config->device, "cpu") != 0)
        return AX_OK;
    ax_dtype dtype = run->ctx->compute;
    size_t bytes = (size_t)N * N * sizeof(float);
    void *block;
    AX_TRY(ax_device_alloc(run->ctx->dev, 3 * bytes, &block));
    char *a = block, *b = a + bytes, *c = b + bytes;
    ax_status status =
        ax_run_fill(run->ctx->stream, &(ax_fill_args){.n = 2 * N * N, .value = 1, .y = a, .dtype = AX_F32});
    double begin = ax_now();
    for (int i = 0; status == AX_OK && i < TRIES && (i < 3 || ax_now() - begin < patience); i++) {
        double start = ax_now();
        status = ax_run_gemm(run->ctx->stream, &(ax_gemm_args){.m = N,
                                                               .n = N,
                                                               .k = N,
                                                               .a = a,
                                                               .b = b,
                                                               .c = c,
                                                               .lda = N,
                                                               .ldb = N,
                                                               .ldc = N,
                                                               .dtype = dtype,
                                                               .c_dtype = AX_F32});
        double rate = 2.0 * N * N * N / (ax_now() - start);
        run->peak_flops = rate > run->peak_flops ? rate : run->peak_flops;
    }
    ax_device_free(run->ctx->dev, block, 3 * bytes);
    return status;
}
