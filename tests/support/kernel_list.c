/* The lists of kernel cases, first part: GEMMs, attention, norms, loss. */
#include "support/kernel_list.h"

#include "support/kernel_macros.h"
#include "support/sanitized.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

bool kc_takes(const kernel_case *c, unsigned types) { return types >> c->dtype & 1u; }

void kc_name(kernel_case *c, const char *fmt, ...)
{
    size_t used = strlen(c->name);
    va_list args;
    va_start(args, fmt);
    vsnprintf(c->name + used, sizeof c->name - used, fmt, args);
    va_end(args);
}

void kc_dtype(kernel_case *c, size_t field, ax_dtype dtype)
{
    memcpy(c->args.bytes + field, &dtype, sizeof dtype);
    c->dtype_field[c->dtype_fields++] = field;
}

void kc_reference(ax_kernel kernel, const void *args)
{
    ax_device *dev;
    assert_int_equal(ax_device_open("ref", 1, &dev), AX_OK);
    ax_stream stream = {dev, NULL};
    assert_int_equal(ax_launch(&stream, kernel, args), AX_OK);
    ax_device_close(&dev);
}

static kc_builder *const builders[AX_KERNEL_COUNT] = {
#define BUILDER(name) [AX_K_##name] = kc_build_##name,
    AX_KERNELS(BUILDER)
#undef BUILDER
};

bool kernel_case_build(ax_kernel kernel, ax_dtype dtype, int index, kernel_case *out)
{
    *out = (kernel_case){.kernel = kernel, .dtype = dtype};
    out->seed = ((uint64_t)kernel * 1000 + (uint64_t)index) << 24; /* the same values in every dtype */
    kc_name(out, "%s %s #%d", ax_kernel_name(kernel), ax_dtype_name(dtype), index);
    return builders[kernel](out, index);
}

const int64_t kc_lengths[] = {0, 1, 2, 7, 15, 16, 17, 63, 257, 1009, 4099, 100003};
const int kc_length_count = (int)AX_COUNT(kc_lengths);

/* Shapes [rows, columns]: empty, single, primes, just above powers of two, longer than any block. */
static const int64_t grids[][2] = {{0, 5},   {5, 0},   {1, 1},    {3, 7},    {7, 3},    {1, 1031},
                                   {17, 31}, {2, 257}, {65, 129}, {130, 64}, {1031, 2}, {7, 2053}};

bool kc_grid(int index, int variants, int64_t *rows, int64_t *cols)
{
    if (index / variants >= (int)AX_COUNT(grids))
        return false;
    *rows = grids[index / variants][0];
    *cols = grids[index / variants][1];
    return true;
}

/* GEMMs with an epilogue: an activation, or multiplication by its derivative. Where the result is small,
 * rounding of intermediate values counts more than rounding of the result. */
static bool build_gemm_epilogue(kernel_case *c, int index)
{
    static const int64_t shapes[][3] = {{0, 8, 4},   {3, 8, 0},    {1, 16, 24},   {17, 8, 40},   {5, 7, 3},
                                        {33, 24, 9}, {64, 64, 64}, {40, 136, 65}, {130, 48, 300}};
    /* After `shapes` follows this shape, once with each activation, so that every activation is tested. */
    static const int64_t with_each[] = {24, 40, 33};
    enum { WAYS = 12, SHAPES = AX_COUNT(shapes) };
    int at = index / WAYS, way = index % WAYS;
    if (at >= SHAPES + AX_ACTIVATION_COUNT || !kc_takes(c, KC_ACTIVATION))
        return false;
    const int64_t *shape = at < SHAPES ? shapes[at] : with_each;
    int kind = at >= SHAPES ? at - SHAPES : at % 3 == 0 ? AX_GELU_TANH : at % AX_ACTIVATION_COUNT;
    ARGS(gemm);
    int64_t m = shape[0], n = shape[1], k = shape[2];
    a->m = m, a->n = n, a->k = k;
    a->trans_a = way & 1, a->trans_b = way & 2;
    a->lda = a->trans_a ? m : k;
    a->ldb = a->trans_b ? k : n;
    a->ldc = n;
    a->epilogue = way < 8 ? AX_EPILOGUE_ACTIVATION : AX_EPILOGUE_ACTIVATION_GRAD;
    a->kind = (ax_activation)kind;
    DTYPE(dtype, c->dtype);
    DTYPE(c_dtype, c->dtype);
    kc_name(c, " %dx%dx%d%s%s%s then %s", (int)m, (int)n, (int)k, a->trans_a ? " a'" : "",
            a->trans_b ? " b'" : "", way < 8 && index % 2 ? " + bias" : "",
            way < 8 ? way < 4 ? "f" : "f of what is kept" : "f'");
    IN(a, c->dtype, (a->trans_a ? k : m) * a->lda);
    IN(b, c->dtype, (a->trans_b ? n : k) * a->ldb);
    if (way < 8 && index % 2)
        IN(bias, ACCUM, n);
    if (way >= 8)
        IN(preact, c->dtype, m * n);
    else if (way >= 4)
        OUT(preact, c->dtype, m * n, (double)k + 2);
    OUT(c, c->dtype, m * n, (double)k + 6);
    return true;
}

/* Gives every third case the sums of columns of a, and another third of the cases sums that are accumulated.
 */
