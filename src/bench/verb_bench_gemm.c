/* axonn bench gemm: times each GEMM of a configuration's training step by itself. */
#include "bench/bench.h"
#include "cli/launch.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct args {
    cli_config_args common;
    int64_t runs;
    bool json;
    char *save;
} args;

static const ax_option options[] = {
    CONFIG_OPTIONS(args, common),
    {"runs", AX_OPT_INT, offsetof(args, runs), "9", "[1, 100000]", .meta = "N",
     .help = "how often each GEMM (matrix product) is timed"},
    {"json", AX_OPT_BOOL, offsetof(args, json), "false",
     .help = "print the results as JSON, one object per GEMM"},
    {"save", AX_OPT_PATH, offsetof(args, save), .meta = "FILE",
     .help = "also time the other kernels of the step, and write all rates into the description of this "
             "machine in FILE"},
};

/* One row of the output: a GEMM, or the sum of all GEMMs of a step. */
typedef struct row {
    const char *name;
    const bench_gemm *gemm; /* NULL: the sum */
    int64_t calls;          /* per step */
    ax_spread seconds;      /* seconds of one call; in the row of the sum, of all calls of a step */
    double flops;           /* FLOPs that are computed in `seconds` */
    double peak;            /* peak FLOP/s for the GEMM's dtype (of the sum: see total_of); 0: unknown */
    double of_step;         /* total time of all calls of this GEMM / total time of all GEMMs */
} row;

static const char *const epilogue[] = {
    [AX_EPILOGUE_NONE] = "", [AX_EPILOGUE_ACTIVATION] = "gelu", [AX_EPILOGUE_ACTIVATION_GRAD] = "gelu'"};

/* Returns the arguments with pointers that are not NULL for the operands that the GEMM has. */
static ax_gemm_args with_pointers(const bench_gemm *p)
{
    ax_gemm_args g = p->args;
    g.bias = p->bias ? p : NULL;
    g.col_sums = p->sums ? (void *)(uintptr_t)p : NULL;
    return g;
}

/* Names a GEMM as descriptions of machines do; "strided" is added if the rows of an operand or of the result
 * are further apart in memory than they are long. */
static void name_gemm(const bench_gemm *p, char *out, size_t size)
{
    const ax_gemm_args *g = &p->args, named = with_pointers(p);
    char name[AX_MACHINE_GEMM_NAME];
    bool sparse =
        g->lda != (g->trans_a ? g->m : g->k) || g->ldb != (g->trans_b ? g->k : g->n) || g->ldc != g->n;
    snprintf(out, size, "%s%s", ax_machine_gemm_name(&named, p->groups, name),
             sparse && !p->groups ? " strided" : "");
}

static row row_of(const bench_gemms *all, const bench_gemm *p, const char *name)
{
    row r = {.name = name, .gemm = p, .calls = p->calls, .seconds = p->seconds, .flops = bench_gemm_flops(p)};
    r.peak = all->peak[p->args.dtype];
    r.of_step = p->seconds.median * (double)p->calls / all->seconds;
    return r;
}

/* Returns the row of all GEMMs of a step together. Its times are the sums, over all calls, of the median,
 * minimum and maximum times. Its peak is the FLOP/s that would result if each GEMM ran at the device's peak
 * for its dtype. */
static row total_of(const bench_gemms *all)
{
    row r = {.name = "all GEMMs of a step", .calls = all->calls, .flops = all->flops, .of_step = 1};
    double least = 0;
    bool known = true;
    for (int64_t i = 0; i < all->n; i++) {
        const bench_gemm *p = &all->gemm[i];
        row one = row_of(all, p, NULL);
        double calls = (double)p->calls;
        r.seconds.median += calls * p->seconds.median;
        r.seconds.min += calls * p->seconds.min;
        r.seconds.max += calls * p->seconds.max;
        known = known && one.peak > 0;
        least += known ? calls * one.flops / one.peak : 0;
    }
    r.peak = known ? all->flops / least : 0;
    return r;
}

