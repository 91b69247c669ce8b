/* Kernels that do not become faster by SIMD: fill, and plain and strided copies. Work items are elements;
 * those of copy_box are rows, which run along the innermost dim. */
#include "dev/cpu/cpu.h"

#include <string.h>

/* Copies elements: the kernel convert if both dtypes are equal. */
void ax_cpu_copy(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_convert_args *a = args;
    size_t size = ax_dtype_size(a->x_dtype);
    (void)scratch;
    memmove((char *)a->y + (size_t)lo * size, (const char *)a->x + (size_t)lo * size,
            (size_t)(hi - lo) * size);
}

/* Fills elements lo … hi-1 of an array. Uses memset if all bytes of the element are equal, as in 0, by far
 * the most frequent value. Otherwise writes the first 4096 bytes of this range element by element, and copies
 * them to the rest. */
void ax_cpu_fill(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_cpu_filling *f = args;
    const ax_fill_args *a = f->a;
    size_t size = ax_dtype_size(a->dtype), bytes = (size_t)(hi - lo) * size,
           done = ax_min(4096, (int64_t)bytes);
    char *y = (char *)a->y + (size_t)lo * size;
    (void)scratch;
    memcpy(y, f->element, size);
    bool same = true;
    for (size_t i = 1; i < size; i++)
        same = same && y[i] == y[0];
    if (same) {
        memset(y, (unsigned char)y[0], bytes);
        return;
    }
    for (size_t i = size; i < done; i += size)
        memcpy(y + i, y, size);
    for (; done < bytes; done += 4096)
        memcpy(y + done, y, (size_t)ax_min(4096, (int64_t)(bytes - done)));
}

/* The three outer indices of row `item` of an n0 x n1 x n2 x n3 array. */
typedef struct outer {
    int64_t i, j, k;
} outer;

static outer outer_of(const int64_t n[4], int64_t item)
{
    return (outer){item / (n[1] * n[2]), item / n[2] % n[1], item % n[2]};
}

#define COPY_STRIDED(type)                                                                                   \
    for (int64_t l = 0; l < n; l++)                                                                          \
    memcpy(y + (size_t)(l * ys) * sizeof(type), x + (size_t)(l * xs) * sizeof(type), sizeof(type))

static void copy_row(char *y, int64_t ys, const char *x, int64_t xs, int64_t n, size_t size)
{
    if (xs == 1 && ys == 1)
        memcpy(y, x, (size_t)n * size);
    else if (size == 8)
        COPY_STRIDED(uint64_t);
    else if (size == 4)
        COPY_STRIDED(uint32_t);
    else if (size == 2)
        COPY_STRIDED(uint16_t);
    else
        COPY_STRIDED(uint8_t);
}

static void add_row(ax_dtype dtype, void *y, int64_t ys, const void *x, int64_t xs, int64_t n)
{
    const float *xf = x;
    const uint16_t *xh = x;
    float *yf = y;
    uint16_t *yh = y;
    if (dtype == AX_F32)
        for (int64_t l = 0; l < n; l++)
            yf[l * ys] += xf[l * xs];
    else if (dtype == AX_F16)
        for (int64_t l = 0; l < n; l++)
            yh[l * ys] = ax_f16_from_float(ax_f16_to_float(yh[l * ys]) + ax_f16_to_float(xh[l * xs]));
    else
        for (int64_t l = 0; l < n; l++)
            yh[l * ys] = ax_bf16_from_float(ax_bf16_to_float(yh[l * ys]) + ax_bf16_to_float(xh[l * xs]));
}

void ax_cpu_copy_box(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    const ax_copy_box_args *a = args;
    const int64_t *xs = a->x_stride, *ys = a->y_stride;
    size_t size = ax_dtype_size(a->dtype);
    (void)scratch;
    for (int64_t item = lo; item < hi; item++) {
        outer o = outer_of(a->n, item);
        const char *x = (const char *)a->x + (o.i * xs[0] + o.j * xs[1] + o.k * xs[2]) * (int64_t)size;
        char *y = (char *)a->y + (o.i * ys[0] + o.j * ys[1] + o.k * ys[2]) * (int64_t)size;
        if (a->accumulate)
            add_row(a->dtype, y, ys[3], x, xs[3], a->n[3]);
        else
            copy_row(y, ys[3], x, xs[3], a->n[3], size);
    }
}