static void add_sums(kernel_case *c, int index)
{
    ARGS(gemm);
    const int way = index / 2 % 3;
    if (way == 0)
        return;
    kc_name(c, " and%s sums", way == 2 ? " +=" : "");
    a->accumulate_sums = way == 2;
    if (a->accumulate_sums)
        INOUT(col_sums, ACCUM, a->m, (double)a->k + 1);
    else
        OUT(col_sums, ACCUM, a->m, (double)a->k + 1);
}

bool kc_build_gemm(kernel_case *c, int index)
{
    static const int64_t shapes[][3] = {
        {0, 3, 4},
        {3, 0, 4},
        {3, 4, 0},
        {1, 1, 1},
        {1, 17, 33},
        {17, 1, 5},
        {5, 7, 1},
        {2, 3, 97},
        {31, 29, 37},
        {64, 64, 64},
        {97, 130, 61},
        {33, 257, 300},
        {131, 67, 1031},
        {8, 48, 300} /* a single tile, fewer than threads */,
        {65, 40, 200},
        {95, 16, 32},
        {1, 150, 64},
        {3, 70, 40},
        {4, 139, 193} /* few rows, read together with several blocks of columns */,
    };
    /* Several blocks in each direction; too large to run all variants. */
    static const int64_t large[][3] = {{1100, 100, 1601}, {260, 300, 3600}, {170, 96, 3072}, {72, 96, 768}};
    /* Weight gradients, with rows of c that fill whole cache lines. A large c is stored by instructions that
     * bypass the caches. The second shape occurs twice, because operands of every third case are not aligned
     * to cache lines. */
    static const int64_t gradients[][3] = {{260, 264, 1700}, {264, 260, 40}, {264, 260, 40}};
    enum { ALL = 16 * AX_COUNT(shapes), FEW = SANITIZED ? 1 : 3, LARGE = ALL + FEW * AX_COUNT(large) };
    enum { PLAIN = LARGE + AX_COUNT(gradients), TRANS_A = 1, SUMS = 8 };
    if (index >= PLAIN)
        return build_gemm_epilogue(c, index - PLAIN);
    if (!kc_takes(c, KC_ACTIVATION))
        return false;
    bool gradient = index >= LARGE, bias = index % 5 < 2 && !gradient;
    const int64_t *shape = index < ALL ? shapes[index / 16]
                           : gradient  ? gradients[index - LARGE]
                                       : large[(index - ALL) / FEW];
    int variant = index < ALL ? index % 16 : gradient ? TRANS_A | SUMS : 5 * ((index - ALL) % 3);
    ARGS(gemm);
    int64_t m = shape[0], n = shape[1], k = shape[2], pad = index % 3;
    a->m = m, a->n = n, a->k = k;
    a->trans_a = variant & TRANS_A, a->trans_b = variant & 2, a->accumulate = variant & 4;
    a->lda = (a->trans_a ? m : k) + pad;
    a->ldb = (a->trans_b ? k : n) + pad;
    a->ldc = gradient ? ax_round_up(n, 16) : n + pad;
    DTYPE(dtype, c->dtype);
    DTYPE(c_dtype, variant & SUMS ? ACCUM : c->dtype);
    kc_name(c, " %dx%dx%d%s%s%s%s to %s", (int)m, (int)n, (int)k, a->trans_a ? " a'" : "",
            a->trans_b ? " b'" : "", a->accumulate ? " +=" : "", bias ? " + bias" : "",
            ax_dtype_name(a->c_dtype));
    IN(a, c->dtype, (a->trans_a ? k : m) * a->lda);
    IN(b, c->dtype, (a->trans_b ? n : k) * a->ldb);
    if (bias)
        IN(bias, ACCUM, n);
    if (a->accumulate)
        INOUT(c, a->c_dtype, m * a->ldc, (double)k + 3);
    else
        OUT(c, a->c_dtype, m * a->ldc, (double)k + 2);
    if (a->trans_a && !bias)
        add_sums(c, index);
    return true;
}

void kc_fill_documents(kernel_case *c, int32_t *start, int64_t batch, int64_t len, int64_t offset)
{
    for (int64_t b = 0; b < batch; b++) {
        int64_t first = 0;
        for (int64_t t = 0; t < len; t++) {
            if (kc_integer(c, 0, 9) == 0)
                first = kc_integer(c, first, offset + t + 1);
            start[b * len + t] = (int32_t)first;
        }
    }
}

typedef struct attention_shape {
    int64_t b, t, s, offset, h, g, d, pad; /* pad: extra elements between the batches of k and v */
    bool documents;
    double drop; /* dropout probability */
    int64_t window;
    bool each; /* each sequence has an offset of its own, `offset` at most */
} attention_shape;

static void name_attention(kernel_case *c, const attention_shape *s)
{
    kc_name(c, " b%d t%d s%d+%d h%d g%d d%d", (int)s->b, (int)s->t, (int)s->s, (int)s->offset, (int)s->h,
            (int)s->g, (int)s->d);
    if (s->drop > 0)
        kc_name(c, " dropout %g", s->drop);
    if (s->window > 0)
        kc_name(c, " window %d", (int)s->window);
    if (s->each)
        kc_name(c, " each its own offset");
}

/* Sets the distances between rows: dense, or padded by a multiple of 16 bytes, or by an odd number of
 * elements. */
static void put_rows(int index, const attention_shape *s, int64_t *q_ld, int64_t *kv_ld)
{
    static const int64_t pads[] = {0, 8, 3};
    *q_ld = s->h * s->d + pads[index % 3];
    *kv_ld = s->g * s->d + pads[index % 3] * 2;
}

