/* A training run: checks and plans everything, then allocates, then loops over the steps. */
#include "engine/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ax_status allocate(ax_run *run)
{
    ax_memory_restart_peak(); /* leaves out the peak of tokenizing */
    run->baseline = ax_memory_now();
    AX_TRY(ax_run_open_device(&run->plan, &run->ctx));
    AX_TRY(ax_comm_agree(run->world, ax_run_measure_peak(run)));
    AX_TRY(ax_run_average_peak(run));
    ax_memory_restart_peak();
    AX_TRY(ax_engine_create(run->ctx, &run->plan.options, &run->plan.engine, 0, &run->engine));
    AX_TRY(ax_run_find_axes(run)); /* after the model is built, which may split x into two factors */
    return AX_OK;
}

/* Opens the trace. It keeps the newest events: a step of a large model has some thousands of them. */
static ax_status open_trace(ax_run *run)
{
    enum { EVENTS = 1 << 16 };
    run->trace_origin = ax_now(); /* almost the same moment on all ranks: a stage has just ended */
    if (!run->config->run.trace)
        return AX_OK;
    AX_TRY(ax_trace_create(EVENTS, &run->trace));
    AX_TRY(ax_trace_ring(run->trace, "compute", &run->ctx->dev->ring));
    return AX_OK;
}

static ax_status write_trace(const ax_run *run)
{
    char *dir, *path, name[64];
    if (!run->trace)
        return AX_OK;
    int rank = ax_comm_rank(run->world);
    snprintf(name, sizeof name, "rank-%d.json", rank);
    AX_TRY(ax_path_join(run->config->run.dir, "trace", &dir));
    ax_status status = ax_path_join(dir, name, &path);
    if (status == AX_OK) {
        status = ax_mkdirs(dir);
        if (status == AX_OK)
            status = ax_trace_write(run->trace, rank, run->trace_origin, path);
        free(path);
    }
    free(dir);
    return status;
}

/* Logs if the run is too short for its learning rate schedule, as in a trial of a few steps. */
static void log_schedule(const ax_run *run)
{
    const ax_schedule *s = &run->plan.schedule;
    long long falling = llround(s->decay * (double)s->steps), left = (long long)(s->steps - s->warmup);
    if (left < 0)
        ax_log(AX_LOG_INFO,
               "optim.warmup (%lld steps) is longer than the run (%lld): the learning rate only rises, to %g",
               (long long)s->warmup, (long long)s->steps, ax_schedule_lr(s, s->steps));
    else if (s->kind == AX_SCHEDULE_WSD && left < falling)
        ax_log(AX_LOG_INFO, "optim.warmup (%lld steps) leaves only %lld of the %lld steps of optim.decay",
               (long long)s->warmup, left, falling);
}

static void log_dropout(const ax_run *run)
{
    const ax_model_dropout *d = &run->model.dropout;
    if (d->embd > 0 || d->resid > 0 || d->attn > 0)
        ax_log(AX_LOG_INFO, "dropout: %g of embeddings, %g of residual branches, %g of attention", d->embd,
               d->resid, d->attn);
    else
        ax_log(AX_LOG_INFO, "dropout: none");
}

static ax_status open_metrics(ax_run *run)
{
    const ax_config *c = run->config;
    char grid[96], model[96];
    int64_t parameters, matmul;
    ax_model_config_params(&run->model, &parameters, &matmul);
    ax_train_describe(&run->model, run->plan.grid, model, grid);
    ax_log(AX_LOG_INFO, "%s, %.1f M parameters, in %s on %s, %s; run.dir %s", model,
           (double)parameters * 1e-6, ax_dtype_name(run->ctx->compute), c->device, grid, c->run.dir);
    log_schedule(run);
    log_dropout(run);
    return ax_metrics_open(
        &(ax_metrics_run){.dir = c->run.dir,
                          .device = c->device,
                          .threads = run->ctx->dev->threads,
                          .ranks = ax_comm_size(run->world),
                          .grid = grid,
                          .strategy = c->strategy,
                          .zero = (int)c->zero,
                          .precision = ax_run_dtype_name(c->train.precision),
                          .model = model,
                          .parameters = parameters,
                          .steps = c->train.steps,
                          .peak_flops = run->peak_flops,
                          .peak_from = "multiply-adds in registers, measured at start-up",
                          .mem_planned = (int64_t)ax_memory_total(&run->plan.engine.memory),
                          .mem_baseline = run->baseline,
                          .log_interval = c->run.log_interval},
        run->step, &run->metrics);
}

