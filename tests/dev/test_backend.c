/* Every kernel of every backend of this host against ref, on the cases of support/kernel_cases.h.
 *
 * F64 and F32 results may err by the rounding of their longest chain of operations (the case's bound,
 * relative to the array's norm). 16-bit results are judged by the reference's own gap: they may be at most
 * twice as far from ref's F32 result as ref's 16-bit result is. Results are the same bits for 1, 2 and 3
 * threads. */
#include "axonn/dev.h"

#include "dev/cpu/cpu.h"

#include "support/kernel_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct suite {
    ax_device *ref, *dev[KC_THREADS]; /* dev[i] has i + 1 threads */
    ax_kernel kernel;
    bool vectors; /* judge a table of vector kernels, which have no F64 */
} suite;

static bool same_bits(const kc_operand *o, const void *a, const void *b, int64_t i)
{
    size_t size = ax_dtype_size(o->dtype);
    return !memcmp((const char *)a + (size_t)i * size, (const char *)b + (size_t)i * size, size);
}

static void check_exact(const kernel_case *c, const kc_operand *o, const void *got, const void *want)
{
    for (int64_t i = 0; i < o->count; i++)
        if (!same_bits(o, got, want, i) &&
            !(isnan(ax_load(o->dtype, got, i)) && isnan(ax_load(o->dtype, want, i))))
            fail_msg("%s: %s[%lld] is %.17g, not exactly %.17g", c->name, o->name, (long long)i,
                     ax_load(o->dtype, got, i), ax_load(o->dtype, want, i));
}

/* Norms over the elements that ref wrote and that are finite; the others must be equal. */
static void check_close(const kernel_case *c, const kc_operand *o, const void *got, const void *want,
                        ax_dtype wide_dtype, const void *wide)
{
    double error = 0, gap = 0, norm = 0;
    int64_t n = 0;
    for (int64_t i = 0; i < o->count; i++) {
        double g = ax_load(o->dtype, got, i), w = ax_load(o->dtype, want, i),
               x = ax_load(wide_dtype, wide, i);
        if (isfinite(w) && isfinite(g)) {
            error += (g - x) * (g - x);
            gap += (w - x) * (w - x);
            norm += x * x;
            n++;
        } else if (!same_bits(o, got, want, i)) {
            fail_msg("%s: %s[%lld] is %.9g, not %.9g", c->name, o->name, (long long)i, g, w);
        }
    }
    error = sqrt(error), gap = sqrt(gap), norm = sqrt(norm);
    if (!(error <= 2 * gap + o->bound * norm))
        fail_msg("%s: %s is %.3g off, relative to its norm; permitted %.3g + 2 x %.3g", c->name, o->name,
                 error / norm, o->bound, gap / norm);
    /* No single element hides behind the norm of the others. */
    double unit = wide_dtype == o->dtype ? o->bound : 0x1p-8, typical = n ? norm / sqrt((double)n) : 0;
    for (int64_t i = 0; i < o->count; i++) {
        double g = ax_load(o->dtype, got, i), x = ax_load(wide_dtype, wide, i);
        if (isfinite(g) && isfinite(x) && fabs(g - x) > 8 * unit * (fabs(x) + typical))
            fail_msg("%s: %s[%lld] is %.9g, not %.9g", c->name, o->name, (long long)i, g, x);
    }
}

static void check_threads(const kernel_case *c, void *const a[], void *const b[], int threads)
{
    for (int i = 0; i < c->operands; i++)
        if (memcmp(a[i], b[i], (size_t)c->operand[i].count * ax_dtype_size(c->operand[i].dtype)))
            fail_msg("%s: %s differs between 1 and %d threads", c->name, c->operand[i].name, threads);
}

