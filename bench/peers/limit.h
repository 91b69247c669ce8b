/* The implementations of a matrix product ("ways") that limit.c compares. */
#ifndef LIMIT_H
#define LIMIT_H

#include "axonn/dev.h"

/* c [m, n] = op(a) op(b), as in ax_gemm_args. c is fp32 if a is transposed (weight gradients), else it has
 * the operands' dtype. `b_constant`: b is a weight, which could be packed once for many uses. */
typedef struct product {
    const char *name;
    int64_t m, n, k;
    bool ta, tb, b_constant;
    int calls; /* per micro-batch */
} product;

/* State shared by all implementations. a, b and c are large enough for every product; `right` holds the
 * correct result. */
typedef struct bench {
    ax_device *dev;
    ax_dtype dtype;
    int threads;
    char *a, *b, *c;
    float *right;
} bench;

typedef struct way {
    const char *name;
    void *(*prepare)(const bench *, const product *); /* packs; NULL: product is not supported */
    void (*run)(void *state);
    float (*at)(const void *state, int64_t row, int64_t col); /* an element of the result, after a run */
    void (*release)(void *state);
} way;

/* axonn; oneDNN's matmul primitive with plain strides, and with b packed beforehand; oneDNN's BLAS-like
 * functions; libxsmm's batch-reduce kernels with all operands packed beforehand. */
extern const way way_axonn, way_plain, way_packed, way_blas, way_xsmm;

/* Ends the program if `failed`. */
void limit_check(int failed, const char *what);

float limit_from_bf16(uint16_t bits);
uint16_t limit_to_bf16(float x); /* rounds a finite number to nearest, ties to even */

void *limit_alloc(const bench *b, size_t bytes);

#endif
