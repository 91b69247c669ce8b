/* The rule "contract": the layout of a contraction of two distributed tensors, and its execution as a GEMM.
 *
 * A spec like "bti,oi->bto" names the dims of the operands, a and b, and of the result by letters. A letter
 * belongs to one of three groups: letters that a and the result have, letters that b and the result have, and
 * summed letters, which a and b have. The letters of each group must be adjacent and in the same order
 * everywhere, so that operands and result are matrices, possibly transposed, and the contraction is one GEMM,
 * out[m,n] = Σ_k a[m,k]·b[k,n]. */
#include "axonn/parallel.h"

#include <stdio.h>
#include <string.h>

typedef struct spec {
    char a[AX_MAX_DIMS + 1], b[AX_MAX_DIMS + 1], out[AX_MAX_DIMS + 1];
} spec;

/* Copies the letters of `text` up to `end` (NULL: all) to out. Returns false unless there are 1 to
 * AX_MAX_DIMS letters, all different. */
static bool take_letters(const char *text, const char *end, char out[AX_MAX_DIMS + 1])
{
    size_t n = end ? (size_t)(end - text) : strlen(text);
    if (n < 1 || n > AX_MAX_DIMS)
        return false;
    memcpy(out, text, n);
    out[n] = 0;
    for (size_t i = 0; i < n; i++)
        if (out[i] < 'a' || out[i] > 'z' || strchr(out + i + 1, out[i]))
            return false;
    return true;
}

static ax_status parse(const char *text, const ax_tensor *a, const ax_tensor *b, spec *out)
{
    const char *comma = strchr(text, ','), *arrow = comma ? strstr(comma, "->") : NULL;
    AX_CHECK(arrow && take_letters(text, comma, out->a) && take_letters(comma + 1, arrow, out->b) &&
                 take_letters(arrow + 2, NULL, out->out),
             AX_ERR_INTERNAL, "contraction \"%s\" is not of the form \"bti,oi->bto\"", text);
    AX_CHECK(strlen(out->a) == a->ndim && strlen(out->b) == b->ndim, AX_ERR_INTERNAL,
             "contraction \"%s\" needs operands of %zu and %zu dims, but they have %d and %d", text,
             strlen(out->a), strlen(out->b), a->ndim, b->ndim);
    for (const char *c = out->out; *c; c++)
        AX_CHECK(strchr(out->a, *c) || strchr(out->b, *c), AX_ERR_INTERNAL,
                 "contraction \"%s\": no operand has the dim %c", text, *c);
    for (const char *c = out->a; *c; c++)
        AX_CHECK(strchr(out->b, *c) || strchr(out->out, *c), AX_ERR_INTERNAL,
                 "contraction \"%s\" sums %c, which only one operand has", text, *c);
    for (const char *c = out->b; *c; c++)
        AX_CHECK(strchr(out->a, *c) || strchr(out->out, *c), AX_ERR_INTERNAL,
                 "contraction \"%s\" sums %c, which only one operand has", text, *c);
    return AX_OK;
}

/* Returns the index of the letter c in `letters`, or -1. */
static int find(const char *letters, char c)
{
    const char *at = strchr(letters, c);
    return at ? (int)(at - letters) : -1;
}

/* ---- the rule ------------------------------------------------------------------------------------ */

