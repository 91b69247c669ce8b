/* Shorthand for the builders in kernel_list*.c. `c` is the case, `a` its argument struct. */
#ifndef AXONN_TESTS_KERNEL_MACROS_H
#define AXONN_TESTS_KERNEL_MACROS_H

#include "support/kernel_list.h"

#define KC_TYPE(dtype) (1u << (dtype))
#define KC_ACCUM (KC_TYPE(AX_F64) | KC_TYPE(AX_F32))
#define KC_ACTIVATION (KC_ACCUM | KC_TYPE(AX_BF16) | KC_TYPE(AX_F16))

bool kc_takes(const kernel_case *c, unsigned types);
void kc_name(kernel_case *c, const char *fmt, ...) AX_PRINTF(2, 3);
void kc_dtype(kernel_case *c, size_t field, ax_dtype dtype);
/* Runs a kernel of ref on host arrays. */
void kc_reference(ax_kernel kernel, const void *args);

extern const int64_t kc_lengths[];
extern const int kc_length_count;
/* Sets *rows and *cols to shape number index / variants. Returns false after the last shape. */
bool kc_grid(int index, int variants, int64_t *rows, int64_t *cols);

/* Documents of random length: stores the first visible key of each query, [batch, len]. */
void kc_fill_documents(kernel_case *c, int32_t *start, int64_t batch, int64_t len, int64_t offset);

#define ARGS(kernel) ax_##kernel##_args *a = (void *)c->args.bytes
#define FIELD(field) offsetof(__typeof__(*a), field)
#define ACCUM ax_dtype_accum(c->dtype)
#define DTYPE(field, value) kc_dtype(c, FIELD(field), value)
#define RAW(field, role, dtype, count, terms) kc_add(c, #field, role, FIELD(field), dtype, count, terms)
#define IN(field, dtype, count) kc_add_normal(c, #field, KC_IN, FIELD(field), dtype, count, 0)
#define OUT(field, dtype, count, terms) kc_add(c, #field, KC_OUT, FIELD(field), dtype, count, terms)
#define INOUT(field, dtype, count, terms)                                                                    \
    kc_add_normal(c, #field, KC_INOUT, FIELD(field), dtype, count, terms)
#define ALIAS(field) kc_alias(c, FIELD(field))

#endif
