/* Measured plans of matmuls on the emulated GPU (AXONN_PLANS). The fastest algorithm is measured once and
 * stored in a file, and later processes take it from there. Products are right whatever the file contains.
 * tests/dev/test_plan_files.c tests the files themselves.
 * Each process is a child of the test; the stand-in for cuBLASLt counts its calls
 * (tests/cuda/cublaslt.cpp). */
#include "axonn/dev.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define FOLDER AXONN_BUILD_DIR "/test-plans"

/* Algorithms of the stand-in: FIRST, the first that the heuristic returns; FASTEST, which does not support an
 * odd k; EVEN, the second fastest if m is even; SPLIT, faster than all others, which needs 48 MiB of
 * workspace. */
enum { FIRST = 1, FASTEST = 3, EVEN = 4, SPLIT = 5, ALGORITHMS = 6 };

typedef struct shape {
    int64_t m, n, k;
    bool accumulate, bias;
    int chosen; /* the algorithm that must be measured as the best */
} shape;

static const shape shapes[] = {
    {6, 5, 8, false, false, FASTEST}, {6, 5, 7, false, false, EVEN}, {7, 5, 7, false, false, FIRST},
    {6, 2, 8, false, false, FIRST}, /* so short that the time is mostly the host's */
    {6, 5, 8, true, false, FASTEST},  {7, 6, 9, true, true, FIRST},  {8, 6, 9, false, true, EVEN},
};
enum { SHAPES = AX_COUNT(shapes), MOST = 10 };

/* ---- products ------------------------------------------------------------------------------------ */

static double value(int operand, int64_t i) { return (double)((i * 7 + operand * 3) % 5) - 2; }

static void *operand(ax_stream *stream, int which, int64_t n)
{
    float host[MOST * MOST];
    void *memory;
    for (int64_t i = 0; i < n; i++)
        host[i] = (float)value(which, i);
    if (ax_device_alloc(stream->dev, sizeof host, &memory) != AX_OK ||
        ax_copy_in(stream, memory, host, (size_t)n * sizeof *host) != AX_OK)
        return NULL;
    return memory;
}

static bool right(const shape *s, const float *c)
{
    for (int64_t i = 0; i < s->m; i++)
        for (int64_t j = 0; j < s->n; j++) {
            double want = s->accumulate ? value(2, i * MOST + j) : 0;
            want += s->bias ? value(3, j) : 0;
            for (int64_t p = 0; p < s->k; p++)
                want += value(0, i * s->k + p) * value(1, p * s->n + j);
            if (c[i * MOST + j] != want)
                return false;
        }
    return true;
}

/* One product of integers, exact in any order of sums; the rows of c are longer than n. */
static bool multiply(ax_stream *stream, const shape *s)
{
    float c[MOST * MOST];
    ax_gemm_args g = {.m = s->m, .n = s->n, .k = s->k, .dtype = AX_F32, .c_dtype = AX_F32};
    g.lda = s->k, g.ldb = s->n, g.ldc = MOST, g.accumulate = s->accumulate;
    g.a = operand(stream, 0, s->m * s->k), g.b = operand(stream, 1, s->k * s->n);
    g.c = operand(stream, 2, MOST * MOST), g.bias = s->bias ? operand(stream, 3, s->n) : NULL;
    bool ok =
        ax_run_gemm(stream, &g) == AX_OK && ax_copy_out(stream, c, g.c, sizeof c) == AX_OK && right(s, c);
    const void *const memory[] = {g.a, g.b, g.c, g.bias};
    for (size_t i = 0; i < AX_COUNT(memory); i++)
        ax_device_free(stream->dev, (void *)(uintptr_t)memory[i], MOST * MOST * sizeof(float));
    return ok;
}

/* ---- processes ----------------------------------------------------------------------------------- */

/* What a process did for each shape: the algorithm of its plan, and the number of products that were
 * timed. */
typedef struct report {
    int chosen[SHAPES];
    long timed;
    long timed_again; /* by the second call of a large GEMM */
} report;

