/* Gradients of ref in double precision against central differences, on the cases of support/kernel_cases.h.
 * Each kernel that computes gradients has a function here that computes the loss L whose gradients they are,
 * by the kernels of the forward pass. Kernels that are linear have each other as gradients. */
#include "support/arrays.h"
#include "support/kernel_cases.h"
#include "support/ref_stream.h"
#include "support/sampled.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <string.h>

#include <cmocka.h>

enum { ROOM = 1 << 20, PAIRS = 4 };

/* The variable of L, where the gradient does not depend on it, so that the case has no operand for it. */
static double unseen[ROOM];

/* Memory for what a loss computes. */
static double memory[ROOM];
static int64_t used;

static double *zeros(int64_t n)
{
    assert_true(used + n <= ROOM);
    used += n;
    return memset(memory + used - n, 0, (size_t)n * sizeof *memory);
}

/* ---- losses: Σ dy·(result of the forward pass) ------------------------------------------------------ */

static double loss_of_gemm(const void *args)
{
    const ax_gemm_args *a = args;
    double *x = unseen, *product = zeros((a->trans_a ? a->k : a->m) * a->lda);
    if (a->epilogue != AX_EPILOGUE_NONE) {
        x = zeros(a->m * a->n);
        RUN(activation, a->m * a->n, a->preact, x, AX_F64, a->kind);
    }
    if (a->trans_a)
        RUN(gemm, a->k, a->m, a->n, a->b, x, NULL, product, a->ldb, a->ldc, a->lda, AX_F64, AX_F64,
            a->trans_b, true, false, AX_EPILOGUE_NONE, AX_GELU_TANH, NULL, NULL, false);
    else
        RUN(gemm, a->m, a->k, a->n, x, a->b, NULL, product, a->ldc, a->ldb, a->lda, AX_F64, AX_F64, false,
            !a->trans_b, false, AX_EPILOGUE_NONE, AX_GELU_TANH, NULL, NULL, false);
    return dot(a->a, product, (a->trans_a ? a->k : a->m) * a->lda);
}

static double loss_of_gemm_grouped(const void *args)
{
    const ax_gemm_grouped_args *a = args;
    double *y = zeros(a->trans_a ? a->k * a->ldb : a->m * a->lda);
    if (a->trans_a) {
        RUN(gemm_grouped, a->k, a->n, a->m, a->groups, a->each, a->a, unseen, a->bounds, y, a->lda, a->ldc,
            a->ldb, a->stride, AX_F64, AX_F64, false, false, false);
        return dot(a->b, y, a->k * a->ldb);
    }
    RUN(gemm_grouped, a->m, a->k, a->n, a->groups, a->each, unseen, a->b, a->bounds, y, a->ldc, a->ldb,
        a->lda, a->stride, AX_F64, AX_F64, false, !a->trans_b, false);
    return dot(a->a, y, a->m * a->lda);
}

static double loss_of_col_sum(const void *args)
{
    const ax_col_sum_args *a = args;
    double *x = zeros(a->rows * a->ld), *y = zeros(a->rows * a->ld);
    RUN(bias_add, a->rows, a->cols, a->ld, x, unseen, y, AX_F64);
    return dot(a->x, y, a->rows * a->ld);
}

static double loss_of_norm_grad(const void *args)
{
    const ax_norm_grad_args *a = args;
    double *y = zeros(a->rows * a->cols);
    RUN(norm, a->rows, a->cols, a->eps, a->x, NULL, a->weight, unseen, NULL, (void *)a->sum, (void *)a->m2, y,
        AX_F64, a->kind);
    return dot(a->dy, y, a->rows * a->cols) + (a->add ? dot(a->add, a->x, a->rows * a->cols) : 0);
}

static double loss_of_attention_grad(const void *args)
{
    const ax_attention_grad_args *a = args;
    RUN(attention, a->batch, a->q_len, a->q_len, 0, a->heads, a->kv_heads, a->head_dim, a->q_ld, a->kv_ld, 0,
        a->scale, a->q, a->k, a->v, a->doc_start, NULL, a->window, NULL, 0, 0, (void *)a->o, (void *)a->lse,
        a->drop, AX_F64);
    return dot(a->dout, a->o, a->batch * a->q_len * a->heads * a->head_dim);
}

