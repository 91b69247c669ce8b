/* The lists of kernel cases, third part: mixtures of experts. */
#include "support/kernel_macros.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

/* Sizes of routers: tokens (of each sample), experts, top_k, samples. */
static const int64_t routers[][4] = {{0, 4, 1, 1},    {1, 1, 1, 1}, {7, 5, 1, 1},   {9, 8, 2, 3},
                                     {13, 9, 9, 2},   {0, 3, 2, 2}, {33, 64, 8, 2}, {257, 17, 4, 1},
                                     {70, 130, 3, 4}, {5, 4, 2, 0}};

/* Logits are multiples of 1/8: of equal ones the order is defined, and others differ by more than rounding.
 * In some cases one is NaN. */
static void put_logits(kernel_case *c, void *logits, int64_t n, bool with_nan)
{
    for (int64_t i = 0; i < n; i++)
        ax_store(c->dtype, logits, i, (double)kc_integer(c, -24, 24) / 8);
    if (with_nan && n)
        ax_store(c->dtype, logits, n / 2, NAN);
}

bool kc_build_route(kernel_case *c, int index)
{
    ARGS(route);
    if (!kc_takes(c, KC_ACCUM) || index / 2 >= (int)AX_COUNT(routers))
        return false;
    const int64_t *size = routers[index / 2];
    a->rows = size[0] * size[3];
    a->experts = size[1];
    a->top_k = size[2];
    a->renormalize = index % 2;
    kc_name(c, " %d tokens, %d of %d%s", (int)a->rows, (int)a->top_k, (int)a->experts,
            a->renormalize ? " renormalized" : "");
    DTYPE(dtype, c->dtype);
    put_logits(c, RAW(logits, KC_IN, c->dtype, a->rows * a->experts, 0), a->rows * a->experts,
               index % 6 == 5);
    OUT(probs, c->dtype, a->rows * a->experts, (double)a->experts + 16);
    OUT(lse, c->dtype, a->rows, (double)a->experts + 16);
    OUT(weight, c->dtype, a->rows * a->top_k, (double)a->experts + 24);
    RAW(choice, KC_OUT, AX_I32, a->rows * a->top_k, 0);
    return true;
}

/* What ref's kernel route makes of random logits. */
typedef struct routed {
    void *probs, *lse, *weight;
    int32_t *choice, *ids;
} routed;

static bool is_padding(int64_t token, int64_t tokens, int index)
{
    return token / tokens == 1 || (index % 2 && token % 5 == 4);
}

/* Every fourth choice has no place. */
static void drop_some(int32_t *choice, int64_t n)
{
    for (int64_t c = 1; c < n; c += 4)
        choice[c] = ~choice[c];
}

/* Draws the choices of n tokens: the first `top_k` experts in another order for each token, or experts that
 * follow one another from any one on. */
static void put_choices(kernel_case *c, int32_t *choice, int64_t n, int64_t experts, int64_t top_k)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t among = i % 3 ? experts : top_k, first = kc_integer(c, 0, among);
        for (int64_t j = 0; j < top_k; j++)
            choice[i * top_k + j] = (int32_t)((first + j) % among);
    }
}