typedef long counter_fn(int which);

static counter_fn *counter(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/libaxonn_cuda.so", getenv("AXONN_PLUGINS"));
    void *plugin = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    return plugin ? (counter_fn *)(uintptr_t)dlsym(plugin, "ax_emulated_products") : NULL;
}

static long all_products(counter_fn *count, long each[ALGORITHMS])
{
    long sum = 0;
    for (int i = 0; i < ALGORITHMS; i++)
        sum += each[i] = count(i);
    return sum;
}

/* Runs every shape twice; the second call shows the algorithm of the plan. */
static bool run_shapes(report *out)
{
    ax_device *dev;
    long before[ALGORITHMS], after[ALGORITHMS];
    if (ax_device_open("cuda", 1, &dev) != AX_OK)
        return false;
    ax_stream stream = {dev, NULL};
    counter_fn *count = counter();
    bool ok = count != NULL;
    for (int i = 0; i < SHAPES && ok; i++) {
        long begin = all_products(count, before);
        ok = multiply(&stream, &shapes[i]);
        out->timed += all_products(count, before) - begin - 1;
        ok = ok && multiply(&stream, &shapes[i]);
        all_products(count, after);
        for (int which = 0; which < ALGORITHMS; which++)
            if (after[which] != before[which])
                out->chosen[i] = which;
    }
    ax_device_close(&dev);
    return ok;
}

/* Runs a large GEMM twice. Its values do not matter. In between the device begins to keep its plans in
 * directory `dir` of a run, if `dir` is not NULL. */
static bool run_large_twice(const char *dir, report *out)
{
    enum { LARGE = 512, BYTES = LARGE * LARGE * sizeof(float) };
    ax_device *dev;
    char *memory;
    bool kept;
    long before[ALGORITHMS], after[ALGORITHMS];
    if (ax_device_open("cuda", 1, &dev) != AX_OK ||
        ax_device_alloc(dev, 3 * BYTES, (void **)&memory) != AX_OK)
        return false;
    ax_stream stream = {dev, NULL};
    ax_gemm_args g = {.m = LARGE, .n = LARGE, .k = LARGE, .dtype = AX_F32, .c_dtype = AX_F32};
    g.lda = g.ldb = g.ldc = LARGE;
    g.a = memory, g.b = memory + BYTES, g.c = memory + 2 * BYTES;
    bool ok = ax_run_gemm(&stream, &g) == AX_OK && ax_stream_wait(&stream) == AX_OK;
    long first = all_products(counter(), before);
    ok = ok && (!dir || (ax_device_keep_plans(dev, dir, NULL, &kept) == AX_OK && kept));
    ok = ok && ax_run_gemm(&stream, &g) == AX_OK && ax_stream_wait(&stream) == AX_OK;
    out->timed = first - 1;
    out->timed_again = all_products(counter(), after) - first - 1;
    for (int which = 0; which < ALGORITHMS; which++)
        if (after[which] != before[which])
            out->chosen[0] = which;
    ax_device_free(dev, memory, 3 * BYTES);
    ax_device_close(&dev);
    return ok;
}

static bool run_large(report *out) { return run_large_twice(NULL, out); }

static bool run_large_in_a_run(report *out) { return run_large_twice(FOLDER "/run", out); }

/* Runs `n` processes at once with AXONN_PLANS=plans; they begin together. */
static void run_processes(int n, const char *plans, bool (*work)(report *), report *out)
{
    int gate[2];
    size_t bytes = (size_t)n * sizeof *out;
    report *shared = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child[8];
    assert_true(shared != MAP_FAILED && !pipe(gate));
    for (int i = 0; i < n; i++) {
        child[i] = fork();
        if (child[i] == 0) {
            char byte;
            close(gate[1]);
            plans ? setenv("AXONN_PLANS", plans, 1) : unsetenv("AXONN_PLANS");
            bool ok = read(gate[0], &byte, 1) == 0 && work(&shared[i]);
            if (!ok)
                fprintf(stderr, "child %d: %s\n", i, ax_error_message());
            _exit(!ok);
        }
    }
    close(gate[0]);
    close(gate[1]);
    for (int i = 0; i < n; i++) {
        int status;
        assert_int_equal(waitpid(child[i], &status, 0), child[i]);
        assert_int_equal(status, 0);
    }
    memcpy(out, shared, bytes);
    munmap(shared, bytes);
}

