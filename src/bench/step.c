/* Times the training steps of a configuration, on random tokens and without writing files. */
#include "bench/bench.h"
#include "cli/launch.h"

#include <stdlib.h>
#include <string.h>

typedef struct timing {
    ax_comm *world;
    const ax_train_plan *plan;
    ax_ctx *ctx;
    ax_engine *engine;
    bench_sleep sleep; /* without a machine: kernels compute */
} timing;

static int32_t token(const ax_model_config *model, uint64_t at)
{
    return (int32_t)((double)ax_rng_uniform(1, at) * (double)model->vocab);
}

static ax_status random_rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    const ax_engine_options *options = source;
    int64_t t = options->seq_len;
    for (int64_t i = 0; i < (end - first) * t; i++) {
        uint64_t at = (uint64_t)(first * t + i);
        out->tokens[i] = token(options->model, at);
        out->targets[i] = token(options->model, at + 1);
        out->doc_start[i] = 0;
        out->position[i] = (int32_t)(i % t);
    }
    return AX_OK;
}

/* Returns the number of target tokens of a step, over all ranks. */
static int64_t targets_of(const ax_engine_options *options)
{
    return options->global_batch * options->seq_len;
}

/* Runs one step. All ranks begin at the same time; *seconds is the time on the slowest rank. */
static ax_status time_once(timing *t, int64_t step, double *seconds, ax_step_result *result)
{
    ax_work *work;
    ax_hyper hyper = ax_train_hyper(t->plan, step);
    ax_engine_options options = t->plan->options;
    AX_TRY(ax_barrier(t->world));
    double begin = ax_now();
    AX_TRY(ax_engine_step(t->engine, step, random_rows, &options, targets_of(&options), &hyper));
    AX_TRY(ax_engine_result(t->engine, result));
    AX_TRY(ax_stream_wait(t->ctx->stream));
    *seconds = ax_now() - begin;
    AX_TRY(ax_all_reduce(t->world, NULL, seconds, 1, AX_F64, AX_MAX, &work));
    return ax_wait(&work);
}

/* Runs and times one step. In fp16 a step that overflows is repeated with a smaller loss scale, and *seconds
 * is the time of the last attempt. *taken is increased by the number of attempts. */
static ax_status time_step(timing *t, int64_t step, double *seconds, int64_t *taken)
{
    ax_step_result result;
    do {
        AX_TRY(time_once(t, step, seconds, &result));
        ++*taken;
    } while (result.overflow && ax_engine_loss_scale(t->engine)->scale < result.loss_scale);
    AX_CHECK(
        result.finite || t->sleep.machine, AX_ERR_NUMERIC,
        "step %lld: loss %g, gradient norm %g: the step was not applied because these are not finite, so "
        "its time means nothing; lower optim.lr",
        (long long)step, result.loss, result.grad_norm);
    return AX_OK;
}

/* Logs an estimate of the seconds that the `more` remaining steps will take, if it is above `patience`.
 * `first`: seconds of the first step. */
static void log_duration(const timing *t, double first, int64_t more)
{
    const double patience = 10;
    if (first * (double)more > patience && ax_comm_rank(t->world) == 0)
        ax_log(AX_LOG_INFO, "the first step took %.1f s; %lld more will take about %.0f s", first,
               (long long)more, first * (double)more);
}

/* `all`: number of steps to run, with the warm-up steps. `last`: number of the last step that was run,
 * from 1. */
typedef struct progress {
    int64_t all, last;
} progress;

/* Runs `steps` steps and stores the time of each in seconds[]. *taken is the number of attempts
 * (time_step). */
static ax_status time_some(timing *t, progress *at, int64_t steps, double *seconds, int64_t *taken)
{
    *taken = 0;
    for (int64_t i = 0; i < steps; i++) {
        AX_TRY(time_step(t, ++at->last, &seconds[i], taken));
        if (at->last == 1)
            log_duration(t, seconds[i], at->all - 1);
    }
    return AX_OK;
}

/* Returns how many seconds this rank has waited for communication with other ranks so far. */
static double exposed(const ax_grid *grid)
{
    double sum = 0;
    for (int i = 0; i < ax_grid_groups(grid); i++) {
        ax_axisset axes;
        const ax_comm *comm = ax_grid_group(grid, i, &axes);
        sum += axes ? ax_comm_traffic_get(comm).exposed : 0;
    }
    return sum;
}

