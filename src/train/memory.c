/* The memory of a training run, planned before it is allocated. Logs the bytes of each class (weights,
 * gradients, ...), compares them with the available memory, and advises which settings would fit. */
#include "axonn/runtime.h"
#include "engine/fit.h"
#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ax_status plan_with(const ax_train_run *run, const ax_parallel *parallel, int64_t micro_batch,
                           int64_t recompute, ax_engine_plan *out)
{
    const ax_train_plan *p = &run->plan;
    ax_engine_options options = p->options;
    options.micro_batch = micro_batch;
    options.recompute = recompute;
    return ax_comm_agree(run->world, ax_train_plan_rank(p, &options, parallel, p->ranks, out));
}

/* Logs the memory plan: the bytes of each class, such as weights and activations, and the limit. */
static ax_status log_plan(const ax_train_run *run, const ax_memory *m)
{
    char text[512], size[32], most[32] = "in all";
    const char *of = ax_comm_size(run->world) > 1 ? " of rank 0" : "";
    size_t limit;
    AX_TRY(ax_ctx_find_limit(&limit));
    if (limit)
        ax_format_bytes((double)limit, most);
    ax_log(AX_LOG_INFO, "memory%s: %s %s%s%s: %s", of, ax_format_bytes((double)ax_memory_total(m), size),
           limit ? "of " : "", most, limit ? " (runtime.device_memory)" : "",
           ax_memory_print(m, AX_MEMORY_ON_DEVICE, text));
    if (ax_memory_on(m, AX_MEMORY_ON_HOST))
        ax_log(AX_LOG_INFO, "host memory%s beside that: %s", of, ax_memory_print(m, AX_MEMORY_ON_HOST, text));
    if (ax_memory_on(m, AX_MEMORY_ON_DISK))
        ax_log(AX_LOG_INFO, "on the disk%s: %s", of, ax_memory_print(m, AX_MEMORY_ON_DISK, text));
    return AX_OK;
}

/* Logs how much less the device of rank 0 holds by offload.optimizer: with low-rank updates, for example,
 * little; nothing, if the buckets are as large as the state. */
static void log_offload(const ax_train_run *run, const ax_engine_plan *plan)
{
    const ax_offload *by = &run->plan.parallel.offload;
    double state = (double)plan->offloaded,
           saved = fmax(state - (double)plan->memory.bytes[AX_MEMORY_RING], 0),
           without = (double)ax_memory_total(&plan->memory) + saved;
    char size[32], ring[128] = "";
    if (by->optimizer == AX_OFFLOAD_NONE || !ax_train_first(run))
        return;
    if (by->optimizer == AX_OFFLOAD_HOST && by->memory != AX_OFFLOAD_DISCRETE) {
        ax_log(AX_LOG_INFO,
               "offload.optimizer host frees no memory here: device %s computes in host memory; file does",
               run->config->device);
        return;
    }
    if (plan->slots)
        snprintf(ring, sizeof ring, "; updates take the state in buckets of %lld elements, %d at a time%s",
                 (long long)plan->bucket, plan->slots,
                 saved < state / 2 ? ": a smaller offload.bucket saves more" : "");
    ax_log(AX_LOG_INFO, "offload.optimizer %s saves %s of device memory on rank 0, %.1f %%%s",
           ax_offload_place_name(by->optimizer), ax_format_bytes(saved, size), 100 * saved / without, ring);
}

/* With train.recompute_comm keep, logs how much more memory the activations of rank 0 take by it, or why it
 * has no effect. */
