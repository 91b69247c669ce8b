/* Golden cases: directories below tests/golden with a model, and reference numbers of another program in
 * golden.safetensors. */
#ifndef AX_TESTS_GOLDEN_CASE_H
#define AX_TESTS_GOLDEN_CASE_H

#include "axonn/ckpt.h"
#include "axonn/infer.h"
#include "support/check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A golden case: the model, its reference numbers, and an engine that runs it. */
typedef struct golden {
    char dir[512];
    ax_st *numbers;
    ax_pretrained model;
    ax_comm *self;
    ax_ctx *ctx;
    ax_engine *engine;
    ax_engine_plan plan;
} golden;

/* Returns the values of an array; the caller frees them. dim may be NULL. */
static inline double *array(golden *g, const char *key, int64_t dim[AX_ST_MAX_DIMS])
{
    const ax_st_array *a = ax_st_find(g->numbers, key);
    if (!a)
        fail_msg("%s has no %s", g->dir, key);
    double *out = calloc((size_t)ax_st_elements(a) + 1, sizeof *out);
    if (a->dtype == AX_I32) {
        int32_t *whole = calloc((size_t)ax_st_elements(a) + 1, sizeof *whole);
        OK(ax_st_read(g->numbers, a, NULL, NULL, false, AX_I32, whole));
        for (int64_t i = 0; i < ax_st_elements(a); i++)
            out[i] = whole[i];
        free(whole);
    } else {
        OK(ax_st_read(g->numbers, a, NULL, NULL, false, AX_F64, out));
    }
    for (int d = 0; dim && d < a->ndim; d++)
        dim[d] = a->dim[d];
    return out;
}

static inline void open_case(golden *g, const char *name, const char *device)
{
    *g = (golden){0};
    char path[600];
    snprintf(g->dir, sizeof g->dir, "%s/tests/golden/%s", AXONN_SOURCE_DIR, name);
    snprintf(path, sizeof path, "%s/golden.safetensors", g->dir);
    OK(ax_st_open(path, &g->numbers));
    OK(ax_pretrained_open(g->dir, &g->model));
    OK(ax_comm_self_create(&g->self));
    OK(ax_ctx_create(g->self, (ax_grid_size){{1}}, device, 2, AX_F32, 1, &g->ctx));
}

/* Makes an engine of the case's model, with AdamW and the model's weights. Model and optimizer of `options`
 * are set here. */
static inline void open_engine(golden *g, ax_engine_options options)
{
    options.model = &g->model.config;
    g->model.config.experts.z_loss = 0.02; /* Z_LOSS of make_decoder.py */
    OK(ax_optim_find("adamw", &options.optim));
    OK(ax_engine_plan_make(&options, g->self, (ax_grid_size){{1}}, NULL, g->ctx->dev->ops.name, 2, AX_F32,
                           &g->plan));
    OK(ax_engine_create(g->ctx, &options, &g->plan, 0, &g->engine));
    OK(ax_pretrained_load(&g->model, ax_engine_params(g->engine)));
}

static inline void close_case(golden *g)
{
    ax_engine_destroy(&g->engine);
    ax_engine_plan_fini(&g->plan);
    ax_ctx_destroy(&g->ctx);
    ax_comm_destroy(&g->self);
    ax_pretrained_close(&g->model);
    ax_st_close(&g->numbers);
}

/* A source of rows from golden arrays [rows, t]; `documents` may be NULL. */
typedef struct rows {
    const double *tokens, *targets, *documents;
    int64_t t;
} rows;

static inline ax_status read_rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    const rows *r = source;
    for (int64_t row = first; row < end; row++)
        for (int64_t i = 0, start = 0; i < r->t; i++) {
            int64_t from = row * r->t + i, to = (row - first) * r->t + i;
            if (r->documents && i && r->documents[from] != r->documents[from - 1])
                start = i;
            out->tokens[to] = (int32_t)r->tokens[from];
            out->targets[to] = r->targets[from] < 0 ? -1 : (int32_t)r->targets[from];
            out->doc_start[to] = (int32_t)start;
            out->position[to] = (int32_t)(i - start);
        }
    return AX_OK;
}

static inline int64_t count_targets(const double *targets, int64_t n)
{
    int64_t count = 0;
    for (int64_t i = 0; i < n; i++)
        count += targets[i] >= 0;
    return count;
}

static inline double rms(const double *v, int64_t n)
{
    double s = 0;
    for (int64_t i = 0; i < n; i++)
        s += v[i] * v[i];
    return sqrt(s / (double)ax_max(n, 1));
}

/* Compares 50 steps of AdamW with those of the other program: losses and gradient norms, and learning rates
 * if the case has them. */
static inline void check_fifty_steps(golden *g, int64_t recompute)
{
    int64_t dim[AX_ST_MAX_DIMS];
    double *tokens = array(g, "train.tokens", dim), *targets = array(g, "train.targets", NULL),
           *loss = array(g, "train.loss", NULL), *norm = array(g, "train.grad_norm", NULL),
           *lr = ax_st_find(g->numbers, "train.lr") ? array(g, "train.lr", NULL) : NULL;
    int64_t batches = dim[0], micro = dim[2], t = dim[3], global = dim[1] * micro;
    open_engine(
        g,
        (ax_engine_options){
            .seq_len = t, .micro_batch = micro, .global_batch = global, .recompute = recompute, .clip = 1.0});
    ax_schedule schedule = {AX_SCHEDULE_COSINE, 50, 5, 0.01, 0.001, 0};
    double worst = 0, worst_norm = 0;
    for (int step = 1; step <= 50; step++) {
        int64_t at = (step - 1) % batches * global * t;
        rows r = {tokens + at, targets + at, NULL, t};
        ax_hyper h = {.lr = ax_schedule_lr(&schedule, step),
                      .beta1 = 0.9,
                      .beta2 = 0.95,
                      .eps = 1e-8,
                      .weight_decay = 0.1,
                      .step = step};
        assert_true(!lr || fabs(h.lr - lr[step - 1]) < 1e-9);
        ax_step_result result;
        OK(ax_engine_step(g->engine, step, read_rows, &r, count_targets(targets + at, global * t), &h));
        OK(ax_engine_result(g->engine, &result));
        worst = fmax(worst, fabs(result.loss - loss[step - 1]) / loss[step - 1]);
        worst_norm = fmax(worst_norm, fabs(result.grad_norm - norm[step - 1]) / norm[step - 1]);
    }
    printf("%s, %s, recompute %lld: 50 steps, loss within %.1e, norm within %.1e\n", g->dir,
           g->ctx->dev->ops.name, (long long)recompute, worst, worst_norm);
    assert_true(worst < 1e-4);
    assert_true(worst_norm < 1e-3);
    free(tokens);
    free(targets);
    free(loss);
    free(norm);
    free(lr);
}

#endif