/* Runs the warm-up steps and then the timed ones, whose times overwrite those of the warm-up. While kernels
 * are timed, a device with its own clock (a GPU) records time stamps around each launch, and cannot replay
 * launches as graphs. So on such a device whole steps are timed first, and kernels in as many further
 * steps. */
static ax_status time_steps(timing *t, int64_t warm, int64_t steps, double *seconds, bench_step_times *out)
{
    ax_device *dev = t->ctx->dev;
    progress at = {.all = warm + (dev->ops.event_record ? 2 : 1) * steps};
    int64_t taken;
    for (int64_t left = warm; left > 0; left -= steps)
        AX_TRY(time_some(t, &at, ax_min(left, steps), seconds, &taken));
    if (dev->ops.event_record) {
        AX_TRY(time_some(t, &at, steps, seconds, &taken));
        out->seconds = ax_spread_of(seconds, steps);
    }
    double before = exposed(t->ctx->grid);
    memset(t->sleep.total, 0, sizeof t->sleep.total);
    ax_listener times = ax_kernel_totals(out->kernel);
    ax_device_listen(dev, &times);
    ax_status status = time_some(t, &at, steps, seconds, &taken);
    ax_device_unlisten(dev, &times);
    AX_TRY(status);
    if (!dev->ops.event_record)
        out->seconds = ax_spread_of(seconds, steps);
    out->exposed = (exposed(t->ctx->grid) - before) / (double)taken;
    for (int k = 0; k < AX_KERNEL_COUNT; k++) {
        ax_kernel_total *sum = &out->kernel[k];
        const double n = (double)taken, took = t->sleep.machine ? t->sleep.total[k].seconds : sum->seconds;
        *sum = (ax_kernel_total){sum->calls / taken, took / n, sum->flops / n, sum->bytes / n};
    }
    return t->sleep.status;
}

/* Measures how long the host takes to decide whether the goldfish loss (arXiv 2406.10209) drops a token that
 * is in memory. */
static ax_status measure_goldfish(const timing *t, double *seconds)
{
    enum { TOKENS = 1 << 20 };
    const ax_config *c = t->plan->config;
    const ax_goldfish goldfish = {c->data.goldfish.k, c->data.goldfish.window,
                                  (ax_goldfish_kind)c->data.goldfish.kind};
    int32_t *document = NULL;
    uint8_t *keep = NULL;
    if (!goldfish.k)
        return AX_OK;
    ax_status status = ax_calloc(TOKENS, sizeof *document, &document);
    if (status == AX_OK)
        status = ax_calloc(TOKENS, sizeof *keep, &keep);
    for (int64_t i = 0; i < TOKENS && status == AX_OK; i++)
        document[i] = token(t->plan->options.model, (uint64_t)i);
    if (status == AX_OK)
        memset(keep, 1, TOKENS);
    double begin = ax_now();
    if (status == AX_OK)
        status = ax_goldfish_drop(&goldfish, document, TOKENS, keep);
    *seconds = (ax_now() - begin) / TOKENS;
    free(document);
    free(keep);
    return status;
}

/* Measures the device's peak rates. All ranks of a machine measure at the same time, because they compute at
 * the same time too. The engine is destroyed first, because ax_device_stream allocates an array that is not
 * in the memory plan. If runtime.device_memory does not allow that array, the rate remains unknown. */
static ax_status measure_device(timing *t, bench_step_times *out)
{
    const double patience = 0.2; /* seconds for each of the two measurements */
    const ax_ctx *ctx = t->ctx;
    ax_engine_destroy(&t->engine);
    AX_TRY(ax_device_peak(ctx->dev, ctx->compute, patience, &out->peak));
    bool allowed = !ctx->most || ax_ctx_held(ctx) + AX_STREAM_BYTES <= ctx->most;
    return ax_comm_agree(t->world, allowed ? ax_device_stream(ctx->dev, patience, &out->stream) : AX_OK);
}

