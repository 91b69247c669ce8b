/* See pipe_runs.h. */
#include "support/pipe_runs.h"

#include "engine/engine_private.h"
#include "parallel/param.h"
#include "support/lazy.h"
#include "support/params.h"
#include "support/ranks.h"

#include <ctype.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LAYERS = 6, SEQ = 12, VOCAB = 29, MOST = 120000, EVENTS = 1 << 15 };

typedef struct job {
    const pipe_setup *s;
    pipe_result *out;
} job;

static ax_status rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    (void)source;
    for (int64_t row = first; row < end; row++)
        for (int64_t i = 0; i < SEQ; i++) {
            uint64_t at = (uint64_t)(row * SEQ + i);
            int64_t to = (row - first) * SEQ + i;
            out->tokens[to] = (int32_t)(ax_rng_uniform(11, at) * VOCAB);
            out->targets[to] = at % 7 == 3 ? -1 : (int32_t)(ax_rng_uniform(11, at + 1) * VOCAB);
            out->doc_start[to] = i < SEQ / 2 ? 0 : SEQ / 2;
            out->position[to] = (int32_t)i - out->doc_start[to];
        }
    return AX_OK;
}

typedef struct given_up {
    bool first_stage;
    int64_t row; /* the first row of the micro-batch that is not started */
} given_up;

/* Like `rows`, but the first stage reads no row from g->row on, as after a signal. */
static ax_status rows_until(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    const given_up *g = source;
    if (g->first_stage && first >= g->row)
        return ax_fail(AX_ERR_SIGNAL, "the step is given up");
    return rows(NULL, first, end, out);
}

/* Runs a step that is given up at its middle micro-batch: it must end on all ranks, and change nothing. */
static ax_status give_up(ax_ctx *ctx, ax_engine *engine, const pipe_setup *s, int64_t global, int64_t targets,
                         const ax_hyper *h)
{
    const ax_grid *g = ctx->grid;
    given_up at = {ax_grid_coord(g, ax_grid_rank(g), AX_PIPE) == 0,
                   s->micro_batches / 2 * (global / s->micro_batches)};
    ax_status status = ax_engine_step(engine, h->step, rows_until, &at, targets, h);
    EXPECT(status == AX_ERR_SIGNAL);
    return ax_param_set_zero_grad(ax_engine_params(engine));
}

typedef struct poisoning {
    const pipe_setup *s;
    ax_param_set *set;
    int64_t reads;
} poisoning;

/* Like `rows`, but before the last micro-batch, which adds to the gradients, a number among them becomes not
 * finite. */
static ax_status rows_of_poison(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    poisoning *by = source;
    const ax_grid *g = by->set->ctx->grid;
    int64_t all = 0, at = 0;
    if (++by->reads < by->s->micro_batches || ax_grid_rank(g) != by->s->poisoned_rank)
        return rows(NULL, first, end, out);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < by->set->n; i++) {
            const ax_tensor *t = &by->set->param[i]->sum;
            int64_t n = t->ndim >= 2 && t->data ? ax_tensor_count(g, t) : 0,
                    wanted = (int64_t)(by->s->poison_at * (double)(all - 1));
            if (pass && at <= wanted && wanted < at + n)
                ax_store(t->dtype, t->data, wanted - at, by->s->poison);
            at += pass ? n : 0;
            all += pass ? 0 : n;
        }
    return rows(NULL, first, end, out);
}

/* ---- pruned matrices ----------------------------------------------------------------------------- */

bool pipe_keeps(const char *name, int64_t row, int64_t col, double density)
{
    if (!strncmp(name, "h.0.mlp.up.", 11))
        return true;
    if (!strncmp(name, "h.1.attn.q.", 11))
        return false;
    if (!strncmp(name, "h.2.mlp.down.", 13) && row >= 3)
        return false;
    return ax_rng_uniform(ax_rng_key(7, name, 0), (uint64_t)(row * 1000 + col)) < density;
}

/* Whether the setup masks a parameter: a matrix of a block. */
static bool is_masked(const pipe_setup *s, const ax_param *p)
{
    return s->density > 0 && p->rest.ndim == 2 && !strncmp(p->name, "h.", 2);
}

