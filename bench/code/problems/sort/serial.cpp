#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

/* Sort the vector x in ascending order of the absolute values of its elements.
   Example:
   input: [3.5, -1, 2, -4]
   output: [-1, 2, 3.5, -4] */
void sort_by_magnitude(std::vector<double> &x) {
#ifndef WRONG
    std::sort(x.begin(), x.end(), [](double a, double b) { return std::abs(a) < std::abs(b); });
}
#else
    std::sort(x.begin(), x.end(), [](double a, double b) { return a < b; });
}
#endif
