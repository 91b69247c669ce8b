/* The instruction set of a cpu device: the best, or the one that runtime.isa or AXONN_ISA names, or an error
 * that lists the available ones. */
#include "dev/cpu/cpu.h"

#include "axonn/runtime.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static const ax_cpu_isa *opened(const char *device)
{
    ax_device *dev;
    assert_int_equal(ax_device_open(device, 1, &dev), AX_OK);
    const ax_cpu_isa *isa = ((const ax_cpu *)dev->impl)->isa;
    ax_device_close(&dev);
    return isa;
}

static void the_best_runs_by_default(void **state)
{
    (void)state;
    const char *name;
    static const char *const none[] = {NULL, "", "auto"};
    for (size_t i = 0; i < AX_COUNT(none); i++) {
        none[i] ? setenv("AXONN_ISA", none[i], 1) : unsetenv("AXONN_ISA");
        assert_ptr_equal(opened("cpu"), ax_cpu_isa_at(0));
        assert_int_equal(ax_isa_chosen(&name), AX_OK);
        assert_string_equal(name, ax_isa_name(0));
    }
}

/* Each instruction set computes the same products, because these sums are exact. */
static void each_that_can_run_does(void **state)
{
    (void)state;
    enum { N = 65 };
    float a[N * N], b[N * N], c[N * N], first[N * N];
    int count = 0;
    for (int i = 0; i < N * N; i++) {
        a[i] = (float)(i % 7 - 3);
        b[i] = (float)(i % 5 - 2);
    }
    for (const char *name; (name = ax_isa_name(count)); count++) {
        ax_device *dev;
        setenv("AXONN_ISA", name, 1);
        assert_string_equal(opened("cpu")->name, name);
        assert_string_equal(opened("check:cpu")->name, name);
        assert_int_equal(ax_device_open("cpu", 2, &dev), AX_OK);
        ax_stream stream = {dev, NULL};
        ax_gemm_args g = {.m = N, .n = N, .k = N, .a = a, .b = b, .c = c, .lda = N, .ldb = N, .ldc = N};
        g.dtype = g.c_dtype = AX_F32;
        assert_int_equal(ax_run_gemm(&stream, &g), AX_OK);
        if (count)
            assert_memory_equal(c, first, sizeof c);
        memcpy(first, c, sizeof c);
        ax_device_close(&dev);
    }
    assert_true(count > 0);
    assert_string_equal(ax_isa_name(count - 1), "generic");
}

/* Each way of reading reads every line once, and nothing after the array, which ends at the end of its
 * memory. */
static void all_of_memory_is_read(void **state)
{
    (void)state;
    enum { LINES = 203, WORDS = AX_CPU_LINE / sizeof(uint64_t), SHIFT = 3 };
    for (int64_t lines = 0; lines < LINES; lines += lines < 70 ? 1 : 7)
        for (int64_t more = 0; more < AX_CPU_LINE; more += 21) {
            int64_t bytes = lines * AX_CPU_LINE + more;
            char *memory = malloc((size_t)(SHIFT + bytes)), *from = memory + SHIFT;
            uint64_t sum = 0, word;
            for (int64_t i = 0; i < bytes; i++)
                from[i] = (char)(i * 31 + i / 251);
            for (int64_t i = 0; i < lines * WORDS; i++)
                memcpy(&word, from + i * (int64_t)sizeof word, sizeof word), sum += word;
            for (int i = 0; ax_cpu_isa_at(i); i++)
                for (int way = 0; way < AX_CPU_READ_WAYS; way++)
                    assert_true(ax_cpu_isa_at(i)->read(way, from, bytes) == sum);
            free(memory);
        }
}

/* ax_device_read returns the rate of reading all spans; 0 if there is nothing to read, or no way to measure.
 */
