#include <cmath>
#include <cstddef>
#include <omp.h>
#include <vector>

/* Replace each element of x by its distance to the nearest multiple of step, which is positive.
   Use OpenMP to compute in parallel.
   Example:
   input: x = [1, 4, 8, -3], step = 5
   output: [1, 1, 2, 2] */
void distance_to_multiple(std::vector<double> &x, double step) {
#ifndef WRONG
    #pragma omp parallel for
    for (size_t i = 0; i < x.size(); i++)
        x[i] = std::abs(x[i] - step * std::round(x[i] / step));
}
#else
    #pragma omp parallel for
    for (size_t i = 1; i < x.size(); i++)
        x[i] = std::abs(x[i] - step * std::round(x[i] / step));
}
#endif