static ax_status measure(timing *t, int64_t warm, int64_t steps, bench_step_times *out)
{
    const ax_train_plan *p = t->plan;
    const ax_model_config *model = p->options.model;
    double *seconds = NULL;
    AX_TRY(ax_comm_agree(t->world, ax_calloc((size_t)steps, sizeof *seconds, &seconds)));
    ax_status status = time_steps(t, warm, steps, seconds, out);
    free(seconds);
    AX_TRY(status);
    out->tokens = targets_of(&p->options);
    out->flops = ax_model_config_flops_per_token(model, p->options.seq_len) * (double)out->tokens;
    out->threads = t->ctx->dev->threads;
    out->memory = bench_memory_of(t->ctx, &p->engine.memory);
    out->compute = t->ctx->compute;
    ax_train_describe(model, p->grid, out->model, out->grid);
    AX_TRY(ax_comm_agree(t->world, measure_goldfish(t, &out->goldfish)));
    return t->sleep.machine ? AX_OK : measure_device(t, out);
}

/* Sets *seconds to the time of a step on the machine. Fails if ranks cannot sleep for the time of its
 * kernels.
 */
static ax_status plan_time(const ax_trainer *trainer, const ax_machine *machine, double *seconds)
{
    const ax_train_plan *p = ax_trainer_plan(trainer);
    const ax_model_experts *experts = &p->options.model->experts;
    const ax_prices prices = ax_prices_of(machine);
    ax_stage_times *times;
    ax_step_time step = {0};
    AX_CHECK(!strcmp(p->config->device, "cpu"), AX_ERR_USAGE, "only device=cpu can sleep, not %s",
             p->config->device);
    AX_CHECK(!experts->n || experts->capacity > 0, AX_ERR_USAGE,
             "without moe.capacity the router decides how much ranks send, and kernels that sleep do "
             "not route");
    AX_TRY(ax_machine_check_ranks(machine, ax_comm_size(p->ranks)));
    AX_TRY(ax_machine_check_times(machine, p->compute, ax_comm_size(p->ranks)));
    AX_TRY(ax_calloc((size_t)p->grid.of[AX_PIPE], sizeof *times, &times));
    const ax_status status = ax_trainer_time_step(trainer, &prices, NULL, times, &step);
    for (int i = 0; i < p->grid.of[AX_PIPE]; i++)
        ax_stage_times_fini(&times[i]);
    free(times);
    *seconds = step.seconds;
    return status;
}

/* Warns if the ranks of this run lie on nodes otherwise than those of the plan. */
static ax_status compare_nodes(ax_comm *world, const ax_machine *machine)
{
    const int size = ax_comm_size(world), planned = (int)ax_min(machine->ranks_per_node, size);
    int node;
    AX_TRY(bench_node_size(world, &node));
    if (node != planned && ax_comm_rank(world) == 0)
        ax_log(AX_LOG_WARN,
               "the planned time is that of nodes with %d ranks, as machine %s has them; this run has %d",
               planned, machine->name, node);
    return AX_OK;
}

static ax_status time_trainer(timing *t, const ax_trainer *trainer, int64_t warm, int64_t steps,
                              const ax_machine *machine, bench_step_times *out)
{
    if (machine) {
        AX_TRY(ax_comm_agree(t->world, plan_time(trainer, machine, &out->planned)));
        AX_TRY(ax_comm_agree(t->world, compare_nodes(t->world, machine)));
    }
    AX_TRY(ax_trainer_engine(trainer, &t->ctx, &t->engine));
    if (machine)
        bench_sleep_begin(t->ctx->dev, machine, &t->sleep);
    return measure(t, warm, steps, out);
}

ax_status bench_time_steps(ax_comm *world, ax_config *config, int64_t warm, int64_t steps,
                           const ax_machine *machine, bench_step_times *out)
{
    ax_trainer *trainer;
    *out = (bench_step_times){.threads = 0};
    AX_CHECK(
        steps > 0 && warm >= 0, AX_ERR_USAGE,
        "bench_time_steps: cannot time %lld steps after %lld warm-up steps: at least one step must be timed",
        (long long)steps, (long long)warm);
    AX_TRY(ax_trainer_create(world, config, &trainer));
    timing t = {.world = world, .plan = ax_trainer_plan(trainer)};
    const ax_status status = time_trainer(&t, trainer, warm, steps, machine, out);
    cli_world_abort_unshared(world, status);
    ax_engine_destroy(&t.engine);
    ax_ctx_destroy(&t.ctx);
    ax_trainer_destroy(&trainer);
    return status;
}
