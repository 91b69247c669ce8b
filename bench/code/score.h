/* pass@k and build@k with intervals (arXiv 2412.15178; Chen et al., arXiv 2107.03374, equation 1). */
#ifndef SCORE_H
#define SCORE_H

#include <stdint.h>

/* Returns the probability that k of n samples, drawn without replacement, have at least one of the c good
 * ones: 1 - C(n - c, k)/C(n, k). 0 <= c <= n, 1 <= k <= n. */
double score_at_k(int64_t n, int64_t c, int64_t k);

typedef struct score {
    double mean, low, high; /* low, high: the 2.5 and 97.5 % quantiles of means of resampled prompts */
} score;

/* Computes the mean of n > 0 prompts' values, and its interval by the bootstrap: prompts are drawn with
 * replacement. The same values always give the same interval. */
score score_of(const double *value, int64_t n);

#endif