static ax_status log_kept(const ax_train_run *run, const ax_engine_plan *plan)
{
    const ax_grid_size grid = run->plan.grid;
    ax_parallel again = run->plan.parallel;
    ax_engine_plan other;
    char size[32];
    if (!again.keep_results)
        return AX_OK;
    if (!run->plan.options.recompute ||
        (ax_grid_size_along(grid, AX_X) == 1 && ax_grid_size_along(grid, AX_Y) == 1 &&
         ax_grid_size_along(grid, AX_SIZE_EXPERT) == 1)) {
        if (ax_train_first(run))
            ax_log(AX_LOG_INFO, "train.recompute_comm keep has no effect: %s",
                   run->plan.options.recompute ? "x, y and expert are 1, so no activations are communicated"
                                               : "train.recompute auto chose none");
        return AX_OK;
    }
    again.keep_results = false;
    AX_TRY(plan_with(run, &again, run->plan.options.micro_batch, run->plan.options.recompute, &other));
    const double more =
        (double)plan->memory.bytes[AX_MEMORY_ACTIVATIONS] - (double)other.memory.bytes[AX_MEMORY_ACTIVATIONS];
    ax_engine_plan_fini(&other);
    if (ax_train_first(run))
        ax_log(AX_LOG_INFO, "train.recompute_comm keep takes %s more for activations of rank 0",
               ax_format_bytes(fmax(more, 0), size));
    return AX_OK;
}

/* Sets *out to the bytes of the rank that needs the most memory, and logs them if rank 0 needs less: pipeline
 * stages need different amounts. */
static ax_status find_largest(const ax_train_run *run, const ax_memory *m, int64_t *out)
{
    int64_t mine = *out = (int64_t)ax_memory_total(m);
    char size[32];
    AX_TRY(ax_train_max(run, out, 1));
    if (*out > mine && ax_train_first(run))
        ax_log(AX_LOG_INFO, "memory of the largest rank: %s", ax_format_bytes((double)*out, size));
    return AX_OK;
}

/* ---- available memory ---------------------------------------------------------------------------- */

static ax_status find_machine(const ax_train_run *run, const ax_memory *need, ax_fit *out)
{
    return ax_fit_find(run->world, run->config->device, run->plan.threads.binding.local_rank, need, out);
}

/* Sets *out to the memories that this rank needs (of its device, GPU and machine), and *fit to whether every
 * such memory is enough for the ranks that share it; *fit is the same on all ranks. */
static ax_status fits_all(const ax_train_run *run, const ax_memory *need, ax_fit *out, bool *fit)
{
    AX_TRY(find_machine(run, need, out));
    int64_t too_large = !ax_fit_holds(out);
    AX_TRY(ax_train_max(run, &too_large, 1));
    *fit = !too_large;
    return AX_OK;
}

/* The text between what a list has so far and what is added to it. */
static const char *joint(const char *list, const char *between) { return *list ? between : ""; }

/* Suggests fewer threads if three conditions hold: ranks compute on several threads, the run would fit
 * without the threads' scratch memory, and on every rank this scratch memory is more than half of the other
 * memory. */
static ax_status suggest_threads(const ax_train_run *run, const ax_memory *memory, char *out, size_t size)
{
    const size_t scratch = memory->bytes[AX_MEMORY_WORKSPACE];
    ax_memory rest = *memory;
    int threads = run->plan.threads.count;
    ax_fit m;
    bool fits;
    char text[32];
    rest.bytes[AX_MEMORY_WORKSPACE] = 0;
    AX_TRY(fits_all(run, &rest, &m, &fits));
    /* The scratch memory of a GPU or of a described machine does not depend on threads. Stages may differ in
     * the other memory. */
    int64_t little = threads == 1 || run->plan.scratch ||
                     run->plan.parallel.offload.memory == AX_OFFLOAD_DISCRETE ||
                     scratch <= ax_memory_total(&rest) / 2;
    AX_TRY(ax_train_max(run, &little, 1));
    if (fits && !little)
        ax_text_add(out, size, "%s%s are scratch memory of the %d threads of each rank: set `threads` lower",
                    joint(out, "; or "), ax_format_bytes((double)scratch, text), threads);
    return AX_OK;
}

/* A change of settings that may make the run fit. */
typedef struct change {
    ax_parallel parallel;
    int64_t micro_batch, recompute;
    char what[192]; /* the changed keys and their values, for the advice */
} change;

