/* Rates of a device's kernels at the shapes of GPT-2 training, beside what this machine can do.
 *
 *     cmake --build build --target bench_kernels && build/bench_kernels [DEVICE [THREADS [FILTER]]]
 *
 * Ceilings are the device's own, measured first (ax_device_peak, ax_device_stream). Each line gives the
 * median, least and greatest rate of RUNS or more runs, and the share of the time that the ceilings allow:
 * the larger of flops/peak and bytes/stream over the median time (above 100 % where operands stay in a
 * cache). FILTER selects lines that contain it. */
#include "axonn/dev.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNS = 9, MAX_RUNS = 200 };
static const double SECONDS = 0.25; /* per case, where RUNS take less */

typedef struct bench {
    ax_device *dev;
    ax_stream stream;
    int threads;
    const char *filter;
    double peak_f32, peak_bf16, stream_rate;
    ax_region memory; /* operands of the case in work */
    size_t used;
} bench;

static void die(const char *what)
{
    fprintf(stderr, "bench_kernels: %s: %s\n", what, ax_error_message());
    exit(1);
}

static int clock_threads; /* how many threads are timed: set once, before anything is */

static double seconds(void) { return clock_threads == 1 ? ax_cpu_now() : ax_now(); }

/* ---- one case ------------------------------------------------------------------------------------ */

static void run_case(bench *b, const char *name, ax_kernel kernel, const void *args, ax_dtype dtype)
{
    double t[MAX_RUNS], flops, bytes, begin;
    int n = 0;
    ax_kernel_cost(kernel, args, &flops, &bytes);
    if (ax_launch(&b->stream, kernel, args) != AX_OK)
        die(name);
    begin = ax_now();
    while (n < RUNS || (n < MAX_RUNS && ax_now() - begin < SECONDS)) {
        double start = seconds();
        if (ax_launch(&b->stream, kernel, args) != AX_OK)
            die(name);
        t[n++] = seconds() - start;
    }
    ax_spread spread = ax_spread_of(t, n);
    double peak = dtype == AX_BF16 ? b->peak_bf16 : b->peak_f32;
    double by_flops = peak > 0 ? flops / peak : 0, by_bytes = bytes / b->stream_rate,
           work = by_flops > by_bytes ? flops : bytes;
    double ideal = by_flops > by_bytes ? by_flops : by_bytes;
    printf("%-44s %9.1f us %8.1f %s [%.1f, %.1f] %4.0f %%\n", name, spread.median * 1e6,
           work / spread.median * 1e-9, by_flops > by_bytes ? "GFLOP/s" : "GB/s   ", work / spread.max * 1e-9,
           work / spread.min * 1e-9, 100 * ideal / spread.median);
    fflush(stdout);
}

/* Memory for an operand, filled with small numbers; all of it is handed back by the next case. */
static void *operand(bench *b, ax_dtype dtype, int64_t count)
{
    size_t bytes = ((size_t)count * ax_dtype_size(dtype) + 4095) / 4096 * 4096;
    if (b->used + bytes > b->memory.bytes) {
        fprintf(stderr, "bench_kernels: a case needs more than %zu bytes\n", b->memory.bytes);
        exit(1);
    }
    void *p = b->memory.base + b->used;
    b->used += bytes;
    for (int64_t i = 0; i < count && dtype != AX_I32; i++)
        ax_store(dtype, p, i, (double)((i * 37) % 61 - 30) / 32);
    for (int64_t i = 0; i < count && dtype == AX_I32; i++)
        ((int32_t *)p)[i] = (int32_t)(i * 7919 % 50257);
    return p;
}

/* The same number throughout. */
static void *filled(bench *b, int64_t n, float value)
{
    float *p = operand(b, AX_F32, n);
    for (int64_t i = 0; i < n; i++)
        p[i] = value;
    return p;
}

static bool start_case(bench *b, const char *name)
{
    b->used = 0;
    return !b->filter || strstr(name, b->filter);
}

static void bench_gemm(bench *b, ax_dtype dtype, int64_t m, int64_t n, int64_t k, bool ta, bool tb,
                       const char *what)
{
    char name[96];
    snprintf(name, sizeof name, "gemm %s %c%c %lldx%lldx%lld %s", ax_dtype_name(dtype), ta ? 'T' : 'N',
             tb ? 'T' : 'N', (long long)m, (long long)n, (long long)k, what);
    if (!start_case(b, name))
        return;
    ax_gemm_args a = {.m = m, .n = n, .k = k, .dtype = dtype, .trans_a = ta, .trans_b = tb, .ldc = n};
    a.c_dtype = ta ? AX_F32 : dtype; /* gradients of weights are kept in fp32 */
    a.lda = ta ? m : k, a.ldb = tb ? k : n;
    a.a = operand(b, dtype, m * k), a.b = operand(b, dtype, n * k), a.c = operand(b, a.c_dtype, m * n);
    run_case(b, name, AX_K_gemm, &a, dtype);
}

