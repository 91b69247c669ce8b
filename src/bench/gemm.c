/* Finds the GEMMs of a configuration's training step by running the step on the dry device, which computes
 * nothing. Then times each GEMM by itself. */
#include "bench/bench.h"
#include "cli/launch.h"

#include <stdlib.h>
#include <string.h>

/* ---- finding the GEMMs --------------------------------------------------------------------------- */

typedef struct finding {
    bench_gemms *out;
    ax_status status;
} finding;

/* Returns true if two GEMMs have the same arguments, but for the addresses of the operands, and the same
 * optional operands (bias, preactivation, sums). */
static bool same_gemm(const bench_gemm *p, const bench_gemm *q)
{
    const ax_gemm_args *a = &p->args, *b = &q->args;
    return p->bias == q->bias && a->m == b->m && a->n == b->n && a->k == b->k && a->lda == b->lda &&
           a->ldb == b->ldb && a->ldc == b->ldc && a->dtype == b->dtype && a->c_dtype == b->c_dtype &&
           a->trans_a == b->trans_a && a->trans_b == b->trans_b && a->accumulate == b->accumulate &&
           a->epilogue == b->epilogue && a->kind == b->kind && p->preact == q->preact && p->sums == q->sums &&
           a->accumulate_sums == b->accumulate_sums && p->groups == q->groups && p->stride == q->stride;
}

static bench_gemm gemm_of(const ax_gemm_args *args)
{
    bench_gemm p = {.args = *args,
                    .bias = args->bias != NULL,
                    .preact = args->preact != NULL,
                    .sums = args->col_sums != NULL,
                    .calls = 1};
    p.args.a = p.args.b = p.args.bias = p.args.c = p.args.preact = p.args.col_sums = NULL;
    return p;
}

static bench_gemm of_groups(const ax_gemm_grouped_args *g)
{
    return (bench_gemm){.args = {.m = g->m,
                                 .n = g->n,
                                 .k = g->k,
                                 .lda = g->lda,
                                 .ldb = g->ldb,
                                 .ldc = g->ldc,
                                 .dtype = g->dtype,
                                 .c_dtype = g->c_dtype,
                                 .trans_a = g->trans_a,
                                 .trans_b = g->trans_b,
                                 .accumulate = g->accumulate},
                        .groups = g->groups,
                        .stride = g->stride,
                        .calls = 1};
}

/* Returns the call of a grouped GEMM, with the operands of `mine`. */
static ax_gemm_grouped_args grouped(const bench_gemm *p, const ax_gemm_args *mine, const int32_t *bounds)
{
    return (ax_gemm_grouped_args){.m = mine->m,
                                  .n = mine->n,
                                  .k = mine->k,
                                  .groups = p->groups,
                                  .a = mine->a,
                                  .b = mine->b,
                                  .bounds = bounds,
                                  .c = (void *)(uintptr_t)mine->c,
                                  .lda = mine->lda,
                                  .ldb = mine->ldb,
                                  .ldc = mine->ldc,
                                  .stride = p->stride,
                                  .dtype = mine->dtype,
                                  .c_dtype = mine->c_dtype,
                                  .trans_a = mine->trans_a,
                                  .trans_b = mine->trans_b,
                                  .accumulate = mine->accumulate};
}

double bench_gemm_flops(const bench_gemm *gemm)
{
    double flops, bytes;
    const ax_gemm_grouped_args g = grouped(gemm, &gemm->args, NULL);
    ax_kernel_cost(gemm->groups ? AX_K_gemm_grouped : AX_K_gemm,
                   gemm->groups ? (const void *)&g : &gemm->args, &flops, &bytes);
    return flops;
}

/* Counts a kernel launch of the dry run, if it is a GEMM, in the entry of f->out for GEMMs with these
 * arguments. */
static void count_gemm(void *user, const ax_device_event *launch)
{
    finding *f = user;
    const ax_kernel kernel = launch->kernel;
    if (f->status != AX_OK || (kernel != AX_K_gemm && kernel != AX_K_gemm_grouped))
        return;
    bench_gemm found = kernel == AX_K_gemm ? gemm_of(launch->args) : of_groups(launch->args);
    if (!found.args.m || !found.args.n || !found.args.k)
        return;
    for (int64_t i = 0; i < f->out->n; i++)
        if (same_gemm(&f->out->gemm[i], &found)) {
            f->out->gemm[i].calls++;
            return;
        }
    f->status = ax_list_grow(&f->out->gemm, (size_t)f->out->n, sizeof *f->out->gemm);
    if (f->status == AX_OK)
        f->out->gemm[f->out->n++] = found;
}

