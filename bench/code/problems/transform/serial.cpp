#include <cmath>
#include <cstddef>
#include <vector>

/* Replace each element of x by its distance to the nearest multiple of step, which is positive.
   Example:
   input: x = [1, 4, 8, -3], step = 5
   output: [1, 1, 2, 2] */
void distance_to_multiple(std::vector<double> &x, double step) {
#ifndef WRONG
    for (double &each : x)
        each = std::abs(each - step * std::round(each / step));
}
#else
    for (double &each : x)
        each = std::abs(each - step * std::floor(each / step));
}
#endif
