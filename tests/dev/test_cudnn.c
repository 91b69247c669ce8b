/* Attention of the device "cuda" on the emulated GPU, in addition to the cases of test_backend.c: which
 * implementation AXONN_ATTENTION chooses, when cuDNN is opened, that a cuDNN with wrong results is detected,
 * and that a cuDNN without its compiler is reported. */
#include "axonn/dev.h"
#include "axonn/runtime.h"

#include "support/kernel_cases.h"
#include "support/sampled.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* Checks the first call of a shape, and the next one, which the plugin does not check again. The bound is far
 * above the rounding to bf16 and far below the effect of a wrong scale on a softmax. */
static void attention_is_right(ax_device *cuda, ax_device *ref, ax_kernel kernel, ax_dtype dtype)
{
    const int step = one_of(11, 11); /* every step-th case is tested */
    kernel_case c;
    int judged = 0;
    for (int index = 1; kernel_case_build(kernel, dtype, index, &c); index += step) {
        void *want[KC_OPERANDS], *got[KC_OPERANDS];
        kernel_case_run(ref, &c, 0, want);
        for (int again = 0; again < 2; again++) {
            kernel_case_run(cuda, &c, 0, got);
            for (int i = 0; i < c.operands; i++) {
                const kc_operand *o = &c.operand[i];
                double off = 0, norm = 0;
                for (int64_t j = 0; o->role != KC_IN && j < o->count; j++) {
                    double g = ax_load(o->dtype, got[i], j), w = ax_load(o->dtype, want[i], j);
                    off += isfinite(w) ? (g - w) * (g - w) : 0;
                    norm += isfinite(w) ? w * w : 0;
                }
                if (!(off <= norm / 64))
                    fail_msg("%s: %s is off by %.2g", c.name, o->name, sqrt(off / norm));
            }
            kc_results_free(got);
            judged++;
        }
        kc_results_free(want);
        kernel_case_free(&c);
    }
    assert_true(judged > 3);
}

static void wrong_results_are_not_taken(void **state)
{
    ax_device *cuda, *ref;
    (void)state;
    assert_int_equal(setenv("AXONN_EMULATED_CUDNN", "wrong", 1), 0);
    assert_int_equal(ax_device_open("cuda", 1, &cuda), AX_OK);
    assert_int_equal(ax_device_open("ref", 1, &ref), AX_OK);
    for (int fp16 = 0; fp16 < 2; fp16++) {
        attention_is_right(cuda, ref, AX_K_attention, fp16 ? AX_F16 : AX_BF16);
        attention_is_right(cuda, ref, AX_K_attention_grad, fp16 ? AX_F16 : AX_BF16);
    }
    ax_device_close(&ref);
    ax_device_close(&cuda);
    unsetenv("AXONN_EMULATED_CUDNN");
}

/* Returns a counter of the stand-in for cuDNN in this process. */
static long counted(const char *what)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/libaxonn_cuda.so", getenv("AXONN_PLUGINS"));
    void *plugin = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    long (*count)(void) = (long (*)(void))(uintptr_t)dlsym(plugin, what);
    assert_non_null(count);
    return count();
}

static long opened(void) { return counted("ax_emulated_cudnn_opened"); }
static long executed(void) { return counted("ax_emulated_cudnn_executed"); }

static void run_attention(ax_device *cuda, ax_dtype dtype)
{
    kernel_case c;
    void *got[KC_OPERANDS];
    for (int index = 1; index < 12 && kernel_case_build(AX_K_attention, dtype, index, &c); index += 2) {
        kernel_case_run(cuda, &c, 0, got);
        kc_results_free(got);
        kernel_case_free(&c);
    }
}

