/* axonn bench step: times the training steps of a configuration, as a whole and by kind of kernel. */
#include "bench/bench.h"
#include "cli/launch.h"

#include <math.h>
#include <string.h>

typedef struct args {
    cli_config_args common;
    int64_t steps, warm;
    char *sleep;
    bool json;
} args;

static const ax_option options[] = {
    CONFIG_OPTIONS(args, common),
    {"steps", AX_OPT_INT, offsetof(args, steps), "5", "[1, 100000]", .meta = "N",
     .help = "number of steps to time"},
    {"warm-up", AX_OPT_INT, offsetof(args, warm), "2", "[0, 100000]", .meta = "N",
     .help = "number of steps to run untimed, before those that are timed"},
    {"sleep", AX_OPT_PATH, offsetof(args, sleep), .meta = "NAME|FILE",
     .help = "description of a machine: kernels sleep for the time that it gives for them, in place of "
             "computing, and communication is real; also print the time that axonn plan says"},
    {"json", AX_OPT_BOOL, offsetof(args, json), "false", .help = "print the result as one JSON object"},
};

/* The kinds of kernels among which the time of a step is divided. */
typedef enum part_kind { MATMULS, ATTENTION, MEMORY_BOUND, COMPRESS, EXPAND, OPTIMIZER, PARTS } part_kind;

static const struct {
    const char *name;
    bool computes; /* true: compute-bound; false: memory-bound */
} parts[PARTS] = {{"matmuls", true},   {"attention", true}, {"memory-bound", false},
                  {"compress", false}, {"expand", false},   {"optimizer", false}};

static part_kind part_of(ax_kernel kernel)
{
    switch (kernel) {
    case AX_K_gemm:
    case AX_K_gemm_grouped:
        return MATMULS;
    case AX_K_attention:
    case AX_K_attention_grad:
        return ATTENTION;
    case AX_K_compress:
        return COMPRESS;
    case AX_K_expand:
        return EXPAND;
    case AX_K_clip:
    case AX_K_adamw:
    case AX_K_sgd:
        return OPTIMIZER;
    default:
        return MEMORY_BOUND;
    }
}

/* Returns true if a step has kernels of the part: those of pruned matrices are in their runs alone. */
static bool is_there(const ax_kernel_total sums[PARTS], part_kind part)
{
    return sums[part].calls || (part != COMPRESS && part != EXPAND);
}

/* Returns the seconds that the kernels of a part would need at the device's peak rate in FLOP/s or, if the
 * part is memory-bound, in bytes/s; 0 if that rate is not known. */
static double ideal_seconds(const bench_step_times *t, part_kind part, const ax_kernel_total *total)
{
    double rate = parts[part].computes ? t->peak : t->stream;
    return rate > 0 ? (parts[part].computes ? total->flops : total->bytes) / rate : 0;
}

/* Adds up the totals of the kernels of each part. *rest is the time of a step that is spent neither in
 * kernels nor in exposed communication (waiting for other ranks). */
static void add_up(const bench_step_times *t, ax_kernel_total sums[PARTS], double *rest)
{
    memset(sums, 0, PARTS * sizeof *sums);
    *rest = t->seconds.mean - t->exposed;
    for (int k = 0; k < AX_KERNEL_COUNT; k++) {
        ax_kernel_total *sum = &sums[part_of((ax_kernel)k)];
        sum->calls += t->kernel[k].calls;
        sum->seconds += t->kernel[k].seconds;
        sum->flops += t->kernel[k].flops;
        sum->bytes += t->kernel[k].bytes;
        *rest -= t->kernel[k].seconds;
    }
    *rest = *rest > 0 ? *rest : 0;
}

/* Returns the seconds that each rank needs before a step to decide which targets the goldfish loss drops. */
static double goldfish_seconds(const bench_step_times *t) { return t->goldfish * (double)t->tokens; }

/* ---- as JSON ------------------------------------------------------------------------------------- */

static json_t *part_json(const bench_step_times *t, part_kind part, const ax_kernel_total *sum)
{
    double ideal = ideal_seconds(t, part, sum);
    return json_pack("{s:f, s:I, s:f, s:f, s:o}", "ms", sum->seconds * 1e3, "calls", (json_int_t)sum->calls,
                     "flops", sum->flops, "bytes", sum->bytes, "of_ceiling",
                     cli_json_number(ideal > 0 && sum->seconds > 0 ? ideal / sum->seconds : NAN));
}

