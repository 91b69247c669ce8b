/* The end of a training step without a model: matrices of a pipeline stage, whose gradients are reduced over
 * the replicas and which AdamW updates. */
#include "bench/bench.h"

#include <stdio.h>
#include <stdlib.h>

enum { ROW = 1024, ROWS = 1024 }; /* elements of a row, and most rows of a matrix */

static ax_status declare(bench_update *u, int stage, int64_t index, int64_t rows)
{
    char name[64];
    ax_param *p;
    snprintf(name, sizeof name, "stage%d.matrix%lld", stage, (long long)index);
    AX_TRY(ax_param_create(u->ctx, name, 2, (int64_t[]){rows, ROW}, (int64_t[]){1, 1},
                           (ax_role[]){AX_ROLE_NONE, AX_ROLE_NONE}, AX_INIT_ZERO, 0, &p));
    p->place = stage == ax_grid_coord(u->ctx->grid, ax_grid_rank(u->ctx->grid), AX_PIPE) ? AX_PARAM_HERE
                                                                                         : AX_PARAM_AWAY;
    u->param[u->params++] = p;
    return AX_OK;
}

/* Declares the matrices of all stages: `rows` rows for each stage. */
static ax_status declare_all(bench_update *u, int64_t rows)
{
    int stages = ax_grid_axis_size(u->ctx->grid, AX_PIPE);
    int64_t each = ax_ceil_div(rows, ROWS);
    AX_TRY(ax_calloc((size_t)(each * stages), sizeof(ax_param *), &u->param));
    for (int s = 0; s < stages; s++)
        for (int64_t i = 0; i < each; i++)
            AX_TRY(declare(u, s, i, ax_min(ROWS, rows - i * ROWS)));
    return AX_OK;
}

static ax_status check_chunk(const bench_update *u)
{
    const ax_offload *by = &u->ctx->parallel.offload;
    AX_CHECK(
        !by->chunk || ax_offload_chunk(u->set), AX_ERR_USAGE,
        "--chunk %lld has no effect: gradients are reduced in chunks if the update brings offloaded state "
        "to the device bucket by bucket, that is with --offload host --update device or --offload file "
        "(the flag for virtual stages is --chunks)",
        (long long)by->chunk);
    return AX_OK;
}

ax_status bench_update_make(ax_ctx *ctx, int64_t elements, bench_update *u)
{
    const ax_optim *adamw;
    int64_t rows = ax_ceil_div(elements, ROW);
    *u = (bench_update){.ctx = ctx, .elements = rows * ROW};
    AX_TRY(ax_optim_find("adamw", &adamw));
    AX_TRY(declare_all(u, rows));
    AX_TRY(ax_param_set_create(ctx, u->param, u->params, adamw->moments, &u->set));
    AX_TRY(check_chunk(u));
    AX_TRY(ax_param_set_init(u->set));
    AX_TRY(ax_updater_create(adamw, u->set, &u->updater));
    AX_TRY(ax_ctx_alloc(ctx, AX_MEMORY_BATCH, (size_t)(1 + u->params) * sizeof *u->numbers,
                        (void **)&u->numbers));
    return ax_run_fill(ctx->stream, &(ax_fill_args){.n = 1, .value = 0, .y = u->numbers, .dtype = AX_F64});
}

void bench_update_fini(bench_update *u)
{
    if (u->numbers)
        ax_ctx_free(u->ctx, AX_MEMORY_BATCH, u->numbers, (size_t)(1 + u->params) * sizeof *u->numbers);
    ax_updater_destroy(&u->updater);
    ax_param_set_destroy(&u->set);
    for (int i = 0; i < u->params; i++)
        ax_param_destroy(&u->param[i]);
    free(u->param);
    *u = (bench_update){0};
}

ax_status bench_update_begin(bench_update *u, ax_frame *frame)
{
    AX_TRY(ax_param_set_zero_grad(u->set));
    AX_TRY(ax_frame_begin(frame, "gradients", AX_MODE_TRAIN, NULL));
    for (int i = 0; i < u->params; i++) {
        ax_param *p = u->param[i];
        ax_tensor grad;
        bool fresh;
        if (!ax_param_is_owned(p))
            continue;
        AX_TRY(ax_param_grad_target(frame, p, &p->sum.layout, &grad, &fresh));
        AX_TRY(ax_run_fill(u->ctx->stream, &(ax_fill_args){.n = ax_tensor_count(u->ctx->grid, &grad),
                                                           .value = 1,
                                                           .y = grad.data,
                                                           .dtype = grad.dtype}));
        AX_TRY(ax_param_add_grad(frame, p, &grad));
    }
    return ax_frame_at_end(frame, NULL, NULL);
}

static ax_hyper next_step(bench_update *u)
{
    return (ax_hyper){
        .lr = 1e-4, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = ++u->steps};
}

ax_status bench_update_end(bench_update *u)
{
    double *sumsq = u->numbers + 1;
    const ax_hyper hyper = next_step(u);
    if (ax_offload_chunk(u->set)) {
        AX_TRY(ax_updater_step_reducing(u->updater, u->numbers, 1, 1, &hyper));
    } else {
        AX_TRY(ax_param_set_sync_grad(u->set));
        AX_TRY(ax_param_set_grad_sumsq(u->set, sumsq));
        AX_TRY(ax_updater_clip(u->updater, sumsq, u->numbers, 1, 1, 0));
        AX_TRY(ax_updater_step(u->updater, &hyper));
    }
    return ax_stream_wait(u->ctx->stream);
}

ax_status bench_update_time_parts(bench_update *u, ax_frame *frame, double *reduction, double *seconds)
{
    const ax_hyper hyper = next_step(u);
    AX_TRY(bench_update_begin(u, frame));
    AX_TRY(ax_barrier(u->ctx->world));
    double begin = ax_now();
    AX_TRY(ax_param_set_sync_grad(u->set));
    AX_TRY(ax_stream_wait(u->ctx->stream));
    *reduction = ax_now() - begin;
    AX_TRY(ax_barrier(u->ctx->world));
    begin = ax_now();
    AX_TRY(ax_updater_step(u->updater, &hyper));
    AX_TRY(ax_stream_wait(u->ctx->stream));
    *seconds = ax_now() - begin;
    return AX_OK;
}