static ax_status operands_agree(const ax_grid *grid, const char *text, const spec *s, const ax_tensor *a,
                                const ax_tensor *b)
{
    AX_CHECK(a->dtype == b->dtype, AX_ERR_INTERNAL,
             "contraction \"%s\": the operands must have one dtype, not %s and %s", text,
             ax_dtype_name(a->dtype), ax_dtype_name(b->dtype));
    char one[128], other[128];
    for (int i = 0; i < a->ndim; i++) {
        int j = find(s->b, s->a[i]);
        if (j < 0)
            continue;
        AX_CHECK(a->dim[i] == b->dim[j], AX_ERR_INTERNAL,
                 "contraction \"%s\": dim %c is %lld in one operand and %lld in the other", text, s->a[i],
                 (long long)a->dim[i], (long long)b->dim[j]);
        bool split = ax_layout_effective(grid, &a->layout, a->ndim).dim[i].n > 0;
        bool same = ax_axes_equal(grid, &a->layout.dim[i], &b->layout.dim[j]) &&
                    (!split || ax_max(a->unit[i], 1) == ax_max(b->unit[j], 1));
        AX_CHECK(same, AX_ERR_INTERNAL,
                 "contraction \"%s\": dim %c is split differently in [%s] and [%s]: redistribute one first",
                 text, s->a[i], ax_layout_print(grid, &a->layout, a->ndim, s->a, one),
                 ax_layout_print(grid, &b->layout, b->ndim, s->b, other));
    }
    AX_CHECK(!(ax_grid_effective(grid, a->layout.partial) & ax_grid_effective(grid, b->layout.partial)),
             AX_ERR_INTERNAL, "contraction \"%s\" of two partial sums, [%s] and [%s]: redistribute one first",
             text, ax_layout_print(grid, &a->layout, a->ndim, s->a, one),
             ax_layout_print(grid, &b->layout, b->ndim, s->b, other));
    return AX_OK;
}

/* Returns the grid axes that split the summed dims. (Both operands have these dims, and split them alike.) */
static ax_axisset summed_axes(const spec *s, const ax_tensor *a)
{
    ax_axisset axes = 0;
    for (int d = 0; d < a->ndim; d++)
        for (int i = 0; i < a->layout.dim[d].n && find(s->out, s->a[d]) < 0; i++)
            axes |= (ax_axisset)(1u << a->layout.dim[d].a[i]);
    return axes;
}

ax_status ax_contract_rule(const ax_grid *grid, const char *text, const ax_tensor *a, const ax_tensor *b,
                           ax_tensor *out)
{
    spec s;
    AX_TRY(parse(text, a, b, &s));
    AX_TRY(operands_agree(grid, text, &s, a, b));
    ax_tensor r = {.dtype = a->dtype, .ndim = (uint8_t)strlen(s.out)};
    for (int d = 0; d < r.ndim; d++) {
        int i = find(s.a, s.out[d]);
        const ax_tensor *from = i >= 0 ? a : b;
        i = i >= 0 ? i : find(s.b, s.out[d]);
        r.dim[d] = from->dim[i];
        r.unit[d] = from->unit[i];
        r.layout.dim[d] = from->layout.dim[i];
    }
    r.layout.partial = a->layout.partial | b->layout.partial | summed_axes(&s, a);
    if (ax_layout_check(grid, &r.layout, r.ndim) != AX_OK) {
        ax_error_context("contraction \"%s\"", text);
        return AX_ERR_INTERNAL;
    }
    *out = r;
    return AX_OK;
}

/* ---- one GEMM ------------------------------------------------------------------------------------ */

/* The three groups of letters. kept_a and summed are in the order of operand a, kept_b in that of operand
 * b. */
typedef struct groups {
    char kept_a[AX_MAX_DIMS + 1], kept_b[AX_MAX_DIMS + 1], summed[AX_MAX_DIMS + 1];
} groups;

static void append(char *letters, char c)
{
    size_t n = strlen(letters);
    letters[n] = c;
    letters[n + 1] = 0;
}

/* Returns true if `letters` is `first` followed by `second`. */
static bool is_pair(const char *letters, const char *first, const char *second)
{
    size_t n = strlen(first);
    return strlen(letters) == n + strlen(second) && !strncmp(letters, first, n) &&
           !strcmp(letters + n, second);
}

static groups group_letters(const spec *s)
{
    groups g = {"", "", ""};
    for (const char *c = s->a; *c; c++)
        append(find(s->out, *c) < 0 ? g.summed : g.kept_a, *c);
    for (const char *c = s->b; *c; c++)
        if (find(s->out, *c) >= 0)
            append(g.kept_b, *c);
    return g;
}

/* Returns the product of this rank's extents of those dims of t that `letters` names. `all` has the letters
 * of all dims of t. */
