/* Kernel calls with which any backend can be tested: odd sizes, empty extents, every element type, in-place
 * variants. tests/dev/test_backend.c runs them on each backend and compares the results with ref.
 *
 * A case holds its operands as host arrays. kernel_case_run copies them into device memory with sentinels
 * around each, launches the kernel, and copies back what it wrote. */
#ifndef AXONN_TESTS_KERNEL_CASES_H
#define AXONN_TESTS_KERNEL_CASES_H

#include "axonn/dev.h"

enum { KC_OPERANDS = 20, KC_ARGS_BYTES = 256 };

/* The largest number of threads of a device in tests. */
enum { KC_THREADS = 3 };

typedef enum kc_role {
    KC_IN,   /* must be unchanged after the call */
    KC_OUT,  /* NaN before the call, so that an element that the kernel reads or does not write shows */
    KC_INOUT /* read and overwritten */
} kc_role;

typedef struct kc_operand {
    const char *name;
    kc_role role;
    size_t field, alias; /* byte offsets of the two pointers to the operand in the argument struct; equal:
                            there is one pointer */
    int table; /* index of the earlier operand, a table of pointers, that holds the pointer to this operand;
                  -1: the argument struct holds it */
    ax_dtype dtype;
    int64_t count;
    void *data;   /* `count` elements on the host; owned by the case */
    double bound; /* permitted error relative to the array's norm; 0 = equal bit for bit */
    double gaps;  /* added to the bound: this many times the error of the reference in 16 bits */
    size_t host;  /* byte offset of the pointer to a copy in host memory; 0: no copy */
    size_t typed; /* byte offset, in the table of pointers, of the operand's dtype; 0: the table has none */
} kc_operand;

typedef struct kernel_case {
    ax_kernel kernel;
    char name[128];
    ax_dtype dtype; /* dtype of activations (T in kernels); in kernels without activations the accumulation
                       dtype (A) */
    int operands, dtype_fields;
    kc_operand operand[KC_OPERANDS];
    size_t dtype_field[4]; /* byte offsets of the element types in the argument struct */
    uint64_t seed;
    union {
        unsigned char bytes[KC_ARGS_BYTES];
        int64_t align;
    } args; /* its pointers are NULL until the case is run */
} kernel_case;

/* Makes case `index` of `kernel` for elements of `dtype`. Returns false if there is none: the kernel does not
 * take the type, or the list has ended. */
bool kernel_case_build(ax_kernel kernel, ax_dtype dtype, int index, kernel_case *out);

/* Copies the case `from`, with every 16-bit operand widened to F32. */
void kernel_case_widen(const kernel_case *from, kernel_case *out);
bool kernel_case_has_16bit(const kernel_case *c);

/* Points the argument struct at the case's own host arrays, for tests that do not run the case. */
void kernel_case_point(kernel_case *c);

void kernel_case_free(kernel_case *c);

/* Runs a case. `skew` elements of offset misalign every operand. result[i] receives the content of operand i
 * after the call, allocated; free with kc_results_free. Fails the running test if the launch fails, a
 * sentinel beside an operand changed, or an input changed. */
void kernel_case_run(ax_device *dev, const kernel_case *c, int skew, void *result[KC_OPERANDS]);
void kc_results_free(void *result[KC_OPERANDS]);

#endif
