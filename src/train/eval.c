/* Evaluations of a run: of data.valid, and of what it recalls of run.recall.data. */
#include "train/train.h"

#include <stdlib.h>

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

/* Clears what metrics.jsonl already has of this step. The checkpoint was saved before that evaluation, but an
 * earlier resume from the same checkpoint may have run the evaluation. */
static ax_status find_rows(const ax_train_run *run, ax_train_pending *pending)
{
    ax_history history;
    AX_TRY(ax_history_read(run->config->run.dir, &history));
    for (int i = 0; i < history.n; i++) {
        const ax_history_point *p = &history.point[i];
        pending->eval &= p->step != run->state.step || p->kind != AX_POINT_EVAL;
        pending->recall &= p->step != run->state.step || p->kind != AX_POINT_RECALL;
    }
    ax_history_fini(&history);
    return AX_OK;
}

ax_status ax_train_eval_missing(const ax_train_run *run, ax_train_pending *pending)
{
    if (!pending->eval && !pending->recall)
        return AX_OK;
    AX_TRY(ax_comm_agree(run->world, ax_train_first(run) ? find_rows(run, pending) : AX_OK));
    const bool first = ax_train_first(run);
    int64_t value[] = {first && pending->eval, first && pending->recall};
    AX_TRY(ax_train_max(run, value, 2));
    *pending = (ax_train_pending){value[0], value[1]};
    return AX_OK;
}

ax_status ax_train_evaluate(const ax_train_run *run, ax_evaluation *out)
{
    double start = ax_now();
    AX_TRY(evaluate(run, out));
    return ax_comm_agree(run->world, ax_report_evaluation(run, out, ax_now() - start));
}

/* ---- recall -------------------------------------------------------------------------------------- */

/* Counts what the model recalls of source i of run.recall.data. */
static ax_status recall_source(const ax_train_run *run, int i, ax_metrics_recall *out)
{
    const ax_sources *sources = &run->inputs.recall;
    ax_recall recall;
    AX_TRY(ax_engine_recall(run->state.engine, sources->data[i], &run->inputs.recall_shape, no_signal, NULL,
                            &recall));
    const ax_recall_sum sum = ax_recall_add_up(&recall, 0, recall.documents);
    const double documents = (double)recall.documents, targets = (double)sum.tokens;
    *out = (ax_metrics_recall){.source = sources->path[i],
                               .documents = recall.documents,
                               .recalled = sum.recalled,
                               .before_error = (double)sum.right / documents,
                               .likeliest = (double)sum.likeliest / targets,
                               .loss = sum.loss / targets};
    ax_recall_fini(&recall);
    return AX_OK;
}

ax_status ax_train_recall(const ax_train_run *run)
{
    const int n = run->inputs.recall.n;
    const double start = ax_now();
    ax_metrics_recall *row;
    AX_TRY(ax_comm_agree(run->world, ax_calloc((size_t)n, sizeof *row, &row)));
    ax_status status = AX_OK;
    for (int i = 0; i < n && status == AX_OK; i++)
        status = recall_source(run, i, &row[i]);
    if (status == AX_OK)
        status = ax_comm_agree(run->world, run->report.metrics
                                               ? ax_metrics_recall_add(run->report.metrics, run->state.step,
                                                                       row, n, ax_now() - start)
                                               : AX_OK);
    free(row);
    return status;
}
