/* parallel: contractions of randomly distributed operands against a dense oracle, and calls that must
 * fail. */
#include "axonn/parallel.h"
#include "support/ranks.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_ELEMENTS = 5 * 5 * 5 * 5, CASES = 60 };

static const char *const specs[] = {"bti,oi->bto",   "bto,oi->bti", "bto,bti->oi", "bi,io->bo", "ib,oi->ob",
                                    "ab,cb->ca",     "abcd,cd->ab", "cd,abcd->ab", "k,ko->o",   "b,o->bo",
                                    "abk,kcd->abcd", "ka,kb->ba",   "a,ab->b",     "kla,kl->a", "ab,c->cab"};

/* ---- cases: values are small integers, so that all arithmetic is exact --------------------------- */

typedef struct test_case {
    const char *spec;
    ax_tensor a, b;
    uint16_t out_align;
    bool accumulate;
} test_case;

/* Sometimes pads the rows of a tensor from random_case, if its last letter is alone in its group: exactly one
 * of the last two letters occurs in `other`. */
static void pad(uint64_t *state, ax_tensor *t, const char *letters, const char *other)
{
    int last = t->ndim - 1;
    bool alone = last == 0 || !strchr(other, letters[last]) != !strchr(other, letters[last - 1]);
    t->align = alone && random_below(state, 2) ? 32 : 0;
}

/* Draws extent, unit and axes of each letter. One operand may be partial along the axes that no letter uses.
 */
static test_case random_case(uint64_t *state)
{
    static const int64_t extents[] = {0, 1, 2, 3, 4, 5};
    static const ax_dtype dtypes[] = {AX_F64, AX_F32, AX_BF16, AX_F16};
    int64_t extent[26], unit[26];
    ax_axes axes[26] = {{0}};
    const char *spec = specs[random_below(state, (int)AX_COUNT(specs))];
    for (const char *c = spec; *c; c++) {
        int i = *c - 'a', from = random_below(state, 16) ? 1 : 0;
        if (i < 0 || i > 25)
            continue;
        extent[i] = extents[from + random_below(state, 6 - from)];
        unit[i] = random_below(state, 3);
    }
    ax_axisset partial[2] = {0, 0};
    for (int axis = 0; axis < AX_AXES_STANDARD; axis++) {
        char letter = spec[random_below(state, (int)strlen(spec))];
        int to = random_below(state, 6);
        if (to < 2)
            partial[to] |= (ax_axisset)(1u << axis);
        else if (letter >= 'a' && letter <= 'z')
            axes[letter - 'a'].a[axes[letter - 'a'].n++] = (ax_axis)axis;
    }
    test_case t = {.spec = spec, .accumulate = random_below(state, 2)};
    ax_tensor *operand[2] = {&t.a, &t.b};
    ax_dtype dtype = dtypes[random_below(state, AX_COUNT(dtypes))];
    const char *c = spec;
    for (int k = 0; k < 2; k++, c++) {
        ax_tensor *o = operand[k];
        o->dtype = dtype;
        o->layout.partial = partial[k];
        for (; *c >= 'a' && *c <= 'z'; c++, o->ndim++) {
            o->dim[o->ndim] = extent[*c - 'a'];
            o->unit[o->ndim] = unit[*c - 'a'];
            o->layout.dim[o->ndim] = axes[*c - 'a'];
        }
    }
    const char *out = strchr(spec, '>') + 1;
    ax_tensor result = {.ndim = (uint8_t)strlen(out)};
    pad(state, &t.a, spec, out);
    pad(state, &t.b, strchr(spec, ',') + 1, out);
    char first[AX_MAX_DIMS + 1] = {0};
    memcpy(first, spec, t.a.ndim);
    pad(state, &result, out, first);
    t.out_align = result.align;
    return t;
}

/* ---- the oracle ---------------------------------------------------------------------------------- */

static double value(int operand, int64_t i) { return (double)((i * 7 + operand * 5 + i / 3) % 5) - 2; }

