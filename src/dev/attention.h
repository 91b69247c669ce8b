/* Functions that the backends and the table of kernels share for attention: where keys are, which keys a
 * query sees, and the random numbers of dropout (ax_attention_args and ax_attention_dropout in
 * axonn/kernels.h). */
#ifndef AX_DEV_ATTENTION_H
#define AX_DEV_ATTENTION_H

#include "axonn/kernels.h"
#include "axonn/philox.h"

#include <math.h>
#include <string.h>

/* Returns the distance, in elements, from one sequence's keys to the next sequence's keys. Values have the
 * same distance. */
AX_INLINE int64_t ax_attention_kv_batch(const ax_attention_args *a)
{
    return a->kv_batch_stride ? a->kv_batch_stride : a->kv_len * a->kv_ld;
}

/* Returns the position, among the keys, of the first query of sequence b. */
AX_INLINE int64_t ax_attention_offset(const ax_attention_args *a, int64_t b)
{
    return a->positions ? a->positions[b * a->q_len] : a->q_offset;
}

/* Returns the index of the first key that is in both the document and the window of a query. `row` is the
 * query's row in the batch, b·q_len + i for query i of sequence b; `position` is the query's position among
 * the keys. */
AX_INLINE int64_t ax_attention_first_key(const int32_t *doc_start, int64_t row, int64_t window,
                                         int64_t position)
{
    int64_t document = doc_start && doc_start[row] > 0 ? doc_start[row] : 0;
    return window > 0 && position - window + 1 > document ? position - window + 1 : document;
}

/* Returns the bits of the keys that head h of query `row` (b·q_len + i for query i of sequence b) has chosen,
 * or NULL if the call has none. */
AX_INLINE const uint64_t *ax_attention_chosen(const ax_attention_args *a, int64_t row, int64_t h)
{
    return a->chosen
               ? a->chosen + (row * a->choosers + h / (a->heads / a->choosers)) * ((a->kv_len + 63) / 64)
               : NULL;
}

AX_INLINE bool ax_attention_has(const uint64_t *chosen, int64_t j)
{
    return !chosen || (chosen[j / 64] >> j % 64 & 1);
}

/* Returns the arguments of kernel attention that say which keys a query of kernel choose sees. */
AX_INLINE ax_attention_args ax_attention_of_choose(const ax_choose_args *a)
{
    ax_attention_args out;
    memset(&out, 0, sizeof out);
    out.batch = a->batch, out.q_len = a->q_len, out.kv_len = a->kv_len, out.q_offset = a->q_offset;
    out.heads = a->heads, out.kv_heads = a->kv_heads;
    out.doc_start = a->doc_start, out.positions = a->positions, out.window = a->window;
    return out;
}

/* Returns how many choices of keys kernel choose makes for each query: one for each head, or for each group.
 */
AX_INLINE int64_t ax_choosers(const ax_choose_args *a) { return a->group ? a->kv_heads : a->heads; }

/* Returns how many keys kernel choose chooses of n. A share of n that is an integer in real numbers may be a
 * little more in floating point, which does not count as one key more. */
AX_INLINE int64_t ax_choose_count(int64_t keys, double share, int64_t n)
{
    const int64_t part = (int64_t)ceil(share * (double)n - 1e-6), wanted = keys ? keys : part > 1 ? part : 1;
    return wanted < n ? wanted : n;
}

/* Returns an integer whose order among integers is that of x among numbers; 0 and -0 have the same. A NaN has
 * the largest. */
AX_INLINE int32_t ax_choose_order(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    const int32_t size = bits & INT32_MAX;
    return size > 0x7f800000 ? INT32_MAX : bits < 0 ? -size : size;
}
AX_INLINE int64_t ax_choose_order_of_double(double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return x != x ? INT64_MAX : bits < 0 ? -(bits & INT64_MAX) : bits;
}

/* Returns the end (exclusive) of the queries whose window contains key j. Query i must be at position i among
 * the keys. */
AX_INLINE int64_t ax_attention_end_query(int64_t window, int64_t j, int64_t queries)
{
    return window > 0 && window < queries - j ? j + window : queries;
}

/* Returns the index of the Philox block (four random numbers) for keys 0 … 3 of a query. Keys 4n … 4n+3 use
 * the block with this index plus n. `first_row` is drop->now->first_row (0 if drop->now is NULL); `row` is
 * the query's row in the batch, b·q_len + i for query i of sequence b; `head` is counted from this rank's
 * first head; `keys` is kv_len. */
AX_INLINE uint64_t ax_attention_drop_block(const ax_attention_dropout *drop, int64_t first_row, int64_t row,
                                           int64_t head, int64_t keys)
{
    return (uint64_t)(((first_row + drop->row0 + row) * drop->heads + drop->head0 + head) * ((keys + 3) / 4));
}

/* Returns the integer threshold for "uniform < p": an element is dropped if the upper 24 bits of its random
 * word are less than the threshold. */
AX_INLINE uint32_t ax_attention_drop_below(double p) { return (uint32_t)ceil(p * 0x1p24); }

#endif
