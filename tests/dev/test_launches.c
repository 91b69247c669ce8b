/* How kernels use a GPU, counted on the emulated one: launches, each of which takes an eighth of a
 * millisecond of the stream's clock, and thread blocks. And that results have the same bits in each run: the
 * emulated GPU runs the threads of each launch in another order. */
#include "axonn/dev.h"
#include "support/check.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const double MS_PER_LAUNCH = 0.125;
typedef long counter_fn(void);

typedef struct gpu {
    ax_device *dev;
    ax_stream stream;
    counter_fn *blocks;
    ax_kernel_total totals[AX_KERNEL_COUNT];
    ax_listener times;
} gpu;

static void open_gpu(gpu *g)
{
    const char *folder = getenv("AXONN_PLUGINS");
    char path[4096];
    *g = (gpu){0};
    OK(ax_device_open("cuda", 1, &g->dev));
    g->stream = (ax_stream){g->dev, NULL};
    g->times = ax_kernel_totals(g->totals);
    ax_device_listen(g->dev, &g->times);
    snprintf(path, sizeof path, "%s/libaxonn_cuda.so", folder);
    void *plugin = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    g->blocks = plugin ? (counter_fn *)(uintptr_t)dlsym(plugin, "ax_emulated_blocks") : NULL;
    assert_non_null(g->blocks);
}

/* Memory of `n` elements of type `dtype`: normally distributed numbers. */
static void *normals(gpu *g, ax_dtype dtype, int64_t n)
{
    size_t bytes = (size_t)n * ax_dtype_size(dtype);
    char *host = malloc(bytes);
    void *memory;
    assert_non_null(host);
    for (int64_t i = 0; i < n; i++)
        ax_store(dtype, host, i, (double)ax_rng_normal(1, (uint64_t)i));
    OK(ax_device_alloc(g->dev, bytes, &memory));
    OK(ax_copy_in(&g->stream, memory, host, bytes));
    free(host);
    return memory;
}

typedef struct count {
    int launches;
    long blocks;
} count;

/* Runs a kernel and counts its launches and thread blocks. */
static count run(gpu *g, ax_kernel kernel, const void *args)
{
    OK(ax_stream_wait(&g->stream));
    const double before = g->totals[kernel].seconds;
    const long blocks = g->blocks();
    OK(ax_launch(&g->stream, kernel, args));
    OK(ax_stream_wait(&g->stream));
    const double ms = 1e3 * (g->totals[kernel].seconds - before);
    return (count){(int)lrint(ms / MS_PER_LAUNCH), g->blocks() - blocks};
}

/* Runs a kernel several times and checks that `out` has the same bits each time. `start`: what `out` contains
 * before, or NULL. */
static void same_bits(gpu *g, ax_kernel kernel, const void *args, void *out, const void *start, size_t bytes)
{
    enum { TIMES = 8 }; /* as many as the emulated GPU has schedules */
    char *first = malloc(bytes), *now = malloc(bytes);
    for (int i = 0; i < TIMES; i++) {
        if (start)
            OK(ax_copy_in(&g->stream, out, start, bytes));
        run(g, kernel, args);
        OK(ax_copy_out(&g->stream, i ? now : first, out, bytes));
        assert_true(!i || !memcmp(first, now, bytes));
    }
    free(first);
    free(now);
}

/* One query of two heads, one key head, many keys: without splitting there would be a block or two. */
static void few_queries_use_many_blocks(void **state)
{
    (void)state;
    enum { KEYS = 2000, HEADS = 2, D = 64 };
    gpu g;
    open_gpu(&g);
    const int64_t n = KEYS * D, rows = HEADS * D;
    void *q = normals(&g, AX_BF16, rows), *k = normals(&g, AX_BF16, n), *v = normals(&g, AX_BF16, n),
         *o = normals(&g, AX_BF16, rows);
    const ax_attention_args args = {.batch = 1,
                                    .q_len = 1,
                                    .kv_len = KEYS,
                                    .q_offset = KEYS - 1,
                                    .heads = HEADS,
                                    .kv_heads = 1,
                                    .head_dim = D,
                                    .q_ld = rows,
                                    .kv_ld = D,
                                    .scale = 0.125,
                                    .q = q,
                                    .k = k,
                                    .v = v,
                                    .o = o,
                                    .dtype = AX_BF16};
    const count used = run(&g, AX_K_attention, &args);
    assert_true(used.blocks >= KEYS / 64);
    assert_int_equal(used.launches, 2);
    same_bits(&g, AX_K_attention, &args, o, NULL, (size_t)rows * 2);
    ax_device_free(g.dev, q, (size_t)rows * 2);
    ax_device_free(g.dev, k, (size_t)n * 2);
    ax_device_free(g.dev, v, (size_t)n * 2);
    ax_device_free(g.dev, o, (size_t)rows * 2);
    ax_device_close(&g.dev);
}