static report run_process(const char *plans)
{
    report out;
    run_processes(1, plans, run_shapes, &out);
    return out;
}

static void assert_chosen(const report *r)
{
    for (int i = 0; i < SHAPES; i++)
        assert_int_equal(r->chosen[i], shapes[i].chosen);
}

/* ---- the file ------------------------------------------------------------------------------------ */

static const char *const file = FOLDER "/plans.txt";

static ax_buf file_text(void)
{
    ax_buf text = {0};
    assert_int_equal(ax_file_read(file, &text.data, &text.size), AX_OK);
    return text;
}

static void write_text(const char *text, size_t size)
{
    assert_int_equal(ax_mkdirs(FOLDER), AX_OK);
    assert_int_equal(ax_file_write_atomic(file, text, size), AX_OK);
}

static int lines_of(const ax_buf *text)
{
    int n = 0;
    for (size_t i = 0; i < text->size; i++)
        n += text->data[i] == '\n';
    return n;
}

/* Returns the text of a file with the plans of all shapes. */
static ax_buf whole_file(void)
{
    assert_int_equal(ax_remove_tree(FOLDER), AX_OK);
    run_process(FOLDER);
    return file_text();
}

/* ---- tests --------------------------------------------------------------------------------------- */

/* Timing is off, there is no directory for plans, or there is no time. */
static void nothing_is_timed(void **state)
{
    (void)state;
    static const struct {
        const char *plans, *home, *seconds;
    } cases[] = {{"off", "/tmp", "20"}, {NULL, "", "20"}, {FOLDER, "/tmp", "0"}};
    assert_int_equal(ax_remove_tree(FOLDER), AX_OK);
    for (size_t c = 0; c < AX_COUNT(cases); c++) {
        setenv("HOME", cases[c].home, 1);
        unsetenv("XDG_CACHE_HOME");
        setenv("AXONN_PLAN_SECONDS", cases[c].seconds, 1);
        report r = run_process(cases[c].plans);
        assert_int_equal(r.timed, 0);
        for (int i = 0; i < SHAPES; i++)
            assert_int_equal(r.chosen[i], FIRST);
    }
    unsetenv("AXONN_PLAN_SECONDS");
    assert_false(ax_path_exists(FOLDER));
}

/* If the time ends while a GEMM is timed, the GEMM gets the first algorithm, and the user's cache gets no
 * plan.
 */
static void timing_ends_in_time(void **state)
{
    (void)state;
    report r[1];
    assert_int_equal(ax_remove_tree(FOLDER), AX_OK);
    setenv("AXONN_PLAN_SECONDS", "1", 1);
    run_processes(1, FOLDER, run_large, r);
    unsetenv("AXONN_PLAN_SECONDS");
    assert_true(r->timed >= 2 && r->timed < 60); /* of 82, which take several seconds */
    assert_int_equal(r->chosen[0], FIRST);
    assert_false(ax_path_exists(FOLDER));
}

/* The time that was used before the device keeps its plans in a run's directory is not given again. */
static void a_run_gets_no_further_time(void **state)
{
    (void)state;
    report r[1];
    assert_int_equal(ax_remove_tree(FOLDER), AX_OK);
    setenv("AXONN_PLAN_SECONDS", "1", 1);
    run_processes(1, FOLDER, run_large_in_a_run, r);
    unsetenv("AXONN_PLAN_SECONDS");
    assert_true(r->timed >= 2);
    assert_int_equal(r->timed_again, 0);
    assert_int_equal(r->chosen[0], FIRST);
}