/* Sets *seconds to the time of a step with the change on the machine; 0: it is not known. */
static ax_status time_change(const ax_train_run *run, const change *c, const ax_machine *machine,
                             double *seconds)
{
    ax_train_plan plan = run->plan;
    const ax_prices prices = ax_prices_of(machine);
    ax_stage_times *times;
    ax_step_time step = {0};
    plan.parallel = c->parallel;
    plan.options.micro_batch = c->micro_batch;
    plan.options.recompute = c->recompute;
    AX_TRY(ax_calloc((size_t)plan.grid.of[AX_PIPE], sizeof *times, &times));
    ax_status status = ax_machine_check_times(machine, plan.compute, ax_comm_size(plan.ranks));
    if (status == AX_OK)
        status = ax_train_time_step(&plan, &prices, NULL, times, &step);
    for (int i = 0; i < plan.grid.of[AX_PIPE]; i++)
        ax_stage_times_fini(&times[i]);
    free(times);
    *seconds = step.seconds;
    return status == AX_ERR_USAGE ? AX_OK : status;
}

/* In a plan for a described machine, appends what the change costs: the time of a step with it, and without
 * it, if there were enough memory. */
static ax_status add_cost(const ax_train_run *run, const change *c, char *out, size_t size)
{
    const change none = {.parallel = run->plan.parallel,
                         .micro_batch = run->plan.options.micro_batch,
                         .recompute = run->plan.options.recompute};
    double with = 0, without = 0;
    char text[2][32];
    const char *name;
    ax_machine *machine;
    AX_TRY(ax_runtime_get(AX_RUNTIME_MACHINE, &name));
    if (!ax_comm_is_dry(run->world) || !strcmp(name, ax_runtime_options[AX_RUNTIME_MACHINE].preset))
        return AX_OK;
    AX_TRY(ax_machine_open(name, &machine));
    ax_status status = time_change(run, c, machine, &with);
    if (status == AX_OK)
        status = time_change(run, &none, machine, &without);
    ax_machine_close(&machine);
    if (status == AX_OK && with > 0)
        ax_text_add(out, size, ", a step %s", ax_format_seconds(with, text[0]));
    if (status == AX_OK && with > 0 && without > 0)
        ax_text_add(out, size, " instead of %s", ax_format_seconds(without, text[1]));
    return status;
}

/* Plans the run with the change, and suggests it if the run then fits: then sets *helps to true. */
static ax_status try_change(const ax_train_run *run, const change *c, char *out, size_t size, bool *helps)
{
    ax_engine_plan plan;
    ax_fit m;
    char text[32];
    AX_TRY(plan_with(run, &c->parallel, c->micro_batch, c->recompute, &plan));
    const ax_memory need = plan.memory;
    ax_engine_plan_fini(&plan);
    AX_TRY(fits_all(run, &need, &m, helps));
    if (!*helps)
        return AX_OK;
    ax_text_add(out, size, "%s%s would fit (%s", joint(out, "; or "), c->what,
                ax_format_bytes(ax_fit_need(&m), text));
    AX_TRY(add_cost(run, c, out, size));
    ax_text_add(out, size, ")");
    return AX_OK;
}

/* Adds a key and its value to the text of the change. */
static void add_key(change *c, const char *text)
{
    ax_text_add(c->what, sizeof c->what, "%s%s", joint(c->what, " with "), text);
}

static void add_number(change *c, const char *key, int64_t value)
{
    ax_text_add(c->what, sizeof c->what, "%s%s: %lld", joint(c->what, " with "), key, (long long)value);
}

/* Changes settings so that no results of collectives are kept, and stages of a pipeline hold the fewest
 * micro-batches. Returns false if there is nothing to change. */
static bool hold_least(const ax_train_run *run, change *c)
{
    ax_pipe_settings *pipe = &c->parallel.pipe;
    if (c->parallel.keep_results)
        add_key(c, "train.recompute_comm: again");
    c->parallel.keep_results = false;
    if (run->plan.grid.of[AX_PIPE] == 1)
        return *c->what;
    if (pipe->schedule == AX_PIPE_GPIPE)
        add_key(c, "pipe.schedule: message");
    if (pipe->slack)
        add_key(c, "pipe.slack: 0");
    if (pipe->postpone)
        add_key(c, "pipe.postpone: 0");
    pipe->schedule = pipe->schedule == AX_PIPE_GPIPE ? AX_PIPE_MESSAGE : pipe->schedule;
    pipe->slack = pipe->postpone = 0;
    return *c->what;
}

