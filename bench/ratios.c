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
#include "axonn/dev.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS = 8, CHANCES = 3, MAX_CASES = 40, STAGED = 1 << 20 };
static const double PATIENCE = 0.004; /* seconds to measure a peak rate in a round */
/* Factor for floors of bf16 products if the processor multiplies bf16 with AMX tiles. Tiles may be three
 * times slower for seconds at a time (docs/decisions/0011): a product then reaches 255 GFLOP/s of a peak of
 * 2210, and half of that is 1/16. */
static const double TILES = 1.0 / 8;

typedef enum ceiling { PEAK_F32, PEAK_BF16, STREAM, CEILINGS } ceiling;
static const char *const ceiling_names[CEILINGS] = {"fp32 peak", "bf16 peak", "stream"};

typedef union kernel_args {
    ax_gemm_args gemm;
    ax_attention_args attention;
    ax_attention_grad_args attention_grad;
    ax_norm_args norm;
    ax_norm_apply_args norm_apply;
    ax_norm_grad_args norm_grad;
    ax_rope_args rope;
    ax_glu_args glu;
    ax_glu_grad_args glu_grad;
    ax_activation_args activation;
    ax_add_args add;
    ax_ce_stats_args ce_stats;
    ax_convert_args convert;
    ax_adamw_args adamw;
} kernel_args;

typedef struct bench_case {
    char name[48];
    ax_kernel kernel;
    kernel_args args;
    ceiling of;
    double floor[2]; /* lowest permitted ratio: on one thread, on all cores (0: not measured) */
    bool vectors;    /* the floor applies only to instruction sets with vectors */
    double best[2];  /* best rate so far */
} bench_case;

typedef struct bench {
    ax_device *dev[2]; /* with one thread; with all cores (NULL if there is one core) */
    float *staged;     /* [STAGED] normally distributed numbers */
    double best[2][CEILINGS];
    const char *isa;
    bool vectors, tiles;
    int cases;
    bench_case all[MAX_CASES];
} bench;

static void must(ax_status status, const char *what)
{
    if (status == AX_OK)
        return;
    fprintf(stderr, "bench_ratios: %s: %s\n", what, ax_error_message());
    exit(2);
}

/* ---- cases --------------------------------------------------------------------------------------- */

static void *operand(bench *b, ax_dtype dtype, int64_t n)
{
    void *memory;
    size_t size = ax_dtype_size(dtype);
    ax_stream stream = {b->dev[0], NULL};
    must(ax_device_alloc(b->dev[0], (size_t)n * size, &memory), "operands");
    for (int64_t i = 0; i < n && dtype != AX_I32; i += STAGED) {
        ax_convert_args c = {.n = ax_min(STAGED, n - i), .x = b->staged, .x_dtype = AX_F32, .y_dtype = dtype};
        c.y = (char *)memory + (size_t)i * size;
        must(ax_run_convert(&stream, &c), "operands");
    }
    return memory;
}

static void *filled(bench *b, int64_t n, double value)
{
    void *memory;
    ax_stream stream = {b->dev[0], NULL};
    must(ax_device_alloc(b->dev[0], (size_t)n * 4, &memory), "operands");
    must(ax_run_fill(&stream, &(ax_fill_args){n, value, memory, AX_F32}), "operands");
    return memory;
}

static bench_case *add_case(bench *b, ax_kernel kernel, ax_dtype dtype, const char *what, ceiling of,
                            double one, double all)
{
    bench_case *c = &b->all[b->cases++];
    if (b->tiles && of == PEAK_BF16)
        one *= TILES, all *= TILES;
    *c = (bench_case){.kernel = kernel, .of = of, .floor = {one, all}, .vectors = of == STREAM};
    snprintf(c->name, sizeof c->name, "%s %s %s", ax_kernel_name(kernel), ax_dtype_name(dtype), what);
    return c;
}

static ceiling peak_of(ax_dtype dtype) { return dtype == AX_BF16 ? PEAK_BF16 : PEAK_F32; }