typedef struct odometer {
    char letter[27];
    int64_t extent[27], at[27];
    int n;
} odometer;

static void note_letters(odometer *o, const char *letters, const ax_tensor *t)
{
    for (int d = 0; d < t->ndim; d++)
        if (!strchr(o->letter, letters[d])) {
            o->letter[o->n] = letters[d];
            o->extent[o->n++] = t->dim[d];
        }
}

static int64_t offset(const odometer *o, const char *letters, const ax_tensor *t)
{
    int64_t at = 0;
    for (int d = 0; d < t->ndim; d++)
        at = at * t->dim[d] + o->at[strchr(o->letter, letters[d]) - o->letter];
    return at;
}

/* The dense oracle: out += scale · Σ a·b over all values of all letters, with a and b given by value(). */
static void dense_oracle(const test_case *t, double scale, const ax_tensor *shape, double *out)
{
    odometer o = {{0}, {0}, {0}, 0};
    const char *a = t->spec, *b = strchr(a, ',') + 1, *to = strchr(a, '>') + 1;
    note_letters(&o, a, &t->a);
    note_letters(&o, b, &t->b);
    int64_t all = 1;
    for (int i = 0; i < o.n; i++)
        all *= o.extent[i];
    for (int64_t k = 0; k < all; k++) {
        int64_t rest = k;
        for (int i = 0; i < o.n; i++) {
            o.at[i] = rest % o.extent[i];
            rest /= o.extent[i];
        }
        out[offset(&o, to, shape)] += scale * value(0, offset(&o, a, &t->a)) * value(1, offset(&o, b, &t->b));
    }
}

/* Allocates an operand and fills it with value(), multiplied by 1 + (sum of coordinates along the partial
 * axes). The sum of these partial sums over the partial axes is *scale times value(). */
static ax_status fill_operand(ax_frame *frame, const ax_tensor *like, int operand, ax_tensor *out,
                              double *scale)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_tensor t = *like;
    AX_TRY(ax_frame_alloc(frame, &t, &t));
    int times = 1, total = 0, ranks = ax_grid_ranks(ctx->grid), counted = 0;
    for (int r = 0; r < ranks; r++) {
        int sum = 1;
        bool one = true;
        for (int a = 0; a < ax_grid_axes(ctx->grid); a++) {
            int coord = ax_grid_coord(ctx->grid, r, (ax_axis)a);
            if (like->layout.partial >> a & 1)
                sum += coord;
            else
                one &= coord == 0;
        }
        times = r == ax_grid_rank(ctx->grid) ? sum : times;
        total += one ? sum : 0;
        counted += one;
    }
    EXPECT(counted == ax_grid_group_size(ctx->grid, like->layout.partial));
    double global[MAX_ELEMENTS];
    for (int64_t i = 0; i < ax_tensor_global_count(&t); i++)
        ax_store(t.dtype, global, i, times * value(operand, i));
    t.layout.partial = 0;
    AX_TRY(ax_tensor_scatter(ctx, &t, global));
    t.layout.partial = like->layout.partial;
    *out = t;
    *scale *= total;
    return AX_OK;
}

/* ---- running cases ------------------------------------------------------------------------------- */

static ax_status run_case(ax_frame *frame, const test_case *t)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    double scale = 1;
    ax_tensor a, b, out;
    AX_TRY(ax_frame_begin(frame, "case", AX_MODE_EVAL, NULL));
    AX_TRY(fill_operand(frame, &t->a, 0, &a, &scale));
    AX_TRY(fill_operand(frame, &t->b, 1, &b, &scale));
    AX_TRY(ax_contract_rule(ctx->grid, t->spec, &a, &b, &out));
    EXPECT(!out.align);
    out.align = t->out_align;
    EXPECT(out.dtype == a.dtype);
    /* Sums in the accumulation dtype are exact; with `accumulate` the product is added a second time. */
    out.dtype = ax_dtype_accum(out.dtype);
    AX_TRY(ax_frame_alloc(frame, &out, &out));
    AX_TRY(ax_contract_run(frame, t->spec, &a, &b, NULL, false, &out));
    if (t->accumulate)
        AX_TRY(ax_contract_run(frame, t->spec, &a, &b, NULL, true, &out));
    double want[MAX_ELEMENTS] = {0}, have[MAX_ELEMENTS];
    dense_oracle(t, t->accumulate ? 2 * scale : scale, &out, want);
    AX_TRY(ax_tensor_collect(ctx, &out, have));
    for (int64_t i = 0; i < ax_tensor_global_count(&out); i++)
        AX_CHECK(ax_load(out.dtype, have, i) == want[i], AX_ERR_INTERNAL, "element %lld is %g, not %g",
                 (long long)i, ax_load(out.dtype, have, i), want[i]);
    return AX_OK;
}

