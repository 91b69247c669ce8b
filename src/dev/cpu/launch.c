/* The table of the cpu backend, and the functions that cut each kernel's work into items and share the items
 * among the threads. Kernels that the table lacks run on the backend ref, and so does almost all arithmetic
 * in F64. */
#include "dev/attention.h"
#include "dev/cpu/cpu.h"

#include <math.h>

typedef struct job {
    ax_cpu_range_fn *fn;
    const void *args;
    int64_t items, unit;
} job;

/* Computes the work items (elements, rows, columns …) of one part. Parts are of nearly equal size, and are
 * cut at multiples of `unit` items. */
static void run_job_part(void *arg, int part, int parts, char *scratch)
{
    const job *j = arg;
    int64_t units = ax_ceil_div(j->items, j->unit);
    int64_t lo = units * part / parts * j->unit, hi = units * (part + 1) / parts * j->unit;
    if (lo < hi)
        j->fn(j->args, lo, ax_min(hi, j->items), scratch);
}

enum { PAGE = 4096 };
enum { SERIAL_BELOW = 16384 }; /* with fewer elements, waking a thread costs more than it saves */

enum { QUEUED = 8 }; /* largest number of parts per thread, if work items take unequal time */

/* Runs a kernel in one part per thread, or in a single part if there are fewer than SERIAL_BELOW elements.
 * `elements` is the number of elements, or an estimate of the work in this unit. `queue` is true if work
 * items take unequal time: then the items are cut into QUEUED parts per thread, or into parts of one item if
 * there are fewer items. Still more parts would have fewer items each, and an item prefetches data of the
 * next item of its part only. */
static ax_status run_parts(ax_stream *stream, ax_cpu_range_fn *fn, const void *args, int64_t items,
                           int64_t unit, double elements, bool queue)
{
    const ax_cpu *cpu = ax_cpu_of(stream);
    job j = {.fn = fn, .args = args, .items = items, .unit = unit};
    ax_cpu_parallel(cpu,
                    elements < SERIAL_BELOW ? 1
                    : queue                 ? (int)ax_min(items, QUEUED * (int64_t)cpu->threads)
                                            : cpu->threads,
                    run_job_part, &j);
    return AX_OK;
}

static ax_status run_items(ax_stream *stream, ax_cpu_range_fn *fn, const void *args, int64_t items,
                           int64_t unit, double elements)
{
    return run_parts(stream, fn, args, items, unit, elements, false);
}

static void touch_pages(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    (void)scratch;
    volatile char *memory = *(char *const *)args;
    for (int64_t at = lo; at < hi; at += PAGE)
        memory[at] = memory[at];
    memory[hi - 1] =
        memory[hi - 1]; /* also touches the last page, if the array does not begin at a page boundary */
}

/* Lets each thread touch the pages that hold its share of an array in elementwise kernels, so that these
 * pages lie near the thread's core (NUMA first touch). Shares are rounded to whole pages. */
void ax_cpu_touch(ax_device *dev, void *memory, size_t bytes)
{
    ax_stream stream = {dev, NULL};
    (void)run_items(&stream, touch_pages, &memory, (int64_t)bytes, PAGE, (double)bytes);
}

static ax_status run_ref(ax_stream *stream, ax_kernel kernel, const void *args)
{
    return ax_backend_ref.kernel[kernel](stream, args);
}

static ax_cpu_range_fn *isa_kernel(const ax_stream *stream, ax_kernel kernel)
{
    return ax_cpu_of(stream)->isa->vectors->kernel[kernel];
}

/* ---- items are elements, rows or columns --------------------------------------------------------- */

enum { ELEMENTS = 64, COLUMNS = 64 }; /* parts begin at multiples of these numbers: at cache lines */