static void add_product(bench *b, ax_dtype dtype, int64_t m, int64_t n, int64_t k, const char *how,
                        ceiling of, double one, double all)
{
    char what[40];
    bool ta = how[0] == 'T', tb = how[1] == 'T';
    snprintf(what, sizeof what, "%s %lldx%lldx%lld", how, (long long)m, (long long)n, (long long)k);
    ax_gemm_args *g = &add_case(b, AX_K_gemm, dtype, what, of, one, all)->args.gemm;
    g->m = m, g->n = n, g->k = k, g->dtype = dtype, g->trans_a = ta, g->trans_b = tb;
    g->c_dtype = ta ? AX_F32 : dtype; /* gradients of weights are kept in fp32 */
    g->lda = ta ? m : k, g->ldb = tb ? k : n, g->ldc = n;
    g->a = operand(b, dtype, m * k), g->b = operand(b, dtype, n * k), g->c = operand(b, g->c_dtype, m * n);
}

static void add_attention(bench *b, ax_dtype dtype, int64_t B, int64_t T, int64_t H, int64_t D,
                          double forward, double backward)
{
    const int64_t N = B * T * H * D;
    char what[40];
    snprintf(what, sizeof what, "%lldx%lld, %lld heads of %lld", (long long)B, (long long)T, (long long)H,
             (long long)D);
    ax_attention_args *a =
        &add_case(b, AX_K_attention, dtype, what, peak_of(dtype), forward, 0)->args.attention;
    *a = (ax_attention_args){.batch = B, .q_len = T, .kv_len = T, .heads = H, .kv_heads = H, .head_dim = D};
    a->q_ld = a->kv_ld = H * D;
    a->scale = 1 / sqrt((double)D), a->dtype = dtype;
    a->q = operand(b, dtype, N), a->k = operand(b, dtype, N), a->v = operand(b, dtype, N);
    a->o = operand(b, dtype, N), a->lse = operand(b, AX_F32, B * T * H);
    ax_attention_grad_args *g =
        &add_case(b, AX_K_attention_grad, dtype, "the same", peak_of(dtype), backward, 0)
             ->args.attention_grad;
    *g = (ax_attention_grad_args){.batch = B, .q_len = T, .heads = H, .kv_heads = H, .head_dim = D};
    g->q_ld = g->kv_ld = H * D;
    g->scale = a->scale, g->dtype = dtype, g->q = a->q, g->k = a->k, g->v = a->v, g->o = a->o;
    g->lse = a->lse, g->dout = operand(b, dtype, N), g->delta = operand(b, AX_F32, B * T * H);
    g->dq = operand(b, dtype, N), g->dk = operand(b, dtype, N), g->dv = operand(b, dtype, N);
}

/* Adds a case: AdamW on n elements in 48 arrays of equal length. */
static void add_update(bench *b, const char *what, int64_t n, float *m, float *v, const float *g)
{
    enum { ARRAYS = 48 };
    static const ax_update_numbers now = {
        .lr = 1e-3, .correction1 = 0.1, .correction2 = 0.05, .grad_scale = 1};
    float *w = operand(b, AX_F32, n);
    uint16_t *copy = operand(b, AX_BF16, n);
    ax_update_array *array;
    must(ax_calloc(ARRAYS, sizeof *array, &array), "arrays"); /* host memory: the device is a processor */
    for (int i = 0; i < ARRAYS; i++) {
        int64_t at = i * (n / ARRAYS);
        array[i] = (ax_update_array){n / ARRAYS, at, w + at, m + at, v + at, copy + at, g + at, 1, AX_F32};
    }
    add_case(b, AX_K_adamw, AX_F32, what, STREAM, 0.5, 0.4)->args.adamw =
        (ax_adamw_args){.n = n,
                        .copied = n,
                        .arrays = ARRAYS,
                        .beta1 = 0.9,
                        .beta2 = 0.95,
                        .eps = 1e-8,
                        .decay = 0.1,
                        .array = array,
                        .table = array,
                        .numbers = &now,
                        .dtype = AX_F32,
                        .copy_dtype = AX_BF16};
}

