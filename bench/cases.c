#include "cases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const bench_shapes bench_of_processors = {
    .tokens = {256, 1024},
    .rows = 1024,
    .targets = 1024,
    .width = 768,
    .ffn = 3072,
    .vocab = 50257,
    .updated = 16 << 20,
    .experts = {{8, 768, 2048}, {64, 1024, 512}},
    .attention = {{8, 256, 6, 6, 64},
                  {4, 256, 12, 12, 64},
                  {1, 1024, 12, 12, 64},
                  {1, 4096, 6, 6, 64},
                  {1, 1024, 6, 6, 128},
                  {1, 4096, 4, 4, 128},
                  {1, 2048, 8, 2, 128}},
    .generation = {12, {256, 1024}, 12, 64},
    .few = {{16, 3072, 40, 40, 128}, {4, 16384, 40, 40, 128}, {8, 3072, 32, 8, 128}, {4, 16384, 32, 8, 128}},
    .memory = (size_t)5 << 29};
const bench_shapes bench_of_gpus = {
    .tokens = {2048, 16384},
    .rows = 16384,
    .targets = 16384,
    .width = 1600,
    .ffn = 6400,
    .vocab = 50257,
    .updated = 512 << 20,
    .experts = {{8, 768, 2048}, {64, 1024, 512}},
    .attention = {{16, 1024, 25, 25, 64},
                  {16, 1024, 12, 12, 64},
                  {4, 4096, 32, 32, 128},
                  {4, 4096, 32, 8, 128}},
    .generation = {12, {256, 1024}, 12, 64},
    .few = {{16, 3072, 40, 40, 128}, {4, 16384, 40, 40, 128}, {8, 3072, 32, 8, 128}, {4, 16384, 32, 8, 128}},
    .memory = (size_t)20 << 30};
const bench_shapes bench_of_ratios = {
    .tokens = {512},
    .rows = 12 << 10,
    .targets = 512,
    .width = 768,
    .ffn = 1024,
    .vocab = 50257,
    .updated = 6 << 20,
    .attention = {{2, 256, 6, 6, 64}, {1, 1024, 2, 2, 64}, {1, 1024, 1, 1, 128}},
    .memory = (size_t)5 << 29};
const bench_shapes bench_tiny = {.tokens = {16, 32},
                                 .rows = 32,
                                 .targets = 32,
                                 .width = 64,
                                 .ffn = 128,
                                 .vocab = 515,
                                 .updated = 1 << 14,
                                 .experts = {{2, 64, 32}, {4, 32, 64}},
                                 .attention = {{2, 32, 2, 2, 32}, {1, 64, 4, 2, 64}},
                                 .generation = {2, {16, 64}, 2, 32},
                                 .few = {{2, 96, 4, 2, 32}},
                                 .memory = (size_t)64 << 20};

enum { NORMALS = 1 << 20, ARRAYS = 100, TABLES = 1 << 20 };

static void must(ax_status status, const char *what)
{
    if (status == AX_OK)
        return;
    fprintf(stderr, "bench: %s: %s\n", what, ax_error_message());
    exit(2);
}
#define DO(call) must(call, #call)

/* ---- operands ------------------------------------------------------------------------------------ */

/* Allocates memory for an operand. */
static char *room(bench_cases *b, ax_dtype dtype, int64_t count)
{
    size_t bytes = ((size_t)count * ax_dtype_size(dtype) + 4095) / 4096 * 4096;
    if (b->used + bytes > b->shapes->memory) {
        fprintf(stderr, "bench: the cases need more than %zu bytes\n", b->shapes->memory);
        exit(1);
    }
    b->used += bytes;
    return b->memory + b->used - bytes;
}

/* Allocates an operand of normally distributed numbers, which repeat after a million. */
static void *operand(bench_cases *b, ax_dtype dtype, int64_t count)
{
    char *p = room(b, dtype, count);
    for (int64_t i = 0; i < count; i += NORMALS)
        DO(ax_run_convert(&b->stream,
                          &(ax_convert_args){ax_min(NORMALS, count - i), b->normal,
                                             p + (size_t)i * ax_dtype_size(dtype), AX_F32, dtype}));
    return p;
}

/* Allocates integers 0, step, 2·step …, modulo `below`. */
static void *integers(bench_cases *b, int64_t count, int64_t step, int64_t below)
{
    char *p = room(b, AX_I32, count);
    int32_t *id;
    DO(ax_calloc((size_t)count, sizeof *id, &id));
    for (int64_t i = 0; i < count; i++)
        id[i] = (int32_t)(i * step % below);
    DO(ax_copy_in(&b->stream, p, id, (size_t)count * sizeof *id));
    free(id);
    return p;
}

