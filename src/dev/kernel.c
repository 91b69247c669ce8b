/* The table of kernels. Each row has the checks of a call's arguments, the count of floating-point
 * operations, and the list of operands, from which the bytes that the call moves are counted. If a kernel of
 * AX_KERNELS has no row here, this file does not compile. */
#include "dev/attention.h"
#include "dev/backend.h"

/* A row of the table. The function `operands` returns the bytes of memory that the call reads and writes.
 * Unless `each` is NULL, it also calls `each` for each operand whose address is not NULL. */
typedef struct kernel_row {
    const char *name;
    size_t size, used; /* size: bytes of the argument struct; used: bytes up to the end of its last field */
    ax_status (*check)(const void *args);
    double (*flops)(const void *args);
    double (*operands)(const void *args, ax_operand_fn *each, void *user);
} kernel_row;

/* ---- element types ------------------------------------------------------------------------------- */

#define BIT(dtype) (1u << (dtype))
enum {
    ACCUM = BIT(AX_F64) | BIT(AX_F32),
    ACTIVATION = ACCUM | BIT(AX_BF16) | BIT(AX_F16),
    ALL = BIT(AX_DTYPE_COUNT) - 1
};

static ax_status check_dtype(const char *kernel, const char *field, ax_dtype dtype, unsigned legal)
{
    AX_CHECK((unsigned)dtype < AX_DTYPE_COUNT && (legal & BIT(dtype)), AX_ERR_USAGE,
             "kernel %s does not support %s as its `%s` (axonn/kernels.h says which dtypes it supports)",
             kernel, ax_dtype_name(dtype), field);
    return AX_OK;
}

/* Checks the dtypes of a matrix and of the vector of its kept elements (compress, expand). */
static ax_status check_masked(const char *kernel, ax_dtype x, ax_dtype y)
{
    AX_TRY(check_dtype(kernel, "x_dtype", x, ACCUM));
    return check_dtype(kernel, "y_dtype", y, x == AX_F64 ? BIT(AX_F64) : ACTIVATION & ~BIT(AX_F64));
}

static ax_status check_activation(const char *kernel, ax_activation kind)
{
    AX_CHECK((unsigned)kind < AX_ACTIVATION_COUNT, AX_ERR_USAGE,
             "kernel %s: %d is not a value of ax_activation", kernel, (int)kind);
    return AX_OK;
}

static ax_status check_epilogue(const ax_gemm_args *a)
{
    bool none = a->epilogue == AX_EPILOGUE_NONE, grad = a->epilogue == AX_EPILOGUE_ACTIVATION_GRAD;
    AX_CHECK(none || grad || a->epilogue == AX_EPILOGUE_ACTIVATION, AX_ERR_USAGE,
             "kernel gemm: epilogue %d is not a value of ax_epilogue", a->epilogue);
    AX_CHECK(!none || !a->preact, AX_ERR_USAGE, "kernel gemm: without an epilogue, preact must be NULL");
    AX_CHECK(none || (a->c_dtype == a->dtype && !a->accumulate && a->ldc == ax_max(a->n, 1)), AX_ERR_USAGE,
             "kernel gemm: with an epilogue, c_dtype must be dtype, ldc must be n, and accumulate false");
    AX_CHECK(!grad || (a->preact && !a->bias), AX_ERR_USAGE,
             "kernel gemm: epilogue AX_EPILOGUE_ACTIVATION_GRAD needs preact, and bias must be NULL");
    return check_activation("gemm", a->kind);
}

static ax_status check_col_sums(const ax_gemm_args *a)
{
    AX_CHECK(!a->col_sums || (a->trans_a && !a->bias && a->epilogue == AX_EPILOGUE_NONE), AX_ERR_USAGE,
             "kernel gemm: col_sums needs a transposed a, no bias and no epilogue (see ax_gemm_args)");
    return AX_OK;
}

static ax_status check_norm(const char *kernel, ax_norm_kind kind, const void *sum, const void *s1)
{
    AX_CHECK(kind == AX_NORM_LAYER || kind == AX_NORM_RMS, AX_ERR_USAGE,
             "kernel %s: %d is not a value of ax_norm_kind", kernel, (int)kind);
    AX_CHECK(kind == AX_NORM_LAYER || (!sum && !s1), AX_ERR_USAGE,
             "kernel %s: RMSNorm has no mean, so `sum` and `s1` must be NULL", kernel);
    return AX_OK;
}

static ax_status check_head_dim(const char *kernel, int64_t head_dim)
{
    AX_CHECK(head_dim % 2 == 0, AX_ERR_USAGE, "kernel %s rotates pairs, so head_dim must be even, not %lld",
             kernel, (long long)head_dim);
    return AX_OK;
}

/* Checks that rows of `cols` elements do not overlap if they begin `ld` elements apart. */
static ax_status check_ld(const char *kernel, const char *field, int64_t ld, int64_t cols)
{
    AX_CHECK(ld >= cols, AX_ERR_USAGE,
             "kernel %s: %s is %lld; it must be at least %lld, the elements of a row", kernel, field,
             (long long)ld, (long long)cols);
    return AX_OK;
}

/* Checks that a kernel's `table` is not NULL, unless the call has no arrays. `table` is the copy, in host
 * memory, of the kernel's list of arrays; pass_table and pass_sums read the operands of the call from this
 * copy. */
static ax_status check_table(const char *kernel, int64_t arrays, const void *table)
{
    AX_CHECK(!arrays || table, AX_ERR_USAGE,
             "kernel %s: `table` is NULL; it must be the copy of `array` in host memory", kernel);
    return AX_OK;
}

static ax_status check_update(const char *kernel, const ax_update_args *a)
{
    const unsigned narrow = BIT(a->copy_dtype) & (BIT(AX_BF16) | BIT(AX_F16));
    AX_TRY(check_table(kernel, a->arrays, a->table));
    for (int64_t i = 0; i < a->arrays; i++)
        if (a->table[i].n)
            AX_TRY(check_dtype(kernel, "g_dtype", a->table[i].g_dtype, BIT(a->dtype) | narrow));
    return AX_OK;
}

/* Checks that kernel glu_grad has results beside dgate and dup only with a scale. */
static ax_status check_scaled(const ax_glu_grad_args *a)
{
    AX_CHECK(a->scale || (!a->y && !a->dscale), AX_ERR_USAGE,
             "kernel glu_grad: without `scale`, y and dscale must be NULL");
    return AX_OK;
}

