/* The ways to a matrix product between which limit.c chooses. */
#ifndef LIMIT_H
#define LIMIT_H

#include "axonn/dev.h"

/* c [m, n] = op(a) op(b), as ax_gemm_args; c is fp32 where a is transposed (gradients of weights), else of
 * the operands' dtype. `b_constant`: b is a weight, which could be packed once for many uses. */
typedef struct product {
    const char *name;
    int64_t m, n, k;
    bool ta, tb, b_constant;
    int calls; /* in a micro-batch */
} product;

/* What the ways share. a and b hold enough for every product, c for every result, `right` for what is right.
 */
typedef struct bench {
    ax_device *dev;
    ax_dtype dtype;
    int threads;
    char *a, *b, *c;
    float *right;
} bench;

typedef struct way {
    const char *name;
    void *(*prepare)(const bench *, const product *); /* packs; NULL: has no such product */
    void (*run)(void *state);
    float (*at)(const void *state, int64_t row, int64_t col); /* of the result, once it has run */
    void (*release)(void *state);
} way;

/* axonn; oneDNN's matmul primitive on plain strides and on a b packed beforehand, its BLAS-like functions;
 * libxsmm's batch-reduce kernels on operands that are all packed beforehand. */
extern const way way_axonn, way_plain, way_packed, way_blas, way_xsmm;

/* Ends the program if `failed`. */
void limit_check(int failed, const char *what);

float limit_from_bf16(uint16_t bits);
uint16_t limit_to_bf16(float x); /* to the nearest, ties to even; of finite numbers */

void *limit_alloc(const bench *b, size_t bytes);

#endif