/* Cases: no padding, and two kinds of it; few places to as many as there are tokens. */
bool kc_build_admit(kernel_case *c, int index)
{
    ARGS(admit);
    if (c->dtype != AX_F32 || index / 3 >= (int)AX_COUNT(routers))
        return false;
    const int64_t *size = routers[index / 3], n = size[0] * size[3];
    a->tokens = size[0];
    a->experts = size[1];
    a->top_k = size[2];
    a->samples = size[3];
    a->capacity = index % 3 == 2 ? ax_max(size[0], 1) : size[0] * size[2] / size[1] / (1 + index % 2) + 1;
    kc_name(c, " %d samples of %d tokens, %d of %d, %d places", (int)a->samples, (int)a->tokens,
            (int)a->top_k, (int)a->experts, (int)a->capacity);
    int32_t *ids = index % 3 ? RAW(ids, KC_IN, AX_I32, n, 0) : NULL;
    for (int64_t i = 0; i < n && ids; i++)
        ids[i] = is_padding(i, ax_max(size[0], 1), index) ? -1 : (int32_t)i;
    put_choices(c, RAW(choice, KC_INOUT, AX_I32, n * a->top_k, 0), n, a->experts, a->top_k);
    if (index % 2 == 0)
        RAW(place, KC_OUT, AX_I32, n * a->top_k, 0);
    if (index % 4 == 0)
        RAW(source, KC_OUT, AX_I32, a->samples * a->experts * a->capacity, 0);
    return true;
}

/* Fills in the arrays of `r`; in every third case all tokens of a sample, and some of the others, are
 * padding. In every other one some choices have no place. */
static void put_routed(kernel_case *c, const routed *r, const int64_t size[4], bool renormalize, int index)
{
    const int64_t n = size[0] * size[3], tokens = ax_max(size[0], 1);
    const ax_dtype accum = ACCUM;
    void *logits = calloc((size_t)(n * size[1]) + 1, ax_dtype_size(accum));
    assert_non_null(logits);
    for (int64_t i = 0; i < n * size[1]; i++)
        ax_store(accum, logits, i, (double)kc_integer(c, -24, 24) / 8);
    ax_route_args args = {.rows = n,
                          .experts = size[1],
                          .top_k = size[2],
                          .logits = logits,
                          .probs = r->probs,
                          .lse = r->lse,
                          .weight = r->weight,
                          .choice = r->choice,
                          .dtype = accum,
                          .renormalize = renormalize};
    kc_reference(AX_K_route, &args);
    free(logits);
    for (int64_t i = 0; i < n && r->ids; i++)
        r->ids[i] = is_padding(i, tokens, index) ? -1 : (int32_t)i;
    if (index % 2)
        drop_some(r->choice, n * size[2]);
}

bool kc_build_route_stats(kernel_case *c, int index)
{
    ARGS(route_stats);
    if (!kc_takes(c, KC_ACCUM) || index / 3 >= (int)AX_COUNT(routers))
        return false;
    const int64_t *size = routers[index / 3], n = size[0] * size[3];
    routed r = {0};
    a->tokens = size[0];
    a->experts = size[1];
    a->top_k = size[2];
    a->samples = size[3];
    kc_name(c, " %d samples of %d tokens, %d of %d", (int)a->samples, (int)a->tokens, (int)a->top_k,
            (int)a->experts);
    DTYPE(dtype, c->dtype);
    r.probs = RAW(probs, KC_IN, c->dtype, n * a->experts, 0);
    r.lse = RAW(lse, KC_IN, c->dtype, n, 0);
    r.weight = calloc((size_t)(n * a->top_k) + 1, sizeof(double));
    assert_non_null(r.weight);
    r.choice = RAW(choice, KC_IN, AX_I32, n * a->top_k, 0);
    if (index % 3)
        r.ids = RAW(ids, KC_IN, AX_I32, n, 0);
    put_routed(c, &r, size, false, index);
    free(r.weight);
    OUT(share, c->dtype, a->samples * (a->experts + 1), 4);
    INOUT(total, AX_F64, 3 + a->experts, (double)n + 8);
    return true;
}

