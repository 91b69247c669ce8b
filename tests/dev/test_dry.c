/* The dry device: fake addresses, counting and listening; and the registry of devices. */
#include "axonn/dev.h"

#include "support/kernel_cases.h"
#include "support/sampled.h"

#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { MOST_SEEN = 64 };

/* The operands of the last operation. */
typedef struct seen {
    int calls;
    int64_t n;
    ax_operand operand[MOST_SEEN];
    ax_listener listener;
} seen;

static void note_operand(void *user, const ax_operand *operand)
{
    seen *s = user;
    assert_true(s->n < MOST_SEEN);
    s->operand[s->n++] = *operand;
}

static void note(void *user, const ax_device_event *event)
{
    seen *s = user;
    s->calls++;
    s->n = 0;
    ax_device_event_operands(event, note_operand, s);
}

static ax_device *open_dry(seen *s)
{
    ax_device *dev;
    assert_int_equal(ax_device_open("dry", 4, &dev), AX_OK);
    s->listener = (ax_listener){AX_ON_KERNEL | AX_ON_COPY, note, s, NULL};
    ax_device_listen(dev, &s->listener);
    return dev;
}

/* Returns how the last operation accessed the memory at `at`: the union over all its operands there, which
 * may be at most `bytes` long; 0 if it did not. */
static int access_to(const seen *s, const void *at, size_t bytes)
{
    int access = 0;
    for (int64_t i = 0; i < s->n; i++)
        if (s->operand[i].at == at) {
            size_t span = (size_t)s->operand[i].span * ax_dtype_size(s->operand[i].dtype);
            assert_true(span <= bytes);
            access |= (int)s->operand[i].access;
        }
    return access;
}

static void addresses_are_fake_and_apart(void **state)
{
    (void)state;
    seen s = {0};
    ax_device *dev = open_dry(&s);
    static const size_t sizes[] = {0, 1, 4096, 5000, (size_t)1 << 45, 7};
    uintptr_t end = (uintptr_t)1 << 55;
    for (size_t i = 0; i < AX_COUNT(sizes); i++) {
        void *memory;
        assert_int_equal(ax_device_alloc(dev, sizes[i], &memory), AX_OK);
        assert_true((uintptr_t)memory >= end);
        assert_int_equal((uintptr_t)memory % 4096, 0);
        end = (uintptr_t)memory + sizes[i] + 1;
        ax_device_free(dev, memory, sizes[i]);
    }
    assert_int_equal(s.calls, 0);
    ax_device_close(&dev);
}

static void launches_are_observed_and_counted(void **state)
{
    (void)state;
    seen s = {0};
    ax_kernel_total totals[AX_KERNEL_COUNT] = {{0}};
    ax_device *dev = open_dry(&s);
    ax_stream stream = {dev, NULL};
    void *a, *b, *c;
    ax_listener counts = ax_kernel_totals(totals);
    ax_device_listen(dev, &counts);
    assert_int_equal(ax_device_alloc(dev, 6, &a), AX_OK);
    assert_int_equal(ax_device_alloc(dev, 6, &b), AX_OK);
    assert_int_equal(ax_device_alloc(dev, 8, &c), AX_OK);
    ax_gemm_args gemm = {.m = 3,
                         .n = 5,
                         .k = 7,
                         .a = a,
                         .b = b,
                         .c = c,
                         .lda = 7,
                         .ldb = 5,
                         .ldc = 5,
                         .dtype = AX_BF16,
                         .c_dtype = AX_F32};
    assert_int_equal(ax_run_gemm(&stream, &gemm), AX_OK);
    assert_int_equal(s.calls, 1);
    assert_int_equal(s.n, 3);
    assert_int_equal(access_to(&s, a, 3 * 7 * 2), AX_READ);
    assert_int_equal(access_to(&s, b, 7 * 5 * 2), AX_READ);
    assert_int_equal(access_to(&s, c, 3 * 5 * 4), AX_WRITE);
    assert_true(totals[AX_K_gemm].flops == 2 * 3 * 5 * 7 &&
                ax_kernel_flops(AX_K_gemm, &gemm) == 2 * 3 * 5 * 7);
    assert_true(totals[AX_K_gemm].bytes == (3 * 7 + 7 * 5) * 2 + 3 * 5 * 4);
    gemm.accumulate = true; /* reads c as well */
    assert_int_equal(ax_run_gemm(&stream, &gemm), AX_OK);
    assert_int_equal(access_to(&s, c, 3 * 5 * 4), AX_READ_WRITE);
    assert_true(totals[AX_K_gemm].bytes == 2 * (3 * 7 + 7 * 5) * 2 + 3 * 3 * 5 * 4);
    assert_int_equal(totals[AX_K_gemm].calls, 2);
    ax_device_unlisten(dev, &s.listener);
    assert_int_equal(ax_run_gemm(&stream, &gemm), AX_OK);
    assert_true(s.calls == 2 && totals[AX_K_gemm].calls == 3);
    ax_device_unlisten(dev, &s.listener); /* it is on no list any more */
    ax_device_unlisten(dev, &counts);
    assert_true(!dev->heard && !dev->listener);
    ax_device_close(&dev);
}

