/* Times the steps of a configuration: a run without files, on random tokens. */
#include "engine/train.h"

#include <stdlib.h>

static int32_t token(const ax_run *run, uint64_t at)
{
    return (int32_t)((double)ax_rng_uniform(1, at) * (double)run->model.vocab);
}

static ax_status random_rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    const ax_run *run = source;
    int64_t t = run->config->model.seq_len;
    for (int64_t i = 0; i < (end - first) * t; i++) {
        uint64_t at = (uint64_t)(first * t + i);
        out->tokens[i] = token(run, at);
        out->targets[i] = token(run, at + 1);
        out->doc_start[i] = 0;
        out->position[i] = (int32_t)(i % t);
    }
    return AX_OK;
}

/* Runs one step. All ranks begin at the same time; *seconds is that of the slowest rank. */
static ax_status time_once(ax_run *run, int64_t step, double *seconds, ax_step_result *result)
{
    ax_work *work;
    ax_hyper hyper = ax_run_hyper(run, step);
    int64_t targets = run->options.global_batch * run->options.seq_len;
    AX_TRY(ax_barrier(run->world));
    double begin = ax_now();
    AX_TRY(ax_engine_step(run->engine, step, random_rows, run, targets, &hyper));
    AX_TRY(ax_engine_result(run->engine, result));
    AX_TRY(ax_stream_wait(run->ctx->stream));
    *seconds = ax_now() - begin;
    AX_TRY(ax_all_reduce(run->world, NULL, seconds, 1, AX_F64, AX_MAX, &work));
    return ax_wait(&work);
}

/* Runs and times one step. In fp16 a step that overflows is repeated with a smaller loss scale; *taken counts
 * all attempts. */
static ax_status time_step(ax_run *run, int64_t step, double *seconds, int64_t *taken)
{
    ax_step_result result;
    do {
        AX_TRY(time_once(run, step, seconds, &result));
        ++*taken;
    } while (result.overflow && ax_engine_loss_scale(run->engine)->scale < result.loss_scale);
    AX_CHECK(
        result.finite, AX_ERR_NUMERIC,
        "step %lld: loss %g, gradient norm %g: the step was not applied because these are not finite, so "
        "its time means nothing; lower optim.lr",
        (long long)step, result.loss, result.grad_norm);
    return AX_OK;
}

/* Logs the expected duration if it is long. */
static void log_duration(const ax_run *run, double first, int64_t more)
{
    const double patience = 10;
    if (first * (double)more > patience && ax_comm_rank(run->world) == 0)
        ax_log(AX_LOG_INFO, "the first step took %.1f s; %lld more will take about %.0f s", first,
               (long long)more, first * (double)more);
}

/* Number of steps to run in all, and number of the last one that was run. */
typedef struct progress {
    int64_t all, last;
} progress;

/* Runs `steps` steps and stores the time of each in seconds[]. */
static ax_status time_some(ax_run *run, progress *at, int64_t steps, double *seconds, int64_t *taken)
{
    *taken = 0;
    for (int64_t i = 0; i < steps; i++) {
        AX_TRY(time_step(run, ++at->last, &seconds[i], taken));
        if (at->last == 1)
            log_duration(run, seconds[i], at->all - 1);
    }
    return AX_OK;
}

/* Runs the warm-up steps, whose times are overwritten, then the timed ones. A device with its own clock (a
 * GPU) records time stamps around each launch while kernels are timed, and cannot replay launches as graphs
 * then. So whole steps are timed first, and kernels in as many further steps. */
static ax_status time_steps(ax_run *run, int64_t warm, int64_t steps, double *seconds, ax_step_times *out)
{
    ax_device *dev = run->ctx->dev;
    progress at = {.all = warm + (dev->ops.event_record ? 2 : 1) * steps};
    int64_t taken;
    for (int64_t left = warm; left > 0; left -= steps)
        AX_TRY(time_some(run, &at, ax_min(left, steps), seconds, &taken));
    if (dev->ops.event_record) {
        AX_TRY(time_some(run, &at, steps, seconds, &taken));
        out->seconds = ax_spread_of(seconds, steps);
    }
    ax_run_begin_traffic(run);
    dev->totals = out->kernel;
    ax_status status = time_some(run, &at, steps, seconds, &taken);
    dev->totals = NULL;
    AX_TRY(status);
    if (!dev->ops.event_record)
        out->seconds = ax_spread_of(seconds, steps);
    out->exposed = ax_run_exposed(run) / (double)taken;
    for (int k = 0; k < AX_KERNEL_COUNT; k++) {
        ax_kernel_total *t = &out->kernel[k];
        double n = (double)taken;
        *t = (ax_kernel_total){t->calls / taken, t->seconds / n, t->flops / n, t->bytes / n};
    }
    return AX_OK;
}

/* Measures the device's peak rates. All ranks of a machine measure at the same time, as they compute at the
 * same time. The engine is destroyed first: the array that is streamed is not part of its memory plan. */
static ax_status measure_device(ax_run *run, ax_step_times *out)
{
    const double patience = 0.2; /* seconds for each */
    ax_engine_destroy(&run->engine);
    AX_TRY(ax_device_peak(run->ctx->dev, run->ctx->compute, patience, &out->peak));
    return ax_comm_agree(run->world, ax_device_stream(run->ctx->dev, patience, &out->stream));
}

static ax_status measure(ax_run *run, int64_t warm, int64_t steps, ax_step_times *out)
{
    double *seconds = NULL;
    AX_TRY(ax_comm_agree(run->world, ax_calloc((size_t)steps, sizeof *seconds, &seconds)));
    ax_status status = time_steps(run, warm, steps, seconds, out);
    free(seconds);
    AX_TRY(status);
    out->tokens = run->options.global_batch * run->options.seq_len;
    out->flops = ax_model_config_flops_per_token(&run->model, run->options.seq_len) * (double)out->tokens;
    out->threads = run->ctx->dev->threads;
    out->memory = run->plan.memory;
    out->held = ax_device_held(run->ctx->dev);
    out->compute = run->ctx->compute;
    ax_run_describe(&run->model, ax_run_grid(run->config), out->model, out->grid);
    return measure_device(run, out);
}

ax_status ax_train_time(ax_comm *world, ax_config *config, int64_t warm, int64_t steps, ax_step_times *out)
{
    ax_run run = {.world = world, .config = config, .saved_step = -1};
    *out = (ax_step_times){.threads = 0};
    AX_CHECK(steps > 0 && warm >= 0, AX_ERR_USAGE, "cannot time %lld steps after %lld warm-up steps",
             (long long)steps, (long long)warm);
    ax_comm_set_timeout(world, config->watchdog.timeout);
    ax_status status = ax_run_start(&run, AX_RUN_STEPS);
    if (status == AX_OK)
        status = measure(&run, warm, steps, out);
    ax_run_abort_unshared(&run, status);
    ax_run_finish(&run);
    return status;
}