static void reading_has_a_rate(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    char *memory = calloc(1, BYTES);
    ax_span span[] = {{memory, 1}, {memory + 1, 999}, {memory, 0}, {memory + 1000, BYTES - 1000}};
    ax_device *dev;
    unsetenv("AXONN_ISA");
    for (int threads = 1; threads <= 3; threads++) {
        assert_int_equal(ax_device_open("cpu", threads, &dev), AX_OK);
        assert_true(ax_device_read(dev, span, 4, 0) > 0); /* finds the fastest way */
        double begin = ax_now(), rate = ax_device_read(dev, span, 4, 1e-3), seconds = ax_now() - begin;
        assert_true(rate > BYTES / seconds); /* more than one pass in that time */
        assert_true(ax_device_read(dev, span, 0, 1e-3) == 0);
        assert_true(ax_device_read(dev, span + 2, 1, 1e-3) == 0);
        ax_device_close(&dev);
    }
    assert_int_equal(ax_device_open("ref", 1, &dev), AX_OK);
    assert_true(ax_device_read(dev, span, 4, 1e-3) == 0); /* this backend cannot measure */
    ax_device_close(&dev);
    void *guarded; /* memory that the host may not access */
    assert_int_equal(ax_device_open("check:cpu", 2, &dev), AX_OK);
    assert_int_equal(ax_device_alloc(dev, BYTES, &guarded), AX_OK);
    assert_true(ax_device_read(dev, &(ax_span){guarded, BYTES}, 1, 1e-3) > 0);
    ax_device_free(dev, guarded, BYTES);
    ax_device_close(&dev);
    free(memory);
}

static void others_are_refused(void **state)
{
    (void)state;
    static const char *const wrong[] = {"mmx", "AVX2", "avx", "avx512_bf16 ", "generic,avx2"};
    for (size_t i = 0; i < AX_COUNT(wrong); i++) {
        ax_device *dev;
        const char *name;
        setenv("AXONN_ISA", wrong[i], 1);
        assert_int_equal(ax_device_open("cpu", 1, &dev), AX_ERR_USAGE);
        assert_null(dev);
        assert_non_null(strstr(ax_error_message(), wrong[i]));
        for (int k = 0; ax_isa_name(k); k++)
            assert_non_null(strstr(ax_error_message(), ax_isa_name(k)));
        assert_int_equal(ax_isa_chosen(&name), AX_ERR_USAGE);
        assert_int_equal(ax_device_open("ref", 1, &dev), AX_OK); /* ref does not use AXONN_ISA */
        ax_device_close(&dev);
    }
}

/* The names of instruction sets that this processor cannot run. */
static void those_that_cannot_run_are_refused(void **state)
{
    (void)state;
    static const char *const all[] = {"avx512_amx", "avx512_bf16", "avx512", "avx2"};
    unsetenv("AXONN_ISA");
    for (size_t i = 0; i < AX_COUNT(all); i++) {
        const char *name;
        int k = 0;
        while (ax_isa_name(k) && strcmp(ax_isa_name(k), all[i]) != 0)
            k++;
        if (ax_isa_name(k))
            continue;
        assert_int_equal(ax_runtime_set(AX_RUNTIME_ISA, all[i]), AX_OK);
        assert_int_equal(ax_isa_chosen(&name), AX_ERR_USAGE);
        assert_non_null(strstr(ax_error_message(), "runtime.isa is \"avx"));
        assert_non_null(strstr(ax_error_message(), ax_isa_name(0)));
        assert_int_equal(ax_runtime_prefer(AX_RUNTIME_ISA, all[i]), AX_OK); /* of a run from elsewhere */
        assert_ptr_equal(opened("cpu"), ax_cpu_isa_at(0));
        assert_int_equal(ax_isa_chosen(&name), AX_OK);
        assert_string_equal(name, ax_isa_name(0));
    }
    assert_int_equal(ax_runtime_set(AX_RUNTIME_ISA, NULL), AX_OK);
}

static void the_key_wins(void **state)
{
    (void)state;
    setenv("AXONN_ISA", ax_isa_name(0), 1);
    assert_int_equal(ax_runtime_set(AX_RUNTIME_ISA, "generic"), AX_OK);
    assert_string_equal(opened("cpu")->name, "generic");
    assert_int_equal(ax_runtime_set(AX_RUNTIME_ISA, NULL), AX_OK);
    assert_string_equal(opened("cpu")->name, ax_isa_name(0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_best_runs_by_default),
                                       cmocka_unit_test(each_that_can_run_does),
                                       cmocka_unit_test(all_of_memory_is_read),
                                       cmocka_unit_test(reading_has_a_rate),
                                       cmocka_unit_test(others_are_refused),
                                       cmocka_unit_test(those_that_cannot_run_are_refused),
                                       cmocka_unit_test(the_key_wins)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