static ax_status read_mask(void *source, ax_ctx *ctx, const ax_param *p, const ax_box *box, uint64_t *bits)
{
    const pipe_setup *s = source;
    (void)ctx;
    for (int64_t r = 0; r < box->n[0]; r++)
        for (int64_t c = 0; c < box->n[1]; c++)
            if (pipe_keeps(p->name, box->lo[0] + r, box->lo[1] + c, s->density))
                bits[r * ax_ceil_div(box->n[1], 64) + c / 64] |= (uint64_t)1 << c % 64;
    return AX_OK;
}

/* Sets the weights of a masked matrix: the same values with and without masks. */
static ax_status set_matrix(ax_ctx *ctx, const pipe_setup *s, const ax_param *p)
{
    const ax_param_state *master = &p->state[AX_STATE_MASTER];
    ax_box box = ax_tensor_box(ctx->grid, &p->rounded, ax_grid_rank(ctx->grid));
    const int64_t n = box.n[0] * box.n[1];
    void *host;
    AX_TRY(ax_calloc((size_t)n + 1, ax_dtype_size(master->dtype), &host));
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = box.lo[0] + i / box.n[1], col = box.lo[1] + i % box.n[1];
        const double value = ax_rng_normal(ax_rng_key(3, p->name, 0), (uint64_t)(row * 1000 + col));
        ax_store(master->dtype, host, i, pipe_keeps(p->name, row, col, s->density) ? 0.2 * value : 0);
    }
    ax_status status = n ? ax_param_state_write(ctx, master, 0, n, host) : AX_OK;
    free(host);
    return status;
}

static ax_status set_weights(ax_ctx *ctx, const pipe_setup *s, ax_param_set *set)
{
    if (!(s->density > 0))
        return ax_param_set_init(set);
    for (int i = 0; i < set->n; i++)
        if (ax_param_is_owned(set->param[i]))
            AX_TRY(is_masked(s, set->param[i]) ? set_matrix(ctx, s, set->param[i])
                                               : ax_param_state_init(ctx, set->param[i]));
    return ax_param_set_refresh(set);
}

/* Multiplies the summed gradients of a dense engine by the mask. */
static ax_status mask_gradients(const ax_ctx *ctx, const pipe_setup *s, const ax_param_set *set)
{
    for (int i = 0; i < set->n; i++) {
        const ax_param *p = set->param[i];
        const ax_tensor *g = &p->grad;
        if (!is_masked(s, p) || !ax_param_is_owned(p))
            continue;
        ax_box box = ax_tensor_box(ctx->grid, g, ax_grid_rank(ctx->grid));
        for (int64_t k = 0; k < box.n[0] * box.n[1]; k++)
            if (!pipe_keeps(p->name, box.lo[0] + k / box.n[1], box.lo[1] + k % box.n[1], s->density))
                ax_store(g->dtype, g->data, k, 0);
    }
    return AX_OK;
}

/* A step of a dense engine, as ax_engine_step, in which gradients are masked. */
static ax_status masked_step(ax_engine *e, const pipe_setup *s, int64_t step, int64_t targets,
                             const ax_hyper *h)
{
    const ax_axisset over = (ax_axisset)(ax_batch_axes(e->ctx) | 1 << AX_PIPE);
    e->step = (uint64_t)step;
    AX_TRY(engine_run_micro_batches(e, rows, NULL, targets));
    AX_TRY(ax_param_set_sync_grad(e->set));
    AX_TRY(mask_gradients(e->ctx, s, e->set));
    AX_TRY(ax_reduce_axes(e->ctx, over, e->numbers, 1, AX_F64, AX_SUM));
    AX_TRY(ax_param_set_grad_sumsq(e->set, e->numbers + 1));
    AX_TRY(ax_updater_clip(e->updater, e->numbers + 1, e->numbers, targets, e->scale.scale, e->options.clip));
    return ax_updater_step(e->updater, h);
}

/* ---- runs ---------------------------------------------------------------------------------------- */

typedef struct stopping {
    ax_engine *engine;
    ax_comm *stage; /* the ranks of this rank's stage */
    bool first_stage, asks;
    int64_t begun;
} stopping;