/* Sets the dropout of a box in the middle of a larger batch with more heads. */
static void put_dropout(kernel_case *c, int index, size_t field, const attention_shape *s,
                        ax_attention_dropout *out)
{
    *out = (ax_attention_dropout){.p = s->drop,
                                  .key = ax_rng_key(3, "attention", (uint64_t)index),
                                  .row0 = 5 * index,
                                  .head0 = index % 3,
                                  .heads = s->h + index % 4 + 2};
    if (s->drop > 0)
        kc_put_batch(c, field + offsetof(ax_attention_dropout, now), index);
}

/* Gives each chooser of each query random keys, of which the query may not see some; some choosers get none.
 */
static void put_chosen(kernel_case *c, ax_attention_args *a, int64_t choosers)
{
    const int64_t words = (a->kv_len + 63) / 64, rows = a->batch * a->q_len * choosers;
    a->choosers = choosers;
    a->chosen_keys = a->kv_len;
    uint64_t *bits = RAW(chosen, KC_IN, AX_I64, rows * words, 0);
    for (int64_t i = 0; i < rows * words; i++) {
        bits[i] = 0;
        for (int64_t j = 0; j < 64 && i / words % 7 != 6; j++)
            bits[i] |= (uint64_t)(i % words * 64 + j < a->kv_len && kc_integer(c, 0, 3) == 0) << j;
    }
}