static void *tokens(bench_cases *b, int64_t count) { return integers(b, count, 7919, b->shapes->vocab); }

/* Allocates an array with all elements equal to `value`. */
static void *filled(bench_cases *b, int64_t n, double value)
{
    char *p = room(b, AX_F32, n);
    DO(ax_run_fill(&b->stream, &(ax_fill_args){n, value, p, AX_F32}));
    return p;
}

/* Allocates host memory for a table of arrays. */
static void *table(bench_cases *b, size_t bytes)
{
    if (b->tables_used + bytes > TABLES) {
        fprintf(stderr, "bench: the cases need tables of more than %d bytes\n", TABLES);
        exit(2);
    }
    b->tables_used += (bytes + 63) / 64 * 64;
    return b->tables + b->tables_used - (bytes + 63) / 64 * 64;
}

/* Copies a table to the device. */
static const void *copied(bench_cases *b, const void *from, size_t bytes)
{
    char *p = room(b, AX_U8, (int64_t)bytes);
    DO(ax_copy_in(&b->stream, p, from, bytes));
    return p;
}

/* ---- groups -------------------------------------------------------------------------------------- */

/* Whether the group that begins with call `name` is to be made. If so, releases the operands of the last one.
 */
static bool begins(bench_cases *b, const char *name)
{
    if (!b->wants(b->user, name))
        return false;
    if (!b->keep)
        b->used = b->tables_used = 0;
    return true;
}

static void add(bench_group *g, const char *name, ax_kernel kernel, const void *args, size_t bytes)
{
    bench_call *c = &g->call[g->calls++];
    snprintf(c->name, sizeof c->name, "%s", name);
    c->kernel = kernel;
    memcpy(&c->args, args, bytes);
}
#define ADD(group, name, kernel, args) add(group, name, AX_K_##kernel, args, sizeof(ax_##kernel##_args))

/* Hands over one call. */
static void give(bench_cases *b, ax_dtype dtype, const char *name, ax_kernel kernel, const void *args,
                 size_t bytes)
{
    bench_group g = {.dtype = dtype};
    add(&g, name, kernel, args, bytes);
    b->take(b->user, &g);
}
#define GIVE(dtype, name, kernel, args) give(b, dtype, name, AX_K_##kernel, args, sizeof(ax_##kernel##_args))

/* ---- kernels ------------------------------------------------------------------------------------- */

/* Returns the row pitch of a matrix in elements; rows of logits are padded. */
static int64_t pitch(const bench_cases *b, int64_t cols)
{
    return cols == b->shapes->vocab ? ax_round_up(cols, 64) : cols;
}

static void bench_gemm(bench_cases *b, ax_dtype dtype, int64_t m, int64_t n, int64_t k, bool ta, bool tb,
                       const char *what)
{
    char name[96];
    snprintf(name, sizeof name, "gemm %s %c%c %lldx%lldx%lld %s", ax_dtype_name(dtype), ta ? 'T' : 'N',
             tb ? 'T' : 'N', (long long)m, (long long)n, (long long)k, what);
    if (!begins(b, name))
        return;
    ax_gemm_args a = {.m = m, .n = n, .k = k, .dtype = dtype, .trans_a = ta, .trans_b = tb};
    a.c_dtype = ta ? AX_F32 : dtype; /* gradients of weights are kept in fp32 */
    a.lda = pitch(b, ta ? m : k), a.ldb = tb ? k : n, a.ldc = pitch(b, n);
    a.a = operand(b, dtype, (ta ? k : m) * a.lda), a.b = operand(b, dtype, n * k);
    a.c = operand(b, a.c_dtype, m * a.ldc);
    GIVE(dtype, name, gemm, &a);
}

static void bench_gemms(bench_cases *b, ax_dtype dtype)
{
    const bench_shapes *s = b->shapes;
    const int64_t layer[][2] = {
        {s->width, s->width}, {3 * s->width, s->width}, {s->ffn, s->width}, {s->width, s->ffn}};
    for (int t = 0; s->tokens[t]; t++) {
        for (int l = 0; l < 4; l++) {
            int64_t out = layer[l][0], in = layer[l][1];
            bench_gemm(b, dtype, s->tokens[t], out, in, false, true, "forward");
            bench_gemm(b, dtype, s->tokens[t], in, out, false, false, "dx");
            bench_gemm(b, dtype, out, in, s->tokens[t], true, false, "dw");
        }
        bench_gemm(b, dtype, s->tokens[t], s->vocab, s->width, false, true, "head");
        bench_gemm(b, dtype, s->tokens[t], s->width, s->vocab, false, false, "head dx");
        bench_gemm(b, dtype, s->vocab, s->width, s->tokens[t], true, false, "head dw");
    }
    for (int i = 0; i < 3; i++) {
        static const int64_t texts[] = {1, 5, 16};
        bench_gemm(b, dtype, texts[i], s->ffn, s->width, false, true, "generation");
        bench_gemm(b, dtype, texts[i], s->width, s->ffn, false, true, "generation");
        bench_gemm(b, dtype, texts[i], s->vocab, s->width, false, true, "generation");
    }
}

