/* A training run: checks and plans everything, then allocates, then loops over the steps. */
#include "train/train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- start-up stages ----------------------------------------------------------------------------- */

static ax_status compare_configs(ax_train_run *run) { return ax_train_compare_configs(run); }
static ax_status set_runtime(ax_train_run *run) { return ax_train_set_runtime(run); }
static ax_status check_inputs(ax_train_run *run) { return ax_train_check_inputs(run); }
static ax_status open_model(ax_train_run *run) { return ax_train_open_model(run, &run->inputs); }
static ax_status choose_grid(ax_train_run *run) { return ax_train_choose_grid(run); }
static ax_status lock(ax_train_run *run) { return ax_train_lock(run, &run->dir); }
static ax_status plan_grid(ax_train_run *run) { return ax_train_plan_grid(run, &run->plan); }
static ax_status plan_ranks(ax_train_run *run) { return ax_train_plan_ranks(run, &run->plan); }
static ax_status plan_threads(ax_train_run *run) { return ax_train_plan_threads(run, &run->plan); }
static ax_status plan_step(ax_train_run *run) { return ax_train_plan_step(run, &run->plan); }
static ax_status plan_engine(ax_train_run *run) { return ax_train_plan_engine(run, &run->plan); }
static ax_status find_resume(ax_train_run *run) { return ax_train_find_resume(run, &run->resume); }
static ax_status resume_runtime(ax_train_run *run) { return ax_train_resume_runtime(run); }
static ax_status find_files(ax_train_run *run) { return ax_train_find_files(run, &run->beside); }
static ax_status check_space(ax_train_run *run) { return ax_train_check_space(run); }
static ax_status listen(ax_train_run *run) { return ax_report_listen(run, &run->report); }
static ax_status write_config(ax_train_run *run) { return ax_train_write_config(run); }
static ax_status open_metrics(ax_train_run *run) { return ax_report_open_metrics(run, &run->report); }

/* Sets the length of rows of a plan without data, if it follows from the data: the longest that a run may
 * choose. In a run that trains, the data decide (ax_train_open_data), or the checkpoint that the run
 * continues.
 */
static ax_status set_length(ax_train_run *run)
{
    ax_config *c = run->config;
    if (c->model.seq_len || run->purpose == AX_TRAIN_TRAINS)
        return AX_OK;
    c->model.seq_len = ax_min(ax_model_config_positions(&run->inputs.model), AX_ROW_MOST);
    ax_log(
        AX_LOG_INFO,
        "rows have %lld tokens, the most that a run chooses by its data; model.seq_len sets another length",
        (long long)c->model.seq_len);
    return AX_OK;
}

/* Plans the memory once the data have decided how long rows are, unless the length was known before. */
static ax_status plan_rows(ax_train_run *run)
{
    if (run->plan.engine.frame)
        return AX_OK;
    AX_TRY(plan_step(run));
    return plan_engine(run);
}

static ax_status open_data(ax_train_run *run)
{
    return ax_train_open_data(run, &run->inputs, &run->state.signal);
}

static ax_status carry_template(ax_train_run *run) { return ax_train_carry_template(run); }

static ax_status restore_position(ax_train_run *run)
{
    int64_t read[run->inputs.train.n];
    memset(read, 0, sizeof read);
    ax_train_position at = {.read = read};
    AX_TRY(ax_train_restore_position(run, &run->resume, &at));
    run->state.step = at.step;
    run->state.tokens = at.tokens;
    run->state.pending = at.pending;
    AX_TRY(ax_train_derive_steps(run, at.step, read));
    return ax_train_create_sampler(run, at.step, read, &run->state.sampler);
}

/* Plans the learning rate, once train.steps is known: epochs in data.train may have set it. */
static ax_status plan_schedule(ax_train_run *run)
{
    AX_TRY(ax_train_plan_schedule(run, &run->plan));
    return ax_train_log_changes(run);
}

