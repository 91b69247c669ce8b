/* Building blocks for the lists of kernel cases. Operands are added in order; kc_fill, kc_alias and kc_typed
 * apply to the last one. While a case is built its argument struct points to the host arrays, so that ref can
 * compute inputs that depend on others. */
#ifndef AXONN_TESTS_KERNEL_LIST_H
#define AXONN_TESTS_KERNEL_LIST_H

#include "support/kernel_cases.h"

/* Adds an operand of `count` elements and fills it with bytes 0xFF. `terms`: the largest number of roundings
 * in sequence that an element results from; 0: exact. */
void *kc_add(kernel_case *c, const char *name, kc_role role, size_t field, ax_dtype dtype, int64_t count,
             double terms);
/* As kc_add, but the pointer to the operand is in operand `table`, at byte `field`. */
void *kc_add_to_table(kernel_case *c, int table, const char *name, kc_role role, size_t field, ax_dtype dtype,
                      int64_t count, double terms);
/* As kc_add, filled with normally distributed values of mean 0.25. */
void *kc_add_normal(kernel_case *c, const char *name, kc_role role, size_t field, ax_dtype dtype,
                    int64_t count, double terms);
void kc_alias(kernel_case *c, size_t field);
/* The last operand's table has the operand's dtype at byte offset `field`. */
void kc_typed(kernel_case *c, size_t field);
void kc_fill(kernel_case *c, double mean, double std);
double kc_normal(kernel_case *c);
int64_t kc_integer(kernel_case *c, int64_t lo, int64_t hi); /* lo <= result < hi */

/* Adds the numbers of a micro-batch as an operand; in every third case the pointer stays NULL. */
void kc_put_batch(kernel_case *c, size_t field, int index);

/* A builder makes case `index` for c->dtype, or returns false after the end of its list. */
typedef bool kc_builder(kernel_case *c, int index);
#define KC_BUILDER_DECLARE(name) kc_builder kc_build_##name;
AX_KERNELS(KC_BUILDER_DECLARE)
#undef KC_BUILDER_DECLARE

#endif