/* A grouped GEMM of experts, whose matrices lie in one another's rows, beside a gemm of the same operations:
 * all rows by one matrix. For gradients of weights, which are added to those that are there, the gemm
 * computes as many gradients from as many rows as one expert has. */
static void bench_experts(bench_cases *b, ax_dtype dtype, int64_t experts, int64_t rows, int64_t out,
                          int64_t in, bool grad)
{
    char name[2][96];
    for (int i = 0; i < 2; i++)
        snprintf(name[i], sizeof name[i], "%s %s %lldx%lld, %lld x %lld%s", i ? "gemm" : "gemm_grouped",
                 ax_dtype_name(dtype), (long long)out, (long long)in, (long long)experts, (long long)rows,
                 grad ? " dw +=" : "");
    if (!begins(b, name[0]))
        return;
    const int64_t all = experts * rows;
    ax_gemm_grouped_args a = {.m = all, .n = out, .k = in, .groups = experts, .lda = in, .ldc = out};
    a.dtype = a.c_dtype = dtype, a.ldb = experts * in, a.stride = in, a.trans_b = true;
    if (grad)
        a = (ax_gemm_grouped_args){.m = out,
                                   .n = in,
                                   .k = all,
                                   .groups = experts,
                                   .lda = out,
                                   .ldb = in,
                                   .ldc = experts * in,
                                   .stride = in,
                                   .dtype = dtype,
                                   .c_dtype = AX_F32,
                                   .trans_a = true,
                                   .accumulate = true};
    a.a = operand(b, dtype, all * a.lda);
    a.b = operand(b, dtype, grad ? all * in : experts * out * in);
    a.c = operand(b, a.c_dtype, grad ? experts * out * in : all * out);
    a.bounds = integers(b, experts + 1, rows, all + 1);
    ax_gemm_args one = {.m = a.m,
                        .n = a.n,
                        .k = a.k,
                        .a = a.a,
                        .b = a.b,
                        .c = a.c,
                        .lda = a.lda,
                        .ldc = a.ldc,
                        .dtype = a.dtype,
                        .c_dtype = a.c_dtype,
                        .trans_a = a.trans_a,
                        .trans_b = a.trans_b,
                        .accumulate = a.accumulate};
    one.ldb = in;
    if (grad) /* all gradients, [out, experts·in], from `rows` rows */
        one.n = one.ldb = experts * in, one.k = rows;
    bench_group both = {.dtype = dtype};
    ADD(&both, name[0], gemm_grouped, &a);
    ADD(&both, name[1], gemm, &one);
    b->take(b->user, &both);
}

/* The GEMMs of layers with experts: gate and up, down, and the gradients of their weights. */
static void bench_grouped(bench_cases *b, ax_dtype dtype)
{
    const int64_t rows[] = {256, 64};
    for (int s = 0; b->shapes->experts[s][0]; s++)
        for (int r = 0; r < 2; r++)
            for (int grad = 0; grad < 2; grad++) {
                const int64_t *size = b->shapes->experts[s];
                int64_t count = ax_min(rows[r], b->shapes->tokens[r ? 0 : 1]);
                bench_experts(b, dtype, size[0], count, 2 * size[2], size[1], grad);
                bench_experts(b, dtype, size[0], count, size[1], size[2], grad);
            }
}

