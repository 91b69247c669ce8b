/* What the lists of kernel cases are written with. Operands are added in order; kc_fill and kc_alias speak of
 * the last one. While a case is built its argument struct points at the host arrays, so that ref can make
 * inputs that depend on others. */
#ifndef AXONN_TESTS_KERNEL_LIST_H
#define AXONN_TESTS_KERNEL_LIST_H

#include "support/kernel_cases.h"

/* An operand of `count` elements, 0xFF everywhere. `terms`: the longest chain of roundings behind one of its
 * elements; 0 = exact. */
void *kc_add(kernel_case *c, const char *name, kc_role role, size_t field, ax_dtype dtype, int64_t count,
             double terms);
/* The same; the pointer to it is in operand number `table`, at byte `field` of that. */
void *kc_add_to_table(kernel_case *c, int table, const char *name, kc_role role, size_t field, ax_dtype dtype,
                      int64_t count, double terms);
/* As kc_add, filled with normal values of mean 0.25. */
void *kc_add_normal(kernel_case *c, const char *name, kc_role role, size_t field, ax_dtype dtype,
                    int64_t count, double terms);
void kc_alias(kernel_case *c, size_t field);
void kc_fill(kernel_case *c, double mean, double std);
double kc_normal(kernel_case *c);
int64_t kc_integer(kernel_case *c, int64_t lo, int64_t hi); /* lo <= result < hi */

/* The numbers of a micro-batch, but none in every third case. */
void kc_put_batch(kernel_case *c, size_t field, int index);

/* A builder fills case `index` for `c->dtype`, or returns false past the end of its list. */
typedef bool kc_builder(kernel_case *c, int index);
#define KC_BUILDER_DECLARE(name) kc_builder kc_build_##name;
AX_KERNELS(KC_BUILDER_DECLARE)
#undef KC_BUILDER_DECLARE

#endif
