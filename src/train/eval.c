/* Evaluation of a run on data.valid. */
#include "train/train.h"

static bool no_signal(void *user, int64_t done, int64_t total)
{
    (void)user, (void)done, (void)total;
    return !ax_signal_pending();
}

static ax_status evaluate(const ax_train_run *run, ax_evaluation *out)
{
    const ax_sources *valid = &run->inputs.valid;
    *out = (ax_evaluation){0};
    int64_t max_rows = run->config->run.eval_batches * run->config->train.micro_batch;
    for (int i = 0; i < valid->n; i++)
        AX_TRY(ax_engine_eval_data(run->state.engine, valid->data[i], &run->inputs.shape, max_rows, no_signal,
                                   NULL, out));
    return AX_OK;
}

/* Clears *pending if metrics.jsonl already has the evaluation of this step. The checkpoint was saved before
 * that evaluation, but an earlier resume from the same checkpoint may have run the evaluation. */
static ax_status find_eval_row(const ax_train_run *run, bool *pending)
{
    ax_history history;
    AX_TRY(ax_history_read(run->config->run.dir, &history));
    for (int i = 0; i < history.n; i++)
        if (history.point[i].eval && history.point[i].step == run->state.step)
            *pending = false;
    ax_history_fini(&history);
    return AX_OK;
}

ax_status ax_train_eval_missing(const ax_train_run *run, bool *pending)
{
    bool mine = *pending && ax_train_first(run);
    if (!*pending)
        return AX_OK;
    AX_TRY(ax_comm_agree(run->world, mine ? find_eval_row(run, &mine) : AX_OK));
    int64_t value = mine;
    AX_TRY(ax_train_max(run, &value, 1));
    *pending = value;
    return AX_OK;
}

ax_status ax_train_evaluate(const ax_train_run *run, ax_evaluation *out)
{
    double start = ax_now();
    AX_TRY(evaluate(run, out));
    return ax_comm_agree(run->world, ax_report_evaluation(run, out, ax_now() - start));
}
