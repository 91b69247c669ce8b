/* Whole training steps on grids: the strategy's resting weights, ZeRO, recomputation, the weight cache and
 * micro-batches in many combinations, each with everything overlapped over a communicator that is as late as
 * it may be, and with nothing overlapped over one that is never late. Both must give the same bits, and the
 * serial run's numbers. And the bytes that travel, against the closed forms. */
#include "axonn/engine.h"
#include "support/lazy.h"
#include "support/ranks.h"
#include "support/sanitized.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { GLOBAL = 24, STEPS = 3, MAX_WEIGHTS = 40000 };

typedef struct shape {
    int64_t hidden, heads, ffn, vocab, seq_len;
} shape;
/* Odd: nothing divides anything. Even: no padding anywhere. */
static const shape odd = {21, 3, 23, 29, 12}, even = {32, 4, 64, 128, 16};

typedef struct setup {
    const shape *shape;
    ax_grid_size grid;
    ax_parallel parallel;
    int64_t micro_batch, recompute;
    ax_dtype compute;
    bool lazy;
    /* results, of rank 0 */
    double loss[STEPS], norm[STEPS], eval, *weights;
    int64_t n_weights;
    int outstanding;
    int64_t z_bytes, data_bytes; /* of the last step, on the communicators along exactly z and data */
    bool traced;
    int gathers, alone; /* of the last step; those that no kernel ran beside */
} setup;

static ax_status model_of(const setup *s, ax_model_config *out)
{
    const shape *h = s->shape;
    ax_model_config c = {.layers = 2,
                         .hidden = h->hidden,
                         .heads = h->heads,
                         .kv_heads = h->heads,
                         .ffn = h->ffn,
                         .vocab = h->vocab,
                         .seq_len = h->seq_len,
                         .dropout = 0.1,
                         .init_std = 0.2,
                         .norm_eps = 1e-5,
                         .tie = true};
    *out = c;
    return ax_family_find("gpt2", &out->family);
}

/* Rows that are a function of their index. */
static ax_status rows(void *source, int64_t first, int64_t end, const ax_rows *out)
{
    const shape *h = source;
    for (int64_t row = first; row < end; row++)
        for (int64_t i = 0, t = h->seq_len; i < t; i++) {
            uint64_t at = (uint64_t)(row * t + i);
            int64_t to = (row - first) * t + i;
            out->tokens[to] = (int32_t)(ax_rng_uniform(11, at) * (float)h->vocab);
            out->targets[to] = at % 7 == 3 ? -1 : (int32_t)(ax_rng_uniform(11, at + 1) * (float)h->vocab);
            out->doc_start[to] = i < t / 2 ? 0 : (int32_t)(t / 2);
            out->position[to] = (int32_t)i - out->doc_start[to];
        }
    return AX_OK;
}

static ax_status collect_weights(ax_ctx *ctx, ax_param_set *set, setup *s)
{
    AX_TRY(ax_calloc(MAX_WEIGHTS, sizeof(double), &s->weights));
    for (int i = 0; i < set->n; i++) {
        const ax_tensor *w = &set->param[i]->master;
        int64_t n = ax_tensor_global_count(w);
        /* The key bias has a gradient of zero in exact arithmetic: Adam turns roundings into updates. */
        if (strstr(set->param[i]->name, "attn.k.bias"))
            continue;
        EXPECT(w->dtype == AX_F64 || w->dtype == AX_F32);
        void *host;
        AX_TRY(ax_calloc((size_t)n, ax_dtype_size(w->dtype), &host));
        ax_status status = ax_tensor_collect(ctx, w, host);
        EXPECT(s->n_weights + n <= MAX_WEIGHTS);
        for (int64_t k = 0; k < n; k++)
            s->weights[s->n_weights++] = ax_load(w->dtype, host, k);
        free(host);
        AX_TRY(status);
    }
    return AX_OK;
}

