/* Makes the plan of a run (ax_train_plan): grid, ranks, threads, optimizer, memory. Only this file and
 * memory.c write the plan; other files only read it. */
#include "axonn/runtime.h"
#include "train/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ax_status ax_train_parallel(const ax_config *config, ax_parallel *out)
{
    *out = (ax_parallel){.zero = (int)config->zero,
                         .narrow_grads = config->train.grad_dtype != AX_CONFIG_FP32,
                         .overlap = {.oar = config->overlap.oar,
                                     .ors = config->overlap.ors,
                                     .oag = config->overlap.oag,
                                     .dtd = config->overlap.dtd},
                         .weight_cache = (size_t)config->train.weight_cache,
                         .keep_results = config->train.recompute_comm == AX_CONFIG_KEEP,
                         .expert_room = config->moe.room,
                         .pipe = {.schedule = (ax_pipe_schedule)config->pipe.schedule,
                                  .slack = config->pipe.slack,
                                  .postpone = config->pipe.postpone,
                                  .chunks = (int)config->pipe.chunks},
                         .offload = {.optimizer = (ax_offload_place)config->offload.optimizer,
                                     .update = (ax_offload_update)config->offload.update,
                                     .bucket = config->offload.bucket,
                                     .chunk = config->offload.chunk,
                                     .memory = config->memory,
                                     .dir = config->offload.dir ? config->offload.dir : config->run.dir}};
    if (config->pipe.cut.count && config->pipe.cut.items[0] >= 0)
        out->pipe.cut = config->pipe.cut.items;
    for (int i = 0; ax_strategy_at(i); i++)
        if (!strcmp(ax_strategy_at(i)->name, config->strategy))
            out->strategy = ax_strategy_at(i);
    return ax_offload_resolve(config->device, &out->offload);
}

/* Takes the grid from the configuration and checks, before anything is created, that it is legal for the
 * model and the batch. */
ax_status ax_train_plan_grid(const ax_train_run *run, ax_train_plan *plan)
{
    plan->config = run->config;
    plan->scratch = run->config->scratch;
    plan->grid = ax_config_grid(run->config);
    AX_TRY(ax_train_parallel(run->config, &plan->parallel));
    plan->compute = ax_config_dtype(run->config->train.precision);
    ax_grid_load load = {&run->inputs.model, plan->parallel.strategy, run->config->train.micro_batch,
                         run->config->train.global_batch};
    return ax_model_check_grid(&load, plan->grid, ax_comm_size(run->world));
}

ax_status ax_train_plan_ranks(const ax_train_run *run, ax_train_plan *plan)
{
    AX_TRY(ax_grid_order_parse(run->config->grid.order, &plan->order));
    return ax_grid_world(run->world, plan->grid, &plan->order, &plan->ranks);
}

ax_status ax_train_plan_threads(const ax_train_run *run, ax_train_plan *plan)
{
    return ax_threads_share(run->world, (int)run->config->threads, &plan->threads);
}

/* Chooses the optimizer and the size of a step. */
ax_status ax_train_plan_step(const ax_train_run *run, ax_train_plan *plan)
{
    const ax_config *c = run->config;
    int64_t recompute = c->train.recompute == AX_CONFIG_RECOMPUTE_FULL ? 1 : c->train.recompute;
    plan->options = (ax_engine_options){.model = &run->inputs.model,
                                        .seq_len = c->model.seq_len,
                                        .micro_batch = c->train.micro_batch,
                                        .global_batch = c->train.global_batch,
                                        .recompute = ax_max(recompute, 0),
                                        .whole_rows = !c->data.mask_documents,
                                        .clip = c->optim.clip,
                                        .scores = c->run.recall.data.count > 0,
                                        .masks = run->inputs.masks};
    return ax_optim_find(c->optim.name, &plan->options.optim);
}

ax_status ax_train_plan_schedule(const ax_train_run *run, ax_train_plan *plan)
{
    const ax_config *c = run->config;
    plan->schedule = (ax_schedule){.steps = c->train.steps,
                                   .warmup = ax_quota_of(&c->optim.warmup, c->train.steps),
                                   .lr = c->optim.lr,
                                   .min_lr = c->optim.min_lr,
                                   .decay = c->optim.decay};
    return ax_schedule_find(c->optim.schedule, &plan->schedule.kind);
}