static ax_status check_chosen(const ax_attention_args *a)
{
    AX_CHECK(!a->chosen || (a->choosers > 0 && a->heads % a->choosers == 0 && a->chosen_keys > 0),
             AX_ERR_USAGE,
             "kernel attention: with `chosen`, heads must be a multiple of choosers (%lld and %lld), and "
             "chosen_keys above 0",
             (long long)a->heads, (long long)a->choosers);
    return AX_OK;
}

/* Checks that each head of keys and values has as many heads of queries. */
static ax_status check_heads(const char *kernel, int64_t heads, int64_t kv_heads)
{
    AX_CHECK(kv_heads > 0 && heads % kv_heads == 0, AX_ERR_USAGE,
             "kernel %s: heads must be a multiple of kv_heads, which is above 0 (%lld and %lld)", kernel,
             (long long)heads, (long long)kv_heads);
    return AX_OK;
}

static ax_status check_turn(const ax_turn_args *a)
{
    AX_CHECK(a->head_dim <= AX_TURN_WIDTH, AX_ERR_USAGE,
             "kernel turn: head_dim is %lld; it may be %d at most", (long long)a->head_dim, AX_TURN_WIDTH);
    return AX_OK;
}

static ax_status check_choose(const ax_choose_args *a)
{
    AX_CHECK(a->keys > 0 || (a->keys == 0 && a->share > 0 && a->share <= 1), AX_ERR_USAGE,
             "kernel choose: keys is %lld and share %g: keys must be above 0, or 0 with a share in (0, 1]",
             (long long)a->keys, a->share);
    return AX_OK;
}

static ax_status check_top_k(const char *kernel, int64_t experts, int64_t top_k)
{
    AX_CHECK(top_k >= 1 && top_k <= experts, AX_ERR_USAGE,
             "kernel %s: top_k is %lld; it must be 1 to %lld, the number of experts", kernel,
             (long long)top_k, (long long)experts);
    return AX_OK;
}

static ax_status check_route_grad(const ax_route_grad_args *a)
{
    AX_CHECK(a->share || (a->balance == 0 && a->z == 0), AX_ERR_USAGE,
             "kernel route_grad: with `balance` or `z`, `share` must not be NULL");
    return AX_OK;
}

static ax_status check_grouped(const ax_gemm_grouped_args *a)
{
    AX_CHECK(!a->trans_a || !a->trans_b, AX_ERR_USAGE,
             "kernel gemm_grouped: with trans_a, b must not be transposed");
    return AX_OK;
}

/* ---- extents ------------------------------------------------------------------------------------- */

/* Returns the number of elements from the start of the first row to the end of the last, for `rows` rows of
 * `cols` elements that begin `ld` elements apart. */
static int64_t span(int64_t rows, int64_t cols, int64_t ld)
{
    return rows > 0 && cols > 0 ? (rows - 1) * ld + cols : 0;
}

static int64_t box_count(const int64_t n[4]) { return n[0] * n[1] * n[2] * n[3]; }

static int64_t box_span(const int64_t n[4], const int64_t stride[4])
{
    int64_t last = 0;
    for (int i = 0; i < 4; i++)
        last += (n[i] - 1) * stride[i];
    return box_count(n) ? last + 1 : 0;
}

/* Returns the position of the first query; with positions of sequences, which only the device can read, the
 * last that is possible. */
static int64_t query_offset(const ax_attention_args *a)
{
    return a->positions ? a->kv_len - a->q_len : a->q_offset;
}

/* Returns the number of keys that the causal mask lets the last query of the call see. */
static int64_t visible_keys(const ax_attention_args *a)
{
    return ax_max(0, ax_min(a->kv_len, query_offset(a) + a->q_len));
}

/* Returns how many of the keys that the causal mask allows (visible_keys) are in the window of some query. */
static int64_t window_keys(const ax_attention_args *a)
{
    int64_t all = visible_keys(a);
    return a->window > 0 && a->window < all ? ax_min(all, a->window + a->q_len - 1) : all;
}

/* Returns how many keys of all heads a sequence's queries read. */
static int64_t read_keys(const ax_attention_args *a)
{
    const int64_t all = window_keys(a) * a->kv_heads;
    return a->chosen ? ax_min(all, a->q_len * a->choosers * a->chosen_keys) : all;
}

/* Returns the elements from the start of the first key head's rows that kernel choose reads to the end of the
 * last one's. */
static int64_t choose_span(const ax_choose_args *a)
{
    const ax_attention_args seen = ax_attention_of_choose(a);
    return span(a->batch, span(a->kv_heads, span(visible_keys(&seen), a->width, a->k_ld), a->k_step),
                a->k_batch_stride);
}

static int64_t choose_keys_seen(const ax_choose_args *a)
{
    const ax_attention_args seen = ax_attention_of_choose(a);
    return window_keys(&seen);
}

/* Returns the elements from the start of the first group's matrix to the end of the last one's, of which each
 * spans `one`. */
static int64_t groups_span(const ax_gemm_grouped_args *a, int64_t one)
{
    return a->groups && one ? (a->groups - 1) * a->stride + one : 0;
}

/* ---- floating-point operations ------------------------------------------------------------------- */

enum { TRANSCENDENTAL = 8 }; /* operations that a transcendental function counts as */

/* Floating-point operations per element: `value` of the activation function, `slope` of its gradient. */
static const struct {
    int value, slope;
} activation_work[AX_ACTIVATION_COUNT] = {[AX_GELU_TANH] = {6 + TRANSCENDENTAL, 12 + TRANSCENDENTAL},
                                          [AX_GELU_EXACT] = {6 + TRANSCENDENTAL, 12 + TRANSCENDENTAL},
                                          [AX_RELU] = {1, 2},
                                          [AX_TANH] = {TRANSCENDENTAL, 4 + TRANSCENDENTAL},
                                          [AX_SILU] = {3 + TRANSCENDENTAL, 6 + TRANSCENDENTAL}};

/* Returns the number of (query, key) pairs that the causal mask allows: key <= min(q_offset + query, kv_len -
 * 1). */