static void the_fastest_is_found_once(void **state)
{
    (void)state;
    assert_int_equal(ax_remove_tree(FOLDER), AX_OK);
    report first = run_process(FOLDER);
    assert_chosen(&first);
    assert_true(first.timed > 4 * SHAPES);
    ax_buf before = file_text();
    assert_int_equal(lines_of(&before), SHAPES);
    report second = run_process(FOLDER);
    assert_chosen(&second);
    assert_int_equal(second.timed, 0);
    ax_buf after = file_text();
    assert_true(before.size == after.size && !memcmp(before.data, after.data, before.size));
    ax_buf_fini(&before);
    ax_buf_fini(&after);
}

/* Damage only costs another measurement. */
static void a_damaged_file_is_completed(void **state)
{
    (void)state;
    ax_buf good = whole_file();
    for (int damage = 0; damage < 4; damage++) {
        ax_buf bad = {0};
        assert_int_equal(ax_buf_add(&bad, good.data, good.size), AX_OK);
        char *second = strchr(bad.data, '\n') + 1;
        if (damage == 0)
            bad.size = 0;
        else if (damage == 1)
            second[25] ^= 1; /* the second line is for another product */
        else if (damage == 2)
            bad.size -= 1;
        else
            bad.size = (size_t)(second - bad.data) + 70;
        write_text(bad.data, bad.size);
        report r = run_process(FOLDER);
        assert_chosen(&r);
        assert_true(damage == 1 || damage == 2 ? r.timed > 0 && r.timed < 100 : r.timed > 4 * SHAPES);
        ax_buf again = file_text();
        assert_true(again.size == good.size && !memcmp(again.data, good.data, good.size));
        ax_buf_fini(&again);
        ax_buf_fini(&bad);
    }
    ax_buf_fini(&good);
}

/* Only missing lines are measured again. */
static void a_shorter_file_is_completed(void **state)
{
    (void)state;
    ax_buf good = whole_file();
    const char *last = good.data + good.size - 1;
    while (last[-1] != '\n')
        last--;
    write_text(good.data, (size_t)(last - good.data));
    report r = run_process(FOLDER);
    assert_chosen(&r);
    assert_true(r.timed > 0 && r.timed < 100);
    ax_buf again = file_text();
    assert_true(again.size == good.size && !memcmp(again.data, good.data, good.size));
    ax_buf_fini(&again);
    ax_buf_fini(&good);
}

/* FNV-1a as published, independent of the plugin's. */
static uint64_t checksum(const char *text, size_t n)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)text[i]) * 1099511628211u;
    return h;
}

/* Changes the algorithm in line `number`, counted from 0, and corrects the checksum. */
static void rename_algorithm(ax_buf *text, int number, int which)
{
    char *line = text->data, sum[32];
    for (int i = 0; i < number; i++)
        line = strchr(line, '\n') + 1;
    char *end = strchr(line, '\n'), *words = end - 16 - 8 * 17; /* eight words and a checksum end a line */
    words[4 * 17 + 15] = (char)('0' + which);
    snprintf(sum, sizeof sum, "%016" PRIx64, checksum(line, (size_t)(end - 16 - line)));
    memcpy(end - 16, sum, 16);
}

static void plans_of_the_file_are_used(void **state)
{
    (void)state;
    ax_buf text = whole_file();
    rename_algorithm(&text, 2, 2); /* lines are in ascending order of m, n and k */
    write_text(text.data, text.size);
    report r = run_process(FOLDER);
    assert_int_equal(r.chosen[0], 2);
    assert_int_equal(r.timed, 0);
    ax_buf_fini(&text);
}

/* If the file names an algorithm that cuBLASLt does not support for the product, it is measured again and
 * replaced. */