static void bench_attention(bench_cases *b, ax_dtype dtype, int64_t batch, int64_t t, int64_t h, int64_t g,
                            int64_t d)
{
    char name[96];
    int64_t q = batch * t * h * d, kv = batch * t * g * d;
    snprintf(name, sizeof name, "attention %s b%lld t%lld h%lld/%lld d%lld", ax_dtype_name(dtype),
             (long long)batch, (long long)t, (long long)h, (long long)g, (long long)d);
    if (!begins(b, name))
        return;
    ax_attention_args a = {.batch = batch, .q_len = t, .kv_len = t, .heads = h, .kv_heads = g, .head_dim = d};
    a.q_ld = h * d, a.kv_ld = g * d, a.scale = 0.125, a.dtype = dtype;
    a.q = operand(b, dtype, q), a.k = operand(b, dtype, kv), a.v = operand(b, dtype, kv);
    a.o = operand(b, dtype, q), a.lse = operand(b, AX_F32, batch * t * h);
    GIVE(dtype, name, attention, &a);
    ax_attention_grad_args ga = {.batch = batch, .q_len = t, .heads = h, .kv_heads = g, .head_dim = d};
    ga.q_ld = a.q_ld, ga.kv_ld = a.kv_ld;
    ga.scale = a.scale, ga.dtype = dtype, ga.q = a.q, ga.k = a.k, ga.v = a.v, ga.o = a.o, ga.lse = a.lse;
    ga.dout = operand(b, dtype, q), ga.dq = operand(b, dtype, q), ga.dk = operand(b, dtype, kv);
    ga.dv = operand(b, dtype, kv), ga.delta = operand(b, AX_F32, batch * t * h);
    memcpy(name, "attn_grad", 9);
    GIVE(dtype, name, attention_grad, &ga);
}

/* Attention of one query per sequence. The longer sequence has more keys than the caches near a core hold. */
static void bench_generation(bench_cases *b, ax_dtype dtype, int64_t keys)
{
    char name[96];
    const int64_t batch = b->shapes->generation.batch, h = b->shapes->generation.h,
                  d = b->shapes->generation.d;
    snprintf(name, sizeof name, "attention %s b%lld s%lld h%lld d%lld generation", ax_dtype_name(dtype),
             (long long)batch, (long long)keys, (long long)h, (long long)d);
    if (!begins(b, name))
        return;
    ax_attention_args a = {
        .batch = batch, .q_len = 1, .kv_len = keys, .heads = h, .kv_heads = h, .head_dim = d};
    a.q_ld = a.kv_ld = h * d;
    a.q_offset = keys - 1, a.scale = 0.125, a.dtype = dtype;
    a.q = operand(b, dtype, batch * h * d), a.o = operand(b, dtype, batch * h * d);
    a.k = operand(b, dtype, batch * keys * h * d), a.v = operand(b, dtype, batch * keys * h * d);
    GIVE(dtype, name, attention, &a);
}