typedef struct heard {
    int calls;
    ax_kernel kernel;
    const void *args;
    float value; /* what the kernel would overwrite */
} heard;

static void count_launch(void *user, const ax_device_event *launch)
{
    heard *h = user;
    const ax_fill_args *fill = launch->args;
    *h = (heard){h->calls + 1, launch->kernel, launch->args, *(const float *)fill->y};
}

/* Listeners are told of launches on all devices, also those that compute: before the kernel runs, if its
 * arguments are legal. */
static void launches_are_told(void **state)
{
    (void)state;
    static const char *const names[] = {"dry", "ref", "cpu"};
    for (size_t i = 0; i < AX_COUNT(names); i++) {
        ax_device *dev;
        heard h = {0};
        float x = 7;
        assert_int_equal(ax_device_open(names[i], 1, &dev), AX_OK);
        ax_stream stream = {dev, NULL};
        ax_fill_args fill = {.n = 1, .value = 3, .y = &x, .dtype = AX_F32};
        ax_listener listener = {AX_ON_KERNEL, count_launch, &h, NULL};
        ax_device_listen(dev, &listener);
        assert_int_equal(ax_run_fill(&stream, &fill), AX_OK);
        assert_true(h.calls == 1 && h.kernel == AX_K_fill && h.args == &fill && h.value == 7);
        ax_adamw_args wrong = {.dtype = AX_U8};
        assert_int_equal(ax_run_gemm(&stream, &(ax_gemm_args){.dtype = AX_F32, .c_dtype = AX_F64}),
                         AX_ERR_USAGE);
        assert_int_equal(ax_run_convert(&stream, &(ax_convert_args){.x_dtype = AX_F32, .y_dtype = AX_I32}),
                         AX_ERR_USAGE);
        assert_int_equal(ax_run_copy_box(&stream, &(ax_copy_box_args){.dtype = AX_I32, .accumulate = true}),
                         AX_ERR_USAGE);
        assert_int_equal(ax_run_adamw(&stream, &wrong), AX_ERR_USAGE);
        assert_int_equal(h.calls, 1);
        ax_device_close(&dev);
    }
}

static void copies_are_observed(void **state)
{
    (void)state;
    seen s = {0};
    ax_device *dev = open_dry(&s);
    ax_stream stream = {dev, NULL};
    void *memory;
    int host[3] = {1, 2, 3};
    assert_int_equal(ax_device_alloc(dev, sizeof host, &memory), AX_OK);
    assert_int_equal(ax_copy_in(&stream, memory, host, sizeof host), AX_OK);
    assert_int_equal(s.calls, 1);
    assert_int_equal(access_to(&s, memory, sizeof host), AX_WRITE);
    assert_int_equal(host[2], 3);
    assert_int_equal(ax_copy_out(&stream, host, memory, sizeof host), AX_OK);
    assert_int_equal(s.calls, 2);
    assert_int_equal(access_to(&s, memory, sizeof host), AX_READ);
    assert_true(host[0] == 0 && host[1] == 0 && host[2] == 0);
    ax_device_close(&dev);
}

