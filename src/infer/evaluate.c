/* Evaluation of a model on token sources: its loss, and what it recalls of documents. */
#include "infer/evaluate.h"
#include "engine/fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
        n = ax_min(ax_engine_eval_rows(engine), rows - r.done);
        AX_TRY(call_progress(ax_engine_params(engine)->ctx->world, &r, progress, user));
        AX_TRY(ax_engine_eval(engine, read_rows, &r, n, &loss));
        sum += loss;
    }
    bool whole = rows == all && !(shape->answers && ax_data_describe(data)->targets >= 0);
    add(evaluation, ax_data_describe(data), shape, whole, ax_engine_model(engine)->config.vocab, sum,
        targets);
    return AX_OK;
}

/* ---- recall -------------------------------------------------------------------------------------- */

void ax_recall_fini(ax_recall *recall)
{
    free(recall->document);
    free(recall->start);
    free(recall->first);
    free(recall->loss);
    free(recall->rank);
    *recall = (ax_recall){0};
}

ax_recall_sum ax_recall_add_up(const ax_recall *recall, int64_t first, int64_t end)
{
    ax_recall_sum sum = {0};
    for (int64_t d = first; d < end; d++) {
        bool right = true;
        sum.tokens += recall->first[d + 1] - recall->first[d];
        for (int64_t at = recall->first[d]; at < recall->first[d + 1]; at++) {
            right = right && recall->rank[at] == 0;
            sum.right += right;
            sum.likeliest += recall->rank[at] == 0;
            sum.loss += recall->loss[at];
        }
        sum.recalled += right;
    }
    return sum;
}

/* Sets *longest to the number of tokens of the longest excerpt of the sources, at most `most`. */
static ax_status find_longest(ax_data *const *sources, int n, const ax_excerpt *x, int64_t most,
                              int64_t *longest)
{
    *longest = 0;
    for (int i = 0; i < n; i++) {
        int64_t here = x->prompt + x->target;
        if (!x->prompt)
            AX_TRY(ax_data_longest(sources[i], most, &here));
        *longest = ax_max(*longest, ax_min(here, most));
    }
    return AX_OK;
}

static ax_status pack_excerpts(ax_data *data, const ax_row_shape *shape, int64_t *left_out)
{
    const ax_excerpt *x = &shape->excerpt;
    ax_data_packed packed;
    AX_CHECK(ax_data_describe(data)->documents >= 0, AX_ERR_USAGE,
             "%s has no index of documents: make a token file with `axonn data build`", ax_data_path(data));
    AX_TRY(ax_data_pack(data, shape, &packed));
    AX_CHECK(packed.documents, AX_ERR_DATA,
             "%s: no document of %lld has the %lld tokens of a prompt and a target: give longer documents, "
             "or shorter prompts and targets",
             ax_data_path(data), (long long)packed.left_out, (long long)(ax_max(x->prompt, 1) + x->target));
    if (left_out)
        *left_out = packed.left_out;
    return AX_OK;
}

ax_status ax_recall_check(const ax_excerpt *x, int64_t seq_len)
{
    const int64_t prompt = ax_max(x->prompt, 1),
                  most = x->document ? ax_min(x->document, seq_len + 1) : seq_len + 1;
    AX_CHECK(x->target > 0 && prompt + x->target <= most, AX_ERR_USAGE,
             "a target of %lld token%s after a prompt of %lld does not fit into the %lld tokens that are "
             "read of a document: both have 1 token or more, and together at most these",
             (long long)x->target, x->target == 1 ? "" : "s", (long long)prompt, (long long)most);
    return AX_OK;
}

ax_status ax_recall_pack(ax_data *const *sources, int n, const ax_excerpt *excerpt, int64_t positions,
                         ax_row_shape *shape, int64_t *left_out)
{
    ax_excerpt x = *excerpt;
    const int64_t most = shape->seq_len ? shape->seq_len : positions;
    int64_t longest;
    AX_TRY(ax_recall_check(&x, most));
    if (!x.document)
        x.document = INT64_MAX;
    if (!x.prompt)
        x.document = ax_min(x.document, most + 1);
    AX_TRY(find_longest(sources, n, &x, ax_min(x.document, most + 1), &longest));
    longest = ax_max(longest, ax_max(x.prompt, 1) + x.target);
    if (!x.prompt)
        x.document = ax_min(x.document, longest);
    *shape = (ax_row_shape){.seq_len = shape->seq_len ? shape->seq_len : longest - 1,
                            .mask_documents = shape->mask_documents,
                            .pack = AX_PACK_DOCUMENTS,
                            .excerpt = x};
    for (int i = 0; i < n; i++)
        AX_TRY(pack_excerpts(sources[i], shape, left_out ? &left_out[i] : NULL));
    return AX_OK;
}

