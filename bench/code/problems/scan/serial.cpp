#include <algorithm>
#include <cstddef>
#include <vector>

/* Compute the running maximum of x: y[i] = max(x[0], ..., x[i]). y has as many elements as x.
   Example:
   input: [1, 3, 2, 5]
   output: [1, 3, 3, 5] */
void running_maximum(const std::vector<double> &x, std::vector<double> &y) {
#ifndef WRONG
    y[0] = x[0];
    for (size_t i = 1; i < x.size(); i++)
        y[i] = std::max(y[i - 1], x[i]);
}
#else
    for (size_t i = 1; i < x.size(); i++)
        y[i] = std::max(x[i - 1], x[i]);
}
#endif
