/* Plans the memory of an engine: creates the engine on the device `dry`, which has no memory and computes
 * nothing, and runs a step and an evaluation there. */
#include "engine/engine_private.h"
#include "engine/fit.h"

#include <stdlib.h>
#include <string.h>

ax_status ax_rows_none(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    (void)source;
    (void)first;
    (void)end;
    (void)out;
    return AX_OK;
}

/* Returns a slot that trains the chunk: by the plan each has room only for the chunks that a step puts there.
 */
static int slot_of(const ax_engine *e, int chunk)
{
    char name[24];
    int slot = 0;
    engine_task_name("train", chunk, name);
    while (slot < e->slots - 1 && !ax_frame_runs(e->slot[slot].frame, name))
        slot++;
    return slot;
}

ax_status engine_dry_micro_batch(ax_engine *e, int64_t index, int64_t of, ax_piece_seconds *times)
{
    static const struct {
        ax_pipe_task task;
        ax_status (*run)(void *engine, ax_pipe_piece piece, int index);
    } tasks[] = {{AX_PIPE_FORWARD, engine_start_piece},
                 {AX_PIPE_BACKWARD, engine_end_piece},
                 {AX_PIPE_WEIGHTS, engine_add_weight_grads}};
    const size_t n = engine_postpones(e) ? 3 : 2;
    e->reading = (engine_reading){.read = ax_rows_none, .rows = of * e->rows, .targets = 1};
    AX_TRY(ax_pipeline_begin(e->pipeline, 0, 1, true));
    for (int chunk = 0; chunk < engine_chunks(e); chunk++) {
        const int slot = slot_of(e, chunk);
        for (size_t i = 0; i < n; i++) {
            const double begin = ax_device_now(e->ctx->dev);
            AX_TRY(tasks[i].run(e, (ax_pipe_piece){index, chunk}, slot));
            if (times)
                times[chunk].of[tasks[i].task] = ax_device_now(e->ctx->dev) - begin;
        }
    }
    return ax_pipeline_end(e->pipeline);
}

/* Runs an evaluation, and one that scores targets if the engine has scores: these are then summed in host
 * memory, which a dry run leaves out, between the ranks that sum the loss. */
static ax_status dry_run_evaluations(ax_engine *e)
{
    double loss;
    AX_TRY(ax_engine_eval(e, ax_rows_none, NULL, e->rows, &loss));
    return e->options.scores
               ? engine_run_evaluation(
                     e, &(engine_reading){.read = ax_rows_none, .rows = e->rows, .scoring = true})
               : AX_OK;
}

/* What a rank sends in a step: along[axes] for each set of axes; `wire` to other nodes. */
typedef struct sums {
    int64_t *along, wire;
} sums;

/* Adds to the sums `times` the bytes that this rank has sent so far. */
static void add_sent(const ax_engine *e, int64_t times, sums *sent)
{
    for (int i = 0; i < ax_grid_groups(e->ctx->grid); i++) {
        ax_axisset axes;
        const ax_comm *comm = ax_grid_group(e->ctx->grid, i, &axes);
        sent->along[axes] += times * ax_comm_traffic_get(comm).bytes;
        sent->wire += times * ax_comm_traffic_get(comm).wire;
    }
}

/* Writes what a step sends, sent[axes], to the plan. */
static ax_status list_sent(const ax_grid *grid, const int64_t *sent, ax_engine_plan *out)
{
    const int sets = 1 << ax_grid_axes(grid);
    AX_TRY(
        ax_calloc((size_t)ax_grid_groups(grid), sizeof *out->sent, &out->sent)); /* one group has each set */
    for (int axes = 1; axes < sets; axes++) {
        if (!sent[axes])
            continue;
        ax_axes_bytes *entry = &out->sent[out->n_sent++];
        ax_grid_set_print(grid, (ax_axisset)axes, entry->axes);
        entry->bytes = sent[axes];
    }
    return AX_OK;
}

/* Does to the weights what the update of a step does: the next step gathers those in the weight cache again.
 */
static ax_status renew_weights(const ax_engine *e)
{
    for (int i = 0; i < e->set->n; i++)
        if (!e->set->param[i]->frozen)
            AX_TRY(ax_param_all_gather(e->set->param[i]));
    return AX_OK;
}