/* Says how many ranks a node has, if that is known, and if the host carries what goes to other nodes. */
static ax_status number_nodes(const ax_train_plan *plan, ax_comm *world)
{
    const char *ranks, *shared;
    AX_TRY(ax_runtime_get(AX_RUNTIME_RANKS_PER_NODE, &ranks));
    AX_TRY(ax_runtime_get(AX_RUNTIME_SHARED_MEMORY, &shared));
    const long n = plan->ranks_per_node ? plan->ranks_per_node : strtol(ranks, NULL, 10);
    return ax_offload_host_carries(&plan->parallel.offload)
               ? ax_comm_dry_nodes(world, (int)n, strcmp(shared, "off") != 0)
               : AX_OK;
}

/* Sets *rank to the rank of a stage whose coordinates along all other axes are 0. */
static ax_status find_first(const ax_train_plan *plan, int stage, int *rank)
{
    const int pipe = plan->grid.of[AX_PIPE];
    AX_CHECK(stage >= 0 && stage < pipe, AX_ERR_USAGE,
             "the grid has %d pipeline stages, so there is no stage %d", pipe, stage);
    *rank = stage; /* axes before pipe in the default order are the inner ones */
    for (int a = 0; a < AX_PIPE; a++)
        *rank *= ax_grid_size_along(plan->grid, (ax_axis)a);
    return AX_OK;
}

/* Creates the world of a dry run as this rank sees it. Its ranks lie on the machine as grid.order says. */
static ax_status create_world(const ax_train_plan *plan, int rank, ax_comm **out)
{
    int *numbers;
    *out = NULL;
    AX_TRY(ax_grid_numbers(plan->grid, &plan->order, &numbers));
    ax_status status = ax_comm_dry_create(rank, ax_comm_size(plan->ranks), out);
    if (status == AX_OK)
        status = ax_comm_dry_number(*out, numbers);
    if (status == AX_OK)
        status = number_nodes(plan, *out);
    free(numbers);
    if (status != AX_OK)
        ax_comm_destroy(out);
    return status;
}

ax_status ax_train_plan_rank(const ax_train_plan *plan, const ax_engine_options *options,
                             const ax_parallel *parallel, ax_comm *world, ax_engine_plan *out)
{
    AX_TRY(ax_engine_plan_make(options, world, plan->grid, parallel, plan->config->device,
                               plan->threads.count, plan->compute, out));
    if (plan->scratch)
        out->memory.bytes[AX_MEMORY_WORKSPACE] = (size_t)plan->scratch;
    return AX_OK;
}

static ax_status plan_rank(const ax_train_plan *plan, const ax_engine_options *options, int rank,
                           ax_engine_plan *out)
{
    ax_comm *world;
    *out = (ax_engine_plan){0};
    AX_TRY(create_world(plan, rank, &world));
    ax_status status = ax_train_plan_rank(plan, options, &plan->parallel, world, out);
    ax_comm_destroy(&world);
    return status;
}

ax_status ax_train_plan_stage(const ax_train_plan *plan, const ax_engine_options *options, int stage,
                              ax_engine_plan *out)
{
    int rank;
    *out = (ax_engine_plan){0};
    AX_TRY(find_first(plan, stage, &rank));
    return plan_rank(plan, options, rank, out);
}

ax_status ax_train_plan_apart(const ax_train_plan *plan, ax_engine_plan *of)
{
    size_t *bytes = &of->memory.bytes[AX_MEMORY_COLLECTIVES];
    for (int i = 0; i < of->n_apart; i++) {
        ax_engine_plan other;
        AX_TRY(plan_rank(plan, &plan->options, of->apart[i], &other));
        of->wire = ax_max(of->wire, other.wire);
        *bytes = ax_max(*bytes, other.memory.bytes[AX_MEMORY_COLLECTIVES]);
        ax_engine_plan_fini(&other);
    }
    return AX_OK;
}