/* Adds memory-bound cases, with arrays larger than the caches of a small machine. */
static void add_memory(bench *b)
{
    enum { N = 6 << 20, R = 24 << 10, C = 768, V = 50257, ROWS = 512 };
    const int first = b->cases;
    add_update(b, "6M + bf16 copy", N, operand(b, AX_F32, N), filled(b, N, 0), operand(b, AX_F32, N));
    /* moments that shrank to subnormal numbers, as without gradients; the kernel flushes them to 0 */
    add_update(b, "6M that nothing touches", N, filled(b, N, 1e-40), filled(b, N, 1e-40), filled(b, N, 0));
    add_case(b, AX_K_add, AX_F32, "6M", STREAM, 0.35, 0)->args.add = (ax_add_args){.n = N,
                                                                                   .a = operand(b, AX_F32, N),
                                                                                   .b = operand(b, AX_F32, N),
                                                                                   .y = operand(b, AX_F32, N),
                                                                                   .dtype = AX_F32};
    add_case(b, AX_K_convert, AX_F32, "6M to bf16", STREAM, 0.35, 0)->args.convert =
        (ax_convert_args){.n = N,
                          .x = operand(b, AX_F32, N),
                          .y = operand(b, AX_BF16, N),
                          .x_dtype = AX_F32,
                          .y_dtype = AX_BF16};
    add_case(b, AX_K_activation, AX_BF16, "12M gelu", PEAK_F32, 0.06, 0)->args.activation =
        (ax_activation_args){
            .n = 2 * N, .x = operand(b, AX_BF16, 2 * N), .y = operand(b, AX_BF16, 2 * N), .dtype = AX_BF16};
    add_case(b, AX_K_norm_apply, AX_BF16, "24Kx768", STREAM, 0.18, 0)->args.norm_apply =
        (ax_norm_apply_args){.rows = R,
                             .cols = C,
                             .global_cols = C,
                             .eps = 1e30,
                             .x = operand(b, AX_BF16, (int64_t)R * C),
                             .sum = operand(b, AX_F32, R),
                             .m2 = operand(b, AX_F32, R),
                             .weight = operand(b, AX_F32, C),
                             .bias = operand(b, AX_F32, C),
                             .y = operand(b, AX_BF16, (int64_t)R * C),
                             .dtype = AX_BF16};
    add_case(b, AX_K_ce_stats, AX_BF16, "512x50257", PEAK_F32, 0.1, 0)->args.ce_stats =
        (ax_ce_stats_args){.rows = ROWS,
                           .vocab = V,
                           .ld = V,
                           .logits = operand(b, AX_BF16, (int64_t)ROWS * V),
                           .targets = operand(b, AX_I32, ROWS),
                           .max = operand(b, AX_F32, ROWS),
                           .sum = operand(b, AX_F32, ROWS),
                           .target_logit = operand(b, AX_F32, ROWS),
                           .dtype = AX_BF16};
    for (int i = first; i < b->cases; i++)
        b->all[i].vectors = true;
}

