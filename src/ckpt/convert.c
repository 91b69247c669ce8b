/* Converts elements between dtypes, transposes, cuts boxes (rectangular parts of arrays) into pieces, and
 * computes the checksum of a box. */
#include "ckpt.h"

#include <string.h>

static bool is_float(ax_dtype dtype)
{
    return dtype == AX_F64 || dtype == AX_F32 || dtype == AX_BF16 || dtype == AX_F16;
}

bool ckpt_convertible(ax_dtype from, ax_dtype to)
{
    return from < AX_DTYPE_COUNT && to < AX_DTYPE_COUNT && (from == to || (is_float(from) && is_float(to)));
}

/* Copies elements bit by bit, so that integers and the payloads of NaNs are preserved. */
static void copy_bits(size_t size, void *dst, int64_t ds, const void *src, int64_t ss, int64_t n)
{
    if (ds == 1 && ss == 1) {
        memcpy(dst, src, (size_t)n * size);
        return;
    }
#define COPY(type)                                                                                           \
    for (int64_t i = 0; i < n; i++)                                                                          \
    ((type *)dst)[i * ds] = ((const type *)src)[i * ss]
    switch (size) {
    case 1:
        COPY(uint8_t);
        break;
    case 2:
        COPY(uint16_t);
        break;
    case 4:
        COPY(uint32_t);
        break;
    default:
        COPY(uint64_t);
        break;
    }
#undef COPY
}

static void load(ax_dtype dtype, const void *src, int64_t stride, int64_t n, double *out)
{
    const uint16_t *half = src;
    switch (dtype) {
    case AX_F64:
        for (int64_t i = 0; i < n; i++)
            out[i] = ((const double *)src)[i * stride];
        break;
    case AX_F32:
        for (int64_t i = 0; i < n; i++)
            out[i] = (double)((const float *)src)[i * stride];
        break;
    case AX_BF16:
        for (int64_t i = 0; i < n; i++)
            out[i] = (double)ax_bf16_to_float(half[i * stride]);
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            out[i] = (double)ax_f16_to_float(half[i * stride]);
        break;
    }
}

static void store(ax_dtype dtype, void *dst, int64_t stride, int64_t n, const double *in)
{
    uint16_t *half = dst;
    switch (dtype) {
    case AX_F64:
        for (int64_t i = 0; i < n; i++)
            ((double *)dst)[i * stride] = in[i];
        break;
    case AX_F32:
        for (int64_t i = 0; i < n; i++)
            ((float *)dst)[i * stride] = (float)in[i];
        break;
    case AX_BF16:
        for (int64_t i = 0; i < n; i++)
            half[i * stride] = ax_bf16_from_float((float)in[i]);
        break;
    default:
        for (int64_t i = 0; i < n; i++)
            half[i * stride] = ax_f16_from_float((float)in[i]);
        break;
    }
}

void ckpt_convert(ax_dtype dst_dtype, void *dst, int64_t dst_stride, ax_dtype src_dtype, const void *src,
                  int64_t src_stride, int64_t n)
{
    size_t ds = ax_dtype_size(dst_dtype), ss = ax_dtype_size(src_dtype);
    if (dst_dtype == src_dtype) {
        copy_bits(ds, dst, dst_stride, src, src_stride, n);
        return;
    }
    if (src_dtype == AX_F64 && ds == 2) { /* converting f64 to f32 first would round twice */
        for (int64_t i = 0; i < n; i++)
            ax_store(dst_dtype, dst, i * dst_stride, ((const double *)src)[i * src_stride]);
        return;
    }
    double block[256]; /* a double holds each value of every float dtype exactly */
    for (int64_t i = 0; i < n; i += (int64_t)AX_COUNT(block)) {
        int64_t count = ax_min(n - i, (int64_t)AX_COUNT(block));
        load(src_dtype, (const char *)src + (size_t)(i * src_stride) * ss, src_stride, count, block);
        store(dst_dtype, (char *)dst + (size_t)(i * dst_stride) * ds, dst_stride, count, block);
    }
}

int64_t ckpt_count_infinite(ax_dtype dtype, const void *data, int64_t n)
{
    int64_t count = 0;
#define COUNT(type, field)                                                                                   \
    for (int64_t i = 0; i < n; i++)                                                                          \
    count += (type)(((const type *)data)[i] << 1) == (type)(field)
    switch (dtype) { /* the shift removes the sign; an infinity is then all ones in the exponent and zeros in
                        the mantissa */
    case AX_F64:
        COUNT(uint64_t, UINT64_C(0xFFE0000000000000));
        break;
    case AX_F32:
        COUNT(uint32_t, 0xFF000000);
        break;
    case AX_BF16:
        COUNT(uint16_t, 0xFF00);
        break;
    default:
        COUNT(uint16_t, 0xF800);
        break;
    }
#undef COUNT
    return count;
}

