/* Gradients of ref's kernels in double precision against central differences, and sums over split dims, which
 * must equal the unsplit computation. Each test defines L = Σ weight·output as a function of its inputs, and
 * compares the kernels' dL/dinput with differences of L. */
#include "axonn/dev.h"

#include "support/gradient.h"
#include "support/ref_stream.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX = 4096 };

/* ---- products ------------------------------------------------------------------------------------ */

typedef struct gemm_test {
    int64_t m, n, k;
    bool trans_a, trans_b;
    double a[MAX], b[MAX], w[MAX];
} gemm_test;

static void multiply(int64_t m, int64_t n, int64_t k, const double *a, bool trans_a, const double *b,
                     bool trans_b, double *c)
{
    RUN(gemm, m, n, k, a, b, NULL, c, trans_a ? m : k, trans_b ? k : n, n, AX_F64, AX_F64, trans_a, trans_b,
        false, AX_EPILOGUE_NONE, AX_GELU_TANH, NULL, NULL, false);
}

static double gemm_objective(const void *test)
{
    const gemm_test *t = test;
    double c[MAX];
    multiply(t->m, t->n, t->k, t->a, t->trans_a, t->b, t->trans_b, c);
    return dot(t->w, c, t->m * t->n);
}

/* Each gradient is itself a product: da = w·op(b)ᵀ, or its transpose when a is stored transposed. */
static void gemm_gradients(void **state)
{
    (void)state;
    static gemm_test t;
    static double da[MAX], db[MAX];
    t.m = 5, t.n = 34, t.k = 7;
    for (int variant = 0; variant < 4; variant++) {
        t.trans_a = variant & 1, t.trans_b = variant & 2;
        fill(t.a, t.m * t.k);
        fill(t.b, t.k * t.n);
        fill(t.w, t.m * t.n);
        if (t.trans_a)
            multiply(t.k, t.m, t.n, t.b, t.trans_b, t.w, true, da);
        else
            multiply(t.m, t.k, t.n, t.w, false, t.b, !t.trans_b, da);
        if (t.trans_b)
            multiply(t.n, t.k, t.m, t.w, true, t.a, t.trans_a, db);
        else
            multiply(t.k, t.n, t.m, t.a, !t.trans_a, t.w, false, db);
        check_gradient("a", gemm_objective, &t, t.a, da, t.m * t.k);
        check_gradient("b", gemm_objective, &t, t.b, db, t.k * t.n);
    }
}

/* ---- bias, activations, dropout, embedding --------------------------------------------------------------
 */

typedef struct grid_test {
    int64_t rows, cols;
    double x[MAX], bias[MAX], w[MAX];
    ax_activation kind;
    int32_t ids[64];
} grid_test;

static double bias_objective(const void *test)
{
    const grid_test *t = test;
    double y[MAX];
    RUN(bias_add, t->rows, t->cols, t->cols, t->x, t->bias, y, AX_F64);
    return dot(t->w, y, t->rows * t->cols);
}

static void bias_gradients(void **state)
{
    (void)state;
    static grid_test t;
    static double dbias[MAX];
    t.rows = 7, t.cols = 13;
    fill(t.x, t.rows * t.cols);
    fill(t.bias, t.cols);
    fill(t.w, t.rows * t.cols);
    RUN(col_sum, t.rows, t.cols, t.cols, t.w, dbias, AX_F64);
    check_gradient("x", bias_objective, &t, t.x, t.w, t.rows * t.cols);
    check_gradient("bias", bias_objective, &t, t.bias, dbias, t.cols);
    double before = dbias[3]; /* col_sum adds to the previous value */
    RUN(col_sum, t.rows, t.cols, t.cols, t.w, dbias, AX_F64);
    assert_true(dbias[3] == 2 * before);
}

static double activation_objective(const void *test)
{
    const grid_test *t = test;
    double y[MAX];
    RUN(activation, t->cols, t->x, y, AX_F64, t->kind);
    return dot(t->w, y, t->cols);
}