static void the_library_is_opened_once_it_is_needed(void **state)
{
    static const char *const hows[] = {"right", "absent"};
    (void)state;
    for (size_t i = 0; i < AX_COUNT(hows); i++) {
        ax_device *cuda;
        setenv("AXONN_EMULATED_CUDNN", hows[i], 1);
        assert_int_equal(ax_device_open("cuda", 1, &cuda), AX_OK);
        long before = opened();
        run_attention(cuda, AX_F32);
        assert_int_equal(opened(), before);
        run_attention(cuda, AX_BF16);
        run_attention(cuda, AX_BF16);
        assert_int_equal(opened(), before + 1);
        ax_device_close(&cuda);
    }
    ax_device *cuda;
    setenv("AXONN_ATTENTION", "cudnn", 1);
    assert_int_equal(ax_device_open("cuda", 1, &cuda), AX_ERR_USAGE);
    unsetenv("AXONN_ATTENTION");
    unsetenv("AXONN_EMULATED_CUDNN");
}

/* Runs attention twice on one device and reads what this logs at level warn. */
static void attention_logs(char *log, size_t size)
{
    ax_device *cuda;
    FILE *file = tmpfile();
    int saved = dup(STDERR_FILENO);
    assert_true(file && saved >= 0 && dup2(fileno(file), STDERR_FILENO) >= 0);
    assert_int_equal(ax_device_open("cuda", 1, &cuda), AX_OK);
    run_attention(cuda, AX_BF16);
    run_attention(cuda, AX_F16);
    ax_device_close(&cuda);
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(file);
    log[fread(log, 1, size - 1, file)] = 0;
    fclose(file);
}

/* Without libnvrtc cuDNN can be opened, but makes no plan. One warning says so, the description of the device
 * says so, and a device that must use cuDNN is not opened. */
static void a_missing_compiler_is_reported_once(void **state)
{
    char text[4096];
    ax_device *cuda;
    (void)state;
    assert_int_equal(ax_device_describe("cuda", text, sizeof text), AX_OK);
    assert_non_null(strstr(text, "GiB; attention by cuDNN 9.19.0"));
    attention_logs(text, sizeof text);
    assert_string_equal(text, "");
    setenv("AXONN_EMULATED_CUDNN", "uncompiled", 1);
    assert_int_equal(ax_device_describe("cuda", text, sizeof text), AX_OK);
    assert_non_null(strstr(text, "attention by own kernels (flash): cuDNN 9.19.0 makes no plan"));
    assert_non_null(strstr(text, "libnvrtc"));
    attention_logs(text, sizeof text);
    const char *warning = strstr(
        text, "warning: cuda: attention runs by the plugin's own kernels, because cuDNN cannot be used "
              "(runtime.attention=flash chooses them without this warning): cuDNN 9.19.0 makes no plan");
    assert_non_null(warning);
    assert_ptr_equal(strchr(warning, '\n'), text + strlen(text) - 1); /* no other line follows */
    setenv("AXONN_ATTENTION", "cudnn", 1);
    assert_int_equal(ax_device_open("cuda", 1, &cuda), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "libnvrtc"));
    assert_non_null(strstr(ax_error_message(), "runtime kernel compilation failure"));
    setenv("AXONN_ATTENTION", "plain", 1);
    assert_int_equal(ax_device_describe("cuda", text, sizeof text), AX_OK);
    assert_non_null(strstr(text, "attention by own kernels (plain)"));
    unsetenv("AXONN_ATTENTION");
    unsetenv("AXONN_EMULATED_CUDNN");
    assert_int_equal(ax_device_describe("cpu", text, sizeof text), AX_OK);
    assert_string_equal(text, "");
}

enum { TIME = 40, LONG = 640, WIDTH = 16, NUMBERS = LONG * WIDTH };

/* Allocates device memory with numbers between -1 and 1, or zeros. */
static void *numbers(ax_stream *stream, int seed)
{
    uint16_t host[NUMBERS];
    void *memory;
    for (int i = 0; i < NUMBERS; i++)
        ax_store(AX_BF16, host, i, seed ? sin(seed * 100 + i * 1.7) : 0);
    assert_int_equal(ax_device_alloc(stream->dev, sizeof host, &memory), AX_OK);
    assert_int_equal(ax_copy_in(stream, memory, host, sizeof host), AX_OK);
    return memory;
}