void ckpt_transpose(ax_dtype dst_dtype, void *dst, int64_t dst_stride, ax_dtype src_dtype, const void *src,
                    int64_t src_stride, int64_t rows, int64_t cols)
{
    /* Columns per pass: few enough that the cache lines of dst stay cached from one row of src to the next.
     */
    enum { TILE = 32 };
    size_t ds = ax_dtype_size(dst_dtype), ss = ax_dtype_size(src_dtype);
    for (int64_t j = 0; j < cols; j += TILE)
        for (int64_t i = 0; i < rows; i++)
            ckpt_convert(dst_dtype, (char *)dst + (size_t)(j * dst_stride + i) * ds, dst_stride, src_dtype,
                         (const char *)src + (size_t)(i * src_stride + j) * ss, 1, ax_min(cols - j, TILE));
}

void ckpt_pieces_begin(ckpt_pieces *p, int ndim, const int64_t *n, int64_t limit)
{
    memset(p, 0, sizeof *p);
    p->ndim = ndim;
    int64_t inner = 1;
    for (int d = 0; d < ndim; d++) {
        p->extent[d] = n[d];
        p->done = p->done || n[d] == 0;
    }
    p->split = ndim;
    while (!p->done && p->split > 0 && inner * n[p->split - 1] <= limit)
        inner *= n[--p->split];
    p->split = (int)ax_max(p->split - 1, 0);
    int64_t after = 1;
    for (int d = p->split + 1; d < ndim; d++)
        after *= n[d];
    p->chunk = p->done ? 1 : ax_max(limit / after, 1);
}

bool ckpt_pieces_next(ckpt_pieces *p)
{
    if (p->done)
        return false;
    p->first += p->count;
    if (p->count) { /* advance `lo`: add the piece's extent in dim `split`; at the end of a dim, start it anew
                       and add 1 in the dim before */
        int d = p->split;
        p->lo[d] += p->n[d];
        while (d > 0 && p->lo[d] == p->extent[d]) {
            p->lo[d] = 0;
            p->lo[--d]++;
        }
        if (p->ndim == 0 || p->lo[0] == p->extent[0]) {
            p->done = true;
            return false;
        }
    }
    p->count = 1;
    for (int d = 0; d < p->ndim; d++) {
        p->n[d] = d < p->split ? 1 : d > p->split ? p->extent[d] : ax_min(p->chunk, p->extent[d] - p->lo[d]);
        p->count *= p->n[d];
    }
    return true;
}

static uint64_t element_bits(size_t size, const void *data, int64_t i)
{
    switch (size) {
    case 1:
        return ((const uint8_t *)data)[i];
    case 2:
        return ((const uint16_t *)data)[i];
    case 4:
        return ((const uint32_t *)data)[i];
    default:
        return ((const uint64_t *)data)[i];
    }
}

/* Returns a hash of an element's bits and its index. For a fixed index, the hash is a bijection of 64-bit
 * words (xor-shift-multiply steps), so a change of any single element changes the checksum, which is the sum
 * of the hashes. */
static inline uint64_t mix(uint64_t index, uint64_t bits)
{
    uint64_t h = bits ^ (index + 1) * UINT64_C(0x9E3779B97F4A7C15);
    h = (h ^ h >> 32) * UINT64_C(0xD6E8FEB86659FD93);
    h = (h ^ h >> 32) * UINT64_C(0xD6E8FEB86659FD93);
    return h ^ h >> 32;
}

uint64_t ckpt_checksum(ax_dtype dtype, int ndim, const int64_t *dim, const int64_t *lo, const int64_t *n,
                       const void *data)
{
    size_t size = ax_dtype_size(dtype);
    uint64_t sum = 0;
    ckpt_pieces row; /* each piece is one row along the last dim */
    ckpt_pieces_begin(&row, ndim, n, ndim ? ax_max(n[ndim - 1], 1) : 1);
    while (ckpt_pieces_next(&row)) {
        int64_t index = 0;
        for (int d = 0; d < ndim; d++)
            index = index * dim[d] + lo[d] + row.lo[d];
        for (int64_t i = 0; i < row.count; i++)
            sum += mix((uint64_t)(index + i), element_bits(size, data, row.first + i));
    }
    return sum;
}