/* Adds the memory-bound kernels of a Llama block: RMSNorm, rotary positions, gated MLP. */
static void add_block(bench *b, ax_dtype dtype)
{
    static const double of_f32[] = {0.28, 0.27, 0.5, 0.2, 0.25}, of_bf16[] = {0.13, 0.1, 0.17, 0.1, 0.1};
    const double *floor = dtype == AX_F32 ? of_f32 : of_bf16;
    enum { R = 12 << 10, C = 768, D = 64, POSITIONS = 1024 };
    const int64_t n = (int64_t)R * C;
    const int first = b->cases;
    void *t[5];
    int32_t *positions = operand(b, AX_I32, R); /* host memory: the device is a processor */
    for (int i = 0; i < 5; i++)
        t[i] = operand(b, dtype, n);
    for (int r = 0; r < R; r++)
        positions[r] = r % POSITIONS;
    add_case(b, AX_K_norm, dtype, "12Kx768 rms", STREAM, floor[0], 0)->args.norm = (ax_norm_args){
        .rows = R, .cols = C, .eps = 1e-5, .a = t[0], .m2 = operand(b, AX_F32, R), .y = t[1], .dtype = dtype};
    ax_norm_args *norm = &b->all[first].args.norm;
    norm->weight = operand(b, AX_F32, C), norm->kind = AX_NORM_RMS;
    add_case(b, AX_K_norm_grad, dtype, "12Kx768 rms", STREAM, floor[1], 0)->args.norm_grad =
        (ax_norm_grad_args){.rows = R,
                            .cols = C,
                            .eps = 1e30,
                            .x = t[0],
                            .dy = t[1],
                            .add = t[2],
                            .m2 = norm->m2,
                            .weight = norm->weight,
                            .dx = t[3],
                            .dweight = operand(b, AX_F32, C),
                            .dtype = dtype,
                            .kind = AX_NORM_RMS};
    add_case(b, AX_K_rope, dtype, "12Kx768, heads of 64", STREAM, floor[2], 0)->args.rope =
        (ax_rope_args){.rows = R,
                       .heads = C / D,
                       .head_dim = D,
                       .ld = C,
                       .table_rows = POSITIONS,
                       .positions = positions,
                       .table = filled(b, (int64_t)POSITIONS * D, 0.70710678),
                       .x = t[0],
                       .dtype = dtype};
    add_case(b, AX_K_glu, dtype, "9M silu", STREAM, floor[3], 0)->args.glu = (ax_glu_args){
        .rows = R, .cols = C, .ld = C, .gate = t[0], .up = t[1], .y = t[2], .dtype = dtype, .kind = AX_SILU};
    add_case(b, AX_K_glu_grad, dtype, "9M silu", STREAM, floor[4], 0)->args.glu_grad =
        (ax_glu_grad_args){.rows = R,
                           .cols = C,
                           .ld = C,
                           .gate = t[0],
                           .up = t[1],
                           .dy = t[2],
                           .dgate = t[3],
                           .dup = t[4],
                           .dtype = dtype,
                           .kind = AX_SILU};
}

static void add_cases(bench *b)
{
    for (int i = 0; i < 2; i++) {
        ax_dtype dtype = i ? AX_BF16 : AX_F32;
        add_product(b, dtype, 512, 1536, 512, "NT", peak_of(dtype), 0.5, 0.25);
        add_product(b, dtype, 512, 512, 1536, "NN", peak_of(dtype), 0.5, 0.25);
        add_product(b, dtype, 1536, 512, 512, "TN", peak_of(dtype), 0.5, 0.25);
        add_product(b, dtype, 1, 50257, 512, "NT", STREAM, 0.25, 0.25);
        add_attention(b, dtype, 2, 256, 6, 64, i ? 0.16 : 0.2, i ? 0.19 : 0.2);
    }
    add_attention(b, AX_BF16, 1, 1024, 2, 64, 0.25, 0.25);
    add_attention(b, AX_BF16, 1, 1024, 1, 128, 0.25, 0.25);
    add_memory(b);
    add_block(b, AX_F32);
    add_block(b, AX_BF16);
}

/* ---- measuring ----------------------------------------------------------------------------------- */

static void keep_best(double *best, double rate) { *best = rate > *best ? rate : *best; }

static void measure_ceilings(bench *b, int d)
{
    double rate;
    must(ax_device_peak(b->dev[d], AX_F32, PATIENCE, &rate), "peak");
    keep_best(&b->best[d][PEAK_F32], rate);
    must(ax_device_peak(b->dev[d], AX_BF16, PATIENCE, &rate), "peak");
    keep_best(&b->best[d][PEAK_BF16], rate);
    must(ax_device_stream(b->dev[d], PATIENCE, &rate), "stream");
    keep_best(&b->best[d][STREAM], rate);
}