/* ---- as JSON ------------------------------------------------------------------------------------- */

static ax_status print_json(const bench_gemms *all, const args *a, int ranks, const row *r)
{
    const char *isa = NULL;
    if (!strcmp(all->device, "cpu"))
        AX_TRY(ax_isa_chosen(&isa));
    double rate = r->flops / r->seconds.median;
    json_t *out = json_pack(
        "{s:s, s:s, s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:o, s:o, s:f, s:s, s:s, s:s, s:s, s:i, s:i, s:s, "
        "s:s?, s:I}",
        "case", r->name, "unit", "ms", "runs", (json_int_t)a->runs, "median", r->seconds.median * 1e3, "min",
        r->seconds.min * 1e3, "max", r->seconds.max * 1e3, "calls", (json_int_t)r->calls, "flops", r->flops,
        "flops_per_s", rate, "peak_flops_per_s", cli_json_number(r->peak > 0 ? r->peak : NAN), "of_peak",
        cli_json_number(r->peak > 0 ? rate / r->peak : NAN), "share", r->of_step, "config", a->common.path,
        "model", all->model, "precision", ax_dtype_name(all->compute), "grid", all->grid, "ranks", ranks,
        "threads", all->threads, "device", all->device, "isa", isa, "cache_bytes", (json_int_t)all->cache);
    if (out && r->gemm) {
        const ax_gemm_args *g = &r->gemm->args;
        json_t *more = json_pack(
            "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:b, s:b, s:s, s:s, s:b, s:b, s:b, s:s}", "m",
            (json_int_t)g->m, "n", (json_int_t)g->n, "k", (json_int_t)g->k, "groups",
            (json_int_t)r->gemm->groups, "lda", (json_int_t)g->lda, "ldb", (json_int_t)g->ldb, "ldc",
            (json_int_t)g->ldc, "trans_a", g->trans_a, "trans_b", g->trans_b, "dtype",
            ax_dtype_name(g->dtype), "result", ax_dtype_name(g->c_dtype), "accumulate", g->accumulate, "bias",
            r->gemm->bias, "sums", r->gemm->sums, "epilogue", epilogue[g->epilogue]);
        json_object_update(out, more);
        json_decref(more);
    }
    return cli_print_json(out);
}

/* ---- as a table ---------------------------------------------------------------------------------- */

static void print_head(const bench_gemms *all, const args *a, int ranks)
{
    char cache[32];
    const row total = total_of(all);
    printf("%s in %s, %d rank%s of %d thread%s on %s (%s)\n", all->model, ax_dtype_name(all->compute), ranks,
           ranks == 1 ? "" : "s", all->threads, all->threads == 1 ? "" : "s", all->device, all->grid);
    if (total.peak > 0)
        printf("the device%s: %.1f GFLOP/s of multiply-adds in registers\n", ranks > 1 ? " of rank 0" : "",
               total.peak * 1e-9);
    printf("%lld runs each, with operands in memory that the caches (%s) do not hold\n", (long long)a->runs,
           all->cache ? ax_format_bytes((double)all->cache, cache) : "of unknown size");
    printf("\n%-34s %6s %9s %9s %17s %8s %7s\n", "GEMM", "calls", "ms", "GFLOP/s", "[min, max]", "of peak",
           "share");
}

static void print_row(const row *r)
{
    char spread[64], of_peak[32] = "";
    snprintf(spread, sizeof spread, "[%.1f, %.1f]", r->flops / r->seconds.max * 1e-9,
             r->flops / r->seconds.min * 1e-9);
    if (r->peak > 0)
        snprintf(of_peak, sizeof of_peak, "%.0f %%", 100 * r->flops / r->seconds.median / r->peak);
    printf("%-34s %6lld %9.3f %9.1f %17s %8s %5.1f %%\n", r->name, (long long)r->calls,
           r->seconds.median * 1e3, r->flops / r->seconds.median * 1e-9, spread, of_peak, 100 * r->of_step);
}