static ax_status count_step(const ax_train_plan *plan, ax_ctx *dry, ax_engine *engine, bench_gemms *out)
{
    finding f = {out, AX_OK};
    ax_hyper hyper = ax_train_hyper(plan, 1);
    ax_listener listener = {AX_ON_KERNEL, count_gemm, &f, NULL};
    ax_device_listen(dry->dev, &listener);
    ax_status status = ax_engine_step(engine, 1, ax_rows_none, NULL, 1, &hyper);
    ax_device_unlisten(dry->dev, &listener);
    return status == AX_OK ? f.status : status;
}

static ax_status find_gemms(const ax_train_plan *plan, bench_gemms *out)
{
    ax_ctx *dry;
    ax_engine *engine = NULL;
    AX_TRY(ax_ctx_create_dry(ax_comm_rank(plan->ranks), ax_comm_size(plan->ranks), plan->grid, plan->compute,
                             &plan->parallel, &dry));
    ax_status status = ax_engine_create(dry, &plan->options, &plan->engine, 0, &engine);
    if (status == AX_OK)
        status = count_step(plan, dry, engine, out);
    ax_engine_destroy(&engine);
    ax_ctx_destroy(&dry);
    return status;
}

/* ---- operands ------------------------------------------------------------------------------------ */

enum { ALIGN = 64, STAGED = 1 << 20, UNKNOWN_CACHE = 32 << 20 };

/* The memory for timing a GEMM. `pool` holds one or more sets of operands of the GEMM, one after the other.
 * The runs use the sets in turn, so that the operands of a run are not in the caches. */
typedef struct timing {
    ax_ctx *ctx;
    int64_t runs;
    int64_t cold; /* after the use of this many bytes, the caches hold no data that were used before */
    char *pool;
    size_t pool_bytes;
    float *staged; /* [STAGED]: normally distributed random numbers in device memory, from which operands are
                      filled */
    double *seconds;
    int32_t *bounds; /* [most_groups + 1], in device memory */
    int64_t most_groups;
} timing;

static int64_t padded(int64_t elements, ax_dtype dtype)
{
    return ax_round_up(elements * (int64_t)ax_dtype_size(dtype), ALIGN);
}

static int64_t elements_of_a(const ax_gemm_args *g) { return (g->trans_a ? g->k : g->m) * g->lda; }
static int64_t elements_of_b(const ax_gemm_args *g) { return (g->trans_b ? g->n : g->k) * g->ldb; }

static int64_t bias_bytes(const bench_gemm *p)
{
    return p->bias ? padded(p->args.n, ax_dtype_accum(p->args.dtype)) : 0;
}

static int64_t sums_bytes(const bench_gemm *p)
{
    return p->sums ? padded(p->args.m, ax_dtype_accum(p->args.dtype)) : 0;
}

static int64_t set_bytes(const bench_gemm *p)
{
    const ax_gemm_args *g = &p->args;
    return padded(elements_of_a(g), g->dtype) + padded(elements_of_b(g), g->dtype) + bias_bytes(p) +
           sums_bytes(p) + (p->preact ? 2 : 1) * padded(g->m * g->ldc, g->c_dtype);
}

/* Returns how many sets of operands the GEMM needs so that they have at least t->cold bytes together. One set
 * of t->cold bytes is enough, because the use of its last bytes evicts its first bytes from the caches. */
static int64_t sets_of(const timing *t, const bench_gemm *p) { return ax_ceil_div(t->cold, set_bytes(p)); }

/* Returns the GEMM's arguments with pointers to the operands of set number `set`. */
static ax_gemm_args with_operands(const timing *t, const bench_gemm *p, int64_t set)
{
    ax_gemm_args mine = p->args;
    char *at = t->pool + set * set_bytes(p);
    mine.a = at;
    at += padded(elements_of_a(&mine), mine.dtype);
    mine.b = at;
    at += padded(elements_of_b(&mine), mine.dtype);
    mine.bias = p->bias ? at : NULL;
    at += bias_bytes(p);
    mine.col_sums = p->sums ? at : NULL;
    at += sums_bytes(p);
    mine.c = at;
    mine.preact = p->preact ? at + padded(mine.m * mine.ldc, mine.c_dtype) : NULL;
    return mine;
}

static ax_status fill_operand(const timing *t, const void *operand, int64_t n, ax_dtype dtype)
{
    char *at = (char *)(uintptr_t)operand;
    for (int64_t i = 0; i < n; i += STAGED) {
        ax_convert_args convert = {.n = ax_min(STAGED, n - i), .x = t->staged, .x_dtype = AX_F32};
        convert.y = at + (size_t)i * ax_dtype_size(dtype);
        convert.y_dtype = dtype;
        AX_TRY(ax_run_convert(t->ctx->stream, &convert));
    }
    return AX_OK;
}