static double loss_of_rope(const void *args)
{
    const ax_rope_args *a = args;
    double *x = memcpy(zeros(a->rows * a->ld), unseen, (size_t)(a->rows * a->ld) * sizeof *x);
    RUN(rope, a->rows, a->heads, a->head_dim, a->ld, a->table_rows, a->positions, a->table, x, AX_F64,
        !a->inverse);
    return dot(a->x, x, a->rows * a->ld);
}

static double loss_of_embedding_grad(const void *args)
{
    const ax_embedding_grad_args *a = args;
    double *y = zeros(a->rows * a->cols);
    RUN(embedding, a->rows, a->cols, a->first, a->count, unseen, a->ids, y, AX_F64, false);
    return dot(a->dy, y, a->rows * a->cols);
}

static double loss_of_activation_grad(const void *args)
{
    const ax_activation_grad_args *a = args;
    double *y = zeros(a->n);
    RUN(activation, a->n, a->x, y, AX_F64, a->kind);
    return dot(a->dy, y, a->n);
}

static double loss_of_glu_grad(const void *args)
{
    const ax_glu_grad_args *a = args;
    double *y = zeros(a->rows * a->cols);
    RUN(glu, a->rows, a->cols, a->ld, a->scales, a->gate, a->up, a->scale, a->index, y, AX_F64, a->kind);
    return dot(a->dy, y, a->rows * a->cols);
}

static double loss_of_dropout(const void *args)
{
    const ax_dropout_args *a = args;
    double *y = zeros(a->rows * a->cols);
    RUN(dropout, a->rows, a->cols, a->row0, a->col0, a->global_cols, a->key, a->p, a->now, unseen, y, AX_F64);
    return dot(a->x, y, a->rows * a->cols);
}

/* Shares of experts are constants. Choices that had no place before have none after. */
static double loss_of_route_grad(const void *args)
{
    const ax_route_grad_args *a = args;
    const int64_t n = a->samples * a->tokens, choices = n * a->top_k, E = a->experts;
    const double *probs = a->probs, *lse = a->lse;
    int32_t *choice = (void *)a->choice, *before = memcpy(zeros(choices), choice, (size_t)choices * 4);
    RUN(route, n, E, a->top_k, unseen, (void *)probs, (void *)lse, (void *)a->weight, choice, AX_F64,
        a->renormalize);
    for (int64_t i = 0; i < choices; i++)
        choice[i] = before[i] < 0 ? ~choice[i] : choice[i];
    double loss = dot(a->dweight, a->weight, choices);
    for (int64_t i = 0; i < n && a->share; i++) {
        const double *share = (const double *)a->share + i / a->tokens * (E + 1);
        if (!a->ids || a->ids[i] >= 0)
            loss += share[E] * (a->now ? a->now->sample_scale : 1) *
                    (a->balance * dot(share, probs + i * E, E) + a->z * lse[i] * lse[i]);
    }
    return loss;
}

/* Returns the inverse of `to`: from[to[i] - first] = i, of `count` elements, and -1 elsewhere. */
static int32_t *invert(const int32_t *to, int64_t n, int64_t first, int64_t count)
{
    int32_t *from = memset(zeros(count), 0xFF, (size_t)count * sizeof *from);
    for (int64_t i = 0; i < n; i++)
        if (to[i] >= first && to[i] < first + count)
            from[to[i] - first] = (int32_t)i;
    return from;
}

static double loss_of_dispatch(const void *args)
{
    const ax_dispatch_args *a = args;
    double *y = zeros(a->n * a->cols);
    RUN(combine, a->n, a->rows, 0, a->cols, a->top_k, unseen, a->scale,
        invert(a->source, a->rows, 0, a->n * a->top_k), y, AX_F64, false);
    return dot(a->x, y, a->n * a->cols);
}

static double loss_of_combine(const void *args)
{
    const ax_combine_args *a = args;
    double *y = zeros(a->rows * a->cols);
    RUN(dispatch, a->n, a->rows, a->cols, a->top_k, unseen, a->scale,
        invert(a->place, a->n * a->top_k, a->first, a->rows), y, AX_F64, false);
    return dot(a->x, y, a->rows * a->cols);
}