ax_status ax_train_check_priced(const ax_train_plan *p)
{
    const ax_offload *by = &p->parallel.offload;
    AX_CHECK(by->optimizer != AX_OFFLOAD_FILE, AX_ERR_USAGE,
             "offload.optimizer=file: the time of reading and writing the file is not known; plan with "
             "offload.optimizer=none or host");
    /* where the device computes in host memory, its own kernels update the state in its place */
    AX_CHECK(by->optimizer == AX_OFFLOAD_NONE || by->update == AX_OFFLOAD_ON_DEVICE ||
                 by->memory == AX_OFFLOAD_SHARED,
             AX_ERR_USAGE,
             "offload.update=host: the time of an update on the host of a GPU is not known, because a "
             "description has no rates of the host's kernels; plan with offload.update=device");
    return AX_OK;
}

ax_status ax_train_replay_stage(const ax_train_plan *p, const ax_engine_plan *engine, int stage,
                                const ax_prices *prices, ax_event_ring *ring, ax_stage_times *out)
{
    ax_comm *world;
    int rank;
    *out = (ax_stage_times){0};
    AX_TRY(find_first(p, stage, &rank));
    AX_TRY(create_world(p, rank, &world));
    ax_status status =
        ax_stage_times_make(&p->options, engine, world, p->grid, &p->parallel, p->compute, prices, ring, out);
    ax_comm_destroy(&world);
    return status;
}

static ax_status time_stage(const ax_train_plan *p, int stage, const ax_prices *prices, ax_event_ring *ring,
                            ax_stage_times *out)
{
    ax_engine_plan engine;
    AX_TRY(ax_train_plan_stage(p, &p->options, stage, &engine));
    ax_status status = ax_train_replay_stage(p, &engine, stage, prices, ring, out);
    ax_engine_plan_fini(&engine);
    return status;
}

int64_t ax_train_plan_micro_batches(const ax_train_plan *plan)
{
    return plan->options.global_batch /
           (plan->options.micro_batch *
            ax_strategy_ranks(plan->parallel.strategy, AX_ROLE_BATCH, plan->grid));
}

ax_status ax_train_time_step(const ax_train_plan *plan, const ax_prices *prices, ax_event_ring *const ring[],
                             ax_stage_times *times, ax_step_time *out)
{
    const int stages = plan->grid.of[AX_PIPE];
    memset(times, 0, (size_t)stages * sizeof *times);
    AX_TRY(ax_train_check_priced(plan));
    for (int s = 0; s < stages; s++)
        AX_TRY(time_stage(plan, s, prices, ring ? ring[s] : NULL, &times[s]));
    return ax_step_time_make(&plan->parallel.pipe, stages, ax_train_plan_micro_batches(plan), times, out);
}

void ax_train_plan_fini(ax_train_plan *plan)
{
    ax_comm_destroy(&plan->ranks);
    ax_engine_plan_fini(&plan->engine);
}

/* ---- what follows from a plan -------------------------------------------------------------------- */

ax_hyper ax_train_hyper(const ax_train_plan *plan, int64_t step)
{
    const ax_config *c = plan->config;
    return (ax_hyper){.lr = ax_schedule_lr(&plan->schedule, step),
                      .beta1 = c->optim.betas[0],
                      .beta2 = c->optim.betas[1],
                      .eps = c->optim.eps,
                      .momentum = c->optim.momentum,
                      .weight_decay = c->optim.weight_decay,
                      .step = step};
}

void ax_train_describe(const ax_model_config *config, ax_grid_size size, char model[96], char grid[96])
{
    snprintf(model, 96, "%s %lld x %lld", ax_model_config_family(config), (long long)config->layers,
             (long long)config->hidden);
    size_t count;
    const ax_option *option = ax_config_options(&count), *end = option + count;
    for (*grid = 0; option < end; option++) /* in the order of the keys grid.* */
        for (int a = 0; a < AX_GRID_SIZES; a++)
            if (!strncmp(option->key, "grid.", 5) && !strcmp(option->key + 5, ax_axis_name((ax_axis)a)) &&
                (a != AX_SIZE_EXPERT || size.of[a] > 1))
                ax_text_add(grid, 96, "%s%s=%d", *grid ? " " : "", option->key + 5,
                            ax_grid_size_along(size, (ax_axis)a));
}

ax_status ax_train_open_device(const ax_train_plan *plan, ax_ctx **out)
{
    AX_TRY(ax_ctx_create_with(plan->ranks, plan->grid, plan->config->device, &plan->threads, plan->compute,
                              (uint64_t)plan->config->train.seed, out));
    (*out)->parallel = plan->parallel;
    return AX_OK;
}