bool kc_build_route_grad(kernel_case *c, int index)
{
    ARGS(route_grad);
    if (!kc_takes(c, KC_ACTIVATION) || index / 4 >= (int)AX_COUNT(routers))
        return false;
    const int64_t *size = routers[index / 4], n = size[0] * size[3];
    const bool extra = index % 4 < 3;
    routed r = {0};
    a->tokens = size[0];
    a->experts = size[1];
    a->top_k = size[2];
    a->samples = size[3];
    a->renormalize = index % 2;
    a->balance = extra ? 0.25 : 0;
    a->z = extra ? 0.125 : 0;
    kc_name(c, " %d samples of %d tokens, %d of %d%s%s", (int)a->samples, (int)a->tokens, (int)a->top_k,
            (int)a->experts, a->renormalize ? " renormalized" : "", extra ? " + losses" : "");
    DTYPE(dtype, c->dtype);
    r.probs = RAW(probs, KC_IN, ACCUM, n * a->experts, 0);
    r.lse = RAW(lse, KC_IN, ACCUM, n, 0);
    r.weight = RAW(weight, KC_IN, ACCUM, n * a->top_k, 0);
    r.choice = RAW(choice, KC_IN, AX_I32, n * a->top_k, 0);
    if (index % 4)
        r.ids = RAW(ids, KC_IN, AX_I32, n, 0);
    put_routed(c, &r, size, a->renormalize, index);
    IN(dweight, ACCUM, n * a->top_k);
    if (extra)
        IN(share, ACCUM, a->samples * (a->experts + 1));
    kc_put_batch(c, FIELD(now), index);
    OUT(dlogits, c->dtype, n * a->experts, (double)a->experts + 32);
    return true;
}

/* Numbers of choices and of groups: no choices, one group, groups without choices, many groups. */
static const int64_t sorted[][2] = {{0, 1}, {0, 5}, {1, 1}, {7, 3}, {16, 16}, {33, 4}, {300, 9}, {4099, 130}};
enum { SPREAD, ALL_IN_ONE, ONE_LEFT_OUT, SPREADS };

/* Draws n groups of 0 … groups-1: of all, of the last alone, or of all but one. */
static void put_groups(kernel_case *c, int32_t *group, int64_t n, int64_t groups, int spread)
{
    for (int64_t i = 0; i < n; i++) {
        group[i] = spread == ALL_IN_ONE ? (int32_t)groups - 1 : (int32_t)kc_integer(c, 0, groups);
        if (spread == ONE_LEFT_OUT && group[i] == groups / 2)
            group[i] = 0;
    }
}

/* Cases: all groups in one round, all in rounds of seven rows, some of the groups in three rounds or more. In
 * the last two some choices have no place. */
bool kc_build_group(kernel_case *c, int index)
{
    enum { ALL, IN_SEVENS, SOME, WAYS };
    ARGS(group);
    const int way = index / SPREADS % WAYS, size = index / SPREADS / WAYS;
    if (c->dtype != AX_F32 || size >= (int)AX_COUNT(sorted))
        return false;
    const int64_t groups = sorted[size][1];
    a->n = sorted[size][0];
    a->first = way == SOME ? groups / 3 : 0;
    a->groups = way == SOME ? ax_max(groups / 2, 1) : groups;
    a->rows = way == ALL ? a->n : way == SOME ? a->n / 3 + 1 : 7;
    a->rounds = way == ALL ? 1 : ax_ceil_div(a->n, a->rows) + 1;
    kc_name(c, " %d in %d from %d of %d, %d rounds", (int)a->n, (int)a->groups, (int)a->first, (int)groups,
            (int)a->rounds);
    int32_t *group = RAW(group, KC_IN, AX_I32, a->n, 0);
    put_groups(c, group, a->n, groups, index % SPREADS);
    if (way != ALL)
        drop_some(group, a->n);
    RAW(source, KC_OUT, AX_I32, a->rounds * a->rows, 0);
    RAW(place, KC_OUT, AX_I32, a->n, 0);
    RAW(bounds, KC_OUT, AX_I32, a->rounds * (a->groups + 1), 0);
    return true;
}

/* Fills `order` with the numbers 0 … n-1 in another order; with `gaps` some are replaced by -1. */
static void shuffle(kernel_case *c, int32_t *order, int64_t n, bool gaps)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t j = kc_integer(c, 0, i + 1);
        order[i] = order[j];
        order[j] = (int32_t)i;
    }
    for (int64_t i = 2; i < n && gaps; i += 3)
        order[i] = -1;
}