static double loss_of_combine_grad(const void *args)
{
    const ax_combine_grad_args *a = args;
    double *y = zeros(a->n * a->cols);
    RUN(combine, a->n, a->rows, 0, a->cols, a->top_k, a->x, unseen, a->place, y, AX_F64, false);
    return dot(a->dy, y, a->n * a->cols);
}

static double loss_of_ce_grad(const void *args)
{
    const ax_ce_grad_args *a = args;
    double *target = zeros(a->rows), *loss = zeros(a->rows), total = 0;
    RUN(ce_stats, a->rows, a->vocab, a->ld, a->first, a->logits, a->targets, (void *)a->max, (void *)a->sum,
        target, AX_F64);
    RUN(ce_loss, a->rows, a->max, a->sum, target, a->targets, loss, &total, AX_F64);
    return a->scale * (a->now ? a->now->loss_scale : 1) * total;
}

static double loss_of_squared_error(const void *args)
{
    const ax_squared_error_args *a = args;
    double total = 0;
    RUN(squared_error, a->n, 0, NULL, a->x, a->target, NULL, &total, AX_F64);
    return a->scale * (a->now ? a->now->loss_scale : 1) * total / 2;
}

/* ---- what a case needs before --------------------------------------------------------------------- */

/* A product is a gradient if nothing is added to it and no activation follows; with the slope of an
 * activation it is that of the preactivations. */
static bool gemm_is_gradient(void *args)
{
    const ax_gemm_args *a = args;
    return !a->bias && a->epilogue != AX_EPILOGUE_ACTIVATION;
}

/* Rows of one or two columns have almost no variance. The mean of row 1 is far above the deviation. */
static bool make_smooth(void *args)
{
    ax_norm_grad_args *a = args;
    a->eps = 0.0625;
    for (int64_t i = 0; i < a->cols && a->rows > 1 && a->kind == AX_NORM_LAYER; i++)
        ((double *)a->x)[a->cols + i] += 64;
    return true;
}

/* Padding between rows is no gradient. Rows without logits have no loss. */
static bool clear_padding(void *args)
{
    const ax_ce_grad_args *a = args;
    for (int64_t i = 0; i < a->rows * a->ld; i++)
        if (i % a->ld >= a->vocab)
            ((double *)a->logits)[i] = 0;
    return a->vocab > 0;
}

/* Rows outside the table become NaN. */
static bool stay_in_table(void *args)
{
    const ax_rope_args *a = args;
    for (int64_t r = 0; r < a->rows; r++)
        ((int32_t *)a->positions)[r] = (int32_t)ax_max(0, ax_min(a->positions[r], a->table_rows - 1));
    return true;
}

/* ---- the list -------------------------------------------------------------------------------------- */

/* A gradient is added to what its memory held; or replaces it, of the elements that the case has; or replaces
 * all of it. */
typedef enum result_use { ADDED, REPLACES, REPLACES_ALL } result_use;

/* How a kernel's cases are checked, or why they have no gradient of their own. */
typedef struct derivative {
    enum {
        MISSING,
        GRADIENT, /* the kernel computes gradients: of `loss` */
        FORWARD,  /* its gradient is another kernel's, whose loss calls it */
        PART,     /* of another kernel, if dims are split: dev.rows and dev.values compare the results */
        NONE      /* its result has no derivative, or none that training needs */
    } kind;
    double (*loss)(const void *args);
    bool (*prepare)(void *args); /* changes the arguments of a case; false if the case is no gradient */
    struct {
        size_t variable, gradient; /* offsets of the pointers in the arguments */
        result_use use;            /* what the gradient does with what its memory held */
    } pairs[PAIRS];                /* up to the first whose gradient is 0 */
} derivative;

/* clang-format off */
#define AT(kernel, field) offsetof(ax_##kernel##_args, field)
#define BY(kernel, x, dx) {AT(kernel, x), AT(kernel, dx), ADDED}
#define BY_UNSEEN(kernel, dx) {SIZE_MAX, AT(kernel, dx), ADDED}
/* clang-format on */
#define LOSS(kernel, ...) [AX_K_##kernel] = {GRADIENT, loss_of_##kernel, __VA_ARGS__}
#define WITHOUT(kernel, why) [AX_K_##kernel] = {.kind = why}