/* The cost of causal attention counts visible pairs, and does not depend on how the rows are cut. */
static void attention_cost(void **state)
{
    (void)state;
    ax_attention_args args = {.batch = 1,
                              .q_len = 4,
                              .kv_len = 4,
                              .heads = 1,
                              .kv_heads = 1,
                              .head_dim = 64,
                              .q_ld = 64,
                              .kv_ld = 64,
                              .dtype = AX_F32};
    double whole, part, bytes, sum = 0;
    ax_kernel_cost(AX_K_attention, &args, &whole, &bytes);
    args.q_len = 1;
    for (int64_t i = 0; i < 4; i++) {
        args.q_offset = i;
        ax_kernel_cost(AX_K_attention, &args, &part, &bytes);
        sum += part;
    }
    assert_true(whole == sum);
    assert_true(whole >= 10 * 4 * 64); /* 1 + 2 + 3 + 4 pairs, two matmuls each */
    args.kv_len = 2;                   /* queries after the last key see all keys */
    ax_kernel_cost(AX_K_attention, &args, &part, &bytes);
    assert_true(part == whole / 5);
    double windowed, fewer;
    args = (ax_attention_args){.batch = 1,
                               .q_len = 4,
                               .kv_len = 4,
                               .heads = 1,
                               .kv_heads = 1,
                               .head_dim = 64,
                               .q_ld = 64,
                               .kv_ld = 64,
                               .dtype = AX_F32};
    args.window = 2; /* 1 + 2 + 2 + 2 pairs */
    ax_kernel_cost(AX_K_attention, &args, &windowed, &bytes);
    assert_true(windowed == whole * 7 / 10);
    args.q_offset = 1, args.window = 3, args.kv_len = 3; /* 2 + 3 + 2 + 1 pairs */
    ax_kernel_cost(AX_K_attention, &args, &windowed, &bytes);
    assert_true(windowed == whole * 8 / 10);
    args.q_len = 1, args.q_offset = 100, args.kv_len = 101; /* in generation it reads 3 of 101 keys */
    args.window = 0;
    ax_kernel_cost(AX_K_attention, &args, &part, &bytes);
    args.window = 3;
    ax_kernel_cost(AX_K_attention, &args, &windowed, &fewer);
    assert_true(windowed == part * 3 / 101);
    args.kv_len = 3, args.q_offset = 2, args.window = 0;
    ax_kernel_cost(AX_K_attention, &args, &part, &bytes);
    assert_true(fewer == bytes);
    ax_attention_grad_args grad = {.batch = 1,
                                   .q_len = 4,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .head_dim = 64,
                                   .q_ld = 64,
                                   .kv_ld = 64,
                                   .dtype = AX_F32};
    ax_kernel_cost(AX_K_attention_grad, &grad, &whole, &bytes);
    grad.window = 1;
    ax_kernel_cost(AX_K_attention_grad, &grad, &windowed, &bytes);
    assert_true(windowed == whole * 4 / 10);
}

/* A fused norm moves each row of its operands once, and has the operations of its parts. */
static void check_norm_cost(ax_norm_kind kind)
{
    enum { R = 7, C = 64 };
    char m[13]; /* addresses only: not accessed */
    const int means = kind == AX_NORM_RMS ? 0 : R;
    char *sum = kind == AX_NORM_RMS ? NULL : &m[5];
    const ax_norm_args norm = {R,     C,   1e-5,  &m[0], &m[1],   &m[2], &m[3],
                               &m[4], sum, &m[6], &m[7], AX_BF16, kind};
    const ax_norm_grad_args grad = {R,     C,     1e-5,  &m[0], &m[1], &m[2],   sum,
                                    &m[4], &m[5], &m[6], &m[7], &m[8], AX_BF16, kind};
    const ax_norm_stats_args stats = ax_norm_stats_of(&norm);
    const ax_norm_apply_args apply = ax_norm_apply_of(&norm);
    const ax_norm_grad_stats_args grad_stats = ax_norm_grad_stats_of(&grad);
    const ax_norm_grad_apply_args grad_apply = ax_norm_grad_apply_of(&grad);
    double flops, bytes, of[2], rest;
    ax_kernel_cost(AX_K_norm, &norm, &flops, &bytes);
    ax_kernel_cost(AX_K_norm_stats, &stats, &of[0], &rest);
    ax_kernel_cost(AX_K_norm_apply, &apply, &of[1], &rest);
    assert_true(flops == of[0] + of[1]);
    assert_true(bytes == 4 * R * C * 2 + (R + means + 2 * C) * 4);
    ax_kernel_cost(AX_K_norm_grad, &grad, &flops, &bytes);
    ax_kernel_cost(AX_K_norm_grad_stats, &grad_stats, &of[0], &rest);
    ax_kernel_cost(AX_K_norm_grad_apply, &grad_apply, &of[1], &rest);
    assert_true(flops == of[0] + of[1]);
    assert_true(bytes == 4 * R * C * 2 + (R + means + 5 * C) * 4);
}