/* The points of the differences avoid 0, where ReLU has no derivative. */
static void activation_gradients(void **state)
{
    (void)state;
    static grid_test t;
    static double dx[MAX];
    t.cols = 201;
    for (int kind = 0; kind < AX_ACTIVATION_COUNT; kind++) {
        t.kind = (ax_activation)kind;
        fill(t.w, t.cols);
        for (int64_t i = 0; i < t.cols; i++)
            t.x[i] = ((double)i - 100.5) / 20;
        RUN(activation_grad, t.cols, t.x, t.w, dx, AX_F64, t.kind);
        check_gradient("x", activation_objective, &t, t.x, dx, t.cols);
    }
}

/* Values of PyTorch 2 in float64 at -1 and 1: gelu(1) is the normal distribution's cdf there. */
static void activation_values(void **state)
{
    (void)state;
    static const double x[] = {-1, 1};
    static const double values[AX_ACTIVATION_COUNT][2] = {
        [AX_GELU_TANH] = {-0.1588080093917233, 0.8411919906082768},
        [AX_GELU_EXACT] = {-0.15865525393145707, 0.8413447460685429},
        [AX_RELU] = {0, 1},
        [AX_TANH] = {-0.7615941559557649, 0.7615941559557649},
        [AX_SILU] = {-0.2689414213699951, 0.7310585786300049}};
    double y[2];
    for (int kind = 0; kind < AX_ACTIVATION_COUNT; kind++) {
        RUN(activation, 2, x, y, AX_F64, (ax_activation)kind);
        for (int i = 0; i < 2; i++)
            if (!(fabs(y[i] - values[kind][i]) < 1e-15))
                fail_msg("activation %d of %g is %.17g, not %.17g", kind, x[i], y[i], values[kind][i]);
    }
    assert_int_equal(ax_run_activation(&stream, &(ax_activation_args){2, x, y, AX_F64, AX_ACTIVATION_COUNT}),
                     AX_ERR_USAGE);
}

static double squared_error_objective(const void *test)
{
    const grid_test *t = test;
    double total = 0;
    RUN(squared_error, t->cols, 1, NULL, t->x, t->w, NULL, &total, AX_F64);
    return total / 3;
}

static void squared_error_gradients(void **state)
{
    (void)state;
    static grid_test t;
    static double dx[MAX];
    double total = 5;
    t.cols = 301;
    fill(t.x, t.cols);
    fill(t.w, t.cols);
    RUN(squared_error, t.cols, 2.0 / 3, NULL, t.x, t.w, dx, &total, AX_F64);
    check_gradient("x", squared_error_objective, &t, t.x, dx, t.cols);
    assert_true(fabs(total - 5 - 3 * squared_error_objective(&t)) <
                1e-12 * total); /* the kernel adds to the previous total, 5 */
}

static double embedding_objective(const void *test)
{
    const grid_test *t = test;
    double y[MAX];
    RUN(embedding, t->rows, t->cols, 3, 17, t->x, t->ids, y, AX_F64, false);
    return dot(t->w, y, t->rows * t->cols);
}

static void embedding_gradients(void **state)
{
    (void)state;
    enum { ROWS = 23, COLS = 5, FIRST = 3, COUNT = 17 };
    static grid_test t;
    static double dtable[MAX], whole[MAX], split[MAX];
    t.rows = ROWS, t.cols = COLS;
    fill(t.x, COUNT * COLS);
    fill(t.w, ROWS * COLS);
    for (int r = 0; r < ROWS; r++) /* 0 … 22: repeated rows of the table and ids on either side of it */
        t.ids[r] = r * 7 % 13 * (r % 3 ? 1 : 2) - (r == 5);
    RUN(embedding_grad, ROWS, COLS, FIRST, COUNT, t.w, t.ids, dtable, AX_F64, AX_F64);
    check_gradient("table", embedding_objective, &t, t.x, dtable, COUNT * COLS);
    /* The table split between two ranks, whose results are added. */
    RUN(embedding, ROWS, COLS, FIRST, COUNT, t.x, t.ids, whole, AX_F64, false);
    RUN(embedding, ROWS, COLS, FIRST, 6, t.x, t.ids, split, AX_F64, false);
    RUN(embedding, ROWS, COLS, FIRST + 6, COUNT - 6, t.x + 6 * COLS, t.ids, split, AX_F64, true);
    assert_memory_equal(whole, split, ROWS * COLS * sizeof(double));
}