/* Memory and arguments of attention and its gradient over one sequence, in bf16. */
typedef struct one_call {
    void *memory[10]; /* q k v dout o lse delta dq dk dv */
    ax_attention_args forward;
    ax_attention_grad_args backward;
} one_call;

static one_call call_make(ax_stream *s, int64_t time, const void *doc_start)
{
    one_call c;
    for (int i = 0; i < 10; i++)
        c.memory[i] = numbers(s, i < 4 ? i + 1 : 0);
    c.forward = (ax_attention_args){.batch = 1,
                                    .q_len = time,
                                    .kv_len = time,
                                    .heads = 1,
                                    .kv_heads = 1,
                                    .head_dim = WIDTH,
                                    .q_ld = WIDTH,
                                    .kv_ld = WIDTH,
                                    .scale = 0.25,
                                    .q = c.memory[0],
                                    .k = c.memory[1],
                                    .v = c.memory[2],
                                    .doc_start = doc_start,
                                    .o = c.memory[4],
                                    .lse = c.memory[5],
                                    .dtype = AX_BF16};
    c.backward = (ax_attention_grad_args){.batch = 1,
                                          .q_len = time,
                                          .heads = 1,
                                          .kv_heads = 1,
                                          .head_dim = WIDTH,
                                          .q_ld = WIDTH,
                                          .kv_ld = WIDTH,
                                          .scale = 0.25,
                                          .q = c.memory[0],
                                          .k = c.memory[1],
                                          .v = c.memory[2],
                                          .o = c.memory[4],
                                          .lse = c.memory[5],
                                          .dout = c.memory[3],
                                          .doc_start = doc_start,
                                          .delta = c.memory[6],
                                          .dq = c.memory[7],
                                          .dk = c.memory[8],
                                          .dv = c.memory[9],
                                          .dtype = AX_BF16};
    return c;
}

static void call_run(ax_stream *s, const one_call *c)
{
    assert_int_equal(ax_run_attention(s, &c->forward), AX_OK);
    assert_int_equal(ax_run_attention_grad(s, &c->backward), AX_OK);
}

static void call_free(ax_stream *s, one_call *c)
{
    for (int i = 0; i < 10; i++)
        ax_device_free(s->dev, c->memory[i], NUMBERS * sizeof(uint16_t));
}

/* If every token is a document, dq and dk are pure rounding errors, which differ between cuDNN and own
 * kernels. The plan must be accepted all the same: the second call runs by cuDNN alone. */
static void rounding_of_zero_is_not_judged(void **state)
{
    ax_device *cuda;
    int32_t each[TIME];
    void *doc_start;
    (void)state;
    assert_int_equal(ax_device_open("cuda", 1, &cuda), AX_OK);
    ax_stream s = {.dev = cuda};
    for (int i = 0; i < TIME; i++)
        each[i] = i;
    assert_int_equal(ax_device_alloc(cuda, sizeof each, &doc_start), AX_OK);
    assert_int_equal(ax_copy_in(&s, doc_start, each, sizeof each), AX_OK);
    one_call c = call_make(&s, TIME, doc_start);
    call_run(&s, &c);
    long before = executed();
    assert_int_equal(ax_run_attention_grad(&s, &c.backward), AX_OK);
    assert_int_equal(executed(), before + 1);
    call_free(&s, &c);
    ax_device_free(cuda, doc_start, sizeof each);
    ax_device_close(&cuda);
}

/* The scratch of the emulated GPU has room for dS of 512 positions. Longer calls run by cuDNN only from
 * version 9.25 on, which has a graph without dS. */