typedef struct world_case {
    ax_grid_size grid;
    const char *device;
} world_case;

static ax_status random_cases(ax_comm *world, void *arg)
{
    const world_case *w = arg;
    ax_ctx *ctx;
    ax_frame *frame = NULL;
    AX_TRY(ax_ctx_create(world, w->grid, w->device, 1, AX_F32, 1, &ctx));
    ax_status status = ax_frame_create(ctx, (size_t)1 << 18, &frame);
    for (int i = 0; i < CASES && status == AX_OK; i++) {
        uint64_t state = (uint64_t)(i * 1000 + grid_ranks(w->grid) * 1000000);
        test_case t = random_case(&state);
        char one[128], other[128];
        status = run_case(frame, &t);
        if (status != AX_OK)
            ax_error_context("case %d, %s %s of [%s] and [%s]", i, ax_dtype_name(t.a.dtype), t.spec,
                             ax_layout_print(ctx->grid, &t.a.layout, t.a.ndim, t.spec, one),
                             ax_layout_print(ctx->grid, &t.b.layout, t.b.ndim, NULL, other));
    }
    ax_frame_destroy(&frame);
    ax_ctx_destroy(&ctx);
    return status;
}

static void on_all_grids(const char *device)
{
    static const ax_grid_size grids[] = {{{1, 1, 1, 1, 1}}, {{2, 1, 1, 1, 1}}, {{2, 2, 1, 1, 1}},
                                         {{1, 3, 1, 1, 1}}, {{2, 2, 2, 1, 1}}, {{2, 1, 1, 2, 2}},
                                         {{1, 1, 4, 1, 2}}, {{5, 1, 1, 1, 1}}};
    for (size_t i = 0; i < AX_COUNT(grids); i++) {
        world_case w = {.grid = grids[i], .device = device};
        assert_ranks(grid_ranks(w.grid), random_cases, &w);
    }
}

static void random_contractions_equal_the_dense_oracle(void **state)
{
    (void)state;
    on_all_grids("ref");
    on_all_grids("check");
}

/* ---- the rule ------------------------------------------------------------------------------------ */

static ax_status operand(const ax_grid *grid, const char *layout_text, ax_tensor *out)
{
    int ndim;
    ax_layout layout;
    AX_TRY(ax_layout_parse(grid, layout_text, &ndim, &layout));
    *out = ax_tensor_make(AX_F32, ndim, (int64_t[]){8, 8, 8, 8}, NULL, &layout);
    return AX_OK;
}

static ax_status rule(const ax_grid *grid, const char *spec, const char *a_text, const char *b_text,
                      const char *names, const char *expected)
{
    ax_tensor a, b, out;
    char text[128];
    AX_TRY(operand(grid, a_text, &a));
    AX_TRY(operand(grid, b_text, &b));
    AX_TRY(ax_contract_rule(grid, spec, &a, &b, &out));
    ax_layout_print(grid, &out.layout, out.ndim, names, text);
    AX_CHECK(!strcmp(text, expected), AX_ERR_INTERNAL, "%s gives [%s]", spec, text);
    return AX_OK;
}

