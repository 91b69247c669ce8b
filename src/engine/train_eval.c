/* Evaluation of a run on data.valid: the mean loss over every target, and bits per byte. */
#include "engine/train.h"

#include <math.h>

typedef struct reader {
    const ax_data *data;
    const ax_row_shape *shape;
} reader;

static ax_status read_rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    const reader *r = source;
    AX_CHECK(!ax_signal_pending(), AX_ERR_SIGNAL, "evaluation interrupted");
    for (int64_t row = first; row < end; row++)
        AX_TRY(ax_data_row(r->data, r->shape, row, out, row - first, NULL));
    return AX_OK;
}

static ax_status evaluate(ax_run *run, ax_evaluation *out)
{
    int64_t limit = run->config->run.eval_batches * run->config->train.micro_batch;
    *out = (ax_evaluation){0};
    for (int i = 0; i < run->valid.n; i++) {
        reader r = {run->valid.data[i], &run->shape};
        int64_t all = ax_data_rows(r.data, r.shape), rows = limit ? ax_min(limit, all) : all, targets = 0;
        double sum;
        AX_TRY(ax_engine_eval(run->engine, read_rows, &r, rows, &sum));
        for (int64_t row = 0; row < rows; row++)
            targets += ax_data_row_targets(r.data, r.shape, row);
        ax_evaluation_add(out, ax_data_describe(r.data), rows == all, run->model.vocab, sum, targets);
    }
    return AX_OK;
}

ax_status ax_run_evaluate(ax_run *run)
{
    ax_evaluation e;
    double start = ax_now();
    if (!run->valid.n)
        return AX_OK;
    ax_status status = evaluate(run, &e);
    if (status == AX_ERR_SIGNAL)
        return AX_OK; /* the loop sees the signal and saves */
    AX_TRY(status);
    run->result->eval_loss = e.loss;
    run->result->bits_per_byte = e.bits_per_byte;
    return ax_metrics_eval_add(run->metrics, run->step, e.loss, isnan(e.bits_per_byte) ? -1 : e.bits_per_byte,
                               e.targets, ax_now() - start);
}