bool kc_build_attention(kernel_case *c, int index)
{
    static const attention_shape shapes[] = {
        {0, 3, 3, 0, 2, 1, 4, 0, false, 0, 0, false},
        {2, 0, 5, 5, 2, 1, 4, 0, false, 0, 0, false},
        {1, 1, 1, 0, 1, 1, 1, 0, false, 0, 0, false},
        {2, 5, 5, 0, 4, 2, 3, 0, true, 0, 0, false},
        {1, 17, 17, 0, 3, 1, 8, 0, false, 0, 0, false},
        {2, 33, 33, 0, 2, 2, 16, 0, true, 0, 0, false},
        {1, 70, 70, 0, 4, 2, 64, 0, true, 0, 0, false},
        {1, 131, 131, 0, 2, 1, 31, 0, false, 0, 0, false},
        {3, 1, 37, 36, 4, 2, 16, 32, false, 0, 0, false},
        {2, 5, 50, 20, 2, 1, 64, 128, false, 0, 0, false},
        {2, 7, 19, 12, 6, 2, 5, 3, true, 0, 0, false},
        {1, 300, 300, 0, 2, 2, 8, 0, true, 0, 0, false},
        {1, 1, 1000, 998, 2, 1, 80, 0, false, 0, 0, false},
        {1, 67, 67, 0, 1, 1, 128, 0, false, 0, 0, false},
        {1, 3, 9, 5, 1, 1, 300, 0, false, 0, 0, false},
        {1, 128, 128, 0, 2, 1, 64, 0, false, 0, 0, false},
        {1, 96, 128, 32, 2, 2, 40, 0, true, 0, 0, false},
        {1, 144, 144, 0, 6, 2, 80, 0, true, 0, 0, false},
        {1, 230, 230, 0, 1, 1, 128, 0, false, 0, 0, false},
        {1, 256, 256, 0, 1, 1, 64, 0, false, 0, 0, false},
        {2, 3, 300, 290, 35, 5, 24, 0, true, 0, 0, false},
        {3, 1, 600, 598, 17, 17, 16, 8, false, 0, 0, false},
        {3, 4, 530, 526, 6, 2, 9, 0, true, 0, 0, false},
        {2, 3, 3, 0, 4, 2, 8, 0, false, 0.5, 0, false},
        {2, 5, 5, 0, 2, 1, 3, 0, true, 0.1, 0, false},
        {1, 70, 70, 0, 4, 2, 64, 0, true, 0.1, 0, false},
        {2, 67, 67, 0, 3, 3, 40, 0, false, 0.3, 0, false},
        {1, 131, 131, 0, 2, 1, 128, 0, false, 0.1, 0, false},
        {1, 530, 530, 0, 2, 1, 8, 0, true, 0.2, 0, false},
        {1, 90, 90, 0, 2, 2, 80, 0, false, 0.9, 0, false},
        {2, 33, 53, 20, 2, 1, 32, 16, false, 0.1, 0, false},
        {1, 9, 9, 0, 1, 1, 300, 0, false, 0.1, 0, false},
        /* Shapes with a window. In this order they test documents, skipped blocks of keys, a cache, few
         * queries, a window of one key, dropout, a window longer than the text, and one shifted by a block
         * less one. */
        {1, 70, 70, 0, 4, 2, 64, 0, true, 0, 17, false},
        {1, 660, 660, 0, 2, 1, 8, 0, false, 0, 33, false},
        {2, 5, 50, 20, 2, 1, 64, 128, false, 0, 7, false},
        {3, 4, 530, 526, 6, 2, 9, 0, true, 0, 5, false},
        {1, 19, 19, 0, 2, 2, 16, 0, false, 0, 1, false},
        {1, 131, 131, 0, 2, 1, 128, 0, false, 0.1, 64, false},
        {2, 33, 33, 0, 2, 1, 24, 0, false, 0, 100, false},
        {1, 130, 700, 570, 2, 1, 40, 0, true, 0, 511, false},
        {1, 67, 67, 0, 1, 1, 300, 0, false, 0, 5, false},
        /* Few queries: of two tiles of rows on a GPU, the second not full; with a window that begins in the
         * middle of a tile of keys; and before any key. */
        {1, 3, 1500, 1497, 16, 2, 128, 64, true, 0, 0, false},
        {2, 2, 1000, 998, 4, 4, 40, 8, true, 0, 700, false},
        {1, 9, 20, -4, 2, 2, 64, 0, false, 0, 0, false},
        /* Queries before all keys; then sequences with positions of their own. */
        {1, 70, 50, -20, 4, 2, 64, 0, false, 0, 0, false},
        {1, 300, 40, -260, 2, 1, 40, 0, false, 0, 9, false},
        {1, 3, 9, -1, 2, 1, 8, 0, false, 0, 0, false},
        {5, 1, 600, 599, 6, 2, 64, 8, false, 0, 0, true},
        {4, 1, 90, 89, 3, 3, 9, 0, false, 0, 20, true},
        {3, 5, 50, 40, 2, 1, 80, 0, true, 0, 0, true},
        {3, 70, 200, 120, 4, 2, 64, 0, false, 0, 33, true},
    };
    /* After all shapes come some of them with keys that are chosen. */
    const int shape = index / 2, rest = shape - (int)AX_COUNT(shapes), at = rest < 0 ? shape : 1 + 2 * rest;
    if (at >= (int)AX_COUNT(shapes) || !kc_takes(c, KC_ACTIVATION))
        return false;
    ARGS(attention);
    const attention_shape *s = &shapes[at];
    a->batch = s->b, a->q_len = s->t, a->kv_len = s->s, a->q_offset = s->offset;
    a->heads = s->h, a->kv_heads = s->g, a->head_dim = s->d;
    put_rows(index / 2, s, &a->q_ld, &a->kv_ld);
    a->kv_batch_stride = s->pad ? s->s * a->kv_ld + s->pad : 0;
    a->scale = 1 / sqrt((double)s->d);
    DTYPE(dtype, c->dtype);
    a->window = s->window;
    name_attention(c, s);
    /* The error of a score comes from a dot product over d; the error of a sum comes from adding over the
     * keys. exp multiplies the error of a score by the score's size, which is small here. */
    double terms = (double)(s->d + s->s) + 16;
    int64_t dense = s->s * a->kv_ld, stride = dense + s->pad;
    IN(q, c->dtype, s->b * s->t * a->q_ld);
    int32_t *positions = s->each ? RAW(positions, KC_IN, AX_I32, s->b * s->t, 0) : NULL;
    for (int64_t i = 0; i < s->b * s->t && s->each; i++)
        positions[i] = (int32_t)(i % s->t ? positions[i - 1] + 1 : kc_integer(c, 0, s->offset + 1));
    for (int which = 0; which < 2; which++) {
        void *data = which ? IN(v, c->dtype, s->b * stride) : IN(k, c->dtype, s->b * stride);
        for (int64_t b = 0; b < s->b; b++) { /* keys and values after the last query stay unwritten: NaN */
            int64_t seen = (s->each ? positions[b * s->t] : s->offset) + s->t;
            for (int64_t i = ax_min(ax_max(0, seen) * a->kv_ld, dense); i < stride; i++)
                ax_store(c->dtype, data, b * stride + i, NAN);
        }
    }
    if (s->documents) {
        int32_t *start = RAW(doc_start, KC_IN, AX_I32, s->b * s->t, 0);
        kc_fill_documents(c, start, s->b, s->t, s->offset);
    }
    if (rest >= 0) {
        kc_name(c, " chosen");
        put_chosen(c, a, index % 2 ? s->h : s->g);
    }
    put_dropout(c, index, FIELD(drop), s, &a->drop);
    OUT(o, c->dtype, s->b * s->t * s->h * s->d, terms);
    if (index % 2)
        OUT(lse, ACCUM, s->b * s->h * s->t, terms);
    return true;
}