static void measure_case(bench *b, int d, bench_case *c)
{
    double flops, bytes;
    ax_stream stream = {b->dev[d], NULL};
    ax_kernel_cost(c->kernel, &c->args, &flops, &bytes);
    for (int i = 0; i < 2; i++) { /* the first run wakes the threads; the faster one counts */
        double begin = d ? ax_now() : ax_cpu_now();
        must(ax_launch(&stream, c->kernel, &c->args), c->name);
        double seconds = (d ? ax_now() : ax_cpu_now()) - begin;
        keep_best(&c->best[d], (c->of == STREAM ? bytes : flops) / seconds);
    }
}

static double ratio(const bench *b, const bench_case *c, int d) { return c->best[d] / b->best[d][c->of]; }

static bool has_floor(const bench *b, const bench_case *c, int d)
{
    return b->dev[d] && c->floor[d] > 0 && (b->vectors || !c->vectors);
}

static int below(const bench *b)
{
    int n = 0;
    for (int i = 0; i < b->cases; i++)
        for (int d = 0; d < 2; d++)
            n += has_floor(b, &b->all[i], d) && ratio(b, &b->all[i], d) < b->all[i].floor[d];
    return n;
}

static void measure(bench *b)
{
    for (int round = 0; round < ROUNDS; round++)
        for (int d = 0; d < 2 && b->dev[d]; d++) {
            measure_ceilings(b, d);
            for (int i = 0; i < b->cases; i++)
                if (has_floor(b, &b->all[i], d))
                    measure_case(b, d, &b->all[i]);
        }
}

/* ---- the table ----------------------------------------------------------------------------------- */

static void print_table(const bench *b)
{
    printf("kernels for %s\n", b->isa);
    for (int d = 0; d < 2 && b->dev[d]; d++)
        printf("%d thread%s: fp32 %.1f GFLOP/s, bf16 %.1f GFLOP/s, stream %.1f GB/s\n", b->dev[d]->threads,
               b->dev[d]->threads == 1 ? "" : "s", b->best[d][PEAK_F32] * 1e-9, b->best[d][PEAK_BF16] * 1e-9,
               b->best[d][STREAM] * 1e-9);
    printf("\n%-42s %-10s %8s %6s %6s\n", "case", "of", "threads", "ratio", "floor");
    for (int i = 0; i < b->cases; i++)
        for (int d = 0; d < 2; d++)
            if (has_floor(b, &b->all[i], d)) {
                const bench_case *c = &b->all[i];
                printf("%-42s %-10s %8d %6.2f %6.2f%s\n", c->name, ceiling_names[c->of], b->dev[d]->threads,
                       ratio(b, c, d), c->floor[d], ratio(b, c, d) < c->floor[d] ? "  below" : "");
            }
    fflush(stdout);
}

static void complain(const bench *b)
{
    for (int i = 0; i < b->cases; i++)
        for (int d = 0; d < 2; d++) {
            const bench_case *c = &b->all[i];
            if (has_floor(b, c, d) && ratio(b, c, d) < c->floor[d])
                fprintf(
                    stderr,
                    "bench_ratios: %s on %d thread%s reaches %.3f of the device's %s, %.0f %% less than the "
                    "floor of %.2f, in the best of %d runs\n",
                    c->name, b->dev[d]->threads, b->dev[d]->threads == 1 ? "" : "s", ratio(b, c, d),
                    ceiling_names[c->of], 100 * (1 - ratio(b, c, d) / c->floor[d]), c->floor[d],
                    2 * ROUNDS * CHANCES);
        }
}

int main(void)
{
    static bench b;
    must(ax_isa_chosen(&b.isa), "AXONN_ISA");
    b.vectors = strcmp(b.isa, "generic") != 0;
    b.tiles = !strcmp(b.isa, "avx512_amx");
    must(ax_device_open("cpu", 1, &b.dev[0]), "cpu");
    ax_stream stream = {b.dev[0], NULL};
    must(ax_device_alloc(b.dev[0], STAGED * sizeof(float), (void **)&b.staged), "operands");
    ax_init_normal_args normal = {.extent = {1, 1, 1, STAGED}, .n = {1, 1, 1, STAGED}, .std = 1};
    normal.y = b.staged, normal.dtype = AX_F32;
    must(ax_run_init_normal(&stream, &normal), "operands");
    add_cases(&b);
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
