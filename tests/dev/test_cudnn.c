/* Attention of the device "cuda" on the emulated GPU, beside the kernel cases of test_backend.c: which one
 * AXONN_ATTENTION chooses, when the library is opened, and that one whose results are wrong is found out. */
#include "axonn/dev.h"

#include "support/kernel_cases.h"
#include "support/sanitized.h"

#include <dlfcn.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* The first call of a shape, and the next one, which is not judged again. The bound is far above rounding to
 * bf16 and far below what a wrong scale does to a softmax. */
static void attention_is_right(ax_device *cuda, ax_device *ref, ax_kernel kernel)
{
    const int step = SANITIZED ? 5 : 2; /* one case of so many */
    kernel_case c;
    int judged = 0;
    for (int index = 1; kernel_case_build(kernel, AX_BF16, index, &c); index += step) {
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
    attention_is_right(cuda, ref, AX_K_attention);
    attention_is_right(cuda, ref, AX_K_attention_grad);
    ax_device_close(&ref);
    ax_device_close(&cuda);
    unsetenv("AXONN_EMULATED_CUDNN");
}

/* How often the stand-in was opened in this process. */
static long opened(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/libaxonn_cuda.so", getenv("AXONN_PLUGINS"));
    void *plugin = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    long (*count)(void) = (long (*)(void))(uintptr_t)dlsym(plugin, "ax_emulated_cudnn_opened");
    assert_non_null(count);
    return count();
}

static void run_attention(ax_device *cuda, ax_dtype dtype)
{
    kernel_case c;
    void *got[KC_OPERANDS];
    for (int index = 0; index < 4 && kernel_case_build(AX_K_attention, dtype, index, &c); index++) {
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
    assert_non_null(strstr(ax_error_message(), "AXONN_ATTENTION is \"fast\""));
    unsetenv("AXONN_ATTENTION");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_results_are_not_taken),
        cmocka_unit_test(the_library_is_opened_once_it_is_needed),
        cmocka_unit_test(attention_is_chosen_by_name),
    };
    if (!getenv("AXONN_PLUGINS")) {
        printf("skipped: there is no emulated GPU\n");
        return 77;
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