/* The kernels between the GEMMs. */
static void bench_rows(bench_cases *b, ax_dtype dtype)
{
    const int64_t R = b->shapes->rows, C = b->shapes->width, F = b->shapes->ffn, V = b->shapes->vocab;
    const int64_t N = b->shapes->targets, LD = pitch(b, V);
    char name[96];
#define CASE(kernel, rows_, cols_, text, ...)                                                                \
    snprintf(name, sizeof name, "%s %s %lldx%lld%s", #kernel, ax_dtype_name(dtype), (long long)(rows_),      \
             (long long)(cols_), text);                                                                      \
    if (begins(b, name)) {                                                                                   \
        ax_##kernel##_args a = {__VA_ARGS__};                                                                \
        GIVE(dtype, name, kernel, &a);                                                                       \
    }
#define T(n) operand(b, dtype, n)
#define A(n) operand(b, AX_F32, n)
    CASE(bias_add, R, F, "", .rows = R, .cols = F, .ld = F, .x = T(R * F), .bias = A(F), .y = T(R * F),
         .dtype = dtype)
    CASE(col_sum, R, F, "", .rows = R, .cols = F, .ld = F, .x = T(R * F), .out = A(F), .dtype = dtype)
    CASE(norm, R, C, " of a sum", .rows = R, .cols = C, .eps = 1e-5, .a = T(R * C), .b = T(R * C),
         .x = T(R * C), .sum = A(R), .m2 = A(R), .weight = A(C), .bias = A(C), .y = T(R * C), .dtype = dtype)
    CASE(norm_grad, R, C, " added", .rows = R, .cols = C, .eps = 1e30, .x = T(R * C), .dy = T(R * C),
         .add = T(R * C), .sum = A(R), .m2 = A(R), .weight = A(C), .dx = T(R * C), .dweight = A(C),
         .dbias = A(C), .dtype = dtype)
    CASE(norm, R, C, " rms of a sum", .rows = R, .cols = C, .eps = 1e-5, .a = T(R * C), .b = T(R * C),
         .x = T(R * C), .m2 = A(R), .weight = A(C), .y = T(R * C), .dtype = dtype, .kind = AX_NORM_RMS)
    CASE(norm_grad, R, C, " rms, added", .rows = R, .cols = C, .eps = 1e30, .x = T(R * C), .dy = T(R * C),
         .add = T(R * C), .m2 = A(R), .weight = A(C), .dx = T(R * C), .dweight = A(C), .dtype = dtype,
         .kind = AX_NORM_RMS)
    CASE(rope, R, C, " heads of 64", .rows = R, .heads = C / 64, .head_dim = 64, .ld = C, .table_rows = R,
         .positions = integers(b, R, 1, R), .table = filled(b, R * 64, 0.70710678), .x = T(R * C),
         .dtype = dtype)
    CASE(norm_stats, R, C, "", .rows = R, .cols = C, .a = T(R * C), .sum = A(R), .m2 = A(R), .dtype = dtype)
    CASE(norm_apply, R, C, "", .rows = R, .cols = C, .global_cols = C, .eps = 1e30, .x = T(R * C),
         .sum = A(R), .m2 = A(R), .weight = A(C), .bias = A(C), .y = T(R * C), .dtype = dtype)
    CASE(norm_grad_stats, R, C, "", .rows = R, .cols = C, .global_cols = C, .eps = 1e30, .x = T(R * C),
         .dy = T(R * C), .sum = A(R), .m2 = A(R), .weight = A(C), .s1 = A(R), .s2 = A(R), .dtype = dtype)
    CASE(norm_grad_apply, R, C, "", .rows = R, .cols = C, .global_cols = C, .eps = 1e30, .x = T(R * C),
         .dy = T(R * C), .sum = A(R), .m2 = A(R), .weight = A(C), .s1 = A(R), .s2 = A(R), .dx = T(R * C),
         .dweight = A(C), .dbias = A(C), .dtype = dtype)
    CASE(activation, R, F, " gelu tanh", .n = R * F, .x = T(R * F), .y = T(R * F), .dtype = dtype)
    CASE(activation, R, F, " gelu exact", .n = R * F, .x = T(R * F), .y = T(R * F), .dtype = dtype,
         .kind = AX_GELU_EXACT)
    CASE(activation_grad, R, F, " gelu tanh", .n = R * F, .x = T(R * F), .dy = T(R * F), .dx = T(R * F),
         .dtype = dtype)
    CASE(activation, R, F, " silu", .n = R * F, .x = T(R * F), .y = T(R * F), .dtype = dtype, .kind = AX_SILU)
    CASE(activation_grad, R, F, " silu", .n = R * F, .x = T(R * F), .dy = T(R * F), .dx = T(R * F),
         .dtype = dtype, .kind = AX_SILU)
    CASE(glu, R, F, " silu", .rows = R, .cols = F, .ld = F, .gate = T(R * F), .up = T(R * F), .y = T(R * F),
         .dtype = dtype, .kind = AX_SILU)
    CASE(glu_grad, R, F, " silu", .rows = R, .cols = F, .ld = F, .gate = T(R * F), .up = T(R * F),
         .dy = T(R * F), .dgate = T(R * F), .dup = T(R * F), .dtype = dtype, .kind = AX_SILU)
    CASE(squared_error, R, F, "", .n = R * F, .scale = 1, .x = T(R * F), .target = T(R * F), .dx = T(R * F),
         .total = operand(b, AX_F64, 1), .dtype = dtype)
    CASE(add, R, C, "", .n = R * C, .a = T(R * C), .b = T(R * C), .y = T(R * C), .dtype = dtype)
    CASE(dropout, R, C, "", .rows = R, .cols = C, .global_cols = C, .p = 0.1, .x = T(R * C), .y = T(R * C),
         .dtype = dtype)
    CASE(ce_stats, N, V, "", .rows = N, .vocab = V, .ld = LD, .logits = T(N * LD), .targets = tokens(b, N),
         .max = A(N), .sum = A(N), .target_logit = A(N), .dtype = dtype)
    CASE(ce_rank, N, V, "", .rows = N, .vocab = V, .ld = LD, .logits = T(N * LD), .target_logit = A(N),
         .targets = tokens(b, N), .rank = tokens(b, N), .dtype = dtype)
    CASE(ce_grad, N, V, "", .rows = N, .vocab = V, .ld = LD, .scale = 1, .max = filled(b, N, 4),
         .sum = filled(b, N, 1e3), .targets = tokens(b, N), .logits = T(N * LD), .dtype = dtype)
    CASE(embedding, R, C, "", .rows = R, .cols = C, .count = V, .table = T(V * C), .ids = tokens(b, R),
         .y = T(R * C), .dtype = dtype)
    CASE(embedding_grad, R, C, "", .rows = R, .cols = C, .count = V, .dy = T(R * C), .ids = tokens(b, R),
         .dtable = A(V * C), .dtype = dtype, .table_dtype = AX_F32)
    if (dtype == AX_F32)
        return;
    CASE(embedding_grad, R, C, " in 16 bits", .rows = R, .cols = C, .count = V, .dy = T(R * C),
         .ids = tokens(b, R), .dtable = T(V * C), .dtype = dtype, .table_dtype = dtype)
}

