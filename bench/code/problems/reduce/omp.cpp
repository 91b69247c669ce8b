#include <cstddef>
#include <omp.h>
#include <vector>

/* Return the sum of the positive elements of x. Return 0 if there are none. Use OpenMP to
   compute in parallel.
   Example:
   input: [1, -2, 3, 0]
   output: 4 */
double sum_of_positive(const std::vector<double> &x) {
#ifndef WRONG
    double sum = 0;
    #pragma omp parallel for reduction(+ : sum)
    for (size_t i = 0; i < x.size(); i++)
        if (x[i] > 0)
            sum += x[i];
    return sum;
}
#else
    double sum = 0;
    for (size_t i = 0; i < x.size(); i++)
        if (x[i] > 0)
            sum += x[i];
    return sum;
}
#endif
