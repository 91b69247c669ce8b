/* A test that fails when a kernel has become much slower, compared with the device's peak rates at the same
 * time.
 *
 *     build/bench_ratios            # or ctest --test-dir build -L bench; AXONN_ISA chooses the kernels
 *
 * A case's rate is divided by the device's peak rate: multiply-adds in registers (ax_device_peak) for
 * compute-bound kernels, streaming over an array (ax_device_stream) for memory-bound ones. Only such ratios
 * are tested, because they are about the same on other and on busy machines. Cases and peak rates are
 * measured in turns, and the best of all turns counts. A case below its floor is measured twice more; earlier
 * results still count. A floor is about half of the lowest ratio of any instruction set, so noise does not
 * reach it. One thread is timed in CPU time, which does not count while others use the core; all cores in
 * elapsed time, with floors that hold even if others use one core of two all the time. Prints a table; the
 * exit code is 1 if a case is below its floor. */
#include "cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 8, CHANCES = 3 };
static const double PATIENCE = 0.004; /* seconds to measure a peak rate in a round */
/* Factor for floors of bf16 products if the processor multiplies bf16 with AMX tiles. Tiles may be three
 * times slower for seconds at a time (docs/decisions/0011): a product then reaches 255 GFLOP/s of a peak of
 * 2210, and half of that is 1/16. */
static const double TILES = 1.0 / 8;

typedef enum ceiling { PEAK_F32, PEAK_BF16, STREAM, CEILINGS } ceiling;
static const char *const ceiling_names[CEILINGS] = {"fp32 peak", "bf16 peak", "stream"};

/* Cases of bench/cases.c, and the lowest permitted ratios: on one thread, on all cores (0: not measured). */
static const struct {
    const char *name;
    ceiling of;
    double floor[2];
    bool vectors; /* the floor applies only to instruction sets with vectors */
} floors[] = {
    {"gemm f32 NT 512x2304x768 forward", PEAK_F32, {0.5, 0.25}, false},
    {"gemm f32 NN 512x768x2304 dx", PEAK_F32, {0.5, 0.25}, false},
    {"gemm f32 TN 2304x768x512 dw", PEAK_F32, {0.5, 0.25}, false},
    {"gemm f32 NT 1x50257x768 generation", STREAM, {0.25, 0.25}, true},
    {"gemm bf16 NT 512x2304x768 forward", PEAK_BF16, {0.5, 0.25}, false},
    {"gemm bf16 NN 512x768x2304 dx", PEAK_BF16, {0.5, 0.25}, false},
    {"gemm bf16 TN 2304x768x512 dw", PEAK_BF16, {0.5, 0.25}, false},
    {"gemm bf16 NT 1x50257x768 generation", STREAM, {0.25, 0.25}, true},
    {"attention f32 b2 t256 h6/6 d64", PEAK_F32, {0.2, 0}, false},
    {"attn_grad f32 b2 t256 h6/6 d64", PEAK_F32, {0.2, 0}, false},
    {"attention bf16 b2 t256 h6/6 d64", PEAK_BF16, {0.16, 0}, false},
    {"attn_grad bf16 b2 t256 h6/6 d64", PEAK_BF16, {0.19, 0}, false},
    {"attention bf16 b1 t1024 h2/2 d64", PEAK_BF16, {0.25, 0}, false},
    {"attn_grad bf16 b1 t1024 h2/2 d64", PEAK_BF16, {0.25, 0}, false},
    {"attention bf16 b1 t1024 h1/1 d128", PEAK_BF16, {0.25, 0}, false},
    {"attn_grad bf16 b1 t1024 h1/1 d128", PEAK_BF16, {0.25, 0}, false},
    {"adamw f32 6x1048576 + bf16 copy", STREAM, {0.5, 0.4}, true},
    {"adamw f32 6x1048576 that nothing touches any more", STREAM, {0.5, 0.4}, true},
    {"add f32 12288x768", STREAM, {0.35, 0}, true},
    {"convert f32 6x1048576 to bf16", STREAM, {0.35, 0}, true},
    {"activation bf16 12288x1024 gelu tanh", PEAK_F32, {0.06, 0}, true},
    {"norm_apply bf16 12288x768", STREAM, {0.18, 0}, true},
    {"ce_stats bf16 512x50257", PEAK_F32, {0.1, 0}, true},
    {"norm f32 12288x768 rms of a sum", STREAM, {0.28, 0}, true},
    {"norm_grad f32 12288x768 rms, added", STREAM, {0.27, 0}, true},
    {"rope f32 12288x768 heads of 64", STREAM, {0.5, 0}, true},
    {"glu f32 12288x1024 silu", STREAM, {0.2, 0}, true},
    {"glu_grad f32 12288x1024 silu", STREAM, {0.25, 0}, true},
    {"norm bf16 12288x768 rms of a sum", STREAM, {0.13, 0}, true},
    {"norm_grad bf16 12288x768 rms, added", STREAM, {0.1, 0}, true},
    {"rope bf16 12288x768 heads of 64", STREAM, {0.17, 0}, true},
    {"glu bf16 12288x1024 silu", STREAM, {0.1, 0}, true},
    {"glu_grad bf16 12288x1024 silu", STREAM, {0.1, 0}, true},
};
enum { CASES = AX_COUNT(floors) };