bool kc_build_attention_grad(kernel_case *c, int index)
{
    static const attention_shape shapes[] = {
        /* No shape has a single query. It would see one key, so its gradient would be zero except for
         * rounding, for which the rounding error of the reference is no measure. */
        {0, 3, 3, 0, 2, 1, 4, 0, false, 0, 0, false},
        {1, 4, 4, 0, 1, 1, 0, 0, false, 0, 0, false},
        {1, 4, 4, 0, 1, 1, 5, 0, false, 0, 0, false},
        {2, 5, 5, 0, 4, 2, 3, 0, true, 0, 0, false},
        {1, 17, 17, 0, 3, 1, 8, 0, false, 0, 0, false},
        {2, 33, 33, 0, 2, 2, 16, 0, true, 0, 0, false},
        {1, 70, 70, 0, 4, 2, 64, 0, true, 0, 0, false},
        {1, 131, 131, 0, 2, 1, 31, 0, false, 0, 0, false},
        {1, 150, 150, 0, 2, 2, 8, 0, true, 0, 0, false},
        {1, 67, 67, 0, 1, 1, 128, 0, false, 0, 0, false},
        {1, 3, 3, 0, 2, 1, 300, 0, false, 0, 0, false},
        {1, 128, 128, 0, 2, 1, 64, 0, false, 0, 0, false},
        {1, 288, 288, 0, 1, 1, 40, 0, true, 0, 0, false},
        {1, 144, 144, 0, 6, 2, 80, 0, true, 0, 0, false},
        {1, 230, 230, 0, 1, 1, 128, 0, false, 0, 0, false},
        /* More sequences, and more heads, than fit the workspace of the emulated GPU at one time
         * (cudnn.c). */
        {5, 256, 256, 0, 2, 1, 8, 0, false, 0, 0, false},
        {2, 128, 128, 0, 17, 17, 8, 0, true, 0, 0, false},
        {2, 5, 5, 0, 4, 2, 8, 0, false, 0.5, 0, false},
        {2, 21, 21, 0, 2, 1, 3, 0, true, 0.1, 0, false},
        {1, 70, 70, 0, 4, 2, 64, 0, true, 0.1, 0, false},
        {2, 67, 67, 0, 3, 3, 40, 0, false, 0.3, 0, false},
        {1, 131, 131, 0, 2, 1, 128, 0, false, 0.1, 0, false},
        {1, 290, 290, 0, 2, 1, 8, 0, true, 0.2, 0, false},
        {1, 90, 90, 0, 2, 2, 80, 0, false, 0.9, 0, false},
        {1, 9, 9, 0, 1, 1, 300, 0, false, 0.1, 0, false},
        {1, 70, 70, 0, 4, 2, 64, 0, true, 0, 17, false},
        {1, 660, 660, 0, 2, 1, 8, 0, false, 0, 33, false},
        {2, 19, 19, 0, 2, 1, 16, 0, false, 0, 2, false},
        {1, 131, 131, 0, 2, 1, 128, 0, true, 0, 64, false},
        {1, 290, 290, 0, 3, 1, 8, 0, true, 0.2, 100, false},
        {2, 33, 33, 0, 2, 1, 24, 0, false, 0, 100, false},
        {1, 300, 300, 0, 1, 1, 64, 0, false, 0, 130, false},
        {1, 67, 67, 0, 3, 3, 40, 0, false, 0.3, 31, false},
    };
    if (index >= (int)AX_COUNT(shapes) || !kc_takes(c, KC_ACTIVATION))
        return false;
    ARGS(attention_grad);
    const attention_shape *s = &shapes[index];
    a->batch = s->b, a->q_len = s->t, a->heads = s->h, a->kv_heads = s->g, a->head_dim = s->d;
    put_rows(index, s, &a->q_ld, &a->kv_ld);
    int64_t q_count = s->b * s->t * a->q_ld, k_count = s->b * s->t * a->kv_ld,
            o_count = s->b * s->t * s->h * s->d, rows = s->b * s->h * s->t;
    a->scale = 1 / sqrt((double)ax_max(s->d, 1));
    DTYPE(dtype, c->dtype);
    a->window = s->window;
    name_attention(c, s);
    double terms = (double)(3 * s->d + s->t * (s->h / s->g)) + 32;
    IN(q, c->dtype, q_count);
    IN(k, c->dtype, k_count);
    IN(v, c->dtype, k_count);
    if (s->documents)
        kc_fill_documents(c, RAW(doc_start, KC_IN, AX_I32, s->b * s->t, 0), s->b, s->t, 0);
    put_dropout(c, index, FIELD(drop), s, &a->drop);
    void *o = RAW(o, KC_IN, c->dtype, o_count, 0), *lse = RAW(lse, KC_IN, ACCUM, rows, 0);
    ax_attention_args forward = {.batch = s->b,
                                 .q_len = s->t,
                                 .kv_len = s->t,
                                 .heads = s->h,
                                 .kv_heads = s->g,
                                 .head_dim = s->d,
                                 .q_ld = a->q_ld,
                                 .kv_ld = a->kv_ld,
                                 .scale = a->scale,
                                 .q = a->q,
                                 .k = a->k,
                                 .v = a->v,
                                 .doc_start = a->doc_start,
                                 .window = a->window,
                                 .o = o,
                                 .lse = lse,
                                 .drop = a->drop,
                                 .dtype = c->dtype};
    kc_reference(AX_K_attention, &forward);
    IN(dout, c->dtype, o_count);
    OUT(delta, ACCUM, rows, (double)s->d + 1);
    OUT(dq, c->dtype, q_count, terms);
    OUT(dk, c->dtype, k_count, terms);
    OUT(dv, c->dtype, k_count, terms);
    /* The reference sums the gradients of a group's heads and rounds once. A kernel that rounds each head's
     * gradient first adds errors that are about as large again. */
    for (int i = c->operands - 2; s->h > s->g && i < c->operands; i++)
        c->operand[i].gaps = 3;
    return true;
}

/* Sets the shape and the kind of norm of case `index`; returns false after the last case. The shapes are
 * those of kc_grid, and two whose rows are whole numbers of vectors: several warps of a GPU share such a row.
 * A row of the second of these is longer than a block holds. */
static bool norm_grid(int index, int variants, int64_t *rows, int64_t *cols, ax_norm_kind *kind)
{
    static const int64_t whole[][2] = {{17, 776}, {3, 4104}};
    enum { SHARED = AX_COUNT(grids), SHAPES = SHARED + AX_COUNT(whole) };
    const int shape = index / variants % SHAPES;
    *kind = index / variants < SHAPES ? AX_NORM_LAYER : AX_NORM_RMS;
    *rows = shape < SHARED ? grids[shape][0] : whole[shape - SHARED][0];
    *cols = shape < SHARED ? grids[shape][1] : whole[shape - SHARED][1];
    return index / variants < 2 * SHAPES;
}