/* The gradient of an embedding if all tokens are equal, and if all differ. */
static void long_runs_are_cut(void **state)
{
    (void)state;
    enum { ROWS = 2000, COLS = 36, COUNT = 2100, PIECE = 32 };
    gpu g;
    int32_t ids[ROWS];
    float *start = calloc(COUNT * COLS, sizeof *start);
    size_t bytes = COUNT * COLS * sizeof *start;
    assert_non_null(start);
    open_gpu(&g);
    void *dy = normals(&g, AX_BF16, ROWS * COLS), *table = normals(&g, AX_F32, COUNT * COLS), *memory;
    OK(ax_device_alloc(g.dev, sizeof ids, &memory));
    const ax_embedding_grad_args args = {.rows = ROWS,
                                         .cols = COLS,
                                         .count = COUNT,
                                         .dy = dy,
                                         .ids = memory,
                                         .dtable = table,
                                         .dtype = AX_BF16,
                                         .table_dtype = AX_F32};
    count used[2];
    for (int differ = 0; differ < 2; differ++) {
        for (int i = 0; i < ROWS; i++)
            ids[i] = differ ? i * 7 % COUNT : 5;
        OK(ax_copy_in(&g.stream, memory, ids, sizeof ids));
        used[differ] = run(&g, AX_K_embedding_grad, &args);
        same_bits(&g, AX_K_embedding_grad, &args, table, start, bytes);
    }
    assert_int_equal(used[0].blocks, used[1].blocks);
    assert_true(used[0].blocks >= 2 * (ROWS / PIECE));
    ax_device_free(g.dev, dy, ROWS * COLS * 2);
    ax_device_free(g.dev, table, bytes);
    ax_device_free(g.dev, memory, sizeof ids);
    ax_device_close(&g.dev);
    free(start);
}

/* Sums of squares of many arrays, short and long. */
static void one_call_sums_all_arrays(void **state)
{
    (void)state;
    enum { ARRAYS = 300, LONG = 3 * AX_SUMSQ_CHUNK + 5 };
    static ax_sumsq_array table[ARRAYS];
    gpu g;
    open_gpu(&g);
    float *x = normals(&g, AX_F32, LONG);
    double *out = normals(&g, AX_F64, ARRAYS);
    void *array;
    for (int64_t i = 0, first = 0; i < ARRAYS; i++) {
        table[i] = (ax_sumsq_array){.x = x, .n = i == 7 ? LONG : i, .first = first, .to = i};
        first += ax_ceil_div(table[i].n, AX_SUMSQ_CHUNK);
    }
    OK(ax_device_alloc(g.dev, sizeof table, &array));
    OK(ax_copy_in(&g.stream, array, table, sizeof table));
    const ax_sumsq_args args = {
        .arrays = ARRAYS, .array = array, .table = table, .out = out, .dtype = AX_F32};
    assert_int_equal(run(&g, AX_K_sumsq, &args).launches, 2);
    same_bits(&g, AX_K_sumsq, &args, out, NULL, ARRAYS * sizeof *out);
    ax_device_free(g.dev, x, LONG * sizeof *x);
    ax_device_free(g.dev, out, ARRAYS * sizeof *out);
    ax_device_free(g.dev, array, sizeof table);
    ax_device_close(&g.dev);
}

int main(void)
{
    if (!getenv("AXONN_PLUGINS"))
        return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(few_queries_use_many_blocks),
        cmocka_unit_test(long_runs_are_cut),
        cmocka_unit_test(one_call_sums_all_arrays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