static ax_status report(const bench_gemms *all, const args *a, int ranks)
{
    AX_CHECK(all->n, AX_ERR_USAGE, "rank 0 has no GEMM to time: choose a grid with fewer ranks");
    if (!a->json)
        print_head(all, a, ranks);
    for (int64_t i = 0; i <= all->n; i++) {
        char name[160];
        row r = total_of(all);
        if (i < all->n) {
            name_gemm(&all->gemm[i], name, sizeof name);
            r = row_of(all, &all->gemm[i], name);
        }
        if (a->json)
            AX_TRY(print_json(all, a, ranks, &r));
        else
            print_row(&r);
    }
    return AX_OK;
}

/* ---- the description of this machine ------------------------------------------------------------- */

/* Enters GEMMs, those with the most time last, so that they replace others that differ in strides only. */
static ax_status put_gemms(const bench_gemm *gemm, int64_t n, ax_machine *m)
{
    for (int64_t i = n - 1; i >= 0; i--) {
        const ax_gemm_args g = with_pointers(&gemm[i]);
        AX_TRY(ax_machine_put_gemm(m, &g, gemm[i].groups, gemm[i].seconds.median));
    }
    return AX_OK;
}

/* Enters the GEMMs of all ranks: stages of a pipeline have different ones. Rank 0's replace those of others,
 * because they were measured at the same time as those of all ranks that do the same. */
static ax_status put_all_gemms(ax_comm *world, const bench_gemms *mine, ax_machine *m)
{
    const int ranks = ax_comm_size(world);
    int64_t most = mine->n;
    bench_gemm *all;
    ax_work *work;
    AX_TRY(ax_all_reduce(world, NULL, &most, 1, AX_I64, AX_MAX, &work));
    AX_TRY(ax_wait(&work));
    AX_TRY(ax_comm_agree(world, ax_calloc((size_t)(most * (ranks + 1)), sizeof *all, &all)));
    bench_gemm *sent = all + most * ranks;
    for (int64_t i = 0; i < mine->n; i++)
        sent[i] = mine->gemm[i];
    ax_status status = ax_all_gather(world, NULL, sent, all, most * (int64_t)sizeof *sent, AX_U8, &work);
    if (status == AX_OK)
        status = ax_wait(&work);
    for (int r = ranks - 1; r >= 0 && status == AX_OK; r--) {
        int64_t n = 0;
        while (n < most && all[r * most + n].calls)
            n++;
        status = put_gemms(all + r * most, n, m);
    }
    free(all);
    return ax_comm_agree(world, status);
}

/* Adds up the kernels of all ranks. */
static ax_status add_ranks(ax_comm *world, ax_kernel_total kernel[AX_KERNEL_COUNT])
{
    double sum[AX_KERNEL_COUNT][4];
    ax_work *work;
    for (int k = 0; k < AX_KERNEL_COUNT; k++) {
        const ax_kernel_total *t = &kernel[k];
        memcpy(sum[k], (double[]){(double)t->calls, t->seconds, t->flops, t->bytes}, sizeof sum[k]);
    }
    AX_TRY(ax_all_reduce(world, NULL, sum, sizeof sum / sizeof(double), AX_F64, AX_SUM, &work));
    AX_TRY(ax_wait(&work));
    for (int k = 0; k < AX_KERNEL_COUNT; k++)
        kernel[k] = (ax_kernel_total){(int64_t)sum[k][0], sum[k][1], sum[k][2], sum[k][3]};
    return AX_OK;
}

/* Times steps three times, and enters the rates of their kernels except for GEMMs: of each kernel and rank
 * those of the step in which it took least, because what else runs on a machine often delays a whole step. */