static int64_t bytes_along(const ax_ctx *ctx, ax_axis axis)
{
    return ax_comm_traffic_get(ax_grid_comm(ctx->grid, (ax_axisset)(1u << axis))).bytes;
}

/* Whether a kernel ran from begin to end between the gather's start and its end. Events are in the order of
 * their ends. */
static bool hidden(const ax_event_ring *ring, size_t first, size_t gather)
{
    double began = ax_event_get(ring, gather)->begin;
    for (size_t i = gather; i-- > first;) {
        const ax_event *e = ax_event_get(ring, i);
        if (!strcmp(e->kind, "kernel") && e->begin >= began)
            return true;
    }
    return false;
}

static void count_gathers(const ax_event_ring *ring, size_t first, setup *s)
{
    s->gathers = s->alone = 0;
    for (size_t i = first; i < ax_event_count(ring); i++)
        if (!strcmp(ax_event_get(ring, i)->kind, "gather")) {
            s->gathers++;
            s->alone += !hidden(ring, first, i);
        }
}

static ax_status steps(ax_ctx *ctx, ax_engine *engine, setup *s)
{
    int64_t targets = 0;
    for (int64_t at = 0; at < GLOBAL * s->shape->seq_len; at++)
        targets += at % 7 != 3;
    AX_TRY(ax_param_set_init(ax_engine_params(engine)));
    for (int i = 0; i < STEPS; i++) {
        ax_step_result r;
        ax_hyper h = {
            .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .step = i + 1};
        int64_t z = bytes_along(ctx, AX_Z), data = bytes_along(ctx, AX_DATA);
        size_t events = ax_event_count(ctx->dev->ring);
        AX_TRY(ax_engine_step(engine, i + 1, rows, (void *)s->shape, targets, &h, &r));
        EXPECT(r.finite);
        s->z_bytes = bytes_along(ctx, AX_Z) - z;
        s->data_bytes = bytes_along(ctx, AX_DATA) - data;
        count_gathers(ctx->dev->ring, events, s);
        s->loss[i] = r.loss;
        s->norm[i] = r.grad_norm;
        if (i == 0) /* between two steps, as a run does */
            AX_TRY(ax_engine_eval(engine, rows, (void *)s->shape, GLOBAL - 3, &s->eval));
    }
    return collect_weights(ctx, ax_engine_params(engine), s);
}

/* The rehearsal asked for the memory that the steps asked for. */
static ax_status is_as_planned(ax_engine *engine, const ax_engine_plan *plan)
{
    const ax_param_set *set = ax_engine_params(engine);
    EXPECT(ax_frame_high_water(ax_engine_frame(engine)) == plan->memory.activations);
    EXPECT(set->bytes_master == plan->memory.weights && set->bytes_use == plan->memory.copies);
    EXPECT(set->bytes_grad == plan->memory.gradients && set->bytes_state == plan->memory.optimizer);
    return AX_OK;
}

static ax_status on_world(ax_comm *world, setup *s)
{
    ax_model_config config;
    AX_TRY(model_of(s, &config));
    ax_engine_options options = {.model = &config,
                                 .seq_len = s->shape->seq_len,
                                 .micro_batch = s->micro_batch,
                                 .global_batch = GLOBAL,
                                 .recompute = s->recompute,
                                 .clip = 1.0};
    ax_ctx *ctx = NULL;
    ax_engine *engine = NULL;
    ax_engine_plan plan = {.frame = NULL};
    AX_TRY(ax_optim_find("adamw", &options.optim));
    ax_trace *trace = NULL;
    if (s->traced)
        AX_TRY(ax_trace_create(1 << 14, &trace));
    ax_status status =
        ax_engine_plan_make(&options, world, s->grid, &s->parallel, "ref", 1, s->compute, &plan);
    if (status == AX_OK)
        status = ax_ctx_create(world, s->grid, "ref", 1, s->compute, 3, &ctx);
    if (status == AX_OK)
        ctx->parallel = s->parallel;
    if (status == AX_OK)
        status = ax_trace_ring(trace, "compute", &ctx->dev->ring);
    if (status == AX_OK)
        status = ax_engine_create(ctx, &options, &plan, 0, &engine);
    if (status == AX_OK)
        status = steps(ctx, engine, s);
    if (status == AX_OK)
        status = is_as_planned(engine, &plan);
    ax_engine_destroy(&engine);
    ax_engine_plan_fini(&plan);
    ax_ctx_destroy(&ctx);
    ax_trace_destroy(&trace);
    return status;
}