/* Tries, on top of the changes in `base`, smaller micro-batches, from large to small, and then full
 * recomputation with micro-batches from the present size down. Suggests the first of these that fits. */
static ax_status suggest_micro_batch(const ax_train_run *run, const change *base, char *out, size_t size,
                                     bool *helps)
{
    const ax_engine_options *options = &run->plan.options;
    int64_t most = options->micro_batch;
    int64_t share =
        options->global_batch / ax_strategy_ranks(run->plan.parallel.strategy, AX_ROLE_BATCH, run->plan.grid);
    for (int full = 0; full < 2; full++)
        for (int64_t micro = most; micro > 0; micro = micro > 1 ? ax_divisor_below(share, micro - 1) : 0) {
            if ((!full && micro == most) || !ax_config_fits_pipe(run->config, micro))
                continue;
            change c = *base;
            c.micro_batch = micro;
            c.recompute = full ? 1 : options->recompute;
            *c.what = '\0';
            if (micro != most)
                add_number(&c, "train.micro_batch", micro);
            if (full)
                add_key(&c, "train.recompute: full");
            if (*base->what)
                add_key(&c, base->what);
            AX_TRY(try_change(run, &c, out, size, helps));
            if (*helps)
                return AX_OK;
        }
    return AX_OK;
}

/* Sets the bucket of `c`, whose state is offloaded, to 1/32 of the elements that the rank with the most
 * offloads, if that is smaller: the ring is then a small part of what it replaces. */
static ax_status shrink_bucket(const ax_train_run *run, change *c)
{
    ax_engine_plan plan;
    int64_t *bucket = &c->parallel.offload.bucket, elements = 0;
    AX_TRY(plan_with(run, &c->parallel, c->micro_batch, c->recompute, &plan));
    const size_t ring = plan.memory.bytes[AX_MEMORY_RING];
    if (ring) /* else smaller buckets take no less of the device */
        elements = (int64_t)(plan.offloaded / (ring / plan.slots / plan.bucket));
    ax_engine_plan_fini(&plan);
    AX_TRY(ax_train_max(run, &elements, 1));
    int64_t smaller = AX_UPDATE_UNIT;
    while (smaller * 2 <= elements / 32)
        smaller *= 2;
    if (elements && smaller < *bucket)
        add_number(c, "offload.bucket", *bucket = smaller);
    return AX_OK;
}

/* Tries to keep the optimizer's state in host memory, then in a file: on top of the changes in `base`, and
 * with a smaller bucket if need be. With micro_batch, tries smaller micro-batches and recomputation on top of
 * that. */
static ax_status suggest_offload(const ax_train_run *run, const change *base, bool micro_batch, char *out,
                                 size_t size, bool *helps)
{
    *helps = false;
    for (int i = AX_OFFLOAD_HOST; i <= AX_OFFLOAD_FILE && !*helps; i++) {
        ax_offload_place place = (ax_offload_place)i, given = base->parallel.offload.optimizer;
        change c = *base;
        if (place < given) /* the places are in order of what the machine needs */
            continue;
        c.parallel.offload.optimizer = place;
        if (place != given)
            ax_text_add(c.what, sizeof c.what, "%soffload.optimizer: %s", joint(c.what, " with "),
                        ax_offload_place_name(place));
        if (place != given && !micro_batch)
            AX_TRY(try_change(run, &c, out, size, helps));
        const int64_t bucket = c.parallel.offload.bucket;
        if (!*helps)
            AX_TRY(shrink_bucket(run, &c));
        if (!*helps && !micro_batch && c.parallel.offload.bucket != bucket)
            AX_TRY(try_change(run, &c, out, size, helps));
        if (micro_batch)
            AX_TRY(suggest_micro_batch(run, &c, out, size, helps));
    }
    return AX_OK;
}