/* Like `rows`, but a rank with `asks` asks to give up the step. The ranks of the first stage give it up once
 * one of them knows of that. */
static ax_status rows_that_stop(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    stopping *s = source;
    int64_t asked = ax_engine_stop_asked(s->engine) > 0;
    ax_work *work;
    if (s->asks)
        ax_engine_ask_stop(s->engine);
    if (!s->first_stage)
        return rows(NULL, first, end, out);
    AX_TRY(ax_all_reduce(s->stage, NULL, &asked, 1, AX_I64, AX_MAX, &work));
    AX_TRY(ax_wait(&work));
    if (asked)
        return ax_fail(AX_ERR_SIGNAL, "the step is given up");
    s->begun++;
    return rows(NULL, first, end, out);
}

static ax_status stop(ax_ctx *ctx, ax_engine *engine, pipe_result *out)
{
    const ax_grid *g = ctx->grid;
    int rank = ax_grid_rank(g), stage = ax_grid_coord(g, rank, AX_PIPE);
    stopping s = {.engine = engine, .first_stage = stage == 0, .asks = rank == ax_grid_ranks(g) - 1};
    AX_TRY(ax_comm_split(ctx->world, stage, 0, &s.stage));
    AX_TRY(ax_param_set_init(ax_engine_params(engine)));
    ax_status status = ax_engine_step(engine, 1, rows_that_stop, &s, 1, &(ax_hyper){.step = 1});
    EXPECT(status == AX_ERR_SIGNAL);
    if (rank == 0)
        out->begun = s.begun;
    ax_comm_destroy(&s.stage);
    return ax_param_set_zero_grad(ax_engine_params(engine));
}

/* Collects the gradient (array < 0) or an array of state of a parameter that this rank's stage owns; one rank
 * of the stage stores the values. */
static ax_status store(ax_ctx *ctx, const ax_param *p, int array, double *to)
{
    void *host;
    const ax_tensor *t = &p->grad;
    const ax_dtype dtype = array < 0 ? t->dtype : p->state[array].dtype;
    int64_t n = ax_tensor_global_count(&p->rounded);
    if (array < 0 && p->mask) /* a vector; the weights after the update show it */
        return AX_OK;
    AX_TRY(ax_calloc((size_t)n, ax_dtype_size(dtype), &host));
    ax_status status = array < 0 ? ax_tensor_collect(ctx, t, host) : state_collect(ctx, p, array, host);
    const ax_grid *g = ctx->grid;
    int rank = ax_grid_rank(g), sum = 0;
    for (int a = 0; a < AX_AXES_STANDARD; a++)
        sum += a == AX_PIPE ? 0 : ax_grid_coord(g, rank, (ax_axis)a);
    for (int64_t k = 0; k < n && sum == 0; k++)
        to[k] = ax_load(dtype, host, k);
    free(host);
    return status;
}

static ax_status store_all(ax_ctx *ctx, const pipe_setup *s, const ax_param_set *set, pipe_result *out)
{
    int64_t at = 0;
    const int arrays = AX_STATE_MOMENT + set->moments;
    for (int which = 0; which <= arrays; which++)
        for (int i = 0; i < set->n; i++) {
            const ax_param *p = set->param[i];
            int64_t n = ax_tensor_global_count(&p->rounded);
            EXPECT(at + n <= MOST);
            if (ax_param_is_owned(p) && (which < arrays || !is_masked(s, p)))
                AX_TRY(store(ctx, p, which == arrays ? -1 : which, out->values + at));
            at += n;
        }
    if (ax_grid_rank(ctx->grid) == 0)
        out->n = at;
    if (ax_grid_rank(ctx->grid) == 0)
        out->weights = at / (arrays + 1);
    return AX_OK;
}