bool kc_build_dispatch(kernel_case *c, int index)
{
    ARGS(dispatch);
    if (!kc_takes(c, KC_ACTIVATION) || !kc_grid(index, 2, &a->n, &a->cols))
        return false;
    a->top_k = 1 + index % 3;
    a->zeros = index % 8 > 5;
    kc_name(c, " %dx%d, %d each%s%s", (int)a->n, (int)a->cols, (int)a->top_k, a->zeros ? ", zeros" : "",
            index % 2 ? ", scaled" : "");
    DTYPE(dtype, c->dtype);
    IN(x, c->dtype, a->n * a->cols);
    a->rows = a->n * a->top_k;
    shuffle(c, RAW(source, KC_IN, AX_I32, a->rows, 0), a->rows, index % 4 > 1);
    if (index % 2)
        IN(scale, ACCUM, a->n * a->top_k);
    OUT(y, c->dtype, a->rows * a->cols, index % 2);
    return true;
}

/* Every row of y but the last has a row of x, which some of x's rows have no place for. Some rows have three
 * parts, with a gap between them. */
bool kc_build_scatter(kernel_case *c, int index)
{
    ARGS(scatter);
    if (!kc_takes(c, KC_ACTIVATION) || !kc_grid(index, 2, &a->n, &a->cols))
        return false;
    a->rows = a->n + 1;
    a->parts = index % 3 ? 1 : 3;
    a->step = a->cols + index % 4 * 4;
    a->ld = a->parts * a->step + index % 2 * 8;
    kc_name(c, " %dx%dx%d ld %d", (int)a->n, (int)a->parts, (int)a->cols, (int)a->ld);
    DTYPE(dtype, c->dtype);
    IN(x, c->dtype, a->n * a->ld);
    shuffle(c, RAW(place, KC_IN, AX_I32, a->n, 0), a->n, index % 4 > 1);
    OUT(y, c->dtype, a->parts * a->rows * a->cols, 0);
    return true;
}

bool kc_build_combine(kernel_case *c, int index)
{
    ARGS(combine);
    if (!kc_takes(c, KC_ACTIVATION) || !kc_grid(index, 2, &a->n, &a->cols))
        return false;
    const bool some = index % 2; /* of the rows, added to what is there */
    a->top_k = 1 + index % 4;
    a->rows = a->n * a->top_k / (some ? 2 : 1);
    a->first = some ? a->rows / 3 : 0;
    a->accumulate = some;
    kc_name(c, " %dx%d, %d each%s", (int)a->n, (int)a->cols, (int)a->top_k, some ? ", some of the rows" : "");
    DTYPE(dtype, c->dtype);
    IN(x, c->dtype, a->rows * a->cols);
    shuffle(c, RAW(place, KC_IN, AX_I32, a->n * a->top_k, 0), a->n * a->top_k, some);
    if (index % 4 > 1)
        IN(scale, ACCUM, a->n * a->top_k);
    if (some)
        INOUT(y, c->dtype, a->n * a->cols, 2 * (double)a->top_k + 1);
    else
        OUT(y, c->dtype, a->n * a->cols, 2 * (double)a->top_k);
    return true;
}

bool kc_build_combine_grad(kernel_case *c, int index)
{
    ARGS(combine_grad);
    if (!kc_takes(c, KC_ACTIVATION) || !kc_grid(index, 2, &a->n, &a->cols))
        return false;
    a->top_k = 1 + index % 4;
    a->rows = a->n * a->top_k;
    kc_name(c, " %dx%d, %d each", (int)a->n, (int)a->cols, (int)a->top_k);
    DTYPE(dtype, c->dtype);
    IN(x, c->dtype, a->rows * a->cols);
    IN(dy, c->dtype, a->n * a->cols);
    shuffle(c, RAW(place, KC_IN, AX_I32, a->rows, 0), a->rows, index % 2);
    OUT(dscale, ACCUM, a->rows, (double)a->cols + 1);
    return true;
}

