/* Kernels of ref in double precision: values by their definition, and sums over split dims, which must equal
 * the unsplit computation. */
#include "axonn/dev.h"

#include "support/arrays.h"
#include "support/ref_stream.h"

#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MAX = 4096 };

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

/* A table split between two ranks, whose results are added. */
static void embedding_of_a_split_table(void **state)
{
    (void)state;
    enum { ROWS = 23, COLS = 5, FIRST = 3, COUNT = 17 };
    static double table[MAX], whole[MAX], split[MAX];
    int32_t ids[ROWS];
    fill(table, COUNT * COLS);
    for (int r = 0; r < ROWS; r++) /* 0 … 22: repeated rows of the table and ids on either side of it */
        ids[r] = r * 7 % 13 * (r % 3 ? 1 : 2) - (r == 5);
    RUN(embedding, ROWS, COLS, FIRST, COUNT, table, ids, whole, AX_F64, false);
    RUN(embedding, ROWS, COLS, FIRST, 6, table, ids, split, AX_F64, false);
    RUN(embedding, ROWS, COLS, FIRST + 6, COUNT - 6, table + 6 * COLS, ids, split, AX_F64, true);
    assert_memory_equal(whole, split, ROWS * COLS * sizeof(double));
}

static void dropout_of_a_box(void **state)
{
    (void)state;
    enum { ROWS = 61, COLS = 53, GLOBAL = 60 };
    static double x[MAX], y[MAX], part[MAX];
    const double p = 0.3;
    fill(x, ROWS * COLS);
    RUN(dropout, ROWS, COLS, 9, 4, GLOBAL, 5, p, NULL, x, y, AX_F64);
    int64_t dropped = 0, n = ROWS * COLS;
    for (int64_t i = 0; i < n; i++) {
        assert_true(y[i] == 0 || fabs(y[i] * (1 - p) - x[i]) < 1e-15);
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
    double q[MAX], k[MAX], v[MAX];
} attention_test;

static void attend(const attention_test *t, double *o, double *lse)
{
    const ax_attention_grad_args *s = &t->shape;
    RUN(attention, s->batch, s->q_len, s->q_len, 0, s->heads, s->kv_heads, s->head_dim, s->q_ld, s->kv_ld, 0,
        s->scale, t->q, t->k, t->v, s->doc_start, NULL, s->window, NULL, 0, 0, o, lse, s->drop, AX_F64);
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
        cmocka_unit_test(activation_values),      cmocka_unit_test(embedding_of_a_split_table),
        cmocka_unit_test(dropout_of_a_box),       cmocka_unit_test(attention_by_definition),
        cmocka_unit_test(attention_with_a_cache), cmocka_unit_test(ce_of_a_split_vocabulary),
    };
    return cmocka_run_group_tests(tests, open_ref, close_ref);
}
