#include <cstddef>
#include <vector>

/* Count how often each last decimal digit occurs: count[d] becomes the number of elements of x,
   none of which is negative, whose last digit is d. count has 10 elements, which are 0 at the
   start.
   Example:
   input: [10, 21, 31, 7]
   output: [1, 2, 0, 0, 0, 0, 0, 1, 0, 0] */
void count_last_digits(const std::vector<int> &x, std::vector<int> &count) {
#ifndef WRONG
    for (int each : x)
        count[each % 10]++;
}
#else
    for (int each : x)
        count[each / 10 % 10]++;
}
#endif