/* Rounds the operand to multiples of 1/16 below 8, so that the sum of two is exact in bf16. Otherwise a
 * kernel that uses the rounded sum would be compared with one that uses the exact sum. */
static void coarsen(kernel_case *c)
{
    const kc_operand *o = &c->operand[c->operands - 1];
    for (int64_t i = 0; i < o->count; i++) {
        double value = rint(16 * ax_load(o->dtype, o->data, i)) / 16;
        ax_store(o->dtype, o->data, i, fmax(-7.9375, fmin(7.9375, value)));
    }
}

/* Adds the input of a norm. Variant 0: a alone. Variants 1, 2, 3: a + b, which the kernel stores in x, in a
 * or in b. */
#define NORM_SUM(variant)                                                                                    \
    do {                                                                                                     \
        const int64_t n = a->rows * a->cols;                                                                 \
        if ((variant) == 2)                                                                                  \
            INOUT(a, c->dtype, n, 1);                                                                        \
        else                                                                                                 \
            IN(a, c->dtype, n);                                                                              \
        if ((variant) == 0)                                                                                  \
            break;                                                                                           \
        coarsen(c);                                                                                          \
        if ((variant) == 2)                                                                                  \
            ALIAS(x);                                                                                        \
        if ((variant) == 3)                                                                                  \
            INOUT(b, c->dtype, n, 1);                                                                        \
        else                                                                                                 \
            IN(b, c->dtype, n);                                                                              \
        coarsen(c);                                                                                          \
        if ((variant) == 3)                                                                                  \
            ALIAS(x);                                                                                        \
        if ((variant) == 1)                                                                                  \
            OUT(x, c->dtype, n, 1);                                                                          \
    } while (0)

bool kc_build_norm_stats(kernel_case *c, int index)
{
    ARGS(norm_stats);
    if (!kc_takes(c, KC_ACTIVATION) || !norm_grid(index, 4, &a->rows, &a->cols, &a->kind))
        return false;
    DTYPE(dtype, c->dtype);
    NORM_SUM(index % 4);
    if (a->kind == AX_NORM_LAYER)
        OUT(sum, ACCUM, a->rows, (double)a->cols + 1);
    OUT(m2, ACCUM, a->rows, (double)a->cols + 4);
    return true;
}

bool kc_build_norm(kernel_case *c, int index)
{
    ARGS(norm);
    if (!kc_takes(c, KC_ACTIVATION) || !norm_grid(index, 8, &a->rows, &a->cols, &a->kind))
        return false;
    a->eps = 0.0625; /* large, because rows of one or two columns have almost no variance */
    DTYPE(dtype, c->dtype);
    NORM_SUM(index % 4);
    IN(weight, ACCUM, a->cols);
    if (index & 4)
        IN(bias, ACCUM, a->cols);
    if (a->kind == AX_NORM_LAYER)
        OUT(sum, ACCUM, a->rows, (double)a->cols + 1);
    OUT(m2, ACCUM, a->rows, (double)a->cols + 4);
    OUT(y, c->dtype, a->rows * a->cols, (double)a->cols + 24);
    return true;
}

bool kc_build_norm_recentre(kernel_case *c, int index)
{
    ARGS(norm_recentre);
    ax_norm_kind kind;
    if (!kc_takes(c, KC_ACCUM) || !norm_grid(index, 1, &a->rows, &a->cols, &kind) || kind != AX_NORM_LAYER)
        return false;
    a->global_cols = 2 * a->cols + 3;
    DTYPE(dtype, c->dtype);
    IN(local_sum, c->dtype, a->rows);
    IN(global_sum, c->dtype, a->rows);
    INOUT(m2, c->dtype, a->rows, 16);
    return true;
}

/* Adds x and the statistics of its rows, which the reference computes: m2, and for LayerNorm also sum. */
#define NORM_INPUTS()                                                                                        \
    do {                                                                                                     \
        a->eps = 1e-5;                                                                                       \
        DTYPE(dtype, c->dtype);                                                                              \
        IN(x, c->dtype, a->rows * a->cols);                                                                  \
        void *sum = a->kind == AX_NORM_LAYER ? RAW(sum, KC_IN, ACCUM, a->rows, 0) : NULL;                    \
        void *m2 = RAW(m2, KC_IN, ACCUM, a->rows, 0);                                                        \
        ax_norm_stats_args stats = {a->rows, a->cols, a->x, NULL, NULL, sum, m2, c->dtype, a->kind};         \
        kc_reference(AX_K_norm_stats, &stats);                                                               \
        for (int64_t r = 0; r < a->rows; r++) /* cols 0 and 1 have no variance: keep 1/sqrt(m2) moderate */  \
            ax_store(ACCUM, m2, r, ax_load(ACCUM, m2, r) + 0.5);                                             \
    } while (0)

/* Does what NORM_INPUTS does; at odd indices each row is a part of a wider row, as if ranks split the
 * width. */
#define PART_INPUTS(index)                                                                                   \
    do {                                                                                                     \
        a->global_cols = (index) % 2 ? 2 * a->cols + 3 : a->cols;                                            \
        NORM_INPUTS();                                                                                       \
    } while (0)