static void bench_gemms(bench *b, ax_dtype dtype)
{
    static const int64_t tokens[] = {256, 1024},
                         layer[][2] = {{768, 768}, {2304, 768}, {3072, 768}, {768, 3072}};
    for (int t = 0; t < 2; t++) {
        for (int l = 0; l < 4; l++) {
            int64_t out = layer[l][0], in = layer[l][1];
            bench_gemm(b, dtype, tokens[t], out, in, false, true, "forward");
            bench_gemm(b, dtype, tokens[t], in, out, false, false, "dx");
            bench_gemm(b, dtype, out, in, tokens[t], true, false, "dw");
        }
        bench_gemm(b, dtype, tokens[t], 50257, 768, false, true, "head");
        bench_gemm(b, dtype, tokens[t], 768, 50257, false, false, "head dx");
        bench_gemm(b, dtype, 50257, 768, tokens[t], true, false, "head dw");
    }
    bench_gemm(b, dtype, 1, 3072, 768, false, true, "generation");
    bench_gemm(b, dtype, 1, 50257, 768, false, true, "generation");
}

static void bench_attention(bench *b, ax_dtype dtype, int64_t batch, int64_t t, int64_t h, int64_t g,
                            int64_t d)
{
    char name[96];
    int64_t q = batch * t * h * d, kv = batch * t * g * d;
    snprintf(name, sizeof name, "attention %s b%lld t%lld h%lld/%lld d%lld", ax_dtype_name(dtype),
             (long long)batch, (long long)t, (long long)h, (long long)g, (long long)d);
    if (!start_case(b, name))
        return;
    ax_attention_args a = {.batch = batch, .q_len = t, .kv_len = t, .heads = h, .kv_heads = g, .head_dim = d};
    a.scale = 0.125, a.dtype = dtype;
    a.q = operand(b, dtype, q), a.k = operand(b, dtype, kv), a.v = operand(b, dtype, kv);
    a.o = operand(b, dtype, q), a.lse = operand(b, AX_F32, batch * t * h);
    run_case(b, name, AX_K_attention, &a, dtype);
    ax_attention_grad_args ga = {.batch = batch, .q_len = t, .heads = h, .kv_heads = g, .head_dim = d};
    ga.scale = a.scale, ga.dtype = dtype, ga.q = a.q, ga.k = a.k, ga.v = a.v, ga.o = a.o, ga.lse = a.lse;
    ga.dout = operand(b, dtype, q), ga.dq = operand(b, dtype, q), ga.dk = operand(b, dtype, kv);
    ga.dv = operand(b, dtype, kv), ga.delta = operand(b, AX_F32, batch * t * h);
    memcpy(name, "attn_grad", 9);
    run_case(b, name, AX_K_attention_grad, &ga, dtype);
}

