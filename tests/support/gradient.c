/* Compares gradients in double precision with central differences. */
#include "support/gradient.h"

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
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * y[i];
    return sum;
}

/* Five-point central difference, whose error is h⁴f⁗'/30 + ε|L|/h: near 1e-11 here. */
static double difference(objective *f, const void *test, double *x)
{
    const double h = 1e-3, at = *x;
    double sum = 0;
    static const double step[] = {-2, -1, 1, 2}, weight[] = {1, -8, 8, -1};
    for (int i = 0; i < 4; i++) {
        *x = at + step[i] * h;
        sum += weight[i] * f(test);
    }
    *x = at;
    return sum / (12 * h);
}

void check_gradient(const char *what, objective *f, const void *test, double *x, const double *grad,
                    int64_t n)
{
    double scale = fmax(sqrt(dot(grad, grad, n) / (double)n), 1e-3);
    for (int64_t i = 0; i < n; i++) {
        double expected = difference(f, test, &x[i]);
        if (!(fabs(grad[i] - expected) <= 1e-8 * scale))
            fail_msg("d%s[%lld] is %.12g, differences give %.12g", what, (long long)i, grad[i], expected);
    }
}

void check_equal(const char *what, const double *got, const double *want, int64_t n)
{
    double scale = sqrt(dot(want, want, n) / (double)n);
    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - want[i]) <= 1e-13 * (scale + fabs(want[i]))))
            fail_msg("%s[%lld] is %.17g, not %.17g", what, (long long)i, got[i], want[i]);
}