/* Sets which ranks agree whether to abandon a step after a signal. While the step's rows are chosen, these
 * are all ranks. While micro-batches are computed, they are only the ranks of one pipeline stage, because
 * other stages are at different micro-batches. */
static ax_status find_pace(ax_train_run *run)
{
    ax_train_state *s = &run->state;
    const ax_grid *grid = s->ctx->grid;
    if (run->plan.grid.of[AX_PIPE] > 1)
        AX_TRY(ax_comm_split(run->world, ax_grid_coord(grid, ax_grid_rank(grid), AX_PIPE), 0, &s->stage));
    s->drawing.ranks = run->world;
    s->computing.ranks = s->stage ? s->stage : run->world;
    return AX_OK;
}

static ax_status allocate(ax_train_run *run)
{
    ax_memory_restart_peak(); /* the reported peak of memory does not include tokenization */
    ax_report_baseline(&run->report);
    AX_TRY(ax_train_open_device(&run->plan, &run->state.ctx));
    AX_TRY(ax_report_peak(run, &run->report));
    ax_memory_restart_peak();
    AX_TRY(ax_comm_agree(run->world, ax_engine_create(run->state.ctx, &run->plan.options, &run->plan.engine,
                                                      0, &run->state.engine)));
    AX_TRY(ax_grid_prepare(run->state.ctx->grid, run->plan.engine.axes));
    AX_TRY(find_pace(run));
    /* The axes are listed after the model is built, because building the model may factor the grid axis x
     * into two axes (ax_grid_factor). */
    return ax_report_axes(run, &run->report);
}

static ax_status start_weights(ax_train_run *run)
{
    AX_TRY(ax_train_start_weights(run));
    if (run->resume.dir && !run->resume.new_run)
        run->state.saved_step = run->state.step;
    ax_inputs_close_weights(&run->inputs);
    return AX_OK;
}

static ax_status keep_plans(ax_train_run *run)
{
    AX_TRY(ax_train_keep_plans(run, &run->state.keeps_plans));
    return run->state.keeps_plans ? AX_OK : ax_train_carry_plans(run, &run->beside);
}

static ax_status find_evaluation(ax_train_run *run)
{
    return ax_train_eval_missing(run, &run->state.pending);
}

/* Runs the start-up stages of the table below. Checks come before allocations. Only rank 0 runs the stages
 * marked FIRST. After each stage the ranks agree on its status. So no rank may fail alone in a stage while
 * other ranks wait for it in a collective: a stage fails before its collective, or calls ax_comm_agree
 * itself. After a failure, rank 0 removes the lock and the empty directories that the start has made
 * (ax_train_dir_undo). */
