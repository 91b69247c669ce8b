/* The random numbers of attention dropout, the same for all backends (ax_attention_dropout in
 * axonn/kernels.h). */
#ifndef AX_DEV_ATTENTION_H
#define AX_DEV_ATTENTION_H

#include "axonn/kernels.h"
#include "axonn/philox.h"

/* Returns the Philox block of keys 0 … 3 of a query: `row` is b·t + i, `keys` is s. Keys 4n … 4n+3 use the
 * n-th block after it. */
AX_INLINE uint64_t ax_attention_drop_block(const ax_attention_dropout *drop, int64_t first_row, int64_t row,
                                           int64_t head, int64_t keys)
{
    return (uint64_t)(((first_row + drop->row0 + row) * drop->heads + drop->head0 + head) * ((keys + 3) / 4));
}

/* Returns the threshold of uniform < p in integers: an element is dropped if the upper 24 bits of its word
 * are below. */
AX_INLINE uint32_t ax_attention_drop_below(double p) { return (uint32_t)ceil(p * 0x1p24); }

#endif
