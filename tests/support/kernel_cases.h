/* One table of kernel calls on which any backend can be run and judged: odd sizes, empty extents, every
 * element type, in-place variants. tests/dev/test_backend.c compares each backend with ref on it.
 *
 * A case holds its operands as host arrays; kernel_case_run puts them between sentinels in device memory,
 * launches, and brings back what the kernel wrote. */
#ifndef AXONN_TESTS_KERNEL_CASES_H
#define AXONN_TESTS_KERNEL_CASES_H

#include "axonn/dev.h"

enum { KC_OPERANDS = 20, KC_ARGS_BYTES = 256 };

/* Threads that tests give a device at most. */
enum { KC_THREADS = 3 };

typedef enum kc_role {
    KC_IN,   /* must be unchanged after the call */
    KC_OUT,  /* NaN before the call: what a kernel reads or leaves there shows */
    KC_INOUT /* read and overwritten */
} kc_role;

typedef struct kc_operand {
    const char *name;
    kc_role role;
    size_t field, alias; /* byte offsets of the pointers to it in the argument struct; equal if one */
    int table;           /* the operand that has the pointers instead, one before it; -1: none */
    ax_dtype dtype;
    int64_t count;
    void *data;   /* `count` elements on the host; owned by the case */
    double bound; /* permitted error relative to the array's norm; 0 = equal bit for bit */
    double gaps;  /* and of what 16 bits cost the reference, so many times as much */
    size_t host;  /* byte offset of the pointer to a copy of it in host memory; 0: there is none */
} kc_operand;

typedef struct kernel_case {
    ax_kernel kernel;
    char name[128];
    ax_dtype dtype; /* the kernel's T (or A) */
    int operands, dtype_fields;
    kc_operand operand[KC_OPERANDS];
    size_t dtype_field[4]; /* byte offsets of the element types in the argument struct */
    uint64_t seed;
    union {
        unsigned char bytes[KC_ARGS_BYTES];
        int64_t align;
    } args; /* pointers NULL until it is run */
} kernel_case;

/* Makes case `index` of `kernel` for elements of `dtype`; false when there is none (the kernel does not take
 * the type, or the list has ended). */
bool kernel_case_build(ax_kernel kernel, ax_dtype dtype, int index, kernel_case *out);

/* The same call on the same values with every 16-bit operand widened to F32. */
void kernel_case_widen(const kernel_case *from, kernel_case *out);
bool kernel_case_has_16bit(const kernel_case *c);

/* Points the argument struct at the case's own arrays, for what does not run it. */
void kernel_case_point(kernel_case *c);

void kernel_case_free(kernel_case *c);

/* Runs a case. `skew` elements of offset misalign every operand. result[i] receives the content of operand i
 * after the call, allocated; free with kc_results_free. Fails the running test if the launch fails, a
 * sentinel beside an operand changed, or an input changed. */
void kernel_case_run(ax_device *dev, const kernel_case *c, int skew, void *result[KC_OPERANDS]);
void kc_results_free(void *result[KC_OPERANDS]);

#endif