static int64_t extent_of(const ax_grid *grid, const ax_tensor *t, const char *all, const char *letters)
{
    int64_t n = 1;
    for (; *letters; letters++)
        n *= ax_tensor_extent(grid, t, find(all, *letters));
    return n;
}

/* Computes the leading dimension (distance between rows, in elements) of tensor t, viewed as a matrix whose
 * columns are the dims `cols`, the last dims of t. */
static ax_status row_stride(const ax_grid *grid, const char *text, const ax_tensor *t, const char *all,
                            const char *cols, int64_t *out)
{
    bool padded = t->align && t->ndim > 1;
    AX_CHECK(
        !padded || strlen(cols) == 1, AX_ERR_INTERNAL,
        "contraction \"%s\": the dims %s of operand %s cannot be merged into columns, because its rows are "
        "padded",
        text, cols, all);
    *out = ax_max(padded ? ax_tensor_pitch(grid, t) : extent_of(grid, t, all, cols), 1);
    return AX_OK;
}

/* Returns by how much the GEMM can extend the extent of a group of letters (`letters`): by rows->spare, the
 * number of rows of zeros that follow the tensor `rows` in memory, or by 0. The result is not 0 only if the
 * group is one letter, the first dim of `rows` and the last dim of `cols`, and if the padding of the rows of
 * `cols` has room for as many elements. */
static int64_t zeros_of(const ax_grid *grid, const char *letters, const ax_tensor *rows, const char *of_rows,
                        const ax_tensor *cols, const char *of_cols)
{
    bool fits = strlen(letters) == 1 && rows->spare && cols->align && cols->ndim > 1 &&
                of_rows[0] == *letters && of_cols[cols->ndim - 1] == *letters;
    int64_t room = fits ? ax_tensor_pitch(grid, cols) - ax_tensor_extent(grid, cols, cols->ndim - 1) : 0;
    return fits && room >= rows->spare ? rows->spare : 0;
}

/* Finds the operands and extents of the GEMM that computes the contraction. */
static ax_status lower_to_gemm(const ax_grid *grid, const char *text, const ax_tensor *a, const ax_tensor *b,
                               const ax_tensor *c, ax_gemm_args *out)
{
    spec s;
    AX_TRY(parse(text, a, b, &s));
    groups g = group_letters(&s);
    bool a_rows = is_pair(s.a, g.kept_a, g.summed), b_rows = is_pair(s.b, g.summed, g.kept_b);
    bool ab = is_pair(s.out, g.kept_a, g.kept_b), ba = is_pair(s.out, g.kept_b, g.kept_a);
    AX_CHECK(
        (a_rows || is_pair(s.a, g.summed, g.kept_a)) && (b_rows || is_pair(s.b, g.kept_b, g.summed)) &&
            (ab || ba),
        AX_ERR_INTERNAL,
        "contraction \"%s\" is not one matrix product: the kept dims of each operand (%s and %s) and the "
        "summed dims (%s) must each be adjacent and in the same order everywhere",
        text, g.kept_a, g.kept_b, g.summed);
    int64_t m = extent_of(grid, a, s.a, g.kept_a), n = extent_of(grid, b, s.b, g.kept_b);
    int64_t k = extent_of(grid, a, s.a, g.summed);
    m += zeros_of(grid, g.kept_a, c, s.out, a, s.a);
    n += zeros_of(grid, g.kept_b, b, s.b, c, s.out);
    k += zeros_of(grid, g.summed, b, s.b, a, s.a);
    /* a is [m,k] or [k,m], b is [k,n] or [n,k]. If the result is [n,m], the GEMM swaps the operands a and
     * b. */
    if (ab)
        *out = (ax_gemm_args){.m = m, .n = n, .trans_a = !a_rows, .trans_b = !b_rows};
    else
        *out = (ax_gemm_args){.m = n, .n = m, .trans_a = b_rows, .trans_b = a_rows};
    out->k = k;
    out->a = ab ? a->data : b->data;
    out->b = ab ? b->data : a->data;
    out->dtype = a->dtype;
    AX_TRY(row_stride(grid, text, a, s.a, a_rows ? g.summed : g.kept_a, ab ? &out->lda : &out->ldb));
    AX_TRY(row_stride(grid, text, b, s.b, b_rows ? g.kept_b : g.summed, ab ? &out->ldb : &out->lda));
    return row_stride(grid, text, c, s.out, ab ? g.kept_b : g.kept_a, &out->ldc);
}

