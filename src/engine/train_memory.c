/* The memory of a training run, planned before it is allocated. Logs the bytes of each class (weights,
 * gradients, ...), compares them with the available memory, and advises which settings would fit. */
#include "engine/machine.h"
#include "engine/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ax_status plan_with(const ax_run *run, const ax_parallel *parallel, int64_t micro_batch,
                           int64_t recompute, ax_engine_plan *out)
{
    const ax_train_plan *p = &run->plan;
    ax_engine_options options = p->options;
    options.micro_batch = micro_batch;
    options.recompute = recompute;
    ax_status status = ax_engine_plan_make(&options, p->ranks, p->grid, parallel, run->config->device,
                                           p->threads.count, p->compute, out);
    return ax_comm_agree(run->world, status);
}

/* Logs the memory plan: the bytes of each class, such as weights and activations. */
static void log_plan(const ax_run *run, const ax_memory *m)
{
    const struct {
        const char *what;
        size_t bytes;
    } rows[] = {
        {"weights", m->weights},        {"compute copies", m->copies},   {"gradients", m->gradients},
        {"optimizer", m->optimizer},    {"activations", m->activations}, {"batch", m->batch},
        {"position tables", m->tables}, {"messages", m->messages},       {"kernel scratch", m->workspace}};
    char text[512] = "", size[32];
    for (size_t i = 0; i < AX_COUNT(rows); i++)
        if (rows[i].bytes)
            ax_text_add(text, sizeof text, "%s%s %s", *text ? ", " : "", rows[i].what,
                        ax_format_bytes((double)rows[i].bytes, size));
    ax_log(AX_LOG_INFO, "memory%s: %s in all: %s", ax_comm_size(run->world) > 1 ? " of rank 0" : "",
           ax_format_bytes((double)ax_memory_total(m), size), text);
}

/* Sets *out to the bytes of the rank that needs the most memory, and logs them if that is not rank 0:
 * pipeline stages need different amounts. */
static ax_status find_largest(const ax_run *run, const ax_memory *m, int64_t *out)
{
    int64_t mine = *out = (int64_t)ax_memory_total(m);
    char size[32];
    AX_TRY(ax_run_max(run, out, 1));
    if (*out > mine && ax_run_first(run))
        ax_log(AX_LOG_INFO, "memory of the largest rank: %s", ax_format_bytes((double)*out, size));
    return AX_OK;
}

/* ---- available memory ---------------------------------------------------------------------------- */

static ax_status find_machine(const ax_run *run, size_t need, ax_machine *out)
{
    return ax_machine_find(run->world, run->config->device, run->plan.threads.binding.local_rank, need, out);
}

/* Sets *out to whether every machine has the memory that its ranks need; the same value on all ranks. */
static ax_status fits_all(const ax_run *run, size_t need, bool *out)
{
    ax_machine m;
    AX_TRY(find_machine(run, need, &m));
    int64_t too_large = !ax_machine_fits(&m);
    AX_TRY(ax_run_max(run, &too_large, 1));
    *out = !too_large;
    return AX_OK;
}

/* Advises fewer threads if three conditions hold: ranks have several threads, the run would fit without the
 * threads' scratch memory, and on every rank this scratch memory is more than half of the other memory. Then
 * writes the advice to `out` and
 * sets *helps to true; otherwise sets *helps to false. */
static ax_status suggest_threads(const ax_run *run, const ax_memory *memory, char *out, size_t size,
                                 bool *helps)
{
    size_t scratch = memory->workspace, rest = ax_memory_total(memory) - scratch;
    int threads = run->plan.threads.count;
    AX_TRY(fits_all(run, rest, helps));
    int64_t little = threads == 1 || scratch <= rest / 2; /* may differ between ranks of different pipeline
                                                             stages */
    AX_TRY(ax_run_max(run, &little, 1));
    *helps = *helps && !little;
    char text[32];
    if (*helps)
        snprintf(out, size, "%s are scratch memory of the %d threads of each rank: set `threads` lower",
                 ax_format_bytes((double)scratch, text), threads);
    return AX_OK;
}

/* If the run would fit with pipe.slack = 0 and pipe.postpone = 0, so that pipeline stages hold fewer
 * micro-batches: writes this advice to `out` and sets *helps to true. Otherwise sets *helps to false. */
static ax_status suggest_fewer_slots(const ax_run *run, char *out, size_t size, bool *helps)
{
    ax_parallel less = run->plan.parallel;
    ax_engine_plan plan;
    char text[32];
    *helps = false;
    if (run->plan.grid.pipe == 1 || (!less.pipe.slack && !less.pipe.postpone))
        return AX_OK;
    less.pipe.slack = less.pipe.postpone = 0;
    AX_TRY(plan_with(run, &less, run->plan.options.micro_batch, run->plan.options.recompute, &plan));
    size_t need = ax_memory_total(&plan.memory);
    ax_engine_plan_fini(&plan);
    AX_TRY(fits_all(run, need, helps));
    snprintf(out, size, "pipe.postpone: 0 with pipe.slack: 0 would fit (%s)",
             ax_format_bytes((double)need, text));
    return AX_OK;
}