static ax_status refused(const ax_grid *grid, const char *spec, const char *a_text, const char *b_text,
                         const char *why)
{
    ax_tensor a, b, out;
    AX_TRY(operand(grid, a_text, &a));
    AX_TRY(operand(grid, b_text, &b));
    ax_status status = ax_contract_rule(grid, spec, &a, &b, &out);
    AX_CHECK(status == AX_ERR_INTERNAL && strstr(ax_error_message(), why), AX_ERR_INTERNAL,
             "%s is refused with \"%s\" rather than \"%s\"", spec, ax_error_message(), why);
    return AX_OK;
}

static ax_status check_rules(ax_comm *world, void *arg)
{
    (void)arg;
    ax_grid *g;
    AX_TRY(ax_grid_create(world, (ax_grid_size){{2, 2, 2, 1, 1}}, &g));
    /* The linear layer of 2305.13525: forward, input gradient, weight gradient. */
    AX_TRY(rule(g, "bti,oi->bto", "b@data.z, t, i@y", "o@x, i@y", "bto", "b@data.z, t, o@x +y"));
    AX_TRY(rule(g, "bto,oi->bti", "b@data.z, t, o@x", "o@x, i@y", "bti", "b@data.z, t, i@y +x"));
    AX_TRY(rule(g, "bto,bti->oi", "b@data.z, t, o@x", "b@data.z, t, i@y", "oi", "o@x, i@y +z.data"));
    AX_TRY(rule(g, "bi,oi->bo", "b, i +z", "o@x, i", "bo", "b, o@x +z"));
    AX_TRY(refused(g, "bi,oi->bo", "b, i@y", "o, i", "dim i is split differently in [b, i@y] and [o, i]"));
    AX_TRY(refused(g, "bi,oi->bo", "b@x, i", "o@x, i", "axis x appears twice"));
    AX_TRY(refused(g, "bi,oi->bo", "b, i +x", "o@x, i", "axis x appears twice"));
    AX_TRY(refused(g, "bi,oi->bo", "b, i +x", "o, i +x", "of two partial sums"));
    AX_TRY(refused(g, "bi,oi->o", "b, i", "o, i", "sums b, which only one operand has"));
    AX_TRY(refused(g, "bi,oi->bz", "b, i", "o, i", "no operand has the dim z"));
    AX_TRY(refused(g, "bi,oi", "b, i", "o, i", "is not of the form"));
    AX_TRY(
        refused(g, "bi,oi->bo", "b, t, i", "o, i", "needs operands of 2 and 2 dims, but they have 3 and 2"));
    ax_tensor a, b, out;
    AX_TRY(operand(g, "b, i@x/z", &a));
    AX_TRY(operand(g, "o, i@x.z", &b));
    EXPECT(ax_contract_rule(g, "bi,oi->bo", &a, &b, &out) == AX_ERR_INTERNAL);
    AX_TRY(operand(g, "o, i@x/z", &b));
    AX_TRY(ax_contract_rule(g, "bi,oi->bo", &a, &b, &out));
    b.unit[1] = 4;
    EXPECT(ax_contract_rule(g, "bi,oi->bo", &a, &b, &out) == AX_ERR_INTERNAL);
    b.dim[1] = 7;
    EXPECT(ax_contract_rule(g, "bi,oi->bo", &a, &b, &out) == AX_ERR_INTERNAL);
    EXPECT(strstr(ax_error_message(), "dim i is 8 in one operand and 7 in the other"));
    ax_grid_destroy(&g);
    return AX_OK;
}

static void results_have_the_expected_layouts(void **state)
{
    (void)state;
    assert_ranks(8, check_rules, NULL);
}