static void plans_that_do_not_fit_are_replaced(void **state)
{
    (void)state;
    ax_buf good = whole_file(), text = {0};
    assert_int_equal(ax_buf_add(&text, good.data, good.size), AX_OK);
    rename_algorithm(&text, 1, FASTEST); /* a shape whose k is odd */
    write_text(text.data, text.size);
    report r = run_process(FOLDER);
    assert_chosen(&r);
    assert_true(r.timed > 0 && r.timed < 100);
    ax_buf again = file_text();
    assert_true(again.size == good.size && !memcmp(again.data, good.data, good.size));
    ax_buf_fini(&again);
    ax_buf_fini(&text);
    ax_buf_fini(&good);
}

static void processes_share_the_file(void **state)
{
    (void)state;
    enum { PROCESSES = 4 };
    report r[PROCESSES];
    assert_int_equal(ax_remove_tree(FOLDER), AX_OK);
    run_processes(PROCESSES, FOLDER, run_shapes, r);
    for (int i = 0; i < PROCESSES; i++)
        assert_chosen(&r[i]);
    ax_buf text = file_text();
    assert_int_equal(lines_of(&text), SHAPES);
    report later = run_process(FOLDER);
    assert_int_equal(later.timed, 0);
    ax_buf_fini(&text);
}

/* Without a file, plans are kept in memory while the process runs. */
static void no_file_can_be_made(void **state)
{
    (void)state;
    report r = run_process("/dev/null/plans");
    assert_chosen(&r);
    assert_true(r.timed > 0);
}

static void the_default_is_the_cache_folder(void **state)
{
    (void)state;
    static const char *const values[] = {NULL, "", "on"};
    assert_int_equal(ax_remove_tree(FOLDER), AX_OK);
    assert_int_equal(setenv("XDG_CACHE_HOME", FOLDER "/cache", 1), 0);
    for (size_t v = 0; v < AX_COUNT(values); v++) {
        report r = run_process(values[v]);
        assert_chosen(&r);
        assert_true(v ? r.timed == 0 : r.timed > 0);
    }
    assert_true(ax_path_exists(FOLDER "/cache/axonn/plans.txt"));
    assert_int_equal(setenv("XDG_CACHE_HOME", "elsewhere", 1), 0); /* not an absolute path: ignored */
    assert_int_equal(setenv("HOME", FOLDER, 1), 0);
    run_process("on");
    assert_true(ax_path_exists(FOLDER "/.cache/axonn/plans.txt"));
}

/* cuBLASLt gets all of the scratch that a GPU with more memory has. */
static void the_workspace_is_the_scratch(void **state)
{
    (void)state;
    static const char *const values[] = {"off", FOLDER};
    assert_int_equal(ax_remove_tree(FOLDER), AX_OK);
    setenv("AXONN_EMULATED_MEMORY", "64", 1); /* GiB */
    for (size_t v = 0; v < AX_COUNT(values); v++) {
        report r = run_process(values[v]);
        for (int i = 0; i < SHAPES; i++)
            assert_int_equal(r.chosen[i], v && shapes[i].n > 2 ? SPLIT : FIRST);
    }
    unsetenv("AXONN_EMULATED_MEMORY");
    report r = run_process(FOLDER); /* SPLIT is not possible here, and is replaced */
    assert_chosen(&r);
}

/* ---- epilogues ----------------------------------------------------------------------------------- */

typedef struct ending {
    double ms;     /* time of a call whose plan is known */
    long products; /* number of products run before it, those that were timed included */
    double exact;  /* time of a call with the other kind of GELU, on the same device, in ms */
} ending;

enum { N = 8, K = 8, ROOM = 4096 };

static double gelu(double x, ax_activation kind)
{
    double u = sqrt(2 / 3.14159265358979) * (x + 0.044715 * x * x * x);
    return kind == AX_GELU_TANH ? 0.5 * x * (1 + tanh(u)) : 0.5 * x * (1 + erf(x / sqrt(2)));
}

/* bf16 numbers of few bits, so that sums are exact. */
static double small(int which, int64_t i) { return value(which, i) / 4; }