ax_status ax_train_start(ax_train_run *run, ax_train_purpose purpose)
{
    static const struct {
        const char *name;
        ax_status (*run)(ax_train_run *);
        enum { EACH, FIRST } who;
        ax_train_purpose least; /* the stage runs if `purpose` is this value or a greater one */
    } stage[] = {{"configuration", compare_configs, EACH, AX_TRAIN_PLANS},
                 {"runtime settings", set_runtime, EACH, AX_TRAIN_PLANS},
                 {"inputs", check_inputs, EACH, AX_TRAIN_TRAINS},
                 {"model", open_model, EACH, AX_TRAIN_PLANS},
                 {"choice of the grid", choose_grid, EACH, AX_TRAIN_PLANS},
                 {"grid", plan_grid, EACH, AX_TRAIN_PLANS},
                 {"lock", lock, FIRST, AX_TRAIN_TRAINS},
                 {"checkpoints", find_resume, EACH, AX_TRAIN_TRAINS},
                 {"length of rows", set_length, EACH, AX_TRAIN_PLANS},
                 {"ranks", plan_ranks, EACH, AX_TRAIN_PLANS},
                 {"threads", plan_threads, EACH, AX_TRAIN_PLANS},
                 {"optimizer", plan_step, EACH, AX_TRAIN_PLANS},
                 {"memory plan", plan_engine, EACH, AX_TRAIN_PLANS},
                 {"runtime settings of the checkpoint", resume_runtime, EACH, AX_TRAIN_TRAINS},
                 {"files beside the model", find_files, FIRST, AX_TRAIN_TRAINS},
                 {"data", open_data, EACH, AX_TRAIN_TRAINS},
                 {"memory plan of the data's rows", plan_rows, EACH, AX_TRAIN_TRAINS},
                 {"chat template", carry_template, FIRST, AX_TRAIN_TRAINS},
                 {"position", restore_position, EACH, AX_TRAIN_TRAINS},
                 {"schedule", plan_schedule, EACH, AX_TRAIN_PLANS},
                 {"allocation", allocate, EACH, AX_TRAIN_TRAINS},
                 {"room on the disk", check_space, FIRST, AX_TRAIN_TRAINS},
                 {"trace", listen, EACH, AX_TRAIN_TRAINS},
                 {"weights", start_weights, EACH, AX_TRAIN_TRAINS},
                 {"config.yaml", write_config, FIRST, AX_TRAIN_TRAINS},
                 {"metrics", open_metrics, FIRST, AX_TRAIN_TRAINS},
                 {"evaluation", find_evaluation, EACH, AX_TRAIN_TRAINS},
                 {"plans of GEMMs", keep_plans, EACH, AX_TRAIN_TRAINS}};
    run->purpose = purpose;
    for (size_t i = 0; i < AX_COUNT(stage); i++) {
        if (stage[i].least > purpose)
            continue;
        double begin = ax_now();
        bool mine = stage[i].who == EACH || ax_train_first(run);
        ax_status status = ax_comm_agree(run->world, mine ? stage[i].run(run) : AX_OK);
        if (status != AX_OK) {
            ax_train_dir_undo(run);
            return status;
        }
        ax_log(AX_LOG_DEBUG, "start: %s took %.1f ms", stage[i].name, (ax_now() - begin) * 1e3);
    }
    return AX_OK;
}

/* ---- steps --------------------------------------------------------------------------------------- */

/* Reads the rows of a micro-batch, once for each chunk of this pipeline stage. On the first pipeline stage,
 * returns AX_ERR_SIGNAL if the ranks abandon the step now (pace.c). On the other stages, tells the
 * first stage if this rank has received a signal. */
static ax_status read_rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    ax_train_run *run = source;
    const ax_grid *grid = run->state.ctx->grid;
    if (ax_grid_coord(grid, ax_grid_rank(grid), AX_PIPE) == 0)
        AX_TRY(ax_pace_piece(run, &run->state.computing, &run->state.signal));
    else if (ax_signal_pending())
        ax_engine_ask_stop(run->state.engine);
    return ax_sampler_read(run->state.sampler, first, end, out);
}

/* Lets the sampler choose the rows of a step, 2^14 rows at a time, and counts their targets. */
static ax_status draw_rows(ax_train_run *run, int64_t *targets)
{
    enum { PIECE = 1 << 14 };
    *targets = 0;
    for (int64_t row = 0, end, here; row < run->config->train.global_batch; row = end) {
        end = ax_min(row + PIECE, run->config->train.global_batch);
        AX_TRY(ax_pace_piece(run, &run->state.drawing, &run->state.signal));
        AX_TRY(ax_sampler_next_part(run->state.sampler, row, end, &here));
        *targets += here;
    }
    return AX_OK;
}

/* Returns how many rows of the current batch are samples. In the last step of a run by epochs the rows after
 * them are padding. */
static int64_t count_samples(const ax_train_run *run)
{
    int source = 0;
    int64_t rows = run->config->train.global_batch, sample;
    for (; rows; rows--) {
        ax_sampler_where(run->state.sampler, rows - 1, &source, &sample);
        if (source >= 0)
            break;
    }
    return rows;
}