static void dropout_is_its_own_gradient(void **state)
{
    (void)state;
    enum { ROWS = 61, COLS = 53, GLOBAL = 60 };
    static double x[MAX], y[MAX], w[MAX], dx[MAX], part[MAX];
    const double p = 0.3;
    fill(x, ROWS * COLS);
    fill(w, ROWS * COLS);
    RUN(dropout, ROWS, COLS, 9, 4, GLOBAL, 5, p, NULL, x, y, AX_F64);
    RUN(dropout, ROWS, COLS, 9, 4, GLOBAL, 5, p, NULL, w, dx, AX_F64);
    int64_t dropped = 0, n = ROWS * COLS;
    for (int64_t i = 0; i < n; i++) {
        assert_true(y[i] == 0 || fabs(y[i] * (1 - p) - x[i]) < 1e-15);
        assert_true((y[i] == 0) == (dx[i] == 0));
        dropped += y[i] == 0;
    }
    assert_true(fabs((double)dropped / (double)n - p) < 5 * sqrt(p * (1 - p) / (double)n));
    /* The lower right quarter, computed alone, drops the same elements. */
    for (int r = 30; r < ROWS; r++)
        memcpy(part + (r - 30) * 33, x + r * COLS + 20, 33 * sizeof *x);
    RUN(dropout, ROWS - 30, 33, 9 + 30, 4 + 20, GLOBAL, 5, p, NULL, part, part, AX_F64);
    for (int r = 30; r < ROWS; r++)
        assert_memory_equal(part + (r - 30) * 33, y + r * COLS + 20, 33 * sizeof *x);
}

/* ---- attention ----------------------------------------------------------------------------------- */

typedef struct attention_test {
    ax_attention_grad_args shape; /* sizes and doc_start; pointers unused */
    double q[MAX], k[MAX], v[MAX], w[MAX];
} attention_test;

static void attend(const attention_test *t, double *o, double *lse)
{
    const ax_attention_grad_args *s = &t->shape;
    RUN(attention, s->batch, s->q_len, s->q_len, 0, s->heads, s->kv_heads, s->head_dim, s->q_ld, s->kv_ld, 0,
        s->scale, t->q, t->k, t->v, s->doc_start, NULL, s->window, NULL, 0, 0, o, lse, s->drop, AX_F64);
}

static double attention_objective(const void *test)
{
    const attention_test *t = test;
    const ax_attention_grad_args *s = &t->shape;
    double o[MAX];
    attend(t, o, NULL);
    return dot(t->w, o, s->batch * s->q_len * s->heads * s->head_dim);
}

static void attention_setup(attention_test *t, ax_attention_grad_args shape)
{
    shape.q_ld = ax_max(shape.q_ld, shape.heads * shape.head_dim);
    shape.kv_ld = ax_max(shape.kv_ld, shape.kv_heads * shape.head_dim);
    t->shape = shape;
    t->shape.scale = 0.6;
    t->shape.dtype = AX_F64;
    fill(t->q, shape.batch * shape.q_len * shape.q_ld);
    fill(t->k, shape.batch * shape.q_len * shape.kv_ld);
    fill(t->v, shape.batch * shape.q_len * shape.kv_ld);
    fill(t->w, shape.batch * shape.q_len * shape.heads * shape.head_dim);
}