static bool send(ax_stream *stream, void *to, int which, int64_t n)
{
    uint16_t host[64];
    for (int64_t i = 0; i < n; i++)
        host[i] = ax_bf16_from_float((float)small(which, i));
    return ax_copy_in(stream, to, host, (size_t)n * sizeof *host) == AX_OK;
}

/* Checks the results. Sums are exact. The result, and perhaps the preactivation, are rounded to bf16; a
 * rounding changes a value by less than 2^-8 of it, and GELU's slope multiplies the rounding error of the
 * preactivation by up to 1.13. The bound has this term even where GELU is near 0, as it is at -2. */
static bool ended_right(ax_stream *stream, const ax_gemm_args *g)
{
    uint16_t c[64], pre[64];
    const double step = 1e-4;
    if (ax_copy_out(stream, c, g->c, sizeof c) != AX_OK ||
        ax_copy_out(stream, pre, g->preact, sizeof pre) != AX_OK)
        return false;
    for (int64_t i = 0; i < g->m * N; i++) {
        double sum = 0, got = ax_bf16_to_float(c[i]), x = small(3, i), want;
        for (int64_t p = 0; p < K; p++)
            sum += small(0, i / N * K + p) * small(1, p * N + i % N);
        bool gradient = g->epilogue == AX_EPILOGUE_ACTIVATION_GRAD;
        want = gradient ? sum * (gelu(x + step, g->kind) - gelu(x - step, g->kind)) / (2 * step)
                        : gelu(sum, g->kind);
        if (fabs(got - want) > 0x1p-8 * (fabs(want) + 1.13 * fabs(sum)) + 1e-6 ||
            (!gradient && ax_bf16_to_float(pre[i]) != sum))
            return false;
    }
    return true;
}

/* Makes two calls and times the second. */
static bool call_twice(ax_stream *stream, const ax_gemm_args *g, long *products, double *ms)
{
    ax_kernel_total totals[AX_KERNEL_COUNT] = {{0}};
    long each[ALGORITHMS];
    bool ok = ax_run_gemm(stream, g) == AX_OK && ax_stream_wait(stream) == AX_OK && ended_right(stream, g);
    *products = all_products(counter(), each);
    ax_listener times = ax_kernel_totals(totals);
    ax_device_listen(stream->dev, &times);
    ok = ok && ax_run_gemm(stream, g) == AX_OK && ax_stream_wait(stream) == AX_OK;
    ax_device_unlisten(stream->dev, &times);
    *ms = totals[AX_K_gemm].seconds * 1e3;
    return ok && ended_right(stream, g);
}

/* Runs a 16-bit product of `m` rows with epilogue GELU or its gradient, for both kinds of GELU. */
static bool end_in_gelu(int64_t m, bool gradient, ending *out)
{
    ax_device *dev;
    char *memory;
    long products;
    if (ax_device_open("cuda", 1, &dev) != AX_OK || ax_device_alloc(dev, ROOM, (void **)&memory) != AX_OK)
        return false;
    ax_stream stream = {dev, NULL};
    ax_gemm_args g = {
        .m = m, .n = N, .k = K, .lda = K, .ldb = N, .ldc = N, .dtype = AX_BF16, .c_dtype = AX_BF16};
    g.a = memory, g.b = memory + 1024, g.c = memory + 2048, g.preact = memory + 3072;
    g.epilogue = gradient ? AX_EPILOGUE_ACTIVATION_GRAD : AX_EPILOGUE_ACTIVATION;
    bool ok = send(&stream, memory, 0, m * K) && send(&stream, memory + 1024, 1, K * N) &&
              send(&stream, memory + 3072, 3, m * N) && call_twice(&stream, &g, &out->products, &out->ms);
    g.kind = AX_GELU_EXACT;
    ok = ok && send(&stream, memory + 3072, 3, m * N) && call_twice(&stream, &g, &products, &out->exact);
    ax_device_free(dev, memory, ROOM);
    ax_device_close(&dev);
    return ok;
}

typedef bool ending_fn(int64_t m, bool variant, ending *out);

