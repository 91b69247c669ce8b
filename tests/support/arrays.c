/* Random numbers, and comparisons of arrays, in double precision. */
#include "support/arrays.h"

#include "axonn/base.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static uint64_t draws;

void fill(double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = (double)ax_rng_normal(11, draws++);
}

double dot(const double *x, const double *y, int64_t n)
{
    long double sum = 0; /* differences of sums keep their digits */
    for (int64_t i = 0; i < n; i++)
        sum += (long double)x[i] * y[i];
    return (double)sum;
}

void check_equal(const char *what, const double *got, const double *want, int64_t n)
{
    double scale = sqrt(dot(want, want, n) / (double)n);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-13 * (scale + fabs(want[i]))))
            fail_msg("%s[%lld] is %.17g, not %.17g", what, (long long)i, got[i], want[i]);
}