#define SHARED(kernel, items, unit, elements)                                                                \
    static ax_status kernel(ax_stream *stream, const void *args)                                             \
    {                                                                                                        \
        const ax_##kernel##_args *a = args;                                                                  \
        if (a->dtype == AX_F64)                                                                              \
            return run_ref(stream, AX_K_##kernel, args);                                                     \
        return run_items(stream, isa_kernel(stream, AX_K_##kernel), args, items, unit, (double)(elements));  \
    }
#define AX_BY_ELEMENTS(kernel) SHARED(kernel, a->n, ELEMENTS, a->n)
#define AX_BY_ROWS(kernel, width) SHARED(kernel, a->rows, 1, a->rows * a->width)
#define AX_BY_COLUMNS(kernel) SHARED(kernel, a->cols, COLUMNS, a->rows * a->cols)
#define AX_CPU_KERNEL(kernel) /* the other kernels of the list have functions of their own in this file */
#include "dev/cpu/kernels.def"

static ax_status rope(ax_stream *stream, const void *args)
{
    const ax_rope_args *a = args;
    if (a->dtype == AX_F64)
        return run_ref(stream, AX_K_rope, args);
    return run_items(stream, isa_kernel(stream, AX_K_rope), args, a->rows, 1,
                     (double)(a->rows * a->heads * a->head_dim));
}

static ax_status turn(ax_stream *stream, const void *args)
{
    const ax_turn_args *a = args;
    if (a->dtype == AX_F64 || a->head_dim > AX_CPU_MAX_HEAD_DIM)
        return run_ref(stream, AX_K_turn, args);
    const int64_t items = a->rows * a->heads;
    return run_items(stream, isa_kernel(stream, AX_K_turn), args, items, 4,
                     (double)(items * a->head_dim * a->head_dim) / 16);
}

static ax_status glu(ax_stream *stream, const void *args)
{
    const ax_glu_args *a = args;
    if (a->dtype == AX_F64)
        return run_ref(stream, AX_K_glu, args);
    return run_items(stream, isa_kernel(stream, AX_K_glu), args, a->rows * a->cols, ELEMENTS,
                     (double)(a->rows * a->cols));
}

static ax_status glu_grad(ax_stream *stream, const void *args)
{
    const ax_glu_grad_args *a = args;
    if (a->dtype == AX_F64)
        return run_ref(stream, AX_K_glu_grad, args);
    if (!a->cols && a->dscale)
        return run_ref(stream, AX_K_glu_grad, args);
    return run_items(stream, isa_kernel(stream, AX_K_glu_grad), args, a->rows * a->cols,
                     a->dscale ? a->cols : ELEMENTS, (double)(a->rows * a->cols));
}

/* ---- experts ------------------------------------------------------------------------------------- */

static ax_status route(ax_stream *stream, const void *args)
{
    const ax_route_args *a = args;
    if (a->dtype == AX_F64)
        return run_ref(stream, AX_K_route, args);
    return run_items(stream, ax_cpu_route, args, a->rows, 1, 16.0 * (double)(a->rows * a->experts));
}

static ax_status admit(ax_stream *stream, const void *args)
{
    const ax_admit_args *a = args;
    if (a->experts * (int64_t)sizeof(int64_t) > AX_CPU_SCRATCH)
        return run_ref(stream, AX_K_admit, args);
    return run_items(stream, ax_cpu_admit, args, a->samples, 1,
                     2.0 * (double)(a->samples * a->tokens * a->top_k));
}

static ax_status route_stats(ax_stream *stream, const void *args)
{
    const ax_route_stats_args *a = args;
    if (a->dtype == AX_F64 || 2 * a->experts * (int64_t)sizeof(double) > AX_CPU_SCRATCH)
        return run_ref(stream, AX_K_route_stats, args);
    return run_items(stream, ax_cpu_route_stats, args, 1, 1, 1);
}

static ax_status route_grad(ax_stream *stream, const void *args)
{
    const ax_route_grad_args *a = args;
    const int64_t n = a->samples * a->tokens;
    if (a->dtype == AX_F64 || a->experts * (int64_t)sizeof(float) > AX_CPU_SCRATCH)
        return run_ref(stream, AX_K_route_grad, args);
    return run_items(stream, ax_cpu_route_grad, args, n, 1, 4.0 * (double)(n * a->experts));
}

static ax_status dispatch(ax_stream *stream, const void *args)
{
    const ax_dispatch_args *a = args;
    if (a->dtype == AX_F64)
        return run_ref(stream, AX_K_dispatch, args);
    return run_items(stream, isa_kernel(stream, AX_K_dispatch), args, a->cols ? a->rows : 0, 1,
                     (double)(a->rows * a->cols));
}

static ax_status combine_grad(ax_stream *stream, const void *args)
{
    const ax_combine_grad_args *a = args;
    const int64_t n = a->n * a->top_k;
    if (a->dtype == AX_F64)
        return run_ref(stream, AX_K_combine_grad, args);
    return run_items(stream, isa_kernel(stream, AX_K_combine_grad), args, n, 1, (double)(n * a->cols));
}

static ax_status scatter(ax_stream *stream, const void *args)
{
    const ax_scatter_args *a = args;
    return run_items(stream, ax_cpu_scatter, args, a->cols ? a->n * a->parts : 0, 1,
                     (double)(a->n * a->parts * a->cols));
}

static ax_status combine(ax_stream *stream, const void *args)
{
    const ax_combine_args *a = args;
    if (a->dtype == AX_F64)
        return run_ref(stream, AX_K_combine, args);
    return run_items(stream, isa_kernel(stream, AX_K_combine), args, a->n, 1,
                     (double)(a->n * a->top_k * a->cols));
}

/* Makes the lists l of rows with the same id. `head` has room for a number for each row of dtable: that of
 * the first row, of those seen so far, which is added to it. Numbers of earlier calls are told from those by
 * the id of the row that they name, so `head` need not be cleared. */
static void link_rows(const ax_embedding_grad_args *a, ax_cpu_linked_rows *l, int32_t *head)
{
    const int32_t *ids = a->ids + l->first;
    for (int64_t r = l->n - 1; r >= 0; r--) {
        int64_t row = (int64_t)ids[r] - a->first;
        l->follows[r] = false;
        l->next[r] = -1;
        if (row < 0 || row >= a->count)
            continue;
        int32_t later = head[row];
        if (later > r && later < l->n && ids[later] == ids[r]) {
            l->next[r] = later;
            l->follows[later] = true;
        }
        head[row] = (int32_t)r;
    }
}

/* The lists lie in the scratch of the calling thread, which this kernel does not use otherwise. */
static ax_status embedding_grad(ax_stream *stream, const void *args)
{
    const ax_embedding_grad_args *a = args;
    const bool wide = a->table_dtype == AX_F32;
    if (a->dtype == AX_F64 || (!wide && a->count > AX_CPU_LINKS))
        return run_ref(stream, AX_K_embedding_grad, args);
    int32_t *head = (int32_t *)(void *)ax_cpu_scratch(ax_cpu_of(stream), 0);
    ax_cpu_embedding_grad call = {args, {0, 0, head + AX_CPU_LINKS, (bool *)(head + 2 * AX_CPU_LINKS)}};
    ax_cpu_linked_rows *l = &call.linked;
    for (; l->first < a->rows; l->first += l->n) {
        l->n = wide ? a->rows : ax_min(AX_CPU_LINKS, a->rows - l->first);
        if (!wide)
            link_rows(a, l, head);
        AX_TRY(run_items(stream, isa_kernel(stream, AX_K_embedding_grad), &call, a->cols, COLUMNS,
                         (double)(l->n * a->cols)));
    }
    return AX_OK;
}

/* ---- updates ------------------------------------------------------------------------------------- */

typedef struct update {
    ax_cpu_range_fn *fn;
    const ax_update_args *args;
} update;

/* Updates one part, which consists of a share of every array: the share that ax_cpu_touch has placed near the
 * thread. */
static void update_body(void *arg, int part, int parts, char *scratch)
{
    const update *u = arg;
    for (int64_t i = 0; i < u->args->arrays; i++) {
        const ax_update_array *array = &u->args->array[i];
        ax_cpu_update one = {u->args, array};
        job j = {.fn = u->fn, .args = &one, .items = array->n, .unit = ELEMENTS};
        run_job_part(&j, part, parts, scratch);
    }
}

/* Returns true if no weights have a copy, or if the cpu kernels can round copies of the weights to this
 * dtype. */
static bool supports_copy(int64_t copied, ax_dtype dtype) { return !copied || dtype != AX_F64; }

static ax_status run_update(ax_stream *stream, ax_kernel kernel, const ax_update_args *a)
{
    const ax_cpu *cpu = ax_cpu_of(stream);
    update u = {isa_kernel(stream, kernel), a};
    if (a->dtype == AX_F64 || !supports_copy(a->copied, a->copy_dtype))
        return run_ref(stream, kernel, a);
    if (a->numbers->skip == 0)
        ax_cpu_parallel(cpu, a->n < SERIAL_BELOW ? 1 : cpu->threads, update_body, &u);
    return AX_OK;
}

static ax_status adamw(ax_stream *stream, const void *args) { return run_update(stream, AX_K_adamw, args); }
static ax_status sgd(ax_stream *stream, const void *args) { return run_update(stream, AX_K_sgd, args); }

/* ---- norms and sums ------------------------------------------------------------------------------ */

enum {
    CHUNKS = 64,    /* norm_grad: largest number of chunks of rows */
    CHUNK_ROWS = 32 /* norm_grad: smallest number of rows of a chunk other than the last */
};

/* Runs norm_grad or norm_grad_apply. The sums of the chunks lie in the scratch of the calling thread, which
 * these kernels do not use otherwise. F64, and rows so wide that not even the sums of one chunk fit into this
 * scratch, run on the reference backend. */
static ax_status run_norm_grad(ax_stream *stream, ax_kernel kernel, const ax_norm_grad_apply_args *a,
                               const void *args)
{
    const ax_cpu *cpu = ax_cpu_of(stream);
    ax_cpu_norm_grad j = {.args = args, .dweight = a->dweight, .dbias = a->dbias};
    j.sums = (float *)(void *)ax_cpu_scratch(cpu, 0);
    j.stride = ax_round_up(a->cols, COLUMNS);
    int64_t fit = AX_CPU_SCRATCH / (2 * (int64_t)sizeof(float)) / ax_max(1, j.stride);
    if (a->dtype == AX_F64 || fit < 1)
        return run_ref(stream, kernel, args);
    j.chunk = ax_max(CHUNK_ROWS, ax_ceil_div(a->rows, ax_min(CHUNKS, fit)));
    j.chunks = ax_ceil_div(a->rows, j.chunk);
    AX_TRY(run_items(stream, isa_kernel(stream, kernel), &j, j.chunks, 1, (double)(a->rows * a->cols)));
    return run_items(stream, cpu->isa->vectors->norm_grad_sum, &j, a->cols, COLUMNS,
                     (double)(j.chunks * a->cols));
}

static ax_status norm_grad_apply(ax_stream *stream, const void *args)
{
    return run_norm_grad(stream, AX_K_norm_grad_apply, args, args);
}

static ax_status norm_grad(ax_stream *stream, const void *args)
{
    const ax_norm_grad_apply_args apply = ax_norm_grad_apply_of(args);
    return run_norm_grad(stream, AX_K_norm_grad, &apply, args);
}

/* Runs a kernel that sums over n elements, chunk by chunk, and stores the total in *out. The size of the
 * chunks depends only on n, so the order of additions does not depend on the number of threads. */
static ax_status sum_chunks(ax_stream *stream, ax_kernel kernel, const void *args, int64_t n, double *out)
{
    ax_cpu_chunks s = {args, ax_max(4096, ax_round_up(ax_ceil_div(n, AX_CPU_PARTIALS), 4096)),
                       ax_cpu_partials(ax_cpu_of(stream))};
    int64_t chunks = ax_ceil_div(n, s.chunk);
    AX_TRY(run_items(stream, isa_kernel(stream, kernel), &s, chunks, 1, (double)n));
    *out = 0;
    for (int64_t i = 0; i < chunks; i++)
        *out += s.partials[i];
    return AX_OK;
}

static ax_status sumsq(ax_stream *stream, const void *args)
{
    const ax_sumsq_args *a = args;
    if (a->dtype == AX_F64)
        return run_ref(stream, AX_K_sumsq, args);
    for (const ax_sumsq_array *s = a->array; s < a->array + a->arrays; s++) {
        const ax_cpu_sumsq one = {s->n, s->x, a->dtype};
        AX_TRY(sum_chunks(stream, AX_K_sumsq, &one, s->n, &a->out[s->to]));
    }
    return AX_OK;
}

static ax_status squared_error(ax_stream *stream, const void *args)
{
    const ax_squared_error_args *a = args;
    double sum;
    if (a->dtype == AX_F64)
        return run_ref(stream, AX_K_squared_error, args);
    AX_TRY(sum_chunks(stream, AX_K_squared_error, args, a->n, &sum));
    a->total[0] += sum;
    return AX_OK;
}

static ax_status convert(ax_stream *stream, const void *args)
{
    const ax_convert_args *a = args;
    bool there = a->x_dtype == AX_F32 && a->y_dtype != AX_F64,
         back = a->y_dtype == AX_F32 && a->x_dtype != AX_F64;
    if (a->x_dtype == a->y_dtype)
        return run_items(stream, ax_cpu_copy, args, a->n, ELEMENTS, (double)a->n);
    if (!there && !back)
        return run_ref(stream, AX_K_convert, args);
    return run_items(stream, isa_kernel(stream, AX_K_convert), args, a->n, ELEMENTS, (double)a->n);
}

static ax_cpu_masked masked(const ax_stream *stream, const void *args)
{
    return (ax_cpu_masked){args, isa_kernel(stream, AX_K_convert), isa_kernel(stream, AX_K_add)};
}

static ax_status compress(ax_stream *stream, const void *args)
{
    const ax_compress_args *a = args;
    const ax_cpu_masked m = masked(stream, args);
    if (a->x_dtype == AX_F64)
        return run_ref(stream, AX_K_compress, args);
    return run_items(stream, ax_cpu_compress, &m, a->rows, 1, (double)(a->rows * a->cols));
}

static ax_status expand(ax_stream *stream, const void *args)
{
    const ax_expand_args *a = args;
    const ax_cpu_masked m = masked(stream, args);
    if (a->x_dtype == AX_F64)
        return run_ref(stream, AX_K_expand, args);
    return run_items(stream, ax_cpu_expand, &m, a->rows, 1, (double)(a->rows * a->cols));
}

static ax_status copy_box(ax_stream *stream, const void *args)
{
    const ax_copy_box_args *a = args;
    if (a->accumulate && a->dtype == AX_F64)
        return run_ref(stream, AX_K_copy_box, args);
    int64_t rows = a->n[0] * a->n[1] * a->n[2];
    return run_items(stream, ax_cpu_copy_box, args, a->n[3] ? rows : 0, 1, (double)(rows * a->n[3]));
}

static ax_status fill(ax_stream *stream, const void *args)
{
    ax_cpu_filling f = {.a = args};
    ax_store(f.a->dtype, f.element, 0, f.a->value);
    return run_items(stream, ax_cpu_fill, &f, f.a->n, ELEMENTS, (double)f.a->n);
}

static ax_status init_normal(ax_stream *stream, const void *args)
{
    const ax_init_normal_args *a = args;
    int64_t rows = a->n[0] * a->n[1] * a->n[2];
    return run_items(stream, isa_kernel(stream, AX_K_init_normal), args, a->n[3] ? rows : 0, 1,
                     4.0 * (double)(rows * a->n[3]));
}

/* ---- attention ----------------------------------------------------------------------------------- */

static int64_t keys_per_query(int64_t window, int64_t keys)
{
    return window > 0 ? ax_min(window, keys) : keys;
}

static ax_status attention(ax_stream *stream, const void *args)
{
    const ax_attention_args *a = args;
    if (a->dtype == AX_F64 || a->head_dim > AX_CPU_MAX_HEAD_DIM)
        return run_ref(stream, AX_K_attention, args);
    bool few = ax_cpu_few_queries(a); /* as in generation; then a thread computes adjacent heads together */
    int64_t blocks = few ? 1 : ax_ceil_div(a->q_len, AX_CPU_ATTENTION_QUERIES);
    /* An estimate of the work, counted in elements (run_parts). An element stands for 16 multiply-adds of a
     * matmul or, with few queries, for one element of the keys, because reading the keys then takes
     * longer. */
    double work = (double)a->batch * (double)(keys_per_query(a->window, a->kv_len) * a->head_dim) *
                  fmax((double)(a->heads * a->q_len) / 16, (double)a->kv_heads);
    return run_parts(stream, ax_cpu_of(stream)->isa->attention, args,
                     a->q_len ? a->batch * a->heads * blocks : 0, 1, work, !few);
}

static ax_status choose(ax_stream *stream, const void *args)
{
    const ax_choose_args *a = args;
    const int64_t items = a->batch * a->q_len * ax_choosers(a);
    if (a->dtype == AX_F64 || a->width > AX_CPU_MAX_HEAD_DIM || a->kv_len > AX_CPU_CHOICE)
        return run_ref(stream, AX_K_choose, args);
    return run_parts(stream, isa_kernel(stream, AX_K_choose), args, items, 1,
                     (double)(a->batch * a->q_len * a->heads) *
                         (double)(keys_per_query(a->window, a->kv_len) * (a->width + 16)) / 16,
                     a->q_len > 1);
}

static ax_status attention_grad(ax_stream *stream, const void *args)
{
    const ax_attention_grad_args *a = args;
    if (a->dtype == AX_F64 || a->head_dim > AX_CPU_MAX_HEAD_DIM)
        return run_ref(stream, AX_K_attention_grad, args);
    double work = (double)a->batch * (double)(a->heads * a->q_len) *
                  (double)(keys_per_query(a->window, a->q_len) * a->head_dim) / 16;
    return run_parts(stream, ax_cpu_of(stream)->isa->attention_grad, args, a->batch * a->kv_heads, 1, work,
                     true);
}

/* What ax_cpu_host_work runs. */
typedef struct host_work {
    ax_host_work_fn *work;
    void *user;
} host_work;

static void run_host_work(void *arg, int part, int parts, char *scratch)
{
    const host_work *w = arg;
    (void)parts, (void)scratch;
    w->work(w->user, part);
}

void ax_cpu_host_work(ax_device *dev, int parts, ax_host_work_fn *work, void *user)
{
    ax_cpu_parallel(dev->impl, parts, run_host_work, &(host_work){work, user});
}

const ax_device_ops ax_backend_cpu = {
    .name = "cpu",
    .help = "SIMD (AMX, AVX-512, AVX2 or portable) and threads on the host's processor",
    .delegate = "ref",
    .open = ax_cpu_open,
    .close = ax_cpu_close,
    .workspace = ax_cpu_workspace,
    .touch = ax_cpu_touch,
    .parallel = ax_cpu_host_work,
    .peak = ax_cpu_peak,
    .read = ax_cpu_read,
    .kernel =
        {
            [AX_K_gemm] = ax_cpu_gemm_run,
            [AX_K_gemm_grouped] = ax_cpu_gemm_grouped_run,
#define AX_CPU_KERNEL(kernel) [AX_K_##kernel] = kernel,
#include "dev/cpu/kernels.def"
        },
};