static ax_status run_rank(ax_comm *world, void *arg)
{
    setup mine = *(setup *)arg;
    ax_comm *lazy = NULL;
    if (mine.lazy)
        AX_TRY(lazy_create(world, &mine.outstanding, &lazy));
    ax_status status = on_world(lazy ? lazy : world, &mine);
    ax_comm_destroy(&lazy);
    if (ax_comm_rank(world) == 0)
        *(setup *)arg = mine;
    else
        free(mine.weights);
    return status;
}

/* "x=1 y=1 z=2 data=2 zero 1, micro-batches of 3, recompute 1, cache" */
static const char *describe(const setup *s)
{
    static char text[160];
    snprintf(text, sizeof text, "x=%d y=%d z=%d data=%d zero %d, micro-batches of %d, recompute %d%s%s",
             s->grid.x, s->grid.y, s->grid.z, s->grid.data, s->parallel.zero, (int)s->micro_batch,
             (int)s->recompute, s->parallel.weight_cache ? ", cache" : "", s->lazy ? ", lazy" : "");
    return text;
}

static setup run(setup s)
{
    if (ax_comm_threads_run(grid_ranks(s.grid), run_rank, &s) != AX_OK)
        fail_msg("%s: %s", describe(&s), ax_error_message());
    return s;
}

static double worst_of(const double *a, const double *b, int64_t n)
{
    double worst = 0;
    for (int64_t i = 0; i < n; i++)
        worst = fmax(worst, fabs(a[i] - b[i]) / fmax(fabs(b[i]), 1e-3));
    return worst;
}

static void same_bits(const setup *a, const setup *b)
{
    if (memcmp(a->loss, b->loss, sizeof a->loss) || memcmp(a->norm, b->norm, sizeof a->norm) ||
        a->n_weights != b->n_weights ||
        memcmp(a->weights, b->weights, (size_t)a->n_weights * sizeof *a->weights) || a->eval != b->eval)
        fail_msg("%s: overlap changes bits", describe(a));
}

static const ax_parallel together = {.overlap = {.oar = true, .ors = true, .oag = true}};

/* In float64 a grid only reorders sums; three steps of AdamW amplify roundings of 1e-16 by the ratio of
 * sqrt(v) to the gradient's smallest entries, at most 1e5 here. */
static void check(const setup *s, const setup *serial)
{
    double loss = worst_of(s->loss, serial->loss, STEPS), norm = worst_of(s->norm, serial->norm, STEPS),
           eval = worst_of(&s->eval, &serial->eval, 1),
           weights = worst_of(s->weights, serial->weights, s->n_weights);
    if (!(loss < 1e-11 && norm < 1e-11 && eval < 1e-11 && weights < 1e-9))
        fail_msg("%s: loss %.1e, norm %.1e, eval %.1e, weights %.1e off", describe(s), loss, norm, eval,
                 weights);
}

static int checked;

static void overlapped_and_not(setup s, const setup *serial)
{
    setup late = s, plain = s;
    late.lazy = true;
    plain.parallel.overlap.oar = plain.parallel.overlap.ors = plain.parallel.overlap.oag = false;
    late = run(late);
    plain = run(plain);
    same_bits(&late, &plain);
    check(&late, serial);
    if (s.parallel.zero == 0 && s.grid.z > 1)
        assert_true(late.outstanding > 2);
    free(late.weights);
    free(plain.weights);
    checked += 2;
}