/* Writes to `out` changes that would make the run fit, one of each kind: of the batch (no kept results and a
 * pipeline that holds fewer micro-batches; smaller micro-batches, or full recomputation; both); optimizer
 * state that is not on the device; fewer threads. If none does, the first that fits of changes of the batch
 * and offloaded state together. If none of these does, advises to divide the model among more ranks. All
 * ranks do the same search. */
static ax_status suggest(const ax_train_run *run, const ax_memory *memory, char *out, size_t size)
{
    const change as_given = {.parallel = run->plan.parallel,
                             .micro_batch = run->plan.options.micro_batch,
                             .recompute = run->plan.options.recompute};
    change least = as_given;
    bool helps = false, less = hold_least(run, &least);
    *out = '\0';
    if (less)
        AX_TRY(try_change(run, &least, out, size, &helps));
    if (!helps)
        AX_TRY(suggest_micro_batch(run, &as_given, out, size, &helps));
    if (!helps && less)
        AX_TRY(suggest_micro_batch(run, &least, out, size, &helps));
    AX_TRY(suggest_offload(run, &as_given, false, out, size, &helps));
    AX_TRY(suggest_threads(run, memory, out, size));
    if (!*out)
        AX_TRY(suggest_offload(run, &least, true, out, size, &helps));
    if (!*out)
        snprintf(
            out, size,
            "even train.micro_batch: 1 with train.recompute: full with offload.optimizer: file%s%s does not "
            "fit: divide the model among more machines or GPUs (grid.z, grid.x, grid.pipe%s%s), or reduce "
            "model.seq_len",
            joint(least.what, " with "), least.what,
            run->inputs.model.experts.n > run->plan.grid.of[AX_SIZE_EXPERT] ? ", grid.expert" : "",
            run->plan.grid.of[AX_DATA] > 1 && run->plan.parallel.zero < 3 ? ", zero" : "");
    return AX_OK;
}

/* Sets *out to the machine's memory and the least that a rank needs for the model's weights and gradients,
 * and unless `offloads` for its optimizer state: if these are divided evenly among the ranks. Of a
 * pruned model only the weights are counted. */
static ax_status find_least(const ax_train_run *run, bool offloads, int64_t parameters, ax_fit *out)
{
    const ax_model_config *model = &run->inputs.model;
    bool adapted = ax_model_config_is_adapted(model);
    double frozen = adapted ? (double)parameters : 0,
           trained = (double)(adapted ? ax_model_config_low_rank_params(model) : parameters);
    /* With offloaded state, weights and gradients in the compute dtype are the least. */
    const double size = (double)ax_dtype_size(run->plan.compute),
                 each = run->inputs.masks ? size
                        : offloads        ? 2 * size
                                          : (2 + run->plan.options.optim->moments) * (double)sizeof(float),
                 need = (frozen * size + trained * each) / ax_comm_size(run->world);
    const ax_memory least = {.bytes[AX_MEMORY_WEIGHTS] = (size_t)fmin(need, 0x1p62)};
    return find_machine(run, &least, out);
}

/* On a grid without pipeline stages, fails if weights, gradients and the optimizer state on the device do not
 * fit even if they are divided evenly among the ranks, whatever the micro-batch. Called before the whole
 * memory is planned, because planning takes long for very deep models. */
static ax_status check_parameters(const ax_train_run *run)
{
    const bool offloads = run->plan.parallel.offload.optimizer != AX_OFFLOAD_NONE;
    int64_t parameters, matmul;
    ax_fit m, offloaded;
    char what[128];
    if (run->plan.grid.of[AX_PIPE] > 1) /* pipeline stages hold parts of the model of different sizes */
        return AX_OK;
    ax_model_config_params(&run->inputs.model, &parameters, &matmul);
    AX_TRY(find_least(run, offloads, parameters, &m));
    AX_TRY(find_least(run, true, parameters, &offloaded));
    snprintf(what, sizeof what, "the weights%s of the model's %lld parameters need at least",
             offloads ? " and gradients" : ", gradients and optimizer state", (long long)parameters);
    return ax_fit_check(
        &m, what,
        offloads || !ax_fit_holds(&offloaded)
            ? "the model is too large; use more machines or GPUs, or a smaller model"
            : "keep the optimizer's state elsewhere (offload.optimizer: file; on a GPU also host), or "
              "use more machines or GPUs, or a smaller model");
}