/* Checks the arguments of a contraction, and computes the arguments of the GEMM that runs it. */
static ax_status prepare_gemm(ax_ctx *ctx, const char *text, const ax_tensor *a, const ax_tensor *b,
                              const ax_tensor *bias, const ax_tensor *out, ax_gemm_args *gemm)
{
    ax_tensor rule;
    AX_TRY(ax_contract_rule(ctx->grid, text, a, b, &rule));
    char is[128], given[128];
    AX_CHECK(out->ndim == rule.ndim && !memcmp(out->dim, rule.dim, sizeof rule.dim[0] * rule.ndim) &&
                 ax_layout_equal(ctx->grid, &out->layout, &rule.layout, rule.ndim),
             AX_ERR_INTERNAL,
             "contraction \"%s\" gives [%s], but `out` has layout [%s] or other extents than the operands",
             text, ax_layout_print(ctx->grid, &rule.layout, rule.ndim, NULL, is),
             ax_layout_print(ctx->grid, &out->layout, out->ndim, NULL, given));
    AX_CHECK(out->dtype == a->dtype || out->dtype == ax_dtype_accum(a->dtype), AX_ERR_INTERNAL,
             "contraction \"%s\" of %s cannot have a result of %s: only %s or %s", text,
             ax_dtype_name(a->dtype), ax_dtype_name(out->dtype), ax_dtype_name(a->dtype),
             ax_dtype_name(ax_dtype_accum(a->dtype)));
    AX_TRY(lower_to_gemm(ctx->grid, text, a, b, out, gemm));
    if (bias) {
        AX_CHECK(gemm->n == ax_tensor_count(ctx->grid, bias) && bias->dtype == ax_dtype_accum(a->dtype) &&
                     !ax_grid_effective(ctx->grid, rule.layout.partial),
                 AX_ERR_INTERNAL,
                 "contraction \"%s\": the bias must be %s with %lld elements on this rank, and the result, "
                 "[%s], must not be a partial sum",
                 text, ax_dtype_name(ax_dtype_accum(a->dtype)), (long long)gemm->n,
                 ax_layout_print(ctx->grid, &rule.layout, rule.ndim, NULL, is));
        gemm->bias = bias->data;
    }
    gemm->c = out->data;
    gemm->c_dtype = out->dtype;
    return AX_OK;
}

ax_status ax_contract_run(ax_frame *frame, const char *text, const ax_tensor *a, const ax_tensor *b,
                          const ax_tensor *bias, bool accumulate, const ax_tensor *out)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_gemm_args gemm;
    AX_TRY(prepare_gemm(ctx, text, a, b, bias, out, &gemm));
    gemm.accumulate = accumulate;
    return gemm.m && gemm.n ? ax_run_gemm(ctx->stream, &gemm) : AX_OK;
}

/* ---- several contractions as one GEMM ------------------------------------------------------------ */

static const char *after(const void *x, int64_t elements, ax_dtype dtype)
{
    return (const char *)x + elements * (int64_t)ax_dtype_size(dtype);
}

/* Return true if the matrix at `next` begins directly to the right of the matrix at `at` (beside), or
 * directly below it (below), so that the two are one matrix of leading dimension `ld`. `rows` and `cols` are
 * those of the matrix at `at`. */
static bool beside(const void *at, const void *next, int64_t ld, int64_t cols, int64_t next_cols,
                   ax_dtype dtype)
{
    return (const char *)next == after(at, cols, dtype) && cols + next_cols <= ld;
}
static bool below(const void *at, const void *next, int64_t ld, int64_t rows, ax_dtype dtype)
{
    return (const char *)next == after(at, rows * ld, dtype);
}

/* Returns true if the sums of columns of `next` follow those of g in memory and are stored in the same way
 * (accumulate_sums), or if neither has such sums. */