/* Extents of grouped GEMMs: rows, n (columns), the third extent (k, or m with trans_a), groups. */
static const int64_t grouped[][4] = {{0, 8, 4, 2},   {3, 8, 5, 4},     {4, 17, 24, 3},   {5, 7, 3, 3},
                                     {40, 33, 0, 3}, {65, 64, 40, 4},  {130, 48, 72, 5}, {200, 96, 129, 3},
                                     {37, 0, 8, 2},  {300, 40, 24, 40}};

/* Bounds of the groups of `rows` rows: at random, all rows in one group, or with a group without rows. */
static void put_bounds(kernel_case *c, int32_t *bounds, int64_t rows, int64_t groups, int spread)
{
    int32_t *group = calloc((size_t)rows + 1, 3 * sizeof *group);
    assert_non_null(group);
    put_groups(c, group, rows, groups, spread);
    ax_group_args sort = {.n = rows,
                          .groups = groups,
                          .rows = rows,
                          .rounds = 1,
                          .group = group,
                          .source = group + rows,
                          .place = group + 2 * rows,
                          .bounds = bounds};
    kc_reference(AX_K_group, &sort);
    free(group);
}

bool kc_build_gemm_grouped(kernel_case *c, int index)
{
    enum { WAYS = 12 };
    ARGS(gemm_grouped);
    if (!kc_takes(c, KC_ACTIVATION) || index / WAYS >= (int)AX_COUNT(grouped))
        return false;
    const int64_t *size = grouped[index / WAYS], rows = size[0], groups = size[3];
    const int way = index % WAYS, spread = way % SPREADS;
    const bool nested = way & 1; /* matrices of groups lie in one another's rows */
    const ax_dtype out = way % 5 < 2 ? ACCUM : c->dtype;
    a->groups = groups;
    a->n = size[1];
    a->trans_a = way >= WAYS / 2;
    a->trans_b = !a->trans_a && way % 4 < 2;
    a->accumulate = way % 3 == 1;
    a->m = a->trans_a ? size[2] : rows;
    a->k = a->trans_a ? rows : size[2];
    const int64_t high = a->trans_a ? a->m : a->trans_b ? a->n : a->k, wide = a->trans_b ? a->k : a->n;
    const int64_t ld = nested ? groups * wide : wide;
    a->stride = nested ? wide : high * wide;
    a->lda = (a->trans_a ? a->m : a->k) + way % 2;
    a->ldb = a->trans_a ? a->n : ld;
    a->ldc = a->trans_a ? ld : a->n + (a->accumulate ? way % 2 : 0);
    kc_name(c, " %dx%dx%d in %d%s%s%s", (int)a->m, (int)a->n, (int)a->k, (int)groups, a->trans_a ? " a'" : "",
            a->trans_b ? " b'" : "", a->accumulate ? " +=" : "");
    DTYPE(dtype, c->dtype);
    DTYPE(c_dtype, out);
    const int64_t idle = way % 4 == 3 ? rows / 4 : 0; /* rows of no group */
    if (way % 4 == 1)                                 /* equal groups */
        a->each = rows / groups;
    else
        put_bounds(c, RAW(bounds, KC_IN, AX_I32, groups + 1, 0), rows - idle, groups, spread);
    const int64_t matrices = groups * high * wide;
    IN(a, c->dtype, rows * a->lda);
    IN(b, c->dtype, a->trans_a ? rows * a->ldb : matrices);
    const int64_t results = a->trans_a ? matrices : rows * a->ldc;
    if (a->accumulate)
        INOUT(c, out, results, (double)a->k + 2);
    else
        OUT(c, out, results, (double)a->k + 2);
    return true;
}