static ax_status fill_sets(const timing *t, const bench_gemm *p)
{
    const ax_gemm_args *g = &p->args;
    for (int64_t i = 0; i < sets_of(t, p); i++) {
        ax_gemm_args mine = with_operands(t, p, i);
        AX_TRY(fill_operand(t, mine.a, elements_of_a(g), g->dtype));
        AX_TRY(fill_operand(t, mine.b, elements_of_b(g), g->dtype));
        if (p->bias)
            AX_TRY(fill_operand(t, mine.bias, g->n, ax_dtype_accum(g->dtype)));
        if (p->preact)
            AX_TRY(fill_operand(t, mine.preact, g->m * g->ldc, g->c_dtype));
        ax_fill_args zero = {.n = g->m * g->ldc, .y = mine.c, .dtype = g->c_dtype};
        AX_TRY(ax_run_fill(t->ctx->stream, &zero));
        ax_fill_args no_sums = {
            .n = p->sums ? g->m : 0, .y = mine.col_sums, .dtype = ax_dtype_accum(g->dtype)};
        AX_TRY(ax_run_fill(t->ctx->stream, &no_sums));
    }
    return AX_OK;
}

/* ---- timing -------------------------------------------------------------------------------------- */

/* Divides the rows of a grouped GEMM evenly among its groups. */
static ax_status fill_bounds(const timing *t, const bench_gemm *p)
{
    const int64_t rows = p->args.trans_a ? p->args.k : p->args.m;
    int32_t *bounds;
    if (!p->groups)
        return AX_OK;
    AX_TRY(ax_calloc((size_t)p->groups + 1, sizeof *bounds, &bounds));
    for (int64_t g = 0; g <= p->groups; g++)
        bounds[g] = (int32_t)(rows * g / p->groups);
    ax_status status =
        ax_copy_in(t->ctx->stream, t->bounds, bounds, ((size_t)p->groups + 1) * sizeof *bounds);
    free(bounds);
    return status;
}

static ax_status launch(const timing *t, const bench_gemm *p, const ax_gemm_args *args)
{
    if (!p->groups)
        return ax_run_gemm(t->ctx->stream, args);
    const ax_gemm_grouped_args g = grouped(p, args, t->bounds);
    return ax_run_gemm_grouped(t->ctx->stream, &g);
}

/* Times a GEMM. The first call (i = -1) is not counted, because it wakes the threads. It uses the set of
 * operands that was filled last, which is still in the caches. The counted calls use the sets in turn,
 * beginning with the set that was filled first; before its turn, each set has left the caches. */
static ax_status time_gemm(const timing *t, bench_gemm *p)
{
    int64_t sets = sets_of(t, p);
    AX_TRY(fill_sets(t, p));
    AX_TRY(fill_bounds(t, p));
    for (int64_t i = -1; i < t->runs; i++) {
        ax_gemm_args args = with_operands(t, p, (i + sets) % sets);
        AX_TRY(ax_stream_wait(t->ctx->stream));
        double begin = ax_now();
        AX_TRY(launch(t, p, &args));
        AX_TRY(ax_stream_wait(t->ctx->stream));
        if (i >= 0)
            t->seconds[i] = ax_now() - begin;
    }
    p->seconds = ax_spread_of(t->seconds, t->runs);
    return AX_OK;
}

static ax_status measure_peaks(const timing *t, bench_gemms *out)
{
    const double patience = 0.2; /* seconds */
    for (int64_t i = 0; i < out->n; i++) {
        ax_dtype dtype = out->gemm[i].args.dtype;
        if (out->peak[dtype] <= 0)
            AX_TRY(ax_device_peak(t->ctx->dev, dtype, patience, &out->peak[dtype]));
    }
    return AX_OK;
}

static size_t bounds_bytes(const timing *t) { return ((size_t)t->most_groups + 1) * sizeof(int32_t); }