static void grids_train_as_one_rank_does(void **state)
{
    (void)state;
    static const ax_grid_size grids[] = {{1, 1, 2, 1, 1}, {1, 1, 1, 1, 2}, {1, 1, 2, 1, 2}, {2, 1, 2, 1, 2},
                                         {1, 2, 2, 1, 2}, {1, 1, 4, 1, 2}, {1, 1, 2, 1, 4}, {2, 2, 2, 1, 1},
                                         {1, 1, 3, 1, 2}, {1, 1, 1, 1, 3}, {2, 1, 1, 1, 3}, {1, 1, 8, 1, 1}};
    setup base = {
        .shape = &odd, .grid = {1, 1, 1, 1, 1}, .parallel = together, .micro_batch = 2, .compute = AX_F64};
    setup serial = run(base);
    int turn = 0;
    for (size_t i = 0; i < AX_COUNT(grids); i++)
        for (int zero = 0; zero < (grids[i].data > 1 ? 4 : 1); zero++)
            for (int micro_steps = 1; micro_steps <= 3; micro_steps++) {
                /* All three on one grid, else one after the other. */
                int64_t share = GLOBAL / (grids[i].z * grids[i].data);
                bool mine = (i == 2 && !SANITIZED) || micro_steps == 1 + (int)(i + (size_t)zero) % 3;
                if (share % micro_steps || !mine)
                    continue;
                setup s = base;
                s.grid = grids[i];
                s.parallel.zero = zero;
                s.parallel.weight_cache = turn % 3 == 2 ? 1 << 20 : turn % 3 == 1 ? 6000 : 0;
                s.micro_batch = share / micro_steps;
                s.recompute = turn++ % 2;
                overlapped_and_not(s, &serial);
            }
    printf("%d runs\n", checked);
    free(serial.weights);
}

/* bf16 rounds what is gathered and not what is reduced: overlap must not change a bit there either. */
static void overlap_changes_no_bit_in_bf16(void **state)
{
    (void)state;
    for (int zero = 0; zero < 4; zero++) {
        setup s = {.shape = &odd,
                   .grid = {1, 1, 2, 1, 2},
                   .parallel = together,
                   .micro_batch = 2,
                   .recompute = zero % 2,
                   .compute = AX_BF16};
        s.parallel.zero = zero;
        setup late = s, plain = s;
        late.lazy = true;
        plain.parallel.overlap.oar = plain.parallel.overlap.ors = plain.parallel.overlap.oag = false;
        late = run(late);
        plain = run(plain);
        same_bits(&late, &plain);
        free(late.weights);
        free(plain.weights);
    }
}

/* ---- bytes --------------------------------------------------------------------------------------- */

/* Elements of the weights of two dims: linear layers of the blocks, and the tables. */
static int64_t linear_count(const shape *h)
{
    return 2 * (4 * h->hidden * h->hidden + 2 * h->hidden * h->ffn);
}

/* 2502.08145, section on the performance model, summed over layers, for a step of M micro-batches in `wire`
 * bytes for gathered weights and `sum` bytes for gradients, on a grid with x = y = 1. */
static int64_t z_bytes(const setup *s, int64_t m, int64_t wire, int64_t sum)
{
    const shape *h = s->shape;
    int64_t linear = linear_count(h), tokens = h->vocab * h->hidden, positions = h->seq_len * h->hidden,
            z = s->grid.z;
    bool cached = s->parallel.weight_cache;
    int64_t gathers =
        cached ? linear + tokens + positions : m * ((s->recompute ? 3 : 2) * linear + 3 * tokens + positions);
    int64_t scattered = m * (linear + 2 * tokens + positions);
    return (z - 1) * (gathers * wire + scattered * sum) / z;
}