static const derivative derivatives[AX_KERNEL_COUNT] = {
    LOSS(gemm, gemm_is_gradient, {BY(gemm, preact, c)}),
    LOSS(gemm_grouped, NULL, {BY_UNSEEN(gemm_grouped, c)}), LOSS(col_sum, NULL, {BY_UNSEEN(col_sum, out)}),
    LOSS(norm_grad, make_smooth,
         {BY(norm_grad, x, dx), BY(norm_grad, weight, dweight), BY_UNSEEN(norm_grad, dbias)}),
    LOSS(attention_grad, NULL,
         {BY(attention_grad, q, dq), BY(attention_grad, k, dk), BY(attention_grad, v, dv)}),
    LOSS(rope, stay_in_table, {{SIZE_MAX, AT(rope, x), REPLACES_ALL}}),
    LOSS(embedding_grad, NULL, {BY_UNSEEN(embedding_grad, dtable)}),
    LOSS(activation_grad, NULL, {BY(activation_grad, x, dx)}),
    LOSS(glu_grad, NULL,
         {BY(glu_grad, gate, dgate),
          BY(glu_grad, up, dup),
          {AT(glu_grad, scale), AT(glu_grad, dscale), REPLACES}}),
    LOSS(dropout, NULL, {BY_UNSEEN(dropout, y)}), LOSS(route_grad, NULL, {BY_UNSEEN(route_grad, dlogits)}),
    LOSS(dispatch, NULL, {BY_UNSEEN(dispatch, y)}), LOSS(combine, NULL, {BY_UNSEEN(combine, y)}),
    LOSS(combine_grad, NULL, {BY_UNSEEN(combine_grad, dscale)}),
    LOSS(ce_grad, clear_padding, {{AT(ce_grad, logits), AT(ce_grad, logits), REPLACES_ALL}}),
    LOSS(squared_error, NULL, {BY(squared_error, x, dx)}),
    /* clang-format off */
    WITHOUT(bias_add, FORWARD), WITHOUT(norm, FORWARD), WITHOUT(attention, FORWARD),
    WITHOUT(embedding, FORWARD), WITHOUT(activation, FORWARD), WITHOUT(glu, FORWARD), WITHOUT(route, FORWARD),
    WITHOUT(ce_stats, FORWARD), WITHOUT(ce_loss, FORWARD),
    WITHOUT(norm_stats, PART), WITHOUT(norm_recentre, PART), WITHOUT(norm_apply, PART),
    WITHOUT(norm_grad_stats, PART), WITHOUT(norm_grad_apply, PART), WITHOUT(ce_rescale, PART),
    WITHOUT(turn, NONE), WITHOUT(choose, NONE), WITHOUT(add, NONE), WITHOUT(admit, NONE),
    WITHOUT(route_stats, NONE), WITHOUT(group, NONE), WITHOUT(scatter, NONE), WITHOUT(ce_rank, NONE),
    WITHOUT(class_targets, NONE), WITHOUT(sumsq, NONE), WITHOUT(scale, NONE), WITHOUT(convert, NONE),
    WITHOUT(compress, NONE), WITHOUT(expand, NONE), WITHOUT(copy_box, NONE), WITHOUT(fill, NONE),
    WITHOUT(init_normal, NONE), WITHOUT(clip, NONE), WITHOUT(adamw, NONE), WITHOUT(sgd, NONE)
    /* clang-format on */
};

/* ---- the comparison --------------------------------------------------------------------------------- */

static const kc_operand *operand_at(const kernel_case *c, size_t field)
{
    for (int i = 0; i < c->operands; i++)
        if (c->operand[i].table < 0 && (c->operand[i].field == field || c->operand[i].alias == field))
            return &c->operand[i];
    return NULL;
}

static double loss_at(const kernel_case *c, double *x, const double *from, const double *direction, int64_t n,
                      double step)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = from[i] + step * direction[i];
    used = 0;
    return derivatives[c->kernel].loss(c->args.bytes);
}

/* Compares the slope of L along a random direction, which has a part along each variable, with the five-point
 * central difference. Elements that the kernel did not write have the gradient 0, unless it works in place.
 * The tolerance has a part for the error of the difference, and one for the rounding of L.
 * Returns true if the gradient is not 0. */