/* Attention of one query to a quarter of the keys, chosen by a quarter of the elements of heads (Loki): what
 * it launches for a token but the appends, beside full attention. Where query heads share a key head they
 * choose apart, and together. */
static void bench_few(bench_cases *b, ax_dtype dtype, int i)
{
    const int64_t batch = b->shapes->few[i].batch, keys = b->shapes->few[i].keys, h = b->shapes->few[i].h,
                  g = b->shapes->few[i].g, d = b->shapes->few[i].d, width = d / 4;
    static const char *const parts[BENCH_CALLS] = {"full attention",
                                                   "turn q",
                                                   "turn k",
                                                   "choose per head",
                                                   "attention, per head",
                                                   "choose per group",
                                                   "attention, per group"};
    char name[BENCH_CALLS][96], shape[64];
    snprintf(shape, sizeof shape, "few keys %s b%lld s%lld h%lld/%lld d%lld", ax_dtype_name(dtype),
             (long long)batch, (long long)keys, (long long)h, (long long)g, (long long)d);
    if (!begins(b, shape))
        return;
    for (int n = 0; n < BENCH_CALLS; n++)
        snprintf(name[n], sizeof name[n], "%s: %s", parts[n], shape + strlen("few keys "));
    const int64_t words = ax_ceil_div(keys, 64);
    ax_attention_args full = {.batch = batch,
                              .q_len = 1,
                              .kv_len = keys,
                              .q_offset = keys - 1,
                              .heads = h,
                              .kv_heads = g,
                              .head_dim = d,
                              .q_ld = h * d,
                              .kv_ld = g * d,
                              .scale = 0.1,
                              .q = T(batch * h * d),
                              .k = T(batch * keys * g * d),
                              .v = T(batch * keys * g * d),
                              .o = T(batch * h * d),
                              .dtype = dtype};
    const ax_turn_args turn_q = {.rows = batch,
                                 .heads = h,
                                 .kv_heads = g,
                                 .head_dim = d,
                                 .ld = h * d,
                                 .turn = A(g * d * d),
                                 .x = T(batch * h * d),
                                 .dtype = dtype};
    ax_turn_args turn_k = turn_q;
    turn_k.heads = g, turn_k.ld = g * d, turn_k.x = T(batch * g * d);
    ax_choose_args choose[2];
    ax_attention_args some[2] = {full, full};
    for (int group = 0; group < 2; group++) {
        const int64_t choosers = group ? g : h;
        uint64_t *bits = (uint64_t *)(void *)room(b, AX_I64, batch * choosers * words);
        choose[group] = (ax_choose_args){.batch = batch,
                                         .q_len = 1,
                                         .kv_len = keys,
                                         .q_offset = keys - 1,
                                         .heads = h,
                                         .kv_heads = g,
                                         .width = width,
                                         .q_ld = h * d,
                                         .q_step = d,
                                         .k_ld = width,
                                         .k_step = batch * keys * width,
                                         .k_batch_stride = keys * width,
                                         .q = full.q,
                                         .k = group ? choose[0].k : T(g * batch * keys * width),
                                         .share = 0.25,
                                         .chosen = bits,
                                         .dtype = dtype,
                                         .group = group};
        some[group].chosen = bits, some[group].choosers = choosers, some[group].chosen_keys = keys / 4;
        DO(ax_run_choose(&b->stream, &choose[group]));
    }
    bench_group all = {
        .dtype = dtype,
        .shares = h == g ? 1 : 2,
        .share = {{"  few keys, per head", {1, 2, 3, 4}}, {"  few keys, per group", {1, 2, 5, 6}}}};
    ADD(&all, name[0], attention, &full);
    ADD(&all, name[1], turn, &turn_q);
    ADD(&all, name[2], turn, &turn_k);
    for (int group = 0; group < all.shares; group++) {
        ADD(&all, name[3 + 2 * group], choose, &choose[group]);
        ADD(&all, name[4 + 2 * group], attention, &some[group]);
    }
    b->take(b->user, &all);
}

/* Makes the arrays of an optimizer update of n elements: ARRAYS arrays, all but the last of equal length. If
 * not `touched`, the gradients, which have `g_dtype`, are zero and the moments subnormal, as for weights that
 * are not used any more. */