static ending run_ending(const char *plans, ending_fn *work, int64_t m, bool variant)
{
    ending *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
           out;
    int status;
    assert_true(shared != MAP_FAILED);
    pid_t child = fork();
    if (child == 0) {
        setenv("AXONN_PLANS", plans, 1);
        bool ok = work(m, variant, shared);
        if (!ok)
            fprintf(stderr, "m = %d: %s\n", (int)m, ax_error_message());
        _exit(!ok);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    out = *shared;
    munmap(shared, sizeof *shared);
    return out;
}

/* The epilogue is fused if that was measured to be faster; the stand-in's fused kernel is faster if m is
 * even. */
static void gelu_is_where_it_is_faster(void **state)
{
    const double launch = 0.125, first = 0.03, best = 0.01, rounding = 2 * 0x1p-24; /* a float */
    (void)state;
    for (int gradient = 0; gradient < 2; gradient++) {
        assert_int_equal(ax_remove_tree(FOLDER), AX_OK);
        for (int64_t m = 6; m < 8; m++) {
            ending off = run_ending("off", end_in_gelu, m, gradient),
                   timed = run_ending(FOLDER, end_in_gelu, m, gradient),
                   known = run_ending(FOLDER, end_in_gelu, m, gradient);
            assert_true(fabs(off.ms - first - launch) < rounding);
            assert_true(fabs(timed.ms - best - (m % 2 ? launch : 0)) < rounding);
            assert_true(known.ms == timed.ms);
            assert_true(fabs(known.exact - best - launch) < rounding);
            assert_true(off.products == 1 && timed.products > 8 && known.products == 1);
        }
    }
}

/* ---- sums of columns ----------------------------------------------------------------------------- */

enum { START = 3 }; /* what results contain before the first call */

/* Checks aᵀ·b and the sums of the columns of a, added `calls` times to START, or stored. All sums are exact.
 */
static bool summed_right(ax_stream *stream, const ax_gemm_args *g, int calls)
{
    float c[64], sums[8];
    if (ax_copy_out(stream, c, g->c, sizeof c) != AX_OK ||
        ax_copy_out(stream, sums, g->col_sums, sizeof sums) != AX_OK)
        return false;
    for (int64_t i = 0; i < g->m; i++) {
        double column = 0;
        for (int64_t p = 0; p < K; p++)
            column += small(0, p * g->lda + i);
        if ((double)sums[i] != (g->accumulate_sums ? START + calls * column : column))
            return false;
        for (int64_t j = 0; j < N; j++) {
            double sum = 0;
            for (int64_t p = 0; p < K; p++)
                sum += small(0, p * g->lda + i) * small(1, p * N + j);
            if ((double)c[i * N + j] != (g->accumulate ? START + calls * sum : sum))
                return false;
        }
    }
    return true;
}

static bool sum_twice(ax_stream *stream, const ax_gemm_args *g, ending *out)
{
    ax_kernel_total totals[AX_KERNEL_COUNT] = {{0}};
    long each[ALGORITHMS];
    const ax_fill_args c = {64, START, g->c, AX_F32}, sums = {8, START, g->col_sums, AX_F32};
    bool ok = ax_run_fill(stream, &c) == AX_OK && ax_run_fill(stream, &sums) == AX_OK &&
              ax_run_gemm(stream, g) == AX_OK && summed_right(stream, g, 1);
    out->products = all_products(counter(), each);
    ax_listener times = ax_kernel_totals(totals);
    ax_device_listen(stream->dev, &times);
    ok = ok && ax_run_gemm(stream, g) == AX_OK && ax_stream_wait(stream) == AX_OK;
    ax_device_unlisten(stream->dev, &times);
    out->ms = totals[AX_K_gemm].seconds * 1e3;
    return ok && summed_right(stream, g, 2);
}

/* Runs a product that also sums columns, as for the gradients of a weight and its bias. */
static bool end_in_sums(int64_t m, bool accumulate, ending *out)
{
    ax_device *dev;
    char *memory;
    if (ax_device_open("cuda", 1, &dev) != AX_OK || ax_device_alloc(dev, ROOM, (void **)&memory) != AX_OK)
        return false;
    ax_stream stream = {dev, NULL};
    ax_gemm_args g = {
        .m = m, .n = N, .k = K, .lda = 8, .ldb = N, .ldc = N, .dtype = AX_BF16, .trans_a = true};
    g.a = memory, g.b = memory + 1024, g.c = memory + 2048, g.col_sums = memory + 3072, g.c_dtype = AX_F32;
    g.accumulate = g.accumulate_sums = accumulate;
    bool ok = send(&stream, memory, 0, K * 8) && send(&stream, memory + 1024, 1, K * N) &&
              sum_twice(&stream, &g, out);
    ax_device_free(dev, memory, ROOM);
    ax_device_close(&dev);
    return ok;
}

/* The GEMM also sums columns if that was measured to be faster (the stand-in is faster if m is even), and if
 * the sums are in fp32. A call whose plan is known then launches nothing else if it stores the sums, and one
 * kernel that adds if it accumulates. Otherwise two kernels sum, after one that clears the sums. */
static void sums_are_where_they_are_faster(void **state)
{
    const double launch = 0.125, first = 0.03, best = 0.01, rounding = 2 * 0x1p-24; /* a float */
    enum { PROBES = 4 }; /* the algorithms that show the type of sums, once per process */
    (void)state;
    for (int accumulate = 0; accumulate < 2; accumulate++) {
        const double apart = (accumulate ? 2 : 3) * launch, fused = accumulate ? launch : 0;
        assert_int_equal(ax_remove_tree(FOLDER), AX_OK);
        for (int64_t m = 6; m < 8; m++) {
            ending off = run_ending("off", end_in_sums, m, accumulate),
                   timed = run_ending(FOLDER, end_in_sums, m, accumulate),
                   known = run_ending(FOLDER, end_in_sums, m, accumulate);
            assert_true(fabs(off.ms - first - apart) < rounding);
            assert_true(fabs(timed.ms - best - (m % 2 ? apart : fused)) < rounding);
            assert_true(known.ms == timed.ms);
            assert_true(off.products == 1 && timed.products > 8 && known.products == 1 + PROBES);
        }
        assert_int_equal(setenv("AXONN_EMULATED_NARROW_SUMS", "1", 1), 0);
        ending narrow = run_ending(FOLDER, end_in_sums, 6, accumulate);
        assert_true(fabs(narrow.ms - best - apart) < rounding);
        assert_int_equal(unsetenv("AXONN_EMULATED_NARROW_SUMS"), 0);
    }
}

static void another_value_is_refused(void **state)
{
    (void)state;
    ax_device *dev;
    assert_int_equal(setenv("AXONN_PLANS", "fast", 1), 0);
    assert_int_equal(ax_device_open("cuda", 1, &dev), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "AXONN_PLANS is \"fast\""));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_timed),
        cmocka_unit_test(timing_ends_in_time),
        cmocka_unit_test(a_run_gets_no_further_time),
        cmocka_unit_test(the_fastest_is_found_once),
        cmocka_unit_test(a_damaged_file_is_completed),
        cmocka_unit_test(a_shorter_file_is_completed),
        cmocka_unit_test(plans_of_the_file_are_used),
        cmocka_unit_test(plans_that_do_not_fit_are_replaced),
        cmocka_unit_test(processes_share_the_file),
        cmocka_unit_test(no_file_can_be_made),
        cmocka_unit_test(the_default_is_the_cache_folder),
        cmocka_unit_test(the_workspace_is_the_scratch),
        cmocka_unit_test(gelu_is_where_it_is_faster),
        cmocka_unit_test(sums_are_where_they_are_faster),
        cmocka_unit_test(another_value_is_refused),
    };
    if (!getenv("AXONN_PLUGINS"))
        return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