static void attention_gradients(void **state)
{
    (void)state;
    static const int32_t documents[2 * 7] = {0, 0, 2, 2, 2, 5, 5, 0, 1, 1, 1, 1, 1, 6};
    static const ax_attention_grad_args shapes[] = {
        {.batch = 1, .q_len = 1, .heads = 1, .kv_heads = 1, .head_dim = 1},
        {.batch = 1, .q_len = 9, .heads = 3, .kv_heads = 3, .head_dim = 5},
        {.batch = 2, .q_len = 7, .heads = 4, .kv_heads = 2, .head_dim = 3, .doc_start = documents},
        {.batch = 2, .q_len = 6, .heads = 6, .kv_heads = 1, .head_dim = 2},
        {.batch = 1, .q_len = 3, .heads = 2, .kv_heads = 1, .head_dim = 259},
        {.batch = 1, .q_len = 9, .heads = 2, .kv_heads = 1, .head_dim = 3, .window = 4},
        {.batch = 2, .q_len = 5, .heads = 4, .kv_heads = 2, .head_dim = 3, .q_ld = 25, .kv_ld = 8},
        {.batch = 2,
         .q_len = 7,
         .heads = 4,
         .kv_heads = 2,
         .head_dim = 3,
         .doc_start = documents,
         .window = 2},
        {.batch = 2,
         .q_len = 7,
         .heads = 4,
         .kv_heads = 2,
         .head_dim = 3,
         .doc_start = documents,
         .drop = {.p = 0.4, .key = 17, .row0 = 3, .head0 = 2, .heads = 7}},
    };
    static attention_test t;
    static double o[MAX], lse[MAX], delta[MAX], dq[MAX], dk[MAX], dv[MAX];
    for (size_t i = 0; i < AX_COUNT(shapes); i++) {
        attention_setup(&t, shapes[i]);
        attend(&t, o, lse);
        ax_attention_grad_args args = t.shape;
        args.q = t.q, args.k = t.k, args.v = t.v, args.o = o, args.lse = lse, args.dout = t.w;
        args.delta = delta, args.dq = dq, args.dk = dk, args.dv = dv;
        int64_t q_count = args.batch * args.q_len * args.q_ld, k_count = args.batch * args.q_len * args.kv_ld;
        memset(dq, 0, sizeof dq); /* the gradient of padding is 0, because the kernel leaves it as it was */
        memset(dk, 0, sizeof dk);
        memset(dv, 0, sizeof dv);
        assert_int_equal(ax_run_attention_grad(&stream, &args), AX_OK);
        check_gradient("q", attention_objective, &t, t.q, dq, q_count);
        check_gradient("k", attention_objective, &t, t.k, dk, k_count);
        check_gradient("v", attention_objective, &t, t.v, dv, k_count);
    }
}

/* Each query against the definition of softmax, written out. */
static void attention_by_definition(void **state)
{
    (void)state;
    enum { T = 7, H = 4, G = 2, D = 3, WINDOW = 2 };
    static const int32_t documents[T] = {0, 0, 2, 2, 2, 5, 5};
    static const int first[2][T] = {{0, 0, 2, 2, 2, 5, 5}, {0, 0, 2, 2, 3, 5, 5}};
    static attention_test t;
    static double o[MAX], lse[MAX], expected[MAX], expected_lse[MAX];
    for (int windowed = 0; windowed < 2; windowed++) {
        attention_setup(&t, (ax_attention_grad_args){.batch = 1,
                                                     .q_len = T,
                                                     .heads = H,
                                                     .kv_heads = G,
                                                     .head_dim = D,
                                                     .doc_start = documents,
                                                     .window = windowed ? WINDOW : 0});
        attend(&t, o, lse);
        memset(expected, 0, sizeof expected);
        for (int i = 0; i < T; i++)
            for (int h = 0; h < H; h++) {
                double sum = 0, *row = expected + (i * H + h) * D;
                for (int j = first[windowed][i]; j <= i; j++) {
                    const double *k = t.k + (j * G + h / 2) * D, *v = t.v + (j * G + h / 2) * D;
                    double p = exp(t.shape.scale * dot(t.q + (i * H + h) * D, k, D));
                    sum += p;
                    for (int d = 0; d < D; d++)
                        row[d] += p * v[d];
                }
                for (int d = 0; d < D; d++)
                    row[d] /= sum;
                expected_lse[h * T + i] = log(sum);
            }
        check_equal("o", o, expected, T * H * D);
        check_equal("lse", lse, expected_lse, T * H);
    }
}

