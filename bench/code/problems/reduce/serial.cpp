#include <cstddef>
#include <vector>

/* Return the sum of the positive elements of x. Return 0 if there are none.
   Example:
   input: [1, -2, 3, 0]
   output: 4 */
double sum_of_positive(const std::vector<double> &x) {
#ifndef WRONG
    double sum = 0;
    for (double each : x)
        if (each > 0)
            sum += each;
    return sum;
}
#else
    double sum = 0;
    for (double each : x)
        sum += each;
    return sum;
}
#endif
