/* Every kernel of every backend of this host against ref, on the cases of support/kernel_cases.h.
 *
 * The error of F64 and F32 results may be the rounding error of their longest chain of operations (the case's
 * bound, relative to the array's norm). 16-bit results may be at most twice as far from ref's F32 result as
 * ref's own 16-bit result is. Results must be bitwise the same for 1, 2 and 3 threads. */
#include "axonn/dev.h"

#include "dev/backend.h"
#include "dev/cpu/cpu.h"

#include "support/kernel_cases.h"
#include "support/sampled.h"

#include <assert.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_JUDGED = 16 };

/* The kernels that are tested: those of a backend, of one of the instruction sets of the cpu backend, or
 * attention by the plugin's own kernels instead of cuDNN. */
typedef struct judged {
    const char *name;
    bool further; /* an instruction set that is not the default: no F64 */
    bool attends; /* attention only */
    int step;     /* every step-th case is tested */
    int devices;  /* dev[i] has i + 1 threads; one device if the host's threads do not compute */
    ax_device *dev[KC_THREADS];
} judged;

typedef struct suite {
    ax_kernel kernel;
    ax_device *ref;
    int count;
    const judged *judged;
} suite;

static bool same_bits(const kc_operand *o, const void *a, const void *b, int64_t i)
{
    size_t size = ax_dtype_size(o->dtype);
    return !memcmp((const char *)a + (size_t)i * size, (const char *)b + (size_t)i * size, size);
}

static void check_exact(const judged *j, const kernel_case *c, const kc_operand *o, const void *got,
                        const void *want)
{
    for (int64_t i = 0; i < o->count; i++)
        if (!same_bits(o, got, want, i) &&
            !(isnan(ax_load(o->dtype, got, i)) && isnan(ax_load(o->dtype, want, i))))
            fail_msg("%s: %s: %s[%lld] is %.17g, not exactly %.17g", j->name, c->name, o->name, (long long)i,
                     ax_load(o->dtype, got, i), ax_load(o->dtype, want, i));
}

/* Compares norms over the elements that ref wrote and that are finite; all other elements must be equal,
 * except for the bits of a NaN. */
static void check_close(const judged *j, const kernel_case *c, const kc_operand *o, const void *got,
                        const void *want, ax_dtype wide_dtype, const void *wide)
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
        } else if (!same_bits(o, got, want, i) && !(isnan(g) && isnan(w))) {
            fail_msg("%s: %s: %s[%lld] is %.9g, not %.9g", j->name, c->name, o->name, (long long)i, g, w);
        }
    }
    error = sqrt(error), gap = sqrt(gap), norm = sqrt(norm);
    if (!(error <= o->gaps * gap + o->bound * norm))
        fail_msg("%s: %s: %s is %.3g off, relative to its norm; permitted %.3g + %g x %.3g", j->name, c->name,
                 o->name, error / norm, o->bound, o->gaps, gap / norm);
    /* Each element is also checked alone: the norm could hide an error in one element. */
    double rounding = o->dtype == AX_F16 ? 0x1p-11 : 0x1p-8;
    double unit = wide_dtype == o->dtype ? o->bound : rounding, typical = n ? norm / sqrt((double)n) : 0;
    for (int64_t i = 0; i < o->count; i++) {
        double g = ax_load(o->dtype, got, i), x = ax_load(wide_dtype, wide, i);
        if (isfinite(g) && isfinite(x) && fabs(g - x) > 8 * unit * (fabs(x) + typical))
            fail_msg("%s: %s: %s[%lld] is %.9g, not %.9g", j->name, c->name, o->name, (long long)i, g, x);
    }
}

static void check_threads(const judged *j, const kernel_case *c, void *const a[], void *const b[],
                          int threads)
{
    for (int i = 0; i < c->operands; i++)
        if (memcmp(a[i], b[i], (size_t)c->operand[i].count * ax_dtype_size(c->operand[i].dtype)))
            fail_msg("%s: %s: %s differs between 1 and %d threads", j->name, c->name, c->operand[i].name,
                     threads);
}

/* Ref's results for a case, and for the same values in F32 if some of them have 16 bits. */
typedef struct expected {
    void *exact[KC_OPERANDS], *wide[KC_OPERANDS];
    ax_dtype wide_dtype[KC_OPERANDS];
} expected;

static void expect(ax_device *ref, const kernel_case *c, expected *out)
{
    kernel_case wide = *c;
    bool widened = kernel_case_has_16bit(c);
    *out = (expected){0};
    kernel_case_run(ref, c, 0, out->exact);
    if (widened) {
        kernel_case_widen(c, &wide);
        kernel_case_run(ref, &wide, 0, out->wide);
    }
    for (int i = 0; i < c->operands; i++)
        out->wide_dtype[i] = wide.operand[i].dtype;
    if (widened)
        kernel_case_free(&wide);
}