static void norm_cost(void **state)
{
    (void)state;
    check_norm_cost(AX_NORM_LAYER);
    check_norm_cost(AX_NORM_RMS);
}

/* Checks that a row of src/dev/kernel.c lists exactly the operands of a case, each with the right access and
 * not past its end. */
static void check_operands(const kernel_case *c, const seen *s)
{
    static const int access[] = {[KC_IN] = AX_READ, [KC_OUT] = AX_WRITE, [KC_INOUT] = AX_READ_WRITE};
    int64_t found = 0;
    for (int i = 0; i < c->operands; i++) {
        const kc_operand *o = &c->operand[i];
        int listed = access_to(s, o->data, (size_t)o->count * ax_dtype_size(o->dtype));
        if (listed != access[o->role])
            fail_msg("%s: %s is listed with access %d, not %d", c->name, o->name, listed, access[o->role]);
        for (int64_t k = 0; k < s->n; k++)
            found += s->operand[k].at == o->data;
    }
    if (found != s->n)
        fail_msg("%s: %lld of %lld operands listed are not the call's", c->name, (long long)(s->n - found),
                 (long long)s->n);
}

/* Returns the bytes of the last operation's operands, by their extents. */
static double bytes_of(const seen *s)
{
    double bytes = 0;
    for (int64_t i = 0; i < s->n; i++)
        bytes += (double)s->operand[i].count * (double)ax_dtype_size(s->operand[i].dtype) *
                 (s->operand[i].access == AX_READ_WRITE ? 2 : 1);
    return bytes;
}

/* A case of every kernel in every variant; the operands are the case's host arrays. */
static void operands_of_every_kernel(void **state)
{
    (void)state;
    seen s = {0};
    ax_device *dev = open_dry(&s);
    ax_stream stream = {dev, NULL};
    for (int k = 0; k < AX_KERNEL_COUNT; k++) {
        kernel_case c;
        double most = 0;
        for (int dtype = 0; dtype < AX_DTYPE_COUNT; dtype++)
            for (int i = 0; kernel_case_build((ax_kernel)k, (ax_dtype)dtype, i, &c); i += one_of(1, 3)) {
                double flops, bytes;
                kernel_case_point(&c);
                assert_int_equal(ax_launch(&stream, c.kernel, c.args.bytes), AX_OK);
                check_operands(&c, &s);
                ax_kernel_cost(c.kernel, c.args.bytes, &flops, &bytes);
                assert_true(bytes == bytes_of(&s));
                assert_true(flops >= 0 && flops < 1e12);
                most = bytes > most ? bytes : most;
                kernel_case_free(&c);
            }
        assert_true(most > 0);
    }
    ax_device_close(&dev);
}

static void launch_there(void *user, const ax_device_event *launch)
{
    ax_device *dry = user;
    assert_int_equal(ax_launch(&(ax_stream){dry, NULL}, launch->kernel, launch->args), AX_OK);
}

/* Work is counted alike on all devices. */
static void work_does_not_depend_on_the_device(void **state)
{
    (void)state;
    ax_kernel_total of_ref[AX_KERNEL_COUNT] = {{0}}, of_dry[AX_KERNEL_COUNT] = {{0}};
    ax_device *ref, *dry;
    assert_int_equal(ax_device_open("ref", 1, &ref), AX_OK);
    assert_int_equal(ax_device_open("dry", 1, &dry), AX_OK);
    ax_listener on_ref = ax_kernel_totals(of_ref), on_dry = ax_kernel_totals(of_dry),
                there = {AX_ON_KERNEL, launch_there, dry, NULL};
    ax_device_listen(ref, &on_ref);
    ax_device_listen(dry, &on_dry);
    ax_device_listen(ref, &there);
    for (int k = 0; k < AX_KERNEL_COUNT; k++) {
        static const ax_dtype types[] = {AX_F32, AX_I32}; /* each kernel takes one of them */
        kernel_case c;
        for (size_t t = 0; t < AX_COUNT(types); t++)
            for (int i = 0; kernel_case_build((ax_kernel)k, types[t], i, &c); i += one_of(5, 15)) {
                void *result[KC_OPERANDS];
                kernel_case_run(ref, &c, 0, result);
                kc_results_free(result);
                kernel_case_free(&c);
            }
        assert_true(of_ref[k].calls > 0 && of_ref[k].calls == of_dry[k].calls);
        assert_true(of_ref[k].flops == of_dry[k].flops && of_ref[k].bytes == of_dry[k].bytes);
    }
    ax_device_close(&ref);
    ax_device_close(&dry);
}

