/* Reports of a run: metrics, the trace, the peak of memory, and the traffic between ranks. */
#include "train/train.h"

#include "axonn/pipe.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- before the first step ----------------------------------------------------------------------- */

void ax_report_baseline(ax_train_report *report) { report->baseline = ax_memory_now(); }

ax_status ax_report_peak(const ax_train_run *run, ax_train_report *report)
{
    const double patience = 0.02; /* seconds */
    const ax_ctx *ctx = run->state.ctx;
    ax_work *work;
    AX_TRY(ax_comm_agree(run->world, ax_device_peak(ctx->dev, ctx->compute, patience, &report->peak_flops)));
    AX_TRY(ax_all_reduce(run->world, NULL, &report->peak_flops, 1, AX_F64, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    report->peak_flops /= ax_comm_size(run->world);
    return AX_OK;
}

/* Indices into ax_train_report.exchanged, the values that ranks exchange after a step. ax_train_exchange
 * itself uses the first AX_EXCHANGE_OWN elements. From AXES on: bytes sent along each set of grid axes. */
enum { MEMORY = AX_EXCHANGE_OWN, WIRE, EXPOSED, SECONDS, WAITED, AXES };

/* Writes to `all`, in ascending order, the *n sets of grid axes along which any rank has a communicator.
 * Ranks of different pipeline stages may have communicators along different sets. `all` has room for every
 * possible set. */
static ax_status list_sets(const ax_train_run *run, int64_t *all, int *n)
{
    const ax_grid *grid = run->state.ctx->grid;
    enum { SETS = 1 << AX_MAX_AXES };
    int64_t *used;
    AX_TRY(ax_calloc(SETS, sizeof *used, &used));
    for (int i = 0; i < ax_grid_groups(grid); i++) {
        ax_axisset set;
        (void)ax_grid_group(grid, i, &set);
        used[set] = 1;
    }
    ax_status status =
        run->plan.grid.of[AX_PIPE] > 1 ? ax_train_max(run, used, 1 << ax_grid_axes(grid)) : AX_OK;
    *n = 0;
    for (int set = 1; set < SETS; set++)
        if (used[set])
            all[(*n)++] = set;
    free(used);
    return status;
}

static const ax_comm *comm_along(const ax_grid *grid, ax_axisset wanted)
{
    for (int i = 0; i < ax_grid_groups(grid); i++) {
        ax_axisset set;
        const ax_comm *comm = ax_grid_group(grid, i, &set);
        if (set == wanted)
            return comm;
    }
    return NULL;
}

ax_status ax_report_axes(const ax_train_run *run, ax_train_report *report)
{
    const ax_grid *grid = run->state.ctx->grid;
    int64_t *set;
    int n = 0;
    AX_TRY(ax_calloc(1 << AX_MAX_AXES, sizeof *set, &set));
    ax_status status = list_sets(run, set, &n);
    if (status == AX_OK)
        status = ax_calloc((size_t)n, sizeof *report->axes, &report->axes);
    if (status == AX_OK)
        status = ax_calloc((size_t)n, sizeof *report->row_axes, &report->row_axes);
    if (status == AX_OK)
        status = ax_calloc((size_t)AXES + (size_t)n, sizeof *report->exchanged, &report->exchanged);
    for (int i = 0; i < n && status == AX_OK; i++) {
        ax_train_axes *a = &report->axes[report->n_axes++];
        a->comm = comm_along(grid, (ax_axisset)set[i]);
        ax_grid_set_print(grid, (ax_axisset)set[i], a->name);
    }
    free(set);
    return status;
}

static void add_flops(void *flops, const ax_device_event *launch)
{
    *(double *)flops += ax_kernel_flops(launch->kernel, launch->args);
}

/* The trace keeps the newest EVENTS events; one step of a large model has some thousands. */
ax_status ax_report_listen(const ax_train_run *run, ax_train_report *report)
{
    enum { EVENTS = 1 << 16 };
    ax_event_ring *ring;
    report->trace_origin = ax_now(); /* almost the same moment on all ranks: they have just agreed on the
                                        status of the start-up stage before this one */
    report->launches = (ax_listener){AX_ON_KERNEL, add_flops, &report->flops, NULL};
    ax_device_listen(run->state.ctx->dev, &report->launches);
    if (run->config->run.trace)
        AX_TRY(ax_trace_create(EVENTS, &report->trace));
    AX_TRY(ax_trace_ring(report->trace, "compute", &ring));
    report->activities = ax_ring_listener(ring);
    ax_device_listen(run->state.ctx->dev, &report->activities);
    return AX_OK;
}

/* Logs a message if the run has too few steps for the warm-up and decay of its learning-rate schedule, for
 * example in a trial run or with few samples. */
static void log_schedule(const ax_train_run *run)
{
    const ax_schedule *s = &run->plan.schedule;
    long long falling = llround(s->decay * (double)s->steps), left = (long long)(s->steps - s->warmup);
    if (s->steps == 1 && ax_schedule_lr(s, 1) == 0)
        ax_log(AX_LOG_WARN,
               "the run's only step has learning rate 0 and changes no weights: optim.schedule ends at "
               "optim.min_lr, which is 0 (choose constant, another optim.min_lr, or more steps)");
    else if (left < 0)
        ax_log(AX_LOG_INFO,
               "optim.warmup (%lld steps) is longer than the run (%lld): the learning rate only rises, to %g",
               (long long)s->warmup, (long long)s->steps, ax_schedule_lr(s, s->steps));
    else if (s->kind == AX_SCHEDULE_WSD && left < falling)
        ax_log(AX_LOG_INFO, "optim.warmup (%lld steps) leaves only %lld of the %lld steps of optim.decay",
               (long long)s->warmup, left, falling);
}

/* Logs how many blocks each pipeline stage has, and how many micro-batches (with several chunks: pairs of
 * micro-batch and chunk) the stage may hold at a time, its slots. */
static void log_stages(const ax_train_run *run)
{
    const ax_model *m = ax_engine_model(run->state.engine);
    int64_t micro_batches = run->config->train.global_batch / ax_engine_rows(run->state.engine);
    char text[256] = "";
    if (m->stages == 1)
        return;
    for (int s = 0; s < m->stages; s++) {
        long long blocks = 0, slots = ax_model_stage(m, s, micro_batches).slots;
        for (int p = s; p < m->stages * m->chunks; p += m->stages)
            blocks += m->cut[p + 1] - m->cut[p];
        ax_text_add(text, sizeof text, "%s%lld block%s in %lld slot%s", s ? ", " : "", blocks,
                    blocks == 1 ? "" : "s", slots, slots == 1 ? "" : "s");
    }
    char chunks[32] = "";
    if (m->chunks > 1)
        snprintf(chunks, sizeof chunks, " of %d chunks", m->chunks);
    ax_log(AX_LOG_INFO, "pipeline of %d stages%s, %lld micro-batches a step: %s", m->stages, chunks,
           (long long)micro_batches, text);
}

static void log_dropout(const ax_train_run *run)
{
    const ax_model_dropout *d = &run->inputs.model.dropout;
    if (d->embd > 0 || d->resid > 0 || d->attn > 0)
        ax_log(AX_LOG_INFO,
               "dropout of the model: %g of embeddings, %g of residual branches, %g of attention", d->embd,
               d->resid, d->attn);
    else
        ax_log(AX_LOG_INFO, "dropout of the model: none");
}

static void log_experts(const ax_train_run *run)
{
    const ax_model_config *m = &run->inputs.model;
    const ax_model_experts *e = &m->experts;
    int64_t parameters, matmul;
    if (!e->n)
        return;
    ax_model_config_params(m, &parameters, &matmul);
    ax_log(AX_LOG_INFO,
           "experts: a token chooses %lld of %lld in %lld of %lld blocks, and is multiplied by %.1f M "
           "parameters; coefficients: balance loss %g, z loss %g",
           (long long)e->top_k, (long long)e->n, (long long)ax_model_config_sparse_blocks(m, m->layers),
           (long long)m->layers, (double)matmul * 1e-6, e->balance, e->z_loss);
    if (e->capacity > 0)
        ax_log(AX_LOG_INFO, "experts: capacity %g: each has %lld places for a sequence of %lld tokens",
               e->capacity, (long long)ax_expert_capacity(e->capacity, e->n, e->top_k, m->seq_len),
               (long long)m->seq_len);
}

/* Appends the matrices that have updates, such as "q, v in each block, head". */
static ax_status print_updates(const ax_train_run *run, ax_buf *out)
{
    const ax_model_config *m = &run->inputs.model;
    for (int i = 0; i < AX_MATRIX_COUNT; i++) {
        if (i == AX_MATRIX_OF_BLOCK && out->size) {
            AX_TRY(ax_buf_printf(out, m->low_rank_blocks ? " in blocks " : " in each block"));
            if (m->low_rank_blocks)
                AX_TRY(ax_model_config_print_blocks(m, out));
        }
        if (ax_model_config_update_count(m, (ax_matrix)i))
            AX_TRY(ax_buf_printf(out, "%s%s", out->size ? ", " : "", ax_matrix_name((ax_matrix)i)));
    }
    return AX_OK;
}

static void log_updates(const ax_train_run *run)
{
    const ax_model_config *m = &run->inputs.model;
    ax_buf list = {0};
    char drop[48] = "";
    if (!ax_model_config_is_adapted(m))
        return;
    if (run->config->tune.dropout > 0)
        snprintf(drop, sizeof drop, ", dropout %g of their inputs", run->config->tune.dropout);
    if (print_updates(run, &list) == AX_OK)
        ax_log(AX_LOG_INFO, "tuning low-rank updates of %s: rank %lld, alpha %g%s%s, %.3f M parameters",
               list.data, (long long)run->config->tune.rank, run->config->tune.alpha,
               m->low_rank_root ? " (rank-stabilized)" : "", drop,
               (double)ax_model_config_low_rank_params(m) * 1e-6);
    ax_buf_fini(&list);
    if (run->inputs.adapter_dir && !run->resume.dir)
        ax_log(AX_LOG_INFO, "the updates start from the adapter %s", run->inputs.adapter_dir);
    char *training;
    if (ax_path_join(run->inputs.model_dir, "training", &training) != AX_OK)
        return;
    if (ax_path_is_dir(training))
        ax_log(
            AX_LOG_WARN,
            "the base, %s, is a checkpoint of a run: if that run removes it (run.keep_latest), the adapter "
            "is lost; to be safe, copy it first (axonn ckpt convert %s --out DIR)",
            run->inputs.model_dir, run->inputs.model_dir);
    free(training);
}

static void log_goldfish(const ax_train_run *run)
{
    const ax_config *c = run->config;
    const long long k = c->data.goldfish.k, window = c->data.goldfish.window;
    if (c->data.goldfish.kind == AX_GOLDFISH_STATIC && k)
        ax_log(AX_LOG_INFO, "goldfish loss: tokens number %lld, %lld, ... of each document are not targets",
               k, 2 * k);
    else if (k)
        ax_log(AX_LOG_INFO,
               "goldfish loss: one of %lld targets is dropped, by a hash of the %lld tokens before it; "
               "the field dropped of metrics.jsonl is the share of dropped targets in a step",
               k, window);
}

ax_status ax_report_open_metrics(const ax_train_run *run, ax_train_report *report)
{
    const ax_config *c = run->config;
    char grid[96], model[96];
    int64_t parameters, matmul;
    ax_model_config_params(&run->inputs.model, &parameters, &matmul);
    ax_train_describe(&run->inputs.model, run->plan.grid, model, grid);
    ax_log(AX_LOG_INFO, "%s, %.1f M parameters, in %s on %s, %s; run.dir %s", model,
           (double)parameters * 1e-6, ax_dtype_name(run->state.ctx->compute), c->device, grid, c->run.dir);
    log_experts(run);
    log_updates(run);
    log_stages(run);
    log_schedule(run);
    log_dropout(run);
    log_goldfish(run);
    return ax_metrics_open(
        &(ax_metrics_run){.dir = c->run.dir,
                          .device = c->device,
                          .threads = run->state.ctx->dev->threads,
                          .ranks = ax_comm_size(run->world),
                          .grid = grid,
                          .strategy = c->strategy,
                          .zero = (int)c->zero,
                          .precision = ax_config_dtype_name(c->train.precision),
                          .grad_dtype = ax_config_dtype_name(c->train.grad_dtype),
                          .offload = ax_offload_place_name(run->plan.parallel.offload.optimizer),
                          .model = model,
                          .parameters = parameters,
                          .steps = c->train.steps,
                          .expert_capacity = run->inputs.model.experts.capacity,
                          .goldfish_k = c->data.goldfish.k,
                          .peak_flops = report->peak_flops,
                          .peak_from = "multiply-adds in registers, measured at start-up",
                          .mem_planned = run->plan.mem_planned,
                          .mem_baseline = report->baseline,
                          .log_interval = c->run.log_interval},
        run->state.step, &report->metrics);
}

/* ---- steps --------------------------------------------------------------------------------------- */

void ax_report_break_line(const ax_train_run *run)
{
    if (run->report.metrics)
        ax_metrics_break_line(run->report.metrics);
}

void ax_report_begin_step(const ax_train_run *run, ax_train_report *report)
{
    report->step_began = ax_now();
    report->flops = 0;
    report->waited = ax_engine_waited(run->state.engine);
}

static ax_comm_traffic traffic_of(const ax_train_axes *axes)
{
    return axes->comm ? ax_comm_traffic_get(axes->comm) : (ax_comm_traffic){0};
}

void ax_report_begin_traffic(ax_train_report *report)
{
    for (int i = 0; i < report->n_axes; i++)
        report->axes[i].before = traffic_of(&report->axes[i]);
}

/* Returns this rank's peak of device memory, in bytes. If the device uses host memory, subtracts the pages of
 * other ranks' shared heaps (ax_node_alloc) that this process has touched: they count on the ranks that own
 * them. */
static int64_t held_bytes(const ax_train_run *run)
{
    int64_t bytes = ax_device_held(run->state.ctx->dev);
    return ax_device_uses_host_memory(run->state.ctx->dev) ? bytes - ax_comm_foreign_memory(run->world)
                                                           : bytes;
}

/* Returns the row of metrics of the current step, with the measurements of this rank. */
static ax_metrics_step row_of(const ax_train_run *run, const ax_step_result *result)
{
    const ax_config *c = run->config;
    int64_t tokens = result->empty ? 0 : c->train.global_batch * c->model.seq_len;
    double dropped = (double)ax_sampler_dropped(run->state.sampler);
    double per_token = ax_model_config_flops_per_token(&run->inputs.model, c->model.seq_len);
    return (ax_metrics_step){.step = run->state.step,
                             .loss = result->loss,
                             .grad_norm = result->grad_norm,
                             .lr = ax_train_hyper(&run->plan, run->state.step).lr,
                             .tokens = run->state.tokens,
                             .step_tokens = tokens,
                             .flops = per_token * (double)tokens,
                             .hw_flops = run->report.flops,
                             .mem_bytes = held_bytes(run),
                             .skipped = !result->finite || result->empty,
                             .loss_scale = c->train.precision == AX_CONFIG_FP16 ? result->loss_scale : 0,
                             .balance_loss = result->balance_loss,
                             .z_loss = result->z_loss,
                             .expert_load = result->expert_load,
                             .expert_dropped = result->expert_dropped,
                             .dropped = dropped / ax_max(dropped + (double)run->state.step_targets, 1)};
}

/* Replaces the measurements in *row by their maxima or sums over all ranks. */
static ax_status exchange(const ax_train_run *run, ax_train_report *r, ax_metrics_step *row, int *signal)
{
    double *max = r->exchanged;
    max[MEMORY] = (double)row->mem_bytes;
    max[WIRE] = max[EXPOSED] = 0;
    for (int i = 0; i < r->n_axes; i++) {
        ax_comm_traffic now = traffic_of(&r->axes[i]), before = r->axes[i].before;
        max[AXES + i] = (double)(now.bytes - before.bytes);
        max[WIRE] += (double)(now.wire - before.wire);
        max[EXPOSED] += now.exposed - before.exposed;
    }
    max[SECONDS] = ax_now() - r->step_began;
    max[WAITED] = ax_engine_waited(run->state.engine) - r->waited;
    double sum[] = {row->hw_flops, (double)row->mem_bytes};
    AX_TRY(ax_train_exchange(run, max, AXES - AX_EXCHANGE_OWN + r->n_axes, sum, AX_COUNT(sum), signal));
    row->hw_flops = sum[0];
    row->mem_bytes = (int64_t)max[MEMORY];
    row->mem_mean = (int64_t)(sum[1] / ax_comm_size(run->world));
    row->comm_wire_bytes = (int64_t)max[WIRE];
    row->comm_exposed_ms = max[EXPOSED] * 1e3;
    row->pipe_wait_ms = run->plan.grid.of[AX_PIPE] > 1 ? max[WAITED] * 1e3 : 0;
    for (int i = 0; i < r->n_axes; i++)
        r->row_axes[i] = (ax_metrics_axes){r->axes[i].name, (int64_t)max[AXES + i]};
    row->comm = r->row_axes;
    row->comm_count = r->n_axes;
    return AX_OK;
}

ax_status ax_report_step(const ax_train_run *run, const ax_step_result *result, ax_train_report *report,
                         ax_train_trouble *trouble, double *seconds, int *signal)
{
    ax_metrics_step row = row_of(run, result);
    if (!run->state.step_targets && !report->no_targets && ax_train_first(run))
        ax_log(AX_LOG_WARN,
               "step %lld has no target: none of its rows has an answer, so it is skipped, and its loss is "
               "null in metrics.jsonl; later steps like it are skipped without a warning",
               (long long)run->state.step);
    report->no_targets |= !run->state.step_targets;
    AX_TRY(exchange(run, report, &row, signal));
    *seconds = report->exchanged[SECONDS];
    row.step_ms = (ax_now() - report->step_began) * 1e3;
    ax_activity_end(run->state.ctx->dev, "step", "train", report->step_began, 0);
    if (report->metrics)
        ax_trouble_note(trouble, ax_metrics_step_add(report->metrics, &row));
    return AX_OK;
}

ax_status ax_report_evaluation(const ax_train_run *run, const ax_evaluation *e, double seconds)
{
    if (!e->targets && !run->report.no_eval_targets && ax_train_first(run))
        ax_log(
            AX_LOG_WARN,
            "none of the rows of data.valid that were evaluated has a target, so there is no loss (null in "
            "metrics.jsonl): %s; later evaluations like it are not reported",
            run->config->run.eval_batches ? "raise run.eval_batches, or set it to 0 (all rows)"
                                          : "give other data, or see whether data.loss should be all");
    if (!run->report.metrics)
        return AX_OK;
    return ax_metrics_eval_add(run->report.metrics, run->state.step, e->loss,
                               isnan(e->bits_per_byte) ? -1 : e->bits_per_byte, e->targets, seconds);
}

/* ---- after the last step ------------------------------------------------------------------------- */

ax_status ax_report_write_trace(const ax_train_run *run)
{
    char *dir, *path, name[64];
    if (!run->report.trace)
        return AX_OK;
    int rank = ax_comm_rank(run->world);
    snprintf(name, sizeof name, "rank-%d.json", rank);
    AX_TRY(ax_path_join(run->config->run.dir, "trace", &dir));
    ax_status status = ax_path_join(dir, name, &path);
    if (status == AX_OK) {
        status = ax_mkdirs(dir);
        if (status == AX_OK)
            status = ax_trace_write(run->report.trace, rank, run->report.trace_origin, path);
        free(path);
    }
    free(dir);
    return status;
}

void ax_report_fini(ax_train_report *report)
{
    ax_metrics_close(&report->metrics);
    ax_trace_destroy(&report->trace);
    free(report->axes);
    free(report->row_axes);
    free(report->exchanged);
}