/* The documents of a source while they are scored. */
typedef struct documents {
    const ax_data *data;
    const ax_row_shape *shape;
    ax_data_piece *piece; /* [n], in the order of rows */
    int64_t n;
    uint64_t *target; /* room for a bit for each token of a row */
} documents;

/* Sets bit i % 64 of d->target[i / 64] if token i + 1 of a piece is in the target of its document. */
static ax_status mark_target(const documents *d, const ax_data_piece *piece)
{
    const int64_t before = d->shape->excerpt.target ? piece->length - d->shape->excerpt.target : 0;
    if (d->shape->answers)
        AX_TRY(ax_data_mask(d->data, piece->start + 1, piece->length, d->target));
    else
        memset(d->target, 0xff, (size_t)ax_ceil_div(piece->length, 64) * sizeof *d->target);
    for (int64_t i = 0; i < before; i++)
        d->target[i / 64] &= ~(UINT64_C(1) << i % 64);
    return AX_OK;
}

static bool is_target(const documents *d, int64_t i) { return d->target[i / 64] >> i % 64 & 1; }

/* Finds where the scores of each document go. */
static ax_status find_targets(const documents *d, ax_recall *out)
{
    for (int64_t p = 0; p < d->n; p++) {
        const ax_data_piece *piece = &d->piece[p];
        int64_t first = piece->length, tokens = 0;
        AX_TRY(mark_target(d, piece));
        for (int64_t i = piece->length - 1; i >= 0; i--)
            if (is_target(d, i)) {
                first = i;
                tokens++;
            }
        out->document[piece->index] = piece->document;
        out->start[piece->index] = piece->start + 1 + first;
        out->first[piece->index + 1] = tokens;
    }
    for (int64_t i = 0; i < d->n; i++)
        out->first[i + 1] += out->first[i];
    return AX_OK;
}

static ax_status allocate(documents *d, ax_recall *out)
{
    out->documents = d->n;
    AX_TRY(ax_calloc((size_t)ax_ceil_div(d->shape->seq_len, 64), sizeof *d->target, &d->target));
    AX_TRY(ax_calloc((size_t)d->n, sizeof *out->document, &out->document));
    AX_TRY(ax_calloc((size_t)d->n, sizeof *out->start, &out->start));
    AX_TRY(ax_calloc((size_t)d->n + 1, sizeof *out->first, &out->first));
    AX_TRY(find_targets(d, out));
    AX_TRY(ax_calloc((size_t)out->first[d->n], sizeof *out->loss, &out->loss));
    return ax_calloc((size_t)out->first[d->n], sizeof *out->rank, &out->rank);
}

/* Copies the scores of a document's target. `row`: the scores of the row in which the document is. */
static ax_status take_target(const documents *d, const ax_data_piece *piece, const ax_target_scores *row,
                             const ax_recall *out)
{
    int64_t to = out->first[piece->index];
    AX_TRY(mark_target(d, piece));
    for (int64_t i = 0; i < piece->length; i++)
        if (is_target(d, i)) {
            out->loss[to] = row->loss[piece->position + i];
            out->rank[to++] = row->rank[piece->position + i];
        }
    return AX_OK;
}

/* Scores all rows. */
static ax_status score_rows(ax_engine *engine, reader *r, const documents *d, ax_eval_progress_fn *progress,
                            void *user, const ax_recall *out)
{
    const int64_t T = r->shape->seq_len;
    for (int64_t p = 0, rows; r->done < r->rows; r->done += rows) {
        ax_target_scores scores;
        rows = ax_min(ax_engine_eval_rows(engine), r->rows - r->done);
        AX_TRY(call_progress(ax_engine_params(engine)->ctx->world, r, progress, user));
        AX_TRY(ax_engine_score(engine, read_rows, r, rows, &scores));
        for (; p < d->n && d->piece[p].row < r->done + rows; p++) {
            const int64_t at = (d->piece[p].row - r->done) * T;
            AX_TRY(
                take_target(d, &d->piece[p], &(ax_target_scores){scores.loss + at, scores.rank + at}, out));
        }
    }
    return AX_OK;
}