/* Per step one reduction of what z has left: an all-reduce, or a reduce-scatter and the gather of the update;
 * with zero 2 a reduce-scatter per micro-batch, with zero 3 gathers per use instead of per update. */
static int64_t data_bytes(const setup *s, int64_t m, int64_t wire, int64_t sum)
{
    const shape *h = s->shape;
    int64_t linear = linear_count(h), tokens = h->vocab * h->hidden, positions = h->seq_len * h->hidden,
            all = linear + tokens + positions, d = s->grid.data, z = s->grid.z;
    int64_t scattered = s->parallel.zero >= 2 ? m * (linear + 2 * tokens + positions) : all;
    int64_t gathered = s->parallel.zero < 3 ? all
                       : s->parallel.weight_cache
                           ? all
                           : m * ((s->recompute ? 3 : 2) * linear + 3 * tokens + positions);
    if (s->parallel.zero == 0)
        return 2 * (d - 1) * all * sum / (d * z);
    return (d - 1) * (scattered * sum + gathered * wire) / (d * z);
}

static void bytes_are_those_of_the_closed_forms(void **state)
{
    (void)state;
    static const ax_grid_size grids[] = {{1, 1, 2, 1, 2}, {1, 1, 4, 1, 2}, {1, 1, 2, 1, 4}};
    for (size_t i = 0; i < AX_COUNT(grids); i++)
        for (int zero = 0; zero < 4; zero++)
            for (int how = 0; how < 4; how++) {
                setup s = {.shape = &even, .grid = grids[i], .parallel = together, .compute = AX_BF16};
                s.parallel.zero = zero;
                s.recompute = how % 2;
                s.parallel.weight_cache = how / 2 ? 1 << 20 : 0;
                int64_t share = GLOBAL / (grids[i].z * grids[i].data), m = share % 2 ? 3 : 2;
                s.micro_batch = share / m;
                s = run(s);
                if (s.z_bytes != z_bytes(&s, m, 2, 4) || s.data_bytes != data_bytes(&s, m, 2, 4))
                    fail_msg("%s: %lld bytes on z and %lld on data, not %lld and %lld", describe(&s),
                             (long long)s.z_bytes, (long long)s.data_bytes, (long long)z_bytes(&s, m, 2, 4),
                             (long long)data_bytes(&s, m, 2, 4));
                free(s.weights);
            }
}

/* OAG: the gather of the next weight starts before the kernels of the present one end, in forward, in
 * backward and in recomputation; only the first of a micro-batch has nothing to hide behind. */
static void gathers_run_beside_kernels(void **state)
{
    (void)state;
    enum { MICRO_STEPS = 2 };
    for (int recompute = 0; recompute < 2; recompute++) {
        setup s = {.shape = &even,
                   .grid = {1, 1, 2, 1, 1},
                   .parallel = together,
                   .micro_batch = GLOBAL / 2 / MICRO_STEPS,
                   .recompute = recompute,
                   .compute = AX_F64,
                   .traced = true};
        setup with = run(s);
        s.parallel.overlap.oag = false;
        setup without = run(s);
        /* Two layers of six weights, the embedding's two tables, the head: forward and backward of each but
         * the tables, and forward again where it is recomputed. */
        int blocks = 2 * 6, forward = 2 + blocks + 1, backward = blocks + 1;
        assert_int_equal(with.gathers, MICRO_STEPS * (forward + backward + recompute * blocks));
        assert_int_equal(without.gathers, with.gathers);
        assert_int_equal(with.alone, MICRO_STEPS);
        assert_int_equal(without.alone, without.gathers);
        free(with.weights);
        free(without.weights);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(grids_train_as_one_rank_does),
        cmocka_unit_test(overlap_changes_no_bit_in_bf16),
        cmocka_unit_test(bytes_are_those_of_the_closed_forms),
        cmocka_unit_test(gathers_run_beside_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