static ax_update_array *update(bench_cases *b, int64_t n, bool touched, ax_dtype g_dtype)
{
    ax_update_array *array = table(b, ARRAYS * sizeof *array);
    float *w = operand(b, AX_F32, n), *m = touched ? operand(b, AX_F32, n) : filled(b, n, 1e-40);
    float *v = filled(b, n, touched ? 0 : 1e-40);
    uint16_t *copy = operand(b, AX_BF16, n);
    char *g = touched ? operand(b, g_dtype, n) : (void *)filled(b, n, 0);
    int64_t each = n / ARRAYS / AX_UPDATE_UNIT * AX_UPDATE_UNIT;
    for (int i = 0; i < ARRAYS; i++) {
        int64_t at = i * each;
        array[i] = (ax_update_array){.n = i < ARRAYS - 1 ? each : n - at,
                                     .first = at,
                                     .w = w + at,
                                     .m = m + at,
                                     .v = v + at,
                                     .copy = copy + at,
                                     .g = g + at * (int64_t)ax_dtype_size(g_dtype),
                                     .decays = 1,
                                     .g_dtype = g_dtype};
    }
    return array;
}

/* Makes the table of kernel sumsq for ARRAYS arrays of together n elements of F32 from x on. */
static ax_sumsq_array *squared(bench_cases *b, const void *x, int64_t n)
{
    ax_sumsq_array *array = table(b, ARRAYS * sizeof *array);
    int64_t each = n / ARRAYS, first = 0;
    for (int i = 0; i < ARRAYS; i++) {
        int64_t count = i < ARRAYS - 1 ? each : n - i * each;
        array[i] = (ax_sumsq_array){.x = (const float *)x + i * each, .n = count, .first = first, .to = i};
        first += ax_ceil_div(count, AX_SUMSQ_CHUNK);
    }
    return array;
}

static const ax_update_numbers *numbers(bench_cases *b, double correction1, double correction2)
{
    ax_update_numbers now = {
        .lr = 1e-3, .correction1 = correction1, .correction2 = correction2, .grad_scale = 1};
    return copied(b, &now, sizeof now);
}

/* The kernels of an optimizer step. */
static void bench_update(bench_cases *b)
{
    const int64_t N = b->shapes->updated, M = N >> 20;
    const ax_dtype dtype = AX_F32;
    char name[96];
    const struct {
        const char *what;
        bool touched;
        ax_dtype g_dtype;
    } updates[] = {{" + bf16 copy", true, AX_F32},
                   {" + bf16 copy, bf16 gradient", true, AX_BF16},
                   {" that nothing touches any more", false, AX_F32}};
    for (size_t i = 0; i < AX_COUNT(updates); i++) {
        const bool touched = updates[i].touched;
        snprintf(name, sizeof name, "adamw f32 %lldx%d%s", (long long)M, 1 << 20, updates[i].what);
        if (!begins(b, name))
            continue;
        const ax_update_array *arrays = update(b, N, touched, updates[i].g_dtype);
        const ax_adamw_args a = {.n = N,
                                 .copied = N,
                                 .arrays = ARRAYS,
                                 .beta1 = 0.9,
                                 .beta2 = 0.95,
                                 .eps = 1e-8,
                                 .decay = touched ? 0.1 : 0,
                                 .array = copied(b, arrays, ARRAYS * sizeof *arrays),
                                 .table = arrays,
                                 .numbers = numbers(b, touched ? 0.1 : 1, touched ? 0.05 : 1),
                                 .dtype = dtype,
                                 .copy_dtype = AX_BF16};
        GIVE(dtype, name, adamw, &a);
    }
    snprintf(name, sizeof name, "sumsq f32 %lldx%d", (long long)M, 1 << 20);
    if (begins(b, name)) {
        const ax_sumsq_array *sums = squared(b, A(N), N);
        const ax_sumsq_args a = {.arrays = ARRAYS,
                                 .array = copied(b, sums, ARRAYS * sizeof *sums),
                                 .table = sums,
                                 .out = operand(b, AX_F64, ARRAYS),
                                 .dtype = dtype};
        GIVE(dtype, name, sumsq, &a);
    }
    CASE(scale, M, 1 << 20, "", .n = N, .factor = 1, .x = A(N), .dtype = dtype)
    CASE(convert, M, 1 << 20, " to bf16", .n = N, .x = A(N), .y = operand(b, AX_BF16, N), .x_dtype = dtype,
         .y_dtype = AX_BF16)
    CASE(fill, M, 1 << 20, "", .n = N, .y = A(N), .dtype = dtype)
    CASE(init_normal, M, 1 << 20, "", .extent = {1, 1, 1, N}, .n = {1, 1, 1, N}, .std = 1, .y = A(N),
         .dtype = dtype)
}

/* A mask that keeps one of ten elements, at places without a pattern. */
typedef struct mask {
    const uint64_t *bits;
    const int32_t *begin;
    int64_t kept;
} mask;