bool kc_build_norm_apply(kernel_case *c, int index)
{
    ARGS(norm_apply);
    if (!kc_takes(c, KC_ACTIVATION) || !norm_grid(index, 4, &a->rows, &a->cols, &a->kind))
        return false;
    PART_INPUTS(index);
    IN(weight, ACCUM, a->cols);
    if (index & 2)
        IN(bias, ACCUM, a->cols);
    OUT(y, c->dtype, a->rows * a->cols, 16);
    return true;
}

bool kc_build_norm_grad_stats(kernel_case *c, int index)
{
    ARGS(norm_grad_stats);
    if (!kc_takes(c, KC_ACTIVATION) || !norm_grid(index, 2, &a->rows, &a->cols, &a->kind))
        return false;
    PART_INPUTS(index);
    IN(dy, c->dtype, a->rows * a->cols);
    IN(weight, ACCUM, a->cols);
    if (a->kind == AX_NORM_LAYER)
        OUT(s1, ACCUM, a->rows, (double)a->cols + 4);
    OUT(s2, ACCUM, a->rows, (double)a->cols + 12);
    return true;
}

/* Adds dy, a summand `add` of the gradient if `added`, dx (own memory, or in place of dy or add), and the
 * gradients of weight and bias except in some cases. */
#define NORM_GRADS(index, added, terms)                                                                      \
    do {                                                                                                     \
        const int64_t n = a->rows * a->cols;                                                                 \
        const int place = (index) / 2 % 3;                                                                   \
        if (place == 1) {                                                                                    \
            INOUT(dy, c->dtype, n, terms);                                                                   \
            ALIAS(dx);                                                                                       \
        } else {                                                                                             \
            IN(dy, c->dtype, n);                                                                             \
        }                                                                                                    \
        if ((added) && place == 2) {                                                                         \
            INOUT(add, c->dtype, n, terms);                                                                  \
            ALIAS(dx);                                                                                       \
        } else if (added) {                                                                                  \
            IN(add, c->dtype, n);                                                                            \
        }                                                                                                    \
        if (place == 0 || (place == 2 && !(added)))                                                          \
            OUT(dx, c->dtype, n, terms);                                                                     \
        if ((index) % 4 != 3)                                                                                \
            INOUT(dweight, ACCUM, a->cols, (double)a->rows + 12);                                            \
        if ((index) % 5 != 4)                                                                                \
            INOUT(dbias, ACCUM, a->cols, (double)a->rows + 1);                                               \
    } while (0)

bool kc_build_norm_grad_apply(kernel_case *c, int index)
{
    ARGS(norm_grad_apply);
    if (!kc_takes(c, KC_ACTIVATION) || !norm_grid(index, 12, &a->rows, &a->cols, &a->kind))
        return false;
    PART_INPUTS(index);
    IN(weight, ACCUM, a->cols);
    if (a->kind == AX_NORM_LAYER)
        IN(s1, ACCUM, a->rows);
    IN(s2, ACCUM, a->rows);
    const bool added = index % 12 < 6;
    NORM_GRADS(index, added, 24);
    return true;
}

bool kc_build_norm_grad(kernel_case *c, int index)
{
    ARGS(norm_grad);
    if (!kc_takes(c, KC_ACTIVATION) || !norm_grid(index, 12, &a->rows, &a->cols, &a->kind))
        return false;
    NORM_INPUTS();
    IN(weight, ACCUM, a->cols);
    const bool added = index % 12 < 6 || a->cols == 1; /* cols 1: without a summand dx is only rounding */
    NORM_GRADS(index, added, (double)a->cols + 36);
    return true;
}

/* Fills in targets: some are masked, some belong to the boxes of other ranks. */
static void fill_targets(kernel_case *c, int32_t *targets, int64_t rows, int64_t first, int64_t vocab)
{
    for (int64_t r = 0; r < rows; r++)
        targets[r] = (int32_t)(kc_integer(c, 0, 5) == 0   ? -1 - kc_integer(c, 0, 99)
                               : kc_integer(c, 0, 5) == 0 ? kc_integer(c, 0, first + 2 * vocab + 1)
                                                          : first + kc_integer(c, 0, vocab));
}

/* Makes cases of ce_stats. In every third case the rows ascend, so that a kernel that computes maximum and
 * sum in one pass rescales its sum often; the first third of such a row is -infinity, as masked logits are.
 */
bool kc_build_ce_stats(kernel_case *c, int index)
{
    ARGS(ce_stats);
    if (!kc_takes(c, KC_ACTIVATION) || !kc_grid(index, 2, &a->rows, &a->vocab))
        return false;
    a->first = index % 2 ? 11 : 0;
    a->ld = a->vocab + index % 3;
    DTYPE(dtype, c->dtype);
    void *logits = IN(logits, c->dtype, a->rows * a->ld);
    for (int64_t i = 0; index % 3 == 2 && i < a->rows * a->ld; i++)
        ax_store(c->dtype, logits, i,
                 i % a->ld < a->vocab / 3 ? -INFINITY : 40.0 * (double)(i % a->ld) / (double)a->ld);
    fill_targets(c, RAW(targets, KC_IN, AX_I32, a->rows, 0), a->rows, a->first, a->vocab);
    OUT(max, ACCUM, a->rows, 0);
    OUT(sum, ACCUM, a->rows, (double)a->vocab + 16);
    OUT(target_logit, ACCUM, a->rows, 0);
    return true;
}