static void long_sequences_have_a_graph_of_their_own(void **state)
{
    static const char *const versions[] = {"9.19", "9.25"};
    uint16_t dq[2][LONG * WIDTH];
    (void)state;
    for (int v = 0; v < 2; v++) {
        ax_device *cuda;
        setenv("AXONN_EMULATED_CUDNN", versions[v], 1);
        assert_int_equal(ax_device_open("cuda", 1, &cuda), AX_OK);
        ax_stream s = {.dev = cuda};
        one_call c = call_make(&s, LONG, NULL);
        call_run(&s, &c);
        long before = executed();
        assert_int_equal(ax_run_attention_grad(&s, &c.backward), AX_OK);
        assert_int_equal(executed(), before + v);
        assert_int_equal(ax_copy_out(&s, dq[v], c.memory[7], sizeof dq[v]), AX_OK);
        call_free(&s, &c);
        ax_device_close(&cuda);
    }
    unsetenv("AXONN_EMULATED_CUDNN");
    double off = 0, size = 0;
    for (int i = 0; i < LONG * WIDTH; i++) {
        double a = ax_load(AX_BF16, dq[0], i), b = ax_load(AX_BF16, dq[1], i);
        off += (a - b) * (a - b);
        size += a * a;
    }
    assert_true(size > 0 && sqrt(off / size) < 1.0 / 128); /* two roundings to bf16 */
}

/* cuDNN's graphs do not draw the masks of the other devices. At rate 0 there is nothing to draw. */
static void dropout_is_not_left_to_cudnn(void **state)
{
    ax_device *cuda;
    (void)state;
    assert_int_equal(ax_device_open("cuda", 1, &cuda), AX_OK);
    ax_stream s = {.dev = cuda};
    one_call c = call_make(&s, TIME, NULL);
    c.forward.drop = c.backward.drop = (ax_attention_dropout){.p = 0, .key = 7, .heads = 1};
    call_run(&s, &c);
    long before = executed();
    call_run(&s, &c);
    assert_int_equal(executed(), before + 2);
    c.forward.drop.p = c.backward.drop.p = 0.1;
    before = executed();
    call_run(&s, &c);
    assert_int_equal(executed(), before);
    call_free(&s, &c);
    ax_device_close(&cuda);
}

static void attention_is_chosen_by_name(void **state)
{
    static const char *const names[] = {"plain", "flash", "cudnn"};
    ax_device *cuda;
    (void)state;
    for (size_t i = 0; i < AX_COUNT(names); i++) {
        setenv("AXONN_ATTENTION", names[i], 1);
        assert_int_equal(ax_device_open("cuda", 1, &cuda), AX_OK);
        ax_device_close(&cuda);
    }
    setenv("AXONN_ATTENTION", "fast", 1);
    assert_int_equal(ax_device_open("cuda", 1, &cuda), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "AXONN_ATTENTION: must be auto, plain, flash or cudnn"));
    unsetenv("AXONN_ATTENTION");
}

/* A run that began with cuDNN goes on without it. */
static void attention_of_a_resumed_run_is_preferred(void **state)
{
    ax_device *cuda;
    const char *value;
    (void)state;
    setenv("AXONN_EMULATED_CUDNN", "absent", 1);
    assert_int_equal(ax_runtime_prefer(AX_RUNTIME_ATTENTION, "cudnn"), AX_OK);
    assert_int_equal(ax_device_open("cuda", 1, &cuda), AX_OK);
    run_attention(cuda, AX_BF16);
    ax_device_close(&cuda);
    assert_int_equal(ax_runtime_get(AX_RUNTIME_ATTENTION, &value), AX_OK);
    assert_string_equal(value, "auto");
    assert_int_equal(ax_runtime_set(AX_RUNTIME_ATTENTION, NULL), AX_OK);
    unsetenv("AXONN_EMULATED_CUDNN");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_results_are_not_taken),
        cmocka_unit_test(the_library_is_opened_once_it_is_needed),
        cmocka_unit_test(a_missing_compiler_is_reported_once),
        cmocka_unit_test(rounding_of_zero_is_not_judged),
        cmocka_unit_test(long_sequences_have_a_graph_of_their_own),
        cmocka_unit_test(dropout_is_not_left_to_cudnn),
        cmocka_unit_test(attention_is_chosen_by_name),
        cmocka_unit_test(attention_of_a_resumed_run_is_preferred),
    };
    if (!getenv("AXONN_PLUGINS")) {
        printf("skipped: there is no emulated GPU\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