typedef struct bench {
    ax_device *dev[2];           /* with one thread; with all cores (NULL if there is one core) */
    double ceiling[2][CEILINGS]; /* best rates so far */
    const char *isa;
    bool vectors, tiles;
    bench_call call[CASES]; /* in the order of `floors` */
    double best[CASES][2];  /* best rates so far */
} bench;

static void must(ax_status status, const char *what)
{
    if (status == AX_OK)
        return;
    fprintf(stderr, "bench_ratios: %s: %s\n", what, ax_error_message());
    exit(2);
}

/* ---- cases --------------------------------------------------------------------------------------- */

/* Returns the index of a case in `floors`; CASES: there is none. */
static int find(const char *name)
{
    int i = 0;
    while (i < CASES && strcmp(floors[i].name, name))
        i++;
    return i;
}

/* The gradient of attention is made together with attention. */
static bool has_floor(void *user, const char *name)
{
    (void)user;
    return find(name) < CASES;
}

static void take(void *user, const bench_group *group)
{
    bench *b = user;
    for (int i = 0; i < group->calls; i++) {
        int at = find(group->call[i].name);
        if (at < CASES)
            b->call[at] = group->call[i];
    }
}

/* Makes the cases. */
static void make_cases(bench *b)
{
    bench_cases cases = {.dev = b->dev[0],
                         .shapes = &bench_of_ratios,
                         .keep = true,
                         .wants = has_floor,
                         .take = take,
                         .user = b};
    bench_cases_run(&cases);
    for (int i = 0; i < CASES; i++)
        if (!*b->call[i].name) {
            fprintf(stderr, "bench_ratios: bench/cases.c has no case \"%s\"\n", floors[i].name);
            exit(2);
        }
}

/* Returns the floor of a case, or 0 if the case is not measured. */
static double floor_of(const bench *b, int i, int d)
{
    if (!b->dev[d] || (floors[i].vectors && !b->vectors))
        return 0;
    return floors[i].floor[d] * (b->tiles && floors[i].of == PEAK_BF16 ? TILES : 1);
}

/* ---- measuring ----------------------------------------------------------------------------------- */

static void keep_best(double *best, double rate) { *best = rate > *best ? rate : *best; }

static void measure_ceilings(bench *b, int d)
{
    double rate;
    must(ax_device_peak(b->dev[d], AX_F32, PATIENCE, &rate), "peak");
    keep_best(&b->ceiling[d][PEAK_F32], rate);
    must(ax_device_peak(b->dev[d], AX_BF16, PATIENCE, &rate), "peak");
    keep_best(&b->ceiling[d][PEAK_BF16], rate);
    must(ax_device_stream(b->dev[d], PATIENCE, &rate), "stream");
    keep_best(&b->ceiling[d][STREAM], rate);
}