static bool sums_follow(const ax_gemm_args *g, const ax_gemm_args *next)
{
    if (!g->col_sums || !next->col_sums)
        return !g->col_sums && !next->col_sums;
    return (const char *)next->col_sums == after(g->col_sums, g->m, ax_dtype_accum(g->dtype)) &&
           g->accumulate_sums == next->accumulate_sums;
}

/* If one GEMM can compute both g and `next`, which follows g, extends g by `next` and returns true. If not,
 * returns false. */
static bool join(ax_gemm_args *g, const ax_gemm_args *next)
{
    const ax_dtype in = g->dtype, out = g->c_dtype;
    if (in != next->dtype || out != next->c_dtype || g->trans_a != next->trans_a ||
        g->trans_b != next->trans_b || g->lda != next->lda || g->ldb != next->ldb || g->ldc != next->ldc)
        return false;
    bool same_m = g->m == next->m, same_n = g->n == next->n, same_k = g->k == next->k;
    bool a_same = g->a == next->a, b_same = g->b == next->b, c_same = g->c == next->c;
    bool sums = g->col_sums || next->col_sums;
    bool along_m = g->trans_a ? beside(g->a, next->a, g->lda, g->m, next->m, in)
                              : below(g->a, next->a, g->lda, g->m, in);
    bool along_n = g->trans_b ? below(g->b, next->b, g->ldb, g->n, in)
                              : beside(g->b, next->b, g->ldb, g->n, next->n, in);
    bool a_along_k = g->trans_a ? below(g->a, next->a, g->lda, g->k, in)
                                : beside(g->a, next->a, g->lda, g->k, next->k, in);
    bool b_along_k = g->trans_b ? beside(g->b, next->b, g->ldb, g->k, next->k, in)
                                : below(g->b, next->b, g->ldb, g->k, in);
    if (same_m && same_n && c_same && a_along_k && b_along_k && next->accumulate && !next->bias && !sums) {
        g->k += next->k;
        return true;
    }
    if (!same_k || g->accumulate != next->accumulate || !g->bias != !next->bias)
        return false;
    if (same_m && a_same && along_n && !sums && beside(g->c, next->c, g->ldc, g->n, next->n, out) &&
        (!g->bias || (const char *)next->bias == after(g->bias, g->n, ax_dtype_accum(in)))) {
        g->n += next->n;
        return true;
    }
    if (same_n && b_same && along_m && below(g->c, next->c, g->ldc, g->m, out) && g->bias == next->bias &&
        sums_follow(g, next)) {
        g->m += next->m;
        return true;
    }
    return false;
}

/* Makes the GEMM that computes the contraction c compute c->sums too, unless c->sums is NULL. */
static ax_status add_sums(const ax_grid *grid, const char *text, const ax_contraction *c, ax_gemm_args *gemm)
{
    if (!c->sums)
        return AX_OK;
    AX_CHECK(gemm->trans_a && gemm->a == c->a->data && gemm->m == ax_tensor_count(grid, c->sums) &&
                 c->sums->dtype == ax_dtype_accum(gemm->dtype) && !c->bias,
             AX_ERR_INTERNAL,
             "contraction \"%s\" cannot sum the columns of its first operand: this needs a first operand "
             "whose summed dims come first, no bias, and sums of %s, one for each column",
             text, ax_dtype_name(ax_dtype_accum(gemm->dtype)));
    gemm->col_sums = c->sums->data;
    gemm->accumulate_sums = c->accumulate_sums;
    return AX_OK;
}

/* Returns true if the GEMM changes nothing in memory. */
static bool is_empty(const ax_gemm_args *g)
{
    return !g->m || (!g->col_sums && (!g->n || (g->accumulate && !g->k)));
}

ax_status ax_contract_each(ax_frame *frame, const char *text, const ax_contraction *each, int n)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_gemm_args gemm[AX_BESIDE];
    int gemms = 0;
    AX_ASSERT(n <= AX_BESIDE);
    for (int i = 0; i < n; i++) {
        const ax_contraction *c = &each[i];
        AX_TRY(prepare_gemm(ctx, text, c->a, c->b, c->bias, c->out, &gemm[gemms]));
        gemm[gemms].accumulate = c->accumulate;
        AX_TRY(add_sums(ctx->grid, text, c, &gemm[gemms]));
        if (!is_empty(&gemm[gemms]) && (!gemms || !join(&gemm[gemms - 1], &gemm[gemms])))
            gemms++;
    }
    for (int i = 0; i < gemms; i++)
        AX_TRY(ax_run_gemm(ctx->stream, &gemm[i]));
    return AX_OK;
}