/* Returns true if the weight cache may keep frozen weights, which only the first step gathers. */
static bool keeps_frozen(const ax_engine *e)
{
    bool frozen = false;
    for (int i = 0; i < e->set->n && !frozen; i++)
        frozen = e->set->param[i]->frozen;
    return frozen && e->ctx->parallel.weight_cache;
}

/* Runs each task twice on the device `dry`. The first run records the order in which the task uses weights
 * (the order of their all-gathers), the second run records the memory.
 *
 * The first micro-batch of a step sets the gradients. All later micro-batches add to the gradients, and need
 * more memory than the first. So the second run takes the last micro-batch of a step. The micro-batches
 * between the first and the last send equally many bytes, and the dry step has one of them. Which gradients
 * are reduced within the last micro-batch follows from the first run: bytes of a step with one micro-batch
 * are those of the second run. Frozen weights that the cache keeps are gathered before what is counted. */
static ax_status dry_run_tasks(ax_engine *e, sums *sent)
{
    const int64_t micro_batches = e->options.global_batch / e->rows;
    const bool trains = e->options.optim, several = micro_batches > 1;
    const int64_t n = ax_min(micro_batches, 3), middle = ax_max(micro_batches - 2, 0);
    if (!trains) {
        AX_TRY(dry_run_evaluations(e));
        ax_frame_forget(e->slot[0].frame);
        return dry_run_evaluations(e);
    }
    e->options.global_batch = n * e->rows;
    if (several && keeps_frozen(e)) {
        AX_TRY(engine_begin_step(e));
        AX_TRY(engine_dry_micro_batch(e, 0, n, NULL));
        AX_TRY(renew_weights(e));
        ax_frame_forget(e->slot[0].frame);
    }
    add_sent(e, several ? -1 : 0, sent);
    AX_TRY(engine_begin_step(e));
    AX_TRY(engine_dry_micro_batch(e, 0, n, NULL));
    add_sent(e, several ? 1 : 0, sent);
    AX_TRY(dry_run_evaluations(e));
    ax_frame_forget(e->slot[0].frame);
    add_sent(e, -middle, sent);
    if (middle) {
        AX_TRY(engine_dry_micro_batch(e, 1, n, NULL));
        ax_frame_forget(e->slot[0].frame);
    }
    add_sent(e, middle, sent);
    if (!several)
        AX_TRY(renew_weights(e));
    add_sent(e, -1, sent);
    if (!several)
        AX_TRY(engine_begin_step(e));
    AX_TRY(engine_dry_micro_batch(e, n - 1, n, NULL));
    AX_TRY(engine_end_step(e, 1, &(ax_hyper){.step = 1}));
    add_sent(e, 1, sent);
    return dry_run_evaluations(e);
}

/* holds[slot · chunks + chunk]: whether a step puts a piece of the chunk into the slot. */
typedef struct slot_chunks {
    int chunks;
    bool *holds;
} slot_chunks;

/* Returns whether a slot runs a task: only the training of a chunk keeps memory in a slot. */
static bool slot_runs(const void *user, int slot, const char *task)
{
    const slot_chunks *of = user;
    char name[24];
    for (int chunk = 0; chunk < of->chunks; chunk++)
        if (of->holds[slot * of->chunks + chunk] && !strcmp(task, engine_task_name("train", chunk, name)))
            return true;
    return false;
}

static ax_status plan_frames(const ax_engine *e, int slots, ax_frame_plan **out)
{
    slot_chunks of = {.chunks = engine_chunks(e)};
    AX_TRY(ax_calloc((size_t)(slots * of.chunks), sizeof *of.holds, &of.holds));
    ax_status status = ax_pipe_slot_chunks(ax_pipeline_stage(e->pipeline), of.holds);
    if (status == AX_OK)
        status = ax_frame_plan_create(e->slot[0].frame, slots, slot_runs, &of, out);
    free(of.holds);
    return status;
}