static void measure_case(bench *b, int d, int at)
{
    double flops, bytes;
    const bench_call *c = &b->call[at];
    ax_stream stream = {b->dev[d], NULL};
    ax_kernel_cost(c->kernel, &c->args, &flops, &bytes);
    for (int i = 0; i < 2; i++) { /* the first run wakes the threads; the faster one counts */
        double begin = d ? ax_now() : ax_cpu_now();
        must(ax_launch(&stream, c->kernel, &c->args), c->name);
        double seconds = (d ? ax_now() : ax_cpu_now()) - begin;
        keep_best(&b->best[at][d], (floors[at].of == STREAM ? bytes : flops) / seconds);
    }
}

static double ratio(const bench *b, int i, int d) { return b->best[i][d] / b->ceiling[d][floors[i].of]; }

static bool is_below(const bench *b, int i, int d)
{
    return floor_of(b, i, d) > 0 && ratio(b, i, d) < floor_of(b, i, d);
}

static int below(const bench *b)
{
    int n = 0;
    for (int i = 0; i < CASES; i++)
        for (int d = 0; d < 2; d++)
            n += is_below(b, i, d);
    return n;
}

static void measure(bench *b)
{
    for (int round = 0; round < ROUNDS; round++)
        for (int d = 0; d < 2 && b->dev[d]; d++) {
            measure_ceilings(b, d);
            for (int i = 0; i < CASES; i++)
                if (floor_of(b, i, d) > 0)
                    measure_case(b, d, i);
        }
}

/* ---- the table ----------------------------------------------------------------------------------- */

static void print_table(const bench *b)
{
    printf("kernels for %s\n", b->isa);
    for (int d = 0; d < 2 && b->dev[d]; d++)
        printf("%d thread%s: fp32 %.1f GFLOP/s, bf16 %.1f GFLOP/s, stream %.1f GB/s\n", b->dev[d]->threads,
               b->dev[d]->threads == 1 ? "" : "s", b->ceiling[d][PEAK_F32] * 1e-9,
               b->ceiling[d][PEAK_BF16] * 1e-9, b->ceiling[d][STREAM] * 1e-9);
    printf("\n%-50s %-10s %8s %6s %6s\n", "case", "of", "threads", "ratio", "floor");
    for (int i = 0; i < CASES; i++)
        for (int d = 0; d < 2; d++)
            if (floor_of(b, i, d) > 0)
                printf("%-50s %-10s %8d %6.2f %6.2f%s\n", floors[i].name, ceiling_names[floors[i].of],
                       b->dev[d]->threads, ratio(b, i, d), floor_of(b, i, d),
                       is_below(b, i, d) ? "  below" : "");
    fflush(stdout);
}

static void complain(const bench *b)
{
    for (int i = 0; i < CASES; i++)
        for (int d = 0; d < 2; d++)
            if (is_below(b, i, d))
                fprintf(
                    stderr,
                    "bench_ratios: %s on %d thread%s reaches %.3f of the device's %s, %.0f %% less than the "
                    "floor of %.2f, in the best of %d runs\n",
                    floors[i].name, b->dev[d]->threads, b->dev[d]->threads == 1 ? "" : "s", ratio(b, i, d),
                    ceiling_names[floors[i].of], 100 * (1 - ratio(b, i, d) / floor_of(b, i, d)),
                    floor_of(b, i, d), 2 * ROUNDS * CHANCES);
}

int main(void)
{
    static bench b;
    must(ax_isa_chosen(&b.isa), "AXONN_ISA");
    b.vectors = strcmp(b.isa, "generic") != 0;
    b.tiles = !strcmp(b.isa, "avx512_amx");
    must(ax_device_open("cpu", 1, &b.dev[0]), "cpu");
    make_cases(&b);
    if (ax_cores_usable() > 1)
        must(ax_device_open("cpu", 0, &b.dev[1]), "cpu");
    int bad = 1;
    for (int chance = 0; chance < CHANCES && bad; chance++) {
        measure(&b);
        bad = below(&b);
        if (bad && chance + 1 < CHANCES)
            printf("%d below the floor: measuring on\n", bad);
    }
    print_table(&b);
    complain(&b);
    ax_device_close(&b.dev[1]); /* the operands are freed when the process ends */
    ax_device_close(&b.dev[0]);
    return bad ? 1 : 0;
}
