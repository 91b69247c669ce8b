#include <algorithm>
#include <cstddef>
#include <omp.h>
#include <vector>

/* Return the index of the first element of x that is greater than limit, or -1 if there is
   none. Use OpenMP to compute in parallel.
   Example:
   input: x = [1, 5, 2, 7], limit = 4
   output: 1 */
int first_above(const std::vector<double> &x, double limit) {
#ifndef WRONG
    int first = x.size();
    #pragma omp parallel for reduction(min : first)
    for (size_t i = 0; i < x.size(); i++)
        if (x[i] > limit)
            first = std::min(first, (int)i);
    return first < (int)x.size() ? first : -1;
}
#else
    int first = x.size();
    #pragma omp parallel for reduction(min : first)
    for (size_t i = 0; i < x.size(); i++)
        if (x[i] > limit)
            first = std::min(first, (int)i);
    return first;
}
#endif