static ax_status dry_run(ax_engine *e, ax_engine_plan *out)
{
    sums sent = {0};
    AX_TRY(ax_param_set_reserve_messages(e->set));
    AX_TRY(ax_calloc((size_t)1 << AX_MAX_AXES, sizeof *sent.along, &sent.along));
    ax_status status = dry_run_tasks(e, &sent);
    if (status == AX_OK)
        status = list_sent(e->ctx->grid, sent.along, out);
    out->wire = ax_comm_dry_has_nodes(e->ctx->world) ? sent.wire : -1;
    free(sent.along);
    AX_TRY(status);
    AX_TRY(ax_param_set_take_uses(e->set, &out->uses));
    out->costs = e->costs;
    e->costs = NULL;
    int slots = (int)ax_pipeline_stage(e->pipeline)->slots;
    AX_TRY(plan_frames(e, slots, &out->frame));
    out->slots = ax_offload_slots(e->set, &out->bucket);
    out->offloaded = ax_offload_bytes(e->set);
    out->memory = e->set->memory;
    size_t *bytes = out->memory.bytes;
    bytes[AX_MEMORY_ACTIVATIONS] = ax_frame_plan_bytes(out->frame);
    bytes[AX_MEMORY_BATCH] += (size_t)slots * engine_batch_bytes(e) + engine_numbers_bytes(e) +
                              engine_scores_bytes(e) + (e->updater ? ax_updater_bytes(e->updater) : 0);
    bytes[AX_MEMORY_TABLES] = ax_layer_table_bytes(e->model->root);
    bytes[AX_MEMORY_MESSAGES] = ax_pipeline_bytes(e->pipeline);
    return AX_OK;
}

/* Adds the scratch memory of the cpu device that updates for a device with memory of its own. */
static ax_status plan_host_update(const ax_offload *by, int threads, ax_memory *memory)
{
    size_t scratch = 0;
    if (by->optimizer != AX_OFFLOAD_NONE && by->update == AX_OFFLOAD_ON_HOST &&
        by->memory == AX_OFFLOAD_DISCRETE)
        AX_TRY(ax_device_workspace("cpu", threads, &scratch));
    memory->bytes[AX_MEMORY_HOST] += scratch;
    return AX_OK;
}

ax_status ax_engine_plan_make(const ax_engine_options *options, ax_comm *world, ax_grid_size grid,
                              const ax_parallel *parallel, const char *device, int threads, ax_dtype compute,
                              ax_engine_plan *out)
{
    *out = (ax_engine_plan){0};
    ax_ctx *dry;
    ax_engine *engine = NULL;
    ax_parallel mine = parallel ? *parallel : ax_parallel_default;
    AX_TRY(ax_offload_resolve(device, &mine.offload));
    AX_TRY(ax_comm_is_dry(world)
               ? ax_ctx_create_dry_over(world, grid, compute, &mine, &dry)
               : ax_ctx_create_dry(ax_comm_rank(world), ax_comm_size(world), grid, compute, &mine, &dry));
    ax_status status = AX_OK;
    if (!ax_comm_is_dry(world) && ax_offload_host_carries(&mine.offload))
        status = ax_comm_dry_nodes_of(dry->world, world);
    if (status == AX_OK)
        status = ax_engine_create(dry, options, NULL, 0, &engine);
    if (status == AX_OK)
        status = dry_run(engine, out);
    if (status == AX_OK)
        status = ax_grid_used(dry->grid, &out->axes);
    if (status == AX_OK && ax_comm_is_dry(world))
        status = ax_grid_apart(dry->grid, &out->apart, &out->n_apart);
    if (status == AX_OK)
        status = ax_device_workspace(device, threads, &out->memory.bytes[AX_MEMORY_WORKSPACE]);
    if (status == AX_OK)
        status = plan_host_update(&mine.offload, threads, &out->memory);
    if (status == AX_OK && mine.offload.memory == AX_OFFLOAD_DISCRETE)
        out->memory.bytes[AX_MEMORY_PINNED] = ax_memory_pinned(dry->grid);
    out->memory.bytes[AX_MEMORY_COLLECTIVES] = ax_grid_buffers(dry->grid);
    ax_engine_destroy(&engine);
    ax_ctx_destroy(&dry);
    if (status != AX_OK)
        ax_engine_plan_fini(out);
    return status;
}

void ax_engine_plan_fini(ax_engine_plan *plan)
{
    ax_frame_plan_destroy(&plan->frame);
    ax_param_uses_destroy(&plan->uses);
    free(plan->axes);
    free(plan->apart);
    free(plan->costs);
    free(plan->sent);
    *plan = (ax_engine_plan){0};
}