/* Runs the stages before the first step. Checks come before allocations. Only rank 0 writes files (FIRST).
 * After each stage the ranks agree on its status. A stage must therefore not let a rank fail alone while
 * others wait for it in a collective: it fails before the collective, or agrees by itself. */
ax_status ax_run_start(ax_run *run, ax_run_purpose purpose)
{
    static const struct {
        const char *name;
        ax_status (*run)(ax_run *);
        enum { EACH, FIRST } who;
        ax_run_purpose least; /* runs for this purpose and later ones */
    } stage[] = {{"configuration", ax_run_compare_configs, EACH, AX_RUN_PLANS},
                 {"runtime settings", ax_run_set_runtime, EACH, AX_RUN_PLANS},
                 {"inputs", ax_run_find_inputs, EACH, AX_RUN_TRAINS},
                 {"model", ax_run_open_model, EACH, AX_RUN_PLANS},
                 {"grid", ax_run_plan_grid, EACH, AX_RUN_PLANS},
                 {"lock", ax_run_lock, FIRST, AX_RUN_TRAINS},
                 {"ranks", ax_run_plan_ranks, EACH, AX_RUN_PLANS},
                 {"threads", ax_run_plan_threads, EACH, AX_RUN_PLANS},
                 {"optimizer", ax_run_plan_step, EACH, AX_RUN_PLANS},
                 {"memory plan", ax_run_plan_engine, EACH, AX_RUN_PLANS},
                 {"checkpoints", ax_run_find_resume, EACH, AX_RUN_TRAINS},
                 {"runtime settings of the checkpoint", ax_run_resume_runtime, EACH, AX_RUN_TRAINS},
                 {"files beside the model", ax_run_find_files, FIRST, AX_RUN_TRAINS},
                 {"data", ax_run_open_data, EACH, AX_RUN_TRAINS},
                 {"position", ax_run_restore_position, EACH, AX_RUN_TRAINS},
                 {"allocation", allocate, EACH, AX_RUN_TRAINS},
                 {"trace", open_trace, EACH, AX_RUN_TRAINS},
                 {"weights", ax_run_start_weights, EACH, AX_RUN_TRAINS},
                 {"config.yaml", ax_run_write_config, FIRST, AX_RUN_TRAINS},
                 {"metrics", open_metrics, FIRST, AX_RUN_TRAINS},
                 {"evaluation", ax_run_find_evaluation, EACH, AX_RUN_TRAINS}};
    for (size_t i = 0; i < AX_COUNT(stage); i++) {
        if (stage[i].least > purpose)
            continue;
        double begin = ax_now();
        bool mine = stage[i].who == EACH || ax_run_first(run);
        AX_TRY(ax_comm_agree(run->world, mine ? stage[i].run(run) : AX_OK));
        ax_log(AX_LOG_DEBUG, "start: %s took %.1f ms", stage[i].name, (ax_now() - begin) * 1e3);
    }
    return AX_OK;
}

/* Reads the rows of a micro-batch. Called once per micro-batch on each rank. */
static ax_status read_rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    ax_run *run = source;
    AX_TRY(ax_pace_piece(run, &run->computing));
    return ax_sampler_read(run->sampler, first, end, out);
}

/* Chooses the rows of a step, in pieces, and counts their targets. */
static ax_status draw_rows(ax_run *run, int64_t *targets)
{
    enum { PIECE = 1 << 14 };
    *targets = 0;
    for (int64_t row = 0, end, here; row < run->config->train.global_batch; row = end) {
        end = ax_min(row + PIECE, run->config->train.global_batch);
        AX_TRY(ax_pace_piece(run, &run->drawing));
        AX_TRY(ax_sampler_next_part(run->sampler, row, end, &here));
        *targets += here;
    }
    return AX_OK;
}

static ax_status compute(ax_run *run, const ax_hyper *hyper, int64_t *targets, ax_step_result *result)
{
    run->step_began = ax_now();
    ax_pace_begin(&run->drawing);
    AX_TRY(draw_rows(run, targets));
    ax_run_begin_traffic(run);
    ax_pace_begin(&run->computing);
    AX_TRY(ax_engine_step(run->engine, run->step, read_rows, run, *targets, hyper));
    return ax_engine_result(run->engine, result);
}

/* Undoes a step that was given up: restores the sampler to `drawn`, so that a resumed run draws the same
 * rows, and drops the gradients. */
static ax_status undo_step(ax_run *run, const int64_t *drawn)
{
    run->step--;
    AX_TRY(ax_sampler_restore(run->sampler, drawn));
    return ax_param_set_zero_grad(ax_engine_params(run->engine));
}

