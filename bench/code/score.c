#include "score.h"

#include "axonn/base.h"

#include <stdlib.h>

double score_at_k(int64_t n, int64_t c, int64_t k)
{
    double none = 1;
    for (int64_t i = n - c + 1; i <= n; i++)
        none *= i > k ? (double)(i - k) / (double)i : 0;
    return 1 - none;
}

static double mean_of(const double *value, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += value[i];
    return sum / (double)n;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

score score_of(const double *value, int64_t n)
{
    enum { RESAMPLES = 4000, EACH_SIDE = RESAMPLES / 40 };
    static const uint64_t key = 95;
    double mean[RESAMPLES];
    for (int64_t r = 0; r < RESAMPLES; r++) {
        double sum = 0;
        for (int64_t i = 0; i < n; i++)
            sum += value[(int64_t)(ax_rng_uniform(key, (uint64_t)(r * n + i)) * (float)n) % n];
        mean[r] = sum / (double)n;
    }
    qsort(mean, RESAMPLES, sizeof *mean, ascending);
    return (score){mean_of(value, n), mean[EACH_SIDE], mean[RESAMPLES - 1 - EACH_SIDE]};
}