static ax_status compute(ax_train_run *run, int64_t *targets, ax_step_result *result)
{
    ax_train_state *s = &run->state;
    ax_hyper hyper = ax_train_hyper(&run->plan, s->step);
    ax_report_begin_step(run, &run->report);
    ax_pace_begin(&s->drawing);
    AX_TRY(draw_rows(run, targets));
    ax_report_begin_traffic(&run->report);
    ax_pace_begin(&s->computing);
    ax_engine_set_samples(s->engine, count_samples(run));
    AX_TRY(ax_engine_step(s->engine, s->step, read_rows, run, *targets, &hyper));
    return ax_engine_result(s->engine, result);
}

/* Undoes an abandoned step: drops the gradients, and restores the sampler to its state `drawn` before the
 * step, so that a resumed run reads the same rows. */
static ax_status undo_step(ax_train_run *run, const int64_t *drawn)
{
    run->state.step--;
    AX_TRY(ax_sampler_restore(run->state.sampler, drawn));
    return ax_param_set_zero_grad(ax_engine_params(run->state.engine));
}

/* Returns advice for the user about a step whose loss or gradient was not finite. */
static const char *nonfinite_advice(const ax_train_run *run, const ax_step_result *r)
{
    if (r->culprit_weights)
        return "training cannot repair weights: start from an older checkpoint or another model";
#define ADVICE "lower optim.lr, or set train.nonfinite=skip to skip such steps"
    return run->config->train.precision == AX_CONFIG_FP16
               ? "fp16 ends at 65504: use train.precision=bf16, " ADVICE
               : ADVICE;
#undef ADVICE
}

/* Handles a step whose loss or gradient is not finite; its update was not applied. If the loss scale was too
 * large and has just been lowered, the run goes on. Otherwise train.nonfinite decides: AX_ERR_NUMERIC, or a
 * warning and the run goes on; but weights that are not finite always give AX_ERR_NUMERIC. */
static ax_status handle_nonfinite(const ax_train_run *run, const ax_step_result *r)
{
    char what[192] = "the loss is not finite", newest[64] = "there is no checkpoint yet";
    const ax_loss_scale *scale = ax_engine_loss_scale(run->state.engine);
    ax_report_break_line(run);
    if (r->overflow && scale->scale < r->loss_scale) {
        if (ax_train_first(run))
            ax_log(AX_LOG_INFO,
                   "step %lld is skipped: its gradient overflows fp16; the loss scale is now %g (skipped so "
                   "far: %lld)",
                   (long long)run->state.step, scale->scale, (long long)scale->skipped_steps);
        return AX_OK;
    }
    if (r->culprit)
        snprintf(what, sizeof what, "the %s of %s %s not finite%s",
                 r->culprit_weights ? "weights" : "gradient", r->culprit, r->culprit_weights ? "are" : "is",
                 r->overflow ? ", even with the smallest loss scale" : "");
    /* Skipping the step does not help if weights are not finite: the next step has the same weights. */
    if (run->config->train.nonfinite == AX_CONFIG_SKIP && !r->culprit_weights) {
        if (ax_train_first(run))
            ax_log(AX_LOG_WARN, "step %lld is skipped: %s (loss %g)", (long long)run->state.step, what,
                   r->loss);
        return AX_OK;
    }
    if (run->state.saved_step >= 0)
        snprintf(newest, sizeof newest, "the newest checkpoint is that of step %lld",
                 (long long)run->state.saved_step);
    return ax_fail(AX_ERR_NUMERIC,
                   "step %lld: %s (loss %g, gradient norm %g); the step was not applied: %s; %s",
                   (long long)run->state.step, what, r->loss, r->grad_norm, nonfinite_advice(run, r), newest);
}

