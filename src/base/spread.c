/* Computes median, minimum, maximum and mean of measurements. */
#include "axonn/base.h"

#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

ax_spread ax_spread_of(double *value, int64_t n)
{
    ax_spread s = {0};
    for (int64_t i = 0; i < n; i++)
        s.mean += value[i] / (double)n;
    qsort(value, (size_t)n, sizeof *value, ascending);
    s.median = n % 2 ? value[n / 2] : (value[n / 2 - 1] + value[n / 2]) / 2;
    s.min = value[0];
    s.max = value[n - 1];
    return s;
}
