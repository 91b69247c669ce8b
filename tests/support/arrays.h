/* Random numbers, and comparisons of arrays, in double precision. */
#ifndef AXONN_TESTS_ARRAYS_H
#define AXONN_TESTS_ARRAYS_H

#include <stdint.h>

/* Fills x with the next n normal numbers. */
void fill(double *x, int64_t n);
double dot(const double *x, const double *y, int64_t n);

/* Fails the running test unless the arrays are equal except for the rounding of double precision. */
void check_equal(const char *what, const double *got, const double *want, int64_t n);

#endif