/* ---- rows in groups ------------------------------------------------------------------------------ */

enum { GROUPED_SPEC = 16 }; /* room for a text such as "ri,ogi->ro" */

/* Copies `text` without the letter g, which stands for the groups. */
static void drop_groups(const char *text, char out[GROUPED_SPEC])
{
    AX_ASSERT(strlen(text) < GROUPED_SPEC);
    for (; *text; text++)
        if (*text != 'g')
            *out++ = *text;
    *out = 0;
}

/* Returns t without its middle dim, the groups, if it has three dims. */
static ax_tensor of_group(const ax_tensor *t)
{
    ax_tensor one = *t;
    if (t->ndim < 3)
        return one;
    one.ndim = 2;
    one.dim[1] = t->dim[2];
    one.unit[1] = t->unit[2];
    one.layout.dim[1] = t->layout.dim[2];
    one.layout.dim[2] = (ax_axes){0};
    return one;
}

static ax_axisset axes_of_groups(const ax_groups *by)
{
    return ax_layout_split_axes(&(ax_layout){.dim = {by->axes}}, 1);
}

/* Returns the number of groups whose rows this rank has. */
static int64_t groups_here(const ax_grid *grid, const ax_groups *by)
{
    const ax_layout layout = {.dim = {by->axes}};
    const ax_tensor all = ax_tensor_make(AX_I32, 1, &by->n, NULL, &layout);
    return ax_tensor_extent(grid, &all, 0);
}

/* Gives t, a matrix for each group, a middle dim of groups. Each rank has the whole sums of its groups. */
static void add_groups(ax_tensor *t, const ax_groups *by)
{
    t->ndim = 3;
    t->dim[2] = t->dim[1];
    t->unit[2] = t->unit[1];
    t->layout.dim[2] = t->layout.dim[1];
    t->dim[1] = by->n;
    t->unit[1] = 1;
    t->layout.dim[1] = by->axes;
    t->layout.partial &= (ax_axisset)~axes_of_groups(by);
}

ax_status ax_contract_grouped_rule(const ax_grid *grid, const ax_groups *by, const char *text,
                                   const ax_tensor *a, const ax_tensor *b, ax_tensor *out)
{
    const ax_tensor one = of_group(b);
    char plain[GROUPED_SPEC];
    drop_groups(text, plain);
    AX_TRY(ax_contract_rule(grid, plain, a, &one, out));
    if (b->ndim == 2)
        add_groups(out, by);
    return AX_OK;
}

/* Computes the arguments of the GEMM of one group: the matrices of the groups lie in one another's rows. */
static ax_status prepare_grouped(ax_ctx *ctx, const ax_groups *by, const char *text, const ax_contraction *c,
                                 ax_gemm_args *gemm)
{
    const ax_tensor *of = c->b->ndim == 3 ? c->b : c->out, a = of_group(c->a), b = of_group(c->b);
    ax_tensor out = of_group(c->out);
    char plain[GROUPED_SPEC];
    AX_CHECK(
        (c->b->ndim == 3) != (c->out->ndim == 3) && of->dim[1] == by->n &&
            ax_axes_equal(ctx->grid, &of->layout.dim[1], &by->axes),
        AX_ERR_INTERNAL,
        "contraction \"%s\" needs one array with a matrix for each of %lld groups, split as the rows are",
        text, (long long)by->n);
    drop_groups(text, plain);
    if (of == c->out)
        out.layout.partial |= axes_of_groups(by); /* as if other ranks had rows of the same groups */
    AX_TRY(prepare_gemm(ctx, plain, &a, &b, NULL, &out, gemm));
    AX_CHECK(gemm->a == c->a->data && gemm->trans_a == (c->out->ndim == 3), AX_ERR_INTERNAL,
             "contraction \"%s\" is not a GEMM of groups of rows", text);
    *(of == c->b ? &gemm->ldb : &gemm->ldc) *= groups_here(ctx->grid, by);
    gemm->accumulate = c->accumulate;
    return AX_OK;
}