static void check_case(suite *s, const kernel_case *c, int skew)
{
    void *want[KC_OPERANDS], *got[KC_THREADS][KC_OPERANDS], *wide[KC_OPERANDS] = {0};
    kernel_case wide_case = *c;
    bool widened = kernel_case_has_16bit(c);
    kernel_case_run(s->ref, c, 0, want);
    if (widened) {
        kernel_case_widen(c, &wide_case);
        kernel_case_run(s->ref, &wide_case, 0, wide);
    }
    for (int t = 0; t < KC_THREADS; t++)
        kernel_case_run(s->dev[t], c, skew, got[t]);
    for (int i = 0; i < c->operands; i++)
        if (c->operand[i].role == KC_IN)
            continue;
        else if (c->operand[i].bound == 0)
            check_exact(c, &c->operand[i], got[0][i], want[i]);
        else
            check_close(c, &c->operand[i], got[0][i], want[i], wide_case.operand[i].dtype,
                        widened ? wide[i] : want[i]);
    for (int t = 1; t < KC_THREADS; t++)
        check_threads(c, got[0], got[t], t + 1);
    if (widened)
        kernel_case_free(&wide_case);
    kc_results_free(want);
    kc_results_free(wide);
    for (int t = 0; t < KC_THREADS; t++)
        kc_results_free(got[t]);
}

static void kernel_agrees_with_ref(void **state)
{
    suite *s = *state;
    int cases = 0, step = s->vectors ? 3 : 1; /* a third of the cases for each further instruction set */
    for (int dtype = s->vectors ? AX_F32 : 0; dtype < AX_DTYPE_COUNT; dtype++) {
        kernel_case c;
        for (int index = 0; kernel_case_build(s->kernel, (ax_dtype)dtype, index, &c);
             index += step, cases++) {
            check_case(s, &c, index / step % 3 == 1);
            kernel_case_free(&c);
        }
    }
    assert_true(cases > (s->vectors ? 1 : 5));
}

/* One test per kernel, so that a failure names it. `isa`: the cpu backend's table to judge, or NULL. */
static int run_backend(const char *backend, const ax_cpu_isa *isa)
{
    static struct CMUnitTest tests[AX_KERNEL_COUNT];
    static suite suites[AX_KERNEL_COUNT];
    ax_device *ref, *dev[KC_THREADS];
    if (ax_device_open("ref", 1, &ref) != AX_OK)
        return 1;
    for (int t = 0; t < KC_THREADS; t++)
        if (ax_device_open(backend, t + 1, &dev[t]) != AX_OK)
            return 1;
    for (int t = 0; isa && t < KC_THREADS; t++)
        ((ax_cpu *)dev[t]->impl)->isa = isa;
    for (int k = 0; k < AX_KERNEL_COUNT; k++) {
        suites[k] = (suite){.ref = ref, .kernel = (ax_kernel)k, .vectors = isa != NULL};
        memcpy(suites[k].dev, dev, sizeof dev);
        tests[k] =
            (struct CMUnitTest){ax_kernel_name((ax_kernel)k), kernel_agrees_with_ref, NULL, NULL, &suites[k]};
    }
    int failed = _cmocka_run_group_tests(isa ? isa->name : backend, tests, AX_KERNEL_COUNT, NULL, NULL);
    for (int t = 0; t < KC_THREADS; t++)
        ax_device_close(&dev[t]);
    ax_device_close(&ref);
    return failed;
}

/* Backends without a kernel of their own (check, dry) have nothing to judge. */
static bool computes(const ax_device_ops *ops)
{
    for (int k = 0; k < AX_KERNEL_COUNT; k++)
        if (ops->kernel[k])
            return strcmp(ops->name, "ref") && !(ops->absent && ops->absent());
    return false;
}

int main(void)
{
    int failed = 0;
    for (int i = 0; i < ax_device_count(); i++)
        if (computes(ax_device_backend(i)))
            failed += run_backend(ax_device_backend(i)->name, NULL);
    const ax_cpu_isa *isa, *chosen;
    if (ax_cpu_isa_choose(&chosen) != AX_OK)
        return 1;
    for (int i = 0; (isa = ax_cpu_isa_at(i)); i++)
        if (isa != chosen) /* which is judged above */
            failed += run_backend("cpu", isa);
    return failed;
}