static ax_status put_kernels(ax_comm *world, ax_config *config, ax_machine *m)
{
    enum { TIMES = 3 };
    bench_step_times least, times;
    for (int i = 0; i < TIMES; i++) {
        AX_TRY(bench_time_steps(world, config, 1, 1, NULL, &times));
        least = i ? least : times;
        for (int k = 0; k < AX_KERNEL_COUNT; k++)
            if (times.kernel[k].seconds < least.kernel[k].seconds)
                least.kernel[k] = times.kernel[k];
    }
    AX_TRY(add_ranks(world, least.kernel));
    for (int k = 0; k < AX_KERNEL_COUNT; k++)
        if (k != AX_K_gemm && k != AX_K_gemm_grouped)
            AX_TRY(ax_machine_put_kernel(m, (ax_kernel)k, &least.kernel[k]));
    return AX_OK;
}

static ax_status save(ax_comm *world, ax_config *config, const args *a, const bench_gemms *all, ax_machine *m)
{
    char text[256];
    const int ranks = (int)m->ranks_per_node;
    AX_TRY(put_kernels(world, config, m));
    AX_TRY(put_all_gemms(world, all, m));
    snprintf(text, sizeof text, "axonn %s, %s in %s on %s, %d rank%s of a node at work, %d thread%s each",
             ax_version(), all->model, ax_dtype_name(all->compute), all->device, ranks, ranks == 1 ? "" : "s",
             all->threads, all->threads == 1 ? "" : "s");
    return bench_machine_save(world, m, &m->measured.gemm, text, a->save);
}

/* ---- the verb ------------------------------------------------------------------------------------ */

static ax_status measure(ax_comm *world, ax_config *config, const void *raw)
{
    const args *a = raw;
    bench_gemms all = {.threads = 0};
    ax_machine *machine = NULL;
    if (a->save)
        AX_TRY(bench_machine_open(world, a->save, &machine));
    ax_status status = bench_time_gemms(world, config, a->runs, machine, &all);
    if (status == AX_OK)
        status = ax_comm_agree(world, ax_comm_rank(world) ? AX_OK : report(&all, a, ax_comm_size(world)));
    if (status == AX_OK && machine)
        status = save(world, config, a, &all, machine);
    bench_gemms_fini(&all);
    ax_machine_close(&machine);
    return status;
}

static ax_status run(const void *raw) { return cli_configured(raw, AX_CONFIG_TO_MEASURE, measure); }

const cli_verb verb_bench_gemm = {
    .name = "bench gemm",
    .summary = "time each GEMM (matrix product) of a configuration's training step",
    .details =
        "A dry run of a step, which allocates and computes nothing, finds the GEMMs; equal ones are timed\n"
        "once. A GEMM is named by whether A and B are transposed (T) or not (N), m x n x k, the operands'\n"
        "dtype, and the result's dtype if it differs, followed by:\n"
        "  +=           adds to the result\n"
        "  +bias        adds a bias to each column\n"
        "  +sums        also sums the columns of A, the gradient of a bias\n"
        "  gelu, gelu'  applies the activation function (GELU or another), or multiplies by its derivative\n"
        "  8 groups     rows of 8 experts by 8 matrices, timed with equally many rows of each\n"
        "  strided      rows are further apart in memory than they are long\n"
        "Operands are read from memory, not from caches, as in a step. The last row is the sum over all\n"
        "calls of a step. On several ranks, all measure at the same time and rank 0's GEMMs are shown.\n"
        "data.train is not needed. With --save, FILE becomes a description of this machine, with as many\n"
        "ranks at work as this run has; GEMMs that FILE has already stay, and are replaced if they are\n"
        "timed again. What was not measured is listed at its end.",
    .examples = "axonn bench gemm gpt.yaml\n"
                "axonn bench gemm gpt.yaml --ranks 2 --save machine.yaml\n"
                "axonn bench gemm gpt.yaml train.precision=fp32 --runs 25\n"
                "axonn bench gemm gpt.yaml runtime.isa=avx2 --json | jq -r '[.case, .of_peak] | @tsv'",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(args),
    .run = run,
    .keys = ax_config_options,
    .launches = true,
};