static ax_status steps(ax_ctx *ctx, ax_engine *engine, const pipe_setup *s, int64_t global, pipe_result *out)
{
    int64_t targets = 0;
    for (int64_t at = 0; at < global * SEQ; at++)
        targets += at % 7 != 3;
    AX_TRY(set_weights(ctx, s, ax_engine_params(engine)));
    for (int i = 0; i < PIPE_STEPS + s->more; i++) {
        const int at = (int)ax_min(i, PIPE_STEPS - 1);
        ax_step_result r;
        ax_hyper h = {
            .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = i + 1};
        if (i == 1 && s->grid.of[AX_PIPE] > 1)
            AX_TRY(give_up(ctx, engine, s, global, targets, &h));
        bool poisoned = i == 1 && s->poison != 0;
        poisoning by = {s, ax_engine_params(engine), 0};
        AX_TRY(s->density > 0 && !s->pruned
                   ? masked_step(engine, s, i + 1, targets, &h)
                   : ax_engine_step(engine, i + 1, poisoned ? rows_of_poison : rows, &by, targets, &h));
        AX_TRY(ax_engine_result(engine, &r));
        EXPECT(poisoned ? !r.finite && r.culprit && !r.culprit_weights : r.finite || s->compute == AX_F16);
        double eval;
        if (i == 0) /* between two steps, as in a run; the last micro-batch is not full */
            AX_TRY(ax_engine_eval(engine, rows, NULL, global - 1, &eval));
        if (ax_grid_rank(ctx->grid) == 0) {
            out->loss[at] = r.loss;
            out->norm[at] = r.grad_norm;
            out->eval = i ? out->eval : eval;
        }
    }
    return store_all(ctx, s, ax_engine_params(engine), out);
}

static const char *const families[PIPE_FAMILIES] = {"gpt2", "llama", "qwen3", "qwen3_moe"};

static ax_status make_config(const pipe_setup *s, ax_model_config *out)
{
    *out = (ax_model_config){.layers = LAYERS,
                             .hidden = 21,
                             .heads = 3,
                             .kv_heads = 3,
                             .ffn = 23,
                             .vocab = VOCAB,
                             .seq_len = SEQ,
                             .dropout = {0.1, 0.1, 0.1},
                             .init_std = 0.2,
                             .norm_eps = 1e-5,
                             .tie = s->tied};
    if (s->family != PIPE_GPT2) {
        out->hidden = 24;
        out->norm = AX_NORM_RMS;
        out->gated = true;
        out->rope.theta = 10000;
        out->activation = AX_SILU;
    }
    if (s->family == PIPE_EXPERTS)
        out->experts = (ax_model_experts){.n = 5,
                                          .top_k = 2,
                                          .ffn = 9,
                                          .renormalize = true,
                                          .step = 2,
                                          .balance = 0.1,
                                          .z_loss = 0.1,
                                          .capacity = s->capacity};
    if (s->family >= PIPE_QWEN3) {
        out->heads = 4;
        out->kv_heads = 2;
        out->head_norms = true;
        out->no_bias = (ax_no_bias){true, true, true};
    }
    return ax_family_find(families[s->family], &out->family);
}

static ax_status make_parallel(const pipe_setup *s, ax_parallel *out)
{
    *out = ax_parallel_default;
    out->zero = s->zero;
    out->narrow_grads = s->narrow;
    out->keep_results = s->keeps;
    out->pipe.schedule = s->schedule;
    out->pipe.slack = s->slack;
    out->pipe.postpone = s->postpone;
    out->pipe.chunks = s->chunks ? s->chunks : 2;
    out->pipe.cut = s->cut;
    out->offload = s->offload;
    return ax_strategy_find(s->strategy ? s->strategy : "axonn", &out->strategy);
}

/* Stores this rank's group and the order of its tasks, which the events of the trace tell. */
static ax_status store_order(const ax_ctx *ctx, const pipe_setup *s, const ax_event_ring *ring,
                             pipe_result *out)
{
    const ax_grid *g = ctx->grid;
    int rank = ax_grid_rank(g), n = 0,
        data = ax_grid_coord(g, rank, AX_DATA) / ax_grid_size_along(s->grid, AX_SIZE_EXPERT);
    EXPECT(ax_event_count(ring) < EVENTS);
    for (size_t i = 0; i < ax_event_count(ring); i++) {
        const ax_event *e = ax_event_get(ring, i);
        if (strcmp(e->kind, "task") != 0)
            continue;
        EXPECT(n < PIPE_ORDER - 1);
        out->order[rank][n++] = (char)toupper(e->name[0]);
    }
    out->group[rank] = ax_grid_coord(g, rank, AX_PIPE) * PIPE_RANKS + (s->zero >= 2 ? 0 : data);
    return AX_OK;
}