static ax_status alloc_memory(timing *t, const bench_gemms *out)
{
    t->pool_bytes = 1; /* not 0, for a rank that has no GEMM */
    for (int64_t i = 0; i < out->n; i++) {
        const bench_gemm *p = &out->gemm[i];
        t->pool_bytes = (size_t)ax_max((int64_t)t->pool_bytes, sets_of(t, p) * set_bytes(p));
        t->most_groups = ax_max(t->most_groups, p->groups);
    }
    AX_TRY(ax_calloc((size_t)t->runs, sizeof *t->seconds, &t->seconds));
    AX_TRY(ax_ctx_alloc(t->ctx, AX_MEMORY_ACTIVATIONS, t->pool_bytes, (void **)&t->pool));
    AX_TRY(ax_ctx_alloc(t->ctx, AX_MEMORY_ACTIVATIONS, STAGED * sizeof(float), (void **)&t->staged));
    AX_TRY(ax_ctx_alloc(t->ctx, AX_MEMORY_ACTIVATIONS, bounds_bytes(t), (void **)&t->bounds));
    return ax_run_init_normal(
        t->ctx->stream,
        &(ax_init_normal_args){
            .extent = {1, 1, 1, STAGED}, .n = {1, 1, 1, STAGED}, .std = 1, .y = t->staged, .dtype = AX_F32});
}

static void free_memory(timing *t)
{
    ax_ctx_free(t->ctx, AX_MEMORY_ACTIVATIONS, t->pool, t->pool_bytes);
    ax_ctx_free(t->ctx, AX_MEMORY_ACTIVATIONS, t->staged, STAGED * sizeof(float));
    ax_ctx_free(t->ctx, AX_MEMORY_ACTIVATIONS, t->bounds, bounds_bytes(t));
    free(t->seconds);
}

/* Orders GEMMs, for qsort, by the total time of their calls in a step, the longest first. */
static int compare_times(const void *a, const void *b)
{
    const bench_gemm *p = a, *q = b;
    double mine = p->seconds.median * (double)p->calls, other = q->seconds.median * (double)q->calls;
    return (mine < other) - (mine > other);
}

static void add_up(bench_gemms *out)
{
    if (out->n)
        qsort(out->gemm, (size_t)out->n, sizeof *out->gemm, compare_times);
    for (int64_t i = 0; i < out->n; i++) {
        const bench_gemm *p = &out->gemm[i];
        double calls = (double)p->calls;
        out->calls += p->calls;
        out->flops += bench_gemm_flops(p) * calls;
        out->seconds += p->seconds.median * calls;
    }
}

static ax_status time_all(ax_comm *world, ax_ctx *ctx, int local_size, int64_t runs, bench_gemms *out)
{
    /* The use of twice as many bytes as the caches hold evicts all older data. The ranks of a machine run at
     * the same time and share its caches, so each rank needs to use only 1/local_size of these bytes. */
    int64_t cold = 2 * (out->cache ? out->cache : UNKNOWN_CACHE) / ax_max(local_size, 1);
    timing t = {.ctx = ctx, .runs = runs, .cold = cold};
    ax_status status = ax_comm_agree(world, alloc_memory(&t, out));
    if (status == AX_OK)
        status = measure_peaks(&t, out);
    for (int64_t i = 0; i < out->n && status == AX_OK; i++)
        status = time_gemm(&t, &out->gemm[i]);
    free_memory(&t);
    return status;
}

static ax_status measure(ax_comm *world, const ax_train_plan *plan, int64_t runs, ax_machine *machine,
                         bench_gemms *out)
{
    ax_ctx *ctx;
    AX_TRY(ax_comm_agree(world, find_gemms(plan, out)));
    AX_TRY(ax_ctx_create_with(plan->ranks, plan->grid, plan->config->device, &plan->threads, plan->compute,
                              (uint64_t)plan->config->train.seed, &ctx));
    out->cache = ax_cores_cache();
    ax_status status = ax_comm_agree(world, time_all(world, ctx, plan->threads.local_size, runs, out));
    if (status == AX_OK && machine)
        status = ax_comm_agree(world, bench_measure_device(ctx, plan->threads.local_size, machine));
    add_up(out);
    out->threads = ctx->dev->threads;
    out->compute = ctx->compute;
    out->device = ctx->dev->ops.name;
    ax_train_describe(plan->options.model, plan->grid, out->model, out->grid);
    ax_ctx_destroy(&ctx);
    return status;
}

ax_status bench_time_gemms(ax_comm *world, ax_config *config, int64_t runs, ax_machine *machine,
                           bench_gemms *out)
{
    ax_trainer *trainer;
    *out = (bench_gemms){.threads = 0};
    AX_CHECK(runs > 0, AX_ERR_USAGE, "bench_time_gemms: `runs` is %lld, but must be at least 1",
             (long long)runs);
    AX_TRY(ax_trainer_create(world, config, &trainer));
    ax_status status = measure(world, ax_trainer_plan(trainer), runs, machine, out);
    cli_world_abort_unshared(world, status);
    ax_trainer_destroy(&trainer);
    return status;
}

void bench_gemms_fini(bench_gemms *gemms)
{
    free(gemms->gemm);
    *gemms = (bench_gemms){.threads = 0};
}
