/* Evaluation of a run on data.valid. */
#include "engine/train.h"

#include <math.h>

static bool no_signal(void *user, int64_t done, int64_t total)
{
    (void)user, (void)done, (void)total;
    return !ax_signal_pending();
}

static ax_status evaluate(ax_run *run, ax_evaluation *out)
{
    *out = (ax_evaluation){0};
    int64_t max_rows = run->config->run.eval_batches * run->config->train.micro_batch;
    for (int i = 0; i < run->valid.n; i++)
        AX_TRY(ax_engine_eval_data(run->engine, run->valid.data[i], &run->shape, max_rows, no_signal, NULL,
                                   out));
    return AX_OK;
}

/* Clears *pending if metrics.jsonl already has the evaluation of this step. The checkpoint says that it was
 * not done, but the run may have been resumed from it before. */
static ax_status find_eval_row(const ax_run *run, bool *pending)
{
    ax_history history;
    AX_TRY(ax_history_read(run->config->run.dir, &history));
    for (int i = 0; i < history.n; i++)
        if (history.point[i].eval && history.point[i].step == run->step)
            *pending = false;
    ax_history_fini(&history);
    return AX_OK;
}

ax_status ax_run_find_evaluation(ax_run *run)
{
    bool pending = run->eval_pending && ax_run_first(run);
    if (!run->eval_pending)
        return AX_OK;
    AX_TRY(ax_comm_agree(run->world, pending ? find_eval_row(run, &pending) : AX_OK));
    int64_t value = pending;
    AX_TRY(ax_run_max(run, &value, 1));
    run->eval_pending = value;
    return AX_OK;
}

ax_status ax_run_evaluate(ax_run *run)
{
    ax_evaluation e;
    double start = ax_now();
    ax_status status = evaluate(run, &e);
    run->eval_pending = status == AX_ERR_SIGNAL;
    bool done = true;
    if (run->eval_pending) /* the loop sees the signal and saves; the resumed run evaluates */
        return ax_run_beat(run, &done);
    AX_TRY(status);
    run->result->eval_loss = e.loss;
    run->result->bits_per_byte = e.bits_per_byte;
    ax_status written = AX_OK;
    if (run->metrics)
        written =
            ax_metrics_eval_add(run->metrics, run->step, e.loss,
                                isnan(e.bits_per_byte) ? -1 : e.bits_per_byte, e.targets, ax_now() - start);
    return ax_comm_agree(run->world, written);
}