/* Makes cases of ce_rank. The logits are small integers, so that many are equal; as in a part of a split
 * vocabulary, the target's logit need not be one of them. */
bool kc_build_ce_rank(kernel_case *c, int index)
{
    ARGS(ce_rank);
    if (!kc_takes(c, KC_ACTIVATION) || !kc_grid(index, 2, &a->rows, &a->vocab))
        return false;
    a->first = index % 2 ? 11 : 0;
    a->ld = a->vocab + index % 3;
    DTYPE(dtype, c->dtype);
    void *logits = IN(logits, c->dtype, a->rows * a->ld), *target = IN(target_logit, ACCUM, a->rows);
    int32_t *targets = RAW(targets, KC_IN, AX_I32, a->rows, 0);
    fill_targets(c, targets, a->rows, a->first, a->vocab);
    for (int64_t i = 0; i < a->rows * a->ld; i++)
        ax_store(c->dtype, logits, i, (double)kc_integer(c, -4, 4));
    for (int64_t r = 0; r < a->rows; r++)
        ax_store(ax_dtype_accum(c->dtype), target, r, (double)kc_integer(c, -4, 4));
    RAW(rank, KC_OUT, AX_I32, a->rows, 0);
    return true;
}

/* Makes cases of ce_rescale. The local maximum is at most the global one; -infinity for a rank without
 * vocabulary entries, where the sum is 0. */
bool kc_build_ce_rescale(kernel_case *c, int index)
{
    ARGS(ce_rescale);
    if (!kc_takes(c, KC_ACCUM) || index >= kc_length_count)
        return false;
    a->rows = kc_lengths[index];
    DTYPE(dtype, c->dtype);
    void *local = IN(local_max, c->dtype, a->rows), *max = IN(max, c->dtype, a->rows),
         *sum = INOUT(sum, c->dtype, a->rows, 16);
    for (int64_t r = 0; r < a->rows; r++) {
        ax_store(c->dtype, max, r, fmax(ax_load(c->dtype, max, r), ax_load(c->dtype, local, r)));
        if (r % 7 == 3) {
            ax_store(c->dtype, local, r, -INFINITY);
            ax_store(c->dtype, sum, r, 0);
        }
    }
    return true;
}

bool kc_build_ce_loss(kernel_case *c, int index)
{
    ARGS(ce_loss);
    int64_t vocab;
    if (!kc_takes(c, KC_ACCUM) || !kc_grid(index, 1, &a->rows, &vocab))
        return false;
    DTYPE(dtype, c->dtype);
    IN(max, c->dtype, a->rows);
    void *sum = IN(sum, c->dtype, a->rows);
    for (int64_t r = 0; r < a->rows; r++)
        ax_store(c->dtype, sum, r, 1 + fabs(ax_load(c->dtype, sum, r)));
    IN(target_logit, c->dtype, a->rows);
    fill_targets(c, RAW(targets, KC_IN, AX_I32, a->rows, 0), a->rows, 0, vocab);
    OUT(loss, c->dtype, a->rows, 16);
    INOUT(total, AX_F64, 1, (double)a->rows + 16);
    return true;
}

/* Makes cases of class_targets: valid classes, invalid classes, and the id to ignore, which may be a valid
 * class. */
bool kc_build_class_targets(kernel_case *c, int index)
{
    ARGS(class_targets);
    if (!kc_takes(c, KC_TYPE(AX_I32) | KC_TYPE(AX_I64)) || index / 2 >= kc_length_count)
        return false;
    a->rows = kc_lengths[index / 2];
    a->classes = 5;
    a->ignore = index % 2 ? -100 : 3;
    DTYPE(dtype, c->dtype);
    void *x = RAW(x, KC_IN, c->dtype, a->rows, 0);
    for (int64_t r = 0; r < a->rows; r++)
        ax_store(c->dtype, x, r,
                 r % 11 == 3   ? -100
                 : r % 13 == 5 ? 2147483647
                               : (double)kc_integer(c, -1, 6));
    if (c->dtype == AX_I64 && a->rows > 2) /* the low 32 bits are a valid class */
        ((int64_t *)x)[2] = (int64_t)7 << 32 | 1;
    RAW(y, KC_OUT, AX_I32, a->rows, 0);
    double *counts = RAW(counts, KC_INOUT, AX_F64, 2, 0);
    counts[0] = 4, counts[1] = 1;
    return true;
}

bool kc_build_ce_grad(kernel_case *c, int index)
{
    ARGS(ce_grad);
    if (!kc_takes(c, KC_ACTIVATION) || !kc_grid(index, 2, &a->rows, &a->vocab))
        return false;
    a->first = index % 2 ? 11 : 0;
    a->ld = a->vocab + index % 3;
    a->scale = 1.0 / 37;
    DTYPE(dtype, c->dtype);
    kc_put_batch(c, FIELD(now), index);
    for (int which = 0; which < 2; which++) {
        void *data = which ? IN(sum, ACCUM, a->rows) : IN(max, ACCUM, a->rows);
        for (int64_t r = 0; r < a->rows; r++)
            ax_store(ACCUM, data, r, which ? 3 + kc_normal(c) / 2 : 2.5);
    }
    fill_targets(c, RAW(targets, KC_IN, AX_I32, a->rows, 0), a->rows, a->first, a->vocab);
    INOUT(logits, c->dtype, a->rows * a->ld, 32);
    return true;
}