/* Returns advice for the user about a step that was not finite. */
static const char *nonfinite_advice(const ax_run *run, const ax_step_result *r)
{
    if (r->culprit_weights)
        return "training cannot repair weights, start from other ones";
#define ADVICE "lower optim.lr, or set train.nonfinite=skip to skip such steps"
    return run->config->train.precision == AX_CONFIG_FP16
               ? "fp16 ends at 65504: use train.precision=bf16, " ADVICE
               : ADVICE;
#undef ADVICE
}

/* Decides about a step whose loss or gradient is not finite, and which was therefore not applied: fails, or
 * logs it and goes on without it (train.nonfinite). Always goes on if the loss scale was too large and is now
 * smaller. */
static ax_status handle_nonfinite(ax_run *run, const ax_step_result *r)
{
    char what[192] = "the loss is not finite", newest[64] = "there is no checkpoint yet";
    const ax_loss_scale *scale = ax_engine_loss_scale(run->engine);
    if (run->metrics)
        ax_metrics_break_line(run->metrics);
    if (r->overflow && scale->scale < r->loss_scale) {
        if (ax_run_first(run))
            ax_log(AX_LOG_INFO,
                   "step %lld is skipped: its gradient overflows fp16; the loss scale is now %g (skipped so "
                   "far: %lld)",
                   (long long)run->step, scale->scale, (long long)scale->skipped_steps);
        return AX_OK;
    }
    if (r->culprit)
        snprintf(what, sizeof what, "the %s of %s %s not finite%s",
                 r->culprit_weights ? "weights" : "gradient", r->culprit, r->culprit_weights ? "are" : "is",
                 r->overflow ? ", even with the smallest loss scale" : "");
    /* Weights that are not finite stay so: skipping the step would not help. */
    if (run->config->train.nonfinite == AX_CONFIG_SKIP && !r->culprit_weights) {
        if (ax_run_first(run))
            ax_log(AX_LOG_WARN, "step %lld is skipped: %s (loss %g)", (long long)run->step, what, r->loss);
        return AX_OK;
    }
    if (run->saved_step >= 0)
        snprintf(newest, sizeof newest, "the newest checkpoint is that of step %lld",
                 (long long)run->saved_step);
    return ax_fail(AX_ERR_NUMERIC,
                   "step %lld: %s (loss %g, gradient norm %g); the step was not applied: %s; %s",
                   (long long)run->step, what, r->loss, r->grad_norm, nonfinite_advice(run, r), newest);
}

/* Returns this rank's peak of device memory. In host memory, pages of other ranks' heaps that it has touched
 * do not count. */
static int64_t held_bytes(const ax_run *run)
{
    int64_t bytes = ax_device_held(run->ctx->dev);
    return ax_device_uses_host_memory(run->ctx->dev) ? bytes - ax_comm_foreign_memory(run->world) : bytes;
}

static ax_status train_step(ax_run *run)
{
    const ax_config *c = run->config;
    double flops = run->ctx->dev->flops;
    int64_t targets, step = ++run->step, drawn[run->train.n];
    ax_hyper hyper = ax_train_hyper(&run->plan, step);
    ax_step_result result;
    ax_sampler_state(run->sampler, drawn);
    ax_status status = compute(run, &hyper, &targets, &result);
    if (run->given_up)
        return undo_step(run, drawn);
    AX_TRY(status);
    run->tokens += targets;
    run->result->loss = result.loss;
    double per_token = ax_model_config_flops_per_token(&run->model, c->model.seq_len);
    ax_metrics_step row = {.step = step,
                           .loss = result.loss,
                           .grad_norm = result.grad_norm,
                           .lr = hyper.lr,
                           .tokens = run->tokens,
                           .step_tokens = c->train.global_batch * c->model.seq_len,
                           .flops = per_token * (double)(c->train.global_batch * c->model.seq_len),
                           .hw_flops = run->ctx->dev->flops - flops,
                           .mem_bytes = held_bytes(run),
                           .skipped = !result.finite,
                           .loss_scale = c->train.precision == AX_CONFIG_FP16 ? result.loss_scale : 0};
    AX_TRY(ax_run_exchange(run, &row));
    row.step_ms = (ax_now() - run->step_began) * 1e3;
    ax_event_add(run->ctx->dev->ring, "step", "train", run->step_began, ax_now(), 0);
    if (run->metrics)
        ax_run_note_trouble(run, ax_metrics_step_add(run->metrics, &row));
    return result.finite ? AX_OK : ax_comm_agree(run->world, handle_nonfinite(run, &result));
}

/* Whether something that happens every `interval` steps (0: only at the end) is due after `step`. */
static bool is_due(int64_t step, int64_t interval, int64_t last)
{
    return step == last || (interval && step && step % interval == 0);
}