static void registry(void **state)
{
    (void)state;
    ax_device *dev = (void *)state;
    assert_int_equal(ax_device_open("rf", 1, &dev), AX_ERR_USAGE);
    assert_null(dev);
    assert_non_null(strstr(ax_error_message(), "\"rf\""));
    assert_non_null(strstr(ax_error_message(), "ref, cpu"));
    assert_int_equal(ax_device_open("ref", -1, &dev), AX_ERR_USAGE);
    assert_null(ax_device_backend(-1));
    assert_null(ax_device_backend(ax_device_count()));
    assert_int_equal(ax_device_open("ref", 0, &dev), AX_OK);
    assert_int_equal(dev->threads, ax_cores_usable());
    assert_true(dev->threads >= 1);
    ax_stream stream = {dev, NULL};
    assert_int_equal(ax_run_activation(&stream, &(ax_activation_args){.dtype = AX_I32}), AX_ERR_USAGE);
    assert_non_null(strstr(ax_error_message(), "activation"));
    assert_non_null(strstr(ax_error_message(), "i32"));
    for (int kv_heads = 0; kv_heads < 3; kv_heads += 2) {
        const ax_attention_args a = {.dtype = AX_F32, .heads = 3, .kv_heads = kv_heads};
        const ax_attention_grad_args grad = {.dtype = AX_F32, .heads = 3, .kv_heads = kv_heads};
        assert_int_equal(ax_run_attention(&stream, &a), AX_ERR_USAGE);
        assert_int_equal(ax_run_attention_grad(&stream, &grad), AX_ERR_USAGE);
        assert_non_null(strstr(ax_error_message(), "a multiple of kv_heads"));
    }
    ax_device_free(dev, NULL, 5);
    ax_device_close(&dev);
    assert_null(dev);
    ax_device_close(&dev);
    for (int k = 0; k < AX_KERNEL_COUNT; k++) {
        assert_non_null(ax_kernel_name((ax_kernel)k));
        assert_true(ax_kernel_args_size((ax_kernel)k) > 0);
        assert_true(ax_kernel_args_size((ax_kernel)k) <= KC_ARGS_BYTES);
    }
}

/* A device inherits the entries that it does not have from its delegates. */
static void entries_are_inherited(void **state)
{
    (void)state;
    ax_device *own, *heir;
    assert_int_equal(ax_device_open("cpu", 1, &own), AX_OK);
    assert_int_equal(ax_device_open("check:cpu", 1, &heir), AX_OK);
    assert_string_equal(heir->ops.name, "check:cpu");
    assert_true(heir->ops.alloc != own->ops.alloc && heir->ops.poison && !own->ops.poison);
    assert_true(heir->ops.links == own->ops.links && heir->ops.workspace == own->ops.workspace);
    assert_true(heir->ops.copy_in == own->ops.copy_in && heir->ops.read == own->ops.read);
    for (int k = 0; k < AX_KERNEL_COUNT; k++)
        assert_true(heir->ops.kernel[k] && heir->ops.kernel[k] == own->ops.kernel[k]);
    ax_device_close(&heir);
    ax_device_close(&own);
}

/* The dry device has the workspace of cpu, since plans made on it are for cpu. */
static void workspace_is_that_of_cpu(void **state)
{
    (void)state;
    size_t dry, cpu, ref;
    assert_int_equal(ax_device_workspace("dry", 3, &dry), AX_OK);
    assert_int_equal(ax_device_workspace("cpu", 3, &cpu), AX_OK);
    assert_int_equal(ax_device_workspace("ref", 3, &ref), AX_OK);
    assert_int_equal(dry, cpu);
    assert_int_equal(ref, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(addresses_are_fake_and_apart),
        cmocka_unit_test(launches_are_observed_and_counted),
        cmocka_unit_test(launches_are_told),
        cmocka_unit_test(copies_are_observed),
        cmocka_unit_test(attention_cost),
        cmocka_unit_test(norm_cost),
        cmocka_unit_test(operands_of_every_kernel),
        cmocka_unit_test(work_does_not_depend_on_the_device),
        cmocka_unit_test(registry),
        cmocka_unit_test(entries_are_inherited),
        cmocka_unit_test(workspace_is_that_of_cpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
