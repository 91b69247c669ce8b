/* ax_trainer, for programs that run the training steps themselves. Makes the same plan and engine as
 * ax_train, but opens no data and writes no files. */
#include "train/train.h"

#include <stdlib.h>

struct ax_trainer {
    ax_train_run run;
};

static ax_status start(ax_trainer *trainer, ax_comm *world, ax_config *config)
{
    ax_train_run *run = &trainer->run;
    *run = (ax_train_run){.world = world, .config = config, .state = {.saved_step = -1}};
    ax_comm_set_timeout(world, config->watchdog.timeout);
    ax_status status = ax_train_start(run, AX_TRAIN_PLANS);
    ax_comm_abort_unshared(world, status);
    return status;
}

ax_status ax_trainer_create(ax_comm *world, ax_config *config, ax_trainer **out)
{
    ax_status status = ax_comm_agree(world, ax_calloc(1, sizeof **out, out));
    if (status == AX_OK)
        status = start(*out, world, config);
    if (status != AX_OK)
        ax_trainer_destroy(out);
    return status;
}

void ax_trainer_destroy(ax_trainer **trainer)
{
    if (*trainer)
        ax_train_finish(&(*trainer)->run);
    free(*trainer);
    *trainer = NULL;
}

const ax_train_plan *ax_trainer_plan(const ax_trainer *trainer) { return &trainer->run.plan; }

ax_status ax_trainer_plan_stage(const ax_trainer *trainer, int stage, ax_engine_plan *out)
{
    const ax_train_plan *p = &trainer->run.plan;
    AX_TRY(ax_train_plan_stage(p, &p->options, stage, out));
    ax_status status = ax_train_plan_apart(p, out);
    if (status != AX_OK)
        ax_engine_plan_fini(out);
    return status;
}

ax_status ax_trainer_time_step(const ax_trainer *trainer, const ax_prices *prices,
                               ax_event_ring *const ring[], ax_stage_times *times, ax_step_time *out)
{
    return ax_train_time_step(&trainer->run.plan, prices, ring, times, out);
}

static ax_status create_engine(const ax_train_plan *plan, ax_ctx **ctx, ax_engine **engine)
{
    AX_TRY(ax_train_open_device(plan, ctx));
    /* A trainer makes no run.dir; without one, offloaded state goes to the current directory. */
    if (!plan->config->offload.dir && !ax_path_is_dir(plan->config->run.dir))
        (*ctx)->parallel.offload.dir = NULL;
    return ax_engine_create(*ctx, &plan->options, &plan->engine, 0, engine);
}

ax_status ax_trainer_engine(const ax_trainer *trainer, ax_ctx **ctx, ax_engine **engine)
{
    const ax_train_run *run = &trainer->run;
    *ctx = NULL;
    *engine = NULL;
    AX_TRY(ax_comm_agree(run->world, create_engine(&run->plan, ctx, engine)));
    AX_TRY(ax_grid_prepare((*ctx)->grid, run->plan.engine.axes));
    return ax_comm_agree(run->world, ax_train_init_weights(run, *engine));
}