static double pairs_below(int64_t q_len, int64_t kv_len, int64_t q_offset)
{
    if (q_offset < 0) /* the first queries come before all keys and see none */
        return pairs_below(ax_max(0, q_len + q_offset), kv_len, 0);
    /* Query i has min(q_offset + i + 1, kv_len) keys: the number grows for `ramp` queries and then is
     * constant. */
    int64_t ramp = ax_max(0, ax_min(q_len, kv_len - q_offset));
    return (double)ramp * (double)q_offset + (double)ramp * (double)(ramp + 1) / 2 +
           (double)(q_len - ramp) * (double)kv_len;
}

/* Returns the number of (query, key) pairs of one head of one sequence that the causal mask and the window
 * allow. Document boundaries are ignored. */
static double visible_pairs(int64_t q_len, int64_t kv_len, int64_t q_offset, int64_t window)
{
    double hidden = window > 0 ? pairs_below(q_len, kv_len, q_offset - window) : 0;
    return pairs_below(q_len, kv_len, q_offset) - hidden;
}

/* Returns the number of (query, key) pairs of one head of one sequence for which attention is computed. */
static double attention_pairs(const ax_attention_args *a)
{
    const double all = visible_pairs(a->q_len, a->kv_len, query_offset(a), a->window);
    return a->chosen ? fmin(all, (double)a->q_len * (double)a->chosen_keys) : all;
}

static double choose_pairs(const ax_choose_args *a)
{
    const ax_attention_args seen = ax_attention_of_choose(a);
    return visible_pairs(a->q_len, a->kv_len, query_offset(&seen), a->window) * (double)(a->batch * a->heads);
}

/* Returns the floating-point operations of dropout per (query, key) pair. For each pair a random number is
 * drawn. */
static double drop_flops(const ax_attention_dropout *drop) { return drop->p > 0 ? 2 + TRANSCENDENTAL : 0; }

/* ---- rows ---------------------------------------------------------------------------------------- */

static double pass_operands(const ax_operand *list, size_t n, ax_operand_fn *each, void *user)
{
    double bytes = 0;
    for (size_t i = 0; i < n; i++) {
        if (!list[i].at)
            continue;
        int times = list[i].access == AX_READ_WRITE ? 2 : 1;
        bytes += (double)list[i].count * (double)ax_dtype_size(list[i].dtype) * times;
        if (each)
            each(user, &list[i]);
    }
    return bytes;
}

/* Calls `each` (may be NULL) for the arrays to which the entries of an optimizer kernel's table point.
 * Returns the bytes that the kernel reads and writes in these arrays. */
static double pass_table(const ax_update_array *table, int64_t arrays, ax_dtype dtype, ax_dtype copy_dtype,
                         ax_operand_fn *each, void *user)
{
    double bytes = 0;
    for (const ax_update_array *u = table; u < table + arrays; u++) {
        const ax_operand list[] = {{u->w, u->n, u->n, dtype, AX_READ_WRITE},
                                   {u->m, u->n, u->n, dtype, AX_READ_WRITE},
                                   {u->v, u->n, u->n, dtype, AX_READ_WRITE},
                                   {u->g, u->n, u->n, u->g_dtype, AX_READ},
                                   {u->copy, u->n, u->n, copy_dtype, AX_WRITE}};
        bytes += pass_operands(list, AX_COUNT(list), each, user);
    }
    return bytes;
}

/* Calls `each` (may be NULL) for the arrays whose squares kernel sumsq sums, and once for the array of its
 * results. Returns the bytes that the kernel reads and writes in them. */
static double pass_sums(const ax_sumsq_args *a, ax_operand_fn *each, void *user)
{
    double bytes = 0;
    int64_t span = 0;
    for (int64_t i = 0; i < a->arrays; i++) {
        const ax_sumsq_array *s = &a->table[i];
        const ax_operand x = {s->x, s->n, s->n, a->dtype, AX_READ};
        bytes += pass_operands(&x, 1, each, user);
        span = ax_max(span, s->to + 1);
    }
    const ax_operand sums = {a->out, a->arrays, span, AX_F64, AX_WRITE};
    return bytes + pass_operands(&sums, 1, each, user);
}

/* Returns the number of elements of all arrays of a call of kernel sumsq. */
static double summed(const ax_sumsq_args *a)
{
    double n = 0;
    for (int64_t i = 0; i < a->arrays; i++)
        n += (double)a->table[i].n;
    return n;
}

/* ROW(kernel, last, checks, flops, operands …) defines a row; `a` points to the call's argument struct.
 *   last      the last field of the argument struct; two calls are compared up to its end
 *   checks    statements: TAKES(field, set of legal dtypes), or NO_DTYPE; ROWS_FIT(field, columns); others
 *   flops     a double; multiply and add count as two
 *   operands  IN, OUT or INOUT(address or NULL, dtype, extent), or OPERAND(access, address or NULL, dtype,
 *             extent). An extent is VECTOR(n), MATRIX(rows, cols, ld), DENSE(rows, cols), BOX(n, stride),
 *             BYTES(pointer to a struct), or two numbers: how many elements are accessed, and how many lie
 *             between the address and the end of the last of them */
#define ROW(kernel, last, checks, flops, ...) TABLE_ROW(kernel, last, checks, flops, 0.0, __VA_ARGS__)

/* Defines the row of a kernel that works on the arrays listed in a->table. All parameters but `table` are
 * those of ROW. `table` is an expression that calls `each` for the listed arrays and counts their bytes:
 * TABLE for an optimizer kernel, SUMS for sumsq. */