static ax_status not_a_gemm(ax_comm *world, void *arg)
{
    (void)arg;
    ax_ctx *ctx;
    ax_frame *frame;
    AX_TRY(ax_ctx_create(world, (ax_grid_size){{1}}, "ref", 1, AX_F32, 1, &ctx));
    AX_TRY(ax_frame_create(ctx, 1 << 20, &frame));
    AX_TRY(ax_frame_begin(frame, "case", AX_MODE_EVAL, NULL));
    ax_tensor like = ax_tensor_make(AX_F32, 3, (int64_t[]){2, 2, 2}, NULL, NULL), a, b, out;
    AX_TRY(ax_frame_alloc(frame, &like, &a));
    AX_TRY(ax_frame_alloc(frame, &like, &b));
    EXPECT(ax_contract(frame, "bto,tbi->oi", &a, &b, NULL, &out) == AX_ERR_INTERNAL);
    EXPECT(strstr(ax_error_message(), "contraction \"bto,tbi->oi\" is not one matrix product"));
    EXPECT(ax_contract(frame, "bto,bti->boi", &a, &b, NULL, &out) == AX_ERR_INTERNAL);
    a.ndim = b.ndim = 2;
    out = like;
    EXPECT(ax_contract_run(frame, "bi,oi->bo", &a, &b, NULL, false, &out) == AX_ERR_INTERNAL);
    EXPECT(strstr(ax_error_message(), "gives [d0, d1], but `out` has layout [d0, d1, d2]"));
    ax_frame_destroy(&frame);
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

static void contractions_that_are_no_gemm_are_errors(void **state)
{
    (void)state;
    assert_ranks(1, not_a_gemm, NULL);
}

/* Only sums over the first dims of the first operand are possible beside a GEMM. */
static ax_status impossible_sums(ax_comm *world, void *arg)
{
    (void)arg;
    static const char *const impossible[] = {"bo,bi->io", "ob,bi->oi"};
    ax_ctx *ctx;
    ax_frame *frame;
    AX_TRY(ax_ctx_create(world, (ax_grid_size){{1}}, "ref", 1, AX_F32, 1, &ctx));
    AX_TRY(ax_frame_create(ctx, 1 << 16, &frame));
    AX_TRY(ax_frame_begin(frame, "case", AX_MODE_EVAL, NULL));
    for (size_t i = 0; i < AX_COUNT(impossible); i++) {
        ax_tensor a = ax_tensor_make(AX_F32, 2, (int64_t[]){3, 3}, NULL, NULL), b = a, sums = a;
        sums.ndim = 1;
        AX_TRY(ax_frame_alloc(frame, &a, &a));
        AX_TRY(ax_frame_alloc(frame, &b, &b));
        AX_TRY(ax_frame_alloc(frame, &sums, &sums));
        ax_contraction c = {.a = &a, .b = &b, .out = &b, .sums = &sums};
        EXPECT(ax_contract_each(frame, impossible[i], &c, 1) == AX_ERR_INTERNAL);
        EXPECT(strstr(ax_error_message(), "cannot sum the columns of its first operand"));
    }
    ax_frame_destroy(&frame);
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

static void sums_that_no_gemm_computes_are_errors(void **state)
{
    (void)state;
    assert_ranks(1, impossible_sums, NULL);
}

/* ---- several contractions ------------------------------------------------------------------------ */

enum { M = 5, K = 2, PARTS = 3, MOST = 64 };
static const int64_t widths[PARTS] = {4, 3, 6};

static void count_gemms(void *user, const ax_device_event *launch)
{
    *(int *)user += launch->kernel == AX_K_gemm;
}

/* Allocates [rows, cols] and sets element i to values[i % n]. */
static ax_status filled(ax_frame *frame, ax_dtype dtype, int64_t rows, int64_t cols, const double *values,
                        int n, ax_tensor *out)
{
    char global[MOST * sizeof(double)];
    ax_tensor like = ax_tensor_make(dtype, 2, (int64_t[]){rows, cols}, NULL, NULL);
    EXPECT(rows * cols <= MOST);
    for (int64_t i = 0; i < rows * cols; i++)
        ax_store(dtype, global, i, values[i % n]);
    AX_TRY(ax_frame_alloc(frame, &like, out));
    return ax_tensor_scatter(ax_frame_ctx(frame), out, global);
}

/* Returns rows lo … lo+n-1 of a dense matrix as a tensor. */
static ax_tensor rows_of(const ax_tensor *t, int64_t lo, int64_t n)
{
    ax_tensor part = *t;
    part.dim[0] = n;
    part.data = (char *)t->data + (size_t)(lo * t->dim[1]) * ax_dtype_size(t->dtype);
    return part;
}

/* The sum of three products, 257 - 256 + 3, is 4 if it is rounded once. If it is rounded to bf16 after each
 * product, 257 becomes 256, and the sum is 3. The rows of b that the products read are `apart` rows apart. */
static ax_status sum_of_products(ax_frame *frame, int64_t apart, int gemms, double sum)
{
    static const double ones[] = {1}, rows[PARTS * K] = {256, 1, -256, 0, 3, 0};
    double values[PARTS * (K + 1)] = {0}, have[M];
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_tensor a[PARTS], b[PARTS], whole, out;
    ax_contraction each[PARTS];
    int calls = 0;
    for (int i = 0; i < PARTS * K; i++)
        values[i / K * (K + apart) + i % K] = rows[i];
    AX_TRY(filled(frame, AX_BF16, M, PARTS * K, ones, 1, &whole));
    for (int i = 0; i < PARTS; i++) {
        a[i] = ax_tensor_make(AX_BF16, 2, (int64_t[]){M, K}, NULL, NULL);
        a[i].align = PARTS * K * sizeof(uint16_t);
        a[i].data = (uint16_t *)whole.data + i * K;
    }
    AX_TRY(filled(frame, AX_BF16, PARTS * (K + apart), 1, values, PARTS * (int)(K + apart), &whole));
    AX_TRY(filled(frame, AX_BF16, M, 1, ones, 1, &out));
    for (int i = 0; i < PARTS; i++) {
        b[i] = rows_of(&whole, i * (K + apart), K);
        each[i] = (ax_contraction){.a = &a[i], .b = &b[i], .out = &out, .accumulate = i > 0};
    }
    ax_listener listener = {AX_ON_KERNEL, count_gemms, &calls, NULL};
    ax_device_listen(ctx->dev, &listener);
    AX_TRY(ax_contract_each(frame, "bo,oi->bi", each, PARTS));
    ax_device_unlisten(ctx->dev, &listener);
    EXPECT(calls == gemms);
    AX_TRY(ax_tensor_collect(ctx, &out, have));
    for (int i = 0; i < M; i++)
        EXPECT(ax_load(AX_BF16, have, i) == sum);
    return AX_OK;
}

/* Compares sums that were added to 1 with those of the columns of y, [M, n]. All sums are exact. */
static ax_status check_sums(ax_ctx *ctx, const ax_tensor *sums, const float *y, int64_t n)
{
    float have[MOST];
    AX_TRY(ax_tensor_collect(ctx, sums, have));
    for (int64_t c = 0; c < n; c++) {
        float want = 1;
        for (int64_t r = 0; r < M; r++)
            want += y[r * n + c];
        EXPECT(have[c] == want);
    }
    return AX_OK;
}

/* Computes x·wᵀ + bias and xᵀ·y for three blocks w and y, and the sums of the columns of y, and compares with
 * the GEMMs one by one. The sums of the blocks are `apart` elements apart. */
static ax_status blocks(ax_frame *frame, int64_t apart, int gemms)
{
    static const double numbers[] = {1, -2, 3, 0.5, -4, 7, 2};
    enum { N = 13 };
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_tensor x, w, bias, y[PARTS], like[PARTS], dw, part[PARTS], of_bias[PARTS], grad[PARTS], all,
        sums[PARTS];
    ax_contraction forward[PARTS], backward[PARTS];
    int calls = 0;
    AX_TRY(filled(frame, AX_F32, M, K, numbers, 7, &x));
    AX_TRY(filled(frame, AX_F32, N, K, numbers, 5, &w));
    AX_TRY(filled(frame, AX_F32, N, 1, numbers, 3, &bias));
    AX_TRY(filled(frame, AX_F32, N, K, numbers, 1, &dw));
    AX_TRY(filled(frame, AX_F32, N + PARTS * apart, 1, numbers, 1, &all));
    for (int64_t i = 0, lo = 0; i < PARTS; lo += widths[i++]) {
        like[i] = ax_tensor_make(AX_F32, 2, (int64_t[]){M, widths[i]}, NULL, NULL);
        part[i] = rows_of(&w, lo, widths[i]);
        grad[i] = rows_of(&dw, lo, widths[i]);
        of_bias[i] = rows_of(&bias, lo, widths[i]);
        forward[i] = (ax_contraction){.a = &x, .b = &part[i], .bias = &of_bias[i], .out = &y[i]};
        sums[i] = rows_of(&all, lo + i * apart, widths[i]);
        backward[i] =
            (ax_contraction){.a = &y[i], .b = &x, .out = &grad[i], .sums = &sums[i], .accumulate_sums = true};
    }
    AX_TRY(ax_frame_alloc_beside(frame, PARTS, like, y));
    ax_listener listener = {AX_ON_KERNEL, count_gemms, &calls, NULL};
    ax_device_listen(ctx->dev, &listener);
    AX_TRY(ax_contract_each(frame, "bi,oi->bo", forward, PARTS));
    AX_TRY(ax_contract_each(frame, "bo,bi->oi", backward, PARTS));
    ax_device_unlisten(ctx->dev, &listener);
    EXPECT(calls == gemms);
    for (int i = 0; i < PARTS; i++) {
        float have[MOST], want[MOST];
        ax_tensor alone;
        AX_TRY(ax_contract(frame, "bi,oi->bo", &x, &part[i], &of_bias[i], &alone));
        AX_TRY(ax_tensor_collect(ctx, &alone, want));
        for (int64_t r = 0; r < M; r++) {
            const char *row = (const char *)y[i].data + (size_t)(r * N) * sizeof *have;
            AX_TRY(ax_copy_out(ctx->stream, have, row, (size_t)widths[i] * sizeof *have));
            EXPECT(!memcmp(have, want + r * widths[i], (size_t)widths[i] * sizeof *have));
        }
        AX_TRY(check_sums(ctx, &sums[i], want, widths[i]));
        AX_TRY(ax_contract(frame, "bo,bi->oi", &alone, &x, NULL, &alone));
        AX_TRY(ax_tensor_collect(ctx, &alone, want));
        AX_TRY(ax_tensor_collect(ctx, &grad[i], have));
        EXPECT(!memcmp(have, want, (size_t)(widths[i] * K) * sizeof *have));
    }
    return AX_OK;
}

static ax_status joined(ax_comm *world, void *arg)
{
    ax_ctx *ctx;
    ax_frame *frame;
    AX_TRY(ax_ctx_create(world, (ax_grid_size){{1}}, arg, 1, AX_BF16, 1, &ctx));
    AX_TRY(ax_frame_create(ctx, 1 << 16, &frame));
    AX_TRY(ax_frame_begin(frame, "case", AX_MODE_EVAL, NULL));
    AX_TRY(sum_of_products(frame, 0, 1, 4));
    AX_TRY(sum_of_products(frame, 1, 3, 3));
    AX_TRY(blocks(frame, 0, 1 + 1));
    AX_TRY(blocks(frame, 1, 1 + PARTS));
    ax_frame_destroy(&frame);
    ax_ctx_destroy(&ctx);
    return AX_OK;
}

static void contractions_of_adjacent_blocks_are_one_gemm(void **state)
{
    (void)state;
    assert_ranks(1, joined, "ref");
    assert_ranks(1, joined, "cpu");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_have_the_expected_layouts),
        cmocka_unit_test(contractions_that_are_no_gemm_are_errors),
        cmocka_unit_test(sums_that_no_gemm_computes_are_errors),
        cmocka_unit_test(contractions_of_adjacent_blocks_are_one_gemm),
        cmocka_unit_test(random_contractions_equal_the_dense_oracle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