ax_status ax_engine_recall(ax_engine *engine, const ax_data *data, const ax_row_shape *shape,
                           ax_eval_progress_fn *progress, void *user, ax_recall *out)
{
    const int64_t rows = ax_data_rows(data, shape);
    ax_comm *world = ax_engine_params(engine)->ctx->world;
    documents d = {.data = data, .shape = shape};
    *out = (ax_recall){0};
    ax_status status = ax_data_pieces(data, &d.piece, &d.n);
    if (status == AX_OK)
        status = allocate(&d, out);
    status = ax_comm_agree(world, status);
    AX_ASSERT(status != AX_OK || out->first); /* agreeing hides no failure of this rank */
    reader r = {data, shape, rows, rows, 0};
    if (status == AX_OK)
        status = score_rows(engine, &r, &d, progress, user, out);
    free(d.piece);
    free(d.target);
    if (status != AX_OK)
        ax_recall_fini(out);
    out->left_out = status == AX_OK ? ax_data_describe(data)->documents - d.n : 0;
    return status;
}

/* ---- models in directories ----------------------------------------------------------------------- */

/* What is done with an engine that has the weights of a model. */

ax_status ax_pretrained_use_engine(ax_ctx *ctx, const ax_pretrained *model, const ax_loki *loki,
                                   const ax_row_shape *shape, int64_t batch, bool scores,
                                   ax_engine_use_fn *use, void *user)
{
    ax_engine_options options = {.model = &model->config,
                                 .seq_len = shape->seq_len,
                                 .micro_batch = batch,
                                 .whole_rows = !shape->mask_documents,
                                 .scores = scores,
                                 .loki = loki,
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
    status = ax_memory_admit(ctx, &plan.memory, plan.axes, what,
                             "evaluate fewer rows at a time, use bf16 or fp16, or use more ranks");
    if (status == AX_OK)
        status = ax_comm_agree(ctx->world, ax_engine_create(ctx, &options, &plan, 0, &engine));
    if (status == AX_OK) {
        status = ax_grid_prepare(ctx->grid, plan.axes);
        if (status == AX_OK)
            status = ax_pretrained_load(model, ax_engine_params(engine));
        if (status == AX_OK && loki && loki == model->loki)
            status =
                ax_comm_agree(ctx->world, ax_pretrained_load_turns(model, ax_engine_model(engine)->root));
        if (status == AX_OK)
            status = use(user, engine);
        /* If only this rank failed, the job ends here, before ax_engine_destroy frees the buffers of messages
         * in flight. */
        ax_comm_abort_unshared(ctx->world, status);
        ax_engine_destroy(&engine);
    }
    ax_engine_plan_fini(&plan);
    return status;
}

typedef struct evaluation_job {
    const ax_data *const *sources;
    int n;
    const ax_row_shape *shape;
    ax_eval_progress_fn *progress;
    void *user;
    ax_evaluation *loss;
    ax_recall *recall;
} evaluation_job;

static ax_status evaluate_loss(void *user, ax_engine *engine)
{
    const evaluation_job *j = user;
    return ax_engine_eval_data(engine, *j->sources, j->shape, 0, j->progress, j->user, j->loss);
}

static ax_status evaluate_recall(void *user, ax_engine *engine)
{
    const evaluation_job *j = user;
    for (int i = 0; i < j->n; i++)
        AX_TRY(ax_engine_recall(engine, j->sources[i], j->shape, j->progress, j->user, &j->recall[i]));
    return AX_OK;
}

ax_status ax_pretrained_eval(ax_ctx *ctx, const ax_pretrained *model, const ax_data *data,
                             const ax_row_shape *shape, int64_t batch, ax_eval_progress_fn *progress,
                             void *user, ax_evaluation *out)
{
    evaluation_job job = {&data, 1, shape, progress, user, out, NULL};
    *out = (ax_evaluation){0};
    return ax_pretrained_use_engine(ctx, model, model->loki, shape, batch, false, evaluate_loss, &job);
}

ax_status ax_pretrained_recall(ax_ctx *ctx, const ax_pretrained *model, const ax_data *const *sources, int n,
                               const ax_row_shape *shape, int64_t batch, ax_eval_progress_fn *progress,
                               void *user, ax_recall *out)
{
    evaluation_job job = {sources, n, shape, progress, user, NULL, out};
    memset(out, 0, (size_t)n * sizeof *out);
    return ax_pretrained_use_engine(ctx, model, model->loki, shape, batch, true, evaluate_recall, &job);
}
