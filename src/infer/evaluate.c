/* Evaluation of a model on token sources. */
#include "axonn/infer.h"
#include "engine/machine.h"

#include <math.h>
#include <stdio.h>

typedef struct reader {
    const ax_data *data;
    const ax_row_shape *shape;
    int64_t all;  /* rows of the source */
    int64_t rows; /* rows to evaluate */
    int64_t done; /* rows evaluated so far */
} reader;

/* Returns the index, in the token source, of the i-th evaluated row. The evaluated rows are spread evenly
 * over the source, because documents are often sorted. */
static int64_t row_at(const reader *r, int64_t i) { return (int64_t)((__int128)i * r->all / r->rows); }

static ax_status read_rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    const reader *r = source;
    for (int64_t i = first; i < end; i++)
        AX_TRY(ax_data_row(r->data, r->shape, row_at(r, r->done + i), out, i - first, NULL));
    return AX_OK;
}

/* Calls `progress` on each rank. If `progress` returns false on any rank, for example because a signal
 * reached only that rank, all ranks stop. */
static ax_status call_progress(ax_comm *world, const reader *r, ax_eval_progress_fn *progress, void *user)
{
    if (!progress)
        return AX_OK;
    bool on = progress(user, r->done, r->rows);
    return ax_comm_agree(world,
                         on ? AX_OK : ax_fail(AX_ERR_SIGNAL, "the evaluation was stopped by a signal"));
}

/* Adds the results of one token source to *e. `whole`: all rows of the source were evaluated, and no mask
 * excludes tokens. If `whole` is false, or the source does not record the bytes of its text, the number of
 * text bytes becomes -1 (unknown). */
static void add(ax_evaluation *e, const ax_data_info *info, const ax_row_shape *shape, bool whole,
                int64_t vocab, double loss_sum, int64_t targets)
{
    e->loss_sum += loss_sum;
    e->targets += targets;
    e->untargeted += info->tokens - targets;
    if (info->begin_id >= 0) /* of consecutive documents that see each other, all but the first are targets */
        e->begins += shape->mask_documents || shape->pack ? info->documents : 1;
    e->bytes = whole && info->text_bytes > 0 && e->bytes >= 0 ? e->bytes + info->text_bytes : -1;
    e->loss = e->targets ? e->loss_sum / (double)e->targets : NAN;
    double bits = e->loss_sum / log(2.0) + (double)(e->untargeted - e->begins) * log2((double)vocab);
    e->bits_per_byte = e->bytes > 0 && e->targets ? bits / (double)e->bytes : NAN;
}

ax_status ax_engine_eval_data(ax_engine *engine, const ax_data *data, const ax_row_shape *shape,
                              int64_t max_rows, ax_eval_progress_fn *progress, void *user,
                              ax_evaluation *evaluation)
{
    int64_t all = ax_data_rows(data, shape), rows = max_rows > 0 ? ax_min(max_rows, all) : all, targets = 0;
    /* Each call of ax_engine_eval evaluates several micro-batches if the model has pipeline stages, so that
     * the stages work at the same time. */
    int64_t stages = ax_engine_model(engine)->stages, batches = stages > 1 ? 4 * stages : 1;
    reader r = {data, shape, all, rows, 0};
    double sum = 0;
    for (int64_t i = 0, here; i < rows; i++) {
        AX_TRY(ax_data_row_targets(data, shape, row_at(&r, i), &here));
        targets += here;
    }
    AX_CHECK(all, AX_ERR_DATA,
             "%s holds nothing to evaluate on: none of its %lld tokens follows another token",
             ax_data_path(data), (long long)ax_data_describe(data)->tokens);
    for (int64_t n; targets && r.done < rows; r.done += n) {
        double loss;
        n = ax_min(batches * ax_engine_rows(engine), rows - r.done);
        AX_TRY(call_progress(ax_engine_params(engine)->ctx->world, &r, progress, user));
        AX_TRY(ax_engine_eval(engine, read_rows, &r, n, &loss));
        sum += loss;
    }
    bool whole = rows == all && !(shape->answers && ax_data_describe(data)->targets >= 0);
    add(evaluation, ax_data_describe(data), shape, whole, ax_engine_model(engine)->config.vocab, sum,
        targets);
    return AX_OK;
}

ax_status ax_pretrained_eval(ax_ctx *ctx, const ax_pretrained *model, const ax_data *data,
                             const ax_row_shape *shape, int64_t batch, ax_eval_progress_fn *progress,
                             void *user, ax_evaluation *out)
{
    *out = (ax_evaluation){0};
    ax_engine_options options = {.model = &model->config,
                                 .seq_len = shape->seq_len,
                                 .micro_batch = batch,
                                 .whole_rows = !shape->mask_documents,
                                 .global_batch = batch * ax_grid_group_size(ctx->grid, ax_batch_axes(ctx))};
    ax_engine_plan plan;
    ax_engine *engine;
    ax_status status = ax_comm_agree(
        ctx->world, ax_engine_plan_make(&options, ctx->world, ax_grid_sizes(ctx->grid), &ctx->parallel,
                                        ctx->dev->ops.name, ctx->dev->threads, ctx->compute, &plan));
    if (status != AX_OK) {
        ax_engine_plan_fini(&plan);
        return status;
    }
    char what[96];
    snprintf(what, sizeof what, "evaluating %lld rows of %lld tokens at a time needs", (long long)batch,
             (long long)shape->seq_len);
    status = ax_memory_admit(ctx, &plan.memory, what,
                             "evaluate fewer rows at a time, use bf16 or fp16, or use more ranks");
    if (status == AX_OK)
        status = ax_comm_agree(ctx->world, ax_engine_create(ctx, &options, &plan, 0, &engine));
    if (status == AX_OK) {
        status = ax_grid_prepare(ctx->grid, plan.axes);
        if (status == AX_OK)
            status = ax_pretrained_load(model, ax_engine_params(engine));
        if (status == AX_OK)
            status = ax_engine_eval_data(engine, data, shape, 0, progress, user, out);
        /* If only this rank failed, the job ends here, before ax_engine_destroy frees the buffers of messages
         * in flight. */
        ax_comm_abort_unshared(ctx->world, status);
        ax_engine_destroy(&engine);
    }
    ax_engine_plan_fini(&plan);
    return status;
}