/* Names the signal. With several ranks it may not be the one that the user sent: launchers pass on another
 * one. */
static const char *signal_name(const ax_run *run)
{
    return ax_comm_size(run->world) > 1 ? "a signal" : strsignal(run->signal);
}

/* Returns AX_ERR_SIGNAL with the message of a run that a signal stopped. */
static ax_status fail_stopped(const ax_run *run)
{
    char given_up[96] = "";
    if (run->given_up)
        snprintf(given_up, sizeof given_up, "; step %lld still ran ten seconds later and is dropped",
                 (long long)run->given_up);
    return ax_fail(AX_ERR_SIGNAL,
                   "stopped by %s after step %lld, which is saved%s; run the same command to resume",
                   signal_name(run), (long long)run->step, given_up);
}

/* Does what is due between two steps: an evaluation, a checkpoint, the stop that a signal asks for. All ranks
 * decide alike, from what the last exchange told them. */
static ax_status boundary(ax_run *run)
{
    const ax_config *c = run->config;
    bool save = is_due(run->step, c->run.checkpoint_interval, c->train.steps);
    if (run->eval_pending || run->signal || save || ax_comm_size(run->world) == 1)
        AX_TRY(ax_run_agree(run));
    if (run->eval_pending)
        AX_TRY(ax_run_evaluate(run));
    if (run->signal || save)
        AX_TRY(ax_run_save(run));
    if (run->signal && (run->step < c->train.steps || run->eval_pending))
        return ax_comm_agree(run->world, fail_stopped(run));
    return AX_OK;
}

static ax_status loop(ax_run *run)
{
    const ax_config *c = run->config;
    if (c->run.eval_start && !run->step)
        run->eval_pending = run->valid.n;
    if (run->eval_pending)
        AX_TRY(boundary(run));
    while (run->step < c->train.steps) {
        AX_TRY(train_step(run));
        run->eval_pending =
            run->valid.n && !run->given_up && is_due(run->step, c->run.eval_interval, c->train.steps);
        AX_TRY(boundary(run));
    }
    return ax_run_agree(run);
}

void ax_run_finish(ax_run *run)
{
    ax_metrics_close(&run->metrics);
    ax_engine_destroy(&run->engine);
    ax_ctx_destroy(&run->ctx);
    ax_run_plan_fini(&run->plan);
    ax_trace_destroy(&run->trace);
    ax_sampler_destroy(&run->sampler);
    ax_sources_close(&run->train);
    ax_sources_close(&run->valid);
    ax_model_config_fini(&run->model);
    ax_tokenizer_destroy(&run->tokenizer);
    ax_run_files_fini(&run->beside);
    free(run->model_dir);
    ax_st_close(&run->model_weights);
    free(run->resume_dir);
    free(run->axes);
    free(run->row_axes);
    free(run->exchanged);
    if (run->lock)
        close(run->lock);
}

static ax_status fill_result(ax_run *run)
{
    run->result->step = run->step;
    run->result->tokens = run->tokens;
    if (run->saved_step < 0)
        return AX_OK;
    char name[64];
    snprintf(name, sizeof name, "ckpt/step-%lld", (long long)run->saved_step);
    return ax_path_join(run->config->run.dir, name, &run->result->checkpoint);
}

void ax_run_abort_unshared(ax_comm *world, ax_status status)
{
    if (status != AX_OK && ax_comm_size(world) > 1 && !ax_error_is_shared())
        ax_comm_abort(world, status, ax_error_message());
}

ax_status ax_train(ax_comm *world, ax_config *config, ax_train_result *result)
{
    ax_run run = {.world = world, .config = config, .result = result, .saved_step = -1};
    *result = (ax_train_result){.loss = NAN, .eval_loss = NAN, .bits_per_byte = NAN};
    ax_signals_install(world);
    ax_comm_set_timeout(world, config->watchdog.timeout);
    ax_status status = ax_run_start(&run, AX_RUN_TRAINS);
    if (status == AX_OK && run.step >= config->train.steps && !run.eval_pending)
        ax_log(AX_LOG_INFO,
               "nothing to do: the run in %s has finished %lld step%s and train.steps is %lld; raise "
               "train.steps to go on, or choose another run.dir",
               config->run.dir, (long long)run.step, run.step == 1 ? "" : "s",
               (long long)config->train.steps);
    if (status == AX_OK)
        status = loop(&run);
    if (status == AX_OK)
        status = ax_comm_agree(world, write_trace(&run));
    if (status == AX_OK)
        status = ax_comm_agree(world, fill_result(&run));
    ax_run_abort_unshared(world, status);
    ax_run_finish(&run);
    ax_signals_restore(world);
    return status;
}