static bool check_gradient(const kernel_case *c, double *x, const kc_operand *o, const double *after,
                           result_use use)
{
    static double from[ROOM], direction[ROOM];
    static const double weights[] = {1, -8, 0, 8, -1};
    const double h = 2e-4, *before = o->data;
    const bool adds = o->role == KC_INOUT && o->field == o->alias && use == ADDED;
    double slope = 0, squares = 0, expected = 0, most = 0;
    assert_true(o->count <= ROOM);
    fill(direction, o->count);
    memcpy(from, x, (size_t)o->count * sizeof *x);
    for (int64_t i = 0; i < o->count; i++) {
        const bool written = use == REPLACES_ALL || memcmp(&after[i], &before[i], sizeof *after) != 0;
        const double part = written ? direction[i] * (after[i] - (adds ? before[i] : 0)) : 0;
        if (!written && o->role != KC_OUT && !adds)
            direction[i] = 0; /* what stands there need not be a gradient */
        slope += part;
        squares += part * part;
    }
    for (int i = 0; i < 5; i++) {
        const double loss = loss_at(c, x, from, direction, o->count, (i - 2) * h);
        expected += weights[i] * loss / (12 * h);
        most = fmax(most, fabs(loss));
    }
    memcpy(x, from, (size_t)o->count * sizeof *x);
    if (!(fabs(slope - expected) <= 1e-8 * fmax(sqrt(squares), 1e-3) + DBL_EPSILON * most / h))
        fail_msg("%s: %s has the slope %.12g, differences give %.12g", c->name, o->name, slope, expected);
    return squares > 0;
}

/* Keeps the variables away from 0, where ReLU has no derivative, and so small that L keeps its digits. */
static void tame(double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = copysign(fmax(0.02, fmin(fabs(x[i]), 8)), x[i]);
}

/* Fills in the variable that cases do not have. No two of 128 neighbours are closer than 1/256, so that
 * experts are chosen clearly. */
static void fill_unseen(void)
{
    fill(unseen, ROOM);
    for (int64_t i = 0; i < ROOM; i++)
        unseen[i] = (rint(2 * unseen[i]) + (double)(i * 37 % 128) / 128) / 2;
}

/* Adds to checked[i] whether the gradient of pair i was compared and is not 0. Returns false if the case is
 * no gradient. */
static bool check_case(const kernel_case *c, int checked[])
{
    const derivative *how = &derivatives[c->kernel];
    void *result[KC_OPERANDS];
    for (int i = 0; i < PAIRS && how->pairs[i].gradient; i++) {
        const kc_operand *x = operand_at(c, how->pairs[i].variable);
        if (x)
            tame(x->data, x->count);
    }
    if (how->prepare && !how->prepare((void *)c->args.bytes))
        return false;
    used = 0;
    how->loss(c->args.bytes); /* computes what the forward pass saves for the kernel */
    kernel_case_run(stream.dev, c, 0, result);
    for (int i = 0; i < PAIRS && how->pairs[i].gradient; i++) {
        const kc_operand *o = operand_at(c, how->pairs[i].gradient),
                         *x = operand_at(c, how->pairs[i].variable);
        if (o)
            checked[i] +=
                check_gradient(c, x ? x->data : unseen, o, result[o - c->operand], how->pairs[i].use);
    }
    kc_results_free(result);
    return true;
}

static void every_gradient(void **state)
{
    (void)state;
    const int every = one_of(1, 7);
    fill_unseen();
    for (int kernel = 0; kernel < AX_KERNEL_COUNT; kernel++) {
        const derivative *how = &derivatives[kernel];
        kernel_case c;
        int cases = 0, checked[PAIRS] = {0};
        if (how->kind == MISSING)
            fail_msg("%s: test_gradient.c does not say how its gradient is checked", ax_kernel_name(kernel));
        for (int i = 0; how->kind == GRADIENT && kernel_case_build(kernel, AX_F64, i, &c); i += every) {
            kernel_case_point(&c);
            if (ax_kernel_flops(kernel, c.args.bytes) <= 2e7)
                cases += check_case(&c, checked);
            kernel_case_free(&c);
        }
        for (int i = 0; i < PAIRS && how->pairs[i].gradient; i++)
            if (!checked[i])
                fail_msg("%s: no case has a gradient of pair %d", ax_kernel_name(kernel), i);
        if (cases)
            print_message("%s: %d cases\n", ax_kernel_name(kernel), cases);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_gradient)};
    return cmocka_run_group_tests(tests, open_ref, close_ref);
}