static ax_status check_memory(const ax_ctx *ctx, ax_engine *engine, const ax_engine_plan *plan)
{
    EXPECT(held_as_planned(ctx, &plan->memory));
    EXPECT(reserved_messages(ctx) == plan->memory.bytes[AX_MEMORY_PINNED]);
    EXPECT(has_planned_memory(ax_engine_params(engine), &plan->memory));
    return AX_OK;
}

static ax_status train(ax_ctx *ctx, ax_engine *engine, const ax_engine_plan *plan, const pipe_setup *s,
                       int64_t global, ax_trace *trace, pipe_result *out)
{
    AX_TRY(ax_grid_prepare(ctx->grid, plan->axes));
    ax_event_ring *ring;
    AX_TRY(ax_trace_ring(trace, "compute", &ring));
    ax_listener listener = ax_ring_listener(ring);
    ax_device_listen(ctx->dev, &listener);
    ax_status status = s->stops ? stop(ctx, engine, out) : steps(ctx, engine, s, global, out);
    ax_device_unlisten(ctx->dev, &listener);
    if (status != AX_OK || s->stops)
        return status;
    if (trace)
        AX_TRY(store_order(ctx, s, ring, out));
    return check_memory(ctx, engine, plan);
}

static ax_status run_on(ax_comm *world, const pipe_setup *s, pipe_result *out)
{
    const int64_t rows_each = 2,
                  global = rows_each * s->micro_batches * s->grid.of[AX_Z] * s->grid.of[AX_DATA];
    const char *device = s->device ? s->device : "cpu";
    ax_model_config config;
    ax_parallel parallel;
    AX_TRY(make_config(s, &config));
    AX_TRY(make_parallel(s, &parallel));
    ax_engine_options options = {.model = &config,
                                 .seq_len = SEQ,
                                 .micro_batch = rows_each,
                                 .global_batch = global,
                                 .recompute = s->recompute,
                                 .clip = s->unclipped ? 0 : 1.0};
    AX_TRY(ax_optim_find(s->optim ? s->optim : "adamw", &options.optim));
    ax_ctx *ctx = NULL;
    ax_engine *engine = NULL;
    ax_trace *trace = NULL; /* must outlive the engine, whose works in flight add events */
    ax_engine_plan plan;
    if (s->pruned)
        AX_TRY(ax_masks_create(world, read_mask, (void *)(uintptr_t)s, &options.masks)); /* only read */
    AX_TRY(ax_engine_plan_make(&options, world, s->grid, &parallel, device, 1, s->compute, &plan));
    out->pinned[ax_comm_rank(world)] = plan.memory.bytes[AX_MEMORY_PINNED];
    ax_status status = ax_ctx_create(world, s->grid, device, 1, s->compute, 3, &ctx);
    if (status == AX_OK) {
        ctx->parallel = parallel;
        status = ax_engine_create(ctx, &options, &plan, 0, &engine);
    }
    if (status == AX_OK && s->late)
        status = ax_trace_create(EVENTS, &trace);
    if (status == AX_OK)
        status = train(ctx, engine, &plan, s, global, trace, out);
    ax_engine_destroy(&engine);
    if (status == AX_OK && reserved_messages(ctx))
        status = ax_fail(AX_ERR_INTERNAL, "an engine that was destroyed has left pinned memory reserved");
    ax_engine_plan_fini(&plan);
    ax_masks_destroy(&options.masks);
    ax_ctx_destroy(&ctx);
    ax_trace_destroy(&trace);
    return status;
}

static ax_status run_rank(ax_comm *world, void *arg)
{
    const job *j = arg;
    ax_comm *slow;
    if (!j->s->lazy && !j->s->late)
        return run_on(world, j->s, j->out);
    AX_TRY(j->s->late ? lazy_create_late(world, j->s->late, &slow) : lazy_create(world, NULL, &slow));
    ax_status status = run_on(slow, j->s, j->out);
    ax_comm_destroy(&slow);
    return status;
}