/* Decoding one position at a time, or first a prompt and then the rest, from a KV cache that is longer than
 * needed. */
static void attention_with_a_cache(void **state)
{
    (void)state;
    enum { B = 2, T = 7, H = 4, G = 2, D = 3, ROOM = 11, STRIDE = ROOM * G * D };
    static attention_test t;
    static double whole[MAX], part[MAX], k[B * STRIDE], v[B * STRIDE], q[MAX];
    static const int64_t steps[][T + 1] = {{0, 1, 2, 3, 4, 5, 6, 7}, {0, 4, 7, 7, 7, 7, 7, 7}};
    for (int plan = 0; plan < 4; plan++) {
        const int64_t window = plan < 2 ? 0 : 3;
        attention_setup(
            &t, (ax_attention_grad_args){
                    .batch = B, .q_len = T, .heads = H, .kv_heads = G, .head_dim = D, .window = window});
        attend(&t, whole, NULL);
        for (int i = 0; i < B * STRIDE; i++)
            k[i] = v[i] = NAN;
        for (int i = 0; i < T; i++) {
            int64_t from = steps[plan % 2][i], n = steps[plan % 2][i + 1] - from;
            for (int64_t b = 0; b < B; b++) {
                size_t bytes = (size_t)(n * G * D) * sizeof(double);
                memcpy(k + b * STRIDE + from * G * D, t.k + (b * T + from) * G * D, bytes);
                memcpy(v + b * STRIDE + from * G * D, t.v + (b * T + from) * G * D, bytes);
                memcpy(q + b * n * H * D, t.q + (b * T + from) * H * D, (size_t)(n * H * D) * sizeof(double));
            }
            RUN(attention, B, n, ROOM, from, H, G, D, H * D, G * D, STRIDE, t.shape.scale, q, k, v, NULL,
                NULL, window, NULL, 0, 0, part, NULL, (ax_attention_dropout){0}, AX_F64);
            for (int64_t b = 0; b < B; b++)
                check_equal("o", part + b * n * H * D, whole + (b * T + from) * H * D, n * H * D);
        }
    }
}

/* ---- cross-entropy ------------------------------------------------------------------------------- */

enum { CE_ROWS = 6, CE_VOCAB = 37 };
static const int32_t ce_targets[CE_ROWS] = {0, 36, -1, 12, 11, -100};

typedef struct ce_test {
    double logits[CE_ROWS * CE_VOCAB];
} ce_test;

static double ce_objective(const void *test)
{
    const ce_test *t = test;
    double max[CE_ROWS], sum[CE_ROWS], target[CE_ROWS], loss[CE_ROWS], total = 0;
    RUN(ce_stats, CE_ROWS, CE_VOCAB, CE_VOCAB, 0, t->logits, ce_targets, max, sum, target, AX_F64);
    RUN(ce_loss, CE_ROWS, max, sum, target, ce_targets, loss, &total, AX_F64);
    return 0.25 * total;
}

static void ce_gradients(void **state)
{
    (void)state;
    static ce_test t;
    static double grad[CE_ROWS * CE_VOCAB];
    double max[CE_ROWS], sum[CE_ROWS], target[CE_ROWS];
    fill(t.logits, CE_ROWS * CE_VOCAB);
    RUN(ce_stats, CE_ROWS, CE_VOCAB, CE_VOCAB, 0, t.logits, ce_targets, max, sum, target, AX_F64);
    memcpy(grad, t.logits, sizeof grad);
    RUN(ce_grad, CE_ROWS, CE_VOCAB, CE_VOCAB, 0, 0.25, NULL, max, sum, ce_targets, grad, AX_F64);
    check_gradient("logits", ce_objective, &t, t.logits, grad, CE_ROWS * CE_VOCAB);
    for (int r = 0; r < CE_ROWS; r++)
        for (int j = 0; j < CE_VOCAB; j++)
            assert_true((ce_targets[r] < 0) == (grad[r * CE_VOCAB + j] == 0));
}