#define TABLE_ROW(kernel, last, checks, flops, table, ...)                                                   \
    static ax_status kernel##_check(const void *args)                                                        \
    {                                                                                                        \
        static const char name[] = #kernel;                                                                  \
        const ax_##kernel##_args *a = args;                                                                  \
        (void)name, (void)a;                                                                                 \
        checks;                                                                                              \
        return AX_OK;                                                                                        \
    }                                                                                                        \
    static double kernel##_flops(const void *args)                                                           \
    {                                                                                                        \
        const ax_##kernel##_args *a = args;                                                                  \
        (void)a;                                                                                             \
        return flops;                                                                                        \
    }                                                                                                        \
    static double kernel##_operands(const void *args, ax_operand_fn *each, void *user)                       \
    {                                                                                                        \
        const ax_##kernel##_args *a = args;                                                                  \
        const ax_operand list[] = {__VA_ARGS__};                                                             \
        _Static_assert(sizeof list > 0, "kernel " #kernel " has no operands");                               \
        return pass_operands(list, AX_COUNT(list), each, user) + (table);                                    \
    }                                                                                                        \
    static const kernel_row kernel##_row = {#kernel,           sizeof(ax_##kernel##_args),                   \
                                            END(kernel, last), kernel##_check,                               \
                                            kernel##_flops,    kernel##_operands};                           \
    _Static_assert(sizeof(ax_##kernel##_args) - END(kernel, last) < _Alignof(ax_##kernel##_args),            \
                   "the argument struct has another field after " #last)

#define END(kernel, last)                                                                                    \
    (offsetof(ax_##kernel##_args, last) + sizeof(((const ax_##kernel##_args *)NULL)->last))
#define TAKES(field, legal) AX_TRY(check_dtype(name, #field, a->field, legal))
#define ROWS_FIT(ld, cols) AX_TRY(check_ld(name, #ld, a->ld, cols))
#define NO_DTYPE (void)0 /* the kernel has no dtype field */
#define TABLE pass_table(a->table, a->arrays, T, a->copy_dtype, each, user)
#define SUMS pass_sums(a, each, user)

#define T a->dtype
#define A ax_dtype_accum(a->dtype)
#define OPERAND(access, at, dtype, ...)                                                                      \
    {                                                                                                        \
        at, __VA_ARGS__, dtype, access                                                                       \
    }
#define IN(...) OPERAND(AX_READ, __VA_ARGS__)
#define OUT(...) OPERAND(AX_WRITE, __VA_ARGS__)
#define INOUT(...) OPERAND(AX_READ_WRITE, __VA_ARGS__)
#define VECTOR(n) n, n
#define MATRIX(rows, cols, ld) (rows) * (cols), span(rows, cols, ld)
#define DENSE(rows, cols) VECTOR((rows) * (cols))
#define BOX(n, stride) box_count(n), box_span(n, stride)
#define BYTES(pointer) VECTOR((int64_t)sizeof *(pointer))
#define REAL(n) ((double)(n))
#define AREA (REAL(a->rows) * REAL(a->cols))
#define RMS (a->kind == AX_NORM_RMS)

/* clang-format off */
ROW(gemm, accumulate_sums,
    TAKES(dtype, ACTIVATION); TAKES(c_dtype, BIT(T) | BIT(A)); AX_TRY(check_epilogue(a)); AX_TRY(check_col_sums(a)),
    2 * REAL(a->m) * REAL(a->n) * REAL(a->k),
    IN(a->a, T, MATRIX(a->trans_a ? a->k : a->m, a->trans_a ? a->m : a->k, a->lda)),
    IN(a->b, T, MATRIX(a->trans_b ? a->n : a->k, a->trans_b ? a->k : a->n, a->ldb)),
    IN(a->bias, A, VECTOR(a->n)),
    OPERAND(a->accumulate ? AX_READ_WRITE : AX_WRITE, a->c, a->c_dtype, MATRIX(a->m, a->n, a->ldc)),
    OPERAND(a->epilogue == AX_EPILOGUE_ACTIVATION_GRAD ? AX_READ : AX_WRITE, a->preact, T, DENSE(a->m, a->n)),
    OPERAND(a->accumulate_sums ? AX_READ_WRITE : AX_WRITE, a->col_sums, A, VECTOR(a->m)));

ROW(bias_add, dtype, TAKES(dtype, ACTIVATION); ROWS_FIT(ld, a->cols), AREA,
    IN(a->x, T, MATRIX(a->rows, a->cols, a->ld)), IN(a->bias, A, VECTOR(a->cols)),
    OUT(a->y, T, MATRIX(a->rows, a->cols, a->ld)));

ROW(col_sum, dtype, TAKES(dtype, ACTIVATION), AREA,
    IN(a->x, T, MATRIX(a->rows, a->cols, a->ld)), INOUT(a->out, A, VECTOR(a->cols)));

ROW(norm, kind, TAKES(dtype, ACTIVATION); AX_TRY(check_norm(name, a->kind, a->sum, NULL)),
    AREA * ((a->b ? 9 : 8) - (RMS ? 4 : 0)),
    IN(a->a, T, DENSE(a->rows, a->cols)), IN(a->b, T, DENSE(a->rows, a->cols)),
    IN(a->weight, A, VECTOR(a->cols)), IN(a->bias, A, VECTOR(a->cols)),
    OUT(a->b ? a->x : NULL, T, DENSE(a->rows, a->cols)),
    OUT(a->sum, A, VECTOR(a->rows)), OUT(a->m2, A, VECTOR(a->rows)),
    OUT(a->y, T, DENSE(a->rows, a->cols)));

ROW(norm_stats, kind, TAKES(dtype, ACTIVATION); AX_TRY(check_norm(name, a->kind, a->sum, NULL)),
    AREA * ((a->b ? 5 : 4) - (RMS ? 2 : 0)),
    IN(a->a, T, DENSE(a->rows, a->cols)), IN(a->b, T, DENSE(a->rows, a->cols)),
    OUT(a->b ? a->x : NULL, T, DENSE(a->rows, a->cols)),
    OUT(a->sum, A, VECTOR(a->rows)), OUT(a->m2, A, VECTOR(a->rows)));

ROW(norm_recentre, dtype, TAKES(dtype, ACCUM), 6 * REAL(a->rows),
    IN(a->local_sum, T, VECTOR(a->rows)), IN(a->global_sum, T, VECTOR(a->rows)),
    INOUT(a->m2, T, VECTOR(a->rows)));

ROW(norm_apply, kind, TAKES(dtype, ACTIVATION); AX_TRY(check_norm(name, a->kind, a->sum, NULL)),
    AREA * (RMS ? 2 : 4),
    IN(a->x, T, DENSE(a->rows, a->cols)),
    IN(a->sum, A, VECTOR(a->rows)), IN(a->m2, A, VECTOR(a->rows)),
    IN(a->weight, A, VECTOR(a->cols)), IN(a->bias, A, VECTOR(a->cols)),
    OUT(a->y, T, DENSE(a->rows, a->cols)));

ROW(norm_grad, kind, TAKES(dtype, ACTIVATION); AX_TRY(check_norm(name, a->kind, a->sum, NULL)),
    AREA * ((a->add ? 18 : 17) - (RMS ? 5 : 0)),
    IN(a->x, T, DENSE(a->rows, a->cols)), IN(a->dy, T, DENSE(a->rows, a->cols)),
    IN(a->add, T, DENSE(a->rows, a->cols)),
    IN(a->sum, A, VECTOR(a->rows)), IN(a->m2, A, VECTOR(a->rows)),
    IN(a->weight, A, VECTOR(a->cols)),
    OUT(a->dx, T, DENSE(a->rows, a->cols)),
    INOUT(a->dweight, A, VECTOR(a->cols)), INOUT(a->dbias, A, VECTOR(a->cols)));

ROW(norm_grad_stats, kind, TAKES(dtype, ACTIVATION); AX_TRY(check_norm(name, a->kind, a->sum, a->s1)),
    AREA * (RMS ? 4 : 6),
    IN(a->x, T, DENSE(a->rows, a->cols)), IN(a->dy, T, DENSE(a->rows, a->cols)),
    IN(a->sum, A, VECTOR(a->rows)), IN(a->m2, A, VECTOR(a->rows)),
    IN(a->weight, A, VECTOR(a->cols)),
    OUT(a->s1, A, VECTOR(a->rows)), OUT(a->s2, A, VECTOR(a->rows)));

ROW(norm_grad_apply, kind, TAKES(dtype, ACTIVATION); AX_TRY(check_norm(name, a->kind, a->sum, a->s1)),
    AREA * ((a->add ? 12 : 11) - (RMS ? 3 : 0)),
    IN(a->x, T, DENSE(a->rows, a->cols)), IN(a->dy, T, DENSE(a->rows, a->cols)),
    IN(a->add, T, DENSE(a->rows, a->cols)),
    IN(a->sum, A, VECTOR(a->rows)), IN(a->m2, A, VECTOR(a->rows)),
    IN(a->weight, A, VECTOR(a->cols)),
    IN(a->s1, A, VECTOR(a->rows)), IN(a->s2, A, VECTOR(a->rows)),
    OUT(a->dx, T, DENSE(a->rows, a->cols)),
    INOUT(a->dweight, A, VECTOR(a->cols)), INOUT(a->dbias, A, VECTOR(a->cols)));

#define ROWS (a->batch * a->q_len * a->heads)
#define QUERIES MATRIX(a->batch * a->q_len, a->heads * a->head_dim, a->q_ld)
#define OUTPUTS VECTOR(ROWS * a->head_dim)
#define KEYS                                                                                                 \
    a->batch *read_keys(a) * a->head_dim,                                                     \
        span(a->batch, span(visible_keys(a), a->kv_heads * a->head_dim, a->kv_ld),                           \
             ax_attention_kv_batch(a))
#define GRAD_KEYS MATRIX(a->batch * a->q_len, a->kv_heads * a->head_dim, a->kv_ld)

/* Per (query, key) pair: head_dim multiply-adds for the score, and as many for the weighted sum of values. */
ROW(attention, dtype,
    TAKES(dtype, ACTIVATION); ROWS_FIT(q_ld, a->heads * a->head_dim); ROWS_FIT(kv_ld, a->kv_heads * a->head_dim);
    AX_TRY(check_heads(name, a->heads, a->kv_heads)); AX_TRY(check_chosen(a)),
    attention_pairs(a) * REAL(a->batch * a->heads) * (4 * REAL(a->head_dim) + TRANSCENDENTAL + drop_flops(&a->drop)),
    IN(a->chosen, AX_I64, DENSE(a->batch * a->q_len * a->choosers, ax_ceil_div(a->kv_len, 64))),
    IN(a->q, T, QUERIES), IN(a->k, T, KEYS), IN(a->v, T, KEYS),
    IN(a->doc_start, AX_I32, DENSE(a->batch, a->q_len)), IN(a->positions, AX_I32, DENSE(a->batch, a->q_len)),
    IN(a->drop.now, AX_U8, BYTES(a->drop.now)), OUT(a->o, T, OUTPUTS), OUT(a->lse, A, VECTOR(ROWS)));

/* Per (query, key) pair: head_dim multiply-adds for each of the recomputed score, dp (the gradient of the
 * probability), dq, dk and dv. The kernel writes `delta` and reads it again, so the bytes of `delta` count
 * twice. */
ROW(attention_grad, dtype,
    TAKES(dtype, ACTIVATION); ROWS_FIT(q_ld, a->heads * a->head_dim); ROWS_FIT(kv_ld, a->kv_heads * a->head_dim);
    AX_TRY(check_heads(name, a->heads, a->kv_heads)),
    visible_pairs(a->q_len, a->q_len, 0, a->window) * REAL(a->batch * a->heads) *
        (10 * REAL(a->head_dim) + TRANSCENDENTAL + drop_flops(&a->drop)),
    IN(a->q, T, QUERIES), IN(a->k, T, GRAD_KEYS), IN(a->v, T, GRAD_KEYS), IN(a->o, T, OUTPUTS),
    IN(a->lse, A, VECTOR(ROWS)), IN(a->dout, T, OUTPUTS),
    IN(a->doc_start, AX_I32, DENSE(a->batch, a->q_len)), IN(a->drop.now, AX_U8, BYTES(a->drop.now)),
    OUT(a->delta, A, 2 * ROWS, ROWS),
    OUT(a->dq, T, QUERIES), OUT(a->dk, T, GRAD_KEYS), OUT(a->dv, T, GRAD_KEYS));

/* For each row of x the kernel reads one row of a->table, which may be anywhere in this table. */
ROW(rope, inverse,
    TAKES(dtype, ACTIVATION); AX_TRY(check_head_dim(name, a->head_dim)); ROWS_FIT(ld, a->heads * a->head_dim),
    3 * REAL(a->rows) * REAL(a->heads) * REAL(a->head_dim),
    IN(a->positions, AX_I32, VECTOR(a->rows)),
    IN(a->table, AX_F32, a->rows * a->head_dim, a->table_rows * a->head_dim),
    INOUT(a->x, T, MATRIX(a->rows, a->heads * a->head_dim, a->ld)));

ROW(turn, dtype,
    TAKES(dtype, ACTIVATION); AX_TRY(check_turn(a)); ROWS_FIT(ld, a->heads * a->head_dim),
    2 * REAL(a->rows) * REAL(a->heads) * REAL(a->head_dim) * REAL(a->head_dim),
    IN(a->turn, A, VECTOR(a->kv_heads * a->head_dim * a->head_dim)),
    INOUT(a->x, T, MATRIX(a->rows, a->heads * a->head_dim, a->ld)));

/* Per score: `width` multiply-adds, and about ten passes of the search for the least score that is chosen. */
#define HEAD_QUERIES (a->batch * a->q_len * a->heads)
ROW(choose, group,
    TAKES(dtype, ACTIVATION); AX_TRY(check_choose(a)),
    choose_pairs(a) * (2 * REAL(a->width) + 10),
    IN(a->q, T, HEAD_QUERIES * a->width,
       span(a->batch * a->q_len, span(a->heads, a->width, a->q_step), a->q_ld)),
    IN(a->k, T, a->batch * choose_keys_seen(a) * a->kv_heads * a->width, choose_span(a)),
    IN(a->doc_start, AX_I32, DENSE(a->batch, a->q_len)), IN(a->positions, AX_I32, DENSE(a->batch, a->q_len)),
    OUT(a->chosen, AX_I64, DENSE(a->batch * a->q_len * ax_choosers(a), ax_ceil_div(a->kv_len, 64))));

/* For each id the kernel reads one row of a->table, which may be anywhere in this table. */
ROW(embedding, accumulate, TAKES(dtype, ACTIVATION), AREA * (a->accumulate ? 1 : 0),
    IN(a->table, T, a->rows * a->cols, a->count * a->cols), IN(a->ids, AX_I32, VECTOR(a->rows)),
    OPERAND(a->accumulate ? AX_READ_WRITE : AX_WRITE, a->y, T, DENSE(a->rows, a->cols)));

ROW(embedding_grad, table_dtype, TAKES(dtype, ACTIVATION); TAKES(table_dtype, BIT(T) | BIT(A)), AREA,
    IN(a->dy, T, DENSE(a->rows, a->cols)), IN(a->ids, AX_I32, VECTOR(a->rows)),
    INOUT(a->dtable, a->table_dtype, a->rows * a->cols, a->count * a->cols));

ROW(activation, kind, TAKES(dtype, ACTIVATION); AX_TRY(check_activation(name, a->kind)),
    REAL(a->n) * activation_work[a->kind].value,
    IN(a->x, T, VECTOR(a->n)), OUT(a->y, T, VECTOR(a->n)));

ROW(activation_grad, kind, TAKES(dtype, ACTIVATION); AX_TRY(check_activation(name, a->kind)),
    REAL(a->n) * activation_work[a->kind].slope,
    IN(a->x, T, VECTOR(a->n)), IN(a->dy, T, VECTOR(a->n)), OUT(a->dx, T, VECTOR(a->n)));

ROW(glu, kind,
    TAKES(dtype, ACTIVATION); AX_TRY(check_activation(name, a->kind)); ROWS_FIT(ld, a->cols),
    AREA * ((a->scale ? 2 : 1) + activation_work[a->kind].value),
    IN(a->gate, T, MATRIX(a->rows, a->cols, a->ld)), IN(a->up, T, MATRIX(a->rows, a->cols, a->ld)),
    IN(a->scale, A, a->rows, a->scales), IN(a->scale ? a->index : NULL, AX_I32, VECTOR(a->rows)),
    OUT(a->y, T, DENSE(a->rows, a->cols)));

ROW(glu_grad, kind,
    TAKES(dtype, ACTIVATION); AX_TRY(check_activation(name, a->kind)); ROWS_FIT(ld, a->cols);
    AX_TRY(check_scaled(a)),
    AREA * ((a->scale ? 7 : 3) + activation_work[a->kind].value + activation_work[a->kind].slope),
    IN(a->gate, T, MATRIX(a->rows, a->cols, a->ld)), IN(a->up, T, MATRIX(a->rows, a->cols, a->ld)),
    IN(a->dy, T, DENSE(a->rows, a->cols)),
    IN(a->scale, A, a->rows, a->scales), IN(a->scale ? a->index : NULL, AX_I32, VECTOR(a->rows)),
    OUT(a->dgate, T, MATRIX(a->rows, a->cols, a->ld)), OUT(a->dup, T, MATRIX(a->rows, a->cols, a->ld)),
    OUT(a->y, T, DENSE(a->rows, a->cols)), OPERAND(a->rows < a->scales ? AX_READ_WRITE : AX_WRITE, a->dscale, A, a->rows, a->scales));

ROW(add, dtype, TAKES(dtype, ACTIVATION), REAL(a->n),
    IN(a->a, T, VECTOR(a->n)), IN(a->b, T, VECTOR(a->n)), OUT(a->y, T, VECTOR(a->n)));

ROW(dropout, dtype, TAKES(dtype, ACTIVATION), AREA * (2 + TRANSCENDENTAL),
    IN(a->now, AX_U8, BYTES(a->now)),
    IN(a->x, T, DENSE(a->rows, a->cols)), OUT(a->y, T, DENSE(a->rows, a->cols)));

#define CHOICES VECTOR(a->rows * a->top_k)
#define TOKENS (a->samples * a->tokens)

ROW(route, renormalize, TAKES(dtype, ACCUM); AX_TRY(check_top_k(name, a->experts, a->top_k)),
    REAL(a->rows) * REAL(a->experts) * (4 + TRANSCENDENTAL),
    IN(a->logits, T, DENSE(a->rows, a->experts)), OUT(a->probs, T, DENSE(a->rows, a->experts)),
    OUT(a->lse, T, VECTOR(a->rows)), OUT(a->weight, T, CHOICES), OUT(a->choice, AX_I32, CHOICES));

ROW(admit, source, NO_DTYPE; AX_TRY(check_top_k(name, a->experts, a->top_k)), 0,
    IN(a->ids, AX_I32, VECTOR(TOKENS)), INOUT(a->choice, AX_I32, DENSE(TOKENS, a->top_k)),
    OUT(a->place, AX_I32, DENSE(TOKENS, a->top_k)), OUT(a->source, AX_I32, VECTOR(a->samples * a->experts * a->capacity)));

ROW(route_stats, dtype, TAKES(dtype, ACCUM); AX_TRY(check_top_k(name, a->experts, a->top_k)),
    REAL(TOKENS) * (REAL(a->experts) + REAL(a->top_k) + 2),
    IN(a->probs, T, DENSE(TOKENS, a->experts)), IN(a->lse, T, VECTOR(TOKENS)),
    IN(a->choice, AX_I32, DENSE(TOKENS, a->top_k)), IN(a->ids, AX_I32, VECTOR(TOKENS)),
    OUT(a->share, T, DENSE(a->samples, a->experts + 1)), INOUT(a->total, AX_F64, VECTOR(3 + a->experts)));

ROW(route_grad, renormalize,
    TAKES(dtype, ACTIVATION); AX_TRY(check_top_k(name, a->experts, a->top_k)); AX_TRY(check_route_grad(a)),
    REAL(TOKENS) * (6 * REAL(a->experts) + 6 * REAL(a->top_k)),
    IN(a->now, AX_U8, BYTES(a->now)), IN(a->probs, A, DENSE(TOKENS, a->experts)), IN(a->lse, A, VECTOR(TOKENS)),
    IN(a->weight, A, DENSE(TOKENS, a->top_k)), IN(a->dweight, A, DENSE(TOKENS, a->top_k)),
    IN(a->share, A, DENSE(a->samples, a->experts + 1)), IN(a->choice, AX_I32, DENSE(TOKENS, a->top_k)),
    IN(a->ids, AX_I32, VECTOR(TOKENS)), OUT(a->dlogits, T, DENSE(TOKENS, a->experts)));

ROW(group, bounds, NO_DTYPE, 0,
    IN(a->group, AX_I32, VECTOR(a->n)), OUT(a->source, AX_I32, VECTOR(a->rounds * a->rows)),
    OUT(a->place, AX_I32, VECTOR(a->n)), OUT(a->bounds, AX_I32, VECTOR(a->rounds * (a->groups + 1))));

/* Rows meet at most as many tokens as there are rows. */
ROW(dispatch, zeros, TAKES(dtype, ACTIVATION), 0,
    IN(a->x, T, ax_min(a->n, a->rows) * a->cols, a->n * a->cols), IN(a->source, AX_I32, VECTOR(a->rows)),
    IN(a->scale, A, ax_min(a->n * a->top_k, a->rows), a->n * a->top_k),
    OUT(a->y, T, DENSE(a->rows, a->cols)));

ROW(scatter, dtype,
    TAKES(dtype, ACTIVATION); if (a->parts > 1) ROWS_FIT(step, a->cols); ROWS_FIT(ld, span(a->parts, a->cols, a->step)), 0,
    IN(a->x, T, a->n * a->parts * a->cols, span(a->n, span(a->parts, a->cols, a->step), a->ld)),
    IN(a->place, AX_I32, VECTOR(a->n)),
    OUT(a->y, T, a->n * a->parts * a->cols, a->parts * a->rows * a->cols));

ROW(combine, accumulate, TAKES(dtype, ACTIVATION), REAL(a->rows) * REAL(a->cols),
    IN(a->x, T, DENSE(a->rows, a->cols)), IN(a->place, AX_I32, VECTOR(a->n * a->top_k)),
    IN(a->scale, A, VECTOR(a->n * a->top_k)),
    OPERAND(a->accumulate ? AX_READ_WRITE : AX_WRITE, a->y, T, DENSE(a->n, a->cols)));

ROW(combine_grad, dtype, TAKES(dtype, ACTIVATION), 2 * REAL(a->n) * REAL(a->top_k) * REAL(a->cols),
    IN(a->x, T, DENSE(a->rows, a->cols)), IN(a->dy, T, DENSE(a->n, a->cols)),
    IN(a->place, AX_I32, VECTOR(a->n * a->top_k)), OUT(a->dscale, A, VECTOR(a->n * a->top_k)));

/* The matrices of groups: how many elements those of `n` groups have, and how far all extend. Rows meet at most as
 * many matrices as there are rows. */
#define GROUPS(n, rows, cols, ld) (n) * (rows) * (cols), groups_span(a, span(rows, cols, ld))

ROW(gemm_grouped, accumulate,
    TAKES(dtype, ACTIVATION); TAKES(c_dtype, BIT(T) | BIT(A)); AX_TRY(check_grouped(a)),
    2 * REAL(a->m) * REAL(a->n) * REAL(a->k),
    IN(a->bounds, AX_I32, VECTOR(a->groups + 1)),
    IN(a->a, T, MATRIX(a->trans_a ? a->k : a->m, a->trans_a ? a->m : a->k, a->lda)),
    IN(a->trans_a ? a->b : NULL, T, MATRIX(a->k, a->n, a->ldb)),
    IN(a->trans_a ? NULL : a->b, T, GROUPS(ax_min(a->groups, a->m), a->trans_b ? a->n : a->k, a->trans_b ? a->k : a->n, a->ldb)),
    OPERAND(a->accumulate ? AX_READ_WRITE : AX_WRITE, a->trans_a ? NULL : a->c, a->c_dtype,
            MATRIX(a->m, a->n, a->ldc)),
    OPERAND(a->accumulate ? AX_READ_WRITE : AX_WRITE, a->trans_a ? a->c : NULL, a->c_dtype,
            GROUPS(a->groups, a->m, a->n, a->ldc)));

#define LOGITS MATRIX(a->rows, a->vocab, a->ld)

ROW(ce_stats, dtype, TAKES(dtype, ACTIVATION), REAL(a->rows) * REAL(a->vocab) * (3 + TRANSCENDENTAL),
    IN(a->logits, T, LOGITS), IN(a->targets, AX_I32, VECTOR(a->rows)), OUT(a->max, A, VECTOR(a->rows)),
    OUT(a->sum, A, VECTOR(a->rows)), OUT(a->target_logit, A, VECTOR(a->rows)));

ROW(ce_rescale, dtype, TAKES(dtype, ACCUM), REAL(a->rows) * (2 + TRANSCENDENTAL),
    IN(a->local_max, T, VECTOR(a->rows)), IN(a->max, T, VECTOR(a->rows)),
    INOUT(a->sum, T, VECTOR(a->rows)));

ROW(ce_loss, dtype, TAKES(dtype, ACCUM), REAL(a->rows) * (3 + TRANSCENDENTAL),
    IN(a->max, T, VECTOR(a->rows)), IN(a->sum, T, VECTOR(a->rows)),
    IN(a->target_logit, T, VECTOR(a->rows)), IN(a->targets, AX_I32, VECTOR(a->rows)),
    OUT(a->loss, T, VECTOR(a->rows)), INOUT(a->total, AX_F64, VECTOR(1)));

ROW(ce_rank, dtype, TAKES(dtype, ACTIVATION), REAL(a->rows) * REAL(a->vocab) * 2,
    IN(a->logits, T, LOGITS), IN(a->target_logit, A, VECTOR(a->rows)),
    IN(a->targets, AX_I32, VECTOR(a->rows)), OUT(a->rank, AX_I32, VECTOR(a->rows)));

ROW(ce_grad, dtype, TAKES(dtype, ACTIVATION), REAL(a->rows) * REAL(a->vocab) * (3 + TRANSCENDENTAL),
    IN(a->now, AX_U8, BYTES(a->now)), IN(a->max, A, VECTOR(a->rows)), IN(a->sum, A, VECTOR(a->rows)),
    IN(a->targets, AX_I32, VECTOR(a->rows)), INOUT(a->logits, T, LOGITS));

ROW(class_targets, dtype, TAKES(dtype, BIT(AX_I32) | BIT(AX_I64)), 0,
    IN(a->x, T, VECTOR(a->rows)), OUT(a->y, AX_I32, VECTOR(a->rows)), INOUT(a->counts, AX_F64, VECTOR(2)));

ROW(squared_error, dtype, TAKES(dtype, ACTIVATION), REAL(a->n) * (a->dx ? 4 : 3),
    IN(a->now, AX_U8, BYTES(a->now)), IN(a->x, T, VECTOR(a->n)), IN(a->target, T, VECTOR(a->n)),
    OUT(a->dx, T, VECTOR(a->n)), INOUT(a->total, AX_F64, VECTOR(1)));

TABLE_ROW(sumsq, dtype, TAKES(dtype, ACTIVATION); AX_TRY(check_table(name, a->arrays, a->table)),
    2 * summed(a), SUMS,
    IN(a->array, AX_U8, VECTOR(a->arrays * (int64_t)sizeof *a->array)));

ROW(scale, dtype, TAKES(dtype, ACTIVATION), REAL(a->n), INOUT(a->x, T, VECTOR(a->n)));

ROW(convert, y_dtype, TAKES(x_dtype, ACTIVATION); TAKES(y_dtype, ACTIVATION), 0,
    IN(a->x, a->x_dtype, VECTOR(a->n)), OUT(a->y, a->y_dtype, VECTOR(a->n)));

#define MASK_WORDS VECTOR(a->rows * ax_ceil_div(a->cols, 64))

ROW(compress, accumulate,
    AX_TRY(check_masked(name, a->x_dtype, a->y_dtype)); AX_TRY(check_ld(name, "ld", a->ld, a->cols)),
    a->accumulate ? REAL(a->n) : 0,
    IN(a->bits, AX_I64, MASK_WORDS), IN(a->begin, AX_I32, VECTOR(a->rows + 1)),
    IN(a->x, a->x_dtype, MATRIX(a->rows, a->cols, a->ld)),
    OPERAND(a->accumulate ? AX_READ_WRITE : AX_WRITE, a->y, a->y_dtype, VECTOR(a->n)));

ROW(expand, whole, AX_TRY(check_masked(name, a->x_dtype, a->y_dtype)), 0,
    IN(a->bits, AX_I64, MASK_WORDS), IN(a->begin, AX_I32, VECTOR(a->rows + 1)),
    IN(a->x, a->x_dtype, VECTOR(a->n)),
    OPERAND(a->whole ? AX_WRITE : AX_READ_WRITE, a->y, a->y_dtype, DENSE(a->rows, a->cols)));

ROW(copy_box, accumulate, TAKES(dtype, a->accumulate ? ACTIVATION : ALL),
    a->accumulate ? REAL(box_count(a->n)) : 0,
    IN(a->x, T, BOX(a->n, a->x_stride)),
    OPERAND(a->accumulate ? AX_READ_WRITE : AX_WRITE, a->y, T, BOX(a->n, a->y_stride)));

ROW(fill, dtype, TAKES(dtype, ALL), 0, OUT(a->y, T, VECTOR(a->n)));

ROW(init_normal, dtype, TAKES(dtype, ACTIVATION), 4 * TRANSCENDENTAL * REAL(box_count(a->n)),
    OUT(a->y, T, VECTOR(box_count(a->n))));

ROW(clip, numbers, NO_DTYPE, REAL(a->n),
    IN(a->sumsq, AX_F64, VECTOR(a->n)), IN(a->loss, AX_F64, VECTOR(1)),
    INOUT(a->numbers, AX_U8, BYTES(a->numbers)));

TABLE_ROW(adamw, copy_dtype,
    TAKES(dtype, ACCUM); TAKES(copy_dtype, ACTIVATION); AX_TRY(check_update(name, a)),
    REAL(a->n) * (15 + TRANSCENDENTAL), TABLE,
    IN(a->array, AX_U8, VECTOR(a->arrays * (int64_t)sizeof *a->array)),
    IN(a->numbers, AX_U8, BYTES(a->numbers)));

TABLE_ROW(sgd, copy_dtype,
    TAKES(dtype, ACCUM); TAKES(copy_dtype, ACTIVATION); AX_TRY(check_update(name, a)),
    REAL(a->n) * 7, TABLE,
    IN(a->array, AX_U8, VECTOR(a->arrays * (int64_t)sizeof *a->array)),
    IN(a->numbers, AX_U8, BYTES(a->numbers)));
/* clang-format on */

static const kernel_row *const rows[AX_KERNEL_COUNT] = {
#define ENTRY(kernel) [AX_K_##kernel] = &kernel##_row,
    AX_KERNELS(ENTRY)
#undef ENTRY
};

/* ---- reading the rows ---------------------------------------------------------------------------- */

const char *ax_kernel_name(ax_kernel kernel)
{
    return (unsigned)kernel < AX_KERNEL_COUNT ? rows[kernel]->name : "unknown kernel";
}

size_t ax_kernel_args_size(ax_kernel kernel)
{
    return (unsigned)kernel < AX_KERNEL_COUNT ? rows[kernel]->size : 0;
}

size_t ax_kernel_args_used(ax_kernel kernel) { return rows[kernel]->used; }

ax_status ax_kernel_check(ax_kernel kernel, const void *args) { return rows[kernel]->check(args); }

double ax_kernel_flops(ax_kernel kernel, const void *args) { return rows[kernel]->flops(args); }

void ax_kernel_cost(ax_kernel kernel, const void *args, double *flops, double *bytes)
{
    *flops = ax_kernel_flops(kernel, args);
    *bytes = rows[kernel]->operands(args, NULL, NULL);
}

void ax_kernel_operands(ax_kernel kernel, const void *args, ax_operand_fn *each, void *user)
{
    rows[kernel]->operands(args, each, user);
}