void pipe_run(const pipe_setup *s, pipe_result *out)
{
    job j = {s, out};
    *out = (pipe_result){.eval = 0};
    out->values = calloc(MOST, sizeof *out->values);
    assert_non_null(out->values);
    int ranks = grid_ranks(s->grid);
    assert_true(ranks <= PIPE_RANKS);
    if (ax_comm_threads_run(ranks, run_rank, &j) != AX_OK) {
        char text[PIPE_TEXT];
        fail_msg("%s: %s", pipe_describe(s, text), ax_error_message());
    }
}

void pipe_run_one_stage(const pipe_setup *s, pipe_result *out)
{
    pipe_setup one = *s;
    one.grid.of[AX_PIPE] = 1;
    one.keeps = false;
    one.lazy = false;
    one.late = 0;
    one.cut = NULL;
    pipe_run(&one, out);
}

void pipe_free(pipe_result *result)
{
    free(result->values);
    result->values = NULL;
}

/* ---- comparing ----------------------------------------------------------------------------------- */

const char *pipe_describe(const pipe_setup *s, char text[PIPE_TEXT])
{
    static const char *const schedules[] = {"message", "1f1b", "gpipe", "interleaved"};
    snprintf(text, PIPE_TEXT,
             "%s, x=%d y=%d z=%d pipe=%d data=%d zero %d, %s %d, slack %d, postpone %d, %d micro-batches, "
             "recompute %d, %s%s%s%s%s",
             families[s->family], s->grid.of[AX_X], s->grid.of[AX_Y], s->grid.of[AX_Z], s->grid.of[AX_PIPE],
             s->grid.of[AX_DATA], s->zero, schedules[s->schedule], s->chunks, (int)s->slack, (int)s->postpone,
             (int)s->micro_batches, (int)s->recompute, ax_dtype_name(s->compute), s->narrow ? ", narrow" : "",
             s->keeps ? ", keeps" : "", s->tied ? ", tied" : "", s->lazy ? ", lazy" : "");
    if (s->late)
        ax_text_add(text, PIPE_TEXT, ", late with seed %llu", (unsigned long long)s->late);
    return text;
}

/* Whether norms are equal; those of a step that is not finite may be any NaN, or infinite. */
static bool same_norms(const pipe_result *a, const pipe_result *b)
{
    for (int i = 0; i < PIPE_STEPS; i++)
        if (a->norm[i] != b->norm[i] && (isfinite(a->norm[i]) || isfinite(b->norm[i])))
            return false;
    return true;
}

bool pipe_is_same(const pipe_result *got, const pipe_result *one)
{
    return !memcmp(got->loss, one->loss, sizeof got->loss) && same_norms(got, one) && got->n == one->n &&
           !memcmp(got->values, one->values, (size_t)got->n * sizeof *got->values);
}

/* Whether the results of a tied model are near those of one stage. The gradient of the embedding table is the
 * sum of two sums, which are added in another order than with one stage. Relative to the norm, this changes
 * the gradient by some roundings of its dtype (fp32: 6e-8 each; bf16: 4e-3 each, whose mean over all elements
 * is 0). Three steps of AdamW amplify the change where the second moment is small, but to less than one step
 * of lr, 0.01. In bf16 an element that is nearly 0 may change its sign, and so move in each step by lr in the
 * other direction. */
bool pipe_is_near(const pipe_setup *s, const pipe_result *got, const pipe_result *one)
{
    const double least = s->narrow ? 2e-3 : 1e-5, most = s->narrow ? 2 * PIPE_STEPS * 0.01 : 0.01;
    double loss = fabs(got->loss[PIPE_STEPS - 1] - one->loss[PIPE_STEPS - 1]),
           norm = fabs(got->norm[0] / one->norm[0] - 1);
    bool near = got->n == one->n && loss < 1e-3 && norm < least;
    for (int64_t i = 0; i < one->weights; i++)
        near = near && fabs(got->values[i] - one->values[i]) < most;
    return near;
}