/* The vocabulary on three ranks, one of them empty, with the all-reduces written out. Logits are so large
 * that exp would overflow with the maximum of a part of the row. */
static void ce_of_a_split_vocabulary(void **state)
{
    (void)state;
    static const int64_t lo[] = {0, 12, 12, CE_VOCAB};
    static double logits[CE_ROWS * CE_VOCAB], whole[CE_ROWS * CE_VOCAB], part[3][CE_ROWS * CE_VOCAB];
    double max[3][CE_ROWS], most[CE_ROWS], sum[3][CE_ROWS], target[3][CE_ROWS], loss[2][CE_ROWS],
        total[2] = {0, 0};
    fill(logits, CE_ROWS * CE_VOCAB);
    for (int i = 0; i < CE_ROWS * CE_VOCAB; i++)
        logits[i] *= 800;
    memcpy(whole, logits, sizeof whole);
    for (int i = 0; i < 3; i++) {
        int64_t n = lo[i + 1] - lo[i];
        for (int r = 0; r < CE_ROWS; r++)
            memcpy(part[i] + r * n, logits + r * CE_VOCAB + lo[i], (size_t)n * sizeof(double));
        RUN(ce_stats, CE_ROWS, n, n, lo[i], part[i], ce_targets, max[i], sum[i], target[i], AX_F64);
    }
    for (int r = 0; r < CE_ROWS; r++)
        most[r] = fmax(max[0][r], fmax(max[1][r], max[2][r]));
    for (int i = 0; i < 3; i++)
        RUN(ce_rescale, CE_ROWS, max[i], most, sum[i], AX_F64);
    for (int r = 0; r < CE_ROWS; r++) {
        sum[0][r] += sum[1][r] + sum[2][r];
        target[0][r] += target[1][r] + target[2][r];
    }
    RUN(ce_loss, CE_ROWS, most, sum[0], target[0], ce_targets, loss[0], &total[0], AX_F64);
    for (int i = 0; i < 3; i++)
        RUN(ce_grad, CE_ROWS, lo[i + 1] - lo[i], lo[i + 1] - lo[i], lo[i], 0.5, NULL, most, sum[0],
            ce_targets, part[i], AX_F64);
    RUN(ce_stats, CE_ROWS, CE_VOCAB, CE_VOCAB, 0, whole, ce_targets, max[1], sum[1], target[1], AX_F64);
    RUN(ce_loss, CE_ROWS, max[1], sum[1], target[1], ce_targets, loss[1], &total[1], AX_F64);
    RUN(ce_grad, CE_ROWS, CE_VOCAB, CE_VOCAB, 0, 0.5, NULL, max[1], sum[1], ce_targets, whole, AX_F64);
    check_equal("loss", loss[0], loss[1], CE_ROWS);
    assert_true(isfinite(total[1]) && loss[1][2] == 0 && loss[1][0] > 0);
    check_equal("total", &total[0], &total[1], 1);
    for (int i = 0; i < 3; i++)
        for (int r = 0; r < CE_ROWS; r++)
            for (int64_t j = lo[i]; j < lo[i + 1]; j++)
                assert_true(fabs(part[i][r * (lo[i + 1] - lo[i]) + j - lo[i]] - whole[r * CE_VOCAB + j]) <
                            1e-15);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemm_gradients),
        cmocka_unit_test(bias_gradients),
        cmocka_unit_test(activation_gradients),
        cmocka_unit_test(activation_values),
        cmocka_unit_test(squared_error_gradients),
        cmocka_unit_test(embedding_gradients),
        cmocka_unit_test(dropout_is_its_own_gradient),
        cmocka_unit_test(attention_gradients),
        cmocka_unit_test(attention_by_definition),
        cmocka_unit_test(attention_with_a_cache),
        cmocka_unit_test(ce_gradients),
        cmocka_unit_test(ce_of_a_split_vocabulary),
    };
    return cmocka_run_group_tests(tests, open_ref, close_ref);
}