static void judge(const judged *j, const kernel_case *c, int skew, const expected *want)
{
    void *got[KC_THREADS][KC_OPERANDS];
    for (int t = 0; t < j->devices; t++)
        kernel_case_run(j->dev[t], c, skew, got[t]);
    for (int i = 0; i < c->operands; i++) {
        const kc_operand *o = &c->operand[i];
        if (o->role == KC_IN)
            continue;
        else if (o->bound == 0)
            check_exact(j, c, o, got[0][i], want->exact[i]);
        else
            check_close(j, c, o, got[0][i], want->exact[i], want->wide_dtype[i],
                        want->wide[i] ? want->wide[i] : want->exact[i]);
    }
    for (int t = 1; t < j->devices; t++)
        check_threads(j, c, got[0], got[t], t + 1);
    for (int t = 0; t < j->devices; t++)
        kc_results_free(got[t]);
}

static bool judges(const judged *j, ax_kernel kernel, int dtype)
{
    return (!j->attends || kernel == AX_K_attention || kernel == AX_K_attention_grad) &&
           !(j->further && dtype < AX_F32);
}

/* Whether a case is tested: one of every `step` cases, at a different position each time and for each dtype,
 * so that variants with a period of, say, three cases are all tested. */
static bool takes(const judged *j, ax_kernel kernel, int dtype, int index)
{
    return judges(j, kernel, dtype) && index % j->step == (index / j->step + dtype) % j->step;
}

/* Returns the first case from `index` on that is tested on a device. */
static int next_case(const suite *s, int dtype, int index)
{
    for (;; index++)
        for (int i = 0; i < s->count; i++)
            if (takes(&s->judged[i], s->kernel, dtype, index))
                return index;
}

static void kernel_agrees_with_ref(void **state)
{
    const suite *s = *state;
    int cases[MOST_JUDGED] = {0};
    for (int dtype = 0; dtype < AX_DTYPE_COUNT; dtype++) {
        kernel_case c;
        for (int index = next_case(s, dtype, 0); kernel_case_build(s->kernel, (ax_dtype)dtype, index, &c);
             index = next_case(s, dtype, index + 1)) {
            expected want;
            expect(s->ref, &c, &want);
            for (int i = 0; i < s->count; i++) {
                const judged *j = &s->judged[i];
                if (!takes(j, s->kernel, dtype, index))
                    continue;
                judge(j, &c, index / j->step % 3 == 1, &want);
                cases[i]++;
            }
            kc_results_free(want.exact);
            kc_results_free(want.wide);
            kernel_case_free(&c);
        }
    }
    for (int i = 0; i < s->count; i++)
        assert_true(cases[i] > (s->judged[i].step > 1 || s->judged[i].further ? 0 : 5) ||
                    !judges(&s->judged[i], s->kernel, AX_F32));
}

/* Whether a backend has kernels of its own to test. check has none, and those of dry compute nothing. */
static bool computes(const ax_device_ops *ops)
{
    if (ops->imaginary)
        return false;
    if (ops->plugin)
        return !ax_device_absent(ops->name);
    for (int k = 0; k < AX_KERNEL_COUNT; k++)
        if (ops->kernel[k])
            return strcmp(ops->name, "ref") && !ax_device_absent(ops->name);
    return false;
}

/* `isa`: the instruction set that a cpu device must use, or NULL. `every`: test every case. */
static bool add(const char *backend, const ax_cpu_isa *isa, bool every, judged *all, int *count)
{
    judged *j = &all[*count];
    assert(*count < MOST_JUDGED);
    bool plugin = ax_device_find(backend)->plugin != NULL; /* a GPU, which the host may emulate */
    *j = (judged){.name = isa ? isa->name : backend, .further = isa, .devices = plugin ? 1 : KC_THREADS};
    /* Mostly the same cases on all devices, so that ref computes few. */
    j->step = every ? 1 : one_of(plugin ? 17 : 11, 29);
    for (int t = 0; t < j->devices; t++) {
        if (ax_device_open(backend, t + 1, &j->dev[t]) != AX_OK)
            return false;
        if (isa)
            ((ax_cpu *)j->dev[t]->impl)->isa = isa;
    }
    ++*count;
    return true;
}