static ax_status train_step(ax_train_run *run)
{
    ax_train_state *s = &run->state;
    int64_t targets, drawn[run->inputs.train.n];
    double seconds;
    ax_step_result result;
    s->step++;
    ax_sampler_state(s->sampler, drawn);
    ax_status status = compute(run, &targets, &result);
    if (status == AX_ERR_SIGNAL) {
        s->given_up = s->step;
        s->signal = s->signal ? s->signal : SIGTERM; /* only the ranks of the first pipeline stage know which
                                                        signal it was */
        return undo_step(run, drawn);
    }
    AX_TRY(status);
    s->step_targets = targets;
    s->tokens += targets;
    s->result->loss = result.loss;
    AX_TRY(ax_report_step(run, &result, &run->report, &run->trouble, &seconds, &s->signal));
    ax_pace_end(&s->computing, seconds);
    return result.finite ? AX_OK : ax_comm_agree(run->world, handle_nonfinite(run, &result));
}

/* ---- between steps ------------------------------------------------------------------------------- */

/* Returns true if an action is due after step `step`: it is due after every `interval` steps, and after step
 * `last`; if `interval` is 0, after step `last` only. */
static bool is_due(int64_t step, int64_t interval, int64_t last)
{
    return step == last || (interval && step && step % interval == 0);
}

/* Returns the name of the received signal. With several ranks returns "a signal": some launchers pass on
 * another signal than the one that the user sent. */
static const char *signal_name(const ax_train_run *run)
{
    return ax_comm_size(run->world) > 1 ? "a signal" : strsignal(run->state.signal);
}

/* Returns AX_ERR_SIGNAL, with the message that a signal stopped the run after a save. */
static ax_status fail_stopped(const ax_train_run *run)
{
    char given_up[96] = "";
    if (run->state.given_up)
        snprintf(given_up, sizeof given_up, "; step %lld still ran ten seconds later and is dropped",
                 (long long)run->state.given_up);
    return ax_fail(AX_ERR_SIGNAL,
                   "stopped by %s after step %lld, which is saved%s; run the same command to resume",
                   signal_name(run), (long long)run->state.step, given_up);
}

static bool is_pending(const ax_train_state *s) { return s->pending.eval || s->pending.recall; }

/* Evaluates data.valid. */
static ax_status evaluate_loss(ax_train_run *run)
{
    ax_train_state *s = &run->state;
    ax_evaluation e;
    AX_TRY(ax_train_evaluate(run, &e));
    s->pending.eval = false;
    run->report.no_eval_targets |= !e.targets;
    s->result->eval_loss = e.loss;
    s->result->bits_per_byte = e.bits_per_byte;
    return AX_OK;
}

static ax_status evaluate(ax_train_run *run)
{
    ax_train_state *s = &run->state;
    bool done = true;
    ax_status status = s->pending.eval ? evaluate_loss(run) : AX_OK;
    if (status == AX_OK && s->pending.recall) {
        status = ax_train_recall(run);
        s->pending.recall = status != AX_OK;
    }
    if (status == AX_ERR_SIGNAL) /* a signal interrupted it: the loop saves a checkpoint, and the resumed run
                                    evaluates */
        return ax_train_beat(run, &done, &s->signal);
    return status;
}

/* Saves a checkpoint, unless this step has one already. */
static ax_status save(ax_train_run *run)
{
    if (run->state.saved_step == run->state.step)
        return AX_OK;
    AX_TRY(ax_train_save(run));
    run->state.saved_step = run->state.step;
    return AX_OK;
}

/* Evaluates, saves a checkpoint, or stops after a signal, if any of these is due between two steps. All ranks
 * decide alike, because the values that they use were made equal on all ranks by the last exchange. */
static ax_status boundary(ax_train_run *run)
{
    const ax_config *c = run->config;
    const ax_train_state *s = &run->state;
    bool due = is_due(s->step, c->run.checkpoint_interval, c->train.steps);
    if (is_pending(s) || s->signal || due || ax_comm_size(run->world) == 1)
        AX_TRY(ax_train_agree(run));
    if (is_pending(s))
        AX_TRY(evaluate(run));
    if (s->signal || due)
        AX_TRY(save(run));
    if (s->signal && (s->step < c->train.steps || is_pending(s)))
        return ax_comm_agree(run->world, fail_stopped(run));
    return AX_OK;
}