void pipe_compare(const pipe_setup *s, const pipe_result *got, const pipe_result *one)
{
    char text[PIPE_TEXT];
    /* The sum of micro-batches' losses is rounded in double. */
    bool eval = fabs(got->eval / one->eval - 1) < (s->tied ? 1e-4 : 1e-12);
    if (eval && (s->tied ? pipe_is_near(s, got, one) : pipe_is_same(got, one)))
        return;
    fail_msg("%s: losses %.17g %.17g %.17g, not %.17g %.17g %.17g; norm %.17g, not %.17g; eval %.17g, "
             "not %.17g",
             pipe_describe(s, text), got->loss[0], got->loss[1], got->loss[2], one->loss[0], one->loss[1],
             one->loss[2], got->norm[0], one->norm[0], got->eval, one->eval);
}

void pipe_check(const pipe_setup *s)
{
    pipe_result one, got;
    pipe_run_one_stage(s, &one);
    pipe_run(s, &got);
    pipe_compare(s, &got, &one);
    pipe_free(&one);
    pipe_free(&got);
}

/* ---- late messages ------------------------------------------------------------------------------- */

const pipe_setup pipe_late_setups[PIPE_LATE_SETUPS] = {
    {.grid = {{1, 1, 1, 3, 1}}, .micro_batches = 6, .compute = AX_F32},
    {.grid = {{2, 1, 1, 2, 1}}, .micro_batches = 6, .compute = AX_F32},
    {.grid = {{1, 1, 1, 2, 2}}, .zero = 2, .micro_batches = 6, .compute = AX_F32},
    {.grid = {{1, 1, 2, 2, 1}}, .micro_batches = 6, .compute = AX_BF16},
    {.grid = {{1, 1, 1, 3, 2}}, .zero = 3, .micro_batches = 6, .compute = AX_F32},
    {.grid = {{1, 1, 1, 4, 1}}, .micro_batches = 9, .compute = AX_BF16, .recompute = 1},
    {.grid = {{1, 1, 2, 2, 2}}, .zero = 3, .micro_batches = 6, .compute = AX_F32},
    {.grid = {{2, 1, 1, 4, 1}}, .micro_batches = 5, .compute = AX_F32, .family = PIPE_QWEN3},
    {.grid = {{1, 1, 1, 2, 2}}, .schedule = INTERLEAVED, .micro_batches = 6, .compute = AX_F32},
    {.grid = {{1, 1, 1, 2, 4, 2}}, .zero = 1, .micro_batches = 6, .compute = AX_F32, .family = PIPE_EXPERTS},
    {.grid = {{1, 1, 1, 2, 4, 4}},
     .micro_batches = 6,
     .compute = AX_F32,
     .family = PIPE_EXPERTS,
     .capacity = 1},
};

/* Fails unless the ranks of each group ran their tasks in the same order. */
static void check_groups(const pipe_setup *s, const pipe_result *r)
{
    char text[PIPE_TEXT];
    int ranks = grid_ranks(s->grid);
    for (int a = 0; a < ranks; a++) {
        assert_true(r->order[a][0] == 'F');
        for (int b = 0; b < a; b++)
            if (r->group[a] == r->group[b] && strcmp(r->order[a], r->order[b]) != 0)
                fail_msg("%s: ranks %d and %d of a group have the orders %s and %s", pipe_describe(s, text),
                         a, b, r->order[a], r->order[b]);
    }
}

int pipe_check_late(const pipe_setup *setup, uint64_t seed, int seeds)
{
    pipe_setup s = *setup;
    pipe_result one, first = {.eval = 0}, got;
    int others = 0;
    pipe_run_one_stage(&s, &one);
    for (int i = 0; i < seeds; i++) {
        s.late = seed + (uint64_t)i;
        pipe_run(&s, &got);
        pipe_compare(&s, &got, &one);
        check_groups(&s, &got);
        if (i == 0)
            memcpy(first.order, got.order, sizeof got.order);
        others += memcmp(first.order, got.order, sizeof got.order) != 0;
        pipe_free(&got);
    }
    pipe_free(&one);
    return others;
}
