#include <algorithm>
#include <cstddef>
#include <vector>

/* Return the index of the first element of x that is greater than limit, or -1 if there is
   none.
   Example:
   input: x = [1, 5, 2, 7], limit = 4
   output: 1 */
int first_above(const std::vector<double> &x, double limit) {
#ifndef WRONG
    for (size_t i = 0; i < x.size(); i++)
        if (x[i] > limit)
            return i;
    return -1;
}
#else
    int found = -1;
    for (size_t i = 0; i < x.size(); i++)
        if (x[i] > limit)
            found = i;
    return found;
}
#endif