static ax_status run_grouped(ax_ctx *ctx, const ax_groups *by, const ax_gemm_args *gemm)
{
    const int64_t here = groups_here(ctx->grid, by), equal = here * by->each; /* rows of equal groups */
    return ax_run_gemm_grouped(
        ctx->stream, &(ax_gemm_grouped_args){.m = by->bounds || gemm->trans_a ? gemm->m : equal,
                                             .n = gemm->n,
                                             .k = by->bounds || !gemm->trans_a ? gemm->k : equal,
                                             .groups = here,
                                             .a = gemm->a,
                                             .b = gemm->b,
                                             .bounds = by->bounds,
                                             .each = by->each,
                                             .c = gemm->c,
                                             .lda = gemm->lda,
                                             .ldb = gemm->ldb,
                                             .ldc = gemm->ldc,
                                             .stride = (gemm->trans_a ? gemm->ldc : gemm->ldb) / here,
                                             .dtype = gemm->dtype,
                                             .c_dtype = gemm->c_dtype,
                                             .trans_a = gemm->trans_a,
                                             .trans_b = gemm->trans_b,
                                             .accumulate = gemm->accumulate});
}

ax_status ax_contract_grouped(ax_frame *frame, const ax_groups *by, const char *text,
                              const ax_contraction *each, int n)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_gemm_args gemm[AX_BESIDE];
    int gemms = 0;
    AX_ASSERT(n <= AX_BESIDE);
    for (int i = 0; i < n; i++) {
        AX_TRY(prepare_grouped(ctx, by, text, &each[i], &gemm[gemms]));
        if (!is_empty(&gemm[gemms]) && (!gemms || !join(&gemm[gemms - 1], &gemm[gemms])))
            gemms++;
    }
    for (int i = 0; i < gemms; i++)
        AX_TRY(run_grouped(ctx, by, &gemm[i]));
    return AX_OK;
}

/* ---- GEMMs with an epilogue ---------------------------------------------------------------------- */

ax_status ax_contract_activation(ax_frame *frame, const char *text, const ax_tensor *a, const ax_tensor *b,
                                 const ax_tensor *bias, ax_epilogue then, ax_activation kind,
                                 const ax_tensor *preact, const ax_tensor *out)
{
    ax_ctx *ctx = ax_frame_ctx(frame);
    ax_gemm_args gemm;
    AX_TRY(prepare_gemm(ctx, text, a, b, bias, out, &gemm));
    AX_CHECK(
        !ax_grid_effective(ctx->grid, out->layout.partial) &&
            (!preact || (preact->dtype == out->dtype && preact->align == out->align &&
                         ax_tensor_count(ctx->grid, preact) == ax_tensor_count(ctx->grid, out) &&
                         ax_layout_equal(ctx->grid, &preact->layout, &out->layout, out->ndim))),
        AX_ERR_INTERNAL,
        "contraction \"%s\" with an activation: the result must not be a partial sum, and the preactivation "
        "must have its dtype and layout",
        text);
    gemm.epilogue = (uint8_t)then;
    gemm.kind = kind;
    gemm.preact = preact ? preact->data : NULL;
    return gemm.m && gemm.n ? ax_run_gemm(ctx->stream, &gemm) : AX_OK;
}

ax_status ax_contract(ax_frame *frame, const char *text, const ax_tensor *a, const ax_tensor *b,
                      const ax_tensor *bias, ax_tensor *out)
{
    ax_tensor result;
    AX_TRY(ax_contract_rule(ax_frame_ctx(frame)->grid, text, a, b, &result));
    AX_TRY(ax_frame_alloc(frame, &result, &result));
    AX_TRY(ax_contract_run(frame, text, a, b, bias, false, &result));
    *out = result;
    return AX_OK;
}