/* Sets *out to the memory that this rank needs with this recomputation; in a dry run, whose other ranks do
 * not exist, to that of the rank of any stage that needs the most of its device. */
static ax_status plan_recompute(const ax_train_run *run, int64_t recompute, ax_memory *out)
{
    const bool dry = ax_comm_is_dry(run->world);
    ax_engine_options options = run->plan.options;
    *out = (ax_memory){0};
    options.recompute = recompute;
    for (int stage = 0; stage < (dry ? run->plan.grid.of[AX_PIPE] : 1); stage++) {
        ax_engine_plan plan;
        AX_TRY(dry ? ax_train_plan_stage(&run->plan, &options, stage, &plan)
                   : plan_with(run, &run->plan.parallel, options.micro_batch, recompute, &plan));
        if (ax_memory_total(&plan.memory) >= ax_memory_total(out))
            *out = plan.memory;
        ax_engine_plan_fini(&plan);
    }
    return AX_OK;
}

/* Sets *need to the bytes that the largest rank needs with this recomputation, and *fit to whether the memory
 * is enough for all ranks. */
static ax_status try_recompute(const ax_train_run *run, int64_t recompute, int64_t *need, bool *fit)
{
    ax_memory mine;
    ax_fit m;
    AX_TRY(plan_recompute(run, recompute, &mine));
    *need = (int64_t)ax_memory_total(&mine);
    AX_TRY(ax_train_max(run, need, 1));
    return fits_all(run, &mine, &m, fit);
}

/* Chooses the recomputation for the key's value auto: none if that fits; else the input of every n blocks is
 * stored. A larger n stores fewer inputs, but recomputes longer segments, whose activations are all kept at
 * once: n grows until the bytes do. */
static ax_status choose_recompute(const ax_train_run *run, int64_t *out)
{
    int64_t need, least;
    bool fit;
    *out = 0;
    AX_TRY(try_recompute(run, 0, &need, &fit));
    if (!fit) {
        *out = 1;
        AX_TRY(try_recompute(run, 1, &least, &fit));
        for (int64_t n = 2; n <= run->inputs.model.layers; n++) {
            AX_TRY(try_recompute(run, n, &need, &fit));
            if (need > least)
                break;
            least = need;
            *out = n;
        }
        need = least;
    }
    char value[32] = "none", size[32];
    if (*out)
        snprintf(value, sizeof value, "%lld", (long long)*out);
    if (ax_train_first(run))
        ax_log(AX_LOG_INFO, "train.recompute auto chose %s: %s%s", value, ax_format_bytes((double)need, size),
               ax_comm_size(run->world) > 1 ? " on the largest rank" : "");
    return AX_OK;
}

ax_status ax_train_plan_engine(const ax_train_run *run, ax_train_plan *plan)
{
    ax_fit m;
    bool fit;
    ax_memory *memory = &plan->engine.memory;
    if (!run->config->model
             .seq_len) /* the data will say how long rows are; the weights must fit in any case */
        return check_parameters(run);
    AX_TRY(ax_comm_agree(run->world, check_parameters(run)));
    if (run->config->train.recompute == AX_CONFIG_RECOMPUTE_AUTO)
        AX_TRY(choose_recompute(run, &plan->options.recompute));
    AX_TRY(plan_with(run, &run->plan.parallel, run->plan.options.micro_batch, run->plan.options.recompute,
                     &plan->engine));
    AX_TRY(ax_train_check_masks(run));
    AX_TRY(log_plan(run, memory));
    log_offload(run, &plan->engine);
    AX_TRY(log_kept(run, &plan->engine));
    AX_TRY(find_largest(run, memory, &plan->mem_planned));
    AX_TRY(fits_all(run, memory, &m, &fit));
    if (fit)
        return AX_OK;
    char advice[1024];
    AX_TRY(suggest(run, memory, advice, sizeof advice));
    return ax_fit_check(&m, "a step needs", advice);
}
