/* Compares gradients in double precision with central differences, and arrays with arrays. */
#ifndef AXONN_TESTS_GRADIENT_H
#define AXONN_TESTS_GRADIENT_H

#include <stdint.h>

/* Fills x with the next n normal numbers. */
void fill(double *x, int64_t n);
double dot(const double *x, const double *y, int64_t n);

/* Fails the running test unless grad is the gradient of f with respect to the n elements of x, which are part
 * of `test`. Errors are relative to the gradient's rms, or to 1e-3 if that is larger, because some gradients
 * are zero. */
typedef double objective(const void *test);
void check_gradient(const char *what, objective *f, const void *test, double *x, const double *grad,
                    int64_t n);

/* Fails the running test unless the arrays are equal except for the rounding of double precision. */
void check_equal(const char *what, const double *got, const double *want, int64_t n);

#endif
