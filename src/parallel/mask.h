/* The mask of a pruned matrix: which elements of this rank's box are kept, and where they lie in the vectors
 * of its gradient and state (arXiv 2302.05045). parallel.h ("pruned matrices") describes these vectors. */
#ifndef AXONN_PARALLEL_MASK_H
#define AXONN_PARALLEL_MASK_H

#include "parallel/param.h"

struct ax_mask {
    int64_t rows, cols, words; /* of this rank's box in layout U; words: 64-bit words of a row of bits */
    int64_t parts, length;     /* parts of the vector along the fine axes, and elements of each, padded */
    int64_t row, part_rows;    /* the rows of the box that this rank's part in the state layout has */
    int64_t kept;              /* elements that this rank's part keeps */
    uint64_t *bits;            /* [rows, words], and [rows + 1], in host memory (ax_compress_args) */
    int32_t *begin;
    bool owned; /* the mask owns these arrays; else they are device_bits and device_begin */
    const uint64_t *device_bits;
    const int32_t *device_begin;
};

void ax_mask_destroy(struct ax_mask **mask);
/* Return the bytes of bits and begin. */
size_t ax_mask_bits_bytes(const struct ax_mask *m);
size_t ax_mask_begin_bytes(const struct ax_mask *m);
/* Copies the mask to device_bits and device_begin, its memory on the device. If the host can access the
 * device's memory, frees the copy in host memory. */
AX_MUST_CHECK ax_status ax_mask_upload(ax_ctx *ctx, struct ax_mask *m);

/* Compresses `dense`, the contribution of this rank's box in layout U, into `vector` in the same layout,
 * which is overwritten, padding included, or to which it is added. */
AX_MUST_CHECK ax_status ax_mask_compress(ax_stream *stream, const struct ax_mask *m, const ax_tensor *dense,
                                         const ax_tensor *vector, bool accumulate);
/* Writes elements first … first+n-1 of this rank's part of the vector, which are at x, to their places in
 * `to`, its part of the matrix. With all elements the others become zero; with fewer they must be zero. */
AX_MUST_CHECK ax_status ax_mask_expand(ax_stream *stream, const struct ax_mask *m, int64_t first, int64_t n,
                                       const void *x, ax_dtype dtype, const ax_tensor *to);

/* Returns how many of the first n elements of this rank's part of the matrix are kept. */
int64_t ax_mask_rank(const struct ax_mask *m, int64_t n);
/* Spreads the kept elements among elements first … first+n-1 of this rank's part, which are the last ones of
 * the n at `host`, over these n; zeros elsewhere. */
void ax_mask_spread(const struct ax_mask *m, ax_dtype dtype, int64_t first, int64_t n, void *host);
/* Packs the kept ones of elements first … first+n-1 to `out`. Returns false if one that is not kept is not
 * zero. */
bool ax_mask_pack(const struct ax_mask *m, ax_dtype dtype, int64_t first, int64_t n, const void *host,
                  void *out);

#endif
