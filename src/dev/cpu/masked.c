/* Kernels compress and expand: between the rows of a pruned matrix and the vector of its kept elements. At
 * the densities for which matrices are pruned, most 64-bit words of the mask have few bits, and a loop over
 * the bits is as fast as SIMD that packs all elements of a word. Conversions and additions are those of the
 * SIMD kernels `convert` and `add`, on pieces of the vector. Work items are rows. */
#include "dev/cpu/cpu.h"

#include <string.h>

enum { PIECE = 4096 }; /* elements of the vector that are converted or added at a time */

/* A position in a row: the word of its mask, and the bits of this word that are not yet done. */
typedef struct position {
    const uint64_t *bits;
    int64_t word, words;
    uint64_t left;
} position;

static position row_begin(const uint64_t *bits, int64_t cols, int64_t row)
{
    const int64_t words = ax_ceil_div(cols, 64);
    return (position){.bits = bits + row * words, .words = words, .left = words ? bits[row * words] : 0};
}

/* Goes to the next word. Returns false after the last one. */
static bool next_word(position *p)
{
    if (p->word + 1 >= p->words)
        return false;
    p->left = p->bits[++p->word];
    return true;
}

/* Skips n kept elements: all that are left, if n is larger, because the vector has padding after a row. */
static void skip(position *p, int64_t n)
{
    for (int64_t kept; n >= (kept = __builtin_popcountll(p->left)); n -= kept)
        if (!next_word(p)) {
            p->left = 0;
            return;
        }
    for (; n; n--)
        p->left &= p->left - 1;
}

/* Runs `each` for every kept element from p on, and at most n of them: `i` counts them, and `c` is the
 * element's column. Returns the number of elements. */
#define EACH_KEPT(p, n, each)                                                                                \
    int64_t i = 0;                                                                                           \
    do {                                                                                                     \
        const int64_t first = (p)->word * 64;                                                                \
        uint64_t left = (p)->left;                                                                           \
        for (; left && i < (n); left &= left - 1, i++) {                                                     \
            const int64_t c = first + __builtin_ctzll(left);                                                 \
            each;                                                                                            \
        }                                                                                                    \
        (p)->left = left;                                                                                    \
    } while (i < (n) && next_word(p));                                                                       \
    return i

/* Copies the next kept elements of row x, at most n, and returns their number. */
static int64_t gather(position *p, const float *x, float *out, int64_t n) { EACH_KEPT(p, n, out[i] = x[c]); }

static int64_t scatter32(position *p, const float *in, float *y, int64_t n) { EACH_KEPT(p, n, y[c] = in[i]); }

static int64_t scatter16(position *p, const uint16_t *in, uint16_t *y, int64_t n)
{
    EACH_KEPT(p, n, y[c] = in[i]);
}

static void *element(const void *array, ax_dtype dtype, int64_t i)
{
    return (char *)(uintptr_t)array + i * (int64_t)ax_dtype_size(dtype);
}

static void convert(const ax_cpu_masked *m, int64_t n, const void *x, ax_dtype from, void *y, ax_dtype to)
{
    const ax_convert_args args = {.n = n, .x = x, .y = y, .x_dtype = from, .y_dtype = to};
    m->convert(&args, 0, n, NULL);
}

static void add(const ax_cpu_masked *m, int64_t n, const float *a, const float *b, float *y)
{
    const ax_add_args args = {.n = n, .a = a, .b = b, .y = y, .dtype = AX_F32};
    m->add(&args, 0, n, NULL);
}

/* Adds n elements to y, or stores them there. `room`: memory for n elements. */
static void put(const ax_cpu_masked *m, int64_t n, const float *piece, void *y, float *room)
{
    const ax_compress_args *a = m->args;
    const bool narrow = a->y_dtype != AX_F32;
    if (narrow && a->accumulate)
        convert(m, n, y, a->y_dtype, room, AX_F32);
    if (a->accumulate)
        add(m, n, narrow ? room : y, piece, narrow ? room : y);
    if (narrow)
        convert(m, n, a->accumulate ? room : piece, AX_F32, y, a->y_dtype);
}

static void compress_row(const ax_cpu_masked *m, int64_t row, float *piece)
{
    const ax_compress_args *a = m->args;
    const float *x = (const float *)a->x + row * a->ld;
    int64_t at = a->begin[row] - a->begin[0], end = a->begin[row + 1] - a->begin[0], n;
    position p = row_begin(a->bits, a->cols, row);
    const bool direct = a->y_dtype == AX_F32 && !a->accumulate;
    do {
        void *y = element(a->y, a->y_dtype, at);
        n = gather(&p, x, direct ? y : piece, ax_min(PIECE, end - at));
        if (!direct)
            put(m, n, piece, y, piece + PIECE);
        at += n;
    } while (n == PIECE);
    if (!a->accumulate)
        memset(element(a->y, a->y_dtype, at), 0, (size_t)(end - at) * ax_dtype_size(a->y_dtype));
}

void ax_cpu_compress(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    for (int64_t row = lo; row < hi; row++)
        compress_row(args, row, scratch);
}

/* Writes elements x … of the vector, at most n, to the places of the next kept elements of row y. */
static int64_t place(const ax_cpu_masked *m, position *p, const float *x, void *y, int64_t n, void *piece)
{
    const ax_expand_args *a = m->args;
    if (a->y_dtype == AX_F32)
        return scatter32(p, x, y, n);
    convert(m, n, x, AX_F32, piece, a->y_dtype);
    return scatter16(p, piece, y, n);
}

static void expand_row(const ax_cpu_masked *m, int64_t row, void *piece)
{
    const ax_expand_args *a = m->args;
    const int64_t begin = a->begin[row] - a->begin[0], end = a->begin[row + 1] - a->begin[0],
                  last = ax_min(end, a->first + a->n);
    void *y = element(a->y, a->y_dtype, row * a->cols);
    int64_t at = ax_max(begin, a->first), n;
    position p = row_begin(a->bits, a->cols, row);
    if (a->whole)
        memset(y, 0, (size_t)a->cols * ax_dtype_size(a->y_dtype));
    if (at >= last)
        return;
    skip(&p, at - begin);
    do {
        n = place(m, &p, (const float *)a->x + at - a->first, y, ax_min(PIECE, last - at), piece);
        at += n;
    } while (n == PIECE);
}

void ax_cpu_expand(const void *args, int64_t lo, int64_t hi, void *scratch)
{
    for (int64_t row = lo; row < hi; row++)
        expand_row(args, row, scratch);
}
