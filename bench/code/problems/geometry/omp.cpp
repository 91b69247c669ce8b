#include <algorithm>
#include <cmath>
#include <cstddef>
#include <omp.h>
#include <vector>

/* The points (x[i], y[i]) lie in a plane. Return the smallest distance between two of them, or
   -1 if there are fewer than two points. Use OpenMP to compute in parallel.
   Example:
   input: x = [0, 3, 3], y = [0, 4, 0]
   output: 3 */
double closest_distance(const std::vector<double> &x, const std::vector<double> &y) {
#ifndef WRONG
    if (x.size() < 2)
        return -1;
    double least = INFINITY;
    #pragma omp parallel for reduction(min : least) schedule(dynamic)
    for (size_t i = 0; i < x.size(); i++)
        for (size_t j = i + 1; j < x.size(); j++)
            least = std::min(least, std::hypot(x[i] - x[j], y[i] - y[j]));
    return least;
}
#else
    if (x.size() < 2)
        return -1;
    double least = INFINITY;
    #pragma omp parallel for reduction(min : least) schedule(dynamic)
    for (size_t i = 0; i < x.size(); i++)
        for (size_t j = 0; j < x.size(); j++)
            least = std::min(least, std::hypot(x[i] - x[j], y[i] - y[j]));
    return least;
}
#endif