static json_t *kernels_json(const bench_step_times *t)
{
    json_t *all = json_object();
    for (int k = 0; k < AX_KERNEL_COUNT; k++)
        if (t->kernel[k].seconds > 0 && all)
            json_object_set_new(all, ax_kernel_name((ax_kernel)k),
                                part_json(t, part_of((ax_kernel)k), &t->kernel[k]));
    return all;
}

static ax_status print_json(const bench_step_times *t, const char *device, const args *a, int ranks)
{
    ax_kernel_total sums[PARTS];
    const char *isa = NULL;
    double rest;
    if (!strcmp(device, "cpu"))
        AX_TRY(ax_isa_chosen(&isa));
    add_up(t, sums, &rest);
    json_t *split = json_object();
    for (int p = 0; p < PARTS && split; p++)
        if (is_there(sums, (part_kind)p))
            json_object_set_new(split, parts[p].name, part_json(t, (part_kind)p, &sums[p]));
    return cli_print_json(json_pack(
        "{s:s, s:s, s:I, s:f, s:f, s:f, s:s, s:s, s:s, s:i, s:i, s:I, s:f, s:f, s:o, s:o, s:f, s:f, s:o, "
        "s:o, s:f, s:f, s:I, s:I, s:o, s:I, s:s, s:s?, s:o}",
        "case", a->common.path, "unit", "ms", "runs", (json_int_t)a->steps, "median", t->seconds.median * 1e3,
        "min", t->seconds.min * 1e3, "max", t->seconds.max * 1e3, "model", t->model, "precision",
        ax_dtype_name(t->compute), "grid", t->grid, "ranks", ranks, "threads", t->threads, "tokens",
        (json_int_t)t->tokens, "tokens_per_s", (double)t->tokens / t->seconds.median, "flops_per_s",
        t->flops / t->seconds.median, "peak_flops_per_s", cli_json_number(t->peak > 0 ? t->peak : NAN),
        "stream_bytes_per_s", cli_json_number(t->stream > 0 ? t->stream : NAN), "exposed_ms",
        t->exposed * 1e3, "rest_ms", rest * 1e3, "parts", split, "kernels", kernels_json(t), "goldfish_ms",
        goldfish_seconds(t) * 1e3, "goldfish_64_ms", goldfish_seconds(t) * 64e3 / ranks, "mem_planned",
        (json_int_t)ax_memory_total(&t->memory.planned), "mem_allocated", (json_int_t)t->memory.allocated,
        "mem_limit", t->memory.limit ? json_integer((json_int_t)t->memory.limit) : json_null(), "mem_held",
        (json_int_t)t->memory.held, "device", device, "isa", isa, "planned_ms",
        cli_json_number(t->planned > 0 ? t->planned * 1e3 : NAN)));
}

/* ---- as a table ---------------------------------------------------------------------------------- */

static void print_row(const char *name, double seconds, double step)
{
    printf("%-16s %9.1f %6.1f %%", name, seconds * 1e3, 100 * seconds / step);
}

static void print_device(const bench_step_times *t, const args *a, int ranks)
{
    if (a->sleep) {
        printf("kernels sleep for the times of %s\n", a->sleep);
        return;
    }
    printf("the device%s: ", ranks > 1 ? " of rank 0" : "");
    if (t->peak > 0)
        printf("%.1f GFLOP/s of multiply-adds in registers, ", t->peak * 1e-9);
    if (t->stream > 0)
        printf("%.1f GB/s streamed\n", t->stream * 1e-9);
    else
        printf("no memory for measuring GB/s\n");
}