/* Adds the GPU with attention by the plugin's own kernels, which are not used by default where cuDNN is. */
static bool add_attention(bool every, judged *all, int *count)
{
    static const struct {
        const char *kind, *name;
    } others[] = {{"flash", "cuda, flash"}, {"plain", "cuda, plain"}};
    const char *own = getenv("AXONN_ATTENTION");
    for (size_t i = 0; !own && i < AX_COUNT(others); i++) {
        setenv("AXONN_ATTENTION", others[i].kind, 1);
        bool added = add("cuda", NULL, every, all, count);
        unsetenv("AXONN_ATTENTION");
        if (!added)
            return false;
        all[*count - 1].name = others[i].name;
        all[*count - 1].attends = true;
    }
    return true;
}

/* What the arguments ask for: the only backends to test (with every case, unless `step` says otherwise), and
 * the only kernel. */
typedef struct request {
    int backends, step;
    char **backend;
    int kernel; /* -1: every kernel */
} request;

static bool named(const char *name, const request *r)
{
    for (int i = 0; i < r->backends; i++)
        if (!strcmp(r->backend[i], name))
            return true;
    return !r->backends;
}

static void list_kernels(void)
{
    for (int k = 0; k < AX_KERNEL_COUNT; k++)
        printf("%s\n", ax_kernel_name((ax_kernel)k));
}

static int kernel_of(const char *name)
{
    int k = 0;
    while (k < AX_KERNEL_COUNT && strcmp(ax_kernel_name((ax_kernel)k), name))
        k++;
    return k;
}

/* Reads the arguments [BACKEND...] [kernel=NAME] [step=N]. */
static bool parse(int argc, char **argv, request *r)
{
    *r = (request){.backend = argv + 1, .kernel = -1};
    for (int i = 1; i < argc; i++)
        if (!strncmp(argv[i], "kernel=", 7))
            r->kernel = kernel_of(argv[i] + 7);
        else if (!strncmp(argv[i], "step=", 5))
            r->step = atoi(argv[i] + 5);
        else
            r->backend[r->backends++] = argv[i];
    return r->kernel < AX_KERNEL_COUNT && r->step >= 0;
}

/* Opens the devices that are tested. */
static bool add_all(const request *r, judged *all, int *count)
{
    const ax_cpu_isa *isa, *chosen;
    const bool every = r->backends > 0;
    bool ready = ax_cpu_isa_choose(&chosen) == AX_OK;
    for (int i = 0; ready && i < ax_device_count(); i++)
        if (named(ax_device_backend(i)->name, r) && computes(ax_device_backend(i)))
            ready = add(ax_device_backend(i)->name, NULL, every, all, count);
    if (ready && named("cuda", r) && !ax_device_absent("cuda"))
        ready = add_attention(every, all, count);
    for (int i = 0; ready && (isa = ax_cpu_isa_at(i)); i++)
        if (isa != chosen && named("cpu", r)) /* the default was added with the backend */
            ready = add("cpu", isa, every, all, count);
    for (int i = 0; r->step && i < *count; i++)
        all[i].step = r->step;
    return ready;
}

/* One test per kernel, so that a failure names it. The argument "list" prints the names of the kernels. */
int main(int argc, char **argv)
{
    static struct CMUnitTest tests[AX_KERNEL_COUNT];
    static suite suites[AX_KERNEL_COUNT];
    judged all[MOST_JUDGED];
    request r;
    int count = 0, n = 0;
    ax_device *ref;
    if (argc == 2 && !strcmp(argv[1], "list")) {
        list_kernels();
        return 0;
    }
    if (!parse(argc, argv, &r)) {
        fprintf(stderr, "usage: test_dev_backend list | [BACKEND...] [kernel=NAME] [step=N]\n");
        return 2;
    }
    if (getenv("AXONN_PLUGINS") && ax_device_absent("cuda")) { /* an emulated GPU is always there */
        fprintf(stderr, "%s\n", ax_device_absent("cuda"));
        return 1;
    }
    if (ax_device_open("ref", 1, &ref) != AX_OK || !add_all(&r, all, &count) || !count) {
        fprintf(stderr, "%s\n", *ax_error_message() ? ax_error_message() : "nothing to judge");
        return 1;
    }
    for (int k = 0; k < AX_KERNEL_COUNT; k++)
        if (r.kernel < 0 || k == r.kernel) {
            suites[k] = (suite){(ax_kernel)k, ref, count, all};
            tests[n++] = (struct CMUnitTest){ax_kernel_name((ax_kernel)k), kernel_agrees_with_ref, NULL, NULL,
                                             &suites[k]};
        }
    int failed = _cmocka_run_group_tests("backends", tests, (size_t)n, NULL, NULL);
    for (int i = 0; i < count; i++)
        for (int t = 0; t < all[i].devices; t++)
            ax_device_close(&all[i].dev[t]);
    ax_device_close(&ref);
    return failed;
}