/* Writes to `out` the first of these changes that would make the run fit: fewer threads; pipe.slack and
 * pipe.postpone 0; a smaller micro-batch, the largest that fits; full recomputation, with the largest
 * micro-batch that fits. If none of these changes would, writes that the model is too large. All ranks do the
 * same search. */
static ax_status suggest(const ax_run *run, const ax_memory *memory, char *out, size_t size)
{
    const ax_engine_options *options = &run->plan.options;
    int64_t most = options->micro_batch;
    int64_t share = options->global_batch / (run->config->grid.data * run->config->grid.z);
    bool helps;
    AX_TRY(suggest_threads(run, memory, out, size, &helps));
    if (!helps)
        AX_TRY(suggest_fewer_slots(run, out, size, &helps));
    if (helps)
        return AX_OK;
    for (int full = 0; full < 2; full++)
        for (int64_t micro = most; micro > 0; micro = micro > 1 ? ax_divisor_below(share, micro - 1) : 0) {
            if ((!full && micro == most) || !ax_config_fits_pipe(run->config, micro))
                continue;
            ax_engine_plan plan;
            bool fit;
            AX_TRY(plan_with(run, &run->plan.parallel, micro, full ? 1 : options->recompute, &plan));
            size_t need = ax_memory_total(&plan.memory);
            ax_engine_plan_fini(&plan);
            AX_TRY(fits_all(run, need, &fit));
            if (!fit)
                continue;
            char text[32];
            snprintf(out, size, "train.micro_batch: %lld%s would fit (%s)", (long long)micro,
                     full ? " with train.recompute: full" : "", ax_format_bytes((double)need, text));
            return AX_OK;
        }
    snprintf(out, size,
             "even train.micro_batch: 1 with train.recompute: full does not fit: divide the model among more "
             "machines or GPUs (grid.z, grid.x, grid.pipe), or reduce model.seq_len");
    return AX_OK;
}

/* Fails if weights, gradients and optimizer state do not fit even if they are divided evenly among the ranks,
 * whatever the micro-batch. Called before the whole memory is planned, because planning takes long for very
 * deep models. */
static ax_status check_parameters(const ax_run *run)
{
    int64_t parameters, matmul;
    ax_machine m;
    if (run->plan.grid.pipe > 1) /* pipeline stages hold parts of the model of different sizes */
        return AX_OK;
    const ax_model_config *model = &run->inputs.model;
    ax_model_config_params(model, &parameters, &matmul);
    bool adapted = ax_model_config_is_adapted(model);
    double frozen = adapted ? (double)parameters : 0,
           trained = (double)(adapted ? ax_model_config_low_rank_params(model) : parameters);
    double need = (frozen * (double)ax_dtype_size(run->plan.compute) +
                   trained * (2 + run->plan.options.optim->slots) * sizeof(float)) /
                  ax_comm_size(run->world);
    char a[32], b[32];
    AX_TRY(find_machine(run, (size_t)fmin(need, 0x1p62), &m));
    AX_CHECK(
        ax_machine_fits(&m), AX_ERR_MEMORY,
        "the weights, gradients and optimizer state of the model's %lld parameters need %s%s but only %s "
        "are available here: the model is too large; use more machines or GPUs, or a smaller model",
        (long long)parameters, ax_format_bytes(m.need, a), m.of, ax_format_bytes(m.available, b));
    return AX_OK;
}

ax_status ax_run_plan_engine(const ax_run *run, ax_train_plan *plan)
{
    ax_machine m;
    bool fit;
    ax_memory *memory = &plan->engine.memory;
    AX_TRY(ax_comm_agree(run->world, check_parameters(run)));
    AX_TRY(plan_with(run, &run->plan.parallel, run->plan.options.micro_batch, run->plan.options.recompute,
                     &plan->engine));
    log_plan(run, memory);
    AX_TRY(find_largest(run, memory, &plan->mem_planned));
    size_t need = ax_memory_total(memory);
    AX_TRY(find_machine(run, need, &m));
    AX_TRY(fits_all(run, need, &fit));
    if (fit)
        return AX_OK;
    char advice[256], a[32], b[32];
    AX_TRY(suggest(run, memory, advice, sizeof advice));
    AX_CHECK(ax_machine_fits(&m), AX_ERR_MEMORY, "a step needs %s%s but only %s are available here: %s",
             ax_format_bytes(m.need, a), m.of, ax_format_bytes(m.available, b), advice);
    return AX_OK;
}