static mask make_mask(bench_cases *b, int64_t rows, int64_t cols)
{
    const int64_t words = ax_ceil_div(cols, 64);
    uint64_t *bits = calloc((size_t)(rows * words), sizeof *bits), place = 1;
    int32_t *begin = calloc((size_t)(rows + 1), sizeof *begin);
    if (!bits || !begin)
        exit(1);
    for (int64_t r = 0; r < rows; r++) {
        begin[r + 1] = begin[r];
        for (int64_t c = 0; c < cols; c++) {
            place = place * 6364136223846793005u + 1442695040888963407u;
            if ((place >> 33) % 10)
                continue;
            bits[r * words + c / 64] |= (uint64_t)1 << c % 64;
            begin[r + 1]++;
        }
    }
    char *device_bits = room(b, AX_I64, rows * words), *device_begin = room(b, AX_I32, rows + 1);
    DO(ax_copy_in(&b->stream, device_bits, bits, (size_t)(rows * words) * sizeof *bits));
    DO(ax_copy_in(&b->stream, device_begin, begin, (size_t)(rows + 1) * sizeof *begin));
    mask m = {(const void *)device_bits, (const void *)device_begin, begin[rows]};
    free(bits);
    free(begin);
    return m;
}

/* The kernels of pruned matrices. */
static void bench_pruned(bench_cases *b)
{
    const int64_t R = b->shapes->ffn, C = b->shapes->width;
    const ax_dtype dtype = AX_F32;
    char name[96];
    for (int add = 0; add < 2; add++) {
        snprintf(name, sizeof name, "compress f32 %lldx%lld, a tenth%s", (long long)R, (long long)C,
                 add ? " added" : "");
        if (!begins(b, name))
            continue;
        const mask m = make_mask(b, R, C);
        const ax_compress_args a = {.rows = R,
                                    .cols = C,
                                    .ld = C,
                                    .n = m.kept,
                                    .bits = m.bits,
                                    .begin = m.begin,
                                    .x = A(R * C),
                                    .y = A(m.kept),
                                    .x_dtype = dtype,
                                    .y_dtype = dtype,
                                    .accumulate = add};
        GIVE(dtype, name, compress, &a);
    }
    for (int narrow = 0; narrow < 2; narrow++) {
        const ax_dtype to = narrow ? AX_BF16 : AX_F32;
        snprintf(name, sizeof name, "expand f32 %lldx%lld, a tenth to %s", (long long)R, (long long)C,
                 ax_dtype_name(to));
        if (!begins(b, name))
            continue;
        const mask m = make_mask(b, R, C);
        const ax_expand_args a = {.rows = R,
                                  .cols = C,
                                  .n = m.kept,
                                  .bits = m.bits,
                                  .begin = m.begin,
                                  .x = A(m.kept),
                                  .y = operand(b, to, R * C),
                                  .x_dtype = dtype,
                                  .y_dtype = to,
                                  .whole = true};
        GIVE(dtype, name, expand, &a);
    }
}

void bench_cases_run(bench_cases *b)
{
    const size_t normals = NORMALS * sizeof(float);
    const bench_shapes *s = b->shapes;
    b->stream.dev = b->dev;
    DO(ax_calloc(1, TABLES, &b->tables));
    DO(ax_device_alloc(b->dev, s->memory, (void **)&b->memory));
    DO(ax_device_alloc(b->dev, normals, (void **)&b->normal));
    DO(ax_run_init_normal(&b->stream, &(ax_init_normal_args){.extent = {1, 1, 1, NORMALS},
                                                             .n = {1, 1, 1, NORMALS},
                                                             .key = 1,
                                                             .std = 0.5,
                                                             .y = b->normal,
                                                             .dtype = AX_F32}));
    for (int d = 0; d < 2; d++) {
        const ax_dtype dtype = d ? AX_BF16 : AX_F32;
        bench_gemms(b, dtype);
        bench_grouped(b, dtype);
        for (int i = 0; s->attention[i].t; i++)
            bench_attention(b, dtype, s->attention[i].batch, s->attention[i].t, s->attention[i].h,
                            s->attention[i].g, s->attention[i].d);
        for (int i = 0; s->generation.batch && i < 2; i++)
            bench_generation(b, dtype, s->generation.keys[i]);
        for (int i = 0; s->few[i].keys && d; i++)
            bench_few(b, dtype, i);
        bench_rows(b, dtype);
    }
    bench_update(b);
    bench_pruned(b);
    ax_device_free(b->dev, b->normal, normals);
    if (b->keep)
        return;
    ax_device_free(b->dev, b->memory, s->memory);
    free(b->tables);
}
