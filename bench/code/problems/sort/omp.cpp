#include <algorithm>
#include <cmath>
#include <cstddef>
#include <omp.h>
#include <vector>

/* Sort the vector x in ascending order of the absolute values of its elements. Use OpenMP to
   compute in parallel.
   Example:
   input: [3.5, -1, 2, -4]
   output: [-1, 2, 3.5, -4] */
void sort_by_magnitude(std::vector<double> &x) {
#ifndef WRONG
    const auto less = [](double a, double b) { return std::abs(a) < std::abs(b); };
    const size_t n = x.size(), parts = omp_get_max_threads();
    #pragma omp parallel for
    for (size_t p = 0; p < parts; p++)
        std::sort(x.begin() + n * p / parts, x.begin() + n * (p + 1) / parts, less);
    for (size_t p = 1; p < parts; p++)
        std::inplace_merge(x.begin(), x.begin() + n * p / parts, x.begin() + n * (p + 1) / parts, less);
}
#else
    const auto less = [](double a, double b) { return std::abs(a) < std::abs(b); };
    const size_t n = x.size(), parts = omp_get_max_threads();
    #pragma omp parallel for
    for (size_t p = 0; p < parts; p++)
        std::sort(x.begin() + n * p / parts, x.begin() + n * (p + 1) / parts, less);
}
#endif
