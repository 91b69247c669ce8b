#include <algorithm>
#include <cstddef>
#include <omp.h>
#include <vector>

/* Compute the running maximum of x: y[i] = max(x[0], ..., x[i]). y has as many elements as x.
   Use OpenMP to compute in parallel.
   Example:
   input: [1, 3, 2, 5]
   output: [1, 3, 3, 5] */
void running_maximum(const std::vector<double> &x, std::vector<double> &y) {
#ifndef WRONG
    double most = x[0];
    #pragma omp parallel for reduction(inscan, max : most)
    for (size_t i = 0; i < x.size(); i++) {
        most = std::max(most, x[i]);
        #pragma omp scan inclusive(most)
        y[i] = most;
    }
}
#else
    double most = x[0];
    #pragma omp parallel for reduction(max : most)
    for (size_t i = 0; i < x.size(); i++)
        most = std::max(most, x[i]);
    for (size_t i = 0; i < x.size(); i++)
        y[i] = most;
}
#endif