static ax_status report(const bench_step_times *t, const char *device, const args *a, int ranks)
{
    if (a->json)
        return print_json(t, device, a, ranks);
    ax_kernel_total sums[PARTS];
    double rest, ideal = 0;
    add_up(t, sums, &rest);
    printf("%s in %s, %lld tokens a step, %d rank%s of %d thread%s (%s)\n", t->model,
           ax_dtype_name(t->compute), (long long)t->tokens, ranks, ranks == 1 ? "" : "s", t->threads,
           t->threads == 1 ? "" : "s", t->grid);
    print_device(t, a, ranks);
    printf("\n%-16s %9s %8s  %s\n", "", "ms", "share", "rate");
    for (int p = 0; p < PARTS; p++) {
        if (!is_there(sums, (part_kind)p))
            continue;
        bool computes = parts[p].computes;
        double seconds = sums[p].seconds, best = ideal_seconds(t, (part_kind)p, &sums[p]);
        print_row(parts[p].name, seconds, t->seconds.mean);
        if (seconds > 0)
            printf("  %7.1f %s", (computes ? sums[p].flops : sums[p].bytes) / seconds * 1e-9,
                   computes ? "GFLOP/s" : "GB/s   ");
        if (seconds > 0 && best > 0)
            printf(", %3.0f %% of the device's rate", 100 * best / seconds);
        printf("\n");
        ideal += p >= MEMORY_BOUND && p < OPTIMIZER ? 0 : best;
    }
    if (ranks > 1) {
        print_row("communication", t->exposed, t->seconds.mean);
        printf("  time spent waiting for other ranks\n");
    }
    print_row("the rest", rest, t->seconds.mean);
    printf("\n");
    print_row("step", t->seconds.mean, t->seconds.mean);
    printf("  median %.1f, from %.1f to %.1f in %lld steps: %.1f tokens/s\n", t->seconds.median * 1e3,
           t->seconds.min * 1e3, t->seconds.max * 1e3, (long long)a->steps,
           (double)t->tokens / t->seconds.median);
    if (t->planned > 0) {
        print_row("planned", t->planned, t->seconds.mean);
        printf("  by axonn plan --machine %s\n", a->sleep);
    }
    if (t->goldfish > 0) {
        print_row("goldfish loss", goldfish_seconds(t), t->seconds.mean);
        printf("  before the step: %.1f ns per token to decide which to drop; for a batch of 64 such ranks "
               "%.2f %%\n",
               t->goldfish * 1e9, 6400 * goldfish_seconds(t) / ranks / t->seconds.mean);
    }
    if (t->peak > 0) {
        print_row("at best", ideal, t->seconds.mean);
        printf("  matmuls, attention and optimizer at the device's rates\n");
    }
    printf("%-16s ", "memory");
    bench_memory_print(&t->memory);
    return AX_OK;
}

/* ---- the verb ------------------------------------------------------------------------------------ */

static ax_status measure(ax_comm *world, ax_config *config, const void *raw)
{
    const args *a = raw;
    bench_step_times times;
    ax_machine *machine = NULL;
    ax_status status = ax_comm_agree(world, a->sleep ? ax_machine_open(a->sleep, &machine) : AX_OK);
    if (status == AX_OK)
        status = bench_time_steps(world, config, a->warm, a->steps, machine, &times);
    ax_machine_close(&machine);
    if (status == AX_OK)
        status = ax_comm_agree(
            world, ax_comm_rank(world) ? AX_OK : report(&times, config->device, a, ax_comm_size(world)));
    return status;
}

static ax_status run(const void *raw) { return cli_configured(raw, AX_CONFIG_TO_MEASURE, measure); }

const cli_verb verb_bench_step = {
    .name = "bench step",
    .summary = "time a configuration's training steps, in total and by part",
    .details =
        "Runs real training steps on random tokens. Reads only model.from and the tokenizer (data.train is\n"
        "not needed), and writes no files of a run. Rates are compared with the device's own, measured\n"
        "after the steps: multiply-adds in registers, and streaming over an array in memory. A part whose\n"
        "data stays in caches can be faster than that. Parts are means over the steps; tokens/s is that of\n"
        "the median step. With data.goldfish.k it also times how long the host takes to decide which\n"
        "targets the goldfish loss drops; this time is not part of the steps. On several ranks, a step's\n"
        "time is that of the slowest rank, and the parts are rank 0's.\n"
        "\n"
        "With --sleep kernels take the time that a description of a machine gives (docs/guide/machines.md),\n"
        "and compute nothing, so that ranks that share cores do not delay one another: it shows a network\n"
        "under the steps of faster devices, and how near plans are. Collectives and messages are real, as\n"
        "are copies. It needs device=cpu, and experts need moe.capacity.",
    .examples = "axonn bench step gpt.yaml\n"
                "axonn bench step gpt.yaml --ranks 2 grid.data=2 train.precision=bf16\n"
                "axonn bench step gpt.yaml --json | jq .kernels\n"
                "mpirun -n 16 axonn bench step gpt.yaml grid.data=16 --sleep h100x8.yaml",
    .options = options,
    .option_count = AX_COUNT(options),
    .args_size = sizeof(args),
    .run = run,
    .keys = ax_config_options,
    .launches = true,
};