static ax_status loop(ax_train_run *run)
{
    const ax_config *c = run->config;
    ax_train_state *s = &run->state;
    const bool valid = run->inputs.valid.n, recall = run->inputs.recall.n;
    if (c->run.eval_start && !s->step)
        s->pending = (ax_train_pending){valid, recall};
    if (is_pending(s))
        AX_TRY(boundary(run));
    while (s->step < c->train.steps) {
        AX_TRY(train_step(run));
        s->pending = (ax_train_pending){
            valid && !s->given_up && is_due(s->step, c->run.eval_interval, c->train.steps),
            recall && !s->given_up && is_due(s->step, c->run.recall.interval, c->train.steps)};
        AX_TRY(boundary(run));
    }
    return ax_train_agree(run);
}

/* ---- the whole run ------------------------------------------------------------------------------- */

void ax_train_finish(ax_train_run *run)
{
    ax_engine_destroy(&run->state.engine);
    if (run->state.stage)
        ax_comm_destroy(&run->state.stage);
    ax_ctx_destroy(&run->state.ctx);
    ax_train_plan_fini(&run->plan);
    ax_report_fini(&run->report);
    ax_sampler_destroy(&run->state.sampler);
    ax_train_files_fini(&run->beside);
    ax_resume_fini(&run->resume);
    ax_inputs_fini(&run->inputs);
    ax_train_dir_fini(&run->dir);
}

static ax_status fill_result(ax_train_run *run)
{
    run->state.result->step = run->state.step;
    run->state.result->tokens = run->state.tokens;
    if (run->state.saved_step < 0)
        return AX_OK;
    char name[64];
    snprintf(name, sizeof name, "ckpt/step-%lld", (long long)run->state.saved_step);
    return ax_path_join(run->config->run.dir, name, &run->state.result->checkpoint);
}

/* Logs that the run has nothing left to do. The advice is to raise train.steps only if a source of data.train
 * has no epochs and can fill more steps. */
static void log_finished(const ax_train_run *run)
{
    const ax_sources *train = &run->inputs.train;
    bool by_weight = !train->epochs[0];
    for (int i = 1; i < train->n; i++)
        by_weight |= !train->epochs[i];
    ax_log(AX_LOG_INFO,
           "nothing to do: the run in %s has finished %lld step%s and train.steps is %lld; %s choose another "
           "run.dir",
           run->config->run.dir, (long long)run->state.step, run->state.step == 1 ? "" : "s",
           (long long)run->config->train.steps,
           by_weight ? "raise train.steps to go on, or"
                     : "all epochs of data.train are read: give more to go on, or");
}

ax_status ax_train(ax_comm *world, ax_config *config, ax_train_result *result)
{
    ax_train_run run = {.world = world, .config = config, .state = {.result = result, .saved_step = -1}};
    *result = (ax_train_result){.loss = NAN, .eval_loss = NAN, .bits_per_byte = NAN};
    ax_signals_install(world);
    ax_comm_set_timeout(world, config->watchdog.timeout);
    ax_status status = ax_train_start(&run, AX_TRAIN_TRAINS);
    if (status == AX_OK && run.state.step >= config->train.steps && !is_pending(&run.state))
        log_finished(&run);
    if (status == AX_OK)
        status = loop(&run);
    if (status == AX_OK)
        status = ax_comm_agree(world, ax_report_write_trace(&run));
    if (status == AX_OK)
        status = ax_comm_agree(world, fill_result(&run));
    ax_comm_abort_unshared(world, status);
    ax_train_finish(&run);
    ax_signals_restore(world);
    return status;
}