/* The kernels between the products, for 1024 tokens of GPT-2 124M. */
static void bench_rows(bench *b, ax_dtype dtype)
{
    enum { R = 1024, C = 768, F = 3072, V = 50257 };
    char name[96];
#define CASE(kernel, text, ...)                                                                              \
    snprintf(name, sizeof name, "%s %s " text, #kernel, ax_dtype_name(dtype));                               \
    if (start_case(b, name)) {                                                                               \
        ax_##kernel##_args a = {__VA_ARGS__};                                                                \
        run_case(b, name, AX_K_##kernel, &a, dtype);                                                         \
    }
#define T(n) operand(b, dtype, n)
#define A(n) operand(b, AX_F32, n)
    CASE(bias_add, "1024x3072", .rows = R, .cols = F, .x = T(R * F), .bias = A(F), .y = T(R * F),
         .dtype = dtype)
    CASE(col_sum, "1024x3072", .rows = R, .cols = F, .x = T(R * F), .out = A(F), .dtype = dtype)
    CASE(norm_stats, "1024x768", .rows = R, .cols = C, .x = T(R * C), .sum = A(R), .m2 = A(R), .dtype = dtype)
    CASE(norm_apply, "1024x768", .rows = R, .cols = C, .global_cols = C, .eps = 1e30, .x = T(R * C),
         .sum = A(R), .m2 = A(R), .weight = A(C), .bias = A(C), .y = T(R * C), .dtype = dtype)
    CASE(norm_grad_stats, "1024x768", .rows = R, .cols = C, .global_cols = C, .eps = 1e30, .x = T(R * C),
         .dy = T(R * C), .sum = A(R), .m2 = A(R), .weight = A(C), .s1 = A(R), .s2 = A(R), .dtype = dtype)
    CASE(norm_grad, "1024x768", .rows = R, .cols = C, .global_cols = C, .eps = 1e30, .x = T(R * C),
         .dy = T(R * C), .sum = A(R), .m2 = A(R), .weight = A(C), .s1 = A(R), .s2 = A(R), .dx = T(R * C),
         .dweight = A(C), .dbias = A(C), .dtype = dtype)
    CASE(gelu, "1024x3072 tanh", .n = R * F, .x = T(R * F), .y = T(R * F), .dtype = dtype)
    CASE(gelu, "1024x3072 exact", .n = R * F, .x = T(R * F), .y = T(R * F), .dtype = dtype,
         .kind = AX_GELU_EXACT)
    CASE(gelu_grad, "1024x3072 tanh", .n = R * F, .x = T(R * F), .dy = T(R * F), .dx = T(R * F),
         .dtype = dtype)
    CASE(add, "1024x768", .n = R * C, .a = T(R * C), .b = T(R * C), .y = T(R * C), .dtype = dtype)
    CASE(dropout, "1024x768", .rows = R, .cols = C, .global_cols = C, .p = 0.1, .x = T(R * C), .y = T(R * C),
         .dtype = dtype)
    CASE(ce_max, "1024x50257", .rows = R, .vocab = V, .logits = T((int64_t)R * V), .max = A(R),
         .dtype = dtype)
    CASE(ce_sum, "1024x50257", .rows = R, .vocab = V, .logits = T((int64_t)R * V), .max = A(R),
         .targets = operand(b, AX_I32, R), .sum = A(R), .target_logit = A(R), .dtype = dtype)
    CASE(ce_grad, "1024x50257", .rows = R, .vocab = V, .scale = 1, .max = A(R), .sum = A(R),
         .targets = operand(b, AX_I32, R), .logits = T((int64_t)R * V), .dtype = dtype)
    CASE(embedding, "1024x768", .rows = R, .cols = C, .count = V, .table = T((int64_t)V * C),
         .ids = operand(b, AX_I32, R), .y = T(R * C), .dtype = dtype)
    CASE(embedding_grad, "1024x768", .rows = R, .cols = C, .count = V, .dy = T(R * C),
         .ids = operand(b, AX_I32, R), .dtable = A((int64_t)V * C), .dtype = dtype)
}

/* What an optimizer step does to parameters. */
static void bench_update(bench *b)
{
    enum { N = 16 << 20 };
    const ax_dtype dtype = AX_F32;
    char name[96];
    double sum;
    CASE(adamw, "16M + bf16 copy", .n = N, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .decay = 0.1,
         .correction1 = 0.1, .correction2 = 0.05, .grad_scale = 1, .w = A(N), .m = A(N),
         .v = memset(A(N), 0, N * 4), .copy = operand(b, AX_BF16, N), .g = A(N), .dtype = dtype,
         .copy_dtype = AX_BF16)
    CASE(adamw, "16M that nothing touches any more", .n = N, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95,
         .eps = 1e-8, .correction1 = 1, .correction2 = 1, .grad_scale = 1, .w = A(N),
         .m = filled(b, N, 1e-40f), .v = filled(b, N, 1e-40f), .copy = operand(b, AX_BF16, N),
         .g = filled(b, N, 0), .dtype = dtype, .copy_dtype = AX_BF16)
    CASE(sumsq, "16M", .n = N, .x = A(N), .out = &sum, .dtype = dtype)
    CASE(scale, "16M", .n = N, .factor = 1, .x = A(N), .dtype = dtype)
    CASE(convert, "16M to bf16", .n = N, .x = A(N), .y = operand(b, AX_BF16, N), .x_dtype = dtype,
         .y_dtype = AX_BF16)
    CASE(fill, "16M", .n = N, .y = A(N), .dtype = dtype)
    CASE(init_normal, "16M", .extent = {1, 1, 1, N}, .n = {1, 1, 1, N}, .std = 1, .y = A(N), .dtype = dtype)
}

int main(int argc, char **argv)
{
    bench b = {.threads = argc > 2 ? atoi(argv[2]) : 0, .filter = argc > 3 ? argv[3] : NULL};
    const char *device = argc > 1 ? argv[1] : "cpu";
    if (ax_device_open(device, b.threads, &b.dev) != AX_OK)
        die(device);
    b.stream.dev = b.dev;
    clock_threads = b.threads = b.dev->threads;
    if (ax_region_create((size_t)1 << 30, &b.memory) != AX_OK)
        die("memory");
    if (ax_device_peak(b.dev, AX_F32, SECONDS, &b.peak_f32) != AX_OK ||
        ax_device_peak(b.dev, AX_BF16, SECONDS, &b.peak_bf16) != AX_OK ||
        ax_device_stream(b.dev, SECONDS, &b.stream_rate) != AX_OK)
        die("ceilings");
    printf("device %s, %d threads; ceilings: fp32 %.0f GFLOP/s, bf16 %.0f GFLOP/s, stream %.1f GB/s\n",
           device, b.threads, b.peak_f32 * 1e-9, b.peak_bf16 * 1e-9, b.stream_rate * 1e-9);
    for (int d = 0; d < 2; d++) {
        ax_dtype dtype = d ? AX_BF16 : AX_F32;
        bench_gemms(&b, dtype);
        bench_attention(&b, dtype, 8, 256, 6, 6, 64);
        bench_attention(&b, dtype, 4, 256, 12, 12, 64);
        bench_attention(&b, dtype, 1, 1024, 12, 12, 64);
        bench_attention(&b, dtype, 1, 2048, 8, 2, 128);
        bench_rows(&b, dtype);
    }
    bench_update(&b);
    ax_region_destroy(&b.memory);
    ax_device_close(&b.dev);
    return 0;
}
